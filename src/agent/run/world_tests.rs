//! Seeded worlds: models, tools, faults, cancellations and slow readers, all random. The driver
//! checks the invariants with each action and each part, and the tests check them at the end of
//! each world.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::time::Duration;

use super::testing::{Driver, ScriptedCall, ScriptedTurn, config};
use crate::agent::{
    CancelReason, Config, Ended, Fold, Iterate, NetFault, NetFaultKind, RunAction, RunEvent,
    RunState, Strategy, ToolProgress,
};
use crate::base::{ExecutionId, Handle, Random};
use crate::stream::{Exit, Gap, GapReason, Kind, Outcome};

const SEEDS: u64 = 1_000;

/// A fault of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExchangeFault {
    None,
    /// A refusal with this status and a body of its own.
    Refused(u16),
    /// The connection breaks after this many thousandths of the body.
    Broken(u64),
    /// The body ends there.
    Cut(u64),
    /// The server reports a failure there.
    Said(u64),
    /// Other bytes follow there.
    Garbage(u64),
    /// The server is silent from there on.
    Silent(u64),
}

/// An exchange, as seen by the model's server.
struct Answer {
    exchange: u32,
    status: u16,
    has_head: bool,
    body: VecDeque<u8>,
    /// The fault behind the body.
    end: ExchangeFault,
}

/// A running tool.
struct Tool {
    has_started: bool,
    seq: u64,
    offset: u64,
    chunks_left: u64,
}

/// A run and its environment.
struct RunWorld {
    seed: u64,
    random: Random,
    driver: Driver,
    answer: Option<Answer>,
    tools: BTreeMap<u32, Tool>,
    /// The highest numbers of exchanges and calls so far, for late events.
    old_exchanges: u32,
    old_calls: u32,
    actions_seen: usize,
    /// The step of the world at which the run is cancelled.
    cancel_at: Option<u64>,
    has_faults: bool,
    is_streaming: bool,
    step: u64,
}

impl RunWorld {
    /// Creates a world. In half of the worlds the run is cancelled.
    fn new(seed: u64) -> RunWorld {
        let mut random = Random::new(!seed);
        RunWorld::stopped_at(seed, random.chance(1, 2).then(|| random.below(120)))
    }

    fn stopped_at(seed: u64, cancel_at: Option<u64>) -> RunWorld {
        let mut random = Random::new(seed);
        let config = random_config(&mut random, seed);
        let mut driver = Driver::new(config);
        if cancel_at != Some(0) {
            driver.feed_only(RunEvent::Started);
        }
        RunWorld {
            seed,
            random,
            driver,
            answer: None,
            tools: BTreeMap::new(),
            old_exchanges: 0,
            old_calls: 0,
            actions_seen: 0,
            cancel_at,
            has_faults: true,
            is_streaming: true,
            step: 0,
        }
    }

    /// Creates the world of this seed without faults, with a provider that streams or does not.
    fn without_faults(seed: u64, is_streaming: bool) -> RunWorld {
        let mut random = Random::new(seed);
        let mut config = random_config(&mut random, seed);
        (config.duration_max, config.bytes_max) = (Duration::from_secs(3_600), u64::MAX);
        let mut driver = Driver::new(config);
        driver.feed_only(RunEvent::Started);
        let mut world = RunWorld::stopped_at(seed, None);
        world.driver = driver;
        (world.has_faults, world.is_streaming) = (false, is_streaming);
        world
    }

    /// Lets one thing happen. False if the run is over and all parts are taken.
    fn turn(&mut self) -> bool {
        self.step += 1;
        self.carry_out();
        if self.driver.run.is_over().is_some() {
            self.come_late();
            self.driver.take_parts();
            return false;
        }
        if self.cancel_at.is_some_and(|at| at < self.step) {
            self.cancel();
            return true;
        }
        match self.random.below(10) {
            0..4 => self.model_speaks(),
            4..7 => self.tool_works(),
            7 | 8 => self.reader_reads(),
            _ if self.has_faults && self.random.chance(1, 4) => self.come_late(),
            _ => self.time_passes(),
        }
        true
    }

