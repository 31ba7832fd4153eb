//! A host's events in files of its data directory: `events/NNNNNNNNNNNNNNNN.jsonl`.
//!
//! A thread of its own writes them, in batches, and makes them durable at most once a second:
//! whatever the file system does, nothing else waits for it. What it does not take is dropped and
//! counted.
//!
//! Invariants: at most [`FILES_MAX`] files of at most [`FILE_BYTES`].

use crate::line_files::LineFiles;
use atoll_format::id::HostId;
use atoll_node::{EVENT_LINE_MAX, EVENTS_MAX, EventSink, NodeEvent, event_line, read_event_lines};
use atoll_world::Nanos;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Files that are kept, the one that is written included.
const FILES_MAX: u64 = 8;
/// Bytes of one.
const FILE_BYTES: usize = 2 << 20;
/// Events that wait to be written.
const QUEUE_MAX: usize = 1_024;
/// Bytes that are written at once.
const BATCH_BYTES: usize = 256 << 10;
/// How often the file is made durable, at most.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long a stop waits for what is not durable yet.
const FLUSH_WAIT: Duration = Duration::from_secs(1);

const _: () = assert!(BATCH_BYTES + EVENT_LINE_MAX <= FILE_BYTES);

enum Order {
    Line(String),
    /// Answers once all before it is durable, or dropped.
    Flush(SyncSender<()>),
}

#[derive(Default)]
struct Shared {
    dropped: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl Shared {
    fn drop_events(&self, count: u64, why: impl Into<String>) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.into());
    }

    fn is_well(&self) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Where a host's events go.
pub struct EventFiles {
    orders: SyncSender<Order>,
    shared: Arc<Shared>,
}

impl EventFiles {
    /// Begins to write, after the events that are there. Nothing that is wrong with the files
    /// keeps a host from starting: what cannot be believed is left out, with a sentence.
    pub fn open(data: &Path, host: HostId) -> (Self, Vec<NodeEvent>, Vec<String>) {
        let (writer, events, said) = Writer::open(&data.join("events"), host);
        let (orders, receiver) = sync_channel(QUEUE_MAX);
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let run = move || writer.run(&receiver, &of_thread);
        // Ends when this is dropped. Without the thread its queue is closed: events are dropped.
        if let Err(e) = std::thread::Builder::new().name("events".into()).spawn(run) {
            shared.drop_events(0, format!("no thread to write them: {e}"));
        }
        (Self { orders, shared }, events, said)
    }

    /// Events that were not kept, since the process began.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Why the last one was not kept; none: it was.
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns when all is durable, or after a second.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.orders.try_send(Order::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(FLUSH_WAIT);
        }
    }
}

impl EventSink for EventFiles {
    fn keep(&self, event: &NodeEvent) {
        if self.orders.try_send(Order::Line(event_line(event))).is_err() {
            self.shared.drop_events(1, "the file system does not take them in time");
        }
    }
}

struct Writer {
    files: LineFiles,
    dirty: bool,
    synced: Option<Nanos>,
}

impl Writer {
    fn open(directory: &Path, host: HostId) -> (Self, Vec<NodeEvent>, Vec<String>) {
        let mut files = LineFiles::new(directory.to_path_buf(), FILES_MAX, FILE_BYTES);
        let (mut events, mut said) = (Vec::new(), Vec::new());
        let unreadable = |path: &Path, e: io::Error| {
            format!("earlier events cannot be read: {}: {e}", path.display())
        };
        let numbers = match files.numbers() {
            Ok(numbers) => numbers,
            Err(e) => {
                said.push(unreadable(directory, e));
                Vec::new()
            }
        };
        let begin = numbers.len().saturating_sub(FILES_MAX as usize);
        for &number in &numbers[begin..] {
            let path = files.path(number);
            let bytes = match files.read(number) {
                Ok(bytes) => bytes,
                Err(e) => {
                    said.push(unreadable(&path, e));
                    files.begin_behind(number);
                    continue;
                }
            };
            let last = events.last().map_or(0, |event: &NodeEvent| event.number);
            let found = read_event_lines(host, last, &bytes);
            if found.bad_lines > 0 {
                let (bad, good) = (found.bad_lines, found.events.len());
                said.push(format!(
                    "{bad} damaged or torn lines of events in {} were left out, {good} are good",
                    path.display()
                ));
            }
            events.extend(found.events);
            // Only the newest goes on.
            files.go_on(number, found.good_bytes);
        }
        // An earlier process may have died before its last ones were durable.
        let dirty = files.is_begun();
        let skip = events.len().saturating_sub(EVENTS_MAX);
        events.drain(..skip);
        (Self { files, dirty, synced: None }, events, said)
    }

