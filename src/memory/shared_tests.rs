//! Tests of rings and pages that two processes share, from both sides, and of hostile processes.
//! Both sides are in this process here, each with a mapping of its own.

use std::fs::File;
use std::num::NonZeroU8;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use memmap2::{MmapOptions, UncheckedAdvice};

use super::atomic::Ordering;
use super::control::{CONTROL_MAGIC, CONTROL_WORDS};
use super::layout::{ClockAnchor, Geometry};
use super::memfd::{DOOR_SEALS, Memfd, SHARED_SEALS};
use super::*;
use crate::base::{Instant, Random};
use crate::limits::{DOOR_READERS_PER_EXECUTION_MAX, DOOR_RING_BYTES, RING_CLASS_BYTES};
use crate::stream::KindTotals;

const ANCHOR: ClockAnchor = ClockAnchor { wall_us: 7_000_000, mono_ns: 5 };

fn copy_of(descriptor: BorrowedFd<'_>) -> OwnedFd {
    descriptor.try_clone_to_owned().unwrap()
}

fn header_of(seq: u64) -> ChunkHeader {
    ChunkHeader { kind: (seq % 3) as u8, key: (seq % 64) as u8, flags: 0 }
}

fn payload_of(seq: u64) -> Vec<u8> {
    let length = Random::new(seq).below(400) as usize;
    (0..length).map(|at| (seq as usize + at) as u8).collect()
}

fn write(writer: &mut RingWriter) -> u64 {
    let seq = writer.head_seq() + 1;
    let written =
        writer.write(header_of(seq), &payload_of(seq), Instant::from_nanos(seq), u64::MAX);
    assert_eq!(written, Ok(seq));
    seq
}

/// Returns the totals of all chunks before chunk `seq`.
fn totals_before(seq: u64) -> (KindTotals, u64) {
    let (mut kinds, mut bytes) = (KindTotals::default(), 0);
    for seq in 1..seq {
        let (kind, length) = (header_of(seq).kind as usize, payload_of(seq).len() as u64);
        kinds[kind].count(length as u32);
        bytes += length;
    }
    (kinds, bytes)
}

#[test]
fn a_relay_begins_where_its_ring_stands_and_holds_what_that_holds() {
    let mut ring = RingWriter::new(Lease::heap(Geometry::of_class(4 << 10)), ANCHOR);
    for _ in 0..1_000 {
        write(&mut ring);
    }
    let tail_seq = ring.tail_seq();
    assert!(tail_seq > 900);
    let (kinds, total_bytes) = totals_before(tail_seq);
    assert_eq!(*ring.tail_totals(), kinds);
    let start = Start { seq: tail_seq, total_bytes, kinds };
    let mut door = DoorRing::starting(16 << 10, ANCHOR, &start).unwrap();
    let reader = RingReader::open(copy_of(door.descriptor())).unwrap();
    let mut buffer = [0; 4 << 10];
    for gone in [1, tail_seq - 1, tail_seq - 17, tail_seq - 64, tail_seq - 65] {
        assert_eq!(reader.poll(gone), Poll::Overtaken { tail_seq });
    }
    assert_eq!(reader.poll(tail_seq), Poll::Pending);
    assert_eq!(reader.poll(tail_seq + 500), Poll::Pending);
    assert_eq!(reader.tail_totals(), Some(TailTotals { tail_seq, kinds }));
    assert_eq!((reader.head_seq(), reader.total_bytes()), (tail_seq - 1, total_bytes));
    for seq in tail_seq..=ring.head_seq() {
        assert_eq!(write(&mut door.writer), seq);
    }
    for _ in 0..2_000 {
        let seq = write(&mut ring);
        assert_eq!(write(&mut door.writer), seq);
        assert!(door.writer.tail_seq() <= ring.tail_seq());
        door.writer.audit();
        let found = reader.read(seq, &mut buffer).unwrap();
        assert_eq!(&buffer[..found.length as usize], payload_of(seq));
        assert_eq!(found.total_bytes, ring.total_bytes());
        assert_eq!(door.writer.descriptor(seq), found);
        let (ours, theirs) = (reader.read(ring.tail_seq(), &mut buffer).unwrap(), ring.tail_seq());
        assert_eq!(&buffer[..ours.length as usize], payload_of(theirs));
    }
    let tail = reader.tail_totals().unwrap();
    assert!(tail.tail_seq > start.seq);
    assert_eq!(tail.kinds, totals_before(tail.tail_seq).0);
}

