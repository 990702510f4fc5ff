//! Long bodies: cut anywhere, and broken off and sent again. Workers that are faster than their
//! readers.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::Random;
use streamdoor::limits;
use streamdoor::reactor::Clock;

use crate::client::{Worker, execute, put_tool, read_answer, send, state};
use crate::served::Server;

const PARTS: u64 = 10_000;

fn content(seq: u64) -> String {
    format!("part {seq} {}\n", "\u{e4}".repeat((seq % 7) as usize))
}

fn line(id: &str, seq: u64) -> String {
    let content = content(seq);
    let part =
        json!({"tool_call_id": id, "content": content, "seq": seq, "complete": seq == PARTS});
    part.to_string() + "\n"
}

fn head(session: &str) -> String {
    format!(
        "POST /v1/tool-results/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         X-Session-ID: {session}\r\nContent-Type: application/x-ndjson\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    )
}

/// Starts a call on a server. Returns its worker, its id, and a thread that reads all of its
/// output.
fn begin(server: &Server) -> (Worker, String, std::thread::JoinHandle<Vec<u8>>) {
    put_tool(server, "echo");
    let mut worker = Worker::connect(server, "w");
    let id = execute(server, &json!({"tool": "echo", "start": {"after_subscribers": 1}}));
    let mut stream = send(server, "GET", &format!("/v1/executions/{id}/output"), "", &Value::Null);
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        unchunked(&bytes)
    });
    assert_eq!(worker.call()["id"], *id);
    (worker, id, reader)
}

/// The body of a complete response in chunked encoding.
fn unchunked(answer: &[u8]) -> Vec<u8> {
    let at = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let (mut rest, mut body) = (&answer[at + 4..], Vec::new());
    loop {
        let end = rest.windows(2).position(|bytes| bytes == b"\r\n").unwrap();
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[end + 2..end + 2 + size]);
        rest = &rest[end + 2 + size + 2..];
    }
}

fn expected() -> Vec<u8> {
    (1..=PARTS).map(content).collect::<String>().into_bytes()
}

#[test]
fn ten_thousand_parts_come_in_one_body_however_it_is_cut() {
    let server = Server::start(&[]);
    let (_worker, id, reader) = begin(&server);
    let body: String = (1..=PARTS).map(|seq| line(&id, seq)).collect();
    let mut random = Random::new(3);
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    stream.write_all(head("w").as_bytes()).unwrap();
    let mut rest = body.as_bytes();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(random.between(1, 4_000) as usize));
        write!(stream, "{:x}\r\n", piece.len()).unwrap();
        stream.write_all(piece).unwrap();
        stream.write_all(b"\r\n").unwrap();
        rest = after;
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let answer = read_answer(stream);
    assert_eq!((answer.status, &answer.body["parts"]), (200, &json!(PARTS)), "{}", answer.body);
    assert!(reader.join().unwrap() == expected(), "the output is not what was sent");
}

#[test]
fn a_body_that_breaks_off_is_sent_again_and_nothing_is_lost_or_doubled() {
    let server = Server::start(&[]);
    let (worker, id, reader) = begin(&server);
    let mut random = Random::new(4);
    let (mut from, mut duplicates) = (1, 0);
    loop {
        let body: String = (from..=PARTS).map(|seq| line(&id, seq)).collect();
        let is_last = PARTS - from < PARTS / 4;
        let cut = if is_last { body.len() } else { random.below(body.len() as u64 / 2) as usize };
        let mut stream = server.connect();
        stream.write_all(head("w").as_bytes()).unwrap();
        write!(stream, "{:x}\r\n", body.len()).unwrap();
        stream.write_all(&body.as_bytes()[..cut]).unwrap();
        if is_last {
            stream.write_all(b"\r\n0\r\n\r\n").unwrap();
            let answer = read_answer(stream);
            assert_eq!(answer.status, 200, "{}", answer.body);
            assert_eq!(answer.body["parts"], PARTS - from + 1);
            duplicates += answer.body["duplicates"].as_u64().unwrap_or(0);
            break;
        }
        drop(stream); // Probably in the middle of a line.
        // The error for a part too far ahead names the next part. Some earlier parts are sent
        // again.
        std::thread::sleep(Duration::from_millis(20));
        let far = json!({"tool_call_id": id, "seq": PARTS + 5});
        let answer = worker.deliver(&server, &far);
        assert_eq!((answer.status, &answer.body["error"]["code"]), (409, &json!("part_missing")));
        let next = answer.body["error"]["limit"].as_u64().unwrap();
        from = next.saturating_sub(random.below(50)).max(1);
        if random.chance(1, 2) {
            let again = worker.deliver(&server, &serde_json::from_str(&line(&id, from)).unwrap());
            assert_eq!(again.status, 200, "{}", again.body);
        }
    }
    assert!(duplicates > 0, "nothing was sent twice");
    assert!(reader.join().unwrap() == expected(), "the output is not what was sent");
}

