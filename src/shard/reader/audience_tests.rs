//! Tests of audiences: each member is given what a twin is given that reads alone.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::base::Random;
use crate::engine::{From, Hold, SubscribeSpec};
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::shard::{ExecuteOptions, MemoryWatch, PublishError, Shard, ShardConfig};
use crate::stream::{Kind, Kinds, Policy};
use crate::tool::{Prepared, Work};

fn shard() -> Shard {
    let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
    let memory = MemoryWatch::ByHand;
    let config = ShardConfig { rings, seed: Some(1), memory, ..Default::default() };
    Shard::new(config).unwrap().0
}

fn open(shard: &mut Shard) -> ExecutionId {
    let options = ExecuteOptions { hold: Hold::Newest, ..Default::default() };
    shard.execute_prepared(Prepared::new(Work::Feed), options).unwrap()
}

/// Publishes one chunk. Returns false if the subscribers have no room for it.
fn publish(shard: &mut Shard, id: ExecutionId, kind: Kind, payload: &[u8]) -> bool {
    let now = shard.now();
    match shard.publish_at(id, kind, payload.first().map_or(0, |first| first % 3), payload, now) {
        Ok(_) => true,
        Err(PublishError::Blocked) => false,
        Err(error) => panic!("{error:?}"),
    }
}

fn words(delivery: &Delivery<'_>) -> String {
    match delivery {
        Delivery::Chunk(chunk) => {
            format!("{} {:?} {} {:?}", chunk.seq, chunk.kind, chunk.offset, chunk.data)
        }
        Delivery::Gap(gap) => format!("{gap:?}"),
        Delivery::Progress(reported) => format!("{:?}", reported.progress),
        Delivery::End(crate::shard::Ended { end, error }) => {
            let crate::stream::End { state, given, missed, published, exit, .. } = end;
            format!("end {state:?} {given:?} {missed:?} {published:?} {exit:?} {error:?}")
        }
    }
}

type Log = Rc<RefCell<Vec<String>>>;

/// A subscriber that reads alone, and the log of its twin in the audience.
struct Twin {
    /// `None` once it was dropped.
    alone: Option<Subscriber>,
    given_alone: Vec<String>,
    member: SubscriberId,
    given: Log,
}

/// An audience, and a twin of each of its members.
struct Scene {
    shard: Shard,
    id: ExecutionId,
    audience: Audience<Log>,
    twins: Vec<Twin>,
    random: Random,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let mut shard = shard();
        let id = open(&mut shard);
        let (audience, twins) = (Audience::new(), Vec::new());
        Scene { shard, id, audience, twins, random: Random::new(seed) }
    }

    fn join(&mut self) {
        let random = &mut self.random;
        let policies =
            [Policy::Block, Policy::Drop, Policy::DropOldest, Policy::Conflate, Policy::Disconnect];
        let policy = policies[random.below(5) as usize];
        let kinds = [Kinds::ALL, Kinds::ALL, Kinds::NONE.with(Kind::Output)];
        let from = [From::Start, From::Live][random.below(2) as usize];
        let spec = SubscribeSpec {
            policy,
            limit_chunks: Some(20 << random.below(2)),
            kinds: kinds[random.below(3) as usize],
            from,
            ..Default::default()
        };
        let is_without_bytes = random.below(8) == 0;
        let Ok(mut alone) = self.shard.subscribe_remote(self.id, spec) else { return };
        let mut joins = self.shard.subscribe_remote(self.id, spec).unwrap();
        alone.headers_only(is_without_bytes);
        joins.headers_only(is_without_bytes);
        let (member, given) = (joins.id(), Log::default());
        self.audience.join(joins, Rc::clone(&given)).unwrap();
        let alone = Some(alone);
        self.twins.push(Twin { alone, given_alone: Vec::new(), member, given });
    }

    /// Lets everybody read the same number of deliveries.
    fn read(&mut self, count_max: usize) {
        let before: usize = self.twins.iter().map(|twin| twin.given.borrow().len()).sum();
        let count = self.audience.drain(count_max, |given, delivery| {
            given.borrow_mut().push(words(&delivery));
        });
        self.audience.audit();
        let after: usize = self.twins.iter().map(|twin| twin.given.borrow().len()).sum();
        assert_eq!(count, after - before);
        for twin in &mut self.twins {
            let Some(alone) = &mut twin.alone else { continue };
            let count = alone.drain(count_max, |delivery| twin.given_alone.push(words(&delivery)));
            assert!(count <= count_max);
        }
    }

    /// Compares all twins. Signals of the shard may be seen at different times, so first everybody
    /// reads what there is.
    fn compare(&mut self, seed: u64) {
        for _ in 0..40 {
            self.read(usize::MAX);
            while self.shard.turn() {}
        }
        for twin in &self.twins {
            assert_eq!(*twin.given.borrow(), twin.given_alone, "seed {seed}, {}", twin.member);
        }
    }

    /// Removes a member and its twin, or lets both read alone from now on.
    fn leave(&mut self) {
        if self.twins.is_empty() {
            return;
        }
        let at = self.random.below(self.twins.len() as u64) as usize;
        let Some((mut subscriber, given)) = self.audience.leave(self.twins[at].member) else {
            return; // It was given its end.
        };
        let twin = &mut self.twins[at];
        let alone = twin.alone.as_mut().expect("it leaves once");
        for _ in 0..3 {
            subscriber.drain(7, |delivery| given.borrow_mut().push(words(&delivery)));
            alone.drain(7, |delivery| twin.given_alone.push(words(&delivery)));
        }
        twin.alone = None;
    }
}

