//! A client that creates, forks, appends to, closes and removes streams, one request after another.
//! If it gets no answer, it repeats the request as long as the server can tell that.

use std::time::Duration;

use super::record::{Mark, Piece, Record, Removal, State, draw_body};
use super::{Counts, Grounds};
use crate::base::{Instant, Random};
use crate::sim::server::exchange::{Exchange, Outcome, StreamHeaders};

/// Number of streams that are not removed, at most.
const STREAMS_MAX: usize = 8;
/// Number of appends to a stream.
const PIECES_MAX: usize = 40;
/// Time before a request is repeated. The server has read everything of the one before by then.
const REPEATED_AFTER: Duration = Duration::from_millis(50);

/// A client that writes.
pub(super) struct Writer {
    pub number: usize,
    pub task: Option<Task>,
}

/// A request and its repetitions.
pub(super) struct Task {
    pub stream: usize,
    pub ask: Ask,
    /// The knowledge about the requests so far.
    pub carried: Carried,
    pub exchange: Option<Exchange>,
    not_before: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// The creation, or an append.
    Piece(usize),
    Remove,
}

/// The knowledge about the requests of a task that had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    No,
    Yes,
    Unknown,
}

/// The meaning of an answer.
enum Judged {
    /// The request was carried out.
    There,
    /// It was not, and never will be.
    Absent,
    /// Nobody can know.
    Doubtful,
    /// The server has no room, or the request has come too slowly.
    Busy,
}

impl Writer {
    /// Chooses a request, sends a part of it, or takes an answer.
    pub fn step(&mut self, grounds: &mut Grounds, records: &mut Vec<Record>) -> Result<(), String> {
        let Some(task) = &mut self.task else {
            if !grounds.is_calm && grounds.random.chance(1, 3) {
                self.task = self.choose(grounds, records);
            }
            return Ok(());
        };
        let Some(exchange) = &mut task.exchange else {
            if grounds.world.now() < task.not_before {
                return Ok(());
            }
            let record = &records[task.stream];
            let request = match task.ask {
                Ask::Remove => record.request("DELETE", ""),
                Ask::Piece(at) => {
                    let source = record.source.map(|(source, _)| records[source].path.as_str());
                    record.request_of(at, source)
                }
            };
            task.exchange = Exchange::begin(&grounds.world, &grounds.address, &request);
            return Ok(());
        };
        exchange.step(&grounds.world, &mut grounds.random)?;
        let Some(outcome) = exchange.outcome else { return Ok(()) };
        let exchange = task.exchange.take().expect("it was just there");
        exchange.close(&grounds.world);
        match outcome {
            Outcome::Cut => {
                self.lose_answer(grounds, records);
                Ok(())
            }
            Outcome::Complete => {
                let status = exchange.status.unwrap_or(0);
                let body = String::from_utf8_lossy(&exchange.body).into_owned();
                grounds.say(|| format!("writer {} has {status}: {body}", self.number));
                let task = self.task.as_ref().expect("it was just there");
                records[task.stream].is_told_closed |= exchange.said.is_closed;
                let judged = judge(records, task, status, &body, &mut grounds.counts);
                let judged = judged.ok_or_else(|| {
                    let (ask, carried) = (task.ask, task.carried);
                    let path = &records[task.stream].path;
                    format!(
                        "{path}: {ask:?}, carried out: {carried:?}, was answered {status} {body}"
                    )
                })?;
                self.take(judged, exchange.said, status, grounds, records);
                Ok(())
            }
        }
    }

    /// Ends the connection, or loses it to a crash.
    pub fn cut(&mut self, grounds: &mut Grounds, records: &mut [Record]) {
        if let Some(mut exchange) = self.task.as_mut().and_then(|task| task.exchange.take()) {
            exchange.leave(&grounds.world, &mut grounds.random);
            grounds.counts.cuts += 1;
            self.lose_answer(grounds, records);
        }
    }

    fn lose_answer(&mut self, grounds: &Grounds, records: &mut [Record]) {
        let Some(task) = &mut self.task else { return };
        task.carried = Carried::Unknown;
        task.not_before = grounds.world.now() + REPEATED_AFTER;
        if let Ask::Piece(at) = task.ask
            && at > 0
            && records[task.stream].pieces[at].mark == Mark::Plain
        {
            // A repetition would be another append.
            records[task.stream].pieces[at].state = State::Doubtful;
            self.task = None;
        }
    }

