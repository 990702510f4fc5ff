//! The runs in memory: those that are being read, and those that were given last.
//!
//! A run is read once for all questions that want it at the same time. Readers that follow the same
//! execution at the same speed thus share its reads.
//!
//! Invariants:
//! - A run stays as long as a question wants it. No page is written twice, so it stays what it is.
//! - At most [`limits::JOURNAL_RECENT_RUNS`] runs stay that nobody wants.

use std::collections::VecDeque;

use slab::Slab;
use smallvec::{SmallVec, smallvec};

use crate::base::PageBuffer;
use crate::journal::format::Lsn;
use crate::limits;

/// The runs in memory.
pub(super) struct HeldRuns {
    runs: Slab<Held>,
    /// The runs that nobody wants. The first one makes room for another one.
    idle: VecDeque<usize>,
}

struct Held {
    lsn: Lsn,
    content: Content,
    /// Number of questions that want it.
    wanted_count: u32,
}

enum Content {
    /// It is being read. These questions wait for it.
    Coming(SmallVec<[u64; 2]>),
    Read(RunRead, PageBuffer),
    /// It is being given.
    Lent(RunRead),
}

/// The result of the read of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RunRead {
    Whole,
    /// Its segment is gone.
    Removed,
    Failed,
}

/// The way to a run that a question wants.
pub(super) enum Wanted {
    /// It has to be read.
    Absent,
    /// Another question has it read.
    Coming,
    /// It can be given.
    Here,
    /// It can be given later in the turn.
    Lent,
}

impl Default for HeldRuns {
    /// No runs. There is memory for all reads that may be under way.
    fn default() -> HeldRuns {
        HeldRuns {
            runs: Slab::with_capacity(limits::JOURNAL_READS_MAX + limits::JOURNAL_RECENT_RUNS),
            idle: VecDeque::with_capacity(limits::JOURNAL_RECENT_RUNS + 1),
        }
    }
}

impl HeldRuns {
    /// Notes that a question wants the run at `lsn`. Returns the key of the run.
    pub(super) fn want(&mut self, lsn: Lsn, name: u64) -> (usize, Wanted) {
        let is_it = |held: &Held| {
            held.lsn == lsn
                && match held.content {
                    Content::Coming(_) => true,
                    // The question after a failed read tries again.
                    Content::Read(read, _) | Content::Lent(read) => read == RunRead::Whole,
                }
        };
        let Some((key, held)) = self.runs.iter_mut().find(|(_, held)| is_it(held)) else {
            let content = Content::Coming(smallvec![name]);
            return (self.runs.insert(Held { lsn, content, wanted_count: 1 }), Wanted::Absent);
        };
        held.wanted_count += 1;
        let wanted = match &mut held.content {
            Content::Coming(waiting) => {
                waiting.push(name);
                Wanted::Coming
            }
            Content::Read(..) => Wanted::Here,
            Content::Lent(_) => Wanted::Lent,
        };
        if held.wanted_count == 1 && !matches!(wanted, Wanted::Lent) {
            self.idle.retain(|idle| *idle != key);
        }
        (key, wanted)
    }

    /// Takes a run that was read. Returns the questions that have waited for it.
    pub(super) fn arrive(
        &mut self,
        key: usize,
        read: RunRead,
        buffer: PageBuffer,
    ) -> SmallVec<[u64; 2]> {
        match std::mem::replace(&mut self.runs[key].content, Content::Read(read, buffer)) {
            Content::Coming(waiting) => waiting,
            Content::Read(..) | Content::Lent(_) => unreachable!("a run is read once"),
        }
    }

    /// Lends a run to a question that has wanted it.
    pub(super) fn lend(&mut self, key: usize) -> (Lsn, RunRead, PageBuffer) {
        let held = &mut self.runs[key];
        held.wanted_count -= 1;
        let content = std::mem::replace(&mut held.content, Content::Lent(RunRead::Failed));
        let Content::Read(read, buffer) = content else { unreachable!("it is here") };
        held.content = Content::Lent(read);
        (held.lsn, read, buffer)
    }

