//! The journal as another process finds it, compared with what the killed one has said.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use streamdoor::base::ExecutionId;
use streamdoor::engine::SubscribeSpec;
use streamdoor::shard::{Delivery, Recall, Shard};
use streamdoor::stream::{EndState, GapReason, Outcome, Policy};

use crate::keeper::{chunk, turn_until};

/// The promises for an execution.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promised {
    pub durable_seq: u64,
    /// The number of chunks, if a subscriber was told the end.
    pub told: Option<u64>,
}

/// Takes a line of the killed process.
pub fn note(line: &str, promised: &mut BTreeMap<String, Promised>) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [.., word, id, number] = words[..] else { return };
    let (Ok(id), Ok(number)) = (id.parse::<ExecutionId>(), number.parse()) else { return };
    let entry = promised.entry(id.to_string()).or_default();
    match word {
        "acked" => entry.durable_seq = number,
        "told" => entry.told = Some(number),
        _ => {}
    }
}

/// The deliveries to a subscriber.
#[derive(Default)]
struct Given {
    count: u64,
    ends: Vec<Outcome>,
}

/// Reads an execution from its first chunk to its end. Returns the number of chunks, and its end.
fn read(shard: &mut Shard, id: ExecutionId) -> (u64, Outcome) {
    turn_until(shard, |shard| shard.recall(id) == Ok(Recall::Here));
    let given = Rc::new(RefCell::new(Given::default()));
    let notes = Rc::clone(&given);
    let note = move |delivery: &Delivery<'_>| {
        let mut notes = notes.borrow_mut();
        match delivery {
            Delivery::Chunk(given) => {
                notes.count += 1;
                let (kind, bytes) = chunk(id, notes.count);
                assert_eq!((given.seq, given.kind), (notes.count, kind));
                assert!(given.data == bytes, "chunk {} of {id} is wrong", given.seq);
            }
            Delivery::Gap(gap) => {
                assert_eq!(gap.reason, GapReason::Unwritten, "{id}"); // The disk was too slow.
                assert_eq!(gap.from_seq, notes.count + 1);
                notes.count = gap.to_seq;
            }
            Delivery::Progress(_) => {}
            Delivery::End(ended) => match ended.end.state {
                EndState::Ended(outcome) => notes.ends.push(outcome),
                state => panic!("{id}: {state}"),
            },
        }
    };
    let spec = SubscribeSpec { policy: Policy::Replay, ..Default::default() };
    shard.subscribe(id, spec, note).unwrap();
    turn_until(shard, |_| !given.borrow().ends.is_empty());
    shard.turn();
    let given = given.borrow();
    assert_eq!(given.ends.len(), 1, "{id} ends twice");
    (given.count, given.ends[0])
}

/// Checks everything that was promised. Returns the number of chunks that were read.
pub fn check(shard: &mut Shard, promised: &BTreeMap<String, Promised>) -> u64 {
    let mut chunk_count = 0;
    for (id, Promised { durable_seq, told }) in promised {
        let (count, outcome) = read(shard, id.parse().unwrap());
        chunk_count += count;
        assert!(count >= *durable_seq, "{id} has {count} of {durable_seq} chunks");
        match told {
            Some(told) => assert_eq!((count, outcome), (*told, Outcome::Completed), "{id}"),
            // It was running, or its end was kept and not told yet.
            None => assert!(matches!(outcome, Outcome::Failed | Outcome::Completed), "{id}"),
        }
    }
    chunk_count
}
