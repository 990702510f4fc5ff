//! Threads that carry out the operations of a disk with plain system calls.
//!
//! A [`Lane`] is a queue and the threads that serve it. The mio backend has lanes for names, reads,
//! writes and syncs, so that a slow sync holds up nothing else. The io_uring backend has the one
//! for names only, the *keeper*: its ring may not open, rename or remove.
//!
//! Answers go to one queue for all lanes of a reactor, and each is followed by a wake-up. The
//! reactor looks into the queue when it has taken a wake-up, and at no other time. Invariants:
//! - T1 each job is answered once, and its file is let go before that.
//! - T2 the length of the queues is bounded by the operations in flight (`disk_table.rs`).

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};

use crate::limits::DISK_THREAD_STACK_BYTES;
use crate::reactor::Waker;
use crate::reactor::disk_files::{Directory, OpenFile};
use crate::reactor::disk_table::{Answer, Job, Outcome, Step};

/// The files that jobs are about.
pub type SharedFile = Arc<OpenFile>;

/// The answers of all lanes of a reactor.
#[derive(Debug, Default)]
pub struct Answers {
    queue: Mutex<VecDeque<Answer<SharedFile>>>,
}

impl Answers {
    /// Takes all answers that have come.
    pub fn take(&self) -> VecDeque<Answer<SharedFile>> {
        std::mem::take(&mut *self.queue.lock().expect("nobody panics with it"))
    }

    fn push(&self, answer: Answer<SharedFile>, waker: &Waker) {
        self.queue.lock().expect("nobody panics with it").push_back(answer);
        waker.wake(); // The answer is in the queue, so the poll that takes the wake-up finds it.
    }
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job<SharedFile>>,
    is_closing: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    is_filled: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nobody panics with it")
    }

    /// The next job; `None` once the queue is empty and closing.
    fn next(&self) -> Option<Job<SharedFile>> {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.is_closing {
                return None;
            }
            queue = self.is_filled.wait(queue).expect("nobody panics with it");
        }
    }
}

/// The things that the threads of a lane use.
#[derive(Clone, Debug)]
pub struct LaneContext {
    pub directory: Arc<Directory>,
    pub answers: Arc<Answers>,
    pub waker: Waker,
}

/// A queue of jobs, and the threads that serve it. Its drop waits until all jobs are done.
#[derive(Debug)]
pub struct Lane {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Lane {
    /// Starts `count` threads with this name.
    ///
    /// # Errors
    /// The kernel's error: no memory, or too many threads.
    pub fn start(name: &str, count: usize, context: &LaneContext) -> io::Result<Lane> {
        let mut lane = Lane { shared: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let (shared, context) = (Arc::clone(&lane.shared), context.clone());
            let builder = Builder::new().name(name.to_string());
            let builder = builder.stack_size(DISK_THREAD_STACK_BYTES);
            lane.threads.push(builder.spawn(move || serve(&shared, &context))?);
        }
        Ok(lane)
    }

    /// Queues a job.
    pub fn push(&self, job: Job<SharedFile>) {
        self.shared.lock().jobs.push_back(job);
        self.shared.is_filled.notify_one();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.is_filled.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("a disk's thread does not panic");
        }
    }
}

fn serve(shared: &Shared, context: &LaneContext) {
    while let Some(job) = shared.next() {
        context.answers.push(perform(job, &context.directory), &context.waker);
    }
}

/// Carries out one job.
fn perform(job: Job<SharedFile>, directory: &Directory) -> Answer<SharedFile> {
    let Job { token, step, mut buffer } = job;
    let was_opening = step.is_opening();
    let result = match step {
        Step::Read { file, offset, bytes, is_fresh } => {
            let into = &mut buffer.as_mut().expect("a read has a buffer")[..bytes as usize];
            file.read(offset, into, is_fresh).map(|count| Outcome::Bytes(count as u32))
        }
        Step::Write { file, offset, bytes, sync } => {
            let from = &buffer.as_ref().expect("a write has a buffer")[..bytes as usize];
            file.write(offset, from, sync).map(|()| Outcome::Done)
        }
        Step::Sync { file } => file.sync_data().map(|()| Outcome::Done),
        Step::List => directory.names().map(Outcome::Names),
        Step::Open { name } => {
            let opened = directory.open_file(&name);
            opened.map(|(file, bytes)| Outcome::Opened(Arc::new(file), bytes))
        }
        Step::Create { name, bytes } => {
            let made = directory.create_file(&name, bytes);
            made.map(|file| Outcome::Opened(Arc::new(file), bytes))
        }
        Step::Rename { from, to } => directory.rename_file(&from, &to).map(|()| Outcome::Done),
        Step::Remove { name } => directory.remove_file(&name).map(|()| Outcome::Done),
        Step::Close { file } => {
            drop(file); // Its descriptors close with the last operation on it.
            Ok(Outcome::Done)
        }
    };
    Answer { token, result, buffer, was_opening }
}
