//! Begins executions: the options, the refusals, and what the shard keeps of each.

use std::fmt;
use std::time::Duration;

use super::Shard;
use super::act;
use super::events::Names;
use super::journal::{GoesOn, Late};
use super::memory::Shortage;
use super::outlet::Outlet;
use super::run::{Producer, Run};
use crate::base::{ExecutionId, Handle, Principal};
use crate::engine::{Event, Hold, OpenError, OpenSpec, ProgressSource, Reply, Timeouts};
use crate::journal::Refused;
use crate::journal::records::Terms;
use crate::limits;
use crate::reactor::Reactor;
use crate::stream::{Deliver, Durability, OnFull};
use crate::tool::{Prepared, StartError, Work};

/// The options of an execution. Their defaults are those of `limits.rs`.
///
/// ```
/// use std::time::Duration;
/// use streamdoor::ExecuteOptions;
/// use streamdoor::options::Timeouts;
///
/// let timeouts = Timeouts { total: Some(Duration::from_secs(60)), ..Default::default() };
/// let options = ExecuteOptions { timeouts: Some(timeouts), ..Default::default() };
/// assert!(options.retention.is_none());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecuteOptions {
    /// The condition on which the tool starts.
    pub start: crate::engine::Start,
    /// The behaviour of the ring before the first subscriber comes. An execution that is kept on
    /// disk holds the newest chunks, and the first subscriber finds the others on the disk.
    pub hold: crate::engine::Hold,
    /// Time for which the execution can be read after its end; the shard's own if `None`.
    pub retention: Option<Duration>,
    /// Time for which a `block` subscriber may hold the producer back; the shard's own if `None`.
    /// Under [`OnFull::Wait`] the journal may have no room for as long.
    pub block_deadline: Option<Duration>,
    /// The consequence when `block_deadline` passes.
    pub on_stall: crate::engine::OnStall,
    /// The time limits of the tool; those that the tool itself declares if `None`.
    pub timeouts: Option<Timeouts>,
    /// The source of the execution's progress; the one that the tool itself declares if `None`.
    pub progress: Option<ProgressSource>,
    /// True if the ring starts small, and grows up to the size that the tool needs. That takes less
    /// memory for many short results. While many rings are in use, a ring grows only where its
    /// producer finds no room. Subscribers that come late then find fewer old chunks. Tools on
    /// threads of their own get the whole ring.
    pub grows: bool,
    /// The promise for the chunks of the execution; the one of the shard's journal if `None`.
    /// Without a journal nothing is kept.
    pub durability: Option<Durability>,
    /// The time at which subscribers are given its chunks. [`Deliver::WhenDurable`] needs a
    /// durability other than `none`.
    pub deliver: Deliver,
    /// The consequence if the journal has no room for a chunk. [`OnFull::Wait`] needs a durability
    /// other than `none`.
    pub on_full: OnFull,
    /// Time for which the execution is kept on disk after its end, in whole seconds. The retention
    /// of the journal, which may be shorter or longer, does not hold for it then. This needs a
    /// durability other than `none`. If the journal is as large as it may be, the oldest executions
    /// go before their time.
    pub keep: Option<Duration>,
    /// True if a restart does not end the execution, and its owner brings it back. It has to be fed
    /// by hand and kept. Otherwise this means nothing.
    #[doc(hidden)]
    pub goes_on: bool,
    /// The owner of the execution. Over the network nobody else finds it.
    pub owner: Principal,
}

/// The reason why an execution was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecuteError {
    /// Fix the call: the tool does not exist, or its arguments are wrong.
    Start(StartError),
    /// Wait, or give up: the shard has no place for the execution.
    Open(OpenError),
    /// Give up: the operating system has no randomness for its id.
    NoRandomness,
    /// Fix the call: no ring takes chunks that long.
    ChunkTooLarge {
        /// The chunk length that the tool declares, in bytes.
        chunk_bytes: u32,
        /// The maximum, in bytes.
        chunk_bytes_max: u32,
    },
    /// Wait until more memory is free, or ask for less: rings that take such chunks are not allowed
    /// now.
    MemoryShort(Shortage),
    /// Fix the call: the shard has no journal that could keep the chunks.
    NoJournal {
        /// The promise that was asked for.
        durability: Durability,
    },
    /// Fix the call: no log of a cluster takes the chunks. The server is no node, or the execution
    /// is not one of a registered tool.
    NoCluster,
    /// Fix the call: nothing of the execution is kept, and this option waits for the disk.
    NothingKept {
        /// The name of the option.
        option: &'static str,
    },
    /// Wait, or ask for `none`: the journal keeps no more executions now.
    NotKept(Refused),
}

