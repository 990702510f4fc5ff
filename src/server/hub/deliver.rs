//! Delivery to connections, and the flush that sends it.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use smallvec::SmallVec;

use crate::base::{Instant, SubscriberId};
use crate::engine::Event;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor, SendError};
use crate::server::ServerShard;
use crate::server::guests::ServedRun;
use crate::server::hub::connection::{Connection, Doing, Flushed, Timer};
use crate::server::hub::frames::{ENCODINGS, Encoding, Frame, Key};
use crate::server::hub::stream::{Source, Stream};
use crate::server::hub::{Hub, stream};
use crate::server::shm::lines::Descriptors;
use crate::server::streams::front::Next;
use crate::shard::{Chunk, Delivery, Names};
use crate::stream::{EndState, Outcome};
use crate::trace::{Counters, Transport, probe};
use crate::wire::sse;

/// The context of the delivery of a chunk, besides the tables.
pub(in crate::server) struct Giving<'a, R> {
    pub reactor: &'a mut R,
    pub counters: &'a mut Counters,
    pub now: Instant,
    pub names: &'a Names,
    /// True if the execution has no other follower.
    pub is_alone: bool,
    /// True if the chunk comes from its ring. The age of those on disk is no latency.
    pub is_recent: bool,
}

impl Hub {
    /// Forgets the encoded frames, because the next chunk is another one.
    #[inline]
    pub fn next_chunk(&mut self) {
        if self.current.iter().any(Option::is_some) {
            self.current = [None; ENCODINGS];
        }
    }

    /// True if enough is queued for a send.
    #[inline]
    pub fn is_flush_due(&self) -> bool {
        self.queued.events >= limits::FLUSH_EVENTS
            || self.queued.bytes >= limits::FLUSH_BYTES
            || self.is_flush_urged
    }

    /// Queues a chunk for a connection that follows this source.
    #[inline]
    pub fn give<R: Reactor>(
        &mut self,
        id: ConnectionId,
        source: Source,
        chunk: &Chunk<'_>,
        mut giving: Giving<'_, R>,
    ) {
        let giving = &mut giving;
        let connection = self.connection(id).filter(|connection| !connection.is_aborted);
        let stream = connection.and_then(|connection| connection.stream.as_ref());
        let Some((encoding, is_plain, is_apart)) =
            stream.map(|stream| (stream.encoding, stream.is_plain(), stream.is_apart()))
        else {
            return;
        };
        if giving.is_recent && !giving.names.is_replica {
            self.deliveries.note(chunk.published_at, Transport::Stream, 1);
        }
        if giving.is_alone || is_apart {
            let is_shared = encoding == Encoding::Durable && giving.is_recent && !giving.is_alone;
            if !(is_shared && self.give_shared(id, source, chunk, giving)) {
                self.give_alone(id, source, chunk, giving);
            }
            return;
        }
        let frame = match self.current[encoding as usize] {
            Some(frame) => frame,
            None => self.frame(encoding, chunk, giving),
        };
        if !is_plain && let Some(connection) = &mut self.connections[id.0.index as usize] {
            connection.borrow_large_buffer(&mut self.spare);
        }
        let connection = self.writable(id).expect("it was just there");
        let mut stream = connection.stream.take().expect("as above");
        stream.count(source, chunk);
        let is_urged = connection.must_flush_after(frame.length as usize);
        let from = stream::give(connection, &stream, frame);
        connection.stream = Some(stream);
        self.is_flush_urged |= is_urged;
        if let Some(from) = from {
            self.frames.queue(from);
        }
    }

