//! Chunks that only the disk holds, for a reader on another thread.
//!
//! The reader asks for the chunk that it needs next, and rings. Its shard reads some runs, and
//! answers with the chunks of them. The cursor of the reader is the only truth. Each answer begins
//! where the question did, and the reader leaves out what it has passed meanwhile.
//!
//! One question is open at a time, and an answer has [`REFILL_BYTES`] and one run at most. That
//! bounds the memory.
//!
//! [`REFILL_BYTES`]: crate::limits::REFILL_BYTES
//!
//! A `block` reader also says when it has come level (`engine/policy.rs`), and when it is so no
//! longer. Between its word and the gate that follows from it, its next chunk may be overwritten.
//! It is then back on disk.
//!
//! Tests: `shard/journal/refill_tests.rs`, and `sim/kept.rs`.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::{ClockAnchor, Descriptor};
use crate::stream::{GapReason, Totals};

/// The desk between a reader and its shard.
#[derive(Default)]
pub struct Refill {
    desk: Mutex<Desk>,
    /// The clocks by which the times of its chunks are told.
    anchor: ClockAnchor,
}

#[derive(Default)]
struct Desk {
    /// The question, until the shard has read it.
    wish: Option<Wish>,
    /// True until the answer is whole.
    is_asked: bool,
    items: VecDeque<Refilled>,
    /// The news that the reader has come level, or is no longer, until the shard has read it.
    is_level: Option<bool>,
    /// The chunks that the ring held each time before it began anew, and the next one: the newest
    /// such stretches.
    left: VecDeque<RangeInclusive<u64>>,
}

/// Number of stretches that a desk remembers.
const LEFT_MAX: usize = 16;

/// The news on a desk, for the shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// The question.
    pub wish: Option<Wish>,
    /// True if the reader has come level, false if it is so no longer.
    pub is_level: Option<bool>,
}

/// A question of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The chunk that is asked for.
    pub seq: u64,
    /// Totals of the chunks of the reader's kinds before it, if the reader comes from the ring.
    pub seen: Option<Totals>,
}

/// A part of an answer.
pub enum Refilled {
    /// A chunk, with its bytes.
    Chunk(Descriptor, Box<[u8]>),
    /// Nothing else of the reader's kinds lies before this chunk.
    Passed(u64),
    /// A stretch that cannot be given.
    Lost(LostStretch),
}

/// A stretch that cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostStretch {
    /// Its first chunk.
    pub from_seq: u64,
    /// One past its last chunk.
    pub until_seq: u64,
    /// The reason.
    pub reason: GapReason,
    /// Totals of its chunks that the reader wanted.
    pub totals: Totals,
}

/// The result of [`Refill::take`].
pub enum Taken {
    /// The next part of an answer.
    Item(Refilled),
    /// The question is new. The shard has to be told.
    Asked,
    /// The answer is still to come.
    Later,
}

impl Refill {
    /// Creates a desk for chunks with the times of these clocks.
    pub fn new(anchor: ClockAnchor) -> Refill {
        Refill { desk: Mutex::default(), anchor }
    }

    /// The clocks by which the times of its chunks are told.
    pub fn anchor(&self) -> ClockAnchor {
        self.anchor
    }

    /// Takes the next part of the answer. Without one, it asks.
    pub fn take(&self, wish: Wish) -> Taken {
        let mut desk = self.desk();
        if let Some(item) = desk.items.pop_front() {
            return Taken::Item(item);
        }
        if std::mem::replace(&mut desk.is_asked, true) {
            return Taken::Later;
        }
        desk.wish = Some(wish);
        Taken::Asked
    }

    /// Puts a part of the answer back, because the reader cannot be given it now.
    pub fn put_back(&self, item: Refilled) {
        self.desk().items.push_front(item);
    }

    /// Says that the reader has come level, or is so no longer. The shard has to be told.
    pub fn tell_level(&self, is_level: bool) {
        self.desk().is_level = Some(is_level);
    }

    /// Notes that the ring begins anew behind chunks that it never had. `held` are the chunks that
    /// it held, and the next one. The ring does so only then.
    pub fn leave_ring(&self, held: RangeInclusive<u64>) {
        let mut desk = self.desk();
        if desk.left.len() == LEFT_MAX {
            desk.left.pop_front();
        }
        desk.left.push_back(held);
    }

    /// True if the ring held this chunk, or everything before it, when it began anew. The reader
    /// was not too slow then.
    pub fn has_left_ring(&self, seq: u64) -> bool {
        self.desk().left.iter().any(|held| held.contains(&seq))
    }

    /// Takes what is new for the shard.
    pub fn take_news(&self) -> Option<News> {
        let mut desk = self.desk();
        let news = News { wish: desk.wish.take(), is_level: desk.is_level.take() };
        (news != News::default()).then_some(news)
    }

    /// Adds a chunk to the answer.
    pub fn give(&self, descriptor: Descriptor, payload: &[u8]) {
        self.desk().items.push_back(Refilled::Chunk(descriptor, payload.into()));
    }

    /// Adds to the answer that nothing else lies before a chunk.
    pub fn pass(&self, until_seq: u64) {
        self.desk().items.push_back(Refilled::Passed(until_seq));
    }

    /// Adds the last part of the answer.
    pub fn finish(&self, last: Refilled) {
        let mut desk = self.desk();
        assert!(desk.is_asked);
        desk.items.push_back(last);
        desk.is_asked = false;
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
