//! The oracle of one subscriber of a replica: what it was told, and what it has to be told next.

use super::ledger::{Execution, Ledger};
use crate::engine::SubscribeSpec;
use crate::shard::{Chunk, Delivery, Ended};
use crate::stream::{DetachReason, EndState, Gap, GapReason, Kinds, Policy, Totals};

/// A subscriber, and what it has to be told next.
pub struct Witness {
    /// The number of its execution.
    pub execution: usize,
    pub policy: Policy,
    kinds: Kinds,
    /// The place where it lives: 0 for a closure, 1 if it is polled, 2 for another thread, and 3
    /// for the door.
    habitat: u64,
    from_seq: u64,
    next_seq: u64,
    given: Totals,
    missed: Totals,
    /// True if some counts were bounds only.
    is_bound: bool,
    pub has_ended: bool,
    /// The chunk through which it may acknowledge.
    pub dealt_seq: u64,
    /// True if it acknowledges.
    pub acknowledges: bool,
}

impl Witness {
    /// Creates the oracle of a subscriber that begins at `from_seq`.
    pub fn new(execution: usize, spec: &SubscribeSpec, place: (u64, u64)) -> Witness {
        let (habitat, from_seq) = place;
        Witness {
            execution,
            policy: spec.policy,
            kinds: spec.kinds,
            habitat,
            from_seq,
            next_seq: from_seq,
            given: Totals::ZERO,
            missed: Totals::ZERO,
            is_bound: false,
            has_ended: false,
            dealt_seq: 0,
            acknowledges: spec.ack_window.is_some(),
        }
    }

    /// The next chunk that it knows nothing of.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Checks a delivery. The first failure stays in the ledger.
    pub fn hear(&mut self, delivery: &Delivery<'_>, ledger: &mut Ledger) {
        if ledger.failure.is_some() {
            return;
        }
        if let Err(text) = self.take(delivery, ledger) {
            let Witness { execution, policy, from_seq, habitat, kinds, .. } = self;
            ledger.failure = Some(format!(
                "execution {execution}, {policy}, {kinds:?}, habitat {habitat}, from {from_seq}, \
                 keeps: {}: {text}",
                ledger.keeps
            ));
        }
    }

    fn take(&mut self, delivery: &Delivery<'_>, ledger: &mut Ledger) -> Result<(), String> {
        if self.has_ended {
            return Err(format!("{delivery:?} behind the end"));
        }
        let execution = &ledger.executions[self.execution];
        let number = (self.execution as u64) << 56;
        match delivery {
            Delivery::Chunk(chunk) => {
                self.take_chunk(chunk, execution)?;
                ledger.count("given", 1);
                ledger.note(number | chunk.seq);
            }
            Delivery::Gap(gap) => {
                self.take_gap(gap, execution, ledger.keeps)?;
                let name = match gap.reason {
                    GapReason::Lag => "gap: lag",
                    GapReason::Conflated => "gap: conflated",
                    GapReason::Overtaken => "gap: overtaken",
                    GapReason::Late => "gap: late",
                    GapReason::Corrupt => "gap: corrupt",
                    GapReason::Expired => "gap: expired",
                    GapReason::Unwritten => "gap: unwritten",
                };
                ledger.count(name, 1);
                ledger.note(number | gap.from_seq << 28 | gap.to_seq);
            }
            Delivery::Progress(reported) => {
                ledger.count("progress", 1);
                ledger.note(number | reported.progress.progress.to_bits());
            }
            Delivery::End(ended) => {
                self.has_ended = true;
                let is_end = self.take_end(ended, execution, ledger.keeps)?;
                ledger.count(if is_end { "ends" } else { "detached" }, 1);
                ledger.note(number | 0xE);
            }
        }
        Ok(())
    }

    /// Checks that nothing of its kinds lies before `seq`.
    fn skip_to(&self, seq: u64, execution: &Execution) -> Result<(), String> {
        let skipped = execution.between(self.kinds, self.next_seq, seq);
        if seq < self.next_seq || skipped.chunks > 0 {
            return Err(format!("{seq} follows, not {}", self.next_seq));
        }
        Ok(())
    }

    fn take_chunk(&mut self, chunk: &Chunk<'_>, execution: &Execution) -> Result<(), String> {
        let seq = chunk.seq;
        self.skip_to(seq, execution)?;
        let Some(model) = execution.chunks.get(seq as usize - 1) else {
            return Err(format!("chunk {seq} was never published"));
        };
        let entry = &model.entry;
        let offset = execution.totals[seq as usize - 1].of(Kinds::ALL).bytes;
        let told = (chunk.execution, chunk.kind, chunk.key, chunk.offset, chunk.more);
        let right = (execution.id, entry.kind, entry.key, offset, entry.flags != 0);
        if told != right || !self.kinds.contains(chunk.kind) {
            return Err(format!("chunk {seq} is {told:?}, not {right:?}"));
        }
        if chunk.data != &model.payload[..] {
            return Err(format!("chunk {seq} has other bytes"));
        }
        let told = (chunk.published_at.nanos(), chunk.timestamp_us());
        let right = (entry.mono_ns, execution.anchor.wall_us_at(entry.mono_ns));
        if told != right {
            return Err(format!("chunk {seq} is of {told:?}, not {right:?}"));
        }
        if chunk.chunks_expected.is_some() && chunk.chunks_expected != execution.expected {
            return Err(format!("chunk {seq} says {:?} chunks", chunk.chunks_expected));
        }
        (self.next_seq, self.dealt_seq) = (seq + 1, seq);
        self.given.count(entry.length);
        Ok(())
    }

