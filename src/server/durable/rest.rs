//! Streams that nobody uses leave the engine. They stay open in the journal, and come back with the
//! next request. A shard thus has many more streams than executions at a time.

use super::{Durable, keep};
use crate::base::Instant;
use crate::endpoint::ApiError;
use crate::engine::OpenError;
use crate::limits;
use crate::reactor::Reactor;
use crate::server::{ServerShard, executions};
use crate::shard::{ExecuteError, journal::ResumeError};

impl Durable {
    /// Notes that the execution of a stream is in the engine, and was used.
    pub(super) fn note_present(&mut self, at: usize, now: Instant) {
        let stream = &mut self.streams[at];
        stream.used_at = now;
        if !std::mem::replace(&mut stream.is_listed, true) {
            self.present.push_back((at, now));
        }
    }

    /// Returns the time at which a stream may leave the engine.
    pub(super) fn next_rest(&self) -> Option<Instant> {
        self.present.front().map(|(_, used_at)| *used_at + limits::DURABLE_IDLE)
    }
}

/// Lets the streams leave the engine that nobody has used for some time.
pub(super) fn let_rest<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let now = shard.now;
    for _ in 0..limits::DURABLE_RESTS_PER_TURN {
        let durable = &mut shard.guests.durable;
        let Some(&(at, since)) = durable.present.front() else { return };
        if since + limits::DURABLE_IDLE > now {
            return;
        }
        shard.worked = true;
        let _ = look_at_first(shard, at, limits::DURABLE_IDLE);
    }
}

/// Looks at the stream that was listed for longest. Returns true if it has left the engine.
fn look_at_first<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
    idle: std::time::Duration,
) -> bool {
    let now = shard.now;
    let durable = &mut shard.guests.durable;
    durable.present.pop_front();
    let Some(stream) = durable.streams.get_mut(at) else { return false };
    stream.is_listed = false;
    let (execution, used_at) = (stream.execution, stream.used_at);
    let is_busy =
        stream.publishing.is_some() || !stream.unconfirmed.is_empty() || !stream.waiting.is_empty();
    if shard.run_of(execution).is_none() {
        return false;
    }
    let has_left = !is_busy && used_at + idle <= now && shard.suspend(execution).is_ok();
    let durable = &mut shard.guests.durable;
    if has_left {
        durable.streams[at].release_memory();
    } else {
        let is_used = used_at + idle > now;
        durable.streams[at].is_listed = true;
        // Its readers or its appends are looked at again later.
        durable.present.push_back((at, if is_used { used_at } else { now }));
    }
    has_left
}

/// Lets one stream leave the engine at once, because another execution needs its place.
pub(in crate::server) fn has_freed_place<R: Reactor + 'static>(shard: &mut ServerShard<R>) -> bool {
    let count = shard.guests.durable.present.len().min(limits::DURABLE_LOOKS_MAX);
    (0..count).any(|_| {
        let first = shard.guests.durable.present.front().map(|(at, _)| *at);
        first.is_some_and(|at| look_at_first(shard, at, std::time::Duration::ZERO))
    })
}

/// True if another stream has to leave the engine first.
pub(super) fn needs_room(error: &ExecuteError) -> bool {
    matches!(error, ExecuteError::Open(OpenError::TooMany { .. } | OpenError::Busy { .. }))
}

/// Makes sure that the engine has the execution of a stream.
pub(super) fn make_present<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
) -> Result<(), ApiError> {
    let now = shard.now;
    let stream = &shard.guests.durable.streams[at];
    if stream.state.closed.is_some() {
        return Ok(()); // It has ended, and is brought back like any other.
    }
    if shard.run_of(stream.execution).is_none() {
        let resumed = match keep::resume(shard, at) {
            Err(ResumeError::Refused(error)) if needs_room(&error) && has_freed_place(shard) => {
                keep::resume(shard, at)
            }
            resumed => resumed,
        };
        resumed.map_err(|error| match error {
            ResumeError::NotFound => crate::engine::NotFound.into(),
            ResumeError::Refused(error) => executions::refusal(error),
        })?;
    }
    shard.guests.durable.note_present(at, now);
    Ok(())
}
