//! The real program, `streamdoor serve`, as a process.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::http::between;

/// The variable with the path of the program.
const VARIABLE: &str = "STREAMDOOR";
/// Number of lines of the log that a failed test shows.
const LOG_LINES: usize = 30;

/// Returns the path of the program; `None` if it was not named.
pub fn path() -> Option<PathBuf> {
    let path = std::env::var_os(VARIABLE).map(PathBuf::from);
    if path.is_none() {
        println!("not run: {VARIABLE} names no program");
    }
    path
}

/// A server with a journal. It is killed when this value is dropped.
pub struct Server {
    child: Child,
    pub address: String,
    /// The record of the journal in its log.
    pub found: String,
    log: Arc<Mutex<VecDeque<String>>>,
}

impl Server {
    /// Starts the program, and waits until it listens.
    ///
    /// # Errors
    /// It ended before that. The text is its log.
    pub fn start(program: &Path, journal: &Path, arguments: &[&str]) -> Result<Server, String> {
        let mut command = Command::new(program);
        command
            .args(["serve", "--log", "json", "--listen", "127.0.0.1:0", "--door", "off"])
            .args(["--idle", "block", "--journal"])
            .arg(journal)
            .args(arguments);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = VecDeque::new();
        let address = loop {
            let Some(Ok(line)) = lines.next() else {
                child.wait().unwrap();
                return Err(said.make_contiguous().join("\n"));
            };
            let is_address = line.contains("\"event\":\"listening\"");
            let address = between(&line, "\"address\":\"http://", '"').map(str::to_owned);
            said.push_back(line);
            match address {
                Some(address) if is_address => break address,
                _ => {}
            }
        };
        let is_found = |line: &&String| line.contains("\"event\":\"journal\"");
        let found = said.iter().find(is_found).cloned().unwrap_or_default();
        let log = Arc::new(Mutex::new(said));
        let kept = Arc::clone(&log);
        // A full pipe would hold the server up.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut kept = kept.lock().expect("nobody panics with it");
                kept.push_back(line);
                while kept.len() > LOG_LINES {
                    kept.pop_front();
                }
            }
        });
        Ok(Server { child, address, found, log })
    }

    /// Kills the process with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log.lock().expect("nobody panics with it");
            log.iter().for_each(|line| println!("server: {line}"));
        }
    }
}
