//! The ended executions, from the oldest to the newest: the order in which they are evicted.
//!
//! The list is linked through the executions themselves, so that it needs no memory of its own.

use crate::base::Pool;
use crate::engine::execution::Execution;
use crate::stream::ExecutionState;

/// The neighbours of an ended execution in the list.
#[derive(Debug, Default)]
pub(super) struct Links {
    older: Option<u32>,
    newer: Option<u32>,
}

/// The ends of the list of ended executions.
#[derive(Debug, Default)]
pub(super) struct EndedList {
    oldest: Option<u32>,
    newest: Option<u32>,
}

impl EndedList {
    /// The execution that ended first.
    pub fn oldest(&self) -> Option<u32> {
        self.oldest
    }

    /// Returns the oldest ended execution that fits.
    pub fn find(
        &self,
        executions: &Pool<Execution>,
        fits: impl Fn(&Execution) -> bool,
    ) -> Option<u32> {
        let mut next = self.oldest;
        while let Some(index) = next {
            let e = executions.at(index).expect("listed executions live");
            assert!(matches!(e.state, ExecutionState::Ended(_)));
            if fits(e) {
                return Some(index);
            }
            next = e.links.newer;
        }
        None
    }

    /// Returns the oldest ended execution that fits and has no subscriber.
    pub fn find_unread(
        &self,
        executions: &Pool<Execution>,
        fits: impl Fn(&Execution) -> bool,
    ) -> Option<u32> {
        self.find(executions, |e| e.audience.count() == 0 && fits(e))
    }

    /// Puts an execution that has just ended behind the newest one.
    pub fn push(&mut self, executions: &mut Pool<Execution>, index: u32) {
        let e = executions.at_mut(index).expect("an ended execution lives");
        assert!(e.links.older.is_none()); // It is not in the list yet.
        assert!(e.links.newer.is_none());
        e.links.older = self.newest;
        match self.newest {
            Some(newest) => {
                let older = executions.at_mut(newest).expect("listed executions live");
                assert!(older.links.newer.is_none()); // It was the newest.
                older.links.newer = Some(index);
            }
            None => {
                assert!(self.oldest.is_none()); // The list was empty, at both ends.
                self.oldest = Some(index);
            }
        }
        self.newest = Some(index);
    }

    /// Takes an execution out of the list, between its two neighbours.
    pub fn unlink(&mut self, executions: &mut Pool<Execution>, index: u32) {
        let e = executions.at_mut(index).expect("listed executions live");
        let Links { older, newer } = std::mem::take(&mut e.links);
        match older {
            Some(older_index) => {
                let neighbour = executions.at_mut(older_index).expect("a neighbour lives");
                let next = std::mem::replace(&mut neighbour.links.newer, newer);
                assert!(next == Some(index));
            }
            None => {
                assert!(self.oldest == Some(index));
                self.oldest = newer;
            }
        }
        match newer {
            Some(newer_index) => {
                let neighbour = executions.at_mut(newer_index).expect("a neighbour lives");
                let previous = std::mem::replace(&mut neighbour.links.older, older);
                assert!(previous == Some(index));
            }
            None => {
                assert!(self.newest == Some(index));
                self.newest = older;
            }
        }
    }

    /// Checks that the list holds all ended executions, and no others.
    pub fn audit(&self, executions: &Pool<Execution>) {
        let mut at = self.oldest;
        let mut ended_count = 0;
        while let Some(index) = at {
            let execution = executions.at(index).expect("the list holds living executions");
            assert!(matches!(execution.state, ExecutionState::Ended(_)));
            at = execution.links.newer;
            ended_count += 1;
        }
        let ended = executions.iter().filter(|(_, e)| matches!(e.state, ExecutionState::Ended(_)));
        assert_eq!(ended.count(), ended_count);
    }
}
