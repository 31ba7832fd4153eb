//! What a daemon says on stderr: its log, and the last words of the command that runs it.
//!
//! Lines go into a bounded queue, and one thread alone writes them to descriptor 2. A stderr that
//! takes nothing (a full device, a closed pipe, a pipe that nobody reads) costs lines and nothing
//! else: no other thread ever waits for it, and none fails. Lines that were dropped are counted,
//! and the number is said as soon as stderr takes lines again.
//!
//! A line that is repeated is said once a minute, with how often it came; of lines that differ but
//! come from one place in the program, at most [`DISTINCT_MAX`] a minute are said.
//!
//! Invariants: at most [`LINES_MAX`] lines and [`BYTES_MAX`] bytes wait; a lock here is never held
//! over a write; the end of the process waits at most [`FLUSH_WAIT`] for what is queued.

use atoll_world::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that wait for stderr.
pub const LINES_MAX: usize = 4096;
/// Their bytes.
pub const BYTES_MAX: usize = 1 << 20;
/// The longest line, in bytes; the rest of a longer one is cut off.
pub const LINE_MAX: usize = 8 << 10;
/// How long the end of the process waits until what is queued is written.
pub const FLUSH_WAIT: Duration = Duration::from_secs(1);
/// Bytes of one write.
const WRITE_MAX: usize = 64 << 10;
/// How long the writer rests when stderr refuses.
const REST: Duration = Duration::from_secs(1);
/// How often the writer looks for repeated lines to tell, when there is nothing else.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A line that comes again within this time is counted instead.
pub const REPEAT_EVERY: Nanos = Nanos::from_secs(60);
/// Different lines from one place in the program within that time.
pub const DISTINCT_MAX: u32 = 30;
/// Lines that are remembered; what comes beside them is treated as one too many of its place.
const REMEMBERED_MAX: usize = 512;
/// Bytes of a line that are compared, and shown when it was repeated.
const COMPARED: usize = 300;
/// What this module says of itself is never counted or dropped.
const TARGET: &str = "atoll::log";

/// What the audit log says is never counted: each line is one that somebody may need.
pub const AUDIT: &str = "atoll::audit";

static LOG: OnceLock<Log> = OnceLock::new();

/// The log of this process.
struct Log {
    queue: Mutex<Queue>,
    more: Condvar,
    drained: Condvar,
    dropped: AtomicU64,
    repeats: Mutex<Repeats>,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The thread is at a write.
    writing: bool,
    /// Dropped, and not said yet.
    untold: u64,
    /// The process ends: nobody rests.
    closing: bool,
}

thread_local! {
    /// This is the thread that writes: what it says is never dropped.
    static WRITER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// From now on everything that this process logs, notes and panics with goes through the queue.
/// Only the first call of a process counts. Inside a tokio runtime.
pub fn start(level: &str, json: bool) {
    if LOG.get().is_some() {
        return;
    }
    let _ = LOG.set(Log {
        queue: Mutex::default(),
        more: Condvar::new(),
        drained: Condvar::new(),
        dropped: AtomicU64::new(0),
        repeats: Mutex::default(),
    });
    // A file that may not grow any more is an error of a write like others, not the end. The
    // handler stays for good.
    let too_large = rustix::process::Signal::XFSZ.as_raw();
    let _ = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::from_raw(too_large));
    let started = std::thread::Builder::new().name("log".into()).spawn(|| {
        WRITER.set(true);
        write_all(LOG.get().expect("just set"), io::stderr());
    });
    // Without the thread the queue fills and lines are dropped: no reason to fail.
    drop(started);
    let filter = tracing_subscriber::EnvFilter::new(format!("{level},hyper=warn"));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Line)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter).with(Limit);
    let _ =
        if json { registry.with(lines.json()).try_init() } else { registry.with(lines).try_init() };
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("<unnamed>");
        let mut text = format!("thread '{thread}' {panic}");
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            let _ = write!(text, "\n{trace}");
        }
        for line in text.lines() {
            say(line);
        }
        flush();
    }));
}

/// Says one line on stderr: by the queue in a daemon, at once in a command.
pub fn say(text: &str) {
    match LOG.get() {
        Some(log) => log.push(format!("{text}\n").as_bytes()),
        None => {
            let _ = writeln!(io::stderr(), "{text}");
        }
    }
}

/// Waits until everything is written, at most [`FLUSH_WAIT`]. At the end of the process only.
pub fn flush() {
    let Some(log) = LOG.get().filter(|_| !WRITER.get()) else { return };
    log.tell_repeats(None);
    let mut queue = log.queue();
    queue.closing = true;
    log.more.notify_all();
    let busy = |queue: &mut Queue| !queue.lines.is_empty() || queue.writing;
    drop(log.drained.wait_timeout_while(queue, FLUSH_WAIT, busy));
}

