//! Tools that clients have registered. Every shard knows them, besides those that are built in.
//!
//! A change goes first to the shard of the principal's calls, and from there to all others. All
//! shards therefore see changes in one order. The reply comes after all of them have made the
//! change.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::base::Principal;
use crate::endpoint::{Answer, ApiCall, ApiError, documents};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Answered;
use crate::server::{ServerShard, hub, peers};
use crate::tool::{ArgumentError, Prepared, SpecError, StartError, ToolSpec, Tools, VirtualTool};
use crate::wire::http1::Status;
use crate::wire::write_json;

/// Virtual tools by name, with the document that describes each.
#[derive(Debug, Default)]
pub(in crate::server) struct VirtualTools {
    tools: Tools,
    documents: BTreeMap<Box<str>, Value>,
}

impl VirtualTools {
    /// Adds a tool, or replaces the one with its name. Returns true if it is new.
    fn insert(&mut self, tool: VirtualTool) -> Result<bool, SpecError> {
        let (name, document) = (tool.spec.name.as_str().into(), tool.to_json());
        self.tools.insert_virtual(tool)?;
        Ok(self.documents.insert(name, document).is_none())
    }

    fn remove(&mut self, name: &str) -> bool {
        self.documents.remove(name);
        self.tools.remove(name)
    }

    fn contains(&self, name: &str) -> bool {
        self.documents.contains_key(name)
    }
}

/// Adds a virtual tool for every principal. Its calls go to the workers of the calling
/// principal. Clients cannot replace it over the network.
pub(in crate::server) fn add_virtual_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    tool: VirtualTool,
) -> Result<(), SpecError> {
    if shard.tools.spec(&tool.spec.name).is_some() {
        let problem = "a built-in tool has this name".to_owned();
        return Err(SpecError { tool: tool.spec.name, problem });
    }
    shard.guests.workers.configured.insert(tool).map(|_| ())
}

/// True if calls of this tool go to workers of this principal.
pub(in crate::server) fn is_virtual<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    principal: Principal,
    name: &str,
) -> bool {
    let is_built_in = shard.tools.spec(name).is_some();
    !is_built_in && shard.guests.workers.tools(principal).any(|tools| tools.contains(name))
}

/// True if an agent with these arguments may call tools of workers.
pub(in crate::server) fn may_call_virtual<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    principal: Principal,
    arguments: &Value,
) -> bool {
    match &arguments["tools"] {
        Value::Array(names) => {
            let mut names = names.iter().filter_map(Value::as_str);
            names.any(|name| is_virtual(shard, principal, name))
        }
        _ => shard.guests.workers.tools(principal).any(|tools| !tools.documents.is_empty()),
    }
}

/// Checks the arguments of a run of a tool of any kind.
pub(in crate::server) fn prepare_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    principal: Principal,
    name: &str,
    arguments: &Value,
) -> Result<Prepared, StartError> {
    if is_virtual(shard, principal, name) {
        let bytes_max = limits::VIRTUAL_ARGUMENTS_BYTES_MAX;
        let mut bytes = Vec::new();
        write_json(&mut bytes, arguments);
        if bytes.len() > bytes_max {
            let problem = format!("are longer than {bytes_max} bytes");
            return Err(StartError::Argument(ArgumentError::new("arguments", problem)));
        }
        let mut all = shard.guests.workers.tools(principal);
        let found = all.find(|tools| tools.contains(name)).expect("it was just there");
        return found.tools.prepare(name, arguments);
    }
    let prepared = shard.tools.prepare(name, arguments);
    shard.note_start(prepared).map_err(|error| match error {
        StartError::UnknownTool { name, .. } => {
            let known = tool_specs(shard, principal).map(|spec| spec.name.clone()).collect();
            StartError::UnknownTool { name, known }
        }
        other => other,
    })
}

/// Returns all tools that this principal can call.
pub(in crate::server) fn tool_specs<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    principal: Principal,
) -> impl Iterator<Item = &Arc<ToolSpec>> {
    let is_hidden = |spec: &&Arc<ToolSpec>| shard.tools.spec(&spec.name).is_none();
    let of_clients = shard.guests.workers.tools(principal).flat_map(|tools| tools.tools.specs());
    shard.tools.specs().chain(of_clients.filter(is_hidden))
}

pub(in crate::server) fn list_virtual_tools<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    principal: Principal,
) -> Value {
    let all = shard.guests.workers.tools(principal).flat_map(|tools| tools.documents.values());
    json!({ "virtual_tools": all.collect::<Vec<_>>() })
}

/// Adds or deletes a tool here and then on all other shards.
pub(in crate::server) fn change_tools<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    call: ApiCall,
    principal: Principal,
) -> Answered {
    match change_tools_here(shard, &call, principal) {
        Ok(answer) => peers::tell_all(shard, id, &call, principal, answer),
        Err(error) => hub::answer_error(shard, id, &error),
    }
}

/// Adds or deletes a tool on this shard.
pub(in crate::server) fn change_tools_here<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    call: &ApiCall,
    principal: Principal,
) -> Result<Answer, ApiError> {
    shard.guests.workers.note_changed(principal);
    match call {
        ApiCall::PutVirtualTool(tool) => put_virtual_tool(shard, tool, principal),
        ApiCall::DeleteVirtualTool(name) => {
            match shard.guests.workers.workshop(principal).tools.remove(name) {
                true => Ok(Answer::empty(Status::NO_CONTENT)),
                false => {
                    let text = format!("you have no virtual tool of the name `{name}`");
                    let error = ApiError::new(Status::NOT_FOUND, "unknown_tool", text);
                    Err(error.field("name"))
                }
            }
        }
        _ => unreachable!("nothing else changes tools"),
    }
}

fn put_virtual_tool<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    tool: &VirtualTool,
    principal: Principal,
) -> Result<Answer, ApiError> {
    let name = &*tool.spec.name;
    if shard.tools.spec(name).is_some() || shard.guests.workers.configured.contains(name) {
        let text = format!("name: `{name}` is a tool of the server; choose another name");
        return Err(ApiError::new(Status::CONFLICT, "name_taken", text).field("name"));
    }
    let own = &mut shard.guests.workers.workshop(principal).tools;
    let most = limits::VIRTUAL_TOOLS_PER_PRINCIPAL_MAX;
    if !own.contains(name) && own.documents.len() >= most {
        let text = format!("you have {most} virtual tools already; delete one first");
        let error = ApiError::new(Status::CONFLICT, "too_many_virtual_tools", text);
        return Err(error.limit(most as u64));
    }
    let is_new = own.insert(tool.clone()).map_err(|error| {
        let text = format!("input_schema: {}", error.problem);
        ApiError::new(Status::BAD_REQUEST, "invalid_field", text).field("input_schema")
    })?;
    let document = tool.to_json();
    Ok(match is_new {
        true => Answer::created(&document, documents::virtual_tool_location(name)),
        false => Answer::json(Status::OK, &document),
    })
}
