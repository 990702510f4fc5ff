//! The documents of results, in the form of each version.
//!
//! In the stateless era every result names its type and its server (B2, B4). Some also say how long
//! a client may cache them (B30).

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::context::{META_SERVER, META_SUBSCRIPTION, META_TASK};
use super::cursor::Page;
use super::tasks::{Detail, Task};
use super::{Era, ServerInfo, Version, questions};
use crate::limits;
use crate::tool::{Completion, Question, TaskSupport, ToolSpec};
use crate::wire::jsonrpc::Id;

/// Makes the results of one version.
#[derive(Clone, Copy, Debug)]
pub struct Results<'a> {
    version: Version,
    server: &'a ServerInfo,
}

/// The cache scope of a result that only its client may keep. An intermediary may keep a `PUBLIC`
/// one.
const PRIVATE: &str = "private";
const PUBLIC: &str = "public";

impl<'a> Results<'a> {
    /// Returns a value that makes results of this version.
    pub fn new(version: Version, server: &'a ServerInfo) -> Results<'a> {
        Results { version, server }
    }

    /// A complete result: `members`, and the members that every result of this version has.
    pub fn complete(&self, members: Map<String, Value>) -> Value {
        self.finish(members, "complete")
    }

    fn finish(&self, mut members: Map<String, Value>, result_type: &str) -> Value {
        if self.version.era() == Era::Stateless {
            members.insert("resultType".to_owned(), result_type.into());
            let server = self.server.implementation(self.version);
            add_meta(&mut members, META_SERVER, server);
        }
        members.into()
    }

    fn cached(&self, mut members: Map<String, Value>, ttl: Duration, scope: &str) -> Value {
        if self.version.era() == Era::Stateless {
            members.insert("ttlMs".to_owned(), (ttl.as_millis() as u64).into());
            members.insert("cacheScope".to_owned(), scope.into());
        }
        self.complete(members)
    }

    /// The empty result of `ping`, `logging/setLevel`, `resources/subscribe` and others.
    pub fn empty(&self) -> Value {
        self.complete(Map::new())
    }

    /// The result of `server/discover`.
    pub fn discover(&self) -> Value {
        let supported: Vec<&str> = Version::stateless().map(Version::text).collect();
        let mut members = Map::new();
        members.insert("supportedVersions".to_owned(), supported.into());
        members.insert("capabilities".to_owned(), self.server.capabilities(self.version));
        if let Some(instructions) = &self.server.instructions {
            members.insert("instructions".to_owned(), instructions.as_str().into());
        }
        self.cached(members, limits::MCP_CACHE_DISCOVER, PUBLIC)
    }

    /// The result of `tools/list`. [`tool`] makes its items.
    pub fn tools(&self, page: Page<Value>) -> Value {
        self.list("tools", page)
    }

    /// The result of `resources/list`. [`super::catalog::Resource::to_json`] and [`execution`] make
    /// its items.
    pub fn resources(&self, page: Page<Value>) -> Value {
        self.list("resources", page)
    }

    /// The result of `resources/templates/list`.
    pub fn templates(&self, page: Page<Value>) -> Value {
        self.list("resourceTemplates", page)
    }

    /// The result of `prompts/list`.
    pub fn prompts(&self, page: Page<Value>) -> Value {
        self.list("prompts", page)
    }

    fn list(&self, name: &str, page: Page<Value>) -> Value {
        self.cached(listed(name, page), limits::MCP_CACHE_LIST, PRIVATE)
    }

    /// The result of `resources/read`. [`super::catalog::contents`] makes its items.
    pub fn contents(&self, contents: Vec<Value>) -> Value {
        let mut members = Map::new();
        members.insert("contents".to_owned(), contents.into());
        self.cached(members, Duration::ZERO, PRIVATE)
    }

    /// The result of `prompts/get`, with its messages.
    pub fn prompt(&self, description: &str, messages: Value) -> Value {
        let mut members = Map::new();
        members.insert("description".to_owned(), description.into());
        members.insert("messages".to_owned(), messages);
        self.complete(members)
    }

    /// The result of `completion/complete`.
    pub fn completion(&self, found: &Completion) -> Value {
        let has_more = found.total > found.values.len();
        let completion =
            json!({ "values": found.values, "total": found.total, "hasMore": has_more });
        self.complete([("completion".to_owned(), completion)].into_iter().collect())
    }

    /// The result of a call, a prompt or a resource that asks questions first (B16). `state` is
    /// sealed.
    pub fn input_required(&self, asked: &[Question], state: Option<String>) -> Value {
        let mut members = Map::new();
        if !asked.is_empty() || state.is_none() {
            members.insert("inputRequests".to_owned(), questions::requests(asked));
        }
        if let Some(state) = state {
            members.insert("requestState".to_owned(), state.into());
        }
        self.finish(members, "input_required")
    }

    /// The result of a call that has become a task: `CreateTaskResult`.
    pub fn task_created(&self, task: &Task<'_>) -> Value {
        let document = task.to_json(self.version);
        match self.version.era() {
            Era::Stateless => self.finish(document, "task"),
            Era::Handshake => {
                let mut members = Map::new();
                members.insert("task".to_owned(), document.into());
                add_meta(&mut members, META_TASK, json!({ "taskId": task.id }));
                members.into()
            }
        }
    }

    /// The result of `tasks/get`.
    pub fn task(&self, task: &Task<'_>, detail: Detail<'_>) -> Value {
        self.complete(task.to_json_with(self.version, detail))
    }

    /// The result of `tasks/cancel`: the task in the handshake era, and an empty one in the
    /// stateless era.
    pub fn task_cancelled(&self, task: &Task<'_>) -> Value {
        match self.version.era() {
            Era::Handshake => self.complete(task.to_json(self.version)),
            Era::Stateless => self.empty(),
        }
    }

    /// The result of `tasks/result`: the result of the call, with the task's id (A48, A49).
    pub fn task_result(&self, id: &str, result: &Value) -> Value {
        let mut members = result.as_object().cloned().unwrap_or_default();
        add_meta(&mut members, META_TASK, json!({ "taskId": id }));
        members.into()
    }

    /// The result of `tasks/list`.
    pub fn tasks(&self, page: Page<Value>) -> Value {
        self.complete(listed("tasks", page))
    }

    /// The result of `subscriptions/listen`, which ends the subscription (B29).
    pub fn listened(&self, id: &Id) -> Value {
        let mut members = Map::new();
        add_meta(&mut members, META_SUBSCRIPTION, id.to_value());
        self.complete(members)
    }

    /// The version of the results.
    pub fn version(&self) -> Version {
        self.version
    }

    pub(super) fn server(&self) -> &ServerInfo {
        self.server
    }
}

fn listed(name: &str, page: Page<Value>) -> Map<String, Value> {
    let mut members = Map::new();
    members.insert(name.to_owned(), page.items.into());
    if let Some(next) = page.next {
        members.insert("nextCursor".to_owned(), next.into());
    }
    members
}

/// Adds a member to `_meta`.
pub(super) fn add_meta(members: &mut Map<String, Value>, name: &str, value: Value) {
    let meta = members.entry("_meta").or_insert_with(|| json!({}));
    if let Value::Object(meta) = meta {
        meta.insert(name.to_owned(), value);
    }
}

/// A tool as an item of `tools/list` of this version (A34, B31).
pub fn tool(spec: &ToolSpec, version: Version) -> Value {
    let mut document = Map::new();
    let mut add = |name: &str, value: Value| document.insert(name.to_owned(), value);
    add("name", spec.name.as_str().into());
    if let Some(title) = spec.title.as_ref().filter(|_| version >= Version::V2025_06_18) {
        add("title", title.as_str().into());
    }
    add("description", spec.description.as_str().into());
    add("inputSchema", spec.arguments.clone());
    if let Some(schema) = output_schema(spec, version) {
        add("outputSchema", schema.clone());
    }
    if version >= Version::V2025_03_26 && spec.annotations.is_object() {
        add("annotations", spec.annotations.clone());
    }
    if version == Version::V2025_11_25 && spec.task_support != TaskSupport::Forbidden {
        add("execution", json!({ "taskSupport": spec.task_support.name() }));
    }
    document.into()
}

/// The schema of a tool's output, if this version can carry it. In the handshake era it must be an
/// object's.
pub fn output_schema(spec: &ToolSpec, version: Version) -> Option<&Value> {
    spec.output_schema.as_ref().filter(|schema| match version {
        Version::V2024_11_05 | Version::V2025_03_26 => false,
        Version::V2025_06_18 | Version::V2025_11_25 => {
            schema.get("type").and_then(Value::as_str) == Some("object")
        }
        Version::V2026_07_28 => schema.is_object(),
    })
}

/// An execution as an item of `resources/list`: its state.
pub fn execution(id: &str, tool: &str, state: &str) -> Value {
    json!({
        "uri": format!("streamdoor://executions/{id}"),
        "name": format!("{tool} {id}"),
        "description": format!("Execution of {tool}: {state}."),
        "mimeType": "application/json",
    })
}

/// The resource templates of executions.
pub fn execution_templates() -> [Value; 2] {
    [
        json!({
            "uriTemplate": super::completion::EXECUTION_TEMPLATE,
            "name": "execution",
            "description": "The state of one execution of a tool.",
            "mimeType": "application/json",
        }),
        json!({
            "uriTemplate": super::completion::OUTPUT_TEMPLATE,
            "name": "output",
            "description": "The output of one execution of a tool, as far as it is still held.",
        }),
    ]
}

/// The part of an execution that an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutionUri {
    /// The state of the execution.
    State(crate::base::ExecutionId),
    /// The output of the execution.
    Output(crate::base::ExecutionId),
}

impl ExecutionUri {
    /// Parses the address of an execution; `None` if it is none, or its id is malformed.
    pub fn parse(uri: &str) -> Option<ExecutionUri> {
        let rest = uri.strip_prefix("streamdoor://executions/")?;
        match rest.strip_suffix("/output") {
            Some(id) => id.parse().ok().map(ExecutionUri::Output),
            None => rest.parse().ok().map(ExecutionUri::State),
        }
    }
}