    /// Cancels the run. All that is open is closed at once, and no other action follows.
    fn cancel(&mut self) {
        let hang_up = self.driver.open.map(|exchange| RunAction::HangUp { exchange });
        let stops = self.driver.running.keys().map(|&call| RunAction::Stop { call });
        let expected: Vec<RunAction> = hang_up.into_iter().chain(stops).collect();
        let actions_before = self.driver.actions.len();
        let reason = CancelReason::ALL[self.random.below(3) as usize];
        self.driver.feed_only(RunEvent::Cancel(reason));
        assert_eq!(self.driver.actions[actions_before..], expected);
        assert_eq!(self.driver.run.is_over().unwrap().how, Ended::Cancelled(reason));
    }

    /// Runs the world to its end.
    fn run(&mut self) {
        while self.turn() {
            assert!(self.step < 100_000, "it never ends");
        }
    }

    /// Carries out the actions of the run.
    fn carry_out(&mut self) {
        let open = self.driver.open;
        if self.answer.as_ref().is_some_and(|answer| Some(answer.exchange) != open) {
            self.answer = None;
        }
        if let (None, Some(exchange)) = (&self.answer, open) {
            self.old_exchanges = self.old_exchanges.max(exchange);
            self.answer = Some(self.new_answer(exchange));
        }
        let running = &self.driver.running;
        self.tools.retain(|call, _| running.contains_key(call));
        for &call in running.keys() {
            // Seeded by the call's number: the order in which calls begin depends on the strategy.
            let mut random = Random::new(u64::from(call));
            let chunks_left = random.below(6);
            let tool = Tool { has_started: false, seq: 0, offset: 0, chunks_left };
            self.tools.entry(call).or_insert(tool);
            self.old_calls = self.old_calls.max(call);
        }
        self.actions_seen = self.driver.actions.len();
    }

