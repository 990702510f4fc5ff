//! The guests of a server's shard, and what the shard asks of them ([`Outlet`]).

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use crate::base::{ExecutionId, Handle, Instant, Panicked, Principal, SubscriberId};
use crate::endpoint::{Access, PolicyChoice, Tally};
use crate::engine::{Engine, Gate, Verdict};
use crate::limits;
use crate::memory::{ControlPage, ReaderPageView};
use crate::reactor::{AnyReactor, ConnectionId, Reactor, SocketLimits};
use crate::server::agents::{Agent, Agents};
use crate::server::archive::{self, Archive, KeptTask};
use crate::server::calls::Keys;
use crate::server::cluster::{Cluster, ClusterLine};
use crate::server::conversations::Conversations;
use crate::server::durable::{Durable, StreamPaths};
use crate::server::executions::{EndedExecutions, KeptAnswers};
use crate::server::hub::Hub;
use crate::server::hub::stream::Source;
use crate::server::hub::tls::TlsConfig;
use crate::server::mcp::{Mcp, McpReceiver};
use crate::server::outgoing::Outgoing;
use crate::server::peers::{Peers, ToPeer};
use crate::server::shm::lines::LastWord;
use crate::server::shm::{Door, DoorsHere, Named, ProcessSeat};
use crate::server::subscriptions::Subscriptions;
use crate::server::turn::recall::{self, Recalls};
use crate::server::workers::Workers;
use crate::server::workers::open_call::OpenCall;
use crate::server::{
    AgentSettings, Log, NamedDoors, OutgoingConfig, Places, Spans, UpstreamMeter, agents, calls,
    cluster, conversations, durable, executions, hub, mcp, outgoing, peers, records, shm,
    subscriptions, turn, workers,
};
use crate::shard::delivery::{Chunk, Delivery};
use crate::shard::journal::EndedDetails;
use crate::shard::outlet::{
    Giving, GuestRun, GuestWork, Outlet, OutsideReader, Question, ShardEvent,
};
use crate::shard::run::{Producer, Remote, Run, Seat};
use crate::shard::{ExecuteError, ExecuteOptions, Shard, ShardConfig, ShardHandle, ShardThread};
use crate::stream::DetachReason;
use crate::tool::Work;
use crate::trace::{Counters, Duty};
use crate::wire::subscriptions::Networks;

/// A shard of a server: a shard with connections, workers, agents and processes as its guests.
///
/// ```no_run
/// use streamdoor::{Server, ServerConfig, ServerShard, ToolSpec};
///
/// let set_up = |shard: &mut ServerShard| {
///     let (spec, tools) = (ToolSpec::new("greet", "Says hello."), shard.tools_mut());
///     tools.insert_closure(spec, |_, out| Ok(out.send(b"hello")?)).expect("its name is new");
/// };
/// # let (shards, listen) = (Vec::new(), Vec::new());
/// let config = ServerConfig { shards, listen, connections_max: 100 };
/// let server = Server::start(config, std::sync::Arc::new(set_up))?;
/// # Ok::<(), streamdoor::server::ServerError>(())
/// ```
pub type ServerShard<R = AnyReactor> = Shard<R, Guests<R>>;
/// The handle of a server's shard, for other threads.
pub type ServerHandle = ShardHandle<Guests<AnyReactor>>;
/// The thread of a server's shard.
pub type ServerThread = ShardThread<Guests<AnyReactor>>;
/// The configuration of a server's shard.
pub type ServerShardConfig = ShardConfig<GuestConfig>;
/// An execution of a server's shard.
pub(in crate::server) type ServedRun = Run<Served>;
/// A reader elsewhere of such an execution.
pub(in crate::server) type ServedRemote = Remote<ProcessSeat>;

