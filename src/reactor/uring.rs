//! The backend over io_uring.
//!
//! `poll` enters the kernel only to push entries, or if a flag says that completions wait inside.
//! Otherwise it costs a few loads. `wait` pushes, waits and times out in one system call. Wake-ups
//! arrive through a read of the doorbell's eventfd that is always in flight while the thread
//! blocks.
//!
//! Owned by one shard thread. Absent: the assumption that the kernel answers once and in time.
//! Every answer names index, generation and purpose, and is checked. Invariants:
//! - U1 the doorbell's word is not touched while a read of the doorbell is in flight.
//! - U2 if the completion queue overflows, the kernel keeps the rest (NODROP), and a flag makes the
//!   next poll fetch it.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, types};

use crate::base::Instant;
use crate::limits::{
    DISK_DROP_WAIT, REACTOR_DROP_ROUND, REACTOR_DROP_ROUNDS_MAX, URING_COMPLETIONS,
    URING_SUBMISSIONS,
};
use crate::reactor::uring_buffers::ReceiveBuffers;
use crate::reactor::uring_disk::UringDisk;
use crate::reactor::uring_net::UringNet;
use crate::reactor::uring_setup::{make_ring, prove_receive};
use crate::reactor::uring_wakes::{Wakes, parse_user_data};
use crate::reactor::waker::WakeListener;
use crate::reactor::{
    Clock, Counters, Disk, DiskSetup, Net, Reactor, SocketCounters, SocketLimits, Waker, thread,
};

pub use crate::reactor::uring_setup::{Flavor, UringError};

/// [`Reactor`] over io_uring.
pub struct UringReactor {
    ring: IoUring,
    flavor: Flavor,
    /// True if the kernel knows [`EnterFlags::NO_IOWAIT`] (Linux 6.15).
    can_skip_iowait: bool,
    wakes: Wakes,
    /// The sockets, or `None` until they are opened.
    net: Option<Box<UringNet>>,
    /// The disk, or `None` until it is opened.
    disk: Option<Box<UringDisk>>,
    listener: WakeListener,
    one_thread: PhantomData<*mut ()>,
}

impl UringReactor {
    /// A reactor without sockets and without a disk.
    ///
    /// # Errors
    /// [`UringError`]: use the other backend.
    pub fn new() -> Result<UringReactor, UringError> {
        UringReactor::with_queues(URING_SUBMISSIONS, URING_COMPLETIONS, &Flavor::BEST_FIRST)
    }

    pub(super) fn with_queues(
        submissions: u32,
        completions: u32,
        flavors: &[Flavor],
    ) -> Result<UringReactor, UringError> {
        let (ring, flavor) = make_ring(submissions, completions, flavors)?;
        let listener = share(&ring).and_then(|ring| WakeListener::with_ring(Some(ring)));
        let listener = listener.map_err(UringError::Other)?;
        thread::block_sigpipe();
        let wakes = Wakes::new();
        let can_skip_iowait = ring.params().is_feature_no_iowait();
        Ok(UringReactor {
            ring,
            flavor,
            can_skip_iowait,
            wakes,
            net: None,
            disk: None,
            listener,
            one_thread: PhantomData,
        })
    }

    /// The flags that this kernel granted.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// Pushes the owed messages, as far as the queue has room.
    fn push_owed(&mut self) {
        let mut queue = self.ring.submission();
        while !queue.is_full() {
            let Some(handle) = self.wakes.owed.pop_front() else { return };
            let Some(entry) = self.wakes.entry(handle) else { continue };
            // SAFETY: a message points to no memory.
            unsafe { queue.push(&entry) }.expect("not full");
        }
    }

    /// Pushes the entries that sockets owe, as far as the queue has room.
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

    /// Pushes the entries that the disk owes, as far as the queue has room.
    fn push_owed_of_disk(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        let mut queue = self.ring.submission();
        while !queue.is_full() {
            let Some(entry) = disk.next_entry() else { return };
            // SAFETY: the flight keeps the buffer and the file where they are until the answer (K1
            // of `uring_disk.rs`); drop waits for it, or leaks both.
            unsafe { queue.push(&entry) }.expect("it is not full");
        }
    }

