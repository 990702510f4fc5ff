//! A client of MCP in the simulated world, over HTTP, with one message on each connection.

use std::time::Duration;

use serde_json::{Value, json};

use crate::sim::network::SimClient;
use crate::sim::server::test_server::TestServer;
use crate::stream::Policy;
use crate::tool::{Need, Prepared, SubscribeDefaults, ToolSpec, Tools};

pub const MOMENT: Duration = Duration::from_millis(1);

/// The `_meta` fields of the stateless era.
pub fn alone() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
    })
}

/// An MCP client of the simulated server.
pub struct Mcp {
    pub test_server: TestServer,
    pub session: Option<String>,
    pub next_id: u64,
}

/// Messages that came on a stream, each with its id, and whether the stream is over.
#[derive(Debug, Default)]
pub struct ReceivedMessages {
    pub status: String,
    pub head: String,
    pub messages: Vec<(String, Value)>,
    pub is_over: bool,
}

impl ReceivedMessages {
    pub fn read(text: &str) -> ReceivedMessages {
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            return ReceivedMessages::default();
        };
        let is_stream = head.contains("text/event-stream");
        let mut heard = ReceivedMessages {
            status: head.get(9..12).unwrap_or("").to_owned(),
            head: head.to_owned(),
            is_over: !is_stream || body.ends_with("0\r\n\r\n") || body.contains("0\r\n\r\n<end>"),
            ..ReceivedMessages::default()
        };
        if !is_stream {
            let value = serde_json::from_str(body.trim_end_matches("<end>")).unwrap_or_default();
            heard.messages.push((String::new(), value));
            return heard;
        }
        heard.add(body);
        heard
    }

    /// Adds a further piece of a stream.
    pub fn add(&mut self, body: &str) {
        let mut id = String::new();
        for line in body.lines() {
            if let Some(text) = line.strip_prefix("id: ") {
                id = text.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                let value = match data {
                    "" => Value::Null,
                    data => serde_json::from_str(data).expect(data),
                };
                self.messages.push((id.clone(), value));
            }
        }
        self.is_over |= body.ends_with("0\r\n\r\n") || body.ends_with("0\r\n\r\n<end>");
    }

    pub fn answers(&self) -> Vec<&Value> {
        let all = self.messages.iter().map(|(_, message)| message);
        all.filter(|message| message.get("result").is_some() || message.get("error").is_some())
            .collect()
    }

    /// The only answer.
    pub fn answer(&self) -> &Value {
        let answers = self.answers();
        assert_eq!(answers.len(), 1, "{self:?}");
        answers[0]
    }

    pub fn progress(&self) -> Vec<&Value> {
        let all = self.messages.iter().map(|(_, message)| message);
        all.filter(|message| message["method"] == "notifications/progress").collect()
    }

    pub fn last_id(&self) -> &str {
        self.messages.last().map_or("", |(id, _)| id)
    }

    /// The numbers of the received chunks, in their order.
    pub fn chunks(&self) -> Vec<u64> {
        let notes = self.progress();
        let chunks = notes.iter().flat_map(|note| {
            note["params"]["_meta"]["dev.streamdoor/chunks"].as_array().cloned().unwrap_or_default()
        });
        chunks.map(|chunk| chunk["seq"].as_u64().unwrap()).collect()
    }

    /// The received gaps.
    pub fn gaps(&self) -> Vec<Value> {
        let notes = self.progress();
        let gaps = notes.iter().map(|note| &note["params"]["_meta"]["dev.streamdoor/gap"]);
        gaps.filter(|gap| !gap.is_null()).cloned().collect()
    }

    pub fn assert_rises(&self) {
        let numbers: Vec<f64> = (self.progress().iter())
            .map(|note| note["params"]["progress"].as_f64().unwrap())
            .collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    }
}

impl Mcp {
    pub fn new() -> Mcp {
        Mcp::of(TestServer::new())
    }

    pub fn of(test_server: TestServer) -> Mcp {
        Mcp { test_server, session: None, next_id: 0 }
    }

