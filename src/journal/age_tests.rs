//! The age of segments: a quiet journal, segments that cannot go yet, and clocks that jump.

use std::time::Duration;

use super::fault_tests::Bench;
use super::model_tests::Disk;
use super::records::Terms;
use super::{Append, Moment, Place, Setup, Wish};
use crate::base::Instant;
use crate::limits::{
    JOURNAL_LOOK_INTERVAL, JOURNAL_RETRY_DELAY, JOURNAL_SETTLING_TIME, JOURNAL_UNSYNCED_BYTES_MAX,
    KEEP_S_MAX,
};
use crate::stream::{Durability, Kind, Kinds};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const AGE: Duration = DAY;
const SETUP: Setup = Setup {
    journal: 0xA6E << 64 | 0x17,
    shard: 0,
    segment_bytes: 128 << 10,
    bytes_max: 1 << 30,
    age_us_max: AGE.as_micros() as u64,
    unsynced_bytes_max: JOURNAL_UNSYNCED_BYTES_MAX,
};
/// The start of all tests on the wall clock: some day of 2026.
const START_US: u64 = 1_790_000_000_000_000;
const START: Moment = Moment { now: Instant::from_nanos(1), wall_us: START_US };

fn moved(moment: Moment, time: Duration) -> Moment {
    let wall_us = moment.wall_us + time.as_micros() as u64;
    Moment { now: moment.now + time, wall_us }
}

fn started(moment: Moment) -> Bench {
    Bench::on(Disk::default(), &SETUP, moment)
}

fn restarted(bench: Bench, wall_us: u64) -> Bench {
    Bench::on(bench.disk, &SETUP, Moment { now: Instant::from_nanos(1), wall_us })
}

/// Writes chunks of an ended execution until `count` more segments are sealed.
fn fill(bench: &mut Bench, id: u128, count: usize) {
    let name = bench.open(id, Durability::Written);
    let wanted = bench.journal.segments.sealed.len() + count;
    while bench.journal.segments.sealed.len() < wanted {
        assert_eq!(bench.append_payload(name, &[7; 3_000]), Append::Kept);
        bench.journal.await_sync();
        bench.settle();
    }
    assert!(bench.journal.end(name, b"done", bench.moment));
    bench.settle();
}

fn sealed(bench: &Bench) -> usize {
    bench.journal.segments.sealed.len()
}

/// Sleeps and wakes as a shard without anything else to do, for this time. Returns the number of
/// turns.
fn idle(bench: &mut Bench, time: Duration) -> u32 {
    let until = bench.moment.now + time;
    let mut turns = 0;
    while let Some(deadline) = bench.journal.deadline().filter(|deadline| *deadline <= until) {
        bench.moment = moved(bench.moment, deadline.since(bench.moment.now));
        bench.settle();
        turns += 1;
    }
    bench.moment = moved(bench.moment, until.since(bench.moment.now));
    turns
}

#[test]
fn a_quiet_journal_removes_segments_when_they_are_too_old() {
    let mut bench = started(START);
    fill(&mut bench, 1, 2);
    bench.moment = moved(bench.moment, 5 * HOUR);
    fill(&mut bench, 2, 1);
    assert_eq!(sealed(&bench), 3);
    let turns = idle(&mut bench, AGE - 5 * HOUR - SECOND);
    assert_eq!((sealed(&bench), turns <= 24), (3, true), "{turns} turns");
    idle(&mut bench, 2 * SECOND);
    assert_eq!((sealed(&bench), bench.disk.files.contains_key(&2)), (1, false));
    assert_eq!(bench.journal.find(1), None);
    // The rest of the file was written later.
    idle(&mut bench, 5 * HOUR + SECOND);
    assert_eq!(sealed(&bench), 0);
    // Nothing is left to look at.
    assert_eq!(idle(&mut bench, 30 * DAY), 0);
    assert_eq!(bench.journal.deadline(), None);
}

#[test]
fn a_segment_that_cannot_go_yet_costs_no_turns() {
    // The record of an end, then the removal itself: the disk takes both, and does not answer.
    let mut bench = started(START);
    let name = bench.open(1, Durability::Synced);
    fill(&mut bench, 2, 1);
    idle(&mut bench, AGE - HOUR);
    assert!(bench.journal.end(name, b"done", bench.moment));
    bench.turn();
    bench.moment = moved(bench.moment, 2 * HOUR);
    for _ in 0..10 {
        bench.turn();
        let deadline = bench.journal.deadline().expect("it is looked at again");
        assert!(deadline.since(bench.moment.now) >= JOURNAL_RETRY_DELAY);
        bench.moment = moved(bench.moment, deadline.since(bench.moment.now));
    }
    assert_eq!(sealed(&bench), 1);
    while bench.wishes.iter().all(|wish| !matches!(wish, Wish::Remove { .. })) {
        bench.complete(Ok(()));
        bench.turn();
    }
    idle_without_disk(&mut bench);
    bench.settle();
    assert_eq!((sealed(&bench), bench.disk.files.contains_key(&1)), (0, false));
}

