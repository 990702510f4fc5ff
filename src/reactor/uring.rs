//! The backend over io_uring.
//!
//! Submitting fills an entry in shared memory. `poll` enters the kernel only if there are entries
//! to push or a flag says that completions wait inside; else it costs a few loads. `wait` pushes,
//! waits and times out in one system call. Wake-ups arrive through a read of the doorbell's
//! eventfd that is always in flight while the thread blocks.
//!
//! Owned by one shard thread. Absent: a promise that the kernel answers once and in time: every
//! answer names slot, generation and purpose, and is checked. Invariants:
//! - U1 an in-flight slot has exactly one entry with the kernel, or stands in `owed`.
//! - U2 nobody touches the buffer of a slot until the answer to its entry.
//! - U3 the completion queue has room for an answer and a cancel of every slot; should it
//!   overflow anyhow, the kernel keeps the rest (NODROP) and a flag makes the next poll fetch it.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};

use crate::base::{Handle, Instant, Pool};
use crate::limits::{
    DESCRIPTORS_KNOWN_MAX, REACTOR_DROP_ROUND, REACTOR_DROP_ROUNDS_MAX, URING_SUBMISSIONS,
};
use crate::reactor::operation::{Request, Transfer};
use crate::reactor::transfer::is_terminal;
use crate::reactor::uring_setup::make_ring;
use crate::reactor::waker::WakeListener;
use crate::reactor::{
    Buffer, Clock, Completion, Counters, IoError, Operation, Reactor, SubmitError, Waker, thread,
};

pub use crate::reactor::uring_setup::{Flavor, UringError};

/// What an entry is for; with slot and generation it makes the 64 bits that come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The read, the write, or the wait for readiness before it.
    Work = 0,
    /// The cancel of that.
    Cancel = 1,
    /// The doorbell.
    Wake = 2,
}

const PURPOSE_SHIFT: u32 = 24;

fn user_data(purpose: Purpose, handle: Handle) -> u64 {
    assert!(handle.index < 1 << PURPOSE_SHIFT);
    let low = (purpose as u32) << PURPOSE_SHIFT | handle.index;
    u64::from(handle.generation) << 32 | u64::from(low)
}

fn parse_user_data(bits: u64) -> Option<(Purpose, Handle)> {
    let (low, generation) = (bits as u32, (bits >> 32) as u32);
    let purpose = match low >> PURPOSE_SHIFT {
        0 => Purpose::Work,
        1 => Purpose::Cancel,
        2 => Purpose::Wake,
        _ => return None,
    };
    Some((purpose, Handle { index: low & ((1 << PURPOSE_SHIFT) - 1), generation }))
}

const NOBODY: Handle = Handle { index: 0, generation: 0 };

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

struct Slot {
    request: Request,
    phase: Phase,
    /// The next entry is a poll, not the transfer.
    needs_readiness: bool,
    is_cancelled: bool,
}

/// [`Reactor`] over io_uring.
pub struct UringReactor {
    ring: IoUring,
    flavor: Flavor,
    table: Table,
    listener: WakeListener,
    one_thread: PhantomData<*mut ()>,
}

/// Everything but the ring.
struct Table {
    slots: Pool<Slot>,
    /// Slots with an entry to push: at most one mention each for work, one for its cancel.
    owed: VecDeque<(Purpose, Handle)>,
    ready: VecDeque<Completion>,
    counters: Counters,
    /// By descriptor: what was found when it was first written to.
    terminals: Vec<Option<bool>>,
    wake_buffer: Buffer,
    is_wake_armed: bool,
}

impl UringReactor {
    /// A reactor that holds `operations_max` operations.
    ///
    /// # Errors
    /// [`UringError`]: use the other backend.
    pub fn new(operations_max: u32) -> Result<UringReactor, UringError> {
        // Work, cancel and the doorbell: U3.
        let completions = (2 * operations_max + 1).next_power_of_two();
        let submissions = URING_SUBMISSIONS.min(operations_max.next_power_of_two());
        UringReactor::with_queues(operations_max, submissions, completions)
    }

    fn with_queues(
        operations_max: u32,
        submissions: u32,
        completions: u32,
    ) -> Result<UringReactor, UringError> {
        assert!(operations_max > 0);
        assert!(operations_max < 1 << PURPOSE_SHIFT);
        let listener = WakeListener::with_doorbell().map_err(UringError::Other)?;
        let (ring, flavor) = make_ring(submissions, completions)?;
        thread::block_sigpipe();
        let capacity = operations_max as usize;
        let table = Table {
            slots: Pool::new(operations_max),
            owed: VecDeque::with_capacity(2 * capacity),
            ready: VecDeque::with_capacity(capacity),
            counters: Counters::default(),
            terminals: Vec::new(),
            wake_buffer: Buffer::zeroed(8),
            is_wake_armed: false,
        };
        Ok(UringReactor { ring, flavor, table, listener, one_thread: PhantomData })
    }

