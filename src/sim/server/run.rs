//! One seed of the simulated server: faults first, then calm, in which everything has to end.

use serde_json::Value;

use super::SeedSummary;
use super::actions::ActionsHash;
use super::exchange::{Exchange, Outcome};
use super::follower::HttpFollower;
use super::mcp_client::{McpClientSeen, SimMcpClient};
use super::oracle::SeenCounts;
use super::script::{self, Script, ThreadPlayer};
use super::timed_play::TimedPlay;
use super::worker::{self, SimWorker, WorkerSeen};
use crate::base::{Instant, Random};
use crate::engine::EngineLimits;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::reactor::{ListenAddress, ListenOptions, Reactor, SocketLimits};
use crate::server::{ServerShard, ServerShardConfig};
use crate::shard::ShardConfig;
use crate::shard::run::Producer;
use crate::sim::reactor::SimReactor;
use crate::sim::twice::run_twice;
use crate::sim::world::{SimFaults, SimWorld};
use crate::stream::Policy;
use crate::trace::Counters;

const STEPS: u64 = 1_500;
const CALM_ROUNDS_MAX: u64 = 4_000;
const EXECUTIONS_MAX: u32 = 12;

/// Runs one seed twice.
///
/// # Errors
/// The failure, and the command that runs the seed again.
pub fn run_server_seed(seed: u64, verbose: bool) -> Result<SeedSummary, String> {
    let run = |verbose| ServerPlay::new(seed, verbose).run(seed);
    let difference = |first: &_, second: &_| format!("{first:?} and {second:?}");
    let both = run_twice(&format!("--server --seed {seed}"), verbose, run, difference);
    both.map_err(|text| format!("server seed {seed}: {text}"))
}

/// A single request whose response is checked.
struct CheckedRequest {
    exchange: Exchange,
    kind: RequestKind,
}

enum RequestKind {
    /// Runs a tool with this script.
    Execute(Script),
    /// A request that has to be answered with one of these statuses.
    Ask(&'static [u16]),
    /// Bytes that are no request.
    Nonsense,
}

struct Execution {
    id: String,
    script: Script,
}

struct ServerPlay {
    random: Random,
    world: SimWorld,
    /// One shard, or two that share the port: connections move between them.
    shards: Vec<ServerShard<SimReactor>>,
    actions_hash: ActionsHash,
    address: ListenAddress,
    executions: Vec<Execution>,
    threads: Vec<ThreadPlayer>,
    thread_count: u64,
    followers: Vec<HttpFollower>,
    checked_requests: Vec<CheckedRequest>,
    workers: Vec<SimWorker>,
    worker_seen: WorkerSeen,
    mcp_clients: Vec<SimMcpClient>,
    mcp_client_seen: McpClientSeen,
    seen: SeenCounts,
    cuts: u64,
    answered: u64,
    refused: u64,
    turned_away: u64,
    cut_chance: u64,
    is_slow: bool,
    acknowledges: bool,
    verbose: bool,
}

impl TimedPlay for ServerPlay {
    fn world(&mut self) -> &SimWorld {
        &self.world
    }

    fn turn_once(&mut self) -> bool {
        self.play_threads();
        let has_worked = self.shards.iter_mut().map(ServerShard::turn).fold(false, |a, b| a | b);
        for shard in &mut self.shards {
            while let Some(job) = shard.next_job() {
                self.threads.push(ThreadPlayer::new(*job));
                self.thread_count += 1;
            }
        }
        has_worked
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        self.shards.iter_mut().filter_map(ServerShard::next_deadline).min()
    }

