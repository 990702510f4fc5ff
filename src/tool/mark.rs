//! The mark of a program that was started here: everything that it starts in turn bears it.
//!
//! A process can leave its group and its session, and its parents can end, so that nothing leads
//! from it to the command that it came from. Limits of resources are inherited across all that, and
//! hardly any program changes the one for the time that a real-time task may run
//! (`RLIMIT_RTTIME`). Each program gets a number there that nobody else has, and that is far too
//! large to limit anything. At its end the processes with that number are looked for in `/proc` and
//! killed, whoever their parent is by then. Nothing is adopted and nobody else's child is waited
//! for, so this process can have children of its own for other reasons.
//!
//! Limits: a process that changes this limit itself is not found, nor is one on a kernel before 5.3
//! (without pidfds a signal could reach a stranger), nor any where the limit is set to something
//! smaller for this process already. Their group is all that is ended then.

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

/// Some 150,000 years, in microseconds: what is above it limits nothing.
const MARKS_FROM: u64 = 1 << 62;
/// The line of `/proc/PID/limits` that has it.
const LINE: &str = "Max realtime timeout";
/// That file is shorter.
const LIMITS_BYTES_MAX: usize = 4 << 10;

/// See above. `None`: nothing can be marked here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(Option<u64>);

/// A process that bears a mark, held so that its number cannot become a stranger's.
struct Bearer {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Mark {
    /// One that nobody has.
    pub fn new() -> Mark {
        // Those of this process follow each other; those of another begin somewhere else.
        static LAST: LazyLock<Mutex<u64>> =
            LazyLock::new(|| Mutex::new(RandomState::new().hash_one(LINE)));
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        *last = last.wrapping_add(1);
        let value = MARKS_FROM | *last & (MARKS_FROM - 1);
        let is_allowed = getrlimit(Resource::Rttime).maximum.is_none_or(|limit| limit >= value);
        Mark(is_allowed.then_some(value))
    }

    /// Marks the calling process, and all that it will start. Between fork and exec: no memory is
    /// taken here.
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

    /// Sends a signal to those that bear it and are in another group than `group`.
    pub fn signal_outside(self, group: Pid, signal: Signal) {
        for bearer in self.bearers() {
            if getpgid(Some(bearer.pid)).ok() != Some(group) {
                // An error says that it has just ended, or is another user's by now.
                let _ = pidfd_send_signal(&bearer.pidfd, signal);
            }
        }
    }

    /// Kills all that bear it, until none is found: what is born while it is looked for is killed
    /// in the next round. Returns whether none is left.
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

    /// Those that run.
    fn bearers(self) -> Vec<Bearer> {
        let Mark(Some(value)) = self else { return Vec::new() };
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let pids = names.filter_map(|name| Pid::from_raw(name.parse().ok()?));
        pids.filter(|&pid| value_of(pid) == Some(value))
            .filter_map(|pid| {
                let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
                // The number may have become another's between the two.
                (value_of(pid) == Some(value)).then_some(Bearer { pid, pidfd })
            })
            .filter(|bearer| !bearer.is_dead(Timespec { tv_sec: 0, tv_nsec: 0 }))
            .collect()
    }
}

impl Bearer {
    /// Zombies are dead: whoever has to wait for them has not yet.
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
