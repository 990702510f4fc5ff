//! A call of a worker goes on after a restart, and its parts are there once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::served::Server;
use crate::served::asked::ask;
use crate::world::{Folder, events, execute, inspect, kill};

const SESSION: &str = "X-Session-ID: worker-1\r\n";

/// The stream of calls of a worker.
struct Worker(BufReader<TcpStream>);

impl Worker {
    fn connect(server: &Server) -> Worker {
        let mut stream = server.connect();
        let path = "/v1/tool-calls/stream";
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{SESSION}\r\n").unwrap();
        Worker(BufReader::new(stream))
    }

    /// Waits for the next call.
    fn next_call(&mut self) -> Value {
        let mut is_call = false;
        for line in self.0.by_ref().lines() {
            let line = line.unwrap();
            match line.strip_prefix("data: ") {
                Some(data) if is_call => return serde_json::from_str(data).unwrap(),
                _ => is_call = line == "event: tool_call" || (is_call && line.starts_with("id:")),
            }
        }
        panic!("the stream has ended");
    }
}

/// Delivers a part. Returns the answer.
fn deliver(server: &Server, part: &Value) -> Value {
    let (path, body) = ("/v1/tool-results/stream", part.to_string());
    let (status, answer) = ask(server.address(), "POST", path, SESSION, &body);
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

fn part(call: &str, seq: u64) -> Value {
    json!({"tool_call_id": call, "seq": seq, "content": format!("part {seq}\n")})
}

/// Waits until this many chunks are given, and so are on disk.
fn await_chunks(server: &Server, id: &str, count: usize) {
    let stream = server.follow(&format!("/v1/executions/{id}/events?format=ndjson"));
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let chunks = lines.filter(|line| line.contains("\"event\":\"chunk\""));
    assert_eq!(chunks.take(count).count(), count);
}

#[test]
fn a_worker_goes_on_with_its_call_after_a_kill() {
    let folder = Folder::new("workers");
    let mut server = folder.serve(&[]);
    let tool = json!({"description": "Steps.", "input_schema": {"type": "object"}});
    server.ask("PUT", "/v1/virtual-tools/steps", &tool.to_string());
    let call = json!({"tool": "steps", "arguments": {"of": 9}, "deliver": "when_durable"});
    let id = execute(&server, &call);
    let mut worker = Worker::connect(&server);
    let told = worker.next_call();
    assert_eq!((&told["id"], &told["next_seq"]), (&json!(id), &json!(1)));
    for seq in 1..=3 {
        deliver(&server, &part(&id, seq));
    }
    await_chunks(&server, &id, 3);
    for round in 0..2 {
        kill(server);
        server = folder.serve(&[]);
        let (status, document) = inspect(&server, &id);
        assert_eq!((status, &document["state"]), (200, &json!("running")), "{document}");
        let mut worker = Worker::connect(&server);
        let told = worker.next_call();
        let next_seq = 4 + 2 * round;
        assert_eq!((&told["id"], &told["next_seq"]), (&json!(id), &json!(next_seq)));
        assert_eq!((&told["name"], &told["arguments"]), (&json!("steps"), &json!({"of": 9})));
        // A part that was taken before the restart is absorbed.
        assert_eq!(deliver(&server, &part(&id, 3))["duplicate"], true);
        deliver(&server, &part(&id, next_seq));
        // A part without content is counted, too.
        let progress = json!({"progress": 50, "total": 100});
        let empty = json!({"tool_call_id": id, "seq": next_seq + 1, "progress": progress});
        deliver(&server, &empty);
        await_chunks(&server, &id, 4 + round as usize);
    }
    deliver(&server, &json!({"tool_call_id": id, "seq": 8, "content": "last", "complete": true}));
    let events = events(&server, &id, "");
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    let texts: Vec<&str> =
        of("chunk").iter().map(|chunk| chunk["data"].as_str().unwrap()).collect();
    assert_eq!(texts, ["part 1\n", "part 2\n", "part 3\n", "part 4\n", "part 6\n", "last"]);
    let ends = of("end");
    assert_eq!((ends.len(), &ends[0]["state"]), (1, &json!("completed")));
    kill(server);
    let server = folder.serve(&[]);
    let (status, document) = inspect(&server, &id);
    assert_eq!((status, &document["state"]), (200, &json!("completed")), "{document}");
}
