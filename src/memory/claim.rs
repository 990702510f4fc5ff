//! The claim: the step in which a writer gives up old chunks before it overwrites them.
//!
//! Few chunks need a claim, as it takes up to an eighth of the ring more than the current chunk
//! needs. Therefore the line of the tail, which every reader re-checks, moves once per many chunks.
//! The totals per kind move with it, under a version word (`ring:totals`).
//! Tests: `model_tests.rs`, `loom_tests.rs`.

use super::atomic::{Flaw, Ordering, fence, is_flawed};
use super::format::clear_index;
use super::layout::{
    CLAIM_PARTS, HEAD_SEQ_WORD, TAIL_SEQ_WORD, TAIL_TOTALS_WORD, TAIL_VERSION_WORD,
    TOTAL_BYTES_WORD, frame_bytes,
};
use super::writer::{RingWriter, Start, WriteError};
use crate::base::planted::{Planted, planted};
use crate::limits::KINDS_MAX;

const _: () = assert!(KINDS_MAX <= u32::BITS as usize); // One word marks the changed kinds.

impl RingWriter {
    /// Gives up chunks at the tail until the next place can end at `position_end` and one slot is
    /// free. Then it gives up at most an eighth of the ring more.
    #[cold]
    #[inline(never)]
    pub(super) fn claim(&mut self, position_end: u64, gate_seq: u64) -> Result<(), WriteError> {
        let slot_count = u64::from(self.geometry.slot_count());
        let data_bytes = u64::from(self.geometry.data_bytes());
        let tail_max = gate_seq.min(self.seq_next);
        let (mut tail_seq, mut place) = (self.tail_seq, self.place_of(self.tail_seq));
        let counts_data = !planted(Planted::DataWrapBeforeSlotWrap);
        while counts_data && place + data_bytes < position_end
            || tail_seq + slot_count <= self.seq_next
        {
            if tail_seq >= tail_max {
                assert!(gate_seq < self.seq_next); // An empty ring has room for every chunk.
                return Err(WriteError::Gated { gate_seq });
            }
            tail_seq += 1;
            place = self.place_of(tail_seq);
        }
        let tail_max = tail_max.min(tail_seq + slot_count / u64::from(CLAIM_PARTS));
        let place_max = place + data_bytes / u64::from(CLAIM_PARTS);
        let (tail_seq, place) = self.last_at_or_before(place_max, (tail_seq, place), tail_max);
        assert!(tail_seq >= self.tail_seq); // What is given up does not come back.
        assert!(tail_seq <= self.seq_next); // W1
        assert!(tail_seq == self.tail_seq || tail_seq <= gate_seq); // W3
        let reported_seq = tail_seq - u64::from(planted(Planted::TailOffByOne));
        self.store_tail(reported_seq.max(self.tail_seq));
        self.seq_limit = tail_seq + slot_count;
        self.position_limit = place + data_bytes;
        assert!(self.seq_next < self.seq_limit); // W1: there is a slot now.
        assert!(position_end <= self.position_limit || !counts_data); // W2: and room.
        Ok(())
    }

    /// Finds the last chunk up to `high` whose place is at most `place_max`, beginning with `low`,
    /// whose place is. For small chunks that is `high`, found with one look. Returns its place,
    /// too.
    fn last_at_or_before(&self, place_max: u64, low: (u64, u64), high: u64) -> (u64, u64) {
        let (mut low, mut high) = (low, high.max(low.0));
        assert!(high <= self.seq_next);
        let place = self.place_of(high);
        if place >= low.1 && place <= place_max {
            return (high, place);
        }
        while high - low.0 > 1 {
            let middle = low.0.midpoint(high);
            let place = self.place_of(middle);
            if place >= low.1 && place <= place_max {
                low = (middle, place);
            } else {
                high = middle;
            }
        }
        low
    }