    /// What this kernel granted.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Pushes what is owed, as far as the queue has room.
    fn push_owed(&mut self) {
        let mut queue = self.ring.submission();
        while !queue.is_full() {
            let Some((purpose, handle)) = self.table.owed.pop_front() else { return };
            let Some(entry) = self.table.entry(purpose, handle) else { continue };
            // SAFETY: the entry points into the buffer of a slot, which keeps it unmoved in memory
            // and untouched until the answer to this very entry (U2); drop waits for it.
            unsafe { queue.push(&entry) }.expect("not full");
        }
    }

    fn arm_doorbell(&mut self) {
        if self.table.is_wake_armed {
            return;
        }
        let target = self.table.wake_buffer.address();
        let entry = opcode::Read::new(types::Fd(self.listener.doorbell_fd()), target, 8)
            .build()
            .user_data(user_data(Purpose::Wake, NOBODY));
        // SAFETY: the eight bytes live in the table, untouched until the answer; drop waits for it.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // A full queue is emptied by the enter that follows, which then does not block.
        self.table.is_wake_armed = pushed.is_ok();
    }

    /// Enters the kernel: pushes what is queued, waits for one completion if `timeout` says so.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) {
        self.table.counters.entered_count += 1;
        let submitter = self.ring.submitter();
        let result = match timeout {
            None => submitter.submit_and_wait(want),
            Some(timeout) => {
                let timespec = types::Timespec::from(timeout);
                submitter.submit_with_args(want, &types::SubmitArgs::new().timespec(&timespec))
            }
        };
        match result.map_err(|error| error.raw_os_error()) {
            Ok(_) => {}
            // The time is over, or a signal came, or the kernel wants completions reaped first,
            // or has no memory at this moment: the caller looks at what is there and goes on.
            Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(code) => panic!("io_uring_enter refused our own arguments: errno {code:?}"),
        }
    }

    /// Takes the kernel's answers.
    #[inline]
    fn reap(&mut self) {
        for entry in self.ring.completion() {
            self.table.on_answer(entry.user_data(), entry.result());
        }
    }

    /// Pushes, fetches and reaps without blocking; enters the kernel only if there is a reason.
    #[inline]
    fn look(&mut self) {
        if !self.table.owed.is_empty() {
            self.push_owed();
        }
        let queue = self.ring.submission();
        let overflowed = queue.cq_overflow();
        let has_reason = !queue.is_empty() || queue.taskrun() || overflowed;
        drop(queue);
        if overflowed {
            self.table.counters.overflow_count += 1;
            self.reap(); // Makes room for what the kernel holds back.
        }
        if has_reason {
            self.enter(0, None);
        }
        self.reap();
    }

    fn has_event(&self) -> bool {
        !self.table.ready.is_empty() || self.listener.is_notified()
    }

    /// One system call: push, wait, time out.
    fn block(&mut self, timeout: Option<Duration>) {
        self.push_owed();
        self.arm_doorbell();
        let can_block = self.table.is_wake_armed && self.table.owed.is_empty();
        if can_block {
            self.table.counters.blocked_count += 1;
        }
        self.enter(usize::from(can_block), timeout);
        self.reap();
    }
}

impl Reactor for UringReactor {
    fn now(&mut self) -> Instant {
        Clock::now()
    }

    fn wall_us(&mut self) -> u64 {
        Clock::wall_us()
    }

    fn waker(&self) -> Waker {
        self.listener.waker()
    }

    fn submit(&mut self, operation: Operation) -> Result<(), SubmitError> {
        self.table.submit(operation)
    }

    #[inline]
    fn poll(&mut self) -> usize {
        self.look();
        let woken = self.listener.take();
        self.table.counters.woken_count += u64::from(woken);
        self.table.ready.len() + usize::from(woken)
    }

    fn wait(&mut self, until: Option<Instant>) {
        let until = until.filter(|until| *until != Instant::FAR);
        if self.has_event() {
            return;
        }
        loop {
            let timeout = until.map(|until| until.since(Clock::now()));
            if timeout == Some(Duration::ZERO) {
                self.look();
                return;
            }
            if !self.listener.try_block() {
                return;
            }
            self.block(timeout);
            self.listener.unblock();
            if self.has_event() {
                return;
            }
        }
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.table.ready.pop_front()
    }

    fn operation_count(&self) -> usize {
        self.table.slots.count() as usize + self.table.ready.len()
    }

    fn counters(&self) -> &Counters {
        &self.table.counters
    }
}

