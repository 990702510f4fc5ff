//! Markers of removed streams. A stream with forks stays on the disk after its removal. Its
//! description says that it is gone, unless it has ended: nothing follows an end. An execution
//! without chunks says it then, and is removed together with the stream.

use std::sync::Arc;

use serde_json::{Value, json};

use super::create::{TOOL, options_of};
use crate::base::ExecutionId;
use crate::journal::Refused;
use crate::reactor::Reactor;
use crate::server::guests::Guests;
use crate::server::{ServerShard, executions};
use crate::shard::journal::OpenKept;
use crate::shard::{ExecuteError, Outlet};
use crate::tool::{Prepared, ToolSpec, Work};

/// The member of a record that names the removed stream.
const MEMBER: &str = "removed_stream";

/// A marker that the journal had at the start.
pub(in crate::server) struct KeptMarker {
    pub marker: ExecutionId,
    /// The execution of the removed stream.
    pub stream: ExecutionId,
}

/// Returns the markers among the open executions that the journal had at the start.
pub(super) fn kept_markers(open: &[OpenKept]) -> Vec<KeptMarker> {
    let found = open.iter().filter_map(|kept| {
        let stream = kept.opened.guest[MEMBER].as_str()?.parse().ok()?;
        Some(KeptMarker { marker: kept.id, stream })
    });
    found.collect()
}

/// Marks a closed stream as removed. Returns the execution that says so.
pub(super) fn mark<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    at: usize,
) -> Result<ExecutionId, Refused> {
    let stream = &shard.guests.durable.streams[at];
    let (execution, owner) = (stream.execution, stream.key.owner.clone());
    let owner = shard.guests.access.principal_of(owner.as_deref());
    let mut prepared = Prepared::new(Work::Feed);
    prepared.tool = Some(Arc::new(ToolSpec::new(TOOL, "A removed stream with forks.")));
    let options = options_of(owner);
    let refused = |error| match error {
        ExecuteError::NotKept(refused) => refused,
        _ => Refused::Full,
    };
    let mut guest = Guests::prepare(shard, &prepared.work, &options).map_err(refused)?;
    let members: Value = json!({MEMBER: execution.to_string()});
    guest.described = Some(Box::new(members));
    let marker = shard.open_execution(prepared, options, guest).map_err(refused)?;
    shard.guests.durable.streams[at].marker = Some(marker);
    shard.hurry_kept(marker);
    Ok(marker)
}

/// Removes a marker, because its stream is gone for good. The next start tries again.
pub(super) fn remove<R: Reactor + 'static>(shard: &mut ServerShard<R>, marker: ExecutionId) {
    let owner = shard.run_of(marker).map(|run| run.guest.owner).unwrap_or_default();
    if shard.resume(marker, &options_of(owner)).is_ok() {
        let _ = shard.finish(marker, Ok(())); // It was just brought back.
        let _ = executions::erase(shard, marker);
    }
}
