//! Errors of the HTTP interface: a status, a code for programs, a sentence for people, and the
//! field and the limit concerned, if any.
//!
//! Codes are part of the interface: a published code keeps its meaning. `error_codes.rs` has the
//! table of all.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use crate::api::{ErrorReply, Problem, spelled};
use crate::endpoint::error_codes;
use crate::engine::{AcknowledgeError, CancelError, NotFound, OpenError, SubscribeError};
use crate::limits;
use crate::tool::StartError;
use crate::wire::http1::{HeaderFault, QueryError, QueryFault, Refusal, Status};

/// The reason why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status, which says whether the client or the server is at fault.
    pub status: Status,
    /// The reason, for programs.
    pub code: &'static str,
    /// The reason, for people: a sentence.
    pub message: String,
    /// The parameter, header or member of the body that the error is about.
    pub field: Option<String>,
    /// The limit that was exceeded, or the number that would have been valid.
    pub limit: Option<u64>,
    /// The delay after which the client may try again.
    pub retry_after: Option<Duration>,
    /// The node of the cluster that carries the request out.
    pub elsewhere: Option<Box<Elsewhere>>,
}

/// Another node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Its name.
    pub node: Box<str>,
    /// Its URL, if it is known.
    pub url: Option<Box<str>>,
}

impl ApiError {
    /// Creates an error without a field, a limit or a delay. [`ERROR_CODES`] has the code.
    ///
    /// [`ERROR_CODES`]: super::ERROR_CODES
    pub fn new(status: Status, code: &'static str, message: impl Into<String>) -> ApiError {
        debug_assert!(error_codes::is_known(status, code), "{status:?} {code} is not in the table");
        let message = message.into();
        ApiError {
            status,
            code,
            message,
            field: None,
            limit: None,
            retry_after: None,
            elsewhere: None,
        }
    }

    /// Sets the field that the error is about.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> ApiError {
        self.field = Some(field.into());
        self
    }

    /// Sets the limit, or the number that would have been valid.
    #[must_use]
    pub fn limit(mut self, limit: u64) -> ApiError {
        self.limit = Some(limit);
        self
    }

    /// Sets the delay after which the client may try again.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> ApiError {
        self.retry_after = Some(delay);
        self
    }

    /// Returns the error as the JSON document of a response body.
    pub fn to_json(&self) -> Value {
        let elsewhere = self.elsewhere.as_ref();
        let error = Problem {
            code: self.code.to_owned(),
            message: self.message.clone(),
            field: self.field.clone(),
            limit: self.limit,
            node: elsewhere.map(|elsewhere| elsewhere.node.to_string()),
            url: elsewhere.and_then(|elsewhere| elsewhere.url.as_deref()).map(String::from),
        };
        spelled(&ErrorReply { error })
    }

    /// Returns the error for shards of the server that have died.
    ///
    /// # Panics
    /// If `shards` is empty.
    pub fn shards_dead(shards: &[u8]) -> ApiError {
        assert!(!shards.is_empty());
        let names: Vec<String> = shards.iter().map(u8::to_string).collect();
        let (names, noun) = (names.join(", "), if shards.len() == 1 { "shard" } else { "shards" });
        let text = format!("{noun} {names} died with all executions there; restart the server");
        ApiError::new(Status::SERVICE_UNAVAILABLE, "shard_dead", text)
    }

    /// Returns the error for a request that only another node of the cluster can carry out.
    pub fn elsewhere(elsewhere: Elsewhere) -> ApiError {
        let Elsewhere { node, url } = &elsewhere;
        let at = url.as_ref().map(|url| format!(" at {url}")).unwrap_or_default();
        let text =
            format!("only the node {node}{at} can do that: it has the execution or the stream");
        let error = ApiError::new(Status::MISDIRECTED_REQUEST, "elsewhere", text);
        ApiError { elsewhere: Some(elsewhere.into()), ..error }
    }

    /// Returns the error for plain HTTP at a port with TLS.
    pub fn plain_on_tls_port() -> ApiError {
        let text = "this port speaks TLS; use https:// instead of http://";
        ApiError::new(Status::BAD_REQUEST, "plain_on_tls_port", text)
    }

    /// Returns the error of a server that is shutting down.
    pub fn shutting_down() -> ApiError {
        let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "shutting_down", "shutting down");
        error.retry_after(limits::SHUTDOWN_RETRY_AFTER)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for ApiError {}

impl From<NotFound> for ApiError {
    fn from(error: NotFound) -> ApiError {
        ApiError::new(Status::NOT_FOUND, "not_found", error.to_string())
    }
}

impl From<OpenError> for ApiError {
    fn from(error: OpenError) -> ApiError {
        let text = error.to_string();
        match error {
            OpenError::Busy { retry_after_ms } => {
                let delay = Duration::from_millis(retry_after_ms.into());
                ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", text).retry_after(delay)
            }
            OpenError::TooMany { executions_max } => {
                ApiError::new(Status::TOO_MANY_REQUESTS, "too_many_executions", text)
                    .limit(executions_max.into())
                    .retry_after(limits::BUSY_RETRY_AFTER)
            }
            OpenError::Invalid { field } => invalid_field(field, text),
            OpenError::ShuttingDown => ApiError::shutting_down(),
        }
    }
}

