//! Foreign text cannot control the terminal. The tests have an evil MCP server, an evil HTTP
//! server, and evil arguments for every command that prints them.
#![cfg(feature = "cli")]

mod pty;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// Escape sequences that clear the screen and write the clipboard, a bell, C1 and bidi controls.
const EVIL: &str = "x\x1b[2J\x1b]52;c;ZXZpbA==\x07\u{9b}31m\u{202e}y\u{2066}\u{200f}\u{61c}z";

/// An MCP server that answers each request with hostile text.
const MCP_SERVER: &str = r#"
evil='x\u001b[2J\u001b]52;c;ZXZpbA==\u0007\u009b31m\u202ey\u2066\u200f\u061cz'
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},
      "serverInfo":{"name":"'$evil'","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"evil","description":"'$evil'","inputSchema":
      {"type":"object","properties":{"'$evil'":{"type":"string","description":"'$evil'",
      "enum":["'$evil'"],"default":"'$evil'"}}}}]}' ;;
    *'"tools/call"'*) result='{"content":[{"type":"text","text":"'$evil'"}],"isError":true}' ;;
    *) result= ;;
  esac
  case "$id$result" in
    '') ;;
    "$id") printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"%s"}}\n' \
      "$id" "$evil" ;;
    *) printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" \
      "$(printf '%s' "$result" | tr -d '\n')" ;;
  esac
done
"#;

/// Starts an HTTP server whose replies are hostile. Returns its address.
fn evil_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || answer(stream));
        }
    });
    address
}

fn answer(stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if lines.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let length = head.to_lowercase();
        let length = length.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        lines.read_exact(&mut body).unwrap();
        let (status, reply) = reply_to(&head);
        let body = reply.to_string();
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
        let text = format!("{head}content-length: {length}\r\n\r\n{body}");
        if (&stream).write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn reply_to(head: &str) -> (&'static str, Value) {
    let id = "0".repeat(26);
    let progress = json!({"progress": 1, "total": 2, "message": EVIL});
    match head.split(' ').nth(1).unwrap() {
        "/v1/tools" => {
            let schema = json!({"type": "object"});
            let limits = json!({"first_chunk_ms": null, "inactivity_ms": null, "total_ms": null});
            let tool = json!({"name": EVIL, "description": EVIL, "input_schema": schema,
                "timeouts": limits, "subscribers": {"policy": "drop"}});
            ("200 OK", json!({"tools": [tool]}))
        }
        "/v1/executions" => {
            let execution = json!({"execution": id, "tool": EVIL, "state": "running", "chunks": 1,
                "bytes": 1, "subscribers": 1, "age_ms": 1});
            ("200 OK", json!({"executions": [execution]}))
        }
        "/v1/progress" => {
            let one = json!({"token": "0".repeat(39), "execution": id, "progress": progress});
            ("200 OK", json!({"progress": [one]}))
        }
        _ => (
            "404 Not Found",
            json!({"error": {"code": EVIL, "message": EVIL, "field": EVIL, "limit": 1}}),
        ),
    }
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(arguments).stdin(Stdio::null()).env_remove("XDG_RUNTIME_DIR");
    command
}

fn is_evil(c: char) -> bool {
    let is_bidi = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}');
    is_bidi || (c.is_control() && c != '\n' && c != '\t')
}

fn assert_harmless(arguments: &[&str], output: &Output) {
    for bytes in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(bytes);
        assert!(!text.contains(is_evil), "{arguments:?}: {text:?}");
    }
    assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{arguments:?} said nothing");
}