/// Lines that were dropped since the process began.
pub fn dropped() -> u64 {
    LOG.get().map_or(0, |log| log.dropped.load(Ordering::Relaxed))
}

impl Log {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn repeats(&self) -> MutexGuard<'_, Repeats> {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut line = line.to_vec();
        if line.len() > LINE_MAX {
            line.truncate(LINE_MAX);
            line.push(b'\n');
        }
        let mut queue = self.queue();
        let full = queue.lines.len() >= LINES_MAX || queue.bytes + line.len() > BYTES_MAX;
        if full && !WRITER.get() {
            queue.untold += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back(line);
        drop(queue);
        self.more.notify_one();
    }

    /// Says which lines were repeated; all, or those whose minute is over at this time.
    fn tell_repeats(&self, due: Option<Nanos>) {
        let told = self.repeats().take(due);
        for (warning, count, text) in told {
            if warning {
                tracing::warn!(target: TARGET, "repeated {count} times: {text}");
            } else {
                tracing::info!(target: TARGET, "repeated {count} times: {text}");
            }
        }
    }
}

/// The writing thread: until the process ends.
fn write_all(log: &Log, to: io::Stderr) {
    let mut torn = false;
    loop {
        let mut queue = log.queue();
        if queue.lines.is_empty() {
            queue = log
                .more
                .wait_timeout_while(queue, LOOK_EVERY, |queue| queue.lines.is_empty())
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let mut batch = Vec::new();
        while queue.lines.front().is_some_and(|line| batch.len() + line.len() <= WRITE_MAX) {
            let line = queue.lines.pop_front().expect("just looked at");
            queue.bytes -= line.len();
            batch.extend(line);
        }
        queue.writing = !batch.is_empty();
        drop(queue);
        log.tell_repeats(Some(atoll_real::now()));
        if batch.is_empty() {
            continue;
        }
        let done = write(&to, &batch, &mut torn);
        let lost = batch[done..].iter().filter(|&&byte| byte == b'\n').count() as u64;
        log.dropped.fetch_add(lost, Ordering::Relaxed);
        let mut queue = log.queue();
        queue.writing = false;
        queue.untold += lost;
        let untold = if lost == 0 { std::mem::take(&mut queue.untold) } else { 0 };
        if lost > 0 && !queue.closing {
            let rest = log.more.wait_timeout_while(queue, REST, |queue| !queue.closing);
            drop(rest.unwrap_or_else(PoisonError::into_inner));
        } else {
            drop(queue);
        }
        if untold > 0 {
            let plural = if untold == 1 { "line of log was" } else { "lines of log were" };
            tracing::warn!(target: TARGET, "{untold} {plural} dropped: stderr did not take them");
        }
        log.drained.notify_all();
    }
}

/// Writes all of it; or up to where stderr refuses. `torn`: what was written before ends within a
/// line.
fn write(to: &io::Stderr, bytes: &[u8], torn: &mut bool) -> usize {
    use std::os::fd::AsFd;
    if *torn && put(to.as_fd(), b"\n") == 0 {
        return 0;
    }
    *torn = false;
    let done = put(to.as_fd(), bytes);
    *torn = done > 0 && bytes[done - 1] != b'\n';
    done
}

/// How much of it was written before an error; waits as long as there is none.
fn put(to: BorrowedFd<'_>, bytes: &[u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::write(to, &bytes[done..]) {
            Ok(0) => break,
            Ok(written) => done += written,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                let second = Timespec { tv_sec: 1, tv_nsec: 0 };
                let _ = poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], Some(&second));
            }
            Err(_) => break,
        }
    }
    done
}

/// One formatted line on its way to the queue.
struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(log) = LOG.get() {
            log.push(bytes);
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lets a line through, or counts it.
struct Limit;

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let meta = event.metadata();
        // Whoever asks for more than `info` wants all of it.
        if *meta.level() > Level::INFO || [TARGET, AUDIT].contains(&meta.target()) {
            return true;
        }
        let Some(log) = LOG.get() else { return true };
        let mut text = Text(String::new());
        event.record(&mut text);
        let place = (meta.file().unwrap_or(meta.target()), meta.line().unwrap_or(0));
        let warning = *meta.level() < Level::INFO;
        log.repeats().may_say(atoll_real::now(), place, warning, text.0)
    }
}

