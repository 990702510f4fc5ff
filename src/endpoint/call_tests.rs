//! Tables of requests and their calls. Each request is cut at every byte.

use std::time::Duration;

use serde_json::json;
use smallvec::{SmallVec, smallvec};

use super::exchange::{called, get, post, with};
use super::*;
use crate::base::{ExecutionId, Handle, ProgressToken, SubscriberId};
use crate::endpoint::{ListScope, McpAction};
use crate::engine::{Coalesce, From, Hold, OnStall, ProgressSource, Start, Timeouts};
use crate::limits;
use crate::mcp::Ask;
use crate::stream::{ExecutionState, Kind, Kinds, Outcome, Policy, Totals};
use crate::trace::TraceContext;
use crate::wire::durable::parse_time;
use crate::wire::http1::ByteRange;

pub fn id(index: u32) -> ExecutionId {
    let slot = Handle { index, generation: 3 };
    ExecutionId { shard: 1, slot, nonce: 0x1234_5678_9abc_def0 + u64::from(index) }
}

pub fn token() -> ProgressToken {
    ProgressToken { shard: 1, slot: Handle { index: 5, generation: 2 }, secret: 99 }
}

fn subscriber() -> SubscriberId {
    SubscriberId(Handle { index: 7, generation: 2 })
}

#[test]
fn requests_without_parameters_are_the_calls_of_their_routes() {
    let (a, t, s) = (id(1), token(), subscriber());
    let table = [
        (get("/v1/tools"), ApiCall::Tools),
        (get("/v1/executions"), ApiCall::Executions(ListAsk::default().into())),
        (get(&format!("/v1/executions/{a}")), ApiCall::Inspect(a)),
        (with("HEAD", &format!("/v1/executions/{a}"), ""), ApiCall::Inspect(a)),
        (get(&format!("http://h/v1/executions/{a}")), ApiCall::Inspect(a)),
        (get(&format!("/%761/executions/{a}")), ApiCall::Inspect(a)),
        (with("DELETE", &format!("/v1/executions/{a}"), ""), ApiCall::Cancel(a)),
        (with("DELETE", &format!("/v1/executions/{a}?forget=false"), ""), ApiCall::Cancel(a)),
        (with("DELETE", &format!("/v1/executions/{a}?forget=true"), ""), ApiCall::Forget(a)),
        (
            with("DELETE", &format!("/v1/executions/{a}"), "Content-Length: 0\r\n"),
            ApiCall::Cancel(a),
        ),
        (
            with("DELETE", &format!("/v1/executions/{a}/subscribers/{s}"), ""),
            ApiCall::Unsubscribe(a, s),
        ),
        (
            post(&format!("/v1/executions/{a}/subscribers/{s}/acks"), "{\"seq\":7}"),
            ApiCall::Acknowledge(a, s, 7),
        ),
        (get("/v1/progress"), ApiCall::AllProgress),
        (get(&format!("/v1/progress/{t}")), ApiCall::Progress(t)),
        (get("/readyz"), ApiCall::Ready),
    ];
    for (request, call) in table {
        assert_eq!(called(&request), call, "{request}");
    }
}

#[test]
fn a_result_is_waited_for_and_an_output_filtered() {
    let a = id(1);
    let seconds = |wait| ApiCall::Result(a, Duration::from_secs(wait));
    let table = [
        ("result", seconds(30)),
        ("result?wait_ms=0", seconds(0)),
        ("result?wait_ms=60000", seconds(60)),
        ("output", output(Kinds::RAW, None, false)),
        ("output?kinds=stdout", output(Kinds::NONE.with(Kind::Stdout), None, false)),
    ];
    for (target, call) in table {
        assert_eq!(called(&get(&format!("/v1/executions/{a}/{target}"))), call, "{target}");
    }
}

fn output(kinds: Kinds, range: Option<ByteRange>, is_known: bool) -> ApiCall {
    ApiCall::Output(id(1), OutputAsk { kinds, range, is_known }.into())
}

