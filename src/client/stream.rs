//! One execution, followed to its end: over as many connections as it takes.

use std::ops::ControlFlow;
use std::time::Duration;

use super::Client;
use super::acks::Acks;
use super::backoff::Backoff;
use super::connection::{Connection, Patience};
use super::error::{ClientError, Cut};
use super::event::{Ended, Event, Progress, Started};
use super::order::Order;
use super::request::{self, FollowOptions};
use crate::base::{ExecutionId, Instant};
use crate::endpoint::{StreamFormat, Wishes};
use crate::engine::{Policy, Totals};
use crate::limits;
use crate::reactor::Clock;
use crate::wire::ndjson;
use crate::wire::sse::{self, Reached};

/// The events of an execution: [`Event::Started`], then everything in order and once, then
/// [`Event::End`], and nothing more.
///
/// A connection that breaks is replaced, and the stream goes on behind what was given last. That
/// there was a break shows in [`Stream::reconnects`] only. What the server says is checked: an
/// event that is not well formed, a chunk missing without a gap, or a stream that is over before
/// its end are errors, after which nothing more comes. So is an end that counts other chunks of the
/// execution than came or were told missing.
///
/// Dropping it ends the connection; the execution goes on.
#[derive(Debug)]
pub struct Stream {
    client: Client,
    options: FollowOptions,
    /// Known from the first event on, or from the beginning.
    execution: Option<ExecutionId>,
    link: Option<Link>,
    order: Order,
    started: Option<Started>,
    progress: Option<Progress>,
    backoff: Backoff,
    /// Under `block`: what is acknowledged.
    acks: Option<Acks>,
    /// Why there is no connection, and what its server wants to be waited.
    cut: Option<ClientError>,
    reconnects: u64,
    is_over: bool,
}

/// A connection with a stream on it.
#[derive(Debug)]
struct Link {
    connection: Connection,
    decoder: Decoder,
    received: Vec<u8>,
    /// So much of it is decoded.
    at: usize,
    /// All of the response is received.
    is_complete: bool,
    /// Its first event has come, at that time.
    started_at: Option<Instant>,
    /// When bytes came last.
    heard_at: Instant,
}

/// The outcome of waiting for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Received {
    /// This many.
    Bytes(usize),
    /// None yet.
    Nothing,
    /// There will be none: the response is complete.
    End,
}

#[derive(Debug)]
enum Decoder {
    Sse(sse::Decoder),
    Ndjson(ndjson::Decoder),
}

/// An event, of which execution, and how far the stream is with it, if that was said.
type Told = (ExecutionId, Event, Option<Reached>);

