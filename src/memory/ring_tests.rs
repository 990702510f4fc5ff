//! Tests of writer and readers together: threads that are overtaken, windows that change their
//! ring, shared memory with false contents.

use std::time::Duration;

use super::atomic::{AtomicU64, Ordering};
use super::layout::{
    DATA_BYTES_WORD, GENERATION_WORD, HEAD_SEQ_WORD, MAGIC_WORD, META, SEQ, SLOT_COUNT_WORD,
    TAIL_SEQ_WORD, TAIL_VERSION_WORD, VERSION_WORD, WINDOW_BYTES_WORD, WRAPPED, index_word,
};
use super::*;
use crate::base::{Instant, Random};
use crate::stream::KindTotals;

fn write(writer: &mut RingWriter, payload: &[u8]) -> u64 {
    writer.write(ChunkHeader::default(), payload, Instant::ZERO, u64::MAX).unwrap()
}

/// Fills in the payload of chunk `seq`, whose length and bytes all follow from its number. Returns
/// the length.
fn fill_pattern(seq: u64, buffer: &mut [u8]) -> usize {
    let mut random = Random::new(seq);
    let length = random.below(buffer.len() as u64 + 1) as usize;
    random.fill(&mut buffer[..length]);
    length
}

/// Reads every available chunk up to chunk `last`. Returns the number of received and missed
/// chunks.
fn read_all(reader: &RingReader, last: u64) -> (u64, u64) {
    let length_max = reader.geometry().length_max() as usize;
    let mut buffer = vec![0; length_max];
    let mut expected = vec![0; length_max];
    let (mut received, mut missed, mut cursor) = (0, 0, 1);
    while cursor <= last {
        match reader.read(cursor, &mut buffer) {
            Ok(descriptor) => {
                let length = fill_pattern(cursor, &mut expected);
                assert_eq!(descriptor.seq, cursor);
                assert_eq!(&buffer[..descriptor.length as usize], &expected[..length]);
                assert_eq!(descriptor.header.key, cursor as u8);
                received += 1;
                cursor += 1;
            }
            Err(ReadError::Pending) => atomic::spin_hint(),
            Err(ReadError::Overtaken { tail_seq }) => {
                assert!(tail_seq > cursor);
                missed += tail_seq - cursor;
                cursor = tail_seq;
            }
            Err(error) => panic!("chunk {cursor}: {error}"),
        }
    }
    (received, missed)
}

#[test]
fn a_batch_is_there_at_once() {
    let lease = Lease::heap(Geometry::custom(8, 512));
    let mut writer = RingWriter::new(lease, ClockAnchor::default());
    let reader = writer.reader();
    let mut buffer = [0; 64];
    write(&mut writer, b"a");
    writer.begin_batch();
    for (at, payload) in [b"b", b"c", b"d"].into_iter().enumerate() {
        assert_eq!(write(&mut writer, payload), at as u64 + 2);
        assert_eq!(reader.read(2, &mut buffer), Err(ReadError::Pending));
        assert_eq!(reader.head_seq(), 1);
    }
    assert!(!reader.has_been(2) && reader.has_been(1));
    assert_eq!(writer.end_batch(), 3);
    assert_eq!(reader.head_seq(), 4);
    for (seq, payload) in [(2, b"b"), (3, b"c"), (4, b"d")] {
        let found = reader.read(seq, &mut buffer).unwrap();
        assert_eq!((found.seq, &buffer[..found.length as usize]), (seq, &payload[..]));
        assert!(reader.has_been(seq));
    }
    writer.begin_batch();
    assert_eq!(writer.end_batch(), 0);
    // The batch's own first chunk stops the writer until the batch has ended.
    writer.begin_batch();
    let gate_seq = writer.batch_seq();
    let written = |writer: &mut RingWriter| {
        let header = ChunkHeader::default();
        writer.write(header, b"e", Instant::ZERO, gate_seq)
    };
    while written(&mut writer).is_ok() {}
    assert_eq!(written(&mut writer), Err(WriteError::Gated { gate_seq: 5 }));
    assert_eq!(writer.end_batch(), 8);
    assert_eq!((reader.head_seq(), writer.batch_seq()), (12, u64::MAX));
    writer.audit();
}

