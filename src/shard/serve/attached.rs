//! Who was let in, between its subscription and the first event of its stream.

use smallvec::SmallVec;

use super::super::{Agreed, Shard};
use super::join::{Joined, Part, Parts};
use super::stream::Followed;
use crate::base::ExecutionId;
use crate::engine::{Event, From, Kinds, Subscribed, Totals};
use crate::reactor::Reactor;

/// One execution of a request.
pub(super) enum Attached {
    /// It is followed on this shard.
    Here(Subscribed),
    /// On another one.
    There(Box<Joined>),
    /// Its client was told of its end before: nothing of it comes any more, and each `id:` goes on
    /// saying so.
    Over { seq: u64, seen: Totals, kinds: Kinds },
}

/// All of one request, in its order.
pub(super) type AllAttached = SmallVec<[(ExecutionId, Attached); 1]>;

impl Attached {
    /// One whose client is behind its end, and says so with where it wants to go on.
    pub fn over(from: From, kinds: Kinds) -> Attached {
        let (seq, seen) = match from {
            From::Seq { seq, seen } => (seq.saturating_sub(1), seen.unwrap_or(Totals::ZERO)),
            From::Start | From::Live => (0, Totals::ZERO),
        };
        Attached::Over { seq, seen, kinds }
    }

    /// Does anything come of it?
    pub fn is_open(&self) -> bool {
        !matches!(self, Attached::Over { .. })
    }

    /// The terms that were agreed with the subscriber; `None` if nothing comes.
    pub fn agreed(&self) -> Option<Agreed> {
        match self {
            Attached::Here(Subscribed { subscriber, terms, cursor, replay, .. }) => Some(Agreed {
                subscriber: *subscriber,
                terms: *terms,
                from_seq: cursor.next_seq,
                replay: *replay,
            }),
            Attached::There(joined) => {
                let subscriber = &joined.subscriber;
                Some(Agreed {
                    subscriber: subscriber.id(),
                    terms: subscriber.terms(),
                    from_seq: subscriber.cursor().next_seq,
                    replay: subscriber.replay(),
                })
            }
            Attached::Over { .. } => None,
        }
    }

    /// As its stream begins with it; where it comes from is not said yet.
    pub fn followed(&self, execution: ExecutionId) -> Followed {
        let (kinds, seq, seen) = match self {
            Attached::Here(Subscribed { terms, cursor, .. }) => {
                (terms.kinds, cursor.next_seq - 1, cursor.seen)
            }
            Attached::There(joined) => {
                let cursor = joined.subscriber.cursor();
                (joined.subscriber.terms().kinds, cursor.next_seq - 1, cursor.seen)
            }
            Attached::Over { seq, seen, kinds } => (*kinds, *seq, *seen),
        };
        Followed { name: execution.to_string().into(), source: None, kinds, seq, seen }
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// Nothing comes of it: all of them leave again, and with them the `rest`, which was let in by
    /// other shards.
    pub(super) fn detach_all_of(&mut self, attached: AllAttached, rest: Parts) {
        rest.into_iter().flatten().for_each(Part::dismiss);
        for (_, attached) in attached {
            match attached {
                Attached::Here(subscribed) => {
                    self.ask_at_once(Event::Unsubscribe(subscribed.subscriber));
                }
                Attached::There(joined) => Part::Joined(joined).dismiss(),
                Attached::Over { .. } => {}
            }
        }
    }
}
