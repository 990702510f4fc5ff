//! The owner word across processes. If a producer is killed or just exits, the kernel marks the
//! word and wakes its waiters. A producer that releases the word is not marked.
//!
//! The child is this test binary again. It runs [`child_entry`] with its page as stdin.
#![cfg(not(any(loom, miri)))]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use streamdoor::memory::{ControlView, Owner, OwnerView, ProducerPage, ProducerPageFile, futex};
use streamdoor::reactor::Clock;

const ROLE: &str = "STREAMDOOR_TEST_OWNER_CHILD";
const LONG: Duration = Duration::from_secs(60);

/// A child that holds the word of a page, and the server's view of it.
struct Held {
    child: Child,
    owner: OwnerView,
    _page: ControlView,
    _stdout: BufReader<ChildStdout>,
}

fn hold(role: &str) -> Held {
    let file = ProducerPageFile::create().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child_entry", "--exact", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::from(file.descriptor().try_clone_to_owned().unwrap()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = stdout.by_ref().lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "held"), "the child has ended early");
    let (page, owner) = file.close().unwrap();
    Held { child, owner, _page: page, _stdout: stdout }
}

/// Sleeps until the word no longer says that its owner lives.
fn wait_for_end(owner: &OwnerView) -> Owner {
    let deadline = Clock::now() + LONG;
    while let Owner::Lives(raw) = owner.owner() {
        futex::wait_any(&[(owner.word(), raw)], deadline);
        assert!(Clock::now() < deadline, "nobody has told of the death");
    }
    owner.owner()
}

#[test]
fn the_kernel_tells_of_a_producer_that_was_killed() {
    let mut delays: Vec<Duration> = (0..20)
        .map(|_| {
            let Held { mut child, owner, .. } = hold("sleep");
            assert!(matches!(owner.owner(), Owner::Lives(_)));
            let watcher = std::thread::spawn(move || {
                let found = wait_for_end(&owner);
                (found, Clock::now())
            });
            std::thread::sleep(Duration::from_millis(2)); // The watcher most likely sleeps by now.
            let killed = Clock::now();
            child.kill().unwrap();
            let (found, heard) = watcher.join().unwrap();
            assert_eq!(found, Owner::Died);
            child.wait().unwrap();
            heard.since(killed)
        })
        .collect();
    delays.sort();
    println!("killed to heard: median {:?}, longest {:?}", delays[10], delays[19]);
}

#[test]
fn the_kernel_tells_of_a_producer_that_exits_without_a_word() {
    let Held { mut child, owner, .. } = hold("exit");
    assert_eq!(wait_for_end(&owner), Owner::Died);
    child.wait().unwrap();
}

#[test]
fn who_lets_go_has_not_died() {
    let Held { mut child, owner, .. } = hold("let go");
    child.wait().unwrap();
    assert_eq!(owner.owner(), Owner::Nobody);
}

/// The child process's entry point. It is no test of its own.
#[test]
fn child_entry() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let page = ProducerPage::open(std::io::stdin().as_fd().try_clone_to_owned().unwrap()).unwrap();
    let word = page.owner().clone();
    // The word is held as in a producer's library: on a thread that does nothing else.
    let holder = std::thread::spawn(move || {
        word.hold(|| {
            let mut stdout = std::io::stdout();
            writeln!(stdout, "\nheld").unwrap(); // The harness may have left an unfinished line.
            stdout.flush().unwrap();
            if role == "sleep" {
                std::thread::sleep(LONG);
            } else if role == "exit" {
                std::process::exit(3);
            }
        })
    });
    holder.join().unwrap().unwrap();
}
