//! The installation of the clients, in fixed versions.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::installed;
pub use crate::installed::Missing;

fn folder(name: &str) -> PathBuf {
    installed::folder("mcp-clients", name)
}

/// Installs both generations of the TypeScript SDK. Returns the folder that contains
/// `node_modules`.
pub fn typescript() -> Result<PathBuf, Missing> {
    let packages = ["@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/client@2.4.0"];
    installed::node(folder("node"), &packages)
}

/// Installs the Python SDK and FastMCP. Returns the interpreter.
pub fn python() -> Result<PathBuf, Missing> {
    installed::python(folder("python"), &["mcp==2.3.0", "fastmcp==4.1.2"])
}

/// Builds the driver for rmcp and returns its path.
pub fn rmcp() -> Result<PathBuf, Missing> {
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp_clients/rmcp");
    let folder = folder("rmcp");
    fs::create_dir_all(&folder).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--manifest-path"]);
    // Cargo has a lock of its own, and it rebuilds what has changed.
    cargo.arg(format!("{package}/Cargo.toml")).arg("--target-dir").arg(&folder);
    installed::run(cargo.env_remove("RUSTFLAGS"))?;
    Ok(folder.join("debug/rmcp-driver"))
}
