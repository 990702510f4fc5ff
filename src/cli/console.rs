//! Lines for a person. Foreign text in them cannot control the terminal (`printable.rs`). If the
//! reader of standard output has gone away (`| head -1`), the program ends quietly. The same on
//! standard error is ignored.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::process::exit;

use rustix::termios::tcgetwinsize;

use super::printable::printable;

/// Prints a line on standard output.
macro_rules! print_out {
    ($($arg:tt)*) => { $crate::cli::console::print_line(format_args!($($arg)*)) };
}
/// Prints a line on standard error.
macro_rules! print_err {
    ($($arg:tt)*) => { $crate::cli::console::print_note(format_args!($($arg)*)) };
}
pub(crate) use print_err;
pub(crate) use print_out;

/// True if the terminal can only show lines: `TERM` is `dumb`, empty or not set.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// Returns the number of columns of the terminal behind `output`. 80 if it does not tell.
pub fn columns(output: impl AsFd) -> usize {
    let told = tcgetwinsize(output).map_or(0, |size| size.ws_col);
    if told == 0 { 80 } else { told.into() }
}

/// Prints a line on standard output. A closed pipe ends the program.
pub fn print_line(line: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout(), "{}", printable(&line.to_string())) {
        if error.kind() == ErrorKind::BrokenPipe {
            exit(0);
        }
        print_note(format_args!("streamdoor: standard output: {error}"));
        exit(1);
    }
}

/// Prints a line on standard error. A failure is ignored.
pub fn print_note(line: fmt::Arguments<'_>) {
    let text = printable(&line.to_string()) + "\n";
    let _ = io::stderr().write_all(text.as_bytes()); // The error has no other place to go.
}
