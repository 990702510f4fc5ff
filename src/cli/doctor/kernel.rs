//! The features of the kernel that streamdoor uses. Each one is tried and never deduced from a
//! version, because a container may forbid a feature of its kernel.

use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use streamdoor::limits;
use streamdoor::memory::pressure::{Diagnosis, rings_bytes_under};
use streamdoor::memory::{ClockAnchor, DoorRing, Pressure, Readings, RingReader, futex};
use streamdoor::reactor::readings::KernelFiles;
use streamdoor::reactor::{Choice, SocketLimits, open_with_sockets, uring_operations};

use super::finding::Finding;

/// Returns all findings about the kernel.
pub fn findings() -> Vec<Finding> {
    let readings = KernelFiles::new(Path::new("/")).read();
    let mut findings = vec![io_uring(), operations()];
    findings.extend([waitv(), memfd(), noexec(), pidfd()]);
    findings.extend([pressure(&readings), cgroup(&readings)]);
    findings
}

/// Returns how io_uring works on this machine. The error says why it does not.
pub fn try_io_uring() -> Result<String, String> {
    let limits = SocketLimits { connections_max: 16, listeners_max: 1 };
    match open_with_sockets(Choice::Uring, limits) {
        Ok((_, report)) => Ok(report
            .to_string()
            .replace("reactor: io_uring, ", "works: ")
            .replace(" (asked for: uring)", "")),
        Err(error) => {
            let text = error.to_string();
            Err(text.split("; use --reactor").next().unwrap_or(&text).to_owned())
        }
    }
}

fn io_uring() -> Finding {
    const SUBJECT: &str = "io_uring";
    match try_io_uring() {
        Ok(found) => Finding::good(SUBJECT, found, "The server uses the fastest kernel interface."),
        Err(reason) => Finding::note(
            SUBJECT,
            reason,
            "The server then uses epoll (`--reactor auto` chooses it automatically). It takes \
             more processor time under load.",
        )
        .advise(
            "Use Linux 6.1 or newer. If a sysctl or a container's seccomp profile forbids it, \
             ask the administrator of the machine, or stay with epoll.",
        ),
    }
}

fn operations() -> Finding {
    const SUBJECT: &str = "operations";
    let Ok(operations) = uring_operations() else {
        let means = "Without io_uring its operations cannot be checked.";
        return Finding::note(SUBJECT, "not known", means);
    };
    let missing: Vec<String> = operations
        .iter()
        .filter(|operation| !operation.is_known)
        .map(|operation| {
            format!("{} (Linux {}; {})", operation.name, operation.since, operation.purpose)
        })
        .collect();
    let known_count = operations.len() - missing.len();
    let found = format!("{known_count} of {} io_uring operations are known", operations.len());
    if missing.is_empty() {
        let means = "This kernel's io_uring has every operation that streamdoor can use.";
        return Finding::good(SUBJECT, found, means);
    }
    let means = format!("Missing: {}. The server uses slower ways instead.", missing.join(", "));
    Finding::note(SUBJECT, found, means).advise("Use a newer Linux, which has them.")
}

fn waitv() -> Finding {
    const SUBJECT: &str = "futex_waitv";
    match futex::try_wait_any() {
        Ok(()) => Finding::good(
            SUBJECT,
            "works",
            "A reader or writer that waits for several words of shared memory is woken by each. It \
             notices within microseconds if the process at the other end of a door dies.",
        ),
        Err(error) => Finding::note(
            SUBJECT,
            error.to_string(),
            format!(
                "A reader or writer that waits for several words of shared memory checks them \
                 every {} ms instead of being woken.",
                limits::WAIT_ANY_FALLBACK.as_millis()
            ),
        )
        .advise("Use Linux 5.16 or newer. A container's seccomp profile may also forbid it."),
    }
}

/// Creates, allocates, seals and reopens a ring as a door does.
fn memfd() -> Finding {
    const SUBJECT: &str = "memfd";
    let class_bytes = limits::RING_CLASS_BYTES[0];
    let made = DoorRing::create(class_bytes, ClockAnchor::default());
    let (_writer, descriptor) = match made {
        Ok(ring) => ring.into_parts(),
        Err(error) => {
            return Finding::bad(
                SUBJECT,
                format!("a ring of {class_bytes} bytes cannot be made and sealed: {error}"),
                "Results stream through rings of anonymous memory, which are sealed so that no \
                 other process can truncate or change them. Doors cannot work without sealed \
                 memory.",
            )
            .advise(
                "Use Linux 5.1 or newer, mount /proc, and free some memory. A container's seccomp \
                 profile must allow memfd_create and fallocate.",
            );
        }
    };
    match RingReader::open(descriptor) {
        Ok(_) => Finding::good(
            SUBJECT,
            "works, with all seals",
            "Rings can be shared with other processes, which can neither change nor truncate them.",
        ),
        Err(error) => Finding::bad(
            SUBJECT,
            format!("a sealed ring cannot be opened again: {error}"),
            "Readers in other processes would refuse it.",
        )
        .advise("Use Linux 5.1 or newer (F_SEAL_FUTURE_WRITE)."),
    }
}

