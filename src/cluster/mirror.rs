//! The mirror: the way of an execution into its log, on the side of the owner.
//!
//! One record is on its way at a time. Everything that is published meanwhile goes into the next
//! one. A record is stored only if the log of the execution ends where the mirror believes it does.
//! This gives order, each record once, and the exclusion of a writer that was replaced.
//!
//! A record of which the fate is unknown stays as it is. The mirror then asks for the last record
//! of the log. If it is the same one, it was stored. If the log ends before it, it is sent again.
//! If somebody else has written, the mirror stops.
//!
//! Chunks that wait for longer than the buffer lasts become a gap, the oldest ones first. The end
//! is never dropped.
//!
//! The caller takes one [`Wish`] at a time from [`Mirror::poll`], and gives the answer back.
//!
//! Invariants:
//! - Y1: the records of one mirror have the numbers that follow each other, and no chunk twice.
//! - Y2: the bytes of a record do not change once they were on their way.
//! - Y3: nothing counts as stored that the log has not confirmed.
//!
//! Tests: below; `sim/cluster` runs mirrors against a log that fails.

use std::collections::VecDeque;

use super::record::{Draft, Header, Incarnation, Record};
use super::retry::Pauses;
use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::journal::block::Position;
use crate::journal::format::ChunkEntry;
use crate::limits::{
    CLUSTER_ANSWER_WAIT, CLUSTER_PENDING_BYTES_MAX, CLUSTER_RECORD_BYTES,
    CLUSTER_RECORD_BYTES_FIRST,
};
use crate::stream::{GapReason, KindTotals, Kinds};

/// The kinds of notes. The newest one of each kind is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NoteKind {
    /// The progress of the tool.
    Progress = 0,
    /// The number of chunks that the tool will publish.
    Expected = 1,
}

const NOTE_KINDS: usize = 2;

/// The number of an attempt. Its answer has the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u64);

/// Something that the mirror wants of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish<'a> {
    /// Store this record, if the last one of the execution is at `expected` (0: there is none).
    Store {
        /// The place of the last record, in the order of the whole log.
        expected: u64,
        /// The bytes.
        record: &'a [u8],
    },
    /// Read the last record of the execution, from the leader.
    Look,
}

/// The last record of an execution in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Last {
    /// Its place in the order of the whole log.
    pub place: u64,
    /// Its head, and the position behind it; `None` if it is damaged.
    pub record: Option<(Header, Position)>,
}

impl Last {
    /// Reads the last record.
    pub fn read(place: u64, bytes: &[u8]) -> Last {
        let record = Record::decode(bytes).ok().map(|record| (record.header, record.after));
        Last { place, record }
    }
}

/// The state of a mirror for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It writes, or waits for something to write.
    Open,
    /// The log has the end.
    Ended,
    /// Somebody else has ended the execution in the log. The mirror writes nothing more.
    Fenced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The record in flight was given to the caller.
    Storing {
        until: Instant,
    },
    /// The fate of the record in flight is unknown.
    Doubt {
        look_at: Instant,
    },
    Looking {
        until: Instant,
    },
    Ended,
    Fenced,
}

/// A part of what waits for the log.
enum Part {
    Content(Box<Content>),
    Gap { after: Box<KindTotals>, reason: GapReason },
}

/// Chunks that wait for the log.
struct Content {
    draft: Draft,
    after: Position,
    room_bytes: u32,
}

impl Part {
    fn after(&self) -> KindTotals {
        match self {
            Part::Content(content) => content.after.totals,
            Part::Gap { after, .. } => **after,
        }
    }
}

struct InFlight {
    bytes: Vec<u8>,
    /// The first attempt to store it.
    first: Attempt,
    after: Position,
    is_last: bool,
}

/// The running totals of a mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of records that the log has.
    pub records: u64,
    /// Number of their bytes.
    pub bytes: u64,
    /// Number of times that the fate of a record was unknown and the log had it.
    pub adopted: u64,
    /// Number of times that it had not.
    pub repeated: u64,
    /// Number of chunks that waited for too long and became a gap.
    pub unwritten: u64,
}

impl Counters {
    /// Adds the totals of another mirror.
    pub fn add(&mut self, other: &Counters) {
        let Counters { records, bytes, adopted, repeated, unwritten } = other;
        self.records += records;
        self.bytes += bytes;
        self.adopted += adopted;
        self.repeated += repeated;
        self.unwritten += unwritten;
    }
}

