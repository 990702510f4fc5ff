//! Conversations: the threads of front ends' clients, and the newest run of each.
//!
//! All shards of a server share one table. Its lock is taken when a run begins or ends and when a
//! client asks for a thread, and never for a chunk. The table has no limit of its own. An entry
//! leaves with the execution that it names ([`Seat`]), and the number of executions is limited.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::{ExecutionId, Principal};
use crate::endpoint::ThreadSearch;

/// The conversations of one server. All of its shards have clones.
#[derive(Clone, Debug, Default)]
pub struct Conversations {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    threads: BTreeMap<(Principal, Box<str>), Thread>,
    /// Number of connections that wait for the next run of a thread.
    waiting_count: usize,
}

#[derive(Debug)]
struct Thread {
    newest: ExecutionId,
    /// The wall-clock time of its beginning, in microseconds since 1970.
    begun_us: u64,
    /// True if the newest run has ended.
    is_over: bool,
    /// Number of runs so far, as long as the thread is remembered.
    run_count: u32,
}

/// The thread that a new run enters.
#[derive(Debug)]
pub(in crate::server) struct Entering {
    pub thread: Box<str>,
    /// The client's name for the run.
    pub run_id: Option<Box<str>>,
}

/// The place of a run from before a restart among the runs of its thread.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Place {
    /// Number of runs of the thread before this one.
    pub ordinal: u32,
    /// The wall-clock time of its beginning, in microseconds since 1970.
    pub begun_us: u64,
}

/// The place of a run in its thread. Dropping it removes the thread, unless a later run exists.
#[derive(Debug)]
pub(in crate::server) struct Seat {
    of: Conversations,
    key: (Principal, Box<str>),
    execution: ExecutionId,
    /// Number of runs of the thread before this one.
    pub ordinal: u32,
    /// The client's name for the run.
    pub run_id: Option<Box<str>>,
}

/// The mark of a connection that waits for the next run of a thread.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub(in crate::server) struct Waiting(Conversations);

impl Conversations {
    /// Enters a new run as the newest of its thread.
    pub(in crate::server) fn enter(
        &self,
        principal: Principal,
        thread: &str,
        execution: ExecutionId,
        run_id: Option<Box<str>>,
        begun_us: u64,
    ) -> Seat {
        self.insert((principal, thread.into()), execution, run_id, (begun_us, None))
    }

    /// Enters a run from before a restart, which has ended. The shards enter theirs in any order.
    pub(in crate::server) fn enter_again(
        &self,
        principal: Principal,
        thread: &str,
        execution: ExecutionId,
        run_id: Option<Box<str>>,
        place: Place,
    ) -> Seat {
        let Place { ordinal, begun_us } = place;
        self.insert((principal, thread.into()), execution, run_id, (begun_us, Some(ordinal)))
    }

    /// Enters a run. One from before a restart has an ordinal, and may not be the newest.
    fn insert(
        &self,
        key: (Principal, Box<str>),
        execution: ExecutionId,
        run_id: Option<Box<str>>,
        (begun_us, ordinal): (u64, Option<u32>),
    ) -> Seat {
        let mut table = self.table();
        let known = table.threads.get_mut(&key);
        let count = known.as_ref().map_or(0, |thread| thread.run_count);
        let (is_over, ordinal) = (ordinal.is_some(), ordinal.unwrap_or(count));
        let run_count = count.max(ordinal.wrapping_add(1));
        match known {
            Some(thread) if is_over && thread.begun_us > begun_us => thread.run_count = run_count,
            _ => {
                let thread = Thread { newest: execution, begun_us, is_over, run_count };
                table.threads.insert(key.clone(), thread);
            }
        }
        drop(table);
        Seat { of: self.clone(), key, execution, ordinal, run_id }
    }

    /// Returns the newest run of a thread, if it still exists.
    pub(in crate::server) fn newest(
        &self,
        principal: Principal,
        thread: &str,
    ) -> Option<ExecutionId> {
        let key = (principal, Box::from(thread));
        self.table().threads.get(&key).map(|thread| thread.newest)
    }

    /// True if the newest run of the thread has not ended.
    pub(in crate::server) fn is_busy(&self, principal: Principal, thread: &str) -> bool {
        let key = (principal, Box::from(thread));
        self.table().threads.get(&key).is_some_and(|thread| !thread.is_over)
    }

    /// Finds threads of a principal, the newest first. Returns how many there are, and of those
    /// that are wanted the name, the time of the newest run, and whether it has not ended.
    pub(in crate::server) fn search(
        &self,
        principal: Principal,
        search: &ThreadSearch,
    ) -> (usize, Vec<(Box<str>, u64, bool)>) {
        let table = self.table();
        let from = (principal, Box::default());
        let own = table.threads.range(from..).take_while(|(key, _)| key.0 == principal);
        let is_wanted = |name: &str, is_busy: bool| {
            let names = search.names.as_ref();
            names.is_none_or(|names| names.iter().any(|wanted| **wanted == *name))
                && search.is_busy.is_none_or(|wanted| wanted == is_busy)
        };
        let mut found: Vec<(Box<str>, u64, bool)> = own
            .filter(|((_, name), thread)| is_wanted(name, !thread.is_over))
            .map(|((_, name), thread)| (name.clone(), thread.begun_us, !thread.is_over))
            .collect();
        drop(table);
        let count = found.len();
        found.sort_by_key(|(_, begun_us, _)| std::cmp::Reverse(*begun_us));
        let page = found.into_iter().skip(search.offset).take(search.limit.unwrap_or(0));
        (count, page.collect())
    }

