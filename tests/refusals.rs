//! Every refusal that a client can cause, with its answer, its line in the log and its counter. A
//! code that this test cannot cause is in a table with the test that does.
#![cfg(feature = "cli")]

mod served;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::{Value, json};
use served::Server;
use streamdoor::endpoint::ERROR_CODES;
use streamdoor::limits;

const TOOL: &str = "slow_data_processor";
/// The path at which workers connect.
const WORK: &str = "/v1/tool-calls/stream";

/// A request and the refusal that it gets.
struct Row {
    status: u16,
    code: &'static str,
    request: String,
}

/// Makes a request without a body.
fn get(target: &str, headers: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")
}

/// Makes a request with a body of JSON.
fn post(target: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    )
}

/// Sends a request and returns the status and the body of the answer.
fn send(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    // A server that refuses may close before it has read everything.
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{request:.200}: {answer:?}"));
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// Connects a worker. Its connection stays open.
fn worker(address: &str, at: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = get(WORK, &format!("X-Session-Id: w-{at}\r\n"));
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    stream
}

/// Opens an execution that runs for as long as the test, and returns its id. Another one has used
/// the key `key-1`.
fn running(server: &Server) -> String {
    let body = json!({"tool": TOOL, "arguments": {"chunks": 1_000, "delay_ms": 60_000},
                      "hold": "newest"});
    let created = server.ask("POST", "/v1/executions", &body.to_string());
    let created: Value = serde_json::from_str(&created).unwrap();
    let key = "Idempotency-Key: key-1\r\n";
    let body = json!({"tool": TOOL, "arguments": {"chunks": 1}}).to_string();
    let (status, answer) = send(server.address(), &post("/v1/executions", key, &body));
    assert_eq!(status, 201, "{answer}");
    created["execution"].as_str().unwrap().to_owned()
}

/// All refusals. `running` is the id of an execution that runs.
fn rows(running: &str) -> Vec<Row> {
    let events = |id: &str, query: &str| format!("/v1/executions/{id}/events{query}");
    let open = |body: Value| post("/v1/executions", "", &body.to_string());
    let long = "x".repeat(70_000);
    let many: String = (0..100).map(|at| format!("a{at}=1&")).collect();
    let row = |status, code, request| Row { status, code, request };
    vec![
        row(400, "malformed_request", get("/", "no header\r\n")),
        row(400, "malformed_path", get("/v1/%zz", "")),
        row(400, "malformed_json", post("/v1/executions", "", "{")),
        row(400, "invalid_body", open(json!([]))),
        row(400, "missing_field", open(json!({}))),
        row(400, "unknown_field", open(json!({"tool": TOOL, "colour": 1}))),
        row(400, "invalid_field", open(json!({"tool": 1}))),
        row(400, "missing_parameter", get("/v1/events", "")),
        row(400, "unknown_parameter", get("/v1/tools?colour=1", "")),
        row(400, "repeated_parameter", get("/v1/executions?limit=1&limit=2", "")),
        row(400, "too_many_parameters", get(&format!("/v1/executions?{many}"), "")),
        row(400, "invalid_parameter", get("/v1/executions?limit=none", "")),
        row(400, "invalid_header", post("/v1/executions", "Idempotency-Key: \r\n", "{}")),
        row(400, "invalid_cursor", get(&events(running, ""), "Last-Event-ID: garbage\r\n")),
        row(400, "invalid_argument", open(json!({"tool": TOOL, "arguments": {"chunks": "many"}}))),
        row(400, "no_journal", open(json!({"tool": TOOL, "durability": "synced"}))),
        row(400, "nothing_kept", open(json!({"tool": TOOL, "deliver": "when_durable"}))),
        row(403, "host_not_allowed", "GET / HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n".to_owned()),
        row(403, "origin_not_allowed", get("/", "Origin: http://elsewhere.test\r\n")),
        row(404, "unknown_path", get("/nowhere", "")),
        row(404, "not_found", get(&format!("/v1/executions/{}", "0".repeat(26)), "")),
        row(404, "unknown_tool", open(json!({"tool": "no_such_tool"}))),
        row(405, "method_not_allowed", get("/v1/tools", "").replacen("GET", "PATCH", 1)),
        row(406, "not_acceptable", get(&events(running, ""), "Accept: image/png\r\n")),
        row(409, "not_yet", get(&events(running, "?from=900000"), "")),
        row(
            409,
            "running",
            get(&format!("/v1/executions/{running}?forget=true"), "").replacen("GET", "DELETE", 1),
        ),
        row(411, "length_required", get("/v1/executions", "").replacen("GET", "POST", 1)),
        row(413, "body_too_long", post("/v1/executions", "", &"x".repeat(3 << 20))),
        row(414, "target_too_long", get(&format!("/{long}"), "")),
        row(415, "unsupported_media_type", open(json!({})).replace("/json", "/xml")),
        row(417, "unknown_expectation", post("/v1/executions", "Expect: magic\r\n", "{}")),
        row(
            422,
            "key_reused",
            post("/v1/executions", "Idempotency-Key: key-1\r\n", r#"{"tool":"x"}"#),
        ),
        row(431, "head_too_long", get("/", &format!("X-Long: {long}\r\n"))),
        row(501, "not_implemented", get("/v1/executions", "Transfer-Encoding: gzip, chunked\r\n")),
        row(505, "unknown_version", get("/", "").replacen("1.1", "2.0", 1)),
        row(400, "missing_header", get(WORK, "")),
        row(429, "too_many_workers", get(WORK, "X-Session-Id: w-last\r\n")),
    ]
}

/// Codes that need more than a request: a state that takes long to reach, a second process, or a
/// fault. Each has a file with its test, and a text in it that names the refusal.
const ELSEWHERE: &[(u16, &str, &str, &str)] = &[
    (400, "unsupported_version", "src/endpoint/a2a_tests.rs", "VERSION_NOT_SUPPORTED"),
    (400, "unknown_method", "src/endpoint/a2a_tests.rs", "-32601"),
    (400, "unsupported_content", "src/endpoint/a2a_tests.rs", "CONTENT_TYPE_NOT_SUPPORTED"),
    (400, "unsupported_operation", "tests/front_clients/a2a.rs", "UNSUPPORTED_OPERATION"),
    (400, "no_push_notifications", "src/endpoint/a2a_tests.rs", "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    (400, "not_cancelable", "tests/front_clients/a2a.rs", "TASK_NOT_CANCELABLE"),
    (400, "no_cluster", "tests/cluster/replicated.rs", "no_cluster"),
    (400, "chunk_too_large", "src/shard/tests.rs", "ChunkTooLarge"),
    (400, "tls_on_plain_port", "tests/tls/refused.rs", "tls_on_plain_port"),
    (400, "plain_on_tls_port", "tests/tls/refused.rs", "plain_on_tls_port"),
    (400, "no_session", "src/sim/server/mcp_tests/cut.rs", "\"400\""),
    (401, "unauthorized", "tests/access/commands.rs", "unauthorized"),
    (403, "stale_epoch", "tests/restarts/streams.rs", "stale_epoch"),
    (403, "not_at_the_door", "tests/door/limits.rs", "not_at_the_door"),
    (403, "other_user", "tests/door/limits.rs", "other_user"),
    (404, "no_model", "src/sim/server/agent_tests.rs", "no_model"),
    (408, "request_timeout", "tests/hostile_net/dribble.rs", "HTTP/1.1 408 "),
    (409, "busy", "src/sim/server/front_tests.rs", "busy"),
    (409, "stream_exists", "tests/restarts/streams.rs", "stream_exists"),
    (409, "stream_closed", "tests/restarts/streams.rs", "stream_closed"),
    (409, "stream_gone", "tests/restarts/streams.rs", "(409, \"stream_gone\")"),
    (409, "type_mismatch", "tests/restarts/streams.rs", "type_mismatch"),
    (409, "sequence_conflict", "tests/restarts/streams.rs", "sequence_conflict"),
    (409, "acks_not_asked", "src/endpoint/refusal_tests.rs", "acks_not_asked"),
    (409, "already_ended", "src/endpoint/refusal_tests.rs", "already_ended"),
    (409, "not_given", "src/endpoint/refusal_tests.rs", "not_given"),
    (409, "name_taken", "src/sim/server/workers_tests.rs", "name_taken"),
    (409, "part_missing", "tests/workers/bodies.rs", "part_missing"),
    (409, "session_in_use", "src/sim/server/workers_tests.rs", "HTTP/1.1 409 "),
    (409, "stream_in_use", "src/sim/server/mcp_tests/sessions.rs", "HTTP/1.1 409 "),
    (409, "too_many_virtual_tools", "src/sim/server/workers_tests.rs", "too_many_virtual_tools"),
    (409, "tool_asks", "src/endpoint/refusal_tests.rs", "tool_asks"),
    (410, "no_longer_held", "tests/client_server/cuts.rs", "no_longer_held"),
    (410, "stream_gone", "tests/restarts/streams.rs", "(410, \"stream_gone\")"),
    (410, "call_ended", "src/sim/server/workers_tests.rs", "call_ended"),
    (416, "range_not_satisfiable", "tests/serve_documents.rs", "range_not_satisfiable"),
    (421, "elsewhere", "tests/cluster/elsewhere.rs", "\"elsewhere\""),
    (429, "too_many_executions", "tests/hostile_net/memory.rs", "too_many_executions"),
    (429, "too_many_subscribers", "src/endpoint/refusal_tests.rs", "too_many_subscribers"),
    (429, "too_many_readers", "tests/door/limits.rs", "(429, Some(64))"),
    (429, "too_many_doors", "tests/door/limits.rs", "too_many_doors"),
    (429, "no_room", "tests/workers/bodies.rs", "no_room"),
    (500, "tool_panicked", "tests/panics.rs", "tool_panicked"),
    (503, "busy", "tests/hostile_net/memory.rs", "busy"),
    (503, "queued", "src/endpoint/documents_tests.rs", "queued"),
    (503, "not_yet", "tests/door/reading.rs", "not_yet"),
    (503, "memory_short", "tests/door/limits.rs", "memory_short"),
    (503, "journal_broken", "src/server/executions/mod.rs", "journal_broken"),
    (507, "journal_full", "src/server/executions/mod.rs", "journal_full"),
    (503, "no_shared_memory", "tests/door/shortage.rs", "no_shared_memory"),
    (503, "too_many_connections", "tests/hostile_net/descriptors.rs", "too_many_connections"),
    (503, "shutting_down", "src/endpoint/refusal_tests.rs", "shutting_down"),
    (503, "shard_dead", "src/server/ends_tests.rs", "shard_dead"),
];

/// Codes that no test can cause: the kernel of a running machine always has random bytes.
const UNTESTED: &[(u16, &str)] = &[(500, "no_randomness")];

/// The lines `requests_refused` of the log: for each code, the sum of their counts.
fn logged(server: &Server, codes: &BTreeMap<&str, u64>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    let wanted: u64 = codes.values().sum();
    while sums.values().sum::<u64>() < wanted {
        let record = server.wait_for("requests_refused");
        for name in ["level", "status", "peer"] {
            assert!(!record[name].is_null(), "{record}");
        }
        let code = record["code"].as_str().unwrap().to_owned();
        *sums.entry(code).or_default() += record["count"].as_u64().unwrap();
    }
    sums
}

#[test]
fn every_refusal_has_an_answer_a_line_and_a_counter() {
    let server = Server::start(&["--allow-host", "localhost"]);
    let rows = rows(&running(&server));
    let _workers: Vec<TcpStream> =
        (0..limits::WORKERS_PER_PRINCIPAL_MAX).map(|at| worker(server.address(), at)).collect();
    let mut codes = BTreeMap::new();
    let mut wrong = Vec::new();
    for Row { status, code, request } in &rows {
        let (answered, body) = send(server.address(), request);
        let document: Value = serde_json::from_str(&body).unwrap_or_default();
        let named = document["error"]["code"].as_str().unwrap_or_default();
        if (answered, named) != (*status, *code) {
            wrong.push(format!("{status} {code}: answered {answered} {body:.200}"));
        }
        assert!(document["error"]["message"].as_str().is_none_or(|text| !text.is_empty()));
        *codes.entry(*code).or_default() += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let metrics = server.ask("GET", "/metrics", "");
    let logged = logged(&server, &codes);
    println!("status code                        answers  counter  log");
    for Row { status, code, .. } in &rows {
        let line = format!("streamdoor_requests_refused_total{{shard=\"0\",code=\"{code}\"}} ");
        let counted = metrics.lines().find_map(|found| found.strip_prefix(&line));
        let counted: u64 = counted.unwrap_or_else(|| panic!("no {line}")).parse().unwrap();
        let (expected, told) = (codes[code], logged[*code]);
        println!("{status:<6} {code:<27} {expected:>7}  {counted:>7}  {told:>3}");
        assert_eq!((counted, told), (expected, expected), "{code}");
    }
}

#[test]
fn every_code_of_the_table_has_a_test() {
    let here = rows("");
    let mut missing = Vec::new();
    for row in ERROR_CODES {
        let (status, code) = (row.status.code(), row.code);
        let is_here = here.iter().any(|row| (row.status, row.code) == (status, code));
        let elsewhere = ELSEWHERE.iter().find(|row| (row.0, row.1) == (status, code));
        match elsewhere {
            Some((_, _, file, text)) => {
                let path = format!("{}/{file}", env!("CARGO_MANIFEST_DIR"));
                let content = std::fs::read_to_string(&path).expect(&path);
                assert!(content.contains(text), "{file} does not test {code}");
                assert!(!is_here, "{code} is in both tables");
            }
            None if is_here || UNTESTED.contains(&(status, code)) => {}
            None => missing.push(format!("{status} {code}")),
        }
    }
    assert!(missing.is_empty(), "without a test: {}", missing.join(", "));
}
