//! Calls of MCP in simulated time: answered once, cut and gone on with, cancelled, held back.

use std::time::Duration;

use serde_json::{Value, json};

use super::house::House;
use crate::limits;
use crate::shard::ShardConfig;
use crate::sim::network::SimClient;

const MOMENT: Duration = Duration::from_millis(1);

/// What belongs to the stateless era.
pub(super) fn alone() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
    })
}

/// A client of the house.
pub(super) struct Mcp {
    pub(super) house: House,
    session: Option<String>,
    next_id: u64,
}

/// Messages that came on a stream, each with its id; and whether the stream is over.
#[derive(Debug, Default)]
pub(super) struct Heard {
    status: String,
    head: String,
    messages: Vec<(String, Value)>,
    is_over: bool,
}

impl Heard {
    fn read(text: &str) -> Heard {
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return Heard::default() };
        let is_stream = head.contains("text/event-stream");
        let mut heard = Heard {
            status: head.get(9..12).unwrap_or("").to_owned(),
            head: head.to_owned(),
            is_over: !is_stream || body.ends_with("0\r\n\r\n") || body.contains("0\r\n\r\n<end>"),
            ..Heard::default()
        };
        if !is_stream {
            let value = serde_json::from_str(body.trim_end_matches("<end>")).unwrap_or_default();
            heard.messages.push((String::new(), value));
            return heard;
        }
        heard.add(body);
        heard
    }

    /// More of a stream.
    fn add(&mut self, body: &str) {
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

    fn answers(&self) -> Vec<&Value> {
        let all = self.messages.iter().map(|(_, message)| message);
        all.filter(|message| message.get("result").is_some() || message.get("error").is_some())
            .collect()
    }

    /// The one answer.
    pub(super) fn answer(&self) -> &Value {
        let answers = self.answers();
        assert_eq!(answers.len(), 1, "{self:?}");
        answers[0]
    }

    fn progress(&self) -> Vec<&Value> {
        let all = self.messages.iter().map(|(_, message)| message);
        all.filter(|message| message["method"] == "notifications/progress").collect()
    }

    fn last_id(&self) -> &str {
        self.messages.last().map_or("", |(id, _)| id)
    }

    /// The numbers of the chunks that were told, in their order.
    fn chunks(&self) -> Vec<u64> {
        let notes = self.progress();
        let chunks = notes.iter().flat_map(|note| {
            note["params"]["_meta"]["dev.streamdoor/chunks"].as_array().cloned().unwrap_or_default()
        });
        chunks.map(|chunk| chunk["seq"].as_u64().unwrap()).collect()
    }

    fn assert_rises(&self) {
        let numbers: Vec<f64> = (self.progress().iter())
            .map(|note| note["params"]["progress"].as_f64().unwrap())
            .collect();
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    }
}

impl Mcp {
    fn new() -> Mcp {
        Mcp::of(House::new())
    }

    pub(super) fn of(house: House) -> Mcp {
        Mcp { house, session: None, next_id: 0 }
    }

    /// With a session.
    fn begun() -> Mcp {
        let mut mcp = Mcp::new();
        mcp.begin();
        mcp
    }

    pub(super) fn begin(&mut self) -> String {
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
        assert!(self.house.hear(told).starts_with("HTTP/1.1 202 "));
        session
    }

    fn request(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        json!({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params})
    }

