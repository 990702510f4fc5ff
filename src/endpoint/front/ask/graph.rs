//! Requests of LangGraph's ordinary API: `{assistant_id, input, stream_mode?, config?, …}`, and
//! searches.

use serde_json::{Map, Value, json};

use super::langgraph::read_input;
use super::{AskError, FrontRequest, error, text_if};
use crate::endpoint::front::StreamModes;
use crate::endpoint::{AssistantsAsk, ThreadSearch};
use crate::limits;
use crate::wire::json::whole_number;

/// The content of a request for a run.
#[derive(Debug)]
pub(in crate::endpoint) struct RunRequest {
    pub run: FrontRequest,
    /// The client's name of the assistant: a model, or the agent itself.
    pub assistant: String,
    pub modes: StreamModes,
    /// True if the run is cancelled when its stream breaks.
    pub cancels: bool,
    /// The metadata of the run.
    pub metadata: Value,
}

/// Reads the members of a request. A thread has the messages whose ids this server gave.
pub(in crate::endpoint) fn of_run(
    mut members: Map<String, Value>,
    has_thread: bool,
) -> Result<RunRequest, AskError> {
    members.retain(|_, value| !value.is_null());
    refuse(&members)?;
    let Some(assistant) = text_if(&mut members, "assistant_id")? else {
        return error("assistant_id", "is missing");
    };
    let modes = read_modes(members.remove("stream_mode"))?;
    let cancels = match members.remove("on_disconnect") {
        None => false,
        Some(Value::String(text)) if text == "cancel" => true,
        Some(Value::String(text)) if text == "continue" => false,
        Some(_) => return error("on_disconnect", "must be cancel or continue"),
    };
    let metadata = match members.remove("metadata") {
        None => json!({}),
        Some(metadata @ Value::Object(_)) => metadata,
        Some(_) => return error("metadata", "must be an object"),
    };
    let messages = read_input(members.remove("input"), "input", has_thread)?;
    // Applications of LangGraph put the options of a run into one of these.
    let mut options = Map::new();
    for (name, inner) in [("config", Some("configurable")), ("context", None)] {
        let found = match (members.remove(name), inner) {
            (None, _) => continue,
            (Some(Value::Object(mut config)), Some(inner)) => config.remove(inner),
            (Some(context @ Value::Object(_)), None) => Some(context),
            (Some(_), _) => return error(name, "must be an object"),
        };
        match found {
            None | Some(Value::Null) => {}
            Some(Value::Object(mut found)) => options.append(&mut found),
            Some(_) => return error(format!("{name}.configurable"), "must be an object"),
        }
    }
    let run = FrontRequest { messages, options, ..FrontRequest::default() };
    Ok(RunRequest { run, assistant, modes, cancels, metadata })
}

fn read_modes(modes: Option<Value>) -> Result<StreamModes, AskError> {
    let names = match &modes {
        None => Vec::new(),
        Some(Value::String(name)) => vec![&**name],
        Some(Value::Array(names)) => match names.iter().map(Value::as_str).collect() {
            Some(names) => names,
            None => return error("stream_mode", "must be a text or a list of texts"),
        },
        Some(_) => return error("stream_mode", "must be a text or a list of texts"),
    };
    StreamModes::parse(names).or_else(|_| {
        let problem = "has a mode that has no meaning here: values, updates, messages, \
                       messages-tuple, tools and custom have one";
        error("stream_mode", problem)
    })
}

/// Refuses members that would change the result, and cannot.
fn refuse(members: &Map<String, Value>) -> Result<(), AskError> {
    let has_other = |name: &str, harmless: &[Value]| {
        members.get(name).is_some_and(|value| !harmless.contains(value))
    };
    const NO_STEPS: &str = "is not supported: a run has no steps to come back to";
    let none = [json!([])];
    for (name, harmless, problem) in [
        ("command", &[][..], "is not supported: a run has no interrupts"),
        ("checkpoint", &[], NO_STEPS),
        ("checkpoint_id", &[], NO_STEPS),
        ("interrupt_before", &none, NO_STEPS),
        ("interrupt_after", &none, NO_STEPS),
        ("webhook", &[], "is not supported: follow the run instead"),
        ("feedback_keys", &none, "is not supported"),
        ("after_seconds", &[json!(0)], "is not supported: a run begins at once"),
        (
            "multitask_strategy",
            &[json!("reject")],
            "must be reject: a thread has one run at a time",
        ),
    ] {
        if has_other(name, harmless) {
            return error(name, problem);
        }
    }
    Ok(())
}

