//! Folds the parts of a run into its state after each step.
//!
//! The hooks of a run see the state that a [`Fold`] of its parts yields. A client that folds the
//! parts sees the same. Text that final parts had to cut is taken from the deltas before them. A
//! client that missed some deltas has the text of the final parts, with `…_truncated` where that is
//! incomplete.

use std::sync::Arc;

use serde_json::Value;

use crate::agent::message::Usage;
use crate::agent::part::{Arguments, Body, Final, Partial, RunPart};
use crate::agent::state::{
    Continuation, Ended, FinalState, RunEnd, RunState, StepState, StepSummary, ToolExecution,
};
use crate::limits;

/// Folds the parts of a run into its [`RunState`].
///
/// ```
/// use streamdoor::agents::{Fold, Folded, RunPart};
/// let lines = [
///     r#"{"type":"StepStarted","seq":2,"agent_id":"a","step_number":1,"timestamp_us":0}"#,
///     r#"{"type":"TextDelta","seq":3,"agent_id":"a","step_number":1,"timestamp_us":0,
///         "delta":"Hello","offset":0}"#,
///     r#"{"type":"StepCompleted","seq":4,"agent_id":"a","step_number":1,"timestamp_us":0,
///         "step":{"number":1,"text":"Hel","text_truncated":true,"tool_calls":[],
///                 "finish_reason":"stop","duration_us":7},
///         "outcome":{"decision":"stop","reason":"stop"}}"#,
/// ];
/// let mut fold = Fold::default();
/// let folded: Vec<Folded> = lines
///     .iter()
///     .map(|line| Ok(fold.take(&RunPart::parse(line.as_bytes())?)))
///     .collect::<Result<_, streamdoor::agents::PartError>>()?;
/// assert_eq!(folded, [Folded::Nothing, Folded::Nothing, Folded::Step]);
/// assert_eq!(fold.state().text(), "Hello");
/// # Ok::<(), streamdoor::agents::PartError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fold {
    state: RunState,
    text: Pieces,
    /// The calls of the open step, in the order in which they began.
    calls: Vec<FoldedCall>,
}

/// The effect of a part on a [`Fold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folded {
    /// The part completes nothing.
    Nothing,
    /// The part completes a step: the state has one more.
    Step,
    /// The part ends the run: the state has its end.
    End,
}

/// A text assembled from deltas.
#[derive(Clone, Debug, Default)]
struct Pieces {
    text: String,
    /// True if the text is incomplete from here on.
    is_cut: bool,
}

#[derive(Clone, Debug)]
struct FoldedCall {
    id: Arc<str>,
    arguments: Pieces,
    execution: Option<Box<ToolExecution>>,
}

impl Pieces {
    fn add(&mut self, delta: &str, offset: u64) {
        let fits = self.text.len() + delta.len() <= limits::AGENT_FOLD_BYTES_MAX;
        if self.is_cut || offset != self.text.len() as u64 || !fits {
            self.is_cut = true;
        } else {
            self.text.push_str(delta);
        }
    }

    /// True if the assembled text is complete and extends `front`, which is cut if `is_cut`.
    fn is_whole(&self, front: &str, is_cut: bool) -> bool {
        match is_cut {
            true => !self.is_cut && self.text.len() > front.len() && self.text.starts_with(front),
            false => false, // `front` is the whole text.
        }
    }
}

impl Fold {
    /// Folds in the next part.
    pub fn take(&mut self, part: &RunPart) -> Folded {
        if self.state.agent_id.is_empty() {
            self.state.agent_id = part.agent_id.to_string();
        }
        match &part.body {
            Body::Partial(partial) => {
                self.take_partial(partial);
                Folded::Nothing
            }
            Body::Final(last) => self.take_final(last),
        }
    }

    /// Returns the state so far.
    pub fn state(&self) -> &RunState {
        &self.state
    }

    /// Returns the final state, when no more parts come.
    pub fn into_state(self) -> RunState {
        self.state
    }

    /// Returns the text of the open step, as far as its deltas came.
    pub fn open_text(&self) -> &str {
        &self.text.text
    }

    fn take_partial(&mut self, partial: &Partial) {
        match partial {
            Partial::ExecutionStarted { task, model, .. } => {
                self.state.task.clone_from(task);
                self.state.model.clone_from(model);
            }
            Partial::StepStarted => {
                self.text = Pieces::default();
                self.calls.clear();
            }
            Partial::TextDelta { delta, offset, .. } => self.text.add(delta, *offset),
            Partial::ToolCallStarted { tool_call_id, .. } => self.begin_call(tool_call_id),
            Partial::ToolCallArgsDelta { tool_call_id, delta, offset } => {
                let call = self.calls.iter_mut().rev().find(|call| call.id == *tool_call_id);
                if let Some(call) = call {
                    call.arguments.add(delta, *offset);
                }
            }
            Partial::ReasoningDelta { .. }
            | Partial::ToolOutputChunk { .. }
            | Partial::ToolProgress { .. }
            | Partial::Gap { .. } => {}
        }
    }

