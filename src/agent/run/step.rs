//! Steps: their begin, the model's turn, their end, and the decision whether another one follows.
//!
//! The events of a turn become parts and calls; `calls.rs` carries the calls out.

use std::sync::Arc;

use super::RunMachine;
use super::calls::{self, CallState, RunCall};
use crate::agent::config::Config;
use crate::agent::event::RunAction;
use crate::agent::fit::{front, words};
use crate::agent::hooks::StepChoice;
use crate::agent::message::Message;
use crate::agent::model::{
    Ask, Assembly, FinishReason, ModelEvent, Turn, TurnAction, TurnInput, TurnOptions,
    write_request,
};
use crate::agent::part::{Body, Final, Partial};
use crate::agent::state::{
    Continuation, Decision, Ended, Failure, FinalState, Reason, StepCall, StepSummary, micros,
};
use crate::base::Instant;
use crate::limits;

/// The open step.
#[derive(Debug)]
pub(super) struct OpenStep {
    begun: Instant,
    pub turn: Turn,
    pub exchange: Option<OpenExchange>,
    /// The model's message so far.
    pub assembly: Assembly,
    pub text_bytes: u64,
    pub reasoning_bytes: u64,
    pub calls: Vec<RunCall>,
    /// Number of calls whose arguments were accepted.
    pub accepted_count: u32,
}

/// The open exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenExchange {
    /// Its number in the run.
    pub number: u32,
    /// Its attempt in the turn.
    pub attempt: u32,
}

impl OpenStep {
    pub fn is_turn_over(&self) -> bool {
        self.assembly.finish.is_some()
    }

    pub fn is_done(&self) -> bool {
        self.is_turn_over() && self.calls.iter().all(RunCall::is_over)
    }

    /// Checks R1 to R3.
    pub fn audit(&self, config: &Config) {
        assert!(self.exchange.is_none() || !self.is_turn_over());
        calls::audit(self, config);
    }
}

impl RunMachine {
    /// Asks the model for the next step, unless a hook or a limit prevents it.
    pub(super) fn begin_step(&mut self) {
        let state = self.out.fold.state();
        match self.out.hooks.before_step(state, &self.messages) {
            StepChoice::Go => {}
            StepChoice::ReplaceMessages(messages) => self.replace_messages(messages),
            StepChoice::Stop(why) => return self.end(Ended::Completed, hook(&why)),
        }
        if self.conversation_bytes > self.config.conversation_bytes_max {
            return self.end(Ended::Completed, Reason::ConversationMax);
        }
        self.out.step_number += 1;
        self.out.push_partial(Partial::StepStarted);
        let ask = Ask {
            messages: &self.messages,
            tools: &self.config.tools,
            max_tokens: self.config.max_tokens,
            temperature: self.config.temperature,
            effort: self.config.reasoning_effort,
            parallel_tool_calls: self.config.parallel_calls_max > 1,
        };
        let mut request = Vec::new();
        write_request(&self.config.endpoint, &ask, &mut request);
        let (retries_max, seed) = (self.config.retries_max, self.random.next_u64());
        let Config { endpoint, tools, .. } = &self.config;
        self.step = Some(OpenStep {
            begun: self.now,
            turn: Turn::new(endpoint, tools, request, TurnOptions { retries_max, seed }),
            exchange: None,
            assembly: Assembly::default(),
            text_bytes: 0,
            reasoning_bytes: 0,
            calls: Vec::new(),
            accepted_count: 0,
        });
    }

    fn replace_messages(&mut self, messages: Vec<Message>) {
        self.conversation_bytes = messages_bytes(&messages);
        self.messages = messages;
    }

    /// Passes received data of an exchange to the turn. Data of a closed exchange is ignored.
    pub(super) fn on_turn_input(&mut self, number: u32, input: TurnInput<'_>) {
        let Some(step) = &mut self.step else { return };
        let Some(exchange) = step.exchange.filter(|exchange| exchange.number == number) else {
            return;
        };
        if matches!(input, TurnInput::End | TurnInput::Broken { .. }) {
            step.exchange = None;
        }
        step.turn.handle(exchange.attempt, input, self.now, self.out.wall_us);
    }

