//! Stratum 6: the machines of a cluster on NATS JetStream. It alone knows the network of a cluster,
//! and its runtime.
//!
//! - [`names`]: streams, buckets and subjects. [`stores`]: how they are made, and compared.
//! - [`link`]: the verbs of the cluster, each bounded in time.
//! - [`driver`]: runs the machines of one node.
//!
//! Tests: `tests/nats.rs`, with real servers.

pub mod driver;
pub mod link;
pub mod names;
pub mod stores;
