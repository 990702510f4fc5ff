//! Connections of lines: each line is a message, in both directions. A connection can have one
//! session of the handshake era, and carry requests without a session.

use std::fmt;
use std::time::Duration;

use crate::base::{Handle, Principal, guarded};
use crate::limits;
use crate::mcp::{self, Era, Incoming, McpFault, codes};
use crate::reactor::{AdoptError, ConnectionId, Reactor, ReleasedSocket};
use crate::server::guests::Guests;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::mcp::answer::{Source, write_answer};
use crate::server::mcp::call::{Asker, Outlet, Stage};
use crate::server::mcp::receive::result_bytes;
use crate::server::mcp::sessions::SessionName;
use crate::server::mcp::{Due, Link, Part, answer, ask, link, questions, receive, trace};
use crate::server::{ServerShard, hub};
use crate::shard::panics::Callback;
use crate::wire::jsonrpc::{self, Id, Malformed, RpcMessage};
use crate::wire::{LineSplitter, Split};

/// The options of a connection of lines.
#[derive(Default)]
pub struct LineOptions {
    /// Time that an answer waits after the last notification of its call. Some clients drop
    /// notifications that come together with the answer. Zero, the default, means no wait.
    pub settle: Duration,
    /// Called once, when the connection is closed.
    pub on_end: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for LineOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LineOptions").field("settle", &self.settle).finish_non_exhaustive()
    }
}

/// The state of one connection of lines.
#[derive(Debug)]
pub(in crate::server) struct Lines {
    splitter: LineSplitter,
    session: Option<SessionName>,
    pub(in crate::server::mcp) options: LineOptions,
    /// True if the client sends nothing more. The connection ends after the last answer.
    is_ending: bool,
}

/// Speaks the Model Context Protocol on this connection, line by line. The client is served as
/// on a listener without authentication.
pub(in crate::server) fn open_lines<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    socket: ReleasedSocket,
    options: LineOptions,
) -> Result<(), AdoptError> {
    if let Err(error) = hub::open_hub(shard) {
        return Err(AdoptError::without_sockets(socket, &error));
    }
    let peer = socket.peer();
    let id = shard.reactor.adopt(socket)?;
    let now = shard.reactor.now();
    let hub = &mut shard.guests.hub;
    hub.accept(id, peer, now);
    hub.set_timer(id, None);
    let splitter = LineSplitter::new(limits::MCP_LINE_BYTES_MAX);
    let lines = Lines { splitter, session: None, options, is_ending: false };
    let connection = hub.connection(id).expect("it was just accepted");
    connection.mcp = Some(Box::new(Link::new(Part::Lines(Box::new(lines)))));
    connection.doing = Doing::Mcp;
    hub.settle_place(id, now);
    Ok(())
}

/// Handles bytes received on a connection of lines.
pub(in crate::server) fn receive_lines<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut bytes: &[u8],
) {
    loop {
        let Some(lines) = lines_of(shard, id) else { return };
        let message = match lines.splitter.next(&mut bytes) {
            None => break,
            Some(Split::Line(line)) => jsonrpc::parse(line),
            Some(Split::TooLong) => Err(too_long()),
        };
        hear_line(shard, id, message);
    }
    let hub = &mut shard.guests.hub;
    let Some(connection) = hub.connection(id) else { return };
    if connection.own_bytes() > limits::HTTP_ANSWERS_BYTES_MAX {
        connection.is_full = true; // A client that does not read answers has to wait.
        shard.reactor.set_receiving(id, false);
    }
}

fn lines_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) -> Option<&mut Lines> {
    shard.guests.hub.connection(id)?.mcp.as_mut()?.lines()
}

