//! Socket events: new connections, received bytes, and ends.

use crate::endpoint::{ApiCall, ApiError, ConnectionStep, HttpConnection, Surroundings};
use crate::engine::Event;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor, SocketEvent};
use crate::server::hub::Answered;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::hub::frames::Encoding;
use crate::server::hub::stream::Source;
use crate::server::hub::tls::Opened;
use crate::server::outgoing::Belongs;
use crate::server::turn::{admit, moves, recall, requests};
use crate::server::{ServerShard, hub, mcp, outgoing, peers, records, shm, workers};
use crate::trace::Level;

/// Handles the socket events of this turn.
pub(in crate::server) fn serve_sockets<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let wall_us = shard.reactor.wall_us();
    let hub = &mut shard.guests.hub;
    hub.set_date(wall_us);
    take_socket_events(shard);
    outgoing::settle_outgoing(shard);
}

fn take_socket_events<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for _ in 0..limits::SOCKET_EVENTS_PER_TURN {
        let Some(event) = shard.reactor.next_socket_event() else { return };
        shard.worked = true;
        if let Some(outgoing) = &mut shard.guests.outgoing
            && outgoing.hear(&event, shard.now) == Belongs::Here
        {
            continue;
        }
        // An event may belong to a connection that was closed a moment ago.
        let hub = &mut shard.guests.hub;
        match event {
            SocketEvent::Accepted { listener, connection, peer } => {
                let is_at_door = hub.is_door(listener);
                admit::admit(shard, connection, peer, is_at_door);
            }
            SocketEvent::Received { connection: id, bytes } => {
                let Some(connection) = hub.writable(id) else { continue };
                if connection.mcp.as_ref().is_some_and(|link| link.is_of_lines()) {
                    let bytes = bytes.to_vec();
                    mcp::receive_lines(shard, id, &bytes);
                    continue;
                }
                if let Doing::Closing = connection.doing {
                    continue; // It was told that no more input is read.
                }
                if let Doing::Door = connection.doing {
                    shm::hear_at_door(shard, id); // The content does not matter.
                    continue;
                }
                if let Some(session) = &mut connection.session {
                    let mut plain = std::mem::take(&mut shard.guests.opened);
                    let opened = session.open(bytes, &mut plain);
                    receive_opened(shard, id, opened, plain);
                    continue;
                }
                let step =
                    hub.receive(id, bytes, (&shard.guests.access, &shard.guests.tally), shard.now);
                take_step(shard, id, step);
            }
            SocketEvent::Ended { connection: id, error } => {
                peer_ended(shard, id, error.is_some());
            }
            SocketEvent::Writable { connection: id } => {
                if let Some(connection) = hub.writable(id) {
                    connection.is_blocked = false;
                    hub.settle_place(id, shard.now);
                }
            }
            SocketEvent::Released { connection: id, socket } => moves::send_off(shard, id, socket),
            // Outgoing connections are handled above.
            SocketEvent::Connected { .. } => {}
        }
    }
}

/// Handles the result of decrypting received bytes.
fn receive_opened<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    opened: Opened,
    mut bytes: Vec<u8>,
) {
    if !bytes.is_empty() {
        let hub = &mut shard.guests.hub;
        let step = hub.receive(id, &bytes, (&shard.guests.access, &shard.guests.tally), shard.now);
        take_step(shard, id, step);
        bytes.clear();
    }
    shard.guests.opened = bytes;
    match opened {
        Opened::More => {}
        Opened::Ready => shard.counters.tls_handshakes += 1,
        Opened::Ended => peer_ended(shard, id, false),
        Opened::Refused(reason) => break_off(shard, id, &reason),
        Opened::Plain => refuse_plain(shard, id),
    }
}

/// Answers plain HTTP at a port with TLS in plain HTTP, because the client would not understand
/// an alert.
fn refuse_plain<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    shard.counters.tls_refusals += 1;
    let hub = &mut shard.guests.hub;
    let Some(connection) = hub.writable(id) else { return };
    connection.session = None;
    let error = ApiError::plain_on_tls_port();
    converse(shard, id, |http, around, out| http.turn_away(&error, around, out));
}

/// Closes a connection whose bytes TLS has refused. Only the alert is sent.
fn break_off<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId, reason: &str) {
    shard.counters.tls_refusals += 1;
    let hub = &mut shard.guests.hub;
    let Some(connection) = hub.writable(id) else { return };
    let peer = connection.peer;
    connection.is_last = true;
    let is_between = matches!(connection.doing, Doing::Requests);
    shard.guests.log.record(records::wall_us(shard), Level::Debug, "tls_refused", |record| {
        record.show("peer", &peer).show("reason", &reason);
    });
    if is_between {
        hub::settle_connection(shard, id); // It is closed once that was sent.
    } else {
        shard.guests.hub.flush(&mut shard.reactor, &mut shard.counters, shard.now);
        drop_connection(shard, id);
    }
}

/// Lets the HTTP machine of a connection write, and continues with its next step.
pub(in crate::server) fn converse<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    speak: impl FnOnce(&mut HttpConnection, &Surroundings<'_>, &mut Vec<u8>) -> ConnectionStep,
) {
    let hub = &mut shard.guests.hub;
    let around = hub.around(id, (&shard.guests.access, &shard.guests.tally), shard.now);
    let Some(connection) = hub.writable(id) else { return };
    let step = connection.converse(|http, out| speak(http, &around, out));
    take_step(shard, id, step);
}

