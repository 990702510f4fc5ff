//! Runs one implementation under one load and checks that nothing was lost.
//!
//! An implementation is [`Polled`] if it has a producer, and subscribers that one thread polls. It
//! then gets both modes. An implementation of another shape (tasks, closures) provides
//! [`Inline::run`] and [`Threads`] itself. It owns its loop and asks the source for the next chunk,
//! so that `async` code fits too. Everything is generic and compiles to one loop without indirect
//! calls.
//!
//! Threads: the caller is the producer. In `threads` mode, one more thread runs all subscribers.
//! Invariant: a run has no result unless its deliveries and stamps add up.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};

use super::machine::{now_ns, pin_thread, preemption_count};
use super::params::{Fanout, Mode, Rate, Touch};
use super::receive::{Counting, Latency, Receive};
use super::report::{Measured, Outcome};
use super::source::{FlatOut, OpenLoop, Source, Tally};
use super::{BATCH_CHUNKS, Failure, RING_BYTES_MAX, RING_CHUNKS_MAX};

/// Time that the subscribers' thread waits for missing deliveries after the last publication.
const MISSING_WAIT_NS_MAX: u64 = 5_000_000_000;
/// The value of `Stop::published_chunks` until it is known.
const RUNNING: u64 = u64::MAX;

/// The parameters of an implementation.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Number of subscribers.
    pub subscribers: u32,
    /// Bytes of every payload.
    pub size_bytes: usize,
    /// Capacity of the ring, or of each queue, in chunks: a power of two.
    pub ring_chunks: usize,
}

impl Setup {
    /// Returns a setup in which all implementations have rings of equal capacity.
    pub fn new(subscribers: u32, size_bytes: usize) -> Setup {
        let fitting = (RING_BYTES_MAX / size_bytes).max(BATCH_CHUNKS as usize);
        // Rounded down: `fitting` is at least 64.
        let ring_chunks = (1 << fitting.ilog2()).min(RING_CHUNKS_MAX);
        Setup { subscribers, size_bytes, ring_chunks }
    }
}

/// The other side has gone, so the run must end without a result.
#[derive(Debug)]
pub struct Gone;

/// The state by which the two threads of a run tell each other that it is over.
#[derive(Debug)]
pub struct Stop {
    published_chunks: AtomicU64,
    subscribers_gone: AtomicBool,
}

impl Stop {
    fn two_threads() -> Stop {
        let (running, no) = (AtomicU64::new(RUNNING), AtomicBool::new(false));
        Stop { published_chunks: running, subscribers_gone: no }
    }

    /// Returns the state for a producer that is its own reader: [`Stop::full`] fails at once.
    pub fn one_thread() -> Stop {
        Stop { subscribers_gone: AtomicBool::new(true), ..Stop::two_threads() }
    }

    /// Called by a producer while its ring is full. `Ok` if it may try again.
    ///
    /// # Errors
    /// [`Gone`] if the subscribers have gone. On one thread it always fails, because only the
    /// producer could empty the ring.
    pub fn full(&self) -> Result<(), Gone> {
        // acquire: pairs with release in `SubscribersGuard`.
        if self.subscribers_gone.load(Ordering::Acquire) { Err(Gone) } else { Ok(()) }
    }

    /// Polls until `receiver` has received everything, or the missing rest is overdue.
    #[inline(always)]
    pub fn poll_until_done<R: Receive>(
        &self,
        setup: &Setup,
        receiver: &R,
        mut poll: impl FnMut() -> u32,
    ) {
        let mut overdue_ns = 0;
        loop {
            if poll() > 0 {
                continue;
            }
            // acquire: pairs with release in `run_threads`.
            let published_chunks = self.published_chunks.load(Ordering::Acquire);
            if published_chunks == RUNNING {
                continue; // No `spin_loop`: it takes longer than the transfer of a cache line.
            }
            if receiver.count() >= published_chunks * u64::from(setup.subscribers) {
                return;
            }
            let now = now_ns();
            if overdue_ns == 0 {
                overdue_ns = now + MISSING_WAIT_NS_MAX;
            }
            if now > overdue_ns {
                return;
            }
        }
    }
}

