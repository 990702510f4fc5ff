//! The real clients run agents of a real server, whose model follows a script. Each client has
//! understood the same as the native stream of its run contains.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::scripted::ModelServer;
use crate::served::Server;
use crate::{AI_SDKS, driver, node, or_say, python};

/// The script of the model. The user's message selects the run.
pub const SCRIPT: &str = r#"
pace = "2ms"
[[turns]]
when = { user = "whole", step = 1 }
events = [
  { reasoning = "Two things at once." },
  { text = "I count, and I wait. " },
  { call = "run_command", id = "call_1", arguments = { argv = ["seq", "1", "900"] } },
  { call = "slow_data_processor", id = "call_2", arguments = { chunks = 4, delay_ms = 20 } },
]
[[turns]]
when = { user = "whole", step = 2 }
events = [{ text = "Done: 😀." }]

[[turns]]
when = { user = "again", tool_results = 2 }
events = [{ text = "I remember both." }]
[[turns]]
when = { user = "again" }
events = [{ text = "I remember nothing." }]

[[turns]]
when = { user = "fails", step = 1 }
events = [
  { text = "I count. " },
  { call = "run_command", id = "call_1", arguments = { argv = ["seq", "1", "9"] } },
]
[[turns]]
when = { user = "fails", step = 2 }
events = [
  { text = "And now I " },
  { error = "invalid_request_error", message = "no room" },
]

[[turns]]
when = { user = "what's the weather in la" }
events = [{ text = "It is sunny." }]

[[turns]]
when = { user = "endless" }
events = [{ text = "word ", repeat = 1000000, pace = "50ms" }]

[[turns]]
when = { user = "steady" }
events = [{ text = "word ", repeat = 20, pace = "50ms" }]

[[turns]]
when = { user = "slow", step = 1 }
events = [
  { text = "This takes a while. " },
  { call = "slow_data_processor", id = "call_1", arguments = { chunks = 12, delay_ms = 500 } },
]
[[turns]]
when = { user = "slow", step = 2 }
events = [{ text = "It is over." }]

[[turns]]
when = { user = "flood", step = 1 }
events = [
  { text = "I count far. " },
  { call = "run_command", id = "call_1", arguments = { argv = ["seq", "1", "40000"] } },
]
[[turns]]
when = { user = "flood", step = 2 }
events = [{ text = "That was much." }]
"#;

/// A model, and a server that uses it.
pub struct House {
    server: Server,
    _model: ModelServer,
}

impl House {
    pub fn new(name: &str) -> House {
        let model = ModelServer::following(name, SCRIPT);
        let described = format!("demo=chat,{},demo", model.base_url);
        let server = Server::start(&["--model", &described, "--allow-commands", "seq"]);
        House { server, _model: model }
    }

