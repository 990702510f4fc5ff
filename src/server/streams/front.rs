//! Front ends: streams in the formats of their clients.
//!
//! The next events of a client depend on those before. Each such stream therefore has a
//! [`FrontState`] of its own, which writes directly into the connection's buffer. A stream that
//! does not begin with the first chunk is primed. The chunks before it that the ring still holds
//! are read here once, and what they leave open is sent as one event.
use smallvec::SmallVec;

use crate::base::{ExecutionId, Principal};
use crate::endpoint::front::{
    Channels, Front, FrontFormat, FrontItem, FrontNames, FrontReader, Since, StreamSource,
};
use crate::endpoint::{ApiError, Follow, FrontOptions, JSON};
use crate::engine::{From, Status, SubscribeError};
use crate::reactor::{ConnectionId, Reactor};
use crate::server::conversations::{Conversations, Waiting};
use crate::server::hub::Answered;
use crate::server::hub::frames::Encoding;
use crate::server::streams::attached::Attached;
use crate::server::streams::follow;
use crate::server::streams::follow::StreamHead;
use crate::server::{ServerShard, executions, hub};
use crate::shard::Chunk;
use crate::shard::act::read_chunk;
use crate::shard::run::Ring;
use crate::stream::{DetachReason, EndState, GapReason, Kinds};
use crate::wire::events::{self, WireEvent};
use crate::wire::sse;

/// A keep-alive that every one of these clients skips.
pub(in crate::server) const KEEP_ALIVE: &[u8] = b": \n\n";

/// The state of one front end's stream.
#[derive(Debug)]
pub(in crate::server) struct FrontState {
    /// `None` if its thread has no run.
    front: Option<Front>,
    opening: Opening,
    /// True if the answer is one JSON object.
    is_document: bool,
    /// The thread, if the stream continues with the thread's next run after the end of one.
    pub thread: Option<Thread>,
}

/// The beginning of a stream.
#[derive(Debug)]
enum Opening {
    /// At the start of a run. Holds the names of the page's own tools, which the server does not
    /// call.
    Start(Vec<String>),
    /// In the middle, for a reader of this kind. Holds the first and last chunk that were lost
    /// before.
    Middle(FrontReader, Option<(u64, u64)>),
    /// In the middle, for a reader of this kind. The chunks before this one come from the disk
    /// first, and the reader is not sent them.
    Primed(FrontReader, u64),
}

/// A thread that is followed from run to run.
#[derive(Debug)]
pub(in crate::server) struct Thread {
    pub principal: Principal,
    pub name: Box<str>,
    pub format: FrontFormat,
    pub channels: Channels,
    /// The table of runs by thread.
    pub conversations: Conversations,
    /// Present while it waits for the next run.
    pub waiting: Option<Waiting>,
}

/// The continuation of a stream after the end of all that it followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Next {
    /// The stream ends.
    Nothing,
    /// The stream waits for the next run of its thread.
    Wait,
    /// The stream is cut off, so that its client reconnects and finds the present state.
    Cut,
}

impl FrontState {
    /// Creates the state for a thread that has no run.
    pub fn nothing_yet(thread: Thread) -> FrontState {
        let opening = Opening::Start(Vec::new());
        FrontState { front: None, opening, is_document: false, thread: Some(thread) }
    }

    /// The keep-alive of such a stream: readers of JSON skip white space.
    pub fn keep_alive(&self) -> &'static [u8] {
        if self.is_document { b"\n" } else { KEEP_ALIVE }
    }

    /// Continues with the next run.
    pub fn begin_run(&mut self, front: Front) {
        (self.front, self.opening) = (Some(front), Opening::Start(Vec::new()));
    }

    /// Ends the run with this name, and returns what follows.
    pub fn end_run(&mut self, run: &str, state: EndState) -> Next {
        let Some(thread) = &mut self.thread else { return Next::Nothing };
        match state {
            EndState::Detached { reason: DetachReason::Shutdown, .. } => return Next::Nothing,
            EndState::Detached { .. } => return Next::Cut,
            EndState::Ended(_) => {}
        }
        let newest = thread.conversations.newest(thread.principal, &thread.name);
        if newest.is_some_and(|newest| newest.to_string() != run) {
            return Next::Cut; // Another run has begun meanwhile.
        }
        thread.waiting = Some(thread.conversations.wait());
        self.front = None;
        Next::Wait
    }

    /// Appends the events that this client gets for an event, which may be none.
    pub fn write(&mut self, event: &WireEvent<'_>, out: &mut Vec<u8>) {
        if matches!(self.opening, Opening::Primed(..)) && self.is_primed_with(event, out) {
            return;
        }
        let Some(front) = &mut self.front else { return };
        match event {
            WireEvent::Started(started) => match &self.opening {
                Opening::Start(passed_over) => {
                    front.write(FrontItem::Started(started), out);
                    if !passed_over.is_empty() {
                        front.write_passed_over(passed_over, out);
                    }
                }
                Opening::Middle(reader, lost) => {
                    front.reopen(*reader, out);
                    if let Some((from_seq, to_seq)) = *lost {
                        let gap = events::GapEvent {
                            execution: started.execution,
                            from_seq,
                            to_seq,
                            chunk_count: to_seq + 1 - from_seq,
                            byte_count: 0, // The number is not known any more.
                            reason: GapReason::Late.name(),
                        };
                        front.write(FrontItem::Gap(&gap), out);
                    }
                }
                Opening::Primed(..) => unreachable!("its writer is primed with it"),
            },
            WireEvent::Chunk(chunk) => front.write(FrontItem::Chunk(chunk), out),
            WireEvent::Part(part) => front.write(FrontItem::Chunk(&chunk_of(part)), out),
            WireEvent::Gap(gap) => front.write(FrontItem::Gap(gap), out),
            WireEvent::Progress(progress) => front.write(FrontItem::Progress(progress), out),
            WireEvent::End(end) => front.write(FrontItem::End(end), out),
        }
    }
}

