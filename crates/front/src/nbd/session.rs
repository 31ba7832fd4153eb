//! What the bytes of one NBD client mean: bytes in, events and answers out. No I/O, no clock.
//!
//! ```text
//! Greeted --flags--> Options --GO, EXPORT_NAME--> Opening --on_opened--> Transmission
//!                     ^   '--INFO--> Opening --'     (refused)      DISC '--> Ended
//!                     '------------(answered)--------'
//! ```
//!
//! Invariants: at most one option is being answered, and nothing behind it is looked at before;
//! a [`Request`] given out is inside the export, aligned, of an offered kind, and for a write has
//! all its data; a refused request has been answered here; after [`Event::Ended`] nothing more is
//! understood.

use super::codec::{
    self, ContextQuery, Errno, InfoQuery, OptionHead, RequestHead, cmd, export, flag, hello, info,
    opt, rep,
};
use super::inbox::Inbox;
use super::reply::{Failure, Outbox, Replies};
use crate::admission::client::Room;
use crate::limits::{
    LIST_BYTES_MAX, NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, PAYLOAD_BYTES_MAX,
    PAYLOAD_SKIP_BYTES_MAX,
};
use atoll_world::Buf;
use atoll_world::volume::{ExportName, VolumeInfo, ZeroFlags};

/// The NBD protocol with one client, as far as it has come.
pub(super) struct NbdSession {
    inbox: Inbox,
    state: State,
    options_left: u32,
    no_zeroes: bool,
    replies: Replies,
    /// The export for which `base:allocation` was chosen.
    context: Option<String>,
    export: Export,
    /// A request whose data is arriving.
    writing: Option<RequestHead>,
    /// A write that is refused, whose data is arriving: answered after that, since clients take an
    /// answer to what they are still sending for a mistake.
    refused: Option<(RequestHead, Failure)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Greeted,
    Options,
    Opening(Open),
    Listing,
    Transmission,
    Ended,
}

/// What the client was told of the export it uses.
#[derive(Clone, Copy, Debug, Default)]
struct Export {
    size_bytes: u64,
    min_block: u32,
    read_only: bool,
    block_status: bool,
}

/// An export is asked for: find it, then call [`NbdSession::on_opened`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Open {
    pub name: String,
    pub why: Why,
    /// The description is wanted too.
    pub describe: bool,
    option: u32,
    tell_name: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// Only to know its size and the like.
    Look,
    /// To do I/O.
    Use,
}

/// What to do for the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Op {
    /// `whole`: the answer may not be split.
    Read {
        at: u64,
        len: u32,
        whole: bool,
    },
    Write {
        at: u64,
        data: Vec<Buf>,
    },
    Flush,
    Trim {
        at: u64,
        len: u32,
    },
    Zero {
        at: u64,
        len: u32,
        flags: ZeroFlags,
    },
    Cache {
        at: u64,
        len: u32,
    },
    /// `one`: only the first extent.
    Status {
        at: u64,
        len: u32,
        one: bool,
    },
}

/// A request that may be carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub cookie: u64,
    pub op: Op,
    /// Bytes of data it holds until its answer has been sent.
    pub charge: usize,
}

/// How a session ends without the connection breaking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// `DISC` or `ABORT`: as it should be.
    Goodbye,
    /// Against the protocol, beyond an error reply.
    Violation(&'static str),
    /// The export of an `EXPORT_NAME` cannot be opened: closing is the only answer there is.
    NoExport,
}

/// What must happen next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// Nothing until more bytes come.
    More,
    /// The next request needs this many bytes of memory and has to wait.
    Full(usize),
    /// Nothing more is read before [`NbdSession::on_opened`]; said again until then.
    Open(Open),
    /// Nothing more is read before [`NbdSession::on_listed`].
    List,
    /// Export chosen; from here on there are requests.
    Request(Request),
    Ended(End),
}

/// Why an export was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    Unknown,
    Policy(String),
}

impl NbdSession {
    /// A client that has just connected, with the greeting in `out`.
    pub(super) fn new(options_max: u32, out: &mut Outbox) -> Self {
        codec::put_greeting(out.bytes());
        Self {
            inbox: Inbox::new(),
            state: State::Greeted,
            options_left: options_max,
            no_zeroes: false,
            replies: Replies::default(),
            context: None,
            export: Export::default(),
            writing: None,
            refused: None,
        }
    }

