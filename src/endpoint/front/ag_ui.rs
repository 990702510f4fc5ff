//! The events of the Agent-User Interaction protocol: server-sent events without names. Nothing
//! follows the last one, because the reader parses all data as JSON.
//!
//! The text of a step is one message, even if calls interrupt it. Thus the model's text and its
//! calls belong together. A tool's output is an activity, `{id}-output`: a list of pieces that only
//! grows, so no piece is sent twice. The result of the call is the output as the model receives it.
//!
//! This is version 1.0 of the protocol. A run that was stopped before it completed ends in
//! `RUN_FINISHED` with the outcome `cancelled`. A cancellation, a limit, a hook and the end of the
//! server stop a run. `metadata.streamdoor` of the event has the reason.
//!
//! Names without a prefix belong to the protocol:
//!
//! | `CUSTOM` | value |
//! |---|---|
//! | `streamdoor.execution` | `{execution, tool}`: the execution to cancel |
//! | `streamdoor.progress` | `{progress, total?, percentage?, message?, …}` of the run |
//! | `streamdoor.gap` | `{toolCallId?, fromSeq, toSeq, chunkCount, byteCount, reason}` |
//! | `streamdoor.tools_passed_over` | names of the page's tools, which the server does not call |

use std::sync::Arc;

use super::ai_sdk::write_usage;
use super::call::FrontCall;
use super::json::{Object, frame, object};
use super::op::{Block, CallEnd, Ending, Input, Op, Prose, RunOutcome};
use super::{FrontNames, FrontReader};
use crate::agent::Usage;
use crate::wire::json;

/// The version of the protocol that [`AgUi`] writes.
const PROTOCOL_VERSION: &str = "1.0";

/// The writer of this format; see the module's text.
#[derive(Debug, Default)]
pub(super) struct AgUi {
    /// The calls whose output has an activity already.
    active: Vec<Arc<str>>,
    /// True if the client may have activities from an earlier connection.
    is_returning: bool,
}

impl AgUi {
    pub fn set_reader(&mut self, reader: FrontReader) {
        self.is_returning = reader == FrontReader::Returning;
    }

    pub fn write(&mut self, op: &Op<'_>, names: &FrontNames, time_us: u64, out: &mut Vec<u8>) {
        let mut event = |name: &str, fill: &mut dyn FnMut(&mut Object<'_>)| {
            write_event(out, name, time_us, fill);
        };
        match op {
            Op::Start => {
                event("RUN_STARTED", &mut |event| {
                    run(names, event);
                    event.text("protocolVersion", PROTOCOL_VERSION);
                });
                event("CUSTOM", &mut |event| {
                    event.text("name", "streamdoor.execution");
                    event.object("value", |value| {
                        value.text("execution", &names.execution);
                        value.text("tool", &names.tool);
                    });
                });
            }
            Op::StepStart { number, .. } => {
                event("STEP_STARTED", &mut |event| step_name(*number, event));
            }
            Op::Open(block) => open(*block, names, &mut event),
            Op::Delta { block, text } => event(delta_event(*block), &mut |event| {
                message_id(*block, names, event);
                event.text("delta", text);
            }),
            Op::Shut(block) => shut(*block, names, &mut event),
            Op::CallOpen { call, step } => event("TOOL_CALL_START", &mut |event| {
                event.text("toolCallId", &call.id);
                event.text("toolCallName", &call.name);
                event.text("parentMessageId", &format!("{}-{step}", names.message_id));
            }),
            Op::CallArguments { call, text } => arguments(call, text, &mut event),
            Op::CallReady { call, input, is_sent } => {
                ready(call, input, *is_sent, &mut event);
            }
            Op::Output { call, output } => {
                self.activity(call, &mut event);
                patch(call, &mut event, "/pieces/-", &|out| json::write_string(out, output.text));
            }
            Op::Progress { call: Some(call), progress } => {
                self.activity(call, &mut event);
                let write = |out: &mut Vec<u8>| object(out, |value| progress.write(value));
                patch(call, &mut event, "/progress", &write);
            }
            Op::Progress { call: None, progress } => event("CUSTOM", &mut |event| {
                event.text("name", "streamdoor.progress");
                event.object("value", |value| progress.write(value));
            }),
            Op::Gap { call, gap } => event("CUSTOM", &mut |event| {
                event.text("name", "streamdoor.gap");
                event.object("value", |value| {
                    value.text_if("toolCallId", call.map(|call| &*call.id));
                    gap.write(value);
                });
            }),
            Op::CallEnd { call, end } => self.call_end(call, end, &mut event),
            Op::StepEnd(end) => event("STEP_FINISHED", &mut |event| step_name(end.number, event)),
            Op::End(ending) => end_of_run(ending, names, &mut event),
            Op::Detached { block, reason, .. } => {
                if let Some(block) = block {
                    shut(*block, names, &mut event);
                }
                error("detached", &["the stream ended early: ", reason], None, &mut event);
            }
            Op::Close => {}
        }
    }

