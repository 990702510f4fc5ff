//! A subscriber on another thread. It reads the ring and evaluates its policy by itself.
//!
//! Owned by the thread that holds it. The shard learns about it only through its page, which holds
//! its cursor, and through its signals. While it keeps up, a chunk costs one cache line that moves
//! between cores, with the descriptor that it polls. The payload is added if it is read.
//!
//! It gives out a checked copy of the bytes, also under `block`. A subscriber that stalls is
//! detached while it may still be reading its last chunk, and the ring then continues without it. A
//! subscriber that needs no bytes calls [`Subscriber::headers_only`] and pays for none.
//!
//! A subscriber that reads for a connection of another shard differs in three ways. It sleeps in
//! that shard's reactor ([`Subscriber::rest`]). Its connection can break, and then it comes back
//! for the chunks that it was given last ([`Subscriber::keep_its_place`]). Its client may
//! acknowledge (`window.rs`).
//!
//! Tests: `shard/readers_tests.rs`, `sim/campaigns.rs`, and of audiences `audience_tests.rs`.

pub(crate) mod audience;
pub(crate) mod link;
mod log;
pub(crate) mod refill;
mod remote;
mod skip;
mod wait;

use std::fmt;
use std::time::Duration;

use link::{Flaw, Link, ThreadLink};
use wait::wait_among;

use super::delivery::{Chunk, Delivery, Ended, Reported, detach_of_code};
use super::window::Window;
#[cfg(any(test, fuzzing))]
use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Instant, SubscriberId};
use crate::engine::Subscribed;
use crate::engine::policy::Cursor;
use crate::memory::{ClockAnchor, Descriptor, LeaveReason, Poll, ProgressRecord, ReadError};
use crate::reactor::Clock;
use crate::stream::{
    DetachReason, End, EndState, Gap, Kind, Outcome, Policy, Progress, Terms, Totals,
};
use crate::trace::probe;

/// Longest sleep. After it the reader checks again that nothing has come.
const WAIT_MAX: Duration = Duration::from_secs(3_600);
/// Number of attempts to find the next delivery in memory that another process may be changing.
const STEPS_MAX: u32 = 1 << 16;

/// A subscriber that may live on any thread. Dropping it unsubscribes.
///
/// Its parameter is its link to its shard. Programs leave it at its default.
///
/// ```
/// use std::time::Duration;
/// use streamdoor::{Delivery, Subscriber};
///
/// /// Reads until the end, or until nothing comes for a second.
/// fn read(mut subscriber: Subscriber) -> usize {
///     let mut byte_count = 0;
///     while let Some(delivery) = subscriber.next_within(Duration::from_secs(1)) {
///         match delivery {
///             Delivery::Chunk(chunk) => byte_count += chunk.data.len(),
///             Delivery::End(_) => break,
///             Delivery::Gap(_) | Delivery::Progress(_) => {}
///         }
///     }
///     byte_count
/// }
/// ```
pub struct Subscriber<L: Link = ThreadLink> {
    link: L,
    id: SubscriberId,
    terms: Terms,
    cursor: Cursor,
    /// One past the last chunk that is owed for certain, without another look at the policy.
    granted_seq: u64,
    /// The cursor that the shard can see.
    shown_seq: u64,
    /// The cursor that the shard was last told of by ringing.
    rung_seq: u64,
    /// The last knock of the shard that was handled.
    epoch: u64,
    /// True if the shard wants to be told once, for this knock, when the cursor moves.
    wanted: bool,
    /// True if something other than chunks may have come.
    unsettled: bool,
    fresh: bool,
    start: Totals,
    /// Totals of the chunks of its kinds that were gone when it came; the maximum if the ring does
    /// not say.
    gone: Totals,
    missed: Totals,
    since: Instant,
    reports_told: u64,
    /// The last progress that was read, with its texts.
    record: Option<Box<ProgressRecord>>,
    /// The knock after which progress was last looked for.
    reports_seen: u64,
    ended: bool,
    /// One past the last chunk, once the execution has ended. Chunks that another process has
    /// published from there on are not part of the execution.
    end_seq: u64,
    /// True if everything is owed (`block`, level) and the policy need not be evaluated.
    is_plain: bool,
    window: Option<Window>,
    replay: Option<crate::engine::Replay>,
    /// The time for its end, if that comes from a shard instead of the clock.
    now: Option<Instant>,
    /// The way in which it will leave.
    leaves: LeaveReason,
    /// The clocks of the last chunk. One from the disk may be of an earlier process.
    anchor: ClockAnchor,
    buffer: Box<[u8]>,
    headers_only: bool,
    error: String,
    /// True while it waits for the disk, because the ring no longer holds its next chunk.
    awaits_disk: bool,
    /// True if the shard was told that it is level: see `engine/policy.rs`.
    is_level: bool,
    /// The chunk at which it left the ring for the disk, and totals of the chunks of its kinds
    /// before that one.
    left_ring: (u64, Totals),
    /// True if another process was still writing after the maximum number of attempts. The reader
    /// looks again, but not at once.
    is_torn: bool,
}

