//! A server of NATS on loopback, with JetStream on a directory of its own.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The oldest version that has everything: a time to live for each message.
const VERSION_MIN: (u32, u32) = (2, 11);

/// Number of attempts to start a server again.
const ATTEMPTS_MAX: u32 = 100;

/// A server. It is killed when it is dropped.
pub struct NatsServer {
    program: PathBuf,
    directory: PathBuf,
    port: u16,
    process: Child,
}

/// Returns the server that is installed, if it is new enough; else the one of `tools/test cluster`.
fn program() -> Option<PathBuf> {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    let own = root.join("target/nats/bin/nats-server");
    ["nats-server".into(), own].into_iter().find(|program| {
        let output = Command::new(program).arg("--version").output();
        let Ok(output) = output else { return false };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut numbers = text.trim().rsplit('v').next().unwrap_or("").split('.');
        let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
        number().zip(number()).is_some_and(|version| version >= VERSION_MIN)
    })
}

impl NatsServer {
    /// Starts a server. Returns `None`, and says so, if none is installed.
    pub fn start() -> Option<NatsServer> {
        let Some(program) = program() else {
            println!("not run: nats-server 2.11 or newer is not installed (tools/test cluster)");
            return None;
        };
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("streamdoor-nats-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let (process, port) = run(&program, &directory, 0).expect("it starts");
        Some(NatsServer { program, directory, port, process })
    }

    /// The address of the server.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server. Everything that it has in memory is lost.
    pub fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it was ours");
    }

    /// Starts the server again, on the same directory and at the same port. Another program may
    /// have that port for a moment.
    pub fn start_again(&mut self) {
        for _ in 0..ATTEMPTS_MAX {
            if let Some((process, _)) = run(&self.program, &self.directory, self.port) {
                self.process = process;
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("nats-server does not start again");
    }
}

/// Runs a server. Port 0 is any free one. Returns its port; `None` if it has ended at once.
fn run(program: &PathBuf, directory: &PathBuf, port: u16) -> Option<(Child, u16)> {
    // -1 is the server's word for any port.
    let wanted = if port == 0 { "-1".to_owned() } else { port.to_string() };
    let mut process = Command::new(program)
        .args(["--addr", "127.0.0.1", "--port", &wanted, "--jetstream", "--store_dir"])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(process.stderr.take().expect("it is piped")).lines();
    let mut found = port;
    let is_ready = lines.by_ref().map_while(Result::ok).any(|line| {
        if let Some((_, address)) = line.split_once("client connections on ") {
            let digits = address.trim().rsplit(':').next().unwrap_or("");
            found = digits.parse().expect("a port");
        }
        line.contains("Server is ready")
    });
    if !is_ready {
        process.wait().expect("it was ours");
        return None;
    }
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    while TcpStream::connect((Ipv4Addr::LOCALHOST, found)).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Some((process, found))
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
