//! Records: what the log of an execution is made of. One record is one message of the log.
//!
//! ```text
//! record = header, 40 bytes | runs, as in a journal
//! ```
//!
//! The runs are those of a journal ([`crate::journal::runs`]): chunks, gaps, notes, and the end.
//! The incarnation of the writer is their journal, and their place is the offset in the record.
//! Each run has the totals of all chunks before it, by kind. A record therefore says by itself
//! what is missing before it.
//!
//! All numbers are little-endian. The checksum of the header covers everything else. A record comes
//! from outside: [`Record::decode`] returns only what is right as a whole.
//!
//! Tests: below; every flipped bit and every cut is refused.

use crate::journal::block::{Position, Run};
use crate::journal::format::{ChunkEntry, Damage, Lsn, Reader, RunKind, SumKey, Writer};
use crate::journal::records::Hole;
use crate::journal::runs::{BlockFull, Runs};
use crate::limits::{CLUSTER_DETAILS_BYTES_MAX, CLUSTER_RECORD_BYTES_MAX};
use crate::stream::{GapReason, KindTotals, Kinds};

/// Number of bytes of a record before its runs.
pub const HEADER_BYTES: u32 = 40;
/// The version of the format. It is also in the names of subjects.
pub const VERSION: u8 = 1;

const MAGIC: u32 = u32::from_le_bytes(*b"sdrc");
const SUM_AT: usize = 8;
const LAST: u8 = 1;
const CLOSER: u8 = 2;
/// Number of bytes around a run with the totals of all kinds, and around the body of a record.
const RUN_BYTES_MAX: u32 = 48 + 16 * crate::limits::KINDS_MAX as u32 + 8;

/// One life of one node, drawn at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The writer.
    pub incarnation: Incarnation,
    /// Number of records of this execution before this one.
    pub number: u64,
    /// True if the last item is the end. Nothing follows such a record.
    pub is_last: bool,
    /// True if the writer is not the owner: it ends the execution of a lost node.
    pub is_closer: bool,
}

/// A record that is being written.
pub struct Draft {
    runs: Runs<Vec<u8>>,
    incarnation: Incarnation,
    has_end: bool,
}

impl Draft {
    /// Begins a record of at most `room_bytes`.
    pub fn new(incarnation: Incarnation, room_bytes: u32) -> Draft {
        assert!(room_bytes <= CLUSTER_RECORD_BYTES_MAX);
        let buffer = vec![0; room_bytes as usize];
        let key = SumKey::new(incarnation.0.into());
        let runs = Runs::new(key, buffer, HEADER_BYTES, room_bytes, Lsn(0));
        Draft { runs, incarnation, has_end: false }
    }

    /// Number of bytes that a record needs for one chunk of `length` bytes.
    pub fn bytes_for(length: u32) -> u32 {
        HEADER_BYTES + RUN_BYTES_MAX + crate::journal::format::chunk_bytes(length)
    }

