//! A server that somebody wants to fall over: thousands of connections that dribble their requests,
//! no descriptors left, no memory. It keeps serving those that it has, and recovers.
#![cfg(all(feature = "cli", feature = "server"))]

mod descriptors;
mod dribble;
mod memory;
mod normal;

#[path = "../limited/mod.rs"]
#[allow(dead_code, reason = "not every test needs all of it")]
mod limited;
#[path = "../served/mod.rs"]
mod served;

use std::sync::Mutex;

/// One at a time: they measure, and together they would need too many descriptors.
static ALONE: Mutex<()> = Mutex::new(());
