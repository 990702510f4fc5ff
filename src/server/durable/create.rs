//! Creates streams.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::paths::{Key, StreamHead};
use super::state::{self, Closed, Config, StreamState};
use super::{Publishing, Stream, append, find, own_index, refuse, remove, rest, touch};
use crate::base::{ExecutionId, Principal};
use crate::endpoint::durable::answer_refused;
use crate::endpoint::{ApiError, Creation, Fork};
use crate::engine::NotFound;
use crate::journal::Refused;
use crate::limits;
use crate::reactor::{ConnectionId, Reactor};
use crate::server::guests::Guests;
use crate::server::hub::Answered;
use crate::server::{ServerShard, executions, hub};
use crate::shard::{ExecuteError, ExecuteOptions, Outlet};
use crate::stream::{Deliver, Durability, OnFull};
use crate::tool::{Prepared, ToolSpec, Work};
use crate::wire::durable::{Mode, Offset};
use crate::wire::http1::Status;

/// The name of the tool of the execution of a stream, in lists.
pub(super) const TOOL: &str = "stream";

/// The place at which a fork leaves its source, if messages were counted for it: the execution of
/// the source, and the position.
pub(super) type Counted = Option<(ExecutionId, u64)>;

/// The reason why a stream was not created.
enum Refusal {
    /// The journal has no room now.
    NoRoom,
    For(ApiError),
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Refusal {
        Refusal::For(error)
    }
}

/// Creates a stream, or answers that there is the same one. `None` if the journal has no room now:
/// nothing has changed then.
pub(super) fn create<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    (key, found): (Key, Option<usize>),
    (creation, counted): (&mut Creation, Counted),
    (host, raw_path, owner): (Option<&str>, &str, Principal),
) -> Option<Answered> {
    if let Some(at) = found {
        let stream = &shard.guests.durable.streams[at];
        let (state, has_all) = (&stream.state, append::has_all(stream));
        let is_same = state.config.is_same(creation)
            && state.closed.is_some() == creation.is_closed
            && !state.is_gone;
        let text = "there is another stream at this path";
        let error = ApiError::new(Status::CONFLICT, "stream_exists", text);
        return Some(match is_same {
            true => {
                let answer = state.created(None);
                append::answer_when_kept(shard, id, at, answer)
            }
            false if has_all => refuse(shard, id, &error),
            // A crash may take back what makes it another one.
            false => append::answer_when_kept(shard, id, at, answer_refused(&error)),
        });
    }
    let scheme = hub::scheme_of(shard, id);
    let location = match host {
        Some(host) => format!("{scheme}://{host}{raw_path}"),
        None => raw_path.to_owned(),
    };
    match begin(shard, id, key, (creation, counted), (location, owner)) {
        Ok(()) => Some(hub::wait(shard, id)),
        Err(Refusal::NoRoom) => None,
        Err(Refusal::For(error)) => Some(refuse(shard, id, &error)),
    }
}

/// The beginning of a fork.
struct Source {
    at: usize,
    /// The offset that was asked for.
    anchor: u64,
    /// The position at which the own bytes of the fork begin.
    origin: u64,
}

