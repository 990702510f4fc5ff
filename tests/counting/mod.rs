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
pub static COUNT: AtomicU64 = AtomicU64::new(0);
pub static COUNT_ENDED: AtomicBool = AtomicBool::new(false);
/// The tool's thread has begun, and waits for the others.
static TOOL_WAITS: AtomicBool = AtomicBool::new(false);
/// Everybody is there, and nobody sets anything up any more.
pub static ALL_THERE: AtomicBool = AtomicBool::new(false);
/// Where the first one was that was counted.
static FIRST: Mutex<Option<Backtrace>> = Mutex::new(None);

fn count() {
    if COUNTING.load(Ordering::Relaxed) && COUNT.fetch_add(1, Ordering::Relaxed) == 0 {
        COUNTING.store(false, Ordering::Relaxed); // To say where allocates, too.
        *FIRST.lock().unwrap() = Some(Backtrace::force_capture());
        COUNTING.store(true, Ordering::Relaxed);
    }
}

/// Where the first one was that was counted, if there was one.
pub fn first() -> String {
    FIRST.lock().unwrap().take().map_or_else(String::new, |place| place.to_string())
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

/// What a tool on a thread does first: it waits until everybody is there.
pub fn wait_for_all() {
    TOOL_WAITS.store(true, Ordering::SeqCst);
    wait_until(|| ALL_THERE.load(Ordering::SeqCst));
}

/// Lets the tool go on, once its thread has begun and each of these shards has slept since: what a
/// shard buys ahead in its silences (rings, and with them pages of the heap) it has by then.
pub fn all_are_there<'a>(shards: impl Iterator<Item = &'a ShardHandle>) {
    wait_until(|| TOOL_WAITS.load(Ordering::SeqCst));
    for shard in shards {
        let wakes = || shard.counters().expect("it runs").wakes;
        let before = wakes();
        wait_until(|| wakes() > before);
    }
    ALL_THERE.store(true, Ordering::SeqCst);
}

/// For the next tool.
pub fn it_is_over() {
    TOOL_WAITS.store(false, Ordering::SeqCst);
    ALL_THERE.store(false, Ordering::SeqCst);
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A shard that is kept has the process's watch of memory go on running: a thread that begins
/// allocates, and it may begin in the middle of what is counted.
pub fn the_watch_has_begun() -> Shard {
    let (shard, _) = Shard::new(ShardConfig::default()).unwrap();
    wait_until(|| sleeps("memory-watch"));
    shard
}

/// Has the thread of that name begun, and gone to sleep?
pub fn sleeps(name: &str) -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.into_iter().any(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.contains(&format!("({name}) S"))
    })
}
