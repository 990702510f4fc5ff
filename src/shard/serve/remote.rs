//! What connections follow on other shards: each of them is a reader of that shard's ring, and
//! keeps to its policy by itself, here. Nothing crosses between the cores but the ring's lines.
//!
//! A reader is in one of three states. *Awake*, it has a place in a queue and is polled once in
//! each turn, for as much as one delivery takes. *Dozing*, it has found nothing, and its shard
//! wakes this one's reactor when there is something, once. *Held*, its connection takes no bytes:
//! it is not read for, so under `block` it holds its producer back, and any other is told what it
//! missed when it goes on. Who wants its chunks in company also dozes while they wait for it, and
//! is due when they have waited long enough.
//!
//! Invariants ([`Remotes::audit`]):
//! - R1: a stream names a place if and only if there is a reader in it that has not ended, and that
//!   reader names the stream's connection.
//! - R2: a place is in the queue exactly once if its reader is awake, and not at all otherwise.
//! - R3: who is held reads for a connection that takes nothing.

use std::collections::VecDeque;

use super::super::{Delivery, Ended, Names, Shard, Subscriber};
use super::Serve;
use super::connection::Connection;
use super::deliver::Giving;
use super::join::Joined;
use super::stream::Source;
use crate::base::Instant;
use crate::engine::{Coalesce, End, EndState, Gap, Replay};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::trace::Counters;

/// What a reader is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Awake,
    Dozing,
    Held,
}

/// A reader of another shard's ring.
#[derive(Debug)]
struct Remote {
    subscriber: Subscriber,
    names: Names,
    connection: ConnectionId,
    state: State,
    coalesce: Option<Coalesce>,
    /// Chunks wait for company until then.
    due_at: Option<Instant>,
    /// The number of chunks and of payload bytes that it is given between two flushes.
    delivery_max: (u64, u64),
}

/// All of one shard's connections.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    places: Vec<Option<Box<Remote>>>,
    free: Vec<u32>,
    /// Places to be polled.
    awake: VecDeque<u32>,
    /// Nobody is due before this.
    due_at: Option<Instant>,
}

/// Do chunks wait for company?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    /// They are given now.
    Enough,
    /// They wait, until they are due or there are more than this newest one.
    Waits { head_seq: u64 },
}

impl Remote {
    /// As the engine has it for subscribers of its own thread.
    fn company(&mut self, now: Instant) -> Company {
        let Some(coalesce) = self.coalesce else { return Company::Enough };
        let Some((lag, head_seq)) = self.subscriber.pending() else { return Company::Enough };
        let limit_chunks = u64::from(self.subscriber.terms().limit.chunks);
        if lag.bytes >= coalesce.bytes_max || lag.chunks >= limit_chunks {
            self.due_at = Some(now);
        }
        let due_at = *self.due_at.get_or_insert(now + coalesce.delay_max);
        match due_at <= now || lag.chunks == 0 {
            true => Company::Enough, // And what is left of it, until there is nothing more.
            false => Company::Waits { head_seq },
        }
    }
}

impl Remotes {
    /// A connection begins to follow: from now on it is polled. The place, for its stream.
    pub fn insert(&mut self, joined: Joined, connection: ConnectionId) -> Source {
        let Joined { subscriber, names, coalesce, .. } = joined;
        let (state, due_at) = (State::Awake, None);
        let whole = (limits::DELIVERY_CHUNKS_MAX.into(), limits::DELIVERY_BYTES_MAX);
        let is_bounded = |replay: &Replay| !replay.until_acknowledged;
        let delivery_max = match subscriber.replay().filter(is_bounded) {
            Some(replay) => replay.delivery(),
            None => whole,
        };
        let delivery_max = (delivery_max.0.min(whole.0), delivery_max.1.min(whole.1));
        let remote =
            Remote { subscriber, names, connection, state, coalesce, due_at, delivery_max };
        let remote = Box::new(remote);
        let at = self.free.pop().unwrap_or(self.places.len() as u32);
        match self.places.get_mut(at as usize) {
            Some(place) => *place = Some(remote),
            None => self.places.push(Some(remote)),
        }
        // Bought here, because a chunk buys nothing.
        let count = self.places.len();
        self.free.reserve(count - self.free.len());
        self.awake.reserve(count - self.awake.len());
        self.awake.push_back(at);
        Source::There(at)
    }

