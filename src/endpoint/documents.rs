//! Documents of the API about tools and executions, made from what the shard knows. [`crate::api`]
//! has their types.

use std::borrow::Cow;

use serde_json::Value;

use crate::api::{
    self, AllProgress, CallTimeouts, CancelledCall, Created, Delivered, DoorEnd, DoorGo, Encoding,
    EndOfDoor, Ended, Execution, Executions, HELD_BY_HOLD, Health, Index, IndexLinks, Json,
    KeptBeginning, Links, ProgressOf, StateOf, Subscriber, Summary, TokenProgress, ToolCall, Tools,
    Version, spelled,
};
use crate::base::{ExecutionId, Instant, ProgressToken};
use crate::endpoint::list::{ListAsk, ListPlace};
use crate::engine::{Hold, Status, SubscriberStatus, Timeouts};
use crate::memory::ClockAnchor;
use crate::stream::{DetachReason, ExecutionState, Exit, Outcome, Progress, Totals};
use crate::tool::ToolSpec;
use crate::trace::{TraceContext, rfc3339};
use crate::wire::durable::parse_time;
use crate::wire::{write_base64, write_json};

/// The texts of a tool's last progress report: a message, and a context in JSON.
pub type Texts<'a> = (Option<&'a str>, Option<&'a str>);

/// Returns the path of an execution.
pub fn location(id: ExecutionId) -> String {
    format!("/v1/executions/{id}")
}

/// Returns the list of tools.
pub fn tools<'a>(specs: impl IntoIterator<Item = &'a ToolSpec>) -> Value {
    spelled(&Tools { tools: specs.into_iter().map(|spec| spec.into()).collect() })
}

/// Returns the path at which a virtual tool can be replaced.
pub fn virtual_tool_location(name: &str) -> String {
    format!("/v1/virtual-tools/{name}")
}

/// Returns the answer to a part of a result that was accepted, now or before.
pub fn delivered(is_duplicate: bool) -> Value {
    let duplicate = is_duplicate.then_some(true);
    spelled(&Delivered { success: true, duplicate, parts: None, duplicates: None })
}

/// Returns the answer to all parts of a body that has several.
pub(super) fn delivered_parts(parts: u64, duplicates: u64) -> Value {
    let duplicates = Some(duplicates).filter(|count| *count > 0);
    spelled(&Delivered { success: true, duplicate: None, parts: Some(parts), duplicates })
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
    let [(_, traceparent), (_, tracestate), (_, baggage)] = trace.headers();
    line(&ToolCall {
        id: call,
        name: name.to_owned(),
        arguments: arguments.clone(),
        execution: call,
        next_seq,
        timeouts: Some(timeouts).filter(|all| **all != Timeouts::NONE).map(CallTimeouts::from),
        traceparent,
        tracestate,
        baggage,
    })
}

/// Returns the data of the event that tells a worker that a call has ended without it.
pub fn cancelled_call(call: ExecutionId, outcome: Outcome) -> String {
    line(&CancelledCall { id: call, reason: outcome })
}

/// Returns a document as a line.
fn line(document: &impl serde::Serialize) -> String {
    let mut text = Vec::new();
    write_json(&mut text, &spelled(document));
    String::from_utf8(text).expect("JSON is UTF-8")
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
    spelled(&DoorGo { go: true })
}

/// Returns the line for a reader in another process that was detached.
pub fn door_detached(reason: DetachReason) -> Value {
    let state = "detached".to_owned();
    let end = EndOfDoor { state, reason: Some(reason), error: None, exit: None };
    spelled(&DoorEnd { end })
}

/// Returns the line for another process that shares an execution which has ended.
pub fn door_ended(outcome: Outcome, error: Option<&str>, exit: Option<Exit>) -> Value {
    let (state, error) = (outcome.name().to_owned(), error.map(str::to_owned));
    spelled(&DoorEnd { end: EndOfDoor { state, reason: None, error, exit } })
}

/// Returns the answer for an execution that was opened. With `ticket`, its link to the events works
/// without a token.
pub fn created(
    id: ExecutionId,
    token: Option<ProgressToken>,
    tool: &str,
    state: ExecutionState,
    hold: Hold,
    ticket: Option<&str>,
) -> Created {
    let (tool, links) = (tool.to_owned(), links(id, token, ticket));
    let hold = match hold {
        Hold::Newest => None,
        Hold::UntilRead { deadline } => {
            Some(KeptBeginning { until_read_ms: deadline.as_millis() as u64 })
        }
    };
    Created { execution: id, token, tool, state, hold, links }
}

/// Returns the paths of an execution and of its parts.
fn links(id: ExecutionId, token: Option<ProgressToken>, ticket: Option<&str>) -> Links {
    let this = location(id);
    let under = |name: &str| [&this, name].concat();
    Links {
        events: match ticket {
            Some(ticket) => [&this, "/events?ticket=", ticket].concat(),
            None => under("/events"),
        },
        result: under("/result"),
        output: under("/output"),
        progress: token.map(|token| format!("/v1/progress/{token}")),
        this,
    }
}

