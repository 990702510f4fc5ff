//! One seed of agents on the simulated server. Runs are started, followed, cut and cancelled at any
//! point, with a model that misbehaves. Then comes calm, in which everything has to end.

use serde_json::json;

use super::actions::ActionsHash;
use super::audience::{AudienceSeen, ReceivedParts, RunReader};
use super::exchange::Exchange;
use super::model_scripts::{self, SCRIPT_COUNT};
use super::scripted::{Asking, PlayParts, SimModel};
use super::timed_play::TimedPlay;
use super::{SeedSummary, script};
use crate::base::Random;
use crate::engine::EngineLimits;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::reactor::{ListenAddress, ListenOptions, SocketLimits};
use crate::server::{AgentSettings, GuestConfig, ServerShard, ToolChoice};
use crate::shard::ShardConfig;
use crate::sim::reactor::SimReactor;
use crate::sim::twice::run_twice;
use crate::sim::world::{SimFaults, SimWorld};

const STEPS: u64 = 600;
const CALM_ROUNDS_MAX: u64 = 4_000;
const READERS_MAX: usize = 24;

/// Runs one seed twice.
///
/// # Errors
/// The failure, and the command that runs the seed again.
pub fn run_agent_seed(seed: u64, verbose: bool) -> Result<SeedSummary, String> {
    // The events that all readers received are the same, too.
    let run = |verbose| AgentPlay::new(seed, verbose).run(seed);
    let difference = |first: &(_, ReceivedParts), second: &(_, ReceivedParts)| {
        let is_told_alike = first.1 == second.1;
        format!("{:?} and {:?}, told alike: {is_told_alike}", first.0, second.0)
    };
    let both = run_twice(&format!("--agents --seed {seed}"), verbose, run, difference);
    both.map(|(summary, _told)| summary).map_err(|text| format!("agent seed {seed}: {text}"))
}

struct AgentPlay {
    random: Random,
    world: SimWorld,
    shard: ServerShard<SimReactor>,
    actions_hash: ActionsHash,
    address: ListenAddress,
    model: SimModel,
    readers: Vec<RunReader>,
    /// Requests that cancel an execution.
    checked_requests: Vec<Exchange>,
    seen: AudienceSeen,
    told: ReceivedParts,
    cuts: u64,
    cancels: u64,
    cut_chance: u64,
    cancel_chance: u64,
    is_slow: bool,
    verbose: bool,
}

impl Asking for AgentPlay {
    fn asked(&mut self) -> PlayParts<'_> {
        PlayParts { world: &self.world, shard: &mut self.shard, model: &mut self.model }
    }
}

impl AgentPlay {
    fn new(seed: u64, verbose: bool) -> AgentPlay {
        let mut random = Random::new(seed);
        let faults = if random.chance(1, 3) { SimFaults::NONE } else { SimFaults::ALL };
        let world = SimWorld::new(random.next_u64(), faults);
        if random.chance(1, 3) {
            world.set_connect_fault_chance(random.below(200));
        }
        let model = SimModel::new(&world, model_scripts::draw(&mut random));
        let wire = ["chat", "responses", "messages"][random.below(3) as usize];
        let config = ShardConfig {
            engine: EngineLimits {
                executions_max: 32,
                subscribers_max: 128,
                subscribers_per_execution_max: 16,
                ..EngineLimits::default()
            },
            rings: RingPoolConfig {
                prealloc_bytes: 0,
                bytes_max: 4 << 20,
                ..RingPoolConfig::default()
            },
            sockets: Some(SocketLimits { connections_max: 96, ..SocketLimits::default() }),
            seed: Some(random.next_u64()),
            guests: GuestConfig {
                agents: AgentSettings {
                    models: vec![SimModel::settings(wire)],
                    tools: ToolChoice::These(vec!["script".to_owned()]),
                },
                ..Default::default()
            },
            ..ShardConfig::default()
        };
        let reactor = SimReactor::new(&world);
        let mut shard = ServerShard::over(reactor, config).expect("memory for small rings");
        shard.run_jobs_by_hand();
        let actions_hash = ActionsHash::default();
        actions_hash.observe(&mut shard);
        shard.tools_mut().insert(script::spec(), script::prepare).expect("it is right");
        let address: ListenAddress = "127.0.0.1:0".parse().expect("an address");
        let address = shard.listen(&address, ListenOptions::default()).expect("it listens");
        AgentPlay {
            cut_chance: if random.chance(1, 2) { 0 } else { random.between(1, 30) },
            cancel_chance: if random.chance(1, 4) { 0 } else { random.between(1, 60) },
            is_slow: random.chance(1, 2),
            random,
            world,
            shard,
            actions_hash,
            address,
            model,
            readers: Vec::new(),
            checked_requests: Vec::new(),
            seen: AudienceSeen::default(),
            told: ReceivedParts::new(),
            cuts: 0,
            cancels: 0,
            verbose,
        }
    }

    fn run(mut self, seed: u64) -> Result<(SeedSummary, ReceivedParts), String> {
        for step in 0..STEPS {
            self.act().map_err(|text| format!("step {step}: {text}"))?;
            self.turn();
            let pause = 1 << self.random.between(8, 26);
            self.pass(pause);
            self.shard.audit();
        }
        self.calm_down()?;
        let seen = self.seen;
        let happened = vec![
            ("runs", self.told.len() as u64),
            ("parts", seen.parts),
            ("runs seen whole", seen.whole),
            ("gaps", seen.gaps),
            ("ends", seen.ends),
            ("detached", seen.detached),
            ("resumed", seen.resumed),
            ("refused", seen.refused),
            ("cuts", self.cuts),
            ("cancels", self.cancels),
            ("connections to the model", self.model.accepted_count),
            ("connections that were left", self.model.left_count),
        ];
        let counters = self.shard.counters();
        let actions_hash = self.actions_hash.get();
        Ok((SeedSummary { seed, actions_hash, happened, counters }, self.told))
    }