    /// Nobody follows from this place any more.
    fn remove(&mut self, at: u32) -> Subscriber {
        let remote = self.places[at as usize].take().expect("R1");
        if remote.state == State::Awake {
            self.awake.retain(|&awake| awake != at); // R2
        }
        self.free.push(at);
        remote.subscriber
    }

    fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Is anybody to be polled?
    #[inline]
    pub fn has_awake(&self) -> bool {
        !self.awake.is_empty()
    }

    /// The connection that follows from this place takes bytes again.
    pub fn release(&mut self, at: u32) {
        let remote = self.places[at as usize].as_mut().expect("R1");
        if remote.state == State::Held {
            remote.state = State::Awake;
            self.awake.push_back(at);
        }
    }

    /// This shard was woken, perhaps for some of these.
    fn look_at_dozing(&mut self) {
        for (at, remote) in self.places.iter_mut().enumerate() {
            if let Some(remote) = remote
                && remote.state == State::Dozing
                && remote.subscriber.was_roused()
            {
                remote.state = State::Awake;
                self.awake.push_back(at as u32);
            }
        }
    }

    /// When chunks have waited long enough for company.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due_at
    }

    fn expect_by(&mut self, due_at: Option<Instant>) {
        let both = self.due_at.into_iter().chain(due_at);
        self.due_at = both.min();
    }

    /// Wakes those whose chunks have waited long enough.
    pub fn wake_due(&mut self, now: Instant) {
        self.due_at = None;
        for (at, remote) in self.places.iter_mut().enumerate() {
            let Some(remote) = remote else { continue };
            let Some(due_at) = remote.due_at.filter(|_| remote.state == State::Dozing) else {
                continue;
            };
            if due_at <= now {
                remote.subscriber.wake_up();
                remote.state = State::Awake;
                self.awake.push_back(at as u32);
            } else {
                self.due_at = Some(self.due_at.map_or(due_at, |first| first.min(due_at)));
            }
        }
    }

    /// Checks R1 to R3. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self, connections: &[Option<Box<Connection>>]) {
        let mut named_count = 0;
        for connection in connections.iter().flatten() {
            for followed in connection.stream.iter().flat_map(|stream| &stream.followed) {
                let Some(Source::There(at)) = followed.source else { continue };
                named_count += 1;
                let remote = self.places[at as usize].as_ref().expect("R1");
                assert_eq!(remote.connection, connection.id); // R1
                assert!(remote.state != State::Held || !connection.takes); // R3
            }
        }
        assert_eq!(named_count, self.count()); // R1
        for (at, remote) in self.places.iter().enumerate() {
            let state = remote.as_ref().map(|remote| remote.state);
            let queued = self.awake.iter().filter(|&&awake| awake as usize == at).count();
            assert_eq!(queued, usize::from(state == Some(State::Awake))); // R2
        }
    }
}

