//! One reader of a stream: from chunks of executions to a reply or to events.
//!
//! A stream is an execution. A fork begins with parts of others, so a reader has a list of such
//! parts and follows one after the other. Its position counts the bytes of all of them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::base::ExecutionId;
use crate::base::planted::{Planted, planted};
use crate::endpoint::StreamBody;
use crate::limits;
use crate::server::durable::fork::Forking;
use crate::server::durable::replies::Lead;
use crate::shard::Chunk;
use crate::wire::durable::{Control, Mode, Offset, write_control, write_data};
use crate::wire::http1::{begin_chunk, end_chunk};

/// Memory for a reply: one turn may give so much behind what is enough.
const REPLY_BYTES: usize = limits::DURABLE_REPLY_BYTES + limits::JOURNAL_GIVEN_BYTES_MAX as usize;

/// The end of a stream, which its readers look at.
#[derive(Debug, Default)]
pub(in crate::server) struct Tail {
    /// The position behind everything that was accepted.
    pub position: Cell<u64>,
    /// The position behind the appends that the disk has.
    pub shown: Cell<u64>,
    /// The ends of the accepted appends behind that, the first one first.
    pub ends: RefCell<VecDeque<u64>>,
    /// True if nothing follows, and the disk knows it when it has everything before.
    pub is_closed: Cell<bool>,
    /// Bytes that belong to no message: the first, and the one behind the last.
    pub voids: RefCell<Vec<(u64, u64)>>,
}

impl Tail {
    /// Notes that the disk has everything before this position.
    pub fn show(&self, position: u64) {
        let shown = self.shown.get().max(position);
        self.shown.set(shown);
        let mut ends = self.ends.borrow_mut();
        while ends.front().is_some_and(|end| *end <= shown) {
            ends.pop_front();
        }
    }

    /// True if no crash cuts off what is before `position`, the end of a message that the disk has.
    /// A crash cuts off an append of which the disk has only a part.
    fn is_safe_at(&self, position: u64) -> bool {
        position <= self.shown.get()
            || self.ends.borrow().binary_search(&position).is_ok()
            || planted(Planted::PartOfAppendShown)
    }
}

/// A part of a stream, which one execution has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Part {
    pub execution: ExecutionId,
    /// The position of the first byte of the execution.
    pub origin: u64,
    /// The position at which the part ends.
    pub until: u64,
}

/// The parts that a reader still has to read, the last one first.
pub(in crate::server) type Parts = SmallVec<[Part; 2]>;

/// A reader. See the module's text.
#[derive(Debug)]
pub(in crate::server) struct Reader {
    /// The number of the stream in its table; `None` for an execution that is no stream.
    pub stream: Option<usize>,
    pub tail: Rc<Tail>,
    pub mode: Mode,
    /// The position behind everything that was read of whole messages, and that no crash cuts off.
    pub position: u64,
    /// The position behind everything that was read.
    read: u64,
    /// The parts, of which the last one is being read.
    pub parts: Parts,
    /// The cursor for the replies.
    pub cursor: u64,
    pub goal: Goal,
    /// Other readers may wait for its reply.
    pub lead: Option<Lead>,
    /// The request that is carried out when messages were counted.
    pub forking: Option<Box<Forking>>,
    /// The entity tags of replies that the client has.
    pub known: Vec<Box<str>>,
    /// The bytes of messages that will be sent. JSON has commas in between.
    piece: Vec<u8>,
    /// True if the disk does not have the next bytes any more.
    pub is_lost: bool,
    /// Number of bytes of `piece` that belong to the stream before `position`.
    whole_bytes: usize,
    /// True if the last chunk was a part of a message.
    is_inside: bool,
}

/// The use of what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Goal {
    /// One reply, with everything before this position if it is not too much.
    Reply { start: u64, until: u64, is_live: bool },
    /// Events. The flag is true once the end was sent.
    Events { says_closed: bool },
    /// The position behind so many more messages, if it is not behind `until`.
    Messages { left: u64, until: u64 },
}

impl Reader {
    /// Creates a reader that begins at `position`.
    pub fn new(
        (stream, tail): (Option<usize>, Rc<Tail>),
        mode: Mode,
        position: u64,
        parts: Parts,
        goal: Goal,
    ) -> Reader {
        Reader {
            stream,
            tail,
            mode,
            position,
            read: position,
            parts,
            cursor: 0,
            lead: None,
            forking: None,
            goal,
            known: Vec::new(),
            piece: Vec::new(),
            is_lost: false,
            whole_bytes: 0,
            is_inside: false,
        }
    }

    /// Returns the event for a chunk that is one message, if it is the next one. Readers at the
    /// same position share its bytes. `None`: use [`Reader::take`].
    #[inline]
    pub fn shared(&self, chunk: &Chunk<'_>, body: StreamBody) -> Option<SharedEvent> {
        let part = self.parts.last()?;
        let from = part.origin + chunk.offset;
        let end = from + chunk.data.len() as u64;
        let is_next = from == self.read && from < end && end <= part.until;
        let is_whole = self.piece.is_empty() && !self.is_inside && !chunk.more;
        let is_told = matches!(self.goal, Goal::Events { .. }) && !self.is_lost;
        let is_plain = self.tail.voids.borrow().is_empty() && self.tail.is_safe_at(end);
        let is_shared = is_next && is_whole && is_told && is_plain;
        is_shared.then(|| SharedEvent { mode: self.mode, body, control: self.control_at(end) })
    }

    /// Goes on behind an event that was sent.
    pub fn pass(&mut self, event: &SharedEvent) {
        let Offset(position) = event.control.next;
        (self.read, self.position) = (position, position);
        if event.control.is_closed {
            self.goal = Goal::Events { says_closed: true };
        }
    }