fn hear_line<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    message: Result<RpcMessage, Malformed>,
) {
    let message = match message {
        Ok(message) => message,
        Err(malformed) => {
            if !malformed.is_response {
                let fault = McpFault::new(malformed.code, malformed.message);
                write_line(shard, id, |out| fault.write(out, malformed.id.as_ref()));
            }
            return;
        }
    };
    let owner = Principal::ANYONE;
    let session = lines_of(shard, id).and_then(|lines| lines.session);
    let request_id = match &message {
        RpcMessage::Request { id, .. } => Some(id.clone()),
        RpcMessage::Notification { .. } | RpcMessage::Response { .. } => None,
    };
    let outlet = Outlet::Lines(id);
    let (incoming, asker) = match (mcp::era_of(&message, None), session) {
        (Era::Stateless, _) => {
            let spec_of = |name: &str| receive::tool_spec(shard, owner, name);
            (mcp::admit(message, None, &spec_of), Asker::Alone(id))
        }
        (Era::Handshake, Some(name)) => {
            let mcp = &mut shard.guests.mcp;
            let Some(session) = mcp.sessions.get(name) else { return };
            (session.machine.receive(message, None), Asker::Session(name))
        }
        (Era::Handshake, None) => return begin_line_session(shard, id, &message, request_id),
    };
    let source = Source { asker, owner, outlet };
    match incoming {
        Err(fault) => write_fault(shard, id, request_id, &fault),
        Ok(Incoming::Ask(context, ask)) => {
            let request = context.id.clone();
            if let Some(reply) = trace::ask_mcp(shard, source, context, ask) {
                receive::free_asked(shard, asker, &request);
                let bytes = write_answer(&request, &reply);
                write_line(shard, id, |out| out.extend_from_slice(&bytes));
            }
        }
        Ok(Incoming::Notification(told)) => ask::tell_mcp(shard, source, told),
        Ok(Incoming::Reply { id: asked, result }) => {
            questions::hear_reply(shard, source, &asked, result)
        }
    }
}

/// Handles the first message of the handshake era.
fn begin_line_session<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    message: &RpcMessage,
    request: Option<Id>,
) {
    if request.is_none() {
        if let RpcMessage::Notification { method, params } = message {
            // A notification without a version may cancel a request without a session.
            let source = Source {
                asker: Asker::Alone(id),
                owner: Principal::ANYONE,
                outlet: Outlet::Lines(id),
            };
            ask::tell_mcp(shard, source, mcp::ClientNotification::parse(method, params));
        }
        return;
    }
    if let RpcMessage::Request { id: asked, method, .. } = message
        && method == "ping"
    {
        let nothing = serde_json::Value::Object(serde_json::Map::new());
        write_line(shard, id, |out| jsonrpc::write_result(out, asked, &nothing));
        return; // The one request that may come before.
    }
    match receive::initialize(shard, message, Principal::ANYONE) {
        Err(fault) => write_fault(shard, id, request, &fault),
        Ok((name, result)) => {
            let now = shard.now;
            let mcp = &mut shard.guests.mcp;
            if let Some(session) = mcp.sessions.get(name) {
                session.lines = Some(id);
            }
            mcp.sessions.touch(name, now);
            if let Some(lines) = lines_of(shard, id) {
                lines.session = Some(name);
            }
            let bytes = result_bytes(message, &result);
            write_line(shard, id, |out| out.extend_from_slice(&bytes));
        }
    }
}

fn write_fault<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    request: Option<Id>,
    fault: &McpFault,
) {
    if request.is_some() {
        write_line(shard, id, |out| fault.write(out, request.as_ref()));
    }
}

fn write_line<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let hub = &mut shard.guests.hub;
    link::write_event(hub, id, None, write);
}

/// Handles the end of the client's messages. Requests that need nothing more from the client
/// get [`limits::MCP_LAST_ANSWERS`] to end, so that requests from a pipe are answered.
pub(in crate::server) fn end_lines<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    is_broken: bool,
) {
    if is_broken {
        shard.guests.hub.lose(id);
        return;
    }
    let last = lines_of(shard, id).and_then(|lines| lines.splitter.end().map(jsonrpc::parse));
    if let Some(message) = last {
        hear_line(shard, id, message);
    }
    for handle in calls_of(shard, id) {
        let call = shard.guests.mcp.calls.get(handle);
        match call.map(|call| &call.stage) {
            Some(Stage::Begins | Stage::Runs(_) | Stage::Awaits(_) | Stage::Reads(..)) => {}
            _ => end_call_of_lines(shard, handle),
        }
    }
    let until = shard.now + limits::MCP_LAST_ANSWERS;
    if let Some(lines) = lines_of(shard, id) {
        lines.is_ending = true;
        let hub = &mut shard.guests.hub;
        hub.set_timer(id, Some((Timer::LastAnswers, until)));
    }
    end_behind_answers(shard, id);
}

