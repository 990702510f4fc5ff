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

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, opcode, types};

use crate::base::{Instant, Pool};
use crate::limits::{
    REACTOR_DROP_ROUND, REACTOR_DROP_ROUNDS_MAX, URING_MESSAGES_MAX, URING_SUBMISSIONS,
};
use crate::reactor::uring_buffers::ReceiveBuffers;
use crate::reactor::uring_net::UringNet;
use crate::reactor::uring_setup::{make_ring, prove_receive};
use crate::reactor::uring_table::{
    NOBODY, PURPOSE_SHIFT, Purpose, Table, parse_user_data, user_data,
};
use crate::reactor::waker::WakeListener;
use crate::reactor::{
    Buffer, Clock, Completion, Counters, Net, Operation, Reactor, SocketCounters, SocketLimits,
    SubmitError, Waker, thread,
};

pub use crate::reactor::uring_setup::{Flavor, UringError};

/// [`Reactor`] over io_uring.
pub struct UringReactor {
    ring: IoUring,
    flavor: Flavor,
    /// The kernel knows [`EnterFlags::NO_IOWAIT`] (Linux 6.15).
    can_skip_iowait: bool,
    table: Table,
    /// None until sockets are asked for.
    net: Option<Box<UringNet>>,
    listener: WakeListener,
    one_thread: PhantomData<*mut ()>,
}

impl UringReactor {
    /// A reactor that holds `operations_max` operations.
    ///
    /// # Errors
    /// [`UringError`]: use the other backend.
    pub fn new(operations_max: u32) -> Result<UringReactor, UringError> {
        // Work, cancel, the doorbell and messages to others: U3.
        let completions = (2 * operations_max + 1 + URING_MESSAGES_MAX).next_power_of_two();
        let submissions = URING_SUBMISSIONS.min(operations_max.next_power_of_two());
        let flavors = &Flavor::BEST_FIRST;
        UringReactor::with_queues(operations_max, submissions, completions, flavors)
    }

