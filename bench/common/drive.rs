//! Runs one implementation under one load and checks that nothing was lost.
//!
//! An implementation is either [`Polled`] (a producer, and subscribers that one thread polls: it
//! gets both modes for it) or writes [`Inline::run`] and [`Threads`] itself, where its natural
//! shape is another (tasks, closures). It owns its loop and asks the source for the next chunk, so
//! that `async` code fits too. Everything is generic and ends up as one loop without indirect
//! calls.
//!
//! Threads: the caller is the producer; in `threads` mode one more thread runs all subscribers.
//! Invariant: a run whose deliveries or stamps do not add up has no result.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};

use super::machine::{now_ns, pin_thread, preemption_count};
use super::params::{Fanout, Mode, Rate, Touch};
use super::receive::{Counting, Latency, Receive};
use super::report::{Measured, Outcome};
use super::source::{FlatOut, OpenLoop, Source, Tally};
use super::{BATCH_CHUNKS, Failure, RING_BYTES_MAX, RING_CHUNKS_MAX};

/// How long the subscribers' thread waits for what is still missing after the last publish.
const MISSING_WAIT_NS_MAX: u64 = 5_000_000_000;
/// `Stop::published_chunks` while nobody knows it.
const RUNNING: u64 = u64::MAX;

/// What an implementation is built for.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// How many subscribers there are.
    pub subscribers: u32,
    /// Bytes of every payload.
    pub size_bytes: usize,
    /// Chunks that the ring, or each queue, can hold: a power of two.
    pub ring_chunks: usize,
}

impl Setup {
    /// Rings of equal capacity for everyone.
    pub fn new(subscribers: u32, size_bytes: usize) -> Setup {
        let fitting = (RING_BYTES_MAX / size_bytes).max(BATCH_CHUNKS as usize);
        // Rounded down: `fitting` is at least 64.
        let ring_chunks = (1 << fitting.ilog2()).min(RING_CHUNKS_MAX);
        Setup { subscribers, size_bytes, ring_chunks }
    }
}

/// The other side has left: a run that must end without a result.
#[derive(Debug)]
pub struct Gone;

/// How the two threads of a run tell each other that it is over.
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

    /// For a producer that is its own reader: [`Stop::full`] fails at once.
    pub fn one_thread() -> Stop {
        Stop { subscribers_gone: AtomicBool::new(true), ..Stop::two_threads() }
    }

    /// What a producer calls while its ring is full: try again, unless nobody will ever read.
    ///
    /// # Errors
    /// [`Gone`]: nobody will. On one thread always, since only the producer could empty the ring.
    pub fn full(&self) -> Result<(), Gone> {
        // acquire: pairs with release in `SubscribersGuard`.
        if self.subscribers_gone.load(Ordering::Acquire) { Err(Gone) } else { Ok(()) }
    }

    /// Polls until `receiver` has been given everything, or the missing rest is overdue.
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
                continue; // No `spin_loop`: it takes longer than a cache line's way here.
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
        // release: pairs with acquire in `Stop::full`. Also on unwinding: that is its use.
        self.0.subscribers_gone.store(true, Ordering::Release);
    }
}

/// Producer and subscribers on one thread.
pub trait Inline {
    /// Publishes what `source` asks for. Before it asks again, every subscriber has been given
    /// each chunk: one call of `receiver` per subscriber and chunk.
    ///
    /// # Errors
    /// A text for the user.
    fn run<S: Source, R: Receive>(
        setup: &Setup,
        source: &mut S,
        receiver: Rc<R>,
    ) -> Result<(), String>;
}

/// Producer on one thread, all subscribers on another. That thread polls, or it sleeps while there
/// is nothing and ends when the producer is dropped.
pub trait Threads {
    /// What the producer's thread keeps.
    type Producer: Produce;
    /// What is sent to the subscribers' thread.
    type Subscribers: Subscribe + Send + 'static;

    /// Both sides, connected; every subscriber sees every chunk from the first.
    ///
    /// # Errors
    /// A text for the user.
    fn open(setup: &Setup) -> Result<(Self::Producer, Self::Subscribers), String>;
}

