//! Deadlines of connections. Each connection has one timer. Its meaning follows from what the
//! connection does.

use std::time::Duration;

use crate::base::Instant;
use crate::endpoint::AwaitedEvent;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::connection::{Connection, Doing, Timer};
use crate::server::hub::receive;
use crate::server::{ServerShard, calls, mcp, peers, workers};
/// Handles a limited number of expired timers. The rest waits for the next turns, so that
/// chunks are not delayed.
pub(in crate::server) fn fire_connection_timers<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    shard.guests.peers.remotes_mut().wake_due(now);
    for _ in 0..limits::CONNECTION_DEADLINES_PER_TURN {
        let hub = &mut shard.guests.hub;
        let Some((id, timer)) = hub.timers.pop_expired(now) else { break };
        shard.worked = true;
        let connection = hub.connection(id).expect("a closed connection has no timer");
        connection.timer = None;
        match timer {
            Timer::Linger => receive::drop_connection(shard, id),
            Timer::LastAnswers => mcp::cancel_all_of(shard, id),
            Timer::Idle if connection.has_pieces() => {
                let until = connection.sent_at + limits::CONNECTION_IDLE;
                match until <= now {
                    true => receive::drop_connection(shard, id), // The client reads nothing.
                    false => hub.set_timer(id, Some((Timer::Idle, until))),
                }
            }
            Timer::Body if connection.body_until() > now => {
                let until = connection.body_until(); // More bytes have come since.
                hub.set_timer(id, Some((Timer::Body, until)));
            }
            Timer::Idle | Timer::Request | Timer::Body => {
                match connection.http.due() {
                    AwaitedEvent::Rest => shard.counters.requests_timed_out += 1,
                    _ => shard.counters.connections_idled_out += 1,
                }
                receive::converse(shard, id, |http, around, out| http.time_out(around, out));
            }
            Timer::Result => calls::answer_late(shard, id),
            Timer::Part => workers::refuse_part(shard, id),
            Timer::NextParts => {
                receive::converse(shard, id, |http, around, out| http.resume(around, out))
            }
            Timer::Join => peers::join_late(shard, id),
            Timer::Beat => beat(shard, id),
            Timer::McpBeat => mcp::beat_mcp(shard, id),
        }
    }
    workers::fire_worker_deadlines(shard);
    mcp::fire_mcp_deadlines(shard);
}

/// Sends a keep-alive on a stream that was silent. Drops the connection if the client has not
/// read for too long.
fn beat<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    let now = shard.now;
    let hub = &mut shard.guests.hub;
    let connection = hub.connection(id).expect("the caller found it");
    if connection.stream.is_none() {
        return; // The stream has ended in this turn. The next step sets the timer.
    }
    let silence = now.since(connection.sent_at);
    if connection.is_blocked && silence >= limits::SEND_STALL {
        receive::drop_connection(shard, id);
        return;
    }
    // A keep-alive is sent after half of the interval or more. The first one comes early, so
    // that streams that began together do not send theirs together for ever.
    let is_quiet = silence >= limits::KEEP_ALIVE / 2 && !connection.is_blocked;
    let next_at = match is_quiet || connection.is_blocked {
        true => now + limits::KEEP_ALIVE,
        false => connection.sent_at + limits::KEEP_ALIVE,
    };
    if is_quiet {
        let connection = hub.writable(id).expect("as above");
        let stream = connection.stream.take().expect("only a stream has this timer");
        connection.write(|out| stream.write_keep_alive(out));
        connection.stream = Some(stream);
    }
    hub.set_timer(id, Some((Timer::Beat, next_at)));
}

/// Sets the timer that belongs to what a connection is doing, and whether it receives.
pub(in crate::server) fn settle_connection<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let now = shard.now;
    let hub = &mut shard.guests.hub;
    hub.settle_place(id, now);
    let Some(connection) = hub.connection(id) else { return };
    if let Doing::Moving(_) = connection.doing {
        return;
    }
    let is_line = matches!(connection.doing, Doing::Door);
    shard.reactor.set_receiving(id, is_line || connection.http.wants_bytes());
    if let Some(wanted) = connection.wanted_timer(now) {
        hub.set_timer(id, wanted);
    }
}

