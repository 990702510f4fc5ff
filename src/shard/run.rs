//! The state of one execution beside what the engine knows: its ring, its tool, and the pages that
//! it shares with readers on other threads.

use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

use super::delivery::code_of_detach;
use super::events::Names;
use super::journal::Late;
use super::outlet::{GuestRun, OutsideReader};
use super::pages::{Pages, PromptReader};
use super::reader::refill::{News, Refill};
use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Guarded, Handle, Instant, SubscriberId, guarded};
use crate::engine::{Gate, Timeouts};
use crate::journal::KeptId;
use crate::memory::atomic::full_fence;
use crate::memory::{
    ClockAnchor, ControlPage, Exchange, Flag, LeaveReason, ReaderPageView, ReaderSignals,
    RingReader, RingWriter, Start, WildCursor,
};
use crate::reactor::{Clock, Waker};
use crate::stream::DetachReason;
use crate::tool::{Host, StopHook, Tool, ToolSpec, ToolUpdate, Work};
use crate::trace::TraceContext;

/// The place of the ring's writer.
pub enum Ring {
    /// There is no ring (yet).
    None,
    /// This thread: the tool runs here, or chunks are published by hand.
    Here(RingWriter),
    /// A tool's thread. This is a reader of the ring.
    Away(RingReader),
    /// This thread again: the tool has returned the writer, and nothing more will be written.
    Back(RingWriter),
}

/// The producer of an execution's chunks.
pub enum Producer {
    /// Work that has not started yet.
    Waiting(Guarded<Work>),
    /// A tool that this thread steps.
    Steps(Guarded<Box<dyn Tool>>),
    /// The owner, which publishes by hand.
    Feed,
    /// A guest of the shard.
    Outside,
    /// A tool on a thread of its own.
    Thread(Arc<ThreadHost>),
    /// None: the producer has ended.
    Gone,
}

/// A reader on another thread or in another process.
pub struct Remote<P> {
    /// The subscriber.
    pub subscriber: SubscriberId,
    /// The shard's side of it.
    pub seat: Seat<P>,
}

/// The place where a reader lives.
pub enum Seat<P> {
    /// Another thread of this process.
    Thread(ThreadSeat),
    /// Another process.
    Process(Box<P>),
}

/// The shard's side of a reader on another thread.
pub struct ThreadSeat {
    pub page: ReaderPageView,
    pub reader_signals: Arc<ReaderSignals>,
    /// The waker of the reactor that it sleeps in, if it serves a connection of another shard.
    pub reactor: Option<Waker>,
    /// Its way to chunks that only the disk holds.
    pub refill: Option<Arc<Refill>>,
}

impl<P: OutsideReader> Remote<P> {
    /// Its way to chunks that only the disk holds.
    pub fn refill(&self) -> Option<&Arc<Refill>> {
        match &self.seat {
            Seat::Thread(seat) => seat.refill.as_ref(),
            Seat::Process(_) => None,
        }
    }

    /// Returns its cursor. `has_been` returns true for chunks that are or were in the ring.
    pub fn sample(&mut self, has_been: impl Fn(u64) -> bool) -> Result<u64, WildCursor> {
        let page = match &mut self.seat {
            Seat::Thread(seat) => &mut seat.page,
            Seat::Process(seat) => match seat.page() {
                Ok(page) => page,
                Err(cursor) => return Ok(cursor),
            },
        };
        page.sample_if(has_been)
    }

    /// Returns its seat if it is in another process.
    pub fn process_seat(&self) -> Option<&P> {
        match &self.seat {
            Seat::Thread(_) => None,
            Seat::Process(seat) => Some(seat),
        }
    }

    /// Returns what it reports as missed, in chunks and bytes.
    pub fn missed(&self) -> (u64, u64) {
        match &self.seat {
            Seat::Thread(seat) => seat.page.missed(),
            Seat::Process(seat) => seat.missed(),
        }
    }