    /// Ensures that the output of a call has an activity.
    fn activity(&mut self, call: &FrontCall, event: &mut WriteEvent<'_>) {
        if self.active.contains(&call.id) {
            return;
        }
        self.active.push(Arc::clone(&call.id));
        let is_returning = self.is_returning;
        event("ACTIVITY_SNAPSHOT", &mut |event| {
            activity_id(call, event);
            event.object("content", |content| {
                content.text("toolCallId", &call.id);
                content.text("toolName", &call.name);
                content.text_if("execution", call.execution.as_deref());
                content.name("pieces").extend_from_slice(b"[]");
            });
            // A client that has the activity keeps its content.
            event.flag("replace", !is_returning);
        });
    }

    fn call_end(&mut self, call: &FrontCall, end: &CallEnd<'_>, event: &mut WriteEvent<'_>) {
        if let Some(at) = self.active.iter().position(|id| *id == call.id) {
            self.active.swap_remove(at);
            let write = |out: &mut Vec<u8>| object(out, |value| end.write(value));
            patch(call, event, "/end", &write);
        }
        let problem = end.problem();
        event("TOOL_CALL_RESULT", &mut |event| {
            event.texts("messageId", &[&call.id, "-result"]);
            event.text("toolCallId", &call.id);
            // No field says whether the result is an error.
            match &problem {
                None => event.text("content", end.output),
                Some(problem) if end.output.is_empty() => event.text("content", problem),
                Some(problem) => event.texts("content", &[end.output, "\n", problem]),
            }
            event.text("role", "tool");
        });
    }
}

/// Writes the names of the page's own tools, which the server does not call.
pub(super) fn write_passed_over(tools: &[String], out: &mut Vec<u8>) {
    write_event(out, "CUSTOM", 0, &mut |event| {
        event.text("name", "streamdoor.tools_passed_over");
        event.value("value", &tools.into());
    });
}

/// A function that writes an event of this name, with fields added by its argument.
type WriteEvent<'e> = dyn FnMut(&str, &mut dyn FnMut(&mut Object<'_>)) + 'e;
/// A function that writes a value.
type Write<'w> = &'w dyn Fn(&mut Vec<u8>);

fn write_event(out: &mut Vec<u8>, name: &str, time_us: u64, fill: &mut dyn FnMut(&mut Object<'_>)) {
    frame(out, |event| {
        event.text("type", name);
        if time_us > 0 {
            event.number("timestamp", time_us / 1_000);
        }
        fill(event);
    });
}

fn run(names: &FrontNames, event: &mut Object<'_>) {
    event.text("threadId", &names.thread_id);
    event.text("runId", &names.run_id);
}

fn step_name(number: u32, event: &mut Object<'_>) {
    event.text("stepName", &format!("step-{number}"));
}

fn activity_id(call: &FrontCall, event: &mut Object<'_>) {
    event.texts("messageId", &[&call.id, "-output"]);
    event.text("activityType", "TOOL_OUTPUT");
}

fn message_id(block: Block, names: &FrontNames, event: &mut Object<'_>) {
    let message = &names.message_id;
    let Block { prose, step, offset } = block;
    match prose {
        Prose::Text => event.text("messageId", &format!("{message}-{step}")),
        Prose::Reasoning => {
            event.text("messageId", &format!("{message}-{step}-reasoning-{offset}"));
        }
    }
}

fn delta_event(block: Block) -> &'static str {
    match block.prose {
        Prose::Text => "TEXT_MESSAGE_CONTENT",
        Prose::Reasoning => "REASONING_MESSAGE_CONTENT",
    }
}

