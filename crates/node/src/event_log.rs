//! Events of a host: those of its earlier lives as far as they were kept, then those of this one.
//!
//! Each goes to an [`EventSink`], which makes it last; what is read comes from memory.
//!
//! Invariants: at most [`EVENTS_MAX`] events; their numbers rise, over restarts too. A number that
//! was given and is not kept shows as `events-lost`, so that a reader who names the last one that
//! he has read misses none without being told.

use crate::event_kinds::next_step;
use atoll_format::id::{GroupId, HostId, Incarnation, ObjectId};
use atoll_world::sync::{Notified, Notify};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Events of a host that can be read.
pub const EVENTS_MAX: usize = 16_384;
/// Bytes of a message, and of a cause: what is longer is cut.
pub(crate) const TEXT_MAX: usize = 1_024;
/// Numbers behind an event, and paths of its disks.
pub(crate) const PARTS_MAX: usize = 16;

/// How much an event matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Redundancy or speed is less than it should be.
    Warning,
    /// Data cannot be reached, or a device has failed.
    Error,
}

/// How far somebody has read the events of one host. Clocks have no part in it: one that is wrong,
/// or is put right, hides no event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventMark {
    /// The life of the host that counts its events.
    pub life: Incarnation,
    /// The last one that was read; 0: none.
    pub number: u64,
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeEvent {
    /// The life of the host that saw it.
    pub life: Incarnation,
    /// Rises by one from event to event of a host, from 1, and goes on after a restart. What a
    /// loss of power took away within a second may have given a number to an earlier life as well.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Which host saw it.
    pub host: HostId,
    /// How much it matters.
    pub severity: Severity,
    /// `member-dropped`, `resync-done`, ...
    pub kind: String,
    /// The object, if it is about one.
    pub object: Option<ObjectId>,
    /// The volume's name as the host knew it then; empty if it did not, or it is about none.
    pub volume: String,
    /// For people.
    pub message: String,
    /// The host that it is about, if it is about one: not always the one that saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_host: Option<HostId>,
    /// The disk group that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// Paths of the group's disks, as far as they were known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
    /// What the message is made of: `epoch`, `at_bytes`, ...
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, u64>,
    /// Why it happened, as whoever saw it was told; empty: nobody said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// What to do about it; empty: nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next_step: String,
}

/// What an event is about, for programs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct About {
    /// See [`NodeEvent::object`].
    pub object: Option<ObjectId>,
    /// See [`NodeEvent::of_host`].
    pub host: Option<HostId>,
    /// See [`NodeEvent::group`].
    pub group: Option<GroupId>,
    /// See [`NodeEvent::disks`].
    pub disks: Vec<String>,
    /// See [`NodeEvent::numbers`].
    pub numbers: Vec<(&'static str, u64)>,
    /// See [`NodeEvent::cause`].
    pub cause: String,
}

impl About {
    /// An object, and no more than that.
    pub fn object(object: ObjectId) -> Self {
        Self { object: Some(object), ..Self::default() }
    }

    /// A host, and no more than that.
    pub fn host(host: HostId) -> Self {
        Self { host: Some(host), ..Self::default() }
    }
}

/// Makes a host's events last.
pub trait EventSink {
    /// Takes over the next event, in the order of their numbers. Returns at once: what cannot be
    /// kept is dropped and counted.
    fn keep(&self, event: &NodeEvent);
}

/// What a host begins its life with.
pub struct EventsKept {
    /// Of earlier lives: the numbers rise, the host is this one.
    pub events: Vec<NodeEvent>,
    /// Where those of this life go.
    pub sink: Rc<dyn EventSink>,
}

impl EventsKept {
    /// Of a shard whose events shard 0 keeps.
    pub(crate) fn by_another() -> Self {
        Self { events: Vec::new(), sink: Rc::new(ByAnother) }
    }
}

struct ByAnother;

