//! The thread that notices a producer's death before its connection ends.
//!
//! A thread of a producer's process holds the producer's robust futex. When that thread ends, the
//! kernel wakes the sleepers on the word. One thread for each server sleeps on all such words and
//! wakes the shards. It knows nothing else: a shard checks by itself, and only the end of the
//! connection is proof. The thread starts with the first producer.
//!
//! Other processes write to these words. A word that changes more often than a correct producer
//! changes it is not slept on any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use crate::limits;
use crate::memory::atomic::{AtomicU64, Ordering};
use crate::memory::{Owner, OwnerView, RingReader, futex};
use crate::reactor::{Clock, Waker};

/// The owner of the thread. See the module's text.
#[derive(Default)]
pub(in crate::server) struct Watcher {
    list: Arc<List>,
}

/// The state that the thread and the shards share.
#[derive(Default)]
struct List {
    entries: Mutex<Entries>,
    /// Number of changes of the list, and the futex on which the thread sleeps.
    changes: AtomicU64,
}

#[derive(Default)]
struct Entries {
    all: Vec<Entry>,
    count: u64,
    has_thread: bool,
    is_over: bool,
}

#[derive(Clone)]
struct Entry {
    id: u64,
    owner: OwnerView,
    waker: Waker,
    /// The ring of the producer.
    ring: RingReader,
    /// Number of times that the word had changed after a sleep.
    change_count: u32,
}

/// A watched producer. The drop ends the watch.
pub(in crate::server) struct Watching {
    list: Arc<List>,
    id: u64,
}

impl Watcher {
    /// Watches one more producer. Returns `None` if the system has no thread to give.
    pub fn watch(&self, owner: OwnerView, waker: Waker, ring: RingReader) -> Option<Watching> {
        let mut entries = self.list.lock();
        if !entries.has_thread {
            let list = Arc::clone(&self.list);
            let thread = std::thread::Builder::new().name("door-watch".to_owned());
            thread.spawn(move || list.watch()).ok()?;
            entries.has_thread = true;
        }
        entries.count += 1;
        let id = entries.count;
        entries.all.push(Entry { id, owner, waker, ring, change_count: 0 });
        drop(entries);
        self.list.tell();
        Some(Watching { list: Arc::clone(&self.list), id })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.list.lock().is_over = true;
        self.list.tell();
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let id = self.id;
        self.list.lock().all.retain(|entry| entry.id != id);
        self.list.tell();
    }
}

impl List {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.changes);
    }

    /// Runs the thread.
    fn watch(&self) {
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            let mut dead: SmallVec<[u64; 8]> = SmallVec::new();
            let entries: SmallVec<[Entry; 8]> = {
                let entries = self.lock();
                if entries.is_over {
                    return;
                }
                entries.all.iter().cloned().collect()
            };
            let mut words: SmallVec<[(&AtomicU64, u32); 9]> = SmallVec::new();
            words.push((&self.changes, changes as u32));
            for entry in &entries {
                match entry.owner.owner() {
                    Owner::Lives(raw) => words.push((entry.owner.word(), raw)),
                    Owner::Nobody => {} // It has not begun yet, or has released the futex.
                    Owner::Died => {
                        entry.waker.wake();
                        entry.ring.wake(); // Its readers are then awake when the end is published.
                        dead.push(entry.id);
                    }
                }
            }
            if !dead.is_empty() {
                self.lock().all.retain(|entry| !dead.contains(&entry.id));
                continue;
            }
            let _ = futex::wait_any(&words, Clock::now() + LOOK);
            self.count_changes(&words[1..]);
        }
    }

    /// Counts changes of the words, and stops the watch of those that wake the thread too often.
    fn count_changes(&self, slept_on: &[(&AtomicU64, u32)]) {
        let has_changed = |word: &AtomicU64| {
            let slept = slept_on.iter().find(|(other, _)| std::ptr::eq(*other, word));
            slept.is_some_and(|(_, raw)| word.load(Ordering::Relaxed) as u32 != *raw)
        };
        let mut entries = self.lock();
        for entry in &mut entries.all {
            entry.change_count += u32::from(has_changed(entry.owner.word()));
        }
        entries.all.retain(|entry| entry.change_count <= limits::DOOR_OWNER_CHANGES_MAX);
    }
}

/// The interval after which words without an owner are checked again.
const LOOK: Duration = Duration::from_secs(1);
