//! Events for subscribers, as JSON. Every transport uses the same five shapes and the same names.
//! Chunks of an agent's run are parts, which are such events by themselves ([`PartEvent`]).
//!
//! On NDJSON an event is one line ([`WireEvent::write_line`]), and its first field, `event`, is its
//! name. On SSE the `event:` field repeats that name ([`WireEvent::name`]). Durations and
//! wall-clock times are in µs, `mono_ns` is in ns, as their names say. Unknown values are omitted.
//!
//! ```
//! use streamdoor::wire::events::{GapEvent, WireEvent};
//!
//! let (from_seq, to_seq, chunk_count, byte_count) = (11, 40, 30, 900);
//! let execution = "0abc";
//! let gap = GapEvent { execution, from_seq, to_seq, chunk_count, byte_count, reason: "lag" };
//! let mut out = Vec::with_capacity(256);
//! WireEvent::Gap(gap).write_line(&mut out);
//! assert_eq!(
//!     String::from_utf8(out)?,
//!     "{\"event\":\"gap\",\"execution\":\"0abc\",\"from_seq\":11,\"to_seq\":40,\
//!      \"chunk_count\":30,\"byte_count\":900,\"reason\":\"lag\"}\n"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{base64, json};
use crate::stream::Exit;

/// An event for a subscriber.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WireEvent<'a> {
    /// The first event: the agreed parameters.
    Started(StartedEvent<'a>),
    /// A piece of the result.
    Chunk(ChunkEvent<'a>),
    /// A piece of the result that is an event by itself.
    Part(PartEvent<'a>),
    /// A run of missing chunks, in its place in the order.
    Gap(GapEvent<'a>),
    /// The progress of the tool.
    Progress(ProgressEvent<'a>),
    /// The last event. A stream has exactly one.
    End(EndEvent<'a>),
}

/// The agreed parameters of a subscription.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartedEvent<'a> {
    /// The execution that the subscription is for.
    pub execution: &'a str,
    /// The subscriber's name.
    pub subscriber: &'a str,
    /// The name of the tool.
    pub tool: &'a str,
    /// The progress token of this execution; omitted if it has none.
    pub token: Option<&'a str>,
    /// The policy for a subscriber that lags.
    pub policy: &'a str,
    /// The permitted lag.
    pub limits: Limits,
    /// The first chunk that will be delivered or reported as missing.
    pub from_seq: u64,
    /// The chunks that are kept in case the connection breaks; omitted if none are.
    pub replay: Option<Replay>,
}

/// The chunks that are kept for a subscriber whose connection may break. It loses nothing if no
/// more than these were in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Number of chunks at most.
    pub chunks: u32,
    /// Number of bytes at most, with the padding of the ring. A single chunk is kept in any case.
    pub bytes: u32,
    /// True if the chunks are kept until the client acknowledges them, and no more are sent ahead:
    /// `"of":"unacknowledged"`. Otherwise they are the newest that were sent: `"of":"sent"`.
    pub until_acknowledged: bool,
    /// The time for which the subscription is kept after its connection broke, in milliseconds.
    pub grace_ms: u64,
}

impl Replay {
    /// The values of `of`, indexed by `until_acknowledged`.
    pub const OF: [&str; 2] = ["sent", "unacknowledged"];
}

/// The permitted lag of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The lag in chunks.
    pub chunks: u32,
    /// The lag in bytes; omitted if only chunks count.
    pub bytes: Option<u64>,
}

/// A piece of a result. It is encoded as text only if the whole of it is valid UTF-8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkEvent<'a> {
    /// The execution that published it.
    pub execution: &'a str,
    /// The number of the chunk: 1, 2, 3 … without gaps.
    pub seq: u64,
    /// Number of chunks in all, if the tool announced it.
    pub total_chunks: Option<u64>,
    /// The kind of the chunk.
    pub kind: &'a str,
    /// The subject of the chunk, if that is more than its kind.
    pub key: Option<u8>,
    /// Payload bytes of the execution before this chunk.
    pub offset: u64,
    /// The payload.
    pub data: &'a [u8],
    /// Time of publication, in µs since 1970.
    pub timestamp_us: u64,
    /// Time of publication on the monotonic clock of the machine, in ns.
    pub mono_ns: u64,
}

/// A part of an agent's run: a chunk whose payload is the event, one JSON object. Its first field,
/// `type`, is its name. It contains its execution (`agent_id`) and its number (`seq`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartEvent<'a> {
    /// The number of its chunk.
    pub seq: u64,
    /// The object, without raw line ends.
    pub json: &'a [u8],
}

impl<'a> PartEvent<'a> {
    /// The name of the event: its `type`.
    #[inline]
    pub fn name(&self) -> &'a str {
        let behind = self.json.strip_prefix(b"{\"type\":\"");
        let name = behind.and_then(|rest| rest.split(|byte| *byte == b'"').next());
        let name = name.filter(|name| name.iter().all(u8::is_ascii_alphanumeric));
        name.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or("part")
    }
}

