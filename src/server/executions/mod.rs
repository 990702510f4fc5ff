//! The executions of a shard, as clients of the server see them: the owner, the description, the
//! terms of new executions and of their subscribers.
//!
//! An object of one principal is "not found" for all others, exactly as if it did not exist. A
//! request is checked before it is carried out. Code that reaches an execution in another way has
//! to check [`is_owned`].

mod ended;
mod kept;

pub use ended::{EndedCounts, EndedExecutions};
pub use kept::KeptAnswers;
pub(in crate::server) use kept::{answer_when_kept, erase, forget, settle_answers};

use std::collections::HashSet;

use crate::base::{ExecutionId, Handle, Principal, ProgressToken, SubscriberId};
use crate::endpoint::documents::{Clock, Dates, Listed};
use crate::endpoint::{
    ApiError, DeliveryOptions, ListAsk, ListScope, Opening, PolicyChoice, documents,
};
use crate::engine::{From, NotFound, Status as ExecutionStatus, SubscribeSpec, Verdict};
use crate::journal::Refused;
use crate::limits;
use crate::reactor::Reactor;
use crate::server::guests::{Guests, ServedRun};
use crate::server::{ServerShard, records};
use crate::shard::{ExecuteError, ExecuteOptions};
use crate::stream::{ExecutionState, OnFull, Policy};
use crate::tool::{SubscribeDefaults, ToolSpec};
use crate::wire::http1::Status;

/// Counts and logs an execution that has just ended. One of another node is counted there.
pub(in crate::server) fn note_ended<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: Handle,
    verdict: &Verdict,
) {
    // The engine may have forgotten it already.
    let run = shard.runs[execution.index as usize].as_ref().expect("it has just ended");
    if run.is_replica {
        return;
    }
    let took = shard.now.since(run.opened_at);
    let tool = run.tool.as_ref().map(|tool| &*tool.name);
    shard.guests.ended.count(tool, verdict.outcome, took);
    records::log_ended(shard, execution, verdict, took);
}

/// True if the execution exists and belongs to this principal.
pub(in crate::server) fn is_owned<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
    principal: Principal,
) -> bool {
    shard.run_of(id).is_some_and(|run| run.guest.owner == principal)
}

/// True if the chunks of an execution were brought back from the disk, and are in no ring.
pub(in crate::server) fn is_on_disk_only<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> bool {
    let is_moved = shard.place_of(id) != id;
    let has_ring = |run: &ServedRun| run.is_fed() || run.ring.head_seq() > 0;
    is_moved && !shard.run_of(id).is_some_and(|run| run.is_replica && has_ring(run))
}

/// Returns the execution of a progress token. The engine may have forgotten it, and the disk not.
pub(in crate::server) fn of_token<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    token: ProgressToken,
) -> Option<ExecutionId> {
    shard.find_token(token).ok().or_else(|| shard.guests.archive.of_token(token))
}

/// True if the execution belongs to this principal, and the engine has not forgotten it. An
/// execution without retention is forgotten before its end is carried out.
pub(in crate::server) fn is_found<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
    principal: Principal,
) -> bool {
    let place = shard.place_of(id);
    is_owned(shard, id, principal) && shard.engine.execution_id(place.slot) == Some(place)
}

/// Returns the executions of this shard that are on the page, and one more if there is one.
pub(in crate::server) fn list<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    ask: &ListAsk,
    principal: Principal,
) -> serde_json::Value {
    // Each node lists its own.
    let with_replicas = ask.scope == ListScope::Server;
    let is_listed =
        |run: &&ServedRun| run.guest.owner == principal && (with_replicas || !run.is_replica);
    let own = shard.runs.iter().flatten().filter(is_listed);
    let ids: Vec<ExecutionId> = own.map(|run| run.id).collect();
    let clock = clock(shard);
    let mut found = Vec::with_capacity(ids.len());
    for &id in &ids {
        let Ok(status) = shard.inspect(id) else { continue };
        let seat = shard.run_of(id).and_then(|run| run.guest.thread.clone());
        found.push((tool_name(shard, id), dates_of(shard, &status), status, seat));
    }
    let here = found.iter().map(|(tool, dates, status, seat)| Listed {
        thread: seat.as_ref().map(|seat| seat.thread_id()),
        ..Listed::of(status, tool, *dates)
    });
    let Guests { archive, access, .. } = &shard.guests;
    let ids: HashSet<ExecutionId> = ids.into_iter().collect();
    let kept = archive.of_owner(access.name_of(principal), ask.after).filter(|(id, entry)| {
        entry.is_owned_by(principal, access) && !ids.contains(id) && shard.keeps(*id)
    });
    let kept = kept.map(|(id, entry)| Listed {
        id,
        tool: &entry.tool,
        state: ExecutionState::Ended(entry.outcome),
        totals: entry.totals,
        subscriber_count: 0,
        thread: entry.thread(),
        dates: entry.dates,
    });
    let is_wanted = |listed: &Listed<'_>| ask.takes(listed.tool, listed.state);
    let count_max = ask.limit as usize + 1;
    let is_behind = |listed: &Listed<'_>| ask.after.is_none_or(|after| listed.place() > after);
    let mut all: Vec<_> = here.filter(is_wanted).filter(is_behind).collect();
    all.extend(kept.filter(is_wanted).take(count_max)); // They are in order.
    all.sort_by_key(Listed::place);
    all.truncate(count_max);
    documents::executions(all, clock)
}

