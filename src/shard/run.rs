//! What a shard keeps for one execution beside what the engine knows: its ring, its tool, the pages
//! it shares with readers on other threads.

use std::sync::{Arc, Mutex, OnceLock};

#[cfg(feature = "server")]
pub(super) use super::agent::Agent;
use super::delivery::code_of_detach;
use super::events::Names;
#[cfg(feature = "server")]
use crate::base::Principal;
use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Foreign, Handle, Instant, SubscriberId, guarded};
use crate::engine::{DetachReason, Exit, Gate};
use crate::memory::atomic::full_fence;
use crate::memory::{
    ControlPage, Desk, Exchange, Flag, Left, ReaderPageView, RingReader, RingWriter, WildCursor,
};
use crate::reactor::{Clock, Waker};
use crate::tool::{Host, Notes, StopHook, Tool, ToolSpec, Work};
use crate::trace::TraceContext;

/// Where the ring's writer is.
pub(super) enum Ring {
    /// There is no ring (yet).
    None,
    /// Here: the tool runs on this thread, or chunks are published by hand.
    Here(RingWriter),
    /// On a tool's thread; here is a reader of it.
    Away(RingReader),
    /// The tool has handed it back: nothing more will be written.
    Back(RingWriter),
}

/// What publishes.
pub(super) enum Producer {
    /// Not started yet.
    Waiting(Foreign<Work>),
    /// Stepped by this thread.
    Steps(Foreign<Box<dyn Tool>>),
    /// By hand.
    Feed,
    /// A run of an agent, on this thread.
    #[cfg(feature = "server")]
    Agent,
    /// In another process, into a ring of its own, which is copied from.
    #[cfg(feature = "server")]
    Guest,
    /// On a thread of its own.
    Thread(Arc<ThreadHost>),
    /// Nothing.
    Gone,
}

/// There are none.
#[cfg(not(feature = "server"))]
pub(super) enum Agent {}

/// A reader elsewhere.
pub(super) struct Remote {
    pub subscriber: SubscriberId,
    pub seat: Seat,
}

/// Where it is.
pub(super) enum Seat {
    /// On another thread of this process.
    Thread(ThreadSeat),
    /// In another process.
    #[cfg(feature = "server")]
    Process(Box<super::door::ProcessSeat>),
}

/// A reader on another thread.
pub(super) struct ThreadSeat {
    pub page: ReaderPageView,
    pub desk: Arc<Desk>,
    /// Of the reactor that it sleeps in, if it is one of another shard's connections.
    pub reactor: Option<Waker>,
}

impl Remote {
    /// Where it stands. `has_been` says whether there ever was such a chunk.
    pub fn sample(&mut self, has_been: impl Fn(u64) -> bool) -> Result<u64, WildCursor> {
        let page = match &mut self.seat {
            Seat::Thread(seat) => &mut seat.page,
            #[cfg(feature = "server")]
            Seat::Process(seat) => match seat.page() {
                Ok(page) => page,
                Err(cursor) => return Ok(cursor),
            },
        };
        page.sample_if(has_been)
    }

    /// Where it is, if that is another process.
    #[cfg(feature = "server")]
    pub fn process_seat(&self) -> Option<&super::door::ProcessSeat> {
        match &self.seat {
            Seat::Thread(_) => None,
            Seat::Process(seat) => Some(seat),
        }
    }

    /// What it says that it missed, in chunks and bytes.
    pub fn missed(&self) -> (u64, u64) {
        match &self.seat {
            Seat::Thread(seat) => seat.page.missed(),
            #[cfg(feature = "server")]
            Seat::Process(seat) => seat.missed(),
        }
    }

    /// Has it left, and how? One in another process says so by closing its connection.
    pub fn left(&self) -> Option<Left> {
        match &self.seat {
            Seat::Thread(seat) => seat.desk.left(),
            #[cfg(feature = "server")]
            Seat::Process(_) => None,
        }
    }

