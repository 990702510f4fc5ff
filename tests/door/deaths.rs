//! Deaths of producers, of readers and of the server. Every other party notices each of them once,
//! and continues.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use streamdoor::client::ExecuteOptions;
use streamdoor::door::{DoorError, ProduceOptions, ReadOptions, WriteError};
use streamdoor::engine::Hold;
use streamdoor::reactor::Clock;
use streamdoor::stream::{DetachReason, EndState, Kind, Outcome, Policy};

use crate::role::Role;
use crate::test_server::{FAR, Received, TestServer, signal};

fn block() -> ReadOptions {
    ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() }
}

fn held(block_deadline: Duration) -> ProduceOptions {
    let hold = Some(Hold::UntilRead { deadline: FAR });
    let block_deadline = Some(block_deadline);
    let execution = ExecuteOptions { hold, block_deadline, ..ExecuteOptions::default() };
    ProduceOptions { ring_bytes: Some(4 << 10), execution, ..ProduceOptions::default() }
}

#[test]
fn a_killed_producer_has_failed_once_for_everybody_behind_its_last_chunk() {
    for idle in ["backoff", "block"] {
        let server = TestServer::new(&["--idle", idle]);
        let mut role = Role::play("writer", &server.path(), "40");
        let execution = role.hear("execution ").parse().unwrap();
        role.hear("sent");
        let name: String = streamdoor::base::ExecutionId::to_string(&execution);
        let door = server.door();
        let mut readers: Vec<_> = (0..3).map(|_| door.read(&name, &block()).unwrap()).collect();
        let all = std::thread::scope(|scope| {
            let mut threads: Vec<_> =
                readers.iter_mut().map(|reader| scope.spawn(|| Received::of(reader))).collect();
            let client = &server.client;
            for policy in [Policy::Block, Policy::DropOldest] {
                threads.push(scope.spawn(move || Received::over_http(client, execution, policy)));
            }
            server
                .until("all follow", || client.inspect(execution).unwrap().subscribers.len() == 5);
            role.kill();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<Received>>()
        });
        for told in &all {
            assert_eq!(told.outcome(), Some(Outcome::Failed));
            assert_eq!(told.error.as_deref(), Some("the producer is gone"));
            assert_eq!(told.next_seq(), 41);
        }
        assert!(all[..4].iter().all(|told| told.seqs.len() == 40 && told.gaps.is_empty()));
        assert_eq!(server.metric("streamdoor_executions_failed_total"), 1);
        server.record("execution_ended"); // Its record may still be on its way.
        assert_eq!(server.record_count("execution_ended"), 1);
    }
}

