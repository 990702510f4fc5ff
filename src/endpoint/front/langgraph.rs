//! The agent streaming protocol of LangChain and LangGraph: events with a method and a number.
//!
//! The number of an event encodes the run within its thread, the part it came from, and a count
//! within that part. A client that resumes with `since` therefore continues after exactly that
//! event, even if it now follows other channels. All numbers are exact integers in JavaScript.
//!
//! The turn of a step is one message. Its blocks do not interleave, so what the model writes in
//! parallel is sent sequentially ([`blocks`]). A turn that broke off is ended by the end of the
//! run, which has the reason. Clients wait only for the ends `completed` and `failed`, so a
//! cancelled run counts as failed.
//!
//! | `custom` | payload |
//! |---|---|
//! | `progress` | `{toolCallId?, progress, total?, percentage?, message?, …}` |
//! | `gap` | `{toolCallId?, fromSeq, toSeq, chunkCount, byteCount, reason}` |
//! | `detached` | `{reason, resumeFrom}`: the stream ends, the run does not |

mod blocks;

use std::sync::Arc;

use super::call::FrontCall;
use super::json::{Object, object};
use super::numbers::{EVENT_BITS, Numbers};
use super::op::{CallEnd, Ending, Input, Op, RunOutcome, StepEnd};
use super::{Channels, FrontItem, FrontNames, Since, Spelling};
use crate::agent::Usage;
use blocks::Blocks;

/// Number of bits that count within a run. They suffice for more parts than a day has milliseconds.
const RUN_BITS: u32 = 40;
/// Number of runs in a thread before their count starts again at 0.
const RUNS: u32 = 1 << (53 - RUN_BITS);
/// Number of events that one part can have. Events of a reopened stream are numbered after them,
/// within the last part.
const EVENTS_OF_PART: u64 = 1 << (EVENT_BITS - 1);

/// Returns the part that the event of this number came from.
pub(super) fn part_of(event: u64) -> u64 {
    (event % (1 << RUN_BITS)) >> EVENT_BITS
}

/// The writer of this format; see the module's text.
#[derive(Debug)]
pub(super) struct LangGraph {
    spelling: Spelling,
    channels: Channels,
    /// The number at which the events of this run start.
    base: u64,
    numbers: Numbers,
    /// The open message.
    message: Option<Blocks>,
    /// The calls for which the client was told that the tool has started.
    started: Vec<Arc<str>>,
}

impl LangGraph {
    pub fn new(spelling: Spelling) -> LangGraph {
        LangGraph {
            spelling,
            channels: Channels::default(),
            base: 0,
            numbers: Numbers::default(),
            message: None,
            started: Vec::new(),
        }
    }

    pub fn set_channels(&mut self, channels: Channels) {
        self.channels = channels;
    }

    pub fn set_run(&mut self, ordinal: u32) {
        self.base = u64::from(ordinal % RUNS) << RUN_BITS;
    }

    /// Sets the last event that the client has. A number of another run has no effect. That
    /// includes numbers from a server that remembered more runs of the thread.
    pub fn set_since(&mut self, since: u64) -> Option<Since> {
        let event = since.checked_sub(self.base);
        self.numbers.since = event.filter(|event| *event < 1 << RUN_BITS);
        let is_reopened = since % (1 << EVENT_BITS) >= EVENTS_OF_PART;
        self.numbers.since.map(|event| Since { part: part_of(event), is_reopened })
    }

    /// Sets the item from which the next events come.
    pub fn begin(&mut self, item: FrontItem<'_>) {
        self.numbers.begin(item);
    }

    /// Prepares the writer for a client that has nothing.
    pub fn reset(&mut self) {
        (self.message, self.started) = (None, Vec::new());
        self.numbers.next |= EVENTS_OF_PART;
    }

    /// Prepares the writer for a client that has everything written so far.
    pub fn go_on(&mut self) {
        let Numbers { since, next } = &mut self.numbers;
        *since = (*since).max(next.checked_sub(1));
    }

    pub fn kept_bytes(&self) -> usize {
        self.message.as_ref().map_or(0, Blocks::kept_bytes)
    }