    fn knock(&self) {
        match &self.seat {
            Seat::Thread(seat) => seat.desk.knock(),
            #[cfg(feature = "server")]
            Seat::Process(seat) => seat.slot.knock(),
        }
    }

    /// It was knocked for: ends its sleep. `has_sleepers`: on threads of this process.
    fn wake(&mut self, has_sleepers: bool) {
        match &mut self.seat {
            Seat::Thread(seat) if has_sleepers => seat.desk.wake(),
            Seat::Thread(_) => {}
            #[cfg(feature = "server")]
            Seat::Process(seat) => seat.wake(),
        }
    }

    /// Ends its sleep in a reactor, if it sleeps in one.
    fn rouse(&self, exchange: &Exchange, wake: &mut impl FnMut(&Waker)) {
        if let Seat::Thread(ThreadSeat { desk, reactor: Some(waker), .. }) = &self.seat
            && exchange.rouse(desk.dozes())
        {
            wake(waker);
        }
    }
}

/// One execution of this shard.
pub(super) struct Run {
    pub handle: Handle,
    pub id: ExecutionId,
    /// To whom it belongs.
    #[cfg(feature = "server")]
    pub owner: Principal,
    /// What it runs, if that has a name.
    pub tool: Option<Arc<ToolSpec>>,
    /// How it is called, on every wire.
    pub names: Names,
    /// What its subscribers get that come over the network and do not say what they want.
    #[cfg(feature = "server")]
    pub policy: Option<crate::endpoint::PolicyWish>,
    /// How long it may take.
    #[cfg(feature = "server")]
    pub timeouts: crate::engine::Timeouts,
    /// A worker does it.
    #[cfg(feature = "server")]
    pub is_remote: bool,
    /// The tool has panicked.
    #[cfg(feature = "server")]
    pub has_panicked: bool,
    /// What there is to know of that, once it has begun; not while it is being looked at.
    #[cfg(feature = "server")]
    pub call: Option<Box<super::serve::OpenCall>>,
    /// What its tool was given, if a front end is to be told that.
    #[cfg(feature = "server")]
    pub arguments: Option<Box<serde_json::Value>>,
    /// Its place in a thread of a front end's client.
    #[cfg(feature = "server")]
    pub thread: Option<Box<super::conversations::Seat>>,
    /// What it is a part of.
    pub trace: TraceContext,
    pub ring_bytes: u32,
    pub chunk_bytes: u32,
    pub producer: Producer,
    /// What it is to do, or does, if it is a run of an agent; not while that is looked at.
    pub agent: Option<Agent>,
    pub ring: Ring,
    pub control: ControlPage,
    pub exchange: Arc<Exchange>,
    pub gate: Gate,
    /// The engine has been told of everything up to here.
    pub ingested_seq: u64,
    /// How many chunks there will be, if the tool said so.
    pub chunks_expected: Option<u64>,
    /// What went wrong, once it has failed: also when the engine has forgotten it.
    pub error: Option<Box<str>>,
    /// How the process ended that the tool has run; the readers on other threads look here.
    pub exit: Arc<OnceLock<Exit>>,
    pub remotes: Vec<Remote>,
    /// What other processes have of it, if any do.
    #[cfg(feature = "server")]
    pub door: Option<Box<super::door::Door>>,
    /// Its ring with a name, if it has one.
    #[cfg(feature = "server")]
    pub named: Option<Box<super::door::Named>>,
    /// The tool waits for room; it is stepped again when the gate is set.
    pub blocked: bool,
    /// It is in the shard's list of tools to step.
    pub runnable: bool,
    /// It was told to stop, and has not been quiet yet.
    pub stopping: bool,
}

impl Ring {
    /// The newest chunk that is in it, told or not.
    #[inline]
    pub fn head_seq(&self) -> u64 {
        if let Ring::Here(writer) = self {
            return writer.head_seq(); // By far the most frequent.
        }
        match self {
            Ring::None => 0,
            Ring::Here(writer) | Ring::Back(writer) => writer.head_seq(),
            Ring::Away(reader) => reader.head_seq(),
        }
    }

