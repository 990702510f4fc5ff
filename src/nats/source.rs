//! The source of a mirror: reads the ring of an execution of this node into its mirror.
//!
//! The linger bounds the number of records: one for each linger, on average. A source that was
//! quiet has some of them saved up. It sleeps until its tool or its shard wakes it, and chunks of a
//! slow tool are not held back. A source that finds more at a time looks again by itself, after the
//! linger. A fast tool thus rings no bell, and its records are larger. A look that fills a record
//! is followed by the next one at once.
//!
//! If the chunks of an execution are given when they are durable, the source reads what its shard
//! has shown it. The shard sends the end of such an execution, too.
//!
//! It gates nobody. If the ring has overwritten something before it came, and no disk has it, the
//! log gets a gap. A gap of a log says what is missing of each kind. The ring knows that as long as
//! it does not move on. Until it can be said, chunks are added to the gap.

use std::time::Duration;

use serde_json::{Value, json};

use crate::base::{ExecutionId, Instant};
use crate::cluster::mirror::{Mirror, NoteKind};
use crate::journal::format::ChunkEntry;
use crate::limits;
use crate::memory::CHUNK_MORE;
use crate::server::FromCluster;
use crate::shard::journal::{EndedDetails, LogNews};
use crate::shard::{Chunk, Delivery, Ended, Reported, Subscriber};
use crate::stream::{DetachReason, EndState, GapReason, Kind, KindTotals, Kinds, Outcome, Totals};

/// Payload bytes of a look below which its tool counts as slow.
const LITTLE_BYTES: u64 = 4 << 10;
/// Payload bytes after which a look does not wait for more.
const PLENTY_BYTES: u64 = limits::CLUSTER_RECORD_BYTES as u64 / 2;

/// The looks that a source may take: one for each linger, and those that it has saved up.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// The time until which all looks so far count.
    until: Instant,
}

impl Pace {
    /// Counts a look that has found something. Returns the time of the next one.
    fn count(&mut self, linger: Duration, now: Instant) -> Instant {
        self.until = self.until.max(now) + linger;
        let saved = linger * limits::CLUSTER_LOOKS_SAVED;
        now + self.until.since(now).saturating_sub(saved)
    }
}

/// The source of one mirror.
pub(crate) struct Source {
    pub execution: ExecutionId,
    /// The reader of the ring; `None` once nothing more comes.
    reading: Option<Reading>,
    /// The last chunk of which the shard knows that the log has it, if it waits for that.
    told_seq: Option<u64>,
    pace: Pace,
    next: Next,
}

/// A ring that is read.
struct Reading {
    subscriber: Subscriber,
    /// The gap that has no counts yet: its reason, its chunks and its bytes.
    gap: Option<(GapReason, Totals)>,
    /// The number of chunks that the tool will publish, if it has said so.
    expected: Option<u64>,
    /// True if that is news.
    is_expected_news: bool,
    /// The last chunk that may be read; `None`: all may be.
    through_seq: Option<u64>,
    /// The end behind that chunk, once the shard has sent it.
    end: Option<EndGiven>,
}

/// The end of an execution, as its shard gives it.
pub(crate) struct EndGiven {
    /// The description.
    pub details: Box<[u8]>,
    /// The totals of all chunks.
    pub published: Box<KindTotals>,
}

/// The cause of the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The time.
    At(Instant),
    /// The shard: something has come. It has to wait until this time.
    Woken(Instant),
    /// The log: it has taken enough of what waits.
    Stored,
    /// The shard: it shows more, or sends the end.
    Shown,
    /// Nothing: it has the end.
    Never,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// Everything that there was, and that is not much.
    Little,
    /// Everything that there was. A record with more of it costs less for each chunk.
    Much,
    /// Everything that there was, and a record is full of it.
    Plenty,
    /// More than one look takes.
    More,
    /// More than the mirror takes now.
    TooMuch,
    /// Everything that may be read.
    All,
    End,
}

impl Source {
    pub fn new(
        execution: ExecutionId,
        subscriber: Option<Subscriber>,
        (is_replicated, through_seq): (bool, Option<u64>),
        now: Instant,
    ) -> Source {
        let reading = |subscriber| Reading {
            subscriber,
            gap: None,
            expected: None,
            is_expected_news: false,
            through_seq,
            end: None,
        };
        let (reading, told_seq) = (subscriber.map(reading), is_replicated.then_some(0));
        let pace = Pace { until: now };
        Source { execution, reading, told_seq, pace, next: Next::At(now) }
    }

    /// True if everything that the ring forgets is on a disk.
    pub fn can_wait(&self) -> bool {
        self.reading.as_ref().is_some_and(|reading| reading.subscriber.reads_disk())
    }

    /// True if its shard waits for the log.
    pub fn is_replicated(&self) -> bool {
        self.told_seq.is_some()
    }

    /// The last chunk that the log has, if its shard waits for it and was not told.
    pub fn news_of(&mut self, mirror: &Mirror) -> Option<u64> {
        let (told_seq, stored_seq) = (self.told_seq.as_mut()?, mirror.stored().all.chunks);
        (std::mem::replace(told_seq, stored_seq) < stored_seq).then_some(stored_seq)
    }

