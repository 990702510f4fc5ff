//! One connection to a scripted model: bytes in and bytes out, one request after another.

use std::collections::{BTreeMap, VecDeque};

use super::answer::{AnswerStep, ScriptedAnswer};
use super::encode::{models, refused};
use super::request::ModelRequest;
use super::{Script, ScriptedStatus};
use crate::agent::model::Wire;
use crate::base::Instant;
use crate::limits;
use crate::wire::http1::{
    BODY_END, CONTINUE, Framing, Method, Refusal, RequestHead, RequestPart, RequestReader,
    ResponseHead, Status, begin_chunk, end_chunk, http_date,
};
use crate::wire::sse;

/// The common state of all connections: the script and the counts of requests.
#[derive(Debug)]
pub struct ScriptedModel {
    script: Script,
    request_count: u64,
    /// Number of times that each request has come, by a digest of its body. The oldest is forgotten
    /// first.
    attempts: BTreeMap<u64, u64>,
    attempts_order: VecDeque<u64>,
    /// Number of bytes in the bodies that are being received.
    bodies_bytes: u64,
    notes: VecDeque<String>,
}

/// Maximum number of notes that wait to be taken.
const NOTES_MAX: usize = 1_024;

/// The connection of one client.
#[derive(Debug)]
pub struct ScriptConnection {
    reader: RequestReader,
    request: Option<PartialRequest>,
    /// The bytes received behind the request that is being answered.
    ahead: Vec<u8>,
    answer: Option<ScriptedAnswer>,
    /// True if the head of the stream was written.
    is_streaming: bool,
    keeps_alive: bool,
    out: Vec<u8>,
    sent_bytes: usize,
    state: SendState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// A request is expected or being answered.
    Open,
    /// The answer has stopped: nothing more is sent.
    Hanging,
    /// The connection closes when everything was sent.
    Closing,
}

/// A request whose body is being received.
#[derive(Debug)]
struct PartialRequest {
    what: RequestedResource,
    is_head: bool,
    key: Option<String>,
    body: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestedResource {
    Ask(Wire),
    Models {
        is_anthropic: bool,
    },
    /// A path that does not exist.
    Nothing,
    WrongMethod,
}

impl ScriptedModel {
    /// Creates a model that follows `script`.
    pub fn new(script: Script) -> ScriptedModel {
        ScriptedModel {
            script,
            request_count: 0,
            attempts: BTreeMap::new(),
            attempts_order: VecDeque::new(),
            bodies_bytes: 0,
            notes: VecDeque::new(),
        }
    }

    /// Returns the next line about a request, for people.
    pub fn next_note(&mut self) -> Option<String> {
        self.notes.pop_front()
    }

    /// Number of requests for an answer that had a valid key, body and model.
    pub fn request_count(&self) -> u64 {
        self.request_count
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push_back(text);
        }
    }

    /// Counts a request. Returns the number of all requests, and of those with this body.
    fn count(&mut self, body: &[u8]) -> (u64, u64) {
        self.request_count += 1;
        let digest = digest(body);
        if !self.attempts.contains_key(&digest) {
            if self.attempts_order.len() == limits::SCRIPT_ATTEMPTS_MAX {
                let oldest = self.attempts_order.pop_front().expect("it is full");
                self.attempts.remove(&oldest);
            }
            self.attempts_order.push_back(digest);
        }
        let attempts = self.attempts.entry(digest).or_insert(0);
        *attempts += 1;
        (self.request_count, *attempts)
    }

    /// Returns the turn of the script for `request`, or the refusal.
    fn choose(
        &mut self,
        wire: Wire,
        request: &PartialRequest,
    ) -> Result<(ModelRequest, usize), Problem> {
        if self.script.key.is_some() && self.script.key != request.key {
            return Err(Problem { status: 401, message: "invalid API key".to_owned() });
        }
        let problem = |message| Problem { status: 400, message };
        let mut model_request = ModelRequest::read(wire, &request.body).map_err(problem)?;
        let is_known = |names: &[String]| names.is_empty() || names.contains(&model_request.model);
        if !is_known(&self.script.models) {
            let message = format!("the model {:?} does not exist", model_request.model);
            return Err(Problem { status: 404, message });
        }
        (model_request.request, model_request.attempt) = self.count(&request.body);
        let turn = self.script.turn_for(&model_request);
        let turn =
            turn.ok_or_else(|| problem(format!("no turn for step {}", model_request.step)))?;
        Ok((model_request, turn))
    }
}

struct Problem {
    status: u16,
    message: String,
}

