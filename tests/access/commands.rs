//! `streamdoor serve`, `call` and `watch` with token files.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use streamdoor::endpoint::Access;
use streamdoor::reactor::{ListenError, ListenOptions};
use streamdoor::server::ServerShard;
use streamdoor::shard::ShardConfig;

use crate::test_server::{ANN, Asking, BOB, WRONG};

/// A temporary file that is removed when the value is dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str, mode: u32) -> File {
        let name = format!("streamdoor-access-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Runs the program, which must exit with `code`, and returns its stderr. No token may appear in
/// it.
fn said(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(!said.contains(ANN) && !said.contains(BOB), "{said}");
    said
}

/// A server process that is killed when the value is dropped.
struct Server {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
    read: String,
}

impl Server {
    fn start(arguments: &[&str]) -> (Server, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command.args([
            "serve",
            "--journal",
            "off",
            "--log",
            "json",
            "--log-level",
            "debug",
            "--idle",
            "block",
        ]);
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut server = Server { child, log, read: String::new() };
        let listening = server.until("listening");
        (server, listening["address"].as_str().unwrap().to_owned())
    }

    /// Reads the log up to the next event of that name, and returns the event.
    fn until(&mut self, event: &str) -> Value {
        self.until_with(event, |_| true)
    }

    /// Does the same as [`Server::until`], for an event that fits.
    fn until_with(&mut self, event: &str, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let begin = self.read.len();
            assert!(self.log.read_line(&mut self.read).unwrap() > 0, "{event} in {}", self.read);
            let record: Value = serde_json::from_str(&self.read[begin..]).unwrap();
            if record["event"] == event && fits(&record) {
                return record;
            }
        }
    }

    /// Stops the server with SIGTERM, and returns its whole log.
    fn stop(mut self) -> String {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
        self.log.read_to_string(&mut self.read).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        std::mem::take(&mut self.read)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It still runs only if a test has failed.
        let _ = self.child.wait();
    }
}

