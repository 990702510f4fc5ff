//! One call that a worker answers: the number of its next part, and the bytes that are held here.
//!
//! This is a state machine without a clock and without a ring. It publishes through a closure that
//! returns how many bytes had room. A part without room is not taken, and stays with the connection
//! that sent it: that is the backpressure for a worker. Held bytes are the rest of one part that
//! was begun, or parts that are being gathered.
//!
//! Invariants ([`OpenCall::audit`]):
//! - K1: parts are taken in order and once. A part that was not taken has changed nothing.
//! - K2: no bytes follow the last part, and the end is reported only after all bytes are published.
//! - K3: held bytes are at most one part, or as many as may be gathered.

use serde_json::Value;

use crate::endpoint::ProducerAt;
use crate::limits;
use crate::server::workers::kept::LastPart;
use crate::stream::Kind;
use crate::tool::{Gather, RemoteCall};

/// An open call. See the module's text.
#[derive(Debug)]
pub(in crate::server) struct OpenCall {
    pub arguments: Value,
    gather: Option<Gather>,
    /// The session of the worker that has it.
    pub session: Option<Box<str>>,
    /// The producer of the last part that had one, and the number of its life.
    producer: Option<(Box<str>, u64)>,
    /// The number of the next part.
    next_seq: u64,
    /// Bytes of the next part that an earlier process has published.
    skip_bytes: u64,
    /// The last part that the journal knows, if the call goes on after a restart.
    pub last_part: LastPart,
    held: Held,
    /// True if the held bytes wait for nothing but room.
    is_due: bool,
    /// The result that the last part has reported.
    end: Option<Result<(), Box<str>>>,
    /// The deadline of gathered parts.
    pub deadline: Option<crate::server::workers::Deadline>,
}

/// Bytes of a result that were taken and are not published.
#[derive(Debug)]
struct Held {
    kind: Kind,
    bytes: Vec<u8>,
    /// The bytes before this offset are published.
    from: usize,
}

/// The result of offering a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Taken {
    /// It was taken.
    Now,
    /// It had been taken before.
    Before,
    /// There is no room for it. Nothing has changed.
    NotYet,
    /// Parts before it are missing.
    Hole {
        /// The number of the next part.
        next_seq: u64,
    },
    /// The last part was taken already, or the execution has ended.
    Over,
    /// A newer life of the same producer has delivered a part.
    Stale {
        /// The number of that life.
        epoch: u64,
    },
}

/// Publishes a prefix of the bytes and returns its length, or [`Gone`].
pub(in crate::server) type Publish<'a> = dyn FnMut(Kind, &[u8]) -> Result<usize, Gone> + 'a;

/// The execution has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct Gone;

impl OpenCall {
    pub fn new(call: RemoteCall) -> OpenCall {
        OpenCall {
            arguments: call.arguments,
            gather: call.gather,
            session: None,
            producer: None,
            next_seq: 1,
            skip_bytes: 0,
            last_part: LastPart::default(),
            held: Held { kind: Kind::Output, bytes: Vec::new(), from: 0 },
            is_due: false,
            end: None,
            deadline: None,
        }
    }

    /// Takes up a call of an earlier process at its next part, of which some bytes are published.
    pub fn going_on(
        call: RemoteCall,
        session: Option<Box<str>>,
        (next_seq, skip_bytes): (u64, u64),
        last_part: LastPart,
    ) -> OpenCall {
        OpenCall { session, next_seq, skip_bytes, last_part, ..OpenCall::new(call) }
    }

    /// Bytes of the next part that an earlier process has published.
    pub fn skip_bytes(&self) -> u64 {
        self.skip_bytes
    }

    /// True if bytes of an earlier part are not published.
    pub fn holds_bytes(&self) -> bool {
        !self.held.bytes.is_empty()
    }