/// A delivery whose bytes, if it has any, are in the buffer.
pub(crate) enum Ready {
    Chunk(Descriptor),
    Gap(Gap),
    /// Its texts are in `record`.
    Progress(Progress),
    End(End),
}

/// The reason why the fast path has no chunk to give.
enum Absent {
    /// It has not been written yet.
    Pending,
    /// `advance` has to be called.
    Other,
}

/// Nothing is due, and the shard has said nothing.
struct IsQuiet;

/// The next item in the ring.
enum Next<F> {
    Nothing,
    Chunk(Descriptor),
    /// A chunk from the disk. Its bytes are in the buffer.
    Refilled(Descriptor),
    Gap(Gap),
    Ended(Outcome),
    Detached(DetachReason),
    /// A chunk was skipped, or has to be looked at again.
    Again,
    Fault(F),
}

impl<L: Link> Subscriber<L> {
    pub(crate) fn of_link(
        link: L,
        subscribed: &Subscribed,
        ack_window: Option<u32>,
        now: Instant,
    ) -> Subscriber<L> {
        let reader = &link.shared().reader;
        let buffer_bytes = reader.geometry().length_max() as usize;
        // The engine may not have been told yet of everything that the ring holds.
        let cursor = match subscribed.cursor.is_away() {
            true => subscribed.cursor,
            false => subscribed.cursor.coming_at(reader.head_seq()),
        };
        let is_level = !cursor.is_away();
        let tail = reader.tail_totals();
        let unknown = Totals { chunks: u64::MAX, bytes: u64::MAX };
        let gone = tail.map_or(unknown, |tail| tail.kinds.of(subscribed.terms.kinds));
        let mut subscriber = Subscriber {
            id: subscribed.subscriber,
            terms: subscribed.terms,
            cursor,
            granted_seq: 0,
            shown_seq: subscribed.cursor.next_seq,
            rung_seq: 0,
            epoch: 0,
            wanted: false,
            unsettled: true,
            fresh: true,
            start: subscribed.cursor.seen,
            gone,
            missed: Totals::ZERO,
            since: now,
            reports_told: 0,
            record: None,
            reports_seen: u64::MAX,
            ended: false,
            end_seq: u64::MAX,
            is_plain: subscribed.terms.policy == Policy::Block && ack_window.is_none() && is_level,
            window: ack_window
                .map(|count| Window::new(count, subscribed.replay, subscribed.cursor.next_seq)),
            replay: subscribed.replay,
            now: None,
            leaves: LeaveReason::Done,
            anchor: link.shared().anchor,
            buffer: vec![0; buffer_bytes].into_boxed_slice(),
            headers_only: false,
            error: String::new(),
            awaits_disk: false,
            is_level,
            left_ring: (0, Totals::ZERO),
            is_torn: false,
            link,
        };
        subscriber.note_end();
        subscriber
    }

