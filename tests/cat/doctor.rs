//! The findings of `streamdoor doctor`, and their output.

use std::fs::{File, Permissions, create_dir, read_dir, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::test_server::{TestServer, command, said};

fn findings(command: &mut Command) -> (Option<i32>, Value) {
    let output = command.output().unwrap();
    let document = serde_json::from_slice(&output.stdout);
    (output.status.code(), document.unwrap_or_else(|_| panic!("{}", said(&output))))
}

fn levels<'a>(document: &'a Value, subject: &str) -> Vec<&'a str> {
    let all = document["findings"].as_array().unwrap().iter();
    all.filter(|finding| finding["subject"] == subject)
        .map(|finding| finding["level"].as_str().unwrap())
        .collect()
}

#[test]
fn every_finding_says_what_it_means_and_trouble_what_to_do() {
    let (code, document) = findings(&mut command(&["doctor", "--json", "--keep"]));
    assert_eq!(document["ok"], code == Some(0), "{document:#}");
    let subjects = [
        "io_uring",
        "operations",
        "futex_waitv",
        "memfd",
        "noexec_seal",
        "pidfd",
        "psi",
        "cgroup",
        "descriptors",
        "memlock",
        "shm",
        "door",
        "named rings",
    ];
    for subject in subjects {
        assert!(!levels(&document, subject).is_empty(), "{subject}: {document:#}");
    }
    for finding in document["findings"].as_array().unwrap() {
        let text = |name: &str| finding[name].as_str().unwrap_or_default();
        assert!(!text("found").is_empty() && text("means").ends_with('.'), "{finding:#}");
        assert!(finding["level"] != "hindrance" || !text("advice").is_empty(), "{finding:#}");
    }
    let shown = command(&["doctor", "--keep"]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("io_uring") && text.lines().all(|line| line.chars().count() <= 100));
    assert_eq!(shown.status.code(), code);
}

#[test]
fn what_hinders_is_told_with_an_exit_code() {
    let program = command(&["doctor"]).get_program().to_str().unwrap().to_owned();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 100; exec \"$0\" doctor --json --keep", &program]);
    let (code, document) = findings(&mut limited);
    assert_eq!((code, &document["ok"]), (Some(1), &Value::Bool(false)), "{document:#}");
    assert_eq!(levels(&document, "descriptors"), ["hindrance"], "{document:#}");
}

#[test]
fn sockets_are_told_apart() {
    let server = TestServer::start("sockets", &[]);
    let stale = server.folder.join("stale");
    drop(UnixListener::bind(&stale).unwrap());
    let file = server.file("file", b"");
    let look = |path: &str| {
        let (code, document) =
            findings(&mut command(&["doctor", "--json", "--keep", "--door", path]));
        (code == Some(0), levels(&document, "socket").first().map(|level| (*level).to_owned()))
    };
    assert_eq!(look(&server.door()).1.as_deref(), Some("ok"));
    assert_eq!(look(stale.to_str().unwrap()).1.as_deref(), Some("note"));
    assert_eq!(look(file.to_str().unwrap()), (false, Some("hindrance".to_owned())));
    assert_eq!(look("/nonexistent/socket").1, None);
    assert!(stale.exists(), "the next server removes it");
}

/// A directory that is removed when the value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(parent: &Path, name: &str) -> Folder {
        let path = parent.join(format!("sd-doctor-{name}-{}", std::process::id()));
        create_dir(&path).unwrap();
        set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        Folder(path)
    }

    /// Makes a directory in it.
    fn make(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        create_dir(&path).unwrap();
        set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

fn of_journal(folder: &Path) -> Value {
    let mut doctor = command(&["doctor", "--json", "--keep", "--journal"]);
    let (code, document) = findings(doctor.arg(folder));
    assert_eq!(document["ok"], code == Some(0), "{document:#}");
    for finding in document["findings"].as_array().unwrap() {
        assert!(finding["means"].as_str().unwrap().ends_with('.'), "{finding:#}");
        assert!(finding["level"] != "hindrance" || finding["advice"].is_string(), "{finding:#}");
    }
    document
}

/// The finding of the first check of this name.
fn found<'a>(document: &'a Value, subject: &str) -> &'a str {
    let mut all = document["findings"].as_array().unwrap().iter();
    let finding = all.find(|finding| finding["subject"] == subject);
    finding.map_or("", |finding| finding["found"].as_str().unwrap())
}