    /// Queues a chunk for a reader of a stream, with the bytes that others at the same position
    /// get. Returns false if it needs bytes of its own.
    fn give_shared<R: Reactor>(
        &mut self,
        id: ConnectionId,
        source: Source,
        chunk: &Chunk<'_>,
        giving: &mut Giving<'_, R>,
    ) -> bool {
        let connection = self.connection(id).expect("the caller has found it");
        let stream = connection.stream.as_ref().expect("as above");
        let reader = stream.reader.as_ref().expect("this encoding has one");
        let Some(event) = reader.shared(chunk, stream.body) else { return false };
        let key = Key { nonce: chunk.execution.nonce, seq: chunk.seq, encoding: Encoding::Durable };
        let frame = match self.event.filter(|given| (given.0, given.1) == (key, event)) {
            Some((_, _, frame)) if self.frames.has(&frame) => {
                giving.counters.frames_reused += 1;
                frame
            }
            _ => {
                self.frames.encode_with(|out| event.write(chunk.data, out));
                giving.counters.frames_encoded += 1;
                let frame = self.keep(key, giving);
                self.event = Some((key, event, frame));
                frame
            }
        };
        self.count_queued(chunk, Encoding::Durable, frame.length as usize);
        let connection = self.writable(id).expect("it was just there");
        connection.push_frame(frame.at, frame.length as usize);
        let is_urged = connection.must_flush_after(frame.length as usize);
        let stream = connection.stream.as_mut().expect("as above");
        stream.count(source, chunk);
        stream.reader.as_mut().expect("as above").pass(&event);
        let is_whole = stream.is_whole();
        if is_whole && self.whole.last() != Some(&id) {
            self.whole.push(id);
        }
        self.is_flush_urged |= is_urged;
        self.frames.queue(frame.at);
        true
    }

    /// Keeps the frame that was encoded last.
    fn keep<R: Reactor>(&mut self, key: Key, giving: &mut Giving<'_, R>) -> Frame {
        self.frames.keep(key).unwrap_or_else(|_| {
            self.flush(giving.reactor, giving.counters, giving.now);
            self.current = [None; ENCODINGS];
            self.frames.keep(key).expect("nothing is queued any more")
        })
    }

    /// Writes a chunk for a connection that shares it with no other: without the cache, into a
    /// buffer that is warm.
    fn give_alone<R: Reactor>(
        &mut self,
        id: ConnectionId,
        source: Source,
        chunk: &Chunk<'_>,
        giving: &mut Giving<'_, R>,
    ) {
        giving.counters.frames_encoded += 1;
        if let Some(connection) = &mut self.connections[id.0.index as usize]
            && !(giving.is_recent && connection.has_room_for(chunk.data.len()))
        {
            connection.borrow_large_buffer(&mut self.spare);
        }
        let connection = self.writable(id).expect("it was just there");
        let mut stream = connection.stream.take().expect("as above");
        stream.count(source, chunk);
        let before = connection.own_bytes();
        connection.write(|out| stream.write_chunk(out, chunk, giving.names));
        let written = connection.own_bytes() - before;
        // The bytes of several followers are counted once, so that each has a limit of its own.
        let is_one_of_many = giving.is_recent && !giving.is_alone;
        let is_urged = connection.must_flush_after(written)
            || (is_one_of_many && connection.own_bytes() >= limits::FLUSH_BYTES / 4);
        let (is_whole, encoding) = (stream.is_whole(), stream.encoding);
        connection.stream = Some(stream);
        if is_whole && self.whole.last() != Some(&id) {
            self.whole.push(id);
        }
        self.is_flush_urged |= is_urged;
        match giving.is_recent {
            true => self.count_queued(chunk, encoding, written),
            // Each reader of the disk has chunks of its own.
            false => self.note_queued(1, written, false),
        }
    }

    /// Counts a queued chunk, unless another connection was just given it in this encoding.
    fn count_queued(&mut self, chunk: &Chunk<'_>, encoding: Encoding, bytes: usize) {
        let key = Key { nonce: chunk.execution.nonce, seq: chunk.seq, encoding };
        if self.counted.replace(key) != Some(key) {
            self.queued.events += 1;
            self.queued.bytes += bytes;
        }
    }

    /// Returns the chunk in this encoding: the frame that another connection got, or a new one.
    fn frame<R: Reactor>(
        &mut self,
        encoding: Encoding,
        chunk: &Chunk<'_>,
        giving: &mut Giving<'_, R>,
    ) -> Frame {
        let key = Key { nonce: chunk.execution.nonce, seq: chunk.seq, encoding };
        let frame = match self.frames.find(&key) {
            Some(frame) => {
                giving.counters.frames_reused += 1;
                frame
            }
            None => {
                let execution = giving.names.execution.as_str();
                let bytes = chunk.offset + chunk.data.len() as u64;
                let cursor = sse::Cursor {
                    execution,
                    seq: chunk.seq,
                    bytes,
                    chunks: None,
                    has_ended: false,
                };
                self.frames.encode(encoding, &giving.names.event(chunk), &cursor);
                giving.counters.frames_encoded += 1;
                self.keep(key, giving)
            }
        };
        self.count_queued(chunk, encoding, frame.length as usize);
        self.current[encoding as usize] = Some(frame);
        frame
    }