/// The settings of the guests of a server's shard.
///
/// ```
/// use streamdoor::GuestConfig;
/// use streamdoor::server::ServerShardConfig;
///
/// let guests = GuestConfig { connections_per_address_max: 10, ..Default::default() };
/// let shard = ServerShardConfig { guests, ..Default::default() };
/// assert_eq!(shard.guests.connections_per_address_max, 10);
/// ```
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// Maximum number of connections to this shard from one address, or from one /64 of IPv6. The
    /// machine's own addresses have no such limit. A connection beyond it is closed at once.
    pub connections_per_address_max: u32,
    /// The certificate and key of the server. With it, all TCP connections use TLS. Unix sockets
    /// never do.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsConfig>,
    /// Number of executions that other processes may share. The shards of a server share one
    /// number.
    pub doors: crate::server::Doors,
    /// The folder for rings that can be read by name, and their number; `None`: executions have no
    /// such rings. The shards of a server share one number.
    pub named_doors: Option<NamedDoors>,
    /// The log; off by default.
    pub log: Log,
    /// True if every request is logged, and not only the refused ones.
    pub logs_requests: bool,
    /// The sink for the spans of answered requests and for the last numbers; off by default.
    pub spans: Spans,
    /// The counts of the MCP servers whose tools are offered here. The shards of a server have
    /// clones of the same ones.
    pub upstreams: Arc<[UpstreamMeter]>,
    /// The rules of admission for clients, once the shard listens.
    pub access: Arc<Access>,
    /// The key that seals the `requestState` of MCP clients. The shards of a server have the same
    /// one; `None`: a random one.
    pub mcp_key: Option<[u8; 32]>,
    /// The counts of doors and tasks of each MCP client. The shards of a server have clones of the
    /// same one; `None`: the shard has its own.
    pub mcp_places: Option<Places>,
    /// The threads of front ends' clients. The shards of a server have clones of the same ones;
    /// `None`: the shard has its own.
    pub conversations: Option<Conversations>,
    /// The paths of streams. The shards of a server have clones of the same ones; `None`: the shard
    /// has its own.
    pub streams: Option<StreamPaths>,
    /// The secret from which the keys of subscriptions come: of tokens, and of signatures. The
    /// shards of a server have the same one; `None`: a random one.
    pub subscription_key: Option<[u8; 32]>,
    /// The networks that webhooks may reach beside the public Internet and, without TLS, this
    /// machine.
    pub webhook_networks: Networks,
    /// The models, and the limits of agents. Without a model there are no agents.
    pub agents: AgentSettings,
    /// The settings for connections to servers of models: names and trusted certificates.
    pub outgoing: OutgoingConfig,
    /// The way to the cluster of which this server is a node; `None`: it is alone.
    pub cluster: Option<Arc<dyn ClusterLine>>,
    /// False for a shard that only has what an earlier server with more shards has left in its
    /// journal. It listens nowhere, and clients reach it through the others. Such shards come after
    /// all others.
    pub listens: bool,
}

impl Default for GuestConfig {
    fn default() -> GuestConfig {
        GuestConfig {
            connections_per_address_max: limits::CONNECTIONS_PER_ADDRESS_MAX,
            #[cfg(feature = "tls")]
            tls: None,
            doors: crate::server::Doors::default(),
            named_doors: None,
            log: Log::off(),
            logs_requests: false,
            spans: Spans::off(),
            upstreams: Arc::default(),
            access: Arc::default(),
            mcp_key: None,
            mcp_places: None,
            conversations: None,
            streams: None,
            subscription_key: None,
            webhook_networks: Networks::default(),
            agents: AgentSettings::default(),
            outgoing: OutgoingConfig::default(),
            cluster: None,
            listens: true,
        }
    }
}

