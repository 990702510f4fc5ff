//! The paths of all streams of a server: the shard of each, its end, and the shards that want to
//! know when it moves.
//!
//! A shard stores the end of a stream before it answers an append, and then looks whether any shard
//! has subscriptions. A shard that gets its first subscription says so, and then reads the ends.
//! One of the two sees the other (`subscriptions:notice`).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::key_of;
use crate::base::{ExecutionId, Principal};
use crate::cluster::claim::PathName;
use crate::endpoint::{DurableAsk, DurableCall, Elsewhere};
use crate::memory::atomic::{AtomicU64, Ordering};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::cluster::Lookup;
use crate::server::{ClaimWish, ServerShard, cluster};
use crate::shard::Recall;

/// The paths of the streams of one server. All of its shards have clones.
///
/// The lock is taken once for each request about a stream, and never for a chunk.
#[derive(Clone, Debug, Default)]
pub struct StreamPaths {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    entries: Mutex<HashMap<Key, Entry>>,
    /// The shards with subscriptions, one bit each.
    subscribers: AtomicU64,
    /// The shards for which streams have moved, one bit each.
    news: AtomicU64,
    /// These streams.
    moved: Mutex<HashMap<u8, HashSet<Key>>>,
}

#[derive(Debug)]
struct Entry {
    shard: u8,
    /// The stream, once it is there. A subscription has none.
    stream: Option<Arc<StreamHead>>,
}

/// The name of a stream: its owner's name and its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub owner: Option<Box<str>>,
    pub path: Box<str>,
}

/// The part of a stream that all shards can see.
#[derive(Debug)]
pub(in crate::server) struct StreamHead {
    execution: ExecutionId,
    /// The position at which its own bytes begin.
    origin: u64,
    /// The position behind everything that is kept.
    tail: AtomicU64,
}

/// A stream, as another shard sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Seen {
    /// The execution, which tells a stream from an earlier one at the same path.
    pub execution: ExecutionId,
    /// The position at which its own bytes begin.
    pub origin: u64,
    /// The position behind everything that is kept.
    pub tail: u64,
}

/// The result of [`StreamHead::raise_tail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Raised {
    /// The end has moved.
    Moved,
    /// It was there already.
    Still,
}

impl StreamHead {
    pub fn new(execution: ExecutionId, origin: u64, tail: u64) -> Arc<StreamHead> {
        Arc::new(StreamHead { execution, origin, tail: AtomicU64::new(tail) })
    }

    /// Notes the position behind everything that is kept.
    pub fn raise_tail(&self, tail: u64) -> Raised {
        let before = self.tail.fetch_max(tail, Ordering::SeqCst); // subscriptions:notice
        if before < tail { Raised::Moved } else { Raised::Still }
    }

    fn seen(&self) -> Seen {
        let tail = self.tail.load(Ordering::SeqCst); // subscriptions:notice
        Seen { execution: self.execution, origin: self.origin, tail }
    }
}

impl StreamPaths {
    /// Returns the shard of a stream.
    pub(in crate::server) fn find(&self, key: &Key) -> Option<u8> {
        self.entries().get(key).map(|entry| entry.shard)
    }

    /// Gives a path to a shard, unless another one has it. Returns the shard that has it.
    pub(in crate::server) fn claim(&self, key: &Key, shard: u8) -> u8 {
        self.entries().entry(key.clone()).or_insert(Entry { shard, stream: None }).shard
    }

    /// Shows the stream at a path to all shards.
    pub(super) fn show(&self, key: &Key, stream: Arc<StreamHead>) {
        if let Some(entry) = self.entries().get_mut(key) {
            entry.stream = Some(stream);
        }
    }

    /// Hides the stream at a path, which still belongs to its shard.
    pub(super) fn hide(&self, key: &Key) {
        if let Some(entry) = self.entries().get_mut(key) {
            entry.stream = None;
        }
    }

    /// Frees the path of a stream of this shard.
    pub(in crate::server) fn free(&self, key: &Key, shard: u8) {
        let mut entries = self.entries();
        if entries.get(key).is_some_and(|entry| entry.shard == shard) {
            entries.remove(key);
        }
    }

    /// Returns a stream, if there is one at this path.
    pub(in crate::server) fn look_at(&self, key: &Key) -> Option<Seen> {
        self.entries().get(key)?.stream.as_ref().map(|stream| stream.seen())
    }

