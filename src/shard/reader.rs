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
//! Tests: `tests.rs` beside this file, `tests/threads.rs`, `sim/campaigns.rs`.

#[cfg(feature = "server")]
mod afar;
pub(crate) mod link;
mod log;
mod skip;

use std::fmt;
use std::time::Duration;

use super::delivery::{Chunk, Delivery, Ended, Reported, detach_of_code};
use super::window::Window;
#[cfg(any(test, fuzzing))]
use crate::base::planted::{Planted, planted};
use crate::base::{Instant, SubscriberId};
use crate::engine::policy::Cursor;
use crate::engine::{
    DetachReason, End, EndState, Gap, Kind, Outcome, Progress, Subscribed, Totals,
};
use crate::limits;
use crate::memory::atomic::spin_hint;
use crate::memory::{Descriptor, Left, Poll, ProgressRecord, ReadError, WaitOutcome, futex};
use crate::reactor::Clock;
use crate::stream::{Policy, Terms};
use crate::trace::probe;
use link::{Flaw, Link, Near};

/// One sleep; then it looks again whether there really is nothing.
const WAIT_MAX: Duration = Duration::from_secs(3_600);
/// So often it is looked for the next delivery in what another process may be changing meanwhile.
const STEPS_MAX: u32 = 1 << 16;

/// A subscriber that may live on any thread. Dropping it unsubscribes.
pub struct Subscriber<L: Link = Near> {
    link: L,
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
    /// Chunks of its kinds that were gone when it came; all, where the ring does not say.
    gone: Totals,
    missed: Totals,
    since: Instant,
    reports_told: u64,
    /// The progress that was last looked at, with its texts.
    record: Option<Box<ProgressRecord>>,
    /// The knock after which progress was last looked for.
    reports_seen: u64,
    ended: bool,
    /// The number behind the last chunk, once the execution has ended: what another process has
    /// published from there on is not a part of it.
    end_seq: u64,
    /// Under `block` everything is owed: no look at the policy.
    is_plain: bool,
    window: Option<Window>,
    #[cfg(feature = "server")]
    replay: Option<crate::engine::Replay>,
    /// The time, where it is not the clock's but a shard's: for its last word.
    now: Option<Instant>,
    /// What it says when it goes.
    leaves: Left,
    buffer: Box<[u8]>,
    headers_only: bool,
    error: String,
    /// What was looked at is being written, for longer than that takes: look again, but not at
    /// once.
    is_torn: bool,
}

/// A delivery whose bytes, if it has any, are in the buffer.
pub(crate) enum Ready {
    Chunk(Descriptor),
    Gap(Gap),
    /// With its texts in the record.
    Progress(Progress),
    End(End),
}

/// Why there is no chunk to be given just like that.
enum Absent {
    /// It has not been written yet.
    Pending,
    /// `advance` is to be asked.
    Other,
}

