//! What a daemon tells the service manager that started it (systemd: `Type=notify`,
//! `WatchdogSec=`): that it serves, what it waits for, that it is alive, that it stops.
//!
//! Invariants: `READY=1` is said once, when the daemon serves; `WATCHDOG=1` is said only after a
//! round trip through every thread that clients depend on, so a thread that hangs ends the
//! messages; without a service manager nothing is said, and nothing here can fail.

use std::future::Future;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// How often a daemon that does not serve yet is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Messages within the time after which the service manager takes a silent daemon for dead: one
/// that comes late is not the end.
const BEATS: u32 = 3;

/// The service manager of this process.
pub struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// How often it wants to hear that the daemon is alive, if it does.
    beat_every: Option<Duration>,
}

impl ServiceManager {
    /// The one that the environment names (`NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`).
    pub fn of_environment() -> Option<Self> {
        Self::named(|name| std::env::var_os(name), std::process::id())
    }

    fn named(variable: impl Fn(&str) -> Option<std::ffi::OsString>, pid: u32) -> Option<Self> {
        let name = variable("NOTIFY_SOCKET")?;
        let address = match name.as_bytes() {
            // A name that is not in the file system.
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&name),
        };
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let for_us =
            variable("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(pid.into());
        let silence = number("WATCHDOG_USEC").filter(|&us| for_us && us > 0);
        let beat_every = silence.map(|us| Duration::from_micros(us) / BEATS);
        let socket = UnixDatagram::unbound().ok()?;
        // A service manager that does not read must not stop a host.
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, address: address.ok()?, beat_every })
    }

    /// Says `what`; a service manager that does not listen misses it.
    fn say(&self, what: &str) {
        let _ = self.socket.send_to_addr(what.as_bytes(), &self.address);
    }

    /// Says that the daemon stops.
    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=stopping");
    }

    /// Tells of the daemon for as long as it is polled. `alive` makes a round trip through its
    /// threads; its answer is none when the daemon serves, else what the daemon waits for; an error
    /// says which thread did not answer. It is given up after the time between two messages.
    pub async fn tell<F>(&self, alive: impl Fn() -> F)
    where
        F: Future<Output = Result<Option<String>, String>>,
    {
        let mut said = String::new();
        loop {
            let answer = tokio::time::timeout(LOOK_EVERY * 10, alive()).await;
            match answer.unwrap_or_else(|_| Ok(Some("this host is starting".into()))) {
                Ok(None) => break,
                Ok(Some(phase)) | Err(phase) if phase != said => {
                    self.say(&format!("STATUS={phase}"));
                    said = phase;
                }
                _ => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.say("READY=1\nSTATUS=serving");
        let Some(beat_every) = self.beat_every else { return };
        loop {
            match tokio::time::timeout(beat_every, alive()).await {
                Ok(Ok(_)) => self.say("WATCHDOG=1"),
                Ok(Err(why)) => tracing::warn!("the service manager is not told of life: {why}"),
                Err(_) => tracing::warn!(
                    "the service manager is not told of life: a thread did not answer for {} s",
                    beat_every.as_secs()
                ),
            }
            tokio::time::sleep(beat_every).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ServiceManager;
    use std::cell::Cell;
    use std::ffi::OsString;
    use std::os::unix::net::UnixDatagram;
    use std::path::Path;
    use std::time::Duration;

    /// A service manager at `path` and the daemon's end of it; the watchdog is `us`.
    fn pair(path: &Path, us: &str, pid: &str) -> (UnixDatagram, ServiceManager) {
        let manager = UnixDatagram::bind(path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let variable = |name: &str| match name {
            "NOTIFY_SOCKET" => Some(path.as_os_str().to_owned()),
            "WATCHDOG_USEC" => Some(OsString::from(us)),
            "WATCHDOG_PID" => Some(OsString::from(pid)),
            _ => None,
        };
        (manager, ServiceManager::named(variable, 7).expect("a socket is named"))
    }

    fn heard(manager: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 256];
        let mut all = Vec::new();
        while let Ok(len) = manager.recv(&mut buffer) {
            all.push(String::from_utf8(buffer[..len].to_vec()).unwrap());
        }
        all
    }

    #[test]
    fn a_thread_that_hangs_ends_the_signs_of_life() {
        let dir = tempfile::tempdir().unwrap();
        let (manager, daemon) = pair(&dir.path().join("notify"), "3000000", "7");
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        let phase = Cell::new(Ok(Some("this host waits for the directory")));
        let hangs = Cell::new(false);
        let alive = || async {
            if hangs.get() {
                std::future::pending::<()>().await;
            }
            phase.get().map(|phase| phase.map(str::to_owned)).map_err(str::to_owned)
        };
        runtime.block_on(async {
            let mut telling = std::pin::pin!(daemon.tell(alive));
            let mut pass = async |ms| {
                let _ = tokio::time::timeout(Duration::from_millis(ms), telling.as_mut()).await;
                heard(&manager)
            };
            assert_eq!(pass(5_000).await, ["STATUS=this host waits for the directory"]);
            phase.set(Ok(None));
            let said = pass(3_150).await;
            assert_eq!(said[0], "READY=1\nSTATUS=serving");
            assert_eq!(said[1..], ["WATCHDOG=1"; 4], "at once, then three in the watchdog's time");
            hangs.set(true);
            pass(1_000).await;
            assert_eq!(pass(60_000).await, [""; 0]);
            hangs.set(false);
            phase.set(Err("shard 1 has ended"));
            assert_eq!(pass(60_000).await, [""; 0]);
            phase.set(Ok(None));
            pass(1_000).await;
            assert_eq!(pass(3_000).await.len(), 3);
        });
        daemon.stopping();
        assert_eq!(heard(&manager), ["STOPPING=1\nSTATUS=stopping"]);
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_ours_and_no_socket_is_no_manager() {
        let dir = tempfile::tempdir().unwrap();
        let every = |us, pid| {
            let path = dir.path().join(format!("notify-{us}-{pid}"));
            pair(&path, us, pid).1.beat_every
        };
        assert_eq!(every("30000000", "7"), Some(Duration::from_secs(10)));
        assert_eq!([every("30000000", "8"), every("0", "7"), every("x", "7")], [None; 3]);
        assert!(ServiceManager::named(|_| None, 7).is_none());
    }

    #[test]
    fn a_socket_may_be_a_name_that_is_no_file() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let name = format!("atoll-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_nonblocking(true).unwrap();
        let named = |variable: &str| {
            (variable == "NOTIFY_SOCKET").then(|| OsString::from(format!("@{name}")))
        };
        ServiceManager::named(named, 7).unwrap().stopping();
        assert_eq!(heard(&manager), ["STOPPING=1\nSTATUS=stopping"]);
    }
}