    /// Continues at `start`, behind chunks that were never written here. All earlier chunks count
    /// as gone. Readers on other threads find that out as if these had been overwritten. A reader
    /// in another process may not read at this moment: it takes such a ring for a broken one.
    ///
    /// # Panics
    /// If the writer is beyond `start` already.
    pub fn skip_to(&mut self, start: &Start) {
        assert!(start.seq >= self.seq_next);
        assert!(start.seq > 0);
        assert!(self.tail_version.is_multiple_of(2)); // Even: the totals are whole.
        self.begin_lap_at(start);
        self.tail_totals = start.kinds;
        self.tail_version += 2;
        // Odd until the head has followed the tail: readers know why it is behind.
        self.word(TAIL_VERSION_WORD).store(self.tail_version - 1, Ordering::Relaxed);
        self.word(TAIL_SEQ_WORD).store(start.seq, Ordering::Release); // ring:tail
        fence(Ordering::Release); // ring:claim, ring:totals
        for (kind, total) in start.kinds.each().iter().enumerate() {
            self.word(TAIL_TOTALS_WORD + 2 * kind).store(total.chunks, Ordering::Relaxed);
            self.word(TAIL_TOTALS_WORD + 2 * kind + 1).store(total.bytes, Ordering::Relaxed);
        }
        let slots = start.seq..start.seq + u64::from(self.geometry.slot_count());
        clear_index(&self.lease.segment, self.geometry, slots);
        self.word(TOTAL_BYTES_WORD).store(start.total_bytes, Ordering::Relaxed);
        self.word(HEAD_SEQ_WORD).store(start.seq - 1, Ordering::Release); // ring:publish
        self.word(TAIL_VERSION_WORD).store(self.tail_version, Ordering::Release); // ring:totals
    }

    /// Moves the tail to `tail_seq`, visible to all readers before anything is overwritten.
    fn store_tail(&mut self, tail_seq: u64) {
        assert!(tail_seq >= self.tail_seq);
        assert!(self.tail_version.is_multiple_of(2)); // Even: the totals are whole.
        let mut changed_kinds = 0u32;
        let alike_from = self.alike_from.clamp(self.tail_seq, tail_seq);
        for seq in self.tail_seq..alike_from {
            let frame = self.held(seq);
            changed_kinds |= self.count_gone(frame.header.kind, 1, u64::from(frame.length));
        }
        if alike_from < tail_seq {
            // They are of one kind, so their sum is a difference.
            let (first, last) = (self.held(alike_from), self.held(tail_seq - 1));
            let bytes_before = first.total_bytes.wrapping_sub(u64::from(first.length));
            let bytes = last.total_bytes.wrapping_sub(bytes_before);
            changed_kinds |= self.count_gone(self.alike, tail_seq - alike_from, bytes);
        }
        self.tail_seq = tail_seq;
        self.tail_version += 2;
        let version = self.word(TAIL_VERSION_WORD);
        version.store(self.tail_version - 1, Ordering::Relaxed); // Odd: totals are being changed.
        // Release beyond the needs of the fence: a reader that sees this tail sees the head of that
        // moment.
        self.word(TAIL_SEQ_WORD).store(tail_seq, Ordering::Release); // ring:tail
        if !is_flawed(Flaw::ClaimFence) {
            fence(Ordering::Release); // ring:claim, ring:totals
        }
        while changed_kinds != 0 {
            let kind = changed_kinds.trailing_zeros() as usize;
            changed_kinds &= changed_kinds - 1;
            let total = self.tail_totals[kind];
            self.word(TAIL_TOTALS_WORD + 2 * kind).store(total.chunks, Ordering::Relaxed);
            self.word(TAIL_TOTALS_WORD + 2 * kind + 1).store(total.bytes, Ordering::Relaxed);
        }
        self.word(TAIL_VERSION_WORD).store(self.tail_version, Ordering::Release); // ring:totals
    }

    /// Adds to the totals before the tail. Returns the kind as a bit.
    fn count_gone(&mut self, kind: u8, count: u64, bytes: u64) -> u32 {
        assert!((kind as usize) < KINDS_MAX); // `commit` lets no other kind in.
        let total = &mut self.tail_totals[kind as usize];
        total.chunks += count;
        total.bytes = total.bytes.wrapping_add(bytes); // A file that others write may say anything.
        1 << kind
    }

    /// Returns the place of a held chunk, or of the next one, which does not exist yet.
    #[inline(never)]
    pub(super) fn place_of(&self, seq: u64) -> u64 {
        if seq == self.seq_next {
            return self.position_next;
        }
        let data_bytes = u64::from(self.geometry.data_bytes());
        if seq == self.tail_seq {
            return self.position_limit - data_bytes; // The chunk before it is gone.
        }
        let before = self.held(seq - 1);
        // The held frames span less than the data area, so each is in this lap or in the one
        // before.
        let (offset, next) = (u64::from(before.offset), self.position_next - self.lap_position);
        let lap = self.lap_position + offset;
        let position = if offset < next { lap } else { lap.saturating_sub(data_bytes) };
        position + frame_bytes(before.length)
    }
}
