//! Panics of foreign code on the shard's thread: their cost, and their report.
//!
//! Every call into such code goes through [`guarded`] (the deliveries of a turn together, in
//! `act.rs`). Every foreign value that the shard owns is a [`Foreign`] one. A panic costs one start
//! of a tool, one execution, one subscription, one request or one call of a handle. It is counted,
//! noted in the flight recorder, and logged.
//!
//! A closure that was handed the whole shard may have panicked while the shard was changing. The
//! engine and the rings are then audited. If they are sound, the shard continues; otherwise it
//! dies.
//!
//! Tests: `tests/panics.rs`.
//!
//! [`Foreign`]: crate::base::Foreign

use std::fmt;

use super::Shard;
use super::outlet::{Notice, Outlet};
use crate::base::{Panicked, SubscriberId, guarded};
use crate::reactor::Reactor;
use crate::tool::StartError;
use crate::trace::Code;

/// A callback of an embedder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callback {
    /// The closure of a subscriber.
    Subscriber(SubscriberId),
    /// The closure of [`Shard::observe`].
    Observer,
    /// The closure of [`super::ShardHandle::call`].
    Call,
    /// A callback of a guest, by its name.
    Guest(&'static str),
}

impl fmt::Display for Callback {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Callback::Subscriber(id) => write!(out, "subscriber {id}"),
            Callback::Observer => out.write_str("observer"),
            Callback::Call => out.write_str("call"),
            Callback::Guest(name) => out.write_str(name),
        }
    }
}

impl<R: Reactor + 'static, O: Outlet<R>> Shard<R, O> {
    /// Counts and reports the panic of a callback.
    #[cold]
    pub(crate) fn note_panic(&mut self, callback: Callback, panicked: &Panicked) {
        self.counters.callbacks_panicked += 1;
        self.tell_panic("callback_panicked", &callback, panicked);
    }

    /// Counts and reports the panic of a tool while it was prepared to run.
    pub(crate) fn note_start<T>(
        &mut self,
        started: Result<T, StartError>,
    ) -> Result<T, StartError> {
        if let Err(StartError::Panicked { name, panicked }) = &started {
            self.counters.tools_panicked += 1;
            self.tell_panic("tool_panicked", name, panicked);
        }
        started
    }

    fn tell_panic(&mut self, event: &str, whose: &dyn fmt::Display, panicked: &Panicked) {
        self.record(Code::CalloutPanicked, 0, 0);
        O::report(self, &Notice::Panic(event, whose, panicked));
    }

    /// Handles the death of this shard by a panic, after which its state may be inconsistent.
    /// Everything on other threads that waits for it is released.
    pub(super) fn perish(&mut self, panicked: &Panicked) {
        self.closing = true; // The engine is told nothing any more.
        self.tell_panic("shard_died", &"shard", panicked);
        let _ = self.flight.dump(&mut std::io::stderr().lock());
        for run in self.runs.iter_mut().flatten() {
            let _ = guarded(|| run.abandon()); // Each by itself, because not all may be sound.
        }
    }

    /// Calls an embedder's closure that may do anything to this shard.
    ///
    /// # Errors
    /// The panic of the closure.
    ///
    /// # Panics
    /// If the closure's panic has left the shard between two states.
    pub(super) fn call_guarded<T>(
        &mut self,
        call: impl FnOnce(&mut Shard<R, O>) -> T,
    ) -> Result<T, Panicked> {
        let called = guarded(|| call(self));
        if let Err(panicked) = &called {
            self.note_panic(Callback::Call, panicked);
            assert!(!self.is_broken, "an assertion of the shard has failed: {panicked}");
            self.pump();
            self.engine.audit();
            self.rings.audit();
        }
        called
    }
}
