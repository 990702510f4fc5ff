//! The measured object: a carrier of chunks from one process to others.
//!
//! The reading process first has a host, which creates the ring, starts a broker, and so on. Then
//! the producer's process starts, with words of the host on its command line. It answers with one
//! word. Then each reader is created on the thread that will use it, and the run begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::load::Load;
use crate::common::params::Rate;
use crate::common::receive::Receive;
use crate::common::source::Arrivals;
use crate::common::{BATCH_CHUNKS, Failure};

/// One transport between processes.
pub trait Carrier {
    /// The part of the reading process that exists before its readers. Dropped at the end of the
    /// run.
    type Host: Send + Sync + 'static;
    /// The side of the process that publishes.
    type Producer: Produce;
    /// The side of one reader.
    type Reader: Read;

    /// Prepares everything that both sides need.
    ///
    /// # Errors
    /// [`Failure`].
    fn host(load: &Load) -> Result<Self::Host, Failure>;

    /// Returns the arguments of the host for the command line of the producer's process.
    fn words(host: &Self::Host) -> Vec<String>;

    /// Called in the producer's process. Returns a producer, and a word for the readers, without
    /// spaces.
    ///
    /// # Errors
    /// [`Failure`].
    fn producer(load: &Load, words: &[String]) -> Result<(Self::Producer, String), Failure>;

    /// Returns a reader that will see every chunk from the first. The calling thread will use it.
    ///
    /// # Errors
    /// A text for the user.
    fn reader(host: &Self::Host, load: &Load, run: &Run<'_>) -> Result<Self::Reader, String>;
}

/// The parameters of a reader in its run.
pub struct Run<'a> {
    /// The index of the reader, from 0.
    pub index: u32,
    /// The word of [`Carrier::producer`].
    pub said: &'a str,
    /// The start of the plan, or 0 until it is known; see [`Stamps`].
    pub origin_ns: Arc<AtomicU64>,
}

/// The side of the process that publishes.
pub trait Produce {
    /// Publishes `count` chunks of `payload`, at most [`BATCH_CHUNKS`]. Waits while the transport
    /// is full.
    ///
    /// # Errors
    /// A text for the user.
    fn publish(&mut self, payload: &[u8], count: u32) -> Result<(), String>;

    /// Tells every reader that no more chunks follow. The producer is dropped when all readers have
    /// everything.
    ///
    /// # Errors
    /// A text for the user.
    fn finish(&mut self) -> Result<(), String>;
}

/// The side of one reader.
pub trait Read {
    /// Delivers the ready chunks to `receiver`, at most [`BATCH_CHUNKS`], and returns their number.
    /// Returns `None`, from then on each time, once everything was delivered and nothing more will
    /// come. Never blocks.
    ///
    /// # Errors
    /// A text for the user: a chunk is lost, or the producer has gone.
    fn poll<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String>;

    /// Makes one of several readers that one thread polls, if the transport reads a chunk once for
    /// all of them. Otherwise returns them as they are.
    ///
    /// # Errors
    /// A text for the user.
    fn together(readers: Vec<Self>) -> Result<Vec<Self>, String>
    where
        Self: Sized,
    {
        Ok(readers)
    }

    /// Does the same as [`Read::poll`], but blocks until a chunk or the end is ready.
    ///
    /// # Errors
    /// The same as those of [`Read::poll`].
    fn wait<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String>;
}

/// The stamps that chunks must have, for readers that do not look at bytes. In an open loop, both
/// processes know the plan. Flat out, a stamp is the number of its batch.
pub struct Stamps {
    /// `None` if the load is flat out.
    arrivals: Option<Arrivals>,
    origin: Arc<AtomicU64>,
    origin_ns: u64,
}

impl Stamps {
    /// Returns the stamps of the chunks of `load`.
    pub fn new(load: &Load, run: &Run<'_>) -> Stamps {
        let arrivals = match load.plan.rate {
            Rate::PerSecond(rate) => Some(Arrivals::new(rate, load.plan.seed)),
            Rate::Max => None,
        };
        Stamps { arrivals, origin: Arc::clone(&run.origin_ns), origin_ns: 0 }
    }

    /// Returns the stamp of chunk `seq`. The first chunk is 1, and each call is for the next one.
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