/// Carries out the steps of the HTTP machine of a connection until it waits.
pub(in crate::server) fn take_step<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    mut step: ConnectionStep,
) {
    records::log_answered(shard);
    let (mut part_count, mut request_count) = (0, 0);
    loop {
        match step {
            ConnectionStep::Wait => break,
            ConnectionStep::Call(call) => {
                if let Some(home) = moves::home_of(shard, id, &call) {
                    peers::begin_move(shard, id, call, home);
                    return;
                }
                let is_of_many = is_of_many(&call);
                let Some(call) = recall::ready_call(shard, id, call) else { break };
                match is_of_many {
                    true => part_count += 1,
                    false => request_count += 1,
                }
                if requests::carry_out_call(shard, id, call) == Answered::Later {
                    break;
                }
            }
            ConnectionStep::Pause => request_count = limits::REQUESTS_PER_TURN,
            ConnectionStep::Close => {
                let hub = &mut shard.guests.hub;
                if let Some(connection) = hub.writable(id) {
                    connection.is_last = true;
                }
                break;
            }
        }
        let hub = &mut shard.guests.hub;
        let around = hub.around(id, (&shard.guests.access, &shard.guests.tally), shard.now);
        let Some(connection) = hub.writable(id) else { return };
        if connection.pending_bytes() > limits::HTTP_ANSWERS_BYTES_MAX {
            // A client that sends requests and reads no replies waits.
            connection.is_full = true;
            break;
        }
        if part_count == limits::PARTS_PER_TURN || request_count == limits::REQUESTS_PER_TURN {
            pause(shard, id);
            return;
        }
        step = connection.converse(|http, out| http.resume(&around, out));
    }
    hub::settle_connection(shard, id);
}

/// Interrupts a long body or a row of requests, so that everything else gets its turn first.
fn pause<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId) {
    let now = shard.now;
    let hub = &mut shard.guests.hub;
    hub.set_timer(id, Some((Timer::Resume, now)));
    shard.reactor.set_receiving(id, false);
}

fn peer_ended<R: Reactor + 'static>(shard: &mut ServerShard<R>, id: ConnectionId, is_broken: bool) {
    let hub = &mut shard.guests.hub;
    let Some(connection) = hub.connection(id) else { return };
    if connection.mcp.as_ref().is_some_and(|link| link.is_of_lines()) {
        mcp::end_lines(shard, id, is_broken);
        return;
    }
    if std::mem::replace(&mut connection.has_ended, true)
        && matches!(connection.doing, Doing::Requests)
        && !is_broken
    {
        return; // TLS has reported the end before, and now TCP does.
    }
    match connection.doing {
        // A client that closes its side of a stream is gone: browsers and curl do so.
        _ if is_broken => drop_connection(shard, id),
        Doing::Requests => converse(shard, id, |http, around, out| http.end_input(around, out)),
        Doing::Result
        | Doing::Elsewhere
        | Doing::Joining
        | Doing::Recalling(_)
        | Doing::Stream
        | Doing::Mcp
        | Doing::Door
        | Doing::Part(_)
        | Doing::Moving(_)
        | Doing::Closing => {
            drop_connection(shard, id);
        }
    }
}

/// Closes a connection now. Its subscribers count as lost: under `block` their places are kept
/// for a while.
pub(in crate::server) fn drop_connection<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
) {
    let hub = &mut shard.guests.hub;
    let Some(mut connection) = hub.forget(id) else { return };
    shard.guests.peers.abandon(id);
    let (stream, peer) = (connection.stream.take(), connection.peer);
    let worker = connection.worker.take();
    let link = connection.mcp.take();
    let line = connection.line.take();
    let waits = match &connection.doing {
        Doing::Part(deliver) => Some(deliver.part.call),
        _ => None,
    };
    let cancels = stream.as_ref().and_then(|stream| stream.cancels);
    let is_output = stream.as_ref().is_some_and(|s| s.encoding == Encoding::Output);
    hub.recycle(connection);
    shard.reactor.close(id);
    records::log_connection(shard, "connection_closed", peer);
    if let Some(worker) = worker {
        workers::lose_worker(shard, *worker);
    }
    if let Some(call) = waits {
        workers::forget_part(shard, id, call);
    }
    if let Some(link) = link {
        mcp::lose_link(shard, id, *link);
    }
    if let Some(line) = line {
        shm::lose_line(shard, line.execution, line.side);
    }
    for followed in stream.iter().flat_map(|stream| &stream.followed) {
        match followed.source {
            // No client resumes a file.
            Some(Source::Here(subscriber)) if is_output => _ = shard.unsubscribe(subscriber),
            Some(Source::Here(subscriber)) => shard.tell(Event::Lost(subscriber)),
            Some(Source::There(at)) => drop(shard.guests.peers.remotes_mut().remove(at)),
            None => {}
        }
    }
    if let Some(execution) = cancels {
        let _ = shard.cancel(execution); // It may have ended.
    }
}

/// True if the call is one part of a body that may hold several.
fn is_of_many(call: &ApiCall) -> bool {
    matches!(call, ApiCall::Deliver(deliver) if deliver.is_of_many)
}
