//! Clients that follow a run while the server is killed and comes back. A restart ends the run.
//! Each client gets what it has missed, and one end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::real::{SCRIPT, check_same, native};
use crate::scripted::ModelServer;
use crate::served::again::Mortal;
use crate::{AI_SDKS, LANGGRAPH_SDKS, driver, node, or_say, python};

/// The output that was shown is on the disk 5 ms later. The next one comes after half a second.
const KEPT_AFTER: Duration = Duration::from_millis(100);

/// Plays the client's scene `restarted`, and kills the server as soon as the client has got some
/// output. Returns the client's report, which agrees with the native stream of the run.
fn play(name: &str, client: impl FnOnce(String) -> Command) -> Value {
    let model = ModelServer::following(name, SCRIPT);
    let described = format!("demo=chat,{},demo", model.base_url);
    let mut mortal = Mortal::start(name, &["--model", &described, "--allow-commands", "seq"]);
    let mut command = client(mortal.base());
    command.env("SCENE", "restarted").env("NO_PROXY", "127.0.0.1").stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut last = Value::Null;
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        last = serde_json::from_str(&line).expect(&line);
        if last["scene"] == "reached" {
            thread::sleep(KEPT_AFTER);
            mortal.kill();
        }
    }
    assert!(child.wait().unwrap().success(), "{name}");
    assert_eq!(last.get("thrown"), None, "{last:#}");
    check_same(&last, &native(mortal.server(), &last));
    assert_eq!(last["text"], "This takes a while. ", "{last:#}");
    assert_eq!((&last["ending"], last["ends"].as_u64()), (&"failed".into(), Some(1)), "{last:#}");
    assert!(last["problem"].as_str().unwrap().contains("restarted"), "{last:#}");
    // The server took nothing back that it had shown before.
    let shown = last["shown"].as_str().unwrap();
    assert!(!shown.is_empty(), "{last:#}");
    assert!(last["pieces"]["call_1"].as_str().unwrap().starts_with(shown), "{last:#}");
    last
}

#[test]
fn every_generation_of_ai_sdk_resumes_the_run_that_a_restart_has_ended() {
    or_say(node(), |folder| {
        thread::scope(|scope| {
            for (package, version) in AI_SDKS.into_iter().skip(1).step_by(2) {
                scope.spawn(move || {
                    play(&format!("restarted-{package}"), |base| {
                        let mut command = Command::new("node");
                        command.arg(driver("real_ai_sdk.mjs")).arg(folder);
                        command.args([package, &base, &version[..1]]);
                        command
                    });
                });
            }
        });
    });
}

#[test]
fn langgraph_gets_what_came_since_from_the_run_that_a_restart_has_ended() {
    or_say(python(), |python| {
        let said = play("restarted-langgraph", |base| {
            let mut command = Command::new(python);
            command.arg(driver("real_langgraph.py")).arg(base);
            command
        });
        assert_eq!(said["ordered"], true, "{said:#}");
        assert!(said["breaks"].as_u64().unwrap() >= 1, "{said:#}");
    });
}

#[test]
fn langgraphs_packages_come_back_by_themselves_to_the_run_that_a_restart_has_ended() {
    or_say(node(), |folder| {
        for (package, _) in LANGGRAPH_SDKS {
            let said = play(&format!("restarted-{package}"), |base| {
                let mut command = Command::new("node");
                command.arg(driver("real_graph.mjs")).arg(folder).args([package, &base]);
                command
            });
            assert_eq!(said["ordered"], true, "{said:#}");
        }
    });
    or_say(python(), |python| {
        let said = play("restarted-graph-python", |base| {
            let mut command = Command::new(python);
            command.arg(driver("real_graph.py")).arg(base);
            command
        });
        assert_eq!(said["ordered"], true, "{said:#}");
    });
}

#[test]
fn openai_goes_on_behind_a_number_in_the_response_that_a_restart_has_ended() {
    or_say(node(), |folder| {
        let said = play("restarted-responses", |base| {
            let mut command = Command::new("node");
            command.arg(driver("real_responses.mjs")).arg(folder).arg(base);
            command
        });
        assert_eq!(said["ordered"], true, "{said:#}");
        assert!(said["breaks"].as_u64().unwrap() >= 1, "{said:#}");
    });
}

#[test]
fn threads_and_responses_remember_what_was_said_before_a_restart() {
    let model = ModelServer::following("remembering", SCRIPT);
    let described = format!("demo=chat,{},demo", model.base_url);
    let arguments = ["--model", &described, "--allow-commands", "seq"];
    let mut mortal = Mortal::start("remembering", &arguments);
    let ask = |mortal: &Mortal, method: &str, path: &str, body: &Value| -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let said = mortal.server().ask(method, path, &body);
        // A state that is waited for comes in chunks.
        let whole = if said.starts_with(['0', '\r', '\n']) { joined(&said) } else { said };
        serde_json::from_str(&whole).expect(&whole)
    };
    let tools = ["run_command", "slow_data_processor"];
    let run = |text: &str| {
        json!({
            "assistant_id": "demo", "input": text, "config": { "configurable": { "tools": tools } },
        })
    };
    let tools = json!([{ "type": "mcp", "server_label": "streamdoor", "allowed_tools": tools }]);
    let respond = |text: &str, previous: &Value| {
        let mut body = json!({ "model": "demo", "input": text, "tools": tools });
        body["previous_response_id"] = previous.clone();
        body
    };
    let path = "/langgraph/threads/t";
    let values = ask(&mortal, "POST", &format!("{path}/runs/wait"), &run("whole"));
    assert_eq!(values["messages"].as_array().unwrap().len(), 5, "{values:#}");
    let state = ask(&mortal, "GET", &format!("{path}/state"), &Value::Null);
    assert_eq!(state["values"], values);
    let first = ask(&mortal, "POST", "/v1/responses", &respond("whole", &Value::Null));
    mortal.kill();
    assert_eq!(ask(&mortal, "GET", &format!("{path}/state"), &Value::Null), state);
    let next = ask(&mortal, "POST", &format!("{path}/runs/wait"), &run("again"));
    assert_eq!(next["messages"].as_array().unwrap().len(), 7, "{next:#}");
    assert_eq!(next["messages"][6]["content"], "I remember both.", "{next:#}");
    let second = ask(&mortal, "POST", "/v1/responses", &respond("again", &first["id"]));
    let said = &second["output"][0]["content"][0]["text"];
    assert_eq!(said, "I remember both.", "{second:#}");
}

/// Joins the chunks of a body.
fn joined(mut rest: &str) -> String {
    let mut whole = String::new();
    while let Some((size, behind)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole += &behind[..size];
        rest = behind[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    whole
}
