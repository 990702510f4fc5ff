//! Replies of models over three wires: kept ones, each with a quirk, a fault or a cut, and random
//! ones. The events do not depend on how the bytes are cut. A reply that ends too early is a
//! failure.
#![cfg(feature = "server")]

mod kept;
mod random;
mod spelled;

use std::collections::VecDeque;

use serde_json::{Value, json};
use streamdoor::agent::ToolDescription;
use streamdoor::agent::model::{AnswerDecoder, Endpoint, ModelEvent, ModelFault, Secret, Wire};
use streamdoor::base::Random;

const WIRES: [Wire; 3] = [Wire::ChatCompletions, Wire::Responses, Wire::Messages];

fn endpoint(wire: Wire) -> Endpoint {
    let base_url = "http://localhost/v1".parse().expect("it is one");
    let key = Some(Secret::new("sk-corpus-key").expect("it is one"));
    Endpoint { wire, base_url, model: "m-1".to_owned(), key }
}

fn tools() -> Vec<ToolDescription> {
    let tool = |name: &str| ToolDescription {
        name: name.to_owned(),
        description: format!("Does {name}."),
        schema: json!({"type": "object"}),
    };
    ["get_weather", "now", "files.search"].map(tool).to_vec()
}

/// Decodes a body that comes in these pieces and then ends.
fn read<'a>(
    wire: Wire,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<ModelEvent>, Result<(), ModelFault>) {
    let (mut decoder, mut events) =
        (AnswerDecoder::new(&endpoint(wire), &tools()), VecDeque::new());
    let mut pieces = pieces.into_iter();
    let result = pieces
        .try_for_each(|piece| decoder.feed(piece, &mut events))
        .and_then(|()| decoder.end(&mut events));
    let (event_count, is_finished) = (events.len(), decoder.is_finished());
    assert_eq!(is_finished, result.is_ok());
    // Further input does not change the result.
    assert_eq!(decoder.feed(b"data: {\"choices\":[]}\n\n", &mut events), result);
    assert_eq!(decoder.end(&mut events), result);
    assert_eq!(events.len(), event_count);
    (events.into(), result)
}

/// Cuts a body into pieces of up to 40 bytes, some of them empty.
fn random_pieces<'a>(body: &'a [u8], random: &mut Random) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), body);
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(random.below(41).min(rest.len() as u64) as usize);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Checks that the events keep the promised order.
fn check_order(events: &[ModelEvent]) {
    let mut is_complete: Vec<bool> = Vec::new();
    for (at, event) in events.iter().enumerate() {
        match event {
            ModelEvent::CallStarted { index, name, .. } => {
                assert_eq!(*index as usize, is_complete.len());
                assert!(!name.is_empty());
                is_complete.push(false);
            }
            ModelEvent::CallArguments { index, piece } => {
                assert!(!is_complete[*index as usize] && !piece.is_empty());
            }
            ModelEvent::CallCompleted { index, .. } => {
                assert!(!std::mem::replace(&mut is_complete[*index as usize], true));
            }
            ModelEvent::Finished(_) => {
                assert_eq!(at + 1, events.len());
                assert!(is_complete.iter().all(|is_complete| *is_complete));
            }
            ModelEvent::Text(text) | ModelEvent::Reasoning(text) => assert!(!text.is_empty()),
            ModelEvent::Block(block) => assert_ne!(block.value, Value::Null),
            ModelEvent::Usage(_) => {}
        }
    }
}