    /// Takes a chunk of the present part. Appends what has to be sent now.
    pub fn take(&mut self, chunk: &Chunk<'_>, body: StreamBody, out: &mut Vec<u8>) {
        let Some(part) = self.parts.last() else { return };
        let from = part.origin + chunk.offset;
        let end = (from + chunk.data.len() as u64).min(part.until);
        self.is_lost |= from > self.read && from < part.until;
        let first = from.max(self.read);
        if self.is_lost || first >= end {
            return; // It is behind a hole, before the beginning, or behind the end.
        }
        self.read = end;
        let voids = self.tail.voids.borrow();
        if voids.iter().any(|(void, behind)| *void <= from && end <= *behind) {
            (self.position, self.is_inside) = (end, false);
            return;
        }
        drop(voids);
        let data = &chunk.data[(first - from) as usize..(end - from) as usize];
        let begins = !std::mem::replace(&mut self.is_inside, chunk.more && end < part.until);
        if let Goal::Messages { left, .. } = &mut self.goal {
            if !self.is_inside && *left > 0 {
                (self.position, *left) = (end, *left - 1);
            }
            return;
        }
        if let Goal::Reply { until, .. } = self.goal
            && self.piece.is_empty()
        {
            // Instead of growing step by step, and with room for the brackets of JSON.
            let bytes = usize::try_from(until.saturating_sub(first)).unwrap_or(usize::MAX);
            self.piece.reserve(bytes.min(REPLY_BYTES) + 2);
        }
        if self.mode == Mode::Json && begins && !self.piece.is_empty() {
            self.piece.push(b',');
        }
        self.piece.extend_from_slice(data);
        // A part of a message of bytes can be sent. Others are sent whole.
        let is_sent = match self.goal {
            Goal::Events { .. } => !self.is_inside || self.mode == Mode::Bytes,
            Goal::Reply { .. } | Goal::Messages { .. } => !self.is_inside,
        };
        if is_sent && self.tail.is_safe_at(end) {
            (self.position, self.whole_bytes) = (end, self.piece.len());
            if let Goal::Events { .. } = self.goal {
                self.write_piece(body, out);
            }
        }
    }

    /// Returns the whole messages so far.
    pub fn whole(&mut self) -> Vec<u8> {
        self.piece.truncate(self.whole_bytes);
        std::mem::take(&mut self.piece)
    }

    fn write_piece(&mut self, body: StreamBody, out: &mut Vec<u8>) {
        let piece = std::mem::take(&mut self.piece);
        self.whole_bytes = 0;
        framed(body, out, |out| {
            write_data(out, self.mode, &piece);
            self.write_control(out);
        });
        self.piece = piece;
        self.piece.clear();
    }

    /// Appends a control event with the present position, in a frame of its own.
    pub fn write_position(&mut self, body: StreamBody, out: &mut Vec<u8>) {
        framed(body, out, |out| self.write_control(out));
    }

    fn write_control(&mut self, out: &mut Vec<u8>) {
        let control = self.control_at(self.position);
        write_control(out, &control);
        if control.is_closed {
            self.goal = Goal::Events { says_closed: true };
        }
    }

    /// The control event behind everything before this position.
    fn control_at(&self, position: u64) -> Control {
        let is_up_to_date = position >= self.tail.position.get();
        let is_closed = is_up_to_date && self.tail.is_closed.get();
        let cursor = (!is_closed).then_some(self.cursor);
        Control { next: Offset(position), cursor, is_up_to_date, is_closed }
    }

    /// Appends what the end of the execution of the last part means. `is_completed` is false if the
    /// stream was removed, or the disk has failed.
    pub fn end(&mut self, is_completed: bool, body: StreamBody, out: &mut Vec<u8>) {
        if let Goal::Events { says_closed: false } = self.goal
            && is_completed
            && !self.is_lost
            && self.parts.len() <= 1
        {
            self.tail.is_closed.set(true);
            self.write_position(body, out);
        }
    }

    /// True if the present part is read to its end, and another one follows.
    pub fn is_at_border(&self) -> bool {
        self.parts.len() > 1 && self.parts.last().is_some_and(|part| self.position >= part.until)
    }

    /// True if there is something to do for the one who owns the reader: to answer, or to go on
    /// with the next part.
    pub fn is_whole(&self) -> bool {
        self.is_lost || self.is_at_border() || self.is_reply_whole()
    }

    /// True if the reply can be sent, or if everything is counted.
    pub fn is_reply_whole(&self) -> bool {
        match self.goal {
            Goal::Reply { start, until, .. } => {
                let has_enough = self.whole_bytes >= limits::DURABLE_REPLY_BYTES;
                self.position > start && (self.position >= until || has_enough)
            }
            Goal::Messages { left, until } => left == 0 || self.position >= until,
            Goal::Events { .. } => false,
        }
    }

    /// True if it has a reply, and not a stream of events.
    pub fn has_reply(&self) -> bool {
        !matches!(self.goal, Goal::Events { .. })
    }
}

/// The event for a chunk that is one message, and the control event behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct SharedEvent {
    mode: Mode,
    body: StreamBody,
    control: Control,
}

impl SharedEvent {
    /// Appends the event with the message.
    pub fn write(&self, message: &[u8], out: &mut Vec<u8>) {
        framed(self.body, out, |out| {
            write_data(out, self.mode, message);
            write_control(out, &self.control);
        });
    }
}

fn framed(body: StreamBody, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let open = (body == StreamBody::Chunked).then(|| begin_chunk(out));
    write(out);
    if let Some(open) = open {
        end_chunk(out, open);
    }
}
