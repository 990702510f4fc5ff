//! Numbers of events, for formats whose clients go on behind one.

use super::FrontItem;

/// Number of bits of an event's number that count within a part.
pub(super) const EVENT_BITS: u32 = 12;

/// The numbers of the events of one run. Each encodes the part that the event came from, and a
/// count within that part. Equal logs have equal numbers, wherever a stream begins.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The last event that the client has. Events up to it are not written.
    pub since: Option<u64>,
    /// The number of the next event.
    pub next: u64,
}

impl Numbers {
    /// Sets the item from which the next events come.
    pub fn begin(&mut self, item: FrontItem<'_>) {
        let seq = match item {
            FrontItem::Part(part) => part.seq,
            FrontItem::Chunk(chunk) => chunk.seq,
            _ => return, // Numbered after the last part's events.
        };
        self.next = self.next.max(seq << EVENT_BITS);
    }

    /// Draws the number of the next event. `None` if the client has the event.
    pub fn draw(&mut self) -> Option<u64> {
        let number = self.next;
        self.next += 1;
        self.since.is_none_or(|since| number > since).then_some(number)
    }
}
