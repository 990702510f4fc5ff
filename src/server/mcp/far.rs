//! Sessions on other shards. Calls of virtual tools live with their workers, and requests about an
//! execution are answered on the execution's shard.
//!
//! A session admits a request, which then moves, with its connection, to the shard of its subject.
//! There it is a call like any other, of a session elsewhere. That session is told when the request
//! is over. Cancellations and ends of sessions are sent to all shards.

use serde_json::{Value, json};

use crate::base::{Handle, Principal};
use crate::endpoint::{Answer, ApiCall, ApiError, JSON, McpAction, McpRequest, shard_of};
use crate::mcp::{Ask, Context, Incoming};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::Answered;
use crate::server::mcp::answer::{Source, status_of, write_answer};
use crate::server::mcp::call::{Asker, Outlet};
use crate::server::mcp::sessions::SessionName;
use crate::server::mcp::trace::error_of;
use crate::server::mcp::{ask, link, receive, resources, result, tasks, trace};
use crate::server::peers::{Asked, Gathering, Purpose, ToPeer};
use crate::server::{ServerShard, hub, peers, workers};
use crate::trace::Span;
use crate::wire::http1::Status;
use crate::wire::jsonrpc::Id;
/// Moves a request to the shard of its subject. Returns `None` if it was moved.
pub(in crate::server) fn pass_on_asked<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    request: &McpRequest,
    incoming: Incoming,
    owner: Principal,
) -> Option<Incoming> {
    let Incoming::Ask(context, ask) = incoming else { return Some(incoming) };
    let home = match (&ask, shard_of(&ask)) {
        (_, Some(number)) => peers::home_of(shard, number),
        (Ask::CallTool { name, .. }, None) if workers::is_virtual(shard, owner, name) => {
            usize::from(owner.0) % shard.guests.peers.listening_count().max(1)
        }
        _ => peers::own_index(shard),
    };
    if home == peers::own_index(shard) || home >= shard.guests.peers.count() {
        return Some(Incoming::Ask(context, ask));
    }
    let action = McpAction::Forwarded(context, ask);
    let asked = McpRequest { action, ..request.clone() };
    peers::begin_move(shard, id, ApiCall::Mcp(asked.into()), home);
    None
}

/// Handles a request of a session of another shard.
pub(in crate::server) fn hear_asked<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    request: &McpRequest,
    context: Box<Context>,
    ask: Ask,
    owner: Principal,
) -> Answered {
    let name = request.session.as_ref().and_then(|text| text.parse::<SessionName>().ok());
    let Some(name) = name else {
        let text = "the request names no session";
        let error = ApiError::new(Status::BAD_REQUEST, "no_session", text);
        return hub::answer_error(shard, id, &error);
    };
    let asker = Asker::Session(name);
    let source = Source { asker, owner, outlet: Outlet::Open(id) };
    receive::hear_incoming(shard, id, Incoming::Ask(context, ask), source)
}

/// Frees the id of a request that was admitted elsewhere and failed on its way.
pub(in crate::server) fn let_go_asked<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &ApiCall,
) {
    let ApiCall::Mcp(request) = call else { return };
    let McpAction::Forwarded(context, _) = &request.action else { return };
    let name = request.session.as_ref().and_then(|text| text.parse::<SessionName>().ok());
    if let Some(name) = name {
        receive::free_asked(shard, Asker::Session(name), &context.id);
    }
}

/// True if a request names a session of another shard.
pub(in crate::server) fn is_far<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    request: &McpRequest,
) -> bool {
    let name = request.session.as_ref().and_then(|text| text.parse::<SessionName>().ok());
    name.is_some_and(|name| usize::from(name.shard) != peers::own_index(shard))
}

/// Resumes the stream of a call that belongs to a session elsewhere.
pub(in crate::server) fn resume_far<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    request: &McpRequest,
    owner: Principal,
    behind: &str,
) -> Answered {
    let name = request.session.as_ref().and_then(|text| text.parse::<SessionName>().ok());
    if let Some(name) = name
        && let Some(answered) = result::resume_call(shard, id, name, owner, behind)
    {
        return answered;
    }
    receive::answer_fault(shard, id, None, crate::server::mcp::receive::no_such_stream())
}

/// Sends a message to the shard of a session, if that is another one. A missing shard has none of
/// it.
fn send_to<R: Reactor + 'static>(shard: &mut ServerShard<R>, name: SessionName, message: ToPeer) {
    if usize::from(name.shard) != peers::own_index(shard) {
        let _ = peers::send(shard, name.shard.into(), message);
    }
}

/// Tells a session of another shard that one of its requests is over.
pub(in crate::server) fn finish_far<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
    id: &Id,
) {
    send_to(shard, name, ToPeer::RequestOver(name, id.clone()));
}

/// Handles that a request of a session of this shard is over.
pub(in crate::server) fn finish_here<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
    id: &Id,
) {
    let mcp = &mut shard.guests.mcp;
    if let Some(session) = mcp.sessions.get(name) {
        session.machine.finish(id);
    }
}

/// Cancels, on all other shards, a session's request that is not here.
pub(in crate::server) fn cancel_far<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    asker: Asker,
    id: &Id,
) {
    let Asker::Session(name) = asker else { return };
    peers::send_all(shard, || ToPeer::Cancel(name, id.clone()));
}

