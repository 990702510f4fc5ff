//! Translates the parts of a run to operations.

use super::{Story, TIMED_OUT, Tell};
use crate::agent::{
    Body, CancelReason, Continuation, Failure, Final, FinalState, Part, Partial, ProgressSaid,
    Reason, Step, ToolExecution, Usage,
};
use crate::endpoint::front::call::Call;
use crate::endpoint::front::op::{CallEnd, Ending, Gap, How, Op, Progress, Prose, StepEnd};
use crate::stream::Outcome;

impl Story {
    /// Takes the next part.
    pub(super) fn part(&mut self, part: &Part, tell: &mut Tell<'_>) {
        if self.ending.is_some() {
            return; // The end is the last part.
        }
        self.time_us = part.timestamp_us;
        match &part.body {
            Body::Partial(partial) => self.partial(partial, part.step_number, tell),
            Body::Final(last) => self.last(last, part.step_number, tell),
        }
    }

    fn partial(&mut self, partial: &Partial, step: u32, tell: &mut Tell<'_>) {
        if let Partial::ExecutionStarted { model, .. } = partial {
            self.model.clone_from(model);
            return self.start(tell);
        }
        self.enter(step, tell);
        match partial {
            Partial::ExecutionStarted { .. } | Partial::StepStarted => {}
            Partial::TextDelta { delta, offset, .. } => {
                self.prose(Prose::Text, delta, *offset, tell);
            }
            Partial::ReasoningDelta { delta, offset } => {
                self.prose(Prose::Reasoning, delta, *offset, tell);
            }
            Partial::ToolCallStarted { tool_call_id, tool_name } => {
                self.shut(tell);
                self.calls.push(Call::new(tool_call_id, tool_name));
                self.open(self.calls.len() - 1, None, tell);
            }
            Partial::ToolCallArgsDelta { tool_call_id, delta, offset } => {
                let at = self.find(tool_call_id);
                // A delta without the ones before it is useless. The arguments are then sent when
                // they are complete, and the call when its name is known.
                let call = &mut self.calls[at];
                if call.take_arguments(delta, *offset) && !delta.is_empty() {
                    tell(&Op::CallArguments { call, text: delta }, self.time_us);
                }
            }
            Partial::ToolOutputChunk { tool_call_id, execution, offset, kind, data, .. } => {
                let at = self.find(tool_call_id);
                let call = &mut self.calls[at];
                if call.execution.is_none() {
                    call.execution = execution.map(|id| id.to_string());
                }
                self.output(at, data.as_bytes(), *kind, *offset, tell);
            }
            Partial::ToolProgress { tool_call_id, progress } => {
                let at = self.find(tool_call_id);
                self.ready(at, None, None, tell);
                let (call, progress) = (Some(&self.calls[at]), told(progress));
                tell(&Op::Progress { call, progress }, self.time_us);
            }
            Partial::Gap { tool_call_id, gap } => {
                let at = self.find(tool_call_id);
                self.ready(at, None, None, tell);
                let gap = Gap {
                    from_seq: gap.from_seq,
                    to_seq: gap.to_seq,
                    chunk_count: gap.chunk_count,
                    byte_count: gap.byte_count,
                    reason: gap.reason.name(),
                };
                tell(&Op::Gap { call: Some(&self.calls[at]), gap }, self.time_us);
            }
        }
    }

    fn last(&mut self, last: &Final, step: u32, tell: &mut Tell<'_>) {
        match last {
            Final::ToolCallArgsCompleted { tool_call_id, tool_name, arguments } => {
                self.enter(step, tell);
                let at = self.find(tool_call_id);
                self.ready(at, Some(tool_name), Some(arguments), tell);
            }
            Final::ToolCallCompleted { execution, .. }
            | Final::ToolCallFailed { execution, .. }
            | Final::ToolCallCancelled { execution, .. } => {
                self.enter(step, tell);
                self.call_end(execution, tell);
            }
            Final::StepCompleted { step, outcome, usage } => {
                self.step_end(step, outcome, *usage, tell);
            }
            Final::ExecutionCompleted { final_state } => {
                self.run_end(How::Completed, final_state, tell);
            }
            Final::ExecutionFailed { error, final_state } => {
                let Failure { code, message, .. } = error;
                let how = How::Failed { code: code.clone(), message: message.clone() };
                self.run_end(how, final_state, tell);
            }
            Final::ExecutionCancelled { reason, final_state } => {
                let how = match reason {
                    CancelReason::Cancelled => How::Cancelled,
                    CancelReason::TimedOut => TIMED_OUT,
                    CancelReason::Shutdown => {
                        How::Stopped { code: "shutdown", message: "the server stops" }
                    }
                };
                self.run_end(how, final_state, tell);
            }
        }
    }

    fn call_end(&mut self, execution: &ToolExecution, tell: &mut Tell<'_>) {
        let at = self.find(&execution.tool_call_id.as_str().into());
        self.ready(at, Some(&execution.name), Some(&execution.arguments), tell);
        let call = &mut self.calls[at];
        if call.execution.is_none() {
            call.execution = execution.execution.map(|id| id.to_string());
        }
        call.is_cut |= call.output_bytes != execution.output_bytes;
        let end = CallEnd {
            outcome: execution.outcome,
            output: &execution.output,
            is_truncated: execution.output_truncated,
            output_bytes: Some(execution.output_bytes),
            exit: execution.exit,
            error: execution.error.as_deref(),
            duration_us: Some(execution.duration_us),
        };
        self.close_call(at, Some(end), tell);
        self.calls.remove(at);
    }

    fn step_end(
        &mut self,
        step: &Step,
        outcome: &Continuation,
        usage: Option<Usage>,
        tell: &mut Tell<'_>,
    ) {
        self.enter(step.number, tell);
        for said in &step.tool_calls {
            let Some(at) = self.calls.iter().position(|call| *call.id == *said.id) else {
                continue;
            };
            let output = std::mem::take(&mut self.calls[at].output);
            let is_known = said.outcome != Outcome::Failed;
            let end = CallEnd {
                outcome: said.outcome,
                output: &output,
                is_truncated: true,
                output_bytes: None,
                exit: None,
                error: (!is_known).then_some("the reason of the failure was lost"),
                duration_us: None,
            };
            self.open(at, Some(&said.name), tell);
            self.close_call(at, Some(end), tell);
            self.calls.remove(at);
        }
        let end = StepEnd {
            number: step.number,
            decision: Some((outcome.decision.name(), outcome.reason.name())),
            is_broken: matches!(outcome.reason, Reason::Failed | Reason::Cancelled(_)),
            usage,
            duration_us: Some(step.duration_us),
        };
        self.leave(end, tell);
    }

    fn run_end(&mut self, how: How, state: &FinalState, tell: &mut Tell<'_>) {
        self.start(tell);
        let is_broken = how != How::Completed;
        self.leave(StepEnd { is_broken, ..StepEnd::default() }, tell);
        let ending = Ending {
            how,
            reason: state.reason.name().to_owned(),
            usage: Some(state.usage),
            step_count: Some(state.step_count),
            model: String::new(),
        };
        self.end(ending, tell);
    }
}

fn told(said: &ProgressSaid) -> Progress<'_> {
    Progress {
        progress: said.progress,
        total: said.total,
        percentage: said.percentage,
        message: said.message.as_deref(),
        context: said.context.clone(),
    }
}
