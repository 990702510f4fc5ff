//! Stalls: turns of a shard's loop that took too long, their durations, and what they did.
//!
//! A turn notes each thing that it does, with one bit each, and reads no clock for that. A turn
//! that took longer than [`crate::limits::STALL_THRESHOLD`] is counted for each thing that it did.
//! A duty with an outstanding count is the likely cause. The tests are at the end of this file.

use super::Latency;

macro_rules! duties {
    ($($(#[doc = $text:literal])+ $duty:ident = $name:literal,)+) => {
        /// A kind of work that a turn can do. Foreign code runs in `tools` and `deliveries` only.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Duty {
            $($(#[doc = $text])+ $duty,)+
        }

        impl Duty {
            /// Every duty, in the order of their numbers.
            pub const ALL: &[Duty] = &[$(Duty::$duty),+];

            /// The name in metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Duty::$duty => $name,)+
                }
            }
        }
    };
}

duties! {
    /// Events of the kernel were handled: requests were read, and answered.
    Reactor = "reactor",
    /// Commands of other threads were carried out.
    Commands = "commands",
    /// Timers fired.
    Timers = "timers",
    /// Tools of this thread took a step.
    Tools = "tools",
    /// Chunks were taken over from producers.
    Chunks = "chunks",
    /// Chunks were given to subscribers of this thread: closures ran, or events were encoded.
    Deliveries = "deliveries",
    /// Rings were leased, allocated, or returned.
    Rings = "rings",
    /// Runs of agents continued.
    Agents = "agents",
    /// Rings of other shards were read.
    Remotes = "remotes",
    /// Connections were written to.
    Sends = "sends",
    /// The disk of the journal was looked after: blocks were closed, old chunks were given.
    Disk = "disk",
}

const COUNT: usize = Duty::ALL.len();

const _: () = assert!(COUNT <= u16::BITS as usize); // One bit each.

/// The duties of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duties(u16);

impl Duties {
    /// Notes that the turn did this, too.
    #[inline(always)]
    pub fn note(&mut self, duty: Duty) {
        self.0 |= 1 << duty as u16;
    }

    /// True if the turn did this.
    pub fn has(self, duty: Duty) -> bool {
        self.0 & 1 << duty as u16 != 0
    }

    /// The duties as a number, with one bit for each in the order of [`Duty::ALL`], for the flight
    /// recorder.
    pub fn bits(self) -> u64 {
        self.0.into()
    }
}

/// The counts of turns that took too long.
///
/// # Example
/// ```
/// use streamdoor::readings::Duty;
/// use streamdoor::{Shard, ShardConfig};
///
/// let (shard, _report) = Shard::new(ShardConfig::default())?;
/// assert_eq!(shard.stalls().of(Duty::Tools), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    by: [u64; COUNT],
    /// The durations of these turns.
    pub durations: Latency,
}

impl Stalls {
    /// Counts one more turn, with its duties and its duration.
    pub(crate) fn record(&mut self, did: Duties, ns: u64) {
        for (count, duty) in self.by.iter_mut().zip(Duty::ALL) {
            *count += u64::from(did.has(*duty));
        }
        self.durations.record(ns, 1);
    }

    /// Number of these turns that did this, among other things.
    pub fn of(&self, duty: Duty) -> u64 {
        self.by[duty as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_for_each_thing_that_its_turn_did() {
        let (mut stalls, mut did) = (Stalls::default(), Duties::default());
        stalls.record(did, 100_001);
        did.note(Duty::Tools);
        did.note(Duty::Sends);
        did.note(Duty::Sends);
        stalls.record(did, 200_000);
        for duty in Duty::ALL {
            let is_noted = matches!(duty, Duty::Tools | Duty::Sends);
            assert_eq!((did.has(*duty), stalls.of(*duty)), (is_noted, is_noted.into()));
        }
        assert_eq!(did.bits(), 1 << Duty::Tools as u64 | 1 << Duty::Sends as u64);
        assert_eq!(stalls.durations.counts.iter().sum::<u64>(), 2);
        assert_eq!(stalls.durations.sum_ns, 300_001);
    }

    #[test]
    fn every_doing_has_a_name_of_its_own() {
        for (place, duty) in Duty::ALL.iter().enumerate() {
            assert_eq!(*duty as usize, place);
            assert!(Duty::ALL[..place].iter().all(|o| o.name() != duty.name()), "{duty:?}");
        }
    }
}
