//! The subscribers of one execution, local ones and those on other threads.
//!
//! The audience says what its members need together: the slowest cursor, the chunks that the ring
//! has to keep, the size of a burst. It changes nothing outside of itself.
//! `resume.rs` finds the subscriber whose place a new one takes.

use crate::base::planted::{Planted, planted};
use crate::base::{Instant, SubscriberId};
use crate::engine::event::RingFacts;
use crate::engine::gate::Gate;
use crate::engine::locals::Locals;
use crate::engine::log::ChunkLog;
use crate::engine::policy::Log;
use crate::engine::remote::Remote;
use crate::engine::reserve::{Replay, Reserve};
use crate::engine::subscriber::Local;
use crate::engine::wheel::TimerId;
use crate::limits;
use crate::stream::Policy;

/// The subscribers of one execution.
#[derive(Debug, Default)]
pub(super) struct Audience {
    pub locals: Locals,
    pub remotes: Vec<Remote>,
    /// True if a local subscriber was removed while the list was being walked.
    has_holes: bool,
    /// The index at which the last walk over the local subscribers began.
    turn: u32,
}

/// A gating reader with the slowest cursor, and the time since which it has not moved.
pub(super) type Slowest = (SubscriberId, Instant);

impl Audience {
    /// Number of subscribers.
    pub fn count(&self) -> u32 {
        let locals = self.locals.positions().count();
        let remotes = self.remotes.iter().filter(|remote| !remote.gone).count();
        assert!(locals <= self.locals.len());
        assert!(remotes <= limits::READERS_PER_EXECUTION_MAX as usize);
        (locals + remotes) as u32
    }

    /// Returns the index at which the next walk over the local subscribers begins: one further
    /// than the last one, so that none is always last.
    #[inline]
    pub fn next_turn(&mut self) -> u32 {
        let count = self.locals.len() as u32;
        self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
        self.turn
    }

    /// True if the list of local subscribers has holes.
    #[inline]
    pub fn has_holes(&self) -> bool {
        self.has_holes
    }

    /// Marks a local subscriber as gone. Its place stays in the list until the holes are closed.
    /// Returns its timers.
    pub fn leave_hole(&mut self, at: u32, subscriber: SubscriberId) -> [Option<TimerId>; 2] {
        let local = &mut self.locals.apart()[at as usize];
        assert!(local.id == subscriber);
        assert!(!local.gone); // It is removed once.
        local.gone = true;
        local.set_plain();
        assert!(local.plain_chunks == 0); // L1: it is given nothing more.
        self.has_holes = true;
        let coalescing = local.detail.coalescing.as_mut();
        let timer = coalescing.and_then(|coalescing| coalescing.timer.take());
        [timer, local.detail.grace_timer.take()]
    }

    /// Removes the local subscribers that are gone. Returns false if there were none.
    pub fn close_holes(&mut self) -> bool {
        if !self.has_holes {
            return false;
        }
        self.has_holes = false;
        let count = self.locals.len();
        self.locals.apart().retain(|local| !local.gone);
        assert!(self.locals.len() < count); // The mark is set where one has left.
        true
    }

    /// Tells each local subscriber of the ring, which may be smaller than expected if memory is
    /// short.
    pub fn set_ring(&mut self, ring: RingFacts) {
        for local in self.locals.apart() {
            local.terms.limit.chunks = local.terms.limit.chunks.min(ring.chunks_max);
            assert!(local.terms.limit.chunks > 0);
            local.set_window(ring);
        }
    }

    /// Tells each local subscriber that the ring has begun anew, behind the chunks that it held.
    pub fn leave_ring(&mut self) {
        self.locals.apart().iter_mut().for_each(Local::leave_ring);
    }

