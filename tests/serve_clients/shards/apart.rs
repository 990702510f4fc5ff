//! One connection that follows executions of both shards.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use streamdoor::base::ExecutionId;
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::sse::Decoder;

use super::two;
use crate::server::{Server, slow, slow_data};
use crate::{events, http};

const CHUNKS: u64 = 400;
const CHUNK_BYTES: u64 = 80;

fn data(seq: u64) -> Vec<u8> {
    slow_data(seq, CHUNKS, CHUNK_BYTES)
}

/// The id in `/v1/executions/ID`.
fn name_of(this: &str) -> &str {
    this.rsplit_once('/').unwrap().1
}

/// Starts one execution on each shard, the first on shard 0. The kernel spreads connections, so
/// each shard gets a request sooner or later.
fn one_on_each(server: &Server, body: &Value) -> [String; 2] {
    let mut found = [None, None];
    while let [None, _] | [_, None] = found {
        let this = server.execute(body);
        let id: ExecutionId = name_of(&this).parse().unwrap();
        match &mut found[usize::from(id.shard)] {
            place @ None => *place = Some(this),
            Some(_) => assert!(matches!(server.ask("DELETE", &this, None).0, 200 | 202)),
        }
    }
    found.map(Option::unwrap)
}

/// The path to follow both executions at once.
fn path(all: &[String; 2], query: &str) -> String {
    format!("/v1/events?executions={},{}&{query}", name_of(&all[0]), name_of(&all[1]))
}

fn of(told: &[Value], this: &str) -> Vec<Value> {
    told.iter().filter(|event| event["execution"] == name_of(this)).cloned().collect()
}

/// An SSE client that can disconnect at any moment and resume.
#[derive(Default)]
struct Reader {
    decoder: Decoder,
    told: Vec<Value>,
    /// The number of chunks between two acknowledgements.
    acknowledges_each: Option<u64>,
}

impl Reader {
    /// Follows until the body ends or `chunks_max` chunks have come on this connection. Returns the
    /// status.
    fn follow(&mut self, server: &Server, path: &str, chunks_max: usize) -> u16 {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let last = match self.decoder.last_id() {
            id if id.is_empty() => String::new(),
            id => format!("Last-Event-ID: {id}\r\n"),
        };
        self.decoder.reconnect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{last}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reader = ResponseReader::new();
        reader.expect(Method::Get);
        let (mut status, mut chunk_count) = (0, 0);
        let mut piece = [0; 4_096];
        while chunk_count < chunks_max {
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "it was cut off");
            let mut input = &piece[..count];
            while let Some(part) = reader.read(&mut input).unwrap() {
                match part {
                    ResponsePart::Head(head) => status = head.status.code(),
                    ResponsePart::Body(body) => chunk_count += self.take(server, body),
                    ResponsePart::End => return status,
                }
            }
        }
        status
    }

    fn take(&mut self, server: &Server, mut body: &[u8]) -> usize {
        let mut chunk_count = 0;
        while let Some(message) = self.decoder.read(&mut body).unwrap() {
            let event: Value = serde_json::from_str(&message.data()).unwrap();
            assert_eq!(message.id().split(',').count(), 2, "{}", message.id());
            if event["event"] == "chunk" {
                chunk_count += 1;
                let seq = event["seq"].as_u64().unwrap();
                let cursor = format!("{}:{seq}:", event["execution"].as_str().unwrap());
                assert!(message.id().contains(&cursor), "{event} with {}", message.id());
                self.acknowledge(server, &event, seq);
            }
            self.told.push(event);
        }
        chunk_count
    }

    fn acknowledge(&self, server: &Server, event: &Value, seq: u64) {
        let Some(each) = self.acknowledges_each else { return };
        if seq.is_multiple_of(each) {
            let is_own = |told: &&Value| {
                told["event"] == "started" && told["execution"] == event["execution"]
            };
            let started = self.told.iter().rfind(is_own).unwrap();
            let (id, subscriber) = (&event["execution"], &started["subscriber"]);
            let (id, subscriber) = (id.as_str().unwrap(), subscriber.as_str().unwrap());
            let path = format!("/v1/executions/{id}/subscribers/{subscriber}/acks");
            let (status, answer) = server.ask("POST", &path, Some(&json!({"seq": seq})));
            // The last acknowledgements come after the end, when the subscriber is gone.
            let is_late = status == 404 && seq + 16 >= CHUNKS;
            assert!(status == 204 || is_late, "{status} to {seq}: {answer}");
        }
    }
}

