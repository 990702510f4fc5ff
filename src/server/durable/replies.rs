//! Replies that several readers get.
//!
//! Readers that catch up with a stream ask for the same parts, often at the same time. One of them
//! reads a part from the disk. The others wait, and get the same bytes.
//!
//! A reply is kept for those who come later if somebody waits for it, or if the place was read
//! before. A single reader gets by with one buffer, which stays in the processor's cache.
//!
//! Invariants:
//! - P1: a kept reply is one that every reader from its place may get. It is as long as a reply
//!   needs to be, or it ends where the stream does.
//! - P2: the readers that wait go on when the one that reads is dropped, whatever the reason is.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::ReadAsk;
use crate::limits;
use crate::reactor::ConnectionId;

/// The place at which a reply begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// The number of the stream in its table; `None` for an execution that is no stream.
    pub stream: Option<usize>,
    pub execution: ExecutionId,
    /// The position.
    pub start: u64,
}

/// A reply that is kept.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    place: Place,
    /// The position behind it.
    pub end: u64,
    /// The body, with the brackets of JSON.
    pub body: Arc<Vec<u8>>,
}

impl Reply {
    fn is_long(&self) -> bool {
        self.body.len() >= limits::DURABLE_REPLY_BYTES
    }
}

/// A request that waits for the reply of another one.
#[derive(Debug)]
pub(super) struct Waiting {
    pub id: ConnectionId,
    pub ask: ReadAsk,
    /// The client, if the place is of an execution.
    pub principal: Option<Principal>,
}

/// The replies of a shard. See the module's text.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The last one that was made comes last.
    kept: VecDeque<Reply>,
    kept_bytes: usize,
    /// The places from which something was read and not kept. The last one comes last.
    read_once: VecDeque<Place>,
    /// The places from which somebody reads, with those who wait for the reply.
    readings: HashMap<Place, Vec<Waiting>>,
    /// Number of requests that wait for all of them, with those of connections that have closed.
    waiting_count: usize,
    ended: Rc<RefCell<Vec<Place>>>,
}

impl Replies {
    /// Returns a kept reply from `place` for a stream that ends at `shown`.
    pub fn find(&self, place: &Place, shown: u64) -> Option<&Reply> {
        let found = self.kept.iter().rev().find(|reply| reply.place == *place);
        found.filter(|reply| reply.is_long() || reply.end >= shown) // P1
    }

    /// Notes a reply. Keeps it if it was asked for more than once, and forgets the oldest ones if
    /// there are too many.
    pub fn note(&mut self, place: Place, end: u64, body: &Arc<Vec<u8>>) {
        let is_awaited = self.readings.get(&place).is_some_and(|waiting| !waiting.is_empty());
        if !is_awaited && !self.read_once.contains(&place) {
            if self.read_once.len() == limits::DURABLE_PLACES_MAX {
                self.read_once.pop_front();
            }
            return self.read_once.push_back(place);
        }
        self.kept.retain(|reply| reply.place != place);
        self.kept.push_back(Reply { place, end, body: Arc::clone(body) });
        self.forget_some();
    }

    /// Forgets the replies of an execution.
    pub fn forget(&mut self, execution: ExecutionId) {
        self.kept.retain(|reply| reply.place.execution != execution);
        self.forget_some();
    }

    fn forget_some(&mut self) {
        let bytes = |reply: &Reply| reply.body.capacity();
        self.kept_bytes = self.kept.iter().map(bytes).sum();
        while self.kept.len() > limits::DURABLE_REPLIES_MAX
            || self.kept_bytes > limits::DURABLE_REPLIES_BYTES_MAX
        {
            let oldest = self.kept.pop_front().expect("there are too many");
            self.kept_bytes -= bytes(&oldest);
        }
    }

    /// True if a reader reads from `place` for others, too.
    pub fn is_read(&self, place: &Place) -> bool {
        self.readings.contains_key(place)
    }

    /// True if a request may wait for a reader that has begun. Too many, or one with a list of what
    /// its client has, read for themselves.
    pub fn may_wait(&self, ask: &ReadAsk) -> bool {
        ask.known.is_empty() && self.waiting_count < limits::DURABLE_READERS_WAITING_MAX
    }

    /// Lets a request wait for the reader that reads from `place`.
    pub fn wait(&mut self, place: &Place, waiting: Waiting) {
        self.waiting_count += 1;
        let others = self.readings.get_mut(place).expect("somebody reads from there");
        others.push(waiting);
    }

    /// Notes that a reader reads from `place`. Others may wait until the result is dropped.
    pub fn lead(&mut self, place: Place) -> Lead {
        let before = self.readings.insert(place, Vec::new());
        assert!(before.is_none(), "the others wait for one reader");
        Lead { place, ended: Rc::clone(&self.ended) }
    }

    /// True if a reader has ended that others may wait for.
    #[inline]
    pub fn has_ended(&self) -> bool {
        !self.ended.borrow().is_empty()
    }