#[test]
fn each_member_is_given_what_its_twin_is_given() {
    let seeds = if cfg!(miri) { 2 } else { 400 };
    for seed in 0..seeds {
        let mut scene = Scene::new(seed);
        scene.join();
        for _ in 0..60 {
            match scene.random.below(12) {
                0 => scene.join(),
                1 => scene.leave(),
                2 | 3 => scene.compare(seed),
                4..=7 => {
                    let count_max = 1 + scene.random.below(12) as usize;
                    scene.read(count_max);
                }
                _ => {
                    for _ in 0..scene.random.below(25) {
                        let kind = [Kind::Output, Kind::Log][scene.random.below(2) as usize];
                        let length = scene.random.below(90) as usize;
                        let payload = vec![scene.random.below(256) as u8; length];
                        if !publish(&mut scene.shard, scene.id, kind, &payload) {
                            break;
                        }
                    }
                }
            }
            scene.shard.turn();
            scene.shard.audit();
        }
        if seed % 2 == 0 {
            scene.shard.finish(scene.id, Ok(())).unwrap();
        } else {
            scene.shard.cancel(scene.id).unwrap();
        }
        scene.compare(seed);
        assert!(scene.audience.is_empty(), "seed {seed}: all have ended");
        for twin in scene.twins.iter().filter(|twin| twin.alone.is_some()) {
            let given = twin.given.borrow();
            let ends = given.iter().filter(|text| text.starts_with("end ")).count();
            assert!(ends == 1 && given[given.len() - 1].starts_with("end "), "seed {seed}");
        }
    }
}

#[test]
fn an_audience_on_another_thread_loses_nothing_and_sleeps_in_between() {
    const MEMBERS: usize = 20;
    let chunk_count: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let mut shard = shard();
    let id = open(&mut shard);
    let block = SubscribeSpec::default();
    let subscribers: Vec<Subscriber> =
        (0..MEMBERS).map(|_| shard.subscribe_remote(id, block).unwrap()).collect();
    let reading = std::thread::spawn(move || {
        let mut counts = [(0, 0); MEMBERS];
        let mut audience = Audience::new();
        for (number, subscriber) in subscribers.into_iter().enumerate() {
            audience.join(subscriber, number).unwrap();
        }
        while !audience.is_empty() {
            audience.wait(Duration::from_secs(60));
            audience.drain(64, |number, delivery| match delivery {
                Delivery::Chunk(chunk) => {
                    let (seq, bytes) = &mut counts[*number];
                    assert_eq!(chunk.seq, *seq + 1);
                    (*seq, *bytes) = (chunk.seq, *bytes + chunk.data.len());
                }
                Delivery::End(ended) => assert_eq!(ended.end.given.chunks, chunk_count),
                other => panic!("{other:?}"),
            });
        }
        counts
    });
    let mut published = 0;
    while published < chunk_count {
        match publish(&mut shard, id, Kind::Output, &[7; 33]) {
            true => published += 1,
            false => std::thread::yield_now(),
        }
        if published % 1_000 == 0 {
            shard.turn(); // Now and then the readers have nothing to do.
        }
    }
    shard.finish(id, Ok(())).unwrap();
    while !reading.is_finished() {
        shard.turn();
    }
    assert_eq!(reading.join().unwrap(), [(chunk_count, 33 * chunk_count as usize); MEMBERS]);
}

