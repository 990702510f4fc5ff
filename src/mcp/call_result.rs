//! The result of a call, spelled while it is made. A tree of it would cost more than the rest of a
//! short call.

use serde_json::Value;

use super::catalog::encoded;
use super::context::{META_EVENTS, META_EXECUTION, META_SERVER, META_STREAM};
use super::results::Results;
use super::{CallMeta, Era};
use crate::wire::json;
use crate::wire::object::{Object, write_object};

/// Room for a short result.
const SHORT_BYTES: usize = 512;

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallResult {
    json: Vec<u8>,
    is_error: bool,
}

impl CallResult {
    /// The result in JSON.
    pub fn as_json(&self) -> &[u8] {
        &self.json
    }

    /// True if the call has failed.
    pub fn is_error(&self) -> bool {
        self.is_error
    }
}

impl From<CallResult> for Value {
    fn from(result: CallResult) -> Value {
        serde_json::from_slice(&result.json).expect("a result is valid JSON")
    }
}

/// The content of a result, block by block.
pub(super) struct Blocks<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl Blocks<'_> {
    fn next(&mut self) -> &mut Vec<u8> {
        if !self.is_empty {
            self.out.push(b',');
        }
        self.is_empty = false;
        self.out
    }

    /// Appends a block of text.
    pub fn text(&mut self, text: &str) {
        write_object(self.next(), |block| {
            block.text("type", "text");
            block.text("text", text);
        });
    }

    /// Appends a block.
    pub fn value(&mut self, block: &Value) {
        json::write_value(self.next(), block);
    }

    /// Appends output of an execution that is no content block: text if it is valid UTF-8,
    /// otherwise a resource with its bytes.
    pub fn output(&mut self, output: &[u8], execution: &str) {
        match std::str::from_utf8(output) {
            Ok(text) => self.text(text),
            Err(_) => write_object(self.next(), |block| {
                block.text("type", "resource");
                block.object("resource", |resource| {
                    resource.texts("uri", &["streamdoor://executions/", execution, "/output"]);
                    resource.text("mimeType", "application/octet-stream");
                    resource.text("blob", &encoded(output));
                });
            }),
        }
    }
}

/// The members of a result beside its content.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame<'a> {
    pub structured: Option<&'a Value>,
    pub is_error: bool,
    pub meta: CallMeta<'a>,
    /// The stream that holds the whole output or its end.
    pub stream_id: Option<&'a str>,
}

impl Results<'_> {
    /// Spells the result of a call, with the content that `fill` appends.
    pub(super) fn spell(&self, frame: Frame<'_>, fill: impl FnOnce(&mut Blocks<'_>)) -> CallResult {
        let Frame { structured, is_error, meta, stream_id } = frame;
        let is_stateless = self.version().era() == Era::Stateless;
        let write_meta = |members: &mut Object<'_>| {
            members.text_if("progressToken", meta.progress_token);
            members.text_if(META_EXECUTION, Some(meta.execution).filter(|it| !it.is_empty()));
            members.text_if(META_EVENTS, meta.events);
            if is_stateless {
                self.server().write(members.name(META_SERVER), self.version());
            }
            if let Some(stream_id) = stream_id {
                members.object(META_STREAM, |stream| stream.text("stream_id", stream_id));
            }
        };
        let mut json = Vec::with_capacity(SHORT_BYTES);
        write_object(&mut json, |result| {
            if let Some(structured) = structured {
                result.value("structuredContent", structured);
            }
            let out = result.name("content");
            out.push(b'[');
            fill(&mut Blocks { out, is_empty: true });
            out.push(b']');
            result.flag_if("isError", is_error);
            if !meta.is_empty() {
                result.object("_meta", write_meta);
            }
            if is_stateless {
                result.text("resultType", "complete");
            }
            if meta.is_empty() && (is_stateless || stream_id.is_some()) {
                result.object("_meta", write_meta);
            }
        });
        CallResult { json, is_error }
    }
}
