//! The findings of `streamdoor doctor`, and their output.

use std::os::unix::net::UnixListener;
use std::process::Command;

use serde_json::Value;

use super::test_server::{TestServer, command, said};

fn findings(command: &mut Command) -> (Option<i32>, Value) {
    let output = command.output().unwrap();
    let document = serde_json::from_slice(&output.stdout);
    (output.status.code(), document.unwrap_or_else(|_| panic!("{}", said(&output))))
}

fn levels<'a>(document: &'a Value, subject: &str) -> Vec<&'a str> {
    let all = document["findings"].as_array().unwrap().iter();
    all.filter(|finding| finding["subject"] == subject)
        .map(|finding| finding["level"].as_str().unwrap())
        .collect()
}

#[test]
fn every_finding_says_what_it_means_and_trouble_what_to_do() {
    let (code, document) = findings(&mut command(&["doctor", "--json", "--keep"]));
    assert_eq!(document["ok"], code == Some(0), "{document:#}");
    let subjects = [
        "io_uring",
        "operations",
        "futex_waitv",
        "memfd",
        "noexec_seal",
        "pidfd",
        "psi",
        "cgroup",
        "descriptors",
        "memlock",
        "shm",
        "door",
        "named rings",
    ];
    for subject in subjects {
        assert!(!levels(&document, subject).is_empty(), "{subject}: {document:#}");
    }
    for finding in document["findings"].as_array().unwrap() {
        let text = |name: &str| finding[name].as_str().unwrap_or_default();
        assert!(!text("found").is_empty() && text("means").ends_with('.'), "{finding:#}");
        assert!(finding["level"] != "hindrance" || !text("advice").is_empty(), "{finding:#}");
    }
    let shown = command(&["doctor", "--keep"]).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("io_uring") && text.lines().all(|line| line.chars().count() <= 100));
    assert_eq!(shown.status.code(), code);
}

#[test]
fn what_hinders_is_told_with_an_exit_code() {
    let program = command(&["doctor"]).get_program().to_str().unwrap().to_owned();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 100; exec \"$0\" doctor --json --keep", &program]);
    let (code, document) = findings(&mut limited);
    assert_eq!((code, &document["ok"]), (Some(1), &Value::Bool(false)), "{document:#}");
    assert_eq!(levels(&document, "descriptors"), ["hindrance"], "{document:#}");
}

#[test]
fn sockets_are_told_apart() {
    let server = TestServer::start("sockets", &[]);
    let stale = server.folder.join("stale");
    drop(UnixListener::bind(&stale).unwrap());
    let file = server.file("file", b"");
    let look = |path: &str| {
        let (code, document) =
            findings(&mut command(&["doctor", "--json", "--keep", "--door", path]));
        (code == Some(0), levels(&document, "socket").first().map(|level| (*level).to_owned()))
    };
    assert_eq!(look(&server.door()).1.as_deref(), Some("ok"));
    assert_eq!(look(stale.to_str().unwrap()).1.as_deref(), Some("note"));
    assert_eq!(look(file.to_str().unwrap()), (false, Some("hindrance".to_owned())));
    assert_eq!(look("/nonexistent/socket").1, None);
    assert!(stale.exists(), "the next server removes it");
}
