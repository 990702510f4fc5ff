//! What a shard keeps for one execution beside what the engine knows: its ring, its tool, the pages
//! it shares with readers on other threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock};

use super::delivery::code_of_detach;
use super::events::Names;
#[cfg(feature = "server")]
use crate::base::Principal;
use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Handle, Instant, SubscriberId};
use crate::engine::{DetachReason, Exit, Gate};
use crate::memory::atomic::full_fence;
use crate::memory::{ControlPage, Desk, Exchange, Flag, ReaderPageView, RingReader, RingWriter};
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
    Waiting(Work),
    /// Stepped by this thread.
    Steps(Box<dyn Tool>),
    /// By hand.
    Feed,
    /// On a thread of its own.
    Thread(Arc<ThreadHost>),
    /// Nothing.
    Gone,
}

/// A reader on another thread.
pub(super) struct Remote {
    pub subscriber: SubscriberId,
    pub page: ReaderPageView,
    pub desk: Arc<Desk>,
    /// Of the reactor that it sleeps in, if it is one of another shard's connections.
    pub reactor: Option<Waker>,
}

impl Remote {
    /// Ends its sleep in a reactor, if it sleeps in one.
    fn rouse(&self, exchange: &Exchange, wake: &mut impl FnMut(&Waker)) {
        if let Some(waker) = &self.reactor
            && exchange.rouse(self.desk.dozes())
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
    /// What it is a part of.
    pub trace: TraceContext,
    pub ring_bytes: u32,
    pub chunk_bytes: u32,
    pub producer: Producer,
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
    /// The tool waits for room; it is stepped again when the gate is set.
    pub blocked: bool,
    /// It is in the shard's list of tools to step.
    pub runnable: bool,
    /// It was told to stop, and has not been quiet yet.
    pub stopping: bool,
}

impl Run {
    /// The newest chunk that is in the ring, told or not.
    #[inline]
    pub fn head_seq(&self) -> u64 {
        if let Ring::Here(writer) = &self.ring {
            return writer.head_seq(); // By far the most frequent.
        }
        match &self.ring {
            Ring::None => 0,
            Ring::Here(writer) | Ring::Back(writer) => writer.head_seq(),
            Ring::Away(reader) => reader.head_seq(),
        }
    }

    /// A reader of the ring, for another thread.
    pub fn reader(&self) -> Option<RingReader> {
        match &self.ring {
            Ring::None => None,
            Ring::Here(writer) | Ring::Back(writer) => Some(writer.reader()),
            Ring::Away(reader) => Some(reader.clone()),
        }
    }

    /// Lets a reader on another thread go, if it is one of this execution's; it is told why.
    pub fn dismiss(&mut self, subscriber: SubscriberId, reason: DetachReason) {
        let found = self.remotes.iter().position(|remote| remote.subscriber == subscriber);
        let Some(at) = found else { return };
        let remote = self.remotes.swap_remove(at);
        remote.desk.detach(code_of_detach(reason));
        full_fence(); // exchange:sleep
        if self.exchange.has_sleepers() {
            remote.desk.wake();
        }
        remote.rouse(&self.exchange, &mut Waker::wake);
    }

    /// Makes the readers on other threads look: there is something other than chunks.
    pub fn knock(&self) {
        self.remotes.iter().for_each(|remote| remote.desk.knock());
        full_fence(); // exchange:sleep
        if self.exchange.has_sleepers() {
            self.remotes.iter().for_each(|remote| remote.desk.wake());
        }
        self.rouse_readers(&mut Waker::wake);
    }

    /// As [`Run::knock`], for one of them whose client has acknowledged everything through `seq`.
    pub fn pass_acknowledgement(&self, subscriber: SubscriberId, seq: u64) {
        let found = self.remotes.iter().find(|remote| remote.subscriber == subscriber);
        let Some(remote) = found else { return };
        if seq > remote.desk.acked_seq() {
            remote.desk.acknowledge(seq);
            remote.desk.knock();
            full_fence(); // exchange:doze
            remote.rouse(&self.exchange, &mut Waker::wake);
        }
    }

    /// Makes the readers on other threads look, if any of them sleeps: there are chunks. `wake` is
    /// for those that sleep in a reactor.
    pub fn wake_readers(&self, mut wake: impl FnMut(&Waker)) {
        let is_lost = planted(Planted::LostWake);
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
    stop_hook: Mutex<Option<StopHook>>,
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
        let before = std::mem::replace(&mut *kept, hook);
        drop(kept);
        drop(before); // A tool's own code: not under the lock.
    }

    fn call_stop_hook(&self) {
        let kept = self.stop_hook.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(hook) = &*kept {
            let _ = catch_unwind(AssertUnwindSafe(hook)); // Its panic is the tool's own.
        }
    }
}