    fn take_gap(&mut self, gap: &Gap, execution: &Execution, keeps: bool) -> Result<(), String> {
        self.skip_to(gap.from_seq, execution)?;
        if gap.to_seq < gap.from_seq || gap.to_seq > execution.chunks.len() as u64 {
            return Err(format!("{gap:?} of {} chunks", execution.chunks.len()));
        }
        let exact = execution.between(self.kinds, gap.from_seq, gap.to_seq + 1);
        let told = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
        if told != exact {
            // Nobody knows the totals before a subscriber that begins within a gap.
            let begins = gap.from_seq == self.from_seq && self.from_seq > 1;
            let is_within = begins && (!keeps || execution.is_within_gap(gap.from_seq));
            let is_bound = told.bytes == 0 && told.chunks >= exact.chunks;
            if !is_within || !is_bound {
                return Err(format!("{gap:?}, where {exact:?} is right"));
            }
            self.is_bound = true;
        }
        self.check_reason(gap, execution, keeps)?;
        self.missed = self.missed + told;
        (self.next_seq, self.dealt_seq) = (gap.to_seq + 1, gap.to_seq);
        Ok(())
    }

    fn check_reason(&self, gap: &Gap, execution: &Execution, keeps: bool) -> Result<(), String> {
        let wants_newest = matches!(self.policy, Policy::DropOldest | Policy::Conflate);
        let is_of_log = |seq: u64| {
            let kind = execution.chunks[seq as usize - 1].entry.kind;
            !self.kinds.contains(kind) || execution.has_gap(seq, gap.reason)
        };
        let fits = match gap.reason {
            GapReason::Lag => wants_newest || matches!(self.policy, Policy::Drop | Policy::Buffer),
            GapReason::Conflated => self.policy == Policy::Conflate,
            // It has the ring of the replica, which begins anew behind a gap of the log.
            GapReason::Late | GapReason::Overtaken if self.habitat == super::DOOR => true,
            GapReason::Late => wants_newest,
            GapReason::Corrupt | GapReason::Expired if !keeps => true,
            GapReason::Overtaken if wants_newest => true,
            // It was too slow for its ring, and the log may have all of that.
            GapReason::Overtaken if self.may_be_overtaken() => {
                let is_in_log = |seq: u64| execution.is_in_gap(seq);
                !(gap.from_seq..=gap.to_seq).all(is_in_log)
                    || (gap.from_seq..=gap.to_seq).all(is_of_log)
            }
            _ => (gap.from_seq..=gap.to_seq).all(is_of_log),
        };
        fits.then_some(()).ok_or_else(|| format!("{gap:?} is not in the log: {:?}", execution.gaps))
    }

    fn may_be_overtaken(&self) -> bool {
        let is_slow = self.habitat > 0 || self.acknowledges;
        is_slow && matches!(self.policy, Policy::Drop | Policy::Buffer)
    }

    /// Checks an end. Returns true if it is that of the execution.
    fn take_end(
        &mut self,
        ended: &Ended<'_>,
        execution: &Execution,
        keeps: bool,
    ) -> Result<bool, String> {
        let end = &ended.end;
        if (end.given, end.missed) != (self.given, self.missed) {
            return Err(format!("{end:?}, where {:?} and {:?}", self.given, self.missed));
        }
        let outcome = match end.state {
            EndState::Ended(outcome) => outcome,
            EndState::Detached { reason: DetachReason::Lag, .. }
                if self.policy == Policy::Disconnect =>
            {
                return Ok(false);
            }
            EndState::Detached { reason: DetachReason::Stall, .. }
                if self.policy == Policy::Block || self.acknowledges =>
            {
                return Ok(false);
            }
            // Its execution has ended, and another one needs the place.
            EndState::Detached { reason: DetachReason::Evicted, .. } => return Ok(false),
            EndState::Detached { .. } => return Err(format!("{end:?}")),
        };
        let is_right = |(details, totals): &(_, _)| {
            let details: &crate::shard::journal::EndedDetails = details;
            let totals: &crate::stream::KindTotals = totals;
            let is_same = (details.outcome, details.exit) == (outcome, end.exit);
            let is_told = details.error.as_deref() == ended.error;
            is_same && is_told && (!keeps || totals.of(self.kinds) == end.published)
        };
        if !execution.ends.iter().any(is_right) {
            return Err(format!("{ended:?}, and the log has {:?}", execution.ends));
        }
        // Everything through the head was given or is in a gap.
        let through = execution.between(self.kinds, 1, self.next_seq);
        if through != end.published {
            return Err(format!("{end:?} behind {through:?}"));
        }
        let before = execution.between(self.kinds, 1, self.from_seq);
        if !self.is_bound && before + self.given + self.missed != end.published {
            return Err(format!("{end:?} does not add up"));
        }
        Ok(true)
    }
}
