//! Tests of rings that start small and grow, over real rings.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::base::{ExecutionId, Random};
use crate::engine::SubscribeSpec;
use crate::limits;
use crate::memory::{Geometry, Readings, RingPoolConfig};
use crate::stream::{Kind, Policy};
use crate::tool::{Context, EmitError, Need, Prepared, Step, Tool, Work};

const KIB: u32 = 1 << 10;

fn shard(bytes_max: u64) -> Shard {
    let rings = RingPoolConfig { prealloc_bytes: 0, bytes_max, ..Default::default() };
    let memory = MemoryWatch::ByHand;
    let config = ShardConfig { rings, seed: Some(1), memory, ..Default::default() };
    Shard::new(config).unwrap().0
}

/// Runs work whose ring may grow up to `ring_bytes`.
fn open(shard: &mut Shard, work: Work, ring_bytes: u32) -> ExecutionId {
    let need = Need { ring_bytes, chunk_bytes: 0, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(work) };
    let options = ExecuteOptions { grows: true, ..Default::default() };
    shard.execute_prepared(prepared, options).unwrap()
}

fn class_of(shard: &mut Shard, id: ExecutionId) -> u32 {
    shard.inspect(id).unwrap().ring.unwrap().slot_count * limits::RING_BYTES_PER_SLOT
}

fn with(policy: Policy) -> SubscribeSpec {
    SubscribeSpec { policy, ..Default::default() }
}

/// The chunks that a subscriber was given, and its gaps.
type Given = Rc<RefCell<(Vec<(u64, Vec<u8>)>, u64)>>;

fn follow(shard: &mut Shard, id: ExecutionId, spec: SubscribeSpec) -> Given {
    let given = Given::default();
    let notes = Rc::clone(&given);
    let note = move |delivery: &Delivery<'_>| match delivery {
        Delivery::Chunk(chunk) => notes.borrow_mut().0.push((chunk.seq, chunk.data.to_vec())),
        Delivery::Gap(gap) => notes.borrow_mut().1 += gap.chunk_count,
        Delivery::Progress(_) | Delivery::End(_) => {}
    };
    shard.subscribe(id, spec, note).unwrap();
    given
}

/// Publishes `count` chunks of different lengths in one step.
struct Burst {
    lengths: Vec<usize>,
    at: usize,
}

impl Burst {
    fn of(count: usize, length_max: u64) -> Burst {
        let mut random = Random::new(count as u64);
        let lengths = (0..count).map(|_| random.below(length_max + 1) as usize).collect();
        Burst { lengths, at: 0 }
    }

    fn payload(&self, at: usize) -> Vec<u8> {
        vec![at as u8; self.lengths[at]]
    }
}

impl Tool for Burst {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        while self.at < self.lengths.len() {
            match context.emit(&self.payload(self.at)) {
                Ok(_) => self.at += 1,
                Err(EmitError::Blocked) => return Step::Blocked,
                Err(error) => panic!("{error:?} of {}", context.chunk_bytes_max()),
            }
        }
        Step::Done
    }
}

fn turn_until_idle(shard: &mut Shard) {
    while shard.turn() {}
    shard.audit();
}

#[test]
fn a_tool_that_finds_no_room_gets_a_larger_ring_and_loses_nothing() {
    let mut shard = shard(1 << 24);
    let chunk_bytes_max = Geometry::of_class(64 * KIB).length_max();
    let (tool, same) =
        (Burst::of(500, chunk_bytes_max.into()), Burst::of(500, chunk_bytes_max.into()));
    let id = open(&mut shard, Work::Steps(Box::new(tool)), 64 * KIB);
    assert_eq!(class_of(&mut shard, id), 4 * KIB);
    let given = [Policy::Block, Policy::Drop].map(|policy| follow(&mut shard, id, with(policy)));
    assert_eq!(class_of(&mut shard, id), 4 * KIB); // They need nothing but the next chunks.
    turn_until_idle(&mut shard);
    assert_eq!(class_of(&mut shard, id), 64 * KIB);
    assert_eq!(shard.counters().rings_grown, 2);
    let (chunks, missed) = &*given[0].borrow();
    assert_eq!((chunks.len(), *missed), (500, 0));
    for (at, (seq, data)) in chunks.iter().enumerate() {
        assert_eq!((*seq, data), (at as u64 + 1, &same.payload(at)));
    }
    let (chunks, missed) = &*given[1].borrow();
    assert_eq!(chunks.len() as u64 + missed, 500);
    assert_eq!(shard.memory().usage.leased_bytes, 64 << 10); // The smaller ones went back.
}

