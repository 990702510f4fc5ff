//! The operations of [`super::uring`]: slots, what is owed to the kernel, what its answers mean.
//!
//! Owned by one shard thread. No system call here but one `isatty` per descriptor number, and no
//! `unsafe`: entries are built here, and pushed next door. For U1 and U2 see there.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use io_uring::{opcode, squeue, types};

use crate::base::{Handle, Pool};
use crate::limits::{DESCRIPTORS_KNOWN_MAX, URING_MESSAGES_MAX};
use crate::reactor::operation::{Request, Transfer};
use crate::reactor::transfer::is_terminal;
use crate::reactor::{Buffer, Completion, Counters, IoError, Operation, SubmitError, Waker};

/// What an entry is for; with slot and generation it makes the 64 bits that come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The read, the write, or the wait for readiness before it.
    Work = 0,
    /// The cancel of that.
    Cancel = 1,
    /// The doorbell.
    Wake = 2,
    /// A message that wakes another reactor.
    Ring = 3,
    /// Such a message, come here: it has done its work by ending the wait.
    Rung = 4,
    /// A listener's accepts. From here on all are of `uring_net.rs`.
    Accept = 5,
    /// A connection's receives.
    Receive = 6,
    /// A connection's wait for writability.
    Writable = 7,
    /// The cancel of [`Purpose::Accept`].
    CancelAccept = 8,
    /// The cancel of [`Purpose::Receive`].
    CancelReceive = 9,
    /// The cancel of [`Purpose::Writable`].
    CancelWritable = 10,
}

impl Purpose {
    /// Whether `uring_net.rs` takes its answers.
    #[inline]
    pub fn is_of_socket(self) -> bool {
        self as u32 >= Purpose::Accept as u32
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
        0 => Purpose::Work,
        1 => Purpose::Cancel,
        2 => Purpose::Wake,
        3 => Purpose::Ring,
        4 => Purpose::Rung,
        5 => Purpose::Accept,
        6 => Purpose::Receive,
        7 => Purpose::Writable,
        8 => Purpose::CancelAccept,
        9 => Purpose::CancelReceive,
        10 => Purpose::CancelWritable,
        _ => return None,
    };
    Some((purpose, Handle { index: low & ((1 << PURPOSE_SHIFT) - 1), generation }))
}

pub const NOBODY: Handle = Handle { index: 0, generation: 0 };

/// Where an operation stands with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its entry is to be pushed.
    Owed,
    /// The kernel transfers.
    Transferring,
    /// The descriptor is non-blocking, so the kernel did not wait by itself: it polls.
    AwaitingReadiness,
}

pub struct Slot {
    request: Request,
    phase: Phase,
    /// The next entry is a poll, not the transfer.
    needs_readiness: bool,
    is_cancelled: bool,
}

/// Everything but the ring.
pub struct Table {
    pub slots: Pool<Slot>,
    /// Slots with an entry to push, at most one mention each for work and one for its cancel, and
    /// messages.
    pub owed: VecDeque<(Purpose, Handle)>,
    pub ready: VecDeque<Completion>,
    pub counters: Counters,
    /// By descriptor: what was found when it was first written to.
    pub terminals: Vec<Option<bool>>,
    pub wake_buffer: Buffer,
    pub is_wake_armed: bool,
    /// Whom a message is to wake, until the kernel has answered it.
    pub rung: Pool<Waker>,
    /// False once the kernel refused a message for reasons that stay.
    pub can_ring: bool,
}

impl Table {
    /// Room for `operations_max` operations.
    pub fn new(operations_max: u32) -> Table {
        let capacity = operations_max as usize;
        Table {
            slots: Pool::new(operations_max),
            owed: VecDeque::with_capacity(2 * capacity),
            ready: VecDeque::with_capacity(capacity),
            counters: Counters::default(),
            terminals: Vec::new(),
            wake_buffer: Buffer::zeroed(8),
            is_wake_armed: false,
            rung: Pool::new(URING_MESSAGES_MAX),
            can_ring: true,
        }
    }

