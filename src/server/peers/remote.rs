//! Streams from other shards. Each is a reader of that shard's ring, and applies its policy itself,
//! here. Only the cache lines of the ring cross between cores.
//!
//! A reader is in one of three states:
//! - *Awake*: it is in a queue and is polled once in each turn, for one delivery at most.
//! - *Dozing*: it has found nothing. Its shard wakes this one's reactor once when something comes.
//! - *Held*: its connection takes no bytes, and it is not polled. Under `block` it stops its
//!   producer. With other policies it gets a gap for what it missed.
//!
//! A reader that coalesces chunks also dozes while they wait for more. It is due after its maximum
//! delay.
//!
//! Invariants ([`Remotes::audit`]):
//! - R1: a stream names a slot if and only if a reader in it has not ended. That reader names the
//!   stream's connection.
//! - R2: a slot is in the queue exactly once if its reader is awake, and not at all otherwise.
//! - R3: the connection of a held reader takes no bytes.

use std::collections::VecDeque;

use crate::base::Instant;
use crate::engine::{Coalesce, Replay};
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::hub::Hub;
use crate::server::hub::deliver::Giving;
use crate::server::hub::stream::Source;
use crate::server::peers::join::Joined;
use crate::shard::{Delivery, Ended, Names, Subscriber};
use crate::stream::{End, EndState, Gap};
use crate::trace::Counters;

/// The state of a reader.
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
    /// The time at which chunks that are coalesced have to be delivered.
    due_at: Option<Instant>,
    /// Maximum number of chunks, and of payload bytes, between two flushes.
    delivery_max: (u64, u64),
}

/// The readers of one shard's connections.
#[derive(Debug, Default)]
pub(in crate::server) struct Remotes {
    places: Vec<Option<Box<Remote>>>,
    free: Vec<u32>,
    /// The slots to poll.
    awake: VecDeque<u32>,
    /// A lower bound of all `due_at` of dozing readers.
    due_at: Option<Instant>,
}

/// The result of checking whether chunks wait to be coalesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coalescing {
    /// They are delivered now.
    Enough,
    /// They wait until they are due, or until a chunk newer than this one comes.
    Waits { head_seq: u64 },
}

impl Remote {
    /// Decides as the engine does for subscribers of its own thread.
    fn coalescing(&mut self, now: Instant) -> Coalescing {
        let Some(coalesce) = self.coalesce else { return Coalescing::Enough };
        let Some((lag, head_seq)) = self.subscriber.pending() else { return Coalescing::Enough };
        let limit_chunks = u64::from(self.subscriber.terms().limit.chunks);
        if lag.bytes >= coalesce.bytes_max || lag.chunks >= limit_chunks {
            self.due_at = Some(now);
        }
        let due_at = *self.due_at.get_or_insert(now + coalesce.delay_max);
        match due_at <= now || lag.chunks == 0 {
            true => Coalescing::Enough, // Once delivery has begun, the rest is delivered too.
            false => Coalescing::Waits { head_seq },
        }
    }
}

