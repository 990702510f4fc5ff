//! Deadlines of connections. Each connection has one timer. Its meaning follows from what the
//! connection does.

use std::time::Duration;

use crate::base::Instant;
use crate::endpoint::AwaitedEvent;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::ServerShard;
use crate::server::hub::connection::{Connection, Doing, Timer};

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

impl Connection {
    /// True if it waits for a request, and for nothing else.
    pub fn is_between_requests(&self) -> bool {
        matches!(self.doing, Doing::Requests)
            && self.http.due() == AwaitedEvent::Request
            && !self.is_last
            && !self.is_blocked
    }

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
            (Doing::Result | Doing::Joining | Doing::Recalling(_), _) => None,
            (Doing::Stream | Doing::Mcp | Doing::Part(_), _) => None,
            (Doing::Closing | Doing::Moving(_), _) => None,
        }
    }

    /// Returns the time by which more of the body has to come. Received bytes extend it.
    pub fn body_until(&self) -> Instant {
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