    /// A client with a session.
    pub fn begun() -> Mcp {
        let mut mcp = Mcp::new();
        mcp.begin();
        mcp
    }

    pub fn begin(&mut self) -> String {
        self.session = None;
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "c", "version": "1"},
        });
        let heard = self.ask("initialize", params);
        let line = heard.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        let session = line.expect("a session begins").to_owned();
        self.session = Some(session.clone());
        let told = self.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert!(self.test_server.hear(told).starts_with("HTTP/1.1 202 "));
        session
    }

    pub fn request(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params})
    }

    /// Sends a message on a connection of its own.
    pub fn post(&mut self, message: &Value) -> SimClient {
        let body = message.to_string();
        let mut head = String::from(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n",
        );
        let params = &message["params"];
        let version = params["_meta"]["io.modelcontextprotocol/protocolVersion"].as_str();
        match (version, &self.session) {
            (Some(version), _) => {
                head += &format!("MCP-Protocol-Version: {version}\r\n");
                head += &format!("Mcp-Method: {}\r\n", message["method"].as_str().unwrap());
                let name = ["name", "uri", "taskId"].iter().find_map(|name| params[*name].as_str());
                if let Some(name) = name {
                    head += &format!("Mcp-Name: {name}\r\n");
                }
            }
            (None, Some(session)) => head += &format!("Mcp-Session-Id: {session}\r\n"),
            (None, None) => {}
        }
        self.test_server.visit(&format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
    }

    /// Sends a request. Returns the immediate response.
    pub fn ask(&mut self, method: &str, params: Value) -> ReceivedMessages {
        let message = self.request(method, params);
        let client = self.post(&message);
        let heard = ReceivedMessages::read(&self.test_server.hear(client));
        self.test_server.world.client_close(client);
        heard
    }

    /// Calls a tool.
    pub fn call(&mut self, arguments: Value, meta: Value) -> SimClient {
        let params = json!({"name": "slow_data_processor", "arguments": arguments, "_meta": meta});
        let message = self.request("tools/call", params);
        self.post(&message)
    }

    /// Calls a tool like `slow_data_processor`, whose subscribers may miss chunks.
    pub fn call_lossy(&mut self, arguments: Value, meta: Value) -> SimClient {
        let subscribers = SubscribeDefaults { policy: Policy::Drop, ..Default::default() };
        let spec = ToolSpec { subscribers, ..ToolSpec::new("lossy", "Makes chunks of text.") };
        let prepare = |arguments: &Value, _: Need| {
            let prepared = Tools::built_in().prepare("slow_data_processor", arguments);
            let Prepared { work, need, .. } = prepared.expect("the arguments are right");
            Ok((work.into_inner(), need))
        };
        self.test_server.shards[0].tools_mut().insert(spec, prepare).unwrap();
        let params = json!({"name": "lossy", "arguments": arguments, "_meta": meta});
        let message = self.request("tools/call", params);
        self.post(&message)
    }

    /// The result of one of the server's own tools.
    pub fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let heard = self.ask("tools/call", json!({"name": name, "arguments": arguments}));
        heard.answer()["result"].clone()
    }

    /// Resumes a stream that was cut.
    pub fn resume(&mut self, behind: &str) -> SimClient {
        let session = self.session.clone().unwrap();
        self.test_server.visit(&format!(
            "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\
             Mcp-Session-Id: {session}\r\nLast-Event-ID: {behind}\r\n\r\n"
        ))
    }

    pub fn states(&mut self) -> Vec<String> {
        let heard = self.test_server.get("/v1/executions");
        let body = heard.split_once("\r\n\r\n").unwrap().1;
        let all: Value = serde_json::from_str(body).unwrap();
        let all = all["executions"].as_array().unwrap().clone();
        all.iter().map(|one| one["state"].as_str().unwrap().to_owned()).collect()
    }
}

pub fn slow(chunks: u64, delay_ms: u64) -> Value {
    json!({"chunks": chunks, "delay_ms": delay_ms, "chunk_size": 20})
}
