//! Counts of the ended executions of one shard, by tool and outcome, with their durations.
//!
//! The names of tools come from clients, so the number of names that are counted apart is limited.
//! Executions of further tools, and those without a tool, share one row.

use std::time::Duration;

use crate::limits;
use crate::stream::Outcome;
use crate::trace::Latency;

/// The counts of ended executions: see the module's text.
#[derive(Debug, Default)]
pub struct EndedExecutions {
    /// The rows of tools, in the order of their first end.
    tools: Vec<(Box<str>, EndedCounts)>,
    others: EndedCounts,
}

/// The counts of one tool's ended executions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedCounts {
    /// Number of executions by outcome, in the order of [`Outcome::ALL`].
    pub by_outcome: [u64; Outcome::ALL.len()],
    /// The durations from the request to the end.
    pub durations: Latency,
}

impl EndedExecutions {
    /// The name of the row for everything that has none of its own. No tool can have it.
    pub const OTHERS: &str = "(other)";

    /// Counts an execution that has ended after `took`.
    pub(in crate::server) fn count(
        &mut self,
        tool: Option<&str>,
        outcome: Outcome,
        took: Duration,
    ) {
        let counts = self.row(tool);
        counts.by_outcome[outcome as usize] += 1;
        counts.durations.record(took.as_nanos().try_into().unwrap_or(u64::MAX), 1);
    }

    fn row(&mut self, tool: Option<&str>) -> &mut EndedCounts {
        let Some(tool) = tool else { return &mut self.others };
        let at = self.tools.iter().position(|(known, _)| **known == *tool);
        let at = match at {
            Some(at) => at,
            None if self.tools.len() == limits::TOOLS_COUNTED_MAX => return &mut self.others,
            None => {
                self.tools.push((tool.into(), EndedCounts::default()));
                self.tools.len() - 1
            }
        };
        &mut self.tools[at].1
    }

    /// Returns the rows with their names, without those that count nothing.
    pub(in crate::server) fn rows(&self) -> Vec<(String, EndedCounts)> {
        let named = self.tools.iter().map(|(tool, counts)| (tool.to_string(), *counts));
        let others = [(EndedExecutions::OTHERS.to_owned(), self.others)].into_iter();
        let has_any = |(_, counts): &(String, EndedCounts)| counts.by_outcome != [0; 4];
        named.chain(others).filter(has_any).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_has_a_row_until_there_are_too_many() {
        let mut ended = EndedExecutions::default();
        assert!(ended.rows().is_empty());
        let took = Duration::from_micros(3);
        ended.count(Some("echo"), Outcome::Completed, took);
        ended.count(Some("echo"), Outcome::Failed, took);
        ended.count(Some("slow"), Outcome::Cancelled, took);
        ended.count(None, Outcome::TimedOut, took);
        let rows = ended.rows();
        let names: Vec<&str> = rows.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["echo", "slow", EndedExecutions::OTHERS]);
        assert_eq!(rows[0].1.by_outcome, [1, 1, 0, 0], "one row for tools of one name");
        assert_eq!(rows[0].1.durations.sum_ns, 6_000);
        assert_eq!(rows[2].1.by_outcome, [0, 0, 0, 1]);

        for number in 0..2 * limits::TOOLS_COUNTED_MAX {
            ended.count(Some(&format!("tool_{number}")), Outcome::Completed, took);
        }
        let rows = ended.rows();
        assert_eq!(rows.len(), limits::TOOLS_COUNTED_MAX + 1);
        let all: u64 = rows.iter().flat_map(|(_, counts)| counts.by_outcome).sum();
        assert_eq!(all, 4 + 2 * limits::TOOLS_COUNTED_MAX as u64, "none is forgotten");
    }
}
