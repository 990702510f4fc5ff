//! Tests of readers against logs that are written down.

use super::*;
use crate::cluster::record::{Draft, tests::entry};
use crate::stream::Kind;

const OWNER: Incarnation = Incarnation(3);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// The records of a log: `count` of two chunks each, and the end.
fn log(count: u64) -> Vec<Vec<u8>> {
    let mut position = Position::new(0);
    let record = |number| {
        let mut draft = Draft::new(OWNER, 4_096);
        for kind in [Kind::Stdout, Kind::Stderr] {
            let entry = entry(position.next_seq(), 3, kind);
            draft.append_chunk(&mut position, &entry, b"abc").unwrap();
        }
        if number + 1 == count {
            draft.append_end(&position, b"done").unwrap();
        }
        draft.finish(number, false)
    };
    (0..count).map(record).collect()
}

/// The end that a closer has written behind `number` records of two chunks.
fn closed(number: u64, position: &Position) -> Vec<u8> {
    let mut draft = Draft::new(Incarnation(9), 4_096);
    draft.append_end(position, b"lost").unwrap();
    draft.finish(number, true)
}

/// The place of a record is ten more than its number.
fn stored(log: &[Vec<u8>], number: usize) -> Stored<'_> {
    Stored { place: number as u64 + 10, is_first: number == 0, bytes: &log[number] }
}

struct Bench {
    follow: Follow,
    now: Instant,
    given: Vec<String>,
}

impl Bench {
    fn new() -> Bench {
        let mut follow = Follow::new(OWNER, at(0));
        let (attempt, wish) = follow.poll(at(0)).unwrap();
        assert_eq!((wish, follow.poll(at(0))), (Wish::Listen, None));
        follow.on_listening(attempt, at(0));
        Bench { follow, now: at(0), given: Vec::new() }
    }

    /// Takes the wish to pull.
    fn pull(&mut self, behind: u64, from_leader: bool) -> Attempt {
        self.now = self.now.max(self.follow.deadline().expect("it wants to pull"));
        let (attempt, wish) = self.follow.poll(self.now).unwrap();
        assert_eq!(wish, Wish::Pull { behind, from_leader });
        attempt
    }

    fn pulled<'a>(
        &mut self,
        attempt: Attempt,
        records: impl IntoIterator<Item = Stored<'a>>,
        is_all: bool,
    ) {
        let given = &mut self.given;
        let mut give = |item: Given<'_>| given.push(text(item));
        assert!(self.follow.on_pulled(attempt, records, is_all, self.now, &mut give));
    }

    fn heard(&mut self, stored: Stored<'_>) {
        let given = &mut self.given;
        let mut give = |item: Given<'_>| given.push(text(item));
        self.follow.on_heard(stored, self.now, &mut give);
    }
}

fn text(given: Given<'_>) -> String {
    match given {
        Given::Gap(gap) => {
            let last = gap.after.of(Kinds::ALL).chunks;
            let first = gap.before.of(Kinds::ALL).chunks + 1;
            format!("{} {first}-{last}", gap.reason.name())
        }
        Given::Item(Item::Chunks(run)) => format!("chunks {}", run.header.first_seq),
        Given::Item(Item::Gap { .. }) => "gap".to_owned(),
        Given::Item(Item::Note(_)) => "note".to_owned(),
        Given::Item(Item::End(details)) => String::from_utf8_lossy(details).into_owned(),
    }
}

#[test]
fn history_comes_first_and_then_what_is_heard() {
    let log = log(6);
    let mut bench = Bench::new();
    let attempt = bench.pull(0, false);
    bench.heard(stored(&log, 3)); // It comes before the history.
    bench.pulled(attempt, [stored(&log, 0), stored(&log, 1)], false);
    let attempt = bench.pull(11, false);
    bench.pulled(attempt, [stored(&log, 2), stored(&log, 3)], true);
    assert!(bench.follow.is_level());
    bench.heard(stored(&log, 3)); // Once more.
    bench.heard(stored(&log, 4));
    bench.heard(stored(&log, 5));
    let expected =
        ["chunks 1", "chunks 3", "chunks 5", "chunks 7", "chunks 9", "chunks 11", "done"];
    assert_eq!(bench.given, expected);
    assert!(bench.follow.has_ended());
    assert_eq!(bench.follow.poll(at(9)).map(|(_, wish)| wish), Some(Wish::Unlisten));
    assert_eq!((bench.follow.poll(at(99_999)), bench.follow.deadline()), (None, None));
}

