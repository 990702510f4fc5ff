//! A reader by name, of a server that makes named doors: nothing is asked of the server, and it
//! does not know.
//!
//! So nobody waits for this reader, and it is not let go: policies that need the server for that
//! are refused, the others are those of every subscriber. Who may read is whoever may open the
//! file: the server's own user. See [`crate::memory::named`] for what is believed of it, and what
//! is not defended. Tests: `named_tests.rs`.

use std::cell::Cell;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::error::DoorError;
use super::options::ReadOptions;
use crate::base::{ExecutionId, Handle, Instant, SubscriberId};
use crate::engine::policy::{Cursor, LagLimit};
use crate::engine::{Exit, From, Policy, Subscribed, Terms, Totals};
use crate::limits;
use crate::memory::atomic::AtomicU64;
use crate::memory::named::{FOLDER, NamedError, NamedView, name_of};
use crate::memory::{Left, Poll, ReaderPage, RingReader};
use crate::reactor::Clock;
use crate::shard::delivery::exit_of_code;
use crate::shard::{Delivery, Flaw, Link, Shared, Subscriber};

/// Looks for the newest chunk are repeated so often while it is overwritten.
const ATTEMPTS_MAX: u32 = 100;

/// Reads one execution by its name.
///
/// Everything comes in the order of the log, and last of all one [`Delivery::End`]. An error
/// instead says that there will be no end.
pub struct NamedReader {
    subscriber: Subscriber<ByName>,
}

impl NamedReader {
    /// The ring of an execution in `/dev/shm`. Of the options, `kinds` cannot be chosen, and
    /// neither can the policies `block` and `disconnect`; `from` a chunk, only one that is held.
    ///
    /// # Errors
    /// [`DoorError::NoServer`]: there is no such file. [`DoorError::Named`]: there is one that is
    /// not to be believed. [`DoorError::Unfit`]: the options.
    pub fn open(execution: ExecutionId, options: &ReadOptions) -> Result<NamedReader, DoorError> {
        NamedReader::open_in(Path::new(FOLDER), execution, options)
    }

    /// The same in another folder.
    ///
    /// # Errors
    /// As [`NamedReader::open`].
    pub fn open_in(
        folder: &Path,
        execution: ExecutionId,
        options: &ReadOptions,
    ) -> Result<NamedReader, DoorError> {
        let policy = options.policy.unwrap_or(Policy::Drop);
        if matches!(policy, Policy::Block | Policy::Disconnect) {
            return Err(DoorError::Unfit(
                "by name, nobody waits for a reader or lets it go: \
                 the policy cannot be block or disconnect",
            ));
        }
        if !options.kinds.is_all() {
            return Err(DoorError::Unfit("by name, all kinds are read"));
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
        let shared = Shared { id: execution, reader, control, page, anchor };
        let link = ByName { shared, view, flaw: Cell::new(None) };
        let replay = None; // What a reader of shared memory was given is not lost.
        let subscribed =
            Subscribed { subscriber, execution: execution.slot, terms, cursor, replay };
        let mut subscriber = Subscriber::of_link(link, &subscribed, None, Clock::now());
        subscriber.headers_only(options.headers_only);
        Ok(NamedReader { subscriber })
    }

    /// What it reads.
    pub fn execution(&self) -> ExecutionId {
        self.subscriber.link().shared.id
    }

    /// Its name: nobody else is called anything here.
    pub fn id(&self) -> SubscriberId {
        self.subscriber.id()
    }

    /// The next chunk that it will be given or told of.
    pub fn next_seq(&self) -> u64 {
        self.subscriber.next_seq()
    }

    /// What holds for it.
    pub fn terms(&self) -> Terms {
        self.subscriber.terms()
    }

    /// What is owed next, if anything is at this moment; `None` for ever after the end. Makes no
    /// system call, and does not find out that the owner has died: [`NamedReader::next`] does.
    ///
    /// # Errors
    /// [`DoorError::Unsound`].
    pub fn poll(&mut self) -> Result<Option<Delivery<'_>>, DoorError> {
        Ok(self.subscriber.try_poll()?)
    }

    /// The next delivery; waits for it. `None` after the end.
    ///
    /// # Errors
    /// As [`NamedReader::poll`]; [`DoorError::ServerGone`] once everything was given that could be.
    #[expect(clippy::should_implement_trait, reason = "a lending iterator, which std has not")]
    pub fn next(&mut self) -> Result<Option<Delivery<'_>>, DoorError> {
        self.next_until(Instant::FAR)
    }

    /// As [`NamedReader::next`], at most for `timeout`: `None` also if nothing came.
    ///
    /// # Errors
    /// As [`NamedReader::next`].
    pub fn next_within(&mut self, timeout: Duration) -> Result<Option<Delivery<'_>>, DoorError> {
        self.next_until(Clock::now().saturating_add(timeout))
    }

    fn next_until(&mut self, deadline: Instant) -> Result<Option<Delivery<'_>>, DoorError> {
        loop {
            // Asked before what comes is looked at: who goes publishes nothing more.
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

/// Where to begin, and what was before.
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
        Poll::Pending => Err(DoorError::Unfit("by name, what has not come yet is `live`")),
        Poll::Overtaken { .. } => {
            Err(DoorError::Unfit("the chunk before the one to begin with is no longer held"))
        }
        Poll::Gone | Poll::Corrupt => Err(Flaw::Ring.into()),
    }
}

/// Behind the newest chunk.
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

/// A link to an owner that does not know of us.
struct ByName {
    /// Nobody looks at the page.
    shared: Shared,
    view: NamedView,
    /// What was found to be wrong: nothing comes after that.
    flaw: Cell<Option<Flaw>>,
}

impl Link for ByName {
    type Fault = Flaw;
    const IS_FOREIGN: bool = true;

    #[inline]
    fn shared(&self) -> &Shared {
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
        0 // Nobody can let it go.
    }

    fn acked_seq(&self) -> u64 {
        0
    }

    fn fall_asleep(&self) {} // The owner wakes whoever sleeps on its words.

    fn wake_up(&self) {}

    fn sleep_until(&self, deadline: Instant) -> Instant {
        (Clock::now() + limits::DOOR_SLEEP_MAX).min(deadline)
    }

    fn is_up(&self) -> bool {
        self.view.is_left().is_ok_and(|is_left| !is_left)
    }

    fn ring(&self) {}

    fn leave(&self, _how: Left) {}

    fn exit(&self) -> Option<Exit> {
        exit_of_code(self.shared.control.exit())
    }

    #[cold]
    fn fault(&self, flaw: Flaw) -> Flaw {
        // A ring of zeros, because its file was cut off.
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