    fn begin_call(&mut self, id: &Arc<str>) {
        if self.calls.len() < limits::MODEL_CALLS_MAX {
            let arguments = Pieces::default();
            self.calls.push(FoldedCall { id: Arc::clone(id), arguments, execution: None });
        }
    }

    fn take_final(&mut self, last: &Final) -> Folded {
        match last {
            Final::ToolCallArgsCompleted { .. } => Folded::Nothing,
            Final::ToolCallCompleted { tool_call_id, execution }
            | Final::ToolCallFailed { tool_call_id, execution }
            | Final::ToolCallCancelled { tool_call_id, execution } => {
                self.end_call(tool_call_id, execution.clone());
                Folded::Nothing
            }
            Final::StepCompleted { step, outcome, usage } => {
                let step = self.close_step(step, outcome, *usage);
                self.add_step(step);
                Folded::Step
            }
            Final::ExecutionCompleted { final_state } => self.end(Ended::Completed, final_state),
            Final::ExecutionFailed { error, final_state } => {
                self.end(Ended::Failed(error.clone()), final_state)
            }
            Final::ExecutionCancelled { reason, final_state } => {
                self.end(Ended::Cancelled(*reason), final_state)
            }
        }
    }

    fn end_call(&mut self, id: &Arc<str>, mut execution: Box<ToolExecution>) {
        if !self.calls.iter().any(|call| call.id == *id) {
            self.begin_call(id); // Its beginning was missed.
        }
        let Some(call) = self.calls.iter_mut().rev().find(|call| call.id == *id) else { return };
        let written = std::mem::take(&mut call.arguments);
        match &mut execution.arguments {
            Arguments::Cut(_) if !written.is_cut => {
                if let Ok(value @ Value::Object(_)) = serde_json::from_str(&written.text) {
                    execution.arguments = Arguments::Valid(value);
                }
            }
            Arguments::Invalid { text, text_truncated, .. }
                if written.is_whole(text, *text_truncated) =>
            {
                (*text, *text_truncated) = (written.text, false);
            }
            Arguments::Cut(_) | Arguments::Valid(_) | Arguments::Invalid { .. } => {}
        }
        call.execution = Some(execution);
    }

    /// Closes the open step with this outcome and returns its state.
    pub(super) fn close_step(
        &mut self,
        step: &StepSummary,
        outcome: &Continuation,
        usage: Option<Usage>,
    ) -> StepState {
        let written = std::mem::take(&mut self.text);
        let (text, text_truncated) = match written.is_whole(&step.text, step.text_truncated) {
            true => (written.text, false),
            false => (step.text.clone(), step.text_truncated),
        };
        let executions = self.calls.drain(..).filter_map(|call| call.execution);
        StepState {
            number: step.number,
            text,
            text_truncated,
            tool_calls: executions.map(|execution| *execution).collect(),
            finish_reason: step.finish_reason.clone(),
            outcome: outcome.clone(),
            usage,
            duration_us: step.duration_us,
        }
    }

    /// Adds a completed step to the state.
    pub(super) fn add_step(&mut self, step: StepState) {
        if let Some(usage) = step.usage {
            self.state.usage += usage;
        }
        self.state.steps.push(step);
    }

    fn end(&mut self, how: Ended, last: &FinalState) -> Folded {
        self.state.usage = last.usage;
        let (reason, duration_us) = (last.reason.clone(), last.duration_us);
        self.state.end = Some(RunEnd { how, reason, duration_us });
        Folded::End
    }
}

/// An iterator over the states of a run, one after each step and one at its end, built from its
/// parts. It is `iterate`, built on `stream`.
///
/// ```
/// use streamdoor::agents::{Iterate, RunPart};
/// # let last = r#"{"type":"ExecutionCompleted","seq":1,"agent_id":"a","step_number":0,
/// #     "timestamp_us":0,"final_state":{"step_count":0,"text":"","usage":{"input_tokens":0,
/// #     "output_tokens":0},"reason":"stop","tool_call_count":0,"duration_us":0}}"#;
/// # let lines = [last];
/// let parts = lines.iter().map_while(|line| RunPart::parse(line.as_bytes()).ok());
/// for state in Iterate::new(parts) {
///     println!("{} steps: {}", state.steps.len(), state.text());
/// #   assert!(state.end.is_some());
/// }
/// ```
#[derive(Debug)]
pub struct Iterate<I> {
    parts: I,
    fold: Fold,
}

impl<I: Iterator<Item = RunPart>> Iterate<I> {
    /// Iterates over the states that these parts yield, from the first part.
    pub fn new(parts: I) -> Iterate<I> {
        Iterate { parts, fold: Fold::default() }
    }
}

impl<I: Iterator<Item = RunPart>> Iterator for Iterate<I> {
    type Item = RunState;

    fn next(&mut self) -> Option<RunState> {
        loop {
            let part = self.parts.next()?;
            if self.fold.take(&part) != Folded::Nothing {
                return Some(self.fold.state().clone());
            }
        }
    }
}
