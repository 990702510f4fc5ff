//! Lines between a server, which has its own process, and the process that measures it.
//!
//! The server's first line on standard output is `listening ADDRESS`. It answers each line on its
//! standard input with a line of JSON, [`Usage`]. It exits when standard input ends, so a server
//! never outlives a run. A separate thread does this, and sleeps while a run is measured.

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::common::machine::{cpu_seconds, peak_memory_kib, preemption_count};

/// The first word of the first line.
pub const LISTENING: &str = "listening ";

/// The resources that a server has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Processor time in seconds, user and system.
    pub cpu_s: f64,
    /// Peak memory.
    pub memory_kib: u64,
    /// Number of preemptions by the kernel.
    pub preemptions: u64,
}

impl Usage {
    /// Returns the usage of this process.
    pub fn of_this_process() -> Usage {
        Usage {
            cpu_s: cpu_seconds(),
            memory_kib: peak_memory_kib(std::process::id()),
            preemptions: preemption_count(),
        }
    }

    /// Returns the usage of another process of this user, including only its current threads.
    /// Values that the kernel does not report are 0.
    pub fn of_process(pid: u32) -> Usage {
        let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
        let number = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        let (mut cpu_ns, mut preemptions) = (0, 0);
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let path = task.path();
            cpu_ns += number(&read(format!("{}/schedstat", path.display())), "");
            let status = read(format!("{}/status", path.display()));
            preemptions += number(&status, "nonvoluntary_ctxt_switches:");
        }
        Usage { cpu_s: cpu_ns as f64 / 1e9, memory_kib: peak_memory_kib(pid), preemptions }
    }

    /// Returns the usage since `before`. The memory is the peak of all time.
    pub fn since(self, before: Usage) -> Usage {
        Usage {
            cpu_s: self.cpu_s - before.cpu_s,
            memory_kib: self.memory_kib,
            preemptions: self.preemptions - before.preemptions,
        }
    }

    fn to_line(self) -> String {
        let Usage { cpu_s, memory_kib, preemptions } = self;
        json!({"cpu_s": cpu_s, "memory_kib": memory_kib, "preemptions": preemptions}).to_string()
    }

    /// Parses a line of a server. Returns `None` if it is not one.
    pub fn parse(line: &str) -> Option<Usage> {
        let value: Value = serde_json::from_str(line).ok()?;
        Some(Usage {
            cpu_s: value["cpu_s"].as_f64()?,
            memory_kib: value["memory_kib"].as_u64()?,
            preemptions: value["preemptions"].as_u64()?,
        })
    }
}

/// Prints the address on which this server listens.
pub fn announce(address: SocketAddr) {
    say(&format!("{LISTENING}{address}"));
}

/// Starts to answer the lines of standard input. The process exits when they end.
pub fn answer_standard_input() {
    answer_standard_input_with(Usage::of_this_process, || {});
}

/// Starts to answer the lines of standard input with `usage`. When they end, `leave` is called, and
/// the process exits.
pub fn answer_standard_input_with(
    usage: impl Fn() -> Usage + Send + 'static,
    leave: impl FnOnce() + Send + 'static,
) {
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if line.is_err() {
                break;
            }
            say(&usage().to_line());
        }
        leave();
        std::process::exit(0);
    });
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    // If the parent has gone, standard input ends, too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_a_line_that_is_read_back() {
        let usage = Usage::of_this_process();
        assert!(usage.memory_kib > 0);
        let again = Usage::parse(&usage.to_line()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{usage:?}"));
        let seen = Usage::of_process(std::process::id());
        assert!(seen.memory_kib >= usage.memory_kib, "{seen:?} {usage:?}");
        assert!(Usage::parse("listening 127.0.0.1:1").is_none());
    }
}
