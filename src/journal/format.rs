//! The bytes of a journal: values to bytes, and bytes to values that were checked.
//!
//! ```text
//! segment = header page | blocks | index pages | trailer page
//! block   = header, 64 bytes | runs | zeros up to a multiple of 4 KiB
//! run     = header, 48 bytes | totals by kind | chunks, or the body of a record
//! chunk   = entry, 24 bytes | payload | zeros up to a multiple of 8
//! ```
//!
//! All numbers are little-endian. Each header and each chunk has a checksum of its own (CRC-32C). A
//! flipped bit in a payload costs one chunk, one in the header of a run costs that run. The sums of
//! runs and chunks begin with the random number of the journal ([`SumKey`]).
//!
//! Everything that is read comes from outside: a disk, or somebody who wrote to it. A value is
//! returned only if its checksum, its place and its bounds are right.
//!
//! Tests: below; `journal/scan_tests.rs` flips every bit.

use crate::base::planted::{Planted, planted};
use crate::limits::{
    JOURNAL_BLOCK_BYTES_MAX, JOURNAL_PAGE_BYTES, JOURNAL_SEGMENT_BYTES, JOURNAL_SEGMENT_BYTES_MIN,
    KINDS_MAX,
};
use crate::stream::{Kind, KindTotals, Kinds, Totals};

/// The version of everything in this file.
pub const VERSION: u16 = 1;
/// Number of bytes of a block before its first run.
pub const BLOCK_HEADER_BYTES: u32 = 64;
/// Number of bytes of a run before its totals.
pub const RUN_HEADER_BYTES: u32 = 48;
/// Number of bytes of a chunk before its payload.
pub const CHUNK_ENTRY_BYTES: u32 = 24;
/// The alignment of a run and of a chunk, in bytes.
pub const ALIGN_BYTES: u32 = 8;
/// The largest number of chunks or of bytes that is believed. No sum of 16 of them overflows.
pub const TOTAL_MAX: u64 = 1 << 58;
/// Number of bytes of the totals of one kind.
const TOTALS_BYTES: u32 = 16;
/// Number of bytes of a segment's header that have a meaning.
pub(super) const SEGMENT_HEADER_BYTES: usize = 96;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"sdjournl");
const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"sdbk");
const RUN_MAGIC: u16 = u16::from_le_bytes(*b"rn");

const _: () = {
    assert!(BLOCK_HEADER_BYTES.is_multiple_of(ALIGN_BYTES));
    assert!(RUN_HEADER_BYTES.is_multiple_of(ALIGN_BYTES));
    assert!(CHUNK_ENTRY_BYTES.is_multiple_of(ALIGN_BYTES));
    assert!(JOURNAL_SEGMENT_BYTES.is_multiple_of(JOURNAL_PAGE_BYTES));
    assert!(JOURNAL_BLOCK_BYTES_MAX.is_multiple_of(JOURNAL_PAGE_BYTES));
    assert!(KINDS_MAX <= u16::BITS as usize); // The mask of a run's totals.
    assert!(JOURNAL_SEGMENT_BYTES / JOURNAL_PAGE_BYTES <= u16::MAX as u32); // The end of a segment.
};

/// The place of a byte in a journal: the number of its segment times the maximum size of a segment,
/// plus its offset there. No place is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The place at `offset_bytes` of a segment.
    pub fn new(segment_number: u64, offset_bytes: u32) -> Lsn {
        assert!(offset_bytes <= JOURNAL_SEGMENT_BYTES);
        Lsn(segment_number * u64::from(JOURNAL_SEGMENT_BYTES) + u64::from(offset_bytes))
    }

    /// The number of the segment.
    pub fn segment_number(self) -> u64 {
        self.0 / u64::from(JOURNAL_SEGMENT_BYTES)
    }

    /// The offset in the segment, in bytes.
    pub fn offset_bytes(self) -> u32 {
        (self.0 % u64::from(JOURNAL_SEGMENT_BYTES)) as u32
    }

    /// The place `bytes` bytes later.
    #[must_use]
    pub fn after(self, bytes: u32) -> Lsn {
        Lsn(self.0 + u64::from(bytes))
    }
}