    /// Returns the way in which it left, if it has. A reader in another process leaves by closing
    /// its connection.
    pub fn left(&self) -> Option<LeaveReason> {
        match &self.seat {
            Seat::Thread(seat) => seat.reader_signals.left(),
            Seat::Process(_) => None,
        }
    }

    fn knock(&self) {
        match &self.seat {
            Seat::Thread(seat) => seat.reader_signals.knock(),
            Seat::Process(seat) => seat.knock(),
        }
    }

    /// Ends its sleep after a knock. `has_sleepers` is true if readers on threads of this process
    /// sleep.
    fn wake(&mut self, has_sleepers: bool) {
        match &mut self.seat {
            Seat::Thread(seat) if has_sleepers => seat.reader_signals.wake(),
            Seat::Thread(_) => {}
            Seat::Process(seat) => seat.wake(),
        }
    }

    /// Ends its sleep in a reactor, if it sleeps in one.
    fn wake_if_asleep(&self, exchange: &Exchange, wake: &mut impl FnMut(&Waker)) {
        if let Seat::Thread(ThreadSeat { reader_signals, reactor: Some(waker), .. }) = &self.seat
            && exchange.end_reactor_sleep(reader_signals.reactor_sleep())
        {
            wake(waker);
        }
    }
}

/// One execution of this shard.
pub struct Run<X: GuestRun> {
    pub handle: Handle,
    pub id: ExecutionId,
    /// The tool that it runs, if it is a registered one.
    pub tool: Option<Arc<ToolSpec>>,
    /// Its names on every wire.
    pub names: Names,
    /// The time limits of the tool.
    pub timeouts: Timeouts,
    /// The time at which it was opened.
    pub opened_at: Instant,
    /// True if the tool has panicked.
    pub has_panicked: bool,
    /// The trace that it is a part of.
    pub trace: TraceContext,
    pub ring_bytes: u32,
    pub chunk_bytes: u32,
    /// True if the ring starts with the smallest size that takes the declared chunks.
    pub grows: bool,
    /// True while the ring grows instead of giving up old chunks.
    pub keeps_history: bool,
    /// The longest chunk that the ring takes, now or once it has grown.
    pub chunk_bytes_max: u32,
    pub producer: Producer,
    /// The state that the guests keep with it.
    pub guest: X,
    pub ring: Ring,
    /// The memory that it shares with other threads, once one of them has come.
    pub pages: Option<Box<Pages>>,
    /// True once the pages were told the end.
    pub has_verdict: bool,
    pub gate: Gate,
    /// The last chunk that the engine was told of.
    pub ingested_seq: u64,
    /// Total number of chunks that the tool will publish, if it has said so.
    pub chunks_expected: Option<u64>,
    /// The error text, once it has failed. It stays when the engine has forgotten the execution.
    pub error: Option<Box<str>>,
    pub remotes: Vec<Remote<X::Reader>>,
    /// True while the tool waits for room. It is stepped again when the gate is set.
    pub blocked: bool,
    /// True if it is in the shard's list of tools to step.
    pub runnable: bool,
    /// True from the request to stop until the tool is quiet.
    pub stopping: bool,
    /// Its name in the journal, if it is kept.
    pub kept: Option<KeptId>,
    /// Its wait for the disk, if the engine is told of its chunks only when the journal has them.
    pub late: Option<Box<Late>>,
    /// True once the journal was told its end.
    pub is_end_recorded: bool,
    /// The clocks by which the times of its chunks on disk are told; the shard's own if `None`.
    pub anchor: Option<ClockAnchor>,
    /// True if it is one of another node, of which a guest has the log. It is as if it was kept.
    pub is_replica: bool,
    /// True if it goes on after a restart.
    pub goes_on: bool,
    /// True if it goes on after the end of this process, so that the journal is told no end.
    pub stays_open: bool,
    /// The beginning of its ring, if that is not its first chunk.
    pub start: Option<Box<Start>>,
}

