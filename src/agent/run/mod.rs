//! A run as a state machine: [`RunEvent`]s go in, [`RunAction`]s and [`RunPart`]s come out.
//!
//! A run is a sequence of steps. A step is one turn of the model and the calls that it makes. A
//! step ends when its turn and all its calls have ended, and a [`Reason`] says whether another one
//! follows.
//!
//! The driver of a run passes events to it, then takes actions and parts until none are left. It
//! passes [`RunEvent::Tick`] at [`RunMachine::next_deadline`]. A run reads no clock and depends on
//! its events alone: equal events give equal actions and equal parts.
//!
//! Failures are handled as follows:
//! - A turn that fails before any of it was streamed is retried; [`crate::agent::model::Turn`] has
//!   the rules. A turn that fails later fails the run, because streamed text cannot be taken back.
//! - A call that cannot be carried out is reported to the model as an error. Its arguments are no
//!   object or were cut off, the tool is unknown, the turn has too many calls, or the tool refused
//!   or failed. No tool is started for incomplete arguments.
//! - A run is stopped by a cancellation, by a limit, or because its turn failed. The connection to
//!   the model is closed, and running tools are stopped without waiting for them. Their calls are
//!   closed as cancelled and the step with `decision: "stop"`, and the end follows.
//! - A turn that was filtered or refused carries out no calls.
//!
//! Invariants, checked by [`RunMachine::audit`], and P1 to P8 of `order.rs`, checked with every
//! part:
//! - R1 At most one exchange is open, and only while its turn continues. Each [`RunAction::Ask`] is
//!   closed once: by [`RunEvent::BodyEnded`], [`RunEvent::Broken`], [`RunAction::HangUp`] or
//!   [`RunAction::Release`].
//! - R2 At most `parallel_calls_max` tools run, and at most `calls_per_step_max` are started in one
//!   step. Each [`RunAction::Start`] is closed once: by [`RunEvent::ToolRefused`],
//!   [`RunEvent::ToolEnded`] or [`RunAction::Stop`].
//! - R3 A tool is started with a complete object, and only if the run knows the tool. With
//!   [`Strategy::AfterTurn`](crate::agent::Strategy) no tool is started while the turn continues.
//! - R4 After the end nothing runs, nothing is open, and no part is made.
//! - R5 Memory is bounded. Messages are bounded by `conversation_bytes_max` before each turn, a
//!   turn by the limits of [`crate::agent::model::AnswerDecoder`], and the output of each call by
//!   `output_bytes_max`. Waiting parts are bounded by [`limits::AGENT_PARTS_WAITING`] and the parts
//!   of one event, if the driver respects [`RunMachine::wants_body`] and
//!   [`RunMachine::wants_output`].
//!
//! Tests: `tests.rs` has one behaviour each; `world_tests.rs` has seeded worlds of models, tools
//! and faults.

mod call_ids;
mod calls;
mod out;
mod output;
mod step;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world_tests;

use std::collections::VecDeque;

use crate::agent::config::{Config, ConfigError};
use crate::agent::event::{RunAction, RunEvent};
use crate::agent::fit::words;
use crate::agent::hooks::Hooks;
use crate::agent::message::Message;
use crate::agent::model::TurnInput;
use crate::agent::part::{Partial, RunPart};
use crate::agent::state::{Ended, Reason, RunEnd, RunState};
use crate::base::{Guarded, Instant, Random};
use crate::limits;
use call_ids::CallIds;
use out::Out;
use step::OpenStep;

