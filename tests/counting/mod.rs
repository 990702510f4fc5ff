//! An allocator that counts, over all threads of the process, from chunk 1,000 to chunk 100,000 of
//! whoever says which chunk it is at. For tests that are a process of their own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use streamdoor::shard::{Shard, ShardConfig, ShardHandle};

pub const FIRST_COUNTED: u64 = 1_000;
pub const LAST_COUNTED: u64 = 100_000;

struct CountingAllocator;

pub static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
pub static COUNT_ENDED: AtomicBool = AtomicBool::new(false);
/// The tool's thread has begun, and waits for the others.
static TOOL_WAITS: AtomicBool = AtomicBool::new(false);
/// Everybody is there, and nobody sets anything up any more.
static ALL_THERE: AtomicBool = AtomicBool::new(false);
/// Where the first one was that was counted.
static FIRST: Mutex<Option<Backtrace>> = Mutex::new(None);

fn count() {
    if COUNTING.load(Ordering::Relaxed) && COUNT.fetch_add(1, Ordering::Relaxed) == 0 {
        COUNTING.store(false, Ordering::Relaxed); // To say where allocates, too.
        *FIRST.lock().unwrap() = Some(Backtrace::force_capture());
        COUNTING.store(true, Ordering::Relaxed);
    }
}

// SAFETY: everything is handed on to the system's allocator as it is.
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

/// Called with the number of each chunk that is published.
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

/// How many there were in a count that has ended.
pub fn allocations(what: &str) -> u64 {
    let has_ended = COUNT_ENDED.swap(false, Ordering::SeqCst);
    assert!(has_ended, "{what}: chunk {LAST_COUNTED} was never published");
    COUNT.load(Ordering::SeqCst)
}

/// The same, and that there were none.
pub fn assert_none(what: &str) {
    let allocation_count = allocations(what);
    println!("{what}: {allocation_count} allocations");
    if allocation_count > 0 {
        panic!("{what}: the first at\n{}", FIRST.lock().unwrap().take().expect("it was kept"));
    }
}

/// What a tool on a thread does first: it waits until everybody is there.
pub fn wait_for_all() {
    TOOL_WAITS.store(true, Ordering::SeqCst);
    wait_until("all are there", || ALL_THERE.swap(false, Ordering::SeqCst));
}

/// Lets the tool go on, once its thread has begun and each of these shards has slept since: what a
/// shard buys ahead in its silences (rings, and with them pages of the heap) it has by then.
pub fn all_are_there<'a>(shards: impl Iterator<Item = &'a ShardHandle>) {
    wait_until("the tool waits", || TOOL_WAITS.swap(false, Ordering::SeqCst));
    for shard in shards {
        let wakes = || shard.counters().expect("it runs").wakes;
        let before = wakes();
        wait_until("the shard has slept", || wakes() > before);
    }
    ALL_THERE.store(true, Ordering::SeqCst);
}

/// A thread that ends is no part of what is counted: until then it is to wait.
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

/// A shard that is kept has the process's watch of memory go on running: a thread that begins
/// allocates, and it may begin in the middle of what is counted.
pub fn the_watch_has_begun() -> Shard {
    let (shard, _) = Shard::new(ShardConfig::default()).unwrap();
    wait_until_it_sleeps("memory-watch");
    shard
}

/// Until the thread of that name has begun, and gone to sleep.
pub fn wait_until_it_sleeps(name: &str) {
    wait_until(name, || {
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.any(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.contains(&format!("({name}) S"))
        })
    });
}
