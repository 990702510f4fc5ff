//! The status of an execution and of each of its subscribers. Nothing here changes any state but
//! `forget_token`.

use crate::base::{ExecutionId, Handle, Instant, ProgressToken, SubscriberId};
use crate::engine::Engine;
use crate::engine::action::{NotFound, Reply};
use crate::engine::event::{RingFacts, SubscriberPlace};
use crate::engine::execution::Execution;
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

impl Execution {
    /// The status of all subscribers, in no particular order.
    fn subscribers(&self) -> Vec<SubscriberStatus> {
        let slowest_seq = self.gated().then(|| self.slowest_gating_seq()).flatten();
        let locals = self.locals.positions().map(|(local, next_seq)| SubscriberStatus {
            id: local.id,
            place: SubscriberPlace::Local,
            terms: local.terms,
            next_seq,
            lag: self.lag_of(&local.terms, next_seq),
            missed: local.missed(),
            gates: local.gates() && Some(next_seq) == slowest_seq,
            lost: local.is_lost(),
            since: local.since(),
        });
        let remotes = self.remotes.iter().map(|remote| SubscriberStatus {
            id: remote.id,
            place: SubscriberPlace::Remote,
            terms: remote.terms,
            next_seq: remote.next_seq,
            lag: self.lag_of(&remote.terms, remote.next_seq),
            missed: Totals::ZERO,
            gates: remote.gates() && Some(remote.next_seq) == slowest_seq,
            lost: remote.is_lost(),
            since: remote.since,
        });
        locals.chain(remotes).collect()
    }

    /// Totals of the chunks that the ring holds for a subscriber whose next chunk is `next_seq`.
    fn lag_of(&self, terms: &Terms, next_seq: u64) -> Totals {
        let held_seq = next_seq.max(self.log.tail_seq());
        assert!(next_seq <= self.log.head_seq() + 1); // E2
        let seen = totals_before(terms.kinds, held_seq, &self.log);
        let lag = lag(terms, &Cursor::new(held_seq, seen), &self.log);
        assert!(lag.chunks <= self.log.head_seq() + 1 - held_seq); // G2
        lag
    }
}

impl Engine {
    pub(super) fn inspect(&mut self, id: ExecutionId) {
        let status = self.find(id).map(|e| {
            assert!(e.log.tail_seq() <= e.log.head_seq() + 1); // G1
            assert!(!e.gated() || !e.closed()); // Only a running producer waits.
            Box::new(Status {
                id,
                token: e.token,
                state: e.state,
                outcome: e.outcome,
                head_seq: e.log.head_seq(),
                tail_seq: e.log.tail_seq(),
                totals: Totals { chunks: e.log.head_seq(), bytes: e.log.total_bytes() },
                chunks_expected: e.chunks_expected,
                progress: e.tracker.progress(),
                subscriber_count: e.subscriber_count(),
                gated: e.gated(),
                holds: e.holds(),
                opened_at: e.opened_at,
                error: e.error.clone(),
                exit: e.exit,
                ring: e.ring,
            })
        });
        self.reply(Reply::Inspected(status.ok_or(NotFound)));
    }

    /// True if the execution has exactly one subscriber, and that one is local.
    pub fn is_alone(&self, execution: Handle) -> bool {
        self.executions.get(execution).is_some_and(|e| e.locals.len() == 1 && e.remotes.is_empty())
    }

    /// The state and the number of subscribers of each execution.
    pub fn census(&self) -> impl Iterator<Item = (ExecutionState, u32)> {
        self.executions.iter().map(|(_, e)| (e.state, e.subscriber_count()))
    }

    /// Returns the status of each subscriber of an execution.
    ///
    /// # Errors
    /// [`NotFound`] if the execution does not exist.
    pub fn subscribers(&self, id: ExecutionId) -> Result<Vec<SubscriberStatus>, NotFound> {
        self.find(id).map(Execution::subscribers).ok_or(NotFound)
    }

    /// The progress token of an execution, unless it was forgotten.
    pub fn token(&self, id: ExecutionId) -> Option<ProgressToken> {
        self.find(id)?.token
    }

    /// The execution that a token stands for, unless the token was forgotten.
    pub fn find_token(&self, token: ProgressToken) -> Option<ExecutionId> {
        let execution = self.executions.get(token.slot)?;
        assert!(execution.id.slot == token.slot);
        (execution.token == Some(token)).then_some(execution.id)
    }

    /// The tokens of all executions that have not ended, with their progress.
    pub fn tokens(&self) -> impl Iterator<Item = (ProgressToken, ExecutionId, Option<Progress>)> {
        let active = self.executions.iter().filter(|(_, e)| !e.closed());
        active.filter_map(|(_, e)| Some((e.token?, e.id, e.tracker.progress())))
    }

    pub(super) fn forget_token(&mut self, token: ProgressToken) {
        let result = match self.find_token(token) {
            None => Err(NotFound),
            Some(id) => {
                self.executions.get_mut(id.slot).expect("it was just found").token = None;
                Ok(())
            }
        };
        self.reply(Reply::TokenForgotten(result));
    }
}
