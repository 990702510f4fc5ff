//! Models of the protocol. Loom runs every interleaving (within a bound on preemptions) and every
//! value that the memory model lets a relaxed load see.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib loom`
//!
//! Most rings here have eight slots and room for four frames, so the data area wraps before the
//! slots do. Each control removes one part of the protocol ([`Flaw`]) and has to fail. A
//! model that cannot fail proves nothing.

use std::sync::Arc;

use super::atomic::{Flaw, flaw_switch, full_fence};
use super::*;
use crate::base::Instant;
use crate::stream::{Kind, KindTotals, Totals};

/// A geometry for four payloads of a word, with eight slots.
const DATA_FIRST: Geometry = Geometry::custom(8, 192);
/// A geometry with eight slots, and room for more payloads than that.
const SLOTS_FIRST: Geometry = Geometry::custom(8, 384);

/// Runs `model` in every interleaving with at most `preemptions` of them.
fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Runs `model` like [`explore`], without one part of the protocol.
fn explore_without(flaw: Flaw, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            flaw_switch::ACTIVE.with(|active| active.set(None));
        }
    }
    let _reset = Reset;
    flaw_switch::ACTIVE.with(|active| active.set(Some(flaw)));
    explore(preemptions, model);
}

fn payload_of(tenant: u64, seq: u64) -> [u8; 8] {
    (tenant << 32 | seq).to_le_bytes()
}

fn write(writer: &mut RingWriter, tenant: u64) {
    let seq = writer.head_seq() + 1;
    let header = ChunkHeader { kind: (seq % 2) as u8, key: seq as u8, flags: tenant as u16 };
    let now = Instant::from_nanos(seq);
    writer.write(header, &payload_of(tenant, seq), now, u64::MAX).unwrap();
}

/// Reads `seq` once. A received chunk has to be chunk `seq` of `tenant`, whole.
fn read(reader: &RingReader, tenant: u64, seq: u64) -> Result<(), ReadError> {
    let mut buffer = [0; 8];
    let descriptor = reader.read(seq, &mut buffer)?;
    assert_eq!(descriptor.seq, seq);
    assert_eq!(descriptor.mono_ns, seq);
    assert_eq!(descriptor.total_bytes, 8 * seq);
    assert_eq!(descriptor.length, 8);
    assert_eq!(descriptor.header.key, seq as u8);
    assert_eq!(descriptor.header.flags, tenant as u16);
    assert_eq!(buffer, payload_of(tenant, seq));
    Ok(())
}

fn ring(geometry: Geometry, chunk_count: u64) -> RingWriter {
    let mut writer = RingWriter::new(Lease::heap(geometry), ClockAnchor::default());
    for _ in 0..chunk_count {
        write(&mut writer, 1);
    }
    writer
}

/// The model in which the writer overwrites chunks 1 and 2 while a reader reads them.
fn a_reader_is_overtaken(geometry: Geometry, held: u64) {
    let mut writer = ring(geometry, held);
    let reader = writer.reader();
    let thread = loom::thread::spawn(move || {
        for seq in 1..=2 {
            match read(&reader, 1, seq) {
                Ok(()) => {}
                Err(ReadError::Overtaken { tail_seq }) => assert!(tail_seq > seq),
                Err(error) => panic!("chunk {seq}: {error}"),
            }
        }
    });
    write(&mut writer, 1);
    write(&mut writer, 1);
    thread.join().unwrap();
}

#[test]
fn a_reader_whose_ring_begins_anew_takes_that_for_being_overtaken() {
    explore(3, || {
        let mut writer = ring(DATA_FIRST, 2);
        let reader = writer.reader();
        let thread = loom::thread::spawn(move || {
            for seq in 2..=3 {
                match read(&reader, 1, seq) {
                    Ok(()) => assert_eq!(seq, 2),
                    Err(ReadError::Pending) => assert_eq!(seq, 3),
                    Err(ReadError::Overtaken { tail_seq }) => assert_eq!(tail_seq, 10),
                    Err(error) => panic!("chunk {seq}: {error}"),
                }
            }
        });
        let mut kinds = KindTotals::default();
        kinds.add(Kind::Output, Totals { chunks: 9, bytes: 72 });
        writer.skip_to(&Start { seq: 10, total_bytes: 72, kinds });
        write(&mut writer, 1);
        thread.join().unwrap();
    });
}

#[test]
fn an_overtaken_reader_never_takes_new_bytes_for_old_ones_when_data_wraps_first() {
    explore(3, || a_reader_is_overtaken(DATA_FIRST, 4));
}

