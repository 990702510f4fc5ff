//! Responses of agents, on another node than the one that runs them.

use serde_json::{Value, json};

use crate::nodes::Cluster;
use crate::scripted::ModelServer;
use crate::served::{Server, asked};
use crate::world::{get, post};

pub const SCRIPT: &str = r#"
pace = "5ms"
[[turns]]
when = { step = 1 }
events = [
  { reasoning = "I need a tool." },
  { text = "I count. " },
  { call = "slow_data_processor", id = "call_1", arguments = { chunks = 10, delay_ms = 30 } },
]
[[turns]]
when = { step = 2 }
events = [{ text = "Done." }]
"#;

fn document(node: &Server, id: &str) -> Value {
    let response = get(node, &format!("/v1/responses/{id}"), "");
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    serde_json::from_slice(&response.body).unwrap()
}

/// The events of a response behind a number.
fn events(node: &Server, id: &str, after: &str) -> Vec<Value> {
    let path = format!("/v1/responses/{id}?stream=true&include=streamdoor:events{after}");
    let text = String::from_utf8(get(node, &path, "").body).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).expect(data)).collect()
}

#[test]
fn a_response_is_followed_and_read_and_cancelled_on_another_node() {
    let Some(cluster) = Cluster::start("responses") else { return };
    let model = ModelServer::following("cluster-responses", SCRIPT);
    let described = format!("demo=chat,{},demo", model.base_url);
    let owner = cluster.node("a", &["--model", &described]);
    let other = cluster.node("b", &["--model", &described]);
    let begin = || {
        let tools = json!([{ "type": "mcp", "server_label": "streamdoor" }]);
        let body = json!({
            "model": "demo", "input": "Count", "background": true, "tools": tools,
            "metadata": { "a": "b" },
        });
        let text = body.to_string();
        let (status, text) = asked::ask(&owner.address, "POST", "/v1/responses", "", &text);
        let begun: Value = serde_json::from_str(&text).unwrap();
        assert!(status == 200 && begun["output"] == json!([]), "{status} {text}");
        begun["id"].as_str().unwrap().to_owned()
    };
    // Live, and from the log.
    let id = begin();
    let there = events(&other, &id, "");
    let here = events(&owner, &id, "");
    assert_eq!(there, here);
    let last = there.last().unwrap();
    assert_eq!(last["type"], "response.completed", "{last}");
    assert_eq!(last["response"]["metadata"], json!({ "a": "b" }));
    let kinds = last["response"]["output"].as_array().unwrap().iter().map(|item| &item["type"]);
    assert!(kinds.eq(["reasoning", "message", "mcp_call", "message"]), "{last}");
    for node in [&owner, &other] {
        assert_eq!(document(node, &id), last["response"]);
        for at in [0, there.len() / 2, there.len() - 2] {
            let after = format!("&starting_after={}", there[at]["sequence_number"]);
            assert_eq!(events(node, &id, &after), there[at + 1..], "{at}");
        }
    }
    let cancelled = begin();
    let path = format!("/v1/responses/{cancelled}/cancel");
    let response = post(&other, &path, "", "");
    let said: Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!((response.status, &said["status"]), (200, &json!("cancelled")), "{said}");
    assert_eq!(document(&owner, &cancelled)["status"], "cancelled");
}
