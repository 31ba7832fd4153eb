//! A host's events as lines of a file: the checksum, the event as JSON, the end of the line.
//!
//! Invariant: a line that is not whole, not of this host or not after the one before is never
//! believed; what stands beside it is.

use crate::event_log::{NodeEvent, PARTS_MAX, TEXT_MAX};
use atoll_format::checksum::crc;
use atoll_format::id::HostId;

/// Bytes of the longest line.
pub const EVENT_LINE_MAX: usize = 128 << 10;

// A byte of a text takes six of JSON at most; all else is names of ours.
const _: () = assert!((2 + PARTS_MAX) * TEXT_MAX * 6 + (16 << 10) <= EVENT_LINE_MAX);

/// An event as a line: `XXXXXXXX {...}` and its end; X: CRC-32C of the JSON, in hexadecimal.
pub fn event_line(event: &NodeEvent) -> String {
    let json = serde_json::to_string(event).expect("events have string keys");
    format!("{:08x} {json}\n", crc(json.as_bytes()))
}

/// What was found in a file of events.
#[derive(Debug, Default, PartialEq)]
pub struct EventLines {
    /// Good events, in order.
    pub events: Vec<NodeEvent>,
    /// Bytes up to the end of the last good one: what comes after is to be cut off.
    pub good_bytes: usize,
    /// Lines, or beginnings of one, that were not believed.
    pub bad_lines: u64,
}

/// Reads a file of events of that host, which come after number `last`.
pub fn read_event_lines(host: HostId, mut last: u64, bytes: &[u8]) -> EventLines {
    let mut found = EventLines::default();
    let mut at = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        at += line.len();
        match event_of(line).filter(|event| event.host == host && event.number > last) {
            // The next number must be one.
            Some(event) if event.number < u64::MAX / 2 => {
                last = event.number;
                found.events.push(event);
                found.good_bytes = at;
            }
            _ => found.bad_lines += 1,
        }
    }
    found
}

fn event_of(line: &[u8]) -> Option<NodeEvent> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (sum, json) = line.split_at_checked(8)?;
    let json = json.strip_prefix(' ')?;
    let good = line.len() < EVENT_LINE_MAX
        && u32::from_str_radix(sum, 16).is_ok_and(|sum| sum == crc(json.as_bytes()));
    good.then(|| serde_json::from_str(json).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::{event_line, read_event_lines};
    use crate::event_log::{NodeEvent, Severity};
    use atoll_format::id::{GroupId, HostId, Incarnation, ObjectId};

    fn event(number: u64) -> NodeEvent {
        NodeEvent {
            life: Incarnation(7),
            number,
            at_ms: 1_795_175_464_057,
            host: HostId(1),
            severity: Severity::Error,
            kind: "no-space".into(),
            object: Some(ObjectId(2)),
            volume: "vm1".into(),
            message: "full\nof it".into(),
            of_host: Some(HostId(3)),
            group: Some(GroupId(4)),
            disks: vec!["/dev/sda".into()],
            numbers: [("epoch".to_owned(), 5)].into(),
            cause: "it is so".into(),
            next_step: "add disks".into(),
        }
    }

    #[test]
    fn a_line_is_what_the_documents_say() {
        let json = concat!(
            r#"{"life":"0000000000000007","number":6,"at_ms":1795175464057,"#,
            r#""host":"0000000000000001","severity":"error","kind":"no-space","#,
            r#""object":"0000000000000002","volume":"vm1","message":"full\nof it","#,
            r#""of_host":"0000000000000003","group":"0000000000000004","disks":["/dev/sda"],"#,
            r#""numbers":{"epoch":5},"cause":"it is so","next_step":"add disks"}"#,
        );
        assert_eq!(event_line(&event(6)), format!("4cc951dd {json}\n"));
    }

    #[test]
    fn a_torn_or_damaged_line_is_not_believed() {
        let lines: Vec<String> = (1..=3).map(|number| event_line(&event(number))).collect();
        let whole = lines.concat();
        let found = read_event_lines(HostId(1), 0, whole.as_bytes());
        assert_eq!(found.events, [event(1), event(2), event(3)]);
        assert_eq!((found.good_bytes, found.bad_lines), (whole.len(), 0));
        // Cut anywhere.
        for end in 0..whole.len() {
            let found = read_event_lines(HostId(1), 0, &whole.as_bytes()[..end]);
            let good = found.events.len();
            assert_eq!(found.good_bytes, lines[..good].concat().len(), "cut at {end}");
            assert_eq!(found.bad_lines, u64::from(found.good_bytes < end), "cut at {end}");
        }
        // Any bit of the second.
        for at in lines[0].len()..lines[0].len() + lines[1].len() {
            for bit in 0..8 {
                let mut bytes = whole.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let found = read_event_lines(HostId(1), 0, &bytes);
                assert!(!found.events.contains(&event(2)) || found.bad_lines == 0);
                assert_eq!(found.events[0], event(1), "bit {bit} of byte {at}");
                // The end of the line takes the next one along.
                let last = (at == lines[0].len() + lines[1].len() - 1).then_some(event(3));
                assert!(found.events.last() == Some(&event(3)) || last.is_some(), "byte {at}");
            }
        }
        // Of another host, or told before.
        assert_eq!(read_event_lines(HostId(2), 0, whole.as_bytes()).bad_lines, 3);
        assert_eq!(read_event_lines(HostId(1), 2, whole.as_bytes()).events, [event(3)]);
    }
}
