//! The parser for calls: notifications with chunks, and then one reply. Over HTTP, each call has a
//! connection, in server-sent events. Over standard streams, all calls share one, in lines.
//!
//! From a notification, the token is read, and from each chunk in it `seq` and the stamp. Each is
//! searched first at its last position. Rare messages are parsed as JSON. Chunks without data have
//! their stamps in `message`, which has no escapes here. Third-party servers have no chunks: there
//! `progress` is the number, and `message` begins with the stamp.

use serde_json::Value;
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::{LineSplitter, Split};

use super::wire::index_of;
use crate::common::serve::plan::STAMP_DIGITS;
use crate::serve::client::Incoming;
use crate::serve::stream::{LINE_BYTES_MAX, Place};

const PROGRESS: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"";

/// The format of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The format of streamdoor and of the floor.
    Ours,
    /// Notifications of plain MCP. No chunk is ever missing.
    Plain,
}

/// One connection, or the standard output of a server.
pub struct Stream {
    /// `None` without HTTP.
    response: Option<ResponseReader>,
    /// True once the whole response has arrived, so that another request may follow.
    has_response_ended: bool,
    lines: LineSplitter,
    calls: Calls,
}

/// The calls of one stream.
struct Calls {
    is_sse: bool,
    dialect: Dialect,
    /// The first session of the stream. Over HTTP, it is the only one.
    first_index: usize,
    tracks: Vec<Track>,
    /// Number of chunks of each call, or 0 if it is unknown.
    chunks_each: u64,
    running_count: usize,
    method_place: Place,
    token_place: Place,
    message_place: Place,
    /// Those of the first chunk of a notification.
    first_places: ChunkPlaces,
    /// Those of the chunks behind it, each counted from the end of the chunk before it.
    later_places: ChunkPlaces,
    given_chunks: u64,
    missed_chunks: u64,
}

/// The positions of the facts about one chunk.
struct ChunkPlaces {
    seq: Place,
    stamp: Place,
    encoding: Place,
    length: Place,
}

#[derive(Clone, Copy, Default)]
struct Track {
    last_seq: u64,
    has_ended: bool,
}

impl Stream {
    /// Returns the parser for the one call of session `index`, over HTTP. Each call has
    /// `chunks_each` chunks.
    pub fn of_response(dialect: Dialect, index: usize, chunks_each: u64) -> Stream {
        let mut response = ResponseReader::new();
        response.expect(Method::Post);
        Stream::new(Some(response), Calls::new(dialect, true, (index, 1), chunks_each))
    }

    /// Returns the parser for `call_count` calls, on lines.
    pub fn of_lines(dialect: Dialect, call_count: usize, chunks_each: u64) -> Stream {
        Stream::new(None, Calls::new(dialect, false, (0, call_count), chunks_each))
    }

    fn new(response: Option<ResponseReader>, calls: Calls) -> Stream {
        let has_response_ended = response.is_none();
        Stream { response, has_response_ended, lines: LineSplitter::new(LINE_BYTES_MAX), calls }
    }

    /// True once everything of these calls has arrived, including the end of the response.
    pub fn is_complete(&self) -> bool {
        self.has_ended() && self.has_response_ended
    }
}

