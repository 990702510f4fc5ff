//! Everything that a client can ask, and everything that it can tell, checked.

use serde_json::{Map, Value};

use super::client::TASKS_EXTENSION;
use super::params::Params;
use super::{Context, Era, Fault, Level, ServerInfo, Version};
use crate::base::plain::is_command;
use crate::limits;
use crate::wire::jsonrpc::{ErrorObject, Id};

/// What a message is.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A request: it is answered exactly once.
    Ask(Box<Context>, Ask),
    /// A notification: it is never answered.
    Told(Told),
    /// The answer to a request of ours.
    Reply {
        /// To which.
        id: Id,
        /// The answer: an object.
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
        /// From where on.
        cursor: Option<String>,
    },
    /// `tools/call`
    CallTool {
        /// Which.
        name: String,
        /// With what.
        arguments: Map<String, Value>,
    },
    /// `resources/list`
    ListResources {
        /// From where on.
        cursor: Option<String>,
    },
    /// `resources/templates/list`
    ListTemplates {
        /// From where on.
        cursor: Option<String>,
    },
    /// `resources/read`
    ReadResource {
        /// Which.
        uri: String,
    },
    /// `resources/subscribe`
    Subscribe {
        /// To which.
        uri: String,
    },
    /// `resources/unsubscribe`
    Unsubscribe {
        /// From which.
        uri: String,
    },
    /// `prompts/list`
    ListPrompts {
        /// From where on.
        cursor: Option<String>,
    },
    /// `prompts/get`
    GetPrompt {
        /// Which.
        name: String,
        /// With what: each a text.
        arguments: Map<String, Value>,
    },
    /// `completion/complete`
    Complete(Complete),
    /// `tasks/get`
    GetTask {
        /// Which.
        id: String,
    },
    /// `tasks/result`
    TaskResult {
        /// Of which.
        id: String,
    },
    /// `tasks/list`
    ListTasks {
        /// From where on.
        cursor: Option<String>,
    },
    /// `tasks/cancel`
    CancelTask {
        /// Which.
        id: String,
    },
    /// `tasks/update`
    UpdateTask {
        /// Which.
        id: String,
        /// Answers to what it has asked, by key. What is no object was left out.
        answers: Map<String, Value>,
    },
    /// `subscriptions/listen`
    Listen(Filter),
}

/// What is to be completed.
#[derive(Clone, Debug, PartialEq)]
pub struct Complete {
    /// Of what it is an argument.
    pub target: Target,
    /// Its name.
    pub argument: String,
    /// What is typed so far.
    pub value: String,
    /// The arguments that are there already: each a text.
    pub context: Map<String, Value>,
}

/// Of what an argument is to be completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Of the prompt of this name; where there is none, of the tool.
    Prompt(String),
    /// Of the template of resources that is spelled so.
    Resource(String),
    /// Of the tool of this name: `ref/tool`, our own.
    Tool(String),
}

/// What `subscriptions/listen` wants to be told of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Other tools.
    pub tools: bool,
    /// Other prompts.
    pub prompts: bool,
    /// Other resources.
    pub resources: bool,
    /// Changes of these resources.
    pub uris: Vec<String>,
    /// Changes of these tasks.
    pub tasks: Vec<String>,
}

impl Filter {
    /// The part of it that this server tells of (B29).
    #[must_use]
    pub fn honoured(mut self, server: &ServerInfo) -> Filter {
        self.tools &= server.tells_tools;
        self.prompts &= server.has_prompts && server.tells_prompts;
        self.resources &= server.tells_resources;
        self
    }

    /// As it is acknowledged: what is not wanted is left out.
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

/// A notification.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// The client has read the answer to `initialize`.
    Initialized,
    /// It does not wait for the answer to this request any more.
    Cancelled {
        /// Which.
        id: Id,
        /// Why, for logs.
        reason: Option<String>,
    },
    /// Its user works in other folders.
    RootsChanged,
    /// How far it is with a request of ours.
    Progress,
    /// Something that concerns nobody here.
    Other,
}

impl Told {
    /// What a notification tells. Nothing is an error: what makes no sense is told nobody (A31).
    pub fn parse(method: &str, params: &Map<String, Value>) -> Told {
        match method {
            "notifications/initialized" => Told::Initialized,
            "notifications/cancelled" => match params.get("requestId").and_then(Id::of_value) {
                Some(id) => {
                    let reason = params.get("reason").and_then(Value::as_str);
                    let clean = |text: &str| {
                        let chars = text.chars().filter(|&c| !is_command(c));
                        chars.take(limits::MCP_ID_BYTES_MAX / 4).collect()
                    };
                    Told::Cancelled { id, reason: reason.map(clean) }
                }
                None => Told::Other,
            },
            "notifications/roots/list_changed" => Told::RootsChanged,
            "notifications/progress" => Told::Progress,
            _ => Told::Other,
        }
    }
}

/// The methods that name one thing, and the parameter that does: a header has to say it too (B24).
pub(super) fn name_parameter(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

/// Is this a method of that version at all?
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
    /// What a request asks, of the parameters that [`Context::take`] has left.
    ///
    /// # Errors
    /// There is no such method, the client may not use it, or its parameters are wrong.
    pub(super) fn parse(
        method: &str,
        params: Map<String, Value>,
        context: &Context,
    ) -> Result<Ask, Fault> {
        if !is_method(method, context.version) {
            return Err(Fault::method_not_found(method, context.version.era()));
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
                // They were taken out as those of any other request.
                Ask::UpdateTask {
                    id: params.name("taskId")?,
                    answers: context.retry.answers.clone(),
                }
            }
            "subscriptions/listen" => Ask::Listen(params.filter(context.client.tasks)?),
            _ => unreachable!("`is_method` knows no other"),
        })
    }
}

/// B37: who has not said that it knows tasks has none.
fn require_tasks(context: &Context) -> Result<(), Fault> {
    if context.client.tasks {
        return Ok(());
    }
    let text = format!("the client has not declared the extension {TASKS_EXTENSION}");
    Err(Fault::missing_capability(text, super::tasks::required_capability()))
}