#[test]
fn executions_of_both_shards_come_whole_on_one_connection() {
    let Some(server) = two() else { return };
    for format in ["sse", "ndjson"] {
        let all = one_on_each(&server, &slow(CHUNKS, 1, CHUNK_BYTES));
        let request =
            http::request("GET", &path(&all, &format!("policy=block&format={format}")), None);
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let answer = http::answers(&mut stream, &[Method::Get]).remove(0);
        assert_eq!(answer.status, 200);
        let told: Vec<Value> = match format {
            "ndjson" => events::of_ndjson(&answer.body),
            _ => {
                let text = String::from_utf8(answer.body).unwrap();
                let last = text.lines().rfind(|line| line.starts_with("id: ")).unwrap();
                let bytes = CHUNKS * CHUNK_BYTES;
                let end = |this: &String| format!("{}:{CHUNKS}:{bytes}:end", name_of(this));
                assert_eq!(last, format!("id: {},{}", end(&all[0]), end(&all[1])));
                let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
                lines.map(|line| serde_json::from_str(line).unwrap()).collect()
            }
        };
        for this in &all {
            let (given, _) = events::check_whole(&of(&told, this), "completed", data);
            assert_eq!(given.chunks, CHUNKS);
        }
        // The same connection serves other requests.
        stream.write_all(http::request("GET", &all[1], None).as_bytes()).unwrap();
        let document = http::answers(&mut stream, &[Method::Get]).remove(0).json();
        assert_eq!(
            (&document["state"], &document["subscribers"]),
            (&json!("completed"), &json!([]))
        );
    }
    server.stop();
}

#[test]
fn who_is_cut_off_goes_on_in_the_middle_of_both() {
    let Some(server) = two() else { return };
    let all = one_on_each(&server, &slow(CHUNKS, 1, CHUNK_BYTES));
    // The window is smaller than what the rings keep for a resumed stream, so nothing is lost.
    let path = path(&all, "policy=block&acks=16");
    let mut reader = Reader { acknowledges_each: Some(8), ..Reader::default() };
    for chunks_max in [100, 1, 50, 200] {
        assert_eq!(reader.follow(&server, &path, chunks_max), 200);
    }
    assert_eq!(reader.follow(&server, &path, usize::MAX), 200);
    for this in &all {
        let own = of(&reader.told, this);
        let (given, missed) = events::check(&own, data);
        assert_eq!((given.chunks, missed), (CHUNKS, events::Sum::default()));
        let ends: Vec<&Value> = own.iter().filter(|event| event["event"] == "end").collect();
        assert_eq!((ends.len(), &ends[0]["state"]), (1, &json!("completed")));
    }
    assert_eq!(reader.follow(&server, &path, usize::MAX), 204);
    server.stop();
}

