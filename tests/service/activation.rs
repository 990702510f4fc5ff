//! Sockets that the server is started with.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::served::{self, Server, ports};

/// Starts a server with this listening socket, as a service manager does.
fn start_with(socket: OwnedFd, more: &[&str]) -> Server {
    // The shell moves the socket to descriptor 3 and keeps its process id.
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args([
        "-c",
        script,
        env!("CARGO_BIN_EXE_streamdoor"),
        "serve",
        "--journal",
        "off",
        "--log",
        "json",
    ]);
    command.args(more).stdin(Stdio::from(socket));
    Server::spawn(command)
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[test]
fn a_server_restarts_without_a_refused_connection() {
    let (listener, address) = listener();
    let start = || start_with(listener.try_clone().unwrap().into(), &["--cpus", "0,1"]);
    let mut server = start();
    assert_eq!(server.address, address, "the inherited socket replaces `listen`");

    let (is_over, answered_count) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // A refused connection panics.
                let (status, answer) = served::ask(&address, "GET", "/v1/version", "");
                assert_eq!(status, 200, "{answer}");
                answered_count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let wait_for_more = || {
            let before = answered_count.load(Ordering::Relaxed);
            while answered_count.load(Ordering::Relaxed) < before + 50 && !client.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for _ in 0..3 {
            wait_for_more();
            server.stop();
            server = start();
        }
        wait_for_more();
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{answered_count:?} requests were answered");
}

#[test]
fn a_socket_file_of_the_manager_stays() {
    let path = std::env::temp_dir().join(format!("streamdoor-inherited-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let mut server = start_with(listener.try_clone().unwrap().into(), &[]);
    assert_eq!(server.address, format!("unix:{}", path.display()));
    server.stop();
    assert!(path.exists(), "the file belongs to its maker");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn systemd_starts_the_server_at_the_first_connection() {
    let address = format!("127.0.0.1:{}", ports::free());
    let mut command = Command::new("systemd-socket-activate");
    command.args([
        "--listen",
        &address,
        env!("CARGO_BIN_EXE_streamdoor"),
        "serve",
        "--journal",
        "off",
    ]);
    let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut manager = match started {
        Ok(manager) => manager,
        Err(error) => return println!("not run: systemd-socket-activate: {error}"),
    };
    while TcpStream::connect(&address).is_err() {
        assert!(manager.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (status, answer) = served::ask(&address, "GET", "/v1/version", "");
    assert!(status == 200 && answer.contains("streamdoor"), "{answer}");
    manager.kill().unwrap();
    manager.wait().unwrap();
}

#[test]
fn an_open_socket_needs_tokens_and_a_closed_one_is_no_socket() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let refused = |script: &str, socket: Stdio| {
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_streamdoor"), "serve", "--journal", "off"]);
        let output = command.stdin(socket).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    let (code, error) = refused(script, Stdio::from(OwnedFd::from(listener)));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("--token-file"), "{error}");
    let (code, error) = refused(script, Stdio::null());
    assert_eq!(code, Some(3), "{error}");
    assert!(error.contains("LISTEN_FDS: fd:3"), "{error}");
}
