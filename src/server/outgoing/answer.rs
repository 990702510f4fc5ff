//! The traffic of a connection: the request, as far as the kernel takes it, and the answer.

use std::io::IoSlice;

use crate::agent::NetFaultKind;
use crate::base::Instant;
use crate::limits;
use crate::reactor::{ConnectionId, IoError, Reactor};
use crate::server::outgoing::ResponseEvent;
use crate::server::outgoing::client::{Act, Outgoing};
use crate::server::outgoing::exchange::{Exchange, Spare, Stage};
use crate::server::outgoing::line::{Doing, Line};
use crate::wire::http1::{BodyLength, Refusal, ResponseError, ResponseInfo, ResponsePart};

/// The maximum length of a redirect's `Location` in an error text.
const LOCATION_CHARS_MAX: usize = 200;

/// The result of reading from an answer.
enum Read {
    More,
    /// The answer is complete.
    Whole,
    Refused(NetFaultKind, String),
}

impl Outgoing {
    /// Sends as much of the pending TLS records and the request as the kernel takes.
    pub(in crate::server) fn send(&mut self, connection: ConnectionId, reactor: &mut impl Reactor) {
        let place = self.lines.get_mut(connection.0.index as usize);
        let Some(line) = place.and_then(Option::as_deref_mut) else { return };
        if line.id != connection {
            return;
        }
        line.is_touched = false;
        if line.is_blocked || line.is_broken {
            return;
        }
        let mut exchange = match line.doing {
            Doing::Carrying(id) => self.exchanges.get_mut(id.0),
            Doing::Dialling(_) | Doing::Shaking(_) | Doing::Draining | Doing::Kept => None,
        };
        loop {
            if let Some(session) = &mut line.session {
                match session.send(|bytes| reactor.send(connection, &[IoSlice::new(bytes)])) {
                    Ok(true) => {}
                    Ok(false) => {
                        line.is_blocked = true;
                        return;
                    }
                    Err(_) => {
                        line.is_broken = true; // The end is reported behind earlier bytes.
                        return;
                    }
                }
            }
            let Some(exchange) = exchange.as_deref_mut().filter(|_| !line.is_sent) else { return };
            let rest = &exchange.request[line.sent_bytes..];
            let sent_bytes = match &mut line.session {
                Some(session) => session.seal(rest),
                None => match reactor.send(connection, &[IoSlice::new(rest)]) {
                    Ok(sent_bytes) => {
                        line.is_blocked = sent_bytes < rest.len();
                        sent_bytes
                    }
                    Err(_) => {
                        line.is_broken = true;
                        return;
                    }
                },
            };
            self.counters.model_bytes_sent += sent_bytes as u64;
            exchange.was_sent |= sent_bytes > 0;
            line.sent_bytes += sent_bytes;
            line.is_sent = line.sent_bytes == exchange.request.len();
            if line.is_blocked {
                return;
            }
        }
    }

    pub(in crate::server) fn on_received(
        &mut self,
        connection: ConnectionId,
        bytes: &[u8],
        now: Instant,
    ) {
        let line = self.lines[connection.0.index as usize].as_deref_mut().expect("it is there");
        let Some(session) = &mut line.session else {
            self.read(connection, bytes, now);
            return;
        };
        let mut plain = std::mem::take(&mut self.opened);
        let opened = session.open(bytes, &mut plain);
        if opened.is_ready
            && let Doing::Shaking(id) = line.doing
        {
            self.counters.model_connections_opened += 1;
            self.carry(connection, id, now);
        }
        self.touch(connection); // TLS may have records to send.
        if !plain.is_empty() {
            self.read(connection, &plain, now);
            plain.clear();
        }
        self.opened = plain;
        if let Some(reason) = opened.refusal {
            self.on_distrusted(connection, &reason);
        } else if opened.has_ended && self.line(connection).is_some() {
            self.on_ended(connection, None, now);
        }
    }

    /// Handles a fault of TLS: fails the exchange, or closes the connection if it has none.
    fn on_distrusted(&mut self, connection: ConnectionId, reason: &str) {
        let Some(line) = self.line(connection) else { return };
        let is_shaking = matches!(line.doing, Doing::Shaking(_));
        match line.exchange() {
            Some(id) => {
                self.counters.model_connections_failed += u64::from(is_shaking);
                self.fail(id, NetFaultKind::Tls, reason);
            }
            None => self.remove_line(connection),
        }
    }