struct SubscribersGuard<'a>(&'a Stop);

impl Drop for SubscribersGuard<'_> {
    fn drop(&mut self) {
        // release: pairs with acquire in `Stop::full`. The guard also works on unwinding.
        self.0.subscribers_gone.store(true, Ordering::Release);
    }
}

/// A producer and subscribers on one thread.
pub trait Inline {
    /// Publishes the chunks of `source`. Before it asks for the next one, every subscriber has
    /// received each chunk: one call of `receiver` per subscriber and chunk.
    ///
    /// # Errors
    /// A text for the user.
    fn run<S: Source, R: Receive>(
        setup: &Setup,
        source: &mut S,
        receiver: Rc<R>,
    ) -> Result<(), String>;
}

/// A producer on one thread, and all subscribers on another. That thread polls, or it sleeps while
/// nothing is ready and ends when the producer is dropped.
pub trait Threads {
    /// The part that stays on the producer's thread.
    type Producer: Produce;
    /// The part that is sent to the subscribers' thread.
    type Subscribers: Subscribe + Send + 'static;

    /// Returns both sides, connected. Every subscriber sees every chunk from the first.
    ///
    /// # Errors
    /// A text for the user.
    fn open(setup: &Setup) -> Result<(Self::Producer, Self::Subscribers), String>;
}

/// The producer's side.
pub trait Produce {
    /// Publishes `count` chunks of `payload`; spins with [`Stop::full`] while the ring is full.
    ///
    /// # Errors
    /// [`Gone`] from [`Stop::full`].
    fn publish(&mut self, payload: &[u8], count: u32, stop: &Stop) -> Result<(), Gone>;
}

/// The subscribers' side.
pub trait Subscribe {
    /// Delivers everything to every subscriber, and then returns.
    ///
    /// # Errors
    /// A text for the user.
    fn run<R: Receive>(self, setup: &Setup, receiver: Rc<R>, stop: &Stop) -> Result<(), String>;
}

/// Subscribers that have to be polled. Serves both modes.
pub trait Polled {
    /// See [`Threads::Producer`].
    type Producer: Produce;
    /// See [`Threads::Subscribers`].
    type Subscribers: Poll + Send + 'static;

    /// See [`Threads::open`].
    ///
    /// # Errors
    /// A text for the user.
    fn open(setup: &Setup) -> Result<(Self::Producer, Self::Subscribers), String>;
}

/// Round robin over all subscribers.
pub trait Poll {
    /// Delivers the ready chunks to each subscriber, at most [`BATCH_CHUNKS`] each. Returns the
    /// number of deliveries.
    fn poll<R: Receive>(&mut self, receiver: &R) -> u32;
}

impl<T: Polled> Inline for T {
    fn run<S: Source, R: Receive>(
        setup: &Setup,
        source: &mut S,
        receiver: Rc<R>,
    ) -> Result<(), String> {
        let (mut producer, mut subscribers) = T::open(setup)?;
        let stop = Stop::one_thread();
        while let Some((payload, count)) = source.next() {
            let published = producer.publish(payload, count, &stop);
            published.map_err(|Gone| "a ring is full although everything was read")?;
            subscribers.poll(&*receiver);
        }
        Ok(())
    }
}

/// Subscribers that [`Threads`] polls on their thread.
pub struct PolledThread<T>(T);

impl<T: Poll> Subscribe for PolledThread<T> {
    fn run<R: Receive>(
        mut self,
        setup: &Setup,
        receiver: Rc<R>,
        stop: &Stop,
    ) -> Result<(), String> {
        stop.poll_until_done(setup, &*receiver, || self.0.poll(&*receiver));
        Ok(())
    }
}

impl<T: Polled> Threads for T {
    type Producer = T::Producer;
    type Subscribers = PolledThread<T::Subscribers>;
    fn open(setup: &Setup) -> Result<(Self::Producer, Self::Subscribers), String> {
        let (producer, subscribers) = T::open(setup)?;
        Ok((producer, PolledThread(subscribers)))
    }
}

