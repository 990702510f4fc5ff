//! Properties that hold for any bytes. Each target has a function that panics if they do not.
//!
//! libFuzzer calls these functions through `targets/`. `src/sim/corpus_tests.rs` calls them with
//! the kept corpus, so each run of the tests looks again for what was found once.

pub mod chunked_body;
pub mod cluster_entry;
pub mod cluster_record;
pub mod draw;
pub mod engine_events;
pub mod host_authority;
pub mod json_body;
pub mod jsonrpc_lines;
pub mod mcp_lines;
pub mod mcp_session;
pub mod model_answer;
pub mod peer;
pub mod query_cursor;
pub mod request_head;
pub mod request_state;
pub mod ring_reader;
pub mod sse_decode;
pub mod sse_round_trip;
pub mod upstream_messages;
pub mod wheel;

/// A check of any bytes, which panics if it fails.
pub type Check = fn(&[u8]);

/// All checks, by the names of their targets.
pub const CHECKS: &[(&str, Check)] = &[
    ("chunked_body", chunked_body::check),
    ("cluster_entry", cluster_entry::check),
    ("cluster_record", cluster_record::check),
    ("engine_events", engine_events::check),
    ("host_authority", host_authority::check),
    ("json_body", json_body::check),
    ("jsonrpc_lines", jsonrpc_lines::check),
    ("mcp_lines", mcp_lines::check),
    ("mcp_session", mcp_session::check),
    ("model_answer", model_answer::check),
    ("query_cursor", query_cursor::check),
    ("request_head", request_head::check),
    ("request_state", request_state::check),
    ("ring_reader", ring_reader::check),
    ("sse_decode", sse_decode::check),
    ("sse_round_trip", sse_round_trip::check),
    ("upstream_messages", upstream_messages::check),
    ("wheel", wheel::check),
];
