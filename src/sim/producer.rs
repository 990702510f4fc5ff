//! Producers: their scripts, and the tool as a state machine.
//!
//! Chunks by hand are in `caller.rs`, a tool on a thread is in `thread.rs`. All three follow a
//! [`Script`] and draw their chunks in the same way.

use std::time::Duration;

use crate::base::{Instant, Random};
use crate::engine::RingFacts;
use crate::limits;
use crate::memory::Geometry;
use crate::sim::between::set_writing;
use crate::sim::model::{ChunkModel, FAILURE_TEXT, PANIC_TEXT, ReportedEnd, fill_payload};
use crate::sim::plan::Plan;
use crate::sim::scene::SharedScene;
use crate::stream::Kind;
use crate::tool::{Context, EmitError, Report, Step, Tool, ToolError};

/// The planned behaviour of a producer.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub random: Random,
    /// Chunks that are still to come.
    pub left: u64,
    pub burst_max: u64,
    /// The scale of the sizes: the exponent of two.
    size_bits_max: u64,
    kinds: Vec<Kind>,
    keys: u64,
    pub pause_max: Duration,
    pub progress: u64,
    pub end: ReportedEnd,
    done: u64,
}

/// A chunk before it is published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    pub kind: Kind,
    pub key: u8,
    pub length: usize,
}

impl Script {
    pub fn draw(random: &mut Random, plan: &Plan) -> Script {
        let is_endless = random.chance(plan.tool_endless, 1_000);
        let kind_count = random.between(1, 4);
        let kinds = (0..kind_count).map(|_| Kind::ALL[random.below(12) as usize]).collect();
        let end = match () {
            () if random.chance(plan.tool_fails, 1_000) => ReportedEnd::Failed,
            () if random.chance(plan.tool_panics, 1_000) => ReportedEnd::Panicked,
            () => ReportedEnd::Done,
        };
        Script {
            left: if is_endless { u64::MAX } else { random.between(0, plan.chunks_max) },
            burst_max: random.between(1, plan.burst_max),
            size_bits_max: random.between(3, 18),
            kinds,
            keys: [1, 3, 64][random.below(3) as usize],
            pause_max: plan.pause_max,
            progress: plan.progress,
            end,
            done: 0,
            random: Random::new(random.next_u64()),
        }
    }

    /// The next chunk; now and then one that is too large.
    pub fn chunk(&mut self, chunk_bytes_max: u32) -> Draft {
        let random = &mut self.random;
        let bits = random.between(1, self.size_bits_max);
        let mut length = random.below(1 << bits);
        if length > u64::from(chunk_bytes_max) && !random.chance(1, 10) {
            length = random.below(u64::from(chunk_bytes_max) + 1);
        }
        let kind = self.kinds[random.below(self.kinds.len() as u64) as usize];
        Draft { kind, key: random.below(self.keys) as u8, length: length as usize }
    }

    /// True if it dies now, while it waits for its start.
    #[cfg(feature = "server")]
    pub fn dies_early(&mut self) -> bool {
        self.end == ReportedEnd::Panicked && self.random.chance(1, 16)
    }

    /// Counts one chunk as published.
    pub fn count(&mut self) {
        self.done += 1;
        if self.left != u64::MAX {
            self.left -= 1;
        }
    }

    /// A progress report, now and then; sometimes it goes backwards.
    pub fn progress(&mut self) -> Option<(Report, Option<f64>)> {
        if !self.random.chance(self.progress, 1_000) {
            return None;
        }
        let done = (self.done as f64 - self.random.below(3) as f64).max(0.0);
        let total = (self.left != u64::MAX).then(|| (self.done + self.left) as f64);
        let percentage = 100.0 * done / total.unwrap_or(1_000.0);
        let context = serde_json::json!({"done": done});
        let report = match self.random.below(8) {
            0 => Report::percentage(percentage),
            1 => Report::message("on the way"),
            2 => Report::context(&context),
            3 => Report::amount(done, total).with_message("counted").with_context(&context),
            4 => Report::percentage(f64::NAN),
            _ => Report::amount(done, total),
        };
        Some((report, total))
    }
}

impl Draft {
    pub fn model(&self, length: usize, published_at: Instant) -> ChunkModel {
        ChunkModel {
            kind: self.kind,
            key: self.key,
            length: length as u32,
            offset: 0,
            published_at,
            known_at: published_at,
        }
    }
}

