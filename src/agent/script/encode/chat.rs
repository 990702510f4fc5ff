//! OpenAI's Chat Completions: unnamed frames, then `[DONE]`.

use serde_json::{Map, Value, json};

use super::{Answer, OutputItem, TokenKind, frame};
use crate::agent::script::{Finish, ScriptedUsage};

/// The frames of one answer of Chat Completions.
#[derive(Debug, Default)]
pub(super) struct ChatFrames {
    /// True if the stream reports the token counts.
    pub includes_usage: bool,
}

impl ChatFrames {
    pub fn begin(&self, answer: &Answer, out: &mut Vec<u8>) {
        self.chunk(answer, json!({"role": "assistant", "content": ""}), Value::Null, out);
    }

    pub fn open(&self, answer: &Answer, out: &mut Vec<u8>) {
        let OutputItem { kind: TokenKind::Call, id, name, .. } = answer.item() else { return };
        let function = json!({"name": name, "arguments": ""});
        let index = answer.call_count() - 1;
        let call = json!({"index": index, "id": id, "type": "function", "function": function});
        self.chunk(answer, json!({"tool_calls": [call]}), Value::Null, out);
    }

    pub fn add(&self, answer: &Answer, piece: &str, out: &mut Vec<u8>) {
        let delta = match answer.item().kind {
            TokenKind::Text => json!({"content": piece}),
            TokenKind::Reasoning => json!({"reasoning_content": piece}),
            TokenKind::Refusal => json!({"refusal": piece}),
            TokenKind::Call => {
                let index = answer.call_count() - 1;
                json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            }
        };
        self.chunk(answer, delta, Value::Null, out);
    }

    pub fn finish(&self, answer: &Answer, finish: Finish, usage: ScriptedUsage, out: &mut Vec<u8>) {
        self.chunk(answer, json!({}), json!(reason(finish)), out);
        if self.includes_usage {
            let mut last = envelope(answer, "chat.completion.chunk");
            last.insert("choices".to_owned(), json!([]));
            last.insert("usage".to_owned(), usage_of(usage));
            frame(out, None, &Value::Object(last));
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    pub fn whole(&self, answer: &Answer, finish: Finish, usage: ScriptedUsage) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        message.insert("content".to_owned(), json!(answer.joined(TokenKind::Text)));
        message.insert("refusal".to_owned(), json!(answer.joined(TokenKind::Refusal)));
        if let Some(reasoning) = answer.joined(TokenKind::Reasoning) {
            message.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        let calls = answer.items.iter().filter(|item| item.kind == TokenKind::Call).map(|item| {
            let function = json!({"name": item.name, "arguments": item.text});
            json!({"id": item.id, "type": "function", "function": function})
        });
        let calls: Vec<Value> = calls.collect();
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), json!(calls));
        }
        let choice = json!({
            "index": 0, "message": message, "logprobs": null, "finish_reason": reason(finish),
        });
        let mut whole = envelope(answer, "chat.completion");
        whole.insert("choices".to_owned(), json!([choice]));
        whole.insert("usage".to_owned(), usage_of(usage));
        Value::Object(whole)
    }

    fn chunk(&self, answer: &Answer, delta: Value, finish_reason: Value, out: &mut Vec<u8>) {
        let mut chunk = envelope(answer, "chat.completion.chunk");
        let choice = json!({
            "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason,
        });
        chunk.insert("choices".to_owned(), json!([choice]));
        if self.includes_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        frame(out, None, &Value::Object(chunk));
    }
}

fn envelope(answer: &Answer, object: &str) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("id".to_owned(), json!(format!("chatcmpl-{}", answer.number)));
    fields.insert("object".to_owned(), json!(object));
    fields.insert("created".to_owned(), json!(answer.created_s));
    fields.insert("model".to_owned(), json!(answer.model));
    fields
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::Pause => "stop",
        Finish::ToolCalls => "tool_calls",
        Finish::Length => "length",
        Finish::ContentFilter | Finish::Refusal => "content_filter",
    }
}

fn usage_of(usage: ScriptedUsage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens.unwrap_or(0)},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens.unwrap_or(0)},
    })
}
