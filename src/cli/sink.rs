//! The output of events: bytes, lines of JSON, or text for a terminal. Progress is shown beside it.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};

use streamdoor::base::Instant;
use streamdoor::stream::{Kind, Kinds};
use streamdoor::wire::events::WireEvent;

use super::printable::printable_json;
use super::progress::Meter;
use super::terminal::TerminalText;

/// Size of the write buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// The format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// The bytes of the chunks, and nothing else.
    Raw,
    /// All events of the subscriber, as one line of JSON each.
    Ndjson,
    /// The text of the chunks, made safe for a terminal.
    Terminal,
}

/// Writes events to the output. After the first error it writes nothing.
pub struct Sink {
    meter: Meter,
    /// The file and the format. `None` if nothing is written.
    output: Option<(BufWriter<File>, View)>,
    /// True if structured content is written with the bytes and the text that it repeats.
    has_structured: bool,
    /// True if the file is a terminal.
    is_terminal: bool,
    scratch: Vec<u8>,
    text: TerminalText,
    error: Option<io::Error>,
}

impl Sink {
    /// Returns a sink that writes to `output` in the given format. `kinds` are the wanted kinds.
    pub fn new(meter: Meter, kinds: Kinds, output: Option<(File, View)>) -> Sink {
        let buffered = |file| BufWriter::with_capacity(BUFFER_BYTES, file);
        Sink {
            meter,
            is_terminal: output.as_ref().is_some_and(|(file, _)| file.is_terminal()),
            output: output.map(|(file, view)| (buffered(file), view)),
            has_structured: !kinds.is_all(),
            scratch: Vec::new(),
            text: TerminalText::default(),
            error: None,
        }
    }

    /// True if writing has failed, so that no more output is possible.
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Takes an event. `more` is true if it is a chunk that the next one continues.
    pub fn take(&mut self, event: &WireEvent<'_>, more: bool, now: Instant) {
        self.write(event, more);
        match event {
            WireEvent::Chunk(chunk) => self.meter.count(chunk, now),
            WireEvent::Part(part) => self.meter.count_part(part, now),
            WireEvent::Progress(progress) => self.meter.report(progress, now),
            WireEvent::End(_) => self.meter.finish(now),
            WireEvent::Started(_) | WireEvent::Gap(_) => {}
        }
    }

    /// Writes the buffered output. Called when no event is ready.
    pub fn flush(&mut self) {
        self.attempt(BufWriter::flush);
    }

    /// Ends the output. Returns the first error, if any.
    pub fn close(&mut self) -> io::Result<()> {
        self.meter.erase();
        self.flush();
        self.error.take().map_or(Ok(()), Err)
    }

    fn attempt(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        let Some((file, _)) = &mut self.output else { return };
        if self.error.is_none() {
            self.error = write(file).err();
        }
    }

    fn write(&mut self, event: &WireEvent<'_>, more: bool) {
        let Some((_, view)) = self.output else { return };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        match (view, event) {
            (View::Raw | View::Terminal, WireEvent::Chunk(chunk))
                if chunk.kind == Kind::Structured.name() && !self.has_structured => {}
            (View::Raw, WireEvent::Chunk(chunk)) => self.attempt(|file| file.write_all(chunk.data)),
            (View::Raw, WireEvent::Part(_)) => {
                event.write_line(&mut scratch);
                self.attempt(|file| file.write_all(&scratch));
            }
            (View::Raw, _) => {}
            (View::Ndjson, _) => {
                event.write_line(&mut scratch);
                if self.is_terminal {
                    scratch = printable_json(&String::from_utf8_lossy(&scratch)).into_bytes();
                }
                self.attempt(|file| file.write_all(&scratch));
            }
            (View::Terminal, _) => {
                self.text.show(event, more, &mut scratch);
                if !scratch.is_empty() {
                    self.meter.erase();
                    self.attempt(|file| file.write_all(&scratch).and_then(|()| file.flush()));
                    self.meter.hold(self.text.is_within_line());
                }
            }
        }
        self.scratch = scratch;
    }
}