    /// Is this chunk there, or was it?
    pub fn has_been(&self, seq: u64) -> bool {
        match self {
            Ring::Away(reader) => reader.has_been(seq),
            ring => seq <= ring.head_seq(),
        }
    }
}

impl Run {
    /// The newest chunk that is in the ring, told or not.
    #[inline]
    pub fn head_seq(&self) -> u64 {
        // Some of a guest's chunks are in its ring only.
        self.ring.head_seq().max(self.ingested_seq)
    }

    /// May somebody sleep who is to be woken for chunks?
    #[inline]
    pub fn has_readers_elsewhere(&self) -> bool {
        #[cfg(feature = "server")]
        if self.named.is_some() {
            return true;
        }
        !self.remotes.is_empty()
    }

    /// A reader of the ring, for another thread.
    pub fn reader(&self) -> Option<RingReader> {
        match &self.ring {
            Ring::None => None,
            Ring::Here(writer) | Ring::Back(writer) => Some(writer.reader()),
            Ring::Away(reader) => Some(reader.clone()),
        }
    }

    /// Tells everybody who looks at a control page: readers and the producer, wherever they are.
    pub fn tell_pages(&mut self, mut tell: impl FnMut(&mut ControlPage)) {
        tell(&mut self.control);
        #[cfg(feature = "server")]
        if let Some(door) = &mut self.door {
            tell(&mut door.control.page);
        }
        self.tell_named(tell);
    }

    /// Like [`Run::tell_pages`], for the readers of its named ring alone.
    pub fn tell_named(&mut self, mut tell: impl FnMut(&mut ControlPage)) {
        #[cfg(feature = "server")]
        if let Some(named) = &mut self.named {
            named.tell(&mut tell);
        }
        #[cfg(not(feature = "server"))]
        let _ = &mut tell;
    }

    /// Lets a reader elsewhere go, if it is one of this execution's; it is told why. What there is
    /// of it still.
    pub fn dismiss(&mut self, subscriber: SubscriberId, reason: DetachReason) -> Option<Remote> {
        let found = self.remotes.iter().position(|remote| remote.subscriber == subscriber);
        let mut remote = self.remotes.swap_remove(found?);
        match &remote.seat {
            Seat::Thread(seat) => seat.desk.detach(code_of_detach(reason)),
            #[cfg(feature = "server")]
            Seat::Process(seat) => seat.slot.detach(code_of_detach(reason)),
        }
        full_fence(); // exchange:sleep, page:asleep
        remote.wake(self.exchange.has_sleepers());
        remote.rouse(&self.exchange, &mut Waker::wake);
        Some(remote)
    }

    /// The shard is gone: its producer on another thread stops, and its readers elsewhere are let
    /// go.
    pub fn abandon(&mut self) {
        self.exchange.close();
        if let Producer::Thread(host) = &self.producer {
            host.call_stop_hook();
        }
        self.control.wake_producer();
        while let Some(subscriber) = self.remotes.last().map(|remote| remote.subscriber) {
            drop(self.dismiss(subscriber, DetachReason::Lost));
        }
    }

    /// Makes the readers elsewhere look: there is something other than chunks.
    pub fn knock(&mut self) {
        self.remotes.iter().for_each(Remote::knock);
        full_fence(); // exchange:sleep, page:asleep
        let has_sleepers = self.exchange.has_sleepers();
        self.remotes.iter_mut().for_each(|remote| remote.wake(has_sleepers));
        self.rouse_readers(&mut Waker::wake);
    }

    /// As [`Run::knock`], for one of them.
    #[cfg(feature = "server")]
    pub fn knock_for(&mut self, subscriber: SubscriberId) {
        let mut remotes = self.remotes.iter_mut();
        if let Some(remote) = remotes.find(|remote| remote.subscriber == subscriber) {
            remote.knock();
            full_fence(); // exchange:sleep, page:asleep
            remote.wake(self.exchange.has_sleepers());
        }
    }

