//! What is measured: something that carries chunks from one process to others.
//!
//! In the process that reads there is first of all a host (it makes the ring, starts a broker, …).
//! Then the producer's process starts, with words of the host on its command line, and says a word
//! back. Then readers are made, each on the thread that will use it, and the run begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::load::Load;
use crate::common::BATCH_CHUNKS;
use crate::common::Failure;
use crate::common::params::Rate;
use crate::common::receive::Receive;
use crate::common::source::Arrivals;

/// One way between processes.
pub trait Carrier {
    /// What the reading process has before there are readers. Dropped when all is over.
    type Host: Send + Sync + 'static;
    /// The side of the process that publishes.
    type Producer: Produce;
    /// The side of one reader.
    type Reader: Read;

    /// Makes ready what both sides need.
    ///
    /// # Errors
    /// [`Failure`].
    fn host(load: &Load) -> Result<Self::Host, Failure>;

    /// What the producer's process is told on its command line.
    fn words(host: &Self::Host) -> Vec<String>;

    /// In its process: a producer, and a word for the readers, without spaces.
    ///
    /// # Errors
    /// [`Failure`].
    fn producer(load: &Load, words: &[String]) -> Result<(Self::Producer, String), Failure>;

    /// A reader that will see every chunk from the first, on the thread that calls this. `said`:
    /// the word of [`Carrier::producer`].
    ///
    /// # Errors
    /// A text for the user.
    fn reader(host: &Self::Host, load: &Load, run: &Run<'_>) -> Result<Self::Reader, String>;
}

/// What a reader is told of the run that it is made for.
pub struct Run<'a> {
    /// Which of the readers it is, from 0.
    pub index: u32,
    /// The word of [`Carrier::producer`].
    pub said: &'a str,
    /// When the plan begins, once that is known; see [`Stamps`].
    pub origin_ns: Arc<AtomicU64>,
}

/// The side of the process that publishes.
pub trait Produce {
    /// Publishes `count` chunks of `payload`, at most [`BATCH_CHUNKS`]; waits while there is no
    /// room.
    ///
    /// # Errors
    /// A text for the user.
    fn publish(&mut self, payload: &[u8], count: u32) -> Result<(), String>;

    /// There will be no more: every reader is told. It is dropped when all readers have everything.
    ///
    /// # Errors
    /// A text for the user.
    fn finish(&mut self) -> Result<(), String>;
}

/// The side of one reader.
pub trait Read {
    /// Gives `receiver` what there is, at most [`BATCH_CHUNKS`] chunks, and says how many that
    /// were; `None` when everything was given and nothing more will come, each time from then on.
    /// Never blocks.
    ///
    /// # Errors
    /// A text for the user: a chunk is lost, the producer has gone.
    fn poll<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String>;

    /// As [`Read::poll`], but blocks until there is something.
    ///
    /// # Errors
    /// As [`Read::poll`].
    fn wait<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String>;
}

/// The stamps that chunks must have, for readers that do not look at bytes: in an open loop the
/// plan is known in both processes, flat out a stamp is the number of its batch.
pub struct Stamps {
    /// `None`: flat out.
    arrivals: Option<Arrivals>,
    origin: Arc<AtomicU64>,
    origin_ns: u64,
}

impl Stamps {
    /// Of the chunks of `load`.
    pub fn new(load: &Load, run: &Run<'_>) -> Stamps {
        let arrivals = match load.plan.rate {
            Rate::PerSecond(rate) => Some(Arrivals::new(rate, load.plan.seed)),
            Rate::Max => None,
        };
        Stamps { arrivals, origin: Arc::clone(&run.origin_ns), origin_ns: 0 }
    }

    /// The stamp of chunk `seq`, the first of which is 1. To be asked for one after the other.
    #[inline(always)]
    pub fn next(&mut self, seq: u64) -> u64 {
        let Some(arrivals) = &mut self.arrivals else {
            return (seq - 1) / u64::from(BATCH_CHUNKS) + 1;
        };
        if self.origin_ns == 0 {
            // acquire: pairs with release in `readers`.
            self.origin_ns = self.origin.load(Ordering::Acquire);
        }
        self.origin_ns + arrivals.next_ns()
    }
}
