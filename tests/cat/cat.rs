//! Reading through a door.

use std::io::Read;

use serde_json::{Value, json};
use streamdoor::client::ExecuteOptions;
use streamdoor::stream::{ExecutionState, Outcome};

use super::test_server::{TestServer, bytes, command, eventually, said, signal};

#[test]
fn a_tool_is_run_and_every_byte_comes_through() {
    let server = TestServer::start("tool", &[]);
    let content = bytes(3_000_000);
    server.file("big", &content);
    let words = ["cat", "--tool", "process_file", "--arg", "file_path=big", "--policy", "block"];
    let read = server.output(&words);
    assert_eq!(read.status.code(), Some(0), "{}", said(&read));
    assert!(read.stdout == content);
    assert!(said(&read).starts_with("completed: 92 chunks, 3,000,000 bytes"), "{}", said(&read));
    let measured = server.output(&[&words[..], &["--stats"]].concat());
    assert!(said(&measured).contains("P99"), "{}", said(&measured));

    let hashed = server.output(&[&words[..], &["--hash"]].concat());
    let table = String::from_utf8(hashed.stdout).unwrap();
    assert!(table.contains("3000000 bytes, sha256 "), "{table}");
    let out = server.folder.join("out");
    let saved = server.output(&[&words[..], &["--out", out.to_str().unwrap()]].concat());
    assert_eq!(saved.status.code(), Some(0), "{}", said(&saved));
    assert!(std::fs::read(&out).unwrap() == content);
}

#[test]
fn an_execution_that_is_there_is_read_from_where_one_wants() {
    let server = TestServer::start("there", &[]);
    let arguments = json!({"chunks": 5, "delay_ms": 1});
    let options = ExecuteOptions::default();
    let client = server.client();
    let id = client.execute("slow_data_processor", &arguments, &options).unwrap().execution;
    eventually("it ends", || matches!(client.inspect(id).unwrap().state, ExecutionState::Ended(_)));
    let id = id.to_string();
    let events = |words: &[&str]| -> Vec<Value> {
        let read = server.output(&[&["cat", &id, "--format", "ndjson"], words].concat());
        assert_eq!(read.status.code(), Some(0), "{}", said(&read));
        let text = String::from_utf8(read.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let seqs = |events: &[Value]| -> Vec<u64> {
        let chunks = events.iter().filter(|event| event["event"] == "chunk");
        chunks.map(|chunk| chunk["seq"].as_u64().unwrap()).collect()
    };
    let all = events(&["--policy", "buffer"]);
    assert_eq!(
        (&all[0]["event"], &all[0]["tool"]),
        (&json!("started"), &"slow_data_processor".into())
    );
    assert_eq!(all[0]["policy"], "buffer");
    assert_eq!(seqs(&all), [1, 2, 3, 4, 5]);
    assert_eq!(all.last().unwrap()["state"], "completed");
    assert_eq!(seqs(&events(&["--from", "4"])), [4, 5]);
    assert_eq!(seqs(&events(&["--from", "live"])), [] as [u64; 0]);
    let table = server.output(&["cat", &id, "--format", "table"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("500 bytes delivered"), "{table}");
}

#[test]
fn exit_codes_say_whose_fault_it_was() {
    let server = TestServer::start("codes", &[]);
    let code = |words: &[&str]| {
        let output = server.output(words);
        (output.status.code(), said(&output))
    };
    let id = "0".repeat(26);
    for (words, expected, word) in [
        (&["cat"][..], 2, "no execution is given"),
        (&["cat", "nonsense"], 2, "nonsense"),
        (&["cat", &id], 2, "not found"),
        (&["cat", &id, "--tool", "x"], 2, "given together"),
        (&["cat", "--tool", "other"], 2, "slow_data_processor"),
        (&["cat", "--tool", "process_file", "--arg", "other=1"], 2, "other"),
        (&["cat", "--tool", "process_file", "--arg", "file_path=none"], 1, "none"),
        (&["cat", "--tool", "process_file", "--from", "live"], 2, "from its start"),
        (&["cat", &id, "--policy", "later"], 2, "policy"),
        (&["cat", "--named", &id], 3, "no execution is named"),
        (&["cat", "--named", &id, "--policy", "block"], 2, "block"),
        (&["pipe"], 2, "no name is given"),
    ] {
        let (found, text) = code(words);
        assert_eq!(found, Some(expected), "{words:?}: {text}");
        assert!(text.to_lowercase().contains(&word.to_lowercase()), "{words:?}: {text}");
    }
    let nowhere = command(&["cat", &id]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(2), "{}", said(&nowhere));
    let gone = command(&["cat", "--door", "/nonexistent/door", &id]).output().unwrap();
    assert_eq!(gone.status.code(), Some(3), "{}", said(&gone));
}

#[test]
fn ctrl_c_and_a_closed_pipe_end_what_was_started() {
    let server = TestServer::start("ended", &[]);
    let slow = ["cat", "--tool", "slow_data_processor", "--arg", "chunks=3600", "--arg"];
    let slow = [&slow[..], &["delay_ms=20", "--format", "raw"]].concat();
    let mut reader = server.command(&slow).spawn().unwrap();
    reader.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap(); // It runs.
    signal(&reader, "INT");
    let read = reader.wait_with_output().unwrap();
    assert_eq!(read.status.code(), Some(1), "{}", said(&read));
    assert!(said(&read).contains("cancelled"), "{}", said(&read));

    let mut reader = server.command(&slow).spawn().unwrap();
    reader.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    drop(reader.stdout.take()); // As `| head -1` does.
    let read = reader.wait_with_output().unwrap();
    assert_eq!(read.status.code(), Some(0), "{}", said(&read));
    let client = server.client();
    eventually("both are cancelled", || {
        let all = client.executions().unwrap();
        all.len() == 2
            && all.iter().all(|summary| summary.state == ExecutionState::Ended(Outcome::Cancelled))
    });
}

#[test]
fn a_server_that_dies_is_noticed() {
    let mut server = TestServer::start("dies", &[]);
    let words = ["cat", "--tool", "slow_data_processor", "--arg", "chunks=3600"];
    let words = [&words[..], &["--arg", "delay_ms=20", "--format", "raw"]].concat();
    let mut reader = server.command(&words).spawn().unwrap();
    reader.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    server.kill();
    let read = reader.wait_with_output().unwrap();
    assert_eq!(read.status.code(), Some(1), "{}", said(&read));
    assert!(said(&read).contains("gone"), "{}", said(&read));
}
