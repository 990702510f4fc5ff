//! `streamdoor call` and `streamdoor watch` as a user runs them.

use std::io::Read;
use std::process::{Command, Output, Stdio};

use crate::server::{
    HEAD_SEQ, ID, Reply, Server, after, data, end, json, script, script_under, started,
    stream_head, tell,
};
use streamdoor::endpoint::StreamFormat;
use streamdoor::wire::events::EndState;

const SSE: StreamFormat = StreamFormat::Sse;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it prints UTF-8")
}

/// Returns the method and the path of a request.
fn route(request: &str) -> (&str, &str) {
    let mut words = request.split(' ');
    let method = words.next().unwrap();
    (method, words.next().unwrap().split('?').next().unwrap())
}

/// Returns a server with the tool `t`. `stream` answers calls and follows.
fn server(mut stream: impl FnMut(&str) -> Reply + Send + 'static) -> Server {
    Server::new(move |_, request| match route(request) {
        ("GET", "/v1/tools") => Reply::Last(json(
            200,
            r#"{"tools": [{"name": "t", "description": "T.", "timeouts": {"total_ms": 9000},
                "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}}}]}"#,
        )),
        ("GET", "/v1/executions") => Reply::Last(json(
            200,
            &format!(
                r#"{{"executions": [{{"execution": "{ID}", "tool": "t\u001b[2J", "state": "running",
                    "chunks": 3, "bytes": 4, "subscribers": 5, "age_ms": 6000,
                    "created_at": ""}}]}}"#
            ),
        )),
        ("GET", "/v1/progress") => Reply::Last(json(
            200,
            &format!(
                r#"{{"progress": [{{"token": "{}", "execution": "{ID}",
                    "progress": {{"progress": 1, "total": 4}}}}]}}"#,
                "0".repeat(39)
            ),
        )),
        ("DELETE", _) => {
            Reply::Last(json(202, &format!(r#"{{"execution": "{ID}", "state": "running"}}"#)))
        }
        _ => stream(request),
    })
}

fn whole() -> Server {
    server(|request| Reply::Last(script(SSE, after(request))))
}

/// The line that says what is missing from the results of the script.
const INCOMPLETE: &str = "3 chunks are missing from the results, with 23 bytes (policy ";

/// Returns all chunks of the script.
fn payload() -> Vec<u8> {
    (1..=HEAD_SEQ).filter(|seq| !(5..=7).contains(seq)).flat_map(data).collect()
}

#[test]
fn a_call_prints_what_comes_and_succeeds() {
    let server = whole();
    let arguments = ["call", &server.url, "t", "--arg", "word=123", "--max-chunks", "7"];
    let printed = output(&[&arguments[..], &["--timeout", "5s"]].concat());
    assert_eq!(printed.status.code(), Some(4), "{printed:?}"); // The script has a gap.
    assert_eq!(printed.stdout, payload());
    let words = text(&printed.stderr);
    assert!(words.starts_with("completed: 6 chunks, "), "{words}");
    assert!(words.contains(", 3 chunks missed"), "{words}");
    assert!(words.contains(INCOMPLETE), "{words}");
    let asked = server.asked();
    assert_eq!(route(&asked[0]), ("GET", "/v1/tools"));
    // What a pipe gets is owed everything.
    let begin = "POST /v1/executions?format=sse&policy=block&max_chunks=7";
    assert!(asked[1].starts_with(begin), "{}", asked[1]);
    let body = "{\"tool\":\"t\",\"arguments\":{\"word\":\"123\"},\"timeouts\":\
                {\"first_chunk_ms\":null,\"inactivity_ms\":null,\"total_ms\":5000}}";
    assert!(asked[1].ends_with(body), "{}", asked[1]);
}

