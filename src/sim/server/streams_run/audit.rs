//! The comparison of all streams with their records, with or without a crash before it.
//!
//! Everything that was answered is there. With a power cut, a server that answers what is only
//! written may lose what it has answered since the last sync. Nothing is there that was asked for
//! after the answer to something that is lost.

use super::Play;
use super::record::{Mark, Record, State};
use super::writer::{Ask, Carried};
use crate::sim::disk::DiskFaults;
use crate::sim::server::exchange::{Exchange, Outcome};
use crate::sim::server::timed_play::TimedPlay;
use crate::sim::world::SimFaults;
use crate::wire::durable::Offset;

/// Number of requests until an audit has its answer.
const ATTEMPTS_MAX: u32 = 400;
/// Number of turns until an answer is complete, and of pieces of it that are read in each.
const TURNS_MAX: u32 = 10_000;
const STEPS_PER_TURN: u32 = 16;

/// The end of the search for what is lost.
#[derive(Default)]
struct Losses {
    may_lose: bool,
    /// The last moment at which something was asked for that is there.
    survived: u64,
    /// The things that are lost, and the moments of their answers.
    lost: Vec<(u64, String)>,
}

impl Losses {
    /// Notes that something is lost that was answered.
    fn lose(&mut self, answered: Option<u64>, what: String) -> Result<(), String> {
        if !self.may_lose {
            return Err(format!("{what} is lost"));
        }
        self.lost.push((answered.unwrap_or(u64::MAX), what));
        Ok(())
    }
}

/// A stream, as a client sees it.
struct Seen {
    content: Vec<u8>,
    tail: u64,
    is_closed: bool,
}

impl Play {
    /// Compares all streams with their records. `may_lose` is true after a crash that may cost what
    /// was answered.
    pub(super) fn audit(&mut self, may_lose: bool) -> Result<(), String> {
        self.grounds.world.set_faults(SimFaults::NONE);
        self.disk.set_faults(DiskFaults::NONE);
        self.compare_all(may_lose)?;
        self.disk.set_faults(self.disk_faults.clone());
        self.grounds.world.set_faults(self.faults.clone());
        Ok(())
    }

    fn compare_all(&mut self, may_lose: bool) -> Result<(), String> {
        let mut losses = Losses { may_lose, ..Losses::default() };
        let mut found = Vec::new();
        for at in 0..self.records.len() {
            let (status, seen) = self.read_all(at)?;
            let path = self.records[at].path.clone();
            let context = |text| format!("{path}, {status}: {text}");
            found.push(status);
            match seen {
                None => self.miss(at, &mut losses),
                Some(seen) => self.compare(at, &seen, &mut losses),
            }
            .map_err(context)?;
        }
        self.drop_forks();
        for (answered, what) in &losses.lost {
            self.grounds.say(|| format!("{what} is lost"));
            if *answered <= self.safe {
                return Err(format!("{what} is lost, and was synced"));
            }
            if *answered < losses.survived {
                return Err(format!("{what} is lost, and something later is there"));
            }
        }
        self.grounds.counts.lost += losses.lost.len() as u64;
        for reader in &mut self.readers {
            reader.go_back(&self.records);
        }
        for at in 0..self.records.len() {
            self.check_offsets(at, found[at])?;
            self.check_removed(at, &found)?;
        }
        self.grounds.counts.audits += 1;
        Ok(())
    }

    /// Sends a request until it is answered.
    fn ask(&mut self, request: &str) -> Result<Exchange, String> {
        let mut last = String::new();
        for _ in 0..ATTEMPTS_MAX {
            let grounds = &mut self.grounds;
            if let Some(mut exchange) = Exchange::begin(&grounds.world, &grounds.address, request) {
                for turn in 0..TURNS_MAX {
                    for _ in 0..STEPS_PER_TURN {
                        exchange.step(&self.grounds.world, &mut self.grounds.random)?;
                    }
                    if exchange.outcome.is_some() {
                        break;
                    }
                    self.turn();
                    self.pass(1 << (14 + turn.min(10)));
                }
                exchange.close(&self.grounds.world);
                let is_busy = matches!(exchange.status, Some(429 | 503));
                match exchange.outcome {
                    None => return Err(format!("no answer: {request}")),
                    Some(Outcome::Complete) if !is_busy => return Ok(exchange),
                    Some(outcome) => {
                        let body = String::from_utf8_lossy(&exchange.body);
                        last = format!("{outcome:?} {:?} {body}", exchange.status);
                    }
                }
            }
            self.pass(1 << 24);
        }
        Err(format!("{last} instead of an answer: {request}"))
    }

