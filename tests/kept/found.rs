//! The journal as another process finds it, compared with what the one before has said.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use streamdoor::base::ExecutionId;
use streamdoor::engine::SubscribeSpec;
use streamdoor::shard::{Delivery, Recall, Shard};
use streamdoor::stream::{EndState, Gap, GapReason, Outcome, Policy};

use crate::keeper::{chunk, turn_until};
use crate::load::Word;

/// The promises for an execution.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promised {
    pub durable_seq: u64,
    /// The number of chunks, if a subscriber was told the end.
    pub told: Option<u64>,
}

/// The promises for all executions.
pub type Promises = HashMap<ExecutionId, Promised>;

/// Notes a promise.
pub fn note(promises: &mut Promises, id: ExecutionId, word: Word) {
    let promised = promises.entry(id).or_default();
    match word {
        Word::Acked(seq) => promised.durable_seq = seq,
        Word::Told(count) => promised.told = Some(count),
    }
}

/// The deliveries to a subscriber. Chunks and gaps follow each other.
#[derive(Default)]
pub struct Given {
    /// The last chunk that was given, or that a gap counted.
    pub seq: u64,
    pub gaps: Vec<Gap>,
    pub ends: Vec<(EndState, Option<String>)>,
}

/// Subscribes to an execution from its first chunk, and checks each chunk and each gap.
pub fn follow(shard: &mut Shard, id: ExecutionId, policy: Policy) -> Rc<RefCell<Given>> {
    let given = Rc::new(RefCell::new(Given::default()));
    let notes = Rc::clone(&given);
    let note = move |delivery: &Delivery<'_>| {
        let mut notes = notes.borrow_mut();
        match delivery {
            Delivery::Chunk(given) => {
                notes.seq += 1;
                let (kind, bytes) = chunk(id, notes.seq);
                assert_eq!((given.seq, given.kind), (notes.seq, kind));
                assert!(given.data == bytes, "chunk {} of {id} is wrong", given.seq);
            }
            Delivery::Gap(gap) => {
                assert_eq!(gap.reason, GapReason::Unwritten, "{id}"); // The disk was too slow.
                assert_eq!(gap.from_seq, notes.seq + 1);
                assert_eq!(gap.chunk_count, gap.to_seq - notes.seq);
                let bytes = |seq| chunk(id, seq).1.len() as u64;
                let byte_count = (gap.from_seq..=gap.to_seq).map(bytes).sum::<u64>();
                assert_eq!(gap.byte_count, byte_count, "{id}: {gap:?}");
                notes.seq = gap.to_seq;
                notes.gaps.push(*gap);
            }
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                notes.ends.push((ended.end.state, ended.error.map(str::to_owned)));
            }
        }
    };
    let spec = SubscribeSpec { policy, ..Default::default() };
    shard.subscribe(id, spec, note).unwrap();
    given
}

/// An execution that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub count: u64,
    /// Number of chunks that the disk was too slow for.
    pub missing: u64,
    pub outcome: Outcome,
}

/// Reads an execution from its first chunk to its end.
pub fn read(shard: &mut Shard, id: ExecutionId) -> Found {
    turn_until(shard, |shard| shard.recall(id).expect("it is kept") == Recall::Here);
    let given = follow(shard, id, Policy::Replay);
    // A closure that panics is dropped.
    turn_until(shard, |_| !given.borrow().ends.is_empty() || Rc::strong_count(&given) == 1);
    shard.turn();
    let given = given.borrow();
    let [(EndState::Ended(outcome), _)] = given.ends[..] else { panic!("{id}: {:?}", given.ends) };
    let missing = given.gaps.iter().map(|gap| gap.chunk_count).sum();
    Found { count: given.seq, missing, outcome }
}

impl Found {
    /// Checks everything that was promised.
    pub fn check(&self, id: ExecutionId, Promised { durable_seq, told }: Promised) {
        let Found { count, outcome, .. } = *self;
        assert!(count >= durable_seq, "{id} has {count} of {durable_seq} chunks");
        match told {
            Some(told) => assert_eq!((count, outcome), (told, Outcome::Completed), "{id}"),
            // It was running, or its end was kept and not told yet.
            None => assert!(matches!(outcome, Outcome::Failed | Outcome::Completed), "{id}"),
        }
    }
}
