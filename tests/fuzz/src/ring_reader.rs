//! A ring in memory that a hostile writer changes, also between a poll and its copy. A reader
//! returns what the memory holds, or reports what is wrong. It never reads outside of the memory.

use streamdoor::limits::KINDS_MAX;
use streamdoor::memory::{Descriptor, HeaderFault, Poll, ReadError, RingReader, Segment};

use super::draw::Draw;

/// Size of a small window of 8 slots, in the layout of `memory::layout`.
const WINDOW_WORDS: usize = DATA_START + DATA_WORDS;
const HEADER_WORDS: usize = 128;
const SLOTS: usize = 8;
const DATA_WORDS: usize = 64;
const DATA_START: usize = HEADER_WORDS + SLOTS;
/// Size of a frame in front of its payload: seq, total bytes, time, meta.
const FRAME_WORDS: usize = 4;
/// Size of each frame of the correct writer: 40 bytes of payload.
const CHUNK_WORDS: usize = FRAME_WORDS + 5;
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
        words[..5].copy_from_slice(&[0x0102_676e_6972_6473, 2, sizes[0], sizes[1], sizes[2]]);
        words[GENERATION_WORD..GENERATION_WORD + 3].copy_from_slice(&[1, 1, 0]);
        words[HEAD_SEQ_WORD..HEAD_SEQ_WORD + 2].copy_from_slice(&[6, 6 * 40]);
        for (at, word) in words[DATA_START..].iter_mut().enumerate() {
            *word = 0x0101_0101_0101_0101 * at as u64;
        }
        for seq in 1..=6 {
            let frame = (seq - 1) * CHUNK_WORDS;
            words[HEADER_WORDS + seq % SLOTS] = (seq as u64) << 32 | (frame as u64 + 1);
            let facts = [seq, seq * 40, 1_000 * seq, 40];
            let frame = DATA_START + frame;
            words[frame..frame + FRAME_WORDS].copy_from_slice(&facts.map(|fact| fact as u64));
        }
        words[DATA_START + 6 * CHUNK_WORDS] = 0; // The next place.
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
                choice @ 16..=63 => HEADER_WORDS + usize::from(choice) % SLOTS,
                choice @ 64..=127 => {
                    let frame = usize::from(choice) / FRAME_WORDS % 7 * CHUNK_WORDS;
                    DATA_START + frame + usize::from(choice) % FRAME_WORDS
                }
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

    /// Returns the bytes of the payload of the frame at a word of the area.
    fn payload(&self, descriptor: &Descriptor, frame: usize) -> Vec<u8> {
        let words = &self.words[DATA_START + frame + FRAME_WORDS..];
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        bytes.take(descriptor.length as usize).collect()
    }

    /// The words of the area at which a frame of chunk `seq` begins, sound or not.
    fn frames(&self, seq: u64) -> impl Iterator<Item = usize> + '_ {
        (0..DATA_WORDS).filter(move |at| self.words[DATA_START + at] == seq)
    }

    /// The word of the area at which chunk `seq` begins by the index.
    fn indexed(&self, seq: u64) -> Option<usize> {
        let entry = self.words[HEADER_WORDS + (seq % SLOTS as u64) as usize];
        let at = (entry as u32 as usize).checked_sub(1)?;
        let is_it = entry >> 32 == u64::from(seq as u32) && at + FRAME_WORDS <= DATA_WORDS;
        (is_it && self.words[DATA_START + at] == seq).then_some(at)
    }

    /// True if a correct writer can have written the frame at a word of the area.
    fn is_sound(&self, at: usize, reader: &RingReader) -> bool {
        if at + FRAME_WORDS > DATA_WORDS {
            return false;
        }
        let meta = self.words[DATA_START + at + 3];
        let (length, kind) = (meta & u64::from(u32::MAX), meta >> 32 & 0xFF);
        length <= u64::from(reader.geometry().length_max())
            && length <= (DATA_WORDS - at - FRAME_WORDS) as u64 * 8
            && (kind as usize) < KINDS_MAX
    }

    /// True if a reader of this generation may return its copy of chunk `seq` as valid.
    fn is_held(&self, generation: u64, seq: u64) -> bool {
        self.words[GENERATION_WORD] == generation && self.words[TAIL_SEQ_WORD] <= seq
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
        // A reader that knows no place looks into the index.
        let fresh = RingReader::attach(window.segment.clone());
        match fresh {
            Ok(fresh) if draw.flag() && fresh.geometry() == reader.geometry() => {
                check_chunk(&mut window, &fresh, seq, &mut draw, true);
            }
            _ => check_chunk(&mut window, &reader, seq, &mut draw, false),
        }
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

fn check_chunk(
    window: &mut Window,
    reader: &RingReader,
    seq: u64,
    draw: &mut Draw<'_>,
    is_fresh: bool,
) {
    let generation = reader.generation();
    let geometry = reader.geometry();
    let descriptor = match reader.poll(seq) {
        Poll::Ready(descriptor) => descriptor,
        other => return check_other(window, reader, seq, other, is_fresh),
    };
    assert!(window.is_held(generation, seq));
    assert_eq!(descriptor.seq, seq);
    assert!(descriptor.length <= geometry.length_max());
    assert!(usize::from(descriptor.header.kind) < KINDS_MAX);
    let frames: Vec<usize> = if is_fresh {
        window.indexed(seq).into_iter().collect()
    } else {
        window.frames(seq).collect()
    };
    let is_it = |at: &usize| {
        let words = &window.words[DATA_START + at..];
        window.is_sound(*at, reader)
            && (descriptor.total_bytes, descriptor.mono_ns) == (words[1], words[2])
            && u64::from(descriptor.length) == words[3] & u64::from(u32::MAX)
    };
    let frames: Vec<usize> = frames.into_iter().filter(is_it).collect();
    assert!(!frames.is_empty());
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
            assert!(frames.iter().any(|at| payload == window.payload(&descriptor, *at)));
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

fn check_other(window: &Window, reader: &RingReader, seq: u64, poll: Poll, is_fresh: bool) {
    let generation = window.words[GENERATION_WORD];
    let is_published = window.words[HEAD_SEQ_WORD] >= seq;
    match poll {
        Poll::Ready(_) => unreachable!("it is another"),
        Poll::Pending => {
            assert!(window.is_held(reader.generation(), seq));
            assert!(!is_fresh || (!is_published && window.indexed(seq).is_none()));
        }
        Poll::Overtaken { tail_seq } => {
            assert!(tail_seq > seq && tail_seq == window.words[TAIL_SEQ_WORD]);
        }
        Poll::Gone => assert_ne!(generation, reader.generation()),
        Poll::Corrupt => {
            let is_wrong = |at: usize| !window.is_sound(at, reader);
            assert!(is_wild(window) || is_published || window.frames(seq).any(is_wrong));
            if is_fresh && !is_wild(window) {
                assert!(window.indexed(seq).is_none_or(is_wrong));
            }
        }
    }
    assert!(reader.read(seq, &mut [0; 1024]).is_err());
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