/// What is next in the ring.
enum Next<F> {
    Nothing,
    Chunk(Descriptor),
    Gap(Gap),
    Ended(Outcome),
    Detached(DetachReason),
    /// What was next has been skipped, or is to be looked at again.
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
        // The engine may not have been told yet of all that the ring holds.
        let cursor = subscribed.cursor.coming_at(reader.head_seq());
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
            is_plain: subscribed.terms.policy == Policy::Block && ack_window.is_none(),
            window: ack_window
                .map(|count| Window::new(count, subscribed.replay, subscribed.cursor.next_seq)),
            #[cfg(feature = "server")]
            replay: subscribed.replay,
            now: None,
            leaves: Left::Done,
            buffer: vec![0; buffer_bytes].into_boxed_slice(),
            headers_only: false,
            error: String::new(),
            is_torn: false,
            link,
        };
        subscriber.note_end();
        subscriber
    }

    /// Its name.
    pub fn id(&self) -> SubscriberId {
        self.id
    }

    /// What was agreed, defaults filled in.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The next chunk that it will be given or told of.
    pub fn next_seq(&self) -> u64 {
        self.cursor.next_seq
    }

    /// The first chunk that counts as its lag: earlier ones were there when it came.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn lag_begins(&self) -> u64 {
        self.cursor.lag_begins(self.cursor.next_seq)
    }

    /// From now on chunks come without their bytes: `data` is empty. For who only counts, times or
    /// draws them. The descriptor is all that is read.
    pub fn headers_only(&mut self, headers_only: bool) {
        self.headers_only = headers_only;
    }

    /// See [`Subscriber::poll`].
    #[inline]
    pub(crate) fn try_poll(&mut self) -> Result<Option<Delivery<'_>>, L::Fault> {
        // What nearly every call finds, in one go: the next chunk, or nothing.
        let next_seq = self.cursor.next_seq;
        if self.is_plain || next_seq < self.granted_seq {
            self.show_cursor();
            match self.next_wanted(next_seq) {
                Ok(descriptor) => {
                    self.cursor.step(Some(descriptor.length));
                    self.fresh = false;
                    let chunks_expected = self.link.shared().control.chunks_expected();
                    return self.chunk(&descriptor, chunks_expected).map(Some);
                }
                Err(Absent::Pending) if self.is_quiet() => return Ok(None),
                Err(_) => {}
            }
        }
        match self.advance()? {
            Some(ready) => self.render(ready).map(Some),
            None => Ok(None),
        }
    }

    /// See [`Subscriber::drain`].
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
            // Run after run of chunks; what lies between is for `advance`.
            while count < count_max && (self.is_plain || self.cursor.next_seq < self.granted_seq) {
                match self.next_wanted(self.cursor.next_seq) {
                    Ok(descriptor) => {
                        self.cursor.step(Some(descriptor.length));
                        self.fresh = false;
                        probe!(receive, descriptor.seq, descriptor.length);
                        take(self.chunk(&descriptor, chunks_expected)?);
                        count += 1;
                    }
                    Err(Absent::Pending) => {
                        self.show_cursor();
                        if self.is_quiet() {
                            return Ok(count);
                        }
                        break;
                    }
                    Err(Absent::Other) => break,
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

    /// Apart from where nearly all is given, so that `take` becomes a part of that.
    #[inline(never)]
    fn give(&mut self, ready: Ready, take: &mut impl FnMut(Delivery<'_>)) -> Result<(), L::Fault> {
        take(self.render(ready)?);
        Ok(())
    }

    /// The next chunk, its bytes fetched if they are to be.
    #[inline(always)] // Descriptors are large: none of them is to be moved about.
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

    /// Has the shard said nothing that was not looked at?
    #[inline]
    fn is_quiet(&self) -> bool {
        !self.unsettled && self.reports_seen == self.epoch
    }

    /// Was its end given, or is it broken?
    #[cfg(feature = "server")]
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }

    /// The link.
    #[cfg(feature = "server")]
    pub(crate) fn link(&self) -> &L {
        &self.link
    }

    /// Moves over the next delivery.
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
                        self.cursor.step(Some(descriptor.length));
                        self.fresh = false;
                        probe!(receive, descriptor.seq, descriptor.length);
                        if let Some(window) = &mut self.window {
                            window.tell(descriptor.seq);
                        }
                        return Ok(Some(Ready::Chunk(descriptor)));
                    }
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
                self.is_torn = true; // Somebody plays with us.
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
        let (execution, anchor) = (self.link.shared().id, self.link.shared().anchor);
        let chunk = Chunk::new(execution, chunks_expected, descriptor, data, anchor);
        Ok(Delivery::Chunk(chunk.expect("its kind is known")))
    }

    /// Nothing that comes after this could be believed.
    #[cold]
    fn broken(&mut self, flaw: Flaw) -> L::Fault {
        self.ended = true;
        (self.is_plain, self.granted_seq) = (false, 0);
        self.link.fault(flaw)
    }

    /// Blocks until there may be something to poll, the shard may be gone, or the deadline has
    /// passed: false.
    pub(crate) fn wait(&mut self, deadline: Instant) -> bool {
        if L::IS_FOREIGN && std::mem::take(&mut self.is_torn) {
            std::thread::sleep(limits::DOOR_LOOK_INTERVAL);
            return true;
        }
        if self.spin(deadline) {
            return true;
        }
        self.link.fall_asleep();
        let found = loop {
            let epoch = self.link.epoch();
            let head_seq = self.link.shared().reader.head_seq();
            if self.has_news() || epoch != self.epoch || !self.link.is_up() {
                break true;
            }
            let head = (self.link.shared().reader.head_word(), head_seq as u32);
            let desk = (self.link.epoch_word(), epoch as u32);
            let outcome = futex::wait_either([head, desk], self.link.sleep_until(deadline));
            if outcome == WaitOutcome::Woken {
                // If another process wakes for nothing that can be seen yet, it will be soon.
                let is_news = if L::IS_FOREIGN { self.spin(deadline) } else { self.has_news() };
                if is_news {
                    break true;
                }
            }
            if Clock::now() >= deadline {
                break self.has_news();
            }
        };
        self.link.wake_up();
        found
    }

    /// Looks for a while whether there is anything new.
    fn spin(&self, deadline: Instant) -> bool {
        let until = (Clock::now() + limits::SPIN_DEFAULT).min(deadline);
        loop {
            if self.has_news() {
                return true;
            }
            if Clock::now() >= until {
                return false;
            }
            spin_hint();
        }
    }

    /// Is there a chunk, a gap, or a knock?
    pub(crate) fn has_news(&self) -> bool {
        let next_seq = self.cursor.next_seq;
        let is_held = self.window.is_some_and(|window| window.holds(next_seq));
        next_seq < self.granted_seq
            || (!is_held && !matches!(self.link.shared().reader.poll(next_seq), Poll::Pending))
            || self.link.epoch() != self.epoch
    }

    /// Makes the cursor visible (everything before it has been dealt with), and looks whether the
    /// shard has knocked.
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

    /// Rings once for each knock if the shard wants to know where this reader stands and it stands
    /// elsewhere than it was told. The ring is a read-modify-write, behind the cursor's store: who
    /// hears it sees the cursor.
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

    /// Notes where the execution has ended, if its ring may hold more than that: another process
    /// may have published what the shard did not take.
    fn note_end(&mut self) {
        if L::IS_FOREIGN
            && let Some(record) = self.link.shared().control.final_record()
        {
            self.end_seq = record.head_seq.saturating_add(1);
            self.granted_seq = self.granted_seq.min(self.end_seq);
            self.is_plain = false;
        }
    }

    /// What is next in the ring, as the policy and the window of acknowledgements have it.
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
                self.granted_seq = 0; // What is owed is another question when it goes on.
                let detached = detach_of_code(self.link.detached());
                return detached.map_or(Next::Nothing, Next::Detached);
            }
        }
        next
    }

    /// What is next in the ring, as the policy has it.
    #[inline]
    fn look(&mut self) -> Next<L::Fault> {
        let next_seq = self.cursor.next_seq;
        if L::IS_FOREIGN && next_seq >= self.end_seq {
            return self.look_around();
        }
        if next_seq >= self.granted_seq && self.terms.policy != Policy::Block {
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

    /// Copies the bytes; if they are gone, the next look says so.
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
                assert!(L::IS_FOREIGN); // Of a ring that this process wrote there is no other.
                false // What is looked at next says so.
            }
        }
    }

    /// Progress that was not told yet.
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
        self.leaves = Left::Done;
        (self.is_plain, self.granted_seq) = (false, 0); // Nothing comes after this.
        let given = self.cursor.seen - self.start - self.missed;
        let now = self.now.unwrap_or_else(Clock::now);
        let duration_us = now.since(self.since).as_micros() as u64;
        let (published, exit) = match state {
            EndState::Ended(_) => {
                // Not what the cursor has passed: a client that came back may have said that.
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
    /// What is owed next, if anything is at this moment; `None` for ever after the end. Never
    /// blocks, makes no system call unless the shard waits for word.
    #[inline]
    pub fn poll(&mut self) -> Option<Delivery<'_>> {
        let Ok(delivery) = self.try_poll();
        delivery
    }

    /// Hands everything that is owed at this moment to `take`, at most `count_max` deliveries, and
    /// returns how many that were: as repeated calls of [`Subscriber::poll`], for less. Where the
    /// subscriber stands is shown to the producer once, at the end.
    #[inline]
    pub fn drain(&mut self, count_max: usize, take: impl FnMut(Delivery<'_>)) -> usize {
        let Ok(count) = self.try_drain(count_max, take);
        count
    }

    /// The next delivery. Blocks until there is one; spins for a little first.
    ///
    /// # Panics
    /// After the end.
    #[expect(clippy::should_implement_trait, reason = "a lending iterator, which std has not")]
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

    /// As [`Subscriber::next`], at most for `timeout`: `None` if nothing came, or after the end.
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

    /// The first half of falling asleep, for a simulation: what happens before the second half is
    /// what another thread could do between the two. `false`: there is no reason to.
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

    /// The second half. The words that it sleeps on; `None` if there is news.
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

    /// It was woken.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn rise(&mut self) {
        self.link.wake_up();
    }
}

/// A text, if anything was said.
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
