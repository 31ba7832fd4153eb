//! What etcd's errors say about a request: refused without effect, or nobody knows.
//!
//! Invariant: a transaction counts as refused only by words that etcd says before it proposes a
//! request to its members, or that all of them agree on; whatever else goes wrong, it may have
//! been carried out, or may yet be.

use atoll_world::directory::DirectoryError;
use etcd_client::Error;

/// The codes of gRPC by which etcd answers.
mod code {
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const PERMISSION_DENIED: i32 = 7;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const OUT_OF_RANGE: i32 = 11;
    pub const UNAUTHENTICATED: i32 = 16;
}

/// What an error means for the request that it answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    /// It had no effect, and no member would take it.
    Refused(String),
    /// It had no effect; this host may not do that, or etcd is overloaded.
    Denied(String),
    /// The revision asked for is not kept any more.
    Compacted,
    /// This member, or the way to it, is no good; the outcome is unknown.
    Lost(String),
}

/// Sorts an error of the client.
pub(crate) fn meaning(error: &Error) -> Meaning {
    let Error::GRpcStatus(status) = error else { return Meaning::Lost(words(error)) };
    of_status(status.code().into(), status.message(), || words(error))
}

fn of_status(code: i32, message: &str, all: impl Fn() -> String) -> Meaning {
    // etcd's own words; the transport's errors come under the same codes.
    let Some(said) = message.strip_prefix("etcdserver: ") else { return Meaning::Lost(all()) };
    match code {
        code::OUT_OF_RANGE if said.contains("compacted") => Meaning::Compacted,
        code::RESOURCE_EXHAUSTED if said.contains("space exceeded") => Meaning::Refused(format!(
            "etcd is full and takes no changes (alarm NOSPACE: {said}); compact and defragment it, \
             then disarm the alarm"
        )),
        code::RESOURCE_EXHAUSTED if said.contains("too many requests") => {
            Meaning::Denied(format!("etcd is overloaded: {said}"))
        }
        code::PERMISSION_DENIED | code::UNAUTHENTICATED => Meaning::Denied(format!(
            "etcd does not let this host do that ({said}); the user named by its certificate needs \
             to read and write all keys under directory.prefix"
        )),
        code::INVALID_ARGUMENT if said.contains("user name is empty") => Meaning::Denied(format!(
            "etcd asks who this host is ({said}); directory.certificate names it"
        )),
        code::INVALID_ARGUMENT => Meaning::Refused(format!("etcd refuses it: {said}")),
        _ => Meaning::Lost(format!("etcd: {said}")),
    }
}

/// An error with its causes: that of a connection is at the end of the chain.
pub(crate) fn words(error: &Error) -> String {
    let mut words = match error {
        Error::GRpcStatus(status) => status.message().to_owned(),
        Error::TransportError(transport) => transport.to_string(),
        other => other.to_string(),
    };
    let first: Option<&(dyn std::error::Error + 'static)> = match error {
        Error::GRpcStatus(status) => std::error::Error::source(status),
        Error::TransportError(transport) => std::error::Error::source(transport),
        _ => None,
    };
    let mut cause = first;
    while let Some(at) = cause {
        let more = at.to_string();
        if !words.contains(&more) {
            words = if words.is_empty() { more } else { format!("{words}: {more}") };
        }
        cause = at.source();
    }
    words
}

impl Meaning {
    /// For a request that only reads: it may be asked again elsewhere after [`Meaning::Lost`].
    pub(crate) fn of_read(self) -> DirectoryError {
        match self {
            Self::Refused(why) => DirectoryError::Refused(why),
            Self::Denied(why) | Self::Lost(why) => DirectoryError::Unavailable(why),
            Self::Compacted => DirectoryError::Compacted,
        }
    }

    /// For a transaction.
    pub(crate) fn of_txn(self) -> DirectoryError {
        match self {
            Self::Lost(why) => DirectoryError::Unknown(why),
            other => other.of_read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Meaning, of_status};
    use atoll_world::directory::DirectoryError;

    #[test]
    fn only_what_etcd_refuses_in_its_own_words_has_no_effect() {
        let lost = ["etcdserver: request timed out", "etcdserver: leader changed"];
        for (code, message) in lost.map(|said| (14, said)).into_iter().chain([
            (14, "transport error"),
            (4, "context deadline exceeded"),
            (13, "etcdserver: not enough started members"),
            // Not etcd's words, though it is one of its codes.
            (8, "received message larger than max (2097152 vs. 1048576)"),
            (3, "what a proxy says"),
        ]) {
            let error = of_status(code, message, || message.to_owned()).of_txn();
            assert!(matches!(error, DirectoryError::Unknown(_)), "{message}: {error:?}");
        }
        let full = of_status(8, "etcdserver: mvcc: database space exceeded", String::new);
        assert!(matches!(full, Meaning::Refused(why) if why.contains("NOSPACE")));
        let large = of_status(3, "etcdserver: request is too large", String::new);
        assert!(matches!(large.of_txn(), DirectoryError::Refused(_)));
        let denied = of_status(7, "etcdserver: permission denied", String::new);
        assert!(matches!(denied.of_txn(), DirectoryError::Unavailable(_)));
        let old = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(of_status(11, old, String::new), Meaning::Compacted);
    }
}
