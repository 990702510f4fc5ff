//! One turn of a model with all its attempts, shared by `llm_generate` and by runs.
//!
//! It is a state machine: [`TurnAction`]s go out and [`TurnInput`] comes in. An attempt that fails
//! before any of its answer was passed on is retried, if a retry can help. The retry waits for a
//! random delay whose bound doubles each time. It never comes before the time that the server asked
//! for.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::agent::message::ToolDescription;
use crate::agent::model::{
    AnswerDecoder, Endpoint, ModelEvent, ModelFault, RefusalBody, Secret, fault_of_response,
};
use crate::base::{Instant, Random};
use crate::limits;

/// A turn of a model while its request is sent and answered.
///
/// ```
/// use streamdoor::agent::Message;
/// use streamdoor::agent::model::*;
/// use streamdoor::base::Instant;
///
/// let base_url = "http://127.0.0.1:8080".parse()?;
/// let model = "any".to_owned();
/// let endpoint = Endpoint { wire: Wire::ChatCompletions, base_url, model, key: None };
/// let messages = [Message::User("Hello?".into())];
/// let mut request = Vec::new();
/// write_request(&endpoint, &Ask::of(&messages), &mut request);
///
/// let (now, wall_us) = (Instant::ZERO, 0);
/// let mut turn = Turn::new(&endpoint, &[], request, TurnOptions::default());
/// let Some(TurnAction::Ask { attempt, request }) = turn.next_action() else { unreachable!() };
/// assert!(request.starts_with(b"POST /chat/completions HTTP/1.1\r\n"));
/// let head = TurnInput::Head { status: 200, retry_after: None, retry_after_ms: None };
/// turn.handle(attempt, head, now, wall_us);
/// let choice = r#"{"delta":{"content":"Yes."},"finish_reason":"stop"}"#;
/// let body = format!("data: {{\"choices\":[{choice}]}}\n\n");
/// turn.handle(attempt, TurnInput::Body(body.as_bytes()), now, wall_us);
/// assert_eq!(turn.next_event(), Some(ModelEvent::Text("Yes.".into())));
/// turn.handle(attempt, TurnInput::End, now, wall_us);
/// assert_eq!(turn.next_event(), Some(ModelEvent::Finished(FinishReason::Stop)));
/// assert!(turn.is_over() && turn.failure().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Turn {
    state: TurnState,
    attempt: u32,
    /// The scheduled attempt, until it is taken.
    retry: Option<TurnRetry>,
    request: RequestBytes,
    decoder: AnswerDecoder,
    key: Option<Secret>,
    events: VecDeque<ModelEvent>,
    actions: VecDeque<TurnAction>,
    /// True if an event was passed on that cannot be taken back.
    has_emitted: bool,
    retries_max: u32,
    random: Random,
}

/// A request. `Debug` prints its length only, because it contains the key.
struct RequestBytes(Vec<u8>);

#[derive(Debug)]
enum TurnState {
    ExpectHead,
    ExpectBody,
    ExpectRefusal {
        status: u16,
        retry_after: Option<String>,
        retry_after_ms: Option<String>,
        body: Vec<u8>,
    },
    ExpectTime {
        until: Instant,
    },
    Over(Option<TurnFailure>),
}

/// The options of a turn's retries.
#[derive(Clone, Copy, Debug)]
pub struct TurnOptions {
    /// Maximum number of attempts after the first; at most [`limits::MODEL_RETRIES_MAX`].
    pub retries_max: u32,
    /// Seed of the random delays between attempts.
    pub seed: u64,
}

impl Default for TurnOptions {
    fn default() -> TurnOptions {
        TurnOptions { retries_max: limits::AGENT_RETRIES, seed: 0 }
    }
}

