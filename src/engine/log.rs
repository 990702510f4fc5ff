//! One execution's log as numbers: the engine's own record of what its ring holds.
//!
//! The engine never reads shared memory. It stores the reported metadata of each chunk here, with
//! one entry per descriptor of the ring. Gaps and limits are therefore computed from numbers that
//! no other process can write.
//!
//! Chunks can also be *passed over*: only their number and their bytes are noted. They count as
//! given up, and as of the kind before them, until [`ChunkLog::found`] corrects both.
//!
//! The log of an execution that is kept on disk also knows how far back the disk goes.
//!
//! Invariants ([`ChunkLog::audit`]):
//! - G1: `tail_seq <= head_seq + 1`, and at most as many chunks are held as there are slots.
//! - G2: totals before the tail plus held chunks are the totals through the head, for each kind.
//! - G3: held chunks from `alike_from` on are all of kind `alike`.
//! - G4: the oldest chunk on disk never moves back.

use crate::engine::event::ChunkFacts;
use crate::engine::policy::{Cursor, Log, NOT_KEPT};
use crate::limits;
use crate::stream::{Kind, KindTotals, Kinds, Meta, Totals};

/// The metadata of the chunks that a ring holds.
#[derive(Debug)]
pub struct ChunkLog {
    /// One entry per descriptor that was ever used, in the order of the first lap, and for those of
    /// passed chunks before it. Memory for all of them is allocated at once.
    slots: Vec<Meta>,
    mask: u64,
    head_seq: u64,
    tail_seq: u64,
    total_bytes: u64,
    before_tail: KindTotals,
    /// The kind of the newest chunks, and the first of these chunks. They are given up in one step.
    alike: Kind,
    alike_from: u64,
    /// Kept only once a subscriber filters by kind: see [`ChunkLog::keep_kind_totals`].
    through_head: Option<Box<KindTotals>>,
    /// The oldest chunk on disk, if the execution is kept.
    kept: Option<Box<Kept>>,
    /// The maximum number of chunks of one delivery, and of payload bytes behind its first chunk.
    delivery_max: (u64, u64),
}

/// The oldest chunk on disk, and the totals of all chunks before it.
#[derive(Debug)]
struct Kept {
    from_seq: u64,
    before: KindTotals,
}

/// The bounds of a delivery, where no subscriber needs smaller ones.
const DELIVERY_MAX: (u64, u64) = (limits::DELIVERY_CHUNKS_MAX as u64, limits::DELIVERY_BYTES_MAX);

const _: () = {
    assert!(DELIVERY_MAX.0 > 0); // Each delivery has a chunk.
    assert!(size_of::<Meta>() == 16); // Four of them are a cache line.
    assert!(Kind::ALL.len() <= limits::KINDS_MAX);
};

impl ChunkLog {
    /// Creates an empty log of a ring with `slot_count` descriptors, a power of two.
    pub fn new(slot_count: u32) -> ChunkLog {
        assert!(slot_count.is_power_of_two());
        ChunkLog {
            slots: Vec::with_capacity(slot_count as usize),
            mask: u64::from(slot_count) - 1,
            head_seq: 0,
            tail_seq: 1,
            total_bytes: 0,
            before_tail: KindTotals::default(),
            alike: Kind::default(),
            alike_from: 1,
            through_head: None,
            kept: None,
            delivery_max: DELIVERY_MAX,
        }
    }

    /// Creates a log without a ring, which holds no chunks.
    pub fn detached() -> ChunkLog {
        ChunkLog::new(1)
    }

    /// Notes that the disk holds every chunk from the first. Nothing was published yet.
    pub fn keep(&mut self) {
        assert!(self.head_seq == 0);
        self.kept = Some(Box::new(Kept { from_seq: 1, before: KindTotals::default() }));
    }

