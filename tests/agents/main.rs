//! Agents as processes: scripted models and who asks them (the SDKs of OpenAI and Anthropic),
//! `streamdoor agent` on a terminal and in a pipe, others that follow the same run (curl, a
//! browser), and steps with and without streaming.
//!
//! The SDKs are installed by the tests, with pip, once and of fixed versions; where that does not
//! go, or there is no curl or browser, a test says so.
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
