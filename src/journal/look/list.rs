//! The executions of a journal, and what is missing of each.
//!
//! A sealed segment is taken from its index, without a look at its blocks. A damaged payload in it
//! is thus not seen here; [`super::verify`] and [`super::output`] see it.

use std::collections::BTreeMap;
use std::io;

use super::blocks::Piece;
use super::rows::Index;
use super::{Look, LookError, ReadFiles, Visitor, read_run};
use crate::journal::Record;
use crate::journal::block::Run;
use crate::journal::format::{Lsn, RunKind};
use crate::journal::index::{ExecutionRow, RecordPlace, Trailer};
use crate::journal::records::{Ended, Opened, Terms};

/// Chunks that were published and cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// The journal had no room for them.
    pub unwritten: u64,
    /// They are damaged, or lost with what was around them.
    pub corrupt: u64,
    /// Their segments were removed.
    pub expired: u64,
}

impl Missing {
    /// The sum.
    pub fn all(&self) -> u64 {
        self.unwritten + self.corrupt + self.expired
    }
}

/// An execution of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id, as its 128 bits.
    pub id: u128,
    /// Its number in this journal.
    pub number: u32,
    /// The promises for it. `None` if the record of its beginning cannot be read.
    pub terms: Option<Terms>,
    /// The wall-clock time of its beginning, in microseconds since 1970; `None` as above. If the
    /// first record was removed, this is the time of its repetition.
    pub opened_us: Option<u64>,
    /// The wall-clock time of its end, in microseconds since 1970. `None` while it is unfinished.
    pub ended_us: Option<u64>,
    /// The record of its end. See [`Look::end_details`].
    pub ended: Option<Record>,
    /// Number of chunks that were published.
    pub chunks: u64,
    /// Payload bytes of these.
    pub bytes: u64,
    /// The chunks that are missing.
    pub missing: Missing,
}

/// The executions of a journal.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Those that were not deleted, in the order of their beginnings.
    pub executions: Vec<Listed>,
    /// Number of executions of which only parts without an id are left.
    pub nameless: u64,
}

impl<F: ReadFiles> Look<F> {
    /// Lists the executions.
    ///
    /// # Errors
    /// [`LookError`].
    pub fn list(&mut self) -> Result<Listing, LookError> {
        let is_complete = self.is_complete();
        let mut lister = Lister { is_complete, entries: BTreeMap::new() };
        self.visit(&mut lister)?;
        let mut listing = Listing::default();
        for (number, entry) in lister.entries {
            match entry.id {
                None => listing.nameless += 1,
                Some(id) if !entry.is_deleted => listing.executions.push(entry.listed(id, number)),
                Some(_) => {}
            }
        }
        Ok(listing)
    }

    /// Passes the details of an end to `read`. Returns `None` if the execution has no end, or if
    /// its record cannot be read.
    ///
    /// # Errors
    /// [`LookError`].
    pub fn end_details<T>(
        &mut self,
        listed: &Listed,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, LookError> {
        let Some(Record { lsn, bytes }) = listed.ended else { return Ok(None) };
        let of_it = |run: &Run<'_>| {
            run.header.kind == RunKind::Ended && run.header.execution == listed.number
        };
        let found = read_run(&mut self.files, self.journal, lsn, bytes, |run| {
            let run = run.filter(of_it)?;
            let ended = run.body().and_then(Ended::decode).ok()?;
            Some(read(ended.details))
        });
        match found {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None), // Just removed.
            found => found.map_err(|error| LookError::Io {
                segment_number: Some(lsn.segment_number()),
                error,
            }),
        }
    }
}

/// The knowledge about an execution so far.
#[derive(Debug)]
struct Entry {
    id: Option<u128>,
    terms: Option<Terms>,
    opened_us: Option<u64>,
    ended_us: Option<u64>,
    ended: Option<Record>,
    next_seq: u64,
    bytes: u64,
    missing: Missing,
    /// True if chunks before the next one cannot have expired.
    is_begun: bool,
    is_deleted: bool,
}

impl Entry {
    fn listed(self, id: u128, number: u32) -> Listed {
        let Entry { terms, opened_us, ended_us, ended, bytes, missing, .. } = self;
        let chunks = self.next_seq - 1;
        Listed { id, number, terms, opened_us, ended_us, ended, chunks, bytes, missing }
    }

    /// Everything before a chunk was published, and what was not seen is missing.
    fn pass(&mut self, seq: u64, bytes_before: u64) {
        let Some(lost) = seq.checked_sub(self.next_seq) else { return };
        match self.is_begun {
            true => self.missing.corrupt += lost,
            false => self.missing.expired += lost,
        }
        (self.next_seq, self.bytes) = (seq, self.bytes.max(bytes_before));
    }

