//! Notifications: the output of a tool, as messages to the client that has called it.
//!
//! Chunks that are available together share a notification. They are gathered here, in buffers that
//! all calls share. The notification is written when a chunk of another call comes, when it is
//! large enough, and before anything is sent. Only a connection's first buffer is allocated.
//!
//! The number of a notification is the tool's own progress, or else the chunk's number. Each number
//! is higher than the one before.

use std::rc::Rc;

use crate::base::{Handle, SubscriberId};
use crate::limits;
use crate::mcp::{Level, Version, notify};
use crate::server::hub::Hub;
use crate::server::mcp::call::{Asker, Outlet, Stage};
use crate::server::mcp::link::Written;
use crate::server::mcp::{Due, Mcp, McpReceiver, News, link};
use crate::shard::{Chunk, Delivery, Reported};
use crate::stream::{EndState, Gap, Kind, Progress};
use crate::trace::Transport;
use crate::wire::digits::{hex_digits, write_hex, write_u64};

/// Gathered chunks for one call.
#[derive(Debug)]
pub(in crate::server) struct Gathered {
    call: Option<Handle>,
    pieces: Vec<Piece>,
    payload: Vec<u8>,
    /// The tool's progress at the last of them, and the expected number of chunks.
    progress: Option<Progress>,
    chunks_expected: Option<u64>,
}

/// One gathered chunk. Its payload is the range `from..until`.
#[derive(Clone, Copy, Debug)]
struct Piece {
    seq: u64,
    kind: Kind,
    offset: u64,
    from: usize,
    until: usize,
}

impl Default for Gathered {
    fn default() -> Gathered {
        Gathered {
            call: None,
            pieces: Vec::with_capacity(limits::DELIVERY_CHUNKS_MAX as usize),
            payload: Vec::with_capacity(2 * limits::MCP_NOTIFICATION_BYTES_MAX),
            progress: None,
            chunks_expected: None,
        }
    }
}

impl Gathered {
    pub fn is_open(&self) -> bool {
        self.call.is_some()
    }

    /// True if it is for this call.
    pub fn is_of(&self, call: Handle) -> bool {
        self.call == Some(call)
    }

    /// Drops the chunks that were gathered for this call.
    pub fn drop_of(&mut self, call: Handle) {
        if self.call == Some(call) {
            self.call = None;
        }
    }

    fn open(&mut self, call: Handle) {
        self.call = Some(call);
        self.pieces.clear();
        self.payload.clear();
        self.progress = None;
        self.chunks_expected = None;
    }

    /// Adds a chunk. Returns `false` if it has no room, or if the notice is for another call.
    fn push(&mut self, call: Handle, chunk: &Chunk<'_>, progress: Option<Progress>) -> bool {
        let has_room = self.payload.len() + chunk.data.len() <= limits::MCP_NOTIFICATION_BYTES_MAX
            && self.pieces.len() < self.pieces.capacity();
        match self.call {
            Some(open) if open != call || !has_room => return false,
            Some(_) => {}
            None => self.open(call),
        }
        let from = self.payload.len();
        self.payload.extend_from_slice(chunk.data);
        let (seq, kind, offset, until) = (chunk.seq, chunk.kind, chunk.offset, self.payload.len());
        self.pieces.push(Piece { seq, kind, offset, from, until });
        self.progress = progress;
        self.chunks_expected = chunk.chunks_expected;
        true
    }

    fn chunks(&self) -> impl Iterator<Item = notify::ChunkNotification<'_>> + Clone {
        self.pieces.iter().map(|piece| notify::ChunkNotification {
            seq: piece.seq,
            kind: piece.kind.name(),
            offset: piece.offset,
            data: &self.payload[piece.from..piece.until],
        })
    }
}

