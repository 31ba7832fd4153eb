//! Cursors: where the next page of a list begins.
//!
//! A cursor is opaque to clients. It holds the key of the last item of a page and a checksum over
//! that key and the list it is of: the route, what stands for its `{x}`, and every filter.
//!
//! Invariant: a cursor of another list, of other filters, or of nothing is refused, and never
//! skips entries.

use super::request::Parsed;
use atoll_api::{Code, Problem};
use atoll_format::checksum::{crc, crc_append};

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
    let hex = |text: &str| {
        let lower = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        lower.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let (sum_text, rest) = cursor.split_at_checked(8)?;
    let pairs = (0..rest.len()).step_by(2).map(|at| hex(rest.get(at..at + 2)?));
    let key: Vec<u8> = pairs.map(|pair| pair.map(|byte| byte as u8)).collect::<Option<_>>()?;
    (hex(sum_text)? == sum(asked, &key)).then(|| String::from_utf8(key).ok()).flatten()
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
