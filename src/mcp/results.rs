//! Documents of results, in the words of each version.
//!
//! In the stateless era every result says of which type it is and who gives it (B2, B4), and some
//! say how long they may be kept (B30).

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::context::{META_SERVER, META_SUBSCRIPTION, META_TASK};
use super::cursor::Page;
use super::tasks::{Detail, Task};
use super::{Era, ServerInfo, Version, questions};
use crate::limits;
use crate::tool::{Completion, Question, TaskSupport, ToolSpec};
use crate::wire::jsonrpc::Id;

/// Makes results of one version.
#[derive(Clone, Copy, Debug)]
pub struct Results<'a> {
    version: Version,
    server: &'a ServerInfo,
}

/// Who may keep a result: only who asked for it, or whoever stands between.
const PRIVATE: &str = "private";
const PUBLIC: &str = "public";

impl<'a> Results<'a> {
    /// Of this version.
    pub fn new(version: Version, server: &'a ServerInfo) -> Results<'a> {
        Results { version, server }
    }

    /// Whatever `members` say, with what every result of this version says.
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

    /// Of `ping`, `logging/setLevel`, `resources/subscribe` …: that it was done.
    pub fn empty(&self) -> Value {
        self.complete(Map::new())
    }

    /// Of `server/discover`.
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

    /// Of `tools/list`; items by [`tool`].
    pub fn tools(&self, page: Page<Value>) -> Value {
        self.list("tools", page)
    }

    /// Of `resources/list`; items by [`super::catalog::Resource::to_json`] and [`execution`].
    pub fn resources(&self, page: Page<Value>) -> Value {
        self.list("resources", page)
    }

    /// Of `resources/templates/list`.
    pub fn templates(&self, page: Page<Value>) -> Value {
        self.list("resourceTemplates", page)
    }

    /// Of `prompts/list`.
    pub fn prompts(&self, page: Page<Value>) -> Value {
        self.list("prompts", page)
    }

    fn list(&self, name: &str, page: Page<Value>) -> Value {
        self.cached(listed(name, page), limits::MCP_CACHE_LIST, PRIVATE)
    }

    /// Of `resources/read`; items by [`super::catalog::contents`].
    pub fn contents(&self, contents: Vec<Value>) -> Value {
        let mut members = Map::new();
        members.insert("contents".to_owned(), contents.into());
        self.cached(members, Duration::ZERO, PRIVATE)
    }

    /// Of `prompts/get`, with its messages.
    pub fn prompt(&self, description: &str, messages: Value) -> Value {
        let mut members = Map::new();
        members.insert("description".to_owned(), description.into());
        members.insert("messages".to_owned(), messages);
        self.complete(members)
    }

    /// Of `completion/complete`.
    pub fn completion(&self, found: &Completion) -> Value {
        let has_more = found.total > found.values.len();
        let completion =
            json!({ "values": found.values, "total": found.total, "hasMore": has_more });
        self.complete([("completion".to_owned(), completion)].into_iter().collect())
    }

    /// Of a call, a prompt or a resource that asks first (B16); `state` is sealed.
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

    /// Of a call that has become a task: `CreateTaskResult`.
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

    /// Of `tasks/get`.
    pub fn task(&self, task: &Task<'_>, detail: Detail<'_>) -> Value {
        self.complete(task.to_json_with(self.version, detail))
    }

    /// Of `tasks/cancel`: the task in the one era, that it was heard in the other.
    pub fn task_cancelled(&self, task: &Task<'_>) -> Value {
        match self.version.era() {
            Era::Handshake => self.complete(task.to_json(self.version)),
            Era::Stateless => self.empty(),
        }
    }

    /// Of `tasks/result`: what the call would have been answered (A48, A49).
    pub fn task_result(&self, id: &str, result: &Value) -> Value {
        let mut members = result.as_object().cloned().unwrap_or_default();
        add_meta(&mut members, META_TASK, json!({ "taskId": id }));
        members.into()
    }

    /// Of `tasks/list`.
    pub fn tasks(&self, page: Page<Value>) -> Value {
        self.complete(listed("tasks", page))
    }

    /// Of `subscriptions/listen`: that it is over (B29).
    pub fn listened(&self, id: &Id) -> Value {
        let mut members = Map::new();
        add_meta(&mut members, META_SUBSCRIPTION, id.to_value());
        self.complete(members)
    }

    /// Which version it is of.
    pub fn version(&self) -> Version {
        self.version
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

/// A tool, as `tools/list` of this version has it (A34, B31).
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

/// The schema of a tool's output, where this version can have it: in the handshake era that is an
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

/// An execution, as `resources/list` has it: its state.
pub fn execution(id: &str, tool: &str, state: &str) -> Value {
    json!({
        "uri": format!("streamdoor://executions/{id}"),
        "name": format!("{tool} {id}"),
        "description": format!("Execution of {tool}: {state}."),
        "mimeType": "application/json",
    })
}

/// The templates of resources that executions are.
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
            "description": "All output of one execution of a tool that is still there.",
        }),
    ]
}

/// What an address names that is an execution's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutionUri {
    /// The state of the execution of this id.
    State(crate::base::ExecutionId),
    /// Its output.
    Output(crate::base::ExecutionId),
}

impl ExecutionUri {
    /// `None` if it is no execution's; an id that is none is none.
    pub fn parse(uri: &str) -> Option<ExecutionUri> {
        let rest = uri.strip_prefix("streamdoor://executions/")?;
        match rest.strip_suffix("/output") {
            Some(id) => id.parse().ok().map(ExecutionUri::Output),
            None => rest.parse().ok().map(ExecutionUri::State),
        }
    }
}
