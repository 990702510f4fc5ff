//! Messages over HTTP: a POST carries one, a GET opens a stream, a DELETE ends a session.

use std::sync::Arc;

use crate::base::Principal;
use crate::endpoint::{Answer, ApiError, JSON, McpAction, McpRequest};
use crate::limits;
use crate::mcp::{self, Era, Headers, Incoming, McpFault, McpSession as Machine, Version};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::Answered;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::mcp::answer::{Reply, Source, status_of, write_answer};
use crate::server::mcp::call::{Asker, Outlet};
use crate::server::mcp::link::Written;
use crate::server::mcp::sessions::SessionName;
use crate::server::mcp::{Link, Part, ask, far, link, questions, result, trace};
use crate::server::{ServerShard, hub, peers, workers};
use crate::tool::ToolSpec;
use crate::wire::http1::Status;
use crate::wire::jsonrpc::{Id, RpcMessage};
/// Answers a request at `/mcp`, now, later or with a stream.
pub(in crate::server) fn answer_mcp<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut request: McpRequest,
    owner: Principal,
) -> Answered {
    // From here on, only the head of the request is left.
    match std::mem::replace(&mut request.action, McpAction::EndSession) {
        McpAction::Send(message) => match mcp::era_of(&message, request.version.as_deref()) {
            Era::Handshake => hear_session(shard, id, &request, *message, owner),
            Era::Stateless => hear_alone(shard, id, &request, *message, owner),
        },
        McpAction::Forwarded(context, ask) => {
            far::hear_asked(shard, id, &request, context, ask, owner)
        }
        McpAction::OpenStream(Some(behind)) if far::is_far(shard, &request) => {
            far::resume_far(shard, id, &request, owner, &behind)
        }
        McpAction::OpenStream(behind) => match named_session(shard, &request, owner) {
            Ok(name) => open_ear(shard, id, name, owner, behind.as_deref()),
            Err(fault) => answer_fault(shard, id, None, fault),
        },
        McpAction::EndSession => match named_session(shard, &request, owner) {
            Ok(name) => {
                close_session(shard, name);
                hub::answer(shard, id, &Answer::empty(Status::NO_CONTENT))
            }
            Err(fault) => answer_fault(shard, id, None, fault),
        },
    }
}

/// Returns the session that a request names, if it exists and belongs to this principal.
fn named_session<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    request: &McpRequest,
    owner: Principal,
) -> Result<SessionName, McpFault> {
    let Some(text) = &request.session else {
        return Err(McpFault::invalid_request("the header `Mcp-Session-Id` is missing"));
    };
    let is_known = |version: &str| {
        Version::parse(version.trim()).is_some_and(|known| known.era() == Era::Handshake)
    };
    if !request.version.as_deref().is_none_or(is_known) {
        let text = "the header `MCP-Protocol-Version` does not name a version that has sessions";
        return Err(McpFault::invalid_request(text));
    }
    let mcp = &mut shard.guests.mcp;
    let name = text.parse::<SessionName>().ok();
    match name.filter(|name| mcp.sessions.of(*name, owner).is_some()) {
        Some(name) => Ok(name),
        None => Err(McpFault::invalid_request("the session does not exist").status(404)),
    }
}

/// Handles a message of the handshake era.
fn hear_session<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    request: &McpRequest,
    message: RpcMessage,
    owner: Principal,
) -> Answered {
    let request_id = id_of(&message);
    if let RpcMessage::Request { method, .. } = &message
        && method == "initialize"
    {
        return match initialize(shard, &message, owner) {
            Ok((name, result)) => {
                let bytes = result_bytes(&message, &result);
                let answer = Answer::text(Status::OK, JSON, bytes);
                hub::answer(shard, id, &answer.in_session(name.to_string()))
            }
            Err(fault) => answer_fault(shard, id, request_id, fault),
        };
    }
    let name = match named_session(shard, request, owner) {
        Ok(name) => name,
        Err(fault) => return answer_fault(shard, id, request_id, fault),
    };
    let now = shard.now;
    let mcp = &mut shard.guests.mcp;
    mcp.sessions.touch(name, now);
    let session = mcp.sessions.get(name).expect("it was just there");
    match session.machine.receive(message, request.version.as_deref()) {
        Err(fault) => answer_fault(shard, id, request_id, fault),
        Ok(incoming) => {
            let Some(incoming) = far::pass_on_asked(shard, id, request, incoming, owner) else {
                return Answered::Later;
            };
            let asker = Asker::Session(name);
            hear_incoming(shard, id, incoming, Source { asker, owner, outlet: Outlet::Open(id) })
        }
    }
}

