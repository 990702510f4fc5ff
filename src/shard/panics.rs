//! Panics of foreign code on the shard's thread: their cost, and their report.
//!
//! Every call into such code goes through [`guarded`] (the deliveries of a turn together, in
//! `act.rs`). Every foreign value that the shard owns is a [`Guarded`] one. A panic costs one start
//! of a tool, one execution, one subscription, one request or one call of a handle. It is counted,
//! noted in the flight recorder, and logged.
//!
//! A closure that was handed the whole shard may have panicked while the shard was changing. The
//! engine and the rings are then audited. If they are sound, the shard continues; otherwise it
//! dies.
//!
//! Tests: `tests/panics.rs`.
//!
//! [`Guarded`]: crate::base::Guarded

use std::fmt;

use super::outlet::{Outlet, ShardEvent};
use super::{Shard, act};
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

/// Counts and reports the panic of a callback.
#[cold]
pub(super) fn note_panic<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    callback: Callback,
    panicked: &Panicked,
) {
    shard.counters.callbacks_panicked += 1;
    tell_panic(shard, "callback_panicked", &callback, panicked);
}

/// Counts and reports the panic of a tool while it was prepared to run.
pub(super) fn note_start<R: Reactor + 'static, O: Outlet<R>, T>(
    shard: &mut Shard<R, O>,
    started: Result<T, StartError>,
) -> Result<T, StartError> {
    if let Err(StartError::Panicked { name, panicked }) = &started {
        shard.counters.tools_panicked += 1;
        tell_panic(shard, "tool_panicked", name, panicked);
    }
    started
}

pub(super) fn tell_panic<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    event: &str,
    whose: &dyn fmt::Display,
    panicked: &Panicked,
) {
    shard.record(Code::CalloutPanicked, 0, 0);
    O::report(shard, &ShardEvent::Panic(event, whose, panicked));
}

/// Handles the death of this shard by a panic, after which its state may be inconsistent.
/// Everything on other threads that waits for it is released.
pub(super) fn perish<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    panicked: &Panicked,
) {
    shard.closing = true; // The engine is told nothing any more.
    tell_panic(shard, "shard_died", &"shard", panicked);
    let _ = shard.flight.dump(&mut std::io::stderr().lock());
    for run in shard.runs.iter_mut().flatten() {
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
pub(super) fn call_guarded<R: Reactor + 'static, O: Outlet<R>, T>(
    shard: &mut Shard<R, O>,
    call: impl FnOnce(&mut Shard<R, O>) -> T,
) -> Result<T, Panicked> {
    let called = guarded(|| call(shard));
    if let Err(panicked) = &called {
        note_panic(shard, Callback::Call, panicked);
        assert!(!shard.is_broken, "an assertion of the shard has failed: {panicked}");
        act::pump(shard);
        shard.engine.audit();
        shard.rings.audit();
    }
    called
}
