//! A curl process that is stopped in the middle of its stream: the events that it gets when it
//! continues.

use std::process::Child;

use serde_json::{Value, json};

use crate::curl;
use crate::events::{self, Sum};
use crate::server::{Scratch, Server, signal, slow, slow_data};

/// Large chunks, so that the buffers of both ends of a connection are full soon.
const CHUNK_BYTES: u64 = 16 << 10;

/// A stopped curl process. It is killed when this value is dropped.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Follows an execution, stops curl after a few chunks, and waits until the execution `is_reached`.
fn stop_until(
    server: &Server,
    this: &str,
    query: &str,
    into: &str,
    is_reached: impl Fn(&Value) -> bool,
) -> (Stopped, Value) {
    let curl = Stopped(curl::start(&["-N", &server.url(&format!("{this}/events?{query}"))], into));
    server.wait(this, |execution| execution["chunks"].as_u64().unwrap() >= 5);
    signal(&curl.0, "STOP");
    let execution = server.wait(this, is_reached);
    (curl, execution)
}

#[test]
fn under_drop_it_gets_its_exact_gap() {
    if !curl::is_here() {
        return;
    }
    let server = Server::start(&[]);
    let chunks = 4_000;
    for format in ["sse", "ndjson"] {
        let this = server.execute(&slow(chunks, 1, CHUNK_BYTES));
        let into = Scratch::new(format);
        let query = format!("format={format}&policy=drop");
        // It has lost 300 chunks: the ring no longer holds them.
        let lost = |execution: &Value| {
            assert_eq!(execution["held_back"], false);
            let next_seq = execution["subscribers"][0]["next_seq"].as_u64().unwrap();
            execution["tail_seq"].as_u64().unwrap() >= next_seq + 300
        };
        let (mut curl, execution) = stop_until(&server, &this, &query, into.path(), lost);
        let subscriber = &execution["subscribers"][0];
        assert_eq!(execution["state"], "running");
        assert_eq!(subscriber["policy"], "drop");
        signal(&curl.0, "CONT");
        assert!(curl.0.wait().unwrap().success());
        let told = events::of(format, &std::fs::read(&into.0).unwrap());
        let data = |seq| slow_data(seq, chunks, CHUNK_BYTES);
        let (given, missed) = events::check_whole(&told, "completed", data);
        assert_eq!(given.chunks + missed.chunks, chunks);
        assert_eq!(given.bytes + missed.bytes, chunks * CHUNK_BYTES);
        let longest = told.iter().filter_map(|event| event["chunk_count"].as_u64()).max();
        assert!(longest.unwrap() >= 300, "{longest:?}");
        let first = told.iter().find(|event| event["event"] == "gap").unwrap();
        assert!(first["from_seq"].as_u64().unwrap() > 5, "{first}");
    }
    server.stop();
}

#[test]
fn under_block_it_holds_its_producer_until_the_deadline_and_is_let_go() {
    if !curl::is_here() {
        return;
    }
    let server = Server::start(&[]);
    for format in ["sse", "ndjson"] {
        hold_until_let_go(&server, format);
    }
    server.stop();
}

fn hold_until_let_go(server: &Server, format: &str) {
    const CHUNKS: u64 = 3_000;
    // The deadline also holds for the subscriber that goes on reading.
    const DEADLINE_MS: u64 = 3_000;
    let data = |seq| slow_data(seq, CHUNKS, CHUNK_BYTES);
    let mut body = slow(CHUNKS, 1, CHUNK_BYTES); // Slow enough to stop curl in time.
    body["block_deadline_ms"] = json!(DEADLINE_MS);
    body["start"] = json!({"after_subscribers": 2});
    let this = server.execute(&body);
    // Another subscriber reads everything.
    let (into, other_into) = (Scratch::new(format), Scratch::new("other"));
    let other_url = server.url(&format!("{this}/events?format=ndjson&policy=block"));
    let mut other = Stopped(curl::start(&["-N", &other_url], other_into.path()));
    let attached = server.wait(&this, |execution| execution["subscribers"][0].is_object());
    let other_id = attached["subscribers"][0]["subscriber"].clone();
    let holders = |execution: &Value| {
        assert!(execution["held_back"] == true || execution["held_back_by"] == json!([]));
        let mut all = execution["held_back_by"].as_array().unwrap().clone();
        all.retain(|id| *id != other_id);
        all
    };
    let query = format!("format={format}&policy=block");
    let holds = |execution: &Value| !holders(execution).is_empty();
    let (mut curl, execution) = stop_until(server, &this, &query, into.path(), holds);
    let id = holders(&execution).remove(0);

    // The stopped subscriber blocks the producer. After its detachment, the rest is produced.
    let mut heads = Vec::new();
    server.wait(&this, |execution| {
        let is_held = execution["held_back_by"] == json!([id]);
        heads.extend(is_held.then(|| execution["head_seq"].as_u64().unwrap()));
        let subscribers = execution["subscribers"].as_array().unwrap();
        !subscribers.iter().any(|subscriber| subscriber["subscriber"] == id)
    });
    let held_at = *heads.last().unwrap();
    assert!(heads.iter().filter(|head| **head == held_at).count() >= 3, "{heads:?}");
    let record = server.record("subscriber_detached", |record| record["subscriber"] == id);
    assert_eq!(record["reason"], "stall", "{record}");
    assert_eq!(record["execution"], this.rsplit_once('/').unwrap().1, "{record}");
    assert_eq!(server.get(&format!("{this}/result?wait_ms=30000"))["state"], "completed");
    assert!(other.0.wait().unwrap().success());
    let told = events::of_ndjson(&std::fs::read(&other_into.0).unwrap());
    let (given, missed) = events::check_whole(&told, "completed", data);
    assert_eq!((given.chunks, missed), (CHUNKS, Sum::default()));

    // After it continues, it gets the chunks that were sent to it, and the end.
    signal(&curl.0, "CONT");
    assert!(curl.0.wait().unwrap().success());
    let told = events::of(format, &std::fs::read(&into.0).unwrap());
    assert_eq!(told[0]["subscriber"], id);
    let (given, missed) = events::check_whole(&told, "detached", data);
    let end = told.last().unwrap();
    assert_eq!(end["reason"], "stall", "{end}");
    assert_eq!((&end["resume_from"], missed), (&json!(given.chunks + 1), Sum::default()));
    assert_eq!((&record["resume_from"], &record["chunks"]), (&end["resume_from"], &end["chunks"]));
    assert!(end["duration_us"].as_u64().unwrap() >= DEADLINE_MS * 1_000, "{end}");
    assert!(given.chunks < held_at && held_at < CHUNKS, "{given:?}, held at {held_at}");
}
