//! One frame of the view: lines of text from the samples. No line is longer than the terminal. Text
//! from tools and servers cannot control the terminal.

use std::cmp::Reverse;

use streamdoor::base::ExecutionId;
use streamdoor::client::{Progress, Status, Summary};
use streamdoor::limits::STALL_THRESHOLD;
use streamdoor::memory::Pressure;
use streamdoor::memory::pressure::THRESHOLDS;
use streamdoor::stream::ExecutionState;
use streamdoor::trace::Duty;

use crate::cli::printable::one_line;

use super::sample::{Between, TopSample, has_ended, percentile};

/// Number of duties of stalled turns that are shown. The rest is in `/metrics`.
const STALL_DUTIES_SHOWN: usize = 4;

/// The input of a frame.
pub struct Frame<'a> {
    pub address: &'a str,
    pub before: Option<&'a TopSample>,
    pub now: &'a TopSample,
    /// The error since the last sample, if any.
    pub trouble: Option<&'a str>,
}

/// The available space: columns, and lines if they are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub columns: usize,
    pub lines: Option<usize>,
}

/// The part of the state that keys change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Viewpoint {
    pub sort: Sort,
    /// The row of the table that is chosen.
    pub chosen: usize,
    /// The execution whose subscribers are shown.
    pub opened: Option<ExecutionId>,
    /// True if keys can be pressed, so that the last line tells them.
    pub has_keys: bool,
}

/// The order of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// Running ones first, and the youngest of each state first.
    #[default]
    State,
    /// The most chunks per second first.
    Rate,
    /// The largest lag first.
    Lag,
    /// The most missed chunks first.
    Missed,
    /// The oldest first.
    Age,
}

impl Sort {
    /// Returns the order that follows when the key is pressed.
    pub fn next(self) -> Sort {
        match self {
            Sort::State => Sort::Rate,
            Sort::Rate => Sort::Lag,
            Sort::Lag => Sort::Missed,
            Sort::Missed => Sort::Age,
            Sort::Age => Sort::State,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::State => "state",
            Sort::Rate => "chunks/s",
            Sort::Lag => "lag",
            Sort::Missed => "missed",
            Sort::Age => "age",
        }
    }
}

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    Plain,
    /// The head of the table.
    Head,
    /// The chosen row.
    Chosen,
    /// A line with trouble.
    Alarm,
    /// A line of less importance.
    Dim,
}

/// The lines of a frame, with their styles.
pub struct FrameLines {
    pub lines: Vec<(String, Ink)>,
    /// Number of rows of the table.
    pub row_count: usize,
    /// The execution in the chosen row.
    pub execution: Option<ExecutionId>,
}