    fn act(&mut self) -> Result<(), String> {
        match self.random.below(24) {
            0 if self.readers.len() < READERS_MAX => self.start(),
            1 | 2 if self.readers.len() < READERS_MAX => self.follow(),
            _ => {}
        }
        if self.random.chance(self.cancel_chance, 1_000) {
            self.cancel();
        }
        for at in 0..self.readers.len() {
            if self.random.chance(self.cut_chance, 1_000) {
                self.cuts += u64::from(self.readers[at].cut(&self.world, &mut self.random));
            }
            if !self.is_slow || self.random.chance(1, 4) {
                self.visit(at)?;
            }
        }
        self.step_requests()
    }

    fn start(&mut self) {
        let random = &mut self.random;
        let strategy = ["after_turn", "eager"][random.below(2) as usize];
        let mut body = json!({
            "task": model_scripts::task(random.below(SCRIPT_COUNT)),
            "tools": ["script", "agent"],
            "depth": 1,
            "strategy": strategy,
            "parallel": random.between(1, 4),
            "accumulate": random.chance(1, 4),
            "cancel_on_disconnect": random.chance(1, 4),
        });
        if random.chance(1, 8) {
            body["timeout_ms"] = random.between(1, 500).into();
        }
        if random.chance(1, 8) {
            body["timeouts"] = json!({"total_ms": random.between(1, 500)});
        }
        if random.chance(1, 8) {
            body["max_steps"] = random.between(1, 2).into();
        }
        if self.verbose {
            println!("{:?} {body}", self.world.now());
        }
        self.readers.push(RunReader::starting(&body, random));
    }

    /// The id of an execution that one of the readers knows.
    fn known(&mut self) -> Option<String> {
        let all: Vec<&String> =
            self.readers.iter().filter_map(|reader| reader.execution.as_ref()).collect();
        let any = self.random.below(all.len().max(1) as u64) as usize;
        all.get(any).map(|id| (*id).clone())
    }

    fn follow(&mut self) {
        if let Some(id) = self.known() {
            self.readers.push(RunReader::new(Some(id), &mut self.random));
        }
    }

    fn cancel(&mut self) {
        let Some(id) = self.known() else { return };
        let request = format!("DELETE /v1/executions/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        if self.verbose {
            println!("{:?} {request:?}", self.world.now());
        }
        self.checked_requests.extend(Exchange::begin(&self.world, &self.address, &request));
    }

    fn step_requests(&mut self) -> Result<(), String> {
        for at in (0..self.checked_requests.len()).rev() {
            self.checked_requests[at].step(&self.world, &mut self.random)?;
            if self.checked_requests[at].outcome.is_none() {
                continue;
            }
            let checked_request = self.checked_requests.swap_remove(at);
            checked_request.close(&self.world);
            match checked_request.status {
                Some(202) => self.cancels += 1,
                Some(200 | 404 | 503) | None => {}
                Some(other) => return Err(format!("a cancellation was answered {other}")),
            }
        }
        Ok(())
    }

    fn visit(&mut self, at: usize) -> Result<(), String> {
        let (reader, random) = (&mut self.readers[at], &mut self.random);
        let seen = (&mut self.seen, &mut self.told);
        let visited = reader.step(&self.world, &self.address, random, seen);
        visited.map_err(|text| format!("reader {at}: {text}; it is {}", reader.describe()))
    }

    /// Stops cutting and cancelling: every reader comes to its end.
    fn calm_down(&mut self) -> Result<(), String> {
        for round in 0.. {
            for at in 0..self.readers.len() {
                self.visit(at).map_err(|text| format!("calm: {text}"))?;
            }
            self.step_requests()?;
            self.turn();
            self.pass(1 << (10 + round % 24));
            self.shard.audit();
            if self.readers.iter().all(|reader| reader.is_done) && self.checked_requests.is_empty()
            {
                break;
            }
            if round == CALM_ROUNDS_MAX {
                let open = self.readers.iter().find(|reader| !reader.is_done);
                return Err(format!(
                    "calm: {:?} never comes to the end",
                    open.map(RunReader::describe)
                ));
            }
        }
        self.check_ends()?;
        for seconds in [1, 120, 600] {
            self.pass(seconds * 1_000_000_000);
        }
        for _ in 0..100 {
            self.pass((limits::RETENTION + limits::BLOCK_DEADLINE).as_nanos() as u64);
        }
        self.shard.audit();
        if self.shard.connection_count() > 0 || self.model.open_count() > 0 {
            return Err("connections are left over".into());
        }
        if self.shard.execution_count() > 0 || self.shard.ring_usage().leased_count > 0 {
            return Err(format!("something is left over: {:?}", self.shard));
        }
        match self.next_deadline() {
            None => Ok(()),
            Some(_) => Err("a timer is left over".into()),
        }
    }

    /// Checks that all readers of a run that have seen its end have seen the same one.
    fn check_ends(&self) -> Result<(), String> {
        for reader in &self.readers {
            let same = |other: &&RunReader| other.execution == reader.execution;
            let mut ends = self.readers.iter().filter(same).filter_map(|r| r.outcome.as_ref());
            if let Some(end) = &reader.outcome
                && !ends.all(|other| other == end)
            {
                return Err(format!("{:?} has ended in two ways", reader.execution));
            }
        }
        Ok(())
    }
}
