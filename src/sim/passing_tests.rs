//! Tests of chunks that are passed over, as nobody in the server needs each of them. Some producers
//! lie about them.

use std::cell::RefCell;
use std::rc::Rc;

use crate::base::{ExecutionId, Random};
use crate::engine::policy::Log;
use crate::engine::{From, Hold, SubscribeSpec};
use crate::memory::{ChunkHeader, Segment};
use crate::shard::{Delivery, ExecuteOptions};
use crate::sim::model::ReportedEnd;
use crate::sim::process::Process;
use crate::sim::process_tests::World;
use crate::stream::{Kind, Kinds, Outcome, Policy, Totals};

/// Word numbers of a ring of 16 slots, equal to those in `memory/layout.rs`.
const TAIL_SEQ: usize = 17;
const TAIL_VERSION: usize = 18;
const HEAD_SEQ: usize = 32;
const TAIL_TOTALS: usize = 48;
const FRAMES: usize = 128 + 16;
const TOTAL_BYTES: usize = 1;
const META: usize = 3;
/// Words of a frame with a payload of eight bytes.
const FRAME_WORDS: usize = 5;
/// Chunks that the first lap of the data area takes.
const LAP_CHUNKS: usize = 2_944 / 8 / FRAME_WORDS;

/// Publishes `count` chunks of eight bytes. Every third one is of kind `Row`.
fn publish(process: &mut Process, seq: &mut u64, count: u64) {
    for _ in 0..count {
        *seq += 1;
        let kind = if seq.is_multiple_of(3) { Kind::Row } else { Kind::Output };
        let header = ChunkHeader { kind: kind as u8, key: 0, flags: 0 };
        assert_eq!(process.try_send(header, b"a chunk."), Ok(*seq));
    }
}

/// Starts a producer that has published this many chunks of eight bytes, all taken over.
fn with_taken(count: u64) -> (World, ExecutionId, Process) {
    let mut world = World::new();
    let options = ExecuteOptions { hold: Hold::Newest, ..Default::default() };
    let (id, mut process, _) = world.produce(options);
    world.settle();
    let mut seq = 0;
    while seq < count {
        publish(&mut process, &mut seq, 8);
        world.settle();
        world.shard.audit();
    }
    (world, id, process)
}

/// Returns the newest and the oldest chunk that the engine knows of.
fn known(world: &World, id: ExecutionId) -> (u64, u64) {
    let log = world.shard.engine.log(id.slot).unwrap();
    (log.head_seq(), log.tail_seq())
}

/// The word of the frame of a chunk in the first lap.
fn frame(seq: u64) -> usize {
    assert!((1..=LAP_CHUNKS).contains(&(seq as usize)));
    FRAMES + FRAME_WORDS * (seq as usize - 1)
}

#[test]
fn chunks_that_are_passed_over_are_counted_and_found_when_somebody_asks() {
    let (mut world, id, mut process) = with_taken(160);
    assert_eq!(known(&world, id), (160, 161), "the engine was told of no chunk");
    let counters = world.shard.counters();
    assert_eq!((counters.chunks_published, counters.bytes_published), (160, 1_280));
    let status = world.status(id);
    assert_eq!(status.totals, Totals { chunks: 160, bytes: 1_280 });
    assert!((145..160).contains(&status.tail_seq), "{}", status.tail_seq);
    let kinds = world.shard.engine.totals_before(id.slot, 161).unwrap();
    assert_eq!(kinds.of(Kinds::NONE.with(Kind::Row)), Totals { chunks: 53, bytes: 424 });
    // Few chunks are examined, and the log goes on. Many are passed over again.
    publish(&mut process, &mut { 160 }, 2);
    world.settle();
    let (head_seq, tail_seq) = known(&world, id);
    assert_eq!(head_seq, 162);
    assert!((147..=150).contains(&tail_seq) && tail_seq >= status.tail_seq, "{tail_seq}");
    publish(&mut process, &mut { 162 }, 8);
    world.settle();
    assert_eq!(known(&world, id), (170, 171));
    world.shard.audit();
}

