//! The durable image of the directory against power cuts at every step, flipped bits, cut files
//! and other people's files.

use atoll_directory::{Batch, DirectoryFile, DirectoryState, FileError};
use atoll_world::directory::{Entry, KeyChange, Revision, Txn};
use redb::StorageBackend;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// splitmix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

enum Step {
    Write(usize, Vec<u8>),
    Len(usize),
}

/// A disk with a volatile cache: what was not synced may or may not be there after a power cut,
/// sector by sector.
#[derive(Default)]
struct Disk {
    durable: Vec<u8>,
    now: Vec<u8>,
    pending: Vec<Step>,
    steps: usize,
    /// Every step from this one on fails.
    cut_at: usize,
    full: bool,
}

impl Disk {
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        if self.steps > self.cut_at { Err(io::Error::other("power cut")) } else { Ok(()) }
    }

    fn after_cut(&self, chance: &mut Chance) -> Vec<u8> {
        let mut image = self.durable.clone();
        for step in &self.pending {
            match step {
                Step::Len(len) => {
                    if chance.below(2) == 0 {
                        image.resize(*len, 0);
                    }
                }
                Step::Write(at, bytes) => {
                    for (i, sector) in bytes.chunks(512).enumerate() {
                        let at = at + i * 512;
                        if chance.below(2) == 0 && at + sector.len() <= image.len() {
                            image[at..at + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
            }
        }
        image
    }
}

#[derive(Clone, Default)]
struct Medium(Arc<Mutex<Disk>>);

impl Medium {
    fn holding(image: Vec<u8>) -> Self {
        let medium = Self::default();
        {
            let mut disk = medium.disk();
            (disk.durable, disk.now, disk.cut_at) = (image.clone(), image, usize::MAX);
        }
        medium
    }
    fn disk(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.0.lock().expect("no test panics with it")
    }
}

impl std::fmt::Debug for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Medium")
    }
}

impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk().now.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.disk();
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|at| disk.now.get(at..)?.get(..out.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.disk();
        if disk.full && len as usize > disk.now.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.step()?;
        disk.now.resize(len as usize, 0);
        disk.pending.push(Step::Len(len as usize));
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk();
        disk.step()?;
        disk.pending.clear();
        disk.durable = disk.now.clone();
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut disk = self.disk();
        // The step that is cut has begun: its bytes are among those that may survive.
        disk.pending.push(Step::Write(offset as usize, data.to_vec()));
        disk.step()?;
        let at = offset as usize;
        if at + data.len() > disk.now.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        disk.now[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, redb::BackendError> {
        Ok(true)
    }
    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), redb::BackendError> {
        Ok(())
    }
}

fn here() -> &'static Path {
    Path::new("test medium")
}

fn open(medium: &Medium) -> Result<(DirectoryFile, DirectoryState), FileError> {
    DirectoryFile::open_backend(here(), medium.clone())
}

/// Key, revision, length and first byte of every entry.
type Shown = (Revision, Vec<(String, Revision, usize, Option<u8>)>);

/// All that a directory holds; values as (length, first byte), so that failures can be read.
fn entries(state: &DirectoryState) -> Shown {
    let short = |e: Entry| {
        assert!(e.key == "always" || e.value.windows(2).all(|w| w[0] == w[1]));
        (e.key, e.modified, e.value.len(), e.value.first().copied())
    };
    let entries = state.list("").expect("a short prefix").entries;
    (state.revision(), entries.into_iter().map(short).collect())
}

/// One random batch of transactions on top of `state`.
fn random_batch(state: &DirectoryState, chance: &mut Chance) -> Batch {
    let mut batch = Batch::default();
    for _ in 0..1 + chance.below(3) {
        let mut changes = Vec::new();
        for name in 0..12 {
            match chance.below(6) {
                0 => changes.push(KeyChange::Delete(format!("k{name}"))),
                1 | 2 => {
                    let len = [0, 10, 700, 9000][chance.below(4)];
                    let byte = chance.next() as u8;
                    changes.push(KeyChange::Put(format!("k{name}"), vec![byte; len]));
                }
                _ => {}
            }
        }
        changes.push(KeyChange::Put("always".into(), chance.next().to_le_bytes().to_vec()));
        state.stage(&mut batch, &Txn { compares: vec![], changes }).expect("within the limits");
    }
    batch
}

