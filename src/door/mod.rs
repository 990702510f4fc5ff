//! Stratum 6: doors, for a program beside the server: it reads an execution's chunks straight from
//! the ring, or publishes into one, through memory that it shares with the server. Nothing is
//! copied by the kernel, and while both sides are awake no system call is made.
//!
//! ```no_run
//! use serde_json::json;
//! use streamdoor::door::{Door, ReadOptions};
//! use streamdoor::shard::Delivery;
//!
//! let door = Door::open(Door::default_path().ok_or("no XDG_RUNTIME_DIR")?)?;
//! let arguments = json!({"chunks": 10, "delay_ms": 100});
//! let mut reader = door.run("slow_data_processor", &arguments, &ReadOptions::default())?;
//! while let Some(delivery) = reader.next()? {
//!     match delivery {
//!         Delivery::Chunk(chunk) => println!("chunk {}: {} bytes", chunk.seq, chunk.data.len()),
//!         Delivery::Gap(gap) => println!("missed {} to {}", gap.from_seq, gap.to_seq),
//!         Delivery::Progress(report) => println!("{} done", report.progress.progress),
//!         Delivery::End(ended) => println!("{}", ended.end.state),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A door is a Unix socket that speaks the server's HTTP; two of its answers come with descriptors
//! (`endpoint/grant.rs` has the lines, [`crate::memory::shared`] what the descriptors are of). The
//! connection on which a door was granted is its life line: while it stands, both sides are there.
//! Its end is final. A stream over the network can break while its reader lives, and a `block`
//! subscriber there has [`crate::limits::RECONNECT_GRACE`] to come back; the end of a local socket
//! means that a process has closed it or is dead, so a [`Reader`] whose line ends is gone at once
//! and holds nobody back, and a [`Writer`] has failed. Who goes on in another process asks anew,
//! from [`Reader::next_seq`] on.
//!
//! Whoever shares memory is not believed: every number is loaded once and checked, bytes are copied
//! before they are looked at, each sleep is bounded. A server or a producer that writes nonsense
//! can make a [`Reader`] fail with [`DoorError::Unsound`], and nothing else.
//!
//! There is no runtime. A [`Reader`] has no thread; a [`Writer`] has one, which sleeps and whose
//! end tells the server of ours.
//!
//! Tests: `reader_tests.rs`, `writer_tests.rs`, `hostile_tests.rs` over real files, with a host
//! that plays the server (`host.rs`); `tests/door/` against a real one.
#![forbid(unsafe_code)]

mod connection;
mod error;
mod link;
mod named;
mod options;
pub(crate) mod pen;
mod reader;
mod writer;

#[cfg(all(test, not(miri), not(loom)))]
mod host;
#[cfg(all(test, not(miri), not(loom)))]
mod hostile_tests;
#[cfg(all(test, not(miri), not(loom)))]
mod reader_tests;
#[cfg(all(test, not(miri), not(loom)))]
mod writer_tests;

use std::fmt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::client::{Client, ClientError, ExecuteOptions};
use crate::endpoint::{GrantNames, ProduceGrant, ReadGrant, TokenFault, check_token};
use crate::engine::Hold;
use crate::limits;

use connection::Talk;

pub use error::{DoorError, Unsound, WriteError};
pub use named::NamedReader;
pub use options::{ProduceOptions, ReadOptions};
pub use reader::Reader;
pub use writer::Writer;

/// The door of a server: the address of a Unix socket. Connects when something is asked.
#[derive(Clone, Debug)]
pub struct Door {
    path: PathBuf,
    token: Option<Box<str>>,
}

impl Door {
    /// The door at `path`, if that is a socket of this user or of root.
    ///
    /// # Errors
    /// [`DoorError::NoServer`].
    pub fn open(path: impl Into<PathBuf>) -> Result<Door, DoorError> {
        let path = path.into();
        let refused = |why: &str| {
            let error = std::io::Error::new(std::io::ErrorKind::PermissionDenied, why.to_owned());
            Err(DoorError::NoServer { path: path.clone(), error })
        };
        match std::fs::metadata(&path) {
            Err(error) => Err(DoorError::NoServer { path, error }),
            Ok(found) if !found.file_type().is_socket() => refused("it is not a socket"),
            Ok(found) if !is_trusted(found.uid()) => refused("it belongs to another user"),
            Ok(_) => Ok(Door { path, token: None }),
        }
    }

