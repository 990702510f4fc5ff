//! The closer: writes the end of the execution of a lost node.
//!
//! Several nodes can do this for one execution at the same time, and the owner can be back. The log
//! takes one end: each closer stores it only if the log still ends where it has looked.
//!
//! Tests: below; `sim/cluster` has owners and closers that race.

use super::mirror::{Attempt, Last, Wish};
use super::record::{Draft, Incarnation};
use super::retry::Pauses;
use crate::base::Instant;
use crate::journal::block::Position;
use crate::limits::{CLUSTER_ANSWER_WAIT, CLUSTER_RECORD_BYTES_FIRST};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Due {
        at: Instant,
    },
    Looking {
        until: Instant,
    },
    /// The record comes behind this place.
    Ready {
        behind: u64,
    },
    Storing {
        until: Instant,
    },
    Done,
}

/// The closer of one execution. See the module's text.
pub struct Closer {
    /// The incarnation of this node.
    incarnation: Incarnation,
    /// The details of the end.
    details: Vec<u8>,
    state: State,
    attempt: Attempt,
    pauses: Pauses,
    record: Vec<u8>,
}

impl Closer {
    /// Begins to close an execution at `at`, with these details of its end.
    pub fn new(incarnation: Incarnation, details: Vec<u8>, at: Instant) -> Closer {
        Closer {
            incarnation,
            details,
            state: State::Due { at },
            attempt: Attempt::default(),
            pauses: Pauses::default(),
            record: Vec::new(),
        }
    }

    /// True if the log has an end.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// The time at which [`Closer::poll`] has something to do without another cause.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Due { at } => Some(at),
            State::Looking { until } | State::Storing { until } => Some(until),
            State::Ready { .. } | State::Done => None,
        }
    }

    /// Returns the next wish, and the number of the attempt.
    pub fn poll(&mut self, now: Instant) -> Option<(Attempt, Wish<'_>)> {
        if let State::Looking { until } | State::Storing { until } = self.state
            && now >= until
        {
            self.state = State::Due { at: self.pauses.after(now) };
        }
        let until = now + CLUSTER_ANSWER_WAIT;
        match self.state {
            State::Due { at } if now >= at => {
                self.attempt.0 += 1;
                self.state = State::Looking { until };
                Some((self.attempt, Wish::Look))
            }
            State::Ready { behind } => {
                self.attempt.0 += 1;
                self.state = State::Storing { until };
                Some((self.attempt, Wish::Store { expected: behind, record: &self.record }))
            }
            _ => None,
        }
    }

    /// The leader has answered with the last record of the execution, if there is one.
    pub fn on_looked(&mut self, attempt: Attempt, last: Option<&Last>) {
        if attempt != self.attempt || !matches!(self.state, State::Looking { .. }) {
            return;
        }
        let record = last.and_then(|last| last.record.as_ref());
        if record.is_some_and(|(header, _)| header.is_last) {
            self.state = State::Done;
            return;
        }
        // Behind a damaged record the totals are not known. The end ends the log nevertheless.
        let (number, position) = match record {
            Some((header, after)) => (header.number.saturating_add(1), *after),
            None => (0, Position::new(0)),
        };
        let room_bytes = CLUSTER_RECORD_BYTES_FIRST + self.details.len() as u32;
        let mut draft = Draft::new(self.incarnation, room_bytes);
        draft.append_end(&position, &self.details).expect("it was made for it");
        self.record = draft.finish(number, true);
        self.state = State::Ready { behind: last.map_or(0, |last| last.place) };
    }

    /// The log has stored the end of this attempt, or of an earlier one.
    pub fn on_stored(&mut self) {
        self.state = State::Done;
    }

    /// The log has refused, or nobody answers.
    pub fn on_failed(&mut self, attempt: Attempt, now: Instant) {
        let is_out = matches!(self.state, State::Looking { .. } | State::Storing { .. });
        if attempt == self.attempt && is_out {
            self.state = State::Due { at: self.pauses.after(now) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::{Header, Record, tests::entry};
    use crate::stream::Kind;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn last(is_last: bool) -> Last {
        let mut position = Position::new(0);
        let mut draft = Draft::new(Incarnation(1), 4_096);
        draft.append_chunk(&mut position, &entry(1, 3, Kind::Output), b"abc").unwrap();
        if is_last {
            draft.append_end(&position, b"done").unwrap();
        }
        Last::read(5, &draft.finish(3, false))
    }

    fn closer() -> (Closer, Attempt) {
        let mut closer = Closer::new(Incarnation(2), b"lost".to_vec(), NOW);
        let (attempt, wish) = closer.poll(NOW).unwrap();
        assert_eq!(wish, Wish::Look);
        (closer, attempt)
    }

    #[test]
    fn it_ends_the_log_behind_the_last_record() {
        let (mut closer, attempt) = closer();
        closer.on_looked(attempt, Some(&last(false)));
        let (_, wish) = closer.poll(NOW).unwrap();
        let Wish::Store { expected, record } = wish else { panic!("{wish:?}") };
        let record = Record::decode(record).unwrap();
        let incarnation = Incarnation(2);
        let header = Header { incarnation, number: 4, is_last: true, is_closer: true };
        assert_eq!((expected, record.header, record.end()), (5, header, Some(&b"lost"[..])));
        assert_eq!(record.after.all.chunks, 1);
        closer.on_stored();
        assert!(closer.is_done() && closer.poll(NOW).is_none());
    }

    #[test]
    fn an_end_that_is_there_is_enough() {
        let (mut closer, attempt) = closer();
        closer.on_looked(attempt, Some(&last(true)));
        assert!(closer.is_done());
    }

    #[test]
    fn it_looks_again_if_the_log_has_moved() {
        let (mut closer, attempt) = closer();
        closer.on_looked(attempt, None);
        let (attempt, wish) = closer.poll(NOW).unwrap();
        assert!(matches!(wish, Wish::Store { expected: 0, .. }));
        closer.on_failed(attempt, NOW);
        assert!(closer.poll(NOW).is_none());
        let at = closer.deadline().unwrap();
        let (attempt, wish) = closer.poll(at).unwrap();
        assert_eq!(wish, Wish::Look);
        closer.on_looked(attempt, Some(&last(true)));
        assert!(closer.is_done());
    }
}