    fn arm_doorbell(&mut self) {
        if self.wakes.is_armed {
            return;
        }
        let entry = self.wakes.read_of_doorbell(self.listener.doorbell_fd());
        // SAFETY: the eight bytes stay where they are until the answer; drop waits for it (U1).
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // The following enter empties a full queue, and does not block then.
        self.wakes.is_armed = pushed.is_ok();
    }

    /// Enters the kernel: pushes the queued entries, and waits for `want` completions until
    /// `timeout`.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) {
        self.wakes.counters.entered_count += 1;
        if self.ring.submission().cq_overflow() {
            self.wakes.counters.overflow_count += 1;
            self.reap(); // Makes room for what the kernel holds back; this call fetches it.
        }
        let result = self.enter_kernel(want, timeout);
        match result.map_err(|error| error.raw_os_error()) {
            Ok(_) => {}
            // The time is over, or a signal came, or the kernel wants completions reaped first, or
            // has no memory at this moment. The caller takes the answers that are there and goes
            // on.
            Err(Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
            Err(code) => panic!("io_uring_enter refused our own arguments: errno {code:?}"),
        }
    }

    /// Makes the system call, with the flags of [`enter_flags`]. The library's own functions do not
    /// take [`EnterFlags::NO_IOWAIT`].
    fn enter_kernel(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<usize> {
        let queue = self.ring.submission();
        let has_events = want > 0 || queue.cq_overflow() || queue.taskrun();
        let submission_count = queue.len() as u32;
        drop(queue); // Shows the queued entries to the kernel.
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
            let (bits, result) = (entry.user_data(), entry.result());
            let named = parse_user_data(bits);
            if let Some(net) = &mut self.net
                && let Some((purpose, handle)) = named
                && purpose.is_of_socket()
            {
                let answer = (result, entry.flags());
                net.on_answer(purpose, handle, answer, &mut self.wakes.counters.sockets);
            } else if let Some(disk) = &mut self.disk
                && let Some((purpose, handle)) = named
                && purpose.is_of_disk()
            {
                let is_known = disk.on_answer(purpose, handle, result);
                self.wakes.counters.stale_count += u64::from(!is_known);
            } else {
                self.wakes.on_answer(bits, result);
            }
        }
    }

    /// The part of a look that is for sockets and for the disk.
    #[inline]
    fn look_at_parts(&mut self) {
        if let Some(net) = &mut self.net {
            net.retry();
            if !net.owed.is_empty() {
                self.push_owed_of_sockets();
            }
        }
        if self.disk.as_ref().is_some_and(|disk| disk.is_owing()) {
            self.push_owed_of_disk();
        }
    }

    /// Pushes, fetches and reaps without blocking; enters the kernel only if there is a reason.
    #[inline]
    fn look(&mut self) {
        if !self.wakes.owed.is_empty() {
            self.push_owed();
        }
        self.look_at_parts();
        let queue = self.ring.submission();
        let has_reason = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if has_reason {
            self.enter(0, None);
        }
        self.reap();
    }

    fn has_event(&self) -> bool {
        self.listener.is_notified() || self.event_count() > 0
    }

    /// Number of events that wait to be taken.
    #[inline]
    fn event_count(&self) -> usize {
        self.socket_count() + self.disk.as_ref().map_or(0, |disk| disk.event_count())
    }

    /// Number of socket events that wait to be taken.
    #[inline]
    fn socket_count(&self) -> usize {
        self.net.as_ref().map_or(0, |net| net.event_count())
    }

    /// True if all owed entries fit into the next system call.
    fn is_told(&self) -> bool {
        self.wakes.owed.is_empty()
            && self.net.as_ref().is_none_or(|net| net.owed.is_empty())
            && self.disk.as_ref().is_none_or(|disk| !disk.is_owing())
    }

