//! The backend over mio: readiness dressed up as completions.
//!
//! An operation is tried at the first poll after its submission. If it is not ready, its descriptor
//! is registered with epoll (edge-triggered, so registration itself reports what is ready already)
//! until the last operation on it is over. What epoll refuses is always ready: files, `/dev/null`.
//!
//! Owned by one shard thread. Absent: any change to a descriptor's flags, see `transfer.rs`.
//! Invariants:
//! - P1 a slot is in `fresh`, or in the list of exactly one watch.
//! - P2 a watch is registered exactly while its list is not empty; its generation is in the token
//!   of the registration, so late events of an earlier one are told apart.

use std::collections::VecDeque;
use std::io::{self};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Registry, Token};

use crate::base::{Handle, Instant, Pool};
use crate::limits::{REACTOR_EVENTS_PER_LOOK, REACTOR_POLLS_PER_LOOK};
use crate::reactor::operation::{Request, Transfer};
use crate::reactor::polled_net::{PolledNet, is_socket};
use crate::reactor::transfer::{Attempt, attempt, perform};
use crate::reactor::waker::WakeListener;
use crate::reactor::{
    Clock, Completion, Counters, IoError, Net, Operation, Reactor, SocketCounters, SocketLimits,
    SubmitError, Waker, thread,
};

const DOORBELL: Token = Token(usize::MAX);
const NONE: u32 = u32::MAX;

/// [`Reactor`] over epoll, through mio.
pub struct PolledReactor {
    poll: mio::Poll,
    events: Events,
    polls_since_look: u32,
    table: Table,
    /// None until sockets are asked for.
    net: Option<Box<PolledNet>>,
    listener: WakeListener,
    one_thread: PhantomData<*mut ()>,
}

struct Slot {
    request: Request,
    is_watched: bool,
    /// The next one on the same descriptor.
    next: u32,
}

/// One descriptor: the operations that wait for it, oldest first.
#[derive(Clone, Copy)]
struct Watch {
    generation: u32,
    /// What epoll was asked for; None if not registered.
    registered: Option<Interest>,
    first: u32,
}

const WATCH_IDLE: Watch = Watch { generation: 0, registered: None, first: NONE };

/// Everything but epoll's own event buffer, so that events can be walked while this changes.
struct Table {
    registry: Registry,
    slots: Pool<Slot>,
    fresh: VecDeque<Handle>,
    /// By descriptor number. Grows when a larger number than ever before has to wait.
    watches: Vec<Watch>,
    watched_count: u32,
    ready: VecDeque<Completion>,
    counters: Counters,
}

impl PolledReactor {
    /// A reactor that holds `operations_max` operations.
    ///
    /// # Errors
    /// What `epoll_create`, `eventfd` or `epoll_ctl` answer: no descriptors or memory left.
    pub fn new(operations_max: u32) -> io::Result<PolledReactor> {
        assert!(operations_max > 0);
        let poll = mio::Poll::new()?;
        let listener = WakeListener::with_doorbell()?;
        let registry = poll.registry().try_clone()?;
        registry.register(&mut SourceFd(&listener.doorbell_fd()), DOORBELL, Interest::READABLE)?;
        thread::block_sigpipe();
        let capacity = operations_max as usize;
        Ok(PolledReactor {
            poll,
            events: Events::with_capacity(REACTOR_EVENTS_PER_LOOK),
            polls_since_look: 0,
            table: Table {
                registry,
                slots: Pool::new(operations_max),
                fresh: VecDeque::with_capacity(capacity),
                watches: Vec::new(),
                watched_count: 0,
                ready: VecDeque::with_capacity(capacity),
                counters: Counters::default(),
            },
            net: None,
            listener,
            one_thread: PhantomData,
        })
    }

