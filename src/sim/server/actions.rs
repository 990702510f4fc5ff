//! The hash of what the engines of the simulated shards decide.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crate::base::Random;
use crate::reactor::Reactor;
use crate::server::{Fate, ServerShard, ToPeer, set_courier};
use crate::sim::coverage::Fnv;

/// The hash of all actions of some shards, in their order.
#[derive(Clone, Default)]
pub(super) struct ActionsHash(Rc<Cell<Fnv>>);

impl ActionsHash {
    /// Hashes each action of `shard` from now on.
    pub fn observe<R: Reactor + 'static>(&self, shard: &mut ServerShard<R>) {
        let hash = Rc::clone(&self.0);
        shard.observe(move |action, recipients| {
            let mut fnv = hash.get();
            (action, recipients).hash(&mut fnv);
            hash.set(fnv);
        });
    }

    /// Hashes each message that `shard` sends to the others from now on, and delays or refuses
    /// some.
    pub fn observe_messages<R: Reactor + 'static>(
        &self,
        shard: &mut ServerShard<R>,
        mut random: Random,
    ) {
        let hash = Rc::clone(&self.0);
        let courier = move |peer: usize, message: &ToPeer| {
            let mut fnv = hash.get();
            (peer, format!("{message:?}")).hash(&mut fnv);
            hash.set(fnv);
            match (random.below(16), message) {
                (0, ToPeer::Ask(..)) => Fate::Refused,
                (1..=4, _) => Fate::Later(random.between(1, 40) as u32),
                _ => Fate::Now,
            }
        };
        set_courier(shard, Box::new(courier));
    }

    /// The hash of the actions so far.
    pub fn get(&self) -> u64 {
        self.0.get().finish()
    }
}