    /// Notes that the disk holds no chunk before `from_seq` any more. `before` are the totals of
    /// all these chunks.
    pub fn keep_from(&mut self, from_seq: u64, before: &KindTotals) {
        let kept = self.kept.as_mut().expect("only an execution that is kept is on disk");
        assert!(from_seq >= kept.from_seq); // G4
        assert!(from_seq <= self.head_seq + 1);
        assert!(before.of(Kinds::ALL).chunks == from_seq - 1); // P2
        **kept = Kept { from_seq, before: *before };
    }

    /// True if the disk holds chunks.
    pub fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Makes room for a ring with `slot_count` descriptors, which is more than before.
    pub fn grow(&mut self, slot_count: u32) {
        assert!(slot_count.is_power_of_two());
        assert!(u64::from(slot_count) > self.mask + 1);
        let mut slots = Vec::with_capacity(slot_count as usize);
        let mask = u64::from(slot_count) - 1;
        // Slots of chunks that are gone are filled with something, as after a lap.
        let used = self.head_seq.min(u64::from(slot_count)) as usize;
        slots.resize(used, Meta::default());
        for seq in self.tail_seq..=self.head_seq {
            slots[((seq - 1) & mask) as usize] = self.meta(seq);
        }
        (self.slots, self.mask) = (slots, mask);
        self.audit();
    }

    /// Notes the next chunk, and that everything before `facts.tail_seq` is gone.
    #[inline(always)] // One chunk or many is known in `Engine::published`.
    pub fn push(&mut self, facts: ChunkFacts) {
        self.give_up_before(facts.tail_seq);
        self.head_seq += 1;
        assert!(self.head_seq - self.tail_seq <= self.mask); // The ring has as many slots.
        self.total_bytes += u64::from(facts.length);
        if facts.kind != self.alike {
            (self.alike, self.alike_from) = (facts.kind, self.head_seq);
        }
        if let Some(totals) = &mut self.through_head {
            totals.count(facts.kind, facts.length);
        }
        let meta = Meta {
            total_bytes: self.total_bytes,
            length: facts.length,
            kind: facts.kind,
            key: facts.key,
        };
        let index = self.index(self.head_seq);
        match self.slots.get_mut(index) {
            Some(slot) => *slot = meta,
            None => {
                assert!(index as u64 <= self.mask); // There is room for it.
                self.slots.resize(index, Meta::default()); // The first lap is in order.
                self.slots.push(meta);
            }
        }
    }

    /// Notes that chunks were published, `through` being the totals of all from the first. Nothing
    /// is known about each of them, so they count as gone.
    pub fn pass_over(&mut self, through: Totals) {
        assert!(through.chunks > self.head_seq);
        assert!(through.bytes >= self.total_bytes);
        self.give_up_before(self.head_seq + 1);
        let before = Totals { chunks: self.head_seq, bytes: self.total_bytes };
        let passed = through - before;
        self.before_tail.add(self.alike, passed);
        if let Some(totals) = &mut self.through_head {
            totals.add(self.alike, passed);
        }
        (self.head_seq, self.total_bytes) = (through.chunks, through.bytes);
        self.tail_seq = through.chunks + 1;
        self.alike_from = self.tail_seq;
    }

    /// Continues behind chunks that only the disk may have. `through` are the totals of all chunks
    /// from the first, by kind. None of them is held.
    pub fn skip(&mut self, through: &KindTotals) {
        assert!(self.is_kept());
        self.pass_over(through.of(Kinds::ALL));
        self.found(through, &[]);
    }

    /// Replaces what is known about the chunks through the head: the newest ones are held, and
    /// `before` are the totals of all others. Together they are as many chunks and bytes as before.
    pub fn found(&mut self, before: &KindTotals, newest: &[ChunkFacts]) {
        let through = Totals { chunks: self.head_seq, bytes: self.total_bytes };
        let gone = before.of(Kinds::ALL);
        (self.head_seq, self.total_bytes) = (gone.chunks, gone.bytes);
        self.before_tail = *before;
        self.tail_seq = gone.chunks + 1;
        self.alike_from = self.tail_seq;
        if let Some(totals) = &mut self.through_head {
            **totals = *before;
        }
        for &facts in newest {
            self.push(ChunkFacts { tail_seq: self.tail_seq, ..facts });
        }
        assert!(through == Totals { chunks: self.head_seq, bytes: self.total_bytes }); // G2
    }

