//! Files and commands over a socket. Without permission they are not available. No way of asking
//! reaches anything outside of the permitted folder.
#![cfg(all(feature = "cli", feature = "server", feature = "sqlite"))]

mod served;

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use served::Server;

/// Test data. The readable folder `in/` has a file, a database, a folder, and links that lead
/// outside. The folder `out/` has secrets.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("serve-files-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let scratch = Scratch(path);
        for folder in ["in/deep", "out"] {
            std::fs::create_dir_all(scratch.0.join(folder)).unwrap();
        }
        let inside = scratch.inside();
        std::fs::write(inside.join("deep/file"), "needle inside\n").unwrap();
        std::fs::write(scratch.0.join("out/secret"), "needle outside\n").unwrap();
        for (path, text) in [("in/rows.db", "inside"), ("out/rows.db", "outside")] {
            let rows = rusqlite::Connection::open(scratch.0.join(path)).unwrap();
            let sql = format!("CREATE TABLE t (a TEXT); INSERT INTO t VALUES ('{text}')");
            rows.execute_batch(&sql).unwrap();
        }
        for (target, link) in [
            ("deep/file", "to-file"),
            ("../out/secret", "up"),
            ("../out", "up-folder"),
            ("../out/rows.db", "up.db"),
            ("/etc/hostname", "absolute"),
        ] {
            symlink(target, inside.join(link)).unwrap();
        }
        scratch
    }

    fn inside(&self) -> PathBuf {
        self.0.join("in")
    }

    /// Returns paths that lead outside; some of them lead to `secret`.
    fn ways_out(&self, secret: &str) -> Vec<String> {
        let absolute = self.0.join("out").join(secret);
        let mut ways: Vec<String> = [
            "../out/SECRET",
            "deep/../../out/SECRET",
            "up-folder/SECRET",
            "/proc/self/exe",
            "/proc/self/environ",
            "/etc/passwd",
            "absolute",
            "..",
            "/",
        ]
        .map(|way| way.replace("SECRET", secret))
        .to_vec();
        ways.push(absolute.to_str().unwrap().to_owned());
        ways
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(root: &Path, more: &[&str]) -> Server {
    let mut arguments = vec!["--files-root", root.to_str().unwrap()];
    arguments.extend(more);
    Server::start(&arguments)
}

/// Runs a tool. Returns its payload and its end, or the status and the body of an error reply.
fn run(server: &Server, tool: &str, arguments: Value) -> Result<(String, Value), (u16, Value)> {
    let body = json!({"tool": tool, "arguments": arguments}).to_string();
    let mut stream = server.connect();
    write!(
        stream,
        "POST /v1/executions?format=ndjson HTTP/1.0\r\nHost: 127.0.0.1\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
    if status != 200 {
        return Err((status, serde_json::from_str(body).unwrap()));
    }
    let events = body.lines().filter(|line| !line.is_empty());
    let events: Vec<Value> = events.map(|line| serde_json::from_str(line).unwrap()).collect();
    let texts = events.iter().filter(|event| event["event"] == "chunk");
    let payload = texts.map(|event| event["data"].as_str().unwrap()).collect();
    Ok((payload, events.last().unwrap().clone()))
}

fn assert_refused(server: &Server, tool: &str, arguments: Value) {
    let (payload, end) = run(server, tool, arguments.clone()).expect("it is tried");
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("failed")), "{arguments}");
    assert!(!payload.contains("outside"), "{arguments}: {payload}");
    let error = end["error"].as_str().unwrap();
    assert!(error.contains("is outside the folder that may be read"), "{arguments}: {error}");
}

#[test]
fn without_being_allowed_there_are_no_files_and_no_commands() {
    let server = Server::start(&[]);
    let tools = server.ask("GET", "/v1/tools", "");
    for (tool, arguments) in [
        ("process_file", json!({"file_path": "/etc/hostname"})),
        ("search_files", json!({"root": "/etc", "pattern": "a"})),
        ("query_database", json!({"path": "/a.db", "query": "SELECT 1"})),
        ("run_command", json!({"argv": ["true"]})),
    ] {
        assert!(!tools.contains(tool), "{tools}");
        let (status, answer) = run(&server, tool, arguments).unwrap_err();
        assert_eq!((status, &answer["error"]["field"]), (404, &json!("tool")), "{answer}");
    }
}

#[test]
fn what_is_below_the_folder_is_read_and_nothing_else() {
    let scratch = Scratch::new("below");
    let server = start(&scratch.inside(), &[]);
    let inside = scratch.inside().canonicalize().unwrap();
    let absolute = inside.join("deep/file");
    for path in ["deep/file", "./deep/../deep/file", "to-file", absolute.to_str().unwrap()] {
        let (payload, end) = run(&server, "process_file", json!({"file_path": path})).unwrap();
        assert_eq!(
            (&payload[..], &end["state"]),
            ("needle inside\n", &json!("completed")),
            "{path}"
        );
    }
    for path in scratch.ways_out("secret") {
        assert_refused(&server, "process_file", json!({"file_path": path}));
        assert_refused(&server, "search_files", json!({"root": path, "pattern": "needle"}));
    }
    for path in scratch.ways_out("rows.db") {
        assert_refused(
            &server,
            "query_database",
            json!({"path": path, "query": "SELECT a FROM t"}),
        );
    }
    assert_refused(&server, "query_database", json!({"path": "up.db", "query": "SELECT a FROM t"}));
    let (payload, _) =
        run(&server, "query_database", json!({"path": "rows.db", "query": "SELECT a FROM t"}))
            .unwrap();
    assert_eq!(payload, "{\"a\":\"inside\"}\n");
}

#[test]
fn a_search_says_paths_as_its_root_was_said_and_follows_no_link_out() {
    let scratch = Scratch::new("search");
    let server = start(&scratch.inside(), &[]);
    for (root, path) in
        [(".", "./deep/file"), ("deep", "deep/file"), ("deep/..", "deep/../deep/file")]
    {
        let (payload, end) =
            run(&server, "search_files", json!({"root": root, "pattern": "needle"})).unwrap();
        assert_eq!(end["state"], "completed");
        let found: Vec<Value> =
            payload.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(found.len(), 1, "{payload}");
        assert_eq!((&found[0]["path"], &found[0]["text"]), (&json!(path), &json!("needle inside")));
    }
}

#[test]
fn listed_commands_run_in_a_folder_that_may_be_read() {
    let scratch = Scratch::new("commands");
    let server = start(&scratch.inside(), &["--allow-commands", "pwd"]);
    let deep = scratch.inside().canonicalize().unwrap().join("deep");
    let arguments = json!({"argv": ["pwd", "-P"], "cwd": "deep"});
    let (payload, end) = run(&server, "run_command", arguments).unwrap();
    assert_eq!((payload.trim_end(), &end["state"]), (deep.to_str().unwrap(), &json!("completed")));
    for cwd in ["..", "up-folder", "/", "/proc/self/cwd"] {
        assert_refused(&server, "run_command", json!({"argv": ["pwd"], "cwd": cwd}));
    }
    for arguments in [
        json!({"argv": ["ls"]}),
        json!({"argv": ["/bin/pwd"]}),
        json!({"argv": ["./pwd"]}),
        json!({"argv": ["pwd"], "env": {"PATH": "/tmp"}}),
    ] {
        let (status, answer) = run(&server, "run_command", arguments).unwrap_err();
        assert_eq!(
            (status, &answer["error"]["code"]),
            (400, &json!("invalid_argument")),
            "{answer}"
        );
    }
}
