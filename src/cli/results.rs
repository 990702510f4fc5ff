//! The results of a subscriber, and the table of all results.

use std::fmt::Write;
use std::io;
use std::time::Duration;

use sha2::{Digest, Sha256};
use streamdoor::stream::{End, EndState, Exit, Outcome, Policy, Totals};
use streamdoor::trace::Histogram;

use super::CliError;
use super::words::{counted, time};

/// The results of one subscriber.
pub struct Results {
    /// The text beside its number in the table.
    pub label: String,
    /// The time from publication to reception, for each chunk.
    pub latency: Histogram,
    /// The end of its subscription.
    pub end: End,
    /// The error text, if the execution failed.
    pub error: Option<String>,
    /// The checksum of all bytes it received, if requested.
    pub sha256: Option<String>,
    /// The outcome of its own output.
    pub output: io::Result<()>,
}

/// The checksum of a stream, if requested.
pub struct Checksum(Option<Sha256>);

impl Checksum {
    /// Returns a checksum that is computed only if `wanted`.
    pub fn new(wanted: bool) -> Checksum {
        Checksum(wanted.then(Sha256::new))
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(hasher) = &mut self.0 {
            hasher.update(bytes);
        }
    }

    /// Returns the checksum in hexadecimal, as `sha256sum` prints it.
    pub fn finish(self) -> Option<String> {
        let digest = self.0?.finalize();
        Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Returns the final table with checksums and totals. `label` is the title of the second column.
pub fn table(all: &[Results], label: &str, took: Duration) -> String {
    let width = all.iter().map(|results| results.label.len()).max().unwrap_or(0).max(10);
    let mut text = format!(
        "{:<12} {label:>width$} {:>9} {:>9} {:>12} {:>12} {:>12} {:>12}\n",
        "subscriber", "chunks", "missed", "average", "P50", "P95", "P99"
    );
    for (at, results) in all.iter().enumerate() {
        let summary = results.latency.summary();
        let time = |ns: u64| time(Duration::from_nanos(ns));
        let _ = writeln!(
            text,
            "{:<12} {:>width$} {:>9} {:>9} {:>12} {:>12} {:>12} {:>12}",
            at + 1,
            results.label,
            results.end.given.chunks,
            results.end.missed.chunks,
            time(summary.mean_ns as u64),
            time(summary.p50_ns),
            time(summary.p95_ns),
            time(summary.p99_ns),
        );
    }
    let checksums = checksums(all);
    if !checksums.is_empty() {
        text += &checksums;
        text.push('\n');
    }
    let bytes: u64 = all.iter().map(|results| results.end.given.bytes).sum();
    let seconds = took.as_secs_f64();
    let rate = bytes as f64 / seconds / f64::from(1 << 20);
    let _ = write!(text, "{bytes} bytes delivered in {seconds:.2} s ({rate:.1} MiB/s)");
    if let Some(kib) = peak_memory_kib() {
        let _ = write!(text, ", peak memory {:.1} MiB", kib as f64 / 1_024.0);
    }
    text
}

/// Returns a line with the checksum of each subscriber that has one.
pub fn checksums(all: &[Results]) -> String {
    let lines = all.iter().enumerate().filter_map(|(at, results)| {
        let (sha256, bytes) = (results.sha256.as_ref()?, results.end.given.bytes);
        Some(format!("subscriber {}: {bytes} bytes, sha256 {sha256}", at + 1))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The last texts of a command that has shown results. An empty text is not printed.
#[derive(Debug, Default)]
pub struct LastWords {
    /// The table or the checksums, for standard output if that carries no chunks.
    pub report: String,
    /// One line for standard error.
    pub summary: String,
}

/// Returns a line such as `completed: 10 chunks, 1,000 bytes in 2.00 s, 3 chunks missed`. It is
/// empty if nothing ran: the error says why.
pub fn summary(end: &End, took: Duration) -> String {
    let (given, missed) = (end.given, end.missed);
    if given.chunks == 0 && missed.chunks == 0 && !is_completed(end.state) {
        return String::new();
    }
    let (chunks, bytes) = (counted(given.chunks, "chunk"), counted(given.bytes, "byte"));
    let mut text = format!("{}: {chunks}, {bytes} in {}", end.state, time(took));
    if missed.chunks > 0 {
        text += &format!(", {} missed", counted(missed.chunks, "chunk"));
    }
    if let Some(exit) = end.exit {
        text += &format!(", {exit}");
    }
    text
}

fn is_completed(state: EndState) -> bool {
    state == EndState::Ended(Outcome::Completed)
}

/// Fails if the execution failed, or if a subscriber was detached before its end.
pub fn verdict(all: &[Results]) -> Result<(), CliError> {
    let verdicts = all.iter().enumerate().map(|(at, results)| {
        let who = format!("subscriber {}", at + 1);
        verdict_of(&who, &results.end, results.error.as_deref())
    });
    verdicts.collect()
}

/// Fails if the execution failed, or if this subscriber was detached before its end. If a program
/// of the tool failed, the exit code is that of the program.
pub fn verdict_of(who: &str, end: &End, error: Option<&str>) -> Result<(), CliError> {
    let state = end.state;
    if let (EndState::Ended(Outcome::Failed), Some(exit)) = (state, end.exit)
        && let Some(code) = exit_code(exit)
    {
        let error = error.map_or_else(|| exit.to_string(), str::to_owned);
        return Err(CliError::Exited(format!("the tool's program failed: {error}"), code));
    }
    Err(CliError::Failed(match (state, error) {
        (EndState::Ended(Outcome::Completed), _) => return Ok(()),
        (EndState::Detached { .. }, _) => format!("{who} was {state}"),
        (_, Some(error)) => error.to_owned(),
        (EndState::Ended(Outcome::TimedOut), None) => "the execution timed out".to_owned(),
        (state, None) => format!("the execution was {state}"),
    }))
}

/// Returns the exit code of a program that failed, as shells compute it.
fn exit_code(exit: Exit) -> Option<u8> {
    let code = match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => signal.checked_add(128)?,
    };
    u8::try_from(code).ok().filter(|code| *code != 0)
}

/// Fails if chunks are missing from results that are kept, or under `block`, which owes every
/// chunk.
pub fn whole(is_kept: bool, policy: Policy, missed: Totals) -> Result<(), CliError> {
    let Totals { chunks, bytes } = missed;
    if chunks == 0 || !(is_kept || policy == Policy::Block) {
        return Ok(());
    }
    let are = if chunks == 1 { "is" } else { "are" };
    let (chunks, bytes) = (counted(chunks, "chunk"), counted(bytes, "byte"));
    Err(CliError::Incomplete(format!(
        "{chunks} {are} missing from the results, with {bytes} (policy {policy})"
    )))
}

/// Returns the peak memory of this process in KiB, or `None` if the kernel does not report it.
fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(state: EndState, exit: Option<Exit>) -> End {
        let none = Totals::default();
        End { state, given: none, missed: none, published: none, duration_us: 0, exit }
    }

    #[test]
    fn the_exit_code_is_that_of_the_program_that_failed() {
        let state = EndState::Ended(Outcome::Failed);
        for (exit, expected) in [
            (Some(Exit::Code(3)), Some(3)),
            (Some(Exit::Code(255)), Some(255)),
            (Some(Exit::Signal(9)), Some(137)),
            (Some(Exit::Code(0)), None), // The tool failed after its program.
            (Some(Exit::Code(-1)), None),
            (Some(Exit::Signal(i32::MAX)), None),
            (None, None),
        ] {
            let end = end(state, exit);
            let code = match verdict_of("the reader", &end, Some("why")) {
                Err(CliError::Exited(text, code)) => {
                    assert_eq!(text, "the tool's program failed: why");
                    Some(code)
                }
                Err(CliError::Failed(text)) => {
                    assert_eq!(text, "why");
                    None
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(code, expected, "{exit:?}");
        }
        for outcome in [Outcome::Cancelled, Outcome::TimedOut] {
            let exit = Some(Exit::Signal(15)); // It was stopped.
            let verdict = verdict_of("the reader", &end(EndState::Ended(outcome), exit), None);
            assert!(matches!(verdict, Err(CliError::Failed(_))), "{outcome:?}");
        }
    }
}