/// Takes turns until nothing is left to do without the disk.
fn idle_without_disk(bench: &mut Bench) {
    let mut turns = 0;
    while let Some(deadline) = bench.journal.deadline() {
        bench.moment = moved(bench.moment, deadline.since(bench.moment.now));
        bench.turn();
        turns += 1;
        assert!(turns < 10);
    }
}

#[test]
fn a_running_execution_in_an_old_segment_is_carried_without_any_other_event() {
    let mut bench = started(START);
    let name = bench.open(1, Durability::Written);
    fill(&mut bench, 2, 1);
    let turns = idle(&mut bench, AGE + 2 * SECOND);
    assert!(turns < 40, "{turns} turns");
    assert_eq!((sealed(&bench), bench.journal.find(1)), (0, Some(name)));
    assert_eq!(bench.append_payload(name, b"more"), Append::Kept);
}

#[test]
fn the_kinds_of_chunks_that_have_expired_are_known_after_a_restart() {
    let mut bench = started(START);
    let name = bench.open(1, Durability::Written);
    for kind in [Kind::ALL[0], Kind::ALL[1], Kind::ALL[1]] {
        assert_eq!(bench.append_kind(name, kind, b"12345"), Append::Kept);
    }
    fill(&mut bench, 2, 1);
    idle(&mut bench, AGE + 2 * SECOND);
    assert_eq!(sealed(&bench), 0);
    // What was carried is in a sealed segment, in which the execution has no chunk.
    fill(&mut bench, 3, 1);
    let wall_us = bench.moment.wall_us;
    let bench = restarted(bench, wall_us);
    let kept = bench.journal.find(1).and_then(|name| bench.journal.get(name)).unwrap();
    let totals = kept.living.as_ref().unwrap().position.totals;
    let of = |at: usize| totals.of(Kinds::NONE.with(Kind::ALL[at]));
    assert_eq!((of(0).chunks, of(1).chunks, of(1).bytes), (1, 2, 10));
}

#[test]
fn a_clock_that_goes_backward_removes_nothing_early() {
    let mut bench = started(START);
    fill(&mut bench, 1, 1);
    // A machine whose clock has lost its battery. What is written then is not 56 years old.
    let mut bench = restarted(bench, 0);
    fill(&mut bench, 2, 2);
    assert_eq!(sealed(&bench), 4); // The restart has sealed the rest of the first process.
    idle(&mut bench, AGE - SECOND);
    assert_eq!(sealed(&bench), 4);
    // Ages go on with the other clock.
    idle(&mut bench, 3 * SECOND);
    assert_eq!(sealed(&bench), 0);
}

#[test]
fn a_clock_that_goes_backward_in_one_process_removes_nothing_early() {
    let mut bench = started(START);
    fill(&mut bench, 1, 1);
    idle(&mut bench, HOUR);
    bench.moment.wall_us -= 400 * DAY.as_micros() as u64;
    fill(&mut bench, 2, 1);
    idle(&mut bench, AGE - HOUR - SECOND);
    assert_eq!(sealed(&bench), 2);
    idle(&mut bench, 2 * SECOND);
    assert_eq!(sealed(&bench), 1);
    idle(&mut bench, HOUR);
    assert_eq!(sealed(&bench), 0);
}

#[test]
fn a_wrong_clock_at_the_start_removes_nothing_if_it_is_corrected_soon() {
    const LEAP_US: u64 = 400 * DAY.as_micros() as u64;
    for is_corrected in [false, true] {
        let mut bench = started(START);
        fill(&mut bench, 1, 2);
        let mut bench = restarted(bench, START_US + LEAP_US);
        let before = sealed(&bench);
        idle(&mut bench, JOURNAL_SETTLING_TIME - SECOND);
        assert_eq!(sealed(&bench), before);
        bench.moment.wall_us -= if is_corrected { LEAP_US } else { 0 };
        idle(&mut bench, 2 * SECOND);
        assert_eq!(sealed(&bench), if is_corrected { before } else { 0 });
    }
}

#[test]
fn a_clock_that_jumps_forward_is_noticed_within_the_interval() {
    let mut bench = started(START);
    fill(&mut bench, 1, 1);
    idle(&mut bench, HOUR);
    bench.moment.wall_us += 2 * AGE.as_micros() as u64;
    idle(&mut bench, JOURNAL_LOOK_INTERVAL);
    assert_eq!(sealed(&bench), 0);
}

#[test]
fn too_many_bytes_go_at_once_even_after_a_start() {
    let mut bench = started(START);
    bench.journal.setup.bytes_max = 4 * u64::from(SETUP.segment_bytes);
    fill(&mut bench, 1, 2);
    let name = bench.open(2, Durability::Written);
    for _ in 0..200 {
        assert_eq!(bench.append_payload(name, &[7; 3_000]), Append::Kept);
        bench.journal.await_sync();
        bench.settle();
    }
    assert!(bench.moment.now < Instant::from_nanos(1) + JOURNAL_SETTLING_TIME);
    assert!(sealed(&bench) <= 3 && bench.journal.counters().removed_segments > 1);
}

