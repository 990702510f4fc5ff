//! One subscriber's oracle: compares its deliveries with the model of its execution.
//!
//! Delivered chunks and counted gaps tile the log from where the subscriber began. They have no
//! hole and no overlap, and the execution's own bytes. Then comes one end (`ending.rs`), and
//! nothing after it. The delivery that a policy owes at a given moment is in `expect.rs`.

use crate::base::{Instant, SubscriberId};
use crate::engine::{Coalesce, Subscribed};
use crate::shard::{Chunk, Delivery};
use crate::sim::model::{ExecutionModel, fill_payload};
use crate::stream::{DetachReason, EndState, Gap, GapReason, Kinds, Policy, Progress, Totals};

/// The place where a subscriber runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Habitat {
    Closure,
    Polled,
    /// Made for another thread, polled on this one.
    Remote,
    /// At the door: it reads a relay, or a process's ring.
    #[cfg(feature = "server")]
    Door,
}

impl Habitat {
    /// True if it reads a ring by itself.
    pub fn is_elsewhere(self) -> bool {
        !matches!(self, Habitat::Closure | Habitat::Polled)
    }

    /// True if it is in another process.
    pub fn is_at_door(self) -> bool {
        #[cfg(feature = "server")]
        return self == Habitat::Door;
        #[cfg(not(feature = "server"))]
        false
    }
}

/// The engine's last statement about a subscriber, as the observer saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    Ended,
    Detached(DetachReason),
    Left,
}

/// One subscriber.
#[derive(Debug)]
pub(super) struct Follower {
    pub index: usize,
    pub execution: usize,
    pub habitat: Habitat,
    pub subscriber: SubscriberId,
    pub policy: Policy,
    limit_chunks: u32,
    pub limit_bytes: u64,
    pub kinds: Kinds,
    pub headers_only: bool,
    pub ack_window: Option<u32>,
    pub coalesce: Option<Coalesce>,
    /// True if it may come back for the last chunks that it was given.
    pub replays: bool,
    /// True if its limit is what the ring holds, and the ring may grow.
    pub grows_with_ring: bool,
    /// True if it came back for chunks that had to be kept: it gets no gap.
    pub is_promised: bool,
    /// The first chunk that it was given.
    pub first_given_seq: Option<u64>,
    /// True while it is being subscribed: the gate has not moved yet.
    pub is_joining: bool,
    /// The chunks before this one were given, counted in a gap, or are none of its kinds.
    pub next_seq: u64,
    /// The first chunk after it began.
    pub first_seq: u64,
    /// Totals of its kinds before it began.
    before: Totals,
    pub given: Totals,
    pub missed: Totals,
    /// True until a chunk or a gap has come.
    pub is_fresh: bool,
    /// The tail of the log when it came: everything before was gone.
    pub came_tail_seq: u64,
    pub ended: Option<EndState>,
    pub gone: Option<Gone>,
    /// True if it has left, died or panicked: nothing may come any more, or is not looked at.
    pub has_left: bool,
    pub lost_at: Option<Instant>,
    /// The time of its last delivery.
    pub moved_at: Instant,
    pub since: Instant,
    /// The time since which only coalescing may hold its chunks back.
    pub free_since: Instant,
    /// Totals of its kinds that were published for it and have not come.
    pub pending: Totals,
    /// True if its lag has been over its limit since the last gap.
    pub was_over: bool,
    /// True if chunks were pending for it when it began.
    began_behind: bool,
    /// True if a closure began over its limit, and has not caught up since.
    pub began_over: bool,
    /// The first chunk that did not exist when it came: its lag counts from there.
    lag_from_seq: u64,
    /// The last chunk of the last gap.
    missed_through_seq: u64,
    pub acked_seq: u64,
    acked_until_seq: u64,
    /// The same bound for a window that began with a chunk which then was missed.
    acked_until_seq_max: u64,
    /// The last chunk given, or the last of a gap.
    pub dealt_seq: u64,
    progress: Option<Progress>,
    /// The first chunk no longer owed, under `drop` and `buffer` (see `expect.rs`).
    pub stop_seq: Option<u64>,
    /// For one on another thread: chunks before this one are owed for certain.
    pub granted_seq: u64,
    /// The time at which it polled and was made to wait for coalescing.
    pub asked_at: Option<Instant>,
    /// True if coalescing has waited long enough: everything comes.
    pub is_flushing: bool,
}

