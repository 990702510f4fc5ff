//! Stratum 0: the observations of a shard about itself.
//!
//! `counters` counts events, and `flight` records the last ones. [`histogram`] and `latency`
//! measure durations, and `stall` turns that took too long, with what they did. [`log`] is the
//! operator's log. `metric` is a number with its name. `context` and `span` connect a request to a
//! distributed trace, and `probes` are places for external tracers. Recording never locks, reads a
//! clock or makes a syscall, and only spans allocate.

pub(crate) mod context;
pub(crate) mod counters;
pub(crate) mod flight;
pub mod histogram;
pub(crate) mod latency;
pub mod log;
pub(crate) mod metric;
pub(crate) mod probes;
pub(crate) mod span;
pub(crate) mod stall;

pub use context::{TraceContext, TraceParent};
pub use counters::Counters;
pub use flight::{Code, FlightRecorder};
pub use histogram::{Histogram, Summary};
pub use latency::{Deliveries, Latencies, Latency, Transport};
#[cfg(feature = "server")]
pub use log::rfc3339;
pub use log::{Level, LogFormat, Record};
pub use metric::{Attribute, Metric, MetricKind, MetricUnit, Point, PointValue};
pub(crate) use probes::probe;
pub use span::Span;
pub use stall::{Duties, Duty, Stalls};
