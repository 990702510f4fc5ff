//! How far the tool is, on standard error: a bar that is drawn over and over where that is a
//! terminal, a line now and then where it is not and somebody asked.
//! Both are drawn when something comes: a tool that is silent has no progress to show.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use streamdoor::base::Instant;
use streamdoor::wire::events::Progress;

const BAR_CELLS: usize = 24;
const BAR_INTERVAL: Duration = Duration::from_millis(100);
const LINE_INTERVAL: Duration = Duration::from_secs(1);
const MESSAGE_CHARS_MAX: usize = 30;
/// Back to the start of the line, and nothing on it.
const ERASE: &str = "\r\x1b[K";

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Not at all.
    Off,
    /// A line now and then, and one at the end.
    Lines,
    /// A bar.
    Bar,
}

/// How far the tool is.
pub struct Meter {
    style: Style,
    shown_at: Option<Instant>,
    began: Option<Instant>,
    /// The bar is on the screen.
    is_drawn: bool,
    /// Something else stands on its line.
    is_held: bool,
    /// There is something that was not shown.
    is_stale: bool,
    percentage: Option<f64>,
    /// `3 of 10`
    count: String,
    message: String,
    bytes: u64,
}

impl Meter {
    /// Nothing known yet.
    pub fn new(style: Style) -> Meter {
        Meter {
            style,
            shown_at: None,
            began: None,
            is_drawn: false,
            is_held: false,
            is_stale: false,
            percentage: None,
            count: String::new(),
            message: String::new(),
            bytes: 0,
        }
    }

    /// A chunk of so many bytes has come.
    pub fn count(&mut self, bytes: usize, now: Instant) {
        self.bytes += bytes as u64;
        self.changed(now);
    }

    /// The tool has said how far it is.
    pub fn report(&mut self, progress: &Progress<'_>, now: Instant) {
        if self.style == Style::Off {
            return;
        }
        self.percentage = progress.percentage();
        self.count.clear();
        let _ = match progress.total {
            Some(total) => write!(self.count, "{} of {total}", progress.progress),
            None => write!(self.count, "{}", progress.progress),
        };
        let printable = |c: &char| !c.is_control();
        self.message = progress.message.unwrap_or_default().chars().filter(printable).collect();
        self.changed(now);
    }

    fn changed(&mut self, now: Instant) {
        let interval = match self.style {
            Style::Off => return,
            Style::Bar if self.is_held => return,
            Style::Lines => LINE_INTERVAL,
            Style::Bar => BAR_INTERVAL,
        };
        self.is_stale = true;
        let began = *self.began.get_or_insert(now);
        if now.since(self.shown_at.unwrap_or(began)) >= interval {
            self.show(now);
        }
    }

    fn show(&mut self, now: Instant) {
        let began = self.began.unwrap_or(now);
        let text = match self.style {
            Style::Off => return,
            Style::Lines => format!("{}\n", self.line()),
            Style::Bar => format!("{ERASE}{}", self.bar(now.since(began))),
        };
        (self.shown_at, self.is_stale) = (Some(now), false);
        self.is_drawn = self.style == Style::Bar;
        tell(&text);
    }

    /// `progress: 30 % (3 of 10), 300 bytes, message`
    fn line(&self) -> String {
        let mut text = "progress:".to_owned();
        if let Some(percentage) = self.percentage {
            let _ = write!(text, " {percentage:.0} % ({}),", self.count);
        } else if !self.count.is_empty() {
            let _ = write!(text, " {},", self.count);
        }
        let _ = write!(text, " {} bytes", self.bytes);
        if !self.message.is_empty() {
            let _ = write!(text, ", {}", self.message);
        }
        text
    }

    /// `[######------]  50 %  100.0 MiB  850.1 MiB/s  message`
    fn bar(&self, elapsed: Duration) -> String {
        let mut text = String::new();
        if let Some(percentage) = self.percentage {
            let cells = (percentage / 100.0 * BAR_CELLS as f64) as usize;
            let (done, rest) = ("#".repeat(cells), "-".repeat(BAR_CELLS - cells));
            let _ = write!(text, "[{done}{rest}] {percentage:>3.0} %");
        } else if !self.count.is_empty() {
            let _ = write!(text, "[{}]", self.count);
        }
        let _ = write!(text, "  {}", in_units(self.bytes as f64));
        if elapsed > BAR_INTERVAL {
            let rate = self.bytes as f64 / elapsed.as_secs_f64();
            let _ = write!(text, "  {}/s", in_units(rate));
        }
        if !self.message.is_empty() {
            text.push_str("  ");
            text.extend(self.message.chars().take(MESSAGE_CHARS_MAX));
        }
        text
    }

    /// Keeps off the terminal, in whose line something else stands; or comes back to it.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Makes room for something else on the terminal.
    pub fn erase(&mut self) {
        if self.is_drawn {
            self.is_drawn = false;
            tell(ERASE);
        }
    }

    /// Nothing more comes: the bar goes, and the last line is told.
    pub fn finish(&mut self, now: Instant) {
        self.erase();
        if self.style == Style::Lines && self.is_stale {
            self.show(now);
        }
    }
}

/// `3.0 MiB`
fn in_units(bytes: f64) -> String {
    let (mut number, mut unit) = (bytes, "bytes");
    for larger in ["KiB", "MiB", "GiB"] {
        if number < 1_024.0 {
            break;
        }
        (number, unit) = (number / 1_024.0, larger);
    }
    if unit == "bytes" { format!("{number:.0} {unit}") } else { format!("{number:.1} {unit}") }
}

fn tell(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes()); // There is nobody left to tell.
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(progress: f64, total: Option<f64>, message: Option<&str>) -> Meter {
        let mut meter = Meter::new(Style::Bar);
        let execution = "";
        let report = Progress { execution, token: None, progress, total, message, context: None };
        meter.report(&report, Instant::ZERO);
        meter.count(3 << 20, Instant::ZERO);
        meter
    }

    #[test]
    fn a_line_says_what_is_known() {
        let known = reported(3.0, Some(10.0), Some("re\x1b[2Jading"));
        assert_eq!(known.line(), "progress: 30 % (3 of 10), 3145728 bytes, re[2Jading");
        let unknown = reported(3.0, None, None);
        assert_eq!(unknown.line(), "progress: 3, 3145728 bytes");
        assert_eq!(Meter::new(Style::Lines).line(), "progress: 0 bytes");
    }

    #[test]
    fn a_bar_is_as_long_as_the_work_is_done() {
        let half = reported(5.0, Some(10.0), None).bar(Duration::from_secs(1));
        assert_eq!(half, "[############------------]  50 %  3.0 MiB  3.0 MiB/s");
        let done = reported(10.0, Some(10.0), None).bar(Duration::ZERO);
        assert_eq!(done, "[########################] 100 %  3.0 MiB");
        let unknown = reported(7.0, None, Some("searching")).bar(Duration::ZERO);
        assert_eq!(unknown, "[7]  3.0 MiB  searching");
        assert_eq!(Meter::new(Style::Bar).bar(Duration::from_secs(2)), "  0 bytes  0 bytes/s");
        assert_eq!([1_023.0, 1_024.0, 3e9].map(in_units), ["1023 bytes", "1.0 KiB", "2.8 GiB"]);
    }
}
