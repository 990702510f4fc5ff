//! For tests: messages, contexts and servers.

use serde_json::{Value, json};

use super::{
    Ask, ClientCapabilities, Context, Incoming, META_CAPABILITIES, META_CLIENT, META_VERSION,
    McpFault, McpSession, ServerInfo, Version, admit,
};
use crate::wire::jsonrpc::{self, RpcMessage};

/// Parses a message.
pub fn message(value: &Value) -> RpcMessage {
    jsonrpc::parse(value.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// Returns a request with this id.
pub fn request(id: impl Into<Value>, method: &str, params: Value) -> RpcMessage {
    message(&json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}))
}

/// Returns a notification.
pub fn notification(method: &str, params: Value) -> RpcMessage {
    message(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

/// Opens a session of this version whose client has these capabilities.
pub fn session_with(version: Version, capabilities: Value, server: &ServerInfo) -> McpSession {
    let params = json!({
        "protocolVersion": version.text(),
        "capabilities": capabilities,
        "clientInfo": {"name": "test", "version": "1"},
    });
    let (mut session, _) = McpSession::open(&request(0, "initialize", params), server).unwrap();
    let told = session.receive(notification("notifications/initialized", json!({})), None);
    assert!(told.is_ok());
    session
}

/// Opens a session of this version whose client has no capabilities.
pub fn session(version: Version) -> McpSession {
    session_with(version, json!({}), &ServerInfo::default())
}

/// Parses a request in this version, of a client with these capabilities.
pub fn ask_with(
    version: Version,
    capabilities: Value,
    method: &str,
    params: Value,
) -> Result<(Context, Ask), McpFault> {
    let incoming = match version {
        Version::V2026_07_28 => {
            let request = request(7, method, modern(params, capabilities));
            admit(request, None, &|_| None)?
        }
        _ => {
            let server = ServerInfo { lists_tasks: true, ..Default::default() };
            let mut session = session_with(version, capabilities, &server);
            session.receive(request(7, method, params), None)?
        }
    };
    match incoming {
        Incoming::Ask(context, ask) => Ok((*context, ask)),
        other => panic!("{other:?}"),
    }
}

/// Parses a request in this version, of a client without capabilities.
pub fn ask(version: Version, method: &str, params: Value) -> Result<Ask, McpFault> {
    ask_with(version, json!({}), method, params).map(|(_, ask)| ask)
}

/// Adds the members that every request of the stateless era has.
pub fn modern(mut params: Value, capabilities: Value) -> Value {
    if params.get("_meta").is_none() {
        params["_meta"] = json!({});
    }
    let meta = &mut params["_meta"];
    meta[META_VERSION] = Version::LATEST.text().into();
    meta[META_CAPABILITIES] = capabilities;
    meta[META_CLIENT] = json!({"name": "test", "version": "1"});
    params
}

/// The context of a call in this version, of a client with these capabilities.
pub fn context(version: Version, capabilities: Value, mut params: Value) -> Context {
    params["name"] = "x".into();
    ask_with(version, capabilities, "tools/call", params).unwrap().0
}

/// Parses capabilities.
pub fn client(capabilities: Value) -> ClientCapabilities {
    ClientCapabilities::parse(&capabilities).unwrap()
}
