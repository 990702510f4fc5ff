//! The list of all metrics.
//!
//! In `/metrics`, names begin with `streamdoor_` and end with their unit; counters add `_total`.
//! The label `shard` holds the number of the shard. For OpenTelemetry, `streamdoor.` stands for
//! `streamdoor_`, and counters add nothing. If a convention of OpenTelemetry fits a metric, the
//! metric has its name and its attributes there.

use std::borrow::Cow;

use crate::endpoint::RequestsOfRoute;
use crate::mcp::Era;
use crate::memory::RingPoolUsage;
use crate::memory::pressure::{DISK_LABELS, Decisive};
use crate::reactor::{self, Clock};
use crate::server::executions::EndedCounts;
use crate::server::metrics::{McpOutcome, ProcessMetrics, ShardMetrics, Snapshot};
use crate::server::process_usage::ProcessUsage;
use crate::server::{NodeStatus, UpstreamCount, UpstreamMeter};
use crate::stream::Outcome;
use crate::trace::{
    Attribute, Counters, Duty, Latency, Metric, MetricKind, MetricUnit, Point, PointValue,
    Transport,
};

impl Snapshot {
    /// Returns all metrics.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut list = List { shards: &self.shards, metrics: Vec::new() };
        list.add("build", "The program.", None, MetricKind::Info);
        list.point(vec![("version", env!("CARGO_PKG_VERSION").into())], 1);
        list.last().otel_name = "".into(); // The version is an attribute of the resource there.
        for (place, (name, text)) in Counters::NAMES.iter().zip(Counters::TEXTS).enumerate() {
            let value = |shard: &ShardMetrics| shard.counters.iter().nth(place).expect("named").1;
            list.counter(name, text.trim(), value);
        }
        list.latencies();
        list.stalls();
        list.reactor();
        list.sockets();
        list.connections();
        list.rings();
        list.executions();
        list.ended();
        list.requests();
        list.mcp();
        list.process(&self.process);
        list.upstreams(&self.upstreams);
        self.node.iter().for_each(|node| list.cluster(node));
        list.usage(self.process.usage);
        list.metrics.retain(|metric| !metric.points.is_empty());
        list.metrics
    }
}

type Value = fn(&ShardMetrics) -> u64;
type Attributes = Vec<(&'static str, Attribute)>;

/// Adds one metric after another.
struct List<'a> {
    shards: &'a [ShardMetrics],
    metrics: Vec<Metric>,
}