    /// Counts a connection that waits for a run, until the result is dropped.
    pub(in crate::server) fn wait(&self) -> Waiting {
        self.table().waiting_count += 1;
        Waiting(self.clone())
    }

    /// True if any connection waits.
    pub(in crate::server) fn has_waiting(&self) -> bool {
        self.table().waiting_count > 0
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No code under the lock can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The client's name for the thread.
    pub fn thread_id(&self) -> &str {
        &self.key.1
    }

    /// Marks the run as ended.
    pub fn end(&self) {
        let mut table = self.of.table();
        let thread = table.threads.get_mut(&self.key);
        if let Some(thread) = thread.filter(|thread| thread.newest == self.execution) {
            thread.is_over = true;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.of.table();
        if table.threads.get(&self.key).is_some_and(|thread| thread.newest == self.execution) {
            table.threads.remove(&self.key);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.table().waiting_count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Handle;

    fn id(index: u32) -> ExecutionId {
        ExecutionId { shard: 0, slot: Handle { index, generation: 1 }, nonce: 7 }
    }

    #[test]
    fn a_thread_is_its_newest_run_and_goes_with_it() {
        let (all, ann, bob) = (Conversations::default(), Principal(1), Principal(2));
        let first = all.enter(ann, "t", id(1), None, 1);
        assert_eq!((all.newest(ann, "t"), all.newest(bob, "t")), (Some(id(1)), None));
        let second = all.enter(ann, "t", id(2), Some("r".into()), 2);
        let other = all.enter(bob, "t", id(3), None, 3);
        assert_eq!((first.ordinal, second.ordinal, other.ordinal), (0, 1, 0));
        assert_eq!((second.thread_id(), second.run_id.as_deref()), ("t", Some("r")));
        first.end();
        drop(first);
        assert_eq!((all.newest(ann, "t"), all.newest(bob, "t")), (Some(id(2)), Some(id(3))));
        assert!(all.is_busy(ann, "t"));
        second.end();
        assert!(!all.is_busy(ann, "t") && all.is_busy(bob, "t"));
        drop(second);
        assert_eq!(all.newest(ann, "t"), None);
        drop(other);
        assert!(all.table().threads.is_empty());
    }

    #[test]
    fn runs_from_before_a_restart_are_entered_in_any_order() {
        let (all, ann) = (Conversations::default(), Principal(1));
        let again = |index, ordinal| {
            let place = Place { ordinal, begun_us: u64::from(ordinal) };
            all.enter_again(ann, "t", id(index), None, place)
        };
        let (second, third, first) = (again(2, 1), again(3, 2), again(1, 0));
        assert_eq!(all.newest(ann, "t"), Some(id(3)));
        assert!(!all.is_busy(ann, "t"));
        let fourth = all.enter(ann, "t", id(4), None, 9);
        assert_eq!((first.ordinal, third.ordinal, fourth.ordinal), (0, 2, 3));
        drop((first, second, third));
        assert_eq!(all.newest(ann, "t"), Some(id(4)));
        drop(fourth);
        assert!(all.table().threads.is_empty());
    }

    #[test]
    fn a_search_finds_the_threads_of_one_principal_the_newest_first() {
        let (all, ann, bob) = (Conversations::default(), Principal(1), Principal(2));
        let seats: Vec<Seat> = [(ann, "a", 1), (ann, "b", 3), (ann, "c", 2), (bob, "d", 4)]
            .into_iter()
            .map(|(of, name, at)| all.enter(of, name, id(at), None, u64::from(at)))
            .collect();
        seats[0].end();
        let found = |search: ThreadSearch| {
            let (count, found) = all.search(ann, &search);
            let names: Vec<String> = found.into_iter().map(|(name, ..)| name.into()).collect();
            (count, names.join(" "))
        };
        let page = ThreadSearch { limit: Some(2), ..ThreadSearch::default() };
        assert_eq!(found(page.clone()), (3, "b c".to_owned()));
        assert_eq!(found(ThreadSearch { offset: 2, ..page.clone() }), (3, "a".to_owned()));
        let idle = ThreadSearch { is_busy: Some(false), ..page.clone() };
        assert_eq!(found(idle), (1, "a".to_owned()));
        let named = ThreadSearch { names: Some(vec!["c".into(), "d".into()]), ..page };
        assert_eq!(found(named), (1, "c".to_owned()));
        assert_eq!(found(ThreadSearch::default()), (3, String::new()));
    }

    #[test]
    fn who_waits_is_counted_while_he_waits() {
        let all = Conversations::default();
        let (one, other) = (all.wait(), all.clone().wait());
        drop(one);
        assert!(all.has_waiting());
        drop(other);
        assert!(!all.has_waiting());
    }
}
