//! Tests of workers and their durations, in simulated time.

use std::time::Duration;

use serde_json::{Value, json};

use super::test_server::{TestServer, get};
use crate::limits;
use crate::sim::network::SimClient;

const MOMENT: Duration = Duration::from_millis(1);

fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

impl TestServer {
    fn ask(&mut self, text: &str) -> (String, String) {
        let client = self.visit(text);
        let heard = self.hear(client);
        self.world.client_close(client);
        split(&heard)
    }

    fn put_tool(&mut self, name: &str, more: Value) -> (String, String) {
        let mut body = json!({"description": "Echoes.", "input_schema": {"type": "object",
            "properties": {"n": {"type": "integer"}}, "additionalProperties": false}});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        self.ask(&request("PUT", &format!("/v1/virtual-tools/{name}"), "", &body.to_string()))
    }

    fn worker(&mut self, session: &str) -> SimClient {
        self.visit(&format!(
            "GET /v1/tool-calls/stream HTTP/1.1\r\nHost: localhost\r\n\
             X-Session-ID: {session}\r\n\r\n"
        ))
    }

    fn execute(&mut self, more: Value) -> String {
        let mut body = json!({"tool": "echo", "arguments": {"n": 1}});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let (head, body) = self.ask(&request("POST", "/v1/executions", "", &body.to_string()));
        assert!(head.starts_with("HTTP/1.1 201"), "{head} {body}");
        let document: Value = serde_json::from_str(&body).unwrap();
        document["execution"].as_str().unwrap().to_owned()
    }

    fn deliver(&mut self, session: &str, part: Value) -> (String, String) {
        let part = delivery(session, &part);
        self.ask(&part)
    }

    fn state(&mut self, id: &str) -> Value {
        let heard = self.get(&format!("/v1/executions/{id}"));
        serde_json::from_str(&split(&heard).1).unwrap()
    }
}

fn delivery(session: &str, part: &Value) -> String {
    let header = format!("X-Session-ID: {session}\r\n");
    request("POST", "/v1/tool-results/stream", &header, &part.to_string())
}

fn split(heard: &str) -> (String, String) {
    let (head, body) = heard.split_once("\r\n\r\n").unwrap_or((heard, ""));
    (head.to_owned(), body.to_owned())
}

fn assert_taken(answer: &(String, String)) {
    assert!(answer.0.starts_with("HTTP/1.1 200 "), "{answer:?}");
    assert!(answer.1.contains("\"success\":true"), "{answer:?}");
}

fn assert_refused(answer: &(String, String), status: u16, code: &str) {
    assert!(answer.0.starts_with(&format!("HTTP/1.1 {status} ")), "{answer:?}");
    assert!(answer.1.contains(&format!("\"code\":\"{code}\"")), "{answer:?}");
}

#[test]
fn tools_are_added_replaced_listed_and_taken_away() {
    let mut test_server = TestServer::new();
    let created = test_server.put_tool("echo", json!({"coalesce": {}}));
    assert!(created.0.starts_with("HTTP/1.1 201 "), "{created:?}");
    assert!(created.0.contains("location: /v1/virtual-tools/echo"), "{created:?}");
    assert!(test_server.put_tool("echo", json!({})).0.starts_with("HTTP/1.1 200 "));
    assert_refused(&test_server.put_tool("process_file", json!({})), 409, "name_taken");
    for schema in [
        json!({"type": "array"}),
        json!({"type": "object", "minProperties": "x"}),
        json!({"type": "object", "$ref": "#"}),
    ] {
        let answer = test_server.put_tool("bad", json!({ "input_schema": schema }));
        assert_refused(&answer, 400, "invalid_field");
    }
    let listed = test_server.get("/v1/virtual-tools");
    assert!(listed.contains("\"name\":\"echo\"") && !listed.contains("coalesce"), "{listed}");
    assert!(test_server.get("/v1/tools").contains("\"name\":\"echo\""));
    for index in 1..limits::VIRTUAL_TOOLS_PER_PRINCIPAL_MAX {
        assert!(test_server.put_tool(&format!("t{index}"), json!({})).0.contains(" 201 "));
    }
    assert_refused(&test_server.put_tool("more", json!({})), 409, "too_many_virtual_tools");
    let delete = "DELETE /v1/virtual-tools/echo HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(test_server.ask(delete).0.starts_with("HTTP/1.1 204 "));
    assert_refused(&test_server.ask(delete), 404, "unknown_tool");
    assert!(test_server.put_tool("more", json!({})).0.contains(" 201 "));
    let body = r#"{"tool":"echo"}"#;
    assert_refused(
        &test_server.ask(&request("POST", "/v1/executions", "", body)),
        404,
        "unknown_tool",
    );
}