/// Returns the FNV-1a hash. Requests with equal bodies count as the same request.
fn digest(bytes: &[u8]) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(start, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Default for ScriptConnection {
    fn default() -> ScriptConnection {
        ScriptConnection::new()
    }
}

impl ScriptConnection {
    /// Creates a connection that has received nothing.
    pub fn new() -> ScriptConnection {
        ScriptConnection {
            reader: RequestReader::new(),
            request: None,
            ahead: Vec::new(),
            answer: None,
            is_streaming: false,
            keeps_alive: true,
            out: Vec::new(),
            sent_bytes: 0,
            state: SendState::Open,
        }
    }

    /// Takes bytes that the client has sent.
    pub fn receive(
        &mut self,
        model: &mut ScriptedModel,
        bytes: &[u8],
        (now, wall_us): (Instant, u64),
    ) {
        if self.answer.is_some() || self.state != SendState::Open {
            if self.ahead.len() + bytes.len() > limits::SCRIPT_AHEAD_BYTES {
                self.state = SendState::Closing;
                return;
            }
            self.ahead.extend_from_slice(bytes);
            return;
        }
        let mut rest = bytes;
        while self.answer.is_none() && self.state == SendState::Open {
            match self.read(model, &mut rest, (now, wall_us)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(refusal) => self.refuse(refusal, wall_us),
            }
        }
        self.ahead.extend_from_slice(rest);
    }

    fn read(
        &mut self,
        model: &mut ScriptedModel,
        rest: &mut &[u8],
        now: (Instant, u64),
    ) -> Result<bool, Refusal> {
        let is_end = match self.reader.read(rest)? {
            None => return Ok(false),
            Some(RequestPart::Head(head)) => {
                let expects_continue = head.expects_continue;
                self.request = Some(PartialRequest::of(&head));
                self.reader.limit_body(limits::SCRIPT_BODY_BYTES_MAX)?;
                if expects_continue {
                    self.out.extend_from_slice(CONTINUE);
                }
                false
            }
            Some(RequestPart::Body(piece)) => {
                let request = self.request.as_mut().expect("its head came");
                model.bodies_bytes += piece.len() as u64;
                request.body.extend_from_slice(piece);
                if model.bodies_bytes > limits::SCRIPT_BODIES_BYTES_MAX {
                    return Err(Refusal::BodyTooLong);
                }
                false
            }
            Some(RequestPart::End) => true,
        };
        if is_end {
            self.keeps_alive = self.reader.keeps_alive();
            let request = self.request.take().expect("its head came");
            model.bodies_bytes -= request.body.len() as u64;
            self.begin(model, &request, now);
        }
        Ok(true)
    }

    fn begin(
        &mut self,
        model: &mut ScriptedModel,
        request: &PartialRequest,
        (now, wall_us): (Instant, u64),
    ) {
        match request.what {
            RequestedResource::Ask(wire) => match model.choose(wire, request) {
                Ok((model_request, turn)) => {
                    model.note(format!(
                        "request {}: {} {:?}, step {}, attempt {}: turn {}",
                        model_request.request,
                        wire,
                        model_request.model,
                        model_request.step,
                        model_request.attempt,
                        turn + 1
                    ));
                    self.answer = Some(ScriptedAnswer::new(
                        &model.script,
                        turn,
                        model_request,
                        (now, wall_us),
                    ));
                }
                Err(Problem { status, message }) => {
                    model.note(format!("{} refused: {status}: {message}", wire));
                    let body = refused(wire, status, None, &message).to_string();
                    self.document(status, &[], (body.as_bytes(), None), wall_us);
                }
            },
            RequestedResource::Models { is_anthropic } => {
                let body = models(is_anthropic, &model.script.models).to_string();
                let shown = if request.is_head { 0 } else { body.len() };
                self.head(200, &[JSON], Framing::Length(body.len() as u64), wall_us);
                self.out.extend_from_slice(&body.as_bytes()[..shown]);
            }
            RequestedResource::Nothing | RequestedResource::WrongMethod => {
                let status = if request.what == RequestedResource::Nothing { 404 } else { 405 };
                let message = "this server knows POST /v1/chat/completions, /v1/responses and \
                               /v1/messages, and GET /v1/models";
                let body = refused(Wire::ChatCompletions, status, None, message).to_string();
                let cut_at = request.is_head.then_some(0);
                self.document(status, &[], (body.as_bytes(), cut_at), wall_us);
                if request.is_head && self.keeps_alive {
                    self.state = SendState::Open; // A reply to HEAD has no body.
                }
            }
        }
    }

    /// Answers an invalid request, and closes the connection.
    fn refuse(&mut self, refusal: Refusal, wall_us: u64) {
        self.keeps_alive = false;
        let message = refusal.to_string();
        let status = refusal.status().code();
        let body = refused(Wire::ChatCompletions, status, None, &message).to_string();
        self.document(status, &[], (body.as_bytes(), None), wall_us);
        self.state = SendState::Closing;
    }

    /// Writes what is due by now, as far as the client takes it.
    pub fn turn(&mut self, model: &mut ScriptedModel, (now, wall_us): (Instant, u64)) {
        while self.state == SendState::Open && self.unsent().len() < limits::SCRIPT_SEND_BYTES {
            let Some(answer) = &self.answer else {
                let ahead = std::mem::take(&mut self.ahead);
                if ahead.is_empty() {
                    return;
                }
                self.receive(model, &ahead, (now, wall_us));
                if self.answer.is_none() {
                    return;
                }
                continue;
            };
            if answer.ready_at() > now {
                return;
            }
            self.step(model, wall_us);
        }
    }

    fn step(&mut self, model: &ScriptedModel, wall_us: u64) {
        let mut answer = self.answer.take().expect("the caller has looked");
        let mut body = Vec::new();
        let step = answer.step(&model.script, wall_us, &mut body);
        let begins = !body.is_empty() || matches!(step, AnswerStep::End { .. });
        if answer.is_stream() && begins && !std::mem::replace(&mut self.is_streaming, true) {
            let headers = [("content-type", sse::MEDIA_TYPE), ("cache-control", "no-cache")];
            self.head(200, &headers, Framing::Chunked, wall_us);
        }
        if !body.is_empty() {
            let chunk = begin_chunk(&mut self.out);
            self.out.extend_from_slice(&body);
            end_chunk(&mut self.out, chunk);
        }
        match step {
            AnswerStep::On => self.answer = Some(answer),
            AnswerStep::Hang => self.state = SendState::Hanging,
            AnswerStep::End { is_whole } => {
                if is_whole && answer.is_stream() {
                    self.out.extend_from_slice(BODY_END);
                }
                self.is_streaming = false;
                if !is_whole || !answer.is_stream() || !self.keeps_alive {
                    self.state = SendState::Closing;
                }
            }
            AnswerStep::Document {
                status: ScriptedStatus { status, headers, .. },
                body,
                cut_at,
            } => {
                let headers: Vec<(&str, &str)> =
                    headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                self.document(status, &headers, (&body, cut_at), wall_us);
            }
        }
    }

    fn document(
        &mut self,
        status: u16,
        headers: &[(&str, &str)],
        (body, cut_at): (&[u8], Option<usize>),
        wall_us: u64,
    ) {
        let has_type = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        let all: Vec<_> = headers.iter().copied().chain((!has_type).then_some(JSON)).collect();
        self.head(status, &all, Framing::Length(body.len() as u64), wall_us);
        let is_bodiless = Status::new(status).is_some_and(Status::is_bodiless);
        let shown = if is_bodiless { 0 } else { cut_at.unwrap_or(body.len()) };
        self.out.extend_from_slice(&body[..shown]);
        if cut_at.is_some() || !self.keeps_alive {
            self.state = SendState::Closing;
        }
    }

    fn head(&mut self, status: u16, headers: &[(&str, &str)], framing: Framing, wall_us: u64) {
        let date = http_date(wall_us / 1_000_000);
        let status = Status::new(status).expect("scripts are checked");
        let mut head = ResponseHead::begin(&mut self.out, status, &date);
        for (name, value) in headers {
            head.header(name, value).expect("scripts are checked");
        }
        head.finish(framing, self.keeps_alive);
    }

    /// Returns the bytes to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.out[self.sent_bytes..]
    }

    /// Records that `bytes` bytes were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes;
        assert!(self.sent_bytes <= self.out.len());
        if self.sent_bytes == self.out.len() {
            self.out.clear();
            self.sent_bytes = 0;
        }
    }

    /// Returns the time at which more can be written; `None` until bytes are received or sent.
    pub fn next_deadline(&self) -> Option<Instant> {
        let is_full = self.unsent().len() >= limits::SCRIPT_SEND_BYTES;
        let answer = self.answer.as_ref().filter(|_| self.state == SendState::Open && !is_full);
        answer.map(ScriptedAnswer::ready_at)
    }

    /// True if everything was sent and the connection has to be closed.
    pub fn is_over(&self) -> bool {
        self.state == SendState::Closing && self.unsent().is_empty()
    }

    /// Ends a connection whose client has disconnected.
    pub fn end(self, model: &mut ScriptedModel) {
        if let Some(request) = &self.request {
            model.bodies_bytes -= request.body.len() as u64;
        }
    }
}

