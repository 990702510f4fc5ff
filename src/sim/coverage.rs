//! The events of a run, counted by name, and the hash that two runs of one seed have in common.
//!
//! All names exist from the start: an event that never happens shows as a zero.

use std::fmt;
use std::hash::Hasher;

use crate::stream::Policy;

/// FNV-1a, 64 bits: the same on every machine and in every version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
}

const ACTIONS: &[&str] = &[
    "Lease",
    "Release",
    "SetGate",
    "WatchReaders",
    "StartProducer",
    "WakeProducer",
    "StopProducer",
    "Deliver",
    "Gap",
    "Progress",
    "End",
    "Forget",
    "Report",
    "Verdict",
    "DetachReader",
    "Reply::Opened",
    "Reply::Subscribed",
    "Reply::Unsubscribed",
    "Reply::Cancelled",
    "Reply::Acknowledged",
    "Reply::Reattached",
    "Reply::Inspected",
    "Reply::TokenForgotten",
];
const PLACES: &[&str] = &[
    "closure",
    "polled",
    "remote",
    #[cfg(feature = "server")]
    "door",
];
const OTHERS: &[&str] = &[
    "outcome completed",
    "outcome failed",
    "outcome cancelled",
    "outcome timed_out",
    "gap lag",
    "gap conflated",
    "gap overtaken",
    "gap late",
    "end completed",
    "end failed",
    "end cancelled",
    "end timed_out",
    "end detached: lag",
    "end detached: stall",
    "end detached: lost",
    "end detached: shutdown",
    "end detached: evicted",
    "token looked up",
    "readers asked for",
    "held back by a reader",
    "held back by the hold",
    "reader fell asleep",
    "producer steps",
    "producer feed",
    "producer thread",
    #[cfg(feature = "server")]
    "producer in another process",
    #[cfg(feature = "server")]
    "chunks of a process not taken",
    #[cfg(feature = "server")]
    "chunks of a process passed over",
    "producer done",
    "producer failed",
    "producer panicked",
    "producer stopped",
    "producer failed for a stall",
    "ring 4 KiB",
    "ring 16 KiB",
    "ring 64 KiB",
    "ring 256 KiB",
    "ring 1024 KiB",
    "ring smaller than asked for",
    "ring waited for",
    "ring grown",
    "ring growth refused",
    "ring back after its execution",
    "ring refused",
    "memory normal",
    "memory elevated",
    "memory critical",
    "memory survival",
    "memory limit below what is leased",
    "chunk lent",
    "chunk too large",
    "producer blocked",
    "thread wrote in the middle of a turn",
    "open refused: busy",
    "open refused: too many",
    "open refused: invalid",
    "open refused: shutting down",
    "open refused: chunk too large",
    "open refused: memory short",
    "subscribe refused: not found",
    "subscribe refused: limit",
    "subscribe refused: invalid",
    "subscribe refused: not yet",
    "subscribe refused: no longer held",
    "subscribe refused: too many",
    "subscribe refused: shutting down",
    "publish refused: not found",
    "publish refused: blocked",
    "publish refused: too large",
    "finish refused",
    "cancel refused: not found",
    "cancel refused: ended",
    "acknowledge refused: not found",
    "acknowledge refused: not asked",
    "acknowledge refused: not given",
    "unsubscribe refused",
    "inspect refused",
    "from live",
    "from seq",
    "from seq with what was seen",
    "lost place taken over",
    "came back for what is kept",
    "connection broke",
    "connection came back",
    "connection came back too late",
    "reader stuck",
    "reader died",
    "reader left",
    "closure panicked",
    "acknowledged",
    "coalesced",
    "filtered",
    "headers only",
    "progress",
];

/// Number of times that each event happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    counts: Vec<(String, u64)>,
}

impl Default for Coverage {
    fn default() -> Coverage {
        let mut names: Vec<String> =
            ACTIONS.iter().map(|action| format!("action {action}")).collect();
        for policy in Policy::ALL {
            names.extend(PLACES.iter().map(|place| policy_name(policy, place)));
        }
        names.extend(OTHERS.iter().map(|&other| other.to_owned()));
        Coverage { counts: names.into_iter().map(|name| (name, 0)).collect() }
    }
}

fn policy_name(policy: Policy, place: &str) -> String {
    format!("given under {policy}, {place}")
}

impl Coverage {
    pub(super) fn action(&mut self, action: usize) {
        self.counts[action].1 += 1;
    }

    pub(super) fn given(&mut self, policy: Policy, place: usize) {
        self.counts[ACTIONS.len() + policy as usize * PLACES.len() + place].1 += 1;
    }

    pub(super) fn count(&mut self, name: &str) {
        let others = ACTIONS.len() + Policy::ALL.len() * PLACES.len();
        let mut counts = self.counts[others..].iter_mut();
        let found = counts.find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("{name:?} is in the list of what can happen")).1 += 1;
    }

    /// Number of times that the event happened.
    pub(super) fn counted(&self, name: &str) -> u64 {
        let found = self.counts.iter().find(|(known, _)| known == name);
        found.expect("it is in the list of what can happen").1
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Coverage) {
        for ((_, count), (_, more)) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// The names of events that never happened.
    pub fn missing(&self) -> Vec<&str> {
        let missing = self.counts.iter().filter(|(_, count)| *count == 0);
        missing.map(|(name, _)| name.as_str()).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.iter().try_for_each(|(name, count)| writeln!(out, "{count:>12} {name}"))
    }
}
