//! The frame: everything that goes over a connection between two hosts is a head of 64 bytes, a
//! body and a payload. And the handshake, whose two structures never change.
//!
//! What it never does: say what a request means. Kinds of messages belong to the object layer.
//!
//! Invariants: `body_len <= BODY_MAX` and `payload_len <= PAYLOAD_MAX`, checked before memory is
//! set aside; a version, kind, flag or reserved byte that is not known is refused, not ignored;
//! nothing of a head is believed before its CRC has been checked.

use crate::checksum::{crc, crc_append};
use crate::id::{Addr, ClusterId, HostId, Incarnation};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"ATLf";
/// The version of handshake frames, for ever.
pub const VERSION_HANDSHAKE: u16 = 0;
/// The oldest version this program speaks after the handshake.
pub const VERSION_MIN: u16 = 3;
/// The newest version this program speaks after the handshake.
pub const VERSION_MAX: u16 = 3;
/// Optional abilities this program offers; both sides use what both offer. None so far.
pub const FEATURES: u64 = 0;
/// Length of the head, in bytes.
pub const HEAD_LEN: usize = 64;
/// The longest body, in bytes.
pub const BODY_MAX: u32 = 1 << 20;
/// The longest payload, in bytes: two of the largest guest I/Os.
pub const PAYLOAD_MAX: u32 = 2 << 20;
/// The longest text of a `Refuse` or `Goodbye`, in bytes.
pub const TEXT_MAX: usize = 1024;
/// In a `Goodbye`, as its request: this life of the sender serves nobody any more. 0 otherwise.
pub const FOR_GOOD: u64 = 1;
/// The longest host name in a handshake, in bytes.
pub const NAME_MAX: usize = 63;
/// Flag: the payload carries its own checksums in the body, and the receiving service checks
/// them; `payload_crc` is 0 (hashing twice would be the larger part of a data message's cost).
pub const PAYLOAD_CHECKED_BY_RECEIVER: u8 = 1;

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame of who opened the connection: a [`Hello`].
    Hello = 1,
    /// The answer that lets requests begin: a [`Hello`] too.
    Welcome = 2,
    /// The answer that does not, or (with a request id) to a request that was not understood and
    /// had no effect. The body is a text for people.
    Refuse = 3,
    /// Asks for something; from who opened the connection only.
    Request = 4,
    /// Answers the request of the same id, and gives its credit back.
    Reply = 5,
    /// Asks for a `Pong` of the same id.
    Ping = 6,
    /// Answers a `Ping`.
    Pong = 7,
    /// The sender is going to close the connection. The body is a text for people.
    Goodbye = 8,
}

impl FrameKind {
    /// The kind of that code, if it is known.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Refuse,
            4 => Self::Request,
            5 => Self::Reply,
            6 => Self::Ping,
            7 => Self::Pong,
            8 => Self::Goodbye,
            _ => return None,
        })
    }

    /// Whether it is of the handshake, and so of [`VERSION_HANDSHAKE`].
    pub fn is_handshake(self) -> bool {
        matches!(self, Self::Hello | Self::Welcome | Self::Refuse)
    }

    /// Whether it carries a message of a service.
    pub fn is_message(self) -> bool {
        matches!(self, Self::Request | Self::Reply)
    }
}