/// Handles a message without a session.
fn hear_alone<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    request: &McpRequest,
    message: RpcMessage,
    owner: Principal,
) -> Answered {
    let request_id = id_of(&message);
    let parameter = |name: &str| {
        let found = request.parameters.iter().find(|(other, _)| {
            name.get("Mcp-Param-".len()..).is_some_and(|name| other.eq_ignore_ascii_case(name))
        });
        found.map(|(_, value)| &**value)
    };
    let headers = Headers {
        version: request.version.as_deref(),
        method: request.method.as_deref(),
        name: request.name.as_deref(),
        other: &parameter,
    };
    let spec_of = |name: &str| tool_spec(shard, owner, name);
    match mcp::admit(message, Some(&headers), &spec_of) {
        Err(fault) => answer_fault(shard, id, request_id, fault),
        Ok(incoming) => {
            let asker = Asker::Alone(id);
            hear_incoming(shard, id, incoming, Source { asker, owner, outlet: Outlet::Open(id) })
        }
    }
}

pub(in crate::server) fn hear_incoming<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    incoming: Incoming,
    source: Source,
) -> Answered {
    match incoming {
        Incoming::Ask(context, ask) => {
            let request = context.id.clone();
            match trace::ask_mcp(shard, source, context, ask) {
                Some(reply) => {
                    free_asked(shard, source.asker, &request);
                    let bytes = write_answer(&request, &reply);
                    hub::answer(shard, id, &Answer::text(status_of(&reply), JSON, bytes))
                }
                None => Answered::Later,
            }
        }
        Incoming::Notification(told) => {
            ask::tell_mcp(shard, source, told);
            hub::answer(shard, id, &Answer::empty(Status::ACCEPTED))
        }
        Incoming::Reply { id: asked, result } => {
            questions::hear_reply(shard, source, &asked, result);
            hub::answer(shard, id, &Answer::empty(Status::ACCEPTED))
        }
    }
}

/// Frees the id of a request that was answered at once.
pub(in crate::server) fn free_asked<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    asker: Asker,
    id: &Id,
) {
    let mcp = &mut shard.guests.mcp;
    if let Asker::Session(name) = asker {
        match mcp.sessions.get(name) {
            Some(session) => session.machine.finish(id),
            None => far::finish_far(shard, name, id),
        }
    }
}

/// Begins a session.
pub(in crate::server) fn initialize<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    message: &RpcMessage,
    owner: Principal,
) -> Result<(SessionName, serde_json::Value), McpFault> {
    let now = shard.now;
    let server = ask::server_info(shard);
    let (machine, result) = Machine::open(message, &server)?;
    let secret =
        shard.secrets.draw().map_err(|_| McpFault::internal("the system gave no randomness"))?;
    let name = SessionName { shard: peers::own_index(shard) as u8, key: secret.token };
    let most = limits::MCP_SESSIONS_MAX;
    let own_max = if shard.guests.access.is_guarded() { most / 4 } else { most };
    let mcp = &mut shard.guests.mcp;
    mcp.begin_use(now);
    let opened = mcp.sessions.open(name, owner, machine, now, own_max);
    let gone = opened.map_err(|_| McpFault::busy("too many sessions are open"))?;
    if let Some(gone) = gone {
        mcp.counts.sessions_evicted += 1;
        mcp.forget_session(gone.name);
    }
    Ok((name, result))
}

