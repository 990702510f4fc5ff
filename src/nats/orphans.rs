//! Executions of lost nodes: finds them in the directory, and ends them in their logs.
//!
//! An execution is an orphan if it counts as running, and the life of the node that runs it has no
//! lease. The lease is read from the leader for that, after the entry was: a node has its lease
//! before it writes an entry. Several nodes can end an orphan. Its log takes one end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::driver::{Arrival, Driver, News};
use super::link::{Link, LinkError};
use crate::base::{Instant, Random};
use crate::cluster::directory::{Entry, EntryState, Tag};
use crate::cluster::record::Incarnation;
use crate::limits;
use crate::shard::journal::EndedDetails;
use crate::stream::Outcome;

/// The name that stands for all nodes.
const ALL: &str = "*";
/// Pages of the directory that one look reads at most.
const PAGES_MAX: u32 = 10_000;

/// An execution, the node whose it is, and its entry.
pub(super) type Orphan = (Tag, Box<str>, Entry);

/// The executions of lost nodes.
pub(super) struct Orphans {
    /// The life of this node. It never judges itself.
    incarnation: Incarnation,
    random: Random,
    /// The nodes whose entries are read next, with the time of that.
    due: BTreeMap<Box<str>, Instant>,
    /// The nodes that were looked at lately, with the time until which that is enough.
    looked: BTreeMap<Box<str>, Instant>,
    /// The orphans that are being ended.
    closing: BTreeMap<Tag, (Box<str>, Entry)>,
}

impl Orphans {
    /// Begins with a look at the earlier lives of this node, and then at all nodes.
    pub fn new(node: &str, incarnation: Incarnation) -> Orphans {
        Orphans {
            incarnation,
            random: Random::new(incarnation.0),
            due: BTreeMap::from([ALL, node].map(|node| (node.into(), Instant::ZERO))),
            looked: BTreeMap::new(),
            closing: BTreeMap::new(),
        }
    }

    /// Notes that a node was lost. All others notice at the same time, so each waits a bit.
    pub fn note_lost(&mut self, node: &str, now: Instant) {
        let jitter_ms = self.random.below(limits::CLUSTER_CLOSE_JITTER.as_millis() as u64);
        self.due.insert(node.into(), now + Duration::from_millis(jitter_ms));
    }

    /// Notes that an execution of a node counts as running. Its node may be lost.
    pub fn suspect(&mut self, node: &str, now: Instant) {
        if self.looked.get(node).is_none_or(|until| *until <= now) {
            self.looked.insert(node.into(), now + limits::CLUSTER_SILENCE);
            self.due.entry(node.into()).or_insert(now);
        }
        self.looked.retain(|_, until| *until > now);
    }

    /// Looks at the nodes that are due. Others than `own` wait until this node may judge them. Its
    /// own earlier lives are over, because it has the lease.
    pub fn look(&mut self, driver: &Driver, (own, may_judge): (&str, bool), now: Instant) {
        let can_be = |node: &str| may_judge || node == own;
        for (node, _) in self.due.extract_if(.., |node, due| *due <= now && can_be(node)) {
            let (link, sender) = (driver.link().clone(), driver.sender());
            tokio::task::spawn_local(async move {
                let found = orphans_of(&link, &node).await.ok();
                let _ = sender.send(Arrival::News(News::Orphans(node, found))).await;
            });
        }
    }

    /// Takes the orphans of a node; `None` if nobody has answered.
    pub fn on_found(
        &mut self,
        driver: &mut Driver,
        node: &str,
        found: Option<Vec<Orphan>>,
        now: Instant,
    ) {
        let Some(found) = found else {
            self.due.entry(node.into()).or_insert(now + limits::CLUSTER_SILENCE);
            return;
        };
        let is_other = |orphan: &Orphan| orphan.2.owner != self.incarnation;
        for (tag, node, entry) in found.into_iter().filter(is_other) {
            let details = EndedDetails {
                outcome: Outcome::Failed,
                error: Some(format!("its node was lost: {node}").into()),
                exit: None,
                has_panicked: false,
            };
            driver.close(&tag, &details.encode(), now);
            self.closing.insert(tag, (node, entry));
        }
    }

    /// Notes that the log of an orphan has its end. Its entry says so from now on.
    pub fn closed(&mut self, driver: &Driver, tag: &Tag, time: Duration) {
        let Some((node, entry)) = self.closing.remove(tag) else { return };
        let (link, tag) = (driver.link().clone(), tag.clone());
        tokio::task::spawn_local(async move {
            let entry = Entry { state: EntryState::Ended, ..entry };
            // If that is lost, the next one who looks finds the end in the log.
            let _ = link.put_entry(&tag, &node, &entry, Some(time)).await;
        });
    }
}

/// Returns the orphans of a node, or of all nodes.
async fn orphans_of(link: &Link, node: &str) -> Result<Vec<Orphan>, LinkError> {
    let (mut running, mut behind) = (Vec::new(), 0);
    for _ in 0..PAGES_MAX {
        let (entries, last, is_all) = link.entries(node, behind).await?;
        let is_running = |(_, _, entry): &Orphan| entry.state == EntryState::Running;
        running.extend(entries.into_iter().filter(is_running));
        behind = last;
        if is_all {
            break;
        }
    }
    let mut leases: BTreeMap<Box<str>, Option<Incarnation>> = BTreeMap::new();
    for (_, node, _) in &running {
        if !leases.contains_key(node) {
            let held = link.read_lease(node).await?;
            leases.insert(node.clone(), held.map(|held| held.by));
        }
    }
    running.retain(|(_, node, entry)| leases[node] != Some(entry.owner));
    Ok(running)
}
