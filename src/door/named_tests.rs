//! Readers by name: the same deliveries as for any subscriber, and all ways in which they can end.

use std::num::NonZeroU8;
use std::path::PathBuf;

use super::*;
use crate::memory::named::NamedRing;
use crate::memory::writer::Start;
use crate::memory::{ChunkHeader, ClockAnchor, FinalRecord, ProgressRecord, ShortText};
use crate::stream::{KindTotals, Kinds};

/// A folder with one ring. Dropping this value removes both.
struct TestServer {
    folder: PathBuf,
    id: ExecutionId,
    ring: Option<NamedRing>,
    totals: KindTotals,
}

impl TestServer {
    fn new(name: &str) -> TestServer {
        let name = format!("streamdoor-by-name-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder); // Left by an earlier process of this id.
        std::fs::create_dir(&folder).unwrap();
        let slot = Handle { index: 1, generation: 1 };
        let id = ExecutionId { shard: 0, slot, nonce: 7 };
        let (anchor, start) = (ClockAnchor::default(), Start::default());
        let ring = NamedRing::create(&folder, id, 16 << 10, anchor, &start).unwrap();
        TestServer { folder, id, ring: Some(ring), totals: KindTotals::default() }
    }

    fn open(&self, options: &ReadOptions) -> Result<NamedReader, DoorError> {
        NamedReader::open_in(&self.folder, self.id, options)
    }

    fn reader(&self, from: From) -> NamedReader {
        let options = ReadOptions { from, policy: Some(Policy::Buffer), ..Default::default() };
        self.open(&options).unwrap()
    }

    fn ring(&mut self) -> &mut NamedRing {
        self.ring.as_mut().unwrap()
    }

    fn publish(&mut self, payload: &[u8]) {
        let ring = self.ring.as_mut().unwrap();
        ring.writer.write(ChunkHeader::default(), payload, Instant::ZERO, u64::MAX).unwrap();
        ring.writer.wake();
        self.totals[0].chunks += 1;
        self.totals[0].bytes += payload.len() as u64;
    }

    fn finish(&mut self, verdict: u8, text: &str) {
        let (totals, verdict) = (self.totals, NonZeroU8::new(verdict).unwrap());
        let head_seq = self.ring().writer.head_seq();
        self.ring().control.finish(&FinalRecord { verdict, head_seq, totals }, text);
        self.ring().wake_readers();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// All deliveries of a reader, in short form.
fn told(reader: &mut NamedReader) -> (Vec<String>, Option<DoorError>) {
    let mut all = Vec::new();
    loop {
        match reader.next() {
            Err(error) => return (all, Some(error)),
            Ok(None) => return (all, None),
            Ok(Some(Delivery::Chunk(chunk))) => {
                all.push(format!("{} {}", chunk.seq, String::from_utf8_lossy(chunk.data)));
            }
            Ok(Some(Delivery::Gap(gap))) => {
                let (from, to, bytes) = (gap.from_seq, gap.to_seq, gap.byte_count);
                all.push(format!("gap {from}-{to} {bytes}"));
            }
            Ok(Some(Delivery::Progress(report))) => {
                all.push(format!("at {} {:?}", report.progress.progress, report.message));
            }
            Ok(Some(Delivery::End(ended))) => {
                all.push(format!("{} {:?}", ended.end.state, ended.error));
            }
        }
    }
}

#[test]
fn who_reads_by_name_is_told_what_everybody_is() {
    let mut server = TestServer::new("plain");
    let mut reader = server.reader(From::Start);
    assert!(reader.poll().unwrap().is_none());
    server.publish(b"one");
    server.publish(b"two");
    let (total, context) = (Some(10.0), ShortText::new(""));
    let message = ShortText::new("going");
    let record = ProgressRecord { progress: 3.0, total, reports: 1, message, context };
    server.ring().control.set_progress(&record);
    server.ring().wake_readers();
    let mut late = server.reader(From::Live);
    let mut second = server.reader(From::Seq { seq: 2, seen: None });
    server.publish(b"three");
    server.finish(2, "it broke");
    let (all, error) = told(&mut reader);
    assert!(error.is_none());
    let last = ["3 three", "at 3 Some(\"going\")", "failed Some(\"it broke\")"];
    assert_eq!(all, [&["1 one", "2 two"], &last[..]].concat());
    assert_eq!(told(&mut late).0, last);
    assert_eq!(told(&mut second).0, [&["2 two"], &last[..]].concat());
    assert!(reader.next().unwrap().is_none());
}

#[test]
fn what_was_overtaken_is_a_gap_that_counts_exactly() {
    let mut server = TestServer::new("overtaken");
    let mut reader = server.reader(From::Start);
    for number in 0..1_000 {
        server.publish(format!("{number:04}").as_bytes());
    }
    server.finish(1, "");
    let (all, error) = told(&mut reader);
    assert!(error.is_none());
    assert!(all[0].starts_with("gap 1-"), "{}", all[0]);
    assert_eq!(all.last().unwrap(), "completed None");
    let mut next_seq = 1;
    for line in &all[..all.len() - 1] {
        let words: Vec<&str> = line.split([' ', '-']).collect();
        let number = |place: usize| words[place].parse::<u64>().unwrap();
        match words[0] {
            "gap" => {
                assert_eq!((number(1), number(3)), (next_seq, 4 * (number(2) + 1 - next_seq)));
                next_seq = number(2) + 1;
            }
            _ => {
                assert_eq!((number(0), number(1)), (next_seq, next_seq - 1));
                next_seq += 1;
            }
        }
    }
    assert_eq!(next_seq, 1_001);
}

#[test]
fn sleepers_are_woken_by_chunks_and_ends() {
    let mut server = TestServer::new("sleepers");
    let mut reader = server.reader(From::Start);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || told(&mut reader).0);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(20));
            server.publish(b"x");
        }
        std::thread::sleep(Duration::from_millis(20));
        server.finish(1, "");
        assert_eq!(reading.join().unwrap(), ["1 x", "2 x", "3 x", "completed None"]);
    });
}