impl Follower {
    pub fn new(
        index: usize,
        execution: usize,
        habitat: Habitat,
        subscribed: &Subscribed,
        now: Instant,
    ) -> Follower {
        let next_seq = subscribed.cursor.next_seq;
        Follower {
            index,
            execution,
            habitat,
            subscriber: subscribed.subscriber,
            policy: subscribed.terms.policy,
            limit_chunks: subscribed.terms.limit.chunks,
            limit_bytes: subscribed.terms.limit.bytes,
            kinds: subscribed.terms.kinds,
            headers_only: false,
            ack_window: None,
            coalesce: None,
            replays: false,
            grows_with_ring: false,
            is_promised: false,
            first_given_seq: None,
            is_joining: true,
            next_seq,
            first_seq: subscribed.cursor.next_seq,
            before: subscribed.cursor.seen,
            given: Totals::ZERO,
            missed: Totals::ZERO,
            is_fresh: true,
            came_tail_seq: 1,
            ended: None,
            gone: None,
            has_left: false,
            lost_at: None,
            moved_at: now,
            since: now,
            free_since: now,
            pending: Totals::ZERO,
            was_over: false,
            began_behind: false,
            began_over: false,
            lag_from_seq: subscribed.cursor.lag_begins(next_seq),
            missed_through_seq: 0,
            acked_seq: next_seq - 1,
            acked_until_seq: u64::MAX,
            acked_until_seq_max: 0,
            dealt_seq: next_seq - 1,
            progress: None,
            stop_seq: None,
            granted_seq: 0,
            asked_at: None,
            is_flushing: false,
        }
    }

    /// Begins to follow: its options and the chunks that exist already are known.
    pub fn begin(&mut self, execution: &ExecutionModel) -> Result<(), String> {
        if let Some(window) = self.window_chunks(execution) {
            self.acked_until_seq = self.next_seq + window;
        }
        self.pending = execution.totals(self.kinds, self.next_seq, u64::MAX);
        self.began_behind = self.pending.chunks > 0;
        self.was_over = !self.holds(execution, self.lag(execution));
        self.began_over = false;
        let before = execution.totals(self.kinds, 1, self.next_seq - 1);
        match before == self.before {
            true => Ok(()),
            false => Err(format!("it begins after {:?}, not {before:?}", self.before)),
        }
    }

    /// Totals of its kinds before `next_seq`, which it reports when it comes back.
    pub fn seen(&self) -> Totals {
        self.before + self.given + self.missed
    }

    /// Number of chunks that it may lag by. The ring may have turned out smaller than expected, or
    /// may have grown.
    pub fn limit_chunks(&self, execution: &ExecutionModel) -> u32 {
        let ring = execution.whole.or(execution.ring);
        let chunks_max = ring.map_or(u32::MAX, |ring| ring.chunks_max);
        if self.grows_with_ring { chunks_max } else { self.limit_chunks.min(chunks_max) }
    }

    /// Number of chunks that it could lag by when it came.
    pub fn granted_chunks(&self, execution: &ExecutionModel) -> u32 {
        let chunks_max = execution.ring.map_or(u32::MAX, |ring| ring.chunks_max);
        self.limit_chunks.min(chunks_max)
    }

    /// True if a lag is within its limit. One chunk always is.
    pub fn holds(&self, execution: &ExecutionModel, lag: Totals) -> bool {
        lag.chunks <= 1
            || lag.chunks <= u64::from(self.limit_chunks(execution))
                && lag.bytes <= self.limit_bytes
    }

    /// Sets the start of its lag, for a subscriber that reads a ring by itself.
    pub fn lags_from(&mut self, lag_from_seq: u64, execution: &ExecutionModel) {
        self.lag_from_seq = lag_from_seq;
        self.was_over = !self.holds(execution, self.lag(execution));
    }

    /// Its lag. The backlog when it came does not count.
    fn lag(&self, execution: &ExecutionModel) -> Totals {
        match self.next_seq < self.lag_from_seq {
            true => execution.totals(self.kinds, self.lag_from_seq, u64::MAX),
            false => self.pending,
        }
    }

    /// The first chunk from `from_seq` on that counts as lag.
    pub fn lag_from(&self, from_seq: u64) -> u64 {
        from_seq.max(self.lag_from_seq)
    }

