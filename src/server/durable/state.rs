//! One stream as its clients see it: its properties, its end, and the producers that may repeat
//! their appends.
//!
//! This is a state machine without a clock, a ring or a disk. [`StreamState::judge`] decides about
//! an append, and [`StreamState::accept`] applies it.
//!
//! Invariants:
//! - N1: an append that was refused has changed nothing.
//! - N2: nothing is accepted behind the end.

use std::ops::Range;

use crate::endpoint::{Answer, ApiError, Appended, Creation, DurableHeaders, Fork, ProducerAt};
use crate::limits;
use crate::wire::durable::{Mode, Offset, essence, messages};
use crate::wire::http1::Status;

/// The media type of a stream whose creator names none.
const BYTES: &str = "application/octet-stream";

/// The properties of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Config {
    /// The media type that its creator has named.
    pub asked_type: Option<Box<str>>,
    /// The seconds after the last use at which it ends, as its creator has named them.
    pub asked_ttl_s: Option<u64>,
    /// The time at which it ends, in µs since 1970, as its creator has named it.
    pub asked_expires_us: Option<u64>,
    /// The source that its creator has named, and the sub-offset.
    pub forked_from: Option<(Box<str>, u64)>,
    /// The media type.
    pub media_type: Box<str>,
    /// The seconds after the last use at which it ends.
    pub ttl_s: Option<u64>,
    /// The time at which it ends, in µs since 1970.
    pub expires_us: Option<u64>,
    /// The offset at which it leaves its source, without the sub-offset.
    pub anchor: u64,
}

impl Config {
    /// Returns the properties of a new stream. `source` has those of the stream that it begins
    /// with, and the offset at which it leaves that.
    pub fn of(creation: &Creation, source: Option<(&Config, u64)>) -> Config {
        let Creation { media_type, ttl_s, expires_us, fork, .. } = creation;
        let inherited = source.map(|(config, _)| config);
        let has_own = ttl_s.is_some() || expires_us.is_some();
        let of_source = inherited.filter(|_| !has_own);
        let default_type = inherited.map_or(BYTES, |config| &config.media_type);
        Config {
            asked_type: media_type.clone(),
            asked_ttl_s: *ttl_s,
            asked_expires_us: *expires_us,
            forked_from: fork.as_ref().map(|fork| (fork.source.clone(), fork.sub_offset)),
            media_type: media_type.clone().unwrap_or_else(|| default_type.into()),
            ttl_s: ttl_s.or(of_source.and_then(|config| config.ttl_s)),
            expires_us: expires_us.or(of_source.and_then(|config| config.expires_us)),
            anchor: source.map_or(0, |(_, anchor)| anchor),
        }
    }

    /// True if a request wants the same stream again.
    pub fn is_same(&self, creation: &Creation) -> bool {
        let Creation { media_type, ttl_s, expires_us, fork, .. } = creation;
        let is_same_type = match (media_type, &self.asked_type) {
            (None, None) => true,
            (None, Some(_)) => is_same_type(BYTES, &self.media_type),
            (Some(media_type), _) => is_same_type(media_type, &self.media_type),
        };
        let is_same_fork = match (fork, &self.forked_from) {
            (None, None) => true,
            (Some(Fork { source, offset, sub_offset }), Some((own, own_sub))) => {
                let is_same_offset = offset.is_none_or(|offset| offset.0 == self.anchor);
                source == own && sub_offset == own_sub && is_same_offset
            }
            _ => false,
        };
        let is_same_end = *ttl_s == self.asked_ttl_s && *expires_us == self.asked_expires_us;
        is_same_type && is_same_fork && is_same_end
    }

    /// The way in which it is written and read.
    pub fn mode(&self) -> Mode {
        Mode::of(&self.media_type)
    }
}

/// True if two media types are the same but for their parameters.
pub(super) fn is_same_type(one: &str, other: &str) -> bool {
    essence(one).eq_ignore_ascii_case(essence(other))
}

/// A producer, and its last append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Producer {
    pub id: Box<str>,
    pub epoch: u64,
    pub seq: u64,
}

/// The end of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Closed {
    /// The append of a producer that has closed it.
    pub by: Option<Producer>,
}

/// The state before the last append of which the journal has a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    pub tail: u64,
    pub seq: Option<Box<str>>,
    /// The producer of the append.
    pub producer: Option<Before>,
}

/// A producer before its last append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Before {
    pub id: Box<str>,
    /// The life and the number of the append before; `None` if there was none.
    pub last: Option<(u64, u64)>,
}

