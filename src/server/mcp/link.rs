//! A connection's part in the protocol, and the messages that are written to it.

use smallvec::SmallVec;

use crate::base::{Handle, Instant, SubscriberId};
use crate::endpoint::StreamBody;
use crate::reactor::ConnectionId;
use crate::server::hub::Hub;
use crate::server::hub::connection::{Connection, Doing};
use crate::server::mcp::lines::Lines;
use crate::server::mcp::notifications::EventId;
use crate::server::mcp::sessions::SessionName;
use crate::wire::http1::{begin_chunk, end_chunk};
use crate::wire::sse;

/// The role of a connection in the protocol.
#[derive(Debug)]
pub(in crate::server) struct Link {
    pub(in crate::server::mcp) part: Part,
    /// The body of the stream that its answer has become.
    pub(in crate::server::mcp) body: Option<StreamBody>,
    /// The subscribers whose deliveries become messages on it.
    pub feeds: SmallVec<[SubscriberId; 1]>,
}

/// The messages that a connection carries.
#[derive(Debug)]
pub(in crate::server) enum Part {
    /// Those of one call.
    Call(Handle),
    /// Those of a session that belong to no call.
    Session(SessionName),
    /// Those of both directions, each on a line.
    Lines(Box<Lines>),
}

impl Link {
    pub(in crate::server::mcp) fn new(part: Part) -> Link {
        Link { part, body: None, feeds: SmallVec::new() }
    }

    /// True for a connection of lines.
    pub fn is_of_lines(&self) -> bool {
        matches!(self.part, Part::Lines(_))
    }

    pub(in crate::server::mcp) fn is_of_call(&self) -> bool {
        matches!(self.part, Part::Call(_))
    }

    pub(in crate::server::mcp) fn session(&self) -> Option<SessionName> {
        match self.part {
            Part::Session(name) => Some(name),
            Part::Call(_) | Part::Lines(_) => None,
        }
    }

    pub(in crate::server::mcp) fn lines(&mut self) -> Option<&mut Lines> {
        match &mut self.part {
            Part::Lines(lines) => Some(lines),
            Part::Call(_) | Part::Session(_) => None,
        }
    }
}

/// The result of writing a message of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::mcp) enum Written {
    /// It is queued on the client's connection.
    Queued,
    /// The client has no connection that takes it.
    Unheard,
}

/// Turns the connection's answer into a stream. [`Written::Unheard`] if that is impossible, or if
/// the stream has no body.
pub(in crate::server::mcp) fn begin_stream(
    hub: &mut Hub,
    id: ConnectionId,
    now: Instant,
) -> Written {
    let (access, tally) = hub.rules();
    let around = hub.around(id, (&access, &tally), now);
    let Some(connection) = hub.writable(id) else { return Written::Unheard };
    if connection.mcp.as_ref().is_none_or(|link| link.body.is_some()) {
        return Written::Unheard;
    }
    let body = connection.converse(|http, out| http.begin_stream(sse::MEDIA_TYPE, &around, out));
    if let Some(link) = &mut connection.mcp {
        link.body = Some(body);
    }
    match body {
        StreamBody::None => Written::Unheard,
        _ => Written::Queued,
    }
}

/// Ends the connection's part in a call or session, and lets its next request come.
pub(in crate::server::mcp) fn release(hub: &mut Hub, id: ConnectionId) {
    let Some(connection) = hub.writable(id) else { return };
    let Some(link) = connection.mcp.take() else { return };
    match link.body {
        Some(StreamBody::None) | None => {}
        Some(_) => connection.converse(|http, out| http.end_stream(out)),
    }
    connection.doing = Doing::Requests;
    hub.resume_later(id);
}

/// Writes a message in the format of its connection: a line or a server-sent event.
pub(in crate::server::mcp) fn write_event(
    hub: &mut Hub,
    id: ConnectionId,
    event_id: Option<EventId>,
    write: impl FnOnce(&mut Vec<u8>),
) {
    hub.borrow_large_buffer(id);
    let Some(connection) = hub.writable(id) else { return };
    let before = connection.own_bytes();
    let Some(link) = &connection.mcp else { return };
    let (is_lines, body) = (matches!(link.part, Part::Lines(_)), link.body);
    if is_lines {
        connection.write(|out| {
            write(out);
            out.push(b'\n');
        });
    } else if let Some(body @ (StreamBody::Chunked | StreamBody::UntilClose)) = body {
        write_framed(connection, body, |out| {
            if let Some(event_id) = event_id {
                event_id.write(out);
            }
            out.extend_from_slice(b"event: message\ndata: ");
            write(out);
            out.extend_from_slice(b"\n\n");
        });
    }
    let written = connection.own_bytes() - before;
    hub.note_queued(0, written, false);
}

/// Writes the time that a client has to wait before it reconnects.
pub(in crate::server::mcp) fn write_retry(hub: &mut Hub, id: ConnectionId) {
    let retry = hub.retry();
    let Some(connection) = hub.writable(id) else { return };
    let Some(body) = connection.mcp.as_ref().and_then(|link| link.body) else { return };
    write_framed(connection, body, |out| {
        sse::write_retry(out, retry);
        out.extend_from_slice(sse::END);
    });
}

/// Writes a keep-alive.
pub(in crate::server::mcp) fn write_keep_alive(hub: &mut Hub, id: ConnectionId) {
    let Some(connection) = hub.writable(id) else { return };
    let Some(body) = connection.mcp.as_ref().and_then(|link| link.body) else { return };
    write_framed(connection, body, |out| out.extend_from_slice(sse::KEEP_ALIVE));
}

/// Writes a part of a stream's body.
fn write_framed(connection: &mut Connection, body: StreamBody, write: impl FnOnce(&mut Vec<u8>)) {
    connection.write(|out| {
        let open = (body == StreamBody::Chunked).then(|| begin_chunk(out));
        write(out);
        if let Some(open) = open {
            end_chunk(out, open);
        }
    });
}

/// True if answers on this connection wait after notifications.
pub(in crate::server::mcp) fn is_settling(hub: &mut Hub, id: ConnectionId) -> bool {
    let link = hub.connection(id).and_then(|connection| connection.mcp.as_mut());
    let lines = link.and_then(|link| link.lines());
    lines.is_some_and(|lines| !lines.options.settle.is_zero())
}
