//! Answers about executions that wait for the disk.

use crate::base::{ExecutionId, Principal};
use crate::endpoint::{Answer, ApiError};
use crate::journal::Refused;
use crate::journal::format::Lsn;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::{ServerShard, executions, hub};
use crate::shard::ExecuteError;
use crate::wire::http1::Status;

/// The answers that wait.
#[derive(Debug, Default)]
pub struct KeptAnswers {
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    connection: ConnectionId,
    awaited: Awaited,
    answer: Box<Answer>,
}

/// The record that the disk has to keep before an answer.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    /// The chunk with this number.
    Chunk(ExecutionId, u64),
    /// The tombstone before this place.
    Tombstone(Lsn),
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
    shard.hurry_kept(execution);
    wait(shard, id, Awaited::Chunk(execution, seq), answer)
}

/// Removes an ended execution. The answer comes when the disk keeps that.
pub(in crate::server) fn forget<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    execution: ExecutionId,
) -> Answered {
    match shard.inspect(execution) {
        Err(error) => return hub::answer_error(shard, id, &error.into()),
        Ok(status) if !status.state.is_over() => {
            let text = "the execution has not ended; cancel it first";
            let error = ApiError::new(Status::CONFLICT, "running", text);
            return hub::answer_error(shard, id, &error);
        }
        Ok(_) => {}
    }
    let answer = Answer::empty(Status::NO_CONTENT);
    match erase(shard, execution) {
        Ok(Some(tombstone)) => wait(shard, id, Awaited::Tombstone(tombstone), answer),
        Ok(None) => hub::answer(shard, id, &answer),
        Err(refused) => {
            let error = executions::refusal(ExecuteError::NotKept(refused));
            hub::answer_error(shard, id, &error)
        }
    }
}

/// Removes an ended execution from the disk. Nobody finds it from now on. Returns the place behind
/// its tombstone; `None` if the disk has nothing of it.
pub(in crate::server) fn erase<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
) -> Result<Option<Lsn>, Refused> {
    let tombstone = shard.delete_kept(execution)?;
    shard.guests.archive.forget(execution);
    if let Some(run) = shard.run_of_mut(execution) {
        (run.guest.owner, run.guest.thread) = (Principal::NOBODY, None);
    }
    Ok(tombstone)
}

fn wait<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    awaited: Awaited,
    answer: Answer,
) -> Answered {
    let waiting = Waiting { connection: id, awaited, answer: Box::new(answer) };
    shard.guests.kept_answers.waiting.push(waiting);
    hub::wait(shard, id)
}

/// Sends the answers for which the disk has everything.
pub(in crate::server) fn settle_answers<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for waiting in std::mem::take(&mut shard.guests.kept_answers.waiting) {
        let is_kept = match waiting.awaited {
            Awaited::Chunk(execution, seq) => shard.is_durable_to(execution, seq),
            Awaited::Tombstone(lsn) => shard.is_synced_to(lsn),
        };
        let answer = match is_kept {
            Ok(false) => {
                shard.guests.kept_answers.waiting.push(waiting);
                continue;
            }
            Ok(true) => *waiting.answer,
            Err(refused) => Answer::error(&executions::refusal(ExecuteError::NotKept(refused))),
        };
        hub::answer_waiting(shard, waiting.connection, &answer);
    }
}