    /// Returns the number of the next part.
    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Judges part `seq` (`None`: the next one) by its number alone. Returns `None` if the content
    /// decides. `is_over` is true if the execution has ended.
    pub fn judge(&self, seq: Option<u64>, is_over: bool) -> Option<Taken> {
        let seq = seq.unwrap_or(self.next_seq);
        if seq < self.next_seq {
            return Some(Taken::Before);
        }
        if is_over || self.end.is_some() {
            return Some(Taken::Over);
        }
        (seq > self.next_seq).then_some(Taken::Hole { next_seq: self.next_seq })
    }

    /// Returns the life of a producer that is newer than this one.
    pub fn newer_life(&self, at: &ProducerAt) -> Option<u64> {
        let (id, epoch) = self.producer.as_ref()?;
        (*id == at.id && at.epoch < *epoch).then_some(*epoch)
    }

    /// Notes the producer of a part that was taken.
    pub fn note_producer(&mut self, at: &ProducerAt) {
        self.producer = Some((at.id.clone(), at.epoch));
    }

    /// Takes the next part, with this content and end.
    pub fn take(
        &mut self,
        content: Option<&(Kind, Vec<u8>)>,
        end: Option<&Result<(), Box<str>>>,
        publish: &mut Publish<'_>,
    ) -> Result<Taken, Gone> {
        assert!(self.end.is_none()); // K2
        if let Some((kind, bytes)) = content
            && let Some(bytes @ [_, ..]) = bytes.get(self.skip_bytes as usize..)
            && !self.take_bytes(*kind, bytes, publish)?
        {
            return Ok(Taken::NotYet);
        }
        self.next_seq += 1;
        self.skip_bytes = 0;
        if let Some(end) = end {
            self.end = Some(end.clone());
            self.publish_held(publish)?;
        }
        Ok(Taken::Now)
    }

    fn take_bytes(
        &mut self,
        kind: Kind,
        bytes: &[u8],
        publish: &mut Publish<'_>,
    ) -> Result<bool, Gone> {
        let Some(gather) = self.gather else {
            return Ok(self.publish_held(publish)? && self.begin(kind, bytes, publish)?);
        };
        let line; // Gathered values have to be separated.
        let bytes = match kind {
            Kind::Json => {
                line = [bytes, b"\n"].concat();
                &line[..]
            }
            _ => bytes,
        };
        let bytes_max = gather.bytes_max as usize;
        let has_company = !self.is_due && self.held.kind == kind;
        let fits = has_company && self.held.bytes.len() + bytes.len() <= bytes_max;
        let is_in_the_way = !self.held.bytes.is_empty() && !fits;
        if is_in_the_way && !self.publish_held(publish)? {
            return Ok(false);
        }
        if bytes.len() >= bytes_max {
            return self.begin(kind, bytes, publish);
        }
        self.held.kind = kind;
        self.held.bytes.extend_from_slice(bytes);
        if self.held.bytes.len() == bytes_max {
            self.publish_held(publish)?; // If there is no room now, they stay held.
        }
        Ok(true)
    }

    /// Publishes a part by itself. If some bytes have room, the rest is held.
    fn begin(&mut self, kind: Kind, bytes: &[u8], publish: &mut Publish<'_>) -> Result<bool, Gone> {
        assert!(self.held.bytes.is_empty());
        let count = publish(kind, bytes)?;
        if count == 0 {
            return Ok(false);
        }
        if count < bytes.len() {
            self.held = Held { kind, bytes: bytes[count..].to_vec(), from: 0 };
            self.is_due = true;
        }
        Ok(true)
    }

    /// Publishes held bytes, as far as there is room. Returns true if all of them were published.
    pub fn publish_held(&mut self, publish: &mut Publish<'_>) -> Result<bool, Gone> {
        let Held { kind, bytes, from } = &mut self.held;
        if !bytes.is_empty() {
            *from += publish(*kind, &bytes[*from..])?;
            self.is_due = *from < bytes.len();
            if !self.is_due {
                (*bytes, *from) = (Vec::new(), 0);
            }
        }
        Ok(!self.is_due)
    }

    /// Continues as far as there is room now, if bytes wait for room.
    pub fn go_on(&mut self, publish: &mut Publish<'_>) -> Result<(), Gone> {
        if self.is_due {
            self.publish_held(publish)?;
        }
        Ok(())
    }

