//! A reader by name, for a server that makes named doors. The reader sends no request, so the
//! server does not know of it.
//!
//! The server can therefore neither wait for this reader nor remove it. Policies that need the
//! server for that are refused; all others work as for every subscriber. Any process that may open
//! the file may read it, which means the server's own user. See [`crate::memory::named`] for the
//! checks that are made, and for the attacks that are not defended against. Tests:
//! `named_tests.rs`.

use std::cell::Cell;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::error::DoorError;
use super::options::ReadOptions;
use crate::base::{ExecutionId, Handle, Instant, SubscriberId};
use crate::engine::policy::Cursor;
use crate::engine::{From, Subscribed};
use crate::limits;
use crate::memory::atomic::AtomicU64;
use crate::memory::named::{FOLDER, NamedError, NamedView, name_of};
use crate::memory::{LeaveReason, Poll, ReaderPage, RingReader};
use crate::reactor::Clock;
use crate::shard::delivery::exit_of_code;
use crate::shard::reader::link::{Link, LinkParts};
use crate::shard::{Delivery, Flaw, Subscriber};
use crate::stream::{Exit, LagLimit, Policy, Terms, Totals};

/// Number of attempts to read the newest chunk while the writer overwrites it.
const ATTEMPTS_MAX: u32 = 100;

/// Reads one execution by its name.
///
/// Deliveries come in the order of the log, and the last one is a [`Delivery::End`]. An error in
/// its place means that no end will come.
pub struct NamedReader {
    subscriber: Subscriber<ByName>,
}

impl NamedReader {
    /// Opens the ring of an execution in `/dev/shm`.
    ///
    /// The options are limited: `kinds` must be all kinds, and the policies `block` and
    /// `disconnect` are refused. If `from` names a chunk, the ring must still hold the chunk before
    /// it.
    ///
    /// # Errors
    /// [`DoorError::NoServer`]: the file cannot be opened. [`DoorError::Named`]: the file is not a
    /// sound ring. [`DoorError::Unfit`]: these options are not possible here.
    /// [`DoorError::Unsound`]: the ring holds nonsense.
    pub fn open(execution: ExecutionId, options: &ReadOptions) -> Result<NamedReader, DoorError> {
        NamedReader::open_in(Path::new(FOLDER), execution, options)
    }

    /// Opens the ring of an execution in another folder.
    ///
    /// # Errors
    /// The same as those of [`NamedReader::open`].
    pub fn open_in(
        folder: &Path,
        execution: ExecutionId,
        options: &ReadOptions,
    ) -> Result<NamedReader, DoorError> {
        let policy = options.policy.unwrap_or(Policy::Drop);
        if matches!(policy, Policy::Block | Policy::Disconnect) {
            return Err(DoorError::Unfit(
                "a reader by name cannot have the policy block or disconnect, because the producer \
                 ignores such a reader",
            ));
        }
        if !options.kinds.is_all() {
            return Err(DoorError::Unfit("a reader by name reads all kinds; remove the filter"));
        }
        let path = folder.join(name_of(execution));
        let view = NamedView::open(&path).map_err(|error| match error {
            NamedError::Os(error) => DoorError::NoServer { path, error },
            error => DoorError::Named(error),
        })?;
        let cursor = begin(&view.ring, options.from)?;
        let limit = policy.default_limit(view.ring.geometry().capacity_chunks());
        let limit = LagLimit {
            chunks: options.limit_chunks.map_or(limit.chunks, |chunks| chunks.max(1)),
            bytes: options.limit_bytes.unwrap_or(limit.bytes),
        };
        let terms = Terms { policy, limit, kinds: options.kinds };
        let (page, _) = ReaderPage::new(cursor.next_seq);
        let subscriber = SubscriberId(Handle { index: 0, generation: 0 });
        let (reader, control) = (view.ring.clone(), view.control.clone());
        let anchor = reader.anchor();
        let shared = LinkParts { id: execution, reader, control, page, anchor };
        let link = ByName { shared, view, flaw: Cell::new(None) };
        let replay = None; // A reader of shared memory loses no delivery that it was given.
        let subscribed =
            Subscribed { subscriber, execution: execution.slot, terms, cursor, replay };
        let mut subscriber = Subscriber::of_link(link, &subscribed, None, Clock::now());
        subscriber.headers_only(options.headers_only);
        Ok(NamedReader { subscriber })
    }

    /// The execution that it reads.
    pub fn execution(&self) -> ExecutionId {
        self.subscriber.link().shared.id
    }

    /// A fixed id: no server has given this reader one.
    pub fn id(&self) -> SubscriberId {
        self.subscriber.id()
    }

    /// Number of the next chunk that is delivered, or named in a gap.
    pub fn next_seq(&self) -> u64 {
        self.subscriber.next_seq()
    }

    /// The terms of this reader, with defaults filled in.
    pub fn terms(&self) -> Terms {
        self.subscriber.terms()
    }

