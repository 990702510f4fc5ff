//! The mark of a started program, which all its descendants inherit.
//!
//! A process can leave its group and its session, and its parents can end. Then nothing connects it
//! with the command that it came from. Resource limits are inherited across all that. Hardly any
//! program changes the limit for real-time tasks (`RLIMIT_RTTIME`). Each program gets a unique
//! value of this limit that is far too large to limit anything. At its end the processes with that
//! value are searched in `/proc` and killed, whatever their parent is. No process is adopted, and
//! no unrelated child is waited for. This process can therefore have other children.
//!
//! Limits: three kinds of processes are not found, and only their group is ended. The first changes
//! this limit itself. The second runs on a kernel before 5.3: without pidfds a signal could hit an
//! unrelated process. The third runs where this process already has a smaller limit.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::{LazyLock, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getpgid, getrlimit, pidfd_open, pidfd_send_signal,
    setrlimit,
};

use crate::limits;

/// Some 150,000 years in microseconds. Larger values limit nothing.
const MARKS_FROM: u64 = 1 << 62;
/// The line of `/proc/PID/limits` with this limit.
const LINE: &str = "Max realtime timeout";
/// Upper bound for the length of that file.
const LIMITS_BYTES_MAX: usize = 4 << 10;

/// The value of `RLIMIT_RTTIME` of a program and its descendants. `None` if nothing can be marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(Option<u64>);

/// A process with a mark. The pidfd makes sure that a signal reaches no other process.
struct MarkedProcess {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Mark {
    /// Returns a new unique mark.
    pub fn new() -> Mark {
        // The marks of one process are consecutive. Each process begins at a random value.
        static LAST: LazyLock<Mutex<u64>> =
            LazyLock::new(|| Mutex::new(RandomState::new().hash_one(LINE)));
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        *last = last.wrapping_add(1);
        let value = MARKS_FROM | *last & (MARKS_FROM - 1);
        let is_allowed = getrlimit(Resource::Rttime).maximum.is_none_or(|limit| limit >= value);
        Mark(is_allowed.then_some(value))
    }

    /// Marks the calling process and all its later descendants. It runs between fork and exec, and
    /// allocates no memory.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn put_on(self) -> io::Result<()> {
        if self.0.is_some() {
            let maximum = getrlimit(Resource::Rttime).maximum;
            setrlimit(Resource::Rttime, Rlimit { current: self.0, maximum })?;
        }
        Ok(())
    }

    /// Sends a signal to the marked processes outside of `group`.
    pub fn signal_outside(self, group: Pid, signal: Signal) {
        for bearer in self.bearers() {
            if getpgid(Some(bearer.pid)).ok() != Some(group) {
                // An error means that it has just ended, or belongs to another user now.
                let _ = pidfd_send_signal(&bearer.pidfd, signal);
            }
        }
    }

    /// Kills all marked processes, until none is found. Processes that start meanwhile are killed
    /// in the next round. Returns true if none is left.
    pub fn kill_all(self) -> bool {
        for _ in 0..limits::COMMAND_KILL_ROUNDS_MAX {
            let bearers = self.bearers();
            if bearers.is_empty() {
                return true;
            }
            for bearer in &bearers {
                let _ = pidfd_send_signal(&bearer.pidfd, Signal::KILL);
            }
            for bearer in &bearers {
                bearer.wait_until_dead();
            }
        }
        false
    }

    /// The marked processes that run.
    fn bearers(self) -> Vec<MarkedProcess> {
        let Mark(Some(value)) = self else { return Vec::new() };
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let pids = names.filter_map(|name| Pid::from_raw(name.parse().ok()?));
        pids.filter(|&pid| value_of(pid) == Some(value))
            .filter_map(|pid| {
                let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
                // The id may belong to another process since the first look.
                (value_of(pid) == Some(value)).then_some(MarkedProcess { pid, pidfd })
            })
            .filter(|bearer| !bearer.is_dead(Timespec { tv_sec: 0, tv_nsec: 0 }))
            .collect()
    }
}

impl MarkedProcess {
    /// True if the process ends within `wait_max`. Zombies count as dead.
    fn is_dead(&self, wait_max: Timespec) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&wait_max)), Ok(1))
    }

    fn wait_until_dead(&self) {
        let wait_max = Timespec::try_from(limits::COMMAND_LOOK).expect("milliseconds fit");
        self.is_dead(wait_max);
    }
}

/// The limit of a process, if it has one.
fn value_of(pid: Pid) -> Option<u64> {
    let mut bytes = [0; LIMITS_BYTES_MAX];
    let mut file = File::open(format!("/proc/{}/limits", pid.as_raw_nonzero())).ok()?;
    let length = file.read(&mut bytes).ok()?;
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(LINE))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn marks_differ_and_limit_nothing() {
        let (one, other) = (Mark::new(), Mark::new());
        if one.0.is_none() {
            return println!("not run: the limit is set here");
        }
        assert_ne!(one, other);
        assert!(one.0 >= Some(MARKS_FROM) && other.0 < Some(2 * MARKS_FROM));
    }

    #[test]
    fn only_those_that_bear_it_are_killed() {
        let marked = |mark: Mark| {
            let mut command = Command::new("sleep");
            command.arg("1000");
            super::super::child::lead_session_while_we_live(&mut command, mark);
            command.spawn().unwrap()
        };
        let (one, other) = (Mark::new(), Mark::new());
        let (mut first, mut second) = (marked(one), marked(other));
        let mut unmarked = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(one.kill_all());
        if one.0.is_some() {
            assert!(!first.wait().unwrap().success());
            assert!(value_of(Pid::from_child(&second)).is_some());
        }
        assert!(second.try_wait().unwrap().is_none());
        assert!(unmarked.try_wait().unwrap().is_none());
        for mut child in [first, second, unmarked] {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}
