//! What a subscriber is told, as JSON: the same five shapes and the same names on every wire.
//! Chunks of an agent's run are parts, which are such events by themselves: [`Part`].
//!
//! On NDJSON an event is one line, [`Event::write_line`]; its first field, `event`, says which it
//! is. On SSE the `event:` field says the same again, [`Event::name`]. Durations and wall-clock
//! times are in µs, `mono_ns` is in ns, as their names say. What is not known is left out.
//!
//! ```
//! use streamdoor::wire::events::{Event, Gap};
//!
//! let (from_seq, to_seq, chunk_count, byte_count) = (11, 40, 30, 900);
//! let execution = "0abc";
//! let gap = Gap { execution, from_seq, to_seq, chunk_count, byte_count, reason: "lag" };
//! let mut out = Vec::with_capacity(256);
//! Event::Gap(gap).write_line(&mut out);
//! assert_eq!(
//!     String::from_utf8(out)?,
//!     "{\"event\":\"gap\",\"execution\":\"0abc\",\"from_seq\":11,\"to_seq\":40,\
//!      \"chunk_count\":30,\"byte_count\":900,\"reason\":\"lag\"}\n"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{base64, json};

/// Something that a subscriber is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// The first: what was agreed.
    Started(Started<'a>),
    /// A piece of the result.
    Chunk(Chunk<'a>),
    /// A piece of the result that is an event by itself.
    Part(Part<'a>),
    /// What will not come, in its place in the order.
    Gap(Gap<'a>),
    /// How far the tool is.
    Progress(Progress<'a>),
    /// The last, exactly one.
    End(End<'a>),
}

/// What was agreed with a subscriber.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Started<'a> {
    /// Of which execution.
    pub execution: &'a str,
    /// The subscriber's name.
    pub subscriber: &'a str,
    /// Which tool runs.
    pub tool: &'a str,
    /// What progress of this execution is told under; left out where there is none.
    pub token: Option<&'a str>,
    /// What happens when the subscriber lags.
    pub policy: &'a str,
    /// How far it may lag.
    pub limits: Limits,
    /// The first chunk that it will be given or told of.
    pub from_seq: u64,
    /// What is kept for it in case its connection breaks; left out where nothing is.
    pub replay: Option<Replay>,
}

/// The chunks that are kept for a subscriber whose connection may break. It loses nothing if no
/// more than these were on their way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// At most so many chunks.
    pub chunks: u32,
    /// At most so many bytes, with the padding of the ring; a single chunk in any case.
    pub bytes: u32,
    /// True if these are the chunks that the client has not acknowledged, and no more are sent
    /// ahead: `"of":"unacknowledged"`. Else they are the newest that were sent: `"of":"sent"`.
    pub until_acknowledged: bool,
    /// How long the subscriber's place is kept after its connection broke, in milliseconds.
    pub grace_ms: u64,
}

impl Replay {
    /// The words for what is kept: if it is not until it is acknowledged, and if it is.
    pub const OF: [&str; 2] = ["sent", "unacknowledged"];
}

/// How far a subscriber may lag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In chunks.
    pub chunks: u32,
    /// In bytes; left out where only chunks count.
    pub bytes: Option<u64>,
}

/// A piece of a result. It is spelled as text only if the whole of it is valid UTF-8.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chunk<'a> {
    /// Of which execution.
    pub execution: &'a str,
    /// 1, 2, 3 … without holes.
    pub seq: u64,
    /// How many chunks there will be, if the tool said so.
    pub total_chunks: Option<u64>,
    /// What it is.
    pub kind: &'a str,
    /// What it is about, if that is more than its kind.
    pub key: Option<u8>,
    /// Payload bytes of the execution before this chunk.
    pub offset: u64,
    /// The payload.
    pub data: &'a [u8],
    /// When it was published, in µs since 1970.
    pub timestamp_us: u64,
    /// The same on the monotonic clock of the machine, in ns.
    pub mono_ns: u64,
}

/// A part of an agent's run: a chunk whose payload is the event, one JSON object that says with its
/// first field, `type`, which it is. It names its execution (`agent_id`) and its number (`seq`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part<'a> {
    /// The number of its chunk.
    pub seq: u64,
    /// The object, without raw line ends.
    pub json: &'a [u8],
}

impl<'a> Part<'a> {
    /// What it is called: its `type`.
    #[inline]
    pub fn name(&self) -> &'a str {
        let behind = self.json.strip_prefix(b"{\"type\":\"");
        let name = behind.and_then(|rest| rest.split(|byte| *byte == b'"').next());
        let name = name.filter(|name| name.iter().all(u8::is_ascii_alphanumeric));
        name.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or("part")
    }
}

/// A run of chunks that the subscriber will not be given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap<'a> {
    /// Of which execution.
    pub execution: &'a str,
    /// The first chunk missed.
    pub from_seq: u64,
    /// The last chunk missed.
    pub to_seq: u64,
    /// How many chunks of the subscriber's kinds that is.
    pub chunk_count: u64,
    /// How many payload bytes they had.
    pub byte_count: u64,
    /// Why.
    pub reason: &'a str,
}

/// How far a tool is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress<'a> {
    /// Of which execution.
    pub execution: &'a str,
    /// What it is told under; left out where there is none.
    pub token: Option<&'a str>,
    /// So much is done.
    pub progress: f64,
    /// Of so much, if that is known.
    pub total: Option<f64>,
    /// How much of the whole that is, in percent.
    pub percentage: Option<f64>,
    /// In words, if the tool said any.
    pub message: Option<&'a str>,
    /// What else the tool said, in JSON; what is not JSON is spelled as a string. It is parsed,
    /// which allocates.
    pub context: Option<&'a str>,
}