    fn take(
        &mut self,
        judged: Judged,
        said: StreamHeaders,
        status: u16,
        grounds: &mut Grounds,
        records: &mut [Record],
    ) {
        let task = self.task.as_mut().expect("it was just answered");
        let state = match judged {
            Judged::Busy => {
                grounds.counts.busy += 1;
                task.not_before = grounds.world.now() + REPEATED_AFTER;
                return;
            }
            Judged::There => State::There,
            Judged::Absent => State::Absent,
            Judged::Doubtful => State::Doubtful,
        };
        let record = &mut records[task.stream];
        let is_there = state == State::There;
        let answered = is_there.then_some(grounds.moment);
        match task.ask {
            Ask::Remove => {
                let removal = record.removal.as_mut().expect("it was asked for");
                (removal.state, removal.answered) = (state, answered);
                grounds.counts.removals += 1;
            }
            Ask::Piece(at) => {
                let piece = &mut record.pieces[at];
                (piece.state, piece.answered) = (state, answered);
                // The answer to a repetition has the present end.
                let is_first = match piece.mark {
                    Mark::Producer { .. } => status == 200,
                    Mark::Order(_) | Mark::Plain => status == 204,
                };
                if is_there && is_first && at > 0 && !piece.bytes.is_empty() {
                    piece.end = said.next_offset.map(|offset| offset.0);
                }
                if let (true, Mark::Producer { writer, epoch, seq }) = (is_there, piece.mark) {
                    record.producers[writer] = (epoch, seq + 1);
                }
                grounds.counts.appends += u64::from(is_there && at > 0);
                grounds.counts.creations += u64::from(is_there && at == 0);
                grounds.counts.closings += u64::from(is_there && piece.closes);
                grounds.counts.doubtful += u64::from(state == State::Doubtful);
            }
        }
        self.task = None;
    }

    fn choose(&self, grounds: &mut Grounds, records: &mut Vec<Record>) -> Option<Task> {
        let random = &mut grounds.random;
        let left = records.iter().filter(|record| !record.is_removed()).count();
        let usable: Vec<usize> = (0..records.len()).filter(|at| records[*at].is_usable()).collect();
        let drawn = usable.get(random.below(usable.len().max(1) as u64) as usize).copied();
        let (stream, ask) = match (drawn, random.below(24)) {
            (None, _) | (_, 0..=2) if left < STREAMS_MAX => {
                self.create(drawn, grounds, records);
                (records.len() - 1, Ask::Piece(0))
            }
            (Some(at), 3) if usable.len() > 2 && random.chance(1, 2) => {
                records[at].removal = Some(Removal { state: State::Pending, answered: None });
                (at, Ask::Remove)
            }
            (Some(at), _) if records[at].pieces.len() < PIECES_MAX => {
                let is_over = records[at].is_closed();
                if is_over && !random.chance(1, 8) {
                    return None;
                }
                let piece = self.append(random, grounds.moment, &mut records[at]);
                records[at].pieces.push(piece);
                (at, Ask::Piece(records[at].pieces.len() - 1))
            }
            _ => return None,
        };
        grounds.say(|| {
            let record = &records[stream];
            let piece = match ask {
                Ask::Piece(at) => record.pieces.get(at),
                Ask::Remove => None,
            };
            let what =
                piece.map(|piece| (piece.mark, piece.bytes.len(), piece.closes, record.source));
            format!("writer {} begins {} {ask:?} {what:?}", self.number, record.path)
        });
        let not_before = grounds.world.now();
        Some(Task { stream, ask, carried: Carried::No, exchange: None, not_before })
    }