    pub fn write(&mut self, op: &Op<'_>, names: &FrontNames, time_us: u64, out: &mut Vec<u8>) {
        let LangGraph { spelling, channels, base, numbers, message, started } = self;
        let (style, base) = (Style(*spelling), *base);
        let mut events = EventWriter { style, channels, base, numbers, names, time_us, out };
        match op {
            Op::Start => events.lifecycle("started", None),
            Op::StepStart { number, model } => {
                let id = format!("{}-{number}", names.message_id);
                *message = Some(Blocks::new(id, (*model).to_owned()));
            }
            Op::Open(block) => each(message, |blocks| blocks.open(*block, &mut events)),
            Op::Delta { text, .. } => each(message, |blocks| blocks.prose(text, &mut events)),
            Op::Shut(_) => each(message, |blocks| blocks.shut(&mut events)),
            Op::CallOpen { call, .. } => each(message, |blocks| blocks.call(call, &mut events)),
            Op::CallArguments { call, text } => {
                each(message, |blocks| blocks.arguments(call, text, &mut events));
            }
            Op::CallReady { call, input, .. } => {
                each(message, |blocks| blocks.ready(call, input, &mut events));
                if !matches!(input, Input::Invalid { .. }) {
                    started.push(Arc::clone(&call.id));
                    events.tool_started(call, Some(input));
                }
            }
            Op::Output { call, output } => events.tool("tool-output-delta", call, |data, _| {
                data.text("delta", output.text);
            }),
            Op::Progress { call, progress } => events.custom("progress", *call, |payload| {
                progress.write(payload);
            }),
            Op::Gap { call, gap } => events.custom("gap", *call, |payload| gap.write(payload)),
            Op::CallEnd { call, end } => {
                match started.iter().position(|id| *id == call.id) {
                    Some(at) => drop(started.swap_remove(at)),
                    None => events.tool_started(call, None), // Its arguments were invalid.
                }
                events.tool_end(call, end);
            }
            Op::StepEnd(end) => {
                if !end.is_broken {
                    finish(message, end, &mut events);
                }
            }
            Op::End(ending) => end_of_run(message, ending, &mut events),
            Op::Detached { reason, resume_from, .. } => {
                events.custom("detached", None, |payload| {
                    payload.text("reason", reason);
                    payload.number("resumeFrom", *resume_from);
                })
            }
            Op::Close => {}
        }
    }
}

/// Acts on the open message, which exists as long as a step is open.
fn each(message: &mut Option<Blocks>, act: impl FnOnce(&mut Blocks)) {
    if let Some(blocks) = message {
        act(blocks);
    }
}

fn finish(message: &mut Option<Blocks>, end: &StepEnd<'_>, events: &mut EventWriter<'_>) {
    let Some(blocks) = message.take() else { return };
    if blocks.has_begun() {
        events.message("message-finish", |data, style| {
            if let Some(usage) = &end.usage {
                data.object("usage", |data| write_usage(usage, style, data));
            }
        });
    }
}

fn end_of_run(message: &mut Option<Blocks>, ending: &Ending, events: &mut EventWriter<'_>) {
    let (code, said) = match &ending.how {
        RunOutcome::Completed | RunOutcome::Limited => {
            finish(message, &StepEnd::default(), events);
            return events.lifecycle("completed", None);
        }
        RunOutcome::Cancelled => ("cancelled", "the run was cancelled"),
        RunOutcome::Failed { code, message } => (code.as_str(), message.as_str()),
        RunOutcome::Stopped { code, message } => (*code, *message),
    };
    if message.take().is_some_and(|blocks| blocks.has_begun()) {
        events.message("error", |data, _| {
            data.text("message", said);
            data.text("code", code);
        });
    }
    events.lifecycle("failed", Some(said));
}

fn write_usage(usage: &Usage, style: Style, out: &mut Object<'_>) {
    out.number(style.name("input_tokens", "inputTokens"), usage.input_tokens);
    out.number(style.name("output_tokens", "outputTokens"), usage.output_tokens);
    let total = usage.input_tokens.saturating_add(usage.output_tokens);
    out.number(style.name("total_tokens", "totalTokens"), total);
    if let Some(cached) = usage.cached_input_tokens {
        let name = style.name("input_token_details", "inputTokenDetails");
        out.object(name, |out| out.number(style.name("cache_read", "cacheRead"), cached));
    }
    if let Some(reasoning) = usage.reasoning_tokens {
        let name = style.name("output_token_details", "outputTokenDetails");
        out.object(name, |out| out.number("reasoning", reasoning));
    }
}

