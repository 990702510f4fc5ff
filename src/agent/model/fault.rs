//! The faults of an answer that began well.

use std::fmt;

/// The reason for which an answer cannot be read further. No event follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFault {
    /// The answer violates its wire's format.
    Malformed(String),
    /// The answer ended without its end marker.
    Truncated,
    /// The model's server reported a failure.
    Said {
        /// The server's name for the failure, e.g. `overloaded_error`; `error` if it gave none.
        code: String,
        /// The server's message, shortened and without keys.
        message: String,
        /// True if the same request can succeed later.
        is_retryable: bool,
    },
    /// A part of the answer is too long, or the answer has too many of them.
    TooLong {
        /// The part: `frame`, `document`, `arguments`, `name` or `answer`; `blocks`, `calls` or
        /// `items`.
        what: &'static str,
        /// The limit, in bytes or as a count.
        limit: usize,
    },
}

impl ModelFault {
    /// Returns the name of the fault in parts and for clients.
    pub fn code(&self) -> &str {
        match self {
            ModelFault::Malformed(_) => "malformed_answer",
            ModelFault::Truncated => "truncated_answer",
            ModelFault::Said { code, .. } => code,
            ModelFault::TooLong { .. } => "answer_too_long",
        }
    }

    /// True if the same request can succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            ModelFault::Malformed(_) | ModelFault::Truncated => true,
            ModelFault::Said { is_retryable, .. } => *is_retryable,
            ModelFault::TooLong { .. } => false,
        }
    }
}

impl fmt::Display for ModelFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelFault::Malformed(problem) => write!(out, "the model's answer {problem}"),
            ModelFault::Truncated => {
                out.write_str("the model's answer ended before it was complete")
            }
            ModelFault::Said { code, message, .. } if message.is_empty() => {
                write!(out, "the model's server failed: {code}")
            }
            ModelFault::Said { code, message, .. } => {
                write!(out, "the model's server failed: {code}: {message}")
            }
            ModelFault::TooLong { what: what @ ("blocks" | "calls" | "items"), limit } => {
                write!(out, "the model's answer has more than {limit} {what}")
            }
            ModelFault::TooLong { what, limit } => {
                write!(out, "the {what} of a model's answer has more than {limit} bytes")
            }
        }
    }
}

impl std::error::Error for ModelFault {}
