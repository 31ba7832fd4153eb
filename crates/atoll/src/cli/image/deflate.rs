//! Whether a deflate stream (RFC 1951) is whole. It has no length of its own: only following every
//! symbol to the end of the last block tells. Nothing is unpacked.

/// Symbols of a code are at most that long, in bits.
const LONGEST: usize = 15;

/// Whether a stream that begins with `bytes` ends within them.
pub fn is_whole(bytes: &[u8]) -> bool {
    Walk { bytes, at: 0 }.stream().is_some()
}

/// None: the bytes are at their end, or mean nothing.
struct Walk<'a> {
    bytes: &'a [u8],
    /// In bits.
    at: usize,
}

/// A canonical Huffman code: how many symbols there are of each length, and the symbols in order.
struct Code {
    counts: [u16; LONGEST + 1],
    symbols: Vec<u16>,
}

impl Code {
    fn new(lengths: &[u8]) -> Self {
        let mut counts = [0; LONGEST + 1];
        for &length in lengths {
            counts[usize::from(length)] += 1;
        }
        let mut symbols: Vec<u16> = (0..lengths.len() as u16).collect();
        symbols.retain(|&symbol| lengths[usize::from(symbol)] > 0);
        symbols.sort_by_key(|&symbol| lengths[usize::from(symbol)]); // stable
        counts[0] = 0;
        Self { counts, symbols }
    }
}

impl Walk<'_> {
    fn stream(&mut self) -> Option<()> {
        loop {
            let last = self.bits(1)? == 1;
            match self.bits(2)? {
                0 => self.stored()?,
                1 => {
                    let mut lengths = [8; 288];
                    lengths[144..256].fill(9);
                    lengths[256..280].fill(7);
                    self.block(&Code::new(&lengths), &Code::new(&[5; 30]))?;
                }
                2 => {
                    let (literals, distances) = self.codes()?;
                    self.block(&literals, &distances)?;
                }
                _ => return None,
            }
            if last {
                return Some(());
            }
        }
    }

    /// The next bits, the lowest first.
    fn bits(&mut self, count: u32) -> Option<u32> {
        let mut value = 0;
        for bit in 0..count {
            let byte = *self.bytes.get(self.at / 8)?;
            value |= u32::from(byte >> (self.at % 8) & 1) << bit;
            self.at += 1;
        }
        Some(value)
    }

    fn stored(&mut self) -> Option<()> {
        self.at = self.at.next_multiple_of(8);
        let (length, inverse) = (self.bits(16)?, self.bits(16)?);
        if length != !inverse & 0xffff {
            return None;
        }
        self.at += length as usize * 8;
        (self.at <= self.bytes.len() * 8).then_some(())
    }

    fn symbol(&mut self, code: &Code) -> Option<u16> {
        let (mut value, mut first, mut index) = (0_i32, 0_i32, 0_i32);
        for &count in &code.counts[1..] {
            value |= self.bits(1)? as i32;
            let count = i32::from(count);
            if value - first < count {
                let at = usize::try_from(index + value - first).ok()?;
                return code.symbols.get(at).copied();
            }
            index += count;
            first = (first + count) << 1;
            value <<= 1;
        }
        None
    }

    /// The codes of a block that brings its own.
    fn codes(&mut self) -> Option<(Code, Code)> {
        const ORDER: [usize; 19] =
            [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
        let literals = self.bits(5)? as usize + 257;
        let distances = self.bits(5)? as usize + 1;
        let used = self.bits(4)? as usize + 4;
        let mut lengths = [0; 19];
        for &at in &ORDER[..used] {
            lengths[at] = self.bits(3)? as u8;
        }
        let code = Code::new(&lengths);
        let mut lengths = Vec::new();
        while lengths.len() < literals + distances {
            let (value, times) = match self.symbol(&code)? {
                16 => (*lengths.last()?, 3 + self.bits(2)?),
                17 => (0, 3 + self.bits(3)?),
                18 => (0, 11 + self.bits(7)?),
                length => (length as u8, 1),
            };
            lengths.extend(std::iter::repeat_n(value, times as usize));
        }
        (lengths.len() == literals + distances).then(|| {
            let (literals, distances) = lengths.split_at(literals);
            (Code::new(literals), Code::new(distances))
        })
    }

    fn block(&mut self, literals: &Code, distances: &Code) -> Option<()> {
        loop {
            match self.symbol(literals)? {
                0..=255 => {}
                256 => return Some(()),
                length @ 257..=285 => {
                    // Bits that follow: none to 264, then one more for each four; none for 285.
                    let extra = if length < 265 || length == 285 { 0 } else { (length - 261) / 4 };
                    self.bits(u32::from(extra))?;
                    let distance = self.symbol(distances)?;
                    self.bits(u32::from(distance / 2).saturating_sub(1))?;
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_whole;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// What gzip makes of `data`, without its header and trailer.
    fn deflate(data: &[u8], level: &str) -> Vec<u8> {
        let mut child = Command::new("gzip")
            .args(["-nc", level])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(data).unwrap();
        let packed = child.wait_with_output().unwrap().stdout;
        packed[10..packed.len() - 8].to_vec()
    }

    #[test]
    fn a_stream_is_whole_with_its_last_byte_and_not_before() {
        let mut noise = 1_u64;
        let mut random = || {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (noise >> 56) as u8
        };
        let dull: Vec<u8> = (0..40_000).map(|_| random() & 3).collect();
        let wild: Vec<u8> = (0..40_000).map(|_| random()).collect();
        let text = include_bytes!("deflate.rs");
        for data in [&b""[..], b"a", b"hello hello hello", &[0; 65536], &dull, &wild, text] {
            for level in ["-1", "-9"] {
                let whole = deflate(data, level);
                assert!(is_whole(&whole), "{} bytes at {level}", data.len());
                assert!(is_whole(&[&whole[..], b"more"].concat()));
                for cut in [1, 2, 3, 50].into_iter().filter(|&cut| cut <= whole.len()) {
                    assert!(!is_whole(&whole[..whole.len() - cut]), "without the last {cut}");
                }
            }
        }
        assert!(!is_whole(&[0xff; 100]));
    }
}
