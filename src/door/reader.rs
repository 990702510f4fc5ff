//! A reader in another process, over a ring that the server or a producer writes. It has the same
//! policies, gaps and ends as any other subscriber.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::fs::fstat;

use super::connection::OpenConnection;
use super::error::{DoorError, Unsound};
use super::link::DoorLink;
use super::options::ReadOptions;
use crate::base::{ExecutionId, Instant, SubscriberId};
use crate::endpoint::{GrantNames, ReadGrant};
use crate::engine::Subscribed;
use crate::limits;
use crate::memory::{ClockAnchor, ControlView, OpenError, ReaderPage, RingReader};
use crate::reactor::Clock;
use crate::shard::reader::link::LinkParts;
use crate::shard::{Delivery, Subscriber};
use crate::stream::Terms;

/// Reads one execution of a server in another process. Dropping it unsubscribes.
///
/// Deliveries come in the order of the log, and the last one is a [`Delivery::End`]. An error in
/// its place means that no end will come, and every further call returns it again.
///
/// A reader of a [`crate::door::DoorWriter`]'s execution reads the writer's own ring. When the
/// execution is stopped, the server takes over the chunks that this ring holds. If a new `block`
/// reader holds the server back at that moment, the server may miss chunks that this reader was
/// given. Such chunks count in `given`, and not in `published`.
pub struct DoorReader {
    subscriber: Subscriber<DoorLink>,
    parts: ReaderParts,
    /// Number of polls left until the reader checks its state and the server's.
    polls_left: u32,
    /// The time of the last check whether the server lives.
    looked: Instant,
    is_watching: bool,
}

/// The state of a reader beside its subscriber.
pub(super) struct ReaderParts {
    names: GrantNames,
    from_seq: u64,
    /// Number of sleeps on the descriptor so far.
    watch_count: u64,
}

impl DoorReader {
    pub(super) fn new(
        grant: &ReadGrant,
        names: GrantNames,
        mut connection: OpenConnection,
        options: &ReadOptions,
    ) -> Result<DoorReader, DoorError> {
        let [ring, control, page] = connection.descriptors()?;
        let line = connection.into_line()?;
        let ring_file = fstat(&ring).map_err(|error| DoorError::Os(error.into()))?;
        let ring_file = (ring_file.st_dev, ring_file.st_ino);
        let reader = RingReader::open(ring).map_err(wrong("ring"))?;
        let opened = ControlView::open(control, grant.slot);
        let (control, reader_signals) = opened.map_err(wrong("control page"))?;
        let page = ReaderPage::open(page).map_err(wrong("reader's page"))?;
        let ReadGrant { execution: id, subscriber, terms, cursor, wall_us, mono_ns, .. } = *grant;
        line.knock(); // Everything is mapped.
        let anchor = ClockAnchor { wall_us, mono_ns };
        let shared = LinkParts { id, reader, control, page, anchor };
        let link = DoorLink { shared, reader_signals, line, ring_file, flaw: Cell::new(None) };
        let replay = None; // A reader of shared memory loses no delivery that it was given.
        let subscribed = Subscribed { subscriber, execution: id.slot, terms, cursor, replay };
        let now = Clock::now();
        let mut subscriber = Subscriber::of_link(link, &subscribed, None, now);
        subscriber.headers_only(options.headers_only);
        let parts = ReaderParts { names, from_seq: cursor.next_seq, watch_count: 0 };
        Ok(DoorReader { subscriber, parts, polls_left: 0, looked: now, is_watching: false })
    }

    /// Makes a reader that goes on where an audience has left it.
    pub(super) fn of_parts(subscriber: Subscriber<DoorLink>, parts: ReaderParts) -> DoorReader {
        let looked = Instant::from_nanos(0); // The first call looks whether the server lives.
        DoorReader { subscriber, parts, polls_left: 0, looked, is_watching: false }
    }

    /// Takes it apart, for an audience.
    pub(super) fn into_parts(mut self) -> (Subscriber<DoorLink>, ReaderParts) {
        self.end_watch();
        (self.subscriber, self.parts)
    }

