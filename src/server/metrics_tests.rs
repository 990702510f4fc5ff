//! Tests of the metrics, with a strict reader of both formats.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::{MetricsFormat, RequestCounts, RequestsOfRoute};
use crate::memory::pressure::Decisive;
use crate::memory::{Pressure, RingPoolUsage};
use crate::reactor::{Counters as ReactorCounters, SocketCounters};
use crate::server::executions::EndedCounts;
use crate::server::metrics::{
    ExecutionCounts, McpCounts, McpMetrics, ProcessMetrics, ShardMetrics, Snapshot, render,
};
use crate::server::process_usage::ProcessUsage;
use crate::server::{NodeCounters, NodeStatus, UpstreamCount, UpstreamMeter};
use crate::trace::{
    Attribute, Counters, Duties, Duty, Latencies, Latency, Metric, PointValue, Stalls, Transport,
};
use crate::wire::http1::Status;

/// Families by name.
type Families = BTreeMap<String, Family>;

#[derive(Debug, Default)]
struct Family {
    kind: String,
    unit: Option<String>,
    samples: BTreeMap<String, u64>,
    /// The buckets of the histogram that is being read: bounds, and the counts below them.
    buckets: Vec<(f64, u64)>,
}

fn is_name(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(is_inner)
        && !text.contains("__")
}

/// Checks labels such as `{a="b",c="d"}`, with plain values.
fn check_labels(text: &str) {
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let mut names = Vec::new();
    for label in inner.expect("labels are in braces").split(',') {
        let (name, value) = label.split_once('=').expect("a label has a value");
        assert!(is_name(name), "{text}");
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let value = value.expect("a value is quoted");
        assert!(!value.is_empty() && !value.contains(['"', '\\', '\n', '{', '}']), "{text}");
        assert!(!names.contains(&name), "{text}");
        names.push(name);
    }
}

/// Reads one line of a histogram: `_sum`, `_count`, then its buckets, the last of which has no
/// bound. The sum is stored in nanoseconds.
fn read_histogram(family: &mut Family, line: &str) {
    let (name, value) = line.split_once(' ').expect("a value");
    let (suffix, labels) = name.split_at(name.find('{').unwrap_or(name.len()));
    if !labels.is_empty() {
        check_labels(labels);
    }
    if suffix != "_bucket" {
        assert!(family.buckets.is_empty(), "{line}");
        let number = match suffix {
            "_sum" => (value.parse::<f64>().unwrap() * 1e9).round() as u64,
            "_count" => value.parse().unwrap(),
            _ => panic!("{line}"),
        };
        assert!(family.samples.insert(name.to_owned(), number).is_none(), "{line}");
        return;
    }
    let labels = labels[1..labels.len() - 1].split(',');
    let (bounds, others): (Vec<&str>, Vec<&str>) =
        labels.partition(|label| label.starts_with("le=\""));
    let others = others.join(",");
    let [bound] = bounds[..] else { panic!("{line}: one bound") };
    let name = format!("_bucket{{{others},{bound}}}");
    let bound = &bound["le=\"".len()..bound.len() - 1];
    let count = value.parse().unwrap();
    let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() };
    assert!(family.buckets.iter().all(|before| before.0 < bound && before.1 <= count), "{line}");
    family.buckets.push((bound, count));
    assert!(family.samples.insert(name, count).is_none(), "{line}");
    if bound == f64::INFINITY {
        let labels = if others.is_empty() { String::new() } else { format!("{{{others}}}") };
        assert_eq!(family.samples[&format!("_count{labels}")], count, "{line}");
        family.buckets.clear();
    }
}

