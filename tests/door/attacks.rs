//! Attacks on memory shared at a door, with every kind of file that is handed out. The attackers
//! are the same user with the descriptors, and another user without any.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, copy_file_range, fallocate,
    fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::io::pwrite;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::json;
use streamdoor::client::ExecuteOptions;
use streamdoor::engine::Hold;
use streamdoor::memory::named::{FOLDER, name_of};
use streamdoor::stream::{Outcome, Policy};

use crate::raw::{self, Memory};
use crate::role::{Role, say, wait_for_word};
use crate::test_server::{FAR, Received, TestServer, slow_bytes, until};

/// The user of the server, and another user.
const OWNER: u32 = 65_534;
const OTHER: u32 = 65_533;

/// A file handed to a client, and the client's regular mapping of it.
struct Target {
    what: &'static str,
    file: OwnedFd,
    memory: Memory,
}

type Attack = fn(&Target) -> io::Result<()>;

/// The attacks with a descriptor. Each returns `Ok` if one of its ways succeeded.
const ATTACKS: [(&str, Attack); 10] = [
    ("write through the descriptor", |target| write_to(target.file.as_fd())),
    ("open it again for writing, and write", |target| write_to(reopened(target)?.as_fd())),
    ("open it again for writing, emptied", |target| {
        rustix::fs::open(path_of(&target.file), OFlags::RDWR | OFlags::TRUNC, Mode::empty())?;
        Ok(())
    }),
    ("map it for writing", |target| {
        Memory::writable(&target.file).or_else(|_| Memory::writable(reopened(target)?)).map(drop)
    }),
    ("map it for reading, and make that writable", |target| {
        Memory::make_writable(&target.file).or_else(|_| Memory::make_writable(reopened(target)?))
    }),
    ("cut it off, or let it grow", |target| {
        let file = reopened(target)?;
        Ok(ftruncate(&file, 0).or_else(|_| ftruncate(&file, 1 << 30))?)
    }),
    ("punch a hole, write zeros, buy more", |target| {
        let file = reopened(target)?;
        let keep = FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 0, 4_096)
            .or_else(|_| fallocate(&file, FallocateFlags::ZERO_RANGE | keep, 0, 4_096))
            .or_else(|_| fallocate(&file, FallocateFlags::empty(), 0, 1 << 30))?)
    }),
    ("take its pages out through a mapping", |target| {
        target.memory.remove_pages().or_else(|_| Memory::readable(&target.file)?.remove_pages())
    }),
    ("copy another file into it", |target| {
        let file = reopened(target)?;
        let source = memfd_create("source", MemfdFlags::CLOEXEC)?;
        write_to(source.as_fd())?; // The readable source is on the same file system.
        Ok(copy_file_range(&source, Some(&mut 0), &file, Some(&mut 0), 8).map(drop)?)
    }),
    ("add a seal", |target| {
        let file = reopened(target)?;
        Ok(fcntl_add_seals(&file, SealFlags::WRITE)
            .or_else(|_| fcntl_add_seals(&file, SealFlags::empty()))?)
    }),
];

fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn reopened(target: &Target) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path_of(&target.file), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

fn write_to(file: BorrowedFd<'_>) -> io::Result<()> {
    Ok(pwrite(file, &[0xFF; 8], 0).map(drop)?)
}

