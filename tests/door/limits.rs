//! Limits and refusals: routes outside of the door, other users, too many doors, too little memory.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

use serde_json::{Value, json};
use streamdoor::client::{ExecuteOptions, ServerRefusal};
use streamdoor::door::{Door, DoorError, DoorWriter, ProduceOptions, ReadOptions};
use streamdoor::engine::Hold;
use streamdoor::stream::{Outcome, Policy};

use crate::limited::Cgroup;
use crate::role::Role;
use crate::test_server::{FAR, Received, TestServer};

fn held() -> ExecuteOptions {
    ExecuteOptions { hold: Some(Hold::UntilRead { deadline: FAR }), ..ExecuteOptions::default() }
}

fn endless() -> Value {
    json!({"chunks": 1_000_000, "delay_ms": 20, "chunk_size": 20})
}

fn refused<T>(result: Result<T, DoorError>) -> ServerRefusal {
    match result {
        Err(DoorError::Refused(refused)) => refused,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was granted"),
    }
}

#[test]
fn memory_is_shared_at_the_door_and_nowhere_else() {
    let server = TestServer::new(&[]);
    let execution = server.execute("slow_data_processor", &endless(), &held());
    for path in [format!("/v1/executions/{execution}/door"), "/v1/door/executions".to_owned()] {
        let (status, body) = server.ask("POST", &path);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &body["error"]["code"]), (403, &json!("not_at_the_door")), "{path}");
    }
    let mode = std::fs::metadata(server.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The door serves all other routes, too.
    let client = server.door().client().unwrap();
    assert_eq!(client.executions().unwrap().len(), 1);
    let nobody = ExecuteOptions::default();
    let unknown = server.execute("slow_data_processor", &json!({"chunks": 0}), &nobody);
    let mut never = unknown;
    never.nonce ^= 1 << 30;
    let refused = refused(server.door().read(&never.to_string(), &ReadOptions::default()));
    assert_eq!((refused.status.code(), refused.code.as_str()), (404, "not_found"));
}

#[test]
fn a_ninth_door_is_refused_until_one_is_closed() {
    let server = TestServer::new(&["--doors-max", "8"]);
    let door = server.door();
    let mut open = Vec::new();
    for _ in 0..4 {
        let execution = server.execute("slow_data_processor", &endless(), &held());
        open.push(door.read(&execution.to_string(), &ReadOptions::default()).unwrap());
    }
    let small = ProduceOptions { ring_bytes: Some(4 << 10), ..ProduceOptions::default() };
    let mut writers: Vec<_> = (0..4).map(|_| door.produce("w", &small).unwrap()).collect();
    assert_eq!(server.metric("streamdoor_doors"), 8);
    let ninth = server.execute("slow_data_processor", &endless(), &held()).to_string();
    for refusal in
        [refused(door.read(&ninth, &ReadOptions::default())), refused(door.produce("w", &small))]
    {
        assert_eq!((refusal.status.code(), refusal.code.as_str()), (429, "too_many_doors"));
        assert_eq!(refusal.limit, Some(8));
    }
    assert_eq!(server.metric("streamdoor_doors_refused_total"), 2);
    // More readers of an open door do not count as more doors.
    let same = open[0].execution().to_string();
    drop(door.read(&same, &ReadOptions::default()).unwrap());
    drop(open.pop());
    server.until("a place is free", || server.metric("streamdoor_doors") == 7);
    let mut ninth = door.read(&ninth, &ReadOptions::default()).unwrap();
    assert!(ninth.next().unwrap().is_some());
    for writer in &mut writers {
        writer.send(b"still here").unwrap();
    }
}

#[test]
fn sixty_four_may_read_one_execution_and_no_more() {
    let server = TestServer::new(&[]);
    let execution = server.execute("slow_data_processor", &endless(), &held()).to_string();
    let door = server.door();
    let options = ReadOptions::default();
    let mut readers: Vec<_> = (0..64).map(|_| door.read(&execution, &options).unwrap()).collect();
    let refusal = refused(door.read(&execution, &options));
    assert_eq!((refusal.status.code(), refusal.limit), (429, Some(64)));
    readers.pop();
    server.until("a slot is free", || server.metric("streamdoor_subscribers") == 63);
    readers.push(door.read(&execution, &options).unwrap());
    for reader in &mut readers {
        assert!(reader.next().unwrap().is_some());
    }
}

#[test]
fn another_user_is_told_to_go() {
    let id = Command::new("id").arg("-u").output().unwrap();
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        println!("not run: only root can become somebody else");
        return;
    }
    let server = TestServer::new(&[]);
    let program = std::env::current_exe().unwrap();
    let is_open = program.ancestors().skip(1).all(|folder| {
        let metadata = std::fs::metadata(folder);
        metadata.is_ok_and(|found| found.permissions().mode() & 0o005 == 0o005)
    });
    if !is_open {
        println!("not run: another user cannot run this program where it is");
        return;
    }
    let mut stranger = Role::play_as(Some(65_534), "stranger", &server.path(), "");
    let said = stranger.hear("not connected ");
    assert!(said.contains("ermission denied"), "{said}");
    stranger.end();
    // Another user is refused even if file permissions let it connect.
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(server.folder(), 0o755);
    open(&server.path(), 0o666);
    let mut stranger = Role::play_as(Some(65_534), "stranger", &server.path(), "");
    let said = stranger.hear("answered ");
    assert!(said.contains("403") && said.contains("other_user"), "{said}");
    stranger.end();
    server.record("connections_refused");
}

