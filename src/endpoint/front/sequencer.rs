//! The state of a stream in a front end: items in, operations out. It knows what the client has,
//! and thus which operations may come next.
//!
//! Nothing is assumed: a stream may begin anywhere and lose anything. A part of a step that has not
//! begun begins the step. Unknown values are sent as soon as they become known.

mod agent;
mod tool;

use std::sync::Arc;

use super::call::FrontCall;
use super::op::{
    Block, CallEnd, Ending, GapOp, Input, Op, OutputOp, ProgressOp, Prose, RunOutcome, StepEnd,
};
use super::{FrontItem, FrontNames, FrontReader, StreamSource};
use crate::agent::Arguments;
use crate::stream::{Kind, Outcome};
use crate::wire::events::{self, EndState};

/// The receiver of operations, each with its time in µs since 1970, or 0.
pub(super) type EmitOp<'t> = dyn FnMut(&Op<'_>, u64) + 't;

/// The name of a call whose name was lost.
const NAME_UNKNOWN: &str = "unknown";

/// The state of a stream; see the module's text.
#[derive(Debug)]
pub(super) struct Sequencer {
    source: StreamSource,
    /// True if outputs are always kept, not only while priming.
    keeps_outputs: bool,
    is_priming: bool,
    has_started: bool,
    ending: Option<Ending>,
    step: Option<u32>,
    /// The open block of prose and, while priming, its text.
    block: Option<(Block, String)>,
    /// The calls of the step that have not ended.
    calls: Vec<FrontCall>,
    model: String,
    time_us: u64,
}

impl Sequencer {
    pub fn new(source: StreamSource, keeps_outputs: bool) -> Sequencer {
        Sequencer {
            source,
            keeps_outputs,
            is_priming: false,
            has_started: false,
            ending: None,
            step: None,
            block: None,
            calls: Vec::new(),
            model: String::new(),
            time_us: 0,
        }
    }

    /// Begins or ends priming. While priming, everything is kept that may have to be sent again.
    pub fn set_priming(&mut self, is_priming: bool) {
        self.is_priming = is_priming;
        if is_priming {
            return;
        }
        if let Some((_, text)) = &mut self.block {
            *text = String::new();
        }
        for call in &mut self.calls {
            call.input = None;
            if !self.keeps_outputs {
                call.output = String::new();
            }
        }
    }

    pub fn kept_bytes(&self) -> usize {
        let block_bytes = self.block.as_ref().map_or(0, |(_, text)| text.capacity());
        block_bytes + self.calls.iter().map(FrontCall::kept_bytes).sum::<usize>()
    }

    /// Takes the next item.
    pub fn take(&mut self, item: FrontItem<'_>, names: &FrontNames, emit: &mut EmitOp<'_>) {
        match item {
            FrontItem::Started(_) => {
                self.start(emit);
                if self.source == StreamSource::Tool {
                    self.tool_call(names, emit);
                }
            }
            FrontItem::Part(part) => self.part(part, emit),
            FrontItem::Chunk(chunk) => self.chunk(chunk, names, emit),
            FrontItem::Gap(gap) => self.gap(gap, names, emit),
            FrontItem::Progress(progress) => self.progress(progress, names, emit),
            FrontItem::End(end) => self.end_of_stream(end, names, emit),
        }
    }

    /// Opens again what is open, in a stream whose start was primed.
    pub fn reopen(&mut self, reader: FrontReader, emit: &mut EmitOp<'_>) {
        if !self.has_started {
            return; // The stream has no earlier items.
        }
        let is_new = reader == FrontReader::New;
        let time_us = self.time_us;
        emit(&Op::Start, time_us);
        if let Some(ending) = &self.ending {
            return emit(&Op::End(ending), time_us);
        }
        let Some(number) = self.step else { return };
        emit(&Op::StepStart { number, model: &self.model }, time_us);
        if let Some((block, text)) = &self.block {
            emit(&Op::Open(*block), time_us);
            if is_new && !text.is_empty() {
                emit(&Op::Delta { block: *block, text }, time_us);
            }
        }
        for call in self.calls.iter().filter(|call| call.is_open) {
            emit(&Op::CallOpen { call, step: number }, time_us);
            if is_new && !call.arguments.is_empty() {
                emit(&Op::CallArguments { call, text: &call.arguments }, time_us);
            }
            if call.is_ready {
                emit_ready(call, call.input.as_ref(), !is_new, time_us, emit);
            }
            if is_new && !call.output.is_empty() {
                let (text, kind) = (&*call.output, Kind::Output.name());
                let offset = call.output_bytes.saturating_sub(text.len() as u64);
                emit(&Op::Output { call, output: OutputOp { text, kind, offset } }, time_us);
            }
        }
    }

    fn start(&mut self, emit: &mut EmitOp<'_>) {
        if !self.has_started {
            self.has_started = true;
            emit(&Op::Start, self.time_us);
        }
    }

