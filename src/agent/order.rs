//! The guarantees that every reader of a run can rely on, as a list and as a check. A run checks
//! its own parts, in release builds too.
//!
//! - P1 Parts are numbered 1, 2, 3 … without gaps. The first part, and only the first, is
//!   `ExecutionStarted`.
//! - P2 The last part is one of `ExecutionCompleted`, `ExecutionFailed` and `ExecutionCancelled`.
//!   It is the only one of these, and its state counts the steps and the calls.
//! - P3 Steps are numbered 1, 2, 3 … and do not overlap. Each `StepStarted` has one
//!   `StepCompleted`. These and all parts between them carry the step's number. `ExecutionStarted`
//!   carries 0, and the end carries the number of the last step.
//! - P4 Deltas of text, of reasoning and of a call's arguments carry their offset: each begins
//!   where the previous one ended.
//! - P5 A call's id is unique in the run. Each `ToolCallStarted` has exactly one of
//!   `ToolCallCompleted`, `ToolCallFailed` and `ToolCallCancelled`, within its step.
//! - P6 `ToolCallArgsCompleted` comes at most once for a call, after all of its deltas. Only a call
//!   with valid arguments has output, progress, gaps and an execution, and only such a call can be
//!   completed.
//! - P7 A call's output never goes backwards. A `Gap` reports the output missed in between.
//! - P8 Another step follows `decision: "continue"`, unless a hook, a limit or a cancellation
//!   prevents it. The end follows `"stop"`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::part::{Arguments, Body, Final, Partial, RunPart};
use crate::agent::state::{Decision, FinalState, ToolExecution};

