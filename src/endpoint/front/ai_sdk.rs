//! The UI message stream, version 1, of Vercel's AI SDK: chunks as server-sent events without
//! names, and `[DONE]`.
//!
//! Old clients refuse unknown fields, and all clients refuse unknown chunks. Therefore only what
//! the first release of a generation reads is written. Further values go into `data-…` chunks,
//! which all clients accept. Transient chunks do not stay in the message.
//!
//! The format can only send an output as a whole, again and again. Such a snapshot (`preliminary`)
//! is sent when the output has doubled, so all snapshots together have at most twice its length.
//! Between snapshots, `data-tool-output` brings each piece to the page.
//!
//! | chunk | data |
//! |---|---|
//! | `data-execution` (transient) | `{execution, tool}`: the execution to cancel |
//! | `data-tool-output` (transient) | `{toolCallId, delta, offset, kind}` |
//! | `data-progress` (transient) | `{toolCallId?, progress, total?, percentage?, message?, …}` |
//! | `data-gap` (transient) | `{toolCallId?, fromSeq, toSeq, chunkCount, byteCount, reason}` |
//! | `data-step` (transient) | `{number, decision?, reason?, usage?, durationUs?}` |
//! | `data-detached` (transient) | `{reason, resumeFrom}` |
//! | `data-tool`, id of the call | `{toolCallId, outcome, …}`: values that a result cannot hold |

use std::sync::Arc;

use super::json::{Object, frame};
use super::op::{Block, CallEnd, Ending, Input, Op, Prose, RunOutcome, StepEnd};
use super::{FrontNames, SdkVersion};
use crate::agent::Usage;
use crate::endpoint::front::call::FrontCall;
use crate::limits;
use crate::stream::Exit;

/// The event after the last chunk.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// The writer of this format; see the module's text.
#[derive(Debug)]
pub(super) struct AiSdk {
    sdk: SdkVersion,
    /// The calls that are open.
    shown: Vec<Shown>,
}

/// An open call as the client knows it.
#[derive(Debug)]
struct Shown {
    id: Arc<str>,
    /// The length of the output, in bytes, from which on it is sent as a whole.
    next_bytes: usize,
    /// The fault of its arguments, if the client got an error for them.
    problem: Option<String>,
}

impl AiSdk {
    pub fn new(sdk: SdkVersion) -> AiSdk {
        AiSdk { sdk, shown: Vec::new() }
    }

    pub fn write(&mut self, op: &Op<'_>, names: &FrontNames, out: &mut Vec<u8>) {
        match op {
            Op::Start => {
                chunk(out, "start", |chunk| chunk.text("messageId", &names.message_id));
                transient(out, "data-execution", |data| {
                    data.text("execution", &names.execution);
                    data.text("tool", &names.tool);
                });
            }
            Op::StepStart { .. } => chunk(out, "start-step", |_| ()),
            Op::Open(block) => self.prose(*block, "-start", None, out),
            Op::Delta { block, text } => self.prose(*block, "-delta", Some(text), out),
            Op::Shut(block) => self.prose(*block, "-end", None, out),
            Op::CallOpen { call, .. } => self.call_open(call, out),
            Op::CallArguments { call, text } => chunk(out, "tool-input-delta", |chunk| {
                chunk.text("toolCallId", &call.id);
                chunk.text("inputTextDelta", text);
            }),
            Op::CallReady { call, input, .. } => self.call_ready(call, input, out),
            Op::Output { call, output } => {
                transient(out, "data-tool-output", |data| {
                    data.text("toolCallId", &call.id);
                    data.text("delta", output.text);
                    data.number("offset", output.offset);
                    data.text("kind", output.kind);
                });
                self.snapshot(call, out);
            }
            Op::Progress { call, progress } => transient(out, "data-progress", |data| {
                data.text_if("toolCallId", call.map(|call| &*call.id));
                progress.write(data);
            }),
            Op::Gap { call, gap } => transient(out, "data-gap", |data| {
                data.text_if("toolCallId", call.map(|call| &*call.id));
                gap.write(data);
            }),
            Op::CallEnd { call, end } => self.call_end(call, end, out),
            Op::StepEnd(end) => {
                step_data(end, out);
                chunk(out, "finish-step", |_| ());
            }
            Op::End(ending) => self.end(ending, out),
            Op::Detached { block, reason, resume_from } => {
                if let Some(block) = block {
                    self.prose(*block, "-end", None, out);
                }
                transient(out, "data-detached", |data| {
                    data.text("reason", reason);
                    data.number("resumeFrom", *resume_from);
                });
                chunk(out, "error", |chunk| {
                    chunk.texts("errorText", &["the stream ended early: ", reason]);
                });
            }
            Op::Close => out.extend_from_slice(DONE),
        }
    }

