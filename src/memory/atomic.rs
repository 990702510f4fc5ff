//! The only source of atomics in the crate (invariant A8): those of the standard library, or those
//! of loom under `--cfg loom`.
//!
//! No other module names `std::sync::atomic`. Orderings are not hidden here: they are written at
//! each use, with a label that names the other side (`ring:claim`, `ring:publish`, …).
//! Tests: the models in `loom_tests.rs`.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Tells the core that this thread spins, and loom that another thread has to run.
#[inline]
pub fn spin_hint() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// An acquire load that is also defined on a read-only mapping.
///
/// The standard library promises only *relaxed* loads there. A fence after the load makes the
/// acquire. On x86-64 both are plain loads.
#[inline]
pub fn load_acquire(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    value
}

/// The fence between the store of one's own flag and the load of the other side's flag. It is for
/// pairs in which both sides do this: sleeper and waker, cursor and attention. Without it on both
/// sides, both may miss the other's flag.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// The part of the protocol that a control of the loom models removes. A model has to fail without
/// that part, which shows that it can fail. Outside loom [`is_flawed`] is the constant `false`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The writer's release fence between claim and payload.
    ClaimFence,
    /// The reader's acquire fence between payload and re-check.
    ReaderFence,
    /// The reader's check of the tail: it relies on the frame's seq alone.
    TailCheck,
    /// The order of publication: the payload before the frame's seq and the head.
    PublishOrder,
    /// The writer's 0 at the place of the next chunk.
    NextPlace,
    /// The new generation for the next ring of a window.
    Generation,
}

/// True if the running loom model omits this part.
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

/// The switch for [`is_flawed`]. Loom runs all threads of a model on one OS thread, so the switch
/// is thread-local.
#[cfg(loom)]
pub(super) mod flaw_switch {
    use std::cell::Cell;

    use super::Flaw;

    std::thread_local! {
        pub static ACTIVE: Cell<Option<Flaw>> = const { Cell::new(None) };
    }
}
