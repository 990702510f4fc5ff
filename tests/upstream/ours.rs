//! A streamdoor server behind another one, over both transports. Results come through unchanged.
//! One call can have many followers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;

use serde_json::{Value, json};
use streamdoor::client::{Client, FollowOptions, StreamEvent};
use streamdoor::endpoint::StreamFormat;
use streamdoor::mcp::chunks;

use crate::served::{Server, ask};
use crate::test_server::{Called, TestServer, waited_for};

const VERSION: &str = "2026-07-28";

/// The bytes of a request of the stateless era.
fn request(method: &str, name: &str, mut params: Value, token: Option<u64>) -> String {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    if let Some(token) = token {
        params["_meta"]["progressToken"] = token.into();
    }
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
         MCP-Protocol-Version: {VERSION}\r\nMcp-Method: {method}\r\nMcp-Name: {name}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Calls a tool and returns all messages of the response.
fn call(address: &str, tool: &str, arguments: Value, token: Option<u64>) -> Vec<Value> {
    let mut stream = TcpStream::connect(address).unwrap();
    let params = json!({"name": tool, "arguments": arguments});
    stream.write_all(request("tools/call", tool, params, token).as_bytes()).unwrap();
    messages(stream)
}

fn messages(stream: TcpStream) -> Vec<Value> {
    let lines = BufReader::new(stream).lines().map(|line| line.unwrap());
    let json = lines.filter_map(|line| {
        let line = line.strip_prefix("data: ").unwrap_or(&line).to_owned();
        serde_json::from_str::<Value>(&line).ok().filter(Value::is_object)
    });
    json.collect()
}

pub fn result(address: &str, tool: &str, arguments: Value) -> Value {
    let messages = call(address, tool, arguments, None);
    let mut result = messages.last().unwrap()["result"].clone();
    result.as_object_mut().unwrap_or_else(|| panic!("{messages:?}")).remove("_meta");
    result
}

fn behind(settings: &str) -> TestServer {
    TestServer::with("ours", settings, &[])
}

#[test]
fn what_comes_through_is_what_came_out_over_both_transports() {
    let direct = Server::start(&["--conformance"]);
    let program = env!("CARGO_BIN_EXE_streamdoor");
    let over_http = behind(&format!("[mcp.far]\nurl = 'http://{}/mcp'\n", direct.address()));
    let over_lines = behind(&format!(
        "[mcp.far]\ncommand = \"'{program}'\"\n\
         args = ['stdio', '--conformance', '--builtin', 'all']\n"
    ));
    for (tool, arguments) in [
        ("test_simple_text", json!({})),
        ("test_image_content", json!({})),
        ("test_audio_content", json!({})),
        ("test_embedded_resource", json!({})),
        ("test_multiple_content_types", json!({})),
        ("test_error_handling", json!({})),
        ("test_tool_with_progress", json!({})),
        ("slow_data_processor", json!({"chunks": 20, "delay_ms": 1})),
    ] {
        let expected = result(direct.address(), tool, arguments.clone());
        for test_server in [&over_http, &over_lines] {
            let name = format!("far_{tool}");
            let through = result(test_server.server.address(), &name, arguments.clone());
            assert_eq!(through, expected, "{tool}");
        }
    }
    for test_server in [&over_http, &over_lines] {
        // Chunks of the upstream server come as chunks, one by one, while the call runs.
        let arguments = json!({"chunks": 20, "delay_ms": 2});
        let stream = test_server.client.call(
            "far_slow_data_processor",
            &arguments,
            &Default::default(),
            waited_for(),
        );
        let mut chunk_count = 0;
        let mut called = Called::default();
        for event in stream.unwrap() {
            let event = event.unwrap();
            chunk_count += u32::from(matches!(event, StreamEvent::Chunk(_)));
            called.take(event);
        }
        called.assert_ended("completed", "");
        assert!(chunk_count > 1 && called.text.contains("chunk 20 of 20"), "{called:?}");
    }
}

/// Calls a tool with long chunks. Returns the text of its result, and its chunks with offsets.
fn long_chunks(address: &str, tool: &str) -> (String, Vec<(u64, Vec<u8>)>) {
    let arguments = json!({"chunks": 12, "delay_ms": 2, "chunk_size": 3_000});
    let messages = call(address, tool, arguments, Some(5));
    let (last, before) = messages.split_last().unwrap();
    let mut received = Vec::new();
    for message in before {
        let entries = &message["params"]["_meta"]["dev.streamdoor/chunks"];
        for entry in entries.as_array().into_iter().flatten() {
            assert_eq!(entry["encoding"], "message", "{message}");
        }
        let chunks = chunks::read(&message["params"]).unwrap();
        received.extend(chunks.into_iter().map(|chunk| (chunk.offset, chunk.data.into_owned())));
    }
    (last["result"]["content"][0]["text"].as_str().unwrap().to_owned(), received)
}

#[test]
fn long_chunks_that_come_through_are_those_that_came_out() {
    let direct = Server::start(&[]);
    let through = behind(&format!("[mcp.far]\nurl = 'http://{}/mcp'\n", direct.address()));
    let (text, chunks) = long_chunks(direct.address(), "slow_data_processor");
    let (text_through, chunks_through) =
        long_chunks(through.server.address(), "far_slow_data_processor");
    assert_eq!(text, text_through);
    assert_eq!(chunks, chunks_through);
    let joined: Vec<u8> = chunks.into_iter().flat_map(|(_, data)| data).collect();
    assert_eq!(joined, text.as_bytes());
}

#[test]
fn a_tool_that_asks_first_fails_and_says_what_for() {
    let direct = Server::start(&["--conformance"]);
    let test_server = behind(&format!("[mcp.far]\nurl = 'http://{}/mcp'\n", direct.address()));
    let called = test_server.call("far_test_elicitation", json!({"message": "x"}));
    assert_eq!((called.ends, &*called.state), (1, "failed"), "{called:?}");
    assert!(!called.error.is_empty());
}

/// Reads a stream to its end on a thread. Sends to `seen` for each chunk.
fn follow(
    test_server: &TestServer,
    format: StreamFormat,
    id: streamdoor::base::ExecutionId,
    seen: std::sync::mpsc::Sender<()>,
) -> std::thread::JoinHandle<Called> {
    let client = Client::new(&format!("http://{}", test_server.server.address())).unwrap();
    let stream = client.follow(id, FollowOptions { format, ..waited_for() }).unwrap();
    std::thread::spawn(move || {
        let mut called = Called::default();
        for event in stream {
            let event = event.unwrap();
            if let StreamEvent::Chunk(_) = event {
                let _ = seen.send(()); // The test waits for the first one.
            }
            called.take(event);
        }
        called
    })
}

#[test]
fn three_follow_one_call_and_each_is_told_once_when_its_server_is_killed() {
    for is_killed in [false, true] {
        let test_server = TestServer::scripted("stateless");
        let address = test_server.server.address().to_owned();
        let caller = std::thread::spawn(move || call(&address, "slow", json!({}), Some(5)));
        let id = loop {
            let all = test_server.client.executions().unwrap();
            match all.iter().find(|one| one.tool == "slow") {
                Some(found) => break found.execution,
                None => std::thread::sleep(std::time::Duration::from_millis(2)),
            }
        };
        let (sender, receiver) = channel();
        let followers = [StreamFormat::Sse, StreamFormat::Ndjson].map(|format| {
            (follow(&test_server, format, id, sender.clone()), receiver.recv().unwrap()).0
        });
        if is_killed {
            kill_child_of(test_server.server.process_id());
        }
        let texts = followers.map(|follower| {
            let called = follower.join().unwrap();
            match is_killed {
                true => called.assert_ended("failed", "`up`: it has ended (signal: 9 (SIGKILL))"),
                false => called.assert_ended("completed", ""),
            }
            called.text
        });
        assert_eq!(texts[0], texts[1]);
        let messages = caller.join().unwrap();
        let (last, before) = messages.split_last().unwrap();
        assert!(before.iter().all(|message| message["method"] == "notifications/progress"));
        let content = last["result"]["content"].as_array().unwrap();
        assert_eq!(content[0]["text"], texts[0]);
        assert_eq!(last["result"]["isError"] == true, is_killed, "{last}");
        match is_killed {
            true => {
                assert_eq!(content.len(), 2, "{last}");
                assert!(content[1]["text"].as_str().unwrap().contains("SIGKILL"));
                assert!(texts[0].starts_with("part 1\n"));
            }
            false => {
                assert_eq!(content.len(), 1, "{last}");
                assert!(texts[0].ends_with("part 100\n"));
            }
        }
        // The upstream server has been restarted for the next call.
        test_server.call("echo", json!({"text": "again"})).assert_ended("completed", "");
    }
}

fn kill_child_of(parent: u32) {
    let all = std::fs::read_dir("/proc").unwrap();
    for entry in all.filter_map(Result::ok) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let behind = stat.rsplit_once(") ").map_or("", |(_, behind)| behind);
        if behind.split(' ').nth(1) == Some(&parent.to_string()) {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
}

#[test]
fn its_tools_can_be_run_without_a_server_too() {
    let program = env!("CARGO_BIN_EXE_streamdoor");
    let upstream = format!("up='{program}' stdio --conformance");
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(program).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (String::from_utf8(output.stdout).unwrap(), output.status.code(), said)
    };
    let (listed, code, said) = run(&["tools", "--mcp", &upstream]);
    assert_eq!(code, Some(0), "{said}");
    assert!(listed.contains("up_test_simple_text"), "{listed}");
    let (text, code, said) = run(&["run", "--mcp", &upstream, "up_test_simple_text"]);
    assert_eq!((&*text, code), ("This is a simple text response for testing.", Some(0)), "{said}");
    let (_, code, said) = run(&["run", "--mcp", &upstream, "up_test_error_handling"]);
    assert_eq!(code, Some(1), "{said}");
    let (_, code, said) = run(&["run", "--mcp", "'", "x"]);
    assert_eq!((code, said.contains("is not closed")), (Some(2), true), "{said}");
}

#[test]
fn a_page_that_does_not_speak_the_protocol_is_no_upstream() {
    // A streamdoor server, at an unknown path.
    let direct = Server::start(&[]);
    let (status, _) = ask(direct.address(), "GET", "/v1/tools", "");
    assert_eq!(status, 200);
    let program = env!("CARGO_BIN_EXE_streamdoor");
    let url = format!("http://{}/nothing", direct.address());
    let output = std::process::Command::new(program).args(["tools", "--mcp", &url]).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("404"), "{said}");
}