    /// Takes all events and actions of the turn.
    pub(super) fn pump_turn(&mut self) {
        while let Some(event) = self.step.as_mut().and_then(|step| step.turn.next_event()) {
            self.take_model_event(event);
        }
        while let Some(action) = self.step.as_mut().and_then(|step| step.turn.next_action()) {
            self.take_turn_action(action);
        }
        let Some(step) = &mut self.step else { return };
        if let Some(retry) = step.turn.take_retry() {
            let message = words(&retry.to_string(), limits::AGENT_WORDS_BYTES_MAX);
            self.actions.push_back(RunAction::Report { message });
        }
        if let Some(failure) = step.turn.failure() {
            let failure = Failure {
                code: words(&failure.code, limits::AGENT_WORDS_BYTES_MAX),
                message: words(&failure.message, limits::AGENT_WORDS_BYTES_MAX),
                is_retryable: failure.is_retryable,
            };
            self.stop(Ended::Failed(failure), Reason::Failed);
        }
    }

    fn take_turn_action(&mut self, action: TurnAction) {
        match action {
            TurnAction::Ask { attempt, request } => {
                self.exchange_count += 1;
                let number = self.exchange_count;
                let step = self.step.as_mut().expect("a turn is part of a step");
                assert!(step.exchange.is_none());
                step.exchange = Some(OpenExchange { number, attempt });
                self.actions.push_back(RunAction::Ask { exchange: number, request });
            }
            TurnAction::Release { attempt } => {
                if let Some(exchange) = self.close_exchange(Some(attempt)) {
                    self.actions.push_back(RunAction::Release { exchange });
                }
            }
            TurnAction::HangUp { attempt } => self.hang_up(Some(attempt)),
        }
    }

    /// Closes the open exchange, if it belongs to this attempt (`None`: to any), and returns its
    /// number.
    fn close_exchange(&mut self, attempt: Option<u32>) -> Option<u32> {
        let step = self.step.as_mut()?;
        let is_meant =
            |open: &mut OpenExchange| attempt.is_none_or(|attempt| open.attempt == attempt);
        step.exchange.take_if(is_meant).map(|exchange| exchange.number)
    }

    /// Closes the open exchange immediately, if it belongs to this attempt (`None`: to any).
    pub(super) fn hang_up(&mut self, attempt: Option<u32>) {
        if let Some(exchange) = self.close_exchange(attempt) {
            self.actions.push_back(RunAction::HangUp { exchange });
        }
    }

    fn take_model_event(&mut self, event: ModelEvent) {
        let step = self.step.as_mut().expect("a turn is part of a step");
        step.assembly.take(&event);
        match event {
            ModelEvent::Text(text) => {
                let before = step.text_bytes;
                step.text_bytes += text.len() as u64;
                self.out.push_text(text, |delta, at| Partial::TextDelta {
                    delta,
                    offset: before + at,
                    accumulated_text: None,
                    accumulated_truncated: false,
                });
            }
            ModelEvent::Reasoning(text) => {
                let before = step.reasoning_bytes;
                step.reasoning_bytes += text.len() as u64;
                self.out.push_text(text, |delta, at| Partial::ReasoningDelta {
                    delta,
                    offset: before + at,
                });
            }
            ModelEvent::CallStarted { index, id, name } => {
                assert!(index as usize == step.calls.len());
                self.begin_call(id, &name);
            }
            ModelEvent::CallArguments { index, piece } => {
                let call = &mut step.calls[index as usize];
                assert!(call.state == CallState::Writing);
                let (id, before) = (Arc::clone(&call.id), call.arguments_bytes);
                call.arguments_bytes += piece.len() as u64;
                self.out.push_text(piece, |delta, at| Partial::ToolCallArgsDelta {
                    tool_call_id: Arc::clone(&id),
                    delta,
                    offset: before + at,
                });
            }
            ModelEvent::CallCompleted { index, .. } => self.complete_arguments(index as usize),
            ModelEvent::Block(_) | ModelEvent::Usage(_) => {}
            ModelEvent::Finished(reason) => self.finish_turn(&reason),
        }
    }