/// The guests of a server's shard.
pub struct Guests<R: Reactor + 'static> {
    /// The executions that other processes share.
    pub(in crate::server) doors: DoorsHere,
    pub(in crate::server) log: Log,
    /// The sink for the spans of answered requests.
    pub(in crate::server) spans: Spans,
    /// The counts of the MCP servers whose tools are offered here.
    pub(in crate::server) upstreams: Arc<[UpstreamMeter]>,
    /// The rules of admission for clients.
    pub(in crate::server) access: Arc<Access>,
    /// The counts of answered requests.
    pub(in crate::server) tally: Rc<Tally>,
    /// The limits for sockets, once the shard listens.
    pub(in crate::server) socket_limits: SocketLimits,
    pub(in crate::server) connections_per_address_max: u32,
    pub(in crate::server) tls: Option<TlsConfig>,
    /// Scratch space for decrypted bytes. Empty except while they are processed.
    pub(in crate::server) opened: Vec<u8>,
    /// The other shards of its server.
    pub(in crate::server) peers: Peers<R>,
    /// The connections.
    pub(in crate::server) hub: Hub,
    /// The name resolution and the certificates for connections to models' servers.
    pub(in crate::server) outgoing_config: OutgoingConfig,
    /// Connections to servers of models, once one was needed.
    pub(in crate::server) outgoing: Option<Box<Outgoing>>,
    /// The tools that clients work for, and these clients.
    pub(in crate::server) workers: Workers,
    /// The Model Context Protocol.
    pub(in crate::server) mcp: Mcp,
    /// The threads of front ends' clients.
    pub(in crate::server) conversations: Conversations,
    /// The executions that have ended and are kept on disk.
    pub(in crate::server) archive: Archive,
    /// The executions of other nodes of a cluster.
    pub(in crate::server) cluster: Cluster,
    /// The calls that wait for executions from the disk, or from another node.
    pub(in crate::server) recalls: Recalls,
    /// The answers that wait for the disk.
    pub(in crate::server) kept_answers: KeptAnswers,
    /// The streams of the Durable Streams protocol.
    pub(in crate::server) durable: Durable,
    /// The subscriptions to such streams.
    pub(in crate::server) subscriptions: Subscriptions,
    /// The runs of agents.
    pub(in crate::server) agents: Agents,
    /// The counts of ended executions.
    pub(in crate::server) ended: EndedExecutions,
    /// The idempotency keys of the clients.
    pub(in crate::server) keys: Keys,
}

/// The state that the guests keep with an execution.
#[derive(Default)]
pub struct Served {
    /// The owner of the execution.
    pub(in crate::server) owner: Principal,
    /// The policy for network subscribers that name none.
    pub(in crate::server) policy: Option<PolicyChoice>,
    /// True if a worker does the work.
    pub(in crate::server) is_remote: bool,
    /// The state of the worker's call, once it has begun. `None` while it is taken out for use.
    pub(in crate::server) call: Option<Box<OpenCall>>,
    /// The arguments of the tool, if a front end reports them.
    pub(in crate::server) arguments: Option<Box<serde_json::Value>>,
    /// Its place in a thread of a front end's client.
    pub(in crate::server) thread: Option<Rc<conversations::Seat>>,
    /// The thread that it enters when it is opened.
    pub(in crate::server) enters: Option<Box<conversations::Entering>>,
    /// The task of the Model Context Protocol that it carries out.
    pub(in crate::server) task: Option<Rc<KeptTask>>,
    /// The task or the state of an agent's run. `None` while it is taken out for use.
    pub(in crate::server) agent: Option<Agent>,
    /// True if the producer is an agent's run.
    pub(in crate::server) is_agent: bool,
    /// The memory that other processes share with it, if any do.
    pub(in crate::server) door: Option<Box<Door>>,
    /// Its named ring, if it has one.
    pub(in crate::server) named: Option<Box<Named>>,
    /// The number of its stream, if it is one.
    pub(in crate::server) stream: Option<usize>,
    /// The members of its record, if a guest keeps something of its own in it.
    pub(in crate::server) described: Option<Box<Value>>,
}

/// The destination of a subscriber's deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A stream of this connection.
    Connection(ConnectionId),
    /// A call or a keep of MCP.
    Mcp(McpReceiver),
    /// A run of an agent.
    Agent(agents::AgentReceiver),
}

