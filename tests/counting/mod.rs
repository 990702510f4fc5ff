//! An allocator that counts, over all threads of the process, from chunk 1,000 to chunk 100,000 of
//! whoever says which chunk it is at. For tests that are a process of their own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use streamdoor::shard::{Shard, ShardConfig};

pub const FIRST_COUNTED: u64 = 1_000;
pub const LAST_COUNTED: u64 = 100_000;

struct CountingAllocator;

pub static COUNTING: AtomicBool = AtomicBool::new(false);
pub static COUNT: AtomicU64 = AtomicU64::new(0);
pub static COUNT_ENDED: AtomicBool = AtomicBool::new(false);
/// A tool on a thread begins when everybody is there, and nobody sets anything up any more.
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

/// A shard that is kept has the process's watch of memory go on running: a thread that begins
/// allocates, and it may begin in the middle of what is counted.
pub fn the_watch_has_begun() -> Shard {
    let (shard, _) = Shard::new(ShardConfig::default()).unwrap();
    while !sleeps("memory-watch") {
        std::thread::sleep(Duration::from_millis(1));
    }
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
