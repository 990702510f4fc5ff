//! The results of a subscriber, and the table of all results.

use std::fmt::Write;
use std::io;
use std::time::Duration;

use sha2::{Digest, Sha256};
use streamdoor::stream::{End, EndState, Outcome, Policy, Totals};
use streamdoor::trace::Histogram;

use super::CliError;

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
        "subscriber", "chunks", "missed", "average µs", "P50 µs", "P95 µs", "P99 µs"
    );
    for (at, results) in all.iter().enumerate() {
        let summary = results.latency.summary();
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1_000.0);
        let _ = writeln!(
            text,
            "{:<12} {:>width$} {:>9} {:>9} {:>12} {:>12} {:>12} {:>12}",
            at + 1,
            results.label,
            results.end.given.chunks,
            results.end.missed.chunks,
            us(summary.mean_ns as u64),
            us(summary.p50_ns),
            us(summary.p95_ns),
            us(summary.p99_ns),
        );
    }
    for (at, results) in all.iter().enumerate() {
        if let Some(sha256) = &results.sha256 {
            let bytes = results.end.given.bytes;
            let _ = writeln!(text, "subscriber {}: {bytes} bytes, sha256 {sha256}", at + 1);
        }
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

/// Fails if the execution failed, or if a subscriber was detached before its end.
pub fn verdict(all: &[Results]) -> Result<(), CliError> {
    let verdicts = all.iter().enumerate().map(|(at, results)| {
        let who = format!("subscriber {}", at + 1);
        verdict_of(&who, results.end.state, results.error.as_deref())
    });
    verdicts.collect()
}

/// Fails if the execution failed, or if this subscriber was detached before its end.
pub fn verdict_of(who: &str, state: EndState, error: Option<&str>) -> Result<(), CliError> {
    Err(CliError::Failed(match (state, error) {
        (EndState::Ended(Outcome::Completed), _) => return Ok(()),
        (EndState::Detached { .. }, _) => format!("{who} was {state}"),
        (_, Some(error)) => error.to_owned(),
        (EndState::Ended(Outcome::TimedOut), None) => "the execution timed out".to_owned(),
        (state, None) => format!("the execution was {state}"),
    }))
}

/// Fails if chunks are missing from results that are kept, or under `block`, which owes every
/// chunk.
pub fn whole(is_kept: bool, policy: Policy, missed: Totals) -> Result<(), CliError> {
    let Totals { chunks, bytes } = missed;
    if chunks == 0 || !(is_kept || policy == Policy::Block) {
        return Ok(());
    }
    let s = if chunks == 1 { " is" } else { "s are" };
    Err(CliError::Incomplete(format!(
        "{chunks} chunk{s} missing from the results, with {bytes} bytes (policy {policy})"
    )))
}

/// Returns the peak memory of this process in KiB, or `None` if the kernel does not report it.
fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}
