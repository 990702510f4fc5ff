//! Parts of a log on their way to another thread.

use super::follow::{Given, LogGap};
use super::record::Item;
use crate::base::SharedBytes;
use crate::journal::block::SharedRun;

/// A part of a log.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Chunks, one behind the other.
    Chunks(SharedRun),
    /// Chunks that are missing.
    Gap(LogGap),
    /// A note, such as progress.
    Note(Box<[u8]>),
    /// The end.
    End(Box<[u8]>),
}

impl Piece {
    /// Keeps what a reader was given of a record.
    pub fn of(given: Given<'_>, record: &SharedBytes) -> Piece {
        match given {
            Given::Gap(gap) => Piece::Gap(gap),
            Given::Item(Item::Chunks(run)) => Piece::Chunks(run.shared(record)),
            Given::Item(Item::Gap { before, after, reason }) => {
                Piece::Gap(LogGap { before, after, reason })
            }
            Given::Item(Item::Note(body)) => Piece::Note(body.into()),
            Given::Item(Item::End(details)) => Piece::End(details.into()),
        }
    }

    /// Number of bytes that it takes.
    pub fn bytes(&self) -> usize {
        match self {
            Piece::Chunks(run) => run.bytes() as usize,
            Piece::Gap(_) => size_of::<Piece>(),
            Piece::Note(body) | Piece::End(body) => body.len(),
        }
    }
}
