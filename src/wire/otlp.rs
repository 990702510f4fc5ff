//! Spans and metrics in the format of OTLP/HTTP: JSON, with ids in hexadecimal and times as text.
//!
//! The names in spans are those of OpenTelemetry's conventions for MCP and generative AI. Sums are
//! cumulative. Histograms have the bounds of `/metrics`. Exponential histograms would not be exact,
//! because 1, 2.5 and 5 of each decade are no powers of one base.

use std::io::Write;

use super::json::write_string;
use crate::limits::LATENCY_BUCKETS_NS;
use crate::trace::{Attribute, Latency, Metric, MetricKind, MetricUnit, Point, PointValue, Span};

/// The value of `SPAN_KIND_SERVER`.
const KIND_SERVER: u8 = 2;
/// The value of `STATUS_CODE_ERROR`. Without an error no status is written, because success is not
/// ours to declare.
const STATUS_ERROR: u8 = 2;

/// The value of `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u8 = 2;

/// Appends the body of `POST /v1/traces` for `spans` of this program. `instance` is unique for each
/// run of it.
///
/// ```
/// use streamdoor::trace::Span;
/// use streamdoor::wire::otlp::write_traces;
/// let span = Span { trace_id: 1, span_id: 2, method: "ping", ..Span::default() };
/// let mut body = Vec::new();
/// write_traces(&mut body, "8f14", &[span]);
/// let body: serde_json::Value = serde_json::from_slice(&body)?;
/// let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
/// assert_eq!(span["traceId"], "00000000000000000000000000000001");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn write_traces(out: &mut Vec<u8>, instance: &str, spans: &[Span]) {
    out.extend_from_slice(b"{\"resourceSpans\":[{");
    write_source(out, instance, "scopeSpans");
    out.extend_from_slice(b"\"spans\":");
    write_list(out, spans, write_span);
    out.extend_from_slice(b"}]}]}");
}

/// The times of numbers, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct MetricTimes {
    /// The time since when sums and histograms count.
    pub started_us: u64,
    /// The time of the numbers.
    pub now_us: u64,
}

/// Appends the body of `POST /v1/metrics`. Metrics without a name for OpenTelemetry are left out.
///
/// ```
/// use streamdoor::trace::{Metric, MetricKind, Point};
/// use streamdoor::wire::otlp::{MetricTimes, write_metrics};
/// let turns = Metric {
///     name: "streamdoor_turns".into(),
///     otel_name: "streamdoor.turns".into(),
///     about: "Turns.",
///     unit: None,
///     kind: MetricKind::Counter,
///     points: vec![Point { attributes: Vec::new(), value: 7.into() }],
/// };
/// let mut body = Vec::new();
/// write_metrics(&mut body, "8f14", MetricTimes { started_us: 1, now_us: 2 }, &[turns]);
/// let body: serde_json::Value = serde_json::from_slice(&body)?;
/// let metric = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0];
/// assert_eq!(metric["sum"]["dataPoints"][0]["asInt"], "7");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn write_metrics(out: &mut Vec<u8>, instance: &str, times: MetricTimes, metrics: &[Metric]) {
    out.extend_from_slice(b"{\"resourceMetrics\":[{");
    write_source(out, instance, "scopeMetrics");
    out.extend_from_slice(b"\"metrics\":");
    let named = metrics.iter().filter(|metric| !metric.otel_name.is_empty());
    write_list(out, named, |out, metric| write_metric(out, times, metric));
    out.extend_from_slice(b"}]}]}");
}

/// Writes the program and the scope, up to the list of the scope.
fn write_source(out: &mut Vec<u8>, instance: &str, scopes: &str) {
    let version = env!("CARGO_PKG_VERSION");
    out.extend_from_slice(b"\"resource\":{\"attributes\":[");
    let mut attributes = Attributes { out, is_first: true };
    attributes.text("service.name", "streamdoor");
    attributes.text("service.version", version);
    attributes.text("service.instance.id", instance);
    put(out, format_args!("]}},\"{scopes}\":[{{\"scope\":{{\"name\":\"streamdoor\",\"version\":"));
    write_string(out, version);
    out.extend_from_slice(b"},");
}

fn write_list<T>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut Vec<u8>, T),
) {
    out.push(b'[');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to memory cannot fail");
}

