//! A client of the Model Context Protocol, of one era or the other. It answers questions.

use std::io::{BufRead, BufReader, Write};

use serde_json::{Value, json};

use crate::served::Server;
use crate::world::{Response, post, request_head};

/// The way in which a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    Handshake,
    Stateless,
}

/// The arguments of a server with two shards, where that is possible.
pub fn two_shards() -> &'static [&'static str] {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => &["--cpus", "0"],
        _ => &["--cpus", "0,1"],
    }
}

pub struct Client<'a> {
    server: &'a Server,
    pub era: Era,
    token: String,
    pub session: Option<String>,
}

/// The capabilities of a client that shows forms.
fn forms() -> Value {
    json!({"elicitation": {}})
}

/// An answer: the message, and the text of it.
pub struct Answer {
    pub status: u16,
    pub text: String,
}

impl Answer {
    fn message(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn result(&self) -> Value {
        let message = self.message();
        assert!(message.get("result").is_some(), "{message}");
        message["result"].clone()
    }

    pub fn error(&self) -> Value {
        let message = self.message();
        assert!(message.get("error").is_some(), "{message}");
        message["error"].clone()
    }
}

impl<'a> Client<'a> {
    pub fn new(server: &'a Server, era: Era) -> Client<'a> {
        Client::with_token(server, era, "")
    }

    /// A client with a token, if it is not empty.
    pub fn with_token(server: &'a Server, era: Era, token: &str) -> Client<'a> {
        let mut client = Client { server, era, token: token.to_owned(), session: None };
        if era == Era::Handshake {
            let info = json!({"name": "restarts", "version": "0"});
            let version = "2025-11-25";
            let params =
                json!({"protocolVersion": version, "capabilities": forms(), "clientInfo": info});
            let response = client.post("initialize", &params);
            let name = "mcp-session-id: ";
            let line = response.head.lines().find_map(|line| line.strip_prefix(name));
            client.session = Some(line.expect("it has sessions").to_owned());
        }
        client
    }

    fn post(&self, method: &str, params: &Value) -> Response {
        let (headers, message) = self.request(method, params);
        post(self.server, "/mcp", &headers, &message)
    }

    /// The headers and the body of a request.
    fn request(&self, method: &str, params: &Value) -> (String, String) {
        let mut params = params.clone();
        let mut headers = String::from("Content-Type: application/json\r\n");
        headers += "Accept: application/json, text/event-stream\r\n";
        if !self.token.is_empty() {
            headers += &format!("Authorization: Bearer {}\r\n", self.token);
        }
        if let Some(session) = &self.session {
            headers += &format!("Mcp-Session-Id: {session}\r\n");
        }
        if self.era == Era::Stateless {
            let version = "2026-07-28";
            headers += &format!("MCP-Protocol-Version: {version}\r\nMcp-Method: {method}\r\n");
            let members = ["name", "uri", "taskId"];
            if let Some(name) = members.iter().find_map(|member| params[member].as_str()) {
                headers += &format!("Mcp-Name: {name}\r\n");
            }
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = version.into();
            let mut capabilities = forms();
            capabilities["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
            meta["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        }
        // Each request waits for its answer, so all of them can have the same id.
        let message = json!({"jsonrpc": "2.0", "id": "same", "method": method, "params": params});
        (headers, message.to_string())
    }

    /// Waits for the result of a task in the handshake era. Each question is answered with what
    /// `answer` returns for its message; `None` leaves without the result.
    pub fn await_result(
        &self,
        task: &str,
        mut answer: impl FnMut(&str) -> Option<Value>,
    ) -> Option<Value> {
        let (headers, body) = self.request("tasks/result", &json!({"taskId": task}));
        let mut stream = self.server.connect();
        let head = request_head("POST /mcp", &headers, &body);
        write!(stream, "{head}{body}").unwrap();
        for line in BufReader::new(stream).lines() {
            let line = line.unwrap();
            let message = line.strip_prefix("data: ").and_then(|text| {
                serde_json::from_str::<Value>(text).ok() // The first event has no message.
            });
            let Some(message) = message else { continue };
            if message["method"] != "elicitation/create" {
                return Some(message["result"].clone());
            }
            let filled = answer(message["params"]["message"].as_str().unwrap())?;
            let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": filled});
            let (headers, _) = self.request("", &json!({}));
            let heard = post(self.server, "/mcp", &headers, &reply.to_string());
            assert_eq!(heard.status, 202);
        }
        panic!("the stream has ended without the result");
    }

    pub fn ask(&self, method: &str, params: Value) -> Answer {
        let response = self.post(method, &params);
        let body = String::from_utf8(response.body).unwrap();
        let text = match response.head.contains("text/event-stream") {
            true => body.lines().filter_map(|line| line.strip_prefix("data: ")).next_back(),
            false => Some(&*body),
        };
        let text = text.unwrap_or_else(|| panic!("no answer: {body}")).to_owned();
        Answer { status: response.status, text }
    }

    /// Runs a tool as a task. Returns the id of the task.
    pub fn begin(&self, tool: &str, arguments: Value, ttl_ms: u64) -> String {
        let mut params = json!({"name": tool, "arguments": arguments});
        if self.era == Era::Handshake {
            params["task"] = json!({"ttl": ttl_ms});
        }
        let result = self.ask("tools/call", params).result();
        let task = if self.era == Era::Handshake { &result["task"] } else { &result };
        task["taskId"].as_str().unwrap_or_else(|| panic!("no task: {result}")).to_owned()
    }

    /// Asks about a task.
    pub fn ask_task(&self, method: &str, task: &str) -> Answer {
        self.ask(method, json!({"taskId": task}))
    }

    /// Waits until a task has ended.
    pub fn finish(&self, task: &str) {
        let is_over =
            |status: &Value| !["working", "input_required"].contains(&status.as_str().unwrap());
        while !is_over(&self.ask_task("tasks/get", task).result()["status"]) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Everything that the server says of a task that has ended.
    pub fn tell(&self, task: &str) -> Vec<String> {
        let methods: &[&str] = match self.era {
            Era::Handshake => &["tasks/get", "tasks/result"],
            Era::Stateless => &["tasks/get"],
        };
        methods.iter().map(|method| self.ask_task(method, task).text).collect()
    }
}