    // Parks one of them: the other may be late for a bit.
    fn park(&mut self, until: Instant) {
        let asleep = self.random.below(self.shards.len() as u64) as usize;
        self.shards[asleep].park(Some(until));
    }
}

fn shard_config(shard: u8, acknowledges: bool, random: &mut Random) -> ServerShardConfig {
    ShardConfig {
        engine: EngineLimits {
            shard,
            executions_max: EXECUTIONS_MAX,
            subscribers_max: 64,
            subscribers_per_execution_max: 16,
            ..EngineLimits::default()
        },
        rings: RingPoolConfig {
            prealloc_bytes: 0,
            bytes_max: 1 << 20,
            ..RingPoolConfig::default()
        },
        sockets: Some(SocketLimits {
            connections_max: if acknowledges { 128 } else { random.between(4, 40) as u32 },
            ..SocketLimits::default()
        }),
        seed: Some(random.next_u64()),
        ..ShardConfig::default()
    }
}

impl ServerPlay {
    fn new(seed: u64, verbose: bool) -> ServerPlay {
        let mut random = Random::new(seed);
        let faults = if random.chance(1, 4) { SimFaults::NONE } else { SimFaults::ALL };
        let world = SimWorld::new(random.next_u64(), faults);
        // An acknowledging client needs a slot for that request, even if streams have many. The
        // same holds for workers, for which these streams wait.
        let acknowledges = random.chance(1, 2);
        let shard_count = random.between(1, 2) as u8;
        // Clients that choose no policy lose chunks under the one, and wait under the other.
        let policy = if seed.is_multiple_of(3) { Policy::Block } else { Policy::Drop };
        let mut address: ListenAddress = "127.0.0.1:0".parse().expect("an address");
        let (mut shards, actions_hash) = (Vec::new(), ActionsHash::default());
        for index in 0..shard_count {
            let config = shard_config(index, acknowledges, &mut random);
            let shard = ServerShard::over(SimReactor::new(&world), config);
            let mut shard = shard.expect("memory for small rings");
            shard.run_jobs_by_hand();
            actions_hash.observe(&mut shard);
            let couriers = Random::new(seed.rotate_left(8) + u64::from(index));
            actions_hash.observe_messages(&mut shard, couriers);
            let tools = shard.tools_mut();
            let spec = script::under(policy, script::spec());
            tools.insert(spec, script::prepare).expect("it is right");
            let spec = script::under(policy, script::spec_on_thread());
            tools.insert(spec, script::prepare_on_thread).expect("it is right");
            let options = ListenOptions { shares_port: true };
            address = shard.listen(&address, options).expect("it listens");
            shards.push(shard);
        }
        ServerShard::introduce(&mut shards);
        let worker_count = if acknowledges { random.between(1, 3) } else { 0 };
        let workers = (0..worker_count).map(SimWorker::new).collect();
        let mcp_client_count = random.below(4);
        let mcp_clients = (0..mcp_client_count).map(|_| SimMcpClient::new(&mut random)).collect();
        ServerPlay {
            workers,
            worker_seen: WorkerSeen::default(),
            mcp_clients,
            mcp_client_seen: McpClientSeen::default(),
            cut_chance: if random.chance(1, 3) { 0 } else { random.between(1, 40) },
            is_slow: random.chance(1, 2),
            acknowledges,
            random,
            world,
            shards,
            actions_hash,
            address,
            executions: Vec::new(),
            threads: Vec::new(),
            thread_count: 0,
            followers: Vec::new(),
            checked_requests: Vec::new(),
            seen: SeenCounts::default(),
            cuts: 0,
            answered: 0,
            refused: 0,
            turned_away: 0,
            verbose,
        }
    }

    fn run(mut self, seed: u64) -> Result<SeedSummary, String> {
        let introduction = SimWorker::introduction(&mut self.random);
        self.send(&introduction, RequestKind::Ask(&[200, 201, 503]));
        for step in 0..STEPS {
            self.act().map_err(|text| format!("step {step}: {text}"))?;
            self.turn();
            let pause = 1 << self.random.between(8, 24);
            self.pass(pause);
            self.shards.iter().for_each(ServerShard::audit);
        }
        self.calm_down()?;
        let seen = self.seen;
        let happened = vec![
            ("chunks", seen.chunks),
            ("chunks from apart", seen.apart),
            ("gaps", seen.gaps),
            ("progress", seen.progress),
            ("ends", seen.ends),
            ("detached", seen.detached),
            ("resumed", seen.resumed),
            ("seen to the end", seen.seen_to_end),
            ("gone", seen.gone),
            ("whole outputs", seen.outputs),
            ("cuts", self.cuts),
            ("errands answered", self.answered),
            ("nonsense refused", self.refused),
            ("moves", self.moves()),
            ("calls", self.worker_seen.calls),
            ("parts", self.worker_seen.parts),
            ("parts repeated", self.worker_seen.repeats),
            ("parts left out", self.worker_seen.holes),
            ("calls cancelled", self.worker_seen.cancels),
            ("workers that came back", self.worker_seen.returns),
            ("errands turned away", self.turned_away),
            ("tools on threads", self.thread_count),
            ("sessions of MCP", self.mcp_client_seen.sessions),
            ("calls of MCP", self.mcp_client_seen.calls),
            ("results of MCP", self.mcp_client_seen.results),
            ("streams of MCP", self.mcp_client_seen.streams),
            ("chunks in progress", self.mcp_client_seen.chunks),
            ("chunks in messages alone", self.mcp_client_seen.cut_chunks),
            ("notifications of progress", self.mcp_client_seen.progress),
            ("gaps in progress", self.mcp_client_seen.gaps),
            ("messages of logs", self.mcp_client_seen.messages),
            ("calls resumed", self.mcp_client_seen.resumed),
            ("calls of MCP cancelled", self.mcp_client_seen.cancelled),
            ("calls lost", self.mcp_client_seen.lost),
        ];
        let mut counters = Counters::default();
        self.shards.iter().for_each(|shard| counters.merge(&shard.counters()));
        match (counters.gates_told_late, counters.producers_stuck) {
            (0, 0) => {}
            waited => return Err(format!("producers waited for nobody: {waited:?}")),
        }
        let actions_hash = self.actions_hash.get();
        Ok(SeedSummary { seed, actions_hash, happened, counters })
    }

