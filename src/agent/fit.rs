//! Fits parts into chunks. Knows the length of text in JSON and the places where it can be split,
//! and shortens parts that are too long.

use crate::agent::part::{Arguments, Body, Final, Partial, RunPart};
use crate::agent::state::{StepCall, ToolExecution};
use crate::wire::json;

/// Maximum number of JSON bytes per byte of a character.
const ESCAPE_FACTOR: usize = 6;
/// Room for the flag that marks a cut, in bytes.
const FLAG_BYTES: usize = 32;

/// Number of bytes of a character in JSON, as `wire::json` writes it.
fn json_bytes(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..'\u{20}' | '\u{7f}'..'\u{a0}' | '\u{2028}' | '\u{2029}' => 6,
        _ => character.len_utf8(),
    }
}

/// Number of bytes of the longest front of `text` that takes at most `bytes_max` in JSON, without
/// the quotes.
pub(super) fn front_within(text: &str, bytes_max: usize) -> usize {
    if text.len() <= bytes_max / ESCAPE_FACTOR {
        return text.len();
    }
    let mut room = bytes_max;
    for (at, character) in text.char_indices() {
        match room.checked_sub(json_bytes(character)) {
            Some(rest) => room = rest,
            None => return at,
        }
    }
    text.len()
}

/// Returns the front of `text` that takes at most `bytes_max` in JSON, with `…` if it was cut.
pub(super) fn words(text: &str, bytes_max: usize) -> String {
    let front = front_within(text, bytes_max);
    if front == text.len() {
        return text.to_owned();
    }
    let front = front_within(text, bytes_max - '…'.len_utf8());
    format!("{}…", &text[..front])
}

/// Returns the front of `text` of at most `bytes_max` bytes.
pub(super) fn front(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// A value in a part that can be cut.
enum LongValue<'a> {
    Text(&'a mut String, &'a mut bool),
    Optional(&'a mut Option<String>, &'a mut bool),
    Context(&'a mut Option<serde_json::Value>),
    Arguments(&'a mut Arguments),
    Names(&'a mut Vec<String>, &'a mut bool),
    Calls(&'a mut Vec<StepCall>, &'a mut bool),
}

/// Cuts parts until they fit into a chunk.
#[derive(Debug)]
pub(super) struct PartFitter {
    part_bytes_max: usize,
    /// Working space for the JSON of a part.
    scratch: Vec<u8>,
}

impl PartFitter {
    pub fn new(part_bytes_max: usize) -> PartFitter {
        PartFitter { part_bytes_max, scratch: Vec::new() }
    }

    /// Maximum size in bytes of a part's JSON.
    pub fn part_bytes_max(&self) -> usize {
        self.part_bytes_max
    }

    /// Cuts the longest values until the part's JSON is short enough. The cut depends neither on
    /// times nor on the part's number: runs with equal content are cut at the same places.
    ///
    /// # Panics
    /// Panics if nothing is left to cut. Ids, names and numbers are bounded and always fit.
    pub fn fit(&mut self, part: &mut RunPart) {
        loop {
            self.scratch.clear();
            part.write_json(&mut self.scratch);
            let json_bytes = self.scratch.len() + spare_bytes(part);
            let Some(excess) = json_bytes.checked_sub(self.part_bytes_max + 1) else { return };
            let mut long = part.body.long();
            long.sort_by_key(LongValue::bytes);
            let longest = long.pop().filter(|longest| longest.bytes() > 0);
            let longest = longest.unwrap_or_else(|| panic!("{} bytes too many", excess + 1));
            // Cut no further than to the next longest value or to half, then look for the longest
            // again.
            let next_bytes = long.last().map_or(0, LongValue::bytes);
            let share = (longest.bytes() - next_bytes).max(longest.bytes() / 2);
            let cut_bytes = (excess + 1).min(share) + FLAG_BYTES;
            longest.cut(cut_bytes);
        }
    }
}

/// Number of further bytes that the varying numbers of a part could take: sequence number and
/// times.
fn spare_bytes(part: &RunPart) -> usize {
    const DIGITS_MAX: usize = 20; // The digits of `u64::MAX`.
    let spare =
        |number: u64| DIGITS_MAX - number.checked_ilog10().map_or(1, |log| log as usize + 1);
    let inner = match &part.body {
        Body::Partial(_) => 0,
        Body::Final(last) => match last {
            Final::ToolCallArgsCompleted { .. } => 0,
            Final::ToolCallCompleted { execution, .. }
            | Final::ToolCallFailed { execution, .. }
            | Final::ToolCallCancelled { execution, .. } => {
                spare(execution.started_us) + spare(execution.duration_us)
            }
            Final::StepCompleted { step, .. } => spare(step.duration_us),
            Final::ExecutionCompleted { final_state }
            | Final::ExecutionFailed { final_state, .. }
            | Final::ExecutionCancelled { final_state, .. } => spare(final_state.duration_us),
        },
    };
    spare(part.seq) + spare(part.timestamp_us) + inner
}

impl Body {
    fn long(&mut self) -> Vec<LongValue<'_>> {
        match self {
            Body::Partial(partial) => partial.long(),
            Body::Final(last) => last.long(),
        }
    }
}

impl Partial {
    fn long(&mut self) -> Vec<LongValue<'_>> {
        match self {
            Partial::ExecutionStarted { task, task_truncated, tools, tools_truncated, .. } => {
                vec![
                    LongValue::Text(task, task_truncated),
                    LongValue::Names(tools, tools_truncated),
                ]
            }
            Partial::TextDelta { accumulated_text, accumulated_truncated, .. } => {
                vec![LongValue::Optional(accumulated_text, accumulated_truncated)]
            }
            Partial::ToolProgress { progress, .. } => {
                vec![LongValue::Context(&mut progress.context)]
            }
            // Deltas and output are split before they become parts.
            Partial::StepStarted
            | Partial::ReasoningDelta { .. }
            | Partial::ToolCallStarted { .. }
            | Partial::ToolCallArgsDelta { .. }
            | Partial::ToolOutputChunk { .. }
            | Partial::Gap { .. } => Vec::new(),
        }
    }
}