#[test]
fn what_a_killed_producer_had_published_is_read_however_slowly() {
    let server = TestServer::new(&[]);
    let mut role = Role::play("writer", &server.path(), "500");
    let execution: streamdoor::base::ExecutionId = role.hear("execution ").parse().unwrap();
    let mut reader = server.door().read(&execution.to_string(), &block()).unwrap();
    role.hear("sent");
    role.kill();
    let mut told = Received::default();
    while let Some(delivery) = reader.next().unwrap() {
        told.take(&delivery);
        if told.seqs.len().is_multiple_of(100) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(told.outcome(), Some(Outcome::Failed));
    assert_eq!(told.next_seq(), 501);
}

#[test]
fn a_killed_reader_holds_nobody_back() {
    let server = TestServer::new(&[]);
    let mut writer = server.door().produce("held", &held(FAR)).unwrap();
    let execution = writer.execution();
    let mut role = Role::play("reader", &server.path(), &format!("{execution} 2"));
    writer.send(&[1; 100]).unwrap(); // By now the execution has started.
    while writer.try_send(Kind::Output, 0, &[1; 100]).unwrap().is_some() {}
    role.hear("read");
    server.until("the reader holds it back", || {
        let status = server.client.inspect(execution).unwrap();
        writer.try_send(Kind::Output, 0, &[1; 100]).unwrap();
        status.held_back
    });
    role.kill();
    for _ in 0..200 {
        writer.send(&[2; 100]).unwrap(); // It would wait longer than this test may take.
    }
    server.until("it is gone", || server.client.inspect(execution).unwrap().subscribers.is_empty());
    writer.complete().unwrap();
}

#[test]
fn a_frozen_reader_is_let_go_at_the_stall_limit_and_hears_of_it_when_it_wakes() {
    let server = TestServer::new(&[]);
    let mut writer = server.door().produce("held", &held(Duration::from_millis(300))).unwrap();
    let execution = writer.execution();
    let mut role = Role::play("reader", &server.path(), &format!("{execution} 2"));
    for _ in 0..3 {
        writer.send(&[1; 100]).unwrap();
    }
    role.hear("read");
    signal(role.process_id(), "STOP");
    let begun = Clock::now();
    for _ in 0..200 {
        writer.send(&[2; 100]).unwrap();
    }
    assert!(
        Clock::now().since(begun) >= Duration::from_millis(300),
        "{:?}",
        Clock::now().since(begun)
    );
    assert_eq!(server.metric("streamdoor_subscribers_detached_stall_total"), 1);
    signal(role.process_id(), "CONT");
    role.go_on();
    assert_eq!(role.hear("ended "), "detached: stall");
    role.end();
    writer.complete().unwrap();
    server.until("its slot is free", || {
        server.client.inspect(execution).unwrap().subscribers.is_empty()
    });
}

#[test]
fn readers_and_writers_notice_that_the_server_is_gone_and_another_one_begins_anew() {
    let mut server = TestServer::new(&[]);
    let door = server.door();
    let mut writer = door.produce("lonely", &held(FAR)).unwrap();
    let name = writer.execution().to_string();
    let mut readers: Vec<_> = (0..2).map(|_| door.read(&name, &block()).unwrap()).collect();
    let mut polled = door.read(&name, &block()).unwrap();
    writer.send(b"last words").unwrap();
    server
        .until("they are taken", || server.client.inspect(writer.execution()).unwrap().chunks == 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = readers
            .iter_mut()
            .map(|reader| {
                scope.spawn(|| {
                    let mut told = Received::default();
                    loop {
                        match reader.next() {
                            Ok(Some(delivery)) => told.take(&delivery),
                            Ok(None) => panic!("an end of {told:?}"),
                            Err(error) => return (told, error),
                        }
                    }
                })
            })
            .collect();
        server.kill();
        for thread in threads {
            let (told, error) = thread.join().unwrap();
            assert!(matches!(error, DoorError::ServerGone), "{error}");
            assert_eq!(told.bytes, b"last words");
        }
    });
    let error = loop {
        match polled.poll() {
            Ok(_) => std::hint::spin_loop(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, DoorError::ServerGone), "{error}");
    let refused = loop {
        match writer.send(&[3; 500]) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(refused, WriteError::ServerGone);
    assert!(matches!(writer.complete(), Err(DoorError::ServerGone)));
    // The socket of the dead server still exists, and does not hinder another one.
    let path = server.path();
    assert!(path.exists());
    // The listening socket may outlive its process for a moment.
    server.until("nobody listens", || UnixStream::connect(&path).is_err());
    let another = TestServer::new(&["--door", path.to_str().unwrap()]);
    let mut writer = streamdoor::door::Door::open(&path)
        .unwrap()
        .produce("new", &ProduceOptions::default())
        .unwrap();
    writer.send(b"hello").unwrap();
    writer.complete().unwrap();
    drop(another);
}

#[test]
fn a_server_that_stops_in_order_lets_everybody_go() {
    let server = TestServer::new(&["--drain-deadline", "10s"]);
    let door = server.door();
    let mut writer = door.produce("working", &held(FAR)).unwrap();
    let mut reader = door.read(&writer.execution().to_string(), &block()).unwrap();
    writer.send(b"one").unwrap();
    server.signal("TERM");
    let told = Received::of(&mut reader);
    let detached =
        |reason| matches!(told.state, Some(EndState::Detached { reason: r, .. }) if r == reason);
    assert!(detached(DetachReason::Shutdown) || told.outcome().is_some(), "{told:?}");
    server.record("stopped");
    server.until("the writer hears of it", || writer.send(b"more").is_err());
    assert!(!server.path().exists());
}
