//! The kernel provides no more shared memory, descriptors or address space. The server reports a
//! clear error, no process is killed, and everything else continues. A refused request succeeds
//! when the resource is available again.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use streamdoor::base::ExecutionId;
use streamdoor::client::ExecuteOptions;
use streamdoor::door::{ProduceOptions, ReadOptions};
use streamdoor::engine::Hold;
use streamdoor::memory::named::name_of;
use streamdoor::stream::{Outcome, Policy};

use crate::raw;
use crate::test_server::{FAR, Received, TestServer, slow_bytes};

/// Starts a server with its own /dev/shm of this size. Returns `None` if this process cannot mount
/// one.
fn with_own_shm(bytes: u32, arguments: &[&str]) -> Option<TestServer> {
    let script = format!("mount -t tmpfs -o size={bytes} tmpfs /dev/shm || exit 99; exec \"$@\"");
    let launcher = ["unshare", "-m", "sh", "-c", &script, "sh"].map(str::to_owned);
    let tried = Command::new(&launcher[0]).args(&launcher[1..]).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        println!("not run: no file system can be mounted here (that takes unshare, and root)");
        return None;
    }
    Some(TestServer::within(&launcher, arguments))
}

/// Returns the path of a file in that server's /dev/shm.
fn in_shm(server: &TestServer, name: &str) -> PathBuf {
    let its_root = Path::new("/proc").join(server.process_id().to_string()).join("root");
    its_root.join("dev").join("shm").join(name)
}

/// Fills the rest of the server's /dev/shm.
fn fill(server: &TestServer) {
    let mut filler = File::create(in_shm(server, "filler")).unwrap();
    for piece in [&[7; 4_096][..], &[7; 1]] {
        while filler.write_all(piece).is_ok() {}
    }
}

fn endless(delay_ms: u32) -> Value {
    json!({"chunks": 400, "delay_ms": delay_ms, "chunk_size": 300})
}

fn execute(server: &TestServer) -> ExecutionId {
    execute_at(server, 1)
}

fn execute_at(server: &TestServer, delay_ms: u32) -> ExecutionId {
    let hold = Some(Hold::UntilRead { deadline: FAR });
    let options = ExecuteOptions { hold, ..ExecuteOptions::default() };
    server.execute("slow_data_processor", &endless(delay_ms), &options)
}

fn is_all(told: &Received) -> bool {
    told.bytes == slow_bytes(400, 300) && told.outcome() == Some(Outcome::Completed)
}

/// Asserts that other clients can still read and produce.
fn goes_on(server: &TestServer) {
    let over_http = Received::over_http(&server.client, execute(server), Policy::Block);
    assert!(is_all(&over_http), "{:?}", over_http.state);
    let block = ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() };
    let door = server.door();
    let mut reader = door.run("slow_data_processor", &endless(1), &block).unwrap();
    assert!(is_all(&Received::of(&mut reader)));
    let mut writer = door.produce("another", &ProduceOptions::default()).unwrap();
    let mut reader = door.read(&writer.execution().to_string(), &block).unwrap();
    writer.send(b"as ever").unwrap();
    writer.complete().unwrap();
    assert_eq!(Received::of(&mut reader).bytes, b"as ever");
}

#[test]
fn on_a_full_dev_shm_there_are_no_names_and_all_else_goes_on() {
    let Some(server) = with_own_shm(2 << 20, &["--named-doors"]) else { return };
    fill(&server);
    goes_on(&server);
    let record = server.record("named_door_refused");
    let reason = record["reason"].as_str().unwrap();
    println!("{reason}");
    assert!(reason.contains("No space left"), "{reason}");
    assert_eq!(server.metric("streamdoor_named_doors_refused_total"), 3);
    std::fs::remove_file(in_shm(&server, "filler")).unwrap();
    let id = execute(&server);
    assert!(in_shm(&server, &name_of(id)).exists(), "there is room again");
    assert!(is_all(&Received::over_http(&server.client, id, Policy::Block)));
}

