//! streamdoor: the results of tools, streamed to many subscribers while the tools still run.

#[cfg(not(target_os = "linux"))]
compile_error!("streamdoor runs on Linux only: memfd seals, futexes and io_uring are its ground");

pub mod base;
pub mod engine;
pub mod limits;
pub mod memory;
pub mod reactor;
pub mod shard;
pub mod sim;
pub mod tool;
pub mod trace;
