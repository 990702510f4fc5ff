//! The executions of this node that are mirrored: their sources, and their entries in the
//! directory.
//!
//! The driver has the mirrors themselves. A shard that waits for the log of an execution is told
//! of each step ([`LogNews`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::driver::{Arrival, Driver, News};
use super::source::{EndGiven, Source};
use crate::base::{ExecutionId, Instant};
use crate::cluster::directory::{Entry, EntryState, Tag};
use crate::cluster::mirror::{Mirror, Standing};
use crate::cluster::record::Incarnation;
use crate::limits;
use crate::server::{FromCluster, Mirrored};
use crate::shard::journal::LogNews;

/// The entry of an execution on its way to the directory.
struct Writing {
    entry: Entry,
    /// The time of the next attempt; `None` while one is under way, or after it has succeeded.
    due: Option<Instant>,
    is_ended: bool,
}

/// The mirrored executions of a node. See the module's text.
#[derive(Default)]
pub(super) struct Mirrors {
    /// Executions that wait for the lease of the node, with the ends of those that are over.
    new: Vec<(Tag, Mirrored, Option<EndGiven>)>,
    sources: BTreeMap<Tag, Source>,
    writings: BTreeMap<Tag, Writing>,
    /// Mirrors whose log has had the end not long ago, in the order of that.
    finished: VecDeque<Finished>,
    /// Bytes of their last records.
    finished_bytes: usize,
    /// Messages for the shards.
    told: Vec<(u8, FromCluster)>,
}

/// A mirror whose log has the end, unless a server has lost its power meanwhile.
struct Finished {
    tag: Tag,
    mirror: Mirror,
    entry: Entry,
    /// The time until which a server may not have synced it.
    until: Instant,
}

impl Mirrors {
    /// Number of executions whose log does not have the end.
    pub fn len(&self) -> usize {
        self.sources.len()
    }

