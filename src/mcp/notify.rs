//! Notifications, appended to a buffer of the caller. Writing allocates nothing except room in the
//! buffer. A tool's own JSON is the exception: it is parsed and checked.

use std::ops::Range;

use serde_json::Value;
use smallvec::SmallVec;

use super::ask::Filter;
use super::context::{Level, META_SUBSCRIPTION, META_TASK};
use super::cursor::List;
use super::tasks::{Detail, Task};
use super::{Era, Version, call};
use crate::limits;
use crate::wire::events::write_data;
use crate::wire::jsonrpc::Id;
use crate::wire::{base64, json};

/// A piece of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkNotification<'a> {
    /// The number of the chunk: 1, 2, 3 … without holes.
    pub seq: u64,
    /// The name of the chunk's kind. It needs no escapes.
    pub kind: &'static str,
    /// Payload bytes of the execution before this chunk.
    pub offset: u64,
    /// The payload.
    pub data: &'a [u8],
}

/// A run of chunks that will not come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GapNotification<'a> {
    /// The first one.
    pub from_seq: u64,
    /// The last one.
    pub to_seq: u64,
    /// Number of chunks of the subscriber's kinds.
    pub chunk_count: u64,
    /// Payload bytes of those chunks.
    pub byte_count: u64,
    /// The reason.
    pub reason: &'a str,
}

/// `notifications/progress`, without its chunks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgressNotification<'a> {
    /// The client's token.
    pub token: &'a Id,
    /// The progress, as [`super::progress::Rising`] returns it.
    pub progress: f64,
    /// The total, if known.
    pub total: Option<f64>,
    /// A text for people. Without one, the text of the chunks is used.
    pub message: Option<&'a str>,
    /// The progress in percent of the whole.
    pub percentage: Option<f64>,
    /// The context that the tool reports, as JSON that was checked.
    pub context: Option<&'a str>,
    /// The gap before this notification.
    pub gap: Option<GapNotification<'a>>,
    /// The task of the handshake era that it belongs to (A49).
    pub task: Option<&'a str>,
    /// True if each chunk has its data, even if the message repeats it.
    pub has_full_chunks: bool,
}

impl<'a> ProgressNotification<'a> {
    /// Returns a progress with no other data.
    pub fn new(token: &'a Id, progress: f64) -> ProgressNotification<'a> {
        ProgressNotification {
            token,
            progress,
            total: None,
            message: None,
            percentage: None,
            context: None,
            gap: None,
            task: None,
            has_full_chunks: false,
        }
    }
}

/// Appends `notifications/progress`.
pub fn progress<'c>(
    out: &mut Vec<u8>,
    note: &ProgressNotification<'_>,
    chunks: impl Iterator<Item = ChunkNotification<'c>> + Clone,
) {
    out.extend_from_slice(PROGRESS_BEGIN);
    out.extend_from_slice(note.token.as_json().as_bytes());
    out.extend_from_slice(b",\"progress\":");
    json::write_f64(out, note.progress);
    if let Some(total) = note.total.filter(|total| total.is_finite()) {
        out.extend_from_slice(b",\"total\":");
        json::write_f64(out, total);
    }
    let mut texts = Texts::new();
    write_message(out, &mut texts, note, chunks.clone());
    let mut meta = Meta::new();
    write_chunks(out, &mut meta, &texts, chunks);
    if note.percentage.is_some() || note.context.is_some() {
        meta.member(out, "dev.streamdoor/progress");
        write_report(out, note);
    }
    if let Some(gap) = &note.gap {
        meta.member(out, "dev.streamdoor/gap");
        write_gap(out, gap);
    }
    if let Some(task) = note.task {
        meta.task(out, task);
    }
    meta.end(out);
}

/// The beginning of a progress notification, until its token.
const PROGRESS_BEGIN: &[u8] =
    b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":";

/// The texts of chunks in the message, escaped already. A text that occurs twice is escaped once.
struct Texts {
    /// True if the message is all of them, and a chunk has only the length of its part.
    is_once: bool,
    /// The ends of the texts in the buffer, so far. The first one begins at `start`.
    ends: SmallVec<[usize; limits::DELIVERY_CHUNKS_MAX as usize]>,
    start: usize,
}

