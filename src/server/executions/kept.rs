//! Answers that wait for the disk, because their executions promise that.

use crate::base::ExecutionId;
use crate::endpoint::Answer;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::hub::connection::Doing;
use crate::server::{ServerShard, executions, hub};
use crate::shard::ExecuteError;

/// The answers that wait.
#[derive(Debug, Default)]
pub struct KeptAnswers {
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    connection: ConnectionId,
    execution: ExecutionId,
    /// The last chunk that the disk has to have.
    seq: u64,
    answer: Box<Answer>,
}

impl KeptAnswers {
    /// True if any answer waits.
    #[inline]
    pub fn has_any(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// Answers a request about an execution, once the disk has all of it so far. It waits only under
/// the durability `synced`.
pub(in crate::server) fn answer_when_kept<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
    answer: Answer,
) -> Answered {
    let seq = shard.run_of(execution).map(|run| run.head_seq());
    let Some(seq) = seq.filter(|_| shard.promises_sync(execution)) else {
        return hub::answer(shard, id, &answer);
    };
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("its request is being answered").doing = Doing::Elsewhere;
    hub.set_timer(id, None);
    let answer = Box::new(answer);
    shard.guests.kept_answers.waiting.push(Waiting { connection: id, execution, seq, answer });
    shard.hurry_kept(execution);
    Answered::Later
}

/// Sends the answers for which the disk has everything.
pub(in crate::server) fn settle_answers<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for waiting in std::mem::take(&mut shard.guests.kept_answers.waiting) {
        let is_kept = shard.is_durable_to(waiting.execution, waiting.seq);
        let answer = match is_kept {
            Ok(false) => {
                shard.guests.kept_answers.waiting.push(waiting);
                continue;
            }
            Ok(true) => *waiting.answer,
            Err(refused) => Answer::error(&executions::refusal(ExecuteError::NotKept(refused))),
        };
        let id = waiting.connection;
        let Some(connection) = shard.guests.hub.connection(id) else { continue };
        assert!(matches!(connection.doing, Doing::Elsewhere));
        connection.doing = Doing::Requests;
        hub::answer(shard, id, &answer);
        shard.guests.hub.resume_later(id);
    }
}
