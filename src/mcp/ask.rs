//! Everything that a client can ask, and everything that it can tell, checked.

use serde_json::{Map, Value};

use super::client::TASKS_EXTENSION;
use super::{Context, Era, Fault, Level, ServerInfo, Version};
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
                        let chars = text.chars().filter(|c| !c.is_control());
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
        let mut params = Params(params);
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

/// Parameters of one request, taken one by one. What nobody takes is ignored.
struct Params(Map<String, Value>);

impl Params {
    fn value(&mut self, name: &str) -> Value {
        self.0.remove(name).unwrap_or(Value::Null)
    }

    fn text(&mut self, name: &str, bytes_max: usize) -> Result<String, Fault> {
        match self.value(name) {
            Value::String(text) if (1..=bytes_max).contains(&text.len()) => Ok(text),
            _ => {
                let text = format!("`{name}` is not a string of 1 to {bytes_max} bytes");
                Err(Fault::invalid_params(text))
            }
        }
    }

    fn name(&mut self, name: &str) -> Result<String, Fault> {
        self.text(name, limits::MCP_ID_BYTES_MAX)
    }

    /// A42: an address has a scheme, and nothing that is not written in one.
    fn uri(&mut self) -> Result<String, Fault> {
        let uri = self.text("uri", limits::MCP_URI_BYTES_MAX)?;
        match is_uri(&uri) {
            true => Ok(uri),
            false => Err(Fault::invalid_params("`uri` is not a URI")),
        }
    }

    fn cursor(&mut self) -> Result<Option<String>, Fault> {
        match self.value("cursor") {
            Value::Null => Ok(None),
            Value::String(cursor) if cursor.len() <= limits::MCP_URI_BYTES_MAX => Ok(Some(cursor)),
            _ => Err(Fault::invalid_params("`cursor` is not one of ours")),
        }
    }

    fn object(&mut self, name: &str) -> Result<Map<String, Value>, Fault> {
        match self.value(name) {
            Value::Null => Ok(Map::new()),
            Value::Object(members) => Ok(members),
            _ => Err(Fault::invalid_params(format!("`{name}` is not an object"))),
        }
    }

    fn texts(&mut self, name: &str) -> Result<Map<String, Value>, Fault> {
        let members = self.object(name)?;
        match members.iter().find(|(_, value)| !value.is_string()) {
            None => Ok(members),
            Some((member, _)) => {
                Err(Fault::invalid_params(format!("`{name}.{member}` is not a string")))
            }
        }
    }

    fn complete(mut self) -> Result<Complete, Fault> {
        let mut reference = Params(self.object("ref")?);
        let target = match reference.value("type").as_str() {
            Some("ref/prompt") => Target::Prompt(reference.name("name")?),
            Some("ref/tool") => Target::Tool(reference.name("name")?),
            Some("ref/resource") => {
                Target::Resource(reference.text("uri", limits::MCP_URI_BYTES_MAX)?)
            }
            _ => {
                let text = "`ref.type` is none of ref/prompt, ref/resource, ref/tool";
                return Err(Fault::invalid_params(text));
            }
        };
        let argument = Params(self.object("argument")?);
        let text = |name: &str| match argument.0.get(name) {
            Some(Value::String(text)) if text.len() <= limits::MCP_URI_BYTES_MAX => {
                Ok(text.clone())
            }
            _ => Err(Fault::invalid_params(format!("`argument.{name}` is not a short string"))),
        };
        let (argument, value) = (text("name")?, text("value")?);
        let context = Params(self.object("context")?).texts("arguments")?;
        Ok(Complete { target, argument, value, context })
    }

    fn filter(mut self, has_tasks: bool) -> Result<Filter, Fault> {
        let Value::Object(wanted) = self.value("notifications") else {
            return Err(Fault::invalid_params("`notifications` is not an object"));
        };
        let flag = |name: &str| match wanted.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(Fault::invalid_params(format!("`notifications.{name}` is no boolean"))),
        };
        let texts = |name: &str| list_of_texts(&wanted, name);
        let uris = texts("resourceSubscriptions")?;
        if uris.iter().any(|uri| !is_uri(uri)) {
            let text = "`notifications.resourceSubscriptions` has something that is not a URI";
            return Err(Fault::invalid_params(text));
        }
        let mut tasks = texts("taskIds")?;
        tasks.retain(|_| has_tasks); // What cannot be had is not acknowledged.
        Ok(Filter {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            uris,
            tasks,
        })
    }
}

fn list_of_texts(wanted: &Map<String, Value>, name: &str) -> Result<Vec<String>, Fault> {
    let error = || {
        let (count_max, bytes_max) = (limits::MCP_SUBSCRIPTIONS_MAX, limits::MCP_URI_BYTES_MAX);
        let text = format!(
            "`notifications.{name}` is not a list of at most {count_max} strings of at most \
             {bytes_max} bytes"
        );
        Fault::invalid_params(text)
    };
    let values = match wanted.get(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(values)) if values.len() <= limits::MCP_SUBSCRIPTIONS_MAX => values,
        Some(_) => return Err(error()),
    };
    let mut texts = Vec::with_capacity(values.len());
    for value in values {
        match value.as_str().filter(|text| text.len() <= limits::MCP_URI_BYTES_MAX) {
            Some(text) if texts.iter().any(|other| other == text) => {}
            Some(text) => texts.push(text.to_owned()),
            None => return Err(error()),
        }
    }
    Ok(texts)
}

/// A scheme, a colon, and characters that are not blank.
fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(is_scheme_char)
        && !rest.is_empty()
        && !rest.chars().any(|c| c.is_control() || c.is_whitespace())
}
