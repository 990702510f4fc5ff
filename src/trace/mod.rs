//! Stratum 0: what a shard knows about itself. [`counters`] how often, [`flight`] what last,
//! [`histogram`] how long. Recording never allocates, locks, reads a clock or makes a syscall.

pub mod counters;
pub mod flight;
pub mod histogram;

pub use counters::Counters;
pub use flight::{Code, FlightRecorder};
pub use histogram::{Histogram, Summary};
