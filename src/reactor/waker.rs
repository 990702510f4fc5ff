//! Ends another thread's wait: an eventfd, or a pipe, behind one atomic word.
//!
//! The word has three states, and every step on it is a read-modify-write, so all steps of all
//! threads stand in one order:
//!
//! ```text
//!             wake: swap                 wake: swap, then ring the eventfd
//! POLLING ────────────────▶ NOTIFIED ◀──────────────────────── BLOCKED
//!    ▲  ▲                      │                                  ▲ │
//!    │  └── poll: swap ────────┘        before blocking: exchange │ │ after: exchange
//!    └────────────────────────────────────────────────────────────┴─┘
//! ```
//!
//! - W1 no lost wake: a wake comes before or after the exchange to BLOCKED. If it comes before, the
//!   exchange fails, and the thread does not block. If it comes after, it sees BLOCKED, and rings.
//! - W2 a wake of a thread that is not blocked costs one swap and no system call. (An unconditional
//!   system call costs 0.16 µs when no thread waits.)
//! - W3 wakes coalesce: only the first after BLOCKED rings, only the first after a poll is seen.
//! - W4 memory that the waker wrote before its swap (release) is visible after the poll's swap
//!   (acquire). This holds through later wakes in between, too: swaps continue a release sequence.
//!   The usual pair of SeqCst fences is (publish, fence, look for sleepers | announce sleep, fence,
//!   look for work). It is not needed as long as both sides use this word. A plain load instead of
//!   a swap in `wake` would need it. The orderings are AcqRel, and stronger ones would cost the
//!   same on x86.
//!
//! Between two io_uring reactors the ring may be a message from one to the other, which costs no
//! system call of its own: `uring_wakes.rs`. A late ring leaves a count in the eventfd, if
//! something else woke its thread first. Backends ignore such a count and wait on. [`Waker::wake`]
//! is a swap and a `write(2)`, hence fit for signal handlers that save errno.

use std::fs::File;
use std::io::{ErrorKind, PipeWriter, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const POLLING: u32 = 0;
const BLOCKED: u32 = 1;
const NOTIFIED: u32 = 2;

#[derive(Debug)]
struct WakerShared {
    state: AtomicU32,
    /// The eventfd or the pipe, or `None` in the simulator, where no thread blocks.
    doorbell: Option<File>,
    /// The ring in which an io_uring reactor blocks: others may wake it there instead.
    ring: Option<OwnedFd>,
}

/// A handle that wakes one reactor. It may outlive the reactor.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<WakerShared>,
}

impl Waker {
    /// Makes the reactor's present or next `wait` return, and its next `poll` count one more.
    pub fn wake(&self) {
        if self.notify() {
            self.ring();
        }
    }

    /// The first half of a wake. If it returns true, the caller has to ring, by any means.
    #[must_use]
    pub(super) fn notify(&self) -> bool {
        self.shared.state.swap(NOTIFIED, Ordering::AcqRel) == BLOCKED
    }

    #[cfg(test)]
    pub(super) fn is_blocked(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) == BLOCKED
    }

    /// The second half of a wake: rings the eventfd.
    pub(super) fn ring(&self) {
        self.shared.ring();
    }

    /// The io_uring in which the reactor blocks; open as long as this waker lives.
    pub(super) fn ring_fd(&self) -> Option<RawFd> {
        self.shared.ring.as_ref().map(AsRawFd::as_raw_fd)
    }
}

impl WakerShared {
    #[cold]
    fn ring(&self) {
        let mut doorbell = self.doorbell.as_ref().expect("made without a doorbell");
        loop {
            match doorbell.write(&1u64.to_ne_bytes()) {
                Ok(8) => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return, // It reads no more.
                other => panic!("a descriptor of our own refused a wake-up: {other:?}"),
            }
        }
    }
}

/// The reactor's side of the word.
#[derive(Debug)]
pub struct WakeListener {
    shared: Arc<WakerShared>,
}

impl WakeListener {
    /// Makes the listener of a thread that blocks in the kernel.
    ///
    /// # Errors
    /// An error of `eventfd(2)`: no descriptor or no memory left.
    pub fn with_doorbell() -> std::io::Result<WakeListener> {
        WakeListener::with_ring(None)
    }

    /// Makes the listener of a thread that blocks in this io_uring.
    ///
    /// # Errors
    /// The same as of [`WakeListener::with_doorbell`].
    pub fn with_ring(ring: Option<OwnedFd>) -> std::io::Result<WakeListener> {
        // SAFETY: takes two numbers. Blocking, because io_uring gives up on non-blocking files.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if raw < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: just made, and not owned elsewhere.
        let owned = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(WakeListener::new(Some(File::from(owned)), ring))
    }