#[test]
fn a_panic_of_a_closure_counts_the_chunk_as_given() {
    let mut shard = shard();
    let id = open(&mut shard);
    let mut audience = Audience::new();
    for number in 0..3 {
        let member = shard.subscribe_remote(id, SubscribeSpec::default()).unwrap();
        audience.join(member, number).unwrap();
    }
    for text in [b"one", b"two"] {
        assert!(publish(&mut shard, id, Kind::Output, text));
    }
    let mut seen = Vec::new();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        audience.drain(1, |number, _| {
            seen.push(*number);
            assert!(*number != 1, "a closure that fails");
        });
    }));
    assert!(panicked.is_err() && seen == [0, 1]);
    let mut seqs = Vec::new();
    audience.drain(9, |_, delivery| match delivery {
        Delivery::Chunk(chunk) => seqs.push(chunk.seq),
        other => panic!("{other:?}"),
    });
    assert_eq!(seqs, [2, 2, 2]);
    audience.audit();
}

#[test]
fn a_panic_at_anything_but_a_chunk_leaves_all_others_in_order() {
    for fails in 0..3 {
        let mut shard = shard();
        let id = open(&mut shard);
        let mut audience = Audience::new();
        let spec = SubscribeSpec { policy: Policy::Conflate, ..Default::default() };
        for number in 0..3 {
            audience.join(shard.subscribe_remote(id, spec).unwrap(), number).unwrap();
        }
        for text in [b"one", b"our"] {
            assert!(publish(&mut shard, id, Kind::Output, text));
        }
        let mut all: [Vec<String>; 3] = Default::default();
        let mut read = |audience: &mut Audience<usize>, kind: &str| {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                audience.drain(9, |number, delivery| {
                    let words = words(&delivery);
                    let is_meant = *number == fails && words.starts_with(kind);
                    all[*number].push(words);
                    assert!(!is_meant, "a closure that fails");
                });
            }));
        };
        read(&mut audience, "Gap"); // The second has the key of the first.
        read(&mut audience, "none");
        assert!(publish(&mut shard, id, Kind::Output, b"three"));
        read(&mut audience, "none");
        shard.finish(id, Ok(())).unwrap();
        read(&mut audience, "end ");
        read(&mut audience, "none");
        assert!(audience.is_empty(), "{fails}");
        assert!(all[0].len() >= 4 && all.iter().all(|given| *given == all[0]), "{all:?}");
    }
}

#[test]
fn an_audience_has_room_for_as_many_as_one_thread_can_sleep_on() {
    let mut shard = shard();
    let [one, other] = [open(&mut shard), open(&mut shard)];
    let member =
        |shard: &mut Shard, id| shard.subscribe_remote(id, SubscribeSpec::default()).unwrap();
    let mut audience = Audience::new();
    audience.join(member(&mut shard, one), ()).unwrap();
    let refused = audience.join(member(&mut shard, other), ()).unwrap_err();
    assert_eq!(refused.fault, JoinFault::OtherExecution);
    while audience.len() < AUDIENCE_MEMBERS_MAX {
        if shard.inspect(one).unwrap().subscriber_count == limits::READERS_PER_EXECUTION_MAX {
            // Those that were removed stay members until they were told so.
            let ids: Vec<SubscriberId> = audience.members().map(|(id, ())| id).collect();
            ids.into_iter().for_each(|id| _ = shard.unsubscribe(id));
        }
        audience.join(member(&mut shard, one), ()).unwrap();
    }
    let refused = audience.join(member(&mut shard, one), ()).unwrap_err();
    assert_eq!(refused.fault, JoinFault::Full);
    assert!(refused.to_string().contains("127 members"), "{refused}");
    assert_eq!(refused.subscriber.execution(), one);
    let attached = AUDIENCE_MEMBERS_MAX - limits::READERS_PER_EXECUTION_MAX as usize;
    let mut ends = 0;
    while audience.len() > attached {
        assert!(audience.wait(Duration::from_secs(60)));
        audience.drain(1, |(), delivery| ends += usize::from(matches!(delivery, Delivery::End(_))));
    }
    assert_eq!(ends, limits::READERS_PER_EXECUTION_MAX as usize);
    assert!(!audience.wait(Duration::ZERO));
    assert!(publish(&mut shard, one, Kind::Output, b"for all"));
    assert!(audience.wait(Duration::ZERO));
    assert_eq!(audience.drain(1, |(), _| ()), attached);
    drop((audience, refused));
    shard.turn();
    assert_eq!(shard.inspect(one).unwrap().subscriber_count, 0);
}