impl Mcp {
    /// Handles a chunk for the receiver of a subscriber's deliveries.
    #[inline]
    pub fn hear_chunk(
        &mut self,
        hub: &mut Hub,
        receiver: McpReceiver,
        subscriber: SubscriberId,
        chunk: &Chunk<'_>,
        progress: Option<Progress>,
    ) {
        match receiver {
            McpReceiver::Output(handle) => {
                let Some(keep) = self.keeps.get_mut(handle) else { return };
                keep.take(chunk);
                if let Some(asked_count) = keep.ask_after(chunk.data.len()) {
                    hub.set_demand(subscriber, asked_count); // M6
                }
                if keep.has_readers() || keep.is_full() {
                    self.note(News::Output(handle));
                }
            }
            McpReceiver::Call(handle) if chunk.kind == Kind::Log => {
                self.hear_log(hub, handle, chunk)
            }
            // Structured content is sent as a whole, with the answer.
            McpReceiver::Call(handle)
                if chunk.kind == Kind::Structured && self.is_relayed(handle) =>
            {
                if let Some(call) = self.calls.get_mut(handle) {
                    call.reached.come_past(chunk);
                }
            }
            McpReceiver::Call(handle) => {
                hub.deliveries_mut().note(chunk.published_at, Transport::Mcp, 1);
                if !self.gathered.push(handle, chunk, progress) {
                    self.write_gathered(hub);
                    self.gathered.push(handle, chunk, progress);
                }
                let outlet = self.calls.get_mut(handle).and_then(|call| call.outlet.connection());
                let connection = outlet.and_then(|id| hub.connection(id));
                let is_urged = connection.is_some_and(|c| c.must_flush_after(chunk.data.len()));
                hub.note_queued(1, chunk.data.len(), is_urged);
            }
        }
    }

    /// True if this call runs a tool of another server.
    fn is_relayed(&self, handle: Handle) -> bool {
        let stage = self.calls.get(handle).map(|call| &call.stage);
        let Some(Stage::Runs(keep)) = stage else { return false };
        self.keeps.get(*keep).is_some_and(|keep| keep.tool.is_relayed)
    }

    /// Handles any other delivery.
    pub fn hear(
        &mut self,
        hub: &mut Hub,
        receiver: McpReceiver,
        subscriber: SubscriberId,
        delivery: &Delivery<'_>,
    ) {
        match receiver {
            McpReceiver::Output(handle) => {
                let Some(keep) = self.keeps.get_mut(handle) else { return };
                match delivery {
                    Delivery::End(ended) => keep.end(ended),
                    Delivery::Gap(gap) => {
                        keep.miss(gap);
                        if let Some(asked_count) = keep.ask_after(0) {
                            hub.set_demand(subscriber, asked_count); // M6
                        }
                    }
                    Delivery::Chunk(_) | Delivery::Progress(_) => return,
                }
                self.note(News::Output(handle));
            }
            McpReceiver::Call(handle) => match delivery {
                Delivery::Chunk(_) => {}
                Delivery::Gap(gap) => self.tell_gap(hub, handle, gap),
                Delivery::Progress(reported) => self.tell_progress(hub, handle, reported),
                Delivery::End(ended) => {
                    self.unfeed(hub, handle, subscriber, ended.end.state);
                    self.note(News::Call(handle));
                }
            },
        }
    }

    /// Handles the end of a subscriber that delivers to a call.
    fn unfeed(&mut self, hub: &mut Hub, handle: Handle, subscriber: SubscriberId, state: EndState) {
        let Some(call) = self.calls.get_mut(handle) else { return };
        if call.notifier != Some(subscriber) {
            return; // The client is back and has another subscriber.
        }
        call.notifier = None;
        let Some(id) = call.outlet.connection() else { return };
        call.is_cut_short = matches!(state, EndState::Detached { .. });
        if let Some(connection) = hub.connection(id)
            && let Some(link) = &mut connection.mcp
        {
            link.feeds.retain(|fed| *fed != subscriber);
        }
    }

    /// Writes the gathered chunks as a notification.
    pub(in crate::server) fn write_gathered(&mut self, hub: &mut Hub) {
        let Some(handle) = self.gathered.call.take() else { return };
        let notice = std::mem::replace(&mut self.gathered, EMPTY);
        self.write_notification(hub, handle, &notice);
        self.gathered = notice;
    }

