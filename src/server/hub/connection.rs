//! One connection of the server: its HTTP machine, its state, and its pending output.
//!
//! Pending output is a list of pieces in order. A piece is a range of the connection's own bytes,
//! of the frame cache, or of a body that other replies have, too. Own bytes are heads, gaps,
//! progress, ends, and what the kernel did not take. A flush sends all of them in one call.
//! Afterwards no piece refers to the frame cache.
//!
//! Invariants ([`Connection::audit`]):
//! - C1: the pieces of own bytes cover those bytes, in order and without holes.
//! - C2: between two flushes a blocked connection has no piece of the frame cache.
//! - C3: at most one piece is of a body, and the connection has a body exactly then.

use std::io::IoSlice;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::{Instant, Principal, SubscriberId};
use crate::endpoint::{ApiCall, Deliver, HttpConnection};
use crate::engine::Replay;
use crate::engine::wheel::TimerId;
use crate::limits;
use crate::reactor::{ConnectionId, Peer, Reactor};
use crate::server::hub::buffers::Buffers;
use crate::server::hub::frames::Frames;
use crate::server::hub::stream::{Source, Stream};
use crate::server::hub::tls::ServerTls;
use crate::server::mcp::Link;
use crate::server::shm::lines::{Descriptors, Line};

/// A range of bytes to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Piece {
    /// A range of the connection's own bytes.
    Own { from: u32, until: u32 },
    /// A range of the frame cache.
    Frame { at: u64, length: u32 },
    /// A range of the body.
    Body { from: u32, until: u32 },
}

const _: () = {
    assert!(size_of::<Piece>() == 16);
    assert!(limits::CARRIES_BYTES_MAX < 1 << 31); // A range of own bytes fits.
};

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Own { from, until } | Piece::Body { from, until } => (until - from) as usize,
            Piece::Frame { length, .. } => *length as usize,
        }
    }

    /// The rest behind the first bytes.
    fn behind(self, skipped_bytes: u32) -> Piece {
        match self {
            Piece::Own { from, until } => Piece::Own { from: from + skipped_bytes, until },
            Piece::Body { from, until } => Piece::Body { from: from + skipped_bytes, until },
            Piece::Frame { at, length } => {
                Piece::Frame { at: at + u64::from(skipped_bytes), length: length - skipped_bytes }
            }
        }
    }
}

/// The pieces of a connection. An idle one has at most these two: the head and the first event, or
/// a keep-alive. Room for more is borrowed until the next flush: see [`Buffers`].
pub(in crate::server) type Pieces = SmallVec<[Piece; 2]>;

/// The maximum number of pieces between two flushes. `is_flush_due` is checked after each delivery,
/// and each event has at most one prefix of the connection's own.
pub(in crate::server) const PIECES_MAX: usize =
    2 * (limits::FLUSH_EVENTS + limits::DELIVERY_CHUNKS_MAX) as usize;

#[inline]
fn push(pieces: &mut Pieces, piece: Piece) {
    if pieces.len() == pieces.capacity() && !pieces.spilled() {
        pieces.reserve_exact(PIECES_MAX - pieces.len()); // Room for the maximum, at once.
    }
    pieces.push(piece);
}

/// The state of a connection.
#[derive(Debug)]
pub(in crate::server) enum Doing {
    /// It reads requests.
    Requests,
    /// Its request is answered when an execution has ended or the timer expires.
    Result,
    /// Its request was sent to another shard, or waits for memory or for the disk.
    Elsewhere,
    /// It wants to follow executions of several shards, and waits for their readers.
    Joining,
    /// Its call names executions that are read from the disk.
    Recalling(Box<ApiCall>),
    /// It follows one or several executions, or takes calls as a worker.
    Stream,
    /// It shares memory with another process.
    Door,
    /// It carries out a request of MCP, sends notifications, or belongs to a session over lines.
    Mcp,
    /// It has sent a part for which there is no room yet.
    Part(Box<Deliver>),
    /// It moves to the shard with this number, which answers its call.
    Moving(Box<(usize, ApiCall)>),
    /// Its last output is under way. Then it is closed.
    Closing,
}

/// The purpose of a connection's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Timer {
    /// The connection has no request.
    Idle,
    /// The head of a request has to be complete.
    Request,
    /// The body has to come fast enough.
    Body,
    /// A request waits for a result.
    Result,
    /// A request waits for more of a stream.
    Poll,
    /// A part waits for room.
    Part,
    /// The work of a turn is done. The rest of the input is taken in the next turn.
    Resume,
    /// A request waits for other shards.
    Join,
    /// A stream has to send a keep-alive.
    Beat,
    /// A reply of MCP has to send a keep-alive.
    McpBeat,
    /// The last output is under way.
    Linger,
    /// The input of a connection of lines has ended, and replies are outstanding.
    LastAnswers,
}

