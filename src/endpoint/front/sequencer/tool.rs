//! Translates the execution of any tool to a message with one step and one call.

use std::sync::Arc;

use super::{EmitOp, Sequencer};
use crate::agent::{Arguments, RunPart};
use crate::endpoint::front::call::FrontCall;
use crate::endpoint::front::op::CallEnd;
use crate::endpoint::front::{FrontNames, StreamSource};
use crate::stream::{Kind, Outcome};
use crate::wire::events::{self, ChunkEvent};

impl Sequencer {
    /// Takes a chunk: a piece of the call's output, or a part.
    pub(super) fn chunk(
        &mut self,
        chunk: &ChunkEvent<'_>,
        names: &FrontNames,
        emit: &mut EmitOp<'_>,
    ) {
        if self.source == StreamSource::Agent {
            // Writers of this log write parts. Anything else means nothing to a client.
            if let Ok(part) = RunPart::parse(chunk.data) {
                self.part(&part, emit);
            }
            return;
        }
        self.time_us = chunk.timestamp_us;
        self.tool_call(names, emit);
        if self.ending.is_none() {
            let kind: Kind = chunk.kind.parse().unwrap_or_default();
            self.output(0, chunk.data, kind, chunk.offset, emit);
        }
    }

    /// Ensures that the one call is open.
    pub(super) fn tool_call(&mut self, names: &FrontNames, emit: &mut EmitOp<'_>) {
        if self.ending.is_some() || !self.calls.is_empty() {
            return;
        }
        self.enter(1, emit);
        let id: Arc<str> = names.execution.as_str().into();
        let mut call = FrontCall::new(&id, &names.tool.as_str().into());
        call.execution = Some(names.execution.clone());
        self.calls.push(call);
        let arguments = Arguments::Valid(names.arguments.clone());
        let is_known = names.arguments.is_object();
        self.ready(0, None, is_known.then_some(&arguments), emit);
    }

    pub(super) fn tool_end(
        &mut self,
        state: &str,
        end: &events::EndEvent<'_>,
        names: &FrontNames,
        emit: &mut EmitOp<'_>,
    ) {
        self.tool_call(names, emit);
        let outcomes = [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut];
        let outcome = outcomes.into_iter().find(|outcome| outcome.name() == state);
        self.end_output(0, emit);
        let call = &self.calls[0];
        let (output, is_cut, output_bytes) = (call.output.clone(), call.is_cut, call.output_bytes);
        let said = CallEnd {
            outcome: outcome.unwrap_or(Outcome::Failed),
            output: &output,
            is_truncated: is_cut,
            output_bytes: Some(output_bytes),
            exit: end.exit,
            error: end.error,
            duration_us: None,
        };
        self.close_call(0, Some(said), emit);
        self.calls.clear();
    }
}
