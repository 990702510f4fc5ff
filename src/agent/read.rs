//! Parses parts from JSON, for clients that read a run from outside.

use std::sync::Arc;

use serde_json::Value;

use crate::agent::fields::{Fields, PartError};
use crate::agent::message::Usage;
use crate::agent::model::FinishReason;
use crate::agent::part::{
    Arguments, Body, CancelReason, Data, Final, PartProgress, Partial, RunPart,
};
use crate::agent::state::{
    Continuation, Decision, Failure, FinalState, Reason, StepCall, StepSummary, ToolExecution,
};
use crate::stream::{Exit, Gap, GapReason, Outcome};
use crate::wire::base64;

impl RunPart {
    /// Parses a part from a line of NDJSON or the data of a server-sent event. Unknown fields are
    /// ignored.
    ///
    /// # Errors
    /// [`PartError`] names the field that is missing or wrong.
    pub fn parse(json: &[u8]) -> Result<RunPart, PartError> {
        let mut fields = Fields::parse(json)?;
        let name = fields.text("type")?;
        let part = RunPart {
            seq: fields.number("seq")?,
            agent_id: fields.text("agent_id")?.into(),
            step_number: fields.small("step_number")?,
            timestamp_us: fields.number("timestamp_us")?,
            body: body(&name, &mut fields)?,
        };
        match part.seq {
            0 => Err(Fields::wrong("seq", "the number of a part, from 1 on")),
            _ => Ok(part),
        }
    }
}

fn body(name: &str, fields: &mut Fields) -> Result<Body, PartError> {
    if let Some(partial) = partial(name, fields)? {
        return Ok(Body::Partial(partial));
    }
    match last(name, fields)? {
        Some(last) => Ok(Body::Final(last)),
        None => Err(Fields::wrong("type", "the name of a known part")),
    }
}

fn partial(name: &str, fields: &mut Fields) -> Result<Option<Partial>, PartError> {
    Ok(Some(match name {
        "ExecutionStarted" => Partial::ExecutionStarted {
            task: fields.text("task")?,
            task_truncated: fields.flag("task_truncated")?,
            model: fields.text("model")?,
            tools: fields.list("tools", |name| match name {
                Value::String(name) => Ok(name),
                _ => Err(Fields::wrong("tools", "a list of names")),
            })?,
            tools_truncated: fields.flag("tools_truncated")?,
        },
        "StepStarted" => Partial::StepStarted,
        "TextDelta" => Partial::TextDelta {
            delta: fields.text("delta")?,
            offset: fields.number("offset")?,
            accumulated_text: fields.text_if("accumulated_text")?,
            accumulated_truncated: fields.flag("accumulated_truncated")?,
        },
        "ReasoningDelta" => Partial::ReasoningDelta {
            delta: fields.text("delta")?,
            offset: fields.number("offset")?,
        },
        "ToolCallStarted" => Partial::ToolCallStarted {
            tool_call_id: call_id(fields)?,
            tool_name: fields.text("tool_name")?.into(),
        },
        "ToolCallArgsDelta" => Partial::ToolCallArgsDelta {
            tool_call_id: call_id(fields)?,
            delta: fields.text("delta")?,
            offset: fields.number("offset")?,
        },
        "ToolOutputChunk" => Partial::ToolOutputChunk {
            tool_call_id: call_id(fields)?,
            execution: fields.parsed_if("execution")?,
            output_seq: fields.number("output_seq")?,
            offset: fields.number("offset")?,
            kind: fields.parsed("kind")?,
            data: data(fields)?,
            more: fields.flag("more")?,
        },
        "ToolProgress" => {
            Partial::ToolProgress { tool_call_id: call_id(fields)?, progress: progress(fields)? }
        }
        "Gap" => Partial::Gap { tool_call_id: call_id(fields)?, gap: gap(fields)? },
        _ => return Ok(None),
    }))
}

fn call_id(fields: &mut Fields) -> Result<Arc<str>, PartError> {
    Ok(fields.text("tool_call_id")?.into())
}

