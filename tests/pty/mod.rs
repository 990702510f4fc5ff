//! A pseudo terminal. A program has one end, and a test has the other.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

/// Time limit of a wait. A test that waits longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

/// A pseudo terminal: both ends, and the bytes that the program has written.
pub struct Terminal {
    near: File,
    far: File,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Opens a terminal of this size.
    pub fn open(columns: u16, lines: u16) -> Terminal {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        let path = ptsname(&near, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let far = File::from(open(path.as_c_str(), flags, Mode::empty()).unwrap());
        let near = File::from(near);
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, sink) = (near.try_clone().unwrap(), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                sink.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        let terminal = Terminal { near, far, written };
        terminal.resize(columns, lines);
        terminal
    }

    pub fn resize(&self, columns: u16, lines: u16) {
        let size = Winsize { ws_col: columns, ws_row: lines, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.far, size).unwrap();
    }

    /// Starts a program on this terminal. Its `TERM` is `xterm`, unless the command has another.
    pub fn start(&self, command: &mut Command) -> Program<'_> {
        if !command.get_envs().any(|(name, _)| name == "TERM") {
            command.env("TERM", "xterm");
        }
        let end = || Stdio::from(self.far.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        Program { terminal: self, child }
    }

    pub fn press(&self, keys: &[u8]) {
        (&self.near).write_all(keys).unwrap();
    }

    /// The terminal's attributes as text.
    pub fn modes(&self) -> String {
        format!("{:?}", tcgetattr(&self.far).unwrap())
    }

    /// The whole output of the program, since the last [`Terminal::forget`].
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// The whole output of programs that have ended, with their last bytes.
    pub fn whole_text(&self) -> String {
        const MARK: &str = "\x05";
        (&self.far).write_all(MARK.as_bytes()).unwrap();
        self.wait("the last byte", |text| text.ends_with(MARK)).replace(MARK, "")
    }

    /// The end of the output, long enough for the message of a failed test.
    fn end_of_text(&self) -> String {
        let text = self.text();
        let skipped = text.chars().count().saturating_sub(3_000);
        text.chars().skip(skipped).collect()
    }

    /// Discards the output until now.
    pub fn forget(&self) {
        self.written.lock().unwrap().clear();
    }

    /// Waits until the output satisfies `is_there`, and returns it.
    pub fn wait(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
            let text = self.text();
            if is_there(&text) {
                return text;
            }
            std::thread::sleep(LOOK);
        }
        panic!("{what}: {:?}", self.end_of_text());
    }
}

/// A program on a terminal. It is killed when this value is dropped.
pub struct Program<'a> {
    terminal: &'a Terminal,
    child: Child,
}

impl Program<'_> {
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// The letter of the process state in /proc: T if it is stopped.
    pub fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next().unwrap()
    }

    pub fn wait_for_state(&self, wanted: char) {
        for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
            if self.state() == wanted {
                return;
            }
            std::thread::sleep(LOOK);
        }
        panic!("it is in state {}, not {wanted}", self.state());
    }

    pub fn end(mut self) -> ExitStatus {
        for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(LOOK);
        }
        panic!("it does not end: {:?}", self.terminal.end_of_text());
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill(); // It may have ended by itself.
        let _ = self.child.wait();
    }
}