    /// The first chunk that it may come back for, if it may at all. Half of the slots and half of
    /// the payload area are kept. With acknowledgements, all chunks that it has not acknowledged
    /// are kept.
    pub fn kept_seq(&self, execution: &ExecutionModel) -> Option<u64> {
        let is_lost = self.lost_at.is_some() && self.is_attached();
        if !is_lost || !self.replays || !self.kinds.is_all() {
            return None;
        }
        let ring = execution.ring?;
        let given_from_seq = self.first_given_seq?; // Before that the gate may not be set.
        if self.ack_window.is_some() {
            return Some(given_from_seq.max(self.acked_seq + 1)); // All of it, whatever its size.
        }
        let (mut from_seq, mut bytes) = (self.next_seq, 0);
        while from_seq > given_from_seq {
            let chunk = execution.chunk(from_seq - 1).expect("it was given");
            bytes += 32 + u64::from(chunk.length.next_multiple_of(8));
            let is_full = self.next_seq - from_seq == u64::from(ring.slot_count / 2);
            if is_full || bytes > u64::from(ring.data_bytes / 2) {
                break;
            }
            from_seq -= 1;
        }
        Some(from_seq)
    }

    /// True if it receives everything at once.
    pub fn is_plain(&self) -> bool {
        self.habitat == Habitat::Closure
            && self.ack_window.is_none()
            && self.coalesce.is_none()
            && self.lost_at.is_none()
    }

    /// True if its deliveries are still looked at.
    pub fn is_attached(&self) -> bool {
        self.gone.is_none() && !self.has_left && self.ended.is_none()
    }

    /// Counts the newest chunk of `execution`, which was just published.
    pub fn published(&mut self, execution: &ExecutionModel) -> Result<(), String> {
        let seq = execution.head_seq();
        let chunk = execution.chunk(seq).expect("it was just pushed");
        if self.gone.is_some() || self.ended.is_some() || !self.kinds.contains(chunk.kind) {
            return Ok(());
        }
        self.pending.count(chunk.length);
        if !self.holds(execution, self.lag(execution)) {
            self.was_over = true;
        }
        let gates = self.policy == Policy::Block && self.kinds.is_all() && !self.is_joining;
        if gates && self.pending.chunks > u64::from(self.limit_chunks(execution)) {
            return Err(format!("chunk {seq} was published over its limit: {:?}", self.pending));
        }
        // Chunks that were gone before it came count in its lag as numbers, but not as bytes.
        let counts = gates && (self.given.chunks > 0 || !self.began_behind);
        if counts && self.pending.chunks > 1 && self.pending.bytes > self.limit_bytes {
            return Err(format!("chunk {seq} passes its bytes: {:?}", self.pending));
        }
        Ok(())
    }

    /// Checks a delivery and counts it.
    pub fn take(
        &mut self,
        delivery: &Delivery<'_>,
        execution: &ExecutionModel,
        now: Instant,
        scratch: &mut Vec<u8>,
    ) -> Result<(), String> {
        if self.has_left {
            return Err("it has left, and is given something".into());
        }
        if let Some(end) = self.ended {
            return Err(format!("it is given something after its end, {end}"));
        }
        let is_end = matches!(delivery, Delivery::End(_));
        // Events that were queued for a polled subscriber before are still in its inbox.
        let is_old =
            self.habitat == Habitat::Polled && matches!(delivery, Delivery::Progress(_)) || is_end;
        let is_let_go = matches!(self.gone, Some(Gone::Detached(_)));
        if self.lost_at.is_some() && !(is_old && (is_let_go || !is_end)) {
            return Err("it is given something while its connection is broken".into());
        }
        match delivery {
            Delivery::Chunk(chunk) => self.take_chunk(chunk, execution, scratch)?,
            Delivery::Gap(gap) => self.take_gap(gap, execution)?,
            Delivery::Progress(reported) => self.take_progress(&reported.progress)?,
            Delivery::End(ended) => self.take_end(ended, execution, now)?,
        }
        if matches!(delivery, Delivery::Chunk(_) | Delivery::Gap(_)) {
            self.moved_at = now;
            self.is_fresh = false;
        }
        Ok(())
    }

