//! A tool with one chunk, whose stamp is its time of creation. It measures the time from a call to
//! the first chunk.

use std::time::Duration;

use streamdoor::base::Instant;
use streamdoor::tool::{Context, Need, Step, Tool, ToolError, ToolSpec, Work};

use crate::common::serve::plan::{payload, stamp};

/// The name of the tool.
pub const TOOL: &str = "first";
/// Time between the last chunk and the end.
pub const LINGER: Duration = Duration::from_millis(2);
const SIZE_BYTES: usize = 100;

/// Returns the description of the tool.
pub fn spec() -> ToolSpec {
    ToolSpec::new(TOOL, "Publishes one chunk at once.")
}

/// Returns the work of the tool.
pub fn work() -> (Work, Need) {
    (Work::Steps(Box::new(First { until: None })), Need::default())
}

struct First {
    /// The time of its end, once the chunk was published.
    until: Option<Instant>,
}

impl Tool for First {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        let now = context.now();
        match self.until {
            None => {
                let mut data = payload(SIZE_BYTES);
                stamp(&mut data, now.nanos());
                if context.emit(&data).is_err() {
                    return Step::Failed(ToolError::new("there is no room for one chunk"));
                }
                self.until = Some(now + LINGER);
                Step::Sleep(now + LINGER)
            }
            Some(until) if now < until => Step::Sleep(until),
            Some(_) => Step::Done,
        }
    }
}
