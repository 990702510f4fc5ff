//! The paths of all streams of a server, and the shard of each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The paths of the streams of one server. All of its shards have clones.
///
/// The lock is taken once for each request about a stream, and never for a chunk.
#[derive(Clone, Debug, Default)]
pub struct StreamPaths {
    shards: Arc<Mutex<HashMap<Key, u8>>>,
}

/// The name of a stream: its owner's name and its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::server) struct Key {
    pub owner: Option<Box<str>>,
    pub path: Box<str>,
}

impl StreamPaths {
    /// Returns the shard of a stream.
    pub(super) fn find(&self, key: &Key) -> Option<u8> {
        self.lock().get(key).copied()
    }

    /// Gives a path to a shard, unless another one has it. Returns the shard that has it.
    pub(super) fn claim(&self, key: &Key, shard: u8) -> u8 {
        *self.lock().entry(key.clone()).or_insert(shard)
    }

    /// Frees the path of a stream of this shard.
    pub(super) fn free(&self, key: &Key, shard: u8) {
        let mut shards = self.lock();
        if shards.get(key) == Some(&shard) {
            shards.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, u8>> {
        // No code under the lock can panic.
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
