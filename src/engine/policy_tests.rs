//! Policies against a log that forgets nothing: every chunk is given or missed, exactly once.

use super::*;
use crate::base::Random;
use crate::stream::{Kind, LagLimit};

/// All chunks ever published. `tail_seq` is the first that is still held.
struct Memory {
    chunks: Vec<Meta>,
    tail_seq: u64,
    kept_from_seq: u64,
}

impl Memory {
    fn new() -> Memory {
        Memory { chunks: Vec::new(), tail_seq: 1, kept_from_seq: NOT_KEPT }
    }

    fn push(&mut self, length: u32, kind: Kind, key: u8) {
        let before = self.chunks.last().map_or(0, |meta| meta.total_bytes);
        let total_bytes = before + u64::from(length);
        self.chunks.push(Meta { total_bytes, length, kind, key });
    }

    fn sum(&self, kinds: Kinds, from_seq: u64, until_seq: u64) -> Totals {
        let mut totals = Totals::ZERO;
        for meta in &self.chunks[from_seq as usize - 1..until_seq as usize - 1] {
            if kinds.contains(meta.kind) {
                totals.count(meta.length);
            }
        }
        totals
    }
}

impl Log for Memory {
    fn head_seq(&self) -> u64 {
        self.chunks.len() as u64
    }
    fn tail_seq(&self) -> u64 {
        self.tail_seq
    }
    fn meta(&self, seq: u64) -> Meta {
        assert!(seq >= self.tail_seq, "chunk {seq} is no longer held");
        self.chunks[seq as usize - 1]
    }
    fn totals_through_head(&self, kinds: Kinds) -> Totals {
        self.sum(kinds, 1, self.head_seq() + 1)
    }
    fn totals_before_tail(&self, kinds: Kinds) -> Totals {
        self.sum(kinds, 1, self.tail_seq)
    }
    fn kept_from_seq(&self) -> u64 {
        self.kept_from_seq
    }
    fn totals_before_kept(&self, kinds: Kinds) -> Totals {
        self.sum(kinds, 1, self.kept_from_seq)
    }
}

fn terms(policy: Policy, chunks: u32) -> Terms {
    Terms { policy, limit: LagLimit { chunks, bytes: u64::MAX }, kinds: Kinds::ALL }
}

/// The backlog at the time of attaching is not lag: all of it is owed, and the limit counts from
/// there.
#[test]
fn who_comes_late_is_owed_all_that_is_held_whatever_its_limit() {
    for policy in [Policy::Drop, Policy::Buffer, Policy::DropOldest, Policy::Disconnect] {
        let mut log = Memory::new();
        let terms = terms(policy, 3);
        for _ in 0..50 {
            log.push(10, Kind::Output, 0);
        }
        let mut cursor = Cursor::new(1, Totals::ZERO).coming_at(50);
        assert_eq!(owed(&terms, &mut cursor, &log), Owed::Give { until_seq: 51 }, "{policy}");
        cursor.give(Kinds::ALL, 20, &log);
        for _ in 0..3 {
            log.push(10, Kind::Output, 0);
        }
        assert_eq!(owed(&terms, &mut cursor, &log), Owed::Give { until_seq: 54 }, "{policy}");
        log.push(10, Kind::Output, 0);
        let expected = match policy {
            Policy::Disconnect => Owed::Disconnect,
            Policy::DropOldest => Owed::Skip { until_seq: 52, reason: GapReason::Lag },
            _ => Owed::Give { until_seq: 54 }, // Then one gap.
        };
        assert_eq!(owed(&terms, &mut cursor, &log), expected, "{policy}");
    }
}

