//! The stream of one execution up to its end, over one or more connections.

use std::ops::ControlFlow;
use std::time::Duration;

use super::Client;
use super::acks::Acks;
use super::backoff::Backoff;
use super::connection::{ClientConnection, WaitLimit};
use super::error::{ClientError, Cut};
use super::event::{EndEvent, StartedEvent, StreamEvent};
use super::order::Order;
use super::request::{self, FollowOptions};
use crate::api::Progress;
use crate::base::{ExecutionId, Instant};
use crate::endpoint::{DeliveryOptions, StreamFormat};
use crate::limits;
use crate::reactor::Clock;
use crate::stream::{Policy, Totals};
use crate::wire::ndjson;
use crate::wire::sse::{self, Reached};

/// The events of an execution: [`StreamEvent::Started`], then each event in order and once, then
/// [`StreamEvent::End`].
///
/// A broken connection is replaced, and the stream continues after the last event that it returned.
/// The break shows only in [`EventStream::reconnects`]. Everything that the server sends is
/// checked. The stream fails and ends if an event is malformed, or if a chunk is missing without a
/// gap. It also fails if it ends without its end event. It fails as well if the totals in the end
/// event differ from the chunks that came or were reported missing.
///
/// Dropping the stream closes the connection. The execution continues.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    options: FollowOptions,
    /// Known from the start, or from the first event on.
    execution: Option<ExecutionId>,
    link: Option<StreamConnection>,
    order: Order,
    started: Option<StartedEvent>,
    progress: Option<Progress>,
    backoff: Backoff,
    /// The acknowledgements, under `block`.
    acks: Option<Acks>,
    /// The error that closed the last connection. It may hold the time that the server wants the
    /// client to wait.
    cut: Option<ClientError>,
    reconnects: u64,
    is_over: bool,
}

/// A connection with a stream on it.
#[derive(Debug)]
struct StreamConnection {
    connection: ClientConnection,
    decoder: Decoder,
    received: Vec<u8>,
    /// Number of bytes of `received` that are decoded.
    at: usize,
    /// True once the whole response is received.
    is_complete: bool,
    /// The time of the first event, once it has come.
    started_at: Option<Instant>,
    /// The time when the last bytes came.
    received_at: Instant,
}

/// The outcome of a wait for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    /// Number of bytes received.
    Bytes(usize),
    /// No bytes yet.
    Nothing,
    /// The response is complete. No more bytes will come.
    End,
}

#[derive(Debug)]
enum Decoder {
    Sse(sse::Decoder),
    Ndjson(ndjson::Decoder),
}

/// An event, its execution, and the position of the stream after it, if the server gave one.
type PositionedEvent = (ExecutionId, StreamEvent, Option<Reached>);

impl EventStream {
    /// A stream of `execution`, or of the one that the first event names. The response head of
    /// `connection` was read. `None` if nothing follows.
    pub(super) fn new(
        client: Client,
        options: FollowOptions,
        execution: Option<ExecutionId>,
        connection: Option<ClientConnection>,
        acks: Option<Acks>,
    ) -> EventStream {
        let seed = Clock::now().nanos() ^ u64::from(std::process::id()).rotate_left(32);
        EventStream {
            order: Order::new(options.delivery_options.kinds.is_all(), options.begin_after()),
            backoff: Backoff::new(seed, options.retry, options.reconnects_max),
            is_over: connection.is_none(),
            link: connection.map(|connection| StreamConnection::new(connection, options.format)),
            client,
            options,
            execution,
            started: None,
            progress: None,
            acks,
            cut: None,
            reconnects: 0,
        }
    }

    /// The execution. `None` before the first event of a call.
    pub fn execution(&self) -> Option<ExecutionId> {
        self.execution
    }

    /// The terms that were agreed last. A new connection may bring a new subscriber name.
    pub fn started(&self) -> Option<&StartedEvent> {
        self.started.as_ref()
    }

    /// The last chunk that was returned or reported missing.
    pub fn reported_seq(&self) -> Option<u64> {
        self.order.reported_seq()
    }

