//! Progress of the tool, on standard error. A terminal shows a bar that is redrawn. Elsewhere, on
//! request, a line is printed now and then.
//!
//! Both are drawn only when an event arrives: a silent tool has no progress to show.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use streamdoor::base::Instant;
use streamdoor::wire::events::{ChunkEvent, PartEvent, ProgressEvent};

use super::console;
use super::printable::one_line;
use super::words::in_units;

const BAR_CELLS: usize = 24;
/// The cells of a bar on a terminal with less than [`WIDE_COLUMNS`].
const NARROW_BAR_CELLS: usize = 8;
const WIDE_COLUMNS: usize = 60;
/// The time between two redraws while chunks arrive without reports of progress.
const BAR_INTERVAL: Duration = Duration::from_millis(100);
/// The engine sends reports of progress less often than this, so the last one of a burst is drawn.
const REPORT_INTERVAL: Duration = Duration::from_millis(20);
const LINE_INTERVAL: Duration = Duration::from_secs(1);
const MESSAGE_CHARS_MAX: usize = 30;
/// Moves to the start of the line and clears it.
const ERASE: &str = "\r\x1b[K";
/// A bar on more than one line cannot be erased, so wide characters at its end are cut.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

/// The style in which progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// No progress is shown.
    Off,
    /// A line now and then, and one at the end.
    Lines,
    /// A bar.
    Bar,
}

/// The progress of the tool.
pub struct Meter {
    style: Style,
    shown_at: Option<Instant>,
    began: Option<Instant>,
    /// True while the bar is on the screen.
    is_drawn: bool,
    /// True while other text is on the line of the bar.
    is_held: bool,
    /// True if something has changed since progress was last shown.
    is_stale: bool,
    /// The last report of the tool: in percent, and as `3 of 10`.
    percentage: Option<f64>,
    count: String,
    message: String,
    /// The newest chunk, and the expected number of chunks.
    seq: u64,
    chunks_expected: Option<u64>,
    bytes: u64,
}

impl Meter {
    /// Returns a meter without any progress.
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
            seq: 0,
            chunks_expected: None,
            bytes: 0,
        }
    }

    /// Counts a chunk.
    pub fn count(&mut self, chunk: &ChunkEvent<'_>, now: Instant) {
        self.bytes += chunk.data.len() as u64;
        (self.seq, self.chunks_expected) = (chunk.seq, chunk.total_chunks);
        self.changed(now, BAR_INTERVAL);
    }

    /// Counts a part of an agent's run.
    pub fn count_part(&mut self, part: &PartEvent<'_>, now: Instant) {
        self.bytes += part.json.len() as u64;
        self.seq = part.seq;
        self.changed(now, BAR_INTERVAL);
    }

    /// Takes a report of progress from the tool.
    pub fn report(&mut self, progress: &ProgressEvent<'_>, now: Instant) {
        if self.style == Style::Off {
            return;
        }
        self.percentage = progress.percentage;
        self.count.clear();
        let _ = match progress.total {
            Some(total) => write!(self.count, "{} of {total}", progress.progress),
            None => write!(self.count, "{}", progress.progress),
        };
        self.message = one_line(progress.message.unwrap_or_default());
        self.changed(now, REPORT_INTERVAL);
    }

    fn changed(&mut self, now: Instant, bar_interval: Duration) {
        let interval = match self.style {
            Style::Off => return,
            Style::Bar if self.is_held => return,
            Style::Lines => LINE_INTERVAL,
            Style::Bar => bar_interval,
        };
        self.is_stale = true;
        let began = *self.began.get_or_insert(now);
        // An execution that ends at once needs no bar.
        let since = self.shown_at.map_or(began + BAR_INTERVAL, |shown_at| shown_at + interval);
        if now >= since {
            self.show(now);
        }
    }

    fn show(&mut self, now: Instant) {
        let began = self.began.unwrap_or(now);
        let text = match self.style {
            Style::Off => return,
            Style::Lines => format!("{}\n", self.line()),
            Style::Bar => {
                let bar = self.bar(now.since(began), console::columns(io::stderr()));
                format!("{ERASE}{NO_WRAP}{bar}{WRAP}")
            }
        };
        (self.shown_at, self.is_stale) = (Some(now), false);
        self.is_drawn = self.style == Style::Bar;
        print_status(&text);
    }

    /// Returns the progress in percent, and the count behind it. Reports reach a subscriber only
    /// once it has read all chunks. If chunk numbers are ahead of the reports, they are used
    /// instead.
    fn share(&self) -> Option<(f64, String)> {
        let reported = self.percentage.map(|percentage| (percentage, self.count.clone()));
        let Some(total) = self.chunks_expected.filter(|total| *total > 0) else { return reported };
        let percentage = 100.0 * (self.seq as f64 / total as f64).min(1.0);
        match reported {
            Some((more, _)) if more >= percentage => reported,
            _ => Some((percentage, format!("{} of {total} chunks", self.seq))),
        }
    }

    /// Returns a line such as `progress: 30 % (3 of 10), 300 bytes, message`.
    fn line(&self) -> String {
        let mut text = "progress:".to_owned();
        if let Some((percentage, count)) = self.share() {
            let _ = write!(text, " {percentage:.0} % ({count}),");
        } else if !self.count.is_empty() {
            let _ = write!(text, " {},", self.count);
        }
        let _ = write!(text, " {} bytes", self.bytes);
        if !self.message.is_empty() {
            let _ = write!(text, ", {}", self.message);
        }
        text
    }

    /// Returns a bar such as `[######------]  50 %  100.0 MiB  850.1 MiB/s  message`.
    /// Fields at the end are left out where the terminal is too narrow for them.
    fn bar(&self, elapsed: Duration, columns: usize) -> String {
        let mut text = String::new();
        if let Some((percentage, _)) = self.share() {
            let all = if columns < WIDE_COLUMNS { NARROW_BAR_CELLS } else { BAR_CELLS };
            let cells = (percentage / 100.0 * all as f64) as usize;
            let (done, rest) = ("#".repeat(cells), "-".repeat(all - cells));
            let _ = write!(text, "[{done}{rest}] {percentage:>3.0} %");
        } else if !self.count.is_empty() {
            let _ = write!(text, "[{}]", self.count);
        }
        let rate = (elapsed > BAR_INTERVAL).then(|| self.bytes as f64 / elapsed.as_secs_f64());
        let message: String = self.message.chars().take(MESSAGE_CHARS_MAX).collect();
        let fields = [
            Some(in_units(self.bytes as f64)),
            rate.map(|rate| format!("{}/s", in_units(rate))),
            Some(message).filter(|message| !message.is_empty()),
        ];
        for field in fields.into_iter().flatten() {
            if text.chars().count() + 2 + field.chars().count() >= columns {
                break;
            }
            text.push_str("  ");
            text.push_str(&field);
        }
        text
    }

    /// Stops drawing while other text is on the terminal's line; or starts again.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Erases the bar, to make room for other text.
    pub fn erase(&mut self) {
        if self.is_drawn {
            self.is_drawn = false;
            print_status(ERASE);
        }
    }

    /// Ends the progress: erases the bar, and prints the last line.
    pub fn finish(&mut self, now: Instant) {
        self.erase();
        if self.style == Style::Lines && self.is_stale {
            self.show(now);
        }
    }
}

