//! Streams of the Durable Streams protocol: what was answered is there after a kill.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::process::Command;

use serde_json::{Value, json};

use crate::served::Server;
use crate::world::{Folder, Response, events, execute, kill, post, run};

const TEXT: &str = "Content-Type: text/plain\r\n";
const JSON: &str = "Content-Type: application/json\r\n";

/// Sends a request about a stream on a connection of its own.
fn ask(server: &Server, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
    let mut stream = server.connect();
    let length = body.len();
    write!(
        stream,
        "{method} /v1/stream/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: {length}\r\n{headers}\r\n"
    )
    .unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(answer[..at].to_vec()).unwrap().to_ascii_lowercase();
    let status = head["http/1.1 ".len()..][..3].parse().unwrap();
    Response { status, head, body: answer[at + 4..].to_vec() }
}

fn status(server: &Server, method: &str, path: &str, headers: &str, body: &[u8]) -> u16 {
    ask(server, method, path, headers, body).status
}

/// The value of a header.
fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    let mut lines = response.head.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The headers of an append of a producer.
fn by(id: &str, epoch: u64, seq: u64) -> String {
    format!("{TEXT}Producer-Id: {id}\r\nProducer-Epoch: {epoch}\r\nProducer-Seq: {seq}\r\n")
}

/// All that a client can see of a stream, but for the time.
fn seen(server: &Server, path: &str) -> String {
    let mut seen = String::new();
    for method in ["GET", "HEAD"] {
        let response = ask(server, method, path, "", b"");
        let lines = response.head.lines().filter(|line| !line.starts_with("date:"));
        seen.extend(lines.map(|line| format!("{line}\n")));
        seen.push_str(&String::from_utf8_lossy(&response.body));
    }
    seen
}

#[test]
fn streams_are_whole_after_a_kill_and_go_on() {
    let folder = Folder::new("streams");
    let mut server = folder.serve(&[]);
    let forked = "Stream-Forked-From: /v1/stream/a/text\r\n";
    for (method, path, headers, body, expected) in [
        ("PUT", "a/text", TEXT, &b"one "[..], 201),
        ("POST", "a/text", &by("p", 3, 0), b"two ", 200),
        ("POST", "a/text", &format!("{TEXT}Stream-Seq: 07\r\n"), b"three ", 204),
        ("PUT", "a/json", JSON, b"[1, {\"a\": [2]}]", 201),
        ("POST", "a/json", JSON, b"[[3], \"4\"]", 204),
        ("PUT", "closed", TEXT, b"", 201),
        ("POST", "closed", &format!("{}Stream-Closed: true\r\n", by("q", 0, 0)), b"end", 200),
        ("PUT", "fork", forked, b"", 201),
        ("POST", "fork", TEXT, b"of its own", 204),
        ("PUT", "long", "Stream-TTL: 3600\r\n", &[7; 100_000], 201),
        ("PUT", "removed", TEXT, b"x", 201),
        ("DELETE", "removed", "", b"", 204),
    ] {
        assert_eq!(status(&server, method, path, headers, body), expected, "{method} {path}");
    }
    let paths = ["a/text", "a/json", "closed", "fork", "long", "removed"];
    let all_seen = |server: &Server| paths.map(|path| seen(server, path));
    let before = all_seen(&server);
    assert!(before[1].contains("[1,{\"a\": [2]},[3],\"4\"]"), "{}", before[1]);
    assert!(before[3].contains("one two three of its own"), "{}", before[3]);
    for _ in 0..2 {
        kill(server);
        server = folder.serve(&[]);
        assert_eq!(all_seen(&server), before);
    }
    // The producers, the order and the end are those from before, too.
    let close = format!("{}Stream-Closed: true\r\n", by("q", 0, 0));
    for (path, headers, expected) in [
        ("a/text", by("p", 3, 0), 204),
        ("a/text", by("p", 3, 2), 409),
        ("a/text", by("p", 2, 1), 403),
        ("a/text", format!("{TEXT}Stream-Seq: 07\r\n"), 409),
        ("closed", close, 204),
        ("closed", by("q", 0, 1), 409),
    ] {
        assert_eq!(status(&server, "POST", path, &headers, b"again"), expected, "{headers}");
    }
    assert_eq!(all_seen(&server), before);
    assert_eq!(status(&server, "POST", "a/text", &by("p", 3, 1), b"four"), 200);
    let offset =
        header(&ask(&server, "HEAD", "fork", "", b""), "stream-next-offset").unwrap().to_owned();
    assert_eq!(status(&server, "POST", "fork", TEXT, b"!"), 204);
    kill(server);
    let server = folder.serve(&[]);
    assert_eq!(ask(&server, "GET", "a/text", "", b"").body, b"one two three four");
    let rest = ask(&server, "GET", &format!("fork?offset={offset}"), "", b"");
    assert_eq!(rest.body, b"!");
}

