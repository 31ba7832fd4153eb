//! The frames between directory clients and their server, over a Unix socket of one machine.
//!
//! A frame is a head of 28 bytes and a body, all integers little-endian:
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 4 | magic `ATDR` |
//! | 4 | 2 | version, [`VERSION`] |
//! | 6 | 2 | kind |
//! | 8 | 8 | request: chosen by the client, repeated in every answer to it |
//! | 16 | 4 | length of the body, at most `FRAME_BODY_MAX` |
//! | 20 | 4 | CRC-32C of the body |
//! | 24 | 4 | CRC-32C of bytes 0-23 |
//!
//! | kind | from | body | answered by | safe to repeat |
//! | --- | --- | --- | --- | --- |
//! | 1 hello | client | versions spoken, directory and revision seen before | 101, 102 | yes |
//! | 2 txn | client | comparisons, changes | 103, 110 | no: R12 of `docs/mirror.md` |
//! | 3 get | client | key | 104, 110 | yes |
//! | 4 list | client | prefix | 105 (several), 110 | yes |
//! | 5 poll | client | prefix, revision | 106, 110 | yes |
//! | 6 touch | client | name, time to live | 107, 110 | yes |
//! | 7 alive | client | - | 108, 110 | yes |
//! | 8 cancel | client | - (the request it ends is that of the head) | - | yes |
//!
//! A client opens with hello; hello, welcome (101) and refuse (102) never change their form in
//! any version. Nothing is believed before its checksum and bounds have been checked; unknown
//! kinds, bytes left over and text that is not UTF-8 are errors of the whole connection.

use crate::limits::{CHANGES_MAX, COMPARES_MAX, FRAME_BODY_MAX, KEY_MAX, VALUE_MAX};
use crate::state::Events;
use atoll_format::checksum::crc;
use atoll_world::directory::{
    Compare, DirectoryError, Entry, KeyChange, Listing, Revision, Txn, TxnReply, WatchEvent,
};

/// The first four bytes of every frame.
pub const MAGIC: [u8; 4] = *b"ATDR";
/// The version this program speaks.
pub const VERSION: u16 = 1;
/// Bytes of a head.
pub const HEAD: usize = 28;

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// The first frame of a connection.
    Hello {
        /// Lowest version spoken.
        oldest: u16,
        /// Highest version spoken.
        newest: u16,
        /// The directory it knows; 0: none yet.
        directory: u64,
        /// The highest revision it has seen there: a server below it is an older copy.
        seen: Revision,
    },
    /// See `Directory::txn`.
    Txn(Txn),
    /// See `Directory::get`.
    Get(String),
    /// See `Directory::list`.
    List(String),
    /// Events of keys with a prefix after a revision: answered when there are some, or after
    /// `POLL_WAIT` without any.
    Poll {
        /// The prefix.
        prefix: String,
        /// After this one.
        after: Revision,
    },
    /// See `Directory::touch`.
    Touch {
        /// Who is alive.
        name: String,
        /// For so long.
        ttl_ms: u32,
    },
    /// See `Directory::alive`.
    Alive,
    /// Nobody waits for the request of the same number any more.
    Cancel,
}

/// What the server answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// To hello.
    Welcome {
        /// The version both speak from now on.
        version: u16,
        /// Which directory this is.
        directory: u64,
        /// Its revision.
        revision: Revision,
    },
    /// To hello: go away, and why.
    Refuse(String),
    /// To txn.
    Txn(TxnReply),
    /// To get.
    Entry(Option<Entry>),
    /// To list: the next entries; all parts show one revision.
    Listing {
        /// The next entries.
        part: Listing,
        /// Another part follows.
        more: bool,
    },
    /// To poll.
    Events(Events),
    /// To touch.
    Touched,
    /// To alive.
    Names(Vec<String>),
    /// To all but hello: no.
    Failed(DirectoryError),
}

/// A head whose checksum was right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What the body is.
    pub kind: u16,
    /// Which request it belongs to.
    pub request: u64,
    /// Bytes of the body that follow; within the limit.
    pub body_len: usize,
    body_crc: u32,
}

/// What came is not a frame.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Another protocol.
    #[error("not a directory frame: it begins with {0:02x?}")]
    Magic([u8; 4]),
    /// Another version of it.
    #[error("directory frames of version {0}, this program speaks version {VERSION}")]
    Version(u16),
    /// Bytes were changed on the way.
    #[error("a directory frame arrived damaged")]
    Checksum,
    /// A length or a count beyond its limit.
    #[error("a directory frame is too long: {0}")]
    TooLong(usize),
    /// No such kind (from this side).
    #[error("unknown kind of directory frame: {0}")]
    Kind(u16),
    /// The body is not what its kind says.
    #[error("malformed directory frame")]
    Malformed,
}