impl EventSink for ByAnother {
    fn keep(&self, event: &NodeEvent) {
        panic!("an event of a shard that keeps none: {}", event.message);
    }
}

impl NodeEvent {
    /// Microseconds since 1970; the last digits tell those of one millisecond apart.
    pub fn id(&self) -> u64 {
        self.at_ms.saturating_mul(1_000).saturating_add(self.number % 1_000)
    }

    /// What somebody has read who has read this one.
    pub fn mark(&self) -> EventMark {
        EventMark { life: self.life, number: self.number }
    }
}

/// The events of a host.
pub(crate) struct EventLog {
    host: HostId,
    life: Incarnation,
    events: RefCell<VecDeque<NodeEvent>>,
    next: Cell<u64>,
    sink: Rc<dyn EventSink>,
    added: Notify,
}

impl EventLog {
    /// Goes on after what was kept.
    pub(crate) fn new(host: HostId, life: Incarnation, kept: EventsKept) -> Self {
        let EventsKept { events, sink } = kept;
        let skip = events.len().saturating_sub(EVENTS_MAX);
        let events: VecDeque<NodeEvent> = events.into_iter().skip(skip).collect();
        let next = events.back().map_or(1, |event| event.number + 1);
        let (events, added) = (RefCell::new(events), Notify::default());
        Self { host, life, events, next: Cell::new(next), sink, added }
    }

    /// Takes in the next event; the oldest goes if there are too many.
    pub(crate) fn push(
        &self,
        at_ms: u64,
        severity: Severity,
        kind: &str,
        volume: String,
        about: About,
        message: String,
    ) {
        let number = self.next.get();
        let event = NodeEvent {
            life: self.life,
            number,
            at_ms,
            host: self.host,
            severity,
            kind: kind.into(),
            object: about.object,
            volume,
            message: cut(message),
            of_host: about.host,
            group: about.group,
            disks: about.disks.into_iter().take(PARTS_MAX).map(cut).collect(),
            numbers: about
                .numbers
                .into_iter()
                .take(PARTS_MAX)
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            cause: cut(about.cause),
            next_step: next_step(kind).into(),
        };
        self.next.set(number + 1);
        self.sink.keep(&event);
        let mut events = self.events.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(event);
        assert!(events.len() <= EVENTS_MAX, "{} events", events.len());
    }

    /// Wakes those who wait for the next event.
    pub(crate) fn wake_readers(&self) {
        self.added.notify_all();
    }

    /// Returns after the next event; counted from this call, not the first poll.
    pub(crate) fn added(&self) -> Notified {
        self.added.notified()
    }

    /// What somebody has read who has read all.
    pub(crate) fn end(&self) -> EventMark {
        self.events.borrow().back().map(NodeEvent::mark).unwrap_or_default()
    }

    /// Events after that mark, oldest first, at most `max`. All that are kept if it is a mark of a
    /// life of which nothing is. `since`: whoever has read nothing begins with the first that has a
    /// higher [`NodeEvent::id`]. Where events are no longer kept, an `events-lost` is in their
    /// place.
    pub(crate) fn after(&self, after: EventMark, since: u64, max: usize) -> HostEvents {
        let events = self.events.borrow();
        let (first, mut last) = place_after(&events, after);
        let skip = match last {
            Some(_) => 0,
            None => events.iter().take_while(|event| event.id() <= since).count(),
        };
        let begun = skip.checked_sub(1).map_or(after, |last| events[last].mark());
        let mut told = HostEvents { host: self.host, events: Vec::new(), more: false, begun };
        let before = events.get((first + skip).wrapping_sub(1));
        let mut life = before.map(|event| event.life);
        for event in events.iter().skip(first + skip) {
            let lost = last.map_or(0, |last| event.number.saturating_sub(last + 1));
            if lost > 0 && told.events.len() < max {
                // Its mark is one of the life before, where the reader is.
                let life = life.unwrap_or(event.life);
                told.events.push(NodeEvent { life, ..lost_before(event, lost) });
            }
            if told.events.len() >= max {
                told.more = true;
                break;
            }
            (last, life) = (Some(event.number), Some(event.life));
            told.events.push(event.clone());
        }
        told
    }

