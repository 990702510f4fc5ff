//! The common part of all wires' decoders: the order of calls, the limits, and the events so far.

use std::collections::VecDeque;

use serde_json::Value;

use crate::agent::message::{ReasoningBlock, ToolDescription, Usage};
use crate::agent::model::names::ToolNames;
use crate::agent::model::outline::ObjectOutline;
use crate::agent::model::{FinishReason, ModelEvent, ModelFault, Wire};
use crate::limits;

/// Turns the content of a wire into events, in an order that is the same for all wires.
#[derive(Debug)]
pub(super) struct AnswerBuilder {
    wire: Wire,
    names: ToolNames,
    /// The events that were not taken yet.
    pub events: VecDeque<ModelEvent>,
    calls: Vec<CallBuilder>,
    /// Number of calls whose start was emitted.
    started_count: usize,
    text_bytes: usize,
    answer_bytes: usize,
    usage: Option<Usage>,
    is_finished: bool,
}

/// The number of a call, in the order in which the wire first named them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallNumber(usize);

#[derive(Debug, Default)]
struct CallBuilder {
    id: Option<String>,
    /// The name; empty until it comes.
    name: String,
    /// The number of the call in events, once its start was emitted.
    index: Option<u32>,
    /// The arguments that were not emitted yet, because the name was missing.
    early: String,
    arguments_bytes: usize,
    outline: ObjectOutline,
    extra: Option<Value>,
    is_complete: bool,
}

/// The meaning of a completed call without arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoArguments {
    /// The tool needs no arguments: `{}`.
    IsObject,
    /// The arguments were cut off before they began.
    IsCut,
}

impl AnswerBuilder {
    pub fn new(wire: Wire, tools: &[ToolDescription]) -> AnswerBuilder {
        AnswerBuilder::with_names(wire, ToolNames::of(tools))
    }

    /// Forgets the answer so far.
    pub fn restart(&mut self) {
        *self = AnswerBuilder::with_names(self.wire, std::mem::take(&mut self.names));
    }

    pub fn wire(&self) -> Wire {
        self.wire
    }

    fn with_names(wire: Wire, names: ToolNames) -> AnswerBuilder {
        AnswerBuilder {
            wire,
            names,
            events: VecDeque::new(),
            calls: Vec::new(),
            started_count: 0,
            text_bytes: 0,
            answer_bytes: 0,
            usage: None,
            is_finished: false,
        }
    }

    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    pub fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub fn text(&mut self, text: &str) -> Result<(), ModelFault> {
        if !text.is_empty() {
            self.count(text.len())?;
            self.text_bytes += text.len();
            self.events.push_back(ModelEvent::Text(text.to_owned()));
        }
        Ok(())
    }

    pub fn reasoning(&mut self, text: &str) -> Result<(), ModelFault> {
        if !text.is_empty() {
            self.count(text.len())?;
            self.events.push_back(ModelEvent::Reasoning(text.to_owned()));
        }
        Ok(())
    }

    /// Emits data that the wire requires back.
    pub fn block(&mut self, value: Value) -> Result<(), ModelFault> {
        self.count(value.to_string().len())?;
        let (wire, text_bytes, call_count) = (self.wire, self.text_bytes, self.started_count);
        let block = ReasoningBlock { wire, value, text_bytes, call_count };
        self.events.push_back(ModelEvent::Block(block));
        Ok(())
    }

    /// Updates the token counts, and emits them if they changed.
    pub fn usage(&mut self, usage: Usage) {
        if self.usage != Some(usage) {
            self.usage = Some(usage);
            self.events.push_back(ModelEvent::Usage(usage));
        }
    }

    pub fn open_call(&mut self) -> Result<CallNumber, ModelFault> {
        let limit = limits::MODEL_CALLS_MAX;
        if self.calls.len() == limit {
            return Err(ModelFault::TooLong { what: "calls", limit });
        }
        self.calls.push(CallBuilder::default());
        Ok(CallNumber(self.calls.len() - 1))
    }

    /// Sets the id of a call. Only the first id counts, and only if the call has not started
    /// without one.
    pub fn identify(&mut self, CallNumber(at): CallNumber, id: &str) -> Result<(), ModelFault> {
        check_name(id)?;
        let call = &mut self.calls[at];
        if call.id.is_none() && call.index.is_none() && !id.is_empty() {
            call.id = Some(id.to_owned());
        }
        self.start_if_known(at);
        Ok(())
    }

    /// Sets the name of a call. Only the first name counts; a wire that repeats it does not extend
    /// it.
    pub fn name(&mut self, CallNumber(at): CallNumber, name: &str) -> Result<(), ModelFault> {
        check_name(name)?;
        let call = &mut self.calls[at];
        if call.name.is_empty() {
            call.name.push_str(name);
        }
        self.start_if_known(at);
        Ok(())
    }

    pub fn id_of(&self, CallNumber(at): CallNumber) -> Option<&str> {
        self.calls[at].id.as_deref()
    }

    pub fn name_of(&self, CallNumber(at): CallNumber) -> &str {
        &self.calls[at].name
    }

    /// Sets the data that must go back with the call.
    pub fn extra(&mut self, CallNumber(at): CallNumber, extra: Value) -> Result<(), ModelFault> {
        self.count(extra.to_string().len())?;
        self.calls[at].extra = Some(extra);
        Ok(())
    }

