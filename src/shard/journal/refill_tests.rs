//! Readers on other threads that are given from the disk what the ring no longer holds.

use std::thread;
use std::time::Duration;

use super::keeping_tests::{Folder, chunk, open, publish, turn_until};
use crate::base::Random;
use crate::engine::SubscribeSpec;
use crate::limits;
use crate::reactor::Choice;
use crate::shard::{Delivery, Subscriber};
use crate::stream::{Durability, EndState, GapReason, Kind, Kinds, Outcome, Policy, Totals};

/// Number of readers, on two executions: one has 64 on other threads at most.
const READERS: usize = 100;
/// Number of times that a ring is overwritten.
const LAPS: u64 = 1_000;
/// Number of chunks that are published in a row.
const BURST: usize = 25;

fn replay(kinds: Kinds) -> SubscribeSpec {
    SubscribeSpec { policy: Policy::Replay, kinds, ..Default::default() }
}

/// Reads everything, with pauses. Returns the totals of what it was given.
fn read(mut subscriber: Subscriber, kinds: Kinds, seed: u64) -> Totals {
    let mut random = Random::new(seed);
    let (mut given, mut last_seq) = (Totals::ZERO, 0);
    loop {
        match subscriber.next() {
            Delivery::Chunk(taken) => {
                let (kind, bytes) = chunk(taken.seq);
                assert_eq!((taken.kind, taken.data), (kind, &bytes[..]), "chunk {}", taken.seq);
                let between = last_seq + 1..taken.seq;
                assert!(!between.clone().any(|seq| kinds.contains(chunk(seq).0)), "{between:?}");
                last_seq = taken.seq;
                given.count(bytes.len() as u32);
            }
            Delivery::Gap(gap) => panic!("{gap:?} after {last_seq}"),
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                assert_eq!(ended.end.state, EndState::Ended(Outcome::Completed));
                assert_eq!((ended.end.given, ended.end.published), (given, given));
                return given;
            }
        }
        if random.chance(1, 1_000) {
            thread::sleep(Duration::from_micros(random.below(2_000)));
        }
    }
}

/// Each of a hundred threads begins at a random moment, while the ring is overwritten more than a
/// thousand times.
#[test]
fn readers_on_other_threads_are_given_everything_once_although_the_ring_forgets() {
    for choice in [Choice::Auto, Choice::Mio] {
        let folder = Folder::new("threads");
        let mut shard = folder.shard_with(choice, limits::JOURNAL_SEGMENT_BYTES); // One takes all.
        let ids = [(); 2].map(|()| open(&mut shard, Durability::Written));
        let ring = shard.inspect(ids[0]).unwrap().ring.unwrap();
        let head_seq = LAPS * u64::from(ring.slot_count);
        let mut random = Random::new(9);
        let mut begins: Vec<u64> = (0..READERS).map(|_| random.below(head_seq)).collect();
        begins.sort_unstable();
        let expected = |kinds: Kinds| {
            let mut all = Totals::ZERO;
            let chunks = (1..=head_seq).map(chunk).filter(|(kind, _)| kinds.contains(*kind));
            chunks.for_each(|(_, bytes)| all.count(bytes.len() as u32));
            all
        };
        let (mut readers, mut begins) = (Vec::new(), begins.into_iter().peekable());
        for from_seq in (1..=head_seq).step_by(BURST) {
            while begins.next_if(|begin| *begin < from_seq).is_some() {
                let id = ids[readers.len() % 2];
                let kinds = match random.below(3) {
                    0 => Kinds::NONE.with(Kind::ALL[random.below(3) as usize]),
                    _ => Kinds::ALL,
                };
                let subscriber = shard.subscribe_remote(id, replay(kinds)).unwrap();
                let seed = random.next_u64();
                readers.push((kinds, thread::spawn(move || read(subscriber, kinds, seed))));
            }
            let until_seq = (from_seq + BURST as u64 - 1).min(head_seq);
            ids.iter().for_each(|id| publish(&mut shard, *id, from_seq..=until_seq));
            shard.turn();
        }
        assert_eq!(readers.len(), READERS);
        ids.iter().for_each(|id| shard.finish(*id, Ok(())).unwrap());
        assert_eq!(shard.inspect(ids[0]).unwrap().ring, Some(ring), "it holds as much as before");
        while !readers.iter().all(|(_, reader)| reader.is_finished()) {
            shard.turn();
            thread::yield_now();
        }
        for (kinds, reader) in readers {
            assert_eq!(reader.join().unwrap(), expected(kinds));
        }
        shard.audit();
        println!("{choice:?}: {READERS} readers of {head_seq} chunks through {LAPS} laps");
    }
}

#[test]
fn a_reader_on_another_thread_leaves_while_the_disk_reads_for_it() {
    let folder = Folder::new("leaves");
    let mut shard = folder.shard(Choice::Auto);
    let id = open(&mut shard, Durability::Written);
    publish(&mut shard, id, 1..=500);
    turn_until(&mut shard, |shard| shard.durable_seq(id) == Some(500));
    for turns in 0..10 {
        let mut subscriber = shard.subscribe_remote(id, replay(Kinds::ALL)).unwrap();
        assert!(subscriber.poll().is_none()); // It has asked.
        for _ in 0..turns {
            shard.turn();
        }
        drop(subscriber);
        while shard.turn() {}
        shard.audit();
    }
    assert_eq!(shard.inspect(id).unwrap().subscriber_count, 0);
    let spec = SubscribeSpec { policy: Policy::Drop, ..Default::default() };
    let mut other = shard.subscribe_remote(id, spec).unwrap();
    let Some(Delivery::Gap(gap)) = other.poll() else { panic!("it begins with a gap") };
    assert_eq!((gap.from_seq, gap.reason), (1, GapReason::Late));
}
