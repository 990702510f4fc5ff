//! The states that the server tells its service manager, and the watchdog.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use crate::served::Server;

/// A service manager that the server reports to.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(name: &str) -> Manager {
        let name = format!("streamdoor-manager-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        Manager { socket: UnixDatagram::bind(&path).unwrap(), path }
    }

    fn start(&self, variables: &[(&str, &str)]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command.args(["serve", "--journal", "off", "--log", "json", "--listen", "127.0.0.1:0"]);
        command.env("NOTIFY_SOCKET", &self.path).envs(variables.iter().copied());
        Server::spawn(command)
    }

    /// Waits for the next message.
    fn message(&self) -> String {
        let mut bytes = [0; 256];
        let length = self.socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn ready_reloading_and_stopping_come_in_this_order() {
    let manager = Manager::new("states");
    let mut server = manager.start(&[]);
    assert!(manager.message().starts_with("READY=1\n"));
    server.signal(Signal::HUP);
    assert!(manager.message().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert!(manager.message().starts_with("READY=1\n"));
    server.stop();
    assert!(manager.message().starts_with("STOPPING=1\n"));
}

#[test]
fn the_watchdog_is_answered_while_the_server_lives() {
    let manager = Manager::new("watchdog");
    let server = manager.start(&[("WATCHDOG_USEC", "20000")]);
    let mut told_count = 0;
    while told_count < 5 {
        told_count += u32::from(manager.message() == "WATCHDOG=1");
    }
    // A stopped process answers nothing more.
    server.signal(Signal::STOP);
    manager.socket.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    let mut bytes = [0; 64];
    while manager.socket.recv(&mut bytes).is_ok() {}
    server.signal(Signal::CONT);
    manager.socket.set_read_timeout(None).unwrap();
    assert_eq!(manager.message(), "WATCHDOG=1");
}

#[test]
fn a_manager_that_is_not_there_is_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(["serve", "--journal", "off", "--listen", "127.0.0.1:0"]);
    let output = command.env("NOTIFY_SOCKET", "/nowhere/notify").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("NOTIFY_SOCKET /nowhere/notify"), "{error}");
}
