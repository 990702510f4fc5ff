//! The choice of the era and the version that a server and this client both support.
//!
//! The client tries the stateless era first. A server of the handshake era may react with an error
//! of any kind, with silence, or with the end of the connection. The client then sends
//! `initialize`, on the same connection if it still stands.

use std::fmt;

use serde_json::Value;

use super::dialect::{Dialect, UnsentRequest};
use super::shown;
use crate::base::plain::is_command;
use crate::mcp::{Era, META_SERVER, Version};
use crate::wire::jsonrpc::ErrorObject;

/// The last request of a greeting, which gives the reply its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The era of the request.
    asked: Era,
}

/// The next step of a greeting.
#[derive(Clone, Debug, PartialEq)]
pub enum Greeted {
    /// Send this request next.
    Ask(UnsentRequest),
    /// Both sides agree. In the handshake era the server expects a confirmation:
    /// [`super::initialized`].
    Ready(Dialect),
}

/// The reason why no common version exists, or why a reply is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreetingError(String);

impl fmt::Display for GreetingError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for GreetingError {}

impl Greeting {
    /// Begins with the era that is known from an earlier connection, or else with the stateless
    /// one.
    pub fn begin(known: Option<Era>) -> (Greeting, UnsentRequest) {
        match known {
            None | Some(Era::Stateless) => {
                (Greeting { asked: Era::Stateless }, UnsentRequest::discover())
            }
            Some(Era::Handshake) => {
                (Greeting { asked: Era::Handshake }, UnsentRequest::initialize())
            }
        }
    }

    /// The era of the last request.
    pub fn era(&self) -> Era {
        self.asked
    }

    /// Takes the server's reply.
    ///
    /// # Errors
    /// [`GreetingError`]: no request is left to try.
    pub fn answered(
        &mut self,
        answer: &Result<Value, ErrorObject>,
    ) -> Result<Greeted, GreetingError> {
        match (self.asked, answer) {
            (Era::Stateless, Ok(result)) => match discovered(result) {
                Some(dialect) => Ok(Greeted::Ready(dialect)),
                None => {
                    Ok(Greeted::Ask(self.fall_back().expect("the handshake has not been tried")))
                }
            },
            (Era::Stateless, Err(_)) => {
                Ok(Greeted::Ask(self.fall_back().expect("the handshake has not been tried")))
            }
            (Era::Handshake, Ok(result)) => initialized(result).map(Greeted::Ready),
            (Era::Handshake, Err(error)) => {
                let text = format!(
                    "it refuses to start a session: {} ({})",
                    shown(&error.message),
                    error.code
                );
                Err(GreetingError(text))
            }
        }
    }

    /// Takes the absence of a valid reply. Returns the request to send instead; `None` if none is
    /// left.
    pub fn fall_back(&mut self) -> Option<UnsentRequest> {
        let is_first = self.asked == Era::Stateless;
        self.asked = Era::Handshake;
        is_first.then(UnsentRequest::initialize)
    }
}

fn discovered(result: &Value) -> Option<Dialect> {
    let versions = result.get("supportedVersions")?.as_array()?;
    let speaks = |version: Version| versions.iter().any(|one| one.as_str() == Some(version.text()));
    let version = Version::stateless().filter(|version| speaks(*version)).last()?;
    let capabilities = result.get("capabilities")?.as_object()?;
    let server = result.get("_meta").and_then(|meta| meta.get(META_SERVER));
    let capabilities = Value::Object(capabilities.clone());
    Some(dialect(version, server.unwrap_or(&Value::Null), &capabilities))
}

fn initialized(result: &Value) -> Result<Dialect, GreetingError> {
    let said = result.get("protocolVersion").and_then(Value::as_str);
    let said = said.ok_or_else(|| GreetingError("it names no protocol version".to_owned()))?;
    let version = Version::parse(said).filter(|version| version.era() == Era::Handshake);
    let version = version.ok_or_else(|| {
        GreetingError(format!("it speaks version {:?}, which is not supported", shown(said)))
    })?;
    let capabilities = result.get("capabilities").filter(|value| value.is_object());
    let capabilities = capabilities
        .ok_or_else(|| GreetingError("it does not declare its `capabilities`".to_owned()))?;
    Ok(dialect(version, result.get("serverInfo").unwrap_or(&Value::Null), capabilities))
}