#[test]
fn a_range_of_an_output_is_asked_for_unless_the_clients_part_is_of_another_one() {
    let (a, b) = (id(1), id(2));
    let target = format!("/v1/executions/{a}/output");
    let range = Some(ByteRange::From { first: 2, last: Some(5) });
    let table = [
        ("GET", "Range: bytes=2-5\r\n".to_owned(), range, false),
        ("GET", "Range: bytes=2-5, 7-9\r\n".into(), None, false),
        ("GET", format!("Range: bytes=2-5\r\nIf-Range: \"{a}\"\r\n"), range, false),
        ("GET", format!("Range: bytes=2-5\r\nIf-Range: \"{b}\"\r\n"), None, false),
        // A weak tag and a date name no exact bytes.
        ("GET", format!("Range: bytes=2-5\r\nIf-Range: W/\"{a}\"\r\n"), None, false),
        (
            "GET",
            "Range: bytes=2-5\r\nIf-Range: Sun, 06 Nov 1994 08:49:37 GMT\r\n".into(),
            None,
            false,
        ),
        ("GET", format!("If-None-Match: \"x\", \"{a}\"\r\n"), None, true),
        ("GET", format!("If-None-Match: \"{b}\"\r\n"), None, false),
        ("HEAD", "Range: bytes=2-5\r\n".into(), None, false),
    ];
    for (method, headers, range, is_known) in table {
        let call = output(Kinds::RAW, range, is_known);
        assert_eq!(called(&with(method, &target, &headers)), call, "{headers}");
    }
}

#[test]
fn metrics_come_as_accept_likes_them() {
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.5,*/*;q=0.1";
    let table = [
        ("", MetricsFormat::Prometheus),
        ("Accept: */*\r\n", MetricsFormat::Prometheus),
        ("Accept: text/html\r\n", MetricsFormat::Prometheus),
        ("Accept: application/openmetrics-text\r\n", MetricsFormat::OpenMetrics),
        (&format!("Accept: {prometheus}\r\n"), MetricsFormat::OpenMetrics),
    ];
    for (accept, format) in table {
        assert_eq!(called(&with("GET", "/metrics", accept)), ApiCall::Metrics(format), "{accept}");
    }
}

fn follow(execution: ExecutionId, from: From) -> Follow {
    Follow {
        executions: smallvec![(execution, from)],
        is_combined: false,
        seen_ends: SmallVec::new(),
        format: StreamFormat::Sse,
        delivery_options: DeliveryOptions::default(),
        front: FrontOptions::default(),
    }
}

#[test]
fn a_stream_is_followed_as_its_parameters_say() {
    let a = id(1);
    let plain = follow(a, From::Start);
    let with_options =
        |delivery_options: DeliveryOptions| Follow { delivery_options, ..plain.clone() };
    let none = DeliveryOptions::default();
    let coalesced = |delay_us, bytes_max| {
        let delay_max = Duration::from_micros(delay_us);
        with_options(DeliveryOptions { coalesce: Some(Coalesce { delay_max, bytes_max }), ..none })
    };
    let table = [
        ("", plain.clone()),
        ("?", plain.clone()),
        ("?from=start", plain.clone()),
        ("?from=live", follow(a, From::Live)),
        ("?from=17", follow(a, From::Seq { seq: 17, seen: None })),
        ("?format=ndjson", Follow { format: StreamFormat::Ndjson, ..plain.clone() }),
        (
            "?policy=drop_oldest",
            with_options(DeliveryOptions { policy: Some(Policy::DropOldest), ..none }),
        ),
        ("?max_chunks=5", with_options(DeliveryOptions { limit_chunks: Some(5), ..none })),
        (
            "?max_bytes=4294967296",
            with_options(DeliveryOptions { limit_bytes: Some(1 << 32), ..none }),
        ),
        (
            "?kinds=stdout,stderr&kinds=row",
            with_options(DeliveryOptions {
                kinds: Kinds::NONE.with(Kind::Stdout).with(Kind::Stderr).with(Kind::Row),
                ..none
            }),
        ),
        ("?coalesce_us=500", coalesced(500, limits::COALESCE_BYTES_DEFAULT)),
        ("?coalesce_bytes=900", coalesced(1_000_000, 900)),
        ("?coalesce_us=0&coalesce_bytes=1", coalesced(0, 1)),
        ("?acks=1", with_options(DeliveryOptions { ack_window: Some(1), ..none })),
    ];
    for (query, follow) in table {
        let request = get(&format!("/v1/executions/{a}/events{query}"));
        assert_eq!(called(&request), ApiCall::Follow(follow.into()), "{query}");
    }
}