/// The place of a chunk's data.
enum Place {
    /// Nothing of it is in the buffer.
    Absent,
    /// It is this range of the buffer, escaped already.
    Copied(Range<usize>),
    /// It is a part of the message, and is not repeated.
    InMessage,
}

impl Texts {
    /// Returns no texts so far.
    #[inline]
    fn new() -> Texts {
        Texts { is_once: false, ends: SmallVec::new(), start: 0 }
    }

    /// Records that one more text ends at `end`.
    #[inline]
    fn note(&mut self, end: usize) {
        if self.ends.len() < self.ends.inline_size() {
            self.ends.push(end);
        }
    }

    /// Forgets all texts, because the message is not written.
    fn clear(&mut self) {
        self.is_once = false;
        self.ends.clear();
    }

    #[inline]
    fn place(&self, index: usize) -> Place {
        if self.is_once {
            return Place::InMessage;
        }
        let Some(end) = self.ends.get(index) else { return Place::Absent };
        let start = if index == 0 { self.start } else { self.ends[index - 1] };
        Place::Copied(start..*end)
    }
}

/// Writes the message. Without one of its own, it is the text of the chunks, if all of them are
/// text.
fn write_message<'c>(
    out: &mut Vec<u8>,
    texts: &mut Texts,
    note: &ProgressNotification<'_>,
    chunks: impl Iterator<Item = ChunkNotification<'c>> + Clone,
) {
    let before = out.len();
    out.extend_from_slice(b",\"message\":\"");
    texts.start = out.len();
    let is_text = match note.message {
        Some(message) => {
            json::write_characters(out, message);
            true
        }
        None => {
            let bytes: usize = chunks.clone().map(|chunk| chunk.data.len()).sum();
            texts.is_once = bytes > limits::MCP_TEXT_TWICE_BYTES_MAX && !note.has_full_chunks;
            write_texts(out, texts, chunks)
        }
    };
    if is_text && out.len() > texts.start {
        out.push(b'"');
    } else {
        out.truncate(before);
        texts.clear();
    }
}

/// Writes the texts of chunks. Returns `false` if one of them is not text.
fn write_texts<'c>(
    out: &mut Vec<u8>,
    texts: &mut Texts,
    chunks: impl Iterator<Item = ChunkNotification<'c>>,
) -> bool {
    for chunk in chunks {
        if json::write_text(out, chunk.data).is_err() {
            return false;
        }
        texts.note(out.len());
    }
    true
}

fn write_chunks<'c>(
    out: &mut Vec<u8>,
    meta: &mut Meta,
    texts: &Texts,
    chunks: impl Iterator<Item = ChunkNotification<'c>>,
) {
    let mut is_first = true;
    for (index, chunk) in chunks.enumerate() {
        match is_first {
            true => meta.first_chunk(out),
            false => out.extend_from_slice(b",{\"seq\":"),
        }
        is_first = false;
        write_chunk(out, &chunk, texts.place(index));
    }
    if !is_first {
        out.push(b']');
    }
}

/// Writes a chunk from the value of its number on.
fn write_chunk(out: &mut Vec<u8>, chunk: &ChunkNotification<'_>, place: Place) {
    json::write_u64(out, chunk.seq);
    out.extend_from_slice(b",\"kind\":\"");
    out.extend_from_slice(chunk.kind.as_bytes());
    out.extend_from_slice(b"\",\"offset\":");
    json::write_u64(out, chunk.offset);
    match place {
        Place::InMessage => {
            out.extend_from_slice(b",\"encoding\":\"message\",\"length\":");
            json::write_u64(out, chunk.data.len() as u64);
            out.push(b'}');
        }
        Place::Copied(text) => {
            out.extend_from_slice(b",\"encoding\":\"text\",\"data\":\"");
            out.extend_from_within(text);
            out.extend_from_slice(b"\"}");
        }
        Place::Absent => {
            write_data(out, chunk.data);
            out.push(b'}');
        }
    }
}

