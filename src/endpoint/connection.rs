//! One HTTP/1.1 connection. It turns bytes into calls, and answers into bytes.
//!
//! Requests are answered one after the other, in their order. Bytes behind an unanswered request
//! are kept. Requests that need no other component (refusals, `OPTIONS`, `/healthz`,
//! `/openapi.json`) are answered here. Admission is checked before anything else of a request.
//!
//! Invariants:
//! - H1: each request gets exactly one answer, and no answer begins before the previous one is
//!   complete.
//! - H2: the output depends on the bytes and their order, not on how they are cut.
//! - H3: nothing is kept between requests: an idle connection has no memory of its own.
//! - H4: after an answer that leaves bytes of its request unread, the connection is closed.

use std::sync::Arc;

use crate::base::{Instant, Principal};
use crate::endpoint::access::{Admission, OriginPlace};
use crate::endpoint::answer::{Answer, ErrorFormat, PayloadPart, ResponseContext};
use crate::endpoint::ask::{Asked, ParsedHead, ask};
use crate::endpoint::representation::Selection;
use crate::endpoint::tally::RouteAt;
use crate::endpoint::{ApiCall, ApiError, Surroundings, a2a};
use crate::limits;
use crate::wire::http1::{
    BODY_END, CONTINUE, Framing, Method, Refusal, RequestHead, RequestPart, RequestReader,
    ResponseHead, Status, Version,
};

/// One HTTP/1.1 connection. The shard moves its bytes, carries out its calls, and enforces its
/// deadlines.
///
/// ```
/// use streamdoor::base::{Handle, Instant};
/// use streamdoor::endpoint::{Access, Answer, ApiCall, ConnectionStep};
/// use streamdoor::endpoint::{HttpConnection, Surroundings, Tally};
/// use streamdoor::wire::http1::{Status, http_date};
///
/// let (mut http, mut out) = (HttpConnection::new(), Vec::new());
/// let (date, now) = (http_date(784_111_777), Instant::from_nanos(0));
/// let (access, tally) = (Access::default(), Tally::new(false));
/// let connection = Handle { index: 0, generation: 1 };
/// let around = Surroundings { date, now, access: &access, tally: &tally, connection };
/// let request = b"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// let step = http.receive(request, &around, &mut out);
/// assert_eq!(step, ConnectionStep::Call(ApiCall::Tools));
/// http.answer(&Answer::empty(Status::NO_CONTENT), &around, &mut out);
/// assert_eq!(http.resume(&around, &mut out), ConnectionStep::Wait);
/// assert!(out.starts_with(b"HTTP/1.1 204 No Content\r\n"));
/// ```
#[derive(Debug)]
pub struct HttpConnection {
    reader: RequestReader,
    /// Bytes that came behind a request that is not answered yet.
    kept: Vec<u8>,
    state: HttpState,
    /// The principal that sent the request that is being read or answered.
    principal: Principal,
    /// True if the peer sends no more.
    input_ended: bool,
    /// True if the connection was closed otherwise than after the answer to a complete request.
    is_cut_short: bool,
    arrival: Arrival,
    /// The representation that is wanted of the document that is the answer.
    selection: Option<Box<Selection>>,
    /// The id of the JSON-RPC request of A2A that is being answered, as JSON.
    reply_to: Option<Box<str>>,
}

/// The amount that was received, for the caller that enforces deadlines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Number of complete request heads so far. It wraps around after 2^32.
    pub heads: u32,
    /// Bytes received of the last request's body; `None` if the body is complete.
    pub body_bytes: Option<u64>,
}

/// The next action of the caller.
#[derive(Debug, PartialEq)]
pub enum ConnectionStep {
    /// A wait for bytes or, if an answer is due, for the answer.
    Wait,
    /// A call to carry out and to answer. Then [`HttpConnection::resume`] must be called. A part of
    /// a long body is answered with [`HttpConnection::take_part`] if it was accepted.
    Call(ApiCall),
    /// A pause after [`limits::REQUESTS_PER_TURN`] requests that needed no call, or after
    /// [`limits::HTTP_ANSWERS_BYTES_MAX`] bytes of answers. More bytes are kept:
    /// [`HttpConnection::resume`] must be called once other work had its turn and the answers are
    /// sent.
    Pause,
    /// The end of the connection, after the pending output was sent.
    Close,
}

