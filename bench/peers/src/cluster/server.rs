//! The server of a log for one run.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::common::Failure;
use crate::door::broker::Process;

/// A server and its directory. When this is dropped, the process ends before the directory goes.
pub struct Server {
    process: Process,
    _directory: Directory,
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining directory does no harm.
    }
}

impl Server {
    /// Starts `program`, with the arguments for a port and a directory.
    ///
    /// # Errors
    /// [`Failure::Environment`] if it is not installed or does not listen.
    pub fn start(
        program: &Path,
        words: impl Fn(&str, &str) -> Vec<String>,
    ) -> Result<Server, Failure> {
        let name = format!("streamdoor-peers-cluster-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        let shown = path.display().to_string();
        made.map_err(|error| Failure::Environment(format!("{shown}: {error}")))?;
        let directory = Directory(path);
        let process = Process::spawn(program, |port| words(&port.to_string(), &shown))?;
        Ok(Server { process, _directory: directory })
    }

    /// Returns the port on which it listens.
    pub fn port(&self) -> u16 {
        self.process.port
    }
}