    /// Reads a stream from an offset to its end.
    fn read_from(&mut self, at: usize, mut offset: String) -> Result<(u16, Option<Seen>), String> {
        let mut content = Vec::new();
        loop {
            let request = self.records[at].request("GET", &format!("?offset={offset}"));
            let reply = self.ask(&request)?;
            let status = reply.status.unwrap_or(0);
            if [404, 410].contains(&status) && content.is_empty() {
                return Ok((status, None));
            }
            let body = String::from_utf8_lossy(&reply.body);
            if status != 200 {
                let path = &self.records[at].path;
                return Err(format!("{path} from {offset} was answered {status} {body}"));
            }
            content.extend(self.records[at].bytes_of(&reply.body)?);
            let next = reply.said.next_offset.ok_or("it has no offset")?;
            if reply.said.is_up_to_date {
                let is_closed = reply.said.is_closed;
                return Ok((status, Some(Seen { content, tail: next.0, is_closed })));
            }
            offset = next.to_string();
        }
    }

    fn read_all(&mut self, at: usize) -> Result<(u16, Option<Seen>), String> {
        self.read_from(at, "-1".to_owned())
    }

    /// Sets what is known of the request of the writer that waits for this answer.
    fn learn_of(&mut self, at: usize, ask: Ask, carried: Carried) {
        for writer in &mut self.writers {
            if let Some(task) = &mut writer.task
                && (task.stream, task.ask) == (at, ask)
            {
                task.carried = carried;
                self.grounds.counts.settled += 1;
            }
        }
    }

    /// Gives up the requests about a stream that fit.
    fn drop_tasks(&mut self, at: usize, fits: impl Fn(Ask, &Record) -> bool) {
        for writer in &mut self.writers {
            let is_dropped =
                writer.task.take_if(|task| task.stream == at && fits(task.ask, &self.records[at]));
            if let Some(task) = is_dropped
                && let Ask::Piece(piece) = task.ask
            {
                self.records[at].pieces[piece].state = State::Absent;
            }
        }
    }

    /// Handles a stream that is not there.
    fn miss(&mut self, at: usize, losses: &mut Losses) -> Result<(), String> {
        let record = &self.records[at];
        let first = &record.pieces[0];
        match (first.state, record.removal) {
            (State::Pending, _) => self.learn_of(at, Ask::Piece(0), Carried::No),
            (State::Absent | State::Doubtful, _) => {}
            (State::There, Some(_)) => self.learn_of(at, Ask::Remove, Carried::Yes),
            (State::There, None) => {
                losses.lose(first.answered, format!("the creation of {}", record.path))?;
                self.drop_tasks(at, |_, _| true);
                let pieces = &mut self.records[at].pieces;
                pieces.iter_mut().for_each(|piece| piece.state = State::Absent);
            }
        }
        Ok(())
    }

    /// Compares a stream that is there with its record.
    fn compare(&mut self, at: usize, seen: &Seen, losses: &mut Losses) -> Result<(), String> {
        let now = self.grounds.moment;
        let record = &mut self.records[at];
        if record.pieces[0].state == State::Absent {
            return Err("it was never created".to_owned());
        }
        match record.removal {
            None => {}
            Some(removal) if removal.state == State::There => {
                losses.lose(removal.answered, "its removal".to_owned())?;
                record.removal = None;
            }
            Some(_) => self.learn_of(at, Ask::Remove, Carried::No),
        }
        let record = &mut self.records[at];
        let places = places_of(record, &seen.content)?;
        let other_closer = |record: &Record, at: usize| record.may_be_closed(Some(at));
        let mut settled = Vec::new();
        for (number, place) in places.into_iter().enumerate() {
            let has_others = other_closer(record, number);
            let piece = &mut record.pieces[number];
            let is_there = match (place, piece.closes) {
                (Some(_), _) => Some(true),
                (None, _) if !piece.bytes.is_empty() => Some(false),
                (None, false) => Some(true), // The creation of an empty stream.
                (None, true) if !seen.is_closed => Some(number == 0 && !piece.closes),
                (None, true) => (number == 0 || !has_others).then_some(true),
            };
            if piece.at.is_some() && place.is_some() && piece.at != place {
                return Err(format!("an append has moved from {:?} to {place:?}", piece.at));
            }
            if place.is_some() {
                losses.survived = losses.survived.max(piece.sent);
                piece.at = place;
            }
            match (piece.state, is_there) {
                (State::There, Some(false)) => {
                    let what = format!("append {number} of {}, {:?}", record.path, piece.mark);
                    piece.state = State::Absent;
                    losses.lose(piece.answered, what)?;
                }
                (State::Pending, _) => {
                    let carried = match is_there {
                        Some(true) => Carried::Yes,
                        Some(false) => Carried::No,
                        None => Carried::Unknown,
                    };
                    settled.push((number, carried));
                }
                (State::Doubtful, Some(true)) => {
                    (piece.state, piece.answered) = (State::There, Some(now));
                    learn_number(&mut record.producers, piece.mark);
                }
                (State::Doubtful, Some(false)) => piece.state = State::Absent,
                (State::Absent, Some(true)) if place.is_some() => {
                    return Err(format!("append {number} was refused, and is there"));
                }
                _ => {}
            }
        }
        check_end(record, seen, losses.may_lose)?;
        if losses.may_lose {
            forget_lost(record, seen);
        }
        for (number, carried) in settled {
            self.learn_of(at, Ask::Piece(number), carried);
        }
        self.drop_unnumbered(at);
        Ok(())
    }