fn open(block: Block, names: &FrontNames, event: &mut WriteEvent<'_>) {
    let (start, role) = match block.prose {
        Prose::Text => ("TEXT_MESSAGE_START", "assistant"),
        Prose::Reasoning => {
            event("REASONING_START", &mut |event| message_id(block, names, event));
            ("REASONING_MESSAGE_START", "reasoning")
        }
    };
    event(start, &mut |event| {
        message_id(block, names, event);
        event.text("role", role);
    });
}

fn shut(block: Block, names: &FrontNames, event: &mut WriteEvent<'_>) {
    let ends: &[&str] = match block.prose {
        Prose::Text => &["TEXT_MESSAGE_END"],
        Prose::Reasoning => &["REASONING_MESSAGE_END", "REASONING_END"],
    };
    for end in ends {
        event(end, &mut |event| message_id(block, names, event));
    }
}

fn arguments(call: &FrontCall, text: &str, event: &mut WriteEvent<'_>) {
    if text.is_empty() {
        return;
    }
    event("TOOL_CALL_ARGS", &mut |event| {
        event.text("toolCallId", &call.id);
        event.text("delta", text);
    });
}

fn ready(call: &FrontCall, input: &Input<'_>, is_sent: bool, event: &mut WriteEvent<'_>) {
    if !is_sent {
        let text = match input {
            Input::Valid(value) => {
                let mut text = Vec::new();
                json::write_value(&mut text, value);
                String::from_utf8(text).expect("JSON is UTF-8")
            }
            Input::Cut(text) | Input::Invalid { text, .. } => (*text).to_owned(),
            Input::Unknown => "{}".to_owned(),
        };
        // The client may have a prefix of the arguments whose rest was lost. The prefix cannot be
        // taken back. If the full text begins with it, the rest is sent.
        if let Some(rest) = text.strip_prefix(&*call.arguments) {
            arguments(call, rest, event);
        }
    }
    event("TOOL_CALL_END", &mut |event| event.text("toolCallId", &call.id));
}

/// Changes an activity: adds a value at this path of it.
fn patch(call: &FrontCall, event: &mut WriteEvent<'_>, path: &str, write: Write<'_>) {
    event("ACTIVITY_DELTA", &mut |event| {
        activity_id(call, event);
        let out = event.name("patch");
        out.push(b'[');
        object(out, |change| {
            change.text("op", "add");
            change.text("path", path);
            write(change.name("value"));
        });
        out.push(b']');
    });
}

fn end_of_run(ending: &Ending, names: &FrontNames, event: &mut WriteEvent<'_>) {
    let usage = ending.usage.map(|usage| (usage, ending.model.as_str()));
    let step_count = ending.step_count.map(u64::from);
    let stopped_by = match &ending.how {
        RunOutcome::Failed { code, message } => return error(code, &[message], usage, event),
        RunOutcome::Completed => None,
        RunOutcome::Limited | RunOutcome::Cancelled => Some(None),
        RunOutcome::Stopped { message, .. } => Some(Some(*message)),
    };
    event("RUN_FINISHED", &mut |event| {
        run(names, event);
        match stopped_by {
            None => {
                event.object("result", |result| {
                    result.text("reason", &ending.reason);
                    result.number_if("stepCount", step_count);
                });
                event.object("outcome", |outcome| outcome.text("type", "success"));
            }
            // A run that was stopped has no result.
            Some(message) => {
                event.object("outcome", |outcome| outcome.text("type", "cancelled"));
                event.object("metadata", |metadata| {
                    metadata.object("streamdoor", |why| {
                        why.text("reason", &ending.reason);
                        why.text_if("message", message);
                        why.number_if("stepCount", step_count);
                    });
                });
            }
        }
        usage_list(usage, event);
    });
}

fn error(code: &str, message: &[&str], usage: Option<(Usage, &str)>, event: &mut WriteEvent<'_>) {
    event("RUN_ERROR", &mut |event| {
        event.texts("message", message);
        event.text("code", code);
        usage_list(usage, event);
    });
}

fn usage_list(usage: Option<(Usage, &str)>, event: &mut Object<'_>) {
    let Some((usage, model)) = usage else { return };
    let out = event.name("usage");
    out.push(b'[');
    object(out, |entry| {
        if !model.is_empty() {
            entry.text("model", model);
        }
        write_usage(&usage, entry);
    });
    out.push(b']');
}
