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
//! Tests: `follow_tests.rs`; `sim/cluster` runs readers on a log that fails.

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
    /// The totals before the gap, by kind.
    pub before: KindTotals,
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

impl Counters {
    /// Adds the totals of another reader.
    pub fn add(&mut self, other: &Counters) {
        let Counters { records, pulls, seen, holes, damaged } = other;
        self.records += records;
        self.pulls += pulls;
        self.seen += seen;
        self.holes += holes;
        self.damaged += damaged;
    }
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

/// A place in a log between two records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landmark {
    /// The place of the record before it, in the order of the whole log; 0 at the beginning.
    pub place: u64,
    /// The number of the next record.
    pub number: u64,
    /// The position behind the record before it.
    pub position: Position,
}

impl Landmark {
    /// The beginning of a log.
    pub fn start() -> Landmark {
        Landmark { place: 0, number: 0, position: Position::new(0) }
    }

    /// The landmark before a record of this owner; `None` if it is damaged, or somebody else's.
    pub fn before(stored: &Stored<'_>, owner: Incarnation) -> Option<Landmark> {
        let Record { header, before, .. } = Record::decode(stored.bytes).ok()?;
        let is_right = header.incarnation == owner && !header.is_closer;
        let place = stored.place - 1;
        is_right.then_some(Landmark { place, number: header.number, position: before })
    }
}

/// A reader of one execution. See the module's text.
pub struct Follow {
    /// The owner.
    owner: Incarnation,
    /// The number of the record before which it stops. It then only pulls, and never listens.
    until: Option<u64>,
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
        Follow::starting(owner, Landmark::start(), now)
    }

    /// Begins at a place in the log of this owner.
    pub fn starting(owner: Incarnation, at: Landmark, now: Instant) -> Follow {
        let Landmark { place, number, position } = at;
        Follow {
            owner,
            until: None,
            attempt: Attempt::default(),
            listening: Listening::No,
            must_unlisten: false,
            pulling: Pulling::Due { at: now, from_leader: false },
            pauses: Pauses::default(),
            has_room: true,
            is_level: false,
            place,
            rotten: 0,
            number,
            heard: number,
            stale_count: 0,
            quiet_since: now,
            position,
            has_ended: false,
            counters: Counters::default(),
        }
    }

    /// Begins to read old records only: those from a place on, up to before number `until`. All of
    /// them are known to have been stored.
    pub fn of_history(owner: Incarnation, at: Landmark, until: u64, now: Instant) -> Follow {
        let follow = Follow::starting(owner, at, now);
        Follow { until: Some(until), heard: until, ..follow }
    }

    /// Lets a reader of old records that has read nothing yet begin at a place.
    pub fn move_to(&mut self, at: Landmark) {
        if self.counters.pulls == 0 {
            (self.place, self.number, self.position) = (at.place, at.number, at.position);
        }
    }

    /// True if a reader of old records has come to the record before which it stops.
    fn has_reached(&self) -> bool {
        self.until.is_some_and(|until| self.number >= until)
    }

    /// True if a reader of old records has given all of them, or has found that the rest is gone.
    pub fn has_all(&self) -> bool {
        self.has_ended || self.until.is_some() && self.is_level
    }

    /// The position behind everything that was given.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The place in the log behind everything that was given.
    pub fn landmark(&self) -> Landmark {
        Landmark { place: self.place, number: self.number, position: self.position }
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
        if self.has_all() {
            return None;
        }
        let listening = match self.listening {
            Listening::Asked { until, .. } => Some(until),
            _ => None,
        };
        let can_pull = self.has_room && self.is_ready_to_pull();
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
        if self.has_all() {
            return None;
        }
        self.look_at_clock(now);
        if !self.has_room {
            return None;
        }
        let until = now + CLUSTER_ANSWER_WAIT;
        if self.listening == Listening::No && self.until.is_none() {
            let attempt = self.next_attempt();
            self.listening = Listening::Asked { attempt, until };
            return Some((attempt, Wish::Listen));
        }
        match self.pulling {
            Pulling::Due { at, from_leader } if now >= at && self.is_ready_to_pull() => {
                let attempt = self.next_attempt();
                self.pulling = Pulling::Out { attempt, until, from_leader };
                self.counters.pulls += 1;
                let behind = if from_leader { self.place.max(self.rotten) } else { self.place };
                Some((attempt, Wish::Pull { behind, from_leader }))
            }
            _ => None,
        }
    }

    /// True if nothing that is stored from now on can be missed.
    fn is_ready_to_pull(&self) -> bool {
        self.listening == Listening::Yes || self.until.is_some()
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
            if stored.place > self.place && !self.has_ended && !self.has_reached() {
                has_any = true;
                if !self.take_pulled(&stored, from_leader, now, give) {
                    return true;
                }
            }
        }
        if self.has_ended || self.has_reached() {
            self.is_level |= self.until.is_some();
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
                self.is_level = self.is_ready_to_pull();
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
            give(Given::Gap(LogGap { before: self.position.totals, after, reason }));
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
#[path = "follow_tests.rs"]
mod tests;
