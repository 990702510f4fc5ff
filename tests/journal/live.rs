//! A journal while it is written, and after its writer was killed.

use serde_json::Value;

use crate::keeper::{payloads, text_of};
use crate::role::Role;
use crate::world::{Folder, code, journal, said, shown};

/// The number of chunks whose payloads an output is.
fn chunks_of(id: u128, output: &[u8]) -> u64 {
    let mut seq = output.iter().filter(|byte| **byte == b'\n').count() as u64;
    while payloads(id, seq).len() > output.len() {
        seq -= 1;
    }
    assert!(payloads(id, seq) == output, "the output is no whole number of chunks");
    seq
}

fn acked(keeper: &mut Role, at_least: u64) -> u64 {
    loop {
        let seq = keeper.hear("acked").parse().unwrap();
        if seq >= at_least {
            return seq;
        }
    }
}

#[test]
fn a_journal_is_read_while_it_is_written_and_after_its_writer_was_killed() {
    let folder = Folder::new("live");
    let mut keeper = Role::play("keeper", &folder.shard(), "1000");
    let mut known = acked(&mut keeper, 200);
    for round in 0..8 {
        let checked = journal("verify", &folder.0, &[]);
        assert_eq!(code(&checked), 0, "round {round}: {}", shown(&checked));
        for id in 1..=2 {
            let output = journal("cat", &folder.0, &[&text_of(id)]);
            assert_eq!((code(&output), said(&output)), (0, String::new()), "round {round}");
            let found = chunks_of(id, &output.stdout);
            assert!(found >= known, "round {round}: {found} of {known}");
        }
        let listed = journal("ls", &folder.0, &["--json"]);
        assert_eq!(code(&listed), 0);
        let lines = String::from_utf8(listed.stdout).unwrap();
        let lines: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        for (line, id) in lines[..2].iter().zip(1..) {
            assert_eq!(line["execution"], text_of(id).as_str());
            assert_eq!(
                (&line["state"], &line["durability"]),
                (&"unfinished".into(), &"synced".into())
            );
            assert!(line["chunks"].as_u64().unwrap() >= known);
            assert_eq!(line["missing"]["corrupt"], 0);
        }
        assert_eq!(lines[2]["executions"], 2);
        known = acked(&mut keeper, known + 100);
    }
    keeper.kill();
    let checked = journal("verify", &folder.0, &[]);
    assert_eq!(code(&checked), 0, "{}", shown(&checked));
    for id in 1..=2 {
        let output = journal("cat", &folder.0, &[&text_of(id)]);
        assert_eq!((code(&output), said(&output)), (0, String::new()));
        assert!(chunks_of(id, &output.stdout) >= known);
        let again = journal("cat", &folder.shard(), &[&text_of(id)]);
        assert!(again.stdout == output.stdout, "a shard's directory is a journal, too");
    }
}

#[test]
fn old_segments_may_go_while_a_journal_is_read() {
    let folder = Folder::new("expiring");
    let mut keeper = Role::play("keeper", &folder.shard(), "3");
    let mut known = acked(&mut keeper, 2_000);
    for round in 0..10 {
        let checked = journal("verify", &folder.0, &[]);
        assert_eq!(code(&checked), 0, "round {round}: {}", shown(&checked));
        let listed = journal("ls", &folder.0, &[]);
        assert_eq!(code(&listed), 0, "{}", shown(&listed));
        let output = journal("cat", &folder.0, &[&text_of(1)]);
        assert_eq!(code(&output), 1, "{}", said(&output));
        assert!(said(&output).contains("chunks 1 to "), "{}", said(&output));
        let is_expired = |line: &str| line.contains("expired");
        assert!(said(&output).lines().all(is_expired), "round {round}: {}", said(&output));
        known = acked(&mut keeper, known + 200);
    }
}