#[test]
fn what_is_no_longer_held_is_a_gap_on_either_shard() {
    let Some(server) = two() else { return };
    let mut body = slow(CHUNKS, 0, CHUNK_BYTES);
    body["start"] = json!("now");
    body["arguments"]["chunks"] = json!(20_000);
    let all = one_on_each(&server, &body);
    for this in &all {
        server.wait(this, |execution| execution["state"] == "completed");
    }
    for policy in ["drop", "drop_oldest", "block"] {
        let mut reader = Reader::default();
        let path = path(&all, &format!("policy={policy}"));
        assert_eq!(reader.follow(&server, &path, usize::MAX), 200);
        for this in &all {
            let whole = |seq| slow_data(seq, 20_000, CHUNK_BYTES);
            let own = of(&reader.told, this);
            let (given, missed) = events::check_whole(&own, "completed", whole);
            assert_eq!(given.chunks + missed.chunks, 20_000);
            assert!(given.chunks > 0 && missed.chunks > 0, "{policy}: {given:?} {missed:?}");
        }
    }
    server.stop();
}

#[test]
fn one_of_them_is_let_go_and_the_other_goes_on() {
    let Some(server) = two() else { return };
    let all = one_on_each(&server, &slow(1_000_000, 1, CHUNK_BYTES));
    for shard in 0..2 {
        let mut reader = Reader::default();
        let path = path(&all, "policy=drop&from=live");
        std::thread::scope(|scope| {
            let following = scope.spawn(|| {
                reader.follow(&server, &path, 1_000_000);
                reader.told
            });
            // Both executions show their subscriber to every client.
            for this in &all {
                let execution = server.wait(this, |execution| {
                    execution["subscribers"].as_array().unwrap().len() == 1
                });
                let subscriber = &execution["subscribers"][0];
                assert!(matches!(subscriber["place"].as_str(), Some("local" | "remote")));
                assert_eq!(subscriber["policy"], "drop");
            }
            let places = all.each_ref().map(|this| server.get(this)["subscribers"][0].clone());
            assert_ne!(places[0]["place"], places[1]["place"]);
            for at in [shard, 1 - shard] {
                let id = places[at]["subscriber"].as_str().unwrap();
                let path = format!("{}/subscribers/{id}", all[at]);
                assert_eq!(server.ask("DELETE", &path, None), (204, Value::Null));
                assert_eq!(server.ask("DELETE", &path, None).0, 404);
                server.wait(&all[1 - at], |execution| execution["state"] == "running");
            }
            let told = following.join().unwrap();
            for this in &all {
                let whole = |seq| slow_data(seq, 1_000_000, CHUNK_BYTES);
                let own = of(&told, this);
                let from_seq = own[0]["from_seq"].as_u64().unwrap();
                let mut next_seq = from_seq;
                for chunk in own.iter().filter(|event| event["event"] == "chunk") {
                    assert!(chunk["seq"].as_u64().unwrap() >= next_seq);
                    next_seq = chunk["seq"].as_u64().unwrap() + 1;
                    let expected = whole(next_seq - 1);
                    assert_eq!(chunk["data"].as_str().unwrap().as_bytes(), expected);
                }
                let end = own.last().unwrap();
                assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("detached")));
                assert_eq!(
                    end["chunks"].as_u64().unwrap() + end["missed_chunks"].as_u64().unwrap(),
                    end["resume_from"].as_u64().unwrap() - from_seq
                );
            }
        });
    }
    server.stop();
}

#[test]
fn one_that_is_not_there_refuses_all_and_nobody_is_left_behind() {
    let Some(server) = two() else { return };
    let all = one_on_each(&server, &slow(10, 1, CHUNK_BYTES));
    for gone in 0..2 {
        let mut names = all.each_ref().map(|this| name_of(this).to_owned());
        // The same slot on the same shard, with another nonce.
        let other = server.execute(&slow(10, 1, CHUNK_BYTES));
        let mut id: ExecutionId = name_of(&other).parse().unwrap();
        id.shard = gone as u8;
        id.slot.index = 900;
        names[gone] = id.to_string();
        let path = format!("/v1/events?executions={}", names.join(","));
        let (status, answer) = server.ask("GET", &path, None);
        assert_eq!((status, &answer["error"]["code"]), (404, &json!("not_found")));
        for this in &all {
            server.wait(this, |execution| execution["subscribers"] == json!([]));
        }
    }
    server.stop();
}