/// The words of an event, up to [`COMPARED`] bytes.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if self.0.len() >= COMPARED {
            return;
        }
        let gap = if self.0.is_empty() { "" } else { " " };
        let _ = match field.name() {
            "message" => write!(self.0, "{gap}{value:?}"),
            name => write!(self.0, "{gap}{name}={value:?}"),
        };
        let end = (0..=COMPARED.min(self.0.len())).rev().find(|&at| self.0.is_char_boundary(at));
        self.0.truncate(end.unwrap_or(0));
    }
}

/// Where in the program a line comes from: file and number.
type Place = (&'static str, u32);

/// The lines of the last minute.
#[derive(Default)]
struct Repeats {
    lines: BTreeMap<(Place, String), Repeat>,
    places: BTreeMap<Place, Repeat>,
}

/// Since when, and how often it was not said.
#[derive(Default)]
struct Repeat {
    since: Nanos,
    /// Different lines that were said; of a place.
    said: u32,
    held: u64,
    warning: bool,
    /// The last one; of a place.
    last: String,
}

impl Repeats {
    /// Whether a line is said; if not, it is counted.
    fn may_say(&mut self, now: Nanos, place: Place, warning: bool, text: String) -> bool {
        if let Some(line) = self.lines.get_mut(&(place, text.clone())) {
            line.held += 1;
            return false;
        }
        let all = self.places.entry(place).or_insert_with(|| Repeat {
            since: now,
            warning,
            ..Repeat::default()
        });
        if all.said >= DISTINCT_MAX || self.lines.len() >= REMEMBERED_MAX {
            all.held += 1;
            all.last = text;
            return false;
        }
        all.said += 1;
        let line = Repeat { since: now, warning, ..Repeat::default() };
        self.lines.insert((place, text), line);
        true
    }

    /// What was held back, to be said now: (a warning, how often, what); all of it, or what is due.
    fn take(&mut self, now: Option<Nanos>) -> Vec<(bool, u64, String)> {
        let due = |since: Nanos| now.is_none_or(|now| now.since(since) >= REPEAT_EVERY);
        let again = now.unwrap_or_default();
        let mut told = Vec::new();
        self.lines.retain(|(_, text), line| {
            if !due(line.since) {
                return true;
            }
            if line.held == 0 {
                return false;
            }
            told.push((line.warning, line.held, text.clone()));
            (line.held, line.since) = (0, again);
            true
        });
        self.places.retain(|_, place| {
            if !due(place.since) {
                return true;
            }
            if place.held > 0 {
                let text = format!("lines like '{}'", place.last);
                told.push((place.warning, place.held, text));
            }
            false
        });
        told
    }
}

#[cfg(test)]
mod tests {
    use super::{DISTINCT_MAX, REPEAT_EVERY, Repeats};
    use atoll_world::Nanos;

    const HERE: super::Place = ("here.rs", 7);

    #[test]
    fn a_line_is_said_once_a_minute_with_how_often_it_came() {
        let mut repeats = Repeats::default();
        let mut said = 0;
        let mut told = Vec::new();
        for ms in 0..180_000 {
            let now = Nanos::from_ms(ms);
            said += u32::from(repeats.may_say(now, HERE, true, "no descriptors".into()));
            told.extend(repeats.take(Some(now)));
        }
        assert_eq!(said, 1);
        let counts: Vec<u64> = told.iter().map(|(_, count, _)| *count).collect();
        assert_eq!(counts, [60_000, 60_000], "after a minute, and after two");
        assert!(told.iter().all(|(warning, _, text)| *warning && text == "no descriptors"));
        // It stops: the rest is told, and then it is as new.
        let later = Nanos::from_ms(180_000) + REPEAT_EVERY;
        assert_eq!(repeats.take(Some(later)).len(), 1);
        assert_eq!(repeats.take(Some(later + REPEAT_EVERY)), []);
        assert!(repeats.may_say(later + REPEAT_EVERY, HERE, true, "no descriptors".into()));
    }

    #[test]
    fn different_lines_of_one_place_are_bounded_and_other_places_are_not_held_back() {
        let mut repeats = Repeats::default();
        let now = Nanos::from_secs(5);
        let lines = (0..100_000).map(|i| format!("there is no volume {i}"));
        let said = lines.filter(|text| repeats.may_say(now, HERE, false, text.clone())).count();
        assert_eq!(said, DISTINCT_MAX as usize);
        assert!(repeats.may_say(now, ("there.rs", 1), true, "a disk has failed".into()));
        let told = repeats.take(Some(now + REPEAT_EVERY));
        let held = 100_000 - u64::from(DISTINCT_MAX);
        assert_eq!(told, [(false, held, "lines like 'there is no volume 99999'".to_owned())]);
    }
}
