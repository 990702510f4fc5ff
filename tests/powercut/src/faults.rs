//! Disks that fail, are full, slow or read-only under the real program. Executions that run go on.
//! Requests that need the disk are refused with the documented errors. After a repair everything is
//! there that was answered.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use streamdoor::reactor::Clock;

use crate::http::{Client, Lines, Reply, between};
use crate::program::{Server, path};
use crate::rig::{Power, Rig, missing};

const DISK_BYTES: u64 = 64 << 20;
const JSON: &str = "Content-Type: application/json\r\n";
const STREAM: &str = "/v1/stream/s";
/// Chunks that a subscriber has to be given while the disk does not work.
const LIVE_CHUNKS: u64 = 50;
const PAUSE: Duration = Duration::from_millis(5);

/// A server on a disk, a stream, and an execution with a subscriber.
struct Scene {
    rig: Rig,
    server: Server,
    client: Client,
    /// Number of appends that were answered.
    answered: u64,
    chunks: Arc<AtomicU64>,
}

fn start(rig: &Rig, bytes_max: &str) -> Server {
    let program = path().expect("it was there before");
    let arguments = ["--durability", "synced", "--journal-bytes", bytes_max];
    Server::start(&program, &rig.directory(), &arguments).unwrap_or_else(|log| panic!("{log}"))
}

/// The body of an append.
fn body(number: u64) -> Vec<u8> {
    format!("append {number:06} {}\n", "-".repeat(400)).into_bytes()
}

fn append(client: &mut Client, number: u64) -> Reply {
    let headers = format!(
        "Content-Type: text/plain\r\nProducer-Id: p\r\nProducer-Epoch: 0\r\n\
         Producer-Seq: {number}\r\n"
    );
    client.ask("POST", STREAM, &headers, &body(number)).unwrap()
}

/// Follows an execution on a thread. Returns the number of its chunks so far.
fn follow(address: &str, id: &str) -> Arc<AtomicU64> {
    let path = format!("/v1/executions/{id}/events?format=ndjson&policy=replay");
    let lines = Lines::open(address, &path, "").unwrap();
    let chunks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&chunks);
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            assert!(!line.contains("\"event\":\"gap\""), "{line}");
            let is_chunk = line.contains("\"event\":\"chunk\"");
            counted.fetch_add(u64::from(is_chunk), Ordering::Relaxed);
        }
    });
    chunks
}

fn execute(client: &mut Client, durability: &str) -> Reply {
    let body = format!(
        "{{\"tool\": \"slow_data_processor\", \"durability\": \"{durability}\", \
         \"arguments\": {{\"chunks\": 100000, \"delay_ms\": 5}}}}"
    );
    client.ask("POST", "/v1/executions", JSON, body.as_bytes()).unwrap()
}

impl Scene {
    /// Everything works. `None` if this machine or this run cannot have such a scene.
    fn new(disk_bytes: u64, bytes_max: &str) -> Option<Scene> {
        if let Some(why) = missing() {
            println!("not run: {why}");
            return None;
        }
        path()?;
        let mut rig = Rig::new(disk_bytes);
        rig.begin(Power::STEADY).unwrap();
        let server = start(&rig, bytes_max);
        let mut client = Client::new(&server.address);
        let created = client.ask("PUT", STREAM, "Content-Type: text/plain\r\n", b"").unwrap();
        assert_eq!(created.status, 201);
        let begun = execute(&mut client, "written");
        assert_eq!(begun.status, 201, "{}", begun.text());
        let id = between(&begun.text(), "\"execution\":\"", '"').unwrap().to_owned();
        let chunks = follow(&server.address, &id);
        let mut scene = Scene { rig, server, client, answered: 0, chunks };
        (0..20).for_each(|_| assert_eq!(scene.append(), 200));
        Some(scene)
    }

    /// Appends, and notes the answer.
    fn append(&mut self) -> u16 {
        let reply = append(&mut self.client, self.answered);
        self.answered += u64::from([200, 204].contains(&reply.status));
        reply.status
    }

    /// The subscriber is given chunks now.
    fn check_live(&self) {
        let until = self.chunks.load(Ordering::Relaxed) + LIVE_CHUNKS;
        while self.chunks.load(Ordering::Relaxed) < until {
            std::thread::sleep(PAUSE);
        }
    }

    /// Requests are refused with this status and code.
    fn check_refusals(&mut self, status: u16, code: &str) {
        let appended = append(&mut self.client, self.answered);
        let begun = execute(&mut self.client, "synced");
        let created = self.client.ask("PUT", "/v1/stream/other", "", b"x").unwrap();
        for (what, reply) in [("append", appended), ("execute", begun), ("create", created)] {
            let text = reply.text();
            assert!(reply.status == status && text.contains(code), "{what}: {text}");
        }
        assert_eq!(execute(&mut self.client, "none").status, 201);
    }