    /// Adds arguments.
    pub fn arguments(&mut self, number: CallNumber, piece: &str) -> Result<(), ModelFault> {
        if piece.is_empty() {
            return Ok(());
        }
        let CallNumber(at) = number;
        if self.calls[at].is_complete {
            return match piece.trim_ascii().is_empty() {
                true => Ok(()),
                false => {
                    Err(ModelFault::Malformed("adds to arguments that were complete".to_owned()))
                }
            };
        }
        self.count(piece.len())?;
        let call = &mut self.calls[at];
        call.arguments_bytes += piece.len();
        let limit = limits::MODEL_ARGUMENTS_BYTES_MAX;
        if call.arguments_bytes > limit {
            return Err(ModelFault::TooLong { what: "arguments", limit });
        }
        call.outline.read(piece);
        call.early.push_str(piece);
        if !call.name.is_empty() {
            self.start(at);
            self.emit_early(at);
        }
        Ok(())
    }

    pub fn arguments_bytes(&self, CallNumber(at): CallNumber) -> usize {
        self.calls[at].arguments_bytes
    }

    /// True if the arguments so far are an object to which nothing can be added. More may still
    /// come.
    pub fn has_whole_object(&self, CallNumber(at): CallNumber) -> bool {
        self.calls[at].outline.is_whole()
    }

    pub fn has_arguments(&self, CallNumber(at): CallNumber) -> bool {
        !self.calls[at].outline.is_blank()
    }

    pub fn is_complete(&self, CallNumber(at): CallNumber) -> bool {
        self.calls[at].is_complete
    }

    /// Completes a call; a second time it does nothing.
    pub fn complete(&mut self, number: CallNumber, empty: NoArguments) -> Result<(), ModelFault> {
        let CallNumber(at) = number;
        let call = &mut self.calls[at];
        if call.is_complete {
            return Ok(());
        }
        if call.name.is_empty() {
            call.is_complete = true;
            let is_nothing = call.outline.is_blank() && call.id.is_none();
            return match is_nothing || empty == NoArguments::IsCut {
                true => Ok(()), // The call was never emitted.
                false => Err(ModelFault::Malformed("calls a tool without its name".to_owned())),
            };
        }
        if call.outline.is_blank() && empty == NoArguments::IsObject {
            self.arguments(number, "{}")?;
        }
        let index = self.start(at);
        let call = &mut self.calls[at];
        call.is_complete = true;
        let extra = call.extra.take();
        self.events.push_back(ModelEvent::CallCompleted { index, extra });
        Ok(())
    }

    pub fn complete_all(&mut self, empty: NoArguments) -> Result<(), ModelFault> {
        (0..self.calls.len()).try_for_each(|at| self.complete(CallNumber(at), empty))
    }

    /// Completes every call whose arguments are a whole object, because another call begins.
    pub fn complete_whole_ones(&mut self) -> Result<(), ModelFault> {
        let is_whole = |call: &CallBuilder| call.index.is_some() && call.outline.is_whole();
        let whole: Vec<usize> =
            (0..self.calls.len()).filter(|at| is_whole(&self.calls[*at])).collect();
        whole.into_iter().try_for_each(|at| self.complete(CallNumber(at), NoArguments::IsCut))
    }

    /// Ends the answer. Not every server tells `Stop` and `ToolCalls` apart, so the presence of
    /// calls decides between the two.
    pub fn finish(&mut self, reason: FinishReason) -> Result<(), ModelFault> {
        if self.is_finished {
            return Ok(());
        }
        self.complete_all(NoArguments::IsCut)?;
        let reason = match reason {
            FinishReason::Stop | FinishReason::ToolCalls if self.started_count > 0 => {
                FinishReason::ToolCalls
            }
            FinishReason::ToolCalls => FinishReason::Stop,
            other => other,
        };
        self.is_finished = true;
        self.events.push_back(ModelEvent::Finished(reason));
        Ok(())
    }

    /// Adds to the size of the answer, and checks its limit.
    pub fn count(&mut self, bytes: usize) -> Result<(), ModelFault> {
        let limit = limits::MODEL_ANSWER_BYTES_MAX;
        self.answer_bytes = self.answer_bytes.saturating_add(bytes);
        match self.answer_bytes <= limit {
            true => Ok(()),
            false => Err(ModelFault::TooLong { what: "answer", limit }),
        }
    }

    /// Starts a call whose id and name are known. Once it has arguments, it starts without an id.
    fn start_if_known(&mut self, at: usize) {
        let call = &self.calls[at];
        if !call.name.is_empty() && (call.id.is_some() || !call.early.is_empty()) {
            self.start(at);
            self.emit_early(at);
        }
    }

    fn start(&mut self, at: usize) -> u32 {
        let call = &mut self.calls[at];
        if let Some(index) = call.index {
            return index;
        }
        let index = self.started_count as u32;
        self.started_count += 1;
        call.index = Some(index);
        let name = self.names.tool_name(&call.name).to_owned();
        self.events.push_back(ModelEvent::CallStarted { index, id: call.id.clone(), name });
        index
    }

    fn emit_early(&mut self, at: usize) {
        let call = &mut self.calls[at];
        let index = call.index.expect("it is started before its arguments are told");
        if !call.early.is_empty() {
            let piece = std::mem::take(&mut call.early);
            self.events.push_back(ModelEvent::CallArguments { index, piece });
        }
    }
}

fn check_name(name: &str) -> Result<(), ModelFault> {
    let limit = limits::MODEL_NAME_BYTES_MAX;
    match name.len() <= limit {
        true => Ok(()),
        false => Err(ModelFault::TooLong { what: "name", limit }),
    }
}