/// The start of the checksums of a journal's runs, chunks and records: the random number of the
/// journal.
///
/// Payloads come from outside, and damaged blocks are searched for runs. A payload can therefore
/// contain a run of somebody who does not know the number, but no such run counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumKey {
    start: u32,
    /// True if the bytes around a value were checked already.
    is_known: bool,
}

impl SumKey {
    /// The key of the journal `journal`.
    pub fn new(journal: u128) -> SumKey {
        SumKey { start: crc32c::crc32c(&journal.to_le_bytes()), is_known: false }
    }

    /// The same key, for values in bytes that were checked as a whole. Their own checksums are not
    /// looked at.
    pub fn known(self) -> SumKey {
        SumKey { is_known: true, ..self }
    }

    /// The checksum of some bytes.
    #[inline]
    pub fn sum(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.start, bytes)
    }

    #[inline]
    fn check(self, covered: &[u8], sum: &[u8]) -> Result<(), Damage> {
        if self.is_known {
            return Ok(());
        }
        let sum = u32::from_le_bytes(sum.try_into().expect("four bytes"));
        (self.sum(covered) == sum).then_some(()).ok_or(Damage::Checksum)
    }
}

/// The reason why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// They end too early.
    Short,
    /// They do not begin as such a value does. Zeros do not.
    Magic,
    /// Their checksum is another one.
    Checksum,
    /// They belong to another place, or to an earlier use of this one.
    Place,
    /// They belong to another journal.
    Foreign,
    /// A newer version of this program has written them.
    Version(u16),
    /// A number in them is out of bounds.
    Bounds,
}

/// The first page of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The random number of the journal.
    pub journal: u128,
    /// The number of the shard's journal in its directory.
    pub shard: u16,
    /// The number of the segment.
    pub segment_number: u64,
    /// Size of the segment.
    pub segment_bytes: u32,
    /// The oldest segment that counted when this one was begun. Older ones are ignored.
    pub oldest_segment: u64,
    /// The first place that was not known to be on disk when this segment was begun.
    pub synced: Lsn,
    /// The end of the last segment that counted, if a recovery has begun this one. Blocks behind it
    /// were dropped and stay so, even if the index of that segment is lost. 0 if a full segment was
    /// before this one.
    pub previous_end: Lsn,
    /// The wall-clock time at which it was begun, in microseconds since 1970.
    pub wall_us: u64,
    /// The time of the shard's clock at the same moment, in nanoseconds.
    pub mono_ns: u64,
}

