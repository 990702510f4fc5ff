//! Several shards as one server: each on its own thread and core, all at the same addresses.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use crate::endpoint;
use crate::limits;
use crate::reactor::{ListenAddress, ListenError, ListenOptions, Report, SocketLimits};
use crate::server::ends::{ShardEnd, ShardEnds};
use crate::server::{
    Conversations, Meter, Places, Renewal, ServerHandle, ServerShard, ServerShardConfig,
    ServerThread, StreamPaths,
};
use crate::shard::CallError;
use crate::shard::handle::spawn_and_tell;
use crate::tool::Files;

/// The configuration of a server.
///
/// ```
/// use streamdoor::ServerConfig;
/// use streamdoor::server::ServerShardConfig;
///
/// // Two threads, at a port and at a Unix socket.
/// let config = ServerConfig {
///     shards: vec![ServerShardConfig::default(); 2],
///     listen: vec!["127.0.0.1:8808".parse()?, "unix:/run/streamdoor.sock".parse()?],
///     connections_max: 1_000,
/// };
/// # let _ = config;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The configurations of the shards, one for each thread. The server sets their numbers.
    pub shards: Vec<ServerShardConfig>,
    /// The addresses to listen at. The first shard listens at a path. All shards listen at a port,
    /// and the kernel spreads connections over them.
    pub listen: Vec<ListenAddress>,
    /// Maximum number of connections of all shards together.
    pub connections_max: u32,
}

/// A running server. Dropping it ends the server at once. [`Server::drain`] lets clients finish.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::time::Duration;
/// use streamdoor::server::ServerShardConfig;
/// use streamdoor::{Server, ServerConfig};
///
/// # let shards = vec![ServerShardConfig::default()];
/// # let listen = vec!["127.0.0.1:0".parse()?];
/// let config = ServerConfig { shards, listen, connections_max: 100 };
/// let server = Server::start(config, Arc::new(|_shard| {}))?;
/// let end = server.wait(); // Of the first shard that ends.
/// println!("shard {} has ended", end.shard);
/// server.drain(Duration::from_secs(10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Server {
    threads: Vec<ServerThread>,
    ends: ShardEnds,
    addresses: Vec<ListenAddress>,
    reports: Vec<Report>,
}

/// The result of [`Server::drain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Everything that was pending was sent.
    Whole,
    /// The deadline came first, or a shard has died and its output was lost.
    InPart,
}

/// The reason why a server did not start.
#[derive(Debug)]
pub enum ServerError {
    /// The configuration has no shard, or more shards than an id can tell apart.
    ShardCount {
        /// The maximum number of shards.
        shards_max: usize,
    },
    /// The machine lacks something: a thread, memory, or a way to the kernel.
    Shard(io::Error),
    /// The server cannot listen at an address. Choose another one.
    Listen(ListenError),
    /// A shard ended during setup. The panic message of its thread tells the reason.
    Call(CallError),
}

/// A function that prepares each shard on its own thread, for example by adding tools. Tools read
/// no files until it calls [`crate::tool::Tools::allow_files`], because other people call them.
pub type SetUp = Arc<dyn Fn(&mut ServerShard) + Send + Sync>;