    /// Sends a message on a connection of its own.
    fn post(&mut self, message: &Value) -> SimClient {
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
        self.house.visit(&format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
    }

    /// What is answered at once.
    pub(super) fn ask(&mut self, method: &str, params: Value) -> Heard {
        let message = self.request(method, params);
        let client = self.post(&message);
        let heard = Heard::read(&self.house.hear(client));
        self.house.world.client_close(client);
        heard
    }

    /// Calls a tool.
    pub(super) fn call(&mut self, arguments: Value, meta: Value) -> SimClient {
        let params = json!({"name": "slow_data_processor", "arguments": arguments, "_meta": meta});
        let message = self.request("tools/call", params);
        self.post(&message)
    }

    /// The result of a tool of ours.
    pub(super) fn tool(&mut self, name: &str, arguments: Value) -> Value {
        let heard = self.ask("tools/call", json!({"name": name, "arguments": arguments}));
        heard.answer()["result"].clone()
    }

    /// Goes on with a stream that was cut.
    fn resume(&mut self, behind: &str) -> SimClient {
        let session = self.session.clone().unwrap();
        self.house.visit(&format!(
            "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\
             Mcp-Session-Id: {session}\r\nLast-Event-ID: {behind}\r\n\r\n"
        ))
    }

    fn states(&mut self) -> Vec<String> {
        let heard = self.house.get("/v1/executions");
        let body = heard.split_once("\r\n\r\n").unwrap().1;
        let all: Value = serde_json::from_str(body).unwrap();
        let all = all["executions"].as_array().unwrap().clone();
        all.iter().map(|one| one["state"].as_str().unwrap().to_owned()).collect()
    }
}

pub(super) fn slow(chunks: u64, delay_ms: u64) -> Value {
    json!({"chunks": chunks, "delay_ms": delay_ms, "chunk_size": 20})
}

#[test]
fn a_call_is_answered_once_behind_all_that_was_told_of_it() {
    for meta in [json!({"progressToken": 0}), {
        let mut meta = alone();
        meta["progressToken"] = "t".into();
        meta
    }] {
        let mut mcp = Mcp::begun();
        let client = mcp.call(slow(10, 100), meta.clone());
        let first = Heard::read(&mcp.house.hear(client));
        assert_eq!(first.status, "200");
        assert!(!first.progress().is_empty() && !first.is_over, "{first:?}");
        mcp.house.pass(Duration::from_secs(2));
        let mut heard = first;
        heard.add(&mcp.house.hear(client));
        assert!(heard.is_over);
        heard.assert_rises();
        assert_eq!(heard.chunks(), (1..=10).collect::<Vec<u64>>());
        let token = &heard.progress()[0]["params"]["progressToken"];
        assert_eq!(*token, meta["progressToken"]);
        let (_, last) = heard.messages.last().unwrap();
        assert_eq!(last, heard.answer());
        let text = last["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("chunk 10 of 10") && text.len() == 200, "{text}");
        assert!(last["result"]["_meta"]["progressToken"].as_str().unwrap().len() >= 32);
    }
}

#[test]
fn who_wants_to_be_told_nothing_is_answered_with_one_message() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(3, 100), json!({}));
    mcp.house.pass(Duration::from_secs(1));
    let heard = Heard::read(&mcp.house.hear(client));
    assert!(heard.head.contains("application/json"), "{heard:?}");
    assert_eq!(heard.answer()["id"], 2);
    // The connection is free again.
    mcp.house.say(client, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(mcp.house.hear(client).starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_long_silence_becomes_a_stream_that_says_that_it_lives() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(2, 40_000), json!({}));
    mcp.house.pass(Duration::from_secs(35));
    let text = mcp.house.hear(client);
    assert!(text.contains("text/event-stream") && text.contains(":\n\n"), "{text}");
    let mut heard = Heard::read(&text);
    mcp.house.pass(Duration::from_secs(10));
    heard.add(&mcp.house.hear(client));
    assert!(heard.is_over);
    heard.answer();
}

#[test]
fn a_session_that_is_cut_off_goes_on_where_it_was() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(10, 100), json!({"progressToken": 7}));
    mcp.house.pass(Duration::from_millis(450));
    let mut heard = Heard::read(&mcp.house.hear(client));
    let seen = heard.chunks().len();
    assert!((3..8).contains(&seen), "{heard:?}");
    mcp.house.world.client_reset(client);
    mcp.house.pass(Duration::from_millis(300));
    assert_eq!(mcp.states(), ["running"], "it goes on");
    let back = mcp.resume(heard.last_id());
    mcp.house.pass(Duration::from_secs(2));
    let again = Heard::read(&mcp.house.hear(back));
    assert_eq!(again.status, "200");
    assert!(again.is_over, "{again:?}");
    again.answer();
    heard.messages.extend(again.messages);
    assert_eq!(heard.chunks(), (1..=10).collect::<Vec<u64>>());
    heard.assert_rises();
    let ids: Vec<&String> = heard.messages.iter().map(|(id, _)| id).collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids.len(), "no id is there twice: {ids:?}");
}

