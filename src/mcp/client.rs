//! The data that a client declares about itself: its name and its capabilities.

use serde_json::{Map, Value};

use super::McpFault;
use crate::base::plain::is_command;
use crate::limits;
use crate::tool::Abilities;
use crate::wire::members::member;

/// The name of the extension for tasks of the stateless era.
pub const TASKS_EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// The capabilities that a client declares.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientCapabilities {
    /// The questions that it can answer.
    pub abilities: Abilities,
    /// True if the client notifies the server when its roots change.
    pub roots_list_changed: bool,
    /// True if the client supports the stateless era's tasks.
    pub tasks: bool,
    /// True if the client takes results piece by piece.
    pub partial_results: bool,
}

impl ClientCapabilities {
    /// Parses the `capabilities` of a client.
    ///
    /// # Errors
    /// The value is no object, or a member that must be an object is none.
    pub fn parse(value: &Value) -> Result<ClientCapabilities, McpFault> {
        let Value::Object(members) = value else {
            return Err(McpFault::invalid_params("the client's capabilities are not an object"));
        };
        let elicitation = part(members, "elicitation")?;
        let sampling = part(members, "sampling")?;
        let roots = part(members, "roots")?;
        let has = |part: Option<&Map<String, Value>>, name: &str| {
            part.and_then(|part| member(part, name)).is_some_and(|value| !value.is_null())
        };
        let is_true = |part: Option<&Map<String, Value>>, name: &str| {
            part.and_then(|part| member(part, name)) == Some(&Value::Bool(true))
        };
        let abilities = Abilities {
            // An empty `elicitation` means forms, the only kind in early versions.
            forms: elicitation.is_some() && (has(elicitation, "form") || !has(elicitation, "url")),
            urls: has(elicitation, "url"),
            sampling: sampling.is_some(),
            sampling_tools: has(sampling, "tools"),
            roots: roots.is_some(),
        };
        Ok(ClientCapabilities {
            abilities,
            roots_list_changed: is_true(roots, "listChanged"),
            tasks: has(part(members, "extensions")?, TASKS_EXTENSION),
            partial_results: part(members, "partialResults")?.is_some(),
        })
    }
}

fn part<'m>(
    members: &'m Map<String, Value>,
    name: &str,
) -> Result<Option<&'m Map<String, Value>>, McpFault> {
    match member(members, name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(part)) => Ok(Some(part)),
        Some(_) => Err(McpFault::invalid_params(format!(
            "the client's capability `{name}` is not an object"
        ))),
    }
}

/// The name and version that a client declares. They are used for logs only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientInfo {
    /// The program's name.
    pub name: String,
    /// The version.
    pub version: String,
}

impl ClientInfo {
    /// Parses a `clientInfo`.
    ///
    /// # Errors
    /// `name` or `version` is missing or no string.
    pub fn parse(value: &Value) -> Result<ClientInfo, McpFault> {
        let text = |name: &str| -> Result<String, McpFault> {
            let text = value.get(name).and_then(Value::as_str).ok_or_else(|| {
                McpFault::invalid_params(format!("`clientInfo.{name}` is not a string"))
            })?;
            let bytes_max = limits::MCP_ID_BYTES_MAX;
            Ok(text.chars().filter(|&c| !is_command(c)).take(bytes_max / 4).collect())
        };
        Ok(ClientInfo { name: text("name")?, version: text("version")? })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_a_client_declares_can_be_used() {
        // A4, A44, B5.
        let abilities = |value: Value| ClientCapabilities::parse(&value).unwrap().abilities;
        let none = Abilities::default();
        assert_eq!(abilities(json!({})), none);
        assert_eq!(abilities(json!({"sampling": null})), none);
        let forms = Abilities { forms: true, ..none };
        assert_eq!(abilities(json!({"elicitation": {}})), forms);
        assert_eq!(abilities(json!({"elicitation": {"form": {}}})), forms);
        let urls = Abilities { urls: true, ..none };
        assert_eq!(abilities(json!({"elicitation": {"url": {}}})), urls);
        let both = Abilities { forms: true, ..urls };
        assert_eq!(abilities(json!({"elicitation": {"form": {}, "url": {}}})), both);
        let sampling = Abilities { sampling: true, ..none };
        assert_eq!(abilities(json!({"sampling": {}})), sampling);
        let tools = Abilities { sampling_tools: true, ..sampling };
        assert_eq!(abilities(json!({"sampling": {"tools": {}}})), tools);
        assert_eq!(abilities(json!({"roots": {}})), Abilities { roots: true, ..none });
    }

    #[test]
    fn extensions_are_used_only_with_a_client_that_has_them() {
        // B13, B37.
        let parse = |value: Value| ClientCapabilities::parse(&value).unwrap();
        let has = parse(json!({"extensions": {TASKS_EXTENSION: {}}, "partialResults": {}}));
        assert!(has.tasks && has.partial_results);
        let other = parse(json!({"extensions": {"com.example/x": {}}, "tasks": {}}));
        assert!(!other.tasks && !other.partial_results);
        assert!(parse(json!({"roots": {"listChanged": true}})).roots_list_changed);
    }

    #[test]
    fn what_is_no_object_is_no_capability() {
        for value in
            [json!(null), json!([]), json!(1), json!({"roots": true}), json!({"sampling": 1})]
        {
            let fault = ClientCapabilities::parse(&value).unwrap_err();
            assert_eq!(fault.code, -32_602, "{value}");
        }
    }

    #[test]
    fn a_client_has_a_name_and_a_version_without_commands_for_terminals() {
        let info = json!({"name": "a\u{1b}[2Jb", "version": "1", "title": "x"});
        let read = ClientInfo::parse(&info).unwrap();
        assert_eq!(read, ClientInfo { name: "a[2Jb".to_owned(), version: "1".to_owned() });
        for value in [json!(null), json!({"name": "a"}), json!({"name": 1, "version": "1"})] {
            assert_eq!(ClientInfo::parse(&value).unwrap_err().code, -32_602, "{value}");
        }
    }
}
