//! `streamdoor serve` as a process. It listens on a Unix socket, so that connections do not use up
//! the ports of the machine. If possible, it has a cgroup of its own, so that its waits are counted
//! separately.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use streamdoor::client::Client;

use crate::common::{Failure, end};

/// A server that listens. It ends when this value is dropped.
pub struct Server {
    process: Child,
    /// The folder with its socket, and the file that its tools read.
    folder: PathBuf,
    cgroup: Option<PathBuf>,
}

/// Bytes of the file that tools read.
pub const FILE_BYTES: usize = 20_000;
const FILE: &str = "lines.txt";

impl Server {
    /// Starts the program `streamdoor` from the folder of this program.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn start(reactor: &str, arenas: u32) -> Result<Server, Failure> {
        let failed =
            |what: &str, error: std::io::Error| Failure::Failed(format!("{what}: {error}"));
        let own = std::env::current_exe()
            .map_err(|error| failed("the path of this program is unknown", error))?;
        let program = own.with_file_name("streamdoor");
        let folder = std::env::temp_dir().join(format!("streamdoor-long-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| failed("its folder", error))?;
        let text = "a line of a file\n".repeat(FILE_BYTES / 17 + 1);
        let written = fs::write(folder.join(FILE), &text[..FILE_BYTES]);
        written.map_err(|error| failed("its file", error))?;
        let mut command = Command::new(&program);
        command
            .args([
                "serve",
                "--journal",
                "off",
                "--log",
                "json",
                "--retention",
                "1s",
                "--reactor",
                reactor,
            ])
            .arg(format!("--listen=unix:{}", folder.join("socket").display()))
            .arg("--files-root")
            .arg(&folder);
        if arenas > 0 {
            command.env("MALLOC_ARENA_MAX", arenas.to_string());
        }
        let spawned = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let process = spawned.map_err(|error| {
            Failure::Usage(format!("cannot start {}: {error}", program.display()))
        })?;
        let cgroup = own_cgroup(process.id());
        let mut server = Server { process, folder, cgroup };
        server.wait_until_it_listens()?;
        Ok(server)
    }

    fn wait_until_it_listens(&mut self) -> Result<(), Failure> {
        let log = self.process.stderr.take().expect("it was piped");
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        let is_there = |line: &String| line.contains("\"listening\"");
        if !lines.by_ref().any(|line| is_there(&line)) {
            return Err(Failure::Failed("the server ended before it listened".into()));
        }
        // A full pipe would block its log.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(())
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns a client of the server, with a connection of its own.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub fn client(&self) -> Result<Client, Failure> {
        Client::new(&format!("unix:{}", self.folder.join("socket").display()))
            .map_err(|error| Failure::Failed(error.to_string()))
    }

    /// Returns the path of the file that its tools can read.
    pub fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    /// Returns the path of the file in which the kernel counts its waits for disks.
    pub fn io_pressure(&self) -> Option<String> {
        Some(self.cgroup.as_ref()?.join("io.pressure").display().to_string())
    }
}

/// Creates a cgroup for this process. Returns `None` if that is not permitted.
fn own_cgroup(pid: u32) -> Option<PathBuf> {
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let mount = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").exists())?;
    let place = mount.join(format!("streamdoor-bench-{pid}"));
    fs::create_dir(&place).ok()?;
    let moved = fs::write(place.join("cgroup.procs"), pid.to_string());
    if moved.is_err() || !place.join("io.pressure").exists() {
        let _ = fs::remove_dir(&place);
        return None;
    }
    Some(place)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        end(&mut self.process);
        let _ = fs::remove_dir_all(&self.folder);
        let Some(cgroup) = &self.cgroup else { return };
        for _ in 0..100 {
            if fs::remove_dir(cgroup).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10)); // It is still in use.
        }
    }
}
