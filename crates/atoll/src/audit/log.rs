//! Writes the audit log: a thread of its own, which makes durable together what waits together.

use super::line::{Deed, End, LINE_MAX, Line};
use super::{FILE_BYTES, FILES_MAX, directory, lines};
use crate::line_files::LineFiles;
use crate::log::AUDIT;
use atoll_api::Code;
use atoll_api::envelope::rfc3339;
use atoll_api::types::AuditEntry;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long an answer waits for its entry.
pub const KEEP_WAIT: Duration = Duration::from_secs(2);
/// Entries that wait to be written.
const QUEUE_MAX: usize = 256;
/// Entries that are written at once.
const BATCH_MAX: usize = 64;
/// Entries that are kept in memory, to be told.
const RECENT_MAX: usize = 1_000;
/// Of those whose role is too low for what they ask, so many are written down in
/// [`REFUSED_WINDOW`]: they could not fill the log otherwise, but displace what others have done.
const REFUSED_MAX: u32 = 60;
/// See [`REFUSED_MAX`].
const REFUSED_WINDOW: Duration = Duration::from_secs(60);

const _: () = assert!(BATCH_MAX * (LINE_MAX + 1) <= FILE_BYTES);

/// What is wrong with a file system that takes its time.
const SLOW: &str = "the file system does not take entries in time";

struct Order {
    /// None: whoever waits, waits for those before it.
    deed: Option<Deed>,
    /// Gone, once it is durable or given up.
    done: oneshot::Sender<()>,
}

#[derive(Default)]
struct Shared {
    /// Since the process began.
    lost: AtomicU64,
    /// Not kept since the last one that was.
    left_out: AtomicU64,
    trouble: Mutex<Option<String>>,
    recent: Mutex<VecDeque<(Line, String)>>,
    refused: Mutex<Refused>,
}

impl Shared {
    /// So many entries are not kept, and why that is wrong.
    fn lose(&self, count: u64, why: String) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        self.left_out.fetch_add(count, Ordering::Relaxed);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    fn tell(&self, entries: impl IntoIterator<Item = (Line, String)>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.extend(entries);
        let skip = recent.len().saturating_sub(RECENT_MAX);
        recent.drain(..skip);
    }
}

/// The audit log of a host, from any thread.
pub struct AuditLog {
    orders: SyncSender<Order>,
    shared: Arc<Shared>,
    /// What is wrong with what was there.
    said: Vec<String>,
}

impl AuditLog {
    /// Goes on behind the entries that are there. Nothing that is wrong with them keeps a host from
    /// starting: it is told, and new ones go into a file of their own.
    pub fn open(data: &Path) -> Self {
        let (writer, recent, said) = Writer::open(data);
        let shared = Arc::new(Shared::default());
        shared.tell(recent);
        let (orders, receiver) = sync_channel(QUEUE_MAX);
        let of_thread = shared.clone();
        let run = move || writer.run(&receiver, &of_thread);
        // Ends when this is dropped. Without the thread its queue is closed: entries are lost.
        if let Err(e) = std::thread::Builder::new().name("audit".into()).spawn(run) {
            shared.lose(0, format!("no thread to write it: {e}"));
        }
        Self { orders, shared, said }
    }

    /// What is wrong with the entries that were there: sentences.
    pub fn said(&self) -> &[String] {
        &self.said
    }

    /// Writes it down. What this returns ends once that is durable, or cannot be: after
    /// [`KEEP_WAIT`] at the latest.
    pub fn keep(&self, deed: Deed) -> impl Future<Output = ()> + Send + use<> {
        let wait = self.order(deed);
        let shared = self.shared.clone();
        async move {
            let Some(wait) = wait else { return };
            // Gone is an answer, too.
            if tokio::time::timeout(KEEP_WAIT, wait).await.is_err() {
                shared.lose(0, SLOW.into());
            }
        }
    }

