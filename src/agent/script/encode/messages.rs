//! Anthropic's Messages: named frames, in which blocks begin, grow and stop.

use serde_json::{Value, json};

use super::{Answer, OutputItem, TokenKind, frame};
use crate::agent::script::{Finish, ScriptedUsage};

/// The signature of thoughts, which is not checked here.
const SIGNATURE: &str = "c2NyaXB0ZWQ=";

pub(super) fn begin(answer: &Answer, usage: ScriptedUsage, out: &mut Vec<u8>) {
    let usage = ScriptedUsage { output_tokens: 1, ..usage };
    let message = message(answer, json!([]), Value::Null, usage);
    frame(out, Some("message_start"), &json!({"type": "message_start", "message": message}));
}

pub(super) fn open(answer: &Answer, out: &mut Vec<u8>) {
    let block = match answer.item() {
        OutputItem { kind: TokenKind::Text | TokenKind::Refusal, .. } => {
            json!({"type": "text", "text": ""})
        }
        OutputItem { kind: TokenKind::Reasoning, .. } => {
            json!({"type": "thinking", "thinking": "", "signature": ""})
        }
        OutputItem { kind: TokenKind::Call, id, name, .. } => {
            json!({"type": "tool_use", "id": id, "name": name, "input": {}})
        }
    };
    let data = json!({
        "type": "content_block_start", "index": answer.item_index(), "content_block": block,
    });
    frame(out, Some("content_block_start"), &data);
}

pub(super) fn add(answer: &Answer, piece: &str, out: &mut Vec<u8>) {
    block_delta(
        answer,
        match answer.item().kind {
            TokenKind::Text | TokenKind::Refusal => {
                json!({"type": "text_delta", "text": piece})
            }
            TokenKind::Reasoning => json!({"type": "thinking_delta", "thinking": piece}),
            TokenKind::Call => json!({"type": "input_json_delta", "partial_json": piece}),
        },
        out,
    );
}

pub(super) fn close(answer: &Answer, out: &mut Vec<u8>) {
    if answer.item().kind == TokenKind::Reasoning {
        block_delta(answer, json!({"type": "signature_delta", "signature": SIGNATURE}), out);
    }
    let data = json!({"type": "content_block_stop", "index": answer.item_index()});
    frame(out, Some("content_block_stop"), &data);
}

pub(super) fn ping(out: &mut Vec<u8>) {
    frame(out, Some("ping"), &json!({"type": "ping"}));
}

pub(super) fn finish(finish: Finish, usage: ScriptedUsage, out: &mut Vec<u8>) {
    let data = json!({
        "type": "message_delta",
        "delta": {"stop_reason": reason(finish), "stop_sequence": null},
        "usage": usage_of(usage),
    });
    frame(out, Some("message_delta"), &data);
    frame(out, Some("message_stop"), &json!({"type": "message_stop"}));
}

pub(super) fn whole(answer: &Answer, finish: Finish, usage: ScriptedUsage) -> Value {
    let blocks: Vec<Value> = answer.items.iter().map(block).collect();
    message(answer, json!(blocks), json!(reason(finish)), usage)
}

fn message(answer: &Answer, content: Value, stop_reason: Value, usage: ScriptedUsage) -> Value {
    json!({
        "id": format!("msg_{}", answer.number),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": null,
        "usage": usage_of(usage),
    })
}

fn block_delta(answer: &Answer, delta: Value, out: &mut Vec<u8>) {
    let data = json!({"type": "content_block_delta", "index": answer.item_index(), "delta": delta});
    frame(out, Some("content_block_delta"), &data);
}

fn block(item: &OutputItem) -> Value {
    let text = &item.text;
    match item.kind {
        TokenKind::Text | TokenKind::Refusal => json!({"type": "text", "text": text}),
        TokenKind::Reasoning => {
            json!({"type": "thinking", "thinking": text, "signature": SIGNATURE})
        }
        TokenKind::Call => {
            // Text that is not JSON cannot be part of a document.
            let input: Value = serde_json::from_str(text).unwrap_or_else(|_| json!({}));
            json!({"type": "tool_use", "id": item.id, "name": item.name, "input": input})
        }
    }
}

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::ToolCalls => "tool_use",
        Finish::Length => "max_tokens",
        Finish::ContentFilter | Finish::Refusal => "refusal",
        Finish::Pause => "pause_turn",
    }
}

fn usage_of(usage: ScriptedUsage) -> Value {
    let mut said = json!({
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_input_tokens.unwrap_or(0),
        "output_tokens": usage.output_tokens,
    });
    if let Some(tokens) = usage.reasoning_tokens {
        said["output_tokens_details"] = json!({"thinking_tokens": tokens});
    }
    said
}