    /// Tells each local subscriber that the ring has grown. A limit that was the whole ring is the
    /// whole ring again.
    pub fn grow_ring(&mut self, before: RingFacts, ring: RingFacts) {
        for local in self.locals.apart() {
            assert!(local.gone || !local.replays); // Its promise was for the ring as it was.
            let is_whole = matches!(local.terms.policy, Policy::Block | Policy::Conflate)
                && local.terms.limit.chunks == before.chunks_max;
            if is_whole {
                local.terms.limit.chunks = ring.chunks_max;
                local.set_plain();
            }
        }
    }

    /// Computes the gate from the gating subscribers, beginning with `gate`. Moves `reserve` to
    /// their slowest cursor.
    pub fn gate(&self, mut gate: Gate, reserve: &mut Reserve, log: &ChunkLog) -> Gate {
        let mut replay_seq = u64::MAX;
        for (local, next_seq) in self.locals.positions().filter(|(local, _)| local.gates()) {
            let limit = local.terms.limit;
            gate.read_seq = gate.read_seq.min(next_seq);
            match local.acked_seq() {
                _ if !local.replays => gate.gate_seq = gate.gate_seq.min(next_seq),
                None => replay_seq = replay_seq.min(next_seq),
                Some(acked_seq) => {
                    let kept_seq = log.first_unacked(acked_seq, next_seq, local.terms.kinds);
                    gate.gate_seq = gate.gate_seq.min(kept_seq);
                }
            }
            let chunks = u64::from(limit.chunks) + u64::from(planted(Planted::CreditOffByOne));
            gate.credit_seq = gate.credit_seq.min(next_seq.saturating_add(chunks));
            if limit.bytes != u64::MAX {
                let bytes_before = log.bytes_before(next_seq);
                gate.credit_bytes = gate.credit_bytes.min(bytes_before.saturating_add(limit.bytes));
            }
        }
        for remote in self.remotes.iter().filter(|remote| remote.gates()) {
            let limit = remote.terms.limit;
            gate.read_seq = gate.read_seq.min(remote.next_seq);
            match remote.acked_seq {
                _ if !remote.replays => gate.gate_seq = gate.gate_seq.min(remote.next_seq),
                None => replay_seq = replay_seq.min(remote.next_seq),
                Some(acked_seq) => {
                    let (next_seq, kinds) = (remote.next_seq, remote.terms.kinds);
                    let kept_seq = log.first_unacked(acked_seq, next_seq, kinds);
                    gate.gate_seq = gate.gate_seq.min(kept_seq);
                }
            }
            let credit_seq = remote.next_seq.saturating_add(limit.chunks.into());
            gate.credit_seq = gate.credit_seq.min(credit_seq);
            if limit.bytes != u64::MAX {
                let bytes_before = log.bytes_before(remote.next_seq);
                gate.credit_bytes = gate.credit_bytes.min(bytes_before.saturating_add(limit.bytes));
            }
        }
        if replay_seq != u64::MAX {
            gate.gate_seq = gate.gate_seq.min(reserve.before(replay_seq, log));
        }
        gate.assert_sound(); // E2
        gate
    }

    /// True if a subscriber needs the length or the kind of each chunk from the engine. One that
    /// reads elsewhere does if it has a filter, a limit in bytes, or acknowledges.
    pub fn needs_facts(&self) -> bool {
        let counts = |remote: &Remote| {
            let blocks = remote.terms.policy == Policy::Block && !remote.gone;
            let limit_is_in_bytes = blocks && remote.terms.limit.bytes != u64::MAX;
            let may_come_back = remote.replays || remote.acked_seq.is_some();
            !remote.terms.kinds.is_all() || limit_is_in_bytes || may_come_back
        };
        !self.locals.is_empty() || self.remotes.iter().any(counts)
    }

