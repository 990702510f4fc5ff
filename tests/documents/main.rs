//! Tests of the pages: README.md, PERF.md and the guide.
//!
//! Every fenced block is run against the program, or parsed, or listed as an exception
//! (`examples.rs`). Links resolve (`links.rs`). Some pages are generated (`generated.rs`).

#[cfg(feature = "cli")]
mod examples;
#[cfg(feature = "server")]
mod generated;
mod links;
#[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "the program runs the blocks"))]
mod pages;
#[cfg(feature = "cli")]
mod parsed;
#[cfg(feature = "cli")]
#[path = "../ports/mod.rs"]
mod ports;
#[cfg(feature = "cli")]
mod shell;
mod troubleshooting;
