//! The parameters of requests. Each one is taken by its name, and checked.

use serde_json::{Map, Value};

use super::McpFault;
use super::ask::{Complete, CompletionTarget, Filter};
use crate::limits;
use crate::wire::members::Members;

/// The parameters of one request, taken one by one. Parameters that are never taken are ignored.
pub(super) struct Params(Members);

impl Params {
    pub fn new(params: Members) -> Params {
        Params(params)
    }

    pub fn value(&mut self, name: &str) -> Value {
        self.0.take(name).unwrap_or(Value::Null)
    }

    fn text(&mut self, name: &str, bytes_max: usize) -> Result<String, McpFault> {
        match self.value(name) {
            Value::String(text) if (1..=bytes_max).contains(&text.len()) => Ok(text),
            _ => {
                let text = format!("`{name}` is not a string of 1 to {bytes_max} bytes");
                Err(McpFault::invalid_params(text))
            }
        }
    }

    pub fn name(&mut self, name: &str) -> Result<String, McpFault> {
        self.text(name, limits::MCP_ID_BYTES_MAX)
    }

    /// Takes `uri`, which has to be a URI (A42).
    pub fn uri(&mut self) -> Result<String, McpFault> {
        let uri = self.text("uri", limits::MCP_URI_BYTES_MAX)?;
        match is_uri(&uri) {
            true => Ok(uri),
            false => Err(McpFault::invalid_params("`uri` is not a URI")),
        }
    }

    pub fn cursor(&mut self) -> Result<Option<String>, McpFault> {
        match self.value("cursor") {
            Value::Null => Ok(None),
            Value::String(cursor) if cursor.len() <= limits::MCP_URI_BYTES_MAX => Ok(Some(cursor)),
            _ => Err(McpFault::invalid_params("`cursor` was not issued by this server")),
        }
    }

    pub fn object(&mut self, name: &str) -> Result<Map<String, Value>, McpFault> {
        match self.value(name) {
            Value::Null => Ok(Map::new()),
            Value::Object(members) => Ok(members),
            _ => Err(McpFault::invalid_params(format!("`{name}` is not an object"))),
        }
    }

    pub fn texts(&mut self, name: &str) -> Result<Map<String, Value>, McpFault> {
        let members = self.object(name)?;
        match members.iter().find(|(_, value)| !value.is_string()) {
            None => Ok(members),
            Some((member, _)) => {
                Err(McpFault::invalid_params(format!("`{name}.{member}` is not a string")))
            }
        }
    }

    pub fn complete(mut self) -> Result<Complete, McpFault> {
        let mut reference = Params(self.object("ref")?.into());
        let target = match reference.value("type").as_str() {
            Some("ref/prompt") => CompletionTarget::Prompt(reference.name("name")?),
            Some("ref/tool") => CompletionTarget::Tool(reference.name("name")?),
            Some("ref/resource") => {
                CompletionTarget::Resource(reference.text("uri", limits::MCP_URI_BYTES_MAX)?)
            }
            _ => {
                let text = "`ref.type` must be one of ref/prompt, ref/resource, ref/tool";
                return Err(McpFault::invalid_params(text));
            }
        };
        let argument = Params(self.object("argument")?.into());
        let text = |name: &str| match argument.0.get(name) {
            Some(Value::String(text)) if text.len() <= limits::MCP_URI_BYTES_MAX => {
                Ok(text.clone())
            }
            _ => Err(McpFault::invalid_params(format!("`argument.{name}` is not a short string"))),
        };
        let (argument, value) = (text("name")?, text("value")?);
        let context = Params(self.object("context")?.into()).texts("arguments")?;
        Ok(Complete { target, argument, value, context })
    }

    pub fn filter(mut self, has_tasks: bool) -> Result<Filter, McpFault> {
        let Value::Object(wanted) = self.value("notifications") else {
            return Err(McpFault::invalid_params("`notifications` is not an object"));
        };
        let flag = |name: &str| match wanted.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => {
                Err(McpFault::invalid_params(format!("`notifications.{name}` is not a boolean")))
            }
        };
        let texts = |name: &str| list_of_texts(&wanted, name);
        let uris = texts("resourceSubscriptions")?;
        if uris.iter().any(|uri| !is_uri(uri)) {
            let text = "`notifications.resourceSubscriptions` has an item that is not a URI";
            return Err(McpFault::invalid_params(text));
        }
        let mut tasks = texts("taskIds")?;
        tasks.retain(|_| has_tasks); // A task that cannot exist is not acknowledged.
        Ok(Filter {
            tools: flag("toolsListChanged")?,
            prompts: flag("promptsListChanged")?,
            resources: flag("resourcesListChanged")?,
            uris,
            tasks,
        })
    }
}

fn list_of_texts(wanted: &Map<String, Value>, name: &str) -> Result<Vec<String>, McpFault> {
    let error = || {
        let (count_max, bytes_max) = (limits::MCP_SUBSCRIPTIONS_MAX, limits::MCP_URI_BYTES_MAX);
        let text = format!(
            "`notifications.{name}` is not a list of at most {count_max} strings of at most \
             {bytes_max} bytes"
        );
        McpFault::invalid_params(text)
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

/// True if `text` is a scheme, a colon, and characters without blanks.
fn is_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let is_scheme_char = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(is_scheme_char)
        && !rest.is_empty()
        && !rest.chars().any(|c| c.is_control() || c.is_whitespace())
}