#[test]
fn who_takes_the_pages_of_a_named_ring_on_a_full_dev_shm_kills_nobody() {
    let Some(server) = with_own_shm(4 << 20, &["--named-doors"]) else { return };
    let id = execute_at(&server, 10); // It must not end before its pages are taken.
    let file = File::options().write(true).open(in_shm(&server, &name_of(id))).unwrap();
    let bytes = file.metadata().unwrap().len();
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| Received::over_http(&server.client, id, Policy::Block));
        server.until("it runs", || server.metric("streamdoor_chunks_published_total") > 5);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, hole, 0, bytes).unwrap();
        fill(&server); // Writes to the hole now find no page: SIGBUS.
        told.join().unwrap()
    });
    assert!(is_all(&told), "{:?}", told.state);
    server.record("named_door_lost");
    assert_eq!(server.metric("streamdoor_named_doors_lost_total"), 1);
    goes_on(&server);
}

/// A resource limit of a process. The previous limit is restored when the value is dropped.
struct Limit {
    pid: Pid,
    resource: Resource,
    before: Rlimit,
}

impl Limit {
    fn set(server: &TestServer, resource: Resource, value: u64) -> Limit {
        let pid = Pid::from_raw(server.process_id() as i32).unwrap();
        let maximum = getrlimit(resource).maximum; // The child inherited our maximum.
        let before = prlimit(Some(pid), resource, Rlimit { current: Some(value), maximum });
        Limit { pid, resource, before: before.unwrap() }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = prlimit(Some(self.pid), self.resource, Rlimit { ..self.before });
    }
}

fn descriptors(server: &TestServer) -> Vec<u64> {
    let links = std::fs::read_dir(format!("/proc/{}/fd", server.process_id())).unwrap();
    links.map(|link| link.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// Returns the number of the descriptor that the server opens after `count` more. Waits first until
/// the server has closed those of old connections.
fn descriptor_behind(server: &TestServer, count: usize) -> u64 {
    let (mut taken, mut same_count) = (descriptors(server), 0);
    // Two equal looks are not enough: the server may just not be scheduled.
    server.until("it closes no more", || {
        std::thread::sleep(Duration::from_millis(100));
        let before = std::mem::replace(&mut taken, descriptors(server));
        same_count = if before == taken { same_count + 1 } else { 0 };
        same_count == 20
    });
    (0..).filter(|number| !taken.contains(number)).nth(count).unwrap()
}

fn address_space(server: &TestServer) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process_id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn where_the_kernel_gives_no_memory_a_door_is_refused_and_all_else_goes_on() {
    let server = TestServer::new(&["--doors-max", "64"]);
    goes_on(&server);
    let path = server.path();
    let running = execute(&server).to_string();
    let produce = ("/v1/door/executions".to_owned(), r#"{"name":"x","ring_bytes":1048576}"#);
    let read = (format!("/v1/executions/{running}/door"), "");
    let mut refused_count = server.metric("streamdoor_doors_refused_total");
    for (target, body) in [&produce, &read] {
        let ask = || raw::ask(&path, target, body, None).map(|_| ());
        let refused = |limit: Limit, why: &str| {
            let answer = ask().unwrap_err();
            drop(limit);
            let (head, document) = answer.split_once("\r\n\r\n").unwrap();
            println!("{target}: {document}");
            assert!(head.starts_with("HTTP/1.1 503 "), "{answer}");
            let document: Value = serde_json::from_str(document).unwrap();
            let message = document["error"]["message"].as_str().unwrap();
            assert_eq!(document["error"]["code"], "no_shared_memory");
            assert!(message.contains(why) && head.to_lowercase().contains("retry-after:"));
        };
        // Room for its connection, and one more.
        let descriptors = descriptor_behind(&server, 2);
        refused(Limit::set(&server, Resource::Nofile, descriptors), "Too many open files");
        // Files may have the size of a page, but not of a ring.
        refused(Limit::set(&server, Resource::Fsize, 8 << 10), "File too large");
        // Room for a page or two, but for no ring.
        let space = address_space(&server) + (24 << 10);
        refused(Limit::set(&server, Resource::As, space), "Cannot allocate memory");
        refused_count += 3;
        assert_eq!(server.metric("streamdoor_doors_refused_total"), refused_count);
        ask().expect("there is enough again");
        goes_on(&server);
    }
}
