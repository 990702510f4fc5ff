//! Deliveries have a bounded length, and a subscriber without demand in between is given no more.

use crate::stream::{Kind, Kinds, Policy};
use std::collections::BTreeMap;

use super::*;
use crate::base::{ExecutionId, Random};
use crate::limits::{DELIVERY_BYTES_MAX, DELIVERY_CHUNKS_MAX};

const RING: RingFacts = RingFacts {
    slot_count: 1 << 10,
    chunks_max: 896,
    chunk_bytes_max: 1 << 17,
    data_bytes: 1 << 19,
};

/// An engine with one execution, and what its subscribers were given.
struct DeliveryTest {
    engine: Engine,
    id: ExecutionId,
    given: BTreeMap<u32, Vec<u64>>,
    /// Lengths of all chunks, from the first.
    lengths: Vec<u32>,
}

impl DeliveryTest {
    fn new() -> DeliveryTest {
        let limits = EngineLimits { executions_max: 1, subscribers_max: 8, ..Default::default() };
        let mut engine = Engine::new(limits, Instant::ZERO);
        engine.handle(Event::Open(OpenSpec::new(RING)), Instant::ZERO);
        let Some(Action::Reply(Reply::Opened(Ok(id)))) = engine.next_action() else { panic!() };
        engine.handle(Event::Leased(id.slot, RING), Instant::ZERO);
        let mut world = DeliveryTest { engine, id, given: BTreeMap::new(), lengths: Vec::new() };
        world.deliver_all();
        world
    }

    fn subscribe(&mut self, spec: SubscribeSpec) -> SubscriberId {
        self.engine.handle(Event::Subscribe(self.id, spec), Instant::ZERO);
        match self.engine.next_action() {
            Some(Action::Reply(Reply::Subscribed(Ok(subscribed)))) => subscribed.subscriber,
            other => panic!("{other:?}"),
        }
    }

    fn publish(&mut self, lengths: &[u32]) {
        let facts = |&length: &u32| ChunkFacts { length, kind: Kind::Output, key: 0, tail_seq: 1 };
        let facts: Vec<ChunkFacts> = lengths.iter().map(facts).collect();
        self.lengths.extend(lengths);
        self.engine.handle(Event::Published(self.id.slot, &facts), Instant::ZERO);
    }

    /// Returns the next delivery, if there is one: its chunks and its recipients.
    fn deliver(&mut self) -> Option<(std::ops::Range<u64>, Vec<SubscriberId>)> {
        while let Some(action) = self.engine.next_action() {
            let Action::Deliver { from_seq, until_seq, .. } = action else { continue };
            let beyond_first = &self.lengths[from_seq as usize..until_seq as usize - 1];
            assert!(beyond_first.len() < DELIVERY_CHUNKS_MAX as usize, "{from_seq}..{until_seq}");
            let bytes: u64 = beyond_first.iter().map(|&length| u64::from(length)).sum();
            assert!(bytes <= DELIVERY_BYTES_MAX, "{from_seq}..{until_seq}: {bytes} bytes");
            let recipients = self.engine.recipients().to_vec();
            for recipient in &recipients {
                let given = self.given.entry(recipient.0.index).or_default();
                given.extend(from_seq..until_seq);
            }
            self.engine.audit();
            return Some((from_seq..until_seq, recipients));
        }
        None
    }

    fn deliver_all(&mut self) -> usize {
        std::iter::from_fn(|| self.deliver()).count()
    }

    fn has_everything(&self, subscriber: SubscriberId) -> bool {
        let all: Vec<u64> = (1..=self.lengths.len() as u64).collect();
        self.given.get(&subscriber.0.index) == Some(&all)
    }
}

fn block() -> SubscribeSpec {
    SubscribeSpec { policy: Policy::Block, ..Default::default() }
}

#[test]
fn a_backlog_is_given_in_pieces_and_everybody_has_a_turn_before_the_next_piece() {
    let mut world = DeliveryTest::new();
    let (one, two) = (world.subscribe(block()), world.subscribe(block()));
    let filters = SubscribeSpec { kinds: Kinds::NONE.with(Kind::Output), ..block() };
    let three = world.subscribe(filters);
    let four = world.subscribe(SubscribeSpec { demand: 10_000, ..block() });
    world.publish(&[8; 300]);
    let mut given = BTreeMap::new();
    while let Some((chunks, recipients)) = world.deliver() {
        for recipient in recipients {
            assert_eq!(
                given.insert(recipient.0.index, chunks.end - 1).unwrap_or(0),
                chunks.start - 1
            );
        }
        // No subscriber is more than one delivery ahead of another.
        let least = if given.len() == 4 { *given.values().min().unwrap() } else { 0 };
        assert!(given.values().all(|&seq| seq <= least + u64::from(DELIVERY_CHUNKS_MAX)));
    }
    assert!([one, two, three, four].into_iter().all(|each| world.has_everything(each)));
}