fn read(text: &str, format: MetricsFormat) -> Families {
    let is_open = format == MetricsFormat::OpenMetrics;
    let mut families = Families::new();
    let mut current: Option<String> = None;
    let body = match is_open {
        true => text.strip_suffix("# EOF\n").expect("the text ends with an end mark"),
        false => text,
    };
    assert!(body.ends_with('\n') && !body.contains('\r') && !body.contains("EOF"));
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').unwrap();
            let (name, about) = rest.split_once(' ').unwrap();
            assert!(is_name(name), "{line}");
            if word == "HELP" {
                assert!(!about.is_empty() && !about.starts_with(' ') && about.ends_with('.'));
                assert!(families.insert(name.to_owned(), Family::default()).is_none(), "{line}");
                current = Some(name.to_owned());
                continue;
            }
            assert_eq!(current.as_deref(), Some(name), "{line}");
            let family = families.get_mut(name).unwrap();
            assert!(family.samples.is_empty(), "{line}");
            match word {
                "TYPE" => family.kind = about.to_owned(),
                "UNIT" => {
                    assert!(is_open && name.ends_with(&format!("_{about}")), "{line}");
                    family.unit = Some(about.to_owned());
                }
                _ => panic!("{line}"),
            }
            continue;
        }
        let name = current.as_deref().expect("a family has a name first");
        let family = families.get_mut(name).unwrap();
        if family.kind == "histogram" {
            read_histogram(family, line.strip_prefix(name).expect("its name"));
            continue;
        }
        let suffix = match (&*family.kind, is_open) {
            ("counter", true) => "_total",
            ("info", true) => "_info",
            ("counter", false) => {
                assert!(name.ends_with("_total"), "{line}");
                ""
            }
            ("gauge", _) => "",
            (other, _) => panic!("{line}: {other}"),
        };
        let rest = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(suffix));
        let (labels, value) = rest.expect("a sample bears its name").split_once(' ').unwrap();
        if !labels.is_empty() {
            check_labels(labels);
        }
        // Numbers of the kernel may have a fraction.
        let whole = value.split_once('.').map_or(value, |(whole, _)| whole);
        let value = whole.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(family.samples.insert(labels.to_owned(), value).is_none(), "{line}");
    }
    let texts = text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let mut texts: Vec<&str> = texts.map(|(_, text)| text).collect();
    texts.sort_unstable();
    assert!(texts.windows(2).all(|pair| pair[0] != pair[1]), "{texts:?}");
    for (name, family) in &families {
        assert!(!family.samples.is_empty(), "{name}");
        assert!(family.buckets.is_empty(), "{name}: without an end");
        let has_unit = name.contains("bytes") || name.contains("seconds");
        assert_eq!(family.unit.is_some(), is_open && has_unit, "{name}");
        assert!(name.starts_with("streamdoor_") || name.starts_with("process_"), "{name}");
    }
    families
}

fn shard(number: u32) -> ShardMetrics {
    let mut latencies = Latencies::default();
    latencies[Transport::Door as usize].record(2_000, 3);
    latencies[Transport::Door as usize].record(60_000_000_000, 1);
    let (mut stalls, mut did) = (Stalls::default(), Duties::default());
    did.note(Duty::Tools);
    stalls.record(did, 100_001);
    did.note(Duty::Sends);
    stalls.record(did, 3_000_000);
    let sockets = SocketCounters { sent_bytes: 77, exhausted_count: 5, ..Default::default() };
    ShardMetrics {
        shard: number,
        counters: Counters {
            chunks_published: 10 + u64::from(number),
            bytes_published: u64::MAX,
            frames_reused: 31,
            frames_encoded: 2,
            ..Counters::default()
        },
        latencies: Box::new(latencies),
        stalls: Box::new(stalls),
        reactor: ReactorCounters { entered_count: 4, sockets, ..Default::default() },
        rings: RingPoolUsage { leased_count: 3, leased_bytes: 48 << 10, ..Default::default() },
        rings_bytes_max: 1 << 20,
        pressure: Pressure::Critical,
        decided_by: Decisive::new(1, 29.5),
        busy_disks: Decisive::new(2, 92.7),
        executions: ExecutionCounts { running: 2, timed_out: 1, ..Default::default() },
        subscribers: 6,
        connections: 9,
        streams: 8,
        agents: 1,
        doors: 2,
        door_bytes: 3,
        waiting_bytes: 12,
        mcp: McpMetrics {
            counts: McpCounts {
                calls: [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]],
                notifications: 21,
                gaps: 22,
                sessions_evicted: 23,
                sessions_idled_out: 24,
            },
            sessions: 25,
            open_streams: 26,
            tasks: 27,
        },
        requests: requests(),
        scheme: "https",
        ended: ended(),
    }
}

