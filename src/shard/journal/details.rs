//! The descriptions of executions in a journal, as JSON: what a record of a beginning or of an end
//! holds besides its fixed fields.
//!
//! Fields that are unknown are ignored, and fields that are absent have their defaults. An older or
//! a newer version can therefore read a record.

use serde_json::{Value, json};

use crate::engine::Verdict;
use crate::limits;
use crate::memory::ClockAnchor;
use crate::stream::{Deliver, Exit, KindTotals, OnFull, Outcome};

/// The reason in the error text of an execution that a restart has ended.
pub const RESTARTED: &str = "restarted: its process ended before it did";

/// The description of a beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedDetails {
    /// The name of its tool, if it runs a registered one.
    pub tool: Option<Box<str>>,
    /// True if each of its chunks is one part of an agent's run.
    pub has_parts: bool,
    /// True if its tool is one of another server, whose result is passed on unchanged.
    pub is_relayed: bool,
    /// Its progress token, if it has one.
    pub token: Option<Box<str>>,
    /// The clocks by which the times of its chunks are told.
    pub anchor: ClockAnchor,
    /// The options of an execution that goes on after a restart; `None` if a restart ends it.
    pub goes_on: Option<GoesOn>,
    /// Everything that the guests of the shard want to know of it after a restart.
    pub guest: Value,
}

/// The options of an execution that goes on after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoesOn {
    /// Size of its ring in bytes.
    pub ring_bytes: u32,
    /// The longest chunk that its ring has to hold.
    pub chunk_bytes: u32,
    /// The time at which subscribers are given its chunks.
    pub deliver: Deliver,
    /// The consequence if the journal has no room for a chunk.
    pub on_full: OnFull,
}

/// The description of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedDetails {
    /// The way in which it ended.
    pub outcome: Outcome,
    /// The error text, if it failed.
    pub error: Option<Box<str>>,
    /// The exit status of the process that the tool ran, if it ran one.
    pub exit: Option<Exit>,
    /// True if its tool has panicked.
    pub has_panicked: bool,
}

impl OpenedDetails {
    /// Returns the bytes of the description.
    pub fn encode(&self) -> Vec<u8> {
        self.to_json().to_string().into_bytes()
    }

    /// Returns the description.
    pub fn to_json(&self) -> Value {
        let OpenedDetails { tool, has_parts, is_relayed, token, anchor, goes_on, guest } = self;
        let ClockAnchor { wall_us, mono_ns } = anchor;
        let mut details = json!({"tool": tool, "wall_us": wall_us, "mono_ns": mono_ns});
        if *has_parts {
            details["has_parts"] = true.into();
        }
        if *is_relayed {
            details["is_relayed"] = true.into();
        }
        if let Some(token) = token {
            details["token"] = (**token).into();
        }
        if let Some(goes_on) = goes_on {
            details["goes_on"] = goes_on.to_json();
        }
        if !guest.is_null() {
            details["guest"] = guest.clone();
        }
        details
    }

    /// Reads a description. A damaged one is empty.
    pub fn decode(bytes: &[u8]) -> OpenedDetails {
        OpenedDetails::of_json(serde_json::from_slice(bytes).unwrap_or_default())
    }

    /// Reads a description. One of something else is empty.
    pub fn of_json(mut value: Value) -> OpenedDetails {
        let guest = value.get_mut("guest").map(Value::take).unwrap_or_default();
        let number = |name: &str| value[name].as_u64().unwrap_or(0);
        OpenedDetails {
            tool: value["tool"].as_str().map(Box::from),
            has_parts: value["has_parts"] == true,
            is_relayed: value["is_relayed"] == true,
            token: value["token"].as_str().map(Box::from),
            anchor: ClockAnchor { wall_us: number("wall_us"), mono_ns: number("mono_ns") },
            goes_on: value["goes_on"].is_object().then(|| GoesOn::of_json(&value["goes_on"])),
            guest,
        }
    }
}

impl GoesOn {
    fn to_json(self) -> Value {
        let GoesOn { ring_bytes, chunk_bytes, deliver, on_full } = self;
        let (deliver, on_full) = (deliver.name(), on_full.name());
        json!({
            "ring_bytes": ring_bytes,
            "chunk_bytes": chunk_bytes,
            "deliver": deliver,
            "on_full": on_full,
        })
    }

    fn of_json(value: &Value) -> GoesOn {
        let number = |name: &str| value[name].as_u64().and_then(|number| number.try_into().ok());
        let is = |name: &str, word: &str| value[name] == word;
        let all = [OnFull::Gap, OnFull::Pause, OnFull::Wait];
        let on_full = all.into_iter().find(|each| is("on_full", each.name()));
        GoesOn {
            ring_bytes: number("ring_bytes").unwrap_or(limits::RING_NEED_BYTES_DEFAULT),
            chunk_bytes: number("chunk_bytes").unwrap_or(0),
            deliver: match is("deliver", Deliver::WhenDurable.name()) {
                true => Deliver::WhenDurable,
                false => Deliver::AtOnce,
            },
            on_full: on_full.unwrap_or_default(),
        }
    }
}