fn dialect(version: Version, server: &Value, capabilities: &Value) -> Dialect {
    const NAME_CHARS_MAX: usize = 128;
    let text = |name: &str| server.get(name).and_then(Value::as_str).unwrap_or("?");
    let server = format!("{} {}", text("name"), text("version"));
    let tools = capabilities.get("tools").filter(|tools| tools.is_object());
    let is_true = |value: Option<&Value>| value == Some(&Value::Bool(true));
    let has_tasks = capabilities.pointer("/tasks/requests/tools/call");
    Dialect {
        version,
        server: server.chars().filter(|&c| !is_command(c)).take(NAME_CHARS_MAX).collect(),
        has_tools: tools.is_some(),
        notifies_changes: is_true(tools.and_then(|tools| tools.get("listChanged"))),
        has_tasks: has_tasks.is_some_and(Value::is_object) && version.era() == Era::Handshake,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(code: i64) -> Result<Value, ErrorObject> {
        Err(ErrorObject { code, message: "no".to_owned(), data: None })
    }

    fn method(greeted: Result<Greeted, GreetingError>) -> &'static str {
        match greeted.unwrap() {
            Greeted::Ask(asked) => asked.method,
            Greeted::Ready(dialect) => panic!("{dialect:?}"),
        }
    }

    #[test]
    fn a_server_of_the_stateless_era_is_asked_nothing_more() {
        // B3, B11: the first request has all required members already.
        let (mut greeting, asked) = Greeting::begin(None);
        assert_eq!(asked.method, "server/discover");
        let meta = &asked.params["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
        assert!(meta["io.modelcontextprotocol/clientCapabilities"].is_object());
        let result = json!({"supportedVersions": ["2027-01-01", "2026-07-28"], "capabilities":
            {"tools": {"listChanged": true}}, "_meta": {META_SERVER: {"name": "n\u{7}",
            "version": "2"}}});
        let Ok(Greeted::Ready(dialect)) = greeting.answered(&Ok(result)) else { panic!() };
        assert_eq!((dialect.version, &*dialect.server), (Version::V2026_07_28, "n 2"));
        assert!(dialect.has_tools && dialect.notifies_changes && !dialect.has_tasks);
    }

    #[test]
    fn whatever_else_it_says_it_may_be_of_the_handshake_era() {
        for answer in [
            error(-32_601),
            error(-32_022),
            error(-32_602),
            error(0),
            Ok(json!({})),
            Ok(json!({"supportedVersions": ["2099-01-01"], "capabilities": {}})),
            Ok(json!({"supportedVersions": "2026-07-28", "capabilities": {}})),
            Ok(json!({"supportedVersions": ["2026-07-28"]})),
        ] {
            let (mut greeting, _) = Greeting::begin(None);
            assert_eq!(method(greeting.answered(&answer)), "initialize", "{answer:?}");
            assert_eq!(greeting.era(), Era::Handshake);
            assert_eq!(greeting.fall_back(), None); // Only once.
        }
    }

    #[test]
    fn a_handshake_ends_with_a_version_that_both_have() {
        let (greeting, asked) = Greeting::begin(Some(Era::Handshake));
        assert_eq!(asked.method, "initialize");
        assert_eq!(asked.params["protocolVersion"], "2025-11-25");
        let answer = |version: Value| {
            Ok(json!({"protocolVersion": version, "capabilities": {"tools": {}, "tasks":
                {"requests": {"tools": {"call": {}}}}}, "serverInfo": {"name": "n"}}))
        };
        for version in Version::ALL {
            let greeted = greeting.clone().answered(&answer(version.text().into()));
            match version.era() {
                Era::Handshake => {
                    let Ok(Greeted::Ready(dialect)) = greeted else { panic!("{greeted:?}") };
                    assert_eq!((dialect.version, &*dialect.server), (version, "n ?"));
                    assert!(dialect.has_tools && dialect.has_tasks && !dialect.notifies_changes);
                }
                Era::Stateless => assert!(greeted.is_err(), "this version was not requested"),
            }
        }
        for bad in [
            answer(json!("1999-01-01")),
            answer(json!(1)),
            Ok(json!({})),
            error(-32_000),
            Ok(json!({"protocolVersion": "2025-11-25", "capabilities": []})),
        ] {
            assert!(greeting.clone().answered(&bad).is_err(), "{bad:?}");
        }
    }
}
