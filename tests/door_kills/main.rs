//! Killed in the middle: producers and readers at a door die between any two things that somebody
//! else could see, and at random moments. Whoever is left has every chunk, unchanged and once, and
//! hears of the end.
//!
//! The server is a thread of this test, on whose shared memory nothing depends that is tested; who
//! dies is this test binary again, in a role (`roles.rs`, `tests/role`), moved on instruction by
//! instruction with ptrace (`step.rs`). `STREAMDOOR_KILLS` says how many random kills there are
//! (500, but not for longer than a minute unless it is said); `STREAMDOOR_KILL_EVERYWHERE=1` has a
//! producer killed at every single instruction of a publish, and not only where something has
//! changed.
#![cfg(all(feature = "server", target_os = "linux", target_arch = "x86_64"))]

mod boundaries;
mod random;
#[path = "../role/mod.rs"]
mod role;
mod roles;
mod step;
mod world;