/// Opens an execution, with the state that the guests keep with it.
pub(super) fn open<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    prepared: Prepared,
    options: ExecuteOptions,
    guest: O::Run,
) -> Result<ExecutionId, ExecuteError> {
    let Prepared { tool, work, need, timeouts, progress, trace } = prepared;
    // A tool on another thread writes into one window for as long as it runs.
    let is_fixed = matches!(*work, Work::Thread(_)) || shard.guests.has_fixed_rings();
    let grows = options.grows && !is_fixed;
    let terms @ Terms { durability, .. } = terms_of(shard, &options, tool.is_some())?;
    let deliver = match durability {
        Durability::Replicated => Deliver::WhenDurable,
        _ => options.deliver,
    };
    let is_late = is_told_late((deliver, options.on_full), durability)?;
    let ring = shard.expected_ring(need.ring_bytes, need.chunk_bytes)?;
    let mut spec = OpenSpec::new(ring);
    spec.start = options.start;
    let retention = options.retention.unwrap_or(shard.retention);
    spec.retention = options.keep.map_or(retention, |keep| keep.min(retention));
    spec.block_deadline = options.block_deadline.unwrap_or(shard.block_deadline);
    spec.on_stall = options.on_stall;
    spec.timeouts = options.timeouts.unwrap_or(timeouts);
    spec.progress = options.progress.unwrap_or(progress);
    spec.bytes_expected = need.estimated_bytes;
    spec.kept = durability != Durability::None;
    // What is on disk need not be held in the ring for the first reader.
    spec.hold = if spec.kept { Hold::Newest } else { options.hold };
    // After a restart, the log is that of another life of the node.
    let may_go_on = spec.kept && durability != Durability::Replicated;
    let goes_on = options.goes_on && may_go_on && matches!(*work, Work::Feed | Work::Remote(_));
    spec.secret = shard.secrets.draw().map_err(|_| ExecuteError::NoRandomness)?;
    let Reply::Opened(result) = shard.ask(Event::Open(spec)) else {
        unreachable!("the reply fits the request");
    };
    let id = result.map_err(ExecuteError::Open)?;
    release_before(shard, id.slot);
    let run = Run {
        handle: id.slot,
        id,
        names: Names::new(id, shard.engine.token(id)).of_tool(tool.as_deref()),
        tool,
        timeouts: spec.timeouts,
        opened_at: shard.now,
        trace,
        ring_bytes: need.ring_bytes,
        chunk_bytes: need.chunk_bytes,
        grows,
        keeps_history: grows,
        goes_on,
        ..Run::new(id, Producer::Waiting(work), guest)
    };
    shard.runs[id.slot.index as usize] = Some(run);
    O::on_opened(shard, id);
    let how = (deliver, options.on_full);
    let full_max = full_max(&options, goes_on, spec.block_deadline);
    let late = is_late.then(|| Box::new(Late::new(how, full_max, 0)));
    let kept = keep(shard, id, (terms, how), late);
    shard.pump();
    kept.map(|()| id)
}

/// The promises for an execution with these options.
fn terms_of<R: Reactor + 'static, O: Outlet<R>>(
    shard: &Shard<R, O>,
    options: &ExecuteOptions,
    has_tool: bool,
) -> Result<Terms, ExecuteError> {
    let durability = match (&shard.keeping, options.durability) {
        (Some(keeping), durability) => keeping.durability(durability),
        (None, None | Some(Durability::None)) => Durability::None,
        (None, Some(durability)) => return Err(ExecuteError::NoJournal { durability }),
    };
    let durability = match durability {
        Durability::Replicated if !(has_tool && shard.guests.has_log()) => {
            if options.durability.is_some() {
                return Err(ExecuteError::NoCluster);
            }
            Durability::Synced // The best that there is for it.
        }
        durability => durability,
    };
    let keep_s = match options.keep {
        Some(_) if durability == Durability::None => {
            return Err(ExecuteError::NothingKept { option: "keep" });
        }
        Some(time) => time.as_secs().clamp(1, limits::KEEP_S_MAX.into()) as u32,
        None => 0,
    };
    Ok(Terms { durability, keep_s })
}

