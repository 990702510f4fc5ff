//! What can be wrong with an answer that began well.

use std::fmt;

/// Why an answer cannot be read on. Nothing of it is said after that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFault {
    /// It is not what its wire says.
    Malformed(String),
    /// It ended without its end.
    Truncated,
    /// The model's server says that it failed.
    Said {
        /// In the server's words, e.g. `overloaded_error`; `error` if it gave none.
        code: String,
        /// What it says about it, shortened, without keys.
        message: String,
        /// The same request can succeed later.
        is_retryable: bool,
    },
    /// Something in it is longer than it may be, or there is more of it than there may be.
    TooLong {
        /// What: `frame`, `document`, `arguments`, `name` or `answer`; `blocks`, `calls` or
        /// `items`.
        what: &'static str,
        /// The most that there may be: bytes, or so many of them.
        limit: usize,
    },
}

impl ModelFault {
    /// As parts and clients spell it.
    pub fn code(&self) -> &str {
        match self {
            ModelFault::Malformed(_) => "malformed_answer",
            ModelFault::Truncated => "truncated_answer",
            ModelFault::Said { code, .. } => code,
            ModelFault::TooLong { .. } => "answer_too_long",
        }
    }

    /// Can the same request succeed later?
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
            ModelFault::Truncated => out.write_str("the model's answer ended without its end"),
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
