//! A ring in memory that a hostile writer changes, also between a poll and its copy. A reader
//! returns what the memory holds, or reports what is wrong. It never reads outside of the memory.

use streamdoor::limits::KINDS_MAX;
use streamdoor::memory::{Descriptor, HeaderFault, Poll, ReadError, RingReader, Segment};

use super::draw::Draw;

/// Size of a small window of 8 slots, in the layout of `memory::layout`.
const WINDOW_WORDS: usize = HEADER_WORDS + SLOTS * SLOT_WORDS + DATA_WORDS;
const HEADER_WORDS: usize = 128;
const SLOTS: usize = 8;
const SLOT_WORDS: usize = 8;
const DATA_WORDS: usize = 64;
const DATA_START: usize = HEADER_WORDS + SLOTS * SLOT_WORDS;
const GENERATION_WORD: usize = 16;
const TAIL_SEQ_WORD: usize = 17;
const TAIL_VERSION_WORD: usize = 18;
const HEAD_SEQ_WORD: usize = 32;

/// The memory, and the words written to it.
struct Window {
    segment: Segment,
    words: Vec<u64>,
}

impl Window {
    /// Returns a ring in which a correct writer has written six chunks.
    fn good() -> Window {
        let mut words = vec![0; WINDOW_WORDS];
        let sizes = [WINDOW_WORDS as u64 * 8, SLOTS as u64, DATA_WORDS as u64 * 8];
        words[..5].copy_from_slice(&[0x0102_676e_6972_6473, 1, sizes[0], sizes[1], sizes[2]]);
        words[GENERATION_WORD..GENERATION_WORD + 3].copy_from_slice(&[1, 1, 0]);
        words[HEAD_SEQ_WORD..HEAD_SEQ_WORD + 2].copy_from_slice(&[6, 6 * 40]);
        for seq in 1..=6 {
            let start = (seq - 1) * 40;
            let slot = HEADER_WORDS + seq % SLOTS * SLOT_WORDS;
            let facts = [seq, start, seq * 40, 1_000 * seq, 40, start];
            words[slot..slot + 6].copy_from_slice(&facts.map(|fact| fact as u64));
        }
        for (at, word) in words[DATA_START..].iter_mut().enumerate() {
            *word = 0x0101_0101_0101_0101 * at as u64;
        }
        let segment = Segment::heap(WINDOW_WORDS);
        segment.overwrite(0, &words);
        Window { segment, words }
    }

    fn set(&mut self, at: usize, value: u64) {
        self.words[at] = value;
        self.segment.overwrite(at, &[value]);
    }

    /// Changes up to `count` words, to values near the old ones or to any values.
    fn mutate(&mut self, draw: &mut Draw<'_>, count: usize) {
        for _ in 0..draw.below(count + 1) {
            let at = match draw.byte() {
                // Most words of the header have no meaning.
                choice @ 0..=15 => {
                    [0, 1, 2, 3, 4, 5, 6, 16, 17, 18, 32, 33, 48, 49, 78, 79][usize::from(choice)]
                }
                choice @ 16..=127 => HEADER_WORDS + usize::from(choice) % (SLOTS * SLOT_WORDS),
                choice => DATA_START + usize::from(choice) % DATA_WORDS,
            };
            let value = match draw.below(4) {
                0 => self.words[at] ^ 1 << draw.below(64),
                1 => self.words[at].wrapping_add(1),
                2 => self.words[at].wrapping_sub(1),
                _ => draw.number(),
            };
            self.set(at, value);
        }
    }

    /// Returns the bytes of a payload as they were written.
    fn payload(&self, descriptor: &Descriptor, offset: usize) -> Vec<u8> {
        let bytes = self.words[DATA_START..].iter().flat_map(|word| word.to_le_bytes());
        bytes.skip(offset).take(descriptor.length as usize).collect()
    }

    /// True if a reader of this generation may return its copy of chunk `seq` as valid.
    fn is_held(&self, generation: u64, seq: u64) -> bool {
        self.words[GENERATION_WORD] == generation && self.words[TAIL_SEQ_WORD] <= seq
    }

    fn slot(&self, reader: &RingReader, seq: u64) -> &[u64] {
        let count = u64::from(reader.geometry().slot_count());
        let start = HEADER_WORDS + (seq % count) as usize * SLOT_WORDS;
        &self.words[start..start + SLOT_WORDS]
    }
}

/// Checks a reader of a ring.
pub fn check(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut window = Window::good();
    if draw.flag() {
        window.mutate(&mut draw, 8);
    }
    let reader = match RingReader::attach(window.segment.clone()) {
        Ok(reader) => reader,
        Err(fault) => return check_fault(&window, fault),
    };
    assert_eq!(reader.generation(), window.words[GENERATION_WORD]);
    // A header may describe a smaller window than this one.
    assert!(reader.geometry().window_bytes() <= WINDOW_WORDS * 8);
    if reader.geometry().slot_count() as usize != SLOTS {
        return assert_ne!(window.words[3], SLOTS as u64);
    }
    for _ in 0..16 {
        window.mutate(&mut draw, 3);
        let seq = match draw.below(4) {
            0 => draw.number(),
            1 => reader.head_seq(),
            2 => reader.tail_seq(),
            _ => draw.below(12) as u64,
        };
        check_chunk(&mut window, &reader, seq, &mut draw);
        check_totals(&window, &reader);
        if draw.is_empty() {
            break;
        }
    }
}