    /// The disk has failed for good, and the server says so.
    fn check_broken(&mut self) {
        while self.append() == 200 {}
        self.check_refusals(503, "journal_broken");
        let ready = self.client.ask("GET", "/readyz", "", b"").unwrap();
        assert!(ready.status == 503 && ready.text().contains("journal_broken"), "{}", ready.text());
        assert_eq!(self.client.ask("GET", "/healthz", "", b"").unwrap().status, 200);
        self.check_live();
    }

    /// Starts the server again on a disk that works. Everything is there that was answered, and the
    /// append that was not answered is accepted once.
    fn check_restart(mut self, bytes_max: &str) {
        self.server.kill();
        self.rig.end();
        self.rig.begin(Power::STEADY).unwrap();
        self.server = start(&self.rig, bytes_max);
        self.client = Client::new(&self.server.address);
        let ready = self.client.ask("GET", "/readyz", "", b"").unwrap();
        assert_eq!(ready.status, 200, "{}", ready.text());
        let answered = self.answered;
        let before = self.read();
        let expected = |count: u64| (0..count).flat_map(body).collect::<Vec<u8>>();
        let is_next = before == expected(answered + 1);
        assert!(is_next || before == expected(answered), "{} bytes", before.len());
        assert_eq!(self.append(), if is_next { 204 } else { 200 });
        assert_eq!(self.append(), 200);
        assert!(self.read() == expected(answered + 2));
        println!("{answered} appends answered before, and all of them there");
        self.server.kill();
        self.rig.end();
    }

    fn read(&mut self) -> Vec<u8> {
        let (mut all, mut offset) = (Vec::new(), "-1".to_owned());
        loop {
            let path = format!("{STREAM}?offset={offset}");
            let reply = self.client.ask("GET", &path, "", b"").unwrap();
            assert_eq!(reply.status, 200, "{}", reply.text());
            all.extend_from_slice(&reply.body);
            if reply.header("stream-up-to-date").is_some() {
                return all;
            }
            offset = reply.header("stream-next-offset").unwrap().to_owned();
        }
    }
}

const USUAL: &str = "64MiB";

#[test]
fn after_an_error_of_the_disk_the_server_refuses_and_streams_go_on() {
    for part in ["flush", "write", "all"] {
        let Some(mut scene) = Scene::new(DISK_BYTES, USUAL) else { return };
        println!("the {part} fails");
        match part {
            "flush" => scene.rig.tell("fail-flush"),
            "write" => {
                let next = body(scene.answered);
                scene.rig.tell_of("fail-write", &next[..16])
            }
            _ => scene.rig.tell("cut"),
        };
        scene.check_broken();
        scene.check_restart(USUAL);
    }
}

#[test]
fn a_file_system_that_becomes_read_only_is_a_broken_journal() {
    let Some(mut scene) = Scene::new(DISK_BYTES, USUAL) else { return };
    scene.rig.abort();
    scene.check_broken();
    scene.check_restart(USUAL);
}

#[test]
fn a_full_file_system_is_a_full_journal_until_there_is_room() {
    let bytes_max = "256MiB"; // Segments of 4 MiB.
    let Some(mut scene) = Scene::new(DISK_BYTES, bytes_max) else { return };
    let filler = scene.rig.mounted().join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    for piece_bytes in [1 << 20, 4 << 10] {
        while file.write_all(&vec![1; piece_bytes]).is_ok() {}
    }
    file.sync_all().unwrap();
    while scene.append() == 200 {}
    scene.check_refusals(507, "journal_full");
    scene.check_live();
    assert_eq!(scene.client.ask("GET", "/readyz", "", b"").unwrap().status, 200);
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    while scene.append() > 204 {
        std::thread::sleep(PAUSE);
    }
    (0..20).for_each(|_| assert!(scene.append() <= 204));
    scene.check_restart(bytes_max);
}

#[test]
fn a_slow_disk_delays_answers_and_nothing_else() {
    let Some(mut scene) = Scene::new(DISK_BYTES, USUAL) else { return };
    for (flush, appends) in [(Duration::from_millis(50), 10), (Duration::from_secs(5), 1)] {
        scene.rig.tell(&format!("flush-us {}", flush.as_micros()));
        for _ in 0..appends {
            let begun_at = Clock::now();
            let chunks = scene.chunks.load(Ordering::Relaxed);
            assert_eq!(scene.append(), 200);
            let waited = Clock::now().since(begun_at);
            assert!(waited >= flush, "answered after {waited:?}, before a flush has ended");
            let given = scene.chunks.load(Ordering::Relaxed) - chunks;
            let is_live = flush < Duration::from_secs(1) || given > LIVE_CHUNKS;
            assert!(is_live, "{given} chunks in {waited:?}");
        }
    }
    scene.rig.tell("flush-us 0");
    scene.check_restart(USUAL);
}
