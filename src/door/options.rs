//! The options of a request at a door, and their form on the wire.

use serde_json::{Map, Value};

use crate::client::ExecuteOptions;
use crate::client::request::{self, ClientRequest, FollowOptions};
use crate::endpoint::DeliveryOptions;
use crate::engine::From;
use crate::stream::{Kinds, Policy};
use crate::wire::http1::Method;

/// Options for reading an execution. A value of `None` takes the default of the server, the
/// execution or its tool.
///
/// ```
/// use streamdoor::door::ReadOptions;
/// use streamdoor::Policy;
/// use streamdoor::options::From;
///
/// // Everything from now on; the producer waits for us. We only count.
/// let options = ReadOptions {
///     policy: Some(Policy::Block),
///     from: From::Live,
///     headers_only: true,
///     ..ReadOptions::default()
/// };
/// # drop(options);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadOptions {
    /// The policy that applies when the reader lags.
    pub policy: Option<Policy>,
    /// The lag allowed, in chunks.
    pub limit_chunks: Option<u32>,
    /// The lag allowed, in bytes.
    pub limit_bytes: Option<u64>,
    /// The position of the first chunk.
    pub from: From,
    /// The kinds of chunks to read.
    pub kinds: Kinds,
    /// True if chunks come without their payload, for a reader that only counts or times them.
    pub headers_only: bool,
}

/// Options for the execution that a [`Writer`](super::DoorWriter) produces. A value of `None` takes
/// the server's default.
///
/// ```
/// use streamdoor::door::ProduceOptions;
///
/// let options = ProduceOptions { estimated_bytes: Some(200 << 20), ..Default::default() };
/// # drop(options);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProduceOptions {
    /// Size of the ring in bytes, at most 8 MiB. The server takes the next larger size class that
    /// it can spare. A ring for 64 chunks or more of the usual size lets producer and reader work
    /// without waiting for each other.
    pub ring_bytes: Option<u32>,
    /// Size in bytes of the longest chunk that the ring must take in one piece.
    pub chunk_bytes: Option<u32>,
    /// Expected size of the output in bytes, if known. Little output needs no large ring.
    pub estimated_bytes: Option<u64>,
    /// Options of the execution, such as its start and the defaults of its subscribers.
    pub execution: ExecuteOptions,
}

impl ReadOptions {
    /// Writes the request. The options are in the query, as they are for streams over HTTP.
    pub(super) fn request(&self, execution: &str, token: Option<&str>) -> Vec<u8> {
        let delivery_options = DeliveryOptions {
            policy: self.policy,
            limit_chunks: self.limit_chunks,
            limit_bytes: self.limit_bytes,
            kinds: self.kinds,
            ..DeliveryOptions::default()
        };
        let follow =
            FollowOptions { from: self.from, delivery_options, ..FollowOptions::default() };
        let mut target = format!("/v1/executions/{}/door", request::path_piece(execution));
        let query_start = target.len();
        request::write_delivery_options(&mut target, &follow);
        if target.len() > query_start {
            target.replace_range(query_start..=query_start, "?");
        }
        spelled(ClientRequest::new(Method::Post, target), token)
    }
}

impl ProduceOptions {
    pub(super) fn request(&self, name: &str, token: Option<&str>) -> Vec<u8> {
        let mut body = Map::new();
        body.insert("name".to_owned(), name.into());
        request::set_options(&mut body, &self.execution);
        let mut set = |name: &str, value: Option<u64>| {
            if let Some(value) = value {
                body.insert(name.to_owned(), value.into());
            }
        };
        set("ring_bytes", self.ring_bytes.map(u64::from));
        set("chunk_bytes", self.chunk_bytes.map(u64::from));
        set("estimated_bytes", self.estimated_bytes);
        let request = ClientRequest::new(Method::Post, "/v1/door/executions");
        spelled(request.with_body(&Value::Object(body)), token)
    }
}

fn spelled(request: ClientRequest, token: Option<&str>) -> Vec<u8> {
    // Some servers require a length even if the body is empty.
    let body = request.body.or_else(|| Some(Vec::new()));
    let accept = "application/x-ndjson";
    ClientRequest { accept, body, ..request }.write("localhost", token, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Kind;

    #[test]
    fn delivery_options_are_written_as_for_streams() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let plain = text(ReadOptions::default().request("abc", None));
        assert!(plain.starts_with("POST /v1/executions/abc/door HTTP/1.1\r\n"), "{plain}");
        let options = ReadOptions {
            policy: Some(Policy::Drop),
            limit_chunks: Some(3),
            from: From::Seq { seq: 7, seen: None },
            kinds: Kinds::NONE.with(Kind::Row).with(Kind::Log),
            ..ReadOptions::default()
        };
        let wished = text(options.request("a b", Some("key")));
        let target = "/v1/executions/a%20b/door?from=7&policy=drop&max_chunks=3&kinds=row,log";
        assert!(wished.starts_with(&format!("POST {target} HTTP/1.1\r\n")), "{wished}");
        assert!(wished.contains("\r\nauthorization: Bearer key\r\n"), "{wished}");
        assert!(wished.contains("\r\ncontent-length: 0\r\n"), "{wished}");
        let options = ProduceOptions { ring_bytes: Some(65_536), ..Default::default() };
        let produced = text(options.request("x", None));
        assert!(produced.starts_with("POST /v1/door/executions HTTP/1.1\r\n"));
        assert!(produced.ends_with("\r\n\r\n{\"name\":\"x\",\"ring_bytes\":65536}"), "{produced}");
    }
}