/// Writes chunks of all sizes, including the longest, to a ring of each class.
#[test]
fn a_relay_of_the_next_larger_class_gives_up_nothing_that_its_ring_holds() {
    let now = Instant::ZERO;
    for pair in DOOR_RING_BYTES[..=RING_CLASS_BYTES.len()].windows(2) {
        let ring_of = |bytes| RingWriter::new(Lease::heap(Geometry::of_class(bytes)), ANCHOR);
        let (mut ring, mut relay) = (ring_of(pair[0]), ring_of(pair[1]));
        let length_max = u64::from(ring.geometry().length_max());
        let bytes = vec![1; length_max as usize];
        for seed in 0..4 {
            let mut random = Random::new(seed);
            for _ in 0..20_000 {
                let most = [8, 300, length_max / 3, length_max][random.below(4) as usize];
                let length = if random.chance(1, 9) { most } else { random.below(most + 1) };
                let payload = &bytes[..length as usize];
                ring.write(ChunkHeader::default(), payload, now, u64::MAX).unwrap();
                relay.write(ChunkHeader::default(), payload, now, u64::MAX).unwrap();
                assert!(relay.tail_seq() <= ring.tail_seq());
            }
        }
    }
}

#[test]
fn every_class_of_a_door_can_be_opened() {
    for class_bytes in DOOR_RING_BYTES {
        let door = DoorRing::create(class_bytes, ANCHOR).unwrap();
        let reader = RingReader::open(copy_of(door.descriptor())).unwrap();
        assert_eq!(reader.geometry(), Geometry::of_class(class_bytes));
        assert_eq!(reader.anchor(), ANCHOR);
    }
}

#[test]
fn a_server_tells_through_its_control_file() {
    let mut file = ControlFile::create().unwrap();
    let open = |slot| ControlView::open(copy_of(file.descriptor()), slot);
    let (view, reader_signals) = open(DOOR_READERS_PER_EXECUTION_MAX - 1).unwrap();
    assert!(matches!(open(DOOR_READERS_PER_EXECUTION_MAX), Err(OpenError::WrongPage)));
    assert!(matches!(open(u32::MAX), Err(OpenError::WrongPage)));
    let (_, other_signals) = open(0).unwrap();

    assert_eq!((view.gate(), view.final_record()), ((0, 0, 0, 0), None)); // The gate is closed.
    file.page.set_gate(3, 4, 5, 6);
    assert_eq!(view.gate(), (3, 4, 5, 6));
    assert!(view.server_asleep().is_none() && !view.has_direct_readers() && !view.is_closed());
    file.page.set_server_asleep(7);
    file.page.set_direct_readers(2);
    file.page.close();
    assert!(view.server_asleep().is_some() && view.has_direct_readers() && view.is_closed());
    assert_eq!(view.gate(), (3, 4, 5, 6));
    let message = ShortText::new("half");
    let context = ShortText::new("{}");
    let told = ProgressRecord { progress: 0.5, total: None, reports: 1, message, context };
    file.page.set_progress(&told);
    assert_eq!(view.progress(), Some(told));

    let before = reader_signals.epoch();
    let slot = file.take_slot(DOOR_READERS_PER_EXECUTION_MAX - 1);
    assert_eq!(reader_signals.detached(), 0);
    assert_ne!(reader_signals.epoch(), before);
    slot.detach(4);
    assert_eq!(
        (reader_signals.detached(), other_signals.detached(), other_signals.epoch()),
        (4, 0, 0)
    );
    file.take_slot(DOOR_READERS_PER_EXECUTION_MAX - 1);
    assert_eq!(reader_signals.detached(), 0);

    let (verdict, totals) = (NonZeroU8::new(2).unwrap(), KindTotals::default());
    file.page.set_exit(1 << 32 | 3);
    file.page.finish(&FinalRecord { verdict, head_seq: 9, totals }, "it broke");
    assert_eq!(view.final_record(), Some(FinalRecord { verdict, head_seq: 9, totals }));
    assert_eq!((view.error_text().as_str(), view.exit()), ("it broke", 1 << 32 | 3));
}

