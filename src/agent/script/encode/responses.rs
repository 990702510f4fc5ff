//! OpenAI's Responses: named and numbered frames, in which items and their parts are added, grow
//! and are done. The last frame repeats everything.

use serde_json::{Value, json};

use super::{Answer, OutputItem, TokenKind, frame};
use crate::agent::script::{Finish, ScriptedUsage};

/// The frames of one answer of Responses.
#[derive(Debug, Default)]
pub(super) struct ResponsesFrames {
    /// The number of the next frame.
    sequence_number: u64,
}

impl ResponsesFrames {
    pub fn begin(&mut self, answer: &Answer, out: &mut Vec<u8>) {
        for name in ["response.created", "response.in_progress"] {
            let response = whole(answer, None, None);
            self.named(name, json!({"response": response}), out);
        }
    }

    pub fn open(&mut self, answer: &Answer, out: &mut Vec<u8>) {
        let index = answer.item_index();
        let item = output_item(answer, index, answer.item(), false);
        self.named("response.output_item.added", json!({"output_index": index, "item": item}), out);
        self.part(answer, "added", out);
    }

    pub fn add(&mut self, answer: &Answer, piece: &str, out: &mut Vec<u8>) {
        let name = match answer.item().kind {
            TokenKind::Text => "response.output_text.delta",
            TokenKind::Refusal => "response.refusal.delta",
            TokenKind::Reasoning => "response.reasoning_summary_text.delta",
            TokenKind::Call => "response.function_call_arguments.delta",
        };
        let mut data = of_item(answer);
        data["delta"] = json!(piece);
        self.named(name, data, out);
    }

    pub fn close(&mut self, answer: &Answer, out: &mut Vec<u8>) {
        let (name, field) = match answer.item().kind {
            TokenKind::Text => ("response.output_text.done", "text"),
            TokenKind::Refusal => ("response.refusal.done", "refusal"),
            TokenKind::Reasoning => ("response.reasoning_summary_text.done", "text"),
            TokenKind::Call => ("response.function_call_arguments.done", "arguments"),
        };
        let mut data = of_item(answer);
        data[field] = json!(answer.item().text);
        if answer.item().kind == TokenKind::Call {
            data["name"] = json!(answer.item().name);
        }
        self.named(name, data, out);
        self.part(answer, "done", out);
        let index = answer.item_index();
        let item = output_item(answer, index, answer.item(), true);
        self.named("response.output_item.done", json!({"output_index": index, "item": item}), out);
    }

    pub fn finish(
        &mut self,
        answer: &Answer,
        finish: Finish,
        usage: ScriptedUsage,
        out: &mut Vec<u8>,
    ) {
        let name = match incomplete_reason(finish) {
            Some(_) => "response.incomplete",
            None => "response.completed",
        };
        let response = whole(answer, Some(finish), Some(usage));
        self.named(name, json!({"response": response}), out);
    }

    pub fn error(&mut self, kind: &str, message: &str, out: &mut Vec<u8>) {
        self.named("error", json!({"code": kind, "message": message, "param": null}), out);
    }

    /// Writes a frame about the one part of the open item; a call has none.
    fn part(&mut self, answer: &Answer, what: &str, out: &mut Vec<u8>) {
        let item = answer.item();
        let family = match item.kind {
            TokenKind::Text | TokenKind::Refusal => "content_part",
            TokenKind::Reasoning => "reasoning_summary_part",
            TokenKind::Call => return,
        };
        let mut data = of_item(answer);
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

/// Returns the answer so far; it is complete if `finish` is set.
pub(super) fn whole(
    answer: &Answer,
    finish: Option<Finish>,
    usage: Option<ScriptedUsage>,
) -> Value {
    let incomplete = finish.and_then(incomplete_reason);
    let status = match (finish, incomplete) {
        (None, _) => "in_progress",
        (Some(_), None) => "completed",
        (Some(_), Some(_)) => "incomplete",
    };
    let items = answer.items.iter().enumerate();
    let output: Vec<Value> =
        items.map(|(index, item)| output_item(answer, index, item, true)).collect();
    json!({
        "id": format!("resp_{}", answer.number),
        "object": "response",
        "created_at": answer.created_s,
        "status": status,
        "error": null,
        "incomplete_details": incomplete.map(|reason| json!({"reason": reason})),
        "instructions": null,
        "metadata": {},
        "model": answer.model,
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

fn output_item(answer: &Answer, index: usize, item: &OutputItem, is_done: bool) -> Value {
    let id = item_id(answer, index, item.kind);
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

fn item_id(answer: &Answer, index: usize, kind: TokenKind) -> String {
    let prefix = match kind {
        TokenKind::Text | TokenKind::Refusal => "msg",
        TokenKind::Reasoning => "rs",
        TokenKind::Call => "fc",
    };
    format!("{prefix}_{}_{index}", answer.number)
}

/// Returns the fields of every frame about the open item.
fn of_item(answer: &Answer) -> Value {
    let index = answer.item_index();
    let kind = answer.item().kind;
    let mut data = json!({"item_id": item_id(answer, index, kind), "output_index": index});
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
