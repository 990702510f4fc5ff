//! Answers, and the ends of the connections that carry them.
//!
//! In the handshake era, the answer for a client that was cut off is kept for a while. The client
//! comes back for it with the id of the last event that it has received.

use std::collections::VecDeque;
use std::rc::Rc;

use serde_json::Value;

use crate::base::{Handle, Instant, Principal};
use crate::endpoint::{Answer, JSON};
use crate::engine::Event;
use crate::limits;
use crate::mcp::{CallResult, Context, Era, McpFault};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::mcp::call::{Asker, McpCall, Outlet, Stage, Tokens};
use crate::server::mcp::lines::Answering;
use crate::server::mcp::link::Written;
use crate::server::mcp::sessions::SessionName;
use crate::server::mcp::{Link, Part, far, lines, link, trace};
use crate::server::metrics::McpOutcome;
use crate::server::{ServerShard, hub};
use crate::wire::http1::Status;
use crate::wire::jsonrpc::{self, Id};

/// The reply to a request: a result or an error.
pub(in crate::server) type Reply = Result<Replied, McpFault>;

/// The result of a request.
#[derive(Clone, Debug)]
pub(in crate::server) enum Replied {
    /// The result of a call.
    Call(CallResult),
    /// The result of any other request, or of a call that has no result of its own yet.
    Other(Value),
}

impl Replied {
    /// True if it is the result of a call that has failed.
    pub fn is_error(&self) -> bool {
        match self {
            Replied::Call(result) => result.is_error(),
            Replied::Other(result) => result["isError"] == true,
        }
    }

    /// The result as a value.
    pub fn into_value(self) -> Value {
        match self {
            Replied::Call(result) => result.into(),
            Replied::Other(result) => result,
        }
    }
}

impl From<CallResult> for Replied {
    fn from(result: CallResult) -> Replied {
        Replied::Call(result)
    }
}

impl From<Value> for Replied {
    fn from(result: Value) -> Replied {
        Replied::Other(result)
    }
}

/// The sender of a request, and the way back to it.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct Source {
    pub asker: Asker,
    pub owner: Principal,
    pub outlet: Outlet,
}

/// Calls whose answers were not delivered for certain, oldest first.
#[derive(Debug, Default)]
pub(in crate::server) struct KeptAnswers {
    calls: VecDeque<KeptCall>,
    bytes: usize,
}

/// One kept call.
#[derive(Debug)]
pub(in crate::server) struct KeptCall {
    /// The name of the call in the ids of its events.
    pub handle: Handle,
    pub call: Box<McpCall>,
    /// The number of the event that was the answer; `None` if it was not sent yet.
    answer_count: Option<u64>,
    until: Instant,
}

impl KeptAnswers {
    /// Keeps one call, and drops the oldest ones that exceed the limits.
    pub fn keep(
        &mut self,
        handle: Handle,
        mut call: Box<McpCall>,
        answer_count: Option<u64>,
        now: Instant,
    ) {
        let handle = *call.name.get_or_insert(handle);
        let until = now + limits::MCP_ANSWER_KEPT;
        self.bytes += bytes_of(&call);
        self.calls.push_back(KeptCall { handle, call, answer_count, until });
        while self.bytes > limits::MCP_ANSWERS_BYTES_MAX
            || self.calls.len() > limits::MCP_ANSWERS_MAX
        {
            self.let_go();
        }
    }

    fn let_go(&mut self) {
        if let Some(oldest) = self.calls.pop_front() {
            self.bytes -= bytes_of(&oldest.call);
        }
    }