/// The mirror of one execution. See the module's text.
pub struct Mirror {
    incarnation: Incarnation,
    state: State,
    /// The newest attempt.
    attempt: Attempt,
    pauses: Pauses,
    /// The place of the last record of the execution, in the order of the whole log.
    place: u64,
    /// The number of the record that is in flight, or comes next.
    number: u64,
    in_flight: Option<InFlight>,
    /// The record with the end, once the log has it.
    last: Option<InFlight>,
    parts: VecDeque<Part>,
    pending_bytes: u32,
    pending_bytes_max: u32,
    notes: [Option<Vec<u8>>; NOTE_KINDS],
    end: Option<Vec<u8>>,
    /// The position behind everything that the log has.
    stored: Position,
    /// The position behind everything that the mirror was given.
    position: Position,
    counters: Counters,
}

impl Mirror {
    /// Begins a mirror of an execution whose log is empty.
    pub fn new(incarnation: Incarnation) -> Mirror {
        Mirror {
            incarnation,
            state: State::Idle,
            attempt: Attempt::default(),
            pauses: Pauses::default(),
            place: 0,
            number: 0,
            in_flight: None,
            last: None,
            parts: VecDeque::new(),
            pending_bytes: 0,
            pending_bytes_max: CLUSTER_PENDING_BYTES_MAX,
            notes: Default::default(),
            end: None,
            stored: Position::new(0),
            position: Position::new(0),
            counters: Counters::default(),
        }
    }

    /// Sets the bytes that may wait for the log.
    pub fn set_pending_bytes_max(&mut self, bytes: u32) {
        self.pending_bytes_max = bytes;
    }

    /// The position behind everything that the mirror was given.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The position behind everything that the log has.
    pub fn stored(&self) -> &Position {
        &self.stored
    }

    /// Number of bytes that wait for the log, in whole buffers.
    pub fn pending_bytes(&self) -> u32 {
        self.pending_bytes
    }

    /// True if it was given the end.
    pub fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// True if so much waits for the log that a source that can wait should.
    pub fn is_full(&self) -> bool {
        self.pending_bytes > (self.pending_bytes_max / 4).max(CLUSTER_RECORD_BYTES)
    }

    /// The running totals.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its state.
    pub fn standing(&self) -> Standing {
        match self.state {
            State::Ended => Standing::Ended,
            State::Fenced => Standing::Fenced,
            _ => Standing::Open,
        }
    }

    /// Takes the next chunk.
    pub fn push_chunk(&mut self, entry: &ChunkEntry, payload: &[u8]) {
        assert!(self.end.is_none());
        if self.standing() != Standing::Open {
            self.position.pass(entry);
            return;
        }
        if let Some(Part::Content(content)) = self.parts.back_mut()
            && content.draft.append_chunk(&mut self.position, entry, payload).is_ok()
        {
            content.after = self.position;
            return;
        }
        let room_bytes = match self.parts.is_empty() && self.in_flight.is_none() {
            true => CLUSTER_RECORD_BYTES_FIRST,
            false => CLUSTER_RECORD_BYTES,
        };
        let room_bytes = room_bytes.max(Draft::bytes_for(entry.length));
        let mut draft = Draft::new(self.incarnation, room_bytes);
        let appended = draft.append_chunk(&mut self.position, entry, payload);
        appended.expect("it was made for it");
        self.pending_bytes += room_bytes;
        let content = Content { draft, after: self.position, room_bytes };
        self.parts.push_back(Part::Content(Box::new(content)));
        self.shed();
    }

    /// Takes a gap: chunks that the mirror did not get, up to the totals `after` them.
    pub fn push_gap(&mut self, after: &KindTotals, reason: GapReason) {
        assert!(self.end.is_none());
        assert!(after.checked_sub(&self.position.totals).is_some());
        (self.position.totals, self.position.all) = (*after, after.of(Kinds::ALL));
        if self.standing() == Standing::Open {
            self.parts.push_back(Part::Gap { after: Box::new(*after), reason });
        }
    }

    /// Takes a note. It replaces one of the same kind that was not stored.
    pub fn push_note(&mut self, kind: NoteKind, body: &[u8]) {
        assert!(self.end.is_none());
        if self.standing() == Standing::Open {
            self.notes[kind as usize] = Some([&[kind as u8], body].concat());
        }
    }

