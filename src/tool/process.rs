//! A command as a group of processes, which is started, watched and ended as a whole.
//!
//! Apart from `child` and `mark` this is the only file of `tool` that handles processes.
//!
//! The command leads a session of its own, with its own id. It is reaped last, after the rest of
//! its group was killed. Until then it is a zombie, and its id is not reused, so no signal reaches
//! an unrelated process. If this process dies in any way, the kernel kills the command.
//! [`GroupsGuard`] makes sure that a shard that ends leaves no group behind. A descendant that
//! starts its own session has left the group, and may have lost its parents. It is found by its
//! [`Mark`], and ended with the rest.
//!
//! Limits: those of the mark. If this process is killed outright, the descendants of the command
//! run until they write to their closed pipes.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};

use super::child::lead_session_while_we_live;
use super::mark::Mark;
use crate::limits;
use crate::stream::Exit;

/// All process groups of one [`crate::tool::Tools`]. When it is dropped, the groups are told to
/// end, and killed if they do not.
#[derive(Default)]
pub(super) struct GroupsGuard(Arc<Groups>);

/// The running groups.
#[derive(Default)]
pub(super) struct Groups {
    state: Mutex<GroupsState>,
    changed: Condvar,
}

#[derive(Default)]
struct GroupsState {
    /// The leaders, with the marks of their descendants.
    leaders: Vec<(Pid, Mark)>,
    closing: bool,
}

impl GroupsGuard {
    pub fn groups(&self) -> Arc<Groups> {
        Arc::clone(&self.0)
    }
}

impl Drop for GroupsGuard {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closing = true;
        // Each tool sees that, ends its group, and kills it after the grace period. The rest is
        // spare time.
        let wait_max = limits::COMMAND_GRACE + limits::COMMAND_LINGER;
        let waited =
            self.0.changed.wait_timeout_while(state, wait_max, |state| !state.leaders.is_empty());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        for &(leader, mark) in &state.leaders {
            // An error would mean that no process is left.
            let _ = kill_process_group(leader, Signal::KILL);
            mark.kill_all();
        }
    }
}

impl Groups {
    fn state(&self) -> MutexGuard<'_, GroupsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if all groups have to end.
    pub fn is_closing(&self) -> bool {
        self.state().closing
    }
}

/// A running command with all its descendants. Dropping it kills them all.
pub(super) struct Group {
    leader: Child,
    pid: Pid,
    mark: Mark,
    /// True once all of them were killed.
    is_gone: bool,
    /// Readable once the leader has ended. `None` on kernels before 5.3.
    pidfd: Option<OwnedFd>,
    groups: Arc<Groups>,
}

impl Group {
    /// Starts `command` as the leader of its own group.
    ///
    /// # Errors
    /// The error of the kernel. Nothing runs.
    pub fn spawn(mut command: Command, groups: Arc<Groups>) -> io::Result<Group> {
        // The thread that forks is the one that waits.
        let mark = Mark::new();
        lead_session_while_we_live(&mut command, mark);
        let leader = command.spawn()?;
        let pid = Pid::from_child(&leader);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        groups.state().leaders.push((pid, mark));
        Ok(Group { leader, pid, mark, is_gone: false, pidfd, groups })
    }

    /// Takes the read ends of the leader's pipes: standard output, standard error.
    pub fn take_pipes(&mut self) -> (Option<OwnedFd>, Option<OwnedFd>) {
        let stdout = self.leader.stdout.take().map(OwnedFd::from);
        (stdout, self.leader.stderr.take().map(OwnedFd::from))
    }

    /// Returns the exit of the leader if it has ended. The leader is not reaped.
    ///
    /// # Errors
    /// If other code in this process has reaped it, or has the kernel ignore its children.
    pub fn exit(&self) -> io::Result<Option<Exit>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(status) = waitid(WaitId::Pid(self.pid), options)? else { return Ok(None) };
        let signal = status.terminating_signal().map(Exit::Signal);
        Ok(status.exit_status().map(Exit::Code).or(signal))
    }

    /// Asks all of them to end. Stopped processes are continued.
    pub fn terminate(&self) {
        for signal in [Signal::TERM, Signal::CONT] {
            // An error means that no process is left. That is checked elsewhere.
            let _ = kill_process_group(self.pid, signal);
            self.mark.signal_outside(self.pid, signal);
        }
    }

    /// Kills all of them. Returns true if none is left.
    pub fn kill(&mut self) -> bool {
        let _ = kill_process_group(self.pid, Signal::KILL);
        self.is_gone = self.mark.kill_all();
        self.is_gone
    }

    /// Waits until a pipe is readable, the leader ends, or `timeout` is over. Returns for each pipe
    /// if it can be read or has ended.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn wait(
        &self,
        pipes: [Option<&OwnedFd>; 2],
        exited: bool,
        timeout: Duration,
    ) -> io::Result<[bool; 2]> {
        let pidfd = self.pidfd.as_ref().filter(|_| !exited);
        let timeout = match self.pidfd {
            None if !exited => timeout.min(limits::COMMAND_LOOK_WITHOUT_PIDFD),
            _ => timeout,
        };
        let mut fds = smallvec::SmallVec::<[PollFd<'_>; 3]>::new();
        for fd in pipes.into_iter().flatten().chain(pidfd) {
            fds.push(PollFd::new(fd, PollFlags::IN));
        }
        let timeout = Timespec::try_from(timeout).expect("milliseconds fit");
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(pipes.map(|pipe| pipe.is_some() && ready.next().unwrap_or(false)))
    }

    /// True if all groups have to end.
    pub fn is_closing(&self) -> bool {
        self.groups.is_closing()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_gone {
            self.kill();
        }
        // From here on no signal may be sent to that id.
        let mut state = self.groups.state();
        state.leaders.retain(|&(leader, _)| leader != self.pid);
        drop(state);
        let _ = self.leader.wait(); // It was killed. An error means that it was reaped already.
        self.groups.changed.notify_all();
    }
}

/// Returns an anonymous file that holds `bytes`, positioned at its start.
///
/// # Errors
/// The error of the kernel.
pub(super) fn file_of(bytes: &[u8]) -> io::Result<std::fs::File> {
    use std::io::{Seek, Write};
    let fd = rustix::fs::memfd_create("stdin", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}
