//! The operating system's part of a benchmark: clock, pinning, and one line about the machine.
//!
//! This is the only file of the benchmarks with system calls. All of them are outside of the
//! measured path, except [`now_ns`], which is the same for all implementations.

use std::fs;
use std::io::Read as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Failure;

/// Returns the nanoseconds of CLOCK_MONOTONIC. Takes about 20 ns if the clock source is `tsc`.
#[inline(always)]
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the wall time, for the start times in files.
pub fn wall_time() -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(clock_ns(libc::CLOCK_REALTIME))
}

#[inline(always)]
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that outlives the call.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    debug_assert_eq!(result, 0, "both clocks exist on every Linux");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the cpus that this process may run on, in ascending order.
pub fn cpus_allowed() -> Vec<usize> {
    // SAFETY: a cpu set is plain bits; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size_bytes = std::mem::size_of::<libc::cpu_set_t>();
    // SAFETY: `set` is valid for writes of `size_bytes` and outlives the call.
    let result = unsafe { libc::sched_getaffinity(0, size_bytes, &mut set) };
    if result != 0 {
        return Vec::new(); // More cpus than a set holds: the caller reports that none was found.
    }
    (0..libc::CPU_SETSIZE as usize)
        .filter(|&cpu| {
            // SAFETY: `cpu` is below CPU_SETSIZE, which is what the macro requires.
            unsafe { libc::CPU_ISSET(cpu, &set) }
        })
        .collect()
}

/// Binds the calling thread to `cpu`.
///
/// # Errors
/// [`Failure::Environment`] if the kernel refuses.
pub fn pin_thread(cpu: usize) -> Result<(), Failure> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(Failure::Usage(format!("--cpus: there is no cpu {cpu}")));
    }
    // SAFETY: a cpu set is plain bits; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` is valid for reads of its size and outlives the call.
    let result = unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Failure::Environment(format!("cannot pin a thread to cpu {cpu}: {error}")));
    }
    Ok(())
}

/// Returns the number of preemptions of this process so far, of all threads together. Pinned
/// spinners never wait, so each preemption is a disturbance from outside.
pub fn preemption_count() -> u64 {
    usage().ru_nivcsw as u64
}

/// Returns the processor time that this process has used so far in seconds, user and system.
pub fn cpu_seconds() -> f64 {
    let usage = usage();
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Returns the processor time of the threads of this process with these names, in nanoseconds.
///
/// # Errors
/// [`Failure::Failed`] if the kernel does not say it.
pub fn cpu_ns_of_threads(names: &[&str]) -> Result<u64, Failure> {
    let failed = |error: std::io::Error| Failure::Failed(format!("/proc/self/task: {error}"));
    let mut all_ns = 0;
    for thread in std::fs::read_dir("/proc/self/task").map_err(failed)? {
        let thread = thread.map_err(failed)?.path();
        // A thread may end meanwhile.
        let Ok(name) = std::fs::read_to_string(thread.join("comm")) else { continue };
        if names.contains(&name.trim_end()) {
            let about = std::fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
            all_ns += about.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        }
    }
    Ok(all_ns)
}

/// Returns the peak memory of a process of this user, or 0 if the kernel does not report it.
/// `ru_maxrss` would not do, because it begins with the value of the parent.
pub fn peak_memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn usage() -> libc::rusage {
    // SAFETY: plain numbers; all zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writes and outlives the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    debug_assert_eq!(result, 0, "RUSAGE_SELF and a valid pointer can not fail");
    usage
}

/// Raises the limit on descriptors of this process as far as the system allows.
///
/// # Errors
/// [`Failure::Environment`] if the limit stays below `count`.
pub fn allow_descriptors(count: u64) -> Result<(), Failure> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes and outlives the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    debug_assert_eq!(result, 0, "RLIMIT_NOFILE and a valid pointer can not fail");
    if limit.rlim_cur < count {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is valid for reads and outlives the call.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
    if limit.rlim_max < count {
        let text =
            format!("{count} descriptors are needed, but only {} are allowed", limit.rlim_max);
        return Err(Failure::Environment(text));
    }
    Ok(())
}

/// Runs `work` in a fork of this process and waits for its end. The process must have one thread.
///
/// # Errors
/// [`Failure::Environment`] if the kernel refuses, or if `work` fails. The fork prints the reason.
pub fn in_child(work: impl FnOnce() -> Result<(), String>) -> Result<(), Failure> {
    // SAFETY: the caller has one thread, so no lock is held by a thread that the fork lacks.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = match work() {
            Ok(()) => 0,
            Err(text) => {
                eprintln!("{text}");
                1
            }
        };
        std::process::exit(code);
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes and outlives the call.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    match (ended, status) {
        (ended, 0) if ended > 0 => Ok(()),
        (ended, _) if ended > 0 => Err(Failure::Environment(format!("a fork: status {status}"))),
        _ => Err(Failure::Environment(format!("a fork: {}", std::io::Error::last_os_error()))),
    }
}

/// Returns one line about the machine. Pinning is not in it, because it differs from run to run.
pub fn describe() -> String {
    let cpu_model = first_value("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into());
    let kernel = line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    let clock = line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let governor = line("/sys/devices/system/cpu/cpuidle/current_governor");
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let hypervisor = cpu_info.lines().any(|l| l.starts_with("flags") && l.contains("hypervisor"));
    // The count of the machine, because this thread may be pinned.
    let cpu_count = cpu_info.lines().filter(|line| line.starts_with("processor")).count();
    let wish = idle_exit_us().map_or(String::new(), |us| format!(", idle exit in {us} µs"));
    format!(
        "{cpu_model} ({cpu_count} cpus{}), Linux {kernel}, clock {}, cpuidle {}{wish}",
        if hypervisor { ", virtual" } else { "" },
        clock.as_deref().unwrap_or("unknown"),
        governor.as_deref().unwrap_or("none"),
    )
}

/// Returns the requested limit for leaving idle states, if one is set and readable.
fn idle_exit_us() -> Option<i32> {
    const NO_WISH_US: i32 = 2_000_000_000;
    let mut bytes = [0; 4];
    fs::File::open("/dev/cpu_dma_latency").ok()?.read_exact(&mut bytes).ok()?;
    Some(i32::from_ne_bytes(bytes)).filter(|us| *us < NO_WISH_US)
}

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn first_value(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_does_not_go_backwards_and_an_allowed_cpu_can_be_pinned_to() {
        let first = now_ns();
        assert!(now_ns() >= first);
        let cpu = cpus_allowed()[0];
        std::thread::spawn(move || {
            pin_thread(cpu).unwrap();
            assert_eq!(cpus_allowed(), [cpu]);
        })
        .join()
        .unwrap();
        assert!(describe().contains("Linux"));
    }
}
