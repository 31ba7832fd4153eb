//! What the workload writes: bytes that say which write they are of and where they belong, so that
//! every byte of every read is judged.
//!
//! Invariant: two sectors have the same bytes only if both are of the same write and place, or
//! both are zeros.

use atoll_world::{Buf, BufMut};

/// The unit of judgement, in bytes.
pub const SECTOR: usize = 512;
const WORDS: usize = SECTOR / 8;
const ZEROS: [u8; SECTOR] = [0; SECTOR];

/// Which write a sector's bytes are of; 0: zeros.
pub type Tag = u32;

/// Marks the first word of a written sector.
const MAGIC: u64 = 0xa701_15ec_0000_0000;

/// What write `tag` leaves in a sector.
fn words(tag: Tag, sector: u64) -> [u64; WORDS] {
    let base = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ sector.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    let base = base ^ (base >> 31);
    let mut words =
        std::array::from_fn(|i| base.wrapping_add((i as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)));
    words[0] = MAGIC | u64::from(tag);
    words
}

/// `sectors` sectors from `first` on as write `tag` fills them.
pub fn fill(tag: Tag, first: u64, sectors: u32) -> Buf {
    let mut out = BufMut::for_overwrite(sectors as usize * SECTOR);
    for (n, sector) in out.chunks_exact_mut(SECTOR).enumerate() {
        let words = words(tag, first + n as u64);
        for (to, word) in sector.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
    out.freeze()
}

/// Which write the bytes at `sector` are of.
///
/// # Errors
/// What is wrong with them, when no write can have made them.
pub fn tag(bytes: &[u8], sector: u64) -> Result<Tag, String> {
    assert_eq!(bytes.len(), SECTOR, "one sector at a time");
    if bytes == ZEROS {
        return Ok(0);
    }
    let found = |i: usize| {
        u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("8 bytes of a sector"))
    };
    let first = found(0);
    if first & 0xffff_ffff_0000_0000 != MAGIC {
        return Err(format!("sector {sector}: starts with {first:016x}, of no write"));
    }
    let wanted = words(first as Tag, sector);
    if let Some(i) = (0..WORDS).find(|&i| found(i) != wanted[i]) {
        return Err(format!(
            "sector {sector}: says it is of write {}, but word {i} is {:016x}, not {:016x}",
            first as Tag,
            found(i),
            wanted[i]
        ));
    }
    Ok(first as Tag)
}

#[cfg(test)]
mod tests {
    use super::{SECTOR, fill, tag};

    #[test]
    fn every_changed_byte_is_noticed_and_so_is_a_wrong_place() {
        let bytes = fill(7, 100, 2);
        assert_eq!(tag(&bytes[..SECTOR], 100), Ok(7));
        assert_eq!(tag(&bytes[SECTOR..], 101), Ok(7));
        assert!(tag(&bytes[..SECTOR], 101).is_err());
        for i in 0..SECTOR {
            let mut copy = bytes[..SECTOR].to_vec();
            copy[i] ^= 1;
            assert!(tag(&copy, 100).is_err(), "byte {i}");
        }
        assert_eq!(tag(&[0; SECTOR], 5), Ok(0));
        let mut torn = bytes[..SECTOR].to_vec();
        torn[256..].fill(0);
        assert!(tag(&torn, 100).is_err());
    }
}
