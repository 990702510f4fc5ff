//! A server of NATS on loopback, with JetStream on a directory of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The oldest version that has everything: a time to live for each message.
const VERSION_MIN: (u32, u32) = (2, 11);

/// The name of the file with the configuration.
const CONFIGURATION: &str = "nats.conf";

/// Number of attempts to start a server again.
const ATTEMPTS_MAX: u32 = 100;

/// The place where a server runs.
#[derive(Clone)]
pub struct Place {
    /// Executes the command behind its own arguments; empty: the server is started directly.
    pub launcher: Vec<String>,
    pub address: Ipv4Addr,
    /// The scheme of the address: `nats`, or `tls`.
    pub scheme: &'static str,
    /// True if the disk has everything that is acknowledged.
    pub syncs_always: bool,
}

impl Default for Place {
    fn default() -> Place {
        let address = Ipv4Addr::LOCALHOST;
        Place { launcher: Vec::new(), address, scheme: "nats", syncs_always: false }
    }
}

/// A server. It is killed when it is dropped.
pub struct NatsServer {
    program: PathBuf,
    directory: PathBuf,
    place: Place,
    port: u16,
    monitor: Option<u16>,
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
        NatsServer::start_with("jetstream { store_dir: DIRECTORY }")
    }

    /// Starts a server with this configuration, in which `DIRECTORY` is a directory of its own.
    pub fn start_with(configuration: &str) -> Option<NatsServer> {
        NatsServer::start_at(Place::default(), 0, configuration)
    }

    /// Starts servers that replicate their streams, each at its place and with this addition to its
    /// configuration. `routes` has the port of each for the others.
    pub fn start_together(
        places: &[Place],
        routes: &[u16],
        configuration: &str,
    ) -> Option<Vec<NatsServer>> {
        let urls = places.iter().zip(routes);
        let urls: Vec<String> =
            urls.map(|(place, port)| format!("nats://{}:{port}", place.address)).collect();
        let start = |(number, (place, port)): (usize, (&Place, &u16))| {
            let sync = if place.syncs_always { "sync_interval: always" } else { "" };
            let all = format!(
                "server_name: n{number}
                 jetstream {{ store_dir: DIRECTORY\n {sync} }}
                 cluster {{ name: together, listen: \"{}:{port}\", routes: [{}] }}
                 {configuration}",
                place.address,
                urls.join(", "),
            );
            NatsServer::start_at(place.clone(), 0, &all)
        };
        places.iter().zip(routes).enumerate().map(start).collect()
    }

    /// Starts a server at a place and a port; 0: any.
    fn start_at(place: Place, port: u16, configuration: &str) -> Option<NatsServer> {
        let Some(program) = program() else {
            println!("not run: nats-server 2.11 or newer is not installed (tools/test cluster)");
            return None;
        };
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("streamdoor-nats-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let shown = format!("{:?}", directory.display().to_string());
        let text = configuration.replace("DIRECTORY", &shown);
        std::fs::write(directory.join(CONFIGURATION), text).expect("a file");
        let (process, port, monitor) = run(&program, &place, &directory, port).expect("it starts");
        Some(NatsServer { program, directory, place, port, monitor, process })
    }

    /// The address of the server.
    pub fn url(&self) -> String {
        format!("{}://{}:{}", self.place.scheme, self.place.address, self.port)
    }

    /// The address of the server for this user, who may have a password behind a colon.
    pub fn url_of(&self, user: &str) -> String {
        format!("nats://{user}@127.0.0.1:{}", self.port)
    }

    /// The address of its monitor, which the configuration has switched on.
    pub fn monitor(&self) -> String {
        format!("http://127.0.0.1:{}", self.monitor.expect("it has one"))
    }

    /// Sends a signal to the process of the server.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
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
            if let Some((process, ..)) = run(&self.program, &self.place, &self.directory, self.port)
            {
                self.process = process;
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("nats-server does not start again");
    }
}

impl NatsServer {
    /// Remembers what the disk of a server has that was killed.
    pub fn remember(&self) {
        copy(&self.directory, &self.directory.with_extension("before"));
    }

    /// Lets the disk have what it had then, as after a power cut.
    pub fn forget(&self) {
        let before = self.directory.with_extension("before");
        std::fs::remove_dir_all(&self.directory).expect("it was killed");
        std::fs::rename(before, &self.directory).expect("it was remembered");
    }
}

/// Copies a directory.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("it is there") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("it has a name"));
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(std::fs::copy(&path, &target).expect("a file")),
        }
    }
}

/// Runs a server. Port 0 is any free one. Returns its port, and that of its monitor; `None` if it
/// has ended at once.
fn run(
    program: &Path,
    place: &Place,
    directory: &Path,
    port: u16,
) -> Option<(Child, u16, Option<u16>)> {
    // -1 is the server's word for any port.
    let wanted = if port == 0 { "-1".to_owned() } else { port.to_string() };
    let program = program.as_os_str().to_owned();
    let words = place.launcher.iter().map(OsString::from).chain([program]).collect::<Vec<_>>();
    let mut process = Command::new(&words[0])
        .args(&words[1..])
        .args(["--addr", &place.address.to_string(), "--port", &wanted, "--config"])
        .arg(directory.join(CONFIGURATION))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(process.stderr.take().expect("it is piped")).lines();
    let (mut found, mut monitor) = (port, None);
    let port_in = |line: &str, words: &str| {
        let (_, address) = line.split_once(words)?;
        Some(address.trim().rsplit(':').next()?.parse().expect("a port"))
    };
    let is_ready = lines.by_ref().map_while(Result::ok).any(|line| {
        found = port_in(&line, "client connections on ").unwrap_or(found);
        monitor = port_in(&line, "http monitor on ").or(monitor);
        line.contains("Server is ready")
    });
    if !is_ready {
        process.wait().expect("it was ours");
        return None;
    }
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    // Another network is not reached from here.
    while place.launcher.is_empty() && TcpStream::connect((place.address, found)).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Some((process, found, monitor))
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.process.kill(); // Also one that a signal has stopped.
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
