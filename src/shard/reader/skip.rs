//! The next item for a subscriber if it is not simply the next chunk. It covers chunks that the
//! policy skips, overwritten chunks, chunks that a broken ring lost, and ends.
//!
//! A gap is exact. It is counted from the ring's own totals, all of one moment. If the ring's
//! writer has died while it updated them, the totals of the ended execution are used.

use super::log::RingLog;
use super::refill::{LostStretch, Refilled, Taken, Wish};
use super::{Flaw, Link, Next, Subscriber};
use crate::engine::policy::{self, Owed, fetches, is_near};
use crate::memory::{FinalRecord, LeaveReason, Poll, TailTotals};
use crate::shard::delivery::{detach_of_code, outcome_of_code};
use crate::stream::{DetachReason, Gap, GapReason, Kind, KindTotals, Policy, Totals};
use crate::trace::probe;

/// Highest number of a chunk. No ring of ours gets that far. In another process's ring it would
/// lead to an overflow.
const SEQ_MAX: u64 = 1 << 62;

impl<L: Link> Subscriber<L> {
    /// Looks for something other than a chunk, because there is no chunk to read.
    #[cold]
    pub(super) fn look_around(&mut self) -> Next<L::Fault> {
        let record = self.link.shared().control.final_record();
        if let Some(record) = record
            && self.cursor.next_seq > record.head_seq
        {
            return self.ended_with(&record);
        }
        if let Some(reason) = detach_of_code(self.link.detached()) {
            return Next::Detached(reason);
        }
        match record {
            None => self.unsettled = false, // Until the next knock.
            Some(record) if L::IS_FOREIGN => return self.look_for_rest(&record),
            Some(_) => {} // Its last chunks have not been read yet.
        }
        Next::Nothing
    }

    /// Returns the end if the execution has ended and this subscriber has everything. It is the end
    /// also if the ring belongs to another execution by now.
    fn look_for_end(&mut self) -> Option<Next<L::Fault>> {
        let record = self.link.shared().control.final_record()?;
        (self.cursor.next_seq > record.head_seq).then(|| self.ended_with(&record))
    }

    fn ended_with(&mut self, record: &FinalRecord) -> Next<L::Fault> {
        match outcome_of_code(record.verdict.get()) {
            Some(outcome) => Next::Ended(outcome),
            None => Next::Fault(self.broken(Flaw::Verdict)),
        }
    }

    /// Looks again for the last chunks of an ended execution, in a ring that another process
    /// writes. They are there by now, or will never be.
    fn look_for_rest(&mut self, record: &FinalRecord) -> Next<L::Fault> {
        match self.link.shared().reader.poll(self.cursor.next_seq) {
            Poll::Ready(_) => Next::Again,
            Poll::Overtaken { .. } => self.skip_overtaken(),
            Poll::Pending | Poll::Gone | Poll::Corrupt => self.skip_rest(record),
        }
    }

    /// Handles impossible contents of the ring. If the execution has ended, that may be the reason,
    /// and the missing chunks can be counted. Otherwise the subscription is broken.
    #[cold]
    pub(super) fn meet_flaw(&mut self, flaw: Flaw) -> Next<L::Fault> {
        if let Some(end) = self.look_for_end() {
            return end;
        }
        if let Some(reason) = detach_of_code(self.link.detached()) {
            return Next::Detached(reason);
        }
        match self.link.shared().control.final_record() {
            Some(record) => self.skip_rest(&record),
            None => Next::Fault(self.broken(flaw)),
        }
    }

    /// Skips everything up to the execution's end in one gap.
    fn skip_rest(&mut self, record: &FinalRecord) -> Next<L::Fault> {
        let until_seq = record.head_seq.saturating_add(1);
        self.skip_counted(until_seq, record.totals.of(self.terms.kinds))
    }

