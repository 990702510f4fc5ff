//! The backend over mio: epoll's readiness of the doorbell and of sockets (`polled_net.rs`). Files
//! are always ready for epoll, so threads serve the disk (`polled_disk.rs`).
//!
//! Owned by one shard thread. Absent: any change to a descriptor's flags.

use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Registry, Token};

use crate::base::Instant;
use crate::limits::{REACTOR_EVENTS_PER_LOOK, REACTOR_POLLS_PER_LOOK};
use crate::reactor::polled_disk::PolledDisk;
use crate::reactor::polled_net::{PolledNet, is_socket};
use crate::reactor::waker::WakeListener;
use crate::reactor::{
    Clock, Counters, Disk, DiskSetup, Net, Reactor, SocketCounters, SocketLimits, Waker, thread,
};

const DOORBELL: Token = Token(usize::MAX);

/// [`Reactor`] over epoll, through mio.
pub struct PolledReactor {
    poll: mio::Poll,
    events: Events,
    registry: Registry,
    polls_since_look: u32,
    counters: Counters,
    /// The sockets, or `None` until they are opened.
    net: Option<Box<PolledNet>>,
    /// The disk, or `None` until it is opened.
    disk: Option<Box<PolledDisk>>,
    listener: WakeListener,
    one_thread: PhantomData<*mut ()>,
}

impl PolledReactor {
    /// A reactor without sockets and without a disk.
    ///
    /// # Errors
    /// An error of `epoll_create`, `eventfd` or `epoll_ctl`: no descriptors or memory left.
    pub fn new() -> io::Result<PolledReactor> {
        let poll = mio::Poll::new()?;
        let listener = WakeListener::with_doorbell()?;
        let registry = poll.registry().try_clone()?;
        registry.register(&mut SourceFd(&listener.doorbell_fd()), DOORBELL, Interest::READABLE)?;
        thread::block_sigpipe();
        Ok(PolledReactor {
            poll,
            events: Events::with_capacity(REACTOR_EVENTS_PER_LOOK),
            registry,
            polls_since_look: 0,
            counters: Counters::default(),
            net: None,
            disk: None,
            listener,
            one_thread: PhantomData,
        })
    }

    /// Takes the events of epoll without waiting.
    fn look(&mut self) {
        self.polls_since_look = 0;
        self.counters.entered_count += 1;
        match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return,
            Err(error) => panic!("epoll_wait refused our own arguments: {error}"),
        }
        for event in &self.events {
            match &mut self.net {
                _ if event.token() == DOORBELL => {}
                Some(net) if is_socket(event.token()) => net.on_event(event),
                _ => self.counters.stale_count += 1,
            }
        }
    }

    /// Sleeps until epoll has an event. `epoll_wait` counts in milliseconds; `ppoll` on the epoll
    /// descriptor counts in nanoseconds.
    fn block(&mut self, timeout: Option<Duration>) {
        self.counters.entered_count += 1;
        self.counters.blocked_count += 1;
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
        self.listener.is_notified() || self.event_count() > 0
    }

    /// Number of events that wait to be taken, or sockets to be tried.
    fn event_count(&self) -> usize {
        self.socket_count() + self.disk.as_ref().map_or(0, |disk| disk.event_count())
    }

    /// Number of sockets with something to try.
    fn socket_count(&self) -> usize {
        self.net.as_ref().map_or(0, |net| net.event_count())
    }

    /// True if epoll watches a listener or a connection.
    fn is_watching(&self) -> bool {
        self.net.as_ref().is_some_and(|net| net.is_watching())
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

    fn poll(&mut self) -> usize {
        self.polls_since_look += 1;
        if self.polls_since_look >= REACTOR_POLLS_PER_LOOK && self.is_watching() {
            self.look();
        }
        if let Some(net) = &mut self.net {
            net.begin_turn();
        }
        let woken = self.listener.take();
        self.counters.woken_count += u64::from(woken);
        if woken && let Some(disk) = &mut self.disk {
            disk.collect();
        }
        self.event_count() + usize::from(woken)
    }

    fn wait(&mut self, until: Option<Instant>) {
        let until = until.filter(|until| *until != Instant::FAR);
        loop {
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

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn open_sockets(&mut self, limits: SocketLimits) -> io::Result<()> {
        if self.net.is_none() {
            let registry = self.registry.try_clone()?;
            self.net = Some(Box::new(PolledNet::new(registry, limits)));
        }
        Ok(())
    }

    fn net(&self) -> Option<&dyn Net> {
        Some(&**self.net.as_ref()?)
    }

    fn net_mut(&mut self) -> Option<(&mut dyn Net, &mut SocketCounters)> {
        Some((&mut **self.net.as_mut()?, &mut self.counters.sockets))
    }

    fn open_disk(&mut self, setup: DiskSetup) -> io::Result<()> {
        setup.check(self.disk.is_some())?;
        self.disk = Some(Box::new(PolledDisk::open(setup, self.listener.waker())?));
        Ok(())
    }

    fn disk_mut(&mut self) -> Option<&mut dyn Disk> {
        Some(&mut **self.disk.as_mut()?)
    }
}
