//! Step by step: the states are the same whether the model streams or answers in one piece.
//! Followers of the parts and of the steps see the same, too. The test prints the time of each way.

use std::time::Duration;

use serde_json::json;
use streamdoor::agent::{Config, Fold, RunState, ToolDescription};
use streamdoor::reactor::Clock;
use streamdoor::server::{AgentRun, ModelSettings, ServerShard};
use streamdoor::shard::{ExecuteOptions, ShardConfig};
use streamdoor::tool::ToolSpec;

use crate::scripted::ModelServer;

/// Number of tokens of each answer.
const TOKENS: u64 = 2_000;
const ROUNDS: usize = 3;

fn script(plain: bool) -> String {
    format!(
        r#"
plain = {plain}
[[turns]]
events = [
  {{ text = "word ", repeat = {TOKENS} }},
  {{ call = "count", id = "a", arguments = {{ to = 3 }} }},
  {{ call = "count", id = "b", arguments_text = '{{"to": ' }},
]
[[turns]]
events = [{{ text = "more ", repeat = {TOKENS} }}, {{ call = "none_such", id = "c" }}]
[[turns]]
events = [
  {{ text = "Done: ${{result}}." }},
  {{ usage = {{ input_tokens = 9, output_tokens = 8, reasoning_tokens = 7 }} }},
]
"#
    )
}

fn shard() -> ServerShard {
    let (mut shard, _) = ServerShard::open(ShardConfig::default()).unwrap();
    let inserted = shard.tools_mut().insert_closure(spec(), |arguments, out| {
        for number in 0..arguments["to"].as_u64().unwrap_or(0) {
            out.send(format!("number {number}\n").as_bytes())?;
        }
        Ok(())
    });
    inserted.expect("it is described right");
    shard
}

fn spec() -> ToolSpec {
    ToolSpec {
        arguments: json!({"type": "object", "properties": {"to": {"type": "integer"}}}),
        ..ToolSpec::new("count", "Counts.")
    }
}

fn run(model: &ModelServer) -> AgentRun {
    let model = ModelSettings::new("demo", "chat", &model.base_url, "demo", None).unwrap();
    let mut config = Config::new("", model.endpoint);
    let spec = spec();
    config.tools = vec![ToolDescription {
        name: spec.name,
        description: spec.description,
        schema: spec.arguments,
    }];
    AgentRun::new(config, "count to three")
}

/// Returns the states after each step, and the total time.
fn by_steps(shard: &mut ServerShard, model: &ModelServer) -> (Vec<RunState>, Duration) {
    let began = Clock::now();
    let mut steps = shard.iterate_agent(run(model), ExecuteOptions::default()).unwrap();
    let mut states = Vec::new();
    while let Some(state) = steps.next(shard) {
        states.push(state);
    }
    (states, Clock::now().since(began))
}

/// Returns the same, assembled from the parts by hand.
fn by_parts(shard: &mut ServerShard, model: &ModelServer) -> (Vec<RunState>, Duration) {
    let began = Clock::now();
    let mut stream = shard.stream_agent(run(model), ExecuteOptions::default()).unwrap();
    let (mut fold, mut states) = (Fold::default(), Vec::new());
    while let Some(part) = stream.next(shard) {
        fold.take(&part);
        if part.name() == "StepCompleted" || part.is_end() {
            states.push(fold.state().clone());
        }
    }
    (states, Clock::now().since(began))
}

/// Removes what differs from run to run: ids and times.
fn comparable(mut states: Vec<RunState>) -> Vec<RunState> {
    for state in &mut states {
        state.agent_id.clear();
        state.end.iter_mut().for_each(|end| end.duration_us = 0);
        for step in &mut state.steps {
            step.duration_us = 0;
            for call in &mut step.tool_calls {
                (call.execution, call.started_us, call.duration_us) = (None, 0, 0);
            }
        }
    }
    states
}

#[test]
fn states_are_the_same_with_and_without_streaming() {
    let streaming = ModelServer::following("streaming", &script(false));
    let plain = ModelServer::following("plain", &script(true));
    let mut shard = shard();
    let (states, _) = by_parts(&mut shard, &streaming);
    let states = comparable(states);
    // One state after each step, and one after the run.
    assert_eq!(states.len(), 4);
    assert_eq!(states[0].steps[0].text, "word ".repeat(TOKENS as usize));
    assert_eq!(states[0].steps[0].tool_calls[0].output, "number 0\nnumber 1\nnumber 2\n");
    assert!(states[0].steps[0].tool_calls[1].error.is_some());
    assert!(states[3].end.is_some() && states[2].steps.len() == 3);
    let mut fastest = [Duration::MAX; 3];
    for _ in 0..ROUNDS {
        let rounds = [
            by_steps(&mut shard, &plain),
            by_steps(&mut shard, &streaming),
            by_parts(&mut shard, &streaming),
        ];
        for (fastest, (found, took)) in fastest.iter_mut().zip(rounds) {
            *fastest = took.min(*fastest);
            let found = comparable(found);
            // The script counts the usage of a stream and of a plain answer in the same way.
            assert_eq!(found, states);
        }
    }
    let ms = |took: Duration| took.as_secs_f64() * 1e3;
    let [plain, steps, parts] = fastest.map(ms);
    println!(
        "3 steps, {} tokens: in one piece {plain:.2} ms; streamed, by steps {steps:.2} ms \
         ({:.2} times); streamed, by parts {parts:.2} ms ({:.2} times)",
        2 * TOKENS,
        steps / plain,
        parts / steps,
    );
}
