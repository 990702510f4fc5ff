//! What is asked for at a door, and how it is spelled.

use serde_json::{Map, Value};

use crate::client::ExecuteOptions;
use crate::client::request::{self, FollowOptions, Request};
use crate::endpoint::Wishes;
use crate::engine::{From, Kinds, Policy};
use crate::wire::http1::Method;

/// How an execution is read. What is `None` is left to the server, the execution and its tool.
///
/// ```
/// use streamdoor::door::ReadOptions;
/// use streamdoor::engine::{From, Policy};
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
    /// What happens when we lag.
    pub policy: Option<Policy>,
    /// How far we may lag, in chunks.
    pub limit_chunks: Option<u32>,
    /// How far we may lag, in bytes.
    pub limit_bytes: Option<u64>,
    /// Where to begin.
    pub from: From,
    /// Which kinds we want.
    pub kinds: Kinds,
    /// Chunks come without their bytes: for who only counts, times or draws them.
    pub headers_only: bool,
}

/// How an execution is to be that we produce. What is `None` is left to the server.
///
/// ```
/// use streamdoor::door::ProduceOptions;
///
/// let options = ProduceOptions { estimated_bytes: Some(200 << 20), ..Default::default() };
/// # drop(options);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProduceOptions {
    /// Bytes of the ring; the server takes the next larger class that it can spare.
    pub ring_bytes: Option<u32>,
    /// The longest chunk that it has to take at once.
    pub chunk_bytes: Option<u32>,
    /// How much there will be, if that is known: little needs no large ring.
    pub estimated_bytes: Option<u64>,
    /// What its readers get that do not say what they want; when it starts, and so on.
    pub execution: ExecuteOptions,
}

impl ReadOptions {
    /// The wishes stand in the query, as they do for streams over HTTP.
    pub(super) fn request(&self, execution: &str, token: Option<&str>) -> Vec<u8> {
        let wishes = Wishes {
            policy: self.policy,
            limit_chunks: self.limit_chunks,
            limit_bytes: self.limit_bytes,
            kinds: self.kinds,
            ..Wishes::default()
        };
        let follow = FollowOptions { from: self.from, wishes, ..FollowOptions::default() };
        let mut target = format!("/v1/executions/{}/door", request::path_piece(execution));
        let query_start = target.len();
        request::wishes(&mut target, &follow);
        if target.len() > query_start {
            target.replace_range(query_start..=query_start, "?");
        }
        spelled(Request::new(Method::Post, target), token)
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
        let request = Request::new(Method::Post, "/v1/door/executions");
        spelled(request.with_body(&Value::Object(body)), token)
    }
}

fn spelled(request: Request, token: Option<&str>) -> Vec<u8> {
    // Without a body, a server that is picky wants to be told so.
    let body = request.body.or_else(|| Some(Vec::new()));
    let accept = "application/x-ndjson";
    Request { accept, body, ..request }.write("localhost", token, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;

    #[test]
    fn wishes_are_spelled_as_streams_have_them() {
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
