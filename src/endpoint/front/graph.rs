//! The runs of LangGraph's ordinary API: the events of its stream modes, and the state that a
//! client gets without a stream.
//!
//! A run is one graph of two nodes. The node `agent` adds a message of the model for each step, and
//! the node `tools` adds the result of each call. The state is the list of all messages, which
//! begins with those of the request. A message has the same id in each mode.
//!
//! | event | data | mode |
//! |---|---|---|
//! | `metadata` | `{run_id, thread_id}` | each |
//! | `values` | the state | `values` |
//! | `updates` | `{agent \| tools: {messages}}` | `updates` |
//! | `messages` | `[piece of a message, metadata]` | `messages-tuple` |
//! | `messages/metadata`, `messages/partial`, `messages/complete` | messages | `messages` |
//! | `tools` | `{event: on_tool_start, …}` | `tools` |
//! | `custom` | `{type: tool_output \| progress \| gap \| detached, …}` | `custom` |
//! | `error` | `{error, message}` | each |
//! | `end` | `{run_id, status}` | each |
//!
//! The id of an event is a number, as in the Responses API. It encodes the part that the event came
//! from, and a count within that part. Numbers do not depend on the modes. A client that goes on
//! behind a number is sent the events behind it, made from the whole log.
//!
//! The state and the messages as far as they have come are sent again and again. They are left out
//! if all of them together would be several times as long as the newest one.

mod spelled;
mod turn;

use serde_json::{Value, json};

use super::call::FrontCall;
use super::json::{Object, object};
use super::modes::{StreamMode, StreamModes};
use super::numbers::Numbers;
use super::op::{CallEnd, Ending, Input, Op, Prose, RunOutcome, StepEnd};
use super::{FrontItem, FrontNames};
use crate::limits;
use spelled::messages_of;
use turn::Turn;

/// The node of the model.
const AGENT: &str = "agent";
/// The node of the tools.
const TOOLS: &str = "tools";

/// The answer to a request about a run or a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GraphAnswer {
    /// The events of these modes.
    Events(StreamModes),
    /// The state at the end, as clients wait for it.
    Values,
    /// The state of the thread, with what belongs to it.
    State,
    /// The states of the thread. The server keeps the newest one.
    History,
}

/// The writer of this format; see the module's text.
#[derive(Debug)]
pub(super) struct Graph {
    answer: GraphAnswer,
    modes: StreamModes,
    numbers: Numbers,
    /// The state, once the stream has started.
    state: Option<State>,
    turn: Option<Turn>,
    /// Bytes of states that were written.
    values_bytes: usize,
    /// True if the client has the newest state.
    is_told: bool,
}

/// The state of a thread: its messages.
#[derive(Debug, Default)]
struct State {
    messages: Vec<Value>,
    /// Bytes of all texts in it.
    kept_bytes: usize,
    /// True if a message has less than it had in the log.
    is_cut: bool,
}

impl State {
    /// Adds a message. It takes the place of the one with its id.
    fn put(&mut self, message: Value) {
        match self.messages.iter_mut().rev().find(|other| other["id"] == message["id"]) {
            Some(other) => *other = message,
            None => self.messages.push(message),
        }
    }

    /// Counts bytes of a message. Returns how many of them are kept.
    fn room_for(&mut self, bytes: usize, so_far: usize, bytes_max: usize) -> usize {
        let of_all = limits::FRONT_RESPONSE_BYTES_MAX.saturating_sub(self.kept_bytes);
        let kept = bytes.min(bytes_max.saturating_sub(so_far)).min(of_all);
        self.is_cut |= kept < bytes;
        self.kept_bytes += kept;
        kept
    }
}

/// Returns true if a copy of this size is written, besides those that were. All copies together
/// then have at most 4 times the size of the newest one, and `free` bytes.
fn has_room_for(size: usize, written: &mut usize, free: usize) -> bool {
    let has_room = *written + size <= free + 4 * size;
    if has_room {
        *written += size;
    }
    has_room
}