    fn write_notification(&mut self, hub: &mut Hub, handle: Handle, notice: &Gathered) {
        let Some(call) = self.calls.get_mut(handle) else { return };
        let Some(last) = notice.pieces.last() else {
            let Some(progress) = notice.progress else { return };
            return self.tell_report(
                hub,
                handle,
                &Reported { progress, message: None, context: None },
            );
        };
        call.reached.come_to(last.seq, last.offset + (last.until - last.from) as u64);
        let version = call.context.version;
        let tokens = Rc::clone(&call.tokens);
        if let Some(token) = &tokens.partial {
            let seq = call.reached.partials;
            call.reached.partials += 1;
            self.notify(hub, handle, |out| {
                notify::partial_result(out, version, token, seq, notice.chunks());
            });
        }
        let Some(token) = &tokens.progress else { return };
        let Some(call) = self.calls.get_mut(handle) else { return };
        let (wanted, total) = match notice.progress {
            Some(progress) => (progress.progress, progress.total),
            None => (last.seq as f64, notice.chunks_expected.map(|count| count as f64)),
        };
        // JSON of a content block is not a readable text.
        let has_blocks = notice.pieces.iter().any(|piece| piece.kind == Kind::Content);
        let message = has_blocks.then_some("");
        let note = notify::ProgressNotification {
            total,
            message,
            percentage: notice.progress.and_then(|progress| progress.percentage()),
            has_full_chunks: call.context.wants_full_chunks,
            ..notify::ProgressNotification::new(token, call.reached.rising.next(wanted))
        };
        // A client that gets partial results is not sent the output twice.
        let is_whole = note.total.is_some_and(|total| wanted >= total);
        match tokens.partial.is_some() {
            true => self.tell_or_hold(hub, handle, is_whole, |out| {
                notify::progress(out, &note, [].into_iter());
            }),
            false => self.tell_or_hold(hub, handle, is_whole, |out| {
                notify::progress(out, &note, notice.chunks());
            }),
        }
    }

    /// Sends a progress notification in its order. On lines, a notification that reports completion
    /// first waits a moment, and is dropped when the answer comes. Some clients lose what comes
    /// right before the answer and report an error.
    fn tell_or_hold(
        &mut self,
        hub: &mut Hub,
        handle: Handle,
        is_whole: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.tell_held(hub, handle);
        let Some(call) = self.calls.get(handle) else { return };
        let outlet = call.outlet;
        if !matches!(outlet, Outlet::Lines(id) if is_whole && !link::is_settling(hub, id)) {
            self.notify(hub, handle, write);
            return;
        }
        let until = self.now + limits::MCP_WHOLE_HELD;
        let Some(call) = self.calls.get_mut(handle) else { return };
        write(&mut call.held);
        let armed = call.timer.take();
        let timer = self.set_timer(armed, Some((Due::Call(handle), until)));
        self.calls.get_mut(handle).expect("it was just there").timer = timer;
    }

    /// Sends the notification that was held back.
    pub(in crate::server) fn tell_held(&mut self, hub: &mut Hub, handle: Handle) {
        let Some(call) = self.calls.get_mut(handle) else { return };
        if !call.held.is_empty() {
            let held = std::mem::take(&mut call.held);
            let armed = call.timer.take();
            self.set_timer(armed, None);
            self.notify(hub, handle, |out| out.extend_from_slice(&held));
        }
    }

    /// Handles a report of progress. A number without a text waits for the chunk that may come with
    /// it.
    fn tell_progress(&mut self, hub: &mut Hub, handle: Handle, reported: &Reported<'_>) {
        let Reported { progress, message, context } = *reported;
        if message.is_none() && context.is_none() {
            if !self.gathered.is_of(handle) {
                self.write_gathered(hub);
                self.gathered.open(handle);
            }
            self.gathered.progress = Some(progress);
            return;
        }
        if self.gathered.is_of(handle) {
            self.write_gathered(hub);
        }
        self.tell_report(hub, handle, reported);
    }