#[test]
fn a_call_takes_other_forms() {
    let server = whole();
    let lines = output(&["call", &server.url, "t", "--format", "json"]);
    let events: Vec<serde_json::Value> =
        text(&lines.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 10);
    assert_eq!((&events[0]["event"], &events[0]["from_seq"]), (&"started".into(), &1.into()));
    assert_eq!((&events[6]["to_seq"], &events[9]["state"]), (&7.into(), &"completed".into()));
    assert_eq!(events[3]["encoding"], "base64");

    let shown = output(&["call", &server.url, "t", "--format", "text"]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("chunk 1^M\n") && shown.contains("[missed 3 chunks, 5 to 7 (lag)]"));
    assert!(shown.contains("[chunk 3: 3 bytes, binary]"));

    let name = format!("streamdoor-call-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let arguments = ["call", &server.url, "t", "--hash", "--out", path.to_str().unwrap()];
    let hashed = output(&arguments);
    assert_eq!(hashed.status.code(), Some(4), "{hashed:?}"); // The script has a gap.
    let said = text(&hashed.stderr);
    assert!(said.starts_with("completed: ") && said.contains(INCOMPLETE), "{said}");
    assert!(text(&hashed.stdout).contains(" bytes, sha256 "));
    assert_eq!(std::fs::read(&path).unwrap(), payload());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_call_comes_back_when_it_is_cut_and_fails_where_it_may_not() {
    let cut_once = || {
        let mut is_cut = false;
        server(move |request| {
            let mut bytes = script(SSE, after(request));
            if !std::mem::replace(&mut is_cut, true) {
                bytes.truncate(bytes.len() * 2 / 3);
            }
            Reply::Last(bytes)
        })
    };
    let server = cut_once();
    let printed = output(&["call", &server.url, "t"]);
    assert_eq!(printed.status.code(), Some(4), "{printed:?}"); // The script has a gap.
    assert_eq!(printed.stdout, payload());
    assert!(text(&printed.stderr).contains("the connection broke 1 time"));
    // The sum covers both connections, although each `end` counts one.
    let bytes = payload().len();
    let sums = format!("completed: 6 chunks, {bytes} bytes in ");
    assert!(text(&printed.stderr).starts_with(&sums), "{printed:?}");
    assert!(text(&printed.stderr).contains(", 3 chunks missed"), "{printed:?}");
    let server = cut_once();
    let printed = output(&["call", &server.url, "t", "--reconnects", "0"]);
    assert_eq!(printed.status.code(), Some(1));
    assert!(payload().starts_with(&printed.stdout) && printed.stdout.len() < payload().len());
    assert!(text(&printed.stderr).contains("before its end"), "{printed:?}");
}

#[test]
fn under_block_a_hole_is_a_failure_whatever_is_written() {
    for cut_at in [None, Some(2)] {
        // The gap comes on the second connection, or on the first.
        let mut is_cut = cut_at.is_none();
        let server = server(move |request| {
            if request.contains("/acks HTTP/1.1") {
                return Reply::Last(json(404, r#"{"error": {"code": "x", "message": "gone"}}"#));
            }
            let mut bytes = script_under("block", SSE, after(request));
            if !std::mem::replace(&mut is_cut, true) {
                bytes.truncate(bytes.len() / cut_at.unwrap());
            }
            Reply::Last(bytes)
        });
        let call = ["call", &server.url, "t", "--policy", "block"];
        let watch = ["watch", &server.url, ID]; // The execution has the policy `block`.
        for (arguments, format) in
            [(&call[..], "raw"), (&watch, "raw"), (&call, "ndjson"), (&watch, "table")]
        {
            let printed = output(&[arguments, &["--format", format]].concat());
            assert_eq!(printed.status.code(), Some(4), "{arguments:?} {format}: {printed:?}");
            let said = text(&printed.stderr);
            assert!(said.contains(&format!("{INCOMPLETE}block)")), "{said}");
            if format == "raw" {
                assert_eq!(printed.stdout, payload());
            }
        }
    }
}

#[test]
fn a_stream_that_its_server_no_longer_knows_has_broken_off_and_is_no_wrong_usage() {
    let arguments = [&["call", "", "t"][..], &["watch", "", ID]];
    for (mut arguments, code) in arguments.map(Vec::from).into_iter().zip([404, 401]) {
        let mut is_begun = false;
        let server = server(move |request| {
            if !std::mem::replace(&mut is_begun, true) {
                let mut bytes = script(SSE, after(request));
                bytes.truncate(bytes.len() / 2);
                return Reply::Last(bytes);
            }
            Reply::Last(json(code, r#"{"error": {"code": "x", "message": "no such execution"}}"#))
        });
        arguments[1] = &server.url;
        let printed = output(&arguments);
        assert_eq!(printed.status.code(), Some(1), "{printed:?}");
        let said = text(&printed.stderr);
        assert!(said.contains("broke off before its end"), "{said}");
        assert!(said.contains("no such execution"), "{said}");
    }
}

#[test]
fn exit_codes_tell_whose_fault_it_is() {
    let code = |arguments: &[&str], words: &str| {
        let printed = output(arguments);
        let said = text(&printed.stderr);
        assert!(said.contains(words), "{words}: {said}");
        printed.status.code()
    };
    for (state, expected) in [
        (EndState::Ended("failed"), "was failed"),
        (EndState::Ended("timed_out"), "timed out"),
        (EndState::Ended("cancelled"), "was cancelled"),
        (EndState::Detached { reason: "shutdown", resume_from: 1 }, "detached: shutdown"),
    ] {
        let server = server(move |_| {
            let mut bytes = stream_head(SSE);
            tell(&mut bytes, SSE, Some(0), &started(1));
            tell(&mut bytes, SSE, None, &end(state, std::iter::empty(), 0));
            Reply::Last(bytes)
        });
        assert_eq!(code(&["call", &server.url, "t"], expected), Some(1));
    }
    let refusal = r#"{"error": {"code": "x", "message": "no such thing"}}"#;
    let refusing = server(move |_| Reply::Last(json(404, refusal)));
    let url = refusing.url.as_str();
    assert_eq!(code(&["call", url, "t"], "no such thing"), Some(2));
    assert_eq!(code(&["watch", url, ID], "no such thing"), Some(2));
    let unknown = "unknown tool `other`; the server's tools are: t";
    assert_eq!(code(&["call", url, "other"], unknown), Some(2));
    assert_eq!(code(&["call", url], "no tool is given"), Some(2));
    assert_eq!(code(&["call"], "no tool is given"), Some(2));
    assert_eq!(
        code(&["call", "localhost", "t"], "neither \"localhost\" nor \"t\" is a URL"),
        Some(2)
    );
    assert_eq!(code(&["watch", url, "x"], "an execution id has 26"), Some(2));
    assert_eq!(
        code(&["call", "https://localhost:1", "t"], "https://localhost:1 cannot be reached"),
        Some(3)
    );
    assert_eq!(code(&["call", url, "t", "--nothing"], "--nothing"), Some(2));
    assert_eq!(code(&["call", url, "t", "--kinds", "x"], "unknown kind"), Some(2));
    assert_eq!(code(&["call", "unix:/nowhere/at/all", "t"], "cannot be reached"), Some(3));
    assert_eq!(code(&["watch", "unix:/nowhere/at/all"], "cannot be reached"), Some(3));
}

#[test]
fn an_interrupt_cancels_the_execution_of_a_call() {
    let server = server(|request| {
        if route(request).0 == "POST" {
            let mut bytes = script(SSE, 0);
            bytes.truncate(bytes.len() / 2);
            return Reply::Silence(bytes);
        }
        let mut bytes = stream_head(SSE);
        let seq = after(request) + 1;
        tell(&mut bytes, SSE, Some(seq - 1), &started(seq));
        let cancelled = end(EndState::Ended("cancelled"), std::iter::empty(), seq - 1);
        tell(&mut bytes, SSE, Some(seq - 1), &cancelled);
        Reply::Last(bytes)
    });
    let mut child = program(&["call", &server.url, "t"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 3]).unwrap(); // The first bytes: the follow has started.
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let printed = child.wait_with_output().unwrap();
    assert_eq!(printed.status.code(), Some(1));
    let said = text(&printed.stderr);
    assert!(said.contains("cancelled: ") && said.contains("was cancelled"), "{said}");
    let asked = server.asked();
    let cancel = format!("DELETE /v1/executions/{ID} HTTP/1.1\r\n");
    assert!(asked.iter().any(|request| request.starts_with(&cancel)), "{asked:?}");
}

#[test]
fn a_reader_who_leaves_cancels_the_execution_and_that_is_no_failure() {
    let server = server(|_| {
        let mut bytes = script(SSE, 0);
        bytes.truncate(bytes.len() / 2);
        Reply::Silence(bytes)
    });
    // The reader has left before the first word. A reader that leaves later is noticed with the
    // next word, and this server says no more.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child =
        program(&["call", &server.url, "t"]).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let printed = child.wait_with_output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    assert!(server.asked().iter().any(|request| request.starts_with("DELETE ")));
}

#[test]
fn a_watcher_lists_or_follows() {
    let server = whole();
    let list = output(&["watch", &server.url]);
    assert!(list.status.success(), "{list:?}");
    let lines = text(&list.stdout);
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines[0].starts_with("execution ") && lines[0].ends_with("progress"));
    assert!(lines[1].starts_with(&format!("{ID}  t^[[2J  running ")), "{lines:?}");
    assert!(lines[1].ends_with("6.0 s  25 % (1 of 4)"), "{lines:?}");
    assert_eq!(lines.len(), 2);

    let followed = output(&["watch", &server.url, ID, "--policy", "drop"]);
    assert_eq!(followed.status.code(), Some(4), "{followed:?}"); // The script has a gap.
    assert!(text(&followed.stderr).contains(&format!("{INCOMPLETE}drop)")), "{followed:?}");
    assert_eq!(followed.stdout, payload());
    let asked = server.asked();
    let request = format!("GET /v1/executions/{ID}/events?format=sse&policy=drop HTTP/1.1\r\n");
    assert!(asked.iter().any(|asked| asked.starts_with(&request)), "{asked:?}");
    // Chunks of the script before `--from` were not requested.
    let later = output(&["watch", &server.url, ID, "--from", "8", "--format", "raw"]);
    assert!(payload().ends_with(&later.stdout), "{later:?}");
    assert_eq!(later.stdout, [data(8), data(9)].concat());
    let asked = server.asked().remove(0);
    assert!(asked.contains("&from=8&policy=block"), "{asked}");
}

#[test]
fn the_server_and_the_token_come_from_the_environment_unless_they_are_given() {
    const TOKEN: &str = "0123456789abcdefghijklmnopqrstuvwxyz-secret";
    let (sender, requests) = std::sync::mpsc::channel();
    let server = Server::new(move |_, request| {
        let _ = sender.send(request.to_owned()); // The test may have ended.
        Reply::Last(json(200, r#"{"executions": [], "progress": [], "tools": []}"#))
    });
    let without_scheme = server.url.strip_prefix("http://").unwrap();
    let nowhere = "unix:/nowhere/at/all";
    for (arguments, variable, code) in [
        (&["watch"][..], server.url.as_str(), 0),
        (&["watch"], without_scheme, 0),
        (&["watch", without_scheme], nowhere, 0),
        (&["watch"], nowhere, 3),
        (&["watch"], "http://", 2),
        (&["call", "t"], without_scheme, 2), // It has no tools.
        (&["agent", "--server", "task"], nowhere, 3),
        (&["top", "--once"], nowhere, 3),
    ] {
        let mut command = program(arguments);
        let command = command.env("STREAMDOOR_URL", variable).env("STREAMDOOR_TOKEN", TOKEN);
        let printed = command.output().unwrap();
        let said = text(&printed.stderr);
        assert_eq!(printed.status.code(), Some(code), "{arguments:?} {variable}: {said}");
        assert!(!said.contains(TOKEN) && !text(&printed.stdout).contains(TOKEN));
    }
    let told: Vec<String> = requests.try_iter().collect();
    assert!(told.len() >= 7, "{told:?}"); // `watch` asks twice.
    let bearer = format!("bearer {}", TOKEN).to_lowercase();
    assert!(told.iter().all(|request| request.to_lowercase().contains(&bearer)), "{told:?}");
    let wrong = program(&["watch", &server.url]).env("STREAMDOOR_TOKEN", "short").output().unwrap();
    let said = text(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(said.contains("STREAMDOOR_TOKEN: ") && !said.contains("short\""), "{said}");
}