    /// Evaluates the policy with the present contents of the ring.
    pub(super) fn evaluate(&mut self) -> Next<L::Fault> {
        if self.cursor.is_away() {
            self.look_for_level();
        }
        let reader = &self.link.shared().reader;
        let next_seq = self.cursor.next_seq;
        if matches!(reader.poll(next_seq), Poll::Pending) {
            return if self.unsettled { self.look_around() } else { Next::Nothing };
        }
        let mut head_seq = reader.head_seq().max(next_seq);
        if L::IS_FOREIGN {
            // No ring holds more than its slots, whatever it says.
            let held_max = u64::from(reader.geometry().slot_count());
            head_seq = head_seq.min(next_seq + held_max).min(self.end_seq - 1);
        }
        let log = RingLog { reader, head_seq, next_seq, seen: self.cursor.seen };
        let before = self.cursor;
        let owed = policy::owed(&self.terms, &mut self.cursor, &log);
        let (kinds, fresh) = (self.terms.kinds, self.fresh);
        let next = match owed {
            Owed::Nothing => return self.look_around(),
            Owed::Disconnect => None,
            Owed::Fetch { .. } => unreachable!("a ring is all that this log knows"),
            Owed::Give { until_seq } => Some(Ok(until_seq)),
            Owed::Skip { until_seq, reason } => {
                Some(Err(self.cursor.skip(kinds, until_seq, reason, &log)))
            }
        };
        // The result is valid only if the chunks that it came from are still there.
        if reader.tail_seq() > next_seq || !self.is_ours() {
            self.cursor = before;
            self.fresh = fresh;
            return self.skip_overtaken();
        }
        match next {
            None => self.disconnect(),
            Some(Ok(until_seq)) => {
                // Under these policies the newest chunks decide: evaluate again after each.
                let one = matches!(
                    self.terms.policy,
                    Policy::DropOldest | Policy::Conflate | Policy::Disconnect
                ) || self.window.is_some();
                self.granted_seq = if one { next_seq + 1 } else { until_seq.max(next_seq + 1) };
                self.look()
            }
            Some(Err(Some(gap))) => self.gap(gap),
            Some(Err(None)) => Next::Again,
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        self.link.detached() == 0
    }

    /// Ends itself because it lags too far. The shard learns that it has left.
    fn disconnect(&mut self) -> Next<L::Fault> {
        self.link.leave(LeaveReason::Done);
        Next::Detached(DetachReason::Lag)
    }

    /// Skips what the ring no longer holds, in one exact gap.
    #[cold]
    pub(super) fn skip_overtaken(&mut self) -> Next<L::Fault> {
        if let Some(end) = self.look_for_end() {
            return end;
        }
        if let Some(reason) = detach_of_code(self.link.detached()) {
            return Next::Detached(reason);
        }
        if self.link.refill().is_some()
            && (fetches(&self.terms, &self.cursor) || self.has_left_ring())
        {
            return self.look_on_disk();
        }
        // The totals are consistent. A living writer does not take long to update them.
        let tail = match self.link.shared().reader.tail_totals() {
            Some(tail) => tail,
            None if L::IS_FOREIGN => match self.tail_of_ended() {
                Some(tail) => tail,
                None => {
                    self.is_torn = true;
                    return Next::Nothing;
                }
            },
            None => return Next::Nothing,
        };
        if tail.tail_seq <= self.cursor.next_seq {
            self.is_torn = true;
            return Next::Nothing; // The window goes to another execution: the signals report it.
        }
        if L::IS_FOREIGN && tail.tail_seq > self.link.shared().reader.head_seq().saturating_add(1) {
            return self.meet_flaw(Flaw::Ring);
        }
        if tail.tail_seq > self.end_seq
            && let Some(record) = self.link.shared().control.final_record()
        {
            return self.skip_rest(&record);
        }
        self.skip_counted(tail.tail_seq, tail.kinds.of(self.terms.kinds))
    }

    /// Finds out whether it has come level. The ring then knows what it has seen.
    #[cold]
    fn look_for_level(&mut self) {
        let reader = &self.link.shared().reader;
        let next_seq = self.cursor.next_seq;
        let is_new = match reader.poll(next_seq) {
            Poll::Pending => true, // Nothing is pending.
            Poll::Ready(_) => false,
            _ => return,
        };
        let mut cursor = self.cursor;
        let mut start = self.start;
        if cursor.is_claimed() {
            let Some(seen) = self.totals_before_next() else { return };
            start = start + cursor.settle(seen);
        }
        let head_seq = reader.head_seq().max(next_seq);
        let log = RingLog { reader, head_seq, next_seq, seen: cursor.seen };
        let is_level = is_new || is_near(&self.terms, &cursor, &log);
        if reader.tail_seq() > next_seq {
            return; // What this comes from is no longer there.
        }
        (self.cursor, self.start) = (cursor, start);
        if is_level {
            self.cursor = cursor.come_level();
            self.granted_seq = 0;
            self.tell_level();
        }
    }

    /// Totals of the chunks of its kinds before its next one, as the ring counts them. `None` if
    /// the ring has moved on meanwhile.
    fn totals_before_next(&self) -> Option<Totals> {
        let reader = &self.link.shared().reader;
        let (kinds, next_seq) = (self.terms.kinds, self.cursor.next_seq);
        if kinds.is_all()
            && let Poll::Ready(descriptor) = reader.poll(next_seq)
        {
            return Some(Totals { chunks: next_seq - 1, bytes: descriptor.bytes_before() });
        }
        let tail = reader.tail_totals().filter(|tail| tail.tail_seq <= next_seq)?;
        let mut seen = tail.kinds.of(kinds);
        for seq in tail.tail_seq..next_seq {
            let Poll::Ready(descriptor) = reader.poll(seq) else { return None };
            if self.is_wanted(&descriptor) {
                seen.count(descriptor.length);
            }
        }
        Some(seen)
    }

    /// Totals of all chunks before its next one, by kind, as the ring counts them. `None` if the
    /// ring has moved on meanwhile, or has not come there yet.
    #[allow(dead_code, reason = "only the mirror of a node uses it")]
    pub(crate) fn kinds_before_next(&self) -> Option<KindTotals> {
        let reader = &self.link.shared().reader;
        let next_seq = self.cursor.next_seq;
        let TailTotals { tail_seq, mut kinds } = reader.tail_totals()?;
        if tail_seq > next_seq {
            return None;
        }
        for seq in tail_seq..next_seq {
            let Poll::Ready(descriptor) = reader.poll(seq) else { return None };
            kinds.count(Kind::new(descriptor.header.kind)?, descriptor.length);
        }
        Some(kinds)
    }

    /// True if it is given chunks from the disk that the ring no longer holds.
    #[allow(dead_code, reason = "only the mirror of a node uses it")]
    pub(crate) fn reads_disk(&self) -> bool {
        self.link.refill().is_some()
    }

    /// Tells the shard whether it is level, if that has changed. Under `block` it gates the
    /// producer while it is.
    #[cold]
    pub(super) fn tell_level(&mut self) {
        if self.is_level != self.cursor.is_away() {
            return;
        }
        let blocks = self.terms.policy == Policy::Block;
        self.is_level = !self.cursor.is_away();
        self.is_plain = blocks && self.window.is_none() && self.is_level;
        if let Some(refill) = self.link.refill().filter(|_| blocks) {
            self.shown_seq = self.cursor.next_seq; // Everything before it was processed.
            self.link.shared().page.set_cursor(self.shown_seq);
            refill.tell_level(self.is_level);
            self.link.ask();
        }
    }

    /// Returns the next item from the disk, because the ring no longer holds the next chunk.
    fn look_on_disk(&mut self) -> Next<L::Fault> {
        let next_seq = self.cursor.next_seq;
        if !self.cursor.is_claimed() {
            self.left_ring = (next_seq, self.cursor.seen);
            self.cursor = self.cursor.going_away(true); // Damage can make what it counts wrong.
            self.tell_level();
        }
        let (left_seq, seen) = self.left_ring;
        let wish = Wish { seq: next_seq, seen: (left_seq == next_seq).then_some(seen) };
        let taken = self.link.refill().expect("the caller looked").take(wish);
        self.awaits_disk = !matches!(taken, Taken::Item(_));
        self.granted_seq = 0;
        match taken {
            Taken::Asked => {
                self.link.ask();
                Next::Nothing // The answer knocks.
            }
            Taken::Later => Next::Nothing,
            Taken::Item(Refilled::Chunk(descriptor, bytes)) if descriptor.seq >= next_seq => {
                self.cursor = self.cursor.moved_to(descriptor.seq, self.cursor.seen);
                if let Some(window) = &mut self.window
                    && !window.admits((&descriptor).into(), self.link.acked_seq(), |_| None)
                {
                    let refill = self.link.refill().expect("it has just given that");
                    refill.put_back(Refilled::Chunk(descriptor, bytes));
                    return Next::Nothing;
                }
                if !self.headers_only {
                    self.keep_bytes(&bytes);
                }
                probe!(receive, descriptor.seq, descriptor.length);
                Next::Refilled(descriptor)
            }
            Taken::Item(Refilled::Passed(until_seq)) if until_seq > next_seq => {
                self.cursor = self.cursor.moved_to(until_seq, self.cursor.seen);
                Next::Again
            }
            Taken::Item(Refilled::Lost(lost)) if lost.from_seq == next_seq => self.lose(&lost),
            Taken::Item(_) => Next::Again, // It was given that meanwhile.
        }
    }

    /// True if the ring has begun anew behind its next chunk. It was not too slow for the ring.
    fn has_left_ring(&self) -> bool {
        let wants_newest = matches!(self.terms.policy, Policy::DropOldest | Policy::Conflate);
        let refill = self.link.refill().filter(|_| !wants_newest);
        refill.is_some_and(|refill| refill.has_left_ring(self.cursor.next_seq))
    }

    /// Copies the bytes of a chunk from the disk. It may be longer than the chunks of this ring.
    fn keep_bytes(&mut self, bytes: &[u8]) {
        if bytes.len() > self.buffer.len() {
            self.buffer = vec![0; bytes.len()].into_boxed_slice();
        }
        self.buffer[..bytes.len()].copy_from_slice(bytes);
    }

    /// Skips a stretch that the disk cannot give.
    fn lose(&mut self, lost: &LostStretch) -> Next<L::Fault> {
        let LostStretch { from_seq, until_seq, reason, totals } = *lost;
        let seen = self.cursor.seen + totals;
        if totals.chunks == 0 {
            self.cursor = self.cursor.moved_to(until_seq, seen);
            return Next::Again;
        }
        self.cursor = self.cursor.jumped_to(until_seq, seen);
        let Totals { chunks: chunk_count, bytes: byte_count } = totals;
        self.gap(Gap { from_seq, to_seq: until_seq - 1, chunk_count, byte_count, reason })
    }

    /// Returns the totals before the tail of an ended execution whose writer died while it updated
    /// them: all chunks without those that are still held.
    fn tail_of_ended(&self) -> Option<TailTotals> {
        let record = self.link.shared().control.final_record()?;
        let reader = &self.link.shared().reader;
        let tail_seq = reader.tail_seq();
        let held_max = u64::from(reader.geometry().slot_count());
        let end_seq = record.head_seq.checked_add(1)?;
        if tail_seq > end_seq || end_seq - tail_seq > held_max {
            return None;
        }
        let mut kinds = record.totals;
        for seq in tail_seq..end_seq {
            let Poll::Ready(descriptor) = reader.poll(seq) else { return None };
            let total = &mut kinds[descriptor.header.kind as usize];
            total.chunks = total.chunks.wrapping_sub(1);
            total.bytes = total.bytes.wrapping_sub(u64::from(descriptor.length));
        }
        Some(TailTotals { tail_seq, kinds })
    }

    /// Moves on to `until_seq`. `seen` are the totals of its kinds before that.
    fn skip_counted(&mut self, until_seq: u64, seen: Totals) -> Next<L::Fault> {
        if L::IS_FOREIGN && until_seq > SEQ_MAX {
            return Next::Fault(self.broken(Flaw::Totals));
        }
        let missed = seen - self.cursor.seen;
        let is_late = self.fresh && self.cursor.seen.chunks < self.gone.chunks;
        let owed_from = if is_late { self.gone } else { self.cursor.seen };
        if self.terms.policy == Policy::Disconnect && seen.chunks > owed_from.chunks {
            return self.disconnect();
        }
        if missed.chunks == 0 {
            self.cursor = self.cursor.moved_to(until_seq, seen);
            return Next::Again;
        }
        let from_seq = self.cursor.next_seq;
        self.cursor = self.cursor.jumped_to(until_seq, seen);
        self.granted_seq = 0;
        let late = is_late || self.terms.policy == Policy::Block; // The gate has stood since.
        let reason = if late { GapReason::Late } else { GapReason::Overtaken };
        self.fresh = false;
        let to_seq = until_seq - 1;
        let Totals { chunks: chunk_count, bytes: byte_count } = missed;
        self.gap(Gap { from_seq, to_seq, chunk_count, byte_count, reason })
    }

    fn gap(&mut self, gap: Gap) -> Next<L::Fault> {
        if L::IS_FOREIGN && gap.chunk_count > gap.to_seq - gap.from_seq + 1 {
            return Next::Fault(self.broken(Flaw::Totals));
        }
        self.fresh = false;
        self.missed = self.missed + Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
        self.link.shared().page.set_missed(self.missed.chunks, self.missed.bytes);
        if let Some(window) = &mut self.window {
            window.tell(gap.to_seq);
        }
        Next::Gap(gap)
    }
}
