//! Stratum 4: what stands at the end of a connection. Bytes in, calls out; answers in, bytes out.
//!
//! Machines without a syscall, a clock or a socket: the shard moves the bytes and carries out the
//! calls. Reading order: [`Call`], which is all that a client can ask for.
#![forbid(unsafe_code)]

mod call;

pub use call::{Call, Execute, Follow, MetricsFormat, PolicyWish, StreamFormat, Wishes};
