//! Any lines as messages of an upstream MCP server. Each of our requests is answered at most once,
//! and receives nothing afterwards. A result's text is published whole, however it was split. Every
//! offered tool has a unique name.

use serde_json::Value;
use streamdoor::mcp::upstream::{
    CallNotification, CallOutput, CallResult, Exchanges, Greeted, Greeting, Listing, OutputPiece,
    ServerMessage, own_name,
};
use streamdoor::tool::is_tool_name;

use super::jsonrpc_lines::check_line;

/// Checks a stream of messages.
pub fn check(data: &[u8]) {
    let mut exchanges = Exchanges::default();
    assert_eq!(exchanges.open(Request::Greeting, false), 1);
    assert_eq!(exchanges.open(Request::List, false), 2);
    let mut calls = [Call::new(false), Call::new(true)];
    for at in 0..calls.len() {
        exchanges.open(Request::Call(at), true);
    }
    let mut answered = Vec::new();
    for line in data.split(|byte| *byte == b'\n') {
        match exchanges.on_message(line) {
            ServerMessage::Answer(request, answer) => {
                assert!(!answered.contains(&request), "{request:?} is answered twice");
                answered.push(request);
                match request {
                    Request::Call(at) => calls[at].answered(answer),
                    Request::Greeting => greet(&answer),
                    Request::List => list(&answer.unwrap_or_default()),
                }
            }
            ServerMessage::Notification(request, note) => {
                assert!(!answered.contains(&request), "{request:?} hears of itself too late");
                let Request::Call(at) = request else { panic!("{request:?} is no call") };
                calls[at].hear(note);
            }
            ServerMessage::Reply(reply) => {
                check_line(&reply);
                serde_json::from_slice::<Value>(&reply).expect("it is a message");
            }
            ServerMessage::Log(_) | ServerMessage::ToolsChanged | ServerMessage::Ignored(_) => {}
        }
    }
    let open = exchanges.close_all().count();
    assert_eq!(open + answered.len(), 4);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Request {
    Greeting,
    List,
    Call(usize),
}

fn greet(answer: &Result<Value, streamdoor::wire::jsonrpc::ErrorObject>) {
    for known in [None, Some(streamdoor::mcp::Era::Handshake)] {
        let (mut greeting, _) = Greeting::begin(known);
        // Whatever it answers, it receives at most one more request.
        if let Ok(Greeted::Ask(_)) = greeting.answered(answer) {
            assert!(!matches!(greeting.answered(answer), Ok(Greeted::Ask(_))));
        }
    }
}

fn list(page: &Value) {
    let (mut greeting, _) = Greeting::begin(Some(streamdoor::mcp::Era::Handshake));
    let agreed = serde_json::json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    let Ok(Greeted::Ready(dialect)) = greeting.answered(&Ok(agreed)) else {
        panic!("it is an answer")
    };
    let mut listing = Listing::new("p", &dialect);
    let taken = listing.take(page);
    assert!(taken != Ok(None) || page["tools"].is_array());
    let (offers, turned) = listing.finish();
    for (at, offer) in offers.iter().enumerate() {
        assert!(is_tool_name(&offer.spec.name), "{}", offer.spec.name);
        assert!(offers[..at].iter().all(|other| other.spec.name != offer.spec.name));
        assert_eq!(own_name("p", &offer.name), offer.spec.name);
    }
    let tool_count = page["tools"].as_array().map_or(0, Vec::len);
    assert!(offers.len() + turned.len() <= tool_count);
}

/// The published output of one call.
struct Call {
    passing: CallOutput,
    text: String,
}

impl Call {
    fn new(owes_structure: bool) -> Call {
        Call { passing: CallOutput::new(owes_structure), text: String::new() }
    }

    fn take(&mut self, pieces: Vec<OutputPiece>) {
        for piece in pieces {
            if let OutputPiece::Text { text, .. } = piece {
                self.text.push_str(&text);
            }
        }
    }

    fn hear(&mut self, note: CallNotification) {
        let pieces = self.passing.on_notification(note);
        self.take(pieces);
    }

    fn answered(&mut self, answer: Result<Value, streamdoor::wire::jsonrpc::ErrorObject>) {
        let content = answer.as_ref().map(|result| result["content"].clone()).unwrap_or_default();
        match self.passing.answered(answer) {
            CallResult::Completed(pieces) => {
                self.take(pieces);
                let is_plain = |block: &&Value| {
                    let members = block.as_object().expect("it was taken");
                    members
                        .iter()
                        .all(|(name, value)| matches!(&**name, "type" | "text") || value.is_null())
                        && block["type"] == "text"
                };
                let texts = content.as_array().into_iter().flatten().filter(is_plain);
                let whole: String = texts.filter_map(|block| block["text"].as_str()).collect();
                assert!(self.text.ends_with(&whole), "{:?} lacks {whole:?}", self.text);
            }
            CallResult::Failed(_, why) => assert!(!why.is_empty() && why.len() < 20 << 10),
            CallResult::Task(_) => {}
        }
    }
}
