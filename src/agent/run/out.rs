//! The output of a run: parts that fit into a chunk, in an order that is checked.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::agent::fit::{PartFitter, front_within};
use crate::agent::fold::Fold;
use crate::agent::hooks::Hooks;
use crate::agent::order::Order;
use crate::agent::part::{Body, Data, Final, Partial, RunPart};
use crate::agent::state::StepState;
use crate::base::{ExecutionId, Guarded};
use crate::limits;
use crate::stream::Kind;

/// Maximum size in bytes of the JSON of a delta or a piece of output, without its text.
const ENVELOPE_BYTES_MAX: usize = 640;

const _: () = assert!(2 * ENVELOPE_BYTES_MAX < limits::AGENT_PART_BYTES_MIN);

/// The parts of a run that wait to be taken, and the state that they fold into.
pub(super) struct Out {
    pub hooks: Guarded<Box<dyn Hooks + Send>>,
    pub fold: Fold,
    pub wall_us: u64,
    pub step_number: u32,
    /// Number of bytes of text, reasoning, arguments and output so far.
    pub streamed_bytes: u64,
    agent_id: Arc<str>,
    fitter: PartFitter,
    accumulates: bool,
    queue: VecDeque<RunPart>,
    order: Order,
}

/// A chunk of a tool's output, for [`Out::push_output`].
pub(super) struct OutputChunk<'a> {
    pub tool_call_id: &'a Arc<str>,
    pub execution: Option<ExecutionId>,
    pub output_seq: u64,
    pub offset: u64,
    pub kind: Kind,
    pub bytes: &'a [u8],
    pub more: bool,
}

impl Out {
    pub fn new(
        agent_id: &str,
        part_bytes_max: usize,
        accumulates: bool,
        hooks: Guarded<Box<dyn Hooks + Send>>,
    ) -> Out {
        Out {
            hooks,
            fold: Fold::default(),
            wall_us: 0,
            step_number: 0,
            streamed_bytes: 0,
            agent_id: agent_id.into(),
            fitter: PartFitter::new(part_bytes_max),
            accumulates,
            queue: VecDeque::new(),
            order: Order::default(),
        }
    }

    pub fn pop(&mut self) -> Option<RunPart> {
        self.queue.pop_front()
    }

    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Maximum size in bytes of a part's JSON. Texts are cut to it before a part is fitted.
    pub fn part_bytes_max(&self) -> usize {
        self.fitter.part_bytes_max()
    }

    /// Pushes a part, which is cut until it fits.
    pub fn push(&mut self, body: Body) {
        let part = self.fitted(body);
        self.fold.take(&part);
        self.enqueue(part);
    }

    pub fn push_partial(&mut self, partial: Partial) {
        self.push(Body::Partial(partial));
    }

    pub fn push_final(&mut self, last: Final) {
        self.push(Body::Final(last));
    }

    /// Pushes the end of a step. The fold has closed this step already.
    pub fn push_step(&mut self, last: Final, step: StepState) {
        let part = self.fitted(Body::Final(last));
        self.fold.add_step(step);
        self.enqueue(part);
    }

    /// Returns the next part, cut until it fits.
    pub fn fitted(&mut self, body: Body) -> RunPart {
        let mut part = self.part(body);
        self.fitter.fit(&mut part);
        part
    }

    fn part(&self, body: Body) -> RunPart {
        RunPart {
            seq: self.order.seq() + 1,
            agent_id: Arc::clone(&self.agent_id),
            step_number: self.step_number,
            timestamp_us: self.wall_us,
            body,
        }
    }

    fn enqueue(&mut self, part: RunPart) {
        if let Err(broken) = self.order.take(&part) {
            panic!("part {} ({}) breaks {broken}", part.seq, part.name());
        }
        self.hooks.after_part(&part);
        self.queue.push_back(part);
    }