/// Returns the state of an execution, and nothing else.
pub fn state(id: ExecutionId, state: ExecutionState) -> Value {
    spelled(&StateOf { execution: id, state })
}

/// Returns everything about one execution. With `ticket`, its link to the events works without a
/// token.
pub fn execution(
    status: &Status,
    tool: &str,
    texts: Texts<'_>,
    subscribers: &[SubscriberStatus],
    ticket: Option<&str>,
    (dates, clock): (Dates, Clock),
) -> Value {
    let holders = subscribers.iter().filter(|subscriber| subscriber.gates);
    let mut held_back_by: Vec<String> = holders.map(|holder| holder.id.to_string()).collect();
    if status.gated && status.holds {
        held_back_by.push(HELD_BY_HOLD.to_owned());
    }
    spelled(&Execution {
        execution: status.id,
        tool: tool.to_owned(),
        token: status.token,
        state: status.state,
        progress: report(status.progress, texts),
        chunks: status.totals.chunks,
        bytes: status.totals.bytes,
        head_seq: status.head_seq,
        tail_seq: status.tail_seq,
        total_chunks: status.chunks_expected,
        held_back: status.gated,
        held_back_by,
        age_ms: clock.age_ms(dates),
        created_at: rfc3339(dates.created_us),
        ended_at: dates.ended_us.map(rfc3339),
        subscribers: subscribers.iter().map(|each| subscriber(each, clock.now)).collect(),
        error: status.error.as_deref().map(str::to_owned),
        exit: status.exit,
        links: links(status.id, status.token, ticket),
    })
}

/// The present, and the relation of the server's clock to dates.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The present.
    pub now: Instant,
    /// The relation to dates.
    pub anchor: ClockAnchor,
}

/// The dates of an execution, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dates {
    /// The time of its creation.
    pub created_us: u64,
    /// The time of its end, once it has ended.
    pub ended_us: Option<u64>,
}

/// An execution in a list.
#[derive(Clone, Debug)]
pub struct Listed<'a> {
    /// Its id.
    pub id: ExecutionId,
    /// The name of its tool.
    pub tool: &'a str,
    /// Its state.
    pub state: ExecutionState,
    /// The totals of its chunks.
    pub totals: Totals,
    /// Number of its subscribers.
    pub subscriber_count: u32,
    /// The client's name of its conversation.
    pub thread: Option<&'a str>,
    /// Its dates.
    pub dates: Dates,
}

impl Clock {
    /// Returns the dates of an execution of this process.
    pub fn dates_of(&self, status: &Status) -> Dates {
        let date = |instant: Instant| self.anchor.wall_us_at(instant.nanos());
        Dates { created_us: date(status.opened_at), ended_us: status.ended_at.map(date) }
    }

    fn age_ms(&self, dates: Dates) -> u64 {
        self.anchor.wall_us_at(self.now.nanos()).saturating_sub(dates.created_us) / 1_000
    }
}

impl<'a> Listed<'a> {
    /// Lists an execution that the engine has.
    pub fn of(status: &Status, tool: &'a str, dates: Dates) -> Listed<'a> {
        let &Status { id, state, totals, subscriber_count, .. } = status;
        Listed { id, tool, state, totals, subscriber_count, thread: None, dates }
    }

    /// Returns its place in the list of all.
    pub fn place(&self) -> ListPlace {
        ListPlace { created_us: self.dates.created_us, execution: self.id }
    }
}

/// Returns the list of executions.
pub fn executions<'a>(all: impl IntoIterator<Item = Listed<'a>>, clock: Clock) -> Value {
    let one = |listed: Listed<'_>| Summary {
        execution: listed.id,
        node: None,
        tool: listed.tool.to_owned(),
        state: listed.state,
        chunks: listed.totals.chunks,
        bytes: listed.totals.bytes,
        subscribers: listed.subscriber_count.into(),
        thread: listed.thread.map(str::to_owned),
        age_ms: clock.age_ms(listed.dates),
        created_at: rfc3339(listed.dates.created_us),
        ended_at: listed.dates.ended_us.map(rfc3339),
    };
    let executions = all.into_iter().map(one).collect();
    spelled(&Executions { executions, next: None, dead_shards: None, missing_nodes: None })
}

/// Returns a page of the executions of all shards, in the order of their creation. The lists of
/// `dead_shards` and of `missing_nodes` are missing.
pub fn listed(
    mut list: Vec<Value>,
    ask: &ListAsk,
    dead_shards: &[u8],
    missing_nodes: &[Box<str>],
) -> Value {
    let place = |item: &Value| {
        let text = |name: &str| item[name].as_str().expect("a shard spells it");
        ListPlace {
            created_us: parse_time(text("created_at")).expect("a shard spells it"),
            execution: text("execution").parse().expect("a shard spells it"),
        }
    };
    list.sort_by_cached_key(place);
    let limit = ask.limit as usize;
    let next = (list.len() > limit).then(|| place(&list[limit - 1]).to_string());
    list.truncate(limit);
    let mut document = gathered("executions".to_owned(), list, dead_shards);
    if let Some(next) = next {
        document["next"] = next.into();
    }
    if !missing_nodes.is_empty() {
        document["missing_nodes"] = missing_nodes.iter().map(|node| &**node).collect();
    }
    document
}

