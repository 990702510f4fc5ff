//! Real clients of MCP, over HTTP and over standard streams: the TypeScript SDKs of both
//! generations, the Python SDK, FastMCP, and rmcp.
//!
//! They are installed by the tests, with npm, pip and cargo, once and of fixed versions; where that
//! does not go a test says so. Each client is a program that does what it is told, line by line
//! (`driver.rs`); what is told, and what has to come of it, is in `scenes.rs`.
#![cfg(feature = "cli")]

mod clients;
mod driver;
mod install;
#[path = "../installed/mod.rs"]
mod installed;
mod scenes;
#[path = "../served/mod.rs"]
mod served;