    /// The position of the stream. A later stream continues after it with [`FollowOptions::after`].
    /// `None` until the server has sent its first position.
    pub fn reached(&self) -> Option<Reached> {
        self.order.reached()
    }

    /// Number of times that the stream was resumed on a new connection.
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// The chunks and bytes received so far, over all connections. The end event counts one
    /// connection only.
    pub fn given(&self) -> Totals {
        self.order.given()
    }

    /// The chunks and bytes that gaps have reported missing so far, over all connections.
    pub fn missed(&self) -> Totals {
        self.order.missed()
    }

    /// Acknowledges all chunks up to `seq`, for streams with
    /// [`DeliveryOptions::ack_window`](crate::endpoint::DeliveryOptions::ack_window). A stream
    /// under `block` without a window acknowledges each event by itself, when its caller asks for
    /// the next.
    ///
    /// # Errors
    /// [`ClientError`]. The acknowledgement can be repeated.
    pub fn acknowledge(&self, seq: u64) -> Result<(), ClientError> {
        match (self.execution, &self.started) {
            (Some(execution), Some(started)) => {
                self.client.acknowledge(execution, &started.subscriber, seq)
            }
            _ => Ok(()), // Nothing has come yet that could be acknowledged.
        }
    }

    /// Returns the next event if it is already received. Never waits. `None` also at the end.
    pub fn poll(&mut self) -> Option<Result<StreamEvent, ClientError>> {
        while !self.is_over {
            let decoded = self.link.as_mut()?.decode(self.execution);
            match decoded.and_then(|decoded| decoded.map(|decoded| self.check(decoded)).transpose())
            {
                Ok(None) => return None,
                Ok(Some(None)) => {} // A repeated event.
                Ok(Some(Some(event))) => {
                    self.is_over = matches!(event, StreamEvent::End(_));
                    return Some(Ok(event));
                }
                Err(error) => return Some(Err(self.fail(error))),
            }
        }
        None
    }

    /// Passes each event to `take` until it breaks or the stream ends. Returns the end event if it
    /// came, `None` otherwise.
    ///
    /// # Errors
    /// [`ClientError`], as from the iterator.
    pub fn run(
        mut self,
        mut take: impl FnMut(&StreamEvent) -> ControlFlow<()>,
    ) -> Result<Option<EndEvent>, ClientError> {
        while let Some(event) = self.next().transpose()? {
            let flow = take(&event);
            match event {
                StreamEvent::End(ended) => return Ok(Some(ended)),
                _ if flow.is_break() => return Ok(None),
                _ => {}
            }
        }
        Ok(None)
    }

    fn fail(&mut self, error: ClientError) -> ClientError {
        self.is_over = true;
        self.link = None;
        error
    }

    /// Checks an event. Returns it if it is new.
    fn check(
        &mut self,
        (execution, event, id): PositionedEvent,
    ) -> Result<Option<StreamEvent>, ClientError> {
        let link = self.link.as_mut().expect("an event needs a connection");
        let is_first = link.started_at.is_none();
        if is_first != matches!(event, StreamEvent::Started(_)) {
            return Err(ClientError::protocol(match is_first {
                true => "the first event of a stream is not `started`",
                false => "the event `started` came twice",
            }));
        }
        if self.execution.is_some_and(|expected| expected != execution) {
            return Err(ClientError::protocol("an event belongs to another execution"));
        }
        let is_new = match &event {
            StreamEvent::Started(started) => {
                link.started_at = Some(Clock::now());
                self.execution = Some(execution);
                self.order.started(started)?;
                if let Some(acks) = &mut self.acks {
                    acks.begin(execution, &started.subscriber, started.from_seq - 1);
                }
                self.started.replace(started.clone()).is_none()
            }
            StreamEvent::Chunk(chunk) => self.order.chunk(chunk, id)?,
            StreamEvent::Part(part) => self.order.part(part.seq, part.json.len() as u64, id)?,
            StreamEvent::Gap(gap) => self.order.gap(gap, id)?,
            // A new connection begins with the present progress, which may be known already.
            StreamEvent::Progress(progress) => {
                self.progress.replace(progress.clone()).as_ref() != Some(progress)
            }
            StreamEvent::End(ended) => self.order.end(ended, id).map(|()| true)?,
        };
        match event {
            StreamEvent::Started(_) | StreamEvent::Progress(_) => self.order.passed(id)?,
            _ if is_new => self.backoff.reset(),
            _ => {}
        }
        Ok(is_new.then_some(event))
    }