    /// Puts it into the queue; none: it is not written down.
    fn order(&self, deed: Deed) -> Option<oneshot::Receiver<()>> {
        if deed.code == Code::NotPermitted.to_string() {
            let mut refused = self.shared.refused.lock().unwrap_or_else(PoisonError::into_inner);
            if !refused.admit(Instant::now()) {
                self.shared.left_out.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        let (done, wait) = oneshot::channel();
        if self.orders.try_send(Order { deed: Some(deed), done }).is_err() {
            self.shared.lose(1, SLOW.into());
            return None;
        }
        Some(wait)
    }

    /// Returns when all is durable or given up, or after [`KEEP_WAIT`].
    pub async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.orders.try_send(Order { deed: None, done }).is_ok() {
            let _ = tokio::time::timeout(KEEP_WAIT, wait).await;
        }
    }

    /// Entries that the file system did not take, since the process began.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Why the last one was not kept; none: it was.
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The newest entries, at most 1,000, the oldest first: of the host of that name.
    pub fn recent(&self, host: &str) -> Vec<AuditEntry> {
        let recent = self.shared.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().map(|(line, sha256)| item(line, sha256, host)).collect()
    }
}

fn item(line: &Line, sha256: &str, host: &str) -> AuditEntry {
    let deed = line.deed.clone();
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    AuditEntry {
        host: host.to_owned(),
        number: line.number,
        at: rfc3339(deed.at_ms),
        who: deed.who,
        role: deed.role,
        from: deed.from,
        operation: deed.operation,
        target: deed.target,
        body: deed.body,
        status: deed.status,
        code: text(deed.code),
        detail: text(deed.detail),
        left_out: line.left_out,
        sha256: sha256.to_owned(),
    }
}

/// How many of those whose role is too low are written down.
#[derive(Default)]
struct Refused {
    since: Option<Instant>,
    count: u32,
}

impl Refused {
    fn admit(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now >= since + REFUSED_WINDOW) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count += 1;
        self.count <= REFUSED_MAX
    }
}

struct Writer {
    files: LineFiles,
    end: End,
}

impl Writer {
    fn open(data: &Path) -> (Self, Vec<(Line, String)>, Vec<String>) {
        let files = LineFiles::new(directory(data), FILES_MAX, FILE_BYTES);
        let mut writer = Self { files, end: End::default() };
        let (mut recent, mut said) = (Vec::new(), Vec::new());
        let unreadable = |path: &Path, e: io::Error| {
            let path = path.display();
            format!("the audit log cannot be read, and begins anew: {path}: {e}")
        };
        let numbers = match writer.files.numbers() {
            Ok(numbers) => numbers,
            Err(e) => {
                said.push(unreadable(writer.files.directory(), e));
                return (writer, recent, said);
            }
        };
        for &number in numbers.iter().rev() {
            let path = writer.files.path(number);
            let is_newest = Some(&number) == numbers.last();
            let bytes = match writer.files.read(number) {
                Ok(bytes) => bytes,
                Err(e) => {
                    said.push(unreadable(&path, e));
                    if is_newest {
                        writer.files.begin_behind(number);
                    }
                    break;
                }
            };
            // Half a line is one that nobody was answered for.
            let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
            let mut bad = 0;
            for text in lines(&bytes[..whole]) {
                match Line::read(&text) {
                    Ok(line) => {
                        writer.end = End::of(line.number, &text);
                        recent.push((line, writer.end.sha256.clone()));
                    }
                    Err(_) => bad += 1,
                }
            }
            if bad > 0 {
                said.push(format!("{bad} lines of the audit log are damaged: {}", path.display()));
            }
            match (is_newest, bad) {
                (true, 0) => writer.files.go_on(number, whole),
                (true, _) => writer.files.begin_behind(number),
                (false, _) => {}
            }
            // What is next follows from the last of all.
            if !recent.is_empty() {
                break;
            }
        }
        (writer, recent, said)
    }

