//! A block that is being filled, and the runs of one that was read.
//!
//! `runs.rs` has the runs of the one that is being filled.
//!
//! Invariant:
//! - B2: everything behind the last run is zero.
//!
//! Tests: below; `journal/scan_tests.rs` flips every bit.

use super::format::{
    ALIGN_BYTES, BLOCK_HEADER_BYTES, BlockHeader, BlockKind, CHUNK_ENTRY_BYTES, ChunkEntry, Damage,
    KeptChunk, Lsn, RunHeader, RunKind, SumKey, chunk_bytes, chunk_length, decode_chunk,
    decode_run, kinds_of,
};
use super::records::Hole;
use super::runs::Runs;
use crate::base::{PageBuffer, SharedBytes};
use crate::limits::{DELIVERY_CHUNKS_MAX, JOURNAL_PAGE_BYTES};
use crate::stream::{KindTotals, Kinds, Totals};

/// The position of an execution in its journal: everything before the next chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The number of the execution in this journal.
    pub execution: u32,
    /// The totals of all chunks so far, by kind.
    pub totals: KindTotals,
    /// The same for all kinds.
    pub all: Totals,
}

impl Position {
    /// The position before the first chunk.
    pub fn new(execution: u32) -> Position {
        Position { execution, totals: KindTotals::default(), all: Totals::ZERO }
    }

    /// The number of the next chunk.
    pub fn next_seq(&self) -> u64 {
        self.all.chunks + 1
    }

    /// Moves behind a chunk.
    #[inline]
    pub fn pass(&mut self, entry: &ChunkEntry) {
        self.totals.count(entry.kind, entry.length);
        self.all.count(entry.length);
    }

    pub(super) fn header(&self, kind: RunKind, count: u32, bytes: u32) -> RunHeader {
        RunHeader {
            kind,
            bytes,
            execution: self.execution,
            count,
            first_seq: self.next_seq(),
            bytes_before: self.all.bytes,
            kinds_before: kinds_of(&self.totals),
        }
    }
}

/// A block that is being filled.
pub struct Block {
    journal: u128,
    /// Its runs so far.
    pub runs: Runs<PageBuffer>,
}

impl Block {
    /// Begins a block of the journal `journal` of at most `room_bytes` in `buffer`, for the place
    /// `lsn`.
    pub fn new(journal: u128, buffer: PageBuffer, room_bytes: u32, lsn: Lsn) -> Block {
        assert!((JOURNAL_PAGE_BYTES..=buffer.len() as u32).contains(&room_bytes));
        assert!(room_bytes.is_multiple_of(JOURNAL_PAGE_BYTES));
        assert!(lsn.0.is_multiple_of(JOURNAL_PAGE_BYTES.into())); // D1
        let key = SumKey::new(journal);
        Block { journal, runs: Runs::new(key, buffer, BLOCK_HEADER_BYTES, room_bytes, lsn) }
    }

    /// The place of the block.
    pub fn lsn(&self) -> Lsn {
        self.runs.lsn()
    }

    /// Number of bytes that the block will have.
    pub fn bytes(&self) -> u32 {
        self.runs.used_bytes().next_multiple_of(JOURNAL_PAGE_BYTES)
    }

    /// True if nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.runs.used_bytes() == BLOCK_HEADER_BYTES
    }

    /// Closes the block. [`Runs::close_run`] has to precede it. Returns its bytes and their number.
    pub fn close(self, stamp: &Stamp) -> (PageBuffer, u32) {
        let (lsn, bytes) = (self.lsn(), self.bytes());
        let (used_bytes, run_count) = (self.runs.used_bytes(), self.runs.run_count());
        let mut buffer = self.runs.into_buffer();
        buffer[used_bytes as usize..bytes as usize].fill(0); // B2
        let header = BlockHeader {
            kind: stamp.kind,
            lsn,
            synced: stamp.synced,
            bytes,
            used_bytes,
            run_count,
            previous_pages: stamp.previous_pages,
            wall_us: stamp.wall_us,
            mono_ns: stamp.mono_ns,
        };
        header.encode(self.journal, &mut buffer);
        (buffer, bytes)
    }
}