    fn run(mut self, orders: &Receiver<Order>, shared: &Shared) {
        loop {
            let order = if self.dirty {
                let passed = self
                    .synced
                    .map_or(SYNC_EVERY, |at| Duration::from_nanos(atoll_real::now().since(at).0));
                let due = SYNC_EVERY.saturating_sub(passed);
                // Also while more and more of them come.
                if due.is_zero() {
                    self.sync(shared);
                    continue;
                }
                match orders.recv_timeout(due) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.sync(shared);
                        continue;
                    }
                    order => order.ok(),
                }
            } else {
                orders.recv().ok()
            };
            let (mut batch, mut count, mut flush) = (String::new(), 0, None);
            let ended = order.is_none();
            let mut next = order;
            while let Some(order) = next.take() {
                match order {
                    Order::Line(line) => {
                        batch += &line;
                        count += 1;
                    }
                    Order::Flush(done) => flush = Some(done),
                }
                if batch.len() < BATCH_BYTES && flush.is_none() {
                    next = orders.try_recv().ok();
                }
            }
            if count > 0 {
                match self.append(batch.as_bytes()) {
                    Ok(()) => shared.is_well(),
                    Err(e) => {
                        shared.drop_events(
                            count,
                            format!("{}: {e}", self.files.directory().display()),
                        );
                    }
                }
            }
            if ended || flush.is_some() {
                self.sync(shared);
            }
            // Whoever waits has what it waited for.
            drop(flush);
            if ended {
                return;
            }
        }
    }

    fn append(&mut self, batch: &[u8]) -> io::Result<()> {
        self.files.append(batch)?;
        self.dirty = true;
        Ok(())
    }

    fn sync(&mut self, shared: &Shared) {
        self.synced = Some(atoll_real::now());
        self.dirty = false;
        // Each line has a checksum: those that are not there then are left out.
        if let Err(e) = self.files.sync() {
            shared.drop_events(0, format!("{}: {e}", self.files.directory().display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EventFiles, FILE_BYTES, FILES_MAX, Writer};
    use atoll_format::id::{HostId, Incarnation};
    use atoll_node::{EventSink, NodeEvent, Severity, event_line};
    use std::path::Path;

    fn event(number: u64) -> NodeEvent {
        NodeEvent {
            life: Incarnation(7),
            number,
            at_ms: number,
            host: HostId(1),
            severity: Severity::Info,
            kind: "test".into(),
            object: None,
            volume: String::new(),
            message: "x".repeat(1_000),
            of_host: None,
            group: None,
            disks: Vec::new(),
            numbers: [("n".to_owned(), number)].into(),
            cause: String::new(),
            next_step: String::new(),
        }
    }

    fn open(data: &Path) -> (Writer, Vec<u64>, Vec<String>) {
        let (writer, events, said) = Writer::open(&data.join("events"), HostId(1));
        (writer, events.iter().map(|event| event.number).collect(), said)
    }

    fn append(writer: &mut Writer, numbers: std::ops::RangeInclusive<u64>) {
        for number in numbers {
            writer.append(event_line(&event(number)).as_bytes()).unwrap();
        }
    }

    fn newest(data: &Path) -> std::path::PathBuf {
        let files = std::fs::read_dir(data.join("events")).unwrap();
        files.map(|file| file.unwrap().path()).max().unwrap()
    }

    #[test]
    fn events_last_and_a_new_life_goes_on_behind_them() {
        let dir = tempfile::tempdir().unwrap();
        let (files, events, said) = EventFiles::open(dir.path(), HostId(1));
        assert_eq!((events, said), (vec![], vec![]));
        (1..=3).for_each(|number| files.keep(&event(number)));
        files.flush();
        assert_eq!((files.dropped(), files.trouble()), (0, None));
        // The process ends without a word: both of them write to one file, in turn.
        let (again, events, said) = EventFiles::open(dir.path(), HostId(1));
        assert_eq!((events, said), ((1..=3).map(event).collect(), vec![]));
        again.keep(&event(4));
        again.flush();
        assert_eq!(open(dir.path()).1, [1, 2, 3, 4]);
        assert_eq!(std::fs::read_dir(dir.path().join("events")).unwrap().count(), 1);
    }

    #[test]
    fn a_torn_or_damaged_end_is_cut_off_with_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        append(&mut open(dir.path()).0, 1..=3);
        let path = newest(dir.path());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 5);
        std::fs::write(&path, &bytes).unwrap();
        let (mut writer, numbers, said) = open(dir.path());
        assert_eq!(numbers, [1, 2]);
        assert!(said.len() == 1 && said[0].contains("1 damaged or torn lines"), "{said:?}");
        append(&mut writer, 3..=4);
        let (_, numbers, said) = open(dir.path());
        assert_eq!((numbers, said), (vec![1, 2, 3, 4], vec![]));
        // Within: the others are good.
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2 + 100;
        bytes[middle] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        let (_, numbers, said) = open(dir.path());
        assert_eq!((numbers, said.len()), (vec![1, 2, 4], 1));
        // Nothing but rubbish is no error either.
        std::fs::write(&path, [0xff; 100_000]).unwrap();
        let (mut writer, numbers, said) = open(dir.path());
        assert_eq!((numbers, said.len()), (vec![], 1));
        append(&mut writer, 1..=1);
        assert_eq!(open(dir.path()).1, [1]);
    }

    #[test]
    fn files_are_few_and_small_and_the_newest_events_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let line = event_line(&event(10_000)).len() as u64;
        let all = (FILES_MAX + 3) * FILE_BYTES as u64 / line;
        let half = all / 2;
        append(&mut open(dir.path()).0, 1..=half);
        append(&mut open(dir.path()).0, half + 1..=all);
        let files = std::fs::read_dir(dir.path().join("events")).unwrap();
        let sizes: Vec<u64> = files.map(|file| file.unwrap().metadata().unwrap().len()).collect();
        assert_eq!(sizes.len() as u64, FILES_MAX);
        assert!(sizes.iter().all(|&size| size <= FILE_BYTES as u64), "{sizes:?}");
        let (_, numbers, said) = open(dir.path());
        assert_eq!(said, Vec::<String>::new());
        let least = (FILES_MAX - 1) * FILE_BYTES as u64 / line - FILES_MAX;
        assert!(numbers.len() as u64 >= least, "{} of {least}", numbers.len());
        let kept: Vec<u64> = (numbers[0]..=all).collect();
        assert_eq!(numbers, kept);
    }

    #[test]
    fn what_the_file_system_does_not_take_is_dropped_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        // A file where the directory should be.
        std::fs::write(dir.path().join("events"), "").unwrap();
        let (files, events, said) = EventFiles::open(dir.path(), HostId(1));
        assert!(events.is_empty() && said.len() == 1, "{said:?}");
        files.keep(&event(1));
        files.flush();
        assert_eq!(files.dropped(), 1);
        let why = files.trouble().expect("told");
        assert!(why.contains("events"), "{why}");
        std::fs::remove_file(dir.path().join("events")).unwrap();
        files.keep(&event(2));
        files.flush();
        assert_eq!((files.dropped(), files.trouble()), (1, None));
        assert_eq!(open(dir.path()).1, [2]);
    }
}