    fn run(mut self, orders: &Receiver<Order>, shared: &Shared) {
        while let Ok(first) = orders.recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && let Ok(next) = orders.try_recv()
            {
                batch.push(next);
            }
            let (deeds, waiting): (Vec<Option<Deed>>, Vec<_>) =
                batch.into_iter().map(|order| (order.deed, order.done)).unzip();
            self.keep(deeds.into_iter().flatten().collect(), shared);
            drop(waiting);
        }
    }

    /// All of them are durable then, or none.
    fn keep(&mut self, deeds: Vec<Deed>, shared: &Shared) {
        if deeds.is_empty() {
            return;
        }
        let mut left_out = shared.left_out.swap(0, Ordering::Relaxed);
        let (mut end, mut bytes, mut kept) = (self.end.clone(), Vec::new(), Vec::new());
        for deed in deeds {
            let line = Line::behind(&end, deed.cut(), std::mem::take(&mut left_out));
            let (text, next) = line.text();
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(b'\n');
            kept.push((line, next.sha256.clone()));
            end = next;
        }
        match self.files.append_durably(&bytes) {
            Ok(()) => {
                *shared.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
                self.end = end;
                for (Line { number, deed, .. }, sha256) in &kept {
                    let Deed { who, from, operation, target, status, .. } = deed;
                    tracing::info!(
                        target: AUDIT,
                        number, sha256, who, from, operation, target, status, "audit"
                    );
                }
                shared.tell(kept);
            }
            Err(e) => {
                let before = kept.iter().map(|(line, _)| line.left_out).sum::<u64>();
                shared.left_out.fetch_add(before, Ordering::Relaxed);
                let why = format!("{}: {e}", self.files.directory().display());
                shared.lose(kept.len() as u64, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::tests::deed;
    use super::super::{FILE_BYTES, FILES_MAX, verify};
    use super::{AuditLog, QUEUE_MAX, REFUSED_MAX};
    use crate::audit::Deed;
    use std::path::{Path, PathBuf};

    fn keep(log: &AuditLog, deeds: impl IntoIterator<Item = Deed>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for deed in deeds {
                log.keep(deed).await;
            }
        });
    }

    fn files(data: &Path) -> Vec<PathBuf> {
        let files = std::fs::read_dir(data.join("audit")).unwrap();
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }

    fn targets(log: &AuditLog) -> Vec<String> {
        log.recent("h").into_iter().map(|entry| entry.target).collect()
    }

    #[test]
    fn entries_last_and_a_new_life_goes_on_behind_them() {
        let dir = tempfile::tempdir().unwrap();
        keep(&AuditLog::open(dir.path()), [deed("/a"), deed("/b")]);
        // Half a line: nobody was answered.
        let file = files(dir.path())[0].clone();
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.extend_from_slice(b"{\"version\":1,\"num");
        std::fs::write(&file, bytes).unwrap();
        let log = AuditLog::open(dir.path());
        assert_eq!((log.said().len(), targets(&log)), (0, vec!["/a".into(), "/b".into()]));
        keep(&log, [deed("/c")]);
        assert_eq!((log.lost(), log.trouble()), (0, None));
        let entries = log.recent("h");
        let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(entries[0].at, "2025-11-24T16:00:00.000Z");
        let good = verify(dir.path(), None).unwrap();
        assert_eq!((good.entries, &good.problems[..]), (3, &[][..]));
        assert_eq!((good.last, &good.sha256), (3, &entries[2].sha256));
        assert_eq!(files(dir.path()).len(), 1);
    }

    #[test]
    fn what_is_damaged_is_told_and_new_entries_go_into_another_file() {
        let dir = tempfile::tempdir().unwrap();
        keep(&AuditLog::open(dir.path()), ["/a", "/b", "/c"].map(deed));
        let file = files(dir.path())[0].clone();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("\"/c\"", "/c")).unwrap();
        let log = AuditLog::open(dir.path());
        assert_eq!(log.said().len(), 1, "{:?}", log.said());
        keep(&log, [deed("/d")]);
        assert_eq!(targets(&log), ["/a", "/b", "/d"]);
        assert_eq!(files(dir.path()).len(), 2);
        // Also behind an empty file, as a crash may leave one.
        std::fs::write(dir.path().join("audit/0000000000000003.jsonl"), "").unwrap();
        let log = AuditLog::open(dir.path());
        assert_eq!(log.said().len(), 0);
        keep(&log, [deed("/e")]);
        let found = verify(dir.path(), None).unwrap();
        assert_eq!((found.entries, found.last, found.problems.len()), (4, 4, 1), "{found:?}");
    }

    #[test]
    fn files_are_few_and_small_and_the_rest_of_the_chain_is_good() {
        let dir = tempfile::tempdir().unwrap();
        let large = |n: u64| deed(&format!("/{n}/{}", "x".repeat(900)));
        let log = AuditLog::open(dir.path());
        let mut writer = super::Writer::open(dir.path()).0;
        let per_file = FILE_BYTES as u64 / 1_200;
        for n in 0..(FILES_MAX + 2) * per_file / 50 {
            writer.keep((0..50).map(|k| large(n * 50 + k)).collect(), &log.shared);
        }
        let files = files(dir.path());
        assert!(files.len() as u64 <= FILES_MAX, "{}", files.len());
        let small = |file: &PathBuf| file.metadata().unwrap().len() <= FILE_BYTES as u64;
        assert!(files.iter().all(small));
        let found = verify(dir.path(), None).unwrap();
        assert_eq!(found.problems, [] as [String; 0]);
        assert!(found.first > 1 && found.entries == found.last - found.first + 1, "{found:?}");
        assert_eq!(log.recent("h").len(), super::RECENT_MAX);
        // Not the oldest by rotation, but by hand. (One alone, a crash in a rotation leaves out.)
        files[..2].iter().for_each(|file| std::fs::remove_file(file).unwrap());
        let found = verify(dir.path(), None).unwrap();
        assert!(found.problems[0].contains("files are missing"), "{found:?}");
    }

    #[test]
    fn what_the_file_system_does_not_take_is_counted_and_named_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("audit"), "").unwrap();
        let log = AuditLog::open(dir.path());
        assert_eq!(log.said().len(), 1);
        keep(&log, [deed("/a"), deed("/b")]);
        assert_eq!(log.lost(), 2);
        assert!(log.trouble().expect("told").contains("audit"));
        std::fs::remove_file(dir.path().join("audit")).unwrap();
        keep(&log, [deed("/c"), deed("/d")]);
        assert_eq!((log.lost(), log.trouble()), (2, None));
        let left_out: Vec<u64> = log.recent("h").iter().map(|entry| entry.left_out).collect();
        assert_eq!((left_out, targets(&log)), (vec![2, 0], vec!["/c".into(), "/d".into()]));
    }

    #[test]
    fn who_is_always_refused_does_not_displace_what_others_do() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::open(dir.path());
        let refused = Deed { status: 403, code: "E0401".into(), ..deed("/no") };
        keep(&log, vec![refused; REFUSED_MAX as usize + 30]);
        keep(&log, [deed("/yes")]);
        let entries = log.recent("h");
        assert_eq!(entries.len(), REFUSED_MAX as usize + 1);
        let last = entries.last().unwrap();
        assert_eq!((last.target.as_str(), last.left_out), ("/yes", 30));
        assert_eq!((log.lost(), log.trouble()), (0, None));
        assert_eq!(verify(dir.path(), None).unwrap().problems, [] as [String; 0]);
    }

    #[test]
    fn many_at_once_are_all_kept_in_one_chain() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::open(dir.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let all = (0..QUEUE_MAX).map(|n| log.keep(deed(&format!("/{n}"))));
            futures_util::future::join_all(all).await;
        });
        let found = verify(dir.path(), None).unwrap();
        assert_eq!((found.entries, found.problems.len()), (QUEUE_MAX as u64, 0), "{found:?}");
        assert_eq!(log.lost(), 0);
    }
}