impl Frame<'_> {
    /// Returns the lines. The chosen row of the table is always among them.
    pub fn lines(&self, room: Room, from: &Viewpoint) -> FrameLines {
        let mut lines: Vec<(String, Ink)> =
            self.summary().into_iter().map(|line| (line, Ink::Plain)).collect();
        if self.trouble.is_some() {
            lines[0].1 = Ink::Alarm;
        }
        lines.extend(self.distributions().map(|line| (line, Ink::Plain)));
        lines.extend([(self.stalls(), Ink::Plain), (String::new(), Ink::Plain)]);
        let opened = from.opened.map(|execution| self.subscribers(execution));
        let (titles, table, nothing) = match opened {
            Some((title, rows)) => {
                lines.push((title, Ink::Plain));
                (SUBSCRIBER_COLUMNS.to_vec(), rows, "no subscribers")
            }
            None => (COLUMNS.to_vec(), self.table(from.sort), "no executions"),
        };
        let footer_lines = usize::from(from.has_keys);
        let taken = lines.len() + 1 + footer_lines;
        let left = room.lines.map_or(usize::MAX, |lines_max| lines_max.saturating_sub(taken));
        let rows_max = left.max(1);
        let chosen = from.chosen.min(table.len().saturating_sub(1));
        let first = (chosen + 1).saturating_sub(rows_max);
        let shown: Vec<&TableRow> = table.iter().skip(first).take(rows_max).collect();
        let cells = shown.iter().map(|row| &row.cells).collect();
        for (at, line) in columns(&titles, cells, room.columns).into_iter().enumerate() {
            let ink = match at.checked_sub(1) {
                None => Ink::Head,
                Some(row) if from.has_keys && first + row == chosen => Ink::Chosen,
                Some(row) => shown[row].ink,
            };
            lines.push((line, ink));
        }
        if table.is_empty() {
            lines.push((nothing.to_owned(), Ink::Plain));
        }
        lines.truncate(room.lines.map_or(usize::MAX, |max| max.saturating_sub(footer_lines)));
        if from.has_keys && room.lines.is_none_or(|max| max > 0) {
            lines.push((footer(from), Ink::Dim));
        }
        for (line, _) in &mut lines {
            *line = clipped(line, room.columns);
        }
        let execution = table.get(chosen).and_then(|row| row.execution);
        FrameLines { lines, row_count: table.len(), execution }
    }

    /// Returns a title and the rows for the subscribers of an execution.
    fn subscribers(&self, execution: ExecutionId) -> (String, Vec<TableRow>) {
        let status = self.now.status(execution);
        let subscribers = status.map_or(&[][..], |status| &status.subscribers);
        let rows = subscribers.iter().map(|subscriber| {
            let state = match (subscriber.lost, subscriber.holds_back) {
                (true, _) => "lost",
                (_, true) => "holds the tool back",
                _ => "",
            };
            let cells = vec![
                printable(&subscriber.subscriber),
                subscriber.policy.to_string(),
                count(Some(subscriber.lag_chunks as f64)),
                bytes(Some(subscriber.lag_bytes as f64)),
                count(Some(subscriber.missed_chunks as f64)),
                subscriber.next_seq.to_string(),
                age(subscriber.age_ms),
                state.to_owned(),
            ];
            let ink = if state.is_empty() { Ink::Plain } else { Ink::Alarm };
            TableRow { cells, execution: Some(execution), ink }
        });
        let tool = self.now.executions.iter().find(|summary| summary.execution == execution);
        let tool = tool.map_or_else(String::new, |summary| printable(&summary.tool));
        (format!("subscribers of {tool} {execution}"), rows.collect())
    }

    fn summary(&self) -> Vec<String> {
        let (now, between) = (self.now, Between::new(self.before, self.now));
        let total = |name: &str| now.metrics.sum(name);
        let per_s = |name: &str| between.rate(name);
        let mut head = format!("streamdoor top  {}", printable(self.address));
        if let Some(trouble) = self.trouble {
            head = format!("{head}  ** {} **", printable(trouble));
        }
        let running = now.count(|state| state == ExecutionState::Running);
        let queued = now.count(|state| state == ExecutionState::Queued);
        let draining = now.count(|state| state == ExecutionState::Draining);
        let (connections, allowed) = (total("connections"), total("connections_allowed"));
        let mut summary = vec![
            head,
            format!(
                "executions   {running} running, {queued} queued, {draining} draining, {} ended; \
                 {} subscribers, {} of {} connections",
                now.count(has_ended),
                count(total("subscribers")),
                count(connections),
                count(allowed),
            ),
            format!(
                "published    {} chunks/s, {}/s; delivered {} chunks/s, {}/s",
                count(per_s("chunks_published_total")),
                bytes(per_s("published_bytes_total")),
                count(per_s("chunks_delivered_total")),
                bytes(per_s("delivered_bytes_total")),
            ),
            format!(
                "missed       {} chunks/s, {}/s; {} chunks, {} in {} gaps since the start",
                count(per_s("chunks_missed_total")),
                bytes(per_s("missed_bytes_total")),
                count(total("chunks_missed_total")),
                bytes(total("missed_bytes_total")),
                count(total("gaps_delivered_total")),
            ),
            format!(
                "held back    {} times/s; {} failed, {} timed out since the start",
                count(per_s("producers_paused_total")),
                count(total("executions_failed_total")),
                count(total("executions_timed_out_total")),
            ),
            format!(
                "memory       pressure {}; {} rings in use with {}, {} bought, {} allowed",
                self.pressure(),
                count(total("rings_leased")),
                bytes(total("rings_leased_bytes")),
                bytes(total("rings_committed_bytes")),
                bytes(total("rings_allowed_bytes")),
            ),
        ];
        if total("journal_writes_total").is_some_and(|writes| writes > 0.0) {
            summary.push(format!(
                "journal      {} chunks/s, {}/s to disk, {} syncs/s; {} chunks not kept since the \
                 start",
                count(per_s("journal_chunks_kept_total")),
                bytes(per_s("journal_written_bytes_total")),
                count(per_s("journal_syncs_total")),
                count(total("journal_chunks_missed_total")),
            ));
        }
        summary
    }

    /// Returns the worst state of all shards, and the reading that decided it.
    fn pressure(&self) -> String {
        let metrics = &self.now.metrics;
        let level = metrics.max("memory_pressure_level");
        let Some(pressure) = level.and_then(|level| Pressure::of_index(level as u8)) else {
            return "?".to_owned();
        };
        let reading = |name: &str| {
            let (label, percent) =
                metrics.max_labelled(name, "reading").filter(|(_, percent)| *percent > 0.0)?;
            let row = THRESHOLDS.iter().find(|row| row.label == label);
            Some(format!("{} {percent} %", printable(row.map_or(label, |row| row.name))))
        };
        let mut text = pressure.name().to_owned();
        if let Some(reading) = reading("memory_pressure_percent") {
            text += &format!(" ({reading})");
        }
        if let Some(reading) = reading("disks_busy_percent") {
            text += &format!(", disks busy ({reading})");
        }
        text
    }

    /// Returns the latency of deliveries and the lag of subscribers.
    fn distributions(&self) -> [String; 2] {
        let latencies = Between::new(self.before, self.now).latencies();
        let took = |percent| seconds(latencies.percentile(percent));
        let latency = format!(
            "latency      P50 {}, P95 {}, P99 {}; of {} deliveries",
            took(50),
            took(95),
            took(99),
            count(Some(latencies.count())),
        );
        let (lag_chunks, lag_bytes) = self.now.lags();
        let at = |percent| count(percentile(&lag_chunks, percent).map(|lag| lag as f64));
        let lag_bytes_max = bytes(percentile(&lag_bytes, 100).map(|lag| lag as f64));
        let lag = format!(
            "lag          P50 {}, P95 {}, P99 {}, at most {} chunks, {lag_bytes_max}; of {} \
             subscribers",
            at(50),
            at(95),
            at(99),
            at(100),
            lag_chunks.len(),
        );
        [latency, lag]
    }

    /// Returns the turns of the shards that took too long, with their most frequent duties.
    fn stalls(&self) -> String {
        let between = Between::new(self.before, self.now);
        let metrics = &self.now.metrics;
        let of = |duty: &Duty| {
            let stalled = metrics.sum_where("turns_stalled_total", "duty", duty.name());
            Some((duty.name(), stalled.filter(|count| *count > 0.0)?))
        };
        let mut duties: Vec<(&str, f64)> = Duty::ALL.iter().filter_map(of).collect();
        duties.sort_by(|one, other| other.1.total_cmp(&one.1));
        let mut line = format!(
            "stalls       {} turns/s over {}, P99 {}; {} since the start",
            count(between.stall_rate()),
            seconds(Some(STALL_THRESHOLD.as_secs_f64())),
            seconds(between.stalls().percentile(99)),
            count(metrics.sum("stalls_total")),
        );
        for (at, (name, stalled)) in duties.into_iter().take(STALL_DUTIES_SHOWN).enumerate() {
            line += if at == 0 { ": " } else { ", " };
            line += &format!("{name} {}", count(Some(stalled)));
        }
        line
    }

    fn table(&self, sort: Sort) -> Vec<TableRow> {
        let between = Between::new(self.before, self.now);
        let mut summaries: Vec<&Summary> = self.now.executions.iter().collect();
        let status = |summary: &Summary| self.now.status(summary.execution);
        let lag = |summary: &Summary| {
            status(summary)?.subscribers.iter().map(|subscriber| subscriber.lag_chunks).max()
        };
        let missed = |summary: &Summary| {
            let missed = status(summary)?.subscribers.iter().map(|one| one.missed_chunks);
            Some(missed.fold(0, u64::saturating_add))
        };
        let rate = |summary: &Summary| between.rates_of(summary).map_or(0.0, |rates| rates.0);
        match sort {
            Sort::State => {} // The sample has this order.
            Sort::Rate => summaries.sort_by(|one, other| rate(other).total_cmp(&rate(one))),
            Sort::Lag => summaries.sort_by_key(|summary| Reverse(lag(summary))),
            Sort::Missed => summaries.sort_by_key(|summary| Reverse(missed(summary))),
            Sort::Age => summaries.sort_by_key(|summary| Reverse(summary.age_ms)),
        }
        let rows = summaries.into_iter().map(|summary| {
            let of = |progress: &&streamdoor::client::ProgressOf| {
                progress.execution == summary.execution
            };
            let progress = self.now.progress.iter().find(of).and_then(|of| of.progress.as_ref());
            let cells = row(summary, status(summary), progress, between.rates_of(summary));
            let ink = if has_ended(summary.state) { Ink::Dim } else { Ink::Plain };
            TableRow { cells, execution: Some(summary.execution), ink }
        });
        rows.collect()
    }
}