#[test]
fn the_format_of_a_stream_is_chosen_by_name_or_by_accept() {
    let table = [
        ("", "", StreamFormat::Sse),
        ("", "Accept: */*\r\n", StreamFormat::Sse),
        ("", "Accept: text/event-stream\r\n", StreamFormat::Sse),
        ("", "Accept: application/x-ndjson\r\n", StreamFormat::Ndjson),
        ("", "Accept: application/x-ndjson, */*;q=0.5\r\n", StreamFormat::Ndjson),
        ("?format=sse", "Accept: application/x-ndjson\r\n", StreamFormat::Sse),
        ("?format=ndjson", "Accept: text/html\r\n", StreamFormat::Ndjson),
    ];
    for (query, accept, format) in table {
        let target = format!("/v1/executions/{}/events{query}", id(1));
        let ApiCall::Follow(follow) = called(&with("GET", &target, accept)) else { panic!() };
        assert_eq!(follow.format, format, "{query} {accept}");
    }
}

#[test]
fn a_stream_goes_on_behind_the_last_event_that_was_seen() {
    let (a, b) = (id(1), id(2));
    let seq = |seq| From::Seq { seq, seen: None };
    let seen = |seq, chunks, bytes| From::Seq { seq, seen: Some(Totals { chunks, bytes }) };
    let one = format!("/v1/executions/{a}/events?from=live");
    let two = format!("/v1/events?executions={a},{b}");
    let table = [
        (&one, "41".to_owned(), vec![(a, seq(42))]),
        (&one, format!("{a}:41"), vec![(a, seq(42))]),
        // A cursor of 0 resumes at chunk 1 by its number, and overrides `from`.
        (&one, format!("{a}:0"), vec![(a, seq(1))]),
        (&one, format!("{a}:0:0"), vec![(a, seen(1, 0, 0))]),
        (&one, format!("{a}:41:900"), vec![(a, seen(42, 41, 900))]),
        (&one, format!("{a}:41:900:7"), vec![(a, seen(42, 7, 900))]),
        (&one, format!("{a}:41:900:end"), vec![(a, seen(42, 41, 900))]),
        (&two, format!("{a}:1,{b}:2"), vec![(a, seq(2)), (b, seq(3))]),
        (&two, format!("{b}:2,{a}:0"), vec![(a, seq(1)), (b, seq(3))]),
        (&two, format!("{b}:2,{a}:0:end"), vec![(a, seq(1)), (b, seq(3))]),
    ];
    for (target, cursor, places) in table {
        let request = with("GET", target, &format!("last-event-id: {cursor}\r\n"));
        let ApiCall::Follow(follow) = called(&request) else { panic!() };
        assert_eq!(follow.executions.to_vec(), places, "{target} {cursor}");
        let seen_ends: &[ExecutionId] = if cursor.ends_with(":end") { &[a] } else { &[] };
        assert_eq!(follow.seen_ends.as_slice(), seen_ends, "{cursor}");
        assert_eq!(follow.is_combined, places.len() > 1);
    }
}

#[test]
fn several_are_followed_together() {
    let ids: Vec<ExecutionId> = (0..limits::STREAM_CURSORS_MAX as u32).map(id).collect();
    let names: Vec<String> = ids.iter().map(ExecutionId::to_string).collect();
    let all = Follow {
        executions: ids.iter().map(|id| (*id, From::Start)).collect(),
        is_combined: true,
        ..follow(ids[0], From::Start)
    };
    let target = format!("/v1/events?executions={}", names.join(","));
    assert_eq!(called(&get(&target)), ApiCall::Follow(all.into()));
    let one = Follow { is_combined: true, ..follow(ids[0], From::Live) };
    let target = format!("/v1/events?from=live&executions={}", names[0]);
    assert_eq!(called(&get(&target)), ApiCall::Follow(one.into()));
    let apart = format!("/v1/events?executions={}&executions={}", names[0], names[1]);
    let ApiCall::Follow(follow) = called(&get(&apart)) else { panic!() };
    assert_eq!(follow.executions.len(), 2);
}

fn opening() -> Opening {
    Opening {
        policy: None,
        start: Start::Now,
        hold: Hold::default(),
        timeouts: None,
        retention: None,
        block_deadline: None,
        on_stall: OnStall::Detach,
        progress: None,
        durability: None,
        deliver: Default::default(),
        on_full: None,
        keep: None,
    }
}

