//! Producing: the chunks of another process reach all subscribers, with their numbers, progress,
//! error and end.

use std::time::Duration;

use streamdoor::base::Random;
use streamdoor::client::{Awaited, ExecuteOptions, FollowOptions, StreamEvent};
use streamdoor::door::{DoorError, DoorWriter, ProduceOptions, ReadOptions, WriteError};
use streamdoor::endpoint::DeliveryOptions;
use streamdoor::engine::{Hold, Start};
use streamdoor::shard::Delivery;
use streamdoor::stream::{ExecutionState, Kind, Outcome, Policy};

use crate::test_server::{FAR, Received, TestServer};

fn block() -> ReadOptions {
    ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() }
}

/// Returns options under which no chunk is lost before the first reader comes.
fn held(ring_bytes: u32) -> ProduceOptions {
    let hold = Some(Hold::UntilRead { deadline: FAR });
    let execution = ExecuteOptions { hold, ..ExecuteOptions::default() };
    ProduceOptions { ring_bytes: Some(ring_bytes), execution, ..ProduceOptions::default() }
}

#[test]
fn what_is_published_is_read_in_shared_memory_and_over_tcp_byte_for_byte() {
    let server = TestServer::new(&[]);
    let door = server.door();
    let mut writer = door.produce("numbers", &held(64 << 10)).unwrap();
    let execution = writer.execution();
    let mut bytes = vec![0; 3 << 20];
    Random::new(5).fill(&mut bytes);
    let name = execution.to_string();
    let mut readers: Vec<_> = (0..2).map(|_| door.read(&name, &block()).unwrap()).collect();
    let all = std::thread::scope(|scope| {
        let mut threads: Vec<_> =
            readers.iter_mut().map(|reader| scope.spawn(|| Received::of(reader))).collect();
        let client = server.client.clone();
        threads.push(scope.spawn(move || Received::over_http(&client, execution, Policy::Block)));
        server.until("all follow", || {
            server.client.inspect(execution).unwrap().subscribers.len() == 3
        });
        let mut random = Random::new(6);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let length = (random.below(9_000) as usize + 1).min(rest.len());
            writer.send_as(Kind::Stdout, 7, &rest[..length]).unwrap();
            rest = &rest[length..];
        }
        writer.complete().unwrap();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<Received>>()
    });
    for told in &all {
        assert_eq!(told.outcome(), Some(Outcome::Completed), "{:?}", told.error);
        assert!(told.bytes == bytes);
        assert_eq!(told.seqs, all[0].seqs);
        assert_eq!(told.gaps, []);
    }
    let status = server.client.inspect(execution).unwrap();
    assert_eq!((status.tool.as_str(), status.bytes), ("numbers", 3 << 20));
    drop(readers);
    server.until("who reads has left", || server.metric("streamdoor_subscribers") == 0);
}

/// The producer's ring holds more than the private ring takes at once, so a reader in the server
/// gets a part of it.
#[test]
fn a_large_ring_takes_many_long_chunks_and_a_late_reader_is_given_the_newest() {
    let server = TestServer::new(&["--idle", "block"]);
    let door = server.door();
    let mut writer = door.produce("large", &held(8 << 20)).unwrap();
    let execution = writer.execution();
    let length_max = writer.chunk_bytes_max() as usize;
    assert!(length_max < 256 << 10, "a quarter of the largest private ring");
    let mut reader = door.read(&execution.to_string(), &block()).unwrap();
    let mut bytes = vec![0; 6 << 20];
    Random::new(9).fill(&mut bytes);
    for piece in bytes.chunks(100_000) {
        writer.send(piece).unwrap(); // The reader has read nothing yet, and none has to wait.
    }
    let delivery_options =
        DeliveryOptions { policy: Some(Policy::Buffer), ..DeliveryOptions::default() };
    let options = FollowOptions { delivery_options, ..FollowOptions::default() };
    let stream = server.client.follow(execution, options).unwrap();
    let mut read = Vec::new();
    while read.len() < bytes.len() {
        if let Some(Delivery::Chunk(chunk)) = reader.next().unwrap() {
            read.extend_from_slice(chunk.data);
        }
    }
    assert!(read == bytes);
    writer.complete().unwrap();
    let mut late = Vec::new();
    for event in stream {
        if let StreamEvent::Chunk(chunk) = event.unwrap() {
            late.extend_from_slice(&chunk.data);
        }
    }
    assert!(late.len() > 512 << 10, "{}", late.len());
    assert!(bytes.ends_with(&late));
}

