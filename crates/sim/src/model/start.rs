//! The states that a search may begin in.

use super::monitor::Monitor;
use super::state::{
    ABSENT, ACTIVE, BLOCKS, EPOCHS, MEMBERS, Member, NET, Net, Owner, Phase, RESYNCING, Read,
    Record, SEQS, STALE, State, Version, Wrong,
};
use super::step::{bit, members};
use super::{Config, Start};

/// The first state of a bounded space.
pub fn start(config: &Config) -> State {
    let mut directory =
        Record { revision: 1, epoch: 1, owner: 1, state: [0; MEMBERS], since: [0; MEMBERS] };
    for m in 0..usize::from(config.members) {
        directory.state[m] = ACTIVE;
    }
    let mut s = State {
        members: Default::default(),
        owners: Default::default(),
        directory,
        net: Net { len: 0, slots: [0; NET] },
        read: Read::default(),
        monitors: [Monitor::NEW; BLOCKS],
        acked: [0; BLOCKS],
        ackers: [0; EPOCHS],
        writes: 0,
        dead: 0,
        blind_drop: false,
        left: config.budget,
        wrong: Wrong::Nothing,
        overflow: false,
    };
    for m in 0..usize::from(config.members) {
        s.members[m] = Member { fenced: 1, session: (1, 1), open: true, ..Default::default() };
    }
    let last = usize::from(config.members) - 1;
    let o = &mut s.owners[0];
    o.phase = Phase::Serving;
    o.epoch = 1;
    for m in members((1 << config.members) - 1) {
        o.attach[usize::from(m)] = 1;
        o.leases |= bit(m);
    }
    match config.start {
        Start::Healthy => {}
        Start::Resyncing | Start::Behind | Start::Absent | Start::AbsentBehind => {
            let absent = matches!(config.start, Start::Absent | Start::AbsentBehind);
            let behind = matches!(config.start, Start::Behind | Start::AbsentBehind);
            s.directory.state[last] = if absent { ABSENT } else { RESYNCING };
            s.directory.since[last] = SEQS;
            if absent {
                o.leases &= !bit(last as u8);
            } else {
                o.planned = bit(last as u8);
            }
            if behind {
                // Op 1.1 holds the initial content of block 0; the last member missed it.
                let version = Version { id: SEQS + 1, value: 0 };
                o.seq = 1;
                for m in 0..last {
                    s.members[m].blocks[0] = version;
                    s.members[m].chunk = version.id;
                    s.members[m].next = 1;
                    o.next[m] = 1;
                }
                s.acked[0] = version.id;
                s.ackers[1] = 1;
                s.members[last].blocks[0].value = STALE;
                if !absent {
                    o.needs = bit(last as u8);
                    s.members[last].behind = true;
                }
            }
        }
        Start::OwnPast => {
            // Op 1.1 of write 1 reached the last member alone; owner 1 took over and dropped it.
            s.monitors[0].write_begins(1);
            s.writes = 1;
            s.members[last].blocks[0] = Version { id: SEQS + 1, value: 1 };
            s.members[last].chunk = SEQS + 1;
            s.directory.state[last] = ABSENT;
            s.directory.since[last] = SEQS;
            s.directory.epoch = 2;
            s.directory.owner = 2;
            let old = std::mem::take(&mut s.owners[0]);
            s.owners[0].incarnation = 1;
            s.owners[1] = Owner { epoch: 2, ..old };
            s.owners[1].leases &= !bit(last as u8);
            s.owners[1].attach[last] = 0;
            for m in 0..last {
                s.members[m].fenced = 2;
                s.members[m].session = (2, 1);
            }
        }
    }
    for o in &mut s.owners {
        if o.phase == Phase::Serving {
            o.view = s.directory;
        }
    }
    s
}
