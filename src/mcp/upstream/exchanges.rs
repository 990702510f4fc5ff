//! The messages of a server, and the requests that they belong to.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::mcp::codes;
use crate::wire::jsonrpc::{self, ErrorObject, Id, RpcMessage};

/// The open requests of one connection, by the ids that this client gave them. The id of a call is
/// also the token of its progress.
#[derive(Clone, Debug)]
pub struct Exchanges<T> {
    open: BTreeMap<u64, OpenRequest<T>>,
    next_id: u64,
}

#[derive(Clone, Debug)]
struct OpenRequest<T> {
    whose: T,
    is_call: bool,
}

/// An incoming message, assigned to its request.
#[derive(Debug, PartialEq)]
pub enum ServerMessage<T> {
    /// The reply to a request, which ends it.
    Answer(T, Result<Value, ErrorObject>),
    /// A notification that belongs to an open request.
    Notification(T, CallNotification),
    /// A log message that cannot be assigned to one request.
    Log(Map<String, Value>),
    /// The server's list of tools has changed.
    ToolsChanged,
    /// The server has sent a request, and this is the reply to send.
    Reply(Vec<u8>),
    /// The message has no effect.
    Ignored(Ignored),
}

/// A notification that comes while a call runs.
#[derive(Clone, Debug, PartialEq)]
pub enum CallNotification {
    /// The progress of the call.
    Progress {
        /// The progress so far.
        progress: f64,
        /// The total, if the server reports it.
        total: Option<f64>,
        /// A text for people, if the server sends one.
        message: Option<String>,
    },
    /// A piece of the result (the draft SEP-2998).
    Partial {
        /// The number of the piece, counted from 0.
        seq: Option<u64>,
        /// The content blocks.
        content: Vec<Value>,
    },
    /// A log message: `level`, `data` and perhaps `logger`.
    Log(Map<String, Value>),
}

/// The reason why a message has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ignored {
    /// It is not a valid message.
    Malformed,
    /// The reply belongs to no open request: its id is wrong, it is a second reply, or it is late.
    UnknownId,
    /// Progress or a piece of a result that belongs to no open call.
    UnknownToken,
    /// The notification has no use here, or its parameters are malformed.
    Unused,
}

impl<T> Default for Exchanges<T> {
    fn default() -> Exchanges<T> {
        Exchanges { open: BTreeMap::new(), next_id: 1 }
    }
}

impl<T: Clone> Exchanges<T> {
    /// Returns an empty table. The first request gets this id, and the ids that follow count up.
    pub fn starting_at(id: u64) -> Exchanges<T> {
        Exchanges { open: BTreeMap::new(), next_id: id }
    }

