//! JSON documents about executions in answers. Names are those of `wire/events.rs` where the
//! meaning is the same. Unknown values are left out.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::base::{ExecutionId, Instant, ProgressToken};
use crate::engine::{Place, Status, SubscriberStatus, Timeouts};
use crate::stream::{DetachReason, Exit, Outcome, Progress, State};
use crate::tool::ToolSpec;
use crate::trace::TraceContext;
use crate::wire::{write_base64, write_json};

/// The texts of a tool's last progress report: a message, and a context in JSON.
pub type Texts<'a> = (Option<&'a str>, Option<&'a str>);

/// Returns the path of an execution.
pub fn location(id: ExecutionId) -> String {
    format!("/v1/executions/{id}")
}

/// Returns the list of tools.
pub fn tools<'a>(specs: impl IntoIterator<Item = &'a ToolSpec>) -> Value {
    let tools: Vec<Value> = specs.into_iter().map(ToolSpec::to_json).collect();
    json!({ "tools": tools })
}

/// Returns the path at which a virtual tool can be replaced.
pub fn virtual_tool_location(name: &str) -> String {
    format!("/v1/virtual-tools/{name}")
}

/// Returns the answer to a part of a result that was accepted, now or before.
pub fn delivered(is_duplicate: bool) -> Value {
    let mut document = Document::default();
    document.add("success", true);
    document.add_if("duplicate", is_duplicate.then_some(true));
    document.0.into()
}

