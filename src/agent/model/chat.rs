//! Answers of Chat Completions, as OpenAI and compatible servers send them.
//!
//! Each frame adds a delta. A fragment of a call belongs to the call with its index. If a server
//! gives no index, or the same to all calls, ids and names decide. A call is complete when a finish
//! reason comes, or when the next call begins and its arguments are a whole object.

use serde_json::{Map, Value};

use crate::agent::message::Usage;
use crate::agent::model::answer_builder::{AnswerBuilder, CallNumber, NoArguments};
use crate::agent::model::decode::malformed;
use crate::agent::model::value::{each, number, place, text, whole};
use crate::agent::model::{FinishReason, ModelFault};
use crate::limits;

#[derive(Debug, Default)]
pub(super) struct Chat {
    /// The calls with their indices. An index refers to the newest call that has it.
    calls: Vec<(Option<u64>, CallNumber)>,
    /// The call of the older form `function_call`, which allows only one.
    function_call: Option<CallNumber>,
    finish: Option<FinishReason>,
    has_refusal: bool,
    /// The field in which reasoning came, and all of its text. Some servers that reason between
    /// calls require it back.
    reasoning: Option<(&'static str, String)>,
    /// True if the answer is one document: each call is whole, whatever its id.
    is_document: bool,
    /// Data that belongs to the message and must go back with it.
    extra: Option<Value>,
}

/// The information in a fragment about its call.
struct CallFragment<'a> {
    index: Option<u64>,
    id: &'a str,
    name: &'a str,
    has_arguments: bool,
}

impl Chat {
    pub fn frame(&mut self, frame: &Value, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        for choice in each(&frame["choices"]) {
            if number(&choice["index"]).unwrap_or(0) == 0 {
                self.choice(choice, builder)?;
            }
        }
        let counted = [&frame["usage"], &frame["x_groq"]["usage"]];
        if let Some(usage) = counted.into_iter().find_map(usage_of) {
            builder.usage(usage);
        }
        Ok(())
    }

    /// Reads an answer in one piece, which has messages where frames have deltas.
    pub fn document(
        &mut self,
        value: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        self.is_document = true;
        self.frame(value, builder)?;
        self.done(builder)
    }

    /// Ends the answer. Without a finish reason it was cut off.
    pub fn done(&mut self, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        let finish = self.finish.take().ok_or(ModelFault::Truncated)?;
        let mut back = Map::new();
        if let (Some((field, reasoning)), true) = (self.reasoning.take(), builder.has_calls()) {
            back.insert(field.to_owned(), Value::String(reasoning));
        }
        if let Some(extra) = self.extra.take() {
            back.insert("extra_content".to_owned(), extra);
        }
        if !back.is_empty() {
            builder.block(Value::Object(back))?;
        }
        builder.finish(match finish {
            FinishReason::Stop if self.has_refusal => FinishReason::Refusal,
            finish => finish,
        })
    }

