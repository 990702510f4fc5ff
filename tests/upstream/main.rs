//! Upstream MCP servers behind `streamdoor serve --mcp`: a scripted one that breaks every rule that
//! it can (`scripted.rs`), streamdoor itself, and real ones. The tests install the real ones.
#![cfg(feature = "cli")]

#[allow(dead_code, reason = "the clients' own tests need all of it")]
#[path = "../mcp_clients/driver.rs"]
mod driver;
mod hostile;
#[path = "../mcp_clients/install.rs"]
mod install;
#[path = "../installed/mod.rs"]
mod installed;
mod ours;
mod real;
mod roles;
mod scripted;
#[path = "../served/mod.rs"]
mod served;
mod test_server;
mod web;
mod web_tests;