#[test]
fn an_answer_that_got_lost_is_there_for_who_comes_back() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(3, 100), json!({"progressToken": 7}));
    let first = Heard::read(&mcp.house.hear(client));
    mcp.house.world.client_reset(client);
    mcp.house.pass(Duration::from_secs(3));
    assert_eq!(mcp.states(), ["completed"]);
    let back = mcp.resume(first.last_id());
    mcp.house.pass(MOMENT);
    let again = Heard::read(&mcp.house.hear(back));
    assert!(again.is_over);
    again.answer();
    let mut chunks = first.chunks();
    chunks.extend(again.chunks());
    assert_eq!(chunks, [1, 2, 3]);
    // It is told again as often as it gets lost, to this session alone.
    for behind in [first.last_id(), again.messages[0].0.as_str()] {
        let third = mcp.resume(behind);
        mcp.house.pass(MOMENT);
        let heard = Heard::read(&mcp.house.hear(third));
        assert!(heard.is_over, "{heard:?}");
        heard.answer();
    }
    mcp.begin();
    let stranger = mcp.resume(first.last_id());
    mcp.house.pass(MOMENT);
    assert_eq!(Heard::read(&mcp.house.hear(stranger)).status, "400");
}

#[test]
fn a_request_that_stands_for_itself_ends_with_its_connection() {
    let mut mcp = Mcp::new();
    let mut meta = alone();
    meta["progressToken"] = 1.into();
    for is_reset in [true, false] {
        let client = mcp.call(slow(100, 1_000), meta.clone());
        mcp.house.pass(Duration::from_secs(2));
        assert_eq!(mcp.states().last().unwrap(), "running");
        match is_reset {
            true => mcp.house.world.client_reset(client),
            false => mcp.house.world.client_close(client),
        }
        mcp.house.pass(Duration::from_secs(1));
        assert!(mcp.states().iter().all(|state| state == "cancelled"), "{:?}", mcp.states());
    }
}

#[test]
fn a_cancelled_call_is_stopped_and_not_answered() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(100, 1_000), json!({"progressToken": 1}));
    mcp.house.pass(Duration::from_secs(2));
    let id = mcp.next_id;
    // Somebody else's request of the same name is none of his.
    let session = mcp.session.clone();
    mcp.begin();
    let cancel = json!({
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": id, "reason": "enough"},
    });
    let told = mcp.post(&cancel);
    assert!(mcp.house.hear(told).starts_with("HTTP/1.1 202 "));
    mcp.house.pass(Duration::from_secs(1));
    assert_eq!(mcp.states(), ["running"]);
    mcp.session = session;
    let told = mcp.post(&cancel);
    assert!(mcp.house.hear(told).starts_with("HTTP/1.1 202 "));
    mcp.house.pass(Duration::from_secs(1));
    assert_eq!(mcp.states(), ["cancelled"]);
    let heard = Heard::read(&mcp.house.hear(client));
    assert!(heard.is_over && heard.answers().is_empty(), "{heard:?}");
}

#[test]
fn who_takes_nothing_for_a_while_is_told_what_it_missed_and_answered() {
    let mut mcp = Mcp::begun();
    let many = json!({"chunks": 3_000, "delay_ms": 1, "chunk_size": 200});
    let meta = json!({"progressToken": 1, "dev.streamdoor/stream": false});
    let client = mcp.call(many, meta);
    mcp.house.pass(Duration::from_secs(10));
    assert_eq!(mcp.states(), ["completed"], "nobody was held back");
    let mut text = String::new();
    for _ in 0..400 {
        text += &mcp.house.hear(client);
        mcp.house.pass(MOMENT);
    }
    let heard = Heard::read(&text);
    assert!(heard.is_over);
    heard.assert_rises();
    let (mut next, mut missed) = (1, 0);
    for note in heard.progress() {
        let meta = &note["params"]["_meta"];
        let gap = &meta["dev.streamdoor/gap"];
        if let Some(from) = gap["from_seq"].as_u64() {
            assert_eq!(from, next);
            next = gap["to_seq"].as_u64().unwrap() + 1;
            missed += gap["chunk_count"].as_u64().unwrap();
        }
        for chunk in meta["dev.streamdoor/chunks"].as_array().into_iter().flatten() {
            assert_eq!(chunk["seq"], next);
            next += 1;
        }
    }
    assert_eq!(next, 3_001);
    assert!(missed > 0, "it could not take all of it");
    let result = &heard.answer()["result"];
    assert!(result["_meta"]["dev.streamdoor/stream"]["stream_id"].is_string(), "{result}");
}