#[test]
fn a_reader_that_comes_late_is_given_what_is_held_and_told_what_is_not() {
    for kinds in [Kinds::ALL, Kinds::NONE.with(Kind::Row)] {
        let (mut world, id, mut process) = with_taken(160);
        let told = Rc::new(RefCell::new((Vec::new(), Totals::ZERO)));
        let its = Rc::clone(&told);
        let spec = SubscribeSpec { policy: Policy::DropOldest, kinds, ..<_>::default() };
        let took = move |delivery: &Delivery<'_>| match delivery {
            Delivery::Chunk(chunk) => its.borrow_mut().0.push(chunk.seq),
            Delivery::Gap(gap) => {
                let missed = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
                let (_, sum) = &mut *its.borrow_mut();
                *sum = *sum + missed;
            }
            Delivery::Progress(_) | Delivery::End(_) => {}
        };
        world.shard.subscribe(id, spec, took).unwrap();
        world.settle();
        publish(&mut process, &mut { 160 }, 8);
        world.settle();
        world.shard.audit();
        let wanted = |seq: &u64| kinds.is_all() || seq.is_multiple_of(3);
        let (given, missed) = &*told.borrow();
        let first_seq = given[0];
        assert!(first_seq < 160 && first_seq > 140, "{given:?}");
        assert!(given.iter().copied().eq((first_seq..=168).filter(wanted)), "{given:?}");
        let chunks = (1..first_seq).filter(wanted).count() as u64;
        assert_eq!(*missed, Totals { chunks, bytes: 8 * chunks });
    }
}

