//! The role of the other process: a shard that publishes, and says what it was promised.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use streamdoor::base::{ExecutionId, Random};
use streamdoor::engine::SubscribeSpec;
use streamdoor::shard::{Delivery, Shard};
use streamdoor::stream::{Durability, Policy};

use crate::keeper::{chunk, open, open_shard};
use crate::role::{say, told};

/// The other process's entry point. It is no test of its own.
#[test]
fn plays_its_role() {
    let Some((role, directory, seed)) = told() else { return };
    assert_eq!(role, "keeper");
    publish(open_shard(Path::new(&directory)), seed.parse().unwrap());
}

/// An execution that is fed.
struct Fed {
    id: ExecutionId,
    seq: u64,
    said_seq: u64,
}

/// Publishes until the process is killed. Says `acked ID SEQ` for what is durable, and `told ID
/// COUNT` when a subscriber was told the end.
fn publish(mut shard: Shard, seed: u64) {
    let mut random = Random::new(seed);
    let mut all: Vec<Fed> = Vec::new();
    let ended: Rc<RefCell<Vec<(ExecutionId, u64)>>> = Rc::default();
    say("begun");
    loop {
        if all.len() < 4 {
            let durabilities = [Durability::Written, Durability::Synced];
            let id = open(&mut shard, durabilities[random.below(2) as usize]);
            all.extend(id.map(|id| Fed { id, seq: 0, said_seq: 0 }));
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
            let Fed { id, seq, .. } = all.swap_remove(at);
            let ended = Rc::clone(&ended);
            let spec = SubscribeSpec { policy: Policy::DropOldest, ..Default::default() };
            let closure = move |delivery: &Delivery<'_>| {
                if let Delivery::End(_) = delivery {
                    ended.borrow_mut().push((id, seq));
                }
            };
            shard.subscribe(id, spec, closure).unwrap();
            shard.finish(id, Ok(())).unwrap();
        }
        for _ in 0..=random.below(6) {
            if !shard.turn() {
                shard.park(Some(shard.now()));
            }
        }
        for Fed { id, said_seq, .. } in &mut all {
            let durable_seq = shard.durable_seq(*id).expect("it is kept");
            if durable_seq > *said_seq {
                *said_seq = durable_seq;
                say(&format!("acked {id} {durable_seq}"));
            }
        }
        for (id, count) in ended.borrow_mut().drain(..) {
            say(&format!("told {id} {count}"));
        }
    }
}
