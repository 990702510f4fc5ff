//! Tests of the content of a frame.

use streamdoor::api::Links;
use streamdoor::base::Instant;
use streamdoor::client::{Metrics, ProgressOf, SubscriberStatus};
use streamdoor::engine::SubscriberPlace;
use streamdoor::stream::{LagLimit, Outcome, Policy};

use super::*;

const HOSTILE: &str = "a\x1b[2Jb\r\n\x07\u{9b}31m\u{202e}c\u{200b}";

fn id(digit: &str) -> streamdoor::base::ExecutionId {
    digit.repeat(26).parse().unwrap()
}

fn summary(digit: &str, tool: &str, state: ExecutionState, chunks: u64) -> Summary {
    let (bytes, subscribers, age_ms) = (1_000 * chunks, 2, 61_000);
    let (execution, tool) = (id(digit), tool.to_owned());
    let (created_at, ended_at) = (String::new(), None);
    let node = None;
    Summary {
        execution,
        node,
        thread: None,
        tool,
        state,
        chunks,
        bytes,
        subscribers,
        age_ms,
        created_at,
        ended_at,
    }
}

fn subscriber(lag_chunks: u64, missed_chunks: u64) -> SubscriberStatus {
    SubscriberStatus {
        subscriber: "s".to_owned(),
        place: SubscriberPlace::Local,
        policy: Policy::Drop,
        limit: LagLimit { chunks: 10, bytes: u64::MAX },
        next_seq: 1,
        lag_chunks,
        lag_bytes: 10 * lag_chunks,
        missed_chunks,
        missed_bytes: 0,
        holds_back: false,
        lost: false,
        age_ms: 5,
    }
}

fn status(digit: &str, held_back_by: &[&str]) -> Status {
    Status {
        execution: id(digit),
        tool: "t".to_owned(),
        token: None,
        state: ExecutionState::Running,
        progress: None,
        chunks: 3,
        bytes: 3_000,
        head_seq: 3,
        tail_seq: 1,
        total_chunks: None,
        held_back: !held_back_by.is_empty(),
        held_back_by: held_back_by.iter().map(|name| (*name).to_owned()).collect(),
        age_ms: 61_000,
        created_at: String::new(),
        ended_at: None,
        subscribers: vec![subscriber(4, 7), subscriber(30, 1)],
        error: None,
        exit: None,
        links: Links {
            this: String::new(),
            events: String::new(),
            result: String::new(),
            output: String::new(),
            progress: None,
        },
    }
}

fn sample(at_s: u64, chunks: u64) -> TopSample {
    let (token, message) = ("0".repeat(39).parse().unwrap(), Some(HOSTILE.to_owned()));
    let progress = Progress {
        progress: 3.0,
        total: Some(10.0),
        percentage: Some(30.0),
        message,
        context: None,
    };
    TopSample {
        at: Instant::from_nanos(at_s * 1_000_000_000),
        scrape: std::time::Duration::ZERO,
        metrics: Default::default(),
        executions: vec![
            summary("0", HOSTILE, ExecutionState::Running, chunks),
            summary("1", "plain", ExecutionState::Ended(Outcome::TimedOut), 12),
        ],
        progress: vec![ProgressOf { token, execution: id("0"), progress: Some(progress) }],
        statuses: vec![status("0", &["x"])],
    }
}

fn lines(
    before: Option<&TopSample>,
    now: &TopSample,
    columns: usize,
    lines: Option<usize>,
) -> Vec<String> {
    let frame = Frame { address: HOSTILE, before, now, trouble: Some(HOSTILE) };
    texts(&frame.lines(Room { columns, lines }, &Viewpoint::default()))
}

fn texts(drawn: &FrameLines) -> Vec<String> {
    drawn.lines.iter().map(|(line, _)| line.clone()).collect()
}

/// The state of the view when keys can be pressed.
const KEYS: Viewpoint = Viewpoint { sort: Sort::State, chosen: 0, opened: None, has_keys: true };

#[test]
fn rates_are_measured_between_two_looks() {
    let (before, now) = (sample(10, 100), sample(12, 500));
    let shown = lines(Some(&before), &now, 1_000, None);
    let row = shown.iter().find(|line| line.starts_with("00000")).unwrap();
    let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(cells[2..8], ["running", "200", "195 KiB", "500", "488 KiB", "2"], "{row}");
    assert_eq!(cells[8..12], ["30", "8", "by 1", "1 m 01 s"], "{row}");
    assert!(cells[12].starts_with("30 % a"), "{row}");
    assert!(lines(None, &now, 1_000, None).iter().any(|line| line.contains("running  ")));
    // After a restart of the server, its counters are smaller.
    let shown = lines(Some(&now), &before, 1_000, None);
    let row = shown.iter().find(|line| line.starts_with("00000")).unwrap();
    assert!(row.split_whitespace().any(|cell| cell == "-"), "{row}");
}

#[test]
fn a_journal_has_a_line_once_it_has_written_something() {
    let at = |at_s: u64, chunks: u64| {
        let text = format!(
            "streamdoor_journal_writes_total{{shard=\"0\"}} {}\n\
             streamdoor_journal_chunks_kept_total{{shard=\"0\"}} {chunks}\n\
             streamdoor_journal_written_bytes_total{{shard=\"0\"}} {}\n\
             streamdoor_journal_syncs_total{{shard=\"0\"}} {}\n\
             streamdoor_journal_chunks_missed_total{{shard=\"0\"}} 7\n",
            chunks / 10,
            2_048 * chunks,
            chunks / 100,
        );
        TopSample { metrics: Metrics::parse(text.as_bytes()).unwrap(), ..sample(at_s, 1) }
    };
    let shown = |before: &TopSample, now: &TopSample| {
        let lines = lines(Some(before), now, 1_000, None);
        lines.into_iter().find(|line| line.starts_with("journal"))
    };
    let line = "journal      200 chunks/s, 400 KiB/s to disk, 2 syncs/s; 7 chunks not kept since \
                the start";
    assert_eq!(shown(&at(10, 100), &at(12, 500)).as_deref(), Some(line));
    assert_eq!(shown(&at(10, 0), &at(12, 0)), None);
}

