//! Lines at a door, for another process that shares memory.

use serde_json::json;

use super::rows::{Member, documents};
use crate::base::{ExecutionId, ProgressToken, SubscriberId};
use crate::stream::{DetachReason, Exit, Kind, LagLimit, Policy};

documents! {
    /// The right to read an execution.
    struct ReadGrant: "ReadGrant" {
        /// The version of everything that is shared.
        door: u64 => json!({"const": 1}),
        /// The id of the execution.
        execution: ExecutionId,
        /// The subscriber that the reader is.
        subscriber: SubscriberId,
        /// The terms, with defaults filled in.
        terms: ReadTerms,
        /// The first chunk to read.
        next_seq: u64,
        /// The totals of the chunks before it.
        seen: SeenTotals,
        /// The index of the reader's signal slot, behind the control page.
        slot: u32,
        /// Two clocks, read at the same moment.
        clock: Clocks,
        /// The name of the tool.
        tool: String,
        /// The token of the progress reports. It is absent if the execution has none.
        token: Option<String> => ProgressToken::schema(),
    }

    /// The terms of a reader.
    struct ReadTerms: "ReadTerms" {
        /// The lag policy.
        policy: Policy,
        /// The limit of the lag.
        limits: LagLimit,
        /// The kinds of chunks that the reader wants. It is absent if it wants all.
        kinds: Option<Vec<Kind>>,
    }

    /// Totals of chunks.
    struct SeenTotals: "SeenTotals" {
        /// Number of chunks.
        chunks: u64,
        /// Number of their bytes.
        bytes: u64,
    }

    /// Two clocks, read at the same moment.
    struct Clocks: "Clocks" {
        /// Wall-clock time, in µs since 1970.
        wall_us: u64,
        /// CLOCK_MONOTONIC, in ns.
        mono_ns: u64,
    }

    /// The right to be the producer of an execution.
    struct ProduceGrant: "ProduceGrant" {
        /// The version of everything that is shared.
        door: u64 => json!({"const": 1}),
        /// The id of the execution.
        execution: ExecutionId,
        /// The token of the progress reports. It is absent if the execution has none.
        token: Option<String> => ProgressToken::schema(),
        /// The name of the execution.
        tool: String,
    }

    /// The permission for a producer to begin.
    struct DoorGo: "DoorGo" {
        /// The producer may begin.
        go: bool => json!({"const": true}),
    }

    /// The last line.
    struct DoorEnd: "DoorEnd" {
        /// The end.
        end: EndOfDoor,
    }

    /// The end of an execution, or of one reader.
    struct EndOfDoor: "EndOfDoor" {
        /// The final state.
        state: String => json!({
            "type": "string",
            "enum": ["completed", "failed", "cancelled", "timed_out", "detached"],
        }),
        /// The reason why the reader was detached.
        reason: Option<DetachReason>,
        /// The error text, if the execution has failed.
        error: Option<String>,
        /// The exit of the command, if the tool ran one.
        exit: Option<Exit>,
    }
}