fn check_fault(window: &Window, fault: HeaderFault) {
    let good = Window::good().words;
    let is_same = |at: usize| window.words[at] == good[at];
    match fault {
        HeaderFault::Short => panic!("it is long enough"),
        HeaderFault::Magic => assert!(!is_same(0)),
        HeaderFault::Version { found } => assert!(found == window.words[1] && !is_same(1)),
        HeaderFault::Sizes => assert!(!(is_same(2) && is_same(3) && is_same(4))),
        HeaderFault::Generation => assert_eq!(window.words[GENERATION_WORD], 0),
    }
}

fn check_chunk(window: &mut Window, reader: &RingReader, seq: u64, draw: &mut Draw<'_>) {
    let generation = reader.generation();
    let geometry = reader.geometry();
    let descriptor = match reader.poll(seq) {
        Poll::Ready(descriptor) => descriptor,
        other => return check_other(window, reader, seq, other),
    };
    assert!(window.is_held(generation, seq));
    let slot = window.slot(reader, seq);
    assert_eq!((descriptor.seq, slot[0]), (seq, seq));
    assert_eq!(descriptor.position, slot[1]);
    assert_eq!((descriptor.total_bytes, descriptor.mono_ns), (slot[2], slot[3]));
    assert_eq!(u64::from(descriptor.length), slot[4] & u64::from(u32::MAX));
    assert!(descriptor.length <= geometry.length_max());
    assert!(usize::from(descriptor.header.kind) < KINDS_MAX);
    let offset = slot[5] as usize;
    assert!(offset.is_multiple_of(8));
    assert!(offset + descriptor.length as usize <= geometry.data_bytes() as usize);
    // The writer changes words between the poll and the copy.
    if draw.flag() {
        window.mutate(draw, 3);
    }
    let mut buffer = vec![0xA5; descriptor.length as usize + 8];
    match reader.copy(&descriptor, &mut buffer) {
        Ok(()) => {
            assert!(window.is_held(generation, seq));
            let data_start = geometry.window_bytes() - geometry.data_bytes() as usize;
            assert_eq!(data_start, DATA_START * 8);
            let (payload, rest) = buffer.split_at(descriptor.length as usize);
            assert_eq!(payload, window.payload(&descriptor, offset));
            assert!(rest.iter().all(|byte| *byte == 0xA5));
        }
        Err(ReadError::Overtaken { tail_seq }) => {
            assert!(tail_seq > seq && tail_seq == window.words[TAIL_SEQ_WORD]);
        }
        Err(ReadError::Gone) => assert_ne!(window.words[GENERATION_WORD], generation),
        Err(ReadError::Corrupt) => assert!(is_wild(window)),
        Err(error) => panic!("{error:?} behind a poll that was ready"),
    }
    if descriptor.length > 0 {
        let short = &mut buffer[..descriptor.length as usize - 1];
        let length = descriptor.length;
        assert_eq!(reader.copy(&descriptor, short), Err(ReadError::BufferTooSmall { length }));
    }
}

/// True if the tail is beyond the head.
fn is_wild(window: &Window) -> bool {
    window.words[TAIL_SEQ_WORD] > window.words[HEAD_SEQ_WORD].saturating_add(1)
}

fn check_other(window: &Window, reader: &RingReader, seq: u64, poll: Poll) {
    let slot = window.slot(reader, seq);
    let generation = window.words[GENERATION_WORD];
    match poll {
        Poll::Ready(_) => unreachable!("it is another"),
        Poll::Pending => assert!(slot[0] < seq && generation == reader.generation()),
        Poll::Overtaken { tail_seq } => {
            assert!(tail_seq > seq && tail_seq == window.words[TAIL_SEQ_WORD]);
        }
        Poll::Gone => assert_ne!(generation, reader.generation()),
        Poll::Corrupt => assert!(slot[0] > seq || is_wild(window) || !is_sound(slot, reader)),
    }
    assert!(reader.read(seq, &mut [0; 1024]).is_err());
}

fn is_sound(slot: &[u64], reader: &RingReader) -> bool {
    let geometry = reader.geometry();
    let (length, kind) = (slot[4] & u64::from(u32::MAX), slot[4] >> 32 & 0xFF);
    let data_bytes = u64::from(geometry.data_bytes());
    length <= u64::from(geometry.length_max())
        && (kind as usize) < KINDS_MAX
        && slot[5].is_multiple_of(8)
        && slot[5] <= data_bytes - length
}

fn check_totals(window: &Window, reader: &RingReader) {
    match reader.tail_totals() {
        Some(totals) => {
            assert_eq!(window.words[GENERATION_WORD], reader.generation());
            assert!(window.words[TAIL_VERSION_WORD].is_multiple_of(2));
            assert_eq!(totals.tail_seq, window.words[TAIL_SEQ_WORD]);
            assert_eq!(totals.kinds[0].chunks, window.words[48]);
            assert_eq!(totals.kinds[KINDS_MAX - 1].bytes, window.words[79]);
        }
        None => {
            let is_odd = !window.words[TAIL_VERSION_WORD].is_multiple_of(2);
            assert!(is_odd || window.words[GENERATION_WORD] != reader.generation());
        }
    }
}
