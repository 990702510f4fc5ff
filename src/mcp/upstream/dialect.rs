//! The requests and notifications of a client, in the form of each version.

use serde_json::{Map, Value, json};

use crate::mcp::{
    Era, META_CAPABILITIES, META_CLIENT, META_LOG_LEVEL, META_VERSION, Version, headers,
};
use crate::trace::TraceContext;
use crate::wire::{base64, jsonrpc};

/// The terms agreed with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The version of the protocol.
    pub version: Version,
    /// The name and version that the server declares, used for logs only.
    pub server: String,
    /// True if the server declares tools.
    pub has_tools: bool,
    /// True if the server sends a notification when its tools change.
    pub notifies_changes: bool,
    /// True if the server runs calls as tasks of the handshake era.
    pub has_tasks: bool,
}

/// A request that has no id yet.
#[derive(Clone, Debug, PartialEq)]
pub struct UnsentRequest {
    /// The method.
    pub method: &'static str,
    /// The parameters.
    pub params: Map<String, Value>,
    /// Headers for HTTP, in addition to those of every request.
    pub headers: Vec<(String, String)>,
}

impl UnsentRequest {
    fn new(method: &'static str, params: Value) -> UnsentRequest {
        let Value::Object(params) = params else { unreachable!("parameters are objects") };
        UnsentRequest { method, params, headers: Vec::new() }
    }

    /// `server/discover`, with which the stateless era begins.
    pub(super) fn discover() -> UnsentRequest {
        stateless(UnsentRequest::new("server/discover", json!({})))
    }

    /// `initialize`, with which the handshake era begins.
    pub(super) fn initialize() -> UnsentRequest {
        let params = json!({
            "protocolVersion": Version::LATEST_HANDSHAKE.text(),
            "capabilities": capabilities(),
            "clientInfo": client_info(),
        });
        UnsentRequest::new("initialize", params)
    }

    /// Appends the request as a message.
    pub fn write(&self, out: &mut Vec<u8>, id: u64) {
        jsonrpc::write_numbered_request(out, id, self.method, &Value::Object(self.params.clone()));
    }
}

/// Appends `notifications/initialized`.
pub fn initialized(out: &mut Vec<u8>) {
    jsonrpc::write_notification(out, "notifications/initialized", &Value::Null);
}

/// Appends `notifications/cancelled`.
pub fn cancelled(out: &mut Vec<u8>, id: u64) {
    let params = json!({"requestId": id, "reason": "the result is no longer needed"});
    jsonrpc::write_notification(out, "notifications/cancelled", &params);
}

/// The declared capabilities: results piece by piece, if the server sends them (the draft
/// SEP-2998). The server can ask no questions, because the caller may be many clients or a program.
fn capabilities() -> Value {
    json!({ "partialResults": {} })
}

fn client_info() -> Value {
    json!({ "name": "streamdoor", "version": env!("CARGO_PKG_VERSION") })
}

/// Adds the members and headers that every request of the stateless era has (B3, B23, B24).
fn stateless(mut asked: UnsentRequest) -> UnsentRequest {
    let version = Version::LATEST.text();
    let mut meta = match asked.params.remove("_meta") {
        Some(Value::Object(meta)) => meta,
        _ => Map::new(),
    };
    meta.insert(META_VERSION.to_owned(), version.into());
    meta.insert(META_CAPABILITIES.to_owned(), capabilities());
    meta.insert(META_CLIENT.to_owned(), client_info());
    asked.params.insert("_meta".to_owned(), meta.into());
    asked.headers.push(("mcp-protocol-version".to_owned(), version.to_owned()));
    asked.headers.push(("mcp-method".to_owned(), asked.method.to_owned()));
    asked
}

impl Dialect {
    /// The era of the version.
    pub fn era(&self) -> Era {
        self.version.era()
    }

    fn ask(&self, method: &'static str, params: Value) -> UnsentRequest {
        let mut asked = UnsentRequest::new(method, params);
        if self.era() == Era::Stateless {
            return stateless(asked);
        }
        asked.headers.extend(self.version_header());
        asked
    }

    /// The header that every message over HTTP carries once the version is known.
    pub fn version_header(&self) -> Option<(String, String)> {
        (self.version >= Version::V2025_06_18)
            .then(|| ("mcp-protocol-version".to_owned(), self.version.text().to_owned()))
    }

    /// `tools/list`, from this cursor on.
    pub fn list(&self, cursor: Option<&str>) -> UnsentRequest {
        self.ask("tools/list", cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor })))
    }

    /// `tools/call`. The token identifies its progress and its partial results.
    pub fn call(&self, call: &UpstreamCall<'_>) -> UnsentRequest {
        let UpstreamCall { name, arguments, schema, as_task, token, trace } = *call;
        let mut meta = json!({ "progressToken": token, "partialResultToken": token });
        if self.era() == Era::Stateless {
            meta[META_LOG_LEVEL] = "info".into();
        }
        for (name, value) in trace.headers() {
            if let Some(value) = value {
                meta[name] = value.into();
            }
        }
        let mut params = json!({ "name": name, "arguments": arguments, "_meta": meta });
        if as_task {
            params["task"] = json!({});
        }
        let mut asked = self.ask("tools/call", params);
        if self.era() == Era::Stateless {
            asked.headers.push(("mcp-name".to_owned(), header_value(name)));
            asked.headers.extend(declared_headers(schema, arguments));
        }
        asked
    }

    /// `tasks/result` of the handshake era. The server replies when the task has ended.
    pub fn task_result(&self, task: &str) -> UnsentRequest {
        self.ask("tasks/result", json!({ "taskId": task }))
    }

    /// `tasks/cancel` of the handshake era.
    pub fn task_cancel(&self, task: &str) -> UnsentRequest {
        self.ask("tasks/cancel", json!({ "taskId": task }))
    }

    /// `subscriptions/listen` of the stateless era. The server does not reply while notifications
    /// may come.
    pub fn listen(&self) -> UnsentRequest {
        let wanted = json!({ "notifications": { "toolsListChanged": true } });
        self.ask("subscriptions/listen", wanted)
    }
}

