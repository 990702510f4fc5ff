//! The tool of the simulated server. Its chunks follow from its seed, so every client that knows
//! the seed can compute them.

use std::cell::Cell;
use std::time::Duration;

use serde_json::{Value, json};

use crate::base::Random;
use crate::engine::Timeouts;
use crate::memory::ChunkHeader;
use crate::stream::{Kind, Policy, Totals};
use crate::tool::{
    ArgumentError, Arguments, Context, Done, EmitError, Job, Need, Output, SendError, Step,
    SubscribeDefaults, Tool, ToolError, ToolSpec, Work,
};

/// The plan of one execution's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub seed: u64,
    pub chunk_count: u64,
    pub chunk_bytes_max: u64,
    pub fails: bool,
    /// True if a worker plays it.
    pub is_remote: bool,
}

/// The size of a ring in which all of the sizes occur.
const RING_BYTES: u32 = 16 << 10;
const KINDS: [Kind; 3] = [Kind::Output, Kind::Log, Kind::Json];

impl Script {
    pub fn draw(random: &mut Random, has_workers: bool) -> Script {
        let is_remote = has_workers && random.chance(1, 3);
        Script {
            seed: random.below(1 << 50),
            chunk_count: {
                // Each part of a worker is a request.
                let most = 1 << random.between(1, if is_remote { 6 } else { 9 });
                random.below(most)
            },
            chunk_bytes_max: 1 << random.between(0, 10),
            fails: random.chance(1, 6),
            is_remote,
        }
    }

    /// The script in the arguments of a worker's call.
    pub fn of_arguments(arguments: &Value) -> Option<Script> {
        let number = |name: &str| arguments[name].as_u64().ok_or(());
        Script::of(number, true).ok()
    }

    /// The script in the arguments of a tool.
    fn read(arguments: &Value) -> Result<Script, ArgumentError> {
        let mut arguments = Arguments::new(arguments)?;
        Script::of(|name| arguments.number(name, 0, 0..=1 << 50), false)
    }

    fn of<E>(mut number: impl FnMut(&str) -> Result<u64, E>, is_remote: bool) -> Result<Script, E> {
        Ok(Script {
            seed: number("seed")?,
            chunk_count: number("chunks")?,
            chunk_bytes_max: number("chunk_bytes")?,
            fails: number("fails")? == 1,
            is_remote,
        })
    }

    fn random(&self, seq: u64) -> Random {
        Random::new(self.seed ^ seq.wrapping_mul(0x9E37_79B9))
    }

    /// The kind of chunk `seq`, and its bytes: text of all kinds, now and then no text.
    pub fn chunk(&self, seq: u64) -> (Kind, Vec<u8>) {
        let mut random = self.random(seq);
        if self.is_remote {
            let mut bytes = vec![0; random.between(1, self.chunk_bytes_max.max(1)) as usize];
            random.fill(&mut bytes);
            bytes.iter_mut().for_each(|byte| *byte = b' ' + *byte % 95);
            return (Kind::Output, bytes);
        }
        let kind = KINDS[random.below(3) as usize];
        let length = random.below(self.chunk_bytes_max + 1) as usize;
        let mut bytes = vec![0; length];
        random.fill(&mut bytes);
        match random.below(4) {
            0 => {}                                               // Hardly ever UTF-8.
            1 => bytes.iter_mut().for_each(|byte| *byte &= 0x1f), // Control characters alone.
            _ => bytes.iter_mut().for_each(|byte| *byte = b' ' + *byte % 95),
        }
        (kind, bytes)
    }

    /// The totals of the chunks of `kinds` in a range.
    pub fn sum(&self, kinds: &[Kind], from_seq: u64, to_seq: u64) -> Totals {
        let mut totals = Totals::ZERO;
        for seq in from_seq..=to_seq {
            let (kind, bytes) = self.chunk(seq);
            if kinds.is_empty() || kinds.contains(&kind) {
                totals.count(bytes.len() as u32);
            }
        }
        totals
    }

    /// The need of a tool that plays it: a ring that takes its chunks, however short memory is.
    fn need(&self, need: Need) -> Need {
        Need { chunk_bytes: self.chunk_bytes_max as u32, ..need }
    }

    pub fn arguments(&self) -> Value {
        json!({
            "seed": self.seed,
            "chunks": self.chunk_count,
            "chunk_bytes": self.chunk_bytes_max,
            "fails": u64::from(self.fails),
        })
    }
}

