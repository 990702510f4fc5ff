//! Model replies as servers send them: each in a random one of many valid forms.

use serde_json::{Value, json};
use streamdoor::agent::Usage;
use streamdoor::agent::model::Wire;
use streamdoor::base::Random;

/// A segment of a model's reply.
pub enum Segment {
    Text(String),
    Reasoning(String),
    Call { id: String, name: String, arguments: Value },
}

/// A reply as a body, and the parts of it that the wire wants back.
pub struct Spelling {
    pub body: String,
    /// Reasoning values that the client keeps.
    pub kept: Vec<Value>,
    /// Texts of the next request that come from these values.
    pub wanted_back: Vec<String>,
}

impl Spelling {
    pub fn of(wire: Wire, segments: &[Segment], usage: Usage, random: &mut Random) -> Spelling {
        let frames = Frames { body: String::new(), number: 0, random };
        match wire {
            Wire::ChatCompletions => chat(segments, usage, frames),
            Wire::Responses => responses(segments, usage, frames),
            Wire::Messages => messages(segments, usage, frames),
        }
    }
}

/// Server-sent event frames, with random line ends and spaces.
struct Frames<'a> {
    body: String,
    number: u64,
    random: &'a mut Random,
}

impl Frames<'_> {
    fn push(&mut self, name: Option<&str>, data: &Value) {
        let line_end = ["\n", "\r\n", "\r"][self.random.below(3) as usize];
        let space = if self.random.chance(1, 2) { " " } else { "" };
        if self.random.chance(1, 8) {
            self.body += &format!(": keep alive{line_end}{line_end}");
        }
        if let Some(name) = name {
            self.body += &format!("event:{space}{name}{line_end}");
        }
        // A `\r` at the end and a `\n` at the start of the next line would be one line end.
        self.body += &format!("data:{space}{data}{line_end}: {line_end}{line_end}");
        if line_end == "\r" {
            self.body += ":\n";
        }
    }

    /// Pushes a frame of a wire that names its frames.
    fn named(&mut self, name: &str, mut data: Value) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.number);
        self.number += 1;
        self.push(Some(name), &data);
    }

    /// Cuts a text into random pieces.
    fn pieces(&mut self, text: &str) -> Vec<String> {
        let mut pieces = vec![String::new()];
        for c in text.chars() {
            if self.random.chance(1, 4) {
                pieces.push(String::new());
            }
            pieces.last_mut().expect("there is one").push(c);
        }
        pieces
    }

    fn arguments(&mut self, arguments: &Value) -> String {
        let is_nothing = arguments.as_object().is_some_and(|members| members.is_empty());
        match is_nothing && self.random.chance(1, 2) {
            true => String::new(), // No arguments at all are valid, too.
            false => arguments.to_string(),
        }
    }
}

fn wire_name(name: &str) -> String {
    name.replace('.', "_")
}

