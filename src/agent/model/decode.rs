//! Decodes the bytes of an answer's body, split anywhere, into events.

use std::collections::VecDeque;
use std::fmt;

use serde_json::Value;

use crate::agent::message::ToolDescription;
use crate::agent::model::answer_builder::AnswerBuilder;
use crate::agent::model::chat::Chat;
use crate::agent::model::messages::Messages;
use crate::agent::model::reported_error::{ReportedError, is_error};
use crate::agent::model::responses::Responses;
use crate::agent::model::{Endpoint, ModelEvent, ModelFault, Secret, Wire};
use crate::limits;
use crate::wire::sse;

/// Decodes the body of an answer with a 2xx status while it comes. The body is an event stream, or
/// one JSON document from a server that does not stream.
///
/// ```
/// use std::collections::VecDeque;
/// use streamdoor::agent::model::{AnswerDecoder, Endpoint, FinishReason, ModelEvent, Wire};
///
/// let base_url = "http://127.0.0.1:8080/v1".parse()?;
/// let model = "any".to_owned();
/// let endpoint = Endpoint { wire: Wire::ChatCompletions, base_url, model, key: None };
/// let (mut decoder, mut events) = (AnswerDecoder::new(&endpoint, &[]), VecDeque::new());
/// decoder.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"Hi", &mut events)?;
/// assert!(events.is_empty()); // No event is whole yet.
/// decoder.feed(b"\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", &mut events)?;
/// decoder.end(&mut events)?; // An answer without its end would fail here.
/// let expected = [ModelEvent::Text("Hi".into()), ModelEvent::Finished(FinishReason::Stop)];
/// assert_eq!(events, expected);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AnswerDecoder {
    form: Form,
    machine: Machine,
    builder: AnswerBuilder,
    key: Option<Secret>,
    failed: Option<ModelFault>,
}

/// The form of a body.
enum Form {
    /// Nothing was received but white space or a byte order mark.
    Unknown(sse::Decoder),
    Stream(sse::Decoder),
    /// The document, as far as it was received.
    Document(Vec<u8>),
}

enum Machine {
    Chat(Chat),
    Responses(Responses),
    Messages(Messages),
}

impl AnswerDecoder {
    /// Creates a decoder for an answer of `endpoint` to a request with `tools`.
    pub fn new(endpoint: &Endpoint, tools: &[ToolDescription]) -> AnswerDecoder {
        AnswerDecoder {
            form: Form::new(),
            machine: Machine::new(endpoint.wire),
            builder: AnswerBuilder::new(endpoint.wire, tools),
            key: endpoint.key.clone(),
            failed: None,
        }
    }

    /// Restarts the decoder for another answer to the same request.
    pub(super) fn restart(&mut self) {
        self.form = Form::new();
        self.machine = Machine::new(self.builder.wire());
        self.builder.restart();
        self.failed = None;
    }

    /// Decodes the next bytes and appends their events to `out`. Bytes after the end are ignored.
    ///
    /// # Errors
    /// [`ModelFault`], and the same for every later call. Events from before the fault are in
    /// `out`.
    pub fn feed(&mut self, bytes: &[u8], out: &mut VecDeque<ModelEvent>) -> Result<(), ModelFault> {
        self.step(out, |decoder| decoder.read(bytes))
    }

    /// Ends the body, whether it is complete or its connection broke.
    ///
    /// # Errors
    /// [`ModelFault::Truncated`] if the answer is not complete; otherwise as
    /// [`AnswerDecoder::feed`].
    pub fn end(&mut self, out: &mut VecDeque<ModelEvent>) -> Result<(), ModelFault> {
        self.step(out, AnswerDecoder::read_end)
    }

    /// True if [`ModelEvent::Finished`] was emitted. The rest of the body is then irrelevant.
    pub fn is_finished(&self) -> bool {
        self.builder.is_finished()
    }

    fn step(
        &mut self,
        out: &mut VecDeque<ModelEvent>,
        read: impl FnOnce(&mut AnswerDecoder) -> Result<(), ModelFault>,
    ) -> Result<(), ModelFault> {
        if let Some(fault) = &self.failed {
            return Err(fault.clone());
        }
        if self.is_finished() {
            return Ok(());
        }
        let result = read(self);
        out.append(&mut self.builder.events);
        self.failed = result.as_ref().err().cloned();
        result
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), ModelFault> {
        if matches!(self.form, Form::Unknown(_)) {
            let says_nothing = |byte: &u8| b" \t\r\n\xEF\xBB\xBF".contains(byte);
            if let Some(at) = bytes.iter().position(|byte| !says_nothing(byte)) {
                self.decide(matches!(bytes[at], b'{' | b'['));
                if matches!(self.form, Form::Document(_)) {
                    return self.read(&bytes[at..]);
                }
            }
        }
        match &mut self.form {
            Form::Document(begun) => {
                let limit = limits::MODEL_FRAME_BYTES_MAX;
                if bytes.len() > limit - begun.len() {
                    return Err(ModelFault::TooLong { what: "document", limit });
                }
                begun.extend_from_slice(bytes);
                Ok(())
            }
            Form::Unknown(_) | Form::Stream(_) => {
                self.read_frames(bytes, || malformed("has a frame that is not JSON"))
            }
        }
    }