/// The event that the connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedEvent {
    /// The first byte of a request.
    Request,
    /// The rest of a request, which should come soon.
    Rest,
    /// More of a body that is read in parts. Its duration is not limited as long as bytes come now
    /// and then.
    Parts,
    /// The answer of the server.
    Answer,
    /// Nothing: the connection is closed.
    Nothing,
}

/// The framing of the body of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamBody {
    /// Chunked. [`HttpConnection::end_stream`] ends the body.
    Chunked,
    /// Unframed: the body ends with the connection, or has the length that its head says.
    /// [`HttpConnection::end_stream`] must be called, too.
    UntilClose,
    /// No body (the request was `HEAD`): the response is complete.
    None,
}

/// The event that is expected next.
#[derive(Debug)]
enum HttpState {
    /// A request, or the rest of its head.
    Head,
    /// The rest of a request.
    Body(Box<Pending>),
    /// The result of a part of a long body. More of the body may be here already, or come later.
    Part(Box<Pending>),
    /// The answer of the server.
    Answer(ResponseContext),
    /// The end of a stream that the server sends. The flag is true if it is chunked.
    Stream(ResponseContext, bool),
    /// Nothing more.
    Closed,
}

/// A request whose head was read.
#[derive(Debug)]
struct Pending {
    parsed: ParsedHead,
    principal: Principal,
    origin: Option<OriginPlace>,
    error_format: ErrorFormat,
    is_head: bool,
    is_old: bool,
    /// For a body that is read in parts: true if another request may follow. Known at its end.
    may_keep_alive: bool,
    body: Vec<u8>,
    body_bytes_max: u64,
    route: RouteAt,
    began: Instant,
    selection: Option<Box<Selection>>,
}

// Ten thousand connections may be idle at once.
const _: () = assert!(size_of::<HttpConnection>() < 200);

impl Default for HttpConnection {
    fn default() -> HttpConnection {
        HttpConnection::new()
    }
}

impl HttpConnection {
    /// Creates a connection on which nothing was received.
    pub fn new() -> HttpConnection {
        HttpConnection {
            reader: RequestReader::new(),
            kept: Vec::new(),
            state: HttpState::Head,
            principal: Principal::ANYONE,
            input_ended: false,
            is_cut_short: false,
            arrival: Arrival::default(),
            selection: None,
            reply_to: None,
        }
    }