    /// One system call: push, wait, time out.
    fn block(&mut self, timeout: Option<Duration>) {
        self.push_owed();
        self.look_at_parts();
        self.arm_doorbell();
        let can_block = self.wakes.is_armed && self.is_told() && self.event_count() == 0;
        if can_block {
            self.wakes.counters.blocked_count += 1;
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
        if waker.notify() && !self.wakes.ring(waker) {
            waker.ring();
        }
    }

    #[inline]
    fn poll(&mut self) -> usize {
        self.look();
        let woken = self.listener.take();
        self.wakes.counters.woken_count += u64::from(woken);
        if woken && let Some(disk) = &mut self.disk {
            disk.collect();
        }
        self.event_count() + usize::from(woken)
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

    fn counters(&self) -> &Counters {
        &self.wakes.counters
    }

    fn may_have_news(&mut self) -> bool {
        let queue = self.ring.submission();
        let may_fetch = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        may_fetch || !self.ring.completion().is_empty() || self.has_event()
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
        Some((&mut **self.net.as_mut()?, &mut self.wakes.counters.sockets))
    }

    fn open_disk(&mut self, setup: DiskSetup) -> io::Result<()> {
        setup.check(self.disk.is_some())?;
        self.disk = Some(Box::new(UringDisk::open(setup, self.listener.waker())?));
        Ok(())
    }

    fn disk_mut(&mut self) -> Option<&mut dyn Disk> {
        Some(&mut **self.disk.as_mut()?)
    }
}

impl UringReactor {
    /// Lets the operations of the disk end, for up to [`DISK_DROP_WAIT`]. Returns false if the
    /// kernel kept something.
    fn finish_disk(&mut self) -> bool {
        let until = Clock::now() + DISK_DROP_WAIT;
        while self.disk.as_ref().is_some_and(|disk| disk.is_in_use()) {
            if Clock::now() >= until {
                return false;
            }
            self.push_owed_of_disk();
            self.enter(1, Some(REACTOR_DROP_ROUND));
            self.reap();
        }
        true
    }

    /// Cancels all else and waits for the last answer. Returns false if the kernel kept
    /// something. A write to the doorbell ends the read of it without a cancel.
    fn reap_all(&mut self) -> bool {
        if let Some(net) = &mut self.net {
            net.close_all(&mut self.wakes.counters.sockets);
        }
        if self.wakes.is_armed {
            self.listener.ring();
        }
        for _ in 0..REACTOR_DROP_ROUNDS_MAX {
            let has_sockets = self.net.as_ref().is_some_and(|net| net.is_in_use());
            if !self.wakes.is_armed && !has_sockets {
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

/// The flags of one `io_uring_enter`. The kernel runs deferred work only if the call asks for
/// events.
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

/// Another descriptor of the ring, for reactors that send messages to it. The ring's number stays
/// ours as long as one such descriptor is open.
fn share(ring: &IoUring) -> io::Result<OwnedFd> {
    // SAFETY: open as long as the ring, which outlives this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
    borrowed.try_clone_to_owned()
}

impl Drop for UringReactor {
    /// The kernel writes into our memory until it has answered (R12).
    fn drop(&mut self) {
        for (_, waker) in self.wakes.rung.iter() {
            waker.ring(); // R25: regardless of the message.
        }
        if self.finish_disk() {
            self.disk = None; // Waits for the keeper, too.
        } else {
            std::mem::forget(self.disk.take());
        }
        let is_reaped = self.reap_all();
        match self.net.take() {
            Some(net) if is_reaped => net.buffers.unregister(&self.ring),
            net => std::mem::forget(net),
        }
        if !is_reaped {
            std::mem::forget(self.wakes.word.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::reactor::uring_wakes::{NOBODY, Purpose, user_data};
    use crate::reactor::{HalfConnection, ReleasedSocket, SocketEvent};

    fn reactor(submissions: u32, completions: u32) -> Option<UringReactor> {
        match UringReactor::with_queues(submissions, completions, &Flavor::BEST_FIRST) {
            Ok(reactor) => Some(reactor),
            Err(error) => {
                println!("not run: {error}");
                None
            }
        }
    }

    /// A connection that receives from a socket, and the other ends of both directions.
    fn adopt(reactor: &mut UringReactor) -> [UnixStream; 2] {
        let ((input, writer), (output, reader)) =
            (HalfConnection::pair().unwrap(), HalfConnection::pair().unwrap());
        reactor.adopt(ReleasedSocket::of_ends(input, output)).unwrap();
        [writer, reader]
    }

    fn receive(reactor: &mut UringReactor) -> Vec<u8> {
        loop {
            reactor.poll();
            match reactor.next_socket_event() {
                Some(SocketEvent::Received { bytes, .. }) => return bytes.to_vec(),
                Some(other) => panic!("{other:?}"),
                None => reactor.wait(None),
            }
        }
    }

    #[test]
    fn a_completion_queue_that_overflows_loses_nothing() {
        const CONNECTIONS: usize = 32;
        let Some(mut reactor) = reactor(8, 8) else { return };
        let mut far: Vec<_> = (0..CONNECTIONS).map(|_| adopt(&mut reactor)).collect();
        while reactor.net.as_ref().is_some_and(|net| !net.owed.is_empty()) {
            reactor.push_owed_of_sockets();
            reactor.ring.submit().unwrap();
        }
        for (number, [writer, _]) in far.iter_mut().enumerate() {
            writer.write_all(&[number as u8]).unwrap();
        }
        reactor.enter_kernel(0, None).unwrap(); // Nothing is reaped.
        assert!(reactor.ring.submission().cq_overflow());
        let mut seen = [false; CONNECTIONS];
        for _ in 0..CONNECTIONS {
            let bytes = receive(&mut reactor);
            assert_eq!(bytes.len(), 1);
            assert!(!std::mem::replace(&mut seen[usize::from(bytes[0])], true));
        }
        assert!(reactor.counters().overflow_count > 0);
    }

    #[test]
    fn every_flavor_receives_wakes_and_times_out() {
        for flavor in Flavor::BEST_FIRST {
            let mut reactor = match UringReactor::with_queues(4, 16, &[flavor]) {
                Ok(reactor) => reactor,
                Err(reason) => {
                    println!("not run: {flavor}: {reason}");
                    continue;
                }
            };
            let [mut writer, _reader] = adopt(&mut reactor);
            let until = reactor.now() + Duration::from_millis(1);
            reactor.wait(Some(until));
            assert!(reactor.now() >= until, "{flavor}");
            assert_eq!(reactor.poll(), 0);
            let waker = reactor.waker();
            let thread = std::thread::spawn(move || waker.wake());
            reactor.wait(None);
            thread.join().unwrap();
            assert_eq!(reactor.poll(), 1);
            writer.write_all(b"spun").unwrap();
            while reactor.poll() == 0 {}
            assert_eq!(receive(&mut reactor), b"spun", "{flavor}");
        }
    }

    #[test]
    fn an_answer_that_belongs_to_nobody_is_counted_and_dropped() {
        let Some(mut reactor) = reactor(4, 8) else { return };
        reactor.wakes.on_answer(user_data(Purpose::Ring, NOBODY), 5);
        reactor.wakes.on_answer(user_data(Purpose::Receive, NOBODY), 5);
        reactor.wakes.on_answer(u64::MAX, 5);
        assert_eq!(reactor.counters().stale_count, 3);
    }

    #[test]
    fn a_message_ends_a_wait_without_the_doorbell() {
        let Some(mut waking) = reactor(4, 16) else { return };
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut sleeper = UringReactor::new().unwrap();
            tell.send(sleeper.waker()).unwrap();
            sleeper.wait(None);
            assert_eq!(sleeper.poll(), 1);
            sleeper.wakes.is_armed
        });
        let waker = told.recv().unwrap();
        while !waker.is_blocked() {
            std::thread::yield_now();
        }
        waking.wake(&waker);
        while waking.wakes.rung.count() > 0 {
            waking.poll();
        }
        let is_armed = thread.join().unwrap();
        assert_eq!(waking.counters().message_count, 1);
        match waking.wakes.can_ring {
            true => assert!(is_armed, "the doorbell was read"),
            false => println!("not run: this kernel sends no messages between rings"),
        }
    }

    #[test]
    fn the_kernel_gives_everything_back_at_the_end() {
        let Some(mut reactor) = reactor(4, 16) else { return };
        let _far: Vec<_> = (0..6).map(|_| adopt(&mut reactor)).collect();
        let until = reactor.now() + Duration::from_micros(100);
        reactor.wait(Some(until)); // Arms the doorbell, too.
        assert!(reactor.wakes.is_armed);
        adopt(&mut reactor); // Its receive is owed and was not pushed.
        assert!(reactor.reap_all());
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
        let Some(reactor) = reactor(4, 8) else { return };
        assert_eq!(reactor.can_skip_iowait, reactor.ring.params().is_feature_no_iowait());
    }

    #[test]
    fn an_idle_poll_does_not_enter_the_kernel() {
        let Some(mut reactor) = reactor(4, 8) else { return };
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