impl Graph {
    pub fn new(answer: GraphAnswer) -> Graph {
        let modes = match answer {
            GraphAnswer::Events(modes) => modes,
            _ => StreamModes::default(),
        };
        let (numbers, state, turn) = (Numbers::default(), None, None);
        Graph { answer, modes, numbers, state, turn, values_bytes: 0, is_told: false }
    }

    pub fn set_since(&mut self, since: u64) {
        self.numbers.since = Some(since);
    }

    /// Sets the item from which the next events come.
    pub fn begin(&mut self, item: FrontItem<'_>) {
        self.numbers.begin(item);
    }

    /// Prepares the writer for a client that has nothing: what is open is opened again.
    pub fn reset(&mut self) {
        self.turn = None;
    }

    pub fn kept_bytes(&self) -> usize {
        let state_bytes = self.state.as_ref().map_or(0, |state| state.kept_bytes);
        state_bytes + self.turn.as_ref().map_or(0, Turn::kept_bytes)
    }

    /// Returns the headers that say where the run is. Clients put the paths behind their base URL,
    /// although a URL that begins with a slash would replace the base's path.
    pub fn headers(&self, names: &FrontNames) -> Vec<(&'static str, String)> {
        let run = spelled::path_of(names);
        let location = match self.answer {
            GraphAnswer::Events(modes) => {
                let mut location = format!("{run}/stream?stream_mode=");
                for (at, name) in modes.names().enumerate() {
                    location.push_str(if at > 0 { "," } else { "" });
                    location.push_str(name);
                }
                location
            }
            GraphAnswer::Values => format!("{run}/join"),
            GraphAnswer::State | GraphAnswer::History => return Vec::new(),
        };
        vec![("content-location", run), ("location", location)]
    }

    /// Returns the answer for a run that has not ended.
    pub fn document(&self, names: &FrontNames) -> Value {
        self.answer(names, true, &Value::Null)
    }

    pub fn write(&mut self, op: &Op<'_>, names: &FrontNames, out: &mut Vec<u8>) {
        let mut events = Events {
            is_written: matches!(self.answer, GraphAnswer::Events(_)),
            modes: self.modes,
            numbers: &mut self.numbers,
            names,
            step: self.turn.as_ref().map_or(0, |turn| turn.number),
            out,
        };
        if self.state.is_none() {
            let messages = messages_of(&names.execution, &names.arguments["messages"]);
            let kept_bytes = messages.iter().map(|message| message.to_string().len()).sum();
            self.state = Some(State { messages, kept_bytes, is_cut: false });
        }
        let state = self.state.as_mut().expect("it was just created");
        match op {
            Op::Start => {
                events.event(None, "metadata", |data| {
                    data.text("run_id", &names.execution);
                    data.text("thread_id", &names.thread_id);
                });
                self.is_told = false;
                self.tell_state(false, names, out);
            }
            Op::StepStart { number, model } => {
                self.turn = Some(Turn::new(names, *number, (*model).to_owned()));
            }
            Op::StepEnd(end) => self.step_end(end, names, out),
            Op::Open(_) | Op::Shut(_) | Op::Close => {}
            Op::Progress { call, progress } => events.custom("progress", *call, |data| {
                progress.write(data);
            }),
            Op::Gap { call, gap } => events.custom("gap", *call, |data| gap.write(data)),
            Op::End(ending) => self.end(ending, names, out),
            Op::Detached { reason, resume_from, .. } => {
                events.custom("detached", None, |data| {
                    data.text("reason", reason);
                    data.number("resumeFrom", *resume_from);
                });
                let text = format!("the stream ends before the run does: {reason}");
                let error = json!({ "error": "detached", "message": text });
                self.put_document(names, true, &error, out);
            }
            op => {
                let Some(turn) = &mut self.turn else { return };
                let was_added = turn.is_added();
                turn.write(op, state, &mut events);
                if turn.is_added() && !was_added {
                    self.is_told = false;
                    self.tell_state(false, names, out);
                }
            }
        }
    }