impl FrontState {
    /// Primes the writer with an event from before the position of the client, and opens the stream
    /// once that is reached. Returns true if the client is not sent the event.
    #[cold]
    fn is_primed_with(&mut self, event: &WireEvent<'_>, out: &mut Vec<u8>) -> bool {
        let Opening::Primed(reader, until_seq) = self.opening else { return false };
        let Some(front) = &mut self.front else { return false };
        let last_seq = match event {
            WireEvent::Started(_) | WireEvent::Progress(_) => 0,
            WireEvent::Chunk(chunk) => chunk.seq,
            WireEvent::Part(part) => part.seq,
            WireEvent::Gap(gap) => gap.to_seq,
            WireEvent::End(_) => u64::MAX,
        };
        match event {
            _ if last_seq >= until_seq => {}
            WireEvent::Started(started) => front.prime(FrontItem::Started(started)),
            WireEvent::Progress(progress) => front.prime(FrontItem::Progress(progress)),
            WireEvent::Chunk(chunk) => front.prime(FrontItem::Chunk(chunk)),
            WireEvent::Part(part) => front.prime(FrontItem::Chunk(&chunk_of(part))),
            WireEvent::Gap(gap) => front.prime(FrontItem::Gap(gap)),
            WireEvent::End(end) => front.prime(FrontItem::End(end)),
        }
        if last_seq.saturating_add(1) >= until_seq {
            front.reopen(reader, out);
            self.opening = Opening::Middle(reader, None);
        }
        last_seq < until_seq
    }
}

/// Returns a part as the chunk that it came in. A front end reads only its payload.
fn chunk_of<'a>(part: &events::PartEvent<'a>) -> events::ChunkEvent<'a> {
    events::ChunkEvent {
        execution: "",
        seq: part.seq,
        total_chunks: None,
        kind: "text",
        key: None,
        offset: 0,
        data: part.json,
        timestamp_us: 0,
        mono_ns: 0,
    }
}

/// The position at which a stream begins.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    /// The start of its subscription.
    from: From,
    /// Chunks before this one were sent before, or are sent as one event.
    primed_until: u64,
    /// The first and last chunk that were lost meanwhile.
    lost: Option<(u64, u64)>,
}

/// Returns where a stream begins that asks for `from`, or that resumes after `since`.
fn beginning(
    status: &Status,
    from: From,
    since: Option<Since>,
) -> Result<Beginning, SubscribeError> {
    let next_seq = status.head_seq + 1;
    let at = |seq: u64| From::Seq { seq, seen: None };
    if let Some(Since { part, is_reopened }) = since {
        // The client may lack some events of that part.
        let wanted_seq = (part + u64::from(is_reopened)).clamp(1, next_seq);
        let held_seq = wanted_seq.max(status.tail_seq);
        let lost = (held_seq > wanted_seq).then_some((wanted_seq, held_seq - 1));
        return Ok(Beginning { from: at(held_seq), primed_until: wanted_seq, lost });
    }
    let wanted_seq = match from {
        From::Start => 1,
        From::Live => next_seq,
        From::Seq { seq, .. } if seq > next_seq && !status.state.is_over() => {
            return Err(SubscribeError::NotYet { next_seq });
        }
        From::Seq { seq, .. } => seq.min(next_seq),
    };
    let from = if wanted_seq == 1 { From::Start } else { at(wanted_seq) };
    Ok(Beginning { from, primed_until: wanted_seq, lost: None })
}
/// Answers with a stream in the format of a front end.
pub(in crate::server) fn follow_front<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    follow: &Follow,
    format: FrontFormat,
) -> Answered {
    let (execution, from) = follow.executions[0];
    match follow_in_words(shard, id, (execution, from), follow, (format, None)) {
        Ok(answered) => answered,
        Err(error) => hub::answer_error(shard, id, &error),
    }
}