impl Ring {
    /// The newest chunk in the ring, whether the engine was told of it or not.
    #[inline]
    pub fn head_seq(&self) -> u64 {
        if let Ring::Here(writer) = self {
            return writer.head_seq(); // By far the most frequent case.
        }
        match self {
            Ring::None => 0,
            Ring::Here(writer) | Ring::Back(writer) => writer.head_seq(),
            Ring::Away(reader) => reader.head_seq(),
        }
    }

    /// True if this chunk is or was in the ring.
    pub fn has_been(&self, seq: u64) -> bool {
        match self {
            Ring::Away(reader) => reader.has_been(seq),
            ring => seq <= ring.head_seq(),
        }
    }
}

impl<X: GuestRun> Run<X> {
    /// Creates the run of an execution that has no ring yet, and is no tool's.
    pub fn new(id: ExecutionId, producer: Producer, guest: X) -> Run<X> {
        Run {
            handle: id.slot,
            id,
            tool: None,
            names: Names::new(id, None),
            timeouts: Timeouts::NONE,
            opened_at: Instant::ZERO,
            has_panicked: false,
            trace: TraceContext::default(),
            ring_bytes: 0,
            chunk_bytes: 0,
            grows: false,
            keeps_history: false,
            chunk_bytes_max: 0,
            producer,
            guest,
            ring: Ring::None,
            pages: None,
            has_verdict: false,
            gate: Gate::OPEN,
            ingested_seq: 0,
            chunks_expected: None,
            error: None,
            remotes: Vec::new(),
            blocked: false,
            runnable: false,
            stopping: false,
            kept: None,
            late: None,
            is_end_recorded: false,
            anchor: None,
            is_replica: false,
            goes_on: false,
            stays_open: false,
            start: None,
        }
    }

    /// The newest chunk in the ring, whether the engine was told of it or not.
    #[inline]
    pub fn head_seq(&self) -> u64 {
        // Some of a guest's chunks are only in its own ring.
        self.ring.head_seq().max(self.ingested_seq)
    }

    /// True if chunks that the ring no longer holds can be had elsewhere.
    #[inline]
    pub fn has_history(&self) -> bool {
        self.kept.is_some() || self.is_replica
    }

    /// The clocks by which the times of chunks in its ring are told, if they are not the shard's.
    #[inline]
    pub fn ring_clocks(&self) -> Option<ClockAnchor> {
        self.anchor.filter(|_| self.is_replica)
    }

    /// True if the engine will be told of chunks when the disk has them.
    pub fn is_held_by_disk(&self) -> bool {
        self.late.is_some() && self.ingested_seq < self.head_seq()
    }

    /// True if readers elsewhere may sleep and have to be woken for chunks.
    #[inline]
    pub fn has_readers_elsewhere(&self) -> bool {
        !self.remotes.is_empty() || self.guest.has_hidden_readers()
    }

    /// The readers on other threads that have said something about the disk.
    pub fn readers_news(&self) -> impl Iterator<Item = (SubscriberId, News)> {
        let news = |remote: &Remote<_>| Some((remote.subscriber, remote.refill()?.take_news()?));
        self.remotes.iter().filter_map(news)
    }

    /// True if its owner feeds it by hand, now or as soon as it begins.
    pub fn is_fed(&self) -> bool {
        match &self.producer {
            Producer::Waiting(work) => matches!(**work, Work::Feed | Work::Remote(_)),
            Producer::Feed => true,
            _ => false,
        }
    }

    /// Returns a reader of the ring for another thread.
    pub fn reader(&self) -> Option<RingReader> {
        match &self.ring {
            Ring::None => None,
            Ring::Here(writer) | Ring::Back(writer) => Some(writer.reader()),
            Ring::Away(reader) => Some(reader.clone()),
        }
    }