fn noexec() -> Finding {
    const SUBJECT: &str = "noexec_seal";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
    match memfd_create(c"streamdoor-doctor", flags) {
        Ok(_) => Finding::good(
            SUBJECT,
            "works",
            "No process can make shared memory executable (MFD_NOEXEC_SEAL).",
        ),
        Err(error) => Finding::note(
            SUBJECT,
            std::io::Error::from(error).to_string(),
            "Shared memory is made without MFD_NOEXEC_SEAL. The server still never maps it \
             executable, and it has mode 0600.",
        )
        .advise("Nothing depends on it. Linux 6.3 or newer has it."),
    }
}

fn pidfd() -> Finding {
    const SUBJECT: &str = "pidfd";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::good(
            SUBJECT,
            "works",
            "A process is never mistaken for another that got its number, and its end is noticed \
             at once.",
        ),
        Err(error) => Finding::note(
            SUBJECT,
            std::io::Error::from(error).to_string(),
            format!(
                "The server checks every {} ms if a program that a tool started still runs.",
                limits::COMMAND_LOOK_WITHOUT_PIDFD.as_millis()
            ),
        )
        .advise("Use Linux 5.3 or newer. A container's seccomp profile may also forbid it."),
    }
}

fn pressure(readings: &Readings) -> Finding {
    const SUBJECT: &str = "psi";
    let Some(some) = readings.memory_some_avg10 else {
        let why = match std::fs::metadata("/proc/pressure/memory") {
            Err(error) if error.kind() == ErrorKind::NotFound => "/proc/pressure does not exist",
            _ => "/proc/pressure/memory cannot be read",
        };
        return Finding::note(
            SUBJECT,
            why,
            "The server sees only the available memory, not how long processes wait for memory. \
             Rings then shrink a little late.",
        )
        .advise("Boot with psi=1, on a kernel with CONFIG_PSI (Linux 4.20 or newer).");
    };
    let diagnosis = Diagnosis::of(readings);
    let found = format!("processes waited for memory in {some} % of the last 10 s: {diagnosis}");
    let Diagnosis { pressure, busy_disks, .. } = diagnosis;
    let largest_kib = pressure.largest_class_bytes() >> 10;
    let means = format!("Rings may now have up to {largest_kib} KiB.");
    match (pressure, busy_disks) {
        (Pressure::Normal, None) => Finding::good(SUBJECT, found, means),
        (Pressure::Normal, Some(reading)) => {
            let found = format!("{found}; disks are busy ({reading})");
            let means = format!("{means} A busy disk does not shrink them.");
            Finding::note(SUBJECT, found, means).advise(
                "Tools that use this disk are slow. Find its user with `iotop` or `pidstat -d`.",
            )
        }
        _ => Finding::note(SUBJECT, found, means)
            .advise("Memory is short. Give the machine or the container more, or run less on it."),
    }
}

/// Ring memory that is soon used up: the rings of 256 executions that connections follow.
const FEW_RINGS_BYTES: u64 = 256 * limits::RING_SERVED_BYTES as u64;

fn cgroup(readings: &Readings) -> Finding {
    const SUBJECT: &str = "cgroup";
    let Some(limit_bytes) = readings.cgroup_limit_bytes else {
        let means = "No cgroup limits the memory of this process.";
        return Finding::good(SUBJECT, "no memory limit", means);
    };
    let used_bytes = readings.cgroup_used_bytes.unwrap_or(0);
    let share_bytes = rings_bytes_under(limit_bytes);
    let found = format!("{} of {} MiB used", used_bytes >> 20, limit_bytes >> 20);
    let means = format!(
        "All rings together may take a tenth of the limit: {}.",
        match share_bytes {
            ..0x10_0000 => format!("{} KiB", share_bytes >> 10),
            _ => format!("{} MiB", share_bytes >> 20),
        }
    );
    let advice = "Raise the memory limit of the container or of the service, if you can.";
    if share_bytes < u64::from(limits::RING_SERVED_BYTES) {
        let means = format!("{means} That is less than the ring of one execution.");
        return Finding::bad(SUBJECT, found, means).advise(advice);
    }
    match share_bytes < FEW_RINGS_BYTES {
        true => Finding::note(SUBJECT, found, means).advise(advice),
        false => Finding::good(SUBJECT, found, means),
    }
}