    /// The id of the subscriber.
    pub fn id(&self) -> SubscriberId {
        self.id
    }

    /// The agreed terms, with defaults filled in.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The next chunk that it will be given or told of in a gap.
    pub fn next_seq(&self) -> u64 {
        self.cursor.next_seq
    }

    /// The first chunk that counts as its lag. Earlier ones were in the ring when it came.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn lag_begins(&self) -> u64 {
        self.cursor.lag_begins(self.cursor.next_seq)
    }

    /// Sets whether chunks come without their bytes: `data` is then empty. It is for subscribers
    /// that only count, time or draw chunks. Only descriptors are read.
    pub fn headers_only(&mut self, headers_only: bool) {
        self.headers_only = headers_only;
    }

    /// Does the work of [`Subscriber::poll`].
    #[inline]
    pub(crate) fn try_poll(&mut self) -> Result<Option<Delivery<'_>>, L::Fault> {
        self.show_cursor();
        match self.next_at_once() {
            Some(Ok(descriptor)) => {
                let chunks_expected = self.link.shared().control.chunks_expected();
                return self.chunk(&descriptor, chunks_expected).map(Some);
            }
            Some(Err(IsQuiet)) => return Ok(None),
            None => {}
        }
        match self.advance()? {
            Some(ready) => self.render(ready).map(Some),
            None => Ok(None),
        }
    }

    /// Does the work of [`Subscriber::drain`].
    #[inline]
    pub(crate) fn try_drain(
        &mut self,
        count_max: usize,
        mut take: impl FnMut(Delivery<'_>),
    ) -> Result<usize, L::Fault> {
        if L::IS_FOREIGN {
            self.show_cursor(); // The execution may have ended since the last call.
        }
        let chunks_expected = self.link.shared().control.chunks_expected();
        let mut count = 0;
        loop {
            // Chunks in a row are given here. `advance` handles everything between them.
            while count < count_max {
                match self.next_at_once() {
                    Some(Ok(descriptor)) => {
                        take(self.chunk(&descriptor, chunks_expected)?);
                        count += 1;
                    }
                    Some(Err(IsQuiet)) => return Ok(count),
                    None => break,
                }
            }
            if count == count_max {
                self.show_cursor();
                return Ok(count);
            }
            let Some(ready) = self.advance()? else { return Ok(count) };
            self.give(ready, &mut take)?;
            count += 1;
        }
    }

    /// Returns the next chunk if it is owed for certain, or [`IsQuiet`] if nothing is due. Returns
    /// `None` if [`Subscriber::advance`] has to find what comes.
    #[inline(always)] // Descriptors are large, so none of them is moved.
    fn next_at_once(&mut self) -> Option<Result<Descriptor, IsQuiet>> {
        let next_seq = self.cursor.next_seq;
        if !self.is_plain && next_seq >= self.granted_seq {
            return None;
        }
        match self.next_wanted(next_seq) {
            Ok(descriptor) => {
                self.cursor.step(Some(descriptor.length));
                self.fresh = false;
                probe!(receive, descriptor.seq, descriptor.length);
                Some(Ok(descriptor))
            }
            Err(Absent::Pending) => {
                self.show_cursor();
                self.is_quiet().then_some(Err(IsQuiet))
            }
            Err(Absent::Other) => None,
        }
    }

    /// True if it is owed whatever `other` is owed.
    fn is_abreast(&self, other: &Subscriber<L>) -> bool {
        (self.cursor, self.terms) == (other.cursor, other.terms)
            && (self.is_plain, self.fresh) == (other.is_plain, other.fresh)
            && self.headers_only == other.headers_only
            && !self.cursor.is_claimed() // Each has its own idea of what it has seen.
            && self.window.is_none()
            && other.window.is_none()
            && !self.ended
            && !other.ended
    }

    /// Takes over the cursor of a subscriber that stood abreast, because it was given what that one
    /// was given.
    #[inline]
    fn take_over(&mut self, lead: &Subscriber<L>) {
        self.cursor = lead.cursor;
        (self.granted_seq, self.fresh) = (lead.granted_seq, lead.fresh);
        self.awaits_disk = false; // The leader asks. Without it, this one asks by itself.
        if self.is_level == self.cursor.is_away() {
            self.tell_level();
        }
    }

    /// Gives one delivery. It is separate from the loop for chunks, so that `take` is inlined
    /// there.
    #[inline(never)]
    fn give(&mut self, ready: Ready, take: &mut impl FnMut(Delivery<'_>)) -> Result<(), L::Fault> {
        take(self.render(ready)?);
        Ok(())
    }

    /// Reads the next chunk, with its bytes if they are wanted.
    #[inline(always)] // Descriptors are large, so none of them is moved.
    fn next_wanted(&mut self, seq: u64) -> Result<Descriptor, Absent> {
        let reader = &self.link.shared().reader;
        if self.terms.kinds.is_all() && !self.headers_only {
            return match reader.read(seq, &mut self.buffer) {
                Ok(descriptor) => Ok(descriptor),
                Err(ReadError::Pending) => Err(Absent::Pending),
                Err(_) => Err(Absent::Other),
            };
        }
        match reader.poll(seq) {
            Poll::Ready(descriptor) if self.is_wanted(&descriptor) && self.fetch(&descriptor) => {
                Ok(descriptor)
            }
            Poll::Pending => Err(Absent::Pending),
            _ => Err(Absent::Other),
        }
    }

    /// True if the shard has said nothing that was not handled.
    #[inline]
    fn is_quiet(&self) -> bool {
        !self.unsettled && self.reports_seen == self.epoch
    }

    /// True if its end was given, or if it is broken.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }

    /// The link.
    pub(crate) fn link(&self) -> &L {
        &self.link
    }

    /// Moves the cursor over the next delivery, and returns it.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<Option<Ready>, L::Fault> {
        if self.ended {
            return Ok(None);
        }
        self.show_cursor();
        let mut step_count = 0;
        loop {
            match self.look_within_window() {
                Next::Chunk(descriptor) => {
                    if !self.is_wanted(&descriptor) {
                        self.cursor.step(None);
                    } else if self.fetch(&descriptor) {
                        self.anchor = self.link.shared().anchor;
                        self.cursor.step(Some(descriptor.length));
                        self.fresh = false;
                        probe!(receive, descriptor.seq, descriptor.length);
                        if let Some(window) = &mut self.window {
                            window.tell(descriptor.seq);
                        }
                        return Ok(Some(Ready::Chunk(descriptor)));
                    }
                }
                Next::Refilled(descriptor) => {
                    let refill = self.link.refill().expect("it has just given that");
                    self.anchor = refill.anchor();
                    self.cursor.step(Some(descriptor.length));
                    self.fresh = false;
                    if let Some(window) = &mut self.window {
                        window.tell(descriptor.seq);
                    }
                    return Ok(Some(Ready::Chunk(descriptor)));
                }
                Next::Again => {}
                Next::Nothing if self.reports_seen == self.epoch => return Ok(None),
                Next::Nothing => {
                    self.reports_seen = self.epoch; // No progress comes without a knock.
                    return Ok(self.report().map(Ready::Progress));
                }
                Next::Gap(gap) => return Ok(Some(Ready::Gap(gap))),
                Next::Ended(outcome) => return Ok(Some(self.end(outcome))),
                Next::Detached(reason) => {
                    let resume_from = self.cursor.next_seq;
                    return Ok(Some(self.finish(EndState::Detached { reason, resume_from })));
                }
                Next::Fault(fault) => return Err(fault),
            }
            step_count += 1;
            if L::IS_FOREIGN && step_count == STEPS_MAX {
                self.is_torn = true; // The other process writes without end.
                return Ok(None);
            }
        }
    }

    #[inline]
    pub(crate) fn render(&mut self, ready: Ready) -> Result<Delivery<'_>, L::Fault> {
        Ok(match ready {
            Ready::Chunk(descriptor) => {
                return self.chunk(&descriptor, self.link.shared().control.chunks_expected());
            }
            Ready::Gap(gap) => Delivery::Gap(gap),
            Ready::Progress(progress) => {
                let record = self.record.as_deref();
                let message = record.map(|record| record.message.as_str());
                let context = record.map(|record| record.context.as_str());
                let (message, context) = (message.and_then(said), context.and_then(said));
                Delivery::Progress(Reported { progress, message, context })
            }
            Ready::End(end) => Delivery::End(Ended { end, error: said(&self.error) }),
        })
    }

    #[inline]
    fn chunk(
        &mut self,
        descriptor: &Descriptor,
        chunks_expected: Option<u64>,
    ) -> Result<Delivery<'_>, L::Fault> {
        if Kind::new(descriptor.header.kind).is_none() {
            return Err(self.broken(Flaw::Kind));
        }
        let length = if self.headers_only { 0 } else { descriptor.length as usize };
        let data = &self.buffer[..length];
        let (execution, anchor) = (self.link.shared().id, self.anchor);
        let chunk = Chunk::new(execution, chunks_expected, descriptor, data, anchor);
        Ok(Delivery::Chunk(chunk.expect("its kind is known")))
    }

    /// Ends the subscription with a fault, because nothing after it can be trusted.
    #[cold]
    fn broken(&mut self, flaw: Flaw) -> L::Fault {
        self.ended = true;
        (self.is_plain, self.granted_seq) = (false, 0);
        self.link.fault(flaw)
    }

    /// Blocks until something may have come or the shard may be gone. Returns false if the deadline
    /// passed first.
    pub(crate) fn wait(&mut self, deadline: Instant) -> bool {
        wait_among(&mut [self], deadline)
    }

    /// True if a chunk, a gap or a knock has come.
    pub(crate) fn has_news(&self) -> bool {
        let next_seq = self.cursor.next_seq;
        let is_held = self.awaits_disk || self.window.is_some_and(|window| window.holds(next_seq));
        next_seq < self.granted_seq
            || (!is_held && !matches!(self.link.shared().reader.poll(next_seq), Poll::Pending))
            || self.link.epoch() != self.epoch
    }

    /// Publishes the cursor, because everything before it has been processed, and handles a knock
    /// of the shard.
    #[inline]
    fn show_cursor(&mut self) {
        let next_seq = self.cursor.next_seq;
        if self.shown_seq != next_seq {
            self.shown_seq = next_seq;
            self.link.shared().page.set_cursor(next_seq);
        }
        let epoch = self.link.epoch();
        if epoch != self.epoch || self.wanted {
            self.answer_knock(epoch);
        }
    }

    /// Rings once for each knock, if the shard wants the cursor and was last told of another one.
    /// The ring is a read-modify-write after the cursor's store, so a shard that sees the ring sees
    /// the cursor.
    #[cold]
    fn answer_knock(&mut self, epoch: u64) {
        if epoch != self.epoch {
            self.epoch = epoch;
            self.unsettled = true;
            self.wanted = self.link.shared().control.attention_hint();
            self.note_end();
        }
        if self.wanted && self.rung_seq != self.shown_seq {
            self.wanted = false;
            self.rung_seq = self.shown_seq;
            self.link.ring();
        }
    }

    /// Notes where the execution has ended, because the ring may hold more: another process may
    /// have published chunks that the shard did not accept.
    fn note_end(&mut self) {
        if L::IS_FOREIGN
            && let Some(record) = self.link.shared().control.final_record()
        {
            self.end_seq = record.head_seq.saturating_add(1);
            self.granted_seq = self.granted_seq.min(self.end_seq);
            self.is_plain = false;
        }
    }

    /// Returns the next item in the ring, within the policy and the window of acknowledgements.
    #[inline]
    fn look_within_window(&mut self) -> Next<L::Fault> {
        let next = self.look();
        if let (Next::Chunk(descriptor), Some(mut window)) = (&next, self.window)
            && self.is_wanted(descriptor)
        {
            let is_admitted = window.admits(descriptor.into(), self.link.acked_seq(), |seq| {
                match self.link.shared().reader.poll(seq) {
                    Poll::Ready(descriptor) => Some((&descriptor).into()),
                    _ => None,
                }
            });
            self.window = Some(window);
            if !is_admitted {
                self.granted_seq = 0; // When it continues, the policy has to be evaluated again.
                let detached = detach_of_code(self.link.detached());
                return detached.map_or(Next::Nothing, Next::Detached);
            }
        }
        next
    }

    /// Returns the next item in the ring, within the policy.
    #[inline]
    fn look(&mut self) -> Next<L::Fault> {
        let next_seq = self.cursor.next_seq;
        if L::IS_FOREIGN && next_seq >= self.end_seq {
            return self.look_around();
        }
        let decides = self.terms.policy != Policy::Block || self.cursor.is_away();
        if next_seq >= self.granted_seq && decides {
            return self.evaluate();
        }
        match self.link.shared().reader.poll(next_seq) {
            Poll::Ready(descriptor) => Next::Chunk(descriptor),
            Poll::Pending if !self.unsettled => Next::Nothing,
            Poll::Pending => self.look_around(),
            Poll::Overtaken { .. } => self.skip_overtaken(),
            Poll::Gone if !L::IS_FOREIGN => self.skip_overtaken(),
            Poll::Gone | Poll::Corrupt => self.meet_flaw(Flaw::Ring),
        }
    }

    #[inline]
    fn is_wanted(&self, descriptor: &Descriptor) -> bool {
        self.terms.kinds.is_all()
            || Kind::new(descriptor.header.kind).is_some_and(|kind| self.terms.kinds.contains(kind))
    }

    /// Copies the bytes. Returns false if they are gone; the next look then finds the reason.
    #[inline]
    fn fetch(&mut self, descriptor: &Descriptor) -> bool {
        if self.headers_only {
            return true;
        }
        match self.link.shared().reader.copy(descriptor, &mut self.buffer) {
            Ok(()) => true,
            Err(ReadError::Overtaken { .. } | ReadError::Gone) => {
                self.granted_seq = 0;
                false
            }
            Err(_) => {
                self.granted_seq = 0;
                assert!(L::IS_FOREIGN); // A ring that this process wrote has no other errors.
                false // The next look finds the reason.
            }
        }
    }

    /// Returns progress that was not delivered yet.
    fn report(&mut self) -> Option<Progress> {
        let record = self.link.shared().control.progress()?;
        if record.reports <= self.reports_told {
            return None;
        }
        self.reports_told = record.reports;
        let (progress, total) = (record.progress, record.total);
        let report_count = record.reports;
        match &mut self.record {
            Some(last) => **last = record,
            None => self.record = Some(Box::new(record)),
        }
        Some(Progress { progress, total, report_count })
    }

    fn end(&mut self, outcome: Outcome) -> Ready {
        if let Some(progress) = self.report() {
            return Ready::Progress(progress);
        }
        self.error = self.link.shared().control.error_text().as_str().to_owned();
        self.finish(EndState::Ended(outcome))
    }

    fn finish(&mut self, state: EndState) -> Ready {
        self.ended = true;
        self.leaves = LeaveReason::Done;
        (self.is_plain, self.granted_seq) = (false, 0); // Nothing comes after this.
        let given = self.cursor.seen - self.start - self.missed;
        let now = self.now.unwrap_or_else(Clock::now);
        let duration_us = now.since(self.since).as_micros() as u64;
        let (published, exit) = match state {
            EndState::Ended(_) => {
                // Not what the cursor has passed, which a client that came back may have claimed.
                let record = self.link.shared().control.final_record();
                let all = record.map(|record| record.totals.of(self.terms.kinds));
                (all.unwrap_or(self.cursor.seen), self.link.exit())
            }
            EndState::Detached { .. } => (self.cursor.seen, None),
        };
        Ready::End(End { state, given, missed: self.missed, published, duration_us, exit })
    }
}