impl<R: Reactor + 'static> Guests<R> {
    /// Creates the guests of a shard with this configuration.
    ///
    /// # Errors
    /// The kernel's error, when a key is drawn.
    pub(in crate::server) fn new(
        config: &ServerShardConfig,
        now: Instant,
    ) -> std::io::Result<Guests<R>> {
        let guests = config.guests.clone();
        let is_node = guests.cluster.is_some();
        Ok(Guests {
            mcp: Mcp::new(&guests, config.engine.shard, now)?,
            conversations: guests.conversations.unwrap_or_default(),
            archive: Archive::default(),
            cluster: Cluster::new(guests.cluster),
            recalls: Recalls::default(),
            subscriptions: Subscriptions::new(guests.subscription_key, guests.webhook_networks),
            kept_answers: KeptAnswers::default(),
            durable: Durable::new(guests.streams.unwrap_or_default()),
            doors: DoorsHere::new(guests.doors, guests.named_doors),
            log: guests.log,
            spans: guests.spans,
            upstreams: guests.upstreams,
            access: guests.access,
            tally: Rc::new(Tally::new(guests.logs_requests)),
            socket_limits: config.sockets.unwrap_or_default(),
            connections_per_address_max: guests.connections_per_address_max,
            #[cfg(feature = "tls")]
            tls: guests.tls,
            #[cfg(not(feature = "tls"))]
            tls: None,
            opened: Vec::new(),
            peers: Peers::new(is_node),
            hub: Hub::closed(now),
            outgoing_config: guests.outgoing,
            outgoing: None,
            workers: Workers::default(),
            agents: Agents::new(guests.agents),
            ended: EndedExecutions::default(),
            keys: Keys::default(),
        })
    }

    /// Sets the number of followers of streams that are sent to before a look for something else.
    #[cfg(test)]
    pub(crate) fn set_followers_per_look(&mut self, count: u32) {
        self.hub.set_followers_per_look(count);
    }

    /// Returns the number of Durable Streams whose creations wait for room.
    #[cfg(test)]
    pub(crate) fn delayed_creation_count(&self) -> usize {
        self.durable.delayed_count()
    }
}

