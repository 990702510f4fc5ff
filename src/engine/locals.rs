//! The local subscribers of one execution.
//!
//! As long as all of them stand at the same chunk and take whatever comes, they are *abreast*: one
//! cursor stands for all, and a publish moves that one, whether there is one subscriber or a
//! thousand. Whatever else happens to any of them goes through [`Locals::apart`], which first puts
//! each where it is; the next walk that finds them equal again brings them abreast again.
//!
//! Invariants ([`Locals::audit`]):
//! - L1: abreast, nobody is gone, lost or filters, and each may be given what is pending at once.
//! - L2: abreast, each has been told of all progress there was to tell.

use crate::base::SubscriberId;
use crate::engine::chunk::Totals;
use crate::engine::log::ChunkLog;
use crate::engine::policy::{Cursor, Log};
use crate::engine::subscriber::Local;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Locals {
    list: Vec<Local>,
    abreast: Option<Abreast>,
    /// Who is or was abreast last, in the order of the list, twice over: so each rotation of it is
    /// a slice.
    names: Vec<SubscriberId>,
}

/// Where all of them stand.
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

    /// Those that are gone and not yet cleared away among them.
    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn push(&mut self, local: Local) {
        self.apart().push(local);
        // Bought here, because a chunk buys nothing.
        self.names.reserve((2 * self.list.len()).saturating_sub(self.names.len()));
    }

    /// All of them, each with its own cursor.
    #[inline]
    pub fn apart(&mut self) -> &mut Vec<Local> {
        if let Some(Abreast { next_seq, seen, .. }) = self.abreast.take() {
            for local in &mut self.list {
                local.cursor = Cursor::new(next_seq, seen);
            }
        }
        &mut self.list
    }

    /// All of them, for who does not look at their cursors: those may be out of date.
    #[inline]
    pub fn without_cursors(&self) -> &[Local] {
        &self.list
    }

    /// All that are not gone, each with the next chunk for it.
    pub fn positions(&self) -> impl Iterator<Item = (&Local, u64)> {
        let abreast_seq = self.abreast.map(|abreast| abreast.next_seq);
        let there = self.list.iter().filter(|local| !local.gone);
        there.map(move |local| (local, abreast_seq.unwrap_or(local.cursor.next_seq)))
    }

    /// Moves all of them over what is pending, if they are abreast and may be given that at once;
    /// or over as much of it as one delivery takes. What they are given: a first chunk, and one
    /// past the last.
    #[inline]
    pub fn advance(&mut self, log: &ChunkLog) -> Option<(u64, u64)> {
        let abreast = self.abreast.as_mut()?;
        let from_seq = abreast.next_seq;
        // Nothing pending wraps around to a very large number.
        let pending = (log.head_seq() + 1).wrapping_sub(from_seq);
        if pending.wrapping_sub(1) >= abreast.plain_chunks || from_seq < log.tail_seq() {
            return None;
        }
        let until_seq = log.delivery_end(from_seq);
        abreast.next_seq = until_seq;
        abreast.seen = log.cursor_before(until_seq).seen;
        Some((from_seq, until_seq))
    }

    /// Brings them abreast, if each has been given everything before the same chunk and takes
    /// whatever comes.
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
        self.abreast = Some(Abreast { next_seq: cursor.next_seq, seen: cursor.seen, plain_chunks });
    }

    /// Who was abreast last, beginning with the one at `first`.
    #[inline]
    pub fn names(&self, first: u32) -> &[SubscriberId] {
        let (first, count) = (first as usize, self.names.len() / 2);
        &self.names[first..first + count]
    }

    /// L1 and L2.
    pub fn audit(&self, progress_to_tell: u64) {
        if let Some(abreast) = &self.abreast {
            assert!(abreast.plain_chunks > 0);
            for local in &self.list {
                assert!(local.plain_chunks >= abreast.plain_chunks);
                assert!(!local.gone && !local.fresh && local.terms.kinds.is_all());
                assert!(local.progress_told >= progress_to_tell);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::base::Instant;
    use crate::engine::{
        Action, ChunkFacts, Engine, EngineLimits, Event, Kind, OpenSpec, Place, Policy, Reply,
        RingFacts, SubscribeSpec,
    };

    const RING: RingFacts =
        RingFacts { slot_count: 64, chunks_max: 56, chunk_bytes_max: 512, data_bytes: 2_048 };

    fn next_reply(engine: &mut Engine) -> Reply {
        let Some(Action::Reply(reply)) = engine.next_action() else { panic!("no answer") };
        reply
    }

    /// Who stands abreast is given the same as one who never does, whatever happens between.
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
            place: Place::Local,
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
                // Whatever is done to one of them puts all of them apart.
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
                    abreast_count += u32::from(engine.abreast_from.is_some());
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
