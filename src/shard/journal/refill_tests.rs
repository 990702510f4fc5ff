//! Readers on other threads that are given from the disk what the ring no longer holds.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Recall;
use super::keeping_tests::{Folder, chunk, open, publish, turn_until};
use crate::base::{ExecutionId, Random};
use crate::engine::{From, SubscribeSpec};
use crate::limits;
use crate::reactor::Choice;
use crate::shard::{Audience, Delivery, ExecuteOptions, PublishError, Shard, Subscriber};
use crate::stream::{DetachReason, Durability, EndState, Kind, Kinds, Outcome, Policy, Totals};
use crate::tool::{Need, Output, Prepared, Work};

/// Number of readers, on two executions: one has 64 on other threads at most.
const READERS: usize = 100;
/// Number of times that a ring is overwritten.
const LAPS: u64 = 1_000;
/// Number of chunks that are published in a row.
const BURST: usize = 25;

fn with(policy: Policy, kinds: Kinds) -> SubscribeSpec {
    SubscribeSpec { policy, kinds, ..Default::default() }
}

/// Totals of the chunks of these kinds.
fn totals(kinds: Kinds, seqs: impl Iterator<Item = u64>) -> Totals {
    let mut all = Totals::ZERO;
    let chunks = seqs.map(chunk).filter(|(kind, _)| kinds.contains(*kind));
    chunks.for_each(|(_, bytes)| all.count(bytes.len() as u32));
    all
}

/// The deliveries to a reader, in the order of the log.
struct Told {
    kinds: Kinds,
    next_seq: u64,
    given: Totals,
    missed: Totals,
    end: Option<EndState>,
}

impl Told {
    fn new(kinds: Kinds) -> Told {
        Told { kinds, next_seq: 1, given: Totals::ZERO, missed: Totals::ZERO, end: None }
    }

    /// Checks that each delivery follows the one before.
    fn note(&mut self, delivery: &Delivery<'_>) {
        match delivery {
            Delivery::Chunk(taken) => {
                let (kind, bytes) = chunk(taken.seq);
                assert_eq!((taken.kind, taken.data), (kind, &bytes[..]), "chunk {}", taken.seq);
                self.follows(taken.seq, taken.seq + 1);
                self.given.count(bytes.len() as u32);
            }
            Delivery::Gap(gap) => {
                let exact = totals(self.kinds, gap.from_seq..=gap.to_seq);
                let told = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
                assert_eq!(told, exact, "{gap:?}");
                self.follows(gap.from_seq, gap.to_seq + 1);
                self.missed = self.missed + exact;
            }
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                assert_eq!((ended.end.given, ended.end.missed), (self.given, self.missed));
                self.end = Some(ended.end.state);
            }
        }
    }

    fn follows(&mut self, seq: u64, next_seq: u64) {
        let between = totals(self.kinds, self.next_seq..seq);
        assert!(seq >= self.next_seq && between.chunks == 0, "{seq} after {}", self.next_seq);
        self.next_seq = next_seq;
    }

    /// Checks the end under a policy. The last chunk is `head_seq`.
    fn check(&self, policy: Policy, head_seq: u64) {
        let until_seq = match self.end.expect("it has come") {
            EndState::Detached { reason: DetachReason::Lag, resume_from } => {
                assert_eq!(policy, Policy::Disconnect);
                assert!(self.next_seq <= resume_from && resume_from <= head_seq);
                resume_from
            }
            state => {
                assert_eq!(state, EndState::Ended(Outcome::Completed));
                head_seq + 1
            }
        };
        assert_eq!(self.given + self.missed, totals(self.kinds, 1..until_seq), "{policy}");
        let misses = !matches!(policy, Policy::Block | Policy::Replay | Policy::Disconnect);
        assert!(misses || self.missed == Totals::ZERO, "{policy} misses {:?}", self.missed);
    }
}

/// Reads everything, with pauses.
fn read(mut subscriber: Subscriber, kinds: Kinds, seed: u64) -> Told {
    let mut random = Random::new(seed);
    let mut told = Told::new(kinds);
    while told.end.is_none() {
        told.note(&subscriber.next());
        if random.chance(1, 1_000) {
            thread::sleep(Duration::from_micros(random.below(2_000)));
        }
    }
    told
}

