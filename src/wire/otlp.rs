//! Spans in the format of OTLP/HTTP: JSON, with ids in hexadecimal and times as text.
//!
//! Names are those of OpenTelemetry's conventions for MCP and generative AI.

use std::io::Write;

use super::json::write_string;
use crate::trace::Span;

/// The value of `SPAN_KIND_SERVER`.
const KIND_SERVER: u8 = 2;
/// The value of `STATUS_CODE_ERROR`. Without an error no status is written, because success is not
/// ours to declare.
const STATUS_ERROR: u8 = 2;

/// Appends the body of `POST /v1/traces` for `spans` of this program.
///
/// ```
/// use streamdoor::trace::Span;
/// use streamdoor::wire::otlp::write_traces;
/// let span = Span { trace_id: 1, span_id: 2, method: "ping", ..Span::default() };
/// let mut body = Vec::new();
/// write_traces(&mut body, &[span]);
/// let body: serde_json::Value = serde_json::from_slice(&body)?;
/// let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
/// assert_eq!(span["traceId"], "00000000000000000000000000000001");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn write_traces(out: &mut Vec<u8>, spans: &[Span]) {
    let version = env!("CARGO_PKG_VERSION");
    out.extend_from_slice(b"{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    let mut attributes = Attributes { out, is_first: true };
    attributes.text("service.name", "streamdoor");
    attributes.text("service.version", version);
    out.extend_from_slice(b"]},\"scopeSpans\":[{\"scope\":{\"name\":\"streamdoor\",\"version\":");
    write_string(out, version);
    out.extend_from_slice(b"},\"spans\":[");
    for (at, span) in spans.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_span(out, span);
    }
    out.extend_from_slice(b"]}]}]}");
}

fn write_span(out: &mut Vec<u8>, span: &Span) {
    let Span { trace_id, span_id, begun_us, ended_us, .. } = span;
    let mut put = |text: std::fmt::Arguments<'_>| {
        out.write_fmt(text).expect("writing to memory cannot fail");
    };
    put(format_args!("{{\"traceId\":\"{trace_id:032x}\",\"spanId\":\"{span_id:016x}\""));
    if let Some(parent_id) = span.parent_id {
        put(format_args!(",\"parentSpanId\":\"{parent_id:016x}\""));
    }
    put(format_args!(",\"kind\":{KIND_SERVER},\"startTimeUnixNano\":\"{begun_us}000\""));
    put(format_args!(",\"endTimeUnixNano\":\"{ended_us}000\",\"name\":"));
    match &span.target {
        Some(target) => write_string(out, &format!("{} {target}", span.method)),
        None => write_string(out, span.method),
    }
    out.extend_from_slice(b",\"attributes\":[");
    write_attributes(&mut Attributes { out, is_first: true }, span);
    out.push(b']');
    if let Some(error) = &span.error {
        let status = format!(",\"status\":{{\"code\":{STATUS_ERROR},\"message\":");
        out.extend_from_slice(status.as_bytes());
        write_string(out, error);
        out.push(b'}');
    }
    out.push(b'}');
}

fn write_attributes(attributes: &mut Attributes<'_>, span: &Span) {
    attributes.text("mcp.method.name", span.method);
    attributes.text("mcp.protocol.version", span.version);
    attributes.text("jsonrpc.request.id", &span.request);
    attributes.text("network.transport", span.transport);
    if let Some(session) = &span.session {
        attributes.text("mcp.session.id", session);
    }
    match (&span.target, span.method) {
        (Some(tool), "tools/call") => {
            attributes.text("gen_ai.operation.name", "execute_tool");
            attributes.text("gen_ai.tool.name", tool);
        }
        (Some(prompt), _) => attributes.text("gen_ai.prompt.name", prompt),
        (None, _) => {}
    }
    if let Some(error) = &span.error {
        attributes.text("error.type", error);
    }
}

/// A writer of attributes, each a name and a value.
struct Attributes<'a> {
    out: &'a mut Vec<u8>,
    is_first: bool,
}

impl Attributes<'_> {
    fn text(&mut self, key: &str, value: &str) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(b"{\"key\":");
        write_string(self.out, key);
        self.out.extend_from_slice(b",\"value\":{\"stringValue\":");
        write_string(self.out, value);
        self.out.extend_from_slice(b"}}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn every_member_has_its_place() {
        let call = Span {
            trace_id: 0xAB,
            span_id: 0xCD,
            parent_id: Some(0xEF),
            begun_us: 1_700_000_000_000_001,
            ended_us: 1_700_000_000_000_002,
            method: "tools/call",
            target: Some("a \"tool\"".to_owned()),
            request: "7".to_owned(),
            session: Some("s".to_owned()),
            version: "2025-11-25",
            transport: "pipe",
            error: Some("tool_error".to_owned()),
        };
        let ping =
            Span { method: "ping", error: None, session: None, target: None, ..call.clone() };
        let mut body = Vec::new();
        write_traces(&mut body, &[call, ping]);
        let body: Value = serde_json::from_slice(&body).unwrap();
        let spans = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        assert_eq!(spans[0]["traceId"], "000000000000000000000000000000ab");
        assert_eq!(spans[0]["spanId"], "00000000000000cd");
        assert_eq!(spans[0]["parentSpanId"], "00000000000000ef");
        assert_eq!(spans[0]["startTimeUnixNano"], "1700000000000001000");
        assert_eq!(spans[0]["endTimeUnixNano"], "1700000000000002000");
        assert_eq!(spans[0]["name"], "tools/call a \"tool\"");
        assert_eq!((&spans[0]["kind"], &spans[0]["status"]["code"]), (&json!(2), &json!(2)));
        let has = |span: &Value, key: &str, value: &str| {
            let wanted = json!({"key": key, "value": {"stringValue": value}});
            span["attributes"].as_array().unwrap().contains(&wanted)
        };
        for (key, value) in [
            ("mcp.method.name", "tools/call"),
            ("gen_ai.tool.name", "a \"tool\""),
            ("gen_ai.operation.name", "execute_tool"),
            ("jsonrpc.request.id", "7"),
            ("mcp.session.id", "s"),
            ("network.transport", "pipe"),
            ("error.type", "tool_error"),
        ] {
            assert!(has(&spans[0], key, value), "{key}: {}", spans[0]);
        }
        assert_eq!(spans[1]["name"], "ping");
        assert!(spans[1].get("status").is_none() && !has(&spans[1], "mcp.session.id", "s"));
    }
}
