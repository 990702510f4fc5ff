//! The reader of the log of an execution: from any place, and then live.
//!
//! A reader asks for what was stored (*pulls*), and listens to what is being stored. Messages that
//! it hears can be lost, come late or come twice, and an answer to a pull can be an old one. The
//! numbers of the records are the only truth. A record with the next number is given, and one with
//! a smaller number was seen. One with a larger number shows a hole, and the reader pulls.
//!
//! A hole that the leader has, too, is a gap. The next record says exactly what is missing.
//!
//! The end is the last thing that a reader is given, with any number. A log that has forgotten
//! records can end before the reader's position.
//!
//! Invariants:
//! - R1: chunks are given in order, each once, and what is not given is in a gap.
//! - R2: nothing is given of a writer that is neither the owner nor the one who ends the execution
//!   of a lost node.
//! - R3: a hole becomes a gap only if the leader has said so.
//!
//! Tests: below; `sim/cluster` runs readers on a log that fails.

use super::mirror::Attempt;
use super::record::{Header, Incarnation, Item, Record};
use super::retry::Pauses;
use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::journal::block::Position;
use crate::limits::{CLUSTER_ANSWER_WAIT, CLUSTER_LOOK_AGAIN, CLUSTER_SILENCE};
use crate::stream::{GapReason, KindTotals, Kinds};

/// Something that the reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Listen to what is stored from now on. The answer comes when nothing can be missed any more.
    Listen,
    /// Listen no more.
    Unlisten,
    /// Return records behind this place of the log, in order.
    Pull {
        /// The place.
        behind: u64,
        /// True if only the leader may answer. The first record is enough then.
        from_leader: bool,
    },
}

/// A stored record as it comes to a reader.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// Its place in the order of the whole log.
    pub place: u64,
    /// True if the log has no earlier record of the execution.
    pub is_first: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Chunks that the log does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGap {
    /// The first one.
    pub from_seq: u64,
    /// The totals behind the gap, by kind.
    pub after: KindTotals,
    /// The reason.
    pub reason: GapReason,
}

/// Something for those who follow the execution.
#[derive(Clone, Copy, Debug)]
pub enum Given<'a> {
    /// A gap that nobody has recorded.
    Gap(LogGap),
    /// An item of a record.
    Item(Item<'a>),
}

/// The running totals of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of records that were given.
    pub records: u64,
    /// Number of pulls.
    pub pulls: u64,
    /// Number of records that were seen before.
    pub seen: u64,
    /// Number of holes that were found.
    pub holes: u64,
    /// Number of records that were damaged, or were of a stranger.
    pub damaged: u64,
}

