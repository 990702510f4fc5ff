//! The start of a server as a person and a supervisor see it. The tests read the banner, errors in
//! the format of the log, and the list of offered tools.
#![cfg(feature = "cli")]

mod pty;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use pty::Terminal;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn an_error_of_the_start_is_one_record_of_a_json_log() {
    for (arguments, code, expected) in [
        (
            &["serve", "--journal", "off", "--log", "json", "--files-root", "/nonexistent"][..],
            3,
            "files_root",
        ),
        (&["serve", "--log=json", "--lisen", "x"], 2, "did you mean --listen?"),
        (&["serve", "--journal", "off", "--log=json", "--listen", "0.0.0.0:0"], 2, "--token-file"),
        (
            &["serve", "--journal", "off", "--log=json", "--builtin", "slow"],
            2,
            "no built-in tool `slow`",
        ),
        (&["stdio", "--log", "json", "--cpus", "0,1"], 2, "one core only"),
        (&["stdio", "--log", "json", "--mcp", "/nonexistent/program"], 3, "cannot be started"),
    ] {
        let output = program(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let said = text(&output.stderr);
        let records: Vec<Value> =
            said.lines().map(|line| serde_json::from_str(line).expect(&said)).collect();
        let failed: Vec<&Value> = records.iter().filter(|one| one["event"] == "failed").collect();
        assert_eq!((failed.len(), &failed[0]["level"]), (1, &"error".into()), "{said}");
        assert!(failed[0]["error"].as_str().unwrap().contains(expected), "{said}");
    }
    let output =
        program(&["serve", "--journal", "off", "--files-root", "/nonexistent"]).output().unwrap();
    assert!(text(&output.stderr).starts_with("streamdoor: files_root"), "{output:?}");
}

#[test]
fn a_person_is_told_where_the_server_is_and_what_it_offers() {
    let terminal = Terminal::open(120, 40);
    let words = ["serve", "--journal", "off", "--listen", "127.0.0.1:0"];
    let serving = terminal.start(program(&words).env("TERM", "xterm"));
    let told = terminal.wait("the banner", |text| text.contains("Ctrl-C"));
    for expected in [
        " is ready",
        "page    http://127.0.0.1:",
        "MCP     http://127.0.0.1:",
        "slow_data_processor",
        "without a token",
        "door    none: XDG_RUNTIME_DIR is not set",
        "curl -N --json '{\"tool\": \"slow_data_processor\"}'",
    ] {
        assert!(told.contains(expected), "{expected} in\n{told}");
    }
    serving.signal("TERM");
    assert!(serving.end().success());
    // A log of JSON stays one, on a terminal too.
    terminal.forget();
    let words = [
        "serve",
        "--journal",
        "off",
        "--listen",
        "127.0.0.1:0",
        "--log",
        "json",
        "--allow-commands",
        "no/such",
    ];
    let serving = terminal.start(&mut program(&words));
    let told = terminal.wait("the log", |text| text.contains("\"door_not_opened\""));
    serving.signal("TERM");
    assert!(serving.end().success());
    assert!(!told.contains("is ready"), "{told}");
    let record = |event: &str| -> Value {
        let line = told.lines().find(|line| line.contains(event)).expect(event);
        serde_json::from_str(line.trim()).unwrap()
    };
    assert_eq!(record("\"door_not_opened\"")["reason"], "XDG_RUNTIME_DIR is not set");
    assert_eq!(record("\"command_not_found\"")["program"], "no/such");
}

/// Returns the names of the tools that `streamdoor stdio` offers with these options.
fn offered(options: &[&str]) -> Vec<String> {
    let mut command = program(&[&["stdio"], options].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}});
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}),
    ] {
        writeln!(input, "{message}").unwrap();
    }
    drop(input);
    let output: Output = child.wait_with_output().unwrap();
    let listed = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .find(|message: &Value| message["id"] == 2);
    let listed = listed.unwrap_or_else(|| panic!("{output:?}"));
    let tools = listed["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn built_in_tools_are_offered_if_they_are_asked_for() {
    let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
    let none = offered(&[]);
    assert!(!has(&none, "slow_data_processor"), "{none:?}");
    let all = offered(&["--builtin", "all"]);
    assert!(has(&all, "slow_data_processor") && has(&all, "generate_timeseries"), "{all:?}");
    let one = offered(&["--builtin", "slow_data_processor"]);
    assert!(has(&one, "slow_data_processor") && !has(&one, "generate_timeseries"), "{one:?}");
    let files = offered(&["--files-root", "."]);
    assert!(has(&files, "process_file") && !has(&files, "slow_data_processor"), "{files:?}");
}

#[test]
fn tools_of_other_servers_are_chosen_and_renamed() {
    let other = format!("far={PROGRAM} stdio --builtin all");
    let chosen = |rules: &[&str]| {
        let mut words = vec!["--mcp", &other];
        rules.iter().for_each(|rules| words.extend(["--mcp-tools", rules]));
        let names = offered(&words);
        names.into_iter().filter(|name| name.starts_with("far_")).collect::<Vec<_>>()
    };
    let all = chosen(&[]);
    assert!(all.contains(&"far_slow_data_processor".to_owned()), "{all:?}");
    let others = chosen(&["!slow_data_processor"]);
    assert_eq!(others.len(), all.len() - 1, "{others:?}");
    assert_eq!(chosen(&["far:slow_data_processor"]), ["far_slow_data_processor"]);
    assert_eq!(chosen(&["far:slow=slow_data_processor"]), ["far_slow"]);
    let refused = program(&["stdio", "--mcp", &other, "--mcp-tools", "fra:x"]).output().unwrap();
    let said = text(&refused.stderr);
    assert!(said.contains("no server is named `fra`; did you mean far?"), "{said}");
    // A renamed tool is called by its own name on its server.
    let call = ["--mcp-tools", "far:slow=slow_data_processor", "--arg", "chunks=2"];
    let run = [&["run", "far_slow", "--mcp", &other][..], &call].concat();
    let output = program(&run).output().unwrap();
    assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
}
