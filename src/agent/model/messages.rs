//! Answers of Anthropic's Messages: content blocks, each of which begins, grows and ends by name.
//!
//! Thoughts are signed and go back unchanged, as do the vendor's own tool calls and their results.
//! Unknown blocks and events are ignored, as the vendor requires.
//!
//! A call with empty arguments needs none, unless the model ran out of tokens. It is therefore
//! complete only when the next block or the end comes.

use serde_json::{Map, Value, json};

use crate::agent::message::Usage;
use crate::agent::model::answer_builder::{AnswerBuilder, CallNumber, NoArguments};
use crate::agent::model::value::{each, number, place, text};
use crate::agent::model::{FinishReason, ModelFault};
use crate::limits;

#[derive(Debug, Default)]
pub(super) struct Messages {
    /// The blocks that have begun and not ended.
    blocks: Vec<(Option<u64>, Block)>,
    /// A call without arguments that has ended. The reason for which it has none is not known yet.
    empty_call: Option<CallNumber>,
    counts: Counts,
    finish: Option<FinishReason>,
}

/// The newest value of each count.
#[derive(Debug, Default)]
struct Counts {
    input: Option<u64>,
    cache_created: Option<u64>,
    cache_read: Option<u64>,
    output: Option<u64>,
    reasoning: Option<u64>,
}

#[derive(Debug)]
enum Block {
    Text,
    /// A call, and the input that its block began with.
    Call(CallNumber, Value),
    /// A block that goes back unchanged, with the fields that grow.
    Kept {
        block: Map<String, Value>,
        input: String,
    },
    /// A block of an unknown kind.
    Unknown,
}

impl Messages {
    pub fn frame(
        &mut self,
        name: &str,
        frame: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        let kind = match text(&frame["type"]) {
            "" => name,
            kind => kind,
        };
        let index = place(&frame["index"], "blocks", limits::MODEL_ITEMS_MAX)?;
        match kind {
            "message_start" => self.count(&frame["message"]["usage"], builder),
            "content_block_start" => return self.begin(index, &frame["content_block"], builder),
            "content_block_delta" => return self.go_on(index, &frame["delta"], builder),
            "content_block_stop" => return self.end(index, builder),
            "message_delta" => {
                self.count(&frame["usage"], builder);
                self.stop(text(&frame["delta"]["stop_reason"]));
            }
            "message_stop" => return self.finish(builder),
            _ => {} // `ping`, and events of later versions.
        }
        Ok(())
    }

    /// Reads a whole message.
    pub fn document(
        &mut self,
        message: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        for block in each(&message["content"]) {
            self.begin(None, block, builder)?;
            self.end(None, builder)?;
        }
        self.count(&message["usage"], builder);
        self.stop(text(&message["stop_reason"]));
        self.finish(builder)
    }

    fn begin(
        &mut self,
        index: Option<u64>,
        block: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        // End the blocks whose ends got lost. Open calls can go on: some servers make several at
        // once.
        let is_over = |(known, block): &(Option<u64>, Block)| {
            *known == index || matches!(block, Block::Kept { .. })
        };
        while let Some(at) = self.blocks.iter().position(is_over) {
            self.end_at(at, builder)?;
        }
        self.settle_empty(NoArguments::IsObject, builder)?;
        let limit = limits::MODEL_CALLS_MAX;
        if self.blocks.len() == limit {
            return Err(ModelFault::TooLong { what: "blocks", limit });
        }
        let begun = match text(&block["type"]) {
            "text" => {
                builder.text(text(&block["text"]))?;
                Block::Text
            }
            "tool_use" => {
                let call = builder.open_call()?;
                builder.identify(call, text(&block["id"]))?;
                builder.name(call, text(&block["name"]))?;
                let input = &block["input"];
                builder.count(if input.is_null() { 0 } else { input.to_string().len() })?;
                Block::Call(call, input.clone())
            }
            "thinking" => {
                builder.reasoning(text(&block["thinking"]))?;
                Block::kept(block)
            }
            // Tools on the vendor's side: their calls and their results.
            kind if kind == "redacted_thinking"
                || kind == "server_tool_use"
                || kind.ends_with("_tool_result") =>
            {
                Block::kept(block)
            }
            _ => Block::Unknown,
        };
        self.blocks.push((index, begun));
        Ok(())
    }

