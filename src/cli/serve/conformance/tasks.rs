//! Tools that run as tasks: slow ones, failing ones, and those that ask during the task.

use std::time::Duration;

use serde_json::json;
use streamdoor::engine::Timeouts;
use streamdoor::tool::{
    Asking, Output, SpecError, Stopped, TaskSupport, ToolError, ToolSpec, Tools,
};

use super::asking::{ask_name, filled_in, form, greet, is_answered};
use super::{say, taking};

/// The interval at which a slow tool checks whether it was stopped.
const LOOK: Duration = Duration::from_millis(10);
/// The longest duration of a slow tool, in seconds.
const SECONDS_MAX: f64 = 3_600.0;

pub fn add(tools: &mut Tools) -> Result<(), SpecError> {
    let preferred = |spec| ToolSpec { task_support: TaskSupport::Preferred, ..spec };
    let required = |spec| ToolSpec { task_support: TaskSupport::Required, ..spec };
    let slow = ToolSpec {
        arguments: json!({
            "type": "object",
            "properties": {
                "seconds": {"type": "number", "minimum": 0, "maximum": SECONDS_MAX},
                "label": {"type": "string"},
            },
            "required": ["seconds"],
        }),
        timeouts: Timeouts::NONE,
        ..ToolSpec::new("slow_compute", "Runs for the given seconds.")
    };
    tools.insert_closure(preferred(slow), |arguments, out| {
        let seconds = arguments["seconds"].as_f64().unwrap_or(0.0).clamp(0.0, SECONDS_MAX);
        wait(out, Duration::from_secs_f64(seconds))?;
        let label = arguments["label"].as_str().unwrap_or("it");
        say(out, &format!("{label} took {seconds} s"))
    })?;
    tools.insert_closure(
        required(ToolSpec::new("failing_job", "Fails after a second.")),
        |_, out| {
            wait(out, Duration::from_secs(1))?;
            Err(ToolError::new("This job always fails."))
        },
    )?;
    tools.insert_closure(
        preferred(ToolSpec::new("protocol_error_job", "Breaks down.")),
        |_, _| panic!("it breaks down on purpose"),
    )?;
    let filename = json!({"filename": {"type": "string"}});
    tools.insert_asking(
        preferred(taking("confirm_delete", "Asks, and deletes nothing.", filename)),
        |arguments, replies, _| {
            let message = format!("Delete {}?", arguments["filename"]);
            let question = form("confirm", &message, "confirm", "boolean");
            match is_answered(replies, "confirm") {
                true => Asking::Run,
                false => Asking::Ask { questions: vec![question], state: None },
            }
        },
        |arguments, replies, out| {
            let confirmed = replies.accepted("confirm").map(|content| &content["confirm"]);
            let done = if confirmed == Some(&json!(true)) { "deleted" } else { "kept" };
            say(out, &format!("{}: {done}", arguments["filename"]))
        },
    )?;
    tools.insert_asking(
        preferred(ToolSpec::new("multi_input", "Asks for two things at once.")),
        |_, replies, _| {
            let confirm = form("confirmation", "Are you sure?", "confirm", "boolean");
            let questions = vec![ask_name(), confirm];
            match questions.iter().all(|question| is_answered(replies, &question.key)) {
                true => Asking::Run,
                false => Asking::Ask { questions, state: None },
            }
        },
        greet,
    )?;
    tools.insert_asking(
        required(ToolSpec::new("test_tool_with_task", "Asks first, and then becomes a task.")),
        |_, replies, _| match filled_in(replies, "user_name", "name") {
            Some(_) => Asking::Run,
            None => Asking::Ask { questions: vec![ask_name()], state: None },
        },
        greet,
    )
}

/// Waits for `duration`. Fails early if the tool is stopped.
fn wait(out: &Output, duration: Duration) -> Result<(), Stopped> {
    let until = out.now() + duration;
    while out.now() < until {
        if out.is_stopped() {
            return Err(Stopped);
        }
        std::thread::sleep(LOOK.min(until.since(out.now())));
    }
    Ok(())
}
