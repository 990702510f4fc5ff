//! The bell of a node: shards ring it from their threads, and an alarm rings it in time.
//!
//! A shard that rings while the thread is awake makes no system call: see [`WakeListener`].

use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::time::Duration;

use futures_util::future;
use tokio::net::unix::pipe::Receiver;

use crate::reactor::alarm::Alarm;
use crate::reactor::waker::WakeListener;

/// A pause that the runtime can make. Its clock counts in milliseconds.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The bell of the thread of a node.
pub(super) struct Bell {
    listener: WakeListener,
    /// The other end of the listener's pipe.
    doorbell: Receiver,
    alarm: Alarm,
    /// Its descriptor.
    alarmed: Receiver,
}

/// A thread that has announced its sleep.
struct Asleep<'a>(&'a WakeListener);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.unblock();
        self.0.take(); // The caller looks at everything now.
    }
}

impl Bell {
    /// Makes the bell of this thread, which has to be in a runtime. The listener rings this pipe.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(listener: WakeListener, pipe: PipeReader) -> std::io::Result<Bell> {
        let doorbell = Receiver::from_owned_fd(OwnedFd::from(pipe))?;
        let alarm = Alarm::new()?;
        // A timer is read like a pipe: as eight bytes.
        let alarmed = Receiver::from_owned_fd_unchecked(alarm.descriptor()?)?;
        Ok(Bell { listener, doorbell, alarm, alarmed })
    }

    /// Waits until somebody has rung, or a pause that is too short for the runtime is over. The
    /// runtime's other tasks go on in any case.
    pub async fn rung(&self, pause: Duration) {
        if pause.is_zero() || !self.listener.try_block() {
            self.listener.take();
            return tokio::task::yield_now().await;
        }
        let _asleep = Asleep(&self.listener);
        if pause < PAUSE_MIN {
            self.alarm.set(pause);
        }
        let (doorbell, alarmed) = (pin!(emptied(&self.doorbell)), pin!(emptied(&self.alarmed)));
        future::select(doorbell, alarmed).await;
    }
}

/// Waits until there is something, and reads it.
async fn emptied(receiver: &Receiver) {
    // A later error shows again, and the caller's own pause is a bound.
    while receiver.readable().await.is_ok() {
        if receiver.try_read(&mut [0; 64]).is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Instant;
    use crate::reactor::{Clock, Waker};

    const LONG: Duration = Duration::from_secs(600);

    fn bell() -> (Bell, Waker) {
        let (reader, writer) = std::io::pipe().unwrap();
        let listener = WakeListener::with_pipe(writer);
        let waker = listener.waker();
        (Bell::new(listener, reader).unwrap(), waker)
    }

    fn run(test: impl AsyncFnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    }

    #[test]
    fn every_ring_of_another_thread_is_heard() {
        run(async || {
            let (bell, waker) = bell();
            let (told, heard) = std::sync::mpsc::channel();
            let ringer = std::thread::spawn(move || {
                // Each ring waits until the one before was heard.
                heard.iter().for_each(|()| waker.wake());
            });
            for _ in 0..1_000 {
                told.send(()).unwrap();
                bell.rung(LONG).await; // Would hang if one were lost.
            }
            drop(told);
            ringer.join().unwrap();
        });
    }

    #[test]
    fn a_ring_before_the_sleep_ends_it_and_a_short_pause_ends_by_itself() {
        run(async || {
            let (bell, waker) = bell();
            waker.wake();
            bell.rung(LONG).await;
            let pause = Duration::from_micros(200);
            for _ in 0..20 {
                let begun: Instant = Clock::now();
                bell.rung(pause).await;
                assert!(Clock::now().since(begun) >= pause);
            }
            bell.rung(Duration::ZERO).await;
        });
    }

    #[test]
    fn a_sleep_that_is_given_up_leaves_the_bell_as_it_was() {
        run(async || {
            let (bell, waker) = bell();
            for _ in 0..3 {
                let other = pin!(tokio::task::yield_now());
                future::select(pin!(bell.rung(LONG)), other).await;
            }
            waker.wake();
            bell.rung(LONG).await;
        });
    }
}
