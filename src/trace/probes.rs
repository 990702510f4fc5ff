//! Static probes: places at which a tracer can look into a running program, as it was shipped.
//!
//! Each is one `nop`, and a note in the program's file that says where it is and in which registers
//! its numbers are (USDT, as `sys/sdt.h` of SystemTap has it): perf, bpftrace and gdb find it by
//! name and put a breakpoint there for as long as they look. While nobody does, nothing is asked,
//! stored or called.
//!
//! All are of the provider `streamdoor`; their numbers, in this order:
//!
//! | probe | when | |
//! |---|---|---|
//! | `turn_begin` | a shard looks around | ns of its clock |
//! | `turn_end` | it has done what there was | was there any; duties ([`super::Duties::bits`]) |
//! | `publish` | a chunk is there for all | seq, payload bytes, total bytes |
//! | `publish_batch` | several are, at once | first seq, how many |
//! | `deliver` | a shard's subscribers were given one | execution's slot, seq, how many |
//! | `receive` | a subscriber elsewhere has read one | seq, payload bytes |
//! | `send` | bytes were given to a socket | connection's slot, bytes |
//! | `wake` | readers asleep in the kernel are woken | newest seq |
//!
//! `tools/perf WORKLOAD --probes` shows them.

/// Places a probe: its name, and numbers. They are evaluated in any case, so let them be at hand.
macro_rules! probe {
    ($name:ident $(, $number:expr)*) => {{
        // Miri and loom interpret or rebuild the program: neither has a place for a `nop` of ours.
        #[cfg(not(any(miri, loom)))]
        ::probe::probe!(streamdoor, $name $(, $number)*);
        #[cfg(any(miri, loom))]
        let _ = ($($number,)*);
    }};
}

pub(crate) use probe;
