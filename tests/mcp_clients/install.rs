//! Clients, installed below the target folder: once, of fixed versions, by whoever comes first.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why a client can not be had here.
pub type Missing = String;

/// Where the package manager of that name puts everything.
fn folder(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target");
    target.join("mcp-clients").join(name)
}

/// Has `install` fill a folder, unless it was filled with the same before; others wait meanwhile.
fn once(
    name: &str,
    what: &str,
    install: impl FnOnce(&Path) -> Result<(), Missing>,
) -> Result<PathBuf, Missing> {
    let folder = folder(name);
    fs::create_dir_all(&folder).unwrap();
    let lock = File::create(folder.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let stamp = folder.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == what) {
        return Ok(folder);
    }
    install(&folder)?;
    fs::write(stamp, what).unwrap();
    Ok(folder)
}

/// Runs a command; what it said last is the reason if it fails.
fn run(command: &mut Command) -> Result<(), Missing> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no word");
    Err(format!("{program}: {last}"))
}

/// `node_modules` with both generations of the TypeScript SDK: the folder that it is in.
pub fn typescript() -> Result<PathBuf, Missing> {
    let packages = ["@modelcontextprotocol/sdk@1.32.2", "@modelcontextprotocol/client@2.4.0"];
    once("node", &packages.join(" "), |folder| {
        run(Command::new("node").arg("--version"))?;
        fs::write(folder.join("package.json"), "{\"private\": true}").unwrap();
        let mut npm = Command::new("npm");
        npm.arg("install").arg("--prefix").arg(folder);
        npm.args(["--no-save", "--no-package-lock", "--no-audit", "--no-fund"]);
        run(npm.arg("--fetch-retries=1").args(packages))
    })
}

/// A Python with its SDK and FastMCP.
pub fn python() -> Result<PathBuf, Missing> {
    let packages = ["mcp==2.3.0", "fastmcp==4.1.2"];
    let folder = once("python", &packages.join(" "), |folder| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--retries=1"]);
        run(pip.arg("--disable-pip-version-check").args(packages))
    })?;
    Ok(folder.join("bin/python"))
}

/// The driver of rmcp.
pub fn rmcp() -> Result<PathBuf, Missing> {
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp_clients/rmcp");
    let folder = folder("rmcp");
    fs::create_dir_all(&folder).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--manifest-path"]);
    // Cargo waits for others by itself, and builds what has changed.
    cargo.arg(format!("{package}/Cargo.toml")).arg("--target-dir").arg(&folder);
    run(cargo.env_remove("RUSTFLAGS"))?;
    Ok(folder.join("debug/rmcp-driver"))
}
