//! Stratum 3: the documents of the HTTP API. Each has one Rust type.
//!
//! The server writes these types, the client reads them, and `/openapi.json` lists them. Each
//! member stands in one row, with its text, its name and its type ([`Row`]). The rows make the
//! type, its traits of `serde` and its JSON Schema.
//!
//! Deliberately absent: the spelling of events and of MCP messages. They are hot, and
//! [`crate::wire`] and `mcp` spell them by hand. `events.rs` has the rows of events, and tests
//! compare both. Also absent are the bodies of requests. `endpoint` reads them by tables of fields,
//! which make their schemas, too.
//!
//! Invariants:
//! - Values from outside are checked against the rows before they are read ([`read`]). The error
//!   names the member that is missing or wrong.
//! - Members that are unknown are left out, except those of the type [`OrNull`].
//!
//! Reading order: `executions.rs` (documents as rows), `rows.rs` (the macro), `values.rs` (numbers,
//! ids and names).
//!
//! Tests: beside this file; `endpoint/documents_tests.rs` (full texts), `endpoint/openapi_tests.rs`
//! (documents against their schemas), `tests/client/requests.rs` (documents of hostile servers).
#![forbid(unsafe_code)]

mod doors;
mod events;
mod executions;
mod fronts;
mod replies;
mod rows;
#[cfg(test)]
mod tests;
mod tools;
mod values;
mod write;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use doors::{
    Clocks, DoorEnd, DoorGo, EndOfDoor, ProduceGrant, ReadGrant, ReadTerms, SeenTotals,
};
pub use events::{ChunkEvent, EndEvent, GapEvent, PartEvent, Replay, StartedEvent, progress_rows};
pub use executions::{
    AllProgress, Created, Ended, Execution, Executions, HELD_BY_HOLD, KeptBeginning, Links,
    Progress, ProgressOf, StateOf, Subscriber, Summary, TokenProgress,
};
pub use fronts::{
    Assistant, CommandAnswer, FoundThread, FrontInfo, McpError, McpProblem, Run, StartedRun,
    Thread, ThreadState,
};
pub use replies::{ErrorReply, Health, Index, IndexLinks, Problem, Version};
pub use rows::{Document, Fault, Member, Row, read, schema};
pub use tools::{
    CallTimeouts, CancelledCall, Coalesce, Delivered, Subscribers, Tool, ToolCall, Tools,
    VirtualTools,
};
pub use values::{Encoding, Json, Limits, OrNull, TimeLimits};
pub(crate) use write::write;

/// Returns a document as a JSON value.
pub fn spelled(document: &impl Serialize) -> Value {
    serde_json::to_value(document).expect("names of members are texts")
}

/// The schemas by name of each file of documents.
fn of_files() -> [Vec<(&'static str, Value)>; 7] {
    [
        replies::schemas(),
        tools::schemas(),
        executions::schemas(),
        doors::schemas(),
        events::schemas(),
        fronts::schemas(),
        values::schemas(),
    ]
}

/// Returns the schemas of all documents by name.
pub fn schemas() -> Map<String, Value> {
    let any_of = |variants: &[Value]| json!({ "anyOf": variants });
    let lines = [ReadGrant::schema(), ProduceGrant::schema(), DoorGo::schema(), DoorEnd::schema()];
    let alternatives = vec![
        ("Event", events::any_event()),
        events::progress_event(),
        ("Exit", values::exit_schema()),
        ("VirtualTool", Tool::schema()),
        ("WorkerEvent", any_of(&[ToolCall::schema(), CancelledCall::schema()])),
        ("DoorLine", any_of(&lines)),
    ];
    let all = of_files().into_iter().flatten().chain(alternatives);
    all.map(|(name, schema)| (name.to_owned(), schema)).collect()
}
