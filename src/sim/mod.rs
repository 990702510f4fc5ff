//! Stratum 6: the seeded world. Same seed, same run, byte for byte.
//!
//! No real time, no thread, no randomness of the system. [`reactor`] is the kernel of that world:
//! a third backend of [`crate::reactor::Reactor`], with virtual time and faults on request.

pub mod reactor;