impl Server {
    /// Starts all shards, and listens.
    ///
    /// # Errors
    /// [`ServerError`]. No shard is left running.
    ///
    /// # Panics
    /// If no shard listens, or a shard that listens follows one that does not.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use streamdoor::server::{Server, ServerConfig, ServerShardConfig};
    /// let config = ServerConfig {
    ///     shards: vec![ServerShardConfig::default()],
    ///     listen: vec!["127.0.0.1:0".parse()?],
    ///     connections_max: 100,
    /// };
    /// let server = Server::start(config, Arc::new(|_shard| {}))?;
    /// println!("http://{}", server.addresses()[0]);
    /// server.drain(Duration::from_secs(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start(config: ServerConfig, set_up: SetUp) -> Result<Server, ServerError> {
        let ServerConfig { shards, listen, connections_max } = config;
        let shards_max = limits::SHARDS_MAX;
        if shards.is_empty() || shards.len() > shards_max {
            return Err(ServerError::ShardCount { shards_max });
        }
        let listening_count = shards.iter().take_while(|shard| shard.guests.listens).count();
        assert!(listening_count > 0 && shards[listening_count..].iter().all(|s| !s.guests.listens));
        let each_max = connections_max.div_ceil(listening_count as u32).max(1);
        // All shards share them.
        let (doors, named_doors) =
            (shards[0].guests.doors.clone(), shards[0].guests.named_doors.clone());
        endpoint::prepare_documents();
        let (mut mcp_key, mut subscription_key) = ([0; 32], [0; 32]);
        crate::reactor::random_bytes(&mut mcp_key).map_err(ServerError::Shard)?;
        crate::reactor::random_bytes(&mut subscription_key).map_err(ServerError::Shard)?;
        let mcp_places = Places::default();
        let (conversations, streams) = (Conversations::default(), StreamPaths::default());
        let ends = ShardEnds::default();
        let (threads, addresses, reports) = (Vec::new(), Vec::new(), Vec::new());
        let mut server = Server { threads, ends, addresses, reports };
        for (index, mut config) in shards.into_iter().enumerate() {
            config.engine.shard = index as u8;
            let guests = &mut config.guests;
            guests.mcp_key.get_or_insert(mcp_key);
            guests.subscription_key.get_or_insert(subscription_key);
            guests.doors = doors.clone();
            guests.named_doors.clone_from(&named_doors);
            guests.mcp_places.get_or_insert_with(|| mcp_places.clone());
            guests.conversations.get_or_insert_with(|| conversations.clone());
            guests.streams.get_or_insert_with(|| streams.clone());
            let common_bytes = &mut config.rings.common_bytes;
            *common_bytes = limits::RING_SERVED_BYTES.max(*common_bytes);
            config.sockets =
                Some(SocketLimits { connections_max: each_max, ..SocketLimits::default() });
            let (set_up, ends) = (Arc::clone(&set_up), server.ends.clone());
            let set_up = move |shard: &mut ServerShard| {
                shard.tools_mut().allow_files(Files::Nowhere);
                set_up(shard);
            };
            let spawned = spawn_and_tell(config, ServerShard::open, set_up, move |died| {
                ends.add(index as u8, died);
            });
            let (thread, report) = spawned.map_err(ServerError::Shard)?;
            server.threads.push(thread);
            server.reports.push(report);
        }
        let handles: Vec<ServerHandle> = server.handles().cloned().collect();
        server.ends.introduce(handles.clone());
        for thread in &server.threads {
            let peers = handles.clone();
            let called = thread.call(move |shard| shard.set_peers(&peers, listening_count));
            called.map_err(ServerError::Call)?;
        }
        for address in &listen {
            let listened = server.listen(address, listening_count)?;
            server.addresses.push(listened);
        }
        Ok(server)
    }

    /// Lets the first shards listen.
    fn listen(
        &self,
        address: &ListenAddress,
        shard_count: usize,
    ) -> Result<ListenAddress, ServerError> {
        let threads = &self.threads[..shard_count];
        let alone = ListenOptions { shares_port: false };
        if let ListenAddress::Inherited(_) = address {
            let mut listened = listen_on(&threads[0], address, alone, false)?;
            for thread in &threads[1..] {
                listened = listen_on(thread, address, alone, false)?; // One queue for all.
            }
            return Ok(listened);
        }
        if threads.len() == 1 || matches!(address, ListenAddress::Unix(_)) {
            return listen_on(&threads[0], address, alone, false);
        }
        // A socket that shares its port binds even if another process does. Try without sharing
        // first.
        let mut listened = listen_on(&threads[0], address, alone, true)?;
        for thread in threads {
            listened = listen_on(thread, &listened, ListenOptions { shares_port: true }, false)?;
        }
        Ok(listened)
    }

    /// Makes the server share memory with processes of this machine that connect to this path. The
    /// first shard listens there.
    ///
    /// # Errors
    /// [`ServerError::Listen`], and [`ServerError::Call`] if the shard has ended. The server goes
    /// on without this path.
    pub fn open_door(&self, path: &Path) -> Result<(), ServerError> {
        let path = path.to_owned();
        let called = self.threads[0].call(move |shard| shard.listen_at_door(&path));
        called.map_err(ServerError::Call)?.map_err(ServerError::Listen)
    }

    /// Returns the addresses that the server listens at, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Returns for each shard which way to the kernel it uses.
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }

    /// Returns the handles of the shards.
    pub fn handles(&self) -> impl Iterator<Item = &ServerHandle> {
        self.threads.iter().map(|thread| &**thread)
    }

    /// Returns the means to replace the tokens and the certificate while the server runs.
    pub fn renewal(&self) -> Renewal {
        Renewal::new(self.handles().cloned().collect())
    }

    /// Returns the means to read the numbers of the server while it runs.
    pub fn meter(&self) -> Meter {
        Meter::new(self.handles().cloned().collect())
    }

    /// Waits until a shard has ended, and returns its number and the reason. The other shards go
    /// on. They answer 503 to `/readyz`, and name the dead shard in `/metrics` and in lists.
    pub fn wait(&self) -> ShardEnd {
        self.ends().wait()
    }

    /// Returns the ends of all shards, from the first one on. The caller can wait for them
    /// elsewhere.
    pub fn ends(&self) -> ShardEnds {
        self.ends.clone()
    }

    /// Ends the server. It accepts no more connections, stops what runs, tells subscribers
    /// `detached: shutdown`, and sends what is pending, for at most `deadline`.
    pub fn drain(self, deadline: Duration) -> Drained {
        let mut undrained: Vec<&ServerThread> = self.threads.iter().collect();
        let mut waited = Duration::ZERO;
        loop {
            undrained.retain(|thread| thread.call(ServerShard::drain) == Err(CallError::Busy));
            let is_quiet = |thread: &ServerThread| {
                match thread.call(|shard| shard.connection_count()) {
                    Ok(count) => count == 0,
                    Err(CallError::Busy) => false,
                    Err(_) => true, // Nothing more is sent.
                }
            };
            let is_done = undrained.is_empty() && self.threads.iter().all(is_quiet);
            if is_done || waited >= deadline {
                return match is_done && !self.ends.has_death() {
                    true => Drained::Whole,
                    false => Drained::InPart,
                };
            }
            std::thread::sleep(limits::DRAIN_LOOK);
            waited += limits::DRAIN_LOOK;
        }
    }
}

/// Listens at an address. With `is_trial` it stops listening at once.
fn listen_on(
    thread: &ServerThread,
    address: &ListenAddress,
    options: ListenOptions,
    is_trial: bool,
) -> Result<ListenAddress, ServerError> {
    let address = address.clone();
    let called = thread.call(move |shard| {
        let listened = shard.listen(&address, options);
        if is_trial && listened.is_ok() {
            shard.stop_listening();
        }
        listened
    });
    called.map_err(ServerError::Call)?.map_err(ServerError::Listen)
}

impl fmt::Display for ServerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerError::ShardCount { shards_max } => {
                write!(out, "a server has 1 to {shards_max} shards")
            }
            ServerError::Shard(error) => write!(out, "a shard did not start: {error}"),
            ServerError::Listen(error) => error.fmt(out),
            ServerError::Call(error) => write!(out, "a shard ended: {error}"),
        }
    }
}

impl std::error::Error for ServerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ServerError::ShardCount { .. } => None,
            ServerError::Shard(error) => Some(error),
            ServerError::Listen(error) => Some(error),
            ServerError::Call(error) => Some(error),
        }
    }
}
