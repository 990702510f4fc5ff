//! The request for a list of executions: its filter, its limit and its place.
//!
//! The list is in the order of creation, and of ids for equal times. A place in it is the time and
//! the id of one execution. It stays valid after that execution is forgotten.

use std::fmt;

use serde_json::{Value, json};

use crate::base::ExecutionId;
use crate::limits;
use crate::stream::ExecutionState;
use crate::trace::rfc3339;
use crate::wire::durable::parse_time;

/// The request for a list of executions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListAsk {
    /// The tool of the executions; `None`: any.
    pub tool: Option<Box<str>>,
    /// The state of the executions; `None`: any.
    pub state: Option<ExecutionState>,
    /// Maximum number of executions.
    pub limit: u32,
    /// The place after which the list begins; `None`: the first execution.
    pub after: Option<ListPlace>,
    /// The servers whose executions are listed.
    pub scope: ListScope,
}

/// The servers whose executions a list has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListScope {
    /// The one that is asked, with the executions of others that are followed there.
    #[default]
    Server,
    /// All nodes of the cluster, each with its own executions.
    Cluster,
}

impl ListScope {
    const ALL: [ListScope; 2] = [ListScope::Server, ListScope::Cluster];

    /// Its name in requests.
    pub fn name(self) -> &'static str {
        SCOPE_NAMES[self as usize]
    }

    pub(super) fn named(name: &str) -> Option<ListScope> {
        ListScope::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

/// The names of all scopes.
pub(super) const SCOPE_NAMES: &[&str] = &["server", "cluster"];

/// A place in the list. Clients get it as an opaque text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPlace {
    /// The time of creation, in microseconds since 1970.
    pub created_us: u64,
    /// The id of the execution.
    pub execution: ExecutionId,
}

/// The names of all states.
pub(super) const STATE_NAMES: &[&str] =
    &["queued", "running", "draining", "completed", "failed", "cancelled", "timed_out"];

/// Number of digits of a time in the text of a place: those of `2026-01-02T03:04:05.678901Z`.
const TIME_DIGITS: usize = 20;
/// Number of characters of an id.
const ID_CHARS: usize = 26;

impl Default for ListAsk {
    fn default() -> ListAsk {
        let limit = limits::LISTED_EXECUTIONS_MAX;
        ListAsk { tool: None, state: None, limit, after: None, scope: ListScope::Server }
    }
}

impl ListAsk {
    /// Returns the request as another node gets it. The reply fits into one message of NATS.
    pub fn to_json(&self) -> Value {
        json!({
            "tool": self.tool,
            "state": self.state.map(ExecutionState::name),
            "limit": self.limit,
            "after": self.after.map(|place| place.to_string()),
        })
    }

    /// Reads a request of another node; `None` if it is none.
    pub fn of_json(value: &Value) -> Option<ListAsk> {
        let text = |name: &str| value[name].as_str();
        let state = |name: &str| ExecutionState::ALL.into_iter().find(|one| one.name() == name);
        let limit = u32::try_from(value["limit"].as_u64()?).ok()?;
        Some(ListAsk {
            tool: text("tool").map(Box::from),
            state: text("state").map(|name| state(name).ok_or(())).transpose().ok()?,
            limit: limit.clamp(1, limits::CLUSTER_LISTED_MAX),
            after: text("after").map(|text| ListPlace::parse(text).ok_or(())).transpose().ok()?,
            scope: ListScope::Cluster,
        })
    }

    /// True if the list has executions of this tool in this state.
    pub fn takes(&self, tool: &str, state: ExecutionState) -> bool {
        let is_tool = self.tool.as_deref().is_none_or(|name| name == tool);
        is_tool && self.state.is_none_or(|wanted| wanted == state)
    }
}

impl ListPlace {
    /// Reads the text of a place. `None` if no place has this text.
    pub(super) fn parse(text: &str) -> Option<ListPlace> {
        let (time, execution) = text.split_at_checked(TIME_DIGITS)?;
        if execution.len() != ID_CHARS || !time.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let part = |at: std::ops::Range<usize>| &time[at];
        let created_at = format!(
            "{}-{}-{}T{}:{}:{}.{}Z",
            part(0..4),
            part(4..6),
            part(6..8),
            part(8..10),
            part(10..12),
            part(12..14),
            part(14..20)
        );
        let created_us = parse_time(&created_at)?;
        Some(ListPlace { created_us, execution: execution.parse().ok()? })
    }
}

impl fmt::Display for ListPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for digit in rfc3339(self.created_us).chars().filter(char::is_ascii_digit) {
            write!(out, "{digit}")?;
        }
        self.execution.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::call_tests::id;

    #[test]
    fn a_place_is_read_as_it_was_written_and_keeps_the_order() {
        let mut last: Option<(ListPlace, String)> = None;
        for wall_us in [0, 1, 999_999, 1_767_225_600_000_001, 253_402_300_799_999_999] {
            for execution in [id(1), id(2)] {
                let place = ListPlace { created_us: wall_us, execution };
                let text = place.to_string();
                assert_eq!(ListPlace::parse(&text), Some(place), "{text}");
                if let Some((earlier, earlier_text)) = last.take() {
                    assert_eq!(earlier.cmp(&place), earlier_text.cmp(&text));
                }
                last = Some((place, text));
            }
        }
        let text = last.unwrap().1;
        let cut = &text[1..];
        for wrong in ["", "x", cut, &format!("{text}0"), &text.replace('9', "x"), "\u{e4}"] {
            assert_eq!(ListPlace::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_request_to_another_node_is_read_as_it_was_written_and_nothing_else_is() {
        let after = Some(ListPlace { created_us: 7, execution: id(3) });
        let ask = ListAsk {
            tool: Some("t".into()),
            state: Some(ExecutionState::Running),
            limit: 5,
            after,
            scope: ListScope::Cluster,
        };
        assert_eq!(ListAsk::of_json(&ask.to_json()), Some(ask.clone()));
        let plain = ListAsk { limit: 1, scope: ListScope::Cluster, ..ListAsk::default() };
        assert_eq!(ListAsk::of_json(&plain.to_json()), Some(plain));
        let many = ListAsk { limit: u32::MAX, ..ask.clone() };
        let read = ListAsk::of_json(&many.to_json()).unwrap();
        assert_eq!(read.limit, limits::CLUSTER_LISTED_MAX);
        for (name, wrong) in [("state", json!("x")), ("after", json!("x")), ("limit", json!(-1))] {
            let mut value = ask.to_json();
            value[name] = wrong;
            assert_eq!(ListAsk::of_json(&value), None, "{name}");
        }
    }

    #[test]
    fn the_names_are_those_of_the_states() {
        assert!(
            ExecutionState::ALL.iter().map(|state| state.name()).eq(STATE_NAMES.iter().copied())
        );
    }
}
