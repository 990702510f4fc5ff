//! A seed of front ends. Runs are followed in every format, from the start and from anywhere, over
//! connections that are short, late, cut and reset. Each client is as strict as the real one, and
//! at the end those of one run must have read the same.

use std::collections::BTreeMap;

use serde_json::json;

use super::exchange::{Exchange, Outcome};
use super::scripted::{Asking, PlayParts, SimModel};
use super::timed_play::TimedPlay;
use super::{model_scripts, script};
use crate::base::Random;
use crate::endpoint::front::check::{Checker, SeenEnd, SeenStream};
use crate::endpoint::front::{
    FrontFormat, GraphAnswer, SdkVersion, Spelling, StreamModes, TaskAnswer,
};
use crate::reactor::{ListenAddress, ListenOptions, SocketLimits};
use crate::server::{AgentSettings, GuestConfig, ServerShard, ToolChoice};
use crate::shard::ShardConfig;
use crate::sim::reactor::SimReactor;
use crate::sim::world::{SimFaults, SimWorld};

const STORIES: u64 = 4;
const ONLOOKERS_MAX: usize = 24;
const STEPS: u32 = 400;
const CALM_ROUNDS_MAX: u32 = 20_000;

/// A client that follows a run in one format.
struct Onlooker {
    format: FrontFormat,
    /// The execution, or `None` until its own run reports its id.
    execution: Option<String>,
    starts: Option<String>,
    from: &'static str,
    /// True if it receives everything, sooner or later.
    is_owed_all: bool,
    checker: Option<Checker>,
    exchange: Option<Exchange>,
    /// The beginning of the stream on this connection, in which the id is looked for.
    head: String,
    seen: Option<SeenStream>,
    is_done: bool,
}

fn draw_format(random: &mut Random) -> FrontFormat {
    match random.below(8) {
        0 => FrontFormat::AiSdk { sdk: SdkVersion::V5 },
        1 => FrontFormat::AiSdk { sdk: SdkVersion::V7 },
        2 => FrontFormat::AgUi,
        3 => FrontFormat::LangGraph { spelling: Spelling::Camel },
        4 => FrontFormat::Responses { is_document: false },
        6 => FrontFormat::A2a { answer: TaskAnswer::Events },
        5 => FrontFormat::Graph { answer: GraphAnswer::Events(StreamModes::ALL) },
        _ => FrontFormat::LangGraph { spelling: Spelling::Snake },
    }
}

fn query(format: FrontFormat) -> &'static str {
    match format {
        FrontFormat::AiSdk { sdk: SdkVersion::V7 } => "format=ai-sdk&sdk_version=7",
        FrontFormat::AiSdk { .. } => "format=ai-sdk",
        FrontFormat::AgUi => "format=ag-ui",
        FrontFormat::LangGraph { spelling: Spelling::Camel } => "format=langgraph&spelling=camel",
        FrontFormat::LangGraph { .. } => "format=langgraph",
        FrontFormat::Responses { .. } => "format=responses",
        FrontFormat::A2a { .. } => "format=a2a",
        FrontFormat::Graph { .. } => {
            "format=langgraph-runs&stream_mode=values&stream_mode=updates&stream_mode=messages\
             &stream_mode=messages-tuple&stream_mode=tools&stream_mode=custom"
        }
    }
}

impl Onlooker {
    fn new(execution: Option<String>, random: &mut Random) -> Onlooker {
        let is_new = execution.is_none();
        let from = if is_new { "start" } else { ["start", "live"][random.below(2) as usize] };
        let format = draw_format(random);
        Onlooker {
            format,
            execution,
            starts: None,
            from,
            is_owed_all: from == "start",
            checker: Some(Checker::new(format)),
            exchange: None,
            head: String::new(),
            seen: None,
            is_done: false,
        }
    }

    fn starting(random: &mut Random) -> Onlooker {
        let mut onlooker = Onlooker::new(None, random);
        let body = json!({
            "task": model_scripts::task(random.below(STORIES)), "tools": ["script"],
            "cancel_on_disconnect": random.chance(1, 4),
        })
        .to_string();
        onlooker.starts = Some(format!(
            "POST /v1/agent/stream?{} HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            query(onlooker.format),
            body.len()
        ));
        onlooker
    }

