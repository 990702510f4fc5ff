//! The subscribers of `streamdoor run`: the first writes what it receives, the others count.

use std::fs::File;
use std::io;

use streamdoor::base::Instant;
use streamdoor::shard::{Agreed, Delivery, Names, Subscriber};
use streamdoor::stream::{End, Kinds};

use super::progress::Meter;
use super::session::{Canceller, DeliveryHandler};
use super::sink::{Sink, View};

/// The first subscriber: it writes what it receives, and shows the progress of the tool.
pub struct ViewWriter {
    tool: String,
    names: Names,
    canceller: Canceller,
    sink: Sink,
    is_cancelled: bool,
}

/// A subscriber that only counts.
pub struct Counter;

impl ViewWriter {
    /// Returns a subscriber that writes to `output` in the given format.
    pub fn new(
        (tool, names): (String, Names),
        meter: Meter,
        canceller: Canceller,
        output: Option<(File, View)>,
    ) -> ViewWriter {
        ViewWriter {
            tool,
            names,
            canceller,
            sink: Sink::new(meter, Kinds::ALL, output),
            is_cancelled: false,
        }
    }

    /// Cancels the tool after an error, because nobody can see its further output.
    fn stop_on_error(&mut self) {
        if self.sink.has_failed() && !self.is_cancelled {
            self.is_cancelled = true;
            self.canceller.cancel();
        }
    }
}

impl DeliveryHandler for ViewWriter {
    fn attached(&mut self, subscriber: &Subscriber) {
        let (id, terms) = (subscriber.id(), subscriber.terms());
        // The tool waits for its subscribers, so the first chunk is 1.
        let agreed = Agreed { subscriber: id, terms, from_seq: 1, replay: None };
        self.names.write_started(&self.tool, agreed, |event| {
            self.sink.take(event, false, Instant::ZERO);
        });
        self.stop_on_error();
    }

    fn take(&mut self, delivery: &Delivery<'_>, now: Instant) {
        let more = matches!(delivery, Delivery::Chunk(chunk) if chunk.more);
        self.sink.take(&delivery.event(&self.names), more, now);
        self.stop_on_error();
    }

    fn pause(&mut self) {
        self.sink.flush();
        self.stop_on_error();
    }

    fn close(&mut self) -> io::Result<()> {
        self.sink.close()
    }

    fn label(&self, end: &End) -> String {
        end.state.to_string()
    }
}

impl DeliveryHandler for Counter {
    fn take(&mut self, _delivery: &Delivery<'_>, _now: Instant) {}

    fn label(&self, end: &End) -> String {
        end.state.to_string()
    }
}
