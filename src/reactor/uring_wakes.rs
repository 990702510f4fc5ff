//! The wake-ups of [`super::uring`]: the read of the doorbell, and messages to other rings. Also
//! the names of all entries, which identify the kernel's answers.
//!
//! Owned by one shard thread. Absent: system calls. Entries are built here and pushed by
//! `uring.rs`.

use std::collections::VecDeque;
use std::ptr::NonNull;

use io_uring::{opcode, squeue, types};

use crate::base::{Handle, Pool};
use crate::limits::URING_MESSAGES_MAX;
use crate::reactor::{Counters, Waker};

/// The purpose of an entry. With index and generation it makes the 64 bits that come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The read of the doorbell.
    Wake = 0,
    /// A message that wakes another reactor.
    Ring = 1,
    /// A message of another reactor. It has done its work by ending the wait.
    Rung = 2,
    /// The accepts of a listener. The purposes from here to [`Purpose::CancelWritable`] belong to
    /// `uring_net.rs`.
    Accept = 3,
    /// The receives of a connection.
    Receive = 4,
    /// The wait of a connection until it is writable.
    Writable = 5,
    /// The cancel of [`Purpose::Accept`].
    CancelAccept = 6,
    /// The cancel of [`Purpose::Receive`].
    CancelReceive = 7,
    /// The cancel of [`Purpose::Writable`].
    CancelWritable = 8,
    /// A read of a file. The purposes from here on belong to `uring_disk.rs`.
    DiskRead = 9,
    /// A write to a file.
    DiskWrite = 10,
    /// A sync of a file.
    DiskSync = 11,
}

impl Purpose {
    /// True if `uring_net.rs` takes its answers.
    #[inline]
    pub fn is_of_socket(self) -> bool {
        (Purpose::Accept as u32..=Purpose::CancelWritable as u32).contains(&(self as u32))
    }

    /// True if `uring_disk.rs` takes its answers.
    #[inline]
    pub fn is_of_disk(self) -> bool {
        self as u32 >= Purpose::DiskRead as u32
    }
}

pub const PURPOSE_SHIFT: u32 = 24;

pub fn user_data(purpose: Purpose, handle: Handle) -> u64 {
    assert!(handle.index < 1 << PURPOSE_SHIFT);
    let low = (purpose as u32) << PURPOSE_SHIFT | handle.index;
    u64::from(handle.generation) << 32 | u64::from(low)
}

pub fn parse_user_data(bits: u64) -> Option<(Purpose, Handle)> {
    let (low, generation) = (bits as u32, (bits >> 32) as u32);
    let purpose = match low >> PURPOSE_SHIFT {
        0 => Purpose::Wake,
        1 => Purpose::Ring,
        2 => Purpose::Rung,
        3 => Purpose::Accept,
        4 => Purpose::Receive,
        5 => Purpose::Writable,
        6 => Purpose::CancelAccept,
        7 => Purpose::CancelReceive,
        8 => Purpose::CancelWritable,
        9 => Purpose::DiskRead,
        10 => Purpose::DiskWrite,
        11 => Purpose::DiskSync,
        _ => return None,
    };
    Some((purpose, Handle { index: low & ((1 << PURPOSE_SHIFT) - 1), generation }))
}

pub const NOBODY: Handle = Handle { index: 0, generation: 0 };

/// The eight bytes into which the kernel reads the doorbell.
///
/// A plain pointer, so that a move claims nothing about bytes that the kernel may be writing.
pub struct DoorbellWord(NonNull<u64>);

impl DoorbellWord {
    fn new() -> DoorbellWord {
        DoorbellWord(NonNull::from(Box::leak(Box::new(0))))
    }

    /// The address of the bytes, valid until the drop.
    pub fn address(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }
}