/// A connection. See the module's text.
#[derive(Debug)]
pub(in crate::server) struct Connection {
    pub id: ConnectionId,
    pub peer: Peer,
    pub http: HttpConnection,
    /// The TLS session between the socket and `http`, if it has one.
    pub session: Option<Box<ServerTls>>,
    pub doing: Doing,
    /// The principal and the name of the worker that takes calls through it.
    pub worker: Option<Box<(Principal, Box<str>)>>,
    /// The stream that it sends.
    pub stream: Option<Box<Stream>>,
    /// The part that it has in MCP.
    pub mcp: Option<Box<Link>>,
    /// True if it was accepted at the door.
    pub is_at_door: bool,
    /// The grant that makes it a line of the door.
    pub line: Option<Box<Line>>,
    /// Descriptors that go with the next byte that is sent.
    pub descriptors: Option<Box<Descriptors>>,
    pub timer: Option<(Timer, TimerId)>,
    /// The number of heads that had come when the timer was set for a request.
    pub timed_heads: u32,
    /// The start of the body that the timer was set for.
    pub body_from: Instant,
    /// The time since which it has no request.
    pub idle_from: Instant,
    /// The bytes to which the own pieces refer.
    own: Vec<u8>,
    pieces: Pieces,
    /// The body of a reply, which other replies have, too.
    body: Option<Arc<Vec<u8>>>,
    /// True while the kernel takes no more. The reactor reports when it does.
    pub is_blocked: bool,
    /// True if its subscribers were told that it takes bytes.
    pub takes: bool,
    /// True if it is in the list of the next flush.
    pub is_touched: bool,
    /// True if its replies are so long that its next request waits until they are sent.
    pub is_full: bool,
    /// Number of its pending bytes that are counted as put aside.
    pub aside_bytes: usize,
    /// The limit of its bytes in the kernel, and the bytes that were written since the last flush.
    bound: Bound,
    /// The bytes of its incomplete request body that are counted.
    pub body_bytes: usize,
    /// True if nothing follows the pending output.
    pub is_last: bool,
    /// True if the body was cut off. No end is sent, and pending output may get lost.
    pub is_aborted: bool,
    /// True if it is broken, and its output was discarded.
    pub is_abandoned: bool,
    /// True if the peer has closed its side or is gone.
    pub has_ended: bool,
    /// The time at which the kernel last took bytes.
    pub sent_at: Instant,
}

/// The limit of bytes under way on a connection.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// The limit set in the kernel. It holds at most about twice as many bytes, with its overhead.
    /// A byte of payload needs at least one of them.
    kernel_bytes: u32,
    /// Bytes that were written since the last flush.
    unsent_bytes: usize,
}

