//! A model's turn: its events become parts and calls.

use std::sync::Arc;

use super::RunMachine;
use super::calls::{CallState, RunCall};
use super::step::OpenExchange;
use crate::agent::event::RunAction;
use crate::agent::fit::words;
use crate::agent::model::{FinishReason, ModelEvent, TurnAction, TurnInput};
use crate::agent::part::Partial;
use crate::agent::state::{Ended, Failure, Reason};
use crate::limits;

impl RunMachine {
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
        self.call_count += 1;
        let number = self.call_count;
        let id = self.id_for_call(id, number);
        self.call_ids.insert(Arc::clone(&id));
        let call = RunCall::new(number, id, name, self.now, self.out.wall_us);
        self.out.push_partial(Partial::ToolCallStarted {
            tool_call_id: Arc::clone(&call.id),
            tool_name: Arc::clone(&call.name),
        });
        self.step.as_mut().expect("a turn is part of a step").calls.push(call);
    }

    /// Returns the model's own id if it is usable, otherwise a generated one.
    fn id_for_call(&self, id: Option<String>, number: u32) -> Arc<str> {
        let is_good = |id: &String| {
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
            (1..=limits::AGENT_CALL_ID_BYTES_MAX).contains(&id.len())
                && id.bytes().all(is_plain)
                && !self.call_ids.contains(id.as_str())
        };
        if let Some(id) = id.filter(is_good) {
            return id.into();
        }
        let made_up = std::iter::once(format!("call_{number}"))
            .chain((2..).map(|version| format!("call_{number}_{version}")));
        let mut free = made_up.filter(|id| !self.call_ids.contains(id.as_str()));
        free.next().expect("there are more numbers than calls").into()
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
}