    fn begin_call(&mut self, id: Option<String>, name: &str) {
        let (number, id) = self.call_ids.next(id);
        let call = RunCall::new(number, id, name, self.now, self.out.wall_us);
        self.out.push_partial(Partial::ToolCallStarted {
            tool_call_id: Arc::clone(&call.id),
            tool_name: Arc::clone(&call.name),
        });
        self.step.as_mut().expect("a turn is part of a step").calls.push(call);
    }

    /// Handles the end of the turn. Arguments that are still incomplete were cut off.
    fn finish_turn(&mut self, reason: &FinishReason) {
        let step = self.step.as_ref().expect("a turn is part of a step");
        for at in 0..step.calls.len() {
            self.settle_arguments(at, reason);
        }
        if matches!(reason, FinishReason::ContentFilter | FinishReason::Refusal) {
            let text = format!("the model's turn ended with {}", reason.as_str());
            self.give_up_calls(&text);
        }
    }

    /// Completes the step, whose turn and calls are over.
    pub(super) fn complete_step(&mut self) {
        self.take_over_messages();
        let (decision, reason) = self.continuation();
        let outcome = self.end_step(Continuation { decision, reason });
        match outcome.decision {
            Decision::Continue => self.begin_step(),
            Decision::Stop => self.end(Ended::Completed, outcome.reason),
        }
    }

    /// Returns the run's own decision, before a hook is asked.
    fn continuation(&self) -> (Decision, Reason) {
        let step = self.step.as_ref().expect("it is being completed");
        let stop = |reason| (Decision::Stop, reason);
        let reason = match step.assembly.finish.clone().expect("the turn is over") {
            FinishReason::ContentFilter => return stop(Reason::ContentFilter),
            FinishReason::Refusal => return stop(Reason::Refusal),
            _ if !step.calls.is_empty() => Reason::ToolCalls,
            FinishReason::Paused => Reason::Paused,
            FinishReason::Stop | FinishReason::ToolCalls => return stop(Reason::Stop),
            FinishReason::Length => return stop(Reason::Length),
            FinishReason::Other(why) => {
                return stop(Reason::Other(words(&why, limits::AGENT_WORDS_BYTES_MAX)));
            }
        };
        let mut usage = self.state().usage;
        usage += step.assembly.usage.unwrap_or_default();
        let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
        if self.out.step_number >= self.config.steps_max {
            return stop(Reason::StepsMax);
        }
        if self.config.tokens_max.is_some_and(|tokens_max| tokens >= tokens_max) {
            return stop(Reason::TokensMax);
        }
        if self.conversation_bytes > self.config.conversation_bytes_max {
            return stop(Reason::ConversationMax);
        }
        (Decision::Continue, reason)
    }

    /// Appends the model's message and the results of its calls to the conversation.
    fn take_over_messages(&mut self) {
        let step = self.step.as_mut().expect("it is being completed");
        let mut message = std::mem::take(&mut step.assembly.message);
        let mut results = Vec::new();
        for (made, call) in message.calls.iter_mut().zip(&mut step.calls) {
            (made.id, made.name) = (call.id.to_string(), call.name.to_string());
            let CallState::Over { result, .. } = &mut call.state else {
                unreachable!("all calls are over");
            };
            results.extend(result.take().map(Message::Tool));
        }
        let is_silent =
            message.text.is_empty() && message.calls.is_empty() && message.reasoning.is_empty();
        if is_silent {
            return; // No wire accepts an empty message.
        }
        for message in std::iter::once(Message::Assistant(message)).chain(results) {
            self.conversation_bytes += message_bytes(&message);
            self.messages.push(message);
        }
    }