#[test]
fn a_call_goes_to_its_worker_and_its_parts_come_back() {
    let mut test_server = TestServer::new();
    test_server.put_tool("echo", json!({}));
    let bad = test_server.ask(&request(
        "POST",
        "/v1/executions",
        "",
        r#"{"tool":"echo","arguments":{"n":"x"}}"#,
    ));
    assert_refused(&bad, 400, "invalid_argument");
    let worker = test_server.worker("w");
    let head = test_server.hear(worker);
    assert!(head.contains("text/event-stream") && head.contains("retry: "), "{head}");
    let second = test_server.worker("w");
    assert!(test_server.hear(second).starts_with("HTTP/1.1 409 "));
    let id = test_server.execute(json!({}));
    let told = test_server.hear(worker);
    assert!(told.contains("event: tool_call\n") && told.contains(&id), "{told}");
    assert!(told.contains("\"arguments\":{\"n\":1}") && told.contains("\"next_seq\":1"), "{told}");
    let part =
        |seq: u64| json!({"tool_call_id": id, "content": format!("part {seq};"), "seq": seq});
    assert_refused(&test_server.deliver("other", part(1)), 404, "not_found");
    assert_refused(&test_server.deliver("w", part(2)), 409, "part_missing");
    assert_taken(&test_server.deliver("w", part(1)));
    let again = test_server.deliver("w", part(1));
    assert_taken(&again);
    assert!(again.1.contains("\"duplicate\":true"), "{again:?}");
    assert_taken(&test_server.deliver("w", part(2)));
    let progress = json!({"tool_call_id": id, "progress": {"progress": 0.5, "total": 1}});
    assert_taken(&test_server.deliver("w", progress));
    assert_eq!(test_server.state(&id)["progress"]["percentage"], 50.0);
    let last = json!({"tool_call_id": id, "content": [1], "complete": true, "seq": 4});
    assert_taken(&test_server.deliver("w", last.clone()));
    assert_eq!(test_server.state(&id)["state"], "completed");
    let result = test_server.get(&format!("/v1/executions/{id}/result"));
    assert!(result.contains("part 1;part 2;[1]"), "{result}");
    assert!(test_server.deliver("w", last).1.contains("\"duplicate\":true"));
    let late = test_server.deliver("w", json!({"tool_call_id": id, "seq": 5}));
    assert_refused(&late, 410, "call_ended");
    assert!(late.1.contains("completed"), "{late:?}");
    // It has reported its end itself: it gets no cancellation.
    assert!(!test_server.hear(worker).contains("cancel"));
}

#[test]
fn a_worker_is_told_what_its_call_is_a_part_of() {
    let mut test_server = TestServer::new();
    test_server.put_tool("echo", json!({}));
    let worker = test_server.worker("w");
    test_server.hear(worker);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut told = |headers: &str| {
        let body = r#"{"tool":"echo","arguments":{"n":1}}"#;
        let (head, _) = test_server.ask(&request("POST", "/v1/executions", headers, body));
        assert!(head.starts_with("HTTP/1.1 201"), "{head}");
        let told = test_server.hear(worker);
        let data = told.lines().find_map(|line| line.strip_prefix("data: ")).expect(&told);
        serde_json::from_str::<Value>(data).unwrap()
    };
    let call = told(&format!("traceparent: {parent}\r\ntracestate: a=1\r\nbaggage: b=2\r\n"));
    assert_eq!(call["traceparent"], parent);
    assert_eq!((&call["tracestate"], &call["baggage"]), (&json!("a=1"), &json!("b=2")));
    for headers in ["", "traceparent: 00-0-0-01\r\ntracestate: a=1\r\n"] {
        let call = told(headers);
        assert_eq!((&call["traceparent"], &call["tracestate"]), (&Value::Null, &Value::Null));
    }
}

