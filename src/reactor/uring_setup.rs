//! Makes a ring with the best flags that this kernel grants, and proves that it works.
//!
//! No seccomp filter sees the operations that go through a ring. The ring is therefore made
//! disabled, and restricted once and for all to the operations that this program uses.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use io_uring::register::Restriction;
use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};

use crate::reactor::uring_buffers::{GROUP, ReceiveBuffers};

/// The way in which completions arrive, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// SINGLE_ISSUER, DEFER_TASKRUN, TASKRUN_FLAG (Linux 6.1). The kernel does work of the ring
    /// only while the thread is inside it, and a flag in shared memory says when that is
    /// worthwhile.
    Deferred,
    /// COOP_TASKRUN, TASKRUN_FLAG (5.19): the same, and on any other way into the kernel.
    Cooperative,
    /// No flags (5.11): the kernel interrupts the thread for each completion.
    Interrupting,
}

impl Flavor {
    /// All flavors in the order in which they are tried.
    pub const BEST_FIRST: [Flavor; 3] =
        [Flavor::Deferred, Flavor::Cooperative, Flavor::Interrupting];
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flavor::Deferred => "deferred task work",
            Flavor::Cooperative => "cooperative task work",
            Flavor::Interrupting => "interrupting task work",
        })
    }
}

/// The reason why io_uring does not work here.
#[derive(Debug)]
pub enum UringError {
    /// The kernel has none (ENOSYS).
    Absent,
    /// `kernel.io_uring_disabled` is set to this level.
    Disabled {
        /// 1: for all but one group; 2: for all.
        level: u8,
    },
    /// EPERM although the switch is off: a seccomp filter, as containers have.
    Filtered,
    /// The kernel is older than Linux 5.11, and these parts are missing.
    Incomplete {
        /// Names of features and operations.
        missing: Vec<&'static str>,
    },
    /// Sockets need multishot receives into registered buffers: Linux 6.0.
    NoSockets(io::Error),
    /// Another error: memory, descriptors.
    Other(io::Error),
}

impl fmt::Display for UringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UringError::Absent => f.write_str("the kernel has no io_uring (ENOSYS)"),
            UringError::Disabled { level } => {
                write!(f, "switched off by sysctl kernel.io_uring_disabled={level}")
            }
            UringError::Filtered => {
                f.write_str("refused with EPERM, probably by a seccomp filter of the container")
            }
            UringError::Incomplete { missing } => {
                write!(f, "the kernel's io_uring lacks {}", missing.join(", "))
            }
            UringError::NoSockets(source) => {
                write!(f, "its multishot receives into registered buffers do not work: {source}")
            }
            UringError::Other(source) => write!(f, "{source}"),
        }
    }
}

impl std::error::Error for UringError {}

/// Makes a working ring of `submissions` and `completions` entries, with the first of `flavors`
/// that this kernel knows.
///
/// # Errors
/// [`UringError`]: use the other backend.
pub fn make_ring(
    submissions: u32,
    completions: u32,
    flavors: &[Flavor],
) -> Result<(IoUring, Flavor), UringError> {
    let (ring, flavor) = build(submissions, completions, flavors).map_err(classify)?;
    let missing = missing_parts(&ring).map_err(classify)?;
    if !missing.is_empty() {
        return Err(UringError::Incomplete { missing });
    }
    restrict(&ring).map_err(classify)?;
    let ring = prove(ring).map_err(classify)?;
    Ok((ring, flavor))
}