    fn new_answer(&mut self, exchange: u32) -> Answer {
        // The answer depends on the step alone, so another attempt gets the same one.
        let step = self.driver.run.state().steps.len() as u64;
        let mut words = Random::new(self.seed << 8 | step);
        let mut said = random_turn(&mut words, step);
        if !self.has_faults && said.finish == "content_filter" {
            said.finish = "stop"; // How far its calls get is a matter of timing.
        }
        let body = match self.is_streaming {
            true => said.stream(&mut self.random),
            false => said.plain(),
        };
        let fault = self.random_fault();
        let cut = |at: u64| body[..(body.len() as u64 * at / 1_000) as usize].to_vec();
        let (status, body) = match fault {
            ExchangeFault::None => (200, body),
            ExchangeFault::Refused(status) => (status, br#"{"error":{"message":"no"}}"#.to_vec()),
            ExchangeFault::Broken(at) | ExchangeFault::Cut(at) | ExchangeFault::Silent(at) => {
                (200, cut(at))
            }
            ExchangeFault::Said(at) => {
                let error = b"\n\ndata: {\"error\":{\"message\":\"overloaded\",\"code\":503}}\n\n";
                (200, [&cut(at)[..], error].concat())
            }
            ExchangeFault::Garbage(at) => (200, [&cut(at)[..], b"\n\ndata: }{\n\n"].concat()),
        };
        Answer { exchange, status, has_head: false, body: body.into(), end: fault }
    }

    fn random_fault(&mut self) -> ExchangeFault {
        if !self.has_faults || self.random.chance(2, 3) {
            return ExchangeFault::None;
        }
        let at = self.random.below(1_000);
        match self.random.below(6) {
            0 => ExchangeFault::Refused([400, 401, 404, 408, 429, 500, 503, 529][at as usize % 8]),
            1 => ExchangeFault::Broken(at),
            2 => ExchangeFault::Cut(at),
            3 => ExchangeFault::Said(at),
            4 => ExchangeFault::Garbage(at),
            _ => ExchangeFault::Silent(at),
        }
    }

    fn model_speaks(&mut self) {
        let Some(answer) = &mut self.answer else { return };
        let exchange = answer.exchange;
        if !answer.has_head {
            answer.has_head = true;
            let retry_after = (answer.status == 429).then_some("2");
            let (status, retry_after_ms) = (answer.status, None);
            self.driver.feed_only(RunEvent::Answered {
                exchange,
                status,
                retry_after,
                retry_after_ms,
            });
        } else if !answer.body.is_empty() {
            if !self.driver.run.wants_body() {
                return;
            }
            let length = self.random.between(1, answer.body.len().min(4_000) as u64) as usize;
            let bytes: Vec<u8> = answer.body.drain(..length).collect();
            self.driver.feed_only(RunEvent::Body { exchange, bytes: &bytes });
        } else {
            match answer.end {
                ExchangeFault::Silent(_) => {}
                ExchangeFault::Broken(_) => self.break_off(exchange),
                _ => self.driver.feed_only(RunEvent::BodyEnded { exchange }),
            }
        }
    }

    fn break_off(&mut self, exchange: u32) {
        let kind = match self.random.below(4) {
            0 => NetFaultKind::Tls,
            1 => NetFaultKind::Silent,
            _ => NetFaultKind::Broken,
        };
        let text = "it broke".to_owned();
        let fault = NetFault { kind, text, was_sent: true, was_received: true };
        self.driver.feed_only(RunEvent::Broken { exchange, fault });
    }

    fn tool_works(&mut self) {
        let calls: Vec<u32> = self.tools.keys().copied().collect();
        if calls.is_empty() {
            return;
        }
        let call = calls[self.random.below(calls.len() as u64) as usize];
        let tool = self.tools.get_mut(&call).unwrap();
        if !tool.has_started {
            tool.has_started = true;
            return self.tool_starts(call);
        }
        if tool.chunks_left == 0 {
            return self.tool_ends(call);
        }
        if !self.driver.run.wants_output() {
            return;
        }
        tool.chunks_left -= 1;
        tool.seq += 1;
        // The output of a tool depends on the call alone.
        let mut words = Random::new(u64::from(call) << 32 | tool.seq);
        if words.chance(1, 5) {
            let progress = tool.seq as f64;
            let message = Some("so far");
            let progress = ToolProgress { progress, message, ..ToolProgress::default() };
            return self.driver.feed_only(RunEvent::ToolProgress { call, progress });
        }
        let bytes = match words.chance(1, 3) {
            true => {
                let mut bytes = vec![0; words.below(3_000) as usize];
                words.fill(&mut bytes);
                bytes
            }
            false => random_text(&mut words, 900).into_bytes(),
        };
        let (seq, offset) = (tool.seq, tool.offset);
        tool.offset += bytes.len() as u64;
        if words.chance(1, 10) {
            let (byte_count, reason) = (bytes.len() as u64, GapReason::Overtaken);
            let gap = Gap { from_seq: seq, to_seq: seq, chunk_count: 1, byte_count, reason };
            return self.driver.feed_only(RunEvent::ToolGap { call, gap });
        }
        let (kind, more) = (Kind::Stdout, false);
        self.driver.feed_only(RunEvent::ToolChunk { call, seq, offset, kind, bytes: &bytes, more });
    }

    fn tool_starts(&mut self, call: u32) {
        if Random::new(u64::from(call)).chance(1, 10) {
            self.tools.remove(&call);
            self.driver.feed_only(RunEvent::ToolRefused { call, text: "`path` is missing" });
            return;
        }
        let slot = Handle { index: call, generation: 1 };
        let execution = ExecutionId { shard: 0, slot, nonce: self.random.next_u64() };
        self.driver.feed_only(RunEvent::ToolStarted { call, execution });
    }

    fn tool_ends(&mut self, call: u32) {
        self.tools.remove(&call);
        let (outcome, exit, error) = match Random::new(u64::from(call) + 7).below(8) {
            0 => (Outcome::Failed, Some(Exit::Code(3)), Some("it failed")),
            1 => (Outcome::TimedOut, None, None),
            2 => (Outcome::Cancelled, None, None),
            3 => (Outcome::Completed, Some(Exit::Code(1)), None),
            _ => (Outcome::Completed, None, None),
        };
        self.driver.feed_only(RunEvent::ToolEnded { call, outcome, exit, error });
    }

    fn reader_reads(&mut self) {
        for _ in 0..self.random.below(40) {
            let Some(part) = self.driver.run.next_part() else { return };
            self.driver.take_part(part);
        }
    }

    fn time_passes(&mut self) {
        let deadline = self.driver.run.next_deadline().expect("it is not over");
        let is_idle = self.answer.as_ref().is_none_or(|answer| {
            answer.has_head
                && answer.body.is_empty()
                && matches!(answer.end, ExchangeFault::Silent(_))
        });
        let is_stuck = is_idle && self.tools.is_empty();
        if is_stuck || (self.has_faults && self.random.chance(1, 20)) {
            self.driver.now = self.driver.now.max(deadline);
        } else if self.has_faults {
            self.driver.now += Duration::from_millis(self.random.below(20));
        }
        self.driver.feed_only(RunEvent::Tick);
    }

    /// Delivers events that were in flight when the run gave up their exchange or call.
    fn come_late(&mut self) {
        let before = self.driver.run.wants_body();
        let open = self.driver.open;
        for exchange in 1..=self.old_exchanges {
            if open != Some(exchange) {
                self.driver.feed_only(RunEvent::Body { exchange, bytes: b"data: {}\n\n" });
                self.driver.feed_only(RunEvent::BodyEnded { exchange });
            }
        }
        for call in 1..=self.old_calls {
            if !self.driver.running.contains_key(&call) {
                let (seq, offset, kind, more) = (1, 0, Kind::Output, false);
                let bytes = b"late";
                self.driver.feed_only(RunEvent::ToolChunk { call, seq, offset, kind, bytes, more });
                let (outcome, exit, error) = (Outcome::Completed, None, None);
                self.driver.feed_only(RunEvent::ToolEnded { call, outcome, exit, error });
            }
        }
        assert_eq!(self.driver.run.wants_body(), before, "something late made parts");
    }

    /// Returns everything that the run produced.
    fn record(&self) -> String {
        let mut record = String::new();
        for action in &self.driver.actions {
            writeln!(record, "{action:?}").unwrap();
        }
        for part in &self.driver.parts {
            let mut json = Vec::new();
            part.write_json(&mut json);
            record.push_str(std::str::from_utf8(&json).unwrap());
            record.push('\n');
        }
        record
    }
}

fn random_config(random: &mut Random, seed: u64) -> Config {
    let mut config = config();
    config.agent_id = format!("run-{seed}");
    if random.chance(1, 2) {
        config.strategy = Strategy::Eager;
    }
    config.parallel_calls_max = random.between(1, 4) as u32;
    config.calls_per_step_max = random.between(1, 6) as u32;
    config.steps_max = random.between(1, 6) as u32;
    config.retries_max = random.below(4) as u32;
    config.part_bytes_max = random.between(2 << 10, 12 << 10) as usize;
    config.output_bytes_max = random.below(8 << 10) as usize;
    config.accumulate = random.chance(1, 8);
    config.seed = seed;
    if random.chance(1, 8) {
        config.tokens_max = Some(random.between(1, 100));
    }
    if random.chance(1, 8) {
        config.bytes_max = random.between(1, 20_000);
    }
    if random.chance(1, 8) {
        config.conversation_bytes_max = random.between(1, 20_000) as usize;
    }
    if random.chance(1, 8) {
        config.duration_max = Duration::from_millis(random.between(1, 500));
    }
    config
}

fn random_text(random: &mut Random, chars_max: u64) -> String {
    let some = ['a', 'b', ' ', '\n', '"', '\\', 'ä', '€', '😀', '\0', '\u{2028}'];
    let one = |random: &mut Random| match random.below(4) {
        0 => some[random.below(some.len() as u64) as usize],
        _ => random.between(b' '.into(), b'~'.into()) as u8 as char,
    };
    let length = random.below(chars_max);
    (0..length).map(|_| one(random)).collect()
}

/// Returns a random turn of a model. It calls fewer tools in later steps.
fn random_turn(random: &mut Random, step: u64) -> ScriptedTurn {
    let mut said = ScriptedTurn { finish: "stop", ..ScriptedTurn::default() };
    if random.chance(1, 3) {
        said.reasoning = random_text(random, 500);
    }
    if random.chance(2, 3) {
        said.text = random_text(random, 600);
    }
    if random.chance(1, 2) {
        said.tokens = Some((random.below(50), random.below(50)));
    }
    if random.chance(4, 5 + step) {
        let count = random.between(1, 5);
        said.calls = (0..count).map(|_| random_call(random)).collect();
        said.finish = "tool_calls";
    }
    match random.below(20) {
        0 => said.finish = "length",
        1 => said.finish = "content_filter",
        _ => {}
    }
    said
}

fn random_call(random: &mut Random) -> ScriptedCall {
    let name = match random.below(8) {
        0 => "unknown".to_owned(),
        1 => format!("x{}", random_text(random, 20)),
        2 | 3 => "list".to_owned(),
        4 => "wait.long".to_owned(),
        _ => "read".to_owned(),
    };
    let whole = serde_json::json!({
        "path": random_text(random, 200),
        "n": random.next_u64(),
        "ratio": random.unit(),
    })
    .to_string();
    let arguments = match random.below(10) {
        0 => whole[..whole.floor_char_boundary(random.below(100) as usize)].to_owned(),
        1 => "[1, 2]".to_owned(),
        2 => "{}".to_owned(),
        _ => whole,
    };
    let id = match random.below(5) {
        0 => None,
        1 => Some("the same".to_owned()),
        2 => Some("same".to_owned()),
        _ => Some(format!("call-{:x}", random.next_u64())),
    };
    ScriptedCall { id, name, arguments }
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    }
}

