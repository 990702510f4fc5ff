//! The demands of AG-UI 1.0 on a producer, as far as a stream shows them.

use serde_json::Value;

use super::Run;
use super::checks::{self, Done};
use super::track::{CALL, FAMILIES, Family, REASONING, SPAN, STEP, TEXT, kind};

/// A demand.
pub struct Must {
    /// The page, below `docs.ag-ui.com/spec/1.0`.
    pub page: &'static str,
    /// The demand, in short.
    pub rule: &'static str,
    check: Check,
    spoil: Spoil,
}

#[derive(Clone, Copy)]
enum Check {
    Of(fn(&Run) -> Done),
    OpensOnce(Family),
    OpenOnly(Family),
    ClosesAll,
}

/// A change that breaks a rule.
#[derive(Clone, Copy)]
enum Spoil {
    /// Removes the first event of this type.
    Drop(&'static str),
    /// Repeats the first event of this type.
    Double(&'static str),
    /// Sets a field of the first event of this type to this JSON.
    Set(&'static str, &'static str, &'static str),
    /// Removes the last event that closes such an item of a run that finishes.
    Unclosed(Family),
    /// Adds this event to the end.
    Push(&'static str),
    /// Changes the last event of a run that was stopped.
    Stopped(fn(&mut Value)),
    /// Opens the first call again, with another name.
    OtherCall,
}

impl Must {
    pub fn check(&self, run: &Run) -> Done {
        match self.check {
            Check::Of(check) => check(run),
            Check::OpensOnce(family) => family.opens_once(&run.events),
            Check::OpenOnly(family) => family.refers_to_open_items(&run.events),
            Check::ClosesAll => {
                FAMILIES.iter().try_for_each(|family| family.closes_all(&run.events))
            }
        }
    }

    /// Breaks the rule in events that follow it. Returns `None` if the rule does not concern them.
    pub fn spoil(&self, events: &mut Vec<Value>) -> Option<()> {
        let find = |name: &str| events.iter().position(|event| kind(event) == name);
        match self.spoil {
            Spoil::Drop(name) => {
                let at = find(name)?;
                events.remove(at);
            }
            Spoil::Double(name) => {
                let at = find(name)?;
                events.insert(at, events[at].clone());
            }
            Spoil::Set(name, field, value) => {
                let at = find(name)?;
                events[at][field] = serde_json::from_str(value).expect(value);
            }
            Spoil::Unclosed(family) => {
                find("RUN_FINISHED")?;
                let at = events.iter().rposition(|event| kind(event) == family.close)?;
                events.remove(at);
            }
            Spoil::Push(event) => events.push(serde_json::from_str(event).expect(event)),
            Spoil::Stopped(change) => {
                let last = events.last_mut().filter(|last| last["outcome"]["type"] == "cancelled");
                change(last?);
            }
            Spoil::OtherCall => {
                let mut again = events[find(CALL.open)?].clone();
                again["toolCallName"] = "other".into();
                events.push(again);
            }
        }
        Some(())
    }
}

const LIFECYCLE: &str = "events/lifecycle";
const STREAMING: &str = "basic/patterns/streaming";
const CALLS: &str = "events/tool-calls";
const REASON: &str = "events/reasoning";
const ACTIVITY: &str = "events/activity";
const USAGE: &str = "schema#tokenusage";

/// Returns all demands.
pub fn musts() -> Vec<Must> {
    let mut musts = Vec::new();
    let mut must = |page, rule, check, spoil| musts.push(Must { page, rule, check, spoil });
    for (page, rule, check, spoil) in OF_STREAMS {
        must(*page, *rule, Check::Of(*check), *spoil);
    }
    for (page, family) in [
        (STREAMING, TEXT),
        (STREAMING, CALL),
        (STREAMING, REASONING),
        (REASON, SPAN),
        (LIFECYCLE, STEP),
    ] {
        let double = Spoil::Double(family.open);
        must(page, "no item is opened whose identifier is open", Check::OpensOnce(family), double);
        let only = Check::OpenOnly(family);
        must(page, "only open items are extended and closed", only, Spoil::Drop(family.open));
        must(page, "no item is closed twice", only, Spoil::Double(family.close));
        let unclosed = Spoil::Unclosed(family);
        must(page, "every item is closed before RUN_FINISHED", Check::ClosesAll, unclosed);
    }
    musts
}

type OfStream = (&'static str, &'static str, fn(&Run) -> Done, Spoil);

const OF_STREAMS: &[OfStream] = &[
    (
        LIFECYCLE,
        "a stream begins with RUN_STARTED or RUN_ERROR",
        checks::begins,
        Spoil::Drop("RUN_STARTED"),
    ),
    (
        LIFECYCLE,
        "no outcome that the schema does not describe",
        checks::known_outcome,
        Spoil::Set("RUN_FINISHED", "outcome", r#"{"type": "stopped"}"#),
    ),
    (
        LIFECYCLE,
        "a run that was stopped is cancelled; an absent outcome would be a success",
        checks::ends_as_it_did,
        Spoil::Stopped(|last| drop(last.as_object_mut().unwrap().remove("outcome"))),
    ),
    (
        LIFECYCLE,
        "a run that was stopped has not failed",
        checks::ends_as_it_did,
        Spoil::Stopped(|last| last["type"] = "RUN_ERROR".into()),
    ),
    (
        LIFECYCLE,
        "a cancelled run has no result",
        checks::no_result_if_cancelled,
        Spoil::Stopped(|last| last["result"] = 7.into()),
    ),
    (
        LIFECYCLE,
        "a run ends, and nothing follows its end",
        checks::ends,
        Spoil::Push(r#"{"type": "CUSTOM", "name": "streamdoor.x", "value": 1}"#),
    ),
    (
        LIFECYCLE,
        "no RUN_STARTED while a run is active",
        checks::starts_once,
        Spoil::Double("RUN_STARTED"),
    ),
    (
        "basic/run-input",
        "the boundary events have the names of the input, and agree",
        checks::names,
        Spoil::Set("RUN_STARTED", "runId", "\"other\""),
    ),
    (
        CALLS,
        "a call that is opened again keeps its name and its message",
        checks::same_call,
        Spoil::OtherCall,
    ),
    (
        CALLS,
        "the content of a result is a text or a list of parts",
        checks::result_content,
        Spoil::Set("TOOL_CALL_RESULT", "content", r#"{"a": 1}"#),
    ),
    (
        CALLS,
        "each call of the producer's own tools is answered once, after its arguments",
        checks::answered,
        Spoil::Drop("TOOL_CALL_RESULT"),
    ),
    (
        CALLS,
        "a tool of the page is not answered",
        checks::no_frontend_result,
        Spoil::Set("TOOL_CALL_START", "toolCallName", "\"paint\""),
    ),
    (
        CALLS,
        "`pendingToolCallIds` are exactly the calls without a result",
        checks::pending,
        Spoil::Set("RUN_FINISHED", "outcome", r#"{"type": "success", "pendingToolCallIds": [""]}"#),
    ),
    (
        REASON,
        "the role of a message of reasoning is `reasoning`",
        checks::role,
        Spoil::Set("REASONING_MESSAGE_START", "role", "\"assistant\""),
    ),
    (
        ACTIVITY,
        "no delta of an activity without a snapshot",
        checks::has_snapshot,
        Spoil::Drop("ACTIVITY_SNAPSHOT"),
    ),
    (
        ACTIVITY,
        "a delta repeats the type of its activity",
        checks::same_type,
        Spoil::Set("ACTIVITY_DELTA", "activityType", "\"OTHER\""),
    ),
    (
        ACTIVITY,
        "the content of an activity stays an object",
        checks::stays_object,
        Spoil::Set("ACTIVITY_DELTA", "patch", r#"[{"op": "replace", "path": "", "value": 7}]"#),
    ),
    (
        "basic/versioning",
        "RUN_STARTED declares version 1.0, whatever the client speaks",
        checks::declares,
        Spoil::Set("RUN_STARTED", "protocolVersion", "\"1.7\""),
    ),
    (
        "basic/processing",
        "no event of a type that the protocol does not describe",
        checks::known_types,
        Spoil::Set("CUSTOM", "type", "\"TOOL_OUTPUT\""),
    ),
    (
        "basic",
        "an optional field without a value is left out",
        checks::no_null,
        Spoil::Set("RUN_STARTED", "parentRunId", "null"),
    ),
    (
        "basic",
        "the id of a message is unique",
        checks::unique_messages,
        Spoil::Double("TOOL_CALL_RESULT"),
    ),
    (
        "basic",
        "a time is a whole number of milliseconds",
        checks::times,
        Spoil::Set("STEP_STARTED", "timestamp", "0.5"),
    ),
    (
        "basic/metadata",
        "`metadata` is an object, and the key `ag-ui` is reserved",
        checks::metadata,
        Spoil::Set("RUN_STARTED", "metadata", r#"{"ag-ui": 1}"#),
    ),
    (
        "events/passthrough",
        "CUSTOM has a value, and a name with a prefix",
        checks::custom,
        Spoil::Set("CUSTOM", "name", "\"gap\""),
    ),
    (
        USAGE,
        "the total is the sum of input and output",
        checks::usage,
        Spoil::Set(
            "RUN_FINISHED",
            "usage",
            r#"[{"inputTokens": 3, "outputTokens": 1, "totalTokens": 5}]"#,
        ),
    ),
    (
        USAGE,
        "reasoning is a part of the output",
        checks::usage,
        Spoil::Set("RUN_FINISHED", "usage", r#"[{"outputTokens": 1, "reasoningTokens": 2}]"#),
    ),
    (
        USAGE,
        "cached tokens are a part of the input",
        checks::usage,
        Spoil::Set("RUN_FINISHED", "usage", r#"[{"inputTokens": 1, "cachedInputTokens": 2}]"#),
    ),
];