    /// Notes that everything before `tail_seq` is gone, as far as it was pushed.
    #[inline]
    pub fn give_up_before(&mut self, tail_seq: u64) {
        if self.tail_seq < tail_seq && self.tail_seq <= self.head_seq {
            self.give_up(tail_seq.min(self.head_seq + 1));
        }
    }

    /// Gives up chunks before `tail_seq`. A writer gives up an eighth of its ring at once, so a run
    /// of one kind is counted in one step.
    #[cold]
    fn give_up(&mut self, tail_seq: u64) {
        assert!(self.tail_seq < tail_seq);
        assert!(tail_seq <= self.head_seq + 1); // G1
        while self.tail_seq < tail_seq && self.tail_seq < self.alike_from {
            let gone = self.meta(self.tail_seq);
            self.before_tail.count(gone.kind, gone.length);
            self.tail_seq += 1;
        }
        if self.tail_seq < tail_seq {
            let (first, last) = (self.meta(self.tail_seq), self.meta(tail_seq - 1));
            let bytes = last.total_bytes - first.total_bytes + u64::from(first.length);
            let chunks = tail_seq - self.tail_seq;
            assert!(bytes <= last.total_bytes); // G2
            self.before_tail.add(self.alike, Totals { chunks, bytes });
            self.tail_seq = tail_seq;
        }
        assert!(self.tail_seq == tail_seq);
    }

    /// The slot of chunk `seq`.
    #[inline]
    fn index(&self, seq: u64) -> usize {
        ((seq - 1) & self.mask) as usize
    }

    /// Number of payload bytes ever published.
    #[inline]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Payload bytes of all chunks before `seq`, which is clamped to `tail_seq..=head_seq + 1`.
    #[inline]
    pub fn bytes_before(&self, seq: u64) -> u64 {
        if seq > self.head_seq {
            self.total_bytes
        } else if seq <= self.tail_seq {
            self.before_tail.of(Kinds::ALL).bytes
        } else {
            self.meta(seq - 1).total_bytes
        }
    }

    /// The first chunk behind `acked_seq` and before `next_seq` that is held and wanted. It may
    /// have to be given again. The result is `next_seq` without such a chunk.
    pub fn first_unacked(&self, acked_seq: u64, next_seq: u64, kinds: Kinds) -> u64 {
        assert!(acked_seq < next_seq); // Only what was given is acknowledged.
        let from_seq = (acked_seq + 1).max(self.tail_seq).min(next_seq);
        if kinds.is_all() {
            return from_seq;
        }
        let end_seq = next_seq.min(self.head_seq + 1);
        let wanted = |&seq: &u64| kinds.contains(self.meta(seq).kind);
        (from_seq..end_seq).find(wanted).unwrap_or(next_seq)
    }

    /// An upper bound of the bytes that these chunks take in the ring.
    pub fn ring_bytes_max(&self, seqs: std::ops::Range<u64>) -> u64 {
        assert!(seqs.start <= seqs.end);
        assert!(seqs.end <= self.head_seq + 1);
        let count = seqs.end - seqs.start;
        let bytes = self.bytes_before(seqs.end) - self.bytes_before(seqs.start);
        bytes + count * limits::CHUNK_EXTRA_BYTES_MAX
    }

    /// The cursor of a subscriber that was given everything before `seq`, the last of which is
    /// held.
    #[inline]
    pub fn cursor_before(&self, seq: u64) -> Cursor {
        Cursor::new(seq, Totals { chunks: seq - 1, bytes: self.bytes_before(seq) })
    }