impl<R: Reactor + 'static> Guests<R> {
    /// Returns the next deadline of a connection, a worker, a call or an outgoing exchange.
    #[inline]
    pub(in crate::server) fn connection_deadline(&self) -> Option<Instant> {
        let outgoing = self.outgoing.as_ref().and_then(|outgoing| outgoing.next_deadline());
        let here = earlier(self.hub.next_deadline(), self.workers.next_deadline());
        let there = earlier(self.peers.remotes().next_deadline(), self.mcp.next_deadline());
        earlier(earlier(here, there), outgoing)
    }

    /// Wakes the readers of other shards' rings whose connections take bytes again.
    pub(in crate::server) fn release_readers(&mut self) {
        self.peers.remotes_mut().release(self.hub.take_released());
    }

    /// True if something has to be sent, or a flush has left something to do.
    #[inline]
    pub(in crate::server) fn has_work(&self) -> bool {
        self.hub.has_work() || self.mcp.has_news() || self.workers.has_news()
    }
}

impl Connection {
    /// Returns the timer that belongs to what it is doing. `None` keeps the present one.
    fn wanted_timer(&mut self, now: Instant) -> Option<Option<(Timer, Instant)>> {
        let arrival = self.http.arrival();
        // The armed timer, if it belongs to the same request.
        let is_same = std::mem::replace(&mut self.timed_heads, arrival.heads) == arrival.heads;
        let armed = self.timer.map(|(timer, _)| timer).filter(|_| is_same);
        let idle = Some((Timer::Idle, now + limits::CONNECTION_IDLE));
        match (&self.doing, self.http.due()) {
            // The timer stands until everything is sent. Then the connection lingers.
            (Doing::Requests, _) if self.is_last => Some(idle),
            // The deadline of a head counts from its first byte, or from the start of the
            // connection. An empty line is no request.
            (Doing::Requests, AwaitedEvent::Request) if armed == Some(Timer::Request) => None,
            (Doing::Requests, AwaitedEvent::Request) => Some(idle),
            (Doing::Requests, AwaitedEvent::Rest) => {
                let timer = if arrival.body_bytes.is_some() { Timer::Body } else { Timer::Request };
                if armed == Some(timer) {
                    return None;
                }
                self.body_from = now;
                let until = match timer {
                    Timer::Body => self.body_until(),
                    _ => now + limits::REQUEST_DEADLINE,
                };
                Some(Some((timer, until)))
            }
            (Doing::Requests, AwaitedEvent::Parts) => {
                Some(Some((Timer::Request, now + limits::PARTS_INACTIVITY)))
            }
            (Doing::Requests, AwaitedEvent::Answer | AwaitedEvent::Nothing)
            | (Doing::Elsewhere, _) => Some(None),
            (Doing::Door, _) if self.is_last => None,
            (Doing::Door, _) => Some(None), // A line may be silent for ever.
            // Set where this state began.
            (Doing::Result | Doing::Joining | Doing::Stream | Doing::Mcp | Doing::Part(_), _) => {
                None
            }
            (Doing::Closing | Doing::Moving(_), _) => None,
        }
    }

    /// Returns the time by which more of the body has to come. Received bytes extend it.
    fn body_until(&self) -> Instant {
        let body_bytes = self.http.arrival().body_bytes.unwrap_or(0);
        let bought_ms = body_bytes.saturating_mul(1_000) / limits::REQUEST_BODY_BYTES_PER_S;
        self.body_from + limits::REQUEST_BODY_GRACE + Duration::from_millis(bought_ms)
    }
}

/// Returns the earlier of two deadlines, or the only one.
#[inline]
pub(in crate::server) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Returns the moment from `at` on at which due keep-alives are sent together. Single ones would
/// each wake the core for one send.
pub(in crate::server) fn beat_at(at: Instant) -> Instant {
    let step_ns = limits::KEEP_ALIVE_STEP.as_nanos() as u64;
    Instant::from_nanos(at.nanos().saturating_add(step_ns - 1) / step_ns * step_ns)
}