    /// The execution that it reads.
    pub fn execution(&self) -> ExecutionId {
        self.subscriber.link().shared.id
    }

    /// The id that the server gave to this reader.
    pub fn id(&self) -> SubscriberId {
        self.subscriber.id()
    }

    /// The name of the tool that the execution runs; empty if it has none.
    pub fn tool(&self) -> &str {
        &self.parts.names.tool
    }

    /// The token of the execution's progress, if it has one.
    pub fn token(&self) -> Option<&str> {
        self.parts.names.token.as_deref()
    }

    /// Number of the first chunk that is delivered, or named in a gap.
    pub fn from_seq(&self) -> u64 {
        self.parts.from_seq
    }

    /// The agreed terms, with defaults filled in.
    pub fn terms(&self) -> Terms {
        self.subscriber.terms()
    }

    /// Number of the next chunk that is delivered, or named in a gap.
    pub fn next_seq(&self) -> u64 {
        self.subscriber.next_seq()
    }

    /// Returns the next delivery if one is due at this moment; `None` forever after the end. Never
    /// blocks, and makes a system call only rarely.
    ///
    /// # Errors
    /// [`DoorError::ServerGone`]: the server has gone, and all that could be delivered was.
    /// [`DoorError::Unsound`]: the shared memory holds nonsense.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Delivery<'_>>, DoorError> {
        match self.polls_left.checked_sub(1) {
            Some(left) => self.polls_left = left,
            None if self.is_troubled() => return self.take_rest(),
            None => {}
        }
        self.subscriber.try_poll().map_err(|flaw| {
            self.polls_left = 0; // The next call reports it again.
            flaw.into()
        })
    }

    /// Hands every delivery that is due at this moment to `take`, at most `count_max` of them, and
    /// returns their number. It costs less than repeated calls of [`DoorReader::poll`].
    ///
    /// # Errors
    /// The same as those of [`DoorReader::poll`]. `take` may have got deliveries before the error.
    #[inline]
    pub fn drain(
        &mut self,
        count_max: usize,
        mut take: impl FnMut(Delivery<'_>),
    ) -> Result<usize, DoorError> {
        let is_troubled = match self.polls_left.checked_sub(1) {
            Some(left) => {
                self.polls_left = left;
                false
            }
            None => self.is_troubled(),
        };
        if !is_troubled {
            return self.subscriber.try_drain(count_max, take).map_err(|flaw| {
                self.polls_left = 0;
                flaw.into()
            });
        }
        self.drain_rest(count_max, &mut take)
    }

    #[cold]
    fn drain_rest(
        &mut self,
        count_max: usize,
        take: &mut impl FnMut(Delivery<'_>),
    ) -> Result<usize, DoorError> {
        let mut count = 0;
        while count < count_max {
            match self.take_rest() {
                Ok(Some(delivery)) => take(delivery),
                Ok(None) => break,
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
            }
            count += 1;
        }
        Ok(count)
    }

    /// Waits for the next delivery and returns it; `None` after the end.
    ///
    /// # Errors
    /// The same as those of [`DoorReader::poll`].
    #[expect(
        clippy::should_implement_trait,
        reason = "a lending iterator, which std does not have"
    )]
    pub fn next(&mut self) -> Result<Option<Delivery<'_>>, DoorError> {
        self.next_until(Instant::FAR)
    }

    /// Waits for the next delivery like [`DoorReader::next`], for at most `timeout`. Returns `None`
    /// also if nothing came; [`DoorReader::is_over`] distinguishes the two.
    ///
    /// # Errors
    /// The same as those of [`DoorReader::poll`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Delivery<'_>>, DoorError> {
        self.next_until(Clock::now().saturating_add(timeout))
    }

    fn next_until(&mut self, deadline: Instant) -> Result<Option<Delivery<'_>>, DoorError> {
        self.end_watch();
        loop {
            let is_gone = self.subscriber.link().line.is_known_gone();
            if let Some(ready) = self.subscriber.advance()? {
                return Ok(Some(self.subscriber.render(ready)?));
            }
            if self.subscriber.is_over() {
                return self.after_end();
            }
            if is_gone {
                return Err(DoorError::ServerGone);
            }
            if Clock::now() >= deadline {
                return Ok(None);
            }
            self.subscriber.wait(deadline);
        }
    }

    /// True if the end was delivered.
    pub fn is_over(&self) -> bool {
        self.subscriber.is_over() && self.subscriber.link().flaw.get().is_none()
    }

    /// Prepares a wait until [`DoorReader::as_fd`](AsFd::as_fd) can be read. Returns `false` if
    /// something is due already; call [`DoorReader::poll`] until it returns `None`, and then call
    /// this again.
    ///
    /// ```no_run
    /// # use streamdoor::door::{DoorError, DoorReader};
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// fn follow(reader: &mut DoorReader) -> Result<(), Box<dyn std::error::Error>> {
    ///     while !reader.is_over() {
    ///         while let Some(delivery) = reader.poll()? {
    ///             println!("{delivery:?}");
    ///         }
    ///         if reader.watch() {
    ///             poll(&mut [PollFd::new(&*reader, PollFlags::IN)], None)?;
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn watch(&mut self) -> bool {
        let link = self.subscriber.link();
        self.polls_left = 0; // The end of the execution may be what makes the descriptor readable.
        if self.subscriber.is_over() || !link.line.is_up() {
            return false;
        }
        self.parts.watch_count += 1;
        self.is_watching = true;
        link.shared.page.set_watching(self.parts.watch_count);
        if self.subscriber.has_news() {
            self.end_watch();
            return false;
        }
        if link.shared.control.sleeps_through(self.subscriber.next_seq()) {
            link.line.knock(); // The server is the one that makes it readable.
        }
        true
    }

    fn end_watch(&mut self) {
        if self.is_watching {
            self.is_watching = false;
            self.subscriber.link().shared.page.set_awake();
        }
    }

    /// Checks the connection now and then. Returns `true` if the reader is over, or if the server
    /// is known to be gone.
    #[cold]
    fn is_troubled(&mut self) -> bool {
        let has_watched = self.is_watching;
        self.end_watch();
        let now = Clock::now();
        let link = self.subscriber.link();
        if has_watched || now.since(self.looked) >= limits::DOOR_LOOK_INTERVAL {
            self.looked = now;
            link.line.is_up();
        }
        let is_troubled = self.subscriber.is_over() || link.line.is_known_gone();
        self.polls_left = if is_troubled { 0 } else { limits::DOOR_POLLS_PER_LOOK };
        is_troubled
    }

    /// Returns the next delivery that remains. Without one, returns `None` after the end, or an
    /// error if the server has gone.
    #[cold]
    pub(super) fn take_rest(&mut self) -> Result<Option<Delivery<'_>>, DoorError> {
        match self.subscriber.advance()? {
            Some(ready) => Ok(Some(self.subscriber.render(ready)?)),
            None if self.subscriber.is_over() => self.after_end(),
            None => Err(DoorError::ServerGone),
        }
    }

    fn after_end(&self) -> Result<Option<Delivery<'_>>, DoorError> {
        match self.subscriber.link().flaw.get() {
            Some(flaw) => Err(flaw.into()),
            None => Ok(None),
        }
    }
}

pub(super) fn wrong(of: &'static str) -> impl FnOnce(OpenError) -> DoorError {
    move |error| match error {
        OpenError::Os(error) => DoorError::Os(error),
        error => DoorError::Unsound(Unsound::Descriptor { of, error: Some(error) }),
    }
}

impl AsFd for DoorReader {
    /// The descriptor to wait for, together with others; see [`DoorReader::watch`]. Do not read
    /// from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscriber.link().line.as_fd()
    }
}

impl fmt::Debug for DoorReader {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.subscriber.fmt(out)
    }
}
