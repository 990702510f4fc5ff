//! The result of one call, out of what came from its tool: text and bytes are put together, content
//! blocks stay as they are.

use serde_json::{Map, Value, json};

use super::catalog::encoded;
use super::context::{META_EVENTS, META_EXECUTION, META_STREAM};
use super::relayed::{Form, Relayed};
use super::results::{Results, add_meta, output_schema};
use super::{Era, Version};
use crate::engine::{Kind, Outcome};
use crate::limits;
use crate::tool::ToolSpec;
use crate::wire::base64;

/// What came from a tool, in its order, as long as it is not too much for one result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collected {
    /// Everything that is no content block.
    output: Vec<u8>,
    /// Content blocks, as JSON, one behind the other; and where each ends.
    blocks: Vec<u8>,
    block_ends: Vec<usize>,
    /// How many blocks came before the first of `output`.
    output_place: usize,
    /// Of a tool of another server: its result, unit by unit. Then all else is empty.
    relayed: Option<Box<Relayed>>,
}

impl Collected {
    /// With room for all that one result holds.
    pub fn new() -> Collected {
        Collected::default()
    }

    /// For a tool of another server, whose result becomes what it was there.
    pub fn relaying() -> Collected {
        Collected { relayed: Some(Box::default()), ..Collected::default() }
    }

    /// Takes a chunk of any kind, if there is room for it; `has_more`: it goes on in the next one.
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

    /// Takes a chunk, if there is room for it. `is_block`: it is a content block, or a part of one;
    /// `has_more`: another part follows.
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

    /// So many bytes still fit.
    pub fn room(&self) -> usize {
        let bytes_max = match self.relayed {
            Some(_) => limits::UPSTREAM_RESULT_BYTES_MAX,
            None => limits::MCP_RESULT_BYTES_MAX,
        };
        bytes_max - self.len()
    }

    /// Bytes that came.
    pub fn len(&self) -> usize {
        let relayed_bytes = self.relayed.as_ref().map_or(0, |relayed| relayed.bytes().len());
        self.output.len() + self.blocks.len() + relayed_bytes
    }

    /// Did nothing come?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that came: what is no content block in one piece where it began, each block as a line of
    /// JSON.
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
        bytes.extend_from_slice(&self.blocks[start..]); // Of a block whose end is still to come.
        bytes
    }

    /// Everything that is no content block.
    pub fn output(&self) -> &[u8] {
        self.relayed.as_ref().map_or(&self.output, |relayed| relayed.first_text())
    }

    /// All content blocks of a result: what came as one and makes none is text.
    fn content(&self, version: Version, execution: &str) -> Vec<Value> {
        let mut content = Vec::with_capacity(self.block_ends.len() + 1);
        let mut start = 0;
        for &end in &self.block_ends {
            content.push(block(version, &self.blocks[start..end]));
            start = end;
        }
        if !self.output.is_empty() {
            content.insert(self.output_place, output_block(&self.output, execution));
        }
        content
    }
}

/// How a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End<'a> {
    /// In which way.
    pub outcome: Outcome,
    /// Why, if it went wrong.
    pub error: Option<&'a str>,
}

/// What every result of a call says about its execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallMeta<'a> {
    /// Under which its progress is told, by us.
    pub progress_token: Option<&'a str>,
    /// Its id.
    pub execution: &'a str,
    /// Where its native stream is, if there is one.
    pub events: Option<&'a str>,
}

