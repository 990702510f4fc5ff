//! Acknowledgements of a subscriber on another thread: how far it may be given chunks before its
//! client has dealt with some. As the engine has it for subscribers of its own thread; chunks that
//! it does not want pass.

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    chunk_count: u64,
    /// One past the last chunk that it may be given.
    until_seq: u64,
    /// The last chunk that its client has dealt with.
    acked_seq: u64,
    /// The last chunk that it was given, or told of in a gap.
    told_seq: u64,
    /// The chunk that waits for an acknowledgement; 0: none does.
    held_seq: u64,
}

impl Window {
    /// Of so many chunks, for one that begins with `next_seq`.
    pub fn new(chunk_count: u32, next_seq: u64) -> Window {
        let chunk_count = u64::from(chunk_count);
        let before = next_seq - 1;
        let until_seq = next_seq + chunk_count;
        Window { chunk_count, until_seq, acked_seq: before, told_seq: before, held_seq: 0 }
    }

    /// May it be given chunk `seq`, the next that it wants? `acked_seq` is the last chunk that was
    /// acknowledged, as far as is known.
    pub fn admits(&mut self, seq: u64, acked_seq: u64) -> bool {
        if acked_seq > self.acked_seq {
            self.acked_seq = acked_seq;
            self.until_seq = self.until_seq.max(acked_seq + 1 + self.chunk_count);
        }
        if self.told_seq <= self.acked_seq {
            // Nothing is to be acknowledged: the window begins here.
            self.until_seq = self.until_seq.max(seq + self.chunk_count);
        }
        let is_admitted = seq < self.until_seq;
        self.held_seq = if is_admitted { 0 } else { seq };
        is_admitted
    }

    /// It was given this chunk, or told of it as the last one of a gap.
    pub fn tell(&mut self, seq: u64) {
        self.told_seq = seq;
    }

    /// Does chunk `seq` wait for an acknowledgement?
    pub fn holds(&self, seq: u64) -> bool {
        self.held_seq == seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_with_what_is_acknowledged() {
        let mut window = Window::new(2, 5);
        for seq in [5, 6] {
            assert!(window.admits(seq, 0));
            window.tell(seq);
        }
        assert!(!window.admits(7, 0) && window.holds(7) && !window.holds(6));
        assert!(window.admits(7, 5) && !window.holds(7));
        window.tell(7);
        assert!(!window.admits(8, 5));
        assert!(!window.admits(8, 4)); // What was known stays known.
        assert!(window.admits(8, 7));
    }

    #[test]
    fn while_nothing_is_to_be_acknowledged_it_begins_at_what_is_wanted() {
        let mut window = Window::new(2, 1);
        assert!(window.admits(90, 0)); // The chunks before were of other kinds.
        window.tell(90);
        assert!(window.admits(91, 0));
        window.tell(91);
        assert!(!window.admits(92, 0) && window.admits(92, 90));
        window.tell(99); // A gap.
        assert!(!window.admits(100, 91));
        assert!(window.admits(100, 99));
    }
}