fn data(fields: &mut Fields) -> Result<Data, PartError> {
    let (encoding, data) = (fields.text("encoding")?, fields.text("data")?);
    match encoding.as_str() {
        "text" => Ok(Data::Text(data)),
        "base64" => match base64::read(&data) {
            Some(bytes) => Ok(Data::Bytes(bytes)),
            None => Err(Fields::wrong("data", "base 64")),
        },
        _ => Err(Fields::wrong("encoding", "`text` or `base64`")),
    }
}

fn progress(fields: &mut Fields) -> Result<PartProgress, PartError> {
    Ok(PartProgress {
        progress: fields.float("progress")?,
        total: fields.float_if("total")?,
        percentage: fields.float_if("percentage")?,
        message: fields.text_if("message")?,
        context: fields.take("context"),
    })
}

fn gap(fields: &mut Fields) -> Result<Gap, PartError> {
    Ok(Gap {
        from_seq: fields.number("from_seq")?,
        to_seq: fields.number("to_seq")?,
        chunk_count: fields.number("chunk_count")?,
        byte_count: fields.number("byte_count")?,
        reason: fields.named("reason", |name| {
            GapReason::ALL.into_iter().find(|reason| reason.name() == name)
        })?,
    })
}

fn last(name: &str, fields: &mut Fields) -> Result<Option<Final>, PartError> {
    Ok(Some(match name {
        "ToolCallArgsCompleted" => Final::ToolCallArgsCompleted {
            tool_call_id: call_id(fields)?,
            tool_name: fields.text("tool_name")?.into(),
            arguments: arguments(fields)?,
        },
        "ToolCallCompleted" => {
            let (tool_call_id, execution) = tool_call(fields)?;
            Final::ToolCallCompleted { tool_call_id, execution }
        }
        "ToolCallFailed" => {
            let (tool_call_id, execution) = tool_call(fields)?;
            Final::ToolCallFailed { tool_call_id, execution }
        }
        "ToolCallCancelled" => {
            let (tool_call_id, execution) = tool_call(fields)?;
            Final::ToolCallCancelled { tool_call_id, execution }
        }
        "StepCompleted" => Final::StepCompleted {
            step: step(fields.object("step")?)?,
            outcome: outcome(fields.object("outcome")?)?,
            usage: fields.object_if("usage")?.map(usage).transpose()?,
        },
        "ExecutionCompleted" => Final::ExecutionCompleted { final_state: final_state(fields)? },
        "ExecutionFailed" => Final::ExecutionFailed {
            error: failure(fields.object("error")?)?,
            final_state: final_state(fields)?,
        },
        "ExecutionCancelled" => Final::ExecutionCancelled {
            reason: fields.named("reason", |name| {
                CancelReason::ALL.into_iter().find(|reason| reason.name() == name)
            })?,
            final_state: final_state(fields)?,
        },
        _ => return Ok(None),
    }))
}

fn arguments(fields: &mut Fields) -> Result<Arguments, PartError> {
    if let Some(text) = fields.text_if("invalid_arguments")? {
        let text_truncated = fields.flag("arguments_truncated")?;
        return Ok(Arguments::Invalid { text, text_truncated, problem: fields.text("problem")? });
    }
    if let Some(text) = fields.text_if("arguments_text")? {
        return Ok(Arguments::Cut(text));
    }
    match fields.take("arguments") {
        Some(value @ Value::Object(_)) => Ok(Arguments::Valid(value)),
        _ => Err(Fields::wrong("arguments", "an object")),
    }
}

fn tool_call(fields: &mut Fields) -> Result<(Arc<str>, Box<ToolExecution>), PartError> {
    let tool_call_id = call_id(fields)?;
    let mut of = fields.object("execution")?;
    let execution = ToolExecution {
        tool_call_id: tool_call_id.to_string(),
        name: of.text("name")?,
        execution: of.parsed_if("execution")?,
        arguments: arguments(&mut of)?,
        output: of.text("output")?,
        output_truncated: of.flag("output_truncated")?,
        output_bytes: of.number("output_bytes")?,
        outcome: ended(&mut of)?,
        exit: exit(&mut of)?,
        error: fields.text_if("error")?,
        started_us: of.number("started_us")?,
        duration_us: of.number("duration_us")?,
    };
    Ok((tool_call_id, Box::new(execution)))
}