    /// Ensures that this step is open, and no other.
    fn enter(&mut self, number: u32, emit: &mut EmitOp<'_>) {
        self.start(emit);
        if self.step != Some(number) {
            self.leave(StepEnd::default(), emit); // If a step is open, its end was lost.
            self.step = Some(number);
            emit(&Op::StepStart { number, model: &self.model }, self.time_us);
        }
    }

    /// Closes the open step, and everything that is open in it.
    fn leave(&mut self, end: StepEnd<'_>, emit: &mut EmitOp<'_>) {
        self.shut(emit);
        for at in 0..self.calls.len() {
            // The end of this call was lost. Its outcome may still be known.
            self.close_call(at, None, emit);
        }
        self.calls.clear();
        if let Some(number) = self.step.take() {
            emit(&Op::StepEnd(StepEnd { number, ..end }), self.time_us);
        }
    }

    /// Takes more prose.
    fn prose(&mut self, prose: Prose, text: &str, offset: u64, emit: &mut EmitOp<'_>) {
        if text.is_empty() {
            return; // Some clients refuse empty text.
        }
        if self.block.as_ref().is_none_or(|(block, _)| block.prose != prose) {
            self.shut(emit);
            let block = Block { prose, step: self.step.unwrap_or_default(), offset };
            emit(&Op::Open(block), self.time_us);
            self.block = Some((block, String::new()));
        }
        let (block, kept) = self.block.as_mut().expect("a block is open");
        if self.is_priming {
            kept.push_str(text); // Not more than a ring holds.
        }
        emit(&Op::Delta { block: *block, text }, self.time_us);
    }

    fn shut(&mut self, emit: &mut EmitOp<'_>) {
        if let Some((block, _)) = self.block.take() {
            emit(&Op::Shut(block), self.time_us);
        }
    }

    /// Returns the index of the call with this id. An unknown call is added, but not opened.
    fn find(&mut self, id: &Arc<str>) -> usize {
        if let Some(at) = self.calls.iter().position(|call| call.id == *id) {
            return at;
        }
        let mut call = FrontCall::new(id, &NAME_UNKNOWN.into());
        call.is_whole = false; // Anything before was lost.
        self.calls.push(call);
        self.calls.len() - 1
    }

    /// Ensures that a call is open.
    fn open(&mut self, at: usize, name: Option<&str>, emit: &mut EmitOp<'_>) {
        let call = &mut self.calls[at];
        if !call.is_open {
            if let Some(name) = name {
                call.name = name.into();
            }
            call.is_open = true;
            let step = self.step.unwrap_or_default();
            emit(&Op::CallOpen { call: &self.calls[at], step }, self.time_us);
        }
    }

    /// Ensures that a call is open and that its arguments were sent.
    fn ready(
        &mut self,
        at: usize,
        name: Option<&str>,
        arguments: Option<&Arguments>,
        emit: &mut EmitOp<'_>,
    ) {
        self.open(at, name, emit);
        let call = &mut self.calls[at];
        if call.is_ready {
            return;
        }
        call.is_ready = true;
        emit_ready(call, arguments, false, self.time_us, emit);
        if self.is_priming {
            call.input = arguments.cloned();
        } else {
            call.arguments = String::new();
        }
    }

    /// Takes more output of a call.
    fn output(&mut self, at: usize, bytes: &[u8], kind: Kind, offset: u64, emit: &mut EmitOp<'_>) {
        self.ready(at, None, None, emit);
        let keeps = self.keeps_outputs || self.is_priming;
        let call = &mut self.calls[at];
        let text = call.take_output(bytes, kind, offset);
        if text.is_empty() {
            return;
        }
        if keeps {
            call.keep(&text);
        }
        let output = OutputOp { text: &text, kind: kind.name(), offset };
        emit(&Op::Output { call, output }, self.time_us);
    }

    /// Ends the output of a call. Bytes of an incomplete character are replaced.
    fn end_output(&mut self, at: usize, emit: &mut EmitOp<'_>) {
        let call = &mut self.calls[at];
        let (text, kind) = call.end_output();
        if !text.is_empty() {
            if self.keeps_outputs || self.is_priming {
                call.keep(&text);
            }
            let output = OutputOp { text: &text, kind: kind.name(), offset: call.output_bytes };
            emit(&Op::Output { call, output }, self.time_us);
        }
    }

    /// Ends a call; `end` is `None` if its end was lost.
    fn close_call(&mut self, at: usize, end: Option<CallEnd<'_>>, emit: &mut EmitOp<'_>) {
        self.end_output(at, emit);
        let time_us = self.time_us;
        let call = &mut self.calls[at];
        if !call.is_open {
            return; // The client does not know it.
        }
        if !call.is_ready {
            call.is_ready = true;
            emit_ready(call, None, false, time_us, emit);
        }
        let lost = CallEnd {
            outcome: Outcome::Failed,
            output: &call.output,
            is_truncated: true,
            output_bytes: None,
            exit: None,
            error: Some("the end of the call was lost"),
            duration_us: None,
        };
        emit(&Op::CallEnd { call, end: end.unwrap_or(lost) }, time_us);
    }