/// A run of an agent.
///
/// ```
/// use streamdoor::agent::model::{Endpoint, Wire};
/// use streamdoor::agent::{CancelReason, Config, Hooks, Message, NoHooks};
/// use streamdoor::agent::{RunAction, RunEvent, RunMachine};
/// use streamdoor::base::Instant;
///
/// let base_url = "http://127.0.0.1:8000/v1".parse()?;
/// let model = "some-model".to_owned();
/// let endpoint = Endpoint { wire: Wire::ChatCompletions, base_url, model, key: None };
/// let conversation = vec![Message::User("What is in this folder?".to_owned())];
/// let (now, wall_us) = (Instant::ZERO, 1_700_000_000_000_000);
/// let config = Config::new("agent-1", endpoint);
/// let hooks: Box<dyn Hooks + Send> = Box::new(NoHooks);
/// let mut run = RunMachine::new(config, conversation, hooks)?;
///
/// run.handle(RunEvent::Started, now, wall_us);
/// let Some(RunAction::Ask { exchange, request }) = run.next_action() else { panic!() };
/// assert!(request.starts_with(b"POST /v1/chat/completions HTTP/1.1\r\n"));
///
/// run.handle(RunEvent::Cancel(CancelReason::Cancelled), now, wall_us);
/// assert_eq!(run.next_action(), Some(RunAction::HangUp { exchange }));
/// let parts: Vec<_> = std::iter::from_fn(|| run.next_part()).collect();
/// let names: Vec<_> = parts.iter().map(|part| part.name()).collect();
/// let expected = ["ExecutionStarted", "StepStarted", "StepCompleted", "ExecutionCancelled"];
/// assert_eq!(names, expected);
/// assert!(run.is_over().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RunMachine {
    config: Config,
    messages: Vec<Message>,
    /// The size of `messages`.
    conversation_bytes: usize,
    out: Out,
    actions: VecDeque<RunAction>,
    random: Random,
    now: Instant,
    started: Option<Instant>,
    /// `Instant::FAR` until the run has started.
    deadline: Instant,
    step: Option<OpenStep>,
    exchange_count: u32,
    call_ids: CallIds,
}

impl RunMachine {
    /// Creates a run that begins with [`RunEvent::Started`]. `conversation` holds the messages so
    /// far; the last message of the user in it is the task.
    ///
    /// # Errors
    /// [`ConfigError`], as from [`Config::check`].
    pub fn new(
        config: Config,
        conversation: Vec<Message>,
        hooks: impl Into<Guarded<Box<dyn Hooks + Send>>>,
    ) -> Result<RunMachine, ConfigError> {
        config.check()?;
        let system = config.system.clone().map(Message::System);
        let messages: Vec<Message> = system.into_iter().chain(conversation).collect();
        let hooks = hooks.into();
        let out = Out::new(&config.agent_id, config.part_bytes_max, config.accumulate, hooks);
        Ok(RunMachine {
            conversation_bytes: step::messages_bytes(&messages),
            messages,
            out,
            actions: VecDeque::new(),
            random: Random::new(config.seed),
            now: Instant::ZERO,
            started: None,
            deadline: Instant::FAR,
            step: None,
            exchange_count: 0,
            call_ids: CallIds::default(),
            config,
        })
    }

    /// Takes an event. `now` is monotonic. `wall_us` is the time of day in µs since 1970 and may go
    /// backwards. After the end, events are ignored.
    ///
    /// # Panics
    /// Panics if a hook panics, or if [`RunEvent::Started`] comes twice. Panics if the head of an
    /// answer comes twice, or after its body.
    pub fn handle(&mut self, event: RunEvent<'_>, now: Instant, wall_us: u64) {
        self.now = self.now.max(now);
        self.out.wall_us = wall_us;
        if self.is_over().is_some() {
            return;
        }
        if self.now >= self.deadline && !matches!(event, RunEvent::Cancel(_)) {
            self.stop(Ended::Completed, Reason::DurationMax);
            return;
        }
        self.take(event);
        self.drive();
    }

    fn take(&mut self, event: RunEvent<'_>) {
        match event {
            RunEvent::Started => {
                assert!(self.started.is_none());
                self.start();
                self.begin_step();
            }
            RunEvent::Answered { exchange, status, retry_after, retry_after_ms } => {
                self.on_turn_input(
                    exchange,
                    TurnInput::Head { status, retry_after, retry_after_ms },
                );
            }
            RunEvent::Body { exchange, bytes } => {
                self.on_turn_input(exchange, TurnInput::Body(bytes))
            }
            RunEvent::BodyEnded { exchange } => self.on_turn_input(exchange, TurnInput::End),
            RunEvent::Broken { exchange, fault } => {
                let is_retryable = fault.kind.is_retryable();
                let (code, text) = (fault.kind.code(), fault.text.as_str());
                self.on_turn_input(exchange, TurnInput::Broken { code, text, is_retryable });
            }
            RunEvent::ToolStarted { call, execution } => self.tool_started(call, execution),
            RunEvent::ToolRefused { call, text } => self.tool_refused(call, text),
            RunEvent::ToolChunk { .. } => self.tool_chunk(&event),
            RunEvent::ToolProgress { call, progress } => self.tool_progress(call, &progress),
            RunEvent::ToolGap { call, gap } => self.tool_gap(call, gap),
            RunEvent::ToolEnded { call, outcome, exit, error } => {
                self.tool_ended(call, outcome, exit, error);
            }
            RunEvent::Cancel(reason) => {
                self.stop(Ended::Cancelled(reason), Reason::Cancelled(reason))
            }
            RunEvent::Tick => {
                if let Some(step) = &mut self.step {
                    step.turn.tick(self.now);
                }
            }
        }
    }