    /// True if nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.runs.used_bytes() == HEADER_BYTES
    }

    /// Appends a chunk at `position`, which moves behind it.
    ///
    /// # Errors
    /// [`BlockFull`]; nothing was changed then.
    pub fn append_chunk(
        &mut self,
        position: &mut Position,
        entry: &ChunkEntry,
        payload: &[u8],
    ) -> Result<(), BlockFull> {
        assert!(!self.has_end);
        self.runs.append_chunk(position, entry, payload).map(drop)
    }

    /// Appends a gap from `position`, which moves behind it: to the totals `after` it.
    ///
    /// # Errors
    /// [`BlockFull`]; nothing was changed then.
    pub fn append_gap(
        &mut self,
        position: &mut Position,
        after: &KindTotals,
        reason: GapReason,
    ) -> Result<(), BlockFull> {
        assert!(!self.has_end);
        let all = after.of(Kinds::ALL);
        assert!(after.checked_sub(&position.totals).is_some() && all.chunks > position.all.chunks);
        let mut body = Vec::new();
        Hole { after: *after }.encode(&mut body);
        body.push(reason_code(reason));
        let count = count_of(all.chunks - position.all.chunks);
        self.runs.close_run();
        self.runs.append_record(RunKind::Hole, position, count, &body)?;
        (position.totals, position.all) = (*after, all);
        Ok(())
    }

    /// Appends a note, such as progress.
    ///
    /// # Errors
    /// [`BlockFull`]; nothing was changed then.
    pub fn append_note(&mut self, position: &Position, body: &[u8]) -> Result<(), BlockFull> {
        assert!(!self.has_end);
        self.append_details(RunKind::Note, position, body)
    }

    /// Appends the end. Nothing can follow.
    ///
    /// # Errors
    /// [`BlockFull`]; nothing was changed then.
    pub fn append_end(&mut self, position: &Position, body: &[u8]) -> Result<(), BlockFull> {
        assert!(!self.has_end);
        self.append_details(RunKind::Ended, position, body)?;
        self.has_end = true;
        Ok(())
    }

    fn append_details(
        &mut self,
        kind: RunKind,
        position: &Position,
        body: &[u8],
    ) -> Result<(), BlockFull> {
        assert!(body.len() <= CLUSTER_DETAILS_BYTES_MAX);
        self.runs.close_run();
        self.runs.append_record(kind, position, 0, body).map(drop)
    }

    /// Returns the whole record.
    pub fn finish(mut self, number: u64, is_closer: bool) -> Vec<u8> {
        assert!(!self.is_empty());
        self.runs.close_run();
        let (used_bytes, run_count) = (self.runs.used_bytes(), self.runs.run_count());
        let mut bytes = self.runs.into_buffer();
        bytes.truncate(used_bytes as usize);
        let mut to = Writer { bytes: &mut bytes, at: 0 };
        to.u32(MAGIC);
        to.u8(VERSION);
        let last = if self.has_end { LAST } else { 0 };
        to.u8(last | if is_closer { CLOSER } else { 0 });
        to.u16(0);
        to.u32(0); // The checksum.
        to.u32(used_bytes);
        to.u32(run_count);
        to.u32(0);
        to.u64(self.incarnation.0);
        to.u64(number);
        seal(&mut bytes);
        bytes
    }
}

