//! Stratum 6: the seeded world. Same seed, same run, byte for byte.
//!
//! No real time, no thread, no randomness of the system. [`world`] has time, pipes and faults;
//! [`reactor`] is the kernel of that world: a third backend of [`crate::reactor::Reactor`].

pub mod reactor;
pub mod world;
