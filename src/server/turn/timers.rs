//! The owner of time for a shard's guests. Each guest keeps its deadlines in a table of its own.
//! The next of all of them is found here, and what is due is handled here, in one order.

use crate::base::Instant;
use crate::endpoint::AwaitedEvent;
use crate::limits;
use crate::reactor::Reactor;
use crate::server::guests::Guests;
use crate::server::hub::Beat;
use crate::server::hub::clock::earlier;
use crate::server::hub::connection::Timer;
use crate::server::turn::{messages, recall, sockets};
use crate::server::{ServerShard, calls, cluster, durable, mcp, outgoing, subscriptions, workers};

/// Handles a limited number of expired timers. The rest waits for the next turns, so that
/// chunks are not delayed.
pub(in crate::server) fn fire_timers<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    shard.guests.peers.remotes_mut().wake_due(now);
    for _ in 0..limits::CONNECTION_DEADLINES_PER_TURN {
        let hub = &mut shard.guests.hub;
        let Some((id, timer)) = hub.poll_timer(now) else { break };
        shard.worked = true;
        let is_draining = hub.is_draining();
        let connection = hub.connection(id).expect("it has a timer");
        match timer {
            Timer::Linger => sockets::drop_connection(shard, id),
            Timer::LastAnswers => mcp::cancel_all_of(shard, id),
            Timer::Idle if connection.has_pieces() => {
                let until = connection.sent_at + limits::CONNECTION_IDLE;
                match until <= now {
                    true => sockets::drop_connection(shard, id), // The client reads nothing.
                    false => hub.set_timer(id, Some((Timer::Idle, until))),
                }
            }
            Timer::Body if connection.body_until() > now => {
                let until = connection.body_until(); // More bytes have come since.
                hub.set_timer(id, Some((Timer::Body, until)));
            }
            Timer::Request if is_draining && connection.http.due() == AwaitedEvent::Request => {
                sockets::drop_connection(shard, id); // It has sent nothing.
            }
            Timer::Idle | Timer::Request | Timer::Body => {
                match connection.http.due() {
                    AwaitedEvent::Rest => shard.counters.requests_timed_out += 1,
                    _ => shard.counters.connections_idled_out += 1,
                }
                sockets::converse(shard, id, |http, around, out| http.time_out(around, out));
            }
            Timer::Result => calls::answer_late(shard, id),
            Timer::Poll => durable::answer_late(shard, id),
            Timer::Part => workers::refuse_part(shard, id),
            Timer::Resume => {
                sockets::converse(shard, id, |http, around, out| http.resume(around, out))
            }
            Timer::Join => recall::give_up(shard, id),
            Timer::Beat if hub.beat(id, now) == Beat::Stalled => {
                sockets::drop_connection(shard, id)
            }
            Timer::Beat => {}
            Timer::McpBeat => mcp::beat_mcp(shard, id),
        }
    }
    workers::fire_worker_deadlines(shard);
    mcp::fire_mcp_deadlines(shard);
    outgoing::fire_outgoing_timers(shard);
    durable::fire_deadlines(shard);
    subscriptions::fire_deadlines(shard);
    cluster::fire_deadlines(shard);
    messages::give_up_lists(shard);
}

impl<R: Reactor + 'static> Guests<R> {
    /// Returns the next deadline of a connection, a worker, a call or an outgoing exchange.
    #[inline]
    pub(in crate::server) fn next_timer(&self) -> Option<Instant> {
        let outgoing = self.outgoing.as_ref().and_then(|outgoing| outgoing.next_deadline());
        let here = earlier(self.hub.next_deadline(), self.workers.next_deadline());
        let there = earlier(self.peers.remotes().next_deadline(), self.mcp.next_deadline());
        let streams = earlier(self.durable.next_deadline(), self.subscriptions.next_deadline());
        let near = earlier(earlier(here, there), earlier(outgoing, streams));
        match self.cluster.is_on() {
            true => earlier(near, self.cluster.next_deadline()),
            false => near,
        }
    }

    /// Wakes the readers of other shards' rings whose connections take bytes again.
    pub(in crate::server) fn release_readers(&mut self) {
        if self.hub.has_released() {
            self.peers.remotes_mut().release(self.hub.take_released());
        }
    }

    /// True if something has to be sent, or a flush has left something to do.
    #[inline]
    pub(in crate::server) fn has_work(&self) -> bool {
        self.hub.has_work()
            || self.mcp.has_news()
            || self.workers.has_news()
            || self.workers.has_changed()
    }
}