impl From<SubscribeError> for ApiError {
    fn from(error: SubscribeError) -> ApiError {
        let text = error.to_string();
        match error {
            SubscribeError::NotFound => NotFound.into(),
            SubscribeError::Limit { limit_chunks_max, .. } => {
                invalid_field("max_chunks", text).limit(limit_chunks_max.into())
            }
            SubscribeError::Invalid { field } => invalid_field(field, text),
            SubscribeError::NotYet { next_seq } => {
                ApiError::new(Status::CONFLICT, "not_yet", text).field("from").limit(next_seq)
            }
            SubscribeError::NoLongerHeld { tail_seq } => {
                ApiError::new(Status::GONE, "no_longer_held", text).field("from").limit(tail_seq)
            }
            SubscribeError::TooMany { subscribers_max } => {
                ApiError::new(Status::TOO_MANY_REQUESTS, "too_many_subscribers", text)
                    .limit(subscribers_max.into())
                    .retry_after(limits::BUSY_RETRY_AFTER)
            }
            SubscribeError::NotElsewhere => invalid_field("execution", text),
            SubscribeError::ShuttingDown => ApiError::shutting_down(),
        }
    }
}

impl From<CancelError> for ApiError {
    fn from(error: CancelError) -> ApiError {
        match error {
            CancelError::NotFound => NotFound.into(),
            CancelError::Ended(_) => {
                ApiError::new(Status::CONFLICT, "already_ended", error.to_string())
            }
        }
    }
}

impl From<AcknowledgeError> for ApiError {
    fn from(error: AcknowledgeError) -> ApiError {
        let text = error.to_string();
        match error {
            AcknowledgeError::NotFound => NotFound.into(),
            AcknowledgeError::NotAsked => ApiError::new(Status::CONFLICT, "acks_not_asked", text),
            AcknowledgeError::NotGiven { next_seq } => {
                let error = ApiError::new(Status::CONFLICT, "not_given", text);
                error.field("seq").limit(next_seq.saturating_sub(1))
            }
        }
    }
}

impl From<StartError> for ApiError {
    fn from(error: StartError) -> ApiError {
        let text = error.to_string();
        match error {
            StartError::UnknownTool { .. } => {
                ApiError::new(Status::NOT_FOUND, "unknown_tool", text).field("tool")
            }
            StartError::Argument(argument) => {
                let field = match argument.field.as_str() {
                    "arguments" => argument.field,
                    name => format!("arguments.{name}"),
                };
                ApiError::new(Status::BAD_REQUEST, "invalid_argument", text).field(field)
            }
            StartError::Asks { .. } => {
                ApiError::new(Status::CONFLICT, "tool_asks", text).field("tool")
            }
            StartError::Panicked { .. } => {
                ApiError::new(Status::INTERNAL_SERVER_ERROR, "tool_panicked", text).field("tool")
            }
        }
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> ApiError {
        let code = match error.fault {
            QueryFault::Unknown => "unknown_parameter",
            QueryFault::Repeated => "repeated_parameter",
            QueryFault::TooMany => "too_many_parameters",
            QueryFault::Undecodable(_)
            | QueryFault::NotANumber(..)
            | QueryFault::NotAChoice(_)
            | QueryFault::NotABool => "invalid_parameter",
        };
        let made = ApiError::new(Status::BAD_REQUEST, code, error.to_string());
        let made = if error.field.is_empty() { made } else { made.field(error.field) };
        match error.fault {
            QueryFault::NotANumber(_, number_max) => made.limit(number_max),
            QueryFault::TooMany => made.limit(limits::HTTP_QUERY_PAIRS_MAX as u64),
            _ => made,
        }
    }
}

impl From<HeaderFault> for ApiError {
    fn from(fault: HeaderFault) -> ApiError {
        let error = ApiError::new(Status::BAD_REQUEST, "invalid_header", fault.to_string());
        error.field(fault.name)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        let status = refusal.status();
        let code = match status {
            _ if refusal == Refusal::TlsHandshake => "tls_on_plain_port",
            Status::REQUEST_TIMEOUT => "request_timeout",
            Status::LENGTH_REQUIRED => "length_required",
            Status::CONTENT_TOO_LARGE => "body_too_long",
            Status::URI_TOO_LONG => "target_too_long",
            Status::EXPECTATION_FAILED => "unknown_expectation",
            Status::HEADERS_TOO_LARGE => "head_too_long",
            Status::NOT_IMPLEMENTED => "not_implemented",
            Status::VERSION_NOT_SUPPORTED => "unknown_version",
            _ => "malformed_request",
        };
        let error = ApiError::new(status, code, refusal.to_string());
        match refusal.limit() {
            Some(limit) => error.limit(limit.into()),
            None => error,
        }
    }
}

/// Translates the engine's name of a field to the name that requests use.
fn invalid_field(name: &'static str, text: String) -> ApiError {
    let field = match name {
        "limit_chunks" => "max_chunks",
        "limit_bytes" => "max_bytes",
        "ack_window" => "acks",
        "coalesce.delay_max" => "coalesce_us",
        "start.count" => "start.after_subscribers",
        "from.seen" => "last-event-id",
        other => other,
    };
    ApiError::new(Status::BAD_REQUEST, "invalid_field", text).field(field)
}