fn begin<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    id: ConnectionId,
    key: Key,
    (creation, counted): (&mut Creation, Counted),
    (location, owner): (String, Principal),
) -> Result<(), Refusal> {
    check(shard, creation)?;
    let source = match &creation.fork {
        Some(fork) => {
            Some(source_of(shard, &key, (fork, counted), creation.media_type.as_deref())?)
        }
        None => None,
    };
    let durable = &shard.guests.durable;
    let inherited =
        source.as_ref().map(|source| (&durable.streams[source.at].state.config, source.anchor));
    let config = Config::of(creation, inherited);
    let messages = state::split(config.mode(), &creation.body)?;
    let origin = source.as_ref().map_or(0, |source| source.origin);
    let body_bytes: usize = messages.iter().map(Range::len).sum();
    let tail = origin + body_bytes as u64;
    let closed = creation.is_closed.then(Closed::default);
    let voids = source.as_ref().map_or(Vec::new(), |source| {
        let all = &durable.streams[source.at].state.voids;
        all.iter().filter(|(void, _)| *void < origin).copied().collect()
    });
    let first_tail = tail;
    let state = StreamState { config, tail, first_tail, closed, voids, ..StreamState::default() };
    if durable.paths.claim(&key, own_index(shard)) != own_index(shard) {
        let text = "the stream is being created; try again";
        let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", text);
        return Err(error.retry_after(limits::BUSY_RETRY_AFTER).into());
    }
    let at = insert(shard, key, state, source.as_ref());
    if let Err(error) = open(shard, at, owner) {
        remove::drop_entry(shard, at);
        return Err(error);
    }
    touch(shard, at);
    let answer = shard.guests.durable.streams[at].state.created(Some(location));
    let publishing = Publishing {
        connection: Some(id),
        is_silent: false,
        answer,
        left: messages.into_iter().rev().collect(),
        body: std::mem::take(&mut creation.body),
        published_bytes: 0,
        closes: creation.is_closed,
    };
    shard.guests.durable.streams[at].publishing = Some(Box::new(publishing));
    append::publish(shard, at);
    shard.hurry_kept(shard.guests.durable.streams[at].execution);
    Ok(())
}

/// Checks whether this shard can have one more stream.
fn check<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    creation: &Creation,
) -> Result<(), ApiError> {
    if shard.durability_of(None) == Durability::None {
        let text = "streams need a journal, and this server keeps nothing; see --journal";
        return Err(ApiError::new(Status::BAD_REQUEST, "no_journal", text));
    }
    let bytes_max = limits::DURABLE_TYPE_BYTES_MAX;
    if creation.media_type.as_ref().is_some_and(|media_type| media_type.len() > bytes_max) {
        let text = "content-type: it is too long";
        let error = ApiError::new(Status::BAD_REQUEST, "invalid_parameter", text);
        return Err(error.field("content-type").limit(bytes_max as u64));
    }
    let streams_max = limits::DURABLE_STREAMS_MAX;
    if shard.guests.durable.streams.len() >= streams_max {
        let text = "the server has as many streams as it can have";
        let error = ApiError::new(Status::TOO_MANY_REQUESTS, "too_many_executions", text);
        return Err(error.limit(streams_max as u64).retry_after(limits::BUSY_RETRY_AFTER));
    }
    Ok(())
}

/// Finds the stream that a new one begins with, and the place at which it leaves that.
fn source_of<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    key: &Key,
    (fork, counted): (&Fork, Counted),
    media_type: Option<&str>,
) -> Result<Source, ApiError> {
    let source_key = Key { owner: key.owner.clone(), path: fork.source.clone() };
    let at = find(shard, &source_key).ok_or(NotFound)?;
    let stream = &shard.guests.durable.streams[at];
    let conflict = |code, text: &str| ApiError::new(Status::CONFLICT, code, text);
    if stream.state.is_gone {
        return Err(conflict("stream_gone", "the source was removed"));
    }
    if durable_depth(shard, at) >= limits::DURABLE_FORKS_MAX {
        let text = "stream-forked-from: too many forks of forks";
        let error = ApiError::new(Status::BAD_REQUEST, "invalid_parameter", text);
        return Err(error.limit(limits::DURABLE_FORKS_MAX as u64));
    }
    // A crash may cut off what is behind that.
    let shown = append::look_at_shown(shard, at);
    let config = &shard.guests.durable.streams[at].state.config;
    if media_type.is_some_and(|media_type| !state::is_same_type(media_type, &config.media_type)) {
        let text = format!("content-type: the source has {}", config.media_type);
        return Err(conflict("type_mismatch", &text).field("content-type"));
    }
    let invalid = |field: &str, text: &str| {
        let text = format!("{field}: {text}");
        ApiError::new(Status::BAD_REQUEST, "invalid_parameter", text).field(field)
    };
    let Offset(anchor) = fork.offset.unwrap_or(Offset(shown));
    if anchor > shown {
        return Err(invalid("stream-fork-offset", "the source is not that long"));
    }
    let (mode, execution) = (config.mode(), shard.guests.durable.streams[at].execution);
    let origin = match (fork.sub_offset, mode, counted) {
        (0, ..) => Some(anchor),
        (_, Mode::Json, Some((counted, _))) if counted != execution => {
            let text = "the source was replaced while its messages were counted; try again";
            let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", text);
            return Err(error.retry_after(limits::BUSY_RETRY_AFTER));
        }
        (_, Mode::Json, counted) => counted.map(|(_, position)| position),
        (bytes, ..) => anchor.checked_add(bytes),
    };
    let origin = origin.filter(|origin| *origin <= shown);
    let too_far = || invalid("stream-fork-sub-offset", "the source is not that long");
    let origin = origin.ok_or_else(too_far)?;
    Ok(Source { at, anchor, origin })
}

