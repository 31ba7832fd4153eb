//! The clocks of this machine.
//!
//! Time is `CLOCK_BOOTTIME`: it goes on while the machine is suspended, so a lease runs out then
//! too. All shards of a machine share it.

use atoll_world::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Time since the machine was started, suspension included.
pub fn now() -> Nanos {
    let t = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (t.tv_sec.unsigned_abs(), t.tv_nsec.unsigned_abs());
    Nanos(seconds * 1_000_000_000 + nanos)
}

/// Milliseconds since 1970, by the system's calendar.
pub fn unix_ms() -> u64 {
    let t = clock_gettime(ClockId::Realtime);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1000 + t.tv_nsec.unsigned_abs() / 1_000_000
}