    /// Gives up appends whose predecessors are lost, or were in doubt and are there. They cannot be
    /// accepted any more.
    fn drop_unnumbered(&mut self, at: usize) {
        self.drop_tasks(at, |ask, record| {
            let Ask::Piece(number) = ask else { return false };
            let Mark::Producer { writer, epoch, seq } = record.pieces[number].mark else {
                return false;
            };
            let (known_epoch, next_seq) = record.producers[writer];
            let is_next = (epoch, seq) == (known_epoch, next_seq);
            let is_last = epoch == known_epoch && seq + 1 == next_seq;
            let is_new = epoch > known_epoch && seq == 0;
            !(is_next || is_last || is_new)
        });
    }

    /// Gives up forks whose source has lost the place at which they leave it.
    fn drop_forks(&mut self) {
        for at in 0..self.records.len() {
            let record = &self.records[at];
            let Some((source, offset)) = record.source else { continue };
            let is_at = self.records[source].marks.get(&offset) == Some(&record.inherited.len());
            let is_there = self.records[source].pieces[0].state == State::There;
            if record.pieces[0].state == State::Pending && !(is_at && is_there) {
                self.drop_tasks(at, |ask, _| ask == Ask::Piece(0));
            }
        }
    }

    /// Reads from some offsets that were given before.
    fn check_offsets(&mut self, at: usize, status: u16) -> Result<(), String> {
        if status != 200 {
            return Ok(());
        }
        let record = &self.records[at];
        let behind =
            |piece: &super::record::Piece| Some((piece.end?, piece.at? + piece.bytes.len()));
        let all: Vec<(u64, usize)> = record
            .pieces
            .iter()
            .filter(|piece| piece.state == State::There)
            .filter_map(behind)
            .chain(record.marks.iter().map(|(offset, place)| (*offset, *place)))
            .collect();
        for _ in 0..all.len().min(3) {
            let (offset, place) = all[self.grounds.random.below(all.len() as u64) as usize];
            let (_, seen) = self.read_from(at, Offset(offset).to_string())?;
            let seen = seen.map(|seen| seen.content).unwrap_or_default();
            let record = &self.records[at];
            if record.known.get(place..) != Some(&seen[..]) {
                let (path, bytes) = (&record.path, record.known.len());
                let count = seen.len();
                return Err(format!("{path} has {count} bytes from {offset}, {place} of {bytes}"));
            }
            self.grounds.counts.offsets += 1;
        }
        Ok(())
    }

    /// Checks that a removed stream is 410 as long as a fork needs it.
    fn check_removed(&mut self, at: usize, found: &[u16]) -> Result<(), String> {
        if found[at] == 200 {
            return Ok(());
        }
        let is_fork = |(fork, record): (usize, &Record)| {
            record.source.is_some_and(|(source, _)| source == at) && found[fork] != 404
        };
        let is_needed = self.records.iter().enumerate().any(is_fork);
        let expected = if is_needed { 410 } else { 404 };
        let request = self.records[at].request("GET", "");
        let mut status = 0;
        for _ in 0..ATTEMPTS_MAX {
            status = self.ask(&request)?.status.unwrap_or(0);
            if status == expected {
                self.grounds.counts.kept_for_forks += u64::from(is_needed);
                return Ok(());
            }
            self.pass(1 << 24); // Its removal may wait for the disk.
        }
        Err(format!("{} was removed, and is answered {status}", self.records[at].path))
    }
}