    /// Takes the end.
    pub fn push_end(&mut self, details: &[u8]) {
        assert!(self.end.is_none());
        self.end = Some(details.to_vec());
    }

    /// Turns the oldest parts into a gap while too many bytes wait. The newest part stays.
    fn shed(&mut self) {
        let before = self.in_flight.as_ref().map_or(&self.stored, |record| &record.after);
        let (mut behind, mut is_shed) = (before.totals, false);
        while self.pending_bytes > self.pending_bytes_max && self.parts.len() > 1 {
            let part = self.parts.pop_front().expect("there are some");
            let after = part.after();
            if let Part::Content(content) = part {
                self.pending_bytes -= content.room_bytes;
                let missed = after.checked_sub(&behind).expect("positions grow");
                self.counters.unwritten += missed.of(Kinds::ALL).chunks;
            }
            (behind, is_shed) = (after, true);
        }
        if is_shed {
            let after = Box::new(behind);
            self.parts.push_front(Part::Gap { after, reason: GapReason::Unwritten });
        }
    }

    /// The time at which [`Mirror::poll`] has something to do without another cause.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Storing { until } | State::Looking { until } => Some(until),
            State::Doubt { look_at } => Some(look_at),
            State::Idle | State::Ended | State::Fenced => None,
        }
    }

    /// Returns the next wish, and the number of the attempt. Its answer is awaited for a while, and
    /// the next wish comes only behind it.
    pub fn poll(&mut self, now: Instant) -> Option<(Attempt, Wish<'_>)> {
        if let State::Storing { until } | State::Looking { until } = self.state
            && now >= until
        {
            self.doubt(now);
        }
        let until = now + CLUSTER_ANSWER_WAIT;
        let next = Attempt(self.attempt.0 + 1);
        match self.state {
            State::Idle => {
                self.prepare(next);
                let record = self.in_flight.as_ref()?;
                (self.state, self.attempt) = (State::Storing { until }, next);
                if planted(Planted::StoredWhenSent) {
                    self.stored = record.after;
                }
                Some((next, Wish::Store { expected: self.place, record: &record.bytes }))
            }
            State::Doubt { look_at } if now >= look_at => {
                (self.state, self.attempt) = (State::Looking { until }, next);
                Some((next, Wish::Look))
            }
            _ => None,
        }
    }

    /// Makes the next record, if none is there and something waits.
    fn prepare(&mut self, first: Attempt) {
        if self.in_flight.is_some() {
            return; // The same bytes again (Y2).
        }
        let (mut draft, after) = match self.parts.pop_front() {
            Some(Part::Content(content)) => {
                self.pending_bytes -= content.room_bytes;
                (content.draft, content.after)
            }
            part => {
                let details = self.notes.iter().chain([&self.end]).flatten();
                let details_bytes: usize =
                    details.map(|body| Draft::bytes_for(body.len() as u32) as usize).sum();
                let room_bytes = CLUSTER_RECORD_BYTES_FIRST + details_bytes as u32;
                let mut draft = Draft::new(self.incarnation, room_bytes);
                let mut position = self.stored;
                if let Some(Part::Gap { after, reason }) = part {
                    let appended = draft.append_gap(&mut position, &after, reason);
                    appended.expect("it is the first one");
                }
                (draft, position)
            }
        };
        for note in &mut self.notes {
            // One that finds no room comes with the next record.
            note.take_if(|body| draft.append_note(&after, body).is_ok());
        }
        let is_last = self.parts.is_empty()
            && self.notes.iter().all(Option::is_none)
            && self.end.as_ref().is_some_and(|end| draft.append_end(&after, end).is_ok());
        if !draft.is_empty() {
            let bytes = draft.finish(self.number, false);
            self.in_flight = Some(InFlight { bytes, first, after, is_last });
        }
    }

    fn is_awaited(&self, attempt: Attempt) -> bool {
        let is_out = matches!(self.state, State::Storing { .. } | State::Looking { .. });
        is_out && attempt == self.attempt
    }

    fn doubt(&mut self, now: Instant) {
        self.state = State::Doubt { look_at: self.pauses.after(now) };
    }

    /// The log has stored the record of this attempt, at this place.
    pub fn on_stored(&mut self, attempt: Attempt, place: u64) {
        // An answer that comes late is as good, if it is about the same record.
        if self.in_flight.as_ref().is_some_and(|record| record.first <= attempt) {
            self.settle(place);
        }
    }

    fn settle(&mut self, place: u64) {
        let mut record = self.in_flight.take().expect("it was checked");
        self.counters.records += 1;
        self.counters.bytes += record.bytes.len() as u64;
        self.pauses.reset();
        self.place = place;
        self.number += 1;
        self.stored = record.after;
        self.state = if record.is_last { State::Ended } else { State::Idle };
        if record.is_last {
            record.bytes.shrink_to_fit();
            self.last = Some(record);
        }
    }

    /// Looks again whether the log has the end. A server that loses its power can forget what it
    /// has acknowledged. Those who follow the log would then wait for ever.
    pub fn look_again(&mut self, now: Instant) {
        if self.state == State::Ended
            && let Some(record) = self.last.take()
        {
            self.in_flight = Some(record);
            self.number -= 1;
            self.state = State::Doubt { look_at: now };
        }
    }

    /// Number of bytes of the last record.
    pub fn last_bytes(&self) -> usize {
        self.last.as_ref().map_or(0, |record| record.bytes.len())
    }

    /// The log has refused the record, or nobody answers. Neither says if it was stored: also the
    /// refusal of a wrong `expected` can concern an earlier attempt.
    pub fn on_failed(&mut self, attempt: Attempt, now: Instant) {
        if !self.is_awaited(attempt) {
            return;
        }
        if planted(Planted::RefusalTakenForFence) {
            self.fence();
            return;
        }
        self.doubt(now);
    }

    /// The leader has answered with the last record of the execution, if there is one.
    pub fn on_looked(&mut self, attempt: Attempt, last: Option<&Last>) {
        if !self.is_awaited(attempt) || !matches!(self.state, State::Looking { .. }) {
            return;
        }
        let ours = |header: &Header| header.incarnation == self.incarnation && !header.is_closer;
        match last {
            Some(Last { record: Some((header, _)), .. })
                if !ours(header) || header.number > self.number =>
            {
                self.fence();
            }
            Some(Last { record: Some((header, _)), place })
                if header.number == self.number
                    && self.in_flight.is_some()
                    && !planted(Planted::StoredTwice) =>
            {
                self.counters.adopted += 1;
                self.settle(*place);
            }
            // The log ends before the record: it was not stored, or was removed, or was forgotten.
            _ => {
                self.counters.repeated += 1;
                self.place = last.map_or(0, |last| last.place);
                self.state = State::Idle;
            }
        }
    }

    fn fence(&mut self) {
        self.state = State::Fenced;
        (self.in_flight, self.pending_bytes) = (None, 0);
        self.parts.clear();
        self.notes = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::{Item, tests::entry};
    use crate::stream::{Kind, Totals};

    const OURS: Incarnation = Incarnation(5);

    fn start() -> Mirror {
        Mirror::new(OURS)
    }

    fn push(mirror: &mut Mirror, count: u64, length: u32) {
        for _ in 0..count {
            let seq = mirror.position().next_seq();
            mirror.push_chunk(&entry(seq, length, Kind::Output), &vec![7; length as usize]);
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Takes the wish to store a record: the attempt, `expected`, and the bytes.
    fn store(mirror: &mut Mirror, now: Instant) -> (Attempt, u64, Vec<u8>) {
        match mirror.poll(now) {
            Some((attempt, Wish::Store { expected, record })) => {
                (attempt, expected, record.to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    fn look(mirror: &mut Mirror, now: Instant) -> Attempt {
        match mirror.poll(now) {
            Some((attempt, Wish::Look)) => attempt,
            other => panic!("{other:?}"),
        }
    }

    fn last(place: u64, number: u64) -> Last {
        let header = Header { incarnation: OURS, number, is_last: false, is_closer: false };
        Last { place, record: Some((header, Position::new(0))) }
    }

    #[test]
    fn everything_that_comes_while_a_record_is_on_its_way_goes_into_the_next_one() {
        let mut mirror = start();
        assert_eq!(mirror.poll(at(0)), None);
        push(&mut mirror, 1, 10);
        let (attempt, expected, record) = store(&mut mirror, at(0));
        assert_eq!((expected, Record::decode(&record).unwrap().after.all.chunks), (0, 1));
        push(&mut mirror, 50, 10);
        assert_eq!(mirror.poll(at(1)), None);
        assert_eq!(mirror.stored().all.chunks, 0, "nothing is confirmed");
        mirror.on_stored(attempt, 40);
        assert_eq!(mirror.stored().all.chunks, 1);
        mirror.push_end(b"bye");
        let (attempt, expected, record) = store(&mut mirror, at(1));
        let record = Record::decode(&record).unwrap();
        assert_eq!((expected, record.header.number, record.after.all.chunks), (40, 1, 51));
        assert_eq!(record.end(), Some(&b"bye"[..]));
        assert_eq!(mirror.standing(), Standing::Open);
        mirror.on_stored(attempt, 41);
        assert_eq!(mirror.standing(), Standing::Ended);
        assert_eq!(mirror.poll(at(2)), None);
    }

    #[test]
    fn a_record_of_unknown_fate_stays_as_it_is_and_the_log_decides() {
        let mut mirror = start();
        push(&mut mirror, 3, 10);
        let (first, _, record) = store(&mut mirror, at(0));
        push(&mut mirror, 3, 10);
        mirror.on_failed(first, at(1));
        assert_eq!(mirror.poll(at(2)), None);
        assert_eq!(mirror.deadline(), Some(at(51)));
        // The log ends before it.
        let attempt = look(&mut mirror, at(51));
        mirror.on_looked(attempt, None);
        let (second, expected, again) = store(&mut mirror, at(52));
        assert_eq!((expected, &again), (0, &record));
        // Nobody answers. The log has it.
        assert_eq!(mirror.poll(at(1_051)), None);
        let attempt = loop {
            let now = mirror.deadline().unwrap();
            match mirror.poll(now) {
                Some((attempt, Wish::Look)) => break attempt,
                other => assert_eq!(other, None),
            }
        };
        mirror.on_looked(attempt, Some(&last(9, 0)));
        assert_eq!(mirror.stored().all.chunks, 3);
        let (third, expected, _) = store(&mut mirror, at(5_000));
        assert_eq!(expected, 9);
        // Late answers about the first record say nothing about the second one.
        mirror.on_stored(first, 9);
        mirror.on_stored(second, 9);
        mirror.on_failed(second, at(5_001));
        assert_eq!(mirror.stored().all.chunks, 3);
        mirror.on_stored(third, 10);
        assert_eq!(mirror.stored().all.chunks, 6);
        assert_eq!((mirror.counters().adopted, mirror.counters().repeated), (1, 1));
    }

    #[test]
    fn an_end_that_the_log_has_forgotten_is_stored_again() {
        let mut mirror = start();
        push(&mut mirror, 3, 10);
        let (attempt, ..) = store(&mut mirror, at(0));
        mirror.on_stored(attempt, 7);
        push(&mut mirror, 2, 10);
        mirror.push_end(b"end");
        let (attempt, expected, bytes) = store(&mut mirror, at(1));
        assert_eq!(expected, 7);
        mirror.on_stored(attempt, 8);
        assert_eq!(mirror.standing(), Standing::Ended);
        // The log has it.
        mirror.look_again(at(10));
        assert_eq!(mirror.standing(), Standing::Open);
        let attempt = look(&mut mirror, at(10));
        mirror.on_looked(attempt, Some(&last(8, 1)));
        assert_eq!((mirror.standing(), mirror.poll(at(11))), (Standing::Ended, None));
        // The log ends before it, or has nothing.
        for (found, expected) in [(Some(last(7, 0)), 7), (None, 0)] {
            mirror.look_again(at(20));
            let attempt = look(&mut mirror, at(20));
            mirror.on_looked(attempt, found.as_ref());
            let (attempt, place, again) = store(&mut mirror, at(21));
            assert_eq!((place, &again), (expected, &bytes));
            mirror.on_stored(attempt, 9);
            assert_eq!(mirror.standing(), Standing::Ended);
        }
        // Somebody else has ended it meanwhile.
        mirror.look_again(at(30));
        let attempt = look(&mut mirror, at(30));
        let header = Header { incarnation: OURS, number: 0, is_last: true, is_closer: true };
        let record = Some((header, Position::new(0)));
        mirror.on_looked(attempt, Some(&Last { place: 9, record }));
        assert_eq!(mirror.standing(), Standing::Fenced);
    }

    #[test]
    fn an_end_of_somebody_else_stops_it() {
        for is_closer in [false, true] {
            let mut mirror = start();
            push(&mut mirror, 1, 10);
            let (attempt, ..) = store(&mut mirror, at(0));
            mirror.on_failed(attempt, at(0));
            let attempt = look(&mut mirror, at(50));
            let incarnation = if is_closer { OURS } else { Incarnation(6) };
            let header = Header { incarnation, number: 0, is_last: is_closer, is_closer };
            mirror.on_looked(
                attempt,
                Some(&Last { place: 1, record: Some((header, Position::new(0))) }),
            );
            assert_eq!(mirror.standing(), Standing::Fenced);
            assert_eq!(mirror.poll(at(60)), None);
            push(&mut mirror, 1, 10);
            assert_eq!(mirror.poll(at(70)), None);
            assert_eq!(mirror.pending_bytes(), 0);
        }
    }

    #[test]
    fn the_oldest_chunks_become_a_gap_if_too_many_wait() {
        let mut mirror = start();
        mirror.set_pending_bytes_max(2 * CLUSTER_RECORD_BYTES);
        push(&mut mirror, 1, 1_000);
        let (attempt, ..) = store(&mut mirror, at(0));
        push(&mut mirror, 1_000, 1_000);
        mirror.push_note(NoteKind::Progress, b"old");
        mirror.push_note(NoteKind::Progress, b"new");
        mirror.push_end(b"end");
        assert!(mirror.pending_bytes() <= 2 * CLUSTER_RECORD_BYTES);
        mirror.on_stored(attempt, 1);
        let (mut position, mut given, mut missed, mut notes, mut end) =
            (mirror.stored, 1, 0, Vec::new(), None);
        let mut place = 1;
        while mirror.standing() == Standing::Open {
            let (attempt, expected, bytes) = store(&mut mirror, at(1));
            assert_eq!(expected, place);
            let record = Record::decode(&bytes).unwrap();
            assert_eq!(record.before, position);
            for item in record.items() {
                match item {
                    Item::Chunks(run) => given += u64::from(run.header.count),
                    Item::Gap { after, reason, .. } => {
                        assert_eq!(reason, GapReason::Unwritten);
                        missed = after.of(Kinds::ALL).chunks - position.all.chunks;
                    }
                    Item::Note(body) => notes.push(body.to_vec()),
                    Item::End(body) => end = Some(body.to_vec()),
                }
            }
            position = record.after;
            place += 1;
            mirror.on_stored(attempt, place);
        }
        assert_eq!((given + missed, mirror.counters().unwritten), (1_001, missed));
        assert!(given > 50 && missed > 800, "{given} {missed}");
        assert_eq!(position.all, Totals { chunks: 1_001, bytes: 1_001_000 });
        assert_eq!(notes, [b"\0new"]);
        assert_eq!(end.as_deref(), Some(&b"end"[..]));
    }

    #[test]
    fn gaps_of_the_reader_itself_are_in_their_place() {
        let mut mirror = start();
        push(&mut mirror, 2, 10);
        let mut after = mirror.position().totals;
        after.add(Kind::Stderr, Totals { chunks: 4, bytes: 44 });
        mirror.push_gap(&after, GapReason::Overtaken);
        push(&mut mirror, 1, 10);
        let mut seen = Vec::new();
        for place in 1..=3 {
            let (attempt, _, bytes) = store(&mut mirror, at(0));
            seen.push(Record::decode(&bytes).unwrap().after.all.chunks);
            mirror.on_stored(attempt, place);
        }
        assert_eq!(seen, [2, 6, 7]);
        assert_eq!(mirror.poll(at(0)), None);
    }

    #[test]
    fn the_longest_chunk_and_the_longest_details_find_room() {
        let mut mirror = start();
        let length = crate::limits::RING_CLASS_BYTES_MAX / 4;
        push(&mut mirror, 1, length);
        let details = vec![b'x'; crate::limits::CLUSTER_DETAILS_BYTES_MAX];
        for kind in [NoteKind::Progress, NoteKind::Expected] {
            mirror.push_note(kind, &details[1..]);
        }
        mirror.push_end(&details);
        let mut place = 0;
        while mirror.standing() == Standing::Open {
            let (attempt, _, bytes) = store(&mut mirror, at(0));
            Record::decode(&bytes).unwrap();
            place += 1;
            mirror.on_stored(attempt, place);
        }
        assert_eq!(place, 2);
    }
}
