//! The promise of an execution, for guests whose answers wait for the disk.

use super::keeping::{Keeping, is_synced};
use crate::base::ExecutionId;
use crate::journal::Fault;

/// True if the disk has an execution through this chunk as promised; an error if it never will.
pub(crate) fn is_durable_to(keeping: &Keeping, id: ExecutionId, seq: u64) -> Result<bool, Fault> {
    let kept = keeping.journal.find(id.to_bits());
    let until_seq = kept.and_then(|kept| keeping.durable_until(kept));
    match keeping.journal.fault() {
        Some(fault) => Err(fault),
        None => Ok(until_seq.is_none_or(|until_seq| until_seq > seq)),
    }
}

/// True if an open execution is `synced`.
pub(crate) fn promises_sync(keeping: &Keeping, id: ExecutionId) -> bool {
    let kept = keeping.journal.find(id.to_bits());
    kept.is_some_and(|kept| is_synced(&keeping.journal, kept))
}

/// True if the disk has failed.
pub(crate) fn has_failed(keeping: &Keeping) -> bool {
    keeping.journal.fault().is_some()
}

/// Lets the disk hurry, because somebody waits for what an execution has appended.
pub(crate) fn hurry(keeping: &mut Keeping, id: ExecutionId) {
    if let Some(kept) = keeping.journal.find(id.to_bits()) {
        keeping.await_promise(kept);
    }
}