/// Finds all pieces in the content of a stream. Each byte belongs to one of them.
fn places_of(record: &Record, content: &[u8]) -> Result<Vec<Option<usize>>, String> {
    let mut places = vec![None; record.pieces.len()];
    let mut place = record.inherited.len();
    if !content.starts_with(&record.inherited) {
        return Err("it does not begin with its source".to_owned());
    }
    let mut last_end = 0;
    let mut last = None;
    while place < content.len() {
        let rest = &content[place..];
        let is_next = |at: &usize| {
            let bytes = &record.pieces[*at].bytes;
            places[*at].is_none() && !bytes.is_empty() && rest.starts_with(bytes)
        };
        let found = (0..record.pieces.len()).find(is_next);
        let found = found.ok_or_else(|| {
            let shown = String::from_utf8_lossy(&rest[..rest.len().min(40)]);
            format!("the bytes at {place} of {} are of no append: {shown}", content.len())
        })?;
        let piece = &record.pieces[found];
        if last.is_none() && found > 0 && !record.pieces[0].bytes.is_empty() {
            return Err("its first content is not the first".to_owned());
        }
        if last.is_some_and(|last: usize| record.pieces[last].closes) {
            return Err("something is behind the append that has closed it".to_owned());
        }
        if let Some(end) = piece.end {
            if end < last_end + piece.bytes.len() as u64 {
                return Err(format!("the append that was answered at {end} is behind {last_end}"));
            }
            last_end = end;
        }
        places[found] = Some(place);
        (place, last) = (place + piece.bytes.len(), Some(found));
    }
    if record.pieces[0].bytes.is_empty() || places[0].is_some() {
        return Ok(places);
    }
    Err("its first content is not there".to_owned())
}

/// Compares the end of a stream and what was read of it before.
fn check_end(record: &mut Record, seen: &Seen, may_lose: bool) -> Result<(), String> {
    let has_closed = |piece: &super::record::Piece| {
        let is_there = piece.at.is_some() || piece.bytes.is_empty();
        piece.closes && is_there && piece.state != State::Absent
    };
    if seen.is_closed && !record.pieces.iter().any(has_closed) {
        return Err("nobody has closed it".to_owned());
    }
    let closes = |piece: &super::record::Piece| piece.closes && piece.at.is_some();
    let is_there = |piece: &super::record::Piece| piece.state != State::Absent;
    if !seen.is_closed && record.pieces.iter().any(|piece| closes(piece) && is_there(piece)) {
        return Err("it has the append that closes it, and is open".to_owned());
    }
    let was_closed = record.is_known_whole || record.is_told_closed;
    if was_closed && !seen.is_closed && !may_lose {
        return Err("it is not closed any more".to_owned());
    }
    record.is_known_whole = seen.is_closed;
    record.is_told_closed = seen.is_closed;
    let (before, now) = (record.known.len(), seen.content.len());
    let is_more = seen.content.starts_with(&record.known);
    let is_less = may_lose && record.known.starts_with(&seen.content);
    if !(is_more || is_less) {
        return Err(format!("it has other bytes than before, {now} after {before}"));
    }
    record.known.clone_from(&seen.content);
    record.marks.entry(seen.tail).or_insert(now);
    Ok(())
}

/// Learns the next number of a producer from an append that is there.
fn learn_number(producers: &mut [(u64, u64)], mark: Mark) {
    if let Mark::Producer { writer, epoch, seq } = mark {
        producers[writer] = producers[writer].max((epoch, seq + 1));
    }
}

/// Forgets the offsets and the numbers that a power cut has cost.
fn forget_lost(record: &mut Record, seen: &Seen) {
    let length = record.known.len();
    record.marks.retain(|offset, place| *offset <= seen.tail && *place <= length);
    for writer in 0..record.producers.len() {
        let next = |piece: &super::record::Piece| match piece.mark {
            Mark::Producer { writer: by, epoch, seq } if by == writer => {
                (piece.state == State::There).then_some((epoch, seq + 1))
            }
            _ => None,
        };
        record.producers[writer] = record.pieces.iter().rev().find_map(next).unwrap_or((0, 0));
    }
}
