//! Assembles an answer from its events.

use crate::agent::message::{AssistantMessage, CallMade, Usage};
use crate::agent::model::{FinishReason, ModelEvent};

/// The answer of a model in one turn, so far.
///
/// ```
/// use streamdoor::agent::model::{Assembly, FinishReason, ModelEvent};
///
/// let mut assembly = Assembly::default();
/// assembly.take(&ModelEvent::Text("Hello, ".into()));
/// assembly.take(&ModelEvent::Text("world".into()));
/// assert!(assembly.finish.is_none());
/// assembly.take(&ModelEvent::Finished(FinishReason::Stop));
/// assert_eq!(assembly.message.text, "Hello, world");
/// assert_eq!(assembly.finish, Some(FinishReason::Stop));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assembly {
    /// The message that goes back to the model with the next turn. The id of a call is empty if the
    /// model gave none; the caller has to generate one.
    pub message: AssistantMessage,
    /// The reasoning as text, which does not go back.
    pub reasoning_text: String,
    /// The newest token counts.
    pub usage: Option<Usage>,
    /// The reason for which the model stopped; `None` if the answer is not complete.
    pub finish: Option<FinishReason>,
}

impl Assembly {
    /// Adds the next event.
    pub fn take(&mut self, event: &ModelEvent) {
        match event {
            ModelEvent::Text(text) => self.message.text.push_str(text),
            ModelEvent::Reasoning(text) => self.reasoning_text.push_str(text),
            ModelEvent::CallStarted { index, id, name } => {
                assert!(*index as usize == self.message.calls.len());
                let (id, name) = (id.clone().unwrap_or_default(), name.clone());
                let (arguments, extra) = (String::new(), None);
                self.message.calls.push(CallMade { id, name, arguments, extra });
            }
            ModelEvent::CallArguments { index, piece } => {
                self.message.calls[*index as usize].arguments.push_str(piece);
            }
            ModelEvent::CallCompleted { index, extra } => {
                self.message.calls[*index as usize].extra.clone_from(extra);
            }
            ModelEvent::Block(block) => self.message.reasoning.push(block.clone()),
            ModelEvent::Usage(usage) => self.usage = Some(*usage),
            ModelEvent::Finished(reason) => self.finish = Some(reason.clone()),
        }
    }
}
