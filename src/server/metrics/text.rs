//! The metrics as text: OpenMetrics 1.0, or Prometheus' older text format 0.0.4.
//!
//! The library `prometheus-client` writes OpenMetrics. The older format consists of the same lines
//! without those that it does not know, and with the full names of counters.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::endpoint::MetricsFormat;
use crate::limits;
use crate::trace::{Attribute, Metric, MetricKind, MetricUnit, Point, PointValue};

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

/// Returns the metrics as text.
pub fn render(format: MetricsFormat, metrics: Vec<Metric>) -> Vec<u8> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Listed(metrics)));
    let mut open_metrics = String::new();
    text::encode(&mut open_metrics, &registry).expect("a string takes everything");
    match format {
        MetricsFormat::OpenMetrics => open_metrics.into_bytes(),
        MetricsFormat::Prometheus => older(&open_metrics).into_bytes(),
    }
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
struct Listed(Vec<Metric>);

impl Collector for Listed {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in self.0.iter().filter(|metric| !metric.name.is_empty()) {
            let unit = match metric.unit {
                Some(MetricUnit::Bytes) => Some(Unit::Bytes),
                Some(MetricUnit::Seconds) => Some(Unit::Seconds),
                Some(MetricUnit::Threads | MetricUnit::FileDescriptors) | None => None,
            };
            let kind = match metric.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::UpDownCounter | MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Histogram => MetricType::Histogram,
                MetricKind::Info => MetricType::Info,
            };
            let Metric { name, about, .. } = metric;
            let mut family = encoder.encode_descriptor(name, about, unit.as_ref(), kind)?;
            for point in &metric.points {
                write_point(&mut family, metric.kind, point)?;
            }
        }
        Ok(())
    }
}

fn write_point(
    family: &mut MetricEncoder<'_>,
    kind: MetricKind,
    Point { attributes, value }: &Point,
) -> fmt::Result {
    let labels: Vec<(&str, String)> = attributes
        .iter()
        .map(|(name, value)| match value {
            Attribute::Text(text) => (*name, text.to_string()),
            Attribute::Number(number) => (*name, number.to_string()),
        })
        .collect();
    match kind {
        MetricKind::Info => family.encode_info(&labels),
        _ if labels.is_empty() => write_value(family, kind, value),
        _ => write_value(&mut family.encode_family(&labels)?, kind, value),
    }
}

fn write_value(
    encoder: &mut MetricEncoder<'_>,
    kind: MetricKind,
    value: &PointValue,
) -> fmt::Result {
    match (kind, value) {
        (MetricKind::Counter, PointValue::Whole(number)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(number, None)
        }
        (MetricKind::Counter, PointValue::Fraction(number)) => {
            encoder.encode_counter::<NoLabelSet, _, u64>(number, None)
        }
        (_, PointValue::Whole(number)) => encoder.encode_gauge(number),
        (_, PointValue::Fraction(number)) => encoder.encode_gauge(number),
        (_, PointValue::Distribution(latency)) => {
            let seconds = |ns: u64| ns as f64 / 1e9;
            let bounds = limits::LATENCY_BUCKETS_NS.map(seconds).into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(latency.counts).collect();
            let (sum, count) = (seconds(latency.sum_ns), latency.count());
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
    }
}