impl CallMeta<'_> {
    fn add_to(&self, members: &mut Map<String, Value>) {
        if let Some(token) = self.progress_token {
            add_meta(members, "progressToken", token.into());
        }
        if !self.execution.is_empty() {
            add_meta(members, META_EXECUTION, self.execution.into());
        }
        if let Some(events) = self.events {
            add_meta(members, META_EVENTS, events.into());
        }
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
        let begins = "This is how the result begins";
        let stream_read = |stream_id: &str| {
            format!(
                "{{\"stream_id\": \"{stream_id}\"}}, again and again until it says \"done\": \
                 true. Close it with stream_close."
            )
        };
        match self {
            Rest::Stream(stream_id) => {
                let rest = stream_read(stream_id);
                let how = match is_all {
                    true => "The result is a stream.",
                    false => &format!("{begins}; all of it is a stream."),
                };
                format!("{how} Read it with the tool stream_read, from the beginning: {rest}")
            }
            Rest::Held(stream_id) => format!(
                "{begins}. It is too long for one answer, and only its end is still held. Read \
                 that with the tool stream_read: {}",
                stream_read(stream_id)
            ),
            Rest::Told => format!(
                "{begins}. It is too long for one answer. The notifications of this call were all \
                 of it, except for what their gaps name; there is no stream to read."
            ),
            Rest::CutShort => format!(
                "{begins}. It is too long for one answer, and the notifications of this call were \
                 only a part of it: they ended when they were not read for too long."
            ),
            Rest::Lost => format!(
                "{begins}. It is longer than one answer can be ({} bytes), and the rest was not \
                 kept: this call wanted no stream (\"{META_STREAM}\": false), and no \
                 notifications (\"progressToken\").",
                limits::MCP_RESULT_BYTES_MAX
            ),
        }
    }
}

impl Results<'_> {
    /// Of a call that has ended, with all that came (A35, A36). `fits` checks an output by the
    /// schema of its tool.
    pub fn call(
        &self,
        collected: &Collected,
        end: End<'_>,
        spec: &ToolSpec,
        meta: CallMeta<'_>,
        fits: &dyn Fn(&Value) -> Result<(), String>,
    ) -> Value {
        if let Some(relayed) = &collected.relayed {
            return self.call_relayed(relayed, end, meta, fits);
        }
        let mut content = collected.content(self.version(), meta.execution);
        let mut members = Map::new();
        let mut problem = problem(end);
        if problem.is_none() && output_schema(spec, self.version()).is_some() {
            match structured(self.version(), collected.output(), fits) {
                Ok(value) => {
                    members.insert("structuredContent".to_owned(), value);
                }
                Err(text) => problem = Some(text),
            }
        }
        let is_error = problem.is_some();
        content.extend(problem.map(|text| text_block(&text)));
        finish(members, content, is_error, meta, self)
    }

    /// The same of a tool of another server: its blocks, and what it gave as structured content. If
    /// that is not what it has promised, whoever reads it is told so instead.
    fn call_relayed(
        &self,
        relayed: &Relayed,
        end: End<'_>,
        meta: CallMeta<'_>,
        fits: &dyn Fn(&Value) -> Result<(), String>,
    ) -> Value {
        let version = self.version();
        let mut content = relayed.content(|bytes| block(version, bytes));
        let mut members = Map::new();
        let mut problem = problem(end);
        // Where this version has it at all: in the handshake era it is an object.
        let can_have = |value: &Value| match version.era() {
            Era::Handshake => version >= Version::V2025_06_18 && value.is_object(),
            Era::Stateless => true,
        };
        if problem.is_none()
            && let Some(value) = relayed.structured().filter(can_have)
        {
            match fits(&value) {
                Ok(()) => drop(members.insert("structuredContent".to_owned(), value)),
                Err(text) => {
                    problem = Some(format!(
                        "The output of the tool is not what its schema promises: {text}"
                    ));
                }
            }
        }
        let is_error = problem.is_some();
        // A long reason is how its text begins, which is there already.
        let is_said = |problem: &String| {
            let beginning = problem.strip_suffix('…').unwrap_or("\0");
            content
                .iter()
                .any(|block| block["text"].as_str().is_some_and(|text| text.starts_with(beginning)))
        };
        let unsaid = problem.filter(|problem| !is_said(problem));
        content.extend(unsaid.map(|text| text_block(&text)));
        finish(members, content, is_error, meta, self)
    }

    /// Of a call that did not begin: what is wrong with its arguments, or why its tool refuses
    /// (A36: the model is to read it).
    pub fn call_refused(&self, problem: &str, meta: CallMeta<'_>) -> Value {
        finish(Map::new(), vec![text_block(problem)], true, meta, self)
    }

    /// For a call whose result is too long, or was wanted as a stream: how it begins, and where the
    /// rest is. A tool whose output has a schema owes all of it: then it is an error, as it is
    /// where a part of the rest is lost.
    pub fn call_in_part(
        &self,
        beginning: &[u8],
        rest: Rest<'_>,
        spec: &ToolSpec,
        meta: CallMeta<'_>,
    ) -> Value {
        let beginning = &beginning[..beginning.len().min(limits::MCP_SUMMARY_BYTES)];
        let text = beginning_text(beginning);
        let mut content = Vec::new();
        if !text.is_empty() {
            content.push(text_block(text));
        }
        let has_schema = output_schema(spec, self.version()).is_some();
        content.push(text_block(&rest.in_words(text.is_empty())));
        if has_schema {
            content.push(text_block("It is too long to be given as structured content."));
        }
        let is_error = has_schema || rest.is_lost();
        let mut document = finish(Map::new(), content, is_error, meta, self);
        if let Value::Object(members) = &mut document
            && let Rest::Stream(stream_id) | Rest::Held(stream_id) = rest
        {
            add_meta(members, META_STREAM, json!({ "stream_id": stream_id }));
        }
        document
    }

    /// Of a tool of ours whose output is one JSON value: `stream_read` and the like.
    pub fn call_value(&self, value: Value, meta: CallMeta<'_>) -> Value {
        let content = vec![text_block(&value.to_string())];
        let mut members = Map::new();
        if self.version() >= Version::V2025_06_18 {
            members.insert("structuredContent".to_owned(), value);
        }
        finish(members, content, false, meta, self)
    }
}

