//! The limits of a producer: which chunks it may overwrite, and how many it may publish.

/// The limits of a producer, set by the readers that gate it and by their credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    /// First chunk that may not be overwritten.
    pub gate_seq: u64,
    /// First chunk that may not be published.
    pub credit_seq: u64,
    /// Maximum number of payload bytes of all chunks together. One chunk is always allowed.
    pub credit_bytes: u64,
    /// First chunk that some gating reader has not read. A client may come back for chunks before
    /// it: `gate_seq` can be smaller.
    pub read_seq: u64,
}

impl Gate {
    /// The gate without a gating reader: no limits.
    pub const OPEN: Gate = Gate {
        gate_seq: u64::MAX,
        credit_seq: u64::MAX,
        credit_bytes: u64::MAX,
        read_seq: u64::MAX,
    };
    /// The gate of a held ring: nothing may be overwritten.
    pub(super) const HELD: Gate = Gate { gate_seq: 1, ..Gate::OPEN };

    /// Checks a gate that the engine has computed (E2).
    pub(super) fn assert_sound(&self) {
        assert!(self.gate_seq > 0); // Chunks begin at 1, so nothing lies before the first gate.
        assert!(self.gate_seq <= self.read_seq); // What is not read is not overwritten.
        assert!(self.credit_seq >= self.read_seq); // Credit begins at the slowest cursor.
    }

    /// True if the chunk after `head_seq`, of `length` bytes, may be published behind `total_bytes`
    /// of payload. Whether it overwrites a chunk that it must not is known only to the ring's
    /// writer.
    #[inline]
    pub fn admits(&self, head_seq: u64, total_bytes: u64, length: usize) -> bool {
        if head_seq + 1 >= self.credit_seq {
            return false;
        }
        self.credit_bytes == u64::MAX
            || total_bytes.saturating_add(length as u64) <= self.credit_bytes
            || self.read_seq > head_seq // All gating readers have read everything.
    }

    /// Number of `count` chunks that may be published together, the first of which has `length`
    /// bytes. See [`Gate::admits`].
    pub fn admits_some(
        &self,
        head_seq: u64,
        total_bytes: u64,
        length: usize,
        count: usize,
    ) -> usize {
        if self.credit_bytes != u64::MAX {
            // The others depend on its length.
            return usize::from(self.admits(head_seq, total_bytes, length)).min(count);
        }
        let credit = self.credit_seq.saturating_sub(head_seq + 1);
        count.min(usize::try_from(credit).unwrap_or(usize::MAX))
    }
}

const _: () = {
    assert!(Gate::OPEN.gate_seq == Gate::OPEN.read_seq);
    assert!(Gate::HELD.gate_seq == 1); // The first chunk, and so every chunk, is kept.
    assert!(Gate::HELD.gate_seq < Gate::HELD.read_seq);
    assert!(Gate::HELD.credit_seq == u64::MAX); // A held ring may be filled.
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_admitted_together_as_they_are_one_by_one() {
        for credit_seq in [1, 5, 6, 8, 40, u64::MAX] {
            let gate = Gate { credit_seq, ..Gate::OPEN };
            for count in 0..6 {
                let one_by_one = (0..count).take_while(|at| gate.admits(4 + at, 0, 9)).count();
                assert_eq!(gate.admits_some(4, 0, 9, count as usize), one_by_one, "{credit_seq}");
            }
        }
        // With credit in bytes, the first may be admitted, and the others are asked about later.
        let gate = Gate { credit_bytes: 100, read_seq: 4, ..Gate::OPEN };
        assert_eq!(gate.admits_some(4, 90, 10, 6), 1);
        assert_eq!(gate.admits_some(4, 90, 11, 6), 0);
    }
}