    /// What must hold at every moment: numbers that do not rise would hide an event, or show one
    /// twice.
    pub(crate) fn audit(&self) {
        let (me, events, next) = (self.host, self.events.borrow(), self.next.get());
        assert!(events.len() <= EVENTS_MAX, "host {me}: {} events", events.len());
        let last = events.back().map_or(0, |event| event.number);
        assert!(last < next, "host {me}: event {next} comes after {last}");
        for (event, after) in events.iter().zip(events.iter().skip(1)) {
            let (a, b) = (event.number, after.number);
            assert!(a < b, "host {me}: event {b} after {a}");
            assert!(
                a + 1 == b || after.life != self.life || event.life != self.life,
                "host {me}: {b} follows on {a} within this life"
            );
        }
        assert!(events.iter().all(|event| event.host == me), "host {me}: another one's event");
    }
}

/// Where to go on after a mark: the first event to tell, and the number before which nothing is
/// missed; none: from wherever it begins.
fn place_after(events: &VecDeque<NodeEvent>, mark: EventMark) -> (usize, Option<u64>) {
    if mark.number == 0 {
        return (0, None);
    }
    let read = |event: &NodeEvent| event.life == mark.life && event.number <= mark.number;
    // Nearly all who ask have read nearly all.
    let place = events.iter().rposition(read);
    match (place, events.front()) {
        (Some(place), _) => (place + 1, Some(mark.number)),
        (None, Some(first)) if mark.number < first.number => (0, Some(mark.number)),
        // Of that life nothing was kept, or they are another host's beginnings.
        _ => (0, None),
    }
}

/// In the place of events that are no longer kept.
fn lost_before(event: &NodeEvent, lost: u64) -> NodeEvent {
    let kind = "events-lost";
    NodeEvent {
        life: event.life,
        number: event.number - 1,
        at_ms: event.at_ms,
        host: event.host,
        severity: Severity::Warning,
        kind: kind.into(),
        object: None,
        volume: String::new(),
        message: format!("{lost} events before this one are no longer kept"),
        of_host: Some(event.host),
        group: None,
        disks: Vec::new(),
        numbers: [("lost".to_owned(), lost)].into(),
        cause: String::new(),
        next_step: next_step(kind).into(),
    }
}

/// Texts have bounds: a line of events has one.
fn cut(mut text: String) -> String {
    if text.len() > TEXT_MAX {
        let mark = "...";
        let end = (0..=TEXT_MAX - mark.len()).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text += mark;
    }
    text
}

/// The next events of one host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostEvents {
    /// Which.
    pub host: HostId,
    /// In its order.
    pub events: Vec<NodeEvent>,
    /// It has more.
    pub more: bool,
    /// Where they begin: what comes after this mark.
    pub begun: EventMark,
}

/// Events of several hosts as one list, oldest first by the clocks of those who saw them, those of
/// one host in its order; at most `max`, and whether there are more.
///
/// It ends where a host has more to tell than it has told: that might come before the next.
pub fn merge_events(hosts: Vec<HostEvents>, max: usize) -> (Vec<NodeEvent>, bool) {
    let mut left: Vec<_> =
        hosts.into_iter().map(|host| (host.events.into_iter().peekable(), host.more)).collect();
    let mut merged = Vec::new();
    loop {
        if left.iter_mut().any(|(events, more)| *more && events.peek().is_none()) {
            return (merged, true);
        }
        let key = |event: &NodeEvent| (event.at_ms, event.host, event.number);
        let heads = left.iter_mut().enumerate();
        let next = heads.filter_map(|(at, (events, _))| Some((key(events.peek()?), at))).min();
        let Some((_, at)) = next else { return (merged, false) };
        if merged.len() == max {
            return (merged, true);
        }
        merged.extend(left[at].0.next());
    }
}

