//! Tests of the decoder: its memory is bounded, and a fault is permanent.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::agent::Usage;
use crate::agent::model::{AnswerDecoder, Endpoint, ModelEvent, ModelFault, Wire};
use crate::limits;

fn decoder(wire: Wire) -> AnswerDecoder {
    let base_url = "http://localhost".parse().unwrap();
    AnswerDecoder::new(&Endpoint { wire, base_url, model: "m".to_owned(), key: None }, &[])
}

/// Feeds frames until one is refused.
fn fault_of(wire: Wire, frames: impl IntoIterator<Item = Value>) -> (usize, Option<ModelFault>) {
    let (mut decoder, mut events) = (decoder(wire), VecDeque::new());
    for (at, frame) in frames.into_iter().enumerate() {
        if let Err(fault) = decoder.feed(format!("data: {frame}\n\n").as_bytes(), &mut events) {
            assert_eq!(decoder.end(&mut events), Err(fault.clone()));
            return (at, Some(fault));
        }
        events.clear();
    }
    (0, None)
}

fn too_long(what: &'static str, limit: usize) -> Option<ModelFault> {
    Some(ModelFault::TooLong { what, limit })
}

fn delta(delta: Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta }] })
}

fn fragment(index: usize, id: &str, name: &str, arguments: &str) -> Value {
    let function = json!({ "name": name, "arguments": arguments });
    delta(json!({ "tool_calls": [{ "index": index, "id": id, "function": function }] }))
}

#[test]
fn a_frame_and_a_document_have_a_largest_size() {
    let limit = limits::MODEL_FRAME_BYTES_MAX;
    for (beginning, what) in [("data: ", "frame"), ("{", "document")] {
        for wire in [Wire::ChatCompletions, Wire::Responses, Wire::Messages] {
            let (mut decoder, mut events) = (decoder(wire), VecDeque::new());
            decoder.feed(beginning.as_bytes(), &mut events).unwrap();
            let piece = vec![b' '; 64 << 10];
            let fed = (1..).find_map(|count| {
                let fault = decoder.feed(&piece, &mut events).err()?;
                Some((count * piece.len(), fault))
            });
            let (bytes, fault) = fed.unwrap();
            assert_eq!(Some(fault), too_long(what, limit));
            assert!(bytes <= limit + piece.len());
        }
    }
}

#[test]
fn an_answer_has_a_largest_size_whatever_it_consists_of() {
    let megabyte = "x".repeat(1 << 20);
    let limit = limits::MODEL_ANSWER_BYTES_MAX;
    let frames_of = |frame: Value| std::iter::repeat_n(frame, 64);
    for field in ["content", "reasoning", "reasoning_content", "refusal"] {
        let (at, fault) =
            fault_of(Wire::ChatCompletions, frames_of(delta(json!({ field: megabyte }))));
        assert_eq!((at, fault), (limit >> 20, too_long("answer", limit)), "{field}");
    }
    let arguments = (0..64).map(|index| fragment(index, "", "", &megabyte[..1 << 19]));
    assert_eq!(fault_of(Wire::ChatCompletions, arguments), (16, too_long("answer", limit)));
    let item = json!({ "type": "reasoning", "encrypted_content": megabyte });
    let items = (0..64).map(
        |index| json!({ "type": "response.output_item.done", "output_index": index, "item": item }),
    );
    assert_eq!(fault_of(Wire::Responses, items).1, too_long("answer", limit));
    for block in [
        json!({ "type": "redacted_thinking", "data": megabyte }),
        json!({ "type": "tool_use", "id": "a", "name": "b", "input": { "a": megabyte } }),
    ] {
        let blocks = (0..64).map(|index| {
            json!({ "type": "content_block_start", "index": index, "content_block": block })
        });
        assert_eq!(fault_of(Wire::Messages, blocks).1, too_long("answer", limit));
    }
    let begin = json!({ "type": "content_block_start", "index": 0,
        "content_block": { "type": "thinking", "thinking": "" } });
    for kind in ["thinking_delta", "signature_delta"] {
        let delta = json!({ "type": kind, "thinking": megabyte, "signature": megabyte });
        let frame = json!({ "type": "content_block_delta", "index": 0, "delta": delta });
        let frames = std::iter::once(begin.clone()).chain(frames_of(frame));
        assert_eq!(fault_of(Wire::Messages, frames).1, too_long("answer", limit), "{kind}");
    }
}

#[test]
fn a_place_beyond_all_that_there_may_be_is_a_fault_at_once() {
    for place in [json!(4_000_000_000_u64), json!(4e9), json!("4000000000"), json!(u64::MAX)] {
        let (calls, items) = (limits::MODEL_CALLS_MAX, limits::MODEL_ITEMS_MAX);
        let function = json!({ "name": "b", "arguments": "{}" });
        let call = json!({ "index": place, "id": "a", "function": function });
        let frames = [delta(json!({ "tool_calls": [call] }))];
        assert_eq!(fault_of(Wire::ChatCompletions, frames), (0, too_long("calls", calls)));
        let block = json!({ "type": "tool_use", "id": "a", "name": "b", "input": {} });
        let begin =
            json!({ "type": "content_block_start", "index": place, "content_block": block });
        assert_eq!(fault_of(Wire::Messages, [begin]), (0, too_long("blocks", items)));
        let item = json!({ "type": "function_call", "name": "b", "call_id": "a" });
        let added =
            json!({ "type": "response.output_item.added", "output_index": place, "item": item });
        assert_eq!(fault_of(Wire::Responses, [added]), (0, too_long("items", items)));
    }
}

