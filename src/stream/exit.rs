//! The exit status of a process that an execution has run.

use std::fmt;

/// The exit status of a process.
///
/// ```
/// use streamdoor::Exit;
///
/// assert!(Exit::Code(0).is_success());
/// assert_eq!(Exit::Signal(9).to_string(), "killed by signal 9 (SIGKILL)");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exit {
    /// The process exited with this code.
    Code(i32),
    /// The process was killed by this signal.
    Signal(i32),
}

impl Exit {
    /// True if the process exited with code 0.
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(out, "exit code {code}"),
            Exit::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(out, "killed by signal {signal} ({name})"),
                None => write!(out, "killed by signal {signal}"),
            },
        }
    }
}

/// Returns the name of a signal that ends a process, by the number that nearly all Linux targets
/// use.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_is_told_in_words() {
        assert_eq!(Exit::Code(3).to_string(), "exit code 3");
        assert_eq!(Exit::Signal(9).to_string(), "killed by signal 9 (SIGKILL)");
        assert_eq!(Exit::Signal(40).to_string(), "killed by signal 40");
        assert!(Exit::Code(0).is_success() && !Exit::Signal(0).is_success());
    }
}
