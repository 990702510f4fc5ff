//! Follows what is open in a stream of AG-UI.

use std::collections::BTreeSet;

use serde_json::Value;

/// A family of events that open, extend and close an item.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub open: &'static str,
    pub extend: &'static str,
    pub close: &'static str,
    /// The field that identifies the item.
    pub id: &'static str,
}

const fn family(
    open: &'static str,
    extend: &'static str,
    close: &'static str,
    id: &'static str,
) -> Family {
    Family { open, extend, close, id }
}

pub const TEXT: Family =
    family("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "messageId");
pub const CALL: Family = family("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "toolCallId");
pub const REASONING: Family = family(
    "REASONING_MESSAGE_START",
    "REASONING_MESSAGE_CONTENT",
    "REASONING_MESSAGE_END",
    "messageId",
);
pub const SPAN: Family = family("REASONING_START", "", "REASONING_END", "messageId");
pub const STEP: Family = family("STEP_STARTED", "", "STEP_FINISHED", "stepName");
pub const FAMILIES: [Family; 5] = [TEXT, CALL, REASONING, SPAN, STEP];

pub fn kind(event: &Value) -> &str {
    event["type"].as_str().unwrap_or_default()
}

pub fn text<'e>(event: &'e Value, field: &str) -> Result<&'e str, String> {
    event[field].as_str().ok_or(format!("`{field}` is not a text: {event}"))
}

impl Family {
    /// No item is opened twice at a time.
    pub fn opens_once(&self, events: &[Value]) -> Result<(), String> {
        let mut open = BTreeSet::new();
        for event in events {
            if kind(event) == self.open && !open.insert(text(event, self.id)?) {
                return Err(format!("it is already open: {event}"));
            } else if kind(event) == self.close {
                open.remove(text(event, self.id)?);
            }
        }
        Ok(())
    }

    /// Only open items are extended and closed.
    pub fn refers_to_open_items(&self, events: &[Value]) -> Result<(), String> {
        let mut open = BTreeSet::new();
        for event in events {
            let is_close = kind(event) == self.close;
            if kind(event) == self.open {
                open.insert(text(event, self.id)?);
            } else if kind(event) == self.extend || is_close {
                let id = text(event, self.id)?;
                let is_open = if is_close { open.remove(id) } else { open.contains(id) };
                if !is_open {
                    return Err(format!("it is not open: {event}"));
                }
            }
        }
        Ok(())
    }

    /// Everything that was opened is closed before the run finishes.
    pub fn closes_all(&self, events: &[Value]) -> Result<(), String> {
        let mut open = BTreeSet::new();
        for event in events {
            if kind(event) == self.open {
                open.insert(text(event, self.id)?);
            } else if kind(event) == self.close {
                open.remove(text(event, self.id)?);
            } else if kind(event) == "RUN_FINISHED" && !open.is_empty() {
                return Err(format!("{open:?} is open"));
            }
        }
        Ok(())
    }
}
