//! Tests of results that are fetched later: piece by piece as a stream, or as a task.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{MOMENT, Mcp, ReceivedMessages, alone, slow};
use crate::limits;
use crate::shard::ShardConfig;
use crate::sim::server::test_server::TestServer;

/// A client with a session, on a server with room for more executions than a principal may have
/// streams.
fn roomy() -> Mcp {
    let mut mcp = Mcp::of(TestServer::with_executions(16, 1, 2 << 20, ShardConfig::default()));
    mcp.begin();
    mcp
}

/// Opens as many streams as one principal can have, by calls of the stateless era.
fn open_all(mcp: &mut Mcp, arguments: &Value) -> Vec<String> {
    let mut meta = alone();
    meta["dev.streamdoor/stream"] = true.into();
    let mut open = || {
        let client = mcp.call(arguments.clone(), meta.clone());
        let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
        let meta = &heard.answer()["result"]["_meta"];
        meta["dev.streamdoor/stream"]["stream_id"].as_str().unwrap().to_owned()
    };
    (0..limits::MCP_STREAMS_PER_PRINCIPAL_MAX).map(|_| open()).collect()
}

fn read(mcp: &mut Mcp, id: &str) -> Value {
    mcp.tool("stream_read", json!({"stream_id": id}))["structuredContent"].clone()
}

#[test]
fn a_result_that_is_too_long_is_read_as_a_stream() {
    let mut mcp = Mcp::begun();
    let many = json!({"chunks": 2_000, "delay_ms": 0, "chunk_size": 100});
    let client = mcp.call(many, json!({}));
    mcp.test_server.pass(MOMENT);
    let heard = ReceivedMessages::read(&mcp.test_server.hear(client));
    let meta = heard.answer()["result"]["_meta"].clone();
    let id = meta["dev.streamdoor/stream"]["stream_id"].as_str().unwrap().to_owned();
    mcp.test_server.pass(limits::BLOCK_DEADLINE / 2);
    assert_eq!(mcp.states(), ["running"], "it waits to be read");
    let mut text = String::new();
    loop {
        let read = mcp.tool("stream_read", json!({"stream_id": id}));
        let read = &read["structuredContent"];
        let offset = read["offset"].as_u64().unwrap();
        assert_eq!(offset, text.len() as u64);
        // Reads again: the response may have been lost.
        let again = mcp.tool("stream_read", json!({"stream_id": id, "offset": offset}));
        assert_eq!(again["structuredContent"]["chunk"], read["chunk"]);
        text += read["chunk"].as_str().unwrap();
        if read["done"] == true {
            break;
        }
    }
    assert_eq!(text.len(), 200_000);
    assert!(text.contains("chunk 2000 of 2000"));
    let gone = mcp.tool("stream_read", json!({"stream_id": id, "offset": 0}));
    assert_eq!(gone["isError"], true, "{gone}");
    let closed = mcp.tool("stream_close", json!({"stream_id": id}));
    assert_eq!(closed["structuredContent"]["total_bytes"], 200_000);
}

#[test]
fn a_stream_waits_for_its_tool_and_the_tool_for_its_reader() {
    let mut mcp = Mcp::begun();
    let open = json!({"tool": "slow_data_processor", "arguments": slow(2, 20_000)});
    let opened = mcp.tool("stream_open", open.clone());
    let id = opened["structuredContent"]["stream_id"].as_str().unwrap().to_owned();
    let read = mcp.tool("stream_read", json!({"stream_id": id}));
    assert_eq!(read["structuredContent"]["bytes_read"], 20);
    let message =
        mcp.request("tools/call", json!({"name": "stream_read", "arguments": {"stream_id": id}}));
    let waits = mcp.post(&message);
    assert_eq!(mcp.test_server.hear(waits), "");
    mcp.test_server.pass(limits::MCP_READ_WAIT + Duration::from_millis(100));
    let heard = ReceivedMessages::read(&mcp.test_server.hear(waits));
    let read = &heard.answer()["result"]["structuredContent"];
    let got = (&read["bytes_read"], &read["done"], &read["timed_out"]);
    assert_eq!(got, (&json!(0), &json!(false), &json!(true)));
    for _ in 1..limits::MCP_STREAMS_PER_PRINCIPAL_MAX {
        assert_eq!(mcp.tool("stream_open", open.clone())["isError"], Value::Null);
    }
    let refused = mcp.tool("stream_open", open.clone());
    assert_eq!(refused["isError"], true, "{refused}");
    assert_eq!(mcp.tool("stream_close", json!({"stream_id": id}))["isError"], Value::Null);
    mcp.test_server.pass(limits::MCP_STREAM_IDLE + Duration::from_secs(100));
    let read = mcp.tool("stream_read", json!({"stream_id": id}));
    assert_eq!(read["isError"], true);
    assert!(mcp.states().is_empty(), "nobody reads, and all is forgotten");
}

