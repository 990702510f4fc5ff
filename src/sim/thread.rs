//! A tool on a thread of its own, simulated: it holds its `Output` and sends at random moments,
//! also in the middle of the shard's work, as a real thread would. A stuck one returns long after
//! its execution has ended, or not before everything else is over.

use crate::base::Instant;
use crate::engine::RingFacts;
use crate::memory::{ChunkHeader, RingWriter};
use crate::sim::between::set_writing;
use crate::sim::model::{FAILURE_TEXT, PANIC_TEXT, Told, fill_payload};
use crate::sim::producer::{Script, ring_of};
use crate::sim::scene::Scene;
use crate::tool::{Output, SendError, ToolError};

type Done = Box<dyn FnOnce(RingWriter, Result<(), ToolError>, bool) + Send>;

/// One simulated thread.
pub(super) struct ThreadActor {
    pub execution: usize,
    pub script: Script,
    pub output: Output,
    pub done: Done,
    /// Does nothing before that.
    pub stuck_until: Instant,
    buffer: Vec<u8>,
}

impl ThreadActor {
    pub fn new(execution: usize, script: Script, output: Output, done: Done) -> ThreadActor {
        let stuck_until = Instant::ZERO;
        ThreadActor { execution, script, output, done, stuck_until, buffer: Vec::new() }
    }

    /// The ring that it writes.
    pub fn ring(&self) -> RingFacts {
        ring_of(self.output.chunk_bytes_max())
    }
}

impl Scene {
    /// One thing that a thread does: sends a chunk, or returns.
    pub fn step_thread(&mut self, at: usize) {
        let Some(actor) = self.threads.get_mut(at) else { return };
        if actor.stuck_until > self.now {
            return;
        }
        if actor.script.left == 0 {
            let end = actor.script.end;
            self.return_thread(at, end);
            return;
        }
        if let Some((report, total)) = actor.script.progress() {
            actor.output.report(report);
            let patience = &mut self.executions[actor.execution].patience;
            match self.is_preempting {
                true => patience.hear_in_turn(self.now),
                false => patience.hear(self.now),
            }
            if let Some(total) = total {
                actor.output.expect_total(total as u64);
            }
        }
        let draft = actor.script.chunk(actor.output.chunk_bytes_max());
        let index = actor.execution;
        let seq = self.executions[index].head_seq() + 1;
        actor.buffer.resize(draft.length, 0);
        fill_payload(index as u32, seq, &mut actor.buffer);
        let header = ChunkHeader { kind: draft.kind as u8, key: draft.key, flags: 0 };
        let before = set_writing(index); // Perhaps in the middle of somebody else's step.
        let sent = actor.output.try_send(header, &actor.buffer);
        set_writing(before);
        match sent {
            Ok(seq) => {
                actor.script.count();
                let now = actor.output.now();
                self.published(index, seq, draft.model(draft.length, now));
            }
            Err(SendError::Stopped) => self.return_thread(at, Told::Stopped),
            Err(SendError::Blocked) => {
                self.coverage.count("producer blocked");
                self.executions[index].patience.hold(self.now);
            }
            Err(SendError::TooLarge { .. }) => self.coverage.count("chunk too large"),
        }
    }

    /// A thread's closure returns, or panics.
    pub fn return_thread(&mut self, at: usize, told: Told) {
        let actor = self.threads.swap_remove(at);
        if self.executions[actor.execution].is_forgotten {
            self.coverage.count("ring back after its execution");
        }
        self.told(actor.execution, told);
        let result = match told {
            Told::Done => Ok(()),
            Told::Failed => Err(ToolError::new(FAILURE_TEXT)),
            Told::Panicked => Err(ToolError::new(format!("the tool panicked: {PANIC_TEXT}"))),
            Told::Stopped => Err(ToolError::Stopped),
        };
        (actor.done)(actor.output.into_writer(), result, told == Told::Panicked);
    }
}