#[test]
fn old_chunks_are_kept_while_all_rings_take_little_memory() {
    for others in [0, 2] {
        // Half a megabyte in use is little of 16, and a thirty-second part of it.
        let mut shard = shard(1 << 24);
        let need = Need { ring_bytes: 256 * KIB, chunk_bytes: 0, ..Default::default() };
        for _ in 0..others {
            let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
            shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
        }
        let id = open(&mut shard, Work::Feed, 64 * KIB);
        let first = follow(&mut shard, id, with(Policy::Drop));
        for at in 0..200u8 {
            shard.publish(id, Kind::Output, &[at; 100]).unwrap();
        }
        assert_eq!((first.borrow().0.len(), first.borrow().1), (200, 0));
        let late = follow(&mut shard, id, with(Policy::Drop));
        shard.publish(id, Kind::Output, b"live").unwrap();
        let (chunks, missed) = &*late.borrow();
        assert_eq!(chunks.len() as u64 + missed, 201);
        match others {
            0 => assert_eq!((class_of(&mut shard, id), *missed), (64 * KIB, 0)),
            _ => assert_eq!(class_of(&mut shard, id), 4 * KIB),
        }
        shard.audit();
    }
}

#[test]
fn a_chunk_that_is_too_long_for_now_makes_the_ring_grow() {
    let mut shard = shard(1 << 24);
    let id = open(&mut shard, Work::Feed, 256 * KIB);
    let given = follow(&mut shard, id, with(Policy::Block));
    shard.publish(id, Kind::Output, b"small").unwrap();
    assert_eq!(class_of(&mut shard, id), 4 * KIB);
    let long = vec![7; Geometry::of_class(64 * KIB).length_max() as usize];
    assert_eq!(shard.publish(id, Kind::Output, &long), Ok(2));
    assert_eq!(class_of(&mut shard, id), 64 * KIB);
    let longest = Geometry::of_class(256 * KIB).length_max();
    let (now, batch): (_, [&[u8]; 3]) = (shard.now(), [b"a", &long, b"b"]);
    assert_eq!(shard.publish_batch(id, Kind::Output, &batch, now), Ok(5));
    let refused = shard.publish(id, Kind::Output, &vec![0; longest as usize + 1]);
    assert_eq!(refused, Err(PublishError::TooLarge { chunk_bytes_max: longest }));
    assert_eq!(shard.publish(id, Kind::Output, &vec![0; longest as usize]), Ok(6));
    let seqs: Vec<u64> = given.borrow().0.iter().map(|(seq, _)| *seq).collect();
    assert_eq!((seqs, given.borrow().1), (vec![1, 2, 3, 4, 5, 6], 0));
    shard.audit();
}

#[test]
fn without_memory_a_ring_stays_small_and_nothing_is_lost() {
    let takes = Geometry::of_class(4 * KIB).length_max();
    for is_short in [false, true] {
        // There is no room for a larger window beside another ring, or memory is short.
        let mut shard = shard(if is_short { 1 << 24 } else { 20 << 10 });
        open(&mut shard, Work::Feed, 4 * KIB);
        let tool = Burst::of(300, takes.into());
        let id = open(&mut shard, Work::Steps(Box::new(tool)), 64 * KIB);
        let given = follow(&mut shard, id, with(Policy::Block));
        if is_short {
            shard.set_readings(&Readings { memory_some_avg10: Some(60.0), ..Default::default() });
        }
        turn_until_idle(&mut shard);
        assert_eq!(class_of(&mut shard, id), 4 * KIB);
        assert_eq!((given.borrow().0.len(), given.borrow().1), (300, 0));
        assert_eq!((shard.counters().rings_grown, shard.counters().ring_growths_refused), (0, 1));
    }
}

