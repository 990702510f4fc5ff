//! Programs of others, installed below the target folder: once, of fixed versions, by whoever comes
//! first.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why a program can not be had here.
pub type Missing = String;

/// Where programs for these tests are put.
pub fn folder(group: &str, name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target");
    target.join(group).join(name)
}

/// Has `install` fill a folder, unless it was filled with the same before; others wait meanwhile.
pub fn once(
    folder: PathBuf,
    what: &str,
    install: impl FnOnce(&Path) -> Result<(), Missing>,
) -> Result<PathBuf, Missing> {
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
pub fn run(command: &mut Command) -> Result<(), Missing> {
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

/// `node_modules` with these packages: the folder that it is in.
pub fn node(folder: PathBuf, packages: &[&str]) -> Result<PathBuf, Missing> {
    once(folder, &packages.join(" "), |folder| {
        run(Command::new("node").arg("--version"))?;
        fs::write(folder.join("package.json"), "{\"private\": true}").unwrap();
        let mut npm = Command::new("npm");
        npm.arg("install").arg("--prefix").arg(folder);
        npm.args(["--no-save", "--no-package-lock", "--no-audit", "--no-fund"]);
        run(npm.arg("--fetch-retries=1").args(packages))
    })
}

/// A Python with these packages.
pub fn python(folder: PathBuf, packages: &[&str]) -> Result<PathBuf, Missing> {
    let folder = once(folder, &packages.join(" "), |folder| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--retries=1"]);
        run(pip.arg("--disable-pip-version-check").args(packages))
    })?;
    Ok(folder.join("bin/python"))
}