const JSON: (&str, &str) = ("content-type", "application/json");

impl PartialRequest {
    fn of(head: &RequestHead<'_>) -> PartialRequest {
        let path = head.target.path.trim_end_matches('/');
        let is_get = matches!(head.method, Method::Get | Method::Head);
        let is_anthropic = head.headers.texts("anthropic-version").next().is_some();
        let (what, is_allowed) = match path {
            path if path.ends_with("/chat/completions") => {
                (RequestedResource::Ask(Wire::ChatCompletions), head.method == Method::Post)
            }
            path if path.ends_with("/responses") => {
                (RequestedResource::Ask(Wire::Responses), head.method == Method::Post)
            }
            path if path.ends_with("/messages") => {
                (RequestedResource::Ask(Wire::Messages), head.method == Method::Post)
            }
            path if path.ends_with("/models") => {
                (RequestedResource::Models { is_anthropic }, is_get)
            }
            _ => (RequestedResource::Nothing, true),
        };
        let bearer = head.headers.texts("authorization").find_map(|v| v.strip_prefix("Bearer "));
        let key = bearer.or_else(|| head.headers.texts("x-api-key").next());
        PartialRequest {
            what: if is_allowed { what } else { RequestedResource::WrongMethod },
            is_head: head.method == Method::Head,
            key: key.map(|key| key.trim().to_owned()),
            body: Vec::new(),
        }
    }
}
