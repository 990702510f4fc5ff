//! Code of tools, embedders and clients that panics on a shard's thread. It costs one start, one
//! execution, one subscription, one request or one call, and affects nothing else.
#![cfg(feature = "server")]

#[path = "served/asked.rs"]
mod asked;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use asked::ask;
use serde_json::{Value, json};
use streamdoor::client::{Client, ExecuteOptions as Wanted, FollowOptions, StreamEvent};
use streamdoor::engine::{Start, SubscribeSpec};
use streamdoor::mcp::catalog::{Catalog, Prompt, Resource};
use streamdoor::server::{Drained, Server, ServerConfig, ServerHandle, ServerShard};
use streamdoor::shard::{CallError, Delivery, ExecuteOptions, ShardConfig};
use streamdoor::stream::{EndState, Outcome};
use streamdoor::tool::{Context, Output, Step, Tool, ToolSpec, Work};

/// A value that panics when it is dropped. The payload of that panic may do the same.
#[derive(Debug)]
struct Bomb(u32);

impl Drop for Bomb {
    fn drop(&mut self) {
        if let Some(rest) = self.0.checked_sub(1) {
            resume_unwind(Box::new(Bomb(rest)));
        }
    }
}

/// Panics with a [`Bomb`], without a message on stderr.
fn explode<T>() -> T {
    resume_unwind(Box::new(Bomb(2)))
}

/// A tool that panics in its step, or only when it is dropped.
struct Steps {
    explodes: bool,
    _bomb: Bomb,
}

impl Tool for Steps {
    fn step(&mut self, _: &mut Context<'_>) -> Step {
        if self.explodes { explode() } else { Step::Done }
    }
}

fn set_up(shard: &mut ServerShard) {
    let tools = shard.tools_mut();
    let spec = |name: &str| ToolSpec::new(name, "For a test.");
    tools.insert(spec("prepare"), |_, _| explode()).unwrap();
    tools
        .insert(spec("unwrap"), |arguments, need| {
            let name = arguments["name"].as_str().unwrap().to_owned();
            Ok((Work::Thread(Box::new(move |out| Ok(out.send(name.as_bytes())?))), need))
        })
        .unwrap();
    tools.insert_asking(spec("asks"), |_, _, _| explode(), |_, _, _| Ok(())).unwrap();
    for (name, explodes) in [("step", true), ("drop", false)] {
        let prepare = move |_: &Value, need| {
            let steps = Steps { explodes, _bomb: Bomb(u32::from(!explodes)) };
            Ok((Work::Steps(Box::new(steps)), need))
        };
        tools.insert(spec(name), prepare).unwrap();
    }
    tools.insert_closure(spec("thread"), |_, _| explode()).unwrap();
    tools
        .insert(spec("unused"), |_, need| {
            let bomb = Bomb(2);
            let work = move |_: &mut Output| {
                drop(bomb);
                Ok(())
            };
            Ok((Work::Thread(Box::new(work)), need))
        })
        .unwrap();
    tools
        .insert_closure(spec("stopped"), |_, out| {
            let _hook = out.on_stop(explode);
            while !out.is_stopped() {
                out.send(b"more")?;
            }
            Ok(())
        })
        .unwrap();
    shard.set_catalog(Catalog {
        prompts: vec![Prompt {
            name: "prompt".to_owned(),
            title: None,
            description: String::new(),
            arguments: Vec::new(),
            schema: None,
            render: Box::new(|_, _, _| explode()),
        }],
        resources: vec![Resource {
            uri: "test://resource".to_owned(),
            name: "resource".to_owned(),
            title: None,
            description: None,
            mime_type: None,
            read: Box::new(explode),
        }],
        templates: Vec::new(),
    });
}

/// Sends an MCP request, and returns the reply.
fn ask_mcp(address: &str, method: &str, name: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}).to_string();
    let headers = format!(
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: {method}\r\nMcp-Name: {name}\r\n"
    );
    let (_, answer) = ask(address, "POST", "/mcp", &headers, &body);
    let json = &answer[answer.find('{').expect("an answer")..=answer.rfind('}').unwrap()];
    serde_json::from_str(json).expect(json)
}