fn finish(
    mut members: Map<String, Value>,
    content: Vec<Value>,
    is_error: bool,
    meta: CallMeta<'_>,
    results: &Results<'_>,
) -> Value {
    members.insert("content".to_owned(), content.into());
    if is_error {
        members.insert("isError".to_owned(), true.into());
    }
    meta.add_to(&mut members);
    results.complete(members)
}

/// What went wrong, in a sentence for a model.
fn problem(end: End<'_>) -> Option<String> {
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

fn structured(
    version: Version,
    output: &[u8],
    fits: &dyn Fn(&Value) -> Result<(), String>,
) -> Result<Value, String> {
    let value: Value = serde_json::from_slice(output)
        .map_err(|error| format!("The output of the tool is not the JSON it promises: {error}"))?;
    if version.era() == Era::Handshake && !value.is_object() {
        return Err("The output of the tool is not the object it promises.".to_owned());
    }
    match fits(&value) {
        Ok(()) => Ok(value),
        Err(problem) => {
            Err(format!("The output of the tool is not what its schema promises: {problem}"))
        }
    }
}

/// A block of text.
pub fn text_block(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

/// Output that is no content block: text if it is that, else bytes as a resource.
fn output_block(output: &[u8], execution: &str) -> Value {
    match std::str::from_utf8(output) {
        Ok(text) => text_block(text),
        Err(_) => {
            let uri = format!("streamdoor://executions/{execution}/output");
            let mime_type = "application/octet-stream";
            let resource = json!({ "uri": uri, "mimeType": mime_type, "blob": encoded(output) });
            json!({ "type": "resource", "resource": resource })
        }
    }
}

/// The valid text that bytes begin with.
fn beginning_text(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).expect("it is valid"),
    }
}

/// A content block of a tool, if this version has such ones; else the same as text.
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

/// Is it a content block of this version, with everything that it must have?
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
