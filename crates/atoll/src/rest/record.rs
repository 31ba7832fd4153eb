//! What is written down of a request: who asked for which change, and what came of it.
//!
//! Invariants: a change that is carried out is written down before its answer is sent; one whose
//! client goes away is written down, too; no token is.

use super::door::Door;
use crate::audit::Deed;
use crate::control::{Caller, Control};
use atoll_api::Problem;
use atoll_api::routes::Op;
use hyper::Uri;

/// What is to be written down of one request; nothing, before it has begun.
pub struct Record<C: Control> {
    control: C,
    deed: Option<Deed>,
}

impl<C: Control> Record<C> {
    /// Nothing yet.
    pub fn new(control: &C) -> Self {
        Self { control: control.clone(), deed: None }
    }

    /// This is to be written down, whatever comes of it.
    pub fn begin(&mut self, door: Door, caller: &Caller, op: Op, uri: &Uri) {
        self.deed = Some(Deed {
            at_ms: self.control.unix_ms(),
            who: door.who(caller),
            role: caller.role,
            from: door.from(),
            operation: format!("{op:?}"),
            target: target(op, uri),
            body: None,
            status: 0,
            code: String::new(),
            detail: String::new(),
        });
    }

    /// With that body.
    pub fn body(&mut self, bytes: &[u8]) {
        if let Some(deed) = &mut self.deed {
            deed.body = Deed::body(bytes);
        }
    }

    /// Writes down what came of it.
    pub async fn end(mut self, status: u16, problem: Option<&Problem>) {
        let Some(mut deed) = self.deed.take() else { return };
        deed.status = status;
        if let Some(problem) = problem {
            (deed.code, deed.detail) = (problem.code.to_string(), problem.detail.clone());
        }
        self.control.record(deed).await;
    }
}

impl<C: Control> Drop for Record<C> {
    /// The client did not wait for the answer. What it has asked for goes on.
    fn drop(&mut self) {
        if let Some(deed) = self.deed.take() {
            drop(self.control.record(deed));
        }
    }
}

/// Path and query of a request, without the values of `token` and of what the operation does not
/// know.
fn target(op: Op, uri: &Uri) -> String {
    let Some(query) = uri.query() else { return uri.path().to_owned() };
    let is_shown = |name: &str| name != "token" && op.route().parameters().any(|own| own == name);
    let hide = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if !is_shown(name) => format!("{name}=*"),
        _ => pair.to_owned(),
    };
    let query: Vec<String> = query.split('&').map(hide).collect();
    format!("{}?{}", uri.path(), query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::target;
    use atoll_api::routes::Op;

    #[test]
    fn a_target_is_kept_as_it_came_but_for_a_token() {
        for (uri, kept) in [
            ("/api/v1/volumes", "/api/v1/volumes"),
            ("/api/v1/volumes/v?dry_run=1", "/api/v1/volumes/v?dry_run=1"),
            ("http://h/v/lock?token=secret&dry_run=a%20b", "/v/lock?token=*&dry_run=a%20b"),
            ("/v?Token=secret=&token&%74oken=secret", "/v?Token=*&token&%74oken=*"),
        ] {
            assert_eq!(target(Op::VolumeUnlock, &uri.parse().unwrap()), kept, "{uri}");
        }
    }
}
