//! The operations (and one flag) of the kernel's io_uring, and their purposes, for `streamdoor
//! doctor`.
//!
//! A known operation does not have to work: [`super::open_with_sockets`] tries it.

use io_uring::{IoUring, Probe, opcode};

use crate::reactor::uring_setup::{UringError, classify};

/// One operation of io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringOperation {
    /// The name in io_uring_enter(2), without its prefix.
    pub name: &'static str,
    /// The first Linux version that has it.
    pub since: &'static str,
    /// The use that the reactor makes of it.
    pub purpose: &'static str,
    /// True if the reactor over io_uring does not run without it.
    pub is_needed: bool,
    /// True if this kernel knows it.
    pub is_known: bool,
}

/// The operations to look for: code, name, since, purpose, `is_needed`.
const OPERATIONS: [(u8, &str, &str, &str, bool); 11] = [
    (opcode::Nop::CODE, "NOP", "5.1", "checking that io_uring works", true),
    (opcode::Read::CODE, "READ", "5.6", "wake-ups by an eventfd, and reading files", true),
    (opcode::Write::CODE, "WRITE", "5.6", "writing files", true),
    (opcode::Fsync::CODE, "FSYNC", "5.1", "making files durable", true),
    (opcode::PollAdd::CODE, "POLL_ADD", "5.1", "waiting until a socket accepts more data", true),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL", "5.5", "cancelling pending operations", true),
    (opcode::Accept::CODE, "ACCEPT", "5.5", "taking connections", true),
    (opcode::Recv::CODE, "RECV", "5.6", "receiving data from clients", true),
    (
        opcode::MsgRingData::CODE,
        "MSG_RING",
        "5.18",
        "waking another shard without its eventfd",
        false,
    ),
    (opcode::FutexWait::CODE, "FUTEX_WAIT", "6.7", "waiting for a word of shared memory", false),
    (opcode::FutexWaitV::CODE, "FUTEX_WAITV", "6.7", "waiting for several such words", false),
];

/// Asks the kernel which operations it knows.
///
/// # Errors
/// [`UringError`] if no ring can be made.
pub fn uring_operations() -> Result<Vec<UringOperation>, UringError> {
    let ring = IoUring::new(2).map_err(classify)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(classify)?;
    let found = OPERATIONS.map(|(code, name, since, purpose, is_needed)| {
        let is_known = probe.is_supported(code);
        UringOperation { name, since, purpose, is_needed, is_known }
    });
    let mut found = Vec::from(found);
    found.push(UringOperation {
        name: "ENTER_NO_IOWAIT",
        since: "6.15",
        purpose: "waits that /proc/pressure/io does not count as waits for a disk",
        is_needed: false,
        is_known: ring.params().is_feature_no_iowait(),
    });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_working_reactor_needs_is_found() {
        let works = crate::reactor::UringReactor::new().is_ok();
        let Ok(operations) = uring_operations() else {
            assert!(!works);
            return println!("not run: there is no io_uring here");
        };
        let missing = operations.iter().filter(|operation| !operation.is_known);
        let missing: Vec<&str> = missing.map(|operation| operation.name).collect();
        println!("missing: {missing:?}");
        let lacks = operations.iter().any(|operation| operation.is_needed && !operation.is_known);
        assert!(!works || !lacks, "{missing:?}");
    }
}