/// Returns the dates of an execution, which may be from before a restart.
fn dates_of<R: Reactor + 'static>(shard: &ServerShard<R>, status: &ExecutionStatus) -> Dates {
    match shard.guests.archive.get(status.id) {
        Some(entry) => entry.dates,
        None => clock(shard).dates_of(status),
    }
}

fn clock<R: Reactor + 'static>(shard: &ServerShard<R>) -> Clock {
    Clock { now: shard.now, anchor: shard.anchor }
}

pub(in crate::server) fn describe<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
) -> Result<serde_json::Value, ApiError> {
    let subscribers = shard.subscribers(id)?;
    let status = shard.inspect(id)?;
    let texts = shard.engine.progress_texts(shard.place_of(id).slot);
    let tool = tool_name(shard, id);
    let ticket = ticket_for(shard, id);
    let (ticket, dates) = (ticket.as_deref(), (dates_of(shard, &status), clock(shard)));
    Ok(documents::execution(&status, &tool, texts, &subscribers, ticket, dates))
}

/// Returns the ticket that opens the stream of an execution to its owner, if streams need one.
pub(in crate::server) fn ticket_for<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> Option<String> {
    let owner = shard.run_of(id)?.guest.owner;
    shard.guests.access.ticket(owner, id, shard.now)
}

/// Returns the name of the tool of an execution, or an empty string.
pub(in crate::server) fn tool_name<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    id: ExecutionId,
) -> String {
    shard.tool_of(id).map(|tool| tool.name.clone()).unwrap_or_default()
}

/// Returns the minimum size of the ring of an execution that connections follow with this
/// policy. Returns 0, and the tool's need decides, when leased rings hold half of all memory
/// and none can be freed.
pub(in crate::server) fn served_ring_bytes<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    policy: Option<Policy>,
) -> u32 {
    let has_half = shard.rings.usage().leased_bytes < shard.rings.bytes_max() / 2;
    let is_plentiful = has_half || shard.engine.can_spare_a_ring();
    match policy {
        _ if !is_plentiful => 0,
        Some(Policy::Block) => limits::RING_REPLAYED_BYTES,
        _ => limits::RING_SERVED_BYTES,
    }
}

/// Returns the options of an execution of `owner`, and the policy of subscribers that choose none.
pub(in crate::server) fn options_of(
    opening: Opening,
    owner: Principal,
) -> (ExecuteOptions, Option<PolicyChoice>) {
    let Opening { start, hold, retention, block_deadline, on_stall, timeouts, progress, .. } =
        opening;
    let Opening { durability, deliver, on_full, keep, policy, .. } = opening;
    let options = ExecuteOptions {
        start,
        hold,
        retention,
        block_deadline,
        on_stall,
        timeouts,
        progress,
        grows: false,
        durability,
        deliver,
        on_full: on_full.unwrap_or(OnFull::Pause),
        keep,
        goes_on: false,
        owner,
    };
    (options, policy)
}

