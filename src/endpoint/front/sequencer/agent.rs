//! Translates the parts of a run to operations.

use super::{EmitOp, Sequencer, TIMED_OUT};
use crate::agent::{
    Body, CancelReason, Continuation, Failure, Final, FinalState, PartProgress, Partial, Reason,
    RunPart, StepSummary, ToolExecution, Usage,
};
use crate::endpoint::front::call::FrontCall;
use crate::endpoint::front::op::{
    CallEnd, Ending, GapOp, Op, ProgressOp, Prose, RunOutcome, StepEnd,
};
use crate::stream::Outcome;

impl Sequencer {
    /// Takes the next part.
    pub(super) fn part(&mut self, part: &RunPart, emit: &mut EmitOp<'_>) {
        if self.ending.is_some() {
            return; // The end is the last part.
        }
        self.time_us = part.timestamp_us;
        match &part.body {
            Body::Partial(partial) => self.partial(partial, part.step_number, emit),
            Body::Final(last) => self.last(last, part.step_number, emit),
        }
    }

    fn partial(&mut self, partial: &Partial, step: u32, emit: &mut EmitOp<'_>) {
        if let Partial::ExecutionStarted { model, .. } = partial {
            self.model.clone_from(model);
            return self.start(emit);
        }
        self.enter(step, emit);
        match partial {
            Partial::ExecutionStarted { .. } | Partial::StepStarted => {}
            Partial::TextDelta { delta, offset, .. } => {
                self.prose(Prose::Text, delta, *offset, emit);
            }
            Partial::ReasoningDelta { delta, offset } => {
                self.prose(Prose::Reasoning, delta, *offset, emit);
            }
            Partial::ToolCallStarted { tool_call_id, tool_name } => {
                self.shut(emit);
                self.calls.push(FrontCall::new(tool_call_id, tool_name));
                self.open(self.calls.len() - 1, None, emit);
            }
            Partial::ToolCallArgsDelta { tool_call_id, delta, offset } => {
                let at = self.find(tool_call_id);
                // A delta without the ones before it is useless. The arguments are then sent when
                // they are complete, and the call when its name is known.
                let call = &mut self.calls[at];
                if call.take_arguments(delta, *offset) && !delta.is_empty() {
                    emit(&Op::CallArguments { call, text: delta }, self.time_us);
                }
            }
            Partial::ToolOutputChunk { tool_call_id, execution, offset, kind, data, .. } => {
                let at = self.find(tool_call_id);
                let call = &mut self.calls[at];
                if call.execution.is_none() {
                    call.execution = execution.map(|id| id.to_string());
                }
                self.output(at, data.as_bytes(), *kind, *offset, emit);
            }
            Partial::ToolProgress { tool_call_id, progress } => {
                let at = self.find(tool_call_id);
                self.ready(at, None, None, emit);
                let (call, progress) = (Some(&self.calls[at]), progress_op(progress));
                emit(&Op::Progress { call, progress }, self.time_us);
            }
            Partial::Gap { tool_call_id, gap } => {
                let at = self.find(tool_call_id);
                self.ready(at, None, None, emit);
                let gap = GapOp {
                    from_seq: gap.from_seq,
                    to_seq: gap.to_seq,
                    chunk_count: gap.chunk_count,
                    byte_count: gap.byte_count,
                    reason: gap.reason.name(),
                };
                emit(&Op::Gap { call: Some(&self.calls[at]), gap }, self.time_us);
            }
        }
    }

    fn last(&mut self, last: &Final, step: u32, emit: &mut EmitOp<'_>) {
        match last {
            Final::ToolCallArgsCompleted { tool_call_id, tool_name, arguments } => {
                self.enter(step, emit);
                let at = self.find(tool_call_id);
                self.ready(at, Some(tool_name), Some(arguments), emit);
            }
            Final::ToolCallCompleted { execution, .. }
            | Final::ToolCallFailed { execution, .. }
            | Final::ToolCallCancelled { execution, .. } => {
                self.enter(step, emit);
                self.call_end(execution, emit);
            }
            Final::StepCompleted { step, outcome, usage } => {
                self.step_end(step, outcome, *usage, emit);
            }
            Final::ExecutionCompleted { final_state } => {
                let is_limited = match final_state.reason {
                    Reason::Hook(_) => true,
                    ref reason => reason.is_limit(),
                };
                let how = if is_limited { RunOutcome::Limited } else { RunOutcome::Completed };
                self.run_end(how, final_state, emit);
            }
            Final::ExecutionFailed { error, final_state } => {
                let Failure { code, message, .. } = error;
                let how = RunOutcome::Failed { code: code.clone(), message: message.clone() };
                self.run_end(how, final_state, emit);
            }
            Final::ExecutionCancelled { reason, final_state } => {
                let how = match reason {
                    CancelReason::Cancelled => RunOutcome::Cancelled,
                    CancelReason::TimedOut => TIMED_OUT,
                    CancelReason::Shutdown => {
                        RunOutcome::Stopped { code: "shutdown", message: "the server stops" }
                    }
                };
                self.run_end(how, final_state, emit);
            }
        }
    }

    fn call_end(&mut self, execution: &ToolExecution, emit: &mut EmitOp<'_>) {
        let at = self.find(&execution.tool_call_id.as_str().into());
        self.ready(at, Some(&execution.name), Some(&execution.arguments), emit);
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
        self.close_call(at, Some(end), emit);
        self.calls.remove(at);
    }

    fn step_end(
        &mut self,
        step: &StepSummary,
        outcome: &Continuation,
        usage: Option<Usage>,
        emit: &mut EmitOp<'_>,
    ) {
        self.enter(step.number, emit);
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
            self.open(at, Some(&said.name), emit);
            self.close_call(at, Some(end), emit);
            self.calls.remove(at);
        }
        let end = StepEnd {
            number: step.number,
            decision: Some((outcome.decision.name(), outcome.reason.name())),
            is_broken: matches!(outcome.reason, Reason::Failed | Reason::Cancelled(_)),
            usage,
            duration_us: Some(step.duration_us),
        };
        self.leave(end, emit);
    }

    fn run_end(&mut self, how: RunOutcome, state: &FinalState, emit: &mut EmitOp<'_>) {
        self.start(emit);
        let is_broken = !matches!(how, RunOutcome::Completed | RunOutcome::Limited);
        self.leave(StepEnd { is_broken, ..StepEnd::default() }, emit);
        let ending = Ending {
            how,
            reason: state.reason.name().to_owned(),
            usage: Some(state.usage),
            step_count: Some(state.step_count),
            model: String::new(),
        };
        self.end(ending, emit);
    }
}

fn progress_op(said: &PartProgress) -> ProgressOp<'_> {
    ProgressOp {
        progress: said.progress,
        total: said.total,
        percentage: said.percentage,
        message: said.message.as_deref(),
        context: said.context.clone(),
    }
}