    /// Waits for bytes to decode. Without a connection, makes one attempt to reconnect.
    fn receive(&mut self) -> Result<(), ClientError> {
        let Some(link) = &mut self.link else { return self.reconnect() };
        // The caller asks for more, so it has taken all events up to here.
        let reported_seq = self.order.reported_seq().unwrap_or(0);
        let silence_max = self.options.silence_max;
        let mut received = Ok(Received::Nothing);
        if self.acks.as_ref().is_some_and(|acks| !acks.is_overdue(reported_seq)) {
            // The end may be here already. The server knows no acknowledgement after it.
            received = link.receive(silence_max, Some(Duration::ZERO));
        }
        if matches!(received, Ok(Received::Nothing)) {
            let acks = self.acks.as_mut();
            let wait_max = acks.and_then(|acks| acks.speak(&self.client, reported_seq));
            received = link.receive(silence_max, wait_max);
        }
        let error = match received {
            Ok(Received::Bytes(count)) => {
                self.acks.iter_mut().for_each(|acks| acks.received(count));
                return Ok(());
            }
            Ok(Received::Nothing) => {
                self.acks.iter_mut().for_each(Acks::quiet);
                return Ok(());
            }
            Ok(Received::End) => ClientError::Cut(Cut::Unended),
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(error),
        };
        if let Some(retry) = link.decoder.retry() {
            self.backoff.set_retry(retry);
        }
        if link.started_at.is_some_and(|at| Clock::now().since(at) >= limits::CLIENT_CALM) {
            self.backoff.reset();
        }
        (self.link, self.cut) = (None, Some(error));
        self.acks.iter_mut().for_each(Acks::pause);
        Ok(())
    }

    /// Waits, and makes one attempt to resume the stream.
    fn reconnect(&mut self) -> Result<(), ClientError> {
        let cause = self.cut.take().unwrap_or(ClientError::Cut(Cut::Closed));
        let wait_min = cause.refused().and_then(|refused| refused.retry_after);
        let attempts = self.backoff.attempts();
        let again = self.backoff.next(wait_min.unwrap_or(Duration::ZERO));
        // A call whose first event has not come must not be repeated.
        let (Some(wait), Some(execution)) = (again, self.execution) else {
            return Err(ClientError::Broken { attempts, cause: Box::new(cause) });
        };
        std::thread::sleep(wait);
        let after = match self.started {
            Some(_) => self.order.reached(),
            None => self.options.after, // Begin as the first connection did.
        };
        if self.started.as_ref().is_some_and(|started| started.policy == Policy::Block) {
            self.acknowledge_from_now_on();
        }
        let request = request::follow(execution, after, &self.options);
        match self.client.open(&request, self.options.format) {
            Ok(Some(connection)) => {
                self.order.resume();
                self.reconnects += 1;
                self.link = Some(StreamConnection::new(connection, self.options.format));
                Ok(())
            }
            Ok(None) => {
                Err(ClientError::protocol("the server has nothing more, but the end did not come"))
            }
            Err(error) if error.is_transient() => {
                self.cut = Some(error);
                Ok(())
            }
            // For example, a restarted server does not know the execution: the rest will never
            // come.
            Err(error) => Err(ClientError::Broken { attempts, cause: Box::new(error) }),
        }
    }

    /// Turns acknowledgements on after the execution has chosen `block` itself.
    fn acknowledge_from_now_on(&mut self) {
        let policy = Some(Policy::Block);
        let delivery_options = DeliveryOptions { policy, ..self.options.delivery_options };
        let options = FollowOptions { delivery_options, ..self.options.clone() };
        if let (options, Some(acks)) = options.acknowledged() {
            (self.options, self.acks) = (options, Some(acks));
        }
    }
}