/// Returns the error reply for a tool that was not run.
pub(in crate::server) fn refusal(error: ExecuteError) -> ApiError {
    let text = error.to_string();
    match error {
        ExecuteError::Start(error) => error.into(),
        ExecuteError::Open(error) => error.into(),
        ExecuteError::NoRandomness => {
            ApiError::new(Status::INTERNAL_SERVER_ERROR, "no_randomness", text)
        }
        ExecuteError::ChunkTooLarge { chunk_bytes_max, .. } => {
            ApiError::new(Status::BAD_REQUEST, "chunk_too_large", text)
                .limit(chunk_bytes_max.into())
        }
        ExecuteError::MemoryShort(_) => {
            ApiError::new(Status::SERVICE_UNAVAILABLE, "memory_short", text)
                .retry_after(limits::BUSY_RETRY_AFTER)
        }
        ExecuteError::NoJournal { .. } => {
            ApiError::new(Status::BAD_REQUEST, "no_journal", text).field("durability")
        }
        ExecuteError::NoCluster => {
            ApiError::new(Status::BAD_REQUEST, "no_cluster", text).field("durability")
        }
        ExecuteError::NothingKept { .. } => {
            ApiError::new(Status::BAD_REQUEST, "nothing_kept", text).field("durability")
        }
        ExecuteError::NotKept(refused) => {
            let error = match refused {
                Refused::Full | Refused::TooMany => {
                    ApiError::new(Status::INSUFFICIENT_STORAGE, "journal_full", text)
                }
                Refused::Broken => {
                    ApiError::new(Status::SERVICE_UNAVAILABLE, "journal_broken", text)
                }
                Refused::TooLong => unreachable!("the names and the arguments in it are limited"),
            };
            error.retry_after(limits::BUSY_RETRY_AFTER)
        }
    }
}

/// Returns the subscription of a client, with the execution's defaults for what it leaves open.
pub(in crate::server) fn spec_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
    delivery_options: &DeliveryOptions,
    from: From,
) -> SubscribeSpec {
    let run = shard.run_of(execution);
    let default = run.and_then(|run| run.guest.policy).unwrap_or_else(|| {
        let tool = run.and_then(|run| run.tool.as_deref());
        unchosen_policy(tool, run.is_some_and(|run| run.has_history()))
    });
    let spec = delivery_options.spec(default, from);
    // The last bytes may be lost with the connection. The client resumes for them.
    SubscribeSpec { replays: spec.policy == Policy::Block, ..spec }
}

/// Returns the policy of subscribers that choose none, of an execution that names none. If it is
/// kept on disk, nobody has to wait for a slow reader so that nothing is lost.
pub(in crate::server) fn unchosen_policy(tool: Option<&ToolSpec>, is_kept: bool) -> PolicyChoice {
    let SubscribeDefaults { policy, limit_chunks, limit_bytes } =
        tool.map(|tool| tool.subscribers).unwrap_or_default();
    match policy {
        Policy::Block if is_kept => PolicyChoice { policy: Policy::Replay, ..<_>::default() },
        policy => PolicyChoice { policy, limit_chunks, limit_bytes },
    }
}

/// Checks that the subscriber belongs to this execution.
pub(in crate::server) fn check_subscriber<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    subscriber: SubscriberId,
) -> Result<(), ApiError> {
    let all = shard.subscribers(execution)?;
    match all.iter().any(|status| status.id == subscriber) {
        true => Ok(()),
        false => Err(NotFound.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Durability;

    const _: () =
        assert!(2 * limits::FRONT_ARGUMENTS_BYTES_MAX <= limits::JOURNAL_RECORD_BYTES_MAX);

    #[test]
    fn the_journal_refuses_with_codes_of_its_own() {
        let durability = Durability::Synced;
        for (error, status, code) in [
            (ExecuteError::NoJournal { durability }, 400, "no_journal"),
            (ExecuteError::NoCluster, 400, "no_cluster"),
            (ExecuteError::NothingKept { option: "on_full: wait" }, 400, "nothing_kept"),
            (ExecuteError::NotKept(Refused::Full), 507, "journal_full"),
            (ExecuteError::NotKept(Refused::TooMany), 507, "journal_full"),
            (ExecuteError::NotKept(Refused::Broken), 503, "journal_broken"),
        ] {
            let refused = refusal(error);
            assert_eq!((refused.status.code(), refused.code), (status, code));
        }
    }

    #[test]
    fn a_kept_execution_holds_nobody_up_unless_somebody_wants_that() {
        let policy = |tool: Option<&ToolSpec>, is_kept| unchosen_policy(tool, is_kept).policy;
        assert_eq!((policy(None, false), policy(None, true)), (Policy::Block, Policy::Replay));
        let mut tool = ToolSpec::new("t", "");
        assert_eq!(policy(Some(&tool), true), Policy::Replay);
        tool.subscribers.policy = Policy::Conflate;
        assert_eq!(policy(Some(&tool), true), Policy::Conflate);
    }
}
