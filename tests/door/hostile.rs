//! Processes that overwrite all memory handed to them, beside honest ones. No other party receives
//! a wrong byte or waits. Afterwards the server still runs, with no more descriptors and mappings
//! than before.
//!
//! Each writes for a second, or for `STREAMDOOR_SCRIBBLE_S` seconds.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate};
use serde_json::json;
use streamdoor::client::ExecuteOptions;
use streamdoor::door::{Door, DoorError, ProduceOptions, ReadOptions};
use streamdoor::engine::{Hold, Start};
use streamdoor::reactor::Clock;
use streamdoor::shard::Delivery;
use streamdoor::stream::{ExecutionState, Outcome, Policy};

use crate::raw::{self, Memory};
use crate::role::{Role, say, wait_for_word};
use crate::scribble::{Forger, Scribbler};
use crate::test_server::{FAR, Received, TestServer, slow_bytes, until};

/// Returns the time for which the hostile processes write.
fn duration() -> Duration {
    let seconds = std::env::var("STREAMDOOR_SCRIBBLE_S");
    Duration::from_secs(seconds.map_or(1, |text| text.parse().expect("a number of seconds")))
}

/// Number of chunks that an honest producer publishes meanwhile, one each millisecond.
fn chunk_count() -> u64 {
    duration().as_millis() as u64 * 5 / 4
}

/// Sends noise on a granted connection, where only a byte now and then is expected. Returns false
/// if the connection is closed.
fn knock(line: &mut UnixStream, scribbler: &mut Scribbler) -> bool {
    let random = &mut scribbler.random;
    let noise = match random.below(40) {
        0 => vec![0xA5; 1 << 16], // A flood.
        1 => {
            let mut bytes = vec![0; random.below(5_000) as usize];
            random.fill(&mut bytes);
            bytes
        }
        2 => b"POST /v1/door/executions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n".to_vec(),
        3 => b"\r\n0\r\n\r\n".to_vec(),
        _ => b"\n".to_vec(),
    };
    line.write_all(&noise).is_ok()
}

/// Tries changes to descriptors that are not sealed yet; mostly none.
fn tamper(grant: &raw::Grant, scribbler: &mut Scribbler) {
    let which = [0, 2][scribbler.random.below(2) as usize];
    let file = &grant.descriptors[which];
    match scribbler.random.below(24) {
        0 => drop(fcntl_add_seals(file, SealFlags::SEAL)), // The server can never seal it now.
        1 => drop(fcntl_add_seals(file, SealFlags::FUTURE_WRITE)),
        2 => drop(fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)),
        3 => assert!(ftruncate(file, 0).is_err(), "a ring can be cut off"),
        4 => assert!(ftruncate(file, 1 << 30).is_err(), "a ring can grow"),
        _ => {}
    }
}

