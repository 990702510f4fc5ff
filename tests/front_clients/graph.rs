//! The packages `@langchain/langgraph-sdk` and `langgraph-sdk` run agents of a real server over
//! LangGraph's ordinary API: assistants, threads and runs.

use std::collections::BTreeMap;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::real::{House, check_same};
use crate::{LANGGRAPH_SDKS, driver, node, or_say, python};

const ALL: &str = "I count, and I wait. Done: 😀.";

/// Asserts everything that is the same for all packages.
fn check(house: &House, told: &BTreeMap<String, Value>) {
    let readme = &told["readme"];
    assert_eq!(readme["assistants"], json!(["agent", "demo"]), "{readme:#}");
    assert_eq!(readme["events"], json!(["metadata", "values", "end"]), "{readme:#}");
    assert_eq!(readme["final"], "It is sunny.", "{readme:#}");
    for scene in ["whole", "fails", "resumed"] {
        let said = &told[scene];
        check_same(said, &house.native(said));
        assert_eq!((&said["ordered"], &said["ends"]), (&json!(true), &json!(1)), "{said:#}");
    }
    let whole = &told["whole"];
    assert_eq!((&whole["text"], &whole["ending"]), (&json!(ALL), &json!("finished")));
    assert_eq!((&whole["results"], &whole["final"]), (&whole["pieces"], &json!("Done: 😀.")));
    assert_eq!((&whole["same"], &whole["next"]), (&json!(true), &json!("I remember both.")));
    let fails = &told["fails"];
    assert_eq!(fails["ending"], "failed", "{fails:#}");
    for name in ["problem", "said"] {
        assert!(fails[name].as_str().unwrap().contains("no room"), "{fails:#}");
    }
    let cancelled = &told["cancelled"];
    assert_eq!(cancelled["ending"], "cancelled", "{cancelled:#}");
    assert!(cancelled["text"].as_str().unwrap().starts_with("word "), "{cancelled:#}");
    let resumed = &told["resumed"];
    assert_eq!(resumed["ending"], "finished", "{resumed:#}");
    assert_eq!(resumed["joined"], "It is over.", "{resumed:#}");
}

#[test]
fn langgraphs_packages_for_node_run_agents_over_the_ordinary_api() {
    or_say(node(), |folder| {
        thread::scope(|scope| {
            for (package, version) in LANGGRAPH_SDKS {
                scope.spawn(move || {
                    let house = House::new(package);
                    let mut command = Command::new("node");
                    command.arg(driver("real_graph.mjs")).arg(folder);
                    let told = house.play(command.args([package, &house.base()]));
                    check(&house, &told);
                    let whole = &told["whole"];
                    // The older ones do not read this header.
                    assert!(whole["created"] == true || version == "2.0.0", "{whole:#}");
                    assert_eq!(whole["about"], json!(["success", { "a": 1 }, true, 1]));
                    let run = ["human", "ai", "tool", "tool", "ai"];
                    assert_eq!(whole["kept"], json!(run), "{whole:#}");
                    assert_eq!(whole["grown"], json!([&run[..], &["human", "ai"]].concat()));
                    assert_eq!(whole["history"], json!([[]]), "{whole:#}");
                    assert_eq!(whole["found"], json!([1, "idle", "idle", 0]), "{whole:#}");
                    assert!(whole["tokens"].is_u64(), "{whole:#}");
                    let alone = &told["alone"];
                    check_same(alone, &house.native(alone));
                    assert_eq!(alone["next"], "I remember nothing.", "{alone:#}");
                    assert_eq!(
                        (&alone["own"], &told["resumed"]["same"]),
                        (&json!(true), &json!(true))
                    );
                    let cancelled = &told["cancelled"];
                    assert_eq!(
                        (&cancelled["begun"], &cancelled["state"], &cancelled["refused"]),
                        (&json!("running"), &json!("interrupted"), &json!(409))
                    );
                    let expected = json!({
                        "scene": "refused", "command": 400, "model": 400, "strategy": 400,
                        "assistant": 404, "run": 404, "mode": 400,
                    });
                    assert_eq!(told["refused"], expected);
                });
            }
        });
    });
}

#[test]
fn langgraphs_package_for_python_runs_agents_over_the_ordinary_api() {
    or_say(python(), |python| {
        let house = House::new("graph-python");
        let mut command = Command::new(python);
        command.arg(driver("real_graph.py")).arg(house.base());
        let told = house.play(&mut command);
        check(&house, &told);
        let whole = &told["whole"];
        // A client may send the messages of the thread once more.
        assert_eq!(whole["grown"], json!([7, 9]), "{whole:#}");
        assert!(whole["found"].as_u64().unwrap() >= 2, "{whole:#}");
    });
}
