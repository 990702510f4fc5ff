//! Resources: the state and the output of each execution, and the resources of the catalog.

use serde_json::Value;

use crate::base::{ExecutionId, Principal};
use crate::mcp::McpFault;
use crate::mcp::catalog::{Contents, contents};
use crate::mcp::cursor::{self, List};
use crate::mcp::results::{self, ExecutionUri, Results};
use crate::reactor::Reactor;
use crate::server::guests::Guests;
use crate::server::mcp::answer::{Reply, Source};
use crate::server::mcp::{ask, listen, recalled};
use crate::server::{ServerShard, executions};
use crate::shard::act::read_chunk;
use crate::stream::ExecutionState;
/// Returns this principal's executions on this shard, also those that only the disk has, sorted by
/// name.
pub(in crate::server) fn own_executions<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    owner: Principal,
) -> Vec<ExecutionId> {
    let Guests { archive, access, .. } = &shard.guests;
    let here = shard.runs.iter().flatten().filter(|run| run.guest.owner == owner);
    let kept = archive.of_owner(access.name_of(owner), None);
    let kept = kept.filter(|(id, entry)| entry.is_owned_by(owner, access) && shard.keeps(*id));
    let mut ids: Vec<ExecutionId> = here.map(|run| run.id).chain(kept.map(|(id, _)| id)).collect();
    ids.sort_by_cached_key(ToString::to_string);
    ids.dedup();
    ids
}

/// Returns the names of this principal's executions on this shard.
pub(in crate::server) fn execution_names<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    owner: Principal,
) -> Vec<String> {
    own_executions(shard, owner).iter().map(ToString::to_string).collect()
}

/// Returns this principal's executions on this shard as items of a list.
pub(in crate::server) fn execution_items<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
) -> Vec<Value> {
    let mut items = Vec::new();
    for id in own_executions(shard, owner) {
        let name = id.to_string();
        if let Ok(status) = shard.inspect(id) {
            let tool = executions::tool_name(shard, id);
            items.push(results::execution(&name, &tool, status.state.name()));
        } else if let Some(entry) = shard.guests.archive.get(id) {
            let state = ExecutionState::Ended(entry.outcome).name();
            items.push(results::execution(&name, &entry.tool, state));
        }
    }
    items
}

/// Returns a page of the catalog's resources and these executions.
pub(in crate::server) fn page_of_resources<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    results: &Results<'_>,
    mut items: Vec<Value>,
    cursor: Option<&str>,
) -> Reply {
    let catalog = ask::catalog(shard);
    items.extend(catalog.resources.iter().map(|one| one.to_json(results.version())));
    let key_of = |item: &Value| item["uri"].as_str().unwrap_or_default().to_owned();
    items.sort_by_key(key_of);
    Ok(results.resources(cursor::page(List::Resources, items, key_of, cursor)?).into())
}

pub(in crate::server) fn list_templates<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    results: &Results<'_>,
    cursor: Option<&str>,
) -> Reply {
    let catalog = ask::catalog(shard);
    let of_catalog = catalog.templates.iter();
    let mut all: Vec<Value> =
        of_catalog.map(|template| template.to_json(results.version())).collect();
    all.extend(results::execution_templates());
    let key_of = |item: &Value| item["uriTemplate"].as_str().unwrap_or_default().to_owned();
    all.sort_by_key(key_of);
    Ok(results.templates(cursor::page(List::Templates, all, key_of, cursor)?).into())
}

/// True if this resource exists and this principal may know it.
pub(in crate::server) fn is_resource<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    owner: Principal,
    uri: &str,
) -> bool {
    match ExecutionUri::parse(uri) {
        Some(ExecutionUri::State(id) | ExecutionUri::Output(id)) => {
            executions::is_owned(shard, id, owner)
        }
        None => ask::catalog(shard).has(uri),
    }
}

pub(in crate::server) fn read_resource<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    owner: Principal,
    results: &Results<'_>,
    uri: &str,
) -> Reply {
    let not_found = || McpFault::resource_not_found(results.version(), uri);
    let item = match ExecutionUri::parse(uri) {
        Some(ExecutionUri::State(id)) if executions::is_owned(shard, id, owner) => {
            let state = executions::describe(shard, id).map_err(|_| not_found())?;
            contents(uri, Some("application/json"), &Contents::Text(state.to_string()))
        }
        Some(ExecutionUri::Output(id)) if executions::is_owned(shard, id, owner) => {
            let kept = recalled::take_output(shard, id);
            let output = kept.or_else(|| output_held(shard, id)).ok_or_else(not_found)?;
            match String::from_utf8(output) {
                Ok(text) => contents(uri, Some("text/plain"), &Contents::Text(text)),
                Err(error) => {
                    let blob = Contents::Blob(error.into_bytes());
                    contents(uri, Some("application/octet-stream"), &blob)
                }
            }
        }
        Some(_) => return Err(not_found()),
        None => {
            let catalog = ask::catalog(shard);
            ask::call_catalog(shard, || catalog.read(uri))?.ok_or_else(not_found)?
        }
    };
    Ok(results.contents(vec![item]).into())
}

/// Returns the output of an execution, as far as it is still held.
fn output_held<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ExecutionId,
) -> Option<Vec<u8>> {
    let status = shard.inspect(id).ok()?;
    let place = shard.place_of(id).slot.index;
    let run = shard.runs[place as usize].as_ref()?;
    let mut output = Vec::new();
    for seq in status.tail_seq.max(1)..=status.head_seq {
        if let Ok((_, payload)) = read_chunk(run, seq, &mut shard.scratch) {
            output.extend_from_slice(payload);
        }
    }
    Some(output)
}

pub(in crate::server) fn subscribe_resource<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: &Source,
    results: &Results<'_>,
    uri: &str,
) -> Reply {
    if !is_resource(shard, source.owner, uri) {
        return Err(McpFault::resource_not_found(results.version(), uri));
    }
    if let Some(name) = listen::session_of(source) {
        let mcp = &mut shard.guests.mcp;
        if let Some(session) = mcp.sessions.get(name) {
            session.machine.subscribe(uri)?;
        }
        listen::watch_for_session(shard, name, uri);
    }
    Ok(results.empty().into())
}

pub(in crate::server) fn unsubscribe_resource<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    source: &Source,
    results: &Results<'_>,
    uri: &str,
) -> Reply {
    if let Some(name) = listen::session_of(source) {
        let mcp = &mut shard.guests.mcp;
        if let Some(session) = mcp.sessions.get(name) {
            session.machine.unsubscribe(uri);
        }
        listen::unwatch_for_session(shard, name, uri);
    }
    Ok(results.empty().into())
}
