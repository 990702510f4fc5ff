//! Socket events: new connections, received bytes, and ends.

use crate::base::Instant;
use crate::endpoint::{Access, ApiError, Call, HttpConnection, Step, Surroundings};
use crate::engine::Event;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor, SocketEvent};
use crate::server::ServerShard;
use crate::server::hub::Serve;
use crate::server::hub::connection::{Doing, Timer};
use crate::server::hub::frames::Encoding;
use crate::server::hub::stream::Source;
use crate::server::hub::tls::Opened;
use crate::trace::Level;
use crate::wire::http1::Status;

impl Serve {
    /// Handles received bytes of HTTP.
    fn receive(&mut self, id: ConnectionId, bytes: &[u8], access: &Access, now: Instant) -> Step {
        let (around, others_bytes) = (self.around(access, now), self.body_bytes);
        let Some(connection) = self.writable(id) else { return Step::Wait };
        let others_bytes = others_bytes - connection.body_bytes;
        let mut step = connection.converse(|http, out| http.receive(bytes, &around, out));
        if others_bytes + connection.http.body_bytes() > limits::HTTP_BODIES_BYTES_MAX {
            let text = "the server is receiving too many bytes of other requests";
            let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", text);
            let error = error.retry_after(limits::BUSY_RETRY_AFTER);
            step = connection.converse(|http, out| http.give_up(&error, &around, out));
        }
        connection.body_bytes = connection.http.body_bytes();
        self.body_bytes = others_bytes + connection.body_bytes;
        step
    }
}

