//! Runs that are being written, one behind the other, into a buffer of any kind.
//!
//! A run is what a reader is given at once: chunks of one execution, with the same bounds as a
//! delivery. Chunks of an execution that come one after the other extend its run, also over turns.
//!
//! Invariant:
//! - B1: the chunks of a run have consecutive numbers, and each run has at least one.
//!
//! Tests: in `block.rs`.

use std::ops::DerefMut;

use super::block::Position;
use super::format::{
    ALIGN_BYTES, ChunkEntry, Lsn, RunKind, SumKey, chunk_bytes, encode_chunk, encode_run,
};
use crate::limits::{DELIVERY_BYTES_MAX, DELIVERY_CHUNKS_MAX};

/// The error for something that does not fit any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFull;

/// Runs that are being written.
pub struct Runs<B> {
    buffer: B,
    /// The bytes that it may have.
    room_bytes: u32,
    used_bytes: u32,
    run_count: u32,
    /// The place of the first byte of the buffer.
    lsn: Lsn,
    key: SumKey,
    open: Option<OpenRun>,
}

/// The last run of a block, which the next chunk may extend.
struct OpenRun {
    at: u32,
    before: Position,
    count: u32,
    payload_bytes: u64,
}

/// A run that gets no more chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedRun {
    /// Number of its bytes, with its head.
    pub bytes: u32,
    /// Number of its chunks.
    pub count: u32,
}

/// The effect of one more chunk on the runs of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The chunk belongs to the last run.
    Extended,
    /// The chunk has begun a run.
    Began {
        /// The place of the run.
        lsn: Lsn,
        /// The run before, if it was open.
        closed: Option<ClosedRun>,
    },
}

impl<B: DerefMut<Target = [u8]>> Runs<B> {
    /// Begins behind `head_bytes` of `buffer`, of which `room_bytes` may be used. The first byte of
    /// the buffer has the place `lsn`.
    pub fn new(key: SumKey, buffer: B, head_bytes: u32, room_bytes: u32, lsn: Lsn) -> Runs<B> {
        assert!(head_bytes <= room_bytes && room_bytes as usize <= buffer.len());
        Runs { buffer, room_bytes, used_bytes: head_bytes, run_count: 0, lsn, key, open: None }
    }

    /// The place of the first byte of the buffer.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Number of bytes so far, with what is in front of the first run.
    pub fn used_bytes(&self) -> u32 {
        self.used_bytes
    }

    /// Number of runs so far, without one that is open.
    pub fn run_count(&self) -> u32 {
        self.run_count
    }

    /// Returns the buffer. [`Runs::close_run`] has to precede it.
    pub fn into_buffer(self) -> B {
        assert!(self.open.is_none());
        self.buffer
    }

    /// Appends a chunk at `position`, which moves behind it.
    ///
    /// # Errors
    /// [`BlockFull`]; nothing was changed then.
    #[inline]
    pub fn append_chunk(
        &mut self,
        position: &mut Position,
        entry: &ChunkEntry,
        payload: &[u8],
    ) -> Result<Appended, BlockFull> {
        assert!(entry.seq == position.next_seq()); // B1
        let bytes = chunk_bytes(entry.length);
        let mut appended = Appended::Extended;
        if !self.open.as_ref().is_some_and(|open| open.takes(position, entry.length)) {
            let head_bytes = position.header(RunKind::Chunks, 0, 0).head_bytes();
            if self.left_bytes() < head_bytes + bytes {
                return Err(BlockFull);
            }
            let closed = self.close_run();
            appended = Appended::Began { lsn: self.lsn.after(self.used_bytes), closed };
            let (at, before) = (self.used_bytes, *position);
            self.open = Some(OpenRun { at, before, count: 0, payload_bytes: 0 });
            self.used_bytes += head_bytes;
        } else if self.left_bytes() < bytes {
            return Err(BlockFull);
        }
        encode_chunk(self.key, entry, payload, &mut self.buffer[self.used_bytes as usize..]);
        self.used_bytes += bytes;
        let open = self.open.as_mut().expect("it was just made");
        open.count += 1;
        open.payload_bytes += u64::from(entry.length);
        position.pass(entry);
        Ok(appended)
    }

    /// Appends a record about the execution at `position`. `count` is the number of chunks of a
    /// hole, and 0 for everything else. [`Block::close_run`] has to precede it. Returns its place
    /// and its size.
    ///
    /// # Errors
    /// [`BlockFull`]; nothing was changed then.
    pub fn append_record(
        &mut self,
        kind: RunKind,
        position: &Position,
        count: u32,
        body: &[u8],
    ) -> Result<(Lsn, u32), BlockFull> {
        assert!(kind != RunKind::Chunks);
        assert!(self.open.is_none());
        let head_bytes = position.header(kind, count, 0).head_bytes();
        let bytes = head_bytes + RECORD_HEAD_BYTES + padded(body.len() as u32);
        if self.left_bytes() < bytes {
            return Err(BlockFull);
        }
        let at = self.used_bytes as usize;
        let lsn = self.lsn.after(self.used_bytes);
        let run = &mut self.buffer[at..at + bytes as usize];
        let header = position.header(kind, count, bytes);
        encode_run(self.key, &header, lsn, &position.totals, run);
        let (head, to) = run[head_bytes as usize..].split_at_mut(RECORD_HEAD_BYTES as usize);
        head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&self.key.sum(body).to_le_bytes());
        to[..body.len()].copy_from_slice(body);
        to[body.len()..].fill(0);
        self.used_bytes += bytes;
        self.run_count += 1;
        Ok((lsn, bytes))
    }

    /// Number of bytes that are left.
    fn left_bytes(&self) -> u32 {
        self.room_bytes - self.used_bytes
    }

    /// Writes the header of the last run, if it is open. The next chunk begins another one.
    pub fn close_run(&mut self) -> Option<ClosedRun> {
        let open = self.open.take()?;
        assert!(open.count > 0); // B1
        let bytes = self.used_bytes - open.at;
        let header = open.before.header(RunKind::Chunks, open.count, bytes);
        let lsn = self.lsn.after(open.at);
        let run = &mut self.buffer[open.at as usize..self.used_bytes as usize];
        encode_run(self.key, &header, lsn, &open.before.totals, run);
        self.run_count += 1;
        Some(ClosedRun { bytes, count: open.count })
    }
}

impl OpenRun {
    /// True if a chunk of `length` bytes at `position` extends the run.
    #[inline]
    fn takes(&self, position: &Position, length: u32) -> bool {
        self.before.execution == position.execution
            && self.before.next_seq() + u64::from(self.count) == position.next_seq()
            && self.count < DELIVERY_CHUNKS_MAX
            && self.payload_bytes + u64::from(length) <= DELIVERY_BYTES_MAX
    }
}

/// Number of bytes in front of the body of a record: its length and its checksum.
pub const RECORD_HEAD_BYTES: u32 = 8;

/// A length that is rounded up to the alignment.
const fn padded(length: u32) -> u32 {
    length.next_multiple_of(ALIGN_BYTES)
}
