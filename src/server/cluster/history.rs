//! Chunks of replicas for those who come late: the questions that a disk would answer otherwise.
//!
//! The thread of the node reads the log for each subscriber, from its next chunk on. Parts of it
//! wait here. The subscriber takes them run by run, and more is read while little waits. A gap in
//! the log comes with its counts, and is told as it is.

use std::collections::VecDeque;
use std::rc::Rc;

use super::port::ReaderName;
use super::{ToCluster, replicas};
use crate::base::planted::{Planted, planted};
use crate::base::{ExecutionId, SubscriberId};
use crate::cluster::follow::LogGap;
use crate::cluster::piece::Piece;
use crate::engine::{Fetched, Log};
use crate::journal::block::Run;
use crate::limits;
use crate::reactor::Reactor;
use crate::server::{ServerShard, peers};
use crate::shard::outlet::Question;
use crate::stream::{GapReason, KindTotals, Kinds, Totals};

/// A subscriber that is given chunks of a log.
pub(super) struct Reader {
    name: ReaderName,
    execution: ExecutionId,
    /// The totals of all chunks that the log had when it began, by kind. It reads no more.
    until: KindTotals,
    /// A chunk, and the totals of all before it, by kind. All of them were given or told of.
    passed: (u64, KindTotals),
    /// The question that is not answered.
    question: Option<Question>,
    pieces: VecDeque<Rc<Piece>>,
    /// Bytes of these pieces.
    pieces_bytes: usize,
    /// Number of parts that were asked for and have not come.
    asked_count: u32,
    /// True if nothing follows.
    is_all: bool,
}

impl Reader {
    /// True if one part more has to be asked for. It then counts as asked for.
    fn wants_more(&mut self) -> bool {
        let has_little = self.pieces_bytes <= limits::CLUSTER_PULL_BYTES as usize;
        let wants_more =
            has_little && !self.is_all && self.asked_count < limits::CLUSTER_PARTS_AHEAD;
        self.asked_count += u32::from(wants_more);
        wants_more
    }

    /// One past the last chunk that it reads.
    fn until_seq(&self) -> u64 {
        self.until.of(Kinds::ALL).chunks + 1
    }
}

/// Takes a question for chunks of a replica.
pub(in crate::server) fn look_back<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    question: Question,
) {
    let execution = shard.run_mut(question.execution).id;
    let subscriber = question.subscriber;
    let cluster = &mut shard.guests.cluster;
    let goes_on = cluster.readers.get(&subscriber).is_some_and(|reader| {
        let first = reader.pieces.front().map(|piece| seqs_of(piece).0);
        reader.execution == execution
            && question.from_seq < reader.until_seq()
            && first.is_none_or(|first| first <= question.from_seq)
    });
    if !goes_on {
        begin(shard, execution, &question);
    }
    let cluster = &mut shard.guests.cluster;
    if let Some(reader) = cluster.readers.get_mut(&subscriber) {
        assert!(reader.question.is_none()); // K2
        reader.question = Some(question);
        cluster.to_answer.push_back(subscriber);
        shard.worked = true;
    }
}

/// Begins to read for a subscriber.
fn begin<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: ExecutionId,
    question: &Question,
) {
    let (now, home) = (shard.now, peers::own_index(shard) as u8);
    let cluster = &mut shard.guests.cluster;
    let log = cluster.replicas.get(&execution).map(replicas::Replica::log);
    let (owner, until) = log.expect("K1");
    cluster.reader_count += 1;
    let name = ReaderName { shard: home, number: cluster.reader_count };
    let passed = match cluster.readers.get(&question.subscriber) {
        Some(before) if before.execution == execution => before.passed,
        _ => (1, KindTotals::default()),
    };
    let reader = Reader {
        name,
        execution,
        until: until.position.totals,
        passed,
        question: None,
        pieces: VecDeque::new(),
        pieces_bytes: 0,
        asked_count: limits::CLUSTER_PARTS_AHEAD,
        is_all: false,
    };
    if let Some(before) = cluster.readers.insert(question.subscriber, reader) {
        cluster.send(ToCluster::StopReading(before.name), now);
    }
    let (from_seq, until) = (question.from_seq, Box::new(until));
    cluster.send(ToCluster::Read { reader: name, execution, owner, from_seq, until }, now);
}

