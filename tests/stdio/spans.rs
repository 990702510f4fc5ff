//! Spans of requests, and metrics, sent to a collector on this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::program::{Program, REACTORS, assert_quiet_end};

/// The exports that a collector got.
#[derive(Default)]
struct Collected {
    spans: Vec<Value>,
    /// The metrics of each export.
    metrics: Vec<Value>,
}

/// Collects until a connection without a request ends the collector. It answers with this status.
fn collect(listener: TcpListener, status: &'static str) -> JoinHandle<Collected> {
    std::thread::spawn(move || {
        let mut collected = Collected::default();
        loop {
            let (connection, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(connection.try_clone().unwrap());
            let (mut head, mut line) = (String::new(), String::new());
            while reader.read_line(&mut line).unwrap() > 2 {
                head += &std::mem::take(&mut line);
            }
            if head.is_empty() {
                return collected;
            }
            assert!(head.contains("content-type: application/json\r\n"), "{head}");
            let length = head.split_once("content-length: ").unwrap().1.lines().next().unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            let body: Value = serde_json::from_slice(&body).unwrap();
            if head.starts_with("POST /base/v1/metrics HTTP/1.1\r\n") {
                collected.metrics.push(body["resourceMetrics"][0]["scopeMetrics"][0].clone());
            } else {
                assert!(head.starts_with("POST /base/v1/traces HTTP/1.1\r\n"), "{head}");
                let found = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
                collected.spans.extend(found.as_array().unwrap().iter().cloned());
            }
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
            (&connection).write_all(answer.as_bytes()).unwrap();
        }
    })
}

fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a str> {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    found.and_then(|attribute| attribute["value"]["stringValue"].as_str())
}

/// Returns the sum of the points of a metric that have this attribute.
fn number(export: &Value, name: &str, (key, value): (&str, &str)) -> u64 {
    let metrics = export["metrics"].as_array().unwrap();
    let metric = metrics.iter().find(|metric| metric["name"] == name);
    let metric = metric.unwrap_or_else(|| panic!("no {name} in {metrics:?}"));
    assert_eq!(metric["sum"]["isMonotonic"], true);
    let points = metric["sum"]["dataPoints"].as_array().unwrap().iter();
    let values = points.filter(|point| attribute(point, key) == Some(value)).map(|point| {
        let time = |name: &str| point[name].as_str().unwrap().parse::<u64>().unwrap();
        assert!(time("startTimeUnixNano") < time("timeUnixNano"), "{point}");
        point["asInt"].as_str().unwrap().parse::<u64>().unwrap()
    });
    values.sum()
}

fn call(tool: &str, arguments: Value) -> Value {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    json!({"name": tool, "arguments": arguments, "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "traceparent": parent,
    }})
}

