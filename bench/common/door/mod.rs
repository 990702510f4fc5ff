//! The parts that all runs of `bench door` share: a producer in one process, and readers in
//! another.
//!
//! [`load`] has the options: the load and the way of waiting. [`carrier`] has the traits of an
//! implementation. [`producer`] is the process that publishes. [`readers`] is the process that
//! reads and measures. [`report`] prints. The two processes exchange lines ([`child`]) and read the
//! same clock.

pub mod carrier;
pub mod child;
pub mod load;
pub mod producer;
pub mod readers;
pub mod report;
