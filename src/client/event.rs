//! The events of a stream, read from JSON. Each field is checked against its type, and errors name
//! the field.

use super::error::ClientError;
use super::fields::Fields;
use crate::api::{self, Json, Progress};
use crate::base::{ExecutionId, ProgressToken};
use crate::stream::{End, EndState, Gap, Kind, LagLimit, Outcome, Policy, Totals};
use crate::wire::base64;
use crate::wire::events::Replay;

/// An event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// The first event: the agreed terms.
    Started(StartedEvent),
    /// A chunk of the result.
    Chunk(ChunkEvent),
    /// A chunk of an agent's run, which is an event by itself.
    Part(PartEvent),
    /// Chunks that will not come. It stands in their place in the order.
    Gap(Gap),
    /// The progress of the tool.
    Progress(Progress),
    /// The last event. Exactly one comes.
    End(EndEvent),
}

/// The terms that were agreed with a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedEvent {
    /// The execution.
    pub execution: ExecutionId,
    /// The subscriber's name.
    pub subscriber: String,
    /// The name of the tool.
    pub tool: String,
    /// The token of this execution's progress reports, if it has one.
    pub token: Option<ProgressToken>,
    /// The lag policy of the subscriber.
    pub policy: Policy,
    /// The limit of its lag.
    pub limit: LagLimit,
    /// The first chunk that this subscriber receives or that a gap reports to it.
    pub from_seq: u64,
    /// The chunks that the server keeps for this subscriber in case its connection breaks.
    pub replay: Option<Replay>,
}

/// A chunk of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkEvent {
    /// The number of the chunk: 1, 2, 3 … without holes.
    pub seq: u64,
    /// Number of chunks that the tool expects to publish, if it said so.
    pub total_chunks: Option<u64>,
    /// The kind of the payload.
    pub kind: Kind,
    /// The key of the chunk under `conflate`, if it is not the number of its kind.
    pub key: Option<u8>,
    /// Number of payload bytes of the execution before this chunk.
    pub offset: u64,
    /// The payload.
    pub data: Vec<u8>,
    /// The time of publication by the server's clock, in µs since 1970.
    pub timestamp_us: u64,
    /// The time of publication by the monotonic clock of the server's machine, in ns.
    pub mono_ns: u64,
}

/// A part of an agent's run: a chunk whose payload is an event by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartEvent {
    /// The number of its chunk: 1, 2, 3 … without holes.
    pub seq: u64,
    /// The name of the event: its `type`.
    pub name: String,
    /// The whole event, exactly as received.
    pub json: String,
}

/// The end of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndEvent {
    /// The end, the totals of the subscriber, and the totals of the execution. After a broken
    /// connection the server's totals may count chunks twice that were in flight at the break, or
    /// count from there only. [`Stream::given`](super::EventStream::given) counts over all
    /// connections.
    pub end: End,
    /// The error of the execution, if it failed.
    pub error: Option<String>,
}

impl StreamEvent {
    /// The name of the event, the same in every format.
    pub fn name(&self) -> &str {
        match self {
            StreamEvent::Started(_) => "started",
            StreamEvent::Chunk(_) => "chunk",
            StreamEvent::Part(part) => &part.name,
            StreamEvent::Gap(_) => "gap",
            StreamEvent::Progress(_) => "progress",
            StreamEvent::End(_) => "end",
        }
    }

    /// Reads an event from a line of NDJSON or from the data of a server-sent event. Returns it
    /// with the id of its execution.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] names the field that is missing or wrong.
    pub fn parse(json: &[u8]) -> Result<(ExecutionId, StreamEvent), ClientError> {
        let mut fields = Fields::parse("an event", json)?;
        if let Some(name) = fields.text_if("type")? {
            return Ok((
                fields.parsed("agent_id")?,
                StreamEvent::Part(part(name, json, &mut fields)?),
            ));
        }
        let name = fields.text("event")?;
        match name.as_str() {
            "started" => started(fields.document("event", name)?),
            "chunk" => Ok((fields.parsed("execution")?, StreamEvent::Chunk(chunk(&mut fields)?))),
            "gap" => gap(fields.document("event", name)?),
            "progress" => {
                let execution = fields.parsed("execution")?;
                Ok((execution, StreamEvent::Progress(progress(&mut fields)?)))
            }
            "end" => end(fields.document("event", name)?),
            _ => Err(fields.wrong("event", "the name of an event")),
        }
    }
}

/// The error of a member whose value contradicts another one.
fn wrong(name: &str, must: &str) -> ClientError {
    ClientError::protocol(format!("`{name}` of an event is not {must}"))
}

fn started(event: api::StartedEvent) -> Result<(ExecutionId, StreamEvent), ClientError> {
    first_seq(event.from_seq, "from_seq")?;
    let started = StartedEvent {
        execution: event.execution,
        subscriber: event.subscriber,
        tool: event.tool,
        token: event.token,
        policy: event.policy,
        limit: event.limits,
        from_seq: event.from_seq,
        replay: event.replay.map(replay).transpose()?,
    };
    Ok((started.execution, StreamEvent::Started(started)))
}