fn plain() -> Execute {
    opened(opening())
}

fn opened(opening: Opening) -> Execute {
    let (tool, arguments, trace) = ("t".into(), json!({}), TraceContext::default());
    Execute {
        tool,
        arguments,
        opening,
        stream: None,
        cancels: false,
        trace,
        front: None,
        key: None,
    }
}

#[test]
fn what_an_execution_is_a_part_of_stands_in_its_head_or_is_left_out() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let trace = |headers: String| {
        let body = r#"{"tool":"t"}"#;
        let request = post("/v1/executions", body);
        let request = request.replacen("Content-Type", &format!("{headers}Content-Type"), 1);
        let ApiCall::Execute(execute) = called(&request) else { panic!() };
        execute.trace
    };
    let all =
        format!("TraceParent: {parent}\r\ntracestate: a=1\r\nTraceState: b=2\r\nbaggage: c=3\r\n");
    assert_eq!(trace(all), TraceContext::parse(Some(parent), Some("a=1,b=2"), Some("c=3")));
    let twice = format!("traceparent: {parent}\r\ntraceparent: {parent}\r\ntracestate: a=1\r\n");
    for headers in ["traceparent: 00-1-2-3\r\ntracestate: a=1\r\n".to_owned(), twice] {
        assert_eq!(trace(headers), TraceContext::default());
    }
}

#[test]
fn an_execution_is_what_its_body_says() {
    let ms = Duration::from_millis;
    let choice = |policy| PolicyChoice { policy, limit_chunks: None, limit_bytes: None };
    let timeouts = |first, inactivity, total| Opening {
        timeouts: Some(Timeouts { first_chunk: first, inactivity, total }),
        ..opening()
    };
    let (first, inactivity) = (limits::TIMEOUT_FIRST_CHUNK, limits::TIMEOUT_INACTIVITY);
    let until = |deadline| Opening { hold: Hold::UntilRead { deadline }, ..opening() };
    let after = |count, deadline| Opening {
        start: Start::AfterSubscribers { count, deadline },
        ..opening()
    };
    let table = [
        (json!({}), opening()),
        (json!({"policy": "block"}), Opening { policy: Some(choice(Policy::Block)), ..opening() }),
        (json!({"policy": {"name": "buffer"}}), {
            Opening { policy: Some(choice(Policy::Buffer)), ..opening() }
        }),
        (json!({"policy": {"name": "drop", "max_chunks": 3, "max_bytes": 4}}), {
            let (limit_chunks, limit_bytes) = (Some(3), Some(4));
            let policy = Some(PolicyChoice { policy: Policy::Drop, limit_chunks, limit_bytes });
            Opening { policy, ..opening() }
        }),
        (json!({"start": "now"}), opening()),
        (json!({"start": {"after_subscribers": 2}}), after(2, limits::ATTACH_DEADLINE)),
        (json!({"start": {"after_subscribers": 1, "deadline_ms": 5}}), after(1, ms(5))),
        (json!({"hold": "newest"}), Opening { hold: Hold::Newest, ..opening() }),
        (json!({"hold": "until_read"}), until(limits::ATTACH_DEADLINE)),
        (json!({"hold": {"until_read_ms": 70}}), until(ms(70))),
        (json!({"timeouts": {}}), timeouts(Some(first), Some(inactivity), None)),
        (
            json!({"timeouts": {"first_chunk_ms": 1, "inactivity_ms": null, "total_ms": 9}}),
            timeouts(Some(ms(1)), None, Some(ms(9))),
        ),
        (json!({"retention_ms": 0}), Opening { retention: Some(ms(0)), ..opening() }),
        (json!({"block_deadline_ms": 1}), Opening { block_deadline: Some(ms(1)), ..opening() }),
        (json!({"on_stall": "detach"}), opening()),
        (json!({"on_stall": "fail"}), Opening { on_stall: OnStall::Fail, ..opening() }),
        (
            json!({"progress": "tool"}),
            Opening { progress: Some(ProgressSource::Tool), ..opening() },
        ),
        (json!({"progress": "chunks"}), {
            Opening { progress: Some(ProgressSource::Chunks), ..opening() }
        }),
        (json!({"progress": "bytes"}), {
            Opening { progress: Some(ProgressSource::Bytes), ..opening() }
        }),
    ];
    for (mut body, opening) in table {
        body["name"] = "t".into();
        let produced = called(&post("/v1/door/executions", &body.to_string()));
        let (ring_bytes, chunk_bytes) = (limits::DOOR_RING_BYTES_DEFAULT, 0);
        let (name, opening) = ("t".into(), opening);
        let execute = opened(opening.clone());
        let produce = Produce { name, ring_bytes, chunk_bytes, estimated_bytes: None, opening };
        assert_eq!(produced, ApiCall::Produce(produce.into()), "{body}");
        let members = body.as_object_mut().unwrap();
        let tool = members.remove("name").unwrap();
        members.insert("tool".to_owned(), tool);
        let got = called(&post("/v1/executions", &body.to_string()));
        assert_eq!(got, ApiCall::Execute(execute.into()), "{body}");
    }
    let body = r#"{"tool":"t","arguments":{"a":[1,{"a":null}]}}"#;
    let execute = Execute { arguments: json!({"a": [1, {"a": null}]}), ..plain() };
    assert_eq!(called(&post("/v1/executions", body)), ApiCall::Execute(execute.into()));
}

