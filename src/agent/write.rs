//! Writes parts as JSON: one object on one line each, with the fields in the order of declaration.
//!
//! Absent values and flags that are not set are left out.

use serde_json::Value;

use crate::agent::message::Usage;
use crate::agent::part::{Arguments, Body, Data, Final, PartProgress, Partial, RunPart};
use crate::agent::state::{Continuation, Failure, FinalState, Reason, StepSummary, ToolExecution};
use crate::stream::{Exit, Gap};
use crate::wire::object::{Object, write_object};
use crate::wire::{base64, json};

impl RunPart {
    /// Appends the part as one JSON object on one line, without a line end.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        write_object(out, |fields| {
            fields.text("type", self.name());
            fields.number("seq", self.seq);
            fields.text("agent_id", &self.agent_id);
            fields.number("step_number", self.step_number.into());
            fields.number("timestamp_us", self.timestamp_us);
            match &self.body {
                Body::Partial(partial) => write_partial(fields, partial),
                Body::Final(last) => write_final(fields, last),
            }
        });
    }
}

fn write_partial(fields: &mut Object<'_>, partial: &Partial) {
    match partial {
        Partial::ExecutionStarted { task, task_truncated, model, tools, tools_truncated } => {
            fields.text("task", task);
            fields.flag_if("task_truncated", *task_truncated);
            fields.text("model", model);
            fields.list("tools", tools, |out, name| json::write_string(out, name));
            fields.flag_if("tools_truncated", *tools_truncated);
        }
        Partial::StepStarted => {}
        Partial::TextDelta { delta, offset, accumulated_text, accumulated_truncated } => {
            fields.text("delta", delta);
            fields.number("offset", *offset);
            fields.text_if("accumulated_text", accumulated_text.as_deref());
            fields.flag_if("accumulated_truncated", *accumulated_truncated);
        }
        Partial::ReasoningDelta { delta, offset } => {
            fields.text("delta", delta);
            fields.number("offset", *offset);
        }
        Partial::ToolCallStarted { tool_call_id, tool_name } => {
            fields.text("tool_name", tool_name);
            fields.text("tool_call_id", tool_call_id);
        }
        Partial::ToolCallArgsDelta { tool_call_id, delta, offset } => {
            fields.text("tool_call_id", tool_call_id);
            fields.text("delta", delta);
            fields.number("offset", *offset);
        }
        Partial::ToolOutputChunk { .. } => write_output(fields, partial),
        Partial::ToolProgress { tool_call_id, progress } => {
            fields.text("tool_call_id", tool_call_id);
            write_progress(fields, progress);
        }
        Partial::Gap { tool_call_id, gap } => {
            fields.text("tool_call_id", tool_call_id);
            write_gap(fields, gap);
        }
    }
}

fn write_output(fields: &mut Object<'_>, partial: &Partial) {
    let Partial::ToolOutputChunk { tool_call_id, execution, output_seq, offset, kind, data, more } =
        partial
    else {
        unreachable!("the caller has looked");
    };
    fields.text("tool_call_id", tool_call_id);
    if let Some(execution) = execution {
        fields.text("execution", &execution.to_string());
    }
    fields.number("output_seq", *output_seq);
    fields.number("offset", *offset);
    fields.text("kind", kind.name());
    match data {
        Data::Text(text) => {
            fields.text("encoding", "text");
            fields.text("data", text);
        }
        Data::Bytes(bytes) => {
            fields.text("encoding", "base64");
            let out = fields.name("data");
            out.push(b'"');
            base64::write(out, bytes);
            out.push(b'"');
        }
    }
    fields.flag_if("more", *more);
}

fn write_progress(fields: &mut Object<'_>, said: &PartProgress) {
    fields.float("progress", said.progress);
    fields.float_if("total", said.total);
    fields.float_if("percentage", said.percentage);
    fields.text_if("message", said.message.as_deref());
    if let Some(context) = &said.context {
        fields.value("context", context);
    }
}

fn write_gap(fields: &mut Object<'_>, gap: &Gap) {
    fields.number("from_seq", gap.from_seq);
    fields.number("to_seq", gap.to_seq);
    fields.number("chunk_count", gap.chunk_count);
    fields.number("byte_count", gap.byte_count);
    fields.text("reason", gap.reason.name());
}