/// Writes the checksum of a record.
///
/// # Panics
/// If it is shorter than its header.
pub fn seal(record: &mut [u8]) {
    let sum = checksum(record);
    record[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
}

/// The checksum of everything but the checksum.
fn checksum(record: &[u8]) -> u32 {
    let sum = crc32c::crc32c(&record[..SUM_AT]);
    crc32c::crc32c_append(sum, &record[SUM_AT + 4..])
}

fn reason_code(reason: GapReason) -> u8 {
    let code = GapReason::ALL.iter().position(|each| *each == reason);
    code.expect("it is one of them") as u8
}

/// The number of chunks in the head of a gap. Its body has the exact one.
fn count_of(chunks: u64) -> u32 {
    u32::try_from(chunks).unwrap_or(u32::MAX)
}

/// One item of a record.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// Chunks, one behind the other.
    Chunks(Run<'a>),
    /// Chunks that the writer itself did not get.
    Gap {
        /// The totals before the gap, by kind.
        before: KindTotals,
        /// The totals behind the gap, by kind.
        after: KindTotals,
        /// The reason.
        reason: GapReason,
    },
    /// A note, such as progress.
    Note(&'a [u8]),
    /// The end.
    End(&'a [u8]),
}

/// A record that was checked.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its head.
    pub header: Header,
    /// The position before it.
    pub before: Position,
    /// The position behind it.
    pub after: Position,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Reads a record, and checks all of it.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, Damage> {
        let head = bytes.get(..HEADER_BYTES as usize).ok_or(Damage::Short)?;
        if bytes.len() > CLUSTER_RECORD_BYTES_MAX as usize {
            return Err(Damage::Bounds);
        }
        let mut from = Reader { bytes: head, at: 0 };
        if from.u32() != MAGIC {
            return Err(Damage::Magic);
        }
        let (version, flags, _) = (from.u8(), from.u8(), from.u16());
        if from.u32() != checksum(bytes) {
            return Err(Damage::Checksum);
        }
        if version != VERSION {
            return Err(Damage::Version(version.into()));
        }
        let (length, run_count, _) = (from.u32(), from.u32(), from.u32());
        let (incarnation, number) = (Incarnation(from.u64()), from.u64());
        let (is_last, is_closer) = (flags & LAST != 0, flags & CLOSER != 0);
        let header = Header { incarnation, number, is_last, is_closer };
        if length as usize != bytes.len() || run_count == 0 || flags > LAST | CLOSER {
            return Err(Damage::Bounds);
        }
        let first = Run::decode(incarnation.0.into(), Lsn(HEADER_BYTES.into()), runs_of(bytes))?;
        let before = first.position_before();
        let mut record = Record { header, before, after: before, bytes };
        record.after = record.check(run_count)?;
        Ok(record)
    }

    /// Checks all runs. Returns the position behind the last one.
    fn check(&self, run_count: u32) -> Result<Position, Damage> {
        let (mut position, mut count, mut has_ended) = (self.before, 0, false);
        for run in self.runs() {
            let run = run?;
            if run.position_before() != position || has_ended {
                return Err(Damage::Place);
            }
            match item_of(&run)? {
                Item::Chunks(run) => {
                    position = run.position_after().ok_or(Damage::Checksum)?;
                }
                Item::Gap { after, .. } => {
                    (position.totals, position.all) = (after, after.of(Kinds::ALL));
                }
                Item::Note(_) => {}
                Item::End(_) => has_ended = true,
            }
            count += 1;
        }
        let is_right = count == run_count && has_ended == self.header.is_last;
        is_right.then_some(position).ok_or(Damage::Bounds)
    }

    fn runs(&self) -> impl Iterator<Item = Result<Run<'a>, Damage>> + use<'a> {
        let (journal, bytes) = (self.header.incarnation.0.into(), self.bytes);
        let mut at = HEADER_BYTES as usize;
        std::iter::from_fn(move || {
            let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
            // The record was checked as a whole.
            let run = Run::decode(journal, Lsn(at as u64), rest).map(Run::known);
            at = match &run {
                Ok(run) => at + run.header.bytes as usize,
                Err(_) => bytes.len(),
            };
            Some(run)
        })
    }

    /// Its items, in order.
    pub fn items(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        self.runs().map(|run| {
            let item = run.and_then(|run| item_of(&run));
            item.expect("it was checked before")
        })
    }

    /// The details of the end, if it has one.
    pub fn end(&self) -> Option<&'a [u8]> {
        let is_last = self.header.is_last;
        self.items().filter(|_| is_last).find_map(|item| match item {
            Item::End(details) => Some(details),
            _ => None,
        })
    }
}

fn runs_of(record: &[u8]) -> &[u8] {
    &record[HEADER_BYTES as usize..]
}

fn item_of<'a>(run: &Run<'a>) -> Result<Item<'a>, Damage> {
    match run.header.kind {
        RunKind::Chunks => Ok(Item::Chunks(*run)),
        RunKind::Hole => {
            let (reason, totals) = run.body()?.split_last().ok_or(Damage::Short)?;
            let reason = GapReason::ALL.get(usize::from(*reason)).ok_or(Damage::Bounds)?;
            let after = Hole::decode(totals)?.after;
            let missed = after.checked_sub(&run.before).ok_or(Damage::Bounds)?;
            let count = missed.of(Kinds::ALL).chunks;
            let is_right = count > 0 && count_of(count) == run.header.count;
            let gap = Item::Gap { before: run.before, after, reason: *reason };
            is_right.then_some(gap).ok_or(Damage::Bounds)
        }
        RunKind::Note => bounded(run.body()?).map(Item::Note),
        RunKind::Ended => bounded(run.body()?).map(Item::End),
        RunKind::Opened | RunKind::Carried | RunKind::Deleted => Err(Damage::Bounds),
    }
}