#[test]
fn each_request_is_a_span_of_its_clients_trace() {
    for reactor in REACTORS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let collector = collect(listener, "200 OK");
        let endpoint = format!("http://{address}/base");
        let options = ["--otlp-endpoint", &endpoint, "--allow-commands", "sh"];
        let started = Program::piped(reactor, &options);
        let mut told = String::new();
        if let Some(mut program) = started {
            program.ping(1);
            let arguments = json!({"chunks": 2, "delay_ms": 1, "chunk_size": 40});
            program.ask(2, "tools/call", call("slow_data_processor", arguments));
            assert_eq!(program.next()["id"], 2);
            program.ask(3, "tools/call", call("slow_data_processor", json!({"chunks": "many"})));
            assert_eq!(program.next()["result"]["isError"], true);
            program.ask(4, "tools/call", call("nothing", json!({})));
            assert_eq!(program.next()["error"]["code"], -32_602);
            program.ask(5, "tools/call", call("run_command", tell_trace()));
            told = program.next()["result"]["content"][0]["text"].as_str().unwrap().to_owned();
            assert_quiet_end(program.finish());
        }
        drop(std::net::TcpStream::connect(address).unwrap());
        let Collected { spans, metrics } = collector.join().unwrap();
        let find = |id: &str| {
            let found: Vec<&Value> = spans
                .iter()
                .filter(|span| attribute(span, "jsonrpc.request.id") == Some(id))
                .collect();
            assert!(found.len() <= 1, "{found:?}");
            found.first().copied()
        };
        let Some(call) = find("2") else {
            assert!(spans.is_empty(), "{spans:?}"); // The program was not run.
            continue;
        };
        // The interval is a minute, so that the only export is that of the end.
        assert_eq!(metrics.len(), 1);
        let calls = number(&metrics[0], "streamdoor.mcp_calls", ("outcome", "completed"));
        assert_eq!(calls, 2);
        assert_eq!(call["name"], "tools/call slow_data_processor");
        assert_eq!(call["traceId"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(call["parentSpanId"], "b7ad6b7169203331");
        let time = |name: &str| call[name].as_str().unwrap().parse::<u64>().unwrap();
        assert!(time("endTimeUnixNano") >= time("startTimeUnixNano") + 1_000_000, "{call}");
        assert_eq!(attribute(call, "gen_ai.tool.name"), Some("slow_data_processor"));
        assert_eq!(attribute(call, "network.transport"), Some("pipe"));
        assert_eq!(attribute(call, "mcp.protocol.version"), Some("2026-07-28"));
        assert_eq!(attribute(call, "error.type"), None);
        assert_eq!(attribute(find("3").unwrap(), "error.type"), Some("tool_error"));
        assert_eq!(attribute(find("4").unwrap(), "error.type"), Some("-32602"));
        // Work of a command belongs to the span of its call.
        let own = find("5").unwrap()["spanId"].as_str().unwrap();
        assert_eq!(told, format!("00-0af7651916cd43dd8448eb211c80319c-{own}-01,none,none"));
    }
}

/// Arguments of a command that prints the trace variables of its environment.
fn tell_trace() -> Value {
    let script = "printf %s \"$TRACEPARENT,${TRACESTATE-none},${BAGGAGE-none}\"";
    json!({"argv": ["sh", "-c", script]})
}

#[test]
fn without_spans_a_command_is_a_part_of_its_clients() {
    let Some(mut program) = Program::piped("mio", &["--allow-commands", "sh"]) else { return };
    let mut params = call("run_command", tell_trace());
    params["_meta"]["tracestate"] = "a=1".into();
    program.ask(1, "tools/call", params.clone());
    let text = |answer: &Value| answer["result"]["content"][0]["text"].clone();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(text(&program.next()), format!("{parent},a=1,none"));
    params["_meta"]["traceparent"] = "00-nothing".into();
    program.ask(2, "tools/call", params);
    assert_eq!(text(&program.next()), ",none,none");
    assert_quiet_end(program.finish());
}

#[test]
fn metrics_are_sent_at_the_interval_and_grow() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let collector = collect(listener, "200 OK");
    let endpoint = format!("http://{address}/base");
    let options = ["--otlp-endpoint", &endpoint, "--otlp-metrics-interval", "10ms"];
    let Some(mut program) = Program::piped("mio", &options) else { return };
    for id in 0..20 {
        let arguments = json!({"chunks": 2, "delay_ms": 10, "chunk_size": 40});
        program.ask(id, "tools/call", call("slow_data_processor", arguments));
        assert_eq!(program.next()["id"], id);
    }
    assert_quiet_end(program.finish());
    drop(std::net::TcpStream::connect(address).unwrap());
    let Collected { spans, metrics } = collector.join().unwrap();
    assert_eq!(spans.len(), 20);
    let calls = |export| number(export, "streamdoor.mcp_calls", ("outcome", "completed"));
    let calls: Vec<u64> = metrics.iter().map(calls).collect();
    assert!(calls.len() > 2 && calls.is_sorted(), "{calls:?}");
    assert_eq!(calls.last(), Some(&20));
}

#[test]
fn a_collector_without_metrics_is_told_of_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let collector = collect(listener, "404 Not Found");
    let endpoint = format!("http://{address}/base");
    let options = ["--otlp-endpoint", &endpoint, "--otlp-metrics-interval", "1ms"];
    let Some(mut program) = Program::piped("mio", &options) else { return };
    let arguments = json!({"chunks": 20, "delay_ms": 10, "chunk_size": 40});
    program.ask(1, "tools/call", call("slow_data_processor", arguments));
    assert_eq!(program.next()["id"], 1);
    let (said, status, log) = program.finish();
    drop(std::net::TcpStream::connect(address).unwrap());
    assert_eq!((said.len(), status.code()), (0, Some(0)));
    assert!(collector.join().unwrap().metrics.len() > 2);
    let told = |event: &str| log.lines().filter(|line| line.contains(event)).count();
    assert_eq!((told("metrics_not_sent"), told("spans_lost")), (1, 1), "{log}");
    assert!(log.contains("it answers 404"), "{log}");
}

#[test]
fn without_an_interval_no_metrics_are_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let collector = collect(listener, "200 OK");
    let endpoint = format!("http://{address}/base");
    let options = ["--otlp-endpoint", &endpoint, "--otlp-metrics-interval", "0"];
    let Some(mut program) = Program::piped("mio", &options) else { return };
    program.ask(1, "tools/call", call("slow_data_processor", json!({"chunks": 1})));
    assert_eq!(program.next()["id"], 1);
    assert_quiet_end(program.finish());
    drop(std::net::TcpStream::connect(address).unwrap());
    let Collected { spans, metrics } = collector.join().unwrap();
    assert_eq!((spans.len(), metrics.len()), (1, 0));
}

#[test]
fn a_collector_that_is_not_there_holds_nobody_up() {
    // A port that the kernel never gives out by itself.
    let options = ["--otlp-endpoint", "http://127.0.0.1:9"];
    let Some(mut program) = Program::piped("mio", &options) else { return };
    for id in 0..10 {
        let arguments = json!({"chunks": 1, "delay_ms": 0, "chunk_size": 40});
        program.ask(id, "tools/call", call("slow_data_processor", arguments));
        assert_eq!(program.next()["id"], id);
    }
    let (said, status, log) = program.finish();
    assert_eq!((said.len(), status.code()), (0, Some(0)));
    assert!(log.contains("spans_lost") && log.contains("total=10"), "{log}");
}
