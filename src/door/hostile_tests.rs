//! Readers and producers against a server, a ring and pages that are hostile. They fail with a
//! clear error or continue. They never crash, and never wait longer than the caller allowed.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;

use super::connection::OpenConnection;
use super::host::{ANCHOR, ReadHost, WriteHost, answer, connection, grant, terms};
use super::{Door, DoorError, DoorReader, DoorWriter, ReadOptions, Unsound};
use crate::base::Random;
use crate::endpoint::{GrantNames, ReadGrant};
use crate::engine::policy::Cursor;
use crate::memory::{
    ChunkHeader, ControlFile, DoorRing, ProducerPageFile, ProducerRing, ReaderPageFile, Segment,
};
use crate::shard::{Delivery, Flaw};
use crate::stream::{EndState, GapReason, Kind, Kinds, Outcome, Policy, Totals};

const SMALL: u32 = 4 << 10;

/// The indices of words in a ring's header, equal to those in `memory/layout.rs`.
const GENERATION: usize = 16;
const TAIL_SEQ: usize = 17;
const TAIL_VERSION: usize = 18;
const TAIL_TOTALS: usize = 48;
const INDEX: usize = 128;
/// The first frame of a ring of 16 slots, and the word of its length and kind.
const FRAMES: usize = INDEX + 16;
const META: usize = 3;
/// Size of a frame of four bytes of payload.
const FRAME_WORDS: usize = 5;

fn read_granted(connection: Result<OpenConnection, DoorError>) -> Result<DoorReader, DoorError> {
    let mut connection = connection?;
    let line = connection.line()?;
    let grant = ReadGrant::parse(&line)?;
    DoorReader::new(&grant, GrantNames::parse(&line)?, connection, &ReadOptions::default())
}

#[test]
fn an_answer_that_is_none_is_refused() {
    let block = terms(Policy::Block, 1, Kinds::ALL);
    let line = grant(block, Cursor::new(1, Totals::ZERO)).to_json().to_string();
    let raw = |bytes: &[u8]| {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(bytes).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        read_granted(connection(theirs)).unwrap_err()
    };
    assert!(matches!(raw(b""), DoorError::ServerGone));
    assert!(matches!(raw(b"HTTP/1.1 200 OK\r\n"), DoorError::ServerGone));
    assert!(matches!(raw(b"\0\0\0\r\n\r\n"), DoorError::Unsound(Unsound::Answer(_))));
    assert!(matches!(raw(b"HTTP/1.1 200 OK\r\n\r\n{}"), DoorError::ServerGone)); // No line end.
    let grantless = raw(b"HTTP/1.1 200 OK\r\n\r\n{}\n");
    assert!(matches!(grantless, DoorError::Unsound(Unsound::Grant(_))), "{grantless}");
    let endless = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &[b'x'; 100_000]].concat();
    assert!(matches!(raw(&endless), DoorError::Unsound(Unsound::Answer(_))));
    let refusal = json!({"error": {"code": "too_many_doors", "message": "no\n more", "limit": 8}});
    let refusal = refusal.to_string();
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 2\r\ncontent-length: {}\r\n\r\n",
        refusal.len()
    );
    let DoorError::Refused(refused) = raw(format!("{head}{refusal}").as_bytes()) else {
        panic!("expected a refusal");
    };
    assert_eq!((refused.status.code(), refused.limit), (429, Some(8)));
    assert_eq!((&*refused.code, &*refused.message), ("too_many_doors", "no more"));
    assert_eq!(refused.retry_after, Some(Duration::from_secs(2)));
    // A grant without its descriptors, and a grant with too many of them.
    let (ours, theirs) = UnixStream::pair().unwrap();
    answer(&ours, &line, &[]);
    let missing = read_granted(connection(theirs)).unwrap_err();
    assert!(matches!(missing, DoorError::Unsound(Unsound::Descriptor { of: "ring", error: None })));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    answer(&ours, &line, &[null.as_fd(); 5]);
    let error = read_granted(connection(theirs)).unwrap_err();
    assert!(matches!(error, DoorError::Unsound(_)), "{error}");
}

