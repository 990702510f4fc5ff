//! The real clients of AI SDK, AG-UI, LangGraph and the Responses API. They read what fronts write,
//! and they talk to a server of which they only know the URL.
//!
//! The tests install them with npm and pip, once and in fixed versions. For AI SDK these are the
//! newest version of each generation and an old one that refuses unknown fields. In `understood.rs`
//! each reads recorded streams. In `real.rs` each runs agents of `streamdoor serve`, whose models
//! follow a script. In `restarted.rs` the server is killed meanwhile, and comes back.
#![cfg(feature = "cli")]

mod a2a;
mod ag_ui_spec;
#[path = "../chromium/mod.rs"]
#[allow(dead_code, reason = "the page is opened by a client of its own")]
mod chromium;
mod graph;
#[path = "../installed/mod.rs"]
mod installed;
mod page;
mod real;
mod responses;
mod restarted;
#[path = "../agents/scripted.rs"]
#[allow(dead_code, reason = "another test needs the rest")]
mod scripted;
#[path = "../served/mod.rs"]
mod served;
mod server;
mod streams;
mod understood;

use std::path::{Path, PathBuf};

use installed::Missing;

/// The generations of AI SDK: the name of the installed package, and the version. The second of
/// each two is the newest. The first refuses unknown fields and chunks.
pub const AI_SDKS: [(&str, &str); 6] = [
    ("ai-5-old", "5.0.60"),
    ("ai-5", "5.0.277"),
    ("ai-6-old", "6.0.0"),
    ("ai-6", "6.0.324"),
    ("ai-7-old", "7.0.0"),
    ("ai-7", "7.0.173"),
];

/// The versions of LangGraph's package: the name of the installed package, and the version.
pub const LANGGRAPH_SDKS: [(&str, &str); 2] =
    [("langgraph-sdk-1", "1.15.0"), ("langgraph-sdk-2", "2.0.0")];

/// Returns the folder with `node_modules`.
fn node() -> Result<PathBuf, Missing> {
    let sdks = AI_SDKS.map(|(name, version)| format!("{name}@npm:ai@{version}"));
    let others = [
        "@ag-ui/client@1.0.0",
        "@ag-ui/core@1.0.0",
        "rxjs@7.8.1",
        "openai@7.57.0",
        "@a2a-js/sdk@1.3.0",
    ];
    let others = others.map(str::to_owned);
    let graphs = LANGGRAPH_SDKS
        .map(|(name, version)| format!("{name}@npm:@langchain/langgraph-sdk@{version}"));
    let packages: Vec<String> = sdks.into_iter().chain(others).chain(graphs).collect();
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    installed::node(installed::folder("front-clients", "node"), &packages)
}

/// Returns a Python with LangGraph's packages.
fn python() -> Result<PathBuf, Missing> {
    let packages = [
        "langgraph-sdk==0.4.14",
        "langchain-protocol==0.0.20",
        "langchain-core==1.8.3",
        "openai==3.57.0",
    ];
    installed::python(installed::folder("front-clients", "python"), &packages)
}

/// Returns a Python with A2A's packages.
fn a2a_python() -> Result<PathBuf, Missing> {
    let packages = ["a2a-sdk==1.3.0", "a2a-proof==0.16.0"];
    installed::python(installed::folder("front-clients", "a2a"), &packages)
}

fn or_say(installed: Result<PathBuf, Missing>, then: impl FnOnce(&Path)) {
    match installed {
        Ok(path) => then(&path),
        Err(reason) => println!("not run: {reason}"),
    }
}

fn driver(name: &str) -> String {
    format!("{}/tests/front_clients/drivers/{name}", env!("CARGO_MANIFEST_DIR"))
}
