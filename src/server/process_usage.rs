//! The kernel's numbers of this process, for its metrics, from `/proc` (proc(5)).

use std::sync::OnceLock;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::reactor::Clock;

/// The kernel's numbers of a process. A number that the kernel does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    /// Processor time of all threads, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Start of the process, in seconds since 1970.
    pub start_seconds: Option<f64>,
    /// Bytes of memory in use.
    pub resident_bytes: Option<u64>,
    /// Bytes of address space in use.
    pub virtual_bytes: Option<u64>,
    /// Number of threads.
    pub threads: Option<u64>,
    /// Number of open descriptors. Kernels before 6.2 do not tell it at once.
    pub open_fds: Option<u64>,
    /// Maximum number of descriptors.
    pub max_fds: Option<u64>,
}

impl ProcessUsage {
    /// Reads the numbers of this process: two short files and two system calls.
    pub(in crate::server) fn read() -> ProcessUsage {
        let stat = std::fs::read_to_string("/proc/self/stat");
        let stat = stat.ok().and_then(|text| parse(&text)).unwrap_or_default();
        let fds = std::fs::metadata("/proc/self/fd").ok().map(|folder| folder.len());
        ProcessUsage {
            start_seconds: stat.start_seconds.and_then(since_1970),
            open_fds: fds.filter(|count| *count > 0),
            max_fds: getrlimit(Resource::Nofile).current,
            ..stat
        }
    }
}

/// Parses `/proc/self/stat`. The start is in seconds since the boot.
fn parse(text: &str) -> Option<ProcessUsage> {
    // The name of the program is in parentheses. It may contain spaces and parentheses.
    let (_, fields) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    // The first field here is the third of the manual's list.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
    Some(ProcessUsage {
        cpu_seconds: field(14).zip(field(15)).map(|(user, system)| seconds(user + system)),
        threads: field(20),
        start_seconds: field(22).map(seconds),
        virtual_bytes: field(23),
        resident_bytes: field(24).map(|pages| pages * page_size() as u64),
        ..ProcessUsage::default()
    })
}

/// Converts seconds since the boot. The time of the boot is computed once, so that the result
/// never changes.
fn since_1970(seconds: f64) -> Option<f64> {
    static BOOTED: OnceLock<Option<f64>> = OnceLock::new();
    let booted = BOOTED.get_or_init(|| {
        let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Clock::wall_us() as f64 / 1e6 - uptime)
    });
    booted.map(|booted| booted + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_the_numbers_of_this_process() {
        let before = ProcessUsage::read();
        let usage = ProcessUsage::read();
        assert!(usage.cpu_seconds >= before.cpu_seconds && usage.cpu_seconds.is_some());
        assert_eq!(usage.start_seconds, before.start_seconds);
        let now = Clock::wall_us() as f64 / 1e6;
        assert!((1.0..now + 1.0).contains(&usage.start_seconds.unwrap()));
        assert!(usage.resident_bytes.unwrap() > 64 << 10);
        assert!(usage.virtual_bytes >= usage.resident_bytes);
        assert!(usage.threads.unwrap() >= 1);
        assert!(usage.open_fds.is_none_or(|count| count >= 3));
    }

    #[test]
    fn a_name_may_contain_spaces_and_parentheses() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 900 8192 3 \
                    18446744073709551615 1 1 0";
        let usage = parse(text).unwrap();
        let ticks = clock_ticks_per_second() as f64;
        assert_eq!(usage.cpu_seconds, Some(300.0 / ticks));
        assert_eq!(usage.start_seconds, Some(900.0 / ticks));
        assert_eq!((usage.threads, usage.virtual_bytes), (Some(4), Some(8_192)));
        assert_eq!(usage.resident_bytes, Some(3 * page_size() as u64));
        assert_eq!(parse("nothing"), None);
        assert_eq!(parse("7 (a) S").unwrap(), ProcessUsage::default());
    }
}
