//! Servers that are nodes of a cluster: each serves the executions of all.
//!
//! `tools/test cluster` gets a server of NATS if none is installed. Without one, these tests are
//! not run, and `browser.rs` not without nginx and Chromium. `tools/cluster-kills` runs the
//! campaigns of kills with larger counts.
#![cfg(all(feature = "cli", feature = "cluster", feature = "tools"))]

#[path = "../restarts/mcp.rs"]
#[allow(dead_code, reason = "it has more than these tests need")]
mod mcp;
#[path = "../nats/server.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod nats_server;
#[path = "../access/operations.rs"]
mod operations;
#[path = "../served/mod.rs"]
mod served;
#[path = "../restarts/world.rs"]
#[allow(dead_code, reason = "it has more than these tests need")]
mod world;

mod away;
mod balancer;
mod browser;
mod campaign;
#[path = "../chromium/mod.rs"]
mod chromium;
mod door;
mod elsewhere;
mod follower;
mod fronts;
mod kills;
mod list;
mod lost;
mod members;
mod metrics;
mod nodes;
mod partitions;
mod paths;
mod readers;
mod replicated;
mod resources;
mod responses;
#[path = "../agents/scripted.rs"]
#[allow(dead_code, reason = "other tests need the rest")]
mod scripted;
mod spaces;
mod strangers;
#[path = "../access/test_server.rs"]
#[allow(dead_code, reason = "it has more than these tests need")]
mod test_server;
