//! A producer in another process, as far as one process can show it. The tests cover its chunks,
//! its reports, the gate that holds it back, and its end.

use std::time::Duration;

use super::host::{WriteHost, execution};
use super::{DoorError, DoorWriter, WriteError};
use crate::memory::{CHUNK_MORE, Owner};
use crate::shard::delivery::outcome_of_code;
use crate::stream::{Kind, Outcome};

const CLASS_BYTES: u32 = 16 << 10;

fn chunks(host: &mut WriteHost) -> Vec<(u8, u8, u16, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((header, bytes)) = host.ingest() {
        found.push((header.kind, header.key, header.flags, bytes.to_vec()));
    }
    found
}

/// The end that the producer's page reports.
fn told_end(host: &WriteHost) -> Option<(Outcome, u64, String)> {
    let record = host.page.final_record()?;
    let outcome = outcome_of_code(record.verdict.get()).unwrap();
    Some((outcome, record.head_seq, host.page.error_text().as_str().to_owned()))
}

fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

#[test]
fn until_the_gate_is_opened_nothing_is_published() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    assert_eq!((writer.execution(), writer.token()), (execution(), Some("t")));
    assert!(matches!(host.owner.owner(), Owner::Lives(_)));
    assert_eq!(writer.try_send(Kind::Row, 3, b"a"), Ok(None));
    assert!(host.owner.is_gated());
    assert_eq!(host.knocks(), 1); // It is held back, and reports that.
    host.open_gate(8);
    assert_eq!(writer.try_send(Kind::Row, 3, b"a"), Ok(Some(1)));
    assert_eq!(writer.send(b"b"), Ok(2));
    assert_eq!(host.knocks(), 0); // The server is awake.
    assert_eq!(chunks(&mut host), [(3, 3, 0, b"a".to_vec()), (0, 0, 0, b"b".to_vec())]);
}

#[test]
fn a_sleeping_server_is_knocked_for() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    host.open_gate(100);
    host.knocks();
    host.control.page.set_server_asleep(1);
    writer.send(b"a").unwrap();
    assert_eq!(host.knocks(), 1);
    writer.progress(1.0, None, "");
    writer.expect_total(2);
    assert_eq!(host.knocks(), 2);
    host.control.page.set_server_awake();
    writer.send(b"b").unwrap();
    assert_eq!(host.knocks(), 0);
}

#[test]
fn what_is_too_long_for_one_chunk_is_sent_in_several() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    host.open_gate(100);
    let most = writer.chunk_bytes_max() as usize;
    let payload: Vec<u8> = (0..2 * most + 5).map(|at| at as u8).collect();
    assert_eq!(writer.send_as(Kind::Text, 9, &payload), Ok(3));
    let found = chunks(&mut host);
    let flags: Vec<u16> = found.iter().map(|chunk| chunk.2).collect();
    assert_eq!(flags, [CHUNK_MORE, CHUNK_MORE, 0]);
    assert_eq!(found.into_iter().flat_map(|chunk| chunk.3).collect::<Vec<u8>>(), payload);
    let chunk_bytes_max = most as u32;
    let too_large = Err(WriteError::TooLarge { chunk_bytes_max });
    assert_eq!(writer.try_send(Kind::Text, 0, &payload), too_large);
    assert_eq!(writer.lend(most + 1).map(|_| 0), too_large.map(|_| 0));
}

#[test]
fn room_in_the_ring_is_lent_and_published_in_place() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    host.open_gate(100);
    writer.lend(100).unwrap()[..3].copy_from_slice(b"abc");
    assert_eq!(writer.publish(Kind::Sample, 1, 3), 1);
    writer.lend(7).unwrap(); // Lent and not used.
    assert_eq!(writer.send(b"d"), Ok(2));
    let expected = [(5, 1, 0, b"abc".to_vec()), (0, 0, 0, b"d".to_vec())];
    assert_eq!(chunks(&mut host), expected);
}