    /// As [`Run::knock`], for one of them whose client has acknowledged everything through `seq`.
    pub fn pass_acknowledgement(&self, subscriber: SubscriberId, seq: u64) {
        let found = self.remotes.iter().find(|remote| remote.subscriber == subscriber);
        if let Some(remote) = found
            && let Seat::Thread(ThreadSeat { desk, .. }) = &remote.seat
            && seq > desk.acked_seq()
        {
            desk.acknowledge(seq);
            desk.knock();
            full_fence(); // exchange:doze
            remote.rouse(&self.exchange, &mut Waker::wake);
        }
    }

    /// Makes the readers elsewhere look, if any of them sleeps: there are chunks. `wake` is for
    /// those that sleep in a reactor.
    pub fn wake_readers(&mut self, mut wake: impl FnMut(&Waker)) {
        let is_lost = planted(Planted::LostWake);
        #[cfg(feature = "server")]
        if let Some(named) = &self.named {
            named.wake();
        }
        if self.remotes.is_empty() || is_lost {
            return;
        }
        if self.exchange.has_sleepers() {
            match &self.ring {
                Ring::None => {}
                Ring::Here(writer) | Ring::Back(writer) => writer.wake(),
                Ring::Away(reader) => reader.wake(),
            }
        }
        self.rouse_readers(&mut wake);
        #[cfg(feature = "server")]
        if let Some(door) = &self.door {
            door.wake_readers(&mut self.remotes);
        }
    }

    fn rouse_readers(&self, wake: &mut impl FnMut(&Waker)) {
        if self.exchange.has_dozers() {
            self.remotes.iter().for_each(|remote| remote.rouse(&self.exchange, wake));
        }
    }
}

/// Where other threads ring when the shard is to look at something.
pub(super) struct Bell {
    pub waker: Waker,
    /// A reader has left.
    pub departed: Flag,
}

/// The world of a tool's thread.
pub(super) struct ThreadHost {
    bell: Arc<Bell>,
    clock: ThreadClock,
    notes: Mutex<Notes>,
    noted: Flag,
    stop_hook: Mutex<Option<Foreign<StopHook>>>,
}

/// The clock that tools' threads read.
#[derive(Clone, Copy)]
pub(super) enum ThreadClock {
    /// The real one.
    Real,
    /// A fixed moment, for tools that a simulator runs by hand.
    Fixed(Instant),
}

impl ThreadHost {
    pub fn new(bell: Arc<Bell>, clock: ThreadClock) -> ThreadHost {
        ThreadHost {
            bell,
            clock,
            notes: Mutex::default(),
            noted: Flag::default(),
            stop_hook: Mutex::default(),
        }
    }

    /// What the tool has said since the last time.
    pub fn take_notes(&self) -> Option<Notes> {
        if !self.noted.take() {
            return None;
        }
        let mut notes = self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Some(std::mem::take(&mut *notes))
    }
}

impl Host for ThreadHost {
    fn now(&self) -> Instant {
        match self.clock {
            ThreadClock::Real => Clock::now(),
            ThreadClock::Fixed(instant) => instant,
        }
    }

    fn ring(&self) {
        self.bell.waker.wake();
    }

    fn note(&self, notes: Notes) {
        let mut merged = self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        merged.append(notes);
        drop(merged);
        self.noted.set();
        self.bell.waker.wake();
    }

    fn keep_stop_hook(&self, hook: Option<StopHook>) {
        let mut kept = self.stop_hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = std::mem::replace(&mut *kept, hook.map(Foreign::new));
        drop(kept);
        drop(before); // A tool's own code: not under the lock.
    }

    fn call_stop_hook(&self) {
        let kept = self.stop_hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(hook) = &*kept {
            let _ = guarded(&**hook); // Its panic is the tool's own.
        }
    }
}