/// The upstream command is a shell that leaves a process behind and records its environment.
#[test]
fn an_upstream_leaves_nothing_behind_and_gets_what_was_chosen() {
    let program = env!("CARGO_BIN_EXE_streamdoor");
    let place = std::env::temp_dir().join(format!("streamdoor-upstream-{}", std::process::id()));
    let place = place.display();
    let script = format!(
        "setsid env -i sh -c 'echo $$ >{place}.pid; exec sleep 998' </dev/null >/dev/null 2>&1 &
        env >{place}.env; while ! test -s {place}.pid; do sleep 0.01; done; exec {program} stdio"
    );
    let settings = format!(
        "command_env = ['ASKED=1', 'CARGO_PKG_NAME']\n[mcp.far]\ncommand = 'sh'\n\
         args = ['-c', \"\"\"{script}\"\"\"]\nenv = {{ OWN = '2' }}\n"
    );
    let mut test_server = behind(&settings);
    let read = |what: &str| std::fs::read_to_string(format!("{place}.{what}")).unwrap();
    let pid = read("pid").trim().to_owned();
    let is_alive = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
    };
    assert!(is_alive());
    let variables = read("env");
    let has = |begin: &str| variables.lines().any(|line| line.starts_with(begin));
    for given in ["PATH=", "ASKED=1", "OWN=2", "CARGO_PKG_NAME="] {
        assert!(has(given), "{given}: {variables}");
    }
    assert!(!has("CARGO_MANIFEST_DIR="), "{variables}");
    test_server.server.stop();
    assert!(!is_alive());
    for what in ["pid", "env"] {
        std::fs::remove_file(format!("{place}.{what}")).unwrap();
    }
}
