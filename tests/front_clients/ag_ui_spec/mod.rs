//! AG-UI 1.0: everything that its specification demands of a producer, asserted of what the program
//! writes.
//!
//! `musts.rs` lists the demands, each with its page of `docs.ag-ui.com/spec/1.0` and an assertion.
//! Demands on consumers are not listed, because the real client has to meet them. Demands on events
//! that the program does not write are not listed either. One assertion excludes those events:
//! state, subagents and chunks.
mod checks;
mod musts;
mod track;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::real::SCRIPT;
use crate::scripted::ModelServer;
use crate::served::{Server, ask};
use crate::{driver, node, or_say};
use musts::musts;

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Completed,
    Failed,
    Stopped,
}

/// A run as its client read it.
#[derive(Clone, Debug)]
pub struct Run {
    pub name: &'static str,
    /// The request, if the client started the run.
    pub input: Value,
    pub ending: Ending,
    pub head: String,
    pub body: String,
    pub events: Vec<Value>,
}

/// A stream that is being read.
struct Stream {
    head: String,
    lines: BufReader<TcpStream>,
    body: String,
}

impl Stream {
    fn open(server: &Server, method: &str, path: &str, body: &str) -> Stream {
        let mut connection = server.connect();
        // A response of HTTP/1.0 is not in chunks.
        let length = body.len();
        write!(
            connection,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nAccept: text/event-stream\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let (mut lines, mut head) = (BufReader::new(connection), String::new());
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
        }
        Stream { head, lines, body: String::new() }
    }

    /// Reads until an event of this type has come.
    fn wait_for(&mut self, name: &str) {
        let what = format!("{{\"type\":\"{name}\"");
        while !self.body.rsplit('\n').nth(1).is_some_and(|line| line.contains(&what)) {
            assert_ne!(self.lines.read_line(&mut self.body).unwrap(), 0, "{}", self.body);
        }
    }

    /// Reads until the server closes the connection.
    fn end(mut self, name: &'static str, input: Value, ending: Ending) -> Run {
        self.lines.read_to_string(&mut self.body).unwrap();
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = data.map(|data| serde_json::from_str(data).expect(data)).collect();
        Run { name, input, ending, head: self.head, body: self.body, events }
    }
}

const PATH: &str = "/v1/agent/stream";

/// The request that the real client sends for this message.
fn input(name: &str, user: &str, options: &Value) -> Value {
    let mut props = json!({"tools": ["run_command", "slow_data_processor"]});
    for (name, value) in options.as_object().unwrap() {
        props[name] = value.clone();
    }
    json!({
        "threadId": format!("thread-{name}"), "runId": format!("run-{name}"),
        "protocolVersion": "1.0", "state": {}, "context": [], "forwardedProps": props,
        "messages": [{"id": "user-1", "role": "user", "content": user}],
        "tools": [{"name": "paint", "description": "Paints.", "parameters": {"type": "object"}}],
    })
}

/// Runs an agent in every way in which a run can go and end.
fn runs() -> Vec<Run> {
    let model = ModelServer::following("ag-ui-spec", SCRIPT);
    let described = format!("demo=chat,{},demo", model.base_url);
    let server = Server::start(&["--model", &described, "--allow-commands", "seq"]);
    let start = |input: &Value| Stream::open(&server, "POST", PATH, &input.to_string());
    let mut runs = Vec::new();
    for (name, user, options, ending) in [
        ("whole", "whole", json!({}), Ending::Completed),
        ("failed", "fails", json!({}), Ending::Failed),
        ("limited", "whole", json!({"max_steps": 1}), Ending::Stopped),
        ("timed-out", "endless", json!({"timeout_ms": 400}), Ending::Stopped),
    ] {
        let input = input(name, user, &options);
        runs.push(start(&input).end(name, input, ending));
    }
    // The client is newer than the server.
    let mut newer = input("newer", "whole", &json!({}));
    newer["protocolVersion"] = "1.7".into();
    newer["novelty"] = json!({"a": [1]});
    runs.push(start(&newer).end("newer", newer, Ending::Completed));

    let endless = input("cancelled", "endless", &json!({}));
    let mut stream = start(&endless);
    stream.wait_for("TEXT_MESSAGE_CONTENT");
    server.ask("DELETE", &format!("{PATH}/thread-cancelled"), "");
    runs.push(stream.end("cancelled", endless, Ending::Stopped));

    let slow = input("slow", "slow", &json!({}));
    let mut stream = start(&slow);
    stream.wait_for("ACTIVITY_DELTA");
    // A second client joins in the middle of a call.
    let path = format!("{PATH}/thread-slow/stream?format=ag-ui");
    let joined = Stream::open(&server, "GET", &path, "");
    let execution = server.execute(&json!({
        "tool": "slow_data_processor", "arguments": {"chunks": 3, "delay_ms": 1},
    }));
    let tool = Stream::open(&server, "GET", &format!("{execution}?format=ag-ui"), "");
    runs.push(tool.end("tool", Value::Null, Ending::Completed));
    runs.push(joined.end("joined", Value::Null, Ending::Completed));
    runs.push(stream.end("slow", slow, Ending::Completed));

    // This stream has no numbers of events, so nothing can be continued after one.
    let resumed = asked_with_last_event_id(&server, &format!("{execution}?format=ag-ui"));
    assert!(resumed.starts_with("HTTP/1.1 400 ") && !resumed.contains("data:"), "{resumed}");
    refusals(&server);
    runs
}