impl Drop for DoorbellWord {
    fn drop(&mut self) {
        // SAFETY: it came from a box and is dropped once. No read is in flight: a reactor forgets
        // the word if the kernel did not answer.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The wake-ups of one ring.
pub struct Wakes {
    /// Messages that have to be pushed.
    pub owed: VecDeque<Handle>,
    pub counters: Counters,
    /// Only the address is used. `None` after a drop whose reads the kernel did not answer.
    pub word: Option<DoorbellWord>,
    pub is_armed: bool,
    /// The targets of messages, until the kernel has answered.
    pub rung: Pool<Waker>,
    /// False once the kernel refused a message for reasons that stay.
    pub can_ring: bool,
}

impl Wakes {
    pub fn new() -> Wakes {
        Wakes {
            owed: VecDeque::with_capacity(URING_MESSAGES_MAX as usize),
            counters: Counters::default(),
            word: Some(DoorbellWord::new()),
            is_armed: false,
            rung: Pool::new(URING_MESSAGES_MAX),
            can_ring: true,
        }
    }

    /// The read of the doorbell, whose descriptor is `doorbell_fd`.
    pub fn read_of_doorbell(&self, doorbell_fd: i32) -> squeue::Entry {
        let target = self.word.as_ref().expect("only a drop takes it").address();
        let read = opcode::Read::new(types::Fd(doorbell_fd), target, 8);
        read.build().user_data(user_data(Purpose::Wake, NOBODY))
    }

    /// Queues a message to the reactor of `waker`, which blocks. Returns false if only its doorbell
    /// can wake it.
    pub fn ring(&mut self, waker: &Waker) -> bool {
        if !self.can_ring || waker.ring_fd().is_none() {
            return false;
        }
        let Ok(handle) = self.rung.insert(waker.clone()) else { return false };
        self.owed.push_back(handle);
        self.counters.message_count += 1;
        true
    }

    /// Takes the kernel's answer to a message. If the kernel refused it, the doorbell wakes.
    fn on_rung(&mut self, handle: Handle, result: i32) {
        let Some(waker) = self.rung.remove(handle) else {
            self.counters.stale_count += 1;
            return;
        };
        if result < 0 {
            waker.ring();
            // These errors come from the kernel (5.18 is the first that can) or from a filter. The
            // other ring is not to blame, and each later message would fail as well.
            self.can_ring &= !matches!(
                -result,
                libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM | libc::EACCES
            );
        }
    }

    /// The entry of an owed message; `None` if its target is gone.
    pub fn entry(&mut self, handle: Handle) -> Option<squeue::Entry> {
        let fd = types::Fd(self.rung.get(handle)?.ring_fd()?);
        let there = user_data(Purpose::Rung, NOBODY);
        let message = opcode::MsgRingData::new(fd, 0, there, None);
        Some(message.build().user_data(user_data(Purpose::Ring, handle)))
    }

    /// Takes one answer of the kernel.
    pub fn on_answer(&mut self, bits: u64, result: i32) {
        match parse_user_data(bits) {
            Some((Purpose::Wake, _)) => self.is_armed = false,
            Some((Purpose::Ring, handle)) => self.on_rung(handle, result),
            Some((Purpose::Rung, _)) => {}
            _ => self.counters.stale_count += 1, // Not ours, or of parts that were never opened.
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;

    use super::*;
    use crate::reactor::waker::WakeListener;

    #[test]
    fn names_of_entries_survive_the_way_through_the_kernel() {
        let (of_sockets, of_disks) = (
            [Purpose::Accept, Purpose::Writable, Purpose::CancelWritable],
            [Purpose::DiskRead, Purpose::DiskWrite, Purpose::DiskSync],
        );
        assert!(of_sockets.iter().all(|purpose| purpose.is_of_socket() && !purpose.is_of_disk()));
        assert!(of_disks.iter().all(|purpose| purpose.is_of_disk() && !purpose.is_of_socket()));
        for purpose in [Purpose::Wake, Purpose::Ring].into_iter().chain(of_sockets).chain(of_disks)
        {
            for handle in [NOBODY, Handle { index: (1 << 24) - 1, generation: u32::MAX }] {
                assert_eq!(parse_user_data(user_data(purpose, handle)), Some((purpose, handle)));
            }
        }
        assert_eq!(parse_user_data(u64::MAX), None);
    }

    /// The opcode and the name of the entry that is pushed next.
    fn push(wakes: &mut Wakes) -> (u8, u64) {
        let handle = wakes.owed.pop_front().expect("something is owed");
        let entry = wakes.entry(handle).expect("its target lives");
        assert!(wakes.owed.is_empty());
        (entry.get_opcode() as u8, entry.get_user_data())
    }

    #[test]
    fn a_message_that_is_refused_rings_at_the_door_instead() {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        for (answer, stays) in [(0, true), (-libc::EOVERFLOW, true), (-libc::EINVAL, false)] {
            let mut wakes = Wakes::new();
            let sleeper = WakeListener::with_ring(Some(null())).unwrap();
            assert!(sleeper.try_block());
            assert!(sleeper.waker().notify() && wakes.ring(&sleeper.waker()));
            let (opcode, name) = push(&mut wakes);
            assert_eq!(opcode, opcode::MsgRingData::CODE);
            wakes.on_answer(name, answer);
            assert_eq!(is_readable(sleeper.doorbell_fd()), answer != 0);
            assert_eq!(wakes.rung.count(), 0);
            assert_eq!(wakes.ring(&sleeper.waker()), stays);
            wakes.on_answer(name, answer); // Again: it belongs to no message now.
            assert_eq!(wakes.counters.stale_count, 1);
        }
        let mut wakes = Wakes::new();
        let without = WakeListener::with_doorbell().unwrap();
        assert!(!wakes.ring(&without.waker())); // A reactor without an io_uring.
    }

    fn is_readable(fd: RawFd) -> bool {
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry, to be read and written during the call.
        let ready_count = unsafe { libc::poll(&mut entry, 1, 0) };
        ready_count == 1
    }
}
