//! The thread that buys memory for doors. The kernel clears each page of it, a megabyte in half a
//! millisecond and more, and no shard stands still for so long: it goes on with the request when
//! the memory is there (`serve/purchase.rs`). One thread for each server, from the first door on.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

/// Something to buy, and to tell of.
pub(in crate::shard) type Job = Box<dyn FnOnce() + Send>;

/// See the module's text. The thread ends when this is dropped and everything was bought.
#[derive(Default)]
pub(super) struct Buyer {
    jobs: Mutex<Option<Sender<Job>>>,
}

impl Buyer {
    /// Has that done. If the system has no thread for it: here and now.
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
        drop((buyer, sender)); // What was asked for is bought all the same.
        let all: Vec<_> = bought.iter().collect();
        assert!(all.iter().map(|(number, _)| *number).eq(0..100));
        assert!(all.iter().all(|(_, id)| *id == all[0].1 && *id != std::thread::current().id()));
    }
}