fn replay(replay: api::Replay) -> Result<Replay, ClientError> {
    let Some(of) = Replay::OF.iter().position(|word| *word == replay.of) else {
        return Err(wrong("of", "`sent` or `unacknowledged`"));
    };
    Ok(Replay {
        chunks: replay.chunks,
        bytes: replay.bytes,
        until_acknowledged: of == 1,
        grace_ms: replay.grace_ms,
    })
}

/// Refuses a number that no chunk has.
fn first_seq(seq: u64, name: &str) -> Result<u64, ClientError> {
    match seq {
        0 => Err(wrong(name, "the number of a chunk")),
        seq => Ok(seq),
    }
}

fn chunk(fields: &mut Fields) -> Result<ChunkEvent, ClientError> {
    let data = data(fields)?;
    let key = fields.number_if("key")?.map(u8::try_from).transpose();
    let chunk = ChunkEvent {
        seq: seq(fields, "seq")?,
        total_chunks: fields.number_if("total_chunks")?,
        kind: fields.parsed("kind")?,
        key: key.map_err(|_| fields.wrong("key", "a number of 8 bits"))?,
        offset: fields.number("offset")?,
        data,
        timestamp_us: fields.number("timestamp_us")?,
        mono_ns: fields.number("mono_ns")?,
    };
    match chunk.offset.checked_add(chunk.data.len() as u64) {
        Some(_) => Ok(chunk),
        None => Err(fields.wrong("offset", "an offset that leaves room for the chunk")),
    }
}

fn part(name: String, json: &[u8], fields: &mut Fields) -> Result<PartEvent, ClientError> {
    if name.is_empty() {
        return Err(fields.wrong("type", "the name of a part"));
    }
    let json = std::str::from_utf8(json).map_err(|_| fields.wrong("type", "in UTF-8"))?;
    Ok(PartEvent { seq: seq(fields, "seq")?, name, json: json.to_owned() })
}

/// The number of a chunk, at least 1.
fn seq(fields: &mut Fields, name: &str) -> Result<u64, ClientError> {
    first_seq(fields.number(name)?, name)
}

fn gap(event: api::GapEvent) -> Result<(ExecutionId, StreamEvent), ClientError> {
    let gap = Gap {
        from_seq: first_seq(event.from_seq, "from_seq")?,
        to_seq: event.to_seq,
        chunk_count: event.chunk_count,
        byte_count: event.byte_count,
        reason: event.reason,
    };
    if gap.to_seq < gap.from_seq {
        return Err(wrong("to_seq", "at least `from_seq`"));
    }
    if gap.chunk_count - u64::from(gap.chunk_count > 0) > gap.to_seq - gap.from_seq {
        return Err(wrong("chunk_count", "at most the number of chunks in the gap"));
    }
    Ok((event.execution, StreamEvent::Gap(gap)))
}

fn progress(fields: &mut Fields) -> Result<Progress, ClientError> {
    Ok(Progress {
        progress: fields.float("progress")?,
        total: fields.float_if("total")?,
        percentage: fields.float_if("percentage")?,
        message: fields.text_if("message")?,
        context: fields.take("context").map(|context| Json(context.to_string())),
    })
}

fn end(event: api::EndEvent) -> Result<(ExecutionId, StreamEvent), ClientError> {
    let missing = |name| ClientError::protocol(format!("`{name}` of an event is missing"));
    let state = match (&*event.state, outcome(&event.state)) {
        (_, Some(outcome)) => EndState::Ended(outcome),
        ("detached", _) => EndState::Detached {
            reason: event.reason.ok_or_else(|| missing("reason"))?,
            resume_from: first_seq(
                event.resume_from.ok_or_else(|| missing("resume_from"))?,
                "resume_from",
            )?,
        },
        _ => return Err(wrong("state", "a state in which a subscription ends")),
    };
    let end = End {
        state,
        given: Totals { chunks: event.chunks, bytes: event.bytes },
        missed: Totals { chunks: event.missed_chunks, bytes: event.missed_bytes },
        published: Totals { chunks: event.execution_chunks, bytes: event.execution_bytes },
        duration_us: event.duration_us,
        exit: event.exit,
    };
    Ok((event.execution, StreamEvent::End(EndEvent { end, error: event.error })))
}

/// The outcome of that name.
fn outcome(name: &str) -> Option<Outcome> {
    let all = [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut];
    all.into_iter().find(|outcome| outcome.name() == name)
}

/// A payload, decoded by its `encoding`.
fn data(fields: &mut Fields) -> Result<Vec<u8>, ClientError> {
    let text = fields.text("data")?;
    let is_text = fields.named("encoding", |name| match name {
        "text" => Some(true),
        "base64" => Some(false),
        _ => None,
    })?;
    match is_text {
        true => Ok(text.into_bytes()),
        false => base64::read(&text).ok_or_else(|| fields.wrong("data", "base 64")),
    }
}
