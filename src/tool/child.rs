//! A child process that never outlives its parent. It holds the only `unsafe` line of `tool`: the
//! steps of a child between fork and exec. All other calls use `rustix`, which is safe.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal, setsid};

use super::mark::Mark;

/// Makes `command` lead a session of its own once it is spawned. It then has no terminal, Ctrl-C
/// does not reach it, and its process id is the id of its group. The command and all its
/// descendants carry `mark`. The kernel kills the command when the *thread* that spawned it ends,
/// in any way. That thread has to be the one that waits for it.
pub(crate) fn lead_session_while_we_live(command: &mut Command, mark: Mark) {
    let parent = Some(getpid());
    let before_exec = move || {
        setsid()?;
        mark.put_on()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        match getppid() == parent {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)), // The parent has just died.
        }
    };
    // SAFETY: between fork and exec only system calls are made: no lock is taken, nothing is
    // allocated, and nothing of other threads is touched.
    unsafe { command.pre_exec(before_exec) };
}