/// The facts that a block is given when it is closed.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The purpose of the block.
    pub kind: BlockKind,
    /// The first place that is not known to be on disk.
    pub synced: Lsn,
    /// In the first block of a segment, the end of the segment before, in pages.
    pub previous_pages: u16,
    /// The wall-clock time, in microseconds since 1970.
    pub wall_us: u64,
    /// The time of the shard's clock at the same moment, in nanoseconds.
    pub mono_ns: u64,
}

/// A run that was read.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Its place.
    pub lsn: Lsn,
    /// Its head.
    pub header: RunHeader,
    /// Totals of all chunks before, by kind.
    pub before: KindTotals,
    key: SumKey,
    bytes: &'a [u8],
}

/// A run of a record, together with the bytes of the record. The place of the run is its offset
/// there.
#[derive(Clone, Debug)]
pub struct SharedRun {
    lsn: Lsn,
    header: RunHeader,
    before: KindTotals,
    key: SumKey,
    record: SharedBytes,
}

impl SharedRun {
    /// Returns the run.
    pub fn run(&self) -> Run<'_> {
        let SharedRun { lsn, header, before, key, ref record } = *self;
        let bytes = &record[lsn.0 as usize..][..header.bytes as usize];
        Run { lsn, header, before, key, bytes }
    }

    /// The number of the first chunk, and one past the last.
    pub fn seqs(&self) -> (u64, u64) {
        let first_seq = self.header.first_seq;
        (first_seq, first_seq + u64::from(self.header.count))
    }

    /// Number of its bytes.
    pub fn bytes(&self) -> u32 {
        self.header.bytes
    }
}

