//! Bytes of message bodies: little-endian, no padding, everything checked when read.

use atoll_transport::BadMessage;

/// Writes a body.
#[derive(Default)]
pub(crate) struct Enc(pub Vec<u8>);

impl Enc {
    pub fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    pub fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub fn text(&mut self, v: &str) {
        let mut end = v.len().min(4096);
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&v.as_bytes()[..end]);
    }
    pub fn bytes(&mut self, v: &[u8]) {
        self.u32(u32::try_from(v.len()).expect("bodies are at most 1 MiB"));
        self.0.extend_from_slice(v);
    }
    pub fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.u32(u32::try_from(items.len()).expect("lists fit a body"));
        for item in items {
            each(self, item);
        }
    }
}

/// Reads a body.
pub(crate) struct Dec<'a>(pub &'a [u8]);

type Got<T> = Result<T, BadMessage>;

impl Dec<'_> {
    fn take<const N: usize>(&mut self) -> Got<[u8; N]> {
        let (head, tail) =
            self.0.split_first_chunk::<N>().ok_or(BadMessage("body is too short"))?;
        self.0 = tail;
        Ok(*head)
    }
    pub fn u8(&mut self) -> Got<u8> {
        Ok(self.take::<1>()?[0])
    }
    pub fn bool(&mut self) -> Got<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BadMessage("a truth value is neither 0 nor 1")),
        }
    }
    pub fn u16(&mut self) -> Got<u16> {
        Ok(u16::from_le_bytes(self.take()?))
    }
    pub fn u32(&mut self) -> Got<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    pub fn u64(&mut self) -> Got<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    pub fn bytes(&mut self) -> Got<Vec<u8>> {
        let len = self.u32()? as usize;
        if len > self.0.len() {
            return Err(BadMessage("a length is beyond the body"));
        }
        let (head, tail) = self.0.split_at(len);
        self.0 = tail;
        Ok(head.to_vec())
    }
    pub fn text(&mut self) -> Got<String> {
        String::from_utf8(self.bytes()?).map_err(|_| BadMessage("text is not UTF-8"))
    }
    /// A list whose items take at least `item_len_min` bytes each.
    pub fn list<T>(
        &mut self,
        item_len_min: usize,
        mut each: impl FnMut(&mut Self) -> Got<T>,
    ) -> Got<Vec<T>> {
        let count = self.u32()? as usize;
        if count.saturating_mul(item_len_min) > self.0.len() {
            return Err(BadMessage("a count is beyond the body"));
        }
        (0..count).map(|_| each(self)).collect()
    }
    pub fn end(self) -> Got<()> {
        if self.0.is_empty() { Ok(()) } else { Err(BadMessage("bytes after the end of the body")) }
    }
}
