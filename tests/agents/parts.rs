//! Parts as a follower of a run reads them: JSON lines or server-sent events.

use serde_json::Value;

/// Returns the parts among JSON lines, in order and as spelled.
pub fn of_lines(text: &str) -> Vec<String> {
    text.lines().filter(|line| line.starts_with("{\"type\":")).map(str::to_owned).collect()
}

/// Returns the parts among server-sent events.
pub fn of_sse(text: &str) -> Vec<String> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| data.starts_with("{\"type\":")).map(str::to_owned).collect()
}

/// Parses each part.
pub fn read(parts: &[String]) -> Vec<Value> {
    parts.iter().map(|part| serde_json::from_str(part).expect(part)).collect()
}

/// Returns the positions of the parts of this type.
pub fn places(parts: &[Value], name: &str) -> Vec<usize> {
    (0..parts.len()).filter(|at| parts[*at]["type"] == name).collect()
}

/// Returns the position of the only part of this type for this call.
pub fn place_of(parts: &[Value], name: &str, call: &str) -> usize {
    let places = places(parts, name);
    let mut of_call = places.into_iter().filter(|at| parts[*at]["tool_call_id"] == call);
    let place = of_call.next().unwrap_or_else(|| panic!("no {name} of {call}"));
    assert_eq!(of_call.next(), None, "{name} of {call}");
    place
}

/// Returns the joined `delta` fields of the parts of this type in one step.
pub fn deltas(parts: &[Value], name: &str, step: u64) -> String {
    let of_step = parts.iter().filter(|part| part["type"] == name && part["step_number"] == step);
    of_step.map(|part| part["delta"].as_str().unwrap()).collect()
}
