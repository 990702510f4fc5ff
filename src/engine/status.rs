//! The status of an execution and of each of its subscribers. Nothing here changes any state.

use crate::base::{ExecutionId, Instant, ProgressToken, SubscriberId};
use crate::engine::event::{RingFacts, SubscriberPlace};
use crate::engine::execution::Execution;
use crate::engine::log::ChunkLog;
use crate::engine::policy::{Cursor, Log, lag, totals_before};
use crate::stream::{ExecutionState, Exit, Outcome, Progress, Terms, Totals};

/// The status of an execution.
///
/// ```
/// use streamdoor::{ExecuteOptions, ExecutionState, Shard, ShardConfig};
///
/// let (mut shard, _report) = Shard::new(ShardConfig::default())?;
/// let arguments = serde_json::json!({"chunks": 1, "delay_ms": 1});
/// let id = shard.execute("slow_data_processor", &arguments, ExecuteOptions::default())?;
/// let status = shard.inspect(id)?;
/// assert_eq!(status.id, id);
/// assert!(!matches!(status.state, ExecutionState::Ended(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Status {
    /// The id of the execution.
    pub id: ExecutionId,
    /// The token with which the progress can be read, unless it was forgotten.
    pub token: Option<ProgressToken>,
    /// The state in its life cycle.
    pub state: ExecutionState,
    /// The outcome. While `block` subscribers still read, it is the outcome that the execution will
    /// have.
    pub outcome: Option<Outcome>,
    /// The newest chunk; 0 if none was published.
    pub head_seq: u64,
    /// The oldest chunk held.
    pub tail_seq: u64,
    /// Totals of all published chunks.
    pub totals: Totals,
    /// Number of chunks in all, if the tool announced it.
    pub chunks_expected: Option<u64>,
    /// The progress, if any was reported or derived.
    pub progress: Option<Progress>,
    /// Number of subscribers that are attached now.
    pub subscriber_count: u32,
    /// True while a reader or the hold keeps the producer waiting.
    pub gated: bool,
    /// True while the ring keeps its oldest chunks for its first reader.
    pub holds: bool,
    /// The time at which the execution was opened.
    pub opened_at: Instant,
    /// The time at which the execution ended, if it has ended.
    pub ended_at: Option<Instant>,
    /// The error text, if the execution failed.
    pub error: Option<Box<str>>,
    /// The exit status of the process that the tool ran, if it ran one.
    pub exit: Option<Exit>,
    /// The dimensions of the ring, if it has one.
    pub ring: Option<RingFacts>,
}

/// The status of one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberStatus {
    /// The id of the subscriber.
    pub id: SubscriberId,
    /// The thread that the subscriber lives on.
    pub place: SubscriberPlace,
    /// The terms of the subscription.
    pub terms: Terms,
    /// The next chunk for the subscriber. For a reader on another thread, the cursor last reported.
    pub next_seq: u64,
    /// Totals of the chunks of its kinds that the ring holds and that it was not given yet.
    pub lag: Totals,
    /// Totals of the chunks that it was told of in gaps. For a reader on another thread the engine
    /// does not know them (zero), and the shard fills in what the reader has shown.
    pub missed: Totals,
    /// True if the subscriber is the one, or one of those, that holds the producer back.
    pub gates: bool,
    /// True while its connection is broken and its place is kept.
    pub lost: bool,
    /// The time at which the subscriber attached.
    pub since: Instant,
}

impl Status {
    /// Returns the status of an execution.
    pub(super) fn of(e: &Execution) -> Status {
        assert!(e.log.tail_seq() <= e.log.head_seq() + 1); // G1
        assert!(!e.gated() || !e.closed()); // Only a running producer waits.
        Status {
            id: e.id,
            token: e.token,
            state: e.state,
            outcome: e.outcome,
            head_seq: e.log.head_seq(),
            tail_seq: e.log.tail_seq(),
            totals: Totals { chunks: e.log.head_seq(), bytes: e.log.total_bytes() },
            chunks_expected: e.progress.chunks_expected(),
            progress: e.progress.newest(),
            subscriber_count: e.audience.count(),
            gated: e.gated(),
            holds: e.holds(),
            opened_at: e.opened_at,
            ended_at: e.ended_at,
            error: e.error.clone(),
            exit: e.exit,
            ring: e.ring,
        }
    }
}

impl SubscriberStatus {
    /// Returns the status of all subscribers of an execution, in no particular order.
    pub(super) fn all_of(e: &Execution) -> Vec<SubscriberStatus> {
        let slowest_seq = e.gated().then(|| e.audience.slowest_gating_seq()).flatten();
        let locals = e.audience.locals.positions().map(|(local, next_seq)| SubscriberStatus {
            id: local.id,
            place: SubscriberPlace::Local,
            terms: local.terms,
            next_seq,
            lag: held_lag(&local.terms, next_seq, &e.log),
            missed: local.missed(),
            gates: local.gates() && Some(next_seq) == slowest_seq,
            lost: local.is_lost(),
            since: local.since(),
        });
        let remotes = e.audience.remotes.iter().map(|remote| SubscriberStatus {
            id: remote.id,
            place: SubscriberPlace::Remote,
            terms: remote.terms,
            next_seq: remote.next_seq,
            lag: held_lag(&remote.terms, remote.next_seq, &e.log),
            missed: Totals::ZERO,
            gates: remote.gates() && Some(remote.next_seq) == slowest_seq,
            lost: remote.is_lost(),
            since: remote.since,
        });
        locals.chain(remotes).collect()
    }
}

/// Totals of the chunks that the ring holds for a subscriber whose next chunk is `next_seq`.
fn held_lag(terms: &Terms, next_seq: u64, log: &ChunkLog) -> Totals {
    let held_seq = next_seq.max(log.tail_seq());
    assert!(next_seq <= log.head_seq() + 1); // E2
    let seen = totals_before(terms.kinds, held_seq, log);
    let lag = lag(terms, &Cursor::new(held_seq, seen), log);
    assert!(lag.chunks <= log.head_seq() + 1 - held_seq); // G2
    lag
}
