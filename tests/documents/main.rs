//! Tests of the pages: README.md, PERF.md and the guide.
//!
//! Every fenced block is run against the program, or parsed, or listed as an exception
//! (`examples.rs`). Links resolve (`links.rs`). Some pages are generated (`generated.rs`).

#[cfg(feature = "cli")]
mod examples;
#[cfg(feature = "server")]
mod generated;
mod links;
mod pages;
#[cfg(feature = "cli")]
mod parsed;
#[cfg(feature = "cli")]
mod shell;
mod troubleshooting;