fn build(submissions: u32, completions: u32, flavors: &[Flavor]) -> io::Result<(IoUring, Flavor)> {
    for &flavor in flavors {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(completions).setup_r_disabled().setup_submit_all();
        match flavor {
            Flavor::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            }
            Flavor::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            Flavor::Interrupting => {
                builder = IoUring::builder(); // SUBMIT_ALL is of 5.18, too.
                builder.setup_cqsize(completions).setup_r_disabled();
            }
        }
        match builder.build(submissions) {
            Ok(ring) => return Ok((ring, flavor)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {} // An unknown flag.
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}

fn missing_parts(ring: &IoUring) -> io::Result<Vec<&'static str>> {
    let parameters = ring.params();
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let parts = [
        (parameters.is_feature_nodrop(), "NODROP"),
        (parameters.is_feature_fast_poll(), "FAST_POLL"),
        (parameters.is_feature_ext_arg(), "EXT_ARG"),
        (probe.is_supported(opcode::Read::CODE), "READ"),
        (probe.is_supported(opcode::Write::CODE), "WRITE"),
        (probe.is_supported(opcode::Fsync::CODE), "FSYNC"),
        (probe.is_supported(opcode::PollAdd::CODE), "POLL_ADD"),
        (probe.is_supported(opcode::AsyncCancel::CODE), "ASYNC_CANCEL"),
    ];
    Ok(parts.iter().filter(|(present, _)| !present).map(|(_, name)| *name).collect())
}

/// From `enum io_uring_register_op` in the kernel's `include/uapi/linux/io_uring.h`.
const REGISTER_PBUF_RING: u8 = 22;
const UNREGISTER_PBUF_RING: u8 = 23;

/// Allows the operations that are used here and nothing else, for good, and enables the ring. Files
/// are opened, renamed and removed by a thread, which filters see.
fn restrict(ring: &IoUring) -> io::Result<()> {
    let mut allowed = [
        Restriction::sqe_op(opcode::Nop::CODE),
        Restriction::sqe_op(opcode::Read::CODE),
        Restriction::sqe_op(opcode::Write::CODE),
        Restriction::sqe_op(opcode::Fsync::CODE),
        Restriction::sqe_op(opcode::PollAdd::CODE),
        Restriction::sqe_op(opcode::AsyncCancel::CODE),
        Restriction::sqe_op(opcode::AcceptMulti::CODE),
        Restriction::sqe_op(opcode::RecvMulti::CODE),
        Restriction::sqe_op(opcode::MsgRingData::CODE),
        Restriction::register_op(REGISTER_PBUF_RING),
        Restriction::register_op(UNREGISTER_PBUF_RING),
        Restriction::sqe_flags_allowed(squeue::Flags::BUFFER_SELECT.bits()),
    ];
    ring.submitter().register_restrictions(&mut allowed)?;
    ring.submitter().register_enable_rings()
}

/// Sends one NOP through the ring: a filter may allow the setup of a ring and refuse entering it.
fn prove(mut ring: IoUring) -> io::Result<IoUring> {
    let nop = opcode::Nop::new().build().user_data(1);
    // SAFETY: a NOP points to no memory.
    unsafe { ring.submission().push(&nop) }.expect("a new ring has room");
    ring.submit_and_wait(1)?;
    let answer = ring.completion().next();
    match answer {
        Some(entry) if entry.user_data() == 1 && entry.result() == 0 => Ok(ring),
        other => Err(io::Error::other(format!("a NOP was answered with {other:?}"))),
    }
}

/// Receives one byte and the end through a multishot receive into a buffer that the kernel chooses,
/// on a ring of its own. Linux 6.0 and later can do that, unless a filter refuses.
///
/// # Errors
/// The kernel's error.
pub fn prove_receive() -> io::Result<()> {
    let mut ring = IoUring::builder().setup_cqsize(8).build(4)?;
    let mut buffers = ReceiveBuffers::register(&ring)?;
    let result = receive_once(&mut ring, &mut buffers);
    buffers.unregister(&ring);
    result
}

fn receive_once(ring: &mut IoUring, buffers: &mut ReceiveBuffers) -> io::Result<()> {
    let (near, mut far) = UnixStream::pair()?;
    far.write_all(b"?")?;
    drop(far); // The receive then ends by itself in any case.
    let entry = opcode::RecvMulti::new(types::Fd(near.as_raw_fd()), GROUP).build().user_data(1);
    // SAFETY: points to no memory but the registered buffers, which outlive this function.
    unsafe { ring.submission().push(&entry) }.expect("a new ring has room");
    let mut answers = Vec::new();
    loop {
        ring.submit_and_wait(1)?;
        let mut is_over = false;
        for answer in ring.completion() {
            let number = cqueue::buffer_select(answer.flags());
            let is_ours = number.is_some_and(|number| buffers.take(number));
            answers.push((answer.result(), is_ours));
            is_over |= !cqueue::more(answer.flags());
        }
        if is_over {
            break;
        }
    }
    match answers.as_slice() {
        [(1, true), (0, _)] => Ok(()),
        [(code, _)] if *code < 0 => Err(io::Error::from_raw_os_error(-code)),
        other => Err(io::Error::other(format!("a multishot receive was answered with {other:?}"))),
    }
}

/// Maps an error to the variant that names its cause.
pub(super) fn classify(error: io::Error) -> UringError {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => UringError::Absent,
        Some(libc::EPERM | libc::EACCES) => {
            let level = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
            match level.as_deref().map_or(0, |text| text.trim().parse().unwrap_or(0)) {
                0 => UringError::Filtered,
                level => UringError::Disabled { level },
            }
        }
        _ => UringError::Other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_program_does_not_use_cannot_be_asked_for() {
        for flavor in Flavor::BEST_FIRST {
            let Ok((mut ring, _)) = make_ring(8, 16, &[flavor]) else {
                println!("not run: there is no io_uring here");
                return;
            };
            let nobody = types::Fd(-1);
            let path = c"/etc/hostname".as_ptr();
            for entry in [
                opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path).build(),
                opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
                opcode::Close::new(nobody).build(),
                opcode::RenameAt::new(nobody, path, nobody, path).build(),
                opcode::UnlinkAt::new(nobody, path).build(),
                opcode::Nop::new().build().flags(squeue::Flags::IO_DRAIN),
            ] {
                // SAFETY: none of them points to memory, but to a text that lives for ever.
                unsafe { ring.submission().push(&entry) }.unwrap();
                ring.submit_and_wait(1).unwrap();
                let result = ring.completion().next().unwrap().result();
                assert_eq!(result, -libc::EACCES, "{flavor}");
            }
            let registered = ring.submitter().register_files_sparse(1).unwrap_err();
            assert_eq!(registered.raw_os_error(), Some(libc::EACCES));
            assert!(ring.submitter().register_restrictions(&mut []).is_err(), "once is enough");
        }
    }

    #[test]
    fn every_reason_is_told_in_words() {
        let absent = classify(io::Error::from_raw_os_error(libc::ENOSYS));
        assert!(absent.to_string().contains("ENOSYS"));
        let missing = UringError::Incomplete { missing: vec!["EXT_ARG", "READ"] };
        assert!(missing.to_string().contains("EXT_ARG, READ"));
        let disabled = UringError::Disabled { level: 2 };
        assert!(disabled.to_string().contains("io_uring_disabled=2"));
        let memory = classify(io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(matches!(memory, UringError::Other(_)));
    }
}
