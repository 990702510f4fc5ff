//! The facts about simulated executions of other nodes, and everything that subscribers were told.

use crate::base::{ExecutionId, Instant, Random};
use crate::cluster::record::{Incarnation, Item, Record};
use crate::journal::format::ChunkEntry;
use crate::memory::{CHUNK_MORE, ClockAnchor};
use crate::shard::journal::EndedDetails;
use crate::stream::{GapReason, Kind, KindTotals, Kinds, Totals};

/// The events of a seed, each with its count.
pub const HAPPENINGS: [&str; 32] = [
    "away",
    "chunks",
    "closed",
    "damaged",
    "detached",
    "discarded",
    "dismissed",
    "elsewhere",
    "at the door",
    "ended when found",
    "ends",
    "executions",
    "followers",
    "forgot",
    "found again",
    "gap: conflated",
    "gap: corrupt",
    "gap: expired",
    "gap: lag",
    "gap: late",
    "gap: overtaken",
    "gap: unwritten",
    "given",
    "looked up",
    "no place",
    "no room",
    "not yet",
    "nowhere",
    "old parts",
    "progress",
    "reads",
    "unsent",
];

/// A chunk that was published.
pub struct Published {
    pub entry: ChunkEntry,
    pub payload: Box<[u8]>,
}

/// An execution of another node.
pub struct Execution {
    pub id: ExecutionId,
    pub owner: Incarnation,
    /// The clocks of its owner.
    pub anchor: ClockAnchor,
    pub ring_bytes: u32,
    /// The longest chunk, as its entry says. It may be wrong.
    pub chunk_bytes: u32,
    /// Number of chunks that its tool has announced.
    pub expected: Option<u64>,
    pub chunks: Vec<Published>,
    /// The totals before each chunk, by kind: one more than there are chunks.
    pub totals: Vec<KindTotals>,
    /// The gaps that records of the log have.
    pub gaps: Vec<(u64, u64, GapReason)>,
    /// The ends that the log has had, and the totals of all chunks before each.
    pub ends: Vec<(EndedDetails, KindTotals)>,
}

impl Execution {
    pub fn new(number: usize, anchor: ClockAnchor, random: &mut Random) -> Execution {
        let slot = crate::base::Handle { index: number as u32, generation: 7 };
        Execution {
            id: ExecutionId { shard: 0, slot, nonce: random.next_u64() },
            owner: Incarnation(random.next_u64()),
            anchor,
            ring_bytes: 1 << random.between(12, 17),
            chunk_bytes: if random.chance(2, 3) { 30_000 } else { 100 },
            expected: None,
            chunks: Vec::new(),
            totals: vec![KindTotals::default()],
            gaps: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Publishes a chunk of any content.
    pub fn publish(&mut self, kind: Kind, length: u32, now: Instant, random: &mut Random) {
        let seq = self.chunks.len() as u64 + 1;
        let mut payload = vec![0; length as usize];
        let word = random.next_u64().to_le_bytes();
        for (at, bytes) in payload.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&word[..bytes.len()]);
            bytes[0] ^= at as u8;
        }
        let mono_ns = self.anchor.mono_ns + now.nanos();
        let flags = if random.chance(1, 4) { CHUNK_MORE } else { 0 };
        let key = random.below(64) as u8;
        let entry = ChunkEntry { seq, mono_ns, length, kind, key, flags };
        let mut totals = *self.head();
        totals.count(kind, length);
        self.totals.push(totals);
        self.chunks.push(Published { entry, payload: payload.into() });
    }

    /// The totals of everything that was published, by kind.
    pub fn head(&self) -> &KindTotals {
        self.totals.last().expect("there is always one")
    }

    /// The totals of the chunks of these kinds from `from_seq` to before `until_seq`.
    pub fn between(&self, kinds: Kinds, from_seq: u64, until_seq: u64) -> Totals {
        let before = |seq: u64| self.totals[(seq.max(1) as usize - 1).min(self.chunks.len())];
        before(until_seq.max(from_seq)).of(kinds) - before(from_seq).of(kinds)
    }

    /// Notes what a stored record says.
    pub fn note_record(&mut self, bytes: &[u8]) {
        let record = Record::decode(bytes).expect("a machine has made it");
        for item in record.items() {
            if let Item::Gap { before, after, reason } = item {
                let seqs = (before.of(Kinds::ALL).chunks + 1, after.of(Kinds::ALL).chunks);
                self.gaps.push((seqs.0, seqs.1, reason));
            }
        }
        if let Some(end) = record.end() {
            self.ends.push((EndedDetails::decode(end), record.after.totals));
        }
    }

    /// True if a record has a gap for this reason with the chunk in it.
    pub fn has_gap(&self, seq: u64, reason: GapReason) -> bool {
        self.gaps
            .iter()
            .any(|&(from_seq, to_seq, other)| (from_seq..=to_seq).contains(&seq) && other == reason)
    }

    /// True if a record has a gap with this chunk in it.
    pub fn is_in_gap(&self, seq: u64) -> bool {
        self.gaps.iter().any(|&(from_seq, to_seq, _)| (from_seq..=to_seq).contains(&seq))
    }

    /// True if a record has a gap that begins before this chunk and contains it.
    pub fn is_within_gap(&self, seq: u64) -> bool {
        self.gaps.iter().any(|&(from_seq, to_seq, _)| from_seq < seq && seq <= to_seq)
    }
}

/// Everything that the node and the subscribers share.
pub struct Ledger {
    pub executions: Vec<Execution>,
    /// True if the logs keep what they have acknowledged.
    pub keeps: bool,
    pub hash: u64,
    pub counts: Vec<(&'static str, u64)>,
    pub failure: Option<String>,
}

impl Ledger {
    pub fn new(seed: u64, keeps: bool) -> Ledger {
        let counts = HAPPENINGS.iter().map(|name| (*name, 0)).collect();
        Ledger { executions: Vec::new(), keeps, hash: seed, counts, failure: None }
    }

    pub fn count(&mut self, name: &'static str, by: u64) {
        let found = self.counts.iter_mut().find(|(other, _)| *other == name);
        found.expect("it is listed").1 += by;
    }

    pub fn counted(&self, name: &str) -> u64 {
        self.counts.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count)
    }

    pub fn note(&mut self, number: u64) {
        self.hash = (self.hash.rotate_left(7) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