#[test]
fn a_producer_that_is_held_back_waits_and_goes_on() {
    let (mut host, mut writer) = WriteHost::open(4 << 10);
    let producer = std::thread::spawn(move || {
        for number in 0..500u32 {
            if number % 2 == 0 {
                writer.send(&number.to_le_bytes()).unwrap();
            } else {
                writer.lend(4).unwrap().copy_from_slice(&number.to_le_bytes());
                writer.publish(Kind::Output, 0, 4);
            }
        }
        writer.complete()
    });
    let mut expected = 0u32;
    while expected < 500 {
        host.open_gate(4);
        if let Some((_, bytes)) = host.ingest() {
            assert_eq!(bytes, expected.to_le_bytes());
            expected += 1;
        }
    }
    assert!(host.ingest().is_none());
    until(|| told_end(&host).is_some());
    assert_eq!(told_end(&host), Some((Outcome::Completed, 500, String::new())));
    host.end(Outcome::Completed);
    producer.join().unwrap().unwrap();
    until(|| host.owner.owner() == Owner::Nobody);
}

#[test]
fn what_a_producer_tells_stands_in_its_page() {
    let (host, mut writer) = WriteHost::open(CLASS_BYTES);
    writer.expect_total(7);
    writer.progress(2.0, Some(4.0), "half");
    let told = host.page.progress().unwrap();
    assert_eq!((told.progress, told.total, told.reports), (2.0, Some(4.0), 1));
    assert_eq!((told.message.as_str(), host.page.chunks_expected()), ("half", Some(7)));
    writer.progress(3.0, None, "");
    let told = host.page.progress().unwrap();
    assert_eq!((told.progress, told.total, told.reports), (3.0, None, 2));
}

#[test]
fn a_failure_is_told_with_its_text() {
    let (host, writer) = WriteHost::open(CLASS_BYTES);
    let failing = std::thread::spawn(move || writer.fail("no more paper"));
    until(|| told_end(&host).is_some());
    assert_eq!(told_end(&host), Some((Outcome::Failed, 0, "no more paper".to_owned())));
    host.end(Outcome::Failed);
    failing.join().unwrap().unwrap();
}

#[test]
fn a_producer_that_just_leaves_has_failed() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    host.open_gate(9);
    writer.send(b"a").unwrap();
    host.knocks();
    drop(writer);
    assert_eq!(told_end(&host), Some((Outcome::Failed, 1, "the producer left".to_owned())));
    assert_eq!(host.knocks(), 1);
    assert_eq!(host.owner.owner(), Owner::Nobody);

    let (host, writer) = WriteHost::open(CLASS_BYTES);
    let panicked = std::thread::spawn(move || {
        let _writer = writer;
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    let text = "the producer panicked".to_owned();
    assert_eq!(told_end(&host), Some((Outcome::Failed, 0, text)));
}

#[test]
fn a_sleeping_server_is_knocked_for_once_and_from_the_chunk_on_that_it_named() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    host.open_gate(100);
    host.knocks();
    host.control.page.set_server_asleep(3);
    writer.send(b"a").unwrap();
    writer.send(b"b").unwrap();
    assert_eq!(host.knocks(), 0);
    writer.progress(1.0, None, "");
    assert_eq!(host.knocks(), 1); // A report is no chunk.
    writer.send(b"c").unwrap();
    writer.send(b"d").unwrap();
    assert_eq!(host.knocks(), 1);
    host.control.page.set_server_awake();
    host.control.page.set_server_asleep(5);
    writer.send(b"e").unwrap();
    assert_eq!(host.knocks(), 1);
}

#[test]
fn the_server_is_told_before_there_is_no_room() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    host.open_gate(1_000);
    while host.ring.reader().tail_seq() == 1 {
        writer.send(b"a").unwrap(); // The gate is shut behind the first lap.
        while host.ingest().is_some() {}
        host.control.page.set_gate(host.ingested_seq + 1, u64::MAX, u64::MAX, u64::MAX);
    }
    assert!(!host.owner.is_short_of_room());
    host.knocks();
    host.control.page.set_server_asleep(1_000);
    let (mut sent_count, tail_seq) = (0, host.ring.reader().tail_seq());
    while !host.owner.is_short_of_room() {
        sent_count += usize::from(writer.try_send(Kind::Row, 0, b"b").unwrap().is_some());
    }
    assert!(sent_count > 0 && host.ring.reader().tail_seq() > tail_seq);
    assert!(!host.owner.is_gated());
    assert_eq!(host.knocks(), 1);
    assert!(writer.try_send(Kind::Row, 0, b"b").unwrap().is_some());
}