    /// Takes received bytes. Appends to `out` the answers that need no call. While an answer is due
    /// the bytes are kept: see [`HttpConnection::wants_bytes`].
    pub fn receive(
        &mut self,
        bytes: &[u8],
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionStep {
        match self.state {
            HttpState::Closed => ConnectionStep::Close,
            HttpState::Answer(_) | HttpState::Stream(..) | HttpState::Part(_) => {
                self.kept.extend_from_slice(bytes);
                ConnectionStep::Wait
            }
            HttpState::Head | HttpState::Body(_) if self.kept.is_empty() => {
                self.run(bytes, around, out)
            }
            HttpState::Head | HttpState::Body(_) => {
                self.kept.extend_from_slice(bytes);
                self.resume(around, out)
            }
        }
    }

    /// Continues with the bytes that were kept. Must be called after each
    /// [`HttpConnection::answer`], each [`HttpConnection::end_stream`], and each stream without a
    /// body.
    pub fn resume(&mut self, around: &Surroundings<'_>, out: &mut Vec<u8>) -> ConnectionStep {
        match self.state {
            HttpState::Closed => ConnectionStep::Close,
            HttpState::Answer(_) | HttpState::Stream(..) | HttpState::Part(_) => {
                ConnectionStep::Wait
            }
            HttpState::Head | HttpState::Body(_) => {
                if let Some(step) = self.next_part(around, out) {
                    return step;
                }
                let kept = std::mem::take(&mut self.kept);
                self.run(&kept, around, out)
            }
        }
    }

    /// Notes that the peer sends no more. All requests that came before are still answered.
    pub fn end_input(&mut self, around: &Surroundings<'_>, out: &mut Vec<u8>) -> ConnectionStep {
        self.input_ended = true;
        self.resume(around, out)
    }

    /// Handles the end of a deadline for what the connection waits for. Within a request the client
    /// gets an error; between requests the connection is closed silently. An answer that is due has
    /// no deadline here.
    pub fn time_out(&mut self, around: &Surroundings<'_>, out: &mut Vec<u8>) -> ConnectionStep {
        match self.due() {
            AwaitedEvent::Rest | AwaitedEvent::Parts => self.refuse(Refusal::TooSlow, around, out),
            AwaitedEvent::Answer => ConnectionStep::Wait,
            AwaitedEvent::Request | AwaitedEvent::Nothing => self.close(),
        }
    }

    /// Returns true if more bytes should be received. Bytes that come although it returns false are
    /// kept, too.
    pub fn wants_bytes(&self) -> bool {
        let is_open =
            !self.input_ended && !matches!(self.state, HttpState::Closed | HttpState::Part(_));
        is_open && self.kept.len() < limits::HTTP_PIPELINED_BYTES_MAX
    }

    /// Returns the principal that sent the request that is being answered.
    pub fn principal(&self) -> Principal {
        self.principal
    }

    /// Returns what the connection waits for.
    pub fn due(&self) -> AwaitedEvent {
        match &self.state {
            HttpState::Head if self.reader.is_between_requests() => AwaitedEvent::Request,
            HttpState::Body(pending) if matches!(pending.parsed, ParsedHead::Parts(_)) => {
                AwaitedEvent::Parts
            }
            HttpState::Head | HttpState::Body(_) => AwaitedEvent::Rest,
            HttpState::Answer(_) | HttpState::Stream(..) | HttpState::Part(_) => {
                AwaitedEvent::Answer
            }
            HttpState::Closed => AwaitedEvent::Nothing,
        }
    }

    /// Returns true if the connection can be closed now without cutting off a request that is still
    /// being received.
    pub fn has_read_all(&self) -> bool {
        match self.due() {
            AwaitedEvent::Request | AwaitedEvent::Answer => true,
            AwaitedEvent::Rest | AwaitedEvent::Parts => false,
            AwaitedEvent::Nothing => !self.is_cut_short,
        }
    }

    /// Returns how much was received.
    pub fn arrival(&self) -> Arrival {
        self.arrival
    }

    /// Returns the number of bytes kept of an incomplete body.
    pub fn body_bytes(&self) -> usize {
        match &self.state {
            HttpState::Body(pending) => match &pending.parsed {
                ParsedHead::Parts(lines) => lines.kept_bytes(),
                _ => pending.body.capacity(),
            },
            _ => 0,
        }
    }

    /// Answers the request that is being received with `error`, and closes. For a server that has
    /// no room for the rest of the request.
    pub fn give_up(
        &mut self,
        error: &ApiError,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionStep {
        let context = match &self.state {
            HttpState::Body(pending) => pending.last_manner(),
            _ => ResponseContext::LAST,
        };
        self.answer_and_close(&Answer::error_in(context.error_format, error), context, around, out)
    }

    /// Answers with `error` on a new connection, whatever is asked, and closes it.
    pub fn turn_away(
        &mut self,
        error: &ApiError,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionStep {
        self.answer_and_close(&Answer::error(error), ResponseContext::LAST, around, out)
    }

    /// Writes a complete answer to the call.
    ///
    /// # Panics
    /// If no answer is due.
    pub fn answer(&mut self, answer: &Answer, around: &Surroundings<'_>, out: &mut Vec<u8>) {
        if let Some(body) = self.answer_apart(answer, around, out) {
            out.extend_from_slice(&body);
        }
    }

    /// Does the same as [`HttpConnection::answer`], except for a long body that other answers have,
    /// too. Returns that one, and the caller sends it next.
    ///
    /// # Panics
    /// If no answer is due.
    pub fn answer_apart(
        &mut self,
        answer: &Answer,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Arc<Vec<u8>>> {
        let context = self.manner_due();
        let spelled = self.spelled(answer, context);
        let answer = spelled.as_ref().unwrap_or(answer);
        let body = match self.selection.take() {
            None => answer.write_apart(context, around, out),
            Some(selection) => answer.selected(&selection).write_apart(context, around, out),
        };
        self.end_answer(context);
        body
    }

    /// Returns an answer in the words of the protocol that the client speaks, if those are others.
    fn spelled(&mut self, answer: &Answer, context: ResponseContext) -> Option<Answer> {
        match context.error_format {
            ErrorFormat::A2a => a2a::spelled(answer, self.reply_to.take().as_deref()),
            ErrorFormat::ApiError | ErrorFormat::JsonRpc => None,
        }
    }

    /// Records that the part of a long body in the last call was accepted. `is_duplicate` is true
    /// if it was accepted before.
    ///
    /// # Panics
    /// If no such part is being carried out.
    pub fn take_part(&mut self, is_duplicate: bool) {
        let HttpState::Part(mut pending) = std::mem::replace(&mut self.state, HttpState::Closed)
        else {
            panic!("no part is being carried out");
        };
        let ParsedHead::Parts(lines) = &mut pending.parsed else {
            unreachable!("only a body of lines has parts")
        };
        lines.count(is_duplicate);
        self.state = HttpState::Body(pending);
    }

    /// Writes an error as the answer to the call. For a part of a long body the error names the
    /// part, and nothing more is read.
    ///
    /// # Panics
    /// If no answer is due.
    pub fn answer_error(&mut self, error: &ApiError, around: &Surroundings<'_>, out: &mut Vec<u8>) {
        let answer = match &self.state {
            HttpState::Part(pending) => match &pending.parsed {
                ParsedHead::Parts(lines) => Answer::error(&lines.in_its_place(error.clone())),
                _ => unreachable!("only a body of lines has parts"),
            },
            HttpState::Answer(context) => Answer::error_in(context.error_format, error),
            _ => Answer::error(error),
        };
        self.answer(&answer, around, out);
    }

    /// Appends the head of a streamed answer with this media type.
    ///
    /// # Panics
    /// If no answer is due.
    pub fn begin_stream(
        &mut self,
        media_type: &str,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> StreamBody {
        self.begin_stream_with(media_type, [], around, out)
    }

    /// Does the same as [`HttpConnection::begin_stream`], with additional headers.
    ///
    /// # Panics
    /// If no answer is due.
    pub fn begin_stream_with<'h>(
        &mut self,
        media_type: &'h str,
        headers: impl IntoIterator<Item = (&'h str, &'h str)>,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> StreamBody {
        let mut context = self.manner_due();
        let version = if context.is_old { Version::Http10 } else { Version::Http11 };
        let framing = Framing::of_stream(version);
        context.keeps_alive &= framing == Framing::Chunked;
        context.count(Status::OK, None, around);
        let mut head = ResponseHead::begin(out, Status::OK, &around.date);
        let own = [
            ("content-type", media_type),
            ("cache-control", "no-cache, no-transform"),
            ("x-accel-buffering", "no"), // nginx passes it on at once.
        ];
        for (name, value) in own.into_iter().chain(headers) {
            head.header(name, value).expect("the server's own headers are valid");
        }
        context.write_origin(around, None, &mut head);
        head.finish(framing, context.keeps_alive);
        if context.is_head {
            self.end_answer(context);
            return StreamBody::None;
        }
        let is_chunked = framing == Framing::Chunked;
        self.state = HttpState::Stream(context, is_chunked);
        if is_chunked { StreamBody::Chunked } else { StreamBody::UntilClose }
    }

    /// Appends the head of an answer with a part of a payload. Its bytes follow piece by piece.
    ///
    /// # Panics
    /// If no answer is due.
    pub fn begin_payload(
        &mut self,
        part: &PayloadPart,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> StreamBody {
        let context = self.manner_due();
        part.write_head(around, &context, out);
        if context.is_head {
            self.end_answer(context);
            return StreamBody::None;
        }
        self.state = HttpState::Stream(context, false);
        StreamBody::UntilClose
    }

    /// Ends the body of the stream. A stream that is cut off ends with its connection instead.
    ///
    /// # Panics
    /// If no stream was begun.
    pub fn end_stream(&mut self, out: &mut Vec<u8>) {
        let HttpState::Stream(context, is_chunked) = self.state else {
            panic!("no stream was begun")
        };
        if is_chunked {
            out.extend_from_slice(BODY_END);
        }
        self.end_answer(context);
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.kept.capacity() + self.reader.kept_bytes()
    }

    /// Returns how the answer that is due must be written.
    fn manner_due(&self) -> ResponseContext {
        let mut context = match &self.state {
            HttpState::Answer(context) => *context,
            // H4: more of the body may come.
            HttpState::Part(pending) => ResponseContext { keeps_alive: false, ..pending.context() },
            _ => panic!("no answer is due"),
        };
        context.keeps_alive &= !(self.input_ended && self.kept.is_empty());
        context
    }

    fn end_answer(&mut self, context: ResponseContext) {
        self.state = if context.keeps_alive { HttpState::Head } else { HttpState::Closed };
    }

    /// Reads requests until one needs a call, until the bytes end, or until enough were answered.
    fn run(
        &mut self,
        bytes: &[u8],
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionStep {
        let answers_start = out.len();
        let mut input = bytes;
        let mut answered_count = 0;
        loop {
            match self.reader.read(&mut input) {
                Ok(Some(RequestPart::Head(head))) => {
                    let heads = self.arrival.heads.wrapping_add(1);
                    self.arrival = Arrival { heads, body_bytes: Some(0) };
                    let (expects_continue, pending) =
                        (head.expects_continue, Pending::of(&head, around));
                    if let Some(step) = self.begin(pending, expects_continue, around, out) {
                        return step;
                    }
                }
                Ok(Some(RequestPart::Body(piece))) => {
                    if let Some(body_bytes) = &mut self.arrival.body_bytes {
                        *body_bytes += piece.len() as u64;
                    }
                    if let HttpState::Body(pending) = &mut self.state {
                        pending.take(piece);
                    }
                }
                Ok(Some(RequestPart::End)) => {
                    self.arrival.body_bytes = None;
                    let has_more = !input.is_empty() || !self.input_ended;
                    let step = match self.end_parts(has_more) {
                        true => self.next_part(around, out),
                        false => self.end_request(has_more, around, out),
                    };
                    answered_count += 1;
                    let is_enough = answered_count == limits::REQUESTS_PER_TURN
                        || out.len() - answers_start >= limits::HTTP_ANSWERS_BYTES_MAX;
                    let pause = (is_enough && !input.is_empty()).then_some(ConnectionStep::Pause);
                    if let Some(step) = step.or(pause) {
                        if step != ConnectionStep::Close {
                            self.kept = input.to_vec();
                        }
                        return step;
                    }
                }
                Ok(None) => {
                    if let Some(step) = self.next_part(around, out) {
                        return step;
                    }
                    if !self.input_ended {
                        return ConnectionStep::Wait;
                    }
                    return match self.reader.finish() {
                        Ok(()) => self.close(),
                        Err(refusal) => self.refuse(refusal, around, out),
                    };
                }
                Err(refusal) => return self.refuse(refusal, around, out),
            }
        }
    }

    /// Notes the end of a body of parts. Returns false if this body is none.
    fn end_parts(&mut self, has_more: bool) -> bool {
        let HttpState::Body(pending) = &mut self.state else { return false };
        let ParsedHead::Parts(lines) = &mut pending.parsed else { return false };
        lines.end();
        pending.may_keep_alive = has_more && self.reader.keeps_alive();
        true
    }

    /// Returns the step for the next part of a long body, if its line is complete. `None` if the
    /// line is incomplete, if no such body is being read, or if the body ended and was answered.
    fn next_part(
        &mut self,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> Option<ConnectionStep> {
        let HttpState::Body(pending) = &mut self.state else { return None };
        let (context, last) = (pending.context(), pending.last_manner());
        let ParsedHead::Parts(lines) = &mut pending.parsed else { return None };
        match lines.next_call() {
            Some(Ok(call)) => {
                let HttpState::Body(pending) =
                    std::mem::replace(&mut self.state, HttpState::Closed)
                else {
                    unreachable!("the state was checked above");
                };
                self.state = HttpState::Part(pending);
                Some(ConnectionStep::Call(call))
            }
            Some(Err(error)) => {
                Some(self.answer_and_close(&Answer::error(&error), last, around, out))
            }
            None if lines.has_ended() => {
                let answer = lines.answer();
                answer.write(context, around, out);
                self.end_answer(context);
                (!context.keeps_alive).then_some(ConnectionStep::Close)
            }
            None => None,
        }
    }

    /// Handles the head of a request. Returns `None` if the rest of the request may come.
    fn begin(
        &mut self,
        pending: Pending,
        expects_continue: bool,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> Option<ConnectionStep> {
        let limited = self.reader.limit_body(pending.body_bytes_max);
        self.principal = pending.principal;
        if expects_continue && let ParsedHead::Here(answer) = &pending.parsed {
            // The client waits for `100 Continue` before it sends the body. It gets the final
            // answer.
            return Some(self.answer_and_close(answer, pending.last_manner(), around, out));
        }
        self.state = HttpState::Body(Box::new(pending));
        match limited {
            Err(refusal) => Some(self.refuse(refusal, around, out)),
            Ok(()) if expects_continue => {
                out.extend_from_slice(CONTINUE);
                None
            }
            Ok(()) => None,
        }
    }

    /// Handles the end of a request. Returns `None` if it was answered and another one may follow.
    fn end_request(
        &mut self,
        may_keep_alive: bool,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> Option<ConnectionStep> {
        let HttpState::Body(pending) = std::mem::replace(&mut self.state, HttpState::Head) else {
            unreachable!("the head of a request comes before its end");
        };
        let keeps_alive = self.reader.keeps_alive();
        let mut context =
            ResponseContext { keeps_alive, is_old: pending.is_old, ..pending.last_manner() };
        let Pending { parsed, body, selection, .. } = *pending;
        let is_rpc = matches!(&parsed, ParsedHead::A2a(request) if request.is_rpc());
        self.reply_to = is_rpc.then(|| a2a::reply_to(&body));
        match parsed.complete(&body) {
            Ok(call) => {
                self.selection = selection;
                self.state = HttpState::Answer(context);
                Some(ConnectionStep::Call(call))
            }
            Err(answer) => {
                context.keeps_alive &= may_keep_alive;
                let answer = self.spelled(&answer, context).unwrap_or(answer);
                match selection {
                    None => answer.write(context, around, out),
                    Some(selection) => answer.selected(&selection).write(context, around, out),
                }
                self.end_answer(context);
                (!context.keeps_alive).then_some(ConnectionStep::Close)
            }
        }
    }

    /// Answers that nothing more is read, and closes. If the body is too long and the request was
    /// answered before it, that answer is sent.
    fn refuse(
        &mut self,
        refusal: Refusal,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionStep {
        let error = ApiError::from(refusal);
        let HttpState::Body(pending) = std::mem::replace(&mut self.state, HttpState::Closed) else {
            let is_head = self.reader.begins_as_head();
            let context = ResponseContext { is_head, ..ResponseContext::LAST };
            return self.answer_and_close(&Answer::error(&error), context, around, out);
        };
        let context = pending.last_manner();
        let answer = match pending.parsed {
            ParsedHead::Here(answer) if refusal == Refusal::BodyTooLong => answer,
            _ if refusal == Refusal::BodyTooLong => {
                Answer::error_in(context.error_format, &error.limit(pending.body_bytes_max))
            }
            _ => Answer::error_in(context.error_format, &error),
        };
        self.answer_and_close(&answer, context, around, out)
    }

    fn answer_and_close(
        &mut self,
        answer: &Answer,
        context: ResponseContext,
        around: &Surroundings<'_>,
        out: &mut Vec<u8>,
    ) -> ConnectionStep {
        answer.write(context, around, out);
        self.close()
    }

    fn close(&mut self) -> ConnectionStep {
        self.is_cut_short = true;
        self.state = HttpState::Closed;
        self.kept = Vec::new();
        self.reader = RequestReader::new();
        ConnectionStep::Close
    }
}

impl Pending {
    fn of(head: &RequestHead<'_>, around: &Surroundings<'_>) -> Pending {
        let Admission { origin, verdict } = around.access.admit(head, around.now);
        let (principal, asked) = match verdict {
            Ok(principal) => (principal, ask(head)),
            Err(answer) => (Principal::ANYONE, Asked::refused(answer)),
        };
        let Asked { parsed, body_bytes_max, route, selection } = asked;
        let parsed = match parsed {
            ParsedHead::Here(answer) => ParsedHead::Here(answer.at_path(head.target.path)),
            parsed => parsed,
        };
        let is_head = head.method == Method::Head;
        let is_old = head.version == Version::Http10;
        Pending {
            parsed,
            principal,
            origin,
            error_format: ErrorFormat::at(head.target.path),
            is_head,
            is_old,
            may_keep_alive: false, // Known at its end.
            body: Vec::new(),
            body_bytes_max,
            route,
            began: around.now,
            selection,
        }
    }

    /// Returns how an answer is written after which the connection closes.
    fn last_manner(&self) -> ResponseContext {
        let Pending { is_head, origin, error_format, route, began, .. } = *self;
        let began = Some(began);
        ResponseContext { is_head, origin, error_format, route, began, ..ResponseContext::LAST }
    }

    fn context(&self) -> ResponseContext {
        ResponseContext {
            is_old: self.is_old,
            keeps_alive: self.may_keep_alive,
            ..self.last_manner()
        }
    }

    /// Takes a piece of the body. The body of a request that is already answered is dropped.
    fn take(&mut self, piece: &[u8]) {
        match &mut self.parsed {
            ParsedHead::Here(_) => {}
            ParsedHead::Parts(lines) => lines.push(piece),
            _ => self.body.extend_from_slice(piece),
        }
    }
}
