//! The outcome of executions, from records of their ends that may hold anything.

use serde_json::{Value, json};
use streamdoor::limits::{ERROR_TEXT_BYTES_MAX, JOURNAL_RECORD_BYTES_MAX};

use crate::keeper::{Keeper, text_of};
use crate::world::{Folder, code, journal, shown};

const RESTARTED: &str = "restarted: its process ended before it did";
/// Size of a segment in which the longest record has room.
const RECORD_SEGMENT_BYTES: u32 = 1 << 20;

#[test]
fn the_outcome_is_listed_and_a_hostile_record_breaks_nothing() {
    let folder = Folder::new("ends");
    let long = "\x1b]0;\u{202e}x\u{9b}".repeat(2_000);
    let deep = "[".repeat(30_000);
    let ends: Vec<(Vec<u8>, &str, Option<&str>)> = [
        (json!({"outcome": "completed", "error": null, "exit_code": 0}), "completed", None),
        (json!({"outcome": "failed", "error": "no \"luck\"\n"}), "failed", Some("no \"luck\"\n")),
        (json!({"outcome": "failed", "error": RESTARTED}), "failed", Some(RESTARTED)),
        (json!({"outcome": "cancelled", "exit_signal": 9}), "cancelled", None),
        (json!({"outcome": "timed_out", "error": 7, "more": [1]}), "timed_out", None),
    ]
    .map(|(details, state, error)| (details.to_string().into_bytes(), state, error))
    .into_iter()
    .chain(
        [deep.as_bytes(), b"", b"\xff\x1b[2J", br#"{"outcome":"\u001b[2J"}"#]
            .map(|details| (details.to_vec(), "failed", Some("the record of its end is damaged"))),
    )
    .collect();
    let mut keeper = Keeper::open_with(&folder.shard(), 1_000, RECORD_SEGMENT_BYTES);
    let hostile_id = ends.len() as u128 + 1;
    (1..=hostile_id + 1).for_each(|id| keeper.begin(id));
    keeper.append();
    let running = keeper.running.clone();
    for ((_, name), (details, ..)) in running.iter().zip(&ends) {
        keeper.end(*name, details);
    }
    let details = json!({"outcome": "failed", "error": long}).to_string();
    assert!(details.len() < JOURNAL_RECORD_BYTES_MAX);
    keeper.end(running[ends.len()].1, details.as_bytes());
    keeper.running.clear();
    keeper.rest();

    // In blocks first, then in an index.
    for round in 0..2 {
        let listed = journal("ls", &folder.0, &["--json"]);
        assert_eq!(code(&listed), 0, "{}", shown(&listed));
        let text = String::from_utf8(listed.stdout).unwrap();
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        assert!(!text.contains('\u{202e}'));
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |id: u128| {
            let id = text_of(id);
            lines.iter().find(|line| line["execution"] == id.as_str()).unwrap()
        };
        for (id, (_, state, error)) in (1..).zip(&ends) {
            let line = of(id);
            assert_eq!((&line["state"], &line["error"]), (&json!(state), &json!(error)), "{line}");
        }
        assert_eq!((&of(1)["exit_code"], &of(4)["exit_signal"]), (&json!(0), &json!(9)));
        let error = of(hostile_id)["error"].as_str().unwrap();
        assert!(long.starts_with(error) && error.len() <= ERROR_TEXT_BYTES_MAX);
        // A restart has not ended the last one: this writer is no shard.
        assert_eq!(of(hostile_id + 1)["state"], "unfinished");

        let listed = journal("ls", &folder.0, &[]);
        let text = String::from_utf8(listed.stdout).unwrap();
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        assert!(text.contains(&format!("  {RESTARTED}\n")), "{text}");
        assert!(text.contains("<U+202E>x<U+009B>^[]0;"), "{text}");
        assert!(text.lines().count() == ends.len() + 4, "{text}");
        if round == 0 {
            // It seals what was there.
            drop(Keeper::open_with(&folder.shard(), 1_000, RECORD_SEGMENT_BYTES));
        }
    }
}
