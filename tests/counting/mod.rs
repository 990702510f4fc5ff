//! A counting allocator for tests that are a process of their own. It counts over all threads of
//! the process, from chunk 1,000 to chunk 100,000 of the tool that calls [`at_chunk`].

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use streamdoor::reactor::AnyReactor;
use streamdoor::shard::{Outlet, Shard, ShardConfig, ShardHandle};

pub const FIRST_COUNTED: u64 = 1_000;
pub const LAST_COUNTED: u64 = 100_000;

struct CountingAllocator;

pub static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
pub static COUNT_ENDED: AtomicBool = AtomicBool::new(false);
/// True while the tool's thread has started and waits for the others.
static TOOL_WAITS: AtomicBool = AtomicBool::new(false);
/// True when all threads are ready and nothing is set up any more.
static ALL_THERE: AtomicBool = AtomicBool::new(false);
/// The backtrace of the first counted allocation.
static FIRST: Mutex<Option<Backtrace>> = Mutex::new(None);

fn count() {
    if COUNTING.load(Ordering::Relaxed) && COUNT.fetch_add(1, Ordering::Relaxed) == 0 {
        COUNTING.store(false, Ordering::Relaxed); // The backtrace allocates, too.
        *FIRST.lock().unwrap() = Some(Backtrace::force_capture());
        COUNTING.store(true, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Starts the count at the first counted chunk, and ends it at the last. Called with the number of
/// each published chunk.
pub fn at_chunk(seq: u64) {
    if seq == FIRST_COUNTED {
        COUNT.store(0, Ordering::SeqCst);
        COUNT_ENDED.store(false, Ordering::SeqCst);
        COUNTING.store(true, Ordering::SeqCst);
    }
    if seq == LAST_COUNTED {
        COUNTING.store(false, Ordering::SeqCst);
        COUNT_ENDED.store(true, Ordering::SeqCst);
    }
}

/// Returns the number of allocations in a count that has ended.
pub fn allocations(what: &str) -> u64 {
    let has_ended = COUNT_ENDED.swap(false, Ordering::SeqCst);
    assert!(has_ended, "{what}: chunk {LAST_COUNTED} was never published");
    COUNT.load(Ordering::SeqCst)
}

/// Asserts that a count that has ended has no allocation.
pub fn assert_none(what: &str) {
    let allocation_count = allocations(what);
    println!("{what}: {allocation_count} allocations");
    if allocation_count > 0 {
        panic!("{what}: the first at\n{}", FIRST.lock().unwrap().take().expect("it was kept"));
    }
}

/// Waits until all threads are ready. A tool on a thread calls it first.
pub fn wait_for_all() {
    TOOL_WAITS.store(true, Ordering::SeqCst);
    wait_until("all are there", || ALL_THERE.swap(false, Ordering::SeqCst));
}

/// Releases the tool after its thread has started and each of these shards has slept since. By then
/// a shard has bought everything that it buys ahead while idle: rings, and with them pages of the
/// heap.
pub fn all_are_there<'a, O: Outlet<AnyReactor>>(shards: impl Iterator<Item = &'a ShardHandle<O>>) {
    wait_until("the tool waits", || TOOL_WAITS.swap(false, Ordering::SeqCst));
    for shard in shards {
        let wakes = || shard.counters().expect("it runs").wakes;
        let before = wakes();
        wait_until("the shard has slept", || wakes() > before);
    }
    ALL_THERE.store(true, Ordering::SeqCst);
}

/// Waits until the count has ended. A thread calls it before it ends, because ending a thread must
/// not be counted.
pub fn wait_until_counted() {
    wait_until("the last chunk is counted", || COUNT_ENDED.load(Ordering::SeqCst));
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..120_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("waited in vain: {what}");
}

/// Returns a shard that keeps the process's memory watch running. A thread allocates when it
/// starts, and the watch could start in the middle of a count.
pub fn the_watch_has_begun() -> Shard {
    let (shard, _) = Shard::new(ShardConfig::default()).unwrap();
    wait_until_it_sleeps("memory-watch");
    shard
}

/// Waits until the thread of that name has started and sleeps.
pub fn wait_until_it_sleeps(name: &str) {
    wait_until(name, || {
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.any(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.contains(&format!("({name}) S"))
        })
    });
}
