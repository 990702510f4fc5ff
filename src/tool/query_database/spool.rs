//! Rows that the reader has not taken yet while the query continues.
//!
//! In every journal mode but WAL a running query keeps other processes from writing to its file.
//! The query must therefore not wait for its reader. Rows that the ring does not take go into an
//! anonymous file. The query ends and releases its lock, and the reader then gets the rows at its
//! own pace. The spool file is bounded. A query with more rows waits for its reader, and is
//! abandoned with an error if the reader takes nothing for [`STUCK_MAX`]. Under WAL nothing is
//! spooled, because readers and writers do not block each other.
//!
//! Invariant: rows keep their order. While rows are spooled, no later row overtakes them.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::base::Instant;
use crate::memory::{CHUNK_MORE, ChunkHeader};
use crate::stream::Kind;
use crate::tool::query_database::failure::Failure;
use crate::tool::{Output, Stopped};

/// Upper bound for the spooled rows of one query.
const SPOOL_BYTES_MAX: u64 = 64 << 20;
/// Longest wait for a reader that takes nothing while the file is full. Programs that write to a
/// database usually wait for 5 s.
pub(super) const STUCK_MAX: Duration = Duration::from_secs(3);
/// The wait before a full ring is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// The unsent rows of one query.
pub(super) struct Spool {
    /// `None` if the query waits for its reader instead.
    file: Option<File>,
    /// The chunks in the file: the length of each, and true if its row data continues in the next.
    pieces: VecDeque<(u32, bool)>,
    /// The begin of the first chunk in the file, and the end of the last.
    begin: u64,
    end: u64,
    /// Set while the ring takes nothing: since this time.
    refused_since: Option<Instant>,
    tried_at: Instant,
    buffer: Vec<u8>,
}

impl Spool {
    /// Opens a spool if the query locks other processes out. Without a place for the file, nothing
    /// is spooled.
    pub fn new(locks_others_out: bool) -> Spool {
        Spool {
            file: locks_others_out.then(unnamed_file).and_then(Result::ok),
            pieces: VecDeque::new(),
            begin: 0,
            end: 0,
            refused_since: None,
            tried_at: Instant::ZERO,
            buffer: Vec::new(),
        }
    }

    /// Sends rows, or spools them.
    ///
    /// # Errors
    /// [`Failure::Stopped`], [`Failure::Stuck`], or [`Failure::Refused`] if the spool file fails.
    pub fn send(&mut self, out: &mut Output, rows: &[u8]) -> Result<(), Failure> {
        if self.file.is_none() {
            return Ok(out.send_as(Kind::Row, KEY, rows)?);
        }
        let piece_bytes_max = out.chunk_bytes_max() as usize;
        let mut rest = rows;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(piece_bytes_max));
            let more = !after.is_empty();
            self.pass_on(out)?;
            let is_taken = self.pieces.is_empty() && self.offer(out, piece, more)?;
            if !is_taken {
                self.wait_for_room(out, piece.len() as u64)?;
                self.keep(piece, more)?;
            }
            rest = after;
        }
        Ok(())
    }

    /// Sends all spooled rows, and waits for the reader. The query has ended.
    ///
    /// # Errors
    /// [`Failure::Stopped`], or [`Failure::Refused`] if the spool file fails.
    pub fn drain(mut self, out: &mut Output) -> Result<(), Failure> {
        while let Some((length, more)) = self.pieces.front().copied() {
            self.read(length)?;
            match more {
                true => out.send_part(Kind::Row, KEY, &self.buffer)?,
                false => out.send_as(Kind::Row, KEY, &self.buffer)?,
            }
            self.drop_first(length);
        }
        Ok(())
    }

    /// Sends as many spooled rows as the ring takes now.
    fn pass_on(&mut self, out: &mut Output) -> Result<(), Failure> {
        if !self.pieces.is_empty() && out.now().since(self.tried_at) < RETRY {
            return Ok(()); // Each attempt wakes the shard.
        }
        while let Some((length, more)) = self.pieces.front().copied() {
            self.read(length)?;
            let piece = std::mem::take(&mut self.buffer);
            let is_taken = self.offer(out, &piece, more);
            self.buffer = piece;
            if !is_taken? {
                break;
            }
            self.drop_first(length);
        }
        Ok(())
    }

    fn offer(&mut self, out: &mut Output, piece: &[u8], more: bool) -> Result<bool, Stopped> {
        let flags = if more { CHUNK_MORE } else { 0 };
        let header = ChunkHeader { kind: Kind::Row as u8, key: KEY, flags };
        let is_taken = out.offer(header, piece)?;
        self.tried_at = out.now();
        match is_taken {
            true => self.refused_since = None,
            false => drop(self.refused_since.get_or_insert(self.tried_at)),
        }
        Ok(is_taken)
    }

    /// Waits until the file has room for `length` more bytes.
    fn wait_for_room(&mut self, out: &mut Output, length: u64) -> Result<(), Failure> {
        while self.end + length > SPOOL_BYTES_MAX && !self.pieces.is_empty() {
            std::thread::sleep(RETRY);
            self.pass_on(out)?;
            let is_stuck = |since: Instant| out.now().since(since) >= STUCK_MAX;
            if self.refused_since.is_some_and(is_stuck) {
                return Err(Failure::Stuck);
            }
        }
        Ok(())
    }

    fn keep(&mut self, piece: &[u8], more: bool) -> Result<(), Failure> {
        let file = self.file.as_ref().expect("the caller has looked");
        file.write_all_at(piece, self.end).map_err(of_spool)?;
        self.end += piece.len() as u64;
        self.pieces.push_back((piece.len() as u32, more));
        Ok(())
    }

    /// Reads the first chunk of the file into the buffer.
    fn read(&mut self, length: u32) -> Result<(), Failure> {
        let file = self.file.as_ref().expect("something is kept there");
        self.buffer.resize(length as usize, 0);
        file.read_exact_at(&mut self.buffer, self.begin).map_err(of_spool)
    }

    fn drop_first(&mut self, length: u32) {
        self.pieces.pop_front();
        self.begin += u64::from(length);
        if self.pieces.is_empty() {
            (self.begin, self.end) = (0, 0); // The file is overwritten from its start.
        }
        assert!(self.begin <= self.end);
    }
}

/// All rows have the same key.
const KEY: u8 = Kind::Row as u8;

fn unnamed_file() -> io::Result<File> {
    let flags = OFlags::TMPFILE.bits().cast_signed();
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags(flags).open(std::env::temp_dir())
}

fn of_spool(error: io::Error) -> Failure {
    Failure::Refused(format!("`query`: rows for a slow reader cannot be kept: {error}"))
}
