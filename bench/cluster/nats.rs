//! A server of NATS for one run, and the stores of a cluster.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::ConnectOptions;
use streamdoor::nats::connect::blocking;
use streamdoor::nats::link::Link;
use streamdoor::nats::names::Names;
use streamdoor::nats::stores::Stores;

use crate::common::cluster::failed;
use crate::common::{Failure, end};

/// A server. It goes with its directory when the run is over.
pub struct NatsServer {
    process: Child,
    directory: PathBuf,
    url: String,
}

impl NatsServer {
    /// Starts a server on a port that is free.
    ///
    /// # Errors
    /// [`Failure::Environment`] if there is none.
    pub fn start(program: &Path) -> Result<NatsServer, Failure> {
        let lacking = |text: &dyn std::fmt::Display| {
            Failure::Environment(format!("{}: {text}", program.display()))
        };
        let name = format!("streamdoor-bench-cluster-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let mut command = Command::new(program);
        command.args(["--addr", "127.0.0.1", "--port", "-1", "--jetstream", "--store_dir"]);
        command.arg(&directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| lacking(&error))?;
        let lines = BufReader::new(process.stderr.take().expect("it was piped")).lines();
        let mut server = NatsServer { process, directory, url: String::new() };
        let mut lines = lines.map_while(Result::ok);
        let words = "client connections on ";
        for line in lines.by_ref() {
            if let Some((_, address)) = line.split_once(words) {
                server.url = format!("nats://{}", address.trim());
            }
            if line.contains("Server is ready") {
                std::thread::spawn(move || lines.for_each(drop)); // A full pipe would block it.
                return Ok(server);
            }
        }
        Err(lacking(&"does not start"))
    }

    /// The address of the server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The names of the cluster.
    pub fn names() -> Names {
        Names::new("bench").expect("it is a name")
    }

    /// A new connection.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub async fn client(&self) -> Result<async_nats::Client, Failure> {
        ConnectOptions::new().connect(self.url()).await.map_err(failed)
    }

    /// Makes the stores of a cluster.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub fn make_stores(&self) -> Result<(), Failure> {
        let retention = Duration::from_secs(3_600);
        let stores = Stores { bytes_max: 8 << 30, retention, replicas: 1 };
        let made = blocking(async {
            let link = Link::new(self.client().await?, NatsServer::names());
            stores.create(&link).await.map_err(failed)
        });
        made.map_err(failed)?
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        end(&mut self.process);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
