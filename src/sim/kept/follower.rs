//! A subscriber of a kept execution, and what it has to be given next.

use super::{Heard, Model, Told, Waits, payload, totals};
use crate::shard::{Delivery, Ended};
use crate::stream::{DetachReason, End, EndState, GapReason, Kinds, Outcome, Totals};

/// A subscriber, and what it has to be given next.
pub(super) struct KeptFollower {
    number: u64,
    from_seq: u64,
    kinds: Kinds,
    /// The lag that its policy allows, if that is a number of chunks.
    limit_chunks: u64,
    /// True once it lagged by no more than that.
    was_level: bool,
    waits: Waits,
    /// True once it was told of chunks that are not on the disk.
    has_unwritten: bool,
    next_seq: u64,
    given: Totals,
    missed: Totals,
    pub has_ended: bool,
}

impl KeptFollower {
    pub fn new(model: &Model, kinds: Kinds, from_seq: u64, limit_chunks: u64) -> KeptFollower {
        KeptFollower {
            number: model.number,
            waits: model.waits,
            has_unwritten: false,
            from_seq,
            kinds,
            limit_chunks,
            was_level: false,
            next_seq: from_seq,
            given: Totals::ZERO,
            missed: Totals::ZERO,
            has_ended: false,
        }
    }

    pub fn hear(&mut self, delivery: &Delivery<'_>, heard: &mut Heard) -> Result<(), String> {
        let number = self.number;
        match delivery {
            Delivery::Chunk(chunk) => {
                let (kind, bytes) = payload(number, chunk.seq);
                if (chunk.kind, chunk.data) != (kind, &bytes[..]) {
                    return Err(format!("chunk {} of {number} is wrong", chunk.seq));
                }
                self.skip_to(chunk.seq)?;
                if self.has_unwritten && self.waits.keeps_all() && !heard.is_damaged() {
                    return Err(format!("chunk {} of {number} follows lost ones", chunk.seq));
                }
                heard.see(number, chunk.seq);
                self.next_seq = chunk.seq + 1;
                self.given.count(bytes.len() as u32);
                heard.counts.given += 1;
                heard.note(number ^ chunk.seq << 16);
            }
            Delivery::Gap(gap) => {
                self.skip_to(gap.from_seq)?;
                heard.see(number, gap.to_seq);
                self.next_seq = gap.to_seq + 1;
                let exact = totals(number, self.kinds, gap.from_seq..=gap.to_seq);
                let told = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
                // The number of chunks is a bound, with damage beside it, and if the subscriber
                // begins within what is lost: nobody knows the totals before that.
                let begins_within = gap.from_seq == self.from_seq && gap.from_seq > 1;
                let may_be_bound = heard.is_damaged() || begins_within;
                let may_be_bound = may_be_bound && told.chunks >= exact.chunks;
                if told != exact && !may_be_bound {
                    return Err(format!("{gap:?} of {number} has {exact:?}"));
                }
                self.missed = self.missed + told;
                heard.note(gap.from_seq << 32 | gap.to_seq);
                self.check_reason(gap.reason, heard)?;
            }
            Delivery::End(Ended {
                end: End { state: EndState::Detached { reason, .. }, .. },
                ..
            }) if *reason == DetachReason::Lag && !self.was_level => {
                return Err(format!("{number} lags before it was level"));
            }
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                if std::mem::replace(&mut self.has_ended, true) {
                    return Err(format!("{number} ends twice"));
                }
                let end = &ended.end;
                let is_told = (end.given, end.missed) == (self.given, self.missed);
                if !is_told && !heard.is_damaged() {
                    return Err(format!("{number}: {end:?} is not {:?}", self.given));
                }
                match end.state {
                    EndState::Ended(outcome) => {
                        let has_waited = self.waits.keeps_all() && !heard.is_damaged();
                        if outcome == Outcome::Completed && self.has_unwritten && has_waited {
                            return Err(format!("{number} is complete, and not on the disk"));
                        }
                        let all = self.given + self.missed;
                        let (kinds, from_seq) = (self.kinds, self.from_seq);
                        heard.ends.push(Told { number, outcome, kinds, from_seq, all });
                        heard.counts.ends += 1;
                    }
                    EndState::Detached { .. } => heard.counts.detached += 1,
                }
                heard.note(number << 8 | 0xE);
            }
        }
        self.look_at_lag(heard);
        Ok(())
    }

    /// Notes that it is level. Its policy applies from then on.
    pub fn look_at_lag(&mut self, heard: &Heard) {
        let head_seq = heard.heads.get(&self.number).copied().unwrap_or(0);
        let lag = totals(self.number, self.kinds, self.next_seq..=head_seq);
        self.was_level |= lag.chunks <= self.limit_chunks;
    }

    /// Checks that nothing of its kinds lies before `seq`.
    fn skip_to(&self, seq: u64) -> Result<(), String> {
        let skipped = totals(self.number, self.kinds, self.next_seq..seq);
        if seq < self.next_seq || skipped.chunks > 0 {
            return Err(format!("{}: {seq} follows, not {}", self.number, self.next_seq));
        }
        Ok(())
    }

    fn check_reason(&mut self, reason: GapReason, heard: &mut Heard) -> Result<(), String> {
        let is_damaged = heard.is_damaged(); // After a failed sync, chunks are not given any more.
        self.has_unwritten |= reason == GapReason::Unwritten;
        if self.has_unwritten && self.waits == Waits::ForDurable && !is_damaged {
            return Err(format!("{} was shown chunks that are not on the disk", self.number));
        }
        let counts = &mut heard.counts;
        let count = match reason {
            GapReason::Unwritten => &mut counts.unwritten,
            GapReason::Expired => &mut counts.expired,
            GapReason::Corrupt if is_damaged => &mut counts.corrupt,
            _ if self.was_level && self.limit_chunks > 0 => &mut counts.lag,
            _ => return Err(format!("{}: a gap with the reason {reason}", self.number)),
        };
        *count += 1;
        Ok(())
    }
}
