//! A disk that is really busy. Rings keep their size, and the log, `doctor`, `top` and `/metrics`
//! name the disk. The test prints that it was not run where the kernel reports no pressure, the
//! disk cannot be made busy enough, or memory is short.
#![cfg(feature = "cli")]

mod served;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use serde_json::{Value, json};
use served::Server;
use streamdoor::limits;

/// Threads that write. Each waits for the disk nearly always.
const WRITERS: usize = 8;
/// A large write waits longer for the disk than it needs the processor.
const BLOCK_BYTES: usize = 2 << 20;
const FILE_BLOCKS: u64 = 16;
/// The alignment that direct writes need on all common disks.
const ALIGNMENT: usize = 4_096;
/// The kernel's average over 10 s needs several times as long to rise.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

/// Writes past the page cache until `is_over`. Each write waits for the disk itself.
fn write(path: &Path, is_over: &AtomicBool) {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    // A file system without direct writes has none that wait.
    let Ok(file) = open(path, flags, Mode::RUSR | Mode::WUSR) else { return };
    let (file, bytes) = (File::from(file), vec![1; BLOCK_BYTES + ALIGNMENT]);
    let begin = bytes.as_ptr().align_offset(ALIGNMENT);
    let block = &bytes[begin..begin + BLOCK_BYTES];
    for at in 0.. {
        let offset = at % FILE_BLOCKS * BLOCK_BYTES as u64;
        if is_over.load(Ordering::Relaxed) || file.write_all_at(block, offset).is_err() {
            return;
        }
    }
}

/// Returns `avg10` of the line `some` of a pressure file.
fn pressure(name: &str) -> Option<f32> {
    let text = std::fs::read_to_string(format!("/proc/pressure/{name}")).ok()?;
    let rest = text.split_once("some avg10=")?.1;
    rest.split(' ').next()?.parse().ok()
}

fn streamdoor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_streamdoor")).args(arguments).output().unwrap()
}

/// Waits until the disk counts as busy. Returns why that cannot be.
fn wait_for_busy_disk() -> Result<(), String> {
    // Some percent more, because the average goes up and down.
    let wanted = limits::PRESSURE_IO_SOME_PERCENT[0] + 5.0;
    let mut percent = 0.0;
    for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
        percent = pressure("io").ok_or("the kernel reports no pressure of disks")?;
        if percent >= wanted {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    Err(format!("the disk is too fast: processes wait in {percent} % of the time"))
}

/// Opens an execution with chunks that fit only in a ring of 1 MiB, and reads them.
fn assert_large_rings(server: &Server, file: &Path) {
    let arguments = json!({"file_path": file, "chunk_size": CHUNK_BYTES});
    let body = json!({"tool": "process_file", "arguments": arguments,
                      "hold": {"until_read_ms": 30_000}});
    let events = server.execute(&body);
    assert!(server.metric("streamdoor_rings_leased_bytes") >= 1 << 20);
    let text = server.ask("GET", &format!("{events}?format=ndjson"), "");
    let end = text.lines().find(|line| line.contains("\"event\":\"end\"")).unwrap();
    assert!(end.contains("\"state\":\"completed\"") && !text.contains("\"gap\""), "{end}");
}

/// Larger than what a ring of 256 KiB takes, which is the largest ring under elevated pressure.
const CHUNK_BYTES: usize = 190_000;

fn assert_that_the_disk_is_named(server: &Server, file: &Path) {
    let line = server.wait_for("disks_busy");
    assert_eq!((&line["level"], &line["pressure"]), (&json!("warn"), &json!("normal")), "{line}");
    assert!(line["reading"].as_str().unwrap().starts_with("io "), "{line}");
    assert_eq!(server.metric("streamdoor_memory_pressure_level"), 0);
    assert!(server.metric("streamdoor_disks_busy_percent") > 0);
    assert_large_rings(server, file);

    let findings = streamdoor(&["doctor", "--json", "--keep"]);
    let document: Value = serde_json::from_slice(&findings.stdout).unwrap();
    let mut findings = document["findings"].as_array().unwrap().iter();
    let psi = findings.find(|finding| finding["subject"] == "psi").unwrap();
    let found = psi["found"].as_str().unwrap();
    assert!(found.contains("normal (") && found.contains("disks are busy (io "), "{psi}");
    assert!(psi["means"].as_str().unwrap().contains("up to 1024 KiB"), "{psi}");

    let url = format!("http://{}", server.address());
    let top = streamdoor(&["top", &url, "--once"]);
    let text = String::from_utf8(top.stdout).unwrap();
    assert!(text.contains("pressure normal, disks busy (io "), "{text}");
}

#[test]
fn a_busy_disk_shrinks_no_ring_and_is_named() {
    // A folder of the build: the temporary folder may be in memory.
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("busy-disk");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("large.txt");
    let line = [&[b'x'; 99][..], b"\n"].concat();
    File::create(&file).unwrap().write_all(&line.repeat(20_000)).unwrap();
    let server = Server::start(&["--files-root", folder.to_str().unwrap()]);
    let is_over = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (path, is_over) = (folder.join(format!("blocks-{writer}")), &is_over);
            scope.spawn(move || write(&path, is_over));
        }
        let outcome = wait_for_busy_disk().and_then(|()| {
            match server.metric("streamdoor_memory_pressure_level") {
                0 => Ok(()),
                level => Err(format!("memory is short, too: level {level}")),
            }
        });
        let asserted = outcome.is_ok().then(|| {
            let asserted = || assert_that_the_disk_is_named(&server, &file);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(asserted))
        });
        is_over.store(true, Ordering::Relaxed); // The writers end, whatever was found.
        asserted.transpose().map(|_| outcome)
    });
    let _ = std::fs::remove_dir_all(&folder); // The next run makes it again.
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(why)) => println!("not run: {why}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