    /// Sends a report of progress without chunks, unless it contains nothing new.
    fn tell_report(&mut self, hub: &mut Hub, handle: Handle, reported: &Reported<'_>) {
        let Reported { progress, message, context } = *reported;
        let Some(call) = self.calls.get_mut(handle) else { return };
        let tokens = Rc::clone(&call.tokens);
        let Some(token) = &tokens.progress else { return };
        let has_risen = call.reached.rising.last().is_none_or(|last| progress.progress > last);
        let says_more = message.is_some() || context.is_some();
        if says_more {
            let before = std::mem::replace(&mut call.reached.report_count, progress.report_count);
            if !has_risen && before == progress.report_count {
                return;
            }
        } else if !has_risen {
            return;
        }
        let note = notify::ProgressNotification {
            total: progress.total,
            message,
            percentage: progress.percentage(),
            context,
            ..notify::ProgressNotification::new(token, call.reached.rising.next(progress.progress))
        };
        let is_whole = note.total.is_some_and(|total| progress.progress >= total);
        self.tell_or_hold(hub, handle, is_whole, |out| {
            notify::progress(out, &note, [].into_iter());
        });
    }

    fn tell_gap(&mut self, hub: &mut Hub, handle: Handle, gap: &Gap) {
        if self.gathered.call == Some(handle) {
            self.write_gathered(hub);
        }
        self.tell_held(hub, handle); // Its number is below that of the gap.
        let Some(call) = self.calls.get_mut(handle) else { return };
        call.reached.seq = gap.to_seq;
        call.reached.bytes += gap.byte_count;
        let tokens = Rc::clone(&call.tokens);
        let Some(token) = &tokens.progress else { return };
        let last = call.reached.rising.last().unwrap_or(0.0);
        let note = notify::ProgressNotification {
            gap: Some(notify::GapNotification {
                from_seq: gap.from_seq,
                to_seq: gap.to_seq,
                chunk_count: gap.chunk_count,
                byte_count: gap.byte_count,
                reason: gap.reason.name(),
            }),
            ..notify::ProgressNotification::new(token, call.reached.rising.next(last))
        };
        let written = self.notify(hub, handle, |out| {
            notify::progress(out, &note, [].into_iter());
        });
        self.counts.gaps += u64::from(written == Written::Queued);
    }

    /// Handles a line of a log: a text, or an object with its level.
    fn hear_log(&mut self, hub: &mut Hub, handle: Handle, chunk: &Chunk<'_>) {
        let Some(call) = self.calls.get_mut(handle) else { return };
        let Some(least) = call.level else { return call.reached.come_past(chunk) };
        let text = String::from_utf8_lossy(chunk.data);
        let said: Option<serde_json::Value> = serde_json::from_str(&text).ok();
        let said = said.filter(|said| said.get("data").is_some());
        let member = |name: &str| said.as_ref()?.get(name)?.as_str();
        let level = member("level").and_then(Level::parse).unwrap_or(Level::Info);
        if level < least {
            return call.reached.come_past(chunk);
        }
        let data = match &said {
            Some(said) => notify::Data::Json(&said["data"]),
            None => notify::Data::Text(&text),
        };
        self.write_gathered(hub); // Earlier chunks come before this line.
        let Some(call) = self.calls.get_mut(handle) else { return };
        call.reached.come_past(chunk);
        self.notify(hub, handle, |out| notify::message(out, level, member("logger"), data, None));
    }