/// A stream. See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamState {
    pub config: Config,
    /// The position behind everything that was accepted.
    pub tail: u64,
    /// The position behind the content that it was created with.
    pub first_tail: u64,
    /// The last text that ordered an append.
    pub seq: Option<Box<str>>,
    /// The producers, the one that was silent for longest first.
    pub producers: Vec<Producer>,
    pub closed: Option<Closed>,
    /// True if it was removed, and others still begin with it.
    pub is_gone: bool,
    /// Bytes of appends that a crash has cut off: the first, and the one behind the last. They
    /// belong to no message.
    pub voids: Vec<(u64, u64)>,
    pub undo: Option<Undo>,
}

/// The decision about an append.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Judged {
    /// It is accepted. Its messages have these places in the body.
    Accepted(Vec<Range<usize>>),
    /// It was accepted before. This is the answer, once everything before it is kept.
    Repeated(Answer),
    /// This is the answer.
    Refused(Answer),
}

impl StreamState {
    /// Decides about an append.
    pub fn judge(&self, appended: &Appended) -> Judged {
        if let Some(closed) = &self.closed {
            return self.judge_behind_end(closed, appended);
        }
        let body = &appended.body;
        let media_type = appended.media_type.as_deref();
        if !body.is_empty()
            && media_type
                .is_none_or(|media_type| !is_same_type(media_type, &self.config.media_type))
        {
            let text = format!("content-type: the stream has {}", self.config.media_type);
            let error = ApiError::new(Status::CONFLICT, "type_mismatch", text);
            return Judged::Refused(refusal(&error.field("content-type")));
        }
        if let Some(producer) = &appended.producer
            && let Err(judged) = self.judge_producer(producer)
        {
            return judged;
        }
        if let (Some(seq), Some(last)) = (&appended.seq, &self.seq)
            && seq.as_bytes() <= last.as_bytes()
        {
            let text = format!("stream-seq: the sequence is at {last:?} already");
            let error = ApiError::new(Status::CONFLICT, "sequence_conflict", text);
            return Judged::Refused(refusal(&error.field("stream-seq")));
        }
        match split(self.config.mode(), body) {
            Ok(messages) if messages.is_empty() && !appended.closes => {
                Judged::Refused(refusal(&malformed("an append needs a message")))
            }
            Ok(_) if self.tail + body.len() as u64 > crate::wire::durable::OFFSET_MAX => {
                Judged::Refused(refusal(&malformed("the stream has no offsets left")))
            }
            Ok(messages) => Judged::Accepted(messages),
            Err(error) => Judged::Refused(refusal(&error)),
        }
    }

    fn judge_behind_end(&self, closed: &Closed, appended: &Appended) -> Judged {
        let repeats = match (&closed.by, &appended.producer) {
            (Some(by), Some(ProducerAt { id, epoch, seq })) => {
                (&by.id, by.epoch, by.seq) == (id, *epoch, *seq)
            }
            (_, None) => appended.closes && appended.body.is_empty(),
            (None, Some(_)) => false,
        };
        if repeats {
            let headers = self.headers().with_flag("stream-closed", true);
            let headers = match &appended.producer {
                Some(at) => with_producer(headers, at.epoch, at.seq),
                None => headers,
            };
            return Judged::Repeated(Answer::durable(Status::NO_CONTENT, headers, Vec::new()));
        }
        let error = ApiError::new(Status::CONFLICT, "stream_closed", "the stream is closed");
        let headers = self.headers().with_flag("stream-closed", true);
        // Without these numbers the protocol's own client repeats such an append for ever.
        let headers = match &appended.producer {
            Some(at) => {
                let known = self.producer(&at.id).filter(|known| known.epoch == at.epoch);
                let expected = known.map_or(0, |known| known.seq + 1);
                with_expected(headers, expected, at.seq)
            }
            None => headers,
        };
        Judged::Refused(Answer::error(&error).with_headers(headers))
    }