/// Number of answers that know too little, after which the leader is asked.
const STALE_ANSWERS_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listening {
    No,
    Asked { attempt: Attempt, until: Instant },
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulling {
    No,
    /// It has to pull at this time.
    Due {
        at: Instant,
        from_leader: bool,
    },
    Out {
        attempt: Attempt,
        until: Instant,
        from_leader: bool,
    },
}

/// A reader of one execution. See the module's text.
pub struct Follow {
    /// The owner.
    owner: Incarnation,
    attempt: Attempt,
    listening: Listening,
    /// True if it has to say that it listens no more.
    must_unlisten: bool,
    pulling: Pulling,
    pauses: Pauses,
    /// True if the followers have room.
    has_room: bool,
    /// True if everything that was stored before is known, and what comes is heard.
    is_level: bool,
    /// The place of the last record that was given.
    place: u64,
    /// The place of the last record that the leader has damaged.
    rotten: u64,
    /// The number of the next record.
    number: u64,
    /// One more than the largest number that was heard.
    heard: u64,
    /// Number of answers, one behind the other, that knew less than what was heard.
    stale_count: u32,
    /// The time at which something was last heard or looked for.
    quiet_since: Instant,
    position: Position,
    has_ended: bool,
    counters: Counters,
}

impl Follow {
    /// Begins at the beginning of the log of this owner.
    pub fn new(owner: Incarnation, now: Instant) -> Follow {
        Follow {
            owner,
            attempt: Attempt::default(),
            listening: Listening::No,
            must_unlisten: false,
            pulling: Pulling::Due { at: now, from_leader: false },
            pauses: Pauses::default(),
            has_room: true,
            is_level: false,
            place: 0,
            rotten: 0,
            number: 0,
            heard: 0,
            stale_count: 0,
            quiet_since: now,
            position: Position::new(0),
            has_ended: false,
            counters: Counters::default(),
        }
    }

    /// The position behind everything that was given.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// True if everything is known that was stored before, and the reader hears what comes.
    pub fn is_level(&self) -> bool {
        self.is_level
    }

    /// True if the end was given.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The running totals.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The time at which [`Follow::poll`] has something to do without another cause.
    pub fn deadline(&self) -> Option<Instant> {
        if self.has_ended {
            return None;
        }
        let listening = match self.listening {
            Listening::Asked { until, .. } => Some(until),
            _ => None,
        };
        let can_pull = self.has_room && self.listening == Listening::Yes;
        let pulling = match self.pulling {
            Pulling::Out { until, .. } => Some(until),
            Pulling::Due { at, .. } if can_pull => Some(at),
            Pulling::No if can_pull => Some(self.quiet_since + CLUSTER_SILENCE),
            _ => None,
        };
        listening.into_iter().chain(pulling).min()
    }

    /// Returns the next wish. Several can be out at the same time.
    pub fn poll(&mut self, now: Instant) -> Option<(Attempt, Wish)> {
        if std::mem::take(&mut self.must_unlisten) {
            return Some((self.next_attempt(), Wish::Unlisten));
        }
        if self.has_ended {
            return None;
        }
        self.look_at_clock(now);
        if !self.has_room {
            return None;
        }
        let until = now + CLUSTER_ANSWER_WAIT;
        if self.listening == Listening::No {
            let attempt = self.next_attempt();
            self.listening = Listening::Asked { attempt, until };
            return Some((attempt, Wish::Listen));
        }
        match self.pulling {
            Pulling::Due { at, from_leader } if now >= at && self.listening == Listening::Yes => {
                let attempt = self.next_attempt();
                self.pulling = Pulling::Out { attempt, until, from_leader };
                self.counters.pulls += 1;
                let behind = if from_leader { self.place.max(self.rotten) } else { self.place };
                Some((attempt, Wish::Pull { behind, from_leader }))
            }
            _ => None,
        }
    }

    fn next_attempt(&mut self) -> Attempt {
        self.attempt.0 += 1;
        self.attempt
    }

    /// Gives up what is not answered, and looks after a silence if something was lost.
    fn look_at_clock(&mut self, now: Instant) {
        if matches!(self.listening, Listening::Asked { until, .. } if now >= until) {
            self.listening = Listening::No;
        }
        match self.pulling {
            Pulling::Out { until, from_leader, .. } if now >= until => {
                self.pulling = Pulling::Due { at: self.pauses.after(now), from_leader };
            }
            Pulling::No if self.has_room && now >= self.quiet_since + CLUSTER_SILENCE => {
                self.pull_at(now);
            }
            _ => {}
        }
    }

    /// Pulls at this time, if no pull is out or comes sooner.
    fn pull_at(&mut self, at: Instant) {
        match &mut self.pulling {
            Pulling::No => self.pulling = Pulling::Due { at, from_leader: false },
            Pulling::Due { at: due, .. } => *due = at.min(*due),
            Pulling::Out { .. } => {}
        }
    }

    /// The reader listens: everything that is stored from now on is heard, unless it gets lost.
    pub fn on_listening(&mut self, attempt: Attempt, now: Instant) {
        if matches!(self.listening, Listening::Asked { attempt: asked, .. } if asked == attempt) {
            self.listening = Listening::Yes;
            self.is_level = false;
            self.pull_at(now);
        }
    }

    /// The connection was lost, or is there again, or the server has cut the reader off because it
    /// was too slow. Something may not have been heard.
    pub fn on_connection(&mut self, now: Instant) {
        if planted(Planted::NoPullAfterReconnect) {
            self.quiet_since = Instant::FAR;
            return;
        }
        (self.listening, self.is_level) = (Listening::No, false);
        if let Pulling::Out { from_leader, .. } = self.pulling {
            self.pulling = Pulling::Due { at: now, from_leader };
        }
        self.pull_at(now);
    }

    /// The followers have room, or no room, for more.
    pub fn set_room(&mut self, has_room: bool, now: Instant) {
        if std::mem::replace(&mut self.has_room, has_room) == has_room || self.has_ended {
            return;
        }
        if has_room {
            self.pull_at(now);
        } else {
            self.must_unlisten = self.listening != Listening::No;
            (self.listening, self.is_level) = (Listening::No, false);
        }
    }

    /// Takes a record that was heard. `give` gets what follows from it, in order.
    pub fn on_heard(&mut self, stored: Stored<'_>, now: Instant, give: &mut dyn FnMut(Given<'_>)) {
        if self.has_ended || self.listening != Listening::Yes {
            return;
        }
        self.quiet_since = self.quiet_since.max(now);
        let Some(record) = self.checked(stored.bytes) else {
            self.pull_at(now);
            return;
        };
        let Header { number, is_last, .. } = record.header;
        self.heard = self.heard.max(number.saturating_add(1));
        let is_early = number > self.number && planted(Planted::LiveBeforeHistory);
        if self.is_next(&record) || is_early {
            self.apply(&stored, &record, give);
        } else if number < self.number && !is_last {
            self.counters.seen += 1;
        } else {
            self.is_level = false;
            self.pull_at(now);
        }
    }

    fn is_next(&self, record: &Record<'_>) -> bool {
        record.header.number == self.number && record.before == self.position
    }

    /// Takes the records of a pull, in order. `is_all` is true if the one who answered knows of no
    /// more. Returns false if the answer comes too late to count.
    pub fn on_pulled<'a>(
        &mut self,
        attempt: Attempt,
        records: impl IntoIterator<Item = Stored<'a>>,
        is_all: bool,
        now: Instant,
        give: &mut dyn FnMut(Given<'_>),
    ) -> bool {
        let Pulling::Out { attempt: asked, from_leader, .. } = self.pulling else { return false };
        if asked != attempt || self.has_ended {
            return false;
        }
        (self.pulling, self.quiet_since) = (Pulling::No, self.quiet_since.max(now));
        self.pauses.reset();
        let mut has_any = false;
        for stored in records {
            if stored.place > self.place && !self.has_ended {
                has_any = true;
                if !self.take_pulled(&stored, from_leader, now, give) {
                    return true;
                }
            }
        }
        if self.has_ended {
            return true;
        }
        if from_leader && !has_any {
            self.heard = self.number; // It is gone.
        }
        let is_whole = if from_leader { !has_any } else { is_all };
        let is_stale = self.number < self.heard;
        if is_stale && is_whole && planted(Planted::StaleEndOfLog) {
            (self.heard, self.quiet_since) = (self.number, Instant::FAR); // It never looks again.
        }
        match is_whole {
            true if self.number >= self.heard => {
                self.stale_count = 0;
                self.is_level = self.listening == Listening::Yes;
            }
            true => {
                self.stale_count += 1;
                let at = now + CLUSTER_LOOK_AGAIN;
                let from_leader = self.stale_count >= STALE_ANSWERS_MAX;
                self.pulling = Pulling::Due { at, from_leader };
            }
            false => self.pull_at(now),
        }
        true
    }

    /// Takes one record of a pull. Returns false if the leader has to say what follows.
    fn take_pulled(
        &mut self,
        stored: &Stored<'_>,
        from_leader: bool,
        now: Instant,
        give: &mut dyn FnMut(Given<'_>),
    ) -> bool {
        let Some(record) = self.checked(stored.bytes) else {
            if from_leader {
                self.rotten = stored.place;
            }
            self.ask_leader(now);
            return false;
        };
        let Header { number, is_last, .. } = record.header;
        if number < self.number && !is_last {
            self.counters.seen += 1;
            self.place = stored.place;
            return true;
        }
        if !from_leader && number >= self.number && !self.is_next(&record) {
            self.counters.holes += 1;
            self.ask_leader(now);
            return false;
        }
        self.apply(stored, &record, give);
        true
    }

    fn ask_leader(&mut self, now: Instant) {
        self.pulling = Pulling::Due { at: now + CLUSTER_LOOK_AGAIN, from_leader: true };
    }

    /// Gives everything of a record that the followers do not have.
    fn apply(&mut self, stored: &Stored<'_>, record: &Record<'_>, give: &mut dyn FnMut(Given<'_>)) {
        let missed = record.before.totals.checked_sub(&self.position.totals);
        if let Some(missed) = missed.map(|missed| missed.of(Kinds::ALL))
            && missed.chunks > 0
        {
            let mut after = record.before.totals;
            if planted(Planted::GapOfOneKind) {
                after = self.position.totals;
                after.add(crate::stream::Kind::Output, missed);
            }
            let reason = if stored.is_first { GapReason::Expired } else { GapReason::Corrupt };
            give(Given::Gap(LogGap { from_seq: self.position.next_seq(), after, reason }));
        }
        let is_behind = missed.is_none() || record.after.all.chunks < self.position.all.chunks;
        for item in record.items() {
            // A log that has forgotten something can say again what was given: only its end counts.
            if !is_behind || matches!(item, Item::End(_)) {
                give(Given::Item(item));
            }
        }
        if !is_behind {
            self.position = record.after;
        }
        self.number = self.number.max(record.header.number.saturating_add(1));
        self.place = stored.place;
        self.counters.records += 1;
        if record.header.is_last {
            self.has_ended = true;
            self.must_unlisten = self.listening != Listening::No;
        }
    }

    /// Returns the record if it is right, and of somebody who may write (R2).
    fn checked<'a>(&mut self, bytes: &'a [u8]) -> Option<Record<'a>> {
        let record = Record::decode(bytes).ok().filter(|record| {
            let Header { incarnation, is_last, is_closer, .. } = record.header;
            match is_closer {
                false => incarnation == self.owner,
                // It may say nothing but the end.
                true => is_last && record.before == record.after && record.items().count() == 1,
            }
        });
        self.counters.damaged += u64::from(record.is_none());
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::record::{Draft, tests::entry};
    use crate::stream::Kind;

    const OWNER: Incarnation = Incarnation(3);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// The records of a log: `count` of two chunks each, and the end.
    fn log(count: u64) -> Vec<Vec<u8>> {
        let mut position = Position::new(0);
        let record = |number| {
            let mut draft = Draft::new(OWNER, 4_096);
            for kind in [Kind::Stdout, Kind::Stderr] {
                let entry = entry(position.next_seq(), 3, kind);
                draft.append_chunk(&mut position, &entry, b"abc").unwrap();
            }
            if number + 1 == count {
                draft.append_end(&position, b"done").unwrap();
            }
            draft.finish(number, false)
        };
        (0..count).map(record).collect()
    }

    /// The end that a closer has written behind `number` records of two chunks.
    fn closed(number: u64, position: &Position) -> Vec<u8> {
        let mut draft = Draft::new(Incarnation(9), 4_096);
        draft.append_end(position, b"lost").unwrap();
        draft.finish(number, true)
    }

    /// The place of a record is ten more than its number.
    fn stored(log: &[Vec<u8>], number: usize) -> Stored<'_> {
        Stored { place: number as u64 + 10, is_first: number == 0, bytes: &log[number] }
    }

    struct Bench {
        follow: Follow,
        now: Instant,
        given: Vec<String>,
    }

    impl Bench {
        fn new() -> Bench {
            let mut follow = Follow::new(OWNER, at(0));
            let (attempt, wish) = follow.poll(at(0)).unwrap();
            assert_eq!((wish, follow.poll(at(0))), (Wish::Listen, None));
            follow.on_listening(attempt, at(0));
            Bench { follow, now: at(0), given: Vec::new() }
        }

        /// Takes the wish to pull.
        fn pull(&mut self, behind: u64, from_leader: bool) -> Attempt {
            self.now = self.now.max(self.follow.deadline().expect("it wants to pull"));
            let (attempt, wish) = self.follow.poll(self.now).unwrap();
            assert_eq!(wish, Wish::Pull { behind, from_leader });
            attempt
        }

        fn pulled<'a>(
            &mut self,
            attempt: Attempt,
            records: impl IntoIterator<Item = Stored<'a>>,
            is_all: bool,
        ) {
            let given = &mut self.given;
            let mut give = |item: Given<'_>| given.push(text(item));
            assert!(self.follow.on_pulled(attempt, records, is_all, self.now, &mut give));
        }

        fn heard(&mut self, stored: Stored<'_>) {
            let given = &mut self.given;
            let mut give = |item: Given<'_>| given.push(text(item));
            self.follow.on_heard(stored, self.now, &mut give);
        }
    }

    fn text(given: Given<'_>) -> String {
        match given {
            Given::Gap(gap) => {
                let last = gap.after.of(Kinds::ALL).chunks;
                format!("{} {}-{last}", gap.reason.name(), gap.from_seq)
            }
            Given::Item(Item::Chunks(run)) => format!("chunks {}", run.header.first_seq),
            Given::Item(Item::Gap { .. }) => "gap".to_owned(),
            Given::Item(Item::Note(_)) => "note".to_owned(),
            Given::Item(Item::End(details)) => String::from_utf8_lossy(details).into_owned(),
        }
    }

    #[test]
    fn history_comes_first_and_then_what_is_heard() {
        let log = log(6);
        let mut bench = Bench::new();
        let attempt = bench.pull(0, false);
        bench.heard(stored(&log, 3)); // It comes before the history.
        bench.pulled(attempt, [stored(&log, 0), stored(&log, 1)], false);
        let attempt = bench.pull(11, false);
        bench.pulled(attempt, [stored(&log, 2), stored(&log, 3)], true);
        assert!(bench.follow.is_level());
        bench.heard(stored(&log, 3)); // Once more.
        bench.heard(stored(&log, 4));
        bench.heard(stored(&log, 5));
        let expected =
            ["chunks 1", "chunks 3", "chunks 5", "chunks 7", "chunks 9", "chunks 11", "done"];
        assert_eq!(bench.given, expected);
        assert!(bench.follow.has_ended());
        assert_eq!(bench.follow.poll(at(9)).map(|(_, wish)| wish), Some(Wish::Unlisten));
        assert_eq!((bench.follow.poll(at(99_999)), bench.follow.deadline()), (None, None));
    }

    #[test]
    fn a_hole_is_pulled_and_is_a_gap_only_if_the_leader_has_it() {
        for leader_has_it in [true, false] {
            let log = log(4);
            let mut bench = Bench::new();
            let attempt = bench.pull(0, false);
            bench.pulled(attempt, [stored(&log, 0)], true);
            bench.heard(stored(&log, 2));
            let attempt = bench.pull(10, false);
            bench.pulled(attempt, [stored(&log, 2)], true); // Of a server that has lost it.
            assert_eq!(bench.given, ["chunks 1"]);
            let attempt = bench.pull(10, true);
            let next = if leader_has_it { 1 } else { 2 };
            bench.pulled(attempt, [stored(&log, next)], false);
            let expected: &[&str] = match leader_has_it {
                true => &["chunks 1", "chunks 3"],
                false => &["chunks 1", "corrupt 3-4", "chunks 5"],
            };
            assert_eq!(bench.given, expected);
        }
    }

    #[test]
    fn a_beginning_that_is_gone_has_expired() {
        let log = log(3);
        let mut bench = Bench::new();
        let first = Stored { is_first: true, ..stored(&log, 1) };
        let attempt = bench.pull(0, false);
        bench.pulled(attempt, [first], true);
        let attempt = bench.pull(0, true);
        bench.pulled(attempt, [first], false);
        assert_eq!(bench.given, ["expired 1-2", "chunks 3"]);
    }

    #[test]
    fn a_damaged_record_is_asked_of_the_leader_and_then_left_out() {
        let log = log(3);
        let mut damaged = log[1].clone();
        damaged[50] ^= 1;
        let broken = Stored { bytes: &damaged, ..stored(&log, 1) };
        let mut bench = Bench::new();
        let attempt = bench.pull(0, false);
        bench.pulled(attempt, [stored(&log, 0), broken, stored(&log, 2)], true);
        let attempt = bench.pull(10, true);
        bench.pulled(attempt, [broken], false);
        let attempt = bench.pull(11, true);
        bench.pulled(attempt, [stored(&log, 2)], false);
        assert_eq!(bench.given, ["chunks 1", "corrupt 3-4", "chunks 5", "done"]);
    }

    #[test]
    fn a_stranger_is_not_heard_and_a_closer_says_nothing_but_the_end() {
        let (log, mut bench) = (log(3), Bench::new());
        let attempt = bench.pull(0, false);
        bench.pulled(attempt, [stored(&log, 0)], true);
        let mut position = *bench.follow.position();
        let end = closed(1, &position);
        let mut draft = Draft::new(Incarnation(9), 4_096);
        draft.append_chunk(&mut position, &entry(3, 3, Kind::Output), b"xyz").unwrap();
        draft.append_end(&position, b"lost").unwrap();
        let stranger = draft.finish(1, false);
        let talks = {
            let mut draft = Draft::new(Incarnation(9), 4_096);
            draft.append_note(&position, b"note").unwrap();
            draft.append_end(&position, b"lost").unwrap();
            draft.finish(1, true)
        };
        for bytes in [&stranger, &talks] {
            bench.heard(Stored { place: 11, is_first: false, bytes });
        }
        assert_eq!((bench.follow.counters().damaged, bench.given.len()), (2, 1));
        bench.heard(Stored { place: 11, is_first: false, bytes: &end });
        assert_eq!(bench.given, ["chunks 1", "lost"]);
    }

    #[test]
    fn an_end_counts_although_the_log_has_forgotten_what_was_given() {
        let (log, mut bench) = (log(9), Bench::new());
        let attempt = bench.pull(0, false);
        bench.pulled(attempt, (0..4).map(|number| stored(&log, number)), true);
        let mut forgotten = Position::new(0);
        forgotten.pass(&entry(1, 3, Kind::Stdout));
        let end = closed(1, &forgotten);
        bench.heard(Stored { place: 20, is_first: false, bytes: &end });
        let attempt = bench.pull(13, false);
        bench.pulled(attempt, [Stored { place: 20, is_first: false, bytes: &end }], true);
        assert_eq!(bench.given.last().map(String::as_str), Some("lost"));
        assert_eq!(bench.given.len(), 5);
    }

    #[test]
    fn it_looks_after_a_silence_and_after_a_lost_connection() {
        let log = log(3);
        let mut bench = Bench::new();
        let attempt = bench.pull(0, false);
        bench.pulled(attempt, [stored(&log, 0)], true);
        assert_eq!(bench.follow.deadline(), Some(at(1_000)));
        let attempt = bench.pull(10, false);
        bench.pulled(attempt, [stored(&log, 1)], true);
        bench.follow.on_connection(at(1_500));
        assert!(!bench.follow.is_level());
        let (attempt, wish) = bench.follow.poll(at(1_500)).unwrap();
        assert_eq!(wish, Wish::Listen);
        bench.follow.on_listening(attempt, at(1_510));
        let attempt = bench.pull(11, false);
        bench.pulled(attempt, [stored(&log, 2)], true);
        assert_eq!(bench.given, ["chunks 1", "chunks 3", "chunks 5", "done"]);
    }

    #[test]
    fn without_room_it_neither_listens_nor_pulls() {
        let log = log(3);
        let mut bench = Bench::new();
        let attempt = bench.pull(0, false);
        bench.pulled(attempt, [stored(&log, 0)], true);
        bench.follow.set_room(false, at(10));
        assert_eq!(bench.follow.poll(at(10)).map(|(_, wish)| wish), Some(Wish::Unlisten));
        bench.heard(stored(&log, 1));
        assert_eq!((bench.follow.poll(at(60_000)), bench.follow.deadline()), (None, None));
        bench.follow.set_room(true, at(60_000));
        let (attempt, wish) = bench.follow.poll(at(60_000)).unwrap();
        assert_eq!(wish, Wish::Listen);
        bench.follow.on_listening(attempt, at(60_000));
        bench.now = at(60_000);
        let attempt = bench.pull(10, false);
        bench.pulled(attempt, [stored(&log, 1), stored(&log, 2)], true);
        assert_eq!(bench.given.len(), 4);
    }

    #[test]
    fn an_answer_that_knows_too_little_is_asked_again_and_then_the_leader() {
        let log = log(3);
        let mut bench = Bench::new();
        let attempt = bench.pull(0, false);
        bench.pulled(attempt, [stored(&log, 0)], true);
        bench.heard(stored(&log, 2));
        for _ in 0..STALE_ANSWERS_MAX {
            let attempt = bench.pull(10, false);
            bench.pulled(attempt, [], true);
            assert!(!bench.follow.is_level());
        }
        let attempt = bench.pull(10, true);
        bench.pulled(attempt, [stored(&log, 1)], false);
        let attempt = bench.pull(11, false);
        bench.pulled(attempt, [stored(&log, 2)], true);
        assert_eq!(bench.given, ["chunks 1", "chunks 3", "chunks 5", "done"]);
    }

    #[test]
    fn answers_that_are_late_do_not_count() {
        let log = log(3);
        let mut bench = Bench::new();
        let first = bench.pull(0, false);
        let again = bench.follow.deadline().unwrap();
        assert_eq!((again, bench.follow.poll(again)), (at(1_000), None));
        let second = bench.pull(0, false);
        let mut give = |item: Given<'_>| panic!("{item:?}");
        let late = bench.follow.on_pulled(first, [stored(&log, 0)], true, bench.now, &mut give);
        assert!(!late);
        bench.pulled(second, [stored(&log, 0)], true);
        assert_eq!(bench.given, ["chunks 1"]);
    }
}
