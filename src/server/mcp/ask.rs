//! Requests, notifications and replies of clients, whatever transport they came by.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::{Handle, Principal, guarded};
use crate::mcp::catalog::Rendered;
use crate::mcp::completion::{self, Sources};
use crate::mcp::cursor::{self, List, Page};
use crate::mcp::request_state::Bound;
use crate::mcp::results::{self, Results};
use crate::mcp::{
    Ask, Catalog, ClientNotification, Complete, Context, Era, McpFault, ServerInfo, questions,
};
use crate::reactor::Reactor;
use crate::server::mcp::answer::{Reply, Source};
use crate::server::mcp::call::{Asker, McpCall, Stage};
use crate::server::mcp::far::Listing;
use crate::server::mcp::{answer, far, listen, receive, resources, settle, tasks, tools};
use crate::server::{ServerShard, workers};
use crate::shard::panics::Callback;
use crate::tool::{Asking, Question, Replies, ToolSpec};
use crate::wire::jsonrpc::Id;
/// Carries out a request. See [`Shard::ask_mcp`].
pub(in crate::server) fn carry_out_mcp<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    context: Box<Context>,
    ask: Ask,
) -> Option<Reply> {
    let server = server_info(shard);
    let results = Results::new(context.version, &server);
    let owner = source.owner;
    match ask {
        Ask::CallTool { .. } | Ask::Listen(_) if is_ending(shard) => {
            Some(Err(McpFault::busy("the server is ending")))
        }
        Ask::CallTool { name, arguments } => {
            tools::call_tool(shard, source, context, &name, arguments)
        }
        Ask::Ping | Ask::SetLevel(_) => Some(Ok(results.empty().into())),
        Ask::Discover => Some(Ok(results.discover().into())),
        Ask::ListTools { cursor } => Some(list_tools(shard, owner, &results, cursor.as_deref())),
        Ask::ListResources { ref cursor } => match far::gather_list(shard, &source, &context, &ask)
        {
            Listing::ByAll => None,
            Listing::Here => {
                let items = resources::execution_items(shard, owner);
                Some(resources::page_of_resources(shard, &results, items, cursor.as_deref()))
            }
        },
        Ask::ListTemplates { cursor } => {
            Some(resources::list_templates(shard, &results, cursor.as_deref()))
        }
        Ask::ReadResource { uri } => Some(resources::read_resource(shard, owner, &results, &uri)),
        Ask::Subscribe { uri } => {
            Some(resources::subscribe_resource(shard, &source, &results, &uri))
        }
        Ask::Unsubscribe { uri } => {
            Some(resources::unsubscribe_resource(shard, &source, &results, &uri))
        }
        Ask::ListPrompts { cursor } => Some(list_prompts(shard, &results, cursor.as_deref())),
        Ask::GetPrompt { name, arguments } => {
            Some(get_prompt(shard, &source, &context, &results, &name, &arguments))
        }
        Ask::Complete(ref wanted) => {
            let is_of_all = completion::asks_for_executions(wanted);
            let listing = match is_of_all {
                true => far::gather_list(shard, &source, &context, &ask),
                false => Listing::Here,
            };
            match listing {
                Listing::ByAll => None,
                Listing::Here => {
                    let ids = || resources::execution_names(shard, owner);
                    Some(complete_argument(shard, owner, &results, wanted, &ids))
                }
            }
        }
        Ask::GetTask { id } => Some(tasks::get_task(shard, owner, &context, &id)),
        Ask::TaskResult { id } => tasks::task_result(shard, source, context, &id),
        Ask::ListTasks { ref cursor } => match far::gather_list(shard, &source, &context, &ask) {
            Listing::ByAll => None,
            Listing::Here => {
                let items = tasks::task_items(shard, owner, context.version);
                Some(crate::server::mcp::tasks::page(&results, items, cursor.as_deref()))
            }
        },
        Ask::CancelTask { id } => Some(tasks::cancel_task(shard, owner, &context, &id)),
        Ask::UpdateTask { id, answers } => {
            Some(tasks::update_task(shard, owner, &context, &id, answers))
        }
        Ask::Listen(filter) => listen::listen_mcp(shard, source, context, filter),
    }
}

/// Returns the server's description of itself.
pub(in crate::server) fn server_info<R: Reactor + 'static>(
    shard: &ServerShard<R>,
) -> Arc<ServerInfo> {
    Arc::clone(&shard.guests.mcp.server)
}

/// Calls code of the catalog.
///
/// # Errors
/// The code has panicked.
pub(in crate::server) fn call_catalog<R: Reactor + 'static, T>(
    shard: &mut ServerShard<R>,
    call: impl FnOnce() -> T,
) -> Result<T, McpFault> {
    guarded(call).map_err(|panicked| {
        shard.note_panic(Callback::Guest("catalog"), &panicked);
        McpFault::internal(format!("the catalog panicked: {panicked}"))
    })
}

/// Returns the catalog: prompts and resources other than executions.
pub(in crate::server) fn catalog<R: Reactor + 'static>(shard: &ServerShard<R>) -> Arc<Catalog> {
    Arc::clone(&shard.guests.mcp.catalog)
}

fn is_ending<R: Reactor + 'static>(shard: &ServerShard<R>) -> bool {
    shard.guests.hub.is_draining()
}

