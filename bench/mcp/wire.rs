//! The requests of `bench mcp`, as a client of the stateless era sends them.

use std::net::SocketAddr;

use serde_json::{Value, json};
use streamdoor::mcp::Version;

/// The path of the endpoint.
pub const PATH: &str = "/mcp";
/// Tokens are so many above the index of a session: all have as many digits.
const TOKEN_FIRST: u64 = 1_000;

/// The token of the progress of a session's call, which is its id, too.
pub fn token_of(index: u32) -> u64 {
    TOKEN_FIRST + u64::from(index)
}

/// The session of a token.
pub fn index_of(token: u64) -> Option<usize> {
    usize::try_from(token.checked_sub(TOKEN_FIRST)?).ok()
}

/// A call of `tool` for session `index`.
pub fn call(tool: &str, index: u32, arguments: &Value) -> String {
    let token = token_of(index);
    let request = json!({"jsonrpc": "2.0", "id": token, "method": "tools/call", "params": {
        "name": tool,
        "arguments": arguments,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": Version::V2026_07_28.text(),
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
            "progressToken": token,
            "dev.streamdoor/stream": false,
        },
    }});
    request.to_string()
}

/// The same as a request of HTTP.
pub fn post(address: SocketAddr, tool: &str, call: &str) -> String {
    let (version, length) = (Version::V2026_07_28.text(), call.len());
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: {version}\r\n\
         mcp-method: tools/call\r\nmcp-name: {tool}\r\ncontent-length: {length}\r\n\r\n{call}"
    )
}
