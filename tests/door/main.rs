//! The door of a server: real processes of the program, with [`streamdoor::door`] as their client.
//! Readers and writers that die, freeze or overwrite memory are this test binary again, in another
//! role: `roles.rs`, `tests/role`.
#![cfg(all(feature = "cli", feature = "server", feature = "tools"))]

#[path = "../limited/mod.rs"]
#[allow(dead_code, reason = "not every test needs all of it")]
mod limited;

mod attacks;
mod audits;
mod auto;
mod deaths;
mod hostile;
mod limits;
mod numbers;
mod principals;
mod producing;
mod raw;
mod reading;
#[path = "../role/mod.rs"]
mod role;
mod roles;
mod scribble;
#[path = "../served/mod.rs"]
mod served;
mod shortage;
mod test_server;
mod together;