    /// Updates every control page of the execution, for readers and producer, wherever they are.
    pub fn tell_pages(&mut self, mut tell: impl FnMut(&mut ControlPage)) {
        if let Some(pages) = &mut self.pages {
            tell(&mut pages.control);
        }
        self.guest.write_pages(&mut tell);
        self.guest.write_hidden_page(&mut tell);
    }

    /// Detaches a reader elsewhere, if it is one of this execution, and tells it why. Returns the
    /// shard's side of it.
    pub fn dismiss(
        &mut self,
        subscriber: SubscriberId,
        reason: DetachReason,
    ) -> Option<Remote<X::Reader>> {
        let found = self.remotes.iter().position(|remote| remote.subscriber == subscriber);
        let mut remote = self.remotes.swap_remove(found?);
        match &remote.seat {
            Seat::Thread(seat) => seat.reader_signals.detach(code_of_detach(reason)),
            Seat::Process(seat) => seat.detach(code_of_detach(reason)),
        }
        full_fence(); // exchange:sleep, page:asleep
        remote.wake(self.has_sleepers());
        if let Some(exchange) = self.exchange() {
            remote.wake_if_asleep(exchange, &mut Waker::wake);
        }
        Some(remote)
    }

    /// Stops the producer on another thread and detaches the readers elsewhere, because the shard
    /// is gone.
    pub fn abandon(&mut self) {
        if let Some(pages) = &self.pages {
            pages.exchange.close();
            if let Producer::Thread(host) = &self.producer {
                host.call_stop_hook();
            }
            pages.control.wake_producer();
        }
        while let Some(subscriber) = self.remotes.last().map(|remote| remote.subscriber) {
            drop(self.dismiss(subscriber, DetachReason::Lost));
        }
    }

    /// Makes the readers elsewhere look for something other than chunks.
    pub fn knock(&mut self) {
        self.remotes.iter().for_each(Remote::knock);
        full_fence(); // exchange:sleep, page:asleep
        let has_sleepers = self.has_sleepers();
        self.remotes.iter_mut().for_each(|remote| remote.wake(has_sleepers));
        self.wake_sleeping_readers(&mut Waker::wake);
    }

    /// Like [`Run::knock`], for one reader.
    pub fn knock_for(&mut self, subscriber: SubscriberId) {
        let found = self.remotes.iter().position(|remote| remote.subscriber == subscriber);
        if let Some(at) = found {
            self.remotes[at].knock();
            full_fence(); // exchange:sleep, page:asleep
            let has_sleepers = self.has_sleepers();
            self.remotes[at].wake(has_sleepers);
            if let Some(exchange) = self.exchange() {
                self.remotes[at].wake_if_asleep(exchange, &mut Waker::wake);
            }
        }
    }

    /// Like [`Run::knock`], for a reader whose client has acknowledged everything through `seq`.
    pub fn pass_acknowledgement(&self, subscriber: SubscriberId, seq: u64) {
        let found = self.remotes.iter().find(|remote| remote.subscriber == subscriber);
        if let Some(remote) = found
            && let Seat::Thread(ThreadSeat { reader_signals, .. }) = &remote.seat
            && seq > reader_signals.acked_seq()
            && let Some(exchange) = self.exchange()
        {
            reader_signals.acknowledge(seq);
            reader_signals.knock();
            full_fence(); // exchange:reactor-sleep
            remote.wake_if_asleep(exchange, &mut Waker::wake);
        }
    }

    /// Wakes sleeping readers elsewhere, because there are chunks. `wake` is called for those that
    /// sleep in a reactor.
    pub fn wake_readers(&mut self, mut wake: impl FnMut(&Waker)) {
        let is_lost = planted(Planted::LostWake);
        self.guest.wake_hidden_readers();
        if self.remotes.is_empty() || is_lost {
            return;
        }
        if self.has_sleepers() {
            match &self.ring {
                Ring::None => {}
                Ring::Here(writer) | Ring::Back(writer) => writer.wake(),
                Ring::Away(reader) => reader.wake(),
            }
        }
        self.wake_sleeping_readers(&mut wake);
        self.guest.wake_readers(&mut self.remotes);
    }

