//! An exact timer for a tokio runtime: a kernel timer, whose descriptor is awaited.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use streamdoor::reactor::Idle;
use tokio::io::unix::AsyncFd;

use crate::common::machine::now_ns;
use crate::common::serve::plan::POLL_NS;

/// Waits for a point in time. The last part of the wait is polling.
pub struct Timer {
    descriptor: AsyncFd<OwnedFd>,
    polls_only: bool,
}

impl Timer {
    /// Returns a timer on the runtime of the caller.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new(idle: Idle) -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: an `OwnedFd` is open and stays the same until it is dropped; `AsyncFd` owns it,
        // and it is never taken out again here.
        let descriptor = unsafe { AsyncFd::register(descriptor) }?;
        Ok(Timer { descriptor, polls_only: idle == Idle::Spin })
    }

    /// Waits until `planned_ns` of CLOCK_MONOTONIC.
    pub async fn wait(&self, planned_ns: u64) {
        let sleeps_until_ns = planned_ns.saturating_sub(POLL_NS);
        if !self.polls_only && now_ns() < sleeps_until_ns {
            self.sleep(sleeps_until_ns).await.expect("a timer of our own works");
        }
        while now_ns() < planned_ns {
            tokio::task::yield_now().await;
        }
    }

    async fn sleep(&self, until_ns: u64) -> io::Result<()> {
        let second_ns = 1_000_000_000;
        let it_value = Timespec {
            tv_sec: (until_ns / second_ns) as i64,
            tv_nsec: (until_ns % second_ns) as i64,
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval, it_value };
        timerfd_settime(self.descriptor.get_ref(), TimerfdTimerFlags::ABSTIME, &time)?;
        loop {
            let mut guard = self.descriptor.readable().await?;
            let mut count = [0; 8];
            let read = guard.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut count)?));
            if let Ok(result) = read {
                return result.map(drop);
            }
            // The event came too early.
        }
    }
}
