//! The expected understanding of each scene by each client.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use streamdoor::agent::Message;
use streamdoor::endpoint::front::ask::{
    Command as Asked, Follow, read_ag_ui, read_ai_sdk, read_command, read_follow,
};
use streamdoor::endpoint::front::{Channels, FrontFormat, SdkVersion, Spelling};

use crate::server::{Recorded, serve};
use crate::streams::{SCENES, TEXT, output, scene};
use crate::{AI_SDKS, driver, node, or_say, python};

/// A client's report on each scene, and the requests that it has sent.
struct ClientReport {
    scenes: Vec<(String, Value)>,
    bodies: Vec<(String, Vec<u8>)>,
}

/// Runs a client that reads all scenes.
fn read(format: FrontFormat, client: impl FnOnce(&str, &[String]) -> Command) -> ClientReport {
    let recorded = |name: &&str| Recorded {
        path: format!("/{name}"),
        headers: format.headers(),
        bytes: scene(name, format),
    };
    let (address, bodies) = serve(SCENES.iter().map(recorded).collect());
    let paths = SCENES.map(|name| format!("/{name}"));
    let done = client(&format!("http://{address}"), &paths).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let trouble = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}\n{trouble}");
    let lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(lines.len(), SCENES.len(), "{said}\n{trouble}");
    let scenes = SCENES.iter().map(|name| (*name).to_owned()).zip(lines).collect();
    let bodies = bodies.lock().unwrap().clone();
    ClientReport { scenes, bodies }
}

/// Asserts that the next question carries the messages of the first scene.
fn check_conversation(messages: &[Message], has_reasons: bool, context: &str) {
    let [first, one, found, refused, two, last] = messages else {
        panic!("{context}: {messages:?}")
    };
    let user = |text: &str| Message::User(text.to_owned());
    assert_eq!((first, last), (&user("find it"), &user("again")), "{context}");
    let Message::Assistant(one) = one else { panic!("{context}: {one:?}") };
    assert_eq!(one.text, TEXT[0], "{context}");
    let calls: Vec<_> =
        one.calls.iter().map(|call| (&*call.id, &*call.name, &*call.arguments)).collect();
    let to = "{\"to\":900}";
    assert_eq!(calls, [("call_1", "seq", to), ("call_2", "rm", to)], "{context}");
    let Message::Tool(found) = found else { panic!("{context}: {found:?}") };
    assert_eq!((&*found.call_id, found.is_error), ("call_1", false), "{context}");
    let Message::Tool(refused) = refused else { panic!("{context}: {refused:?}") };
    // AG-UI cannot mark a result as an error.
    assert_eq!((&*refused.output, refused.is_error), ("it may not", has_reasons), "{context}");
    assert!(matches!(two, Message::Assistant(two) if two.text == TEXT[1]), "{context}: {two:?}");
}

fn parts<'a>(message: &'a Value, kind: &str) -> Vec<&'a Value> {
    let parts = message["parts"].as_array().expect("a message has parts");
    parts.iter().filter(|part| part["type"] == kind).collect()
}

