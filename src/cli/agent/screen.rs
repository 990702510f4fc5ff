//! The view of a run for a person: the text of the model as it comes, and a line for each tool
//! call.
//!
//! Parts go in, and pieces for the two outputs come out. Nothing here writes. Standard output gets
//! only the text of the model; everything else goes to standard error. On a terminal, the lines of
//! running tools are redrawn in place. Elsewhere, lines stay, and a new line is added for each
//! news.
//!
//! The text of models and tools is not trusted: it cannot control the terminal.

use std::collections::VecDeque;
use std::time::Duration;

use streamdoor::agent::{
    Arguments, Body, Data, Final, PartProgress, Partial, RunPart, ToolExecution,
};
use streamdoor::base::Instant;

use crate::cli::printable::{one_line, printable};
use crate::cli::words::{counted, in_units, with_separators};

/// Minimum time between two redraws.
const DRAW_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum time between two lines of a call, where lines cannot be redrawn.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of the arguments on a line.
const ARGUMENTS_CHARS_MAX: usize = 60;
/// Maximum length of an output line that has not ended.
const OUTPUT_LINE_BYTES_MAX: usize = 4_096;
/// Maximum length of the last output line of a tool.
const SAID_CHARS_MAX: usize = 240;

/// The properties of the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// True if standard output is a terminal.
    pub answer_is_terminal: bool,
    /// True if standard error is a terminal, so that lines can be redrawn.
    pub status_is_terminal: bool,
    /// True if standard error shows colours.
    pub has_colours: bool,
    /// Number of characters in a line of standard error.
    pub columns: usize,
    /// True if the whole output of tools is shown, a line at a time.
    pub shows_output: bool,
}

/// Text to be written. Pieces are written in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScreenText {
    /// Text for standard output.
    Answer(String),
    /// Text for standard error.
    Status(String),
}

/// The state of the view.
pub struct Screen {
    style: Style,
    /// The calls that have not ended.
    calls: VecDeque<ScreenCall>,
    /// Number of their lines on the terminal, above the cursor.
    drawn_lines: usize,
    drawn_at: Option<Instant>,
    /// The kind of text on the current line.
    open: OpenText,
    totals: Totals,
}

/// The kind of text on a line without a line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenText {
    Nothing,
    Answer,
    Reasoning,
}

/// The state of a call.
struct ScreenCall {
    id: String,
    name: String,
    arguments: String,
    chunks: u64,
    bytes: u64,
    progress: String,
    /// The last line of its output.
    said: String,
    /// Its output after the last line end, if the whole output is shown.
    unended: String,
    shown_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    calls: u64,
    failed_calls: u64,
}

impl Screen {
    /// Returns an empty view.
    pub fn new(style: Style) -> Screen {
        Screen {
            style,
            calls: VecDeque::new(),
            drawn_lines: 0,
            drawn_at: None,
            open: OpenText::Nothing,
            totals: Totals::default(),
        }
    }

    /// Appends the pieces for a part.
    pub fn take(&mut self, part: &RunPart, now: Instant, out: &mut Vec<ScreenText>) {
        match &part.body {
            Body::Partial(partial) => self.partial(partial, now, out),
            Body::Final(last) => self.last(last, now, out),
        }
    }

    /// Appends a line about missing parts.
    pub fn gap(&mut self, chunks: u64, out: &mut Vec<ScreenText>) {
        self.line(&format!("[missed {}]", counted(chunks, "part")), out);
        self.draw(out);
    }

    /// Appends a line about the run itself.
    pub fn news(&mut self, text: &str, out: &mut Vec<ScreenText>) {
        self.line(&format!("[{}]", one_line(text)), out);
        self.draw(out);
    }

    fn partial(&mut self, partial: &Partial, now: Instant, out: &mut Vec<ScreenText>) {
        match partial {
            Partial::TextDelta { delta, .. } => self.answer(delta, out),
            Partial::ReasoningDelta { delta, .. } => self.reasoning(delta, out),
            Partial::ToolCallStarted { tool_call_id, tool_name } => {
                self.totals.calls += 1;
                self.calls.push_back(ScreenCall {
                    id: tool_call_id.to_string(),
                    name: one_line(tool_name),
                    arguments: String::new(),
                    chunks: 0,
                    bytes: 0,
                    progress: String::new(),
                    said: String::new(),
                    unended: String::new(),
                    shown_at: None,
                });
                self.changed(now, out);
            }
            Partial::ToolCallArgsDelta { tool_call_id, delta, .. } => {
                let Some(call) = self.call(tool_call_id) else { return };
                if call.arguments.len() < 4 * ARGUMENTS_CHARS_MAX {
                    call.arguments += &one_line(delta);
                }
                self.changed(now, out);
            }
            Partial::ToolOutputChunk { tool_call_id, data, .. } => {
                let Some(call) = self.call(tool_call_id) else { return };
                call.chunks += 1;
                call.bytes += data.as_bytes().len() as u64;
                if let Data::Text(text) = data {
                    call.hear(text);
                    if self.style.shows_output {
                        self.output(tool_call_id, text, out);
                    }
                }
                self.going_on(tool_call_id, now, out);
            }
            Partial::ToolProgress { tool_call_id, progress } => {
                let Some(call) = self.call(tool_call_id) else { return };
                call.progress = how_far(progress);
                self.going_on(tool_call_id, now, out);
            }
            Partial::Gap { .. } | Partial::ExecutionStarted { .. } | Partial::StepStarted => {}
        }
    }

