//! A server that is killed and started again: the same address, and the same journal.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::{Server, ports};

/// The time between a kill and the next start, in which clients are refused.
const DOWN: Duration = Duration::from_millis(100);

/// Clients know only the address. The folder with the journal is removed at the end.
pub struct Mortal {
    folder: PathBuf,
    address: String,
    arguments: Vec<String>,
    server: Option<Server>,
}

impl Mortal {
    /// Starts the server. `name` has to differ between tests.
    pub fn start(name: &str, arguments: &[&str]) -> Mortal {
        let name = format!("streamdoor-mortal-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder); // From an earlier process with this number.
        std::fs::create_dir(&folder).unwrap();
        let address = format!("127.0.0.1:{}", ports::free());
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let mut mortal = Mortal { folder, address, arguments, server: None };
        mortal.server = Some(mortal.spawn());
        mortal
    }

    fn spawn(&self) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command.args(["serve", "--log", "json", "--idle", "block", "--door", "off"]);
        command.args(["--listen", &self.address, "--journal"]).arg(self.folder.join("journal"));
        command.args(&self.arguments);
        Server::spawn(command)
    }

    /// The server that runs now.
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    pub fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Kills the server with SIGKILL, and starts it again.
    pub fn kill(&mut self) {
        self.server().signal(Signal::KILL);
        self.server = None; // Waits until it is gone.
        std::thread::sleep(DOWN);
        self.server = Some(self.spawn());
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_dir_all(&self.folder); // A remaining folder does no harm.
    }
}