#[test]
fn no_text_of_others_commands_the_terminal() {
    let now = sample(1, 1);
    for columns in [1, 20, 80, 1_000] {
        let shown = lines(None, &now, columns, Some(40));
        for line in &shown {
            let is_plain = |c: char| !c.is_control() && c != '\u{202e}' && c != '\u{200b}';
            assert!(line.chars().all(is_plain), "{line:?}");
            assert!(line.chars().count() <= columns, "{line:?}");
        }
    }
}

#[test]
fn what_there_is_no_room_for_goes_in_a_sensible_order() {
    let now = sample(1, 1);
    let head = |columns| {
        let shown = lines(None, &now, columns, None);
        shown.into_iter().find(|line| line.starts_with("execution  ")).unwrap()
    };
    assert!(head(200).contains("age") && head(200).contains("progress"));
    let narrow = head(80);
    assert!(narrow.contains("chunks/s") && !narrow.contains("age"), "{narrow}");
    let first = lines(None, &now, 50, None).into_iter().find(|line| line.starts_with("0000"));
    let first = first.unwrap();
    assert!(first.contains("0…  ") && first.contains("running"), "{first}");
    let short = lines(None, &now, 200, Some(5));
    assert_eq!(short.len(), 5);
}

#[test]
fn the_table_scrolls_to_its_last_row_and_no_further() {
    let mut now = sample(1, 1);
    now.executions = (0..30)
        .map(|number| summary("0", &format!("tool{number}"), ExecutionState::Running, 1))
        .collect();
    let frame = Frame { address: "a", before: None, now: &now, trouble: None };
    let room = Room { columns: 200, lines: Some(20) };
    let first = frame.lines(room, &KEYS);
    assert_eq!((first.lines.len(), first.row_count), (20, 30));
    let last = texts(&frame.lines(room, &Viewpoint { chosen: usize::MAX, ..KEYS }));
    assert!(last[18].contains("tool29") && last[19].starts_with("q quit"), "{last:#?}");
}

#[test]
fn what_is_cut_has_a_mark() {
    let now = sample(1, 1);
    for columns in [20, 60, 80] {
        let whole = lines(None, &now, 1_000, None);
        for (line, whole) in lines(None, &now, columns, None).iter().zip(&whole).take(8) {
            let is_cut = whole.chars().count() > columns;
            assert_eq!(line.ends_with('…'), is_cut, "{line}");
        }
    }
}

#[test]
fn the_table_is_sorted_and_a_row_opens_to_its_subscribers() {
    let (before, now) = (sample(10, 100), sample(12, 500));
    let frame = Frame { address: "a", before: Some(&before), now: &now, trouble: None };
    let room = Room { columns: 200, lines: Some(24) };
    let first_row = |sort| {
        let drawn = frame.lines(room, &Viewpoint { sort, ..KEYS });
        let chosen = drawn.lines.iter().find(|(_, ink)| *ink == Ink::Chosen).unwrap();
        (chosen.0.chars().next().unwrap(), texts(&drawn).pop().unwrap())
    };
    let mut sort = Sort::default();
    for (expected, name) in
        [('0', "state"), ('0', "chunks/s"), ('0', "lag"), ('0', "missed"), ('0', "age")]
    {
        let footer = format!("q quit  ↑↓ scroll  s sort: {name}  enter subscribers");
        assert_eq!(first_row(sort), (expected, footer));
        sort = sort.next();
    }
    assert_eq!(sort, Sort::State);
    let mut older = now.clone();
    older.executions[1].age_ms = 99_000;
    let frame = Frame { address: "a", before: Some(&before), now: &older, trouble: None };
    let drawn = frame.lines(room, &Viewpoint { sort: Sort::Age, ..KEYS });
    assert_eq!(drawn.execution, Some(id("1")), "the oldest is the first");
    let opened = Viewpoint { opened: Some(id("0")), ..KEYS };
    let shown = texts(&frame.lines(room, &opened)).join("\n");
    assert!(shown.contains("subscriber  policy  lag"), "{shown}");
    assert!(shown.contains("s           drop     30") && shown.contains("esc back"), "{shown}");
    let none = Viewpoint { opened: Some(id("1")), ..KEYS };
    assert!(texts(&frame.lines(room, &none)).join("\n").contains("no subscribers"));
}

#[test]
fn numbers_are_short() {
    let cases =
        [(0.0, "0"), (1.25, "1.2"), (9_999.0, "9999"), (10_000.0, "10 k"), (1.5e9, "1500 M")];
    for (number, text) in cases {
        assert_eq!(count(Some(number)), text);
    }
    assert_eq!(bytes(Some(10_240.0)), "10 KiB");
    assert_eq!((count(None), count(Some(f64::NAN))), ("-".to_owned(), "-".to_owned()));
    let cases = [(2.5e-6, "2.5 µs"), (12e-6, "12 µs"), (0.25, "250 ms"), (3.0, "3.0 s")];
    for (number, text) in cases {
        assert_eq!(seconds(Some(number)), text);
    }
    assert_eq!(seconds(None), "-");
    assert_eq!(age(1_250), "1.2 s");
    assert_eq!(age(7_260_000), "2 h 01 m");
    assert_eq!(clipped("abcdef", 4), "abc…");
}