    fn connect(&mut self, world: &SimWorld, address: &ListenAddress) {
        let request = match (self.starts.take(), &self.execution) {
            (Some(request), _) => request,
            (None, None) => {
                self.is_done = true; // The id is not known.
                return;
            }
            (None, Some(id)) => {
                self.checker = Some(Checker::new(self.format)); // It is sent again, from there.
                let (query, from) = (query(self.format), self.from);
                format!(
                    "GET /v1/executions/{id}/events?{query}&from={from}&policy=block HTTP/1.1\r\n\
                     Host: localhost\r\n\r\n"
                )
            }
        };
        self.head.clear();
        self.exchange = Exchange::begin(world, address, &request);
    }

    fn step(
        &mut self,
        world: &SimWorld,
        address: &ListenAddress,
        random: &mut Random,
    ) -> Result<(), String> {
        if self.is_done {
            return Ok(());
        }
        let Some(exchange) = &mut self.exchange else {
            self.connect(world, address);
            return Ok(());
        };
        exchange.step(world, random)?;
        let (status, outcome) = (exchange.status, exchange.outcome);
        let body = std::mem::take(&mut exchange.body);
        match status {
            None => {}
            Some(200) => self.read(&body, random)?,
            Some(404 | 410 | 429 | 503) => self.is_done = true,
            Some(other) => {
                return Err(format!("status {other}: {}", String::from_utf8_lossy(&body)));
            }
        }
        let Some(outcome) = outcome else { return Ok(()) };
        self.exchange.take().expect("it was just there").close(world);
        if outcome == Outcome::Complete && status == Some(200) {
            let checker = self.checker.take().expect("it is read once");
            self.seen = Some(checker.finish().map_err(|error| format!("at its end: {error}"))?);
            self.is_done = true;
        } else {
            self.is_broken();
        }
        Ok(())
    }

    /// Handles a cut connection.
    fn is_broken(&mut self) {
        self.is_done |= self.execution.is_none();
    }

    fn read(&mut self, body: &[u8], random: &mut Random) -> Result<(), String> {
        let checker = self.checker.as_mut().expect("it is still read");
        checker.read(body, random)?;
        self.head.push_str(&String::from_utf8_lossy(body));
        if self.execution.is_none() {
            self.execution = name_in(&self.head, self.format);
        }
        Ok(())
    }
}

/// The id of the execution in the beginning of a stream.
fn name_in(text: &str, format: FrontFormat) -> Option<String> {
    let before = match format {
        FrontFormat::LangGraph { .. } => "id: ",
        FrontFormat::Responses { .. } => "\"id\":\"resp_",
        FrontFormat::Graph { .. } => "\"run_id\":\"",
        FrontFormat::A2a { .. } => "\"task\":{\"id\":\"",
        _ => "\"execution\":\"",
    };
    let at = text.find(before)? + before.len();
    text.get(at..at + 26).map(str::to_owned)
}

struct Play {
    random: Random,
    world: SimWorld,
    shard: ServerShard<SimReactor>,
    address: ListenAddress,
    model: SimModel,
    onlookers: Vec<Onlooker>,
    cut_chance: u64,
    cuts: u64,
}

/// Plays a seed. Returns the number of clients that read to an end, and of connections that were
/// cut.
///
/// # Errors
/// The failure.
pub(super) fn play(seed: u64) -> Result<(u64, u64), String> {
    let mut random = Random::new(seed);
    let faults = if random.chance(1, 3) { SimFaults::NONE } else { SimFaults::ALL };
    let world = SimWorld::new(random.next_u64(), faults);
    let model = SimModel::new(&world, model_scripts::draw(&mut random));
    let config = ShardConfig {
        sockets: Some(SocketLimits { connections_max: 96, ..SocketLimits::default() }),
        seed: Some(random.next_u64()),
        guests: GuestConfig {
            agents: AgentSettings {
                models: vec![SimModel::settings("chat")],
                tools: ToolChoice::These(vec!["script".to_owned()]),
            },
            ..Default::default()
        },
        ..ShardConfig::default()
    };
    let mut shard = ServerShard::over(SimReactor::new(&world), config).expect("some memory");
    shard.run_jobs_by_hand();
    shard.tools_mut().insert(script::spec(), script::prepare).expect("it is right");
    let address: ListenAddress = "127.0.0.1:0".parse().expect("an address");
    let address = shard.listen(&address, ListenOptions::default()).expect("it listens");
    let cut_chance = if random.chance(1, 3) { 0 } else { random.between(1, 30) };
    let onlookers = Vec::new();
    let play = Play { random, world, shard, address, model, onlookers, cut_chance, cuts: 0 };
    play.run()
}