    pub fn submit(&mut self, operation: Operation) -> Result<(), SubmitError> {
        let request = match Request::parse(operation) {
            Ok(request) => request,
            Err(token) => {
                self.cancel(|slot| slot.request.token == token);
                return Ok(());
            }
        };
        if self.slots.count() as usize + self.ready.len() >= self.slots.capacity() as usize {
            return Err(SubmitError::Full(request.into_operation()));
        }
        let slot =
            Slot { request, phase: Phase::Owed, needs_readiness: false, is_cancelled: false };
        match self.slots.insert(slot) {
            Ok(handle) => {
                self.owed.push_back((Purpose::Work, handle));
                self.counters.submitted_count += 1;
                Ok(())
            }
            Err(slot) => Err(SubmitError::Full(slot.request.into_operation())),
        }
    }

    pub fn cancel(&mut self, is_meant: impl Fn(&Slot) -> bool) {
        for index in 0..self.slots.capacity() {
            let Some(slot) = self.slots.at_mut(index) else { continue };
            if slot.is_cancelled || !is_meant(slot) {
                continue;
            }
            slot.is_cancelled = true;
            let is_owed = slot.phase == Phase::Owed;
            let handle = self.slots.handle_at(index).expect("the slot is taken");
            if is_owed {
                self.owed.retain(|owed| *owed != (Purpose::Work, handle));
                self.finish(handle, Err(IoError::CANCELLED));
            } else {
                self.owed.push_back((Purpose::Cancel, handle));
            }
        }
    }

    /// Sends a message to the reactor of `waker`, which blocks; false if only its doorbell is left.
    pub fn ring(&mut self, waker: &Waker) -> bool {
        if !self.can_ring || waker.ring_fd().is_none() {
            return false;
        }
        let Ok(handle) = self.rung.insert(waker.clone()) else { return false };
        self.owed.push_back((Purpose::Ring, handle));
        self.counters.message_count += 1;
        true
    }

    /// The kernel's answer to a message: refused, it becomes a ring at the door.
    fn on_rung(&mut self, handle: Handle, result: i32) {
        let Some(waker) = self.rung.remove(handle) else {
            self.counters.stale_count += 1;
            return;
        };
        if result < 0 {
            waker.ring();
            // Of the kernel (5.18 is the first that can) or a filter, not of the other ring.
            self.can_ring &= !matches!(
                -result,
                libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM | libc::EACCES
            );
        }
    }

    fn finish(&mut self, handle: Handle, result: Result<u32, IoError>) {
        let slot = self.slots.remove(handle).expect("finished once");
        self.counters.count_completion(result);
        self.ready.push_back(slot.request.into_completion(result));
    }

    /// The entry that is owed; None if the operation is over.
    pub fn entry(&mut self, purpose: Purpose, handle: Handle) -> Option<squeue::Entry> {
        let bits = user_data(purpose, handle);
        if purpose == Purpose::Ring {
            let fd = types::Fd(self.rung.get(handle)?.ring_fd()?);
            let there = user_data(Purpose::Rung, NOBODY);
            return Some(opcode::MsgRingData::new(fd, 0, there, None).build().user_data(bits));
        }
        let slot = self.slots.get_mut(handle)?;
        if purpose == Purpose::Cancel {
            let target = user_data(Purpose::Work, handle);
            return Some(opcode::AsyncCancel::new(target).build().user_data(bits));
        }
        assert!(slot.phase == Phase::Owed); // U1
        let fd = types::Fd(slot.request.fd);
        let entry = if slot.needs_readiness {
            slot.phase = Phase::AwaitingReadiness;
            let events = match slot.request.transfer {
                Transfer::Read => libc::POLLIN,
                Transfer::Write(_) => libc::POLLOUT,
            };
            opcode::PollAdd::new(fd, events as u32).build()
        } else {
            slot.phase = Phase::Transferring;
            let start = slot.request.buffer.address();
            let at_cursor = u64::MAX; // The file's own position, as `read(2)` does.
            match &slot.request.transfer {
                Transfer::Read => opcode::Read::new(fd, start, slot.request.buffer.size())
                    .offset(at_cursor)
                    .build(),
                Transfer::Write(range) => {
                    // `Request::parse` checked that the range lies in the buffer.
                    let start = start.wrapping_add(range.start as usize);
                    opcode::Write::new(fd, start, range.end - range.start)
                        .offset(at_cursor)
                        .build()
                        .flags(write_flags(&mut self.terminals, slot.request.fd))
                }
            }
        };
        Some(entry.user_data(bits))
    }

