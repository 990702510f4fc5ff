//! Models over three wires: [`write_request`] spells what they are asked, a [`Decoder`] reads what
//! they answer while it comes, and [`fault_of_response`] says what a refusal means.
//!
//! Chat Completions is the wire of nearly everybody, and nearly everybody speaks it a little
//! differently; Responses is OpenAI's newer one; Messages is Anthropic's. What comes out is the
//! same for all three: [`ModelEvent`]s, in one order, whatever the order and the habits of the
//! wire.
//!
//! Rules that hold for each of them:
//! - An answer is complete when its wire says so, and never because something looks complete: a
//!   connection that ends too early is [`ModelFault::Truncated`].
//! - However the bytes are cut, the events are the same.
//! - What is not known is passed over: fields, events, kinds of content.

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
mod refused;
mod request;
mod responses;
mod said;
mod speaker;
mod turn;
#[cfg(test)]
mod turn_tests;
mod value;

pub use assembly::Assembly;
pub use decode::Decoder;
pub use endpoint::{BaseUrl, Endpoint, EndpointError, Secret, Wire};
pub use event::{FinishReason, ModelEvent};
pub use fault::ModelFault;
pub use refused::{Answered, Refused, fault_of_response};
pub use request::{Ask, Effort, write_request};
pub use turn::{Heard, Turn, TurnAction, TurnFailure, TurnOptions};
