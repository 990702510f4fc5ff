//! Errors for clients: a code, a sentence and an HTTP status.
//!
//! The codes of the stateless era are the specification's own. A new code of this server would have
//! to lie outside of the range that JSON-RPC reserves.

use std::fmt;

use serde_json::{Value, json};

use super::{Era, Version};
use crate::wire::jsonrpc::{self, Id, Malformed};

/// The error codes.
pub mod codes {
    pub use crate::wire::jsonrpc::{INVALID_REQUEST, PARSE_ERROR};
    /// The method does not exist, or this client may not use it.
    pub const METHOD_NOT_FOUND: i64 = -32_601;
    /// The parameters are wrong, or name an object that does not exist.
    pub const INVALID_PARAMS: i64 = -32_602;
    /// An internal error.
    pub const INTERNAL: i64 = -32_603;
    /// The resource does not exist (handshake era).
    pub const RESOURCE_NOT_FOUND: i64 = -32_002;
    /// The headers contradict the body (stateless era).
    pub const HEADER_MISMATCH: i64 = -32_020;
    /// The client has not declared a required capability (stateless era).
    pub const MISSING_CAPABILITY: i64 = -32_021;
    /// The server does not support this version of the protocol (stateless era).
    pub const UNSUPPORTED_VERSION: i64 = -32_022;
    /// The server has no room for more, and the client can try again. This code is our own.
    pub const BUSY: i64 = -31_001;
}

/// An error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpFault {
    /// The code for programs: one of [`codes`].
    pub code: i64,
    /// The sentence for people.
    pub message: String,
    /// Further data.
    pub data: Option<Value>,
    /// The HTTP status of the reply.
    pub status: u16,
}

impl McpFault {
    /// Returns an error with the HTTP status 200.
    pub fn new(code: i64, message: impl Into<String>) -> McpFault {
        McpFault { code, message: message.into(), data: None, status: 200 }
    }

    /// Sets the HTTP status.
    #[must_use]
    pub fn status(mut self, status: u16) -> McpFault {
        self.status = status;
        self
    }

    /// Sets the further data.
    #[must_use]
    pub fn data(mut self, data: Value) -> McpFault {
        self.data = Some(data);
        self
    }

    /// The message is not valid in its place.
    pub fn invalid_request(message: impl Into<String>) -> McpFault {
        McpFault::new(codes::INVALID_REQUEST, message).status(400)
    }

    /// The method does not exist.
    pub fn method_not_found(method: &str, era: Era) -> McpFault {
        let status = if era == Era::Stateless { 404 } else { 200 };
        McpFault::new(codes::METHOD_NOT_FOUND, format!("method not found: {method}")).status(status)
    }

    /// A parameter is wrong, or names an object that does not exist.
    pub fn invalid_params(message: impl Into<String>) -> McpFault {
        McpFault::new(codes::INVALID_PARAMS, message)
    }

    /// The resource does not exist.
    pub fn resource_not_found(version: Version, uri: &str) -> McpFault {
        let code = match version.era() {
            Era::Handshake => codes::RESOURCE_NOT_FOUND,
            Era::Stateless => codes::INVALID_PARAMS,
        };
        McpFault::new(code, "resource not found").data(json!({ "uri": uri }))
    }

    /// The task does not exist, no longer exists, or belongs to another principal.
    pub fn task_not_found() -> McpFault {
        McpFault::invalid_params("the task does not exist")
    }

    /// A header contradicts the body.
    pub fn header_mismatch(message: impl Into<String>) -> McpFault {
        McpFault::new(codes::HEADER_MISMATCH, message).status(400)
    }

    /// The client has not declared a required capability.
    pub fn missing_capability(message: impl Into<String>, required: Value) -> McpFault {
        let data = json!({ "requiredCapabilities": required });
        McpFault::new(codes::MISSING_CAPABILITY, message).data(data).status(400)
    }

    /// The server does not support this version.
    pub fn unsupported_version(requested: &str) -> McpFault {
        let supported: Vec<&str> = Version::stateless().map(Version::text).collect();
        let data = json!({ "supported": supported, "requested": requested });
        let text = "the protocol version is not supported";
        McpFault::new(codes::UNSUPPORTED_VERSION, text).data(data).status(400)
    }

    /// The server has no room for more.
    pub fn busy(message: impl Into<String>) -> McpFault {
        McpFault::new(codes::BUSY, message).status(503)
    }

    /// An internal error. The message reveals no internals.
    pub fn internal(message: impl Into<String>) -> McpFault {
        McpFault::new(codes::INTERNAL, message)
    }

    /// Appends the error as a message, without an id if the request could not be parsed.
    pub fn write(&self, out: &mut Vec<u8>, id: Option<&Id>) {
        jsonrpc::write_error(out, id, self.code, &self.message, self.data.as_ref());
    }

    /// Returns the error of an error object, with the HTTP status 200.
    pub fn parse(error: &Value) -> Option<McpFault> {
        let mut fault = McpFault::new(error["code"].as_i64()?, error["message"].as_str()?);
        fault.data = error.get("data").cloned();
        Some(fault)
    }

    /// The error object, which a failed task of the stateless era holds.
    pub fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }
}

impl From<Malformed> for McpFault {
    fn from(malformed: Malformed) -> McpFault {
        McpFault::new(malformed.code, malformed.message).status(400)
    }
}

impl fmt::Display for McpFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for McpFault {}