    /// Bounds deliveries: by this number of chunks and of payload bytes behind the first chunk, or
    /// by [`limits::DELIVERY_CHUNKS_MAX`] and [`limits::DELIVERY_BYTES_MAX`] if these are smaller.
    pub fn bound_deliveries(&mut self, bound: Option<(u64, u64)>) {
        let (chunks, bytes) = bound.unwrap_or(DELIVERY_MAX);
        assert!(chunks > 0);
        self.delivery_max = (chunks.min(DELIVERY_MAX.0), bytes.min(DELIVERY_MAX.1));
        assert!(self.delivery_max.0 > 0); // Each delivery has a chunk.
    }

    /// One past the last chunk that can be given at once together with chunk `from_seq`, which is
    /// held. See [`ChunkLog::bound_deliveries`].
    #[inline]
    pub fn delivery_end(&self, from_seq: u64) -> u64 {
        if from_seq == self.head_seq { from_seq + 1 } else { self.delivery_end_of_many(from_seq) }
    }

    fn delivery_end_of_many(&self, from_seq: u64) -> u64 {
        assert!(from_seq >= self.tail_seq);
        assert!(from_seq <= self.head_seq);
        let (chunks_max, bytes_max) = self.delivery_max;
        let through_first = self.meta(from_seq).total_bytes;
        let fits = |seq| self.meta(seq).total_bytes - through_first <= bytes_max;
        let last_seq = self.head_seq.min(from_seq + chunks_max - 1);
        if fits(last_seq) {
            return last_seq + 1;
        }
        // The first chunk that does not fit is in `low..=high`.
        let (mut low, mut high) = (from_seq + 1, last_seq);
        while low < high {
            let middle = low.midpoint(high);
            if fits(middle) { low = middle + 1 } else { high = middle }
        }
        assert!(low > from_seq); // The first chunk is always given.
        low
    }

    /// Totals of all chunks ever published, by kind. O(chunks held).
    pub fn kind_totals(&self) -> KindTotals {
        let totals = self.kind_totals_before(self.head_seq + 1);
        let all = Totals { chunks: self.head_seq, bytes: self.total_bytes };
        assert!(totals.of(Kinds::ALL) == all); // G2
        totals
    }

    /// Totals of all chunks before `seq`, by kind. `seq` is clamped to `tail_seq..=head_seq + 1`.
    pub fn kind_totals_before(&self, seq: u64) -> KindTotals {
        let mut totals = self.before_tail;
        for seq in self.tail_seq..seq.min(self.head_seq + 1) {
            let meta = self.meta(seq);
            totals.count(meta.kind, meta.length);
        }
        totals
    }

    /// Keeps totals by kind at the head from now on. A subscriber that filters needs them with
    /// every chunk.
    pub fn keep_kind_totals(&mut self) {
        if self.through_head.is_none() {
            self.through_head = Some(Box::new(self.kind_totals()));
        }
    }

    /// Checks G1 to G4.
    pub fn audit(&self) {
        assert!(self.tail_seq <= self.head_seq + 1);
        assert!(self.head_seq + 1 - self.tail_seq <= self.mask + 1);
        let mut sum = self.before_tail;
        for seq in self.tail_seq..=self.head_seq {
            let meta = self.meta(seq);
            sum.count(meta.kind, meta.length);
            assert_eq!(meta.total_bytes, sum.of(Kinds::ALL).bytes);
            assert!(seq < self.alike_from || meta.kind == self.alike);
        }
        if let Some(totals) = &self.through_head {
            assert_eq!(sum, **totals);
        }
        let all = Totals { chunks: self.head_seq, bytes: self.total_bytes };
        assert_eq!(sum.of(Kinds::ALL), all);
        if let Some(kept) = &self.kept {
            assert!(kept.from_seq > 0 && kept.from_seq <= self.head_seq + 1);
            assert!(kept.before.of(Kinds::ALL).bytes <= self.total_bytes);
        }
    }
}

impl Log for ChunkLog {
    #[inline]
    fn head_seq(&self) -> u64 {
        self.head_seq
    }