impl Final {
    fn long(&mut self) -> Vec<LongValue<'_>> {
        match self {
            Final::ToolCallArgsCompleted { arguments, .. } => vec![LongValue::Arguments(arguments)],
            Final::ToolCallCompleted { execution, .. }
            | Final::ToolCallFailed { execution, .. }
            | Final::ToolCallCancelled { execution, .. } => {
                let ToolExecution { arguments, output, output_truncated, .. } = &mut **execution;
                vec![LongValue::Text(output, output_truncated), LongValue::Arguments(arguments)]
            }
            Final::StepCompleted { step, .. } => vec![
                LongValue::Text(&mut step.text, &mut step.text_truncated),
                LongValue::Calls(&mut step.tool_calls, &mut step.tool_calls_truncated),
            ],
            Final::ExecutionCompleted { final_state }
            | Final::ExecutionFailed { final_state, .. }
            | Final::ExecutionCancelled { final_state, .. } => {
                vec![LongValue::Text(&mut final_state.text, &mut final_state.text_truncated)]
            }
        }
    }
}

impl LongValue<'_> {
    /// Approximate length in JSON; 0 if nothing of it can be cut.
    fn bytes(&self) -> usize {
        match self {
            LongValue::Text(text, _) => text.chars().map(json_bytes).sum(),
            LongValue::Optional(text, _) => text.as_ref().map_or(0, |text| text.len() + 1),
            LongValue::Context(context) => {
                context.as_ref().map_or(0, |value| json_text(value).len())
            }
            LongValue::Arguments(Arguments::Valid(value)) => json_text(value).len(),
            LongValue::Arguments(Arguments::Cut(text) | Arguments::Invalid { text, .. }) => {
                text.chars().map(json_bytes).sum()
            }
            LongValue::Names(names, _) => names.iter().map(|name| name.len() + 3).sum(),
            LongValue::Calls(calls, _) => calls.iter().map(call_bytes).sum(),
        }
    }

    /// Cuts about `cut_bytes` off the JSON, and always at least something.
    fn cut(self, cut_bytes: usize) {
        let rest_bytes = self.bytes().saturating_sub(cut_bytes);
        match self {
            LongValue::Text(text, is_cut) => {
                text.truncate(front_within(text, rest_bytes));
                *is_cut = true;
            }
            LongValue::Optional(text, is_cut) => (*text, *is_cut) = (None, true),
            LongValue::Context(context) => *context = None,
            LongValue::Arguments(arguments) => match arguments {
                Arguments::Valid(value) => *arguments = Arguments::Cut(json_text(value)),
                Arguments::Cut(text) => text.truncate(front_within(text, rest_bytes)),
                Arguments::Invalid { text, text_truncated, .. } => {
                    text.truncate(front_within(text, rest_bytes));
                    *text_truncated = true;
                }
            },
            LongValue::Names(names, is_cut) => {
                let mut bytes = 0;
                names.retain(|name| {
                    bytes += name.len() + 3;
                    bytes <= rest_bytes
                });
                *is_cut = true;
            }
            LongValue::Calls(calls, is_cut) => {
                let mut bytes = 0;
                calls.retain(|call| {
                    bytes += call_bytes(call);
                    bytes <= rest_bytes
                });
                *is_cut = true;
            }
        }
    }
}

fn call_bytes(call: &StepCall) -> usize {
    const AROUND: usize = r#"{"id":"","name":"","outcome":"completed"},"#.len();
    call.id.len() + call.name.len() + AROUND
}

fn json_text(value: &serde_json::Value) -> String {
    let mut out = Vec::new();
    json::write_value(&mut out, value);
    String::from_utf8(out).expect("JSON is UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    #[test]
    fn every_character_is_as_long_as_it_is_spelled() {
        for character in '\0'..=char::MAX {
            let mut out = Vec::new();
            json::write_characters(&mut out, character.encode_utf8(&mut [0; 4]));
            assert_eq!(out.len(), json_bytes(character), "{character:?}");
            assert!(out.len() <= ESCAPE_FACTOR * character.len_utf8());
        }
    }

    #[test]
    fn a_front_is_the_longest_that_fits() {
        let mut random = Random::new(1);
        let some = ['a', 'ä', '€', '😀', '"', '\n', '\0', '\u{85}', '\u{2028}'];
        for _ in 0..20_000 {
            let length = random.below(30);
            let one = |_| some[random.below(some.len() as u64) as usize];
            let text: String = (0..length).map(one).collect();
            let bytes_max = random.below(80) as usize;
            let at = front_within(&text, bytes_max);
            let bytes = |text: &str| text.chars().map(json_bytes).sum::<usize>();
            assert!(bytes(&text[..at]) <= bytes_max);
            if let Some(next) = text[at..].chars().next() {
                assert!(bytes(&text[..at]) + json_bytes(next) > bytes_max, "{text:?}");
            }
            let words = words(&text, bytes_max + 3);
            assert!(bytes(&words) <= bytes_max + 3 && (words == text || words.ends_with('…')));
        }
    }
}
