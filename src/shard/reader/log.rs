//! The ring as a policy sees it from another thread. It corresponds to the engine's log.

use crate::engine::policy::Log;
use crate::memory::{Descriptor, Poll, RingReader};
use crate::stream::{Kind, Kinds, Meta, Totals};

/// The ring as a policy sees it from here. It begins at the reader's cursor. The reader has counted
/// the chunks before that itself. The ring's own tail may move during the evaluation and would not
/// be the same at every look.
pub(super) struct RingLog<'a> {
    pub reader: &'a RingReader,
    pub head_seq: u64,
    pub next_seq: u64,
    /// Totals of the wanted kinds before `next_seq`.
    pub seen: Totals,
}

impl Log for RingLog<'_> {
    fn head_seq(&self) -> u64 {
        self.head_seq
    }

    fn tail_seq(&self) -> u64 {
        self.next_seq
    }

    /// Returns an empty meta for a chunk that was overwritten meanwhile. The caller finds out
    /// afterwards.
    fn meta(&self, seq: u64) -> Meta {
        match self.reader.poll(seq) {
            Poll::Ready(descriptor) => meta_of(&descriptor),
            _ => Meta::default(),
        }
    }

    fn totals_through_head(&self, kinds: Kinds) -> Totals {
        if kinds.is_all() {
            let bytes = self.meta(self.head_seq).total_bytes;
            return Totals { chunks: self.head_seq, bytes };
        }
        let mut totals = self.seen;
        for seq in self.next_seq..=self.head_seq {
            let meta = self.meta(seq);
            if kinds.contains(meta.kind) {
                totals.count(meta.length);
            }
        }
        totals
    }

    /// Totals before the reader's cursor, which is the tail here.
    fn totals_before_tail(&self, _kinds: Kinds) -> Totals {
        self.seen
    }
}

fn meta_of(descriptor: &Descriptor) -> Meta {
    Meta {
        total_bytes: descriptor.total_bytes,
        length: descriptor.length,
        kind: Kind::new(descriptor.header.kind).unwrap_or_default(),
        key: descriptor.header.key,
    }
}