    /// Decides the form of the body. A line of an event stream never begins with a brace or a
    /// bracket.
    fn decide(&mut self, is_document: bool) {
        let form = std::mem::replace(&mut self.form, Form::Document(Vec::new()));
        if let (Form::Unknown(decoder), false) = (form, is_document) {
            self.form = Form::Stream(decoder);
        }
    }

    fn read_frames(
        &mut self,
        mut input: &[u8],
        on_bad_json: impl Fn() -> ModelFault,
    ) -> Result<(), ModelFault> {
        let AnswerDecoder { form: Form::Unknown(decoder) | Form::Stream(decoder), .. } = self
        else {
            unreachable!("a document has no frames");
        };
        let limit = limits::MODEL_FRAME_BYTES_MAX;
        let too_long = |_| ModelFault::TooLong { what: "frame", limit };
        while let Some(message) = decoder.read(&mut input).map_err(too_long)? {
            let data = message.data();
            let data = data.trim_ascii();
            if data.starts_with("[DONE]") {
                self.machine.done(&mut self.builder)?;
            } else if !data.is_empty() {
                let frame: Value = serde_json::from_str(data).map_err(|_| on_bad_json())?;
                let name = message.name();
                if is_error(&name, &frame) {
                    return Err(ReportedError::of(&frame).into_fault(self.key.as_ref()));
                }
                self.machine.frame(&name, &frame, &mut self.builder, self.key.as_ref())?;
            }
            if self.builder.is_finished() {
                break;
            }
        }
        Ok(())
    }

    fn read_end(&mut self) -> Result<(), ModelFault> {
        match &mut self.form {
            Form::Document(text) => {
                let text = std::mem::take(text);
                self.read_document(&text)?;
            }
            // The last frame may lack its empty line. If it lacks more than that, it is no valid
            // JSON.
            Form::Unknown(_) | Form::Stream(_) => {
                self.read_frames(b"\n\n", || ModelFault::Truncated)?;
                if !self.is_finished() {
                    self.machine.end(&mut self.builder)?;
                }
            }
        }
        if self.is_finished() { Ok(()) } else { Err(ModelFault::Truncated) }
    }

    fn read_document(&mut self, text: &[u8]) -> Result<(), ModelFault> {
        let text = String::from_utf8_lossy(text);
        let value: Value = serde_json::from_str(&text).map_err(|error| match error.is_eof() {
            true => ModelFault::Truncated,
            false => malformed("is neither an event stream nor JSON"),
        })?;
        let document = value.get(0).unwrap_or(&value); // Google puts its errors into an array.
        if is_error("", document) {
            return Err(ReportedError::of(document).into_fault(self.key.as_ref()));
        }
        self.machine.document(document, &mut self.builder, self.key.as_ref())
    }
}

impl Form {
    fn new() -> Form {
        let bytes_max = limits::MODEL_FRAME_BYTES_MAX;
        Form::Unknown(sse::Decoder::with_limits(bytes_max, bytes_max))
    }
}

impl Machine {
    fn new(wire: Wire) -> Machine {
        match wire {
            Wire::ChatCompletions => Machine::Chat(Chat::default()),
            Wire::Responses => Machine::Responses(Responses::default()),
            Wire::Messages => Machine::Messages(Messages::default()),
        }
    }

    fn frame(
        &mut self,
        name: &str,
        frame: &Value,
        builder: &mut AnswerBuilder,
        key: Option<&Secret>,
    ) -> Result<(), ModelFault> {
        match self {
            Machine::Chat(chat) => chat.frame(frame, builder),
            Machine::Responses(responses) => responses.frame(name, frame, builder, key),
            Machine::Messages(messages) => messages.frame(name, frame, builder),
        }
    }

    /// Handles `[DONE]`. The other two wires end with frames of their own.
    fn done(&mut self, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        match self {
            Machine::Chat(chat) => chat.done(builder),
            Machine::Responses(_) | Machine::Messages(_) => Ok(()),
        }
    }

    fn document(
        &mut self,
        document: &Value,
        builder: &mut AnswerBuilder,
        key: Option<&Secret>,
    ) -> Result<(), ModelFault> {
        match self {
            Machine::Chat(chat) => chat.document(document, builder),
            Machine::Responses(responses) => responses.document(document, builder, key),
            Machine::Messages(messages) => messages.document(document, builder),
        }
    }

    fn end(&mut self, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        match self {
            Machine::Chat(chat) => chat.done(builder),
            Machine::Responses(_) | Machine::Messages(_) => Ok(()),
        }
    }
}

/// Returns the fault of an answer that violates its wire's format.
pub(super) fn malformed(problem: &str) -> ModelFault {
    ModelFault::Malformed(problem.to_owned())
}

impl fmt::Debug for AnswerDecoder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match &self.form {
            Form::Unknown(_) => "unknown",
            Form::Stream(_) => "stream",
            Form::Document(_) => "document",
        };
        out.debug_struct("Decoder")
            .field("form", &form)
            .field("is_finished", &self.is_finished())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}