/// The time for which the journal may have no room for a chunk. An execution that goes on after a
/// restart waits for its whole life, unless it has a deadline of its own.
pub(super) fn full_max(
    options: &ExecuteOptions,
    goes_on: bool,
    block_deadline: Duration,
) -> Duration {
    match options.block_deadline {
        None if goes_on => limits::EXECUTION_DURATION_MAX,
        _ => block_deadline,
    }
}

/// True if the engine is told of chunks only when the journal has them.
pub(super) fn is_told_late(
    how: (Deliver, OnFull),
    durability: Durability,
) -> Result<bool, ExecuteError> {
    let option = match how {
        (Deliver::AtOnce, OnFull::Gap) => return Ok(false),
        (Deliver::AtOnce, OnFull::Pause) => return Ok(durability != Durability::None),
        (Deliver::WhenDurable, _) => "deliver: when_durable",
        (Deliver::AtOnce, OnFull::Wait) => "on_full: wait",
    };
    match durability {
        Durability::None => Err(ExecuteError::NothingKept { option }),
        Durability::Written | Durability::Synced | Durability::Replicated => Ok(true),
    }
}

/// Begins to keep an execution. If the journal refuses that, the execution ends at once.
fn keep<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    id: ExecutionId,
    (terms, (deliver, on_full)): (Terms, (Deliver, OnFull)),
    late: Option<Box<Late>>,
) -> Result<(), ExecuteError> {
    if terms.durability == Durability::None {
        return Ok(());
    }
    let run = act::run_in(&mut shard.runs, id.slot);
    let guest = shard.guests.describe(run);
    let (ring_bytes, chunk_bytes) = (run.ring_bytes, run.chunk_bytes);
    let goes_on = run.goes_on.then_some(GoesOn { ring_bytes, chunk_bytes, deliver, on_full });
    let keeping = shard.keeping.as_deref_mut().expect("it was asked for the durability");
    let described = (run.tool.as_deref(), run.names.token.as_deref());
    match keeping.begin(id, terms, described, (goes_on, guest), shard.now) {
        Ok(kept) => {
            (run.kept, run.late) = (Some(kept), late);
            Ok(())
        }
        Err(refused) => {
            shard.ask(Event::Cancel(id));
            Err(ExecuteError::NotKept(refused))
        }
    }
}

/// Carries out actions about the former execution of a slot, up to its release. The engine may have
/// freed the slot by forgetting that execution, whose ring is still to be released. The actions are
/// carried out in order, and the old run keeps the slot until then.
pub(super) fn release_before<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    slot: Handle,
) {
    while let Some(run) = &shard.runs[slot.index as usize] {
        assert!(run.handle.generation < slot.generation);
        let action = shard.engine.next_queued_action().expect("a forgotten execution is released");
        act::carry_out(shard, action);
    }
}

impl fmt::Display for ExecuteError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExecuteError::Start(error) => error.fmt(out),
            ExecuteError::Open(error) => error.fmt(out),
            ExecuteError::NoRandomness => {
                out.write_str("the operating system returned no random bytes")
            }
            ExecuteError::ChunkTooLarge { chunk_bytes, chunk_bytes_max } => {
                write!(
                    out,
                    "chunks of {chunk_bytes} bytes are too long; a ring takes at most \
                     {chunk_bytes_max}"
                )
            }
            ExecuteError::MemoryShort(shortage) => shortage.fmt(out),
            ExecuteError::NoJournal { durability } => {
                write!(out, "durability {durability} needs a journal, and this shard has none")
            }
            ExecuteError::NoCluster => out.write_str(
                "durability replicated needs a cluster and a registered tool: no log takes the \
                 chunks of this execution",
            ),
            ExecuteError::NothingKept { option } => write!(
                out,
                "`{option}` needs a journal and a durability other than none, and nothing of \
                 this execution is kept"
            ),
            ExecuteError::NotKept(refused) => refused.fmt(out),
        }
    }
}

impl std::error::Error for ExecuteError {}
