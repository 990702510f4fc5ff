//! What an execution is doing, and each of its subscribers: answers to whoever asks, and nothing
//! that changes anything.

use crate::base::{ExecutionId, Handle, Instant, ProgressToken, SubscriberId};
use crate::engine::action::{NotFound, Reply, State};
use crate::engine::chunk::Totals;
use crate::engine::event::{Place, RingFacts};
use crate::engine::execution::Execution;
use crate::engine::policy::{Cursor, Log, Terms, lag, totals_before};
use crate::engine::progress::Progress;
use crate::engine::{Engine, Exit, Outcome};

/// What an execution is doing.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Status {
    /// Its name.
    pub id: ExecutionId,
    /// What its progress can be asked for with, unless that was forgotten.
    pub token: Option<ProgressToken>,
    /// Where it is in its life.
    pub state: State,
    /// How it ended, or will have ended when its subscribers have read what they are owed.
    pub outcome: Option<Outcome>,
    /// The newest chunk; 0 if there is none.
    pub head_seq: u64,
    /// The oldest chunk held.
    pub tail_seq: u64,
    /// All chunks published.
    pub totals: Totals,
    /// How many there will be, if the tool said so.
    pub chunks_expected: Option<u64>,
    /// How far it is, if the tool said so.
    pub progress: Option<Progress>,
    /// Subscribers there now.
    pub subscriber_count: u32,
    /// True while a reader or the hold keeps the producer waiting.
    pub gated: bool,
    /// True while the ring keeps its oldest chunks for its first reader.
    pub holds: bool,
    /// When it was opened.
    pub opened_at: Instant,
    /// What went wrong, if it failed.
    pub error: Option<Box<str>>,
    /// How the process ended that the tool has run, if it has.
    pub exit: Option<Exit>,
    /// Its ring, if it has one.
    pub ring: Option<RingFacts>,
}

/// How one subscriber stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberStatus {
    /// Its name.
    pub id: SubscriberId,
    /// Where it lives.
    pub place: Place,
    /// What was agreed with it.
    pub terms: Terms,
    /// The next chunk for it. Of one on another thread: where it stood when it was last looked at.
    pub next_seq: u64,
    /// What the ring holds for it and it has not been given, of its kinds.
    pub lag: Totals,
    /// What it was told that it missed. Of one on another thread the engine does not know (zero),
    /// and its shard says what that one has shown.
    pub missed: Totals,
    /// It is what holds the producer back, or one of those that do.
    pub gates: bool,
    /// Its connection is broken, and its place is kept.
    pub lost: bool,
    /// Since when it has been there.
    pub since: Instant,
}

impl Execution {
    /// All of them, in no order that means anything.
    fn subscribers(&self) -> Vec<SubscriberStatus> {
        let slowest_seq = self.gated().then(|| self.slowest_gating_seq()).flatten();
        let locals = self.locals.positions().map(|(local, next_seq)| SubscriberStatus {
            id: local.id,
            place: Place::Local,
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
            place: Place::Remote,
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

    /// What the ring holds for one that stands before `next_seq`.
    fn lag_of(&self, terms: &Terms, next_seq: u64) -> Totals {
        let held_seq = next_seq.max(self.log.tail_seq());
        let seen = totals_before(terms.kinds, held_seq, &self.log);
        lag(terms, &Cursor::new(held_seq, seen), &self.log)
    }
}

impl Engine {
    pub(super) fn inspect(&mut self, id: ExecutionId) {
        let status = self.find(id).map(|e| {
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

    /// Has the execution one subscriber of this thread, and no other?
    pub fn is_alone(&self, execution: Handle) -> bool {
        self.executions.get(execution).is_some_and(|e| e.locals.len() == 1 && e.remotes.is_empty())
    }

    /// Where each execution is in its life, and how many subscribers it has.
    pub fn census(&self) -> impl Iterator<Item = (State, u32)> {
        self.executions.iter().map(|(_, e)| (e.state, e.subscriber_count()))
    }

    /// How each subscriber of an execution stands.
    ///
    /// # Errors
    /// [`NotFound`].
    pub fn subscribers(&self, id: ExecutionId) -> Result<Vec<SubscriberStatus>, NotFound> {
        self.find(id).map(Execution::subscribers).ok_or(NotFound)
    }

    /// What the progress of an execution can be asked for with, if that was not forgotten.
    pub fn token(&self, id: ExecutionId) -> Option<ProgressToken> {
        self.find(id)?.token
    }

    /// The execution that a token stands for, if it was not forgotten.
    pub fn find_token(&self, token: ProgressToken) -> Option<ExecutionId> {
        let execution = self.executions.get(token.slot)?;
        (execution.token == Some(token)).then_some(execution.id)
    }

    /// The tokens of all executions that have not ended, with how far each is.
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