#[cfg(test)]
mod tests {
    use super::{
        About, EVENTS_MAX, EventLog, EventMark, EventSink, EventsKept, HostEvents, NodeEvent,
        Severity, lost_before, merge_events,
    };
    use atoll_format::id::{HostId, Incarnation};
    use std::cell::RefCell;
    use std::rc::Rc;

    #[derive(Default)]
    struct Kept(RefCell<Vec<NodeEvent>>);

    impl EventSink for Kept {
        fn keep(&self, event: &NodeEvent) {
            self.0.borrow_mut().push(event.clone());
        }
    }

    fn life(number: u64, events: Vec<NodeEvent>) -> (EventLog, Rc<Kept>) {
        let sink = Rc::new(Kept::default());
        let kept = EventsKept { events, sink: sink.clone() };
        (EventLog::new(HostId(1), Incarnation(number), kept), sink)
    }

    fn say(log: &EventLog, times: usize) {
        for _ in 0..times {
            let at_ms = 1_000 + log.next.get();
            let about = About::default();
            log.push(at_ms, Severity::Info, "test", String::new(), about, "it".into());
            log.audit();
        }
    }

    /// What is told after a mark: numbers, or how many are lost.
    fn told(log: &EventLog, life: u64, number: u64) -> Vec<String> {
        let told = log.after(EventMark { life: Incarnation(life), number }, 0, 100);
        assert!(!told.more);
        let name = |event: &NodeEvent| match event.numbers.get("lost") {
            Some(lost) => format!("-{lost}"),
            None => event.number.to_string(),
        };
        told.events.iter().map(name).collect()
    }

    #[test]
    fn a_mark_goes_on_over_restarts() {
        let (first, kept) = life(7, Vec::new());
        say(&first, 4);
        let kept = kept.0.take();
        let (second, _) = life(8, kept.clone());
        say(&second, 2);
        let cases: &[(u64, u64, &[&str])] = &[
            (0, 0, &["1", "2", "3", "4", "5", "6"]),
            (7, 2, &["3", "4", "5", "6"]),
            (7, 4, &["5", "6"]),
            (8, 5, &["6"]),
            (8, 6, &[]),
            // Read before a loss of power took its end away.
            (7, 5, &["5", "6"]),
            // Of a life that nobody knows.
            (9, 3, &["1", "2", "3", "4", "5", "6"]),
        ];
        for (life, number, wanted) in cases {
            assert_eq!(&told(&second, *life, *number), wanted, "after {number} of life {life}");
        }
        // Some at the beginning and within are gone.
        let some = kept.into_iter().filter(|event| [2, 4].contains(&event.number)).collect();
        let (third, _) = life(9, some);
        say(&third, 1);
        assert_eq!(told(&third, 0, 0), ["2", "-1", "4", "5"]);
        assert_eq!(told(&third, 7, 1), ["2", "-1", "4", "5"]);
        assert_eq!(told(&third, 6, 1), ["2", "-1", "4", "5"]);
        assert_eq!(told(&third, 7, 2), ["-1", "4", "5"]);
        assert_eq!(told(&third, 7, 3), ["4", "5"]);
        // Wherever a page ends, the next one goes on: nothing twice, nothing left out.
        for max in 1..=3 {
            let (mut at, mut all) = (EventMark::default(), Vec::new());
            loop {
                let page = third.after(at, 0, max);
                assert!(page.events.len() <= max, "a page of more than was asked for");
                all.extend(page.events.iter().map(|event| (event.kind.clone(), event.number)));
                at = page.events.last().map_or(at, NodeEvent::mark);
                if !page.more {
                    break;
                }
                assert!(!page.events.is_empty(), "a page of nothing, and more to come");
            }
            let kinds: Vec<_> = all.iter().map(|(kind, number)| (&kind[..], *number)).collect();
            assert_eq!(kinds, [("test", 2), ("events-lost", 3), ("test", 4), ("test", 5)], "{max}");
        }
        // A life of which the first are lost: its mark is not one of another beginning.
        let gap = [1, 3].map(|number| NodeEvent {
            life: Incarnation(6 + number),
            number,
            ..third.after(EventMark::default(), 0, 1).events.remove(0)
        });
        let (fourth, _) = life(11, gap.to_vec());
        let lost = fourth.after(EventMark::default(), 0, 2).events.remove(1);
        assert_eq!((&lost.kind[..], lost.number), ("events-lost", 2));
        assert_eq!(told(&fourth, lost.mark().life.0, lost.mark().number), ["3"]);
    }

