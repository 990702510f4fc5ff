//! Programs of other projects, installed below the target folder. Each is installed once, in a
//! fixed version, by the first test that needs it.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The reason for which a program is not available here.
pub type Missing = String;

/// Time limit of a command, in seconds. A registry that never answers must not block all tests.
const RUN_SECONDS_MAX: u32 = 300;
/// After a failed installation, the tests of the same run do not try again for this long.
const FAILED_FOR: Duration = Duration::from_secs(900);

/// The folder of a program for these tests.
pub fn folder(group: &str, name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target");
    target.join(group).join(name)
}

/// Fills a folder with `install`, unless the stamp shows that `what` is installed there already.
/// Other callers wait for the lock.
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
    let failed = folder.with_extension("failed");
    if let Some(why) = failed_lately(&failed) {
        return Err(why);
    }
    install(&folder).inspect_err(|why| fs::write(&failed, why).unwrap())?;
    fs::write(stamp, what).unwrap();
    Ok(folder)
}

/// The reason of a failure that was recorded less than [`FAILED_FOR`] ago.
fn failed_lately(file: &Path) -> Option<Missing> {
    let modified = fs::metadata(file).and_then(|metadata| metadata.modified()).ok()?;
    let is_recent = modified.elapsed().is_ok_and(|age| age < FAILED_FOR);
    is_recent.then(|| fs::read_to_string(file).ok()).flatten()
}

/// Runs a command for at most [`RUN_SECONDS_MAX`]. If it fails, the last line of its standard error
/// is the reason.
pub fn run(command: &Command) -> Result<(), Missing> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut limited = Command::new("timeout"); // From coreutils; it ends children, too.
    limited.args(["--kill-after=5", &RUN_SECONDS_MAX.to_string()]);
    limited.arg(&program).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    let output = limited.output().map_err(|error| format!("{program}: timeout: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    if matches!(output.status.code(), Some(124 | 137)) {
        return Err(format!("{program}: it did not end within {RUN_SECONDS_MAX} s"));
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no word");
    Err(format!("{program}: {last}"))
}

/// Installs npm packages and returns the folder that contains their `node_modules`.
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

/// Installs Python packages in a virtual environment and returns its interpreter.
pub fn python(folder: PathBuf, packages: &[&str]) -> Result<PathBuf, Missing> {
    let folder = once(folder, &packages.join(" "), |folder| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--retries=1"]);
        run(pip.arg("--disable-pip-version-check").args(packages))
    })?;
    Ok(folder.join("bin/python"))
}
