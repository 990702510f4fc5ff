//! What a subscriber is told, out of JSON: each field with its type, or an error that names it.

use super::documents::{data, limit};
use super::error::ClientError;
use super::fields::Fields;
use crate::base::{ExecutionId, ProgressToken};
use crate::engine::{
    DetachReason, End, EndState, Exit, Gap, GapReason, Kind, LagLimit, Outcome, Policy, Totals,
};
use crate::wire::events::Replay;

/// Something that a subscriber is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first: what was agreed.
    Started(Started),
    /// A piece of the result.
    Chunk(Chunk),
    /// A piece of the result of an agent's run, which is an event by itself.
    Part(Part),
    /// What will not come, in its place in the order.
    Gap(Gap),
    /// How far the tool is.
    Progress(Progress),
    /// The last, exactly one.
    End(Ended),
}

/// What was agreed with a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Of which execution.
    pub execution: ExecutionId,
    /// The subscriber's name.
    pub subscriber: String,
    /// Which tool runs.
    pub tool: String,
    /// What progress of this execution is told under, if there is such a token.
    pub token: Option<ProgressToken>,
    /// What happens when the subscriber lags.
    pub policy: Policy,
    /// How far it may lag.
    pub limit: LagLimit,
    /// The first chunk that it will be given or told of.
    pub from_seq: u64,
    /// The chunks that the server keeps for it in case its connection breaks.
    pub replay: Option<Replay>,
}

/// A piece of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// 1, 2, 3 … without holes.
    pub seq: u64,
    /// How many chunks there will be, if the tool said so.
    pub total_chunks: Option<u64>,
    /// What it is.
    pub kind: Kind,
    /// What it is about, if that is more than its kind.
    pub key: Option<u8>,
    /// Payload bytes of the execution before this chunk.
    pub offset: u64,
    /// The payload.
    pub data: Vec<u8>,
    /// When it was published, in µs since 1970, by the server's clock.
    pub timestamp_us: u64,
    /// The same on the monotonic clock of the server's machine, in ns.
    pub mono_ns: u64,
}

/// A part of an agent's run: a chunk whose payload is an event by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number of its chunk: 1, 2, 3 … without holes.
    pub seq: u64,
    /// What it is called: its `type`.
    pub name: String,
    /// All of it, as it came.
    pub json: String,
}

/// How far a tool is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// So much is done.
    pub progress: f64,
    /// Of so much, if that is known.
    pub total: Option<f64>,
    /// How much of the whole that is, in percent.
    pub percentage: Option<f64>,
    /// In words, if the tool said any.
    pub message: Option<String>,
    /// What else the tool said, as JSON.
    pub context: Option<String>,
}

/// The last word to a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The end, what the subscriber was given, and what the execution has published. After the
    /// connection was cut, the server may count what was on its way at that moment as given twice,
    /// or from there only: [`Stream::given`](super::Stream::given) counts over all connections.
    pub end: End,
    /// What went wrong, if something did.
    pub error: Option<String>,
}

impl Event {
    /// What it is called, on every wire.
    pub fn name(&self) -> &str {
        match self {
            Event::Started(_) => "started",
            Event::Chunk(_) => "chunk",
            Event::Part(part) => &part.name,
            Event::Gap(_) => "gap",
            Event::Progress(_) => "progress",
            Event::End(_) => "end",
        }
    }

    /// Reads an event, as it stands in a line of NDJSON or in the data of a server-sent event, and
    /// of which execution it is.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] names the field that is missing or wrong.
    pub fn parse(json: &[u8]) -> Result<(ExecutionId, Event), ClientError> {
        let mut fields = Fields::parse("an event", json)?;
        if let Some(name) = fields.text_if("type")? {
            return Ok((fields.parsed("agent_id")?, Event::Part(part(name, json, &mut fields)?)));
        }
        let name = fields.text("event")?;
        let execution = fields.parsed("execution")?;
        let event = match name.as_str() {
            "started" => Event::Started(started(execution, &mut fields)?),
            "chunk" => Event::Chunk(chunk(&mut fields)?),
            "gap" => Event::Gap(gap(&mut fields)?),
            "progress" => Event::Progress(progress(&mut fields)?),
            "end" => Event::End(end(&mut fields)?),
            _ => return Err(fields.wrong("event", "the name of one")),
        };
        Ok((execution, event))
    }
}

fn started(execution: ExecutionId, fields: &mut Fields) -> Result<Started, ClientError> {
    Ok(Started {
        execution,
        subscriber: fields.text("subscriber")?,
        tool: fields.text("tool")?,
        token: fields.parsed_if("token")?,
        policy: fields.parsed("policy")?,
        limit: limit(fields.object("limits")?)?,
        from_seq: seq(fields, "from_seq")?,
        replay: fields.object_if("replay")?.map(replay).transpose()?,
    })
}