/// Takes a part of what was read.
pub(super) fn on_old<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    name: ReaderName,
    pieces: Vec<Piece>,
    is_all: bool,
) {
    let now = shard.now;
    let cluster = &mut shard.guests.cluster;
    let found = cluster.readers.iter_mut().find(|(_, reader)| reader.name == name);
    let Some((&subscriber, reader)) = found else { return }; // Its subscriber has left.
    (reader.asked_count, reader.is_all) = (reader.asked_count.saturating_sub(1), is_all);
    for piece in pieces.into_iter().filter(|piece| seqs_of(piece).1 > 0) {
        reader.pieces_bytes += piece.bytes();
        reader.pieces.push_back(Rc::new(piece));
    }
    let (wants_more, has_question) = (reader.wants_more(), reader.question.is_some());
    if wants_more {
        cluster.send(ToCluster::ReadMore(name), now);
    }
    if has_question {
        cluster.to_answer.push_back(subscriber);
        shard.worked = true;
    }
}

/// The first chunk of a part, and one past its last; zeros if it is not about chunks.
fn seqs_of(piece: &Piece) -> (u64, u64) {
    match piece {
        Piece::Chunks(run) => run.seqs(),
        Piece::Gap(LogGap { before, after, .. }) => {
            (before.of(Kinds::ALL).chunks + 1, after.of(Kinds::ALL).chunks + 1)
        }
        Piece::Note(_) | Piece::End(_) => (0, 0),
    }
}

/// Answers the questions that can be answered, as far as a turn may.
pub(super) fn answer<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let mut left_bytes = limits::JOURNAL_GIVEN_BYTES_MAX as usize;
    while left_bytes > 0
        && let Some(subscriber) = shard.guests.cluster.to_answer.pop_front()
    {
        let given_bytes = answer_one(shard, subscriber);
        left_bytes = left_bytes.saturating_sub(given_bytes.max(1));
    }
}

/// Answers one question, if it can be answered. Returns the number of bytes that were given.
fn answer_one<R: Reactor + 'static>(shard: &mut ServerShard<R>, subscriber: SubscriberId) -> usize {
    let now = shard.now;
    let cluster = &mut shard.guests.cluster;
    let Some(reader) = cluster.readers.get_mut(&subscriber) else { return 0 };
    let Some(question) = reader.question else { return 0 };
    if !shard.is_seated(subscriber) {
        forget(shard, subscriber);
        return 0;
    }
    let cluster = &mut shard.guests.cluster;
    let Some(reader) = cluster.readers.get_mut(&subscriber) else { return 0 };
    while let Some(piece) = reader.pieces.front()
        && seqs_of(piece).1 <= question.from_seq
    {
        reader.pieces_bytes -= piece.bytes();
        reader.pieces.pop_front();
    }
    let (name, wants_more) = (reader.name, reader.wants_more());
    if wants_more {
        cluster.send(ToCluster::ReadMore(name), now);
    }
    let Some(reader) = cluster.readers.get_mut(&subscriber) else { return 0 };
    // It stays, because the next question can come before this one is answered whole.
    let Some(piece) = reader.pieces.front().map(Rc::clone) else {
        if reader.is_all {
            // The log had it before, and has it no more.
            reader.question = None;
            let (behind_seq, behind) = (reader.until_seq(), reader.until);
            let until_seq = behind_seq.min(within(shard, &question));
            let behind = (until_seq == behind_seq).then_some(behind);
            lose(shard, &question, (until_seq, GapReason::Corrupt), (None, behind));
        }
        return 0;
    };
    reader.question = None;
    match &*piece {
        Piece::Chunks(run) => give(shard, &question, &run.run()),
        Piece::Gap(gap) => {
            lose_gap(shard, &question, gap);
            0
        }
        Piece::Note(_) | Piece::End(_) => unreachable!("it is not about chunks"),
    }
}

