//! One subscriber's oracle: what it was given, against the model of its execution.
//!
//! What is given and what gaps count tile the log from where the subscriber began, without a hole
//! or an overlap and with the execution's own bytes; then comes one end (`ending.rs`), and nothing
//! after it. What a policy owes at a given moment is in `expect.rs`.

use crate::base::{Instant, SubscriberId};
use crate::engine::{
    Coalesce, DetachReason, EndState, Gap, GapReason, Kinds, Policy, Progress, Subscribed, Totals,
};
use crate::shard::{Chunk, Delivery};
use crate::sim::model::{ExecutionModel, fill_payload};

/// Where a subscriber lives.
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

/// What the engine has said about a subscriber, as the observer saw it.
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
    /// It may come back for what it was given last.
    pub replays: bool,
    /// It came back for what had to be kept: there is no gap for it.
    pub is_promised: bool,
    /// The first chunk that it was given.
    pub first_given_seq: Option<u64>,
    /// It is being taken in: the gate is not where it will be.
    pub is_joining: bool,
    /// Everything before it was given, counted in a gap, or is none of its kinds.
    pub next_seq: u64,
    /// Where it began.
    pub first_seq: u64,
    /// Everything of its kinds before it began.
    before: Totals,
    pub given: Totals,
    pub missed: Totals,
    /// Neither a chunk nor a gap has come yet.
    pub is_fresh: bool,
    /// Everything before this was gone when it came.
    pub came_tail_seq: u64,
    pub ended: Option<EndState>,
    pub gone: Option<Gone>,
    /// It has left, died or panicked: nothing may come any more, or nobody looks.
    pub has_left: bool,
    pub lost_at: Option<Instant>,
    /// When it last was given anything.
    pub moved_at: Instant,
    pub since: Instant,
    /// Since when nothing but coalescing may hold its chunks back.
    pub free_since: Instant,
    /// What was published for it and has not come, in its kinds.
    pub pending: Totals,
    /// That has been over its limit since the last gap.
    pub was_over: bool,
    /// There was something for it when it began.
    began_behind: bool,
    /// A closure began over its limit, and has not caught up since.
    pub began_over: bool,
    /// The first chunk that was not there yet when it came: its lag counts from there.
    lag_from_seq: u64,
    /// The last chunk of the last gap.
    missed_through_seq: u64,
    pub acked_seq: u64,
    acked_until_seq: u64,
    /// As that, and beyond: a window that began with a chunk which then was missed.
    acked_until_seq_max: u64,
    /// The last chunk given, or the last of a gap.
    pub dealt_seq: u64,
    progress: Option<Progress>,
    /// `drop` and `buffer`: the first chunk no longer owed (see `expect.rs`).
    pub stop_seq: Option<u64>,
    /// On another thread: owed for certain before this one.
    pub granted_seq: u64,
    /// It asked and was made to wait for company.
    pub asked_at: Option<Instant>,
    /// Coalescing has waited long enough: everything comes.
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

    /// Its wishes are known, and so is what is there for it already.
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

    /// Everything of its kinds before `next_seq`: what it says when it comes back.
    pub fn seen(&self) -> Totals {
        self.before + self.given + self.missed
    }

    /// Chunks that it may lag by. The ring may have turned out smaller than expected.
    pub fn limit_chunks(&self, execution: &ExecutionModel) -> u32 {
        let chunks_max = execution.ring.map_or(u32::MAX, |ring| ring.chunks_max);
        self.limit_chunks.min(chunks_max)
    }

    /// Is a lag within its limit? One chunk always is.
    pub fn holds(&self, execution: &ExecutionModel, lag: Totals) -> bool {
        lag.chunks <= 1
            || lag.chunks <= u64::from(self.limit_chunks(execution))
                && lag.bytes <= self.limit_bytes
    }

    /// It reads a ring by itself, and has seen there what is no lag.
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

    /// The first chunk whose coming is lag, from here on.
    pub fn lag_from(&self, from_seq: u64) -> u64 {
        from_seq.max(self.lag_from_seq)
    }

    /// The first chunk that it may come back for, if it may at all: half of the slots and half of
    /// the payload area are kept, and with acknowledgements what it has not acknowledged.
    pub fn kept_seq(&self, execution: &ExecutionModel) -> Option<u64> {
        let is_lost = self.lost_at.is_some() && self.is_attached();
        if !is_lost || !self.replays || !self.kinds.is_all() {
            return None;
        }
        let ring = execution.ring?;
        let given_from_seq = self.first_given_seq?; // Before that the gate may not stand.
        if self.ack_window.is_some() {
            return Some(given_from_seq.max(self.acked_seq + 1)); // All of it, however much.
        }
        let (mut from_seq, mut bytes) = (self.next_seq, 0);
        while from_seq > given_from_seq {
            let chunk = execution.chunk(from_seq - 1).expect("it was given");
            bytes += u64::from(chunk.length.next_multiple_of(8));
            let is_full = self.next_seq - from_seq == u64::from(ring.slot_count / 2);
            if is_full || bytes > u64::from(ring.data_bytes / 2) {
                break;
            }
            from_seq -= 1;
        }
        Some(from_seq)
    }

    /// Is it told at once of everything there is?
    pub fn is_plain(&self) -> bool {
        self.habitat == Habitat::Closure
            && self.ack_window.is_none()
            && self.coalesce.is_none()
            && self.lost_at.is_none()
    }

    /// Does anybody still look?
    pub fn is_attached(&self) -> bool {
        self.gone.is_none() && !self.has_left && self.ended.is_none()
    }

    /// A chunk was published, the newest of `execution`.
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
        // Of what was gone before it came it lags in numbers, but in no bytes.
        let counts = gates && (self.given.chunks > 0 || !self.began_behind);
        if counts && self.pending.chunks > 1 && self.pending.bytes > self.limit_bytes {
            return Err(format!("chunk {seq} passes its bytes: {:?}", self.pending));
        }
        Ok(())
    }

    /// It was given something.
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
        // What a polled one had been told before is still in its inbox.
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
        // The shard believes no process that a chunk is of later than its own turn.
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

    /// Nothing is sent beyond what was acknowledged and the window; if nothing is outstanding, the
    /// window begins with the next chunk of its kinds.
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

    /// The window of acknowledgements: as it asked for, or what half of the slots can keep.
    fn window_chunks(&self, execution: &ExecutionModel) -> Option<u64> {
        let window = u64::from(self.ack_window?);
        let ring = execution.ring.filter(|_| self.replays);
        Some(ring.map_or(window, |ring| window.min(u64::from(ring.slot_count / 2).max(1))))
    }

    /// Does chunk `seq`, together with all before it that are not acknowledged, take more than half
    /// of the payload area? What is under way to one that replays has to be kept.
    fn fills_ring(&self, seq: u64, execution: &ExecutionModel) -> bool {
        let Some(ring) = execution.ring.filter(|_| self.replays) else { return false };
        let from_seq = self.acked_seq.max(self.missed_through_seq) + 1;
        let wanted = execution.wanted(self.kinds, from_seq, seq).next();
        let Some((first_seq, _)) = wanted else { return false };
        let lengths = (first_seq..=seq).filter_map(|seq| execution.chunk(seq));
        let bytes: u64 = lengths.map(|chunk| u64::from(chunk.length) + 7).sum();
        seq > first_seq && bytes > u64::from(ring.data_bytes / 2)
    }

    /// It has dealt with everything through `seq`.
    pub fn acknowledge(&mut self, seq: u64, execution: &ExecutionModel, now: Instant) {
        self.free_since = now;
        let window = self.window_chunks(execution).expect("it acknowledges");
        self.acked_seq = self.acked_seq.max(seq);
        self.acked_until_seq = self.acked_until_seq.max(seq + 1 + window);
    }

    /// May it not be given this chunk yet, because of what it has not acknowledged?
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
        // It goes on catching up, unless it was this that it was catching up with.
        self.began_over &= gap.reason != GapReason::Lag && self.was_over;
        Ok(())
    }

    fn check_reason(&self, gap: &Gap, execution: &ExecutionModel) -> Result<(), String> {
        let policy = self.policy;
        if self.is_promised {
            return Err("all of it had to be kept".into());
        }
        let fits = match gap.reason {
            // A thread may go on until the gate stands.
            GapReason::Late if policy == Policy::Block => self.given.chunks == 0,
            GapReason::Late => self.is_fresh && self.comes_late(gap, execution),
            GapReason::Conflated => policy == Policy::Conflate,
            GapReason::Lag => {
                matches!(policy, Policy::Drop | Policy::Buffer | Policy::DropOldest)
            }
            GapReason::Overtaken => !matches!(policy, Policy::Block | Policy::Disconnect),
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

    /// True if something of it was gone when it came; under `disconnect` all of it. The ring of a
    /// thread may have been further than the engine knew.
    fn comes_late(&self, gap: &Gap, execution: &ExecutionModel) -> bool {
        let gone = execution.totals(self.kinds, self.next_seq, self.came_tail_seq - 1).chunks;
        let is_whole = self.policy != Policy::Disconnect || gap.chunk_count == gone;
        (gone > 0 && is_whole) || execution.may_be_ahead()
    }

    /// What `drop_oldest` leaves is within the limit, and one more would not have been.
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

    /// Everything through `seq` is dealt with; `totals` of it were pending.
    fn settle(&mut self, seq: u64, totals: Totals) {
        self.next_seq = seq + 1;
        self.dealt_seq = seq;
        self.pending = self.pending - totals;
        if self.pending.chunks == 0 {
            self.began_over = false;
        }
    }
}