#[test]
fn many_are_sent_at_once() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    host.open_gate(1_000);
    host.knocks();
    host.control.page.set_server_asleep(1);
    let long = vec![7; writer.chunk_bytes_max() as usize + 1];
    let payloads = [b"a".as_slice(), b"b", &long, b"", b"c"];
    assert_eq!(writer.send_all(Kind::Row, 9, payloads), Ok(6));
    assert_eq!(host.knocks(), 1);
    let sent = chunks(&mut host);
    let lengths: Vec<usize> = sent.iter().map(|(.., bytes)| bytes.len()).collect();
    assert_eq!(lengths, [1, 1, long.len() - 1, 1, 0, 1]);
    assert!(sent.iter().all(|(kind, key, ..)| (*kind, *key) == (Kind::Row as u8, 9)));
    let flags: Vec<u16> = sent.iter().map(|(_, _, flags, _)| *flags).collect();
    assert_eq!(flags, [0, 0, 1, 0, 0, 0]);

    host.open_gate(2); // Room for two of the next three.
    let waiting = std::thread::spawn(move || {
        let sent = writer.send_all(Kind::Row, 9, [b"d".as_slice(), b"e", b"f"]);
        (sent, writer)
    });
    until(|| host.owner.is_gated());
    assert_eq!(chunks(&mut host).len(), 2);
    host.open_gate(1);
    assert_eq!(waiting.join().unwrap().0, Ok(9));
    assert_eq!(chunks(&mut host).len(), 1);
}

#[test]
fn a_producer_hears_that_it_is_to_stop() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    assert!(!writer.is_stopped());
    let waiting = std::thread::spawn(move || {
        let result = writer.send(b"a"); // The gate is shut.
        (result, writer)
    });
    until(|| host.owner.is_gated());
    host.end(Outcome::Cancelled);
    let (result, mut writer): (_, DoorWriter) = waiting.join().unwrap();
    // The outcome may become known a moment after the stop that has woken the producer.
    assert!(
        matches!(result, Err(WriteError::Stopped(None | Some(Outcome::Cancelled)))),
        "{result:?}"
    );
    assert!(writer.is_stopped());
    host.open_gate(100);
    let stopped = Err(WriteError::Stopped(Some(Outcome::Cancelled)));
    assert_eq!(writer.send(b"a"), stopped);
    assert_eq!(writer.lend(1).map(|_| 0), stopped);
    assert!(matches!(writer.complete(), Err(DoorError::Stopped(Outcome::Cancelled))));
}

#[test]
fn a_producer_hears_that_its_server_has_gone() {
    let (host, mut writer) = WriteHost::open(CLASS_BYTES);
    let waiting = std::thread::spawn(move || {
        let result = writer.send(b"a");
        (result, writer)
    });
    until(|| host.owner.is_gated());
    drop(host);
    let (result, mut writer) = waiting.join().unwrap();
    assert_eq!(result, Err(WriteError::ServerGone));
    assert_eq!(writer.try_send(Kind::Output, 0, b"a"), Err(WriteError::ServerGone));
    assert!(matches!(writer.complete(), Err(DoorError::ServerGone)));

    let (host, writer) = WriteHost::open(CLASS_BYTES);
    let completing = std::thread::spawn(move || writer.complete());
    until(|| told_end(&host).is_some());
    drop(host);
    assert!(matches!(completing.join().unwrap(), Err(DoorError::ServerGone)));
}

#[test]
fn readers_of_the_ring_itself_are_woken() {
    let (mut host, mut writer) = WriteHost::open(CLASS_BYTES);
    host.open_gate(1_000);
    host.control.page.set_direct_readers(1);
    let reader = host.ring.reader().clone();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            let mut seen = 0;
            while seen < 50 {
                reader.wait(seen, Duration::from_secs(60));
                seen = reader.head_seq();
            }
        });
        for number in 0..50u8 {
            writer.send(&[number]).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
        sleeper.join().unwrap();
    });
}