    fn judge_producer(&self, at: &ProducerAt) -> Result<(), Judged> {
        let known = self.producer(&at.id);
        let refused = |status, code: &'static str, text: &str, headers| {
            let error = ApiError::new(status, code, text).field("producer-seq");
            Judged::Refused(Answer::error(&error).with_headers(headers))
        };
        let expected = match known {
            Some(known) if at.epoch < known.epoch => {
                let headers = DurableHeaders::default();
                let headers = headers.with("producer-epoch", known.epoch.to_string());
                let text = "producer-epoch: the producer has begun a newer life";
                return Err(refused(Status::FORBIDDEN, "stale_epoch", text, headers));
            }
            Some(known) if at.epoch == known.epoch && at.seq <= known.seq => {
                let headers = self.headers().with_flag("stream-closed", self.closed.is_some());
                let headers = with_producer(headers, known.epoch, known.seq);
                let answer = Answer::durable(Status::NO_CONTENT, headers, Vec::new());
                return Err(Judged::Repeated(answer));
            }
            Some(known) if at.epoch == known.epoch => known.seq + 1,
            Some(_) if at.seq > 0 => {
                let text = "producer-seq: the first append of a life has the number 0";
                let headers = DurableHeaders::default();
                return Err(refused(Status::BAD_REQUEST, "invalid_parameter", text, headers));
            }
            _ => 0,
        };
        if at.seq == expected {
            return Ok(());
        }
        let headers = with_expected(DurableHeaders::default(), expected, at.seq);
        let text = format!("producer-seq: the sequence is at {expected}");
        Err(refused(Status::CONFLICT, "sequence_conflict", &text, headers))
    }

    /// Applies an append of this many bytes, which was accepted.
    pub fn accept(&mut self, appended: &Appended, bytes: u64) {
        assert!(self.closed.is_none()); // N2
        let by = appended.producer.as_ref().map(|at| Producer {
            id: at.id.clone(),
            epoch: at.epoch,
            seq: at.seq,
        });
        self.undo = Some(Undo {
            tail: self.tail,
            seq: self.seq.clone(),
            producer: by.as_ref().map(|by| Before {
                id: by.id.clone(),
                last: self.producer(&by.id).map(|known| (known.epoch, known.seq)),
            }),
        });
        if let Some(by) = &by {
            self.producers.retain(|known| known.id != by.id);
            if self.producers.len() >= limits::DURABLE_PRODUCERS_MAX {
                self.producers.remove(0);
            }
            self.producers.push(by.clone());
        }
        if appended.seq.is_some() {
            self.seq.clone_from(&appended.seq);
        }
        self.tail += bytes;
        if appended.closes {
            self.closed = Some(Closed { by });
        }
    }

    /// Returns to the state before the last append, because the disk has only `tail` bytes.
    pub fn revert(&mut self, tail: u64) {
        if let Some(Undo { tail: before, seq, producer }) = self.undo.take() {
            if before < tail {
                self.voids.push((before, tail));
            }
            self.seq = seq;
            if let Some(Before { id, last }) = producer {
                self.producers.retain(|known| known.id != id);
                let known = last.map(|(epoch, seq)| Producer { id, epoch, seq });
                self.producers.extend(known);
            }
        }
        (self.closed, self.tail) = (None, tail);
    }

    /// Returns the answer to an append that is kept now.
    pub fn accepted(&self, appended: &Appended) -> Answer {
        let headers = self.headers().with_flag("stream-closed", self.closed.is_some());
        match &appended.producer {
            None => Answer::durable(Status::NO_CONTENT, headers, Vec::new()),
            Some(at) => {
                let is_new = !appended.body.is_empty();
                let status = if is_new { Status::OK } else { Status::NO_CONTENT };
                Answer::durable(status, with_producer(headers, at.epoch, at.seq), Vec::new())
            }
        }
    }

    /// Returns the answer to the request that has created the stream, or that wants it again.
    pub fn created(&self, location: Option<String>) -> Answer {
        let status = if location.is_some() { Status::CREATED } else { Status::OK };
        let headers = self.headers().with("content-type", self.config.media_type.clone());
        let headers = headers.with_flag("stream-closed", self.closed.is_some());
        Answer::durable(status, headers.with_some("location", location), Vec::new())
    }

    fn producer(&self, id: &str) -> Option<&Producer> {
        self.producers.iter().find(|known| *known.id == *id)
    }

    fn headers(&self) -> DurableHeaders {
        DurableHeaders::default().with("stream-next-offset", Offset(self.tail).to_string())
    }
}

fn with_producer(headers: DurableHeaders, epoch: u64, seq: u64) -> DurableHeaders {
    headers.with("producer-epoch", epoch.to_string()).with("producer-seq", seq.to_string())
}

fn with_expected(headers: DurableHeaders, expected: u64, received: u64) -> DurableHeaders {
    let headers = headers.with("producer-expected-seq", expected.to_string());
    headers.with("producer-received-seq", received.to_string())
}

fn refusal(error: &ApiError) -> Answer {
    crate::endpoint::durable::answer_refused(error)
}

fn malformed(text: &str) -> ApiError {
    ApiError::new(Status::BAD_REQUEST, "malformed_json", text)
}

/// Splits a body into messages. Returns the place of each.
pub(super) fn split(mode: Mode, body: &[u8]) -> Result<Vec<Range<usize>>, ApiError> {
    match mode {
        _ if body.is_empty() => Ok(Vec::new()),
        Mode::Json => messages(body).map_err(|_| malformed("the body is not JSON")),
        Mode::Text | Mode::Bytes => Ok(std::iter::once(0..body.len()).collect()),
    }
}