#[test]
fn a_worker_that_is_too_fast_is_made_to_wait_and_nothing_is_lost() {
    let server = Server::start(&[]);
    put_tool(&server, "echo");
    let mut worker = Worker::connect(&server, "w");
    let id = execute(&server, &json!({"tool": "echo", "start": {"after_subscribers": 1}}));
    // This client requests the output and reads nothing.
    let mut stream = send(&server, "GET", &format!("/v1/executions/{id}/output"), "", &Value::Null);
    assert_eq!(worker.call()["id"], *id);
    let content = "x".repeat(8 << 10);
    let mut seq = 0;
    let (refused, waited) = loop {
        let part = json!({"tool_call_id": id, "content": content, "seq": seq + 1});
        let begun_at = Clock::now();
        let answer = worker.deliver(&server, &part);
        if answer.status != 200 {
            break (answer, Clock::now().since(begun_at));
        }
        seq += 1;
        assert!(seq < 100_000, "nobody is ever made to wait");
    };
    assert_eq!((refused.status, &refused.body["error"]["code"]), (429, &json!("no_room")));
    assert!(refused.head.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{}", refused.head);
    assert!(waited >= limits::PART_WAIT, "{waited:?}: the answer was not delayed");
    assert_eq!(state(&server, &id)["held_back"], true);
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        unchunked(&bytes)
    });
    let last = json!({"tool_call_id": id, "content": content, "seq": seq + 1, "complete": true});
    let answer = worker.deliver(&server, &last);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(reader.join().unwrap().len() as u64, (seq + 1) * content.len() as u64);
}

#[test]
fn a_producer_of_parts_is_heard_once_and_in_order() {
    let server = Server::start(&[]);
    let (_worker, id, reader) = begin(&server);
    let deliver = |epoch: u64, number: u64, part: Value| {
        let mut body = part;
        body["tool_call_id"] = json!(id);
        let session =
            format!("w\r\nProducer-Id: p\r\nProducer-Epoch: {epoch}\r\nProducer-Seq: {number}");
        let mut stream = send(&server, "POST", "/v1/tool-results/stream", &session, &body);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.to_lowercase()
    };
    for (epoch, number, content, status, header) in [
        (1, 0, "a", 200, "producer-seq: 0"),
        (1, 0, "a", 204, "producer-epoch: 1"),
        (1, 2, "c", 409, "producer-expected-seq: 1"),
        (2, 0, "a", 204, "producer-epoch: 2"),
        (2, 1, "b", 200, "producer-seq: 1"),
        (1, 2, "x", 403, "producer-epoch: 2"),
        (2, 2, "c", 200, "producer-seq: 2"),
    ] {
        let answer = deliver(epoch, number, json!({"content": content}));
        assert!(answer.starts_with(&format!("http/1.1 {status}")), "{answer}");
        assert!(answer.contains(header), "{answer}");
    }
    let answer = deliver(2, 3, json!({"seq": 9, "complete": true}));
    assert!(answer.starts_with("http/1.1 400"), "{answer}");
    let answer = deliver(2, 3, json!({"complete": true}));
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    assert_eq!(reader.join().unwrap(), b"abc");
}
