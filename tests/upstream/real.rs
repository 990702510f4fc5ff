//! MCP servers of other projects behind streamdoor, called by the clients of `tests/mcp_clients`.
//! The tests install all of them in fixed versions. A test whose programs cannot be installed says
//! so.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::driver::Driver;
use crate::install::{self, Missing};
use crate::installed;
use crate::ours::result;
use crate::served::ports;
use crate::test_server::TestServer;

/// The program of `@modelcontextprotocol/server-everything`.
fn everything() -> Result<PathBuf, Missing> {
    let package = "@modelcontextprotocol/server-everything";
    let folder = installed::folder("mcp-servers", "node");
    let folder = installed::node(folder, &[&format!("{package}@2026.8.31")])?;
    Ok(folder.join("node_modules").join(package).join("dist/index.js"))
}

fn python_server() -> String {
    format!("{}/tests/upstream/python_server.py", env!("CARGO_MANIFEST_DIR"))
}

/// A server over HTTP.
struct Web {
    child: Child,
    port: u16,
}

impl Web {
    fn start(command: impl FnOnce(u16) -> Command) -> Web {
        let port = ports::free();
        let mut command = command(port);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let mut web = Web { child, port };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert_eq!(web.child.try_wait().unwrap(), None, "it has ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        web
    }

    fn settings(&self) -> String {
        format!("[mcp.it]\nprefix = ''\nurl = 'http://127.0.0.1:{}/mcp'\n", self.port)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_settings(program: &Path, args: &[&str]) -> String {
    let args = json!(args);
    format!("[mcp.it]\nprefix = ''\ncommand = \"'{}'\"\nargs = {args}\n", program.display())
}

fn or_say<T>(installed: Result<T, Missing>) -> Option<T> {
    installed.map_err(|reason| println!("not run: {reason}")).ok()
}

/// The types of the content blocks of a result.
fn types(result: &Value) -> Vec<&str> {
    let content = result["content"].as_array().unwrap_or_else(|| panic!("{result}"));
    content.iter().map(|block| block["type"].as_str().unwrap()).collect()
}

/// Checks the results of all tools of server-everything, over any transport.
fn check_everything(test_server: &TestServer) {
    let call = |tool: &str, arguments: Value| result(test_server.server.address(), tool, arguments);
    assert_eq!(call("echo", json!({"message": "é"}))["content"][0]["text"], "Echo: é");
    let sum = call("get-sum", json!({"a": 2, "b": 3}));
    assert_eq!(sum["content"], json!([{"type": "text", "text": "The sum of 2 and 3 is 5."}]));
    let image = call("get-tiny-image", json!({}));
    assert_eq!(types(&image), ["text", "image", "text"]);
    assert!(image["content"][1]["data"].as_str().unwrap().len() > 1_000);
    let noted =
        call("get-annotated-message", json!({"messageType": "error", "includeImage": true}));
    assert_eq!(types(&noted), ["text", "image"]);
    assert_eq!(noted["content"][0]["annotations"]["audience"], json!(["user", "assistant"]));
    let weather = call("get-structured-content", json!({"location": "Chicago"}));
    assert_eq!(weather["structuredContent"]["humidity"], 82);
    let said: Value =
        serde_json::from_str(weather["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(said, weather["structuredContent"]);
    let links = call("get-resource-links", json!({"count": 2}));
    assert_eq!(types(&links), ["text", "resource_link", "resource_link"]);
    let resource = call("get-resource-reference", json!({"resourceType": "Text", "resourceId": 1}));
    assert_eq!(types(&resource), ["text", "resource", "text"]);
    assert!(resource["content"][1]["resource"]["text"].is_string());
    let environment = call("get-env", json!({}));
    assert_eq!((types(&environment), &environment["isError"]), (vec!["text"], &Value::Null));
    for tool in ["toggle-simulated-logging", "toggle-subscriber-updates"] {
        assert_eq!(types(&call(tool, json!({}))), ["text"], "{tool}");
    }
    let zipped = call("gzip-file-as-resource", json!({"data": "data:text/plain,hi"}));
    assert!(zipped["content"].is_array(), "{zipped}");
    // Arguments that violate the schema are refused.
    assert_eq!(call("get-sum", json!({"a": "x"}))["isError"], true);

    let long = json!({"duration": 0.5, "steps": 4});
    let called = test_server.call("trigger-long-running-operation", long);
    called.assert_ended("completed", "");
    assert!(called.text.contains("Long running operation completed"), "{called:?}");
}

/// Waits for the tool of server-everything that runs as a task only. It is announced after the
/// start.
fn wait_for_research(test_server: &TestServer) {
    let has_it = || {
        let tools = test_server.client.tools().unwrap();
        tools.iter().any(|tool| tool.name == "simulate-research-query")
    };
    while !has_it() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn all_of_server_everything_is_there_over_standard_streams() {
    let Some(program) = or_say(everything()) else { return };
    let test_server = TestServer::with(
        "every",
        &lines_settings(Path::new("node"), &[program.to_str().unwrap()]),
        &[],
    );
    check_everything(&test_server);
    wait_for_research(&test_server);
    let called = test_server.call("simulate-research-query", json!({"topic": "rings"}));
    called.assert_ended("completed", "");
    assert!(called.text.contains("rings"), "{called:?}");
}

#[test]
fn all_of_server_everything_is_there_over_http() {
    let Some(program) = or_say(everything()) else { return };
    let web = Web::start(|port| {
        let mut command = Command::new("node");
        command.arg(&program).arg("streamableHttp").env("PORT", port.to_string());
        command
    });
    check_everything(&TestServer::with("every-http", &web.settings(), &[]));
}

fn check_python(test_server: &TestServer) {
    let call = |tool: &str, arguments: Value| result(test_server.server.address(), tool, arguments);
    let greeted = call("greet", json!({"name": "Ada"}));
    assert_eq!(greeted["content"][0]["text"], "Hello, Ada!");
    assert_eq!(greeted["structuredContent"], json!({"result": "Hello, Ada!"}));
    assert_eq!(call("add", json!({"a": 2, "b": 3}))["structuredContent"], json!({"sum": 5}));
    let picture = call("picture", json!({}));
    assert_eq!(types(&picture), ["text", "image", "text"]);
    assert_eq!(picture["content"][2]["text"], "behind");
    let counted = test_server.call("count", json!({"up_to": 5}));
    counted.assert_ended("completed", "");
    assert_eq!(counted.text, "counted to 5");
    assert_eq!(counted.messages.last().map(String::as_str), Some("number 5"));
    // The Python SDK does not reveal the reason.
    test_server
        .call("fail", json!({"reason": "x"}))
        .assert_ended("failed", "Error executing tool fail");
}

#[test]
fn a_python_server_is_there_over_standard_streams_and_comes_back() {
    let Some(python) = or_say(install::python()) else { return };
    let test_server =
        TestServer::with("python", &lines_settings(&python, &[&python_server(), "stdio"]), &[]);
    check_python(&test_server);
    test_server.call("die", json!({})).assert_ended("failed", "it has ended (exit status: 9)");
    assert_eq!(test_server.call("greet", json!({"name": "again"})).text, "Hello, again!");
}

#[test]
fn a_python_server_is_there_over_http_and_its_end_fails_the_call() {
    let Some(python) = or_say(install::python()) else { return };
    let start = |port: u16| {
        let mut command = Command::new(&python);
        command.arg(python_server()).arg(port.to_string());
        command
    };
    let mut web = Web::start(start);
    let test_server = TestServer::with("python-http", &web.settings(), &[]);
    check_python(&test_server);
    test_server.call("die", json!({})).assert_ended("failed", "MCP server `it`: ");
    web.child.wait().unwrap(); // Until then its port may still accept.
    test_server.call("greet", json!({"name": "x"})).assert_ended("failed", "cannot be reached");
}

/// One client of each kind.
fn clients() -> Vec<(&'static str, Command)> {
    let script =
        |name: &str| format!("{}/tests/mcp_clients/drivers/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    if let Some(folder) = or_say(install::typescript()) {
        for (name, generation, mode) in
            [("typescript 1", "sdk", "legacy"), ("typescript 2", "client", "auto")]
        {
            let mut command = Command::new("node");
            command.arg(script("typescript.mjs")).arg(&folder).args([generation, mode]);
            all.push((name, command));
        }
    }
    if let Some(python) = or_say(install::python()) {
        for (name, package, mode) in
            [("python", "mcp", "2026-07-28"), ("fastmcp", "fastmcp", "legacy")]
        {
            let mut command = Command::new(&python);
            command.arg(script("python_mcp.py")).args([package, mode]);
            all.push((name, command));
        }
    }
    if let Some(program) = or_say(install::rmcp()) {
        let mut command = Command::new(program);
        command.arg("auto");
        all.push(("rmcp", command));
    }
    all
}

#[test]
fn every_client_calls_every_tool() {
    let (Some(program), Some(python)) = (or_say(everything()), or_say(install::python())) else {
        return;
    };
    let settings = lines_settings(Path::new("node"), &[program.to_str().unwrap()])
        + &lines_settings(&python, &[&python_server(), "stdio"]).replace("[mcp.it]", "[mcp.py]");
    let test_server = TestServer::with("clients", &settings, &[]);
    wait_for_research(&test_server);
    let names = |test_server: &TestServer| -> BTreeSet<String> {
        test_server.client.tools().unwrap().into_iter().map(|tool| tool.name).collect()
    };
    let plain = TestServer::with("plain", "", &[]);
    let theirs: BTreeSet<String> = &names(&test_server) - &names(&plain);
    let location = json!({"location": "Chicago"});
    for (name, mut command) in clients() {
        command.arg(format!("http://{}/mcp", test_server.server.address()));
        let mut driver = Driver::start(name, &mut command);
        driver.connect();
        let tools = driver.tools();
        let calls = [
            ("echo", json!({"message": "hi"}), "Echo: hi"),
            ("get-sum", json!({"a": 1, "b": 2}), "is 3."),
            ("get-env", json!({}), "PATH"),
            ("get-tiny-image", json!({}), "image"),
            ("get-annotated-message", json!({"messageType": "debug"}), "Debug"),
            ("get-structured-content", location.clone(), "humidity"),
            ("get-resource-links", json!({"count": 3}), "3 resource links"),
            ("get-resource-reference", json!({"resourceType": "Blob"}), "Resource 1"),
            ("trigger-long-running-operation", json!({"duration": 0.2, "steps": 2}), "completed"),
            ("toggle-simulated-logging", json!({}), "simulated, random-leveled logging"),
            ("toggle-simulated-logging", json!({}), "Stopped simulated logging"),
            ("toggle-subscriber-updates", json!({}), "Started simulated resource"),
            ("toggle-subscriber-updates", json!({}), "Stopped simulated resource"),
            ("gzip-file-as-resource", json!({"data": "data:text/plain,hi"}), ""), // A link.
            ("simulate-research-query", json!({"topic": "rings"}), "rings"),
            ("greet", json!({"name": "Ada"}), "Hello, Ada!"),
            ("add", json!({"a": 1, "b": 2}), "3"),
            ("picture", json!({}), "before"),
            ("count", json!({"up_to": 3}), "counted to 3"),
        ];
        let is_called = |tool: &str| calls.iter().any(|(name, ..)| *name == tool);
        let others: Vec<&str> =
            theirs.iter().map(String::as_str).filter(|tool| !is_called(tool)).collect();
        assert_eq!(others, ["die", "fail"], "beside `fail`, below");
        for (tool, given, words) in calls {
            assert!(tools.iter().any(|other| other == tool), "{name}: no {tool} in {tools:?}");
            let called = driver.call(tool, given);
            assert!(!called.failed && called.text.contains(words), "{name} {tool}: {called:?}");
        }
        let called = driver.call("fail", json!({"reason": "x"}));
        let is_told = called.text.contains("Error executing tool fail");
        assert!(called.failed && is_told, "{name}: {called:?}");
        driver.close();
    }
}