    /// Reads decrypted bytes of an answer.
    fn read(&mut self, connection: ConnectionId, mut input: &[u8], now: Instant) {
        let place = self.lines.get_mut(connection.0.index as usize);
        let Some(line) = place.and_then(Option::as_deref_mut) else { return };
        self.counters.model_bytes_received += input.len() as u64;
        let id = match line.doing {
            Doing::Carrying(id) => id,
            Doing::Draining => return self.drain(connection, input, now),
            // Bytes without a request.
            Doing::Kept => return self.remove_line(connection),
            Doing::Dialling(_) | Doing::Shaking(_) => {
                unreachable!("its TLS session handles the bytes")
            }
        };
        let exchange = self.exchanges.get_mut(id.0).expect("an exchange outlives its connections");
        line.has_answered = true;
        exchange.was_received = true;
        let read = read_answer(line, exchange, &mut input, &mut self.spare, now);
        let (has_head, is_sent) = (exchange.stage == Stage::Answered, line.is_sent);
        if has_head && is_sent && !exchange.request.is_empty() {
            exchange.request = Vec::new(); // It is never sent again.
            self.arm(id);
        }
        self.list(id);
        match read {
            Read::More => {}
            Read::Refused(kind, text) => self.fail(id, kind, &text),
            Read::Whole => {
                // Excess bytes were not requested: the connection is not used again.
                if input.is_empty() {
                    self.exchange(id).expect("it was just there").line = None;
                    self.keep(connection, now);
                }
                self.end(id, Ok(()));
            }
        }
    }

    /// Discards the rest of an answer.
    fn drain(&mut self, connection: ConnectionId, mut input: &[u8], now: Instant) {
        let line = self.line(connection).expect("it was just there");
        line.drained_bytes += input.len();
        let is_whole = loop {
            match line.reader.read(&mut input) {
                Ok(Some(ResponsePart::End)) => break input.is_empty(),
                Ok(Some(_)) => {}
                Ok(None) if line.drained_bytes <= limits::MODEL_DRAIN_BYTES_MAX => return,
                Ok(None) | Err(_) => break false,
            }
        };
        match is_whole {
            true => self.keep(connection, now),
            false => self.remove_line(connection),
        }
    }

    /// Keeps a connection for the next request, if it can carry one.
    fn keep(&mut self, connection: ConnectionId, now: Instant) {
        let is_full = self.kept_count == limits::MODEL_KEPT_MAX;
        let line = self.line(connection).expect("it was just there");
        let has_ended = line.session.as_ref().is_some_and(|session| session.has_ended());
        let is_sent = line.is_sent && !line.is_blocked && !line.is_broken;
        let is_good = line.keeps_alive && is_sent && !has_ended;
        if is_full || !is_good {
            self.remove_line(connection);
            return;
        }
        let was_drained = line.doing == Doing::Draining;
        line.doing = Doing::Kept;
        let site = line.site;
        self.drained_count -= usize::from(was_drained);
        let site = self.sites.get_mut(site).expect("it has users");
        site.kept.push(connection);
        self.kept_count += 1;
        let oldest = (site.kept.len() > limits::MODEL_KEPT_PER_SITE).then(|| site.kept[0]);
        self.arm_line(connection, now + limits::MODEL_KEPT_IDLE);
        self.acts.push_back(Act::Receive(connection, true)); // To notice its end.
        if let Some(oldest) = oldest {
            self.remove_line(oldest);
        }
    }