    /// Delivers to a subscriber of this shard, as [`Hub::tell`] does.
    pub fn tell_here(
        &mut self,
        id: ConnectionId,
        subscriber: SubscriberId,
        run: Option<&ServedRun>,
        delivery: &Delivery<'_>,
    ) {
        let Some(run) = run else {
            unreachable!("an execution is released after its subscribers' ends");
        };
        self.tell(id, Source::Here(subscriber), &run.names, run.head_seq(), delivery);
    }

    /// Writes an event other than a chunk to a connection that follows this source. `head_seq` is
    /// the newest chunk, for the end of the execution.
    pub fn tell(
        &mut self,
        id: ConnectionId,
        source: Source,
        names: &Names,
        head_seq: u64,
        delivery: &Delivery<'_>,
    ) {
        let Some(connection) = self.writable(id).filter(|connection| !connection.is_aborted) else {
            return; // The stream was cut off. It gets no more events and no end.
        };
        let Some(mut stream) = connection.stream.take() else { return };
        let Some(followed) = stream.part(source) else {
            connection.stream = Some(stream);
            return;
        };
        let mut has_id = true;
        match delivery {
            Delivery::Gap(gap) => {
                followed.seq = gap.to_seq;
                followed.seen.chunks += gap.chunk_count;
                followed.seen.bytes += gap.byte_count;
            }
            Delivery::End(ended) => {
                followed.source = None;
                match ended.end.state {
                    // No client resumes after this.
                    EndState::Ended(_) => (followed.seq, followed.has_ended) = (head_seq, true),
                    EndState::Detached { .. } => has_id = stream.is_combined,
                }
                stream.open_count -= 1;
            }
            Delivery::Chunk(_) | Delivery::Progress(_) => {}
        }
        connection.write(|out| stream.write_event(out, &delivery.event(names), has_id));
        let is_urged = connection.is_nearly_full();
        let next = stream.next_behind(delivery);
        if next == Next::Cut {
            connection.is_last = true;
            connection.is_aborted = true;
        } else if next == Next::Wait {
            stream.followed.clear();
            self.idle_threads.push(id);
        } else if stream.open_count == 0 && stream.is_whole() || stream.is_lost() {
            self.whole.push(id);
        } else if stream.open_count == 0 {
            connection.converse(|http, out| http.end_stream(out));
            connection.doing = Doing::Requests;
            self.answered.push(id);
            return;
        }
        let connection = self.connection(id).expect("as above");
        connection.stream = Some(stream);
        self.is_flush_urged |= is_urged;
    }

    /// Sends all pending output, with one send for each connection.
    pub fn flush<R: Reactor>(&mut self, reactor: &mut R, counters: &mut Counters, now: Instant) {
        self.send_touched(reactor, counters, now);
        while let Some(index) = self.rounds.next() {
            self.send(index, reactor, counters, now);
        }
        self.begin_round();
        self.end_round();
        self.is_flush_urged = false;
    }

    /// Sends the output of a turn at its end, for the followers in the line to the first ones only.
    /// Sends everything if the server drains, or if a connection has as much to send as may be
    /// under way on it.
    pub fn flush_turn<R: Reactor>(
        &mut self,
        reactor: &mut R,
        counters: &mut Counters,
        now: Instant,
    ) {
        if self.is_flush_urged || self.is_draining {
            return self.flush(reactor, counters, now);
        }
        if !self.touched.is_empty() {
            self.rounds.be_brief();
        }
        self.send_touched(reactor, counters, now);
        while self.rounds.may_send() {
            if self.rounds.is_between() {
                self.begin_round();
            }
            let index = self.rounds.next().expect("it may send to one");
            if self.send(index, reactor, counters, now) {
                self.rounds.count_send(|| reactor.may_have_news());
            }
            if self.rounds.is_between() {
                self.end_round();
            }
        }
        if self.rounds.is_empty() {
            self.begin_round();
            self.end_round();
        }
    }

