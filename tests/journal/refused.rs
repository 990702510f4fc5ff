//! Directories that are no journal, and executions that are not there.

use std::fs;
use std::process::{Command, Stdio};

use crate::keeper::{filled, text_of};
use crate::world::{Folder, PROGRAM, code, journal, said};

#[test]
fn what_is_no_journal_is_told_with_its_path() {
    let folder = Folder::new("none");
    let file = folder.0.join("file");
    fs::write(&file, "text").unwrap();
    let absent = folder.0.join("absent");
    for action in ["ls", "verify", "cat"] {
        let id = text_of(5);
        let more: &[&str] = if action == "cat" { &[&id] } else { &[] };
        for (path, what) in [
            (&folder.0, "no journal is there: it has no segments"),
            (&absent, "it does not exist"),
            (&file, "it is not a directory"),
        ] {
            let output = journal(action, path, more);
            let expected = format!("streamdoor: {}: {what}\n", path.display());
            assert_eq!((code(&output), said(&output)), (3, expected), "{action}");
        }
    }
}

#[test]
fn a_newer_or_a_foreign_segment_is_refused() {
    let folder = Folder::new("newer");
    filled(&folder.shard());
    let second = &folder.segments()[1];
    let whole = fs::read(second).unwrap();
    for (at, what) in [
        (8, "segment 2 was written by a newer version of this program (format 3)"),
        (20, "segment 2 belongs to another journal"),
    ] {
        let mut bytes = whole.clone();
        bytes[at] ^= 2;
        let sum = crc32c::crc32c(&bytes[..92]);
        bytes[92..96].copy_from_slice(&sum.to_le_bytes());
        fs::write(second, bytes).unwrap();
        let output = journal("verify", &folder.0, &[]);
        assert_eq!(code(&output), 3);
        assert!(said(&output).contains(what), "{}", said(&output));
    }
}

#[test]
fn a_wrong_id_is_told_from_an_unknown_one() {
    let folder = Folder::new("unknown");
    filled(&folder.shard());
    let output = journal("cat", &folder.0, &[&text_of(9)]);
    let expected = format!("the journal has no execution {}", text_of(9));
    assert_eq!(code(&output), 1);
    assert!(said(&output).contains(&expected), "{}", said(&output));
    assert_eq!(code(&journal("cat", &folder.0, &["no-id"])), 2);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let folder = Folder::new("pipe");
    filled(&folder.shard());
    let mut command = Command::new(PROGRAM);
    command.args(["journal", "cat"]).arg(&folder.0).arg(text_of(1));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), said(&output)), (0, String::new()));
}
