//! Values that hostile processes write where they may hurt, into memory that they share. They are
//! nonsense, limits of ranges, and above all plausible but false numbers, for a moment or for good.
//!
//! The word numbers repeat those of `src/memory/layout.rs`, `control.rs`, `reader_page.rs` and
//! `owner.rs`. An attacker knows them, and has none of our checks.

use streamdoor::base::Random;

use crate::raw::Memory;

const SLOT_COUNT: usize = 3;
const DATA_BYTES: usize = 4;
const GENERATION: usize = 16;
const TAIL_SEQ: usize = 17;
const HEAD_SEQ: usize = 32;
const RING_TOTAL_BYTES: usize = 33;
const TAIL_TOTALS: usize = 48;
const INDEX: usize = 128;
// The words of a frame.
const SEQ: usize = 0;
const TOTAL_BYTES: usize = 1;
const MONO_NS: usize = 2;
const META: usize = 3;
const FRAME_WORDS: usize = 4;
/// The value of a chunk's place if the chunk is at the start of the area.
const WRAPPED: u64 = u64::MAX;
/// The words of a producer's page: expected chunks, exit, end, progress, magic number, version,
/// owner, and whether it waits.
const PAGE_WORDS: [usize; 18] =
    [17, 18, 32, 33, 34, 48, 49, 80, 112, 113, 114, 115, 116, 117, 280, 281, 288, 289];
/// The words of a reader's page: cursor, asleep, missed (chunks, bytes), left, magic number,
/// version.
const READER_WORDS: [usize; 7] = [0, 1, 2, 3, 4, 8, 9];
const OWNER_DIED: u64 = 0x4000_0000;

/// A source of hostile values.
pub struct Scribbler {
    pub random: Random,
}

/// The state of a hostile writer that the server still believes.
pub struct Forger {
    next_seq: u64,
    position: u64,
    total_bytes: u64,
}

impl Scribbler {
    pub fn new(seed: u64) -> Scribbler {
        Scribbler { random: Random::new(seed) }
    }

    /// Returns a new value for a word that is `there`: mostly a plausible but wrong one.
    fn value(&mut self, there: u64) -> u64 {
        let step = self.random.between(1, 3);
        let shift = self.random.below(64);
        let drawn = self.random.next_u64();
        match self.random.below(16) {
            0 => drawn,
            1 => drawn >> shift,
            2 => 0,
            3 => 1,
            4 => u64::MAX - step,
            5 => u64::MAX,
            6 => 1 << shift,
            7 => i64::MAX as u64 + step,
            8 => u64::from(u32::MAX) + step - 2,
            9 | 10 => there.wrapping_add(step),
            11 | 12 => there.wrapping_sub(step),
            13 => there.wrapping_add(drawn % 4_096),
            14 => there / 2,
            _ => OWNER_DIED | (drawn & 0xFFFF),
        }
    }

    /// Overwrites any word.
    pub fn anywhere(&mut self, memory: &Memory) {
        let word = self.random.below(memory.word_count() as u64) as usize;
        let value = self.value(memory.load(word));
        memory.store(word, value);
    }

    /// Overwrites one of these words. Now and then it alternates between two values first, against
    /// code that reads twice.
    fn one_of(&mut self, memory: &Memory, words: &[usize]) {
        let word = words[self.random.below(words.len() as u64) as usize];
        let there = memory.load(word);
        let value = self.value(there);
        if self.random.chance(1, 4) {
            for _ in 0..self.random.below(200) {
                memory.store(word, value);
                memory.store(word, there);
            }
        }
        memory.store(word, value);
    }

    pub fn reader_page(&mut self, page: &Memory) {
        match self.random.chance(1, 8) {
            true => self.anywhere(page),
            false => self.one_of(page, &READER_WORDS),
        }
    }

    pub fn producer_page(&mut self, page: &Memory) {
        match self.random.chance(1, 8) {
            true => self.anywhere(page),
            false => self.one_of(page, &PAGE_WORDS),
        }
    }

