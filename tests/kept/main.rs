//! A shard with a journal in a process that is killed at any point, and found again by another.
//! The process is this test binary again, in another role: `roles.rs`, `tests/role`.

mod found;
mod keeper;
mod kills;
mod load;
#[path = "../role/mod.rs"]
mod role;
mod roles;