    /// Returns a place whose reader has ended, and those that have waited for its reply.
    pub fn take_ended(&mut self) -> Option<(Place, Vec<Waiting>)> {
        let place = self.ended.borrow_mut().pop()?;
        let waiting = self.readings.remove(&place).expect("it was noted when it began");
        self.waiting_count -= waiting.len();
        Some((place, waiting))
    }
}

/// The part of a reader that reads for others, too.
#[derive(Debug)]
pub(in crate::server) struct Lead {
    place: Place,
    ended: Rc<RefCell<Vec<Place>>>,
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.ended.borrow_mut().push(self.place); // P2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Handle;

    fn place(start: u64) -> Place {
        let execution =
            ExecutionId { shard: 0, slot: Handle { index: 0, generation: 0 }, nonce: 1 };
        Place { stream: Some(0), execution, start }
    }

    /// Notes a reply twice, so that it is kept.
    fn keep(replies: &mut Replies, place: Place, end: u64, bytes: usize) {
        let body = Arc::new(vec![b'.'; bytes]);
        (0..2).for_each(|_| replies.note(place, end, &body));
    }

    #[test]
    fn a_reply_is_kept_if_it_is_asked_for_twice() {
        let (mut replies, body) = (Replies::default(), Arc::new(vec![b'.'; 10]));
        replies.note(place(0), 10, &body);
        assert!(replies.find(&place(0), 10).is_none());
        replies.note(place(0), 10, &body);
        assert!(replies.find(&place(0), 10).is_some());
        let lead = replies.lead(place(1));
        let id = ConnectionId(Handle { index: 0, generation: 0 });
        let waiting = Waiting { id, ask: ReadAsk::default(), principal: None };
        replies.wait(&place(1), waiting);
        replies.note(place(1), 11, &body);
        assert!(replies.find(&place(1), 11).is_some());
        drop(lead);
        let count = limits::DURABLE_PLACES_MAX as u64;
        (2..count + 3).for_each(|start| replies.note(place(start), start + 1, &body));
        replies.note(place(2), 3, &body); // Its place is forgotten.
        assert!(replies.find(&place(2), 3).is_none());
    }

    #[test]
    fn a_short_reply_is_good_as_long_as_the_stream_ends_there() {
        let mut replies = Replies::default();
        keep(&mut replies, place(0), 10, 10);
        assert_eq!(replies.find(&place(0), 10).map(|reply| reply.end), Some(10));
        assert!(replies.find(&place(0), 11).is_none());
        assert!(replies.find(&place(1), 10).is_none());
        keep(&mut replies, place(0), 11, 11);
        assert_eq!(replies.find(&place(0), 11).map(|reply| reply.end), Some(11));
        let long = limits::DURABLE_REPLY_BYTES;
        keep(&mut replies, place(0), long as u64, long);
        assert!(replies.find(&place(0), u64::MAX).is_some());
        replies.forget(place(0).execution);
        assert!(replies.find(&place(0), 0).is_none());
        assert_eq!(replies.kept_bytes, 0);
    }

    #[test]
    fn the_oldest_replies_are_forgotten() {
        let mut replies = Replies::default();
        let count = 2 * limits::DURABLE_REPLIES_MAX as u64;
        (0..count).for_each(|start| keep(&mut replies, place(start), start + 1, 1));
        assert_eq!(replies.kept.len(), limits::DURABLE_REPLIES_MAX);
        assert!(replies.find(&place(count - 1), count).is_some());
        let half = limits::DURABLE_REPLIES_BYTES_MAX / 2;
        (0..3).for_each(|start| keep(&mut replies, place(start), start + 1, half));
        assert_eq!(replies.kept.len(), 2);
        assert!(replies.kept_bytes <= limits::DURABLE_REPLIES_BYTES_MAX);
        keep(&mut replies, place(9), 10, 3 * half);
        assert_eq!((replies.kept.len(), replies.kept_bytes), (0, 0)); // It alone is too much.
    }

    #[test]
    fn those_who_wait_go_on_when_the_reader_ends() {
        let mut replies = Replies::default();
        let lead = replies.lead(place(3));
        assert!(replies.is_read(&place(3)) && !replies.is_read(&place(4)));
        let id = ConnectionId(Handle { index: 0, generation: 0 });
        let waiting = Waiting { id, ask: ReadAsk::default(), principal: None };
        assert!(replies.may_wait(&waiting.ask));
        let known = ReadAsk { known: vec!["*".into()], ..ReadAsk::default() };
        assert!(!replies.may_wait(&known));
        replies.wait(&place(3), waiting);
        replies.waiting_count += limits::DURABLE_READERS_WAITING_MAX - 1;
        assert!(!replies.may_wait(&ReadAsk::default()));
        replies.waiting_count = 1;
        assert!(!replies.has_ended());
        drop(lead);
        assert!(replies.has_ended());
        let (ended, waiting) = replies.take_ended().unwrap();
        assert_eq!((ended, waiting.len()), (place(3), 1));
        assert!(!replies.has_ended() && !replies.is_read(&place(3)));
        assert_eq!(replies.waiting_count, 0);
    }
}