impl SegmentHeader {
    /// Writes the header to the first page of a segment.
    pub fn encode(&self, page: &mut [u8]) {
        assert!(page.len() == JOURNAL_PAGE_BYTES as usize);
        page.fill(0);
        let mut out = Writer { bytes: page, at: 0 };
        out.u64(SEGMENT_MAGIC);
        out.u16(VERSION);
        out.u16(self.shard);
        out.u32(self.segment_bytes);
        out.u64(self.journal as u64);
        out.u64((self.journal >> 64) as u64);
        out.u64(self.segment_number);
        out.u64(self.oldest_segment);
        out.u64(self.synced.0);
        out.u64(self.wall_us);
        out.u64(self.mono_ns);
        out.u64(self.previous_end.0);
        assert!(out.at <= SEGMENT_HEADER_BYTES - 4);
        let sum = crc32c::crc32c(&page[..SEGMENT_HEADER_BYTES - 4]);
        page[SEGMENT_HEADER_BYTES - 4..SEGMENT_HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the header from the first page of a segment.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(page: &[u8]) -> Result<SegmentHeader, Damage> {
        let page = page.get(..SEGMENT_HEADER_BYTES).ok_or(Damage::Short)?;
        let mut from = Reader { bytes: page, at: 0 };
        if from.u64() != SEGMENT_MAGIC {
            return Err(Damage::Magic);
        }
        check_sum(&page[..SEGMENT_HEADER_BYTES - 4], &page[SEGMENT_HEADER_BYTES - 4..])?;
        let version = from.u16();
        if version != VERSION {
            return Err(Damage::Version(version));
        }
        let shard = from.u16();
        let segment_bytes = from.u32();
        if !is_segment_size(segment_bytes) {
            return Err(Damage::Bounds);
        }
        Ok(SegmentHeader {
            shard,
            segment_bytes,
            journal: u128::from(from.u64()) | u128::from(from.u64()) << 64,
            segment_number: from.u64(),
            oldest_segment: from.u64(),
            synced: Lsn(from.u64()),
            wall_us: from.u64(),
            mono_ns: from.u64(),
            previous_end: Lsn(from.u64()),
        })
    }
}

/// True if a segment may have this size, in bytes.
pub fn is_segment_size(bytes: u32) -> bool {
    (JOURNAL_SEGMENT_BYTES_MIN..=JOURNAL_SEGMENT_BYTES).contains(&bytes)
        && bytes.is_multiple_of(JOURNAL_PAGE_BYTES)
}

/// The purpose of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Its runs are what was appended.
    Data,
    /// It has no runs. It says what is on disk.
    Mark,
}

/// The head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The purpose of the block.
    pub kind: BlockKind,
    /// Its place.
    pub lsn: Lsn,
    /// The first place that was not known to be on disk when the block was closed. A bad block
    /// before such a place is rot; a bad block with none behind it is a torn tail.
    pub synced: Lsn,
    /// Number of bytes of the block, a multiple of [`JOURNAL_PAGE_BYTES`].
    pub bytes: u32,
    /// Number of bytes of the header and the runs. Zeros follow.
    pub used_bytes: u32,
    /// Number of runs.
    pub run_count: u32,
    /// In the first block of a segment, the number of pages up to the end of the last block of the
    /// segment before. Without that end, nothing from this block on was on the disk. 0 in all other
    /// blocks, and if the segment before was finished by an earlier process.
    pub previous_pages: u16,
    /// The wall-clock time at which it was closed, in microseconds since 1970.
    pub wall_us: u64,
    /// The time of the shard's clock at the same moment, in nanoseconds.
    pub mono_ns: u64,
}