    /// One answer of the kernel.
    pub fn on_answer(&mut self, bits: u64, result: i32) {
        let Some((purpose, handle)) = parse_user_data(bits) else {
            self.counters.stale_count += 1;
            return;
        };
        match purpose {
            Purpose::Wake => self.is_wake_armed = false,
            Purpose::Work => self.on_work(handle, result),
            Purpose::Cancel => {
                // ENOENT: the kernel did not find it, perhaps because it was between two steps of
                // its own. If its answer is not here either, ask again.
                if result == -libc::ENOENT && self.slots.get(handle).is_some() {
                    self.owed.push_back((Purpose::Cancel, handle));
                }
            }
            Purpose::Ring => self.on_rung(handle, result),
            Purpose::Rung => {}
            _ => self.counters.stale_count += 1, // Of sockets, which there are none of.
        }
    }

    fn on_work(&mut self, handle: Handle, result: i32) {
        let Some(slot) = self.slots.get_mut(handle) else {
            self.counters.stale_count += 1;
            return;
        };
        assert!(slot.phase != Phase::Owed, "an answer to an entry that was not pushed: U1");
        let was_poll = slot.phase == Phase::AwaitingReadiness;
        let moved = u32::try_from(result).ok();
        let is_retried = moved.is_some() || matches!(-result, libc::EINTR | libc::EAGAIN);
        if let (false, Some(moved_bytes)) = (was_poll, moved) {
            self.finish(handle, Ok(moved_bytes));
        } else if !is_retried {
            self.finish(handle, Err(IoError(-result)));
        } else if slot.is_cancelled {
            // Nothing moved, and nothing will: a worker that a cancel interrupts says EINTR.
            self.finish(handle, Err(IoError::CANCELLED));
        } else {
            slot.needs_readiness = result == -libc::EAGAIN;
            slot.phase = Phase::Owed;
            self.owed.push_back((Purpose::Work, handle));
            self.counters.retried_count += u64::from(!was_poll);
        }
    }
}

