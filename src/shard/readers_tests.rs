//! One list of tests for the readers of a log. One is the engine's subscriber on the shard's own
//! thread. One is the [`Subscriber`] that reads the ring from elsewhere. One is an [`Audience`] of
//! such subscribers. All evaluate the same policy ([`crate::engine::policy`]) and must give the
//! same things in the same order.
//!
//! The first two stay two machines. The engine is told of each chunk, and keeps the cursors of all
//! its subscribers in one table. A reader elsewhere finds chunks in the ring. It checks afterwards
//! that nothing was overwritten, which the engine never has to.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::base::{ExecutionId, Random};
use crate::engine::{From, Hold, SubscribeSpec};
use crate::memory::RingPoolConfig;
use crate::shard::api::Polled;
use crate::shard::reader::Subscriber;
use crate::shard::{
    Audience, Delivery, ExecuteOptions, MemoryWatch, PublishError, Shard, ShardConfig,
};
use crate::stream::{Gap, Kind, Kinds, Policy};
use crate::tool::{Prepared, Work};

/// A step of an execution or of its reader.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Publishes chunks of this kind, key and length.
    Publish {
        kind: Kind,
        key: u8,
        length: usize,
        count: u32,
    },
    /// Reads at most this number of deliveries.
    Read(u32),
    Finish,
    Cancel,
}

/// The deliveries of a member of an audience that were not compared yet.
type Given = Rc<RefCell<VecDeque<String>>>;

/// The reader under test.
enum Reader {
    Local(Polled),
    Remote(Box<Subscriber>),
    Audience(Audience<Given>, [Given; 3]),
}

impl Reader {
    const KINDS: [&str; 3] = ["local", "remote", "audience"];

    fn attach(which: usize, shard: &mut Shard, id: ExecutionId, spec: SubscribeSpec) -> Reader {
        match which {
            0 => Reader::Local(shard.subscribe_polled(id, spec).unwrap()),
            1 => Reader::Remote(Box::new(shard.subscribe_remote(id, spec).unwrap())),
            _ => {
                let (mut audience, all) = (Audience::new(), [(); 3].map(|()| Given::default()));
                for given in &all {
                    let member = shard.subscribe_remote(id, spec).unwrap();
                    audience.join(member, Rc::clone(given)).unwrap();
                }
                Reader::Audience(audience, all)
            }
        }
    }

    fn read(&mut self, shard: &mut Shard) -> Option<String> {
        match self {
            Reader::Local(polled) => shard.poll(polled).map(|delivery| words(&delivery)),
            Reader::Remote(subscriber) => subscriber.poll().map(|delivery| words(&delivery)),
            Reader::Audience(audience, all) => {
                audience.drain(1, |given, delivery| given.borrow_mut().push_back(words(&delivery)));
                audience.audit();
                let [one, others @ ..] = all.each_ref().map(|given| given.borrow_mut().pop_front());
                assert!(others.iter().all(|other| *other == one), "{one:?}, {others:?}");
                one
            }
        }
    }
}

fn words(delivery: &Delivery<'_>) -> String {
    match delivery {
        Delivery::Chunk(chunk) => {
            let (seq, kind, offset, length) =
                (chunk.seq, chunk.kind, chunk.offset, chunk.data.len());
            format!("{seq} {kind:?} {offset}+{length}")
        }
        // Chunks of other kinds before a gap may have been passed by, or not yet.
        Delivery::Gap(Gap { to_seq, chunk_count, byte_count, reason, .. }) => {
            format!("gap to {to_seq}: {chunk_count}, {byte_count} bytes, {reason}")
        }
        Delivery::Progress(reported) => format!("progress {}", reported.progress.progress),
        Delivery::End(ended) => format!("end {} {}", ended.end.state, ended.error.unwrap_or("")),
    }
}

fn shard() -> Shard {
    let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
    let memory = MemoryWatch::ByHand; // Independent of the load on this machine.
    Shard::new(ShardConfig { rings, seed: Some(1), memory, ..Default::default() }).unwrap().0
}

/// A play of one of the readers.
struct Play {
    shard: Shard,
    id: ExecutionId,
    reader: Option<Reader>,
    /// Chunks that `block` refuses until more was read: kind, key and length. The readers
    /// report their reads at different times.
    refused: VecDeque<(Kind, u8, usize)>,
    given: Vec<String>,
}

/// Plays the steps before one of the readers, and returns what it was given. The steps
/// `before` come before it attaches.
fn play(which: usize, spec: SubscribeSpec, before: &[Step], steps: &[Step]) -> Vec<String> {
    let mut shard = shard();
    let prepared = Prepared::new(Work::Feed);
    let options = ExecuteOptions { hold: Hold::Newest, ..Default::default() };
    let id = shard.execute_prepared(prepared, options).unwrap();
    let (refused, given) = (VecDeque::new(), Vec::new());
    let mut play = Play { shard, id, reader: None, refused, given };
    before.iter().for_each(|step| play.carry_out(*step));
    play.reader = Some(Reader::attach(which, &mut play.shard, id, spec));
    for step in steps {
        if !matches!(step, Step::Publish { .. } | Step::Read(_)) {
            while !play.refused.is_empty() {
                play.carry_out(Step::Read(1));
                play.publish();
            }
        }
        play.carry_out(*step);
        play.publish();
        play.shard.audit();
    }
    play.carry_out(Step::Read(u32::MAX));
    play.given
}