    /// Advances the run as far as possible without another event.
    fn drive(&mut self) {
        while self.is_over().is_none() && self.step.is_some() {
            self.pump_turn();
            if self.is_over().is_some() {
                return;
            }
            if self.out.streamed_bytes > self.config.bytes_max {
                self.stop(Ended::Completed, Reason::BytesMax);
                return;
            }
            self.start_calls();
            if !self.step.as_ref().is_some_and(OpenStep::is_done) {
                return;
            }
            self.complete_step();
        }
    }

    /// Makes the first part.
    fn start(&mut self) {
        self.started = Some(self.now);
        self.deadline = self.now + self.config.duration_max;
        let task = self.messages.iter().rev().find_map(|message| match message {
            Message::User(text) => Some(text.as_str()),
            _ => None,
        });
        let task = task.unwrap_or_default();
        let front = crate::agent::fit::front(task, self.out.part_bytes_max());
        let started = Partial::ExecutionStarted {
            task: front.to_owned(),
            task_truncated: front.len() < task.len(),
            model: words(&self.config.endpoint.model, limits::AGENT_WORDS_BYTES_MAX),
            tools: self.config.tools.iter().map(|tool| tool.name.clone()).collect(),
            tools_truncated: false,
        };
        self.out.push_partial(started);
    }

    /// Returns the next action. Actions may follow the end, because running tools have to be
    /// stopped.
    pub fn next_action(&mut self) -> Option<RunAction> {
        self.actions.pop_front()
    }

    /// Returns the next part.
    pub fn next_part(&mut self) -> Option<RunPart> {
        self.out.pop()
    }

    /// Returns the time at which [`RunEvent::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.started.is_none() || self.is_over().is_some() {
            return None;
        }
        let retry = self.step.as_ref().and_then(|step| step.turn.next_deadline());
        Some(retry.map_or(self.deadline, |retry| retry.min(self.deadline)))
    }

    /// True if [`RunEvent::Body`] may come: not too many parts wait to be taken. An event that
    /// comes anyway is processed, and exceeds only the memory bound.
    pub fn wants_body(&self) -> bool {
        self.out.waiting() < limits::AGENT_PARTS_WAITING
    }

    /// True if [`RunEvent::ToolChunk`] may come, under the same condition as
    /// [`RunMachine::wants_body`].
    pub fn wants_output(&self) -> bool {
        self.wants_body()
    }

    /// Returns the end of the run, if it has ended. The last part has then been made.
    pub fn is_over(&self) -> Option<&RunEnd> {
        self.state().end.as_ref()
    }

    /// Returns the state of the run, from the parts made so far.
    pub fn state(&self) -> &RunState {
        self.out.fold.state()
    }

    /// Returns the messages so far. After a completed run, another run can begin with them. A turn
    /// that was broken off is not among them.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Checks the invariants R1 to R5.
    ///
    /// # Panics
    /// Panics if an invariant does not hold.
    pub fn audit(&self) {
        self.out.audit();
        assert!(self.conversation_bytes == step::messages_bytes(&self.messages));
        self.call_ids.audit();
        if self.is_over().is_some() {
            assert!(self.step.is_none());
            assert!(self.next_deadline().is_none());
        }
        if let Some(step) = &self.step {
            step.audit(&self.config);
        }
    }
}

/// Checks that a run can be created on one thread and driven on another.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<RunMachine>();
};

impl std::fmt::Debug for RunMachine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Run")
            .field("agent_id", &self.config.agent_id)
            .field("step_number", &self.out.step_number)
            .field("end", &self.is_over())
            .finish_non_exhaustive()
    }
}