#[test]
fn a_hole_is_pulled_and_is_a_gap_only_if_the_leader_has_it() {
    for leader_has_it in [true, false] {
        let log = log(4);
        let mut bench = Bench::new();
        let attempt = bench.pull(0, false);
        bench.pulled(attempt, [stored(&log, 0)], true);
        bench.heard(stored(&log, 2));
        let attempt = bench.pull(10, false);
        bench.pulled(attempt, [stored(&log, 2)], true); // Of a server that has lost it.
        assert_eq!(bench.given, ["chunks 1"]);
        let attempt = bench.pull(10, true);
        let next = if leader_has_it { 1 } else { 2 };
        bench.pulled(attempt, [stored(&log, next)], false);
        let expected: &[&str] = match leader_has_it {
            true => &["chunks 1", "chunks 3"],
            false => &["chunks 1", "corrupt 3-4", "chunks 5"],
        };
        assert_eq!(bench.given, expected);
    }
}

#[test]
fn a_beginning_that_is_gone_has_expired() {
    let log = log(3);
    let mut bench = Bench::new();
    let first = Stored { is_first: true, ..stored(&log, 1) };
    let attempt = bench.pull(0, false);
    bench.pulled(attempt, [first], true);
    let attempt = bench.pull(0, true);
    bench.pulled(attempt, [first], false);
    assert_eq!(bench.given, ["expired 1-2", "chunks 3"]);
}

#[test]
fn a_damaged_record_is_asked_of_the_leader_and_then_left_out() {
    let log = log(3);
    let mut damaged = log[1].clone();
    damaged[50] ^= 1;
    let broken = Stored { bytes: &damaged, ..stored(&log, 1) };
    let mut bench = Bench::new();
    let attempt = bench.pull(0, false);
    bench.pulled(attempt, [stored(&log, 0), broken, stored(&log, 2)], true);
    let attempt = bench.pull(10, true);
    bench.pulled(attempt, [broken], false);
    let attempt = bench.pull(11, true);
    bench.pulled(attempt, [stored(&log, 2)], false);
    assert_eq!(bench.given, ["chunks 1", "corrupt 3-4", "chunks 5", "done"]);
}

#[test]
fn a_stranger_is_not_heard_and_a_closer_says_nothing_but_the_end() {
    let (log, mut bench) = (log(3), Bench::new());
    let attempt = bench.pull(0, false);
    bench.pulled(attempt, [stored(&log, 0)], true);
    let mut position = *bench.follow.position();
    let end = closed(1, &position);
    let mut draft = Draft::new(Incarnation(9), 4_096);
    draft.append_chunk(&mut position, &entry(3, 3, Kind::Output), b"xyz").unwrap();
    draft.append_end(&position, b"lost").unwrap();
    let stranger = draft.finish(1, false);
    let talks = {
        let mut draft = Draft::new(Incarnation(9), 4_096);
        draft.append_note(&position, b"note").unwrap();
        draft.append_end(&position, b"lost").unwrap();
        draft.finish(1, true)
    };
    for bytes in [&stranger, &talks] {
        bench.heard(Stored { place: 11, is_first: false, bytes });
    }
    assert_eq!((bench.follow.counters().damaged, bench.given.len()), (2, 1));
    bench.heard(Stored { place: 11, is_first: false, bytes: &end });
    assert_eq!(bench.given, ["chunks 1", "lost"]);
}