#[test]
fn a_ring_is_read_and_written_by_other_processes_as_they_say() {
    let target = format!("/v1/executions/{}/door", id(3));
    let table = [
        ("", From::Start, DeliveryOptions::default()),
        ("?from=live&policy=block", From::Live, {
            DeliveryOptions { policy: Some(Policy::Block), ..<_>::default() }
        }),
        ("?from=7&max_chunks=3&max_bytes=4&kinds=stdout", From::Seq { seq: 7, seen: None }, {
            let kinds = Kinds::NONE.with(Kind::Stdout);
            DeliveryOptions { limit_chunks: Some(3), limit_bytes: Some(4), kinds, ..<_>::default() }
        }),
    ];
    for (query, from, delivery_options) in table {
        let execution = id(3);
        let door = ReadDoor { execution, from, delivery_options };
        let request = with("POST", &format!("{target}{query}"), "");
        assert_eq!(called(&request), ApiCall::ReadDoor(door.into()), "{query}");
    }
    let body = r#"{"name":"n","ring_bytes":4096,"chunk_bytes":9,"estimated_bytes":10}"#;
    let ApiCall::Produce(produce) = called(&post("/v1/door/executions", body)) else { panic!() };
    let Produce { ring_bytes, chunk_bytes, estimated_bytes, .. } = *produce;
    assert_eq!((ring_bytes, chunk_bytes, estimated_bytes), (4096, 9, Some(10)));
}