fn ai_sdk(package: &str, sdk: SdkVersion, folder: &Path) {
    let told = read(FrontFormat::AiSdk { sdk }, |base, paths| {
        let mut command = Command::new("node");
        command.arg(driver("ai_sdk.mjs")).arg(folder).arg(package);
        command.args(paths.iter().map(|path| format!("{base}{path}")));
        command
    });
    let request = read_ai_sdk(&told.bodies[0].1).unwrap();
    assert_eq!(request.messages, [Message::User("find it".to_owned())], "{package}");
    assert_eq!(request.thread_id.as_deref(), Some("chat"), "{package}");
    let again = read_ai_sdk(&told.bodies.last().unwrap().1).unwrap();
    check_conversation(&again.messages, true, package);
    let output = output();
    for (scene, said) in told.scenes {
        let context = format!("{package} {scene}: {said:#}");
        assert_eq!(said.get("thrown"), None, "{context}");
        let message = &said["message"];
        let errors: &[&str] = match &*scene {
            "failed" => &["overloaded: no room"],
            "tool-failed" => &["failed: exit code 3"],
            _ => &[],
        };
        assert_eq!(said["errors"], json!(errors), "{context}");
        assert_eq!(message["id"], "msg-0abc", "{context}");
        let tools = parts(message, "dynamic-tool");
        let tool = tools.first().unwrap_or_else(|| panic!("{context}"));
        assert_eq!(tool["input"], json!({"to": 900}), "{context}");
        let id = tool["toolCallId"].as_str().unwrap();
        let pieces = said["pieces"][id].as_str().unwrap_or_default();
        assert_eq!(pieces == output, scene != "gap", "{context}");
        assert_eq!(said["gaps"], u64::from(scene == "gap"), "{context}");
        // The output grew, and the snapshots were not large.
        assert!(said["snapshots"].as_u64().unwrap() >= 2, "{context}");
        assert!(said["snapshot_bytes"].as_u64().unwrap() <= 2 * output.len() as u64, "{context}");
        match &*scene {
            "whole" | "reopened" | "tool" => {
                assert_eq!(tool["state"], "output-available", "{context}");
                assert_eq!(tool["output"], *output, "{context}");
                assert_ne!(tool["preliminary"], true, "{context}");
            }
            "gap" => assert_eq!(tool["state"], "output-available", "{context}"),
            _ => {
                assert_eq!(tool["state"], "output-error", "{context}");
                let data = &parts(message, "data-tool")[0]["data"];
                assert_eq!(data["output"], *output, "{context}");
            }
        }
        let texts: Vec<&Value> = parts(message, "text").iter().map(|part| &part["text"]).collect();
        match &*scene {
            "whole" | "gap" => {
                assert_eq!(texts, TEXT.each_ref(), "{context}");
                assert_eq!(parts(message, "reasoning")[0]["text"], "Hm …", "{context}");
                assert_eq!(tools[1]["errorText"], "it may not", "{context}");
            }
            "reopened" => assert_eq!(texts, [TEXT[1]], "{context}"),
            "failed" | "cancelled" => assert_eq!(texts, [TEXT[0]], "{context}"),
            _ => assert!(texts.is_empty(), "{context}"),
        }
        let last = said["types"].as_array().unwrap().last().unwrap();
        assert_eq!(last, if scene == "cancelled" { "abort" } else { "finish" }, "{context}");
    }
}

#[test]
fn ai_sdk_understands_what_every_generation_of_it_is_told() {
    or_say(node(), |folder| {
        for (package, version) in AI_SDKS {
            // A client that does not name its version receives what version 5 understands.
            ai_sdk(package, SdkVersion::V5, folder);
            match version.as_bytes()[0] {
                b'6' => ai_sdk(package, SdkVersion::V6, folder),
                b'7' => ai_sdk(package, SdkVersion::V7, folder),
                _ => {}
            }
        }
    });
}

#[test]
fn ag_ui_understands_what_it_is_told() {
    or_say(node(), |folder| {
        let told = read(FrontFormat::AgUi, |base, paths| {
            let mut command = Command::new("node");
            command.arg(driver("ag_ui.mjs")).arg(folder);
            command.args(paths.iter().map(|path| format!("{base}{path}")));
            command
        });
        let request = read_ag_ui(&told.bodies[0].1).unwrap();
        assert_eq!(request.messages, [Message::User("find it".to_owned())]);
        assert_eq!(request.thread_id.as_deref(), Some("thread-1"));
        assert_eq!(request.run_id.as_deref(), Some("run-1"));
        let again = read_ag_ui(&told.bodies.last().unwrap().1).unwrap();
        check_conversation(&again.messages, false, "ag-ui");
        for (scene, said) in told.scenes {
            ag_ui_scene(&scene, &said);
        }
    });
}

