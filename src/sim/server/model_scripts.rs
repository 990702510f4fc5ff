//! Scripts for a simulated model, drawn at random. They have calls of tools that are right and
//! wrong, and all faults that occur between a model and its client.

use serde_json::{Value, json};

use crate::agent::script::Script;
use crate::base::Random;

/// Number of scripts; a run picks one by the name in its task.
pub(super) const SCRIPT_COUNT: u64 = 6;

const WORDS: [&str; 12] =
    ["the", "answer", "is", "grün", "\"quoted\"", "\\", "\n", "日本", "🙂", "{", "data: x", "end"];

/// The task of a run that gets this script.
pub(super) fn task(script_number: u64) -> String {
    format!("Tell story-{script_number}!")
}

/// All of them, as one script.
pub(super) fn draw(random: &mut Random) -> Script {
    let mut turns: Vec<Value> = Vec::new();
    for script_number in 0..SCRIPT_COUNT {
        let step_count = random.between(1, 4);
        for step in 1..=step_count {
            let user = format!("story-{script_number}!");
            if random.chance(1, 6) {
                let when = json!({"user": user, "step": step, "attempt": 1});
                turns.push(json!({"when": when, "events": [refusal(random)]}));
            }
            let mut events = vec![speech(random)];
            let is_last = step == step_count;
            if !is_last {
                (0..random.between(1, 3)).for_each(|_| events.push(call(random)));
            }
            if random.chance(1, 4) {
                let at = random.below(events.len() as u64 + 1) as usize;
                events.insert(at, json!({"pause": pace(random, 400)}));
            }
            if random.chance(1, 6) {
                events.push(fault(random));
            }
            let mut turn = json!({"when": {"user": user, "step": step}, "events": events});
            if random.chance(1, 12) {
                turn["cut_after_bytes"] = random.between(1, 400).into();
            }
            turns.push(turn);
        }
    }
    let script = json!({"pace": pace(random, 20), "turns": turns});
    Script::from_json(&script.to_string()).expect("it is a script")
}

fn pace(random: &mut Random, ms_max: u64) -> String {
    format!("{}ms", random.below(ms_max))
}

fn speech(random: &mut Random) -> Value {
    let count = random.between(1, 30);
    let words: Vec<&str> =
        (0..count).map(|_| WORDS[random.below(WORDS.len() as u64) as usize]).collect();
    let kind = if random.chance(1, 4) { "reasoning" } else { "text" };
    json!({kind: words.join(" "), "pace": pace(random, 15)})
}

/// A call of the simulated server's tool, of another run, or one that never runs.
fn call(random: &mut Random) -> Value {
    let chunks_max = 1 << random.below(8);
    let chunk_bytes_max: u64 = 1 << random.below(10);
    let script = json!({
        "seed": random.below(1 << 50),
        "chunks": random.below(chunks_max),
        "chunk_bytes": chunk_bytes_max,
        "fails": u64::from(random.chance(1, 6)),
    });
    match random.below(10) {
        0 => json!({"call": "script", "arguments": {"seed": "no number"}}),
        1 => json!({"call": "script", "arguments_text": "{\"seed\": 1"}),
        2 => json!({"call": "nothing", "arguments": {}}),
        3 => json!({"call": "agent", "arguments": {"task": task(random.below(SCRIPT_COUNT))}}),
        _ => json!({"call": "script", "arguments": script}),
    }
}

/// A refusal instead of a reply.
fn refusal(random: &mut Random) -> Value {
    match random.below(4) {
        0 => json!({"status": 429, "retry_after": "1", "message": "slow down"}),
        1 => json!({"status": 500, "message": "oops"}),
        2 => json!({"status": 401, "message": "who are you?"}),
        _ => json!({"cut": "connection"}),
    }
}

/// A fault in the middle of a reply, or at its end.
fn fault(random: &mut Random) -> Value {
    match random.below(6) {
        0 => json!({"cut": "connection"}),
        1 => json!({"cut": "frame"}),
        2 => json!({"cut": "answer"}),
        3 => json!({"error": "overloaded_error", "message": "too much"}),
        4 => json!({"finish": "length"}),
        _ => json!({"hang": true}),
    }
}