#[test]
fn the_answer_to_an_execution_can_be_its_stream() {
    let delivery_options =
        DeliveryOptions { policy: Some(Policy::Block), ack_window: Some(4), ..<_>::default() };
    let table = [
        ("?format=sse", (StreamFormat::Sse, DeliveryOptions::default())),
        ("?format=ndjson&policy=block&acks=4", (StreamFormat::Ndjson, delivery_options)),
    ];
    for (query, stream) in table {
        let got = called(&post(&format!("/v1/executions{query}"), r#"{"tool":"t"}"#));
        let execute = Execute { stream: Some(stream), ..plain() };
        assert_eq!(got, ApiCall::Execute(execute.into()), "{query}");
    }
}

#[test]
fn accept_decides_between_a_stream_and_a_document_unless_the_format_is_named() {
    let sse = Some((StreamFormat::Sse, DeliveryOptions::default()));
    let lines = Some((StreamFormat::Ndjson, DeliveryOptions::default()));
    let table = [
        ("", "", None),
        ("Accept: */*\r\n", "", None),
        ("Accept: application/json\r\n", "", None),
        ("Accept: application/json, text/event-stream\r\n", "", None),
        ("Accept: text/html\r\n", "", None),
        ("Accept: text/event-stream\r\n", "", sse),
        ("Accept: text/event-stream, */*;q=0.1\r\n", "", sse),
        ("Accept: application/x-ndjson\r\n", "", lines),
        ("Accept: text/event-stream\r\n", "?format=ndjson", lines),
        ("Accept: application/json\r\n", "?format=sse", sse),
    ];
    let body = r#"{"tool":"t"}"#;
    for (accept, query, stream) in table {
        let length = body.len();
        let headers =
            format!("{accept}Content-Type: application/json\r\nContent-Length: {length}\r\n");
        let request = with("POST", &format!("/v1/executions{query}"), &headers) + body;
        let execute = Execute { stream, ..plain() };
        assert_eq!(called(&request), ApiCall::Execute(execute.into()), "{accept}{query}");
    }
}

#[test]
fn a_list_is_filtered_and_continued() {
    let place = "20260102030405678901".to_owned() + &id(3).to_string();
    let query = format!("?tool=a.b-c_1&state=timed_out&limit=7&after={place}");
    let created_us = parse_time("2026-01-02T03:04:05.678901Z").unwrap();
    let ask = ListAsk {
        tool: Some("a.b-c_1".into()),
        state: Some(ExecutionState::Ended(Outcome::TimedOut)),
        limit: 7,
        after: Some(ListPlace { created_us, execution: id(3) }),
        scope: ListScope::Server,
    };
    let called = |query: &str| called(&get(&format!("/v1/executions{query}")));
    assert_eq!(called(&query), ApiCall::Executions(ask.clone().into()));
    assert_eq!(called(&format!("{query}&scope=server")), ApiCall::Executions(ask.clone().into()));
    let of_all = ListAsk { scope: ListScope::Cluster, ..ask };
    assert_eq!(called(&format!("{query}&scope=cluster")), ApiCall::Executions(of_all.into()));
    let of_all = ListAsk {
        limit: crate::limits::CLUSTER_LISTED_MAX,
        scope: ListScope::Cluster,
        ..ListAsk::default()
    };
    assert_eq!(called("?scope=cluster"), ApiCall::Executions(of_all.into()));
}

#[test]
fn whole_numbers_of_bodies_may_be_written_as_doubles() {
    let body = r#"{"tool":"t","retention_ms":447.0,"block_deadline_ms":4.47e2}"#;
    let ApiCall::Execute(execute) = called(&post("/v1/executions", body)) else { panic!() };
    let ms = Some(Duration::from_millis(447));
    assert_eq!((execute.opening.retention, execute.opening.block_deadline), (ms, ms));
}

#[test]
fn a_body_may_come_in_chunks_and_under_other_spellings_of_json() {
    let body = "7;x=y\r\n{\"tool\"\r\n5\r\n:\"t\"}\r\n0\r\nTrailer: x\r\n\r\n";
    for media_type in ["application/json", "Application/JSON ; charset=utf-8"] {
        let headers = format!("Content-Type: {media_type}\r\nTransfer-Encoding: chunked\r\n");
        let request = with("POST", "/v1/executions", &headers) + body;
        assert_eq!(called(&request), ApiCall::Execute(plain().into()), "{media_type}");
    }
}

#[test]
fn a_request_of_mcp_names_the_same_before_and_after_it_was_passed_on() {
    let uri = format!("streamdoor://executions/{}/output", id(1));
    let sent = |method: &str, params: serde_json::Value| {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let message = crate::wire::jsonrpc::parse(message.to_string().as_bytes()).unwrap();
        McpRequest::of(McpAction::Send(message.into()), None)
    };
    let passed_on = |ask: Ask| {
        let context = crate::mcp::Context::past(crate::mcp::Version::LATEST);
        McpRequest::of(McpAction::Forwarded(context.into(), ask), None)
    };
    let read = Ask::ReadResource { uri: uri.clone() };
    for request in [sent("resources/read", json!({"uri": uri})), passed_on(read)] {
        assert_eq!((request.execution(), request.task()), (Some(id(1)), None));
        assert_eq!(request.read_uri(), Some(&*uri));
    }
    let get = Ask::GetTask { id: "00ab".into() };
    for request in [sent("tasks/get", json!({"taskId": "00ab"})), passed_on(get)] {
        assert_eq!((request.execution(), request.task()), (None, Some("00ab")));
        assert_eq!(request.read_uri(), None);
    }
    let arguments = json!({"stream_id": id(1).to_string()});
    let params = json!({"name": "stream_read", "arguments": arguments});
    let serde_json::Value::Object(arguments) = arguments else { unreachable!() };
    let call = Ask::CallTool { name: "stream_read".into(), arguments };
    for request in [sent("tools/call", params), passed_on(call)] {
        assert_eq!(request.execution(), Some(id(1)));
    }
}