fn write_report(out: &mut Vec<u8>, note: &ProgressNotification<'_>) {
    out.push(b'{');
    if let Some(percentage) = note.percentage {
        out.extend_from_slice(b"\"percentage\":");
        json::write_f64(out, percentage);
    }
    if let Some(context) = note.context {
        if note.percentage.is_some() {
            out.push(b',');
        }
        out.extend_from_slice(b"\"context\":");
        match serde_json::from_str::<Value>(context) {
            Ok(context) => json::write_value(out, &context),
            Err(_) => json::write_string(out, context),
        }
    }
    out.push(b'}');
}

fn write_gap(out: &mut Vec<u8>, gap: &GapNotification<'_>) {
    let numbers = [
        ("{\"from_seq\":", gap.from_seq),
        (",\"to_seq\":", gap.to_seq),
        (",\"chunk_count\":", gap.chunk_count),
        (",\"byte_count\":", gap.byte_count),
    ];
    for (name, number) in numbers {
        out.extend_from_slice(name.as_bytes());
        json::write_u64(out, number);
    }
    out.extend_from_slice(b",\"reason\":");
    json::write_string(out, gap.reason);
    out.push(b'}');
}

/// Appends `notifications/tools/partial_result` (the draft SEP-2998). `seq` counts from 0. Chunks
/// of kind `content` become content blocks.
pub fn partial_result<'c>(
    out: &mut Vec<u8>,
    version: Version,
    token: &Id,
    seq: u64,
    chunks: impl Iterator<Item = ChunkNotification<'c>>,
) {
    begin(out, "notifications/tools/partial_result");
    out.extend_from_slice(b"\"partialResultToken\":");
    out.extend_from_slice(token.as_json().as_bytes());
    out.extend_from_slice(b",\"seq\":");
    json::write_u64(out, seq);
    out.extend_from_slice(b",\"content\":[");
    for (at, chunk) in chunks.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_block(out, version, &chunk);
    }
    out.push(b']');
    end(out);
}

fn write_block(out: &mut Vec<u8>, version: Version, chunk: &ChunkNotification<'_>) {
    if chunk.kind == "content" {
        json::write_value(out, &call::block(version, chunk.data));
        return;
    }
    let before = out.len();
    out.extend_from_slice(b"{\"type\":\"text\",\"text\":\"");
    if json::write_text(out, chunk.data).is_ok() {
        out.extend_from_slice(b"\"}");
        return;
    }
    out.truncate(before);
    out.extend_from_slice(b"{\"type\":\"resource\",\"resource\":{\"uri\":\"streamdoor://chunk/");
    json::write_u64(out, chunk.seq);
    out.extend_from_slice(b"\",\"mimeType\":\"application/octet-stream\",\"blob\":\"");
    base64::write(out, chunk.data);
    out.extend_from_slice(b"\"}}");
}

/// Appends `notifications/message`. `data` is text, or JSON that was parsed.
pub fn message(
    out: &mut Vec<u8>,
    level: Level,
    logger: Option<&str>,
    data: Data<'_>,
    task: Option<&str>,
) {
    begin(out, "notifications/message");
    out.extend_from_slice(b"\"level\":");
    json::write_string(out, level.name());
    if let Some(logger) = logger {
        out.extend_from_slice(b",\"logger\":");
        json::write_string(out, logger);
    }
    out.extend_from_slice(b",\"data\":");
    match data {
        Data::Text(text) => json::write_string(out, text),
        Data::Json(value) => json::write_value(out, value),
    }
    let mut meta = Meta::new();
    if let Some(task) = task {
        meta.task(out, task);
    }
    meta.end(out);
}