/// Each policy behind the tail: the disk is asked, unless the subscriber is level and its policy
/// skips, or wants the newest chunks only.
#[test]
fn what_only_the_disk_holds_is_fetched_until_one_is_level() {
    let mut log = Memory { kept_from_seq: 4, ..Memory::new() };
    (0..20).for_each(|_| log.push(10, Kind::Output, 0));
    log.tail_seq = 11;
    let fetch = Owed::Fetch { until_seq: 11 };
    let overtaken = Owed::Skip { until_seq: 11, reason: GapReason::Overtaken };
    let expired = Owed::Skip { until_seq: 4, reason: GapReason::Expired };
    for policy in Policy::ALL {
        let terms = terms(policy, 3);
        let (at_first, at_kept) = match policy {
            Policy::Block | Policy::Replay => ([expired, expired], [fetch, fetch]),
            Policy::DropOldest | Policy::Conflate => ([overtaken; 2], [overtaken; 2]),
            _ => ([overtaken, expired], [overtaken, fetch]),
        };
        for (seq, [level, away]) in [(1, at_first), (4, at_kept)] {
            let seen = log.sum(Kinds::ALL, 1, seq);
            let mut cursor = Cursor::new(seq, seen);
            assert_eq!(owed(&terms, &mut cursor, &log), level, "{policy} {seq}");
            let mut cursor = cursor.going_away(false);
            assert_eq!(owed(&terms, &mut cursor, &log), away, "{policy} {seq}");
        }
        // In the ring everything is given until the lag is within the limit.
        for (seq, is_level) in [(11, matches!(policy, Policy::Block | Policy::Replay)), (18, true)]
        {
            let mut away = Cursor::new(seq, log.sum(Kinds::ALL, 1, seq)).going_away(false);
            assert_eq!(is_near(&terms, &away, &log), is_level, "{policy} {seq}");
            if !matches!(policy, Policy::Conflate) {
                assert_eq!(owed(&terms, &mut away, &log), Owed::Give { until_seq: 21 });
            }
        }
    }
    let mut gone = Cursor::new(1, Totals::ZERO);
    let gap = gone.skip(Kinds::ALL, 4, GapReason::Expired, &log).unwrap();
    assert_eq!((gap.from_seq, gap.to_seq, gap.chunk_count, gap.byte_count), (1, 3, 3, 30));
}

#[test]
fn drop_gives_its_window_then_one_gap_then_goes_on_live() {
    let mut log = Memory::new();
    let terms = terms(Policy::Drop, 3);
    let mut cursor = Cursor::new(1, Totals::ZERO);
    for _ in 0..8 {
        log.push(10, Kind::Output, 0);
    }
    assert_eq!(owed(&terms, &mut cursor, &log), Owed::Give { until_seq: 4 });
    cursor.give(Kinds::ALL, 2, &log); // It takes one of the three; more chunks come meanwhile.
    log.push(10, Kind::Output, 0);
    assert_eq!(owed(&terms, &mut cursor, &log), Owed::Give { until_seq: 4 });
    cursor.give(Kinds::ALL, 4, &log);
    let skip = Owed::Skip { until_seq: 10, reason: GapReason::Lag };
    assert_eq!(owed(&terms, &mut cursor, &log), skip);
    let gap = cursor.skip(Kinds::ALL, 10, GapReason::Lag, &log).unwrap();
    assert_eq!((gap.from_seq, gap.to_seq, gap.chunk_count, gap.byte_count), (4, 9, 6, 60));
    assert_eq!(owed(&terms, &mut cursor, &log), Owed::Nothing);
    log.push(10, Kind::Output, 0);
    assert_eq!(owed(&terms, &mut cursor, &log), Owed::Give { until_seq: 11 });
}

#[test]
fn drop_oldest_keeps_the_newest() {
    let mut log = Memory::new();
    let terms = terms(Policy::DropOldest, 3);
    let mut cursor = Cursor::new(1, Totals::ZERO);
    for _ in 0..8 {
        log.push(10, Kind::Output, 0);
    }
    let skip = Owed::Skip { until_seq: 6, reason: GapReason::Lag };
    assert_eq!(owed(&terms, &mut cursor, &log), skip);
    cursor.skip(Kinds::ALL, 6, GapReason::Lag, &log).unwrap();
    assert_eq!(owed(&terms, &mut cursor, &log), Owed::Give { until_seq: 9 });
}

#[test]
fn a_limit_in_bytes_holds_and_one_chunk_always_fits() {
    let mut log = Memory::new();
    let mut terms = terms(Policy::Drop, 100);
    terms.limit.bytes = 25;
    let mut cursor = Cursor::new(1, Totals::ZERO);
    for _ in 0..4 {
        log.push(10, Kind::Output, 0);
    }
    assert_eq!(owed(&terms, &mut cursor, &log), Owed::Give { until_seq: 3 });
    terms.limit.bytes = 1;
    let mut cursor = Cursor::new(1, Totals::ZERO);
    assert_eq!(owed(&terms, &mut cursor, &log), Owed::Give { until_seq: 2 });
}