impl<'a> Run<'a> {
    /// Reads the run of the journal `journal` that should stand at `lsn`.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(journal: u128, lsn: Lsn, bytes: &'a [u8]) -> Result<Run<'a>, Damage> {
        let key = SumKey::new(journal);
        let (header, before) = decode_run(key, lsn, bytes)?;
        let bytes = &bytes[..header.bytes as usize];
        let chunk_bytes_min = header.count as usize * CHUNK_ENTRY_BYTES as usize;
        let is_bounded = match header.kind {
            RunKind::Chunks => {
                (1..=DELIVERY_CHUNKS_MAX).contains(&header.count)
                    && bytes.len() >= header.head_bytes() as usize + chunk_bytes_min
            }
            RunKind::Hole => header.count > 0,
            _ => header.count == 0,
        };
        is_bounded.then_some(Run { lsn, header, before, key, bytes }).ok_or(Damage::Bounds)
    }

    /// Returns the run with the record that it is a part of.
    ///
    /// # Panics
    /// If it is none.
    pub fn shared(&self, record: &SharedBytes) -> SharedRun {
        let Run { lsn, header, before, key, bytes } = *self;
        let place = record.get(lsn.0 as usize..).map(<[u8]>::as_ptr);
        assert!(place == Some(bytes.as_ptr()), "a run of another record");
        SharedRun { lsn, header, before, key, record: record.clone() }
    }

    /// The same run, which is in bytes that were checked as a whole: its checksums are not looked
    /// at.
    pub fn known(self) -> Run<'a> {
        Run { key: self.key.known(), ..self }
    }

    /// The body of a record.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn body(&self) -> Result<&'a [u8], Damage> {
        assert!(self.header.kind != RunKind::Chunks);
        let bytes = &self.bytes[self.header.head_bytes() as usize..];
        let (head, body) = bytes.split_at_checked(8).ok_or(Damage::Short)?;
        let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes"));
        let body = body.get(..length as usize).ok_or(Damage::Bounds)?;
        let sum = u32::from_le_bytes(head[4..].try_into().expect("four bytes"));
        (self.key.sum(body) == sum).then_some(body).ok_or(Damage::Checksum)
    }

    /// The chunks of the run, and the stretches that are damaged.
    pub fn chunks(&self) -> Chunks<'a> {
        assert!(self.header.kind == RunKind::Chunks);
        let bytes = &self.bytes[self.header.head_bytes() as usize..];
        let first_seq = self.header.first_seq;
        let until_seq = first_seq + u64::from(self.header.count);
        Chunks { key: self.key, bytes, next_seq: first_seq, until_seq }
    }

    /// The chunks behind a place in the run at which another walk has stopped: its next chunk, and
    /// [`Run::offset_of`].
    pub fn chunks_from(&self, next_seq: u64, offset_bytes: usize) -> Chunks<'a> {
        let mut chunks = self.chunks();
        assert!((chunks.next_seq..=chunks.until_seq).contains(&next_seq));
        (chunks.next_seq, chunks.bytes) = (next_seq, &chunks.bytes[offset_bytes..]);
        chunks
    }

    /// The place that a walk over the chunks has reached.
    pub fn offset_of(&self, chunks: &Chunks<'_>) -> usize {
        self.bytes.len() - self.header.head_bytes() as usize - chunks.bytes.len()
    }

    /// The position before the first chunk of the run.
    pub fn position_before(&self) -> Position {
        let all = Totals { chunks: self.header.first_seq - 1, bytes: self.header.bytes_before };
        Position { execution: self.header.execution, totals: self.before, all }
    }

    /// The position behind the run, if all of its chunks are intact.
    pub fn position_after(&self) -> Option<Position> {
        let mut position = self.position_before();
        match self.header.kind {
            RunKind::Chunks => {
                for chunk in self.chunks() {
                    position.pass(&chunk.ok()?.entry);
                }
            }
            RunKind::Hole => {
                position.totals = Hole::decode(self.body().ok()?).ok()?.after;
                position.all = position.totals.of(Kinds::ALL);
                let behind = self.header.first_seq + u64::from(self.header.count);
                return (position.next_seq() == behind).then_some(position);
            }
            _ => {}
        }
        Some(position)
    }
}

/// Chunks of a run that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The first of them.
    pub from_seq: u64,
    /// One past the last.
    pub until_seq: u64,
    /// Number of their payload bytes, if a chunk of the run follows; otherwise 0.
    pub bytes: u64,
    /// The damage of the first.
    pub damage: Damage,
}

/// The chunks of a run, one after the other.
pub struct Chunks<'a> {
    key: SumKey,
    bytes: &'a [u8],
    next_seq: u64,
    until_seq: u64,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<KeptChunk<'a>, Unreadable>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next_seq == self.until_seq {
            return None;
        }
        let from_seq = self.next_seq;
        match decode_chunk(self.key, from_seq, self.bytes) {
            Ok(chunk) => {
                let end = (chunk_bytes(chunk.entry.length) as usize).min(self.bytes.len());
                self.bytes = &self.bytes[end..];
                self.next_seq += 1;
                Some(Ok(chunk))
            }
            Err(damage) => {
                let length = chunk_length(self.bytes).unwrap_or(0);
                let bytes;
                (self.bytes, self.next_seq, bytes) = match self.behind_damage() {
                    Some(rest) => (rest, from_seq + 1, length.into()),
                    None => (&self.bytes[..0], self.until_seq, 0), // The next one is not found.
                };
                let until_seq = self.next_seq;
                Some(Err(Unreadable { from_seq, until_seq, bytes, damage }))
            }
        }
    }
}

impl<'a> Chunks<'a> {
    /// The number of the next chunk. At the end, it is one past the last one.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// The bytes behind a damaged chunk, if its length is right. It is if the next chunk is found
    /// there, or the end of the run.
    fn behind_damage(&self) -> Option<&'a [u8]> {
        let length = chunk_length(self.bytes)?;
        let end = (length as usize).checked_next_multiple_of(ALIGN_BYTES as usize)?;
        let rest = self.bytes.get(CHUNK_ENTRY_BYTES as usize + end..)?;
        let is_found = match self.next_seq + 1 == self.until_seq {
            true => rest.is_empty(),
            false => decode_chunk(self.key, self.next_seq + 1, rest).is_ok(),
        };
        is_found.then_some(rest)
    }
}

