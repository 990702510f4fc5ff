//! The places of a log from which somebody can read on.
//!
//! A record carries the totals before and behind it. One record is therefore enough to begin at it,
//! or behind it. [`level`] finds the place behind everything that is stored. [`Seek`] finds one
//! before an old chunk, by halves.

use super::follow::{Landmark, Stored};
use super::record::{Incarnation, Record};

/// Returns the place behind the last record of a log, and the details of its end if it has one.
/// Returns the beginning if the record is damaged, somebody else's, or absent: a reader finds out
/// by itself.
pub fn level(last: Option<&Stored<'_>>, owner: Incarnation) -> (Landmark, Option<Box<[u8]>>) {
    let decoded = last.and_then(|last| Some((last.place, Record::decode(last.bytes).ok()?)));
    let Some((place, record)) = decoded else { return (Landmark::start(), None) };
    if !record.header.is_last && record.header.incarnation != owner {
        return (Landmark::start(), None);
    }
    let number = record.header.number.saturating_add(1);
    let at = Landmark { place, number, position: record.after };
    (at, record.end().map(Box::from))
}

/// A search for a place before the record that has a chunk.
///
/// [`next_place`](Seek::next_place) says what to ask for, and [`take`](Seek::take) takes the
/// answer. [`found`](Seek::found) has the best place at any time, and at first the beginning.
pub struct Seek {
    owner: Incarnation,
    from_seq: u64,
    /// A place before the chunk.
    before: Landmark,
    /// A place behind which nobody looks: the record there is behind the chunk.
    behind: u64,
}

impl Seek {
    /// Begins a search for the chunk `from_seq` in the records up to `until_place`.
    pub fn new(owner: Incarnation, from_seq: u64, until_place: u64) -> Seek {
        Seek { owner, from_seq, before: Landmark::start(), behind: until_place }
    }

    /// Returns the place of which the first record at it or behind it is wanted. `None`: the search
    /// is over.
    pub fn next_place(&self) -> Option<u64> {
        let is_over = self.before.position.next_seq() >= self.from_seq
            || self.behind.saturating_sub(self.before.place) <= 1;
        (!is_over).then(|| self.before.place.midpoint(self.behind))
    }

    /// Takes the first record at or behind `place`; `None` if the log has none there.
    pub fn take(&mut self, place: u64, stored: Option<&Stored<'_>>) {
        let Some(stored) = stored.filter(|stored| stored.place <= self.behind) else {
            self.behind = place;
            return;
        };
        match Landmark::before(stored, self.owner) {
            Some(found) if found.position.next_seq() > self.from_seq => self.behind = place,
            Some(found) if found.place > self.before.place => self.before = found,
            // The search has come as far as it can, or a record is damaged.
            _ => self.behind = self.before.place,
        }
    }

    /// Returns the best place that was found.
    pub fn found(&self) -> Landmark {
        self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::{Draft, tests::entry};
    use crate::journal::block::Position;
    use crate::stream::Kind;

    const OWNER: Incarnation = Incarnation(3);

    /// A log of 40 records with 1, 2, 3, 1, … chunks, and the first chunk of each. Its places have
    /// holes: records of other logs are there.
    fn log() -> Vec<(u64, u64, Vec<u8>)> {
        let mut position = Position::new(0);
        let record = |number: u64| {
            let (place, first_seq) = (number * number + 10, position.next_seq());
            let mut draft = Draft::new(OWNER, 4_096);
            for _ in 0..=number % 3 {
                let entry = entry(position.next_seq(), 3, Kind::Stdout);
                draft.append_chunk(&mut position, &entry, b"abc").unwrap();
            }
            (place, first_seq, draft.finish(number, false))
        };
        (0..40).map(record).collect()
    }

    /// Runs a search. Returns the place that it finds, and the number of its questions.
    fn search(log: &[(u64, u64, Vec<u8>)], from_seq: u64) -> (Landmark, u32) {
        let mut seek = Seek::new(OWNER, from_seq, log.last().unwrap().0);
        let mut questions = 0;
        while let Some(place) = seek.next_place() {
            questions += 1;
            assert!(questions < 64, "the search has no end");
            let found = log.iter().find(|(at, ..)| *at >= place);
            let stored =
                found.map(|(place, _, bytes)| Stored { place: *place, is_first: false, bytes });
            seek.take(place, stored.as_ref());
        }
        (seek.found(), questions)
    }

    #[test]
    fn a_search_ends_close_before_the_record_with_the_chunk() {
        let log = log();
        let last_seq = log.last().unwrap().1;
        for from_seq in 1..=last_seq {
            let (found, questions) = search(&log, from_seq);
            let right = log.iter().rposition(|(_, first_seq, _)| *first_seq <= from_seq).unwrap();
            assert!(found.position.next_seq() <= from_seq, "chunk {from_seq}: {found:?}");
            assert!(found.number + 1 >= right as u64, "chunk {from_seq}: {found:?}, {right}");
            assert!(questions <= 2 * 11, "chunk {from_seq}: {questions} questions"); // 2^11 > 1531
        }
    }

    #[test]
    fn a_search_passes_no_chunk_if_records_are_missing_damaged_or_of_others() {
        let whole = log();
        for spoiled in 0..whole.len() {
            for from_seq in 1..=whole.last().unwrap().1 {
                let mut log = whole.clone();
                log[spoiled].2.fill(0xFF);
                assert!(search(&log, from_seq).0.position.next_seq() <= from_seq);
                if log.len() > 1 && spoiled + 1 < log.len() {
                    log.remove(spoiled);
                    assert!(search(&log, from_seq).0.position.next_seq() <= from_seq);
                }
            }
        }
        let stored = Stored { place: 9, is_first: false, bytes: &whole[5].2 };
        let mut seek = Seek::new(Incarnation(4), 30, 20);
        seek.take(10, Some(&stored));
        assert_eq!((seek.found(), seek.next_place()), (Landmark::start(), None));
    }

    #[test]
    fn the_place_behind_a_log_comes_from_its_last_record() {
        let log = log();
        let (place, first_seq, bytes) = log.last().unwrap();
        let last = Stored { place: *place, is_first: false, bytes };
        let (at, end) = level(Some(&last), OWNER);
        assert_eq!((at.place, at.number, end), (*place, 40, None));
        assert_eq!(at.position.next_seq(), first_seq + 1);
        assert_eq!(level(Some(&last), Incarnation(4)), (Landmark::start(), None));
        assert_eq!(level(None, OWNER), (Landmark::start(), None));

        let mut draft = Draft::new(Incarnation(9), 4_096);
        draft.append_end(&at.position, b"lost").unwrap();
        let closer = draft.finish(40, true);
        let last = Stored { place: 2_000, is_first: false, bytes: &closer };
        let (at, end) = level(Some(&last), OWNER);
        assert_eq!((at.place, at.number, end.as_deref()), (2_000, 41, Some(&b"lost"[..])));
    }
}