fn chat(segments: &[Segment], usage: Usage, mut frames: Frames<'_>) -> Spelling {
    let field = if frames.random.chance(1, 2) { "reasoning" } else { "reasoning_content" };
    // 0: as OpenAI; 1: no index; 2: the same index for all calls; 3: a name that comes late.
    let habit = frames.random.below(4);
    let (mut call_count, mut thoughts) = (0, String::new());
    for segment in segments {
        let mut deltas: Vec<Value> = Vec::new();
        match segment {
            Segment::Text(text) => {
                let pieces = frames.pieces(text);
                deltas.extend(pieces.into_iter().map(|piece| json!({ "content": piece })));
            }
            Segment::Reasoning(text) => {
                thoughts += text;
                let pieces = frames.pieces(text);
                deltas.extend(pieces.into_iter().map(|piece| json!({ field: piece })));
            }
            Segment::Call { id, name, arguments } => {
                let arguments = frames.arguments(arguments);
                let begin =
                    json!({ "id": id, "function": { "name": wire_name(name), "arguments": "" } });
                let pieces = frames.pieces(&arguments);
                let piece = |piece: String| json!({ "function": { "arguments": piece } });
                let mut fragments: Vec<Value> = pieces.into_iter().map(piece).collect();
                fragments.insert(if habit == 3 { fragments.len() } else { 0 }, begin);
                for mut fragment in fragments {
                    match habit {
                        1 => {}
                        2 => fragment["index"] = json!(0),
                        _ => fragment["index"] = json!(call_count),
                    }
                    deltas.push(json!({ "tool_calls": [fragment] }));
                }
                call_count += 1;
            }
        }
        for delta in deltas {
            let choice = json!({ "index": 0, "delta": delta, "finish_reason": null });
            frames.push(None, &json!({ "choices": [choice], "usage": null }));
        }
    }
    let reason = if call_count > 0 && frames.random.chance(3, 4) { "tool_calls" } else { "stop" };
    let counts =
        json!({ "prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens });
    frames.push(None, &json!({ "choices": [{ "delta": {}, "finish_reason": reason }] }));
    frames.push(None, &json!({ "choices": [], "usage": counts }));
    if frames.random.chance(3, 4) {
        frames.body += "data: [DONE]\n\n";
    }
    let has_kept = call_count > 0 && !thoughts.is_empty();
    let kept: Vec<Value> = has_kept.then(|| json!({ field: thoughts })).into_iter().collect();
    let spelled = |kept: &Value| format!("\"{field}\":{}", kept[field]);
    let wanted_back = kept.iter().map(spelled).collect();
    Spelling { body: frames.body, kept, wanted_back }
}

fn responses(segments: &[Segment], usage: Usage, mut frames: Frames<'_>) -> Spelling {
    let (mut kept, mut output) = (Vec::new(), Vec::new());
    frames.named(
        "response.created",
        json!({ "response": { "status": "in_progress", "error": null } }),
    );
    // Reasoning at the end, with nothing behind it, does not go back.
    let is_thought = |segment: &Segment| matches!(segment, Segment::Reasoning(_));
    let last = segments.iter().rposition(|segment| !is_thought(segment)).map_or(0, |at| at + 1);
    for (at, segment) in segments.iter().enumerate() {
        let id = format!("item_{at}");
        let (family, text, mut item) = match segment {
            Segment::Text(text) => {
                let part = json!({ "type": "output_text", "text": text });
                let item = json!({ "id": id, "type": "message", "content": [part] });
                ("response.output_text.delta", text.clone(), item)
            }
            Segment::Reasoning(text) => {
                let part = json!({ "type": "summary_text", "text": text });
                let encrypted = format!("secret {at}");
                let item = json!({
                    "id": id, "type": "reasoning", "summary": [part],
                    "encrypted_content": encrypted,
                });
                kept.push(item.clone());
                ("response.reasoning_summary_text.delta", text.clone(), item)
            }
            Segment::Call { id: call_id, name, arguments } => {
                let arguments = frames.arguments(arguments);
                let item = json!({
                    "id": id, "type": "function_call", "call_id": call_id, "name": wire_name(name),
                    "arguments": "",
                });
                ("response.function_call_arguments.delta", arguments, item)
            }
        };
        frames.named("response.output_item.added", json!({ "output_index": at, "item": item }));
        // An item that is not streamed comes with its end. A call or a streamed text may lack its
        // own end, because the end of the response completes it.
        let is_streamed = frames.random.chance(7, 8);
        if is_streamed {
            for piece in frames.pieces(&text) {
                frames.named(family, json!({ "output_index": at, "item_id": id, "delta": piece }));
            }
        }
        if item["type"] == "function_call" {
            item["arguments"] = json!(text);
        }
        let can_wait = match segment {
            Segment::Text(_) => is_streamed,
            Segment::Reasoning(_) => false,
            Segment::Call { .. } => true,
        };
        if !can_wait || frames.random.chance(7, 8) {
            frames.named("response.output_item.done", json!({ "output_index": at, "item": item }));
        }
        output.push(item);
    }
    let counts =
        json!({ "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens });
    let response =
        json!({ "status": "completed", "error": null, "output": output, "usage": counts });
    frames.named("response.completed", json!({ "response": response }));
    let wanted_back =
        segments[..last].iter().zip(&output).filter(|(segment, _)| is_thought(segment));
    let wanted_back = wanted_back.map(|(_, item)| item.to_string()).collect();
    Spelling { body: frames.body, kept, wanted_back }
}

fn messages(segments: &[Segment], usage: Usage, mut frames: Frames<'_>) -> Spelling {
    let mut kept = Vec::new();
    let counts = json!({ "input_tokens": usage.input_tokens, "output_tokens": 1 });
    frames.named("message_start", json!({ "message": { "content": [], "usage": counts } }));
    let mut has_calls = false;
    for (at, segment) in segments.iter().enumerate() {
        let (block, deltas) = match segment {
            Segment::Text(text) => {
                let delta = |piece: String| json!({ "type": "text_delta", "text": piece });
                let deltas: Vec<Value> = frames.pieces(text).into_iter().map(delta).collect();
                (json!({ "type": "text", "text": "" }), deltas)
            }
            Segment::Reasoning(text) => {
                let delta = |piece: String| json!({ "type": "thinking_delta", "thinking": piece });
                let mut deltas: Vec<Value> = frames.pieces(text).into_iter().map(delta).collect();
                let signature = format!("signature {at}");
                deltas.push(json!({ "type": "signature_delta", "signature": signature }));
                kept.push(json!({ "type": "thinking", "thinking": text, "signature": signature }));
                (json!({ "type": "thinking", "thinking": "", "signature": "" }), deltas)
            }
            Segment::Call { id, name, arguments } => {
                has_calls = true;
                let arguments = frames.arguments(arguments);
                let delta =
                    |piece: String| json!({ "type": "input_json_delta", "partial_json": piece });
                let deltas = frames.pieces(&arguments).into_iter().map(delta).collect();
                let name = wire_name(name);
                (json!({ "type": "tool_use", "id": id, "name": name, "input": {} }), deltas)
            }
        };
        frames.named("content_block_start", json!({ "index": at, "content_block": block }));
        for delta in deltas {
            frames.named("content_block_delta", json!({ "index": at, "delta": delta }));
            if frames.random.chance(1, 8) {
                frames.named("ping", json!({}));
            }
        }
        if frames.random.chance(7, 8) {
            frames.named("content_block_stop", json!({ "index": at }));
        }
    }
    let reason = if has_calls { "tool_use" } else { "end_turn" };
    let counts = json!({ "output_tokens": usage.output_tokens });
    let delta = json!({ "stop_reason": reason });
    frames.named("message_delta", json!({ "delta": delta, "usage": counts }));
    frames.named("message_stop", json!({}));
    let wanted_back = kept.iter().map(Value::to_string).collect();
    Spelling { body: frames.body, kept, wanted_back }
}