/// The end of a case: the newest chunk that the engine has, and the broken rule.
type Expected = (u64, Option<&'static str>);

const ELSEWHERE: Option<&str> = Some("a chunk lies outside of the ring");
const WRONG: Option<&str> = Some("a chunk has a wrong total of bytes");

#[test]
fn a_lie_about_the_newest_chunk_helps_nobody() {
    type Spoil = fn(&Segment);
    // Chunks 1 to 32 were taken, and 33 to 40 were not.
    let table: [(&str, Spoil, Expected); 11] = [
        ("none", |_| (), (40, None)),
        ("the head goes back", |s| s.overwrite(HEAD_SEQ, &[3]), (40, None)),
        ("the head stays", |s| s.overwrite(HEAD_SEQ, &[32]), (40, None)),
        ("the head jumps", |s| s.overwrite(HEAD_SEQ, &[1 << 40]), (40, None)),
        ("the head is the last", |s| s.overwrite(HEAD_SEQ, &[u64::MAX]), (40, None)),
        ("the total goes back", |s| s.overwrite(frame(40) + TOTAL_BYTES, &[9]), (39, WRONG)),
        ("the total jumps", |s| s.overwrite(frame(40) + TOTAL_BYTES, &[1 << 50]), (39, WRONG)),
        ("its length is wild", |s| s.overwrite(frame(40) + META, &[1 << 30]), (39, ELSEWHERE)),
        ("a total in between", |s| s.overwrite(frame(36) + TOTAL_BYTES, &[0]), (40, WRONG)),
        ("the tail jumps", |s| s.overwrite(TAIL_SEQ, &[u64::MAX]), (32, ELSEWHERE)),
        ("the tail goes back", |s| s.overwrite(TAIL_SEQ, &[0]), (40, None)),
    ];
    for (lie, spoil, (head_seq, rule)) in table {
        let (mut world, id, mut process) = with_taken(32);
        publish(&mut process, &mut { 32 }, 8);
        spoil(&process.segment());
        world.settle();
        world.shard.audit();
        // A reader in this process needs all that is held.
        let _ = world.shard.subscribe(id, SubscribeSpec::default(), |_| ());
        world.settle();
        world.shard.audit();
        let status = world.status(id);
        assert_eq!(status.head_seq, head_seq, "{lie}");
        let error = status.error.as_deref().unwrap_or_default();
        assert_eq!(status.outcome, rule.map(|_| Outcome::Failed), "{lie}: {error}");
        assert!(error.ends_with(rule.unwrap_or_default()), "{lie}: {error}");
    }
}

#[test]
fn a_lie_that_nobody_has_noticed_is_found_at_the_end() {
    for is_spoiled in [false, true] {
        let (mut world, id, mut process) = with_taken(40);
        if is_spoiled {
            process.segment().overwrite(frame(36) + TOTAL_BYTES, &[0]);
        }
        process.finish(ReportedEnd::Done);
        world.settle();
        world.shard.audit();
        let status = world.status(id);
        let outcome = if is_spoiled { Outcome::Failed } else { Outcome::Completed };
        assert_eq!((status.outcome, status.head_seq), (Some(outcome), 40));
        let error = status.error.as_deref().unwrap_or_default();
        assert_eq!(error.ends_with(WRONG.unwrap_or_default()), is_spoiled, "{error}");
    }
}

#[test]
fn totals_by_kind_count_only_if_they_add_up() {
    type Spoil = fn(&Segment);
    let table: [(&str, Spoil, bool); 4] = [
        ("none", |_| (), true),
        ("too many", |s| s.overwrite(TAIL_TOTALS, &[1 << 40]), false),
        ("more than a number holds", |s| s.overwrite(TAIL_TOTALS, &[u64::MAX; 32]), false),
        ("half of a change", |s| s.overwrite(TAIL_VERSION, &[77]), false),
    ];
    for (lie, spoil, is_exact) in table {
        let (mut world, id, process) = with_taken(160);
        spoil(&process.segment());
        let status = world.status(id);
        assert!(status.tail_seq < 160, "{lie}: what is held is held");
        assert_eq!(status.totals, Totals { chunks: 160, bytes: 1_280 }, "{lie}");
        let kinds = world.shard.engine.totals_before(id.slot, 161).unwrap();
        assert_eq!(kinds.of(Kinds::ALL), status.totals, "{lie}");
        let rows = kinds.of(Kinds::NONE.with(Kind::Row));
        assert_eq!(rows == Totals { chunks: 53, bytes: 424 }, is_exact, "{lie}: {rows:?}");
        world.shard.audit();
    }
}

#[test]
fn whatever_a_producer_scribbles_the_shard_keeps_its_own_numbers() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (mut world, id, mut process) = with_taken(8 * random.below(6));
        let segment = process.segment();
        for _ in 0..60 {
            for _ in 0..random.below(12) {
                let header = ChunkHeader { kind: random.below(3) as u8, key: 0, flags: 0 };
                let _ = process.try_send(header, &[7; 100][..random.below(100) as usize]);
            }
            if random.chance(1, 4) {
                let word = match random.below(6) {
                    0 => HEAD_SEQ,
                    1 => [TAIL_SEQ, TAIL_VERSION][random.below(2) as usize],
                    2 => TAIL_TOTALS + random.below(32) as usize,
                    3 => FRAMES - 16 + random.below(16) as usize,
                    _ => FRAMES + random.below(368) as usize,
                };
                let value = match random.below(4) {
                    0 => random.below(300),
                    1 => random.next_u64() >> random.below(64),
                    2 => 1 << random.below(64),
                    _ => u64::MAX - random.below(3),
                };
                segment.overwrite(word, &[value]);
            }
            world.settle();
            world.shard.audit();
            match random.below(12) {
                0 => drop(world.shard.inspect(id)),
                1 => {
                    let from = if random.chance(1, 2) { From::Start } else { From::Live };
                    let policy = Policy::ALL[random.below(Policy::ALL.len() as u64) as usize];
                    let spec = SubscribeSpec { policy, from, ..<_>::default() };
                    if let Ok(subscriber) = world.shard.subscribe(id, spec, |_| ()) {
                        world.settle();
                        world.shard.audit();
                        let _ = world.shard.unsubscribe(subscriber);
                    }
                }
                2 => drop(world.shard.read_by_hand(id, SubscribeSpec::default())),
                _ => {}
            }
        }
        world.settle();
        world.shard.audit();
    }
}
