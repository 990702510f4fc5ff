//! What a client is told when something cannot be done: a code, a sentence, and a status of HTTP.
//!
//! Codes of the stateless era are the specification's own; a new one of ours would have to lie
//! outside of what JSON-RPC reserves.

use std::fmt;

use serde_json::{Value, json};

use super::{Era, Version};
use crate::wire::jsonrpc::{self, Id, Malformed};

/// What codes mean.
pub mod codes {
    pub use crate::wire::jsonrpc::{INVALID_REQUEST, PARSE_ERROR};
    /// No such method, or none that this client can have.
    pub const METHOD_NOT_FOUND: i64 = -32_601;
    /// The parameters are wrong, or name what is not there.
    pub const INVALID_PARAMS: i64 = -32_602;
    /// Our fault.
    pub const INTERNAL: i64 = -32_603;
    /// The handshake era's: no such resource.
    pub const RESOURCE_NOT_FOUND: i64 = -32_002;
    /// The stateless era's: headers say something else than the body.
    pub const HEADER_MISMATCH: i64 = -32_020;
    /// The stateless era's: the client has not said that it can do what is needed.
    pub const MISSING_CAPABILITY: i64 = -32_021;
    /// The stateless era's: another version of the protocol is needed.
    pub const UNSUPPORTED_VERSION: i64 = -32_022;
    /// Our own: there is no room for more; it can be tried again.
    pub const BUSY: i64 = -31_001;
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// For programs: one of [`codes`].
    pub code: i64,
    /// For people: a sentence.
    pub message: String,
    /// More of it.
    pub data: Option<Value>,
    /// The status of HTTP that goes with it.
    pub status: u16,
}

impl Fault {
    /// With the status 200: an answer like any other.
    pub fn new(code: i64, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into(), data: None, status: 200 }
    }

    /// With another status.
    #[must_use]
    pub fn status(mut self, status: u16) -> Fault {
        self.status = status;
        self
    }

    /// With more to say.
    #[must_use]
    pub fn data(mut self, data: Value) -> Fault {
        self.data = Some(data);
        self
    }

    /// The message makes no sense where it stands.
    pub fn invalid_request(message: impl Into<String>) -> Fault {
        Fault::new(codes::INVALID_REQUEST, message).status(400)
    }

    /// There is no such method.
    pub fn method_not_found(method: &str, era: Era) -> Fault {
        let status = if era == Era::Stateless { 404 } else { 200 };
        Fault::new(codes::METHOD_NOT_FOUND, format!("method not found: {method}")).status(status)
    }

    /// A parameter is wrong, or names what is not there.
    pub fn invalid_params(message: impl Into<String>) -> Fault {
        Fault::new(codes::INVALID_PARAMS, message)
    }

    /// There is no such resource.
    pub fn resource_not_found(version: Version, uri: &str) -> Fault {
        let code = match version.era() {
            Era::Handshake => codes::RESOURCE_NOT_FOUND,
            Era::Stateless => codes::INVALID_PARAMS,
        };
        Fault::new(code, "resource not found").data(json!({ "uri": uri }))
    }

    /// There is no such task, not any more, or it is somebody else's.
    pub fn task_not_found() -> Fault {
        Fault::invalid_params("there is no such task")
    }

    /// A header says something else than the body.
    pub fn header_mismatch(message: impl Into<String>) -> Fault {
        Fault::new(codes::HEADER_MISMATCH, message).status(400)
    }

    /// The client has not said that it can do what is needed.
    pub fn missing_capability(message: impl Into<String>, required: Value) -> Fault {
        let data = json!({ "requiredCapabilities": required });
        Fault::new(codes::MISSING_CAPABILITY, message).data(data).status(400)
    }

    /// This version is not spoken.
    pub fn unsupported_version(requested: &str) -> Fault {
        let supported: Vec<&str> = Version::stateless().map(Version::text).collect();
        let data = json!({ "supported": supported, "requested": requested });
        let text = "the protocol version is not supported";
        Fault::new(codes::UNSUPPORTED_VERSION, text).data(data).status(400)
    }

    /// There is no room for more.
    pub fn busy(message: impl Into<String>) -> Fault {
        Fault::new(codes::BUSY, message).status(503)
    }

    /// Our fault. The message says nothing of our insides.
    pub fn internal(message: impl Into<String>) -> Fault {
        Fault::new(codes::INTERNAL, message)
    }

    /// Appends it as a message, without an id if the request could not be read.
    pub fn write(&self, out: &mut Vec<u8>, id: Option<&Id>) {
        jsonrpc::write_error(out, id, self.code, &self.message, self.data.as_ref());
    }

    /// As an error object: what a failed task of the stateless era holds.
    pub fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }
}

impl From<Malformed> for Fault {
    fn from(malformed: Malformed) -> Fault {
        Fault::new(malformed.code, malformed.message).status(400)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Fault {}
