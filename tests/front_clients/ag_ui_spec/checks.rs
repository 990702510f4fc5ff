//! Assertions about the stream of one run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::track::{CALL, FAMILIES, REASONING, kind, text};
use super::{Ending, Run};

pub type Done = Result<(), String>;

fn require(is_so: bool, problem: impl FnOnce() -> String) -> Done {
    if is_so { Ok(()) } else { Err(problem()) }
}

/// Returns the events of this type.
fn of<'r>(run: &'r Run, name: &'static str) -> impl Iterator<Item = &'r Value> {
    run.events.iter().filter(move |event| kind(event) == name)
}

pub fn begins(run: &Run) -> Done {
    let first = run.events.first().map(kind).unwrap_or_default();
    require(["RUN_STARTED", "RUN_ERROR"].contains(&first), || format!("{first:?} is first"))
}

pub fn known_outcome(run: &Run) -> Done {
    of(run, "RUN_FINISHED").filter_map(|event| event.get("outcome")).try_for_each(|outcome| {
        let is_known = ["success", "interrupt", "cancelled"].map(Value::from);
        require(is_known.contains(&outcome["type"]), || outcome.to_string())
    })
}

pub fn ends_as_it_did(run: &Run) -> Done {
    let last = run.events.last().ok_or("no event")?;
    let outcome = last["outcome"]["type"].as_str();
    let (name, expected) = match run.ending {
        Ending::Completed => ("RUN_FINISHED", Some("success")),
        Ending::Stopped => ("RUN_FINISHED", Some("cancelled")),
        Ending::Failed => ("RUN_ERROR", None),
    };
    require((kind(last), outcome) == (name, expected), || last.to_string())
}

pub fn no_result_if_cancelled(run: &Run) -> Done {
    of(run, "RUN_FINISHED").try_for_each(|event| {
        let is_cancelled = event["outcome"]["type"] == "cancelled";
        require(!is_cancelled || event.get("result").is_none(), || event.to_string())
    })
}

pub fn ends(run: &Run) -> Done {
    let is_end = |event: &Value| ["RUN_FINISHED", "RUN_ERROR"].contains(&kind(event));
    let first = run.events.iter().position(is_end).ok_or("the run does not end")?;
    require(first + 1 == run.events.len(), || format!("events follow event {first}"))
}

pub fn starts_once(run: &Run) -> Done {
    let count = of(run, "RUN_STARTED").count();
    require(count == 1, || format!("it starts {count} times"))
}

pub fn names(run: &Run) -> Done {
    let mut known = BTreeSet::new();
    for event in of(run, "RUN_STARTED").chain(of(run, "RUN_FINISHED")) {
        let ids = (text(event, "threadId")?, text(event, "runId")?);
        known.insert(ids);
        let input = &run.input;
        let is_asked = input.is_null() || input["threadId"] == ids.0 && input["runId"] == ids.1;
        require(is_asked, || event.to_string())?;
    }
    require(known.len() <= 1, || format!("{known:?}"))
}

pub fn same_call(run: &Run) -> Done {
    let mut known = BTreeMap::new();
    for event in of(run, CALL.open) {
        let said = (&event["toolCallName"], &event["parentMessageId"]);
        let first = *known.entry(text(event, "toolCallId")?).or_insert(said);
        require(first == said, || event.to_string())?;
    }
    Ok(())
}

pub fn result_content(run: &Run) -> Done {
    of(run, "TOOL_CALL_RESULT").try_for_each(|event| {
        let content = &event["content"];
        require(content.is_string() || content.is_array(), || event.to_string())
    })
}

pub fn answered(run: &Run) -> Done {
    let mut open = BTreeSet::new();
    for event in &run.events {
        match kind(event) {
            "TOOL_CALL_END" => {
                open.insert(text(event, "toolCallId")?);
            }
            "TOOL_CALL_RESULT" => {
                let is_waiting = open.remove(text(event, "toolCallId")?);
                require(is_waiting, || format!("no call waits for it: {event}"))?;
            }
            _ => {}
        }
    }
    require(open.is_empty(), || format!("{open:?} has no result"))
}

pub fn no_frontend_result(run: &Run) -> Done {
    for event in of(run, CALL.open).filter(|event| event["toolCallName"] == "paint") {
        let id = &event["toolCallId"];
        let result = of(run, "TOOL_CALL_RESULT").find(|result| result["toolCallId"] == *id);
        require(result.is_none(), || event.to_string())?;
    }
    Ok(())
}

pub fn pending(run: &Run) -> Done {
    let results: Vec<&Value> =
        of(run, "TOOL_CALL_RESULT").map(|event| &event["toolCallId"]).collect();
    let calls = of(run, CALL.open).map(|event| event["toolCallId"].clone());
    let waiting: Vec<Value> = calls.filter(|id| !results.contains(&id)).collect();
    of(run, "RUN_FINISHED").try_for_each(|event| {
        let said = event["outcome"].get("pendingToolCallIds");
        require(said.is_none_or(|said| said.as_array() == Some(&waiting)), || event.to_string())
    })
}

