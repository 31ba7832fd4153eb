//! Seeds that once found something; each found a different flaw. `tests/regressions.rs` runs them.

use crate::fault::FaultSet;
use crate::feature::Features;
use crate::run::Options;

/// With what was wrong.
const SEEDS: &[(u64, &str)] = &[
    (273, "a device that gave no answer read as damaged, and a resync marked good blocks"),
    (640, "a copy that lost the end of its log stayed active"),
    (61_028, "a member that had restarted and lost the end of its log was promoted"),
    (61_519, "the same, as an active member between two writes"),
    (97, "a lost member could not be rebuilt in its own group, and there was no other"),
    (2_191, "a block that the medium did not give was not handed to its owner again"),
    (5_125, "a connection whose end was never heard of was waited on for ever"),
    (5_894, "a damaged page was repaired for its first block only"),
    (
        500_887,
        "a resync chose its source before it had the lock, and copied from one dropped since",
    ),
    (50_093, "the place of a rebuild was lost too, and no third was looked for"),
    (
        1_795_330_032_585,
        "a restarted owner was granted no lease and dropped a good copy; then its own was lost",
    ),
];

/// What a run was when these were found.
fn as_then() -> Options {
    Options { faults: FaultSet::FIRST, features: Features::NONE, ..Options::default() }
}

/// What a run was when those were found that come next.
fn as_later() -> Options {
    Options { faults: FaultSet::SECOND, features: Features::FIRST, ..Options::default() }
}

/// The same, of those.
const LATER: &[(u64, &str)] = &[
    (12, "a volume grew, blocks beyond its old end went home: the group could not be opened again"),
    (91, "the same, on two hosts"),
    (92, "the same, after a power loss"),
    (
        70_000_226,
        "to a volume that an old view of the directory showed so small, shrinking was no work",
    ),
    (1_795_344_143_329, "of disks whose formatting was cut short, nobody wiped what there was"),
    (70_000_334, "a recovery built on a batch that was in the device's cache only"),
];

/// What a run was when these were found.
fn as_since() -> Options {
    let features = Features::FIRST
        .and(Features::CHECKPOINT)
        .and(Features::READERS)
        .and(Features::CROWD)
        .and(Features::HARSH);
    Options { faults: FaultSet::THIRD, features, ..Options::default() }
}

/// The same, of those.
const SINCE: &[(u64, &str)] = &[
    (
        82_000_012,
        "a capacity device failed, the log was trimmed; after a restart all counted as whole",
    ),
    (200_004_977, "an object without a client was believed to be owned where it had been before"),
    (
        200_007_981,
        "a growth was in a lost part of the log: the group could not be opened the time after next",
    ),
    (
        300_000_442,
        "a component made between the two copies of a checkpoint was in one of them only",
    ),
    (300_004_649, "the same"),
    (300_003_763, "a copy that knew an epoch of a damaged log was never taken in again"),
    (
        610_003_140,
        "a takeover ended between its copies and their tickets: a retry was applied once more",
    ),
    (
        1_795_403_104_375,
        "a disk went and came back while nobody asked it anything: its host flushed, and what the \
         disk had lost was not seen (the simulator's flaw: a descriptor of it is of no use then)",
    ),
];

/// A run with all there was when this was found.
fn as_lately() -> Options {
    Options { features: as_since().features.and(Features::IN_ORDER), ..as_since() }
}

/// The same, of it.
const LATELY: &[(u64, &str)] = &[
    (
        1_795_547_891_357,
        "all of a segment was home, and trimmed, before the header of the next was written: a \
         crash then looked like a damaged log",
    ),
    (
        771_000_929,
        "a takeover asked a copy made after a shrink for what another kept beyond the end: the \
         volume stayed without an owner",
    ),
];

/// A run with all there was on 2026-11-26.
fn as_today() -> Options {
    let features = as_lately()
        .features
        .and(Features::SMALL)
        .and(Features::LOOKERS)
        .and(Features::ODD_SIZES)
        .and(Features::EMPTIED)
        .and(Features::SINGLE)
        .and(Features::DISKLESS)
        .and(Features::CALM);
    Options { faults: FaultSet::FOURTH, features, ..Options::default() }
}

