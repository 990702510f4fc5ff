//! The position of a connection, as the `id:` of its events. It is `EXECUTION:SEQ:BYTES`, or
//! `EXECUTION:SEQ:BYTES:CHUNKS` for a subscriber that filters by kind. After the end of the
//! execution, `:end` follows. Several are separated by commas.
//!
//! Only `:end` says that the client has received the end. `SEQ` cannot say it: after a power cut an
//! execution may end with fewer chunks than a client has received.
//!
//! A client keeps the last `id:` only and sends it back as `Last-Event-ID`. Therefore each id names
//! all executions of the connection, with their full ids. If it is sent to another stream by
//! mistake, it is an error there and not a wrong position. With the counts in it, a gap at the
//! front is counted exactly even if nothing is known of the chunks there any more. `EXECUTION:SEQ`
//! is accepted, too, and `SEQ` alone for a stream of one execution.
//!
//! The numbers come from outside. This module only parses them; the caller has to check them.

use std::fmt;

use smallvec::SmallVec;

use crate::base::ExecutionId;
use crate::limits;
use crate::wire::json;

/// The position in one execution: its last chunk that was delivered or reported; 0 before the
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor<'a> {
    /// The execution id, as it is printed.
    pub execution: &'a str,
    /// The number of the chunk.
    pub seq: u64,
    /// Payload bytes of all wanted kinds through that chunk, delivered or reported as missing.
    pub bytes: u64,
    /// Number of these chunks, if not all kinds are wanted. Otherwise it equals `seq`.
    pub chunks: Option<u64>,
    /// True if the end of the execution was delivered.
    pub has_ended: bool,
}

/// The position that a client claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The last chunk that was delivered or reported as missing; 0 before the first.
    pub seq: u64,
    /// Totals through that chunk, if the client sent them.
    pub seen: Option<SeenTotals>,
    /// True if the end of the execution was delivered.
    pub has_ended: bool,
}

/// Totals of the chunks of the wanted kinds that were delivered or reported as missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenTotals {
    /// Number of chunks.
    pub chunks: u64,
    /// Number of their payload bytes.
    pub bytes: u64,
}

/// The cursors that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursors {
    /// A number alone, for the only execution.
    Unnamed(u64),
    /// Cursors with their executions, none of them twice.
    Named(SmallVec<[(ExecutionId, Reached); 1]>),
}

/// The reason why a text is not a list of cursors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorError {
    /// A part is not `EXECUTION:SEQ`, with or without totals and `:end`. Its numbers have no sign
    /// and no leading zeros.
    Malformed,
    /// A number exceeds 64 bits.
    BadNumber,
    /// An execution is named twice.
    Repeated,
    /// There are more than [`limits::STREAM_CURSORS_MAX`].
    TooMany,
    /// The cursor of an execution is missing.
    Missing,
    /// A cursor names an execution that the stream does not follow.
    Foreign,
}

/// The last part of a cursor after the end of its execution.
const END_MARK: &str = ":end";

/// Appends the `id:` line of an event. It may be any line of its frame.
///
/// # Panics
/// If there is no cursor, or more than [`limits::STREAM_CURSORS_MAX`].
#[inline]
pub fn write_cursors(out: &mut Vec<u8>, cursors: &[Cursor<'_>]) {
    assert!((1..=limits::STREAM_CURSORS_MAX).contains(&cursors.len()));
    out.extend_from_slice(b"id: ");
    for (at, cursor) in cursors.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(cursor.execution.as_bytes());
        out.push(b':');
        json::write_u64(out, cursor.seq);
        out.push(b':');
        json::write_u64(out, cursor.bytes);
        if let Some(chunks) = cursor.chunks {
            out.push(b':');
            json::write_u64(out, chunks);
        }
        if cursor.has_ended {
            out.extend_from_slice(END_MARK.as_bytes());
        }
    }
    out.push(b'\n');
}

/// Reads the value of a `Last-Event-ID` header.
///
/// # Errors
/// [`CursorError`] if it is not a list of cursors.
pub fn parse_cursors(text: &str) -> Result<Cursors, CursorError> {
    if !text.contains(':') {
        return parse_number(text).map(Cursors::Unnamed);
    }
    let mut cursors = SmallVec::new();
    for part in text.split(',') {
        if cursors.len() == limits::STREAM_CURSORS_MAX {
            return Err(CursorError::TooMany);
        }
        let (execution, reached) = part.split_once(':').ok_or(CursorError::Malformed)?;
        let execution: ExecutionId = execution.parse().map_err(|_| CursorError::Malformed)?;
        let reached = parse_reached(reached)?;
        if cursors.iter().any(|(other, _)| *other == execution) {
            return Err(CursorError::Repeated);
        }
        cursors.push((execution, reached));
    }
    Ok(Cursors::Named(cursors))
}