#[test]
fn a_skip_is_counted_and_goes_on_where_it_says() {
    let geometry = Geometry::custom(8, 512);
    let mut writer = RingWriter::new(Lease::heap(geometry), ClockAnchor::default());
    let reader = writer.reader();
    let mut buffer = [0; 64];
    for _ in 0..11 {
        write(&mut writer, b"abc");
    }
    let mut kinds = KindTotals::default();
    (kinds[0].chunks, kinds[0].bytes, kinds[3].chunks) = (20, 70, 9);
    writer.skip_to(&Start { seq: 30, total_bytes: 70, kinds });
    writer.audit();
    assert_eq!((reader.head_seq(), reader.tail_seq(), reader.total_bytes()), (29, 30, 70));
    assert_eq!(reader.tail_totals().unwrap().kinds, kinds);
    for seq in 1..30 {
        assert_eq!(reader.read(seq, &mut buffer), Err(ReadError::Overtaken { tail_seq: 30 }));
        assert_eq!(reader.poll(seq), Poll::Overtaken { tail_seq: 30 });
    }
    for seq in 30..38 {
        assert_eq!(reader.read(seq, &mut buffer), Err(ReadError::Pending));
    }
    for seq in 30..60 {
        assert_eq!(write(&mut writer, &[seq as u8]), seq);
        writer.audit();
        let found = reader.read(seq, &mut buffer).unwrap();
        assert_eq!((found.total_bytes, buffer[0]), (70 + seq - 29, seq as u8));
        assert_eq!(writer.payload(seq), [seq as u8]);
    }
    let tail = reader.tail_totals().unwrap();
    assert_eq!(tail.kinds[0].chunks, 20 + tail.tail_seq - 30);
}

#[test]
fn overtaken_readers_see_whole_chunks_and_count_what_they_missed() {
    let last: u64 = if cfg!(miri) { 60 } else { 400_000 };
    for geometry in [Geometry::custom(8, 224), Geometry::custom(64, 320), Geometry::of_class(4096)]
    {
        if cfg!(miri) && geometry.data_bytes() > 320 {
            continue; // Bytes are expensive there.
        }
        let mut writer = RingWriter::new(Lease::heap(geometry), ClockAnchor::default());
        let readers = [writer.reader(), writer.reader()];
        std::thread::scope(|scope| {
            let handles = readers.map(|reader| scope.spawn(move || read_all(&reader, last)));
            let mut payload = vec![0; geometry.length_max() as usize];
            for seq in 1..=last {
                let length = fill_pattern(seq, &mut payload);
                let header = ChunkHeader { key: seq as u8, ..ChunkHeader::default() };
                let written =
                    writer.write(header, &payload[..length], Instant::from_nanos(seq), u64::MAX);
                assert_eq!(written, Ok(seq));
            }
            writer.wake();
            for handle in handles {
                let (received, missed) = handle.join().unwrap();
                assert_eq!(received + missed, last);
                assert!(received > 0); // At least the final contents of the ring.
            }
        });
    }
}

