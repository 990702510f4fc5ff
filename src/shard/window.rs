//! The window of acknowledgements of a subscriber on another thread. It bounds the chunks that are
//! given before the client has processed earlier ones. The engine has the same for subscribers of
//! its own thread. Chunks of unwanted kinds do not count.

use crate::engine::Replay;
use crate::limits;
use crate::memory::Descriptor;

/// The place of a chunk in the endless stream of frames: bounds of it, because only numbers and
/// totals are known. Another process may have written it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    seq: u64,
    from: u64,
    until: u64,
}

impl From<&Descriptor> for Place {
    fn from(chunk: &Descriptor) -> Place {
        // As `ChunkLog::ring_bytes_max` counts them.
        let more = |seq: u64| seq.saturating_mul(limits::CHUNK_EXTRA_BYTES_MAX);
        let from = chunk.bytes_before().saturating_add(more(chunk.seq.saturating_sub(1)));
        let until = chunk.total_bytes.saturating_add(more(chunk.seq));
        Place { seq: chunk.seq, from, until }
    }
}

/// The state of one subscriber's window. See the module's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    chunk_count: u64,
    /// Maximum number of bytes that the chunks in it take in the ring; `u64::MAX` if the ring need
    /// not keep them.
    bytes_max: u64,
    /// One past the last chunk that may be given.
    until_seq: u64,
    /// The last chunk that the client has processed.
    acked_seq: u64,
    /// The first chunk that was not processed, and the position of its payload.
    first_seq: u64,
    from: u64,
    /// The last chunk that was given, or told of in a gap.
    reported_seq: u64,
    /// The chunk that waits for an acknowledgement; 0 if none does.
    held_seq: u64,
}

impl Window {
    /// Creates a window of `chunk_count` chunks for a subscriber that begins with `next_seq`. It is
    /// smaller if the ring could not keep what is in it.
    pub fn new(chunk_count: u32, replay: Option<Replay>, next_seq: u64) -> Window {
        let chunk_count = u64::from(replay.map_or(chunk_count, |replay| replay.chunks));
        let before = next_seq - 1;
        Window {
            chunk_count,
            bytes_max: replay.map_or(u64::MAX, |replay| replay.bytes.into()),
            until_seq: next_seq + chunk_count,
            acked_seq: before,
            first_seq: next_seq,
            from: 0,
            reported_seq: before,
            held_seq: 0,
        }
    }

    /// True if `chunk`, the next one that the subscriber wants, may be given. `acked_seq` is the
    /// last chunk that is known to be acknowledged. `look` finds a chunk that the ring still holds.
    pub fn admits(
        &mut self,
        chunk: Place,
        acked_seq: u64,
        look: impl FnOnce(u64) -> Option<Place>,
    ) -> bool {
        let seq = chunk.seq;
        if acked_seq > self.acked_seq {
            self.acked_seq = acked_seq;
            self.until_seq = self.until_seq.max(acked_seq + 1 + self.chunk_count);
            // The gate keeps it, because it is not acknowledged. A ring that another process writes
            // may not. The window then stays where it was.
            if self.reported_seq > acked_seq
                && let Some(first) = look(acked_seq + 1)
            {
                (self.first_seq, self.from) = (first.seq, first.from);
            }
        }
        if self.reported_seq <= self.acked_seq {
            // No acknowledgement is due: the window begins here.
            self.until_seq = self.until_seq.max(seq + self.chunk_count);
            (self.first_seq, self.from) = (seq, chunk.from);
        }
        let is_admitted = seq < self.until_seq && self.keeps(chunk);
        self.held_seq = if is_admitted { 0 } else { seq };
        is_admitted
    }

    /// True if the ring keeps `chunk` together with all unacknowledged chunks before it.
    fn keeps(&self, chunk: Place) -> bool {
        chunk.seq == self.first_seq || chunk.until.saturating_sub(self.from) <= self.bytes_max
    }

    /// Records that this chunk was given, or told of as the last one of a gap.
    pub fn tell(&mut self, seq: u64) {
        self.reported_seq = seq;
    }

    /// True if chunk `seq` waits for an acknowledgement.
    pub fn holds(&self, seq: u64) -> bool {
        self.held_seq == seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns chunk `seq` of a log in which each chunk has `bytes` bytes.
    fn chunk(seq: u64, bytes: u64) -> Place {
        Place { seq, from: (seq - 1) * bytes, until: seq * bytes }
    }

    fn admits(window: &mut Window, seq: u64, acked_seq: u64) -> bool {
        window.admits(chunk(seq, 100), acked_seq, |seq| Some(chunk(seq, 100)))
    }

    #[test]
    fn it_moves_with_what_is_acknowledged() {
        let mut window = Window::new(2, None, 5);
        for seq in [5, 6] {
            assert!(admits(&mut window, seq, 0));
            window.tell(seq);
        }
        assert!(!admits(&mut window, 7, 0) && window.holds(7) && !window.holds(6));
        assert!(admits(&mut window, 7, 5) && !window.holds(7));
        window.tell(7);
        assert!(!admits(&mut window, 8, 5));
        assert!(!admits(&mut window, 8, 4)); // An older acknowledgement changes nothing.
        assert!(admits(&mut window, 8, 7));
    }

    #[test]
    fn while_nothing_is_to_be_acknowledged_it_begins_at_what_is_wanted() {
        let mut window = Window::new(2, None, 1);
        assert!(admits(&mut window, 90, 0)); // The chunks before were of other kinds.
        window.tell(90);
        assert!(admits(&mut window, 91, 0));
        window.tell(91);
        assert!(!admits(&mut window, 92, 0) && admits(&mut window, 92, 90));
        window.tell(99); // A gap.
        assert!(!admits(&mut window, 100, 91));
        assert!(admits(&mut window, 100, 99));
    }

    #[test]
    fn it_takes_no_more_bytes_than_the_ring_keeps_and_always_one_chunk() {
        let replay = Replay { chunks: 8, bytes: 330, until_acknowledged: true };
        let mut window = Window::new(50, Some(replay), 1);
        for seq in 1..=3 {
            assert!(admits(&mut window, seq, 0), "{seq}");
            window.tell(seq);
        }
        assert!(!admits(&mut window, 4, 0) && window.holds(4)); // 400 bytes.
        assert!(admits(&mut window, 4, 1));
        window.tell(4);
        assert!(!admits(&mut window, 5, 1));
        let large = Place { until: 900, ..chunk(5, 100) };
        assert!(!window.admits(large, 3, |seq| Some(chunk(seq, 100))));
        assert!(window.admits(large, 4, |_| None)); // It is alone.
    }
}