#[test]
fn a_removed_source_stays_for_its_forks_over_kills() {
    let folder = Folder::new("stream-forks");
    let server = folder.serve(&[]);
    assert_eq!(status(&server, "PUT", "source", TEXT, b"inherited"), 201);
    let forked = |source: &str| format!("Stream-Forked-From: /v1/stream/{source}\r\n");
    assert_eq!(status(&server, "PUT", "fork", &forked("source"), b" and own"), 201);
    assert_eq!(status(&server, "PUT", "fork/2", &forked("fork"), b", twice"), 201);
    // The source has ended, too. Nothing can be written behind its end.
    assert_eq!(status(&server, "POST", "source", "Stream-Closed: true\r\n", b""), 204);
    for source in ["source", "fork"] {
        assert_eq!(status(&server, "DELETE", source, "", b""), 204);
    }
    kill(server);
    let server = folder.serve(&[]);
    assert_eq!(ask(&server, "GET", "fork/2", "", b"").body, b"inherited and own, twice");
    for source in ["source", "fork"] {
        assert_eq!(status(&server, "GET", source, "", b""), 410);
        assert_eq!(status(&server, "PUT", source, TEXT, b""), 409);
    }
    assert_eq!(status(&server, "DELETE", "fork/2", "", b""), 204);
    kill(server);
    let server = folder.serve(&[]);
    for path in ["source", "fork", "fork/2"] {
        assert_eq!(status(&server, "GET", path, "", b""), 404, "{path}");
    }
}

#[test]
fn forks_leave_their_source_behind_any_message_although_only_the_disk_has_it() {
    const COUNT: usize = 3_000;
    let folder = Folder::new("stream-messages");
    let server = folder.serve(&[]);
    let message = |number: usize| format!("{{\"number\":{number},\"text\":\"{number:0100}\"}}");
    let list = |numbers: Range<usize>| {
        let all: Vec<String> = numbers.map(message).collect();
        format!("[{}]", all.join(","))
    };
    assert_eq!(status(&server, "PUT", "source", JSON, list(0..1_000).as_bytes()), 201);
    assert_eq!(status(&server, "POST", "source", JSON, list(1_000..COUNT).as_bytes()), 204);
    let whole = |server: &Server, path: &str| {
        let (mut messages, mut offset) = (Vec::new(), "-1".to_owned());
        loop {
            let part = ask(server, "GET", &format!("{path}?offset={offset}"), "", b"");
            assert_eq!(part.status, 200);
            let parsed: Vec<Value> = serde_json::from_slice(&part.body).unwrap();
            messages.extend(parsed);
            offset = header(&part, "stream-next-offset").unwrap().to_owned();
            if header(&part, "stream-up-to-date").is_some() {
                return messages;
            }
        }
    };
    let numbers = |messages: &[Value]| -> Vec<u64> {
        messages.iter().map(|message| message["number"].as_u64().unwrap()).collect()
    };
    let up_to = |count: usize| (0..count as u64).collect::<Vec<_>>();
    let beginning = "0000000000000000_0000000000000000";
    let fork = |server: &Server, path: &str, source: &str, messages: usize| {
        let headers = format!(
            "{JSON}Stream-Forked-From: /v1/stream/{source}\r\nStream-Fork-Offset: {beginning}\r\n\
             Stream-Fork-Sub-Offset: {messages}\r\n"
        );
        status(server, "PUT", path, &headers, b"")
    };
    let check = |server: &Server, name: &str| {
        for count in [1, 2, 1_000, 1_001, COUNT - 1, COUNT] {
            let path = format!("{name}/{count}");
            assert_eq!(fork(server, &path, "source", count), 201, "{path}");
            assert_eq!(fork(server, &path, "source", count), 200, "{path}");
            assert_eq!(numbers(&whole(server, &path)), up_to(count), "{path}");
        }
        assert_eq!(fork(server, &format!("{name}/none"), "source", COUNT + 1), 400);
    };
    check(&server, "before");
    kill(server);
    let server = folder.serve(&[]);
    check(&server, "after");
    // A fork of a fork, on both sides of the place at which that one left its source.
    assert_eq!(status(&server, "POST", "before/1000", JSON, b"[{\"number\":1000}]"), 204);
    kill(server);
    let server = folder.serve(&[]);
    for count in [999, 1_000, 1_001] {
        let path = format!("again/{count}");
        assert_eq!(fork(&server, &path, "before/1000", count), 201, "{path}");
        assert_eq!(numbers(&whole(&server, &path)), up_to(count), "{path}");
    }
    assert_eq!(fork(&server, "again/none", "before/1000", 1_002), 400);
}

