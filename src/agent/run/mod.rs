//! A run as a machine: facts go in ([`Event`]), wishes ([`Action`]) and [`Part`]s come out.
//!
//! A run is a row of steps. A step is one turn of the model, and the calls that it makes. When all
//! of them are over, the step is over, and a [`Reason`] says whether there is another one.
//!
//! Whoever drives it tells it what happens, then takes actions and parts until there are none, and
//! comes back at [`Run::next_deadline`]. It reads no clock, and depends on nothing but what it is
//! told: equal facts give equal actions and equal parts.
//!
//! What becomes of what goes wrong:
//! - A turn that fails before anything of it was streamed is asked for again
//!   ([`crate::agent::model::Turn`] has the rules). One that fails later fails the run: what was
//!   streamed cannot be taken back.
//! - A call that cannot be carried out is told the model as an error: its arguments are no object
//!   or were cut off, there is no such tool, the turn has too many calls, the tool refused or
//!   failed. No tool is started for arguments that are not whole.
//! - When the run is stopped (by somebody, by a limit, because the turn failed), the model's
//!   connection is closed and tools that run are stopped, all at once and without waiting for
//!   them; their calls are closed as cancelled, the step with `decision: "stop"`, and the end
//!   follows.
//! - A turn that was filtered or refused carries out no calls.
//!
//! Invariants ([`Run::audit`], and those of `order.rs`, P1 to P8, with every part):
//! - R1 At most one exchange is open, and only while its turn goes on. Each [`Action::Ask`] is
//!   closed once: by [`Event::BodyEnded`], [`Event::Broken`], [`Action::HangUp`] or
//!   [`Action::Release`].
//! - R2 At most `parallel_calls_max` tools run, and of one step at most `calls_per_step_max` are
//!   started. Each [`Action::Start`] is closed once: by [`Event::ToolRefused`],
//!   [`Event::ToolEnded`] or [`Action::Stop`].
//! - R3 A tool is started with an object, whole, and for a tool that the run knows. With
//!   [`Strategy::AfterTurn`](crate::agent::Strategy) none is while the turn goes on.
//! - R4 After the end nothing runs, nothing is open, and nothing is made.
//! - R5 What is kept is bounded: messages by `conversation_bytes_max` before each turn, a turn by
//!   the limits of [`crate::agent::model::Decoder`], output of each call by `output_bytes_max`,
//!   and the parts that wait by [`limits::AGENT_PARTS_WAITING`] and what one event makes, as long
//!   as the driver heeds [`Run::wants_body`] and [`Run::wants_output`].
//!
//! Tests: `tests.rs` one behaviour each; `world_tests.rs` seeded worlds of models, tools, faults.

mod calls;
mod out;
mod output;
mod step;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod turn;
#[cfg(test)]
mod world_tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::agent::config::{Config, ConfigError};
use crate::agent::event::{Action, Event};
use crate::agent::fit::words;
use crate::agent::hooks::Hooks;
use crate::agent::message::Message;
use crate::agent::model::Heard;
use crate::agent::part::{Part, Partial};
use crate::agent::state::{End, Ended, Reason, State};
use crate::base::{Foreign, Instant, Random};
use crate::limits;
use out::Out;
use step::OpenStep;

/// A run of an agent.
///
/// ```
/// use streamdoor::agent::model::{Endpoint, Wire};
/// use streamdoor::agent::{Action, CancelReason, Config, Event, Hooks, Message, NoHooks, Run};
/// use streamdoor::base::Instant;
///
/// let base_url = "http://127.0.0.1:8000/v1".parse()?;
/// let model = "some-model".to_owned();
/// let endpoint = Endpoint { wire: Wire::ChatCompletions, base_url, model, key: None };
/// let conversation = vec![Message::User("What is in this folder?".to_owned())];
/// let (now, wall_us) = (Instant::ZERO, 1_700_000_000_000_000);
/// let config = Config::new("agent-1", endpoint);
/// let hooks: Box<dyn Hooks + Send> = Box::new(NoHooks);
/// let mut run = Run::new(config, conversation, hooks)?;
///
/// run.handle(Event::Started, now, wall_us);
/// let Some(Action::Ask { turn, request }) = run.next_action() else { panic!("it asks first") };
/// assert!(request.starts_with(b"POST /v1/chat/completions HTTP/1.1\r\n"));
///
/// run.handle(Event::Cancel(CancelReason::Cancelled), now, wall_us);
/// assert_eq!(run.next_action(), Some(Action::HangUp { turn }));
/// let parts: Vec<_> = std::iter::from_fn(|| run.next_part()).collect();
/// let names: Vec<_> = parts.iter().map(|part| part.name()).collect();
/// let expected = ["ExecutionStarted", "StepStarted", "StepCompleted", "ExecutionCancelled"];
/// assert_eq!(names, expected);
/// assert!(run.is_over().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Run {
    config: Config,
    messages: Vec<Message>,
    /// Of the messages.
    conversation_bytes: usize,
    out: Out,
    actions: VecDeque<Action>,
    random: Random,
    now: Instant,
    started: Option<Instant>,
    /// Far, until it has started.
    deadline: Instant,
    step: Option<OpenStep>,
    exchange_count: u32,
    call_count: u32,
    call_ids: BTreeSet<Arc<str>>,
}

