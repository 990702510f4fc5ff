//! The delivery that a polling subscriber is owed at this moment. The policies are written once
//! more, from their description over the model's plain list of chunks, and not from the engine's
//! code.
//!
//! Used for subscribers that poll (on this thread, or made for another). A closure never polls;
//! `follower.rs` checks its deliveries.

use std::time::Duration;

use crate::base::Instant;
use crate::limits;
use crate::shard::Delivery;
use crate::sim::follower::{Follower, Gone};
use crate::sim::model::ExecutionModel;
use crate::stream::{EndState, Gap, GapReason, Policy, Totals};

/// The delivery that is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Nothing,
    Chunk(u64),
    Gap {
        to_seq: u64,
        reason: GapReason,
    },
    /// Its own end, because it lags too far.
    Detached,
    /// The execution's end.
    Ended,
}

/// The delivery that came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Got {
    Nothing,
    Chunk(u64),
    Gap(Gap),
    Progress,
    End(EndState),
}

impl Got {
    pub fn of(delivery: Option<&Delivery<'_>>) -> Got {
        match delivery {
            None => Got::Nothing,
            Some(Delivery::Chunk(chunk)) => Got::Chunk(chunk.seq),
            Some(Delivery::Gap(gap)) => Got::Gap(*gap),
            Some(Delivery::Progress(_)) => Got::Progress,
            Some(Delivery::End(ended)) => Got::End(ended.end.state),
        }
    }
}

/// The chunks that the log holds for the polling subscriber.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub tail_seq: u64,
    pub head_seq: u64,
}

/// The most that coalescing may be late: one tick of the wheel, and a few turns.
const COALESCE_SLACK: Duration = Duration::from_nanos((1 << limits::WHEEL_TICK_SHIFT) + 20_000);

impl Follower {
    /// The delivery that it is owed if it polls now. Moves its window as a poll does.
    pub fn expect(&mut self, execution: &ExecutionModel, held: Held) -> Expected {
        let Held { tail_seq, head_seq } = held;
        let lost = execution.totals(self.kinds, self.next_seq, (tail_seq - 1).min(head_seq));
        if lost.chunks > 0 {
            let gone_seq = if self.is_fresh { self.came_tail_seq - 1 } else { 0 };
            let gone = execution.totals(self.kinds, self.next_seq, gone_seq.min(head_seq));
            if self.policy == Policy::Disconnect && lost.chunks > gone.chunks {
                return Expected::Detached;
            }
            self.stop_seq = None;
            let reason = if gone.chunks > 0 { GapReason::Late } else { GapReason::Overtaken };
            return Expected::Gap { to_seq: tail_seq - 1, reason };
        }
        let from_seq = self.next_seq.max(tail_seq);
        let Some((next_seq, _)) = execution.wanted(self.kinds, from_seq, head_seq).next() else {
            return match execution.verdict {
                Some(_) if head_seq == execution.head_seq() => Expected::Ended,
                _ => Expected::Nothing,
            };
        };
        if next_seq < self.granted_seq {
            return Expected::Chunk(next_seq);
        }
        let lag_from_seq = self.lag_from(from_seq);
        let lag = execution.totals(self.kinds, lag_from_seq, head_seq);
        let within = self.holds(execution, lag);
        let grant = |follower: &mut Follower, until_seq: u64| {
            if follower.habitat.is_elsewhere() {
                follower.granted_seq = until_seq;
            }
            Expected::Chunk(next_seq)
        };
        match self.policy {
            Policy::Block | Policy::Replay => Expected::Chunk(next_seq),
            Policy::Disconnect if !within => Expected::Detached,
            Policy::Disconnect => Expected::Chunk(next_seq),
            Policy::Drop | Policy::Buffer => {
                if self.stop_seq.is_none() {
                    if within {
                        return grant(self, head_seq + 1);
                    }
                    self.stop_seq = Some(self.first_outside(execution, lag_from_seq, head_seq));
                }
                let stop_seq = self.stop_seq.expect("it was just set");
                if next_seq < stop_seq {
                    return grant(self, stop_seq.min(head_seq + 1));
                }
                self.stop_seq = None;
                Expected::Gap { to_seq: head_seq, reason: GapReason::Lag }
            }
            Policy::DropOldest if within => Expected::Chunk(next_seq),
            Policy::DropOldest => {
                let to_seq = self.last_outside(execution, from_seq, head_seq);
                Expected::Gap { to_seq, reason: GapReason::Lag }
            }
            Policy::Conflate => {
                let first_seq = self.first_of_newest(execution, from_seq, head_seq);
                match first_seq == next_seq {
                    true => Expected::Chunk(next_seq),
                    false => Expected::Gap { to_seq: first_seq - 1, reason: GapReason::Conflated },
                }
            }
        }
    }

    /// The first chunk that does not fit into the limit, counted from the oldest.
    fn first_outside(&self, execution: &ExecutionModel, from_seq: u64, head_seq: u64) -> u64 {
        let mut window = Totals::ZERO;
        for (seq, chunk) in execution.wanted(self.kinds, from_seq, head_seq) {
            window.count(chunk.length);
            if !self.holds(execution, window) {
                return seq;
            }
        }
        unreachable!("the lag is over the limit")
    }

