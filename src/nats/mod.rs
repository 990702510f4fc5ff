//! Stratum 6: the machines of a cluster on NATS JetStream. It alone knows the network of a cluster,
//! and its runtime.
//!
//! - [`names`]: streams, buckets and subjects. [`stores`]: how they are made, and compared.
//! - [`link`]: the verbs of the cluster, each bounded in time.
//! - [`driver`]: runs the machines of one node.
//! - [`node`]: the thread of a node, between the driver and the shards of a server. `mirrors` has
//!   the executions that run here, `source` reads their rings, and `bell` wakes the thread.
//!   `orphans` ends the executions of lost nodes. `asks` has the questions of nodes to each other,
//!   `lists` their lists, and `seal` makes both a secret.
//! - [`connect`]: settings of the connection. [`secret`]: the file that all nodes have.
//! - [`permissions`]: the subjects of a node. [`inspect`]: a look at a cluster, for an operator.
//!
//! Tests: `tests/nats.rs`, with real servers.

mod asks;
mod bell;
mod claims;
pub mod connect;
pub mod driver;
pub mod inspect;
pub mod link;
mod lists;
mod mirrors;
pub mod names;
pub mod node;
mod orphans;
pub mod permissions;
mod seal;
pub mod secret;
pub(crate) mod source;
pub mod stores;