    /// Where the next bytes belong; call [`NbdSession::filled`] then.
    pub(super) fn space(&mut self) -> &mut [u8] {
        self.inbox.space()
    }
    /// `count` bytes came.
    pub(super) fn filled(&mut self, count: usize) {
        self.inbox.filled(count);
    }
    /// The form of answers.
    pub(super) fn replies(&self) -> Replies {
        self.replies
    }
    /// The client chose an export.
    pub(super) fn is_transmitting(&self) -> bool {
        self.state == State::Transmission
    }
    /// Bytes of the write whose data is arriving; 0 if none is.
    pub(super) fn arriving(&self) -> usize {
        self.writing.map_or(0, |head| head.len as usize)
    }

    /// Understands as much as has come; answers that need nobody else are put in `out`.
    pub(super) fn next(&mut self, room: Room, out: &mut Outbox) -> Event {
        let mut room = room;
        loop {
            let before = out.replies();
            let event = match self.state {
                State::Greeted => self.on_client_flags(),
                State::Options => self.on_option(out),
                State::Transmission => self.on_request(room, out),
                State::Opening(ref open) => Some(Event::Open(open.clone())),
                State::Listing => Some(Event::More),
                State::Ended => unreachable!("nobody asks after the end"),
            };
            // A refused request is an answer that waits, too.
            room.requests = room.requests.saturating_sub(out.replies() - before);
            if let Some(event) = event {
                match &event {
                    Event::Open(open) => self.state = State::Opening(open.clone()),
                    Event::List => self.state = State::Listing,
                    Event::Ended(_) => self.state = State::Ended,
                    _ => {}
                }
                return event;
            }
        }
    }

