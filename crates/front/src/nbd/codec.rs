//! The numbers and layouts of the NBD protocol document: decoding what clients send, encoding
//! what servers send. No state, no decisions. All fields are big-endian.
//!
//! Invariant: a decoder looks at no byte behind the slice it was given and never panics.

#![allow(clippy::big_endian_bytes, reason = "the protocol is big-endian")]

use crate::limits::NAME_BYTES_MAX;

/// First word of the greeting: `NBDMAGIC`.
pub(super) const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, and first of every option: `IHAVEOPT`.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags of the server, and the client's answer to them (the same bits).
pub(super) mod hello {
    pub const FIXED_NEWSTYLE: u16 = 1;
    pub const NO_ZEROES: u16 = 2;
}

/// Options.
pub(super) mod opt {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    #[cfg(test)]
    pub const STARTTLS: u32 = 5;
    #[cfg(test)]
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Answers to options.
pub(super) mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Kinds of information about an export.
pub(super) mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub(super) mod export {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub(super) mod cmd {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub(super) mod flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of chunks of a structured reply.
pub(super) mod chunk {
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// Flags of a range in `base:allocation`.
pub(super) mod status {
    pub const DATA: u32 = 0;
    pub const ZERO: u32 = 2;
    pub const HOLE_ZERO: u32 = 3;
}

/// The one metadata context, and the number it is given when it is chosen.
pub(super) const ALLOCATION: &str = "base:allocation";
pub(super) const ALLOCATION_ID: u32 = 1;

/// The protocol's error numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Errno {
    Perm = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
    NotSupported = 95,
    Shutdown = 108,
}

/// Takes big-endian fields off the front of a slice; none once it is too short.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }
    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.array()?))
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.array()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.array()?))
    }
    /// A string with its length before it.
    fn string(&mut self) -> Result<&'a str, BadOption> {
        let len = self.u32().ok_or(BadOption::Short)? as usize;
        let bytes = self.bytes(len).ok_or(BadOption::Short)?;
        name(bytes)
    }
}

/// The client's answer to the greeting.
pub(super) fn decode_client_flags(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes)
}

/// Head of an option; `len` bytes of data follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OptionHead {
    pub option: u32,
    pub len: u32,
}

impl OptionHead {
    pub(super) const BYTES: usize = 16;

    /// None: wrong magic, the stream makes no sense from here on.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u64()? != OPTION_MAGIC {
            return None;
        }
        Some(Self { option: fields.u32()?, len: fields.u32()? })
    }
}

/// What is wrong with the data of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadOption {
    /// Shorter than its inner lengths say.
    Short,
    /// Longer than its inner lengths say.
    Long,
    /// A string is not UTF-8.
    Utf8,
    /// A string is longer than [`NAME_BYTES_MAX`].
    TooBig,
}

impl BadOption {
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Short => "the option's data is shorter than its inner lengths say",
            Self::Long => "the option's data is longer than its inner lengths say",
            Self::Utf8 => "a string of the option is not UTF-8",
            Self::TooBig => "a string of the option is longer than 4096 bytes",
        }
    }
}

/// A string of the protocol.
pub(super) fn name(bytes: &[u8]) -> Result<&str, BadOption> {
    if bytes.len() > NAME_BYTES_MAX {
        return Err(BadOption::TooBig);
    }
    std::str::from_utf8(bytes).map_err(|_| BadOption::Utf8)
}

/// As much of the front of `text` as fits into `max` bytes.
pub(super) fn shortened(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Data of `INFO` and `GO`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct InfoQuery<'a> {
    pub name: &'a str,
    /// Which kinds of information are asked for: big-endian numbers, [`InfoQuery::wants`].
    kinds: &'a [u8],
}

impl<'a> InfoQuery<'a> {
    pub(super) fn decode(data: &'a [u8]) -> Result<Self, BadOption> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u16().ok_or(BadOption::Short)?;
        let kinds = fields.bytes(usize::from(count) * 2).ok_or(BadOption::Short)?;
        if !fields.0.is_empty() {
            return Err(BadOption::Long);
        }
        Ok(Self { name, kinds })
    }
    pub(super) fn wants(&self, kind: u16) -> bool {
        self.kinds.as_chunks().0.contains(&kind.to_be_bytes())
    }
}

/// Data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ContextQuery<'a> {
    pub name: &'a str,
    pub queries: Vec<&'a str>,
}

