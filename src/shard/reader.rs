//! A subscriber on another thread: it reads the ring by itself and keeps to its policy by itself.
//!
//! Owned by whatever thread holds it. The shard hears of it only through its page (where it stands)
//! and its desk. While it keeps up, a chunk costs it one cache line that moves between cores: the
//! descriptor it polls, and the payload if it is looked at.
//!
//! The bytes it gives are a checked copy, also under `block`: a subscriber that stalls is detached
//! while it may still be looking at its last chunk, and the ring then goes on without it. Who needs
//! no bytes says so ([`Subscriber::headers_only`]) and pays for none.
//!
//! One that reads for a connection of another shard differs in three things. It sleeps in that
//! shard's reactor ([`Subscriber::rest`]), its connection can break, so that it comes back for what
//! it was given last ([`Subscriber::keep_its_place`]), and its client may acknowledge
//! (`window.rs`).
//!
//! Tests: `tests.rs` beside this file, `tests/threads.rs`, `tests/sim.rs`.

#[cfg(feature = "server")]
mod afar;
mod log;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::delivery::{Chunk, Delivery, Ended, Reported, detach_of_code, outcome_of_code};
use super::run::Bell;
use super::window::Window;
#[cfg(feature = "planted")]
use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, Instant, SubscriberId};
use crate::engine::policy::{self, Cursor, Owed, Policy, Terms};
use crate::engine::{
    DetachReason, End, EndState, Exit, Gap, GapReason, Kind, Outcome, Progress, Subscribed, Totals,
};
use crate::limits;
use crate::memory::atomic::spin_hint;
use crate::memory::{
    ClockAnchor, ControlView, Descriptor, Desk, Exchange, Left, Poll, ProgressRecord, ReadError,
    ReaderPage, RingReader, futex,
};
use crate::reactor::Clock;
use log::{RingLog, sum_of};

/// One sleep; then it looks again whether there really is nothing.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// What a subscriber shares with its shard.
pub(super) struct Link {
    pub id: ExecutionId,
    pub reader: RingReader,
    pub page: ReaderPage,
    pub desk: Arc<Desk>,
    pub bell: Arc<Bell>,
    pub anchor: ClockAnchor,
    pub control: ControlView,
    pub exchange: Arc<Exchange>,
    pub exit: Arc<OnceLock<Exit>>,
}

/// A subscriber that may live on any thread. Dropping it unsubscribes.
pub struct Subscriber {
    link: Link,
    id: SubscriberId,
    terms: Terms,
    cursor: Cursor,
    /// Owed for certain, without looking at the policy again: chunks before this one.
    granted_seq: u64,
    /// The cursor that the shard can see.
    shown_seq: u64,
    /// The cursor that the shard was last told of by ringing.
    rung_seq: u64,
    /// The last knock of the shard that was looked at.
    epoch: u64,
    /// The shard wants to be told when the cursor moves, once for this knock.
    wanted: bool,
    /// There may be something other than chunks.
    unsettled: bool,
    fresh: bool,
    start: Totals,
    missed: Totals,
    since: Instant,
    reports_told: u64,
    /// The progress that was last looked at, with its texts.
    record: Option<Box<ProgressRecord>>,
    /// The knock after which progress was last looked for.
    reports_seen: u64,
    ended: bool,
    /// Under `block` everything is owed: no look at the policy.
    is_plain: bool,
    window: Option<Window>,
    /// The time, where it is not the clock's but a shard's: for its last word.
    now: Option<Instant>,
    /// What it says when it goes.
    leaves: Left,
    buffer: Box<[u8]>,
    headers_only: bool,
    error: String,
}

/// A delivery whose bytes, if it has any, are in the buffer.
enum Ready {
    Chunk(Descriptor),
    Gap(Gap),
    /// With its texts in the record.
    Progress(Progress),
    End(End),
}

/// What is next in the ring.
enum Next {
    Nothing,
    Chunk(Descriptor),
    Gap(Gap),
    Ended(Outcome),
    Detached(DetachReason),
}