    /// Gives the processor to some of the tools' threads.
    fn play_threads(&mut self) {
        for thread in std::mem::take(&mut self.threads) {
            let thread = match self.random.chance(1, 3) {
                true => thread.play(&mut self.random),
                false => Some(thread),
            };
            self.threads.extend(thread);
        }
    }

    fn act(&mut self) -> Result<(), String> {
        match self.random.below(20) {
            0 => self.checked_request(),
            1 => self.nonsense(),
            2 | 3 if !self.executions.is_empty() && self.followers.len() < 60 => self.follow(),
            _ => {}
        }
        for at in 0..self.checked_requests.len() {
            self.checked_requests[at].exchange.step(&self.world, &mut self.random)?;
        }
        self.finish_requests()?;
        for at in 0..self.workers.len() {
            if self.random.chance(self.cut_chance, 2_000) {
                let forgets = self.random.chance(1, 3);
                let cut = self.workers[at].cut(&self.world, &mut self.random, forgets);
                self.cuts += u64::from(cut);
            } else if self.random.chance(1, 2) {
                self.visit_worker(at)?;
            }
        }
        for at in 0..self.mcp_clients.len() {
            if self.random.chance(self.cut_chance, 1_000) {
                self.disturb_mcp_client(at);
            }
            self.visit_mcp_client(at, true)?;
        }
        for at in 0..self.followers.len() {
            if self.random.chance(self.cut_chance, 1_000) {
                self.cuts += u64::from(self.followers[at].cut(&self.world, &mut self.random));
            }
            if !self.is_slow || self.random.chance(1, 4) {
                self.visit(at)?;
            }
        }
        Ok(())
    }

    fn visit_worker(&mut self, at: usize) -> Result<(), String> {
        let (world, seen) = (&self.world, &mut self.worker_seen);
        self.workers[at]
            .step(world, &self.address, &mut self.random, seen)
            .map_err(|text| format!("worker {at}: {text}"))
    }

    fn visit_mcp_client(&mut self, at: usize, begins: bool) -> Result<(), String> {
        let (world, seen) = (&self.world, &mut self.mcp_client_seen);
        self.mcp_clients[at]
            .step(world, &self.address, &mut self.random, begins, seen)
            .map_err(|text| format!("assistant {at}: {text}"))
    }

    fn disturb_mcp_client(&mut self, at: usize) {
        let (world, seen) = (&self.world, &mut self.mcp_client_seen);
        let cut = self.mcp_clients[at].disturb(world, &self.address, &mut self.random, seen);
        self.cuts += u64::from(cut);
    }

    fn visit(&mut self, at: usize) -> Result<(), String> {
        let follower = &mut self.followers[at];
        if follower.is_done {
            return Ok(());
        }
        if !follower.is_connected() {
            follower.connect(&self.world, &self.address);
            return Ok(());
        }
        follower
            .step(&self.world, &mut self.random, &mut self.seen)
            .map_err(|text| format!("follower {at}: {text}; it is {}", follower.describe()))?;
        if let Some(request) = follower.acknowledgement() {
            self.send(&request, RequestKind::Ask(&[204, 404, 409]));
        }
        Ok(())
    }