/// Maps the three files of a grant, and waits until the server has sealed them.
fn handed(what: [&'static str; 3], mut grant: raw::Grant) -> (UnixStream, Vec<Target>) {
    let descriptors = std::mem::take(&mut grant.descriptors);
    let targets = what.into_iter().zip(descriptors).map(|(what, file)| {
        let memory = Memory::writable(&file).or_else(|_| Memory::readable(&file)).unwrap();
        Target { what, file, memory }
    });
    let targets: Vec<Target> = targets.collect();
    io::Write::write_all(&mut grant.line, b"\n").unwrap(); // They are mapped.
    until("all are closed", || {
        let is_closed = |seals: SealFlags| seals.contains(SealFlags::FUTURE_WRITE);
        targets.iter().all(|target| is_closed(fcntl_get_seals(&target.file).unwrap()))
    });
    (grant.line, targets)
}

/// The role that tries every attack on every file handed out at the door, and prints the results.
pub fn attack(path: &Path, execution: &str) {
    let read = |id: &str| raw::ask(path, &format!("/v1/executions/{id}/door"), "", None).unwrap();
    let body = r#"{"name":"attacked","ring_bytes":65536}"#;
    let produced = raw::ask(path, "/v1/door/executions", body, None).unwrap();
    let id = produced.document["execution"].as_str().unwrap().to_owned();
    let mut lines = Vec::new();
    let mut targets = Vec::new();
    for (what, grant) in [
        (["a ring to write", "a producer's control page", "a producer's page"], produced),
        (["a relay", "a reader's control page", "a reader's page"], read(execution)),
    ] {
        let (line, handed) = handed(what, grant);
        lines.push(line);
        targets.extend(handed);
    }
    let (line, handed) = handed(["a producer's ring, to read", "its page", "my page"], read(&id));
    lines.push(line);
    targets.extend(handed);
    for (name, attack) in ATTACKS {
        let mut refusals = Vec::new();
        for target in &targets {
            match attack(target) {
                Ok(()) => say(&format!("success {name}: {}", target.what)),
                Err(error) => refusals.push(error.raw_os_error().unwrap_or(0)),
            }
        }
        let count = refusals.len();
        refusals.sort_unstable();
        refusals.dedup();
        let codes = refusals.iter().map(|code| io::Error::from_raw_os_error(*code).to_string());
        let codes = codes.collect::<Vec<_>>().join("; ");
        say(&format!("tried {name}: refused for {count} of {} files ({codes})", targets.len()));
    }
    say("over");
    wait_for_word();
}

/// The role that tries to open the door and the files of others. Their paths are in `about`.
pub fn steal(path: &Path, about: &str) {
    let mut attempts: Vec<(String, io::Result<()>)> = Vec::new();
    let mut attempt = |what: String, result: io::Result<()>| attempts.push((what, result));
    attempt("connect to the door".to_owned(), UnixStream::connect(path).map(drop));
    for word in about.split_whitespace() {
        let open = |flags| rustix::fs::open(word, flags, Mode::empty()).map(drop);
        attempt(format!("read {word}"), open(OFlags::RDONLY).map_err(Into::into));
        attempt(format!("write {word}"), open(OFlags::RDWR).map_err(Into::into));
        let Some(("", rest)) = word.split_once("/proc/") else { continue };
        let (process, descriptor) = rest.split_once("/fd/").unwrap();
        let pid = Pid::from_raw(process.parse().unwrap()).unwrap();
        let taken = pidfd_open(pid, PidfdFlags::empty()).and_then(|pidfd| {
            pidfd_getfd(pidfd, descriptor.parse().unwrap(), PidfdGetfdFlags::empty())
        });
        attempt(format!("take {word}"), taken.map(drop).map_err(Into::into));
    }
    let count = attempts.len();
    let succeeded = attempts.into_iter().filter(|(_, result)| result.is_ok());
    succeeded.for_each(|(what, _)| say(&format!("success {what}")));
    say(&format!("over {count}"));
}

/// Returns true if this process can become another user who can run this program. Prints the reason
/// if not.
fn has_others() -> bool {
    let program = std::env::current_exe().unwrap();
    let is_open = |folder: &Path| {
        let found = std::fs::metadata(folder);
        found.is_ok_and(|found| found.permissions().mode() & 0o005 == 0o005)
    };
    if !rustix::process::geteuid().is_root() {
        println!("not run: only root can become somebody else");
    } else if !program.ancestors().skip(1).all(is_open) {
        println!("not run: another user cannot run this program where it is");
    } else {
        return true;
    }
    false
}

fn held() -> ExecuteOptions {
    ExecuteOptions { hold: Some(Hold::UntilRead { deadline: FAR }), ..ExecuteOptions::default() }
}

/// Runs the attacker as this user, beside an honest reader.
fn attacked(server: &TestServer, uid: Option<u32>) {
    let arguments = json!({"chunks": 300, "delay_ms": 1, "chunk_size": 100});
    let execution = server.execute("slow_data_processor", &arguments, &held());
    std::thread::scope(|scope| {
        let told = scope.spawn(|| Received::over_http(&server.client, execution, Policy::Block));
        play_attacker(server, uid, &execution.to_string());
        let told = told.join().unwrap();
        assert!(told.bytes == slow_bytes(300, 100) && told.outcome() == Some(Outcome::Completed));
    });
}

fn play_attacker(server: &TestServer, uid: Option<u32>, execution: &str) {
    let mut role = Role::play_as(uid, "attacker", &server.path(), execution);
    let mut said = Vec::new();
    loop {
        let line = role.line();
        match line.trim() {
            "over" => break,
            other => said.push(other.to_owned()),
        }
    }
    let tried = said.iter().filter_map(|line| line.split_once("tried ")).map(|(_, rest)| rest);
    let tried: Vec<&str> = tried.collect();
    let who = uid.map_or("the same user".to_owned(), |uid| format!("the same user, {uid}"));
    println!("{who}:\n  {}", tried.join("\n  "));
    let successes: Vec<&String> = said.iter().filter(|line| line.contains("success ")).collect();
    assert!(successes.is_empty(), "{successes:#?}");
    assert_eq!(tried.len(), ATTACKS.len());
    assert!(tried.iter().all(|line| line.contains("refused for 9 of 9 files")));
    role.go_on();
    role.end();
}

#[test]
fn who_has_the_descriptors_can_write_nothing_but_what_it_was_given_to_write() {
    attacked(&TestServer::new(&[]), None);
    if has_others() {
        attacked(&TestServer::of_user(OWNER, &[]), Some(OWNER));
    }
}

/// Returns the paths of the process's descriptors of shared memory.
fn shared_by(process_id: u32) -> Vec<String> {
    let folder = format!("/proc/{process_id}/fd");
    let links = std::fs::read_dir(folder).unwrap().map(|link| link.unwrap().path());
    let is_shared = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("memfd:streamdoor-"))
    };
    links.filter(is_shared).map(|path| path.to_str().unwrap().to_owned()).collect()
}