/// The producer's side.
pub trait Produce {
    /// Publishes `count` chunks of `payload`; spins with [`Stop::full`] while there is no room.
    ///
    /// # Errors
    /// [`Gone`] from [`Stop::full`].
    fn publish(&mut self, payload: &[u8], count: u32, stop: &Stop) -> Result<(), Gone>;
}

/// The subscribers' side.
pub trait Subscribe {
    /// Gives every subscriber everything, then returns.
    ///
    /// # Errors
    /// A text for the user.
    fn run<R: Receive>(self, setup: &Setup, receiver: Rc<R>, stop: &Stop) -> Result<(), String>;
}

/// Subscribers that wait for somebody to poll them. Serves both modes.
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
    /// Gives each subscriber what there is for it, at most [`BATCH_CHUNKS`] each. The number of
    /// deliveries.
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

/// What one kind of receiver is built from and leaves behind.
pub trait Recorder: Receive {
    /// With room for so many samples.
    fn open(setup: &Setup, sample_count: usize) -> Self;
    /// In the order in which they came.
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

/// What a subscribers' thread says when it is done.
pub struct Received {
    /// Deliveries.
    pub count: u64,
    /// The sum of their stamps, wrapping.
    pub stamp_sum: u64,
    /// When that was.
    pub end_ns: u64,
    /// Of the whole process, so far.
    pub preemptions: u64,
    /// One of each delivery, if latency is measured.
    pub samples_ns: Vec<u32>,
}

impl Received {
    /// By this receiver, which is done.
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

/// Runs `T`, which polls, under the load that `params` describe.
///
/// # Errors
/// [`Failure`]; [`Failure::Failed`] if a chunk was lost, doubled or damaged.
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

/// As [`run`], on one thread.
///
/// # Errors
/// See [`run`].
pub fn run_inline<T: Inline>(params: &Fanout) -> Result<Outcome, Failure> {
    match params.touch {
        Touch::Copy => inline_with::<T, Latency<true>, Counting<true>>(params),
        Touch::None => inline_with::<T, Latency<false>, Counting<false>>(params),
    }
}

/// As [`run`], on two threads, in whatever way `T` waits.
///
/// # Errors
/// See [`run`].
pub fn run_threads<T: Threads>(params: &Fanout) -> Result<Outcome, Failure> {
    match params.touch {
        Touch::Copy => threads_with::<T, Latency<true>, Counting<true>>(params),
        Touch::None => threads_with::<T, Latency<false>, Counting<false>>(params),
    }
}

/// The load of `params` at a rate.
pub fn open_loop(params: &Fanout, rate: u32) -> OpenLoop {
    let (warmup, counted) = params.chunks(rate);
    OpenLoop::new(rate, warmup, counted, params.size_bytes, params.seed)
}

/// The load of `params` without one.
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
            // On this thread, so that its memory is this core's.
            let receiver = Rc::new(R::open(&setup, samples));
            ready.wait();
            let result = pinned.and_then(|()| {
                subscribers.run(&setup, Rc::clone(&receiver), &stop).map_err(Failure::Failed)
            });
            // The other side hangs up only after it has heard.
            let _ = report.send(result.map(|()| Received::of(&*receiver)));
        }
    });
    ready.wait();
    let before = preemption_count();
    let mut all_published = Ok(());
    while let Some((payload, count)) = source.next() {
        all_published = producer.publish(payload, count, &stop);
        if all_published.is_err() {
            break; // The thread's own report says why.
        }
    }
    let tally = source.tally();
    // release: pairs with acquire in `Stop::poll_until_done`.
    stop.published_chunks.store(tally.published_chunks, Ordering::Release);
    drop(producer); // Whoever waits for the end of a channel sees it now.
    let early = || Failure::Failed("the subscribers' thread ended early".into());
    let received = reported.recv().map_err(|_| early());
    thread.join().map_err(|_| early())?;
    let received = received??;
    all_published.map_err(|Gone| early())?;
    judge(params, tally, received, before)
}

/// A result, if everything that was published arrived everywhere, once and whole.
/// `preemptions_before` is what was counted before the run.
///
/// # Errors
/// [`Failure::Failed`] if it did not.
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