/// Why a frame, or what was to be one, is refused. The connection that brought it is of no use
/// any more: where the next frame starts is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// It does not start as a frame does.
    #[error("magic is {0:02x?}, not a frame")]
    Magic([u8; 4]),
    /// The head was damaged on the way.
    #[error("head CRC is {stored:08x}, computed {computed:08x}")]
    HeadCrc {
        /// What it says.
        stored: u32,
        /// What it is.
        computed: u32,
    },
    /// A version this program does not speak, or not for this kind.
    #[error("frame version {0} is not spoken here")]
    Version(u16),
    /// An unknown kind.
    #[error("frame kind {0} is unknown")]
    Kind(u8),
    /// An unknown flag, or one that does not fit the kind.
    #[error("frame flags {0:#04x} are not understood")]
    Flags(u8),
    /// A byte that has to be zero is not, or a field is set that its kind does not have.
    #[error("field '{0}' is set where it has no meaning")]
    NotZero(&'static str),
    /// Too long, or not the length its kind has.
    #[error("body of {0} bytes is refused")]
    BodyLen(u32),
    /// Too long, or there where its kind has none.
    #[error("payload of {0} bytes is refused")]
    PayloadLen(u32),
    /// The body was damaged on the way.
    #[error("body CRC is {stored:08x}, computed {computed:08x}")]
    BodyCrc {
        /// What the head says.
        stored: u32,
        /// What it is.
        computed: u32,
    },
    /// The payload was damaged on the way.
    #[error("payload CRC is {stored:08x}, computed {computed:08x}")]
    PayloadCrc {
        /// What the head says.
        stored: u32,
        /// What it is.
        computed: u32,
    },
}

/// The head as it is on the wire.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHead {
    /// [`MAGIC`].
    magic: [u8; 4],
    /// [`VERSION_HANDSHAKE`], or what the handshake agreed on.
    version: U16,
    /// A [`FrameKind`].
    kind: u8,
    /// [`PAYLOAD_CHECKED_BY_RECEIVER`] or 0.
    flags: u8,
    /// Which request or reply of the service; 0 for all others.
    message_kind: U16,
    /// How busy the sender is, 0-255 of 255.
    load: u8,
    /// Zero.
    reserved_a: [u8; 5],
    /// Pairs request and reply, ping and pong; 0 for all others.
    request_id: U64,
    /// Bytes of body.
    body_len: U32,
    /// Bytes of payload.
    payload_len: U32,
    /// CRC-32C of the body.
    body_crc: U32,
    /// CRC-32C of the payload; 0 with [`PAYLOAD_CHECKED_BY_RECEIVER`].
    payload_crc: U32,
    /// Zero.
    reserved_b: [u8; 20],
    /// CRC-32C of the 60 bytes before it.
    head_crc: U32,
}

const _: () = {
    assert!(size_of::<RawHead>() == HEAD_LEN && align_of::<RawHead>() == 1);
    assert!(std::mem::offset_of!(RawHead, version) == 4);
    assert!(std::mem::offset_of!(RawHead, kind) == 6);
    assert!(std::mem::offset_of!(RawHead, message_kind) == 8);
    assert!(std::mem::offset_of!(RawHead, load) == 10);
    assert!(std::mem::offset_of!(RawHead, request_id) == 16);
    assert!(std::mem::offset_of!(RawHead, body_len) == 24);
    assert!(std::mem::offset_of!(RawHead, payload_len) == 28);
    assert!(std::mem::offset_of!(RawHead, body_crc) == 32);
    assert!(std::mem::offset_of!(RawHead, payload_crc) == 36);
    assert!(std::mem::offset_of!(RawHead, reserved_b) == 40);
    assert!(std::mem::offset_of!(RawHead, head_crc) == 60);
};

/// The head of a frame. A value of this type keeps every rule of the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// [`VERSION_HANDSHAKE`] for the handshake, else what it agreed on.
    pub version: u16,
    /// What it is for.
    pub kind: FrameKind,
    /// The service checks the payload itself.
    pub payload_checked_by_receiver: bool,
    /// Which request or reply of the service; 0 for all other kinds.
    pub message_kind: u16,
    /// How busy the sender is, 0-255 of 255.
    pub load: u8,
    /// Pairs request and reply, ping and pong. A `Refuse` with an id answers that request.
    pub request_id: u64,
    /// Bytes of body, at most [`BODY_MAX`].
    pub body_len: u32,
    /// Bytes of payload, at most [`PAYLOAD_MAX`].
    pub payload_len: u32,
    /// CRC-32C of the body.
    pub body_crc: u32,
    /// CRC-32C of the payload; 0 if the receiver checks it.
    pub payload_crc: u32,
}