/// Reads a search for assistants. It is a count if it `is_count`.
pub(in crate::endpoint) fn read_search(
    mut members: Map<String, Value>,
    is_count: bool,
) -> Result<AssistantsAsk, AskError> {
    let name = text_if(&mut members, "name")?.or(text_if(&mut members, "graph_id")?);
    let (offset, limit) = page(&members, is_count)?;
    Ok(AssistantsAsk::Search { name: name.map(Into::into), offset, limit })
}

/// Reads a search for threads. It is a count if it `is_count`.
pub(in crate::endpoint) fn read_thread_search(
    mut members: Map<String, Value>,
    is_count: bool,
) -> Result<ThreadSearch, AskError> {
    let (offset, limit) = page(&members, is_count)?;
    let names = match members.remove("ids") {
        None | Some(Value::Null) => None,
        Some(Value::Array(ids)) if ids.len() <= limits::LISTED_THREADS_MAX => {
            let names = ids.iter().map(|id| id.as_str().map(Box::from)).collect();
            match names {
                Some(names) => Some(names),
                None => return error("ids", "must be a list of texts"),
            }
        }
        Some(_) => return error("ids", "must be a list of at most 1000 texts"),
    };
    let is_busy = match text_if(&mut members, "status")?.as_deref() {
        None => None,
        Some("busy") => Some(true),
        Some("idle") => Some(false),
        Some("interrupted" | "error") => return Ok(ThreadSearch { limit, ..nothing() }),
        Some(_) => return error("status", "must be idle, busy, interrupted or error"),
    };
    for name in ["metadata", "values"] {
        match members.remove(name) {
            None | Some(Value::Null) => {}
            Some(Value::Object(wanted)) if wanted.is_empty() => {}
            // No thread has any.
            Some(Value::Object(_)) => return Ok(ThreadSearch { limit, ..nothing() }),
            Some(_) => return error(name, "must be an object"),
        }
    }
    Ok(ThreadSearch { names, is_busy, offset, limit })
}

/// A search that finds nothing.
fn nothing() -> ThreadSearch {
    ThreadSearch { names: Some(Vec::new()), ..ThreadSearch::default() }
}