/// Commits batches until something fails; returns the acknowledged state and the one that was
/// on its way.
fn load(
    file: &mut DirectoryFile,
    state: &mut DirectoryState,
    chance: &mut Chance,
    batches: usize,
) -> Option<DirectoryState> {
    for _ in 0..batches {
        let batch = random_batch(state, chance);
        let mut next = state.clone();
        let committed = file.commit(&batch);
        next.publish(batch);
        match committed {
            Ok(()) => *state = next,
            Err(error) => {
                assert!(matches!(error, FileError::Io { .. }), "{error}");
                return Some(next);
            }
        }
    }
    None
}

fn fresh() -> Medium {
    let medium = Medium::holding(Vec::new());
    DirectoryFile::create_backend(here(), medium.clone(), 77).expect("an empty medium");
    medium
}

#[test]
fn a_power_cut_at_any_step_loses_nothing_that_was_acknowledged() {
    let mut in_flight_kept = 0;
    let mut in_flight_lost = 0;
    let base = fresh().disk().durable.clone();
    let mut cut = 1;
    loop {
        let mut finished = true;
        for seed in 0..3 {
            let mut chance = Chance(cut as u64 * 1000 + seed);
            let medium = Medium::holding(base.clone());
            let (mut file, mut state) = open(&medium).expect("a good image");
            {
                let mut disk = medium.disk();
                disk.cut_at = disk.steps + cut;
            }
            let on_its_way = load(&mut file, &mut state, &mut chance, 6);
            let image = medium.disk().after_cut(&mut chance);
            drop(file);
            let Some(on_its_way) = on_its_way else { continue };
            finished = false;

            let again = Medium::holding(image);
            let (mut file, seen) =
                open(&again).unwrap_or_else(|error| panic!("cut {cut}, seed {seed}: {error}"));
            assert_eq!(file.identity(), 77);
            if entries(&seen) == entries(&on_its_way) {
                in_flight_kept += 1;
            } else {
                assert_eq!(entries(&seen), entries(&state), "cut {cut}, seed {seed}");
                in_flight_lost += 1;
            }
            // It goes on from there, and a second cut right after the start loses nothing.
            let mut seen = seen;
            assert!(load(&mut file, &mut seen, &mut chance, 1).is_none());
            let image = again.disk().after_cut(&mut chance);
            let (_, last) = open(&Medium::holding(image)).expect("all was acknowledged");
            assert_eq!(entries(&last), entries(&seen));
        }
        if finished {
            break;
        }
        cut += 1;
    }
    assert!(cut > 30, "only {cut} steps were cut");
    assert!(in_flight_kept > 0 && in_flight_lost > 0, "{in_flight_kept} {in_flight_lost}");
}

/// redb panics at some damage, and the file turns that into an error: no need to print each.
fn quietly() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.location().is_none_or(|at| !at.file().contains("redb")) {
            usual(panic);
        }
    }));
}

/// An image after a clean end and one after a power cut, with what they hold.
fn images() -> [(Vec<u8>, Shown); 2] {
    let medium = fresh();
    let (mut file, mut state) = open(&medium).expect("a good image");
    assert!(load(&mut file, &mut state, &mut Chance(5), 12).is_none());
    let cut = medium.disk().durable.clone();
    drop(file);
    let clean = medium.disk().durable.clone();
    assert_ne!(clean, cut);
    [(clean, entries(&state)), (cut, entries(&state))]
}

#[test]
fn a_flipped_bit_is_reported_or_harmless_but_never_believed() {
    quietly();
    for (image, expected) in images() {
        let mut chance = Chance(9);
        let (mut reported, mut harmless) = (0, 0);
        // The head of the file bit by bit, the rest at random.
        let places = (0..512 * 8)
            .chain(4096 * 8..4608 * 8)
            .chain((0..1500).map(|_| chance.below(image.len() * 8)))
            .collect::<Vec<_>>();
        for at in places {
            let mut image = image.clone();
            image[at / 8] ^= 1 << (at % 8);
            match open(&Medium::holding(image)) {
                Ok((_, state)) => {
                    assert_eq!(entries(&state), expected, "bit {at}");
                    harmless += 1;
                }
                Err(FileError::Damaged { .. } | FileError::Foreign { .. }) => reported += 1,
                Err(other) => panic!("bit {at}: {other}"),
            }
        }
        assert!(reported > 30 && harmless > 300, "{reported} {harmless}");
    }
}