/// A terminal makes a writer wait even if it says that it is writable, and would make this thread
/// wait: one of the kernel's workers writes instead. Asked once per descriptor number; if that is
/// reused for something else, only the detour is wrong.
fn write_flags(terminals: &mut Vec<Option<bool>>, fd: RawFd) -> squeue::Flags {
    let Ok(index) = usize::try_from(fd) else { return squeue::Flags::empty() };
    if index >= DESCRIPTORS_KNOWN_MAX {
        return squeue::Flags::empty();
    }
    if index >= terminals.len() {
        terminals.resize(index + 1, None);
    }
    match *terminals[index].get_or_insert_with(|| is_terminal(fd)) {
        true => squeue::Flags::ASYNC,
        false => squeue::Flags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::waker::WakeListener;

    #[test]
    fn names_of_slots_survive_the_way_through_the_kernel() {
        let purposes = [Purpose::Work, Purpose::Cancel, Purpose::Wake, Purpose::CancelWritable];
        for purpose in purposes {
            for handle in [NOBODY, Handle { index: (1 << 24) - 1, generation: u32::MAX }] {
                assert_eq!(parse_user_data(user_data(purpose, handle)), Some((purpose, handle)));
            }
        }
        assert_eq!(parse_user_data(u64::MAX), None);
    }

    /// What the table would push next: the opcode and its name.
    fn push(table: &mut Table) -> (u8, u64) {
        let (purpose, handle) = table.owed.pop_front().expect("something is owed");
        let entry = table.entry(purpose, handle).expect("its slot lives");
        assert!(table.owed.is_empty());
        (entry.get_opcode() as u8, entry.get_user_data())
    }

    fn table_with_a_read() -> Table {
        let mut table = Table::new(2);
        let buffer = Buffer::zeroed(8);
        table.submit(Operation::Read { token: 1, fd: 0, buffer }).unwrap();
        table
    }

    #[test]
    fn a_read_that_is_not_ready_waits_for_readiness_and_is_made_again() {
        // Recent kernels wait by themselves, so nobody sees this there.
        let mut table = table_with_a_read();
        let (opcode, name) = push(&mut table);
        assert_eq!(opcode, opcode::Read::CODE);
        table.on_answer(name, -libc::EAGAIN);
        assert_eq!(push(&mut table), (opcode::PollAdd::CODE, name));
        table.on_answer(name, i32::from(libc::POLLIN));
        assert_eq!(push(&mut table), (opcode::Read::CODE, name));
        table.on_answer(name, -libc::EINTR);
        assert_eq!(push(&mut table), (opcode::Read::CODE, name));
        assert!(table.ready.is_empty());
        table.on_answer(name, 3);
        assert_eq!(table.ready.pop_front().unwrap().result, Ok(3));
        assert_eq!(table.counters.retried_count, 2);
    }

    #[test]
    fn a_message_that_is_refused_rings_at_the_door_instead() {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        for (answer, stays) in [(0, true), (-libc::EOVERFLOW, true), (-libc::EINVAL, false)] {
            let mut table = Table::new(2);
            let sleeper = WakeListener::with_ring(Some(null())).unwrap();
            assert!(sleeper.try_block());
            assert!(sleeper.waker().notify() && table.ring(&sleeper.waker()));
            let (opcode, name) = push(&mut table);
            assert_eq!(opcode, opcode::MsgRingData::CODE);
            table.on_answer(name, answer);
            assert_eq!(is_readable(sleeper.doorbell_fd()), answer != 0);
            assert_eq!(table.rung.count(), 0);
            assert_eq!(table.ring(&sleeper.waker()), stays);
            table.on_answer(name, answer); // Once more: nobody's.
            assert_eq!(table.counters.stale_count, 1);
        }
        let mut table = Table::new(2);
        let without = WakeListener::with_doorbell().unwrap();
        assert!(!table.ring(&without.waker())); // A reactor without an io_uring.
    }

    fn is_readable(fd: RawFd) -> bool {
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry, to be read and written during the call.
        let ready_count = unsafe { libc::poll(&mut entry, 1, 0) };
        ready_count == 1
    }

    #[test]
    fn whatever_ends_a_cancelled_read_without_bytes_is_a_cancel() {
        for answer in [-libc::ECANCELED, -libc::EINTR, -libc::EAGAIN] {
            let mut table = table_with_a_read();
            let (_, name) = push(&mut table);
            table.cancel(|_| true);
            let (opcode, cancel_name) = push(&mut table);
            assert_eq!(opcode, opcode::AsyncCancel::CODE);
            table.on_answer(cancel_name, -libc::ENOENT); // Not found, not answered: again.
            assert_eq!(push(&mut table), (opcode, cancel_name));
            table.on_answer(name, answer);
            table.on_answer(cancel_name, -libc::ENOENT); // Not found, because it is over.
            assert!(table.owed.is_empty());
            assert_eq!(table.ready.pop_front().unwrap().result, Err(IoError::CANCELLED));
        }
    }
}
