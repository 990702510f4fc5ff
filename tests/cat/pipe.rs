//! Producing from standard input.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use streamdoor::stream::{ExecutionState, Outcome};

use super::test_server::{TestServer, bytes, eventually, first_line, said, signal};

#[test]
fn what_is_piped_in_comes_out_at_the_other_end() {
    let server = TestServer::start("through", &[]);
    let content = bytes(5_000_000);
    for extra in [&[][..], &["--as", "lines"], &["--chunk-bytes", "1000"]] {
        let words = [&["pipe", "upload", "--hold", "60s"], extra].concat();
        let mut pipe = server.command(&words).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = pipe.stdin.take().unwrap();
        let id = first_line(&mut pipe);
        let data = content.clone();
        let feeding = std::thread::spawn(move || input.write_all(&data).unwrap());
        let read = server.output(&["cat", &id]); // Without an option the policy is `block`.
        assert_eq!(read.status.code(), Some(0), "{extra:?}: {}", said(&read));
        assert!(read.stdout == content, "{extra:?}");
        feeding.join().unwrap();
        let piped = pipe.wait_with_output().unwrap();
        assert_eq!(piped.status.code(), Some(0), "{extra:?}: {}", said(&piped));
        assert!(said(&piped).contains("5,000,000 bytes"), "{}", said(&piped));
    }
}

#[test]
fn a_line_is_a_chunk_and_a_long_one_is_several() {
    let server = TestServer::start("lines", &[]);
    let words = ["pipe", "log", "--as", "lines", "--kind", "log", "--chunk-bytes", "10"];
    let words = [&words[..], &["--hold", "60s"]].concat();
    let mut pipe = server.command(&words).stdin(Stdio::piped()).spawn().unwrap();
    let id = first_line(&mut pipe);
    let mut input = pipe.stdin.take().unwrap();
    input.write_all(b"one\n\ntwo\n0123456789abc\nthe end").unwrap();
    drop(input);
    let read = server.output(&["cat", &id, "--format", "ndjson"]);
    assert_eq!(read.status.code(), Some(0), "{}", said(&read));
    let events = String::from_utf8(read.stdout).unwrap();
    let events: Vec<Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let chunks: Vec<&str> = events
        .iter()
        .filter(|event| event["event"] == "chunk")
        .map(|chunk| {
            assert_eq!(chunk["kind"], "log");
            chunk["data"].as_str().unwrap()
        })
        .collect();
    assert_eq!(chunks, ["one\n", "\n", "two\n", "0123456789", "abc\n", "the end"]);
    assert_eq!(pipe.wait().unwrap().code(), Some(0));
}

#[test]
fn a_slow_reader_slows_who_writes() {
    let server = TestServer::start("slow", &[]);
    let mut pipe =
        server.command(&["pipe", "upload", "--hold", "60s"]).stdin(Stdio::piped()).spawn().unwrap();
    let id = first_line(&mut pipe);
    let client = server.client();
    let execution = id.parse().unwrap();
    let mut input = pipe.stdin.take().unwrap();
    let total = 8_000_000;
    let feeding = std::thread::spawn(move || input.write_all(&bytes(total)));
    // Without a reader the producer stops, with no more than its ring.
    let mut before = 0;
    eventually("it stands still", || {
        let now = client.inspect(execution).unwrap().bytes;
        let stands = now > 0 && now == before;
        before = now;
        std::thread::sleep(std::time::Duration::from_millis(100));
        stands
    });
    assert!(before < 4 << 20 && !feeding.is_finished(), "{before}");
    let read = server.output(&["cat", &id]);
    assert!(read.stdout == bytes(total), "{} {}", read.stdout.len(), said(&read));
    feeding.join().unwrap().unwrap();
    assert_eq!(pipe.wait().unwrap().code(), Some(0));
}

#[test]
fn who_is_interrupted_or_cancelled_ends_at_once() {
    let server = TestServer::start("cancelled", &[]);
    for by_signal in [true, false] {
        let mut pipe = server.command(&["pipe", "idle"]).stdin(Stdio::piped()).spawn().unwrap();
        let _input = pipe.stdin.take().unwrap(); // No data comes, and no end.
        let id = first_line(&mut pipe).parse().unwrap();
        match by_signal {
            true => signal(&pipe, "INT"),
            false => drop(server.client().cancel(id).unwrap()),
        }
        let piped = pipe.wait_with_output().unwrap();
        assert_eq!(piped.status.code(), Some(1), "{}", said(&piped));
        eventually("it is cancelled", || {
            server.client().inspect(id).unwrap().state == ExecutionState::Ended(Outcome::Cancelled)
        });
    }
}

#[test]
fn who_is_killed_fails_what_it_was_producing() {
    let server = TestServer::start("killed", &[]);
    let mut pipe = server.command(&["pipe", "idle"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = pipe.stdin.take().unwrap();
    let id = first_line(&mut pipe);
    input.write_all(b"last words").unwrap();
    let client = server.client();
    eventually("they are there", || client.inspect(id.parse().unwrap()).unwrap().chunks == 1);
    pipe.kill().unwrap();
    pipe.wait().unwrap();
    let read = server.output(&["cat", &id]);
    assert_eq!(read.status.code(), Some(1), "{}", said(&read));
    assert_eq!(read.stdout, b"last words");
}