/// The ring whose longest chunk has `chunk_bytes_max` bytes.
pub(super) fn ring_of(chunk_bytes_max: u32) -> RingFacts {
    let classes = limits::RING_CLASS_BYTES.map(Geometry::of_class);
    let found = classes.into_iter().find(|class| class.length_max() == chunk_bytes_max);
    let geometry = found.expect("rings are of one of the classes");
    RingFacts {
        slot_count: geometry.slot_count(),
        chunks_max: geometry.capacity_chunks(),
        chunk_bytes_max,
        data_bytes: geometry.data_bytes(),
    }
}

/// A tool as a state machine.
pub(super) struct SimTool {
    pub script: Script,
    /// Its execution's index.
    pub execution: usize,
    pub shared: SharedScene,
    pub buffer: Vec<u8>,
}

impl SimTool {
    /// Publishes one chunk, copied or in place.
    fn emit(&mut self, context: &mut Context<'_>) -> Result<(), EmitError> {
        let draft = self.script.chunk(context.chunk_bytes_max());
        set_writing(self.execution);
        let mut scene = self.shared.lock();
        let model = &mut scene.executions[self.execution];
        if model.whole.is_none() {
            model.note_ring(ring_of(context.chunk_bytes_max()));
        }
        let seq = scene.executions[self.execution].head_seq() + 1;
        let (number, now) = (self.execution as u32, context.now());
        if self.script.random.chance(1, 4) {
            let lent = context.lend(draft.length)?;
            // Lent memory is not always published, or not whole.
            let length = self.script.random.between(0, draft.length as u64) as usize;
            let length = if self.script.random.chance(1, 2) { draft.length } else { length };
            fill_payload(number, seq, &mut lent[..length]);
            scene.coverage.count("chunk lent");
            let model = &mut scene.executions[self.execution];
            model.lent_bytes_max =
                model.lent_bytes_max.max(Some(draft.length.next_multiple_of(8) as u32));
            if self.script.random.chance(1, 10) {
                return Ok(());
            }
            let published = context.publish(draft.kind, draft.key, length);
            scene.published(self.execution, published, draft.model(length, now));
        } else {
            self.buffer.resize(draft.length, 0);
            fill_payload(number, seq, &mut self.buffer);
            let published = context.emit_as(draft.kind, draft.key, &self.buffer)?;
            scene.published(self.execution, published, draft.model(draft.length, now));
        }
        self.script.count();
        Ok(())
    }

    fn finish(&mut self) -> Step {
        let mut scene = self.shared.lock();
        scene.told(self.execution, self.script.end);
        drop(scene);
        match self.script.end {
            ReportedEnd::Failed => Step::Failed(ToolError::new(FAILURE_TEXT)),
            // Unlike `panic!`, this prints nothing on standard error.
            ReportedEnd::Panicked => std::panic::resume_unwind(Box::new(PANIC_TEXT)),
            ReportedEnd::Done | ReportedEnd::Stopped => Step::Done,
        }
    }
}

impl Tool for SimTool {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        let now = context.now();
        self.shared.lock().executions[self.execution].patience.let_go(now);
        if let Some((report, _)) = self.script.progress() {
            context.report(report);
            self.shared.lock().executions[self.execution].patience.hear(now);
            if self.script.left != u64::MAX {
                context.expect_total(self.script.done + self.script.left);
            }
        }
        for _ in 0..self.script.random.between(0, self.script.burst_max) {
            if self.script.left == 0 {
                return self.finish();
            }
            match self.emit(context) {
                Ok(()) => {}
                Err(EmitError::Blocked) => {
                    let mut scene = self.shared.lock();
                    scene.coverage.count("producer blocked");
                    scene.executions[self.execution].patience.hold(now);
                    return Step::Blocked;
                }
                Err(EmitError::TooLarge { chunk_bytes_max }) => {
                    let mut scene = self.shared.lock();
                    scene.coverage.count("chunk too large");
                    if chunk_bytes_max != context.chunk_bytes_max() {
                        scene.fail("it was told a wrong limit".into());
                    }
                }
            }
        }
        let pause = self.script.random.below(self.script.pause_max.as_nanos() as u64 * 4);
        match self.script.random.below(3) {
            0 => Step::Again,
            _ => Step::Sleep(context.now() + Duration::from_nanos(pause)),
        }
    }
}