fn ended(fields: &mut Fields) -> Result<Outcome, PartError> {
    let all = [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut];
    fields.named("outcome", |name| all.into_iter().find(|outcome| outcome.name() == name))
}

fn exit(fields: &mut Fields) -> Result<Option<Exit>, PartError> {
    let Some(mut exit) = fields.object_if("exit")? else { return Ok(None) };
    let mut number = |name: &str| match exit.take(name) {
        None => Ok(None),
        Some(value) => match value.as_i64().map(i32::try_from) {
            Some(Ok(number)) => Ok(Some(number)),
            _ => Err(Fields::wrong(name, "a number of 32 bits")),
        },
    };
    match (number("code")?, number("signal")?) {
        (Some(code), None) => Ok(Some(Exit::Code(code))),
        (None, Some(signal)) => Ok(Some(Exit::Signal(signal))),
        _ => Err(Fields::wrong("exit", "a code or a signal")),
    }
}

fn step(mut fields: Fields) -> Result<StepSummary, PartError> {
    Ok(StepSummary {
        number: fields.small("number")?,
        text: fields.text("text")?,
        text_truncated: fields.flag("text_truncated")?,
        tool_calls: fields.list("tool_calls", |call| {
            let mut call = Fields::of_item("tool_calls", call)?;
            let (id, name) = (call.text("id")?, call.text("name")?);
            Ok(StepCall { id, name, outcome: ended(&mut call)? })
        })?,
        tool_calls_truncated: fields.flag("tool_calls_truncated")?,
        finish_reason: fields.text_if("finish_reason")?.map(finish_reason),
        duration_us: fields.number("duration_us")?,
    })
}

fn finish_reason(name: String) -> FinishReason {
    let known = [
        FinishReason::Stop,
        FinishReason::ToolCalls,
        FinishReason::Length,
        FinishReason::ContentFilter,
        FinishReason::Refusal,
        FinishReason::Paused,
    ];
    known.into_iter().find(|reason| reason.as_str() == name).unwrap_or(FinishReason::Other(name))
}

fn reason(fields: &mut Fields) -> Result<Reason, PartError> {
    let name = fields.text("reason")?;
    let detail = fields.text_if("detail")?.unwrap_or_default();
    let plain = || Reason::PLAIN.into_iter().find(|reason| reason.name() == name);
    match name.as_str() {
        "other" => Ok(Reason::Other(detail)),
        "hook" => Ok(Reason::Hook(detail)),
        _ => plain().ok_or_else(|| Fields::wrong("reason", "a known value")),
    }
}

fn outcome(mut fields: Fields) -> Result<Continuation, PartError> {
    let all = [Decision::Continue, Decision::Stop];
    let find = |name: &str| all.into_iter().find(|decision| decision.name() == name);
    let decision = fields.named("decision", find)?;
    Ok(Continuation { decision, reason: reason(&mut fields)? })
}

fn usage(mut fields: Fields) -> Result<Usage, PartError> {
    Ok(Usage {
        input_tokens: fields.number("input_tokens")?,
        output_tokens: fields.number("output_tokens")?,
        reasoning_tokens: fields.number_if("reasoning_tokens")?,
        cached_input_tokens: fields.number_if("cached_input_tokens")?,
    })
}

fn failure(mut fields: Fields) -> Result<Failure, PartError> {
    Ok(Failure {
        code: fields.text("code")?,
        message: fields.text("message")?,
        is_retryable: fields.flag("retryable")?,
    })
}

fn final_state(fields: &mut Fields) -> Result<FinalState, PartError> {
    let mut fields = fields.object("final_state")?;
    Ok(FinalState {
        step_count: fields.small("step_count")?,
        text: fields.text("text")?,
        text_truncated: fields.flag("text_truncated")?,
        usage: usage(fields.object("usage")?)?,
        reason: reason(&mut fields)?,
        tool_call_count: fields.small("tool_call_count")?,
        duration_us: fields.number("duration_us")?,
    })
}
