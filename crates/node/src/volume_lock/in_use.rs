//! Whether any host has clients of a volume, or may have some.

use crate::admin::message::{AdminReply, AdminRequest};
use crate::error::ManageError;
use crate::node::Node;
use crate::volume_lock::holder::AWAY_MIN;
use crate::volume_lock::table::Lock;
use crate::volume_view::VolumeView;
use atoll_format::id::HostId;
use atoll_world::directory::Revision;
use atoll_world::{Components, Nanos, World};
use std::collections::{BTreeMap, BTreeSet};

/// How long a host that does not answer is asked again, if it may be a moment before it does:
/// connections that a pause or a partition broke are opened anew within a second.
const ASK_AGAIN_FOR: Nanos = Nanos::from_secs(4);
/// How often.
const ASK_AGAIN_EVERY: Nanos = Nanos::from_ms(250);

const _: () = {
    // Who may answer in a moment is asked again before it counts as away.
    assert!(ASK_AGAIN_EVERY.0 < ASK_AGAIN_FOR.0 && ASK_AGAIN_FOR.0 < AWAY_MIN.0);
};

impl<W: World, S: Components> Node<W, S> {
    /// Refuses what takes data from clients, if a host has clients of the volume or may have some.
    /// Hosts open it for nobody else once they have been told of a lock.
    ///
    /// A host that cannot be asked has none that matter if it has stopped in order, or if nobody
    /// has reached it for longer than any I/O is held and the volume's owner is another one: all
    /// I/O passes through the owner, whose takeover has fenced an earlier one off.
    pub(crate) async fn refuse_if_in_use(
        &self,
        view: &VolumeView,
        held: Option<&Lock>,
        dry_run: bool,
    ) -> Result<(), ManageError> {
        let (id, name) = (view.record.id, || view.name.clone());
        if let Some(lock) = held {
            assert_eq!(lock.record.object, id, "the lock of another volume than {}", view.name);
            assert!(lock.revision() > Revision(0), "hosts are told of a lock that nobody has");
        }
        let mut hosts: BTreeSet<HostId> = self.0.hosts.borrow().keys().copied().collect();
        hosts.insert(self.0.config.host);
        // Who is forgotten here may have clients.
        let (all, mut without) = (hosts.len(), 0);
        let question = || match held {
            Some(lock) => AdminRequest::Lock {
                lock: Box::new(lock.record.clone()),
                revision: lock.revision().0,
            },
            None => AdminRequest::InUse { object: id },
        };
        let until = self.world().now() + ASK_AGAIN_FOR;
        let mut is_first = true;
        let (mut users, mut silent) = (Vec::new(), Vec::new());
        let mut reached: BTreeMap<HostId, HostId> = BTreeMap::new();
        loop {
            let asks =
                hosts.iter().map(|&host| async move { (host, self.ask(host, question()).await) });
            let mut unreached = BTreeSet::new();
            for (host, answer) in futures_util::future::join_all(asks).await {
                match answer {
                    Ok(AdminReply::Clients { clients, reaches }) => {
                        if clients > 0 {
                            users.push(self.host_name(host));
                        } else {
                            without += 1;
                        }
                        reached.extend(reaches.iter().map(|&other| (other, host)));
                    }
                    Err(ManageError::Unreachable(_)) => _ = unreached.insert(host),
                    Ok(_) | Err(_) => silent.push(host),
                }
            }
            if std::mem::take(&mut is_first) && !unreached.is_empty() {
                let all: Vec<HostId> = unreached.iter().copied().collect();
                let stopped = self.stopped_in_order(&all).await;
                unreached.retain(|host| !stopped.contains(host));
                without += all.len() - unreached.len();
            }
            // Whom another one reaches, or who answered just now, may soon answer again. For no
            // other one is there anything to wait for.
            let may_answer =
                |host: &HostId| reached.contains_key(host) || self.away_for(*host) < AWAY_MIN;
            let waits = users.is_empty() && self.world().now() < until;
            (hosts, unreached) = unreached.into_iter().partition(|host| waits && may_answer(host));
            silent.extend(unreached);
            if hosts.is_empty() {
                break;
            }
            self.world().sleep(ASK_AGAIN_EVERY).await;
        }
        let told = without + users.len();
        assert_eq!(told + silent.len(), all, "hosts that have told, or may have clients");
        if !users.is_empty() {
            return Err(ManageError::InUse { name: name(), hosts: users.join(", ") });
        }
        if silent.is_empty() {
            return Ok(());
        }
        let stopped = self.stopped_in_order(&silent).await;
        silent.retain(|host| !stopped.contains(host));
        let doubt = |host: HostId, why: String| ManageError::MayBeInUse {
            name: name(),
            host: self.host_name(host),
            why,
        };
        for &host in &silent {
            if let Some(&other) = reached.get(&host) {
                return Err(doubt(host, format!("host {} reaches it", self.host_name(other))));
            }
            let away = self.away_for(host);
            if away < AWAY_MIN {
                let left = (AWAY_MIN.0 - away.0).div_ceil(1_000_000_000);
                let away = away.0 / 1_000_000_000;
                let why =
                    format!("nobody has heard of it for {away} s only: try again in {left} s");
                return Err(doubt(host, why));
            }
        }
        let owner = view.record.owner.map(|owner| owner.host);
        let Some(owner) = owner.filter(|owner| silent.contains(owner) && !dry_run) else {
            return Ok(());
        };
        match self.owned_by(&view.name, id).await {
            Ok(at) if at.host != owner => Ok(()),
            Ok(_) => Err(doubt(owner, "it owns the volume".into())),
            Err(error) => Err(doubt(owner, format!("it owns the volume, and {error}"))),
        }
    }
}