#[test]
fn a_gating_reader_in_another_thread_misses_nothing() {
    let last: u64 = if cfg!(miri) { 60 } else { 200_000 };
    let mut writer = RingWriter::new(Lease::heap(Geometry::custom(8, 256)), ClockAnchor::default());
    let reader = writer.reader();
    let cursor = &AtomicU64::new(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut expected = [0; 32];
            for seq in 1..=last {
                let descriptor = loop {
                    match reader.poll(seq) {
                        Poll::Ready(descriptor) => break descriptor,
                        Poll::Pending => atomic::spin_hint(),
                        other => panic!("chunk {seq}: {other:?}"),
                    }
                };
                let length = fill_pattern(seq, &mut expected);
                if cfg!(miri) {
                    let mut buffer = [0; 32];
                    reader.copy(&descriptor, &mut buffer).unwrap();
                    assert_eq!(buffer[..length], expected[..length]);
                } else {
                    // SAFETY: this process writes, and the writer is given `cursor` as its gate.
                    let payload = unsafe { reader.borrow(&descriptor) };
                    assert_eq!(payload, &expected[..length]);
                }
                cursor.store(seq + 1, Ordering::Release);
            }
        });
        let mut payload = [0; 32];
        for seq in 1..=last {
            let length = fill_pattern(seq, &mut payload);
            loop {
                let gate_seq = cursor.load(Ordering::Acquire);
                let header = ChunkHeader::default();
                match writer.write(header, &payload[..length], Instant::ZERO, gate_seq) {
                    Ok(_) => break,
                    Err(WriteError::Gated { .. }) => atomic::spin_hint(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
}

#[test]
fn a_reader_of_the_last_tenant_is_told_that_its_ring_is_gone() {
    let geometry = Geometry::custom(8, 256);
    let mut old = RingWriter::new(Lease::heap(geometry), ClockAnchor::default());
    for _ in 0..5 {
        write(&mut old, b"old");
    }
    let old_reader = old.reader();
    let mut new = RingWriter::new(old.into_lease(), ClockAnchor::default());
    let new_reader = new.reader();
    assert_eq!(new_reader.poll(1), Poll::Pending); // Not the chunk that the old ring left there.
    assert_eq!(new_reader.poll(5), Poll::Pending);
    let mut buffer = [0; 64];
    for seq in 1..=9 {
        assert_eq!(old_reader.poll(seq), Poll::Gone);
        assert_eq!(old_reader.read(seq, &mut buffer), Err(ReadError::Gone));
    }
    assert_eq!(old_reader.tail_totals(), None);
    write(&mut new, b"new");
    assert_eq!(old_reader.poll(1), Poll::Gone);
    assert_eq!(new_reader.read(1, &mut buffer).unwrap().length, 3);
    assert_eq!(&buffer[..3], b"new");
}

#[test]
#[cfg_attr(miri, ignore = "miri has no shared futexes")]
fn a_sleeping_reader_is_woken_by_a_chunk() {
    let mut writer = RingWriter::new(Lease::heap(Geometry::of_class(4096)), ClockAnchor::default());
    let reader = writer.reader();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            while reader.poll(1) == Poll::Pending {
                reader.wait(0, Duration::from_secs(60));
            }
        });
        write(&mut writer, b"");
        writer.wake(); // The thread sees the changed word, or sleeps already and is woken.
        sleeper.join().unwrap();
    });
}

#[test]
fn a_small_buffer_is_refused_with_the_length_it_needs() {
    let mut writer = RingWriter::new(Lease::heap(Geometry::of_class(4096)), ClockAnchor::default());
    let reader = writer.reader();
    write(&mut writer, &[7; 100]);
    let mut buffer = [0; 99];
    assert_eq!(reader.read(1, &mut buffer), Err(ReadError::BufferTooSmall { length: 100 }));
}

#[test]
#[should_panic(expected = "publish follows lend")]
fn what_was_not_lent_cannot_be_published() {
    let mut writer = RingWriter::new(Lease::heap(Geometry::of_class(4096)), ClockAnchor::default());
    writer.lend(10, u64::MAX).unwrap();
    write(&mut writer, b"this takes the room that was lent");
    writer.publish(ChunkHeader::default(), 10, Instant::ZERO);
}

/// Sets every word of the header, of the index and of two frames to values that a hostile writer
/// would try.
#[test]
fn shared_memory_that_lies_is_refused_and_never_believed() {
    let geometry = Geometry::custom(8, 256);
    let values = [0, 1, 7, 8, 64, 255, 256, 1 << 31, u64::from(u32::MAX), 1 << 63, u64::MAX];
    let words = (0..128 + 8 + 14).step_by(if cfg!(miri) { 16 } else { 1 });
    for word in words {
        for value in values.into_iter().step_by(if cfg!(miri) { 3 } else { 1 }) {
            let lease = Lease::heap(geometry);
            let segment = lease.segment.clone();
            let mut writer = RingWriter::new(lease, ClockAnchor::default());
            let reader = writer.reader();
            for _ in 0..4 {
                write(&mut writer, &[9; 24]);
            }
            segment.word(word).store(value, Ordering::Relaxed);
            let mut buffer = [0; 64];
            for seq in 0..6 {
                if let Ok(descriptor) = reader.read(seq, &mut buffer) {
                    assert!(descriptor.length <= geometry.length_max());
                }
            }
            reader.tail_totals();
            let _ = RingReader::attach(segment).map(|reader| reader.read(1, &mut buffer));
        }
    }
}

