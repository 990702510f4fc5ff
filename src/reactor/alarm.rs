//! A timer of the kernel with a descriptor, for a thread whose runtime counts in milliseconds.
//!
//! The descriptor is readable once the time is over, until it is read or the alarm is set anew.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// An alarm. It is silent until it is set.
#[derive(Debug)]
pub struct Alarm {
    timer: File,
}

impl Alarm {
    /// Makes an alarm.
    ///
    /// # Errors
    /// An error of `timerfd_create(2)`: no descriptor or no memory left.
    pub fn new() -> io::Result<Alarm> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: takes two numbers.
        let raw = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and not owned elsewhere.
        Ok(Alarm { timer: unsafe { File::from_raw_fd(raw) } })
    }

    /// Another descriptor of it, which does not block.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.timer.as_fd().try_clone_to_owned()
    }

    /// Rings once after this time. Nothing remains of the time that was set before.
    pub fn set(&self, after: Duration) {
        let after = after.max(Duration::from_nanos(1)); // 0 would disarm it.
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let once = libc::timespec {
            tv_sec: after.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: after.subsec_nanos().into(),
        };
        let times = libc::itimerspec { it_interval: never, it_value: once };
        let old = std::ptr::null_mut();
        // SAFETY: a timer of ours, and times that live through the call.
        let code = unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &times, old) };
        assert!(code == 0); // The only errors are wrong arguments.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::Clock;

    /// Waits until the alarm rings, for so many milliseconds at most.
    fn rings_within(alarm: &Alarm, timeout_ms: i32) -> bool {
        let mut wanted =
            libc::pollfd { fd: alarm.timer.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one element, which is ours to write to.
        let count = unsafe { libc::poll(&mut wanted, 1, timeout_ms) };
        count == 1
    }

    #[test]
    fn it_rings_after_its_time_and_is_silent_when_set_anew() {
        let alarm = Alarm::new().unwrap();
        assert!(!rings_within(&alarm, 0));
        let begun = Clock::now();
        alarm.set(Duration::from_micros(300));
        assert!(rings_within(&alarm, 60_000));
        assert!(Clock::now().since(begun) >= Duration::from_micros(300));
        assert!(rings_within(&alarm, 0), "it rings until it is set anew");
        alarm.set(Duration::from_secs(600));
        assert!(!rings_within(&alarm, 0));
        alarm.set(Duration::ZERO);
        assert!(rings_within(&alarm, 60_000));
    }
}