fn ended() -> Vec<(String, EndedCounts)> {
    let mut durations = Latency::default();
    durations.record(20_000_000_000, 3);
    vec![("echo".to_owned(), EndedCounts { by_outcome: [2, 1, 0, 0], durations })]
}

fn requests() -> RequestCounts {
    let took = |ns, count| {
        let mut durations = Latency::default();
        durations.record(ns, count);
        durations
    };
    let by_status = vec![(Status::OK, took(2_000, 2)), (Status::CREATED, took(3_000, 1))];
    let (method, route) = ("POST", "/v1/executions");
    let of_route = RequestsOfRoute { method, route, by_status };
    RequestCounts { routes: vec![of_route], refusals: vec![("unknown_path", 4)] }
}

fn upstreams() -> Arc<[UpstreamMeter]> {
    let meter = UpstreamMeter::new("files");
    meter.add(UpstreamCount::Calls, 3);
    meter.add(UpstreamCount::ReceivedBytes, 9);
    [meter].into()
}

fn node() -> NodeStatus {
    let mut acks = Latency::default();
    acks.record(2_000, 3);
    let counters = NodeCounters { records: 41, again: 42, away: 43, ..NodeCounters::default() };
    NodeStatus {
        has_lease: true,
        lease_left: Duration::from_secs(4),
        buffer_bytes: 44,
        counters,
        acks: acks.into(),
        ..NodeStatus::default()
    }
}

fn snapshot() -> Snapshot {
    let process = ProcessMetrics {
        connections_max: 1_000,
        log_records_dropped: 7,
        spans_dropped: 11,
        shard_count: 3,
        dead_shards: vec![2],
        usage: ProcessUsage {
            cpu_seconds: Some(1.5),
            start_seconds: Some(1e9),
            resident_bytes: Some(4_096),
            virtual_bytes: Some(8_192),
            threads: Some(3),
            open_fds: Some(17),
            max_fds: Some(1_024),
        },
    };
    let shards = vec![shard(0), shard(1)];
    Snapshot { shards, process, upstreams: upstreams(), node: Some(node()) }
}

fn rendered(format: MetricsFormat) -> String {
    String::from_utf8(render(format, snapshot().metrics())).unwrap()
}

#[test]
fn both_formats_pass_a_strict_reader_and_say_the_same() {
    let newer = read(&rendered(MetricsFormat::OpenMetrics), MetricsFormat::OpenMetrics);
    let older = read(&rendered(MetricsFormat::Prometheus), MetricsFormat::Prometheus);
    assert_eq!(newer.len(), older.len());
    for (name, family) in &newer {
        let ending = match &*family.kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        assert_eq!(family.samples, older[&format!("{name}{ending}")].samples, "{name}");
    }
}

#[test]
fn requests_stand_under_their_route_and_refusals_under_their_code() {
    let families = read(&rendered(MetricsFormat::OpenMetrics), MetricsFormat::OpenMetrics);
    let value = |name: &str, labels: String| families[name].samples[&labels];
    let of_route = "shard=\"0\",route=\"/v1/executions\",method=\"POST\"";
    let requests = "streamdoor_http_requests";
    assert_eq!(value(requests, format!("{{{of_route},code=\"200\"}}")), 2);
    assert_eq!(value(requests, format!("{{{of_route},code=\"201\"}}")), 1);
    let refused = "{shard=\"1\",code=\"unknown_path\"}".to_owned();
    assert_eq!(value("streamdoor_requests_refused", refused), 4);
    let took = &families["streamdoor_http_request_duration_seconds"].samples;
    let samples = |what: &str| took[&format!("{what}{{{of_route}}}")];
    assert_eq!((samples("_count"), samples("_sum")), (3, 7_000), "of all statuses");
}