/// Reads a head.
///
/// # Errors
/// Anything but a good head of this version: the connection is of no more use.
pub fn decode_head(bytes: &[u8; HEAD]) -> Result<Head, FrameError> {
    let mut fields = Fields(bytes);
    let magic = fields.array::<4>()?;
    if magic != MAGIC {
        return Err(FrameError::Magic(magic));
    }
    let (version, kind) = (fields.u16()?, fields.u16()?);
    let (request, body_len, body_crc) = (fields.u64()?, fields.u32()?, fields.u32()?);
    if crc(&bytes[..HEAD - 4]) != fields.u32()? {
        return Err(FrameError::Checksum);
    }
    // Hello never changes its form: a server reads it from any version and refuses in words.
    if version != VERSION && !(kind == 1 || kind == 101 || kind == 102) {
        return Err(FrameError::Version(version));
    }
    let body_len = body_len as usize;
    if body_len > FRAME_BODY_MAX {
        return Err(FrameError::TooLong(body_len));
    }
    Ok(Head { kind, request, body_len, body_crc })
}

fn frame(kind: u16, request: u64, body: &[u8]) -> Vec<u8> {
    assert!(body.len() <= FRAME_BODY_MAX, "a frame of {} bytes: see limits", body.len());
    let mut frame = Vec::with_capacity(HEAD + body.len());
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&VERSION.to_le_bytes());
    frame.extend_from_slice(&kind.to_le_bytes());
    frame.extend_from_slice(&request.to_le_bytes());
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&crc(body).to_le_bytes());
    frame.extend_from_slice(&crc(&frame).to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

/// The frame of a request.
///
/// # Panics
/// If it is beyond the limits: check it first.
pub fn encode_request(id: u64, request: &Request) -> Vec<u8> {
    let mut body = Vec::new();
    let kind = match request {
        Request::Hello { oldest, newest, directory, seen } => {
            body.extend_from_slice(&oldest.to_le_bytes());
            body.extend_from_slice(&newest.to_le_bytes());
            put_u64(&mut body, *directory);
            put_u64(&mut body, seen.0);
            1
        }
        Request::Txn(txn) => {
            put_u32(&mut body, txn.compares.len());
            for compare in &txn.compares {
                put_bytes(&mut body, compare.key.as_bytes());
                put_u64(&mut body, compare.modified.0);
            }
            put_u32(&mut body, txn.changes.len());
            for change in &txn.changes {
                let (key, value) = match change {
                    KeyChange::Put(key, value) => (key, Some(value.as_slice())),
                    KeyChange::Delete(key) => (key, None),
                };
                put_bytes(&mut body, key.as_bytes());
                put_option(&mut body, value);
            }
            2
        }
        Request::Get(key) => {
            put_bytes(&mut body, key.as_bytes());
            3
        }
        Request::List(prefix) => {
            put_bytes(&mut body, prefix.as_bytes());
            4
        }
        Request::Poll { prefix, after } => {
            put_bytes(&mut body, prefix.as_bytes());
            put_u64(&mut body, after.0);
            5
        }
        Request::Touch { name, ttl_ms } => {
            put_bytes(&mut body, name.as_bytes());
            body.extend_from_slice(&ttl_ms.to_le_bytes());
            6
        }
        Request::Alive => 7,
        Request::Cancel => 8,
    };
    frame(kind, id, &body)
}

/// Reads the body of a request.
///
/// # Errors
/// Not a request: the connection is of no more use.
pub fn decode_request(head: &Head, body: &[u8]) -> Result<Request, FrameError> {
    let mut fields = Fields::checked(head, body)?;
    let request = match head.kind {
        1 => Request::Hello {
            oldest: fields.u16()?,
            newest: fields.u16()?,
            directory: fields.u64()?,
            seen: Revision(fields.u64()?),
        },
        2 => {
            let mut txn = Txn::default();
            for _ in 0..fields.count(COMPARES_MAX)? {
                let key = fields.text(KEY_MAX)?;
                txn.compares.push(Compare { key, modified: Revision(fields.u64()?) });
            }
            for _ in 0..fields.count(CHANGES_MAX)? {
                let key = fields.text(KEY_MAX)?;
                txn.changes.push(match fields.option(VALUE_MAX)? {
                    Some(value) => KeyChange::Put(key, value),
                    None => KeyChange::Delete(key),
                });
            }
            Request::Txn(txn)
        }
        3 => Request::Get(fields.text(KEY_MAX)?),
        4 => Request::List(fields.text(KEY_MAX)?),
        5 => Request::Poll { prefix: fields.text(KEY_MAX)?, after: Revision(fields.u64()?) },
        6 => Request::Touch { name: fields.text(KEY_MAX)?, ttl_ms: fields.u32()? },
        7 => Request::Alive,
        8 => Request::Cancel,
        other => return Err(FrameError::Kind(other)),
    };
    fields.end()?;
    Ok(request)
}

/// The frame of an answer.
///
/// # Panics
/// If it is beyond the limits.
pub fn encode_reply(id: u64, reply: &Reply) -> Vec<u8> {
    let mut body = Vec::new();
    let kind = match reply {
        Reply::Welcome { version, directory, revision } => {
            body.extend_from_slice(&version.to_le_bytes());
            put_u64(&mut body, *directory);
            put_u64(&mut body, revision.0);
            101
        }
        Reply::Refuse(why) => {
            put_text(&mut body, why);
            102
        }
        Reply::Txn(TxnReply::Done(revision)) => {
            body.push(1);
            put_u64(&mut body, revision.0);
            103
        }
        Reply::Txn(TxnReply::Conflict(seen)) => {
            body.push(0);
            put_u32(&mut body, seen.len());
            for (key, entry) in seen {
                put_bytes(&mut body, key.as_bytes());
                put_option(&mut body, entry.as_ref().map(|e| e.value.as_slice()));
                if let Some(entry) = entry {
                    put_u64(&mut body, entry.modified.0);
                }
            }
            103
        }
        Reply::Entry(entry) => {
            body.push(u8::from(entry.is_some()));
            if let Some(entry) = entry {
                put_entry(&mut body, entry);
            }
            104
        }
        Reply::Listing { part, more } => {
            put_u64(&mut body, part.revision.0);
            body.push(u8::from(*more));
            put_u32(&mut body, part.entries.len());
            for entry in &part.entries {
                put_entry(&mut body, entry);
            }
            105
        }
        Reply::Events(events) => {
            put_u64(&mut body, events.up_to.0);
            put_u32(&mut body, events.events.len());
            for event in &events.events {
                put_u64(&mut body, event.revision.0);
                put_bytes(&mut body, event.key.as_bytes());
                put_option(&mut body, event.value.as_deref());
            }
            106
        }
        Reply::Touched => 107,
        Reply::Names(names) => {
            put_u32(&mut body, names.len());
            for name in names {
                put_bytes(&mut body, name.as_bytes());
            }
            108
        }
        Reply::Failed(error) => {
            let (code, why) = match error {
                DirectoryError::Unavailable(why) => (1, why.as_str()),
                DirectoryError::Unknown(why) => (2, why.as_str()),
                DirectoryError::Compacted => (3, ""),
                DirectoryError::Refused(why) => (4, why.as_str()),
            };
            body.push(code);
            put_text(&mut body, why);
            110
        }
    };
    frame(kind, id, &body)
}

/// Reads the body of an answer.
///
/// # Errors
/// Not an answer: the connection is of no more use.
pub fn decode_reply(head: &Head, body: &[u8]) -> Result<Reply, FrameError> {
    let mut fields = Fields::checked(head, body)?;
    let reply = match head.kind {
        101 => Reply::Welcome {
            version: fields.u16()?,
            directory: fields.u64()?,
            revision: Revision(fields.u64()?),
        },
        102 => Reply::Refuse(fields.text(KEY_MAX)?),
        103 if fields.flag()? => Reply::Txn(TxnReply::Done(Revision(fields.u64()?))),
        103 => {
            let mut seen = Vec::new();
            for _ in 0..fields.count(COMPARES_MAX)? {
                let key = fields.text(KEY_MAX)?;
                let entry = match fields.option(VALUE_MAX)? {
                    Some(value) => {
                        let modified = Revision(fields.u64()?);
                        Some(Entry { key: key.clone(), value, modified })
                    }
                    None => None,
                };
                seen.push((key, entry));
            }
            Reply::Txn(TxnReply::Conflict(seen))
        }
        104 => {
            let entry = if fields.flag()? { Some(fields.entry()?) } else { None };
            Reply::Entry(entry)
        }
        105 => {
            let (revision, more) = (Revision(fields.u64()?), fields.flag()?);
            let mut entries = Vec::new();
            for _ in 0..fields.count(FRAME_BODY_MAX)? {
                entries.push(fields.entry()?);
            }
            Reply::Listing { part: Listing { entries, revision }, more }
        }
        106 => {
            let up_to = Revision(fields.u64()?);
            let mut events = Vec::new();
            for _ in 0..fields.count(FRAME_BODY_MAX)? {
                let revision = Revision(fields.u64()?);
                let key = fields.text(KEY_MAX)?;
                events.push(WatchEvent { revision, key, value: fields.option(VALUE_MAX)? });
            }
            Reply::Events(Events { events, up_to })
        }
        107 => Reply::Touched,
        108 => {
            let mut names = Vec::new();
            for _ in 0..fields.count(FRAME_BODY_MAX)? {
                names.push(fields.text(KEY_MAX)?);
            }
            Reply::Names(names)
        }
        110 => {
            let code = fields.u8()?;
            let why = fields.text(KEY_MAX)?;
            Reply::Failed(match code {
                1 => DirectoryError::Unavailable(why),
                2 => DirectoryError::Unknown(why),
                3 if why.is_empty() => DirectoryError::Compacted,
                4 => DirectoryError::Refused(why),
                _ => return Err(FrameError::Malformed),
            })
        }
        other => return Err(FrameError::Kind(other)),
    };
    fields.end()?;
    Ok(reply)
}

fn put_u32(body: &mut Vec<u8>, value: usize) {
    let value = u32::try_from(value).expect("lengths and counts are far below 4 Gi");
    body.extend_from_slice(&value.to_le_bytes());
}
fn put_u64(body: &mut Vec<u8>, value: u64) {
    body.extend_from_slice(&value.to_le_bytes());
}
fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(body, bytes.len());
    body.extend_from_slice(bytes);
}
/// Sentences are cut at the bound: they may quote what somebody else has sent.
fn put_text(body: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(KEY_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    put_bytes(body, &text.as_bytes()[..end]);
}
fn put_option(body: &mut Vec<u8>, bytes: Option<&[u8]>) {
    body.push(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put_bytes(body, bytes);
    }
}
fn put_entry(body: &mut Vec<u8>, entry: &Entry) {
    put_bytes(body, entry.key.as_bytes());
    put_bytes(body, &entry.value);
    put_u64(body, entry.modified.0);
}

/// What is left of a body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn checked(head: &Head, body: &'a [u8]) -> Result<Self, FrameError> {
        if body.len() != head.body_len || crc(body) != head.body_crc {
            return Err(FrameError::Checksum);
        }
        Ok(Self(body))
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(FrameError::Malformed)?;
        self.0 = rest;
        Ok(*array)
    }
    fn u8(&mut self) -> Result<u8, FrameError> {
        self.array().map(u8::from_le_bytes)
    }
    fn u16(&mut self) -> Result<u16, FrameError> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_le_bytes)
    }
    fn flag(&mut self) -> Result<bool, FrameError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Malformed),
        }
    }
    fn count(&mut self, max: usize) -> Result<usize, FrameError> {
        let count = self.u32()? as usize;
        if count > max {
            return Err(FrameError::TooLong(count));
        }
        Ok(count)
    }
    fn bytes(&mut self, max: usize) -> Result<&'a [u8], FrameError> {
        let len = self.count(max)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(FrameError::Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }
    fn text(&mut self, max: usize) -> Result<String, FrameError> {
        let bytes = self.bytes(max)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| FrameError::Malformed)
    }
    fn option(&mut self, max: usize) -> Result<Option<Vec<u8>>, FrameError> {
        Ok(if self.flag()? { Some(self.bytes(max)?.to_vec()) } else { None })
    }
    fn entry(&mut self) -> Result<Entry, FrameError> {
        let key = self.text(KEY_MAX)?;
        let value = self.bytes(VALUE_MAX)?.to_vec();
        Ok(Entry { key, value, modified: Revision(self.u64()?) })
    }
    fn end(self) -> Result<(), FrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reread_request(bytes: &[u8]) -> Result<(u64, Request), FrameError> {
        let (head, body) = bytes.split_first_chunk::<HEAD>().expect("a head");
        let head = decode_head(head)?;
        decode_request(&head, body).map(|request| (head.request, request))
    }

    fn reread_reply(bytes: &[u8]) -> Result<(u64, Reply), FrameError> {
        let (head, body) = bytes.split_first_chunk::<HEAD>().expect("a head");
        let head = decode_head(head)?;
        decode_reply(&head, body).map(|reply| (head.request, reply))
    }

    fn requests() -> impl Strategy<Value = Request> {
        let change = ("[a-z/]{1,9}", proptest::option::of(proptest::collection::vec(0u8.., 0..50)))
            .prop_map(|(key, value)| match value {
                Some(value) => KeyChange::Put(key, value),
                None => KeyChange::Delete(key),
            });
        let compare =
            ("[a-z/]{1,9}", 0u64..).prop_map(|(key, n)| Compare { key, modified: Revision(n) });
        let txn =
            (proptest::collection::vec(compare, 0..4), proptest::collection::vec(change, 0..4))
                .prop_map(|(compares, changes)| Request::Txn(Txn { compares, changes }));
        prop_oneof![
            txn,
            ".{0,20}".prop_map(Request::Get),
            ".{0,20}".prop_map(Request::List),
            (".{0,20}", 0u64..)
                .prop_map(|(prefix, n)| Request::Poll { prefix, after: Revision(n) }),
            (".{0,20}", 0u32..).prop_map(|(name, ttl_ms)| Request::Touch { name, ttl_ms }),
            Just(Request::Alive),
            Just(Request::Cancel),
            (0u16.., 0u16.., 0u64.., 0u64..).prop_map(|(oldest, newest, directory, seen)| {
                Request::Hello { oldest, newest, directory, seen: Revision(seen) }
            }),
        ]
    }

    fn replies() -> impl Strategy<Value = Reply> {
        let value = || proptest::collection::vec(0u8.., 0..50);
        let entry = move || {
            ("[a-z/]{1,9}", value(), 0u64..).prop_map(|(key, value, n)| Entry {
                key,
                value,
                modified: Revision(n),
            })
        };
        let event = (0u64.., "[a-z/]{1,9}", proptest::option::of(value()))
            .prop_map(|(n, key, value)| WatchEvent { revision: Revision(n), key, value });
        let seen = ("[a-z/]{1,9}", proptest::option::of(entry())).prop_map(|(key, entry)| {
            let entry = entry.map(|e| Entry { key: key.clone(), ..e });
            (key, entry)
        });
        prop_oneof![
            (0u16.., 0u64.., 0u64..).prop_map(|(version, directory, n)| Reply::Welcome {
                version,
                directory,
                revision: Revision(n)
            }),
            ".{0,20}".prop_map(Reply::Refuse),
            (0u64..).prop_map(|n| Reply::Txn(TxnReply::Done(Revision(n)))),
            proptest::collection::vec(seen, 0..4)
                .prop_map(|seen| Reply::Txn(TxnReply::Conflict(seen))),
            proptest::option::of(entry()).prop_map(Reply::Entry),
            (proptest::collection::vec(entry(), 0..4), 0u64.., proptest::bool::ANY).prop_map(
                |(entries, n, more)| Reply::Listing {
                    part: Listing { entries, revision: Revision(n) },
                    more
                }
            ),
            (proptest::collection::vec(event, 0..4), 0u64..)
                .prop_map(|(events, n)| { Reply::Events(Events { events, up_to: Revision(n) }) }),
            Just(Reply::Touched),
            proptest::collection::vec(".{0,20}", 0..4).prop_map(Reply::Names),
            ".{0,20}".prop_map(|why| Reply::Failed(DirectoryError::Unavailable(why))),
            ".{0,20}".prop_map(|why| Reply::Failed(DirectoryError::Unknown(why))),
            ".{0,20}".prop_map(|why| Reply::Failed(DirectoryError::Refused(why))),
            Just(Reply::Failed(DirectoryError::Compacted)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_said_is_what_is_heard(id in 0u64.., request in requests(), reply in replies()) {
            prop_assert_eq!(
                reread_request(&encode_request(id, &request)), Ok((id, request.clone())));
            prop_assert_eq!(reread_reply(&encode_reply(id, &reply)), Ok((id, reply.clone())));
        }

        #[test]
        fn a_flipped_bit_never_passes(request in requests(), at in 0usize.., bit in 0u8..8) {
            let mut bytes = encode_request(7, &request);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let length_differs = (16..20).contains(&at);
            let heard = if length_differs {
                let (head, _) = bytes.split_first_chunk::<HEAD>().unwrap();
                decode_head(head).map(|_| ())
            } else {
                reread_request(&bytes).map(|_| ())
            };
            prop_assert!(heard.is_err());
        }

        #[test]
        fn bodies_of_any_bytes_are_refused_or_read_but_never_break(
            kind in 0u16..120, body in proptest::collection::vec(0u8.., 0..200)
        ) {
            let bytes = frame(kind, 1, &body);
            let _ = reread_request(&bytes);
            let _ = reread_reply(&bytes);
        }
    }

    fn every_request() -> Vec<Request> {
        let compare = Compare { key: "a".into(), modified: Revision(2) };
        let changes =
            vec![KeyChange::Put("a".into(), b"xy".to_vec()), KeyChange::Delete("b".into())];
        vec![
            Request::Hello { oldest: 1, newest: 1, directory: 0x0a0b, seen: Revision(0x0c) },
            Request::Txn(Txn { compares: vec![compare], changes }),
            Request::Get("key".into()),
            Request::List("prefix/".into()),
            Request::Poll { prefix: "p/".into(), after: Revision(0x0d) },
            Request::Touch { name: "host".into(), ttl_ms: 3000 },
            Request::Alive,
            Request::Cancel,
        ]
    }

    fn every_reply() -> Vec<Reply> {
        let entry = Entry { key: "k".into(), value: b"v".to_vec(), modified: Revision(6) };
        let event = |n, value| WatchEvent { revision: Revision(n), key: "k".into(), value };
        let seen = vec![("k".into(), Some(entry.clone())), ("gone".into(), None)];
        vec![
            Reply::Welcome { version: 1, directory: 0x0a0b, revision: Revision(4) },
            Reply::Refuse("why".into()),
            Reply::Txn(TxnReply::Done(Revision(5))),
            Reply::Txn(TxnReply::Conflict(seen)),
            Reply::Entry(Some(entry.clone())),
            Reply::Entry(None),
            Reply::Listing {
                part: Listing { entries: vec![entry], revision: Revision(7) },
                more: true,
            },
            Reply::Events(Events {
                events: vec![event(8, Some(b"w".to_vec())), event(9, None)],
                up_to: Revision(9),
            }),
            Reply::Touched,
            Reply::Names(vec!["one".into(), "two".into()]),
            Reply::Failed(DirectoryError::Unavailable("u".into())),
            Reply::Failed(DirectoryError::Unknown("k".into())),
            Reply::Failed(DirectoryError::Compacted),
            Reply::Failed(DirectoryError::Refused("r".into())),
        ]
    }

    #[test]
    fn the_bytes_of_version_1_never_change() {
        let line = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let requests = every_request().into_iter().map(|r| line(encode_request(3, &r)));
        let replies = every_reply().into_iter().map(|r| line(encode_reply(4, &r)));
        let now: String = requests.chain(replies).map(|line| line + "\n").collect();
        assert!(now == include_str!("../golden/frames.v1.hex"), "they are now:\n{now}");
    }

    #[test]
    fn counts_beyond_the_limits_take_no_memory() {
        let mut body = Vec::new();
        put_u32(&mut body, COMPARES_MAX + 1);
        assert_eq!(reread_request(&frame(2, 1, &body)), Err(FrameError::TooLong(COMPARES_MAX + 1)));
        let mut head = *frame(2, 1, &[]).first_chunk::<HEAD>().unwrap();
        head[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        let crc = crc(&head[..24]).to_le_bytes();
        head[24..].copy_from_slice(&crc);
        assert_eq!(decode_head(&head), Err(FrameError::TooLong(u32::MAX as usize)));
    }

    #[test]
    fn a_hello_of_another_version_can_be_read_and_refused_in_words() {
        let mut bytes = encode_request(
            1,
            &Request::Hello { oldest: 2, newest: 3, directory: 0, seen: Revision(0) },
        );
        bytes[4] = 3;
        let crc = crc(&bytes[..24]).to_le_bytes();
        bytes[24..28].copy_from_slice(&crc);
        assert!(matches!(reread_request(&bytes), Ok((1, Request::Hello { newest: 3, .. }))));
        let mut get = encode_request(1, &Request::Get("k".into()));
        get[4] = 3;
        let crc = super::crc(&get[..24]).to_le_bytes();
        get[24..28].copy_from_slice(&crc);
        assert_eq!(reread_request(&get), Err(FrameError::Version(3)));
    }
}