impl List<'_> {
    /// Begins a metric. The name is without the unit.
    fn add(&mut self, name: &str, about: &'static str, unit: Option<MetricUnit>, kind: MetricKind) {
        let ending = match unit {
            Some(MetricUnit::Bytes) => "_bytes",
            Some(MetricUnit::Seconds) => "_seconds",
            _ => "",
        };
        let otel_name = format!("streamdoor.{name}{ending}").into();
        let name = format!("streamdoor_{name}").into();
        self.metrics.push(Metric { name, otel_name, about, unit, kind, points: Vec::new() });
    }

    /// Begins a metric that has its names from a convention. An empty name leaves it out.
    fn add_named(
        &mut self,
        (name, otel_name): (&'static str, &'static str),
        about: &'static str,
        unit: Option<MetricUnit>,
        kind: MetricKind,
    ) {
        let (name, otel_name) = (Cow::Borrowed(name), Cow::Borrowed(otel_name));
        self.metrics.push(Metric { name, otel_name, about, unit, kind, points: Vec::new() });
    }

    /// The metric that was begun last.
    fn last(&mut self) -> &mut Metric {
        self.metrics.last_mut().expect("a metric was begun")
    }

    /// Adds a point to the last metric.
    fn point(&mut self, attributes: Attributes, value: impl Into<PointValue>) {
        self.last().points.push(Point { attributes, value: value.into() });
    }

    /// Adds a point of a shard to the last metric.
    fn shard_point(
        &mut self,
        shard: &ShardMetrics,
        more: impl IntoIterator<Item = (&'static str, Attribute)>,
        value: impl Into<PointValue>,
    ) {
        let own = ("shard", Attribute::Number(shard.shard.into()));
        self.point([own].into_iter().chain(more).collect(), value);
    }

    fn counter(&mut self, name: &str, about: &'static str, value: impl Fn(&ShardMetrics) -> u64) {
        self.of_shards(name, about, MetricKind::Counter, value);
    }

    fn gauge(&mut self, name: &str, about: &'static str, value: impl Fn(&ShardMetrics) -> u64) {
        self.of_shards(name, about, MetricKind::Gauge, value);
    }

    /// Adds a metric with one point for each shard. `bytes` in its name is the unit, and moves to
    /// the end.
    fn of_shards(
        &mut self,
        name: &str,
        about: &'static str,
        kind: MetricKind,
        value: impl Fn(&ShardMetrics) -> u64,
    ) {
        let words = name.split('_').filter(|word| *word != "bytes");
        let base = words.collect::<Vec<_>>().join("_");
        let unit = (base.len() < name.len()).then_some(MetricUnit::Bytes);
        self.add(&base, about, unit, kind);
        for shard in self.shards {
            self.shard_point(shard, [], value(shard));
        }
    }

    /// Adds a metric with several points for each shard, which more attributes distinguish.
    fn labelled<const N: usize>(
        &mut self,
        name: &str,
        about: &'static str,
        kind: MetricKind,
        samples: impl Fn(&ShardMetrics) -> Vec<([(&'static str, &'static str); N], u64)>,
    ) {
        self.add(name, about, None, kind);
        for shard in self.shards {
            for (more, value) in samples(shard) {
                let more = more.map(|(name, text)| (name, text.into()));
                self.shard_point(shard, more, value);
            }
        }
    }

    fn latencies(&mut self) {
        let about = "Time from the publication of a chunk until the kernel has it, for streams and \
                     MCP calls. For doors, until it is in the shared ring and sleeping readers are \
                     woken. Rings of other processes are read in place and not counted.";
        self.add("delivery_latency", about, Some(MetricUnit::Seconds), MetricKind::Histogram);
        for shard in self.shards {
            for (transport, latency) in Transport::NAMES.into_iter().zip(*shard.latencies) {
                self.shard_point(shard, [("transport", transport.into())], latency);
            }
        }
    }

    fn stalls(&mut self) {
        let about =
            "Turns that took too long, by duty. A turn with several duties counts for each.";
        let samples = |shard: &ShardMetrics| {
            let samples = Duty::ALL.iter();
            samples.map(|duty| ([("duty", duty.name())], shard.stalls.of(*duty))).collect()
        };
        self.labelled("turns_stalled", about, MetricKind::Counter, samples);
        let about = "Durations of turns that took too long.";
        self.add("stall_duration", about, Some(MetricUnit::Seconds), MetricKind::Histogram);
        for shard in self.shards {
            self.shard_point(shard, [], shard.stalls.durations);
        }
    }

    fn reactor(&mut self) {
        // Each field is named, so the compiler finds a new one that is missing.
        macro_rules! counters {
            ($($field:ident: $name:literal, $text:literal;)+) => {{
                let _all = |counters: reactor::Counters| {
                    let reactor::Counters { sockets: _, $($field: _,)+ } = counters;
                };
                $(self.counter($name, $text, |shard| shard.reactor.$field);)+
            }};
        }
        counters! {
            stale_count: "reactor_stale", "Replies of the kernel that belong to nothing any more.";
            overflow_count: "reactor_overflows", "Times that the completion queue was too small.";
            entered_count: "reactor_entries", "Times that the kernel was entered.";
            blocked_count: "reactor_waits", "Times that the kernel was entered to wait.";
            woken_count: "reactor_wakes", "Wake-ups by other threads that were seen.";
            message_count: "reactor_messages", "Messages to other reactors that were blocked.";
        }
    }

    fn sockets(&mut self) {
        macro_rules! counters {
            ($($field:ident: $name:literal, $text:literal;)+) => {{
                let _all = |counters: reactor::SocketCounters| {
                    let reactor::SocketCounters { $($field: _,)+ } = counters;
                };
                $(self.counter($name, $text, |shard| shard.reactor.sockets.$field);)+
            }};
        }
        counters! {
            accepted_count: "connections_accepted", "Connections accepted.";
            aborted_count: "connections_aborted", "Connections gone before they were reported.";
            connected_count: "connections_made", "Connection attempts that succeeded.";
            unconnected_count: "connections_unmade", "Connection attempts that failed.";
            closed_count: "connections_closed", "Connections closed by the server.";
            released_count: "connections_released", "Connections given to another shard.";
            adopted_count: "connections_adopted", "Connections taken from another shard.";
            paused_count: "listener_pauses", "Times that a listener paused.";
            exhausted_count: "listener_exhaustions", "Pauses because no descriptor was left.";
            cut_count: "sends_cut", "Sends that the kernel accepted only in part.";
            sent_bytes: "bytes_sent", "Bytes sent.";
            received_bytes: "bytes_received", "Bytes received.";
            starved_count: "receives_starved", "Receives that waited for a buffer.";
        }
    }

    fn connections(&mut self) {
        self.gauge("connections", "Connections now.", |shard| shard.connections);
        self.gauge("streams", "Connections that follow executions now.", |shard| shard.streams);
        let text = "Bytes that wait because the kernel did not accept them.";
        self.gauge("bytes_waiting", text, |shard| shard.waiting_bytes);
        self.gauge("agents", "Runs of agents now.", |shard| shard.agents);
        let text = "Executions that other processes share now.";
        self.gauge("doors", text, |shard| shard.doors);
        let text = "Bytes of memory that other processes share now.";
        self.gauge("doors_bytes", text, |shard| shard.door_bytes);
        self.gauge("subscribers", "Subscribers now.", |shard| shard.subscribers);
    }

    fn rings(&mut self) {
        macro_rules! usage {
            ($($field:ident: $kind:ident $name:literal, $text:literal;)+) => {{
                let _all = |usage: RingPoolUsage| {
                    // The shard itself counts what was released.
                    let RingPoolUsage { released_bytes_total: _, $($field: _,)+ } = usage;
                };
                $(self.$kind($name, $text, |shard| shard.rings.$field.into());)+
            }};
        }
        usage! {
            leased_count: gauge "rings_leased", "Rings in use.";
            leased_bytes: gauge "rings_bytes_leased", "Bytes of rings in use.";
            committed_bytes: gauge "rings_bytes_committed", "Bytes of rings bought, used or idle.";
            reserved_bytes: gauge "rings_bytes_reserved", "Address space for rings.";
            leases_total: counter "ring_leases", "Rings leased.";
            purchases_total: counter "ring_purchases", "Purchases of memory for rings.";
        }
        let text = "Bytes that all rings may take now.";
        self.gauge("rings_bytes_allowed", text, |shard| shard.rings_bytes_max);
        let text = "Memory pressure: 0 normal, 1 elevated, 2 critical, 3 survival.";
        self.gauge("memory_pressure_level", text, |shard| shard.pressure as u64);
        let text = "The reading that decided the memory pressure, in percent, at the last change.";
        let sample = |reading: Decisive| ([("reading", reading.label())], reading.percent().into());
        let samples = |shard: &ShardMetrics| shard.decided_by.map(sample).into_iter().collect();
        self.labelled("memory_pressure_percent", text, MetricKind::Gauge, samples);
        let text = "The reading that made disks count as busy, in percent; 0 while they are calm.";
        let samples = |shard: &ShardMetrics| {
            let percent = |label| {
                let reading = shard.busy_disks.filter(|reading| reading.label() == label);
                reading.map_or(0, Decisive::percent)
            };
            DISK_LABELS.map(|label| ([("reading", label)], percent(label).into())).into()
        };
        self.labelled("disks_busy_percent", text, MetricKind::Gauge, samples);
    }

    fn executions(&mut self) {
        const STATES: [(&str, Value); 7] = [
            ("queued", |shard| shard.executions.queued),
            ("running", |shard| shard.executions.running),
            ("draining", |shard| shard.executions.draining),
            ("completed", |shard| shard.executions.completed),
            ("failed", |shard| shard.executions.failed),
            ("cancelled", |shard| shard.executions.cancelled),
            ("timed_out", |shard| shard.executions.timed_out),
        ];
        let text = "Executions that can be found now, by state.";
        let samples = |shard: &ShardMetrics| {
            let samples = STATES.map(|(state, value)| ([("state", state)], value(shard)));
            samples.to_vec()
        };
        self.labelled("executions", text, MetricKind::Gauge, samples);
    }

    /// Adds the ended executions by tool.
    fn ended(&mut self) {
        let text = "Executions that ended, by tool and state. The tool (other) stands for agents \
                    and for tools beyond the limit of names.";
        self.add("executions_ended", text, None, MetricKind::Counter);
        let of_tool = |tool: &str| ("tool", Attribute::Text(tool.to_owned().into()));
        for shard in self.shards {
            for (tool, EndedCounts { by_outcome, .. }) in &shard.ended {
                for (outcome, count) in Outcome::ALL.into_iter().zip(*by_outcome) {
                    let more = [of_tool(tool), ("state", outcome.name().into())];
                    self.shard_point(shard, more, count);
                }
            }
        }
        let text = "Time from the request of an execution to its end, by tool.";
        self.add("execution_duration", text, Some(MetricUnit::Seconds), MetricKind::Histogram);
        for shard in self.shards {
            for (tool, EndedCounts { durations, .. }) in &shard.ended {
                self.shard_point(shard, [of_tool(tool)], *durations);
            }
        }
    }

    /// Adds the answered requests by route. The label `code` is the status. A request without a
    /// route has empty labels.
    fn requests(&mut self) {
        let text = "Requests answered, by route, method and status.";
        self.add("http_requests", text, None, MetricKind::Counter);
        self.last().otel_name = "".into(); // The convention counts by the durations.
        for shard in self.shards {
            for RequestsOfRoute { route, method, by_status } in &shard.requests.routes {
                for (status, durations) in by_status {
                    let more = [
                        ("route", (*route).into()),
                        ("method", (*method).into()),
                        ("code", u64::from(status.code()).into()),
                    ];
                    self.shard_point(shard, more, durations.count());
                }
            }
        }
        let text = "Time from the head of a request to the head of its answer, by route.";
        self.add("http_request_duration", text, Some(MetricUnit::Seconds), MetricKind::Histogram);
        self.last().otel_name = "".into();
        for shard in self.shards {
            for RequestsOfRoute { route, method, by_status } in &shard.requests.routes {
                let mut all = Latency::default();
                by_status.iter().for_each(|(_, durations)| all.merge(durations));
                let more = [("route", (*route).into()), ("method", (*method).into())];
                self.shard_point(shard, more, all);
            }
        }
        self.requests_by_convention();
        let text = "Requests refused, by the code of the error.";
        self.add("requests_refused", text, None, MetricKind::Counter);
        for shard in self.shards {
            for (code, count) in &shard.requests.refusals {
                self.shard_point(shard, [("code", (*code).into())], *count);
            }
        }
    }

    /// Adds the durations of requests with the name and the attributes of the convention
    /// (https://opentelemetry.io/docs/specs/semconv/http/http-metrics/).
    fn requests_by_convention(&mut self) {
        let names = ("", "http.server.request.duration");
        let text = "Duration of HTTP server requests, until the head of the answer.";
        self.add_named(names, text, Some(MetricUnit::Seconds), MetricKind::Histogram);
        for shard in self.shards {
            for RequestsOfRoute { route, method, by_status } in &shard.requests.routes {
                for (status, durations) in by_status {
                    // A request without a route has no known method.
                    let method = if method.is_empty() { "_OTHER" } else { method };
                    let code = status.code();
                    let mut more: Attributes = vec![
                        ("http.request.method", method.into()),
                        ("url.scheme", shard.scheme.into()),
                        ("http.response.status_code", u64::from(code).into()),
                    ];
                    if !route.is_empty() {
                        more.push(("http.route", (*route).into()));
                    }
                    if code >= 500 {
                        more.push(("error.type", Attribute::Text(code.to_string().into())));
                    }
                    self.shard_point(shard, more, *durations);
                }
            }
        }
    }

    fn mcp(&mut self) {
        self.gauge("mcp_sessions", "MCP sessions now.", |shard| shard.mcp.sessions);
        let text = "Streams that MCP clients read piece by piece now.";
        self.gauge("mcp_open_streams", text, |shard| shard.mcp.open_streams);
        let text = "MCP tasks now, running and ended.";
        self.gauge("mcp_tasks", text, |shard| shard.mcp.tasks);
        let text = "Notifications sent over MCP.";
        self.counter("mcp_notifications", text, |shard| shard.mcp.counts.notifications);
        let text = "Notifications sent over MCP that report a gap.";
        self.counter("mcp_gaps", text, |shard| shard.mcp.counts.gaps);
        let text = "MCP sessions evicted to make room for others.";
        self.counter("mcp_sessions_evicted", text, |shard| shard.mcp.counts.sessions_evicted);
        let text = "MCP sessions that were not used for too long.";
        let idled_out = |shard: &ShardMetrics| shard.mcp.counts.sessions_idled_out;
        self.counter("mcp_sessions_idled_out", text, idled_out);
        let text = "Ended tool calls over MCP, by era and outcome.";
        let samples = |shard: &ShardMetrics| {
            let eras = [("handshake", Era::Handshake), ("stateless", Era::Stateless)];
            let of_era = |(name, era): (&'static str, Era)| {
                let counts = shard.mcp.counts.calls[era as usize];
                McpOutcome::NAMES
                    .into_iter()
                    .zip(counts)
                    .map(move |(outcome, count)| ([("era", name), ("outcome", outcome)], count))
            };
            eras.into_iter().flat_map(of_era).collect()
        };
        self.labelled("mcp_calls", text, MetricKind::Counter, samples);
    }

    fn process(&mut self, process: &ProcessMetrics) {
        let is_up = |shard| u64::from(!process.dead_shards.contains(&shard));
        self.add("shard_up", "1 if the shard runs, 0 if it has died.", None, MetricKind::Gauge);
        for shard in 0..process.shard_count {
            self.point(vec![("shard", u64::from(shard).into())], is_up(shard));
        }
        let text = "Maximum number of connections.";
        self.add("connections_allowed", text, None, MetricKind::Gauge);
        self.point(Vec::new(), process.connections_max);
        let text = "Log records dropped because the queue was full.";
        self.add("log_records_dropped", text, None, MetricKind::Counter);
        self.point(Vec::new(), process.log_records_dropped);
        let text = "Spans dropped because the queue was full.";
        self.add("spans_dropped", text, None, MetricKind::Counter);
        self.point(Vec::new(), process.spans_dropped);
    }

    /// Adds the counts of other servers whose tools are offered here, by name.
    fn upstreams(&mut self, upstreams: &[UpstreamMeter]) {
        for (count, name, text) in UpstreamCount::ALL {
            let base = name.strip_suffix("_bytes").unwrap_or(name);
            let unit = (base.len() < name.len()).then_some(MetricUnit::Bytes);
            self.add(base, text, unit, MetricKind::Counter);
            for upstream in upstreams {
                let name = Attribute::Text(upstream.name().to_owned().into());
                self.point(vec![("upstream", name)], upstream.count(count));
            }
        }
    }

    /// Adds the numbers of a node of a cluster.
    fn cluster(&mut self, node: &NodeStatus) {
        let NodeStatus { counters, acks, .. } = node;
        for (name, text, value) in [
            ("up", "1 if the node has its lease, else 0.", u64::from(node.has_lease)),
            ("nodes", "Nodes that have a lease.", node.nodes),
            ("mirrored", "Executions of this node that are being mirrored.", node.mirrored),
            ("replicas", "Executions of other nodes that are followed here.", node.replicas),
        ] {
            self.whole(name, text, None, MetricKind::Gauge, value);
        }
        let bytes = Some(MetricUnit::Bytes);
        let text = "Bytes of all executions that wait for the log.";
        self.whole("buffer", text, bytes, MetricKind::Gauge, node.buffer_bytes);
        let text = "Bytes of the execution of which most wait for the log.";
        self.whole("mirror_lag", text, bytes, MetricKind::Gauge, node.lag_bytes);
        let text = "Time until the others may count the node as lost, less a margin.";
        self.add("cluster_lease_left", text, Some(MetricUnit::Seconds), MetricKind::Gauge);
        self.point(Vec::new(), node.lease_left.as_secs_f64());
        let text = "Bytes of the records of this node that the log has.";
        self.whole("record", text, bytes, MetricKind::Counter, counters.record_bytes);
        for (name, text, value) in [
            ("records", "Records of this node that the log has.", counters.records),
            ("mirrors_ended", "Executions that are mirrored no more.", counters.mirrored),
            ("chunks_unwritten", "Chunks that became a gap in the log.", counters.unwritten),
            ("ends_for_others", "Executions of lost nodes ended here.", counters.ends_for_others),
            ("gets", "Requests for records of other nodes.", counters.gets),
            ("repeats", "Records of other nodes that came more than once.", counters.repeats),
            ("holes", "Holes in what was heard, which were read again.", counters.holes),
            ("corrupt", "Records that were damaged or of a stranger.", counters.corrupt),
            ("disconnects", "Times that the connection was lost.", counters.disconnects),
        ] {
            self.whole(name, text, None, MetricKind::Counter, value);
        }
        let text = "Records of unknown fate: the log had them, they were sent again, or somebody \
                    else had ended the execution.";
        self.add("cluster_doubts", text, None, MetricKind::Counter);
        for (fate, value) in
            [("adopted", counters.adopted), ("again", counters.again), ("fenced", counters.fenced)]
        {
            self.point(vec![("came_to", fate.into())], value);
        }
        self.add("cluster_lookups", "Lookups of executions.", None, MetricKind::Counter);
        for (result, value) in
            [("found", counters.found), ("not_found", counters.not_found), ("away", counters.away)]
        {
            self.point(vec![("result", result.into())], value);
        }
        let text = "Time from the sending of a record until the log has it.";
        self.add("cluster_ack", text, Some(MetricUnit::Seconds), MetricKind::Histogram);
        self.point(Vec::new(), **acks);
    }

    /// Adds a metric of the cluster with one whole number.
    fn whole(
        &mut self,
        name: &str,
        about: &'static str,
        unit: Option<MetricUnit>,
        kind: MetricKind,
        value: u64,
    ) {
        self.add(&format!("cluster_{name}"), about, unit, kind);
        self.point(Vec::new(), value);
    }

    /// Adds the kernel's numbers of the process, with the names of Prometheus' own libraries
    /// (https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics) and of the
    /// convention (https://opentelemetry.io/docs/specs/semconv/system/process-metrics/).
    fn usage(&mut self, usage: ProcessUsage) {
        use MetricKind::{Counter, Gauge, UpDownCounter};
        const SECONDS: Option<MetricUnit> = Some(MetricUnit::Seconds);
        const BYTES: Option<MetricUnit> = Some(MetricUnit::Bytes);
        let ProcessUsage { cpu_seconds, start_seconds, .. } = usage;
        let uptime = start_seconds.map(|start| (Clock::wall_us() as f64 / 1e6 - start).max(0.0));
        for (names, text, unit, kind, value) in [
            (
                ("process_cpu", "process.cpu.time"),
                "Processor time of all threads.",
                SECONDS,
                Counter,
                cpu_seconds.map(PointValue::from),
            ),
            (
                ("process_start_time", ""),
                "Start of the process, since 1970.",
                SECONDS,
                Gauge,
                start_seconds.map(PointValue::from),
            ),
            (
                ("", "process.uptime"),
                "The time for which the process has run.",
                SECONDS,
                Gauge,
                uptime.map(PointValue::from),
            ),
            (
                ("process_resident_memory", "process.memory.usage"),
                "Memory in use.",
                BYTES,
                UpDownCounter,
                usage.resident_bytes.map(PointValue::from),
            ),
            (
                ("process_virtual_memory", "process.memory.virtual"),
                "Address space in use.",
                BYTES,
                UpDownCounter,
                usage.virtual_bytes.map(PointValue::from),
            ),
            (
                ("process_threads", "process.thread.count"),
                "Threads of the process.",
                Some(MetricUnit::Threads),
                UpDownCounter,
                usage.threads.map(PointValue::from),
            ),
            (
                ("process_open_fds", "process.unix.file_descriptor.count"),
                "Open descriptors.",
                Some(MetricUnit::FileDescriptors),
                UpDownCounter,
                usage.open_fds.map(PointValue::from),
            ),
            (
                ("process_max_fds", "streamdoor.file_descriptors_allowed"),
                "Maximum number of descriptors.",
                None,
                Gauge,
                usage.max_fds.map(PointValue::from),
            ),
        ] {
            if let Some(value) = value {
                self.add_named(names, text, unit, kind);
                self.point(Vec::new(), value);
            }
        }
    }
}
