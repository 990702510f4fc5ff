//! The local subscribers of one execution.
//!
//! Local subscribers are *abreast* while all of them have the same cursor and take every chunk. One
//! cursor then stands for all, and a publish moves only that one, for one subscriber or for a
//! thousand. Every other operation goes through [`Locals::apart`], which first gives each its own
//! cursor. The next walk that finds all cursors equal brings them abreast again.
//!
//! Invariants ([`Locals::audit`]):
//! - L1: while abreast, none is gone, lost or filters, and each may be given what is pending at
//!   once.
//! - L2: while abreast, each was given all progress reports.

use crate::base::SubscriberId;
use crate::engine::log::ChunkLog;
use crate::engine::policy::{Cursor, Log};
use crate::engine::subscriber::Local;
use crate::stream::Totals;

/// The local subscribers of one execution: see the module's text.
#[derive(Debug, Default)]
pub(super) struct Locals {
    list: Vec<Local>,
    abreast: Option<Abreast>,
    /// The subscribers that are abreast, or were last, in the order of the list, twice over. Each
    /// rotation of the list is therefore a slice.
    names: Vec<SubscriberId>,
}

/// The common cursor of all subscribers.
#[derive(Clone, Copy, Debug)]
struct Abreast {
    next_seq: u64,
    seen: Totals,
    /// The smallest [`Local::plain_chunks`].
    plain_chunks: u64,
}

impl Locals {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of subscribers, including removed ones that were not yet cleared away.
    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn push(&mut self, local: Local) {
        assert!(!local.gone);
        assert!(local.fresh); // It was given nothing yet.
        let list = self.apart();
        if list.len() == list.capacity() {
            // Not doubled: half of the memory of ten thousand subscribers could be unused.
            list.reserve_exact((list.len() / 8).max(2));
        }
        list.push(local);
        // Allocated here, because a chunk must not allocate.
        self.names.reserve_exact((2 * self.list.capacity()).saturating_sub(self.names.len()));
        assert!(self.names.capacity() >= 2 * self.list.len());
    }

    /// All subscribers, each with its own cursor.
    #[inline]
    pub fn apart(&mut self) -> &mut Vec<Local> {
        if let Some(Abreast { next_seq, seen, .. }) = self.abreast.take() {
            for local in &mut self.list {
                local.cursor = Cursor::new(next_seq, seen);
            }
        }
        &mut self.list
    }

    /// All subscribers, for callers that do not read the cursors: these may be out of date.
    #[inline]
    pub fn without_cursors(&self) -> &[Local] {
        &self.list
    }

    /// All subscribers that are not gone, each with its next chunk.
    pub fn positions(&self) -> impl Iterator<Item = (&Local, u64)> {
        let abreast_seq = self.abreast.map(|abreast| abreast.next_seq);
        let there = self.list.iter().filter(|local| !local.gone);
        there.map(move |local| (local, abreast_seq.unwrap_or(local.cursor.next_seq)))
    }

    /// Moves all subscribers over what is pending, as far as one delivery takes it. They have to be
    /// abreast, and the terms have to allow it. Returns the first chunk, and one past the last.
    #[inline]
    pub fn advance(&mut self, log: &ChunkLog) -> Option<(u64, u64)> {
        let abreast = self.abreast.as_mut()?;
        let from_seq = abreast.next_seq;
        // With nothing pending this wraps around to a very large number.
        let pending = (log.head_seq() + 1).wrapping_sub(from_seq);
        if pending.wrapping_sub(1) >= abreast.plain_chunks || from_seq < log.tail_seq() {
            return None;
        }
        let until_seq = log.delivery_end(from_seq);
        abreast.next_seq = until_seq;
        abreast.seen = log.cursor_before(until_seq).seen;
        Some((from_seq, until_seq))
    }

    /// Brings the subscribers abreast, if all have the same cursor and take every chunk.
    pub fn align(&mut self) {
        let Some(&Local { cursor, .. }) = self.list.first() else { return };
        if cursor.is_tripped() {
            return;
        }
        let mut plain_chunks = u64::MAX;
        for local in &self.list {
            if local.plain_chunks == 0 || local.cursor != cursor {
                return;
            }
            plain_chunks = plain_chunks.min(local.plain_chunks);
        }
        self.names.clear();
        for _ in 0..2 {
            self.names.extend(self.list.iter().map(|local| local.id));
        }
        assert!(self.names.len() == 2 * self.list.len());
        assert!(plain_chunks > 0); // L1
        self.abreast = Some(Abreast { next_seq: cursor.next_seq, seen: cursor.seen, plain_chunks });
    }