    /// Takes what epoll has, without waiting, and tries what it is about.
    fn look(&mut self) {
        self.polls_since_look = 0;
        self.table.counters.entered_count += 1;
        match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return,
            Err(error) => panic!("epoll_wait refused our own arguments: {error}"),
        }
        for event in &self.events {
            match &mut self.net {
                _ if event.token() == DOORBELL => {}
                Some(net) if is_socket(event.token()) => net.on_event(event),
                _ => self.table.on_event(event.token()),
            }
        }
    }

    /// Sleeps until epoll has something. `epoll_wait` counts in milliseconds; `ppoll` on the epoll
    /// descriptor counts in nanoseconds.
    fn block(&mut self, timeout: Option<Duration>) {
        self.table.counters.entered_count += 1;
        self.table.counters.blocked_count += 1;
        let mut entry =
            libc::pollfd { fd: self.poll.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timespec = timeout.map(|timeout| libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timespec = timespec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: one valid entry and a timespec that outlives the call, or none.
        let ready_count = unsafe { libc::ppoll(&mut entry, 1, timespec, std::ptr::null()) };
        let error = io::Error::last_os_error();
        let interrupted = error.kind() == io::ErrorKind::Interrupted;
        assert!(ready_count >= 0 || interrupted, "ppoll refused our own arguments: {error}");
    }

    fn has_event(&self) -> bool {
        !self.table.ready.is_empty() || self.listener.is_notified() || self.socket_count() > 0
    }

    /// Sockets with something to try.
    fn socket_count(&self) -> usize {
        self.net.as_ref().map_or(0, |net| net.event_count())
    }

    /// Whether there is anything that epoll could tell of.
    fn is_watching(&self) -> bool {
        self.table.watched_count > 0 || self.net.as_ref().is_some_and(|net| net.is_watching())
    }
}

impl Reactor for PolledReactor {
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

    fn poll(&mut self) -> usize {
        self.table.try_fresh();
        self.polls_since_look += 1;
        if self.polls_since_look >= REACTOR_POLLS_PER_LOOK && self.is_watching() {
            self.look();
        }
        if let Some(net) = &mut self.net {
            net.begin_turn();
        }
        let woken = self.listener.take();
        self.table.counters.woken_count += u64::from(woken);
        self.table.ready.len() + self.socket_count() + usize::from(woken)
    }

    fn wait(&mut self, until: Option<Instant>) {
        let until = until.filter(|until| *until != Instant::FAR);
        loop {
            self.table.try_fresh();
            if let Some(net) = &mut self.net {
                net.begin_turn();
            }
            if self.has_event() {
                return;
            }
            let retry_at = self.net.as_ref().and_then(|net| net.retry_at());
            let next = until.into_iter().chain(retry_at).min();
            let timeout = next.map(|next| next.since(Clock::now()));
            if timeout != Some(Duration::ZERO) {
                if !self.listener.try_block() {
                    return;
                }
                self.block(timeout);
                self.listener.unblock();
            }
            self.look();
            if self.has_event() || until.is_some_and(|until| Clock::now() >= until) {
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
            let registry = self.table.registry.try_clone()?;
            self.net = Some(Box::new(PolledNet::new(registry, limits)));
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

impl Table {
    fn submit(&mut self, operation: Operation) -> Result<(), SubmitError> {
        let request = match Request::parse(operation) {
            Ok(request) => request,
            Err(token) => {
                self.cancel(token);
                return Ok(());
            }
        };
        if self.slots.count() as usize + self.ready.len() >= self.slots.capacity() as usize {
            return Err(SubmitError::Full(request.into_operation()));
        }
        match self.slots.insert(Slot { request, is_watched: false, next: NONE }) {
            Ok(handle) => {
                self.fresh.push_back(handle);
                self.counters.submitted_count += 1;
                Ok(())
            }
            Err(slot) => Err(SubmitError::Full(slot.request.into_operation())),
        }
    }

    fn cancel(&mut self, token: u64) {
        for index in 0..self.slots.capacity() {
            let Some(slot) = self.slots.at(index) else { continue };
            if slot.request.token != token {
                continue;
            }
            let handle = self.slots.handle_at(index).expect("the slot is taken");
            if slot.is_watched {
                let fd = slot.request.fd;
                self.unlink(fd, index);
                self.rest(fd);
            } else {
                self.fresh.retain(|fresh| *fresh != handle);
            }
            self.finish(handle, Err(IoError::CANCELLED));
        }
    }

    fn try_fresh(&mut self) {
        while let Some(handle) = self.fresh.pop_front() {
            let slot = self.slots.get_mut(handle).expect("P1");
            match attempt(&mut slot.request, &mut self.counters.retried_count) {
                Attempt::Done(result) => self.finish(handle, result),
                Attempt::NotReady => self.watch(handle),
            }
        }
    }

    fn finish(&mut self, handle: Handle, result: Result<u32, IoError>) {
        let slot = self.slots.remove(handle).expect("finished once");
        self.counters.count_completion(result);
        self.ready.push_back(slot.request.into_completion(result));
    }

    /// Registers what `handle` waits for, or performs it if epoll says that it never waits.
    fn watch(&mut self, handle: Handle) {
        let slot = self.slots.get_mut(handle).expect("P1");
        let interest = match slot.request.transfer {
            Transfer::Read => Interest::READABLE,
            Transfer::Write(_) => Interest::WRITABLE,
        };
        match watch_fd(&self.registry, &mut self.watches, slot.request.fd, interest) {
            Ok(()) => {
                slot.is_watched = true;
                let fd = slot.request.fd;
                self.link(fd, handle.index);
            }
            Err(IoError(libc::EPERM)) => {
                let result = perform(&mut slot.request, &mut self.counters.retried_count);
                self.finish(handle, result);
            }
            Err(error) => self.finish(handle, Err(error)),
        }
    }

    fn on_event(&mut self, token: Token) {
        let (fd, generation) = ((token.0 as u32) as RawFd, (token.0 >> 32) as u32);
        let watch = self.watches[fd as usize];
        if watch.registered.is_none() || watch.generation != generation {
            self.counters.stale_count += 1;
            return;
        }
        let mut next = watch.first;
        while next != NONE {
            let index = next;
            let handle = self.slots.handle_at(index).expect("P1");
            let slot = self.slots.at_mut(index).expect("P1");
            next = slot.next;
            let tried = attempt(&mut slot.request, &mut self.counters.retried_count);
            if let Attempt::Done(result) = tried {
                self.unlink(fd, index);
                self.finish(handle, result);
            }
        }
        self.rest(fd);
    }

    fn link(&mut self, fd: RawFd, index: u32) {
        self.watched_count += 1;
        let watch = &mut self.watches[fd as usize];
        if watch.first == NONE {
            watch.first = index;
            return;
        }
        let mut last = watch.first;
        loop {
            let slot = self.slots.at_mut(last).expect("P1");
            if slot.next == NONE {
                slot.next = index;
                return;
            }
            last = slot.next;
        }
    }

    fn unlink(&mut self, fd: RawFd, index: u32) {
        self.watched_count -= 1;
        let slot = self.slots.at_mut(index).expect("P1");
        let next = std::mem::replace(&mut slot.next, NONE);
        slot.is_watched = false;
        let watch = &mut self.watches[fd as usize];
        if watch.first == index {
            watch.first = next;
            return;
        }
        let mut before = watch.first;
        loop {
            let slot = self.slots.at_mut(before).expect("P1");
            if slot.next == index {
                slot.next = next;
                return;
            }
            before = slot.next;
        }
    }

    /// Takes `fd` out of epoll if nobody waits for it any more.
    fn rest(&mut self, fd: RawFd) {
        let watch = &mut self.watches[fd as usize];
        if watch.first == NONE && watch.registered.is_some() {
            watch.registered = None;
            watch.generation = watch.generation.wrapping_add(1);
            // Refused if the caller closed it too early: then it has left epoll by itself.
            let _ = self.registry.deregister(&mut SourceFd(&fd));
        }
    }
}

fn watch_fd(
    registry: &Registry,
    watches: &mut Vec<Watch>,
    fd: RawFd,
    interest: Interest,
) -> Result<(), IoError> {
    let index = usize::try_from(fd).map_err(|_| IoError::BAD_DESCRIPTOR)?;
    if index >= watches.len() {
        watches.resize(index + 1, WATCH_IDLE); // At most RLIMIT_NOFILE: the attempt was not EBADF.
    }
    let watch = &mut watches[index];
    let token = Token(index | (watch.generation as usize) << 32);
    let mut source = SourceFd(&fd);
    let step = match watch.registered {
        None => registry.register(&mut source, token, interest).map(|()| interest),
        Some(registered) if registered == registered.add(interest) => Ok(registered),
        Some(registered) => {
            let both = registered.add(interest);
            registry.reregister(&mut source, token, both).map(|()| both)
        }
    };
    match step {
        Ok(registered) => {
            watch.registered = Some(registered);
            Ok(())
        }
        Err(error) => Err(IoError(error.raw_os_error().unwrap_or(libc::EIO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::Buffer;
    use std::io::Write;

    #[test]
    fn an_event_of_an_earlier_registration_is_counted_and_dropped() {
        let mut reactor = PolledReactor::new(4).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let fd = reader.as_raw_fd();
        let token = |reactor: &PolledReactor| {
            let generation = reactor.table.watches[fd as usize].generation;
            Token(fd as usize | (generation as usize) << 32)
        };
        for round in 0..2 {
            let buffer = Buffer::zeroed(8);
            reactor.submit(Operation::Read { token: round, fd, buffer }).unwrap();
            assert_eq!(reactor.poll(), 0);
            let (early, stale_before) = (token(&reactor), reactor.counters().stale_count);
            reactor.submit(Operation::Cancel { token: round }).unwrap();
            reactor.table.on_event(early); // Nobody is registered.
            let buffer = Buffer::zeroed(8);
            reactor.submit(Operation::Read { token: 9, fd, buffer }).unwrap();
            assert_eq!(reactor.poll(), 1); // The cancelled one.
            writer.write_all(b"x").unwrap();
            reactor.table.on_event(early); // Somebody else is.
            assert_eq!(reactor.counters().stale_count, stale_before + 2);
            assert_eq!(reactor.table.ready.len(), 1);
            let present = token(&reactor);
            reactor.table.on_event(present);
            assert_eq!(reactor.next_completion().unwrap().result, Err(IoError::CANCELLED));
            assert_eq!(reactor.next_completion().unwrap().result, Ok(1));
        }
    }
}