    /// Returns the streams of an owner whose paths are wanted. It looks at all streams.
    pub(in crate::server) fn matching(
        &self,
        owner: Option<&str>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Vec<(Box<str>, Seen)> {
        let entries = self.entries();
        let own = entries.iter().filter(|(key, _)| key.owner.as_deref() == owner);
        let found = own.filter_map(|(key, entry)| {
            let stream = entry.stream.as_ref().filter(|_| is_wanted(&key.path))?;
            Some((key.path.clone(), stream.seen()))
        });
        found.collect()
    }

    /// Sets whether a shard has subscriptions.
    pub(in crate::server) fn set_subscriber(&self, shard: u8, is_one: bool) {
        let Shared { subscribers, .. } = &*self.shared;
        match is_one {
            true => subscribers.fetch_or(1 << shard, Ordering::SeqCst), // subscriptions:notice
            false => subscribers.fetch_and(!(1 << shard), Ordering::SeqCst),
        };
        if !is_one {
            self.moved().remove(&shard);
        }
    }

    /// Notes that a stream has moved. Returns the shards that have to be told, one bit each.
    pub(super) fn note_moved(&self, key: &Key) -> u64 {
        let Shared { subscribers, news, .. } = &*self.shared;
        let wanting = subscribers.load(Ordering::SeqCst); // subscriptions:notice
        if wanting == 0 {
            return 0;
        }
        let mut moved = self.moved();
        for shard in (0..u64::BITS as u8).filter(|shard| wanting & 1 << shard != 0) {
            moved.entry(shard).or_default().insert(key.clone());
        }
        drop(moved);
        wanting & !news.fetch_or(wanting, Ordering::SeqCst) // subscriptions:news
    }

    /// True if streams have moved that a shard has not looked at.
    pub(in crate::server) fn has_news(&self, shard: u8) -> bool {
        self.shared.news.load(Ordering::SeqCst) & 1 << shard != 0 // subscriptions:news
    }

    /// Takes the streams that have moved, each as it is now. `None`: it is gone.
    pub(in crate::server) fn take_news(&self, shard: u8) -> Vec<(Key, Option<Seen>)> {
        // First the flag: a stream that moves now sets it again.
        self.shared.news.fetch_and(!(1 << shard), Ordering::SeqCst); // subscriptions:news
        let moved = self.moved().get_mut(&shard).map(std::mem::take).unwrap_or_default();
        let entries = self.entries();
        let see = |key: Key| {
            let stream = entries.get(&key).and_then(|entry| entry.stream.as_ref());
            let seen = stream.map(|stream| stream.seen());
            (key, seen)
        };
        moved.into_iter().map(see).collect()
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        // No code under the lock can panic.
        self.shared.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self) -> MutexGuard<'_, HashMap<u8, HashSet<Key>>> {
        self.shared.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Key> for PathName {
    fn from(key: Key) -> PathName {
        PathName { owner: key.owner, path: key.path }
    }
}

/// Finds out which node of the cluster has the path of a request, if this server does not have it.
/// The path of a new stream is taken for this node.
pub(in crate::server) fn claim<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: &DurableCall,
    principal: Principal,
) -> Recall {
    let Some((name, wish)) = wanted(shard, call, principal) else { return Recall::Here };
    match cluster::claim(shard, id, name, wish) {
        Lookup::Soon => Recall::Soon,
        Lookup::Later => Recall::Later,
        Lookup::Here | Lookup::Nowhere => Recall::Here,
    }
}

/// Returns the other node that has to carry out a request, if it is known by now.
pub(super) fn elsewhere<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: &DurableCall,
    principal: Principal,
) -> Option<Elsewhere> {
    let holder = cluster::take_holder(shard, id);
    wanted(shard, call, principal).and(holder)
}

/// Gives a path back to the cluster that was claimed for a stream, unless there is one.
pub(super) fn give_back<R: Reactor + 'static>(shard: &mut ServerShard<R>, key: Key) {
    if shard.guests.durable.paths.find(&key).is_none() {
        cluster::free_path(shard, key.into());
    }
}

/// Returns the path that the cluster has to be asked for, and the wish.
fn wanted<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    call: &DurableCall,
    principal: Principal,
) -> Option<(PathName, ClaimWish)> {
    let is_alone = !shard.guests.cluster.is_on();
    if is_alone || call.is_control() || call.execution().is_some() {
        return None;
    }
    let away = |path: &str| {
        let key = key_of(shard, principal, path.into());
        shard.guests.durable.paths.find(&key).is_none().then(|| PathName::from(key))
    };
    let name = away(&call.path)?;
    let DurableAsk::Create(creation) = &call.ask else { return Some((name, ClaimWish::Look)) };
    // A fork is on the node of its source.
    let source = creation.fork.as_ref().and_then(|fork| away(&fork.source));
    Some(source.map_or((name, ClaimWish::Take), |source| (source, ClaimWish::Look)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str) -> Key {
        Key { owner: None, path: path.into() }
    }

    #[test]
    fn news_are_told_once_until_they_are_taken() {
        let paths = StreamPaths::default();
        let stream = StreamHead::new(ExecutionId::from_bits(7), 0, 0);
        paths.claim(&key("a"), 0);
        paths.show(&key("a"), Arc::clone(&stream));
        assert_eq!(paths.note_moved(&key("a")), 0); // No shard wants to know.
        paths.set_subscriber(3, true);
        assert_eq!(stream.raise_tail(5), Raised::Moved);
        assert_eq!(stream.raise_tail(4), Raised::Still);
        assert_eq!(paths.note_moved(&key("a")), 1 << 3);
        assert_eq!(paths.note_moved(&key("a")), 0);
        assert!(paths.has_news(3) && !paths.has_news(0));
        let seen = Seen { execution: ExecutionId::from_bits(7), origin: 0, tail: 5 };
        assert_eq!(paths.take_news(3), [(key("a"), Some(seen))]);
        assert!(!paths.has_news(3));
        paths.free(&key("a"), 0);
        assert_eq!(paths.note_moved(&key("a")), 1 << 3);
        assert_eq!(paths.take_news(3), [(key("a"), None)]);
        paths.set_subscriber(3, false);
        assert_eq!(paths.note_moved(&key("a")), 0);
    }

    #[test]
    fn a_path_belongs_to_the_shard_that_was_first() {
        let paths = StreamPaths::default();
        assert_eq!((paths.claim(&key("a"), 1), paths.claim(&key("a"), 2)), (1, 1));
        paths.free(&key("a"), 2);
        assert_eq!(paths.find(&key("a")), Some(1));
        assert_eq!(paths.look_at(&key("a")), None); // A path without a stream.
        assert_eq!(paths.matching(None, |_| true), []);
    }
}