/// Cancels a request of a session of another shard, if it is here.
pub(in crate::server) fn cancel_here<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
    id: &Id,
) {
    if let Some(handle) = ask::find_call(shard, Asker::Session(name), id) {
        ask::cancel_mcp(shard, handle);
    }
}

/// Tells all other shards that a session has ended, which ends its calls there.
pub(in crate::server) fn tell_far<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
) {
    peers::send_all(shard, || ToPeer::SessionEnded(name));
}

/// Ends the calls of a session of another shard.
pub(in crate::server) fn end_far_session<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
) {
    let mcp = &mut shard.guests.mcp;
    mcp.forget_session(name);
    let calls = mcp.calls.iter();
    let its = calls.filter(|(_, call)| call.asker == Asker::Session(name));
    let its: Vec<Handle> = its.map(|(handle, _)| handle).collect();
    for handle in its {
        ask::cancel_mcp(shard, handle);
    }
}

/// Sends a session a message that belongs to none of its requests, wherever the session is.
pub(in crate::server) fn tell_session<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
    bytes: Vec<u8>,
) {
    if usize::from(name.shard) != peers::own_index(shard) {
        send_to(shard, name, ToPeer::Notify(name, bytes));
        return;
    }
    tell_session_here(shard, name, &bytes);
}

/// Sends a session of this shard a notification.
pub(in crate::server) fn tell_session_here<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: SessionName,
    bytes: &[u8],
) {
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let Some(session) = mcp.sessions.get(name) else { return };
    if let Some(outlet) = session.outlet() {
        mcp.counts.notifications += 1;
        link::write_event(hub, outlet, None, |out| out.extend_from_slice(bytes));
    }
}

/// The shards that make a list.
pub(in crate::server) enum Listing {
    /// This one. The caller lists.
    Here,
    /// All. The answer is given, or it comes once all parts have come.
    ByAll,
}

/// Asks all shards for their parts of a list, if there are others and the client can wait.
pub(in crate::server) fn gather_list<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: &Source,
    context: &Context,
    ask: &Ask,
) -> Listing {
    let Outlet::Open(id) = source.outlet else { return Listing::Here };
    if shard.guests.peers.count() < 2 {
        return Listing::Here;
    }
    let session = match source.asker {
        Asker::Session(name) => Some(name.to_string().into()),
        Asker::Alone(_) => None,
    };
    let action = McpAction::Forwarded(Box::new(context.clone()), ask.clone());
    let request = Box::new(McpRequest::of(action, session));
    let own_part = peers::Part::List(list_part(shard, &request, source.owner));
    let purpose = Purpose::McpList(request.clone(), shard.guests.mcp.take_span());
    let (call, gathering) = (ApiCall::Mcp(request), Gathering::new(purpose, own_part));
    match peers::ask_all(shard, id, &call, source.owner, gathering) {
        Asked::Waits(_) => return Listing::ByAll,
        Asked::Complete(Gathering { purpose: Purpose::McpList(request, span), parts, .. }) => {
            let (_, items) = peers::join_lists(parts);
            answer_listed(shard, id, &request, items, span);
        }
        Asked::Complete(_) => unreachable!("it was asked for a list"),
        Asked::Refused(error) => _ = hub::answer_error(shard, id, &error),
    }
    // It has been answered already: the next request may have come.
    shard.guests.hub.resume_later(id);
    Listing::ByAll
}

/// Returns the part of a list that is on this shard.
pub(in crate::server) fn list_part<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    request: &McpRequest,
    owner: Principal,
) -> Value {
    let items = match &request.action {
        McpAction::Forwarded(_, Ask::ListResources { .. }) => {
            resources::execution_items(shard, owner)
        }
        McpAction::Forwarded(context, Ask::ListTasks { .. }) => {
            tasks::task_items(shard, owner, context.version)
        }
        McpAction::Forwarded(_, Ask::Complete(_)) => {
            resources::execution_names(shard, owner).into_iter().map(Value::from).collect()
        }
        _ => Vec::new(),
    };
    json!({ "items": items })
}

/// Answers a list request once the parts of all shards have come.
pub(in crate::server) fn answer_listed<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    request: &McpRequest,
    items: Vec<Value>,
    span: Option<Box<Span>>,
) -> Answered {
    let McpAction::Forwarded(context, ask) = &request.action else { unreachable!("it was asked") };
    let hub = &mut shard.guests.hub;
    let owner = hub.connection(id).expect("it waits").http.principal();
    let server = ask::server_info(shard);
    let results = crate::mcp::Results::new(context.version, &server);
    let reply = match ask {
        Ask::ListTasks { cursor } => {
            crate::server::mcp::tasks::page(&results, items, cursor.as_deref())
        }
        Ask::ListResources { cursor } => {
            resources::page_of_resources(shard, &results, items, cursor.as_deref())
        }
        Ask::Complete(wanted) => {
            let names = items.iter().filter_map(Value::as_str).map(str::to_owned);
            let mut names: Vec<String> = names.collect();
            names.sort_unstable();
            ask::complete_argument(shard, owner, &results, wanted, &|| names.clone())
        }
        _ => unreachable!("no other request is sent to all shards"),
    };
    if let Some(name) = request.session.as_ref().and_then(|text| text.parse().ok()) {
        receive::free_asked(shard, Asker::Session(name), &context.id);
    }
    if let Some(span) = span {
        trace::end_span(shard, span, error_of(&reply));
    }
    let bytes = write_answer(&context.id, &reply);
    hub::answer(shard, id, &Answer::text(status_of(&reply), JSON, bytes))
}