    /// Opens a request and returns its id. A call gets notes and a reply, and any other request
    /// only a reply.
    pub fn open(&mut self, whose: T, is_call: bool) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.open.insert(id, OpenRequest { whose, is_call });
        id
    }

    fn take(&mut self, id: Option<u64>) -> Option<T> {
        self.open.remove(&id?).map(|open| open.whose)
    }

    /// Closes a request whose reply is no longer wanted. Returns its owner if it was open.
    pub fn close(&mut self, id: u64) -> Option<T> {
        self.take(Some(id))
    }

    /// Closes all requests, and returns their owners.
    pub fn close_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.open).into_values().map(|open| open.whose)
    }

    /// True if no request is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes a message.
    pub fn on_message(&mut self, bytes: &[u8]) -> ServerMessage<T> {
        match jsonrpc::parse(bytes) {
            Ok(RpcMessage::Response { id, result }) => self.answered(id.as_ref(), result),
            Ok(RpcMessage::Notification { method, params }) => {
                self.noted(&method, params.into_map())
            }
            Ok(RpcMessage::Request { id, method, .. }) => ServerMessage::Reply(reply(&id, &method)),
            Err(malformed) => {
                // The owner of this request gets an error, so it does not wait in vain.
                match self.take(jsonrpc::answered_number(bytes)) {
                    Some(whose) => {
                        let message = format!("its answer is invalid: {}", malformed.message);
                        let error = ErrorObject { code: malformed.code, message, data: None };
                        ServerMessage::Answer(whose, Err(error))
                    }
                    None => ServerMessage::Ignored(Ignored::Malformed),
                }
            }
        }
    }

    fn answered(
        &mut self,
        id: Option<&Id>,
        result: Result<Value, ErrorObject>,
    ) -> ServerMessage<T> {
        let number = id.and_then(|id| id.to_value().as_u64());
        match self.take(number) {
            Some(whose) => ServerMessage::Answer(whose, result),
            None => ServerMessage::Ignored(Ignored::UnknownId),
        }
    }

    fn noted(&mut self, method: &str, mut params: Map<String, Value>) -> ServerMessage<T> {
        let (token, note) = match method {
            "notifications/progress" => ("progressToken", progress(&params)),
            "notifications/tools/partial_result" => ("partialResultToken", partial(&mut params)),
            "notifications/message" => return self.logged(params),
            "notifications/tools/list_changed" => return ServerMessage::ToolsChanged,
            "notifications/cancelled" => return self.cancelled(&params),
            _ => return ServerMessage::Ignored(Ignored::Unused),
        };
        let token = params.get(token).and_then(Value::as_u64);
        let open = token.and_then(|token| self.open.get(&token)).filter(|open| open.is_call);
        let Some(open) = open else { return ServerMessage::Ignored(Ignored::UnknownToken) };
        match note {
            Some(note) => ServerMessage::Notification(open.whose.clone(), note),
            None => ServerMessage::Ignored(Ignored::Unused),
        }
    }

    /// Assigns a log message to the open call, if exactly one is open.
    fn logged(&mut self, mut params: Map<String, Value>) -> ServerMessage<T> {
        params.remove("_meta");
        if !params.get("level").is_some_and(Value::is_string) || !params.contains_key("data") {
            return ServerMessage::Ignored(Ignored::Unused);
        }
        let mut calls = self.open.values().filter(|open| open.is_call);
        match (calls.next(), calls.next()) {
            (Some(only), None) => {
                ServerMessage::Notification(only.whose.clone(), CallNotification::Log(params))
            }
            _ => ServerMessage::Log(params),
        }
    }

    /// The server cancels an open request (B28: the one that listens).
    fn cancelled(&mut self, params: &Map<String, Value>) -> ServerMessage<T> {
        let id = params.get("requestId").and_then(Value::as_u64);
        match self.take(id) {
            Some(whose) => {
                let message = "its server cancelled it".to_owned();
                let error = ErrorObject { code: codes::INTERNAL, message, data: None };
                ServerMessage::Answer(whose, Err(error))
            }
            None => ServerMessage::Ignored(Ignored::UnknownId),
        }
    }
}

fn progress(params: &Map<String, Value>) -> Option<CallNotification> {
    let message = params.get("message").and_then(Value::as_str).map(str::to_owned);
    Some(CallNotification::Progress {
        progress: params.get("progress")?.as_f64()?,
        total: params.get("total").and_then(Value::as_f64),
        message,
    })
}

fn partial(params: &mut Map<String, Value>) -> Option<CallNotification> {
    let Some(Value::Array(content)) = params.remove("content") else { return None };
    Some(CallNotification::Partial { seq: params.get("seq").and_then(Value::as_u64), content })
}