/// At first the server has no subscriber, then one, then none, and so on. The server copies only
/// the chunks that it needs. Earlier ones are delivered as far as the ring still holds them.
#[test]
fn who_comes_late_and_goes_early_is_given_what_is_held() {
    let server = TestServer::new(&["--idle", "block"]);
    let door = server.door();
    let options = ProduceOptions { ring_bytes: Some(16 << 10), ..ProduceOptions::default() };
    let mut writer = door.produce("lonely", &options).unwrap();
    let execution = writer.execution();
    let mut seq = 0_u64;
    let mut send = |writer: &mut DoorWriter, count: u64| {
        for _ in 0..count {
            seq += 1;
            let kind = if seq.is_multiple_of(3) { Kind::Row } else { Kind::Output };
            assert_eq!(writer.send_as(kind, 0, &pattern(seq)).unwrap(), seq);
        }
        seq
    };
    for round in 0..4 {
        let sent = send(&mut writer, 150 + 7 * round); // Several times around the ring.
        let status = server.client.inspect(execution).unwrap();
        assert_eq!(status.chunks, sent);
        let delivery_options =
            DeliveryOptions { policy: Some(Policy::Buffer), ..DeliveryOptions::default() };
        let options =
            FollowOptions { delivery_options, reconnects_max: 0, ..FollowOptions::default() };
        let stream = server.client.follow(execution, options).unwrap();
        server.until("it follows", || server.metric("streamdoor_subscribers") == 1);
        let all = send(&mut writer, 20);
        let (mut next_seq, mut given) = (1, 0);
        for event in stream {
            match event.unwrap() {
                StreamEvent::Gap(gap) => {
                    let lost = gap.from_seq..=gap.to_seq;
                    let bytes: usize = lost.map(|seq| pattern(seq).len()).sum();
                    assert_eq!(gap.chunk_count, gap.to_seq - gap.from_seq + 1);
                    assert_eq!((gap.from_seq, gap.byte_count), (next_seq, bytes as u64));
                    next_seq = gap.to_seq + 1;
                }
                StreamEvent::Chunk(chunk) => {
                    assert_eq!((chunk.seq, &chunk.data[..]), (next_seq, &pattern(next_seq)[..]));
                    next_seq += 1;
                    given += 1;
                }
                other => assert!(matches!(other, StreamEvent::Started(_)), "{other:?}"),
            }
            if next_seq > all {
                break;
            }
        }
        assert!(given >= 50, "{given}: the ring holds more than that");
        server.until("it has left", || server.metric("streamdoor_subscribers") == 0);
    }
    let all = send(&mut writer, 100);
    writer.complete().unwrap();
    let late = Received::over_http(&server.client, execution, Policy::Block);
    let direct = Received::of(&mut door.read(&execution.to_string(), &block()).unwrap());
    for told in [&late, &direct] {
        let [(1, until_seq, missed_chunks, missed_bytes)] = told.gaps[..] else {
            panic!("{:?}", told.gaps)
        };
        assert_eq!(missed_chunks, until_seq);
        let expected: Vec<u8> = (until_seq + 1..=all).flat_map(pattern).collect();
        assert!(told.bytes == expected);
        let before: usize = (1..=until_seq).map(|seq| pattern(seq).len()).sum();
        assert_eq!(missed_bytes, before as u64);
        assert!(told.seqs.iter().copied().eq(until_seq + 1..=all) && told.seqs.len() >= 30);
    }
}

/// Returns the data of chunk `seq`.
fn pattern(seq: u64) -> Vec<u8> {
    vec![seq as u8; 50 + (seq % 100) as usize]
}

#[test]
fn what_it_says_beside_its_chunks_is_told_too() {
    let server = TestServer::new(&[]);
    let mut writer = server.door().produce("worker", &held(16 << 10)).unwrap();
    let execution = writer.execution();
    writer.expect_total(4);
    for number in 1..=4_u32 {
        writer.send(&number.to_le_bytes()).unwrap();
        writer.progress(f64::from(number), Some(4.0), &format!("step {number}"));
    }
    server.until("its progress is known", || {
        let status = server.client.inspect(execution).unwrap();
        let said = status.progress.as_ref().and_then(|progress| progress.message.clone());
        (status.total_chunks, said.as_deref()) == (Some(4), Some("step 4"))
    });
    assert!(!writer.is_stopped());
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| Received::over_http(&server.client, execution, Policy::Block));
        writer.fail("it ran out of numbers").unwrap();
        told.join().unwrap()
    });
    assert_eq!(told.outcome(), Some(Outcome::Failed));
    assert_eq!(told.error.as_deref(), Some("it ran out of numbers"));
    assert_eq!(told.seqs, [1, 2, 3, 4]);
    // A later reader receives the same.
    let late = Received::of(&mut server.door().read(&execution.to_string(), &block()).unwrap());
    assert_eq!((late.outcome(), late.error.as_deref()), (told.outcome(), told.error.as_deref()));
    assert_eq!(late.bytes, told.bytes);
}