/// Returns the points of an exported metric, each with its attributes as one text.
fn exported(metrics: &[Metric], name: &str) -> Vec<(String, PointValue)> {
    let metric = metrics.iter().find(|metric| metric.otel_name == name);
    let metric = metric.unwrap_or_else(|| panic!("no {name}"));
    let shown = |(name, value): &(&str, Attribute)| match value {
        Attribute::Text(text) => format!("{name}={text}"),
        Attribute::Number(number) => format!("{name}:{number}"),
    };
    let points = metric.points.iter();
    let shown = points.map(|point| {
        let attributes: Vec<String> = point.attributes.iter().map(shown).collect();
        (attributes.join(" "), point.value.clone())
    });
    shown.collect()
}

#[test]
fn requests_and_the_process_are_exported_as_the_conventions_say() {
    let mut snapshot = snapshot();
    let mut durations = Latency::default();
    durations.record(7_000, 5);
    let by_status = vec![(Status::SERVICE_UNAVAILABLE, durations)];
    let without = RequestsOfRoute { method: "", route: "", by_status };
    snapshot.shards[0].requests.routes.push(without);
    let metrics = snapshot.metrics();
    let requests = exported(&metrics, "http.server.request.duration");
    let of_shard: Vec<(&str, u64)> = requests[..3]
        .iter()
        .map(|(attributes, value)| match value {
            PointValue::Distribution(durations) => (&**attributes, durations.count()),
            other => panic!("{other:?}"),
        })
        .collect();
    let request = "shard:0 http.request.method=POST url.scheme=https";
    let route = "http.route=/v1/executions";
    let expected = [
        (&*format!("{request} http.response.status_code:200 {route}"), 2),
        (&*format!("{request} http.response.status_code:201 {route}"), 1),
        (
            "shard:0 http.request.method=_OTHER url.scheme=https http.response.status_code:503 \
             error.type=503",
            5,
        ),
    ];
    assert_eq!((of_shard.as_slice(), requests.len()), (expected.as_slice(), 5));
    for (name, value) in [
        ("process.cpu.time", 1.5.into()),
        ("process.memory.usage", 4_096.into()),
        ("process.memory.virtual", 8_192.into()),
        ("process.thread.count", 3.into()),
        ("process.unix.file_descriptor.count", 17.into()),
    ] {
        assert_eq!(exported(&metrics, name), [(String::new(), value)], "{name}");
    }
    assert!(exported(&metrics, "process.uptime").len() == 1);
}

#[test]
fn every_metric_is_exported_once_under_the_name_that_it_has_in_the_text() {
    let metrics = snapshot().metrics();
    let families = read(&rendered(MetricsFormat::OpenMetrics), MetricsFormat::OpenMetrics);
    let mut names: Vec<&str> = metrics.iter().map(|metric| &*metric.otel_name).collect();
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    let own = |name: &&&str| name.starts_with("streamdoor.");
    for name in names.iter().filter(own) {
        let in_text = match *name {
            "streamdoor.file_descriptors_allowed" => "process_max_fds".to_owned(),
            _ => name.replacen('.', "_", 1),
        };
        assert!(families.contains_key(&in_text), "{name}");
    }
    for metric in metrics.iter().filter(|metric| metric.otel_name.is_empty()) {
        // The resource has the version, and conventions have other forms of the rest.
        let others = ["_build", "_http_requests", "_http_request_duration", "_start_time"];
        assert!(others.iter().any(|end| metric.name.ends_with(end)), "{}", metric.name);
    }
}