#[test]
fn a_result_that_is_too_long_is_read_through_a_door() {
    let mut mcp = Mcp::begun();
    let many = json!({"chunks": 2_000, "delay_ms": 0, "chunk_size": 100});
    let client = mcp.call(many, json!({}));
    mcp.house.pass(MOMENT);
    let heard = Heard::read(&mcp.house.hear(client));
    let meta = heard.answer()["result"]["_meta"].clone();
    let id = meta["dev.streamdoor/stream"]["stream_id"].as_str().unwrap().to_owned();
    mcp.house.pass(Duration::from_secs(60));
    assert_eq!(mcp.states(), ["running"], "it waits to be read");
    let mut text = String::new();
    loop {
        let read = mcp.tool("stream_read", json!({"stream_id": id}));
        let read = &read["structuredContent"];
        let offset = read["offset"].as_u64().unwrap();
        assert_eq!(offset, text.len() as u64);
        // Once more: the answer may have got lost.
        let again = mcp.tool("stream_read", json!({"stream_id": id, "offset": offset}));
        assert_eq!(again["structuredContent"]["chunk"], read["chunk"]);
        text += read["chunk"].as_str().unwrap();
        if read["done"] == true {
            break;
        }
    }
    assert_eq!(text.len(), 200_000);
    assert!(text.contains("chunk 2000 of 2000"));
    let gone = mcp.tool("stream_read", json!({"stream_id": id, "offset": 0}));
    assert_eq!(gone["isError"], true, "{gone}");
    let closed = mcp.tool("stream_close", json!({"stream_id": id}));
    assert_eq!(closed["structuredContent"]["total_bytes"], 200_000);
}

#[test]
fn a_door_waits_for_its_tool_and_its_tool_for_who_reads() {
    let mut mcp = Mcp::begun();
    let open = json!({"tool": "slow_data_processor", "arguments": slow(2, 20_000)});
    let opened = mcp.tool("stream_open", open.clone());
    let id = opened["structuredContent"]["stream_id"].as_str().unwrap().to_owned();
    let read = mcp.tool("stream_read", json!({"stream_id": id}));
    assert_eq!(read["structuredContent"]["bytes_read"], 20);
    let message =
        mcp.request("tools/call", json!({"name": "stream_read", "arguments": {"stream_id": id}}));
    let waits = mcp.post(&message);
    assert_eq!(mcp.house.hear(waits), "");
    mcp.house.pass(limits::MCP_READ_WAIT + Duration::from_millis(100));
    let heard = Heard::read(&mcp.house.hear(waits));
    let read = &heard.answer()["result"]["structuredContent"];
    let got = (&read["bytes_read"], &read["done"], &read["timed_out"]);
    assert_eq!(got, (&json!(0), &json!(false), &json!(true)));
    for _ in 1..limits::MCP_STREAMS_PER_PRINCIPAL_MAX {
        assert_eq!(mcp.tool("stream_open", open.clone())["isError"], Value::Null);
    }
    let refused = mcp.tool("stream_open", open.clone());
    assert_eq!(refused["isError"], true, "{refused}");
    assert_eq!(mcp.tool("stream_close", json!({"stream_id": id}))["isError"], Value::Null);
    mcp.house.pass(limits::MCP_DOOR_IDLE + Duration::from_secs(100));
    let read = mcp.tool("stream_read", json!({"stream_id": id}));
    assert_eq!(read["isError"], true);
    assert!(mcp.states().is_empty(), "nobody reads, and all is forgotten");
}

#[test]
fn a_session_that_is_not_used_is_forgotten_and_one_that_is_used_is_not() {
    let mut mcp = Mcp::begun();
    let (old, _) = (mcp.session.clone(), mcp.begin());
    let used = mcp.session.clone();
    mcp.house.pass(limits::MCP_SESSION_IDLE / 2);
    assert_eq!(mcp.ask("ping", json!({})).answer()["result"], json!({}));
    mcp.house.pass(limits::MCP_SESSION_IDLE / 2 + Duration::from_secs(1));
    mcp.session = old;
    assert_eq!(mcp.ask("ping", json!({})).status, "404");
    mcp.session = used;
    assert_eq!(mcp.ask("ping", json!({})).status, "200");
    let session = mcp.session.clone().unwrap();
    let leave = format!("DELETE /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {session}\r\n");
    let client = mcp.house.visit(&format!("{leave}\r\n"));
    assert!(mcp.house.hear(client).starts_with("HTTP/1.1 204 "));
    assert_eq!(mcp.ask("ping", json!({})).status, "404");
}

