//! The requests and notifications of a client, with all parameters checked.

use serde_json::{Map, Value};

use super::client::TASKS_EXTENSION;
use super::params::Params;
use super::{Context, Era, Level, McpFault, ServerInfo, Version};
use crate::base::plain::is_command;
use crate::limits;
use crate::wire::jsonrpc::{ErrorObject, Id, Parameters};
use crate::wire::members::Members;

/// A checked message from a client.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A request. It gets exactly one reply.
    Ask(Box<Context>, Ask),
    /// A notification. It never gets a reply.
    Notification(ClientNotification),
    /// The reply to a request of this server.
    Reply {
        /// The id of that request.
        id: Id,
        /// The result, which is an object, or the error.
        result: Result<Value, ErrorObject>,
    },
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// `ping`
    Ping,
    /// `server/discover`
    Discover,
    /// `logging/setLevel`
    SetLevel(Level),
    /// `tools/list`
    ListTools {
        /// The cursor of the page; `None` for the first one.
        cursor: Option<String>,
    },
    /// `tools/call`
    CallTool {
        /// The name of the tool.
        name: String,
        /// The arguments of the call.
        arguments: Map<String, Value>,
    },
    /// `resources/list`
    ListResources {
        /// The cursor of the page; `None` for the first one.
        cursor: Option<String>,
    },
    /// `resources/templates/list`
    ListTemplates {
        /// The cursor of the page; `None` for the first one.
        cursor: Option<String>,
    },
    /// `resources/read`
    ReadResource {
        /// The address of the resource.
        uri: String,
    },
    /// `resources/subscribe`
    Subscribe {
        /// The address of the resource.
        uri: String,
    },
    /// `resources/unsubscribe`
    Unsubscribe {
        /// The address of the resource.
        uri: String,
    },
    /// `prompts/list`
    ListPrompts {
        /// The cursor of the page; `None` for the first one.
        cursor: Option<String>,
    },
    /// `prompts/get`
    GetPrompt {
        /// The name of the prompt.
        name: String,
        /// The arguments. Each is a string.
        arguments: Map<String, Value>,
    },
    /// `completion/complete`
    Complete(Complete),
    /// `tasks/get`
    GetTask {
        /// The id of the task.
        id: String,
    },
    /// `tasks/result`
    TaskResult {
        /// The id of the task.
        id: String,
    },
    /// `tasks/list`
    ListTasks {
        /// The cursor of the page; `None` for the first one.
        cursor: Option<String>,
    },
    /// `tasks/cancel`
    CancelTask {
        /// The id of the task.
        id: String,
    },
    /// `tasks/update`
    UpdateTask {
        /// The id of the task.
        id: String,
        /// Answers to the questions of the task, by key. Answers that are no objects were left out.
        answers: Map<String, Value>,
    },
    /// `subscriptions/listen`
    Listen(Filter),
}

/// A request for values of an argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Complete {
    /// The owner of the argument.
    pub target: CompletionTarget,
    /// The name of the argument.
    pub argument: String,
    /// The value as typed so far.
    pub value: String,
    /// The other arguments that are known already. Each is a string.
    pub context: Map<String, Value>,
}

/// The owner of an argument to complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionTarget {
    /// The prompt of this name, or the tool of this name if no such prompt exists.
    Prompt(String),
    /// The resource template with exactly this text, or the resource at this address.
    Resource(String),
    /// The tool of this name. `ref/tool` is an extension of this server.
    Tool(String),
}

/// The notifications that a `subscriptions/listen` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Changes of the list of tools.
    pub tools: bool,
    /// Changes of the list of prompts.
    pub prompts: bool,
    /// Changes of the list of resources.
    pub resources: bool,
    /// Changes of these resources.
    pub uris: Vec<String>,
    /// Changes of these tasks.
    pub tasks: Vec<String>,
}

impl Filter {
    /// The part of the filter that this server can satisfy (B29).
    #[must_use]
    pub fn honoured(mut self, server: &ServerInfo) -> Filter {
        self.tools &= server.tells_tools;
        self.prompts &= server.has_prompts && server.tells_prompts;
        self.resources &= server.tells_resources;
        self
    }

    /// The filter as the acknowledgement spells it. Parts that were not asked for are left out.
    pub fn to_json(&self) -> Value {
        let mut filter = Map::new();
        let flags = [
            ("toolsListChanged", self.tools),
            ("promptsListChanged", self.prompts),
            ("resourcesListChanged", self.resources),
        ];
        for (name, _) in flags.iter().filter(|(_, is_wanted)| *is_wanted) {
            filter.insert((*name).to_owned(), true.into());
        }
        for (name, texts) in [("resourceSubscriptions", &self.uris), ("taskIds", &self.tasks)] {
            if !texts.is_empty() {
                filter.insert(name.to_owned(), texts.clone().into());
            }
        }
        filter.into()
    }
}

