//! The one door to atomics (invariant A8): the standard library's, or loom's under `--cfg loom`.
//!
//! Nobody else in the crate names `std::sync::atomic`. Orderings are not hidden here: they stand at
//! each use, with a label that names the other side (`ring:claim`, `ring:publish`, …).
//! Tests: the models in `loom_tests.rs`.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Tells the core that this thread spins (and loom that another thread has to run).
#[inline]
pub fn spin_hint() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// An acquire load that is also defined on a read-only mapping.
///
/// The standard library promises only *relaxed* loads there; a fence behind it makes the acquire.
/// On x86-64 both are plain loads.
#[inline]
pub fn load_acquire(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// The fence between "I stored my flag" and "I look at yours" where two sides do that to each
/// other: sleeper and waker, cursor and attention. Both need it, or both may miss.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// What a control of the loom models takes away from the protocol, one at a time, to show that the
/// models do fail without it. Outside loom all of this is a constant `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The writer's release fence between claim and payload.
    ClaimFence,
    /// The reader's acquire fence between payload and re-check.
    ReaderFence,
    /// The reader's look at the tail: it trusts the descriptor's seq alone.
    TailCheck,
    /// The payload is stored before the descriptor's seq and the head.
    PublishOrder,
    /// A new generation for a window's next tenant.
    Generation,
}

/// True if the running loom model does without this part.
#[inline(always)]
pub(super) fn is_flawed(flaw: Flaw) -> bool {
    #[cfg(loom)]
    return flaw_switch::ACTIVE.with(|active| active.get() == Some(flaw));
    #[cfg(not(loom))]
    {
        let _ = flaw;
        false
    }
}

/// The switch itself. Loom runs all threads of a model on one OS thread, so it is thread-local.
#[cfg(loom)]
pub(super) mod flaw_switch {
    use super::Flaw;
    use std::cell::Cell;

    std::thread_local! {
        pub static ACTIVE: Cell<Option<Flaw>> = const { Cell::new(None) };
    }
}