/// Returns the data of the event that gives a call to a worker: one line of JSON.
pub fn tool_call(
    call: ExecutionId,
    name: &str,
    arguments: &Value,
    timeouts: &Timeouts,
    next_seq: u64,
    trace: &TraceContext,
) -> String {
    let mut document = Document::default();
    document.add("id", call.to_string());
    document.add("name", name);
    document.add("arguments", arguments.clone());
    document.add("execution", call.to_string());
    document.add("next_seq", next_seq);
    let mut allowed = Document::default();
    let ms = |timeout: Option<Duration>| timeout.map(|timeout| timeout.as_millis() as u64);
    allowed.add_if("first_chunk_ms", ms(timeouts.first_chunk));
    allowed.add_if("inactivity_ms", ms(timeouts.inactivity));
    allowed.add_if("total_ms", ms(timeouts.total));
    document.add_if("timeouts", (!allowed.0.is_empty()).then_some(allowed.0));
    for (name, value) in trace.headers() {
        document.add_if(name, value);
    }
    let mut text = Vec::new();
    write_json(&mut text, &document.0.into());
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// Returns the data of the event that tells a worker that a call has ended without it.
pub fn cancelled_call(call: ExecutionId, outcome: Outcome) -> String {
    format!("{{\"id\":\"{call}\",\"reason\":\"{}\"}}", outcome.name())
}

/// Returns a grant with the names of its execution added.
pub fn granted(mut grant: Value, tool: &str, token: Option<&str>) -> Value {
    grant["tool"] = tool.into();
    if let Some(token) = token {
        grant["token"] = token.into();
    }
    grant
}

/// Returns the line that lets a producer in another process begin.
pub fn door_go() -> Value {
    json!({"go": true})
}

/// Returns the line for a reader in another process that was detached.
pub fn door_detached(reason: DetachReason) -> Value {
    json!({"end": {"state": "detached", "reason": reason.name()}})
}

/// Returns the line for another process that shares an execution which has ended.
pub fn door_ended(outcome: Outcome, error: Option<&str>, exit: Option<Exit>) -> Value {
    let mut end = Document::default();
    end.add("state", outcome.name());
    end.add_if("error", error);
    end.add_if("exit", exit.map(self::exit));
    json!({ "end": end.0 })
}

/// Returns the answer for an execution that was opened. With `ticket`, its link to the events works
/// without a token.
pub fn created(
    id: ExecutionId,
    token: Option<ProgressToken>,
    tool: &str,
    state: State,
    ticket: Option<&str>,
) -> Value {
    let mut document = Document::of(id);
    document.add_if("token", token.map(|token| token.to_string()));
    document.add("tool", tool);
    document.add("state", state.name());
    document.add("links", links(id, token, ticket));
    document.0.into()
}

/// Returns the paths of an execution and of what belongs to it.
fn links(id: ExecutionId, token: Option<ProgressToken>, ticket: Option<&str>) -> Value {
    let this = location(id);
    let mut links = Document::default();
    links.add("self", this.as_str());
    let shown = ticket.map(|ticket| format!("?ticket={ticket}")).unwrap_or_default();
    links.add("events", format!("{this}/events{shown}"));
    for name in ["result", "output"] {
        links.add(name, format!("{this}/{name}"));
    }
    links.add_if("progress", token.map(|token| format!("/v1/progress/{token}")));
    links.0.into()
}

/// Returns the state of an execution, and nothing else.
pub fn state(id: ExecutionId, state: State) -> Value {
    let mut document = Document::of(id);
    document.add("state", state.name());
    document.0.into()
}

/// The name of the hold in `held_back_by`.
pub(super) const HELD_BY_HOLD: &str = "hold";

/// Returns everything about one execution. With `ticket`, its link to the events works without a
/// token.
pub fn execution(
    status: &Status,
    tool: &str,
    texts: Texts<'_>,
    subscribers: &[SubscriberStatus],
    ticket: Option<&str>,
    now: Instant,
) -> Value {
    let mut document = Document::of(status.id);
    document.add("tool", tool);
    document.add_if("token", status.token.map(|token| token.to_string()));
    document.add("state", status.state.name());
    document.add_if("progress", status.progress.map(|progress| numbers(&progress, texts)));
    document.add("chunks", status.totals.chunks);
    document.add("bytes", status.totals.bytes);
    document.add("head_seq", status.head_seq);
    document.add("tail_seq", status.tail_seq);
    document.add_if("total_chunks", status.chunks_expected);
    document.add("held_back", status.gated);
    let holders = subscribers.iter().filter(|subscriber| subscriber.gates);
    let mut holders: Vec<Value> = holders.map(|holder| holder.id.to_string().into()).collect();
    if status.gated && status.holds {
        holders.push(HELD_BY_HOLD.into());
    }
    document.add("held_back_by", holders);
    document.add("age_ms", milliseconds(status.opened_at, now));
    let subscribers: Vec<Value> = subscribers.iter().map(|each| subscriber(each, now)).collect();
    document.add("subscribers", subscribers);
    document.add_if("error", status.error.as_deref());
    document.add_if("exit", status.exit.map(exit));
    document.add("links", links(status.id, status.token, ticket));
    document.0.into()
}

/// Returns the list of executions, each with the name of its tool.
pub fn executions<'a>(all: impl IntoIterator<Item = (&'a Status, &'a str)>, now: Instant) -> Value {
    let one = |(status, tool): (&Status, &str)| {
        let mut document = Document::of(status.id);
        document.add("tool", tool);
        document.add("state", status.state.name());
        document.add("chunks", status.totals.chunks);
        document.add("bytes", status.totals.bytes);
        document.add("subscribers", status.subscriber_count);
        document.add("age_ms", milliseconds(status.opened_at, now));
        Value::from(document.0)
    };
    let executions: Vec<Value> = all.into_iter().map(one).collect();
    json!({ "executions": executions })
}

/// Returns how an execution ended, with `data`: the payload that its ring still holds, the oldest
/// chunk first.
pub fn result(status: &Status, data: &[u8]) -> Value {
    let mut document = Document::of(status.id);
    document.add("state", status.state.name());
    document.add("chunks", status.totals.chunks);
    document.add("bytes", status.totals.bytes);
    let is_complete = status.tail_seq == 1 && status.totals.bytes == data.len() as u64;
    document.add("complete", is_complete);
    match std::str::from_utf8(data) {
        Ok(text) => {
            document.add("encoding", "text");
            document.add("data", text);
        }
        Err(_) => {
            let mut text = Vec::new();
            write_base64(&mut text, data);
            document.add("encoding", "base64");
            document.add("data", String::from_utf8(text).expect("base 64 is ASCII"));
        }
    }
    document.add_if("exit", status.exit.map(exit));
    document.add_if("error", status.error.as_deref());
    document.0.into()
}

/// Returns the progress of the execution of a token.
pub fn progress(token: ProgressToken, status: &Status, texts: Texts<'_>) -> Value {
    let mut document = Document::default();
    document.add("token", token.to_string());
    document.add("execution", status.id.to_string());
    document.add("state", status.state.name());
    document.add_if("progress", status.progress.map(|progress| numbers(&progress, texts)));
    document.0.into()
}

