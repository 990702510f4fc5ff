//! A child that never outlives its parent, and the only `unsafe` line of `tool`: what a child does
//! between fork and exec. All else is `rustix`, which is safe.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal, setsid};

use super::mark::Mark;

/// Has `command` lead a session of its own, once it is spawned: it has no terminal to ask things
/// at, Ctrl-C does not reach it behind our back, and its number is the number of its group. It
/// bears `mark`, and so does all that it starts. And has the kernel kill it when the *thread* that
/// spawns it ends, whatever the way: that has to be one that waits for it.
pub(crate) fn lead_session_while_we_live(command: &mut Command, mark: Mark) {
    let parent = Some(getpid());
    let before_exec = move || {
        setsid()?;
        mark.put_on()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        match getppid() == parent {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)), // It has died just now.
        }
    };
    // SAFETY: between fork and exec only system calls are made: no lock is taken, nothing is
    // allocated, and nothing of other threads is touched.
    unsafe { command.pre_exec(before_exec) };
}