#[test]
fn another_user_gets_at_nothing_that_is_shared() {
    if !has_others() {
        return;
    }
    let server = TestServer::of_user(OWNER, &["--named-doors"]);
    let arguments = json!({"chunks": 1_000_000, "delay_ms": 20});
    let execution = server.execute("slow_data_processor", &arguments, &held()).to_string();
    let mut attacker = Role::play_as(Some(OWNER), "attacker", &server.path(), &execution);
    while attacker.line().trim() != "over" {}
    let mut paths = shared_by(server.process_id());
    let of_server = paths.len();
    paths.extend(shared_by(attacker.process_id()));
    let of_client = paths.len() - of_server;
    assert!(of_server >= 6 && of_client >= 9, "{paths:?}");
    let named = Path::new(FOLDER).join(name_of(execution.parse().unwrap()));
    let named = named.exists().then(|| named.to_str().unwrap().to_owned());
    paths.extend(named);
    let about = paths.join(" ");
    let mut thief = Role::play_as(Some(OTHER), "thief", &server.path(), &about);
    let mut successes = Vec::new();
    let count = loop {
        let line = thief.line();
        match line.split_once("over ") {
            Some((_, count)) => break count.trim().to_owned(),
            None if line.contains("success ") => successes.push(line),
            None => {}
        }
    };
    thief.end();
    assert!(successes.is_empty(), "{successes:#?}");
    println!(
        "another user: {count} attempts refused, at the door, {of_server} files of the server, \
         {of_client} of a reader and producer, and a name"
    );
    attacker.go_on();
    attacker.end();
}

/// Sends bytes and three of this process's descriptors.
fn send_descriptors(stream: &UnixStream, bytes: &[u8]) {
    let files = [const { "/proc/self/exe" }; 3].map(|path| std::fs::File::open(path).unwrap());
    let borrowed = files.each_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    let pieces = [io::IoSlice::new(bytes)];
    let _ = sendmsg(stream, &pieces, &mut control, SendFlags::NOSIGNAL);
}

#[test]
fn descriptors_that_are_sent_to_a_server_are_not_kept() {
    for reactor in ["auto", "mio"] {
        let server = TestServer::new(&["--reactor", reactor]);
        let folder = format!("/proc/{}/fd", server.process_id());
        let links = || {
            let all = std::fs::read_dir(&folder).unwrap();
            let targets = all.filter_map(|link| std::fs::read_link(link.unwrap().path()).ok());
            targets.map(|to| to.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let own = std::env::current_exe().unwrap().to_string_lossy().into_owned();
        let path = server.path();
        let body = r#"{"name":"sender","ring_bytes":4096}"#;
        let grant = raw::ask(&path, "/v1/door/executions", body, None).unwrap();
        let before = links().len();
        for _ in 0..200 {
            send_descriptors(&grant.line, b"\n"); // On a granted connection,
        }
        let asking = UnixStream::connect(&path).unwrap();
        for byte in b"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\n\r\n" {
            send_descriptors(&asking, &[*byte]); // and with a request.
        }
        let mut bytes = Vec::new();
        raw::receive(&asking, &mut bytes, &mut Vec::new()).unwrap();
        assert!(bytes.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&bytes));
        drop(asking);
        until("none is there", || links().len() <= before && !links().contains(&own));
    }
}
