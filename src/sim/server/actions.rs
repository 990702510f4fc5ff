//! The hash of what the engines of the simulated shards decide.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use crate::reactor::Reactor;
use crate::server::ServerShard;
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

    /// The hash of the actions so far.
    pub fn get(&self) -> u64 {
        self.0.get().finish()
    }
}