fn file_count(folder: &Path) -> usize {
    read_dir(folder).unwrap().count()
}

#[test]
fn the_directory_of_a_journal_is_checked_and_stays_as_it_is() {
    let folder = Folder::new(&std::env::temp_dir(), "whole");
    let document = of_journal(&folder.0);
    assert_eq!(levels(&document, "journal"), ["ok"], "{document:#}");
    assert!(found(&document, "journal").contains("mode 0700, of this user"), "{document:#}");
    assert!(found(&document, "journal sync").contains("(p50)"), "{document:#}");
    for subject in ["journal files", "journal space", "journal sync"] {
        assert_eq!(levels(&document, subject).len(), 1, "{subject}: {document:#}");
    }
    assert_eq!(levels(&document, "journal shards").len(), 0);
    assert_eq!(file_count(&folder.0), 0);

    let absent = folder.0.join("absent");
    let document = of_journal(&absent);
    assert_eq!(levels(&document, "journal"), ["ok"], "{document:#}");
    assert!(found(&document, "journal").ends_with("does not exist yet"), "{document:#}");
    assert_eq!((levels(&document, "journal sync").len(), absent.exists()), (1, false));

    // The lock of a shard, which this process holds like a server.
    let shard = folder.make("shard-00", 0o700);
    assert!(found(&of_journal(&folder.0), "journal shards").ends_with("none in use"));
    let lock = File::create(shard.join(".lock")).unwrap();
    assert!(found(&of_journal(&folder.0), "journal shards").ends_with("none in use"));
    lock.lock().unwrap();
    let document = of_journal(&folder.0);
    assert_eq!(found(&document, "journal shards"), "1 shard, 1 in use");
    assert_eq!(file_count(&folder.0), 1);
}

#[test]
fn a_directory_that_no_journal_can_use_hinders() {
    let folder = Folder::new(&std::env::temp_dir(), "wrong");
    let below = folder.0.join("absent").join("journal");
    let file = folder.0.join("file");
    File::create(&file).unwrap();
    for path in [&below, &file, &file.join("journal")] {
        let document = of_journal(path);
        assert_eq!(levels(&document, "journal"), ["hindrance"], "{document:#}");
        assert_eq!(levels(&document, "journal sync").len(), 0);
    }
    let open = folder.make("open", 0o722);
    assert_eq!(levels(&of_journal(&open), "journal"), ["note"]);
    folder.make("shard-00", 0o700);
    folder.make("shard-01", 0o750);
    let document = of_journal(&folder.0);
    assert_eq!(levels(&document, "journal shards"), ["hindrance"], "{document:#}");
    assert!(found(&document, "journal shards").ends_with("shard-01: mode 0750, of this user"));
}

#[test]
fn a_journal_in_memory_is_to_note() {
    let shm = Path::new("/dev/shm");
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    if !mounts.contains(" /dev/shm tmpfs ") {
        println!("not run: /dev/shm is no tmpfs");
        return;
    }
    let folder = Folder::new(shm, "memory");
    let document = of_journal(&folder.0);
    assert_eq!(levels(&document, "journal files"), ["note"], "{document:#}");
    assert_eq!(found(&document, "journal files"), "the file system is tmpfs");
    assert_eq!(levels(&document, "journal disk").len(), 0, "memory has no cache");
    assert_eq!(file_count(&folder.0), 0);
}
