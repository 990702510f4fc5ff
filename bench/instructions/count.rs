//! Counts the instructions of a process under valgrind, and finds the compiler of this program.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::operations::Operation;
use crate::common::Failure;

/// Number of repetitions in the first process. By then, rings have wrapped around, and all memory
/// was touched once.
const TIMES_FEW: u64 = 3_000;
/// Number of additional repetitions in the second process.
const TIMES_MORE: u64 = 10_000;
const COMPILER: &[u8] = b"rustc version ";

fn failed(text: String) -> Failure {
    Failure::Failed(format!("instructions: {text}"))
}

/// True if valgrind is installed with this tool.
pub fn has_tool(name: &str) -> bool {
    let mut version = Command::new("valgrind");
    version.arg(format!("--tool={name}")).arg("--version");
    let status = version.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Returns the compiler and the profile of this program. The compiler leaves its name in the
/// binary, and cargo builds each profile into a folder of its name.
///
/// # Errors
/// [`Failure::Environment`] if this program cannot be read.
pub fn made_by() -> Result<String, Failure> {
    let cannot = |error: std::io::Error| Failure::Environment(format!("this program: {error}"));
    let program = std::env::current_exe().map_err(cannot)?;
    let bytes = std::fs::read(&program).map_err(cannot)?;
    let compiler = compiler_of(&bytes).unwrap_or_else(|| "an unknown rustc".to_owned());
    let folder = program.parent().and_then(Path::file_name).map(OsStr::to_string_lossy);
    Ok(format!("{compiler}, {}", folder.unwrap_or_default()))
}

/// Returns a text such as `rustc 1.95.0`. A digit has to follow the words, because this program
/// also contains the words alone.
fn compiler_of(program: &[u8]) -> Option<String> {
    let mut windows = program.windows(COMPILER.len() + 1);
    let starts = |window: &[u8]| window.starts_with(COMPILER);
    let at = windows.position(|w| starts(w) && w[COMPILER.len()].is_ascii_digit())?;
    let version = program[at + COMPILER.len()..].iter();
    let version: Vec<u8> = version.copied().take_while(u8::is_ascii_graphic).collect();
    Some(format!("rustc {}", String::from_utf8(version).ok()?))
}

/// Returns the instructions of each operation, by its name.
///
/// # Errors
/// [`Failure::Failed`] with the output of valgrind.
pub fn all(wanted: &[&Operation]) -> Result<BTreeMap<String, f64>, Failure> {
    let mut counts = BTreeMap::new();
    for operation in wanted {
        // Both run at once: they do not disturb each other's counts.
        let few = Counted::start(operation, TIMES_FEW)?;
        let many = Counted::start(operation, TIMES_FEW + TIMES_MORE)?;
        let (few, many) = (few.finish()?, many.finish()?);
        let more = many.checked_sub(few);
        let more = more.ok_or_else(|| failed(format!("{}: more took less", operation.name)))?;
        let each = more as f64 / TIMES_MORE as f64;
        counts.insert(operation.name.to_owned(), (each * 10.0).round() / 10.0);
    }
    Ok(counts)
}

/// A process under valgrind.
struct Counted {
    process: std::process::Child,
    name: &'static str,
    path: PathBuf,
}

impl Counted {
    fn start(operation: &Operation, times: u64) -> Result<Counted, Failure> {
        let name = operation.name;
        let program = std::env::current_exe().map_err(|error| {
            Failure::Environment(format!("the path of this program is unknown: {error}"))
        })?;
        let file = format!("streamdoor-instructions-{}-{times}", std::process::id());
        let path = std::env::temp_dir().join(file);
        let mut command = Command::new("valgrind");
        command.arg("--quiet").arg("--tool=callgrind");
        command.arg(format!("--callgrind-out-file={}", path.display()));
        command.args(operation.part.map(|part| format!("--toggle-collect={part}")));
        command.arg(program).args(["instructions", "run", name, "--times", &times.to_string()]);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let process = process.spawn().map_err(|error| failed(format!("valgrind: {error}")))?;
        Ok(Counted { process, name, path })
    }

    fn finish(self) -> Result<u64, Failure> {
        let Counted { process, name, path } = self;
        let output = process.wait_with_output().map_err(|error| failed(error.to_string()))?;
        let counted = std::fs::read_to_string(&path);
        let _ = std::fs::remove_file(&path); // A remaining file does no harm.
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{name} under valgrind: {}: {said}", output.status)));
        }
        let counted = counted.map_err(|error| failed(format!("{}: {error}", path.display())))?;
        total_of(&counted).ok_or_else(|| no_total(&path))
    }
}

fn no_total(path: &Path) -> Failure {
    failed(format!("{} has no line totals", path.display()))
}

/// Returns the sum that callgrind writes at the end of its file.
fn total_of(counted: &str) -> Option<u64> {
    let numbers = counted.lines().rev().find_map(|line| line.strip_prefix("totals:"))?;
    numbers.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_a_profile_is_its_last_line() {
        assert_eq!(total_of("events: Ir\nfn=(1) main\n4 7\ntotals: 1234567\n"), Some(1_234_567));
        assert_eq!(total_of("events: Ir\n"), None);
    }

    #[test]
    fn a_program_knows_its_compiler() {
        let program = b"\0rustc version \0\x01rustc version 1.95.0 (59807616e 2026-04-14)\0";
        assert_eq!(compiler_of(program).as_deref(), Some("rustc 1.95.0"));
        assert!(made_by().unwrap().starts_with("rustc 1."), "{}", made_by().unwrap());
    }
}