fn calls_of<R: Reactor + 'static>(shard: &ServerShard<R>, id: ConnectionId) -> Vec<Handle> {
    let calls = shard.guests.mcp.calls.iter();
    let its = calls.filter(|(_, call)| call.outlet == Outlet::Lines(id));
    its.map(|(handle, _)| handle).collect()
}

/// Stops all calls that are under way on a connection of lines.
pub(in crate::server) fn cancel_all_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    for handle in calls_of(shard, id) {
        end_call_of_lines(shard, handle);
    }
}

/// Ends a connection of lines if the client sends nothing more and everything is answered.
pub(in crate::server) fn end_behind_answers<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    if !lines_of(shard, id).is_some_and(|lines| lines.is_ending) {
        return;
    }
    let Guests { hub, mcp, .. } = &mut shard.guests;
    if mcp.calls.iter().any(|(_, call)| call.outlet == Outlet::Lines(id)) {
        return;
    }
    hub.set_timer(id, None);
    if let Some(connection) = hub.writable(id) {
        connection.has_ended = true;
        connection.is_last = true;
    }
}

/// Sends an answer that only waits for time. Cancels any other call.
fn end_call_of_lines<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    let Some(call) = shard.guests.mcp.calls.get(handle) else {
        return;
    };
    match &call.stage {
        Stage::Answered(bytes) => {
            let bytes = bytes.to_vec();
            answer::say_answer(shard, handle, bytes);
        }
        _ => ask::cancel_mcp(shard, handle),
    }
}

/// Handles the loss of a connection of lines.
pub(in crate::server) fn lose_lines<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    lines: Lines,
) {
    cancel_all_of(shard, id);
    if let Some(name) = lines.session {
        receive::close_session(shard, name);
    }
    if let Some(Err(panicked)) = lines.options.on_end.map(guarded) {
        shard.note_panic(Callback::Guest("end_of_lines"), &panicked);
    }
}

/// The time at which an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::mcp) enum Answering {
    Now,
    /// A moment after the notifications before it.
    Later,
}

/// Stores an answer if it has to wait so that the client keeps the notifications before it.
pub(in crate::server::mcp) fn defer_answer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
    bytes: &[u8],
) -> Answering {
    let now = shard.now;
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let Some(call) = mcp.calls.get(handle) else { return Answering::Now };
    let Outlet::Lines(id) = call.outlet else { return Answering::Now };
    let was_told = call.reached.count > 0 || mcp.gathered.is_of(handle);
    let Some(link) = hub.connection(id).and_then(|connection| connection.mcp.as_mut()) else {
        return Answering::Now;
    };
    let settle = link.lines().map_or(Duration::ZERO, |lines| lines.options.settle);
    if settle.is_zero() || !was_told {
        return Answering::Now;
    }
    mcp.write_gathered(hub);
    answer::silence(shard, handle);
    let mcp = &mut shard.guests.mcp;
    let Some(call) = mcp.calls.get_mut(handle) else { return Answering::Later };
    call.stage = Stage::Answered(bytes.into());
    let armed = call.timer.take();
    let timer = mcp.set_timer(armed, Some((Due::Call(handle), now + settle)));
    if let Some(call) = mcp.calls.get_mut(handle) {
        call.timer = timer;
    }
    Answering::Later
}

/// True for a connection of lines.
pub(in crate::server) fn is_of_lines<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) -> bool {
    lines_of(shard, id).is_some()
}

fn too_long() -> Malformed {
    let bytes_max = limits::MCP_LINE_BYTES_MAX;
    Malformed {
        id: None,
        code: codes::INVALID_REQUEST,
        message: format!("the line is longer than {bytes_max} bytes"),
        is_response: false,
    }
}