impl Run {
    /// A run that begins with [`Event::Started`]. `conversation` is what was said so far; what the
    /// user wants now is the last message of his in it.
    ///
    /// # Errors
    /// [`ConfigError`], as [`Config::check`].
    pub fn new(
        config: Config,
        conversation: Vec<Message>,
        hooks: impl Into<Foreign<Box<dyn Hooks + Send>>>,
    ) -> Result<Run, ConfigError> {
        config.check()?;
        let system = config.system.clone().map(Message::System);
        let messages: Vec<Message> = system.into_iter().chain(conversation).collect();
        let hooks = hooks.into();
        let out = Out::new(&config.agent_id, config.part_bytes_max, config.accumulate, hooks);
        Ok(Run {
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
            call_count: 0,
            call_ids: BTreeSet::new(),
            config,
        })
    }

    /// Takes a fact. `now` never goes backwards; `wall_us` is the time of day, in µs since 1970,
    /// which may. After the end nothing is a fact any more.
    ///
    /// # Panics
    /// As the hooks do, and if [`Event::Started`] comes twice.
    pub fn handle(&mut self, event: Event<'_>, now: Instant, wall_us: u64) {
        self.now = self.now.max(now);
        self.out.wall_us = wall_us;
        if self.is_over().is_some() {
            return;
        }
        if self.now >= self.deadline && !matches!(event, Event::Cancel(_)) {
            self.stop(Ended::Completed, Reason::DurationMax);
            return;
        }
        self.take(event);
        self.drive();
    }

    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Started => {
                assert!(self.started.is_none());
                self.start();
                self.begin_step();
            }
            Event::Answered { turn, status, retry_after, retry_after_ms } => {
                self.hear(turn, Heard::Head { status, retry_after, retry_after_ms });
            }
            Event::Body { turn, bytes } => self.hear(turn, Heard::Body(bytes)),
            Event::BodyEnded { turn } => self.hear(turn, Heard::End),
            Event::Broken { turn, fault } => {
                let is_retryable = fault.kind.is_retryable();
                let (code, text) = (fault.kind.code(), fault.text.as_str());
                self.hear(turn, Heard::Broken { code, text, is_retryable });
            }
            Event::ToolStarted { call, execution } => self.tool_started(call, execution),
            Event::ToolRefused { call, text } => self.tool_refused(call, text),
            Event::ToolChunk { .. } => self.tool_chunk(&event),
            Event::ToolProgress { call, progress } => self.tool_progress(call, &progress),
            Event::ToolGap { call, gap } => self.tool_gap(call, gap),
            Event::ToolEnded { call, outcome, exit, error } => {
                self.tool_ended(call, outcome, exit, error);
            }
            Event::Cancel(reason) => self.stop(Ended::Cancelled(reason), Reason::Cancelled(reason)),
            Event::Tick => {
                if let Some(step) = &mut self.step {
                    step.turn.tick(self.now);
                }
            }
        }
    }

    /// Goes on as far as can be gone without another fact.
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

    /// The first part.
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

    /// The next wish. Also after the end there may be some: what runs has to be stopped.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next part.
    pub fn next_part(&mut self) -> Option<Part> {
        self.out.pop()
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.started.is_none() || self.is_over().is_some() {
            return None;
        }
        let retry = self.step.as_ref().and_then(|step| step.turn.next_deadline());
        Some(retry.map_or(self.deadline, |retry| retry.min(self.deadline)))
    }

    /// May [`Event::Body`] come? Not while too many parts wait to be taken. What comes all the
    /// same is taken, too: nothing is lost but the bound.
    pub fn wants_body(&self) -> bool {
        self.out.waiting() < limits::AGENT_PARTS_WAITING
    }

    /// May [`Event::ToolChunk`] come? As [`Run::wants_body`].
    pub fn wants_output(&self) -> bool {
        self.wants_body()
    }

    /// How the run ended, if it has: then the last part has been made.
    pub fn is_over(&self) -> Option<&End> {
        self.state().end.as_ref()
    }

    /// What is known of it, from the parts made so far.
    pub fn state(&self) -> &State {
        self.out.fold.state()
    }

    /// The messages so far. After a run that came to its end they are what another one can begin
    /// with; a turn that was broken off is not among them.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Checks all invariants: R1 to R5.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self) {
        self.out.audit();
        assert!(self.conversation_bytes == step::messages_bytes(&self.messages));
        assert!(self.call_ids.len() == self.call_count as usize);
        if self.is_over().is_some() {
            assert!(self.step.is_none());
            assert!(self.next_deadline().is_none());
        }
        if let Some(step) = &self.step {
            step.audit(&self.config);
        }
    }
}

/// A run may be made on one thread and driven on another.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Run>();
};

impl std::fmt::Debug for Run {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Run")
            .field("agent_id", &self.config.agent_id)
            .field("step_number", &self.out.step_number)
            .field("end", &self.is_over())
            .finish_non_exhaustive()
    }
}