#[test]
fn no_argument_commands_the_terminal() {
    let file = format!("/nonexistent/{EVIL}");
    let file_argument = format!("file_path={file}");
    let cases: &[&[&str]] = &[
        &[EVIL],
        &["run", EVIL],
        &["run", "process_file", "--arg", &file_argument],
        &["run", "slow_data_processor", "--arg", EVIL],
        &["run", "slow_data_processor", "--args-json", EVIL],
        &["run", "slow_data_processor", "--policy", EVIL],
        &["run", "slow_data_processor", "--out", &file],
        &["run", "slow_data_processor", "--mcp", EVIL],
        &["run", &format!("--{EVIL}")],
        &["tools", EVIL],
        &["tools", "--mcp", EVIL],
        &["demo", "--file", &file],
        &["demo", "--process", EVIL],
        &["call", EVIL, EVIL],
        &["call", &format!("http://{EVIL}"), "tool"],
        &["call", "http://127.0.0.1:1", "tool", "--cacert", &file],
        &["call", "http://127.0.0.1:1", "tool", "--token-file", &file],
        &["watch", "http://127.0.0.1:1", EVIL],
        &["cat", EVIL],
        &["cat", "--named", EVIL],
        &["pipe", EVIL, "--door", &file],
        &["top", "--once", EVIL],
        &["top", "--once", "--door", &file],
        &["doctor", "--door", &file],
        &["doctor", "--json", "--door", &file],
        &["cluster", "--cluster", EVIL],
        &["cluster", EVIL],
        &["doctor", "--node", EVIL, "--cluster", "nats://127.0.0.1:1"],
        &["agent", "--model", EVIL, "--base-url", EVIL, "hello"],
        &["agent", "--tools", EVIL, "--model", "m", "--base-url", "http://127.0.0.1:1", "hello"],
        &["model-script", &file],
        &["serve", "--config", &file],
        &["serve", "--journal", "off", "--listen", EVIL],
        &["serve", "--files-root", &file, "--print-config"],
        &["serve", "--journal", "off", "--files-root", &file, "--listen", "127.0.0.1:0"],
        &["serve", "--journal", "off", "--mcp", EVIL, "--listen", "127.0.0.1:0"],
        &["stdio", "--files-root", &file],
        &["help", EVIL],
        &["version", EVIL],
    ];
    for arguments in cases {
        assert_harmless(arguments, &program(arguments).output().unwrap());
    }
}

#[test]
fn no_mcp_server_commands_the_terminal() {
    let script = std::env::temp_dir().join(format!("streamdoor-evil-{}.sh", std::process::id()));
    std::fs::write(&script, MCP_SERVER).unwrap();
    let server = format!("e=sh {}", script.display());
    let cases: &[&[&str]] = &[
        &["tools", "--mcp", &server],
        &["tools", "--json", "--mcp", &server],
        &["tools", "e_evil", "--mcp", &server],
        &["run", "e_evil", "--mcp", &server, "--format", "text"],
        &["run", "e_evil", "--mcp", &server, "--arg", "y=1", "--format", "text"],
        &["run", "e_nothing", "--mcp", &server],
    ];
    let mut told = String::new();
    for arguments in cases {
        let output = program(arguments).output().unwrap();
        assert_harmless(arguments, &output);
        told += &String::from_utf8_lossy(&output.stdout);
        told += &String::from_utf8_lossy(&output.stderr);
    }
    std::fs::remove_file(&script).unwrap();
    assert!(told.contains("e_evil") && told.contains("[2J"), "its texts are shown: {told}");
}

#[test]
fn no_http_server_commands_the_terminal() {
    let url = evil_server();
    let (id, server) = ("0".repeat(26), format!("--server={url}"));
    for arguments in [
        &["call", &url, "tool"][..],
        &["call", &url, EVIL],
        &["watch", &url],
        &["watch", &url, &id],
        &["top", "--once", &url],
        &["agent", &server, "--model", "m", "hello"],
    ] {
        assert_harmless(arguments, &program(arguments).output().unwrap());
    }
}

#[test]
fn lines_of_json_do_not_command_a_terminal_and_keep_their_meaning() {
    let file = std::env::temp_dir().join(format!("streamdoor-evil-{}", std::process::id()));
    std::fs::write(&file, EVIL).unwrap();
    let argument = format!("file_path={}", file.display());
    let terminal = pty::Terminal::open(1_000, 24);
    let run = ["run", "process_file", "--arg", &argument, "--format", "ndjson"];
    let child = terminal.start(&mut program(&run));
    assert!(child.end().success());
    let text = terminal.wait("the summary", |text| text.contains("completed: "));
    std::fs::remove_file(&file).unwrap();
    let chunk = text.lines().find(|line| line.contains("\"chunk\"")).unwrap();
    assert!(!chunk.trim_end().contains(is_evil), "{chunk:?}");
    let chunk: Value = serde_json::from_str(chunk.trim()).unwrap();
    assert_eq!(chunk["data"], EVIL);
}