    /// Writes the state, if the client does not have it. It may be too long, unless it `is_last`.
    fn tell_state(&mut self, is_last: bool, names: &FrontNames, out: &mut Vec<u8>) {
        let number = self.numbers.draw();
        let is_wanted = matches!(self.answer, GraphAnswer::Events(modes)
            if modes.has(StreamMode::Values));
        if !is_wanted || self.is_told {
            return;
        }
        let state = self.state.as_ref().expect("it was created");
        let size = state.kept_bytes + 200 * state.messages.len();
        let has_room = has_room_for(size, &mut self.values_bytes, limits::FRONT_STATES_BYTES_FREE);
        if !has_room && !is_last {
            return;
        }
        self.is_told = true;
        // A client that goes on behind a number has what it was told up to there.
        if let Some(number) = number {
            begin_event(number, "values", out);
            crate::wire::write_json(out, &self.values(names));
            out.extend_from_slice(b"\n\n");
        }
    }

    fn step_end(&mut self, end: &StepEnd<'_>, names: &FrontNames, out: &mut Vec<u8>) {
        let (Some(mut turn), Some(state)) = (self.turn.take(), self.state.as_mut()) else { return };
        let mut events = Events {
            is_written: matches!(self.answer, GraphAnswer::Events(_)),
            modes: self.modes,
            numbers: &mut self.numbers,
            names,
            step: turn.number,
            out,
        };
        turn.end(end, state, &mut events);
        self.is_told = false;
        self.tell_state(false, names, out);
    }

    fn end(&mut self, ending: &Ending, names: &FrontNames, out: &mut Vec<u8>) {
        self.step_end(&StepEnd::default(), names, out);
        self.tell_state(true, names, out);
        let (status, error) = match &ending.how {
            RunOutcome::Completed | RunOutcome::Limited => ("success", None),
            // The name that LangGraph's server has for it.
            RunOutcome::Cancelled => {
                ("interrupted", Some(("UserInterrupt", "the run was cancelled")))
            }
            RunOutcome::Failed { code, message } => ("error", Some((&**code, &**message))),
            RunOutcome::Stopped { code, message } => ("timeout", Some((*code, *message))),
        };
        let is_written = matches!(self.answer, GraphAnswer::Events(_));
        let Graph { numbers, modes, .. } = self;
        let mut events = Events { is_written, modes: *modes, numbers, names, step: 0, out };
        if let Some((code, message)) = error {
            events.event(None, "error", |data| {
                data.text("error", code);
                data.text("message", message);
            });
        }
        events.event(None, "end", |data| {
            data.text("run_id", &names.execution);
            data.text("status", status);
        });
        let error = error.map(|(code, message)| json!({ "error": code, "message": message }));
        self.put_document(names, false, &error.unwrap_or_default(), out);
    }

    fn put_document(&self, names: &FrontNames, is_busy: bool, error: &Value, out: &mut Vec<u8>) {
        if !matches!(self.answer, GraphAnswer::Events(_)) {
            crate::wire::write_json(out, &self.answer(names, is_busy, error));
            out.push(b'\n');
        }
    }

    /// Returns the answer without a stream. `error` is null for a run that did not fail.
    fn answer(&self, names: &FrontNames, is_busy: bool, error: &Value) -> Value {
        let state = || {
            let next: &[&str] = if is_busy { &[AGENT] } else { &[] };
            spelled::thread_state(names, self.values(names), next, error)
        };
        match self.answer {
            GraphAnswer::Events(_) => Value::Null,
            GraphAnswer::Values if error.is_null() => self.values(names),
            GraphAnswer::Values => json!({ "__error__": error }),
            GraphAnswer::State => state(),
            GraphAnswer::History => json!([state()]),
        }
    }

    fn values(&self, names: &FrontNames) -> Value {
        let mut values = match &self.state {
            Some(state) => json!({ "messages": state.messages }),
            None => json!({
                "messages": messages_of(&names.execution, &names.arguments["messages"]),
            }),
        };
        if self.state.as_ref().is_some_and(|state| state.is_cut) {
            values["is_cut"] = true.into(); // Some texts are too long for a state.
        }
        values
    }
}

