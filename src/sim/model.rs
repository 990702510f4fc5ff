//! The facts about an execution, known without the engine: every chunk its producer has published,
//! in order, and its end.
//!
//! Payloads are a function of (execution, seq). Any byte of any chunk can be checked, and a chunk
//! of another execution does not pass.

use std::time::Duration;

use crate::base::{ExecutionId, Instant, Random};
use crate::engine::{OnStall, RingFacts, Timeouts, Verdict};
use crate::limits;
use crate::sim::patience::Patience;
use crate::sim::stage::REFUSED_TEXT;
use crate::stream::{Kind, Kinds, Outcome, Totals};

/// The beginning of the error text of a producer that failed.
pub(super) const FAILURE_TEXT: &str = "it was drawn to fail";
/// The text of a tool that panics.
pub(super) const PANIC_TEXT: &str = "it was drawn to panic";

/// One chunk as it was published.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkModel {
    pub kind: Kind,
    pub key: u8,
    pub length: u32,
    /// Payload bytes before it.
    pub offset: u64,
    /// The time in the chunk.
    pub published_at: Instant,
    /// The real time of its publication: the clock of a simulated thread stands still.
    pub known_at: Instant,
}

/// The kind of an execution's producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Producer {
    Steps,
    Feed,
    Thread,
    /// A producer in another process.
    #[cfg(feature = "server")]
    Process,
}

impl Producer {
    /// True if it is in another process.
    pub fn is_in_process(self) -> bool {
        #[cfg(feature = "server")]
        return self == Producer::Process;
        #[cfg(not(feature = "server"))]
        false
    }

    /// The timeouts of its executions, unless others are requested.
    pub fn timeouts(self) -> Timeouts {
        if self.is_in_process() { Timeouts::default() } else { Timeouts::NONE }
    }
}

/// The end that a producer reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportedEnd {
    Done,
    Failed,
    Panicked,
    Stopped,
}

/// One execution.
#[derive(Debug)]
pub(super) struct ExecutionModel {
    pub number: u32,
    pub id: ExecutionId,
    pub producer: Producer,
    pub on_stall: OnStall,
    pub holds: bool,
    /// Time for which a `block` subscriber may hold it up.
    pub block_deadline: Duration,
    /// The silence of its producer.
    pub patience: Patience,
    /// The longest chunk that its ring was requested for.
    pub chunk_bytes: u32,
    pub ring: Option<RingFacts>,
    /// The ring that it began with. Chunks that it gave up do not come back when it grows.
    pub ring_at_first: Option<RingFacts>,
    /// The ring that it may grow to, if it starts with a small one.
    pub whole: Option<RingFacts>,
    pub chunks: Vec<ChunkModel>,
    total_bytes: u64,
    /// The longest reservation that was lent and not published. It may have displaced older chunks,
    /// even if only by a descriptor slot.
    pub lent_bytes_max: Option<u32>,
    /// Chunks at its end that a process had published and the shard did not take.
    pub left_out_count: u64,
    /// The bytes of the ring that these chunks take.
    left_out_bytes: u64,
    pub told: Option<ReportedEnd>,
    /// True if a cancellation was accepted.
    pub is_cancelled: bool,
    pub verdict: Option<(Outcome, Option<Box<str>>)>,
    pub is_forgotten: bool,
    /// True if it ever had a subscriber.
    pub was_read: bool,
    /// True if it ever had a subscriber under `block`.
    pub was_gated: bool,
    /// Indices of its subscribers.
    pub followers: Vec<usize>,
}

/// The bytes of one chunk.
pub(super) fn fill_payload(number: u32, seq: u64, bytes: &mut [u8]) {
    Random::new(u64::from(number) << 40 ^ seq).fill(bytes);
}

/// Number of chunks above which an execution is cancelled.
const CHUNKS_MAX: u64 = 20_000;

/// The bytes of its ring that a chunk takes.
fn frame_bytes(chunk: &ChunkModel) -> u64 {
    32 + u64::from(chunk.length.next_multiple_of(8))
}

impl ExecutionModel {
    pub fn new(number: u32, id: ExecutionId, producer: Producer) -> ExecutionModel {
        ExecutionModel {
            number,
            id,
            producer,
            on_stall: OnStall::Detach,
            holds: false,
            block_deadline: Duration::ZERO,
            patience: Patience::new(Timeouts::NONE),
            chunk_bytes: 0,
            ring: None,
            ring_at_first: None,
            whole: None,
            chunks: Vec::new(),
            total_bytes: 0,
            lent_bytes_max: None,
            left_out_count: 0,
            left_out_bytes: 0,
            told: None,
            is_cancelled: false,
            verdict: None,
            is_forgotten: false,
            was_read: false,
            was_gated: false,
            followers: Vec::new(),
        }
    }

    /// Notes its ring, which may have grown.
    pub fn note_ring(&mut self, ring: RingFacts) {
        self.ring_at_first.get_or_insert(ring);
        match self.whole {
            Some(_) => self.ring = Some(ring),
            None => self.ring = self.ring.or(Some(ring)),
        }
    }

    pub fn is_thread(&self) -> bool {
        self.producer == Producer::Thread
    }

    /// True if another process writes it.
    pub fn is_in_process(&self) -> bool {
        self.producer.is_in_process()
    }

    /// True if its producer writes independently of the shard.
    pub fn is_apart(&self) -> bool {
        !matches!(self.producer, Producer::Steps | Producer::Feed)
    }