fn asked_with_last_event_id(server: &Server, path: &str) -> String {
    let mut connection = server.connect();
    write!(
        connection,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 1\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

/// basic/run-input and basic/transports/http-sse: a malformed known field is refused before the run
/// starts, with an HTTP error and no stream.
fn refusals(server: &Server) {
    for (field, value) in [
        ("runId", json!(7)),
        ("messages", json!({})),
        ("messages", json!([{"role": "user", "content": 7}])),
        ("tools", json!("paint")),
        ("context", json!([{"description": "page"}])),
        ("protocolVersion", json!(1.0)),
    ] {
        let mut input = input("refused", "whole", &json!({}));
        input[field] = value;
        let (status, answer) = ask(server.address(), "POST", PATH, &input.to_string());
        assert_eq!(status, 400, "{field}: {answer}");
        assert!(!answer.contains("data:") && answer.contains(field), "{field}: {answer}");
    }
}

/// basic/transports/http-sse.
fn check_transport(run: &Run) {
    let Run { name, head, body, events, .. } = run;
    assert!(head.contains(" 200 "), "{name}: {head}");
    assert!(head.to_lowercase().contains("content-type: text/event-stream"), "{name}: {head}");
    assert!(!body.contains('\r'), "{name}: the stream must be framed with line feeds");
    assert!(!body.contains("[DONE]"), "{name}: each data must be an event");
    let frames = body.split_terminator("\n\n").filter(|frame| !frame.starts_with(':'));
    for frame in frames.clone() {
        // The body ends behind the last event, and each event is on one line.
        assert!(frame.starts_with("data: {") && frame.ends_with('}'), "{name}: {frame}");
        assert_eq!(frame.lines().count(), 1, "{name}: {frame}");
    }
    assert_eq!(frames.count(), events.len(), "{name}");
    assert!(body.ends_with("\n\n"), "{name}");
}

#[test]
fn each_demand_of_the_specification_is_met_and_its_assertion_can_fail() {
    let (runs, musts) = (runs(), musts());
    for run in &runs {
        check_transport(run);
        for must in &musts {
            if let Err(problem) = must.check(run) {
                let (page, rule) = (must.page, must.rule);
                panic!("{page}: {rule}\n{}: {problem}\n{}", run.name, run.body);
            }
        }
    }
    for must in &musts {
        let mut spoiled_count = 0;
        for run in &runs {
            let mut spoiled = run.clone();
            if must.spoil(&mut spoiled.events).is_some() {
                spoiled_count += 1;
                let found = must.check(&spoiled);
                let (page, rule, name) = (must.page, must.rule, run.name);
                assert!(found.is_err(), "{page}: {rule}: it holds for a wrong {name}");
            }
        }
        assert!(spoiled_count > 0, "{}: {}: no run is concerned", must.page, must.rule);
    }
    or_say(node(), |folder| {
        let mut command = Command::new("node");
        command.arg(driver("ag_ui_schemas.mjs")).arg(folder);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("node starts");
        let mut lines = child.stdin.take().unwrap();
        for run in &runs {
            let line = json!({"run": run.name, "input": run.input, "events": run.events});
            writeln!(lines, "{line}").unwrap();
        }
        drop(lines);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let said: Vec<Value> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).expect(line))
            .collect();
        assert_eq!(said.len(), runs.len());
        for (said, run) in said.iter().zip(&runs) {
            assert_eq!(said["problems"], json!([]), "{}: {said:#}", run.name);
            assert_eq!(said["parsed"], run.events.len(), "{}", run.name);
        }
    });
}