/// Returns the send limit for a subscriber, from the chunks that are kept in case it reconnects.
/// Without such a promise, or if the client acknowledges, it is [`limits::SEND_BUFFER_BYTES`].
///
/// The result is small, as in [`Replay::delivery`]. On a young connection a kernel confirms some
/// segments at once, and all others only when its program has read them.
pub(in crate::server) fn kernel_bytes_for(replay: Option<Replay>) -> u32 {
    match replay {
        Some(Replay { chunks, bytes, until_acknowledged: false }) => {
            // All encodings frame their chunks. Short chunks are mostly frame.
            let frames_bytes = chunks.saturating_mul(limits::CHUNK_FRAME_BYTES_MIN);
            (bytes.min(frames_bytes) / 16).clamp(1, limits::SEND_BUFFER_BYTES)
        }
        _ => limits::SEND_BUFFER_BYTES,
    }
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Flushed {
    /// Everything was sent, or nothing was pending.
    All,
    /// The kernel took a part or nothing. The rest was put aside.
    Cut,
    /// The connection is broken.
    Broken,
}

impl Connection {
    pub fn new(id: ConnectionId, peer: Peer, now: Instant) -> Connection {
        Connection {
            id,
            peer,
            http: HttpConnection::new(),
            session: None,
            doing: Doing::Requests,
            worker: None,
            stream: None,
            mcp: None,
            is_at_door: false,
            line: None,
            descriptors: None,
            timer: None,
            timed_heads: 0,
            body_from: now,
            idle_from: now,
            own: Vec::new(),
            pieces: SmallVec::new(),
            body: None,
            is_blocked: false,
            takes: true,
            is_touched: false,
            is_full: false,
            aside_bytes: 0,
            bound: Bound { kernel_bytes: limits::SEND_BUFFER_BYTES, unsent_bytes: 0 },
            body_bytes: 0,
            is_last: false,
            is_aborted: false,
            is_abandoned: false,
            has_ended: false,
            sent_at: now,
        }
    }

    /// Limits the bytes that are under way in the kernel.
    pub fn bound_sending<R: Reactor + ?Sized>(&mut self, kernel_bytes: u32, reactor: &mut R) {
        if self.bound.kernel_bytes != kernel_bytes {
            self.bound.kernel_bytes = kernel_bytes;
            reactor.bound_sending(self.id, kernel_bytes);
        }
    }

    /// Counts bytes of chunks that were written. Returns true if they have to be sent before more
    /// chunks are written.
    #[inline]
    pub fn must_flush_after(&mut self, bytes: usize) -> bool {
        let bound = &mut self.bound;
        if bound.kernel_bytes == limits::SEND_BUFFER_BYTES {
            return false;
        }
        bound.unsent_bytes += bytes;
        bound.unsent_bytes >= bound.kernel_bytes as usize / 2
    }

    /// Notes a flush.
    #[inline]
    pub fn flushed(&mut self) {
        self.bound.unsent_bytes = 0;
    }

    /// True if output is pending.
    pub fn has_pieces(&self) -> bool {
        !self.pieces.is_empty() || self.sealed_bytes() > 0
    }

    /// Returns the subscribers of this shard on this connection, if the kernel has just taken a
    /// part of their bytes.
    pub fn moved(&self, was_blocked: bool, now: Instant) -> impl Iterator<Item = SubscriberId> {
        let has_moved = !was_blocked && self.sent_at == now;
        let stream = self.stream.iter().filter(move |_| has_moved);
        stream.flat_map(|stream| &stream.followed).filter_map(|followed| match followed.source {
            Some(Source::Here(subscriber)) => Some(subscriber),
            Some(Source::There(_)) | None => None,
        })
    }

    /// True if every byte that the client sent was read. Then pending replies are not lost when the
    /// connection is closed at once.
    pub fn has_read_all(&self) -> bool {
        self.http.has_read_all()
    }

    fn sealed_bytes(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.waiting_bytes())
    }

    /// Returns the number of bytes that it waits to send.
    pub fn waiting_bytes(&self) -> usize {
        self.pending_bytes() + self.sealed_bytes()
    }

    /// Returns the number of bytes of its own and of a body that are pending.
    pub fn pending_bytes(&self) -> usize {
        self.own.len() + self.body.as_ref().map_or(0, |body| body.len())
    }

    /// True if a worker can be sent more calls through it.
    pub fn is_free(&self) -> bool {
        self.takes || self.own.len() <= limits::WORKER_UNSENT_BYTES_MAX
    }

    /// Returns the number of its own bytes that are pending.
    pub fn own_bytes(&self) -> usize {
        self.own.len()
    }

    /// Appends own bytes to the output with `write`, and returns its result.
    pub fn write<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        append(&mut self.own, &mut self.pieces, write)
    }

    /// Appends the output of its HTTP machine, and returns the result of `speak`.
    pub fn converse<T>(&mut self, speak: impl FnOnce(&mut HttpConnection, &mut Vec<u8>) -> T) -> T {
        append(&mut self.own, &mut self.pieces, |out| speak(&mut self.http, out))
    }

    /// Borrows a buffer for own bytes, if it has none, and room for the pieces of one more event.
    #[inline]
    pub fn borrow_buffer(&mut self, spare: &mut Buffers) {
        if self.own.capacity() == 0
            && let Some(buffer) = spare.small()
        {
            self.own = buffer;
        }
        if !self.pieces.is_empty()
            && !self.pieces.spilled()
            && let Some(mut many) = spare.pieces()
        {
            many.extend_from_slice(&self.pieces);
            self.pieces = many;
        }
    }

    /// True if its buffer may be too small for more events before the next flush.
    #[inline]
    pub fn is_nearly_full(&self) -> bool {
        self.own.capacity() - self.own.len() < limits::BUFFER_BYTES / 2
    }

    /// True if its buffer has room for an event with a chunk of this size.
    #[inline]
    pub fn has_room_for(&self, chunk_bytes: usize) -> bool {
        let event_bytes = 2 * chunk_bytes + limits::BUFFER_BYTES / 8;
        self.own.capacity() - self.own.len() >= event_bytes
    }

    /// Borrows a large buffer, for a connection that writes a part of each event itself.
    pub fn borrow_large_buffer(&mut self, spare: &mut Buffers) {
        if self.own.capacity() < limits::FLUSH_BYTES {
            let mut large = spare.large(limits::FLUSH_BYTES);
            large.extend_from_slice(&self.own);
            spare.give_back(std::mem::replace(&mut self.own, large));
        }
    }

    /// Appends a range of the frame cache to the output.
    #[inline]
    pub fn push_frame(&mut self, at: u64, length: usize) {
        match self.pieces.last_mut() {
            _ if length == 0 => {}
            Some(Piece::Frame { at: from, length: before }) if *from + u64::from(*before) == at => {
                *before += length as u32;
            }
            _ => push(&mut self.pieces, Piece::Frame { at, length: length as u32 }),
        }
    }

    /// Appends a body that other replies have, too.
    pub fn push_body(&mut self, body: Arc<Vec<u8>>) {
        if self.body.is_some() {
            return self.write(|out| out.extend_from_slice(&body)); // C3
        }
        let until = u32::try_from(body.len()).expect("bodies are bounded");
        if until > 0 {
            push(&mut self.pieces, Piece::Body { from: 0, until });
            self.body = Some(body);
        }
    }

    /// Returns the pieces as slices.
    fn slices<'a>(&'a self, frames: &'a Frames) -> impl Iterator<Item = &'a [u8]> {
        let body = self.body();
        self.pieces.iter().map(move |piece| match *piece {
            Piece::Own { from, until } => &self.own[from as usize..until as usize],
            Piece::Frame { at, length } => frames.bytes(at, length as usize),
            Piece::Body { from, until } => &body[from as usize..until as usize],
        })
    }

    #[inline]
    fn body(&self) -> &[u8] {
        self.body.as_ref().map_or(&[], |body| body.as_slice())
    }

    /// Sends all output through `send`, which returns how many bytes were taken. The rest is put
    /// aside, in a buffer of `spare` if one is free.
    pub fn flush<E>(
        &mut self,
        frames: &Frames,
        spare: &mut Buffers,
        now: Instant,
        mut send: impl FnMut(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Flushed {
        if let Some(session) = self.session.take() {
            return self.flush_sealed(session, frames, spare, now, send);
        }
        if self.pieces.is_empty() {
            spare.give_back(std::mem::take(&mut self.own)); // Nothing was written after all.
            return Flushed::All;
        }
        if self.is_blocked {
            self.put_aside(0, frames, spare);
            return Flushed::Cut;
        }
        let total_bytes: usize = self.pieces.iter().map(Piece::len).sum();
        let sent = {
            // Filled and dropped where it is, because it is large and should not be moved.
            let mut slices: SmallVec<[IoSlice<'_>; PIECES_MAX]> = SmallVec::new();
            for slice in self.slices(frames) {
                slices.push(IoSlice::new(slice));
            }
            send(&slices)
        };
        let Ok(sent_bytes) = sent else { return Flushed::Broken };
        assert!(sent_bytes <= total_bytes);
        if sent_bytes > 0 {
            self.sent_at = now;
        }
        if sent_bytes < total_bytes {
            self.is_blocked = true;
            self.put_aside(sent_bytes, frames, spare);
            return Flushed::Cut;
        }
        self.clear(spare);
        Flushed::All
    }

    /// Returns borrowed buffers.
    #[inline]
    fn clear(&mut self, spare: &mut Buffers) {
        self.clear_pieces(spare);
        self.body = None;
        spare.give_back(std::mem::take(&mut self.own));
    }

    #[inline]
    fn clear_pieces(&mut self, spare: &mut Buffers) {
        if self.pieces.spilled() {
            spare.give_back_pieces(std::mem::take(&mut self.pieces));
        }
        self.pieces.clear();
    }

    /// Sends all output of a connection with TLS. Encrypted bytes of the last flush go first, then
    /// one portion after the other, and at the very end the closing alert.
    fn flush_sealed<E>(
        &mut self,
        mut session: Box<ServerTls>,
        frames: &Frames,
        spare: &mut Buffers,
        now: Instant,
        mut send: impl FnMut(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Flushed {
        let mut sealed_bytes = 0;
        let flushed = loop {
            if self.is_blocked {
                break Flushed::Cut;
            }
            let waiting_bytes = session.waiting_bytes();
            match session.send(spare, &mut send) {
                Err(_) => break Flushed::Broken,
                Ok(is_all) => self.is_blocked = !is_all,
            }
            if session.waiting_bytes() < waiting_bytes {
                self.sent_at = now;
            }
            if self.is_blocked {
                break Flushed::Cut;
            }
            let portion_bytes = session.seal(self.slices_from(sealed_bytes, frames), spare);
            sealed_bytes += portion_bytes;
            let is_end = self.is_last && !self.is_aborted;
            if portion_bytes == 0 && !(is_end && session.must_send_goodbye()) {
                break Flushed::All;
            }
        };
        self.session = Some(session);
        let total_bytes: usize = self.pieces.iter().map(Piece::len).sum();
        if sealed_bytes < total_bytes {
            self.put_aside(sealed_bytes, frames, spare);
        } else {
            self.clear(spare);
        }
        flushed
    }

    /// Returns the pieces as slices, without the first `skip_bytes` bytes.
    fn slices_from<'a>(
        &'a self,
        mut skip_bytes: usize,
        frames: &'a Frames,
    ) -> impl Iterator<Item = &'a [u8]> {
        self.slices(frames).map(move |slice| {
            let skipped = skip_bytes.min(slice.len());
            skip_bytes -= skipped;
            &slice[skipped..]
        })
    }

    /// Discards the output, because the connection is broken. It is dropped at the end of the turn.
    /// Chunks that it is given until then are lost, and the client reconnects for them.
    pub fn abandon(&mut self, spare: &mut Buffers) {
        (self.is_aborted, self.is_abandoned) = (true, true);
        self.clear(spare);
    }

    /// Copies the bytes that were not sent, because the cache will be overwritten. The copy has
    /// room for the gaps and the progress of one flush, which are appended. Bytes of a body stay
    /// where they are, and so do own bytes without any of the cache.
    #[inline(never)]
    fn put_aside(&mut self, sent_bytes: usize, frames: &Frames, spare: &mut Buffers) {
        let total_bytes: usize = self.pieces.iter().map(Piece::len).sum();
        let needs_copy = self.pieces.iter().any(|piece| matches!(piece, Piece::Frame { .. }));
        let mut copy = match needs_copy {
            true => spare.large(total_bytes - sent_bytes + limits::BUFFER_BYTES),
            false => Vec::new(),
        };
        let (mut left, mut body, mut skipped_bytes) = (Pieces::new(), None, sent_bytes);
        for piece in &self.pieces {
            let skips = skipped_bytes.min(piece.len());
            skipped_bytes -= skips;
            match piece.behind(skips as u32) {
                piece if piece.len() == 0 => {}
                piece @ Piece::Body { .. } => {
                    push(&mut left, piece);
                    body = self.body.take();
                }
                piece if !needs_copy => push(&mut left, piece),
                Piece::Own { from, until } => {
                    let bytes = &self.own[from as usize..until as usize];
                    append(&mut copy, &mut left, |out| out.extend_from_slice(bytes));
                }
                Piece::Frame { at, length } => {
                    let bytes = frames.bytes(at, length as usize);
                    append(&mut copy, &mut left, |out| out.extend_from_slice(bytes));
                }
            }
        }
        let has_own = left.iter().any(|piece| matches!(piece, Piece::Own { .. }));
        if needs_copy || !has_own {
            spare.give_back(std::mem::replace(&mut self.own, copy));
        }
        self.clear_pieces(spare);
        (self.pieces, self.body) = (left, body);
    }

    /// Returns the unsent output of a blocked connection, which has nothing of the frame cache.
    pub fn unsent(&self) -> Vec<u8> {
        let mut unsent = Vec::new();
        for piece in &self.pieces {
            match *piece {
                Piece::Own { from, until } => {
                    unsent.extend_from_slice(&self.own[from as usize..until as usize]);
                }
                Piece::Body { from, until } => {
                    unsent.extend_from_slice(&self.body()[from as usize..until as usize]);
                }
                Piece::Frame { .. } => unreachable!("C2"),
            }
        }
        unsent
    }

    /// Returns the buffers of a closed connection.
    pub fn recycle(mut self, spare: &mut Buffers) {
        self.clear(spare);
        if let Some(session) = self.session {
            session.recycle(spare);
        }
    }

    /// Checks its invariants. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self) {
        let (mut end, mut body_count) = (None, 0);
        for piece in &self.pieces {
            match piece {
                Piece::Own { from, until } => {
                    assert!(from < until && *until as usize <= self.own.len());
                    assert!(end.is_none_or(|end| end == *from)); // C1
                    end = Some(*until);
                }
                Piece::Frame { .. } => assert!(!self.is_blocked || self.is_touched), // C2
                Piece::Body { from, until } => {
                    assert!(from < until && *until as usize <= self.body().len());
                    body_count += 1;
                }
            }
        }
        assert_eq!(body_count, usize::from(self.body.is_some())); // C3
        assert!(end.is_none_or(|end| end as usize == self.own.len()));
    }
}

fn append<T>(own: &mut Vec<u8>, pieces: &mut Pieces, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    if own.capacity() == 0 {
        own.reserve(limits::BUFFER_BYTES); // Once, instead of growing step by step.
    }
    let from = own.len() as u32;
    let result = write(own);
    let until = u32::try_from(own.len()).expect("own bytes are bounded");
    assert!(until >= from);
    match pieces.last_mut() {
        _ if from == until => {}
        Some(Piece::Own { until: end, .. }) if *end == from => *end = until,
        _ => push(pieces, Piece::Own { from, until }),
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Handle, Random};
    use crate::server::hub::frames::{Encoding, Key};

    #[test]
    fn what_is_put_aside_leaves_room_for_a_gap_behind_it() {
        for flush_bytes in
            [1, limits::FLUSH_BYTES - 1, limits::FLUSH_BYTES, 2 * limits::FLUSH_BYTES]
        {
            let id = ConnectionId(Handle { index: 0, generation: 0 });
            let mut connection =
                Connection::new(id, Peer::Tcp(([127, 0, 0, 1], 1).into()), Instant::from_nanos(0));
            let (frames, mut spare) = (Frames::new(2 * limits::FRAME_BYTES_MAX), Buffers::new());
            connection.push_frame(0, flush_bytes);
            let taken: Result<usize, ()> = Ok(0);
            let flushed = connection.flush(&frames, &mut spare, Instant::from_nanos(1), |_| taken);
            assert_eq!(flushed, Flushed::Cut);
            let capacity = connection.own.capacity();
            connection.write(|out| out.extend_from_slice(&[b'g'; limits::BUFFER_BYTES]));
            assert_eq!(connection.own.capacity(), capacity, "{flush_bytes} bytes");
            connection.audit();
        }
    }

    /// Output of all kinds is sent in portions of any size, with blocked times between.
    #[test]
    fn all_pieces_are_sent_in_order_whatever_the_kernel_takes() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let id = ConnectionId(Handle { index: 0, generation: 0 });
            let mut connection =
                Connection::new(id, Peer::Tcp(([127, 0, 0, 1], 1).into()), Instant::from_nanos(0));
            let mut frames = Frames::new(2 * limits::FRAME_BYTES_MAX);
            let mut spare = Buffers::new();
            let (mut written, mut sent) = (Vec::new(), Vec::new());
            for round in 0..20 {
                let key = Key { nonce: 1, seq: round, encoding: Encoding::Output };
                let mut framed = None;
                for _ in 0..random.below(4) {
                    let letter = b'a' + random.below(26) as u8;
                    let bytes = vec![letter; random.between(1, 100) as usize];
                    written.extend_from_slice(&bytes);
                    match random.below(3) {
                        0 => connection.write(|out| out.extend_from_slice(&bytes)),
                        1 => connection.push_body(Arc::new(bytes)),
                        _ if framed.is_none() => {
                            frames.encode_with(|out| out.extend_from_slice(&bytes));
                            let frame = frames.keep(key).unwrap();
                            connection.push_frame(frame.at, frame.length as usize);
                            framed = Some(frame);
                        }
                        _ => connection.write(|out| out.extend_from_slice(&bytes)),
                    }
                }
                // A frame, of 100 bytes at most, does not count.
                assert!(connection.pending_bytes() + 100 >= written.len() - sent.len());
                connection.is_touched = true;
                connection.audit();
                if random.chance(1, 2) {
                    connection.is_blocked = false;
                }
                connection.flush(&frames, &mut spare, Instant::from_nanos(1), |slices| {
                    let all: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
                    let count = random.below(all.len() as u64 + 1) as usize;
                    sent.extend_from_slice(&all[..count]);
                    Ok::<_, ()>(count)
                });
                connection.is_touched = false;
                connection.audit();
                let mut all = sent.clone();
                all.extend(connection.unsent());
                assert_eq!(all, written, "SEED={seed}");
            }
        }
    }
}
