//! The result of one call, made of the output of its tool. Text and bytes are joined, and content
//! blocks stay as they are.

use serde_json::{Value, json};

use super::call_result::{Blocks, CallResult, Frame};
use super::context::META_STREAM;
use super::relayed::{Form, Relayed};
use super::results::{Results, output_schema};
use super::{Era, Version};
use crate::limits;
use crate::stream::{Kind, Outcome};
use crate::tool::ToolSpec;
use crate::wire::base64;

/// The output of a tool, in order, up to the limit of one result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collected {
    /// All output that is no content block.
    output: Vec<u8>,
    /// Content blocks as JSON, one after the other; `block_ends` holds the end of each.
    blocks: Vec<u8>,
    block_ends: Vec<usize>,
    /// Number of blocks that came before the first byte of `output`.
    output_place: usize,
    /// The result of a tool of another server, unit by unit. All other fields are empty then.
    relayed: Option<Box<Relayed>>,
}

impl Collected {
    /// Returns an empty value for the output of a tool.
    pub fn new() -> Collected {
        Collected::default()
    }

    /// Returns an empty value for a tool of another server, whose result is passed on unchanged.
    pub fn relaying() -> Collected {
        Collected { relayed: Some(Box::default()), ..Collected::default() }
    }

    /// Takes a chunk of any kind if it fits, and returns whether it does. `has_more`: the unit
    /// continues in the next chunk.
    #[must_use]
    pub fn push_chunk(&mut self, kind: Kind, has_more: bool, bytes: &[u8]) -> bool {
        if bytes.len() > self.room() {
            return false;
        }
        match &mut self.relayed {
            Some(relayed) => relayed.push(Form::of(kind), has_more, bytes),
            None => return self.push(kind == Kind::Content, has_more, bytes),
        }
        true
    }

    /// Takes a chunk if it fits, and returns whether it does. `is_block`: the chunk is a content
    /// block or a part of one. `has_more`: another part follows.
    #[must_use]
    pub fn push(&mut self, is_block: bool, has_more: bool, bytes: &[u8]) -> bool {
        if bytes.len() > self.room() {
            return false;
        }
        if is_block {
            self.blocks.extend_from_slice(bytes);
            if !has_more {
                self.block_ends.push(self.blocks.len());
            }
            return true;
        }
        if self.output.is_empty() {
            self.output_place = self.block_ends.len();
        }
        self.output.extend_from_slice(bytes);
        true
    }

    /// Number of bytes that still fit.
    pub fn room(&self) -> usize {
        let bytes_max = match self.relayed {
            Some(_) => limits::UPSTREAM_RESULT_BYTES_MAX,
            None => limits::MCP_RESULT_BYTES_MAX,
        };
        bytes_max - self.len()
    }

    /// Number of bytes taken so far.
    pub fn len(&self) -> usize {
        let relayed_bytes = self.relayed.as_ref().map_or(0, |relayed| relayed.bytes().len());
        self.output.len() + self.blocks.len() + relayed_bytes
    }

    /// True if no bytes were taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all output. Each content block is one line of JSON. All other output stands in one
    /// piece, at the place where it began.
    pub fn into_bytes(self) -> Vec<u8> {
        if let Some(relayed) = &self.relayed {
            return relayed.to_lines();
        }
        let mut bytes = Vec::with_capacity(self.len() + self.block_ends.len());
        let mut start = 0;
        for (place, &end) in self.block_ends.iter().enumerate() {
            if place == self.output_place {
                bytes.extend_from_slice(&self.output);
            }
            bytes.extend_from_slice(&self.blocks[start..end]);
            bytes.push(b'\n');
            start = end;
        }
        if self.output_place >= self.block_ends.len() {
            bytes.extend_from_slice(&self.output);
        }
        bytes.extend_from_slice(&self.blocks[start..]); // A block whose end is missing.
        bytes
    }

    /// All output that is no content block.
    pub fn output(&self) -> &[u8] {
        self.relayed.as_ref().map_or(&self.output, |relayed| relayed.first_text())
    }

    /// Appends all content blocks of a result. A chunk that came as a block and is not a valid one
    /// becomes text.
    fn write_content(&self, content: &mut Blocks<'_>, version: Version, execution: &str) {
        let output = Some(&self.output).filter(|output| !output.is_empty());
        let mut start = 0;
        for (place, &end) in self.block_ends.iter().enumerate() {
            if let Some(output) = output.filter(|_| place == self.output_place) {
                content.output(output, execution);
            }
            content.value(&block(version, &self.blocks[start..end]));
            start = end;
        }
        if let Some(output) = output.filter(|_| self.output_place >= self.block_ends.len()) {
            content.output(output, execution);
        }
    }
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolCallEnd<'a> {
    /// The outcome of the execution.
    pub outcome: Outcome,
    /// The reason, if the call failed.
    pub error: Option<&'a str>,
}

