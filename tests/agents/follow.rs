//! The same run followed from another terminal, in a process and on a server: the parts are the
//! same.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};

use crate::parts::{of_lines, of_sse, read};
use crate::run::{Folder, agent, check_three_steps, three_steps};
use crate::scripted::ModelServer;
use crate::served::Server;
use crate::{curl, parts};

/// Returns a stream as `curl -N` prints it, or as read from a socket if curl is missing.
fn read_stream(url: &str) -> String {
    if curl::is_here() {
        return String::from_utf8(curl::printed(&["-N", url])).unwrap();
    }
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let mut reader = ResponseReader::new();
    reader.expect(Method::Get);
    let (mut input, mut body) = (bytes.as_slice(), Vec::new());
    while let Some(part) = reader.read(&mut input).unwrap() {
        if let ResponsePart::Body(piece) = part {
            body.extend_from_slice(piece);
        }
    }
    String::from_utf8(body).unwrap()
}

/// Returns a script whose model starts late. The follower has to connect before the ring is full.
fn late_steps(folder: &Folder) -> String {
    three_steps(folder).replacen("300ms", "5s", 1)
}

#[test]
fn curl_from_another_terminal_sees_the_same_parts() {
    let folder = Folder::new("agent-follow");
    let model = ModelServer::following("follow", &late_steps(&folder));
    let mut command = agent(&model, &["--format", "ndjson", "--listen", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("follow it: curl -N '").expect(&line);
    let url = url.strip_suffix('\'').unwrap().to_owned();
    let follower = std::thread::spawn(move || read_stream(&url));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let ours = of_lines(std::str::from_utf8(&output.stdout).unwrap());
    let stream = follower.join().unwrap();
    assert_eq!(of_sse(&stream), ours, "byte by byte");
    assert!(stream.contains("\nevent: TextDelta\n") && stream.contains("\nid: "), "{stream}");
    assert!(stream.trim_end().rsplit("\n\n").next().unwrap().contains("event: end"), "{stream}");
    check_three_steps(&read(&ours));
}

#[test]
fn whoever_has_no_ticket_sees_and_does_nothing() {
    let script = "[[turns]]\nevents = [{ text = 'word ', repeat = 1000000, pace = '5ms' }]";
    let model = ModelServer::following("ticket", script);
    let mut command = agent(&model, &["--listen", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("follow it: curl -N 'http://").expect(&line);
    let (address, path) = url.strip_suffix('\'').unwrap().split_once('/').unwrap();
    let (path, _) = path.split_once('?').unwrap();
    let run = r#"{"tool": "run_command", "arguments": {"argv": ["id"]}}"#;
    for (method, path, body) in [
        ("GET", format!("/{path}"), ""),
        ("GET", "/v1/executions".to_owned(), ""),
        ("POST", "/v1/executions".to_owned(), run),
        ("POST", "/v1/agent/stream".to_owned(), r#"{"task": "x"}"#),
    ] {
        let (status, _) = crate::served::ask(address, method, &path, body);
        assert_eq!(status, 401, "{method} {path}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_run_on_a_server_is_the_same_for_its_client_and_for_others() {
    let folder = Folder::new("agent-server");
    let model = ModelServer::following("server", &late_steps(&folder));
    let described = format!("demo=chat,{},demo", model.base_url);
    let root = folder.0.to_str().unwrap();
    let server = Server::start(&[
        "--model",
        &described,
        "--files-root",
        root,
        "--allow-commands",
        "sh",
        "--allow-commands",
        "echo",
    ]);
    let url = format!("http://{}", server.address());
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(["agent", "--server", &url, "--tools", "search_files,run_command"]);
    command.args(["--format", "ndjson", "find the needles"]).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    output.read_line(&mut lines).unwrap();
    let started: serde_json::Value = serde_json::from_str(&lines).unwrap();
    let execution = started["execution"].as_str().unwrap();
    // Only `block` delivers everything: under other policies a slow subscriber misses chunks.
    let events = format!("{url}/v1/executions/{execution}/events?policy=block");
    let follower = std::thread::spawn(move || read_stream(&events));
    output.read_to_string(&mut lines).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let ours = of_lines(&lines);
    assert_eq!(of_sse(&follower.join().unwrap()), ours);
    check_three_steps(&parts::read(&ours));
    // Each tool call was an execution of its own, whose status can be read, too.
    let chunk = parts::read(&ours).into_iter().find(|part| part["type"] == "ToolOutputChunk");
    let tool = chunk.unwrap()["execution"].as_str().unwrap().to_owned();
    let status = server.ask("GET", &format!("/v1/executions/{tool}"), "");
    assert!(status.contains("search_files") || status.contains("run_command"), "{status}");
}
