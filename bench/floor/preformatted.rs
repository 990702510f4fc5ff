//! An event that is formatted once. For the next one, only the digits that differ are written.
//!
//! The bytes are those of streamdoor for the same chunk, so that the receiver has the same work.
//! When a number needs another digit (ten times in a run), the whole event is formatted again.

use std::ops::Range;

use crate::common::serve::event::{self, Format};
use crate::common::serve::plan::{STAMP_DIGITS, payload, stamp, write_digits};

/// The chunk events of one execution.
pub struct Preformatted {
    format: Format,
    execution: String,
    payload: Box<[u8]>,
    bytes: Vec<u8>,
    fields: Fields,
}

/// The places of the numbers.
#[derive(Default)]
struct Fields {
    /// The numbers of chunks and bytes after `id:`. NDJSON has none.
    id: Option<[Range<usize>; 2]>,
    seq: Range<usize>,
    offset: Range<usize>,
    stamp: Range<usize>,
    timestamp_us: Range<usize>,
    mono_ns: Range<usize>,
}

impl Preformatted {
    /// Returns the events of execution `index`, with payloads of `size_bytes`.
    pub fn new(format: Format, index: u32, size_bytes: usize) -> Preformatted {
        let (execution, payload) = (event::execution_name(index), payload(size_bytes));
        let (bytes, fields) = (Vec::new(), Fields::default());
        let mut event = Preformatted { format, execution, payload, bytes, fields };
        event.format_again(1, 0);
        event
    }

    /// Returns the event of chunk `seq`, which was due at `planned_ns`.
    #[inline]
    pub fn chunk(&mut self, seq: u64, planned_ns: u64) -> &[u8] {
        let size_bytes = self.payload.len() as u64;
        let (offset, seen_bytes) = ((seq - 1) * size_bytes, seq * size_bytes);
        let timestamp_us = event::timestamp_us(planned_ns);
        let Preformatted { bytes, fields, .. } = self;
        let numbers = [
            (&fields.seq, seq),
            (&fields.offset, offset),
            (&fields.timestamp_us, timestamp_us),
            (&fields.mono_ns, planned_ns),
        ];
        let of_id = fields.id.as_ref().map(|[chunks, bytes]| [(chunks, seq), (bytes, seen_bytes)]);
        let of_id = of_id.as_ref().map_or(&[][..], |numbers| &numbers[..]);
        let all = numbers.iter().chain(of_id);
        if all.clone().any(|(place, number)| place.len() != digit_count(*number)) {
            self.format_again(seq, planned_ns);
            return &self.bytes;
        }
        for (place, number) in all {
            write_digits(&mut bytes[(*place).clone()], *number);
        }
        write_digits(&mut bytes[fields.stamp.clone()], planned_ns);
        &self.bytes
    }

    /// Returns the last event, after `chunks` chunks.
    pub fn end(&self, chunks: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let end = event::end(&self.execution, chunks, self.payload.len());
        let id = event::id(&self.execution, chunks, self.payload.len());
        event::write(&mut out, self.format, &id, &end);
        out
    }

    fn format_again(&mut self, seq: u64, planned_ns: u64) {
        stamp(&mut self.payload, planned_ns);
        self.bytes.clear();
        let chunk = event::chunk(&self.execution, seq, &self.payload, planned_ns);
        let id = event::id(&self.execution, seq, self.payload.len());
        event::write(&mut self.bytes, self.format, &id, &chunk);
        let number = |name: &str| self.digits_behind(name);
        let stamp = number("\"data\":\"");
        let id = (self.format == Format::Sse).then(|| {
            let name = format!("id: {}:", self.execution);
            [number(&name), number(&format!("{name}{seq}:"))]
        });
        self.fields = Fields {
            id,
            seq: number("\"seq\":"),
            offset: number("\"offset\":"),
            stamp: stamp.start..stamp.start + STAMP_DIGITS,
            timestamp_us: number("\"timestamp_us\":"),
            mono_ns: number("\"mono_ns\":"),
        };
    }

    fn digits_behind(&self, name: &str) -> Range<usize> {
        let found = self.bytes.windows(name.len()).position(|window| window == name.as_bytes());
        let start = found.expect("an event of a chunk has it") + name.len();
        let digits = self.bytes[start..].iter().take_while(|byte| byte.is_ascii_digit());
        start..start + digits.count()
    }
}

/// Returns the number of decimal digits.
pub fn digit_count(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_what_formatting_it_anew_gives() {
        for format in [Format::Sse, Format::Ndjson] {
            let mut event = Preformatted::new(format, 3, 30);
            let mut data = payload(30);
            let (mut seq, mut planned_ns) = (1, 95);
            for _ in 0..300 {
                stamp(&mut data, planned_ns);
                let execution = event::execution_name(3);
                let chunk = event::chunk(&execution, seq, &data, planned_ns);
                let mut expected = Vec::new();
                let id = event::id(&execution, seq, 30);
                event::write(&mut expected, format, &id, &chunk);
                assert_eq!(event.chunk(seq, planned_ns), expected, "{format} {seq} {planned_ns}");
                seq += 1 + seq / 40;
                planned_ns += planned_ns / 10;
            }
        }
    }
}