#[test]
fn abandoned_sessions_take_the_places_of_each_other() {
    let mut mcp = Mcp::begun();
    let first = mcp.session.clone();
    for _ in 0..limits::MCP_SESSIONS_MAX {
        mcp.begin();
    }
    let last = mcp.session.clone();
    mcp.session = first;
    assert_eq!(mcp.ask("ping", json!({})).status, "404");
    mcp.session = last;
    assert_eq!(mcp.ask("ping", json!({})).status, "200");
}

#[test]
fn a_session_has_one_stream_of_its_own_and_is_told_of_other_tools_there() {
    let mut mcp = Mcp::begun();
    let session = mcp.session.clone().unwrap();
    let get = format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\
         Mcp-Session-Id: {session}\r\n\r\n"
    );
    let stream = mcp.house.visit(&get);
    assert!(mcp.house.hear(stream).contains("text/event-stream"));
    let second = mcp.house.visit(&get);
    assert!(mcp.house.hear(second).starts_with("HTTP/1.1 409 "));
    let body = r#"{"description":"d","input_schema":{"type":"object"}}"#;
    let put = mcp.house.visit(&format!(
        "PUT /v1/virtual-tools/echo HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert!(mcp.house.hear(put).starts_with("HTTP/1.1 201 "));
    let heard = mcp.house.hear(stream);
    assert!(heard.contains("notifications/tools/list_changed"), "{heard}");
    let listed = mcp.ask("tools/list", json!({}));
    let tools = listed.answer()["result"]["tools"].as_array().unwrap().clone();
    assert!(tools.iter().any(|tool| tool["name"] == "echo"));
    mcp.house.world.client_close(stream);
    mcp.house.pass(MOMENT);
    let third = mcp.house.visit(&get);
    assert!(mcp.house.hear(third).contains("text/event-stream"));
}

#[test]
fn who_subscribes_to_an_execution_is_told_when_it_changes() {
    let mut mcp = Mcp::begun();
    let session = mcp.session.clone().unwrap();
    let stream = mcp.house.visit(&format!(
        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\
         Mcp-Session-Id: {session}\r\n\r\n"
    ));
    mcp.house.hear(stream);
    let _call = mcp.call(slow(20, 100), json!({}));
    let listed = mcp.ask("resources/list", json!({}));
    let uri = listed.answer()["result"]["resources"][0]["uri"].clone();
    let output = format!("{}/output", uri.as_str().unwrap());
    let done = mcp.ask("resources/subscribe", json!({"uri": output}));
    assert_eq!(done.answer()["result"], json!({}));
    mcp.house.pass(Duration::from_secs(5));
    let heard = mcp.house.hear(stream);
    let count = heard.matches("notifications/resources/updated").count();
    assert!((2..=4).contains(&count), "{count}: {heard}");
    let read = mcp.ask("resources/read", json!({"uri": output}));
    let text = read.answer()["result"]["contents"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), 400);
    let never = json!({"uri": format!("streamdoor://executions/{}", "0".repeat(26))});
    let missing = mcp.ask("resources/read", never);
    assert_eq!(missing.answer()["error"]["code"], -32002);
}

