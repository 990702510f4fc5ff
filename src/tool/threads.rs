//! A bounded pool of threads for tools that block.
//!
//! Threads are started when they are first needed, and kept. A tool that never returns keeps its
//! thread. Its execution ends all the same, because its ring is closed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::base::{Guarded, Panicked, guarded};
use crate::limits;
use crate::memory::RingWriter;
use crate::tool::{Blocking, Output, ToolError};

/// The callback that takes the writer back, with the result of the tool and true if it panicked.
pub type Done = Box<dyn FnOnce(RingWriter, Result<(), ToolError>, bool) + Send>;

/// One closure to run, with its output and its callback.
pub struct Job {
    /// The output of the tool.
    pub output: Output,
    /// The tool.
    pub work: Blocking,
    /// Called on the tool's thread after it has returned or panicked.
    pub done: Done,
}

/// A pool of threads for tools that block. Dropping it lets running tools finish, detached.
pub struct ThreadPool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    state: Mutex<PoolState>,
    changed: Condvar,
    threads_max: usize,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Guarded<Box<Job>>>,
    thread_count: usize,
    idle_count: usize,
    closed: bool,
}

impl PoolShared {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        // A tool's panic is caught outside the lock, so the state is always consistent.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ThreadPool {
    /// Returns a pool of at most `threads_max` threads. None is started yet.
    pub fn new(threads_max: usize) -> ThreadPool {
        assert!(threads_max > 0);
        let shared = PoolShared { state: Mutex::default(), changed: Condvar::new(), threads_max };
        ThreadPool { shared: Arc::new(shared) }
    }

    /// Runs `job` once a thread is free.
    ///
    /// # Errors
    /// Returns the job if too many are waiting already, or if no thread could be started.
    pub fn submit(&self, job: Box<Job>) -> Result<(), Box<Job>> {
        let mut state = self.shared.state();
        if state.jobs.len() >= limits::TOOL_QUEUE_MAX {
            return Err(job);
        }
        state.jobs.push_back(Guarded::new(job));
        if state.jobs.len() > state.idle_count && state.thread_count < self.shared.threads_max {
            let shared = Arc::clone(&self.shared);
            let name = format!("tool-{}", state.thread_count);
            match std::thread::Builder::new().name(name).spawn(move || work(&shared)) {
                Ok(_) => state.thread_count += 1,
                Err(_) if state.thread_count == 0 => {
                    let job = state.jobs.pop_back().expect("it was just put there");
                    return Err(job.into_inner());
                }
                Err(_) => {} // It waits for one of the existing threads.
            }
        }
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
    }
}

fn work(shared: &PoolShared) {
    loop {
        let mut state = shared.state();
        state.idle_count += 1;
        let job = loop {
            if let Some(job) = state.jobs.pop_front() {
                break Some(job);
            }
            if state.closed {
                break None;
            }
            state = shared.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        };
        state.idle_count -= 1;
        drop(state);
        match job {
            Some(job) => run(job.into_inner()),
            None => return,
        }
    }
}

/// Runs one tool, and catches its panic.
fn run(job: Box<Job>) {
    let Job { mut output, work, done } = *job;
    let result = guarded(|| work(&mut output));
    let panicked = result.is_err();
    let result = result.unwrap_or_else(|panicked| Err(panic_error(&panicked)));
    done(output.into_writer(), result, panicked);
}

/// The error that subscribers see when a tool panics.
pub(crate) fn panic_error(panicked: &Panicked) -> ToolError {
    ToolError::Failed(format!("the tool panicked: {panicked}"))
}
