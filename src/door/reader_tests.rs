//! A reader in another process, as far as one process can show it. The tests cover deliveries under
//! every policy, sleeping and waking, and ends.

use std::io::Write;
use std::os::fd::AsFd;
use std::time::Duration;

use super::host::{ANCHOR, ReadHost, is_readable, terms};
use super::{DoorError, DoorReader, ReadOptions};
use crate::base::Random;
use crate::engine::policy::Cursor;
use crate::memory::layout::Geometry;
use crate::memory::{ChunkHeader, DoorRing, ProgressRecord, RingWriter, ShortText, Start};
use crate::reactor::Clock;
use crate::shard::delivery::{code_of_detach, code_of_exit};
use crate::shard::{Delivery, Ended};
use crate::stream::{
    DetachReason, EndState, Exit, GapReason, Kind, KindTotals, Kinds, Outcome, Policy, Totals,
};

const SMALL: u32 = 4 << 10;
const LONG: Duration = Duration::from_secs(60);

fn header_of(seq: u64) -> ChunkHeader {
    ChunkHeader { kind: [0, 3, 0, 9][seq as usize % 4], key: (seq % 5) as u8, flags: 0 }
}

fn payload_of(seq: u64) -> Vec<u8> {
    let mut bytes = vec![0; (seq * 37 % 90) as usize];
    Random::new(seq).fill(&mut bytes);
    bytes
}

fn publish(host: &mut ReadHost) -> u64 {
    let seq = host.ring.writer.head_seq() + 1;
    host.publish(header_of(seq), &payload_of(seq))
}

/// The deliveries of a reader, checked against the chunks that were published.
#[derive(Default)]
struct Account {
    next_seq: u64,
    given: Totals,
    missed: Totals,
    gaps: u64,
    end: Option<(EndState, Option<String>)>,
}

impl Account {
    fn new() -> Account {
        Account { next_seq: 1, ..Account::default() }
    }

    fn take(&mut self, kinds: Kinds, delivery: &Delivery<'_>) {
        assert!(self.end.is_none());
        let wanted = |seq: &u64| kinds.contains(Kind::new(header_of(*seq).kind).unwrap());
        let count = |range: std::ops::RangeInclusive<u64>| {
            let mut totals = Totals::ZERO;
            range.filter(wanted).for_each(|seq| totals.count(payload_of(seq).len() as u32));
            totals
        };
        match delivery {
            Delivery::Chunk(chunk) => {
                assert_eq!(count(self.next_seq..=chunk.seq).chunks, 1, "chunk {}", chunk.seq);
                assert_eq!(chunk.data, payload_of(chunk.seq));
                assert_eq!(chunk.kind as u8, header_of(chunk.seq).kind);
                assert_eq!(chunk.timestamp_us(), ANCHOR.wall_us + chunk.seq);
                self.given.count(chunk.data.len() as u32);
                self.next_seq = chunk.seq + 1;
            }
            Delivery::Gap(gap) => {
                assert_eq!(count(self.next_seq..=gap.to_seq), count(gap.from_seq..=gap.to_seq));
                let missed = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
                assert_eq!(count(gap.from_seq..=gap.to_seq), missed);
                self.missed = self.missed + missed;
                self.gaps += 1;
                self.next_seq = gap.to_seq + 1;
            }
            Delivery::Progress(_) => {}
            Delivery::End(Ended { end, error }) => {
                assert_eq!((end.given, end.missed), (self.given, self.missed));
                self.end = Some((end.state, error.map(str::to_owned)));
            }
        }
    }
}