fn replay(mut fields: Fields) -> Result<Replay, ClientError> {
    let of = fields.text("of")?;
    let Some(of) = Replay::OF.iter().position(|word| *word == of) else {
        return Err(fields.wrong("of", "`sent` or `unacknowledged`"));
    };
    Ok(Replay {
        chunks: fields.small("chunks")?,
        bytes: fields.small("bytes")?,
        until_acknowledged: of == 1,
        grace_ms: fields.number("grace_ms")?,
    })
}

fn chunk(fields: &mut Fields) -> Result<Chunk, ClientError> {
    let data = data(fields)?;
    let key = fields.number_if("key")?.map(u8::try_from).transpose();
    let chunk = Chunk {
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
        None => Err(fields.wrong("offset", "one that the chunk fits behind")),
    }
}

fn part(name: String, json: &[u8], fields: &mut Fields) -> Result<Part, ClientError> {
    if name.is_empty() {
        return Err(fields.wrong("type", "the name of a part"));
    }
    let json = std::str::from_utf8(json).map_err(|_| fields.wrong("type", "in UTF-8"))?;
    Ok(Part { seq: seq(fields, "seq")?, name, json: json.to_owned() })
}

/// The number of a chunk: from 1.
fn seq(fields: &mut Fields, name: &str) -> Result<u64, ClientError> {
    match fields.number(name)? {
        0 => Err(fields.wrong(name, "the number of a chunk")),
        seq => Ok(seq),
    }
}

fn gap(fields: &mut Fields) -> Result<Gap, ClientError> {
    const REASONS: [GapReason; 4] =
        [GapReason::Lag, GapReason::Conflated, GapReason::Overtaken, GapReason::Late];
    let gap = Gap {
        from_seq: seq(fields, "from_seq")?,
        to_seq: seq(fields, "to_seq")?,
        chunk_count: fields.number("chunk_count")?,
        byte_count: fields.number("byte_count")?,
        reason: fields
            .named("reason", |name| REASONS.into_iter().find(|reason| reason.name() == name))?,
    };
    if gap.to_seq < gap.from_seq {
        return Err(fields.wrong("to_seq", "behind `from_seq`"));
    }
    if gap.chunk_count - u64::from(gap.chunk_count > 0) > gap.to_seq - gap.from_seq {
        return Err(fields.wrong("chunk_count", "so few that there is room for them"));
    }
    Ok(gap)
}

/// Also as it stands in the description of an execution.
pub(super) fn progress(fields: &mut Fields) -> Result<Progress, ClientError> {
    Ok(Progress {
        progress: fields.float("progress")?,
        total: fields.float_if("total")?,
        percentage: fields.float_if("percentage")?,
        message: fields.text_if("message")?,
        context: fields.take("context").map(|context| context.to_string()),
    })
}

fn end(fields: &mut Fields) -> Result<Ended, ClientError> {
    let state = fields.text("state")?;
    let state = match (state.as_str(), outcome(&state)) {
        (_, Some(outcome)) => EndState::Ended(outcome),
        ("detached", _) => EndState::Detached {
            reason: fields.named("reason", |name| {
                DetachReason::ALL.into_iter().find(|reason| reason.name() == name)
            })?,
            resume_from: seq(fields, "resume_from")?,
        },
        _ => return Err(fields.wrong("state", "one in which a subscriber ends")),
    };
    let end = End {
        state,
        given: Totals { chunks: fields.number("chunks")?, bytes: fields.number("bytes")? },
        missed: Totals {
            chunks: fields.number("missed_chunks")?,
            bytes: fields.number("missed_bytes")?,
        },
        published: Totals {
            chunks: fields.number("execution_chunks")?,
            bytes: fields.number("execution_bytes")?,
        },
        duration_us: fields.number("duration_us")?,
        exit: exit_if(fields)?,
    };
    Ok(Ended { end, error: fields.text_if("error")? })
}

/// The outcome of that name.
pub(super) fn outcome(name: &str) -> Option<Outcome> {
    let all = [Outcome::Completed, Outcome::Failed, Outcome::Cancelled, Outcome::TimedOut];
    all.into_iter().find(|outcome| outcome.name() == name)
}

/// How a command ended, if the tool ran one: `{"code": 3}` or `{"signal": 9}`.
pub(super) fn exit_if(fields: &mut Fields) -> Result<Option<Exit>, ClientError> {
    let Some(mut exit) = fields.object_if("exit")? else { return Ok(None) };
    let mut number = |name: &str| match exit.take(name) {
        None => Ok(None),
        Some(value) => match value.as_i64().map(i32::try_from) {
            Some(Ok(number)) => Ok(Some(number)),
            _ => Err(exit.wrong(name, "a number of 32 bits")),
        },
    };
    match (number("code")?, number("signal")?) {
        (Some(code), None) => Ok(Some(Exit::Code(code))),
        (None, Some(signal)) => Ok(Some(Exit::Signal(signal))),
        _ => Err(fields.wrong("exit", "a code or a signal")),
    }
}
