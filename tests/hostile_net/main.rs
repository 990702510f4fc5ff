//! A server under attack: thousands of connections that dribble their requests, no descriptors
//! left, no memory. It keeps serving its connections, and recovers.
#![cfg(feature = "cli")]

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

/// Lock that runs the tests one at a time. They measure, and together they need too many
/// descriptors.
static ALONE: Mutex<()> = Mutex::new(());