#[test]
fn pieces_for_who_stands_abreast_go_to_all_of_them_at_once() {
    let mut world = DeliveryTest::new();
    let all: Vec<SubscriberId> = (0..5).map(|_| world.subscribe(block())).collect();
    world.publish(&[8]);
    assert_eq!(world.deliver_all(), 1);
    assert!(world.engine.deliveries.is_abreast() || world.engine.recipients().len() == 5);
    world.publish(&[8; 640]);
    for _ in 0..10 {
        let (chunks, recipients) = world.deliver().unwrap();
        assert_eq!((chunks.count(), recipients.len()), (64, 5));
        assert!(world.engine.deliveries.is_abreast());
    }
    assert_eq!(world.deliver_all(), 0);
    assert!(all.into_iter().all(|each| world.has_everything(each)));
}

#[test]
fn who_is_full_after_one_piece_is_given_no_more_until_it_asks() {
    let mut world = DeliveryTest::new();
    let (slow, quick) = (world.subscribe(block()), world.subscribe(block()));
    world.publish(&[8]);
    world.deliver_all();
    world.publish(&[8; 200]);
    let (chunks, _) = world.deliver().unwrap();
    assert_eq!(chunks, 2..66);
    world.engine.handle(Event::Demand(slow, 0), Instant::ZERO);
    world.deliver_all();
    assert_eq!(world.given[&slow.0.index].len(), 65);
    assert!(world.has_everything(quick));
    world.engine.handle(Event::Demand(slow, u32::MAX), Instant::ZERO);
    world.deliver_all();
    assert!(world.has_everything(slow));
}

#[test]
fn long_chunks_are_given_alone_and_short_ones_as_far_as_the_bytes_go() {
    let mut world = DeliveryTest::new();
    let all = [world.subscribe(block()), world.subscribe(block())];
    world.publish(&[1 << 17; 5]);
    assert_eq!(world.deliver_all(), 5);
    world.publish(&[1 << 15; 4]); // One, and as many more as are within 64 KiB.
    assert_eq!(world.deliver().unwrap().0, 6..9);
    assert_eq!(world.deliver().unwrap().0, 9..10);
    world.publish(&[1 << 17, 1 << 16, 0, 0, 1, 0]);
    assert_eq!(world.deliver().unwrap().0, 10..14);
    assert_eq!(world.deliver().unwrap().0, 14..16);
    assert!(all.into_iter().all(|each| world.has_everything(each)));
}

#[test]
fn whatever_the_lengths_and_whoever_asks_all_is_given_once_and_in_order() {
    let mut random = Random::new(3);
    for _ in 0..20 {
        let mut world = DeliveryTest::new();
        let mut all = Vec::new();
        for _ in 0..random.between(1, 6) {
            let demand = if random.chance(1, 2) { u32::MAX } else { 0 };
            let kinds = Kinds::NONE.with(Kind::Output).with(Kind::Stderr);
            let kinds = if random.chance(1, 3) { kinds } else { Kinds::ALL };
            all.push(world.subscribe(SubscribeSpec { demand, kinds, ..block() }));
        }
        while world.lengths.len() < 800 {
            let bits = random.between(0, 17);
            let count = random.between(1, 90);
            let lengths: Vec<u32> = (0..count).map(|_| random.below(1 << bits) as u32).collect();
            world.publish(&lengths);
            for _ in 0..random.below(8) {
                if random.chance(1, 4) {
                    let at = random.below(all.len() as u64) as usize;
                    let demand = [0, 1, 100, u32::MAX][random.below(4) as usize];
                    world.engine.handle(Event::Demand(all[at], demand), Instant::ZERO);
                }
                world.deliver();
            }
        }
        for &each in &all {
            world.engine.handle(Event::Demand(each, u32::MAX), Instant::ZERO);
        }
        world.deliver_all();
        assert!(all.into_iter().all(|each| world.has_everything(each)));
    }
}