/// The progress of one execution, from [`crate::engine::Engine::tokens`] and the texts of its tool.
pub type Advance<'a> = (ProgressToken, ExecutionId, Option<Progress>, Texts<'a>);

/// Returns the progress of all executions that have a token and have not ended.
pub fn all_progress<'a>(all: impl IntoIterator<Item = Advance<'a>>) -> Value {
    let one = |(token, id, progress, texts): Advance<'_>| {
        let mut document = Document::default();
        document.add("token", token.to_string());
        document.add("execution", id.to_string());
        document.add_if("progress", progress.map(|progress| numbers(&progress, texts)));
        Value::from(document.0)
    };
    let progress: Vec<Value> = all.into_iter().map(one).collect();
    json!({ "progress": progress })
}

/// Returns the lists of all shards as one, with the numbers of the shards whose list is missing.
pub fn gathered(name: String, list: Vec<Value>, dead_shards: &[u8]) -> Value {
    let mut document = Map::from_iter([(name, Value::from(list))]);
    if !dead_shards.is_empty() {
        document.insert("dead_shards".to_owned(), dead_shards.into());
    }
    document.into()
}

/// Returns the answer of the health and readiness checks: `{"status": …}`.
pub fn health(status: &str) -> Value {
    json!({ "status": status })
}

fn subscriber(subscriber: &SubscriberStatus, now: Instant) -> Value {
    let mut bounds = Document::default();
    bounds.add("chunks", subscriber.terms.limit.chunks);
    bounds.add_if("bytes", Some(subscriber.terms.limit.bytes).filter(|bytes| *bytes < u64::MAX));
    let mut document = Document::default();
    document.add("subscriber", subscriber.id.to_string());
    let place = match subscriber.place {
        Place::Local => "local",
        Place::Remote => "remote",
    };
    document.add("place", place);
    document.add("policy", subscriber.terms.policy.name());
    document.add("limits", bounds.0);
    document.add("next_seq", subscriber.next_seq);
    document.add("lag_chunks", subscriber.lag.chunks);
    document.add("lag_bytes", subscriber.lag.bytes);
    document.add("missed_chunks", subscriber.missed.chunks);
    document.add("missed_bytes", subscriber.missed.bytes);
    document.add("holds_back", subscriber.gates);
    document.add("lost", subscriber.lost);
    document.add("age_ms", milliseconds(subscriber.since, now));
    document.0.into()
}

fn numbers(progress: &Progress, (message, context): Texts<'_>) -> Value {
    let mut document = Document::default();
    document.add("progress", float(progress.progress));
    document.add_if("total", progress.total.map(float));
    let percentage = progress.percentage().filter(|percentage| percentage.is_finite());
    document.add_if("percentage", percentage.map(|percentage| float(percentage.min(100.0))));
    document.add_if("message", message);
    // A context that is not JSON is passed on as text.
    let parsed = |context: &str| -> Value {
        serde_json::from_str(context).unwrap_or_else(|_| context.into())
    };
    document.add_if("context", context.map(parsed));
    document.0.into()
}

fn exit(exit: Exit) -> Value {
    match exit {
        Exit::Code(code) => json!({ "code": code }),
        Exit::Signal(signal) => json!({ "signal": signal }),
    }
}

/// Returns a JSON number; whole numbers are written without a fraction.
fn float(number: f64) -> Value {
    const EXACT_BELOW: f64 = (1u64 << 53) as f64;
    match number.fract() == 0.0 && number.abs() < EXACT_BELOW {
        true => (number as i64).into(),
        false => number.into(),
    }
}

fn milliseconds(from: Instant, to: Instant) -> u64 {
    to.since(from).as_millis() as u64
}

/// A JSON object under construction.
#[derive(Default)]
struct Document(Map<String, Value>);

impl Document {
    fn of(execution: ExecutionId) -> Document {
        let mut document = Document::default();
        document.add("execution", execution.to_string());
        document
    }

    fn add(&mut self, name: &str, value: impl Into<Value>) {
        let is_new = self.0.insert(name.to_owned(), value.into()).is_none();
        debug_assert!(is_new, "{name}");
    }

    fn add_if<V: Into<Value>>(&mut self, name: &str, value: Option<V>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }
}
