//! Subscribers that were accepted, between the subscription and the first event of their stream.

use smallvec::SmallVec;

use crate::base::ExecutionId;
use crate::engine::{Event, From, Subscribed};
use crate::reactor::Reactor;
use crate::server::ServerShard;
use crate::server::hub::stream::Followed;
use crate::server::peers::join::{Joined, Part, Parts};
use crate::shard::Agreed;
use crate::stream::{Kinds, Totals};

/// One execution of a request for a stream.
pub(in crate::server) enum Attached {
    /// A subscriber of this shard.
    Here(Subscribed),
    /// A reader of another shard's ring.
    There(Box<Joined>),
    /// An execution whose end the client has received before. It sends no events, and each `id:` of
    /// the stream repeats its position.
    Over { seq: u64, seen: Totals, kinds: Kinds },
}

/// All executions of one request, in its order.
pub(in crate::server) type AllAttached = SmallVec<[(ExecutionId, Attached); 1]>;

impl Attached {
    /// Returns the state of an execution whose end the client has received, from its resume
    /// position.
    pub fn over(from: From, kinds: Kinds) -> Attached {
        let (seq, seen) = match from {
            From::Seq { seq, seen } => (seq.saturating_sub(1), seen.unwrap_or(Totals::ZERO)),
            From::Start | From::Live => (0, Totals::ZERO),
        };
        Attached::Over { seq, seen, kinds }
    }

    /// True if it may still send events.
    pub fn is_open(&self) -> bool {
        !matches!(self, Attached::Over { .. })
    }

    /// Returns the terms of the subscriber. `None` if it sends no events.
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

    /// Returns the entry of the stream for it. The caller sets its source.
    pub fn followed(&self, execution: ExecutionId) -> Followed {
        let has_ended = !self.is_open();
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
        Followed { name: execution.to_string().into(), source: None, kinds, seq, has_ended, seen }
    }
}
/// Detaches all subscribers of a request that was refused, and the readers in `rest` that other
/// shards have accepted.
pub(in crate::server) fn detach_all_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    attached: AllAttached,
    rest: Parts,
) {
    rest.into_iter().flatten().for_each(Part::dismiss);
    for (_, attached) in attached {
        match attached {
            Attached::Here(subscribed) => {
                shard.ask_at_once(Event::Unsubscribe(subscribed.subscriber));
            }
            Attached::There(joined) => Part::Joined(joined).dismiss(),
            Attached::Over { .. } => {}
        }
    }
}