#[test]
fn a_stream_that_is_refused_says_why() {
    let folder = Folder::new("stream-refusals");
    let server = folder.serve(&[]);
    for (method, path, headers, expected) in [
        ("PUT", "s", TEXT, (201, "")),
        ("PUT", "s", JSON, (409, "stream_exists")),
        ("PUT", "f", "Stream-Forked-From: /v1/stream/s\r\n", (201, "")),
        ("PUT", "g", "Stream-Forked-From: /v1/stream/none\r\n", (404, "not_found")),
        ("POST", "s", JSON, (409, "type_mismatch")),
        ("POST", "s", &by("p", 1, 4), (409, "sequence_conflict")),
        ("POST", "s", &by("p", 1, 0), (200, "")),
        ("POST", "s", &by("p", 0, 1), (403, "stale_epoch")),
        ("POST", "s", &format!("{TEXT}Stream-Closed: TRUE\r\n"), (204, "")),
        ("POST", "s", TEXT, (409, "stream_closed")),
        ("DELETE", "s", "", (204, "")),
        ("POST", "s", TEXT, (410, "stream_gone")),
        ("PUT", "h", "Stream-Forked-From: /v1/stream/s\r\n", (409, "stream_gone")),
        (
            "PUT",
            "t",
            "Stream-TTL: 1\r\nStream-Expires-At: 2030-01-01T00:00:00Z\r\n",
            (400, "invalid_parameter"),
        ),
        ("GET", "f?offset=now&live=never", "", (400, "invalid_parameter")),
        ("GET", "f?offset=9999999999999999_9999999999999999", "", (400, "invalid_parameter")),
        ("PATCH", "f", "", (405, "method_not_allowed")),
        ("PUT", "a/../b", TEXT, (400, "malformed_path")),
        ("PUT", "a//b", TEXT, (400, "malformed_path")),
    ] {
        let body: &[u8] = if method == "GET" || method == "DELETE" { b"" } else { b"1" };
        let response = ask(&server, method, path, headers, body);
        let text = String::from_utf8_lossy(&response.body);
        assert_eq!(response.status, expected.0, "{method} {path} {headers}{text}");
        assert!(text.contains(expected.1), "{method} {path} {headers}{text}");
        assert_eq!(header(&response, "x-content-type-options"), Some("nosniff"), "{path}");
    }
    // Without a journal there are none.
    let server = Server::start(&["--journal", "off"]);
    let refused = ask(&server, "PUT", "s", TEXT, b"");
    assert!(refused.status == 400 && String::from_utf8_lossy(&refused.body).contains("no_journal"));
}

#[test]
fn there_are_more_streams_than_executions_at_a_time() {
    let folder = Folder::new("stream-many");
    let server = folder.serve(&["--executions-max", "40"]);
    let names: Vec<String> = (0..150).map(|number| format!("many/{number}")).collect();
    for name in &names {
        assert_eq!(status(&server, "PUT", name, TEXT, name.as_bytes()), 201, "{name}");
    }
    for name in &names {
        assert_eq!(status(&server, "POST", name, TEXT, b"+"), 204, "{name}");
    }
    kill(server);
    let server = folder.serve(&["--executions-max", "40"]);
    for name in &names {
        assert_eq!(ask(&server, "GET", name, "", b"").body, format!("{name}+").as_bytes());
        let close = format!("{TEXT}Stream-Closed: true\r\n");
        assert_eq!(status(&server, "POST", name, &close, b"!"), 204, "{name}");
    }
    for name in &names {
        let response = ask(&server, "GET", name, "", b"");
        assert_eq!(response.body, format!("{name}+!").as_bytes());
        assert_eq!(header(&response, "stream-closed"), Some("true"));
    }
}

