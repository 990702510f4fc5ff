//! What a subscriber saw, and the table of it.

use std::time::Duration;

use sha2::{Digest, Sha256};
use streamdoor::engine::End;
use streamdoor::trace::Histogram;

/// What one subscriber saw.
pub struct Results {
    /// How long it took over each chunk.
    pub processing: Duration,
    /// From published to received, for each chunk.
    pub latency: Histogram,
    /// Its last word.
    pub end: End,
    /// What went wrong, if the execution failed.
    pub error: Option<String>,
    /// Of all bytes it was given, if that was asked for.
    pub sha256: Option<String>,
}

/// The checksum of a stream, if anybody wants it.
pub struct Checksum(Option<Sha256>);

impl Checksum {
    /// Computed only if `wanted`.
    pub fn new(wanted: bool) -> Checksum {
        Checksum(wanted.then(Sha256::new))
    }

    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(hasher) = &mut self.0 {
            hasher.update(bytes);
        }
    }

    /// In hexadecimal, as `sha256sum` prints it.
    pub fn finish(self) -> Option<String> {
        let digest = self.0?.finalize();
        Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The table at the end.
pub fn print_table(all: &[Results]) {
    println!(
        "{:<12} {:>10} {:>9} {:>9} {:>12} {:>12} {:>12} {:>12}",
        "subscriber", "processing", "chunks", "missed", "average µs", "P50 µs", "P95 µs", "P99 µs"
    );
    for (at, results) in all.iter().enumerate() {
        let summary = results.latency.summary();
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1_000.0);
        println!(
            "{:<12} {:>7} ms {:>9} {:>9} {:>12} {:>12} {:>12} {:>12}",
            at + 1,
            results.processing.as_millis(),
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
            println!("subscriber {}: {bytes} bytes, sha256 {sha256}", at + 1);
        }
    }
}

/// The most memory this process ever had, in KiB; `None` where the kernel does not say.
pub fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}