    fn prose(&self, block: Block, what: &str, delta: Option<&str>, out: &mut Vec<u8>) {
        let prose = match block.prose {
            Prose::Text => "text",
            Prose::Reasoning => "reasoning",
        };
        frame(out, |chunk| {
            chunk.texts("type", &[prose, what]);
            chunk.text("id", &format!("{prose}-{}-{}", block.step, block.offset));
            chunk.text_if("delta", delta);
        });
    }

    fn call_open(&mut self, call: &FrontCall, out: &mut Vec<u8>) {
        // The first piece is sent as a whole at once, so that a page has something to show.
        self.shown.push(Shown { id: Arc::clone(&call.id), next_bytes: 1, problem: None });
        chunk(out, "tool-input-start", |chunk| {
            chunk.text("toolCallId", &call.id);
            chunk.text("toolName", &call.name);
            chunk.flag("dynamic", true); // A page need not know the tools.
        });
    }

    fn call_ready(&mut self, call: &FrontCall, input: &Input<'_>, out: &mut Vec<u8>) {
        let what = match input {
            Input::Invalid { .. } => "tool-input-error",
            _ => "tool-input-available",
        };
        chunk(out, what, |chunk| {
            chunk.text("toolCallId", &call.id);
            chunk.text("toolName", &call.name);
            match input {
                Input::Valid(value) => chunk.value("input", value),
                Input::Cut(text) | Input::Invalid { text, .. } => chunk.text("input", text),
                Input::Unknown => chunk.object("input", |_| ()),
            }
            if let Input::Invalid { problem, .. } = input {
                chunk.text("errorText", problem);
            }
            chunk.flag("dynamic", true);
        });
        if let (Input::Invalid { problem, .. }, Some(shown)) = (input, self.shown(&call.id)) {
            shown.problem = Some((*problem).to_owned());
        }
    }

    /// Sends the output as a whole if it has grown enough.
    fn snapshot(&mut self, call: &FrontCall, out: &mut Vec<u8>) {
        let bytes = call.output.len();
        let Some(shown) = self.shown(&call.id).filter(|shown| bytes >= shown.next_bytes) else {
            return;
        };
        shown.next_bytes = match bytes {
            // No more output is kept, so this is the last snapshot.
            limits::FRONT_OUTPUT_BYTES_MAX.. => usize::MAX,
            _ => {
                (2 * bytes).clamp(limits::FRONT_SNAPSHOT_BYTES_MIN, limits::FRONT_OUTPUT_BYTES_MAX)
            }
        };
        output(call, &call.output, true, out);
    }

    fn call_end(&mut self, call: &FrontCall, end: &CallEnd<'_>, out: &mut Vec<u8>) {
        let at = self.shown.iter().position(|shown| shown.id == call.id);
        let told = at.and_then(|at| self.shown.swap_remove(at).problem);
        let problem = end.problem();
        let kept = &*call.output;
        match &problem {
            // All output that came is sent. The model may have received less.
            None if !call.is_cut || kept.len() > end.output.len() => output(call, kept, false, out),
            None => output(call, end.output, false, out),
            Some(_) if problem == told => {} // Sent with its arguments.
            Some(problem) => chunk(out, "tool-output-error", |chunk| {
                chunk.text("toolCallId", &call.id);
                chunk.text("errorText", problem);
                chunk.flag("dynamic", true);
            }),
        }
        frame(out, |chunk| {
            chunk.text("type", "data-tool");
            chunk.text("id", &call.id);
            chunk.object("data", |data| {
                data.text("toolCallId", &call.id);
                end.write(data);
                data.text_if("execution", call.execution.as_deref());
                if call.is_cut {
                    data.flag("outputTruncated", true);
                }
                // An error replaces the output that was shown, so the output is sent here.
                if problem.is_some() && !(kept.is_empty() && end.output.is_empty()) {
                    data.text("output", if kept.is_empty() { end.output } else { kept });
                }
            });
        });
    }

