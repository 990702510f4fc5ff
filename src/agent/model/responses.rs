//! Answers of OpenAI's Responses: output items, and deltas that belong to them.
//!
//! The deltas of an item are passed on when they come. Content that a server did not stream is
//! taken from the completed item, or from the completed response. A call is complete with its item.

use serde_json::Value;

use crate::agent::message::Usage;
use crate::agent::model::answer_builder::{AnswerBuilder, CallNumber, NoArguments};
use crate::agent::model::reported_error::ReportedError;
use crate::agent::model::value::{self, each, number, text, whole};
use crate::agent::model::{FinishReason, ModelFault, Secret};
use crate::limits;

#[derive(Debug, Default)]
pub(super) struct Responses {
    items: Vec<OutputItem>,
    numbering: Numbering,
    has_refusal: bool,
}

#[derive(Debug, Default)]
struct OutputItem {
    /// Its index in the output.
    index: Option<u64>,
    /// Its id.
    id: String,
    call: Option<CallNumber>,
    /// True if some of it was streamed.
    is_streamed: bool,
    is_done: bool,
}

/// Whether the sequence numbers of frames are usable. Some servers have none, or use one for all.
#[derive(Debug, Default)]
enum Numbering {
    #[default]
    Unknown,
    First(u64),
    Rising(u64),
    Useless,
}

impl Numbering {
    /// True if the frame is a repetition. Sequence numbers count only if they have risen so far.
    fn is_repeated(&mut self, number: Option<u64>) -> bool {
        *self = match (&*self, number) {
            (Numbering::Useless, _) | (Numbering::Unknown, None) => Numbering::Useless,
            (Numbering::Unknown, Some(number)) => Numbering::First(number),
            (Numbering::First(first), Some(number)) if number > *first => Numbering::Rising(number),
            (Numbering::First(_), _) => Numbering::Useless,
            (Numbering::Rising(last), Some(number)) if number > *last => Numbering::Rising(number),
            (Numbering::Rising(_), Some(_)) => return true,
            (Numbering::Rising(last), None) => Numbering::Rising(*last),
        };
        false
    }
}