#[test]
fn whatever_happens_all_that_is_open_is_closed_and_there_is_one_end() {
    let mut reasons = BTreeMap::new();
    for seed in seeds() {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = RunWorld::new(seed);
            world.run();
            let driver = &world.driver;
            assert_eq!(driver.parts.iter().filter(|part| part.is_end()).count(), 1);
            assert!(driver.parts.last().unwrap().is_end());
            assert_eq!((driver.open, driver.running.len()), (None, 0));
            driver.state(); // The client's state is the run's.
            driver.run.is_over().unwrap().reason.name()
        });
        *reasons.entry(outcome.unwrap_or_else(|_| panic!("SEED={seed}"))).or_insert(0) += 1;
    }
    println!("ends of {} seeds: {reasons:?}", seeds().end - seeds().start);
    assert!(reasons.len() >= 10 || seeds().end - seeds().start == 1, "a dull world: {reasons:?}");
}

#[test]
fn wherever_a_run_is_stopped_the_model_and_all_tools_are_and_every_part_is_closed() {
    let mut moments = BTreeMap::new();
    for seed in seeds() {
        let outcome = std::panic::catch_unwind(|| {
            let mut world = RunWorld::stopped_at(seed, None);
            world.run();
            let cancel_at = world.random.below(world.step);
            let mut world = RunWorld::stopped_at(seed, Some(cancel_at));
            while world.driver.run.is_over().is_none() {
                let driver = &world.driver;
                let open = (driver.open.is_some(), driver.running.len().min(2));
                assert!(world.turn());
                if world.driver.run.is_over().is_some() {
                    world.run();
                    let names = world.driver.names();
                    assert_eq!(names.iter().filter(|name| name.starts_with("Exec")).count(), 2);
                    return open;
                }
            }
            (false, 0)
        });
        *moments.entry(outcome.unwrap_or_else(|_| panic!("SEED={seed}"))).or_insert(0) += 1;
    }
    println!("stopped with (an open turn, running tools): {moments:?}");
    assert!(moments.len() == 6 || seeds().end - seeds().start == 1, "{moments:?}");
}