impl Subscriber {
    pub(super) fn new(
        link: Link,
        subscribed: &Subscribed,
        ack_window: Option<u32>,
        now: Instant,
    ) -> Subscriber {
        let buffer_bytes = link.reader.geometry().length_max() as usize;
        Subscriber {
            id: subscribed.subscriber,
            terms: subscribed.terms,
            cursor: subscribed.cursor,
            granted_seq: 0,
            shown_seq: subscribed.cursor.next_seq,
            rung_seq: 0,
            epoch: 0,
            wanted: false,
            unsettled: true,
            fresh: true,
            start: subscribed.cursor.seen,
            missed: Totals::ZERO,
            since: now,
            reports_told: 0,
            record: None,
            reports_seen: u64::MAX,
            ended: false,
            is_plain: subscribed.terms.policy == Policy::Block && ack_window.is_none(),
            window: ack_window.map(|count| Window::new(count, subscribed.cursor.next_seq)),
            now: None,
            leaves: Left::Done,
            buffer: vec![0; buffer_bytes].into_boxed_slice(),
            headers_only: false,
            error: String::new(),
            link,
        }
    }

    /// Its name.
    pub fn id(&self) -> SubscriberId {
        self.id
    }

    /// What was agreed, defaults filled in.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// From now on chunks come without their bytes: `data` is empty. For who only counts, times or
    /// draws them. The descriptor is all that is read.
    pub fn headers_only(&mut self, headers_only: bool) {
        self.headers_only = headers_only;
    }

