//! Lines for a person. A reader who has gone away (`| head -1`) is no error of ours: on standard
//! output that ends the program quietly, on standard error it is ignored.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

/// Prints a line on standard output.
macro_rules! say {
    ($($arg:tt)*) => { $crate::cli::console::print_line(format_args!($($arg)*)) };
}
/// Prints a line on standard error.
macro_rules! note {
    ($($arg:tt)*) => { $crate::cli::console::print_note(format_args!($($arg)*)) };
}
pub(crate) use {note, say};

/// See [`say`].
pub fn print_line(line: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout(), "{line}") {
        if error.kind() == ErrorKind::BrokenPipe {
            exit(0);
        }
        print_note(format_args!("streamdoor: standard output: {error}"));
        exit(1);
    }
}

/// See [`note`].
pub fn print_note(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}"); // There is nobody left to tell.
}
