//! Reading: with every tool and every policy, from every position, and again.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use streamdoor::base::Random;
use streamdoor::client::ExecuteOptions;
use streamdoor::door::{DoorError, ReadOptions};
use streamdoor::engine::{From, Hold};
use streamdoor::stream::{Outcome, Policy};

use crate::test_server::{FAR, Received, TestServer, slow_bytes};

fn block() -> ReadOptions {
    ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() }
}

/// Returns options that keep the oldest chunks until the first reader comes.
fn held() -> ExecuteOptions {
    ExecuteOptions { hold: Some(Hold::UntilRead { deadline: FAR }), ..ExecuteOptions::default() }
}

#[test]
fn a_tool_that_is_run_at_the_door_gives_everything_in_order_and_one_end() {
    let server = TestServer::new(&[]);
    let arguments = json!({"chunks": 300, "delay_ms": 1, "chunk_size": 40});
    let mut reader = server.door().run("slow_data_processor", &arguments, &block()).unwrap();
    let told = Received::of(&mut reader);
    assert_eq!(told.seqs, (1..=300).collect::<Vec<u64>>());
    assert_eq!(told.bytes, slow_bytes(300, 40));
    assert_eq!(told.outcome(), Some(Outcome::Completed));
    assert_eq!(told.counts, [300, 12_000, 0, 0]);
    assert!(told.progress_count > 0);
    assert!(reader.next().unwrap().is_none());
    drop(reader);
    server.until("the relay is closed", || server.metric("streamdoor_doors") == 0);
    assert_eq!(server.metric("streamdoor_doors_opened_total"), 1);
}

