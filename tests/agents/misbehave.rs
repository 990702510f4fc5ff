//! A model that misbehaves: the effects on the run, its messages and its exit code.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use serde_json::Value;

use crate::parts::{deltas, of_lines, places, read};
use crate::run::asking;
use crate::scripted::ModelServer;

/// Runs an agent with this task. Returns its exit code, its parts and its stderr.
fn run(model: &ModelServer, task: &str) -> (Option<i32>, Vec<Value>, String) {
    let arguments = ["--format", "ndjson", "--max-steps", "4"];
    let output = asking(model, &arguments, task).output().unwrap();
    let parts = read(&of_lines(std::str::from_utf8(&output.stdout).unwrap()));
    (output.status.code(), parts, String::from_utf8(output.stderr).unwrap())
}

fn end(parts: &[Value]) -> &Value {
    parts.last().expect("there are parts")
}

#[test]
fn what_can_be_tried_again_is() {
    let model = ModelServer::of("misbehaves.toml");
    for task in ["a quota", "an overload"] {
        let (code, parts, told) = run(&model, task);
        assert_eq!(code, Some(0), "{task}: {told}");
        assert_eq!(deltas(&parts, "TextDelta", 1), "The second time it goes well.");
        let duration_us = end(&parts)["final_state"]["duration_us"].as_u64().unwrap();
        if task == "a quota" {
            assert!(duration_us >= 1_000_000, "Retry-After is a second: {duration_us}");
        }
        model.wait_for_requests(2);
    }
    assert_eq!(model.end(), [""; 0], "it is asked twice");
}

#[test]
fn a_person_and_a_program_are_told_of_the_next_attempt() {
    for format in ["text", "ndjson", "sse"] {
        let model = ModelServer::of("misbehaves.toml");
        let arguments = ["--format", format];
        let output = asking(&model, &arguments, "an overload").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{format}: {told}");
        let place = if format == "text" { &told } else { &said };
        let line = place.lines().find(|line| line.contains("retry 1 of "));
        let line = line.unwrap_or_else(|| panic!("{format}: {said}{told}"));
        assert!(line.contains(" s: "), "{line}");
        match format {
            "text" => {
                assert!(line.starts_with("[retry 1 of ") && !said.contains("retry"), "{line}")
            }
            "ndjson" => assert!(line.starts_with("{\"event\":\"progress\""), "{line}"),
            _ => assert!(line.starts_with("data: ") && said.contains("event: progress"), "{line}"),
        }
        model.wait_for_requests(2);
        assert_eq!(model.end(), [""; 0]);
    }
}

#[test]
fn what_can_not_be_tried_again_fails_once_and_says_why() {
    let model = ModelServer::of("misbehaves.toml");
    for (task, words, is_begun) in [
        ("a key", "that is no key", false),
        ("a sentence", "overloaded", true),
        ("a cut", "", true),
        ("a frame", "", true),
        ("an end", "", true),
        ("nonsense", "", true),
    ] {
        let (code, parts, told) = run(&model, task);
        assert_eq!(code, Some(1), "{task}: {told}");
        assert_eq!(end(&parts)["type"], "ExecutionFailed", "{task}");
        let message = end(&parts)["error"]["message"].as_str().unwrap();
        assert!(message.contains(words) && told.contains(message), "{task}: {message} | {told}");
        assert_eq!(!deltas(&parts, "TextDelta", 1).is_empty(), is_begun, "{task}");
        // The step that had started is closed once, and the run ends once.
        assert_eq!(places(&parts, "StepCompleted").len(), 1, "{task}");
        model.wait_for_requests(1);
        assert!(model.requests.try_recv().is_err(), "{task}");
    }
    assert_eq!(model.end(), [""; 0], "it is asked once");
}

#[test]
fn arguments_that_are_none_reach_no_tool_and_the_model_is_told() {
    let model = ModelServer::of("misbehaves.toml");
    let (code, parts, told) = run(&model, "arguments");
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(places(&parts, "ToolCallFailed").len(), 2);
    assert_eq!(places(&parts, "ToolOutputChunk").len(), 0);
    let completed = places(&parts, "ToolCallArgsCompleted");
    let cut = completed.into_iter().find(|at| parts[*at]["tool_name"] == "search_files");
    let invalid = &parts[cut.unwrap()];
    assert_eq!(invalid["invalid_arguments"], "{\"pattern\": \"x", "{invalid}");
    assert!(deltas(&parts, "TextDelta", 2).starts_with("I was told: "));
}

#[test]
fn a_call_that_the_models_limit_has_cut_reaches_no_tool() {
    let model = ModelServer::of("misbehaves.toml");
    let (_, parts, _) = run(&model, "a length");
    assert_eq!(places(&parts, "ToolCallFailed").len(), 1);
    assert_eq!(places(&parts, "ToolOutputChunk").len(), 0);
}

#[test]
fn a_silent_model_is_hung_up_on_when_the_user_has_had_enough() {
    let model = ModelServer::of("misbehaves.toml");
    let mut command = asking(&model, &["--format", "ndjson"], "silence");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    while !lines.contains("moment ") {
        assert!(output.read_line(&mut lines).unwrap() > 0, "it has ended: {lines}");
    }
    let pid = child.id().to_string();
    assert!(
        std::process::Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success()
    );
    output.read_to_string(&mut lines).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    let parts = read(&of_lines(&lines));
    assert_eq!(deltas(&parts, "TextDelta", 1), "one moment ");
    assert_eq!(end(&parts)["type"], "ExecutionCancelled");
}