/// Returns how an execution ended, with `data`: its payload, or the end of it that is still held.
pub fn result(status: &Status, data: &[u8]) -> Value {
    let (encoding, text) = match std::str::from_utf8(data) {
        Ok(text) => (Encoding::Text, Cow::from(text)),
        Err(_) => {
            let mut text = Vec::new();
            write_base64(&mut text, data);
            (Encoding::Base64, String::from_utf8(text).expect("base 64 is ASCII").into())
        }
    };
    spelled(&Ended {
        execution: status.id,
        state: status.state,
        chunks: status.totals.chunks,
        bytes: status.totals.bytes,
        complete: status.totals.bytes == data.len() as u64,
        encoding,
        data: text,
        exit: status.exit,
        error: status.error.as_deref().map(str::to_owned),
    })
}

/// Returns the progress of the execution of a token.
pub fn progress(token: ProgressToken, status: &Status, texts: Texts<'_>) -> Value {
    let (execution, state) = (status.id, status.state);
    let progress = report(status.progress, texts);
    spelled(&TokenProgress { token, execution, state, progress })
}

/// The progress of one execution, from [`crate::engine::Engine::tokens`] and the texts of its tool.
pub type Advance<'a> = (ProgressToken, ExecutionId, Option<Progress>, Texts<'a>);

/// Returns the progress of all executions that have a token and have not ended.
pub fn all_progress<'a>(all: impl IntoIterator<Item = Advance<'a>>) -> Value {
    let one = |(token, execution, progress, texts): Advance<'_>| ProgressOf {
        token,
        execution,
        progress: report(progress, texts),
    };
    spelled(&AllProgress { progress: all.into_iter().map(one).collect(), dead_shards: None })
}

/// Returns the lists of all shards as one, with the numbers of the shards whose list is missing.
/// `name` is the member of the list in [`Executions`] or [`AllProgress`].
pub fn gathered(name: String, list: Vec<Value>, dead_shards: &[u8]) -> Value {
    let dead_shards = (!dead_shards.is_empty()).then(|| dead_shards.to_vec());
    let mut document = match &*name {
        "executions" => {
            let (next, missing_nodes) = (None, None);
            spelled(&Executions { executions: Vec::new(), next, dead_shards, missing_nodes })
        }
        "progress" => spelled(&AllProgress { progress: Vec::new(), dead_shards }),
        _ => unreachable!("no other list goes to all shards"),
    };
    document[name] = list.into(); // Each shard has spelled its items.
    document
}

/// Returns the answer of the health and readiness checks: `{"status": …}`.
pub fn health(status: &str) -> Value {
    spelled(&Health { status: status.to_owned() })
}

/// Returns the name and the version of the program.
pub fn version() -> Value {
    spelled(&this_version())
}

fn this_version() -> Version {
    let [program, version] = [env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")].map(str::to_owned);
    Version { program, version }
}

/// Returns what the server offers at its root.
pub fn index() -> Value {
    let path = |path: &str| path.to_owned();
    let Version { program, version } = this_version();
    spelled(&Index {
        program,
        version,
        links: IndexLinks {
            tools: path("/v1/tools"),
            executions: path("/v1/executions"),
            progress: path("/v1/progress"),
            mcp: path("/mcp"),
            metrics: path("/metrics"),
            description: path("/openapi.json"),
            health: path("/healthz"),
            readiness: path("/readyz"),
        },
    })
}

fn subscriber(subscriber: &SubscriberStatus, now: Instant) -> Subscriber {
    Subscriber {
        subscriber: subscriber.id.to_string(),
        place: subscriber.place,
        policy: subscriber.terms.policy,
        limit: subscriber.terms.limit,
        next_seq: subscriber.next_seq,
        lag_chunks: subscriber.lag.chunks,
        lag_bytes: subscriber.lag.bytes,
        missed_chunks: subscriber.missed.chunks,
        missed_bytes: subscriber.missed.bytes,
        holds_back: subscriber.gates,
        lost: subscriber.lost,
        age_ms: milliseconds(subscriber.since, now),
    }
}

fn report(progress: Option<Progress>, (message, context): Texts<'_>) -> Option<api::Progress> {
    let progress = progress?;
    let percentage = progress.percentage().filter(|percentage| percentage.is_finite());
    Some(api::Progress {
        progress: progress.progress,
        total: progress.total,
        percentage: percentage.map(|percentage| percentage.min(100.0)),
        message: message.map(str::to_owned),
        context: context.map(|context| Json(context.to_owned())),
    })
}

fn milliseconds(from: Instant, to: Instant) -> u64 {
    to.since(from).as_millis() as u64
}