#[test]
fn equal_seeds_give_equal_actions_and_equal_parts() {
    for seed in seeds().step_by(5) {
        let record = || {
            let mut world = RunWorld::new(seed);
            world.run();
            world.record()
        };
        assert!(record() == record(), "SEED={seed}");
    }
}

#[test]
fn a_thousand_runs_at_once_are_each_as_if_they_were_alone() {
    let mut worlds: Vec<RunWorld> = seeds().map(RunWorld::new).collect();
    let mut order = Random::new(1);
    let mut going: Vec<usize> = (0..worlds.len()).collect();
    while !going.is_empty() {
        let at = order.below(going.len() as u64) as usize;
        if !worlds[going[at]].turn() {
            going.swap_remove(at);
        }
    }
    for (seed, together) in seeds().zip(&worlds).step_by(5) {
        let mut alone = RunWorld::new(seed);
        alone.run();
        assert!(together.record() == alone.record(), "SEED={seed}");
    }
}

/// The first lines that are not the same.
fn difference(one: &RunState, other: &RunState) -> String {
    let (one, other) = (format!("{one:#?}"), format!("{other:#?}"));
    let mut lines = one.lines().zip(other.lines());
    match lines.find(|(one, other)| one != other) {
        Some((one, other)) => format!("{one:.300} is not {other:.300}"),
        None => "one of them goes on".to_owned(),
    }
}

