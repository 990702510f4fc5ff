//! Random replies. Each is written for a wire in one of the valid forms, cut at random, decoded,
//! and assembled again.

use serde_json::{Map, Value, json};
use streamdoor::agent::model::{Ask, Assembly, FinishReason, Wire, write_request};
use streamdoor::agent::{Message, Usage};
use streamdoor::base::Random;

use super::spelled::{Segment, Spelling};
use super::{WIRES, check_order, endpoint, random_pieces, read, tools};

/// A random text, which also contains sequences with a meaning in an event stream.
fn text(random: &mut Random) -> String {
    const PIECES: &[&str] = &[
        "a", "hello ", "\n", "\r\n", "data: ", "[DONE]", "\"", "\\", "ä", "€", "😀", "{", "}",
        "\u{0}", "\u{2028}", " ", "</html>", "\n\n",
    ];
    let count = random.between(1, 12);
    let mut pick = || PIECES[random.below(PIECES.len() as u64) as usize];
    (0..count).map(|_| pick()).collect()
}

fn arguments(random: &mut Random) -> Value {
    let mut members = Map::new();
    for _ in 0..random.below(4) {
        let value = match random.below(4) {
            0 => json!(random.next_u64()),
            1 => json!({ "inner": [text(random), null, 1.5] }),
            2 => json!({}),
            _ => json!(text(random)),
        };
        members.insert(text(random), value);
    }
    Value::Object(members)
}

fn segments(random: &mut Random) -> Vec<Segment> {
    let names = ["get_weather", "now", "files.search"];
    let segment = |number: u64| match random.below(3) {
        0 => Segment::Text(text(random)),
        1 => Segment::Reasoning(text(random)),
        _ => Segment::Call {
            id: format!("call_{number}"),
            name: names[random.below(3) as usize].to_owned(),
            arguments: arguments(random),
        },
    };
    (0..5).map(segment).collect()
}

#[test]
fn what_a_model_says_is_understood_over_every_wire() {
    let seed = std::env::var("SEED").map_or(1, |text| text.parse().expect("a number"));
    let seed_count = if std::env::var_os("SEED").is_some() { 1 } else { 400 };
    for seed in seed..seed + seed_count {
        let mut random = Random::new(seed);
        let segments = segments(&mut random);
        let usage = Usage {
            input_tokens: random.below(1_000),
            output_tokens: random.below(1_000),
            ..Usage::default()
        };
        for wire in WIRES {
            let spelling = Spelling::of(wire, &segments, usage, &mut random);
            let context = format!("SEED={seed} {wire}\n{}", spelling.body);
            let pieces = random_pieces(spelling.body.as_bytes(), &mut random);
            let (events, result) = read(wire, pieces);
            assert_eq!(result, Ok(()), "{context}");
            check_order(&events);
            let mut assembly = Assembly::default();
            events.iter().for_each(|event| assembly.take(event));
            check_content(&assembly, &segments, &context);
            let counted = assembly.usage.expect("it was counted");
            assert_eq!(counted.input_tokens, usage.input_tokens, "{context}");
            assert_eq!(counted.output_tokens, usage.output_tokens, "{context}");
            let kept = assembly.message.reasoning.iter().map(|block| block.value.clone());
            assert_eq!(kept.collect::<Vec<_>>(), spelling.kept, "{context}");
            check_next_request(wire, assembly, &spelling.wanted_back, &context);
        }
    }
}

/// Checks that the assembled reply has the content of the segments.
fn check_content(assembly: &Assembly, segments: &[Segment], context: &str) {
    let (mut texts, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for segment in segments {
        match segment {
            Segment::Text(text) => texts += text,
            Segment::Reasoning(text) => thoughts += text,
            Segment::Call { id, name, arguments } => {
                calls.push((id.clone(), name.clone(), arguments.clone()));
            }
        }
    }
    assert_eq!(assembly.message.text, texts, "{context}");
    assert_eq!(assembly.reasoning_text, thoughts, "{context}");
    let reason = if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
    assert_eq!(assembly.finish, Some(reason), "{context}");
    let made = assembly.message.calls.iter().map(|call| {
        let arguments = serde_json::from_str(&call.arguments);
        let arguments: Value = arguments.unwrap_or_else(|error| panic!("{error} {context}"));
        (call.id.clone(), call.name.clone(), arguments)
    });
    assert_eq!(made.collect::<Vec<_>>(), calls, "{context}");
}

/// Checks that the next request contains the values that the wire wants back, in the same order.
fn check_next_request(wire: Wire, assembly: Assembly, wanted_back: &[String], context: &str) {
    let messages = [Message::User("?".to_owned()), Message::Assistant(assembly.message)];
    let tools = tools();
    let mut request = Vec::new();
    write_request(&endpoint(wire), &Ask { tools: &tools, ..Ask::of(&messages) }, &mut request);
    let request = String::from_utf8(request).expect("a request is text");
    let mut rest = request.as_str();
    for wanted in wanted_back {
        let at = rest.find(wanted.as_str()).unwrap_or_else(|| panic!("{wanted}: {context}"));
        rest = &rest[at + wanted.len()..];
    }
}
