//! Tests of front ends on a simulated server: streams in their formats, from the start and from
//! anywhere, and threads.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::front_run::play;
use super::script::Script as Work;
use super::scripted::SimModel;
use super::test_server::{SHORT, TestServer, get};
use crate::agent::script::Script;
use crate::endpoint::{Access, Tokens};
use crate::reactor::SocketLimits;
use crate::server::{AgentSettings, GuestConfig, ServerShardConfig, ToolChoice};
use crate::shard::ShardConfig;
use crate::sim::network::SimClient;

const ANN: &str = "ann-0123456789abcdef0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef0123456789abcdef";
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn servers(shard_count: u8, script: &str) -> TestServer {
    servers_with(shard_count, script, ShardConfig::default())
}

fn servers_with(shard_count: u8, script: &str, config: ServerShardConfig) -> TestServer {
    let tools = ToolChoice::These(vec!["script".to_owned()]);
    let agents = AgentSettings { models: vec![SimModel::settings("chat")], tools };
    let sockets = Some(SocketLimits { connections_max: 32, ..SocketLimits::default() });
    let config = ShardConfig { sockets, guests: GuestConfig { agents, ..config.guests }, ..config };
    let mut test_server = TestServer::with_rings(shard_count, 1 << 20, config);
    let script = Script::from_toml(script).expect("it is a script");
    test_server.model = Some(SimModel::new(&test_server.world, script));
    test_server
}

/// A script of a run that calls a tool, waits, and sends a text.
fn slowly() -> String {
    let arguments = SHORT.arguments().to_string().replace(':', "=");
    format!(
        "pace = \"10ms\"\n[[turns]]\nwhen = {{ user = \"Go.\", tool_results = 0 }}\nevents = [\n\
         {{ text = \"One two three four five six.\" }},\n\
         {{ call = \"script\", id = \"call_1\", arguments = {arguments} }}]\n\
         [[turns]]\nwhen = {{ user = \"Go.\", tool_results = 1 }}\n\
         events = [{{ text = \"It is done.\" }}]\n\
         [[turns]]\nwhen = {{ user = \"On.\" }}\nevents = [{{ text = \"And on.\" }}]\n\
         [[turns]]\nwhen = {{ user = \"Ever.\" }}\n\
         events = [{{ text = \"word \", repeat = 100000 }}]\n"
    )
}

fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A request of `useChat`.
fn chat(id: &str, text: &str) -> String {
    let parts = json!([{"type": "text", "text": text}]);
    let messages = json!([{"id": "1", "role": "user", "parts": parts}]);
    let body = json!({"id": id, "trigger": "submit-message", "messages": messages});
    post("/v1/agent/stream", &body)
}

/// A request of LangGraph's clients.
fn start(thread: &str, text: &str) -> String {
    let input = json!({"messages": [{"role": "user", "content": text}]});
    let params = json!({"assistant_id": "agent", "input": input});
    let command = json!({"id": 1, "method": "run.start", "params": params});
    post(&format!("/langgraph/threads/{thread}/commands"), &command)
}

fn follow(thread: &str, since: Option<u64>) -> String {
    let mut body = json!({"channels": ["messages", "tools", "lifecycle", "custom"]});
    if let Some(since) = since {
        body["since"] = since.into();
    }
    post(&format!("/langgraph/threads/{thread}/stream/events"), &body)
}