    pub(super) fn with_queues(
        operations_max: u32,
        submissions: u32,
        completions: u32,
        flavors: &[Flavor],
    ) -> Result<UringReactor, UringError> {
        assert!(operations_max > 0);
        assert!(operations_max < 1 << PURPOSE_SHIFT);
        let (ring, flavor) = make_ring(submissions, completions, flavors)?;
        let listener = share(&ring).and_then(|ring| WakeListener::with_ring(Some(ring)));
        let listener = listener.map_err(UringError::Other)?;
        thread::block_sigpipe();
        let table = Table::new(operations_max);
        let can_skip_iowait = ring.params().is_feature_no_iowait();
        let (net, one_thread) = (None, PhantomData);
        Ok(UringReactor { ring, flavor, can_skip_iowait, table, net, listener, one_thread })
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
            // and untouched until the answer to this very entry (U2); drop waits for it. Or it is
            // a message, which points to nothing.
            unsafe { queue.push(&entry) }.expect("not full");
        }
    }

    /// As above, of sockets.
    fn push_owed_of_sockets(&mut self) {
        let Some(net) = &mut self.net else { return };
        let mut queue = self.ring.submission();
        while !queue.is_full() {
            let Some((purpose, handle)) = net.owed.pop_front() else { return };
            let Some(entry) = net.entry(purpose, handle) else { continue };
            // SAFETY: these entries point to no memory but the registered receive buffers, and
            // their descriptors stay open until the answer (N2 of `uring_net.rs`).
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
        if self.ring.submission().cq_overflow() {
            self.table.counters.overflow_count += 1;
            self.reap(); // Makes room for what the kernel holds back; this call fetches it.
        }
        let result = self.enter_kernel(want, timeout);
        match result.map_err(|error| error.raw_os_error()) {
            Ok(_) => {}
            // The time is over, or a signal came, or the kernel wants completions reaped first,
            // or has no memory at this moment: the caller looks at what is there and goes on.
            Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(code) => panic!("io_uring_enter refused our own arguments: errno {code:?}"),
        }
    }

    /// The system call, with the flags of [`enter_flags`]: the library's own functions cannot be
    /// told of [`EnterFlags::NO_IOWAIT`].
    fn enter_kernel(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<usize> {
        let queue = self.ring.submission();
        let has_events = want > 0 || queue.cq_overflow() || queue.taskrun();
        let submission_count = queue.len() as u32;
        drop(queue); // Shows the kernel what is queued.
        let flags = enter_flags(self.can_skip_iowait, has_events, timeout.is_some());
        let timespec = timeout.map(types::Timespec::from);
        let arguments = timespec.as_ref().map(|time| types::SubmitArgs::new().timespec(time));
        let submitter = self.ring.submitter();
        // SAFETY: the flags say what the argument is: EXT_ARG exactly if there is one, which points
        // to a time that outlives the call. Entries were checked when they were pushed.
        unsafe { submitter.enter(submission_count, want as u32, flags.bits(), arguments.as_ref()) }
    }

    /// Takes the kernel's answers.
    #[inline]
    fn reap(&mut self) {
        for entry in self.ring.completion() {
            let bits = entry.user_data();
            if let Some(net) = &mut self.net
                && let Some((purpose, handle)) = parse_user_data(bits)
                && purpose.is_of_socket()
            {
                let answer = (entry.result(), entry.flags());
                net.on_answer(purpose, handle, answer, &mut self.table.counters.sockets);
            } else {
                self.table.on_answer(bits, entry.result());
            }
        }
    }

    /// Sockets' part of a look.
    #[inline]
    fn look_at_sockets(&mut self) {
        if let Some(net) = &mut self.net {
            net.retry();
            if !net.owed.is_empty() {
                self.push_owed_of_sockets();
            }
        }
    }

    /// Pushes, fetches and reaps without blocking; enters the kernel only if there is a reason.
    #[inline]
    fn look(&mut self) {
        if !self.table.owed.is_empty() {
            self.push_owed();
        }
        self.look_at_sockets();
        let queue = self.ring.submission();
        let has_reason = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if has_reason {
            self.enter(0, None);
        }
        self.reap();
    }

    fn has_event(&self) -> bool {
        !self.table.ready.is_empty() || self.listener.is_notified() || self.socket_count() > 0
    }

    /// Events of sockets that wait to be taken.
    #[inline]
    fn socket_count(&self) -> usize {
        self.net.as_ref().map_or(0, |net| net.event_count())
    }

    /// Whether all that the kernel is to be told fits into the next system call.
    fn is_told(&self) -> bool {
        self.table.owed.is_empty() && self.net.as_ref().is_none_or(|net| net.owed.is_empty())
    }

    /// One system call: push, wait, time out.
    fn block(&mut self, timeout: Option<Duration>) {
        self.push_owed();
        self.look_at_sockets();
        self.arm_doorbell();
        let can_block = self.table.is_wake_armed && self.is_told() && self.socket_count() == 0;
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

    fn wake(&mut self, waker: &Waker) {
        if waker.notify() && !self.table.ring(waker) {
            waker.ring();
        }
    }

    fn submit(&mut self, operation: Operation) -> Result<(), SubmitError> {
        self.table.submit(operation)
    }

    #[inline]
    fn poll(&mut self) -> usize {
        self.look();
        let woken = self.listener.take();
        self.table.counters.woken_count += u64::from(woken);
        self.table.ready.len() + self.socket_count() + usize::from(woken)
    }

    fn wait(&mut self, until: Option<Instant>) {
        let until = until.filter(|until| *until != Instant::FAR);
        if self.has_event() {
            return;
        }
        loop {
            let now = Clock::now();
            if until.is_some_and(|until| until <= now) {
                self.look();
                return;
            }
            let retry_at = self.net.as_ref().and_then(|net| net.retry_at());
            let next = until.into_iter().chain(retry_at).min();
            let timeout = next.map(|next| next.since(now));
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

    fn open_sockets(&mut self, limits: SocketLimits) -> io::Result<()> {
        if self.net.is_none() {
            prove_receive()?;
            let buffers = ReceiveBuffers::register(&self.ring)?;
            self.net = Some(Box::new(UringNet::new(buffers, limits)));
        }
        Ok(())
    }

    fn net(&self) -> Option<&dyn Net> {
        Some(&**self.net.as_ref()?)
    }

    fn net_mut(&mut self) -> Option<(&mut dyn Net, &mut SocketCounters)> {
        Some((&mut **self.net.as_mut()?, &mut self.table.counters.sockets))
    }
}

impl UringReactor {
    /// Cancels everything and waits for the last answer; false if the kernel kept something. A
    /// write to the doorbell ends the read of it without a cancel.
    fn reap_all(&mut self) -> bool {
        self.table.cancel(|_| true);
        if let Some(net) = &mut self.net {
            net.close_all(&mut self.table.counters.sockets);
        }
        if self.table.is_wake_armed {
            self.listener.ring();
        }
        for _ in 0..REACTOR_DROP_ROUNDS_MAX {
            let has_sockets = self.net.as_ref().is_some_and(|net| net.is_in_use());
            if self.table.slots.count() == 0 && !self.table.is_wake_armed && !has_sockets {
                return true;
            }
            self.push_owed();
            self.push_owed_of_sockets();
            self.enter(1, Some(REACTOR_DROP_ROUND));
            self.reap();
        }
        false
    }
}

/// The flags of one way into the kernel. Deferred work is done only by one that asks for events.
///
/// An idle shard waits for wake-ups and sockets, not for a disk. Without
/// [`EnterFlags::NO_IOWAIT`] the kernel counts each such wait as I/O wait, and one idle shard alone
/// lifts `/proc/pressure/io` above 80 %.
fn enter_flags(can_skip_iowait: bool, has_events: bool, has_timeout: bool) -> EnterFlags {
    let mut flags = EnterFlags::empty();
    flags.set(EnterFlags::NO_IOWAIT, can_skip_iowait);
    flags.set(EnterFlags::GETEVENTS, has_events);
    flags.set(EnterFlags::EXT_ARG, has_timeout);
    flags
}

/// Another descriptor of the ring, for those who send messages to it: its number stays ours as long
/// as one of them is left.
fn share(ring: &IoUring) -> io::Result<OwnedFd> {
    // SAFETY: open as long as the ring, which outlives this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
    borrowed.try_clone_to_owned()
}

impl Drop for UringReactor {
    /// R12: the kernel writes into our buffers until it has answered.
    fn drop(&mut self) {
        for (_, waker) in self.table.rung.iter() {
            waker.ring(); // R25: whatever becomes of the message.
        }
        let is_reaped = self.reap_all();
        match self.net.take() {
            Some(net) if is_reaped => net.buffers.unregister(&self.ring),
            net => std::mem::forget(net),
        }
        if !is_reaped {
            std::mem::forget(std::mem::replace(&mut self.table.slots, Pool::new(0)));
            std::mem::forget(std::mem::replace(&mut self.table.wake_buffer, Buffer::zeroed(0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::IoError;
    use std::fs::File;
    use std::io::Write;

    fn reactor(operations_max: u32, submissions: u32, completions: u32) -> Option<UringReactor> {
        let flavors = &Flavor::BEST_FIRST;
        match UringReactor::with_queues(operations_max, submissions, completions, flavors) {
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
    fn a_completion_queue_that_overflows_loses_nothing() {
        let Some(mut reactor) = reactor(64, 8, 8) else { return };
        let zero = File::open("/dev/zero").unwrap();
        read_zeros(&mut reactor, &zero, 64);
        while !reactor.table.owed.is_empty() {
            reactor.push_owed();
            reactor.ring.submit().unwrap(); // And nothing is reaped.
        }
        assert!(reactor.ring.submission().cq_overflow());
        let mut seen = [false; 64];
        for _ in 0..64 {
            reactor.wait(None);
            let completion = reactor.next_completion().unwrap();
            assert_eq!(completion.result, Ok(16));
            let seen = &mut seen[completion.token as usize];
            assert!(!std::mem::replace(seen, true));
        }
        assert!(reactor.next_completion().is_none());
        assert!(reactor.counters().overflow_count > 0);
    }

    #[test]
    fn every_flavor_reads_wakes_times_out_and_cancels() {
        for flavor in Flavor::BEST_FIRST {
            let mut reactor = match UringReactor::with_queues(4, 4, 16, &[flavor]) {
                Ok(reactor) => reactor,
                Err(reason) => {
                    println!("not run: {flavor}: {reason}");
                    continue;
                }
            };
            let (reader, mut writer) = std::io::pipe().unwrap();
            let fd = reader.as_raw_fd();
            for token in [1, 2] {
                reactor.submit(Operation::Read { token, fd, buffer: Buffer::zeroed(8) }).unwrap();
            }
            let until = reactor.now() + Duration::from_millis(1);
            reactor.wait(Some(until));
            assert!(reactor.now() >= until, "{flavor}");
            assert_eq!(reactor.poll(), 0);
            let waker = reactor.waker();
            let thread = std::thread::spawn(move || waker.wake());
            reactor.wait(None);
            thread.join().unwrap();
            assert_eq!(reactor.poll(), 1);
            reactor.submit(Operation::Cancel { token: 2 }).unwrap();
            reactor.wait(None);
            assert_eq!(reactor.next_completion().unwrap().result, Err(IoError::CANCELLED));
            writer.write_all(b"spun").unwrap();
            while reactor.poll() == 0 {}
            assert_eq!(reactor.next_completion().unwrap().result, Ok(4), "{flavor}");
        }
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
    fn a_read_that_was_faster_than_its_cancel_brings_its_bytes() {
        let Some(mut reactor) = reactor(4, 4, 16) else { return };
        let (reader, mut writer) = std::io::pipe().unwrap();
        let fd = reader.as_raw_fd();
        reactor.submit(Operation::Read { token: 1, fd, buffer: Buffer::zeroed(8) }).unwrap();
        assert_eq!(reactor.poll(), 0);
        writer.write_all(b"first").unwrap();
        reactor.submit(Operation::Cancel { token: 1 }).unwrap();
        reactor.enter(0, None); // The read completes; the cancel is still owed.
        reactor.wait(None);
        let completion = reactor.next_completion().unwrap();
        assert_eq!(completion.result, Ok(5));
        assert_eq!(&completion.buffer[..5], b"first");
        assert_eq!(reactor.poll(), 0); // The kernel finds nothing to cancel, nor do we.
        assert_eq!(reactor.poll(), 0);
        assert_eq!(reactor.operation_count(), 0);
    }

    #[test]
    fn a_message_ends_a_wait_without_the_doorbell() {
        let Some(mut waking) = reactor(4, 4, 16) else { return };
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut sleeper = UringReactor::new(4).unwrap();
            tell.send(sleeper.waker()).unwrap();
            sleeper.wait(None);
            assert_eq!(sleeper.poll(), 1);
            sleeper.table.is_wake_armed
        });
        let waker = told.recv().unwrap();
        while !waker.is_blocked() {
            std::thread::yield_now();
        }
        waking.wake(&waker);
        while waking.table.rung.count() > 0 {
            waking.poll();
        }
        let is_armed = thread.join().unwrap();
        assert_eq!(waking.counters().message_count, 1);
        match waking.table.can_ring {
            true => assert!(is_armed, "the doorbell was read"),
            false => println!("not run: this kernel sends no messages between rings"),
        }
    }

    #[test]
    fn the_kernel_gives_everything_back_at_the_end() {
        let Some(mut reactor) = reactor(4, 4, 16) else { return };
        let (reader, _writer) = std::io::pipe().unwrap();
        let fd = reader.as_raw_fd();
        for token in 0..3 {
            reactor.submit(Operation::Read { token, fd, buffer: Buffer::zeroed(8) }).unwrap();
        }
        let until = reactor.now() + Duration::from_micros(100);
        reactor.wait(Some(until)); // Arms the doorbell, too.
        assert!(reactor.table.is_wake_armed);
        reactor.submit(Operation::Read { token: 3, fd, buffer: Buffer::zeroed(8) }).unwrap();
        assert!(reactor.reap_all());
        assert_eq!(reactor.counters().cancelled_count, 4);
    }

    #[test]
    fn a_wait_is_no_wait_for_a_disk_where_the_kernel_can_tell_them_apart() {
        for (has_events, has_timeout) in [(false, false), (true, false), (true, true)] {
            let flags = enter_flags(true, has_events, has_timeout);
            assert!(flags.contains(EnterFlags::NO_IOWAIT));
            assert_eq!(flags.contains(EnterFlags::GETEVENTS), has_events);
            assert_eq!(flags.contains(EnterFlags::EXT_ARG), has_timeout);
            let of_older = enter_flags(false, has_events, has_timeout);
            assert_eq!(of_older, flags.difference(EnterFlags::NO_IOWAIT));
        }
        let Some(reactor) = reactor(4, 4, 8) else { return };
        assert_eq!(reactor.can_skip_iowait, reactor.ring.params().is_feature_no_iowait());
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
