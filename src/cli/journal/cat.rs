//! `streamdoor journal cat`: the results of one execution of a journal.

use std::io::{self, ErrorKind, IsTerminal};
use std::path::Path;

use streamdoor::base::{ExecutionId, Instant};
use streamdoor::journal::format::KeptChunk;
use streamdoor::journal::look::{Loss, Lost, Output, Sink as Receiver};
use streamdoor::stream::Kinds;
use streamdoor::wire::events::{ChunkEvent, WireEvent};

use super::super::CliError;
use super::super::console::print_err;
use super::super::output::Destination;
use super::super::progress::{Meter, Style};
use super::super::sink::{Sink, View};
use super::super::words::{counted, with_separators};
use super::folder;

/// Number of stretches that a line names.
const STRETCHES_TOLD_MAX: usize = 8;

/// Writes the results of an execution to standard output.
pub fn run(folder: &Path, execution: ExecutionId, kinds: Kinds) -> Result<(), CliError> {
    for mut shard in folder::open(folder)? {
        let failed = |error| folder::failure(&shard.path, &error);
        let listing = shard.look.list().map_err(failed)?;
        let of_id = listing.executions.iter().find(|each| each.id == execution.to_bits());
        let Some(number) = of_id.map(|listed| listed.number) else { continue };
        let view = if io::stdout().is_terminal() { View::Terminal } else { View::Raw };
        let file = Destination::Stdout.open()?.map(|file| (file, view));
        let sink = Sink::new(Meter::new(Style::Off), kinds, file);
        let name = execution.to_string();
        let mut printer = Printer { sink, name, missing: [0; 3], is_exact: true };
        let summary = shard.look.output(Output { number, kinds }, &mut printer).map_err(failed)?;
        match printer.sink.close() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(CliError::Failed(format!("standard output: {error}"))),
            Ok(()) => {}
        }
        if summary.is_end_unsure && !summary.has_ended {
            let text = "damage follows the last chunk that was found, so more may be missing";
            print_err!("streamdoor: {text}");
        }
        return printer.verdict(summary.is_end_unsure && !summary.has_ended);
    }
    let folder = folder.display();
    Err(CliError::Failed(format!("{folder}: the journal has no execution {execution}")))
}

/// Writes chunks to the output, and losses to standard error.
struct Printer {
    sink: Sink,
    name: String,
    /// Number of missing chunks for each reason.
    missing: [u64; REASONS.len()],
    is_exact: bool,
}

const REASONS: [Lost; 3] = [Lost::Corrupt, Lost::Unwritten, Lost::Expired];

impl Receiver for Printer {
    fn chunk(&mut self, chunk: &KeptChunk<'_>) {
        let event = WireEvent::Chunk(ChunkEvent {
            execution: &self.name,
            seq: chunk.entry.seq,
            total_chunks: None,
            kind: chunk.entry.kind.name(),
            key: Some(chunk.entry.key),
            offset: 0, // These three are not shown.
            data: chunk.payload,
            timestamp_us: 0,
            mono_ns: chunk.entry.mono_ns,
        });
        self.sink.take(&event, false, Instant::ZERO);
    }

    fn loss(&mut self, loss: &Loss) {
        let at = REASONS.iter().position(|reason| *reason == loss.reason).expect("one of three");
        self.missing[at] += loss.chunks;
        self.is_exact &= loss.is_exact;
        self.sink.flush(); // On a terminal, the line follows the chunks before it.
        print_err!("streamdoor: {}", in_words(loss));
    }

    fn is_closed(&self) -> bool {
        self.sink.has_failed()
    }
}

impl Printer {
    fn verdict(&self, is_end_unsure: bool) -> Result<(), CliError> {
        let sum: u64 = self.missing.iter().sum();
        if sum == 0 {
            return match is_end_unsure {
                true => Err(CliError::Told),
                false => Ok(()),
            };
        }
        let counts = REASONS.iter().zip(self.missing).filter(|(_, count)| *count > 0);
        let parts: Vec<String> = counts
            .map(|(reason, count)| format!("{} {}", with_separators(count), reason.name()))
            .collect();
        let most = if self.is_exact { "" } else { "at most " };
        let are = if sum == 1 { "is" } else { "are" };
        let sum = counted(sum, "chunk");
        Err(CliError::Failed(format!("{most}{sum} {are} missing: {}", parts.join(", "))))
    }
}

/// Returns a loss as `chunks 5, 7 to 9 are missing: corrupt (4 chunks, 120 bytes)`.
fn in_words(loss: &Loss) -> String {
    let told = loss.stretches.iter().take(STRETCHES_TOLD_MAX);
    let mut stretches: Vec<String> = told
        .map(|(from, until)| match until - from {
            1 => from.to_string(),
            _ => format!("{from} to {}", until - 1),
        })
        .collect();
    if loss.stretches.len() > STRETCHES_TOLD_MAX {
        stretches.push("more".to_owned());
    }
    let is_one = matches!(loss.stretches[..], [(from, until)] if until - from == 1);
    let (chunk, are) = if is_one { ("chunk", "is") } else { ("chunks", "are") };
    let (stretches, reason) = (stretches.join(", "), loss.reason.name());
    let most = if loss.is_exact { "" } else { "at most " };
    let mut counts = format!("{most}{}", counted(loss.chunks, "chunk"));
    if let Some(bytes) = loss.bytes {
        counts += &format!(", {}", counted(bytes, "byte"));
    }
    format!("{chunk} {stretches} {are} missing: {reason} ({counts})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_with_its_reason_and_exact_counts() {
        let loss = |stretches: &[(u64, u64)], chunks, bytes| Loss {
            reason: Lost::Corrupt,
            stretches: stretches.to_vec(),
            chunks,
            bytes,
            is_exact: bytes.is_some(),
        };
        let cases = [
            (loss(&[(5, 6)], 1, Some(9)), "chunk 5 is missing: corrupt (1 chunk, 9 bytes)"),
            (
                loss(&[(5, 6), (7, 1_010)], 1_004, Some(1)),
                "chunks 5, 7 to 1009 are missing: corrupt (1,004 chunks, 1 byte)",
            ),
            (loss(&[(5, 7)], 2, None), "chunks 5 to 6 are missing: corrupt (at most 2 chunks)"),
        ];
        for (loss, expected) in cases {
            assert_eq!(in_words(&loss), expected);
        }
    }
}