#[test]
fn executions_stand_under_their_tool_and_state() {
    let families = read(&rendered(MetricsFormat::OpenMetrics), MetricsFormat::OpenMetrics);
    let value = |name: &str, labels: &str| families[name].samples[labels];
    for (state, count) in [("completed", 2), ("failed", 1), ("cancelled", 0), ("timed_out", 0)] {
        let labels = format!("{{shard=\"1\",tool=\"echo\",state=\"{state}\"}}");
        assert_eq!(value("streamdoor_executions_ended", &labels), count, "{state}");
    }
    let took = "streamdoor_execution_duration_seconds";
    let labels = "{shard=\"0\",tool=\"echo\"";
    assert_eq!(value(took, &format!("_bucket{labels},le=\"10.0\"}}")), 0);
    assert_eq!(value(took, &format!("_bucket{labels},le=\"25.0\"}}")), 3);
    assert_eq!(value(took, &format!("_count{labels}}}")), 3);
}

#[test]
fn the_process_has_the_names_of_prometheus() {
    let text = rendered(MetricsFormat::Prometheus);
    for line in [
        "process_cpu_seconds_total 1.5",
        "process_start_time_seconds 1000000000.0",
        "process_resident_memory_bytes 4096",
        "process_virtual_memory_bytes 8192",
        "process_threads 3",
        "process_open_fds 17",
        "process_max_fds 1024",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

#[test]
fn the_numbers_of_a_node_are_told_if_there_is_one() {
    let families = read(&rendered(MetricsFormat::OpenMetrics), MetricsFormat::OpenMetrics);
    for (name, labels, expected) in [
        ("up", "", 1),
        ("buffer_bytes", "", 44),
        ("records", "", 41),
        ("doubts", "{came_to=\"again\"}", 42),
        ("lookups", "{result=\"away\"}", 43),
        ("ack_seconds", "_count", 3),
    ] {
        let samples = &families[&format!("streamdoor_cluster_{name}")].samples;
        assert_eq!(samples.get(labels), Some(&expected), "{name}{labels}: {samples:?}");
    }
    let alone = Snapshot { node: None, ..snapshot() };
    let text = String::from_utf8(render(MetricsFormat::OpenMetrics, alone.metrics())).unwrap();
    assert!(!text.contains("cluster"), "{text}");
}

#[test]
fn every_number_stands_under_its_name_unit_and_shard() {
    let families = read(&rendered(MetricsFormat::OpenMetrics), MetricsFormat::OpenMetrics);
    let value = |name: &str, labels: &str| {
        let samples = &families[&format!("streamdoor_{name}")].samples;
        *samples.get(labels).unwrap_or_else(|| panic!("no {name}{labels} in {samples:?}"))
    };
    assert_eq!(value("chunks_published", "{shard=\"0\"}"), 10);
    assert_eq!(value("chunks_published", "{shard=\"1\"}"), 11);
    assert_eq!(value("published_bytes", "{shard=\"0\"}"), u64::MAX);
    assert_eq!(value("shard_up", "{shard=\"1\"}"), 1);
    assert_eq!(value("shard_up", "{shard=\"2\"}"), 0);
    assert_eq!(value("sent_bytes", "{shard=\"1\"}"), 77);
    assert_eq!(value("rings_leased_bytes", "{shard=\"1\"}"), 48 << 10);
    assert_eq!(value("rings_leased", "{shard=\"1\"}"), 3);
    assert_eq!(value("listener_exhaustions", "{shard=\"0\"}"), 5);
    assert_eq!(value("reactor_entries", "{shard=\"0\"}"), 4);
    assert_eq!(value("memory_pressure_level", "{shard=\"0\"}"), 2);
    let reading = "{shard=\"0\",reading=\"memory_full\"}";
    assert_eq!(value("memory_pressure_percent", reading), 29);
    assert_eq!(value("disks_busy_percent", "{shard=\"0\",reading=\"io_some\"}"), 92);
    assert_eq!(value("disks_busy_percent", "{shard=\"0\",reading=\"io_full\"}"), 0);
    assert_eq!(value("executions", "{shard=\"0\",state=\"running\"}"), 2);
    assert_eq!(value("executions", "{shard=\"1\",state=\"timed_out\"}"), 1);
    assert_eq!(value("frames_reused", "{shard=\"0\"}"), 31);
    assert_eq!(value("frames_encoded", "{shard=\"0\"}"), 2);
    assert_eq!(value("connections", "{shard=\"0\"}"), 9);
    let latency = |what: &str, bound: &str| {
        let labels = format!("{what}{{shard=\"1\",transport=\"door\"{bound}}}");
        value("delivery_latency_seconds", &labels)
    };
    assert_eq!((latency("_count", ""), latency("_sum", "")), (4, 60_000_006_000));
    assert_eq!(latency("_bucket", ",le=\"0.000001\""), 0);
    assert_eq!(latency("_bucket", ",le=\"0.0000025\""), 3);
    assert_eq!(latency("_bucket", ",le=\"10.0\""), 3);
    assert_eq!(latency("_bucket", ",le=\"+Inf\""), 4);
    for (duty, count) in [("tools", 2), ("sends", 1), ("rings", 0)] {
        let labels = format!("{{shard=\"1\",duty=\"{duty}\"}}");
        assert_eq!(value("turns_stalled", &labels), count, "{duty}");
    }
    let took = |what: &str| value("stall_duration_seconds", &format!("{what}{{shard=\"0\"}}"));
    assert_eq!((took("_count"), took("_sum")), (2, 3_100_001));
    assert_eq!(value("log_records_dropped", ""), 7);
    assert_eq!(value("spans_dropped", ""), 11);
    assert_eq!(value("upstream_calls", "{upstream=\"files\"}"), 3);
    assert_eq!(value("upstream_received_bytes", "{upstream=\"files\"}"), 9);
    let call = |era: &str, outcome: &str| {
        value("mcp_calls", &format!("{{shard=\"1\",era=\"{era}\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!(call("handshake", "completed"), 1);
    assert_eq!(call("handshake", "cancelled"), 5);
    assert_eq!(call("stateless", "tool_error"), 7);
    assert_eq!(call("stateless", "input_required"), 8);
    assert_eq!(call("stateless", "refused"), 9);
    for (name, count) in [
        ("mcp_notifications", 21),
        ("mcp_gaps", 22),
        ("mcp_sessions_evicted", 23),
        ("mcp_sessions_idled_out", 24),
        ("mcp_sessions", 25),
        ("mcp_open_streams", 26),
        ("mcp_tasks", 27),
    ] {
        assert_eq!(value(name, "{shard=\"0\"}"), count);
    }
    assert_eq!(value("connections_allowed", ""), 1_000);
    let version = concat!("{version=\"", env!("CARGO_PKG_VERSION"), "\"}");
    assert_eq!(value("build", version), 1);
    // Every counter of a shard is included.
    let counter_count = families.values().filter(|family| family.kind == "counter").count();
    assert!(counter_count > Counters::NAMES.len());
}

#[test]
fn every_metric_that_a_page_names_is_told_under_that_name() {
    let text = rendered(MetricsFormat::Prometheus);
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let told: Vec<&str> = families.map(|(name, _)| name).collect();
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    for (page, text) in [
        ("http.md", include_str!("../guide/http.md")),
        ("gateway.md", include_str!("../guide/gateway.md")),
        ("performance.md", include_str!("../guide/performance.md")),
    ] {
        let named: Vec<&str> =
            text.split(|c| !is_of_name(c)).filter(|word| word.starts_with("streamdoor_")).collect();
        assert!(!named.is_empty(), "{page}");
        for name in named {
            assert!(told.contains(&name), "{page} names `{name}`, which is not one of {told:?}");
        }
    }
}

#[test]
fn without_shards_there_is_still_a_right_text() {
    for format in [MetricsFormat::OpenMetrics, MetricsFormat::Prometheus] {
        let text = render(format, Snapshot::default().metrics());
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("streamdoor_build_info{"), "{text}");
        assert!(read(&text, format).len() > 2);
    }
}

#[test]
fn promtool_finds_nothing_wrong() {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.stdout(Stdio::piped()).spawn() else {
        println!("not run: promtool (of Prometheus) is not installed");
        return;
    };
    let text = rendered(MetricsFormat::Prometheus);
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}