/// Publishes as [`publish`] does, and waits for the readers that hold the producer back.
fn publish_gated(shard: &mut Shard, id: ExecutionId, seqs: std::ops::RangeInclusive<u64>) {
    for seq in seqs {
        let (kind, bytes) = chunk(seq);
        turn_until(shard, |shard| match shard.publish(id, kind, &bytes) {
            Ok(published) => {
                assert_eq!(published, seq);
                true
            }
            Err(error) => {
                assert_eq!(error, PublishError::Blocked);
                false
            }
        });
        if seq % 100 == 0 {
            turn_until(shard, |shard| shard.durable_seq(id).is_none_or(|at| at == seq));
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
        let (mut readers, mut begins) = (Vec::new(), begins.into_iter().peekable());
        for from_seq in (1..=head_seq).step_by(BURST) {
            while begins.next_if(|begin| *begin < from_seq).is_some() {
                let id = ids[readers.len() % 2];
                let kinds = match random.below(3) {
                    0 => Kinds::NONE.with(Kind::ALL[random.below(3) as usize]),
                    _ => Kinds::ALL,
                };
                let policy = Policy::ALL[readers.len() / 2 % Policy::ALL.len()];
                let subscriber = shard.subscribe_remote(id, with(policy, kinds)).unwrap();
                let seed = random.next_u64();
                readers.push((policy, thread::spawn(move || read(subscriber, kinds, seed))));
            }
            let until_seq = (from_seq + BURST as u64 - 1).min(head_seq);
            ids.iter().for_each(|id| publish_gated(&mut shard, *id, from_seq..=until_seq));
            shard.turn();
        }
        assert_eq!(readers.len(), READERS);
        ids.iter().for_each(|id| shard.finish(*id, Ok(())).unwrap());
        assert_eq!(shard.inspect(ids[0]).unwrap().ring, Some(ring), "it holds as much as before");
        while !readers.iter().all(|(_, reader)| reader.is_finished()) {
            shard.turn();
            thread::yield_now();
        }
        for (policy, reader) in readers {
            reader.join().unwrap().check(policy, head_seq);
        }
        shard.audit();
        println!("{choice:?}: {READERS} readers of {head_seq} chunks through {LAPS} laps");
    }
}

/// The tool, the shard and each reader have a thread of their own. A chunk may be overwritten while
/// its reader says that it is level.
#[test]
fn readers_on_other_threads_follow_a_tool_on_its_own_thread() {
    const READERS: u64 = 20;
    let folder = Folder::new("tool");
    let mut shard = folder.shard_with(Choice::Auto, limits::JOURNAL_SEGMENT_BYTES);
    let head_seq = 20_000;
    let work = move |out: &mut Output| {
        for seq in 1..=head_seq {
            let (kind, bytes) = chunk(seq);
            out.send_as(kind, 0, &bytes)?;
            if seq % 100 == 0 {
                out.sync().unwrap(); // No chunk is missed for want of room.
            }
        }
        Ok(())
    };
    let need = Need { ring_bytes: 4 << 10, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(Work::Thread(Box::new(work))) };
    let id = shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
    let policies = [Policy::Block, Policy::Replay, Policy::Drop, Policy::Disconnect];
    let mut readers: Vec<(Policy, JoinHandle<Told>)> = Vec::new();
    while (readers.len() as u64) < READERS
        || readers.iter().any(|(_, reader)| !reader.is_finished())
    {
        let at = readers.len() as u64;
        if at < READERS && shard.inspect(id).unwrap().head_seq >= at * (head_seq / READERS) {
            let policy = policies[readers.len() % policies.len()];
            if let Ok(subscriber) = shard.subscribe_remote(id, with(policy, Kinds::ALL)) {
                let read = move || read(subscriber, Kinds::ALL, at);
                readers.push((policy, thread::spawn(read)));
            }
        }
        shard.turn();
        thread::yield_now();
    }
    for (policy, reader) in readers {
        reader.join().unwrap().check(policy, head_seq);
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
        let mut subscriber = shard.subscribe_remote(id, with(Policy::Replay, Kinds::ALL)).unwrap();
        assert!(subscriber.poll().is_none()); // It has asked.
        for _ in 0..turns {
            shard.turn();
        }
        drop(subscriber);
        while shard.turn() {}
        shard.audit();
    }
    assert_eq!(shard.inspect(id).unwrap().subscriber_count, 0);
}

/// Takes what is due. Returns the number of deliveries.
fn take(subscriber: &mut Subscriber, told: &mut Told) -> usize {
    subscriber.drain(usize::MAX, |delivery| told.note(&delivery))
}

/// Lets a subscriber read until it is given nothing more.
fn catch_up(shard: &mut Shard, subscriber: &mut Subscriber, told: &mut Told, head_seq: u64) {
    turn_until(shard, |_| {
        take(subscriber, told);
        told.next_seq > head_seq
    });
}

/// Publishes chunks, as far as no reader holds the producer back. Returns the newest one.
fn publish_all(shard: &mut Shard, id: ExecutionId, from_seq: u64, until_seq: u64) -> u64 {
    for seq in from_seq..until_seq {
        let (kind, bytes) = chunk(seq);
        if shard.publish(id, kind, &bytes).is_err() {
            return seq - 1;
        }
    }
    until_seq - 1
}

#[test]
fn a_block_reader_on_another_thread_gates_from_the_moment_at_which_it_is_level() {
    let folder = Folder::new("gates");
    let mut shard = folder.shard(Choice::Auto);
    let id = open(&mut shard, Durability::Written);
    publish(&mut shard, id, 1..=500);
    let spec = with(Policy::Block, Kinds::ALL);
    let (mut reader, mut told) = (shard.subscribe_remote(id, spec).unwrap(), Told::new(Kinds::ALL));
    publish(&mut shard, id, 501..=900); // Nobody waits for it.
    catch_up(&mut shard, &mut reader, &mut told, 900);
    while shard.turn() {}
    // Now it is level, and the ring takes no more than it holds.
    let head_seq = publish_all(&mut shard, id, 901, 5_000);
    let slot_count = u64::from(shard.inspect(id).unwrap().ring.unwrap().slot_count);
    assert!(head_seq > 900 && head_seq <= 900 + slot_count, "{head_seq}");
    assert!(shard.subscribers(id).unwrap()[0].gates);
    assert!(take(&mut reader, &mut told) > 0);
    turn_until(&mut shard, |shard| {
        take(&mut reader, &mut told);
        publish_all(shard, id, head_seq + 1, head_seq + 2) > head_seq
    });
    shard.finish(id, Ok(())).unwrap();
    turn_until(&mut shard, |_| {
        take(&mut reader, &mut told);
        told.end.is_some()
    });
    told.check(Policy::Block, head_seq + 1);
    assert_eq!(shard.counters().subscribers_detached_stall, 0);
}

#[test]
fn a_reader_that_is_overtaken_before_the_shard_knows_that_it_is_level_is_back_on_disk() {
    let folder = Folder::new("overtaken");
    let mut shard = folder.shard_with(Choice::Auto, limits::JOURNAL_SEGMENT_BYTES);
    let id = open(&mut shard, Durability::Written);
    publish(&mut shard, id, 1..=100);
    let spec = with(Policy::Block, Kinds::ALL);
    let (mut reader, mut told) = (shard.subscribe_remote(id, spec).unwrap(), Told::new(Kinds::ALL));
    let mut head_seq = 100;
    for _ in 0..20 {
        // It reads, and so says that it is level, but the shard does not look.
        turn_until(&mut shard, |_| {
            take(&mut reader, &mut told);
            told.next_seq > head_seq
        });
        head_seq = publish_all(&mut shard, id, head_seq + 1, head_seq + 401);
        turn_until(&mut shard, |shard| {
            take(&mut reader, &mut told);
            shard.durable_seq(id).is_none_or(|at| at == head_seq)
        });
    }
    shard.finish(id, Ok(())).unwrap();
    turn_until(&mut shard, |_| {
        take(&mut reader, &mut told);
        told.end.is_some()
    });
    told.check(Policy::Block, head_seq);
}

#[test]
fn readers_of_one_thread_that_come_level_together_gate_one_by_one() {
    for policy in [Policy::Block, Policy::Replay] {
        let folder = Folder::new(&format!("together-{policy}"));
        let mut shard = folder.shard(Choice::Auto);
        let id = open(&mut shard, Durability::Written);
        publish(&mut shard, id, 1..=500);
        let mut audience = Audience::new();
        for _ in 0..8 {
            let member = shard.subscribe_remote(id, with(policy, Kinds::ALL)).unwrap();
            audience.join(member, Told::new(Kinds::ALL)).unwrap();
        }
        let read = |audience: &mut Audience<Told>| {
            audience.drain(usize::MAX, |told, delivery| told.note(&delivery));
        };
        turn_until(&mut shard, |_| {
            read(&mut audience);
            audience.members().all(|(_, told)| told.next_seq > 500)
        });
        while shard.turn() {}
        let head_seq = publish_all(&mut shard, id, 501, 2_000);
        let gates = shard.subscribers(id).unwrap().iter().filter(|all| all.gates).count();
        assert_eq!(gates, if policy == Policy::Block { 8 } else { 0 });
        assert_eq!(head_seq < 1_999, policy == Policy::Block);
        shard.finish(id, Ok(())).unwrap();
        let mut ends = 0;
        turn_until(&mut shard, |_| {
            audience.drain(usize::MAX, |told, delivery| {
                told.note(&delivery);
                if told.end.is_some() {
                    told.check(policy, head_seq);
                    ends += 1;
                }
            });
            audience.is_empty()
        });
        assert_eq!(ends, 8);
    }
}

#[test]
fn a_connection_elsewhere_that_is_lost_holds_nobody_and_comes_back_from_the_disk() {
    let folder = Folder::new("lost");
    let mut shard = folder.shard(Choice::Auto);
    let id = open(&mut shard, Durability::Written);
    publish(&mut shard, id, 1..=500);
    for ack_window in [None, Some(7)] {
        let spec = SubscribeSpec { replays: true, ack_window, ..with(Policy::Block, Kinds::ALL) };
        let mut reader = shard.subscribe_for_shard(id, spec, None).unwrap();
        assert!(reader.replay().is_none(), "the ring keeps nothing for it");
        reader.keep_its_place();
        let mut told = Told::new(Kinds::ALL);
        turn_until(&mut shard, |_| {
            take(&mut reader, &mut told);
            told.next_seq > 7
        });
        assert_eq!(told.next_seq == 8, ack_window.is_some());
        let next_seq = told.next_seq;
        drop(reader);
        while shard.turn() {}
        assert_eq!(shard.inspect(id).unwrap().subscriber_count, 0);
        let from = From::Seq { seq: next_seq, seen: None };
        let mut reader = shard.subscribe_remote(id, SubscribeSpec { from, ..spec }).unwrap();
        let Told { given: before, .. } = told;
        turn_until(&mut shard, |_| {
            reader.drain(usize::MAX, |delivery| match delivery {
                Delivery::End(_) => unreachable!("it goes on"),
                delivery => told.note(&delivery),
            });
            told.next_seq > 500
        });
        assert_eq!(told.given, totals(Kinds::ALL, 1..=500));
        assert!(before.chunks < 500);
    }
}

#[test]
fn a_client_elsewhere_acknowledges_what_the_disk_gives() {
    let folder = Folder::new("acks");
    let mut shard = folder.shard(Choice::Auto);
    let id = open(&mut shard, Durability::Written);
    publish(&mut shard, id, 1..=500);
    for kinds in [Kinds::ALL, Kinds::NONE.with(Kind::ALL[1])] {
        let spec = SubscribeSpec { ack_window: Some(5), ..with(Policy::Replay, kinds) };
        let mut reader = shard.subscribe_for_shard(id, spec, None).unwrap();
        let (subscriber, mut told) = (reader.id(), Told::new(kinds));
        let all = totals(kinds, 1..=500);
        while told.given != all {
            let before = told.given.chunks;
            turn_until(&mut shard, |_| {
                take(&mut reader, &mut told);
                told.given.chunks > before
            });
            assert!(told.given.chunks <= before + 5);
            reader.settle();
            shard.sample_readers(id.slot.index);
            shard.acknowledge(subscriber, told.next_seq - 1).unwrap();
        }
    }
}

#[test]
fn a_reader_on_another_thread_is_given_what_an_earlier_process_has_kept() {
    let folder = Folder::new("earlier");
    let mut shard = folder.shard(Choice::Auto);
    let id = open(&mut shard, Durability::Synced);
    publish(&mut shard, id, 1..=700);
    shard.finish(id, Ok(())).unwrap();
    turn_until(&mut shard, |shard| shard.durable_seq(id) == Some(700));
    let end = shard.subscribe_remote(id, with(Policy::Replay, Kinds::ALL)).unwrap();
    let reader = thread::spawn(move || read(end, Kinds::ALL, 1));
    turn_until(&mut shard, |_| reader.is_finished()); // The end is on disk.
    drop(shard);
    let mut shard = folder.shard(Choice::Auto);
    turn_until(&mut shard, |shard| shard.recall(id) == Ok(Recall::Here));
    assert_eq!(shard.inspect(id).unwrap().ring, None);
    for policy in Policy::ALL {
        for kinds in [Kinds::ALL, Kinds::NONE.with(Kind::ALL[2])] {
            let subscriber = shard.subscribe_remote(id, with(policy, kinds)).unwrap();
            assert_eq!(subscriber.execution(), id);
            let reader = thread::spawn(move || read(subscriber, kinds, 1));
            while !reader.is_finished() {
                shard.turn();
                thread::yield_now();
            }
            let told = reader.join().unwrap();
            told.check(policy, 700);
            let newest_only = matches!(policy, Policy::DropOldest | Policy::Conflate);
            assert_eq!(told.missed == Totals::ZERO, !newest_only, "{policy}");
        }
    }
    shard.audit();
}