#[test]
fn a_worker_that_is_gone_for_too_long_fails_what_it_was_doing_once() {
    for is_back in [false, true] {
        let mut test_server = TestServer::new();
        test_server.put_tool("echo", json!({}));
        let worker = test_server.worker("w");
        let (id, other) = (test_server.execute(json!({})), test_server.execute(json!({})));
        assert_taken(&test_server.deliver("w", json!({"tool_call_id": id, "content": "a"})));
        test_server.hear(worker);
        test_server.world.client_reset(worker);
        test_server.pass(limits::WORKER_GRACE - Duration::from_secs(1));
        assert_eq!(test_server.state(&id)["state"], "running");
        // Parts that it sends meanwhile are taken.
        let done = json!({"tool_call_id": other, "complete": true});
        assert_taken(&test_server.deliver("w", done));
        if is_back {
            let worker = test_server.worker("w");
            let told = test_server.hear(worker);
            assert!(told.contains("\"next_seq\":2") && !told.contains(&other), "{told}");
            test_server.pass(limits::WORKER_GRACE * 2);
            assert_eq!(test_server.state(&id)["state"], "running");
            assert_taken(&test_server.deliver("w", json!({"tool_call_id": id, "complete": true})));
            assert_eq!(test_server.state(&id)["state"], "completed");
        } else {
            test_server.pass(Duration::from_secs(2));
            let state = test_server.state(&id);
            assert_eq!(
                (&state["state"], &state["error"]),
                (&json!("failed"), &json!("its worker disconnected and did not return in time"))
            );
            let late = test_server.deliver("w", json!({"tool_call_id": id, "content": "b"}));
            assert_refused(&late, 410, "call_ended");
        }
        assert_eq!(test_server.state(&other)["state"], "completed");
    }
}