impl Stream {
    /// Of an execution, or of one that the first event names; on a connection whose head was read,
    /// if there is anything to come.
    pub(super) fn new(
        client: Client,
        options: FollowOptions,
        execution: Option<ExecutionId>,
        connection: Option<Connection>,
        acks: Option<Acks>,
    ) -> Stream {
        let seed = Clock::now().nanos() ^ u64::from(std::process::id()).rotate_left(32);
        Stream {
            order: Order::new(options.wishes.kinds.is_all(), options.begin_after()),
            backoff: Backoff::new(seed, options.retry, options.reconnects_max),
            is_over: connection.is_none(),
            link: connection.map(|connection| Link::new(connection, options.format)),
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

    /// Which execution is followed; not known before the first event of a call.
    pub fn execution(&self) -> Option<ExecutionId> {
        self.execution
    }

    /// What was agreed last: with a new connection the server may give us a new name.
    pub fn started(&self) -> Option<&Started> {
        self.started.as_ref()
    }

    /// The last chunk that was given or told of.
    pub fn told_seq(&self) -> Option<u64> {
        self.order.told_seq()
    }

    /// How far the stream is: what to go on behind another time, as [`FollowOptions::after`].
    /// `None` until the server has said where it begins.
    pub fn reached(&self) -> Option<Reached> {
        self.order.reached()
    }

    /// How often the stream was taken up again.
    pub fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// The chunks and bytes that came so far, over all connections. The end counts one alone.
    pub fn given(&self) -> Totals {
        self.order.given()
    }

    /// The chunks and bytes that gaps have told missing so far, over all connections.
    pub fn missed(&self) -> Totals {
        self.order.missed()
    }

    /// Says that everything up to chunk `seq` is dealt with; with
    /// [`Wishes::ack_window`](crate::endpoint::Wishes::ack_window). Without that, a stream under
    /// `block` says it by itself: of each event when its caller asks for the next.
    ///
    /// # Errors
    /// [`ClientError`]; it can be said again.
    pub fn acknowledge(&self, seq: u64) -> Result<(), ClientError> {
        match (self.execution, &self.started) {
            (Some(execution), Some(started)) => {
                self.client.acknowledge(execution, &started.subscriber, seq)
            }
            _ => Ok(()), // Nothing has come that could be dealt with.
        }
    }

    /// The next event, if it has been received already: waits for nothing. `None` also at the end.
    pub fn poll(&mut self) -> Option<Result<Event, ClientError>> {
        while !self.is_over {
            let told = self.link.as_mut()?.decode(self.execution);
            match told.and_then(|told| told.map(|told| self.check(told)).transpose()) {
                Ok(None) => return None,
                Ok(Some(None)) => {} // We have that already.
                Ok(Some(Some(event))) => {
                    self.is_over = matches!(event, Event::End(_));
                    return Some(Ok(event));
                }
                Err(error) => return Some(Err(self.fail(error))),
            }
        }
        None
    }

    /// Hands each event to `take` until it breaks, or to the end, which is given back, too; `None`
    /// if there was none to wait for.
    ///
    /// # Errors
    /// [`ClientError`], as the iterator.
    pub fn run(
        mut self,
        mut take: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Option<Ended>, ClientError> {
        while let Some(event) = self.next().transpose()? {
            let flow = take(&event);
            match event {
                Event::End(ended) => return Ok(Some(ended)),
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

    /// Is the event right, and is it new?
    fn check(&mut self, (execution, event, id): Told) -> Result<Option<Event>, ClientError> {
        let link = self.link.as_mut().expect("an event came on it");
        let is_first = link.started_at.is_none();
        if is_first != matches!(event, Event::Started(_)) {
            return Err(ClientError::protocol(match is_first {
                true => "the first event of a stream is not `started`",
                false => "a stream has started twice",
            }));
        }
        if self.execution.is_some_and(|expected| expected != execution) {
            return Err(ClientError::protocol("an event is of another execution"));
        }
        let is_new = match &event {
            Event::Started(started) => {
                link.started_at = Some(Clock::now());
                self.execution = Some(execution);
                self.order.started(started)?;
                if let Some(acks) = &mut self.acks {
                    acks.begin(execution, &started.subscriber, started.from_seq - 1);
                }
                self.started.replace(started.clone()).is_none()
            }
            Event::Chunk(chunk) => self.order.chunk(chunk, id)?,
            Event::Part(part) => self.order.part(part.seq, part.json.len() as u64, id)?,
            Event::Gap(gap) => self.order.gap(gap, id)?,
            // A new connection begins with how far the tool is: perhaps no further.
            Event::Progress(progress) => {
                self.progress.replace(progress.clone()).as_ref() != Some(progress)
            }
            Event::End(ended) => self.order.end(ended, id).map(|()| true)?,
        };
        match event {
            Event::Started(_) | Event::Progress(_) => self.order.passed(id)?,
            _ if is_new => self.backoff.reset(),
            _ => {}
        }
        Ok(is_new.then_some(event))
    }

    /// Waits for more to decode; or does the next thing to get at it.
    fn receive(&mut self) -> Result<(), ClientError> {
        let Some(link) = &mut self.link else { return self.reconnect() };
        // The caller has come back for more: it has taken all that it was told.
        let told_seq = self.order.told_seq().unwrap_or(0);
        let wait_max = self.acks.as_mut().and_then(|acks| acks.speak(&self.client, told_seq));
        let error = match link.receive(self.options.silence_max, wait_max) {
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

    /// Waits, and tries once to take the stream up again.
    fn reconnect(&mut self) -> Result<(), ClientError> {
        let cause = self.cut.take().unwrap_or(ClientError::Cut(Cut::Closed));
        let wait_min = cause.refused().and_then(|refused| refused.retry_after);
        let attempts = self.backoff.attempts();
        let again = self.backoff.next(wait_min.unwrap_or(Duration::ZERO));
        // A call whose first event never came must not be made twice.
        let (Some(wait), Some(execution)) = (again, self.execution) else {
            return Err(ClientError::Broken { attempts, cause: Box::new(cause) });
        };
        std::thread::sleep(wait);
        let after = match self.started {
            Some(_) => self.order.reached(),
            None => self.options.after, // As if there had been no connection yet.
        };
        if self.started.as_ref().is_some_and(|started| started.policy == Policy::Block) {
            self.acknowledge_from_now_on();
        }
        let request = request::follow(execution, after, &self.options);
        match self.client.open(&request, self.options.format) {
            Ok(Some(connection)) => {
                self.order.resume();
                self.reconnects += 1;
                self.link = Some(Link::new(connection, self.options.format));
                Ok(())
            }
            Ok(None) => {
                Err(ClientError::protocol("there is nothing more, but the end was not told"))
            }
            Err(error) if error.is_transient() => {
                self.cut = Some(error);
                Ok(())
            }
            // A server that was started anew knows nothing of it, say: the rest will never come.
            Err(error) => Err(ClientError::Broken { attempts, cause: Box::new(error) }),
        }
    }

    /// The execution has decided for `block`, which was not known before.
    fn acknowledge_from_now_on(&mut self) {
        let policy = Some(Policy::Block);
        let wishes = Wishes { policy, ..self.options.wishes };
        let options = FollowOptions { wishes, ..self.options.clone() };
        if let (options, Some(acks)) = options.acknowledged() {
            (self.options, self.acks) = (options, Some(acks));
        }
    }
}

impl Iterator for Stream {
    type Item = Result<Event, ClientError>;

    /// Waits for the next event.
    fn next(&mut self) -> Option<Result<Event, ClientError>> {
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

impl std::iter::FusedIterator for Stream {}

impl Link {
    fn new(connection: Connection, format: StreamFormat) -> Link {
        let decoder = match format {
            StreamFormat::Sse | StreamFormat::Front(_) => Decoder::Sse(sse::Decoder::new()),
            StreamFormat::Ndjson => Decoder::Ndjson(ndjson::Decoder::new()),
        };
        let (received, at, is_complete, started_at) = (Vec::new(), 0, false, None);
        let heard_at = Clock::now();
        Link { connection, decoder, received, at, is_complete, started_at, heard_at }
    }

    /// Waits for bytes, when all others are decoded; for `wait_max` at most, if it is given. Longer
    /// silence than `silence_max` is a cut.
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
        let patience = Patience::Silence(wait_max.unwrap_or(silence_max).min(silence_max));
        match self.connection.receive(patience, &mut self.received) {
            Ok(has_more) => self.is_complete = !has_more,
            Err(ClientError::Cut(Cut::Silent(_))) if wait_max.is_some() => {
                return match Clock::now().since(self.heard_at) < silence_max {
                    true => Ok(Received::Nothing),
                    false => Err(Cut::Silent(silence_max).into()),
                };
            }
            Err(error) => return Err(error),
        }
        self.heard_at = Clock::now();
        Ok(Received::Bytes(self.received.len()))
    }

    /// The next event that is whole.
    fn decode(&mut self, execution: Option<ExecutionId>) -> Result<Option<Told>, ClientError> {
        let mut input = &self.received[self.at..];
        let told = match &mut self.decoder {
            Decoder::Sse(decoder) => match decoder.read(&mut input) {
                Ok(None) => None,
                Ok(Some(message)) => {
                    let (of, event) = Event::parse(message.data_bytes())?;
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
                    let (of, event) = Event::parse(line)?;
                    Some((of, event, None))
                }
                Err(error) => return Err(ClientError::protocol(error.to_string())),
            },
        };
        self.at = self.received.len() - input.len();
        Ok(told)
    }
}

/// How far an `id:` says that the stream is.
fn cursor(id: &str, execution: ExecutionId) -> Result<Option<Reached>, ClientError> {
    if id.is_empty() {
        return Ok(None);
    }
    let wrong = |error: sse::CursorError| {
        ClientError::protocol(format!("the `id:` of an event is no cursor: {error}"))
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
