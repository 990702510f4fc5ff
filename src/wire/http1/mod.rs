//! HTTP/1.1 (RFC 9110, RFC 9112), client and server, as state machines over bytes.
//!
//! A server reads with [`RequestReader`] and writes with [`ResponseHead`]. For streams it also uses
//! [`write_chunk_size`] or [`begin_chunk`]. A client reads with [`ResponseReader`].
//! [`RequestTarget`],
//! [`Query`] and [`negotiate`] parse the parts of a request.
//!
//! A message that two programs could read in two ways is refused and not repaired, because leniency
//! is the start of request smuggling. Every refusal has a name, [`Refusal`], and ends its
//! connection. `Upgrade`, `CONNECT` and transfer codings other than `chunked` are not supported.
//! Trailers and chunk extensions are dropped.
//!
//! Tests: `hostile_tests.rs` and `hostile_body_tests.rs` (tables of requests and verdicts, each cut
//! everywhere), `reader_tests.rs`, `client_tests.rs`, and beside the other files.

mod accept;
mod body;
mod client;
#[cfg(test)]
mod client_tests;
mod date;
mod head;
#[cfg(test)]
mod hostile_body_tests;
#[cfg(test)]
mod hostile_tests;
mod query;
mod range;
#[cfg(test)]
mod reader_tests;
mod refusal;
mod request;
mod response;
mod scan;
mod target;
#[cfg(test)]
mod transcript;

pub use accept::{AcceptedCoding, is_media_type, negotiate};
pub use body::BodyLength;
pub use client::{ResponseError, ResponseInfo, ResponsePart, ResponseReader};
pub use date::{http_date, parse_http_date, parse_rfc3339};
pub use head::{Header, HeaderFault, Headers, Method, RequestHead, Version};
pub use query::{Query, QueryError, QueryFault};
pub use range::{ByteRange, NoSuchRange};
pub use refusal::Refusal;
pub use request::{RequestPart, RequestReader};
pub use response::{
    BODY_END, CHUNK_END, CONTINUE, Framing, HeaderError, OpenChunk, ResponseHead, Status,
    begin_chunk, end_chunk, write_chunk_size,
};
pub use target::{DecodeError, RequestTarget};