    /// Handles the end of a connection, or the failure of a connection attempt.
    pub(in crate::server) fn on_ended(
        &mut self,
        connection: ConnectionId,
        error: Option<IoError>,
        now: Instant,
    ) {
        let line = self.lines[connection.0.index as usize].as_deref_mut().expect("it is there");
        let id = match line.doing {
            Doing::Kept | Doing::Draining => return self.remove_line(connection),
            Doing::Dialling(id) => {
                let error = error.unwrap_or(IoError(libc::ECONNRESET));
                return self.on_refused(connection, id, error);
            }
            Doing::Shaking(id) => {
                self.counters.model_connections_failed += 1;
                let text = match error {
                    None => "the connection ended during the TLS handshake".to_owned(),
                    Some(error) => {
                        format!("the connection broke during the TLS handshake: {error}")
                    }
                };
                return self.fail(id, NetFaultKind::Connect, &text);
            }
            Doing::Carrying(id) => id,
        };
        // With TLS, a cut connection cannot make a part of an answer look like the whole.
        let is_cut = line.session.as_ref().is_some_and(|session| !session.has_ended());
        let is_clean = error.is_none() && !line.is_broken && !is_cut;
        let is_whole = matches!(line.reader.finish(), Ok(Some(ResponsePart::End)));
        let exchange = self.exchanges.get_mut(id.0).expect("an exchange outlives its connections");
        if is_whole && is_clean {
            self.end(id, Ok(()));
        } else if error.is_none() && line.was_used && !line.has_answered && !exchange.was_repeated {
            // The server closed it while it was kept, as it may at any time (RFC 9112, 9.3.1). A
            // reset is different: it may have destroyed an answer.
            exchange.was_repeated = true;
            exchange.stage_at = now;
            exchange.line = None;
            self.counters.model_exchanges_repeated += 1;
            self.remove_line(connection);
            self.locate(id, now);
        } else {
            let when = match (line.has_answered, exchange.stage) {
                (false, _) => "before it answered",
                (true, Stage::Answered) => "in the middle of its answer",
                (true, _) => "in the middle of the head of its answer",
            };
            let text = match error {
                None => format!("the server closed the connection {when}"),
                Some(error) => format!("the connection broke {when}: {error}"),
            };
            self.fail(id, NetFaultKind::Broken, &text);
        }
    }
}

/// Reads as much of an answer as the input holds.
fn read_answer(
    line: &mut Line,
    exchange: &mut Exchange,
    input: &mut &[u8],
    spare: &mut Spare,
    now: Instant,
) -> Read {
    let refused = loop {
        match line.reader.read(input) {
            Ok(None) => break None,
            Ok(Some(ResponsePart::End)) => return Read::Whole,
            Ok(Some(ResponsePart::Body(bytes))) => {
                if exchange.body.capacity() == 0 {
                    exchange.body = spare.take();
                }
                exchange.body.extend_from_slice(bytes);
            }
            Ok(Some(ResponsePart::Head(head))) => {
                if let Some((kind, text)) = objection(&head) {
                    return Read::Refused(kind, text);
                }
                line.keeps_alive = head.keeps_alive && head.body != BodyLength::UntilClose;
                exchange.head = Some(heard(&head));
                exchange.stage = Stage::Answered;
                line.reader.limit_body(limits::MODEL_BODY_BYTES_MAX);
            }
            Err(error) => break Some(error),
        }
    };
    if exchange.stage == Stage::Answered {
        exchange.stage_at = now;
    }
    match refused {
        None => Read::More,
        Some(error) => Read::Refused(kind_of(error), error.to_string()),
    }
}

fn heard(head: &ResponseInfo<'_>) -> ResponseEvent {
    let text = |name| head.headers.texts(name).next().map(Box::from);
    ResponseEvent::Head {
        status: head.status.code(),
        retry_after: text("retry-after"),
        retry_after_ms: text("retry-after-ms"),
        content_type: text("content-type"),
    }
}

/// Returns the fault of an answer that HTTP allows but this client does not: a redirect or a
/// compressed body.
fn objection(head: &ResponseInfo<'_>) -> Option<(NetFaultKind, String)> {
    let code = head.status.code();
    if (300..400).contains(&code) {
        let location = head.headers.texts("location").next().unwrap_or("nowhere");
        let location: String = location.chars().take(LOCATION_CHARS_MAX).collect();
        let text = format!(
            "it answers {code} with a redirect to {location:?}: redirects are not followed, use \
             that address instead"
        );
        return Some((NetFaultKind::Redirected, text));
    }
    let mut codings = head.headers.all("content-encoding");
    let coding = codings.find(|coding| !coding.eq_ignore_ascii_case(b"identity"))?;
    let coding = String::from_utf8_lossy(&coding[..coding.len().min(LOCATION_CHARS_MAX)]);
    let text = format!("its answer is compressed ({coding:?}), which was not requested");
    Some((NetFaultKind::Compressed, text))
}

fn kind_of(error: ResponseError) -> NetFaultKind {
    match error {
        ResponseError::Malformed(
            Refusal::BodyTooLong
            | Refusal::HeadTooLong
            | Refusal::HeaderTooLong
            | Refusal::TooManyHeaders
            | Refusal::FirstLineTooLong
            | Refusal::ExtensionsTooLong
            | Refusal::TrailersTooLong,
        ) => NetFaultKind::TooLong,
        ResponseError::Truncated => NetFaultKind::Broken,
        _ => NetFaultKind::Malformed,
    }
}