/// One row of a table.
struct TableRow {
    cells: Vec<String>,
    execution: Option<ExecutionId>,
    ink: Ink,
}

/// Returns the last line, which tells the keys.
fn footer(from: &Viewpoint) -> String {
    match from.opened {
        Some(_) => "q quit  ↑↓ scroll  esc back".to_owned(),
        None => format!("q quit  ↑↓ scroll  s sort: {}  enter subscribers", from.sort.name()),
    }
}

/// A column of the table: its title, its alignment, and its rank when space is short.
#[derive(Clone, Copy)]
struct Column {
    title: &'static str,
    is_number: bool,
    /// The column with the highest number goes first. Columns with 0 always stay.
    goes: u8,
}

const fn column(title: &'static str, is_number: bool, goes: u8) -> Column {
    Column { title, is_number, goes }
}

const COLUMNS: [Column; 13] = [
    column("execution", false, 0),
    column("tool", false, 0),
    column("state", false, 0),
    column("chunks/s", true, 0),
    column("bytes/s", true, 1),
    column("chunks", true, 6),
    column("bytes", true, 7),
    column("subs", true, 2),
    column("lag", true, 3),
    column("missed", true, 4),
    column("held", true, 8),
    column("age", true, 9),
    column("progress", false, 5),
];

const SUBSCRIBER_COLUMNS: [Column; 8] = [
    column("subscriber", false, 0),
    column("policy", false, 0),
    column("lag", true, 0),
    column("bytes", true, 3),
    column("missed", true, 0),
    column("next", true, 4),
    column("age", true, 2),
    column("state", false, 1),
];

