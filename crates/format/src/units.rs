//! Sizes that the whole system agrees on, and the arithmetic between them.

/// The unit of storage, checksum and atomicity, in bytes.
pub const BLOCK: u64 = 4096;
/// [`BLOCK`] as a length in memory.
pub const BLOCK_LEN: usize = BLOCK as usize;
/// The smallest unit a guest may address, in bytes; the owner turns it into whole blocks.
pub const SECTOR: u64 = 512;
/// The unit of allocation, of metadata pages and of striping between mirror legs, in bytes.
pub const CHUNK: u64 = 1 << 20;
/// Blocks in one chunk.
pub const BLOCKS_PER_CHUNK: u32 = (CHUNK / BLOCK) as u32;
/// The largest component, in bytes; larger objects get more legs.
pub const COMPONENT_MAX: u64 = 255 << 30;
/// The largest object, in bytes (62 TiB, as the largest virtual disk of the field).
pub const OBJECT_MAX: u64 = 62 << 40;
/// Why a volume cannot have that size, with a size that it can have if there is a near one.
///
/// # Errors
/// A sentence whose subject is the size, and that size.
pub fn check_object_size(bytes: u64) -> Result<(), (String, Option<u64>)> {
    if bytes == 0 {
        return Err((format!("is 0, and must be at least {BLOCK}"), None));
    }
    if bytes > OBJECT_MAX {
        return Err((
            format!("is {bytes}, and must be at most {OBJECT_MAX} ({})", iec(OBJECT_MAX)),
            None,
        ));
    }
    if !bytes.is_multiple_of(BLOCK) {
        let why = format!("is {bytes}, and must be a multiple of {BLOCK}");
        return Err((why, Some(bytes.next_multiple_of(BLOCK))));
    }
    Ok(())
}

/// Operations of one object that may be in flight at once (S7 of `docs/store.md`).
pub const OPS_IN_FLIGHT_MAX: u64 = 1 << 16;
/// How far above everything seen a new epoch's sequence numbers start (S7 of `docs/store.md`).
pub const SEQ_EPOCH_GAP: u64 = 1 << 17;
/// Sequence numbers are 48 bits wide on disk.
pub const SEQ_MAX: u64 = (1 << 48) - 1;

const _: () = assert!(BLOCKS_PER_CHUNK == 256 && SEQ_EPOCH_GAP >= 2 * OPS_IN_FLIGHT_MAX);

/// Formats a size for people, in IEC units: `4.0 KiB`, `1.5 GiB`.
pub fn iec(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scale = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && scale + 1 < NAMES.len() {
        value /= 1024.0;
        scale += 1;
    }
    if scale == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", NAMES[scale]) }
}

/// Reads a size written by a person: `4096`, `4k`, `10G`, `1.5TiB`; `G` means GiB, as in qemu-img.
///
/// # Errors
/// A sentence that names what was not understood.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        other => {
            return Err(format!(
                "'{text}' is not a size: unit '{other}' is unknown \
                 (use k, M, G, T or KiB, MiB, GiB, TiB)"
            ));
        }
    };
    let bad = || format!("'{text}' is not a size (examples: 4096, 64k, 10G, 1.5TiB)");
    if number.contains('.') {
        let value: f64 = number.parse().map_err(|_| bad())?;
        let bytes = value * (1u64 << shift) as f64;
        if bytes >= u64::MAX as f64 {
            return Err(format!("'{text}' is larger than any size Atoll can express"));
        }
        // What [`iec`] has printed is a size again: such a fraction is no exact number of bytes.
        let unit = if shift >= 20 { BLOCK as f64 } else { 1.0 };
        return Ok(((bytes / unit).round() * unit) as u64);
    }
    let value: u64 = number.parse().map_err(|_| bad())?;
    value
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("'{text}' is larger than any size Atoll can express"))
}

#[cfg(test)]
mod tests {
    use super::{iec, parse_size};

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("4k"), Ok(4096));
        assert_eq!(parse_size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parse_size("62T"), Ok(62 << 40));
        assert_eq!(parse_size("1.5k"), Ok(1536));
        for bytes in [4096, (13 << 30) / 10 / 4096 * 4096, 95_420_416, 3 << 40] {
            let again = parse_size(&iec(bytes)).unwrap();
            assert_eq!((again % 4096, iec(again)), (0, iec(bytes)), "{bytes}");
        }
        for bad in ["", "G", "-1", "10E", "1GB", "99999999999P", "1.2.3k"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(iec(3 << 29), "1.5 GiB");
        assert_eq!(iec(512), "512 B");
    }
}
