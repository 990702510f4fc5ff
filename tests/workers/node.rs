//! The example worker, `tools/node/worker.mjs`, as a process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::client::ask;
use crate::served::Server;

pub struct NodeWorker {
    child: Child,
    log: Receiver<String>,
}

impl NodeWorker {
    /// Starts a worker that is connected. Returns `None` if Node is not available.
    pub fn start(server: &Server, session: &str, arguments: &[&str]) -> Option<NodeWorker> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/node/worker.mjs");
        let mut command = Command::new("node");
        let url = format!("http://{}", server.connect().peer_addr().unwrap());
        command.args([script, "--url", &url, "--session", session]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            println!("not run: no node (version 20 or later)");
            return None;
        };
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line); // The test may have ended.
            }
        });
        let worker = NodeWorker { child, log };
        worker.wait_for("connected");
        // The tools of the worker are known to every client.
        let tools = ask(server, "GET", "/v1/tools", "", &serde_json::Value::Null).body;
        assert!(tools.to_string().contains("\"search_large_dataset\""));
        Some(worker)
    }

    /// Waits for a line of the worker that begins with `beginning`.
    pub fn wait_for(&self, beginning: &str) -> String {
        let mut said = Vec::new();
        while let Ok(line) = self.log.recv() {
            if line.starts_with(beginning) {
                return line;
            }
            said.push(line);
        }
        panic!("it never said {beginning:?}, but {said:?}")
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for NodeWorker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