impl Responses {
    pub fn frame(
        &mut self,
        name: &str,
        frame: &Value,
        builder: &mut AnswerBuilder,
        key: Option<&Secret>,
    ) -> Result<(), ModelFault> {
        if self.numbering.is_repeated(number(&frame["sequence_number"])) {
            return Ok(());
        }
        let kind = match text(&frame["type"]) {
            "" => name,
            kind => kind,
        };
        match kind {
            "response.output_item.added" => {
                let at = self.place(frame, &frame["item"])?;
                self.begin(at, &frame["item"], builder)
            }
            "response.output_item.done" => {
                let at = self.place(frame, &frame["item"])?;
                self.end(at, &frame["item"], builder)
            }
            "response.output_text.delta" => {
                self.stream(frame)?;
                builder.text(text(&frame["delta"]))
            }
            "response.refusal.delta" => {
                self.stream(frame)?;
                self.has_refusal = true;
                builder.text(text(&frame["delta"]))
            }
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
                self.stream(frame)?;
                builder.reasoning(text(&frame["delta"]))
            }
            "response.function_call_arguments.delta" => {
                let at = self.stream(frame)?;
                self.arguments(at, text(&frame["delta"]), builder)
            }
            "response.function_call_arguments.done" => {
                let at = self.place(frame, &Value::Null)?;
                self.last_arguments(at, &frame["arguments"], builder)
            }
            "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled" => {
                let status = kind.trim_start_matches("response.");
                self.finish(status, &frame["response"], builder, key)
            }
            _ => Ok(()), // Other families, and events of later versions.
        }
    }

    /// Reads a whole response.
    pub fn document(
        &mut self,
        response: &Value,
        builder: &mut AnswerBuilder,
        key: Option<&Secret>,
    ) -> Result<(), ModelFault> {
        self.finish(text(&response["status"]), response, builder, key)
    }

    /// Returns the position of the item that a frame belongs to. An unknown item is added.
    fn place(&mut self, frame: &Value, item: &Value) -> Result<usize, ModelFault> {
        let index = value::place(&frame["output_index"], "items", limits::MODEL_ITEMS_MAX)?;
        let id = match text(&item["id"]) {
            "" => text(&frame["item_id"]),
            id => id,
        };
        self.find_or_add(index, id)
    }

    /// Finds or adds an item. Servers give its index, its id, or both; without either it is the
    /// last item.
    fn find_or_add(&mut self, index: Option<u64>, id: &str) -> Result<usize, ModelFault> {
        let is_it = |item: &OutputItem| match (index, item.index) {
            (Some(index), Some(known)) => index == known,
            _ => !id.is_empty() && item.id == id,
        };
        if let Some(at) = self.items.iter().rposition(is_it) {
            return Ok(at);
        }
        if let (None, "", Some(last)) = (index, id, self.items.len().checked_sub(1)) {
            return Ok(last);
        }
        let limit = limits::MODEL_ITEMS_MAX;
        if self.items.len() == limit {
            return Err(ModelFault::TooLong { what: "items", limit });
        }
        self.items.push(OutputItem {
            index,
            id: id.chars().take(limits::MODEL_NAME_BYTES_MAX).collect(),
            ..Default::default()
        });
        Ok(self.items.len() - 1)
    }

    fn stream(&mut self, frame: &Value) -> Result<usize, ModelFault> {
        let at = self.place(frame, &Value::Null)?;
        self.items[at].is_streamed = true;
        Ok(at)
    }

    fn begin(
        &mut self,
        at: usize,
        item: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        if text(&item["type"]) != "function_call" || self.items[at].is_done {
            return Ok(());
        }
        let call = match self.items[at].call {
            Some(call) => call,
            None => *self.items[at].call.insert(builder.open_call()?),
        };
        let id = if text(&item["call_id"]).is_empty() { &item["id"] } else { &item["call_id"] };
        builder.identify(call, text(id))?;
        builder.name(call, text(&item["name"]))
    }

    fn arguments(
        &mut self,
        at: usize,
        piece: &str,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        let item = &mut self.items[at];
        if item.is_done {
            return Ok(());
        }
        let call = match item.call {
            Some(call) => call,
            None => *item.call.insert(builder.open_call()?), // The item begins late.
        };
        builder.arguments(call, piece)
    }

    /// Takes the complete arguments and passes on those that were not streamed.
    fn last_arguments(
        &mut self,
        at: usize,
        arguments: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        let all = whole(arguments);
        let answer_bytes = self.items[at].call.map_or(0, |call| builder.arguments_bytes(call));
        self.arguments(at, all.get(answer_bytes..).unwrap_or(""), builder)
    }

    /// Ends an item; a repeated end is ignored.
    fn end(
        &mut self,
        at: usize,
        item: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        if self.items[at].is_done {
            return Ok(());
        }
        match text(&item["type"]) {
            "function_call" => {
                self.begin(at, item, builder)?;
                self.last_arguments(at, &item["arguments"], builder)?;
                let is_cut = item["status"] == "incomplete";
                let empty = if is_cut { NoArguments::IsCut } else { NoArguments::IsObject };
                self.items[at].call.map_or(Ok(()), |call| builder.complete(call, empty))?;
            }
            "reasoning" => {
                if !self.items[at].is_streamed {
                    let parts = each(&item["summary"]).iter().chain(each(&item["content"]));
                    parts
                        .into_iter()
                        .try_for_each(|part| builder.reasoning(text(&part["text"])))?;
                }
                builder.block(item.clone())?;
            }
            "message" => {
                for part in each(&item["content"]) {
                    self.has_refusal |= part["type"] == "refusal";
                    if !self.items[at].is_streamed {
                        builder.text(text(&part["text"]))?;
                        builder.text(text(&part["refusal"]))?;
                    }
                }
            }
            _ => {}
        }
        self.items[at].is_done = true;
        Ok(())
    }

    fn finish(
        &mut self,
        status: &str,
        response: &Value,
        builder: &mut AnswerBuilder,
        key: Option<&Secret>,
    ) -> Result<(), ModelFault> {
        let reason = match status {
            "completed" => FinishReason::Stop,
            "incomplete" => match text(&response["incomplete_details"]["reason"]) {
                "content_filter" => FinishReason::ContentFilter,
                "max_output_tokens" | "" => FinishReason::Length,
                other => FinishReason::Other(other.chars().take(64).collect()),
            },
            "failed" => return Err(ReportedError::of(response).into_fault(key)),
            "cancelled" => {
                let message = "the response was cancelled".to_owned();
                let code = "cancelled".to_owned();
                return Err(ModelFault::Said { code, message, is_retryable: false });
            }
            _ => return Err(ModelFault::Truncated), // The response is not finished.
        };
        for (index, item) in each(&response["output"]).iter().enumerate() {
            let at = self.find_or_add(Some(index as u64), text(&item["id"]))?;
            self.end(at, item, builder)?;
        }
        if let Some(usage) = usage_of(&response["usage"]) {
            builder.usage(usage);
        }
        let is_whole = status == "completed";
        builder.complete_all(if is_whole { NoArguments::IsObject } else { NoArguments::IsCut })?;
        let is_refusal = self.has_refusal && is_whole;
        builder.finish(if is_refusal { FinishReason::Refusal } else { reason })
    }
}

fn usage_of(usage: &Value) -> Option<Usage> {
    usage.is_object().then(|| Usage {
        input_tokens: number(&usage["input_tokens"]).unwrap_or(0),
        output_tokens: number(&usage["output_tokens"]).unwrap_or(0),
        reasoning_tokens: number(&usage["output_tokens_details"]["reasoning_tokens"]),
        cached_input_tokens: number(&usage["input_tokens_details"]["cached_tokens"]),
    })
}