    /// Where a server of this user opens its door if it is not told otherwise:
    /// `$XDG_RUNTIME_DIR/streamdoor.sock`. `None` if there is no such variable.
    pub fn default_path() -> Option<PathBuf> {
        let directory = std::env::var_os("XDG_RUNTIME_DIR").filter(|name| !name.is_empty())?;
        Some(Path::new(&directory).join("streamdoor.sock"))
    }

    /// The same, for who shows this token with each request, as a server with tokens wants it.
    ///
    /// # Errors
    /// [`TokenFault`]: it is no token that a server could know.
    pub fn with_token(&self, token: &str) -> Result<Door, TokenFault> {
        check_token(token)?;
        Ok(Door { path: self.path.clone(), token: Some(token.into()) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything else that can be asked of the server, over the same socket.
    ///
    /// # Errors
    /// [`DoorError::NoServer`]: the path is too long for a socket, or no text.
    pub fn client(&self) -> Result<Client, DoorError> {
        let url = format!("unix:{}", self.path.display());
        let refused = |why: String| DoorError::NoServer {
            path: self.path.clone(),
            error: std::io::Error::new(std::io::ErrorKind::InvalidInput, why),
        };
        let client = Client::new(&url).map_err(|error| refused(error.to_string()))?;
        match &self.token {
            None => Ok(client),
            Some(token) => client.with_token(token).map_err(|fault| refused(fault.to_string())),
        }
    }

    /// Reads an execution, by its id.
    ///
    /// ```no_run
    /// # use streamdoor::door::{Door, ReadOptions};
    /// # use streamdoor::engine::Policy;
    /// # let (door, id) = (Door::open("/run/user/1000/streamdoor.sock")?, "");
    /// let options = ReadOptions { policy: Some(Policy::Block), ..Default::default() };
    /// let mut reader = door.read(id, &options)?;
    /// while let Some(_delivery) = reader.next()? {}
    /// # Ok::<(), streamdoor::door::DoorError>(())
    /// ```
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn read(&self, execution: &str, options: &ReadOptions) -> Result<Reader, DoorError> {
        let request = options.request(execution, self.token.as_deref());
        let mut talk = Talk::begin(&self.path, &request)?;
        let line = talk.line()?;
        let grant = ReadGrant::parse(&line)?;
        let names = GrantNames::parse(&line)?;
        Reader::new(&grant, names, talk, options)
    }

    /// Runs a tool, and reads what it gives from its first chunk on.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn run(
        &self,
        tool: &str,
        arguments: &Value,
        options: &ReadOptions,
    ) -> Result<Reader, DoorError> {
        let hold = Some(Hold::UntilRead { deadline: limits::ATTACH_DEADLINE });
        let execute = ExecuteOptions { hold, ..ExecuteOptions::default() };
        let client = self.client()?;
        let created = client.execute(tool, arguments, &execute);
        let created = created.map_err(|error| self.failed(error))?;
        let reader = self.read(&created.execution.to_string(), options);
        if reader.is_err() {
            let _ = client.cancel(created.execution); // Nobody else waits for it.
        }
        reader
    }

    /// Becomes the producer of a new execution, which is listed under `name`.
    ///
    /// ```no_run
    /// # use streamdoor::door::{Door, ProduceOptions};
    /// # let door = Door::open("/run/user/1000/streamdoor.sock")?;
    /// let mut writer = door.produce("numbers", &ProduceOptions::default())?;
    /// println!("read {}", writer.execution());
    /// for number in 0..1_000 {
    ///     writer.send(format!("{number}").as_bytes())?; // Waits while readers hold it back.
    /// }
    /// writer.complete()?;
    /// # Ok::<(), streamdoor::door::DoorError>(())
    /// ```
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn produce(&self, name: &str, options: &ProduceOptions) -> Result<Writer, DoorError> {
        let request = options.request(name, self.token.as_deref());
        let mut talk = Talk::begin(&self.path, &request)?;
        let line = talk.line()?;
        let grant = ProduceGrant::parse(&line)?;
        Writer::new(grant, talk)
    }

    fn failed(&self, error: ClientError) -> DoorError {
        match error {
            ClientError::Refused(refused) => DoorError::Refused(refused),
            ClientError::Unreachable { error, .. } => {
                DoorError::NoServer { path: self.path.clone(), error }
            }
            ClientError::Cut(_) => DoorError::ServerGone,
            error => DoorError::Unsound(Unsound::Answer(error.to_string())),
        }
    }
}

/// This user, or root.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

impl fmt::Display for Door {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(out)
    }
}