    /// Drops the calls that were kept for [`limits::MCP_ANSWER_KEPT`].
    pub fn expire(&mut self, now: Instant) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.let_go();
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.calls.front().map(|oldest| oldest.until)
    }

    /// True if the event of this number was the answer to the call of this name.
    pub fn was_answered(&self, handle: Handle, session: SessionName, count: u64) -> bool {
        let asker = Asker::Session(session);
        let its = self.calls.iter().find(|kept| kept.handle == handle && kept.call.asker == asker);
        its.is_some_and(|kept| kept.answer_count == Some(count))
    }

    /// Takes the call of this name, if it belongs to this session.
    pub fn take(&mut self, handle: Handle, session: SessionName) -> Option<Box<McpCall>> {
        let is_it =
            |kept: &KeptCall| kept.handle == handle && kept.call.asker == Asker::Session(session);
        let at = self.calls.iter().position(is_it)?;
        let kept = self.calls.remove(at)?;
        self.bytes -= bytes_of(&kept.call);
        Some(kept.call)
    }

    /// Drops the calls of a session.
    pub fn forget(&mut self, session: SessionName) {
        self.calls.retain(|kept| kept.call.asker != Asker::Session(session));
        self.bytes = self.calls.iter().map(|kept| bytes_of(&kept.call)).sum();
    }

    pub fn audit(&self) {
        let bytes: usize = self.calls.iter().map(|kept| bytes_of(&kept.call)).sum();
        assert_eq!(bytes, self.bytes);
        assert!(bytes <= limits::MCP_ANSWERS_BYTES_MAX);
    }
}

/// Returns the outcome, as metrics count it, of a call with this reply.
pub(in crate::server) fn outcome_of(reply: &Reply) -> McpOutcome {
    match reply {
        Err(_) => McpOutcome::Refused,
        Ok(result) if result.is_error() => McpOutcome::ToolError,
        Ok(Replied::Other(result)) if result["resultType"] == "input_required" => {
            McpOutcome::InputRequired
        }
        Ok(_) => McpOutcome::Completed,
    }
}

fn bytes_of(call: &McpCall) -> usize {
    match &call.stage {
        Stage::Answered(bytes) => bytes.len(),
        _ => 0,
    }
}

/// Encodes a reply as a message.
pub(in crate::server) fn write_answer(request: &Id, reply: &Reply) -> Vec<u8> {
    let length = match reply {
        Ok(Replied::Call(result)) => result.as_json().len(),
        _ => 0,
    };
    let mut bytes = Vec::with_capacity(256 + length);
    match reply {
        Ok(Replied::Call(result)) => {
            jsonrpc::write_spelled_result(&mut bytes, request, result.as_json());
        }
        Ok(Replied::Other(result)) => jsonrpc::write_result(&mut bytes, request, result),
        Err(fault) => fault.write(&mut bytes, Some(request)),
    }
    bytes
}

/// Returns the HTTP status of an answer that is a single message.
pub(in crate::server) fn status_of(reply: &Reply) -> Status {
    let code = reply.as_ref().err().map_or(200, |fault| fault.status);
    Status::new(code).unwrap_or(Status::INTERNAL_SERVER_ERROR)
}

/// Inserts a request that is answered later into the table of calls.
pub(in crate::server) fn open_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: Box<Context>,
    stage: Stage,
) -> Result<Handle, McpFault> {
    let now = shard.now;
    let Source { asker, owner, outlet } = source;
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let most = limits::MCP_REQUESTS_PER_SESSION_MAX;
    let own_count = match asker {
        Asker::Session(name) if name.shard == mcp.shard => {
            mcp.sessions.get(name).map_or(0, |session| session.call_count)
        }
        // HTTP answers one request of a connection after the other.
        Asker::Alone(_) if matches!(outlet, Outlet::Open(_)) => 0,
        _ => mcp.calls.iter().filter(|(_, call)| call.asker == asker).count(),
    };
    if own_count >= most {
        return Err(McpFault::busy(format!("{most} requests are under way already")));
    }
    let level = context.log_level;
    let is_to_count = match &stage {
        Stage::Asks(_) | Stage::Reads(..) | Stage::Begins => true,
        Stage::Runs(_) | Stage::Awaits(_) | Stage::Listens(_) | Stage::Answered(_) => false,
    };
    let span = mcp.span.take();
    let (progress, partial) = (context.progress_token.clone(), context.partial_token.clone());
    let call = McpCall {
        name: None,
        tokens: Rc::new(Tokens { progress, partial }),
        asker,
        owner,
        context: *context,
        outlet,
        stage,
        ran: None,
        notifier: None,
        reached: Default::default(),
        is_cut_short: false,
        has_news: false,
        is_primed: false,
        held: Vec::new(),
        level,
        timer: None,
        is_to_count,
        span,
    };
    let full = |_| McpFault::busy("the server has too many requests under way");
    mcp.begin_use(now);
    let handle = mcp.calls.insert(Box::new(call)).map_err(full)?;
    if let Asker::Session(name) = asker
        && let Some(session) = mcp.sessions.get(name)
    {
        session.call_count += 1;
        mcp.sessions.touch(name, now);
    }
    if let Outlet::Open(id) = outlet
        && let Some(connection) = hub.connection(id)
    {
        connection.mcp = Some(Box::new(Link::new(Part::Call(handle))));
        connection.doing = Doing::Mcp;
        hub.set_timer(id, Some((Timer::McpBeat, now + limits::KEEP_ALIVE)));
    }
    Ok(handle)
}