    #[inline]
    fn tail_seq(&self) -> u64 {
        self.tail_seq
    }

    #[inline]
    fn meta(&self, seq: u64) -> Meta {
        debug_assert!(seq >= self.tail_seq && seq <= self.head_seq);
        self.slots[self.index(seq)]
    }

    #[inline]
    fn totals_through_head(&self, kinds: Kinds) -> Totals {
        if kinds.is_all() {
            return Totals { chunks: self.head_seq, bytes: self.total_bytes };
        }
        match &self.through_head {
            Some(totals) => totals.of(kinds),
            None => self.kind_totals().of(kinds),
        }
    }

    fn totals_before_tail(&self, kinds: Kinds) -> Totals {
        self.before_tail.of(kinds)
    }

    #[inline]
    fn kept_from_seq(&self) -> u64 {
        self.kept.as_ref().map_or(NOT_KEPT, |kept| kept.from_seq)
    }

    fn totals_before_kept(&self, kinds: Kinds) -> Totals {
        self.kept.as_ref().expect("the disk holds something").before.of(kinds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    #[test]
    fn totals_add_up_however_much_goes_at_once_and_whatever_kinds_it_is_of() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let mut log = ChunkLog::new(16);
            let (mut kind, runs) = (Kind::Output, [1, 10, 100][(seed % 3) as usize]);
            for seq in 1..=500 {
                if random.chance(1, runs) {
                    kind = Kind::ALL[random.below(Kind::ALL.len() as u64) as usize];
                }
                let oldest = seq - log.tail_seq();
                let tail_seq = match oldest {
                    // The ring is full: one or more chunks are given up, up to all of them.
                    16 => log.tail_seq() + random.between(1, oldest),
                    _ => log.tail_seq(),
                };
                let length = random.below(1_000) as u32;
                log.push(ChunkFacts { length, kind, key: 0, tail_seq });
                log.audit();
                assert_eq!((log.head_seq(), log.tail_seq()), (seq, tail_seq));
                if random.chance(1, 50) {
                    log.give_up_before(random.between(tail_seq, seq + 9)); // Behind the head, too.
                    log.audit();
                }
            }
        }
    }

    #[test]
    fn a_log_that_passed_chunks_over_is_made_up_for_by_what_was_found() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            // One looks at each chunk, the other at some.
            let (mut whole, mut log) = (ChunkLog::new(16), ChunkLog::new(16));
            if random.chance(1, 2) {
                whole.keep_kind_totals();
                log.keep_kind_totals();
            }
            let mut all = Vec::new();
            for _ in 0..100 {
                for _ in 0..random.between(1, 40) {
                    let kind = Kind::ALL[random.below(3) as usize];
                    let tail_seq = whole.tail_seq().max((all.len() as u64 + 2).saturating_sub(16));
                    let length = random.below(1_000) as u32;
                    all.push(ChunkFacts { length, kind, key: 0, tail_seq });
                    whole.push(all[all.len() - 1]);
                }
                let before = log.head_seq() as usize;
                match random.below(3) {
                    0 => all[before..].iter().for_each(|&facts| log.push(facts)),
                    _ => log.pass_over(whole.totals_through_head(Kinds::ALL)),
                }
                log.audit();
                assert_eq!(log.head_seq(), whole.head_seq());
                assert_eq!(log.bytes_before(log.head_seq() + 1), whole.total_bytes());
                if random.chance(1, 2) {
                    let gone = whole.tail_seq() - 1;
                    log.found(&whole.kind_totals_before(gone + 1), &all[gone as usize..]);
                    log.audit();
                    assert_eq!(log.tail_seq(), whole.tail_seq());
                    assert_eq!(log.kind_totals(), whole.kind_totals());
                    let metas = |log: &ChunkLog| {
                        (gone + 1..=log.head_seq()).map(|seq| log.meta(seq)).collect::<Vec<_>>()
                    };
                    assert_eq!(metas(&log), metas(&whole));
                }
            }
        }
    }
}