    /// Ends the flushes of a turn.
    pub fn end_turn(&mut self) {
        self.rounds.end_turn();
    }

    /// True if followers wait in the line.
    pub fn has_waiting_followers(&self) -> bool {
        !self.rounds.is_empty()
    }

    fn begin_round(&mut self) {
        self.frames.begin_round();
        self.rounds.begin(self.queued, self.deliveries.noted_count());
    }

    fn end_round(&mut self) {
        self.frames.end_round();
        self.queued = self.rounds.end(self.queued);
    }

    fn send_touched<R: Reactor>(&mut self, reactor: &mut R, counters: &mut Counters, now: Instant) {
        for at in 0..self.touched.len() {
            self.send(self.touched[at], reactor, counters, now);
        }
        self.touched.clear();
    }

    /// Sends the pending output of one connection. Returns false if it was not in a list.
    fn send<R: Reactor>(
        &mut self,
        index: u32,
        reactor: &mut R,
        counters: &mut Counters,
        now: Instant,
    ) -> bool {
        let Some(connection) = self.connections[index as usize].as_deref_mut() else {
            return false;
        };
        if !std::mem::replace(&mut connection.is_touched, false) {
            return false; // R1
        }
        if connection.is_abandoned {
            // An empty output does not mean room. It takes nothing until it is dropped.
            return false;
        }
        connection.flushed();
        let id = connection.id;
        let was_blocked = connection.is_blocked;
        let mut descriptors = connection.descriptors.take();
        let flushed = connection.flush(&self.frames, &mut self.spare, now, |slices| {
            counters.sends += 1;
            let sent_bytes = match &descriptors {
                None => reactor.send(id, slices)?,
                Some(descriptors) => send_along(reactor, id, slices, descriptors)?,
            };
            if sent_bytes > 0 {
                descriptors = None; // The sent descriptors are closed here.
            }
            probe!(send, id.0.index, sent_bytes);
            Ok::<_, SendError>(sent_bytes)
        });
        connection.descriptors = descriptors;
        let is_broken = flushed == Flushed::Broken;
        let takes = match flushed {
            Flushed::All => true,
            Flushed::Cut => {
                self.moved.extend(connection.moved(was_blocked, now));
                self.waiting_line.leave(index); // It has a reply to read first.
                false
            }
            Flushed::Broken => {
                connection.abandon(&mut self.spare);
                self.broken.push(id);
                false
            }
        };
        let aside_bytes = if takes { 0 } else { connection.waiting_bytes() };
        self.aside_bytes = self.aside_bytes + aside_bytes - connection.aside_bytes;
        connection.aside_bytes = aside_bytes;
        if self.aside_bytes > limits::CARRIES_BYTES_MAX && aside_bytes > 0 {
            // The bytes put aside are at their limit, so this connection goes.
            self.broken.push(id);
        }
        if takes && std::mem::take(&mut connection.is_full) {
            self.answered.push(id);
        }
        if takes != connection.takes {
            connection.takes = takes;
            self.free_workers += u32::from(takes && connection.worker.is_some());
            say_demand(connection, &mut self.demands, &mut self.released);
        }
        if connection.is_last && (takes || connection.is_aborted) && !is_broken {
            self.finished.push(id);
        }
        true
    }

    /// Sends a keep-alive on a stream that was silent.
    pub fn beat(&mut self, id: ConnectionId, now: Instant) -> Beat {
        let connection = self.connection(id).expect("the caller found it");
        if connection.stream.is_none() {
            return Beat::Alive;
        }
        let silence = now.since(connection.sent_at);
        if connection.is_blocked && silence >= limits::SEND_STALL {
            return Beat::Stalled;
        }
        // A keep-alive is sent after half of the interval or more. The first one comes early, so
        // that streams that began together do not send theirs together for ever.
        let is_quiet = silence >= limits::KEEP_ALIVE / 2 && !connection.is_blocked;
        let next_at = match is_quiet || connection.is_blocked {
            true => now + limits::KEEP_ALIVE,
            false => connection.sent_at + limits::KEEP_ALIVE,
        };
        if is_quiet {
            let connection = self.writable(id).expect("as above");
            let stream = connection.stream.take().expect("only a stream has this timer");
            connection.write(|out| stream.write_keep_alive(out));
            connection.stream = Some(stream);
        }
        self.set_timer(id, Some((Timer::Beat, next_at)));
        Beat::Alive
    }
}