fn list_tools<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
    results: &Results<'_>,
    cursor: Option<&str>,
) -> Reply {
    let mut all: Vec<Arc<ToolSpec>> = workers::tool_specs(shard, owner).cloned().collect();
    all.extend(crate::mcp::streams::specs().map(Arc::new));
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all.dedup_by(|one, other| one.name == other.name);
    let page = cursor::page(List::Tools, all, |spec| spec.name.clone(), cursor)?;
    Ok(results.tools(documents(page, |spec| results::tool(&spec, results.version()))).into())
}

fn list_prompts<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    results: &Results<'_>,
    cursor: Option<&str>,
) -> Reply {
    let catalog = catalog(shard);
    let mut all: Vec<_> = catalog.prompts.iter().collect();
    all.sort_by(|one, other| one.name.cmp(&other.name));
    let page = cursor::page(List::Prompts, all, |prompt| prompt.name.clone(), cursor)?;
    Ok(results.prompts(documents(page, |prompt| prompt.to_json(results.version()))).into())
}

fn get_prompt<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: &Source,
    context: &Context,
    results: &Results<'_>,
    name: &str,
    arguments: &Map<String, Value>,
) -> Reply {
    let catalog = catalog(shard);
    let Some(prompt) = catalog.prompt(name) else {
        return Err(McpFault::invalid_params(format!("unknown prompt: {name}")));
    };
    prompt.check(arguments)?;
    let bound = Bound { principal: source.owner, method: "prompts/get", name, arguments };
    let replies = shard.guests.mcp.seal.replies(bound, context, shard.now)?;
    match call_catalog(shard, || (prompt.render)(arguments, &replies, &context.client))?? {
        Rendered::Messages(messages) => Ok(results.prompt(&prompt.description, messages).into()),
        Rendered::Ask(Asking::Ask { questions, state })
            if context.version.era() == Era::Stateless =>
        {
            input_required(shard, bound, context, results, &questions, state)
        }
        Rendered::Ask(Asking::Refuse(text)) => Err(McpFault::invalid_params(text)),
        Rendered::Ask(Asking::Run | Asking::Ask { .. }) => Err(McpFault::invalid_params(
            "this prompt has questions that this protocol version does not support",
        )),
    }
}

/// Returns the answer, in the stateless era, of a tool or prompt that has questions first.
pub(in crate::server) fn input_required<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    bound: Bound<'_>,
    context: &Context,
    results: &Results<'_>,
    questions: &[Question],
    state: Option<Value>,
) -> Reply {
    questions::check(context.version, &context.client, questions)?;
    let sealed =
        state.map(|state| shard.guests.mcp.seal.seal(bound, &state, shard.now)).transpose()?;
    Ok(results.input_required(questions, sealed).into())
}

/// Returns the answers and the state that a request brings from an earlier one.
pub(in crate::server) fn replies_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    source: &Source,
    context: &Context,
    name: &str,
    arguments: &Map<String, Value>,
) -> Result<Replies, McpFault> {
    let bound = Bound { principal: source.owner, method: "tools/call", name, arguments };
    shard.guests.mcp.seal.replies(bound, context, shard.now)
}

/// Completes an argument, with these ids of executions.
pub(in crate::server) fn complete_argument<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    owner: Principal,
    results: &Results<'_>,
    wanted: &Complete,
    executions: &dyn Fn() -> Vec<String>,
) -> Reply {
    let catalog = catalog(shard);
    let tool = |name: &str| receive::tool_spec(shard, owner, name);
    let sources = Sources { catalog: &catalog, tool: &tool, executions };
    Ok(results.completion(&completion::complete(wanted, &sources)?).into())
}

/// Handles a notification of a client.
pub(in crate::server) fn tell_mcp<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: Source,
    told: ClientNotification,
) {
    if let ClientNotification::Cancelled { id, .. } = told {
        match find_call(shard, source.asker, &id) {
            Some(handle) => cancel_mcp(shard, handle),
            None => far::cancel_far(shard, source.asker, &id),
        }
    }
}

/// Returns the call that this asker knows by this id.
pub(in crate::server) fn find_call<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    asker: Asker,
    id: &Id,
) -> Option<Handle> {
    let mcp = &shard.guests.mcp;
    let is_it = |call: &McpCall| call.asker == asker && call.context.id == *id;
    mcp.calls.iter().find(|(_, call)| is_it(call)).map(|(handle, _)| handle)
}

/// Stops a call that its client has cancelled, without an answer.
pub(in crate::server) fn cancel_mcp<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    let execution = stop_call(shard, handle);
    answer::drop_call(shard, handle);
    if let Some(execution) = execution {
        let _ = shard.cancel(execution);
    }
}

/// Drops what a call keeps, and returns the execution that was run only for it.
pub(in crate::server) fn stop_call<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) -> Option<crate::base::ExecutionId> {
    let mcp = &mut shard.guests.mcp;
    let call = mcp.calls.get(handle)?;
    match call.stage {
        Stage::Runs(keep) => {
            let execution = mcp.keeps.get(keep)?.execution;
            settle::forget_keep(shard, keep);
            execution
        }
        _ => None,
    }
}

/// Like [`Shard::cancel_mcp`], for a client whose session has ended.
pub(in crate::server) fn abandon<R: Reactor + 'static>(shard: &mut ServerShard<R>, handle: Handle) {
    cancel_mcp(shard, handle);
}

/// Converts the items of a page to JSON.
pub(in crate::server) fn documents<T>(page: Page<T>, document: impl Fn(T) -> Value) -> Page<Value> {
    Page { items: page.items.into_iter().map(document).collect(), next: page.next }
}