#[test]
fn each_lie_gets_its_own_answer() {
    let lease = Lease::heap(Geometry::custom(8, 256));
    let segment = lease.segment.clone();
    let mut writer = RingWriter::new(lease, ClockAnchor::default());
    let reader = writer.reader();
    write(&mut writer, &[9; 24]);
    let seq = write(&mut writer, &[9; 24]);
    let geometry = reader.geometry();
    let frame = segment.words_at::<4>(geometry.frame_word(56));
    let index = segment.word(geometry.index_word(seq));
    // One reader looks into the index, the other one at the place behind the chunk before.
    let poll_with = |word: &AtomicU64, value: u64| {
        assert!(matches!(reader.poll(seq - 1), Poll::Ready(_)));
        let honest = word.swap(value, Ordering::Relaxed);
        let (outcome, at_place) = (writer.reader().poll(seq), reader.poll(seq));
        word.store(honest, Ordering::Relaxed);
        (outcome, at_place)
    };
    let both_with = |word: &AtomicU64, value: u64| {
        let (outcome, at_place) = poll_with(word, value);
        assert_eq!(outcome, at_place);
        outcome
    };
    let there = writer.reader().poll(seq);
    assert!(matches!(there, Poll::Ready(_)));
    assert_eq!(poll_with(&frame[SEQ], seq), (there, there));
    // Longer than a quarter with its header.
    assert_eq!(both_with(&frame[META], 33), Poll::Corrupt);
    assert_eq!(both_with(&frame[META], 24 | 16 << 32), Poll::Corrupt); // No such kind.
    // The head includes it. It was overwritten without a claim, or never written.
    assert_eq!(both_with(&frame[SEQ], 9), Poll::Corrupt);
    assert_eq!(both_with(&frame[SEQ], WRAPPED), Poll::Corrupt);
    assert_eq!(poll_with(&frame[SEQ], 0), (Poll::Corrupt, Poll::Pending));
    assert_eq!(poll_with(index, index_word(seq, 232)), (Poll::Corrupt, there)); // Beyond the end.
    assert_eq!(poll_with(index, index_word(seq, 64)), (Poll::Corrupt, there)); // Nothing is there.
    assert_eq!(poll_with(index, u64::MAX), (Poll::Corrupt, there));
    assert_eq!(poll_with(index, 0), (Poll::Corrupt, there));
    assert_eq!(both_with(segment.word(TAIL_SEQ_WORD), 4), Poll::Corrupt); // Beyond the head.
    assert_eq!(both_with(segment.word(TAIL_SEQ_WORD), 3), Poll::Overtaken { tail_seq: 3 });
    assert_eq!(both_with(segment.word(GENERATION_WORD), 9), Poll::Gone);
    segment.word(TAIL_VERSION_WORD).store(1, Ordering::Relaxed);
    assert_eq!(reader.tail_totals(), None); // The version stays odd.

    let attach_with = |word: usize, value: u64| {
        let honest = segment.word(word).swap(value, Ordering::Relaxed);
        let outcome = RingReader::attach(segment.clone()).map(|_| ());
        segment.word(word).store(honest, Ordering::Relaxed);
        outcome
    };
    assert_eq!(attach_with(HEAD_SEQ_WORD, 1), Ok(()));
    assert_eq!(attach_with(MAGIC_WORD, 0), Err(HeaderFault::Magic));
    assert_eq!(attach_with(VERSION_WORD, 1), Err(HeaderFault::Version { found: 1 }));
    assert_eq!(attach_with(WINDOW_BYTES_WORD, 0), Err(HeaderFault::Sizes));
    assert_eq!(attach_with(SLOT_COUNT_WORD, 1 << 40), Err(HeaderFault::Sizes));
    assert_eq!(attach_with(DATA_BYTES_WORD, 257), Err(HeaderFault::Sizes));
    assert_eq!(attach_with(GENERATION_WORD, 0), Err(HeaderFault::Generation));
    let short = segment.part(0, 512);
    assert_eq!(RingReader::attach(short).map(|_| ()), Err(HeaderFault::Short));
    let cut = segment.part(0, segment.bytes() - 128);
    assert_eq!(RingReader::attach(cut).map(|_| ()), Err(HeaderFault::Sizes));
}