    fn end(&self, ending: &Ending, out: &mut Vec<u8>) {
        let failed = match &ending.how {
            RunOutcome::Completed | RunOutcome::Limited => None,
            RunOutcome::Cancelled => {
                return chunk(out, "abort", |chunk| {
                    if self.sdk >= SdkVersion::V7 {
                        chunk.text("reason", &ending.reason);
                    }
                });
            }
            RunOutcome::Failed { code, message } => Some((code.as_str(), message.as_str())),
            RunOutcome::Stopped { code, message } => Some((*code, *message)),
        };
        if let Some((code, message)) = failed {
            chunk(out, "error", |chunk| chunk.texts("errorText", &[code, ": ", message]));
        }
        chunk(out, "finish", |chunk| {
            if self.sdk >= SdkVersion::V6 {
                let reason = if failed.is_some() { "error" } else { &ending.reason };
                chunk.text("finishReason", finish_reason(reason));
            }
        });
    }

    fn shown(&mut self, id: &Arc<str>) -> Option<&mut Shown> {
        self.shown.iter_mut().find(|shown| shown.id == *id)
    }
}

/// Returns AI SDK's name of the reason why a run ended.
fn finish_reason(reason: &str) -> &str {
    match reason {
        "stop" | "length" | "error" => reason,
        "completed" => "stop",
        "content_filter" | "refusal" => "content-filter",
        "tool_calls" | "steps_max" => "tool-calls",
        _ => "other",
    }
}

fn chunk(out: &mut Vec<u8>, name: &str, fill: impl FnOnce(&mut Object<'_>)) {
    frame(out, |chunk| {
        chunk.text("type", name);
        fill(chunk);
    });
}

/// Writes a chunk that does not stay in the message.
fn transient(out: &mut Vec<u8>, name: &str, fill: impl FnOnce(&mut Object<'_>)) {
    chunk(out, name, |chunk| {
        chunk.object("data", fill);
        chunk.flag("transient", true);
    });
}

fn output(call: &FrontCall, text: &str, is_preliminary: bool, out: &mut Vec<u8>) {
    chunk(out, "tool-output-available", |chunk| {
        chunk.text("toolCallId", &call.id);
        chunk.text("output", text);
        chunk.flag("dynamic", true);
        if is_preliminary {
            chunk.flag("preliminary", true);
        }
    });
}

fn step_data(end: &StepEnd<'_>, out: &mut Vec<u8>) {
    transient(out, "data-step", |data| {
        data.number("number", end.number.into());
        if let Some((decision, reason)) = end.decision {
            data.text("decision", decision);
            data.text("reason", reason);
        }
        if let Some(usage) = &end.usage {
            data.object("usage", |usage_out| write_usage(usage, usage_out));
        }
        data.number_if("durationUs", end.duration_us);
    });
}

/// Writes the tokens of a turn or of a run, with names in camel case.
pub(super) fn write_usage(usage: &Usage, out: &mut Object<'_>) {
    let total = usage.input_tokens.saturating_add(usage.output_tokens);
    for (name, count) in [
        ("inputTokens", Some(usage.input_tokens)),
        ("outputTokens", Some(usage.output_tokens)),
        ("totalTokens", Some(total)),
        ("reasoningTokens", usage.reasoning_tokens),
        ("cachedInputTokens", usage.cached_input_tokens),
    ] {
        // Clients refuse larger numbers, and the whole event with them.
        out.number_if(name, count.filter(|count| *count < 1 << 53));
    }
}

impl super::op::ProgressOp<'_> {
    pub(super) fn write(&self, out: &mut Object<'_>) {
        out.float("progress", self.progress);
        out.float_if("total", self.total);
        out.float_if("percentage", self.percentage);
        out.text_if("message", self.message);
        if let Some(context) = &self.context {
            out.value("context", context);
        }
    }
}

impl super::op::GapOp<'_> {
    pub(super) fn write(&self, out: &mut Object<'_>) {
        out.number("fromSeq", self.from_seq);
        out.number("toSeq", self.to_seq);
        out.number("chunkCount", self.chunk_count);
        out.number("byteCount", self.byte_count);
        out.text("reason", self.reason);
    }
}

impl CallEnd<'_> {
    /// Writes how the call ended, without its output.
    pub(super) fn write(&self, out: &mut Object<'_>) {
        out.text("outcome", self.outcome.name());
        out.number_if("outputBytes", self.output_bytes);
        if let Some(exit) = self.exit {
            let (name, number) = match exit {
                Exit::Code(code) => ("code", code),
                Exit::Signal(signal) => ("signal", signal),
            };
            out.object("exit", |out| out.float(name, number.into()));
        }
        out.text_if("error", self.error);
        out.number_if("durationUs", self.duration_us);
    }
}
