//! How deeply the processors of this machine may sleep while a shard is busy.
//!
//! To wake a processor costs whoever wakes it, and the request that waits for it: tens of
//! microseconds from the deep states of a bare machine, up to a hundred in a virtual one. The
//! kernel lets a process bound that (`Documentation/power/pm_qos_interface.rst`): for all
//! processors, as long as a file is open. A shard asks for it when events come in quick
//! succession, and takes it back when they have not for a while: an idle machine saves its power.
//!
//! Invariants: without events nothing is asked of the kernel for longer than two
//! [`CALM_AFTER`]; what was asked ends with the process, however it ends.

use crate::clock::now;
use crate::limits::{BUSY_EVENTS, BUSY_WITHIN, CALM_AFTER, WAKE_BOUND_US};
use crate::timers::sleep_until;
use atoll_world::Nanos;
use atoll_world::sync::Notify;
use std::cell::{Cell, OnceCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Takes a bound in microseconds from whoever has it open.
const QOS: &str = "/dev/cpu_dma_latency";
/// Who puts idle processors to sleep.
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// Any latency will do.
const NO_BOUND: i32 = -1;

#[derive(Default)]
struct CpuLatency {
    qos: OnceCell<Qos>,
    /// Since `began`.
    events: Cell<u32>,
    began: Cell<Nanos>,
    /// When events last came in quick succession.
    busy: Cell<Nanos>,
    bounded: Cell<bool>,
    now_bounded: Notify,
}

struct Qos {
    file: File,
    bound: i32,
}

impl Qos {
    #[expect(clippy::host_endian_bytes, reason = "for the kernel of this machine")]
    fn ask(&self, bound: i32) {
        // What the kernel refuses is as it was: slower, or awake for longer.
        if let Err(error) = (&self.file).write_all(&bound.to_ne_bytes()) {
            tracing::debug!("{QOS}: {error}");
        }
    }
}

thread_local! {
    static CPU_LATENCY: CpuLatency = CpuLatency::default();
}

/// From now on this shard keeps processors from sleeping deeply while it is busy.
///
/// # Errors
/// The kernel offers no bound, or not to this user.
pub fn limit_cpu_latency() -> io::Result<()> {
    // A virtual machine's kernel takes halting, which ends with the hypervisor, for a light
    // sleep: only zero means not to halt.
    let halts = std::fs::read(DRIVER).is_ok_and(|driver| driver.starts_with(b"haltpoll"));
    limit_cpu_latency_by(Path::new(QOS), if halts { 0 } else { WAKE_BOUND_US })
}

fn limit_cpu_latency_by(path: &Path, bound: i32) -> io::Result<()> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let file = OpenOptions::new().write(true).open(path).map_err(named)?;
    CPU_LATENCY.with(|latency| {
        if latency.qos.set(Qos { file, bound }).is_ok() {
            tokio::task::spawn_local(calm_down());
        }
    });
    Ok(())
}

/// A client or a disk has work.
pub(crate) fn event(now: Nanos) {
    CPU_LATENCY.with(|latency| {
        let events = latency.events.get() + 1;
        if events < BUSY_EVENTS {
            return latency.events.set(events);
        }
        latency.events.set(0);
        if now.since(latency.began.replace(now)) > BUSY_WITHIN {
            return;
        }
        latency.busy.set(now);
        if let Some(qos) = latency.qos.get()
            && !latency.bounded.replace(true)
        {
            qos.ask(qos.bound);
            latency.now_bounded.notify_all();
        }
    });
}

/// Takes the bound back whenever the shard is busy no longer. Never ends.
async fn calm_down() {
    loop {
        let bounded = CPU_LATENCY.with(|latency| latency.now_bounded.notified());
        if !CPU_LATENCY.with(|latency| latency.bounded.get()) {
            bounded.await;
        }
        loop {
            let until = CPU_LATENCY.with(|latency| latency.busy.get()) + CALM_AFTER;
            if now() >= until {
                break;
            }
            sleep_until(until).await;
        }
        CPU_LATENCY.with(|latency| {
            latency.bounded.set(false);
            if let Some(qos) = latency.qos.get() {
                qos.ask(NO_BOUND);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{NO_BOUND, event, limit_cpu_latency_by};
    use crate::clock::now;
    use crate::limits::{BUSY_EVENTS, BUSY_WITHIN, CALM_AFTER};
    use crate::shard::Shard;
    use crate::timers::sleep_until;
    use atoll_world::Nanos;
    use std::path::Path;

    /// What the kernel was asked for, one after the other.
    #[expect(clippy::host_endian_bytes, reason = "for the kernel of this machine")]
    fn asked(path: &Path) -> Vec<i32> {
        let bytes = std::fs::read(path).unwrap();
        bytes.chunks(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    async fn sleep(time: Nanos) {
        sleep_until(now() + time).await;
    }

    /// On a thread of its own: it begins as one that asked for nothing.
    fn on_a_shard<F: Future<Output = ()>>(main: impl FnOnce() -> F + Send + 'static) {
        Shard::start("latency", main).unwrap().join().unwrap();
    }

    #[test]
    fn processors_wake_quickly_while_events_come_in_quick_succession_and_not_afterwards() {
        on_a_shard(async || {
            let device = tempfile::NamedTempFile::new().unwrap();
            let path = device.path();
            limit_cpu_latency_by(path, 7).unwrap();
            for busy in 1..=2 {
                (0..2 * BUSY_EVENTS).for_each(|_| event(now()));
                assert_eq!(asked(path), [7, NO_BOUND].repeat(busy)[..2 * busy - 1]);
                while asked(path).len() < 2 * busy {
                    sleep(CALM_AFTER / 4).await;
                }
            }
            assert_eq!(asked(path), [7, NO_BOUND, 7, NO_BOUND]);
        });
    }

    #[test]
    fn a_shard_that_stays_busy_asks_once_and_one_with_rare_events_never() {
        on_a_shard(async || {
            let device = tempfile::NamedTempFile::new().unwrap();
            limit_cpu_latency_by(device.path(), 7).unwrap();
            // Moments of the future: this test waits for none.
            let mut at = now();
            for _ in 0..10 * BUSY_EVENTS {
                at += BUSY_WITHIN / u64::from(BUSY_EVENTS) * 2;
                event(at);
            }
            assert!(asked(device.path()).is_empty());
            (0..100 * BUSY_EVENTS).for_each(|_| event(at));
            assert_eq!(asked(device.path()), [7]);
        });
    }

    #[test]
    fn a_system_without_bounds_is_no_obstacle() {
        on_a_shard(async || {
            let error = limit_cpu_latency_by(Path::new("/nonexistent/device"), 7).unwrap_err();
            assert!(error.to_string().contains("/nonexistent/device"), "{error}");
            (0..3 * BUSY_EVENTS).for_each(|_| event(now()));
        });
    }
}
