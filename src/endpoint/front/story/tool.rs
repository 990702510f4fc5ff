//! Translates the execution of any tool to a message with one step and one call.

use std::sync::Arc;

use super::{Story, Tell};
use crate::agent::{Arguments, Part};
use crate::endpoint::front::call::Call;
use crate::endpoint::front::op::CallEnd;
use crate::endpoint::front::{Names, Source};
use crate::stream::{Kind, Outcome};
use crate::wire::events::{self, Chunk};

impl Story {
    /// Takes a chunk: a piece of the call's output, or a part.
    pub(super) fn chunk(&mut self, chunk: &Chunk<'_>, names: &Names, tell: &mut Tell<'_>) {
        if self.source == Source::Agent {
            // Writers of this log write parts. Anything else means nothing to a client.
            if let Ok(part) = Part::parse(chunk.data) {
                self.part(&part, tell);
            }
            return;
        }
        self.time_us = chunk.timestamp_us;
        self.tool_call(names, tell);
        if self.ending.is_none() {
            let kind: Kind = chunk.kind.parse().unwrap_or_default();
            self.output(0, chunk.data, kind, chunk.offset, tell);
        }
    }

    /// Ensures that the one call is open.
    pub(super) fn tool_call(&mut self, names: &Names, tell: &mut Tell<'_>) {
        if self.ending.is_some() || !self.calls.is_empty() {
            return;
        }
        self.enter(1, tell);
        let id: Arc<str> = names.execution.as_str().into();
        let mut call = Call::new(&id, &names.tool.as_str().into());
        call.execution = Some(names.execution.clone());
        self.calls.push(call);
        let arguments = Arguments::Valid(names.arguments.clone());
        let is_known = names.arguments.is_object();
        self.ready(0, None, is_known.then_some(&arguments), tell);
    }

    pub(super) fn tool_end(
        &mut self,
        state: &str,
        end: &events::End<'_>,
        names: &Names,
        tell: &mut Tell<'_>,
    ) {
        self.tool_call(names, tell);
        let outcomes = [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut];
        let outcome = outcomes.into_iter().find(|outcome| outcome.name() == state);
        self.end_output(0, tell);
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
        self.close_call(0, Some(said), tell);
        self.calls.clear();
    }
}