#[test]
fn without_a_worker_a_call_waits_for_one_until_its_time_is_up() {
    let mut test_server = TestServer::new();
    test_server.put_tool("echo", json!({"timeouts": {"first_chunk_ms": 3000}}));
    let (late, lucky) =
        (test_server.execute(json!({})), test_server.execute(json!({"timeouts": {}})));
    test_server.pass(Duration::from_secs(2));
    assert_eq!(test_server.state(&late)["state"], "running");
    test_server.pass(Duration::from_secs(2));
    assert_eq!(test_server.state(&late)["state"], "timed_out");
    let worker = test_server.worker("w");
    let told = test_server.hear(worker);
    assert!(told.contains(&lucky) && !told.contains(&late), "{told}");
    let gone = test_server
        .ask(&format!("DELETE /v1/executions/{lucky} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert!(gone.0.starts_with("HTTP/1.1 202 "), "{gone:?}");
    let told = test_server.hear(worker);
    assert!(
        told.contains("event: cancel\n") && told.contains("\"reason\":\"cancelled\""),
        "{told}"
    );
}

#[test]
fn calls_go_to_those_who_have_the_fewest_and_take_them() {
    let mut test_server = TestServer::new();
    test_server.put_tool("echo", json!({}));
    let (a, b) = (test_server.worker("a"), test_server.worker("b"));
    let picky = test_server.visit(
        "GET /v1/tool-calls/stream?tools=other HTTP/1.1\r\nHost: localhost\r\n\
         X-Session-ID: c\r\n\r\n",
    );
    let count = |heard: &str| heard.matches("event: tool_call\n").count();
    let first: Vec<String> = (0..4).map(|_| test_server.execute(json!({}))).collect();
    let (to_a, to_b) = (test_server.hear(a), test_server.hear(b));
    assert_eq!((count(&to_a), count(&to_b), count(&test_server.hear(picky))), (2, 2, 0));
    let of_a = first.iter().filter(|id| to_a.contains(*id)).cloned().collect::<Vec<_>>();
    for id in &of_a {
        assert_taken(&test_server.deliver("a", json!({"tool_call_id": id, "complete": true})));
    }
    let more: Vec<String> = (0..2).map(|_| test_server.execute(json!({}))).collect();
    let told = test_server.hear(a);
    assert!(more.iter().all(|id| told.contains(id)), "{told}");
}

/// A worker with a call whose ring keeps its chunks, because no client reads: the producer waits.
fn unread_call() -> (TestServer, String) {
    let mut test_server = TestServer::new();
    test_server.put_tool("echo", json!({"timeouts": {}}));
    let worker = test_server.worker("w");
    let hold = json!({"hold": {"until_read_ms": 3_600_000}, "block_deadline_ms": 3_600_000});
    let id = test_server.execute(hold);
    test_server.hear(worker);
    (test_server, id)
}

#[test]
fn a_part_without_room_waits_is_refused_and_is_not_lost() {
    let (mut test_server, id) = unread_call();
    let content = "~".repeat(8 << 10);
    let (mut seq, mut refused) = (1, None);
    while refused.is_none() {
        let part = json!({"tool_call_id": id, "content": content, "seq": seq});
        let client = test_server.visit(&delivery("w", &part));
        let heard = test_server.hear(client);
        if heard.is_empty() {
            refused = Some(client);
        } else {
            assert_taken(&split(&heard));
            seq += 1;
        }
        assert!(seq < 1_000, "the ring never fills");
    }
    let client = refused.unwrap();
    test_server.pass(limits::PART_WAIT - MOMENT * 100);
    assert_eq!(test_server.hear(client), "", "its answer is delayed");
    test_server.pass(MOMENT * 200);
    let heard = test_server.hear(client);
    assert_refused(&split(&heard), 429, "no_room");
    assert!(heard.contains("retry-after: 1"), "{heard}");
    // The next one waits, and is taken as soon as a client reads.
    let part = json!({"tool_call_id": id, "content": content, "seq": seq, "complete": true});
    test_server.say(client, &delivery("w", &part));
    assert_eq!(test_server.hear(client), "");
    let reader = test_server.visit(&get(&format!("/v1/executions/{id}/output")));
    let (mut output, mut answer) = (String::new(), String::new());
    for _ in 0..200 {
        output += &test_server.hear(reader);
        answer += &test_server.hear(client);
        test_server.pass(MOMENT);
    }
    assert_taken(&split(&answer));
    assert!(output.ends_with("0\r\n\r\n"), "it is whole");
    assert_eq!(output.matches('~').count(), seq as usize * content.len());
    assert_eq!(test_server.state(&id)["chunks"], seq);
}

#[test]
fn who_sends_many_is_not_read_while_there_is_no_room() {
    let (mut test_server, id) = unread_call();
    let part_count = 600;
    let mut lines = String::new();
    for seq in 1..=part_count {
        let content = "~".repeat(1_000);
        let is_last = seq == part_count;
        let part = json!({"tool_call_id": id, "content": content, "seq": seq, "complete": is_last});
        lines += &(part.to_string() + "\n");
    }
    let head = format!(
        "POST /v1/tool-results/stream HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: w\r\n\
         Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n",
        lines.len()
    );
    let client = test_server.visit(&head);
    let mut unsent = lines.as_bytes();
    let mut send = |test_server: &mut TestServer| {
        while let Ok(count @ 1..) = test_server.world.client_send(client, unsent) {
            unsent = &unsent[count..];
            test_server.pass(MOMENT);
        }
        unsent.len()
    };
    send(&mut test_server);
    test_server.pass(limits::PARTS_INACTIVITY * 2); // The server is the side that does not read.
    let left = send(&mut test_server);
    assert!(left > 100_000, "{left} bytes are left: all was read");
    assert_eq!(test_server.hear(client), "");
    let reader = test_server.visit(&get(&format!("/v1/executions/{id}/output")));
    let (mut output, mut answer) = (String::new(), String::new());
    for _ in 0..3_000 {
        send(&mut test_server);
        output += &test_server.hear(reader);
        answer += &test_server.hear(client);
        test_server.pass(MOMENT);
    }
    assert!(answer.contains(&format!("\"parts\":{part_count}")), "{answer}");
    assert_eq!(output.matches('~').count(), part_count * 1_000);
}

#[test]
fn small_parts_are_gathered_for_no_longer_than_they_may() {
    let mut test_server = TestServer::new();
    test_server.put_tool("echo", json!({"coalesce": {"delay_ms": 50, "max_bytes": 100}}));
    let worker = test_server.worker("w");
    let id = test_server.execute(json!({}));
    test_server.hear(worker);
    for seq in 1..=5 {
        let part = json!({"tool_call_id": id, "content": {"n": seq}, "seq": seq});
        assert_taken(&test_server.deliver("w", part));
    }
    assert_eq!(test_server.state(&id)["chunks"], 0);
    test_server.pass(Duration::from_millis(60));
    assert_eq!(test_server.state(&id)["chunks"], 1);
    let end = json!({"tool_call_id": id, "content": {"n": 6}, "error": "enough"});
    assert_taken(&test_server.deliver("w", end));
    let state = test_server.state(&id);
    assert_eq!(
        (&state["state"], &state["error"], &state["chunks"]),
        (&json!("failed"), &json!("enough"), &json!(2))
    );
    let result = test_server.get(&format!("/v1/executions/{id}/result"));
    assert!(result.contains(r#"{\"n\":1}\n{\"n\":2}\n"#), "{result}");
}

#[test]
fn a_server_that_ends_lets_its_workers_go() {
    let mut test_server = TestServer::new();
    test_server.put_tool("echo", json!({}));
    let worker = test_server.worker("w");
    test_server.execute(json!({}));
    test_server.hear(worker);
    test_server.shards[0].drain();
    test_server.pass(MOMENT);
    let heard = test_server.hear(worker);
    assert!(heard.contains("event: cancel\n"), "{heard}");
    assert!(heard.ends_with("0\r\n\r\n<end>"), "{heard}");
    test_server.world.client_close(worker);
    test_server.pass(limits::CONNECTION_IDLE + limits::LINGER * 2);
    assert_eq!(test_server.shards[0].connection_count(), 0);
}
