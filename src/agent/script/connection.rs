//! One connection to a scripted model: bytes in and bytes out, one request after another.

use std::collections::{BTreeMap, VecDeque};

use super::answer::{Answer, Step};
use super::asked::Asked;
use super::spell::{models, refused};
use super::{Script, StatusSaid};
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
pub struct Model {
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
pub struct Connection {
    reader: RequestReader,
    request: Option<Request>,
    /// The bytes received behind the request that is being answered.
    ahead: Vec<u8>,
    answer: Option<Answer>,
    /// True if the head of the stream was written.
    is_streaming: bool,
    keeps_alive: bool,
    out: Vec<u8>,
    sent_bytes: usize,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A request is expected or being answered.
    Open,
    /// The answer has stopped: nothing more is sent.
    Hanging,
    /// The connection closes when everything was sent.
    Closing,
}

/// A request whose body is being received.
#[derive(Debug)]
struct Request {
    what: What,
    is_head: bool,
    key: Option<String>,
    body: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Ask(Wire),
    Models {
        is_anthropic: bool,
    },
    /// A path that does not exist.
    Nothing,
    WrongMethod,
}

impl Model {
    /// Creates a model that follows `script`.
    pub fn new(script: Script) -> Model {
        Model {
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
    fn choose(&mut self, wire: Wire, request: &Request) -> Result<(Asked, usize), Problem> {
        if self.script.key.is_some() && self.script.key != request.key {
            return Err(Problem { status: 401, message: "invalid API key".to_owned() });
        }
        let problem = |message| Problem { status: 400, message };
        let mut asked = Asked::read(wire, &request.body).map_err(problem)?;
        let is_known = |names: &[String]| names.is_empty() || names.contains(&asked.model);
        if !is_known(&self.script.models) {
            let message = format!("the model {:?} does not exist", asked.model);
            return Err(Problem { status: 404, message });
        }
        (asked.request, asked.attempt) = self.count(&request.body);
        let turn = self.script.turn_for(&asked);
        let turn = turn.ok_or_else(|| problem(format!("no turn for step {}", asked.step)))?;
        Ok((asked, turn))
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

impl Default for Connection {
    fn default() -> Connection {
        Connection::new()
    }
}

impl Connection {
    /// Creates a connection that has received nothing.
    pub fn new() -> Connection {
        Connection {
            reader: RequestReader::new(),
            request: None,
            ahead: Vec::new(),
            answer: None,
            is_streaming: false,
            keeps_alive: true,
            out: Vec::new(),
            sent_bytes: 0,
            state: State::Open,
        }
    }

    /// Takes bytes that the client has sent.
    pub fn receive(&mut self, model: &mut Model, bytes: &[u8], (now, wall_us): (Instant, u64)) {
        if self.answer.is_some() || self.state != State::Open {
            if self.ahead.len() + bytes.len() > limits::SCRIPT_AHEAD_BYTES {
                self.state = State::Closing;
                return;
            }
            self.ahead.extend_from_slice(bytes);
            return;
        }
        let mut rest = bytes;
        while self.answer.is_none() && self.state == State::Open {
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
        model: &mut Model,
        rest: &mut &[u8],
        now: (Instant, u64),
    ) -> Result<bool, Refusal> {
        let is_end = match self.reader.read(rest)? {
            None => return Ok(false),
            Some(RequestPart::Head(head)) => {
                let expects_continue = head.expects_continue;
                self.request = Some(Request::of(&head));
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

    fn begin(&mut self, model: &mut Model, request: &Request, (now, wall_us): (Instant, u64)) {
        match request.what {
            What::Ask(wire) => match model.choose(wire, request) {
                Ok((asked, turn)) => {
                    model.note(format!(
                        "request {}: {} {:?}, step {}, attempt {}: turn {}",
                        asked.request,
                        wire,
                        asked.model,
                        asked.step,
                        asked.attempt,
                        turn + 1
                    ));
                    self.answer = Some(Answer::new(&model.script, turn, asked, (now, wall_us)));
                }
                Err(Problem { status, message }) => {
                    model.note(format!("{} refused: {status}: {message}", wire));
                    let body = refused(wire, status, None, &message).to_string();
                    self.document(status, &[], (body.as_bytes(), None), wall_us);
                }
            },
            What::Models { is_anthropic } => {
                let body = models(is_anthropic, &model.script.models).to_string();
                let shown = if request.is_head { 0 } else { body.len() };
                self.head(200, &[JSON], Framing::Length(body.len() as u64), wall_us);
                self.out.extend_from_slice(&body.as_bytes()[..shown]);
            }
            What::Nothing | What::WrongMethod => {
                let status = if request.what == What::Nothing { 404 } else { 405 };
                let message = "this server knows POST /v1/chat/completions, /v1/responses and \
                               /v1/messages, and GET /v1/models";
                let body = refused(Wire::ChatCompletions, status, None, message).to_string();
                let cut_at = request.is_head.then_some(0);
                self.document(status, &[], (body.as_bytes(), cut_at), wall_us);
                if request.is_head && self.keeps_alive {
                    self.state = State::Open; // A reply to HEAD has no body, so nothing is missing.
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
        self.state = State::Closing;
    }

    /// Writes what is due by now, as far as the client takes it.
    pub fn turn(&mut self, model: &mut Model, (now, wall_us): (Instant, u64)) {
        while self.state == State::Open && self.unsent().len() < limits::SCRIPT_SEND_BYTES {
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

    fn step(&mut self, model: &Model, wall_us: u64) {
        let mut answer = self.answer.take().expect("the caller has looked");
        let mut body = Vec::new();
        let step = answer.step(&model.script, wall_us, &mut body);
        let begins = !body.is_empty() || matches!(step, Step::End { .. });
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
            Step::On => self.answer = Some(answer),
            Step::Hang => self.state = State::Hanging,
            Step::End { is_whole } => {
                if is_whole && answer.is_stream() {
                    self.out.extend_from_slice(BODY_END);
                }
                self.is_streaming = false;
                if !is_whole || !answer.is_stream() || !self.keeps_alive {
                    self.state = State::Closing;
                }
            }
            Step::Document { status: StatusSaid { status, headers, .. }, body, cut_at } => {
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
            self.state = State::Closing;
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
        let answer = self.answer.as_ref().filter(|_| self.state == State::Open && !is_full);
        answer.map(Answer::ready_at)
    }

    /// True if everything was sent and the connection has to be closed.
    pub fn is_over(&self) -> bool {
        self.state == State::Closing && self.unsent().is_empty()
    }

    /// Ends a connection whose client has disconnected.
    pub fn end(self, model: &mut Model) {
        if let Some(request) = &self.request {
            model.bodies_bytes -= request.body.len() as u64;
        }
    }
}

const JSON: (&str, &str) = ("content-type", "application/json");

impl Request {
    fn of(head: &RequestHead<'_>) -> Request {
        let path = head.target.path.trim_end_matches('/');
        let is_get = matches!(head.method, Method::Get | Method::Head);
        let is_anthropic = head.headers.texts("anthropic-version").next().is_some();
        let (what, is_allowed) = match path {
            path if path.ends_with("/chat/completions") => {
                (What::Ask(Wire::ChatCompletions), head.method == Method::Post)
            }
            path if path.ends_with("/responses") => {
                (What::Ask(Wire::Responses), head.method == Method::Post)
            }
            path if path.ends_with("/messages") => {
                (What::Ask(Wire::Messages), head.method == Method::Post)
            }
            path if path.ends_with("/models") => (What::Models { is_anthropic }, is_get),
            _ => (What::Nothing, true),
        };
        let bearer = head.headers.texts("authorization").find_map(|v| v.strip_prefix("Bearer "));
        let key = bearer.or_else(|| head.headers.texts("x-api-key").next());
        Request {
            what: if is_allowed { what } else { What::WrongMethod },
            is_head: head.method == Method::Head,
            key: key.map(|key| key.trim().to_owned()),
            body: Vec::new(),
        }
    }
}
