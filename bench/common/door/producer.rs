//! The process that publishes: it makes a producer, says `ready`, waits for `go` and the moment at
//! which the plan begins, publishes, and says what that was.

use std::sync::mpsc::Receiver;

use serde_json::{Value, json};

use super::carrier::{Carrier, Produce};
use super::child::{parent_lines, say};
use super::load::Load;
use crate::common::Failure;
use crate::common::drive::{flat_out, open_loop};
use crate::common::machine::{pin_thread, preemption_count};
use crate::common::params::Rate;
use crate::common::source::{Source, Tally};

/// What a producer's first line begins with.
pub const READY: &str = "ready";
/// What the answer begins with, in front of the origin of the plan.
pub const GO: &str = "go";
/// What it is told when it may leave.
pub const END: &str = "end";
/// What its last line begins with.
pub const PUBLISHED: &str = "published";

/// What the producer's process found.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// What was published.
    pub tally: Tally,
    /// How often the kernel ran somebody else instead.
    pub preemptions: u64,
}

/// The whole of the process, with the words of the host.
///
/// # Errors
/// [`Failure`].
pub fn run<C: Carrier>(load: &Load, words: &[String]) -> Result<(), Failure> {
    let lines = parent_lines();
    pin_thread(load.plan.producer_cpu)?;
    let (producer, said) = C::producer(load, words)?;
    say(&format!("{READY} {said}"));
    let line = lines.recv().map_err(|_| Failure::Failed("nobody says when to begin".into()))?;
    let origin = line.strip_prefix(GO).and_then(|rest| rest.trim().parse().ok());
    let origin_ns: u64 =
        origin.ok_or_else(|| Failure::Failed(format!("\"{line}\" is no moment to begin")))?;
    match load.plan.rate {
        Rate::PerSecond(rate) => {
            let mut source = open_loop(&load.plan, rate);
            source.begin_at(origin_ns);
            publish(producer, source, &lines)
        }
        Rate::Max => publish(producer, flat_out(&load.plan), &lines),
    }
    .map_err(Failure::Failed)
}

fn publish(
    mut producer: impl Produce,
    mut source: impl Source,
    lines: &Receiver<String>,
) -> Result<(), String> {
    let before = preemption_count();
    while let Some((payload, count)) = source.next() {
        producer.publish(payload, count)?;
    }
    let preemptions = preemption_count() - before;
    let published = Published { tally: source.tally(), preemptions };
    producer.finish()?;
    say(&format!("{PUBLISHED} {}", published.to_line()));
    let _ = lines.recv(); // Until the readers have all of it: memory may be shared with them.
    Ok(())
}

impl Published {
    fn to_line(self) -> String {
        let Tally { published_chunks, stamp_sum, warmup_chunks, start_ns, end_ns } = self.tally;
        json!({
            "published_chunks": published_chunks,
            "stamp_sum": stamp_sum,
            "warmup_chunks": warmup_chunks,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "preemptions": self.preemptions,
        })
        .to_string()
    }

    /// Out of the line of a producer; `None` if it is not one.
    pub fn parse(line: &str) -> Option<Published> {
        let value: Value = serde_json::from_str(line).ok()?;
        let number = |name: &str| value[name].as_u64();
        let tally = Tally {
            published_chunks: number("published_chunks")?,
            stamp_sum: number("stamp_sum")?,
            warmup_chunks: number("warmup_chunks")?,
            start_ns: number("start_ns")?,
            end_ns: number("end_ns")?,
        };
        Some(Published { tally, preemptions: number("preemptions")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_published_is_a_line_that_is_read_back() {
        let tally = Tally {
            published_chunks: 1,
            stamp_sum: u64::MAX,
            warmup_chunks: 2,
            start_ns: 3,
            end_ns: 1 << 60,
        };
        let published = Published { tally, preemptions: 4 };
        let again = Published::parse(&published.to_line()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{published:?}"));
        assert!(Published::parse("nothing").is_none());
    }
}