/// Sends one request about each of these streams, 100 at a time on one connection. Those for which
/// the journal has no room yet are sent again later. Returns the heads of the other answers, in
/// lower case.
fn ask_each(server: &Server, method: &str, numbers: Range<usize>, body: &str) -> Vec<String> {
    let mut stream = server.connect();
    let mut heads = Vec::with_capacity(numbers.len());
    let mut left: VecDeque<usize> = numbers.collect();
    let mut received = Vec::new();
    while !left.is_empty() {
        let asked: Vec<usize> = left.drain(..left.len().min(100)).collect();
        let request = |number: &usize| {
            let length = body.len();
            format!(
                "{method} /v1/stream/all/{number} HTTP/1.1\r\nHost: localhost\r\n{TEXT}\
                 Content-Length: {length}\r\n\r\n{body}"
            )
        };
        let requests: String = asked.iter().map(request).collect();
        stream.write_all(requests.as_bytes()).unwrap();
        for number in asked {
            let head = next_head(&mut stream, &mut received);
            match head.starts_with("http/1.1 507") {
                false => heads.push(head),
                true => left.push_back(number),
            }
        }
    }
    heads
}

/// Receives the next answer, without its body if it is an error. Returns its head in lower case.
fn next_head(stream: &mut TcpStream, received: &mut Vec<u8>) -> String {
    loop {
        if let Some(at) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(received[..at].to_vec()).unwrap().to_ascii_lowercase();
            let is_error = head["http/1.1 ".len()..].starts_with(['4', '5']);
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.filter(|_| is_error).map_or(0, |length| length.parse().unwrap());
            if received.len() >= at + 4 + length {
                received.drain(..at + 4 + length);
                return head;
            }
        }
        let mut more = [0; 16 << 10];
        let count = stream.read(&mut more).unwrap();
        assert!(count > 0, "the server hung up");
        received.extend_from_slice(&more[..count]);
    }
}

#[test]
fn a_hundred_thousand_streams_are_open_and_there_after_a_kill() {
    const COUNT: usize = 100_000;
    let folder = Folder::new("stream-all");
    let server = folder.serve(&[]);
    let before = server.memory_bytes("VmRSS");
    let created = ask_each(&server, "PUT", 0..COUNT, "its text");
    let refused = created.iter().find(|head| !head.starts_with("http/1.1 201"));
    assert_eq!((refused, created.len()), (None, COUNT));
    let bytes = (server.memory_bytes("VmRSS") - before) / COUNT as u64;
    println!("{bytes} bytes of memory for each stream");
    // Those that nobody used for a while take appends as well.
    let appended = ask_each(&server, "POST", 0..1_000, "more");
    assert!(appended.iter().all(|head| head.starts_with("http/1.1 204")));
    kill(server);
    let server = folder.serve(&[]);
    let found = ask_each(&server, "HEAD", 0..COUNT, "");
    for (number, head) in found.iter().enumerate() {
        let end = if number < 1_000 { 12 } else { 8 };
        let expected = format!("stream-next-offset: 0000000000000000_{end:016}");
        assert!(head.starts_with("http/1.1 200") && head.contains(&expected), "{number}: {head}");
    }
    assert_eq!(ask(&server, "GET", "all/99999", "", b"").body, b"its text");
    assert_eq!(ask(&server, "GET", "all/999", "", b"").body, b"its textmore");
}

#[test]
fn a_stream_is_an_execution_and_an_execution_is_a_stream() {
    let folder = Folder::new("stream-views");
    let server = folder.serve(&[]);
    assert_eq!(status(&server, "PUT", "s", TEXT, b"one"), 201);
    assert_eq!(
        status(&server, "POST", "s", &format!("{TEXT}Stream-Closed: true\r\n"), b"two"),
        204
    );
    let listed = server.ask("GET", "/v1/executions?tool=stream", "");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let id = listed["executions"][0]["execution"].as_str().unwrap().to_owned();
    let found = events(&server, &id, "");
    let chunks: Vec<&str> = found.iter().filter_map(|event| event["data"].as_str()).collect();
    assert_eq!(chunks, ["one", "two"]);
    assert_eq!(found.last().unwrap()["state"], "completed");

    let arguments = serde_json::json!({"chunks": 3, "delay_ms": 0});
    let id = run(&server, "slow_data_processor", arguments);
    let output = server.ask("GET", &format!("/v1/executions/{id}/output"), "");
    let path = format!("executions/{id}");
    let whole = ask(&server, "GET", &path, "", b"");
    assert_eq!(String::from_utf8(whole.body).unwrap(), output);
    let head = ask(&server, "HEAD", &path, "", b"");
    assert_eq!(header(&head, "stream-closed"), Some("true"));
    let offset = header(&head, "stream-next-offset").unwrap();
    assert!(offset.ends_with(&output.len().to_string()), "{offset}");
    let rest = ask(&server, "GET", &format!("{path}?offset={offset}&live=long-poll"), "", b"");
    assert_eq!((rest.status, header(&rest, "stream-closed")), (204, Some("true")));
    assert_eq!(status(&server, "POST", &path, TEXT, b"x"), 405);
    assert_eq!(status(&server, "GET", "executions/none", "", b""), 404);

    // One that still runs.
    let arguments = serde_json::json!({"chunks": 5, "delay_ms": 50});
    let body = serde_json::json!({"tool": "slow_data_processor", "arguments": arguments});
    let id = execute(&server, &body);
    let path = format!("executions/{id}?offset=-1&live=sse");
    let events = ask(&server, "GET", &path, "", b"");
    let text = String::from_utf8_lossy(&events.body);
    assert_eq!(text.matches("event: data").count(), 5, "{text}");
    assert_eq!(text.matches("\"streamClosed\":true").count(), 1, "{text}");
}

