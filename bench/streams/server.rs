//! The servers of `bench streams`: programs of their own, which differ only in how they are
//! started.
//!
//! A server is started for one run, on a port of its own, with an empty directory. Both go when the
//! run is over.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::machine::now_ns;
use crate::common::{Failure, end};

/// The first is the default.
pub const IMPLEMENTATIONS: &[&str] = &[
    "streamdoor",
    "streamdoor-synced",
    "durable-streams",
    "durable-streams-memory",
    "node",
    "node-memory",
];

const START_NS_MAX: u64 = 10_000_000_000;
/// The script for the reference server, from the root of the repository.
const NODE_SCRIPT: &str = "bench/peers/streams/node.mjs";

/// A server that listens.
pub struct Server {
    process: Child,
    directory: PathBuf,
    pub address: SocketAddr,
}

impl Server {
    /// Starts an implementation on the cpu of the caller. `program` is the server's program, and
    /// for Node the folder with its packages. `more` are arguments for streamdoor.
    ///
    /// # Errors
    /// [`Failure::Environment`] if it cannot be started or does not listen.
    pub fn start(
        implementation: &str,
        program: Option<&Path>,
        more: &[String],
    ) -> Result<Server, Failure> {
        let lacking = |text: String| Failure::Environment(format!("{implementation}: {text}"));
        let io = |error: std::io::Error| lacking(error.to_string());
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io)?;
        let address = free.local_addr().map_err(io)?;
        drop(free);
        let name = format!("streamdoor-bench-streams-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        // A journal belongs to its owner only.
        let mut folder = std::fs::DirBuilder::new();
        folder.recursive(true).mode(0o700).create(&directory).map_err(io)?;
        let mut command = command(implementation, program, address.port(), &directory);
        if implementation.starts_with("streamdoor") {
            command.args(more);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().map_err(|error| {
            lacking(format!("cannot start {}: {error}", command.get_program().display()))
        })?;
        let mut server = Server { process, directory, address };
        let deadline_ns = now_ns() + START_NS_MAX;
        while TcpStream::connect(address).is_err() {
            let has_ended = server.process.try_wait().map_err(io)?.is_some();
            if has_ended || now_ns() > deadline_ns {
                return Err(lacking("does not listen".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns its memory now, in bytes, or 0 if the kernel does not report it.
    pub fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill(); // It is not asked to drain.
        end(&mut self.process);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn command(name: &str, program: Option<&Path>, port: u16, directory: &Path) -> Command {
    let port = port.to_string();
    let mut command;
    match name {
        "durable-streams" | "durable-streams-memory" => {
            command = Command::new(program.unwrap_or("durable-streams-server".as_ref()));
            command.args(["--port", &port, "--data-dir"]).arg(directory).arg("--durability");
            command.arg(if name == "durable-streams" { "wal" } else { "memory" });
        }
        "node" | "node-memory" => {
            command = Command::new("node");
            command.arg(NODE_SCRIPT).arg(program.unwrap_or(".".as_ref())).arg(port);
            if name == "node" {
                command.arg(directory);
            }
        }
        _ => {
            let beside = std::env::current_exe().ok();
            let beside = beside.map(|bench| bench.with_file_name("streamdoor"));
            command = Command::new(program.or(beside.as_deref()).unwrap_or("streamdoor".as_ref()));
            command.args(["serve", "--door", "off", "--log-level", "error", "--listen"]);
            command.arg(format!("127.0.0.1:{port}")).arg("--journal").arg(directory);
            let synced = name == "streamdoor-synced";
            command.args(["--durability", if synced { "synced" } else { "written" }]);
        }
    }
    command
}