#[test]
fn a_reader_tells_through_its_page() {
    let file = ReaderPageFile::create(5).unwrap();
    let page = ReaderPage::open(copy_of(file.descriptor())).unwrap();
    let mut view = file.close(5).unwrap();
    assert_eq!(view.sample(1, 9), Ok(5));
    page.set_cursor(7);
    page.set_missed(2, 30);
    assert_eq!((view.sample(1, 9), view.missed()), (Ok(7), (2, 30)));
    assert!(!view.is_asleep() && !view.take_watch() && !view.has_left());
    page.set_asleep();
    assert!(view.is_asleep() && !view.take_watch());
    page.set_awake();
    page.set_watching(1);
    assert!(view.is_asleep() && view.take_watch() && !view.take_watch());
    page.set_awake();
    assert!(!view.take_watch());
    page.set_watching(2);
    assert!(view.take_watch());
    page.set_left();
    assert!(view.has_left());
}

#[test]
fn a_producer_tells_through_its_ring_and_its_page() {
    let ring = ProducerRing::create(64 << 10, ANCHOR).unwrap();
    let page_file = ProducerPageFile::create().unwrap();
    let mut writer = RingWriter::open(copy_of(ring.descriptor())).unwrap();
    let mut page = ProducerPage::open(copy_of(page_file.descriptor())).unwrap();
    write(&mut writer); // The producer may begin at once.
    let for_readers = ring.close().unwrap();
    let (view, owner) = page_file.close().unwrap();
    let direct = RingReader::open(for_readers).unwrap();
    let mut buffer = vec![0; writer.geometry().length_max() as usize];
    for _ in 0..1_000 {
        let seq = write(&mut writer);
        for reader in [ring.reader(), &direct] {
            let found = reader.read(seq, &mut buffer).unwrap();
            assert_eq!(&buffer[..found.length as usize], payload_of(seq));
        }
    }
    assert!(writer.tail_seq() > 1);
    assert_eq!(direct.tail_totals().unwrap().kinds, *writer.tail_totals());

    assert_eq!((view.chunks_expected(), view.progress(), view.final_record()), (None, None, None));
    page.set_chunks_expected(9);
    let (message, context) = (ShortText::new("m"), ShortText::new(""));
    let told = ProgressRecord { progress: 2.0, total: Some(4.0), reports: 1, message, context };
    page.set_progress(&told);
    assert_eq!((view.chunks_expected(), view.progress()), (Some(9), Some(told)));
    page.owner().set_room(Room::None);
    assert!(owner.is_gated() && owner.is_short_of_room());
    page.owner().set_room(Room::Short);
    assert!(!owner.is_gated() && owner.is_short_of_room());
    page.owner().set_room(Room::Enough);
    assert!(!owner.is_gated() && !owner.is_short_of_room());
    let (verdict, totals) = (NonZeroU8::new(1).unwrap(), KindTotals::default());
    page.finish(&FinalRecord { verdict, head_seq: 1_001, totals }, "why");
    assert_eq!(view.final_record(), Some(FinalRecord { verdict, head_seq: 1_001, totals }));
    assert_eq!(view.error_text().as_str(), "why");
}

#[test]
fn an_owner_word_is_held_for_as_long_as_its_closure_runs() {
    let file = ProducerPageFile::create().unwrap();
    let page = ProducerPage::open(copy_of(file.descriptor())).unwrap();
    let (_, view) = file.close().unwrap();
    assert_eq!(view.owner(), Owner::Nobody);
    let word = page.owner().clone();
    std::thread::spawn(move || {
        let inside = word.hold(|| view.owner()).unwrap();
        let Owner::Lives(raw) = inside else { panic!("{inside:?}") };
        assert_ne!(raw & libc::FUTEX_WAITERS, 0); // Without it the kernel would wake nobody.
        assert_eq!(view.owner(), Owner::Nobody);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            word.hold(|| panic!("within"))
        }));
        assert!(panicked.is_err());
        assert_eq!(view.owner(), Owner::Nobody);
        view
    })
    .join()
    .unwrap();
}