fn row(
    summary: &Summary,
    status: Option<&Status>,
    progress: Option<&Progress>,
    rates: Option<(f64, f64)>,
) -> Vec<String> {
    let of_all = |number: fn(&streamdoor::client::SubscriberStatus) -> u64| {
        let subscribers = &status?.subscribers;
        Some(subscribers.iter().map(number).fold(0u64, u64::saturating_add) as f64)
    };
    let lag = status.and_then(|status| status.subscribers.iter().map(|s| s.lag_chunks).max());
    let held = status.map(|status| status.held_back_by.len());
    let dash = || "-".to_owned();
    vec![
        summary.execution.to_string(),
        clipped(&printable(&summary.tool), 20),
        summary.state.name().to_owned(),
        count(rates.map(|rates| rates.0)),
        bytes(rates.map(|rates| rates.1)),
        count(Some(summary.chunks as f64)),
        bytes(Some(summary.bytes as f64)),
        summary.subscribers.to_string(),
        lag.map_or_else(dash, |lag| count(Some(lag as f64))),
        of_all(|subscriber| subscriber.missed_chunks).map_or_else(dash, |sum| count(Some(sum))),
        match held {
            None | Some(0) => dash(),
            Some(by) => format!("by {by}"),
        },
        age(summary.age_ms),
        progress.map_or_else(String::new, in_words),
    ]
}

