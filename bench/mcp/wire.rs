//! The requests of `bench mcp`, as a client of either era sends them.

use std::net::SocketAddr;

use serde_json::{Value, json};
use streamdoor::mcp::Version;

use super::peer::Era;

/// The path of the endpoint.
pub const PATH: &str = "/mcp";
/// The method of a call.
pub const CALL: &str = "tools/call";
/// The header with the session over HTTP.
pub const SESSION_HEADER: &str = "mcp-session-id";
/// The version that a handshake requests: one that every peer supports.
pub const HANDSHAKE_VERSION: &str = "2025-06-18";
/// The difference between a token and the index of its session. All tokens thus have the same
/// number of digits.
const TOKEN_FIRST: u64 = 1_000;

/// Returns the progress token of a session's call, which is its id, too.
pub fn token_of(index: u32) -> u64 {
    TOKEN_FIRST + u64::from(index)
}

/// Returns the session of a token.
pub fn index_of(token: u64) -> Option<usize> {
    usize::try_from(token.checked_sub(TOKEN_FIRST)?).ok()
}

/// Returns a call of `tool` for session `index`.
pub fn call(era: Era, tool: &str, index: u32, arguments: &Value) -> String {
    let token = token_of(index);
    let meta = match era {
        Era::Stateless => json!({
            "io.modelcontextprotocol/protocolVersion": Version::V2026_07_28.text(),
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
            "progressToken": token,
            "dev.streamdoor/stream": false,
        }),
        Era::Handshake => json!({"progressToken": token}),
    };
    let request = json!({"jsonrpc": "2.0", "id": token, "method": CALL, "params": {
        "name": tool, "arguments": arguments, "_meta": meta,
    }});
    request.to_string()
}

/// The parameters of a message over HTTP.
#[derive(Clone, Copy)]
pub struct Post<'a> {
    /// The address of the server.
    pub address: SocketAddr,
    /// The session, if any.
    pub session: Option<&'a str>,
    /// The era, which decides the headers.
    pub era: Era,
    /// The name of the called tool.
    pub name: Option<&'a str>,
}

impl Post<'_> {
    /// Returns `message`, which is for `method`, as an HTTP request.
    pub fn of(&self, method: &str, message: &str) -> String {
        let Post { address, session, era, name } = *self;
        let mut headers = String::new();
        if era == Era::Stateless {
            let version = Version::V2026_07_28.text();
            headers += &format!("mcp-protocol-version: {version}\r\nmcp-method: {method}\r\n");
            headers += &name.map_or(String::new(), |name| format!("mcp-name: {name}\r\n"));
        }
        if let Some(session) = session {
            headers += &format!("mcp-protocol-version: {HANDSHAKE_VERSION}\r\n");
            headers += &format!("{SESSION_HEADER}: {session}\r\n");
        }
        let length = message.len();
        format!(
            "POST {PATH} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\n{headers}content-length: {length}\
             \r\n\r\n{message}"
        )
    }
}
