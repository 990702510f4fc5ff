//! The default place of a door: in `$XDG_RUNTIME_DIR`, if only this user has access to it.

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use streamdoor::door::Door;

use crate::test_server::{signal, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// A folder that is removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamdoor-auto-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        Folder(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("streamdoor.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A `streamdoor serve` without an option for its door. It gets only this `XDG_RUNTIME_DIR`.
struct Server {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
}

impl Server {
    fn start(runtime_folder: Option<&Path>, arguments: &[&str]) -> Server {
        let mut command = Command::new(PROGRAM);
        command
            .args(["serve", "--journal", "off", "--log", "json", "--listen", "127.0.0.1:0"])
            .args(arguments);
        command.env_remove("XDG_RUNTIME_DIR").stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some(folder) = runtime_folder {
            command.env("XDG_RUNTIME_DIR", folder);
        }
        let mut child = command.spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        Server { child, log }
    }

    /// Returns the next log record with one of these events.
    fn record(&mut self, events: &[&str]) -> Option<Value> {
        let records = self.log.by_ref().map(|line| serde_json::from_str(&line.unwrap()));
        let mut records = records.map(|record: Result<Value, _>| record.unwrap());
        records.find(|record| events.iter().any(|event| record["event"] == *event))
    }

    /// Asserts that the server has a door at this path, and logs it.
    fn has_door(&mut self, path: &Path) {
        let record = self.record(&["door", "door_not_opened"]).unwrap();
        assert_eq!((&record["event"], &record["path"]), (&"door".into(), &path.to_str().into()));
        assert_eq!(Door::open(path).unwrap().client().unwrap().executions().unwrap().len(), 0);
    }

    /// Asserts that the server has no door, and logs the reason.
    fn has_none(&mut self, why: &str) {
        let record = self.record(&["door", "door_not_opened"]).unwrap();
        assert_eq!(
            (&record["event"], &record["level"]),
            (&"door_not_opened".into(), &"warn".into())
        );
        let reason = record["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{reason}");
        println!("{reason}");
    }

    /// Stops the server with SIGTERM, and returns the rest of its log.
    fn stop(mut self) -> Vec<String> {
        signal(self.child.id(), "TERM");
        let said = self.log.by_ref().map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success());
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_folder_of_ours_alone_has_the_door_as_long_as_the_server_runs() {
    let folder = Folder::new();
    let mut server = Server::start(Some(&folder.0), &[]);
    server.has_door(&folder.socket());
    let found = std::fs::metadata(folder.socket()).unwrap();
    assert_eq!(found.mode() & 0o777, 0o600);
    let mut top = Command::new(PROGRAM); // Clients look there by default.
    top.args(["top", "--once", "--interval", "50ms"]).env("XDG_RUNTIME_DIR", &folder.0);
    let shown = String::from_utf8(top.output().unwrap().stdout).unwrap();
    assert!(shown.contains(folder.socket().to_str().unwrap()), "{shown}");
    server.stop();
    assert!(!folder.socket().exists());
}

#[test]
fn without_such_a_folder_there_is_no_door_and_the_log_says_why() {
    let mut server = Server::start(None, &[]);
    let record = server.record(&["door", "door_not_opened"]).unwrap();
    assert_eq!(record["reason"], "XDG_RUNTIME_DIR is not set");
    assert_eq!(record["level"], "info", "it is no fault of the machine");
    server.stop();
    let folder = Folder::new();
    let mut server = Server::start(Some(&folder.0), &["--door", "off"]);
    assert!(server.record(&["listening"]).is_some());
    assert!(server.stop().iter().all(|line| !line.contains("\"door")));
    assert!(!folder.socket().exists());
    let open = Folder::new();
    for mode in [0o777, 0o770, 0o702] {
        std::fs::set_permissions(&open.0, std::fs::Permissions::from_mode(mode)).unwrap();
        Server::start(Some(&open.0), &[]).has_none("is writable by others");
        assert!(!open.socket().exists());
    }
    let missing = open.0.join("missing");
    Server::start(Some(&missing), &[]).has_none("No such file");
    std::fs::write(&missing, "").unwrap();
    Server::start(Some(&missing), &[]).has_none("not a directory");
    Server::start(Some(Path::new("relative")), &[]).has_none("not an absolute path");
    if rustix::process::geteuid().is_root() {
        let foreign = Folder::new();
        chown(&foreign.0, Some(65_534), None).unwrap();
        Server::start(Some(&foreign.0), &[]).has_none("another user");
        assert!(!foreign.socket().exists());
    } else {
        println!("not run: only root can give a folder away");
    }
}

#[test]
fn what_a_killed_server_left_is_replaced_and_what_a_living_one_has_is_not() {
    let folder = Folder::new();
    let mut first = Server::start(Some(&folder.0), &[]);
    first.has_door(&folder.socket());
    let inode = |path: &Path| std::fs::symlink_metadata(path).unwrap().ino();
    let living = inode(&folder.socket());
    Server::start(Some(&folder.0), &[]).has_none("another program already listens");
    let path = folder.socket();
    let asked_for = Command::new(PROGRAM)
        .args([
            "serve",
            "--journal",
            "off",
            "--listen",
            "127.0.0.1:0",
            "--door",
            path.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    let said = String::from_utf8(asked_for.stderr).unwrap();
    assert!(
        !asked_for.status.success() && said.contains("another program already listens"),
        "{said}"
    );
    assert_eq!(inode(&path), living);
    assert!(Door::open(&path).unwrap().client().unwrap().executions().is_ok());
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    // The listening socket may outlive its process for a moment.
    until("nobody listens", || UnixStream::connect(&path).is_err());
    assert_eq!(inode(&path), living); // It is left,
    let mut second = Server::start(Some(&folder.0), &[]);
    second.has_door(&path); // and replaced.
    second.stop();
    assert!(!path.exists());
}

#[test]
fn what_is_no_socket_stays_as_it_is() {
    let folder = Folder::new();
    let path = folder.socket();
    std::fs::write(&path, "somebody's text").unwrap();
    Server::start(Some(&folder.0), &[]).has_none("not a socket");
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's text");
    let other = folder.0.join("other");
    std::fs::rename(&path, &other).unwrap();
    symlink(&other, &path).unwrap();
    Server::start(Some(&folder.0), &[]).has_none("not a socket");
    assert_eq!(std::fs::read_link(&path).unwrap(), other);
    assert_eq!(std::fs::read(&other).unwrap(), b"somebody's text");
}