/// The spelling of names that consist of several words.
#[derive(Clone, Copy)]
struct Style(Spelling);

impl Style {
    fn name(self, snake: &'static str, camel: &'static str) -> &'static str {
        match self.0 {
            Spelling::Snake => snake,
            Spelling::Camel => camel,
        }
    }
}

/// Writes and numbers events.
struct EventWriter<'a> {
    style: Style,
    channels: &'a Channels,
    base: u64,
    numbers: &'a mut Numbers,
    names: &'a FrontNames,
    time_us: u64,
    out: &'a mut Vec<u8>,
}

impl EventWriter<'_> {
    fn event(
        &mut self,
        method: &str,
        custom: Option<&str>,
        fill: impl FnOnce(&mut Object<'_>, Style),
    ) {
        let Some(seq) = self.numbers.draw().filter(|_| self.channels.has(method, custom)) else {
            return;
        };
        let (style, seq) = (self.style, self.base + seq);
        let (execution, time_ms) = (&self.names.execution, self.time_us / 1_000);
        let id = format!("{execution}:{seq}"); // Ours, whatever the client's run id is.
        self.out.extend_from_slice(b"id: ");
        self.out.extend_from_slice(id.as_bytes());
        self.out.extend_from_slice(b"\nevent: ");
        self.out.extend_from_slice(method.as_bytes());
        self.out.extend_from_slice(b"\ndata: ");
        object(self.out, |event| {
            event.text("type", "event");
            event.text(style.name("event_id", "eventId"), &id);
            event.number("seq", seq);
            event.text("method", method);
            event.object("params", |params| {
                params.name("namespace").extend_from_slice(b"[]");
                params.number("timestamp", time_ms);
                params.object("data", |data| fill(data, style));
            });
        });
        self.out.extend_from_slice(b"\n\n");
    }

    fn lifecycle(&mut self, event: &str, error: Option<&str>) {
        let names = self.names;
        self.event("lifecycle", None, |data, style| {
            data.text("event", event);
            data.text(style.name("graph_name", "graphName"), &names.tool);
            data.text_if("error", error);
        });
    }

    fn message(&mut self, event: &str, fill: impl FnOnce(&mut Object<'_>, Style)) {
        self.event("messages", None, |data, style| {
            data.text("event", event);
            fill(data, style);
        });
    }

    fn tool(&mut self, event: &str, call: &FrontCall, fill: impl FnOnce(&mut Object<'_>, Style)) {
        self.event("tools", None, |data, style| {
            data.text("event", event);
            data.text(style.name("tool_call_id", "toolCallId"), &call.id);
            fill(data, style);
        });
    }

    fn tool_started(&mut self, call: &FrontCall, input: Option<&Input<'_>>) {
        self.tool("tool-started", call, |data, style| {
            data.text(style.name("tool_name", "toolName"), &call.name);
            match input {
                Some(Input::Valid(value)) => data.value("input", value),
                Some(Input::Cut(text)) => data.text("input", text),
                Some(Input::Invalid { .. } | Input::Unknown) | None => {}
            }
        });
    }

    fn tool_end(&mut self, call: &FrontCall, end: &CallEnd<'_>) {
        match end.problem() {
            None => self.tool("tool-finished", call, |data, _| data.text("output", end.output)),
            Some(problem) => self.tool("tool-error", call, |data, _| {
                data.text("message", &problem);
                data.text("code", end.outcome.name());
            }),
        }
    }

    fn custom(&mut self, name: &str, call: Option<&FrontCall>, fill: impl FnOnce(&mut Object<'_>)) {
        self.event("custom", Some(name), |data, _| {
            data.text("name", name);
            data.object("payload", |payload| {
                payload.text_if("toolCallId", call.map(|call| &*call.id));
                fill(payload);
            });
        });
    }
}