    /// Overwrites a word that is read with each chunk, or any word.
    pub fn ring(&mut self, ring: &Memory) {
        if self.random.chance(1, 4) {
            return self.anywhere(ring);
        }
        let slot_count = ring.word_count() / 32;
        let index = INDEX + self.random.below(16) as usize;
        // Where the index says that a frame is, and behind it.
        let place = (ring.load(index) as u32).saturating_sub(1) as usize;
        let frame = (INDEX + slot_count + place).min(ring.word_count() - FRAME_WORDS);
        let length = ring.load(frame + META) as u32 as usize;
        let behind = (frame + FRAME_WORDS + length.div_ceil(8)).min(ring.word_count() - 1);
        let words = [
            SLOT_COUNT,
            DATA_BYTES,
            GENERATION,
            TAIL_SEQ,
            HEAD_SEQ,
            RING_TOTAL_BYTES,
            TAIL_TOTALS,
            TAIL_TOTALS + 1,
            index,
            frame + SEQ,
            frame + TOTAL_BYTES,
            frame + META,
            behind,
        ];
        self.one_of(ring, &words);
    }

    /// Acts as a sleeper that wakes, sleeps again and rings, faster than the server can answer.
    pub fn sleep_and_wake(&mut self, page: &Memory, times: u64) {
        for time in 0..self.random.below(times) {
            page.store(READER_WORDS[1], [0, 2, time << 1 | 1, u64::MAX][time as usize % 4]);
        }
    }

    /// Moves the cursor like an honest reader, but sometimes a little ahead.
    pub fn creep(&mut self, page: &Memory) {
        let cursor = page.load(READER_WORDS[0]);
        let step = if self.random.chance(1, 50) { self.random.below(3) } else { 0 };
        page.store(READER_WORDS[0], cursor.wrapping_add(step));
    }
}

impl Forger {
    pub fn new() -> Forger {
        Forger { next_seq: 1, position: 0, total_bytes: 0 }
    }

    /// Publishes a chunk like an honest writer. With a chance of 1 in `odds` one word of it is
    /// wrong.
    pub fn publish(&mut self, ring: &Memory, scribbler: &mut Scribbler, now_ns: u64, odds: u64) {
        let random = &mut scribbler.random;
        // These sizes come from the granted memory, not from words that it has overwritten since.
        let bytes = ring.word_count() as u64 * 8;
        let slot_count = bytes / 256;
        let data_bytes = bytes - 8 * (INDEX as u64 + slot_count);
        let length = random.below(data_bytes / 8);
        let frame_bytes = 8 * FRAME_WORDS as u64 + length.next_multiple_of(8);
        let word_of = |position: u64| INDEX + (slot_count + position % data_bytes / 8) as usize;
        let left = self.position;
        if self.position % data_bytes + frame_bytes > data_bytes {
            self.position = self.position.next_multiple_of(data_bytes);
        }
        self.total_bytes += length;
        let frame = word_of(self.position);
        let index = INDEX + (self.next_seq % slot_count) as usize;
        let mut words = [0; FRAME_WORDS];
        words[SEQ] = self.next_seq;
        words[TOTAL_BYTES] = self.total_bytes;
        words[MONO_NS] = now_ns;
        words[META] = length | random.below(2) << 32 | random.below(4) << 40;
        let mut entry = self.next_seq << 32 | (self.position % data_bytes / 8 + 1);
        let (mut head_seq, mut total_bytes) = (self.next_seq, self.total_bytes);
        let (mut next_place, mut wrapped) = (0, WRAPPED);
        if random.chance(1, odds) {
            let wrong = random.below(9) as usize;
            match wrong {
                4 => head_seq = scribbler.value(head_seq),
                5 => total_bytes = scribbler.value(total_bytes),
                6 => entry = scribbler.value(entry),
                7 => next_place = scribbler.value(next_place),
                8 => wrapped = scribbler.value(wrapped),
                word => words[word] = scribbler.value(words[word]),
            }
        }
        ring.store(word_of(self.position + frame_bytes), next_place);
        for word in [TOTAL_BYTES, MONO_NS, META] {
            ring.store(frame + word, words[word]);
        }
        ring.store(index, entry);
        ring.store(frame + SEQ, words[SEQ]);
        if left != self.position {
            ring.store(word_of(left), wrapped);
        }
        ring.store(RING_TOTAL_BYTES, total_bytes);
        ring.store(HEAD_SEQ, head_seq);
        (self.next_seq, self.position) = (self.next_seq + 1, self.position + frame_bytes);
    }
}
