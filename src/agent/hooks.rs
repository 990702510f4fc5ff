//! Hooks: an embedder's code that observes and steers a run.
//!
//! The run calls its hooks itself, on its own thread, so a hook should return within microseconds.
//! A panic in a hook unwinds through [`crate::agent::RunMachine::handle`]. The driver catches it
//! and fails this run alone; the run must not be used again.

use crate::agent::message::Message;
use crate::agent::part::RunPart;
use crate::agent::state::{RunState, StepState};

/// The decision of a hook.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum StepChoice {
    /// The run continues normally.
    #[default]
    Go,
    /// The run ends here as completed, with this reason.
    Stop(String),
    /// The run continues, and these messages replace the conversation from now on. After the last
    /// step they are not sent to the model.
    ReplaceMessages(Vec<Message>),
}

/// Callbacks of an embedder in a run.
pub trait Hooks {
    /// Called before the model is asked for a step, with the current state and the messages to be
    /// sent.
    fn before_step(&mut self, state: &RunState, messages: &[Message]) -> StepChoice {
        let _ = (state, messages);
        StepChoice::Go
    }

    /// Called after each part, in order, when the run has made it. Readers may not have received it
    /// yet.
    fn after_part(&mut self, part: &RunPart) {
        let _ = part;
    }

    /// Called after a step, before the step is added to `state`. If the run stops anyway, a
    /// [`StepChoice::Stop`] does not replace its reason.
    fn after_step(&mut self, state: &RunState, step: &StepState) -> StepChoice {
        let _ = (state, step);
        StepChoice::Go
    }
}

/// Hooks that do nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}