/// An action that the driver of a turn carries out.
#[derive(Clone, PartialEq, Eq)]
pub enum TurnAction {
    /// Sends a request. The driver reports the answer with this attempt's number.
    Ask {
        /// The attempt: 0, 1, …
        attempt: u32,
        /// A complete HTTP request, which contains the key.
        request: Vec<u8>,
    },
    /// Releases an attempt: its answer is complete, though its body may not have ended. If the body
    /// ends soon, the connection can be reused.
    Release {
        /// The attempt.
        attempt: u32,
    },
    /// Closes the connection of an attempt. Nothing more of it is needed.
    HangUp {
        /// The attempt.
        attempt: u32,
    },
}

/// An event of an attempt, reported by the driver.
#[derive(Clone, Copy, Debug)]
pub enum TurnInput<'a> {
    /// The head of the answer was received.
    Head {
        /// The HTTP status.
        status: u16,
        /// The value of the header `retry-after`.
        retry_after: Option<&'a str>,
        /// The value of the header `retry-after-ms`.
        retry_after_ms: Option<&'a str>,
    },
    /// More bytes of the body.
    Body(&'a [u8]),
    /// The body is complete.
    End,
    /// The connection broke, or was never made.
    Broken {
        /// A short name of the fault, e.g. `model_unreachable`.
        code: &'a str,
        /// A message for people.
        text: &'a str,
        /// True if a retry can help.
        is_retryable: bool,
    },
}

/// The reason for which a turn failed for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnFailure {
    /// A short name of the failure.
    pub code: String,
    /// A message for people.
    pub message: String,
    /// True if the same turn can succeed later.
    pub is_retryable: bool,
    /// The delay that the server asked for, if any.
    pub retry_after: Option<Duration>,
}

/// An attempt that follows a failed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnRetry {
    /// The attempt, from 1.
    pub attempt: u32,
    /// Number of the last attempt.
    pub attempt_max: u32,
    /// The time until it begins.
    pub delay: Duration,
    /// The message of the failure.
    pub message: String,
}

impl fmt::Display for TurnRetry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TurnRetry { attempt, attempt_max, delay, message } = self;
        let seconds = delay.as_secs_f64();
        write!(out, "retry {attempt} of {attempt_max} in {seconds:.1} s: {message}")
    }
}

impl Turn {
    /// Creates a turn and asks for its first attempt. `request` is sent with every attempt; see
    /// [`write_request`](crate::agent::model::write_request).
    pub fn new(
        endpoint: &Endpoint,
        tools: &[ToolDescription],
        request: Vec<u8>,
        options: TurnOptions,
    ) -> Turn {
        let mut turn = Turn {
            state: TurnState::ExpectHead,
            attempt: 0,
            retry: None,
            request: RequestBytes(request),
            decoder: AnswerDecoder::new(endpoint, tools),
            key: endpoint.key.clone(),
            events: VecDeque::new(),
            actions: VecDeque::new(),
            has_emitted: false,
            retries_max: options.retries_max.min(limits::MODEL_RETRIES_MAX),
            random: Random::new(options.seed),
        };
        turn.ask();
        turn
    }

