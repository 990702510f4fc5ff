//! Where an embedder looks into a run, and steers it.
//!
//! Hooks are called by the run itself, on its thread: they should take microseconds. One that
//! panics unwinds through [`crate::agent::Run::handle`]: whoever drives the run catches that, and
//! this run alone has failed; it is not asked anything any more.

use crate::agent::message::Message;
use crate::agent::part::Part;
use crate::agent::state::{State, StepState};

/// What a hook wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum StepChoice {
    /// The run goes on as it would.
    #[default]
    Go,
    /// The run ends here, completed, for this reason.
    Stop(String),
    /// The run goes on, and the model is told these messages from now on. After a step that ends
    /// the run they are not told anybody.
    ReplaceMessages(Vec<Message>),
}

/// An embedder's own code in a run.
pub trait Hooks {
    /// Before the model is asked for a step: what is known, and what the model will be told.
    fn before_step(&mut self, state: &State, messages: &[Message]) -> StepChoice {
        let _ = (state, messages);
        StepChoice::Go
    }

    /// After each part, in order, when the run has made it: perhaps before its readers are told.
    fn after_part(&mut self, part: &Part) {
        let _ = part;
    }

    /// After a step; `state` has it already. A run that stops anyway stops for its own reason.
    fn after_step(&mut self, state: &State, step: &StepState) -> StepChoice {
        let _ = (state, step);
        StepChoice::Go
    }
}

/// Nothing to look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}