/// Parses `SEQ`, `SEQ:BYTES` or `SEQ:BYTES:CHUNKS`, each with or without `:end`.
fn parse_reached(text: &str) -> Result<Reached, CursorError> {
    let before_end = text.strip_suffix(END_MARK);
    let (text, has_ended) = (before_end.unwrap_or(text), before_end.is_some());
    let mut fields = text.split(':');
    let mut next = || fields.next().map(parse_number).transpose();
    let seq = next()?.ok_or(CursorError::Malformed)?;
    let (bytes, chunks) = (next()?, next()?);
    if fields.next().is_some() {
        return Err(CursorError::Malformed);
    }
    let seen = bytes.map(|bytes| SeenTotals { chunks: chunks.unwrap_or(seq), bytes });
    Ok(Reached { seq, seen, has_ended })
}

impl Reached {
    /// The cursor of this execution for a `Last-Event-ID` header.
    pub fn encode(&self, execution: ExecutionId) -> String {
        let seq = self.seq;
        let end = if self.has_ended { END_MARK } else { "" };
        match self.seen {
            None => format!("{execution}:{seq}{end}"),
            Some(SeenTotals { chunks, bytes }) if chunks == seq => {
                format!("{execution}:{seq}:{bytes}{end}")
            }
            Some(SeenTotals { chunks, bytes }) => {
                format!("{execution}:{seq}:{bytes}:{chunks}{end}")
            }
        }
    }
}

/// Parses digits in the form that we write: no sign, no leading zeros.
fn parse_number(text: &str) -> Result<u64, CursorError> {
    let is_ours = text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_ours || text.is_empty() || (text.len() > 1 && text.starts_with('0')) {
        return Err(CursorError::Malformed);
    }
    text.parse().map_err(|_| CursorError::BadNumber)
}

impl Cursors {
    /// Returns the position of each of `executions`, in their order. A stream that follows exactly
    /// these continues there.
    ///
    /// # Errors
    /// [`CursorError::Missing`] and [`CursorError::Foreign`] if the cursors are of another stream.
    pub fn of<'a>(
        &'a self,
        executions: &'a [ExecutionId],
    ) -> Result<impl Iterator<Item = Reached> + 'a, CursorError> {
        let find = |id: &ExecutionId| match self {
            Cursors::Unnamed(seq) => {
                let reached = Reached { seq: *seq, seen: None, has_ended: false };
                (executions.len() == 1).then_some(reached)
            }
            Cursors::Named(named) => {
                named.iter().find(|(other, _)| other == id).map(|(_, reached)| *reached)
            }
        };
        if executions.iter().any(|id| find(id).is_none()) {
            return Err(CursorError::Missing);
        }
        match self {
            Cursors::Named(named) if named.iter().any(|(id, _)| !executions.contains(id)) => {
                Err(CursorError::Foreign)
            }
            _ => Ok(executions.iter().filter_map(find)),
        }
    }
}

impl fmt::Display for CursorError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            CursorError::Malformed => {
                "a cursor must be EXECUTION:SEQ:BYTES or EXECUTION:SEQ:BYTES:CHUNKS, with or \
                 without `:end`, as in the `id:` of an event, with commas between several"
            }
            CursorError::BadNumber => "a number of a cursor has more than 64 bits",
            CursorError::Repeated => "a cursor names an execution twice",
            CursorError::TooMany => {
                return write!(
                    out,
                    "the list has more than {} cursors",
                    limits::STREAM_CURSORS_MAX
                );
            }
            CursorError::Missing => "the cursor of an execution is missing",
            CursorError::Foreign => "a cursor names an execution that this stream does not follow",
        };
        out.write_str(text)
    }
}