#[test]
fn a_writer_waits_for_a_reader_and_loses_nothing() {
    let server = TestServer::new(&["--idle", "block"]);
    let door = server.door();
    let mut writer = door.produce("fast", &held(4 << 10)).unwrap();
    let execution = writer.execution();
    let mut reader = door.read(&execution.to_string(), &block()).unwrap();
    writer.send(&[0; 100]).unwrap(); // By now the execution has started.
    let mut sent = 1_u64;
    while writer.try_send(Kind::Output, 0, &[sent as u8; 100]).unwrap().is_some() {
        sent += 1;
        assert!(sent < 1_000, "nothing holds it back");
    }
    assert!(sent >= 5, "{sent}");
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| Received::of(&mut reader));
        while sent < 5_000 {
            writer.send(&[sent as u8; 100]).unwrap();
            sent += 1;
        }
        writer.complete().unwrap();
        told.join().unwrap()
    });
    assert_eq!((told.seqs.len(), told.gaps.len()), (5_000, 0));
    let is_right = |(at, chunk): (usize, &[u8])| chunk.iter().all(|byte| *byte == at as u8);
    assert!(told.bytes.chunks(100).enumerate().all(is_right));
}

#[test]
fn it_begins_when_the_execution_does_and_stops_when_that_is_stopped() {
    let server = TestServer::new(&[]);
    let door = server.door();
    let start = Some(Start::AfterSubscribers { count: 1, deadline: FAR });
    let execution = ExecuteOptions { start, ..ExecuteOptions::default() };
    let options = ProduceOptions { execution, ..ProduceOptions::default() };
    let mut writer = door.produce("patient", &options).unwrap();
    let execution = writer.execution();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(writer.try_send(Kind::Output, 0, b"early"), Ok(None), "nobody reads yet");
    let mut reader = None;
    server.until("its ring can be had", || {
        reader = door.read(&execution.to_string(), &block()).ok();
        reader.is_some()
    });
    let mut reader = reader.unwrap();
    writer.send(b"one").unwrap();
    let mut told = Received::default();
    while told.seqs.is_empty() {
        let delivery = reader.next_within(FAR).unwrap().expect("a chunk");
        told.take(&delivery);
    }
    server.client.cancel(execution).unwrap();
    loop {
        match writer.send(b"more") {
            Ok(_) => std::thread::yield_now(),
            Err(WriteError::Stopped(outcome)) => {
                assert!(matches!(outcome, None | Some(Outcome::Cancelled)), "{outcome:?}");
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(writer.is_stopped());
    let done = writer.complete();
    assert!(matches!(done, Err(DoorError::Stopped(Outcome::Cancelled))), "{done:?}");
    while let Some(delivery) = reader.next().unwrap() {
        told.take(&delivery);
    }
    assert_eq!(told.outcome(), Some(Outcome::Cancelled));
}

#[test]
fn a_writer_that_is_dropped_has_failed_and_one_that_never_began_is_forgotten() {
    let server = TestServer::new(&[]);
    let mut writer = server.door().produce("absent-minded", &held(4 << 10)).unwrap();
    let execution = writer.execution();
    writer.send(b"something").unwrap();
    drop(writer);
    let Awaited::Ended(output) = server.client.result(execution, FAR).unwrap() else { panic!() };
    assert_eq!(output.state, ExecutionState::Ended(Outcome::Failed));
    assert_eq!(output.error.as_deref(), Some("the producer left"));
    assert_eq!(output.data, b"something");
}

#[test]
fn an_end_waits_for_nobody_who_has_left() {
    let server = TestServer::new(&[]);
    let mut writer = server.door().produce("plain", &ProduceOptions::default()).unwrap();
    for number in 0..10_000_u32 {
        writer.send(&number.to_le_bytes()).unwrap();
    }
    let output = std::thread::scope(|scope| {
        let execution = writer.execution();
        let ended = scope.spawn(|| writer.complete().unwrap());
        ended.join().unwrap();
        server.client.result(execution, FAR).unwrap()
    });
    let Awaited::Ended(output) = output else { panic!() };
    assert_eq!((output.state, output.chunks), (ExecutionState::Ended(Outcome::Completed), 10_000));
    assert_eq!(output.bytes, 40_000);
}