#[test]
fn a_webhook_reaches_a_network_that_the_server_allows() {
    let Ok(receiver) = TcpListener::bind("[::1]:0") else {
        println!("not run: this machine has no IPv6");
        return;
    };
    let url = format!("http://{}/hook", receiver.local_addr().unwrap());
    let webhook = json!({"type": "webhook", "streams": ["s"], "webhook": {"url": url}}).to_string();
    let subscribe = |server: &Server| {
        let path = "__ds/subscriptions/mine";
        let response = ask(server, "PUT", path, JSON, webhook.as_bytes());
        (response.status, String::from_utf8(response.body).unwrap())
    };
    let folder = Folder::new("stream-networks");
    let server = folder.serve(&[]);
    let (status_without, text) = subscribe(&server);
    assert_eq!(status_without, 400, "{text}");
    assert!(text.contains("WEBHOOK_URL_REJECTED"), "{text}");
    drop(server);
    let server = folder.serve(&["--webhook-network", "10.0.0.0/8", "--webhook-network", "::1/128"]);
    let (created, text) = subscribe(&server);
    assert_eq!(created, 201, "{text}");
    assert_eq!(status(&server, "PUT", "s", TEXT, b"something"), 201);
    let (mut stream, _) = receiver.accept().unwrap();
    let mut request = [0; 16];
    stream.read_exact(&mut request).unwrap();
    assert_eq!(&request[..], b"POST /hook HTTP/");
}

#[test]
fn streams_and_executions_that_ask_for_it_are_kept_for_a_time_of_their_own() {
    let folder = Folder::new("stream-times");
    let server = folder.serve(&[]);
    assert_eq!(status(&server, "PUT", "s", TEXT, b"something"), 201);
    let week =
        json!({"tool": "slow_data_processor", "arguments": {"chunks": 1}, "keep_s": 604_800});
    let id = execute(&server, &week);
    let plain = json!({"tool": "slow_data_processor", "arguments": {"chunks": 1}});
    let plain = execute(&server, &plain);
    for refused in [json!(0), json!("1h"), json!(1_u64 << 31)] {
        let body = json!({"tool": "slow_data_processor", "keep_s": refused});
        let response = post(&server, "/v1/executions", JSON, &body.to_string());
        let text = String::from_utf8(response.body).unwrap();
        assert!(response.status == 400 && text.contains("keep_s"), "{text}");
    }
    let nothing = json!({"tool": "slow_data_processor", "durability": "none", "keep_s": 60});
    let response = post(&server, "/v1/executions", JSON, &nothing.to_string());
    let text = String::from_utf8(response.body).unwrap();
    assert!(response.status == 400 && text.contains("nothing_kept"), "{text}");
    for id in [&id, &plain] {
        events(&server, id, "");
    }
    kill(server);
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    let listed = command.args(["journal", "ls", "--json", &folder.journal()]).output().unwrap();
    let times: HashMap<String, Value> = String::from_utf8(listed.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter_map(|line: Value| {
            Some((line["execution"].as_str()?.to_owned(), line["keep_s"].clone()))
        })
        .collect();
    assert_eq!((&times[&id], &times[&plain]), (&json!(604_800), &Value::Null));
    assert!(times.values().any(|time| *time == json!(i32::MAX)), "the stream: {times:?}");
}