pub fn role(run: &Run) -> Done {
    of(run, REASONING.open)
        .try_for_each(|event| require(event["role"] == "reasoning", || event.to_string()))
}

pub fn has_snapshot(run: &Run) -> Done {
    let mut known = BTreeSet::new();
    for event in &run.events {
        match kind(event) {
            "ACTIVITY_SNAPSHOT" => {
                known.insert(text(event, "messageId")?);
            }
            "ACTIVITY_DELTA" => {
                let is_known = known.contains(text(event, "messageId")?);
                require(is_known, || format!("it has no snapshot: {event}"))?;
            }
            _ => {}
        }
    }
    Ok(())
}

pub fn same_type(run: &Run) -> Done {
    let mut known = BTreeMap::new();
    for event in of(run, "ACTIVITY_SNAPSHOT").chain(of(run, "ACTIVITY_DELTA")) {
        let said = text(event, "activityType")?;
        let first = *known.entry(text(event, "messageId")?).or_insert(said);
        require(first == said, || event.to_string())?;
    }
    Ok(())
}

pub fn stays_object(run: &Run) -> Done {
    for event in of(run, "ACTIVITY_DELTA") {
        for change in event["patch"].as_array().ok_or("the patch is not a list")? {
            require(text(change, "path")?.starts_with('/'), || event.to_string())?;
        }
    }
    of(run, "ACTIVITY_SNAPSHOT")
        .try_for_each(|event| require(event["content"].is_object(), || event.to_string()))
}

pub fn declares(run: &Run) -> Done {
    of(run, "RUN_STARTED")
        .try_for_each(|event| require(event["protocolVersion"] == "1.0", || event.to_string()))
}

/// The types that the program writes. Those for state, subagents and chunks are not among them.
pub fn known_types(run: &Run) -> Done {
    let others = [
        "RUN_STARTED",
        "RUN_FINISHED",
        "RUN_ERROR",
        "TOOL_CALL_RESULT",
        "ACTIVITY_SNAPSHOT",
        "ACTIVITY_DELTA",
        "CUSTOM",
    ];
    let of_families = FAMILIES.map(|family| [family.open, family.extend, family.close]);
    let known: Vec<&str> = of_families.into_iter().flatten().chain(others).collect();
    run.events
        .iter()
        .try_for_each(|event| require(known.contains(&text(event, "type")?), || event.to_string()))
}

pub fn no_null(run: &Run) -> Done {
    run.events.iter().try_for_each(|event| {
        let mut members = event.as_object().into_iter().flatten();
        let null = members.find(|(name, value)| value.is_null() && *name != "value");
        require(null.is_none(), || event.to_string())
    })
}

/// Messages of different kinds have different ids. A span may share the id of its message.
pub fn unique_messages(run: &Run) -> Done {
    let mut known = BTreeMap::new();
    let mut result_ids = BTreeSet::new();
    for event in &run.events {
        let name = kind(event);
        let is_message = name.ends_with("MESSAGE_START")
            || ["TOOL_CALL_RESULT", "ACTIVITY_SNAPSHOT"].contains(&name);
        if !is_message {
            continue;
        }
        let id = text(event, "messageId")?;
        let is_new = name != "TOOL_CALL_RESULT" || result_ids.insert(id);
        let is_same = *known.entry(id).or_insert(name) == name;
        require(is_new && is_same, || event.to_string())?;
    }
    Ok(())
}

pub fn times(run: &Run) -> Done {
    run.events.iter().try_for_each(|event| {
        let time = event.get("timestamp");
        require(time.is_none_or(Value::is_u64), || event.to_string())
    })
}

pub fn metadata(run: &Run) -> Done {
    run.events.iter().filter_map(|event| event.get("metadata")).try_for_each(|said| {
        require(said.is_object() && said.get("ag-ui").is_none(), || said.to_string())
    })
}

pub fn custom(run: &Run) -> Done {
    of(run, "CUSTOM").try_for_each(|event| {
        let has_prefix = text(event, "name")?.starts_with("streamdoor.");
        require(has_prefix && event.get("value").is_some(), || event.to_string())
    })
}

pub fn usage(run: &Run) -> Done {
    let lists = run.events.iter().filter_map(|event| event.get("usage"));
    for entry in lists.flat_map(|list| list.as_array().into_iter().flatten()) {
        let count = |name: &str| entry[name].as_u64().unwrap_or_default();
        let (input, output) = (count("inputTokens"), count("outputTokens"));
        let is_sum = entry.get("totalTokens").is_none_or(|total| *total == input + output);
        let cached = count("cachedInputTokens") + count("cacheWriteInputTokens");
        let has_parts = cached <= input && count("reasoningTokens") <= output;
        require(is_sum && has_parts, || entry.to_string())?;
    }
    Ok(())
}