/// The same, of it.
const TODAY: &[(u64, &str)] = &[
    (
        1_795_699_303_541,
        "a welcome of a life that was over came late: the connections of the new one were closed, \
         and two processes were told of",
    ),
    (
        1_795_680_007_623,
        "a shrink by a view of before the volume grew left what lay beyond on the disks",
    ),
    (
        1_795_676_452_737,
        "a copy that was left over, with a promise of a damaged log, kept its volume's owner from \
         its lease: its copy on that host was left out until that was removed",
    ),
    (
        1_795_679_699_503_893,
        "a copy that was put back as before its volume shrank kept the space of what was discarded",
    ),
    (
        1_795_828_957_603,
        "batches that an opening had cut off lay behind its own, and were taken for damage by the \
         next: the disk group was refused",
    ),
    (
        1_795_828_970_072,
        "a read waited for a connection while the copy became an older one, and was answered from \
         that before it was up to date",
    ),
    (
        1_795_828_954_221,
        "a copied discard of a chunk that was new to a copy left no trace: a copy that came back \
         later kept the bytes from before",
    ),
    (
        1_795_778_986_030,
        "a copy whose damaged log promised an epoch above its volume's refused to be deleted (not \
         reached by this seed any more: scenario deleted-volume-was-ahead-of-the-directory)",
    ),
];

/// A run with all there was on 2026-11-27: hosts of several shards.
fn with_shards() -> Options {
    Options { features: as_today().features.and(Features::SHARDS), ..as_today() }
}

/// The same, of it.
const SHARDED: &[(u64, &str)] = &[
    (
        1_795_813_377_521,
        "(in the simulator) a write of an attempt to open a disk group that had been given up came \
         after those of the next attempt, to the same place of the log",
    ),
    (
        1_795_816_069_835,
        "a discard was forgotten by a restart once all that it had superseded was trimmed from the \
         log: a copy that came back kept the bytes from before",
    ),
    (
        1_795_824_608_760,
        "the simulator: a single slow read of a slow disk took 16 s, also after everything healed, \
         and its disk group failed in the end",
    ),
    (
        1_795_815_305_348,
        "an object that a shard had given up for another was left without an owner: the shard that \
         its record named had another one adopt it, which took the record's word",
    ),
];

/// A run with all there was on 2026-11-28: volumes larger than a disk group.
fn with_thin_volumes() -> Options {
    Options { features: with_shards().features.and(Features::THIN), ..with_shards() }
}

/// The same, of it.
const THIN: &[(u64, &str)] = &[
    (
        1_795_837_650_294,
        "fences that waited for a lease filled the window of a connection: the renewals of another \
         volume's leases waited behind them, and its good copy was left out",
    ),
    (
        1_795_842_982_824,
        "a volume was shrunk at the pace of its ceiling of I/Os per second: 900 MiB took 18 s",
    ),
];

/// All of them: each seed, what was wrong, and how it was run.
pub fn all() -> Vec<(u64, &'static str, Options)> {
    let first = SEEDS.iter().map(|&(seed, what)| (seed, what, as_then()));
    let later = LATER.iter().map(|&(seed, what)| (seed, what, as_later()));
    let since = SINCE.iter().map(|&(seed, what)| (seed, what, as_since()));
    let lately = LATELY.iter().map(|&(seed, what)| (seed, what, as_lately()));
    let today = TODAY.iter().map(|&(seed, what)| (seed, what, as_today()));
    let sharded = SHARDED.iter().map(|&(seed, what)| (seed, what, with_shards()));
    let thin = THIN.iter().map(|&(seed, what)| (seed, what, with_thin_volumes()));
    let beyond = Options { beyond: true, ..as_lately() };
    let retry =
        "a retry that still asked counted as carried out: its ticket stayed, its bytes did not";
    let all = first.chain(later).chain(since).chain(lately).chain(today).chain(sharded);
    all.chain(thin).chain([(1_795_485_690_215, retry, beyond)]).collect()
}
