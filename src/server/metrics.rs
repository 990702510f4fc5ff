//! The metrics of a server: OpenMetrics 1.0, or Prometheus' older text format 0.0.4.
//!
//! The shards count in plain numbers and copy them out between two turns ([`ShardMetrics`]). They
//! become text here, off the chunk path. The library `prometheus-client` writes OpenMetrics. The
//! older format consists of the same lines without those that it does not know, and with the full
//! names of counters. All names begin with `streamdoor_` and end with their unit; counters add
//! `_total`. The label `shard` holds the number of the shard.
//!
//! Tests: `metrics_tests.rs`, with a strict reader.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::endpoint::{MetricsFormat, RequestCounts};
use crate::mcp::Era;
use crate::memory::pressure::Decisive;
use crate::memory::{Pressure, RingPoolUsage};
use crate::server::executions::EndedCounts;
use crate::server::process_usage::ProcessUsage;
use crate::server::{UpstreamCount, UpstreamMeter};
use crate::stream::Outcome;
use crate::trace::{Counters, Duty, Latencies, Latency, Stalls, Transport};
use crate::{limits, reactor};

/// The numbers of one shard at one moment.
#[derive(Clone, Debug)]
pub struct ShardMetrics {
    /// The number of the shard.
    pub shard: u32,
    /// The counters of its loop and its engine.
    pub counters: Counters,
    /// The delivery times of chunks.
    pub latencies: Box<Latencies>,
    /// The duties and durations of turns that took too long.
    pub stalls: Box<Stalls>,
    /// The counters of its reactor.
    pub reactor: reactor::Counters,
    /// The memory that its rings take.
    pub rings: RingPoolUsage,
    /// Maximum number of bytes that its rings may take.
    pub rings_bytes_max: u64,
    /// The memory pressure.
    pub pressure: Pressure,
    /// The reading that decided the pressure.
    pub decided_by: Option<Decisive>,
    /// The reading about disks that has reached its threshold.
    pub busy_disks: Option<Decisive>,
    /// Number of executions, by state.
    pub executions: ExecutionCounts,
    /// Number of subscribers.
    pub subscribers: u64,
    /// Number of connections.
    pub connections: u64,
    /// Number of connections that are streams.
    pub streams: u64,
    /// Number of bytes that wait to be sent because the kernel did not accept them.
    pub waiting_bytes: u64,
    /// Number of runs of agents.
    pub agents: u64,
    /// Number of executions that other processes share.
    pub doors: u64,
    /// Number of bytes of memory that other processes share.
    pub door_bytes: u64,
    /// The numbers of clients of the Model Context Protocol.
    pub mcp: McpMetrics,
    /// The counts of answered requests.
    pub requests: RequestCounts,
    /// The counts of ended executions by the name of their tool.
    pub ended: Vec<(String, EndedCounts)>,
}

/// The numbers of clients of the Model Context Protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct McpMetrics {
    /// The counters.
    pub counts: McpCounts,
    /// Number of sessions.
    pub sessions: u64,
    /// Number of streams that clients read piece by piece.
    pub open_streams: u64,
    /// Number of tasks, running and ended.
    pub tasks: u64,
}

/// The counters for clients of the Model Context Protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct McpCounts {
    /// Ended calls of tools, by [`Era`] and by [`McpOutcome`].
    pub calls: [[u64; McpOutcome::NAMES.len()]; 2],
    /// Notifications sent.
    pub notifications: u64,
    /// Notifications sent that report a gap.
    pub gaps: u64,
    /// Sessions that were evicted to make room for others.
    pub sessions_evicted: u64,
    /// Sessions that were not used for too long.
    pub sessions_idled_out: u64,
}

/// The way in which a call of a tool ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpOutcome {
    /// The client got a result.
    Completed,
    /// The client got a result that is an error: the tool failed, or did not run.
    ToolError,
    /// The client got questions, and has to call again.
    InputRequired,
    /// The client got an error.
    Refused,
    /// The client got nothing, because it cancelled the call or is gone.
    Cancelled,
}

impl McpOutcome {
    /// The names, in the order of the variants.
    pub const NAMES: [&str; 5] =
        ["completed", "tool_error", "input_required", "refused", "cancelled"];
}

/// Number of executions by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutionCounts {
    /// Executions that wait for a ring.
    pub queued: u64,
    /// Executions that run, or wait for subscribers.
    pub running: u64,
    /// Executions whose tools have ended while `block` subscribers still read.
    pub draining: u64,
    // Executions that have ended in this way and can still be read.
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub timed_out: u64,
}