fn write_metric(out: &mut Vec<u8>, times: MetricTimes, metric: &Metric) {
    out.extend_from_slice(b"{\"name\":");
    write_string(out, &metric.otel_name);
    out.extend_from_slice(b",\"description\":");
    write_string(out, metric.about);
    if let Some(unit) = metric.unit {
        let unit = match unit {
            MetricUnit::Bytes => "By",
            MetricUnit::Seconds => "s",
            MetricUnit::Threads => "{thread}",
            MetricUnit::FileDescriptors => "{file_descriptor}",
        };
        out.extend_from_slice(b",\"unit\":");
        write_string(out, unit);
    }
    let temporality = format_args!("\"aggregationTemporality\":{CUMULATIVE},");
    match metric.kind {
        MetricKind::Counter | MetricKind::UpDownCounter => {
            let is_monotonic = metric.kind == MetricKind::Counter;
            put(out, format_args!(",\"sum\":{{{temporality}\"isMonotonic\":{is_monotonic},"));
        }
        MetricKind::Gauge | MetricKind::Info => out.extend_from_slice(b",\"gauge\":{"),
        MetricKind::Histogram => put(out, format_args!(",\"histogram\":{{{temporality}")),
    }
    out.extend_from_slice(b"\"dataPoints\":");
    write_list(out, &metric.points, |out, point| write_point(out, times, point));
    out.extend_from_slice(b"}}");
}

fn write_point(out: &mut Vec<u8>, times: MetricTimes, point: &Point) {
    let MetricTimes { started_us, now_us } = times;
    let Point { attributes, value } = point;
    out.extend_from_slice(b"{\"attributes\":[");
    let mut written = Attributes { out, is_first: true };
    for (name, value) in attributes {
        match value {
            Attribute::Text(text) => written.text(name, text),
            Attribute::Number(number) => written.number(name, *number),
        }
    }
    put(out, format_args!("],\"startTimeUnixNano\":\"{started_us}000\""));
    put(out, format_args!(",\"timeUnixNano\":\"{now_us}000\""));
    match value {
        PointValue::Whole(number) => {
            let number = (*number).min(i64::MAX as u64); // The format has no larger ones.
            put(out, format_args!(",\"asInt\":\"{number}\""));
        }
        PointValue::Fraction(number) => put(out, format_args!(",\"asDouble\":{number}")),
        PointValue::Distribution(latency) => write_distribution(out, latency),
    }
    out.push(b'}');
}

fn write_distribution(out: &mut Vec<u8>, latency: &Latency) {
    let seconds = |ns: u64| ns as f64 / 1e9;
    put(out, format_args!(",\"count\":\"{}\"", latency.count()));
    put(out, format_args!(",\"sum\":{},\"bucketCounts\":", seconds(latency.sum_ns)));
    write_list(out, latency.counts, |out, count| put(out, format_args!("\"{count}\"")));
    out.extend_from_slice(b",\"explicitBounds\":");
    write_list(out, LATENCY_BUCKETS_NS, |out, ns| put(out, format_args!("{}", seconds(ns))));
}

