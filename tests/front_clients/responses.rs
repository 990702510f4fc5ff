//! The packages `openai` for Node and Python run agents of a real server over its Responses API.

use std::process::Command;

use serde_json::{Value, json};

use crate::real::{House, check_same};
use crate::{driver, node, or_say, python};

const ALL: &str = "I count, and I wait. Done: 😀.";

#[test]
fn openai_for_node_runs_agents_and_goes_on_behind_a_number() {
    or_say(node(), |folder| {
        let house = House::new("openai-node");
        let mut command = Command::new("node");
        command.arg(driver("real_responses.mjs")).arg(folder).arg(house.base());
        let told = house.play(&mut command);
        for scene in ["whole", "fails", "resumed"] {
            let said = &told[scene];
            check_same(said, &house.native(said));
            assert_eq!((&said["ordered"], &said["ends"]), (&json!(true), &json!(1)), "{said:#}");
        }
        let whole = &told["whole"];
        assert_eq!((&whole["text"], &whole["ending"]), (&json!(ALL), &json!("finished")));
        assert_eq!(whole["results"], whole["pieces"], "{whole:#}");
        // Items carry the results of tools, and the id of a response carries its answer.
        assert_eq!(whole["next"], "I remember both.");
        assert_eq!(whole["after"], "I remember both.");
        let inputs = whole["inputs"].as_array().unwrap();
        assert_eq!((inputs.len(), &inputs[0]), (8, &json!(["user", "whole"])), "{whole:#}");
        assert_eq!((&whole["same"], &whole["echoed"]), (&json!(true), &json!([true, "Be kind."])));
        assert!(whole["tokens"].is_u64(), "{whole:#}");
        let helper = &told["helper"];
        assert_eq!((&helper["texts"], &helper["pieces"]), (&json!(ALL), &json!({})), "{helper:#}");
        assert_eq!(helper["results"], whole["results"], "{helper:#}");
        let fails = &told["fails"];
        assert_eq!((&fails["ending"], &fails["plain"]), (&json!("failed"), &json!("failed")));
        assert!(fails["problem"].as_str().unwrap().contains("no room"), "{fails:#}");
        assert_eq!(fails["said"], fails["problem"]);
        let cancelled = &told["cancelled"];
        for name in ["status", "said", "again"] {
            assert_eq!(cancelled[name], "cancelled", "{cancelled:#}");
        }
        assert!(cancelled["output_text"].as_str().unwrap().starts_with("word "), "{cancelled:#}");
        let resumed = &told["resumed"];
        assert_eq!(
            (&resumed["early"], &resumed["ending"]),
            (&json!("in_progress"), &json!("finished"))
        );
        let background = &told["background"];
        let statuses = background["statuses"].as_array().unwrap();
        assert!(
            statuses.len() >= 2 && statuses.last() == Some(&json!("completed")),
            "{statuses:?}"
        );
        assert_eq!(background["output_text"], "This takes a while. It is over.");
        let repeated = (&background["metadata"], &background["background"]);
        assert_eq!(repeated, (&json!({ "a": "b" }), &json!(true)));
        assert_eq!(background["gone"], json!([404, "not_found"]));
        let expected = json!({
            "scene": "refused",
            "tool_choice": [400, "invalid_field"],
            "model": [400, "invalid_argument"],
            "previous": [404, "not_found"],
            "strange": [404, "not_found"],
        });
        assert_eq!(told["refused"], expected);
    });
}

#[test]
fn openai_for_python_runs_agents_and_goes_on_behind_a_number() {
    or_say(python(), |python| {
        let house = House::new("openai-python");
        let mut command = Command::new(python);
        command.arg(driver("real_responses.py")).arg(house.base());
        let told = house.play(&mut command);
        for scene in ["whole", "resumed"] {
            let said = &told[scene];
            check_same(said, &house.native(said));
            let is_right: Vec<&Value> = vec![&said["ordered"], &said["status"]];
            assert_eq!(is_right, [&json!(true), &json!("completed")], "{said:#}");
        }
        let whole = &told["whole"];
        assert_eq!((&whole["text"], &whole["total"]), (&json!(ALL), &json!(ALL)));
        assert_eq!(
            (&whole["results"], &whole["next"]),
            (&whole["pieces"], &json!("I remember both."))
        );
        let helper = &told["helper"];
        assert_eq!((&helper["status"], &helper["text"]), (&json!("completed"), &json!(ALL)));
        assert_eq!(told["cancelled"]["status"], "cancelled", "{:#}", told["cancelled"]);
    });
}
