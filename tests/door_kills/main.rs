//! Producers and readers at a door are killed between any two steps that others could see, and at
//! random moments. All survivors receive every chunk, unchanged and once, and learn of the end.
//!
//! The server is a thread of this test. No test depends on sharing its process. The killed
//! processes are this test binary again, in a role (`roles.rs`, `tests/role`). They are moved
//! instruction by instruction with ptrace (`step.rs`).
//!
//! `STREAMDOOR_KILLS` is the number of random kills. Without it they are 500, but end after a
//! minute. `STREAMDOOR_KILL_EVERYWHERE=1` kills a producer at every single instruction of a
//! publish, and not only where something has changed.
#![cfg(all(feature = "server", target_os = "linux", target_arch = "x86_64"))]

mod boundaries;
mod random;
#[path = "../role/mod.rs"]
mod role;
mod roles;
mod step;
mod world;
