//! Documents that belong to no execution: errors, the reply of a check, and the root.

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
        /// The node of the cluster that carries such a request out.
        node: Option<String>,
        /// The URL of that node, if it is known.
        url: Option<String>,
    }

    /// The reply to the checks of health and readiness.
    struct Health: "Health" {
        /// `ok` or `ready`.
        status: String,
    }

    /// The program that answers.
    struct Version: "Version" {
        /// The name of the program.
        program: String,
        /// Its version.
        version: String,
    }

    /// The reply of the root: the program, and the paths to begin with.
    struct Index: "Index" {
        /// The name of the program.
        program: String,
        /// Its version.
        version: String,
        /// The paths to begin with.
        links: IndexLinks,
    }

    /// The paths to begin with.
    struct IndexLinks: "IndexLinks" {
        /// The tools.
        tools: String,
        /// The executions.
        executions: String,
        /// The progress of all executions.
        progress: String,
        /// The Model Context Protocol.
        mcp: String,
        /// The metrics.
        metrics: String,
        /// The description of every request.
        description: String,
        /// The check of health.
        health: String,
        /// The check of readiness.
        readiness: String,
    }
}
