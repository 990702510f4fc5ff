//! Stratum 1: shared memory. It holds the bytes; everything else in the crate moves numbers.
//!
//! ```text
//!  RingPool ──lease──▶ Lease ──▶ RingWriter ──reader()──▶ RingReader   same process, any thread
//!  (arenas of windows)           (one owner)
//!  DoorRing ──────────────────▶ RingWriter
//!        └─ read-only descriptor ──another process──▶ RingReader::open
//!  ProducerRing ─▶ RingReader                   of a ring that another process writes
//!        └─ descriptor, then sealed ──▶ RingWriter::open
//!  ControlPage ──view()──▶ ControlView          shard tells everyone: gate, end, progress
//!  ReaderPage ◀──────────▶ ReaderPageView       a reader tells the shard: cursor, asleep
//!  ControlFile, ReaderPageFile, ProducerPageFile   the same between two processes
//! ```
//!
//! Reading order: [`layout`] (positions of all fields), [`writer`] (the protocol) and `reader`
//! (its other half). Then `pool` and `memfd` (the sources of windows), and [`pressure`] (the
//! limits on their number and size). This module contains unsafe code, one operation a block, and
//! all atomics ([`atomic`]).
//!
//! Absent: clocks, threads, policies, knowledge of the meaning of a payload. Both sides of every
//! release/acquire pair carry the same label: `ring:claim`, `ring:publish`, `ring:index`,
//! `ring:tail`, `ring:totals`, `ring:generation`, `control:…`, `page:…`.
//!
//! Invariants:
//! - M1: every word of shared memory has one writer (A8 of the crate);
//! - M2: a value from memory that another process may write is loaded once, checked, and only then
//!   used (A6);
//! - M3: no window has two writers: a [`Lease`] is not cloneable and a [`RingWriter`] consumes it;
//! - M4: pages are allocated before they are touched, so a full system causes no SIGBUS.

mod arena;
pub mod atomic;
mod claim;
pub(crate) mod control;
mod copy;
pub(crate) mod door;
pub(crate) mod exchange;
mod format;
pub mod futex;
pub(crate) mod growth;
#[cfg(not(loom))]
mod guard;
pub mod heap;
#[cfg(any(test, fuzzing))]
pub(crate) mod interleave;
pub mod layout;
pub(crate) mod lease;
pub(crate) mod memfd;
#[cfg(not(loom))]
pub mod named;
pub mod owner;
pub(crate) mod pool;
pub mod pressure;
pub(crate) mod reader;
pub(crate) mod reader_page;
pub(crate) mod reader_signals;
pub mod readings;
pub(crate) mod segment;
pub mod shared;
pub(crate) mod signal_slot;
pub mod writer;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
#[cfg(all(test, not(loom)))]
mod pool_tests;
#[cfg(all(test, not(loom)))]
mod ring_tests;
#[cfg(all(test, not(loom), not(miri)))]
mod shared_tests;

pub use control::{ControlPage, ControlView, FinalRecord, ProgressRecord, ShortText};
pub use door::{DoorMemory, DoorRing, ProducerRing};
pub use exchange::{Asleep, Closed, Exchange};
pub use format::HeaderFault;
pub use futex::WaitOutcome;
pub use layout::{CHUNK_MORE, ChunkHeader, ClockAnchor, Descriptor, Geometry};
pub use lease::Lease;
pub use memfd::OpenError;
pub use owner::{Owner, OwnerView, OwnerWord, Room};
pub use pool::{LeaseError, RingPool, RingPoolConfig, RingPoolUsage};
pub use pressure::{Gauge, Pressure, Readings};
pub use reader::{Poll, ReadError, RingReader, TailTotals};
pub use reader_page::{ReaderPage, ReaderPageView, WildCursor};
pub use reader_signals::{Flag, LeaveReason, ReaderSignals};
pub use segment::Segment;
pub use shared::{ControlFile, ProducerPage, ProducerPageFile, ReaderPageFile};
pub use signal_slot::{SignalSlot, SignalView};
pub use writer::{RingWriter, Start, WriteError};