#[test]
fn an_end_counts_although_the_log_has_forgotten_what_was_given() {
    let (log, mut bench) = (log(9), Bench::new());
    let attempt = bench.pull(0, false);
    bench.pulled(attempt, (0..4).map(|number| stored(&log, number)), true);
    let mut forgotten = Position::new(0);
    forgotten.pass(&entry(1, 3, Kind::Stdout));
    let end = closed(1, &forgotten);
    bench.heard(Stored { place: 20, is_first: false, bytes: &end });
    let attempt = bench.pull(13, false);
    bench.pulled(attempt, [Stored { place: 20, is_first: false, bytes: &end }], true);
    assert_eq!(bench.given.last().map(String::as_str), Some("lost"));
    assert_eq!(bench.given.len(), 5);
}

#[test]
fn it_looks_after_a_silence_and_after_a_lost_connection() {
    let log = log(3);
    let mut bench = Bench::new();
    let attempt = bench.pull(0, false);
    bench.pulled(attempt, [stored(&log, 0)], true);
    assert_eq!(bench.follow.deadline(), Some(at(1_000)));
    let attempt = bench.pull(10, false);
    bench.pulled(attempt, [stored(&log, 1)], true);
    bench.follow.on_connection(at(1_500));
    assert!(!bench.follow.is_level());
    let (attempt, wish) = bench.follow.poll(at(1_500)).unwrap();
    assert_eq!(wish, Wish::Listen);
    bench.follow.on_listening(attempt, at(1_510));
    let attempt = bench.pull(11, false);
    bench.pulled(attempt, [stored(&log, 2)], true);
    assert_eq!(bench.given, ["chunks 1", "chunks 3", "chunks 5", "done"]);
}

#[test]
fn without_room_it_neither_listens_nor_pulls() {
    let log = log(3);
    let mut bench = Bench::new();
    let attempt = bench.pull(0, false);
    bench.pulled(attempt, [stored(&log, 0)], true);
    bench.follow.set_room(false, at(10));
    assert_eq!(bench.follow.poll(at(10)).map(|(_, wish)| wish), Some(Wish::Unlisten));
    bench.heard(stored(&log, 1));
    assert_eq!((bench.follow.poll(at(60_000)), bench.follow.deadline()), (None, None));
    bench.follow.set_room(true, at(60_000));
    let (attempt, wish) = bench.follow.poll(at(60_000)).unwrap();
    assert_eq!(wish, Wish::Listen);
    bench.follow.on_listening(attempt, at(60_000));
    bench.now = at(60_000);
    let attempt = bench.pull(10, false);
    bench.pulled(attempt, [stored(&log, 1), stored(&log, 2)], true);
    assert_eq!(bench.given.len(), 4);
}

#[test]
fn an_answer_that_knows_too_little_is_asked_again_and_then_the_leader() {
    let log = log(3);
    let mut bench = Bench::new();
    let attempt = bench.pull(0, false);
    bench.pulled(attempt, [stored(&log, 0)], true);
    bench.heard(stored(&log, 2));
    for _ in 0..STALE_ANSWERS_MAX {
        let attempt = bench.pull(10, false);
        bench.pulled(attempt, [], true);
        assert!(!bench.follow.is_level());
    }
    let attempt = bench.pull(10, true);
    bench.pulled(attempt, [stored(&log, 1)], false);
    let attempt = bench.pull(11, false);
    bench.pulled(attempt, [stored(&log, 2)], true);
    assert_eq!(bench.given, ["chunks 1", "chunks 3", "chunks 5", "done"]);
}

#[test]
fn answers_that_are_late_do_not_count() {
    let log = log(3);
    let mut bench = Bench::new();
    let first = bench.pull(0, false);
    let again = bench.follow.deadline().unwrap();
    assert_eq!((again, bench.follow.poll(again)), (at(1_000), None));
    let second = bench.pull(0, false);
    let mut give = |item: Given<'_>| panic!("{item:?}");
    let late = bench.follow.on_pulled(first, [stored(&log, 0)], true, bench.now, &mut give);
    assert!(!late);
    bench.pulled(second, [stored(&log, 0)], true);
    assert_eq!(bench.given, ["chunks 1"]);
}
