//! `streamdoor model-script` as a process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The longest time to wait for a line of the model.
const PATIENCE: Duration = Duration::from_secs(60);

/// A model on a port that the kernel chose. Its process is killed when the value is dropped.
pub struct ModelServer {
    child: Child,
    /// The base URL, `http://127.0.0.1:PORT/v1`.
    pub base_url: String,
    /// One line for each request.
    pub requests: Receiver<String>,
}

impl ModelServer {
    /// Starts a model that follows a script of this repository.
    pub fn of(name: &str) -> ModelServer {
        ModelServer::start(
            format!("{}/tools/model-scripts/{name}", env!("CARGO_MANIFEST_DIR")).into(),
        )
    }

    /// Starts a model that follows this script.
    pub fn following(name: &str, script: &str) -> ModelServer {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let path = folder.join(format!("agents-{name}-{}.toml", std::process::id()));
        fs::write(&path, script).unwrap();
        let model = ModelServer::start(path.clone());
        fs::remove_file(path).unwrap();
        model
    }

    fn start(script: PathBuf) -> ModelServer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command.args(["model-script", "--listen", "127.0.0.1:0"]).arg(script);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let base_url = first.trim().rsplit_once(" at ").expect("it says where").1.to_owned();
        let log = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            log.map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        ModelServer { child, base_url, requests }
    }

    /// Waits for this number of request lines, which arrive apart from the replies.
    pub fn wait_for_requests(&self, count: usize) {
        for _ in 0..count {
            self.requests.recv_timeout(PATIENCE).expect("it is asked");
        }
    }

    /// Stops the model with SIGTERM. Returns the remaining request lines.
    pub fn end(mut self) -> Vec<String> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap();
        self.requests.iter().collect()
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