impl<R: Reactor + 'static> ServerShard<R> {
    /// Handles the socket events of this turn.
    pub(in crate::server) fn serve_sockets(&mut self) {
        let wall_us = self.reactor.wall_us();
        if let Some(serve) = &mut self.guests.serve {
            serve.set_date(wall_us);
        }
        self.take_socket_events();
        self.settle_outgoing();
    }

    fn take_socket_events(&mut self) {
        for _ in 0..limits::SOCKET_EVENTS_PER_TURN {
            let Some(event) = self.reactor.next_socket_event() else { return };
            self.worked = true;
            if let Some(outgoing) = &mut self.guests.outgoing
                && outgoing.hear(&event, self.now)
            {
                continue;
            }
            // An event may belong to a connection that was closed a moment ago.
            let Some(serve) = &mut self.guests.serve else { continue };
            match event {
                SocketEvent::Accepted { listener, connection, peer } => {
                    let is_at_door = serve.door == Some(listener);
                    self.admit(connection, peer, is_at_door);
                }
                SocketEvent::Received { connection: id, bytes } => {
                    let Some(connection) = serve.writable(id) else { continue };
                    if connection.mcp.as_ref().is_some_and(|link| link.is_of_lines()) {
                        let bytes = bytes.to_vec();
                        self.receive_lines(id, &bytes);
                        continue;
                    }
                    if let Doing::Closing = connection.doing {
                        continue; // It was told that no more input is read.
                    }
                    if let Doing::Door = connection.doing {
                        self.hear_at_door(id); // The content does not matter.
                        continue;
                    }
                    if let Some(session) = &mut connection.session {
                        let mut plain = std::mem::take(&mut self.guests.opened);
                        let opened = session.open(bytes, &mut plain);
                        self.receive_opened(id, opened, plain);
                        continue;
                    }
                    let step = serve.receive(id, bytes, &self.guests.access, self.now);
                    self.take_step(id, step);
                }
                SocketEvent::Ended { connection: id, error } => {
                    self.peer_ended(id, error.is_some());
                }
                SocketEvent::Writable { connection: id } => {
                    if let Some(connection) = serve.writable(id) {
                        connection.is_blocked = false;
                        serve.settle_place(id, self.now);
                    }
                }
                SocketEvent::Released { connection: id, socket } => self.send_off(id, socket),
                // Outgoing connections are handled above.
                SocketEvent::Connected { .. } => {}
            }
        }
    }

    /// Handles the result of decrypting received bytes.
    fn receive_opened(&mut self, id: ConnectionId, opened: Opened, mut bytes: Vec<u8>) {
        if !bytes.is_empty() {
            let serve = self.guests.serve.as_mut().expect("it has connections");
            let step = serve.receive(id, &bytes, &self.guests.access, self.now);
            self.take_step(id, step);
            bytes.clear();
        }
        self.guests.opened = bytes;
        match opened {
            Opened::More => {}
            Opened::Ready => self.counters.tls_handshakes += 1,
            Opened::Ended => self.peer_ended(id, false),
            Opened::Refused(reason) => self.break_off(id, &reason),
        }
    }

    /// Closes a connection whose bytes TLS has refused. Only the alert is sent.
    fn break_off(&mut self, id: ConnectionId, reason: &str) {
        self.counters.tls_refusals += 1;
        let serve = self.guests.serve.as_mut().expect("it has connections");
        let Some(connection) = serve.writable(id) else { return };
        let peer = connection.peer;
        connection.is_last = true;
        let is_between = matches!(connection.doing, Doing::Requests);
        self.guests.log.record(self.wall_us(), Level::Debug, "tls_refused", |record| {
            record.show("peer", &peer).show("reason", &reason);
        });
        if is_between {
            self.settle_connection(id); // It is closed once that was sent.
        } else if let Some(serve) = &mut self.guests.serve {
            serve.flush(&mut self.reactor, &mut self.counters, self.now);
            self.drop_connection(id);
        }
    }

    /// Lets the HTTP machine of a connection write, and continues with its next step.
    pub(in crate::server) fn converse(
        &mut self,
        id: ConnectionId,
        speak: impl FnOnce(&mut HttpConnection, &Surroundings<'_>, &mut Vec<u8>) -> Step,
    ) {
        let Some(serve) = &mut self.guests.serve else { return };
        let around = serve.around(&self.guests.access, self.now);
        let Some(connection) = serve.writable(id) else { return };
        let step = connection.converse(|http, out| speak(http, &around, out));
        self.take_step(id, step);
    }

    /// Carries out the steps of the HTTP machine of a connection until it waits.
    pub(in crate::server) fn take_step(&mut self, id: ConnectionId, mut step: Step) {
        let mut part_count = 0;
        loop {
            match step {
                Step::Wait => break,
                Step::Call(call) => {
                    if let Some(home) = self.home_of(id, &call) {
                        self.begin_move(id, call, home);
                        return;
                    }
                    part_count += u32::from(is_of_many(&call));
                    if !self.carry_out_call(id, call) {
                        break;
                    }
                }
                Step::Close => {
                    let serve = self.guests.serve.as_mut().expect("it has connections");
                    if let Some(connection) = serve.writable(id) {
                        connection.is_last = true;
                    }
                    break;
                }
            }
            let serve = self.guests.serve.as_mut().expect("it has connections");
            let around = serve.around(&self.guests.access, self.now);
            let Some(connection) = serve.writable(id) else { return };
            if connection.own_bytes() > limits::HTTP_ANSWERS_BYTES_MAX {
                // A client that sends requests and reads no replies waits.
                connection.is_full = true;
                break;
            }
            if part_count == limits::PARTS_PER_TURN {
                self.pause_parts(id);
                return;
            }
            step = connection.converse(|http, out| http.resume(&around, out));
        }
        self.settle_connection(id);
    }

    /// Interrupts a long body, so that other connections get their turn first.
    fn pause_parts(&mut self, id: ConnectionId) {
        let now = self.now;
        let serve = self.guests.serve.as_mut().expect("it has connections");
        serve.set_timer(id, Some((Timer::NextParts, now)));
        self.reactor.set_receiving(id, false);
    }

    fn peer_ended(&mut self, id: ConnectionId, is_broken: bool) {
        let serve = self.guests.serve.as_mut().expect("it has connections");
        let Some(connection) = serve.connection(id) else { return };
        if connection.mcp.as_ref().is_some_and(|link| link.is_of_lines()) {
            self.end_lines(id, is_broken);
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
            _ if is_broken => self.drop_connection(id),
            Doing::Requests => self.converse(id, |http, around, out| http.end_input(around, out)),
            Doing::Result
            | Doing::Elsewhere
            | Doing::Joining
            | Doing::Stream
            | Doing::Mcp
            | Doing::Door
            | Doing::Part(_)
            | Doing::Moving(_)
            | Doing::Closing => {
                self.drop_connection(id);
            }
        }
    }

    /// Closes a connection now. Its subscribers count as lost: under `block` their places are kept
    /// for a while.
    pub(in crate::server) fn drop_connection(&mut self, id: ConnectionId) {
        let Some(serve) = &mut self.guests.serve else { return };
        let Some(mut connection) = serve.forget(id) else { return };
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
        connection.recycle(&mut serve.spare);
        self.reactor.close(id);
        self.log_connection("connection_closed", peer);
        if let Some(worker) = worker {
            self.lose_worker(*worker);
        }
        if let Some(call) = waits {
            self.forget_part(id, call);
        }
        if let Some(link) = link {
            self.lose_link(id, *link);
        }
        if let Some(line) = line {
            self.lose_line(line.execution, line.side);
        }
        for followed in stream.iter().flat_map(|stream| &stream.followed) {
            match followed.source {
                // No client resumes a file.
                Some(Source::Here(subscriber)) if is_output => _ = self.unsubscribe(subscriber),
                Some(Source::Here(subscriber)) => self.tell(Event::Lost(subscriber)),
                Some(Source::There(at)) => self.lose_remote(at),
                None => {}
            }
        }
        if let Some(execution) = cancels {
            let _ = self.cancel(execution); // It may have ended.
        }
    }
}

/// True if the call is one part of a body that may hold several.
fn is_of_many(call: &Call) -> bool {
    matches!(call, Call::Deliver(deliver) if deliver.is_of_many)
}