/// Data about the execution that every result of a call carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallMeta<'a> {
    /// The token under which this server reports the progress.
    pub progress_token: Option<&'a str>,
    /// The id of the execution; empty if the call has none.
    pub execution: &'a str,
    /// The address of its native stream, if it has one.
    pub events: Option<&'a str>,
}

impl CallMeta<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.progress_token.is_none() && self.execution.is_empty() && self.events.is_none()
    }
}

/// The place of a result that is too long for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest<'a> {
    /// In the stream of this name, from its beginning.
    Stream(&'a str),
    /// The part of its end that is still held, in the stream of this name.
    Held(&'a str),
    /// In the notifications of its call.
    Told,
    /// The notifications of its call were not all of it: its client took none for too long.
    CutShort,
    /// Nowhere: its call wanted neither a stream nor notifications.
    Lost,
}

impl Rest<'_> {
    fn is_lost(self) -> bool {
        matches!(self, Rest::CutShort | Rest::Lost)
    }

    fn in_words(self, is_all: bool) -> String {
        let begins = "This is the beginning of the result";
        let stream_read = |stream_id: &str| {
            format!(
                "{{\"stream_id\": \"{stream_id}\"}}. Repeat this until it returns \"done\": true. \
                 Then close the stream with stream_close."
            )
        };
        match self {
            Rest::Stream(stream_id) => {
                let rest = stream_read(stream_id);
                let how = match is_all {
                    true => "The result is a stream.",
                    false => &format!("{begins}. The whole result is a stream."),
                };
                format!("{how} Read it from the beginning with the tool stream_read: {rest}")
            }
            Rest::Held(stream_id) => format!(
                "{begins}. It is too long for one answer, and only its end is still held. Read the \
                 end with the tool stream_read: {}",
                stream_read(stream_id)
            ),
            Rest::Told => format!(
                "{begins}. It is too long for one answer. The notifications of this call contained \
                 all of it, except for their gaps. There is no stream to read."
            ),
            Rest::CutShort => format!(
                "{begins}. It is too long for one answer. The notifications of this call contained \
                 only a part of it, because the client did not read them for too long."
            ),
            Rest::Lost => format!(
                "{begins}. It is longer than the limit of one answer ({} bytes). The rest was not \
                 kept, because this call wanted no stream (\"{META_STREAM}\": false) and no \
                 notifications (\"progressToken\").",
                limits::MCP_RESULT_BYTES_MAX
            ),
        }
    }
}

impl Results<'_> {
    /// The result of a call that has ended, with all output (A35, A36). `fits` checks an output by
    /// the schema of its tool.
    pub fn call(
        &self,
        collected: &Collected,
        end: ToolCallEnd<'_>,
        spec: &ToolSpec,
        meta: CallMeta<'_>,
        fits: &dyn Fn(&Value) -> Result<(), String>,
    ) -> CallResult {
        if let Some(relayed) = &collected.relayed {
            return self.call_relayed(relayed, end, meta, fits);
        }
        let mut structured = None;
        let mut problem = problem(end);
        if problem.is_none() && output_schema(spec, self.version()).is_some() {
            match structured_of(self.version(), collected.output(), fits) {
                Ok(value) => structured = Some(value),
                Err(text) => problem = Some(text),
            }
        }
        let (structured, is_error) = (structured.as_ref(), problem.is_some());
        self.spell(Frame { structured, is_error, meta, stream_id: None }, |content| {
            collected.write_content(content, self.version(), meta.execution);
            if let Some(problem) = &problem {
                content.text(problem);
            }
        })
    }

    /// The result of a call of another server's tool: its blocks and its structured content.
    /// Structured content that breaks the tool's schema is replaced by an error text.
    fn call_relayed(
        &self,
        relayed: &Relayed,
        end: ToolCallEnd<'_>,
        meta: CallMeta<'_>,
        fits: &dyn Fn(&Value) -> Result<(), String>,
    ) -> CallResult {
        let version = self.version();
        let blocks = relayed.content(|bytes| block(version, bytes));
        let mut structured = None;
        let mut problem = problem(end);
        // The versions that can carry it: in the handshake era it must be an object.
        let can_have = |value: &Value| match version.era() {
            Era::Handshake => version >= Version::V2025_06_18 && value.is_object(),
            Era::Stateless => true,
        };
        if problem.is_none()
            && let Some(value) = relayed.structured().filter(can_have)
        {
            match fits(&value) {
                Ok(()) => structured = Some(value),
                Err(text) => {
                    problem =
                        Some(format!("The output of the tool does not match its schema: {text}"));
                }
            }
        }
        // A long reason is the beginning of a text that the result holds already.
        let is_said = |problem: &String| {
            let beginning = problem.strip_suffix('…').unwrap_or("\0");
            blocks
                .iter()
                .any(|block| block["text"].as_str().is_some_and(|text| text.starts_with(beginning)))
        };
        let (structured, is_error) = (structured.as_ref(), problem.is_some());
        let unsaid = problem.filter(|problem| !is_said(problem));
        self.spell(Frame { structured, is_error, meta, stream_id: None }, |content| {
            for block in &blocks {
                content.value(block);
            }
            if let Some(problem) = &unsaid {
                content.text(problem);
            }
        })
    }

    /// The result of a call that did not begin (A36). Its text gives the model the reason: the
    /// arguments are wrong, or the tool refuses them.
    pub fn call_refused(&self, problem: &str, meta: CallMeta<'_>) -> CallResult {
        let frame = Frame { is_error: true, meta, ..Frame::default() };
        self.spell(frame, |content| content.text(problem))
    }

    /// The result of a call whose output is too long, or was requested as a stream. It holds the
    /// beginning of the output and the place of the rest. It is an error if the tool's output has a
    /// schema, because all of it is required then. It is also an error if a part of the rest is
    /// lost.
    pub fn call_in_part(
        &self,
        beginning: &[u8],
        rest: Rest<'_>,
        spec: &ToolSpec,
        meta: CallMeta<'_>,
    ) -> CallResult {
        let beginning = &beginning[..beginning.len().min(limits::MCP_SUMMARY_BYTES)];
        let text = beginning_text(beginning);
        let has_schema = output_schema(spec, self.version()).is_some();
        let is_error = has_schema || rest.is_lost();
        let stream_id = match rest {
            Rest::Stream(stream_id) | Rest::Held(stream_id) => Some(stream_id),
            Rest::Told | Rest::CutShort | Rest::Lost => None,
        };
        self.spell(Frame { structured: None, is_error, meta, stream_id }, |content| {
            if !text.is_empty() {
                content.text(text);
            }
            content.text(&rest.in_words(text.is_empty()));
            if has_schema {
                content.text("The result is too long for structured content.");
            }
        })
    }

    /// The result of one of this server's own tools whose output is one JSON value, such as
    /// `stream_read`.
    pub fn call_value(&self, value: &Value, meta: CallMeta<'_>) -> CallResult {
        let structured = Some(value).filter(|_| self.version() >= Version::V2025_06_18);
        let frame = Frame { structured, meta, ..Frame::default() };
        self.spell(frame, |content| content.text(&value.to_string()))
    }
}

