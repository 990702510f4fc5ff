//! Tests of the state that all shards of a server share for clients of MCP: any shard gives the
//! answer of the whole server.

use serde_json::{Value, json};

use super::client::{Mcp, alone, slow};
use crate::base::ExecutionId;
use crate::limits;
use crate::server::{Exported, GuestConfig, Spans};
use crate::shard::ShardConfig;
use crate::sim::server::test_server::{NOTHING, SHORT, TestServer};

fn shard_of(id: &str) -> u8 {
    id.parse::<ExecutionId>().unwrap().shard
}

#[test]
fn ids_of_executions_are_completed_wherever_they_live() {
    let mut mcp = Mcp::of(TestServer::of(3));
    let mut ids: Vec<String> = (0..6).map(|_| mcp.test_server.run(SHORT, NOTHING)).collect();
    ids.sort();
    assert!(ids.iter().any(|id| shard_of(id) != shard_of(&ids[0])), "{ids:?}");
    for template in ["streamdoor://executions/{id}", "streamdoor://executions/{id}/output"] {
        mcp.begin();
        let mut complete = |value: &str| {
            let params = json!({
                "ref": {"type": "ref/resource", "uri": template},
                "argument": {"name": "id", "value": value},
            });
            let heard = mcp.ask("completion/complete", params);
            heard.answer()["result"]["completion"].clone()
        };
        let all = complete("");
        assert_eq!((&all["values"], &all["total"]), (&json!(ids), &json!(6)));
        for id in &ids {
            assert_eq!(complete(&id[..24])["values"], json!([id]));
        }
        assert_eq!(complete("nothing")["values"], json!([]));
    }
    // If other shards make no difference, or the request is wrong, only this one is asked.
    for (reference, argument) in [
        (json!({"type": "ref/resource", "uri": "streamdoor://executions/{id}"}), "other"),
        (json!({"type": "ref/prompt", "name": "none"}), "id"),
    ] {
        let argument = json!({"name": argument, "value": ""});
        let heard = mcp.ask("completion/complete", json!({"ref": reference, "argument": argument}));
        assert_eq!(heard.answer()["error"]["code"], -32_602);
    }
}

#[test]
fn what_all_are_asked_for_is_a_span_like_any_other() {
    let (spans, receiver) = Spans::queue();
    let config = ShardConfig {
        guests: GuestConfig { spans, ..Default::default() },
        ..ShardConfig::default()
    };
    let mut mcp = Mcp::of(TestServer::with_rings(3, 1 << 20, config));
    mcp.begin();
    mcp.ask("resources/list", json!({}));
    let wrong = mcp.ask("resources/list", json!({"cursor": "nothing"}));
    assert_eq!(wrong.answer()["error"]["code"], -32_602);
    let of_lists: Vec<_> = receiver
        .try_iter()
        .filter_map(|item| match item {
            Exported::Span(span) => Some(span),
            Exported::LastMetrics(_) => None,
        })
        .filter(|span| span.method == "resources/list")
        .collect();
    assert_eq!(of_lists.len(), 2);
    assert_eq!(of_lists[0].error, None);
    assert_eq!(of_lists[1].error.as_deref(), Some("-32602"));
}

fn open_stream(mcp: &mut Mcp) -> Value {
    let arguments = json!({"tool": "slow_data_processor", "arguments": slow(3, 1_000)});
    mcp.tool("stream_open", arguments)
}

