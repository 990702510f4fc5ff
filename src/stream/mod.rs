//! Stratum 0: the vocabulary of streams. Each word that a subscriber, a producer or a wire uses has
//! one type here, and every other module imports it.
//!
//! Values only. Absent: bytes of chunks, clocks, rules. The engine has the rules, and
//! [`crate::wire`] has the spelling.
#![forbid(unsafe_code)]

mod chunk;
mod durability;
mod end;
mod exit;
mod policy;
mod progress;

pub use chunk::{Gap, GapReason, Kind, KindTotals, Kinds, Meta, Totals, UnknownKind};
pub use durability::{Deliver, Durability, OnFull, UnknownDurability};
pub use end::{DetachReason, End, EndState, ExecutionState, Outcome};
pub use exit::Exit;
pub use policy::{LagLimit, Policy, Terms, UnknownPolicy};
pub use progress::{Measure, Progress, ProgressReport};
