//! The `streamdoor` command: arguments → limits → shards. Each subcommand is a file in `cli/`.
//!
//! Exit codes: 0 done, 1 failed, 2 bad usage, 3 the environment lacks something.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            cli::complain(&error);
            error.exit_code()
        }
    }
}