#[test]
fn damaged_pages_are_reported_or_harmless_but_never_believed() {
    quietly();
    for (image, expected) in images() {
        let pages = image.len() / 4096;
        let mut reported = 0;
        for page in 0..pages {
            for (fill, from) in [(Some(0), 0), (Some(0xff), 0), (None, (page + 1) % pages)] {
                let mut damaged = image.clone();
                let at = page * 4096..(page + 1) * 4096;
                match fill {
                    Some(byte) => damaged[at].fill(byte),
                    // A misdirected write: another page's bytes.
                    None => damaged[at].copy_from_slice(&image[from * 4096..(from + 1) * 4096]),
                }
                match open(&Medium::holding(damaged)) {
                    Ok((_, state)) => assert_eq!(entries(&state), expected, "page {page}"),
                    Err(FileError::Damaged { .. } | FileError::Foreign { .. }) => reported += 1,
                    Err(other) => panic!("page {page}: {other}"),
                }
            }
        }
        assert!(reported > 10, "{reported} of {pages} pages");
    }
}

#[test]
fn a_cut_file_is_reported() {
    quietly();
    for (image, expected) in images() {
        let mut reported = 0;
        for len in (1..image.len()).step_by(4096 / 4 + 1).chain([1, 63, 64, 319, 320, 4095, 4096]) {
            match open(&Medium::holding(image[..len].to_vec())) {
                Ok((_, state)) => assert_eq!(entries(&state), expected, "{len} bytes"),
                Err(FileError::Damaged { .. } | FileError::Foreign { .. }) => reported += 1,
                Err(other) => panic!("{len} bytes: {other}"),
            }
        }
        assert!(reported > 20, "{reported}");
    }
}

#[test]
fn a_full_disk_fails_the_commit_and_a_new_start_goes_on() {
    let medium = fresh();
    let (mut file, mut state) = open(&medium).expect("a good image");
    medium.disk().full = true;
    let mut chance = Chance(3);
    let failed = (0..2000).find_map(|i| {
        let mut batch = Batch::default();
        let changes = vec![KeyChange::Put(format!("fill{i}"), vec![i as u8; 60_000])];
        state.stage(&mut batch, &Txn { compares: vec![], changes }).expect("within the limits");
        match file.commit(&batch) {
            Ok(()) => {
                state.publish(batch);
                None
            }
            Err(error) => Some(error),
        }
    });
    let error = failed.expect("the disk is full");
    assert!(error.is_full(), "{error}");
    drop(file);
    let (mut file, mut again) = open(&medium).expect("a full disk still starts");
    assert_eq!(entries(&again), entries(&state));
    let delete = Txn { compares: vec![], changes: vec![KeyChange::Delete("fill0".into())] };
    let mut batch = Batch::default();
    again.stage(&mut batch, &delete).expect("within the limits");
    file.commit(&batch).expect("a full disk still deletes");
    again.publish(batch);
    assert!(load(&mut file, &mut again, &mut chance, 2).is_none(), "and has room again");
}

#[test]
fn files_on_a_real_file_system_are_made_locked_and_kept() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("directory.redb");
    let (mut file, mut state) = DirectoryFile::open(&path, 42).expect("a new one");
    assert!(load(&mut file, &mut state, &mut Chance(1), 5).is_none());
    let second = DirectoryFile::open(&path, 43).expect_err("it is open");
    assert!(matches!(second, FileError::Locked(_)), "{second}");
    drop(file);
    let (file, again) = DirectoryFile::open(&path, 43).expect("it is closed");
    assert_eq!((file.identity(), entries(&again)), (42, entries(&state)));
    drop(file);
    let mode = std::os::unix::fs::MetadataExt::mode(&path.metadata().expect("it is there"));
    assert_eq!(mode & 0o777, 0o600);
    let names: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(names.len(), 1, "no draft is left: {names:?}");
}

#[test]
fn what_is_no_directory_file_is_refused_in_words_and_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("empty"), b"").expect("write");
    std::fs::write(path("text"), b"[cluster]\nname = \"a\"\n".repeat(300)).expect("write");
    std::fs::write(path("zeros"), vec![0; 1 << 20]).expect("write");
    std::fs::create_dir(path("folder")).expect("mkdir");
    let other = redb::Database::create(path("other")).expect("redb");
    let txn = other.begin_write().expect("redb");
    txn.open_table(redb::TableDefinition::<u64, u64>::new("x")).expect("redb");
    txn.commit().expect("redb");
    drop(other);
    for (name, word) in [
        ("empty", "empty"),
        ("text", "text"),
        ("zeros", "zeros"),
        ("folder", "not a regular file"),
        ("other", "does not begin"),
        ("missing/file", "No such file"),
    ] {
        let before = std::fs::read(path(name)).ok();
        let error = DirectoryFile::open(&path(name), 1).expect_err(name).to_string();
        assert!(error.contains(word) && error.contains(name), "{name}: {error}");
        if name != "other" {
            assert_eq!(std::fs::read(path(name)).ok(), before, "{name} was changed");
        }
    }
}
