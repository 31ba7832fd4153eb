//! CRC-32C of blocks, and how a stored checksum is bound to its place.
//!
//! The CRC of a payload block is computed once, at the front end, and travels with it. What is
//! stored is that CRC xor a mix of (component, block), so that a misdirected write cannot pass
//! (S9 of `docs/store.md`); going from one to the other costs no pass over the data.

use crate::id::ComponentId;
use crate::units::BLOCK_LEN;

/// CRC-32C of `bytes`.
pub fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C of two pieces as if they were one.
pub fn crc_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// CRC-32C of every 4 KiB block of `payload`.
///
/// # Panics
/// If `payload` is not whole blocks.
pub fn block_crcs(payload: &[u8]) -> impl Iterator<Item = u32> + '_ {
    assert!(payload.len().is_multiple_of(BLOCK_LEN), "payload is not whole blocks");
    payload.chunks_exact(BLOCK_LEN).map(crc)
}

/// CRC-32C of a block of zeros.
pub const ZERO_BLOCK_CRC: u32 = 0x98f9_4189;

/// Turns the CRC of a payload into the stored checksum of (component, block), and back: applying
/// it twice gives the first value again.
pub fn bind(crc: u32, component: ComponentId, block: u64) -> u32 {
    // splitmix64's finaliser: every bit of the place reaches every bit of the mask.
    let mut x = component.0 ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    crc ^ (x as u32) ^ ((x >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::{ZERO_BLOCK_CRC, bind, crc};
    use crate::id::ComponentId;

    #[test]
    fn the_polynomial_is_castagnoli() {
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(crc(&[0; 4096]), ZERO_BLOCK_CRC);
    }

    #[test]
    fn a_checksum_bound_to_another_place_does_not_match() {
        let (a, b) = (ComponentId(1), ComponentId(2));
        assert_eq!(bind(bind(7, a, 9), a, 9), 7);
        assert_ne!(bind(7, a, 9), bind(7, b, 9));
        assert_ne!(bind(7, a, 9), bind(7, a, 10));
    }
}