/// Checks the parts of one run, from the first.
#[derive(Clone, Debug, Default)]
pub struct Order {
    seq: u64,
    is_over: bool,
    step_number: u32,
    is_step_open: bool,
    /// True if the last step decided to stop.
    is_stopped: bool,
    text_bytes: u64,
    reasoning_bytes: u64,
    /// The calls of the whole run.
    calls: BTreeMap<Arc<str>, CallOrder>,
    open_call_count: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct CallOrder {
    arguments_bytes: u64,
    arguments: Written,
    output_bytes: u64,
    is_over: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Written {
    #[default]
    Open,
    Good,
    Bad,
}

/// The rule that a part breaks, and how.
pub type Broken = &'static str;

impl Order {
    /// Checks the next part.
    ///
    /// # Errors
    /// [`Broken`] names the rule that the part breaks.
    pub fn take(&mut self, part: &RunPart) -> Result<(), Broken> {
        rule(!self.is_over, "P2: a part after the end")?;
        rule(part.seq == self.seq + 1, "P1: a hole between parts")?;
        let is_first = matches!(part.body, Body::Partial(Partial::ExecutionStarted { .. }));
        rule(is_first == (part.seq == 1), "P1: ExecutionStarted is the first part, and no other")?;
        self.seq = part.seq;
        if matches!(part.body, Body::Partial(Partial::StepStarted)) {
            rule(!self.is_step_open, "P3: a step in a step")?;
            rule(!self.is_stopped, "P8: a step after the last")?;
            self.step_number += 1;
            (self.is_step_open, self.text_bytes, self.reasoning_bytes) = (true, 0, 0);
        } else if !is_first && !part.is_end() {
            rule(self.is_step_open, "P3: a part between steps")?;
        }
        rule(part.step_number == self.step_number, "P3: another step's number")?;
        match &part.body {
            Body::Partial(partial) => self.take_partial(partial),
            Body::Final(last) => self.take_final(last),
        }
    }

    /// True if the last part has been checked.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the number of the last part; 0 before the first.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    fn take_partial(&mut self, partial: &Partial) -> Result<(), Broken> {
        match partial {
            Partial::ExecutionStarted { .. } | Partial::StepStarted => Ok(()),
            Partial::TextDelta { delta, offset, .. } => {
                follow(&mut self.text_bytes, delta, *offset)
            }
            Partial::ReasoningDelta { delta, offset } => {
                follow(&mut self.reasoning_bytes, delta, *offset)
            }
            Partial::ToolCallStarted { tool_call_id, .. } => {
                self.open_call_count += 1;
                let before = self.calls.insert(Arc::clone(tool_call_id), CallOrder::default());
                rule(before.is_none(), "P5: a call's id twice")
            }
            Partial::ToolCallArgsDelta { tool_call_id, delta, offset } => {
                let call = self.open_call(tool_call_id)?;
                rule(call.arguments == Written::Open, "P6: arguments after all of them")?;
                follow(&mut call.arguments_bytes, delta, *offset)
            }
            Partial::ToolOutputChunk { tool_call_id, offset, data, .. } => {
                let call = self.running_call(tool_call_id)?;
                rule(*offset >= call.output_bytes, "P7: output goes backwards")?;
                call.output_bytes = offset + data.as_bytes().len() as u64;
                Ok(())
            }
            Partial::ToolProgress { tool_call_id, .. } | Partial::Gap { tool_call_id, .. } => {
                self.running_call(tool_call_id).map(|_| ())
            }
        }
    }

    fn take_final(&mut self, last: &Final) -> Result<(), Broken> {
        match last {
            Final::ToolCallArgsCompleted { tool_call_id, arguments, .. } => {
                let call = self.open_call(tool_call_id)?;
                rule(call.arguments == Written::Open, "P6: arguments are complete twice")?;
                call.arguments = match arguments {
                    Arguments::Valid(_) | Arguments::Cut(_) => Written::Good,
                    Arguments::Invalid { .. } => Written::Bad,
                };
                Ok(())
            }
            Final::ToolCallCompleted { tool_call_id, execution } => {
                self.running_call(tool_call_id)?;
                self.end_call(tool_call_id, execution)
            }
            Final::ToolCallFailed { tool_call_id, execution }
            | Final::ToolCallCancelled { tool_call_id, execution } => {
                self.end_call(tool_call_id, execution)
            }
            Final::StepCompleted { step, outcome, .. } => {
                rule(self.open_call_count == 0, "P5: a call outlives its step")?;
                rule(step.number == self.step_number, "P3: another step's number")?;
                self.is_step_open = false;
                self.is_stopped = outcome.decision == Decision::Stop;
                Ok(())
            }
            Final::ExecutionCompleted { final_state }
            | Final::ExecutionFailed { final_state, .. }
            | Final::ExecutionCancelled { final_state, .. } => self.end(final_state),
        }
    }

    fn open_call(&mut self, id: &str) -> Result<&mut CallOrder, Broken> {
        let call = self.calls.get_mut(id).ok_or("P5: a part of no call")?;
        rule(!call.is_over, "P5: a part of a call that is over")?;
        Ok(call)
    }

    fn running_call(&mut self, id: &str) -> Result<&mut CallOrder, Broken> {
        let call = self.open_call(id)?;
        rule(call.arguments == Written::Good, "P6: a tool without good arguments")?;
        Ok(call)
    }

    fn end_call(&mut self, id: &str, execution: &ToolExecution) -> Result<(), Broken> {
        let call = self.open_call(id)?;
        let may_run = call.arguments == Written::Good;
        rule(may_run || execution.execution.is_none(), "P6: a tool without good arguments")?;
        call.is_over = true;
        self.open_call_count -= 1;
        Ok(())
    }

    fn end(&mut self, last: &FinalState) -> Result<(), Broken> {
        rule(!self.is_step_open, "P3: the end within a step")?;
        rule(last.step_count == self.step_number, "P2: steps are counted wrong")?;
        rule(last.tool_call_count as usize == self.calls.len(), "P2: calls are counted wrong")?;
        self.is_over = true;
        Ok(())
    }
}

fn rule(holds: bool, broken: Broken) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(broken) }
}

fn follow(bytes: &mut u64, delta: &str, offset: u64) -> Result<(), Broken> {
    rule(offset == *bytes, "P4: a delta begins elsewhere")?;
    *bytes += delta.len() as u64;
    Ok(())
}
