//! What becomes of the chunks of the first subscriber: bytes, events, or what a terminal can show.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use streamdoor::base::Instant;
use streamdoor::engine::End;
use streamdoor::shard::{Delivery, Names, Subscriber};
use streamdoor::wire::events::Event;

use super::progress::Meter;
use super::session::{Canceller, Watcher};
use super::terminal::TerminalText;

/// Written at once while there is more to come.
const BUFFER_BYTES: usize = 64 << 10;

/// How chunks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Their bytes, and nothing else.
    Raw,
    /// Everything that the subscriber is told, an event a line.
    Ndjson,
    /// What a terminal can show of them.
    Terminal,
}

/// The first subscriber: it writes what it gets, and shows how far the tool is.
pub struct Writer {
    tool: String,
    names: Names,
    meter: Meter,
    canceller: Canceller,
    /// Where to, and how; `None`: nowhere.
    output: Option<(BufWriter<File>, View)>,
    scratch: Vec<u8>,
    text: TerminalText,
    /// Nothing is written after the first error.
    error: Option<io::Error>,
}

/// A subscriber of which only the numbers are wanted.
pub struct Counter;

impl Writer {
    /// Writes to `output` what it is given, as `view` has it.
    pub fn new(
        (tool, names): (String, Names),
        meter: Meter,
        canceller: Canceller,
        output: Option<(File, View)>,
    ) -> Writer {
        let buffered = |file| BufWriter::with_capacity(BUFFER_BYTES, file);
        Writer {
            tool,
            names,
            meter,
            canceller,
            output: output.map(|(file, view)| (buffered(file), view)),
            scratch: Vec::new(),
            text: TerminalText::default(),
            error: None,
        }
    }

    /// Runs `write` unless there is nowhere to write to, or was an error. An error stops the tool:
    /// nobody sees what it would still do.
    fn attempt(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        let Some((file, _)) = &mut self.output else { return };
        if self.error.is_none()
            && let Err(error) = write(file)
        {
            self.error = Some(error);
            self.canceller.cancel();
        }
    }

    fn write(&mut self, delivery: &Delivery<'_>) {
        let Some((_, view)) = self.output else { return };
        match (view, delivery) {
            (View::Raw, Delivery::Chunk(chunk)) => self.attempt(|file| file.write_all(chunk.data)),
            (View::Raw, _) => {}
            (View::Ndjson, _) => {
                self.scratch.clear();
                let mut scratch = std::mem::take(&mut self.scratch);
                delivery.event(&self.names).write_line(&mut scratch);
                self.attempt(|file| file.write_all(&scratch));
                self.scratch = scratch;
            }
            (View::Terminal, _) => {
                let mut shown = std::mem::take(&mut self.scratch);
                shown.clear();
                self.text.show(delivery, &mut shown);
                if !shown.is_empty() {
                    self.meter.erase();
                    self.attempt(|file| file.write_all(&shown).and_then(|()| file.flush()));
                    self.meter.hold(self.text.is_within_line());
                }
                self.scratch = shown;
            }
        }
    }
}

impl Watcher for Writer {
    fn attached(&mut self, subscriber: &Subscriber) {
        if let Some((_, View::Ndjson)) = self.output {
            let mut line = Vec::new();
            let (id, terms) = (subscriber.id(), subscriber.terms());
            let write = |event: &Event<'_>| event.write_line(&mut line);
            self.names.write_started(&self.tool, id, &terms, 1, write); // The tool waits for them.
            self.attempt(|file| file.write_all(&line));
        }
    }

    fn take(&mut self, delivery: &Delivery<'_>, now: Instant) {
        self.write(delivery);
        match delivery.event(&self.names) {
            Event::Chunk(chunk) => self.meter.count(&chunk, now),
            Event::Progress(progress) => self.meter.report(&progress, now),
            Event::End(_) => self.meter.finish(now),
            Event::Started(_) | Event::Gap(_) => {}
        }
    }

    fn pause(&mut self) {
        self.attempt(BufWriter::flush);
    }

    fn close(&mut self) -> io::Result<()> {
        self.attempt(BufWriter::flush);
        self.error.take().map_or(Ok(()), Err)
    }

    fn label(&self, end: &End) -> String {
        end.state.to_string()
    }
}

impl Watcher for Counter {
    fn take(&mut self, _delivery: &Delivery<'_>, _now: Instant) {}

    fn label(&self, end: &End) -> String {
        end.state.to_string()
    }
}
