//! Resumption: a subscriber that comes back on another connection takes the place of the lost one.
//!
//! A client often comes back before the server has noticed that its old connection is broken. The
//! new subscriber then becomes the *successor* of the old one. The place of the old one is removed
//! as soon as it is lost. No other client comes back for it, and it would hold the producer for the
//! whole grace.

use crate::base::{Instant, SubscriberId};
use crate::engine::action::Subscribed;
use crate::engine::audience::Audience;
use crate::limits;
use crate::stream::Terms;

/// The claim of a subscriber to the place of an older one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Successor {
    of: SubscriberId,
    /// The time until which the claim holds. Later the older one belongs to another client.
    until: Instant,
}

impl Successor {
    /// Creates the claim of a subscriber that came back at `now`.
    pub fn new(of: SubscriberId, now: Instant) -> Successor {
        Successor { of, until: now + limits::RECONNECT_GRACE }
    }

    /// True if this is a claim to the place of `old` that still holds at `now`.
    fn claims(self, old: SubscriberId, now: Instant) -> bool {
        self.of == old && now <= self.until
    }

    /// The older subscriber.
    pub fn of(self) -> SubscriberId {
        self.of
    }
}

/// The old subscriber whose place a new one takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Predecessor {
    /// Its connection is broken.
    Lost(SubscriberId),
    /// Its connection seems to be up.
    Connected(SubscriberId),
}

/// A subscriber whose client may come back.
struct ResumableSubscriber {
    id: SubscriberId,
    terms: Terms,
    next_seq: u64,
    is_lost: bool,
    successor: Option<Successor>,
}

impl Audience {
    fn replaying(&self) -> impl Iterator<Item = ResumableSubscriber> {
        let locals = self.locals.positions().filter(|(local, _)| local.replays);
        let locals = locals.map(|(local, next_seq)| ResumableSubscriber {
            id: local.id,
            terms: local.terms,
            next_seq,
            is_lost: local.is_lost(),
            successor: local.detail.successor.as_deref().copied(),
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

    /// Returns the old subscriber whose place the new one takes. It has the same terms, and its
    /// cursor is at or behind `seq`. A lost one comes first, then the one with the smallest cursor.
    /// None is chosen whose place another one claims.
    pub fn predecessor(&self, new: &Subscribed, seq: u64, now: Instant) -> Option<Predecessor> {
        let is_claimed =
            |id| self.replaying().any(|other| other.successor.is_some_and(|s| s.claims(id, now)));
        let fits = self.replaying().filter(|old| {
            old.id != new.subscriber && old.terms == new.terms && old.next_seq >= seq
        });
        let fits = fits.filter(|old| !is_claimed(old.id));
        let old = fits.min_by_key(|old| (!old.is_lost, old.next_seq))?;
        assert!(old.id != new.subscriber);
        assert!(new.cursor.next_seq <= old.next_seq); // Nothing that the old one kept is lost.
        Some(match old.is_lost {
            true => Predecessor::Lost(old.id),
            false => Predecessor::Connected(old.id),
        })
    }

    /// Returns the subscriber whose client has come back for the place of `lost`.
    pub fn successor(&self, lost: SubscriberId, now: Instant) -> Option<SubscriberId> {
        let mut others = self.replaying();
        let new = others.find(|new| new.successor.is_some_and(|s| s.claims(lost, now)))?;
        assert!(new.id != lost);
        Some(new.id)
    }
}