/// Each refusal is counted, and the first of each kind is a line of the log.
#[test]
fn no_refusal_is_silent() {
    let tokens = File::new("refusals", &format!("ann {ANN}\nbob {BOB}\n"), 0o600);
    let (mut server, url) = Server::start(&["--token-file", tokens.path(), "--access-log"]);
    let address = url.strip_prefix("http://").unwrap();
    let body = json!({"tool": "nothing"});
    let executions = "/v1/executions";
    let foreign =
        Asking { host: Some("elsewhere.test".to_owned()), ..Asking::new("GET", "/v1/tools") };
    let table = [
        (Asking::new("GET", "/v1/tools"), 401, "unauthorized", "/v1/tools"),
        (Asking::new("GET", "/nowhere").token(ANN), 404, "unknown_path", "/nowhere"),
        (Asking::new("PUT", executions).token(ANN), 405, "method_not_allowed", executions),
        (Asking::new("POST", executions).token(ANN).body(&body), 404, "unknown_tool", ""),
        (Asking::new("GET", "/v1/tools?a=1").token(ANN), 400, "unknown_parameter", "/v1/tools"),
        (foreign.token(ANN), 403, "host_not_allowed", "/v1/tools"),
    ];
    for (asking, status, code, path) in &table {
        for _ in 0..3 {
            let (answered, _, document) = asking.answer(address);
            assert_eq!(answered, *status, "{document}");
            assert!(document.contains(&format!("\"code\":\"{code}\"")), "{document}");
        }
        let record = server.until("requests_refused");
        assert_eq!((&record["code"], &record["status"]), (&json!(code), &json!(status)));
        assert_eq!(record["count"], 1, "{record}");
        assert_eq!(record["path"].as_str().unwrap_or(""), *path, "{record}");
        assert!(record["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{record}");
        let is_grave = [401, 403].contains(status);
        assert_eq!(record["level"], if is_grave { "warn" } else { "info" });
        let request = server.until("request");
        assert_eq!((&request["code"], &request["status"]), (&json!(code), &json!(status)));
    }
    // A stream begins behind its request, and is still logged as that of its own client.
    let body = json!({"tool": "slow_data_processor", "arguments": {"chunks": 1}});
    let stream = Asking::new("POST", "/v1/executions?format=sse").token(BOB).body(&body);
    assert_eq!(stream.answer(address).0, 200);
    let (_, _, metrics) = Asking::new("GET", "/metrics").token(ANN).answer(address);
    for (route, principal) in [(executions, "bob"), ("/metrics", "ann")] {
        let request = server.until_with("request", |record| record["status"] == 200);
        assert_eq!((&request["route"], &request["principal"]), (&json!(route), &json!(principal)));
    }
    for (_, _, code, _) in &table {
        let line = format!("streamdoor_requests_refused_total{{shard=\"0\",code=\"{code}\"}} 3");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    let line = "streamdoor_http_requests_total{shard=\"0\",route=\"/v1/executions\",\
                method=\"POST\",code=\"404\"} 3";
    assert!(metrics.contains(line), "{metrics}");
    let line = "streamdoor_http_requests_total{shard=\"0\",route=\"\",method=\"\",code=\"404\"} 3";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn programs_show_their_token_and_the_log_says_whose_it_was_but_not_which() {
    let text = format!("# for the tests\nann {ANN}\nbob {BOB}\n");
    let tokens = File::new("tokens", &text, 0o600);
    let bare = File::new("bare", &format!("{BOB}\n"), 0o400);
    let wrong = File::new("wrong", &format!("{WRONG}\n"), 0o600);
    let (mut server, url) = Server::start(&["--token-file", tokens.path()]);
    let call = |file: Option<&str>| {
        let mut arguments = vec!["call", &url, "slow_data_processor", "--arg", "delay_ms=0"];
        arguments.extend(file.into_iter().flat_map(|file| ["--token-file", file]));
        run(&arguments)
    };
    for (file, name) in [(&tokens, "ann"), (&bare, "bob")] {
        let output = call(Some(file.path()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for event in ["execution_started", "execution_ended"] {
            assert_eq!(server.until(event)["principal"], name);
        }
        let output = run(&["watch", &url, "--token-file", file.path()]);
        let listed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(listed.matches("slow_data_processor").count(), 1, "{listed}");
    }
    for output in [call(None), call(Some(wrong.path())), run(&["watch", &url])] {
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("a token is needed") && said.contains("--token-file"), "{said}");
    }
    let address = url.strip_prefix("http://").unwrap();
    let body = json!({"tool": "slow_data_processor", "arguments": {"chunks": 1}});
    let asking = Asking::new("POST", "/v1/executions").token(ANN).body(&body);
    let (_, _, created) = asking.answer(address);
    let created: Value = serde_json::from_str(&created).unwrap();
    let link = created["links"]["events"].as_str().unwrap();
    let ticket = link.split_once("ticket=").unwrap().1.to_owned();
    assert_eq!(Asking::new("GET", link).answer(address).0, 200);
    assert_eq!(Asking::new("GET", link).token(WRONG).answer(address).0, 401);
    let log = server.stop();
    assert!(log.contains("\"principal\":\"ann\""), "{log}");
    for secret in [ANN, BOB, WRONG, &ticket] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn files_that_others_can_read_or_that_are_wrong_are_refused() {
    let good = format!("ann {ANN}\n");
    for mode in [0o644, 0o640, 0o604, 0o660, 0o610] {
        let file = File::new(&format!("mode-{mode:o}"), &good, mode);
        let expected = format!("--token-file {}: its mode is {mode:o}", file.path());
        let mut all = vec![vec!["serve", "--journal", "off", "--listen", "127.0.0.1:0"]];
        all.push(vec!["call", "http://127.0.0.1:1", "t"]);
        all.push(vec!["watch", "http://127.0.0.1:1"]);
        for mut arguments in all {
            arguments.extend(["--token-file", file.path()]);
            let said = said(&arguments, 2);
            assert!(said.contains(&expected) && said.contains("chmod 600"), "{said}");
        }
    }
    let table = [
        (format!("{good}\nbob short\n"), "line 3: the token has fewer than 32 characters"),
        (format!("{good}bob {ANN}\n"), "line 2: the token is already in line 1"),
        (format!("# {ANN}\n"), "it contains no token"),
        (ANN.to_owned(), "line 1: must be PRINCIPAL TOKEN"),
        ("\u{e9} ".repeat(200_000), "is longer than 262144 bytes"),
    ];
    for (at, (text, expected)) in table.into_iter().enumerate() {
        let file = File::new(&format!("bad-{at}"), &text, 0o600);
        let arguments =
            ["serve", "--journal", "off", "--listen", "127.0.0.1:0", "--token-file", file.path()];
        let said = said(&arguments, 2);
        assert!(said.contains(expected) && said.contains(file.path()), "{said}");
    }
    let said = said(&["serve", "--token-file", "/nowhere/at/all"], 2);
    assert!(said.contains("--token-file /nowhere/at/all: "), "{said}");
}

#[test]
fn nobody_listens_where_others_can_come_without_asking_them_who_they_are() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
        let said = said(&["serve", "--journal", "off", "--listen", address], 2);
        assert!(said.contains(address) && said.contains("--token-file FILE"), "{said}");
    }
    let (mut shard, _) = ServerShard::open(ShardConfig::default()).unwrap();
    let address = "192.0.2.1:80".parse().unwrap();
    let error = shard.listen(&address, ListenOptions::default()).unwrap_err();
    assert_eq!(error, ListenError::Unguarded { address });
    assert!(!format!("{:?}", Access::default()).is_empty());
    let unix = File::new("socket", "", 0o600);
    std::fs::remove_file(unix.path()).unwrap();
    let (server, _) = Server::start(&["--listen", &format!("unix:{}", unix.path())]);
    server.stop();
}

#[test]
fn names_and_origins_are_added_by_settings() {
    let arguments = ["--allow-host", "app.example", "--allow-origin", "https://app.example:443"];
    let (server, url) = Server::start(&arguments);
    let address = url.strip_prefix("http://").unwrap();
    let tools = Asking::new("GET", "/v1/tools");
    let named = |host: &str| Asking { host: Some(host.to_owned()), ..tools.clone() };
    assert_eq!(named("app.example:8443").answer(address).0, 200);
    assert_eq!(named("evil.example").answer(address).0, 403);
    let (status, head, _) = tools.header("Origin: https://app.example").answer(address);
    assert_eq!(status, 200);
    assert!(head.contains("access-control-allow-origin: https://app.example"), "{head}");
    server.stop();
    for (flag, word) in [("--allow-host", "app.example:80"), ("--allow-origin", "*")] {
        let said = said(&["serve", flag, word], 2);
        assert!(said.contains(&format!("{flag} {word}: must be")), "{said}");
    }
}