/// Tries everything that would change a file or its pages. It has only a descriptor that was made
/// for writing and an earlier mapping.
fn attack(descriptor: &OwnedFd, mapping: &memmap2::MmapRaw) -> Vec<&'static str> {
    let file = File::from(descriptor.try_clone().unwrap());
    let mut done = Vec::new();
    if MmapOptions::new().map_raw(&file).is_ok() {
        done.push("map");
    }
    if file.write_at(b"x", 0).is_ok() {
        done.push("write");
    }
    for bytes in [0, 1 << 30] {
        if file.set_len(bytes).is_ok() {
            done.push("truncate");
        }
    }
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes numbers only.
    if unsafe { libc::fallocate(file.as_raw_fd(), punch, 0, 4096) } == 0 {
        done.push("punch");
    }
    // SAFETY: the call is refused. If not, the bytes become zero, and they are only accessed as
    // atomics.
    let removed = unsafe { mapping.unchecked_advise_range(UncheckedAdvice::Remove, 0, 4096) };
    if removed.is_ok() {
        done.push("remove");
    }
    done
}

#[test]
fn what_a_guest_has_can_be_written_by_the_guest_and_changed_by_nobody() {
    let ring = ProducerRing::create(4 << 10, ANCHOR).unwrap();
    let descriptor = copy_of(ring.descriptor());
    let mapping = MmapOptions::new().map_raw(&descriptor).unwrap();
    let before = attack(&descriptor, &mapping);
    assert_eq!(before, ["map", "write", "punch", "remove"]); // So it is not read before.
    ring.close().unwrap();
    assert_eq!(attack(&descriptor, &mapping), [""; 0]);
    let file = File::from(descriptor);
    let metadata = file.metadata().unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(metadata.blocks() * 512, 4096); // The hole was allocated again.

    let page = ReaderPageFile::create(1).unwrap();
    let descriptor = copy_of(page.descriptor());
    let mapping = MmapOptions::new().map_raw(&descriptor).unwrap();
    let reader = ReaderPage::open(copy_of(page.descriptor())).unwrap();
    let mut view = page.close(1).unwrap();
    assert_eq!(attack(&descriptor, &mapping), [""; 0]);
    reader.set_cursor(2);
    assert_eq!(view.sample(1, 9), Ok(2));

    let door = DoorRing::create(4 << 10, ANCHOR).unwrap();
    let control = ControlFile::create().unwrap();
    for descriptor in [door.descriptor(), control.descriptor()] {
        let mapping = MmapOptions::new().map_raw_read_only(&descriptor).unwrap();
        assert_eq!(attack(&copy_of(descriptor), &mapping), [""; 0]);
    }
}

#[test]
fn a_guest_that_forbids_the_sealing_is_found_out() {
    let seal = |descriptor: BorrowedFd<'_>, seals: i32| {
        // SAFETY: takes numbers only.
        let result = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        assert_eq!(result, 0);
    };
    let ring = ProducerRing::create(4 << 10, ANCHOR).unwrap();
    seal(ring.descriptor(), libc::F_SEAL_SEAL);
    assert!(matches!(ring.close(), Err(OpenError::NotSealed { .. })));
    let page = ReaderPageFile::create(1).unwrap();
    seal(page.descriptor(), libc::F_SEAL_SEAL);
    assert!(matches!(page.close(1), Err(OpenError::NotSealed { .. })));
    let page = ProducerPageFile::create().unwrap();
    seal(page.descriptor(), libc::F_SEAL_SEAL);
    assert!(matches!(page.close(), Err(OpenError::NotSealed { .. })));
    // A producer that sets the server's seals itself does no harm.
    let page = ReaderPageFile::create(1).unwrap();
    seal(page.descriptor(), DOOR_SEALS);
    assert!(page.close(1).is_ok());
    // The header is overwritten before the page is closed.
    let page = ProducerPageFile::create().unwrap();
    File::from(copy_of(page.descriptor())).write_all_at(&[0xFF; 4096], 0).unwrap();
    assert!(matches!(page.close(), Err(OpenError::WrongPage)));
}