/// Bytes of a block that are no run. The next one, if there is one, begins elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rot {
    /// The first of the bytes.
    pub from: Lsn,
    /// One past the last.
    pub until: Lsn,
    /// The damage of the first.
    pub damage: Damage,
}

/// The runs of a block of the journal `journal` whose header is right. A bad run is skipped: the
/// next one is looked for at each multiple of eight bytes.
pub fn runs<'a>(
    journal: u128,
    header: &BlockHeader,
    block: &'a [u8],
) -> impl Iterator<Item = Result<Run<'a>, Rot>> {
    let lsn = header.lsn;
    let used = &block[..(header.used_bytes as usize).min(block.len())];
    let mut at = BLOCK_HEADER_BYTES as usize;
    std::iter::from_fn(move || {
        if at >= used.len() {
            return None;
        }
        let from = lsn.after(at as u32);
        match Run::decode(journal, from, &used[at..]) {
            Ok(run) => {
                at += run.header.bytes as usize;
                Some(Ok(run))
            }
            Err(damage) => {
                let step = ALIGN_BYTES as usize;
                at += step;
                while at < used.len()
                    && Run::decode(journal, lsn.after(at as u32), &used[at..]).is_err()
                {
                    at += step;
                }
                at = at.min(used.len());
                Some(Err(Rot { from, until: lsn.after(at as u32), damage }))
            }
        }
    })
}