/// The numbers of the process at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessMetrics {
    /// Maximum number of connections.
    pub connections_max: u64,
    /// Records that the log had no room for.
    pub log_records_dropped: u64,
    /// Spans that the queue had no room for.
    pub spans_dropped: u64,
    /// Number of shards that were started.
    pub shard_count: u32,
    /// The numbers of the shards that have died.
    pub dead_shards: Vec<u32>,
    /// The kernel's numbers of the process.
    pub usage: ProcessUsage,
}

impl MetricsFormat {
    /// The media type of the format.
    pub fn media_type(self) -> &'static str {
        match self {
            MetricsFormat::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
            }
            MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Returns all numbers as text.
pub fn render(
    format: MetricsFormat,
    shards: Vec<ShardMetrics>,
    process: ProcessMetrics,
    upstreams: &[UpstreamMeter],
) -> Vec<u8> {
    let usage = process.usage;
    let mut registry = Registry::with_prefix("streamdoor");
    let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "The program", version);
    registry.register_collector(Box::new(Snapshot {
        shards,
        process,
        upstreams: upstreams.to_vec(),
    }));
    let mut open_metrics = String::new();
    text::encode_registry(&mut open_metrics, &registry).expect("a string takes everything");
    text::encode(&mut open_metrics, &of_kernel(usage)).expect("a string takes everything");
    match format {
        MetricsFormat::OpenMetrics => open_metrics.into_bytes(),
        MetricsFormat::Prometheus => older(&open_metrics).into_bytes(),
    }
}

/// Returns the kernel's numbers of the process, with the names of Prometheus' own libraries
/// (https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics).
fn of_kernel(usage: ProcessUsage) -> Registry {
    let mut registry = Registry::with_prefix("process");
    let ProcessUsage { cpu_seconds, start_seconds, .. } = usage;
    if let Some(seconds) = cpu_seconds {
        let text = "Processor time of all threads";
        let counter = ConstCounter::new(seconds);
        registry.register_with_unit("cpu", text, Unit::Seconds, counter);
    }
    if let Some(seconds) = start_seconds {
        let text = "Start of the process, since 1970";
        registry.register_with_unit("start_time", text, Unit::Seconds, ConstGauge::new(seconds));
    }
    for (name, text, bytes) in [
        ("resident_memory", "Memory in use", usage.resident_bytes),
        ("virtual_memory", "Address space in use", usage.virtual_bytes),
    ] {
        if let Some(bytes) = bytes {
            registry.register_with_unit(name, text, Unit::Bytes, ConstGauge::new(bytes));
        }
    }
    for (name, text, count) in [
        ("threads", "Threads of the process", usage.threads),
        ("open_fds", "Open descriptors", usage.open_fds),
        ("max_fds", "Maximum number of descriptors", usage.max_fds),
    ] {
        if let Some(count) = count {
            registry.register(name, text, ConstGauge::new(count));
        }
    }
    registry
}

/// Converts OpenMetrics to Prometheus' older format. It has no units and no end mark. The metadata
/// of counters and infos bear the names of their samples.
fn older(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut help = "";
    for line in open_metrics.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            help = text; // Its name depends on the type, which comes next.
        } else if let Some(text) = line.strip_prefix("# TYPE ") {
            let (name, kind) = text.split_once(' ').expect("a type has a name");
            let (_, sentence) = help.split_once(' ').expect("a sentence has a name");
            let (ending, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                other => ("", other),
            };
            out.push_str(&format!("# HELP {name}{ending} {sentence}\n"));
            out.push_str(&format!("# TYPE {name}{ending} {kind}\n"));
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[derive(Debug)]
struct Snapshot {
    shards: Vec<ShardMetrics>,
    process: ProcessMetrics,
    upstreams: Vec<UpstreamMeter>,
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families { shards: &self.shards, encoder };
        for (place, (name, text)) in Counters::NAMES.iter().zip(Counters::TEXTS).enumerate() {
            let value = |shard: &ShardMetrics| shard.counters.iter().nth(place).expect("named").1;
            families.counter(name, text, value)?;
        }
        families.latencies()?;
        families.stalls()?;
        families.reactor()?;
        families.sockets()?;
        families.connections()?;
        families.rings()?;
        families.executions()?;
        families.ended()?;
        families.requests()?;
        families.mcp()?;
        families.process(&self.process)?;
        families.upstreams(&self.upstreams)
    }
}