fn bounded(details: &[u8]) -> Result<&[u8], Damage> {
    (details.len() <= CLUSTER_DETAILS_BYTES_MAX).then_some(details).ok_or(Damage::Bounds)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::stream::{Kind, Totals};

    pub fn entry(seq: u64, length: u32, kind: Kind) -> ChunkEntry {
        let (mono_ns, key, flags) = (1_000 * seq, (seq % 64) as u8, 0);
        ChunkEntry { seq, mono_ns, length, kind, key, flags }
    }

    /// A record with everything in it, and the position behind it.
    fn all_items() -> (Vec<u8>, Position) {
        let mut position = Position::new(0);
        let mut draft = Draft::new(Incarnation(7), 4_096);
        for (seq, kind) in [(1, Kind::Stdout), (2, Kind::Stderr)] {
            draft.append_chunk(&mut position, &entry(seq, 5, kind), b"hello").unwrap();
        }
        let mut after = position.totals;
        after.add(Kind::Stderr, Totals { chunks: 3, bytes: 30 });
        draft.append_gap(&mut position, &after, GapReason::Overtaken).unwrap();
        draft.append_note(&position, b"half").unwrap();
        draft.append_chunk(&mut position, &entry(6, 0, Kind::Row), b"").unwrap();
        draft.append_end(&position, b"done").unwrap();
        (draft.finish(9, false), position)
    }

    #[test]
    fn what_was_written_is_read() {
        let (bytes, position) = all_items();
        let record = Record::decode(&bytes).unwrap();
        let incarnation = Incarnation(7);
        let header = Header { incarnation, number: 9, is_last: true, is_closer: false };
        assert_eq!((record.header, record.before), (header, Position::new(0)));
        assert_eq!((record.after, record.end()), (position, Some(&b"done"[..])));
        assert_eq!(position.all, Totals { chunks: 6, bytes: 40 });
        let mut seen = Vec::new();
        for item in record.items() {
            match item {
                Item::Chunks(run) => seen.extend(run.chunks().map(|chunk| {
                    let chunk = chunk.unwrap();
                    (chunk.entry.seq, String::from_utf8_lossy(chunk.payload).into_owned())
                })),
                Item::Gap { after, reason, .. } => {
                    seen.push((after.of(Kinds::ALL).chunks, reason.name().to_owned()));
                }
                Item::Note(body) | Item::End(body) => {
                    seen.push((0, String::from_utf8_lossy(body).into_owned()));
                }
            }
        }
        let expected =
            [(1, "hello"), (2, "hello"), (5, "overtaken"), (0, "half"), (6, ""), (0, "done")];
        assert_eq!(seen, expected.map(|(seq, text)| (seq, text.to_owned())));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let (bytes, _) = all_items();
        for bit in 0..8 * bytes.len() {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::decode(&bytes).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(Record::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Record::decode(&longer).is_err());
    }

    #[test]
    fn a_writer_that_lies_is_refused_although_its_checksum_is_right() {
        let (bytes, _) = all_items();
        let changed = |at: usize, value: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            seal(&mut bytes);
            Record::decode(&bytes).map(drop)
        };
        assert_eq!(changed(4, VERSION + 1), Err(Damage::Version(2)));
        assert_eq!(changed(5, 0), Err(Damage::Bounds), "it has an end");
        assert_eq!(changed(5, 4), Err(Damage::Bounds), "an unknown flag");
        assert_eq!(changed(12, 1), Err(Damage::Bounds), "another length");
        assert_eq!(changed(16, 1), Err(Damage::Bounds), "another number of runs");
        assert_eq!(changed(24, 8), Err(Damage::Checksum), "the runs of somebody else");
        // Every byte can be anything, and nothing panics.
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7F, 0xFF] {
                let _ = changed(at, value);
            }
        }
    }

    #[test]
    fn runs_have_to_follow_each_other() {
        let mut draft = Draft::new(Incarnation(1), 4_096);
        let mut position = Position::new(0);
        draft.append_chunk(&mut position, &entry(1, 1, Kind::Output), b"a").unwrap();
        let mut other = Position::new(0);
        other.totals.add(Kind::Output, Totals { chunks: 5, bytes: 5 });
        other.all = other.totals.of(Kinds::ALL);
        draft.append_note(&other, b"elsewhere").unwrap();
        assert_eq!(Record::decode(&draft.finish(0, false)).map(drop), Err(Damage::Place));
    }

    #[test]
    fn a_full_record_takes_nothing_more() {
        let mut draft = Draft::new(Incarnation(1), Draft::bytes_for(100));
        let mut position = Position::new(0);
        draft.append_chunk(&mut position, &entry(1, 100, Kind::Output), &[1; 100]).unwrap();
        let before = position;
        assert!(
            draft.append_chunk(&mut position, &entry(2, 400, Kind::Output), &[2; 400]).is_err()
        );
        assert!(draft.append_end(&position, &[3; 300]).is_err());
        assert_eq!(position, before);
        let bytes = draft.finish(0, false);
        let record = Record::decode(&bytes).unwrap();
        assert_eq!((record.after, record.header.is_last), (position, false));
    }
}
