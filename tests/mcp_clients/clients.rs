//! The clients, each in all of its modes and over both transports.

use std::path::Path;
use std::process::Command;

use crate::install::{self, Missing};
use crate::scenes::{Transport, Way, play};

/// All modes over both transports.
fn ways(modes: &[&'static str], is_hasty: bool) -> Vec<Way> {
    let both = [Transport::Http, Transport::Stdio];
    let way = |mode| both.map(|transport| Way { mode, transport, is_hasty });
    modes.iter().copied().flat_map(way).collect()
}

const ALL_MODES: [&str; 3] = ["legacy", "auto", "2026-07-28"];

fn script(name: &str) -> String {
    format!("{}/tests/mcp_clients/drivers/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn or_say(installed: Result<std::path::PathBuf, Missing>, then: impl FnOnce(&Path)) {
    match installed {
        Ok(path) => then(&path),
        Err(reason) => println!("not run: {reason}"),
    }
}

/// Runs the TypeScript client. `package` selects the generation of the SDK.
fn typescript(package: &'static str, modes: &[&'static str]) {
    or_say(install::typescript(), |folder| {
        // Over standard streams, both generations drop notifications that they read together with
        // the reply.
        play(&format!("typescript-{package}"), &ways(modes, true), || {
            let mut command = Command::new("node");
            command.arg(script("typescript.mjs")).arg(folder).arg(package);
            command
        });
    });
}

fn python(package: &'static str, modes: &[&'static str]) {
    or_say(install::python(), |program| {
        play(&format!("python-{package}"), &ways(modes, false), || {
            let mut command = Command::new(program);
            command.arg(script("python_mcp.py")).arg(package);
            command
        });
    });
}

#[test]
fn the_first_typescript_sdk_gets_on() {
    typescript("sdk", &["legacy"]);
}

#[test]
fn the_second_typescript_sdk_gets_on() {
    typescript("client", &ALL_MODES);
}

#[test]
fn the_python_sdk_gets_on() {
    python("mcp", &ALL_MODES);
}

#[test]
fn fastmcp_gets_on() {
    python("fastmcp", &ALL_MODES[..2]);
}

#[test]
fn rmcp_gets_on() {
    or_say(install::rmcp(), |program| {
        play("rmcp", &ways(&ALL_MODES, false), || Command::new(program));
    });
}