/// A run of chunks that the subscriber will not receive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GapEvent<'a> {
    /// The execution that published them.
    pub execution: &'a str,
    /// The first missing chunk.
    pub from_seq: u64,
    /// The last missing chunk.
    pub to_seq: u64,
    /// Number of chunks of the subscriber's kinds among them.
    pub chunk_count: u64,
    /// Number of their payload bytes.
    pub byte_count: u64,
    /// The reason of the gap.
    pub reason: &'a str,
}

/// The progress of a tool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgressEvent<'a> {
    /// The execution of the tool.
    pub execution: &'a str,
    /// The progress token; omitted if the execution has none.
    pub token: Option<&'a str>,
    /// The progress so far.
    pub progress: f64,
    /// The end of the axis, if known.
    pub total: Option<f64>,
    /// The progress in percent.
    pub percentage: Option<f64>,
    /// The message of the tool, if any.
    pub message: Option<&'a str>,
    /// Further data of the tool, in JSON. Anything that is not JSON is encoded as a string. The
    /// data is parsed, which allocates.
    pub context: Option<&'a str>,
}

/// The last event for a subscriber.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndEvent<'a> {
    /// The execution of the subscription.
    pub execution: &'a str,
    /// The final state.
    pub state: EndState<'a>,
    /// Number of chunks that were delivered on this connection.
    pub chunks: u64,
    /// Number of their bytes.
    pub bytes: u64,
    /// Number of chunks in the gaps of this connection.
    pub missed_chunks: u64,
    /// Number of their bytes.
    pub missed_bytes: u64,
    /// Number of chunks of the subscriber's kinds that the execution published since its start:
    /// all, or those before `resume_from`.
    pub execution_chunks: u64,
    /// Number of their bytes.
    pub execution_bytes: u64,
    /// Duration of the subscription, in µs.
    pub duration_us: u64,
    /// The exit of the command, if the tool ran one.
    pub exit: Option<Exit>,
    /// The error text, if an error occurred.
    pub error: Option<&'a str>,
}

/// The final state of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndState<'a> {
    /// The execution is over: `completed`, `failed`, `cancelled` or `timed_out`.
    Ended(&'a str),
    /// The execution goes on without this subscriber.
    Detached {
        /// The reason of the detachment.
        reason: &'a str,
        /// The first chunk that was neither delivered nor reported as missing.
        resume_from: u64,
    },
}

impl<'a> WireEvent<'a> {
    /// The name of the event, on every transport.
    #[inline]
    pub fn name(&self) -> &'a str {
        match self {
            WireEvent::Started(_) => "started",
            WireEvent::Chunk(_) => "chunk",
            WireEvent::Part(part) => part.name(),
            WireEvent::Gap(_) => "gap",
            WireEvent::Progress(_) => "progress",
            WireEvent::End(_) => "end",
        }
    }

    /// Appends the event as one JSON object, without raw line ends or other control characters.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let mut fields = Fields(out);
        match self {
            WireEvent::Chunk(chunk) => fields.chunk(chunk),
            WireEvent::Part(part) => return out.extend_from_slice(part.json),
            WireEvent::Started(started) => fields.started(started),
            WireEvent::Gap(gap) => fields.gap(gap),
            WireEvent::Progress(progress) => fields.progress(progress),
            WireEvent::End(end) => fields.end(end),
        }
        out.push(b'}');
    }

    /// Appends the output in the event: the payload of a chunk, or a part as a line.
    #[inline]
    pub fn write_payload(&self, out: &mut Vec<u8>) {
        match self {
            WireEvent::Chunk(chunk) => out.extend_from_slice(chunk.data),
            WireEvent::Part(_) => self.write_line(out),
            WireEvent::Started(_)
            | WireEvent::Gap(_)
            | WireEvent::Progress(_)
            | WireEvent::End(_) => {}
        }
    }

    /// Appends the event as a line of NDJSON.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        self.write_json(out);
        out.push(b'\n');
    }
}

/// Appends the fields `encoding` and `data` of a chunk, after other fields. The data is text if all
/// of it is valid UTF-8, and base 64 otherwise.
pub(crate) fn write_data(out: &mut Vec<u8>, data: &[u8]) {
    let before = out.len();
    out.extend_from_slice(b",\"encoding\":\"text\",\"data\":\"");
    if json::write_text(out, data).is_err() {
        out.truncate(before);
        out.extend_from_slice(b",\"encoding\":\"base64\",\"data\":\"");
        base64::write(out, data);
    }
    out.push(b'"');
}

/// The fields of an event, from its name on.
struct Fields<'a>(&'a mut Vec<u8>);

