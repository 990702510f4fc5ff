//! OpenAI's Responses: named and numbered frames, in which items and their parts are added, grow
//! and are done. The last frame repeats everything.

use serde_json::{Value, json};

use super::{AnswerEncoder, OutputItem, TokenKind, frame};
use crate::agent::script::{Finish, ScriptedUsage};

impl AnswerEncoder {
    pub(super) fn responses_begin(&mut self, out: &mut Vec<u8>) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.responses_whole(None, None);
            self.named(name, json!({"response": response}), out);
        }
    }

    pub(super) fn responses_open(&mut self, out: &mut Vec<u8>) {
        let index = self.item_index();
        let item = self.output_item(index, self.item(), false);
        self.named("response.output_item.added", json!({"output_index": index, "item": item}), out);
        self.part("added", out);
    }

    pub(super) fn responses_add(&mut self, piece: &str, out: &mut Vec<u8>) {
        let name = match self.item().kind {
            TokenKind::Text => "response.output_text.delta",
            TokenKind::Refusal => "response.refusal.delta",
            TokenKind::Reasoning => "response.reasoning_summary_text.delta",
            TokenKind::Call => "response.function_call_arguments.delta",
        };
        let mut data = self.of_item();
        data["delta"] = json!(piece);
        self.named(name, data, out);
    }

    pub(super) fn responses_close(&mut self, out: &mut Vec<u8>) {
        let (name, field) = match self.item().kind {
            TokenKind::Text => ("response.output_text.done", "text"),
            TokenKind::Refusal => ("response.refusal.done", "refusal"),
            TokenKind::Reasoning => ("response.reasoning_summary_text.done", "text"),
            TokenKind::Call => ("response.function_call_arguments.done", "arguments"),
        };
        let mut data = self.of_item();
        data[field] = json!(self.item().text);
        if self.item().kind == TokenKind::Call {
            data["name"] = json!(self.item().name);
        }
        self.named(name, data, out);
        self.part("done", out);
        let index = self.item_index();
        let item = self.output_item(index, self.item(), true);
        self.named("response.output_item.done", json!({"output_index": index, "item": item}), out);
    }

    pub(super) fn responses_finish(
        &mut self,
        finish: Finish,
        usage: ScriptedUsage,
        out: &mut Vec<u8>,
    ) {
        let name = match incomplete_reason(finish) {
            Some(_) => "response.incomplete",
            None => "response.completed",
        };
        let response = self.responses_whole(Some(finish), Some(usage));
        self.named(name, json!({"response": response}), out);
    }

    pub(super) fn responses_error(&mut self, kind: &str, message: &str, out: &mut Vec<u8>) {
        self.named("error", json!({"code": kind, "message": message, "param": null}), out);
    }

    /// Returns the answer so far; it is complete if `finish` is set.
    pub(super) fn responses_whole(
        &self,
        finish: Option<Finish>,
        usage: Option<ScriptedUsage>,
    ) -> Value {
        let incomplete = finish.and_then(incomplete_reason);
        let status = match (finish, incomplete) {
            (None, _) => "in_progress",
            (Some(_), None) => "completed",
            (Some(_), Some(_)) => "incomplete",
        };
        let items = self.items.iter().enumerate();
        let output: Vec<Value> =
            items.map(|(index, item)| self.output_item(index, item, true)).collect();
        json!({
            "id": format!("resp_{}", self.number),
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "error": null,
            "incomplete_details": incomplete.map(|reason| json!({"reason": reason})),
            "instructions": null,
            "metadata": {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": usage.map(usage_of),
        })
    }

    fn output_item(&self, index: usize, item: &OutputItem, is_done: bool) -> Value {
        let id = self.item_id(index, item.kind);
        let status = if is_done { "completed" } else { "in_progress" };
        let content = if is_done { json!([part_of(item.kind, &item.text)]) } else { json!([]) };
        match item.kind {
            TokenKind::Text | TokenKind::Refusal => json!({
                "id": id, "type": "message", "status": status, "role": "assistant",
                "content": content,
            }),
            TokenKind::Reasoning => json!({"id": id, "type": "reasoning", "summary": content}),
            TokenKind::Call => json!({
                "id": id, "type": "function_call", "status": status, "call_id": item.id,
                "name": item.name, "arguments": if is_done { item.text.as_str() } else { "" },
            }),
        }
    }

    fn item_id(&self, index: usize, kind: TokenKind) -> String {
        let prefix = match kind {
            TokenKind::Text | TokenKind::Refusal => "msg",
            TokenKind::Reasoning => "rs",
            TokenKind::Call => "fc",
        };
        format!("{prefix}_{}_{index}", self.number)
    }

    /// Returns the fields of every frame about the open item.
    fn of_item(&self) -> Value {
        let index = self.item_index();
        let kind = self.item().kind;
        let mut data = json!({"item_id": self.item_id(index, kind), "output_index": index});
        match kind {
            TokenKind::Text => {
                data["content_index"] = json!(0);
                data["logprobs"] = json!([]);
            }
            TokenKind::Refusal => data["content_index"] = json!(0),
            TokenKind::Reasoning => data["summary_index"] = json!(0),
            TokenKind::Call => {}
        }
        data
    }

    /// Writes a frame about the one part of the open item; a call has none.
    fn part(&mut self, what: &str, out: &mut Vec<u8>) {
        let item = self.item();
        let family = match item.kind {
            TokenKind::Text | TokenKind::Refusal => "content_part",
            TokenKind::Reasoning => "reasoning_summary_part",
            TokenKind::Call => return,
        };
        let mut data = self.of_item();
        data.as_object_mut().expect("it is one").remove("logprobs");
        data["part"] = match what {
            "added" => part_of(item.kind, ""),
            _ => part_of(item.kind, &item.text),
        };
        self.named(&format!("response.{family}.{what}"), data, out);
    }

    /// Writes a frame with its type, its number and `fields`.
    fn named(&mut self, name: &str, fields: Value, out: &mut Vec<u8>) {
        let mut data = json!({"type": name, "sequence_number": self.sequence_number});
        self.sequence_number += 1;
        let Value::Object(fields) = fields else { unreachable!("they are fields") };
        data.as_object_mut().expect("it is one").extend(fields);
        frame(out, Some(name), &data);
    }
}

fn part_of(kind: TokenKind, text: &str) -> Value {
    match kind {
        TokenKind::Text => {
            json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
        }
        TokenKind::Refusal => json!({"type": "refusal", "refusal": text}),
        TokenKind::Reasoning | TokenKind::Call => json!({"type": "summary_text", "text": text}),
    }
}

fn incomplete_reason(finish: Finish) -> Option<&'static str> {
    match finish {
        Finish::Stop | Finish::ToolCalls | Finish::Pause => None,
        Finish::Length => Some("max_output_tokens"),
        Finish::ContentFilter | Finish::Refusal => Some("content_filter"),
    }
}

fn usage_of(usage: ScriptedUsage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens.unwrap_or(0), "cache_write_tokens": 0,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens.unwrap_or(0)},
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
    })
}
