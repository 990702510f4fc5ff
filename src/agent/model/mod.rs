//! Models over three wires. [`write_request`] writes a request, a [`AnswerDecoder`] reads the
//! answer while it comes, and [`fault_of_response`] interprets a refusal.
//!
//! Chat Completions is the wire of most servers, and most of them differ from it in details.
//! Responses is OpenAI's newer wire, and Messages is Anthropic's. All three yield [`ModelEvent`]s
//! in one order, whatever the order and the peculiarities of the wire.
//!
//! These rules hold for every wire:
//! - An answer is complete only if its wire says so, never because it looks complete. A connection
//!   that ends too early is [`ModelFault::Truncated`].
//! - The events are the same however the bytes are split.
//! - Unknown fields, events and kinds of content are ignored.

mod answer_builder;
mod assembly;
mod chat;
mod decode;
#[cfg(test)]
mod decode_tests;
mod endpoint;
mod event;
mod fault;
mod messages;
mod names;
mod outline;
mod refusal;
mod reported_error;
mod request;
mod responses;
mod turn;
#[cfg(test)]
mod turn_tests;
mod value;

pub use assembly::Assembly;
pub use decode::AnswerDecoder;
pub use endpoint::{BaseUrl, Endpoint, EndpointError, Secret, Wire};
pub use event::{FinishReason, ModelEvent};
pub use fault::ModelFault;
pub use refusal::{ModelRefusal, RefusalBody, fault_of_response};
pub use request::{Ask, Effort, write_request};
pub use turn::{Turn, TurnAction, TurnFailure, TurnInput, TurnOptions, TurnRetry};