    /// Returns the next delivery if one is due at this moment; `None` forever after the end. Makes
    /// no system call, so it does not detect the death of the owner: [`NamedReader::next`] does.
    ///
    /// # Errors
    /// [`DoorError::Unsound`]: the ring holds nonsense.
    pub fn poll(&mut self) -> Result<Option<Delivery<'_>>, DoorError> {
        Ok(self.subscriber.try_poll()?)
    }

    /// Waits for the next delivery and returns it; `None` after the end.
    ///
    /// # Errors
    /// The same as those of [`NamedReader::poll`]. [`DoorError::ServerGone`]: the owner has gone,
    /// and all that could be delivered was.
    #[expect(
        clippy::should_implement_trait,
        reason = "a lending iterator, which std does not have"
    )]
    pub fn next(&mut self) -> Result<Option<Delivery<'_>>, DoorError> {
        self.next_until(Instant::FAR)
    }

    /// Waits for the next delivery like [`NamedReader::next`], for at most `timeout`. Returns
    /// `None` also if nothing came.
    ///
    /// # Errors
    /// The same as those of [`NamedReader::next`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Delivery<'_>>, DoorError> {
        self.next_until(Clock::now().saturating_add(timeout))
    }

    fn next_until(&mut self, deadline: Instant) -> Result<Option<Delivery<'_>>, DoorError> {
        loop {
            // This check comes before the check for chunks: an owner that has gone publishes
            // nothing more.
            let is_left = !self.subscriber.link().is_up();
            if let Some(ready) = self.subscriber.advance()? {
                return Ok(Some(self.subscriber.render(ready)?));
            }
            if self.subscriber.is_over() {
                return match self.subscriber.link().flaw.get() {
                    Some(flaw) => Err(flaw.into()),
                    None => Ok(None),
                };
            }
            if is_left {
                return Err(DoorError::ServerGone);
            }
            if !self.subscriber.wait(deadline) && self.subscriber.link().is_up() {
                return Ok(None);
            }
        }
    }
}

/// Returns the position of the first chunk, and the totals before it.
fn begin(ring: &RingReader, from: From) -> Result<Cursor, DoorError> {
    let before_seq = match from {
        From::Start => 0,
        From::Live => return newest(ring),
        From::Seq { seq, .. } => seq.saturating_sub(1),
    };
    if before_seq == 0 {
        return Ok(Cursor::new(1, Totals::ZERO));
    }
    match ring.poll(before_seq) {
        Poll::Ready(descriptor) => {
            let seen = Totals { chunks: before_seq, bytes: descriptor.total_bytes };
            Ok(Cursor::new(before_seq + 1, seen))
        }
        Poll::Pending => Err(DoorError::Unfit(
            "a reader by name cannot begin at a chunk that has not come yet; use `live`",
        )),
        Poll::Overtaken { .. } => {
            Err(DoorError::Unfit("the chunk before the first wanted one is no longer held"))
        }
        Poll::Gone | Poll::Corrupt => Err(Flaw::Ring.into()),
    }
}

/// Returns the position behind the newest chunk.
fn newest(ring: &RingReader) -> Result<Cursor, DoorError> {
    for _ in 0..ATTEMPTS_MAX {
        let head_seq = ring.head_seq();
        if head_seq == 0 {
            return Ok(Cursor::new(1, Totals::ZERO));
        }
        if let Poll::Ready(descriptor) = ring.poll(head_seq) {
            let seen = Totals { chunks: head_seq, bytes: descriptor.total_bytes };
            return Ok(Cursor::new(head_seq.saturating_add(1), seen));
        }
    }
    Err(Flaw::Ring.into())
}

/// A link to an owner that does not know of this reader.
struct ByName {
    /// The state of the subscriber. No other thread reads its page.
    shared: LinkParts,
    view: NamedView,
    /// The flaw that was found. Nothing is delivered after it.
    flaw: Cell<Option<Flaw>>,
}

impl Link for ByName {
    type Fault = Flaw;
    const IS_FOREIGN: bool = true;

    #[inline]
    fn shared(&self) -> &LinkParts {
        &self.shared
    }

    #[inline]
    fn epoch(&self) -> u64 {
        self.shared.control.gate_epoch()
    }

    fn epoch_word(&self) -> &AtomicU64 {
        self.shared.control.gate_epoch_word()
    }

    #[inline]
    fn detached(&self) -> u32 {
        0 // No server can remove this reader.
    }

    fn acked_seq(&self) -> u64 {
        0
    }

    fn fall_asleep(&self) {} // The owner wakes every reader that sleeps on its words.

    fn wake_up(&self) {}

    fn sleep_until(&self, deadline: Instant) -> Instant {
        (Clock::now() + limits::DOOR_SLEEP_MAX).min(deadline)
    }

    fn is_up(&self) -> bool {
        self.view.is_left().is_ok_and(|is_left| !is_left)
    }

    fn ring(&self) {}

    fn leave(&self, _how: LeaveReason) {}

    fn exit(&self) -> Option<Exit> {
        exit_of_code(self.shared.control.exit())
    }

    #[cold]
    fn fault(&self, flaw: Flaw) -> Flaw {
        // The file was cut off, so the ring reads as zeros.
        let flaw = if self.view.is_lost() { Flaw::Lost } else { flaw };
        self.flaw.set(Some(flaw));
        flaw
    }
}

impl fmt::Debug for NamedReader {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "NamedReader(of {}, {:?})", self.execution(), self.terms())
    }
}

#[cfg(test)]
#[path = "named_tests.rs"]
mod tests;