    /// Takes a run back. `is_done`: the question has no use for more of it, and hardly anybody else
    /// will. Returns a buffer that is free now.
    pub(super) fn give_back(
        &mut self,
        key: usize,
        buffer: PageBuffer,
        is_done: bool,
    ) -> Option<PageBuffer> {
        let held = &mut self.runs[key];
        let Content::Lent(read) = held.content else { unreachable!("it was lent") };
        held.content = Content::Read(read, buffer);
        if held.wanted_count > 0 {
            return None;
        }
        if read != RunRead::Whole {
            return self.remove(key);
        }
        let is_full = self.idle.len() == limits::JOURNAL_RECENT_RUNS;
        let oldest = if is_full { self.idle.pop_front() } else { None };
        match is_done {
            true => self.idle.push_front(key),
            false => self.idle.push_back(key),
        }
        self.remove(oldest?)
    }

    fn remove(&mut self, key: usize) -> Option<PageBuffer> {
        match self.runs.remove(key).content {
            Content::Read(_, buffer) => Some(buffer),
            Content::Coming(_) | Content::Lent(_) => unreachable!("nobody wants it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer() -> PageBuffer {
        PageBuffer::new(limits::JOURNAL_PAGE_BYTES as usize)
    }

    fn lsn(at: u32) -> Lsn {
        Lsn::new(1, at * limits::JOURNAL_PAGE_BYTES)
    }

    #[test]
    fn a_run_is_read_once_for_all_that_want_it_meanwhile() {
        let mut runs = HeldRuns::default();
        let (key, wanted) = runs.want(lsn(1), 7);
        assert!(matches!(wanted, Wanted::Absent));
        let (other, wanted) = runs.want(lsn(1), 8);
        assert!(matches!(wanted, Wanted::Coming) && other == key);
        assert_eq!(runs.arrive(key, RunRead::Whole, buffer())[..], [7, 8]);
        for _ in 0..2 {
            let (at, read, buffer) = runs.lend(key);
            assert!(at == lsn(1) && read == RunRead::Whole);
            let (other, wanted) = runs.want(lsn(1), 9);
            assert!(matches!(wanted, Wanted::Lent) && other == key);
            assert!(runs.give_back(key, buffer, false).is_none());
        }
        for _ in 0..2 {
            let (_, _, buffer) = runs.lend(key);
            assert!(runs.give_back(key, buffer, false).is_none());
        }
        assert!(matches!(runs.want(lsn(1), 9).1, Wanted::Here));
        assert!(runs.idle.is_empty());
    }

    #[test]
    fn a_failed_read_is_tried_again_by_the_next_question() {
        let mut runs = HeldRuns::default();
        let (key, _) = runs.want(lsn(1), 7);
        runs.arrive(key, RunRead::Failed, buffer());
        let (second, wanted) = runs.want(lsn(1), 8);
        assert!(matches!(wanted, Wanted::Absent) && second != key);
        let (_, _, buffer) = runs.lend(key);
        assert!(runs.give_back(key, buffer, true).is_some());
        assert_eq!(runs.runs.len(), 1);
    }

    #[test]
    fn runs_that_nobody_wants_make_room_and_those_that_are_done_go_first() {
        let mut runs = HeldRuns::default();
        let mut give = |at: u32, is_done: bool| {
            let (key, wanted) = runs.want(lsn(at), 7);
            if matches!(wanted, Wanted::Absent) {
                runs.arrive(key, RunRead::Whole, buffer());
            }
            let (_, _, buffer) = runs.lend(key);
            let is_free = runs.give_back(key, buffer, is_done).is_some();
            (matches!(wanted, Wanted::Here), is_free, runs.runs.len())
        };
        let recent = limits::JOURNAL_RECENT_RUNS as u32;
        for at in 1..=recent {
            assert_eq!(give(at, at == 3), (false, false, at as usize));
        }
        assert_eq!(give(recent + 1, false), (false, true, recent as usize)); // Run 3 has gone.
        assert_eq!(give(1, false), (true, false, recent as usize));
        assert_eq!(give(recent + 2, false), (false, true, recent as usize)); // Run 2 has gone.
        assert!(give(1, false).0);
        assert!(!give(2, false).0);
    }
}
