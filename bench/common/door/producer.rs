//! The process that publishes. It creates a producer, sends `ready`, and waits for `go` with the
//! start of the plan. Then it publishes, and reports the totals.

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

/// The first word of a producer's first line.
pub const READY: &str = "ready";
/// The first word of the reply. The origin of the plan follows it.
pub const GO: &str = "go";
/// The line that lets the producer exit.
pub const END: &str = "end";
/// The first word of its last line.
pub const PUBLISHED: &str = "published";

/// The result of the producer's process.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// The totals of the load.
    pub tally: Tally,
    /// Number of preemptions by the kernel.
    pub preemptions: u64,
}

/// Runs the whole process, with the words of the host.
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
        origin.ok_or_else(|| Failure::Failed(format!("\"{line}\" is not a time to begin")))?;
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
    let _ = lines.recv(); // The readers need its memory until they have everything.
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

    /// Parses the line of a producer. Returns `None` if it is not one.
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
