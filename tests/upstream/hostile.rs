//! An upstream server that crashes, hangs, floods and lies. Each call ends once, with an error that
//! says what was wrong. Other calls go on.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::client::{ExecuteOptions, FollowOptions, StreamEvent};
use streamdoor::engine::Timeouts;
use streamdoor::reactor::Clock;

use crate::served::ask;
use crate::test_server::{Folder, TestServer, scripted};

/// Time limit for a process to die.
const FAR: Duration = Duration::from_secs(60);

#[test]
fn good_tools_work_in_both_eras_under_names_that_can_be_had_here() {
    for script in ["handshake", "stateless", "upset"] {
        let test_server = TestServer::scripted(script);
        let names: Vec<String> =
            test_server.client.tools().unwrap().into_iter().map(|tool| tool.name).collect();
        for name in ["echo", "partial", "with_slash_and_blanks"] {
            assert!(names.iter().any(|other| other == name), "{script}: no {name} in {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("schema")), "{script}: {names:?}");
        let called = test_server.call("with_slash_and_blanks", json!({"text": "hé\n"}));
        called.assert_ended("completed", "");
        assert_eq!(called.text, "hé\n", "{script}");
        // Arguments that violate the schema are refused before the call.
        let body = json!({"tool": "echo", "arguments": {"text": 1}}).to_string();
        let (status, answer) = ask(test_server.server.address(), "POST", "/v1/executions", &body);
        assert_eq!(status, 400, "{answer}");
        assert!(answer.contains("text"), "{answer}");
    }
}

#[test]
fn what_was_streamed_is_not_said_again() {
    let test_server = TestServer::scripted("handshake");
    let called = test_server.call("partial", json!({}));
    called.assert_ended("completed", "");
    assert_eq!(called.text, "one two three");
}

/// Returns the standard output of the program.
fn printed(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    let output = command.args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn raw_output_has_structured_content_only_if_it_is_asked_for() {
    let test_server = TestServer::scripted("handshake");
    let address = test_server.server.address();
    let url = format!("http://{address}");
    for (tool, raw) in [("structured", "[FILE] a.txt"), ("only_structured", "{\"sum\":5}")] {
        assert_eq!(printed(&["call", &url, tool]), raw);
        let body = json!({"tool": tool}).to_string();
        let created = test_server.server.ask("POST", "/v1/executions", &body);
        let links = serde_json::from_str::<Value>(&created).unwrap()["links"].clone();
        // The stream begins before the end, and the other response after it.
        for _ in 0..2 {
            let (status, output) = ask(address, "GET", links["output"].as_str().unwrap(), "");
            let is_chunked = output.ends_with("0\r\n\r\n");
            assert_eq!(status, 200, "{output}");
            assert!(output == raw || is_chunked && output.contains(&format!("\r\n{raw}\r\n")));
            assert_eq!(output.contains("{"), raw.contains("{"), "{output}");
            test_server.server.ask("GET", links["result"].as_str().unwrap(), "");
        }
        // All of it is in the other formats.
        let called = test_server.call(tool, json!({}));
        assert_eq!(called.others.len(), 1, "{tool}: {called:?}");
        assert_eq!(called.others[0].0, "structured", "{tool}");
        // It is in raw output if it is asked for.
        let asked = printed(&["call", &url, tool, "--kinds", "structured"]);
        assert_eq!(asked, called.others[0].1);
        let output = links["output"].as_str().unwrap();
        let (_, asked) = ask(address, "GET", &format!("{output}?kinds=structured"), "");
        assert_eq!(asked, called.others[0].1);
    }
}

#[test]
fn a_call_that_goes_wrong_fails_once_and_says_how() {
    let test_server = TestServer::scripted("stateless");
    for (tool, words) in [
        ("fail", "it cannot be done"),
        ("refuse", "these arguments are wrong"),
        ("broken", "its answer is invalid"),
        ("shapeless", "invalid content block"),
        ("promise", "promised structured content"),
        ("crash", "`up`: it has ended (exit status: 3)"),
        ("huge", "a line longer than 16777216 bytes"),
        ("crash", "exit status: 3"), // The server was restarted for this call.
    ] {
        test_server.call(tool, json!({})).assert_ended("failed", words);
        let called = test_server.call("echo", json!({"text": tool}));
        called.assert_ended("completed", "");
        assert_eq!(called.text, tool);
    }
    let crashed = test_server.call("crash", json!({}));
    assert_eq!(
        (&*crashed.text, &*crashed.messages),
        ("half of a resu", &["about to crash".into()][..])
    );
    assert_eq!(test_server.metric("starts"), 4); // The first, and one per crash but the last.
    test_server.call("echo", json!({})).assert_ended("completed", "");
    assert_eq!((test_server.metric("calls"), test_server.metric("failures")), (18, 9));
}

#[test]
fn lies_are_ignored_and_counted() {
    let test_server = TestServer::scripted("handshake");
    let before = test_server.metric("ignored");
    let called = test_server.call("double", json!({}));
    called.assert_ended("completed", "");
    assert_eq!((&*called.text, called.messages.len()), ("the first", 0));
    // Before the result: two lines that are not messages, two wrong ids, a wrong token, three
    // notifications without sense. Behind it: a second result and two notifications, which may come
    // late.
    let ignored = || test_server.metric("ignored") - before;
    while ignored() < 11 {
        std::thread::sleep(Duration::from_millis(5));
    }
    test_server.call("echo", json!({})).assert_ended("completed", "");
    assert_eq!(ignored(), 11);
}

#[test]
fn a_call_that_hangs_has_its_time_and_can_be_cancelled() {
    let test_server = TestServer::scripted("handshake");
    let total = Some(Duration::from_secs(3));
    let hung = test_server.call_within("hang", Timeouts { total, ..Timeouts::NONE });
    hung.assert_ended("timed_out", "");
    assert_eq!(hung.messages, ["hanging"]);
    // The upstream server received the cancellation.
    let cancelled = || test_server.call("cancelled", json!({})).text;
    while cancelled() != "1" {
        std::thread::sleep(Duration::from_millis(5));
    }
    let created =
        test_server.client.execute("slow", &json!({}), &ExecuteOptions::default()).unwrap();
    let follow = FollowOptions::default();
    let mut stream = test_server.client.follow(created.execution, follow).unwrap();
    let is_chunk = |event: &StreamEvent| matches!(event, StreamEvent::Chunk(_));
    assert!(stream.any(|event| is_chunk(&event.unwrap())));
    test_server.client.cancel(created.execution).unwrap();
    let last = stream.last().unwrap().unwrap();
    assert!(
        matches!(&last, StreamEvent::End(end) if end.end.state.to_string() == "cancelled"),
        "{last:?}"
    );
    while cancelled() != "2" {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_flood_is_held_back_takes_no_memory_and_disturbs_nobody() {
    let test_server = TestServer::with(
        "flood",
        &(scripted("up", "stateless")
            + &scripted("calm", "handshake").replace("prefix = ''", "prefix = 'calm'")),
        &[],
    );
    let total = Some(Duration::from_secs(1));
    let before = test_server.server.memory_bytes("VmHWM");
    std::thread::scope(|scope| {
        let timeouts = Timeouts { total, ..Timeouts::NONE };
        let options = ExecuteOptions { timeouts: Some(timeouts), ..ExecuteOptions::default() };
        let test_server = &test_server;
        let flood = scope.spawn(move || {
            // A subscriber under `block` that reads nothing for a while.
            let delivery_options = streamdoor::endpoint::DeliveryOptions {
                policy: Some(streamdoor::stream::Policy::Block),
                ..Default::default()
            };
            let follow = FollowOptions { delivery_options, ..FollowOptions::default() };
            let mut stream =
                test_server.client.call("flood", &json!({}), &options, follow).unwrap();
            stream.next().unwrap().unwrap();
            std::thread::sleep(Duration::from_millis(700));
            let last = stream.last().unwrap().unwrap();
            assert!(matches!(&last, StreamEvent::End(_)), "{last:?}");
        });
        for number in 0..50 {
            let called = test_server.call("calm_echo", json!({"text": number.to_string()}));
            assert_eq!(called.text, number.to_string());
        }
        flood.join().unwrap();
    });
    let grown = test_server.server.memory_bytes("VmHWM") - before;
    assert!(grown < 128 << 20, "{grown} bytes");
    test_server.call("echo", json!({"text": "x"})).assert_ended("completed", "");
}

#[test]
fn what_it_asks_is_refused_and_a_ping_answered() {
    for script in ["handshake", "stateless"] {
        let test_server = TestServer::scripted(script);
        assert_eq!(test_server.call("ask", json!({})).text, "{} -32601 -32601", "{script}");
    }
}

#[test]
fn tools_that_come_later_are_offered_on_every_shard() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let cpus = if cores > 1 { "0,1" } else { "0" };
    let test_server = TestServer::with("change", &scripted("up", "handshake"), &["--cpus", cpus]);
    let has_added = || test_server.client.tools().unwrap().iter().any(|tool| tool.name == "added");
    assert!(!has_added());
    test_server.call("change", json!({})).assert_ended("completed", "");
    // Each connection can come to any shard. All shards must know the tool, but not at the same
    // time.
    let mut seen = 0;
    while seen < 16 {
        let client =
            streamdoor::client::Client::new(&format!("http://{}", test_server.server.address()));
        let tools = client.unwrap().tools().unwrap();
        match tools.iter().any(|tool| tool.name == "added") {
            true => seen += 1,
            false => {
                seen = 0;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    assert_eq!(test_server.call("added", json!({"text": "x"})).text, "x");
}

#[test]
fn what_cannot_be_there_is_told_at_the_start() {
    let twice = scripted("a", "handshake") + &scripted("b", "handshake");
    let never = scripted("a", "never");
    for (name, settings, code, words) in [
        ("twice", twice, 2, "has the same name as one of a"),
        ("never", never, 3, "mcp.a: it has ended (exit status: 8)"),
        ("absent", "[mcp.a]\ncommand = '/no/such/program'\n".to_owned(), 3, "cannot be started"),
        ("nobody", "[mcp.a]\nurl = 'http://127.0.0.1:9/mcp'\n".to_owned(), 3, "cannot be reached"),
    ] {
        let folder = Folder::new(name);
        let file = folder.settings(&settings);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command.args(["serve", "--journal", "off", "--listen", "127.0.0.1:0", "--config", &file]);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{words}: {said}");
    }
}

/// Ids of the child processes of `parent`.
fn children(parent: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    all.filter(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let behind = stat.rsplit_once(") ").map_or("", |(_, behind)| behind);
        behind.split(' ').nth(1) == Some(&parent.to_string())
    })
    .collect()
}

#[test]
fn nothing_of_it_is_left_when_the_server_ends() {
    let mut test_server = TestServer::scripted("handshake");
    let before = children(test_server.server.process_id());
    assert_eq!(before.len(), 1, "{before:?}");
    test_server.server.stop();
    let lives = std::path::Path::new(&format!("/proc/{}", before[0])).exists();
    assert!(!lives, "it has outlived the server");
}

/// The stubborn server goes on after its standard input has ended.
#[test]
fn nothing_of_it_is_left_when_the_server_is_killed() {
    let test_server = TestServer::scripted("stubborn");
    test_server.call("echo", json!({})).assert_ended("completed", "");
    let before = children(test_server.server.process_id());
    assert_eq!(before.len(), 1, "{before:?}");
    let folder = format!("/proc/{}", before[0]);
    drop(test_server); // Sends SIGKILL to the server.
    let is_dead = || {
        let stat = std::fs::read_to_string(format!("{folder}/stat")).unwrap_or_default();
        // A zombie still waits for the process that reaps orphans here.
        stat.rsplit_once(") ").is_none_or(|(_, behind)| behind.starts_with('Z'))
    };
    let begun = Clock::now();
    while !is_dead() {
        assert!(Clock::now().since(begun) < FAR, "it has outlived the server");
        std::thread::sleep(Duration::from_millis(5));
    }
}