    fn send(&mut self, request: &str, kind: RequestKind) {
        if self.verbose {
            println!("{:?} {request:?}", self.world.now());
        }
        if let Some(exchange) = Exchange::begin(&self.world, &self.address, request) {
            self.checked_requests.push(CheckedRequest { exchange, kind });
        }
    }

    fn checked_request(&mut self) {
        let any = self.random.below(self.executions.len().max(1) as u64) as usize;
        let id = self.executions.get(any).map(|execution| execution.id.clone());
        let id = id.unwrap_or_else(|| "0000000000000000000000000a".to_owned());
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        match self.random.below(12) {
            0 => self.send(&get("/v1/tools"), RequestKind::Ask(&[200])),
            1 => self.send(&get("/v1/executions"), RequestKind::Ask(&[200])),
            2 => self.send(&get(&format!("/v1/executions/{id}")), RequestKind::Ask(&[200, 404])),
            3 => {
                let path =
                    format!("/v1/executions/{id}/result?wait_ms={}", 1_000 * self.random.below(3));
                self.send(&get(&path), RequestKind::Ask(&[200, 202, 404]));
            }
            4 => self.send(&get("/v1/progress"), RequestKind::Ask(&[200])),
            5 if self.random.chance(1, 3) => {
                let request =
                    format!("DELETE /v1/executions/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                self.send(&request, RequestKind::Ask(&[200, 202, 404]));
            }
            6 => self.send(&get("/v1/events"), RequestKind::Ask(&[400])),
            7 => self.send(&get("/nowhere"), RequestKind::Ask(&[404])),
            _ => {
                let script = Script::draw(&mut self.random, !self.workers.is_empty());
                let holds = ["\"newest\"", "\"until_read\""][self.random.below(2) as usize];
                let tool = match script.is_remote {
                    true => worker::TOOL,
                    false => ["script", script::ON_THREAD][self.random.below(2) as usize],
                };
                let body = format!(
                    "{{\"tool\":\"{tool}\",\"arguments\":{},\"hold\":{holds}}}",
                    script.arguments()
                );
                let request = format!(
                    "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\n\
                     Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                self.send(&request, RequestKind::Execute(script));
            }
        }
    }

    fn nonsense(&mut self) {
        let mut bytes = vec![0u8; self.random.between(1, 200) as usize];
        self.random.fill(&mut bytes);
        bytes.iter_mut().for_each(|byte| *byte = b' ' + *byte % 90);
        bytes[0] = b'%'; // No method begins with this.
        let text = String::from_utf8(bytes).expect("ASCII");
        self.send(&format!("{text}\r\n\r\n"), RequestKind::Nonsense);
    }

    fn finish_requests(&mut self) -> Result<(), String> {
        for at in (0..self.checked_requests.len()).rev() {
            let Some(outcome) = self.checked_requests[at].exchange.outcome else { continue };
            let checked_request = self.checked_requests.swap_remove(at);
            checked_request.exchange.close(&self.world);
            let status = checked_request.exchange.status;
            let body = String::from_utf8_lossy(&checked_request.exchange.body).into_owned();
            if outcome == Outcome::Cut {
                continue; // The server ends, or it was full.
            }
            if body.contains("\"held_back\":true") && body.contains("\"held_back_by\":[]") {
                return Err(format!("it is held back by nobody: {body}"));
            }
            let is_full = body.contains("too_many_connections");
            let is_busy = body.contains("a shard accepts no calls now");
            if status == Some(503) && (is_full || is_busy) {
                self.turned_away += 1;
                continue;
            }
            let is_right = match (&checked_request.kind, status) {
                (RequestKind::Ask(expected), Some(status)) => expected.contains(&status),
                (RequestKind::Nonsense, Some(status)) => (400..600).contains(&status),
                // The tool was not known in time.
                (RequestKind::Execute(script), Some(404)) => script.is_remote,
                (RequestKind::Execute(_), Some(status)) => [201, 429, 503].contains(&status),
                (_, None) => false,
            };
            if !is_right {
                return Err(format!("an errand was answered {status:?}: {body}"));
            }
            match checked_request.kind {
                RequestKind::Execute(script) if status == Some(201) => {
                    let document: Value =
                        serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
                    let id = document["execution"].as_str().ok_or("no id")?.to_owned();
                    self.executions.push(Execution { id, script });
                }
                RequestKind::Nonsense => self.refused += 1,
                _ => self.answered += 1,
            }
        }
        Ok(())
    }

    fn follow(&mut self) {
        let newest = self.executions.len().min(4) as u64;
        let acknowledges = self.acknowledges && self.random.chance(1, 4);
        let is_combined = self.random.chance(1, 4);
        let count = if is_combined { self.random.between(1, newest) } else { 1 };
        let mut followed: Vec<(&str, Script)> = Vec::new();
        for _ in 0..count {
            let at = self.executions.len() - 1 - self.random.below(newest) as usize;
            let Execution { id, script } = &self.executions[at];
            if !followed.iter().any(|(other, _)| other == id) {
                followed.push((id, *script));
            }
        }
        let random = &mut self.random;
        self.followers.push(HttpFollower::new(&followed, acknowledges, is_combined, random));
    }

    fn moves(&mut self) -> u64 {
        let moves = |shard: &mut ServerShard<SimReactor>| {
            shard.reactor_mut().counters().sockets.adopted_count
        };
        self.shards.iter_mut().map(moves).sum()
    }

    /// Stops cutting: every client comes to its end.
    fn calm_down(&mut self) -> Result<(), String> {
        self.cut_chance = 0;
        self.is_slow = false;
        for round in 0.. {
            for at in 0..self.checked_requests.len() {
                self.checked_requests[at].exchange.step(&self.world, &mut self.random)?;
            }
            self.finish_requests()?;
            for at in 0..self.workers.len() {
                self.visit_worker(at).map_err(|text| format!("calm: {text}"))?;
            }
            for at in 0..self.mcp_clients.len() {
                self.visit_mcp_client(at, false).map_err(|text| format!("calm: {text}"))?;
            }
            for at in 0..self.followers.len() {
                self.visit(at).map_err(|text| format!("calm: {text}"))?;
            }
            self.turn();
            self.pass(1 << (10 + round % 18));
            self.shards.iter().for_each(ServerShard::audit);
            let is_over = self.followers.iter().all(|follower| follower.is_done);
            let are_idle = self.workers.iter().all(SimWorker::is_idle);
            let are_answered = self.mcp_clients.iter().all(SimMcpClient::is_idle);
            // A worker may not have heard of its last call yet.
            let mut runs = self.shards.iter().flat_map(|shard| shard.runs.iter().flatten());
            let has_run = runs.all(|run| matches!(run.producer, Producer::Gone));
            let is_idle = are_idle && are_answered && has_run;
            if is_over && is_idle && self.checked_requests.is_empty() {
                break;
            }
            if round == CALM_ROUNDS_MAX {
                let open = self.followers.iter().find(|follower| !follower.is_done);
                let open = open.map(HttpFollower::describe);
                let waits = self.mcp_clients.iter().find(|client| !client.is_idle());
                let open = open.or(waits.map(SimMcpClient::describe));
                return Err(format!("calm: {open:?} never comes to the end"));
            }
        }
        self.workers.iter_mut().for_each(|worker| worker.leave(&self.world));
        self.mcp_clients.iter_mut().for_each(|client| client.leave(&self.world));
        for seconds in [1, 120, 600] {
            self.pass(seconds * 1_000_000_000);
        }
        self.shards.iter().for_each(ServerShard::audit);
        if self.shards.iter().any(|shard| shard.connection_count() > 0) {
            return Err("connections are left over".into());
        }
        for _ in 0..100 {
            self.pass((limits::RETENTION + limits::BLOCK_DEADLINE).as_nanos() as u64);
        }
        let is_empty = |shard: &ServerShard<SimReactor>| {
            shard.execution_count() == 0 && shard.ring_usage().leased_count == 0
        };
        if !self.shards.iter().all(is_empty) {
            let mut left = Vec::new();
            for shard in &mut self.shards {
                let ids: Vec<_> = shard.runs.iter().flatten().map(|run| run.id).collect();
                left.extend(ids.into_iter().map(|id| shard.inspect(id)));
            }
            return Err(format!("something is left over: {:?}: {left:?}", self.shards));
        }
        match self.next_deadline() {
            None => Ok(()),
            Some(_) => Err("a timer is left over".into()),
        }
    }
}