impl Incoming for Stream {
    #[inline]
    fn take(&mut self, mut bytes: &[u8], mut chunk: impl FnMut(u64, u64)) -> Result<(), String> {
        let Some(response) = &mut self.response else {
            return self.calls.take(&mut self.lines, bytes, &mut chunk);
        };
        loop {
            match response.read(&mut bytes) {
                Ok(Some(ResponsePart::Body(body))) => {
                    self.calls.take(&mut self.lines, body, &mut chunk)?;
                }
                Ok(Some(ResponsePart::Head(head))) if head.status.code() == 200 => {}
                Ok(Some(ResponsePart::Head(head))) => {
                    return Err(format!("the server answered {}", head.status));
                }
                Ok(Some(ResponsePart::End)) if self.calls.running_count > 0 => {
                    return Err("the response ended before the call did".into());
                }
                Ok(Some(ResponsePart::End)) => {
                    self.has_response_ended = true;
                    return Ok(());
                }
                Ok(None) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.calls.running_count == 0
    }

    fn given_chunks(&self) -> u64 {
        self.calls.given_chunks
    }

    fn missed_chunks(&self) -> u64 {
        self.calls.missed_chunks
    }
}

impl Calls {
    /// Returns the calls. `of` is the first session and the number of sessions.
    fn new(dialect: Dialect, is_sse: bool, of: (usize, usize), chunks_each: u64) -> Calls {
        let place = |name| Place { name, at: 0 };
        Calls {
            is_sse,
            dialect,
            first_index: of.0,
            tracks: vec![Track::default(); of.1],
            chunks_each,
            running_count: of.1,
            method_place: place(b"\"notifications/progress\""),
            token_place: place(b"\"progressToken\":"),
            message_place: place(b"\"message\":\""),
            first_places: ChunkPlaces::new(dialect),
            later_places: ChunkPlaces::new(dialect),
            given_chunks: 0,
            missed_chunks: 0,
        }
    }

    /// True if it is a notification of progress.
    #[inline]
    fn is_progress(&mut self, json: &[u8]) -> bool {
        match self.dialect {
            Dialect::Ours => json.starts_with(PROGRESS),
            Dialect::Plain => self.method_place.is_named(json),
        }
    }

    #[inline]
    fn take(
        &mut self,
        lines: &mut LineSplitter,
        mut bytes: &[u8],
        chunk: &mut impl FnMut(u64, u64),
    ) -> Result<(), String> {
        while let Some(split) = lines.next(&mut bytes) {
            let Split::Line(line) = split else {
                return Err(format!("a line has more than {LINE_BYTES_MAX} bytes"));
            };
            match (self.is_sse, line.strip_prefix(b"data:")) {
                (false, _) => self.message(line, chunk)?,
                (true, Some(data)) => self.message(data.trim_ascii_start(), chunk)?,
                (true, None) => {} // The other fields are not needed.
            }
        }
        Ok(())
    }

    #[inline]
    fn message(&mut self, json: &[u8], chunk: &mut impl FnMut(u64, u64)) -> Result<(), String> {
        if json.is_empty() {
            return Ok(()); // The event that only has an id.
        }
        if !self.is_progress(json) {
            return self.answer(json);
        }
        let text = || String::from_utf8_lossy(json).into_owned();
        let token = self.token_place.number(json, usize::MAX);
        let track = token.and_then(index_of).and_then(|index| self.track_of(index));
        let Some(track) = track.filter(|at| !self.tracks[*at].has_ended) else {
            return Err(format!("a notification without a call: {}", text()));
        };
        let (mut rest, mut cut_bytes) = (json, 0);
        let Some(mut seq) = self.first_places.seq.number(rest, usize::MAX) else {
            return self.gap(track, json);
        };
        let mut places = &mut self.first_places;
        loop {
            let stamp = match places.is_cut(self.dialect, rest) {
                true => places.cut_stamp(&mut self.message_place, json, rest, &mut cut_bytes),
                false => places.whole_stamp(rest),
            };
            let Some((due_ns, at)) = stamp else {
                return Err(format!("a chunk without a stamp: {}", text()));
            };
            if seq != self.tracks[track].last_seq + 1 {
                return Err(format!("chunk {seq} behind {}", self.tracks[track].last_seq));
            }
            self.tracks[track].last_seq = seq;
            self.given_chunks += 1;
            chunk(seq, due_ns);
            rest = &rest[at..];
            if self.dialect == Dialect::Plain || !has_another(rest) {
                return Ok(());
            }
            places = &mut self.later_places;
            let Some(next_seq) = places.seq.number(rest, usize::MAX) else { return Ok(()) };
            seq = next_seq;
        }
    }

    fn track_of(&self, index: usize) -> Option<usize> {
        let at = index.checked_sub(self.first_index)?;
        (at < self.tracks.len()).then_some(at)
    }

    /// Takes a notification without chunks: a gap, or only a number.
    #[cold]
    fn gap(&mut self, track: usize, json: &[u8]) -> Result<(), String> {
        let value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let gap = &value["params"]["_meta"]["dev.streamdoor/gap"];
        if gap.is_null() {
            return Ok(());
        }
        let (Some(to_seq), Some(count)) = (gap["to_seq"].as_u64(), gap["chunk_count"].as_u64())
        else {
            return Err(format!("a gap of what? {value}"));
        };
        self.tracks[track].last_seq = to_seq;
        self.missed_chunks += count;
        Ok(())
    }

    #[cold]
    fn answer(&mut self, json: &[u8]) -> Result<(), String> {
        let text = || String::from_utf8_lossy(json).chars().take(300).collect::<String>();
        let value: Value =
            serde_json::from_slice(json).map_err(|_| format!("what is {}", text()))?;
        if self.dialect == Dialect::Plain && value["id"].is_null() {
            return Ok(()); // A message that the server sends by itself.
        }
        let index = value["id"].as_u64().and_then(index_of);
        let Some(track) = index.and_then(|index| self.track_of(index)) else {
            return Err(format!("a reply without a call: {}", text()));
        };
        if value["result"]["content"].is_null() || value["result"]["isError"] == true {
            return Err(format!("a call has failed: {}", text()));
        }
        let Track { last_seq, has_ended } = &mut self.tracks[track];
        // If a full pipe had no room for chunks before the end, streamdoor's reply contains them.
        let left_chunks = match self.dialect {
            Dialect::Ours => self.chunks_each.saturating_sub(*last_seq),
            Dialect::Plain => 0,
        };
        self.missed_chunks += left_chunks;
        let is_whole = self.chunks_each == 0 || *last_seq + left_chunks == self.chunks_each;
        if *has_ended || !is_whole {
            return Err(format!(
                "{last_seq} of {} chunks came before {}",
                self.chunks_each,
                text()
            ));
        }
        *has_ended = true;
        self.running_count -= 1;
        Ok(())
    }
}

impl ChunkPlaces {
    fn new(dialect: Dialect) -> ChunkPlaces {
        let place = |name| Place { name, at: 0 };
        let (seq, stamp): (&[u8], &[u8]) = match dialect {
            Dialect::Ours => (b"\"seq\":", b"\"data\":\""),
            Dialect::Plain => (b"\"progress\":", b"\"message\":\""),
        };
        ChunkPlaces {
            seq: place(seq),
            stamp: place(stamp),
            encoding: place(b"\"encoding\":\""),
            length: place(b"\"length\":"),
        }
    }

    /// True if the data of the chunk is a part of the message. The stamp is tried first: a search
    /// for a name that does not occur would take longer than everything else.
    #[inline]
    fn is_cut(&mut self, dialect: Dialect, rest: &[u8]) -> bool {
        dialect == Dialect::Ours
            && !self.stamp.is_still_there(rest)
            && self.encoding.is_named(rest)
            && rest[self.encoding.at..].starts_with(b"message")
    }

    /// Returns the stamp of a chunk that has its data, and the position of the data.
    #[inline]
    fn whole_stamp(&mut self, rest: &[u8]) -> Option<(u64, usize)> {
        Some((self.stamp.number(rest, STAMP_DIGITS)?, self.stamp.at))
    }

    /// Returns the stamp of a chunk that has a length, and the position of the length. Its data is
    /// a part of `message`, behind `cut_bytes` of it.
    #[inline]
    fn cut_stamp(
        &mut self,
        message: &mut Place,
        json: &[u8],
        rest: &[u8],
        cut_bytes: &mut usize,
    ) -> Option<(u64, usize)> {
        let length = self.length.number(rest, usize::MAX)?;
        if !message.is_named(json) {
            return None;
        }
        let part = json.get(message.at.checked_add(*cut_bytes)?..)?;
        *cut_bytes = cut_bytes.checked_add(usize::try_from(length).ok()?)?;
        let stamp = Place { name: b"", at: 0 }.number(part, STAMP_DIGITS)?;
        Some((stamp, self.length.at))
    }
}

/// True if another chunk follows in the same notification.
fn has_another(rest: &[u8]) -> bool {
    rest.contains(&b'{') && rest.windows(8).any(|window| window == b",{\"seq\":")
}