    /// What is owed next, if anything is at this moment; `None` for ever after the end. Never
    /// blocks, makes no system call unless the shard waits for word.
    #[inline]
    pub fn poll(&mut self) -> Option<Delivery<'_>> {
        // What nearly every call finds, in one go: the next chunk, or nothing.
        let next_seq = self.cursor.next_seq;
        if self.is_plain || next_seq < self.granted_seq {
            self.show_cursor();
            match self.link.reader.poll(next_seq) {
                Poll::Ready(descriptor)
                    if self.is_wanted(&descriptor) && self.fetch(&descriptor) =>
                {
                    self.cursor.step(Some(descriptor.length));
                    self.fresh = false;
                    let chunks_expected = self.link.control.chunks_expected();
                    return Some(self.chunk(&descriptor, chunks_expected));
                }
                Poll::Pending if self.is_quiet() => return None,
                _ => {}
            }
        }
        let ready = self.advance()?;
        Some(self.render(ready))
    }

    /// Hands everything that is owed at this moment to `take`, at most `count_max` deliveries, and
    /// returns how many that were: as repeated calls of [`Subscriber::poll`], for less. Where the
    /// subscriber stands is shown to the producer once, at the end.
    #[inline]
    pub fn drain(&mut self, count_max: usize, mut take: impl FnMut(Delivery<'_>)) -> usize {
        let chunks_expected = self.link.control.chunks_expected();
        let mut count = 0;
        loop {
            // Run after run of chunks; what lies between is for `advance`.
            while count < count_max && (self.is_plain || self.cursor.next_seq < self.granted_seq) {
                match self.link.reader.poll(self.cursor.next_seq) {
                    Poll::Ready(descriptor)
                        if self.is_wanted(&descriptor) && self.fetch(&descriptor) =>
                    {
                        self.cursor.step(Some(descriptor.length));
                        self.fresh = false;
                        take(self.chunk(&descriptor, chunks_expected));
                        count += 1;
                    }
                    Poll::Pending => {
                        self.show_cursor();
                        if self.is_quiet() {
                            return count;
                        }
                        break;
                    }
                    _ => break,
                }
            }
            if count == count_max {
                self.show_cursor();
                return count;
            }
            let Some(ready) = self.advance() else { return count };
            take(self.render(ready));
            count += 1;
        }
    }

    /// Has the shard said nothing that was not looked at?
    #[inline]
    fn is_quiet(&self) -> bool {
        !self.unsettled && self.reports_seen == self.epoch
    }

    /// The next delivery. Blocks until there is one; spins for a little first.
    ///
    /// # Panics
    /// After the end.
    #[expect(clippy::should_implement_trait, reason = "a lending iterator, which std has not")]
    pub fn next(&mut self) -> Delivery<'_> {
        assert!(!self.ended, "nothing comes after the end");
        let ready = loop {
            match self.advance() {
                Some(ready) => break ready,
                None => self.wait(Clock::now() + WAIT_MAX),
            };
        };
        self.render(ready)
    }

    /// As [`Subscriber::next`], at most for `timeout`: `None` if nothing came, or after the end.
    pub fn next_within(&mut self, timeout: Duration) -> Option<Delivery<'_>> {
        let deadline = Clock::now() + timeout;
        loop {
            if let Some(ready) = self.advance() {
                return Some(self.render(ready));
            }
            if self.ended || !self.wait(deadline) {
                return None;
            }
        }
    }

    /// Moves over the next delivery.
    #[inline]
    fn advance(&mut self) -> Option<Ready> {
        if self.ended {
            return None;
        }
        self.show_cursor();
        loop {
            match self.look_within_window() {
                Next::Chunk(descriptor) => {
                    if !self.is_wanted(&descriptor) {
                        self.cursor.step(None);
                    } else if self.fetch(&descriptor) {
                        self.cursor.step(Some(descriptor.length));
                        self.fresh = false;
                        if let Some(window) = &mut self.window {
                            window.tell(descriptor.seq);
                        }
                        return Some(Ready::Chunk(descriptor));
                    }
                }
                Next::Nothing if self.reports_seen == self.epoch => return None,
                Next::Nothing => {
                    self.reports_seen = self.epoch; // No progress comes without a knock.
                    return self.report().map(Ready::Progress);
                }
                Next::Gap(gap) => return Some(Ready::Gap(gap)),
                Next::Ended(outcome) => return Some(self.end(outcome)),
                Next::Detached(reason) => {
                    let resume_from = self.cursor.next_seq;
                    return Some(self.finish(EndState::Detached { reason, resume_from }));
                }
            }
        }
    }

    #[inline]
    fn render(&self, ready: Ready) -> Delivery<'_> {
        match ready {
            Ready::Chunk(descriptor) => {
                self.chunk(&descriptor, self.link.control.chunks_expected())
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
        }
    }

    #[inline]
    fn chunk(&self, descriptor: &Descriptor, chunks_expected: Option<u64>) -> Delivery<'_> {
        let length = if self.headers_only { 0 } else { descriptor.length as usize };
        let data = &self.buffer[..length];
        let chunk = Chunk::new(self.link.id, chunks_expected, descriptor, data, self.link.anchor);
        Delivery::Chunk(chunk.expect("this process wrote it"))
    }

    /// Blocks until there may be something to poll, or the deadline has passed: false.
    fn wait(&mut self, deadline: Instant) -> bool {
        let spin_until = (Clock::now() + limits::SPIN_DEFAULT).min(deadline);
        loop {
            if self.has_news() {
                return true;
            }
            let now = Clock::now();
            if now >= spin_until {
                break;
            }
            spin_hint();
        }
        self.link.exchange.fall_asleep();
        let found = loop {
            let epoch = self.link.desk.epoch();
            let head_seq = self.link.reader.head_seq();
            if self.has_news() || epoch != self.epoch {
                break true;
            }
            let head = (self.link.reader.head_word(), head_seq as u32);
            let desk = (self.link.desk.epoch_word(), epoch as u32);
            futex::wait_either([head, desk], deadline);
            if Clock::now() >= deadline {
                break self.has_news();
            }
        };
        self.link.exchange.wake_up();
        found
    }

    /// The first half of falling asleep, for a simulation: what happens before the second half is
    /// what another thread could do between the two. `false`: there is no reason to.
    #[cfg(feature = "planted")]
    pub(crate) fn lie_down(&mut self) -> bool {
        if self.ended {
            return false;
        }
        if planted(Planted::AsleepAfterCheck) {
            return !self.has_news();
        }
        self.link.exchange.fall_asleep();
        true
    }

    /// The second half. The words that it sleeps on; `None` if there is news.
    #[cfg(feature = "planted")]
    pub(crate) fn doze(&mut self) -> Option<[usize; 2]> {
        use crate::memory::interleave::name_of;
        if planted(Planted::AsleepAfterCheck) {
            self.link.exchange.fall_asleep();
        } else if self.has_news() {
            self.link.exchange.wake_up();
            return None;
        }
        Some([name_of(self.link.reader.head_word()), name_of(self.link.desk.epoch_word())])
    }

    /// It was woken.
    #[cfg(feature = "planted")]
    pub(crate) fn rise(&mut self) {
        self.link.exchange.wake_up();
    }

    /// Is there a chunk, a gap, or a knock?
    pub(crate) fn has_news(&self) -> bool {
        let next_seq = self.cursor.next_seq;
        let is_held = self.window.is_some_and(|window| window.holds(next_seq));
        next_seq < self.granted_seq
            || (!is_held && !matches!(self.link.reader.poll(next_seq), Poll::Pending))
            || self.link.desk.epoch() != self.epoch
    }

    /// Makes the cursor visible (everything before it has been dealt with), and looks whether the
    /// shard has knocked.
    #[inline]
    fn show_cursor(&mut self) {
        let next_seq = self.cursor.next_seq;
        if self.shown_seq != next_seq {
            self.shown_seq = next_seq;
            self.link.page.set_cursor(next_seq);
        }
        let epoch = self.link.desk.epoch();
        if epoch != self.epoch || self.wanted {
            self.answer_knock(epoch);
        }
    }

    /// Rings once for each knock if the shard wants to know where this reader stands and it stands
    /// elsewhere than it was told. The ring is a read-modify-write, behind the cursor's store: who
    /// hears it sees the cursor.
    #[cold]
    fn answer_knock(&mut self, epoch: u64) {
        if epoch != self.epoch {
            self.epoch = epoch;
            self.unsettled = true;
            self.wanted = self.link.control.attention_hint();
        }
        if self.wanted && self.rung_seq != self.shown_seq {
            self.wanted = false;
            self.rung_seq = self.shown_seq;
            self.link.bell.waker.wake();
        }
    }

    /// What is next in the ring, as the policy and the window of acknowledgements have it.
    #[inline]
    fn look_within_window(&mut self) -> Next {
        let next = self.look();
        if let (Next::Chunk(descriptor), Some(mut window)) = (&next, self.window)
            && self.is_wanted(descriptor)
        {
            let is_admitted = window.admits(descriptor.seq, self.link.desk.acked_seq());
            self.window = Some(window);
            if !is_admitted {
                self.granted_seq = 0; // What is owed is another question when it goes on.
                let detached = detach_of_code(self.link.desk.detached());
                return detached.map_or(Next::Nothing, Next::Detached);
            }
        }
        next
    }

    /// What is next in the ring, as the policy has it.
    #[inline]
    fn look(&mut self) -> Next {
        let next_seq = self.cursor.next_seq;
        if next_seq >= self.granted_seq && self.terms.policy != Policy::Block {
            return self.evaluate();
        }
        match self.link.reader.poll(next_seq) {
            Poll::Ready(descriptor) => Next::Chunk(descriptor),
            Poll::Pending if !self.unsettled => Next::Nothing,
            Poll::Pending => self.look_around(),
            Poll::Overtaken { .. } | Poll::Gone => self.skip_overtaken(),
            Poll::Corrupt => unreachable!("this process wrote the ring"),
        }
    }

    /// There is no chunk to read: is anything else the matter?
    #[cold]
    fn look_around(&mut self) -> Next {
        if let Some(outcome) = self.final_outcome() {
            return Next::Ended(outcome);
        }
        if let Some(reason) = detach_of_code(self.link.desk.detached()) {
            return Next::Detached(reason);
        }
        if self.link.control.final_record().is_none() {
            self.unsettled = false; // Until the next knock.
        }
        Next::Nothing // Or its last chunks are still to be read.
    }

    /// How the execution has ended, if it has and this subscriber has everything: that is its end,
    /// also where the ring was given to somebody else meanwhile.
    fn final_outcome(&self) -> Option<Outcome> {
        let record = self.link.control.final_record()?;
        let outcome = outcome_of_code(record.verdict.get()).expect("this process wrote it");
        (self.cursor.next_seq > record.head_seq).then_some(outcome)
    }

    /// Asks the policy, with what the ring holds now.
    fn evaluate(&mut self) -> Next {
        let reader = &self.link.reader;
        let next_seq = self.cursor.next_seq;
        if matches!(reader.poll(next_seq), Poll::Pending) {
            return if self.unsettled { self.look_around() } else { Next::Nothing };
        }
        let head_seq = reader.head_seq().max(next_seq);
        let log = RingLog {
            reader,
            head_seq,
            tail_seq: reader.tail_seq(),
            next_seq,
            seen: self.cursor.seen,
        };
        let before = self.cursor;
        let owed = policy::owed(&self.terms, &mut self.cursor, &log);
        let (kinds, fresh) = (self.terms.kinds, self.fresh);
        let next = match owed {
            Owed::Nothing => return self.look_around(),
            Owed::Skip { reason: GapReason::Overtaken, .. } => return self.skip_overtaken(),
            Owed::Disconnect => None,
            Owed::Give { until_seq } => Some(Ok(until_seq)),
            Owed::Skip { until_seq, reason } => {
                Some(Err(self.cursor.skip(kinds, until_seq, reason, &log)))
            }
        };
        // What was computed from is still there, or it was computed from noise.
        if reader.tail_seq() > next_seq || !self.is_ours() {
            self.cursor = before;
            self.fresh = fresh;
            return self.skip_overtaken();
        }
        match next {
            None => self.disconnect(),
            Some(Ok(until_seq)) => {
                // The freshest are owed under these two: one at a time, then ask again.
                let one = matches!(self.terms.policy, Policy::DropOldest | Policy::Conflate)
                    || self.window.is_some();
                self.granted_seq = if one { next_seq + 1 } else { until_seq };
                self.look()
            }
            Some(Err(Some(gap))) => self.gap(gap),
            Some(Err(None)) => self.look(),
        }
    }

    fn is_ours(&self) -> bool {
        self.link.desk.detached() == 0
    }

    /// It lags too far: it ends itself, and the shard hears that it has left.
    fn disconnect(&mut self) -> Next {
        self.leave(Left::Done);
        Next::Detached(DetachReason::Lag)
    }

    /// The ring does not hold the next chunk any more: one exact gap up to what it holds.
    #[cold]
    fn skip_overtaken(&mut self) -> Next {
        if let Some(outcome) = self.final_outcome() {
            return Next::Ended(outcome);
        }
        if let Some(reason) = detach_of_code(self.link.desk.detached()) {
            return Next::Detached(reason);
        }
        // A consistent look; its writer is in this process and will not be in the middle for long.
        let Some(tail) = self.link.reader.tail_totals() else { return Next::Nothing };
        if tail.tail_seq <= self.cursor.next_seq {
            return Next::Nothing; // The window is being given to somebody else: the desk tells.
        }
        let seen = sum_of(&tail.kinds, self.terms.kinds);
        let missed = seen - self.cursor.seen;
        if self.terms.policy == Policy::Disconnect && !self.fresh && missed.chunks > 0 {
            return self.disconnect();
        }
        if missed.chunks == 0 {
            self.cursor = self.cursor.moved_to(tail.tail_seq, seen);
            return self.look();
        }
        let from_seq = self.cursor.next_seq;
        self.cursor = Cursor::new(tail.tail_seq, seen);
        self.granted_seq = 0;
        let late = self.fresh || self.terms.policy == Policy::Block; // The gate has stood since.
        let reason = if late { GapReason::Late } else { GapReason::Overtaken };
        self.fresh = false;
        let to_seq = tail.tail_seq - 1;
        let Totals { chunks: chunk_count, bytes: byte_count } = missed;
        self.gap(Gap { from_seq, to_seq, chunk_count, byte_count, reason })
    }

    fn gap(&mut self, gap: Gap) -> Next {
        self.fresh = false;
        self.missed = self.missed + Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
        self.link.page.set_missed(self.missed.chunks, self.missed.bytes);
        if let Some(window) = &mut self.window {
            window.tell(gap.to_seq);
        }
        Next::Gap(gap)
    }

    #[inline]
    fn is_wanted(&self, descriptor: &Descriptor) -> bool {
        self.terms.kinds.is_all()
            || Kind::new(descriptor.header.kind).is_some_and(|kind| self.terms.kinds.contains(kind))
    }

    /// Copies the bytes; if they are gone, the next look says so.
    #[inline]
    fn fetch(&mut self, descriptor: &Descriptor) -> bool {
        if self.headers_only {
            return true;
        }
        match self.link.reader.copy(descriptor, &mut self.buffer) {
            Ok(()) => true,
            Err(ReadError::Overtaken { .. } | ReadError::Gone) => {
                self.granted_seq = 0;
                false
            }
            Err(error) => unreachable!("of a ring that this process wrote: {error}"),
        }
    }

    /// Progress that was not told yet.
    fn report(&mut self) -> Option<Progress> {
        let record = self.link.control.progress()?;
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
        self.error = self.link.control.error_text().as_str().to_owned();
        self.finish(EndState::Ended(outcome))
    }

    fn finish(&mut self, state: EndState) -> Ready {
        self.ended = true;
        self.leaves = Left::Done;
        (self.is_plain, self.granted_seq) = (false, 0); // Nothing comes after this.
        let given = self.cursor.seen - self.start - self.missed;
        let now = self.now.unwrap_or_else(Clock::now);
        let duration_us = now.since(self.since).as_micros() as u64;
        let exit = match state {
            EndState::Ended(_) => self.link.exit.get().copied(), // Set before the verdict was.
            EndState::Detached { .. } => None,
        };
        Ready::End(End { state, given, missed: self.missed, duration_us, exit })
    }
}

/// A text, if anything was said.
fn said(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

impl Subscriber {
    /// Says so to its shard.
    fn leave(&self, how: Left) {
        self.link.exchange.rouse(self.link.desk.dozes()); // Nobody is to wake it for anything.
        self.link.desk.leave(how);
        self.link.bell.departed.set();
        self.link.bell.waker.wake();
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.leave(self.leaves);
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Subscriber({} of {}, {:?})", self.id, self.link.id, self.cursor)
    }
}
