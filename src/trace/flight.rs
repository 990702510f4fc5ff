//! Flight recorder: the last events of one shard, for the analysis of a failure.
//!
//! Owned by the shard's thread. Recording is one store of 32 bytes into a ring that is allocated at
//! the start. It has no panic hook and no global. The owner dumps it when one of the shard's own
//! assertions failed, or on request. The tests are at the end of this file.

use std::io;

use crate::base::Instant;
use crate::limits::FLIGHT_EVENTS_MAX;

macro_rules! codes {
    ($($(#[doc = $text:literal])+ $code:ident = $name:literal,)+) => {
        /// The kind of an event. The two numbers of an event are explained here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Code {
            $($(#[doc = $text])+ $code,)+
        }

        impl Code {
            /// Every code, in the order of their numbers.
            pub const ALL: &[Code] = &[$(Code::$code),+];

            /// The name in a dump.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Code::$code => $name,)+
                }
            }
        }
    };
}

codes! {
    /// No event was recorded here yet.
    Nothing = "nothing",
    /// An execution ended: its slot, its last state.
    ExecutionEnded = "execution ended",
    /// A chunk was published: the execution's slot, seq.
    ChunkPublished = "chunk published",
    /// A subscriber was attached: its slot, the execution's slot.
    SubscriberAttached = "subscriber attached",
    /// A subscriber has ended, was detached or has left: its slot, the execution's slot.
    SubscriberDetached = "subscriber detached",
    /// A gap was delivered: the subscriber's slot, its last chunk.
    GapDelivered = "gap delivered",
    /// A producer was told to stop: the execution's slot.
    ProducerStopped = "producer stopped",
    /// A producer was paused: the execution's slot, the seq it waits for.
    ProducerPaused = "producer paused",
    /// A turn took too long: what it did ([`super::Duties::bits`]), ns.
    Stalled = "stalled",
    /// A ring was requested: the execution's slot.
    RingLeased = "ring leased",
    /// A ring was returned: the execution's slot.
    RingReleased = "ring released",
    /// Memory pressure changed: its number, bytes that rings may take.
    MemoryChanged = "memory changed",
    /// Code of a tool or of an embedder panicked. The log has the details.
    CalloutPanicked = "callout panicked",
    /// External input was refused: its origin, the reason.
    OutsideRefused = "outside refused",
}

#[derive(Clone, Copy, Debug)]
struct FlightEvent {
    now: Instant,
    a: u64,
    b: u64,
    code: Code,
}

const NOTHING: FlightEvent = FlightEvent { now: Instant::ZERO, a: 0, b: 0, code: Code::Nothing };

const _: () = {
    assert!(FLIGHT_EVENTS_MAX.is_power_of_two()); // Number to index is a mask, not a division.
    assert!(size_of::<FlightEvent>() == 32); // Two events share a cache line, none spans two.
};

/// The last [`FLIGHT_EVENTS_MAX`] events of one shard.
#[derive(Debug)]
pub struct FlightRecorder {
    events: Box<[FlightEvent; FLIGHT_EVENTS_MAX]>,
    recorded_total: u64,
}

impl FlightRecorder {
    /// Creates an empty recorder, with all its memory.
    pub fn new() -> FlightRecorder {
        FlightRecorder { events: Box::new([NOTHING; FLIGHT_EVENTS_MAX]), recorded_total: 0 }
    }

    /// Records the event `code` in place of the oldest one.
    #[inline]
    pub fn record(&mut self, now: Instant, code: Code, a: u64, b: u64) {
        let place = self.recorded_total as usize & (FLIGHT_EVENTS_MAX - 1);
        self.events[place] = FlightEvent { now, a, b, code };
        self.recorded_total += 1;
    }

    /// Number of events recorded since the start, including overwritten ones.
    pub fn recorded_total(&self) -> u64 {
        self.recorded_total
    }

    /// Writes the recorded events, one line each, oldest first. A line has the number, ns since the
    /// clock's origin, ns since the event before, the name, and the two numbers of the event.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn dump(&self, out: &mut impl io::Write) -> io::Result<()> {
        let first = self.recorded_total.saturating_sub(FLIGHT_EVENTS_MAX as u64);
        writeln!(out, "# flight recorder: {} events, {first} forgotten", self.recorded_total)?;
        writeln!(out, "# number now_ns since_ns what a b")?;
        let mut before = None;
        for number in first..self.recorded_total {
            let event = &self.events[number as usize & (FLIGHT_EVENTS_MAX - 1)];
            let since_ns = event.now.since(before.unwrap_or(event.now)).as_nanos();
            let (now_ns, name) = (event.now.nanos(), event.code.name());
            writeln!(out, "{number} {now_ns} +{since_ns} {name} {} {}", event.a, event.b)?;
            before = Some(event.now);
        }
        Ok(())
    }
}

impl Default for FlightRecorder {
    fn default() -> FlightRecorder {
        FlightRecorder::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumped(recorder: &FlightRecorder) -> String {
        let mut text = Vec::new();
        recorder.dump(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_dump_shows_the_newest_events_oldest_first() {
        let mut recorder = FlightRecorder::new();
        assert_eq!(dumped(&recorder).lines().count(), 2);
        let total = 3 * FLIGHT_EVENTS_MAX as u64 / 2;
        for number in 0..total {
            recorder.record(Instant::from_nanos(10 * number), Code::RingLeased, number, 7);
        }
        let text = dumped(&recorder);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 + FLIGHT_EVENTS_MAX);
        let first = total - FLIGHT_EVENTS_MAX as u64;
        assert_eq!(lines[0], format!("# flight recorder: {total} events, {first} forgotten"));
        assert_eq!(lines[2], format!("{first} {0} +0 ring leased {first} 7", 10 * first));
        let last = total - 1;
        assert_eq!(lines[lines.len() - 1], format!("{last} {last}0 +10 ring leased {last} 7"));
    }

    #[test]
    fn every_code_has_a_name_of_its_own() {
        for (place, code) in Code::ALL.iter().enumerate() {
            assert_eq!(*code as usize, place);
            assert!(Code::ALL[..place].iter().all(|other| other.name() != code.name()), "{code:?}");
        }
    }
}
