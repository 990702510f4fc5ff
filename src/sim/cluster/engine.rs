//! A model of the distributed engine: logs with conditional stores, and a bucket of leases.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::base::{Instant, Random};
use crate::cluster::member::Held;
use crate::cluster::record::{Incarnation, Record};
use crate::journal::block::Position;

/// A stored record.
#[derive(Clone, Debug)]
pub struct Message {
    pub execution: usize,
    pub bytes: Vec<u8>,
    /// True if the log has no earlier record of the execution.
    pub is_first: bool,
}

/// The logs of all executions, and the leases.
#[derive(Default)]
pub struct Engine {
    /// The records by their places.
    pub messages: BTreeMap<u64, Message>,
    next_place: u64,
    /// The nodes that listen to an execution.
    pub listeners: BTreeSet<(usize, usize)>,
    /// The leases by node, each with the time at which it is over.
    pub leases: BTreeMap<usize, (Held, Instant)>,
    next_revision: u64,
    /// The lives of nodes whose leases were over at some time.
    pub lost: BTreeSet<Incarnation>,
    /// There is no leader until this time.
    pub away_until: Instant,
}

/// The answer to a pull.
#[derive(Clone, Debug)]
pub struct Pulled {
    pub records: Vec<(u64, Message)>,
    pub is_all: bool,
}

impl Engine {
    /// The place of the last record of an execution, and the record.
    pub fn last(&self, execution: usize) -> Option<(u64, &Message)> {
        let mut all = self.messages.iter().rev();
        all.find(|(_, message)| message.execution == execution)
            .map(|(place, message)| (*place, message))
    }

    /// Stores a record if the log of the execution ends at `expected`; always, if that is `None`.
    pub fn store(
        &mut self,
        execution: usize,
        expected: Option<u64>,
        bytes: &[u8],
    ) -> Result<u64, u64> {
        let place = self.last(execution).map_or(0, |(place, _)| place);
        if expected.is_some_and(|expected| expected != place) {
            return Err(place);
        }
        self.next_place += 1;
        let message = Message { execution, bytes: bytes.to_vec(), is_first: place == 0 };
        self.messages.insert(self.next_place, message);
        Ok(self.next_place)
    }

    /// Returns records behind a place, from a server that knows nothing behind `visible`.
    pub fn pull(&self, execution: usize, behind: u64, visible: u64, count: usize) -> Pulled {
        let ours = self
            .messages
            .range(behind + 1..)
            .filter(|(place, message)| message.execution == execution && **place <= visible);
        let mut records: Vec<(u64, Message)> =
            ours.take(count + 1).map(|(place, message)| (*place, message.clone())).collect();
        let is_all = records.len() <= count;
        records.truncate(count);
        Pulled { records, is_all }
    }

    /// The newest place.
    pub fn head(&self) -> u64 {
        self.next_place
    }

    /// The position behind the last record of an execution, if that is intact.
    pub fn position(&self, execution: usize) -> Option<Position> {
        let Some((_, message)) = self.last(execution) else { return Some(Position::new(0)) };
        Record::decode(&message.bytes).ok().map(|record| record.after)
    }

    /// Forgets some of the newest records, as after a loss of power.
    pub fn forget(&mut self, random: &mut Random) -> bool {
        let count = random.below(4).min(self.messages.len() as u64);
        (0..count).for_each(|_| drop(self.messages.pop_last()));
        count > 0
    }

    /// Removes the oldest records. The next record of each execution becomes its first one.
    pub fn discard(&mut self, random: &mut Random) -> bool {
        let count = random.below(1 + self.messages.len() as u64 / 2);
        (0..count).for_each(|_| drop(self.messages.pop_first()));
        let mut seen = BTreeSet::new();
        for message in self.messages.values_mut() {
            message.is_first = seen.insert(message.execution);
        }
        count > 0
    }

    /// Flips a bit of some record.
    pub fn damage(&mut self, random: &mut Random) -> bool {
        let at = random.below(self.messages.len().max(1) as u64) as usize;
        let Some(message) = self.messages.values_mut().nth(at) else { return false };
        let bit = random.below(8 * message.bytes.len() as u64) as usize;
        message.bytes[bit / 8] ^= 1 << (bit % 8);
        true
    }

    /// Writes a lease: a new one, or one of this revision.
    pub fn lease(
        &mut self,
        node: usize,
        revision: Option<u64>,
        by: Incarnation,
        until: Instant,
    ) -> Result<u64, ()> {
        let held = self.leases.get(&node).map(|(held, _)| held.revision);
        if held != revision {
            return Err(());
        }
        self.next_revision += 1;
        let held = Held { revision: self.next_revision, by };
        self.leases.insert(node, (held, until));
        Ok(self.next_revision)
    }

    /// Ends leases. Returns the nodes that have lost theirs.
    pub fn expire(&mut self, now: Instant) -> Vec<usize> {
        let is_over = |(_, (_, until)): &(&usize, &(Held, Instant))| *until <= now;
        let over: Vec<usize> = self.leases.iter().filter(is_over).map(|(node, _)| *node).collect();
        for node in &over {
            let (held, _) = self.leases.remove(node).expect("it was just there");
            self.lost.insert(held.by);
        }
        over
    }

    /// The time at which the next lease is over.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.leases.values().map(|(_, until)| *until).min()
    }

    /// True while no leader answers.
    pub fn is_away(&self, now: Instant) -> bool {
        now < self.away_until
    }

    /// Takes the leader away for a while.
    pub fn go_away(&mut self, now: Instant, time: Duration) {
        self.away_until = self.away_until.max(now + time);
    }
}
