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

fn io_uring() -> Finding {
    const SUBJECT: &str = "io_uring";
    let limits = SocketLimits { connections_max: 16, listeners_max: 1 };
    match open_with_sockets(Choice::Uring, limits) {
        Ok((_, report)) => Finding::good(
            SUBJECT,
            report
                .to_string()
                .replace("reactor: io_uring, ", "works: ")
                .replace(" (asked for: uring)", ""),
            "The server talks to the kernel in the fastest way that there is.",
        ),
        Err(error) => {
            let text = error.to_string();
            let reason = text.split("; --reactor").next().unwrap_or(&text);
            Finding::note(
                SUBJECT,
                reason,
                "The server works without it, over epoll (`--reactor auto` chooses by itself); \
                 under load it takes more processor time.",
            )
            .advise(
                "Linux 6.1 or newer is best. If a sysctl or a container's seccomp profile forbids \
                 it, that is a decision of whoever runs the machine: ask them, or leave it.",
            )
        }
    }
}

fn operations() -> Finding {
    const SUBJECT: &str = "operations";
    let Ok(operations) = uring_operations() else {
        let means = "Without io_uring there is nothing to ask.";
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
    let found = format!("{known_count} of the {} of io_uring that are asked for", operations.len());
    if missing.is_empty() {
        let means = "This kernel's io_uring has everything that streamdoor can use.";
        return Finding::good(SUBJECT, found, means);
    }
    let means = format!("Missing: {}. Something slower takes their place.", missing.join(", "));
    Finding::note(SUBJECT, found, means).advise("A newer Linux has them.")
}

fn waitv() -> Finding {
    const SUBJECT: &str = "futex_waitv";
    match futex::try_wait_either() {
        Ok(()) => Finding::good(
            SUBJECT,
            "works",
            "Who waits for one of several things in shared memory is woken by each, and the death \
             of a process at the other end of a door is noticed within microseconds.",
        ),
        Err(error) => Finding::note(
            SUBJECT,
            error.to_string(),
            format!(
                "Who waits for one of several things in shared memory looks again every {} ms \
                 instead of being woken.",
                limits::WAIT_EITHER_FALLBACK.as_millis()
            ),
        )
        .advise("Linux 5.16 or newer has it; a container's seccomp profile may forbid it."),
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
                 other process can cut them off or change them. Without that there are no doors.",
            )
            .advise(
                "Linux 5.1 or newer is needed, with /proc mounted; a container's seccomp profile \
                 must allow memfd_create and fallocate, and there must be some free memory.",
            );
        }
    };
    match RingReader::open(descriptor) {
        Ok(_) => Finding::good(
            SUBJECT,
            "works, with all seals",
            "Rings can be given to other processes, which can neither change nor cut them off.",
        ),
        Err(error) => Finding::bad(
            SUBJECT,
            format!("a sealed ring cannot be opened again: {error}"),
            "Readers in other processes would refuse it.",
        )
        .advise("Linux 5.1 or newer is needed (F_SEAL_FUTURE_WRITE)."),
    }
}

fn noexec() -> Finding {
    const SUBJECT: &str = "noexec_seal";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
    match memfd_create(c"streamdoor-doctor", flags) {
        Ok(_) => Finding::good(
            SUBJECT,
            "works",
            "Nobody can make shared memory executable (MFD_NOEXEC_SEAL).",
        ),
        Err(error) => Finding::note(
            SUBJECT,
            std::io::Error::from(error).to_string(),
            "Shared memory is made without MFD_NOEXEC_SEAL. It is still never mapped executable \
             here, and has mode 0600.",
        )
        .advise("Linux 6.3 or newer has it; nothing depends on it."),
    }
}

fn pidfd() -> Finding {
    const SUBJECT: &str = "pidfd";
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(_) => Finding::good(
            SUBJECT,
            "works",
            "A process is never mistaken for another that has got its number, and its end is told \
             at once.",
        ),
        Err(error) => Finding::note(
            SUBJECT,
            std::io::Error::from(error).to_string(),
            format!(
                "Whether a program that a tool has started still runs is looked at every {} ms.",
                limits::COMMAND_LOOK_WITHOUT_PIDFD.as_millis()
            ),
        )
        .advise("Linux 5.3 or newer has it; a container's seccomp profile may forbid it."),
    }
}

fn pressure(readings: &Readings) -> Finding {
    const SUBJECT: &str = "psi";
    let Some(some) = readings.memory_some_avg10 else {
        let why = match std::fs::metadata("/proc/pressure/memory") {
            Err(error) if error.kind() == ErrorKind::NotFound => "/proc/pressure is not there",
            _ => "/proc/pressure/memory cannot be read",
        };
        return Finding::note(
            SUBJECT,
            why,
            "How short memory is can be seen from what is available only, not from how long \
             processes wait for it. Rings then shrink a little late.",
        )
        .advise("Boot with psi=1, on a kernel with CONFIG_PSI (Linux 4.20 or newer).");
    };
    let diagnosis = Diagnosis::of(readings);
    let found = format!("memory was waited for in {some} % of the last 10 s: {diagnosis}");
    let Diagnosis { pressure, .. } = diagnosis;
    let largest_kib = pressure.largest_class_bytes() >> 10;
    let means = format!("Rings may be as large as {largest_kib} KiB now.");
    match pressure {
        Pressure::Normal => Finding::good(SUBJECT, found, means),
        _ => Finding::note(SUBJECT, found, means)
            .advise("Memory is short: give the machine or the container more, or run less on it."),
    }
}

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
        "All rings together may take a tenth of that: {}.",
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
    match share_bytes < limits::RINGS_PREALLOC_BYTES {
        true => Finding::note(SUBJECT, found, means).advise(advice),
        false => Finding::good(SUBJECT, found, means),
    }
}
