//! A simulated tool on a thread of its own, or a producer in another process. It owns its output
//! and sends at random moments, also in the middle of the shard's work, as a real one would. A
//! stuck one returns long after its execution has ended, or not before everything else is over.

use crate::base::Instant;
use crate::engine::RingFacts;
use crate::memory::{ChunkHeader, RingWriter};
use crate::sim::between::set_writing;
use crate::sim::model::{FAILURE_TEXT, PANIC_TEXT, ReportedEnd, fill_payload};
#[cfg(feature = "server")]
use crate::sim::process::Process;
use crate::sim::producer::{Script, ring_of};
use crate::sim::scene::Scene;
use crate::tool::{Output, Report, SendError, ToolError};

type Done = Box<dyn FnOnce(RingWriter, Result<(), ToolError>, bool) + Send>;

/// The tool's output, or the producer's memory.
pub(super) enum Hand {
    Thread(Box<Output>, Done),
    #[cfg(feature = "server")]
    Process(Box<Process>),
}

/// One simulated thread or process.
pub(super) struct ThreadActor {
    pub execution: usize,
    pub script: Script,
    pub hand: Hand,
    /// The time before which it does nothing.
    pub stuck_until: Instant,
    buffer: Vec<u8>,
}

impl ThreadActor {
    pub fn new(execution: usize, script: Script, hand: Hand) -> ThreadActor {
        let stuck_until = Instant::ZERO;
        ThreadActor { execution, script, hand, stuck_until, buffer: Vec::new() }
    }

    /// The ring that it writes.
    pub fn ring(&self) -> RingFacts {
        ring_of(self.hand.chunk_bytes_max())
    }
}

impl Hand {
    fn chunk_bytes_max(&self) -> u32 {
        match self {
            Hand::Thread(output, _) => output.chunk_bytes_max(),
            #[cfg(feature = "server")]
            Hand::Process(process) => process.chunk_bytes_max(),
        }
    }

    /// Reports its progress, and the total.
    fn report(&mut self, report: Report, total: Option<f64>) {
        match self {
            Hand::Thread(output, _) => {
                output.report(report);
                if let Some(total) = total {
                    output.expect_total(total as u64);
                }
            }
            #[cfg(feature = "server")]
            Hand::Process(process) => process.progress(total),
        }
    }

    /// Sends a chunk if that is possible at once, and returns its number.
    fn try_send(&mut self, header: ChunkHeader, payload: &[u8]) -> Result<u64, SendError> {
        match self {
            Hand::Thread(output, _) => output.try_send(header, payload),
            #[cfg(feature = "server")]
            Hand::Process(process) => process.try_send(header, payload),
        }
    }

    /// The time by its clock.
    fn now(&self) -> Instant {
        match self {
            Hand::Thread(output, _) => output.now(),
            #[cfg(feature = "server")]
            Hand::Process(process) => process.now(),
        }
    }
}

impl Scene {
    /// One step of a thread: sends a chunk, or returns.
    pub fn step_thread(&mut self, at: usize) {
        let Some(actor) = self.threads.get_mut(at) else { return };
        if actor.stuck_until > self.now {
            return;
        }
        #[cfg(feature = "server")]
        if let Hand::Process(process) = &mut actor.hand {
            let (may_begin, has_finished) = (process.run(self.now), process.has_finished());
            if !may_begin && !has_finished {
                if actor.script.dies_early() {
                    self.return_thread(at, ReportedEnd::Panicked);
                }
                return;
            }
            if has_finished {
                return self.leave_process(at);
            }
        }
        let execution = &self.executions[actor.execution];
        if execution.is_too_long() && !execution.is_cancelled {
            return; // It would go on without end in one turn of the shard.
        }
        if actor.script.left == 0 {
            let end = actor.script.end;
            self.return_thread(at, end);
            return;
        }
        if let Some((report, total)) = actor.script.progress() {
            actor.hand.report(report, total);
            let patience = &mut self.executions[actor.execution].patience;
            match self.is_preempting {
                true => patience.hear_in_turn(self.now),
                false => patience.hear(self.now),
            }
        }
        let draft = actor.script.chunk(actor.hand.chunk_bytes_max());
        let index = actor.execution;
        let seq = self.executions[index].head_seq() + 1;
        actor.buffer.resize(draft.length, 0);
        fill_payload(index as u32, seq, &mut actor.buffer);
        let header = ChunkHeader { kind: draft.kind as u8, key: draft.key, flags: 0 };
        let before = set_writing(index); // Perhaps in the middle of another step.
        let sent = actor.hand.try_send(header, &actor.buffer);
        set_writing(before);
        match sent {
            Ok(seq) => {
                let now = actor.hand.now();
                actor.script.count();
                self.published(index, seq, draft.model(draft.length, now));
            }
            Err(SendError::Stopped) => self.return_thread(at, ReportedEnd::Stopped),
            Err(SendError::Blocked) => {
                self.coverage.count("producer blocked");
                self.executions[index].patience.hold(self.now);
            }
            Err(SendError::TooLarge { .. }) => self.coverage.count("chunk too large"),
        }
    }

    /// Ends a thread: its closure returns, or panics; a process reports its end, or dies.
    pub fn return_thread(&mut self, at: usize, told: ReportedEnd) {
        let actor = &mut self.threads[at];
        let execution = actor.execution;
        #[cfg(feature = "server")]
        if let Hand::Process(process) = &mut actor.hand {
            process.finish(told);
            self.told(execution, told);
            return;
        }
        let actor = self.threads.swap_remove(at);
        if self.executions[execution].is_forgotten {
            self.coverage.count("ring back after its execution");
        }
        self.told(execution, told);
        let result = match told {
            ReportedEnd::Done => Ok(()),
            ReportedEnd::Failed => Err(ToolError::new(FAILURE_TEXT)),
            ReportedEnd::Panicked => {
                Err(ToolError::new(format!("the tool panicked: {PANIC_TEXT}")))
            }
            ReportedEnd::Stopped => Err(ToolError::Stopped),
        };
        match actor.hand {
            Hand::Thread(output, done) => {
                done(output.into_writer(), result, told == ReportedEnd::Panicked);
            }
            #[cfg(feature = "server")]
            Hand::Process(_) => unreachable!("it has returned above"),
        }
    }

    /// Removes a process that has reported its end, once its server has taken the report.
    #[cfg(feature = "server")]
    fn leave_process(&mut self, at: usize) {
        let Hand::Process(process) = &self.threads[at].hand else { return };
        if process.is_over() {
            process.leave();
            self.threads.swap_remove(at);
        }
    }
}