    fn choice(&mut self, choice: &Value, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        let delta = if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] };
        self.delta(delta, builder)?;
        let reason = text(&choice["finish_reason"]);
        if reason.is_empty() {
            return Ok(()); // `null` or an empty text, until the reason is known.
        }
        self.finish = Some(match reason {
            "stop" => FinishReason::Stop,
            "tool_calls" | "function_call" => FinishReason::ToolCalls,
            "length" => FinishReason::Length,
            "content_filter" => FinishReason::ContentFilter,
            other => FinishReason::Other(other.chars().take(64).collect()),
        });
        let is_cut = matches!(reason, "length" | "content_filter");
        builder.complete_all(if is_cut { NoArguments::IsCut } else { NoArguments::IsObject })
    }

    fn delta(&mut self, delta: &Value, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        // Servers that send both fields send the same text in both.
        let fields = ["reasoning_content", "reasoning"];
        if let Some(field) = fields.into_iter().find(|field| !text(&delta[*field]).is_empty()) {
            self.reason(field, text(&delta[field]), builder)?;
        }
        self.content(&delta["content"], builder)?;
        let refusal = text(&delta["refusal"]);
        self.has_refusal |= !refusal.is_empty();
        builder.text(refusal)?;
        for fragment in each(&delta["tool_calls"]) {
            self.fragment(fragment, builder)?;
        }
        if delta["function_call"].is_object() {
            self.old_fragment(&delta["function_call"], builder)?;
        }
        if delta["extra_content"].is_object() {
            self.extra = Some(delta["extra_content"].clone());
        }
        Ok(())
    }

    fn reason(
        &mut self,
        field: &'static str,
        piece: &str,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        builder.reasoning(piece)?;
        let (_, all) = self.reasoning.get_or_insert_with(|| (field, String::new()));
        all.push_str(piece);
        Ok(())
    }

    /// Reads content, which is a text or an array of parts.
    fn content(&mut self, content: &Value, builder: &mut AnswerBuilder) -> Result<(), ModelFault> {
        builder.text(text(content))?;
        for part in each(content) {
            match text(&part["type"]) {
                _ if part.is_string() => builder.text(text(part))?,
                "thinking" => {
                    builder.reasoning(text(&part["thinking"]))?;
                    each(&part["thinking"])
                        .iter()
                        .try_for_each(|inner| builder.reasoning(text(&inner["text"])))?;
                }
                "refusal" => {
                    self.has_refusal = true;
                    builder.text(text(&part["refusal"]))?;
                }
                _ => builder.text(text(&part["text"]))?,
            }
        }
        Ok(())
    }

    fn fragment(
        &mut self,
        fragment: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        let function = &fragment["function"];
        let (id, name) = (text(&fragment["id"]), text(&function["name"]));
        let arguments = whole(&function["arguments"]);
        let index = place(&fragment["index"], "calls", limits::MODEL_CALLS_MAX)?;
        let is_nameless = index.is_none() && id.is_empty() && name.is_empty();
        let part =
            CallFragment { index, id, name, has_arguments: !arguments.trim_ascii().is_empty() };
        let call = match self.find(&part, builder).filter(|_| !self.is_document) {
            Some(call) => call,
            None if is_nameless && arguments.is_empty() => return Ok(()),
            None if is_nameless => return Err(malformed("has arguments without a call")),
            None => self.open(index, builder)?,
        };
        if !id.is_empty() {
            builder.identify(call, id)?;
        }
        builder.name(call, name)?;
        let extra = &fragment["extra_content"];
        if extra.is_object() && !builder.is_complete(call) {
            builder.extra(call, extra.clone())?;
        }
        builder.arguments(call, &arguments)
    }

    /// Returns the call that a fragment belongs to; `None` for a new call.
    fn find(&self, part: &CallFragment<'_>, builder: &AnswerBuilder) -> Option<CallNumber> {
        let CallFragment { index, id, name, has_arguments } = *part;
        let has_id = |call: CallNumber| !id.is_empty() && builder.id_of(call) == Some(id);
        if index.is_some() {
            let is_it = |(known, call): &&(Option<u64>, CallNumber)| {
                *known == index || (known.is_none() && has_id(*call))
            };
            let (_, call) = *self.calls.iter().rev().find(is_it)?;
            // Several calls with the same index: a name with another id begins the next one.
            let known = builder.id_of(call);
            let is_other =
                !name.is_empty() && !id.is_empty() && known.is_some_and(|known| known != id);
            return (!is_other).then_some(call);
        }
        // A name with more arguments after a whole object begins another call, even with the same
        // id.
        let goes_on =
            |call: CallNumber| name.is_empty() || !has_arguments || !builder.has_whole_object(call);
        if let Some((_, call)) = self.calls.iter().rev().find(|(_, call)| has_id(*call)) {
            return goes_on(*call).then_some(*call);
        }
        let (_, last) = *self.calls.last()?;
        let belongs = match (id.is_empty(), name.is_empty()) {
            (true, true) => true,
            // A late name, or one that is repeated until the arguments are whole.
            (true, false) => {
                let known = builder.name_of(last);
                let is_repeated = known == name && builder.has_arguments(last);
                known.is_empty() || (is_repeated && goes_on(last) && !builder.is_complete(last))
            }
            (false, true) => builder.id_of(last).is_none(),
            (false, false) => false,
        };
        belongs.then_some(last)
    }

    fn open(
        &mut self,
        index: Option<u64>,
        builder: &mut AnswerBuilder,
    ) -> Result<CallNumber, ModelFault> {
        builder.complete_whole_ones()?;
        let call = builder.open_call()?;
        self.calls.push((index, call));
        self.finish = None; // More follows.
        Ok(call)
    }

    fn old_fragment(
        &mut self,
        function: &Value,
        builder: &mut AnswerBuilder,
    ) -> Result<(), ModelFault> {
        let call = match self.function_call {
            Some(call) => call,
            None => *self.function_call.insert(builder.open_call()?),
        };
        builder.name(call, text(&function["name"]))?;
        builder.arguments(call, &whole(&function["arguments"]))
    }
}

fn usage_of(usage: &Value) -> Option<Usage> {
    let cached = number(&usage["prompt_tokens_details"]["cached_tokens"]);
    let input_tokens = number(&usage["prompt_tokens"]).unwrap_or(0);
    let mut output_tokens = number(&usage["completion_tokens"]).unwrap_or(0);
    let reasoning_tokens = number(&usage["completion_tokens_details"]["reasoning_tokens"]);
    // Some providers count reasoning beside the completion. Their total shows it.
    let with_reasoning = output_tokens.saturating_add(reasoning_tokens.unwrap_or(0));
    if number(&usage["total_tokens"]) == input_tokens.checked_add(with_reasoning) {
        output_tokens = with_reasoning;
    }
    usage.is_object().then(|| Usage {
        input_tokens,
        output_tokens,
        reasoning_tokens,
        cached_input_tokens: cached.or_else(|| number(&usage["prompt_cache_hit_tokens"])),
    })
}