fn begin_event(number: u64, name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("id: {number}\nevent: {name}\ndata: ").as_bytes());
}

/// Writes and numbers events.
struct Events<'a> {
    is_written: bool,
    modes: StreamModes,
    numbers: &'a mut Numbers,
    names: &'a FrontNames,
    step: u32,
    out: &'a mut Vec<u8>,
}

impl Events<'_> {
    /// Draws the number of an event. `None` if it is not written.
    fn draw(&mut self, mode: Option<StreamMode>) -> Option<u64> {
        let is_wanted = self.is_written && mode.is_none_or(|mode| self.modes.has(mode));
        self.numbers.draw().filter(|_| is_wanted)
    }

    /// Counts an event that is not written.
    fn skip(&mut self) {
        let _ = self.numbers.draw();
    }

    /// Writes an event whose data is an object.
    fn event(&mut self, mode: Option<StreamMode>, name: &str, fill: impl FnOnce(&mut Object<'_>)) {
        if let Some(number) = self.draw(mode) {
            begin_event(number, name, self.out);
            object(self.out, fill);
            self.out.extend_from_slice(b"\n\n");
        }
    }

    fn custom(&mut self, name: &str, call: Option<&FrontCall>, fill: impl FnOnce(&mut Object<'_>)) {
        self.event(Some(StreamMode::Custom), "custom", |data| {
            data.text("type", name);
            data.text_if("tool_call_id", call.map(|call| &*call.id));
            fill(data);
        });
    }

    fn tool(&mut self, event: &str, call: &FrontCall, fill: impl FnOnce(&mut Object<'_>)) {
        self.event(Some(StreamMode::Tools), "tools", |data| {
            data.text("event", event);
            data.text("toolCallId", &call.id);
            data.text("name", &call.name);
            fill(data);
        });
    }

    fn update(&mut self, node: &str, message: &Value) {
        self.event(Some(StreamMode::Updates), "updates", |data| {
            data.object(node, |update| update.value("messages", &json!([message])));
        });
    }

    /// Writes a piece of a message, or a whole one.
    fn piece(&mut self, node: &str, model: &str, fill: impl FnOnce(&mut Object<'_>)) {
        if let Some(number) = self.draw(Some(StreamMode::MessagesTuple)) {
            begin_event(number, "messages", self.out);
            self.out.push(b'[');
            object(self.out, fill);
            self.out.push(b',');
            let (names, step) = (self.names, self.step);
            object(self.out, |data| write_metadata((node, step, model), names, data));
            self.out.extend_from_slice(b"]\n\n");
        }
    }

    /// Writes the metadata of a message, before its first copy.
    fn message_metadata(&mut self, id: &str, node: &str, model: &str) {
        let (names, step) = (self.names, self.step);
        if let Some(number) = self.draw(Some(StreamMode::Messages)) {
            begin_event(number, "messages/metadata", self.out);
            self.out.push(b'{');
            crate::wire::json::write_string(self.out, id);
            self.out.push(b':');
            object(self.out, |data| {
                data.object("metadata", |data| write_metadata((node, step, model), names, data));
            });
            self.out.extend_from_slice(b"}\n\n");
        }
    }

    /// Writes a message as far as it has come, or the whole one.
    fn copy(&mut self, name: &str, message: impl FnOnce() -> Value) {
        if let Some(number) = self.draw(Some(StreamMode::Messages)) {
            begin_event(number, name, self.out);
            crate::wire::write_json(self.out, &json!([message()]));
            self.out.extend_from_slice(b"\n\n");
        }
    }
}

fn write_metadata(
    (node, step, model): (&str, u32, &str),
    names: &FrontNames,
    data: &mut Object<'_>,
) {
    data.value("tags", &json!([]));
    data.text("run_id", &names.execution);
    data.text("thread_id", &names.thread_id);
    data.text("langgraph_node", node);
    data.number("langgraph_step", u64::from(step));
    if !model.is_empty() {
        data.text("ls_model_name", model);
    }
}