    /// The number of chunks that the tool will publish, if it has just said so.
    pub fn take_expected(&mut self) -> Option<u64> {
        let reading = self.reading.as_mut()?;
        std::mem::take(&mut reading.is_expected_news).then_some(reading.expected)?
    }

    /// A message to its shard.
    pub fn message(&self, news: LogNews) -> (u8, FromCluster) {
        let execution = self.execution;
        (execution.shard, FromCluster::Logged { execution, news })
    }

    /// Lets it read through a chunk.
    pub fn show(&mut self, through_seq: u64, now: Instant) {
        if let Some(reading) = &mut self.reading {
            reading.through_seq = Some(through_seq);
            self.go_on(now);
        }
    }

    fn go_on(&mut self, now: Instant) {
        if self.next == Next::Shown {
            self.next = Next::At(now);
        }
    }

    /// Takes the end from its shard. The log has everything before it, or may read the rest, or the
    /// execution was given up.
    pub fn end(&mut self, mirror: &mut Mirror, end: EndGiven) {
        match &mut self.reading {
            Some(reading) if reading.through_seq.is_some() => {
                reading.end = Some(end);
                self.go_on(Instant::ZERO);
            }
            reading => {
                *reading = None;
                push_end(mirror, &end);
            }
        }
    }

    /// The time of the next look, if it does not wait for somebody else.
    pub fn look_at(&self) -> Option<Instant> {
        match self.next {
            Next::At(at) => Some(at),
            Next::Woken(_) | Next::Stored | Next::Shown | Next::Never => None,
        }
    }

    /// Looks into the ring, if it is time.
    pub fn look(&mut self, mirror: &mut Mirror, linger: Duration, now: Instant) {
        let Some(reading) = &mut self.reading else {
            self.next = Next::Never;
            return;
        };
        if let Next::Woken(at) = self.next
            && reading.subscriber.was_woken()
        {
            self.next = Next::At(at);
        }
        let is_due = match self.next {
            Next::At(at) => at <= now,
            Next::Woken(_) | Next::Shown | Next::Never => false,
            Next::Stored => !mirror.is_full(),
        };
        if !is_due {
            return;
        }
        let found = reading.read(mirror);
        let again_at = match found {
            Found::Nothing => now,
            _ => self.pace.count(linger, now),
        };
        self.next = match found {
            Found::Nothing | Found::Little if reading.subscriber.rest() => Next::Woken(again_at),
            Found::Nothing | Found::Little => Next::At(again_at),
            // It looks again by itself: nobody has to wake it.
            Found::Much => Next::At(again_at.max(now + linger)),
            // It has fallen behind. A record more costs no more for each chunk.
            Found::Plenty if reading.subscriber.rest() => Next::Woken(now),
            Found::Plenty | Found::More => Next::At(now),
            Found::TooMuch => Next::Stored,
            Found::All => Next::Shown,
            Found::End => Next::Never,
        };
        if self.next == Next::Never {
            self.reading = None;
        }
    }
}

impl Reading {
    fn read(&mut self, mirror: &mut Mirror) -> Found {
        let before = mirror.position().all.bytes;
        for count in 0..limits::CLUSTER_CHUNKS_PER_LOOK {
            // What the log does not take now stays on the disk, if there is one.
            if self.subscriber.reads_disk() && mirror.is_full() {
                return Found::TooMuch;
            }
            if self.through_seq.is_some_and(|seq| self.subscriber.next_seq() > seq) {
                let Some(end) = self.end.take() else { return Found::All };
                push_end(mirror, &end);
                return Found::End;
            }
            let Reading { subscriber, expected, is_expected_news, .. } = self;
            let (chunk, note) = match subscriber.poll() {
                None if mirror.position().all.bytes - before >= PLENTY_BYTES => {
                    return Found::Plenty;
                }
                None if count == 0 => return Found::Nothing,
                None if mirror.position().all.bytes - before < LITTLE_BYTES => {
                    return Found::Little;
                }
                None => return Found::Much,
                Some(Delivery::End(ended)) => {
                    let (details, published) = (details_of(&ended), ended.end.published);
                    self.settle_at_end(mirror, published);
                    mirror.push_end(&details.encode());
                    return Found::End;
                }
                Some(Delivery::Gap(gap)) => {
                    let missed = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
                    let before = self.gap.take().map_or(Totals::ZERO, |(_, missed)| missed);
                    self.gap = Some((gap.reason, before + missed));
                    self.settle_at_next(mirror);
                    continue;
                }
                Some(Delivery::Progress(reported)) => (None, Some(note_of(&reported))),
                Some(Delivery::Chunk(chunk)) if self.gap.is_none() => {
                    let is_news = chunk.chunks_expected.is_some_and(|n| *expected != Some(n));
                    if is_news {
                        *is_expected_news = true;
                        *expected = chunk.chunks_expected;
                        let note = json!({ "chunks_expected": chunk.chunks_expected });
                        push_note(mirror, NoteKind::Expected, &note);
                    }
                    mirror.push_chunk(&entry_of(&chunk), chunk.data);
                    (None, None)
                }
                Some(Delivery::Chunk(chunk)) => (Some((chunk.seq, chunk.data.len())), None),
            };
            if let Some(note) = note {
                push_note(mirror, NoteKind::Progress, &note);
            }
            if let (Some((_, length)), Some((_, missed))) = (chunk, &mut self.gap) {
                missed.count(length as u32);
                self.settle_at_next(mirror);
            }
        }
        Found::More
    }