#[test]
fn a_file_through_a_small_ring_on_a_threads_hands_is_the_same_at_the_other_end() {
    let folder = std::env::temp_dir().join(format!("streamdoor-door-file-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut bytes = vec![0; 5 << 20];
    Random::new(3).fill(&mut bytes);
    std::fs::write(folder.join("file"), &bytes).unwrap();
    let server = TestServer::new(&["--files-root", folder.to_str().unwrap()]);
    let execution = server.execute("process_file", &json!({"file_path": "file"}), &held());
    let name = execution.to_string();
    let door = server.door();
    let mut readers: Vec<_> = (0..3).map(|_| door.read(&name, &block()).unwrap()).collect();
    let (tcp, shared) = std::thread::scope(|scope| {
        let client = server.client.clone();
        let tcp = scope.spawn(move || Received::over_http(&client, execution, Policy::Block));
        let shared: Vec<_> =
            readers.iter_mut().map(|reader| scope.spawn(|| Received::of(reader))).collect();
        let shared: Vec<Received> = shared.into_iter().map(|told| told.join().unwrap()).collect();
        (tcp.join().unwrap(), shared)
    });
    std::fs::remove_dir_all(&folder).unwrap();
    for told in shared.iter().chain([&tcp]) {
        assert_eq!(told.outcome(), Some(Outcome::Completed), "{:?}", told.error);
        // The subscriber over TCP may have come late: its counts include what it missed.
        let missed = told.counts[3] as usize;
        assert_eq!(told.bytes.len() + missed, bytes.len());
        assert!(told.bytes == bytes[missed..]);
    }
    assert!(shared.iter().all(|told| told.counts[2] == 0));
}

#[test]
fn a_reader_that_lags_under_drop_is_told_exactly_what_it_missed() {
    let server = TestServer::new(&[]);
    // No ring holds all of it. A reader whose process starts slowly misses some, too.
    const CHUNKS: u64 = 20_000;
    let arguments = json!({"chunks": CHUNKS, "delay_ms": 0, "chunk_size": 100});
    let execution = server.execute("slow_data_processor", &arguments, &held());
    let options = ReadOptions {
        policy: Some(Policy::Drop),
        limit_chunks: Some(20),
        ..ReadOptions::default()
    };
    let mut reader = server.door().read(&execution.to_string(), &options).unwrap();
    assert_eq!((reader.terms().policy, reader.terms().limit.chunks), (Policy::Drop, 20));
    server.until("all is published", || server.client.inspect(execution).unwrap().chunks == CHUNKS);
    let told = Received::of(&mut reader);
    assert_eq!(told.outcome(), Some(Outcome::Completed));
    let [given, given_bytes, missed, missed_bytes] = told.counts;
    assert_eq!((given + missed, given_bytes + missed_bytes), (CHUNKS, CHUNKS * 100));
    assert_eq!(given as usize, told.seqs.len());
    assert!(missed > 0 && !told.gaps.is_empty());
    let of_gaps = told.gaps.iter().fold((0, 0), |sum, gap| (sum.0 + gap.2, sum.1 + gap.3));
    assert_eq!(of_gaps, (missed, missed_bytes));
    for (from_seq, to_seq, chunks, bytes) in &told.gaps {
        assert_eq!((to_seq - from_seq + 1, chunks * 100), (*chunks, *bytes));
    }
    let all = slow_bytes(CHUNKS, 100);
    for (at, seq) in told.seqs.iter().enumerate() {
        let from = (*seq as usize - 1) * 100;
        assert!(told.bytes[at * 100..][..100] == all[from..from + 100], "chunk {seq}");
    }
}

#[test]
fn it_begins_where_it_is_told_to_and_an_ended_execution_is_read_again() {
    let server = TestServer::new(&[]);
    let arguments = json!({"chunks": 100, "delay_ms": 0, "chunk_size": 50});
    let execution = server.execute("slow_data_processor", &arguments, &held());
    let (door, name) = (server.door(), execution.to_string());
    let first = Received::of(&mut door.read(&name, &block()).unwrap());
    assert_eq!(first.bytes, slow_bytes(100, 50));
    for _ in 0..3 {
        let again = Received::of(&mut door.read(&name, &block()).unwrap());
        assert_eq!(again.bytes, first.bytes);
        assert_eq!((again.outcome(), again.counts), (first.outcome(), first.counts));
    }
    let options = ReadOptions { from: From::Seq { seq: 91, seen: None }, ..block() };
    let tail = Received::of(&mut door.read(&name, &options).unwrap());
    assert_eq!((tail.seqs[0], tail.seqs.len()), (91, 10));
    assert!(tail.bytes == first.bytes[90 * 50..]);
    let beyond = ReadOptions { from: From::Seq { seq: 999, seen: None }, ..block() };
    let over = Received::of(&mut door.read(&name, &beyond).unwrap());
    assert_eq!((over.seqs.len(), over.outcome()), (0, first.outcome()));
    let arguments = json!({"chunks": 2, "delay_ms": 60_000, "chunk_size": 50});
    let name = server.execute("slow_data_processor", &arguments, &held()).to_string();
    let Err(DoorError::Refused(refused)) = door.read(&name, &beyond) else { panic!() };
    assert_eq!((refused.status.code(), refused.code.as_str()), (409, "not_yet"));
}

#[test]
fn who_comes_live_is_given_what_comes_from_then_on() {
    let server = TestServer::new(&[]);
    let arguments = json!({"chunks": 400, "delay_ms": 10, "chunk_size": 10});
    let execution = server.execute("slow_data_processor", &arguments, &ExecuteOptions::default());
    server.until("it runs", || server.client.inspect(execution).unwrap().chunks > 20);
    let options = ReadOptions { from: From::Live, ..block() };
    let mut reader = server.door().read(&execution.to_string(), &options).unwrap();
    let told = Received::of(&mut reader);
    assert!(told.seqs[0] > 20, "{:?}", told.seqs[0]);
    assert_eq!(told.seqs.last(), Some(&400));
    assert!(told.gaps.is_empty());
    assert_eq!(told.outcome(), Some(Outcome::Completed));
}

#[test]
fn who_sleeps_on_the_descriptor_is_woken_for_everything() {
    let server = TestServer::new(&["--idle", "block"]);
    let arguments = json!({"chunks": 200, "delay_ms": 3, "chunk_size": 10});
    let mut reader = server.door().run("slow_data_processor", &arguments, &block()).unwrap();
    let (mut told, mut slept_count) = (Received::default(), 0);
    while told.state.is_none() {
        while let Some(delivery) = reader.poll().unwrap() {
            told.take(&delivery);
        }
        if told.state.is_none() && reader.watch() {
            let mut descriptors = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)];
            let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
            assert_eq!(poll(&mut descriptors, Some(&limit)).unwrap(), 1, "never woken");
            slept_count += 1;
        }
    }
    assert_eq!(told.bytes, slow_bytes(200, 10));
    assert!(slept_count > 10, "{slept_count}");
}

#[test]
fn an_execution_of_any_shard_is_read_at_the_one_door() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        println!("not run: there is only one core");
        return;
    }
    let server = TestServer::new(&["--cpus", "0,1", "--idle", "block"]);
    let arguments = json!({"chunks": 50, "delay_ms": 1, "chunk_size": 30});
    let mut shards = Vec::new();
    for _ in 0..12 {
        let execution = server.execute("slow_data_processor", &arguments, &held());
        shards.push(execution.shard);
        let told = Received::of(&mut server.door().read(&execution.to_string(), &block()).unwrap());
        assert_eq!(told.bytes, slow_bytes(50, 30), "shard {}", execution.shard);
    }
    shards.sort_unstable();
    shards.dedup();
    println!("shards {shards:?}");
}