/// Detaches a call from its lost connection. Under `block`, its notifier keeps its place until
/// the client is back or the grace period is over. Any other notifier ends, and the client is
/// told what it missed.
pub(in crate::server) fn mute<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let mcp = &mut shard.guests.mcp;
    mcp.gathered.drop_of(handle);
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    call.outlet = Outlet::Nowhere;
    if let Some(notifier) = call.notifier {
        shard.tell(Event::Lost(notifier));
    }
}

/// Ends a call's notifications.
pub(in crate::server) fn silence<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let Guests { hub, mcp, .. } = &mut shard.guests;
    mcp.gathered.drop_of(handle);
    let Some(call) = mcp.calls.get_mut(handle) else { return };
    let outlet = call.outlet.connection();
    let Some(notifier) = call.notifier.take() else { return };
    if let Some(connection) = outlet.and_then(|id| hub.connection(id))
        && let Some(link) = &mut connection.mcp
    {
        link.feeds.retain(|fed| *fed != notifier);
    }
    shard.ask_at_once(Event::Unsubscribe(notifier));
}

/// Removes a call from the table. Its client may use the id again.
pub(in crate::server) fn close_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) -> Option<Box<McpCall>> {
    silence(shard, handle);
    let now = shard.now;
    let mcp = &mut shard.guests.mcp;
    let mut call = mcp.calls.remove(handle)?;
    call.has_news = false;
    mcp.set_timer(call.timer.take(), None);
    mcp.watches.forget(handle);
    free_id(shard, call.asker, &call.context, now);
    trace::cancel_span(shard, call.span.take());
    if call.is_to_count {
        count_call(shard, call.context.version.era(), McpOutcome::Cancelled);
    }
    if let Outlet::Lines(id) = call.outlet {
        lines::end_behind_answers(shard, id);
    }
    Some(call)
}

/// Counts the answer to a call in the table.
fn count_answer<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle, reply: &Reply) {
    let mcp = &mut shard.guests.mcp;
    if let Some(call) = mcp.calls.get_mut(handle)
        && std::mem::take(&mut call.is_to_count)
    {
        let era = call.context.version.era();
        count_call(shard, era, outcome_of(reply));
    }
}

/// Counts a finished call of a tool.
pub(in crate::server) fn count_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    era: Era,
    outcome: McpOutcome,
) {
    let mcp = &mut shard.guests.mcp;
    mcp.counts.calls[era as usize][outcome as usize] += 1;
}

fn free_id<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    asker: Asker,
    context: &Context,
    now: Instant,
) {
    let Asker::Session(name) = asker else { return };
    let mcp = &mut shard.guests.mcp;
    match mcp.sessions.get(name) {
        Some(session) => {
            session.machine.finish(&context.id);
            session.call_count -= 1;
            mcp.sessions.touch(name, now);
        }
        None => far::finish_far(shard, name, &context.id),
    }
}

