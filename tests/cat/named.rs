//! Executions with a name in /dev/shm.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::json;
use streamdoor::client::ExecuteOptions;
use streamdoor::memory::named::{FOLDER, name_of};
use streamdoor::stream::ExecutionState;

use super::test_server::{TestServer, command, eventually, exists, first_line, said};

/// Held by each test, so that they run one at a time. A sweep removes the files that another test
/// still needs.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn has_no_folder() -> bool {
    let is_there = Path::new(FOLDER).is_dir();
    if !is_there {
        println!("not run: there is no {FOLDER}");
    }
    !is_there
}

fn path_of(id: &str) -> PathBuf {
    Path::new(FOLDER).join(name_of(id.parse().unwrap()))
}

#[test]
fn an_execution_is_read_by_name_also_from_a_producer_elsewhere() {
    let _alone = alone();
    if has_no_folder() {
        return;
    }
    let server = TestServer::start("byname", &["--named-doors"]);
    let client = server.client();
    let arguments = json!({"chunks": 20, "delay_ms": 20});
    let created = client.execute("slow_data_processor", &arguments, &ExecuteOptions::default());
    let id = created.unwrap().execution.to_string();
    // The reader may start late: it still receives all that the ring holds.
    let words = ["cat", "--named", &id, "--format", "raw", "--policy", "buffer"];
    let read = command(&words).output().unwrap();
    assert_eq!(read.status.code(), Some(0), "{}", said(&read));
    assert_eq!(read.stdout.len(), 2_000);

    let mut pipe = server.command(&["pipe", "p"]).stdin(Stdio::piped()).spawn().unwrap();
    let id = first_line(&mut pipe);
    let mut reader = command(&["cat", "--named", &id, "--format", "raw"]).spawn().unwrap();
    let mut input = pipe.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"from afar").unwrap();
    let mut bytes = [0; 9];
    reader.stdout.as_mut().unwrap().read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"from afar");
    drop(input);
    assert_eq!(reader.wait().unwrap().code(), Some(0));
    drop(server); // Killed: its files remain, and their readers get no more.
    assert!(exists(&path_of(&id)));
    // The killed server's io_uring may release the files a moment later.
    eventually("they are swept", || {
        let swept = command(&["doctor", "--json"]).output().unwrap();
        let document: serde_json::Value = serde_json::from_slice(&swept.stdout).unwrap();
        let findings = document["findings"].as_array().unwrap();
        let mut rings = findings.iter().filter(|finding| finding["subject"] == "named rings");
        assert!(rings.next().is_some(), "{document:#}");
        !exists(&path_of(&id))
    });
}

#[test]
fn names_are_few_go_with_their_executions_and_are_not_asked_for() {
    let _alone = alone();
    if has_no_folder() {
        return;
    }
    let server =
        TestServer::start("few", &["--named-doors", "--doors-max", "2", "--retention", "5s"]);
    let client = server.client();
    let run = |chunks: u32| {
        let arguments = json!({"chunks": chunks, "delay_ms": 10});
        let created = client.execute("slow_data_processor", &arguments, &ExecuteOptions::default());
        created.unwrap().execution
    };
    let path = |id: streamdoor::base::ExecutionId| path_of(&id.to_string());
    let long = [run(10_000), run(10_000)];
    assert!(long.iter().all(|id| exists(&path(*id))));
    let third = run(1);
    assert!(!exists(&path(third)), "both places are taken");
    eventually("it goes on without", || {
        client.inspect(third).is_ok_and(|status| matches!(status.state, ExecutionState::Ended(_)))
    });
    client.cancel(long[0]).unwrap();
    eventually("it ends", || {
        client.inspect(long[0]).is_ok_and(|status| matches!(status.state, ExecutionState::Ended(_)))
    });
    let fourth = run(1);
    assert!(exists(&path(fourth)) && !exists(&path(long[0])), "the ended one makes room");
    client.cancel(long[1]).unwrap();
    eventually("what is forgotten has no name", || !exists(&path(fourth)));
    eventually("nothing is left", || !exists(&path(long[1])));

    let server = TestServer::start("off", &[]);
    let arguments = json!({"chunks": 1});
    let created =
        server.client().execute("slow_data_processor", &arguments, &ExecuteOptions::default());
    assert!(!exists(&path(created.unwrap().execution)));
}

#[test]
fn who_cuts_a_file_off_harms_nobody_but_its_readers() {
    let _alone = alone();
    if has_no_folder() {
        return;
    }
    let server = TestServer::start("cutoff", &["--named-doors"]);
    let client = server.client();
    let arguments = json!({"chunks": 200, "delay_ms": 25});
    let created = client.execute("slow_data_processor", &arguments, &ExecuteOptions::default());
    let id = created.unwrap().execution;
    let text = id.to_string();
    let mut reader = command(&["cat", "--named", &text, "--format", "raw"]).spawn().unwrap();
    reader.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
    let file = std::fs::File::options().write(true).open(path_of(&text)).unwrap();
    file.set_len(0).unwrap();
    let read = reader.wait_with_output().unwrap();
    assert_eq!(read.status.code(), Some(1), "{}", said(&read));
    assert!(said(&read).contains("truncated"), "{}", said(&read));
    let other = server.output(&["cat", &text, "--policy", "block"]);
    assert_eq!(other.status.code(), Some(0), "{}", said(&other));
    assert_eq!(other.stdout.len(), 20_000);
    assert!(!exists(&path_of(&text)), "a file that is lost is removed");
    assert_eq!(client.metrics().unwrap().sum("named_doors_lost_total"), Some(1.0));
}

#[test]
fn a_server_sweeps_what_a_dead_one_has_left() {
    let _alone = alone();
    if has_no_folder() {
        return;
    }
    let mut server = TestServer::start("left", &["--named-doors"]);
    let arguments = json!({"chunks": 10_000, "delay_ms": 10});
    let created = server.client().execute("slow_data_processor", &arguments, &Default::default());
    let path = path_of(&created.unwrap().execution.to_string());
    assert!(exists(&path));
    server.kill();
    // The killed server's io_uring may release the file a moment later.
    eventually("it is swept", || {
        drop(TestServer::start("next", &["--named-doors"]));
        !exists(&path)
    });
}
