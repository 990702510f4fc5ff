//! The SDKs of OpenAI and Anthropic call scripted models: they return what the script contains.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::installed::{self, Missing};
use crate::scripted::ModelServer;

fn python() -> Result<PathBuf, Missing> {
    let folder = installed::folder("agent-sdks", "python");
    installed::python(folder, &["openai==3.54.0", "anthropic==2.12.0"])
}

/// Returns the driver's report on a scene, or `None` if the SDKs cannot be installed. One process
/// plays all scenes, because the SDKs load slowly.
fn scene(name: &str) -> Option<&'static Value> {
    static TOLD: OnceLock<Option<Value>> = OnceLock::new();
    TOLD.get_or_init(play).as_ref().map(|told| &told[name])
}

fn play() -> Option<Value> {
    let program = match python() {
        Ok(program) => program,
        Err(reason) => {
            println!("not run: {reason}");
            return None;
        }
    };
    let turn = ModelServer::following("turn", TURN);
    // Scenes whose pace is not checked run fast.
    let quick = ModelServer::following("quick", &TURN.replace("500ms", "1ms"));
    let turns = format!("{},{}", quick.base_url, turn.base_url);
    let conversation = ModelServer::following("conversation", CONVERSATION);
    let misbehaves = ModelServer::of("misbehaves.toml");
    let scenes = [
        ("turns", &turns),
        ("models", &turn.base_url),
        ("conversations", &conversation.base_url),
        ("failures", &misbehaves.base_url),
        ("retries", &misbehaves.base_url),
    ];
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/agents/drivers/sdks.py");
    let output = Command::new(program)
        .arg(driver)
        .args(scenes.map(|(scene, urls)| format!("{scene}={urls}")))
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

const TURN: &str = r#"
models = ["demo", "other"]
[[turns]]
events = [
  { reasoning = "Two things to find out." },
  { text = "Let me look around.", pace = "500ms" },
  { call = "search_files", id = "call_a", arguments = { pattern = "ü\n", root = "." } },
  { call = "run_command", id = "call_b", arguments = { argv = ["uname"] } },
  { usage = { input_tokens = 70, output_tokens = 50, cached_input_tokens = 30 } },
]
"#;

const CONVERSATION: &str = r#"
[[turns]]
events = [{ text = "One." }, { call = "look", id = "a" }, { call = "look", id = "b" }]
[[turns]]
when = { step = 2, tool_results = 2 }
events = [{ text = "Two: ${result}." }, { call = "look", id = "c" }]
[[turns]]
when = { step = 3, tool_results = 3 }
events = [{ text = "Three: ${result}, for ${user}." }]
"#;

#[test]
fn each_sdk_is_told_what_the_script_says() {
    let Some(told) = scene("turns") else { return };
    let arguments = |call: &Value| -> Value {
        serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap()
    };
    for (way, finish) in [
        ("chat stream", "tool_calls"),
        ("chat plain", "tool_calls"),
        ("responses stream", "completed"),
        ("responses plain", "completed"),
        ("messages stream", "tool_use"),
        ("messages plain", "tool_use"),
    ] {
        let told = &told[way];
        assert_eq!(told["text"], "Let me look around.", "{way}");
        assert_eq!(told["reasoning"], "Two things to find out.", "{way}");
        assert_eq!(told["usage"], json!([70, 50]), "{way}");
        assert_eq!(told["finish"], finish, "{way}");
        let calls = told["calls"].as_array().unwrap();
        assert_eq!(
            (&calls[0]["id"], &calls[0]["name"]),
            (&json!("call_a"), &json!("search_files"))
        );
        assert_eq!(arguments(&calls[0]), json!({"pattern": "ü\n", "root": "."}), "{way}");
        assert_eq!(arguments(&calls[1]), json!({"argv": ["uname"]}), "{way}");
        if way.ends_with("stream") {
            // Four tokens, 500 ms apart: they arrived one by one.
            assert!(told["spread_ms"].as_f64().unwrap() >= 100.0, "{way}: {told}");
        }
    }
}

#[test]
fn each_sdk_lists_the_models() {
    let Some(told) = scene("models") else { return };
    assert_eq!(*told, json!({"openai": ["demo", "other"], "anthropic": ["demo", "other"]}));
}

#[test]
fn each_sdk_leads_a_conversation_to_its_end() {
    let Some(told) = scene("conversations") else { return };
    let texts = json!(["One.", "Two: heard b.", "Three: heard c, for look around."]);
    for wire in ["chat", "responses", "messages"] {
        assert_eq!(told[wire], texts, "{wire}");
    }
}

#[test]
fn each_sdk_names_what_goes_wrong() {
    let Some(told) = scene("failures") else { return };
    for wire in ["chat", "responses", "messages"] {
        let told = |task: &str| &told[format!("{task} {wire}")];
        let quota = told("quota");
        assert_eq!((&quota["class"], &quota["status"]), (&json!("RateLimitError"), &json!(429)));
        assert_eq!(quota["retry_after"], "1", "{wire}");
        assert!(quota["text"].as_str().unwrap().contains("too many requests"), "{quota}");
        assert_eq!(told("overload")["status"], 529, "{wire}");
        assert_eq!(told("key")["class"], "AuthenticationError", "{wire}");
        for task in ["cut", "frame"] {
            let class = told(task)["class"].as_str().unwrap_or("none");
            assert!(
                class.contains("RemoteProtocolError") || class == "APIConnectionError",
                "{task} {wire}: {class}"
            );
        }
    }
    // In the middle of a stream each format has its own form of error.
    assert_eq!(told["sentence chat"]["class"], "APIError");
    let words = json!(["I was about to say", "overloaded_error", "overloaded"]);
    assert_eq!(told["sentence responses"]["answer"], words);
    let messages = &told["sentence messages"];
    assert!(messages["text"].as_str().unwrap().contains("overloaded"), "{messages}");
}

#[test]
fn each_sdk_tries_again_when_it_may() {
    let Some(told) = scene("retries") else { return };
    for wire in ["chat", "responses", "messages"] {
        assert_eq!(told[wire]["text"], "The second time it goes well.", "{wire}");
        assert!(told[wire]["seconds"].as_f64().unwrap() >= 0.9, "{wire}: {told}");
    }
}
