//! Settings of a shard's own thread, and of idle processors.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};

const IDLE_LATENCY_DEVICE: &str = "/dev/cpu_dma_latency";

/// The reason why a thread could not be pinned to a cpu.
#[derive(Debug)]
pub enum PinError {
    /// Fix the call: no Linux has such a cpu number.
    TooLarge {
        /// The number.
        cpu: usize,
    },
    /// Choose another cpu: this one is offline, or outside the cpuset of this process.
    Refused {
        /// The number.
        cpu: usize,
        /// The kernel's error.
        source: io::Error,
    },
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinError::TooLarge { cpu } => {
                write!(f, "cpu {cpu}: the largest possible number is {}", cpus_max() - 1)
            }
            PinError::Refused { cpu, source } => {
                write!(f, "cpu {cpu} is offline, or this process may not use it: {source}")
            }
        }
    }
}

impl std::error::Error for PinError {}

fn cpus_max() -> usize {
    8 * std::mem::size_of::<libc::cpu_set_t>()
}

/// Pins the calling thread to `cpu`, 0-based.
///
/// # Errors
/// [`PinError`]; the thread then runs where it did.
pub fn pin(cpu: usize) -> Result<(), PinError> {
    if cpu >= cpus_max() {
        return Err(PinError::TooLarge { cpu });
    }
    // SAFETY: a plain array of bits, for which all zero means "no cpu".
    let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    // SAFETY: `cpu` is inside the set, as checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: a valid set of the given size; 0 is the calling thread.
    let code = unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set) };
    match code {
        0 => Ok(()),
        _ => Err(PinError::Refused { cpu, source: io::Error::last_os_error() }),
    }
}

/// Sets the calling thread's timer slack to 1 ns. By default the kernel may be 50 µs late on
/// purpose. A refusal is ignored (real-time threads have no slack anyway).
pub fn tighten_timers() {
    // SAFETY: takes numbers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

/// Names the calling thread for `ps`, `perf` and debuggers. Linux keeps 15 bytes.
pub fn name(text: &str) {
    let mut bytes = [0u8; 16];
    for (place, byte) in bytes[..15].iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    // SAFETY: 16 readable bytes, the last one zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, bytes.as_ptr()) };
}

/// Blocks SIGPIPE on the calling thread. The signal of a write goes to the thread that writes, so
/// it stays pending there without effect. Children of `std::process` start unblocked.
pub fn block_sigpipe() {
    // SAFETY: a plain array of bits, initialized by the next call.
    let mut set = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: `set` is ours to write to.
    unsafe { libc::sigemptyset(&mut set) };
    // SAFETY: as above, and initialized.
    unsafe { libc::sigaddset(&mut set, libc::SIGPIPE) };
    // SAFETY: a valid set; the old mask is not wanted.
    let code = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    assert!(code == 0); // The only error is a wrong first argument.
}

/// A request that keeps all processors out of deep sleep while it lives. Waking a blocked core then
/// takes some 2 µs instead of 22. It costs power, and on a virtual machine the host may take busy
/// cores away.
#[derive(Debug)]
pub struct PollIdle {
    /// The kernel keeps the request as long as the file is open.
    _request: File,
}

/// The reason why the processors may still sleep.
#[derive(Debug)]
pub enum PollIdleError {
    /// Run as root, or drop the option.
    NotAllowed,
    /// Drop the option: this kernel or container has no such device.
    Missing,
    /// Another error.
    Other(io::Error),
}

impl fmt::Display for PollIdleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PollIdleError::NotAllowed => {
                write!(
                    f,
                    "{IDLE_LATENCY_DEVICE} needs root, and in a container also access to the \
                     device: run as root, or without poll-idle"
                )
            }
            PollIdleError::Missing => {
                write!(f, "{IDLE_LATENCY_DEVICE} does not exist: run without poll-idle")
            }
            PollIdleError::Other(source) => write!(f, "{IDLE_LATENCY_DEVICE}: {source}"),
        }
    }
}

impl std::error::Error for PollIdleError {}

impl PollIdle {
    /// Asks for an idle exit latency of 0 µs.
    ///
    /// # Errors
    /// [`PollIdleError`]; nothing has changed then.
    pub fn hold() -> Result<PollIdle, PollIdleError> {
        let classify = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => PollIdleError::NotAllowed,
            io::ErrorKind::NotFound => PollIdleError::Missing,
            _ => PollIdleError::Other(error),
        };
        let opened = OpenOptions::new().write(true).open(IDLE_LATENCY_DEVICE);
        let mut request = opened.map_err(classify)?;
        request.write_all(&0i32.to_ne_bytes()).map_err(classify)?;
        Ok(PollIdle { _request: request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_line(key: &str) -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line[key.len()..].trim().to_string()
    }

    #[test]
    fn a_thread_is_pinned_named_and_exact() {
        let thread = std::thread::spawn(|| {
            let allowed = status_line("Cpus_allowed_list:");
            let first: usize = allowed.split(['-', ',']).next().unwrap().parse().unwrap();
            pin(first).unwrap();
            assert_eq!(status_line("Cpus_allowed_list:"), first.to_string());
            name("shard-0 and much too long");
            assert_eq!(status_line("Name:"), "shard-0 and muc");
            tighten_timers();
            // SAFETY: takes a number.
            assert_eq!(unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }, 1);
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error_that_names_it() {
        assert!(pin(100_000).unwrap_err().to_string().contains("100000"));
        assert!(pin(cpus_max() - 1).unwrap_err().to_string().contains("offline"));
    }

    #[test]
    fn poll_idle_is_held_or_says_what_is_missing() {
        match PollIdle::hold() {
            Ok(held) => drop(held),
            Err(error) => {
                println!("not run: {error}");
                assert!(error.to_string().contains(IDLE_LATENCY_DEVICE));
            }
        }
    }
}