    /// Passes a run of chunks, or a hole.
    fn pass_run(&mut self, first_seq: u64, bytes_before: u64, count: u32, is_hole: bool) {
        if first_seq < self.next_seq {
            return; // It repeats something, which no run of ours does.
        }
        self.pass(first_seq, bytes_before);
        self.is_begun = true;
        self.next_seq += u64::from(count);
        self.missing.unwritten += if is_hole { u64::from(count) } else { 0 };
    }

    fn open(&mut self, kind: RunKind, opened: &Opened<'_>) {
        self.id = Some(opened.id);
        self.terms = Some(opened.terms);
        self.opened_us.get_or_insert(opened.opened_us);
        self.is_begun |= kind == RunKind::Opened;
    }
}

struct Lister {
    is_complete: bool,
    entries: BTreeMap<u32, Entry>,
}

impl Lister {
    fn entry(&mut self, number: u32) -> &mut Entry {
        let is_begun = self.is_complete;
        self.entries.entry(number).or_insert_with(|| Entry {
            id: None,
            terms: None,
            opened_us: None,
            ended_us: None,
            ended: None,
            next_seq: 1,
            bytes: 0,
            missing: Missing::default(),
            is_begun,
            is_deleted: false,
        })
    }

    fn take_run(&mut self, run: &Run<'_>) {
        let header = &run.header;
        let entry = self.entry(header.execution);
        match header.kind {
            RunKind::Opened | RunKind::Carried => {
                if let Ok(opened) = run.body().and_then(Opened::decode) {
                    entry.open(header.kind, &opened);
                }
                entry.pass(header.first_seq, header.bytes_before);
            }
            RunKind::Chunks => {
                let is_new = header.first_seq >= entry.next_seq;
                entry.pass_run(header.first_seq, header.bytes_before, header.count, false);
                for chunk in run.chunks().filter(|_| is_new) {
                    match chunk {
                        Ok(chunk) => entry.bytes += u64::from(chunk.entry.length),
                        Err(lost) => entry.missing.corrupt += lost.until_seq - lost.from_seq,
                    }
                }
            }
            RunKind::Hole => {
                entry.pass_run(header.first_seq, header.bytes_before, header.count, true);
                if let Some(after) = run.position_after() {
                    entry.bytes = entry.bytes.max(after.all.bytes);
                }
            }
            RunKind::Ended => {
                if let Ok(ended) = run.body().and_then(Ended::decode) {
                    entry.id = Some(ended.id);
                    entry.ended_us = Some(ended.ended_us);
                    entry.ended = Some(Record { lsn: run.lsn, bytes: header.bytes });
                }
                entry.pass(header.first_seq, header.bytes_before);
            }
            RunKind::Deleted => entry.is_deleted = true,
            RunKind::Note => {}
        }
    }

    fn take_row(&mut self, index: &Index, row: &ExecutionRow) {
        let entry = self.entry(row.execution);
        entry.id = Some(row.id);
        entry.is_deleted |= row.is_deleted;
        entry.pass(row.first_seq, 0);
        for run in index.runs_of(row).unwrap_or_default() {
            entry.pass_run(run.first_seq, run.bytes_before, run.count, run.is_hole);
        }
        entry.pass(row.until_seq, row.bytes_until);
        entry.bytes = entry.bytes.max(row.bytes_until);
        if let Some(RecordPlace { offset_bytes, bytes }) = row.ended.found() {
            entry.ended_us = Some(row.ended_us);
            let lsn = place(index.trailer.segment_number, offset_bytes);
            entry.ended = Some(Record { lsn, bytes });
        }
    }
}

impl<F: ReadFiles> Visitor<F> for Lister {
    fn index(&mut self, files: &mut F, index: &Index) -> io::Result<()> {
        let Trailer { journal, segment_number: number, .. } = index.trailer;
        for row in &index.executions {
            if let Some(RecordPlace { offset_bytes, bytes }) = row.opened.found()
                && self.entry(row.execution).terms.is_none()
            {
                let lsn = place(number, offset_bytes);
                let entry = self.entry(row.execution);
                read_run(files, journal, lsn, bytes, |run| {
                    let Some(run) = run.filter(|run| run.header.execution == row.execution) else {
                        return;
                    };
                    let is_opened = matches!(run.header.kind, RunKind::Opened | RunKind::Carried);
                    if is_opened && let Ok(opened) = run.body().and_then(Opened::decode) {
                        entry.open(run.header.kind, &opened);
                    }
                })?;
            }
            self.take_row(index, row);
        }
        Ok(())
    }

    fn gone(&mut self) {
        self.is_complete = false;
        self.entries.values_mut().for_each(|entry| entry.is_begun = false);
    }

    fn piece(&mut self, piece: &Piece<'_>) {
        piece.each_run(&mut |run| {
            if let Ok(run) = run {
                self.take_run(&run);
            }
        });
    }
}

/// The place at an offset that comes from a file.
pub(super) fn place(segment_number: u64, offset_bytes: u32) -> Lsn {
    Lsn::new(segment_number, offset_bytes.min(crate::limits::JOURNAL_SEGMENT_BYTES))
}
