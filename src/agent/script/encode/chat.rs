//! OpenAI's Chat Completions: unnamed frames, then `[DONE]`.

use serde_json::{Map, Value, json};

use super::{AnswerEncoder, OutputItem, TokenKind, frame};
use crate::agent::script::{Finish, ScriptedUsage};

impl AnswerEncoder {
    pub(super) fn chat_begin(&self, out: &mut Vec<u8>) {
        self.chunk(json!({"role": "assistant", "content": ""}), Value::Null, out);
    }

    pub(super) fn chat_open(&self, out: &mut Vec<u8>) {
        let OutputItem { kind: TokenKind::Call, id, name, .. } = self.item() else { return };
        let function = json!({"name": name, "arguments": ""});
        let index = self.call_count() - 1;
        let call = json!({"index": index, "id": id, "type": "function", "function": function});
        self.chunk(json!({"tool_calls": [call]}), Value::Null, out);
    }

    pub(super) fn chat_add(&self, piece: &str, out: &mut Vec<u8>) {
        let delta = match self.item().kind {
            TokenKind::Text => json!({"content": piece}),
            TokenKind::Reasoning => json!({"reasoning_content": piece}),
            TokenKind::Refusal => json!({"refusal": piece}),
            TokenKind::Call => {
                let index = self.call_count() - 1;
                json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            }
        };
        self.chunk(delta, Value::Null, out);
    }

    pub(super) fn chat_finish(&self, finish: Finish, usage: ScriptedUsage, out: &mut Vec<u8>) {
        self.chunk(json!({}), json!(reason(finish)), out);
        if self.includes_usage {
            let mut last = self.envelope("chat.completion.chunk");
            last.insert("choices".to_owned(), json!([]));
            last.insert("usage".to_owned(), usage_of(usage));
            frame(out, None, &Value::Object(last));
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    pub(super) fn chat_whole(&self, finish: Finish, usage: ScriptedUsage) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!("assistant"));
        message.insert("content".to_owned(), json!(self.joined(TokenKind::Text)));
        message.insert("refusal".to_owned(), json!(self.joined(TokenKind::Refusal)));
        if let Some(reasoning) = self.joined(TokenKind::Reasoning) {
            message.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        let calls = self.items.iter().filter(|item| item.kind == TokenKind::Call).map(|item| {
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
        let mut whole = self.envelope("chat.completion");
        whole.insert("choices".to_owned(), json!([choice]));
        whole.insert("usage".to_owned(), usage_of(usage));
        Value::Object(whole)
    }

    fn chunk(&self, delta: Value, finish_reason: Value, out: &mut Vec<u8>) {
        let mut chunk = self.envelope("chat.completion.chunk");
        let choice = json!({
            "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason,
        });
        chunk.insert("choices".to_owned(), json!([choice]));
        if self.includes_usage {
            chunk.insert("usage".to_owned(), Value::Null);
        }
        frame(out, None, &Value::Object(chunk));
    }

    fn envelope(&self, object: &str) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("id".to_owned(), json!(format!("chatcmpl-{}", self.number)));
        fields.insert("object".to_owned(), json!(object));
        fields.insert("created".to_owned(), json!(self.created_s));
        fields.insert("model".to_owned(), json!(self.model));
        fields
    }
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