/// Ends a session and stops its calls.
pub(in crate::server) fn close_session<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
) {
    far::tell_far(shard, name);
    let mcp = &mut shard.guests.mcp;
    let of_it = |call: &crate::server::mcp::call::McpCall| call.asker == Asker::Session(name);
    let calls = mcp.calls.iter().filter(|(_, call)| of_it(call));
    let calls: Vec<_> = calls.map(|(handle, _)| handle).collect();
    for handle in calls {
        ask::abandon(shard, handle);
    }
    let Guests { hub, mcp, .. } = &mut shard.guests;
    mcp.forget_session(name);
    if let Some(session) = mcp.sessions.close(name)
        && let Some(stream) = session.stream
    {
        link::release(hub, stream);
    }
}

/// Opens a stream of a session's notifications, or resumes the stream of a call that was cut
/// off.
fn open_ear<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    name: SessionName,
    owner: Principal,
    behind: Option<&str>,
) -> Answered {
    if let Some(behind) = behind {
        return match result::resume_call(shard, id, name, owner, behind) {
            Some(answered) => answered,
            None => answer_fault(shard, id, None, no_such_stream()),
        };
    }
    let now = shard.now;
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let session = mcp.sessions.get(name).expect("it was just there");
    if session.stream.is_some() {
        let text = "this session already has a stream";
        let error = ApiError::new(Status::CONFLICT, "stream_in_use", text);
        return hub::answer_error(shard, id, &error);
    }
    session.stream = Some(id);
    mcp.sessions.touch(name, now);
    let connection = hub.connection(id).expect("its request is being answered");
    connection.mcp = Some(Box::new(Link::new(Part::Session(name))));
    connection.doing = Doing::Mcp;
    hub.set_timer(id, Some((Timer::McpBeat, now + limits::KEEP_ALIVE)));
    if link::begin_stream(hub, id, mcp.now) == Written::Unheard {
        // A HEAD request has no stream.
        let connection = hub.connection(id).expect("as above");
        connection.mcp = None;
        connection.doing = Doing::Requests;
        hub.set_timer(id, None);
        lose_stream(shard, name);
        return Answered::Now;
    }
    Answered::Later
}

/// Notes that a session has no stream of its own any more.
pub(in crate::server) fn lose_stream<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
) {
    let now = shard.now;
    let mcp = &mut shard.guests.mcp;
    if let Some(session) = mcp.sessions.get(name) {
        session.stream = None;
        mcp.sessions.touch(name, now);
    }
}

/// Answers a message that was not accepted.
pub(in crate::server) fn answer_fault<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    request: Option<Id>,
    fault: McpFault,
) -> Answered {
    let mut bytes = Vec::new();
    fault.write(&mut bytes, request.as_ref());
    let reply: Reply = Err(fault);
    let status = match status_of(&reply) {
        // A fault without a request id means that the message was not accepted.
        Status::OK if request.is_none() => Status::BAD_REQUEST,
        status => status,
    };
    hub::answer(shard, id, &Answer::text(status, JSON, bytes))
}

/// Returns the tool of this name, if this principal can call it.
pub(in crate::server) fn tool_spec<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    owner: Principal,
    name: &str,
) -> Option<Arc<ToolSpec>> {
    workers::tool_specs(shard, owner).find(|spec| spec.name == name).cloned()
}

/// Returns the fault for an unknown event id: the call was answered long ago, was cancelled, or
/// never existed.
pub(in crate::server) fn no_such_stream() -> McpFault {
    McpFault::invalid_request("the stream does not exist any more")
}

fn id_of(message: &RpcMessage) -> Option<Id> {
    match message {
        RpcMessage::Request { id, .. } => Some(id.clone()),
        RpcMessage::Notification { .. } | RpcMessage::Response { .. } => None,
    }
}

pub(in crate::server) fn result_bytes(message: &RpcMessage, result: &serde_json::Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(512);
    if let RpcMessage::Request { id, .. } = message {
        crate::wire::jsonrpc::write_result(&mut bytes, id, result);
    }
    bytes
}