impl std::error::Error for CursorError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Handle, Random};

    fn id(index: u32) -> ExecutionId {
        ExecutionId { shard: 0, slot: Handle { index, generation: 7 }, nonce: u64::from(index) }
    }

    #[test]
    fn cursors_survive_being_written_and_parsed() {
        let mut random = Random::new(1);
        let mut number = || random.next_u64() >> random.below(64);
        for count in 1..=limits::STREAM_CURSORS_MAX as u32 {
            let texts: Vec<String> = (0..count).map(|index| id(index).to_string()).collect();
            let cursors: Vec<Cursor<'_>> = texts
                .iter()
                .map(|execution| {
                    let (seq, bytes, chunks) = (number(), number(), number());
                    let has_ended = bytes.is_multiple_of(2);
                    let chunks = chunks.is_multiple_of(2).then_some(chunks);
                    Cursor { execution, seq, bytes, chunks, has_ended }
                })
                .collect();
            let mut out = Vec::new();
            write_cursors(&mut out, &cursors);
            let line = String::from_utf8(out).unwrap();
            let text = line.strip_prefix("id: ").unwrap().strip_suffix('\n').unwrap();
            let parsed = parse_cursors(text).unwrap();
            let mut expected: Vec<Reached> = cursors
                .iter()
                .map(|&Cursor { seq, bytes, chunks, has_ended, .. }| Reached {
                    seq,
                    has_ended,
                    seen: Some(SeenTotals { chunks: chunks.unwrap_or(seq), bytes }),
                })
                .collect();
            let mut ids: Vec<ExecutionId> = (0..count).map(id).collect();
            assert_eq!(parsed.of(&ids).unwrap().collect::<Vec<_>>(), expected);
            // The same cursors in another order are the same positions.
            ids.reverse();
            expected.reverse();
            assert_eq!(parsed.of(&ids).unwrap().collect::<Vec<_>>(), expected);
            ids.push(id(count));
            assert_eq!(parsed.of(&ids).err(), Some(CursorError::Missing));
            ids.truncate(count as usize - 1);
            assert_eq!(parsed.of(&ids).err(), Some(CursorError::Foreign));
        }
    }

    #[test]
    fn what_was_reached_is_said_as_it_was_heard() {
        let seen = |chunks, bytes| Some(SeenTotals { chunks, bytes });
        let table = [
            (0, None, ":0"),
            (0, seen(0, 0), ":0:0"),
            (41, None, ":41"),
            (41, seen(41, 900), ":41:900"),
            (41, seen(7, 900), ":41:900:7"),
            (41, seen(0, 0), ":41:0:0"),
        ];
        for (seq, seen, behind) in table {
            for (has_ended, end) in [(false, ""), (true, ":end")] {
                let reached = Reached { seq, seen, has_ended };
                let text = reached.encode(id(1));
                assert_eq!(text, format!("{}{behind}{end}", id(1)));
                let parsed = parse_cursors(&text).unwrap();
                assert_eq!(parsed.of(&[id(1)]).unwrap().collect::<Vec<_>>(), [reached]);
            }
        }
    }

    #[test]
    fn the_longest_cursors_fit_into_a_header() {
        let execution = id((1 << 24) - 1).to_string();
        let most = u64::MAX;
        let (seq, bytes, chunks) = (most, most, Some(most));
        let cursor = Cursor { execution: &execution, seq, bytes, chunks, has_ended: true };
        let mut out = Vec::new();
        write_cursors(&mut out, &[cursor; limits::STREAM_CURSORS_MAX]);
        assert!(out.len() <= limits::STREAM_CURSORS_MAX * limits::STREAM_CURSOR_BYTES_MAX);
    }

    #[test]
    fn what_was_seen_need_not_be_said() {
        let cursors = parse_cursors("41").unwrap();
        let reached = Reached { seq: 41, seen: None, has_ended: false };
        assert_eq!(cursors.of(&[id(1)]).unwrap().collect::<Vec<_>>(), [reached]);
        assert_eq!(cursors.of(&[id(1), id(2)]).err(), Some(CursorError::Missing));
        let cursors = parse_cursors(&format!("{}:41", id(1))).unwrap();
        assert_eq!(cursors.of(&[id(1)]).unwrap().collect::<Vec<_>>(), [reached]);
        let cursors = parse_cursors(&format!("{}:41:7", id(1))).unwrap();
        let seen = Some(SeenTotals { chunks: 41, bytes: 7 });
        let reached = Reached { seq: 41, seen, has_ended: false };
        assert_eq!(cursors.of(&[id(1)]).unwrap().collect::<Vec<_>>(), [reached]);
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        let a = id(1);
        let many: Vec<String> = (0..33).map(|index| format!("{}:1", id(index))).collect();
        let table = [
            (String::new(), CursorError::Malformed),
            ("-1".into(), CursorError::Malformed),
            ("+1".into(), CursorError::Malformed),
            ("01".into(), CursorError::Malformed),
            (" 1".into(), CursorError::Malformed),
            ("1,2".into(), CursorError::Malformed),
            ("18446744073709551616".into(), CursorError::BadNumber),
            ("١".into(), CursorError::Malformed),
            (":".into(), CursorError::Malformed),
            ("x:1".into(), CursorError::Malformed),
            (format!("{a}"), CursorError::Malformed),
            (format!("{a}:"), CursorError::Malformed),
            (format!("{a}:1:"), CursorError::Malformed),
            (format!("{a}::1"), CursorError::Malformed),
            (format!("{a}:1:-2"), CursorError::Malformed),
            (format!("{a}:1:02"), CursorError::Malformed),
            (format!("{a}:1:2:"), CursorError::Malformed),
            (format!("{a}:1:18446744073709551616"), CursorError::BadNumber),
            (format!("{a}:1:2:18446744073709551616"), CursorError::BadNumber),
            (format!("{a}:1:2:3:4"), CursorError::Malformed),
            (format!("{a}:1:2:3:"), CursorError::Malformed),
            ("1:end".into(), CursorError::Malformed),
            ("41:end,".into(), CursorError::Malformed),
            (format!("{a}:end"), CursorError::Malformed),
            (format!("{a}:1:END"), CursorError::Malformed),
            (format!("{a}:1:end:end"), CursorError::Malformed),
            (format!("{a}:1:end:2"), CursorError::Malformed),
            (format!("{a}:1:2:3:4:end"), CursorError::Malformed),
            (format!("{a}:1,"), CursorError::Malformed),
            (format!("{a}:1,2"), CursorError::Malformed),
            (format!("{a}:1, {}:2", id(2)), CursorError::Malformed),
            (format!("{a}:1,{a}:1"), CursorError::Repeated),
            (many.join(","), CursorError::TooMany),
        ];
        for (text, error) in table {
            assert_eq!(parse_cursors(&text), Err(error), "{text:?}");
        }
    }
}
