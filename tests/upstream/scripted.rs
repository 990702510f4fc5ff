//! An MCP server on standard streams whose tools behave as their names say: the good ones work, the
//! others break rules. Its script decides its era and how it begins.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

/// The state of the server.
#[derive(Default)]
struct ServerState {
    /// Replies to the server's own requests, by request id.
    answers: BTreeMap<String, Value>,
    /// Ids of the requests that were cancelled.
    cancelled: Vec<u64>,
    /// True if the server has one more tool.
    has_more: bool,
}

static HEARD: Mutex<ServerState> =
    Mutex::new(ServerState { answers: BTreeMap::new(), cancelled: Vec::new(), has_more: false });

fn heard() -> std::sync::MutexGuard<'static, ServerState> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say(message: &Value) {
    say_text(&message.to_string());
}

fn say_text(text: &str) {
    let mut out = std::io::stdout().lock();
    // The client has closed the stream, which ends the server.
    if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

fn answer(id: &Value, result: Value) {
    say(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn refuse(id: &Value, code: i64, message: &str) {
    let error = json!({"code": code, "message": message});
    say(&json!({"jsonrpc": "2.0", "id": id, "error": error}));
}

fn notify(method: &str, params: Value) {
    let method = format!("notifications/{method}");
    say(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
}

fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// Runs the server of this script. Returns when its standard input ends, unless the script is
/// `stubborn`.
pub fn serve(script: &str) {
    if script == "never" {
        std::process::exit(8);
    }
    println!("\nthis line is no message, and the one before is none either");
    eprintln!("the script is {script}");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let message: Value = serde_json::from_str(&line).expect("a client sends messages");
        let id = message["id"].clone();
        match message["method"].as_str() {
            None => {
                let name = id.as_str().unwrap_or_default().to_owned();
                heard().answers.insert(name, message);
            }
            Some("notifications/cancelled") => {
                let id = message["params"]["requestId"].as_u64().expect("it names a request");
                heard().cancelled.push(id);
            }
            Some("server/discover") => discover(script, &id),
            Some("initialize") => {
                let capabilities = json!({"tools": {"listChanged": true}});
                answer(
                    &id,
                    json!({"protocolVersion": "2025-06-18", "capabilities": capabilities,
                    "serverInfo": {"name": "scripted", "version": "1"}}),
                );
            }
            Some("tools/list") => list(&id, &message["params"]),
            Some("tools/call") => {
                let params = message["params"].clone();
                std::thread::spawn(move || call(&id, &params));
            }
            Some("subscriptions/listen" | "notifications/initialized") => {}
            Some(_) => refuse(&id, -32_601, "method not found"),
        }
    }
    if script == "stubborn" {
        loop {
            std::thread::park();
        }
    }
}

fn discover(script: &str, id: &Value) {
    match script {
        "stateless" => answer(
            id,
            json!({"supportedVersions": ["2026-07-28"], "resultType":
            "complete", "ttlMs": 0, "cacheScope": "private",
            "capabilities": {"tools": {"listChanged": true}}}),
        ),
        "upset" => std::process::exit(7),
        _ => refuse(id, -32_601, "method not found"),
    }
}

const TOOLS: [&str; 19] = [
    "echo",
    "fail",
    "refuse",
    "crash",
    "hang",
    "flood",
    "double",
    "broken",
    "huge",
    "shapeless",
    "partial",
    "ask",
    "slow",
    "change",
    "cancelled",
    "promise",
    "structured",
    "only_structured",
    "with/slash and blanks",
];

fn list(id: &Value, params: &Value) {
    let tool = |name: &str| {
        let mut tool = json!({"name": name, "description": format!("Does: {name}."),
            "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}});
        if name == "promise" {
            tool["outputSchema"] = json!({"type": "object", "required": ["a"]});
        }
        tool
    };
    // The list has two pages.
    let (first, second) = TOOLS.split_at(5);
    let mut page = match params["cursor"].as_str() {
        None => json!({"tools": first.iter().map(|name| tool(name)).collect::<Vec<_>>(),
            "nextCursor": "more"}),
        Some(_) => json!({"tools": second.iter().map(|name| tool(name)).collect::<Vec<_>>()}),
    };
    if page.get("nextCursor").is_none() {
        let tools = page["tools"].as_array_mut().unwrap();
        tools.push(json!({"name": "no schema"}));
        tools.push(json!({"name": "echo", "inputSchema": {"type": "object"}}));
        if heard().has_more {
            tools.push(tool("added"));
        }
    }
    answer(id, page);
}

fn progress(token: &Value, number: u64, message: &str) {
    let params = json!({"progressToken": token, "progress": number, "total": 100,
        "message": message});
    notify("progress", params);
}

fn partial(token: &Value, seq: u64, said: &str) {
    let content = json!([{"type": "text", "text": said}]);
    let params = json!({"partialResultToken": token, "seq": seq, "content": content});
    notify("tools/partial_result", params);
}

fn call(id: &Value, params: &Value) {
    let token = &params["_meta"]["progressToken"];
    let said = params["arguments"]["text"].as_str().unwrap_or_default();
    match params["name"].as_str().unwrap() {
        "echo" | "with/slash and blanks" | "added" => answer(id, text(said)),
        "fail" => {
            let mut result = text("it cannot be done");
            result["isError"] = true.into();
            answer(id, result);
        }
        "refuse" => refuse(id, -32_602, "these arguments are wrong"),
        "crash" => {
            progress(token, 1, "about to crash");
            partial(token, 0, "half of a resu");
            std::process::exit(3);
        }
        "hang" => progress(token, 1, "hanging"),
        "flood" => {
            for seq in 0.. {
                partial(token, seq, &"flood ".repeat(1_000));
                progress(token, seq, "flooding");
            }
        }
        "double" => double(id, token),
        "broken" => say(&json!({"jsonrpc": "2.0", "id": id, "result": ["no", "object"]})),
        "huge" => say_text(&"x".repeat(17 << 20)),
        "shapeless" => answer(id, json!({"content": [{"text": "a block without a type"}]})),
        "promise" => answer(id, text("without what was promised")),
        "structured" => {
            let mut result = text("[FILE] a.txt");
            result["structuredContent"] = json!({"content": "[FILE] a.txt"});
            answer(id, result);
        }
        "only_structured" => {
            answer(id, json!({"content": [], "structuredContent": {"sum": 5}}));
        }
        "partial" => {
            partial(token, 0, "one ");
            partial(token, 0, "one "); // A duplicate.
            partial(token, 1, "two ");
            answer(id, text("one two three"));
        }
        "ask" => ask(id),
        "slow" => slow(id, token),
        "change" => {
            heard().has_more = true;
            notify("tools/list_changed", json!({}));
            answer(id, text("there is one more"));
        }
        "cancelled" => {
            let count = heard().cancelled.len();
            answer(id, text(&count.to_string()));
        }
        other => panic!("{other} is none of its tools"),
    }
}

/// Sends messages that nobody asked for, and the result twice.
fn double(id: &Value, token: &Value) {
    say_text("{\"jsonrpc\": \"2.0\", \"id\":");
    say_text("[]");
    say(&json!({"jsonrpc": "2.0", "id": 999_999, "result": text("of a wrong id")}));
    say(&json!({"jsonrpc": "2.0", "id": id.to_string(), "result": text("of a text as id")}));
    progress(&json!(999_999), 1, "of a wrong token");
    notify("progress", json!({"progressToken": token, "progress": "not a number"}));
    notify("tools/partial_result", json!({"partialResultToken": token, "content": "no list"}));
    notify("no/such", json!({"x": 1}));
    answer(id, text("the first"));
    answer(id, text("the second"));
    progress(token, 2, "behind the end");
    partial(token, 0, "behind the end");
}

/// Sends requests to the client and returns its replies as the result.
fn ask(id: &Value) {
    for (name, method) in [("p", "ping"), ("s", "sampling/createMessage"), ("r", "roots/list")] {
        say(&json!({"jsonrpc": "2.0", "id": name, "method": method, "params": {}}));
    }
    let told = loop {
        let heard = heard();
        if heard.answers.len() == 3 {
            break heard.answers.clone();
        }
        drop(heard);
        std::thread::sleep(Duration::from_millis(2));
    };
    let code = |name: &str| told[name]["error"]["code"].clone();
    let result = format!("{} {} {}", told["p"]["result"], code("s"), code("r"));
    answer(id, text(&result));
}

fn slow(id: &Value, token: &Value) {
    for number in 1..=100 {
        progress(token, number, &format!("step {number}"));
        partial(token, number - 1, &format!("part {number}\n"));
        std::thread::sleep(Duration::from_millis(20));
        if heard().cancelled.contains(&id.as_u64().unwrap()) {
            return; // B17: nothing follows a cancellation.
        }
    }
    let all: String = (1..=100).map(|number| format!("part {number}\n")).collect();
    answer(id, text(&all));
}
