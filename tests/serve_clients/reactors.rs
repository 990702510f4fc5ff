//! One list of checks for the three ways in which a server gets its sockets: io_uring, mio, and mio
//! because io_uring is refused.

use crate::checks;
use crate::refused::refuse_io_uring;
use crate::server::{Scratch, Server};

/// Starts a server from this thread and runs all checks. Returns the log if the server does not
/// start.
fn check_all(reactor: &str, report_has: &[&str]) -> Result<(), String> {
    let socket = Scratch::new("socket");
    let unix = format!("unix:{}", socket.path());
    let server = Server::try_start(&["--reactor", reactor, "--listen", &unix])?;
    let found = server.record("shard", |_| true);
    let report = found["report"].as_str().unwrap();
    for part in report_has {
        assert!(report.contains(part), "{part} in {report}");
    }
    checks::run(&server, socket.path());
    server.stop();
    Ok(())
}

#[test]
fn everything_over_io_uring() {
    match check_all("uring", &["reactor: io_uring"]) {
        Err(said) if said.contains("io_uring cannot be used") => println!("not run: {said}"),
        other => other.unwrap(),
    }
}

#[test]
fn everything_over_mio() {
    check_all("mio", &["reactor: mio"]).unwrap();
}

#[test]
fn everything_where_io_uring_is_refused() {
    let thread = std::thread::spawn(|| {
        refuse_io_uring();
        let said = check_all("uring", &[]).unwrap_err();
        if said.contains("kernel.io_uring_disabled") {
            println!("not run: {said}"); // io_uring is disabled already.
            return;
        }
        assert!(
            said.contains("io_uring cannot be used") && said.contains("--reactor=auto"),
            "{said}"
        );
        check_all("auto", &["reactor: mio (epoll), no io_uring: refused with EPERM"]).unwrap();
    });
    thread.join().unwrap();
}