#[test]
fn conflate_gives_the_newest_of_each_key_and_a_gap_for_the_rest() {
    let mut log = Memory::new();
    for key in [0, 1, 0, 0, 2, 1] {
        log.push(1, Kind::Output, key);
    }
    let terms = terms(Policy::Conflate, 1);
    let mut cursor = Cursor::new(1, Totals::ZERO);
    let mut given = Vec::new();
    loop {
        match owed(&terms, &mut cursor, &log) {
            Owed::Nothing => break,
            Owed::Give { until_seq } => {
                given.extend(cursor.next_seq..until_seq);
                cursor.give(Kinds::ALL, until_seq, &log);
            }
            Owed::Skip { until_seq, reason } => {
                assert_eq!(reason, GapReason::Conflated);
                cursor.skip(Kinds::ALL, until_seq, reason, &log).unwrap();
            }
            Owed::Disconnect => panic!("conflate never disconnects"),
            Owed::Fetch { .. } => panic!("nothing is kept on disk"),
        }
    }
    assert_eq!(given, [4, 5, 6]);
}

#[test]
fn disconnect_gives_everything_up_to_its_limit_and_then_the_end() {
    let mut log = Memory::new();
    let terms = terms(Policy::Disconnect, 3);
    let mut cursor = Cursor::new(1, Totals::ZERO);
    for _ in 0..3 {
        log.push(1, Kind::Output, 0);
    }
    assert_eq!(owed(&terms, &mut cursor, &log), Owed::Give { until_seq: 4 });
    log.push(1, Kind::Output, 0);
    assert_eq!(owed(&terms, &mut cursor, &log), Owed::Disconnect);
}

/// P1, P2 and P3 for each policy, filter and way of reading, with a log that forgets at random.
#[test]
fn every_chunk_is_given_or_missed_exactly_once() {
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let policy = Policy::ALL[random.below(Policy::ALL.len() as u64) as usize];
        let kinds = match random.below(3) {
            0 => Kinds::ALL,
            1 => Kinds::NONE.with(Kind::Stdout),
            _ => Kinds::NONE.with(Kind::Stdout).with(Kind::Row),
        };
        let limit = LagLimit {
            chunks: random.between(1, 9) as u32,
            bytes: if random.chance(1, 2) { random.between(1, 200) } else { u64::MAX },
        };
        let terms = Terms { policy, limit, kinds };
        let mut log = Memory::new();
        let mut cursor = Cursor::new(1, Totals::ZERO);
        let mut given = Totals::ZERO;
        let mut missed = Totals::ZERO;
        let mut disconnected = false;
        for _ in 0..200 {
            if random.chance(3, 5) {
                let kind = [Kind::Stdout, Kind::Stderr, Kind::Row][random.below(3) as usize];
                log.push(random.below(50) as u32, kind, random.below(3) as u8);
            }
            if random.chance(1, 20) {
                log.tail_seq = random.between(log.tail_seq, log.head_seq() + 1);
            }
            if disconnected || random.chance(1, 2) {
                continue;
            }
            let before = cursor.next_seq;
            match owed(&terms, &mut cursor, &log) {
                Owed::Nothing => assert_eq!(cursor.next_seq, log.head_seq() + 1, "seed {seed}"),
                Owed::Give { until_seq } => {
                    assert!(until_seq > before, "seed {seed}");
                    let until_seq = random.between(before + 1, until_seq);
                    given = given + log.sum(kinds, before, until_seq);
                    cursor.give(kinds, until_seq, &log);
                }
                Owed::Skip { until_seq, reason } => {
                    assert!(until_seq > before, "seed {seed}");
                    let overtaken = reason == GapReason::Overtaken;
                    let skips = !matches!(policy, Policy::Block | Policy::Replay);
                    assert!(skips || overtaken, "seed {seed}");
                    let sum = log.sum(kinds, before, until_seq);
                    if let Some(gap) = cursor.skip(kinds, until_seq, reason, &log) {
                        assert_eq!((gap.from_seq, gap.to_seq), (before, until_seq - 1));
                        assert_eq!(gap.chunk_count, sum.chunks, "seed {seed}");
                        assert_eq!(gap.byte_count, sum.bytes, "seed {seed}");
                    } else {
                        assert_eq!(sum.chunks, 0, "seed {seed}");
                    }
                    missed = missed + sum;
                }
                Owed::Fetch { .. } => panic!("seed {seed}: nothing is kept on disk"),
                Owed::Disconnect => {
                    assert!(policy == Policy::Disconnect, "seed {seed}");
                    disconnected = true;
                }
            }
            assert_eq!(given + missed, cursor.seen, "seed {seed}");
            assert_eq!(cursor.seen, log.sum(kinds, 1, cursor.next_seq), "seed {seed}");
        }
    }
}