    /// Ends the step: asks the hook, pushes the last part of the step, and returns the outcome.
    fn end_step(&mut self, mut outcome: Continuation) -> Continuation {
        let step = self.step.take().expect("it is being ended");
        assert!(step.exchange.is_none());
        let text = self.out.fold.open_text();
        let shown = front(text, self.out.part_bytes_max());
        let calls = step.calls.iter().map(|call| {
            let CallState::Over { outcome, .. } = &call.state else {
                unreachable!("all calls are over");
            };
            StepCall { id: call.id.to_string(), name: call.name.to_string(), outcome: *outcome }
        });
        let last = StepSummary {
            number: self.out.step_number,
            text_truncated: shown.len() < text.len(),
            text: shown.to_owned(),
            tool_calls: calls.collect(),
            tool_calls_truncated: false,
            finish_reason: step.assembly.finish.map(finish_shown),
            duration_us: micros(self.now.since(step.begun)),
        };
        let usage = step.assembly.usage;
        let mut state = self.out.fold.close_step(&last, &outcome, usage);
        match self.out.hooks.after_step(self.out.fold.state(), &state) {
            StepChoice::Go => {}
            StepChoice::ReplaceMessages(messages) => self.replace_messages(messages),
            StepChoice::Stop(why) if outcome.decision == Decision::Continue => {
                outcome = Continuation { decision: Decision::Stop, reason: hook(&why) };
                state.outcome = outcome.clone();
            }
            StepChoice::Stop(_) => {} // The run stops for its own reason.
        }
        let completed = Final::StepCompleted { step: last, outcome: outcome.clone(), usage };
        self.out.push_step(completed, state);
        outcome
    }

    /// Stops the run immediately.
    pub(super) fn stop(&mut self, how: Ended, reason: Reason) {
        if self.started.is_none() {
            self.start();
        }
        if let Some(step) = &mut self.step {
            step.turn.cancel();
            self.hang_up(None);
            self.give_up_calls(&why_stopped(&how, &reason));
            if self.step.as_ref().is_some_and(OpenStep::is_turn_over) {
                self.take_over_messages();
            }
            self.end_step(Continuation { decision: Decision::Stop, reason: reason.clone() });
        }
        self.end(how, reason);
    }

    /// Ends the run and pushes its last part.
    pub(super) fn end(&mut self, how: Ended, reason: Reason) {
        assert!(self.step.is_none());
        let state = self.out.fold.state();
        let shown = front(state.text(), self.out.part_bytes_max());
        let started = self.started.expect("a run ends only after its start");
        let final_state = FinalState {
            step_count: self.out.step_number,
            text_truncated: shown.len() < state.text().len(),
            text: shown.to_owned(),
            usage: state.usage,
            reason,
            tool_call_count: self.call_ids.count(),
            duration_us: micros(self.now.since(started)),
        };
        self.out.push(Body::Final(match how {
            Ended::Completed => Final::ExecutionCompleted { final_state },
            Ended::Failed(error) => Final::ExecutionFailed { error, final_state },
            Ended::Cancelled(reason) => Final::ExecutionCancelled { reason, final_state },
        }));
    }
}

fn hook(why: &str) -> Reason {
    Reason::Hook(words(why, limits::AGENT_WORDS_BYTES_MAX))
}

/// Shortens a provider's own reason, which may have any length.
fn finish_shown(reason: FinishReason) -> FinishReason {
    match reason {
        FinishReason::Other(why) => FinishReason::Other(words(&why, limits::AGENT_WORDS_BYTES_MAX)),
        known => known,
    }
}

/// Returns the error for calls that are given up.
fn why_stopped(how: &Ended, reason: &Reason) -> String {
    match how {
        Ended::Completed => format!("the run reached its limit {}", reason.name()),
        Ended::Failed(failure) => format!("the model's turn failed: {failure}"),
        Ended::Cancelled(_) => format!("the run was stopped: {}", reason.name()),
    }
}

/// Approximate size of messages in bytes: the length of their texts.
pub(super) fn messages_bytes(messages: &[Message]) -> usize {
    messages.iter().map(message_bytes).sum()
}

fn message_bytes(message: &Message) -> usize {
    match message {
        Message::System(text) | Message::User(text) => text.len(),
        Message::Tool(result) => result.call_id.len() + result.output.len(),
        Message::Assistant(said) => {
            let calls = said.calls.iter();
            let calls: usize =
                calls.map(|call| call.id.len() + call.name.len() + call.arguments.len()).sum();
            let reasoning = said.reasoning.iter();
            let reasoning: usize = reasoning.map(|block| value_bytes(&block.value)).sum();
            said.text.len() + calls + reasoning
        }
    }
}

fn value_bytes(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(values) => values.iter().map(value_bytes).sum(),
        serde_json::Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() + value_bytes(value)).sum()
        }
        _ => 1,
    }
}
