//! Ctrl-C and `kill`: the first asks for an end in order, the second ends the program. Of a command
//! that runs a tool the first stops the execution, which is still reported.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use super::CliError;
use super::console::note;

/// From now on the first SIGINT or SIGTERM calls `stop`, on a thread; the second ends the process.
pub fn stop_on_interrupt(stop: impl FnOnce() + Send + 'static) -> Result<(), CliError> {
    let give_up = || {
        note!("\nstreamdoor: interrupted again");
        exit(1);
    };
    on_interrupt(stop, give_up)
}

/// From now on a file that would be longer than this process's files may be (`ulimit -f`) is an
/// error where it is written, or bought, and not the end of the process.
///
/// It is caught and not ignored, which the programs that we start would inherit.
pub fn survive_file_limits() -> Result<(), CliError> {
    flag::register(SIGXFSZ, Arc::default())
        .map(drop)
        .map_err(|error| CliError::Environment(format!("SIGXFSZ can not be caught: {error}")))
}

/// From now on the first SIGINT or SIGTERM calls `first`, and the second `second`, on a thread of
/// their own.
pub fn on_interrupt(
    first: impl FnOnce() + Send + 'static,
    second: impl FnOnce() + Send + 'static,
) -> Result<(), CliError> {
    let failed = |error| {
        CliError::Environment(format!("signals can not be waited for on a thread: {error}"))
    };
    let (mut receiver, sender) = UnixStream::pair().map_err(failed)?;
    // A handler may do next to nothing: it writes a byte, and a thread does the rest.
    pipe::register(SIGINT, sender.try_clone().map_err(failed)?).map_err(failed)?;
    pipe::register(SIGTERM, sender).map_err(failed)?;
    let wait = move || {
        let mut byte = [0];
        if receiver.read_exact(&mut byte).is_ok() {
            first();
        }
        if receiver.read_exact(&mut byte).is_ok() {
            second();
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(failed)?;
    Ok(())
}