    /// Sends a notification like [`Mcp::say`], and counts it.
    pub(in crate::server::mcp) fn notify(
        &mut self,
        hub: &mut Hub,
        handle: Handle,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Written {
        let written = self.say(hub, handle, write);
        self.counts.notifications += u64::from(written == Written::Queued);
        written
    }

    /// Writes a message to the client of this call, after the notifications gathered for it.
    pub(in crate::server::mcp) fn say(
        &mut self,
        hub: &mut Hub,
        handle: Handle,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Written {
        if self.gathered.is_of(handle) {
            self.write_gathered(hub);
        }
        let Some(call) = self.calls.get_mut(handle) else { return Written::Unheard };
        let Some(id) = call.outlet.connection() else { return Written::Unheard };
        call.reached.count += 1;
        let has_ids = matches!(call.asker, Asker::Session(_));
        let shard = self.shard;
        let (reached, handle) = (call.reached, call.name.unwrap_or(handle));
        if let Outlet::Open(_) = call.outlet {
            call.outlet = Outlet::Stream(id);
            let primes = has_ids && call.context.version == Version::V2025_11_25;
            if link::begin_stream(hub, id, self.now) == Written::Unheard {
                return Written::Unheard;
            }
            if primes {
                link::write_event(
                    hub,
                    id,
                    Some(EventId { shard, handle, seq: 0, bytes: 0, count: 0 }),
                    |_| {},
                );
            }
        }
        let (seq, bytes, count) = (reached.seq, reached.bytes, reached.count);
        let event_id = has_ids.then_some(EventId { shard, handle, seq, bytes, count });
        link::write_event(hub, id, event_id, write);
        Written::Queued
    }

    /// Begins the stream of a call with an event that only has an id.
    pub(in crate::server) fn prime(&mut self, hub: &mut Hub, handle: Handle) {
        let Some(call) = self.calls.get_mut(handle) else { return };
        let Outlet::Open(id) = call.outlet else { return };
        call.outlet = Outlet::Stream(id);
        call.is_primed = true;
        let shard = self.shard;
        if link::begin_stream(hub, id, self.now) == Written::Queued {
            link::write_event(
                hub,
                id,
                Some(EventId { shard, handle, seq: 0, bytes: 0, count: 0 }),
                |_| {},
            );
        }
    }
}

/// The placeholder while a notice is being written.
const EMPTY: Gathered = Gathered {
    call: None,
    pieces: Vec::new(),
    payload: Vec::new(),
    progress: None,
    chunks_expected: None,
};

/// The exclusive bound of the numbers in event ids. No server reaches it within a thousand years.
const NUMBER_LIMIT: u64 = 1 << 53;

/// The id of an event: the call, the number of the message, and the position after it in the
/// output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct EventId {
    pub shard: u8,
    pub handle: Handle,
    pub seq: u64,
    pub bytes: u64,
    pub count: u64,
}

impl EventId {
    pub(in crate::server::mcp) fn write(self, out: &mut Vec<u8>) {
        let EventId { shard, handle, seq, bytes, count } = self;
        let (index, generation) = (handle.index, handle.generation);
        let [.., high, low] = hex_digits(shard.into());
        out.extend_from_slice(&[b'i', b'd', b':', b' ', high, low, b'.']);
        write_hex(out, index);
        out.push(b'.');
        write_hex(out, generation);
        for number in [seq, bytes, count] {
            out.push(b'-');
            write_u64(out, number);
        }
        out.push(b'\n');
    }

    /// Parses an id that a client has sent back.
    pub fn parse(text: &str) -> Option<EventId> {
        let mut parts = text.split('-');
        let mut name = parts.next()?.split('.');
        let mut hex = || u32::from_str_radix(name.next()?, 16).ok();
        let (shard, index, generation) = (hex()?, hex()?, hex()?);
        let shard = u8::try_from(shard).ok()?;
        // No valid number is larger. Later numbers continue from them.
        let mut number = || parts.next()?.parse().ok().filter(|number| *number < NUMBER_LIMIT);
        let (seq, bytes, count) = (number()?, number()?, number()?);
        let handle = Handle { index, generation };
        parts.next().is_none().then_some(EventId { shard, handle, seq, bytes, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_as_it_was_given() {
        let handle = Handle { index: 0x1f, generation: 7 };
        let id = EventId { shard: 3, handle, seq: 12, bytes: 3_456, count: 9 };
        let mut text = Vec::new();
        id.write(&mut text);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "id: 03.1f.7-12-3456-9\n");
        assert_eq!(EventId::parse(text["id: ".len()..].trim_end()), Some(id));
        let large = format!("0.1.7-{0}-{0}-{0}", u64::MAX);
        for wrong in ["", "0.1.7", "0.1-1-1-1", "0.1.7-1-1", "0.1.7-1-1-1-1", "0.x.7-1-1-1", &large]
        {
            assert_eq!(EventId::parse(wrong), None, "{wrong}");
        }
    }
}