impl Serve {
    /// Gives a connection what the ring in this place has for it, at most one delivery.
    fn poll_remote<R: Reactor>(
        &mut self,
        at: u32,
        reactor: &mut R,
        counters: &mut Counters,
        now: Instant,
    ) -> Given {
        // Out of its place while it gives: what it gives is lent by itself.
        let mut remote = self.remotes.places[at as usize].take().expect("R2");
        let id = remote.connection;
        let is_alone = self.remotes.count() == 1;
        let (mut count, mut bytes, mut ended) = (0, 0, None);
        remote.state = loop {
            if !self.connection(id).expect("R1").takes {
                break State::Held;
            }
            let (chunks_max, bytes_max) = remote.delivery_max;
            if count > 0 && (count >= chunks_max || bytes >= bytes_max) {
                break State::Awake;
            }
            if let Company::Waits { head_seq } = remote.company(now) {
                remote.subscriber.settle();
                self.remotes.expect_by(remote.due_at);
                let dozes = remote.subscriber.rest_behind(head_seq);
                break if dozes { State::Dozing } else { State::Awake };
            }
            let Some((delivery, next_seq)) = remote.subscriber.poll_at(now) else {
                remote.due_at = None;
                break if remote.subscriber.rest() { State::Dozing } else { State::Awake };
            };
            count += 1;
            self.next_chunk();
            if let Delivery::Chunk(chunk) = &delivery {
                bytes += chunk.data.len() as u64;
                counters.chunks_delivered += 1;
                counters.bytes_delivered += chunk.data.len() as u64;
                let giving = Giving {
                    reactor: &mut *reactor,
                    counters,
                    now,
                    names: &remote.names,
                    is_alone,
                };
                self.give(id, Source::There(at), chunk, giving);
                continue;
            }
            count_told(counters, &delivery);
            self.tell(id, Source::There(at), &remote.names, next_seq, &delivery);
            if let Delivery::End(Ended { end, .. }) = delivery {
                ended = Some(end);
                break State::Dozing;
            }
        };
        if ended.is_none() {
            remote.subscriber.settle(); // The bytes are the connection's by now.
        }
        let is_awake = remote.state == State::Awake;
        self.remotes.places[at as usize] = Some(remote);
        let left = ended.map(|end| (self.remotes.remove(at), end));
        if is_awake {
            self.remotes.awake.push_back(at);
        }
        Given { any: count > 0, left }
    }
}

/// What came of a poll.
struct Given {
    /// Something was given.
    any: bool,
    /// Who has had its last word, and that.
    left: Option<(Subscriber, End)>,
}

/// What the engine counts for subscribers of its own thread.
fn count_told(counters: &mut Counters, delivery: &Delivery<'_>) {
    match delivery {
        Delivery::Chunk(_) => {}
        Delivery::Gap(Gap { chunk_count, byte_count, .. }) => {
            counters.gaps_delivered += 1;
            counters.chunks_missed += chunk_count;
            counters.bytes_missed += byte_count;
        }
        Delivery::Progress(_) => counters.progress_delivered += 1,
        Delivery::End(ended) => {
            // Who lets somebody go counts that itself.
            let is_own = matches!(ended.end.state, EndState::Ended(_));
            counters.ends_delivered += u64::from(is_own);
        }
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// Is there anything to be read from other shards, as far as is known?
    #[inline]
    pub(in crate::shard) fn has_awake_remotes(&self) -> bool {
        self.serve.as_ref().is_some_and(|serve| serve.remotes.has_awake())
    }

    /// Gives connections what they follow on other shards.
    pub(in crate::shard) fn poll_remotes(&mut self) {
        let awake_count = self.serve.as_ref().map_or(0, |serve| serve.remotes.awake.len());
        for _ in 0..awake_count {
            self.make_room_for_deliveries();
            let Some(serve) = &mut self.serve else { return };
            let Some(at) = serve.remotes.awake.pop_front() else { return };
            let (reactor, counters) = (&mut self.reactor, &mut self.counters);
            let Given { any, left } = serve.poll_remote(at, reactor, counters, self.now);
            self.worked |= any;
            if let Some((subscriber, end)) = left {
                self.log_let_go(subscriber.execution(), subscriber.id(), &end);
            }
            self.flush_if_due();
        }
    }

    /// Somebody has rung: perhaps another shard has something for its readers here.
    pub(in crate::shard) fn look_at_remotes(&mut self) {
        if let Some(serve) = &mut self.serve {
            serve.remotes.look_at_dozing();
        }
    }

    /// The connection that follows from this place is gone.
    pub(super) fn lose_remote(&mut self, at: u32) {
        let serve = self.serve.as_mut().expect("it has connections");
        drop(serve.remotes.remove(at)); // It says itself how it leaves.
    }
}