impl Iterator for EventStream {
    type Item = Result<StreamEvent, ClientError>;

    /// Waits for the next event.
    fn next(&mut self) -> Option<Result<StreamEvent, ClientError>> {
        loop {
            if let Some(event) = self.poll() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.receive() {
                return Some(Err(self.fail(error)));
            }
        }
    }
}

impl std::iter::FusedIterator for EventStream {}

impl StreamConnection {
    fn new(connection: ClientConnection, format: StreamFormat) -> StreamConnection {
        let decoder = match format {
            StreamFormat::Sse | StreamFormat::Front(_) => Decoder::Sse(sse::Decoder::new()),
            StreamFormat::Ndjson => Decoder::Ndjson(ndjson::Decoder::new()),
        };
        let (received, at, is_complete, started_at) = (Vec::new(), 0, false, None);
        let received_at = Clock::now();
        StreamConnection { connection, decoder, received, at, is_complete, started_at, received_at }
    }

    /// Waits for bytes once all received ones are decoded, for at most `wait_max` if it is given.
    /// Zero means no wait. Silence for longer than `silence_max` counts as a cut.
    fn receive(
        &mut self,
        silence_max: Duration,
        wait_max: Option<Duration>,
    ) -> Result<Received, ClientError> {
        if self.is_complete {
            return Ok(Received::End);
        }
        self.received.clear();
        self.at = 0;
        let silence_max = silence_max.max(limits::CLIENT_RETRY_MIN);
        let wait_limit = match wait_max {
            Some(Duration::ZERO) => WaitLimit::Now,
            _ => WaitLimit::Silence(wait_max.unwrap_or(silence_max).min(silence_max)),
        };
        match self.connection.receive(wait_limit, &mut self.received) {
            Ok(has_more) => self.is_complete = !has_more,
            Err(ClientError::Cut(Cut::Silent(_))) if wait_max.is_some() => {
                return match Clock::now().since(self.received_at) < silence_max {
                    true => Ok(Received::Nothing),
                    false => Err(Cut::Silent(silence_max).into()),
                };
            }
            Err(error) => return Err(error),
        }
        self.received_at = Clock::now();
        Ok(Received::Bytes(self.received.len()))
    }

    /// Decodes the next complete event.
    fn decode(
        &mut self,
        execution: Option<ExecutionId>,
    ) -> Result<Option<PositionedEvent>, ClientError> {
        let mut input = &self.received[self.at..];
        let decoded = match &mut self.decoder {
            Decoder::Sse(decoder) => match decoder.read(&mut input) {
                Ok(None) => None,
                Ok(Some(message)) => {
                    let (of, event) = StreamEvent::parse(message.data_bytes())?;
                    if message.name() != event.name() {
                        return Err(ClientError::protocol("an event has two names"));
                    }
                    let id = cursor(&message.id(), execution.unwrap_or(of))?;
                    Some((of, event, id))
                }
                Err(error) => return Err(ClientError::protocol(error.to_string())),
            },
            Decoder::Ndjson(decoder) => match decoder.read(&mut input) {
                Ok(None) => None,
                Ok(Some(line)) => {
                    let (of, event) = StreamEvent::parse(line)?;
                    Some((of, event, None))
                }
                Err(error) => return Err(ClientError::protocol(error.to_string())),
            },
        };
        self.at = self.received.len() - input.len();
        Ok(decoded)
    }
}

/// The position in the `id:` of an event.
fn cursor(id: &str, execution: ExecutionId) -> Result<Option<Reached>, ClientError> {
    if id.is_empty() {
        return Ok(None);
    }
    let wrong = |error: sse::CursorError| {
        ClientError::protocol(format!("the `id:` of an event is not a cursor: {error}"))
    };
    let cursors = sse::parse_cursors(id).map_err(wrong)?;
    let reached = cursors.of(&[execution]).map_err(wrong)?.next();
    Ok(reached)
}

impl Decoder {
    fn retry(&self) -> Option<Duration> {
        match self {
            Decoder::Sse(decoder) => decoder.retry(),
            Decoder::Ndjson(_) => None,
        }
    }
}