#[test]
fn a_task_is_fetched_later_and_its_result_waited_for() {
    let mut mcp = Mcp::begun();
    let params = json!({
        "name": "slow_data_processor",
        "arguments": slow(3, 1_000),
        "task": {"ttl": 60_000},
    });
    let created = mcp.ask("tools/call", params);
    let task = created.answer()["result"]["task"].clone();
    assert_eq!(task["status"], "working");
    let id = json!({"taskId": task["taskId"]});
    let message = mcp.request("tasks/result", id.clone());
    let waits = mcp.post(&message);
    assert_eq!(mcp.house.hear(waits), "");
    mcp.house.pass(Duration::from_secs(4));
    let heard = Heard::read(&mcp.house.hear(waits));
    let text = heard.answer()["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), 60);
    assert_eq!(mcp.ask("tasks/get", id.clone()).answer()["result"]["status"], "completed");
    let late = mcp.ask("tasks/cancel", id.clone());
    assert_eq!(late.answer()["error"]["code"], -32602);
    mcp.house.pass(Duration::from_secs(61));
    assert_eq!(mcp.ask("tasks/get", id).answer()["error"]["code"], -32602);
    let params = json!({
        "name": "slow_data_processor",
        "arguments": slow(3, 60_000),
        "task": {},
    });
    let created = mcp.ask("tools/call", params);
    let id = json!({"taskId": created.answer()["result"]["task"]["taskId"]});
    assert_eq!(mcp.ask("tasks/cancel", id.clone()).answer()["result"]["status"], "cancelled");
    mcp.house.pass(MOMENT);
    assert_eq!(mcp.ask("tasks/get", id).answer()["result"]["status"], "cancelled");
    assert_eq!(mcp.states().last().unwrap(), "cancelled");
}

#[test]
fn a_server_that_ends_answers_what_it_can() {
    let mut mcp = Mcp::begun();
    let runs = mcp.call(slow(100, 1_000), json!({"progressToken": 1}));
    let mut meta = alone();
    meta["progressToken"] = 1.into();
    let other = mcp.call(slow(100, 1_000), meta);
    mcp.house.pass(MOMENT);
    mcp.house.shards[0].drain();
    mcp.house.pass(Duration::from_secs(1));
    for client in [runs, other] {
        let heard = Heard::read(&mcp.house.hear(client));
        assert!(heard.is_over, "{heard:?}");
        assert_eq!(heard.answer()["result"]["isError"], true);
    }
}

#[test]
fn whatever_clients_do_nothing_is_answered_twice_or_left_behind() {
    use crate::base::Random;
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let mut mcp = Mcp::of(House::with(ShardConfig::default()));
        mcp.begin();
        let mut open: Vec<(SimClient, Heard, bool)> = Vec::new();
        for _ in 0..60 {
            match random.below(6) {
                0 | 1 => {
                    let is_alone = random.chance(1, 2);
                    let mut meta = if is_alone { alone() } else { json!({}) };
                    if random.chance(2, 3) {
                        meta["progressToken"] = random.below(3).into();
                    }
                    let arguments = slow(random.below(12), random.below(300));
                    let client = mcp.call(arguments, meta);
                    open.push((client, Heard::default(), is_alone));
                }
                2 if !open.is_empty() => {
                    let at = random.below(open.len() as u64) as usize;
                    let (client, heard, is_alone) = open.swap_remove(at);
                    mcp.house.world.client_reset(client);
                    let last = heard.last_id().to_owned();
                    if !is_alone && !last.is_empty() && heard.answers().is_empty() {
                        let back = mcp.resume(&last);
                        open.push((back, Heard::default(), is_alone));
                    }
                }
                3 => {
                    let id = random.below(mcp.next_id + 1);
                    let cancel = json!({
                        "jsonrpc": "2.0",
                        "method": "notifications/cancelled",
                        "params": {"requestId": id},
                    });
                    let told = mcp.post(&cancel);
                    mcp.house.world.client_close(told);
                }
                _ => mcp.house.pass(Duration::from_millis(random.below(400))),
            }
            for (client, heard, _) in &mut open {
                let text = mcp.house.hear(*client);
                match heard.status.is_empty() {
                    true => *heard = Heard::read(&text),
                    false => heard.add(&text),
                }
                assert!(heard.answers().len() <= 1, "seed {seed}: {heard:?}");
                heard.assert_rises();
            }
        }
        mcp.house.pass(Duration::from_secs(10));
        assert!(mcp.states().iter().all(|state| state != "running"), "seed {seed}");
    }
}