/// A notification from a client.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientNotification {
    /// The client has read the answer to `initialize`.
    Initialized,
    /// The client no longer waits for the reply to this request.
    Cancelled {
        /// The id of the request.
        id: Id,
        /// The reason, for logs.
        reason: Option<String>,
    },
    /// The list of the client's roots has changed.
    RootsChanged,
    /// Progress of a request of this server.
    Progress,
    /// A notification that has no effect here.
    Other,
}

impl ClientNotification {
    /// Parses a notification. Nothing is an error: a malformed one becomes
    /// [`ClientNotification::Other`] (A31).
    pub fn parse(method: &str, params: &Parameters) -> ClientNotification {
        match method {
            "notifications/initialized" => ClientNotification::Initialized,
            "notifications/cancelled" => match params.get("requestId").and_then(Id::of_value) {
                Some(id) => {
                    let reason = params.get("reason").and_then(Value::as_str);
                    let clean = |text: &str| {
                        let chars = text.chars().filter(|&c| !is_command(c));
                        chars.take(limits::MCP_ID_BYTES_MAX / 4).collect()
                    };
                    ClientNotification::Cancelled { id, reason: reason.map(clean) }
                }
                None => ClientNotification::Other,
            },
            "notifications/roots/list_changed" => ClientNotification::RootsChanged,
            "notifications/progress" => ClientNotification::Progress,
            _ => ClientNotification::Other,
        }
    }
}

/// Returns the parameter that names the object of a method; `None` if the method has none. A header
/// has to repeat that name (B24).
pub(super) fn name_parameter(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

/// True if `method` exists in `version`.
pub(super) fn is_method(method: &str, version: Version) -> bool {
    match method {
        "tools/list"
        | "tools/call"
        | "resources/list"
        | "resources/templates/list"
        | "resources/read"
        | "prompts/list"
        | "prompts/get"
        | "completion/complete" => true,
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => {
            version.era() == Era::Handshake
        }
        "tasks/get" | "tasks/cancel" => version >= Version::V2025_11_25,
        "tasks/result" | "tasks/list" => version == Version::V2025_11_25,
        "server/discover" | "subscriptions/listen" | "tasks/update" => {
            version.era() == Era::Stateless
        }
        _ => false,
    }
}

impl Ask {
    /// Parses a request from the parameters that [`Context::take`] has left.
    ///
    /// # Errors
    /// The method does not exist, the client may not use it, or its parameters are wrong.
    pub(super) fn parse(method: &str, params: Members, context: &Context) -> Result<Ask, McpFault> {
        if !is_method(method, context.version) {
            return Err(McpFault::method_not_found(method, context.version.era()));
        }
        if context.version.era() == Era::Stateless && method.starts_with("tasks/") {
            require_tasks(context)?;
        }
        let mut params = Params::new(params);
        Ok(match method {
            "ping" => Ask::Ping,
            "server/discover" => Ask::Discover,
            "logging/setLevel" => Ask::SetLevel(Level::of(&params.value("level"))?),
            "tools/list" => Ask::ListTools { cursor: params.cursor()? },
            "tools/call" => {
                Ask::CallTool { name: params.name("name")?, arguments: params.object("arguments")? }
            }
            "resources/list" => Ask::ListResources { cursor: params.cursor()? },
            "resources/templates/list" => Ask::ListTemplates { cursor: params.cursor()? },
            "resources/read" => Ask::ReadResource { uri: params.uri()? },
            "resources/subscribe" => Ask::Subscribe { uri: params.uri()? },
            "resources/unsubscribe" => Ask::Unsubscribe { uri: params.uri()? },
            "prompts/list" => Ask::ListPrompts { cursor: params.cursor()? },
            "prompts/get" => {
                Ask::GetPrompt { name: params.name("name")?, arguments: params.texts("arguments")? }
            }
            "completion/complete" => Ask::Complete(params.complete()?),
            "tasks/get" => Ask::GetTask { id: params.name("taskId")? },
            "tasks/result" => Ask::TaskResult { id: params.name("taskId")? },
            "tasks/list" => Ask::ListTasks { cursor: params.cursor()? },
            "tasks/cancel" => Ask::CancelTask { id: params.name("taskId")? },
            "tasks/update" => {
                // They were taken out, like those of any other request.
                Ask::UpdateTask {
                    id: params.name("taskId")?,
                    answers: context.retry.answers.clone(),
                }
            }
            "subscriptions/listen" => Ask::Listen(params.filter(context.client.tasks)?),
            _ => unreachable!("`is_method` accepts no other method"),
        })
    }
}

/// Refuses a client that has not declared the extension for tasks (B37).
fn require_tasks(context: &Context) -> Result<(), McpFault> {
    if context.client.tasks {
        return Ok(());
    }
    let text = format!("the client has not declared the extension {TASKS_EXTENSION}");
    Err(McpFault::missing_capability(text, super::tasks::required_capability()))
}
