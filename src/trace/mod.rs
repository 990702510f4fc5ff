//! Stratum 0: what a shard knows about itself. [`context`] what a request is a part of,
//! [`counters`] how often, [`flight`] what last, [`histogram`] and [`latency`] how long, [`log`]
//! what an operator is told, [`span`] what one request took part in, [`stall`] what took too long
//! and what it was, [`probes`] where a tracer can look. Recording never allocates (but spans),
//! locks, reads a clock or makes a syscall.

pub mod context;
pub mod counters;
pub mod flight;
pub mod histogram;
pub mod latency;
pub mod log;
pub mod probes;
pub mod span;
pub mod stall;

pub use context::{TraceContext, TraceParent};
pub use counters::Counters;
pub use flight::{Code, FlightRecorder};
pub use histogram::{Histogram, Summary};
pub use latency::{Deliveries, Latencies, Latency, Transport};
#[cfg(feature = "server")]
pub(crate) use log::rfc3339;
pub use log::{Level, LogFormat, Record};
pub(crate) use probes::probe;
pub use span::Span;
pub use stall::{Duties, Duty, Stalls};