    fn on_client_flags(&mut self) -> Option<Event> {
        let Some(&bytes) = self.inbox.head() else { return Some(Event::More) };
        self.inbox.consume(4);
        let flags = codec::decode_client_flags(bytes);
        if flags & !u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES) != 0 {
            return Some(Event::Ended(End::Violation("unknown client flags")));
        }
        self.no_zeroes = flags & u32::from(hello::NO_ZEROES) != 0;
        self.state = State::Options;
        None
    }

    fn on_option(&mut self, out: &mut Outbox) -> Option<Event> {
        let Some(head) = self.inbox.head() else { return Some(Event::More) };
        let Some(head) = OptionHead::decode(head) else {
            return Some(Event::Ended(End::Violation("wrong option magic")));
        };
        if self.options_left == 0 {
            return Some(Event::Ended(End::Violation("too many options")));
        }
        let OptionHead { option, len } = head;
        if len > OPTION_BYTES_MAX {
            self.options_left -= 1;
            self.inbox.consume(OptionHead::BYTES);
            refuse(out, option, rep::ERR_TOO_BIG, "the option's data is longer than 16 KiB");
            if len > OPTION_SKIP_BYTES_MAX || option == opt::EXPORT_NAME {
                return Some(Event::Ended(End::Violation("option longer than 1 MiB")));
            }
            self.inbox.skip(len as usize);
            return None;
        }
        let Some(data) = self.inbox.body(OptionHead::BYTES, len as usize) else {
            return Some(Event::More);
        };
        let event = match option {
            opt::EXPORT_NAME => match codec::name(data) {
                Ok(name) => Some(Event::Open(Open {
                    name: name.to_owned(),
                    why: Why::Use,
                    describe: false,
                    option,
                    tell_name: false,
                })),
                Err(bad) => Some(Event::Ended(End::Violation(bad.message()))),
            },
            opt::ABORT => {
                codec::put_option_reply(out.bytes(), option, rep::ACK, 0);
                Some(Event::Ended(End::Goodbye))
            }
            opt::LIST if data.is_empty() => Some(Event::List),
            opt::STRUCTURED_REPLY if data.is_empty() => {
                self.replies.structured = true;
                codec::put_option_reply(out.bytes(), option, rep::ACK, 0);
                None
            }
            opt::LIST | opt::STRUCTURED_REPLY => {
                refuse(out, option, rep::ERR_INVALID, "this option takes no data");
                None
            }
            opt::INFO | opt::GO => match InfoQuery::decode(data) {
                Ok(query) => Some(Event::Open(Open {
                    name: query.name.to_owned(),
                    why: if option == opt::GO { Why::Use } else { Why::Look },
                    describe: query.wants(info::DESCRIPTION),
                    option,
                    tell_name: query.wants(info::NAME),
                })),
                Err(bad) => {
                    refuse_bad(out, option, bad);
                    None
                }
            },
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                match ContextQuery::decode(data) {
                    Err(bad) => refuse_bad(out, option, bad),
                    Ok(_) if !self.replies.structured => {
                        let why = "structured replies must be negotiated first";
                        refuse(out, option, rep::ERR_INVALID, why);
                    }
                    Ok(query) => {
                        let chosen = put_contexts(out, option, &query);
                        if option == opt::SET_META_CONTEXT {
                            self.context = chosen.then(|| query.name.to_owned());
                        }
                    }
                }
                None
            }
            // STARTTLS and EXTENDED_HEADERS among them.
            _ => {
                refuse(out, option, rep::ERR_UNSUP, "this option is not supported");
                None
            }
        };
        self.options_left -= 1;
        self.inbox.consume(OptionHead::BYTES + len as usize);
        event
    }

    /// The export that [`Event::Open`] asked for was found (with its description, if that was
    /// wanted and there is one), or not.
    pub(super) fn on_opened(
        &mut self,
        found: Result<(VolumeInfo, Option<String>), Refused>,
        out: &mut Outbox,
    ) -> Option<End> {
        let State::Opening(open) = std::mem::replace(&mut self.state, State::Options) else {
            unreachable!("only after Event::Open");
        };
        let Open { name, why, option, tell_name, .. } = open;
        let (volume, description) = match found {
            Ok(found) => found,
            Err(_) if option == opt::EXPORT_NAME => {
                self.state = State::Ended;
                return Some(End::NoExport);
            }
            Err(Refused::Unknown) => {
                let why = format!("there is no export named '{name}'");
                refuse(out, option, rep::ERR_UNKNOWN, codec::shortened(&why, NAME_BYTES_MAX));
                return None;
            }
            Err(Refused::Policy(why)) => {
                refuse(out, option, rep::ERR_POLICY, &why);
                return None;
            }
        };
        let min_block = volume.min_block;
        assert!(min_block.is_power_of_two() && min_block <= 65536, "as the protocol demands");
        let block = u64::from(min_block);
        let size_bytes = volume.size_bytes / block * block;
        let flags = self.transmission_flags(volume.read_only);
        let bytes = out.bytes();
        if option == opt::EXPORT_NAME {
            codec::put64(bytes, size_bytes);
            codec::put16(bytes, flags);
            if !self.no_zeroes {
                bytes.extend_from_slice(&[0; 124]);
            }
        } else {
            codec::put_option_reply(bytes, option, rep::INFO, 12);
            codec::put16(bytes, info::EXPORT);
            codec::put64(bytes, size_bytes);
            codec::put16(bytes, flags);
            if tell_name {
                put_info_text(bytes, option, info::NAME, &name);
            }
            if let Some(description) = description {
                put_info_text(bytes, option, info::DESCRIPTION, &description);
            }
            // Sent unasked as well: whoever understands it then keeps to it.
            codec::put_option_reply(bytes, option, rep::INFO, 14);
            codec::put16(bytes, info::BLOCK_SIZE);
            codec::put32(bytes, min_block);
            codec::put32(bytes, volume.preferred_block.max(min_block));
            codec::put32(bytes, PAYLOAD_BYTES_MAX);
            codec::put_option_reply(bytes, option, rep::ACK, 0);
        }
        if why == Why::Use {
            let block_status = self.context.as_deref() == Some(&*name);
            let read_only = volume.read_only;
            self.export = Export { size_bytes, min_block, read_only, block_status };
            self.state = State::Transmission;
        }
        None
    }

    fn transmission_flags(&self, read_only: bool) -> u16 {
        // Every write is durable when it is answered, and one owner orders them all: any number
        // of connections see the same, so CAN_MULTI_CONN is always true.
        let mut flags = export::HAS_FLAGS
            | export::SEND_FLUSH
            | export::SEND_FUA
            | export::CAN_MULTI_CONN
            | export::SEND_CACHE;
        flags |= if read_only {
            export::READ_ONLY
        } else {
            export::SEND_TRIM | export::SEND_WRITE_ZEROES | export::SEND_FAST_ZERO
        };
        if self.replies.structured {
            flags |= export::SEND_DF;
        }
        flags
    }

    /// The exports that [`Event::List`] asked for; `complete`: these are all.
    pub(super) fn on_listed(&mut self, exports: &[ExportName], complete: bool, out: &mut Outbox) {
        assert_eq!(self.state, State::Listing, "only after Event::List");
        self.state = State::Options;
        let (bytes, option) = (out.bytes(), opt::LIST);
        let from = bytes.len();
        let mut complete = complete;
        for ExportName { name, description } in exports {
            if bytes.len() - from > LIST_BYTES_MAX {
                complete = false;
                break;
            }
            assert!(name.len() <= NAME_BYTES_MAX, "volume names are far shorter");
            let text = codec::shortened(description, NAME_BYTES_MAX);
            codec::put_option_reply(bytes, option, rep::SERVER, 4 + name.len() + text.len());
            codec::put32(bytes, u32::try_from(name.len()).expect("at most 4096"));
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        if complete {
            codec::put_option_reply(bytes, option, rep::ACK, 0);
        } else {
            refuse(out, option, rep::ERR_TOO_BIG, "there are more exports than are listed");
        }
    }

    /// What [`Event::List`] asked for is not known now.
    pub(super) fn on_not_listed(&mut self, why: &str, out: &mut Outbox) {
        assert_eq!(self.state, State::Listing, "only after Event::List");
        self.state = State::Options;
        refuse(out, opt::LIST, rep::ERR_POLICY, why);
    }

    fn on_request(&mut self, room: Room, out: &mut Outbox) -> Option<Event> {
        if let Some(head) = self.writing {
            let Some(data) = self.inbox.data() else { return Some(Event::More) };
            self.writing = None;
            let op = Op::Write { at: head.at, data };
            let charge = head.len as usize;
            return Some(Event::Request(Request { cookie: head.cookie, op, charge }));
        }
        if let Some((head, failure)) = self.refused.take() {
            if self.inbox.head::<0>().is_none() {
                self.refused = Some((head, failure));
                return Some(Event::More);
            }
            self.replies.failed(out, head.cookie, &failure);
            out.count(0);
            return None;
        }
        let Some(head) = self.inbox.head() else { return Some(Event::More) };
        let Some(head) = RequestHead::decode(head) else {
            return Some(Event::Ended(End::Violation("wrong request magic")));
        };
        if head.command == cmd::DISC {
            return Some(Event::Ended(End::Goodbye));
        }
        if room.requests == 0 {
            return Some(Event::Full(0));
        }
        match self.check(&head) {
            Ok(op) => {
                let charge = match head.command {
                    cmd::READ | cmd::WRITE => head.len as usize,
                    _ => 0,
                };
                if charge > room.bytes {
                    return Some(Event::Full(charge));
                }
                self.inbox.consume(RequestHead::BYTES);
                match op {
                    Some(op) => Some(Event::Request(Request { cookie: head.cookie, op, charge })),
                    None => {
                        self.inbox.expect(head.len as usize);
                        self.writing = Some(head);
                        None
                    }
                }
            }
            Err((errno, message)) => {
                self.inbox.consume(RequestHead::BYTES);
                let failure = Failure { errno, message: message.to_owned(), at: None };
                if head.command == cmd::WRITE && head.len <= PAYLOAD_SKIP_BYTES_MAX {
                    self.inbox.skip(head.len as usize);
                    self.refused = Some((head, failure));
                    return None;
                }
                self.replies.failed(out, head.cookie, &failure);
                out.count(0);
                if head.command == cmd::WRITE {
                    return Some(Event::Ended(End::Violation("write longer than 64 MiB")));
                }
                None
            }
        }
    }

    /// What a request asks for, if it may; none for a write, whose data comes next.
    fn check(&self, head: &RequestHead) -> Result<Option<Op>, (Errno, &'static str)> {
        let &RequestHead { flags, command, at, len, .. } = head;
        let invalid = |message| Err((Errno::Invalid, message));
        let allowed = match command {
            cmd::READ if self.replies.structured => flag::FUA | flag::DF,
            cmd::READ | cmd::WRITE | cmd::FLUSH | cmd::TRIM | cmd::CACHE => flag::FUA,
            cmd::WRITE_ZEROES => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
            cmd::BLOCK_STATUS => flag::FUA | flag::REQ_ONE,
            _ => return invalid("unknown command"),
        };
        if flags & !allowed != 0 {
            return invalid("unknown flag for this command");
        }
        if command == cmd::FLUSH {
            let ok = at == 0 && len == 0;
            return if ok { Ok(Some(Op::Flush)) } else { invalid("a flush has no range") };
        }
        let writes = matches!(command, cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES);
        if writes && self.export.read_only {
            return Err((Errno::Perm, "the export is read-only"));
        }
        if command == cmd::BLOCK_STATUS && !self.export.block_status {
            return invalid("no metadata context was negotiated for this export");
        }
        if len == 0 {
            return invalid("the length is zero");
        }
        if matches!(command, cmd::READ | cmd::WRITE) && len > PAYLOAD_BYTES_MAX {
            let whole = command == cmd::READ && flags & flag::DF != 0;
            let errno = if whole { Errno::Overflow } else { Errno::Invalid };
            return Err((errno, "longer than 32 MiB, the largest that is offered"));
        }
        if at.checked_add(u64::from(len)).is_none_or(|end| end > self.export.size_bytes) {
            let grows = matches!(command, cmd::WRITE | cmd::WRITE_ZEROES);
            let errno = if grows { Errno::NoSpace } else { Errno::Invalid };
            return Err((errno, "behind the end of the export"));
        }
        let block = self.export.min_block;
        if !at.is_multiple_of(u64::from(block)) || !len.is_multiple_of(block) {
            return invalid("not a multiple of the smallest block that is offered");
        }
        Ok(Some(match command {
            cmd::READ => Op::Read { at, len, whole: flags & flag::DF != 0 },
            cmd::WRITE => return Ok(None),
            cmd::TRIM => Op::Trim { at, len },
            cmd::CACHE => Op::Cache { at, len },
            cmd::WRITE_ZEROES => {
                let may_unmap = flags & flag::NO_HOLE == 0;
                let fast_only = flags & flag::FAST_ZERO != 0;
                Op::Zero { at, len, flags: ZeroFlags { may_unmap, fast_only } }
            }
            cmd::BLOCK_STATUS => Op::Status { at, len, one: flags & flag::REQ_ONE != 0 },
            _ => unreachable!("unknown commands were refused above"),
        }))
    }
}