fn write_span(out: &mut Vec<u8>, span: &Span) {
    let Span { trace_id, span_id, begun_us, ended_us, .. } = span;
    put(out, format_args!("{{\"traceId\":\"{trace_id:032x}\",\"spanId\":\"{span_id:016x}\""));
    if let Some(parent_id) = span.parent_id {
        put(out, format_args!(",\"parentSpanId\":\"{parent_id:016x}\""));
    }
    put(out, format_args!(",\"kind\":{KIND_SERVER},\"startTimeUnixNano\":\"{begun_us}000\""));
    put(out, format_args!(",\"endTimeUnixNano\":\"{ended_us}000\",\"name\":"));
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
        self.key(key);
        self.out.extend_from_slice(b"\"stringValue\":");
        write_string(self.out, value);
        self.out.extend_from_slice(b"}}");
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        put(self.out, format_args!("\"intValue\":\"{value}\"}}}}"));
    }

    fn key(&mut self, key: &str) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(b"{\"key\":");
        write_string(self.out, key);
        self.out.extend_from_slice(b",\"value\":{");
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
        write_traces(&mut body, "8f14", &[call, ping]);
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

    fn metric(kind: MetricKind, unit: Option<MetricUnit>, value: PointValue) -> Metric {
        let attributes =
            vec![("shard", Attribute::Number(3)), ("state", Attribute::Text("a \"b\"".into()))];
        let points = vec![Point { attributes, value }];
        let (name, otel_name) = ("streamdoor_a".into(), "streamdoor.a".into());
        Metric { name, otel_name, about: "An \"a\".", unit, kind, points }
    }

    fn written(metrics: &[Metric]) -> Value {
        let mut body = Vec::new();
        write_metrics(&mut body, "8f14", MetricTimes { started_us: 5, now_us: 9 }, metrics);
        let body: Value = serde_json::from_slice(&body).unwrap();
        let instance = json!({"key": "service.instance.id", "value": {"stringValue": "8f14"}});
        let resource = &body["resourceMetrics"][0]["resource"]["attributes"];
        assert!(resource.as_array().unwrap().contains(&instance), "{resource}");
        body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].clone()
    }

    #[test]
    fn each_kind_of_number_has_its_form() {
        let (bytes, seconds) = (Some(MetricUnit::Bytes), Some(MetricUnit::Seconds));
        let unnamed = Metric { otel_name: "".into(), ..metric(MetricKind::Gauge, None, 1.into()) };
        let all = written(&[
            unnamed,
            metric(MetricKind::Counter, bytes, u64::MAX.into()),
            metric(MetricKind::UpDownCounter, None, 7.into()),
            metric(MetricKind::Gauge, seconds, 0.000_000_25.into()),
        ]);
        assert_eq!(all.as_array().unwrap().len(), 3, "a metric without a name is left out");
        let attributes = json!([
            {"key": "shard", "value": {"intValue": "3"}},
            {"key": "state", "value": {"stringValue": "a \"b\""}},
        ]);
        let times = |value: Value| {
            let mut point = json!({"attributes": attributes});
            point["startTimeUnixNano"] = "5000".into();
            point["timeUnixNano"] = "9000".into();
            point.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            json!([point])
        };
        let points = times(json!({"asInt": "9223372036854775807"}));
        assert_eq!(
            all[0],
            json!({"name": "streamdoor.a", "description": "An \"a\".", "unit": "By", "sum": {
                "aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points,
            }})
        );
        assert_eq!(all[1].get("unit"), None);
        assert_eq!(all[1]["sum"]["isMonotonic"], false);
        assert_eq!(all[1]["sum"]["dataPoints"], times(json!({"asInt": "7"})));
        assert_eq!(all[2]["unit"], "s");
        assert_eq!(all[2]["gauge"], json!({"dataPoints": times(json!({"asDouble": 0.00000025}))}));
    }

    #[test]
    fn a_histogram_counts_each_value_between_its_bounds() {
        let (mut latency, mut values) = (Latency::default(), Vec::new());
        for bound_ns in LATENCY_BUCKETS_NS {
            values.extend([bound_ns - 1, bound_ns, bound_ns + 1]);
        }
        values.iter().for_each(|ns| latency.record(*ns, 1));
        let all = written(&[metric(MetricKind::Histogram, None, latency.into())]);
        let point = &all[0]["histogram"]["dataPoints"][0];
        assert_eq!(all[0]["histogram"]["aggregationTemporality"], 2);
        let bounds = point["explicitBounds"].as_array().unwrap();
        let bounds: Vec<f64> = bounds.iter().map(|bound| bound.as_f64().unwrap()).collect();
        let counts = point["bucketCounts"].as_array().unwrap();
        assert_eq!(counts.len(), bounds.len() + 1);
        for (at, count) in counts.iter().enumerate() {
            // A bucket holds the values above its lower bound, up to its upper one.
            let lower = if at == 0 { -1.0 } else { bounds[at - 1] };
            let upper = bounds.get(at).copied().unwrap_or(f64::INFINITY);
            let is_inside = |ns: &&u64| {
                let seconds = **ns as f64 / 1e9;
                seconds > lower && seconds <= upper
            };
            let expected = values.iter().filter(is_inside).count();
            assert_eq!(count, &expected.to_string(), "above {lower} up to {upper}");
        }
        assert_eq!(point["count"], values.len().to_string());
        let sum = values.iter().sum::<u64>() as f64 / 1e9;
        assert_eq!(point["sum"].as_f64(), Some(sum));
    }
}
