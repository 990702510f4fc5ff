//! Tests of keys, and of a terminal that is restored after a panic.

use std::process::Command;

use super::*;

#[path = "../../../tests/pty/mod.rs"]
mod pty;

const CHILD: &str = "STREAMDOOR_TEST_OF_SCREEN";

#[test]
fn keys_mean_what_they_say_and_others_nothing() {
    let input = |bytes: &[u8]| match of_keys(bytes) {
        Key::Stop => None,
        Key::Input(input) => Some(input),
    };
    assert_eq!(input(b"q"), Some(Input::Quit));
    assert_eq!(input(b"xq"), Some(Input::Quit));
    assert_eq!(input(b"\x03"), Some(Input::Quit));
    assert_eq!(input(b"\x1a"), None);
    assert_eq!(input(b"\x1b[A"), Some(Input::Scroll(-1)));
    assert_eq!(input(b"\x1b[6~"), Some(Input::Scroll(10)));
    assert_eq!(input(b"\x1b[200~q"), Some(Input::Nothing));
    assert_eq!(input(b"\x1b"), Some(Input::Back));
    assert_eq!(input(b"\r"), Some(Input::Open));
    assert_eq!(input(b"s"), Some(Input::Sort));
    assert_eq!(input(b"z"), Some(Input::Nothing));
}

/// Runs itself again on a terminal, where it panics on its own thread or on another one.
#[test]
fn a_panic_gives_the_terminal_back_before_it_is_told() {
    let name = std::thread::current().name().unwrap().to_owned();
    if let Ok(thread) = std::env::var(CHILD) {
        let (news, _teller) = UnixStream::pair().unwrap();
        let _screen = Screen::enter(news).unwrap();
        match thread.as_str() {
            "own" => panic!("this is told"),
            _ => std::thread::spawn(|| panic!("this is told")).join().unwrap_err(),
        };
        return;
    }
    for thread in ["own", "other"] {
        let terminal = pty::Terminal::open(80, 24);
        let before = terminal.modes();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&name, "--exact", "--nocapture"]).env(CHILD, thread);
        let program = terminal.start(&mut command);
        assert_eq!(program.end().success(), thread == "other");
        assert_eq!(terminal.modes(), before);
        let text = terminal.wait("the message", |text| text.contains("this is told"));
        let (entered, left) = (text.find(ENTER).unwrap(), text.find(LEAVE).unwrap());
        assert!(entered < left && left < text.find("this is told").unwrap(), "{text:?}");
        assert_eq!(text.matches(LEAVE).count(), 1);
    }
}
