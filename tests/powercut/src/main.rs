//! A shard with a journal on a real ext4, on a disk that fails, stands still, is full, or loses its
//! power. See `disk.rs` for the disk, and `rig.rs` for what is between the two.
//!
//! The disk is this test binary again, in another role: `roles.rs`, `tests/role`. A machine that
//! cannot have such a disk runs nothing of it, and the tests say why.

mod appender;
mod audit;
mod calls;
mod cuts;
mod disk;
mod faults;
#[path = "../../kept/found.rs"]
mod found;
mod gate;
mod holes;
mod http;
mod image;
#[path = "../../kept/keeper.rs"]
mod keeper;
#[path = "../../kept/load.rs"]
mod load;
mod program;
mod real;
mod records;
mod rig;
#[path = "../../role/mod.rs"]
mod role;
mod roles;
mod subscriber;
mod syncer;