    fn last(&mut self, last: &Final, now: Instant, out: &mut Vec<ScreenText>) {
        match last {
            Final::ToolCallArgsCompleted { tool_call_id, arguments, .. } => {
                let text = match arguments {
                    Arguments::Valid(value) => one_line(&value.to_string()),
                    Arguments::Cut(text) | Arguments::Invalid { text, .. } => one_line(text),
                };
                let Some(call) = self.call(tool_call_id) else { return };
                call.arguments = text;
                let line = call.line('*', "");
                match self.style.status_is_terminal {
                    true => self.changed(now, out),
                    false => self.line(&line, out),
                }
            }
            Final::ToolCallCompleted { tool_call_id, execution } => {
                self.call_over(tool_call_id, '+', execution, out);
            }
            Final::ToolCallFailed { tool_call_id, execution }
            | Final::ToolCallCancelled { tool_call_id, execution } => {
                self.totals.failed_calls += 1;
                self.call_over(tool_call_id, '!', execution, out);
            }
            Final::StepCompleted { .. } => self.end_line(out),
            Final::ExecutionCompleted { final_state }
            | Final::ExecutionFailed { final_state, .. }
            | Final::ExecutionCancelled { final_state, .. } => {
                self.erase(out);
                self.end_line(out);
                let (calls, failed) = (self.totals.calls, self.totals.failed_calls);
                let usage = &final_state.usage;
                let steps = counted(final_state.step_count.into(), "step");
                let mut line = format!("{steps}, {}", counted(calls, "call"));
                if failed > 0 {
                    line += &format!(" ({failed} failed)");
                }
                line += &format!(
                    ", {} tokens in, {} out, {}",
                    with_separators(usage.input_tokens),
                    with_separators(usage.output_tokens),
                    seconds(final_state.duration_us)
                );
                self.line(&line, out);
            }
        }
    }

    fn answer(&mut self, text: &str, out: &mut Vec<ScreenText>) {
        self.erase(out);
        if self.open == OpenText::Reasoning {
            self.end_line(out);
        }
        let text = match self.style.answer_is_terminal {
            true => printable(text),
            false => text.to_owned(),
        };
        if !text.is_empty() {
            self.open = if text.ends_with('\n') { OpenText::Nothing } else { OpenText::Answer };
            out.push(ScreenText::Answer(text));
        }
    }

    /// Appends the reasoning of the model, on a terminal only.
    fn reasoning(&mut self, text: &str, out: &mut Vec<ScreenText>) {
        if !self.style.status_is_terminal {
            return;
        }
        self.erase(out);
        if self.open == OpenText::Answer {
            self.end_line(out);
        }
        let text = printable(text);
        if !text.is_empty() {
            self.open = if text.ends_with('\n') { OpenText::Nothing } else { OpenText::Reasoning };
            out.push(ScreenText::Status(self.dim(&text)));
        }
    }

    fn call(&mut self, id: &str) -> Option<&mut ScreenCall> {
        self.calls.iter_mut().find(|call| call.id == id)
    }

    /// Shows that a call has made progress: redraws on a terminal, elsewhere adds a line if the
    /// last one is old enough.
    fn going_on(&mut self, id: &str, now: Instant, out: &mut Vec<ScreenText>) {
        if self.style.status_is_terminal {
            return self.changed(now, out);
        }
        let Some(call) = self.call(id) else { return };
        let began = *call.shown_at.get_or_insert(now);
        if now >= began + LINE_INTERVAL {
            call.shown_at = Some(now);
            let line = call.line('*', &call.so_far());
            self.line(&line, out);
        }
    }

    /// Appends the lines of a tool's output that `text` ends.
    fn output(&mut self, id: &str, text: &str, out: &mut Vec<ScreenText>) {
        let Some(call) = self.call(id) else { return };
        call.unended += text;
        let lines = std::mem::take(&mut call.unended);
        let (ended, unended) = match lines.rfind('\n') {
            // A tool that ends no line must not fill the memory.
            None if lines.len() > OUTPUT_LINE_BYTES_MAX => (lines.as_str(), ""),
            None => ("", lines.as_str()),
            Some(at) => lines.split_at(at + 1),
        };
        call.unended = unended.to_owned();
        let name = call.name.clone();
        for line in ended.lines() {
            self.line(&format!("  {name} | {}", printable(line)), out);
        }
    }

