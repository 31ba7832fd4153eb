//! What every host says of the cluster once it is well, against what is: hosts, space, volumes,
//! their placement, that nothing is left to copy, and that no health check of a host or a volume
//! does not pass.

use crate::cluster::{Cluster, Storage, host_id};
use crate::world::SimWorld;
use atoll_format::record::{ObjectRecord, ObjectState};
use atoll_format::units::CHUNK;
use atoll_node::{CheckKind, ClusterFacts, HostStatus, Node, ObjectStatus, VolumeView};
use atoll_object::placement::{Explanation, Violation};
use atoll_world::{Components, Nanos};
use std::collections::BTreeMap;

/// Within so long after everything is well all figures are right: hosts ask each other every few
/// seconds, and blocks are still moving home.
const RIGHT_WITHIN: Nanos = Nanos::from_secs(60);

impl<T: Storage> Cluster<T> {
    /// Whether every host says of all hosts and volumes what is so.
    pub(crate) async fn judge_figures(&self) -> Result<(), String> {
        let limit = self.machines().executor().now() + RIGHT_WITHIN;
        for host in 0..self.machines().hosts() {
            loop {
                let Some(node) = self.node(host) else { return Err(format!("h{host} is down")) };
                node.look().await;
                let Err(why) = self.figures_of(&node).await else { break };
                if self.machines().executor().now() > limit {
                    return Err(format!("h{host} says {why}"));
                }
                self.wait(Nanos::from_ms(500)).await;
            }
        }
        Ok(())
    }

    async fn figures_of(&self, node: &Node<SimWorld, T::Store>) -> Result<(), String> {
        let hosts = node.hosts();
        if hosts.len() != usize::from(self.machines().hosts()) {
            return Err(format!("that there are {} hosts", hosts.len()));
        }
        for (host, (record, answers, status)) in (0..).zip(hosts) {
            let name = format!("h{host}");
            if record.name != name || !answers {
                return Err(format!("{} of {name}, answers: {answers}", record.name));
            }
            let status = status.ok_or_else(|| format!("nothing of {name}"))?;
            self.of_host(host, &status).map_err(|why| format!("of {name} {why}"))?;
        }
        let volumes = node.volumes().await.map_err(|e| e.to_string())?;
        let mut left: BTreeMap<_, _> = self.objects().into_iter().map(|o| (o.id, o)).collect();
        for volume in &volumes {
            let record = left.remove(&volume.record.id);
            let record = record.ok_or_else(|| format!("that there is {}", volume.name))?;
            of_volume(volume, &record).map_err(|why| format!("of {} {why}", volume.name))?;
            // One whose making was cut off heals nowhere, and is removed some minutes later.
            if record.state == ObjectState::Creating {
                continue;
            }
            let placement = node.placement(&volume.name).await.map_err(|e| e.to_string())?;
            of_placement(&placement.explanation, &record)
                .map_err(|why| format!("of the placement of {} {why}", volume.name))?;
        }
        if let Some(record) = left.into_values().next() {
            return Err(format!("nothing of volume {}", record.name));
        }
        let facts = ClusterFacts { hosts: node.hosts(), volumes, ..ClusterFacts::default() };
        let mut wrong = facts.checks().into_iter().filter(|check| ends_with_faults(check.kind));
        match wrong.next() {
            Some(check) => Err(format!("{}: {}", check.kind.name(), check.message)),
            None => Ok(()),
        }
    }