fn kept_for(time: Duration) -> Terms {
    Terms { keep_s: time.as_secs() as u32, ..Durability::Synced.into() }
}

/// Opens an execution, appends one chunk, and ends it.
fn run(bench: &mut Bench, id: u128, terms: Terms) {
    let name = bench.open(id, terms);
    assert_eq!(bench.append_payload(name, b"its chunk"), Append::Kept);
    assert!(bench.journal.end(name, b"done", bench.moment));
    bench.settle();
}

fn is_there(bench: &Bench, id: u128) -> bool {
    assert_eq!(bench.journal.find(id).is_some(), bench.journal.executions().any(|e| e.1.id == id));
    bench.journal.find(id).is_some()
}

#[test]
fn an_execution_goes_when_its_own_time_is_over() {
    for restarts in [false, true] {
        let mut bench = started(START);
        idle(&mut bench, JOURNAL_SETTLING_TIME);
        run(&mut bench, 1, kept_for(2 * HOUR));
        run(&mut bench, 2, kept_for(3 * HOUR));
        run(&mut bench, 3, Durability::Synced.into());
        if restarts {
            // The first is in a row of an index, the last in blocks.
            fill(&mut bench, 9, 1);
            run(&mut bench, 4, kept_for(2 * HOUR));
            let wall_us = bench.moment.wall_us;
            bench = restarted(bench, wall_us);
        }
        let there = |bench: &Bench| [1, 2, 3].map(|id| is_there(bench, id));
        idle(&mut bench, 2 * HOUR - SECOND);
        assert_eq!(there(&bench), [true; 3]);
        idle(&mut bench, 3 * SECOND);
        assert_eq!(there(&bench), [false, true, true], "{restarts}");
        assert!(!restarts || !is_there(&bench, 4));
        let turns = idle(&mut bench, HOUR);
        assert_eq!(there(&bench), [false, false, true]);
        assert!(turns < 20, "{turns} turns");
        // A start does not bring them back.
        let wall_us = bench.moment.wall_us;
        let bench = restarted(bench, wall_us);
        assert_eq!(there(&bench), [false, false, true]);
    }
}

#[test]
fn an_execution_that_is_kept_for_longer_holds_its_segments() {
    for restarts in [false, true] {
        let mut bench = started(START);
        run(&mut bench, 1, kept_for(3 * AGE));
        fill(&mut bench, 2, 2);
        if restarts {
            let wall_us = bench.moment.wall_us;
            bench = restarted(bench, wall_us);
        }
        let before = sealed(&bench);
        let turns = idle(&mut bench, 3 * AGE - SECOND);
        assert_eq!((sealed(&bench), is_there(&bench, 1)), (before, true));
        assert!(turns < 80, "{turns} turns");
        idle(&mut bench, 3 * SECOND);
        assert!(!is_there(&bench, 1));
        assert_eq!(sealed(&bench), 0);
    }
}

#[test]
fn a_running_execution_with_a_time_of_its_own_keeps_its_chunks() {
    let long = Terms { keep_s: KEEP_S_MAX, ..Durability::Synced.into() };
    let mut bench = started(START);
    let (own, plain) = (bench.open(1, long), bench.open(2, Durability::Synced));
    for name in [own, plain] {
        assert_eq!(bench.append_payload(name, b"its chunk"), Append::Kept);
    }
    fill(&mut bench, 3, 1);
    idle(&mut bench, 100 * DAY);
    assert_eq!(sealed(&bench), 1);
    // When it is removed, its segment goes, and what another one has in it.
    assert!(bench.journal.end(own, b"done", bench.moment));
    bench.settle();
    idle(&mut bench, DAY);
    assert_eq!(sealed(&bench), 1);
    assert!(bench.journal.delete(own, bench.moment));
    bench.settle();
    idle(&mut bench, HOUR + SECOND);
    assert_eq!((sealed(&bench), bench.journal.find(2)), (0, Some(plain)));
    assert_eq!(bench.journal.locate(plain, 1), Some(Place::Expired { until_seq: 2 }));
}

#[test]
fn a_journal_that_is_too_large_holds_nothing() {
    let mut bench = started(START);
    bench.journal.setup.bytes_max = 4 * u64::from(SETUP.segment_bytes);
    run(&mut bench, 1, kept_for(100 * DAY));
    fill(&mut bench, 2, 2);
    assert!(is_there(&bench, 1));
    let name = bench.open(3, Durability::Written);
    for _ in 0..200 {
        assert_eq!(bench.append_payload(name, &[7; 3_000]), Append::Kept);
        bench.journal.await_sync();
        bench.settle();
    }
    assert!(!is_there(&bench, 1));
}