/// The data of a log message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Data<'a> {
    /// A text.
    Text(&'a str),
    /// Any JSON value.
    Json(&'a Value),
}

/// Appends `notifications/resources/updated`. A listener of the stateless era gets its id too.
pub fn resources_updated(out: &mut Vec<u8>, uri: &str, subscription: Option<&Id>) {
    begin(out, "notifications/resources/updated");
    out.extend_from_slice(b"\"uri\":");
    json::write_string(out, uri);
    let mut meta = Meta::new();
    if let Some(subscription) = subscription {
        meta.subscription(out, subscription);
    }
    meta.end(out);
}

/// Appends the notification that a list has changed. Templates and tasks have no such notification,
/// so nothing is appended for them.
pub fn list_changed(out: &mut Vec<u8>, list: List, subscription: Option<&Id>) {
    let method = match list {
        List::Tools => "notifications/tools/list_changed",
        List::Resources => "notifications/resources/list_changed",
        List::Prompts => "notifications/prompts/list_changed",
        List::Templates | List::Tasks => return,
    };
    begin(out, method);
    let mut meta = Meta::first();
    if let Some(subscription) = subscription {
        meta.subscription(out, subscription);
    }
    meta.end(out);
}

/// Appends `notifications/cancelled`: for a request of this server, or for a `subscriptions/listen`
/// that ends (B28).
pub fn cancelled(out: &mut Vec<u8>, id: &Id, reason: Option<&str>) {
    begin(out, "notifications/cancelled");
    out.extend_from_slice(b"\"requestId\":");
    out.extend_from_slice(id.as_json().as_bytes());
    if let Some(reason) = reason {
        out.extend_from_slice(b",\"reason\":");
        json::write_string(out, reason);
    }
    end(out);
}

/// Appends `notifications/subscriptions/acknowledged`, with the part of the filter that is honoured
/// (B29).
pub fn acknowledged(out: &mut Vec<u8>, subscription: &Id, filter: &Filter) {
    begin(out, "notifications/subscriptions/acknowledged");
    out.extend_from_slice(b"\"notifications\":");
    json::write_value(out, &filter.to_json());
    let mut meta = Meta::new();
    meta.subscription(out, subscription);
    meta.end(out);
}

/// Appends `notifications/tasks/status`, or `notifications/tasks` to a listener.
pub fn task(
    out: &mut Vec<u8>,
    version: Version,
    task: &Task<'_>,
    detail: Detail<'_>,
    subscription: Option<&Id>,
) {
    begin(
        out,
        match version.era() {
            Era::Handshake => "notifications/tasks/status",
            Era::Stateless => "notifications/tasks",
        },
    );
    for (at, (name, value)) in task.to_json_with(version, detail).iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        json::write_string(out, name);
        out.push(b':');
        json::write_value(out, value);
    }
    let mut meta = Meta::new();
    if let Some(subscription) = subscription {
        meta.subscription(out, subscription);
    }
    meta.end(out);
}

fn begin(out: &mut Vec<u8>, method: &str) {
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"method\":\"");
    out.extend_from_slice(method.as_bytes());
    out.extend_from_slice(b"\",\"params\":{");
}

fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"}}");
}

/// The member `_meta`, the last one of the parameters. It is left out if it is empty.
struct Meta {
    is_first_parameter: bool,
    member_count: u32,
}

impl Meta {
    /// Begins it behind other parameters.
    #[inline]
    fn new() -> Meta {
        Meta { is_first_parameter: false, member_count: 0 }
    }

    /// Begins it as the only parameter.
    fn first() -> Meta {
        Meta { is_first_parameter: true, member_count: 0 }
    }

    fn member(&mut self, out: &mut Vec<u8>, name: &str) {
        let before: &[u8] = match (self.member_count, self.is_first_parameter) {
            (0, true) => b"\"_meta\":{\"",
            (0, false) => b",\"_meta\":{\"",
            _ => b",\"",
        };
        out.extend_from_slice(before);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        self.member_count += 1;
    }

    /// Appends the member of the chunks, which is the first member, until the first one's number.
    #[inline]
    fn first_chunk(&mut self, out: &mut Vec<u8>) {
        assert!(self.member_count == 0 && !self.is_first_parameter);
        out.extend_from_slice(b",\"_meta\":{\"dev.streamdoor/chunks\":[{\"seq\":");
        self.member_count = 1;
    }

    fn subscription(&mut self, out: &mut Vec<u8>, id: &Id) {
        self.member(out, META_SUBSCRIPTION);
        out.extend_from_slice(id.as_json().as_bytes());
    }

    fn task(&mut self, out: &mut Vec<u8>, id: &str) {
        self.member(out, META_TASK);
        out.extend_from_slice(b"{\"taskId\":");
        json::write_string(out, id);
        out.push(b'}');
    }

    /// Ends it, its parameters and the notification.
    #[inline]
    fn end(self, out: &mut Vec<u8>) {
        match self.member_count {
            0 => end(out),
            _ => out.extend_from_slice(b"}}}"),
        }
    }
}