    fn call_over(
        &mut self,
        id: &str,
        mark: char,
        execution: &ToolExecution,
        out: &mut Vec<ScreenText>,
    ) {
        let Some(at) = self.calls.iter().position(|call| call.id == *id) else { return };
        let call = self.calls.remove(at).expect("it was just found");
        if !call.unended.is_empty() {
            self.line(&format!("  {} | {}", call.name, printable(&call.unended)), out);
        }
        let mut words = call.counts();
        words += &format!("in {}", seconds(execution.duration_us));
        let exit = execution.exit.map(|exit| exit.to_string());
        if let Some(exit) = &exit {
            words += &format!(", {exit}");
        }
        match &execution.error {
            // A failed command has no other error than its exit code.
            Some(error) if exit.as_ref() == Some(error) => {}
            Some(error) => words += &format!(": {}", one_line(error)),
            None if mark != '+' => words += &format!(": {}", execution.outcome),
            None => {}
        }
        self.line(&call.line(mark, &words), out);
        self.draw(out);
    }

    /// Appends a line that stays.
    fn line(&mut self, text: &str, out: &mut Vec<ScreenText>) {
        self.erase(out);
        self.end_line(out);
        out.push(ScreenText::Status(format!("{text}\n")));
    }

    /// Ends the current line if it has text on it.
    fn end_line(&mut self, out: &mut Vec<ScreenText>) {
        match std::mem::replace(&mut self.open, OpenText::Nothing) {
            OpenText::Nothing => {}
            OpenText::Answer => out.push(ScreenText::Answer("\n".to_owned())),
            OpenText::Reasoning => out.push(ScreenText::Status("\n".to_owned())),
        }
    }

    fn changed(&mut self, now: Instant, out: &mut Vec<ScreenText>) {
        let is_due = self.drawn_at.is_none_or(|drawn_at| now >= drawn_at + DRAW_INTERVAL);
        if self.style.status_is_terminal && (is_due || self.drawn_lines != self.calls.len()) {
            self.drawn_at = Some(now);
            self.draw(out);
        }
    }

    /// Draws a line for each call that has not ended.
    fn draw(&mut self, out: &mut Vec<ScreenText>) {
        if !self.style.status_is_terminal {
            return;
        }
        self.erase(out);
        if self.calls.is_empty() {
            return;
        }
        self.end_line(out);
        let columns = self.style.columns.saturating_sub(1).max(20);
        let lines = self.calls.iter().map(|call| {
            let line = cut(&call.line('*', &call.so_far()), columns);
            self.dim(&line) + "\n"
        });
        let text: String = lines.collect();
        self.drawn_lines = self.calls.len();
        out.push(ScreenText::Status(text));
    }

    /// Erases the lines of the calls.
    fn erase(&mut self, out: &mut Vec<ScreenText>) {
        let lines = std::mem::take(&mut self.drawn_lines);
        if lines > 0 {
            out.push(ScreenText::Status(format!("\x1b[{lines}A\r\x1b[J")));
        }
    }

    fn dim(&self, text: &str) -> String {
        if self.style.has_colours { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl ScreenCall {
    /// Returns a line such as `* NAME ARGUMENTS: WORDS`.
    fn line(&self, mark: char, words: &str) -> String {
        let arguments = cut(&self.arguments, ARGUMENTS_CHARS_MAX);
        let mut line = format!("{mark} {} {arguments}", self.name);
        if !words.is_empty() {
            line.truncate(line.trim_end().len());
            line += ": ";
            line += words.trim_end();
        }
        line
    }

    /// Returns counts such as `12 chunks, 3.4 KiB, `.
    fn counts(&self) -> String {
        match self.chunks {
            0 => String::new(),
            chunks => format!("{}, {}, ", counted(chunks, "chunk"), in_units(self.bytes as f64)),
        }
    }

    fn so_far(&self) -> String {
        let mut words = self.counts();
        if !self.progress.is_empty() {
            words += &self.progress;
            words += ", ";
        }
        words.truncate(words.trim_end_matches(", ").len());
        if !self.said.is_empty() {
            words += if words.is_empty() { "" } else { " | " };
            words += &self.said;
        }
        words
    }

    /// Stores the last non-empty line of the output.
    fn hear(&mut self, text: &str) {
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        if let Some(last) = last {
            self.said = cut(&one_line(last.trim()), SAID_CHARS_MAX);
        }
    }
}

fn how_far(said: &PartProgress) -> String {
    let mut words = match (said.percentage, said.total) {
        (Some(percentage), _) => format!("{percentage:.0} %"),
        (None, Some(total)) => format!("{} of {total}", said.progress),
        (None, None) => format!("{}", said.progress),
    };
    if let Some(message) = &said.message {
        words += ", ";
        words += &one_line(message);
    }
    words
}

/// Returns the first `chars` characters. A longer text ends with `…`.
fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some(_) => {
            let end = text.char_indices().nth(chars.saturating_sub(1)).map_or(0, |(at, _)| at);
            format!("{}…", &text[..end])
        }
    }
}

fn seconds(duration_us: u64) -> String {
    format!("{:.2} s", duration_us as f64 / 1e6)
}