impl EndedDetails {
    /// The end of an execution that was running when its process ended.
    pub fn restarted() -> EndedDetails {
        let error = Some(RESTARTED.into());
        EndedDetails { outcome: Outcome::Failed, error, exit: None, has_panicked: false }
    }

    /// The end that the engine has decided.
    pub fn of(verdict: &Verdict, has_panicked: bool) -> EndedDetails {
        let Verdict { outcome, ref error, exit, .. } = *verdict;
        EndedDetails { outcome, error: error.clone(), exit, has_panicked }
    }

    /// Returns the bytes of the description.
    pub fn encode(&self) -> Vec<u8> {
        let (code, signal) = match self.exit {
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let (outcome, error) = (self.outcome.name(), &self.error);
        let mut details =
            json!({"outcome": outcome, "error": error, "exit_code": code, "exit_signal": signal});
        if self.has_panicked {
            details["has_panicked"] = true.into();
        }
        details.to_string().into_bytes()
    }

    /// Reads a description. A damaged one is a failure that says so.
    pub fn decode(bytes: &[u8]) -> EndedDetails {
        let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let number =
            |name: &str| value[name].as_i64().and_then(|number| i32::try_from(number).ok());
        let code = number("exit_code").map(Exit::Code);
        let exit = code.or_else(|| number("exit_signal").map(Exit::Signal));
        let has_panicked = value["has_panicked"] == true;
        let name = value["outcome"].as_str();
        let Some(outcome) = Outcome::ALL.into_iter().find(|each| Some(each.name()) == name) else {
            let error = Some("the record of its end is damaged".into());
            return EndedDetails { outcome: Outcome::Failed, error, exit, has_panicked };
        };
        EndedDetails { outcome, error: value["error"].as_str().map(shortened), exit, has_panicked }
    }

    /// Returns the end as the engine knows it, behind these chunks.
    pub fn verdict(self, totals: KindTotals) -> Verdict {
        let head_seq = totals.of(crate::stream::Kinds::ALL).chunks;
        let EndedDetails { outcome, error, exit, .. } = self;
        Verdict { outcome, head_seq, totals, error, exit }
    }
}

/// The text within the limit of the engine, because a file may hold anything.
fn shortened(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(limits::ERROR_TEXT_BYTES_MAX)].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_read_again() {
        let anchor = ClockAnchor { wall_us: 1 << 51, mono_ns: u64::MAX };
        for tool in [None, Some("a \"tool\"".into())] {
            for guest in [Value::Null, json!({"owner": "ann", "thread": ["t", 3]})] {
                let has_parts = tool.is_some();
                let (is_relayed, token) = (!has_parts, tool.clone());
                let (deliver, on_full) = (Deliver::WhenDurable, OnFull::Wait);
                let goes_on = GoesOn { ring_bytes: 1 << 16, chunk_bytes: 9, deliver, on_full };
                for goes_on in [None, Some(goes_on)] {
                    let (tool, token, guest) = (tool.clone(), token.clone(), guest.clone());
                    let opened = OpenedDetails {
                        tool,
                        has_parts,
                        is_relayed,
                        token,
                        anchor,
                        goes_on,
                        guest,
                    };
                    assert_eq!(OpenedDetails::decode(&opened.encode()), opened);
                }
            }
        }
        for outcome in Outcome::ALL {
            for exit in [None, Some(Exit::Code(3)), Some(Exit::Signal(9))] {
                let (error, has_panicked) = (Some("no \u{1F622}".into()), exit.is_none());
                let ended = EndedDetails { outcome, error, exit, has_panicked };
                assert_eq!(EndedDetails::decode(&ended.encode()), ended);
            }
        }
    }

    #[test]
    fn a_damaged_description_says_so() {
        for bytes in [&b""[..], b"{", b"[]", b"{\"outcome\":\"lost\"}", b"\xff\xfe"] {
            let ended = EndedDetails::decode(bytes);
            assert_eq!(ended.outcome, Outcome::Failed);
            assert!(ended.error.unwrap().contains("damaged"));
            assert_eq!(OpenedDetails::decode(bytes).tool, None);
        }
        let long = json!({"outcome": "failed", "error": "x".repeat(1 << 20)}).to_string();
        let error = EndedDetails::decode(long.as_bytes()).error.unwrap();
        assert_eq!(error.len(), limits::ERROR_TEXT_BYTES_MAX);
    }
}