impl BlockHeader {
    /// Writes the header to the beginning of a block of the journal `journal`.
    pub fn encode(&self, journal: u128, block: &mut [u8]) {
        assert!(self.bytes.is_multiple_of(JOURNAL_PAGE_BYTES));
        assert!(self.used_bytes <= self.bytes);
        assert!(self.synced <= self.lsn); // D3: nothing of it is on disk yet.
        let header = &mut block[..BLOCK_HEADER_BYTES as usize];
        let mut out = Writer { bytes: header, at: 0 };
        out.u32(BLOCK_MAGIC);
        out.u16(self.kind as u16);
        out.u16(self.previous_pages);
        out.u32(self.bytes);
        out.u32(self.used_bytes);
        out.u64(self.lsn.0);
        out.u64(self.synced.0);
        out.u64(journal as u64);
        out.u64(self.wall_us);
        out.u64(self.mono_ns);
        out.u32(self.run_count);
        let sum = crc32c::crc32c(&header[..BLOCK_HEADER_BYTES as usize - 4]);
        header[BLOCK_HEADER_BYTES as usize - 4..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the header of a block of the journal `journal` that should stand at `lsn`.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(journal: u128, lsn: Lsn, bytes: &[u8]) -> Result<BlockHeader, Damage> {
        let header = bytes.get(..BLOCK_HEADER_BYTES as usize).ok_or(Damage::Short)?;
        let mut from = Reader { bytes: header, at: 0 };
        if from.u32() != BLOCK_MAGIC {
            return Err(Damage::Magic);
        }
        let (covered, sum) = header.split_at(BLOCK_HEADER_BYTES as usize - 4);
        check_sum(covered, sum)?;
        let kind = match from.u16() {
            0 => BlockKind::Data,
            1 => BlockKind::Mark,
            _ => return Err(Damage::Bounds),
        };
        let previous_pages = from.u16();
        let (block_bytes, used_bytes) = (from.u32(), from.u32());
        let (own, synced) = (Lsn(from.u64()), Lsn(from.u64()));
        if from.u64() != journal as u64 {
            return Err(Damage::Foreign);
        }
        if own != lsn && !planted(Planted::StaleBlockTaken) {
            return Err(Damage::Place);
        }
        let (wall_us, mono_ns, run_count) = (from.u64(), from.u64(), from.u32());
        let room_bytes = JOURNAL_SEGMENT_BYTES - lsn.offset_bytes();
        let is_bounded = block_bytes >= JOURNAL_PAGE_BYTES
            && block_bytes.is_multiple_of(JOURNAL_PAGE_BYTES)
            && block_bytes <= JOURNAL_BLOCK_BYTES_MAX.min(room_bytes)
            && (BLOCK_HEADER_BYTES..=block_bytes).contains(&used_bytes)
            && synced <= lsn;
        let block = BlockHeader {
            kind,
            lsn,
            synced,
            bytes: block_bytes,
            used_bytes,
            run_count,
            previous_pages,
            wall_us,
            mono_ns,
        };
        is_bounded.then_some(block).ok_or(Damage::Bounds)
    }
}

/// The content of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RunKind {
    /// Chunks of one execution, one behind the other.
    Chunks = 1,
    /// An execution was opened.
    Opened = 2,
    /// The same again, so that the segment of the first one can go.
    Carried = 3,
    /// Chunks that were published and not kept.
    Hole = 4,
    /// A number that changes: an expected total, a part, an exit status.
    Note = 5,
    /// An execution is over.
    Ended = 6,
    /// An execution was deleted. Nothing of it is served any more.
    Deleted = 7,
}

impl RunKind {
    fn new(raw: u8) -> Option<RunKind> {
        use RunKind::{Carried, Chunks, Deleted, Ended, Hole, Note, Opened};
        [Chunks, Opened, Carried, Hole, Note, Ended, Deleted]
            .into_iter()
            .find(|kind| *kind as u8 == raw)
    }
}

/// The head of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHeader {
    /// The content of the run.
    pub kind: RunKind,
    /// Number of bytes of the run, with its header and padding.
    pub bytes: u32,
    /// The number of the execution in this journal.
    pub execution: u32,
    /// Number of chunks that the run holds, or that a hole stands for.
    pub count: u32,
    /// The first chunk of the run. A record without chunks has the next one.
    pub first_seq: u64,
    /// Payload bytes of all chunks before.
    pub bytes_before: u64,
    /// The kinds of all chunks before, one bit for each.
    pub kinds_before: u16,
}

impl RunHeader {
    /// Number of bytes of the totals by kind behind the header. With one kind they follow from the
    /// header.
    pub fn totals_bytes(&self) -> u32 {
        match self.kinds_before.count_ones() {
            0 | 1 => 0,
            count => count * TOTALS_BYTES,
        }
    }

    /// Number of bytes before the first chunk, or before the body.
    pub fn head_bytes(&self) -> u32 {
        RUN_HEADER_BYTES + self.totals_bytes()
    }
}

/// Writes the head of a run at the beginning of `run`: its header, and the totals `before` it.
pub fn encode_run(key: SumKey, header: &RunHeader, lsn: Lsn, before: &KindTotals, run: &mut [u8]) {
    let head_bytes = header.head_bytes() as usize;
    assert!(header.bytes as usize <= run.len());
    assert!(header.bytes.is_multiple_of(ALIGN_BYTES));
    assert!(head_bytes <= header.bytes as usize);
    assert!(header.kinds_before == kinds_of(before));
    let (head, _) = run.split_at_mut(head_bytes);
    let (head, totals) = head.split_at_mut(RUN_HEADER_BYTES as usize);
    let mut out = Writer { bytes: totals, at: 0 };
    if header.totals_bytes() > 0 {
        for totals in before.each().iter().filter(|totals| totals.chunks > 0) {
            out.u64(totals.chunks);
            out.u64(totals.bytes);
        }
    }
    assert!(out.at == totals.len());
    let totals_sum = crc32c::crc32c(totals);
    let mut out = Writer { bytes: head, at: 0 };
    out.u16(RUN_MAGIC);
    out.u8(header.kind as u8);
    out.u8(0);
    out.u32(header.bytes);
    out.u32(header.execution);
    out.u32(header.count);
    out.u64(header.first_seq);
    out.u64(header.bytes_before);
    out.u32(place_word(lsn));
    out.u16(header.kinds_before);
    out.u16(0);
    out.u32(totals_sum);
    let sum = key.sum(&head[..RUN_HEADER_BYTES as usize - 4]);
    head[RUN_HEADER_BYTES as usize - 4..].copy_from_slice(&sum.to_le_bytes());
}

