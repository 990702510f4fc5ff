//! What a producer is allowed, as numbers: by the readers that gate it, and by their credit.

/// What a producer is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    /// No chunk from here on may be overwritten.
    pub gate_seq: u64,
    /// No chunk from here on may be published.
    pub credit_seq: u64,
    /// Payload bytes of all chunks together, at most (one chunk always may).
    pub credit_bytes: u64,
    /// All readers that gate have read everything before this chunk. Some may come back for a part
    /// of it: `gate_seq` can be smaller.
    pub read_seq: u64,
}

impl Gate {
    /// Nobody gates.
    pub const OPEN: Gate = Gate {
        gate_seq: u64::MAX,
        credit_seq: u64::MAX,
        credit_bytes: u64::MAX,
        read_seq: u64::MAX,
    };
    /// Nothing may be overwritten.
    pub(super) const HELD: Gate = Gate { gate_seq: 1, ..Gate::OPEN };

    /// May the chunk behind `head_seq`, of `length` bytes, be published by who has published
    /// `total_bytes`? Whether it overwrites what it must not, only the ring's writer knows.
    #[inline]
    pub fn admits(&self, head_seq: u64, total_bytes: u64, length: usize) -> bool {
        if head_seq + 1 >= self.credit_seq {
            return false;
        }
        self.credit_bytes == u64::MAX
            || total_bytes.saturating_add(length as u64) <= self.credit_bytes
            || self.read_seq > head_seq // Whoever gates has read everything.
    }
}