    /// Takes an event of an attempt; events of an earlier attempt are ignored. `wall_us` is the
    /// time of day, in µs since 1970, for a server that asks for a retry at a date.
    ///
    /// # Panics
    /// Panics if the head of an answer comes twice, or after its body.
    pub fn handle(&mut self, attempt: u32, input: TurnInput<'_>, now: Instant, wall_us: u64) {
        if attempt != self.attempt {
            return;
        }
        match (&mut self.state, input) {
            (TurnState::Over(_) | TurnState::ExpectTime { .. }, _) => {}
            (_, TurnInput::Broken { code, text, is_retryable }) => {
                let (code, message) = (code.to_owned(), text.to_owned());
                let failure = TurnFailure { code, message, is_retryable, retry_after: None };
                self.end_broken(failure, now, wall_us);
            }
            (TurnState::ExpectHead, TurnInput::Head { status, retry_after, retry_after_ms }) => {
                let owned = |text: Option<&str>| text.map(str::to_owned);
                self.state = match status {
                    200..=299 => TurnState::ExpectBody,
                    _ => TurnState::ExpectRefusal {
                        status,
                        retry_after: owned(retry_after),
                        retry_after_ms: owned(retry_after_ms),
                        body: Vec::new(),
                    },
                };
            }
            (TurnState::ExpectBody, TurnInput::Body(bytes)) => {
                let result = self.decode(|decoder, events| decoder.feed(bytes, events));
                self.judge(result, false, now);
            }
            (TurnState::ExpectBody, TurnInput::End) => {
                let result = self.decode(AnswerDecoder::end);
                self.judge(result, true, now);
            }
            (TurnState::ExpectRefusal { body, .. }, TurnInput::Body(bytes)) => {
                let room = limits::MODEL_ERROR_BYTES_MAX - body.len();
                body.extend_from_slice(&bytes[..bytes.len().min(room)]);
                if body.len() == limits::MODEL_ERROR_BYTES_MAX {
                    self.end_refusal(false, now, wall_us);
                }
            }
            (TurnState::ExpectRefusal { .. }, TurnInput::End) => {
                self.end_refusal(true, now, wall_us)
            }
            (TurnState::ExpectHead, TurnInput::Body(_) | TurnInput::End)
            | (TurnState::ExpectBody | TurnState::ExpectRefusal { .. }, TurnInput::Head { .. }) => {
                unreachable!("a head comes once, and before its body")
            }
        }
    }

    /// Checks whether the next attempt is due, and starts it.
    pub fn tick(&mut self, now: Instant) {
        if self.next_deadline().is_some_and(|until| until <= now) {
            self.attempt += 1;
            self.decoder.restart();
            self.ask();
        }
    }

    /// Cancels the turn at once: its remaining events are dropped, and an open connection is
    /// closed.
    pub fn cancel(&mut self) {
        self.events.clear();
        let was_asked = !self.actions.iter().any(|act| matches!(act, TurnAction::Ask { .. }));
        self.actions.retain(|action| !matches!(action, TurnAction::Ask { .. }));
        if self.is_over() {
            return;
        }
        if was_asked && !matches!(self.state, TurnState::ExpectTime { .. }) {
            self.actions.push_back(TurnAction::HangUp { attempt: self.attempt });
        }
        self.state = TurnState::Over(None);
    }

    /// Returns the next action.
    pub fn next_action(&mut self) -> Option<TurnAction> {
        self.actions.pop_front()
    }

    /// Returns the next event of the answer.
    pub fn next_event(&mut self) -> Option<ModelEvent> {
        self.events.pop_front()
    }