/// The role that opens one door after the other, and overwrites the ring and the page of each.
pub fn write(path: &Path) {
    say("ready");
    wait_for_word();
    let mut scribbler = Scribbler::new(u64::from(std::process::id()));
    println!("seed {}", std::process::id());
    let (begun, mut count, mut forged) = (Clock::now(), 0_u64, 0_u64);
    while Clock::now().since(begun) < duration() {
        let body = r#"{"name":"hostile","ring_bytes":65536}"#;
        let Ok(mut grant) = raw::ask(path, "/v1/door/executions", body, None) else { continue };
        let ring = Memory::writable(&grant.descriptors[0]).unwrap();
        let page = Memory::writable(&grant.descriptors[2]).unwrap();
        if scribbler.random.chance(1, 8) {
            scribbler.producer_page(&page); // Before it sends anything.
        }
        tamper(&grant, &mut scribbler);
        let style = scribbler.random.below(4);
        let mut forger = Forger::new();
        let _ = grant.line.write_all(b"\n");
        let until = Clock::now() + Duration::from_millis(scribbler.random.between(1, 30));
        while Clock::now() < until {
            match style {
                // Honest but for one thing: such chunks pass the most checks.
                0 | 1 => {
                    for _ in 0..scribbler.random.below(8) {
                        forger.publish(&ring, &mut scribbler, Clock::now().nanos(), 200);
                        forged += 1;
                    }
                    if scribbler.random.chance(1, 300) {
                        scribbler.producer_page(&page);
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
                // Honest chunks, and random words at the same time.
                2 => {
                    forger.publish(&ring, &mut scribbler, Clock::now().nanos(), 50);
                    (0..20).for_each(|_| scribbler.ring(&ring));
                    forged += 1;
                }
                _ => {
                    (0..50).for_each(|_| scribbler.ring(&ring));
                    scribbler.producer_page(&page);
                }
            }
            if scribbler.random.chance(1, 4) && !knock(&mut grant.line, &mut scribbler) {
                break;
            }
        }
        count += 1;
    }
    say(&format!("scribbled {count} {forged}"));
}

/// The role that reads an execution again and again, and overwrites its pages.
pub fn read(path: &Path, execution: &str) {
    say("ready");
    wait_for_word();
    let mut scribbler = Scribbler::new(u64::from(std::process::id()));
    println!("seed {}", std::process::id());
    let (begun, mut count, mut written) = (Clock::now(), 0_u64, 0_u64);
    while Clock::now().since(begun) < duration() {
        let policies = ["block", "drop_oldest", "conflate", "disconnect"];
        let policy = policies[scribbler.random.below(4) as usize];
        let target = format!("/v1/executions/{execution}/door?policy={policy}");
        let Ok(mut grant) = raw::ask(path, &target, "", None) else { continue };
        for read_only in &grant.descriptors[..2] {
            assert!(Memory::writable(read_only).is_err(), "these are for reading");
        }
        let page = Memory::writable(&grant.descriptors[2]).unwrap();
        tamper(&grant, &mut scribbler);
        let style = scribbler.random.below(3);
        let _ = grant.line.write_all(b"\n");
        let until = Clock::now() + Duration::from_millis(scribbler.random.below(30));
        while Clock::now() < until {
            match style {
                0 => (0..50).for_each(|_| scribbler.reader_page(&page)),
                1 => scribbler.sleep_and_wake(&page, 500),
                _ => (0..50).for_each(|_| scribbler.creep(&page)),
            }
            written += 50;
            if !knock(&mut grant.line, &mut scribbler) {
                break;
            }
        }
        count += 1;
    }
    say(&format!("scribbled {count} {written}"));
}

fn held(block_deadline: Option<Duration>) -> ExecuteOptions {
    let hold = Some(Hold::UntilRead { deadline: FAR });
    ExecuteOptions { hold, block_deadline, ..ExecuteOptions::default() }
}

fn block() -> ReadOptions {
    ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() }
}

/// Returns the numbers of the server's descriptors and of its mappings of shared memory.
fn possessions(server: &TestServer) -> (usize, usize) {
    let place = |name: &str| format!("/proc/{}/{name}", server.process_id());
    let maps = std::fs::read_to_string(place("maps")).unwrap();
    let is_shared = |line: &&str| line.contains("memfd:streamdoor-");
    (std::fs::read_dir(place("fd")).unwrap().count(), maps.lines().filter(is_shared).count())
}

fn two_numbers(said: &str) -> (u64, u64) {
    let (first, second) = said.split_once(' ').unwrap();
    (first.parse().unwrap(), second.parse().unwrap())
}

/// Reads the chunks of hostile producers until `is_over`. Returns the number of readers, and of
/// those that found a ring unsound. Panics on any other error, and if nothing arrives in time.
fn read_what_they_write(door: &Door, is_over: &AtomicBool) -> (u64, u64) {
    let (client, (mut count, mut unsound)) = (door.client().unwrap(), (0, 0));
    while !is_over.load(Ordering::Relaxed) {
        let all = client.executions().unwrap();
        for one in
            all.iter().filter(|one| one.tool == "hostile" && one.state == ExecutionState::Running)
        {
            let Ok(mut reader) = door.read(&one.execution.to_string(), &block()) else { continue };
            count += 1;
            loop {
                match reader.next_within(FAR) {
                    Ok(Some(Delivery::End(_))) => break,
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("it hangs"),
                    Err(DoorError::Unsound(_)) => {
                        unsound += 1;
                        break;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
    (count, unsound)
}

#[test]
fn a_writer_that_scribbles_harms_itself_alone() {
    let server = TestServer::new(&["--idle", "block", "--retention", "1s"]);
    let mut role = Role::play("hostile writer", &server.path(), "");
    role.hear("ready");
    let arguments = json!({"chunks": chunk_count(), "delay_ms": 1, "chunk_size": 100});
    let execution = server.execute("slow_data_processor", &arguments, &held(None));
    let door = server.door();
    let mut reader = door.read(&execution.to_string(), &block()).unwrap();
    let execution = ExecuteOptions::default();
    let mut writer = door.produce("honest", &ProduceOptions { execution, ..Default::default() });
    let writer = writer.as_mut().unwrap();
    let before = possessions(&server);
    role.go_on();
    let is_over = AtomicBool::new(false);
    let (told, said, (read_count, unsound_count)) = std::thread::scope(|scope| {
        let told = scope.spawn(|| Received::of(&mut reader));
        let seen = scope.spawn(|| read_what_they_write(&door, &is_over));
        while !told.is_finished() {
            writer.send(&[5; 1_000]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let said = role.hear("scribbled "); // Until then there may be chunks to read.
        is_over.store(true, Ordering::Relaxed);
        (told.join().unwrap(), said, seen.join().unwrap())
    });
    assert!(told.bytes == slow_bytes(chunk_count(), 100));
    assert_eq!(told.outcome(), Some(Outcome::Completed));
    let (count, forged) = two_numbers(&said);
    role.end();
    assert!(count > 5, "{count}");
    let refused = server.metric("streamdoor_door_producers_refused_total");
    println!(
        "{:?}: {count} producers scribbled, {forged} chunks were forged, {refused} producers broke \
         a rule; {read_count} were read, {unsound_count} readers saw through them",
        duration()
    );
    assert!(refused > 0 && read_count > 0);
    server.record("door_producer_refused");
    drop(reader);
    server.until("they are gone", || server.metric("streamdoor_doors") == 1);
    until("all is given back", || possessions(&server) <= before);
}

#[test]
fn a_reader_that_scribbles_harms_itself_alone() {
    let server = TestServer::new(&[]);
    let arguments = json!({"chunks": chunk_count(), "delay_ms": 1, "chunk_size": 100});
    // The deadline also binds the honest readers, which may be slow for a moment. It starts when
    // any second reader connects.
    let start = Some(Start::AfterSubscribers { count: 2, deadline: FAR });
    let options = ExecuteOptions { start, ..held(Some(Duration::from_secs(5))) };
    let execution = server.execute("slow_data_processor", &arguments, &options);
    let name = execution.to_string();
    let mut reader = server.door().read(&name, &block()).unwrap();
    let mut role = Role::play("hostile reader", &server.path(), &name);
    role.hear("ready");
    let before = possessions(&server);
    role.go_on();
    let (told, tcp) = std::thread::scope(|scope| {
        let tcp = scope.spawn(|| Received::over_http(&server.client, execution, Policy::Block));
        (Received::of(&mut reader), tcp.join().unwrap())
    });
    assert!(told.bytes == slow_bytes(chunk_count(), 100));
    assert_eq!((told.outcome(), told.gaps.len()), (Some(Outcome::Completed), 0));
    assert!(told.bytes.ends_with(&tcp.bytes));
    let (count, written) = two_numbers(&role.hear("scribbled "));
    role.end();
    let evicted = server.metric("streamdoor_door_readers_evicted_total");
    println!(
        "{:?}: {count} readers scribbled {written} words or more, {evicted} were let go for it",
        duration()
    );
    assert!(count > 5 && evicted > 0, "{count}");
    let claimed = server.metric("streamdoor_door_chunks_read_total");
    assert!(claimed <= (count + 1) * chunk_count(), "{claimed} chunks by {count} readers");
    until("all is given back", || possessions(&server) <= before);
}