/// Answers a call and ends it.
pub(in crate::server) fn answer_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    reply: Reply,
) {
    trace::end_span_of(shard, handle, &reply);
    count_answer(shard, handle, &reply);
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get(handle) else { return };
    let (outlet, bytes) = (call.outlet, write_answer(&call.context.id, &reply));
    let tells_parts = call.tokens.partial.is_some();
    if let Outlet::Lines(_) = outlet
        && lines::defer_answer(shard, handle, &bytes) == Answering::Later
    {
        return;
    }
    // Gathered notifications come before the answer. On lines they are dropped, for clients
    // that lose what comes together with an answer. Parts of a result are counted, so all of
    // them are sent.
    if matches!(outlet, Outlet::Stream(_)) || tells_parts {
        shard.guests.mcp.write_gathered(&mut shard.guests.hub);
    }
    // The first part has turned an open answer into a stream.
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get(handle) else { return };
    let outlet = call.outlet;
    match outlet {
        Outlet::Nowhere => return keep_answer(shard, handle, bytes),
        Outlet::Open(id) => {
            close_call(shard, handle);
            unlink(shard, id);
            hub::answer(shard, id, &Answer::text(status_of(&reply), JSON, bytes));
            shard.guests.hub.resume_later(id);
            return;
        }
        Outlet::Stream(_) | Outlet::Lines(_) => {}
    }
    silence(shard, handle);
    let Guests { hub, mcp, .. } = &mut shard.guests;
    mcp.say(hub, handle, |out| out.extend_from_slice(&bytes));
    finish_answered(shard, handle, bytes);
}

/// Writes an answer that has waited, or keeps it if the client is not connected.
pub(in crate::server) fn say_answer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    bytes: Vec<u8>,
) {
    let Guests { hub, mcp, .. } = &mut shard.guests;
    match mcp.say(hub, handle, |out| out.extend_from_slice(&bytes)) {
        Written::Queued => finish_answered(shard, handle, bytes),
        Written::Unheard => keep_answer(shard, handle, bytes),
    }
}

/// Closes a call whose answer was written.
pub(in crate::server) fn finish_answered<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    bytes: Vec<u8>,
) {
    let now = shard.now;
    let Some(mut call) = close_call(shard, handle) else { return };
    let Guests { hub, mcp, .. } = &mut shard.guests;
    if let Outlet::Stream(id) = call.outlet {
        link::release(hub, id);
        if matches!(call.asker, Asker::Session(_)) && call.context.version.era() == Era::Handshake {
            // The answer may get lost on its way.
            call.outlet = Outlet::Nowhere;
            call.stage = Stage::Answered(bytes.into());
            let count = call.reached.count;
            mcp.kept.keep(handle, call, Some(count), now);
        }
    }
}

/// Keeps the answer to a call whose client is not connected.
fn keep_answer<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle, bytes: Vec<u8>) {
    let now = shard.now;
    let Some(mut call) = close_call(shard, handle) else { return };
    if call.is_primed || call.reached.count > 0 {
        call.stage = Stage::Answered(bytes.into());
        let mcp = &mut shard.guests.mcp;
        mcp.kept.keep(handle, call, None, now);
    }
}

/// Ends a call without an answer because the client wants none.
pub(in crate::server) fn drop_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let Some(call) = close_call(shard, handle) else { return };
    match call.outlet {
        Outlet::Open(id) => {
            let hub = &mut shard.guests.hub;
            link::begin_stream(hub, id, shard.now);
            link::release(hub, id);
        }
        Outlet::Stream(id) => link::release(&mut shard.guests.hub, id),
        Outlet::Lines(_) | Outlet::Nowhere => {}
    }
}

/// Detaches a connection whose answer is a single message.
fn unlink<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    let hub = &mut shard.guests.hub;
    if let Some(connection) = hub.connection(id) {
        connection.mcp = None;
        connection.doing = Doing::Requests;
    }
}
