//! The start of a stream that follows executions of several shards. The shard of the connection
//! asks each of the others for readers of its rings. If one refuses, the whole request is refused,
//! and the accepted readers leave again.
//!
//! A question is a command in the other shard's mailbox, and so is its answer. The connection waits
//! meanwhile ([`Doing::Joining`]), and may be gone when the answer comes. A reader that is then
//! dropped, or lost on its way, counts as a broken connection on its shard. Under `block` its place
//! is kept for a client that reconnects.
//!
//! Invariant J1: every connection that is joining has exactly one entry, with at least one answer
//! missing, and a timer.

use crate::base::{ExecutionId, Principal};
use crate::endpoint::{ApiError, Follow, Wishes};
use crate::engine::{Coalesce, From, NotFound};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor, Waker};
use crate::server::hub::connection::{Doing, Timer};
use crate::server::hub::follow::was_seen_to_end;
use crate::server::{ServerShard, calls, hub, peers};
use crate::shard::handle::Command;
use crate::shard::{Names, Subscriber};
use crate::wire::http1::Status;

/// A reader that another shard has accepted.
#[derive(Debug)]
pub(in crate::server) struct Joined {
    pub subscriber: Subscriber,
    pub names: Names,
    /// The name of the execution's tool, or an empty string.
    pub tool: String,
    pub coalesce: Option<Coalesce>,
}

/// The answer of another shard for one execution of a request.
#[derive(Debug)]
pub(in crate::server) enum Part {
    /// The client has received the end of this execution before.
    SeenToEnd,
    Joined(Box<Joined>),
    Refused(ApiError),
}

impl Part {
    /// Unsubscribes a reader that is not needed, and for which no client will reconnect.
    pub fn dismiss(self) {
        if let Part::Joined(joined) = self {
            joined.subscriber.unsubscribe();
        }
    }
}

/// The answers of all other shards, by the index of the execution in the request.
pub(in crate::server) type Parts = Vec<Option<Part>>;

/// The question to a shard.
struct Question {
    /// The asking shard, and the waker of its reactor.
    asker: usize,
    reactor: Waker,
    ticket: u64,
    /// The principal of the request.
    principal: Principal,
    /// The executions, with their indices in the request.
    executions: Vec<(usize, ExecutionId, From)>,
    wishes: Wishes,
    resumes: bool,
}

/// A request that waits for answers.
#[derive(Debug)]
struct Joining {
    ticket: u64,
    connection: ConnectionId,
    follow: Follow,
    parts: Parts,
    /// Number of shards that have not answered.
    missing_count: usize,
}

/// The waiting requests of one shard.
#[derive(Debug, Default)]
pub(in crate::server) struct Joinings {
    list: Vec<Joining>,
    ticket_last: u64,
}

impl Joinings {
    fn draw_ticket(&mut self) -> u64 {
        self.ticket_last += 1;
        self.ticket_last
    }

    fn take(&mut self, is_it: impl Fn(&Joining) -> bool) -> Option<Joining> {
        let at = self.list.iter().position(is_it)?;
        Some(self.list.swap_remove(at))
    }

    /// Removes the request of a connection that is gone or waits no longer.
    pub fn abandon(&mut self, connection: ConnectionId) {
        drop(self.take(|joining| joining.connection == connection));
    }

    /// Adds the answer of a shard. Returns the request if it was the last missing one.
    fn add(&mut self, ticket: u64, parts: Vec<(usize, Part)>) -> Option<Joining> {
        let joining = self.list.iter_mut().find(|joining| joining.ticket == ticket)?;
        for (at, part) in parts {
            joining.parts[at] = Some(part);
        }
        joining.missing_count -= 1;
        if joining.missing_count > 0 {
            return None;
        }
        self.take(|joining| joining.ticket == ticket)
    }

    /// Checks J1 for the given number of connections that are joining. For tests.
    ///
    /// # Panics
    /// If it does not hold.
    pub fn audit(&self, joining_count: usize) {
        assert_eq!(self.list.len(), joining_count);
        assert!(self.list.iter().all(|joining| joining.missing_count > 0));
    }
}

fn busy() -> ApiError {
    let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", "a shard accepts no calls now");
    error.retry_after(limits::BUSY_RETRY_AFTER)
}
/// True if the execution lives on another shard of this server.
pub(in crate::server) fn is_apart<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
) -> bool {
    let home = usize::from(execution.shard);
    home != peers::own_index(shard) && home < shard.guests.peers.len()
}

