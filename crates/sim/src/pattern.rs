//! What the workload writes: bytes that say which write they are of and where they belong, so that
//! every byte of every read is judged.
//!
//! Invariant: two sectors have the same bytes only if both are of the same write and place, or
//! both are zeros.

use atoll_world::{Buf, BufMut};

/// The unit of judgement, in bytes.
pub const SECTOR: usize = 512;

/// Which write a sector's bytes are of; 0: zeros.
pub type Tag = u32;

/// Marks the first word of a written sector.
const MAGIC: u64 = 0xa701_15ec_0000_0000;

fn word(tag: Tag, sector: u64, i: u64) -> u64 {
    if i == 0 {
        return MAGIC | u64::from(tag);
    }
    let base = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ sector.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (base ^ (base >> 31)).wrapping_add(i.wrapping_mul(0xd6e8_feb8_6659_fd93))
}

/// `sectors` sectors from `first` on as write `tag` fills them.
pub fn fill(tag: Tag, first: u64, sectors: u32) -> Buf {
    let mut out = BufMut::for_overwrite(sectors as usize * SECTOR);
    for (n, sector) in out.chunks_exact_mut(SECTOR).enumerate() {
        for (i, to) in sector.chunks_exact_mut(8).enumerate() {
            to.copy_from_slice(&word(tag, first + n as u64, i as u64).to_le_bytes());
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
    if bytes.iter().all(|&b| b == 0) {
        return Ok(0);
    }
    let words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes")));
    let mut first = 0;
    for (i, found) in words.enumerate() {
        if i == 0 {
            first = found;
            if found & 0xffff_ffff_0000_0000 != MAGIC {
                return Err(format!("sector {sector}: starts with {found:016x}, of no write"));
            }
        }
        let wanted = word(first as Tag, sector, i as u64);
        if found != wanted {
            return Err(format!(
                "sector {sector}: says it is of write {}, but word {i} is {found:016x} and should \
                 be {wanted:016x}",
                first as Tag
            ));
        }
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
