//! Checks one subscriber's end. It comes exactly once, for a reason that fits the history of the
//! subscriber and of its execution, and with the model's totals.

use crate::base::Instant;
use crate::limits;
use crate::shard::Ended;
use crate::sim::follower::{Follower, Gone};
use crate::sim::model::ExecutionModel;
use crate::stream::{DetachReason, EndState, Policy};

impl Follower {
    /// Checks the end that the subscriber was given.
    pub fn take_end(
        &mut self,
        ended: &Ended<'_>,
        execution: &ExecutionModel,
        now: Instant,
    ) -> Result<(), String> {
        let end = ended.end;
        if (end.given, end.missed) != (self.given, self.missed) {
            return Err(format!("{end:?} after {:?} and {:?}", self.given, self.missed));
        }
        let until_seq = match end.state {
            EndState::Ended(outcome) => {
                let Some((expected, text)) = &execution.verdict else {
                    return Err(format!("it ended {outcome}, and the execution has not"));
                };
                if outcome != *expected || ended.error != text.as_deref() {
                    return Err(format!("it ended {outcome} {:?}, not {expected}", ended.error));
                }
                execution.head_seq() + 1
            }
            EndState::Detached { reason, resume_from } => {
                self.check_detached(reason, execution, now)?;
                resume_from
            }
        };
        // A reader of a process's own ring may have received more than the shard took of it.
        let left_out_count = if self.habitat.is_at_door() { execution.left_out_count } else { 0 };
        if until_seq + left_out_count < self.next_seq
            || execution.totals(self.kinds, self.next_seq, until_seq - 1).chunks > 0
        {
            return Err(format!("{end:?} where {} is next", self.next_seq));
        }
        if !self.habitat.is_elsewhere()
            && u128::from(end.duration_us) > now.since(self.since).as_micros()
        {
            return Err(format!("{end:?}: it lasted longer than it was there"));
        }
        self.ended = Some(end.state);
        Ok(())
    }

    fn check_detached(
        &self,
        reason: DetachReason,
        execution: &ExecutionModel,
        now: Instant,
    ) -> Result<(), String> {
        let by_engine = self.gone == Some(Gone::Detached(reason));
        let by_itself = self.habitat.is_elsewhere() && reason == DetachReason::Lag;
        if !by_engine && !by_itself {
            return Err(format!(
                "detached: {}, and the engine said {:?}",
                reason.name(),
                self.gone
            ));
        }
        match reason {
            DetachReason::Lag if self.policy != Policy::Disconnect => {
                Err(format!("detached for its lag under {}", self.policy))
            }
            DetachReason::Lag if !self.was_over && execution.must_hold(self.next_seq) => {
                Err("detached for its lag, and it never was over its limit".into())
            }
            DetachReason::Lag
                if self.is_plain() && !self.began_over && !execution.may_be_ahead() =>
            {
                Err("a closure that is given everything at once lags".into())
            }
            DetachReason::Lost if self.lost_at.is_none() => {
                Err("detached as lost, and its connection is there".into())
            }
            DetachReason::Stall if self.policy != Policy::Block => {
                Err(format!("detached for standing still under {}", self.policy))
            }
            DetachReason::Stall
                if !self.habitat.is_elsewhere()
                    && now.since(self.moved_at) < execution.stall_deadline() =>
            {
                Err("detached for standing still, and it has just moved".into())
            }
            DetachReason::Evicted if !execution.is_forgotten && execution.verdict.is_none() => {
                Err("evicted from an execution that has not ended".into())
            }
            DetachReason::Evicted
                if execution.verdict.is_some()
                    && self.next_seq > execution.head_seq()
                    && self.lost_at.is_none() =>
            {
                Err("let go, and it had everything: that is the execution's own end".into())
            }
            _ => self.check_grace(reason, now),
        }
    }

    /// Checks that a lost subscriber keeps its place until its grace is over.
    fn check_grace(&self, reason: DetachReason, now: Instant) -> Result<(), String> {
        let Some(lost_at) = self.lost_at else { return Ok(()) };
        let is_place_kept = reason == DetachReason::Lost && self.policy == Policy::Block;
        match is_place_kept && now.since(lost_at) < limits::RECONNECT_GRACE {
            false => Ok(()),
            true => Err("it lost its place before the grace was over".into()),
        }
    }
}
