//! The terminal while the view is on it: a separate screen without echo. The terminal is restored
//! however the program ends.
//!
//! The end of [`Screen`] restores it (a return, an error, an unwinding panic). The panic hook does
//! so as well, so that the message is visible, and so does a stop by Ctrl-Z. Signals do not end the
//! program: they become an [`Input`]. Only SIGKILL leaves the terminal as it is; then `reset`
//! helps.

use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::low_level::pipe;

use super::frame::Ink;

/// Enters the alternate screen, hides the cursor, and turns off line wrapping.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
/// Clears from the cursor to the end of the line, and from the cursor to the end of the screen.
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";
const REVERSE: &str = "\x1b[7m";
const BOLD: &str = "\x1b[1m";
const FAINT: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[m";

/// The state to be restored, or `None`. It is global because the panic hook needs it.
static ENTERED: Mutex<Option<Restore>> = Mutex::new(None);

struct Restore {
    /// The modes of standard input, if it is a terminal.
    modes: Option<Termios>,
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The view has to end: `q`, Ctrl-C, a signal, or the terminal is gone.
    Quit,
    /// The row this far below the chosen one is chosen.
    Scroll(i64),
    /// The order of the table changes.
    Sort,
    /// The chosen row is opened.
    Open,
    /// The opened row is closed.
    Back,
    /// A frame has to be drawn: the size of the terminal has changed, or a sample has arrived.
    Redraw,
    /// The time is up, or the key has no meaning.
    Nothing,
}

/// The terminal. It is restored when this value is dropped.
pub struct Screen {
    quit: UnixStream,
    resized: UnixStream,
    stopped: UnixStream,
    /// Becomes readable when a sample arrives.
    news: UnixStream,
    has_colours: bool,
    has_keys: bool,
}

impl Screen {
    /// Takes the terminal. `news` ends a wait when it becomes readable.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn enter(news: UnixStream) -> io::Result<Screen> {
        let signals = |list: &[i32]| -> io::Result<UnixStream> {
            let (near, far) = UnixStream::pair()?;
            near.set_nonblocking(true)?;
            for signal in list {
                pipe::register(*signal, far.try_clone()?)?;
            }
            Ok(near)
        };
        news.set_nonblocking(true)?;
        let screen = Screen {
            quit: signals(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT])?,
            resized: signals(&[SIGWINCH])?,
            stopped: signals(&[SIGTSTP])?,
            news,
            has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            has_keys: io::stdin().is_terminal(),
        };
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            earlier(info);
        }));
        take()?; // From here on, dropping `screen` restores the terminal.
        Ok(screen)
    }

    /// Returns the current number of columns and lines.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => (80, 24),
        }
    }

    /// Draws a frame over the last one.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub fn draw(&self, lines: &[(String, Ink)]) -> io::Result<()> {
        let mut out = String::from(HOME);
        for (place, (line, ink)) in lines.iter().enumerate() {
            if place > 0 {
                out.push_str("\r\n");
            }
            let style = match ink {
                // Without colours, the chosen row is still told from the others.
                Ink::Chosen => REVERSE,
                _ if !self.has_colours => "",
                Ink::Plain => "",
                Ink::Head => BOLD,
                Ink::Alarm => RED,
                Ink::Dim => FAINT,
            };
            out.extend([style, line.as_str()]);
            out.extend([ERASE_LINE, if style.is_empty() { "" } else { PLAIN }]);
        }
        out.push_str(ERASE_BELOW);
        let mut stdout = io::stdout();
        stdout.write_all(out.as_bytes())?;
        stdout.flush()
    }

    /// Waits for an input, for at most `time`.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn wait(&mut self, time: Duration) -> io::Result<Input> {
        let stdin = io::stdin();
        let none = PollFlags::empty();
        let keys = if self.has_keys { PollFlags::IN } else { none };
        let mut ready = {
            let mut watched = [
                PollFd::new(&self.quit, PollFlags::IN),
                PollFd::new(&self.stopped, PollFlags::IN),
                PollFd::new(&self.resized, PollFlags::IN),
                PollFd::new(&self.news, PollFlags::IN),
                PollFd::new(&stdin, keys),
            ];
            // A closed standard input would always be ready.
            let count = if self.has_keys { 5 } else { 4 };
            let time = Timespec::try_from(time).map_err(io::Error::other)?;
            match poll(&mut watched[..count], Some(&time)) {
                Ok(_) => watched.map(|one| !one.revents().is_empty()),
                Err(rustix::io::Errno::INTR) => [false; 5],
                Err(error) => return Err(error.into()),
            }
        };
        ready[4] &= self.has_keys;
        let [quit, stopped, resized, news, keys] = ready;
        if quit {
            return Ok(Input::Quit);
        }
        if stopped {
            drain(&self.stopped);
            return self.stop();
        }
        if keys {
            return self.key();
        }
        if resized || news {
            drain(&self.resized);
            drain(&self.news);
            return Ok(Input::Redraw);
        }
        Ok(Input::Nothing)
    }

    fn key(&mut self) -> io::Result<Input> {
        let mut bytes = [0; 64];
        let count = match io::stdin().lock().read(&mut bytes) {
            Ok(0) => return Ok(Input::Quit), // The terminal is gone.
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(Input::Nothing),
            Err(_) => return Ok(Input::Quit),
        };
        match of_keys(&bytes[..count]) {
            Key::Stop => self.stop(),
            Key::Input(input) => Ok(input),
        }
    }

    /// Restores the terminal and stops, as for Ctrl-Z. Takes the terminal again when the process
    /// continues.
    fn stop(&mut self) -> io::Result<Input> {
        restore();
        kill_process(getpid(), Signal::STOP)?;
        take()?;
        Ok(Input::Redraw)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

enum Key {
    Stop,
    Input(Input),
}

/// Returns the meaning of a read of keys. If several have a meaning, the first one counts.
fn of_keys(bytes: &[u8]) -> Key {
    const PAGE: i64 = 10;
    if bytes.starts_with(b"\x1b[D") || bytes == b"\x1b" {
        return Key::Input(Input::Back);
    }
    if bytes.starts_with(b"\x1b[C") {
        return Key::Input(Input::Open);
    }
    let sequences: [(&[u8], i64); 6] = [
        (b"\x1b[A", -1),
        (b"\x1b[B", 1),
        (b"\x1b[5~", -PAGE),
        (b"\x1b[6~", PAGE),
        (b"\x1b[H", -i64::from(u32::MAX)),
        (b"\x1b[F", i64::from(u32::MAX)),
    ];
    if let Some((_, rows)) = sequences.iter().find(|(keys, _)| bytes.starts_with(keys)) {
        return Key::Input(Input::Scroll(*rows));
    }
    if bytes.first() == Some(&0x1b) {
        return Key::Input(Input::Nothing); // Some other key with an escape sequence.
    }
    for byte in bytes {
        match byte {
            b'q' | b'Q' | 0x03 | 0x04 => return Key::Input(Input::Quit),
            0x1a => return Key::Stop,
            b'j' => return Key::Input(Input::Scroll(1)),
            b'k' => return Key::Input(Input::Scroll(-1)),
            b's' => return Key::Input(Input::Sort),
            b'\r' | b'\n' | b'l' => return Key::Input(Input::Open),
            0x7f | 0x08 | b'h' => return Key::Input(Input::Back),
            b' ' | 0x0c => return Key::Input(Input::Redraw),
            _ => {}
        }
    }
    Key::Input(Input::Nothing)
}

/// Takes the terminal.
fn take() -> io::Result<()> {
    let mut entered = ENTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let modes = tcgetattr(io::stdin()).ok();
    if let Some(modes) = &modes {
        let mut raw = modes.clone();
        raw.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
    }
    *entered = Some(Restore { modes });
    let mut stdout = io::stdout();
    stdout.write_all(ENTER.as_bytes())?;
    stdout.flush()
}

/// Restores the terminal, if it was taken.
fn restore() {
    let mut entered = ENTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Restore { modes }) = entered.take() else { return };
    let mut stdout = io::stdout();
    let _ = stdout.write_all(LEAVE.as_bytes()); // A terminal that is gone needs no restoring.
    let _ = stdout.flush();
    if let Some(modes) = modes {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &modes);
    }
}

fn drain(stream: &UnixStream) {
    let mut bytes = [0; 64];
    while matches!((&mut &*stream).read(&mut bytes), Ok(1..)) {}
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
