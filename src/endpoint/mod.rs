//! Stratum 4: the HTTP endpoint of a connection. It turns bytes into calls, and answers into bytes.
//!
//! State machines without syscalls, clocks or sockets: the shard moves the bytes and carries out
//! the calls.
//!
//! Reading order:
//! - [`ApiCall`]: everything that a client can ask for.
//! - `routes.rs`: the table of requests.
//! - `access/`: the decision whether a request is admitted.
//! - [`HttpConnection`]: one connection.
//! - `documents`: the JSON documents in the answers; `representation.rs`: their compression.
//!
//! Requests are read by tables of fields (`fields.rs`). `/openapi.json` is written from the same
//! tables, so no second place defines what is allowed. Unknown names are refused with the name and
//! a limit ([`ApiError`]); nothing is guessed.
//!
//! Tests: `call_tests.rs`, `refusal_tests.rs` and `bounds_tests.rs` (tables of requests, each cut
//! at every byte), `connection_tests.rs`, `workers_tests.rs`, `documents_tests.rs`,
//! `openapi_tests.rs`, `representation_tests.rs`.
#![forbid(unsafe_code)]

mod a2a;
#[cfg(test)]
mod a2a_tests;
mod access;
mod agent;
mod answer;
mod ask;
mod body;
#[cfg(test)]
mod bounds_tests;
mod call;
#[cfg(test)]
mod call_tests;
mod connection;
#[cfg(test)]
mod connection_tests;
pub(crate) mod documents;
#[cfg(test)]
mod documents_tests;
mod door;
pub(crate) mod durable;
mod error;
mod error_codes;
#[cfg(test)]
mod exchange;
mod execute;
mod fields;
pub mod front;
mod grant;
mod graph;
mod lines;
mod list;
mod mcp;
mod openapi;
#[cfg(test)]
mod openapi_tests;
mod parameters;
#[cfg(test)]
mod refusal_tests;
mod representation;
#[cfg(test)]
mod representation_tests;
mod responses;
mod routes;
mod schemas;
pub(crate) mod subscriptions;
mod surroundings;
mod tally;
mod threads;
mod workers;
#[cfg(test)]
mod workers_tests;

pub(crate) use a2a::{TASK_STATES, VERSION as A2A_VERSION, task_state_named};
pub use access::{
    Access, HostError, HostName, Origin, OriginError, TokenFault, Tokens, TokensError, check_token,
    first_token,
};
pub use agent::{agent_schema, generate_schema};
pub use answer::{Answer, BYTES, JSON, PayloadPart};
pub use call::{
    ApiCall, AssistantsAsk, Deliver, DeliveredPart, DeliveryOptions, Execute, Follow, FrontOptions,
    FrontProtocol, FrontRun, IdempotencyKey, MetricsFormat, Opening, OutputAsk, PolicyChoice,
    Produce, ReadDoor, ResponseAsk, ResponseCall, StreamFormat, TaskAsk, TaskCall, TaskSearch,
    ThreadAsk, ThreadCall, ThreadSearch, Work,
};
pub use connection::{Arrival, AwaitedEvent, ConnectionStep, HttpConnection, StreamBody};
pub use durable::{
    Appended, Creation, DurableAsk, DurableCall, DurableHeaders, Fork, Live, ProducerAt, ReadAsk,
    ReadFrom,
};
pub use error::{ApiError, Elsewhere};
pub use error_codes::{ERROR_CODES, ErrorCode};
pub use grant::{DOOR_VERSION, GrantFault, GrantNames, ProduceGrant, ReadGrant};
pub use list::{ListAsk, ListPlace, ListScope};
pub use mcp::{McpAction, McpRequest, shard_of};
pub(crate) use routes::prepare_documents;
pub use subscriptions::{Acks, Control, ControlAction, WakeBy, Wanted};
pub use surroundings::Surroundings;
pub use tally::{AnsweredRequest, RequestCounts, RequestsOfRoute, Tally};
pub use workers::virtual_tool;