/// Runs tools until `is_over` is set, and asserts that no chunk is missing.
fn load(address: &str, is_over: &AtomicBool, run_count: &AtomicU64) {
    let client = Client::new(&format!("http://{address}")).unwrap();
    while !is_over.load(Ordering::SeqCst) {
        let arguments = json!({"chunks": 20, "delay_ms": 1});
        let (wanted, follow) = (Wanted::default(), FollowOptions::default());
        let called = client.call("slow_data_processor", &arguments, &wanted, follow).unwrap();
        let mut seqs = Vec::new();
        let mut end = None;
        for event in called {
            match event.unwrap() {
                StreamEvent::Chunk(chunk) => seqs.push(chunk.seq),
                StreamEvent::End(ended) => end = Some(ended.end.state),
                _ => {}
            }
        }
        assert_eq!(seqs, (1..=20).collect::<Vec<u64>>());
        assert_eq!(end, Some(EndState::Ended(Outcome::Completed)));
        run_count.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs a tool, waits for its result, and returns the end state.
fn outcome(address: &str, tool: &str) -> String {
    let body = json!({"tool": tool, "arguments": {}}).to_string();
    let (status, answer) = ask(address, "POST", "/v1/executions", "", &body);
    assert_eq!(status, 201, "{answer}");
    let created: Value = serde_json::from_str(&answer).unwrap();
    let path =
        format!("/v1/executions/{}/result?wait_ms=20000", created["execution"].as_str().unwrap());
    let (status, answer) = ask(address, "GET", &path, "", "");
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str::<Value>(&answer).unwrap()["state"].as_str().unwrap().to_owned()
}

/// Triggers every panic that a client can cause.
fn panic_over_the_network(address: &str) {
    for (tool, text) in [("prepare", "no message"), ("asks", "no message"), ("unwrap", "unwrap")] {
        let body = json!({"tool": tool, "arguments": {}}).to_string();
        let (status, answer) = ask(address, "POST", "/v1/executions", "", &body);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((status, &answer["error"]["code"]), (500, &json!("tool_panicked")));
        assert!(answer["error"]["message"].as_str().unwrap().contains(text), "{answer}");
        let params = json!({"name": tool, "arguments": {}});
        let answer = ask_mcp(address, "tools/call", tool, params);
        assert_eq!(answer["error"]["code"], -32_603, "{answer}");
    }
    assert_eq!(outcome(address, "step"), "failed");
    assert_eq!(outcome(address, "thread"), "failed");
    assert_eq!(outcome(address, "drop"), "completed");
    let answer = ask_mcp(address, "prompts/get", "prompt", json!({"name": "prompt"}));
    assert_eq!(answer["error"]["code"], -32_603, "{answer}");
    let params = json!({"uri": "test://resource"});
    let answer = ask_mcp(address, "resources/read", "test://resource", params);
    assert_eq!(answer["error"]["code"], -32_603, "{answer}");
}

/// Triggers every panic that an embedder can cause through a handle.
fn panic_through(handle: &ServerHandle) {
    assert_eq!(handle.call(|_| explode::<()>()), Err(CallError::Panicked));
    let bomb = Bomb(2);
    assert_eq!(handle.call(move |_| drop(bomb)), Err(CallError::Panicked));
    handle.call(|shard| shard.observe(|_, _| explode())).unwrap();
    let following = |closure: Box<dyn FnMut(&Delivery<'_>) + Send>| {
        let arguments = json!({"chunks": 3, "delay_ms": 1});
        handle.call(move |shard| {
            let id = shard.execute("slow_data_processor", &arguments, ExecuteOptions::default());
            let id = id.unwrap();
            shard.subscribe(id, SubscribeSpec::default(), closure).unwrap();
            id
        })
    };
    let exploding = following(Box::new(|_| explode())).unwrap();
    let at_the_end = following(Box::new(|delivery| {
        if let Delivery::End(_) = delivery {
            explode()
        }
    }));
    let bomb = Bomb(2);
    let when_dropped = following(Box::new(move |_| {
        let whole: &Bomb = &bomb;
        assert!(whole.0 > 0);
    }));
    let when_dropped = when_dropped.unwrap();
    for id in [exploding, at_the_end.unwrap(), when_dropped] {
        let mut subscriber = handle.subscribe(id, SubscribeSpec::default()).unwrap();
        let end = loop {
            if let Delivery::End(ended) = subscriber.next() {
                break ended.end.state;
            }
        };
        assert_eq!(end, EndState::Ended(Outcome::Completed));
    }
    let deadline = std::time::Duration::from_secs(60);
    let start = Start::AfterSubscribers { count: 1, deadline };
    let options = ExecuteOptions { start, ..ExecuteOptions::default() };
    let unused = handle.execute("unused", json!({}), options).unwrap();
    handle.cancel(unused).unwrap();
    let stopped = handle.execute("stopped", json!({}), ExecuteOptions::default()).unwrap();
    handle.cancel(stopped).unwrap();
    assert!(handle.memory().is_ok());
}

const ROUNDS: u64 = 5;

#[test]
fn callbacks_that_panic_cost_nobody_else_anything() {
    let shards = vec![ShardConfig::default(), ShardConfig::default()];
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let config = ServerConfig { shards, listen, connections_max: 200 };
    let server = Server::start(config, Arc::new(set_up)).unwrap();
    let address = server.addresses()[0].to_string();
    let (is_over, run_count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| load(&address, &is_over, &run_count));
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..ROUNDS {
                panic_over_the_network(&address);
                server.handles().for_each(panic_through);
            }
        }));
        while result.is_ok() && run_count.load(Ordering::SeqCst) < 20 {
            std::thread::yield_now();
        }
        is_over.store(true, Ordering::SeqCst);
        result.unwrap();
    });
    assert!(!server.ends().has_death());
    assert_eq!(ask(&address, "GET", "/readyz", "", "").0, 200);
    let client = Client::new(&format!("http://{address}")).unwrap();
    let metrics = client.metrics().unwrap();
    let sum = |name: &str| metrics.sum(name).unwrap() as u64;
    assert_eq!(sum("shard_up"), 2);
    // Three tools panic at the start, each over HTTP and over MCP. Two more panic while they run.
    assert_eq!(sum("tools_panicked_total"), ROUNDS * (3 * 2 + 2));
    assert_eq!(sum("executions_failed_total"), ROUNDS * 2);
    // Each shard counts two calls, an observer and two subscribers. A prompt and a resource add
    // two.
    assert_eq!(sum("callbacks_panicked_total"), ROUNDS * (2 * 5 + 2));
    assert_eq!(sum("subscribers_detached_lost_total"), ROUNDS * 2);
    assert_eq!(server.drain(std::time::Duration::from_secs(20)), Drained::Whole);
}

#[test]
fn a_set_up_that_panics_is_an_error_with_its_words() {
    let shards = vec![ShardConfig::default(), ShardConfig::default()];
    let config = ServerConfig { shards, listen: Vec::new(), connections_max: 1 };
    let set_up = |_: &mut ServerShard| resume_unwind(Box::new("no tools today"));
    let error = Server::start(config, Arc::new(set_up)).unwrap_err();
    assert!(error.to_string().contains("no tools today"), "{error}");
}