#[test]
fn a_descriptor_that_is_not_what_it_should_be_is_refused() {
    let (control, door) = (ControlFile::create().unwrap(), DoorRing::create(4096, ANCHOR).unwrap());
    let ring = ProducerRing::create(4096, ANCHOR).unwrap();
    let reader_page = ReaderPageFile::create(1).unwrap();
    let producer_page = ProducerPageFile::create().unwrap();
    let null = || OwnedFd::from(File::open("/dev/null").unwrap());
    let (pipe, _writing_end) = std::io::pipe().unwrap();
    let unsealed = Memfd::create(c"unsealed").unwrap();
    unsealed.allocate(0, 4096).unwrap();
    let odd = Memfd::create(c"odd").unwrap();
    odd.allocate(0, 4097).unwrap();
    odd.seal(DOOR_SEALS).unwrap();
    let empty = Memfd::create(c"empty").unwrap();
    empty.allocate(0, 4096).unwrap();
    empty.seal(DOOR_SEALS).unwrap();
    let others = || {
        let memfds = [&unsealed, &odd, &empty].map(|memfd| copy_of(memfd.descriptor()));
        memfds.into_iter().chain([null(), copy_of(pipe.as_fd())])
    };
    let guests = || [&reader_page.descriptor(), &ring.descriptor()].map(|fd| copy_of(*fd));
    for fd in others().chain(guests()).chain([copy_of(door.descriptor())]) {
        assert!(ControlView::open(fd, 0).is_err());
    }
    for fd in others().chain(guests()).chain([copy_of(control.descriptor())]) {
        assert!(RingReader::open(fd).is_err());
    }
    let hosts = || [copy_of(door.descriptor()), copy_of(control.descriptor())];
    for fd in others().chain(hosts()).chain([copy_of(producer_page.descriptor())]) {
        assert!(ReaderPage::open(fd).is_err());
    }
    for fd in others().chain(hosts()).chain([copy_of(reader_page.descriptor())]) {
        assert!(ProducerPage::open(fd).is_err());
    }
    for fd in others().chain(hosts()).chain([copy_of(reader_page.descriptor())]) {
        assert!(RingWriter::open(fd).is_err());
    }
    let mut writer = RingWriter::open(copy_of(ring.descriptor())).unwrap();
    write(&mut writer);
    assert!(matches!(RingWriter::open(copy_of(ring.descriptor())), Err(OpenError::NotEmpty)));
    // The file is sealed and of the right size, with other contents.
    let fake = Memfd::create(c"fake").unwrap();
    fake.allocate(0, 4096).unwrap();
    fake.write_words(&[CONTROL_MAGIC; CONTROL_WORDS]).unwrap();
    fake.seal(SHARED_SEALS).unwrap();
    let fakes = || copy_of(fake.descriptor());
    assert!(matches!(ReaderPage::open(fakes()), Err(OpenError::WrongPage)));
    assert!(matches!(ProducerPage::open(fakes()), Err(OpenError::WrongPage)));
    assert!(matches!(RingWriter::open(fakes()), Err(OpenError::Header(_))));
}

#[test]
fn whatever_stands_in_a_page_can_be_looked_at() {
    let segment = Segment::heap(CONTROL_WORDS + owner::OWNER_WORDS);
    let view = ControlPage::new().view();
    drop(view);
    let mut random = Random::new(11);
    for _ in 0..2_000 {
        for index in 0..CONTROL_WORDS {
            let word = match random.below(4) {
                0 => 0,
                1 => random.below(300),
                2 => u64::MAX - random.below(3),
                _ => random.next_u64(),
            };
            segment.word(index).store(word, Ordering::Relaxed);
        }
        let _ = ControlPage::at(&segment, CONTROL_MAGIC);
        let view = ControlView::at(&segment, CONTROL_MAGIC).unwrap();
        let _ = (view.gate(), view.final_record(), view.error_text(), view.progress());
        let _ = (view.chunks_expected(), view.exit(), view.is_closed(), view.server_asleep());
        let mut page = ReaderPageView::at(segment.clone(), 3);
        let (tail_seq, head_seq) = (3, 9);
        if let Ok(cursor) = page.sample(tail_seq, head_seq) {
            assert!((3..=10).contains(&cursor));
        }
        let _ = (page.take_watch(), page.is_asleep(), page.missed(), page.has_left());
        let _ = OwnerView::at(segment.clone()).owner();
    }
}