    pub fn base(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Returns a client's report on each of its scenes.
    pub fn play(&self, command: &mut Command) -> BTreeMap<String, Value> {
        let done = command.env("NO_PROXY", "127.0.0.1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let trouble = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{said}\n{trouble}");
        let scene = |line: &str| {
            let said: Value = serde_json::from_str(line).expect(line);
            assert_eq!(said.get("thrown"), None, "{line}\n{trouble}");
            (said["scene"].as_str().unwrap().to_owned(), said)
        };
        said.lines().map(scene).collect()
    }

    pub fn native(&self, said: &Value) -> Native {
        native(&self.server, said)
    }
}

/// Reads the native stream of the same run.
pub fn native(server: &Server, said: &Value) -> Native {
    let execution = said["execution"].as_str().unwrap_or_else(|| panic!("{said:#}"));
    let path = format!("/v1/executions/{execution}/events?format=ndjson");
    let (mut native, mut calls) = (Native::default(), BTreeMap::new());
    for line in server.ask("GET", &path, "").lines() {
        let Some(at) = line.find('{') else { continue };
        let Ok(part) = serde_json::from_str::<Value>(&line[at..]) else { continue };
        let text = |name: &str| part[name].as_str().unwrap_or_default().to_owned();
        match part["type"].as_str() {
            Some("TextDelta") => native.text += &text("delta"),
            Some("ReasoningDelta") => native.reasoning += &text("delta"),
            Some("ToolOutputChunk") => {
                let piece: &mut String = calls.entry(text("tool_call_id")).or_default();
                *piece += &text("data");
            }
            _ => {}
        }
    }
    native.pieces = json!(calls);
    native
}

/// The texts of a run.
#[derive(Debug, Default)]
pub struct Native {
    text: String,
    reasoning: String,
    /// The output of each call.
    pieces: Value,
}

pub fn check_same(said: &Value, native: &Native) {
    assert_eq!(said["text"], *native.text, "{said:#}");
    assert_eq!(said["reasoning"], *native.reasoning, "{said:#}");
    assert_eq!(said["pieces"], native.pieces, "{said:#}");
    assert_eq!(said["gaps"], 0, "{said:#}");
}

/// Asserts everything that is the same for all clients.
fn check(house: &House, told: &BTreeMap<String, Value>, failure: &str) {
    let whole = &told["whole"];
    let native = house.native(whole);
    check_same(whole, &native);
    assert_eq!(native.text, "I count, and I wait. Done: 😀.");
    assert_eq!(native.pieces["call_1"].as_str().unwrap().lines().count(), 900);
    assert_eq!(
        (&whole["ending"], &whole["next"]),
        (&json!("finished"), &json!("I remember both."))
    );

    let fails = &told["fails"];
    check_same(fails, &house.native(fails));
    assert_eq!(fails["ending"], "failed", "{fails:#}");
    assert!(fails["problem"].as_str().unwrap().contains(failure), "{fails:#}");

    let cancelled = &told["cancelled"];
    let text = cancelled["text"].as_str().unwrap();
    assert!(text.starts_with("word "), "{cancelled:#}");
    assert!(house.native(cancelled).text.ends_with(text), "{cancelled:#}");

    let resumed = &told["resumed"];
    check_same(resumed, &house.native(resumed));
    assert_eq!((&resumed["ending"], resumed["gaps"].as_u64()), (&json!("finished"), Some(0)));

    let gap = &told["gap"];
    assert!(gap["gaps"].as_u64().unwrap() >= 1, "{gap:#}");
    assert_eq!(gap["ending"], "finished", "{gap:#}");
    assert!(gap["text"].as_str().unwrap().ends_with("That was much."), "{gap:#}");
}

#[test]
fn every_generation_of_ai_sdk_runs_agents_with_nothing_but_a_url() {
    or_say(node(), |folder| {
        // All at once: each waits for a slow tool.
        thread::scope(|scope| {
            for (package, version) in AI_SDKS.into_iter().skip(1).step_by(2) {
                scope.spawn(move || ai_sdk_runs_agents(folder, package, version));
            }
        });
    });
}

fn ai_sdk_runs_agents(folder: &Path, package: &str, version: &str) {
    let house = House::new(package);
    let mut command = Command::new("node");
    command.arg(driver("real_ai_sdk.mjs")).arg(folder).arg(package).arg(house.base());
    let told = house.play(command.arg(&version[..1]));
    check(&house, &told, "no room");
    assert_eq!(told["whole"]["over"], Value::Null, "nothing is under way");
    let whole = house.native(&told["whole"]);
    assert_eq!(told["whole"]["results"], whole.pieces, "{package}");
    assert!(told["resumed"]["grown"].as_u64().unwrap() >= 2, "it grows while it runs");
    let cancelled = &told["cancelled"];
    assert_eq!(cancelled["ending"], "cancelled", "{cancelled:#}");
    assert_eq!(cancelled["status"], 202, "{cancelled:#}");
}

#[test]
fn ag_ui_runs_agents_with_nothing_but_a_url() {
    or_say(node(), |folder| {
        let house = House::new("ag-ui");
        let mut command = Command::new("node");
        command.arg(driver("real_ag_ui.mjs")).arg(folder).arg(house.base());
        let told = house.play(&mut command);
        check(&house, &told, "no room");
        for said in told.values() {
            assert_eq!(said["warnings"], json!([]), "{said:#}");
        }
        let whole = &told["whole"];
        assert_eq!(whole["passed_over"], json!(["paint"]), "{whole:#}");
        assert_eq!(whole["over"], 204, "{whole:#}");
        assert_eq!(whole["results"], house.native(whole).pieces, "{whole:#}");
        let cancelled = &told["cancelled"];
        assert_eq!(
            (&cancelled["ending"], &cancelled["status"]),
            (&json!("cancelled"), &json!(202))
        );
    });
}

#[test]
fn langgraph_runs_agents_with_nothing_but_a_url() {
    or_say(python(), |python| {
        let house = House::new("langgraph");
        let mut command = Command::new(python);
        command.arg(driver("real_langgraph.py")).arg(house.base());
        let told = house.play(&mut command);
        check(&house, &told, "no room");
        let whole = &told["whole"];
        assert_eq!(whole["texts"], json!(["I count, and I wait. ", "Done: 😀."]), "{whole:#}");
        assert_eq!((&whole["output"], &whole["over"]), (&json!("Done: 😀."), &json!([])));
        let native = house.native(whole);
        let calls = &told["calls"];
        assert_eq!(calls["pieces"], native.pieces, "{calls:#}");
        assert_eq!(calls["results"], native.pieces, "{calls:#}");
        let first = &told["first_thread"];
        let text = json!("I remember nothing.");
        assert_eq!((&first["text"], &first["output"]), (&text, &text), "{first:#}");
        assert!(told["fails"]["raised"].as_str().unwrap().contains("no room"));
        let cancelled = &told["cancelled"];
        assert_eq!(cancelled["ending"], "failed", "{cancelled:#}");
        assert_eq!(cancelled["problem"], "the run was cancelled", "{cancelled:#}");
        assert!(cancelled["refused"].as_str().unwrap().contains("invalid_argument"));
        let resumed = &told["resumed"];
        assert_eq!((&resumed["ordered"], &resumed["same"]), (&json!(true), &json!(true)));
    });
}