/// Begins a stream of an execution in this format, and of its whole thread if there is one.
pub(in crate::server) fn follow_in_words<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    (execution, from): (ExecutionId, From),
    follow: &Follow,
    (format, thread): (FrontFormat, Option<Thread>),
) -> Result<Answered, ApiError> {
    // Executes pending actions, which may name subscriber slots that are used next.
    shard.pump();
    let status = shard.inspect(execution)?;
    let FrontOptions { since, channels, passed_over, is_plain, cancels, reply_to, history_max } =
        &follow.front;
    let mut front = front_of(shard, execution, format, channels);
    if *is_plain {
        front.be_plain();
    }
    front.reply_to(reply_to.clone(), *history_max);
    let since = since.and_then(|since| front.set_since(since));
    let Beginning { from, primed_until, lost } = beginning(&status, from, since)?;
    let kinds = follow.delivery_options.kinds;
    let is_new = since.is_none_or(|since| since.is_reopened);
    let reader = if is_new { FrontReader::New } else { FrontReader::Returning };
    let is_kept = shard.run_of(execution).is_some_and(|run| run.has_history());
    let (opening, from) = match primed_until {
        1 => (Opening::Start(passed_over.clone()), from),
        // The disk has what the ring does not hold any more.
        _ if is_kept && status.tail_seq > 1 => (Opening::Primed(reader, primed_until), From::Start),
        _ => {
            give_held(shard, &status, primed_until, kinds, |item| front.prime(item));
            (Opening::Middle(reader, lost), from)
        }
    };
    let spec = executions::spec_of(shard, execution, &follow.delivery_options, from);
    let subscribed = follow::attach_connection(shard, execution, spec, id)?;
    let attached = SmallVec::from_iter([(execution, Attached::Here(subscribed))]);
    let is_document = format.is_document();
    let told = FrontState { front: Some(front), opening, is_document, thread };
    let answered = follow::begin(shard, id, StreamHead::told(format, told), attached);
    if *cancels {
        follow::cancel_with(shard, id, execution);
    }
    Ok(answered)
}

/// Returns the writer for the events of this execution.
pub(in crate::server) fn front_of<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    execution: ExecutionId,
    format: FrontFormat,
    channels: &Channels,
) -> Front {
    let run = shard.run_of(execution).expect("the caller found it");
    let tool = run.tool.as_ref().map_or("", |tool| tool.name.as_str());
    let mut names = FrontNames::new(&run.names.execution, tool);
    if let Some(arguments) = &run.guest.arguments {
        names.arguments.clone_from(arguments);
    }
    let created_us = match shard.guests.archive.get(execution) {
        Some(entry) => entry.dates.created_us,
        None => shard.anchor.wall_us_at(run.opened_at.nanos()),
    };
    names.created_s = created_us / 1_000_000;
    let mut ordinal = 0;
    if let Some(seat) = &run.guest.thread {
        seat.thread_id().clone_into(&mut names.thread_id);
        if let Some(run_id) = &seat.run_id {
            names.run_id = run_id.to_string();
        }
        ordinal = seat.ordinal;
    }
    let source = if run.names.has_parts { StreamSource::Agent } else { StreamSource::Tool };
    let mut front = Front::new(format, names, source);
    front.set_run(ordinal);
    front.set_channels(channels.clone());
    front
}

/// Gives the beginning of a stream, and the chunks before `until_seq` that the ring holds.
pub(in crate::server) fn give_held<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    status: &Status,
    until_seq: u64,
    kinds: Kinds,
    mut take: impl FnMut(FrontItem<'_>),
) {
    let place = shard.place_of(status.id).slot.index;
    let run = shard.runs[place as usize].as_ref().expect("the caller found it");
    let started = events::StartedEvent {
        execution: &run.names.execution,
        subscriber: "",
        tool: "",
        token: None,
        policy: "",
        limits: events::Limits { chunks: 0, bytes: None },
        from_seq: 1,
        replay: None,
    };
    take(FrontItem::Started(&started));
    if matches!(run.ring, Ring::None) {
        return;
    }
    let clocks = run.ring_clocks().unwrap_or(shard.anchor);
    for seq in status.tail_seq.max(1)..until_seq.min(status.head_seq + 1) {
        let Ok((descriptor, data)) = read_chunk(run, seq, &mut shard.scratch) else { continue };
        let chunk = Chunk::new(run.id, run.chunks_expected, &descriptor, data, clocks);
        let chunk = chunk.expect("this process wrote it");
        if kinds.contains(chunk.kind) {
            take(FrontItem::Chunk(&chunk.event(&run.names.execution)));
        }
    }
}

impl StreamHead {
    /// Returns the format of a stream for a front end.
    pub fn told(format: FrontFormat, told: FrontState) -> StreamHead {
        StreamHead {
            encoding: Encoding::Front,
            media_type: if told.is_document { JSON } else { sse::MEDIA_TYPE },
            headers: format.headers(),
            own_headers: told.front.as_ref().map(Front::headers).unwrap_or_default(),
            is_combined: false,
            front: Some(Box::new(told)),
            payload: None,
        }
    }
}