impl<'a> ContextQuery<'a> {
    pub(super) fn decode(data: &'a [u8]) -> Result<Self, BadOption> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u32().ok_or(BadOption::Short)? as usize;
        // Each takes at least its length: a count that cannot be is refused before it costs.
        if count > fields.0.len() / 4 {
            return Err(BadOption::Short);
        }
        let queries = (0..count).map(|_| fields.string()).collect::<Result<_, _>>()?;
        if !fields.0.is_empty() {
            return Err(BadOption::Long);
        }
        Ok(Self { name, queries })
    }
}

/// Head of a request; a write's data follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RequestHead {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub at: u64,
    pub len: u32,
}

impl RequestHead {
    pub(super) const BYTES: usize = 28;

    /// None: wrong magic, the stream makes no sense from here on.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            at: fields.u64()?,
            len: fields.u32()?,
        })
    }

    #[cfg(test)]
    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = Vec::new();
        put32(&mut out, REQUEST_MAGIC);
        put16(&mut out, self.flags);
        put16(&mut out, self.command);
        put64(&mut out, self.cookie);
        put64(&mut out, self.at);
        put32(&mut out, self.len);
        out.try_into().expect("the fields above are 28 bytes")
    }
}

pub(super) fn put16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}
pub(super) fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}
pub(super) fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// The server's first words.
pub(super) fn put_greeting(out: &mut Vec<u8>) {
    put64(out, GREETING_MAGIC);
    put64(out, OPTION_MAGIC);
    put16(out, hello::FIXED_NEWSTYLE | hello::NO_ZEROES);
}

/// Head of the answer to an option; `len` bytes of data follow.
pub(super) fn put_option_reply(out: &mut Vec<u8>, option: u32, reply: u32, len: usize) {
    put64(out, OPTION_REPLY_MAGIC);
    put32(out, option);
    put32(out, reply);
    put32(out, u32::try_from(len).expect("answers to options are bounded far below 4 GiB"));
}

/// Answer without data of its own (`error` 0: success; a read's data follows then).
pub(super) fn put_simple_reply(out: &mut Vec<u8>, cookie: u64, error: u32) {
    let mut bytes = [0; 16];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// Head of a chunk of a structured reply; `len` bytes of payload follow.
pub(super) fn put_chunk(out: &mut Vec<u8>, last: bool, kind: u16, cookie: u64, len: usize) {
    let len = u32::try_from(len).expect("payloads are at most 32 MiB and a few bytes");
    let mut bytes = [0; 20];
    bytes[0..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&u16::from(last).to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..20].copy_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&bytes);
}

#[cfg(test)]
mod tests {
    use super::{BadOption, ContextQuery, InfoQuery, OptionHead, RequestHead, info, put16, put32};
    use proptest::prelude::{any, proptest};

    #[test]
    fn the_greeting_is_the_documents() {
        let mut out = Vec::new();
        super::put_greeting(&mut out);
        assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
    }

    #[test]
    fn wrong_magic_is_seen() {
        assert_eq!(OptionHead::decode(b"IHAVEOPS\0\0\0\x07\0\0\0\0"), None);
        assert!(OptionHead::decode(b"IHAVEOPT\0\0\0\x07\0\0\0\x05").is_some());
        assert_eq!(RequestHead::decode(&[0; 28]), None);
    }

    #[test]
    fn inner_lengths_that_lie_are_refused() {
        let mut data = Vec::new();
        put32(&mut data, 3);
        data.extend_from_slice(b"abc");
        put16(&mut data, 1);
        put16(&mut data, info::BLOCK_SIZE);
        let query = InfoQuery::decode(&data).expect("well-formed");
        assert!(query.name == "abc" && query.wants(info::BLOCK_SIZE) && !query.wants(info::NAME));
        assert_eq!(InfoQuery::decode(&data[..data.len() - 1]), Err(BadOption::Short));
        data.push(0);
        assert_eq!(InfoQuery::decode(&data), Err(BadOption::Long));
        data[3] = 255;
        assert_eq!(InfoQuery::decode(&data), Err(BadOption::Short));
        let lie = [0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0];
        assert_eq!(ContextQuery::decode(&lie), Err(BadOption::Short));
    }

    proptest! {
        #[test]
        fn a_request_survives_the_wire(
            flags in any::<u16>(), command in any::<u16>(), cookie in any::<u64>(),
            at in any::<u64>(), len in any::<u32>(),
        ) {
            let head = RequestHead { flags, command, cookie, at, len };
            assert_eq!(RequestHead::decode(&head.encode()), Some(head));
        }

        #[test]
        fn decoders_take_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = InfoQuery::decode(&data);
            let _ = ContextQuery::decode(&data);
        }
    }
}
