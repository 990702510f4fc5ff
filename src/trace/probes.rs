//! Static probes: places at which a tracer can attach to a running release build.
//!
//! Each probe is one `nop`. A note in the executable holds its address and the registers of its
//! numbers (USDT, as in `sys/sdt.h` of SystemTap). Tracers (perf, bpftrace, gdb) find it by name,
//! and set a breakpoint there while they trace. Without a tracer, nothing is checked, stored or
//! called.
//!
//! All are of the provider `streamdoor`. Their numbers, in this order:
//!
//! | probe | when | |
//! |---|---|---|
//! | `turn_begin` | a turn of a shard begins | ns of its clock |
//! | `turn_end` | the turn is done | had it work; duties ([`super::Duties::bits`]) |
//! | `publish` | a chunk is visible to all readers | seq, payload bytes, total bytes |
//! | `publish_batch` | several are, at once | first seq, number of chunks |
//! | `deliver` | local subscribers were given a chunk | execution's slot, seq, their number |
//! | `receive` | a subscriber elsewhere has read a chunk | seq, payload bytes |
//! | `send` | bytes were given to a socket | connection's slot, bytes |
//! | `wake` | readers asleep in the kernel are woken | newest seq |
//!
//! `tools/perf WORKLOAD --probes` shows them.

/// Places a probe with its name and numbers. They are always evaluated, so they should be cheap.
macro_rules! probe {
    ($name:ident $(, $number:expr)*) => {{
        // Miri and loom interpret or rebuild the program, and support no `nop` of ours.
        #[cfg(not(any(miri, loom)))]
        ::probe::probe!(streamdoor, $name $(, $number)*);
        #[cfg(any(miri, loom))]
        let _ = ($($number,)*);
    }};
}

pub(crate) use probe;