impl Subscriber {
    /// The execution that it follows.
    pub fn execution(&self) -> ExecutionId {
        self.link.shared.id
    }

    /// Returns the next delivery, if there is one at this moment. Returns `None` for ever after the
    /// end. Never blocks, and makes a system call only if the shard waits for this reader.
    #[inline]
    pub fn poll(&mut self) -> Option<Delivery<'_>> {
        let Ok(delivery) = self.try_poll();
        delivery
    }

    /// Calls `take` with every delivery that is due at this moment, up to `count_max`. Returns
    /// their number. It costs less than repeated calls of [`Subscriber::poll`]: the cursor is shown
    /// to the producer once, at the end.
    #[inline]
    pub fn drain(&mut self, count_max: usize, take: impl FnMut(Delivery<'_>)) -> usize {
        let Ok(count) = self.try_drain(count_max, take);
        count
    }

    /// Returns the next delivery. Polls for a little, then blocks until there is one.
    ///
    /// # Panics
    /// After the end.
    #[expect(
        clippy::should_implement_trait,
        reason = "a lending iterator, which std does not have"
    )]
    pub fn next(&mut self) -> Delivery<'_> {
        assert!(!self.ended, "nothing comes after the end");
        let ready = loop {
            let Ok(ready) = self.advance();
            match ready {
                Some(ready) => break ready,
                None => self.wait(Clock::now() + WAIT_MAX),
            };
        };
        let Ok(delivery) = self.render(ready);
        delivery
    }

    /// Like [`Subscriber::next`], but waits for `timeout` at most. `None` if nothing came, or after
    /// the end.
    pub fn next_within(&mut self, timeout: Duration) -> Option<Delivery<'_>> {
        let deadline = Clock::now() + timeout;
        loop {
            let Ok(ready) = self.advance();
            if let Some(ready) = ready {
                let Ok(delivery) = self.render(ready);
                return Some(delivery);
            }
            if self.ended || !self.wait(deadline) {
                return None;
            }
        }
    }

    /// Does the first half of falling asleep, for a simulation. Before the second half, the
    /// simulation does what another thread could do in between. Returns false if there is no reason
    /// to sleep.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn lie_down(&mut self) -> bool {
        if self.ended {
            return false;
        }
        if planted(Planted::AsleepAfterCheck) {
            return !self.has_news();
        }
        self.link.fall_asleep();
        true
    }

    /// Does the second half. Returns the words that it sleeps on; `None` if something has come.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn doze(&mut self) -> Option<[usize; 2]> {
        use crate::memory::interleave::name_of;
        if planted(Planted::AsleepAfterCheck) {
            self.link.fall_asleep();
        } else if self.has_news() {
            self.link.wake_up();
            return None;
        }
        Some([name_of(self.link.shared().reader.head_word()), name_of(self.link.epoch_word())])
    }

    /// Ends the sleep.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn rise(&mut self) {
        self.link.wake_up();
    }
}

/// Returns the text, unless it is empty.
fn said(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

impl<L: Link> Drop for Subscriber<L> {
    fn drop(&mut self) {
        self.link.leave(self.leaves);
    }
}

impl<L: Link> fmt::Debug for Subscriber<L> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Subscriber({} of {}, {:?})", self.id, self.link.shared().id, self.cursor)
    }
}