#[test]
fn states_are_equal_whether_the_provider_streams_or_not() {
    for seed in seeds().step_by(3) {
        let states = |is_streaming| {
            let mut world = RunWorld::without_faults(seed, is_streaming);
            world.run();
            let parts = world.driver.parts.clone();
            let states = Iterate::new(parts.into_iter()).map(|state| state.without_times());
            (world.driver.parts.len(), states.collect::<Vec<RunState>>())
        };
        let (streamed_count, streamed) = states(true);
        let (plain_count, plain) = states(false);
        assert!(plain_count <= streamed_count, "SEED={seed}");
        assert_eq!(streamed.len(), plain.len(), "SEED={seed}");
        for (streamed, plain) in streamed.iter().zip(&plain) {
            assert!(streamed == plain, "SEED={seed}: {}", difference(streamed, plain));
        }
    }
}

#[test]
fn whoever_misses_parts_is_told_less_and_nothing_wrong() {
    for seed in seeds().step_by(10) {
        let mut world = RunWorld::new(seed);
        world.run();
        let mut random = Random::new(seed);
        let mut fold = Fold::default();
        let is_final = |name: &str| !name.contains("Delta") && !name.ends_with("Started");
        for part in &world.driver.parts {
            if is_final(part.name()) || random.chance(1, 2) {
                fold.take(part);
            }
        }
        let (whole, told) = (world.driver.state(), fold.state());
        assert_eq!((&told.end, told.usage), (&whole.end, whole.usage), "SEED={seed}");
        assert_eq!(told.steps.len(), whole.steps.len(), "SEED={seed}");
        for (told, whole) in told.steps.iter().zip(&whole.steps) {
            assert!(whole.text.starts_with(&told.text), "SEED={seed}");
            assert!(told.text_truncated || told.text == whole.text, "SEED={seed}");
            assert_eq!(told.tool_calls.len(), whole.tool_calls.len(), "SEED={seed}");
        }
    }
}