fn write_final(fields: &mut Object<'_>, last: &Final) {
    match last {
        Final::ToolCallArgsCompleted { tool_call_id, tool_name, arguments } => {
            fields.text("tool_call_id", tool_call_id);
            fields.text("tool_name", tool_name);
            write_arguments(fields, arguments);
        }
        Final::ToolCallCompleted { tool_call_id, execution }
        | Final::ToolCallFailed { tool_call_id, execution }
        | Final::ToolCallCancelled { tool_call_id, execution } => {
            fields.text("tool_call_id", tool_call_id);
            fields.object("execution", |fields| write_execution(fields, execution));
            fields.text_if("error", execution.error.as_deref());
        }
        Final::StepCompleted { step, outcome, usage } => {
            fields.object("step", |fields| write_step(fields, step));
            fields.object("outcome", |fields| write_outcome(fields, outcome));
            if let Some(usage) = usage {
                fields.object("usage", |fields| write_usage(fields, usage));
            }
        }
        Final::ExecutionCompleted { final_state } => write_final_state(fields, final_state),
        Final::ExecutionFailed { error, final_state } => {
            fields.object("error", |fields| write_failure(fields, error));
            write_final_state(fields, final_state);
        }
        Final::ExecutionCancelled { reason, final_state } => {
            fields.text("reason", reason.name());
            write_final_state(fields, final_state);
        }
    }
}

fn write_arguments(fields: &mut Object<'_>, arguments: &Arguments) {
    match arguments {
        Arguments::Valid(value) => fields.value("arguments", value),
        Arguments::Cut(text) => {
            fields.text("arguments_text", text);
            fields.flag_if("arguments_truncated", true);
        }
        Arguments::Invalid { text, text_truncated, problem } => {
            fields.text("invalid_arguments", text);
            fields.flag_if("arguments_truncated", *text_truncated);
            fields.text("problem", problem);
        }
    }
}

fn write_execution(fields: &mut Object<'_>, call: &ToolExecution) {
    fields.text("name", &call.name);
    if let Some(execution) = call.execution {
        fields.text("execution", &execution.to_string());
    }
    write_arguments(fields, &call.arguments);
    fields.text("output", &call.output);
    fields.flag_if("output_truncated", call.output_truncated);
    fields.number("output_bytes", call.output_bytes);
    fields.text("outcome", call.outcome.name());
    match call.exit {
        None => {}
        Some(Exit::Code(code)) => fields.object("exit", |fields| fields.float("code", code.into())),
        Some(Exit::Signal(signal)) => {
            fields.object("exit", |fields| fields.float("signal", signal.into()));
        }
    }
    fields.number("started_us", call.started_us);
    fields.number("duration_us", call.duration_us);
}

fn write_step(fields: &mut Object<'_>, step: &StepSummary) {
    fields.number("number", step.number.into());
    fields.text("text", &step.text);
    fields.flag_if("text_truncated", step.text_truncated);
    fields.list("tool_calls", &step.tool_calls, |out, call| {
        write_object(out, |fields| {
            fields.text("id", &call.id);
            fields.text("name", &call.name);
            fields.text("outcome", call.outcome.name());
        });
    });
    fields.flag_if("tool_calls_truncated", step.tool_calls_truncated);
    match &step.finish_reason {
        Some(reason) => fields.text("finish_reason", reason.as_str()),
        None => fields.value("finish_reason", &Value::Null),
    }
    fields.number("duration_us", step.duration_us);
}

fn write_reason(fields: &mut Object<'_>, reason: &Reason) {
    fields.text("reason", reason.name());
    fields.text_if("detail", reason.detail());
}

fn write_outcome(fields: &mut Object<'_>, outcome: &Continuation) {
    fields.text("decision", outcome.decision.name());
    write_reason(fields, &outcome.reason);
}

fn write_usage(fields: &mut Object<'_>, usage: &Usage) {
    fields.number("input_tokens", usage.input_tokens);
    fields.number("output_tokens", usage.output_tokens);
    fields.number_if("reasoning_tokens", usage.reasoning_tokens);
    fields.number_if("cached_input_tokens", usage.cached_input_tokens);
}

fn write_failure(fields: &mut Object<'_>, failure: &Failure) {
    fields.text("code", &failure.code);
    fields.text("message", &failure.message);
    fields.flag_if("retryable", failure.is_retryable);
}

fn write_final_state(fields: &mut Object<'_>, last: &FinalState) {
    fields.object("final_state", |fields| {
        fields.number("step_count", last.step_count.into());
        fields.text("text", &last.text);
        fields.flag_if("text_truncated", last.text_truncated);
        fields.object("usage", |fields| write_usage(fields, &last.usage));
        write_reason(fields, &last.reason);
        fields.number("tool_call_count", last.tool_call_count.into());
        fields.number("duration_us", last.duration_us);
    });
}