impl Remotes {
    /// Adds the reader of a connection. It is polled from now on. Returns its slot for the stream.
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
        // Reserved here, because the delivery of a chunk allocates nothing.
        let count = self.places.len();
        self.free.reserve(count - self.free.len());
        self.awake.reserve(count - self.awake.len());
        self.awake.push_back(at);
        Source::There(at)
    }

    /// Removes the reader in a slot. Dropping it tells its shard.
    pub fn remove(&mut self, at: u32) -> Subscriber {
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

    /// Returns the number of readers that are awake.
    pub fn awake_count(&self) -> usize {
        self.awake.len()
    }

    /// Takes the next awake reader out of the queue.
    pub fn next_awake(&mut self) -> Option<u32> {
        self.awake.pop_front()
    }

    /// True if a reader is awake.
    #[inline]
    pub fn has_awake(&self) -> bool {
        !self.awake.is_empty()
    }

    /// Wakes the held readers in these slots, because their connections take bytes again.
    pub fn release(&mut self, slots: impl Iterator<Item = u32>) {
        for at in slots {
            // The reader that is being polled is not in its slot.
            let Some(remote) = &mut self.places[at as usize] else { continue };
            if remote.state == State::Held {
                remote.state = State::Awake;
                self.awake.push_back(at);
            }
        }
    }

    /// Checks which dozing readers were woken, after this shard was woken.
    pub fn look_at_dozing(&mut self) {
        for (at, remote) in self.places.iter_mut().enumerate() {
            if let Some(remote) = remote
                && remote.state == State::Dozing
                && remote.subscriber.was_woken()
            {
                remote.state = State::Awake;
                self.awake.push_back(at as u32);
            }
        }
    }

    /// Returns the earliest time at which coalesced chunks may be due.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.due_at
    }

    fn expect_by(&mut self, due_at: Option<Instant>) {
        let both = self.due_at.into_iter().chain(due_at);
        self.due_at = both.min();
    }

    /// Wakes the readers whose chunks are due.
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
    pub fn audit(&self, hub: &Hub) {
        let mut named_count = 0;
        for connection in hub.connections() {
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

impl Remotes {
    /// Delivers to a connection from the reader in this slot, at most one delivery.
    pub fn poll<R: Reactor>(
        &mut self,
        at: u32,
        hub: &mut Hub,
        reactor: &mut R,
        counters: &mut Counters,
        now: Instant,
    ) -> Given {
        // The reader leaves its slot meanwhile, because its deliveries borrow it.
        let mut remote = self.places[at as usize].take().expect("R2");
        let id = remote.connection;
        let is_alone = self.count() == 1;
        let (mut count, mut bytes, mut ended) = (0, 0, None);
        remote.state = loop {
            if !hub.connection(id).expect("R1").takes {
                break State::Held;
            }
            let (chunks_max, bytes_max) = remote.delivery_max;
            if count > 0 && (count >= chunks_max || bytes >= bytes_max) {
                break State::Awake;
            }
            if let Coalescing::Waits { head_seq } = remote.coalescing(now) {
                remote.subscriber.settle();
                self.expect_by(remote.due_at);
                let reactor_sleep = remote.subscriber.rest_behind(head_seq);
                break if reactor_sleep { State::Dozing } else { State::Awake };
            }
            let Some((delivery, next_seq)) = remote.subscriber.poll_at(now) else {
                remote.due_at = None;
                break if remote.subscriber.rest() { State::Dozing } else { State::Awake };
            };
            count += 1;
            hub.next_chunk();
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
                    is_recent: true,
                };
                hub.give(id, Source::There(at), chunk, giving);
                continue;
            }
            count_told(counters, &delivery);
            hub.tell(id, Source::There(at), &remote.names, next_seq - 1, &delivery);
            if let Delivery::End(Ended { end, .. }) = delivery {
                ended = Some(end);
                break State::Dozing;
            }
        };
        if ended.is_none() {
            remote.subscriber.settle(); // The connection has copied the bytes.
        }
        let is_awake = remote.state == State::Awake;
        self.release(hub.take_released()); // A delivery may have sent.
        self.places[at as usize] = Some(remote);
        let ended = ended.map(|end| (self.remove(at), end));
        if is_awake {
            self.awake.push_back(at);
        }
        Given { any: count > 0, ended }
    }
}

/// The result of a poll.
pub(in crate::server) struct Given {
    /// True if something was delivered.
    pub any: bool,
    /// The reader that has had its end, and that end.
    pub ended: Option<(Subscriber, End)>,
}

/// Counts what the engine counts for subscribers of its own thread.
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
            // The shard that detaches a subscriber counts that itself.
            let is_own = matches!(ended.end.state, EndState::Ended(_));
            counters.ends_delivered += u64::from(is_own);
        }
    }
}
