//! Any bytes as a model's answer, cut anywhere. The events do not depend on the cuts, and keep
//! their promised order. Every answer can be sent back to the model.

use std::collections::VecDeque;

use serde_json::{Value, json};
use streamdoor::agent::model::{
    AnswerDecoder, Ask, Assembly, Endpoint, ModelEvent, ModelFault, Secret, Wire, write_request,
};
use streamdoor::agent::{Message, ToolDescription};

use super::draw::cuts;

const KEY: &str = "sk-kept-secret";

/// Checks an answer. The first byte selects the wire format.
pub fn check(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    let wire = [Wire::ChatCompletions, Wire::Responses, Wire::Messages][usize::from(first % 3)];
    let endpoint = endpoint(wire);
    let expected = read(&endpoint, body, &[]);
    check_order(&expected.0, expected.1.is_ok());
    for cuts in cuts(body) {
        assert_eq!(read(&endpoint, body, &cuts), expected);
    }
    if let Err(fault) = &expected.1 {
        assert!(!fault.to_string().contains(KEY) && !fault.code().is_empty());
    }
    check_spelled_back(&expected.0);
}

fn endpoint(wire: Wire) -> Endpoint {
    let base_url = "http://localhost/v1".parse().expect("it is one");
    let key = Some(Secret::new(KEY).expect("it is one"));
    Endpoint { wire, base_url, model: "m".to_owned(), key }
}

fn tools() -> Vec<ToolDescription> {
    let tool = |name: &str| ToolDescription {
        name: name.to_owned(),
        description: String::new(),
        schema: json!({}),
    };
    ["now", "files.search", "files_search"].map(tool).to_vec()
}

fn read(
    endpoint: &Endpoint,
    body: &[u8],
    cuts: &[usize],
) -> (Vec<ModelEvent>, Result<(), ModelFault>) {
    let (mut decoder, mut events) = (AnswerDecoder::new(endpoint, &tools()), VecDeque::new());
    let (mut from, mut result) = (0, Ok(()));
    for &to in cuts.iter().chain([&body.len()]) {
        result = result.and_then(|()| decoder.feed(&body[from..to], &mut events));
        from = to;
    }
    let result = result.and_then(|()| decoder.end(&mut events));
    assert_eq!(decoder.end(&mut events), result);
    assert_eq!(decoder.is_finished(), result.is_ok());
    (events.into(), result)
}

/// Asserts the order: calls are numbered as they start and complete once. All calls complete before
/// the end, which is last.
fn check_order(events: &[ModelEvent], is_whole: bool) {
    let mut is_complete: Vec<bool> = Vec::new();
    for event in events {
        match event {
            ModelEvent::CallStarted { index, .. } => {
                assert_eq!(*index as usize, is_complete.len());
                is_complete.push(false);
            }
            ModelEvent::CallArguments { index, .. } => assert!(!is_complete[*index as usize]),
            ModelEvent::CallCompleted { index, .. } => {
                assert!(!std::mem::replace(&mut is_complete[*index as usize], true));
            }
            _ => {}
        }
    }
    let is_end = |event: &ModelEvent| matches!(event, ModelEvent::Finished(_));
    assert_eq!(events.iter().filter(|event| is_end(event)).count(), usize::from(is_whole));
    assert_eq!(events.last().is_some_and(is_end), is_whole);
    assert!(!is_whole || is_complete.iter().all(|is_complete| *is_complete));
}

/// Asserts that the answer can be sent back in every wire format, not only its own.
fn check_spelled_back(events: &[ModelEvent]) {
    let mut assembly = Assembly::default();
    events.iter().for_each(|event| assembly.take(event));
    let messages = [Message::User("?".to_owned()), Message::Assistant(assembly.message)];
    let tools = tools();
    for wire in [Wire::ChatCompletions, Wire::Responses, Wire::Messages] {
        let mut request = Vec::new();
        let ask = Ask { tools: &tools, ..Ask::of(&messages) };
        write_request(&endpoint(wire), &ask, &mut request);
        let request = String::from_utf8(request).expect("a request is text");
        let (head, body) = request.split_once("\r\n\r\n").expect("a head ends");
        assert!(head.lines().count() < 12);
        assert!(serde_json::from_str::<Value>(body).is_ok_and(|body| body["stream"] == true));
    }
}