/// Reads the part of a list that is wanted.
fn page(members: &Map<String, Value>, is_count: bool) -> Result<(usize, Option<usize>), AskError> {
    let number = |name: &'static str, default: u64| match members.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => match whole_number(value) {
            Some(number) => Ok(number),
            None => error(name, "must be a whole number"),
        },
    };
    let offset = usize::try_from(number("offset", 0)?).unwrap_or(usize::MAX);
    let limit = number("limit", 10)?.min(limits::LISTED_THREADS_MAX as u64) as usize;
    Ok((offset, (!is_count).then_some(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Message;
    use crate::endpoint::front::StreamMode;

    fn members(body: Value) -> Map<String, Value> {
        let Value::Object(members) = body else { panic!() };
        members
    }

    #[test]
    fn a_run_is_a_conversation_and_options() {
        let read = of_run(
            members(json!({
                "assistant_id": "demo", "stream_mode": ["messages-tuple", "values"],
                "input": { "messages": [
                    { "type": "human", "content": "Hello" },
                    { "type": "ai", "content": "Hi", "id": "msg-x-1" },
                    ["user", "Go"], "on",
                ]},
                "config": { "configurable": { "max_steps": 3 }, "recursion_limit": 9 },
                "context": { "temperature": 0.5 }, "command": null, "webhook": null,
                "metadata": { "a": 1 }, "on_disconnect": "cancel", "if_not_exists": "create",
                "multitask_strategy": "reject", "stream_resumable": true,
            })),
            true,
        )
        .unwrap();
        let texts = ["Hello", "Go", "on"].map(|text| Message::User(text.to_owned()));
        assert_eq!(read.run.messages, texts); // The thread has the answer.
        let options = json!({ "max_steps": 3, "temperature": 0.5 });
        assert_eq!(Value::Object(read.run.options), options);
        assert!(read.cancels && read.assistant == "demo" && read.metadata == json!({ "a": 1 }));
        assert!(read.modes.has(StreamMode::Values) && !read.modes.has(StreamMode::Custom));
    }

    #[test]
    fn what_has_no_meaning_here_is_refused_by_its_name() {
        let with = |more: Value| {
            let mut all = members(json!({ "assistant_id": "a", "input": "x" }));
            all.append(&mut members(more));
            of_run(all, false)
        };
        assert!(with(json!({})).is_ok());
        for (more, field) in [
            (json!({ "assistant_id": null }), "assistant_id"),
            (json!({ "assistant_id": 1 }), "assistant_id"),
            (json!({ "input": null }), "input"),
            (json!({ "input": { "messages": 1 } }), "input.messages"),
            (json!({ "input": {} }), "input.messages"),
            (
                json!({ "input": { "messages": [{ "role": "r", "content": "x" }] } }),
                "input.messages[0].role",
            ),
            (
                json!({ "input": { "messages": [{ "role": "user", "content": 1 }] } }),
                "input.messages[0].content",
            ),
            (json!({ "stream_mode": "debug" }), "stream_mode"),
            (json!({ "stream_mode": [1] }), "stream_mode"),
            (json!({ "stream_mode": {} }), "stream_mode"),
            (json!({ "command": { "resume": 1 } }), "command"),
            (json!({ "checkpoint_id": "c" }), "checkpoint_id"),
            (json!({ "interrupt_before": "*" }), "interrupt_before"),
            (json!({ "webhook": "http://x" }), "webhook"),
            (json!({ "after_seconds": 3 }), "after_seconds"),
            (json!({ "multitask_strategy": "enqueue" }), "multitask_strategy"),
            (json!({ "on_disconnect": "stay" }), "on_disconnect"),
            (json!({ "metadata": [] }), "metadata"),
            (json!({ "config": 1 }), "config"),
            (json!({ "config": { "configurable": 1 } }), "config.configurable"),
        ] {
            assert_eq!(with(more.clone()).unwrap_err().field, field, "{more}");
        }
    }

    #[test]
    fn searches_have_pages() {
        let search = |body| read_thread_search(members(body), false);
        let all = ThreadSearch { limit: Some(10), ..ThreadSearch::default() };
        assert_eq!(search(json!({})), Ok(all.clone()));
        let found = search(json!({ "ids": ["t"], "status": "busy", "limit": 5, "offset": 2 }));
        let names = Some(vec!["t".into()]);
        let wanted = ThreadSearch { names, is_busy: Some(true), offset: 2, limit: Some(5) };
        assert_eq!(found, Ok(wanted));
        for nothing in [json!({ "metadata": { "a": 1 } }), json!({ "status": "interrupted" })] {
            assert_eq!(search(nothing).unwrap().names, Some(Vec::new()));
        }
        for (body, field) in [
            (json!({ "ids": "t" }), "ids"),
            (json!({ "limit": -1 }), "limit"),
            (json!({ "offset": "x" }), "offset"),
            (json!({ "status": "late" }), "status"),
            (json!({ "metadata": 1 }), "metadata"),
        ] {
            assert_eq!(search(body).unwrap_err().field, field);
        }
        let ask = read_search(members(json!({ "graph_id": "agent", "limit": 1 })), false);
        let (name, offset, limit) = (Some("agent".into()), 0, Some(1));
        assert_eq!(ask, Ok(AssistantsAsk::Search { name, offset, limit }));
    }
}