#[doc(hidden)]
impl<R: Reactor + 'static> Outlet<R> for Guests<R> {
    type Config = GuestConfig;
    type Key = Destination;
    type Run = Served;
    type Message = ToPeer;

    fn take_over(shard: &mut ServerShard<R>) {
        shm::take_over_producers(shard);
    }

    fn on_bell(shard: &mut ServerShard<R>) {
        shard.guests.peers.remotes_mut().look_at_dozing();
    }

    fn on_sockets(shard: &mut ServerShard<R>) {
        turn::serve_sockets(shard);
    }

    fn on_message(shard: &mut ServerShard<R>, message: ToPeer) {
        turn::on_message(shard, message);
    }

    #[inline]
    fn next_deadline(&self) -> Option<Instant> {
        self.next_timer()
    }

    fn on_deadline(shard: &mut ServerShard<R>) {
        turn::fire_timers(shard);
    }

    #[inline]
    fn take_over_urgent(shard: &mut ServerShard<R>) {
        if shard.guests.doors.has_producers() {
            shm::take_over_urgent_producers(shard);
        }
    }

    fn settle(shard: &mut ServerShard<R>) {
        #[cfg(any(test, fuzzing))]
        peers::messages::send_late(shard);
        if shard.guests.agents.may_have_news() {
            agents::settle_agents(shard);
        }
        if shard.guests.peers.has_mourned() {
            turn::settle_deaths(shard);
        }
        if shard.guests.cluster.has_news() {
            cluster::settle(shard);
        }
        if shard.guests.recalls.has_any() {
            recall::settle(shard);
        }
        if shard.guests.kept_answers.has_any() {
            executions::settle_answers(shard);
        }
        if shard.guests.durable.is_busy() {
            durable::settle(shard);
        }
        if shard.guests.subscriptions.has_any() {
            subscriptions::settle(shard);
        }
        if shard.guests.mcp.has_resting() {
            mcp::rest_records(shard);
        }
        // A send earlier in this turn may have made room for these readers.
        shard.guests.release_readers();
        if shard.guests.peers.remotes().has_awake() {
            shard.did.note(Duty::Remotes);
            turn::poll_remotes(shard);
        }
    }

    fn flush(shard: &mut ServerShard<R>) {
        turn::flush_connections(shard);
        shard.wake_readers();
        hub::settle_deliveries(shard);
    }

    fn is_busy(&self) -> bool {
        let has_awake = self.peers.remotes().has_awake();
        #[cfg(any(test, fuzzing))]
        let has_awake = has_awake || self.peers.has_late();
        has_awake || self.agents.has_news() || self.cluster.is_busy()
    }

    #[inline]
    fn may_sleep(shard: &mut ServerShard<R>) -> bool {
        !shard.guests.doors.has_producers() || shm::can_sleep(shard)
    }

    fn on_awake(shard: &mut ServerShard<R>) {
        shm::rise(shard);
    }

    fn close(shard: &mut ServerShard<R>) {
        turn::close_connections(shard);
        outgoing::close_outgoing(shard);
        let spans = shard.guests.spans.clone();
        spans.push_last(|| turn::metrics_of(shard));
    }

    #[inline]
    fn begin_fan_out(&mut self, engine: &Engine, execution: Handle) {
        let hub = &mut self.hub;
        hub.begin_fan_out(engine.is_alone(execution));
    }

    #[inline]
    fn begin_chunk(&mut self) {
        let hub = &mut self.hub;
        hub.next_chunk();
    }

    #[inline]
    fn deliver(
        &mut self,
        to: Destination,
        subscriber: SubscriberId,
        chunk: &Chunk<'_>,
        with: Giving<'_, R>,
    ) {
        match to {
            Destination::Connection(id) => {
                let hub = &mut self.hub;
                let Giving { reactor, counters, names, now, is_recent, .. } = with;
                let is_alone = hub.is_alone();
                let giving =
                    hub::deliver::Giving { reactor, counters, now, names, is_alone, is_recent };
                hub.give(id, Source::Here(subscriber), chunk, giving);
            }
            Destination::Mcp(receiver) => {
                let progress = with.engine.progress(with.execution);
                self.mcp.hear_chunk(&mut self.hub, receiver, subscriber, chunk, progress);
            }
            Destination::Agent(receiver) => self.agents.hear_chunk(receiver, chunk),
        }
    }

    fn tell(
        &mut self,
        to: Destination,
        subscriber: SubscriberId,
        run: Option<&ServedRun>,
        delivery: &Delivery<'_>,
    ) {
        match to {
            Destination::Connection(id) => {
                let hub = &mut self.hub;
                hub.tell_here(id, subscriber, run, delivery);
            }
            Destination::Mcp(receiver) => {
                self.mcp.hear(&mut self.hub, receiver, subscriber, delivery);
            }
            Destination::Agent(receiver) => self.agents.hear(receiver, delivery),
        }
    }

    #[inline]
    fn make_room(shard: &mut ServerShard<R>) {
        hub::make_room_for_deliveries(shard);
    }

    #[inline]
    fn flush_if_due(shard: &mut ServerShard<R>) {
        turn::flush_if_due(shard);
    }

    fn prepare(
        shard: &ServerShard<R>,
        work: &Work,
        options: &ExecuteOptions,
    ) -> Result<Served, ExecuteError> {
        let agent = match work {
            Work::Agent(call) => Some(agents::agent_of(shard, call, options.owner)?),
            _ => None,
        };
        Ok(Served { owner: options.owner, agent, ..Served::default() })
    }

    fn on_opened(shard: &mut ServerShard<R>, id: ExecutionId) {
        calls::enter_thread(shard, id);
        cluster::note_opened(shard, id);
    }

    fn describe(&self, run: &ServedRun) -> Value {
        archive::described(self, run)
    }

    fn restore(shard: &ServerShard<R>, id: ExecutionId, described: &Value) -> Served {
        archive::restored(shard, id, described)
    }

    fn on_leased(shard: &mut ServerShard<R>, execution: Handle) {
        if !shard.run_mut(execution).is_replica {
            shm::open_named(shard, execution.index);
        }
    }

    fn on_fed(shard: &mut ServerShard<R>, execution: Handle) {
        let run = shard.run_mut(execution);
        if run.is_replica {
            let id = run.id;
            return cluster::note_room(shard, id);
        }
        if run.guest.door.as_ref().is_some_and(|door| door.is_for_producer()) {
            run.producer = Producer::Outside;
            shm::let_producer_begin(shard, execution);
        }
    }

    fn start(shard: &mut ServerShard<R>, execution: Handle, work: GuestWork) {
        match work {
            GuestWork::Remote(call) => workers::begin_call(shard, execution, *call),
            GuestWork::Agent(_) => agents::begin_agent(shard, execution),
        }
    }

    #[inline]
    fn copy_out(&mut self, run: &mut ServedRun, until_seq: u64, scratch: &mut [u8]) {
        if run.guest.door.is_some() || run.guest.named.is_some() {
            run.relay(until_seq, scratch, &mut self.hub);
        }
    }

    fn on_room(shard: &mut ServerShard<R>, execution: Handle, was_blocked: bool) {
        let run = shard.run_mut(execution);
        match run.producer {
            Producer::Outside if !run.guest.is_agent => {
                run.publish_gate();
                shard.worked = true; // There may be room now for what it has written.
            }
            Producer::Outside if was_blocked => shard.guests.agents.note(execution),
            Producer::Feed if was_blocked && run.guest.is_remote => {
                let id = run.id;
                shard.guests.workers.note_room(id);
            }
            Producer::Feed if was_blocked && run.is_replica => {
                let id = run.id;
                cluster::note_room(shard, id);
            }
            Producer::Feed if was_blocked && run.guest.stream.is_some() => {
                durable::note_room(shard, execution);
            }
            _ => {}
        }
    }

    fn on_due(shard: &mut ServerShard<R>, execution: Handle) {
        if shard.run_mut(execution).guest.is_agent {
            shard.guests.agents.note(execution);
        }
    }

    fn stop(shard: &mut ServerShard<R>, execution: Handle) -> bool {
        let run = shard.run_mut(execution);
        if run.guest.is_agent {
            shard.guests.agents.note(execution); // It still has a last report.
            return true;
        }
        let is_later = run.must_await_producer(); // Then `take_over_producer` ends it.
        shard.worked |= is_later;
        is_later
    }

    fn has_log(&self) -> bool {
        self.cluster.is_on()
    }

    fn log_end(
        shard: &mut ServerShard<R>,
        execution: Handle,
        details: &EndedDetails,
        verdict: &Verdict,
    ) {
        cluster::send_end(shard, execution, details, verdict);
    }

    fn on_kept(shard: &mut ServerShard<R>, id: ExecutionId) {
        shard.guests.durable.note_kept(id);
        cluster::note_kept(shard, id);
    }

    fn on_ended(shard: &mut ServerShard<R>, execution: Handle, verdict: &Verdict) {
        let run = shard.run_mut(execution);
        if matches!(run.producer, Producer::Gone) {
            run.guest.agent = None; // It never began.
        }
        shm::tell_end_at_door(shard, execution, verdict);
        shm::end_named(shard, execution.index);
        turn::note_ended(shard, execution);
        archive::note_ended(shard, execution.index, verdict);
        let id = shard.run_mut(execution).id;
        shard.guests.durable.note_ended(id);
        cluster::note_ended(shard, id, verdict);
        workers::note_call_ended(shard, execution, verdict.outcome);
        executions::note_ended(shard, execution, verdict);
    }

    fn on_released(&mut self, execution: Handle) {
        self.doors.forget_producer(execution.index);
        self.cluster.note_released(execution);
    }

    fn look_back(shard: &mut ServerShard<R>, question: Question) {
        cluster::look_back(shard, question);
    }

    fn cancel_elsewhere(shard: &mut ServerShard<R>, id: ExecutionId) {
        cluster::cancel(shard, id);
    }

    fn has_fixed_rings(&self) -> bool {
        self.doors.has_named()
    }

    fn before_subscribe(shard: &mut ServerShard<R>, index: u32) {
        shm::keep_for_reader(shard, index);
    }

    fn before_inspect(shard: &mut ServerShard<R>, index: u32) {
        let _ = shm::look_back(shard, index); // A broken rule is found again at the end.
    }

    fn on_reader_removed(
        shard: &mut ServerShard<R>,
        index: u32,
        mut remote: Remote<ProcessSeat>,
        reason: DetachReason,
    ) {
        shm::count_last_reads(shard, index, &mut remote);
        if let Seat::Process(seat) = remote.seat {
            shm::end_line(shard, seat.connection, LastWord::Detached(reason));
        }
    }

    fn on_readers_woken(shard: &mut ServerShard<R>, index: u32) {
        shm::close_lost_named(shard, index);
    }

    fn after_wake(shard: &mut ServerShard<R>) {
        if shm::has_lines_to_wake(shard) {
            turn::flush_connections(shard);
        }
    }

    fn report(shard: &ServerShard<R>, event: &ShardEvent<'_>) {
        match *event {
            ShardEvent::Ended(subscriber, execution, end) => {
                records::log_subscriber_ended(shard, subscriber, execution, end);
            }
            ShardEvent::Evicted(index, subscriber, wild) => {
                shm::log_evicted(shard, index, subscriber, wild)
            }
            ShardEvent::GateToldLate(index) => records::log_gate_told_late(shard, index),
            ShardEvent::Pressure(before, diagnosis) => {
                records::log_pressure(shard, before, diagnosis)
            }
            ShardEvent::Disks(reading) => records::log_disks(shard, reading),
            ShardEvent::Panic(name, whose, panicked) => log_panic(shard, name, whose, panicked),
        }
    }

    fn add_counters(&self, counters: &mut Counters) {
        if let Some(outgoing) = &self.outgoing {
            counters.merge(outgoing.counters());
        }
    }

    fn audit(shard: &ServerShard<R>) {
        let hub = &shard.guests.hub;
        hub.audit();
        shard.guests.mcp.audit(hub);
        shm::lines::audit_lines(hub);
        shard.guests.peers.audit(hub);
        workers::audit_calls(shard);
        Cluster::audit(shard);
        shm::audit_doors(shard);
        agents::audit_agents(shard);
        if let Some(outgoing) = &shard.guests.outgoing {
            outgoing.audit();
        }
        for run in shard.runs.iter().flatten() {
            run.audit_door();
        }
    }
}
/// Logs that foreign code has panicked, or that the shard has died of a panic.
fn log_panic<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    event: &str,
    whose: &dyn fmt::Display,
    panicked: &Panicked,
) {
    shard.guests.log.announce(records::wall_us(shard), crate::trace::Level::Error, event, |line| {
        line.number("shard", peers::own_index(shard) as u64);
        line.text("whose", &whose.to_string());
        line.text("panic", panicked.text());
    });
}