pub(super) fn spec() -> ToolSpec {
    let number = json!({"type": "integer", "minimum": 0});
    let names = ["seed", "chunks", "chunk_bytes", "fails"];
    let properties: Value =
        names.map(|name| (name.to_owned(), number.clone())).into_iter().collect();
    ToolSpec {
        arguments: json!({"type": "object", "properties": properties, "required": names}),
        timeouts: Timeouts::NONE,
        need: Need { ring_bytes: RING_BYTES, ..Need::default() },
        subscribers: SubscribeDefaults { policy: Policy::Drop, ..Default::default() },
        ..ToolSpec::new("script", "Publishes what follows from its seed.")
    }
}

pub(super) fn prepare(arguments: &Value, need: Need) -> Result<(Work, Need), ArgumentError> {
    let script = Script::read(arguments)?;
    let pace = Random::new(script.seed ^ 1);
    let need = script.need(need);
    Ok((Work::Steps(Box::new(Player { script, seq: 1, pace })), need))
}

/// The name of the tool that plays its script on a thread.
pub(super) const ON_THREAD: &str = "script_on_thread";

pub(super) fn spec_on_thread() -> ToolSpec {
    ToolSpec { name: ON_THREAD.into(), ..spec() }
}

/// Sets the policy of subscribers that choose none.
pub(super) fn under(policy: Policy, spec: ToolSpec) -> ToolSpec {
    ToolSpec { subscribers: SubscribeDefaults { policy, ..Default::default() }, ..spec }
}

std::thread_local! {
    /// The script of the job that was called last.
    static CALLED: Cell<Option<Script>> = const { Cell::new(None) };
}

/// Prepares the tool on a thread. Its job plays nothing: it passes its script to a
/// [`ThreadPlayer`].
pub(super) fn prepare_on_thread(
    arguments: &Value,
    need: Need,
) -> Result<(Work, Need), ArgumentError> {
    let script = Script::read(arguments)?;
    let need = script.need(need);
    let work = Work::Thread(Box::new(move |_| {
        CALLED.set(Some(script));
        Ok(())
    }));
    Ok((work, need))
}

/// A simulated tool's thread: it sends some chunks whenever it gets the processor.
pub(super) struct ThreadPlayer {
    script: Script,
    seq: u64,
    output: Output,
    done: Done,
}

impl ThreadPlayer {
    pub fn new(job: Job) -> ThreadPlayer {
        let Job { mut output, work, done } = job;
        work(&mut output).expect("it only says what is to be played");
        let script = CALLED.take().expect("it has just said so");
        ThreadPlayer { script, seq: 1, output, done }
    }

    /// Sends some chunks. Returns `None` once the tool has returned.
    pub fn play(mut self, random: &mut Random) -> Option<ThreadPlayer> {
        for _ in 0..random.between(1, 40) {
            if self.seq > self.script.chunk_count {
                let result = match self.script.fails {
                    true => Err(ToolError::new(FAILURE)),
                    false => Ok(()),
                };
                (self.done)(self.output.into_writer(), result, false);
                return None;
            }
            let (kind, bytes) = self.script.chunk(self.seq);
            let header = ChunkHeader { kind: kind as u8, key: kind as u8, flags: 0 };
            match self.output.try_send(header, &bytes) {
                Ok(seq) => assert_eq!(seq, self.seq),
                Err(SendError::Blocked) => break,
                Err(SendError::Stopped) => {
                    (self.done)(self.output.into_writer(), Err(ToolError::Stopped), false);
                    return None;
                }
                Err(error @ SendError::TooLarge { .. }) => panic!("{error:?}"),
            }
            self.seq += 1;
            if random.chance(1, 8) {
                self.output.progress(self.seq as f64, Some(self.script.chunk_count as f64));
            }
        }
        Some(self)
    }
}

/// The error of a script that fails.
const FAILURE: &str = "as its script says";

/// Plays a script at a varying pace.
struct Player {
    script: Script,
    seq: u64,
    pace: Random,
}

impl Tool for Player {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        for _ in 0..self.pace.between(1, 24) {
            if self.seq > self.script.chunk_count {
                return match self.script.fails {
                    true => Step::Failed(ToolError::new(FAILURE)),
                    false => Step::Done,
                };
            }
            let (kind, bytes) = self.script.chunk(self.seq);
            match context.emit_as(kind, kind as u8, &bytes) {
                Ok(seq) => assert_eq!(seq, self.seq),
                Err(EmitError::Blocked) => return Step::Blocked,
                Err(error @ EmitError::TooLarge { .. }) => panic!("{error:?}"),
            }
            self.seq += 1;
            if self.pace.chance(1, 8) {
                context.progress(self.seq as f64, Some(self.script.chunk_count as f64));
            }
        }
        match self.pace.below(4) {
            0 => Step::Again,
            _ => {
                let most = 1 << self.pace.between(1, 16);
                let pause = Duration::from_micros(self.pace.below(most));
                Step::Sleep(context.now() + pause)
            }
        }
    }
}