/// Reads the head of the run that should stand at `lsn`: its header, and the totals before it.
///
/// # Errors
/// [`Damage`].
pub fn decode_run(key: SumKey, lsn: Lsn, bytes: &[u8]) -> Result<(RunHeader, KindTotals), Damage> {
    let head = bytes.get(..RUN_HEADER_BYTES as usize).ok_or(Damage::Short)?;
    let mut from = Reader { bytes: head, at: 0 };
    if from.u16() != RUN_MAGIC {
        return Err(Damage::Magic);
    }
    let (covered, sum) = head.split_at(RUN_HEADER_BYTES as usize - 4);
    key.check(covered, sum)?;
    let kind = RunKind::new(from.u8()).ok_or(Damage::Bounds)?;
    from.u8();
    let (run_bytes, execution, count) = (from.u32(), from.u32(), from.u32());
    let (first_seq, bytes_before) = (from.u64(), from.u64());
    if from.u32() != place_word(lsn) && !planted(Planted::StaleBlockTaken) {
        return Err(Damage::Place);
    }
    let kinds_before = from.u16();
    from.u16();
    let header = RunHeader {
        kind,
        bytes: run_bytes,
        execution,
        count,
        first_seq,
        bytes_before,
        kinds_before,
    };
    let run = bytes.get(..run_bytes as usize).ok_or(Damage::Bounds)?;
    let totals = run
        .get(RUN_HEADER_BYTES as usize..header.head_bytes() as usize)
        .filter(|_| run_bytes.is_multiple_of(ALIGN_BYTES))
        .ok_or(Damage::Bounds)?;
    if crc32c::crc32c(totals) != from.u32() {
        return Err(Damage::Checksum);
    }
    let before = decode_totals(&header, totals)?;
    Ok((header, before))
}

/// Reads the totals before a run, and checks that they agree with its header.
fn decode_totals(header: &RunHeader, bytes: &[u8]) -> Result<KindTotals, Damage> {
    let chunks_before = header.first_seq.checked_sub(1).ok_or(Damage::Bounds)?;
    let all = Totals { chunks: chunks_before, bytes: header.bytes_before };
    if chunks_before > TOTAL_MAX || header.bytes_before > TOTAL_MAX {
        return Err(Damage::Bounds);
    }
    let mut before = KindTotals::default();
    let kinds = Kind::ALL.into_iter().filter(|kind| header.kinds_before >> *kind as u16 & 1 == 1);
    let mut from = Reader { bytes, at: 0 };
    for kind in kinds {
        let totals = match header.totals_bytes() {
            0 => all,
            _ => Totals { chunks: from.u64(), bytes: from.u64() },
        };
        if totals.chunks > TOTAL_MAX || totals.bytes > TOTAL_MAX {
            return Err(Damage::Bounds);
        }
        before.add(kind, totals);
    }
    let is_whole = from.at == bytes.len()
        && kinds_of(&before) == header.kinds_before
        && before.of(Kinds::ALL) == all;
    is_whole.then_some(before).ok_or(Damage::Bounds)
}

/// The kinds that have chunks, one bit for each.
pub fn kinds_of(totals: &KindTotals) -> u16 {
    let each = totals.each().iter().enumerate();
    each.filter(|(_, totals)| totals.chunks > 0).fold(0, |mask, (kind, _)| mask | 1 << kind)
}

/// A chunk in front of its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// The number of the chunk.
    pub seq: u64,
    /// The time at which it was published, in nanoseconds of the shard's clock.
    pub mono_ns: u64,
    /// Payload bytes.
    pub length: u32,
    /// The kind of the chunk.
    pub kind: Kind,
    /// The key of the chunk, below 64.
    pub key: u8,
    /// The flags of the chunk in its ring.
    pub flags: u16,
}

/// Number of bytes of a chunk of `length` bytes, with its entry and padding.
pub const fn chunk_bytes(length: u32) -> u32 {
    CHUNK_ENTRY_BYTES + length.next_multiple_of(ALIGN_BYTES)
}

