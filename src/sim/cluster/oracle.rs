//! The oracle of the simulated cluster: what executions have published, and what readers were
//! given.

use crate::base::Random;
use crate::cluster::follow::Given;
use crate::cluster::record::{Incarnation, Item, Record};
use crate::journal::block::Position;
use crate::journal::format::ChunkEntry;
use crate::sim::cluster::engine::Engine;
use crate::stream::{GapReason, Kind, KindTotals, Kinds};

/// An execution as the oracle knows it.
pub struct Execution {
    pub owner: usize,
    pub owner_life: Incarnation,
    /// The totals before each chunk, by kind: one more than there are chunks.
    pub totals: Vec<KindTotals>,
    chunks: Vec<(Kind, u32)>,
}

impl Execution {
    pub fn new(owner: usize, owner_life: Incarnation) -> Execution {
        let totals = vec![KindTotals::default()];
        Execution { owner, owner_life, totals, chunks: Vec::new() }
    }

    /// Publishes a chunk.
    pub fn publish(&mut self, kind: Kind, length: u32) -> (ChunkEntry, Vec<u8>) {
        let seq = self.chunks.len() as u64 + 1;
        self.chunks.push((kind, length));
        let mut totals = *self.totals.last().expect("there is always one");
        totals.count(kind, length);
        self.totals.push(totals);
        let (mono_ns, key, flags) = (seq, 0, 0);
        let entry = ChunkEntry { seq, mono_ns, length, kind, key, flags };
        (entry, self.payload(seq))
    }

    /// The payload of a chunk follows from its execution and its number.
    fn payload(&self, seq: u64) -> Vec<u8> {
        let (_, length) = self.chunks[seq as usize - 1];
        let mut bytes = vec![0; length as usize];
        Random::new(self.owner_life.0 ^ seq).fill(&mut bytes);
        bytes
    }

    /// The totals of everything that was published.
    pub fn head(&self) -> &KindTotals {
        self.totals.last().expect("there is always one")
    }

    pub fn published(&self) -> u64 {
        self.chunks.len() as u64
    }
}

/// The deliveries to a reader.
pub struct Transcript {
    position: Position,
    /// The gaps that no record has.
    pub log_gaps: Vec<GapReason>,
    /// Number of chunks in gaps that the mirror has recorded.
    pub own_missed: u64,
    pub end: Option<Vec<u8>>,
    /// The first wrong thing.
    pub wrong: Option<String>,
}

impl Default for Transcript {
    fn default() -> Transcript {
        let (log_gaps, own_missed, end, wrong) = (Vec::new(), 0, None, None);
        Transcript { position: Position::new(0), log_gaps, own_missed, end, wrong }
    }
}

impl Transcript {
    pub fn chunks(&self) -> u64 {
        self.position.all.chunks
    }

    /// Takes what a reader was given, and checks it. Returns numbers for the hash of the run.
    pub fn take(&mut self, execution: &Execution, given: &Given<'_>) -> (u64, u64) {
        let result = match given {
            _ if self.end.is_some() => Err(format!("{given:?} behind the end")),
            Given::Gap(gap) => {
                self.log_gaps.push(gap.reason);
                let is_next = gap.before == self.position.totals;
                let passed = self.pass_gap(execution, &gap.after);
                passed.and_then(|()| is_next.then_some(()).ok_or(format!("{gap:?} is elsewhere")))
            }
            Given::Item(Item::Gap { after, .. }) => {
                let before = self.position.all.chunks;
                let passed = self.pass_gap(execution, after);
                self.own_missed += self.position.all.chunks - before;
                passed
            }
            Given::Item(Item::Chunks(run)) => run.chunks().try_for_each(|chunk| match chunk {
                Ok(chunk) => self.pass_chunk(execution, &chunk.entry, chunk.payload),
                Err(unreadable) => Err(format!("{unreadable:?}")),
            }),
            Given::Item(Item::Note(_)) => Ok(()),
            Given::Item(Item::End(details)) => {
                self.end = Some(details.to_vec());
                Ok(())
            }
        };
        if let Err(text) = result {
            self.wrong.get_or_insert(text);
        }
        let end = self.end.as_ref().map_or(0, |end| 1 + u64::from(crc32c::crc32c(end)));
        (self.position.all.chunks << 32 | self.position.all.bytes, end)
    }

    fn pass_gap(&mut self, execution: &Execution, after: &KindTotals) -> Result<(), String> {
        let all = after.of(Kinds::ALL);
        let right = execution.totals.get(all.chunks as usize);
        if right != Some(after) || all.chunks <= self.position.all.chunks {
            return Err(format!("a gap to {after:?}, where {right:?} is right"));
        }
        (self.position.totals, self.position.all) = (*after, all);
        Ok(())
    }

    fn pass_chunk(
        &mut self,
        execution: &Execution,
        entry: &ChunkEntry,
        payload: &[u8],
    ) -> Result<(), String> {
        if entry.seq != self.position.next_seq() || entry.seq > execution.published() {
            return Err(format!("{entry:?} where {} is next", self.position.next_seq()));
        }
        if payload != execution.payload(entry.seq) {
            return Err(format!("other bytes in {entry:?}"));
        }
        self.position.pass(entry);
        Ok(())
    }
}

/// Checks the log of an execution in an engine that has lost and damaged nothing. All records have
/// to follow each other, and the end is the last one.
///
/// # Errors
/// The first wrong record.
pub fn check_log(engine: &Engine, number: usize, execution: &Execution) -> Result<(), String> {
    let (mut next, mut position, mut has_ended) = (0, Position::new(0), false);
    for (place, message) in &engine.messages {
        if message.execution != number {
            continue;
        }
        let record = Record::decode(&message.bytes);
        let record = record.map_err(|damage| format!("place {place}: {damage:?}"))?;
        let header = record.header;
        if has_ended {
            return Err(format!("execution {number}, place {place}: {header:?} behind the end"));
        }
        if header.number != next || record.before != position {
            return Err(format!("execution {number}, place {place}: {header:?}, {next} is next"));
        }
        if !header.is_closer && header.incarnation != execution.owner_life {
            return Err(format!("execution {number}, place {place}: of a stranger"));
        }
        (next, position, has_ended) = (next + 1, record.after, header.is_last);
    }
    Ok(())
}
