//! What the node says of the cluster, in the words of the interface.

use atoll_api::envelope::rfc3339;
use atoll_api::types::{
    HealthCheck, Level, Resync, ResyncItem, Space, Task, TaskState, Upgrade, UpgradeHost,
    VolumeState,
};
use atoll_node::{
    self as node, Check, CheckLevel, ClusterFacts, HostLevels, Outcome, ResyncCopy, SpaceSum,
    TaskFacts, host_name,
};

/// Space in the words of the interface.
pub fn space_item(space: SpaceSum) -> Space {
    let SpaceSum { capacity_bytes, used_bytes, free_bytes } = space;
    Space { capacity_bytes, used_bytes, free_bytes }
}

/// A check in the words of the interface.
pub fn check_item(check: Check) -> HealthCheck {
    HealthCheck {
        name: check.kind.name().into(),
        level: match check.level {
            CheckLevel::Warning => Level::Warning,
            CheckLevel::Critical => Level::Critical,
        },
        message: check.message,
        remedy: check.remedy,
    }
}

/// How far an upgrade is, in the words of the interface.
pub fn upgrade_item(upgrade: node::Upgrade, raised: bool) -> Upgrade {
    let obstacle = |host: &HostLevels| {
        let (state, name) = (if host.is_up { "runs" } else { "ran" }, &host.name);
        format!("host {name} {state} release {}, which knows levels {}", host.release, host.levels)
    };
    let obstacles = upgrade.behind().map(obstacle).collect();
    let host = |host: HostLevels| UpgradeHost {
        id: host.host.to_string(),
        name: host.name,
        release: host.release,
        up: host.is_up,
        oldest: host.levels.oldest.0,
        newest: host.levels.newest.0,
    };
    Upgrade {
        level: upgrade.level.0,
        next: upgrade.next.0,
        newest: upgrade.newest.0,
        raised,
        obstacles,
        hosts: upgrade.hosts.into_iter().map(host).collect(),
    }
}

/// What is being brought up to date, in the words of the interface.
pub fn resync_item(facts: &ClusterFacts) -> Resync {
    let resync = facts.resync();
    let item = |copy: ResyncCopy| ResyncItem {
        volume: copy.volume,
        leg: copy.leg as u32,
        component: copy.component.to_string(),
        host: host_name(&facts.hosts, copy.host),
        running: copy.running,
        bytes_left: copy.bytes_left,
        bytes_done: copy.bytes_done,
    };
    Resync {
        paused: resync.paused,
        limit_bytes_per_second: resync.limit_bytes_per_second,
        bytes_left: resync.bytes_left,
        bytes_per_second: resync.bytes_per_second,
        seconds_left: resync.seconds_left,
        items: resync.copies.into_iter().map(item).collect(),
    }
}

/// A task in the words of the interface.
pub fn task_item(task: &TaskFacts) -> Task {
    let (state, percent) = match task.ended {
        None => (TaskState::Running, task.percent.min(99)),
        Some((_, Outcome::Done)) => (TaskState::Done, 100),
        Some((_, Outcome::Failed)) => (TaskState::Failed, task.percent),
    };
    Task {
        id: task.work.to_string(),
        kind: task.work.kind().into(),
        subject: task.subject.clone(),
        state,
        percent,
        message: task.message.clone(),
        started_at: rfc3339(task.began_ms),
        ended_at: task.ended.map(|(at, _)| rfc3339(at)),
    }
}

/// How a volume is, in the words of the interface.
pub fn state_item(state: node::VolumeState) -> VolumeState {
    match state {
        node::VolumeState::Creating => VolumeState::Creating,
        node::VolumeState::Deleting => VolumeState::Deleting,
        node::VolumeState::Inaccessible => VolumeState::Inaccessible,
        node::VolumeState::Resyncing => VolumeState::Resyncing,
        node::VolumeState::Degraded => VolumeState::Degraded,
        node::VolumeState::Healthy => VolumeState::Healthy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_api::routes::Op;
    use atoll_format::id::GroupId;
    use atoll_node::Work;

    #[test]
    fn the_task_that_an_operation_begins_is_of_the_kind_that_the_table_says() {
        let begun: Vec<_> = Op::ALL.iter().filter_map(|op| op.route().task).collect();
        assert_eq!(begun, [Work::Scrub(GroupId(1)).kind()]);
    }

    #[test]
    fn a_task_is_at_100_percent_when_it_is_done_and_not_before() {
        let task = TaskFacts {
            work: Work::Scrub(GroupId(1)),
            subject: "s".into(),
            host: None,
            percent: 100,
            message: String::new(),
            began_ms: 0,
            ended: None,
        };
        let percent = |ended| task_item(&TaskFacts { ended, ..task.clone() }).percent;
        assert_eq!((percent(None), percent(Some((1, Outcome::Failed)))), (99, 100));
        let half = TaskFacts { percent: 50, ended: Some((1, Outcome::Done)), ..task.clone() };
        assert_eq!(task_item(&half).percent, 100);
    }
}