    /// Returns how long gathered parts may wait from now on, if no deadline is set yet.
    pub fn gathers_for(&self) -> Option<std::time::Duration> {
        let waits = !self.held.bytes.is_empty() && !self.is_due && self.deadline.is_none();
        self.gather.filter(|_| waits).map(|gather| gather.delay_max)
    }

    /// True if it gathers parts.
    pub fn is_gathering(&self) -> bool {
        !self.held.bytes.is_empty() && !self.is_due
    }

    /// Returns the result of the call, once all bytes are published (K2).
    pub fn result(&self) -> Option<&Result<(), Box<str>>> {
        self.end.as_ref().filter(|_| self.held.bytes.is_empty())
    }

    /// Frees what is not needed after the end of the execution. The number of the next part stays.
    pub fn let_go(&mut self) {
        self.arguments = Value::Null;
        self.held.bytes = Vec::new();
        self.is_due = false;
    }

    /// Checks its invariants. For tests.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn audit(&self) {
        let Held { bytes, from, .. } = &self.held;
        assert!(*from < bytes.len() || (*from == 0 && bytes.is_empty()));
        assert!(self.is_due || *from == 0);
        assert!(bytes.len() as u64 <= limits::PART_BYTES_MAX + 1); // K3
        let is_bounded = |gather: &Gather| self.is_due || bytes.len() <= gather.bytes_max as usize;
        assert!(self.gather.as_ref().is_none_or(is_bounded));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::Random;

    /// A ring that takes this many bytes, in chunks of at most ten bytes.
    struct Ring {
        chunks: Vec<(Kind, Vec<u8>)>,
        room: usize,
    }

    impl Ring {
        fn new(room: usize) -> Ring {
            Ring { chunks: Vec::new(), room }
        }

        fn publish(&mut self, kind: Kind, bytes: &[u8]) -> Result<usize, Gone> {
            let mut taken = 0;
            while taken < bytes.len() {
                let piece = &bytes[taken..bytes.len().min(taken + 10)];
                if piece.len() > self.room {
                    break;
                }
                self.room -= piece.len();
                self.chunks.push((kind, piece.to_vec()));
                taken += piece.len();
            }
            Ok(taken)
        }

        fn text(&self) -> String {
            let bytes: Vec<u8> = self.chunks.iter().flat_map(|(_, bytes)| bytes).copied().collect();
            String::from_utf8(bytes).unwrap()
        }
    }

    fn call(gather: Option<Gather>) -> OpenCall {
        OpenCall::new(RemoteCall { arguments: Value::Null, gather })
    }

    fn gathering(bytes_max: u32) -> OpenCall {
        call(Some(Gather { delay_max: Duration::from_millis(5), bytes_max }))
    }

    fn give(call: &mut OpenCall, ring: &mut Ring, text: &str, end: bool) -> Taken {
        let content = (Kind::Output, text.as_bytes().to_vec());
        let end = end.then_some(Ok(()));
        let mut publish = |kind, bytes: &[u8]| ring.publish(kind, bytes);
        let taken = call.take(Some(&content), end.as_ref(), &mut publish).unwrap();
        call.audit();
        taken
    }

    #[test]
    fn parts_are_taken_in_order_and_once() {
        let (mut call, mut ring) = (call(None), Ring::new(100));
        assert_eq!(call.judge(Some(2), false), Some(Taken::Hole { next_seq: 1 }));
        assert_eq!(call.judge(Some(1), false), None);
        assert_eq!(give(&mut call, &mut ring, "a", false), Taken::Now);
        assert_eq!(call.judge(Some(1), false), Some(Taken::Before));
        assert_eq!(call.judge(None, false), None);
        assert_eq!(give(&mut call, &mut ring, "b", true), Taken::Now);
        assert_eq!(call.result(), Some(&Ok(())));
        assert_eq!(call.judge(Some(2), true), Some(Taken::Before));
        assert_eq!(call.judge(Some(3), false), Some(Taken::Over));
        assert_eq!(call.judge(None, false), Some(Taken::Over));
        assert_eq!(ring.text(), "ab");
    }