/// The result of a stream's keep-alive timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Beat {
    /// The stream goes on, or has ended in this turn. The next step then sets the timer.
    Alive,
    /// The client has not read for too long.
    Stalled,
}

/// Tells all subscribers of a connection whether it takes more.
fn say_demand(
    connection: &Connection,
    demands: &mut Vec<(SubscriberId, u32)>,
    released: &mut Vec<u32>,
) {
    let demand = if connection.takes { u32::MAX } else { 0 };
    if let Some(link) = &connection.mcp {
        demands.extend(link.feeds.iter().map(|subscriber| (*subscriber, demand)));
    }
    let stream = connection.stream.iter();
    for followed in stream.flat_map(|stream| &stream.followed) {
        match followed.source {
            Some(Source::Here(id)) => demands.push((id, demand)),
            Some(Source::There(at)) if connection.takes => released.push(at),
            Some(Source::There(_)) | None => {}
        }
    }
}

/// True if a payload-only body has lost bytes for good.
fn is_cut(delivery: &Delivery<'_>) -> bool {
    match delivery {
        Delivery::Gap(_) => true,
        Delivery::End(ended) => ended.end.state != EndState::Ended(Outcome::Completed),
        Delivery::Chunk(_) | Delivery::Progress(_) => false,
    }
}

impl Stream {
    /// Returns what follows in this stream after `delivery`.
    fn next_behind(&mut self, delivery: &Delivery<'_>) -> Next {
        let needs_all = self.gathered.is_none() && !self.is_whole();
        match (self.encoding, delivery) {
            (Encoding::Output, _) if needs_all && is_cut(delivery) => Next::Cut,
            (Encoding::Front, Delivery::End(ended)) => {
                let told = self.front.as_mut().expect("this encoding has one");
                told.end_run(&self.followed[0].name, ended.end.state)
            }
            _ => Next::Nothing,
        }
    }
}

/// Makes sure that the chunks of one delivery can be noted. These are at most
/// [`limits::DELIVERY_CHUNKS_MAX`], or [`limits::BURST_CHUNKS_MAX`] for a relay.
#[inline]
pub(in crate::server) fn make_room_for_deliveries<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
) {
    const CHUNKS_MAX: usize = Transport::NAMES.len() * limits::DELIVERY_CHUNKS_MAX as usize;
    const _: () = assert!(limits::BURST_CHUNKS_MAX <= limits::DELIVERY_CHUNKS_MAX);
    let hub = &mut shard.guests.hub;
    if !hub.deliveries.has_room(CHUNKS_MAX) {
        hub.rounds.forget_noted();
        hub.deliveries.settle(shard.reactor.now()); // The last ones are still to be sent.
    }
}

/// Records the latency of the deliveries that were sent.
#[inline]
pub(in crate::server) fn settle_deliveries<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let hub = &mut shard.guests.hub;
    if !hub.deliveries.is_settled() {
        let sent_count = hub.rounds.take_sent(hub.deliveries.noted_count());
        hub.deliveries.settle_first(sent_count, shard.reactor.now());
    }
}

pub(in crate::server) fn tell_demands<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    while let Some((subscriber, demand)) = shard.guests.hub.demands.pop() {
        shard.tell(Event::Demand(subscriber, demand));
    }
    while let Some(subscriber) = shard.guests.hub.moved.pop() {
        shard.tell(Event::Moved(subscriber));
    }
}

/// Sends bytes together with descriptors.
fn send_along<R: Reactor>(
    reactor: &mut R,
    id: ConnectionId,
    slices: &[IoSlice<'_>],
    descriptors: &Descriptors,
) -> Result<usize, SendError> {
    let descriptors: SmallVec<[BorrowedFd<'_>; 3]> =
        descriptors.iter().map(OwnedFd::as_fd).collect();
    reactor.send_with_descriptors(id, slices, &descriptors)
}