    /// True if the logs have all ends, and the directory knows it.
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty() && self.writings.is_empty()
    }

    /// The tags of the executions whose log does not have the end.
    pub fn tags(&self) -> impl Iterator<Item = &Tag> {
        self.sources.keys()
    }

    /// The execution with this tag.
    pub fn execution_of(&self, tag: &Tag) -> Option<ExecutionId> {
        self.sources.get(tag).map(|source| source.execution)
    }

    /// Takes the messages for the shards.
    pub fn take_told(&mut self) -> Vec<(u8, FromCluster)> {
        std::mem::take(&mut self.told)
    }

    /// Takes an execution. It waits for [`Mirrors::begin_new`].
    pub fn push(&mut self, tag: Tag, mirrored: Mirrored) {
        self.new.push((tag, mirrored, None));
    }

    /// Takes the end of an execution from its shard.
    pub fn push_end(&mut self, tag: &Tag, end: EndGiven, driver: &mut Driver) {
        if let Some((.., given)) = self.new.iter_mut().find(|(other, ..)| other == tag) {
            *given = Some(end);
        } else if let Some(source) = self.sources.get_mut(tag) {
            source.end(driver.mirror(tag), end);
        }
    }

    /// Lets the mirror of an execution read through a chunk.
    pub fn show(&mut self, tag: &Tag, through_seq: u64, now: Instant) {
        if let Some((_, mirrored, _)) = self.new.iter_mut().find(|(other, ..)| other == tag) {
            mirrored.through_seq = Some(through_seq);
        } else if let Some(source) = self.sources.get_mut(tag) {
            source.show(through_seq, now);
        }
    }

    /// Begins to mirror the executions that wait.
    pub fn begin_new(&mut self, owner: Incarnation, driver: &mut Driver, now: Instant) {
        for (tag, mirrored, end) in std::mem::take(&mut self.new) {
            let Mirrored { execution, mut entry, subscriber, is_replicated, through_seq } =
                mirrored;
            entry.owner = owner;
            let mirror = driver.mirror(&tag);
            let terms = (is_replicated, through_seq);
            let mut source = Source::new(execution, subscriber, terms, now);
            if let Some(end) = end {
                source.look(mirror, Duration::ZERO, now);
                source.end(mirror, end);
            }
            self.sources.insert(tag.clone(), source);
            self.writings.insert(tag, Writing { entry, due: Some(now), is_ended: false });
            self.share_buffer(driver);
        }
    }

    /// Gives each mirror its part of the memory for what waits for the log. One whose source can
    /// wait always has enough for what it takes until then.
    fn share_buffer(&self, driver: &mut Driver) {
        let count = self.sources.len().max(1) as u64;
        let part = limits::CLUSTER_BUFFER_BYTES_MAX / count;
        let part = part.min(limits::CLUSTER_PENDING_BYTES_MAX.into()) as u32;
        for (tag, source) in &self.sources {
            let least = if source.can_wait() { 4 * limits::CLUSTER_RECORD_BYTES_MAX } else { 0 };
            driver.mirror(tag).set_pending_bytes_max(part.max(least));
        }
    }

    /// Reads the rings of all executions that have something. Returns the time of the next look.
    pub fn look(&mut self, driver: &mut Driver, linger: Duration, now: Instant) -> Option<Instant> {
        let Mirrors { sources, writings, told, .. } = self;
        for (tag, source) in &mut *sources {
            let mirror = driver.mirror(tag);
            source.look(mirror, linger, now);
            if let Some(expected) = source.take_expected()
                && let Some(writing) = writings.get_mut(tag)
            {
                // Those who come later do not read the note.
                writing.entry.chunks_expected = Some(expected);
                writing.due = Some(now);
            }
            if let Some(seq) = source.news_of(mirror) {
                told.push(source.message(LogNews::Has(seq)));
            }
        }
        sources.values().filter_map(Source::look_at).min()
    }

    /// Lets go of an execution whose log has its end, or will never have the end of its owner.
    pub fn finish(&mut self, tag: Tag, mirror: Mirror, driver: &mut Driver, now: Instant) {
        if let Some(mut source) = self.sources.remove(&tag)
            && source.is_replicated()
        {
            if let Some(seq) = source.news_of(&mirror) {
                self.told.push(source.message(LogNews::Has(seq)));
            }
            let news = match mirror.standing() {
                Standing::Fenced => LogNews::HasAnotherEnd,
                _ => LogNews::HasEnd,
            };
            self.told.push(source.message(news));
        }
        if let Some(writing) = self.writings.get_mut(&tag) {
            writing.entry.state = EntryState::Ended;
            (writing.is_ended, writing.due) = (true, Some(now));
            if mirror.standing() == Standing::Ended {
                let entry = writing.entry.clone();
                let until = now + limits::CLUSTER_UNSYNCED;
                self.finished_bytes += mirror.last_bytes();
                self.finished.push_back(Finished { tag, mirror, entry, until });
            }
        }
        while self.finished.front().is_some_and(|first| first.until <= now)
            || self.finished.len() > limits::CLUSTER_FINISHED_MAX
            || self.finished_bytes > limits::CLUSTER_FINISHED_BYTES_MAX
        {
            let Some(first) = self.finished.pop_front() else { break };
            self.finished_bytes -= first.mirror.last_bytes();
        }
        self.share_buffer(driver);
    }

    /// Looks again at the logs that have ended not long ago, because the servers may be others, or
    /// have lost their power.
    pub fn look_again(&mut self, driver: &mut Driver, now: Instant) {
        self.finished_bytes = 0;
        for Finished { tag, mut mirror, entry, until } in std::mem::take(&mut self.finished) {
            if until > now {
                mirror.look_again(now);
                driver.resume(tag.clone(), mirror);
                self.writings.insert(tag, Writing { entry, due: Some(now), is_ended: true });
            }
        }
    }

    /// Writes the entries that are due. Those of ended executions stay for `time`.
    pub fn write_entries(&mut self, driver: &Driver, node: &str, time: Duration, now: Instant) {
        for (tag, writing) in &mut self.writings {
            if writing.due.is_none_or(|due| due > now) {
                continue;
            }
            writing.due = None;
            let time = writing.is_ended.then_some(time);
            let (link, sender) = (driver.link().clone(), driver.sender());
            let (tag, entry, node) = (tag.clone(), writing.entry.clone(), Box::<str>::from(node));
            tokio::task::spawn_local(async move {
                let written = link.put_entry(&tag, &node, &entry, time).await;
                let state = written.ok().map(|()| entry.state);
                let _ = sender.send(Arrival::News(News::Entry(tag, state))).await;
            });
        }
    }

    /// An entry was written with this state, or was not.
    pub fn note_entry(&mut self, tag: &Tag, state: Option<EntryState>, now: Instant) {
        let Some(writing) = self.writings.get_mut(tag) else { return };
        match state {
            None => writing.due = Some(now + limits::CLUSTER_SILENCE),
            Some(EntryState::Ended) => _ = self.writings.remove(tag),
            Some(EntryState::Running) => {}
        }
    }
}
