//! Resumption: a subscriber that comes back on another connection takes the place of the lost one.
//!
//! A client often comes back before the server has noticed that its old connection is broken. The
//! new subscriber then becomes the *successor* of the old one. The place of the old one is removed
//! as soon as it is lost. No other client comes back for it, and it would hold the producer for the
//! whole grace.

use crate::base::{Handle, Instant, SubscriberId};
use crate::engine::Engine;
use crate::engine::action::{Action, Subscribed};
use crate::engine::event::{From, SubscribeSpec};
use crate::engine::execution::Execution;
use crate::limits;
use crate::stream::{Policy, Terms};

/// The claim of a subscriber to the place of an older one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Successor {
    of: SubscriberId,
    /// The time until which the claim holds. Later the older one belongs to another client.
    until: Instant,
}

/// A subscriber whose client may come back.
struct ResumableSubscriber {
    id: SubscriberId,
    terms: Terms,
    next_seq: u64,
    is_lost: bool,
    successor: Option<Successor>,
}

impl Execution {
    fn replaying(&self) -> impl Iterator<Item = ResumableSubscriber> {
        let locals = self.locals.positions().filter(|(local, _)| local.replays);
        let locals = locals.map(|(local, next_seq)| ResumableSubscriber {
            id: local.id,
            terms: local.terms,
            next_seq,
            is_lost: local.is_lost(),
            successor: local.detail.successor,
        });
        let remotes = self.remotes.iter().filter(|remote| remote.replays && !remote.gone);
        let remotes = remotes.map(|remote| ResumableSubscriber {
            id: remote.id,
            terms: remote.terms,
            next_seq: remote.next_seq,
            is_lost: remote.is_lost(),
            successor: remote.successor,
        });
        locals.chain(remotes)
    }
}

impl Engine {
    /// Gives the new subscriber the place of an old one with the same terms, whose cursor is at or
    /// behind the first chunk. A lost one comes first, then the one with the smallest cursor. A
    /// lost one is removed at once; otherwise the new one becomes its successor. The new one holds
    /// the producer already, so nothing is overwritten in between.
    pub(super) fn take_over(&mut self, new: &Subscribed, spec: &SubscribeSpec) {
        let From::Seq { seq, .. } = spec.from else { return };
        if !spec.replays || spec.policy != Policy::Block {
            return;
        }
        let e = self.executions.get(new.execution).expect("it was just subscribed to");
        let is_claimed =
            |id| e.replaying().any(|other| other.successor.is_some_and(|h| h.of == id));
        let fits = e.replaying().filter(|old| {
            old.id != new.subscriber && old.terms == new.terms && old.next_seq >= seq
        });
        let fits = fits.filter(|old| !is_claimed(old.id));
        let Some(old) = fits.min_by_key(|old| (!old.is_lost, old.next_seq)) else { return };
        assert!(old.id != new.subscriber);
        assert!(new.cursor.next_seq <= old.next_seq); // Nothing that the old one kept is lost.
        if old.is_lost {
            self.resumed(old.id);
        } else {
            let until = self.effects.now + limits::RECONNECT_GRACE;
            self.set_successor(new.subscriber, Some(Successor { of: old.id, until }));
        }
    }

    /// Removes a lost subscriber whose client has come back already. Returns false if it has no
    /// successor.
    pub(super) fn leave_to_successor(&mut self, lost: SubscriberId, execution: Handle) -> bool {
        let e = self.executions.get(execution).expect("a seat's execution lives");
        let is_successor =
            |successor: Successor| successor.of == lost && self.effects.now <= successor.until;
        let found = e.replaying().find(|new| new.successor.is_some_and(is_successor));
        let Some(new) = found else { return false };
        assert!(new.id != lost);
        self.set_successor(new.id, None);
        self.resumed(lost);
        true
    }

    fn resumed(&mut self, lost: SubscriberId) {
        self.effects.counters.subscribers_resumed += 1;
        self.effects.push(Action::Forget(lost));
        self.remove(lost);
        assert!(
            self.effects.counters.subscribers_resumed <= self.effects.counters.subscribers_attached
        );
    }

    fn set_successor(&mut self, subscriber: SubscriberId, successor: Option<Successor>) {
        // No subscriber continues itself.
        assert!(successor.is_none_or(|successor| successor.of != subscriber));
        if let Some(remote) = self.remote_mut(subscriber) {
            remote.successor = successor;
        } else {
            let local = self.local_mut(subscriber).expect("a living subscriber");
            local.detail.successor = successor;
        }
    }
}