impl Asking for Play {
    fn asked(&mut self) -> PlayParts<'_> {
        PlayParts { world: &self.world, shard: &mut self.shard, model: &mut self.model }
    }
}

impl Play {
    fn run(mut self) -> Result<(u64, u64), String> {
        for step in 0..STEPS {
            self.act().map_err(|text| format!("step {step}: {text}"))?;
        }
        self.cut_chance = 0;
        for round in 0.. {
            self.visit_all().map_err(|text| format!("calm: {text}"))?;
            self.turn();
            self.pass(1 << (10 + round % 24));
            if self.onlookers.iter().all(|onlooker| onlooker.is_done) {
                break;
            }
            if round == CALM_ROUNDS_MAX {
                return Err("calm: somebody never comes to the end".to_owned());
            }
        }
        self.compare()?;
        let ends = self.onlookers.iter().filter(|onlooker| onlooker.seen.is_some());
        Ok((ends.count() as u64, self.cuts))
    }

    fn act(&mut self) -> Result<(), String> {
        if self.onlookers.len() < ONLOOKERS_MAX {
            match self.random.below(16) {
                0 => self.onlookers.push(Onlooker::starting(&mut self.random)),
                1 | 2 => {
                    let known: Vec<String> =
                        self.onlookers.iter().filter_map(|o| o.execution.clone()).collect();
                    let any = self.random.below(known.len().max(1) as u64) as usize;
                    if let Some(id) = known.get(any) {
                        self.onlookers.push(Onlooker::new(Some(id.clone()), &mut self.random));
                    }
                }
                _ => {}
            }
        }
        self.visit_all()?;
        let pause = 1 << self.random.between(8, 26);
        self.turn();
        self.pass(pause);
        self.shard.audit();
        Ok(())
    }

    fn visit_all(&mut self) -> Result<(), String> {
        for (at, onlooker) in self.onlookers.iter_mut().enumerate() {
            if self.random.chance(self.cut_chance, 1_000)
                && let Some(mut exchange) = onlooker.exchange.take()
            {
                exchange.leave(&self.world, &mut self.random);
                onlooker.is_broken();
                self.cuts += 1;
            }
            let stepped = onlooker.step(&self.world, &self.address, &mut self.random);
            stepped.map_err(|text| format!("onlooker {at} in {:?}: {text}", onlooker.format))?;
        }
        Ok(())
    }

    /// Checks that all clients which received a whole run have read the same, in any format.
    fn compare(&self) -> Result<(), String> {
        let mut runs: BTreeMap<&str, (FrontFormat, String)> = BTreeMap::new();
        for onlooker in &self.onlookers {
            let (Some(id), Some(seen)) = (&onlooker.execution, &onlooker.seen) else { continue };
            let has_end = !matches!(seen.end, SeenEnd::None | SeenEnd::Detached);
            if !onlooker.is_owed_all || seen.gap_count > 0 || !has_end {
                continue; // It was detached before the run's end, for example.
            }
            let said: String = seen.steps.iter().map(|step| step.text.as_str()).collect();
            let calls = seen.steps.iter().flat_map(|step| &step.calls);
            let calls: String =
                calls.map(|call| format!("|{} {} {}", call.id, call.name, call.pieces)).collect();
            let understood = format!("{said}{calls}");
            let (format, other) =
                runs.entry(id).or_insert_with(|| (onlooker.format, understood.clone()));
            if *other != understood {
                let own = onlooker.format;
                return Err(format!("{id}: {other:?} in {format:?}, {understood:?} in {own:?}"));
            }
        }
        Ok(())
    }
}
