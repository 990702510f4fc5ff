//! Directories that are no journal for this server, and the default one.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::served::Server;
use crate::world::{Folder, inspect, kill, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// Starts a server that cannot start. Returns its exit code and its last words.
fn refused(journal: &Path) -> (Option<i32>, String) {
    let output = Command::new(PROGRAM)
        .args(["serve", "--listen", "127.0.0.1:0", "--door", "off", "--journal"])
        .arg(journal)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_directory_that_cannot_be_used_is_named_and_the_server_does_not_start() {
    let folder = Folder::new("refused");
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let open = folder.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o755)).unwrap();
    let link = folder.path().join("link");
    symlink(&open, &link).unwrap();
    let server = folder.serve(&[]);
    let used = folder.journal();
    for (path, expected) in [
        (file.as_path(), "file"),
        (&open, "chmod 700"),
        (&link, "link"),
        (Path::new(&used), "another process uses the directory"),
        (Path::new("/proc/no/such"), "/proc/no/such"),
    ] {
        let (code, said) = refused(path);
        assert_eq!(code, Some(3), "{path:?}: {said}");
        assert!(said.contains("the journal in") && said.contains(expected), "{path:?}: {said}");
    }
    kill(server);
}

/// Starts a server with the default journal, in this home.
fn by_default(home: &Path) -> Server {
    let mut command = Command::new(PROGRAM);
    command
        .args(["serve", "--log", "json", "--listen", "127.0.0.1:0", "--door", "off"])
        .args(["--idle", "block"])
        .env("HOME", home)
        .env_remove("XDG_STATE_HOME")
        .env_remove("STATE_DIRECTORY");
    Server::spawn(command)
}

#[test]
fn a_server_keeps_by_default_and_a_second_one_goes_without() {
    let folder = Folder::new("default");
    let home = folder.path();
    let server = by_default(home);
    let arguments = || json!({"chunks": 2, "delay_ms": 0});
    let id = run(&server, "slow_data_processor", arguments());
    assert!(home.join(".local/state/streamdoor/shard-00").is_dir());
    // Another one starts, and keeps nothing.
    let second = by_default(home);
    let other = run(&second, "slow_data_processor", arguments());
    kill(second);
    kill(server);
    let server = by_default(home);
    assert_eq!(inspect(&server, &id).0, 200);
    assert_eq!(inspect(&server, &other).0, 404);
}
