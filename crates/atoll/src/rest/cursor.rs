//! Cursors: where the next page of a list begins.
//!
//! A cursor is opaque to clients. It holds the key of the last item of a page and a checksum over
//! that key and the list it is of: the route, what stands for its `{x}`, and every filter.
//!
//! That of events is a position instead: of each host, the mark of the last event that was read. It
//! holds over restarts and with other filters.
//!
//! Invariant: a cursor of another list, of other filters, or of nothing is refused, and never
//! skips entries.

use super::request::Parsed;
use crate::control::EventMarks;
use atoll_api::{Code, Problem};
use atoll_format::checksum::{crc, crc_append};
use atoll_format::id::{HostId, Incarnation};
use atoll_node::EventMark;

/// Says where the page after the item with this key begins.
pub fn make(asked: &Parsed, key: &str) -> String {
    let mut text = format!("{:08x}", sum(asked, key.as_bytes()));
    for byte in key.bytes() {
        text += &format!("{byte:02x}");
    }
    text
}

/// The key behind a cursor.
///
/// # Errors
/// [`Code::BadValue`]: it was not given out for this list.
pub fn read(asked: &Parsed, cursor: &str) -> Result<String, Problem> {
    key(asked, cursor).ok_or_else(|| {
        Problem::new(Code::BadValue, "cursor was not given out for this list")
            .hint("begin without a cursor; then give next_cursor of the page before, unchanged")
            .field("cursor")
    })
}

fn key(asked: &Parsed, cursor: &str) -> Option<String> {
    let (sum_text, rest) = cursor.split_at_checked(8)?;
    let pairs = (0..rest.len()).step_by(2).map(|at| hex(rest.get(at..at + 2)?));
    let key: Vec<u8> = pairs.map(|pair| pair.map(|byte| byte as u8)).collect::<Option<_>>()?;
    (hex(sum_text)? == u64::from(sum(asked, &key))).then(|| String::from_utf8(key).ok()).flatten()
}

/// Digits as they are written here: lower case, no sign.
fn hex(text: &str) -> Option<u64> {
    let lower = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    lower.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// Digits of the host, the life and the number of one mark.
const MARK_DIGITS: usize = 3 * 16;

/// Says how far events were read.
pub fn make_position(read: &EventMarks) -> String {
    let mark = |(host, mark): (&HostId, &EventMark)| {
        format!("{:016x}{:016x}{:016x}", host.0, mark.life.0, mark.number)
    };
    let marks: String = read.iter().map(mark).collect();
    format!("{:08x}{marks}", position_sum(&marks))
}

/// How far events were read.
///
/// # Errors
/// [`Code::BadValue`]: it is no position.
pub fn read_position(cursor: &str) -> Result<EventMarks, Problem> {
    marks(cursor).ok_or_else(|| {
        Problem::new(Code::BadValue, "cursor is no position among events")
            .hint("give position or next_cursor of a list of events, or an id of their stream")
            .field("cursor")
    })
}

fn marks(cursor: &str) -> Option<EventMarks> {
    let (sum, marks) = cursor.split_at_checked(8)?;
    let good = hex(sum)? == u64::from(position_sum(marks)) && marks.len() % MARK_DIGITS == 0;
    let starts = (0..marks.len()).step_by(MARK_DIGITS);
    let mark = |at: usize| {
        let part = |n: usize| hex(marks.get(at + n * 16..at + (n + 1) * 16)?);
        Some((HostId(part(0)?), EventMark { life: Incarnation(part(1)?), number: part(2)? }))
    };
    good.then(|| starts.map(mark).collect()).flatten()
}

fn position_sum(marks: &str) -> u32 {
    crc_append(crc(b"atoll event position 1"), marks.as_bytes())
}

/// Over everything that decides what is in the list, each with its length.
fn sum(asked: &Parsed, key: &[u8]) -> u32 {
    let add = |sum: u32, text: &[u8]| {
        crc_append(crc_append(sum, &(text.len() as u64).to_le_bytes()), text)
    };
    let begin = add(crc(b"atoll list cursor 1"), format!("{:?}", asked.op).as_bytes());
    let list = asked.filters().fold(begin, |sum, text| add(sum, text.as_bytes()));
    add(list, key)
}

#[cfg(test)]
mod tests {
    use super::{make_position, read_position};
    use crate::control::EventMarks;
    use atoll_format::id::{HostId, Incarnation};
    use atoll_node::EventMark;

    #[test]
    fn a_position_is_read_or_refused() {
        let mark = |life, number| EventMark { life: Incarnation(life), number };
        let read: EventMarks = [(HostId(1), mark(u64::MAX, 7)), (HostId(2), mark(3, 0))].into();
        let text = make_position(&read);
        assert_eq!(read_position(&text).unwrap(), read);
        assert_eq!(read_position(&make_position(&EventMarks::new())).unwrap(), EventMarks::new());
        for at in 0..text.len() {
            let other = if &text[at..=at] == "0" { "1" } else { "0" };
            let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            read_position(&changed).unwrap_err();
            read_position(&text[..at]).unwrap_err();
        }
        read_position(&text.to_uppercase()).unwrap_err();
        read_position("\u{e4}").unwrap_err();
    }
}
