//! Stratum 0: values that everything else is built from. They are pure, with no syscall and no
//! clock.
//!
//! `guard` calls foreign code; `time` holds instants and durations as plain numbers. `id`
//! holds the ids that callers see; [`plain`] makes foreign text harmless. `pool` holds fixed
//! tables with generations, and `table` plain ones. `page_buffer` has the buffers for disks, and
//! `shared_bytes` those of several owners. `principal` has the names of callers, [`planted`] the
//! bugs for the simulator, and `random` a seeded generator.

pub(crate) mod guard;
pub(crate) mod id;
pub(crate) mod page_buffer;
pub mod plain;
pub mod planted;
pub(crate) mod pool;
pub(crate) mod principal;
pub(crate) mod random;
pub(crate) mod shared_bytes;
pub(crate) mod table;
pub(crate) mod time;

pub use guard::{Guarded, Panicked, guarded};
pub use id::{ExecutionId, ProgressToken, SubscriberId};
pub use page_buffer::PageBuffer;
pub use pool::{Handle, Pool};
pub use principal::Principal;
pub use random::Random;
pub use shared_bytes::SharedBytes;
pub use table::Table;
pub use time::Instant;