    /// Makes the listener of a thread that waits for the other end of this pipe, and reads what
    /// comes. Each byte says the same.
    pub fn with_pipe(doorbell: PipeWriter) -> WakeListener {
        WakeListener::new(Some(File::from(OwnedFd::from(doorbell))), None)
    }

    /// Makes the listener of a thread that never blocks.
    pub fn without_doorbell() -> WakeListener {
        WakeListener::new(None, None)
    }

    fn new(doorbell: Option<File>, ring: Option<OwnedFd>) -> WakeListener {
        let state = AtomicU32::new(POLLING);
        WakeListener { shared: Arc::new(WakerShared { state, doorbell, ring }) }
    }

    /// A handle for other threads.
    pub fn waker(&self) -> Waker {
        Waker { shared: Arc::clone(&self.shared) }
    }

    /// The eventfd, readable after a wake of a blocked thread.
    ///
    /// # Panics
    /// The listener was made without a doorbell.
    pub fn doorbell_fd(&self) -> RawFd {
        self.shared.doorbell.as_ref().expect("made without a doorbell").as_raw_fd()
    }

    /// Makes the eventfd readable in any state: for the drop of a backend that reads it.
    pub fn ring(&self) {
        self.shared.ring();
    }

    /// True if a wake-up waits to be taken.
    #[inline]
    pub fn is_notified(&self) -> bool {
        self.shared.state.load(Ordering::Relaxed) == NOTIFIED
    }

    /// Takes the wake-up, if one came.
    #[inline]
    pub fn take(&self) -> bool {
        // The load keeps an idle poll free of locked instructions. It may miss a wake of this very
        // moment, which the next poll or `try_block` sees.
        self.is_notified() && self.shared.state.swap(POLLING, Ordering::AcqRel) == NOTIFIED
    }

    /// Announces that the thread will block. If it returns false, a wake-up came first, and the
    /// thread must not block.
    pub fn try_block(&self) -> bool {
        assert!(self.shared.doorbell.is_some());
        let state = &self.shared.state;
        match state.compare_exchange(POLLING, BLOCKED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(found) => {
                assert!(found == NOTIFIED); // Only this thread sets BLOCKED.
                false
            }
        }
    }

    /// Withdraws the announcement; a wake-up that came meanwhile stays.
    pub fn unblock(&self) {
        let state = &self.shared.state;
        let step = state.compare_exchange(BLOCKED, POLLING, Ordering::AcqRel, Ordering::Acquire);
        assert!(step == Ok(BLOCKED) || step == Err(NOTIFIED));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn only_a_wake_of_a_blocked_thread_rings_the_eventfd() {
        let listener = WakeListener::with_doorbell().unwrap();
        let waker = listener.waker();
        waker.wake();
        assert!(!listener.try_block());
        assert!(listener.take());
        assert!(!listener.take());
        assert!(listener.try_block());
        waker.wake();
        waker.wake();
        listener.unblock();
        assert!(listener.is_notified());
        let mut count = [0; 8];
        let mut doorbell = listener.shared.doorbell.as_ref().unwrap();
        doorbell.read_exact(&mut count).unwrap(); // Would hang without a ring.
        assert_eq!(u64::from_ne_bytes(count), 1);
        assert!(listener.take());
    }

    #[test]
    fn a_pipe_is_rung_like_an_eventfd_and_may_be_gone() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let listener = WakeListener::with_pipe(writer);
        assert!(listener.try_block());
        listener.waker().wake();
        reader.read_exact(&mut [0; 8]).unwrap(); // Would hang without a ring.
        assert!(listener.take() && listener.try_block());
        drop(reader);
        listener.waker().wake();
        assert!(listener.take());
    }

    #[test]
    fn what_was_written_before_a_wake_is_seen_after_the_poll_that_takes_it() {
        let listener = WakeListener::without_doorbell();
        let published = Arc::new(AtomicU32::new(0));
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let thread = {
            let (waker, published) = (listener.waker(), Arc::clone(&published));
            std::thread::spawn(move || {
                for _ in 0..rounds {
                    published.fetch_add(1, Ordering::Relaxed);
                    waker.wake();
                }
            })
        };
        let mut seen = 0;
        while seen < rounds {
            if listener.take() {
                seen = published.load(Ordering::Relaxed);
            } else {
                std::thread::yield_now();
            }
        }
        thread.join().unwrap();
    }
}