#[test]
fn every_policy_is_kept_to_and_every_loss_is_counted() {
    let some = Kinds::NONE.with(Kind::Row).with(Kind::Json);
    let mut gaps = [0; Policy::ALL.len()];
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let at = (seed as usize) % Policy::ALL.len();
        let (policy, kinds) = (Policy::ALL[at], if seed % 4 < 2 { Kinds::ALL } else { some });
        let limit = random.between(1, 14) as u32;
        let (mut host, mut reader) = ReadHost::open(SMALL, terms(policy, limit, kinds));
        let mut account = Account::new();
        for _ in 0..60 {
            for _ in 0..random.below(12) {
                publish(&mut host);
            }
            for _ in 0..random.below(12) {
                match random.below(3) {
                    0 => {
                        let most = random.between(1, 5) as usize;
                        reader.drain(most, |delivery| account.take(kinds, &delivery)).unwrap();
                    }
                    1 => {
                        if let Some(delivery) = reader.poll().unwrap() {
                            account.take(kinds, &delivery);
                        }
                    }
                    _ => {
                        if let Some(delivery) = reader.next_within(Duration::ZERO).unwrap() {
                            account.take(kinds, &delivery);
                        }
                    }
                }
            }
        }
        host.end(Outcome::Completed, "");
        while let Some(delivery) = reader.next().unwrap() {
            account.take(kinds, &delivery);
        }
        assert!(reader.is_over() && reader.poll().unwrap().is_none());
        let (state, _) = account.end.unwrap();
        let total = host.totals.each().iter().enumerate().fold(0, |sum, (kind, total)| {
            let kind = Kind::new(kind as u8).filter(|kind| kinds.contains(*kind));
            sum + kind.map_or(0, |_| total.chunks)
        });
        let told = (account.given + account.missed).chunks;
        if policy == Policy::Disconnect && told < total {
            assert!(matches!(state, EndState::Detached { reason: DetachReason::Lag, .. }));
            assert!(host.page.has_left());
        } else {
            assert_eq!(state, EndState::Ended(Outcome::Completed));
            assert_eq!(told, total, "{policy}, seed {seed}");
        }
        gaps[at] += account.gaps;
    }
    let lossy = [Policy::Drop, Policy::DropOldest, Policy::Buffer, Policy::Conflate];
    for (policy, gaps) in Policy::ALL.into_iter().zip(gaps) {
        assert!(gaps > 0 || !lossy.contains(&policy), "{policy}");
    }
}

