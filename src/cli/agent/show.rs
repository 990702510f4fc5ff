//! The output of a run: a view for a person, or events for a program.

use std::io::{self, ErrorKind, IsTerminal, Write};

use streamdoor::agent::{Body, Final, RunPart};
use streamdoor::base::Instant;
use streamdoor::wire::events::WireEvent;
use streamdoor::wire::sse::{self, Cursor};

use crate::cli::console::{self, is_dumb};
use crate::cli::printable::printable_json;

use super::screen::{Screen, ScreenText, Style};

/// The format in which a run is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShowFormat {
    /// Text for a person.
    #[default]
    Text,
    /// One event as a line of JSON.
    Ndjson,
    /// Server-sent events.
    Sse,
}

impl std::str::FromStr for ShowFormat {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<ShowFormat, &'static str> {
        match text {
            "text" => Ok(ShowFormat::Text),
            "ndjson" | "json" => Ok(ShowFormat::Ndjson),
            "sse" => Ok(ShowFormat::Sse),
            _ => Err("must be text, ndjson (or json) or sse"),
        }
    }
}

/// Shows events. After the first error it shows nothing.
pub struct Show {
    format: ShowFormat,
    /// True if standard output is a terminal.
    is_terminal: bool,
    screen: Screen,
    /// The position in the stream, for the ids of server-sent events.
    execution: String,
    bytes: u64,
    seq: u64,
    scratch: Vec<u8>,
    pieces: Vec<ScreenText>,
    error: Option<io::Error>,
    /// The reason of the failure, if the last part contained one.
    failure: Option<String>,
}

impl Show {
    /// Returns an output on the standard streams.
    pub fn new(format: ShowFormat, shows_output: bool) -> Show {
        Show {
            format,
            is_terminal: io::stdout().is_terminal(),
            screen: Screen::new(Style { shows_output, ..style() }),
            execution: String::new(),
            bytes: 0,
            seq: 0,
            scratch: Vec::new(),
            pieces: Vec::new(),
            error: None,
            failure: None,
        }
    }

    /// True if writing has failed, so that no more output is possible.
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Returns the reason why the run failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Ends the output. Returns the first write error, unless it is only that the reader has gone
    /// away.
    pub fn close(self) -> io::Result<()> {
        match self.error {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            _ => Ok(()),
        }
    }

    /// Shows an event.
    pub fn take(&mut self, event: &WireEvent<'_>, now: Instant) {
        if let WireEvent::Part(part) = event
            && let Ok(part) = RunPart::parse(part.json)
        {
            if let Body::Final(Final::ExecutionFailed { error, .. }) = &part.body {
                self.failure = Some(format!("{}: {}", error.code, error.message));
            }
            if self.format == ShowFormat::Text {
                self.screen.take(&part, now, &mut self.pieces);
            }
        }
        if let (ShowFormat::Text, WireEvent::Gap(gap)) = (self.format, event) {
            self.screen.gap(gap.chunk_count, &mut self.pieces);
        }
        if let (ShowFormat::Text, WireEvent::Progress(progress)) = (self.format, event)
            && let Some(message) = &progress.message
        {
            self.screen.news(message, &mut self.pieces);
        }
        match self.format {
            ShowFormat::Text => self.write_pieces(),
            ShowFormat::Ndjson => {
                event.write_line(&mut self.scratch);
                self.write_scratch();
            }
            ShowFormat::Sse => {
                self.spell(event);
                self.write_scratch();
            }
        }
    }

    /// Writes a server-sent event as the server does, with the same ids.
    fn spell(&mut self, event: &WireEvent<'_>) {
        match event {
            WireEvent::Started(started) => self.execution = started.execution.to_owned(),
            WireEvent::Part(part) => {
                (self.seq, self.bytes) = (part.seq, self.bytes + part.json.len() as u64);
            }
            WireEvent::Gap(gap) => {
                (self.seq, self.bytes) = (gap.to_seq, self.bytes + gap.byte_count)
            }
            WireEvent::End(_) | WireEvent::Chunk(_) | WireEvent::Progress(_) => {}
        }
        let (execution, seq, bytes) = (&self.execution, self.seq, self.bytes);
        let has_ended = matches!(event, WireEvent::End(_));
        let cursor = Cursor { execution, seq, bytes, chunks: None, has_ended };
        sse::write_cursors(&mut self.scratch, &[cursor]);
        sse::write_event(&mut self.scratch, event);
        self.scratch.extend_from_slice(sse::END);
    }

    fn write_scratch(&mut self) {
        let mut out = io::stdout().lock();
        if self.is_terminal {
            let text = String::from_utf8_lossy(&self.scratch);
            self.scratch = printable_json(&text).into_bytes();
        }
        let written = out.write_all(&self.scratch).and_then(|()| out.flush());
        self.scratch.clear();
        self.note(written);
    }

    fn write_pieces(&mut self) {
        for piece in std::mem::take(&mut self.pieces) {
            let written = match &piece {
                ScreenText::Answer(text) => {
                    let mut out = io::stdout().lock();
                    out.write_all(text.as_bytes()).and_then(|()| out.flush())
                }
                ScreenText::Status(text) => {
                    let _ = io::stderr().write_all(text.as_bytes()); // The error is ignored.
                    Ok(())
                }
            };
            self.note(written);
        }
    }

    fn note(&mut self, written: io::Result<()>) {
        if self.error.is_none() {
            self.error = written.err();
        }
    }
}

fn style() -> Style {
    let status_is_terminal = io::stderr().is_terminal();
    let is_dumb = is_dumb();
    let no_colours = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Style {
        shows_output: false,
        answer_is_terminal: io::stdout().is_terminal(),
        status_is_terminal: status_is_terminal && !is_dumb,
        has_colours: status_is_terminal && !is_dumb && !no_colours,
        columns: console::columns(io::stderr()),
    }
}
