//! Real clients of MCP, over HTTP and over standard streams: the TypeScript SDKs of both
//! generations, the Python SDK, FastMCP, and rmcp.
//!
//! The tests install them with npm, pip and cargo, once and in fixed versions. A test whose client
//! cannot be installed says so. Each client is a program that is controlled line by line
//! (`driver.rs`). Its commands and their expected results are in `scenes.rs`.
#![cfg(feature = "cli")]

mod clients;
mod driver;
mod install;
#[path = "../installed/mod.rs"]
mod installed;
mod scenes;
#[path = "../served/mod.rs"]
mod served;
