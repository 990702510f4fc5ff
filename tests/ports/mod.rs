//! Ports for programs that have to be told one.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 10_000;
/// Number of ports of this module. All are below 32,768, where the kernel's own choices begin:
/// nobody else gets one between `free` and its use.
const COUNT: u32 = 22_000;
/// The distance between the first ports of two processes with neighbouring ids.
const STRIDE: u32 = 211;

static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Returns a port at which nothing listens. This process is not told it again.
pub fn free() -> u16 {
    let start = std::process::id().wrapping_mul(STRIDE);
    for _ in 0..COUNT {
        let at = start.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = (FIRST + at) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
