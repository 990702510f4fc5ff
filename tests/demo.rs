//! `streamdoor demo` as a user runs it: its output, its errors for bad usage, and a real file that
//! reaches every subscriber whole.
#![cfg(feature = "cli")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use sha2::{Digest, Sha256};
use streamdoor::base::Random;

fn demo(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.arg("demo").args(arguments).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("it prints UTF-8")
}

/// Returns (chunks, missed) of each row of the table.
fn rows(text: &str) -> Vec<(u64, u64)> {
    let table = text.lines().skip_while(|line| !line.starts_with("subscriber ")).skip(1);
    let rows = table.take_while(|line| !line.contains(" delivered in "));
    rows.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[2].parse().unwrap(), words[3].parse().unwrap())
    })
    .collect()
}

#[test]
fn every_chunk_is_received_or_missed_and_the_table_says_so() {
    let output = demo(&["--policy", "drop", "--delay", "1ms", "--chunks", "200"]);
    assert!(output.status.success());
    let text = text(&output);
    let rows = rows(&text);
    assert_eq!(rows.len(), 3, "{text}");
    for (chunks, missed) in rows {
        assert_eq!(chunks + missed, 200, "{text}");
    }
    for word in ["average", "P50", "P95", "P99", "peak memory"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Returns (received, missed) of a subscriber in the last picture of the show.
fn shown(text: &str, name: &str) -> (u64, u64) {
    let mut lines = text.lines().filter(|line| line.contains('|'));
    let line = lines.find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    let numbers = line.rsplit_once('|').unwrap().1.replace(',', "");
    let words: Vec<&str> = numbers.split_whitespace().collect();
    assert_eq!((words[1], words[3]), ("received", "missed"), "{line}");
    (words[0].parse().unwrap(), words[2].parse().unwrap())
}

#[test]
fn without_options_policies_are_compared_and_explained() {
    let output = demo(&[]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(shown(&text, "block "), (400, 0), "{text}");
    for name in ["drop ", "conflate ", "late "] {
        let (received, missed) = shown(&text, name);
        assert_eq!(received + missed, 400, "{text}");
        assert!(received > 0 && missed > 0, "{name}: {text}");
        let mut lines =
            text.lines().skip_while(|line| line.contains('|') || !line.starts_with(name));
        let told = format!("It missed {missed} chunks in ");
        assert!(lines.nth(1).is_some_and(|line| line.trim_start().starts_with(&told)), "{text}");
    }
    assert!(text.contains("Each got one end."), "{text}");
    assert!(!text.contains('\x1b') && text.lines().all(|line| line.chars().count() <= 110));
}

#[test]
fn what_is_not_run_has_no_table() {
    let output = demo(&["--file", "/nonexistent/file"]);
    assert!(!text(&output).contains("sha256"), "{}", text(&output));
}

#[test]
fn under_block_nobody_misses_anything() {
    let arguments = ["--policy", "block", "--chunks", "30", "--delay", "0"];
    let text = text(&demo(&[&arguments[..], &["--process", "0,1ms,2ms"]].concat()));
    assert_eq!(rows(&text), [(30, 0); 3], "{text}");
}

#[test]
fn a_file_reaches_every_subscriber_whole() {
    let path = temporary("file");
    let mut random = Random::new(1);
    let mut bytes = vec![0; 64 << 20];
    random.fill(&mut bytes);
    std::fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
    let digest = Sha256::digest(&bytes);
    let expected: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    for reactor in ["auto", "mio"] {
        let name = path.to_str().unwrap();
        let output = demo(&["--file", name, "--subscribers", "4", "--reactor", reactor]);
        let text = text(&output);
        assert!(output.status.success(), "{reactor}: {text}");
        assert_eq!(text.matches(&expected).count(), 4, "{reactor}: {text}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_can_not_be_read_fails_with_its_name() {
    for (path, problem) in [("/nonexistent/file", "No such file"), ("/", "is a directory")] {
        let output = demo(&["--file", path]);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(path) && error.contains(problem), "{error}");
    }
}

#[test]
fn bad_usage_names_the_option_and_exits_with_2() {
    let cases: [(&[&str], &str); 8] = [
        (&["--chunks", "many"], "--chunks many: must be a number from 0 to"),
        (&["--policy", "polite"], "unknown policy"),
        (&["--subscribers", "0"], "--subscribers 0: must be from 1 to"),
        (&["--subscribers", "1000"], "--subscribers"),
        (&["--max-chunks", "100000"], "limit of 100000 chunks"),
        (&["--chunk-size", "0"], "chunk_size"),
        (&["--frobnicate"], "unknown option --frobnicate"),
        (&["--polcy", "drop"], "unknown option --polcy; did you mean --policy?"),
    ];
    for (arguments, words) in cases {
        let output = demo(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}

#[test]
fn there_is_help_everywhere() {
    let program = env!("CARGO_BIN_EXE_streamdoor");
    for arguments in [&["--help"][..], &["help"], &["demo", "--help"], &["demo", "-h"]] {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success() && text(&output).contains("Usage:"), "{arguments:?}");
    }
    let help = Command::new(program).args(["help", "demo"]).output().unwrap();
    assert_eq!(text(&help), text(&demo(&["--help"])));
    let none = Command::new(program).output().unwrap();
    assert_eq!(none.status.code(), Some(2));
    assert!(none.stdout.is_empty() && String::from_utf8_lossy(&none.stderr).contains("Usage:"));
    let version = |argument| text(&Command::new(program).arg(argument).output().unwrap());
    let first_line = concat!("streamdoor ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(version("--version").starts_with(first_line));
    assert_eq!(version("--version"), version("version"));
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("streamdoor-demo-{name}-{}", std::process::id()))
}
