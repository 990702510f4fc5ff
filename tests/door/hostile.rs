//! Processes that scribble over everything that they were given, beside honest ones: nobody else is
//! told a wrong byte, nobody waits, and the server is there afterwards.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use streamdoor::base::Random;
use streamdoor::client::ExecuteOptions;
use streamdoor::door::{ProduceOptions, ReadOptions};
use streamdoor::engine::{Hold, Outcome, Policy};
use streamdoor::reactor::Clock;

use crate::house::{FAR, House, Told, slow_bytes};
use crate::roles::{Role, say};

/// How long they scribble.
const ONE_SECOND: Duration = Duration::from_secs(1);

/// A door without the library: the connection, the grant, the descriptors.
fn ask(path: &Path, target: &str, body: &str) -> Option<(UnixStream, Value, Vec<OwnedFd>)> {
    let mut stream = UnixStream::connect(path).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let (mut bytes, mut descriptors) = (Vec::new(), Vec::new());
    loop {
        let mut piece = [0; 4_096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut piece)];
        let received = recvmsg(&stream, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC);
        let count = received.ok()?.bytes;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(all) = message {
                descriptors.extend(all);
            }
        }
        if count == 0 {
            return None;
        }
        bytes.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let grant = text.lines().find(|line| line.starts_with("{\"door\":1"));
        if let (Some(grant), 3) = (grant, descriptors.len())
            && text.ends_with("\r\n")
        {
            return Some((stream, serde_json::from_str(grant).unwrap(), descriptors));
        }
        if !text.starts_with("HTTP/1.1 200") && text.contains("\r\n\r\n") {
            return None;
        }
    }
}

fn map(descriptor: &OwnedFd) -> MmapRaw {
    MmapOptions::new().map_raw(descriptor).unwrap()
}

/// Words of any value at any place, most of them small: what numbers of chunks look like.
fn scribble(memory: &MmapRaw, random: &mut Random) {
    let at = random.below(memory.len() as u64 / 8) as usize;
    let value = match random.below(4) {
        0 => random.next_u64(),
        1 => u64::MAX - random.below(3),
        _ => random.below(1 << 12),
    };
    let first = memory.as_mut_ptr().cast::<u64>();
    // SAFETY: inside of the mapping, which is a multiple of 8 long.
    let word = unsafe { first.add(at) };
    // SAFETY: as above; other processes see torn or whole words, which is the point.
    unsafe { word.write_volatile(value) };
}

/// The role: opens one door after the other, and scribbles over ring and page of each.
pub fn write(path: &Path) {
    let mut random = Random::new(1);
    let (begun, mut count) = (Clock::now(), 0);
    while Clock::now().since(begun) < ONE_SECOND {
        let body = r#"{"name":"hostile","ring_bytes":65536}"#;
        let Some((mut line, _, descriptors)) = ask(path, "/v1/door/executions", body) else {
            continue;
        };
        let (ring, page) = (map(&descriptors[0]), map(&descriptors[2]));
        if random.chance(1, 8) {
            scribble(&page, &mut random); // Before it says anything.
        }
        let _ = line.write_all(b"\n");
        let until = Clock::now() + Duration::from_millis(20);
        while Clock::now() < until {
            for _ in 0..50 {
                scribble(&ring, &mut random);
            }
            scribble(&page, &mut random);
            if line.write_all(b"\n").is_err() {
                break;
            }
        }
        count += 1;
    }
    say(&format!("scribbled {count}"));
}

/// The role: reads an execution so, again and again.
pub fn read(path: &Path, execution: &str) {
    let mut random = Random::new(2);
    let (begun, mut count) = (Clock::now(), 0);
    while Clock::now().since(begun) < ONE_SECOND {
        let target = format!("/v1/executions/{execution}/door?policy=block");
        let Some((mut line, _, descriptors)) = ask(path, &target, "") else { continue };
        let writable = |at: usize| MmapOptions::new().map_raw(&descriptors[at]).is_ok();
        assert!(!writable(0) && !writable(1), "these are for reading");
        let page = map(&descriptors[2]);
        let _ = line.write_all(b"\n");
        let until = Clock::now() + Duration::from_millis(random.below(30));
        while Clock::now() < until {
            for _ in 0..50 {
                scribble(&page, &mut random);
            }
            if line.write_all(b"\n").is_err() {
                break;
            }
        }
        count += 1;
    }
    say(&format!("scribbled {count}"));
}

fn held(block_deadline: Option<Duration>) -> ExecuteOptions {
    let hold = Some(Hold::UntilRead { deadline: FAR });
    ExecuteOptions { hold, block_deadline, ..ExecuteOptions::default() }
}

fn block() -> ReadOptions {
    ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() }
}

#[test]
fn a_writer_that_scribbles_harms_itself_alone() {
    let house = House::new(&["--idle", "block", "--executions-max", "10000"]);
    let arguments = json!({"chunks": 1_000, "delay_ms": 1, "chunk_size": 100});
    let execution = house.execute("slow_data_processor", &arguments, &held(None));
    let door = house.door();
    let mut reader = door.read(&execution.to_string(), &block()).unwrap();
    let execution = ExecuteOptions::default();
    let mut writer = door.produce("honest", &ProduceOptions { execution, ..Default::default() });
    let writer = writer.as_mut().unwrap();
    let mut role = Role::play("hostile writer", &house.path(), "");
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| Told::of(&mut reader));
        while !told.is_finished() {
            writer.send(&[5; 1_000]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        told.join().unwrap()
    });
    assert!(told.bytes == slow_bytes(1_000, 100));
    assert_eq!(told.outcome(), Some(Outcome::Completed));
    let count: u64 = role.hear("scribbled ").parse().unwrap();
    role.end();
    assert!(count > 5, "{count}");
    let refused = house.metric("streamdoor_door_producers_refused_total");
    println!("{count} producers scribbled, {refused} broke a rule");
    assert!(refused > 0);
    house.record("door_producer_refused");
    drop(reader);
    house.until("they are gone", || house.metric("streamdoor_doors") == 1);
}

#[test]
fn a_reader_that_scribbles_harms_itself_alone() {
    let house = House::new(&[]);
    let arguments = json!({"chunks": 1_500, "delay_ms": 1, "chunk_size": 100});
    let options = held(Some(Duration::from_millis(50)));
    let execution = house.execute("slow_data_processor", &arguments, &options);
    let name = execution.to_string();
    let mut reader = house.door().read(&name, &block()).unwrap();
    let mut role = Role::play("hostile reader", &house.path(), &name);
    let (told, tcp) = std::thread::scope(|scope| {
        let tcp = scope.spawn(|| Told::over_http(&house.client, execution, Policy::Block));
        (Told::of(&mut reader), tcp.join().unwrap())
    });
    assert!(told.bytes == slow_bytes(1_500, 100));
    assert_eq!((told.outcome(), told.gaps.len()), (Some(Outcome::Completed), 0));
    assert!(told.bytes.ends_with(&tcp.bytes));
    let count: u64 = role.hear("scribbled ").parse().unwrap();
    role.end();
    let evicted = house.metric("streamdoor_door_readers_evicted_total");
    println!("{count} readers scribbled, {evicted} were let go for it");
    assert!(count > 5, "{count}");
}