/// Starts producers with large rings until memory is short. Returns them and the refusal of the
/// next one.
fn until_memory_is_short(door: &Door) -> (Vec<DoorWriter>, ServerRefusal) {
    // No producer waits for a reader, because none comes.
    let execution = ExecuteOptions { hold: Some(Hold::Newest), ..ExecuteOptions::default() };
    let large =
        ProduceOptions { ring_bytes: Some(1 << 20), execution, ..ProduceOptions::default() };
    let mut writers = Vec::new();
    let refusal = loop {
        match door.produce("large", &large) {
            Ok(writer) => writers.push(writer),
            Err(error) => break refused::<()>(Err(error)),
        }
        assert!(writers.len() < 60, "they take more than there is");
    };
    assert_eq!((refusal.status.code(), refusal.code.as_str()), (503, "memory_short"));
    (writers, refusal)
}

#[test]
fn where_memory_is_short_a_door_is_refused_and_everything_else_goes_on() {
    let server = TestServer::new(&[
        "--rings-bytes-max",
        "4MiB",
        "--prealloc-bytes",
        "0",
        "--doors-max",
        "64",
    ]);
    let door = server.door();
    let options = ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() };
    let (writers, refusal) = until_memory_is_short(&door);
    assert!(refusal.message.contains("bytes"), "{}", refusal.message);
    assert!(!writers.is_empty());
    let arguments = json!({"chunks": 30, "delay_ms": 1, "chunk_size": 20});
    let execution = server.execute("slow_data_processor", &arguments, &held());
    assert_eq!(
        Received::over_http(&server.client, execution, Policy::Block).outcome(),
        Some(Outcome::Completed)
    );
    for mut writer in writers {
        writer.send(b"as before").unwrap();
        writer.complete().unwrap();
    }
    server.until("there is room again", || {
        let held = ReadOptions::clone(&options);
        door.run("slow_data_processor", &arguments, &held).is_ok()
    });
}

#[test]
fn a_large_ring_counts_like_any_other_and_larger_ones_do_not_exist() {
    let server = TestServer::new(&["--rings-bytes-max", "16MiB", "--doors-max", "64"]);
    let door = server.door();
    let produce = |ring_bytes| {
        door.produce("w", &ProduceOptions { ring_bytes: Some(ring_bytes), ..<_>::default() })
    };
    let refusal = refused(produce((8 << 20) + 1));
    assert_eq!((refusal.status.code(), refusal.limit), (400, Some(8 << 20)));
    for ring_bytes in [(1 << 20) + 1, 3 << 20, 8 << 20] {
        let writer = produce(ring_bytes).unwrap();
        let class_bytes = u64::from(ring_bytes).next_power_of_two();
        let taken = server.metric("streamdoor_doors_bytes");
        assert!((class_bytes..class_bytes + (1 << 20)).contains(&taken), "{taken} {ring_bytes}");
        drop(writer);
        server.until("it is closed", || server.metric("streamdoor_doors") == 0);
    }
    // A private ring of 1 MiB comes with each, and stays with those that have ended.
    let first = produce(8 << 20).unwrap();
    let refusal = refused(produce(8 << 20));
    assert_eq!((refusal.status.code(), refusal.code.as_str()), (503, "memory_short"));
    assert!(refusal.message.contains("a ring of 8388608 bytes"), "{}", refusal.message);
    let second = produce(2 << 20).unwrap();
    drop((first, second));
}

#[test]
fn in_64_mib_doors_stay_within_the_rings_tenth_and_nobody_is_killed() {
    let Some(cgroup) = Cgroup::new() else {
        println!("not run: no cgroup with a memory limit can be made here");
        return;
    };
    let server = TestServer::within(&cgroup.launcher(), &["--doors-max", "64"]);
    let door = server.door();
    let (writers, refusal) = until_memory_is_short(&door);
    println!("{} doors of 1 MiB; then {}", writers.len(), refusal.message);
    for mut writer in writers {
        for _ in 0..100 {
            writer.send(&[7; 50_000]).unwrap();
        }
        writer.complete().unwrap();
    }
    let arguments = json!({"chunks": 30, "delay_ms": 1, "chunk_size": 20});
    let execution = server.execute("slow_data_processor", &arguments, &held());
    let told = Received::over_http(&server.client, execution, Policy::Block);
    assert_eq!(told.outcome(), Some(Outcome::Completed));
}

#[test]
fn who_asks_together_shares_one_ring_and_who_leaves_meanwhile_leaves_nothing_behind() {
    let server = TestServer::new(&["--doors-max", "1"]);
    let execution = server.execute("slow_data_processor", &endless(), &held()).to_string();
    let door = server.door();
    let readers = std::thread::scope(|scope| {
        let read = || door.read(&execution, &ReadOptions::default());
        let asking: Vec<_> = (0..16).map(|_| scope.spawn(read)).collect();
        asking.into_iter().map(|asking| asking.join().unwrap().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(server.metric("streamdoor_doors_opened_total"), 1);
    drop(readers);
    server.until("it is closed", || server.metric("streamdoor_doors") == 0);
    for (target, body) in [
        (format!("/v1/executions/{execution}/door"), ""),
        ("/v1/door/executions".to_owned(), r#"{"name":"gone","ring_bytes":1048576}"#),
    ] {
        for _ in 0..50 {
            let mut line = UnixStream::connect(server.path()).unwrap();
            let length = body.len();
            let head = format!("POST {target} HTTP/1.1\r\nHost: localhost\r\n");
            let type_ = "Content-Type: application/json\r\n";
            write!(line, "{head}{type_}Content-Length: {length}\r\n\r\n{body}").unwrap();
        }
        // The server may not even have accepted some of them yet.
        let read = || door.read(&execution, &ReadOptions::default());
        server.until("there is a place", || read().is_ok());
        server.until("all places are free", || server.metric("streamdoor_doors") == 0);
        server.until("nobody is there", || server.metric("streamdoor_subscribers") == 0);
    }
}
