//! Open files: how many this process may have, what it needs, and who gets how many.
//!
//! Disks, peers and the directory come first: connections of clients are bounded so that these
//! never lack one. What is not to be had is said at the start, not by the first client.
//!
//! Invariant: what is given to the API and to NBD clients together, with what the host itself
//! needs, is within the limit.

use atoll_api::{Code, Problem, limits};
use atoll_front::limits::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Of the host itself: runtimes, log, locks, listening sockets, the directory, files that are
/// read for a moment.
const OWN: u64 = 40;
/// Of each shard: its runtime, its ring, its connection to the directory.
const EACH_SHARD: u64 = 10;
/// Of each disk.
const EACH_DISK: u64 = 2;
/// Of each other host, by each shard: three connections each way.
const EACH_PEER: u64 = 6;
/// Other hosts that room is kept for, whatever the limit.
const PEERS_LEAST: u64 = 4;
/// Other hosts of the largest cluster.
const PEERS_MOST: u64 = 63;
/// Connections of the API and of NBD each, below which a host is of no use.
const CLIENTS_LEAST: u64 = 4;
/// Of the directory itself.
const DIRECTORY_OWN: u64 = 24;

/// How many connections clients get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shares {
    /// Of the API, over TCP and the Unix socket together.
    pub api: usize,
    /// Of NBD.
    pub nbd: usize,
}

/// Raises the limit of a host with so many disks and shards as far as it goes, and says what there
/// is.
///
/// # Errors
/// [`Code::Failed`]: with so few it would answer nobody.
pub fn of_host(disks: usize, shards: u8) -> Result<Shares, Problem> {
    let (least, most) = needs(disks, shards);
    let limit = raise("this host", least, most)?;
    Ok(shares(limit, own(disks, shards), each_peer(shards)))
}

/// What a host with so many disks and shards needs to start, and what with all clients and peers.
pub fn needs(disks: usize, shards: u8) -> (u64, u64) {
    let own = own(disks, shards);
    let least = own + each_peer(shards) * PEERS_LEAST + 2 * CLIENTS_LEAST;
    let clients = limits::CONNECTIONS_MAX as u64 + nbd_most();
    (least, own + each_peer(shards) * PEERS_MOST + clients)
}

/// What a host needs for itself.
fn own(disks: usize, shards: u8) -> u64 {
    OWN + EACH_DISK * disks as u64 + EACH_SHARD * (u64::from(shards) - 1)
}

/// What a host needs for another one.
fn each_peer(shards: u8) -> u64 {
    EACH_PEER * u64::from(shards)
}

/// The same of the directory.
///
/// # Errors
/// [`Code::Failed`].
pub fn of_directory() -> Result<(), Problem> {
    let clients = atoll_directory::limits::CONNECTIONS_MAX as u64;
    raise("the directory", DIRECTORY_OWN + CLIENTS_LEAST, DIRECTORY_OWN + clients).map(drop)
}

/// NBD clients that the front end takes.
fn nbd_most() -> u64 {
    Limits::default().connections as u64
}

fn shares(limit: u64, own: u64, each_peer: u64) -> Shares {
    // Room for all peers there may be, as long as clients have theirs.
    let left = limit.saturating_sub(own + each_peer * PEERS_LEAST);
    let peers = (each_peer * (PEERS_MOST - PEERS_LEAST)).min(left / 3);
    let left = left - peers;
    let api = (left / 3).clamp(CLIENTS_LEAST, limits::CONNECTIONS_MAX as u64);
    let nbd = left.saturating_sub(api).clamp(CLIENTS_LEAST, nbd_most());
    Shares { api: api as usize, nbd: nbd as usize }
}

/// Makes the soft limit the hard one; what it is then.
fn raise(who: &str, least: u64, most: u64) -> Result<u64, Problem> {
    let before = getrlimit(Resource::Nofile);
    if before.current.is_some() && before.current != before.maximum {
        let all = Rlimit { current: before.maximum, maximum: before.maximum };
        // What is refused leaves the limit as it was, and that is told below.
        let _ = setrlimit(Resource::Nofile, all);
    }
    let unlimited = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let (was, limit) = (unlimited(before.current), unlimited(getrlimit(Resource::Nofile).current));
    let hint = "raise it: LimitNOFILE= of the unit, or 'ulimit -Hn' of the shell that starts it";
    if limit < least {
        let detail = format!("{who} may open {limit} files, and needs at least {least} to work");
        return Err(Problem::new(Code::Failed, detail).hint(hint));
    }
    let raised = if was < limit { format!(", raised from {was}") } else { String::new() };
    if limit < most {
        tracing::warn!(
            hint,
            "{who} may open {limit} files{raised}; with all clients and peers it would need \
             {most}: it takes fewer clients"
        );
    } else {
        tracing::info!("{who} may open {limit} files{raised}, and needs up to {most}");
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::{CLIENTS_LEAST, PEERS_LEAST, each_peer, nbd_most, own, shares};

    #[test]
    fn shares_fit_and_large_limits_give_everything() {
        for (disks, count) in [(0, 1), (1, 1), (8, 4), (64, 16)] {
            let (own, each_peer) = (own(disks, count), each_peer(count));
            let needed = own + each_peer * PEERS_LEAST;
            for limit in needed + 2 * CLIENTS_LEAST..3000 {
                let shares = shares(limit, own, each_peer);
                let clients = (shares.api + shares.nbd) as u64;
                assert!(needed + clients <= limit, "{limit} {disks} {shares:?}");
                assert!(shares.api as u64 >= CLIENTS_LEAST && shares.nbd as u64 >= CLIENTS_LEAST);
            }
            let all = shares(1 << 20, own, each_peer);
            assert_eq!((all.api, all.nbd as u64), (256, nbd_most()));
        }
    }
}