impl Fields<'_> {
    fn started(&mut self, started: &StartedEvent<'_>) {
        self.begin("started");
        self.text("execution", started.execution);
        self.text("subscriber", started.subscriber);
        self.text("tool", started.tool);
        self.text_if("token", started.token);
        self.text("policy", started.policy);
        self.name("limits");
        self.0.extend_from_slice(b"{\"max_chunks\":");
        json::write_u64(self.0, started.limits.chunks.into());
        self.number_if("max_bytes", started.limits.bytes);
        self.0.push(b'}');
        self.number("from_seq", started.from_seq);
        if let Some(replay) = &started.replay {
            self.name("replay");
            self.0.extend_from_slice(b"{\"chunks\":");
            json::write_u64(self.0, replay.chunks.into());
            self.number("bytes", replay.bytes.into());
            self.text("of", Replay::OF[usize::from(replay.until_acknowledged)]);
            self.number("grace_ms", replay.grace_ms);
            self.0.push(b'}');
        }
    }

    /// Appends a chunk. Most events are chunks, so each constant is as long as possible.
    fn chunk(&mut self, chunk: &ChunkEvent<'_>) {
        let out = &mut *self.0;
        out.extend_from_slice(b"{\"event\":\"chunk\",\"execution\":\"");
        json::write_characters(out, chunk.execution);
        out.extend_from_slice(b"\",\"seq\":");
        json::write_u64(out, chunk.seq);
        if let Some(total_chunks) = chunk.total_chunks {
            out.extend_from_slice(b",\"total_chunks\":");
            json::write_u64(out, total_chunks);
        }
        out.extend_from_slice(b",\"kind\":\"");
        json::write_characters(out, chunk.kind);
        if let Some(key) = chunk.key {
            out.extend_from_slice(b"\",\"key\":");
            json::write_u64(out, key.into());
            out.extend_from_slice(b",\"offset\":");
        } else {
            out.extend_from_slice(b"\",\"offset\":");
        }
        json::write_u64(out, chunk.offset);
        write_data(out, chunk.data);
        out.extend_from_slice(b",\"timestamp_us\":");
        json::write_u64(out, chunk.timestamp_us);
        out.extend_from_slice(b",\"mono_ns\":");
        json::write_u64(out, chunk.mono_ns);
    }

    fn gap(&mut self, gap: &GapEvent<'_>) {
        self.begin("gap");
        self.text("execution", gap.execution);
        self.number("from_seq", gap.from_seq);
        self.number("to_seq", gap.to_seq);
        self.number("chunk_count", gap.chunk_count);
        self.number("byte_count", gap.byte_count);
        self.text("reason", gap.reason);
    }

    fn progress(&mut self, progress: &ProgressEvent<'_>) {
        self.begin("progress");
        self.text("execution", progress.execution);
        self.text_if("token", progress.token);
        self.name("progress");
        json::write_f64(self.0, progress.progress);
        self.float_if("total", progress.total);
        self.float_if("percentage", progress.percentage);
        self.text_if("message", progress.message);
        if let Some(context) = progress.context {
            self.name("context");
            // The text is not copied unchanged, or foreign text would become part of our line.
            match serde_json::from_str(context) {
                Ok(value) => json::write_value(self.0, &value),
                Err(_) => json::write_string(self.0, context),
            }
        }
    }

    fn end(&mut self, end: &EndEvent<'_>) {
        self.begin("end");
        self.text("execution", end.execution);
        match end.state {
            EndState::Ended(state) => self.text("state", state),
            EndState::Detached { reason, resume_from } => {
                self.text("state", "detached");
                self.text("reason", reason);
                self.number("resume_from", resume_from);
            }
        }
        self.number("chunks", end.chunks);
        self.number("bytes", end.bytes);
        self.number("missed_chunks", end.missed_chunks);
        self.number("missed_bytes", end.missed_bytes);
        self.number("execution_chunks", end.execution_chunks);
        self.number("execution_bytes", end.execution_bytes);
        self.number("duration_us", end.duration_us);
        if let Some(exit) = end.exit {
            let (name, number) = match exit {
                Exit::Code(code) => ("code", code),
                Exit::Signal(signal) => ("signal", signal),
            };
            self.name("exit");
            self.0.extend_from_slice(b"{\"");
            self.0.extend_from_slice(name.as_bytes());
            self.0.extend_from_slice(b"\":");
            json::write_i64(self.0, number.into());
            self.0.push(b'}');
        }
        self.text_if("error", end.error);
    }

    /// Appends the name of the event.
    fn begin(&mut self, name: &str) {
        self.0.extend_from_slice(b"{\"event\":\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'"');
    }

    /// Appends the name of a field. Names are ours, and need no escapes.
    #[inline]
    fn name(&mut self, name: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    #[inline]
    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        json::write_string(self.0, text);
    }

    #[inline]
    fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        json::write_u64(self.0, number);
    }

    #[inline]
    fn text_if(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    fn number_if(&mut self, name: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.number(name, number);
        }
    }

    fn float_if(&mut self, name: &str, number: Option<f64>) {
        if let Some(number) = number {
            self.name(name);
            json::write_f64(self.0, number);
        }
    }
}