    #[test]
    fn a_part_without_room_leaves_no_trace_and_one_that_was_begun_is_finished() {
        let (mut call, mut ring) = (call(None), Ring::new(5));
        assert_eq!(give(&mut call, &mut ring, "123456", false), Taken::NotYet);
        assert_eq!((call.next_seq(), ring.chunks.len()), (1, 0));
        ring.room = 15;
        let long = "0123456789abcdefghijABCDEFGHIJ";
        assert_eq!(give(&mut call, &mut ring, long, true), Taken::Now);
        assert_eq!((ring.text().as_str(), call.result()), ("0123456789", None));
        ring.room = 100;
        call.go_on(&mut |kind, bytes| ring.publish(kind, bytes)).unwrap();
        assert_eq!((ring.text().as_str(), call.result()), (long, Some(&Ok(()))));
    }

    #[test]
    fn small_parts_are_gathered_and_wait_no_longer_than_they_may() {
        let (mut call, mut ring) = (gathering(8), Ring::new(100));
        for text in ["ab", "cd"] {
            assert_eq!(give(&mut call, &mut ring, text, false), Taken::Now);
        }
        assert!(call.is_gathering() && ring.chunks.is_empty());
        assert_eq!(call.gathers_for(), Some(Duration::from_millis(5)));
        // The gathered bytes reach the limit.
        assert_eq!(give(&mut call, &mut ring, "efgh", false), Taken::Now);
        assert_eq!(ring.chunks, [(Kind::Output, b"abcdefgh".to_vec())]);
        assert_eq!(give(&mut call, &mut ring, "x", false), Taken::Now);
        assert_eq!(give(&mut call, &mut ring, "too much", false), Taken::Now);
        assert_eq!(ring.text(), "abcdefghxtoo much");
        assert_eq!(give(&mut call, &mut ring, "last", true), Taken::Now);
        assert_eq!((ring.text().as_str(), ring.chunks.len()), ("abcdefghxtoo muchlast", 4));
        assert_eq!(call.result(), Some(&Ok(())));
    }

    #[test]
    fn gathered_values_are_lines_and_not_mixed_with_text() {
        let (mut call, mut ring) = (gathering(9), Ring::new(100));
        let mut publish = |kind, bytes: &[u8]| ring.publish(kind, bytes);
        for value in ["[1]", "[2]"] {
            let content = (Kind::Json, value.as_bytes().to_vec());
            assert_eq!(call.take(Some(&content), None, &mut publish), Ok(Taken::Now));
        }
        assert_eq!(give(&mut call, &mut ring, "text", true), Taken::Now);
        let chunks = [(Kind::Json, b"[1]\n[2]\n".to_vec()), (Kind::Output, b"text".to_vec())];
        assert_eq!(ring.chunks, chunks);
    }

    #[test]
    fn whatever_the_room_nothing_is_lost_or_told_twice() {
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let mut call = match random.chance(1, 2) {
                true => call(None),
                false => gathering(random.between(1, 30) as u32),
            };
            let (mut ring, mut expected) = (Ring::new(0), String::new());
            let part_count = random.between(1, 20);
            let mut next = 1;
            while call.result().is_none() {
                ring.room = (ring.room + random.below(20) as usize).min(60);
                let mut publish = |kind, bytes: &[u8]| ring.publish(kind, bytes);
                match random.below(3) {
                    0 => call.go_on(&mut publish).unwrap(),
                    1 if call.is_gathering() => _ = call.publish_held(&mut publish).unwrap(),
                    _ if next <= part_count => {
                        let length = (seed + next * 7) as usize % 25;
                        let text = format!("{next:x}").repeat(length);
                        let is_last = next == part_count;
                        if give(&mut call, &mut ring, &text, is_last) == Taken::Now {
                            expected += &text;
                            next += 1;
                        }
                    }
                    _ => {}
                }
                call.audit();
            }
            assert_eq!(ring.text(), expected, "seed {seed}");
            assert_eq!(call.next_seq(), part_count + 1);
        }
    }
}