#[test]
fn a_tool_waits_for_an_unread_stream_as_long_as_for_a_stalled_subscriber() {
    let mut mcp = roomy();
    let many = json!({"chunks": 3_000, "delay_ms": 0, "chunk_size": 100});
    let ids = open_all(&mut mcp, &many);
    let open = json!({"tool": "slow_data_processor", "arguments": slow(1, 0)});
    mcp.test_server.pass(limits::BLOCK_DEADLINE - Duration::from_secs(1));
    assert!(mcp.states().iter().all(|state| state == "running"), "they wait to be read");
    assert_eq!(mcp.tool("stream_open", open.clone())["isError"], true, "no place is left");
    mcp.test_server.pass(Duration::from_secs(2));
    assert!(mcp.states().iter().all(|state| state == "completed"), "they went on");
    assert_eq!(mcp.tool("stream_open", open)["isError"], Value::Null, "the places are back");
    // A client that comes back receives the reason with the first response. Kept chunks are still
    // there.
    let last = ids.last().unwrap();
    let mut text_bytes = 0;
    loop {
        let read = read(&mut mcp, last);
        assert!(read["error"].as_str().unwrap().contains("(stall)"), "{read}");
        assert_eq!(read["offset"], text_bytes);
        text_bytes += read["bytes_read"].as_u64().unwrap();
        if read["done"] == true {
            break;
        }
    }
    assert!((limits::MCP_RESULT_BYTES_MAX as u64..300_000).contains(&text_bytes), "{text_bytes}");
    assert_eq!(mcp.tool("stream_close", json!({"stream_id": last}))["isError"], Value::Null);
}

#[test]
fn a_stream_that_is_read_slowly_is_read_whole() {
    let mut mcp = roomy();
    let many = json!({"chunks": 3_000, "delay_ms": 0, "chunk_size": 100});
    let ids = open_all(&mut mcp, &many);
    let mut text_bytes = 0;
    loop {
        mcp.test_server.pass(limits::BLOCK_DEADLINE - Duration::from_secs(5));
        let read = read(&mut mcp, &ids[0]);
        assert_eq!(read["error"], Value::Null, "{read}");
        text_bytes += read["bytes_read"].as_u64().unwrap();
        if read["done"] == true {
            break;
        }
    }
    assert_eq!(text_bytes, 300_000);
}

#[test]
fn a_stream_that_nobody_reads_is_kept_and_takes_no_place() {
    let mut mcp = roomy();
    let ids = open_all(&mut mcp, &slow(2, 100));
    let open = json!({"tool": "slow_data_processor", "arguments": slow(10, 10_000)});
    mcp.test_server.pass(limits::BLOCK_DEADLINE + Duration::from_secs(1));
    let opened = mcp.tool("stream_open", open.clone());
    assert_eq!(opened["isError"], Value::Null, "{opened}");
    // One of them has made room. The others are complete.
    let short = read(&mut mcp, &ids[7]);
    assert_eq!((&short["bytes_read"], &short["done"]), (&json!(40), &json!(true)));
    // A read counts a running tool again, if a slot is free.
    let running = opened["structuredContent"]["stream_id"].as_str().unwrap().to_owned();
    mcp.test_server.pass(limits::BLOCK_DEADLINE + Duration::from_secs(1));
    let others = open_all(&mut mcp, &slow(2, 300_000));
    let refused = mcp.tool("stream_read", json!({"stream_id": running}));
    assert_eq!(refused["isError"], true, "{refused}");
    mcp.tool("stream_close", json!({"stream_id": others[0]}));
    let read = read(&mut mcp, &running);
    assert_eq!(read["bytes_read"], 80, "{read}");
}

#[test]
fn a_task_is_fetched_later_and_its_result_waited_for() {
    let mut mcp = Mcp::begun();
    let params = json!({
        "name": "slow_data_processor",
        "arguments": slow(3, 1_000),
        "task": {"ttl": 60_000},
    });
    let created = mcp.ask("tools/call", params);
    let task = created.answer()["result"]["task"].clone();
    assert_eq!(task["status"], "working");
    let id = json!({"taskId": task["taskId"]});
    let message = mcp.request("tasks/result", id.clone());
    let waits = mcp.post(&message);
    assert_eq!(mcp.test_server.hear(waits), "");
    mcp.test_server.pass(Duration::from_secs(4));
    let heard = ReceivedMessages::read(&mcp.test_server.hear(waits));
    let text = heard.answer()["result"]["content"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), 60);
    assert_eq!(mcp.ask("tasks/get", id.clone()).answer()["result"]["status"], "completed");
    let late = mcp.ask("tasks/cancel", id.clone());
    assert_eq!(late.answer()["error"]["code"], -32602);
    mcp.test_server.pass(Duration::from_secs(61));
    assert_eq!(mcp.ask("tasks/get", id).answer()["error"]["code"], -32602);
    let params = json!({
        "name": "slow_data_processor",
        "arguments": slow(3, 60_000),
        "task": {},
    });
    let created = mcp.ask("tools/call", params);
    let id = json!({"taskId": created.answer()["result"]["task"]["taskId"]});
    assert_eq!(mcp.ask("tasks/cancel", id.clone()).answer()["result"]["status"], "cancelled");
    mcp.test_server.pass(MOMENT);
    assert_eq!(mcp.ask("tasks/get", id).answer()["result"]["status"], "cancelled");
    assert_eq!(mcp.states().last().unwrap(), "cancelled");
}