/// The last word to a subscriber.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End<'a> {
    /// Of which execution.
    pub execution: &'a str,
    /// How it ended.
    pub state: EndState<'a>,
    /// Chunks that the subscriber was given on this connection.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Chunks that the gaps of this connection counted.
    pub missed_chunks: u64,
    /// Their bytes.
    pub missed_bytes: u64,
    /// Chunks of the subscriber's kinds that the execution published, from its first one on: all,
    /// or those before `resume_from`.
    pub execution_chunks: u64,
    /// Their bytes.
    pub execution_bytes: u64,
    /// How long it was subscribed, in µs.
    pub duration_us: u64,
    /// How the command ended, if the tool ran one.
    pub exit: Option<Exit>,
    /// What went wrong, if something did.
    pub error: Option<&'a str>,
}

/// How it ended for a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndState<'a> {
    /// The execution is over: `completed`, `failed`, `cancelled` or `timed_out`.
    Ended(&'a str),
    /// The execution goes on without this subscriber.
    Detached {
        /// Why.
        reason: &'a str,
        /// The first chunk that it was neither given nor told of.
        resume_from: u64,
    },
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl<'a> Event<'a> {
    /// What it is called, on every wire.
    #[inline]
    pub fn name(&self) -> &'a str {
        match self {
            Event::Started(_) => "started",
            Event::Chunk(_) => "chunk",
            Event::Part(part) => part.name(),
            Event::Gap(_) => "gap",
            Event::Progress(_) => "progress",
            Event::End(_) => "end",
        }
    }

    /// Appends it as one JSON object, without raw line ends or other control characters.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        if let Event::Part(part) = self {
            out.extend_from_slice(part.json);
            return;
        }
        out.extend_from_slice(b"{\"event\":\"");
        out.extend_from_slice(self.name().as_bytes());
        out.push(b'"');
        let mut fields = Fields(out);
        match self {
            Event::Started(started) => fields.started(started),
            Event::Chunk(chunk) => fields.chunk(chunk),
            Event::Part(_) => unreachable!("written above"),
            Event::Gap(gap) => fields.gap(gap),
            Event::Progress(progress) => fields.progress(progress),
            Event::End(end) => fields.end(end),
        }
        out.push(b'}');
    }

    /// Appends what it has of the output: of a chunk its payload, of a part itself, as a line.
    #[inline]
    pub fn write_payload(&self, out: &mut Vec<u8>) {
        match self {
            Event::Chunk(chunk) => out.extend_from_slice(chunk.data),
            Event::Part(_) => self.write_line(out),
            Event::Started(_) | Event::Gap(_) | Event::Progress(_) | Event::End(_) => {}
        }
    }

    /// Appends it as a line of NDJSON.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        self.write_json(out);
        out.push(b'\n');
    }
}

/// Fields behind the first one of an object.
struct Fields<'a>(&'a mut Vec<u8>);

impl Fields<'_> {
    fn started(&mut self, started: &Started<'_>) {
        self.text("execution", started.execution);
        self.text("subscriber", started.subscriber);
        self.text("tool", started.tool);
        self.text_if("token", started.token);
        self.text("policy", started.policy);
        self.name("limits");
        self.0.extend_from_slice(b"{\"chunks\":");
        json::write_u64(self.0, started.limits.chunks.into());
        self.number_if("bytes", started.limits.bytes);
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

    fn chunk(&mut self, chunk: &Chunk<'_>) {
        self.text("execution", chunk.execution);
        self.number("seq", chunk.seq);
        self.number_if("total_chunks", chunk.total_chunks);
        self.text("kind", chunk.kind);
        self.number_if("key", chunk.key.map(u64::from));
        self.number("offset", chunk.offset);
        match std::str::from_utf8(chunk.data) {
            Ok(text) => {
                self.text("encoding", "text");
                self.text("data", text);
            }
            Err(_) => {
                self.text("encoding", "base64");
                self.name("data");
                self.0.push(b'"');
                base64::write(self.0, chunk.data);
                self.0.push(b'"');
            }
        }
        self.number("timestamp_us", chunk.timestamp_us);
        self.number("mono_ns", chunk.mono_ns);
    }

    fn gap(&mut self, gap: &Gap<'_>) {
        self.text("execution", gap.execution);
        self.number("from_seq", gap.from_seq);
        self.number("to_seq", gap.to_seq);
        self.number("chunk_count", gap.chunk_count);
        self.number("byte_count", gap.byte_count);
        self.text("reason", gap.reason);
    }

    fn progress(&mut self, progress: &Progress<'_>) {
        self.text("execution", progress.execution);
        self.text_if("token", progress.token);
        self.name("progress");
        json::write_f64(self.0, progress.progress);
        self.float_if("total", progress.total);
        self.float_if("percentage", progress.percentage);
        self.text_if("message", progress.message);
        if let Some(context) = progress.context {
            self.name("context");
            // Not copied as it is: somebody's text would become part of our line.
            match serde_json::from_str(context) {
                Ok(value) => json::write_value(self.0, &value),
                Err(_) => json::write_string(self.0, context),
            }
        }
    }

    fn end(&mut self, end: &End<'_>) {
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

    /// Names are ours: nothing in them needs an escape.
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

    #[inline]
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