/// Gives the chunks of a run, as many as were asked for. Returns the number of their bytes.
fn give<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    question: &Question,
    run: &Run<'_>,
) -> usize {
    let &Question { from_seq, until_seq, chunks_max, .. } = question;
    let first_seq = run.header.first_seq;
    if first_seq > from_seq {
        let until_seq = first_seq.min(until_seq);
        let behind = (until_seq == first_seq).then_some(run.before);
        lose(shard, question, (until_seq, GapReason::Corrupt), (None, behind));
        return 0;
    }
    let mut chunks = run.chunks().map(|chunk| chunk.expect("the record was checked"));
    let mut total_bytes = run.header.bytes_before;
    let (mut given, mut last_seq) = (Totals::ZERO, 0);
    let (mut passed_seq, mut totals) = (from_seq, run.before);
    let is_whole = shard.give_old(question, |kinds| {
        while given.chunks < chunks_max.into() {
            let chunk = chunks.next().filter(|chunk| chunk.entry.seq < until_seq)?;
            let seq = chunk.entry.seq;
            total_bytes += u64::from(chunk.entry.length);
            totals.count(chunk.entry.kind, chunk.entry.length);
            let is_left_out = planted(Planted::LogReadFromNext) && seq == from_seq;
            if seq >= from_seq && !is_left_out {
                passed_seq = seq + 1;
                if kinds.contains(chunk.entry.kind) {
                    given.count(chunk.entry.length);
                    last_seq = seq;
                    return Some((chunk, total_bytes));
                }
            }
        }
        None
    });
    if is_whole {
        assert!(passed_seq > from_seq); // It begins with the chunk that was asked for.
        note_passed(shard, question, passed_seq, totals);
        let result = Fetched::Given { totals: given, last_seq };
        shard.answer_question(question, passed_seq, result);
    }
    given.bytes as usize
}

/// Tells a subscriber of a gap in the log.
fn lose_gap<R: Reactor + 'static>(shard: &mut ServerShard<R>, question: &Question, gap: &LogGap) {
    let (first_seq, behind_seq) = seqs_of(&Piece::Gap(*gap));
    let until_seq = behind_seq.min(within(shard, question));
    let before = (first_seq == question.from_seq).then_some(gap.before);
    let behind = (until_seq == behind_seq).then_some(gap.after);
    lose(shard, question, (until_seq, gap.reason), (before, behind));
}

/// The chunk before which an answer has to end: the ring holds it, or it was not asked for.
fn within<R: Reactor + 'static>(shard: &ServerShard<R>, question: &Question) -> u64 {
    let tail_seq = shard.engine.log(question.execution).map_or(0, Log::tail_seq);
    question.until_seq.max(tail_seq)
}

/// Notes that a subscriber knows of all chunks before `seq`. These are their totals.
fn note_passed<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    question: &Question,
    seq: u64,
    totals: KindTotals,
) {
    if let Some(reader) = shard.guests.cluster.readers.get_mut(&question.subscriber) {
        reader.passed = (seq, totals);
    }
}

/// Tells a subscriber that it will not be given the chunks before `until_seq`. The totals before
/// and behind them may be known. Otherwise those count that the subscriber, the reader or the ring
/// knows. If it begins within them, nobody may know: then all of them count, and no bytes.
fn lose<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    question: &Question,
    (until_seq, reason): (u64, GapReason),
    (before, behind): (Option<KindTotals>, Option<KindTotals>),
) {
    let Question { subscriber, execution, from_seq, seen, .. } = *question;
    let kinds = match planted(Planted::LostOfAllKinds) {
        true => Kinds::ALL,
        false => shard.kinds_of(subscriber),
    };
    let reader = shard.guests.cluster.readers.get(&subscriber);
    let passed = reader.map(|reader| reader.passed).filter(|(seq, _)| *seq == from_seq);
    let before = before.or(passed.map(|(_, totals)| totals)).map(|before| before.of(kinds));
    let behind = behind.or_else(|| shard.engine.kind_totals_before(execution, until_seq));
    let lost = behind.zip(before.or(seen));
    let lost = lost.and_then(|(behind, before)| behind.of(kinds).checked_sub(before));
    let chunks = until_seq - from_seq;
    let totals = lost.filter(|lost| lost.chunks <= chunks);
    let totals = totals.unwrap_or(Totals { chunks, bytes: 0 });
    if let Some(behind) = behind {
        note_passed(shard, question, until_seq, behind);
    }
    shard.answer_question(question, until_seq, Fetched::Lost { reason, totals });
}

fn forget<R: Reactor + 'static>(shard: &mut ServerShard<R>, subscriber: SubscriberId) {
    let now = shard.now;
    let cluster = &mut shard.guests.cluster;
    if let Some(reader) = cluster.readers.remove(&subscriber) {
        cluster.send(ToCluster::StopReading(reader.name), now);
    }
}

/// Forgets the readers whose subscribers have left.
pub(super) fn forget_gone<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let all = shard.guests.cluster.readers.keys();
    let gone: Vec<SubscriberId> = all.filter(|id| !shard.is_seated(**id)).copied().collect();
    gone.into_iter().for_each(|subscriber| forget(shard, subscriber));
}
