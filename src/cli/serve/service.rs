//! The protocol of systemd and of other service managers: states (sd_notify(3)), the watchdog
//! (sd_watchdog_enabled(3)) and inherited sockets (sd_listen_fds(3)).

use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::sync::Arc;
use std::time::Duration;

use streamdoor::limits::LISTENERS_MAX;
use streamdoor::reactor::{Clock, ListenAddress};
use streamdoor::server::Renewal;

use super::CliError;

/// The first inherited descriptor (SD_LISTEN_FDS_START).
const FIRST_SOCKET: RawFd = 3;

/// The service manager that has started this process.
#[derive(Clone, Debug)]
pub struct ServiceManager {
    socket: Arc<UnixDatagram>,
}

impl ServiceManager {
    /// Returns the service manager that `NOTIFY_SOCKET` names. `None` if there is none.
    ///
    /// # Errors
    /// If the socket cannot be reached.
    pub fn of_environment() -> Result<Option<ServiceManager>, CliError> {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let connected = ServiceManager::connect(&path);
        connected.map(Some).map_err(|error| {
            CliError::Environment(format!("NOTIFY_SOCKET {}: {error}", path.display()))
        })
    }

    fn connect(path: &OsString) -> io::Result<ServiceManager> {
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        Ok(ServiceManager { socket: Arc::new(socket) })
    }

    /// Tells that the server answers requests.
    pub fn tell_ready(&self) {
        self.tell("READY=1\nSTATUS=serving");
    }

    /// Tells that the server reads its configuration again. [`ServiceManager::tell_ready`] ends it.
    pub fn tell_reloading(&self) {
        let now_us = Clock::now().nanos() / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// Tells that the server is ending.
    pub fn tell_stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=sending what is pending");
    }

    /// Starts a thread that tells that the server is alive, if that is wanted. It does so only
    /// while all living shards answer.
    ///
    /// # Errors
    /// The kernel's error if it cannot make a thread.
    pub fn start_watchdog(&self, renewal: Renewal) -> Result<(), CliError> {
        let Some(interval) = watchdog_interval(|name| std::env::var(name).ok()) else {
            return Ok(());
        };
        let manager = self.clone();
        let watch = move || loop {
            renewal.check();
            manager.tell("WATCHDOG=1");
            std::thread::sleep(interval / 2);
        };
        let spawned = std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch);
        spawned.map(drop).map_err(|error| CliError::Environment(format!("a thread: {error}")))
    }

    /// Sends a message. A manager that does not take it is not waited for.
    fn tell(&self, text: &str) {
        let _ = self.socket.send(text.as_bytes());
    }
}

/// Returns the time after which the manager takes this process for dead, if it watches it.
fn watchdog_interval(variable: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let of_other = variable("WATCHDOG_PID").is_some_and(|pid| pid != process::id().to_string());
    let us: u64 = variable("WATCHDOG_USEC")?.parse().ok().filter(|us| *us > 0)?;
    (!of_other).then_some(Duration::from_micros(us))
}

/// Returns the listening sockets that this process has inherited. `None` if it has none.
///
/// # Errors
/// If the variables are wrong, or a descriptor is no socket.
pub fn inherited_sockets() -> Result<Option<Vec<ListenAddress>>, CliError> {
    sockets_in(|name| std::env::var(name).ok())
}

fn sockets_in(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Vec<ListenAddress>>, CliError> {
    let (Some(pid), Some(count)) = (variable("LISTEN_PID"), variable("LISTEN_FDS")) else {
        return Ok(None);
    };
    if pid != process::id().to_string() {
        return Ok(None); // They were for a parent.
    }
    let listeners_max = LISTENERS_MAX as RawFd;
    let count: RawFd = match count.parse() {
        Ok(0) => return Ok(None),
        Ok(count) if (1..=listeners_max).contains(&count) => count,
        _ => {
            return Err(CliError::Environment(format!(
                "LISTEN_FDS: {count:?} is no number from 0 to {listeners_max}"
            )));
        }
    };
    let addresses: Vec<ListenAddress> =
        (FIRST_SOCKET..FIRST_SOCKET + count).map(ListenAddress::Inherited).collect();
    for address in &addresses {
        address
            .resolve()
            .map_err(|error| CliError::Environment(format!("LISTEN_FDS: {address}: {error}")))?;
    }
    Ok(Some(addresses))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn messages_reach_the_manager_at_a_path_and_at_an_abstract_name() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("streamdoor-notify-{}", process::id()));
        let abstract_name = format!("streamdoor-notify-{}", process::id());
        let _ = std::fs::remove_file(&path);
        let by_path = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        let name = OsString::from(format!("@{abstract_name}"));
        for (manager, socket) in [(path.clone().into(), by_path), (name, by_name)] {
            let manager = ServiceManager::connect(&manager).unwrap();
            manager.tell_ready();
            manager.tell_reloading();
            manager.tell_stopping();
            let mut bytes = [0; 128];
            for expected in ["READY=1\n", "RELOADING=1\nMONOTONIC_USEC=", "STOPPING=1\n"] {
                let length = socket.recv(&mut bytes).unwrap();
                let text = std::str::from_utf8(&bytes[..length]).unwrap();
                assert!(text.starts_with(expected), "{text}");
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert!(ServiceManager::connect(&PathBuf::from("/nowhere/notify").into()).is_err());
    }

    #[test]
    fn the_watchdog_is_for_the_process_that_the_manager_means() {
        let own = process::id().to_string();
        let interval = |us: Option<&str>, pid: Option<&str>| {
            watchdog_interval(|name| {
                let value = if name == "WATCHDOG_USEC" { us } else { pid };
                value.map(str::to_owned)
            })
        };
        assert_eq!(interval(None, None), None);
        assert_eq!(interval(Some("30000000"), None), Some(Duration::from_secs(30)));
        assert_eq!(interval(Some("1000"), Some(&own)), Some(Duration::from_millis(1)));
        assert_eq!(interval(Some("1000"), Some("1")), None);
        assert_eq!(interval(Some("0"), None), None);
        assert_eq!(interval(Some("soon"), None), None);
    }

    #[test]
    fn sockets_are_only_inherited_by_the_process_that_they_are_for() {
        let own = process::id().to_string();
        let sockets = |pid: Option<&str>, count: Option<&str>| {
            sockets_in(|name| {
                let value = if name == "LISTEN_PID" { pid } else { count };
                value.map(str::to_owned)
            })
        };
        assert_eq!(sockets(None, Some("1")).unwrap(), None);
        assert_eq!(sockets(Some("1"), Some("1")).unwrap(), None);
        assert_eq!(sockets(Some(&own), Some("0")).unwrap(), None);
        for wrong in ["-1", "x", "100000"] {
            let error = sockets(Some(&own), Some(wrong)).unwrap_err().to_string();
            assert!(error.contains("LISTEN_FDS"), "{error}");
        }
    }
}
