//! A command as a group of processes: started, watched, and ended as a whole.
//!
//! With `child` the only file of `tool` that speaks to the kernel.
//!
//! The command leads a session of its own, whose number is its own. It is reaped last, after the
//! rest of its group was killed: as long as it is a zombie nobody else is given that number, so
//! that no signal ever reaches a stranger. If this process dies, whatever the way, the kernel
//! kills the command; and [`House`] sees to it that a shard that ends leaves no group behind.
//! A descendant that begins a session of its own has left the group, and may have lost its parents.
//! It is found by the [`Mark`] that it bears, and ended with the rest.
//! Limits: those of the mark; and if this process is killed outright, what the command had started
//! in turn lives on until it writes into its closed pipes.

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
use crate::engine::Exit;
use crate::limits;

/// All groups of one [`crate::tool::Tools`]. When it is dropped, they are told to end, and killed
/// if they do not.
#[derive(Default)]
pub(super) struct House(Arc<Groups>);

/// The groups that are alive.
#[derive(Default)]
pub(super) struct Groups {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// With the marks of what they have started.
    leaders: Vec<(Pid, Mark)>,
    closing: bool,
}

impl House {
    pub fn groups(&self) -> Arc<Groups> {
        Arc::clone(&self.0)
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.closing = true;
        // Each tool sees that, ends its group, and kills it after the grace; a little for that.
        let wait_max = limits::COMMAND_GRACE + limits::COMMAND_LINGER;
        let waited =
            self.0.changed.wait_timeout_while(state, wait_max, |state| !state.leaders.is_empty());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        for &(leader, mark) in &state.leaders {
            // An error would say that there is nobody left to kill.
            let _ = kill_process_group(leader, Signal::KILL);
            mark.kill_all();
        }
    }
}

impl Groups {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Are all to end?
    pub fn is_closing(&self) -> bool {
        self.state().closing
    }
}

/// A command that runs, with everything it has started. Dropping it kills them all.
pub(super) struct Group {
    leader: Child,
    pid: Pid,
    mark: Mark,
    /// All of them were killed.
    is_gone: bool,
    /// Readable once the leader has ended; `None` on kernels before 5.3.
    pidfd: Option<OwnedFd>,
    groups: Arc<Groups>,
}

impl Group {
    /// Starts `command` as the leader of a group of its own.
    ///
    /// # Errors
    /// What the kernel says; nothing runs.
    pub fn spawn(mut command: Command, groups: Arc<Groups>) -> io::Result<Group> {
        // The thread that forks is the one that waits for it.
        let mark = Mark::new();
        lead_session_while_we_live(&mut command, mark);
        let leader = command.spawn()?;
        let pid = Pid::from_child(&leader);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        groups.state().leaders.push((pid, mark));
        Ok(Group { leader, pid, mark, is_gone: false, pidfd, groups })
    }

    /// The leader's ends of its pipes.
    pub fn take_pipes(&mut self) -> (Option<OwnedFd>, Option<OwnedFd>) {
        let stdout = self.leader.stdout.take().map(OwnedFd::from);
        (stdout, self.leader.stderr.take().map(OwnedFd::from))
    }

    /// How the leader has ended, if it has. It is not reaped.
    ///
    /// # Errors
    /// If somebody else in this process has reaped it, or has the kernel ignore its children.
    pub fn exit(&self) -> io::Result<Option<Exit>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(status) = waitid(WaitId::Pid(self.pid), options)? else { return Ok(None) };
        let signal = status.terminating_signal().map(Exit::Signal);
        Ok(status.exit_status().map(Exit::Code).or(signal))
    }

    /// Asks all of them to end. Those that are stopped are woken for it.
    pub fn terminate(&self) {
        for signal in [Signal::TERM, Signal::CONT] {
            // An error says that there is nobody, and that is looked for elsewhere.
            let _ = kill_process_group(self.pid, signal);
            self.mark.signal_outside(self.pid, signal);
        }
    }

    /// Kills all of them. Returns whether none is left.
    pub fn kill(&mut self) -> bool {
        let _ = kill_process_group(self.pid, Signal::KILL);
        self.is_gone = self.mark.kill_all();
        self.is_gone
    }

    /// Waits until one of `pipes` can be read, the leader ends, or `timeout` is over. Says of each
    /// pipe whether it can be read (or has ended).
    ///
    /// # Errors
    /// What the kernel says.
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

    /// Has everything been told to end?
    pub fn is_closing(&self) -> bool {
        self.groups.is_closing()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_gone {
            self.kill();
        }
        // From here on nobody may send a signal to that number.
        let mut state = self.groups.state();
        state.leaders.retain(|&(leader, _)| leader != self.pid);
        drop(state);
        let _ = self.leader.wait(); // It was killed. An error says that it was reaped already.
        self.groups.changed.notify_all();
    }
}

/// A file without a name that holds `bytes`, to be read from its beginning.
///
/// # Errors
/// What the kernel says.
pub(super) fn file_of(bytes: &[u8]) -> io::Result<std::fs::File> {
    use std::io::{Seek, Write};
    let fd = rustix::fs::memfd_create("stdin", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}
