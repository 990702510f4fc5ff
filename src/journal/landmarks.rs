//! Chunks of sealed segments whose place in the payload is known, because somebody has read them.
//!
//! The index of a sealed segment is on the disk. Without landmarks, a reader that begins at a byte
//! of an execution walks there from the beginning of the segment. One that comes again and again,
//! each time for the next part, would read the segment as often as it has parts.
//!
//! Invariant: landmarks are in order, and [`JOURNAL_LANDMARK_BYTES`] of payload apart, so a journal
//! takes at most 1/4,096 of its size for them.

use crate::limits::JOURNAL_LANDMARK_BYTES;

/// The landmarks of one execution.
#[derive(Debug, Default)]
pub struct Landmarks {
    /// Numbers of chunks, and the payload bytes of all chunks before.
    all: Vec<(u64, u64)>,
}

impl Landmarks {
    /// Notes that the payload of the chunk `seq` begins at `byte`, unless one is near.
    pub fn note(&mut self, seq: u64, byte: u64) {
        let at = self.all.partition_point(|(_, known)| *known <= byte);
        let is_near = |known: Option<&(u64, u64)>| {
            known.is_some_and(|(_, known)| byte.abs_diff(*known) < JOURNAL_LANDMARK_BYTES)
        };
        if !is_near(at.checked_sub(1).and_then(|at| self.all.get(at))) && !is_near(self.all.get(at))
        {
            self.all.insert(at, (seq, byte));
        }
    }

    /// The last landmark at or before a byte: the number of the chunk, and the bytes before it.
    pub fn before(&self, byte: u64) -> Option<(u64, u64)> {
        let at = self.all.partition_point(|(_, known)| *known <= byte);
        self.all.get(at.checked_sub(1)?).copied()
    }

    /// Drops those before the chunk `seq`, because their segments are gone.
    pub fn forget_before(&mut self, seq: u64) {
        self.all.drain(..self.all.partition_point(|(known, _)| *known < seq));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_before_a_byte_is_found() {
        let far = JOURNAL_LANDMARK_BYTES;
        let mut landmarks = Landmarks::default();
        assert_eq!(landmarks.before(u64::MAX), None);
        for (seq, byte) in [(5, 4 * far), (1, 0), (3, 2 * far), (9, 6 * far)] {
            landmarks.note(seq, byte);
        }
        assert_eq!(landmarks.before(0), Some((1, 0)));
        assert_eq!(landmarks.before(2 * far - 1), Some((1, 0)));
        assert_eq!(landmarks.before(2 * far), Some((3, 2 * far)));
        assert_eq!(landmarks.before(u64::MAX), Some((9, 6 * far)));
    }

    #[test]
    fn one_that_is_near_another_is_not_kept() {
        let far = JOURNAL_LANDMARK_BYTES;
        let mut landmarks = Landmarks::default();
        for (seq, byte) in [(3, 2 * far), (4, 3 * far - 1), (2, far + 1), (3, 2 * far), (1, far)] {
            landmarks.note(seq, byte);
        }
        assert_eq!(landmarks.all, [(1, far), (3, 2 * far)]);
    }

    #[test]
    fn those_of_segments_that_are_gone_are_forgotten() {
        let far = JOURNAL_LANDMARK_BYTES;
        let mut landmarks = Landmarks::default();
        (1..=4).for_each(|seq| landmarks.note(seq, seq * far));
        landmarks.forget_before(3);
        assert_eq!(landmarks.all, [(3, 3 * far), (4, 4 * far)]);
        landmarks.forget_before(u64::MAX);
        assert!(landmarks.all.is_empty());
    }
}
