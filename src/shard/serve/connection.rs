//! One connection of the server: its HTTP machine, what it waits for, and what waits to be sent.
//!
//! What is to be sent stands in pieces, in order: ranges of the connection's own bytes (heads,
//! gaps, progress, ends, and what the kernel did not take) and ranges of the frame cache. A flush
//! sends all of it in one call; of the frames nothing is left afterwards.
//!
//! Invariants ([`Connection::audit`]):
//! - C1: the pieces of own bytes are those bytes, in order, without holes.
//! - C2: a blocked connection has no piece of the frame cache between two flushes.

use std::io::IoSlice;

use smallvec::SmallVec;

use super::buffers::Buffers;
use super::door::{Line, Parcel};
use super::frames::Frames;
use super::mcp::Link;
use super::stream::{Source, Stream};
use super::tls::Session;
use crate::base::{Instant, Principal, SubscriberId};
use crate::endpoint::{Call, Deliver, HttpConnection};
use crate::engine::Replay;
use crate::engine::wheel::TimerId;
use crate::limits;
use crate::reactor::{ConnectionId, Peer, Reactor};

/// Something to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A range of the connection's own bytes.
    Own { from: u32, until: u32 },
    /// A range of the frame cache.
    Frame { at: u64, length: u32 },
}

const _: () = {
    assert!(size_of::<Piece>() == 16);
    assert!(limits::CARRIES_BYTES_MAX < 1 << 31); // A range of own bytes fits.
};

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Own { from, until } => (until - from) as usize,
            Piece::Frame { length, .. } => *length as usize,
        }
    }
}

/// Idle connections have no more than these two: the head and the beginning, a sign of life. Room
/// for more is borrowed until the next flush: see [`Buffers`].
pub(super) type Pieces = SmallVec<[Piece; 2]>;

/// Between two flushes there are no more: `is_flush_due` is asked behind each delivery, and each
/// event has at most a prefix of the connection's own.
pub(super) const PIECES_MAX: usize =
    2 * (limits::FLUSH_EVENTS + limits::DELIVERY_CHUNKS_MAX) as usize;

fn push(pieces: &mut Pieces, piece: Piece) {
    if pieces.len() == pieces.capacity() && !pieces.spilled() {
        pieces.reserve_exact(PIECES_MAX - pieces.len()); // All that there can be, at once.
    }
    pieces.push(piece);
}

/// What a connection is doing.
#[derive(Debug)]
pub(super) enum Doing {
    /// It reads requests.
    Requests,
    /// Its request is answered when an execution has ended, or the timer fires.
    Result,
    /// Its request was sent to another shard.
    Elsewhere,
    /// What it wants to follow lives on several shards: they are asked for their parts.
    Joining,
    /// It is given an execution, or several.
    Stream,
    /// It shares memory with another process.
    Door,
    /// Its request of MCP is carried out, it is told of something, or it is one of lines.
    Mcp,
    /// It has brought a part for which there is no room yet.
    Part(Box<Deliver>),
    /// It goes to the shard of that number, which answers its call.
    Moving(Box<(usize, Call)>),
    /// What was said last is under way; then it is closed.
    Closing,
}

/// What the timer of a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// There is no request.
    Idle,
    /// The head of a request has to be there whole.
    Request,
    /// Its body has to come fast enough.
    Body,
    /// A result is waited for.
    Result,
    /// A part waits for room.
    Part,
    /// Parts of a body were taken in this turn, and the others have theirs in the next.
    NextParts,
    /// Other shards are waited for.
    Join,
    /// A stream says that it lives.
    Beat,
    /// An answer of MCP says that it lives.
    McpBeat,
    /// What was said last is under way.
    Linger,
    /// Nothing more comes on a connection of lines, and something is still to be answered.
    LastAnswers,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Connection {
    pub id: ConnectionId,
    pub peer: Peer,
    pub http: HttpConnection,
    /// Between the socket and `http`, if it has TLS.
    pub session: Option<Box<Session>>,
    pub doing: Doing,
    /// The worker that takes calls through it.
    pub worker: Option<Box<(Principal, Box<str>)>>,
    /// What it is given.
    pub stream: Option<Box<Stream>>,
    /// What it is for MCP.
    pub mcp: Option<Box<Link>>,
    /// It came in at the door.
    pub is_at_door: bool,
    /// What was granted on it there.
    pub line: Option<Box<Line>>,
    /// What goes with the next byte that is sent.
    pub parcel: Option<Box<Parcel>>,
    pub timer: Option<(Timer, TimerId)>,
    /// Heads that had come when the timer was set for a request.
    pub timed_heads: u32,
    /// When the body began for which it was set.
    pub body_from: Instant,
    /// Since when it has no request.
    pub idle_from: Instant,
    /// Its own bytes, those of `pieces`.
    own: Vec<u8>,
    pieces: Pieces,
    /// The kernel takes no more: it says when.
    pub is_blocked: bool,
    /// Who follows through it was said to take what comes.
    pub takes: bool,
    /// It is in the list of those to be flushed.
    pub is_touched: bool,
    /// Its next request is looked at when everything was sent: there is much of it.
    pub is_full: bool,
    /// Of its own bytes so many are counted as put aside.
    pub aside_bytes: usize,
    /// The bound of what the kernel holds of it, and what was written since the last flush.
    bound: Bound,
    /// Of a body that has not come whole so many are counted.
    pub body_bytes: usize,
    /// After what is to be sent nothing follows.
    pub is_last: bool,
    /// The body was cut off: no end is sent, and what is under way may get lost.
    pub is_aborted: bool,
    /// It is broken, and takes nothing any more.
    pub is_abandoned: bool,
    /// The peer has finished, or is gone.
    pub has_ended: bool,
    /// When the kernel took something last.
    pub sent_at: Instant,
}