#[test]
fn losses_are_counted_exactly_also_while_they_happen() {
    let kinds = Kinds::NONE.with(Kind::Row);
    for policy in [Policy::Drop, Policy::DropOldest, Policy::Buffer, Policy::Conflate] {
        for round in 0..8 {
            let (mut host, mut reader) = ReadHost::open(SMALL, terms(policy, 3, kinds));
            let publisher = std::thread::spawn(move || {
                for seq in 1..=20_000 {
                    host.publish(header_of(seq), &payload_of(seq));
                    if seq % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
                host.end(Outcome::Completed, "");
                host
            });
            let (mut given, mut missed, mut end) = (0, 0, None);
            while let Some(delivery) = reader.next().unwrap() {
                match delivery {
                    Delivery::Chunk(_) => given += 1,
                    Delivery::Gap(gap) => {
                        let wanted = |seq: &u64| header_of(*seq).kind == Kind::Row as u8;
                        let count = (gap.from_seq..=gap.to_seq).filter(wanted).count() as u64;
                        assert_eq!(gap.chunk_count, count, "{policy}, round {round}: {gap:?}");
                        missed += gap.chunk_count;
                    }
                    Delivery::Progress(_) => {}
                    Delivery::End(ended) => end = Some(ended.end),
                }
            }
            let host = publisher.join().unwrap();
            assert_eq!(given + missed, host.totals[Kind::Row as usize].chunks);
            let end = end.unwrap();
            assert_eq!((end.given.chunks, end.missed.chunks), (given, missed));
        }
    }
}

#[test]
fn a_block_reader_shows_where_it_stands_and_loses_nothing() {
    let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    let mut account = Account::new();
    while host.ring.writer.head_seq() < 500 {
        let seq = host.ring.writer.head_seq() + 1;
        let head_seq = seq - 1;
        let gate_seq = host.page.sample(1, head_seq).unwrap();
        let (header, payload) = (header_of(seq), payload_of(seq));
        let now = crate::base::Instant::from_nanos(seq * 1_000);
        if host.ring.writer.write(header, &payload, now, gate_seq).is_ok() {
            host.count(header, &payload);
            continue;
        }
        reader.drain(3, |delivery| account.take(Kinds::ALL, &delivery)).unwrap();
    }
    host.end(Outcome::Completed, "");
    while let Some(delivery) = reader.poll().unwrap() {
        account.take(Kinds::ALL, &delivery);
    }
    assert_eq!((account.given.chunks, account.gaps), (500, 0));
    assert!(reader.is_over());
}

/// A producer writes its ring by itself, so the server may not have taken all of it when the
/// execution is stopped.
#[test]
fn chunks_behind_the_end_are_given_to_nobody() {
    for policy in Policy::ALL {
        for ring_chunks in [5, 40] {
            if policy == Policy::Disconnect && ring_chunks == 40 {
                continue; // The reader is removed for its lag.
            }
            let (mut host, mut reader) = ReadHost::open(SMALL, terms(policy, 100, Kinds::ALL));
            let mut account = Account::new();
            for _ in 0..3 {
                publish(&mut host);
            }
            account.take(Kinds::ALL, &reader.poll().unwrap().unwrap());
            let (head_seq, totals) = (host.ring.writer.head_seq(), host.totals);
            while host.ring.writer.head_seq() < ring_chunks {
                publish(&mut host); // With 40, the given ones are lost.
            }
            host.end_at(head_seq, totals, Outcome::Cancelled, "");
            reader.drain(9, |delivery| account.take(Kinds::ALL, &delivery)).unwrap();
            assert!(reader.is_over(), "{policy}");
            let seen = account.given.chunks + account.missed.chunks;
            assert_eq!((seen, account.next_seq), (3, 4), "{policy}, {ring_chunks}");
        }
    }
}

#[test]
fn a_reader_of_a_relay_is_told_of_what_was_before_it() {
    let mut private =
        RingWriter::new(crate::memory::Lease::heap(Geometry::of_class(SMALL)), ANCHOR);
    let mut kinds_before = KindTotals::default();
    for seq in 1..=300 {
        let now = crate::base::Instant::from_nanos(seq * 1_000);
        private.write(header_of(seq), &payload_of(seq), now, u64::MAX).unwrap();
    }
    let tail_seq = private.tail_seq();
    let mut total_bytes = 0;
    for seq in 1..tail_seq {
        let total = &mut kinds_before[header_of(seq).kind as usize];
        let bytes = payload_of(seq).len() as u64;
        total.count(bytes as u32);
        total_bytes += bytes;
    }
    let start = Start { seq: tail_seq, total_bytes, kinds: kinds_before };
    let ring = DoorRing::starting(4 * SMALL, ANCHOR, &start).unwrap();
    let kinds = Kinds::NONE.with(Kind::Row);
    let cursor = Cursor::new(1, Totals::ZERO);
    let terms = terms(Policy::Block, 1, kinds);
    let (mut host, mut reader) = ReadHost::of_ring(ring, terms, cursor, &ReadOptions::default());
    let mut account = Account::new();
    while host.ring.writer.head_seq() < 310 {
        publish(&mut host);
    }
    host.end(Outcome::Completed, "");
    match reader.poll().unwrap().unwrap() {
        Delivery::Gap(gap) => assert_eq!((gap.reason, gap.to_seq), (GapReason::Late, tail_seq - 1)),
        other => panic!("{other:?}"),
    }
    let (mut host, mut reader) = ReadHost::of_ring(
        DoorRing::starting(4 * SMALL, ANCHOR, &start).unwrap(),
        terms,
        cursor,
        &ReadOptions::default(),
    );
    while host.ring.writer.head_seq() < 310 {
        publish(&mut host);
    }
    host.end(Outcome::Completed, "");
    while let Some(delivery) = reader.next().unwrap() {
        account.take(kinds, &delivery);
    }
    let rows = (1..=310).filter(|seq| header_of(*seq).kind == Kind::Row as u8).count();
    assert_eq!((account.given + account.missed).chunks, rows as u64);
    assert_eq!(account.gaps, 1);
}

#[test]
fn who_wants_no_bytes_gets_none() {
    let ring = DoorRing::create(SMALL, ANCHOR).unwrap();
    let options = ReadOptions { headers_only: true, ..ReadOptions::default() };
    let cursor = Cursor::new(1, Totals::ZERO);
    let terms = terms(Policy::Block, 1, Kinds::ALL);
    let (mut host, mut reader) = ReadHost::of_ring(ring, terms, cursor, &options);
    host.publish(ChunkHeader::default(), b"bytes");
    let Some(Delivery::Chunk(chunk)) = reader.next().unwrap() else { panic!("expected a chunk") };
    assert_eq!((chunk.seq, chunk.data), (1, &b""[..]));
}

/// Reads on another thread until the end, and passes on the number of chunks.
fn follow(mut reader: DoorReader) -> std::thread::JoinHandle<Result<u64, DoorError>> {
    std::thread::spawn(move || {
        let mut count = 0;
        while let Some(delivery) = reader.next()? {
            count += u64::from(matches!(delivery, Delivery::Chunk(_)));
        }
        Ok(count)
    })
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

#[test]
fn a_sleeping_reader_is_woken_by_chunks_and_by_the_end() {
    let (mut host, reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    let follower = follow(reader);
    for seq in 1..=20 {
        until(|| host.page.is_asleep());
        assert_eq!(publish(&mut host), seq);
        while host.page.sample(1, seq).unwrap() <= seq {
            std::thread::yield_now();
        }
    }
    until(|| host.page.is_asleep());
    host.end(Outcome::Completed, "");
    assert_eq!(follower.join().unwrap().unwrap(), 20);
}

#[test]
fn a_reader_hears_that_its_server_has_gone_after_everything_that_came() {
    let (host, reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    let follower = follow(reader);
    until(|| host.page.is_asleep()); // It sleeps, and no signal wakes it.
    host.stream.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(matches!(follower.join().unwrap(), Err(DoorError::ServerGone)));

    let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    for _ in 0..5 {
        publish(&mut host);
    }
    drop(host);
    let mut count = 0;
    let error = loop {
        match reader.poll() {
            Ok(Some(_)) => count += 1,
            Ok(None) => {} // It has not checked yet.
            Err(error) => break error,
        }
    };
    assert!(matches!(error, DoorError::ServerGone));
    assert_eq!(count, 5);
    assert!(!reader.is_over() && !reader.watch());
    for _ in 0..3 {
        assert!(matches!(reader.poll(), Err(DoorError::ServerGone)));
        assert!(matches!(reader.next(), Err(DoorError::ServerGone)));
        assert!(matches!(reader.drain(9, |_| ()), Err(DoorError::ServerGone)));
    }
}

#[test]
fn an_end_that_was_told_counts_although_the_server_has_gone() {
    let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    publish(&mut host);
    host.control.page.set_exit(code_of_exit(Exit::Signal(9)));
    host.end(Outcome::Failed, "it broke");
    drop(host);
    assert!(matches!(reader.next(), Ok(Some(Delivery::Chunk(_)))));
    let Some(Delivery::End(ended)) = reader.next().unwrap() else { panic!("expected the end") };
    assert_eq!(ended.end.state, EndState::Ended(Outcome::Failed));
    assert_eq!((ended.end.exit, ended.error), (Some(Exit::Signal(9)), Some("it broke")));
    assert!(matches!(reader.next(), Ok(None)));
    assert!(reader.is_over());
}

#[test]
fn a_reader_that_is_let_go_hears_why() {
    let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    publish(&mut host);
    host.slot.detach(code_of_detach(DetachReason::Stall));
    assert!(matches!(reader.next(), Ok(Some(Delivery::Chunk(_)))));
    let Some(Delivery::End(ended)) = reader.next().unwrap() else {
        panic!("expected the end of the detached reader")
    };
    let state = EndState::Detached { reason: DetachReason::Stall, resume_from: 2 };
    assert_eq!(ended.end.state, state);
}

#[test]
fn progress_comes_with_its_words() {
    let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    let (message, context) = (ShortText::new("half"), ShortText::new("{\"a\":1}"));
    let told = ProgressRecord { progress: 3.0, total: Some(6.0), reports: 1, message, context };
    host.control.page.set_progress(&told);
    host.knock();
    let Some(Delivery::Progress(report)) = reader.next().unwrap() else {
        panic!("expected a report")
    };
    assert_eq!((report.progress.progress, report.progress.total), (3.0, Some(6.0)));
    assert_eq!((report.message, report.context), (Some("half"), Some("{\"a\":1}")));
    assert!(reader.poll().unwrap().is_none());
}

#[test]
fn a_descriptor_can_be_waited_for() {
    let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    while reader.poll().unwrap().is_some() {}
    assert!(reader.watch());
    assert!(!is_readable(&reader));
    for round in 1..=3 {
        publish(&mut host);
        publish(&mut host); // One sleep gets one signal.
        assert!(is_readable(&reader));
        assert!(reader.poll().unwrap().is_some());
        assert!(!reader.watch(), "round {round}: one more chunk must come");
        assert!(reader.poll().unwrap().is_some());
        assert!(reader.poll().unwrap().is_none());
        assert!(reader.watch());
        assert!(!is_readable(&reader)); // The signal that had made it readable was taken.
    }
    // A sleep on the ring is different.
    assert!(reader.next_within(Duration::from_millis(1)).unwrap().is_none());
    assert!(!host.page.take_watch());
    while reader.poll().unwrap().is_some() {}
    assert!(reader.watch());
    host.end(Outcome::Completed, "");
    assert!(is_readable(&reader));
    assert!(matches!(reader.poll(), Ok(Some(Delivery::End(_)))));
    assert!(!reader.watch() && reader.is_over());

    let (host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    while reader.poll().unwrap().is_some() {}
    assert!(reader.watch());
    drop(host);
    assert!(is_readable(reader.as_fd()));
    assert!(matches!(reader.poll(), Err(DoorError::ServerGone)));
}

#[test]
fn it_waits_no_longer_than_it_is_to() {
    let (_host, mut reader) = ReadHost::open(SMALL, terms(Policy::Drop, 5, Kinds::ALL));
    let began = Clock::now();
    assert!(reader.next_within(Duration::from_millis(20)).unwrap().is_none());
    assert!(Clock::now().since(began) >= Duration::from_millis(20));
    assert!(!reader.is_over());
}

#[test]
fn a_reader_that_goes_says_so() {
    let (host, reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    assert!(!host.page.has_left());
    drop(reader);
    assert!(host.page.has_left());
    assert!((&host.stream).write(b"x").is_err());
}

#[test]
fn a_server_that_wants_to_know_is_told_once_where_a_reader_stands() {
    let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 1, Kinds::ALL));
    host.stream.set_nonblocking(true).unwrap();
    let knocked = |host: &mut ReadHost| std::io::Read::read(&mut host.stream, &mut [0; 8]).ok();
    for _ in 0..4 {
        publish(&mut host);
    }
    assert!(reader.next_within(LONG).unwrap().is_some());
    assert_eq!(knocked(&mut host), None);
    host.control.page.set_attention(true);
    host.knock();
    assert!(reader.poll().unwrap().is_some());
    assert!(reader.poll().unwrap().is_some());
    assert!(reader.poll().unwrap().is_some());
    assert_eq!(knocked(&mut host), Some(1));
    assert!(host.page.sample(1, 4).unwrap() > 1);
}