    /// Opens what must be open before an item that concerns the whole stream. Returns false if the
    /// run has ended, so that the item can no longer be sent.
    fn opens_note(&mut self, names: &FrontNames, emit: &mut EmitOp<'_>) -> bool {
        self.start(emit);
        if self.source == StreamSource::Tool {
            self.tool_call(names, emit);
        }
        self.ending.is_none()
    }

    /// Returns the only call of a tool's stream.
    fn own_call(&self) -> Option<&FrontCall> {
        match self.source {
            StreamSource::Agent => None,
            StreamSource::Tool => self.calls.first(),
        }
    }

    fn gap(&mut self, gap: &events::GapEvent<'_>, names: &FrontNames, emit: &mut EmitOp<'_>) {
        if !self.opens_note(names, emit) {
            return;
        }
        let call = self.own_call();
        let gap = GapOp {
            from_seq: gap.from_seq,
            to_seq: gap.to_seq,
            chunk_count: gap.chunk_count,
            byte_count: gap.byte_count,
            reason: gap.reason,
        };
        emit(&Op::Gap { call, gap }, self.time_us);
    }

    fn progress(
        &mut self,
        said: &events::ProgressEvent<'_>,
        names: &FrontNames,
        emit: &mut EmitOp<'_>,
    ) {
        if !self.opens_note(names, emit) {
            return;
        }
        let call = self.own_call();
        let context = said
            .context
            .map(|text| serde_json::from_str(text).unwrap_or_else(|_| text.to_owned().into()));
        let progress = ProgressOp {
            progress: said.progress,
            total: said.total,
            percentage: said.percentage,
            message: said.message,
            context,
        };
        emit(&Op::Progress { call, progress }, self.time_us);
    }

    fn end_of_stream(
        &mut self,
        end: &events::EndEvent<'_>,
        names: &FrontNames,
        emit: &mut EmitOp<'_>,
    ) {
        self.start(emit);
        if self.ending.is_none() {
            match end.state {
                // The run continues, and everything that is open stays open.
                EndState::Detached { reason, resume_from } => {
                    let block = self.block.as_ref().map(|(block, _)| *block);
                    emit(&Op::Detached { block, reason, resume_from }, self.time_us);
                }
                EndState::Ended(state) => {
                    if self.source == StreamSource::Tool {
                        self.tool_end(state, end, names, emit);
                    }
                    let is_broken = state != Outcome::Completed.name();
                    self.leave(StepEnd { is_broken, ..StepEnd::default() }, emit);
                    self.end(ending_of(state, end.error), emit);
                }
            }
        }
        emit(&Op::Close, self.time_us);
    }

    fn end(&mut self, mut ending: Ending, emit: &mut EmitOp<'_>) {
        ending.model.clone_from(&self.model);
        emit(&Op::End(&ending), self.time_us);
        self.ending = Some(ending);
    }
}

/// Returns the end of a run from the end of its execution, if the tool gave no details.
fn ending_of(state: &str, error: Option<&str>) -> Ending {
    let how = match state {
        "completed" => RunOutcome::Completed,
        "cancelled" => RunOutcome::Cancelled,
        "timed_out" => TIMED_OUT,
        _ => RunOutcome::Failed {
            code: "failed".to_owned(),
            message: error.unwrap_or("the tool has failed").to_owned(),
        },
    };
    let reason = state.to_owned();
    Ending { how, reason, usage: None, step_count: None, model: String::new() }
}

const TIMED_OUT: RunOutcome =
    RunOutcome::Stopped { code: "timed_out", message: "it took too long" };

/// Sends the arguments of a call. If they were too long for one part, they are joined from their
/// pieces.
fn emit_ready(
    call: &FrontCall,
    arguments: Option<&Arguments>,
    is_sent: bool,
    time_us: u64,
    emit: &mut EmitOp<'_>,
) {
    let is_sent = is_sent || call.is_whole && !call.arguments.is_empty();
    let whole;
    let input = match arguments {
        Some(Arguments::Valid(value)) => Input::Valid(value),
        Some(Arguments::Invalid { text, problem, .. }) => {
            let text = if is_sent { &call.arguments } else { text };
            Input::Invalid { text, problem }
        }
        Some(Arguments::Cut(text)) => {
            whole = call.whole_arguments();
            whole.as_ref().map_or(Input::Cut(text), Input::Valid)
        }
        None if call.arguments.is_empty() => Input::Unknown,
        None => {
            whole = call.whole_arguments();
            whole.as_ref().map_or(Input::Cut(&call.arguments), Input::Valid)
        }
    };
    emit(&Op::CallReady { call, input, is_sent }, time_us);
}
