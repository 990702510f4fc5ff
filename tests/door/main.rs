//! The door of a server: real processes of the program, and [`streamdoor::door`] as their client.
//! Readers and writers that are to die, to freeze or to scribble are this test binary again, in
//! another role: `roles.rs`.
#![cfg(all(feature = "cli", feature = "server", feature = "tools"))]

#[path = "../limited/mod.rs"]
#[allow(dead_code, reason = "not every test needs all of it")]
mod limited;

mod audits;
mod deaths;
mod hostile;
mod house;
mod limits;
mod producing;
mod reading;
mod roles;
