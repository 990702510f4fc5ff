//! Documents that belong to no execution: errors, and the reply of a check.

use super::rows::documents;

documents! {
    /// The reply to a request that failed.
    struct ErrorReply: "Error" {
        /// The error.
        error: Problem,
    }

    /// The reason why a request failed.
    struct Problem: "Problem" {
        /// The reason, for programs. A published code keeps its meaning.
        code: String,
        /// The reason, for people: a sentence.
        message: String,
        /// The parameter, header or member of the body that the error is about.
        field: Option<String>,
        /// The limit that was exceeded, or the number that would have been valid.
        limit: Option<u64>,
    }

    /// The reply to the checks of health and readiness.
    struct Health: "Health" {
        /// `ok` or `ready`.
        status: String,
    }
}