/// The events in the received text, without the `[DONE]` that ends them.
fn events(heard: &str) -> Vec<Value> {
    let data = heard.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn text_of(events: &[Value]) -> String {
    let deltas = events.iter().filter(|event| event["type"] == "text-delta");
    deltas.map(|event| event["delta"].as_str().unwrap()).collect()
}

/// The texts of messages in events of LangGraph's.
fn words_of(events: &[Value]) -> String {
    let deltas = events.iter().map(|event| &event["params"]["data"]["delta"]["text"]);
    deltas.filter_map(Value::as_str).collect()
}

fn execution_of(events: &[Value]) -> String {
    let named = events.iter().find(|event| event["type"] == "data-execution");
    named.expect("it is said whom to stop")["data"]["execution"].as_str().unwrap().to_owned()
}

fn hear_events(test_server: &mut TestServer, client: SimClient) -> Vec<Value> {
    events(&test_server.hear(client))
}

#[test]
fn a_chat_is_told_in_its_words_to_its_end() {
    let mut test_server = servers(1, &slowly());
    let client = test_server.visit(&chat("c", "Go."));
    test_server.pass(30 * MS);
    let early = test_server.hear(client);
    assert!(early.contains("\r\nx-vercel-ai-ui-message-stream: v1\r\n"), "{early}");
    assert!(!early.contains("retry:") && !early.contains("\nid:"), "{early}");
    let early = events(&early);
    assert_eq!(types(&early)[..4], ["start", "data-execution", "start-step", "text-start"]);
    assert!(text_of(&early).starts_with("One"), "it is told while it is said");
    test_server.pass(SECOND);
    let late = test_server.hear(client);
    assert!(late.contains("data: [DONE]\n\n"), "{late}");
    let all: Vec<Value> = early.into_iter().chain(events(&late)).collect();
    assert_eq!(text_of(&all), "One two three four five six.It is done.");
    assert_eq!(types(&all).last(), Some(&"finish"));
    let whole = all.iter().find(|event| event["type"] == "tool-output-available");
    assert!(whole.is_some_and(|event| event["toolCallId"] == "call_1"), "{all:?}");
}

#[test]
fn a_stream_that_begins_in_the_middle_opens_first_what_is_open() {
    let mut test_server = servers(1, &slowly());
    let first = test_server.visit(&chat("c", "Go."));
    test_server.pass(30 * MS);
    let begun = hear_events(&mut test_server, first);
    let path = format!("/v1/executions/{}/events?format=ai-sdk", execution_of(&begun));
    let said = text_of(&begun);
    let live = test_server.visit(&get(&format!("{path}&from=live")));
    let opened = hear_events(&mut test_server, live);
    assert_eq!(
        types(&opened),
        ["start", "data-execution", "start-step", "text-start", "text-delta"],
        "at once, and not with the next chunk"
    );
    assert_eq!(text_of(&opened), said);
    let native = test_server.get(&format!("/v1/executions/{}", execution_of(&begun)));
    let newest = native.split("\"head_seq\":").nth(1).unwrap();
    let newest: u64 = newest[..newest.find([',', '}']).unwrap()].parse().unwrap();
    let there = test_server.visit(&get(&format!("{path}&from={newest}")));
    assert_eq!(text_of(&hear_events(&mut test_server, there)), said);
    let beyond = test_server.get(&format!("{path}&from={}", newest + 2));
    assert!(beyond.starts_with("HTTP/1.1 409") && beyond.contains("not_yet"), "{beyond}");
    test_server.pass(SECOND);
    for client in [live, there] {
        let rest = hear_events(&mut test_server, client);
        assert_eq!(format!("{said}{}", text_of(&rest)), "One two three four five six.It is done.");
        assert_eq!(types(&rest).last(), Some(&"finish"));
    }
}

#[test]
fn a_chat_finds_its_run_by_its_name_and_can_have_it_stopped() {
    let mut test_server = servers(2, &slowly());
    let rejoin =
        |test_server: &mut TestServer| test_server.visit(&get("/v1/agent/stream/c/stream"));
    let nothing = rejoin(&mut test_server);
    assert!(test_server.hear(nothing).starts_with("HTTP/1.1 204"));
    let first = test_server.visit(&chat("c", "Ever."));
    test_server.pass(30 * MS);
    let begun = hear_events(&mut test_server, first);
    test_server.world.client_close(first);
    test_server.pass(20 * MS);
    // The shard that accepts the connection does not matter.
    for _ in 0..4 {
        let back = rejoin(&mut test_server);
        let again = hear_events(&mut test_server, back);
        assert_eq!(execution_of(&again), execution_of(&begun));
        assert!(text_of(&again).len() > text_of(&begun).len(), "the run went on");
        assert_eq!(types(&again)[0], "start");
    }
    let back = rejoin(&mut test_server);
    let stop = "DELETE /v1/agent/stream/c HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let stopping = test_server.visit(stop);
    assert!(test_server.hear(stopping).starts_with("HTTP/1.1 202"));
    test_server.pass(50 * MS);
    let told = test_server.hear(back);
    assert_eq!(types(&events(&told)).last(), Some(&"abort"));
    assert!(told.contains("data: [DONE]"), "{told}");
    let over = rejoin(&mut test_server);
    assert!(test_server.hear(over).starts_with("HTTP/1.1 204"));
    let again = test_server.visit(stop);
    assert!(test_server.hear(again).starts_with("HTTP/1.1 200"), "it had ended already");
    let unknown = test_server.visit(&stop.replace("/c ", "/d "));
    assert!(test_server.hear(unknown).starts_with("HTTP/1.1 404"));
}

#[test]
fn a_thread_is_there_for_its_owner_alone() {
    let tokens = Tokens::read(&format!("ann {ANN}\nbob {BOB}\n")).unwrap();
    let access = Access::default().with_tokens(tokens, [5; 32], SECOND);
    let config = ShardConfig {
        guests: GuestConfig { access: Arc::new(access), ..Default::default() },
        ..ShardConfig::default()
    };
    let mut test_server = servers_with(2, &slowly(), config);
    let by = |token: &str, request: &str| {
        let line = format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n");
        request.replacen("Host: localhost\r\n", &line, 1)
    };
    let first = test_server.visit(&by(ANN, &chat("c", "Ever.")));
    test_server.pass(30 * MS);
    let begun = hear_events(&mut test_server, first);
    assert!(text_of(&begun).starts_with("word"));
    let rejoin = get("/v1/agent/stream/c/stream");
    let stop = "DELETE /v1/agent/stream/c HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let state = get("/langgraph/threads/c/state");
    for (request, answer) in
        [(rejoin.as_str(), "HTTP/1.1 204"), (stop, "HTTP/1.1 404"), (&*state, "HTTP/1.1 200")]
    {
        let other = test_server.visit(&by(BOB, request));
        let heard = test_server.hear(other);
        assert!(heard.starts_with(answer) && !heard.contains("busy"), "{heard}");
        assert!(!heard.contains(&execution_of(&begun)), "{heard}");
    }
    // A thread of the same name belongs to the other user.
    let waiting = test_server.visit(&by(BOB, &follow("c", None)));
    assert_eq!(hear_events(&mut test_server, waiting), [] as [Value; 0]);
    let own = test_server.visit(&by(BOB, &start("c", "On.")));
    assert!(test_server.hear(own).contains("\"success\""));
    test_server.pass(SECOND);
    assert_eq!(words_of(&hear_events(&mut test_server, waiting)), "And on.");
    let back = test_server.visit(&by(ANN, &rejoin));
    assert_eq!(execution_of(&hear_events(&mut test_server, back)), execution_of(&begun));
}

#[test]
fn a_tool_is_told_to_a_front_end_as_a_message_with_one_call() {
    let mut test_server = servers(1, &slowly());
    for (format, call, end) in
        [("ai-sdk", "tool-input-start", "finish"), ("ag-ui", "TOOL_CALL_START", "RUN_FINISHED")]
    {
        let body = json!({"tool": "script", "arguments": SHORT.arguments()});
        let client = test_server.visit(&post(&format!("/v1/executions?format={format}"), &body));
        test_server.pass(SECOND);
        let told = hear_events(&mut test_server, client);
        assert!(types(&told).contains(&call), "{told:?}");
        let inputs = told.iter().filter(|event| event["input"] == SHORT.arguments());
        assert_eq!(inputs.count(), usize::from(format == "ai-sdk"), "{told:?}");
        assert_eq!(types(&told).last(), Some(&end), "{told:?}");
    }
}

#[test]
fn what_a_ring_has_lost_is_a_gap_in_every_format() {
    let mut test_server = servers(1, &slowly());
    let long = Work { chunk_count: 400, chunk_bytes_max: 1_000, ..SHORT };
    let execution = test_server.run(long, ",\"hold\":\"newest\"");
    test_server.pass(60 * SECOND);
    for (format, gap) in
        [("ai-sdk", "\"data-gap\""), ("ag-ui", "\"streamdoor.gap\""), ("langgraph", "\"gap\"")]
    {
        let heard = test_server.get(&format!("/v1/executions/{execution}/events?format={format}"));
        assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
        assert!(heard.contains(gap), "{format}: {heard}");
        assert!(heard.ends_with("0\r\n\r\n"), "it has its end");
    }
}

#[test]
fn who_reads_slowly_is_told_of_a_gap_in_the_middle_and_of_the_end() {
    let mut test_server = servers(1, &slowly());
    let long = Work { chunk_count: 1_000, chunk_bytes_max: 4_000, ..SHORT };
    for (format, gap) in
        [("ai-sdk", "\"data-gap\""), ("ag-ui", "\"streamdoor.gap\""), ("langgraph", "\"gap\"")]
    {
        let body = json!({"tool": "script", "arguments": long.arguments()});
        let query = format!("format={format}&policy=drop_oldest&max_chunks=2");
        let client = test_server.visit(&post(&format!("/v1/executions?{query}"), &body));
        test_server.pass(60 * SECOND); // It reads nothing meanwhile.
        let mut heard = String::new();
        for _ in 0..1_000 {
            heard += &test_server.hear(client);
            test_server.pass(MS);
            if heard.ends_with("0\r\n\r\n") {
                break;
            }
        }
        assert!(heard.ends_with("0\r\n\r\n"), "{format} has its end");
        let at = heard.find(gap).unwrap_or_else(|| panic!("{format}: {heard}"));
        let before = ["data-tool-output", "ACTIVITY_DELTA", "tool-output-delta"];
        assert!(before.iter().any(|name| heard[..at].contains(name)), "{format}: in the middle");
        test_server.world.client_close(client);
    }
}

#[test]
fn langgraph_comes_back_to_any_event_and_misses_none() {
    let mut test_server = servers(1, &slowly());
    let started = test_server.visit(&start("t", "Go."));
    assert!(test_server.hear(started).contains("\"type\":\"success\""));
    let whole = test_server.visit(&follow("t", None));
    test_server.pass(SECOND);
    let heard = test_server.hear(whole);
    let all = events(&heard);
    assert_eq!(words_of(&all), "One two three four five six.It is done.");
    assert!(!heard.contains("\r\n0\r\n"), "the stream stays open: {heard}");
    let execution = heard.split("id: ").nth(1).unwrap()[..26].to_owned();
    for (at, event) in all.iter().enumerate() {
        let seq = event["seq"].as_u64().unwrap();
        let rest = test_server.visit(&follow("t", Some(seq)));
        assert_eq!(hear_events(&mut test_server, rest), all[at + 1..], "behind {seq}");
        test_server.world.client_close(rest);
        let path = format!("/v1/executions/{execution}/events?format=langgraph");
        let request = get(&path).replacen(
            "\r\n\r\n",
            &format!("\r\nLast-Event-ID: {execution}:{seq}\r\n\r\n"),
            1,
        );
        let rest = test_server.visit(&request);
        assert_eq!(hear_events(&mut test_server, rest), all[at + 1..], "behind {seq}, by its id");
        test_server.world.client_close(rest);
    }
}

#[test]
fn a_thread_is_followed_from_run_to_run_on_every_shard() {
    for thread in ["a", "b", "c", "d"] {
        let mut test_server = servers(2, &slowly());
        // Before any run exists, through any shard.
        let clients = [(); 4].map(|()| test_server.visit(&follow(thread, None)));
        let first = test_server.visit(&start(thread, "On."));
        assert!(test_server.hear(first).contains("\"run_id\""));
        let busy = test_server.visit(&start(thread, "On."));
        let heard = test_server.hear(busy);
        assert!(heard.contains("invalid_argument") && heard.contains("not ended"), "{heard}");
        test_server.pass(SECOND);
        let second = test_server.visit(&start(thread, "Go."));
        assert!(test_server.hear(second).contains("\"run_id\""));
        test_server.pass(SECOND);
        for client in clients {
            let heard = test_server.hear(client);
            let all = events(&heard);
            assert_eq!(words_of(&all), "And on.One two three four five six.It is done.");
            let seqs: Vec<u64> = all.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
            assert!(seqs.is_sorted_by(|a, b| a < b), "one number for all runs: {seqs:?}");
        }
        let state = test_server.get(&format!("/langgraph/threads/{thread}/state"));
        assert!(state.contains("It is done.") && state.contains("\"next\":[]"), "{state}");
    }
}

#[test]
fn a_number_that_an_earlier_server_gave_hides_nothing() {
    let mut test_server = servers(1, &slowly());
    let started = test_server.visit(&start("t", "On."));
    test_server.hear(started);
    let client = test_server.visit(&follow("t", Some((1 << 52) + 5)));
    test_server.pass(SECOND);
    assert_eq!(words_of(&hear_events(&mut test_server, client)), "And on.");
}

#[test]
fn who_waits_on_a_thread_is_kept_awake_and_let_go() {
    let mut test_server = servers(1, &slowly());
    let waiting = test_server.visit(&follow("t", None));
    let gone = test_server.visit(&follow("t", None));
    test_server.world.client_close(gone);
    test_server.pass(20 * SECOND);
    let heard = test_server.hear(waiting);
    assert!(heard.contains("\r\n: \n\n\r\n"), "a sign of life: {heard}");
    test_server.shards[0].drain();
    test_server.pass(SECOND);
    assert!(test_server.hear(waiting).ends_with("0\r\n\r\n<end>"));
}

/// All of it at once, with faults: `SIM_SEEDS=N cargo test a_few_seeds_of_front_ends` plays more.
#[test]
fn a_few_seeds_of_front_ends_that_are_cut_anywhere_understand_the_same() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("SIM_FIRST_SEED").unwrap_or(1);
    let (mut ends, mut cuts) = (0, 0);
    for seed in first..first + number("SIM_SEEDS").unwrap_or(12) {
        let (seed_ends, seed_cuts) = play(seed).unwrap_or_else(|e| panic!("SEED={seed}: {e}"));
        (ends, cuts) = (ends + seed_ends, cuts + seed_cuts);
    }
    println!("{ends} streams were read to their ends, {cuts} connections were cut");
    assert!(ends > 0);
}