#[test]
fn sessions_find_what_lives_on_other_shards() {
    let mut mcp = Mcp::of(House::of(3));
    let ids: Vec<String> =
        (0..6).map(|_| mcp.house.run(super::house::SHORT, super::house::NOTHING)).collect();
    let shards: Vec<u8> =
        ids.iter().map(|id| id.parse::<crate::base::ExecutionId>().unwrap().shard).collect();
    assert!(shards.iter().any(|shard| *shard != shards[0]), "{shards:?}");
    for _ in 0..4 {
        mcp.begin();
        let listed = mcp.ask("resources/list", json!({}));
        let listed = listed.answer()["result"]["resources"].as_array().unwrap().clone();
        assert!(listed.len() >= 6, "{listed:?}");
        for id in &ids {
            let uri = format!("streamdoor://executions/{id}");
            assert!(listed.iter().any(|resource| resource["uri"] == uri.as_str()));
            let read = mcp.ask("resources/read", json!({"uri": uri}));
            let text = read.answer()["result"]["contents"][0]["text"].as_str().unwrap();
            assert!(text.contains(id.as_str()), "{text}");
            assert_eq!(mcp.ask("ping", json!({})).answer()["result"], json!({}));
        }
        let params = json!({
            "name": "slow_data_processor",
            "arguments": slow(3, 1_000),
            "task": {},
        });
        let created = mcp.ask("tools/call", params);
        let id = json!({"taskId": created.answer()["result"]["task"]["taskId"]});
        mcp.begin(); // Tasks are their owners', not their sessions'.
        assert_eq!(mcp.ask("tasks/get", id.clone()).answer()["result"]["status"], "working");
        assert_eq!(mcp.ask("tasks/cancel", id).answer()["result"]["status"], "cancelled");
    }
    // A request of a session that was answered elsewhere has given its id back.
    let before = mcp.next_id;
    for _ in 0..3 {
        mcp.next_id = before;
        for id in &ids {
            let uri = json!({"uri": format!("streamdoor://executions/{id}")});
            assert_eq!(mcp.ask("resources/read", uri).answer()["error"], Value::Null);
        }
    }
}

#[test]
fn calls_of_virtual_tools_live_where_their_workers_are() {
    let mut mcp = Mcp::of(House::of(3));
    let body = r#"{"description":"d","input_schema":{"type":"object"}}"#;
    let put = mcp.house.visit(&format!(
        "PUT /v1/virtual-tools/echo HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert!(mcp.house.hear(put).starts_with("HTTP/1.1 201 "));
    let worker = mcp
        .house
        .visit("GET /v1/tool-calls/stream HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: w\r\n\r\n");
    mcp.house.hear(worker);
    for round in 0..6 {
        mcp.begin();
        let meta = if round == 5 { alone() } else { json!({"progressToken": 5}) };
        let params = json!({"name": "echo", "arguments": {}, "_meta": meta});
        let message = mcp.request("tools/call", params);
        let client = mcp.post(&message);
        let told = mcp.house.hear(worker);
        let at = told.find("\"id\":\"").expect(&told) + 6;
        let id = told[at..at + 26].to_owned();
        if round % 2 == 1 && round < 5 {
            let cancel = json!({
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": mcp.next_id},
            });
            mcp.post(&cancel);
            mcp.house.pass(MOMENT);
            assert!(mcp.house.hear(worker).contains("event: cancel"));
            let heard = Heard::read(&mcp.house.hear(client));
            assert!(heard.is_over && heard.answers().is_empty(), "{heard:?}");
            continue;
        }
        let mut heard = Heard::default();
        let mut client = client;
        if round == 2 {
            // Cut off, it goes on there.
            let part = json!({"tool_call_id": id, "content": "a"}).to_string();
            deliver(&mut mcp, &part);
            heard = Heard::read(&mcp.house.hear(client));
            mcp.house.world.client_reset(client);
            mcp.house.pass(MOMENT);
            client = mcp.resume(heard.last_id());
        }
        let part = json!({"tool_call_id": id, "content": "b", "complete": true}).to_string();
        deliver(&mut mcp, &part);
        mcp.house.pass(MOMENT);
        let rest = Heard::read(&mcp.house.hear(client));
        heard.messages.extend(rest.messages);
        let text = heard.answer()["result"]["content"][0]["text"].as_str().unwrap();
        assert_eq!(text, if round == 2 { "ab" } else { "b" });
    }
}

fn deliver(mcp: &mut Mcp, part: &str) {
    let client = mcp.house.visit(&format!(
        "POST /v1/tool-results/stream HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: w\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{part}",
        part.len()
    ));
    let heard = mcp.house.hear(client);
    assert!(heard.starts_with("HTTP/1.1 200 "), "{heard}");
    mcp.house.world.client_close(client);
}
