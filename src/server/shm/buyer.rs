//! The thread that allocates memory for doors. The kernel clears each page, which takes half a
//! millisecond or more for a megabyte, and no shard stops for that long. The shard continues with
//! the request when the memory is ready (`purchase.rs`). Each server has one such thread,
//! started with the first door.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

/// An allocation, including the report of its result.
pub(in crate::server) type Job = Box<dyn FnOnce() + Send>;

/// The owner of the thread. When it is dropped, the thread finishes the queued jobs and ends.
#[derive(Default)]
pub(in crate::server) struct Buyer {
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Buyer {
    /// Runs the job on the thread, or on the caller's thread if the system has no thread to give.
    pub fn buy(&self, job: Job) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.is_none() {
            let (sender, receiver) = channel::<Job>();
            let thread = std::thread::Builder::new().name("door-buy".to_owned());
            let spawned = thread.spawn(move || receiver.into_iter().for_each(|job| job()));
            *jobs = spawned.is_ok().then_some(sender);
        }
        let left = match &*jobs {
            Some(sender) => sender.send(job).err().map(|unsent| unsent.0),
            None => Some(job),
        };
        drop(jobs);
        if let Some(job) = left {
            job();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_bought_in_turn_on_one_other_thread() {
        let buyer = Buyer::default();
        let (sender, bought) = channel();
        for number in 0..100 {
            let sender = sender.clone();
            buyer.buy(Box::new(move || {
                sender.send((number, std::thread::current().id())).unwrap();
            }));
        }
        drop((buyer, sender)); // Queued jobs are still done.
        let all: Vec<_> = bought.iter().collect();
        assert!(all.iter().map(|(number, _)| *number).eq(0..100));
        assert!(all.iter().all(|(_, id)| *id == all[0].1 && *id != std::thread::current().id()));
    }
}
