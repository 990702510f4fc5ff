//! Documents about executions.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::rows::{Member, documents};
use super::values::{Encoding, Json, number};
use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::engine::SubscriberPlace;
use crate::stream::{ExecutionState, Exit, LagLimit, Policy};

/// The name of the hold in [`Execution::held_back_by`].
pub const HELD_BY_HOLD: &str = "hold";

documents! {
    /// An execution that was created.
    struct Created: "Created" {
        /// The id of the execution.
        execution: ExecutionId,
        /// The token of its progress reports. It is absent if the execution has none.
        token: Option<ProgressToken>,
        /// The name of the tool.
        tool: String,
        /// The state of the execution.
        state: ExecutionState,
        /// The hold of its beginning. It is absent if the ring keeps the newest chunks.
        hold: Option<KeptBeginning>,
        /// The paths of the execution.
        links: Links,
    }

    /// The beginning of an execution, which is kept until its first reader comes. A tool that has
    /// filled the ring waits.
    struct KeptBeginning: "KeptBeginning" {
        /// The longest time to wait for a reader, in milliseconds. Then the ring keeps the newest
        /// chunks.
        until_read_ms: u64,
    }

    /// The paths of an execution and of its parts.
    struct Links: "Links" {
        /// The status of the execution.
        this("self"): String,
        /// The stream of its events.
        events: String,
        /// Its outcome, with the payload that is still held.
        result: String,
        /// The payload, as plain bytes.
        output: String,
        /// Its progress. It is absent if the execution has no progress token.
        progress: Option<String>,
    }

    /// The state of an execution.
    struct StateOf: "State" {
        /// The id of the execution.
        execution: ExecutionId,
        /// The state of the execution.
        state: ExecutionState,
    }

    /// The list of executions.
    struct Executions: "Executions" {
        /// The executions of the caller, in the order of their creation.
        executions: Vec<Summary>,
        /// The value of `after` for the rest of the list. It is absent if nothing follows.
        next: Option<String>,
        /// The shards that have died. Their executions are missing in the list.
        dead_shards: Option<Vec<u8>>,
        /// The nodes that have not answered in time. Their executions are missing in the list.
        missing_nodes: Option<Vec<String>>,
    }

    /// A short description of an execution.
    struct Summary: "Summary" {
        /// The id of the execution.
        execution: ExecutionId,
        /// The node that runs the tool. It is absent if only this server was asked.
        node: Option<String>,
        /// The name of the tool.
        tool: String,
        /// The state of the execution.
        state: ExecutionState,
        /// Number of published chunks.
        chunks: u64,
        /// Number of their bytes.
        bytes: u64,
        /// Number of subscribers on that node.
        subscribers: u64,
        /// The client's name of its conversation. It is absent if it has none.
        thread: Option<String>,
        /// The age of the execution, in milliseconds.
        age_ms: u64,
        /// The time of creation (RFC 3339).
        created_at: String => date_time(),
        /// The time of the end (RFC 3339). It is absent until then.
        ended_at: Option<String> => date_time(),
    }

    /// The status of an execution.
    struct Execution: "Execution" {
        /// The id of the execution.
        execution: ExecutionId,
        /// The name of the tool.
        tool: String,
        /// The token of its progress reports. It is absent if the execution has none.
        token: Option<ProgressToken>,
        /// The state of the execution.
        state: ExecutionState,
        /// The last progress report. It is absent before the first.
        progress: Option<Progress>,
        /// Number of published chunks.
        chunks: u64,
        /// Number of their bytes.
        bytes: u64,
        /// The newest chunk. 0 if the execution has published none.
        head_seq: u64,
        /// The oldest chunk that is still held.
        tail_seq: u64,
        /// Number of chunks that the tool expects to publish, if it announced a number.
        total_chunks: Option<u64>,
        /// True if the execution waits for subscribers.
        held_back: bool,
        /// The subscribers that hold the execution back. `hold` stands for the first reader, if
        /// the execution waits for it.
        held_back_by: Vec<String> => holders(),
        /// The age of the execution, in milliseconds.
        age_ms: u64,
        /// The time of creation (RFC 3339).
        created_at: String => date_time(),
        /// The time of the end (RFC 3339). It is absent until then.
        ended_at: Option<String> => date_time(),
        /// The subscribers.
        subscribers: Vec<Subscriber>,
        /// The error text, if the execution has failed.
        error: Option<String>,
        /// The exit of the command, if the tool ran one.
        exit: Option<Exit>,
        /// The paths of the execution.
        links: Links,
    }

    /// The status of a subscriber.
    struct Subscriber: "Subscriber" {
        /// The id of the subscriber.
        subscriber: String => SubscriberId::schema(),
        /// The thread of the subscriber: `remote` if it reads the ring by itself, on another
        /// thread or in another process.
        place: SubscriberPlace,
        /// The lag policy of the subscriber.
        policy: Policy,
        /// The limit of its lag.
        limit("limits"): LagLimit,
        /// The next chunk that it will receive.
        next_seq: u64,
        /// Its lag in chunks.
        lag_chunks: u64,
        /// Its lag in bytes.
        lag_bytes: u64,
        /// Number of chunks that it did not receive.
        missed_chunks: u64,
        /// Number of their bytes.
        missed_bytes: u64,
        /// True if the execution waits for this subscriber.
        holds_back: bool,
        /// True if its connection broke. Its place is kept for a while.
        lost: bool,
        /// The age of the subscription, in milliseconds.
        age_ms: u64,
    }

    /// The outcome of an execution, with the payload that is still held.
    struct Ended<'a>: "Result" {
        /// The id of the execution.
        execution: ExecutionId,
        /// The final state.
        state: ExecutionState,
        /// Number of published chunks.
        chunks: u64,
        /// Number of their bytes.
        bytes: u64,
        /// True if `data` holds all of these bytes. Otherwise it holds only the newest.
        complete: bool,
        /// The encoding of `data`.
        encoding: Encoding,
        /// The payload that is still held, the oldest chunk first.
        data: Cow<'a, str>,
        /// The exit of the command, if the tool ran one.
        exit: Option<Exit>,
        /// The error text, if the execution has failed.
        error: Option<String>,
    }

    /// A progress report.
    struct Progress: "Progress" {
        /// The amount of work that is done.
        #[serde(serialize_with = "number")]
        progress: f64,
        /// The total amount of work, if it is known.
        #[serde(serialize_with = "number")]
        total: Option<f64>,
        /// The done part of the total, in percent.
        #[serde(serialize_with = "number")]
        percentage: Option<f64> => json!({"type": "number", "minimum": 0, "maximum": 100}),
        /// The message of the tool, if it gave one.
        message: Option<String>,
        /// Further values that the tool reported.
        context: Option<Json>,
    }

    /// The progress of the execution that a token stands for.
    struct TokenProgress: "TokenProgress" {
        /// The token.
        token: ProgressToken,
        /// The id of the execution.
        execution: ExecutionId,
        /// The state of the execution.
        state: ExecutionState,
        /// The last progress report. It is absent before the first.
        progress: Option<Progress>,
    }

    /// The progress of all executions that have a token and have not ended.
    struct AllProgress: "AllProgress" {
        /// The executions.
        progress: Vec<ProgressOf>,
        /// The shards that have died. Their executions are missing in the list.
        dead_shards: Option<Vec<u8>>,
    }

    /// The progress of one execution in the list of all.
    struct ProgressOf: "ProgressOf" {
        /// The token of its progress reports.
        token: ProgressToken,
        /// The id of the execution.
        execution: ExecutionId,
        /// The last progress report. It is absent before the first.
        progress: Option<Progress>,
    }
}

/// Returns the schema of an instant.
fn date_time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

/// Returns the schema of the names of those that hold an execution back.
fn holders() -> Value {
    let holder = json!({"anyOf": [SubscriberId::schema(), {"const": HELD_BY_HOLD}]});
    json!({"type": "array", "items": holder})
}
