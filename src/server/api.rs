//! The methods of a server's shard for its owner, besides those of every shard. Each is one call of
//! the guest whose business it is.

use std::path::Path;
use std::sync::Arc;

use crate::base::ExecutionId;
use crate::engine::SubscribeError;
use crate::mcp::Catalog;
use crate::reactor::{
    AdoptError, ListenAddress, ListenError, ListenOptions, Reactor, ReleasedSocket, Report,
};
use crate::server::guests::Guests;
use crate::server::{
    AgentRun, AgentSteps, AgentStream, LineOptions, ServerHandle, ServerShard, ServerShardConfig,
    agents, durable, hub, mcp, peers, subscriptions, turn, workers,
};
use crate::shard::{ExecuteError, ExecuteOptions, Shard};
use crate::tool::{SpecError, VirtualTool};

impl ServerShard {
    /// Creates a shard of a server for the calling thread, with the reactor that the kernel allows.
    /// The report says which one that is, and why.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(config: ServerShardConfig) -> std::io::Result<(ServerShard, Report)> {
        let (mut shard, report) =
            Shard::open_with(config, |config, reactor| Guests::new(config, reactor.now()))?;
        prepare(&mut shard);
        Ok((shard, report))
    }
}

impl<R: Reactor + 'static> ServerShard<R> {
    /// Creates a shard of a server over this reactor.
    ///
    /// # Errors
    /// The kernel's error, when memory for the rings is allocated or a key is drawn.
    pub fn over(mut reactor: R, config: ServerShardConfig) -> std::io::Result<ServerShard<R>> {
        let guests = Guests::new(&config, reactor.now())?;
        let mut shard = Shard::assemble(reactor, config, guests, None)?;
        prepare(&mut shard);
        Ok(shard)
    }
}

/// Adds the tools of guests, and the executions that the journal has kept.
fn prepare<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    agents::add_to(&mut shard.tools, shard.guests.agents.settings());
    let mut described = shard.describe_kept();
    if shard.guests.cluster.is_on() {
        // Others find those in the cluster, and this node finds the same.
        described.retain(|each| !shard.is_left_to_log(each.id));
    }
    let open = shard.open_kept();
    let streams = durable::kept_streams(&described, &open);
    let Guests { archive, access, conversations, .. } = &mut shard.guests;
    archive.fill(described, access, conversations);
    durable::fill(shard, streams);
    subscriptions::fill(shard, &open);
    mcp::take_up_tasks(shard, &open);
    workers::kept::take_up(shard);
}