#[test]
fn streams_are_counted_on_every_shard() {
    let mut mcp = Mcp::of(TestServer::of(3));
    let most = limits::MCP_STREAMS_PER_PRINCIPAL_MAX;
    let mut streams = Vec::new();
    while streams.len() < most {
        mcp.begin();
        let opened = open_stream(&mut mcp);
        let id = opened["structuredContent"]["stream_id"].as_str().expect("there is room");
        streams.push(id.to_owned());
    }
    assert!(streams.iter().any(|id| shard_of(id) != shard_of(&streams[0])), "{streams:?}");
    for _ in 0..4 {
        mcp.begin();
        let refused = open_stream(&mut mcp);
        assert_eq!(refused["isError"], true, "{refused}");
        let text = refused["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("8 streams are open already"), "{text}");
    }
    // A stream that was closed gives its slot back, and so does one that was read to its end.
    mcp.tool("stream_close", json!({"stream_id": streams[0]}));
    mcp.begin();
    assert_eq!(open_stream(&mut mcp)["isError"], Value::Null);
    mcp.test_server.pass(std::time::Duration::from_secs(4));
    while mcp.tool("stream_read", json!({"stream_id": streams[1]}))["structuredContent"]["done"]
        != true
    {}
    mcp.begin();
    assert_eq!(open_stream(&mut mcp)["isError"], Value::Null);
    mcp.begin();
    assert_eq!(open_stream(&mut mcp)["isError"], true);
}

/// The sum of all shards under this name.
fn metric(mcp: &mut Mcp, name: &str, labels: &str) -> u64 {
    let text = mcp.test_server.get("/metrics");
    let lines = text.lines().filter(|line| line.split('{').next() == Some(name));
    let lines = lines.filter(|line| line.contains(labels));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

fn calls(mcp: &mut Mcp, era: &str) -> [u64; 5] {
    ["completed", "tool_error", "input_required", "refused", "cancelled"].map(|outcome| {
        let labels = format!("era=\"{era}\",outcome=\"{outcome}\"");
        metric(mcp, "streamdoor_mcp_calls_total", &labels)
    })
}

#[test]
fn what_clients_do_is_counted() {
    let mut mcp = Mcp::of(TestServer::of(2));
    assert_eq!(metric(&mut mcp, "streamdoor_mcp_sessions", ""), 0);
    mcp.begin();
    mcp.begin();
    assert_eq!(metric(&mut mcp, "streamdoor_mcp_sessions", ""), 2);
    // A call with notifications, one that its tool refuses, one of no tool, one that is cancelled.
    let client = mcp.call(slow(3, 1), json!({"progressToken": 1}));
    mcp.test_server.pass(std::time::Duration::from_millis(10));
    mcp.test_server.hear(client);
    assert_eq!(mcp.tool("slow_data_processor", json!({"chunks": "x"}))["isError"], true);
    mcp.ask("tools/call", json!({"name": "nothing", "arguments": {}}));
    assert_eq!(calls(&mut mcp, "handshake"), [1, 1, 0, 1, 0]);
    assert_eq!(metric(&mut mcp, "streamdoor_mcp_notifications_total", ""), 3);
    let client = mcp.call(slow(1_000, 1), alone());
    mcp.test_server.world.client_reset(client);
    mcp.test_server.pass(std::time::Duration::from_millis(1));
    assert_eq!(calls(&mut mcp, "stateless"), [0, 0, 0, 0, 1]);
    mcp.ask("ping", json!({})); // This is no call.
    let opened = open_stream(&mut mcp);
    let task = json!({"name": "slow_data_processor", "arguments": slow(3, 1), "task": {}});
    mcp.ask("tools/call", task);
    assert_eq!(calls(&mut mcp, "handshake"), [3, 1, 0, 1, 0]);
    assert_eq!(metric(&mut mcp, "streamdoor_mcp_open_streams", ""), 1);
    assert_eq!(metric(&mut mcp, "streamdoor_mcp_tasks", ""), 1);
    let id = &opened["structuredContent"]["stream_id"];
    mcp.tool("stream_close", json!({ "stream_id": id }));
    assert_eq!(metric(&mut mcp, "streamdoor_mcp_open_streams", ""), 0);
    mcp.test_server.pass(limits::MCP_SESSION_IDLE + std::time::Duration::from_secs(1));
    assert_eq!(metric(&mut mcp, "streamdoor_mcp_sessions", ""), 0);
    assert_eq!(metric(&mut mcp, "streamdoor_mcp_sessions_idled_out_total", ""), 2);
    assert_eq!(metric(&mut mcp, "streamdoor_mcp_gaps_total", ""), 0);
}