#[test]
fn an_overtaken_reader_never_takes_new_bytes_for_old_ones_when_slots_wrap_first() {
    explore(2, || a_reader_is_overtaken(SLOTS_FIRST, 8));
}

#[test]
#[should_panic(expected = "left == right")]
fn control_without_the_claim_fence_the_model_fails() {
    explore_without(Flaw::ClaimFence, 3, || a_reader_is_overtaken(DATA_FIRST, 4));
}

#[test]
#[should_panic(expected = "left == right")]
fn control_without_the_reader_fence_the_model_fails() {
    explore_without(Flaw::ReaderFence, 3, || a_reader_is_overtaken(DATA_FIRST, 4));
}

#[test]
#[should_panic(expected = "left == right")]
fn control_without_the_tail_check_the_model_fails() {
    explore_without(Flaw::TailCheck, 3, || a_reader_is_overtaken(DATA_FIRST, 4));
}

/// The model in which a reader follows the writer from the first chunk on, by slot and by head.
fn a_reader_follows() {
    let mut writer = ring(DATA_FIRST, 0);
    let reader = writer.reader();
    let thread = loom::thread::spawn(move || {
        let head_seq = reader.head_seq();
        for seq in 1..=2 {
            match read(&reader, 1, seq) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error, ReadError::Pending);
                    assert!(seq > head_seq); // The chunks that the head announced are there.
                }
            }
        }
    });
    write(&mut writer, 1);
    write(&mut writer, 1);
    thread.join().unwrap();
}

#[test]
fn a_chunk_that_is_announced_is_there_whole() {
    explore(3, a_reader_follows);
}

#[test]
#[should_panic(expected = "left == right")]
fn control_announced_before_it_is_written_the_model_fails() {
    explore_without(Flaw::PublishOrder, 3, a_reader_follows);
}

/// The model in which a reader follows the writer over the end of the area. A payload before has
/// left the number of chunk 6 in the place of chunk 6.
fn a_reader_follows_over_the_end() {
    let mut writer = ring(DATA_FIRST, 0);
    let long = [payload_of(1, 1), 6u64.to_le_bytes()].concat();
    let header = ChunkHeader { kind: 1, key: 1, flags: 1 };
    writer.write(header, &long, Instant::from_nanos(1), u64::MAX).unwrap();
    (2..=4).for_each(|_| write(&mut writer, 1));
    let reader = writer.reader();
    assert!(matches!(reader.poll(4), Poll::Ready(_)));
    let thread = loom::thread::spawn(move || {
        for seq in 5..=6 {
            let mut buffer = [0; 16];
            match reader.read(seq, &mut buffer) {
                Ok(chunk) => assert_eq!((chunk.seq, chunk.mono_ns, chunk.length), (seq, seq, 8)),
                Err(error) => assert_eq!(error, ReadError::Pending),
            }
        }
    });
    write(&mut writer, 1);
    write(&mut writer, 1);
    thread.join().unwrap();
}

#[test]
fn a_reader_finds_the_chunk_at_its_place_or_where_it_wrapped_to() {
    explore(3, a_reader_follows_over_the_end);
}

#[test]
#[should_panic(expected = "left == right")]
fn control_without_a_cleared_place_the_model_fails() {
    explore_without(Flaw::NextPlace, 3, a_reader_follows_over_the_end);
}

/// The model in which the window of a ring gets a new ring while a reader of the old one reads
/// chunk 1. `flaw` may remove a part of the protocol.
fn a_window_changes_its_tenant(flaw: Option<Flaw>) {
    flaw_switch::ACTIVE.with(|active| active.set(None));
    let writer = ring(DATA_FIRST, 1);
    let reader = writer.reader();
    flaw_switch::ACTIVE.with(|active| active.set(flaw)); // The first ring had its generation.
    let thread = loom::thread::spawn(move || match read(&reader, 1, 1) {
        Ok(()) | Err(ReadError::Gone) => {}
        Err(error) => panic!("{error}"),
    });
    let mut next = RingWriter::new(writer.into_lease(), ClockAnchor::default());
    write(&mut next, 2);
    thread.join().unwrap();
}

#[test]
fn a_reader_of_the_old_tenant_never_sees_the_new_ones_bytes() {
    explore(3, || a_window_changes_its_tenant(None));
}

#[test]
#[should_panic(expected = "left == right")]
fn control_under_the_old_generation_the_model_fails() {
    let flaw = Flaw::Generation;
    explore_without(flaw, 3, move || a_window_changes_its_tenant(Some(flaw)));
}