    /// True if some subscriber that may come back has not acknowledged everything.
    pub fn has_unacknowledged(&self, log: &ChunkLog) -> bool {
        let is_unacknowledged = |acked_seq: Option<u64>, next_seq, kinds| {
            let kept_seq = acked_seq.map(|seq| log.first_unacked(seq, next_seq, kinds));
            kept_seq.is_some_and(|kept_seq| kept_seq <= log.head_seq())
        };
        let locals = self.locals.positions().filter(|(l, _)| l.gates() && l.replays);
        let remotes = self.remotes.iter().filter(|r| r.gates() && r.replays);
        let mut locals = locals.map(|(l, seq)| (l.acked_seq(), seq, l.terms.kinds));
        let mut remotes = remotes.map(|r| (r.acked_seq, r.next_seq, r.terms.kinds));
        locals.any(|(acked, seq, kinds)| is_unacknowledged(acked, seq, kinds))
            || remotes.any(|(acked, seq, kinds)| is_unacknowledged(acked, seq, kinds))
    }

    /// The slowest gating cursor; `None` without a gating reader.
    pub fn slowest_gating_seq(&self) -> Option<u64> {
        let locals = self.locals.positions().filter(|(l, _)| l.gates()).map(|(_, seq)| seq);
        let remotes = self.remotes.iter().filter(|r| r.gates()).map(|r| r.next_seq);
        locals.chain(remotes).min()
    }

    /// The gating readers whose cursor is `slowest_seq`. `since` is the time since which a local
    /// one has not moved.
    pub fn slowest(
        &self,
        slowest_seq: u64,
        since: impl Fn(&Local) -> Instant,
    ) -> impl Iterator<Item = Slowest> {
        let locals = self.locals.positions();
        let locals = locals.filter(move |&(l, seq)| l.gates() && seq == slowest_seq);
        let remotes = self.remotes.iter();
        let remotes = remotes.filter(move |r| r.gates() && r.next_seq == slowest_seq);
        locals.map(move |(l, _)| (l.id, since(l))).chain(remotes.map(|r| (r.id, r.level_at)))
    }

    /// The largest number of chunks that each local subscriber can get at once.
    pub fn smallest_burst(&self) -> u32 {
        let bursts = self.locals.positions().map(|(local, _)| local.burst_chunks());
        let burst_chunks = bursts.min().unwrap_or(u32::MAX).min(limits::BURST_CHUNKS_MAX);
        assert!(burst_chunks > 0); // The shard would take no chunk, again and again.
        burst_chunks
    }

    /// Returns the promise that bounds a delivery, if a local subscriber may come back for chunks
    /// that it does not acknowledge.
    pub fn bound(&self, ring: RingFacts) -> Option<Replay> {
        let replays = |local: &Local| local.replays && local.detail.ack_window.is_none();
        let is_bounded = self.locals.positions().any(|(local, _)| replays(local));
        is_bounded.then(|| Replay::of(ring, None))
    }

    /// Returns the first chunk after `head_seq` that will put a local `disconnect` subscriber over
    /// its limit in chunks. It is the next chunk where a limit in bytes makes that hard to foresee.
    pub fn next_trip_seq(&self, head_seq: u64) -> u64 {
        let foreseen = self.locals.positions().filter_map(|(local, next_seq)| {
            let terms = &local.terms;
            if terms.policy != Policy::Disconnect || local.cursor.is_away() {
                return None;
            }
            if terms.limit.bytes != u64::MAX {
                return Some(head_seq + 1);
            }
            // With a filter it can only be later, because fewer chunks count.
            let lag_from_seq = local.cursor.lag_begins(next_seq);
            Some((lag_from_seq + u64::from(terms.limit.chunks)).max(head_seq + 1))
        });
        let trip_seq = foreseen.min().unwrap_or(u64::MAX);
        assert!(trip_seq > head_seq); // It is a chunk to come.
        trip_seq
    }

    /// Returns the local `disconnect` subscribers that are over their limit.
    pub fn over_limit(&mut self, log: &ChunkLog) -> Vec<SubscriberId> {
        let mut over = Vec::new();
        for local in self.locals.apart().iter_mut().filter(|local| !local.gone) {
            if local.terms.policy == Policy::Disconnect && local.is_over(log) {
                over.push(local.id);
            }
        }
        over
    }
}
