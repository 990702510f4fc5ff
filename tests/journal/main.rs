//! `streamdoor journal` as a process, on the files of a journal: one that is written, one whose
//! writer was killed, cut ones and damaged ones. The writer is this test binary again, in another
//! role: `roles.rs`, `tests/role`.
#![cfg(feature = "cli")]

mod damaged;
mod ends;
mod keeper;
mod live;
mod refused;
#[path = "../role/mod.rs"]
mod role;
mod roles;
mod world;