impl GuestRun for Served {
    type Reader = ProcessSeat;

    fn publish_gate(&mut self, gate: Gate) {
        if let Some(door) = &mut self.door {
            door.publish_gate(gate);
        }
    }

    fn published_gate(&self) -> Option<Gate> {
        let door = self.door.as_ref().filter(|door| door.has_producer_begun())?;
        let (gate_seq, credit_seq, credit_bytes, read_seq) = door.control.page.view().gate();
        Some(Gate { gate_seq, credit_seq, credit_bytes, read_seq })
    }

    #[inline]
    fn has_hidden_readers(&self) -> bool {
        self.named.is_some()
    }

    fn has_been(&self, seq: u64) -> bool {
        let guest = self.door.as_ref().and_then(|door| door.producer_reader());
        guest.is_some_and(|reader| reader.has_been(seq))
    }

    fn write_pages(&mut self, write: &mut dyn FnMut(&mut ControlPage)) {
        if let Some(door) = &mut self.door {
            write(&mut door.control.page);
        }
    }

    fn write_hidden_page(&mut self, write: &mut dyn FnMut(&mut ControlPage)) {
        if let Some(named) = &mut self.named {
            named.tell(write);
        }
    }

    #[inline]
    fn wake_hidden_readers(&self) {
        if let Some(named) = &self.named {
            named.wake();
        }
    }

    #[inline]
    fn wake_readers(&self, remotes: &mut [Remote<ProcessSeat>]) {
        if let Some(door) = &self.door {
            door.wake_readers(remotes);
        }
    }
}

impl OutsideReader for ProcessSeat {
    fn page(&mut self) -> Result<&mut ReaderPageView, u64> {
        ProcessSeat::page(self)
    }

    fn missed(&self) -> (u64, u64) {
        ProcessSeat::missed(self)
    }

    fn knock(&self) {
        self.slot.knock();
    }

    fn detach(&self, code: u32) {
        self.slot.detach(code);
    }

    fn wake(&mut self) {
        ProcessSeat::wake(self);
    }
}
