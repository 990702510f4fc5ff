//! Ctrl-C and `kill`: the first signal requests an orderly end, the second ends the program. A
//! command that runs a tool stops the execution at the first signal, and still reports it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use super::CliError;
use super::console::print_err;

/// Calls `stop` on a thread at the first SIGINT or SIGTERM. The second signal ends the process.
pub fn stop_on_interrupt(stop: impl FnOnce() + Send + 'static) -> Result<(), CliError> {
    let give_up = || {
        print_err!("\nstreamdoor: interrupted again");
        exit(1);
    };
    on_interrupt(stop, give_up)
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail with an error. By default, SIGXFSZ
/// would end the process.
///
/// The signal is caught and not ignored, because child processes would inherit an ignored signal.
pub fn survive_file_limits() -> Result<(), CliError> {
    flag::register(SIGXFSZ, Arc::default())
        .map(drop)
        .map_err(|error| CliError::Environment(format!("SIGXFSZ cannot be caught: {error}")))
}

/// Calls `first` at the first SIGINT or SIGTERM, and `second` at the second one. Both run on one
/// thread of their own.
pub fn on_interrupt(
    first: impl FnOnce() + Send + 'static,
    second: impl FnOnce() + Send + 'static,
) -> Result<(), CliError> {
    let failed = |error| CliError::Environment(format!("signals cannot be waited for: {error}"));
    let (mut receiver, sender) = UnixStream::pair().map_err(failed)?;
    // A signal handler may do next to nothing: it writes a byte, and a thread does the rest.
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
