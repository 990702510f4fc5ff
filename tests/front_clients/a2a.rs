//! The packages `a2a-sdk` and `@a2a-js/sdk` send messages to a real server, over both bindings of
//! A2A, and `a2a-proof` judges it.

use std::process::Command;

use serde_json::{Value, json};

use crate::real::{House, check_same};
use crate::{a2a_python, driver, node, or_say};

const ALL: &str = "I count, and I wait. Done: 😀.";
const BINDINGS: [&str; 2] = ["JSONRPC", "HTTP+JSON"];

#[test]
fn a2as_package_for_python_sends_messages_over_both_bindings() {
    or_say(a2a_python(), |python| {
        for binding in BINDINGS {
            let house = House::new(&format!("a2a-python-{}", binding.len()));
            let mut command = Command::new(python);
            command.arg(driver("real_a2a.py")).args([&house.base(), binding]);
            let told = house.play(&mut command);
            let card = &told["card"];
            assert_eq!(card["bindings"], json!(BINDINGS), "{card:#}");
            let skills = card["skills"].as_array().unwrap();
            assert!(skills.contains(&json!("agent")) && skills.contains(&json!("run_command")));
            assert_eq!(card["same"], true, "{card:#}");
            for scene in ["whole", "fails", "resumed"] {
                let said = &told[scene];
                check_same(said, &house.native(said));
                assert_eq!(said["tasks"], 1, "{said:#}");
            }
            let whole = &told["whole"];
            assert_eq!(
                (&whole["text"], &whole["states"]),
                (&json!(ALL), &json!(["working", "completed"]))
            );
            assert_eq!((&whole["kept"], &whole["own_context"]), (&json!(true), &json!(true)));
            assert_eq!((&whole["history"], &whole["short"]), (&json!([["whole"]]), &json!(0)));
            assert_eq!(whole["next"], "I remember both.", "{whole:#}");
            assert_eq!((&whole["listed"], &whole["newest"]), (&json!([1, 2, 1, ""]), &json!(true)));
            let tool = &told["tool"];
            assert_eq!(tool["states"], json!(["working", "completed"]), "{tool:#}");
            let execution = tool["execution"].as_str().unwrap();
            assert_eq!(tool["pieces"][execution].as_str().unwrap().lines().count(), 3, "{tool:#}");
            let fails = &told["fails"];
            assert_eq!(fails["states"], json!(["working", "failed"]), "{fails:#}");
            assert!(fails["problem"].as_str().unwrap().contains("no room"), "{fails:#}");
            let cancelled = &told["cancelled"];
            assert_eq!(cancelled["states"], json!(["working", "canceled"]), "{cancelled:#}");
            assert_eq!(cancelled["answer"], "TASK_STATE_CANCELED", "{cancelled:#}");
            assert_eq!(told["resumed"]["states"], json!(["working", "completed"]));
            // UNSUPPORTED_OPERATION and TASK_NOT_CANCELABLE, as the package names them.
            let expected = json!({
                "scene": "refused",
                "subscribe": "UnsupportedOperationError",
                "cancel": "TaskNotCancelableError",
                "unknown": "TaskNotFoundError",
                "strange": "TaskNotFoundError",
                "continue": "UnsupportedOperationError",
                "file": "ContentTypeNotSupportedError",
                "tool": "InvalidParamsError",
                "push": "PushNotificationNotSupportedError",
            });
            assert_eq!(told["refused"], expected);
        }
    });
}

#[test]
fn a2as_package_for_node_sends_messages_over_both_bindings() {
    or_say(node(), |folder| {
        for binding in BINDINGS {
            let house = House::new(&format!("a2a-node-{}", binding.len()));
            let mut command = Command::new("node");
            command.arg(driver("real_a2a.mjs")).arg(folder).args([&house.base(), binding]);
            let told = house.play(&mut command);
            for scene in ["whole", "fails", "resumed"] {
                let said = &told[scene];
                check_same(said, &house.native(said));
                assert_eq!(said["tasks"], 1, "{said:#}");
            }
            let whole = &told["whole"];
            assert_eq!((&whole["text"], &whole["kept"]), (&json!(ALL), &json!(ALL)), "{whole:#}");
            assert_eq!(whole["next"], "I remember both.", "{whole:#}");
            // The states as the package numbers them: working, completed, failed, canceled.
            let states: Vec<&Value> =
                ["whole", "fails", "cancelled"].map(|scene| &told[scene]["states"]).to_vec();
            assert_eq!(states, [&json!([2, 3]), &json!([2, 4]), &json!([2, 5])]);
            assert_eq!(told["cancelled"]["answer"], 5, "{:#}", told["cancelled"]);
        }
    });
}

#[test]
fn a2a_proof_finds_nothing_wrong() {
    or_say(a2a_python(), |python| {
        let house = House::new("a2a-proof");
        let folder = std::env::temp_dir().join(format!("a2a-proof-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let contract = |binding: &str| {
            json!({
                "version": 1,
                "agent": { "url": house.base(), "timeout": 30, "transport": binding },
                "scenarios": [
                    {
                        "name": "an answer", "message": "what's the weather in la",
                        "expect": {
                            "state": "completed", "text": { "contains": "It is sunny." },
                            "states": { "equals": ["working", "completed"] },
                        },
                    },
                    {
                        "name": "a task that is subscribed to",
                        "turns": [
                            {
                                "message": "steady", "return_immediately": true,
                                "expect": { "state": "working" },
                            },
                            { "action": "subscribe", "expect": { "state": "completed" } },
                            {
                                "action": "get_task", "history_length": 1,
                                "expect": { "text": { "contains": "word word" } },
                            },
                        ],
                    },
                    {
                        "name": "a task that is cancelled",
                        "turns": [
                            { "message": "endless", "return_immediately": true },
                            { "action": "cancel", "expect": { "state": "canceled" } },
                        ],
                    },
                ],
            })
        };
        let program = python.with_file_name("a2a-proof");
        for binding in BINDINGS {
            std::fs::write(folder.join("a2a-proof.yaml"), contract(binding).to_string()).unwrap();
            let mut command = Command::new(&program);
            command.args(["run", "--format", "json"]).current_dir(&folder);
            let done = command.env("NO_PROXY", "127.0.0.1").output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout).into_owned();
            let trouble = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{said}\n{trouble}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    });
}
