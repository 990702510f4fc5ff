//! Ctrl-C and `kill`: the first signal requests an orderly end, a later one ends the program. A
//! command that runs a tool stops the execution at the first signal, and still reports it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::Arc;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use streamdoor::base::Instant;
use streamdoor::reactor::Clock;

use super::CliError;
use super::console::print_err;

/// Calls `stop` on a thread at the first SIGINT or SIGTERM. A later signal ends the process.
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

/// Signals within this time after the first one belong to it. Some supervisors signal a process and
/// also its group, as `timeout` does.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// Calls `first` at the first SIGINT or SIGTERM, and `second` at a later one. Both run on one
/// thread of their own.
pub fn on_interrupt(
    first: impl FnOnce() + Send + 'static,
    second: impl FnOnce() + Send + 'static,
) -> Result<(), CliError> {
    let failed = |error| CliError::Environment(format!("signals cannot be waited for: {error}"));
    let (receiver, sender) = UnixStream::pair().map_err(failed)?;
    // A signal handler may do next to nothing: it writes a byte, and a thread does the rest.
    pipe::register(SIGINT, sender.try_clone().map_err(failed)?).map_err(failed)?;
    pipe::register(SIGTERM, sender).map_err(failed)?;
    let wait = move || wait(receiver, Clock::now, first, second);
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(failed)?;
    Ok(())
}

/// SIGHUPs from now on, which then no longer end the process.
pub struct Hangups {
    receiver: UnixStream,
}

impl Hangups {
    /// Catches SIGHUP. Signals wait until [`Hangups::serve`].
    pub fn catch() -> Result<Hangups, CliError> {
        let failed = |error| CliError::Environment(format!("SIGHUP cannot be caught: {error}"));
        let (receiver, sender) = UnixStream::pair().map_err(failed)?;
        pipe::register(SIGHUP, sender).map_err(failed)?;
        Ok(Hangups { receiver })
    }

    /// Calls `reload` on a thread of its own for each SIGHUP. Signals that come together may be
    /// one.
    pub fn serve(mut self, mut reload: impl FnMut() + Send + 'static) -> Result<(), CliError> {
        let wait = move || {
            let mut bytes = [0; 64];
            while self.receiver.read(&mut bytes).is_ok_and(|count| count > 0) {
                reload();
            }
        };
        let spawned = std::thread::Builder::new().name("reload".to_owned()).spawn(wait);
        spawned.map(drop).map_err(|error| CliError::Environment(format!("a thread: {error}")))
    }
}

/// Waits for signals. Each is a byte.
fn wait(
    mut signals: impl Read,
    now: impl Fn() -> Instant,
    first: impl FnOnce(),
    second: impl FnOnce(),
) {
    let mut byte = [0];
    if signals.read_exact(&mut byte).is_err() {
        return;
    }
    let began = now();
    first();
    while signals.read_exact(&mut byte).is_ok() {
        if now().since(began) >= SAME_SIGNAL {
            return second();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn signals_that_come_together_are_one() {
        for (after_ms, expected) in [
            (&[0][..], &["first"][..]),
            (&[0, 0, 499], &["first"]),
            (&[0, 500], &["first", "second"]),
            (&[0, 3, 900, 901], &["first", "second"]),
        ] {
            let (calls, at) = (RefCell::new(Vec::new()), Cell::new(0));
            let now = || {
                let after = Duration::from_millis(after_ms[at.replace(at.get() + 1)]);
                Instant::from_nanos(1 << 40) + after
            };
            let signals = vec![0; after_ms.len()];
            wait(
                &signals[..],
                now,
                || calls.borrow_mut().push("first"),
                || calls.borrow_mut().push("second"),
            );
            assert_eq!(*calls.borrow(), expected, "{after_ms:?}");
        }
    }
}
