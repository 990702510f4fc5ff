//! Deliveries from the rings of other shards.

use crate::reactor::Reactor;
use crate::server::guests::Guests;
use crate::server::peers::remote::Given;
use crate::server::turn::flush;
use crate::server::{ServerShard, hub, records};

/// Delivers from the rings of other shards.
pub(in crate::server) fn poll_remotes<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let awake_count = shard.guests.peers.remotes().awake_count();
    for _ in 0..awake_count {
        hub::make_room_for_deliveries(shard);
        let Guests { hub, peers, .. } = &mut shard.guests;
        let remotes = peers.remotes_mut();
        let Some(at) = remotes.next_awake() else { return };
        let (reactor, counters) = (&mut shard.reactor, &mut shard.counters);
        let Given { any, ended } = remotes.poll(at, hub, reactor, counters, shard.now);
        shard.worked |= any;
        if let Some((subscriber, end)) = ended {
            records::log_reader_ended(shard, subscriber.execution(), subscriber.id(), &end);
        }
        flush::flush_if_due(shard);
    }
}