#[test]
fn a_chunk_that_no_window_takes_is_refused_with_the_length_that_the_ring_takes() {
    let mut shard = shard(8 << 10);
    let id = open(&mut shard, Work::Feed, 64 * KIB);
    let takes = Geometry::of_class(4 * KIB).length_max();
    let refused = shard.publish(id, Kind::Output, &vec![0; takes as usize + 1]);
    assert_eq!(refused, Err(PublishError::TooLarge { chunk_bytes_max: takes }));
    assert_eq!(shard.publish(id, Kind::Output, &vec![0; takes as usize]), Ok(1));
    follow(&mut shard, id, with(Policy::Block)); // Without a reader the oldest chunks are held.
    // A payload of any length is published in pieces.
    let id_of = |shard: &mut Shard| shard.inspect(id).unwrap().head_seq;
    assert_eq!(feed::publish_pieces(&mut shard, id, Kind::Output, &vec![1; 3_000]), Ok(3_000));
    assert_eq!(id_of(&mut shard), 6);
}

#[test]
fn a_reader_that_needs_more_gets_the_whole_ring_before_it_comes() {
    let specs = [
        SubscribeSpec { limit_chunks: Some(100), ..with(Policy::Block) },
        SubscribeSpec { replays: true, ..with(Policy::Block) },
        SubscribeSpec { ack_window: Some(9), ..with(Policy::Drop) },
        with(Policy::Buffer),
        with(Policy::Disconnect),
        with(Policy::Conflate),
    ];
    for spec in specs {
        let mut shard = shard(1 << 24);
        let id = open(&mut shard, Work::Feed, 64 * KIB);
        shard.publish(id, Kind::Output, b"before").unwrap();
        let given = follow(&mut shard, id, spec);
        assert_eq!(class_of(&mut shard, id), 64 * KIB, "{spec:?}");
        shard.publish(id, Kind::Output, b"after").unwrap();
        let expected = [(1, b"before".to_vec()), (2, b"after".to_vec())];
        assert_eq!(given.borrow().0, expected, "{spec:?}");
        shard.audit();
    }
}

#[test]
fn a_reader_that_needs_more_and_comes_before_the_ring_gets_a_whole_one() {
    for (spec, class_bytes) in [
        (SubscribeSpec { replays: true, ..with(Policy::Block) }, 64 * KIB),
        (with(Policy::Block), 4 * KIB),
    ] {
        let mut shard = shard(64 << 10);
        let need = Need { ring_bytes: 64 * KIB, chunk_bytes: 0, ..Default::default() };
        let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
        let all = shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
        let id = open(&mut shard, Work::Feed, 64 * KIB);
        assert_eq!(shard.inspect(id).unwrap().ring, None); // It waits for memory.
        let given = follow(&mut shard, id, spec);
        shard.finish(all, Ok(())).unwrap();
        turn_until_idle(&mut shard);
        assert_eq!(class_of(&mut shard, id), class_bytes);
        for at in 0..100u8 {
            shard.publish(id, Kind::Output, &[at; 100]).unwrap();
        }
        assert_eq!((given.borrow().0.len(), given.borrow().1), (100, 0));
        shard.audit();
    }
}

#[test]
fn a_reader_on_another_thread_reads_the_ring_that_stays() {
    let mut shard = shard(1 << 24);
    let id = open(&mut shard, Work::Feed, 64 * KIB);
    for at in 0..10u8 {
        shard.publish(id, Kind::Output, &[at]).unwrap();
    }
    let mut reader = shard.subscribe_remote(id, with(Policy::Block)).unwrap();
    assert_eq!(class_of(&mut shard, id), 64 * KIB);
    for at in 10..20u8 {
        shard.publish(id, Kind::Output, &[at]).unwrap();
    }
    for at in 0..20u8 {
        match reader.poll() {
            Some(Delivery::Chunk(chunk)) => assert_eq!(chunk.data, [at]),
            other => panic!("{other:?} instead of chunk {at}"),
        }
    }
    // It gates: what it has not read is kept, and the ring is as large as it will ever be.
    let long = vec![0; Geometry::of_class(64 * KIB).length_max() as usize];
    while shard.publish(id, Kind::Output, &long).is_ok() {}
    assert_eq!(class_of(&mut shard, id), 64 * KIB);
    shard.audit();
}

#[test]
fn a_tool_on_a_thread_of_its_own_has_the_whole_ring() {
    let mut shard = shard(1 << 24);
    shard.run_jobs_by_hand();
    let id = open(&mut shard, Work::Thread(Box::new(|_| Ok(()))), 64 * KIB);
    assert_eq!(class_of(&mut shard, id), 64 * KIB);
}
