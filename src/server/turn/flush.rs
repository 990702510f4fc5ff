//! The end of a turn: everything is sent, and the consequences are handled.

use crate::base::Handle;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::HubEvent;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::turn::{ends, sockets};
use crate::server::{ServerShard, calls, durable, hub, mcp, records, shm, streams, workers};
use crate::trace::Duty;

/// Sends what is queued, if that is enough, in the middle of a fan-out. Slow connections then
/// get no further chunks.
#[inline]
pub(in crate::server) fn flush_if_due<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let Guests { hub, mcp, .. } = &mut shard.guests;
    if hub.is_flush_due() {
        if mcp.has_news() {
            mcp.write_gathered(hub);
        }
        hub.flush(&mut shard.reactor, &mut shard.counters, shard.now);
        shard.guests.release_readers();
        hub::tell_demands(shard);
    }
}

/// Sends the output of this turn, and handles what follows from it.
pub(in crate::server) fn flush_connections<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    records::log_answered(shard); // Streams begin without another step of their connection.
    shard.guests.mcp.look_at_tools(shard.tools.revision());
    while shard.guests.has_work() {
        shard.did.note(Duty::Sends);
        if shard.guests.workers.has_news() {
            workers::settle_calls(shard);
        }
        let Guests { workers, mcp, .. } = &mut shard.guests;
        while let Some(principal) = workers.poll_changed() {
            mcp.note_tools(principal);
        }
        if mcp.is_used() {
            mcp::settle_mcp(shard);
        }
        let Guests { hub, mcp, .. } = &mut shard.guests;
        if hub.has_sleepers() {
            shm::lines::wake_lines(hub);
        }
        if mcp.has_news() {
            mcp.write_gathered(hub);
        }
        hub.flush_turn(&mut shard.reactor, &mut shard.counters, shard.now);
        if hub.take_free_workers() > 0 {
            shard.guests.workers.note_free();
        }
        shard.guests.release_readers();
        hub::tell_demands(shard);
        settle_flush(shard);
        shard.pump();
    }
    shard.guests.hub.end_turn();
    if shard.guests.hub.has_waiting_followers() {
        shard.worked = true; // The next turn goes on with the followers at once.
    }
    if shard.guests.hub.is_draining() {
        ends::close_idle(shard);
    }
}

fn settle_flush<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while let Some(event) = shard.guests.hub.poll_event() {
        match event {
            HubEvent::Broken(id) => sockets::drop_connection(shard, id),
            HubEvent::Finished(id) => finish_connection(shard, id),
            HubEvent::Whole(id) if hub::has_reader(shard, id) => durable::go_on(shard, id),
            HubEvent::Whole(id) => {
                if let Some(gathered) = streams::end_whole(shard, id)
                    && calls::run_remembering(shard, id, gathered).is_now()
                {
                    shard.guests.hub.resume_later(id);
                }
            }
            HubEvent::Ended(execution) => calls::answer_waiting(shard, execution),
            HubEvent::Answered(id) if mcp::is_of_lines(shard, id) => {
                shard.reactor.set_receiving(id, true);
            }
            HubEvent::Answered(id) => {
                sockets::converse(shard, id, |http, around, out| http.resume(around, out));
            }
        }
    }
}

/// Closes a connection that has sent everything, once the client has read it.
fn finish_connection<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    let now = shard.now;
    let hub = &mut shard.guests.hub;
    let is_draining = hub.is_draining();
    let Some(connection) = hub.connection(id) else { return };
    // A client that has sent nothing more loses nothing by it.
    let ends_now = is_draining && connection.has_read_all();
    if connection.is_aborted || connection.has_ended || ends_now {
        sockets::drop_connection(shard, id);
        return;
    }
    connection.doing = Doing::Closing;
    connection.stream = None;
    hub.set_timer(id, Some((Timer::Linger, now + limits::LINGER)));
    shard.reactor.finish(id);
    shard.reactor.set_receiving(id, true); // Waits for the client's end.
}

/// Notes that an execution has ended. Connections that wait for its result are answered at the
/// end of the turn.
pub(in crate::server) fn note_ended<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    execution: Handle,
) {
    let run = shard.runs[execution.index as usize].as_ref();
    if let Some(seat) = run.and_then(|run| run.guest.thread.as_ref()) {
        seat.end();
    }
    let Guests { hub, mcp, .. } = &mut shard.guests;
    let id = shard.runs[execution.index as usize].as_ref().map(|run| run.id);
    if let Some(id) = id {
        mcp.note_ended(id);
        hub.note_ended(id);
    }
}