    /// The last chunk that does not fit into the limit, counted from the newest.
    fn last_outside(&self, execution: &ExecutionModel, from_seq: u64, head_seq: u64) -> u64 {
        let mut window = Totals::ZERO;
        let wanted: Vec<u64> =
            execution.wanted(self.kinds, from_seq, head_seq).map(|(seq, _)| seq).collect();
        for seq in wanted.into_iter().rev() {
            window.count(execution.chunk(seq).expect("it is wanted").length);
            if !self.holds(execution, window) {
                return seq;
            }
        }
        unreachable!("the lag is over the limit")
    }

    /// The oldest of those that are the newest of their key.
    fn first_of_newest(&self, execution: &ExecutionModel, from_seq: u64, head_seq: u64) -> u64 {
        let mut newest = [0u64; limits::KEYS_MAX];
        for (seq, chunk) in execution.wanted(self.kinds, from_seq, head_seq) {
            newest[chunk.key as usize] = seq;
        }
        newest.into_iter().filter(|&seq| seq > 0).min().expect("there are chunks")
    }

    /// Checks that the delivery that came is the one that was owed. `held` is what the log held at
    /// the poll, `gone` the engine's last statement about the subscriber by then.
    pub fn compare(
        &mut self,
        execution: &ExecutionModel,
        (held, gone): (Held, Option<Gone>),
        (expected, got): (Expected, Got),
        now: Instant,
    ) -> Result<(), String> {
        let fits = match (expected, got) {
            (_, Got::Progress) => true,
            _ if self.lost_at.is_some() && gone.is_none() => got == Got::Nothing,
            _ if gone.is_some() => self.fits_after_the_end(got),
            (Expected::Nothing, Got::Nothing) => true,
            (Expected::Chunk(expected_seq), Got::Chunk(seq)) => seq == expected_seq,
            (Expected::Gap { to_seq, reason }, Got::Gap(gap)) => {
                // It may have moved over chunks that are none of its kinds: then it is not late.
                let same = gap.reason == reason || reason == GapReason::Late;
                gap.to_seq == to_seq && same || is_ahead(execution, &gap)
            }
            (_, Got::Gap(gap)) => is_ahead(execution, &gap),
            (Expected::Detached, Got::End(EndState::Detached { .. })) => true,
            // It may have moved over chunks that are none of its kinds: then it did not come late.
            (
                Expected::Gap { reason: GapReason::Late, .. },
                Got::End(EndState::Detached { .. }),
            ) if !self.kinds.is_all() => self.policy == Policy::Disconnect,
            (_, Got::End(EndState::Detached { .. })) => {
                execution.may_be_ahead() && self.policy == Policy::Disconnect
            }
            (Expected::Ended, Got::End(EndState::Ended(_))) => true,
            (Expected::Chunk(seq), Got::Nothing) => self.may_wait(seq, execution, now),
            _ => false,
        };
        let through_seq = match got {
            Got::Chunk(seq) => Some(seq),
            Got::Gap(gap) => Some(gap.to_seq),
            _ => None,
        };
        if let (Some(coalesce), Some(seq)) = (self.coalesce, through_seq) {
            let waited = |at: Instant| now > at + coalesce.delay_max + COALESCE_SLACK;
            self.is_flushing |= self.asked_at.is_some_and(waited);
            self.is_flushing &= execution.totals(self.kinds, seq + 1, held.head_seq).chunks > 0;
            self.asked_at = None;
        }
        match fits {
            true => Ok(()),
            false => {
                Err(format!("it asked with {held:?} and is owed {expected:?}; it got {got:?}"))
            }
        }
    }

    /// True if the delivery is possible after the engine has detached it, which it may not know
    /// yet.
    fn fits_after_the_end(&self, got: Got) -> bool {
        match got {
            Got::Chunk(_) | Got::Gap(_) => self.habitat.is_elsewhere(),
            Got::End(EndState::Ended(_)) => {
                self.gone == Some(Gone::Ended) || self.habitat.is_elsewhere()
            }
            Got::End(EndState::Detached { .. }) => true,
            Got::Nothing => self.gone == Some(Gone::Left),
            Got::Progress => true,
        }
    }

    /// True if it may get nothing although a chunk is pending for it.
    fn may_wait(&mut self, seq: u64, execution: &ExecutionModel, now: Instant) -> bool {
        if self.is_held_by_acks(seq, execution) {
            return true;
        }
        let Some(coalesce) = self.coalesce else { return false };
        let asked_at = *self.asked_at.get_or_insert(now);
        !self.is_flushing && now <= asked_at + coalesce.delay_max + COALESCE_SLACK
    }

    /// Checks that no chunk of a coalescing closure has waited for too long.
    pub fn check_coalescing(&self, execution: &ExecutionModel, now: Instant) -> Result<(), String> {
        let Some(coalesce) = self.coalesce else { return Ok(()) };
        let waiting = execution.wanted(self.kinds, self.next_seq, u64::MAX).next();
        let Some((seq, chunk)) = waiting else { return Ok(()) };
        let due_at = chunk.known_at.max(self.free_since) + coalesce.delay_max + COALESCE_SLACK;
        match now <= due_at || self.is_held_by_acks(seq, execution) || self.lost_at.is_some() {
            true => Ok(()),
            false => Err(format!("chunk {seq} is waiting for company since {:?}", chunk.known_at)),
        }
    }
}

/// True if the gap is about chunks that the ring has overwritten before the engine knew.
fn is_ahead(execution: &ExecutionModel, gap: &Gap) -> bool {
    execution.may_be_ahead() && matches!(gap.reason, GapReason::Late | GapReason::Overtaken)
}