/// True if everything behind the runs of a block is zero, as it was written (B2).
pub fn is_padded(header: &BlockHeader, block: &[u8]) -> bool {
    let padding = block.get(header.used_bytes as usize..header.bytes as usize);
    padding.is_some_and(|padding| padding.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::DELIVERY_BYTES_MAX;
    use crate::stream::Kind;

    const JOURNAL: u128 = 7 << 64 | 9;

    fn entry(seq: u64, length: u32, kind: Kind) -> ChunkEntry {
        ChunkEntry {
            seq,
            mono_ns: 1_000 * seq,
            length,
            kind,
            key: (seq % 64) as u8,
            flags: seq as u16,
        }
    }

    fn stamp() -> Stamp {
        let (kind, synced) = (BlockKind::Data, Lsn(0));
        Stamp { kind, synced, previous_pages: 0, wall_us: 5, mono_ns: 6 }
    }

    fn begin(pages: u32, lsn: Lsn) -> Block {
        let bytes = pages * JOURNAL_PAGE_BYTES;
        let mut buffer = PageBuffer::new(bytes as usize);
        buffer.fill(0xEE);
        Block::new(JOURNAL, buffer, bytes, lsn)
    }

    #[test]
    fn what_was_appended_is_read_run_by_run() {
        let lsn = Lsn::new(3, 2 * JOURNAL_PAGE_BYTES);
        let mut block = begin(4, lsn);
        let mut one = Position::new(1);
        let mut two = Position::new(2);
        block.runs.append_record(RunKind::Opened, &one, 0, b"one").unwrap();
        for seq in 1..=3 {
            block.runs.append_chunk(&mut one, &entry(seq, 5, Kind::Stdout), b"hello").unwrap();
        }
        block.runs.append_chunk(&mut two, &entry(1, 0, Kind::Row), b"").unwrap();
        block.runs.append_chunk(&mut one, &entry(4, 2, Kind::Stderr), b"no").unwrap();
        block.runs.append_chunk(&mut one, &entry(5, 2, Kind::Stderr), b"go").unwrap();
        block.runs.close_run();
        block.runs.append_record(RunKind::Ended, &one, 0, b"done").unwrap();
        block.runs.close_run();
        let (bytes, length) = block.close(&stamp());
        let block = &bytes[..length as usize];
        let header = BlockHeader::decode(JOURNAL, lsn, block).unwrap();
        assert!(is_padded(&header, block));
        let runs: Vec<Run<'_>> = runs(JOURNAL, &header, block).map(Result::unwrap).collect();
        assert_eq!(runs.len() as u32, header.run_count);
        let kinds: Vec<RunKind> = runs.iter().map(|run| run.header.kind).collect();
        use RunKind::{Chunks, Ended, Opened};
        assert_eq!(kinds, [Opened, Chunks, Chunks, Chunks, Ended]);
        assert_eq!(runs[0].body(), Ok(&b"one"[..]));
        let texts: Vec<&[u8]> = runs[1].chunks().map(|chunk| chunk.unwrap().payload).collect();
        assert_eq!(texts, [b"hello"; 3]);
        let mut chunks = runs[1].chunks();
        for left in [2, 1, 0] {
            chunks.next().unwrap().unwrap();
            let rest = runs[1].chunks_from(chunks.next_seq(), runs[1].offset_of(&chunks));
            let rest: Vec<u64> = rest.map(|chunk| chunk.unwrap().entry.seq).collect();
            assert_eq!(rest, [1, 2, 3][3 - left..]);
        }
        let last: Vec<ChunkEntry> = runs[3].chunks().map(|chunk| chunk.unwrap().entry).collect();
        assert_eq!(last, [entry(4, 2, Kind::Stderr), entry(5, 2, Kind::Stderr)]);
        assert_eq!(runs[3].before.of(Kinds::ALL), Totals { chunks: 3, bytes: 15 });
        assert_eq!(runs[3].position_after(), Some(one));
        assert_eq!(runs[4].before, one.totals);
        assert_eq!(runs[4].header.first_seq, 6);
    }

    #[test]
    fn a_run_is_at_most_a_delivery() {
        let mut block = begin(64, Lsn(0));
        let mut position = Position::new(1);
        for seq in 1..=u64::from(DELIVERY_CHUNKS_MAX) + 1 {
            block.runs.append_chunk(&mut position, &entry(seq, 1, Kind::Output), b"x").unwrap();
        }
        let long = vec![b'y'; DELIVERY_BYTES_MAX as usize];
        let seq = position.next_seq();
        let is_long = entry(seq, long.len() as u32, Kind::Output);
        block.runs.append_chunk(&mut position, &is_long, &long).unwrap();
        block.runs.close_run();
        let (bytes, length) = block.close(&stamp());
        let block = &bytes[..length as usize];
        let header = BlockHeader::decode(JOURNAL, Lsn(0), block).unwrap();
        let counts: Vec<u32> =
            runs(JOURNAL, &header, block).map(|run| run.unwrap().header.count).collect();
        assert_eq!(counts, [DELIVERY_CHUNKS_MAX, 1, 1]);
    }

    #[test]
    fn a_full_block_takes_nothing_and_stays_as_it_was() {
        let mut block = begin(1, Lsn(0));
        let mut position = Position::new(1);
        let payload = [b'z'; 500];
        let mut seq = 1;
        while block
            .runs
            .append_chunk(&mut position, &entry(seq, 500, Kind::Output), &payload)
            .is_ok()
        {
            seq += 1;
        }
        assert_eq!(position.next_seq(), seq);
        block.runs.close_run();
        assert!(block.runs.append_record(RunKind::Ended, &position, 0, &[0; 600]).is_err());
        let (bytes, length) = block.close(&stamp());
        assert_eq!(length, JOURNAL_PAGE_BYTES);
        let header = BlockHeader::decode(JOURNAL, Lsn(0), &bytes).unwrap();
        let count: u64 =
            runs(JOURNAL, &header, &bytes).map(|run| u64::from(run.unwrap().header.count)).sum();
        assert_eq!(count, seq - 1);
    }
}