    /// Tells the mirror of the gap, if the ring says what is before the next chunk.
    fn settle_at_next(&mut self, mirror: &mut Mirror) {
        let Some((reason, missed)) = self.gap else { return };
        let through = mirror.position().all.chunks + missed.chunks;
        let after = match self.subscriber.kinds_before_next() {
            Some(after) if after.of(Kinds::ALL).chunks == through => after,
            // Chunks of the disk are of a time that the ring does not know.
            _ if self.subscriber.reads_disk() => unknown(mirror, missed),
            _ => return,
        };
        if after.checked_sub(&mirror.position().totals).is_some() {
            mirror.push_gap(&after, reason);
        } else {
            mirror.push_gap(&unknown(mirror, missed), reason);
        }
        self.gap = None;
    }

    /// Tells the mirror of everything that it was not given, at the end.
    fn settle_at_end(&mut self, mirror: &mut Mirror, published: Totals) {
        let reason = self.gap.take().map_or(GapReason::Overtaken, |(reason, _)| reason);
        let known = mirror.position().all;
        if published.chunks > known.chunks && published.bytes >= known.bytes {
            mirror.push_gap(&unknown(mirror, published - known), reason);
        }
    }
}

/// Ends a log, behind a gap if it does not have everything.
fn push_end(mirror: &mut Mirror, EndGiven { details, published }: &EndGiven) {
    if mirror.has_end() {
        return; // The ring has told it.
    }
    let known = mirror.position();
    let is_behind = published.of(Kinds::ALL).chunks > known.all.chunks;
    if is_behind && published.checked_sub(&known.totals).is_some() {
        mirror.push_gap(published, GapReason::Unwritten);
    }
    mirror.push_end(details);
}

/// The totals behind a gap of which the kinds are not known.
fn unknown(mirror: &Mirror, missed: Totals) -> KindTotals {
    let mut after = mirror.position().totals;
    after.add(Kind::Output, missed);
    after
}

fn entry_of(chunk: &Chunk<'_>) -> ChunkEntry {
    ChunkEntry {
        seq: chunk.seq,
        mono_ns: chunk.published_at.nanos(),
        length: chunk.data.len() as u32,
        kind: chunk.kind,
        key: chunk.key,
        flags: if chunk.more { CHUNK_MORE } else { 0 },
    }
}

fn note_of(reported: &Reported<'_>) -> Value {
    let Reported { progress, message, context } = reported;
    let context = context.and_then(|text| serde_json::from_str::<Value>(text).ok());
    json!({
        "progress": progress.progress,
        "total": progress.total,
        "message": message,
        "context": context,
    })
}

fn push_note(mirror: &mut Mirror, kind: NoteKind, note: &Value) {
    let body = note.to_string();
    if body.len() < limits::CLUSTER_DETAILS_BYTES_MAX {
        mirror.push_note(kind, body.as_bytes());
    }
}

/// The description of the end in the log.
fn details_of(ended: &Ended<'_>) -> EndedDetails {
    let exit = ended.end.exit;
    let failed = |text: &str| EndedDetails {
        outcome: Outcome::Failed,
        error: Some(text.into()),
        exit: None,
        has_panicked: false,
    };
    match ended.end.state {
        EndState::Ended(outcome) => {
            let error = ended.error.map(Box::from);
            EndedDetails { outcome, error, exit, has_panicked: false }
        }
        EndState::Detached { reason: DetachReason::Shutdown, .. } => {
            EndedDetails { outcome: Outcome::Cancelled, error: None, exit, has_panicked: false }
        }
        EndState::Detached { .. } => failed("its node has let go of it before its end was written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_one_look_for_each_linger_and_some_that_it_has_saved_up() {
        let (linger, begun) = (Duration::from_micros(500), Instant::from_nanos(1_000_000_000));
        let mut pace = Pace { until: begun };
        let mut now = begun;
        for _ in 0..limits::CLUSTER_LOOKS_SAVED {
            assert_eq!(pace.count(linger, now), now, "it is saved up");
        }
        for _ in 0..100 {
            let at = pace.count(linger, now);
            assert_eq!(at.since(now), linger);
            now = at;
        }
        // One for each linger is never held back. A pause saves up no more than before.
        now += linger * 1_000;
        for _ in 0..100 {
            assert_eq!(pace.count(linger, now), now);
            now += linger;
        }
        for _ in 0..limits::CLUSTER_LOOKS_SAVED {
            assert_eq!(pace.count(linger, now), now);
        }
        assert!(pace.count(linger, now) > now);
    }
}