impl<R: Reactor + 'static> ServerShard<R> {
    /// Serves HTTP at this address from now on. Returns the address with the port that the kernel
    /// chose. An address that other machines can reach requires a token of every client:
    /// [`GuestConfig::access`](super::GuestConfig::access).
    ///
    /// # Errors
    /// [`ListenError`]. Nothing is left behind.
    ///
    /// ```
    /// use streamdoor::server::ListenOptions;
    /// use streamdoor::{ServerShard, ShardConfig};
    /// let (mut shard, _) = ServerShard::open(ShardConfig::default())?;
    /// let address = shard.listen(&"127.0.0.1:0".parse()?, ListenOptions::default())?;
    /// println!("http://{address}/v1/tools");
    /// shard.turn(); // ... and so on, or `shard.run()`.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn listen(
        &mut self,
        address: &ListenAddress,
        options: ListenOptions,
    ) -> Result<ListenAddress, ListenError> {
        hub::listen(self, address, options)
    }

    /// Listens at a Unix socket for processes of this machine and of this user. They may share
    /// memory with the server, besides everything else. A shard has at most one such socket.
    ///
    /// # Errors
    /// [`ListenError`]. Nothing is left behind.
    ///
    /// # Panics
    /// If the shard listens at such a socket already.
    pub fn listen_at_door(&mut self, path: &Path) -> Result<(), ListenError> {
        hub::listen_at_door(self, path)
    }

    /// Closes all listeners. Open connections stay.
    pub fn stop_listening(&mut self) {
        hub::stop_listening(self)
    }

    /// Returns the number of open connections.
    pub fn connection_count(&self) -> u32 {
        hub::connection_count(self)
    }

    /// Begins to end the server. It accepts no more connections, stops what runs, and tells
    /// subscribers `detached: shutdown`. Pending output is still sent: call [`Shard::turn`] until
    /// [`Shard::connection_count`] is 0, or until a deadline of the caller.
    pub fn drain(&mut self) {
        turn::drain(self)
    }

    /// Adds a virtual tool for every principal. Its calls go to the workers of the calling
    /// principal. Clients cannot replace it over the network.
    ///
    /// # Errors
    /// [`SpecError`] if its description is wrong, or a tool of another kind has its name.
    pub fn add_virtual_tool(&mut self, tool: VirtualTool) -> Result<(), SpecError> {
        workers::add_virtual_tool(self, tool)
    }

    /// Sets the prompts and resources that clients of the Model Context Protocol find, besides
    /// tools and executions. This replaces the previous catalog, and clients that want to know of
    /// changed prompts are notified. Clients learn only when they connect whether prompts exist.
    /// Set the first prompts before the first client is served.
    #[doc(hidden)]
    pub fn set_catalog(&mut self, catalog: impl Into<Arc<Catalog>>) {
        mcp::set_catalog(self, catalog)
    }

    /// Speaks the Model Context Protocol on this connection, line by line. The client is served as
    /// on a listener without authentication.
    ///
    /// # Errors
    /// [`AdoptError`], which returns the socket.
    #[doc(hidden)]
    pub fn open_lines(
        &mut self,
        socket: ReleasedSocket,
        options: LineOptions,
    ) -> Result<(), AdoptError> {
        mcp::open_lines(self, socket, options)
    }

    /// Makes shards that are driven by hand one server, in the order of their numbers. Spawned
    /// shards use `set_peers`.
    #[doc(hidden)]
    pub fn introduce(shards: &mut [ServerShard<R>]) {
        peers::introduce(shards)
    }

    /// Starts a run. Its tools are tools of this shard ([`Shard::tools_mut`]). The model may call
    /// only the tools that the config describes.
    ///
    /// # Errors
    /// [`ExecuteError`]: nothing was started.
    pub fn start_agent(
        &mut self,
        run: AgentRun,
        options: ExecuteOptions,
    ) -> Result<ExecutionId, ExecuteError> {
        agents::start_agent(self, run, options)
    }

    /// Starts a run and follows it part by part. [`AgentStream::next`] runs the shard between two
    /// parts.
    ///
    /// ```
    /// use streamdoor::agents::{Body, Config, Partial};
    /// use streamdoor::agents::{AgentRun, ModelSettings};
    /// use streamdoor::{ExecuteOptions, ServerShard, ShardConfig};
    ///
    /// # use std::io::{Read, Write};
    /// # let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// # let base_url = format!("http://{}/v1", listener.local_addr()?);
    /// # std::thread::spawn(move || {
    /// #     let (mut peer, _) = listener.accept().unwrap();
    /// #     let _ = peer.read(&mut [0; 8_192]).unwrap();
    /// #     let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    /// #     peer.write_all(head.as_bytes()).unwrap();
    /// #     for word in ["Good ", "morning."] {
    /// #         let delta = serde_json::json!({"content": word});
    /// #         let chunk = serde_json::json!({"choices": [{"index": 0, "delta": delta}]});
    /// #         write!(peer, "data: {chunk}\n\n").unwrap();
    /// #     }
    /// #     let stop = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    /// #     write!(peer, "data: {stop}\n\ndata: [DONE]\n\n").unwrap();
    /// # });
    /// // A model of this machine, say. Its key, if it wants one, comes from the environment.
    /// let model = ModelSettings::new("local", "chat", &base_url, "small", None)?;
    /// let (mut shard, _report) = ServerShard::open(ShardConfig::default())?;
    /// let run = AgentRun::new(Config::new("", model.endpoint), "Greet me.");
    /// let mut stream = shard.stream_agent(run, ExecuteOptions::default())?;
    /// let mut text = String::new();
    /// while let Some(part) = stream.next(&mut shard) {
    ///     if let Body::Partial(Partial::TextDelta { delta, .. }) = part.body {
    ///         text.push_str(&delta); // As it is said.
    ///     }
    /// }
    /// assert_eq!(text, "Good morning.");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ExecuteError`]: nothing was started.
    pub fn stream_agent(
        &mut self,
        run: AgentRun,
        options: ExecuteOptions,
    ) -> Result<AgentStream, ExecuteError> {
        agents::stream_agent(self, run, options)
    }

    /// Starts a run and follows it step by step.
    ///
    /// # Errors
    /// [`ExecuteError`]: nothing was started.
    pub fn iterate_agent(
        &mut self,
        run: AgentRun,
        options: ExecuteOptions,
    ) -> Result<AgentSteps, ExecuteError> {
        agents::iterate_agent(self, run, options)
    }

    /// Follows a run that is already running, from the oldest part that its ring still holds.
    ///
    /// # Errors
    /// [`SubscribeError`]: the execution cannot be followed.
    pub fn follow_agent(&mut self, execution: ExecutionId) -> Result<AgentStream, SubscribeError> {
        agents::follow_agent(self, execution)
    }
}

impl ServerShard {
    /// Sets the shards of the server, including this one, in the order of their numbers.
    /// The first `listening_count` of them listen.
    pub(crate) fn set_peers(&mut self, peers: &[ServerHandle], listening_count: usize) {
        peers::set_peers(self, peers, listening_count)
    }
}
