//! The start of a stream that follows executions of several shards. The shard of the connection
//! asks each of the others for readers of its rings. If one refuses, the whole request is refused,
//! and the accepted readers leave again.
//!
//! The connection waits meanwhile ([`Doing::Joining`]), with a timer, and may be gone when the
//! answer comes. A reader that is then
//! dropped, or lost on its way, counts as a broken connection on its shard. Under `block` its place
//! is kept for a client that reconnects.

use smallvec::SmallVec;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::{ApiError, DeliveryOptions, Follow};
use crate::engine::{Coalesce, From, NotFound};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor, Waker};
use crate::server::calls::Answered;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::hub::follow::was_seen_to_end;
use crate::server::peers::messages::{Question, Subject, ToPeer};
use crate::server::{ServerShard, calls, hub, peers};
use crate::shard::{Names, Subscriber};
use crate::wire::http1::Status;

/// A reader that another shard has accepted.
#[derive(Debug)]
pub struct Joined {
    pub subscriber: Subscriber,
    pub names: Names,
    /// The name of the execution's tool, or an empty string.
    pub tool: String,
    pub coalesce: Option<Coalesce>,
}

/// The answer of another shard for one execution of a request.
#[derive(Debug)]
pub enum Part {
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

/// The readers that a shard is asked for.
pub struct Wanted {
    /// The waker of the asking shard's reactor.
    reactor: Waker,
    /// The principal of the request.
    principal: Principal,
    /// The executions, with their indices in the request.
    executions: Vec<(usize, ExecutionId, From)>,
    delivery_options: DeliveryOptions,
    resumes: bool,
}

impl Wanted {
    /// Returns the executions, with their indices in the request.
    pub fn executions(&self) -> &[(usize, ExecutionId, From)] {
        &self.executions
    }
}

/// A request that waits for readers.
#[derive(Debug)]
pub(in crate::server) struct Joining {
    follow: Follow,
    parts: Parts,
}

impl Joining {
    /// Adds the answer of a shard.
    pub fn add(&mut self, parts: Vec<(usize, Part)>) {
        for (at, part) in parts {
            self.parts[at] = Some(part);
        }
    }

    /// Refuses what a shard was asked for, because it has died.
    pub fn refuse(&mut self, peer: u8) {
        let wanted = self.follow.executions.iter().map(|(execution, _)| execution.shard);
        for (part, _) in self.parts.iter_mut().zip(wanted).filter(|(_, home)| *home == peer) {
            *part = Some(Part::Refused(ApiError::shards_dead(&[peer])));
        }
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
    home != peers::own_index(shard) && home < shard.guests.peers.count()
}

/// Asks the other shards for their parts of a stream. Returns true if the request was refused,
/// false if it waits.
pub(in crate::server) fn begin_joining<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    follow: &Follow,
) -> Answered {
    let principal = calls::principal_of(shard, id);
    let ticket = shard.guests.peers.open.draw_ticket();
    let mut awaited = SmallVec::new();
    for home in 0..shard.guests.peers.count() {
        let all = follow.executions.iter().enumerate();
        let executions: Vec<_> = all
            .filter(|(_, (execution, _))| usize::from(execution.shard) == home)
            .filter(|(_, (execution, _))| is_apart(shard, *execution))
            .map(|(at, &(execution, from))| (at, execution, from))
            .collect();
        if executions.is_empty() {
            continue;
        }
        let wanted = Wanted {
            reactor: shard.reactor.waker(),
            principal,
            executions,
            delivery_options: follow.delivery_options,
            resumes: follow.resumes,
        };
        let own = peers::own_index(shard) as u8;
        let question = ToPeer::Ask(own, ticket, Question::Join(Box::new(wanted)));
        if let Err(error) = peers::send(shard, home, question) {
            let error = peers::peer_refusal(home, error);
            return calls::answer_error(shard, id, &error); // Answers that still come find no entry.
        }
        awaited.push(home as u8);
    }
    let until = shard.now + limits::JOIN_DEADLINE;
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("its request is being answered").doing = Doing::Joining;
    hub.set_timer(id, Some((Timer::Join, until)));
    let parts = follow.executions.iter().map(|_| None).collect();
    let joining = Joining { follow: follow.clone(), parts };
    shard.guests.peers.open.insert(ticket, id, awaited, Subject::Join(joining));
    Answered::Later
}

/// Returns readers of this shard's rings, for another shard.
pub(in crate::server) fn join<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    wanted: &Wanted,
) -> Vec<(usize, Part)> {
    if shard.bell.departed.take() {
        shard.dismiss_departed(); // One may belong to the client that reconnects now.
    }
    let mut parts = Vec::with_capacity(wanted.executions.len());
    for &(at, execution, from) in &wanted.executions {
        parts.push((at, join_one(shard, wanted, execution, from)));
    }
    parts
}

fn join_one<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    wanted: &Wanted,
    execution: ExecutionId,
    from: From,
) -> Part {
    let Wanted { principal, delivery_options, resumes, reactor, .. } = wanted;
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
    let spec = hub::spec_of(shard, execution, delivery_options, from);
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
    let coalesce = delivery_options.coalesce;
    Part::Joined(Box::new(Joined { subscriber, names, tool, coalesce }))
}

/// Begins the stream of a connection for which all readers have come.
pub(in crate::server) fn on_complete<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    joining: Joining,
) {
    let hub = &mut shard.guests.hub;
    let Joining { follow, parts } = joining;
    hub.connection(id).expect("Q1").doing = Doing::Requests;
    hub.set_timer(id, None);
    let answered = match hub.is_draining() {
        true => calls::answer_error(shard, id, &ApiError::shutting_down()),
        false => hub::follow_with(shard, id, &follow, parts),
    };
    match answered {
        Answered::Now => shard.guests.hub.resume_later(id),
        Answered::Later => hub::settle_connection(shard, id),
    }
}

/// Refuses a request because the other shards have not answered in time.
pub(in crate::server) fn join_late<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let hub = &mut shard.guests.hub;
    hub.connection(id).expect("the caller found it").doing = Doing::Requests;
    shard.guests.peers.abandon(id);
    calls::answer_error(shard, id, &busy());
    shard.guests.hub.resume_later(id);
}