/// One call of a tool.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamCall<'a> {
    /// The name of the tool on its server.
    pub name: &'a str,
    /// The arguments, checked by the schema.
    pub arguments: &'a Value,
    /// The server's schema of the arguments, which may declare some of them for headers.
    pub schema: &'a Value,
    /// True if the server runs this tool only as a task.
    pub as_task: bool,
    /// The token of the call's progress and partial results.
    pub token: u64,
    /// The trace that the call belongs to.
    pub trace: &'a TraceContext,
}

/// Returns the headers of the arguments that the schema declares for headers (B25).
fn declared_headers(schema: &Value, arguments: &Value) -> Vec<(String, String)> {
    let Ok(declared) = headers::declared(schema) else { return Vec::new() };
    let header = |one: headers::Declared| {
        let value = one.path.iter().try_fold(arguments, |value, name| value.get(name))?;
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            _ => return None,
        };
        Some((format!("mcp-param-{}", one.name.to_ascii_lowercase()), header_value(&text)))
    };
    declared.into_iter().filter_map(header).collect()
}

/// Returns a text as a header's value: in base 64 if it cannot stand there as it is.
fn header_value(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| matches!(byte, 0x20..0x7F))
        && text.trim_matches(' ').len() == text.len()
        && !text.is_empty()
        && !text.starts_with("=?");
    if is_plain {
        return text.to_owned();
    }
    let mut encoded = b"=?base64?".to_vec();
    base64::write(&mut encoded, text.as_bytes());
    encoded.extend_from_slice(b"?=");
    String::from_utf8(encoded).expect("base 64 is ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dialect(version: Version) -> Dialect {
        let server = "s 1".to_owned();
        Dialect { version, server, has_tools: true, notifies_changes: true, has_tasks: true }
    }

    fn call(version: Version, as_task: bool) -> UnsentRequest {
        let arguments = json!({"region": "zürich", "n": 7, "deep": {"flag": true}});
        let header = |name: &str, of: &str| json!({"type": of, "x-mcp-header": name});
        let schema = json!({"type": "object", "properties": {
            "region": header("Region", "string"), "n": header("N", "integer"),
            "absent": header("Absent", "string"),
            "deep": {"type": "object", "properties": {"flag": header("Flag", "boolean")}}}});
        let trace = TraceContext::parse(
            Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            None,
            None,
        );
        let call = UpstreamCall {
            name: "t",
            arguments: &arguments,
            schema: &schema,
            as_task,
            token: 9,
            trace: &trace,
        };
        dialect(version).call(&call)
    }

    #[test]
    fn a_call_has_what_its_version_wants() {
        let old = call(Version::V2025_11_25, true);
        assert_eq!(old.params["task"], json!({}));
        let meta = &old.params["_meta"];
        assert_eq!((&meta["progressToken"], &meta["partialResultToken"]), (&json!(9), &json!(9)));
        assert!(meta["traceparent"].as_str().unwrap().starts_with("00-0af7651916cd43dd"));
        assert_eq!(meta.get(META_VERSION), None);
        let version = ("mcp-protocol-version".to_owned(), "2025-11-25".to_owned());
        assert_eq!(old.headers, [version]);
        assert_eq!(call(Version::V2024_11_05, false).headers, []);

        let new = call(Version::V2026_07_28, false);
        assert_eq!(new.params.get("task"), None);
        let meta = &new.params["_meta"];
        assert_eq!(
            (&meta[META_VERSION], &meta[META_LOG_LEVEL]),
            (&json!("2026-07-28"), &json!("info"))
        );
        let headers: Vec<(&str, &str)> = new.headers.iter().map(|(n, v)| (&**n, &**v)).collect();
        assert_eq!(
            headers,
            [
                // B23, B24, B25.
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", "tools/call"),
                ("mcp-name", "t"),
                ("mcp-param-region", "=?base64?esO8cmljaA==?="),
                ("mcp-param-n", "7"),
                ("mcp-param-flag", "true"),
            ]
        );
    }

    #[test]
    fn what_cannot_stand_in_a_header_stands_there_in_base_64() {
        assert_eq!(header_value("a b/c"), "a b/c");
        for text in ["", " a", "a\r\nx: y", "é", "=?base64?aa?="] {
            let value = header_value(text);
            assert!(value.starts_with("=?base64?") && value.ends_with("?="), "{value}");
        }
    }

    #[test]
    fn requests_have_numbers_and_notifications_have_none() {
        let mut out = Vec::new();
        dialect(Version::LATEST_HANDSHAKE).list(Some("c")).write(&mut out, 7);
        let said: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            said,
            json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list",
            "params": {"cursor": "c"}})
        );
        out.clear();
        cancelled(&mut out, 7);
        let said: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&said["params"]["requestId"], said.get("id")), (&json!(7), None));
    }
}