    fn wake_sleeping_readers(&self, wake: &mut impl FnMut(&Waker)) {
        let exchange = self.exchange().filter(|exchange| exchange.asleep().is_in_reactor());
        if let Some(exchange) = exchange {
            self.remotes.iter().for_each(|remote| remote.wake_if_asleep(exchange, wake));
        }
    }

    /// Returns the words that it shares with other threads, if one of them has come.
    #[inline]
    pub fn exchange(&self) -> Option<&Exchange> {
        self.pages.as_deref().map(|pages| &*pages.exchange)
    }

    /// True if readers on other threads sleep. Call it like [`Exchange::asleep`].
    #[inline]
    fn has_sleepers(&self) -> bool {
        self.exchange().is_some_and(|exchange| exchange.asleep().is_on_futex())
    }
}

/// The signals that other threads ring when the shard has to look at something.
pub struct ShardSignals {
    pub waker: Waker,
    /// The thread that runs the shard, once it does.
    pub thread: OnceLock<ThreadId>,
    /// Set when a reader has left.
    pub departed: Flag,
    /// Set when a reader has asked for chunks from the disk, or has come level.
    pub asked_disk: Flag,
}

impl ShardSignals {
    /// Keeps that the calling thread runs the shard.
    pub fn belong_here(&self) {
        let _ = self.thread.set(std::thread::current().id()); // A shard stays where it is.
    }

    /// True if the calling thread runs the shard.
    pub fn is_own_thread(&self) -> bool {
        self.thread.get() == Some(&std::thread::current().id())
    }
}

/// The connection of a tool's thread to its shard.
pub struct ThreadHost {
    signals: Arc<ShardSignals>,
    clock: ThreadClock,
    updates: Mutex<ToolUpdate>,
    noted: Flag,
    stop_hook: Mutex<Option<Guarded<StopHook>>>,
    prompt: Arc<PromptReader>,
}

/// The clock that tools' threads read.
#[derive(Clone, Copy)]
pub enum ThreadClock {
    /// The real one.
    Real,
    /// A fixed time, for tools that a simulator runs by hand.
    Fixed(Instant),
}

impl ThreadHost {
    pub fn new(
        signals: Arc<ShardSignals>,
        clock: ThreadClock,
        prompt: Arc<PromptReader>,
    ) -> ThreadHost {
        ThreadHost {
            signals,
            clock,
            updates: Mutex::default(),
            noted: Flag::default(),
            stop_hook: Mutex::default(),
            prompt,
        }
    }

    /// Returns the notes of the tool since the last call.
    pub fn take_notes(&self) -> Option<ToolUpdate> {
        if !self.noted.take() {
            return None;
        }
        let mut updates = self.updates.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Some(std::mem::take(&mut *updates))
    }
}

impl Host for ThreadHost {
    fn now(&self) -> Instant {
        match self.clock {
            ThreadClock::Real => Clock::now(),
            ThreadClock::Fixed(instant) => instant,
        }
    }

    fn wake_shard(&self) {
        self.signals.waker.wake();
    }

    fn wake_prompt_reader(&self, exchange: &Exchange) {
        self.prompt.wake(exchange);
    }

    fn update(&self, updates: ToolUpdate) {
        let mut merged = self.updates.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        merged.append(updates);
        drop(merged);
        self.noted.set();
        self.signals.waker.wake();
    }

    fn keep_stop_hook(&self, hook: Option<StopHook>) {
        let mut kept = self.stop_hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = std::mem::replace(&mut *kept, hook.map(Guarded::new));
        drop(kept);
        drop(before); // It runs a tool's own code: not under the lock.
    }

    fn call_stop_hook(&self) {
        let kept = self.stop_hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(hook) = &*kept {
            let _ = guarded(&**hook); // Its panic is the tool's own.
        }
    }
}