    /// The subscribers that were abreast last, beginning with the one at index `first`.
    #[inline]
    pub fn names(&self, first: u32) -> &[SubscriberId] {
        let (first, count) = (first as usize, self.names.len() / 2);
        assert!(first < count); // Each rotation begins with one of them.
        &self.names[first..first + count]
    }

    /// Checks L1 and L2.
    pub fn audit(&self, progress_to_report: u64) {
        if let Some(abreast) = &self.abreast {
            assert!(abreast.plain_chunks > 0);
            for local in &self.list {
                assert!(local.plain_chunks >= abreast.plain_chunks);
                assert!(!local.gone && !local.fresh && local.terms.kinds.is_all());
                assert!(local.progress_reported >= progress_to_report);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::base::Instant;
    use crate::engine::{
        Action, ChunkFacts, Engine, EngineLimits, Event, OpenSpec, Reply, RingFacts, SubscribeSpec,
        SubscriberPlace,
    };
    use crate::stream::{Kind, Policy};

    const RING: RingFacts =
        RingFacts { slot_count: 64, chunks_max: 56, chunk_bytes_max: 512, data_bytes: 2_048 };

    fn next_reply(engine: &mut Engine) -> Reply {
        let Some(Action::Reply(reply)) = engine.next_action() else { panic!("no answer") };
        reply
    }

    /// A subscriber that is abreast is given the same as one that never is, whatever happens in
    /// between.
    #[test]
    fn abreast_or_apart_everybody_is_given_everything_in_turn() {
        let mut engine = Engine::new(EngineLimits::default(), Instant::ZERO);
        engine.handle(Event::Open(OpenSpec::new(RING)), Instant::ZERO);
        let Reply::Opened(Ok(id)) = next_reply(&mut engine) else { panic!() };
        let Some(Action::Lease(execution, _)) = engine.next_action() else { panic!() };
        engine.handle(Event::Leased(execution, RING), Instant::ZERO);
        while engine.next_action().is_some() {}
        let spec = SubscribeSpec {
            policy: Policy::Block,
            place: SubscriberPlace::Local,
            demand: u32::MAX,
            ..Default::default()
        };
        let attach = |engine: &mut Engine| {
            engine.handle(Event::Subscribe(id, spec), Instant::ZERO);
            let Reply::Subscribed(Ok(subscribed)) = next_reply(engine) else { panic!() };
            subscribed.subscriber
        };
        let mut names: Vec<_> = (0..3).map(|_| attach(&mut engine)).collect();
        let mut firsts = std::collections::BTreeSet::new();
        let mut abreast_count = 0;
        for seq in 1..=200u64 {
            if seq % 10 == 0 {
                // Any operation on one of them puts all of them apart.
                engine.handle(Event::Demand(names[0], u32::MAX), Instant::ZERO);
            }
            if seq == 100 {
                names.push(attach(&mut engine));
            }
            let facts = ChunkFacts {
                length: 8,
                kind: Kind::Output,
                key: 0,
                tail_seq: 1.max(seq.saturating_sub(50)),
            };
            engine.handle(Event::Published(execution, &[facts]), Instant::ZERO);
            let mut given = Vec::new();
            while let Some(action) = engine.next_action() {
                if let Action::Deliver { from_seq, until_seq, .. } = action {
                    abreast_count += u32::from(engine.deliveries.is_abreast());
                    for seq in from_seq..until_seq {
                        given.extend(engine.recipients().iter().map(|&name| (name, seq)));
                    }
                }
                engine.audit();
            }
            firsts.insert(given[0].0.0);
            given.sort_unstable_by_key(|&(name, seq)| (name.0, seq));
            let expected: Vec<_> = names.iter().map(|&name| (name, seq)).collect();
            if seq != 100 {
                assert_eq!(given, expected);
            }
        }
        assert!(abreast_count > 150, "{abreast_count}");
        assert_eq!(firsts.len(), names.len(), "everybody is first at times");
    }
}