#[test]
fn a_call_has_so_many_bytes_and_an_answer_so_many_calls() {
    let limit = limits::MODEL_ARGUMENTS_BYTES_MAX;
    let half = "x".repeat(limit / 2);
    let frames = (0..3).map(|_| fragment(0, "a", "b", &half));
    assert_eq!(fault_of(Wire::ChatCompletions, frames), (2, too_long("arguments", limit)));
    let server_tool = json!({ "type": "content_block_start", "index": 0,
        "content_block": { "type": "server_tool_use", "input": {} } });
    let piece = json!({ "type": "content_block_delta", "index": 0,
        "delta": { "type": "input_json_delta", "partial_json": half } });
    let frames = [server_tool, piece.clone(), piece.clone(), piece];
    assert_eq!(fault_of(Wire::Messages, frames), (3, too_long("arguments", limit)));

    let limit = limits::MODEL_CALLS_MAX;
    let frames = (0..=limit).map(|index| fragment(index, "a", "b", "{}"));
    assert_eq!(fault_of(Wire::ChatCompletions, frames), (limit, too_long("calls", limit)));
    let blocks = (0..=limit).map(|index| {
        let block = json!({ "type": "text", "text": "" });
        json!({ "type": "content_block_start", "index": index, "content_block": block })
    });
    assert_eq!(fault_of(Wire::Messages, blocks), (limit, too_long("blocks", limit)));
    let limit = limits::MODEL_ITEMS_MAX;
    let items = (0..=limit).map(|index| {
        let item = json!({ "type": "message" });
        json!({ "type": "response.output_item.added", "output_index": index, "item": item })
    });
    assert_eq!(fault_of(Wire::Responses, items), (limit, too_long("items", limit)));
    let limit = limits::MODEL_NAME_BYTES_MAX;
    let long = "x".repeat(limit + 1);
    for (id, name) in [(long.as_str(), "b"), ("a", long.as_str())] {
        let frames = [fragment(0, id, name, "")];
        assert_eq!(fault_of(Wire::ChatCompletions, frames), (0, too_long("name", limit)));
    }
}

#[test]
fn deep_json_is_a_fault_and_no_crash() {
    for beginning in ["data: ", ""] {
        let (mut decoder, mut events) = (decoder(Wire::ChatCompletions), VecDeque::new());
        let deep = format!("{beginning}{}{}\n\n", "[".repeat(100_000), "]".repeat(100_000));
        let fed = decoder.feed(deep.as_bytes(), &mut events);
        let fault = fed.and_then(|()| decoder.end(&mut events)).unwrap_err();
        assert!(matches!(fault, ModelFault::Malformed(_)), "{fault:?}");
        assert!(!fault.to_string().is_empty() && events.is_empty());
    }
}

#[test]
fn what_is_behind_the_end_says_nothing() {
    let (mut decoder, mut events) = (decoder(Wire::ChatCompletions), VecDeque::new());
    let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    decoder.feed(end.as_bytes(), &mut events).unwrap();
    assert!(decoder.is_finished());
    decoder.feed(b"data: {\"error\": \"late\"}\n\n", &mut events).unwrap();
    decoder.end(&mut events).unwrap();
    assert_eq!(events.len(), 1);
    assert!(matches!(events[0], ModelEvent::Finished(_)));
}

#[test]
fn an_answer_begins_anew_after_a_restart() {
    let (mut decoder, mut events) = (decoder(Wire::ChatCompletions), VecDeque::new());
    let call = fragment(0, "a", "b", "{}");
    decoder.feed(format!("data: {call}\n\ndata: {{oops").as_bytes(), &mut events).unwrap();
    assert_eq!(decoder.end(&mut events), Err(ModelFault::Truncated));
    let first: Vec<ModelEvent> = events.drain(..).collect();
    decoder.restart();
    decoder.feed(format!("data: {call}\n\n").as_bytes(), &mut events).unwrap();
    assert_eq!(events, first); // The call is number 0 again.
}

#[test]
fn reasoning_that_is_counted_beside_the_output_is_added_to_it() {
    for (total, output_tokens) in [(27, 17), (20, 10), (0, 10)] {
        let (mut decoder, mut events) = (decoder(Wire::ChatCompletions), VecDeque::new());
        let frame = json!({"choices": [], "usage": {
            "prompt_tokens": 10, "completion_tokens": 10, "total_tokens": total,
            "completion_tokens_details": {"reasoning_tokens": 7},
        }});
        decoder.feed(format!("data: {frame}\n\n").as_bytes(), &mut events).unwrap();
        let usage = Usage {
            input_tokens: 10,
            output_tokens,
            reasoning_tokens: Some(7),
            cached_input_tokens: None,
        };
        assert_eq!(events.pop_front(), Some(ModelEvent::Usage(usage)), "{total}");
    }
}