    fn go_on(
        &mut self,
        index: Option<u64>,
        delta: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        let at = match index {
            Some(_) => self.blocks.iter().position(|(known, _)| *known == index),
            None => self.blocks.len().checked_sub(1),
        };
        let mut unknown = Block::Text; // A block whose beginning got lost can still be text.
        let block = match at {
            Some(at) => &mut self.blocks[at].1,
            None => &mut unknown,
        };
        match (text(&delta["type"]), block) {
            (_, Block::Unknown) => Ok(()),
            ("text_delta", _) => builder.text(text(&delta["text"])),
            ("input_json_delta", Block::Call(call, _)) => {
                builder.arguments(*call, text(&delta["partial_json"]))
            }
            ("input_json_delta", Block::Kept { input, .. }) => {
                let piece = text(&delta["partial_json"]);
                let limit = limits::MODEL_ARGUMENTS_BYTES_MAX;
                if piece.len() > limit - input.len() {
                    return Err(ModelFault::TooLong { what: "arguments", limit });
                }
                input.push_str(piece);
                builder.count(piece.len())
            }
            ("thinking_delta", block) => {
                let piece = text(&delta["thinking"]);
                builder.reasoning(piece)?; // The bytes are counted there.
                block.grow("thinking", piece);
                Ok(())
            }
            ("signature_delta", block) => {
                let piece = text(&delta["signature"]);
                builder.count(piece.len())?;
                block.grow("signature", piece);
                Ok(())
            }
            _ => Ok(()), // Citations, and deltas of later versions.
        }
    }

    /// Ends a block. A block that has ended already, or never began, is ignored.
    fn end(&mut self, index: Option<u64>, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        let at = match index {
            Some(_) => self.blocks.iter().position(|(known, _)| *known == index),
            None => self.blocks.len().checked_sub(1),
        };
        at.map_or(Ok(()), |at| self.end_at(at, builder))
    }

    fn end_at(&mut self, at: usize, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        match self.blocks.remove(at).1 {
            Block::Text | Block::Unknown => Ok(()),
            Block::Call(call, input) => {
                let has_input = input.as_object().is_some_and(|input| !input.is_empty());
                if !builder.has_arguments(call) && has_input {
                    builder.arguments(call, &input.to_string())?;
                }
                if builder.has_arguments(call) {
                    return builder.complete(call, NoArguments::IsCut);
                }
                self.settle_empty(NoArguments::IsObject, builder)?;
                self.empty_call = Some(call);
                Ok(())
            }
            Block::Kept { mut block, input } => {
                if let Ok(input @ Value::Object(_)) = serde_json::from_str(&input) {
                    block.insert("input".to_owned(), input);
                }
                builder.block(Value::Object(block))
            }
        }
    }

    fn settle_empty(
        &mut self,
        empty: NoArguments,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        match self.empty_call.take() {
            Some(call) => builder.complete(call, empty),
            None => Ok(()),
        }
    }

    fn stop(&mut self, reason: &str) {
        let reason = match reason {
            "" => return,
            "end_turn" | "stop_sequence" => FinishReason::Stop,
            "tool_use" => FinishReason::ToolCalls,
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "pause_turn" => FinishReason::Paused,
            "refusal" => FinishReason::Refusal,
            other => FinishReason::Other(other.chars().take(64).collect()),
        };
        self.finish = Some(reason);
    }

    /// Ends the message. An end without a reason is a truncation.
    fn finish(&mut self, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        let reason = self.finish.take().ok_or(ModelFault::Truncated)?;
        while !self.blocks.is_empty() {
            self.end(None, builder)?;
        }
        let is_cut = matches!(reason, FinishReason::Length | FinishReason::Refusal);
        self.settle_empty(
            if is_cut { NoArguments::IsCut } else { NoArguments::IsObject },
            builder,
        )?;
        builder.finish(reason)
    }

    /// Updates the counts, each of which is a total: a newer one replaces the one before.
    fn count(&mut self, usage: &Value, builder: &mut AnswerBuilder) {
        if !usage.is_object() {
            return;
        }
        let Counts { input, cache_created, cache_read, output, reasoning } = &mut self.counts;
        let details = &usage["output_tokens_details"];
        let newest = [
            (input, &usage["input_tokens"]),
            (cache_created, &usage["cache_creation_input_tokens"]),
            (cache_read, &usage["cache_read_input_tokens"]),
            (output, &usage["output_tokens"]),
            (
                reasoning,
                if details["thinking_tokens"].is_null() {
                    &details["reasoning_tokens"]
                } else {
                    &details["thinking_tokens"]
                },
            ),
        ];
        for (count, value) in newest {
            *count = number(value).or(*count);
        }
        let Counts { input, cache_created, cache_read, output, reasoning } = self.counts;
        let all_input = [input, cache_created, cache_read].into_iter().flatten();
        builder.usage(Usage {
            input_tokens: all_input.fold(0, u64::saturating_add),
            output_tokens: output.unwrap_or(0),
            reasoning_tokens: reasoning,
            cached_input_tokens: cache_read,
        });
    }
}

impl Block {
    fn kept(block: &Value) -> Block {
        let block = block.as_object().cloned().unwrap_or_default();
        Block::Kept { block, input: String::new() }
    }

    fn grow(&mut self, field: &str, piece: &str) {
        let Block::Kept { block, .. } = self else { return };
        match block.get_mut(field) {
            Some(Value::String(text)) => text.push_str(piece),
            _ => {
                block.insert(field.to_owned(), json!(piece));
            }
        }
    }
}