    fn of_host(&self, host: u16, status: &HostStatus) -> Result<(), String> {
        let stores = self.stores(host);
        if stores.len() != status.groups.len() {
            return Err(format!("{} groups: {}", status.groups.len(), stores.len()));
        }
        for (store, group) in stores.iter().zip(&status.groups) {
            let space = store.space();
            let is = (space.used_bytes, space.free_bytes, store.list().len());
            let said = (group.used_bytes, group.free_bytes, group.components as usize);
            if is != said || !group.failure.is_empty() {
                return Err(format!("{said:?} used, free, components: {is:?}; {}", group.failure));
            }
        }
        let components = stores.iter().flat_map(|store| store.list());
        let components: BTreeMap<_, _> = components.map(|c| (c.id, c.used_bytes)).collect();
        if components != status.components {
            return Err(format!("{:?} components: {components:?}", status.components));
        }
        if status.reaches.len() != usize::from(self.machines().hosts()) {
            return Err(format!("that it reaches {:?}", status.reaches));
        }
        let open = self.node(host).map(|node| node.host_status().open_volumes);
        let copying = |o: &&ObjectStatus| {
            o.resyncing || o.resync_bytes_left > 0 || o.copies.iter().any(|c| c.running)
        };
        match status.objects.iter().find(copying) {
            Some(object) => Err(format!("that copies are brought up to date: {object:?}")),
            // A scenario's clients keep theirs open.
            None if Some(&status.open_volumes) != open.as_ref() => {
                Err(format!("that volumes are open: {:?}", status.open_volumes))
            }
            None => Ok(()),
        }
    }
}

/// Whether a check must pass once everything is well: how full the small disks of a run are, and
/// what was repaired, stays as it is.
fn ends_with_faults(kind: CheckKind) -> bool {
    match kind {
        CheckKind::HostDown
        | CheckKind::HostLeaving
        | CheckKind::HostUnknown
        | CheckKind::HostUntold
        | CheckKind::GroupFailed
        | CheckKind::NoDisks
        | CheckKind::DiskUnused
        | CheckKind::VolumeInaccessible
        | CheckKind::VolumeDegraded
        | CheckKind::VolumeResyncing
        | CheckKind::UpgradePossible => true,
        CheckKind::NearlyFull
        | CheckKind::PromisedMore
        | CheckKind::PromisedLimit
        | CheckKind::GroupNearlyFull
        | CheckKind::GroupCrowded
        | CheckKind::LogFull
        | CheckKind::NoSpace
        | CheckKind::ChecksumErrors => false,
    }
}

fn of_volume(volume: &VolumeView, record: &ObjectRecord) -> Result<(), String> {
    let (said, is) = (&volume.record, record);
    if (&said.name, said.size_bytes, &said.legs) != (&is.name, is.size_bytes, &is.legs) {
        return Err(format!("{said:?}: {is:?}"));
    }
    let (Some(used), Some(guest)) = (volume.used_bytes, volume.guest_bytes) else {
        return Err("nothing of its space".into());
    };
    // No copy holds more than the volume, in whole chunks of each leg.
    let chunks: u64 = (0..record.legs.len()).map(|leg| u64::from(record.leg_chunks(leg))).sum();
    let most = chunks * CHUNK;
    if guest > used || guest > most || used > most * record.policy.members() as u64 {
        return Err(format!("{used} bytes used, {guest} by a copy, of {most}"));
    }
    Ok(())
}

fn of_placement(said: &Explanation, record: &ObjectRecord) -> Result<(), String> {
    if said.legs.len() != record.legs.len() {
        return Err(format!("{} legs", said.legs.len()));
    }
    for (leg, is) in said.legs.iter().zip(&record.legs) {
        let members = leg.members.iter().map(|m| (m.component, m.host, m.group, m.state));
        let there = is.members.iter().map(|m| (m.component, m.host, m.group, m.state));
        if !members.eq(there) {
            return Err(format!("{:?}: {:?}", leg.members, is.members));
        }
        for member in &leg.members {
            let name = (0..64).find(|&h| host_id(h) == member.host).map(|h| format!("h{h}"));
            if Some(&member.host_name) != name.as_ref() || member.trouble.is_some() {
                return Err(format!("{member:?}"));
            }
        }
        if leg.violations.iter().any(|v| matches!(v, Violation::Degraded { .. })) {
            return Err(format!("{:?}", leg.violations));
        }
    }
    Ok(())
}
