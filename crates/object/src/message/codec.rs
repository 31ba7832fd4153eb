//! Bytes of message bodies: little-endian, no padding, lists counted, everything checked when read.

use atoll_transport::BadMessage;
use atoll_world::Buf;

/// A message that is being written.
#[derive(Default)]
pub(super) struct Enc {
    pub body: Vec<u8>,
    pub payload: Vec<Buf>,
}

/// What is left to read of a message.
pub(super) struct Dec<'a> {
    pub body: &'a [u8],
    pub payload: Vec<Buf>,
}

pub(super) type Got<T> = Result<T, BadMessage>;

/// A value of a message.
pub(super) trait Wire: Sized {
    /// Bytes of body that it takes at least: a count that cannot be true is refused unread.
    const LEN_MIN: usize;

    fn put(self, e: &mut Enc);

    /// # Errors
    /// The bytes are no such value.
    fn get(d: &mut Dec<'_>) -> Got<Self>;
}

impl Enc {
    pub fn bytes(&mut self, v: &[u8]) {
        count(v.len()).put(self);
        self.body.extend_from_slice(v);
    }
}

/// The length of a list as it stands before it.
fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a body is at most 1 MiB")
}

impl Dec<'_> {
    fn take<const N: usize>(&mut self) -> Got<[u8; N]> {
        let (head, tail) =
            self.body.split_first_chunk::<N>().ok_or(BadMessage("body is too short"))?;
        self.body = tail;
        Ok(*head)
    }
    pub fn code(&mut self) -> Got<u8> {
        Ok(self.take::<1>()?[0])
    }
    pub fn bytes(&mut self) -> Got<Vec<u8>> {
        let len = u32::get(self)? as usize;
        if len > self.body.len() {
            return Err(BadMessage("a length is beyond the body"));
        }
        let (head, tail) = self.body.split_at(len);
        self.body = tail;
        Ok(head.to_vec())
    }
    /// A list of values that take at least `len_min` bytes each.
    pub fn list<T>(
        &mut self,
        len_min: usize,
        mut each: impl FnMut(&mut Self) -> Got<T>,
    ) -> Got<Vec<T>> {
        let count = u32::get(self)? as usize;
        if count.saturating_mul(len_min) > self.body.len() {
            return Err(BadMessage("a count is beyond the body"));
        }
        (0..count).map(|_| each(self)).collect()
    }
    pub fn end(self) -> Got<()> {
        if !self.payload.is_empty() {
            return Err(BadMessage("a payload where none belongs"));
        }
        if self.body.is_empty() {
            Ok(())
        } else {
            Err(BadMessage("bytes after the end of the body"))
        }
    }
}

macro_rules! integers {
    ($($type:ty),+) => { $(
        impl Wire for $type {
            const LEN_MIN: usize = size_of::<Self>();

            fn put(self, e: &mut Enc) {
                e.body.extend_from_slice(&self.to_le_bytes());
            }
            fn get(d: &mut Dec<'_>) -> Got<Self> {
                Ok(Self::from_le_bytes(d.take()?))
            }
        }
    )+ };
}
integers!(u16, u32, u64);

impl Wire for bool {
    const LEN_MIN: usize = 1;

    fn put(self, e: &mut Enc) {
        e.body.push(u8::from(self));
    }
    fn get(d: &mut Dec<'_>) -> Got<Self> {
        match d.code()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadMessage("a truth value is neither 0 nor 1")),
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    const LEN_MIN: usize = 1;

    fn put(self, e: &mut Enc) {
        self.is_some().put(e);
        if let Some(value) = self {
            value.put(e);
        }
    }
    fn get(d: &mut Dec<'_>) -> Got<Self> {
        if bool::get(d)? { T::get(d).map(Some) } else { Ok(None) }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    const LEN_MIN: usize = A::LEN_MIN + B::LEN_MIN;

    fn put(self, e: &mut Enc) {
        self.0.put(e);
        self.1.put(e);
    }
    fn get(d: &mut Dec<'_>) -> Got<Self> {
        Ok((A::get(d)?, B::get(d)?))
    }
}

impl<T: Wire> Wire for Vec<T> {
    const LEN_MIN: usize = 4;

    fn put(self, e: &mut Enc) {
        count(self.len()).put(e);
        for value in self {
            value.put(e);
        }
    }
    fn get(d: &mut Dec<'_>) -> Got<Self> {
        d.list(T::LEN_MIN, T::get)
    }
}

/// JSON.
impl Wire for Vec<u8> {
    const LEN_MIN: usize = 4;

    fn put(self, e: &mut Enc) {
        e.bytes(&self);
    }
    fn get(d: &mut Dec<'_>) -> Got<Self> {
        d.bytes()
    }
}

/// The payload.
impl Wire for Vec<Buf> {
    const LEN_MIN: usize = 0;

    fn put(self, e: &mut Enc) {
        assert!(e.payload.is_empty(), "two payloads in a message");
        e.payload = self;
    }
    fn get(d: &mut Dec<'_>) -> Got<Self> {
        Ok(std::mem::take(&mut d.payload))
    }
}

/// Text for people, of which the first 4,096 bytes are sent.
impl Wire for String {
    const LEN_MIN: usize = 4;

    fn put(self, e: &mut Enc) {
        let mut end = self.len().min(4096);
        while !self.is_char_boundary(end) {
            end -= 1;
        }
        e.bytes(&self.as_bytes()[..end]);
    }
    fn get(d: &mut Dec<'_>) -> Got<Self> {
        String::from_utf8(d.bytes()?).map_err(|_| BadMessage("text is not UTF-8"))
    }
}

/// The text of a refusal stays where it was said.
impl Wire for &'static str {
    const LEN_MIN: usize = 0;

    fn put(self, _: &mut Enc) {}
    fn get(_: &mut Dec<'_>) -> Got<Self> {
        Ok("refused by the member")
    }
}