/// Returns the number of streams that a stream begins with, one inside the other.
fn durable_depth<R: Reactor + 'static>(shard: &ServerShard<R>, at: usize) -> usize {
    let streams = &shard.guests.durable.streams;
    std::iter::successors(Some(at), |at| streams[*at].source).count()
}

/// Enters a stream in the table.
fn insert<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    key: Key,
    state: StreamState,
    source: Option<&Source>,
) -> usize {
    let now = shard.now;
    let durable = &mut shard.guests.durable;
    let origin = source.map_or(0, |source| source.origin);
    let unopened = ExecutionId::from_bits(0);
    let mut stream = Stream::new(key.clone(), state, unopened, origin, now);
    // The disk has nothing of its own yet.
    stream.tail.shown.set(origin);
    stream.tail.is_closed.set(stream.state.closed.is_some() && stream.state.tail > origin);
    stream.tail.ends.borrow_mut().push_back(stream.state.tail);
    if let Some(source) = source {
        durable.streams[source.at].fork_count += 1;
        stream.source = Some(source.at);
    }
    let at = durable.streams.insert(stream);
    durable.by_key.insert(key, at);
    at
}

/// Returns the options of an execution that a guest of the shard brings back after a restart.
pub(in crate::server) fn options_of(owner: Principal) -> ExecuteOptions {
    ExecuteOptions {
        grows: true,
        deliver: Deliver::WhenDurable,
        on_full: OnFull::Wait,
        goes_on: true,
        retention: Some(limits::DURABLE_RETENTION),
        owner,
        ..ExecuteOptions::default()
    }
}

/// Returns the options of the execution of a stream. It is kept until it is removed.
pub(super) fn options_of_stream(owner: Principal) -> ExecuteOptions {
    let keep = Some(Duration::from_secs(limits::KEEP_S_MAX.into()));
    ExecuteOptions { keep, ..options_of(owner) }
}

/// Opens the execution of a stream.
fn open<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    owner: Principal,
) -> Result<(), Refusal> {
    let opened = match try_open(shard, at, owner) {
        Err(error) if rest::needs_room(&error) && rest::has_freed_place(shard) => {
            try_open(shard, at, owner)
        }
        opened => opened,
    };
    let execution = opened.map_err(|error| match error {
        ExecuteError::NotKept(Refused::Full) => Refusal::NoRoom,
        error => Refusal::For(executions::refusal(error)),
    })?;
    let now = shard.now;
    let durable = &mut shard.guests.durable;
    let stream = &mut durable.streams[at];
    stream.execution = execution;
    let head = StreamHead::new(execution, stream.origin, stream.origin);
    stream.head = Some(Arc::clone(&head));
    durable.paths.show(&stream.key, head);
    durable.by_execution.insert(execution, at);
    durable.note_present(at, now);
    Ok(())
}

fn try_open<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    owner: Principal,
) -> Result<ExecutionId, ExecuteError> {
    let mut prepared = Prepared::new(Work::Feed);
    prepared.tool = Some(Arc::new(ToolSpec::new(TOOL, "A stream that clients write.")));
    prepared.need.ring_bytes = limits::DURABLE_RING_BYTES;
    let options = options_of_stream(owner);
    let mut guest = Guests::prepare(shard, &prepared.work, &options)?;
    guest.stream = Some(at);
    shard.open_execution(prepared, options, guest)
}
