//! The admission of a subscriber: its terms, its first cursor, and the promise of the ring.
//!
//! Everything here only reads the execution. A wrong request is answered with an error.

use crate::base::planted::{Planted, planted};
use crate::engine::action::SubscribeError;
use crate::engine::event::{From, RingFacts, SubscribeSpec};
use crate::engine::execution::Execution;
use crate::engine::policy::{Cursor, Log, is_near, totals_before};
use crate::engine::reserve::Replay;
use crate::limits;
use crate::stream::{Kinds, LagLimit, Policy, Terms, Totals};

/// Returns the promise to a subscriber that may come back, if it is one.
pub(super) fn replay_in(ring: RingFacts, spec: &SubscribeSpec) -> Option<Replay> {
    let replays = spec.replays && spec.policy == Policy::Block;
    let replay = replays.then(|| Replay::of(ring, spec.ack_window));
    assert!(replay.is_none_or(|replay| replay.chunks <= ring.slot_count));
    replay
}

/// True if the subscriber is given chunks from the disk where the ring holds them no longer. Under
/// `drop_oldest` and `conflate` only the newest chunks are wanted.
pub(super) fn reads_from_disk(execution: &Execution, spec: &SubscribeSpec) -> bool {
    let wants_all = !matches!(spec.policy, Policy::DropOldest | Policy::Conflate);
    execution.log.is_kept() && spec.reads_disk && wants_all
}

/// Returns the first cursor of a subscriber with what it knows about its lag. The backlog of one
/// that is level does not count as its lag.
pub(super) fn with_level(
    cursor: Cursor,
    execution: &Execution,
    spec: &SubscribeSpec,
    terms: &Terms,
) -> Cursor {
    let log = &execution.log;
    if reads_from_disk(execution, spec) && cursor.next_seq <= log.head_seq() {
        let is_claimed = cursor.next_seq > 1 && cursor.next_seq < log.tail_seq();
        let away = cursor.going_away(is_claimed);
        if !is_near(terms, &away, log) {
            return away;
        }
    }
    cursor.coming_at(log.head_seq())
}

/// Returns the terms for a subscription, with defaults filled in and bounds checked.
pub(super) fn terms(execution: &Execution, spec: &SubscribeSpec) -> Result<Terms, SubscribeError> {
    let ring = execution.ring_facts();
    let default = spec.policy.default_limit(ring.chunks_max);
    let chunks = spec.limit_chunks.unwrap_or(default.chunks);
    if chunks == 0 || chunks > ring.chunks_max {
        let limit_chunks_max = ring.chunks_max;
        return Err(SubscribeError::Limit { limit_chunks: chunks, limit_chunks_max });
    }
    if spec.limit_bytes == Some(0) {
        return Err(SubscribeError::Invalid { field: "limit_bytes" });
    }
    if spec.kinds.is_empty() {
        return Err(SubscribeError::Invalid { field: "kinds" });
    }
    if spec.ack_window == Some(0) {
        return Err(SubscribeError::Invalid { field: "ack_window" });
    }
    if let Some(coalesce) = spec.coalesce
        && coalesce.delay_max > limits::COALESCE_DELAY_MAX
    {
        return Err(SubscribeError::Invalid { field: "coalesce.delay_max" });
    }
    let limit = LagLimit { chunks, bytes: spec.limit_bytes.unwrap_or(u64::MAX) };
    assert!(limit.holds(Totals { chunks: 1, bytes: u64::MAX })); // One chunk is within any limit.
    Ok(Terms { policy: spec.policy, limit, kinds: spec.kinds })
}

/// Returns the first cursor of a new subscriber.
pub(super) fn first_cursor(
    execution: &Execution,
    spec: &SubscribeSpec,
) -> Result<Cursor, SubscribeError> {
    let log = &execution.log;
    let next_seq = log.head_seq() + 1;
    match spec.from {
        From::Start => Ok(Cursor::new(1, Totals::ZERO)),
        From::Live => Ok(Cursor::new(next_seq, log.totals_through_head(spec.kinds))),
        From::Seq { seq: 0, .. } => Err(SubscribeError::Invalid { field: "from" }),
        From::Seq { seq, .. } if seq > next_seq => match execution.state.is_over() {
            // A power cut may have taken the newest chunks that the subscriber has seen.
            true => Ok(Cursor::new(next_seq, log.totals_through_head(spec.kinds))),
            false => Err(SubscribeError::NotYet { next_seq }),
        },
        From::Seq { seq: 1, .. } => Ok(Cursor::new(1, Totals::ZERO)),
        From::Seq { seq, .. } if seq >= log.tail_seq() => {
            Ok(Cursor::new(seq, totals_before(spec.kinds, seq, log)))
        }
        From::Seq { seq, seen: None } if reads_from_disk(execution, spec) => {
            Ok(Cursor::new(seq, Totals::ZERO)) // The ring corrects that later.
        }
        From::Seq { seq, seen: Some(seen) } => {
            if !could_be_seen(execution, spec.kinds, seq, seen) {
                return Err(SubscribeError::Invalid { field: "from.seen" });
            }
            if planted(Planted::GapTwiceAfterReconnect) {
                return Ok(Cursor::new(1, Totals::ZERO));
            }
            Ok(Cursor::new(seq, seen))
        }
        From::Seq { .. } => Err(SubscribeError::NoLongerHeld { tail_seq: log.tail_seq() }),
    }
}

/// True if `seen` can be the totals of `kinds` before chunk `seq`, which is no longer held. It
/// checks what can still be known, which is the gap up to the tail. The gap must not have more
/// chunks than there were in between, nor more bytes than these can have had.
fn could_be_seen(execution: &Execution, kinds: Kinds, seq: u64, seen: Totals) -> bool {
    let log = &execution.log;
    assert!(seq < log.tail_seq()); // What is held is counted exactly.
    let before_tail = log.totals_before_tail(kinds);
    if seen.chunks >= seq || seen.chunks > before_tail.chunks || seen.bytes > before_tail.bytes {
        return false;
    }
    let missed = before_tail - seen;
    let chunk_bytes_max = match log.is_kept() {
        true => u64::MAX, // It may have had a longer ring before a restart.
        false => u64::from(execution.ring_facts().chunk_bytes_max),
    };
    let fits = |totals: Totals| totals.bytes <= totals.chunks.saturating_mul(chunk_bytes_max);
    missed.chunks <= log.tail_seq() - seq && fits(missed) && fits(seen)
}