#[test]
fn an_owner_that_goes_without_an_end_is_gone() {
    let mut server = TestServer::new("gone");
    let mut reader = server.reader(From::Start);
    server.publish(b"x");
    server.ring = None;
    let (all, error) = told(&mut reader);
    assert_eq!(all, ["1 x"]);
    assert!(matches!(error, Some(DoorError::ServerGone)), "{error:?}");
    let missing = server.open(&ReadOptions::default()).err().unwrap();
    assert!(matches!(missing, DoorError::NoServer { .. }), "{missing:?}");
}

#[test]
fn a_file_that_is_cut_off_is_an_error_and_no_death() {
    let mut server = TestServer::new("cut");
    let mut reader = server.reader(From::Start);
    server.publish(b"x");
    let path = server.ring().path().to_owned();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4_096).unwrap();
    let (_, error) = told(&mut reader);
    assert!(error.unwrap().to_string().contains("was truncated"));
    server.publish(b"y");
    assert!(server.ring().is_lost());
    let refused = server.open(&ReadOptions::default()).err().unwrap();
    assert!(matches!(refused, DoorError::Named(_)), "{refused:?}");
}

#[test]
fn what_needs_the_server_is_refused() {
    let server = TestServer::new("refused");
    let unfit = |options: ReadOptions| {
        let error = server.open(&options).err().unwrap();
        assert!(matches!(error, DoorError::Unfit(_)), "{error:?}");
    };
    for policy in [Policy::Block, Policy::Disconnect] {
        unfit(ReadOptions { policy: Some(policy), ..Default::default() });
    }
    unfit(ReadOptions { kinds: Kinds::NONE, ..Default::default() });
    unfit(ReadOptions { from: From::Seq { seq: 5, seen: None }, ..Default::default() });
}
