//! Stratum 0: values that everything else is built from. Pure, no syscall, no clock.
//!
//! [`guard`] calls into code that others wrote; [`time`] instants and durations as plain numbers;
//! [`id`] names that leave our hands and come back; [`plain`] text of others made harmless;
//! [`pool`] fixed tables with generations; [`principal`] names of callers; [`random`] a seeded
//! generator.

pub mod guard;
pub mod id;
pub mod plain;
pub mod planted;
pub mod pool;
pub mod principal;
pub mod random;
pub mod time;

pub use guard::{Foreign, Panicked, guarded};
pub use id::{ExecutionId, ProgressToken, SubscriberId};
pub use pool::{Handle, Pool};
pub use principal::Principal;
pub use random::Random;
pub use time::Instant;
