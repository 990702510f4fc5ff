//! Lines for a person. If the reader of standard output has gone away (`| head -1`), the program
//! ends quietly. The same on standard error is ignored.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::exit;

use streamdoor::base::plain::is_shown;

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

/// Prints a line on standard output. See [`say`].
pub fn print_line(line: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout(), "{}", harmless(line)) {
        if error.kind() == ErrorKind::BrokenPipe {
            exit(0);
        }
        print_note(format_args!("streamdoor: standard output: {error}"));
        exit(1);
    }
}

/// Prints a line on standard error. See [`note`].
pub fn print_note(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{}", harmless(line)); // The error has no other place to go.
}

/// Returns the line without control characters, so that foreign text cannot control the terminal.
fn harmless(line: fmt::Arguments<'_>) -> String {
    let shown = |c| if is_shown(c) { c } else { char::REPLACEMENT_CHARACTER };
    line.to_string().chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_line_commands_the_terminal() {
        let said = "tool\u{1b}[2J \u{202e}txt";
        assert_eq!(harmless(format_args!("a\n\t{said}")), "a\n\ttool\u{fffd}[2J \u{fffd}txt");
    }
}