/// Replies to a request of the server. Only `ping` succeeds, because no other capability was
/// declared.
fn reply(id: &Id, method: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match method {
        "ping" => jsonrpc::write_result(&mut out, id, &Value::Object(Map::new())),
        _ => {
            let text = "streamdoor does not support this method, because it did not declare the \
                        capability";
            jsonrpc::write_error(&mut out, Some(id), codes::METHOD_NOT_FOUND, text, None);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::META_CHUNKS;

    fn with_two() -> Exchanges<&'static str> {
        let mut exchanges = Exchanges::default();
        assert_eq!((exchanges.open("a", true), exchanges.open("b", true)), (1, 2));
        exchanges
    }

    fn on_message(
        exchanges: &mut Exchanges<&'static str>,
        message: &Value,
    ) -> ServerMessage<&'static str> {
        exchanges.on_message(message.to_string().as_bytes())
    }

    fn note(method: &str, params: Value) -> Value {
        json!({"jsonrpc": "2.0", "method": format!("notifications/{method}"), "params": params})
    }

    #[test]
    fn an_answer_belongs_to_its_request_once() {
        let mut exchanges = with_two();
        let answer = json!({"jsonrpc": "2.0", "id": 2, "result": {"x": 1}});
        assert_eq!(
            on_message(&mut exchanges, &answer),
            ServerMessage::Answer("b", Ok(json!({"x": 1})))
        );
        assert_eq!(on_message(&mut exchanges, &answer), ServerMessage::Ignored(Ignored::UnknownId));
        for id in [json!(3), json!("1"), json!(-1), json!(0), json!(null)] {
            let wrong = json!({"jsonrpc": "2.0", "id": id, "error": {"code": 1, "message": "m"}});
            assert_eq!(
                on_message(&mut exchanges, &wrong),
                ServerMessage::Ignored(Ignored::UnknownId),
                "{id}"
            );
        }
        assert_eq!(exchanges.close(1), Some("a"));
        assert!(exchanges.is_empty());
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_an_error_for_whoever_waits_for_it() {
        for broken in [
            json!({"jsonrpc": "2.0", "id": 1, "result": []}),
            json!({"jsonrpc": "2.0", "id": 1, "error": "no"}),
            json!({"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": ""}}),
            json!({"jsonrpc": "1.0", "id": 1, "result": {}}),
            json!({"jsonrpc": "2.0", "id": 1}),
        ] {
            let mut exchanges = with_two();
            let incoming = on_message(&mut exchanges, &broken);
            let ServerMessage::Answer("a", Err(error)) = incoming else {
                panic!("{broken}: {incoming:?}")
            };
            assert!(error.message.contains("its answer is invalid"), "{error:?}");
        }
    }

    #[test]
    fn an_answer_that_is_nested_too_deep_fails_at_once() {
        for depth in [200, 100_000] {
            let (open, close) = ("[".repeat(depth), "]".repeat(depth));
            for members in [
                format!("\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"a\":{open}{close}}}"),
                format!("\"result\":{{\"a\":{open}{close}}},\"id\":1,\"jsonrpc\":\"2.0\""),
                format!("\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{open}{close}"),
            ] {
                let mut exchanges = with_two();
                let incoming = exchanges.on_message(format!("{{{members}}}").as_bytes());
                let ServerMessage::Answer("a", Err(error)) = incoming else {
                    panic!("{depth}: {incoming:?}")
                };
                assert!(error.message.contains("its answer is invalid"), "{error:?}");
            }
            // A request of its own is no answer to ours.
            let mut exchanges = with_two();
            let asked = format!("{{\"id\":1,\"method\":\"x\",\"params\":{open}{close}}}");
            assert_eq!(
                exchanges.on_message(asked.as_bytes()),
                ServerMessage::Ignored(Ignored::Malformed)
            );
        }
    }

    #[test]
    fn notes_belong_to_calls_that_run_and_to_nothing_else() {
        let mut exchanges = with_two();
        let progress = |token: Value| {
            let params = json!({"progressToken": token, "progress": 1, "message": "m"});
            note("progress", params)
        };
        let told = CallNotification::Progress {
            progress: 1.0,
            total: None,
            message: Some("m".to_owned()),
        };
        assert_eq!(
            on_message(&mut exchanges, &progress(json!(1))),
            ServerMessage::Notification("a", told.clone())
        );
        // Its chunks have no use here, because their text comes as a partial result. Entries that
        // do not fit the message change nothing.
        for length in [json!(1), json!(2), json!(u64::MAX), json!(-1), json!({})] {
            let mut message = progress(json!(1));
            let entry = json!({"seq": 1, "encoding": "message", "length": length});
            message["params"]["_meta"] = json!({META_CHUNKS: [entry, entry]});
            let incoming = on_message(&mut exchanges, &message);
            assert_eq!(incoming, ServerMessage::Notification("a", told.clone()), "{length}");
        }
        for token in [json!(3), json!("1"), json!(null), json!([1])] {
            let incoming = on_message(&mut exchanges, &progress(token));
            assert_eq!(incoming, ServerMessage::Ignored(Ignored::UnknownToken));
        }
        let content = vec![json!({"type": "text", "text": "t"})];
        let params = json!({"partialResultToken": 2, "seq": 4, "content": content});
        let told = CallNotification::Partial { seq: Some(4), content };
        let incoming = on_message(&mut exchanges, &note("tools/partial_result", params));
        assert_eq!(incoming, ServerMessage::Notification("b", told));
        // After its end.
        exchanges.close(1);
        let incoming = on_message(&mut exchanges, &progress(json!(1)));
        assert_eq!(incoming, ServerMessage::Ignored(Ignored::UnknownToken));
        // A request that is no call.
        assert_eq!(exchanges.open("list", false), 3);
        let incoming = on_message(&mut exchanges, &progress(json!(3)));
        assert_eq!(incoming, ServerMessage::Ignored(Ignored::UnknownToken));
    }

    #[test]
    fn what_makes_no_sense_is_ignored() {
        let mut exchanges = with_two();
        for (method, params) in [
            ("progress", json!({"progressToken": 1})),
            ("progress", json!({"progressToken": 1, "progress": "1"})),
            ("tools/partial_result", json!({"partialResultToken": 1, "content": {}})),
            ("message", json!({"level": "info"})),
            ("message", json!({"level": 1, "data": "x"})),
            ("resources/updated", json!({"uri": "a:b"})),
        ] {
            let incoming = on_message(&mut exchanges, &note(method, params));
            assert_eq!(incoming, ServerMessage::Ignored(Ignored::Unused), "{method}");
        }
        for line in ["", "banner", "[]", "{\"jsonrpc\":\"2.0\"}", "{\"a\":", "\u{feff}{}"] {
            let incoming = exchanges.on_message(line.as_bytes());
            assert_eq!(incoming, ServerMessage::Ignored(Ignored::Malformed), "{line}");
        }
        assert_eq!(exchanges.on_message(b"\xff\xfe"), ServerMessage::Ignored(Ignored::Malformed));
        assert_eq!(exchanges.close_all().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn log_messages_belong_to_the_only_call_or_to_none() {
        let mut exchanges = Exchanges::default();
        exchanges.open("listener", false);
        exchanges.open("call", true);
        let line = json!({"level": "info", "data": "x", "_meta": {"a": 1}});
        let said = json!({"level": "info", "data": "x"}).as_object().cloned().unwrap();
        let incoming = on_message(&mut exchanges, &note("message", line.clone()));
        assert_eq!(
            incoming,
            ServerMessage::Notification("call", CallNotification::Log(said.clone()))
        );
        exchanges.open("another", true);
        assert_eq!(on_message(&mut exchanges, &note("message", line)), ServerMessage::Log(said));
    }

    #[test]
    fn a_server_that_asks_is_answered() {
        // A32, A44: a ping is answered; nothing else was declared.
        let mut exchanges = with_two();
        let ask = |method: &str| json!({"jsonrpc": "2.0", "id": "q", "method": method});
        let reply = |incoming: ServerMessage<&str>| match incoming {
            ServerMessage::Reply(bytes) => serde_json::from_slice::<Value>(&bytes).unwrap(),
            other => panic!("{other:?}"),
        };
        let ping = reply(on_message(&mut exchanges, &ask("ping")));
        assert_eq!(ping, json!({"jsonrpc": "2.0", "id": "q", "result": {}}));
        for method in ["sampling/createMessage", "elicitation/create", "roots/list", "x"] {
            let refused = reply(on_message(&mut exchanges, &ask(method)));
            assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("q"), &json!(-32_601)));
        }
        assert_eq!(
            on_message(&mut exchanges, &note("tools/list_changed", json!({}))),
            ServerMessage::ToolsChanged
        );
    }
}