/// The bound of what may be under way on a connection.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// The kernel holds about twice as many bytes at most, with its overhead. A byte of payload is
    /// at least one of them.
    kernel_bytes: u32,
    /// Bytes that were written since the last flush.
    unsent_bytes: usize,
}

/// The bound for a subscriber, by what is kept for it in case it comes back. Without such a
/// promise, or if the client acknowledges, it is [`limits::SEND_BUFFER_BYTES`].
///
/// The pieces are small, as [`Replay::delivery`] has it: a kernel confirms some segments of a young
/// connection at once, and all others when its program has read them.
pub(super) fn kernel_bytes_for(replay: Option<Replay>) -> u32 {
    match replay {
        Some(Replay { chunks, bytes, until_acknowledged: false }) => {
            // All encodings frame their chunks, and short ones are mostly that.
            let frames_bytes = chunks.saturating_mul(limits::CHUNK_FRAME_BYTES_MIN);
            (bytes.min(frames_bytes) / 16).clamp(1, limits::SEND_BUFFER_BYTES)
        }
        _ => limits::SEND_BUFFER_BYTES,
    }
}

/// What became of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything was sent, or there was nothing.
    All,
    /// The kernel took a part, or nothing; the rest was put aside.
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
            parcel: None,
            timer: None,
            timed_heads: 0,
            body_from: now,
            idle_from: now,
            own: Vec::new(),
            pieces: SmallVec::new(),
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

    /// Bounds what is under way to the subscribers that are given something through it.
    pub fn bound_sending<R: Reactor + ?Sized>(&mut self, kernel_bytes: u32, reactor: &mut R) {
        if self.bound.kernel_bytes != kernel_bytes {
            self.bound.kernel_bytes = kernel_bytes;
            reactor.bound_sending(self.id, kernel_bytes);
        }
    }

    /// Takes note of bytes of chunks that were written. True if they have to be sent before
    /// more chunks are written.
    #[inline]
    pub fn note_unsent(&mut self, bytes: usize) -> bool {
        let bound = &mut self.bound;
        if bound.kernel_bytes == limits::SEND_BUFFER_BYTES {
            return false;
        }
        bound.unsent_bytes += bytes;
        bound.unsent_bytes >= bound.kernel_bytes as usize / 2
    }

    /// Takes note of a flush.
    #[inline]
    pub fn flushed(&mut self) {
        self.bound.unsent_bytes = 0;
    }

    /// Has it something to send?
    pub fn has_pieces(&self) -> bool {
        !self.pieces.is_empty() || self.sealed_bytes() > 0
    }

    /// The subscribers of this shard that are given through it, if the kernel has taken a part of
    /// what they were given just now.
    pub fn moved(&self, was_blocked: bool, now: Instant) -> impl Iterator<Item = SubscriberId> {
        let has_moved = !was_blocked && self.sent_at == now;
        let stream = self.stream.iter().filter(move |_| has_moved);
        stream.flat_map(|stream| &stream.followed).filter_map(|followed| match followed.source {
            Some(Source::Here(subscriber)) => Some(subscriber),
            Some(Source::There(_)) | None => None,
        })
    }

    /// True if it has sent nothing that was not read: then what it was told is not lost when the
    /// connection is closed at once.
    pub fn has_read_all(&self) -> bool {
        self.http.has_read_all()
    }

    fn sealed_bytes(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.waiting_bytes())
    }

    /// Bytes that it waits to send.
    pub fn waiting_bytes(&self) -> usize {
        self.own.len() + self.sealed_bytes()
    }

    /// Can a worker be told more through it?
    pub fn is_free(&self) -> bool {
        self.takes || self.own.len() <= limits::WORKER_UNSENT_BYTES_MAX
    }

    /// Bytes that it has put aside.
    pub fn own_bytes(&self) -> usize {
        self.own.len()
    }

    /// Bytes of its own, to be sent next: whatever `write` appends. Gives what that returns.
    pub fn write<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        append(&mut self.own, &mut self.pieces, write)
    }

    /// As [`Connection::write`], of what its HTTP machine says.
    pub fn converse<T>(&mut self, speak: impl FnOnce(&mut HttpConnection, &mut Vec<u8>) -> T) -> T {
        append(&mut self.own, &mut self.pieces, |out| speak(&mut self.http, out))
    }

    /// A buffer for its own bytes, if it has none, and room for the pieces of one more event.
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

    /// True if its own bytes have no room for what is told between two flushes any more.
    #[inline]
    pub fn is_nearly_full(&self) -> bool {
        self.own.capacity() - self.own.len() < limits::BUFFER_BYTES / 2
    }

    /// As [`Connection::borrow_buffer`], for who writes a part of each event itself.
    pub fn borrow_large_buffer(&mut self, spare: &mut Buffers) {
        if self.own.capacity() < limits::FLUSH_BYTES {
            let mut large = spare.large(limits::FLUSH_BYTES);
            large.extend_from_slice(&self.own);
            spare.give_back(std::mem::replace(&mut self.own, large));
        }
    }

    /// A range of the frame cache, to be sent next.
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

    /// The pieces as slices.
    fn slices<'a>(&'a self, frames: &'a Frames) -> impl Iterator<Item = &'a [u8]> {
        self.pieces.iter().map(|piece| match *piece {
            Piece::Own { from, until } => &self.own[from as usize..until as usize],
            Piece::Frame { at, length } => frames.bytes(at, length as usize),
        })
    }

    /// Sends everything, through `send`, which says how much of it was taken. What was not is put
    /// aside, in a buffer of `spare` if there is one.
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
            spare.give_back(std::mem::take(&mut self.own)); // Nothing came of it.
            return Flushed::All;
        }
        if self.is_blocked {
            self.put_aside(0, frames, spare);
            return Flushed::Cut;
        }
        let total_bytes: usize = self.pieces.iter().map(Piece::len).sum();
        let slices: SmallVec<[IoSlice<'_>; PIECES_MAX]> =
            self.slices(frames).map(IoSlice::new).collect();
        let Ok(sent_bytes) = send(&slices) else { return Flushed::Broken };
        drop(slices);
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

    /// Gives back what it has borrowed.
    #[inline]
    fn clear(&mut self, spare: &mut Buffers) {
        self.clear_pieces(spare);
        spare.give_back(std::mem::take(&mut self.own));
    }

    #[inline]
    fn clear_pieces(&mut self, spare: &mut Buffers) {
        if self.pieces.spilled() {
            spare.give_back_pieces(std::mem::take(&mut self.pieces));
        }
        self.pieces.clear();
    }

    /// As [`Connection::flush`], with TLS: what was sealed and not sent first, then portion after
    /// portion, and at the very end that it is the end.
    fn flush_sealed<E>(
        &mut self,
        mut session: Box<Session>,
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
            if portion_bytes == 0 && !(is_end && session.say_goodbye()) {
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

    /// The pieces as slices, without so many bytes at their front.
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

    /// Forgets what was not sent: the connection is broken. It is dropped at the end of the turn.
    /// Chunks that it were given until then would be lost, and the client comes back for them.
    pub fn abandon(&mut self, spare: &mut Buffers) {
        (self.is_aborted, self.is_abandoned) = (true, true);
        self.clear(spare);
    }

    /// Copies what was not sent, because the cache will be written again. The copy has room for the
    /// gaps and the progress of one flush, which are written behind it.
    fn put_aside(&mut self, sent_bytes: usize, frames: &Frames, spare: &mut Buffers) {
        if let [Piece::Own { from, until }] = self.pieces[..] {
            // It is aside already.
            self.clear_pieces(spare);
            self.pieces.push(Piece::Own { from: from + sent_bytes as u32, until });
            return;
        }
        let total_bytes: usize = self.pieces.iter().map(Piece::len).sum();
        let mut rest = spare.large(total_bytes - sent_bytes + limits::BUFFER_BYTES);
        for slice in self.slices_from(sent_bytes, frames) {
            rest.extend_from_slice(slice);
        }
        self.clear(spare);
        self.pieces.push(Piece::Own { from: 0, until: rest.len() as u32 });
        self.own = rest;
    }

    /// What is still to be sent of a connection that is blocked: nothing but bytes of its own.
    pub fn unsent(&self) -> Vec<u8> {
        let mut unsent = Vec::new();
        for piece in &self.pieces {
            let Piece::Own { from, until } = piece else { unreachable!("C2") };
            unsent.extend_from_slice(&self.own[*from as usize..*until as usize]);
        }
        unsent
    }

    /// Takes its buffer back, when it is gone.
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
        let mut end = None;
        for piece in &self.pieces {
            match piece {
                Piece::Own { from, until } => {
                    assert!(from < until && *until as usize <= self.own.len());
                    assert!(end.is_none_or(|end| end == *from)); // C1
                    end = Some(*until);
                }
                Piece::Frame { .. } => assert!(!self.is_blocked || self.is_touched), // C2
            }
        }
        assert!(end.is_none_or(|end| end as usize == self.own.len()));
    }
}

fn append<T>(own: &mut Vec<u8>, pieces: &mut Pieces, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    if own.capacity() == 0 {
        own.reserve(limits::BUFFER_BYTES); // Once, instead of twice and again.
    }
    let from = own.len() as u32;
    let result = write(own);
    let until = u32::try_from(own.len()).expect("nobody is told so much");
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
    use crate::base::Handle;

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
}
