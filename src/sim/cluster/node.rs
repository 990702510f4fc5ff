//! A node of the simulated cluster: its machines, and its link to the engine.

use std::collections::BTreeMap;

use crate::base::{Instant, Random};
use crate::cluster::closer::Closer;
use crate::cluster::follow::Follow;
use crate::cluster::member::{Lease, Watch};
use crate::cluster::mirror::Mirror;
use crate::cluster::record::Incarnation;
use crate::limits::CLUSTER_LEASE;
use crate::sim::cluster::oracle::Transcript;

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Running,
    /// Nothing of it runs until this time.
    Frozen(Instant),
    /// It starts again at this time.
    Dead(Instant),
}

/// A reader, and what it was given.
pub struct Reader {
    pub follow: Follow,
    pub transcript: Transcript,
}

/// A node.
pub struct Node {
    pub life: Life,
    pub incarnation: Incarnation,
    /// The number of its connection. Answers of an older one are lost.
    pub link: u64,
    /// It has no connection until this time.
    pub cut_until: Option<Instant>,
    pub lease: Lease,
    /// The time at which the newest news about leases come.
    pub news_at: Instant,
    pub watch: Watch,
    /// The mirrors of its executions.
    pub mirrors: BTreeMap<usize, Mirror>,
    /// Its readers, by execution.
    pub readers: BTreeMap<usize, Reader>,
    pub closers: BTreeMap<usize, Closer>,
}

impl Node {
    /// A node that starts.
    pub fn start(now: Instant, random: &mut Random) -> Node {
        let incarnation = Incarnation(random.next_u64());
        Node {
            life: Life::Running,
            incarnation,
            link: random.next_u64(),
            cut_until: None,
            news_at: now,
            lease: Lease::new(incarnation, CLUSTER_LEASE, now),
            watch: Watch::default(),
            mirrors: BTreeMap::new(),
            readers: BTreeMap::new(),
            closers: BTreeMap::new(),
        }
    }

    /// True if it runs, and has a connection.
    pub fn is_linked(&self) -> bool {
        self.life == Life::Running && self.cut_until.is_none()
    }

    /// The time at which it has something to do without another cause.
    pub fn deadline(&self) -> Option<Instant> {
        match self.life {
            Life::Frozen(until) | Life::Dead(until) => return Some(until),
            Life::Running => {}
        }
        let mirrors = self.mirrors.values().filter_map(Mirror::deadline);
        let readers = self.readers.values().filter_map(|reader| reader.follow.deadline());
        let closers = self.closers.values().filter_map(Closer::deadline);
        let others = self.lease.deadline().into_iter().chain(self.cut_until);
        mirrors.chain(readers).chain(closers).chain(others).min()
    }
}