    fn take_chunk(
        &mut self,
        chunk: &Chunk<'_>,
        execution: &ExecutionModel,
        scratch: &mut Vec<u8>,
    ) -> Result<(), String> {
        let seq = chunk.seq;
        let Some(model) = execution.chunk(seq) else {
            return Err(format!("chunk {seq} was never published"));
        };
        let skipped = execution.totals(self.kinds, self.next_seq, seq.saturating_sub(1));
        if chunk.execution != execution.id || seq < self.next_seq || skipped.chunks > 0 {
            return Err(format!(
                "chunk {seq} of {} where {} is next",
                chunk.execution, self.next_seq
            ));
        }
        let facts = (chunk.kind, chunk.key, chunk.offset, chunk.published_at);
        // The shard does not accept from a process a chunk time later than its own turn.
        let published_at = match execution.is_in_process() {
            true => chunk.published_at.min(model.published_at),
            false => model.published_at,
        };
        if facts != (model.kind, model.key, model.offset, published_at)
            || !self.kinds.contains(chunk.kind)
        {
            return Err(format!("chunk {seq} is {facts:?}, not {model:?}"));
        }
        if self.headers_only {
            if !chunk.data.is_empty() {
                return Err(format!("chunk {seq} has bytes that nobody wanted"));
            }
        } else {
            scratch.resize(model.length as usize, 0);
            fill_payload(execution.number, seq, scratch);
            if chunk.data != scratch.as_slice() {
                return Err(format!("the bytes of chunk {seq} are not its own"));
            }
        }
        self.count_acknowledgement(seq, execution)?;
        self.first_given_seq.get_or_insert(seq);
        self.given.count(model.length);
        self.settle(seq, Totals { chunks: 1, bytes: u64::from(model.length) });
        Ok(())
    }

    /// Checks that nothing is sent beyond the acknowledged chunks and the window. If nothing is
    /// outstanding, the window begins with the next chunk of its kinds.
    fn count_acknowledgement(
        &mut self,
        seq: u64,
        execution: &ExecutionModel,
    ) -> Result<(), String> {
        let Some(window) = self.window_chunks(execution) else { return Ok(()) };
        if self.first_given_seq.is_none() && self.missed.chunks == 0 {
            self.acked_until_seq = seq + window; // The ring is known by now.
        } else if self.acked_seq >= self.dealt_seq {
            self.acked_until_seq = self.acked_until_seq.max(seq + window);
        } else if self.fills_ring(seq, execution) {
            return Err(format!("chunk {seq} is more than the ring can keep"));
        }
        let until_seq = self.acked_until_seq.max(self.acked_until_seq_max);
        match seq < until_seq {
            true => Ok(()),
            false => Err(format!("chunk {seq} is beyond {until_seq}")),
        }
    }

    /// The window of acknowledgements: as requested, or as much as half of the slots can keep.
    fn window_chunks(&self, execution: &ExecutionModel) -> Option<u64> {
        let window = u64::from(self.ack_window?);
        let ring = execution.ring.filter(|_| self.replays);
        Some(ring.map_or(window, |ring| window.min(u64::from(ring.slot_count / 2).max(1))))
    }

    /// Notes that its ring has grown. If that was for it, its first chunks came before this.
    pub fn learn_ring(&mut self, execution: &ExecutionModel) {
        if let (Some(window), Some(first_seq)) =
            (self.window_chunks(execution), self.first_given_seq)
            && self.acked_seq < first_seq
        {
            self.acked_until_seq = self.acked_until_seq.max(first_seq + window);
        }
    }

    /// True if chunk `seq`, with all unacknowledged chunks before it, takes more than half of the
    /// payload area. Chunks under way to a subscriber that replays have to be kept.
    fn fills_ring(&self, seq: u64, execution: &ExecutionModel) -> bool {
        let Some(ring) = execution.ring.filter(|_| self.replays) else { return false };
        let from_seq = self.acked_seq.max(self.missed_through_seq) + 1;
        let wanted = execution.wanted(self.kinds, from_seq, seq).next();
        let Some((first_seq, _)) = wanted else { return false };
        let lengths = (first_seq..=seq).filter_map(|seq| execution.chunk(seq));
        let bytes: u64 = lengths.map(|chunk| u64::from(chunk.length) + 39).sum();
        seq > first_seq && bytes > u64::from(ring.data_bytes / 2)
    }

    /// Notes that it has acknowledged everything through `seq`.
    pub fn acknowledge(&mut self, seq: u64, execution: &ExecutionModel, now: Instant) {
        self.free_since = now;
        let window = self.window_chunks(execution).expect("it acknowledges");
        self.acked_seq = self.acked_seq.max(seq);
        self.acked_until_seq = self.acked_until_seq.max(seq + 1 + window);
    }

    /// True if this chunk has to wait for its acknowledgements.
    pub fn is_held_by_acks(&self, seq: u64, execution: &ExecutionModel) -> bool {
        self.ack_window.is_some()
            && self.acked_seq < self.dealt_seq
            && (seq >= self.acked_until_seq || self.fills_ring(seq, execution))
    }