    /// Returns the time at which [`Turn::tick`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.state {
            TurnState::ExpectTime { until } => Some(until),
            _ => None,
        }
    }

    /// Returns the failure, if the turn failed. Its events may hold the answer up to that point.
    pub fn failure(&self) -> Option<&TurnFailure> {
        match &self.state {
            TurnState::Over(failure) => failure.as_ref(),
            _ => None,
        }
    }

    /// True if the turn is over, successfully or not. Events may be left.
    pub fn is_over(&self) -> bool {
        matches!(self.state, TurnState::Over(_))
    }

    /// Returns the next attempt that was scheduled since the last call.
    pub fn take_retry(&mut self) -> Option<TurnRetry> {
        self.retry.take()
    }

    /// Number of attempts so far.
    pub fn attempt_count(&self) -> u32 {
        self.attempt + 1
    }

    fn ask(&mut self) {
        let RequestBytes(request) = &self.request;
        let request = request.clone();
        self.actions.push_back(TurnAction::Ask { attempt: self.attempt, request });
        self.state = TurnState::ExpectHead;
    }

    fn decode(
        &mut self,
        read: impl FnOnce(&mut AnswerDecoder, &mut VecDeque<ModelEvent>) -> Result<(), ModelFault>,
    ) -> Result<(), ModelFault> {
        let known = self.events.len();
        let result = read(&mut self.decoder, &mut self.events);
        // The next attempt replaces the counts of a failed one.
        let is_said = |event: &ModelEvent| !matches!(event, ModelEvent::Usage(_));
        self.has_emitted |= self.events.range(known..).any(is_said);
        result
    }

    /// Continues or ends the attempt, depending on the decoder's result for the newest bytes.
    fn judge(&mut self, result: Result<(), ModelFault>, is_ended: bool, now: Instant) {
        match result {
            Ok(()) if self.decoder.is_finished() => {
                self.state = TurnState::Over(None);
                if !is_ended {
                    self.actions.push_back(TurnAction::Release { attempt: self.attempt });
                }
            }
            Ok(()) => {}
            Err(fault) => {
                if !is_ended {
                    self.actions.push_back(TurnAction::HangUp { attempt: self.attempt });
                }
                self.fail(TurnFailure::of(&fault), now);
            }
        }
    }

    /// Ends a broken attempt. Its answer can still be complete, and the beginning of a refusal can
    /// be enough to interpret it.
    fn end_broken(&mut self, failure: TurnFailure, now: Instant, wall_us: u64) {
        match &self.state {
            TurnState::ExpectRefusal { .. } => self.end_refusal(true, now, wall_us),
            TurnState::ExpectBody => match self.decode(AnswerDecoder::end) {
                Err(ModelFault::Truncated) => self.fail(failure, now),
                result => self.judge(result, true, now),
            },
            _ => self.fail(failure, now),
        }
    }

    fn end_refusal(&mut self, is_ended: bool, now: Instant, wall_us: u64) {
        let TurnState::ExpectRefusal { status, retry_after, retry_after_ms, body } = &self.state
        else {
            unreachable!("only what is a refusal ends as one");
        };
        let answered = RefusalBody {
            status: *status,
            retry_after: retry_after.as_deref(),
            retry_after_ms: retry_after_ms.as_deref(),
            body,
        };
        let refused = fault_of_response(&answered, self.key.as_ref(), wall_us);
        if !is_ended {
            self.actions.push_back(TurnAction::HangUp { attempt: self.attempt });
        }
        let message = refused.to_string();
        let (is_retryable, retry_after) = (refused.is_retryable, refused.retry_after);
        self.fail(TurnFailure { code: refused.code, message, is_retryable, retry_after }, now);
    }

    /// Schedules another attempt, or fails the turn for good.
    fn fail(&mut self, failure: TurnFailure, now: Instant) {
        let asked_for = failure.retry_after.unwrap_or(Duration::ZERO);
        let may_retry = failure.is_retryable
            && !self.has_emitted
            && self.attempt < self.retries_max
            && asked_for <= limits::MODEL_RETRY_AFTER_MAX;
        if !may_retry {
            self.state = TurnState::Over(Some(failure));
            return;
        }
        let bound = limits::MODEL_RETRY_DELAY * (1 << self.attempt);
        let bound = bound.min(limits::MODEL_RETRY_DELAY_MAX);
        let delay = bound.mul_f64(self.random.unit()).max(asked_for);
        self.retry = Some(TurnRetry {
            attempt: self.attempt + 1,
            attempt_max: self.retries_max,
            delay,
            message: failure.message,
        });
        self.state = TurnState::ExpectTime { until: now + delay };
    }
}

impl TurnFailure {
    fn of(fault: &ModelFault) -> TurnFailure {
        TurnFailure {
            code: fault.code().to_owned(),
            message: fault.to_string(),
            is_retryable: fault.is_retryable(),
            retry_after: None,
        }
    }
}

impl fmt::Debug for TurnAction {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TurnAction::Ask { attempt, .. } => write!(out, "Ask({attempt})"),
            TurnAction::Release { attempt } => write!(out, "Release({attempt})"),
            TurnAction::HangUp { attempt } => write!(out, "HangUp({attempt})"),
        }
    }
}

impl fmt::Debug for RequestBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Request({} bytes)", self.0.len())
    }
}
