//! Stratum 6: doors, for a program that runs beside the server.
//! The program reads an execution's chunks straight from the ring, or publishes into one, through
//! memory that it shares with the server. The kernel copies nothing, and no system call is made
//! while both sides are awake.
//!
//! ```no_run
//! use serde_json::json;
//! use streamdoor::door::{Door, ReadOptions};
//! use streamdoor::Delivery;
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
//! A door is a Unix socket that speaks the server's HTTP. Two of its replies carry descriptors:
//! `endpoint/grant.rs` has their lines, and `memory::shared` has the files. The connection
//! on which a door was granted is its life line: while it stands, both sides are present. The end
//! of a life line is final. A stream over the network can break while its reader lives, so a
//! `block` subscriber there may reconnect within `limits::RECONNECT_GRACE`. The end of a
//! local socket means that a process has closed it or has died. A [`DoorReader`] whose line ends is
//! therefore removed at once and holds no producer back. A [`DoorWriter`] whose line ends has
//! failed. A client that continues in another process asks for a new door, from
//! [`DoorReader::next_seq`] on.
//!
//! Neither side trusts memory that the other can write. Every number is loaded once and checked,
//! bytes are copied before they are examined, and every sleep is bounded. A server or a producer
//! that writes nonsense can make a [`DoorReader`] fail with [`DoorError::Unsound`], and can do
//! nothing else.
//!
//! This module has no runtime. A [`DoorReader`] has no thread. A [`DoorWriter`] has one thread,
//! which sleeps; its end tells the server that this process has ended.
//!
//! Tests: `reader_tests.rs`, `writer_tests.rs` and `hostile_tests.rs` use real files and a host
//! that plays the server (`host.rs`). `tests/door/` uses a real server.
#![forbid(unsafe_code)]

mod audience;
mod connection;
mod error;
mod link;
mod named;
mod options;
mod reader;
pub(crate) mod ring_producer;
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
use crate::endpoint::{GrantNames, ProduceGrant, ReadGrant, check_token};

use connection::OpenConnection;

pub use crate::endpoint::{GrantFault, TokenFault};
pub use crate::memory::named::{NamedError, NamedFault};
pub use crate::memory::{HeaderFault, OpenError};
pub use crate::shard::{Flaw, JoinFault};
pub use audience::{DoorAudience, DoorJoinError};
pub use error::{DoorError, Unsound, WriteError};
pub use named::NamedReader;
pub use options::{ProduceOptions, ReadOptions};
pub use reader::DoorReader;
pub use writer::DoorWriter;

/// The door of a server: the address of a Unix socket. It connects only when a request is sent.
///
/// ```no_run
/// use streamdoor::Door;
/// use streamdoor::door::ReadOptions;
///
/// let door = Door::open("/run/user/1000/streamdoor.sock")?;
/// let arguments = serde_json::json!({"chunks": 10, "delay_ms": 100});
/// let mut reader = door.run("slow_data_processor", &arguments, &ReadOptions::default())?;
/// while let Some(delivery) = reader.next()? {
///     println!("{delivery:?}");
/// }
/// # Ok::<(), streamdoor::door::DoorError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Door {
    path: PathBuf,
    token: Option<Box<str>>,
}

impl Door {
    /// Returns the door at `path`, if that is a socket of this user or of root.
    ///
    /// # Errors
    /// [`DoorError::NoServer`]: the path cannot be examined, is no socket, or belongs to another
    /// user.
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

    /// The path at which a server of this user opens its door by default:
    /// `$XDG_RUNTIME_DIR/streamdoor.sock`. `None` if the variable is unset or empty.
    pub fn default_path() -> Option<PathBuf> {
        let directory = std::env::var_os("XDG_RUNTIME_DIR").filter(|name| !name.is_empty())?;
        Some(Path::new(&directory).join("streamdoor.sock"))
    }

    /// Returns the same door, with a token that each request carries. A server with tokens requires
    /// one.
    ///
    /// # Errors
    /// [`TokenFault`]: no server can have a token like this one.
    pub fn with_token(&self, token: &str) -> Result<Door, TokenFault> {
        check_token(token)?;
        Ok(Door { path: self.path.clone(), token: Some(token.into()) })
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a client for all other requests to the server, over the same socket.
    ///
    /// # Errors
    /// [`DoorError::NoServer`]: the path is too long for a socket's address.
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
    /// # use streamdoor::Policy;
    /// # let (door, id) = (Door::open("/run/user/1000/streamdoor.sock")?, "");
    /// let options = ReadOptions { policy: Some(Policy::Block), ..Default::default() };
    /// let mut reader = door.read(id, &options)?;
    /// while let Some(_delivery) = reader.next()? {}
    /// # Ok::<(), streamdoor::door::DoorError>(())
    /// ```
    ///
    /// # Errors
    /// [`DoorError`]: no server listens there, it refuses the request, or its grant is not sound.
    pub fn read(&self, execution: &str, options: &ReadOptions) -> Result<DoorReader, DoorError> {
        let request = options.request(execution, self.token.as_deref());
        let mut connection = OpenConnection::begin(&self.path, &request)?;
        let line = connection.line()?;
        let grant = ReadGrant::parse(&line)?;
        let names = GrantNames::parse(&line)?;
        DoorReader::new(&grant, names, connection, options)
    }

    /// Runs a tool, and reads its output from the first chunk on.
    ///
    /// # Errors
    /// [`DoorError`]; the execution is cancelled if it was created and cannot be read.
    pub fn run(
        &self,
        tool: &str,
        arguments: &Value,
        options: &ReadOptions,
    ) -> Result<DoorReader, DoorError> {
        let client = self.client()?;
        let created = client.execute(tool, arguments, &ExecuteOptions::default());
        let created = created.map_err(|error| self.failed(error))?;
        let reader = self.read(&created.execution.to_string(), options);
        if reader.is_err() {
            let _ = client.cancel(created.execution); // No other subscriber waits for it.
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
    /// [`DoorError`]: no server listens there, it refuses the request, or its grant is not sound.
    pub fn produce(&self, name: &str, options: &ProduceOptions) -> Result<DoorWriter, DoorError> {
        let request = options.request(name, self.token.as_deref());
        let mut connection = OpenConnection::begin(&self.path, &request)?;
        let line = connection.line()?;
        let grant = ProduceGrant::parse(&line)?;
        DoorWriter::new(grant, connection)
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

/// True if `uid` is this user or root.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

impl fmt::Display for Door {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(out)
    }
}