    fn take_gap(&mut self, gap: &Gap, execution: &ExecutionModel) -> Result<(), String> {
        let between = execution.totals(self.kinds, self.next_seq, gap.from_seq.saturating_sub(1));
        let counted = execution.totals(self.kinds, gap.from_seq, gap.to_seq);
        let told = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
        let is_sound = gap.from_seq >= self.next_seq
            && gap.from_seq <= gap.to_seq
            && gap.to_seq <= execution.head_seq();
        if !is_sound || between.chunks > 0 || told != counted || told.chunks == 0 {
            return Err(format!(
                "{gap:?} where {} is next and {counted:?} is missed",
                self.next_seq
            ));
        }
        self.check_reason(gap, execution).map_err(|text| format!("{gap:?}: {text}"))?;
        self.missed = self.missed + told;
        self.missed_through_seq = gap.to_seq;
        if let Some(window) = self.window_chunks(execution)
            && self.acked_seq >= self.dealt_seq
        {
            let wanted = execution.wanted(self.kinds, gap.from_seq, gap.to_seq).next();
            let (first_seq, _) = wanted.expect("they were counted");
            let until_seq = first_seq + window;
            self.acked_until_seq_max = self.acked_until_seq_max.max(until_seq);
        }
        self.settle(gap.to_seq, told);
        self.was_over = !self.holds(execution, self.lag(execution));
        // It goes on catching up, unless this gap was what it was catching up with.
        self.began_over &= gap.reason != GapReason::Lag && self.was_over;
        Ok(())
    }

    fn check_reason(&self, gap: &Gap, execution: &ExecutionModel) -> Result<(), String> {
        let policy = self.policy;
        if self.is_promised {
            return Err("all of it had to be kept".into());
        }
        let fits = match gap.reason {
            // A thread may go on until the gate is set.
            GapReason::Late if policy == Policy::Block => self.given.chunks == 0,
            GapReason::Late => self.is_fresh && self.comes_late(gap, execution),
            GapReason::Conflated => policy == Policy::Conflate,
            GapReason::Lag => {
                matches!(policy, Policy::Drop | Policy::Buffer | Policy::DropOldest)
            }
            GapReason::Overtaken => !matches!(policy, Policy::Block | Policy::Disconnect),
            // Nothing is kept on disk.
            GapReason::Corrupt | GapReason::Expired | GapReason::Unwritten => false,
        };
        if !fits {
            return Err(format!("not under {policy}"));
        }
        match gap.reason {
            GapReason::Late | GapReason::Overtaken if execution.must_hold(gap.to_seq) => {
                Err("the ring promised to hold it".into())
            }
            GapReason::Lag if !self.was_over => Err("it never was over its limit".into()),
            GapReason::Lag if self.is_plain() && !self.began_over => {
                Err("a closure that is given everything at once lags".into())
            }
            GapReason::Lag if policy == Policy::DropOldest => self.check_oldest(gap, execution),
            _ => Ok(()),
        }
    }

    /// True if a part of the gap was gone when it came, and under `disconnect` all of it. The ring
    /// of a thread may have been further than the engine knew.
    fn comes_late(&self, gap: &Gap, execution: &ExecutionModel) -> bool {
        let gone = execution.totals(self.kinds, self.next_seq, self.came_tail_seq - 1).chunks;
        let is_whole = self.policy != Policy::Disconnect || gap.chunk_count == gone;
        (gone > 0 && is_whole) || execution.may_be_ahead()
    }

    /// Checks that the chunks which `drop_oldest` leaves are within the limit, and one more would
    /// not be.
    fn check_oldest(&self, gap: &Gap, execution: &ExecutionModel) -> Result<(), String> {
        let with_last = execution.totals(self.kinds, gap.to_seq, u64::MAX);
        match self.holds(execution, with_last) {
            true => Err("it gave up more than it had to".into()),
            false => Ok(()),
        }
    }

    fn take_progress(&mut self, progress: &Progress) -> Result<(), String> {
        if let Some(before) = self.progress
            && (progress.progress < before.progress || progress.report_count <= before.report_count)
        {
            return Err(format!("{progress:?} after {before:?}"));
        }
        self.progress = Some(*progress);
        Ok(())
    }

    /// Moves on behind `seq`; `totals` of these chunks were pending.
    fn settle(&mut self, seq: u64, totals: Totals) {
        self.next_seq = seq + 1;
        self.dealt_seq = seq;
        self.pending = self.pending - totals;
        if self.pending.chunks == 0 {
            self.began_over = false;
        }
    }
}
