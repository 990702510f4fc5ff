//! Stratum 1: the deterministic heart. No clock, no syscall, no thread, no payload bytes.

pub mod wheel;