/// Writes one metric family after another.
struct Families<'a, 'b> {
    shards: &'a [ShardMetrics],
    encoder: DescriptorEncoder<'b>,
}

type Value = fn(&ShardMetrics) -> u64;

impl EncodeMetric for Latency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = limits::LATENCY_BUCKETS_NS.map(seconds).into_iter().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.counts).collect();
        let count = self.counts.iter().sum();
        encoder.encode_histogram::<NoLabelSet>(seconds(self.sum_ns), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Families<'_, '_> {
    fn latencies(&mut self) -> fmt::Result {
        if self.shards.is_empty() {
            return Ok(());
        }
        let text = "Time from the publication of a chunk until the kernel has it, for streams and \
                    MCP calls. For doors, until it is in the shared ring and sleeping readers are \
                    woken. Rings of other processes are read in place and not counted.";
        let unit = Some(&Unit::Seconds);
        let kind = MetricType::Histogram;
        let mut family = self.encoder.encode_descriptor("delivery_latency", text, unit, kind)?;
        for shard in self.shards {
            let number = shard.shard.to_string();
            for (transport, latency) in Transport::NAMES.into_iter().zip(&*shard.latencies) {
                let labels = [("shard", &*number), ("transport", transport)];
                latency.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn stalls(&mut self) -> fmt::Result {
        if self.shards.is_empty() {
            return Ok(());
        }
        let text = "Turns that took too long, by duty. A turn with several duties counts for each.";
        let samples = |shard: &ShardMetrics| {
            let samples = Duty::ALL.iter();
            samples.map(|duty| ([("duty", duty.name())], shard.stalls.of(*duty))).collect()
        };
        self.labelled("turns_stalled", text, samples, ConstCounter::new)?;
        let text = "Durations of turns that took too long.";
        let unit = Some(&Unit::Seconds);
        let kind = MetricType::Histogram;
        let mut family = self.encoder.encode_descriptor("stall_duration", text, unit, kind)?;
        for shard in self.shards {
            let labels = [("shard", shard.shard)];
            shard.stalls.durations.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn reactor(&mut self) -> fmt::Result {
        // Each field is named, so the compiler finds a new one that is missing.
        macro_rules! counters {
            ($($field:ident: $name:literal, $text:literal;)+) => {{
                let _all = |counters: reactor::Counters| {
                    let reactor::Counters { sockets: _, $($field: _,)+ } = counters;
                };
                $(self.counter($name, $text, |shard| shard.reactor.$field)?;)+
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
        Ok(())
    }

    fn sockets(&mut self) -> fmt::Result {
        macro_rules! counters {
            ($($field:ident: $name:literal, $text:literal;)+) => {{
                let _all = |counters: reactor::SocketCounters| {
                    let reactor::SocketCounters { $($field: _,)+ } = counters;
                };
                $(self.counter($name, $text, |shard| shard.reactor.sockets.$field)?;)+
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
        Ok(())
    }

    fn connections(&mut self) -> fmt::Result {
        self.gauge("connections", "Connections now.", |shard| shard.connections)?;
        self.gauge("streams", "Connections that follow executions now.", |shard| shard.streams)?;
        let text = "Bytes that wait because the kernel did not accept them.";
        self.gauge("bytes_waiting", text, |shard| shard.waiting_bytes)?;
        self.gauge("agents", "Runs of agents now.", |shard| shard.agents)?;
        let text = "Executions that other processes share now.";
        self.gauge("doors", text, |shard| shard.doors)?;
        let text = "Bytes of memory that other processes share now.";
        self.gauge("doors_bytes", text, |shard| shard.door_bytes)?;
        self.gauge("subscribers", "Subscribers now.", |shard| shard.subscribers)
    }

    fn rings(&mut self) -> fmt::Result {
        macro_rules! usage {
            ($($field:ident: $kind:ident $name:literal, $text:literal;)+) => {{
                let _all = |usage: RingPoolUsage| {
                    // The shard itself counts what was released.
                    let RingPoolUsage { released_bytes_total: _, $($field: _,)+ } = usage;
                };
                $(self.$kind($name, $text, |shard| shard.rings.$field.into())?;)+
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
        self.gauge("rings_bytes_allowed", text, |shard| shard.rings_bytes_max)?;
        let text = "Memory pressure: 0 normal, 1 elevated, 2 critical, 3 survival.";
        self.gauge("memory_pressure_level", text, |shard| shard.pressure as u64)?;
        let text = "The reading that decided the memory pressure, in percent, at the last change.";
        let sample = |reading: Decisive| ([("reading", reading.label())], reading.percent().into());
        let samples =
            |shard: &ShardMetrics| shard.decided_by.map(sample).into_iter().collect::<Vec<_>>();
        self.labelled("memory_pressure_percent", text, samples, ConstGauge::new)?;
        let text =
            "The reading that made disks count as busy, in percent; none while they are calm.";
        let samples =
            |shard: &ShardMetrics| shard.busy_disks.map(sample).into_iter().collect::<Vec<_>>();
        self.labelled("disks_busy_percent", text, samples, ConstGauge::new)
    }

    fn executions(&mut self) -> fmt::Result {
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
        self.labelled("executions", text, samples, ConstGauge::new)
    }

    /// Writes the ended executions by tool.
    fn ended(&mut self) -> fmt::Result {
        if self.shards.is_empty() {
            return Ok(());
        }
        let text = "Executions that ended, by tool and state. The tool (other) stands for agents \
                    and for tools beyond the limit of names.";
        let kind = MetricType::Counter;
        let mut family = self.encoder.encode_descriptor("executions_ended", text, None, kind)?;
        for shard in self.shards {
            let number = shard.shard.to_string();
            for (tool, counts) in &shard.ended {
                for (outcome, count) in Outcome::ALL.into_iter().zip(counts.by_outcome) {
                    let labels = [("shard", &*number), ("tool", tool), ("state", outcome.name())];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let text = "Time from the request of an execution to its end, by tool.";
        let (unit, kind) = (Some(&Unit::Seconds), MetricType::Histogram);
        let mut family = self.encoder.encode_descriptor("execution_duration", text, unit, kind)?;
        for shard in self.shards {
            let number = shard.shard.to_string();
            for (tool, counts) in &shard.ended {
                let labels = [("shard", &*number), ("tool", tool)];
                counts.durations.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// Writes the answered requests by route. The label `code` is the status. A request without a
    /// route has empty labels.
    fn requests(&mut self) -> fmt::Result {
        if self.shards.is_empty() {
            return Ok(());
        }
        let text = "Requests answered, by route, method and status.";
        let kind = MetricType::Counter;
        let mut family = self.encoder.encode_descriptor("http_requests", text, None, kind)?;
        for shard in self.shards {
            let number = shard.shard.to_string();
            for of in &shard.requests.routes {
                for (status, count) in &of.by_status {
                    let code = status.code().to_string();
                    let labels = [
                        ("shard", &*number),
                        ("route", of.route),
                        ("method", of.method),
                        ("code", &*code),
                    ];
                    ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let text = "Time from the head of a request to the head of its answer, by route.";
        let (unit, kind) = (Some(&Unit::Seconds), MetricType::Histogram);
        let mut family =
            self.encoder.encode_descriptor("http_request_duration", text, unit, kind)?;
        for shard in self.shards {
            let number = shard.shard.to_string();
            for of in &shard.requests.routes {
                let labels = [("shard", &*number), ("route", of.route), ("method", of.method)];
                of.durations.encode(family.encode_family(&labels)?)?;
            }
        }
        let text = "Requests refused, by the code of the error.";
        let kind = MetricType::Counter;
        let mut family = self.encoder.encode_descriptor("requests_refused", text, None, kind)?;
        for shard in self.shards {
            let number = shard.shard.to_string();
            for (code, count) in &shard.requests.refusals {
                let labels = [("shard", &*number), ("code", *code)];
                ConstCounter::new(*count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn mcp(&mut self) -> fmt::Result {
        self.gauge("mcp_sessions", "MCP sessions now.", |shard| shard.mcp.sessions)?;
        let text = "Streams that MCP clients read piece by piece now.";
        self.gauge("mcp_open_streams", text, |shard| shard.mcp.open_streams)?;
        let text = "MCP tasks now, running and ended.";
        self.gauge("mcp_tasks", text, |shard| shard.mcp.tasks)?;
        let text = "Notifications sent over MCP.";
        self.counter("mcp_notifications", text, |shard| shard.mcp.counts.notifications)?;
        let text = "Notifications sent over MCP that report a gap.";
        self.counter("mcp_gaps", text, |shard| shard.mcp.counts.gaps)?;
        let text = "MCP sessions evicted to make room for others.";
        self.counter("mcp_sessions_evicted", text, |shard| shard.mcp.counts.sessions_evicted)?;
        let text = "MCP sessions that were not used for too long.";
        let idled_out = |shard: &ShardMetrics| shard.mcp.counts.sessions_idled_out;
        self.counter("mcp_sessions_idled_out", text, idled_out)?;
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
        self.labelled("mcp_calls", text, samples, ConstCounter::new)
    }

    fn process(&mut self, process: &ProcessMetrics) -> fmt::Result {
        let ProcessMetrics { connections_max, log_records_dropped, spans_dropped, .. } = *process;
        self.lives(process)?;
        let allowed = ConstGauge::new(connections_max);
        let text = "Maximum number of connections.";
        let kind = allowed.metric_type();
        let name = "connections_allowed";
        allowed.encode(self.encoder.encode_descriptor(name, text, None, kind)?)?;
        for (name, text, count) in [
            (
                "log_records_dropped",
                "Log records dropped because the queue was full.",
                log_records_dropped,
            ),
            ("spans_dropped", "Spans dropped because the queue was full.", spans_dropped),
        ] {
            let dropped = ConstCounter::new(count);
            let kind = dropped.metric_type();
            dropped.encode(self.encoder.encode_descriptor(name, text, None, kind)?)?;
        }
        Ok(())
    }

    /// Writes which shards are alive.
    fn lives(&mut self, process: &ProcessMetrics) -> fmt::Result {
        if process.shard_count == 0 {
            return Ok(());
        }
        let text = "1 if the shard runs, 0 if it has died.";
        let kind = MetricType::Gauge;
        let mut family = self.encoder.encode_descriptor("shard_up", text, None, kind)?;
        for shard in 0..process.shard_count {
            let is_up = u64::from(!process.dead_shards.contains(&shard));
            ConstGauge::new(is_up).encode(family.encode_family(&[("shard", shard)])?)?;
        }
        Ok(())
    }

    /// Writes the counts of other servers whose tools are offered here, by name.
    fn upstreams(&mut self, upstreams: &[UpstreamMeter]) -> fmt::Result {
        if upstreams.is_empty() {
            return Ok(());
        }
        for (count, name, text) in UpstreamCount::ALL {
            let base = name.strip_suffix("_bytes").unwrap_or(name);
            let unit = (base.len() < name.len()).then_some(&Unit::Bytes);
            let kind = MetricType::Counter;
            let mut family = self.encoder.encode_descriptor(base, text, unit, kind)?;
            for upstream in upstreams {
                let labels = [("upstream", upstream.name())];
                ConstCounter::new(upstream.count(count)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn counter(
        &mut self,
        name: &str,
        text: &str,
        value: impl Fn(&ShardMetrics) -> u64,
    ) -> fmt::Result {
        self.family(name, text, |shard| ConstCounter::new(value(shard)))
    }

    fn gauge(&mut self, name: &str, text: &str, value: Value) -> fmt::Result {
        self.family(name, text, |shard| ConstGauge::new(value(shard)))
    }

    /// Writes one family with several samples for each shard, which more labels distinguish.
    fn labelled<const N: usize, M: EncodeMetric>(
        &mut self,
        name: &str,
        text: &str,
        samples: impl Fn(&ShardMetrics) -> Vec<([(&'static str, &'static str); N], u64)>,
        metric: fn(u64) -> M,
    ) -> fmt::Result {
        if self.shards.is_empty() {
            return Ok(());
        }
        let kind = metric(0).metric_type();
        let mut family = self.encoder.encode_descriptor(name, text, None, kind)?;
        for shard in self.shards {
            let number = shard.shard.to_string();
            for (more, value) in samples(shard) {
                let labels: Vec<_> = [("shard", &*number)].into_iter().chain(more).collect();
                metric(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// Writes one family with one sample for each shard. `bytes` in its name is the unit, and moves
    /// to the end.
    fn family<M: EncodeMetric>(
        &mut self,
        name: &str,
        text: &str,
        metric: impl Fn(&ShardMetrics) -> M,
    ) -> fmt::Result {
        let Some(first) = self.shards.first() else { return Ok(()) };
        let words = name.split('_').filter(|word| *word != "bytes");
        let base = words.collect::<Vec<_>>().join("_");
        let unit = (base.len() < name.len()).then_some(&Unit::Bytes);
        let kind = metric(first).metric_type();
        let mut family = self.encoder.encode_descriptor(&base, text.trim(), unit, kind)?;
        for shard in self.shards {
            let labels = [("shard", shard.shard)];
            metric(shard).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
