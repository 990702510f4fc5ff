//! A directory for a journal, and the command that looks at it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// A directory with one shard. It is removed when the value is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let name = format!("sd-journal-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path); // From an earlier process with this number.
        std::fs::create_dir_all(path.join("shard-00")).unwrap();
        Folder(path)
    }

    pub fn shard(&self) -> PathBuf {
        self.0.join("shard-00")
    }

    /// The segments, in their order.
    pub fn segments(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.shard()).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

/// Runs `streamdoor journal ACTION DIR MORE`.
pub fn journal(action: &str, folder: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["journal", action]).arg(folder).args(more);
    command.stdin(Stdio::null()).output().unwrap()
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{}", shown(output)))
}

/// Both outputs as text.
pub fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &said(output)
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