/// Returns the head and the rows of the table, with as many columns as fit.
fn columns(titles: &[Column], rows: Vec<&Vec<String>>, width_max: usize) -> Vec<String> {
    let mut shown: Vec<usize> = (0..titles.len()).collect();
    let width_of = |place: usize| {
        let cells = rows.iter().map(|row| row[place].chars().count());
        cells.max().unwrap_or(0).max(titles[place].title.len())
    };
    // The progress is the last column, and may be cut.
    let needed = |shown: &[usize]| -> usize {
        let widths = shown.iter().map(|place| match titles[*place].title {
            "progress" => "100 %".len(),
            _ => width_of(*place),
        });
        widths.map(|width| width + 2).sum::<usize>().saturating_sub(2)
    };
    while needed(&shown) > width_max {
        let goes = |place: &usize| titles[*place].goes;
        let Some(first) = shown.iter().copied().filter(|place| goes(place) > 0).max_by_key(goes)
        else {
            break;
        };
        shown.retain(|place| *place != first);
    }
    // The first column has ids, whose beginnings are told apart.
    const ID_CHARS_MIN: usize = 9;
    let excess = needed(&shown).saturating_sub(width_max);
    let id_width = width_of(0).saturating_sub(excess).max(ID_CHARS_MIN.min(width_of(0)));
    let line = |cells: &dyn Fn(usize) -> String| {
        let mut line = String::new();
        for place in &shown {
            let width = if *place == 0 { id_width } else { width_of(*place) };
            let text = if *place == 0 { clipped(&cells(0), width) } else { cells(*place) };
            let padding = " ".repeat(width.saturating_sub(text.chars().count()));
            match titles[*place].is_number {
                true => line.extend([padding.as_str(), &text, "  "]),
                false => line.extend([text.as_str(), &padding, "  "]),
            }
        }
        line.trim_end().to_owned()
    };
    let head = line(&|place| titles[place].title.to_owned());
    let rows = rows.iter().map(|row| line(&|place| row[place].clone()));
    std::iter::once(head).chain(rows).collect()
}

/// Returns progress such as `30 % reading`.
fn in_words(progress: &Progress) -> String {
    let mut text = match progress.total.filter(|total| *total > 0.0) {
        Some(total) => {
            format!("{:.0} %", (100.0 * progress.progress / total).clamp(0.0, 100.0))
        }
        None => format!("{}", progress.progress),
    };
    if let Some(message) = &progress.message {
        text.push(' ');
        text.push_str(&printable(message));
    }
    text
}

/// Returns a number such as `12`, `1.5 k` or `3.2 M`, or `-` if it is unknown.
fn count(number: Option<f64>) -> String {
    scaled(number, 1_000.0, &["", " k", " M", " G", " T"])
}

/// Returns a size such as `12 B` or `1.5 KiB`.
fn bytes(number: Option<f64>) -> String {
    scaled(number, 1_024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"])
}

fn scaled(number: Option<f64>, step: f64, units: &[&str]) -> String {
    let Some(mut number) = number.filter(|number| number.is_finite()) else {
        return "-".to_owned();
    };
    let mut place = 0;
    while number >= 10.0 * step && place + 1 < units.len() {
        number /= step;
        place += 1;
    }
    match number.fract() == 0.0 || number >= 100.0 {
        true => format!("{number:.0}{}", units[place]),
        false => format!("{number:.1}{}", units[place]),
    }
}

/// Returns a duration such as `2.5 µs` or `12 ms`, or `-` if it is unknown.
fn seconds(s: Option<f64>) -> String {
    let Some(s) = s.filter(|s| s.is_finite()) else { return "-".to_owned() };
    let (number, unit) = match s {
        ..1e-3 => (s * 1e6, "µs"),
        ..1.0 => (s * 1e3, "ms"),
        _ => (s, "s"),
    };
    if number < 10.0 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

/// Returns an age such as `12.3 s`, `4 m 05 s` or `2 h 10 m`.
fn age(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        ..60 => format!("{:.1} s", ms as f64 / 1_000.0),
        60..3_600 => format!("{} m {:02} s", s / 60, s % 60),
        3_600.. => format!("{} h {:02} m", s / 3_600, s / 60 % 60),
    }
}

/// Returns foreign text that is safe in a column: one line, without characters that have no width.
fn printable(text: &str) -> String {
    one_line(text)
        .chars()
        .map(|c| match c {
            '\u{ad}' | '\u{180e}' | '\u{feff}' | '\u{200b}'..='\u{200d}' => '\u{fffd}',
            '\u{2060}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}' => '\u{fffd}',
            '\u{e0000}'..='\u{e007f}' => '\u{fffd}',
            _ => c,
        })
        .collect()
}

/// Returns the first characters. A text that is cut ends with `…`.
fn clipped(text: &str, chars_max: usize) -> String {
    match text.chars().count() > chars_max {
        true => text.chars().take(chars_max.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