fn ag_ui_scene(scene: &str, said: &Value) {
    let context = format!("{scene}: {said:#}");
    assert_eq!(said["warnings"], json!([]), "{context}");
    let errors = match scene {
        "failed" => json!([{"message": "no room", "code": "overloaded"}]),
        "tool-failed" => json!([{"message": "exit code 3", "code": "failed"}]),
        _ => json!([]),
    };
    assert_eq!(said["errors"], errors, "{context}");
    let outcome = match scene {
        "failed" | "tool-failed" => Value::Null,
        "cancelled" => json!({"type": "cancelled"}),
        _ => json!({"type": "success"}),
    };
    assert_eq!(said["finished"]["outcome"], outcome, "{context}");
    assert_eq!(said["gaps"], u64::from(scene == "gap"), "{context}");
    let messages = said["messages"].as_array().unwrap();
    let of = |role: &'static str| messages.iter().filter(move |message| message["role"] == role);

    let calls: Vec<&Value> =
        of("assistant").filter_map(|message| message["toolCalls"].as_array()).flatten().collect();
    assert_eq!(calls[0]["function"]["arguments"], "{\"to\":900}", "{context}");
    let activity = of("activity").next().unwrap_or_else(|| panic!("{context}"));
    let pieces = activity["content"]["pieces"].as_array().unwrap();
    let text: String = pieces.iter().map(|piece| piece.as_str().unwrap()).collect();
    assert_eq!(text == output(), scene != "gap", "{context}");
    let result = &of("tool").find(|message| message["toolCallId"] == calls[0]["id"]).unwrap();
    match scene {
        "tool" => assert_eq!(result["content"], output(), "{context}"),
        "whole" | "gap" | "reopened" => assert_eq!(result["content"], "line 0 …", "{context}"),
        "tool-failed" => assert!(result["content"].as_str().unwrap().ends_with("code 3")),
        _ => assert_eq!(result["content"], "it was cancelled", "{context}"),
    }
    let texts: Vec<&Value> = of("assistant")
        .map(|message| &message["content"])
        .filter(|text| text.is_string())
        .collect();
    match scene {
        "whole" | "gap" => assert_eq!(texts, TEXT.each_ref(), "{context}"),
        "reopened" => assert_eq!(texts.last(), Some(&&json!(TEXT[1])), "{context}"),
        "failed" | "cancelled" => assert_eq!(texts, [TEXT[0]], "{context}"),
        _ => {}
    }
}

#[test]
fn langgraph_understands_what_it_is_told() {
    or_say(python(), |python| {
        let format = FrontFormat::LangGraph { spelling: Spelling::Snake };
        let told = read(format, |base, paths| {
            let mut command = Command::new(python);
            command.arg(driver("langgraph.py")).arg(base).args(paths);
            command
        });
        let (_, body) = told.bodies.last().unwrap();
        let Asked::Start { id: 1, assistant, request } = read_command(body, "thread-1").unwrap()
        else {
            panic!("{}", String::from_utf8_lossy(body));
        };
        assert_eq!(
            (&*assistant, request.messages),
            ("agent", vec![Message::User("find it".into())])
        );
        let follow = read_follow(&told.bodies[0].1).unwrap();
        let channels = Channels::new(["messages", "tools", "lifecycle", "custom"]);
        assert_eq!(follow, Follow { channels, since: None, has_root: true });
        for (scene, said) in told.scenes {
            langgraph_scene(&scene, &said);
        }
    });
}

fn langgraph_scene(scene: &str, said: &Value) {
    let context = format!("{scene}: {said:#}");
    assert_eq!((&said["ordered"], &said["unknown"]), (&json!(true), &json!(0)), "{context}");
    assert_eq!(said["gaps"], u64::from(scene == "gap"), "{context}");
    let error = match scene {
        "failed" => Some("no room"),
        "tool-failed" => Some("exit code 3"),
        "cancelled" => Some("the run was cancelled"),
        _ => None,
    };
    let lifecycle = said["lifecycle"].as_array().unwrap();
    assert_eq!(lifecycle[0]["event"], "started", "{context}");
    assert_eq!(lifecycle[1]["error"].as_str(), error, "{context}");
    let tool = &said["tools"][0];
    assert_eq!(tool["input"], json!({"to": 900}), "{context}");
    assert_eq!(tool["pieces"] == output(), scene != "gap", "{context}");
    match scene {
        "tool" => assert_eq!(tool["output"], output(), "{context}"),
        "whole" | "gap" | "reopened" => assert_eq!(tool["output"], "line 0 …", "{context}"),
        "tool-failed" => assert_eq!(tool["error"], "exit code 3", "{context}"),
        _ => assert_eq!(tool["error"], "it was cancelled", "{context}"),
    }
    let messages = said["messages"].as_array().unwrap();
    if let Some(error) = error {
        assert_eq!(messages[0]["error"], error, "{context}");
        return;
    }
    assert_eq!(messages[0]["calls"][0]["args"], json!({"to": 900}), "{context}");
    let text = |message: &Value| {
        let blocks = message["content"].as_array().unwrap().clone();
        let texts = blocks.into_iter().filter(|block| block["type"] == "text");
        texts.map(|block| block["text"].as_str().unwrap().to_owned()).collect::<String>()
    };
    match scene {
        "whole" | "gap" => {
            assert_eq!([text(&messages[0]), text(&messages[1])], TEXT, "{context}");
            assert_eq!(messages[0]["usage"]["input_tokens"], 7, "{context}");
            assert_eq!(said["tools"][1]["error"], "it may not", "{context}");
        }
        "reopened" => assert_eq!(text(&messages[1]), TEXT[1], "{context}"),
        _ => {}
    }
}