#[test]
fn tail_totals_are_of_one_moment() {
    explore(2, || {
        let mut writer = ring(DATA_FIRST, 4);
        let reader = writer.reader();
        let thread = loom::thread::spawn(move || {
            let totals = reader.tail_totals().unwrap();
            let before = totals.tail_seq - 1;
            assert_eq!(totals.kinds[1].chunks, before.div_ceil(2)); // Chunks 1, 3, 5 …
            assert_eq!(totals.kinds[0].chunks, before / 2); // Chunks 2, 4, 6 …
            assert_eq!(totals.kinds[0].bytes, before / 2 * 8);
        });
        write(&mut writer, 1);
        write(&mut writer, 1);
        thread.join().unwrap();
    });
}

#[test]
fn a_reader_that_falls_asleep_is_seen_or_sees_the_chunk() {
    explore(3, || {
        let mut writer = ring(DATA_FIRST, 0);
        let reader = writer.reader();
        let (page, view) = ReaderPage::new(1);
        let exchange = Arc::new(Exchange::new());
        let seen_from_there = Arc::clone(&exchange);
        let thread = loom::thread::spawn(move || {
            page.set_asleep();
            seen_from_there.fall_asleep();
            reader.head_seq() == 0 // The reader would sleep.
        });
        write(&mut writer, 1);
        full_fence();
        let is_woken = view.is_asleep() && exchange.asleep().is_on_futex();
        let is_sleeping = thread.join().unwrap();
        assert!(is_woken || !is_sleeping);
    });
}

#[test]
fn a_reader_that_sleeps_in_a_reactor_is_woken_once_or_sees_the_chunk() {
    explore(3, || {
        let mut writer = ring(DATA_FIRST, 0);
        let reader = writer.reader();
        let exchange = Arc::new(Exchange::new());
        let reader_signals = Arc::new(ReaderSignals::new());
        let there = (Arc::clone(&exchange), Arc::clone(&reader_signals));
        let thread = loom::thread::spawn(move || {
            there.0.sleep_in_reactor(there.1.reactor_sleep());
            let is_sleeping = reader.head_seq() == 0;
            // A reader that finds something ends its own sleep, unless the writer was faster.
            let is_up = !is_sleeping && there.0.end_reactor_sleep(there.1.reactor_sleep());
            (is_sleeping, is_up)
        });
        write(&mut writer, 1);
        full_fence();
        let is_woken = exchange.asleep().is_in_reactor()
            && exchange.end_reactor_sleep(reader_signals.reactor_sleep());
        let (is_sleeping, is_up) = thread.join().unwrap();
        assert!(is_woken || !is_sleeping);
        assert!(!(is_woken && is_up));
        assert_eq!(exchange.asleep().is_in_reactor(), !is_woken && !is_up);
    });
}

#[test]
fn a_cursor_that_moves_before_a_sleep_is_sampled_or_the_knock_is_heard() {
    explore(3, || {
        let control = ControlPage::new();
        let control_view = control.view();
        let (page, mut view) = ReaderPage::new(1);
        let exchange = Arc::new(Exchange::new());
        let reader_signals = Arc::new(ReaderSignals::new());
        let there = (Arc::clone(&exchange), Arc::clone(&reader_signals));
        let thread = loom::thread::spawn(move || {
            page.set_cursor(2);
            there.0.fall_asleep();
            let is_knocked_for = there.1.epoch() != 0;
            is_knocked_for && control_view.attention_hint() // It would wake the shard.
        });
        control.set_attention(true);
        reader_signals.knock();
        full_fence();
        let is_woken = exchange.asleep().is_on_futex();
        let cursor = view.sample(1, 5).unwrap();
        let is_announced = thread.join().unwrap();
        assert!(is_announced || is_woken || cursor == 2);
    });
}

#[test]
fn a_chunk_is_before_the_end_or_refused() {
    explore(3, || {
        let mut writer = ring(DATA_FIRST, 0);
        let reader = writer.reader();
        let exchange = Arc::new(Exchange::new());
        let there = Arc::clone(&exchange);
        let thread = loom::thread::spawn(move || {
            if there.begin_write().is_ok() {
                write(&mut writer, 1);
                there.end_write();
            }
            writer.head_seq()
        });
        exchange.close();
        let final_seq = exchange.is_quiet().then(|| reader.head_seq());
        let head_seq = thread.join().unwrap();
        assert!(final_seq.is_none_or(|final_seq| final_seq == head_seq));
    });
}
