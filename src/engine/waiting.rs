//! The executions that wait for a ring, in the order in which they were opened.

use std::collections::VecDeque;

use crate::base::Handle;
use crate::engine::action::RingFit;

/// The executions without a ring, and the request for the ring of the first one.
#[derive(Debug)]
pub(super) struct WaitingLine {
    queue: VecDeque<Handle>,
    queued_max: u32,
    /// The request that is in progress. Only one is at a time, which keeps the queue in order.
    leasing: Option<RingFit>,
}

impl WaitingLine {
    pub fn new(queued_max: u32) -> WaitingLine {
        let queue = VecDeque::with_capacity(queued_max as usize);
        WaitingLine { queue, queued_max, leasing: None }
    }

    /// True if no further execution may wait.
    pub fn is_full(&self) -> bool {
        self.queue.len() as u32 >= self.queued_max
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn contains(&self, execution: Handle) -> bool {
        self.queue.contains(&execution)
    }

    /// Puts an execution at the end of the line.
    pub fn join(&mut self, execution: Handle) {
        self.queue.push_back(execution);
        assert!(self.queue.len() as u32 <= self.queued_max);
    }

    /// Takes out an execution that will not begin. A request for its ring stays in progress.
    pub fn leave(&mut self, execution: Handle) {
        self.queue.retain(|&queued| queued != execution);
    }

    /// True if this execution is the first one in the line.
    pub fn is_first(&self, execution: Handle) -> bool {
        self.queue.front() == Some(&execution)
    }

    /// The execution for which a ring has to be requested: the first one, unless a request is in
    /// progress.
    pub fn unserved(&self) -> Option<Handle> {
        self.queue.front().copied().filter(|_| self.leasing.is_none())
    }

    /// Notes that a ring was requested for the first execution.
    pub fn requested(&mut self, fit: RingFit) {
        assert!(self.leasing.is_none());
        assert!(!self.queue.is_empty());
        self.leasing = Some(fit);
    }

    /// Notes the answer to the request. Returns what was requested.
    pub fn answered(&mut self) -> Option<RingFit> {
        self.leasing.take()
    }

    /// Takes out the first execution, which has got its ring.
    pub fn pop(&mut self) -> Option<Handle> {
        self.queue.pop_front()
    }
}
