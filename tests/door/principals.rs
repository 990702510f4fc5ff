//! Memory shared with one principal never shows data of another principal's executions. Shared
//! rings and pages are not used again, and new ones start empty.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

use serde_json::{Value, json};
use streamdoor::base::ExecutionId;
use streamdoor::client::{Client, ExecuteOptions};
use streamdoor::door::{Door, ProduceOptions, ReadOptions};
use streamdoor::stream::{ExecutionState, Outcome, Policy};

use crate::raw::{self, Grant, Memory};
use crate::test_server::{Received, TestServer, until};

const ANN: &str = "ann-0123456789abcdef0123456789abcdef";
const BOB: &str = "bob-0123456789abcdef0123456789abcdef";
const OF_ANN: &[u8] = b"what-ann-alone-may-see: ";
const OF_BOB: &[u8] = b"what-bob-alone-may-see: ";
const EXECUTIONS_OF_BOB: u32 = 1_000;

/// A server with two principals, and a file for each.
struct Pair {
    server: TestServer,
    folder: PathBuf,
}

impl Pair {
    fn new(name: &str) -> Pair {
        let name = format!("streamdoor-principals-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let tokens = folder.join("tokens");
        std::fs::write(&tokens, format!("ann {ANN}\nbob {BOB}\n")).unwrap();
        std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(folder.join("ann"), OF_ANN.repeat(400)).unwrap();
        std::fs::write(folder.join("bob"), OF_BOB.repeat(400)).unwrap();
        let (tokens, files) = (tokens.to_str().unwrap(), folder.to_str().unwrap());
        let arguments = ["--token-file", tokens, "--files-root", files, "--retention", "1s"];
        Pair { server: TestServer::new(&arguments), folder }
    }

    fn client(&self, token: &str) -> Client {
        self.server.client.with_token(token).unwrap()
    }

    fn door(&self, token: &str) -> Door {
        self.server.door().with_token(token).unwrap()
    }

    fn file(&self, name: &str) -> Value {
        json!({"file_path": self.folder.join(name).to_str().unwrap()})
    }

    /// Returns a completed execution that has read this principal's whole file.
    fn ended(&self, token: &str, name: &str) -> ExecutionId {
        let client = self.client(token);
        let options =
            ExecuteOptions { retention: Some(crate::test_server::FAR), ..Default::default() };
        let id = client.execute("process_file", &self.file(name), &options).unwrap().execution;
        until("it has ended", || {
            client.inspect(id).unwrap().state == ExecutionState::Ended(Outcome::Completed)
        });
        id
    }

    fn read(&self, token: &str, id: &str) -> Result<Grant, String> {
        let target = format!("/v1/executions/{id}/door");
        raw::ask(&self.server.path(), &target, "", Some(token))
    }

    fn produce(&self, token: &str, ring_bytes: u32) -> Grant {
        let body = json!({"name": "raw", "ring_bytes": ring_bytes}).to_string();
        raw::ask(&self.server.path(), "/v1/door/executions", &body, Some(token)).unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A file that a client has kept from a closed door.
struct Kept {
    what: &'static str,
    file: OwnedFd,
    bytes: u64,
    memory: Memory,
}

impl Kept {
    fn of(what: [&'static str; 3], grant: Grant) -> impl Iterator<Item = Kept> {
        what.into_iter().zip(grant.descriptors).map(|(what, file)| {
            let memory = Memory::writable(&file).or_else(|_| Memory::readable(&file)).unwrap();
            Kept { what, bytes: size(&file), file, memory }
        })
    }

    /// Returns true if the memory contains `mark`. Asserts that the file has nothing after its end.
    fn shows(&self, mark: &[u8]) -> bool {
        let mut behind = [0; 4_096];
        assert_eq!(size(&self.file), self.bytes, "{}", self.what);
        let file = std::fs::File::from(self.file.try_clone().unwrap());
        assert_eq!(file.read_at(&mut behind, self.bytes).unwrap(), 0, "{}", self.what);
        contains(&self.memory.bytes(), mark)
    }
}

fn size(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file.as_fd()).unwrap().st_size as u64
}

fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    let first = |at: &usize| bytes[*at] == mark[0];
    (0..(bytes.len() + 1).saturating_sub(mark.len()))
        .filter(first)
        .any(|at| bytes[at..].starts_with(mark))
}

/// Returns all shared memory that Ann ever received: as a reader, as a producer, and as a reader of
/// her own execution.
fn keep(pair: &Pair) -> Vec<Kept> {
    let relay = pair.read(ANN, &pair.ended(ANN, "ann").to_string()).unwrap();
    let mut writer = pair.door(ANN).produce("hers", &ProduceOptions::default()).unwrap();
    let hers = pair.read(ANN, &writer.execution().to_string()).unwrap();
    writer.send(OF_ANN).unwrap();
    writer.complete().unwrap();
    let raw = pair.produce(ANN, 64 << 10);
    let ring = Memory::writable(&raw.descriptors[0]).unwrap();
    for (at, word) in OF_ANN.chunks_exact(8).enumerate() {
        ring.store(6_000 + at, u64::from_ne_bytes(word.try_into().unwrap()));
    }
    let relay = Kept::of(["a relay", "its control page", "its reader's page"], relay);
    let hers = Kept::of(["a ring she wrote", "its control page", "its reader's page"], hers);
    let raw = Kept::of(["a ring to write", "its control page", "its producer's page"], raw);
    relay.chain(hers).chain(raw).collect()
}

/// Runs one of Bob's executions, with his mark in every place that he controls.
fn work_for_bob(pair: &Pair, number: u32) {
    let (door, client) = (pair.door(BOB), pair.client(BOB));
    let policy = Some(Policy::Block);
    let options = ReadOptions { policy, ..ReadOptions::default() };
    let mark = String::from_utf8_lossy(OF_BOB);
    match number % 4 {
        0 => {
            let execute = ExecuteOptions::default();
            let id = client.execute("process_file", &pair.file("bob"), &execute).unwrap();
            assert!(contains(
                &Received::over_http(&client, id.execution, Policy::Block).bytes,
                OF_BOB
            ));
        }
        1 => {
            let mut reader = door.run("process_file", &pair.file("bob"), &options).unwrap();
            let told = Received::of(&mut reader);
            assert!(contains(&told.bytes, OF_BOB), "{number}: {told:?}");
        }
        _ => {
            let ring_bytes = Some([4 << 10, 16 << 10, 64 << 10][number as usize / 4 % 3]);
            let options_of_his = ProduceOptions { ring_bytes, ..ProduceOptions::default() };
            let mut writer = door.produce(&mark[..16], &options_of_his).unwrap();
            let mut reader = door.read(&writer.execution().to_string(), &options).unwrap();
            for _ in 0..6 {
                writer.send(&OF_BOB.repeat(10)).unwrap();
            }
            writer.progress(1.0, None, &mark);
            match number % 4 {
                2 => writer.complete().unwrap(),
                _ => writer.fail(&mark).unwrap(),
            }
            let told = Received::of(&mut reader);
            assert!(contains(&told.bytes, OF_BOB), "{number}: {told:?}");
        }
    }
}

#[test]
fn of_a_thousand_executions_of_another_principal_nothing_shows_in_what_one_has_kept() {
    let pair = Pair::new("kept");
    let kept = keep(&pair);
    let showing = |mark: &[u8]| kept.iter().filter(|one| one.shows(mark)).count();
    assert_eq!(showing(OF_ANN), 3); // This shows that a mark would be found.
    for number in 0..EXECUTIONS_OF_BOB {
        work_for_bob(&pair, number);
        if number % 250 == 249 {
            assert_eq!((showing(OF_ANN), showing(OF_BOB)), (3, 0), "after {number} of his");
        }
    }
    let his = pair.read(BOB, &pair.ended(BOB, "bob").to_string()).unwrap();
    let mut his = Kept::of(["ring", "page", "page"], his);
    assert!(his.next().unwrap().shows(OF_BOB));
    let bytes: u64 = kept.iter().map(|one| one.bytes).sum();
    let count = kept.len();
    println!("{EXECUTIONS_OF_BOB} executions, none of their bytes in {count} files of {bytes}");
}

#[test]
fn what_is_shared_anew_is_zero_beyond_what_was_published() {
    let pair = Pair::new("zero");
    for number in 0..60 {
        work_for_bob(&pair, number); // Leaves used memory behind.
    }
    let all_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    for ring_bytes in [4 << 10, 64 << 10, 1 << 20] {
        let ring = Memory::readable(&pair.produce(ANN, ring_bytes).descriptors[0]).unwrap();
        let bytes = ring.bytes();
        assert_eq!((ring.load(32), ring.load(33)), (0, 0));
        // The ring is smaller if memory is short.
        assert!((4 << 10..=ring_bytes as usize).contains(&bytes.len()), "{}", bytes.len());
        assert!(all_zero(&bytes[48 * 8..]), "a ring to write of {ring_bytes} bytes");
    }
    let grant = pair.read(ANN, &pair.ended(ANN, "ann").to_string()).unwrap();
    let ring = Memory::readable(&grant.descriptors[0]).unwrap();
    let (slot_count, head_seq) = (ring.load(3), ring.load(32));
    // The index begins at word 128, the frames behind it. A frame is four words and its payload.
    let last = 128 + (head_seq % slot_count) as usize;
    let frames = 128 + slot_count as usize;
    let last_frame = frames + ring.load(last) as u32 as usize - 1;
    let data_start = 8 * frames;
    let data_end = 8 * (last_frame + 4) + ring.load(last_frame + 3) as u32 as usize;
    let bytes = ring.bytes();
    assert!(head_seq > 0 && head_seq < slot_count && contains(&bytes[data_start..], OF_ANN));
    assert!(all_zero(&bytes[data_end..]), "a relay beyond its data");
    assert!(all_zero(&bytes[8 * (last + 1)..data_start]), "a relay beyond its index");
}

#[test]
fn a_door_of_another_principal_is_not_there() {
    let pair = Pair::new("others");
    let id = pair.ended(ANN, "ann");
    let mut forged = id;
    forged.nonce ^= 1;
    let path = pair.server.path();
    let status = |id: ExecutionId, token: Option<&str>| {
        let target = format!("/v1/executions/{id}/door");
        match raw::ask(&path, &target, "", token) {
            Ok(_) => "granted".to_owned(),
            Err(answer) => answer["HTTP/1.1 ".len()..][..3].to_owned(),
        }
    };
    assert_eq!(status(id, Some(ANN)), "granted");
    assert_eq!(status(id, Some(BOB)), "404");
    assert_eq!(status(forged, Some(ANN)), "404");
    assert_eq!(
        (status(id, None), status(id, Some("eve-0123456789abcdef"))),
        ("401".to_owned(), "401".to_owned())
    );
    let produced = raw::ask(&path, "/v1/door/executions", r#"{"name":"x"}"#, None).err().unwrap();
    assert!(produced.starts_with("HTTP/1.1 401"), "{produced}");
    let his = pair.door(BOB).produce("his", &ProduceOptions::default()).unwrap();
    assert_eq!(status(his.execution(), Some(ANN)), "404");
}
