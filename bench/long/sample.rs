//! One sample of a server: its memory, and the kernel's counts of its waits.

use std::{fmt, fs};

use streamdoor::base::Instant;
use streamdoor::reactor::Clock;

use super::server::Server;
use crate::common::Failure;

/// One sample. The counts of the kernel are cumulative.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Seconds since the start of the run.
    pub at_s: f64,
    /// Number of executions that had ended.
    pub executions: u64,
    /// Resident memory of the server.
    pub rss_kib: u64,
    /// The private part of it: heap and stacks.
    pub anonymous_kib: u64,
    /// The shared part of it: rings and other shared memory.
    pub shared_kib: u64,
    /// Memory of rings that is committed.
    pub rings_kib: u64,
    /// The memory pressure level; 0 if memory is not short.
    pub pressure_level: u64,
    /// Time during which a task of the machine has waited for a disk.
    pub machine_io_us: u64,
    /// Time during which a task of the server has waited for a disk, or `None` if it is not
    /// counted.
    pub own_io_us: Option<u64>,
    /// Mean number of tasks of the machine that wait for a disk.
    pub blocked_mean: f64,
}

impl Sample {
    /// The head of a table of samples.
    pub const HEAD: &str = "at_s,executions,rss_kib,anonymous_kib,shared_kib,rings_kib,\
        pressure_level,machine_io_us,own_io_us,procs_blocked_mean";

    /// Takes a sample.
    ///
    /// # Errors
    /// [`Failure::Failed`] if the server is gone.
    pub fn take(
        server: Option<&Server>,
        started: Instant,
        executions: u64,
    ) -> Result<Sample, Failure> {
        let mut sample = Sample {
            at_s: Clock::now().since(started).as_secs_f64(),
            executions,
            machine_io_us: waited_us("/proc/pressure/io").unwrap_or(0),
            ..Sample::default()
        };
        let Some(server) = server else { return Ok(sample) };
        let status = fs::read_to_string(format!("/proc/{}/status", server.pid()));
        let status = status.map_err(|_| Failure::Failed("the server is gone".into()))?;
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        sample.rss_kib = kib("VmRSS:");
        sample.anonymous_kib = kib("RssAnon:");
        sample.shared_kib = kib("RssShmem:");
        let metrics = server.client()?.metrics();
        let metrics = metrics.map_err(|error| Failure::Failed(format!("metrics: {error}")))?;
        sample.rings_kib = metrics.sum("rings_committed_bytes").unwrap_or(0.0) as u64 >> 10;
        sample.pressure_level = metrics.max("memory_pressure_level").unwrap_or(0.0) as u64;
        sample.own_io_us = server.io_pressure().and_then(|path| waited_us(&path));
        Ok(sample)
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own_io_us = self.own_io_us.map(|us| us.to_string()).unwrap_or_default();
        write!(
            out,
            "{:.3},{},{},{},{},{},{},{},{own_io_us},{:.3}",
            self.at_s,
            self.executions,
            self.rss_kib,
            self.anonymous_kib,
            self.shared_kib,
            self.rings_kib,
            self.pressure_level,
            self.machine_io_us,
            self.blocked_mean
        )
    }
}

/// Returns `total` from the first line of a pressure file.
fn waited_us(path: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let total = text.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
    total.parse().ok()
}

/// Returns the number of tasks of the machine that wait for a disk at this moment.
pub fn blocked_count() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("procs_blocked "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