/// Asks the other shards for their parts of a stream. Returns true if the request was refused,
/// false if it waits.
pub(in crate::server) fn begin_joining<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    follow: &Follow,
) -> bool {
    let principal = calls::principal_of(shard, id);
    let serve = shard.guests.serve.as_mut().expect("it has connections");
    let ticket = serve.joinings.draw_ticket();
    let mut asked_count = 0;
    for home in 0..shard.guests.peers.len() {
        let all = follow.executions.iter().enumerate();
        let executions: Vec<_> = all
            .filter(|(_, (execution, _))| usize::from(execution.shard) == home)
            .filter(|(_, (execution, _))| is_apart(shard, *execution))
            .map(|(at, &(execution, from))| (at, execution, from))
            .collect();
        if executions.is_empty() {
            continue;
        }
        let question = Question {
            asker: peers::own_index(shard),
            reactor: shard.reactor.waker(),
            ticket,
            principal,
            executions,
            wishes: follow.wishes,
            resumes: follow.resumes,
        };
        let command =
            Command::Call(Box::new(move |shard: &mut ServerShard<R>| join(shard, question)));
        if let Err((error, _)) = shard.guests.peers[home].send(command) {
            let error = peers::peer_refusal(home, error);
            return calls::answer_error(shard, id, &error); // Answers that still come find no entry.
        }
        asked_count += 1;
    }
    let until = shard.now + limits::JOIN_DEADLINE;
    let serve = shard.guests.serve.as_mut().expect("as above");
    serve.joinings.list.push(Joining {
        ticket,
        connection: id,
        follow: follow.clone(),
        parts: follow.executions.iter().map(|_| None).collect(),
        missing_count: asked_count,
    });
    serve.connection(id).expect("its request is being answered").doing = Doing::Joining;
    serve.set_timer(id, Some((Timer::Join, until)));
    false
}

/// Answers the question of another shard for readers.
fn join<R: Reactor + 'static>(shard: &mut ServerShard<R>, question: Question) {
    if shard.bell.departed.take() {
        shard.dismiss_departed(); // One may belong to the client that reconnects now.
    }
    let mut parts = Vec::with_capacity(question.executions.len());
    for &(at, execution, from) in &question.executions {
        parts.push((at, join_one(shard, &question, execution, from)));
    }
    let Question { asker, ticket, .. } = question;
    let answer = Command::Call(Box::new(move |shard: &mut ServerShard<R>| {
        take_joined(shard, ticket, parts);
    }));
    if let Some(asker) = shard.guests.peers.get(asker) {
        // If it accepts no command, the readers are dropped with it.
        let _ = asker.send(answer);
    }
}

fn join_one<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    question: &Question,
    execution: ExecutionId,
    from: From,
) -> Part {
    let Question { principal, wishes, resumes, reactor, .. } = question;
    if !calls::is_owned(shard, execution, *principal) {
        return Part::Refused(NotFound.into());
    }
    let run = shard.runs.get(execution.slot.index as usize).and_then(Option::as_ref);
    if let Some(run) = run.filter(|run| run.id == execution) {
        if run.reader().is_none() {
            let text = "an execution on another shard waits for a ring";
            let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "queued", text);
            let error = error.field("executions").retry_after(limits::BUSY_RETRY_AFTER);
            return Part::Refused(error);
        }
        // The reader may have seen more than the engine was told.
        shard.ingest(execution.slot.index);
    }
    if let From::Seq { seq, .. } = from
        && *resumes
        && let Ok(status) = shard.inspect(execution)
        && was_seen_to_end(&status, seq)
    {
        return Part::SeenToEnd;
    }
    let spec = hub::spec_of(shard, execution, wishes, from);
    let subscriber = match shard.subscribe_from_afar(execution, spec, Some(reactor.clone())) {
        Ok(mut subscriber) => {
            subscriber.keep_its_place();
            subscriber.provide();
            subscriber
        }
        Err(error) => return Part::Refused(error.into()),
    };
    let (names, tool) =
        (shard.run_mut(execution.slot).names.clone(), calls::tool_name(shard, execution));
    let coalesce = wishes.coalesce;
    Part::Joined(Box::new(Joined { subscriber, names, tool, coalesce }))
}

/// Takes the answer of another shard.
fn take_joined<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    ticket: u64,
    parts: Vec<(usize, Part)>,
) {
    let Some(serve) = &mut shard.guests.serve else { return };
    let Some(joining) = serve.joinings.add(ticket, parts) else { return };
    let Joining { connection: id, follow, parts, .. } = joining;
    serve.connection(id).expect("J1").doing = Doing::Requests;
    serve.set_timer(id, None);
    let is_whole = match serve.is_draining {
        true => calls::answer_error(shard, id, &ApiError::shutting_down()),
        false => hub::follow_with(shard, id, &follow, parts),
    };
    match is_whole {
        true => shard.guests.serve.as_mut().expect("as above").answered.push(id),
        false => hub::settle_connection(shard, id),
    }
}

/// Refuses a request because the other shards have not answered in time.
pub(in crate::server) fn join_late<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let serve = shard.guests.serve.as_mut().expect("it has connections");
    serve.joinings.abandon(id);
    serve.connection(id).expect("the caller found it").doing = Doing::Requests;
    calls::answer_error(shard, id, &busy());
    shard.guests.serve.as_mut().expect("as above").answered.push(id);
}