/// Writes a chunk to the beginning of `out`.
#[inline]
pub fn encode_chunk(key: SumKey, entry: &ChunkEntry, payload: &[u8], out: &mut [u8]) {
    assert!(payload.len() == entry.length as usize);
    let bytes = chunk_bytes(entry.length) as usize;
    let out = &mut out[..bytes];
    let (head, body) = out.split_at_mut(CHUNK_ENTRY_BYTES as usize);
    let mut to = Writer { bytes: head, at: 4 };
    to.u32(entry.length);
    to.u64(entry.mono_ns);
    to.u32(entry.seq as u32);
    to.u8(entry.kind as u8);
    to.u8(entry.key);
    to.u16(entry.flags);
    body[..payload.len()].copy_from_slice(payload);
    body[payload.len()..].fill(0);
    let sum = key.sum(&out[4..CHUNK_ENTRY_BYTES as usize + payload.len()]);
    out[..4].copy_from_slice(&sum.to_le_bytes());
}

/// A chunk that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptChunk<'a> {
    /// The entry in front of it.
    pub entry: ChunkEntry,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Reads the chunk with number `seq`, which should stand at the beginning of `bytes`.
///
/// # Errors
/// [`Damage`].
pub fn decode_chunk(key: SumKey, seq: u64, bytes: &[u8]) -> Result<KeptChunk<'_>, Damage> {
    let length = chunk_length(bytes).ok_or(Damage::Short)?;
    let end = CHUNK_ENTRY_BYTES as usize + length as usize;
    let covered = bytes.get(4..end).ok_or(Damage::Bounds)?;
    if !planted(Planted::PayloadSumNotChecked) {
        key.check(covered, &bytes[..4])?;
    }
    let mut from = Reader { bytes, at: 8 };
    let (mono_ns, seq_low) = (from.u64(), from.u32());
    if seq_low != seq as u32 {
        return Err(Damage::Place);
    }
    let (kind, key) = (Kind::new(from.u8()).ok_or(Damage::Bounds)?, from.u8());
    let entry = ChunkEntry { seq, mono_ns, length, kind, key, flags: from.u16() };
    Ok(KeptChunk { entry, payload: &bytes[CHUNK_ENTRY_BYTES as usize..end] })
}

/// The length that the chunk at the beginning of `bytes` claims to have, in bytes of payload.
pub fn chunk_length(bytes: &[u8]) -> Option<u32> {
    let head = bytes.get(..CHUNK_ENTRY_BYTES as usize)?;
    Some(Reader { bytes: head, at: 4 }.u32())
}

/// The low half of a place, in units of a run's alignment.
fn place_word(lsn: Lsn) -> u32 {
    (lsn.0 / u64::from(ALIGN_BYTES)) as u32
}

pub(super) fn check_sum(covered: &[u8], sum: &[u8]) -> Result<(), Damage> {
    let sum = u32::from_le_bytes(sum.try_into().expect("four bytes"));
    (crc32c::crc32c(covered) == sum).then_some(()).ok_or(Damage::Checksum)
}

/// Writes numbers one behind the other.
pub struct Writer<'a> {
    /// The bytes to write to.
    pub bytes: &'a mut [u8],
    /// The next byte.
    pub at: usize,
}

impl Writer<'_> {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
    }

    /// Writes one byte.
    pub fn u8(&mut self, value: u8) {
        self.put([value]);
    }

    /// Writes two bytes.
    pub fn u16(&mut self, value: u16) {
        self.put(value.to_le_bytes());
    }

    /// Writes four bytes.
    pub fn u32(&mut self, value: u32) {
        self.put(value.to_le_bytes());
    }

    /// Writes eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.put(value.to_le_bytes());
    }
}

/// Reads numbers one behind the other. The caller has checked that there are as many bytes.
pub struct Reader<'a> {
    /// The bytes to read from.
    pub bytes: &'a [u8],
    /// The next byte.
    pub at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let bytes = &self.bytes[self.at..self.at + N];
        self.at += N;
        bytes.try_into().expect("as many bytes")
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    /// Reads two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}