    /// Enters a new stream, which may be a fork of another one.
    fn create(&self, source: Option<usize>, grounds: &mut Grounds, records: &mut Vec<Record>) {
        let random = &mut grounds.random;
        let path = format!("{}/{}", ["a", "b/c"][records.len() % 2], records.len());
        let fork = source.filter(|_| random.chance(1, 2)).and_then(|at| {
            let marks: Vec<(u64, usize)> =
                records[at].marks.iter().map(|(offset, place)| (*offset, *place)).collect();
            let any = random.below(marks.len().max(1) as u64) as usize;
            Some((at, *marks.get(any)?))
        });
        let is_json = match fork {
            Some((at, _)) => records[at].is_json,
            None => random.chance(1, 3),
        };
        let (body, bytes) = match random.chance(1, 2) {
            true => draw_body(is_json, random),
            false => (Vec::new(), Vec::new()),
        };
        let closes = random.chance(1, 20);
        let first = Piece::new(body, bytes, Mark::Plain, closes, grounds.moment);
        let mut record = Record::new(path, is_json, grounds.writer_count, first);
        if let Some((at, (offset, place))) = fork {
            record.source = Some((at, offset));
            record.inherited = records[at].known[..place].to_vec();
            record.known.clone_from(&record.inherited);
            record.marks = records[at].marks.range(..=offset).map(|(o, p)| (*o, *p)).collect();
            grounds.counts.forks += 1;
        }
        record.marks.insert(0, 0);
        records.push(record);
    }

    fn append(&self, random: &mut Random, sent: u64, record: &mut Record) -> Piece {
        let closes = random.chance(1, 25);
        let mark = match random.below(8) {
            0..=2 => Mark::Plain,
            3 => {
                record.next_order += 1;
                Mark::Order(record.next_order)
            }
            _ => {
                let (mut epoch, mut seq) = record.producers[self.number];
                if random.chance(1, 20) {
                    (epoch, seq) = (epoch + 1, 0);
                }
                Mark::Producer { writer: self.number, epoch, seq }
            }
        };
        let (body, bytes) = match closes && random.chance(1, 2) {
            true => (Vec::new(), Vec::new()),
            false => draw_body(record.is_json, random),
        };
        Piece::new(body, bytes, mark, closes, sent)
    }
}

impl Piece {
    fn new(body: Vec<u8>, bytes: Vec<u8>, mark: Mark, closes: bool, sent: u64) -> Piece {
        let (state, end, at, answered) = (State::Pending, None, None, None);
        Piece { body, bytes, mark, closes, state, end, at, sent, answered }
    }
}

/// Returns the meaning of an answer; `None` if the server must not give it.
fn judge(
    records: &[Record],
    task: &Task,
    status: u16,
    body: &str,
    counts: &mut Counts,
) -> Option<Judged> {
    use Carried::{No, Unknown, Yes};
    let (carried, record) = (task.carried, &records[task.stream]);
    if [408, 429, 503, 507].contains(&status) {
        return Some(Judged::Busy);
    }
    let Ask::Piece(at) = task.ask else {
        return match (status, carried) {
            (204, No | Unknown) | (404 | 410, Yes | Unknown) => Some(Judged::There),
            _ => None,
        };
    };
    let piece = &record.pieces[at];
    if at == 0 {
        return match (status, carried) {
            (201, No | Unknown) => Some(Judged::There),
            (200, Yes | Unknown) => {
                counts.repeated += 1;
                Some(Judged::There)
            }
            // The source was removed meanwhile.
            (404 | 409, No | Unknown) => {
                let (source, _) = record.source?;
                let is_gone = records[source].removal.is_some();
                let is_told = status == 404 || body.contains("stream_gone");
                (is_gone && is_told).then_some(Judged::Absent)
            }
            _ => None,
        };
    }
    if [404, 410].contains(&status) {
        return record.removal.is_some().then_some(Judged::Doubtful);
    }
    let is_producer = matches!(piece.mark, Mark::Producer { .. });
    if status == 409 {
        let is_explained = if body.contains("stream_closed") {
            let repeats_end = piece.closes && !is_producer && carried != No;
            record.may_be_closed(Some(at)) || repeats_end
        } else {
            let Mark::Order(order) = piece.mark else { return None };
            let is_sequence = body.contains("sequence_conflict");
            is_sequence && (carried != No || record.next_order > order)
        };
        return match (is_explained, carried) {
            (false, _) => None,
            (true, No) => Some(Judged::Absent),
            (true, Yes) => Some(Judged::There),
            (true, Unknown) => Some(Judged::Doubtful),
        };
    }
    let is_bare = piece.bytes.is_empty();
    match (status, is_producer && !is_bare) {
        (200, true) if carried != Yes => Some(Judged::There),
        (204, true) if carried != No => {
            counts.repeated += 1;
            Some(Judged::There)
        }
        (204, false) if is_bare || carried != Yes => Some(Judged::There),
        _ => None,
    }
}