impl FrameHead {
    /// The head of a frame with this body and without a payload.
    ///
    /// # Panics
    /// If the result would break a rule of the format.
    pub fn new(version: u16, kind: FrameKind, request_id: u64, body: &[u8]) -> Self {
        let head = Self {
            version,
            kind,
            payload_checked_by_receiver: false,
            message_kind: 0,
            load: 0,
            request_id,
            body_len: u32::try_from(body.len()).unwrap_or(u32::MAX),
            payload_len: 0,
            body_crc: crc(body),
            payload_crc: 0,
        };
        if let Err(e) = head.check() {
            panic!("a frame that nobody would take: {e}");
        }
        head
    }

    /// The head of a request or reply.
    ///
    /// # Errors
    /// [`FrameError::BodyLen`], [`FrameError::PayloadLen`]: too long to be sent.
    ///
    /// # Panics
    /// If `kind` is not `Request` or `Reply`, or `request_id` is 0.
    pub fn message<'a>(
        version: u16,
        kind: FrameKind,
        request_id: u64,
        message_kind: u16,
        body: &[u8],
        payload: impl IntoIterator<Item = &'a [u8]>,
        payload_checked_by_receiver: bool,
    ) -> Result<Self, FrameError> {
        assert!(kind.is_message() && request_id != 0, "only requests and replies have messages");
        let (mut payload_len, mut payload_crc) = (0usize, 0);
        for piece in payload {
            payload_len += piece.len();
            if !payload_checked_by_receiver {
                payload_crc = crc_append(payload_crc, piece);
            }
        }
        let head = Self {
            version,
            kind,
            payload_checked_by_receiver,
            message_kind,
            load: 0,
            request_id,
            body_len: u32::try_from(body.len()).unwrap_or(u32::MAX),
            payload_len: u32::try_from(payload_len).unwrap_or(u32::MAX),
            body_crc: crc(body),
            payload_crc,
        };
        head.check()?;
        Ok(head)
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; HEAD_LEN] {
        debug_assert_eq!(self.check(), Ok(()));
        let mut raw = RawHead {
            magic: MAGIC,
            version: self.version.into(),
            kind: self.kind as u8,
            flags: if self.payload_checked_by_receiver { PAYLOAD_CHECKED_BY_RECEIVER } else { 0 },
            message_kind: self.message_kind.into(),
            load: self.load,
            reserved_a: [0; 5],
            request_id: self.request_id.into(),
            body_len: self.body_len.into(),
            payload_len: self.payload_len.into(),
            body_crc: self.body_crc.into(),
            payload_crc: self.payload_crc.into(),
            reserved_b: [0; 20],
            head_crc: 0.into(),
        };
        raw.head_crc = crc(&raw.as_bytes()[..HEAD_LEN - 4]).into();
        zerocopy::transmute!(raw)
    }

    /// Checks all that can be checked without body and payload.
    ///
    /// # Errors
    /// What is wrong first, in this order: magic, head CRC, then the fields.
    pub fn decode(bytes: &[u8; HEAD_LEN]) -> Result<Self, FrameError> {
        let raw: &RawHead = zerocopy::transmute_ref!(bytes);
        if raw.magic != MAGIC {
            return Err(FrameError::Magic(raw.magic));
        }
        let (stored, computed) = (raw.head_crc.get(), crc(&bytes[..HEAD_LEN - 4]));
        if stored != computed {
            return Err(FrameError::HeadCrc { stored, computed });
        }
        let kind = FrameKind::from_code(raw.kind).ok_or(FrameError::Kind(raw.kind))?;
        if raw.flags & !PAYLOAD_CHECKED_BY_RECEIVER != 0 {
            return Err(FrameError::Flags(raw.flags));
        }
        if raw.reserved_a != [0; 5] || raw.reserved_b != [0; 20] {
            return Err(FrameError::NotZero("reserved"));
        }
        let head = Self {
            version: raw.version.get(),
            kind,
            payload_checked_by_receiver: raw.flags & PAYLOAD_CHECKED_BY_RECEIVER != 0,
            message_kind: raw.message_kind.get(),
            load: raw.load,
            request_id: raw.request_id.get(),
            body_len: raw.body_len.get(),
            payload_len: raw.payload_len.get(),
            body_crc: raw.body_crc.get(),
            payload_crc: raw.payload_crc.get(),
        };
        head.check()?;
        Ok(head)
    }

    fn check(&self) -> Result<(), FrameError> {
        let (kind, body_len) = (self.kind, self.body_len as usize);
        let spoken = if kind.is_handshake() {
            self.version == VERSION_HANDSHAKE
        } else {
            (VERSION_MIN..=VERSION_MAX).contains(&self.version)
        };
        if !spoken {
            return Err(FrameError::Version(self.version));
        }
        let body_fits = match kind {
            FrameKind::Hello | FrameKind::Welcome => body_len == size_of::<RawHello>(),
            FrameKind::Refuse | FrameKind::Goodbye => body_len <= TEXT_MAX,
            FrameKind::Request | FrameKind::Reply => self.body_len <= BODY_MAX,
            FrameKind::Ping | FrameKind::Pong => body_len == 0,
        };
        if !body_fits {
            return Err(FrameError::BodyLen(self.body_len));
        }
        let payload_max = if kind.is_message() { PAYLOAD_MAX } else { 0 };
        if self.payload_len > payload_max {
            return Err(FrameError::PayloadLen(self.payload_len));
        }
        if self.payload_checked_by_receiver && !kind.is_message() {
            return Err(FrameError::Flags(PAYLOAD_CHECKED_BY_RECEIVER));
        }
        if self.payload_checked_by_receiver && self.payload_crc != 0 {
            return Err(FrameError::NotZero("payload_crc"));
        }
        if self.message_kind != 0 && !kind.is_message() {
            return Err(FrameError::NotZero("message_kind"));
        }
        match kind {
            FrameKind::Hello | FrameKind::Welcome if self.request_id != 0 => {
                Err(FrameError::NotZero("request_id"))
            }
            FrameKind::Request | FrameKind::Reply if self.request_id == 0 => {
                Err(FrameError::NotZero("request_id of 0"))
            }
            FrameKind::Goodbye if self.request_id > FOR_GOOD => {
                Err(FrameError::NotZero("request_id"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that this body and this payload are the ones the head was made for.
    ///
    /// # Errors
    /// A length or a CRC that does not match. The CRC of a payload that the service checks is
    /// not looked at.
    pub fn verify<'a>(
        &self,
        body: &[u8],
        payload: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), FrameError> {
        if body.len() != self.body_len as usize {
            return Err(FrameError::BodyLen(u32::try_from(body.len()).unwrap_or(u32::MAX)));
        }
        let (stored, computed) = (self.body_crc, crc(body));
        if stored != computed {
            return Err(FrameError::BodyCrc { stored, computed });
        }
        let (mut len, mut computed) = (0, 0);
        for piece in payload {
            len += piece.len();
            if !self.payload_checked_by_receiver {
                computed = crc_append(computed, piece);
            }
        }
        if len != self.payload_len as usize {
            return Err(FrameError::PayloadLen(u32::try_from(len).unwrap_or(u32::MAX)));
        }
        if computed != self.payload_crc {
            return Err(FrameError::PayloadCrc { stored: self.payload_crc, computed });
        }
        Ok(())
    }
}

/// The body of `Hello` and `Welcome` as it is on the wire. Never changes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHello {
    /// The oldest version the sender speaks; in a `Welcome` the chosen one.
    version_min: U16,
    /// The newest version the sender speaks; in a `Welcome` the chosen one.
    version_max: U16,
    /// Which of the connections between the two this is.
    lane: u8,
    /// The sender's shard.
    from_shard: u8,
    /// The shard that the sender believes to be talking to.
    to_shard: u8,
    /// Zero.
    reserved_a: u8,
    /// The sender's cluster.
    cluster: U64,
    /// The sender.
    from: U64,
    /// Who the sender believes to be talking to.
    to: U64,
    /// This life of the sender.
    incarnation: U64,
    /// What the sender offers; in a `Welcome` what both offer.
    features: U64,
    /// Requests that may be unanswered at once; 0 in a `Hello`.
    window_requests: U32,
    /// Zero.
    reserved_b: U32,
    /// Bytes that unanswered requests and their replies may have together; 0 in a `Hello`.
    window_bytes: U64,
    /// The sender's name, for people; padded with zeros.
    name: [u8; NAME_MAX + 1],
}

const _: () = {
    assert!(size_of::<RawHello>() == 128 && align_of::<RawHello>() == 1);
    assert!(std::mem::offset_of!(RawHello, cluster) == 8);
    assert!(std::mem::offset_of!(RawHello, incarnation) == 32);
    assert!(std::mem::offset_of!(RawHello, window_requests) == 48);
    assert!(std::mem::offset_of!(RawHello, window_bytes) == 56);
    assert!(std::mem::offset_of!(RawHello, name) == 64);
};

/// What both sides of a connection say of themselves before anything else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The oldest version the sender speaks; in a `Welcome` the chosen one.
    pub version_min: u16,
    /// The newest version the sender speaks; in a `Welcome` the chosen one.
    pub version_max: u16,
    /// The code of the lane.
    pub lane: u8,
    /// The sender's cluster.
    pub cluster: ClusterId,
    /// The sender.
    pub from: Addr,
    /// Who the sender believes to be talking to.
    pub to: Addr,
    /// This life of the sender.
    pub incarnation: Incarnation,
    /// What the sender offers; in a `Welcome` what both offer. Unknown ones are not an error.
    pub features: u64,
    /// Requests that may be unanswered at once; 0 in a `Hello`.
    pub window_requests: u32,
    /// Bytes that unanswered requests and their replies may have together; 0 in a `Hello`.
    pub window_bytes: u64,
    /// The sender's name, for people; what is longer than [`NAME_MAX`] bytes is cut when encoded.
    pub name: String,
}

impl Hello {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.name.len().min(NAME_MAX);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        let mut name = [0; NAME_MAX + 1];
        name[..end].copy_from_slice(&self.name.as_bytes()[..end]);
        let raw = RawHello {
            version_min: self.version_min.into(),
            version_max: self.version_max.into(),
            lane: self.lane,
            from_shard: self.from.shard,
            to_shard: self.to.shard,
            reserved_a: 0,
            cluster: self.cluster.0.into(),
            from: self.from.host.0.into(),
            to: self.to.host.0.into(),
            incarnation: self.incarnation.0.into(),
            features: self.features.into(),
            window_requests: self.window_requests.into(),
            reserved_b: 0.into(),
            window_bytes: self.window_bytes.into(),
            name,
        };
        raw.as_bytes().to_vec()
    }

    /// Reads the body of a `Hello` or `Welcome` whose CRC has been checked.
    ///
    /// # Errors
    /// [`FrameError::BodyLen`], or [`FrameError::NotZero`] for a reserved field or a name that is
    /// not UTF-8.
    pub fn decode(body: &[u8]) -> Result<Self, FrameError> {
        let raw = RawHello::ref_from_bytes(body)
            .map_err(|_| FrameError::BodyLen(u32::try_from(body.len()).unwrap_or(u32::MAX)))?;
        if raw.reserved_a != 0 || raw.reserved_b.get() != 0 {
            return Err(FrameError::NotZero("reserved"));
        }
        let end = raw.name.iter().position(|&b| b == 0).unwrap_or(raw.name.len());
        let (name, padding) = raw.name.split_at(end);
        if padding.is_empty() || padding.iter().any(|&b| b != 0) {
            return Err(FrameError::NotZero("name padding"));
        }
        let name = str::from_utf8(name).map_err(|_| FrameError::NotZero("name"))?;
        Ok(Self {
            version_min: raw.version_min.get(),
            version_max: raw.version_max.get(),
            lane: raw.lane,
            cluster: ClusterId(raw.cluster.get()),
            from: Addr { host: HostId(raw.from.get()), shard: raw.from_shard },
            to: Addr { host: HostId(raw.to.get()), shard: raw.to_shard },
            incarnation: Incarnation(raw.incarnation.get()),
            features: raw.features.get(),
            window_requests: raw.window_requests.get(),
            window_bytes: raw.window_bytes.get(),
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BODY_MAX, FOR_GOOD, FrameError, FrameHead, FrameKind, HEAD_LEN, Hello, PAYLOAD_MAX,
        RawHead, VERSION_MAX,
    };
    use crate::checksum::crc;
    use crate::id::{Addr, ClusterId, HostId, Incarnation};
    use zerocopy::{FromBytes, IntoBytes};

    const GOLDEN: &str = include_str!("../golden/frame.v3.hex");

    fn hex(bytes: &[u8]) -> String {
        let line = |l: &[u8]| l.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
        bytes.chunks(16).map(line).collect::<Vec<_>>().join("\n")
    }

    fn hello() -> Hello {
        Hello {
            version_min: 1,
            version_max: 1,
            lane: 2,
            cluster: ClusterId(0x1111_2222_3333_4444),
            from: HostId(0x5555_6666_7777_8888).into(),
            to: HostId(0x9999_aaaa_bbbb_cccc).into(),
            incarnation: Incarnation(0xdddd_eeee_ffff_0000),
            features: 5,
            window_requests: 1024,
            window_bytes: 64 << 20,
            name: "host-b".into(),
        }
    }

    fn request(checked: bool) -> (FrameHead, Vec<u8>, Vec<u8>) {
        let (body, payload) = (b"body".to_vec(), vec![7; 4096]);
        let pieces = [&payload[..1000], &payload[1000..]];
        let mut head = FrameHead::message(
            VERSION_MAX,
            FrameKind::Request,
            0x0102_0304,
            9,
            &body,
            pieces,
            checked,
        )
        .unwrap();
        head.load = 200;
        (head, body, payload)
    }

    #[test]
    fn the_bytes_of_version_3_never_change() {
        let hello = hello().encode();
        let made = [
            &request(false).0.encode()[..],
            &request(true).0.encode(),
            &FrameHead::new(0, FrameKind::Hello, 0, &hello).encode(),
            &hello,
        ];
        let made: Vec<String> = made.iter().map(|bytes| hex(bytes)).collect();
        assert_eq!(made.join("\n\n"), GOLDEN.trim_end());
    }

    #[test]
    fn heads_and_hellos_come_back_as_they_were() {
        for checked in [false, true] {
            let (head, body, payload) = request(checked);
            assert_eq!(FrameHead::decode(&head.encode()), Ok(head));
            assert_eq!(head.verify(&body, [&payload[..]]), Ok(()));
        }
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
        let sharded = Addr { shard: 3, ..hello().from };
        let sharded = Hello { from: sharded, to: Addr { shard: 15, ..hello().to }, ..hello() };
        assert_eq!(Hello::decode(&sharded.encode()), Ok(sharded));
        let long = Hello { name: "\u{e9}".repeat(40), ..hello() };
        assert_eq!(Hello::decode(&long.encode()).unwrap().name, "\u{e9}".repeat(31));
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_head_is_refused() {
        let good = request(false).0.encode();
        for bit in 0..HEAD_LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHead::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_flipped_bit_in_body_or_payload_is_refused_unless_the_service_checks_it() {
        let (head, body, payload) = request(false);
        let (mut bad_body, mut bad_payload) = (body.clone(), payload.clone());
        bad_body[0] ^= 1;
        bad_payload[4095] ^= 128;
        assert!(matches!(head.verify(&bad_body, [&payload[..]]), Err(FrameError::BodyCrc { .. })));
        assert!(matches!(
            head.verify(&body, [&bad_payload[..]]),
            Err(FrameError::PayloadCrc { .. })
        ));
        assert_eq!(head.verify(&body, [&payload[1..]]), Err(FrameError::PayloadLen(4095)));
        assert_eq!(head.verify(&body[1..], [&payload[..]]), Err(FrameError::BodyLen(3)));
        let (head, ..) = request(true);
        assert_eq!(head.verify(&body, [&bad_payload[..]]), Ok(()));
        assert_eq!(head.verify(&body, [&payload[1..]]), Err(FrameError::PayloadLen(4095)));
    }

    /// A head with one field changed and its CRC made right again.
    fn forged(head: FrameHead, change: impl FnOnce(&mut RawHead)) -> Result<FrameHead, FrameError> {
        let mut bytes = head.encode();
        let raw = RawHead::mut_from_bytes(&mut bytes).unwrap();
        change(raw);
        raw.head_crc = crc(&raw.as_bytes()[..HEAD_LEN - 4]).into();
        FrameHead::decode(&bytes)
    }

    #[test]
    fn what_is_not_known_is_refused_even_with_a_right_crc() {
        let (request, ..) = request(false);
        let ping = FrameHead::new(VERSION_MAX, FrameKind::Ping, 3, &[]);
        let body = hello().encode();
        let greet = FrameHead::new(0, FrameKind::Hello, 0, &body);
        let bye = FrameHead::new(VERSION_MAX, FrameKind::Goodbye, FOR_GOOD, &[]);
        let cases = [
            (forged(request, |h| h.magic[0] = b'X'), FrameError::Magic(*b"XTLf")),
            (
                forged(request, |h| h.version = (VERSION_MAX + 1).into()),
                FrameError::Version(VERSION_MAX + 1),
            ),
            (forged(request, |h| h.version = 0.into()), FrameError::Version(0)),
            (forged(greet, |h| h.version = 2.into()), FrameError::Version(2)),
            (forged(request, |h| h.kind = 0), FrameError::Kind(0)),
            (forged(request, |h| h.kind = 9), FrameError::Kind(9)),
            (forged(request, |h| h.flags = 2), FrameError::Flags(2)),
            (forged(ping, |h| h.flags = 1), FrameError::Flags(1)),
            (forged(request, |h| h.flags = 1), FrameError::NotZero("payload_crc")),
            (forged(request, |h| h.reserved_a[4] = 1), FrameError::NotZero("reserved")),
            (forged(request, |h| h.reserved_b[0] = 1), FrameError::NotZero("reserved")),
            (
                forged(request, |h| h.body_len = (BODY_MAX + 1).into()),
                FrameError::BodyLen(BODY_MAX + 1),
            ),
            (forged(ping, |h| h.body_len = 1.into()), FrameError::BodyLen(1)),
            (forged(greet, |h| h.body_len = 127.into()), FrameError::BodyLen(127)),
            (
                forged(request, |h| h.payload_len = (PAYLOAD_MAX + 1).into()),
                FrameError::PayloadLen(PAYLOAD_MAX + 1),
            ),
            (forged(ping, |h| h.payload_len = 1.into()), FrameError::PayloadLen(1)),
            (forged(ping, |h| h.message_kind = 1.into()), FrameError::NotZero("message_kind")),
            (forged(greet, |h| h.request_id = 1.into()), FrameError::NotZero("request_id")),
            (forged(bye, |h| h.request_id = 2.into()), FrameError::NotZero("request_id")),
            (forged(request, |h| h.request_id = 0.into()), FrameError::NotZero("request_id of 0")),
        ];
        for (found, expected) in cases {
            assert_eq!(found, Err(expected));
        }
        let mut bad = body.clone();
        bad[7] = 1;
        assert_eq!(Hello::decode(&bad), Err(FrameError::NotZero("reserved")));
        let mut bad = body.clone();
        bad[127] = b'x';
        assert_eq!(Hello::decode(&bad), Err(FrameError::NotZero("name padding")));
        assert_eq!(Hello::decode(&body[1..]), Err(FrameError::BodyLen(127)));
    }

    #[test]
    fn a_message_that_is_too_long_is_not_made() {
        let long = vec![0; BODY_MAX as usize + 1];
        assert_eq!(
            FrameHead::message(VERSION_MAX, FrameKind::Reply, 1, 1, &long, [], false),
            Err(FrameError::BodyLen(BODY_MAX + 1))
        );
        let half = vec![0; PAYLOAD_MAX as usize / 2 + 1];
        assert_eq!(
            FrameHead::message(VERSION_MAX, FrameKind::Reply, 1, 1, &[], [&half[..], &half], true),
            Err(FrameError::PayloadLen(PAYLOAD_MAX + 2))
        );
    }
}
