//! What everything under `bench door` has in common: a producer in a process of its own, readers
//! in another.
//!
//! [`load`] says what is published and how it is waited for, [`carrier`] what an implementation has
//! to bring, [`producer`] is the process that publishes, [`readers`] the one that reads and
//! measures, [`report`] prints. The two processes talk by lines ([`child`]) and read one clock.

pub mod carrier;
pub mod child;
pub mod load;
pub mod producer;
pub mod readers;
pub mod report;