    /// True if its ring may have overwritten chunks before the engine knew. One with an independent
    /// producer may at any time, and one with a reservation that was lent and not published.
    pub fn may_be_ahead(&self) -> bool {
        self.is_apart() || self.lent_bytes_max.is_some()
    }

    /// True if it has so many chunks that it has to be cancelled: the oracle examines all of them
    /// again and again.
    pub fn is_too_long(&self) -> bool {
        self.head_seq() >= CHUNKS_MAX
    }

    /// The newest chunk.
    pub fn head_seq(&self) -> u64 {
        self.chunks.len() as u64
    }

    pub fn chunk(&self, seq: u64) -> Option<&ChunkModel> {
        self.chunks.get(usize::try_from(seq.checked_sub(1)?).ok()?)
    }

    /// The time that a reader may stand still, which is shorter once the execution was cancelled.
    pub fn stall_deadline(&self) -> Duration {
        match self.verdict {
            Some((Outcome::Cancelled, _)) => self.block_deadline.min(limits::CANCELLED_STALL),
            _ => self.block_deadline,
        }
    }

    /// Notes the next chunk, whose `offset` is filled in here.
    pub fn push(&mut self, chunk: ChunkModel) {
        self.chunks.push(ChunkModel { offset: self.total_bytes, ..chunk });
        self.total_bytes += u64::from(chunk.length);
    }

    /// Forgets the chunks behind `head_seq`, which the ring holds in the place of older ones.
    pub fn truncate(&mut self, head_seq: u64) {
        let left_out = &self.chunks[head_seq as usize..];
        self.left_out_count = left_out.len() as u64;
        self.left_out_bytes = left_out.iter().map(frame_bytes).sum();
        self.chunks.truncate(head_seq as usize);
        let end = |chunk: &ChunkModel| chunk.offset + u64::from(chunk.length);
        self.total_bytes = self.chunks.last().map_or(0, end);
    }

    /// The wanted chunks of a range, both ends included.
    pub fn wanted(
        &self,
        kinds: Kinds,
        from_seq: u64,
        to_seq: u64,
    ) -> impl Iterator<Item = (u64, &ChunkModel)> {
        let to_seq = to_seq.min(self.head_seq());
        let range = from_seq.max(1)..=to_seq;
        range
            .map(|seq| (seq, &self.chunks[seq as usize - 1]))
            .filter(move |(_, chunk)| kinds.contains(chunk.kind))
    }

    /// The totals of the wanted chunks of a range.
    pub fn totals(&self, kinds: Kinds, from_seq: u64, to_seq: u64) -> Totals {
        let mut totals = Totals::ZERO;
        self.wanted(kinds, from_seq, to_seq).for_each(|(_, chunk)| totals.count(chunk.length));
        totals
    }

    /// True if the ring certainly still holds chunk `seq`, by its promise.
    pub fn must_hold(&self, seq: u64) -> bool {
        let Some(ring) = self.ring_at_first else { return false };
        // A ring promises three eighths of its data area; a frame is at most a quarter of the area.
        let capacity_bytes = (u64::from(ring.chunk_bytes_max) + 32) * 3 / 2;
        let behind = self.head_seq() + 1 - seq;
        let more_count = self.left_out_count + u64::from(self.lent_bytes_max.is_some());
        if behind + more_count > u64::from(ring.chunks_max) {
            return false;
        }
        let more_bytes =
            self.left_out_bytes + u64::from(self.lent_bytes_max.map_or(0, |bytes| bytes + 32));
        let held: u64 = self.chunks[seq as usize - 1..].iter().map(frame_bytes).sum();
        held + more_bytes <= capacity_bytes
    }

    /// Checks that the end fits its producer and its callers.
    pub fn check_verdict(&self, verdict: &Verdict, shutting_down: bool) -> Result<(), String> {
        let head_seq = self.head_seq();
        if verdict.head_seq != head_seq {
            return Err(format!("it ended with {} of {head_seq} chunks", verdict.head_seq));
        }
        for kind in Kind::ALL {
            let kinds = Kinds::NONE.with(kind);
            if verdict.totals.of(kinds) != self.totals(kinds, 1, head_seq) {
                return Err(format!("it ended with wrong totals of {kind}"));
            }
        }
        let text = verdict.error.as_deref().unwrap_or("");
        let may_stall = self.on_stall == OnStall::Fail && self.was_gated;
        let stalled = may_stall && text.contains("past its deadline");
        let by_itself = !self.is_cancelled && !shutting_down;
        let fits = match verdict.outcome {
            Outcome::Completed => by_itself && self.told == Some(ReportedEnd::Done),
            Outcome::Cancelled => !by_itself || self.told == Some(ReportedEnd::Stopped),
            Outcome::Failed if stalled => true,
            // It never had a ring. Its producer may have left by then.
            Outcome::Failed if text.contains(REFUSED_TEXT) => {
                self.ring.is_none() && head_seq == 0 && self.chunk_bytes > 0
            }
            Outcome::Failed => {
                by_itself
                    && match self.told {
                        Some(ReportedEnd::Failed) => text == FAILURE_TEXT,
                        Some(ReportedEnd::Panicked) => {
                            text.ends_with(PANIC_TEXT) || text == "the producer is gone"
                        }
                        _ => false,
                    }
            }
            Outcome::TimedOut => {
                self.patience.check_end(text, self.is_apart())?;
                by_itself || self.is_cancelled || shutting_down
            }
        };
        if fits {
            return Ok(());
        }
        let (outcome, told, cancelled) = (verdict.outcome, self.told, self.is_cancelled);
        Err(format!("it ended {outcome} {text:?}; told {told:?}, cancelled: {cancelled}"))
    }
}