fn refuse(out: &mut Outbox, option: u32, reply: u32, message: &str) {
    codec::put_option_reply(out.bytes(), option, reply, message.len());
    out.bytes().extend_from_slice(message.as_bytes());
}

fn refuse_bad(out: &mut Outbox, option: u32, bad: codec::BadOption) {
    let reply = match bad {
        codec::BadOption::TooBig => rep::ERR_TOO_BIG,
        _ => rep::ERR_INVALID,
    };
    refuse(out, option, reply, bad.message());
}

fn put_info_text(bytes: &mut Vec<u8>, option: u32, kind: u16, text: &str) {
    let text = codec::shortened(text, NAME_BYTES_MAX);
    codec::put_option_reply(bytes, option, rep::INFO, 2 + text.len());
    codec::put16(bytes, kind);
    bytes.extend_from_slice(text.as_bytes());
}

/// Answers a query for metadata contexts; true: `base:allocation` is among the answers.
fn put_contexts(out: &mut Outbox, option: u32, query: &ContextQuery<'_>) -> bool {
    let list = option == opt::LIST_META_CONTEXT;
    let found = (list && query.queries.is_empty())
        || query.queries.iter().any(|&q| q == codec::ALLOCATION || (list && q == "base:"));
    let bytes = out.bytes();
    if found {
        let text = codec::ALLOCATION.as_bytes();
        codec::put_option_reply(bytes, option, rep::META_CONTEXT, 4 + text.len());
        codec::put32(bytes, if list { 0 } else { codec::ALLOCATION_ID });
        bytes.extend_from_slice(text);
    }
    codec::put_option_reply(bytes, option, rep::ACK, 0);
    found
}
