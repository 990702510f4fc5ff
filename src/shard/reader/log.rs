//! The ring as a policy sees it from another thread: what the log is to the engine.

use crate::engine::policy::Log;
use crate::engine::{Kind, Kinds, Meta, Totals};
use crate::memory::{Descriptor, Poll, RingReader};

/// The ring as a policy sees it from here: as if it began at the reader's cursor. What is before
/// that, the reader has counted itself; the ring's own tail may move over some of it while it is
/// looked at, and would be another one each time.
pub(super) struct RingLog<'a> {
    pub reader: &'a RingReader,
    pub head_seq: u64,
    pub next_seq: u64,
    /// Of the wanted kinds, all before `next_seq`.
    pub seen: Totals,
}

impl Log for RingLog<'_> {
    fn head_seq(&self) -> u64 {
        self.head_seq
    }

    fn tail_seq(&self) -> u64 {
        self.next_seq
    }

    /// A chunk that was overwritten meanwhile looks empty; who asked finds out afterwards.
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

    /// All that came before the reader's cursor, which is its tail.
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
