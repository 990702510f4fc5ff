//! Agents as processes. The tests cover scripted models that the SDKs of OpenAI and Anthropic call,
//! and `streamdoor agent` on a terminal and in a pipe. They also cover followers of the same run
//! (curl, a browser), and steps with and without streaming.
//!
//! The tests install the SDKs with pip, once and in fixed versions. If that fails, or curl or a
//! browser is missing, a test prints that it was not run.
#![cfg(feature = "cli")]

mod browser;
#[path = "../chromium/mod.rs"]
mod chromium;
#[path = "../serve_clients/curl.rs"]
mod curl;
mod follow;
#[path = "../installed/mod.rs"]
mod installed;
mod misbehave;
mod parts;
#[path = "../pty/mod.rs"]
mod pty;
mod run;
mod scripted;
mod sdks;
#[path = "../served/mod.rs"]
mod served;
mod steps;