    #[test]
    fn the_oldest_go_and_are_counted() {
        let (log, _) = life(7, Vec::new());
        say(&log, EVENTS_MAX + 10);
        let mark = EventMark { life: Incarnation(7), number: 3 };
        // Also one at a time.
        let one = log.after(mark, 0, 1);
        assert!(one.more && one.events.len() == 1 && one.events[0].kind == "events-lost");
        let told = log.after(mark, 0, 2);
        assert!(told.more);
        let told = told.events;
        assert_eq!((&told[0].kind[..], told[0].numbers["lost"]), ("events-lost", 7));
        assert_eq!(told[1].number, 11);
        // Who has read that has read what it stands for, and is not told again.
        let next = log.after(told[0].mark(), 0, 1);
        assert_eq!(next.events[0].number, 11);
        // From a time on.
        let told = log.after(EventMark::default(), (1_000 + 50) * 1_000 - 1, 1);
        assert_eq!((told.events[0].number, told.begun.number), (50, 49));
        // All is older: nothing is told, and all that comes is.
        let told = log.after(EventMark::default(), u64::MAX, 1);
        assert_eq!((told.events.len(), told.begun), (0, log.end()));
    }

    #[test]
    fn hosts_are_merged_by_time_and_each_keeps_its_order() {
        let (log, _) = life(7, Vec::new());
        say(&log, 1);
        let like = log.after(EventMark::default(), 0, 1).events.remove(0);
        let of = |host: u64, times: &[u64], more: bool| {
            let event = |(number, &at_ms): (usize, &u64)| NodeEvent {
                host: HostId(host),
                number: number as u64 + 1,
                at_ms,
                ..lost_before(&like, 1)
            };
            let events = times.iter().enumerate().map(event).collect();
            HostEvents { host: HostId(host), events, more, begun: EventMark::default() }
        };
        let merged = |hosts: Vec<HostEvents>, max: usize| {
            let (events, more) = merge_events(hosts, max);
            let all: Vec<_> = events.iter().map(|event| (event.host.0, event.number)).collect();
            (all, more)
        };
        assert_eq!(merged(Vec::new(), 9), (vec![], false));
        // The clock of host 2 was put back.
        let two = || vec![of(1, &[10, 20], false), of(2, &[15, 5, 20], false)];
        let all = vec![(1, 1), (2, 1), (2, 2), (1, 2), (2, 3)];
        assert_eq!(merged(two(), 9), (all.clone(), false));
        assert_eq!(merged(two(), 5), (all.clone(), false));
        assert_eq!(merged(two(), 3), (all[..3].to_vec(), true));
        // What host 2 has not told yet may be older than 20.
        let cut = vec![of(1, &[10, 20], false), of(2, &[15], true)];
        assert_eq!(merged(cut, 9), (all[..2].to_vec(), true));
    }

    #[test]
    fn a_text_has_a_bound() {
        let (log, kept) = life(7, Vec::new());
        let message = "\u{e4}".repeat(10_000);
        log.push(1, Severity::Info, "test", String::new(), About::default(), message);
        let message = &kept.0.borrow()[0].message;
        assert!(message.len() <= super::TEXT_MAX && message.ends_with("\u{e4}..."), "{message}");
    }
}
