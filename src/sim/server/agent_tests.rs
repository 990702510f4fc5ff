//! Tests of runs of agents on a simulated server, with a model that follows a script.

use std::time::Duration;

use serde_json::{Value, json};

use super::agent_run::run_agent_seed;
use super::scripted::SimModel;
use super::test_server::{SHORT, TestServer, get};
use crate::agent::script::Script;
use crate::reactor::SocketLimits;
use crate::server::{AgentSettings, GuestConfig, ToolChoice};
use crate::shard::ShardConfig;

const MS: Duration = Duration::from_millis(1);

/// A server with a model that follows this script.
fn test_server(script: &str) -> TestServer {
    server_with(script, ToolChoice::None)
}

fn server_with(script: &str, tools: ToolChoice) -> TestServer {
    let agents = AgentSettings { models: vec![SimModel::settings("chat")], tools };
    let sockets = Some(SocketLimits { connections_max: 32, ..SocketLimits::default() });
    let mut test_server = TestServer::with(ShardConfig {
        sockets,
        guests: GuestConfig { agents, ..Default::default() },
        ..ShardConfig::default()
    });
    let script = Script::from_toml(script).expect("it is a script");
    test_server.model = Some(SimModel::new(&test_server.world, script));
    test_server
}

/// A request for a run.
fn post(body: &Value, query: &str) -> String {
    let (body, accept) = (body.to_string(), "text/event-stream");
    format!(
        "POST /v1/agent/stream{query} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The events in the received text: their names and their data.
fn events(heard: &str) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    let mut name = "";
    for line in heard.lines() {
        if let Some(text) = line.strip_prefix("event: ") {
            name = text;
        } else if let Some(data) = line.strip_prefix("data: ") {
            events.push((name.to_owned(), serde_json::from_str(data).expect(data)));
        }
    }
    events
}

/// The text of the model, put together.
fn text_of(events: &[(String, Value)]) -> String {
    let deltas = events.iter().filter(|(name, _)| name == "TextDelta");
    deltas.map(|(_, part)| part["delta"].as_str().unwrap()).collect()
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}

const HELLO: &str = r#"
pace = "5ms"
[[turns]]
events = [{ text = "Hello, it is a fine day." }]
"#;

#[test]
fn a_run_is_streamed_part_by_part_while_the_model_speaks() {
    let mut test_server = test_server(HELLO);
    let client = test_server.visit(&post(&json!({"task": "Greet."}), ""));
    test_server.pass(12 * MS);
    let early = events(&test_server.hear(client));
    assert_eq!(names(&early)[..3], ["started", "ExecutionStarted", "StepStarted"]);
    assert!(text_of(&early).starts_with("Hello"), "{early:?}");
    assert!(text_of(&early).len() < 20, "it is told while it is said: {early:?}");
    test_server.pass(Duration::from_secs(1));
    let late = events(&test_server.hear(client));
    let all: Vec<_> = early.into_iter().chain(late).collect();
    assert_eq!(text_of(&all), "Hello, it is a fine day.");
    let last = &names(&all)[all.len() - 3..];
    assert_eq!(last, ["StepCompleted", "ExecutionCompleted", "end"]);
    let parts = all.iter().filter(|(_, part)| part["type"].is_string());
    for (at, (name, part)) in parts.enumerate() {
        assert_eq!(
            (part["type"].as_str(), part["seq"].as_u64()),
            (Some(&**name), Some(at as u64 + 1))
        );
        assert_eq!(part["agent_id"], all[0].1["execution"]);
    }
}

/// A script with one call of the simulated server's tool, and then a text.
fn calling(arguments: &Value) -> String {
    let arguments = arguments.to_string().replace(':', "=");
    format!(
        "pace = \"1ms\"\n[[turns]]\nevents = [{{ call = \"script\", arguments = {arguments} }}]\n\
         [[turns]]\nevents = [{{ text = \"It is done.\" }}]\n"
    )
}

#[test]
fn a_tool_is_an_execution_of_its_own_whose_output_the_run_passes_on() {
    let mut test_server = test_server(&calling(&SHORT.arguments()));
    let client = test_server.visit(&post(&json!({"task": "Go.", "tools": ["script"]}), ""));
    test_server.pass(Duration::from_secs(1));
    let all = events(&test_server.hear(client));
    let of = |name: &str| all.iter().filter(|(n, _)| n == name).map(|(_, part)| part).collect();
    let outputs: Vec<&Value> = of("ToolOutputChunk");
    assert_eq!(outputs.len() as u64, SHORT.chunk_count, "{all:?}");
    let id = outputs[0]["execution"].as_str().expect("it has a name");
    let completed: Vec<&Value> = of("ToolCallCompleted");
    assert_eq!(completed[0]["execution"]["execution"], id);
    assert_eq!(completed[0]["execution"]["arguments"], SHORT.arguments());
    let steps: Vec<&Value> = of("StepCompleted");
    assert_eq!(steps.len(), 2);
    assert_eq!(text_of(&all), "It is done.");
    let tool = test_server.get(&format!("/v1/executions/{id}"));
    assert!(tool.contains("\"state\":\"completed\"") && tool.contains("script"), "{tool}");
}

#[test]
fn arguments_that_do_not_fit_the_schema_reach_the_model_and_no_tool() {
    let mut test_server = test_server(&calling(&json!({"seed": 1})));
    let client = test_server.visit(&post(&json!({"task": "Go.", "tools": ["script"]}), ""));
    test_server.pass(Duration::from_secs(1));
    let all = events(&test_server.hear(client));
    let failed = all.iter().find(|(name, _)| name == "ToolCallFailed").expect("it is refused");
    assert!(failed.1.to_string().contains("is missing"), "{failed:?}");
    assert_eq!(text_of(&all), "It is done.");
    assert_eq!(all.last().unwrap().1["state"], "completed");
}

const LONG: &str = r#"
pace = "10ms"
[[turns]]
events = [{ text = "word ", repeat = 5000 }]
"#;

fn delete(id: &str) -> String {
    format!("DELETE /v1/executions/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

fn name_of(events: &[(String, Value)]) -> String {
    events[0].1["execution"].as_str().expect("it has started").to_owned()
}

#[test]
fn a_cancelled_run_hangs_up_at_once_and_closes_everything_that_is_open() {
    let mut test_server = test_server(LONG);
    let client = test_server.visit(&post(&json!({"task": "Talk."}), ""));
    test_server.pass(50 * MS);
    let early = events(&test_server.hear(client));
    assert_eq!(test_server.model.as_ref().unwrap().open_count(), 1);
    let canceller = test_server.visit(&delete(&name_of(&early)));
    assert!(test_server.hear(canceller).starts_with("HTTP/1.1 202"));
    assert_eq!(test_server.model.as_ref().unwrap().open_count(), 0);
    let late = events(&test_server.hear(client));
    let all = names(&late);
    let ends = &all[all.len() - 3..];
    assert_eq!(ends, ["StepCompleted", "ExecutionCancelled", "end"]);
    assert_eq!(late[late.len() - 2].1["reason"], "cancelled");
    assert_eq!(late.last().unwrap().1["state"], "cancelled");
}

#[test]
fn a_cancelled_run_stops_its_tools() {
    let slow = "[[turns]]\nevents = [{ call = \"script\", arguments = { seed = 1, chunks = 200, \
                chunk_bytes = 4, fails = 0 } }]\n";
    let mut test_server = test_server(slow);
    let client = test_server.visit(&post(&json!({"task": "Go.", "tools": ["script"]}), ""));
    test_server.pass(5 * MS);
    let early = events(&test_server.hear(client));
    let output = early.iter().find(|(name, _)| name == "ToolOutputChunk").expect("it runs");
    let tool = output.1["execution"].as_str().unwrap().to_owned();
    let canceller = test_server.visit(&delete(&name_of(&early)));
    assert!(test_server.hear(canceller).starts_with("HTTP/1.1 202"));
    let heard = test_server.get(&format!("/v1/executions/{tool}"));
    assert!(heard.contains("\"state\":\"cancelled\""), "{heard}");
    let late = events(&test_server.hear(client));
    assert!(names(&late).contains(&"ToolCallCancelled"), "{late:?}");
}

#[test]
fn whoever_follows_a_run_later_is_told_the_same_from_any_part_on() {
    let mut test_server = test_server(HELLO);
    let client = test_server.visit(&post(&json!({"task": "Greet."}), ""));
    test_server.pass(Duration::from_secs(1));
    let heard = test_server.hear(client);
    let first = events(&heard);
    let id = name_of(&first);
    let again = test_server.visit(&get(&format!("/v1/executions/{id}/events")));
    let second = events(&test_server.hear(again));
    let parts = |all: &[(String, Value)]| -> Vec<Value> {
        let parts = all.iter().filter(|(_, part)| part["type"].is_string());
        parts.map(|(_, part)| part.clone()).collect()
    };
    assert_eq!(parts(&first), parts(&second));
    let cursor = heard.lines().filter_map(|line| line.strip_prefix("id: ")).nth(4).unwrap();
    let request = format!(
        "GET /v1/executions/{id}/events HTTP/1.1\r\nHost: localhost\r\n\
         Last-Event-ID: {cursor}\r\n\r\n"
    );
    let resumed = test_server.visit(&request);
    assert_eq!(parts(&events(&test_server.hear(resumed))), parts(&first)[4..]);
    let output = test_server.get(&format!("/v1/executions/{id}/output"));
    let lines = output.lines().filter(|line| line.starts_with("{\"type\":"));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, parts(&first));
    let lines = test_server.visit(&get(&format!("/v1/executions/{id}/events?format=ndjson")));
    let heard = test_server.hear(lines);
    let lines = heard.lines().filter(|line| line.starts_with("{\"type\":"));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, parts(&first));
}

#[test]
fn a_block_reader_that_takes_nothing_holds_the_model_back() {
    let script = "[[turns]]\nevents = [{ text = \"0123456789 \", repeat = 40000 }]\n";
    let mut test_server = test_server(script);
    let client = test_server.visit(&post(&json!({"task": "Talk."}), "?policy=block"));
    test_server.pass(Duration::from_secs(10));
    let read = |test_server: &TestServer| test_server.shards[0].counters().model_bytes_received;
    let before = read(&test_server);
    test_server.pass(Duration::from_secs(5));
    assert_eq!(read(&test_server), before, "nothing is read that nobody has room for");
    assert!(before < 1 << 20, "{before} bytes");
    let mut heard = Vec::new();
    for _ in 0..20_000 {
        heard.push(test_server.hear(client));
        test_server.turn();
        if heard.last().unwrap().contains("event: end") {
            break;
        }
    }
    let all = events(&heard.concat());
    assert_eq!(text_of(&all).len(), 40_000 * 11);
}

/// The duration of each of `run_count` runs that begin at once, from its first part to its last, in
/// microseconds. Beside them runs one whose model never answers.
fn durations(run_count: u32) -> Vec<u64> {
    let script = r#"
    pace = "5ms"
    [[turns]]
    when = { user = "nothing" }
    events = [{ hang = true }]
    [[turns]]
    events = [{ text = "word ", repeat = 10 }]
    "#;
    let agents = AgentSettings { models: vec![SimModel::settings("chat")], ..<_>::default() };
    let connections_max = 2 * (run_count + 8);
    let sockets = Some(SocketLimits { connections_max, ..SocketLimits::default() });
    let config = ShardConfig {
        sockets,
        guests: GuestConfig { agents, ..Default::default() },
        ..ShardConfig::default()
    };
    let ring_bytes_max = u64::from(run_count + 8) << 17;
    let mut test_server = TestServer::with_executions(run_count + 8, 1, ring_bytes_max, config);
    let script = Script::from_toml(script).expect("it is a script");
    test_server.model = Some(SimModel::new(&test_server.world, script));
    let stuck = test_server.visit(&post(&json!({"task": "nothing"}), ""));
    let request = post(&json!({"task": "Talk."}), "");
    let clients: Vec<_> = (0..run_count)
        .map(|at| {
            let client = test_server.world.connect(&test_server.address).expect("there is room");
            assert_eq!(
                test_server.world.client_send(client, request.as_bytes()),
                Ok(request.len())
            );
            if at % 64 == 63 {
                test_server.turn(); // No more than 64 wait to be accepted. No time passes.
            }
            client
        })
        .collect();
    test_server.pass(Duration::from_secs(2));
    let told = events(&test_server.hear(stuck));
    assert!(text_of(&told).is_empty() && told.last().is_some_and(|(name, _)| name != "end"));
    let took = |client| {
        let all = events(&test_server.hear(client));
        assert_eq!(text_of(&all).len(), 50, "{all:?}");
        let parts = all.iter().filter(|(_, part)| part["type"].is_string());
        let times: Vec<u64> =
            parts.map(|(_, part)| part["timestamp_us"].as_u64().unwrap()).collect();
        times[times.len() - 1] - times[0]
    };
    clients.into_iter().map(took).collect()
}

#[test]
fn a_thousand_runs_at_once_take_as_long_as_one_and_wait_for_nobody() {
    let alone = durations(1)[0];
    assert!(alone >= 9 * 5_000, "its model has to say ten words: {alone}");
    let all = durations(1_000);
    assert_eq!(all.len(), 1_000);
    // The simulated clock moves by nanoseconds whenever it is read.
    let is_same = |took: &u64| took.abs_diff(alone) <= 10;
    assert!(all.iter().all(is_same), "{alone} µs alone: {all:?}");
}

#[test]
fn a_run_goes_on_without_who_has_started_it_unless_he_wants_it_cancelled() {
    for cancels in [false, true] {
        let mut test_server = test_server(LONG);
        let body = json!({"task": "Talk.", "cancel_on_disconnect": cancels});
        let client = test_server.visit(&post(&body, "?policy=drop"));
        test_server.pass(20 * MS);
        let id = name_of(&events(&test_server.hear(client)));
        test_server.world.client_close(client);
        test_server.pass(20 * MS);
        let state = if cancels { "cancelled" } else { "running" };
        let heard = test_server.get(&format!("/v1/executions/{id}"));
        assert!(heard.contains(&format!("\"state\":\"{state}\"")), "{heard}");
    }
}

#[test]
fn agents_start_agents_only_as_deep_as_they_may() {
    let script = r#"
    [[turns]]
    when = { user = "outer", tool_results = 0 }
    events = [{ call = "agent", arguments = { task = "inner", tools = ["agent"], depth = 1 } }]
    [[turns]]
    when = { user = "outer" }
    events = [{ text = "It said: ${result}" }]
    [[turns]]
    when = { user = "inner" }
    events = [{ text = "Hello from beneath." }]
    "#;
    let mut test_server = test_server(script);
    let refused = test_server.visit(&post(&json!({"task": "outer", "tools": ["agent"]}), ""));
    let heard = test_server.hear(refused);
    assert!(heard.starts_with("HTTP/1.1 400") && heard.contains("depth"), "{heard}");
    let body = json!({"task": "outer", "tools": ["agent"], "depth": 1});
    let client = test_server.visit(&post(&body, ""));
    test_server.pass(Duration::from_secs(1));
    let all = events(&test_server.hear(client));
    // The requested depth is cut to the permitted one.
    let failed = all.iter().any(|(name, _)| name == "ToolCallFailed");
    assert!(failed, "{all:?}");
    let body = json!({"task": "outer", "tools": ["agent"], "depth": 2});
    let client = test_server.visit(&post(&body, ""));
    test_server.pass(Duration::from_secs(1));
    let all = events(&test_server.hear(client));
    assert_eq!(text_of(&all), "It said: Hello from beneath.");
}

fn called(id: &str) -> Value {
    let function = json!({"name": "script", "arguments": "{}"});
    json!({"role": "assistant", "tool_calls": [{"id": id, "function": function}]})
}

fn result(id: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": "It came to five."})
}

#[test]
fn a_conversation_goes_on_behind_the_results_of_its_tools() {
    let script = "[[turns]]\nwhen = { tool_results = 2, result = \"five\" }\n\
                  events = [{ text = \"Five.\" }]\n";
    let mut test_server = test_server(script);
    let call = |id: &str| called(id)["tool_calls"][0].clone();
    let both = json!({"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]});
    let before = json!({"role": "user", "content": "Count."});
    let client = test_server
        .visit(&post(&json!({"messages": [before, both, result("b"), result("a")]}), ""));
    test_server.pass(Duration::from_secs(1));
    assert_eq!(text_of(&events(&test_server.hear(client))), "Five.");
}

#[test]
fn without_a_model_there_is_no_agent_and_that_is_said() {
    let mut test_server = TestServer::new();
    let client = test_server.visit(&post(&json!({"task": "Go."}), ""));
    let heard = test_server.hear(client);
    assert!(heard.starts_with("HTTP/1.1 404") && heard.contains("no_model"), "{heard}");
    let mut test_server = self::test_server(HELLO);
    for (body, field) in [
        (json!({}), "task"),
        (json!({"task": "x", "tools": ["nothing"]}), "tools"),
        (json!({"task": "x", "model": "nobody"}), "model"),
        (json!({"task": "x", "max_steps": 0}), "max_steps"),
        (json!({"task": "x", "temperature": 3}), "temperature"),
        (json!({"task": "x", "taks": 1}), "taks"),
        (json!({"messages": [{"role": "assistant", "content": "x"}]}), "messages"),
        (json!({"messages": [{"role": "user"}]}), "must have a text"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "tool_call_id"),
        (json!({"messages": [{"role": "tool", "tool_call_id": "a"}]}), "without a call before it"),
        (json!({"messages": [called("a"), {"role": "user", "content": "x"}]}), "no result"),
        (json!({"messages": [called("a"), result("b")]}), "without a call before it"),
        (json!({"messages": [called("a"), result("a"), result("a")]}), "without a call before it"),
        (
            json!({"messages": [{"role": "user", "content": "x", "tool_calls": [{
                "id": "a", "function": {"name": "f", "arguments": ""},
            }]}]}),
            "not the assistant's",
        ),
    ] {
        let client = test_server.visit(&post(&body, ""));
        let heard = test_server.hear(client);
        assert!(heard.starts_with("HTTP/1.1 400") && heard.contains(field), "{body}: {heard}");
    }
}

#[test]
fn llm_generate_streams_the_text_alone() {
    let mut test_server = test_server(HELLO);
    let body = json!({"tool": "llm_generate", "arguments": {"prompt": "Greet."}}).to_string();
    let client = test_server.visit(&format!(
        "POST /v1/executions?format=sse HTTP/1.1\r\nHost: localhost\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    test_server.pass(Duration::from_secs(1));
    let all = events(&test_server.hear(client));
    let chunks = all.iter().filter(|(name, _)| name == "chunk");
    let text: String = chunks.map(|(_, chunk)| chunk["data"].as_str().unwrap()).collect();
    assert_eq!(text, "Hello, it is a fine day.");
    let progress = all.iter().find(|(name, _)| name == "progress").expect("its usage is told");
    assert!(progress.1["context"]["usage"]["output_tokens"].is_u64(), "{progress:?}");
    assert_eq!(all.last().unwrap().1["state"], "completed");
}

/// All of it at once, with faults; `tools/sim --agents` runs many more.
#[test]
fn a_few_seeds_of_runs_that_are_cut_and_cancelled_anywhere_come_to_their_ends() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("SIM_FIRST_SEED").unwrap_or(1);
    for seed in first..first + number("SIM_SEEDS").unwrap_or(2) {
        let summary = run_agent_seed(seed, false).unwrap_or_else(|text| panic!("{text}"));
        assert!(summary.happened.iter().any(|(_, count)| *count > 0), "SEED={seed}");
    }
}

#[test]
fn over_mcp_the_answer_of_an_agent_is_what_its_model_has_said_last() {
    let mut test_server = test_server(&calling(&SHORT.arguments()));
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {
            "name": "agent",
            "arguments": {"task": "Go.", "tools": ["script"]},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    });
    let body = body.to_string();
    let client = test_server.visit(&format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: tools/call\r\nMcp-Name: agent\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    test_server.pass(Duration::from_secs(1));
    let heard = test_server.hear(client);
    assert!(heard.contains("\"text\":\"It is done.\""), "{heard}");
    assert!(heard.contains("\"isError\":false") || !heard.contains("isError"), "{heard}");
}