impl Play {
    fn publish(&mut self) {
        while self.shard.turn() {} // A reader elsewhere is heard.
        while let Some((kind, key, length)) = self.refused.front().copied() {
            let (payload, now) = (vec![b'x'; length], self.shard.now());
            match self.shard.publish_at(self.id, kind, key, &payload, now) {
                Ok(_) => _ = self.refused.pop_front(),
                Err(PublishError::Blocked) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    fn carry_out(&mut self, step: Step) {
        match (step, &mut self.reader) {
            (Step::Publish { kind, key, length, count }, _) => {
                self.refused.extend((0..count).map(|_| (kind, key, length)));
                self.publish();
            }
            (Step::Read(count), Some(reader)) => {
                for _ in 0..count {
                    let Some(text) = reader.read(&mut self.shard) else { break };
                    self.given.push(text);
                }
            }
            (Step::Finish, _) => self.shard.finish(self.id, Ok(())).unwrap(),
            (Step::Cancel, _) => self.shard.cancel(self.id).unwrap(),
            (Step::Read(_), None) => {}
        }
    }
}

const ALL: [Policy; 6] = [
    Policy::Block,
    Policy::Drop,
    Policy::DropOldest,
    Policy::Buffer,
    Policy::Conflate,
    Policy::Disconnect,
];

fn spec(policy: Policy, limit_chunks: u32) -> SubscribeSpec {
    SubscribeSpec { policy, limit_chunks: Some(limit_chunks), ..Default::default() }
}

fn chunks(count: u32) -> Step {
    Step::Publish { kind: Kind::Output, key: 0, length: 10, count }
}

/// Plays the steps before each reader, and compares.
fn compare(name: &str, spec: SubscribeSpec, before: &[Step], steps: &[Step]) -> Vec<String> {
    let [local, others @ ..] = [0, 1, 2].map(|which| play(which, spec, before, steps));
    for (other, kind) in others.iter().zip(&Reader::KINDS[1..]) {
        let same = local.iter().zip(other).take_while(|(one, other)| one == other).count();
        assert!(
            local == *other,
            "{name}: {spec:?}\n{steps:?}\nafter {same}: {} {:?}\n{kind} {:?}",
            Reader::KINDS[0],
            &local[same..local.len().min(same + 3)],
            &other[same..other.len().min(same + 3)],
        );
    }
    local
}

#[test]
fn all_readers_give_the_same_under_each_policy() {
    for policy in ALL {
        for (name, steps) in [
            ("in time", &[chunks(3), Step::Read(3), chunks(2), Step::Read(9), Step::Finish][..]),
            ("late by less than the limit", &[chunks(4), Step::Read(9), Step::Finish]),
            ("late by more", &[chunks(20), Step::Read(2), chunks(20), Step::Read(9), Step::Finish]),
            ("overtaken", &[chunks(9_000), Step::Read(5), chunks(9_000), Step::Finish]),
            ("reads after the end", &[chunks(4), Step::Finish]),
            ("cancelled", &[chunks(4), Step::Read(1), Step::Cancel]),
            ("nothing", &[Step::Read(1), Step::Finish]),
        ] {
            let given = compare(name, spec(policy, 8), &[], steps);
            let is_end = |text: &&String| text.starts_with("end ");
            assert_eq!(given.iter().filter(is_end).count(), 1, "{name}, {policy:?}: {given:?}");
        }
    }
}

#[test]
fn all_readers_begin_at_the_same_place() {
    let before = [chunks(9_000)];
    for policy in ALL {
        for from in [From::Start, From::Live, From::Seq { seq: 8_990, seen: None }] {
            let spec = SubscribeSpec { from, ..spec(policy, 8) };
            let steps = [Step::Read(3), chunks(30), Step::Read(20), Step::Finish];
            compare("a beginning", spec, &before, &steps);
        }
    }
}

#[test]
fn all_readers_give_the_same_at_random() {
    let seeds = if cfg!(miri) { 2 } else { 300 };
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let policy = ALL[random.below(6) as usize];
        let kinds = match random.below(3) {
            0 => Kinds::NONE.with(Kind::Output),
            _ => Kinds::ALL,
        };
        let limit_bytes = (random.below(2) == 0).then(|| 1 + random.below(2_000));
        let spec =
            SubscribeSpec { kinds, limit_bytes, ..spec(policy, 1 + random.below(40) as u32) };
        let publish = |random: &mut Random| Step::Publish {
            kind: if random.below(3) == 0 { Kind::Log } else { Kind::Output },
            key: random.below(3) as u8,
            length: random.below(300) as usize,
            count: random.below(60) as u32,
        };
        let before: Vec<Step> = (0..random.below(3)).map(|_| publish(&mut random)).collect();
        let mut steps: Vec<Step> = (0..4 + random.below(30))
            .map(|_| match random.below(2) {
                0 => publish(&mut random),
                // A reader elsewhere decides once for all chunks that it finds, and so loses less.
                _ if matches!(policy, Policy::Drop | Policy::Buffer) => Step::Read(u32::MAX),
                _ => Step::Read(random.below(40) as u32),
            })
            .collect();
        steps.push([Step::Finish, Step::Cancel][random.below(2) as usize]);
        compare(&format!("seed {seed}"), spec, &before, &steps);
    }
}