    /// Pushes a part that fits as it is.
    fn push_short(&mut self, partial: Partial) {
        let part = self.part(Body::Partial(partial));
        self.fold.take(&part);
        self.enqueue(part);
    }

    /// Pushes text in as many deltas as necessary. `make` receives each delta and its offset in
    /// `text`.
    pub fn push_text(&mut self, text: String, make: impl Fn(String, u64) -> Partial) {
        self.streamed_bytes += text.len() as u64;
        let room = self.part_bytes_max() - ENVELOPE_BYTES_MAX;
        let (mut at, mut text) = (0, text);
        while !text.is_empty() {
            let rest = text.split_off(front_within(&text, room));
            let (delta, offset) = (std::mem::replace(&mut text, rest), at);
            at += delta.len() as u64;
            let mut partial = make(delta, offset);
            if self.accumulates {
                self.accumulate(&mut partial);
                self.push_partial(partial);
            } else {
                self.push_short(partial);
            }
        }
    }

    /// Adds all of the step's text so far, if it can fit.
    fn accumulate(&self, partial: &mut Partial) {
        let Partial::TextDelta { delta, accumulated_text, accumulated_truncated, .. } = partial
        else {
            return;
        };
        let before = self.fold.open_text();
        match before.len() + delta.len() <= self.part_bytes_max() {
            true => *accumulated_text = Some([before, delta].concat()),
            false => *accumulated_truncated = true,
        }
    }

    /// Pushes a chunk of a tool's output in as many parts as necessary.
    pub fn push_output(&mut self, chunk: &OutputChunk<'_>) {
        self.streamed_bytes += chunk.bytes.len() as u64;
        let room = self.part_bytes_max() - ENVELOPE_BYTES_MAX;
        let text = std::str::from_utf8(chunk.bytes).ok();
        let mut at = 0;
        loop {
            let rest = chunk.bytes.len() - at;
            let length = match text {
                Some(text) => front_within(&text[at..], room),
                None => rest.min(room / 4 * 3), // Four base64 characters for three bytes.
            };
            let data = match text {
                Some(text) => Data::Text(text[at..at + length].to_owned()),
                None => Data::Bytes(chunk.bytes[at..at + length].to_vec()),
            };
            self.push_short(Partial::ToolOutputChunk {
                tool_call_id: Arc::clone(chunk.tool_call_id),
                execution: chunk.execution,
                output_seq: chunk.output_seq,
                offset: chunk.offset + at as u64,
                kind: chunk.kind,
                data,
                more: chunk.more || length < rest,
            });
            at += length;
            if at == chunk.bytes.len() {
                return;
            }
        }
    }

    pub fn audit(&self) {
        let last = self.order.seq();
        let mut seq = last - self.queue.len() as u64;
        for part in &self.queue {
            seq += 1;
            assert!(part.seq == seq);
        }
        assert!(self.order.is_over() == self.fold.state().end.is_some());
        assert!(self.fold.state().steps.len() <= self.step_number as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Handle;

    #[test]
    fn what_a_delta_takes_beside_its_text_is_bounded() {
        let id: Arc<str> = "i".repeat(limits::AGENT_CALL_ID_BYTES_MAX).into();
        let slot = Handle { index: 0xFF_FFFF, generation: u32::MAX };
        let part = RunPart {
            seq: u64::MAX,
            agent_id: "a".repeat(limits::AGENT_ID_BYTES_MAX).into(),
            step_number: u32::MAX,
            timestamp_us: u64::MAX,
            body: Body::Partial(Partial::ToolOutputChunk {
                tool_call_id: id,
                execution: Some(ExecutionId { shard: 255, slot, nonce: u64::MAX }),
                output_seq: u64::MAX,
                offset: u64::MAX,
                kind: Kind::ToolArguments,
                data: Data::Bytes(Vec::new()),
                more: true,
            }),
        };
        let mut json = Vec::new();
        part.write_json(&mut json);
        assert!(json.len() <= ENVELOPE_BYTES_MAX, "{}", json.len());
    }
}