#[test]
fn any_bytes_for_an_answer_are_survived() {
    let block = terms(Policy::Block, 1, Kinds::ALL);
    let line = grant(block, Cursor::new(1, Totals::ZERO)).to_json().to_string();
    let whole = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                         {:x}\r\n{line}\n\r\n0\r\n\r\n",
        line.len() + 1
    );
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..random.between(1, 6) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] = random.next_u64() as u8,
                1 => bytes.truncate(at + 1),
                _ => drop(bytes.remove(at)),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&bytes).unwrap();
        drop(ours);
        assert!(read_granted(connection(theirs)).is_err()); // It has no descriptors in any case.
    }
}

#[test]
fn descriptors_in_the_wrong_places_are_refused() {
    let (ring, control) =
        (DoorRing::create(SMALL, ANCHOR).unwrap(), ControlFile::create().unwrap());
    let page = ReaderPageFile::create(1).unwrap();
    let producer_ring = ProducerRing::create(SMALL, ANCHOR).unwrap();
    let producer_page = ProducerPageFile::create().unwrap();
    let all = [
        ring.descriptor(),
        control.descriptor(),
        page.descriptor(),
        producer_ring.descriptor(),
        producer_page.descriptor(),
    ];
    let block = terms(Policy::Block, 1, Kinds::ALL);
    let read_grant = grant(block, Cursor::new(1, Totals::ZERO));
    let line = read_grant.to_json().to_string();
    let mut right = Vec::new();
    for places in 0..125 {
        let chosen: [BorrowedFd<'_>; 3] =
            [places / 25, places / 5 % 5, places % 5].map(|at| all[at]);
        let (ours, theirs) = UnixStream::pair().unwrap();
        answer(&ours, &line, &chosen);
        let is_reader = read_granted(connection(theirs)).is_ok();
        let (ours, theirs) = UnixStream::pair().unwrap();
        answer(&ours, &line, &chosen);
        let mut connection = connection(theirs).unwrap();
        let grant = crate::endpoint::ProduceGrant::parse(&connection.line().unwrap()).unwrap();
        let is_writer = DoorWriter::new(grant, connection).is_ok();
        if is_reader || is_writer {
            right.push((places, is_reader, is_writer));
        }
    }
    assert_eq!(right, [(7, true, false), (3 * 25 + 5 + 4, false, true)]);
    // A slot that does not exist.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let wild = ReadGrant { slot: 64, ..read_grant };
    answer(&ours, &wild.to_json().to_string(), &all[..3]);
    let error = read_granted(connection(theirs)).unwrap_err();
    assert!(matches!(
        error,
        DoorError::Unsound(Unsound::Descriptor { of: "control page", error: Some(_) })
    ));
}

#[test]
fn a_path_that_is_no_door_is_refused() {
    let folder = std::env::temp_dir().join(format!("streamdoor-door-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("s.sock");
    assert!(matches!(Door::open(&path), Err(DoorError::NoServer { .. })));
    std::fs::write(&path, b"").unwrap();
    assert!(matches!(Door::open(&path), Err(DoorError::NoServer { .. })));
    std::fs::remove_file(&path).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let door = Door::open(&path).unwrap();
    assert_eq!(door.path(), path);
    assert!(door.client().is_ok() && door.with_token("two words").is_err());
    drop(listener); // A server that was killed leaves its socket behind.
    let error = door.read("x", &ReadOptions::default()).unwrap_err();
    assert!(matches!(error, DoorError::NoServer { .. }), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Publishes `count` chunks of four bytes. Every second one is of kind `Row`.
fn fill(host: &mut ReadHost, count: u64) {
    for _ in 0..count {
        let kind = if host.ring.writer.head_seq().is_multiple_of(2) { 3 } else { 0 };
        host.publish(ChunkHeader { kind, key: 0, flags: 0 }, b"four");
    }
}

fn flaw_of(result: Result<Option<Delivery<'_>>, DoorError>) -> Option<Flaw> {
    match result {
        Err(DoorError::Unsound(Unsound::Memory(flaw))) => Some(flaw),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

#[test]
fn a_ring_that_breaks_the_rules_is_an_error_that_stays() {
    type Spoil = fn(&Segment);
    let table: [(Spoil, Flaw); 6] = [
        (|s| s.overwrite(GENERATION, &[77]), Flaw::Ring),
        (|s| s.overwrite(INDEX + 1, &[u64::MAX]), Flaw::Ring),
        (|s| s.overwrite(FRAMES + META, &[u64::MAX]), Flaw::Ring),
        (|s| s.overwrite(FRAMES + META, &[4 | 14 << 32]), Flaw::Kind),
        (|s| s.overwrite(TAIL_SEQ, &[u64::MAX]), Flaw::Ring),
        (|s| s.overwrite(TAIL_SEQ, &[500]), Flaw::Ring),
    ];
    for (at, (spoil, flaw)) in table.into_iter().enumerate() {
        for policy in [Policy::Block, Policy::Drop, Policy::Conflate] {
            let (mut host, mut reader) = ReadHost::open(SMALL, terms(policy, 9, Kinds::ALL));
            fill(&mut host, 1);
            spoil(&host.ring.writer.segment());
            for round in 0..3 {
                let found = flaw_of(reader.next_within(Duration::from_millis(50)));
                assert_eq!(found, Some(flaw), "spoiled in way {at}, {policy}, round {round}");
                assert_eq!(flaw_of(reader.poll()), Some(flaw));
            }
            assert!(!reader.is_over());
            assert!(reader.drain(5, |_| ()).is_err());
        }
    }
}

#[test]
fn a_wild_verdict_is_an_error() {
    let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 9, Kinds::ALL));
    fill(&mut host, 1);
    // The verdict. The head stays 0, so the chunk is not a part of the execution.
    host.control.segment().overwrite(32, &[200]);
    assert_eq!(flaw_of(reader.poll()), Some(Flaw::Verdict));
}

#[test]
fn totals_that_cannot_be_are_an_error() {
    let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Drop, 9, Kinds::ALL));
    fill(&mut host, 60);
    host.ring.writer.segment().overwrite(TAIL_TOTALS, &[1 << 40]);
    assert_eq!(flaw_of(reader.poll()), Some(Flaw::Totals));
}

#[test]
fn a_producer_that_died_while_it_counted_is_counted_for() {
    for kinds in [Kinds::ALL, Kinds::NONE.with(Kind::Row)] {
        let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Drop, 99, kinds));
        fill(&mut host, 60);
        let (tail_seq, segment) = (host.ring.writer.tail_seq(), host.ring.writer.segment());
        segment.overwrite(TAIL_VERSION, &[999]); // An odd version: the update is not complete.
        segment.overwrite(TAIL_TOTALS, &[5, 5]);
        // The producer's death is not detected yet, so nothing is due, and no wait hangs.
        assert!(reader.next_within(Duration::from_millis(5)).unwrap().is_none());
        host.end(Outcome::Failed, "the producer died");
        let Ok(Some(Delivery::Gap(gap))) = reader.next() else { panic!("expected a gap") };
        assert_eq!((gap.from_seq, gap.to_seq, gap.reason), (1, tail_seq - 1, GapReason::Overtaken));
        let wanted = |seq: &u64| kinds.is_all() || !seq.is_multiple_of(2);
        let missed = (1..tail_seq).filter(wanted).count() as u64;
        assert_eq!((gap.chunk_count, gap.byte_count), (missed, 4 * missed));
        let mut given = 0;
        loop {
            match reader.next().unwrap() {
                Some(Delivery::Chunk(_)) => given += 1,
                Some(Delivery::End(ended)) => {
                    assert_eq!(ended.error, Some("the producer died"));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(given, (tail_seq..=60).filter(wanted).count());
    }
}

#[test]
fn chunks_that_a_broken_ring_never_had_are_a_gap_before_the_end() {
    type Spoil = fn(&Segment);
    let spoils: [Spoil; 3] = [
        |_| (),                                                 // The chunks never came.
        |s| s.overwrite(GENERATION, &[77]),                     // The chunks were overwritten.
        |s| s.overwrite(FRAMES + 2 * FRAME_WORDS, &[u64::MAX]), // Only the next one was.
    ];
    for spoil in spoils {
        let (mut host, mut reader) = ReadHost::open(SMALL, terms(Policy::Block, 9, Kinds::ALL));
        fill(&mut host, 2);
        assert!(reader.poll().unwrap().is_some());
        assert!(reader.poll().unwrap().is_some());
        let total = &mut host.totals[0];
        *total = *total + Totals { chunks: 3, bytes: 30 };
        let record = crate::memory::FinalRecord {
            verdict: std::num::NonZeroU8::new(2).unwrap(),
            head_seq: 5,
            totals: host.totals,
        };
        spoil(&host.ring.writer.segment());
        host.control.page.finish(&record, "the producer broke the ring's rules");
        host.knock();
        let Ok(Some(Delivery::Gap(gap))) = reader.next() else { panic!("expected a gap") };
        assert_eq!((gap.from_seq, gap.to_seq, gap.chunk_count, gap.byte_count), (3, 5, 3, 30));
        let Ok(Some(Delivery::End(ended))) = reader.next() else { panic!("expected an end") };
        assert_eq!(ended.end.state, EndState::Ended(Outcome::Failed));
        assert!(reader.next().unwrap().is_none());
    }
}

/// Writes random words, some of which are plausible values.
fn scribble(segment: &Segment, random: &mut Random, word_count: usize) {
    let at = random.below(word_count as u64) as usize;
    let word = match random.below(6) {
        0 => 0,
        1 => random.below(100),
        2 => u64::MAX - random.below(3),
        3 => 1 << random.below(64),
        4 => random.below(400) | random.below(16) << 32,
        _ => random.next_u64(),
    };
    segment.overwrite(at, &[word]);
}

#[test]
fn a_reader_survives_whoever_scribbles_over_everything() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let policy = Policy::ALL[seed as usize % Policy::ALL.len()];
        let kinds = if random.chance(1, 2) { Kinds::ALL } else { Kinds::NONE.with(Kind::Row) };
        let (mut host, mut reader) = ReadHost::open(SMALL, terms(policy, 5, kinds));
        fill(&mut host, 30);
        let (ring, control) = (host.ring.writer.segment(), host.control.segment());
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let (ring_words, control_words) = (ring.bytes() / 8, control.bytes() / 8);
        let scribbler = std::thread::spawn(move || {
            while is_done.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                // The header, the index and the first frames, mostly.
                let first = FRAMES + 16 * FRAME_WORDS;
                let words = if random.chance(7, 8) { first } else { ring_words };
                scribble(&ring, &mut random, words);
                if seed % 3 == 0 {
                    // Leaves out the words that identify the kind of page.
                    scribble(&control, &mut random, control_words);
                }
            }
        });
        for _ in 0..300 {
            let result = reader.next_within(Duration::from_micros(20)).map(|_| ());
            if result.is_err() || reader.is_over() {
                break;
            }
            let _ = reader.drain(7, |delivery| assert!(format!("{delivery:?}").len() > 3));
            let _ = reader.watch();
            let _ = reader.poll().map(|_| ());
        }
        drop(done);
        scribbler.join().unwrap();
    }
}

#[test]
fn a_producer_survives_a_server_that_scribbles_over_everything() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (host, mut writer) = WriteHost::open(SMALL);
        let control = host.control.segment();
        let control_words = control.bytes() / 8;
        for _ in 0..2_000 {
            for _ in 0..random.below(20) {
                // The words that a producer reads, mostly.
                let words = if random.chance(7, 8) { 48 } else { control_words };
                scribble(&control, &mut random, words);
            }
            let _ = writer.try_send(Kind::Row, 0, &[7; 40]);
            writer.progress(1.0, None, "x");
            let _ = writer.is_stopped();
        }
        control.overwrite(10, &[0]); // Not closed, ...
        control.overwrite(32, &[0]); // ... and not ended.
        host.control.page.set_gate(u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        writer.send(b"still there").unwrap();
        writer.lend(9).unwrap();
        drop(host);
        assert!(writer.complete().is_err());
    }
}