/// The failure of a call, as a sentence for a model; `None` if it completed.
fn problem(end: ToolCallEnd<'_>) -> Option<String> {
    let said = end.error.filter(|text| !text.is_empty());
    let text = match end.outcome {
        Outcome::Completed => return None,
        Outcome::Failed => said.unwrap_or("The tool failed.").to_owned(),
        Outcome::Cancelled => match said {
            Some(said) => format!("The execution was cancelled: {said}"),
            None => "The execution was cancelled before it was complete.".to_owned(),
        },
        Outcome::TimedOut => match said {
            Some(said) => format!("The execution took too long: {said}"),
            None => "The execution took too long.".to_owned(),
        },
    };
    Some(text)
}

fn structured_of(
    version: Version,
    output: &[u8],
    fits: &dyn Fn(&Value) -> Result<(), String>,
) -> Result<Value, String> {
    let value: Value = serde_json::from_slice(output).map_err(|error| {
        format!("The output of the tool is not JSON, which its schema requires: {error}")
    })?;
    if version.era() == Era::Handshake && !value.is_object() {
        return Err(
            "The output of the tool is not an object, which its schema requires.".to_owned()
        );
    }
    match fits(&value) {
        Ok(()) => Ok(value),
        Err(problem) => Err(format!("The output of the tool does not match its schema: {problem}")),
    }
}

/// A block of text.
pub fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// The longest valid text at the start of `bytes`.
fn beginning_text(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("the prefix is valid UTF-8")
        }
    }
}

/// A content block of a tool, if it is a valid block of this version; otherwise its bytes as text.
pub fn block(version: Version, bytes: &[u8]) -> Value {
    let read: Option<Value> = serde_json::from_slice(bytes).ok();
    match read.filter(|block| is_block(version, block)) {
        Some(block) => block,
        None => text_block(&String::from_utf8_lossy(bytes)),
    }
}

fn is_base64(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_str).is_some_and(|text| base64::read(text).is_some())
}

/// True if `block` is a content block of this version, with all members that it must have.
fn is_block(version: Version, block: &Value) -> bool {
    let is_text = |value: &Value, name: &str| value.get(name).is_some_and(Value::is_string);
    match block.get("type").and_then(Value::as_str) {
        Some("text") => is_text(block, "text"),
        Some("image") => is_base64(block, "data") && is_text(block, "mimeType"),
        Some("audio") => {
            version >= Version::V2025_03_26
                && is_base64(block, "data")
                && is_text(block, "mimeType")
        }
        Some("resource") => block.get("resource").is_some_and(|resource| {
            is_text(resource, "uri") && (is_text(resource, "text") ^ is_base64(resource, "blob"))
        }),
        Some("resource_link") => {
            version >= Version::V2025_06_18 && is_text(block, "uri") && is_text(block, "name")
        }
        _ => false,
    }
}