/// A kind of receiver with its constructor and its samples.
pub trait Recorder: Receive {
    /// Returns a receiver with room for `sample_count` samples.
    fn open(setup: &Setup, sample_count: usize) -> Self;
    /// Returns the samples in the order of the deliveries.
    fn samples_ns(&self) -> Vec<u32>;
}

impl<const COPY: bool> Recorder for Latency<COPY> {
    fn open(setup: &Setup, sample_count: usize) -> Self {
        Latency::new(setup.size_bytes, sample_count)
    }
    fn samples_ns(&self) -> Vec<u32> {
        self.samples_ns()
    }
}

impl<const COPY: bool> Recorder for Counting<COPY> {
    fn open(setup: &Setup, _sample_count: usize) -> Self {
        Counting::new(setup.size_bytes)
    }
    fn samples_ns(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// The report of the subscribers' thread.
pub struct Received {
    /// Number of deliveries.
    pub count: u64,
    /// The sum of their stamps, wrapping.
    pub stamp_sum: u64,
    /// The time of the report.
    pub end_ns: u64,
    /// Number of preemptions of the whole process so far.
    pub preemptions: u64,
    /// One sample for each delivery, if latency is measured.
    pub samples_ns: Vec<u32>,
}

impl Received {
    /// Returns the report of a receiver that is done.
    pub fn of<R: Recorder>(receiver: &R) -> Received {
        Received {
            count: receiver.count(),
            stamp_sum: receiver.stamp_sum(),
            end_ns: now_ns(),
            preemptions: preemption_count(),
            samples_ns: receiver.samples_ns(),
        }
    }
}

/// Runs `T`, which polls, under the load of `params`.
///
/// # Errors
/// [`Failure`]; [`Failure::Failed`] if a chunk was lost, duplicated or damaged.
pub fn run<T: Inline + Threads>(params: &Fanout) -> Result<Outcome, Failure> {
    match params.mode {
        Mode::Inline => run_inline::<T>(params),
        Mode::Threads => run_threads::<T>(params),
        Mode::Blocked => Err(Failure::Usage(format!(
            "--impl {} does not sleep: --mode inline or threads",
            params.implementation
        ))),
    }
}

/// Does the same as [`run`], on one thread.
///
/// # Errors
/// See [`run`].
pub fn run_inline<T: Inline>(params: &Fanout) -> Result<Outcome, Failure> {
    match params.touch {
        Touch::Copy => inline_with::<T, Latency<true>, Counting<true>>(params),
        Touch::None => inline_with::<T, Latency<false>, Counting<false>>(params),
    }
}

/// Does the same as [`run`], on two threads. `T` may poll or sleep.
///
/// # Errors
/// See [`run`].
pub fn run_threads<T: Threads>(params: &Fanout) -> Result<Outcome, Failure> {
    match params.touch {
        Touch::Copy => threads_with::<T, Latency<true>, Counting<true>>(params),
        Touch::None => threads_with::<T, Latency<false>, Counting<false>>(params),
    }
}

/// Returns the load of `params` at a rate.
pub fn open_loop(params: &Fanout, rate: u32) -> OpenLoop {
    let (warmup, counted) = params.chunks(rate);
    OpenLoop::new(rate, warmup, counted, params.size_bytes, params.seed)
}

/// Returns the load of `params` without a rate.
pub fn flat_out(params: &Fanout) -> FlatOut {
    FlatOut::new(params.warmup, params.duration, params.size_bytes, params.seed)
}

fn inline_with<T: Inline, L: Recorder, C: Recorder>(params: &Fanout) -> Result<Outcome, Failure> {
    pin_thread(params.producer_cpu)?;
    match params.rate {
        Rate::PerSecond(rate) => inline_run::<T, L>(params, open_loop(params, rate)),
        Rate::Max => inline_run::<T, C>(params, flat_out(params)),
    }
}

fn threads_with<T: Threads, L: Recorder, C: Recorder>(params: &Fanout) -> Result<Outcome, Failure> {
    pin_thread(params.producer_cpu)?;
    match params.rate {
        Rate::PerSecond(rate) => threads_run::<T, L>(params, open_loop(params, rate)),
        Rate::Max => threads_run::<T, C>(params, flat_out(params)),
    }
}

fn inline_run<T: Inline, R: Recorder>(
    params: &Fanout,
    mut source: impl Source,
) -> Result<Outcome, Failure> {
    let setup = Setup::new(params.subscribers, params.size_bytes);
    let receiver = Rc::new(R::open(&setup, params.samples()));
    let before = preemption_count();
    T::run(&setup, &mut source, Rc::clone(&receiver)).map_err(Failure::Failed)?;
    judge(params, source.tally(), Received::of(&*receiver), before)
}

fn threads_run<T: Threads, R: Recorder>(
    params: &Fanout,
    mut source: impl Source,
) -> Result<Outcome, Failure> {
    let setup = Setup::new(params.subscribers, params.size_bytes);
    let (mut producer, subscribers) = T::open(&setup).map_err(Failure::Failed)?;
    let stop = Arc::new(Stop::two_threads());
    let ready = Arc::new(Barrier::new(2));
    let (report, reported) = mpsc::channel();
    let (cpu, samples) = (params.subscribers_cpu, params.samples());
    let thread = std::thread::spawn({
        let (stop, ready) = (Arc::clone(&stop), Arc::clone(&ready));
        move || {
            let _guard = SubscribersGuard(&stop);
            let pinned = pin_thread(cpu);
            // Created on this thread, so that its memory is local to this core.
            let receiver = Rc::new(R::open(&setup, samples));
            ready.wait();
            let result = pinned.and_then(|()| {
                subscribers.run(&setup, Rc::clone(&receiver), &stop).map_err(Failure::Failed)
            });
            // The other side drops its end only after it has received the report.
            let _ = report.send(result.map(|()| Received::of(&*receiver)));
        }
    });
    ready.wait();
    let before = preemption_count();
    let mut all_published = Ok(());
    while let Some((payload, count)) = source.next() {
        all_published = producer.publish(payload, count, &stop);
        if all_published.is_err() {
            break; // The report of the thread has the reason.
        }
    }
    let tally = source.tally();
    // release: pairs with acquire in `Stop::poll_until_done`.
    stop.published_chunks.store(tally.published_chunks, Ordering::Release);
    drop(producer); // This ends the channel for subscribers that wait for its end.
    let early = || Failure::Failed("the subscribers' thread ended early".into());
    let received = reported.recv().map_err(|_| early());
    thread.join().map_err(|_| early())?;
    let received = received??;
    all_published.map_err(|Gone| early())?;
    judge(params, tally, received, before)
}

/// Returns the outcome if every published chunk arrived everywhere, once and undamaged.
/// `preemptions_before` is the count before the run.
///
/// # Errors
/// [`Failure::Failed`] if deliveries or stamps do not add up.
pub fn judge(
    params: &Fanout,
    tally: Tally,
    received: Received,
    preemptions_before: u64,
) -> Result<Outcome, Failure> {
    let subscribers = u64::from(params.subscribers);
    let expected = tally.published_chunks * subscribers;
    if received.count != expected {
        return Err(Failure::Failed(format!(
            "{} deliveries instead of {expected} ({} chunks × {subscribers} subscribers)",
            received.count, tally.published_chunks
        )));
    }
    if received.stamp_sum != tally.stamp_sum.wrapping_mul(subscribers) {
        return Err(Failure::Failed("what was received is not what was published".into()));
    }
    let chunks = tally.published_chunks - tally.warmup_chunks;
    let measured = if params.rate == Rate::Max {
        let elapsed_ns = received.end_ns.max(tally.end_ns) - tally.start_ns;
        Measured::Throughput { chunks, deliveries: chunks * subscribers, elapsed_ns }
    } else {
        let warmup_samples = (tally.warmup_chunks * subscribers) as usize;
        Measured::latency(chunks, &received.samples_ns[warmup_samples..], params.subscribers)
    };
    Ok(Outcome { measured, preemptions: received.preemptions - preemptions_before })
}