impl Table {
    fn submit(&mut self, operation: Operation) -> Result<(), SubmitError> {
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

    fn cancel(&mut self, is_meant: impl Fn(&Slot) -> bool) {
        for index in 0..self.slots.capacity() {
            let Some(slot) = self.slots.at_mut(index) else { continue };
            if slot.is_cancelled || !is_meant(slot) {
                continue;
            }
            slot.is_cancelled = true;
            let is_owed = slot.phase == Phase::Owed;
            let handle = self.slots.handle_at(index).expect("the slot is taken");
            if is_owed {
                self.owed.retain(|(_, owed)| *owed != handle);
                self.finish(handle, Err(IoError::CANCELLED));
            } else {
                self.owed.push_back((Purpose::Cancel, handle));
            }
        }
    }

    fn finish(&mut self, handle: Handle, result: Result<u32, IoError>) {
        let slot = self.slots.remove(handle).expect("finished once");
        self.counters.count_completion(result);
        self.ready.push_back(slot.request.into_completion(result));
    }

    /// The entry that is owed; None if the operation is over.
    fn entry(&mut self, purpose: Purpose, handle: Handle) -> Option<squeue::Entry> {
        let slot = self.slots.get_mut(handle)?;
        let bits = user_data(purpose, handle);
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
    fn on_answer(&mut self, bits: u64, result: i32) {
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

impl Drop for UringReactor {
    /// R12. The kernel writes into our buffers until it has answered, so it is asked to stop and
    /// waited for. A write to the doorbell ends the read of it without a cancel.
    fn drop(&mut self) {
        self.table.cancel(|_| true);
        if self.table.is_wake_armed {
            self.listener.ring();
        }
        for _ in 0..REACTOR_DROP_ROUNDS_MAX {
            if self.table.slots.count() == 0 && !self.table.is_wake_armed {
                return;
            }
            self.push_owed();
            self.enter(1, Some(REACTOR_DROP_ROUND));
            self.reap();
        }
        // The kernel keeps what it has, so it must never be freed.
        std::mem::forget(std::mem::replace(&mut self.table.slots, Pool::new(0)));
        std::mem::forget(std::mem::replace(&mut self.table.wake_buffer, Buffer::zeroed(0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn reactor(operations_max: u32, submissions: u32, completions: u32) -> Option<UringReactor> {
        match UringReactor::with_queues(operations_max, submissions, completions) {
            Ok(reactor) => Some(reactor),
            Err(error) => {
                println!("not run: {error}");
                None
            }
        }
    }

    fn read_zeros(reactor: &mut UringReactor, file: &File, count: u64) {
        for token in 0..count {
            let buffer = Buffer::zeroed(16);
            reactor.submit(Operation::Read { token, fd: file.as_raw_fd(), buffer }).unwrap();
        }
    }

    #[test]
    fn names_of_slots_survive_the_way_through_the_kernel() {
        for purpose in [Purpose::Work, Purpose::Cancel, Purpose::Wake] {
            for handle in [NOBODY, Handle { index: (1 << 24) - 1, generation: u32::MAX }] {
                assert_eq!(parse_user_data(user_data(purpose, handle)), Some((purpose, handle)));
            }
        }
        assert_eq!(parse_user_data(u64::MAX), None);
    }

    #[test]
    fn a_completion_queue_that_overflows_loses_nothing() {
        let Some(mut reactor) = reactor(64, 8, 8) else { return };
        let zero = File::open("/dev/zero").unwrap();
        read_zeros(&mut reactor, &zero, 64);
        let mut seen = [false; 64];
        for _ in 0..64 {
            reactor.wait(None);
            let completion = reactor.next_completion().unwrap();
            assert_eq!(completion.result, Ok(16));
            let seen = &mut seen[completion.token as usize];
            assert!(!std::mem::replace(seen, true));
        }
        assert!(reactor.next_completion().is_none());
    }

    #[test]
    fn an_answer_that_belongs_to_nobody_is_counted_and_dropped() {
        let Some(mut reactor) = reactor(4, 4, 8) else { return };
        let zero = File::open("/dev/zero").unwrap();
        read_zeros(&mut reactor, &zero, 1);
        let handle = reactor.table.slots.handle_at(0).unwrap();
        reactor.wait(None);
        assert!(reactor.next_completion().is_some());
        read_zeros(&mut reactor, &zero, 1); // The same slot, the next generation.
        reactor.look();
        reactor.table.on_answer(user_data(Purpose::Work, handle), 5);
        reactor.table.on_answer(u64::MAX, 5);
        assert_eq!(reactor.counters().stale_count, 2);
        reactor.wait(None);
        assert_eq!(reactor.next_completion().unwrap().result, Ok(16));
        assert!(reactor.next_completion().is_none());
    }

    #[test]
    fn an_idle_poll_does_not_enter_the_kernel() {
        let Some(mut reactor) = reactor(4, 4, 8) else { return };
        let waker = reactor.waker();
        let before = reactor.counters().entered_count;
        for _ in 0..1_000 {
            assert_eq!(reactor.poll(), 0);
            waker.wake();
            assert_eq!(reactor.poll(), 1);
        }
        assert_eq!(reactor.counters().entered_count, before);
    }
}