fn print_status(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes()); // The error has no other place to go.
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(seq: u64, total_chunks: Option<u64>, data: &[u8]) -> ChunkEvent<'_> {
        let (execution, kind, offset) = ("", "output", 0);
        let (key, timestamp_us, mono_ns) = (None, 0, 0);
        ChunkEvent { execution, seq, total_chunks, kind, key, offset, data, timestamp_us, mono_ns }
    }

    fn reported(progress: f64, total: Option<f64>, message: Option<&str>) -> Meter {
        let mut meter = Meter::new(Style::Bar);
        let execution = "";
        let percentage = total.map(|total| 100.0 * progress / total);
        let (token, context) = (None, None);
        let report =
            ProgressEvent { execution, token, progress, total, percentage, message, context };
        meter.report(&report, Instant::ZERO);
        meter.count(&chunk(1, None, &[0; 3 << 20]), Instant::ZERO);
        meter
    }

    #[test]
    fn a_line_says_what_is_known() {
        let known = reported(3.0, Some(10.0), Some("re\x1b[2Jading"));
        assert_eq!(known.line(), "progress: 30 % (3 of 10), 3145728 bytes, re^[[2Jading");
        let unknown = reported(3.0, None, None);
        assert_eq!(unknown.line(), "progress: 3, 3145728 bytes");
        assert_eq!(Meter::new(Style::Lines).line(), "progress: 0 bytes");
    }

    #[test]
    fn what_has_come_counts_where_the_tool_says_less() {
        let mut meter = reported(3.0, Some(10.0), None);
        meter.count(&chunk(2, Some(8), b""), Instant::ZERO);
        assert_eq!(meter.share(), Some((30.0, "3 of 10".to_owned())));
        meter.count(&chunk(4, Some(8), b""), Instant::ZERO);
        assert_eq!(meter.share(), Some((50.0, "4 of 8 chunks".to_owned())));
        meter.count(&chunk(9, Some(8), b""), Instant::ZERO);
        assert_eq!(meter.share(), Some((100.0, "9 of 8 chunks".to_owned())));
    }

    #[test]
    fn a_bar_is_as_long_as_the_work_is_done() {
        let half = reported(5.0, Some(10.0), None).bar(Duration::from_secs(1), 80);
        assert_eq!(half, "[############------------]  50 %  3.0 MiB  3.0 MiB/s");
        let done = reported(10.0, Some(10.0), None).bar(Duration::ZERO, 80);
        assert_eq!(done, "[########################] 100 %  3.0 MiB");
        let narrow = reported(5.0, Some(10.0), Some("reading")).bar(Duration::from_secs(1), 40);
        assert_eq!(narrow, "[####----]  50 %  3.0 MiB  3.0 MiB/s");
        let unknown = reported(7.0, None, Some("searching")).bar(Duration::ZERO, 80);
        assert_eq!(unknown, "[7]  3.0 MiB  searching");
        assert_eq!(Meter::new(Style::Bar).bar(Duration::from_secs(2), 80), "  0 bytes  0 bytes/s");
    }
}
