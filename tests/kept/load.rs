//! A load: executions that are opened, fed and ended at random, and what the shard says of them.

use std::cell::RefCell;
use std::rc::Rc;

use streamdoor::base::{ExecutionId, Random};
use streamdoor::engine::SubscribeSpec;
use streamdoor::shard::{Delivery, Shard};
use streamdoor::stream::{Durability, EndState, Outcome, Policy};

use crate::keeper::{chunk, open};

/// A promise of the shard.
#[derive(Clone, Copy, Debug)]
pub struct News {
    pub id: ExecutionId,
    pub durability: Durability,
    pub word: Word,
}

#[derive(Clone, Copy, Debug)]
pub enum Word {
    /// The chunks up to this one are durable.
    Acked(u64),
    /// A subscriber was told that the execution is completed, with this number of chunks.
    Told(u64),
}

/// An execution that is fed.
struct Fed {
    id: ExecutionId,
    durability: Durability,
    seq: u64,
    acked_seq: u64,
}

/// True if the disk has failed, or could not make a segment.
fn has_failed(shard: &Shard) -> bool {
    let status = shard.journal().expect("it has a journal");
    status.fault.is_some() || status.counters.failures > 0
}

/// Publishes until the disk has failed.
pub fn publish(shard: &mut Shard, seed: u64, mut tell: impl FnMut(News)) {
    let mut random = Random::new(seed);
    let mut all: Vec<Fed> = Vec::new();
    let ended: Rc<RefCell<Vec<News>>> = Rc::default();
    while !has_failed(shard) {
        if all.len() < 4 {
            let durability = [Durability::Written, Durability::Synced][random.below(2) as usize];
            let id = open(shard, durability);
            all.extend(id.map(|id| Fed { id, durability, seq: 0, acked_seq: 0 }));
        }
        if all.is_empty() {
            shard.turn();
            continue;
        }
        let at = random.below(all.len() as u64) as usize;
        for _ in 0..random.below(40) {
            let Fed { id, seq, .. } = &mut all[at];
            let (kind, bytes) = chunk(*id, *seq + 1);
            if shard.publish(*id, kind, &bytes).is_err() {
                break;
            }
            *seq += 1;
        }
        if random.chance(1, 60) {
            end(shard, all.swap_remove(at), &ended);
        }
        for _ in 0..=random.below(6) {
            if !shard.turn() {
                shard.park(Some(shard.now()));
            }
        }
        for Fed { id, durability, acked_seq, .. } in &mut all {
            let durable_seq = shard.durable_seq(*id).expect("it is kept");
            if durable_seq > *acked_seq {
                *acked_seq = durable_seq;
                tell(News { id: *id, durability: *durability, word: Word::Acked(durable_seq) });
            }
        }
        ended.borrow_mut().drain(..).for_each(&mut tell);
    }
}

/// Ends an execution. Its last subscriber hears of it once the disk keeps that.
fn end(shard: &mut Shard, Fed { id, durability, seq, .. }: Fed, ended: &Rc<RefCell<Vec<News>>>) {
    let ended = Rc::clone(ended);
    let completed = EndState::Ended(Outcome::Completed);
    let closure = move |delivery: &Delivery<'_>| match delivery {
        Delivery::End(given) if given.end.state == completed => {
            ended.borrow_mut().push(News { id, durability, word: Word::Told(seq) });
        }
        _ => {}
    };
    let spec = SubscribeSpec { policy: Policy::DropOldest, ..Default::default() };
    shard.subscribe(id, spec, closure).unwrap();
    shard.finish(id, Ok(())).unwrap();
}
