//! The control page of an execution: messages from its shard to producers and readers elsewhere.
//!
//! Only the shard writes it ([`ControlPage`]); any thread or process reads it ([`ControlView`]). It
//! carries no payload, and a store to it wakes nobody.
//!
//! - `control:verdict`: the verdict is stored last, with release, and loaded first, with acquire. A
//!   reader that sees it sees the final numbers and the error text. They never change again.
//! - `control:gate`: a producer that sees a gate sees everything that the reader behind it did
//!   before.
//! - `control:attention`: see [`ControlPage::set_attention`];
//! - `control:progress`: a record under a version word, which is even when the record is whole;
//! - `control:server-asleep`: both sides store, pass a full fence, then look. One side is a server
//!   that is about to block. The other is a producer in another process that has something for it,
//!   or a reader in another process that sleeps on its descriptor.
//!
//! A page can be at the start of a file that other processes map (`shared.rs`). A producer in
//! another process uses the same layout to report its progress and its end.
//!
//! Tests: below; the attention handshake in `loom_tests.rs`.

use std::num::{NonZeroU8, NonZeroU64};
use std::time::Duration;

use super::atomic::{AtomicBool, AtomicU64, Ordering, fence, full_fence, load_acquire, spin_hint};
use super::layout::assert_ascending;
use super::segment::Segment;
use super::{copy, futex};
use crate::limits::{
    DOOR_READERS_PER_EXECUTION_MAX, ERROR_TEXT_BYTES_MAX, KINDS_MAX, PROGRESS_CONTEXT_BYTES_MAX,
    PROGRESS_MESSAGE_BYTES_MAX, READER_SLEEP_MAX, SEQLOCK_ATTEMPTS_MAX,
};
use crate::stream::KindTotals;

// Word numbers. Groups that change at different rates are 128 bytes apart.
const GATE_SEQ: usize = 0;
const CREDIT_SEQ: usize = 1;
const CREDIT_BYTES: usize = 2;
const GATE_EPOCH: usize = 3;
const READ_SEQ: usize = 4;
/// The word is on the line that a producer loads anyway. 0: the server is awake. Otherwise it
/// sleeps, and has to be woken for this chunk, for all later ones, and for everything that is not a
/// chunk.
const SERVER_ASLEEP: usize = 8;
const DIRECT_READERS: usize = 9;
const CLOSED: usize = 10;
const ATTENTION: usize = 16;
const CHUNKS_EXPECTED: usize = 17; // One more than expected; 0 if unknown.
const EXIT: usize = 18; // The exit of its process, packed by the storing side; 0 if it had none.
const VERDICT: usize = 32;
const FINAL_HEAD_SEQ: usize = 33;
const ERROR_LENGTH: usize = 34;
const FINAL_TOTALS: usize = 48;
const ERROR_TEXT: usize = 80;
const PROGRESS_VERSION: usize = 112;
const PROGRESS_VALUE: usize = 113;
const PROGRESS_TOTAL: usize = 114;
const PROGRESS_REPORTS: usize = 115;
const PROGRESS_LENGTH: usize = 116;
const PROGRESS_CONTEXT_LENGTH: usize = 117;
const PROGRESS_MESSAGE: usize = 120;
const PROGRESS_CONTEXT: usize = 152;
const MAGIC: usize = 280;
const VERSION: usize = 281;
/// Number of words of one page. The data that follows in a file begins on lines of its own.
pub(super) const CONTROL_WORDS: usize = 288;
/// The version of everything in this file, in `signal_slot.rs`, `reader_page.rs` and `owner.rs`.
pub(super) const PAGE_VERSION: u64 = 1;
/// The text "sdctrl": the page that a server writes.
pub(super) const CONTROL_MAGIC: u64 = 0x0102_6c72_7463_6473;
/// The text "sdprod": the page that a producer in another process writes.
pub(super) const PRODUCER_MAGIC: u64 = 0x0102_646f_7270_6473;

const _: () = {
    assert!(FINAL_TOTALS + 2 * KINDS_MAX <= ERROR_TEXT);
    assert!(ERROR_TEXT + ERROR_TEXT_BYTES_MAX / 8 <= PROGRESS_VERSION);
    assert!(PROGRESS_MESSAGE + PROGRESS_MESSAGE_BYTES_MAX / 8 <= PROGRESS_CONTEXT);
    assert!(PROGRESS_CONTEXT + PROGRESS_CONTEXT_BYTES_MAX / 8 <= MAGIC);
    assert!(CONTROL_WORDS.is_multiple_of(16)); // The data that follows is on lines of its own.
    // The gate, the server's state and its end share two lines, which a producer loads anyway.
    assert_ascending(&[GATE_SEQ, CREDIT_SEQ, CREDIT_BYTES, GATE_EPOCH, READ_SEQ]);
    assert_ascending(&[READ_SEQ, SERVER_ASLEEP, DIRECT_READERS, CLOSED, 16]);
    // The other groups begin on a pair of lines of their own.
    assert!(ATTENTION.is_multiple_of(16));
    assert_ascending(&[CLOSED, ATTENTION, CHUNKS_EXPECTED, EXIT, VERDICT]);
    assert!(VERDICT.is_multiple_of(16));
    assert_ascending(&[VERDICT, FINAL_HEAD_SEQ, ERROR_LENGTH, FINAL_TOTALS]);
    assert!(FINAL_TOTALS.is_multiple_of(16));
    assert!(PROGRESS_VERSION.is_multiple_of(16));
    assert_ascending(&[PROGRESS_VERSION, PROGRESS_VALUE, PROGRESS_TOTAL, PROGRESS_REPORTS]);
    assert_ascending(&[PROGRESS_REPORTS, PROGRESS_LENGTH, PROGRESS_CONTEXT_LENGTH]);
    assert_ascending(&[PROGRESS_CONTEXT_LENGTH, PROGRESS_MESSAGE, PROGRESS_CONTEXT, MAGIC]);
    assert_ascending(&[MAGIC, VERSION, CONTROL_WORDS]);
    assert!(CONTROL_MAGIC != PRODUCER_MAGIC); // A page of one kind is not taken for the other.
};

/// The shard's side: the one writer of the page.
pub struct ControlPage {
    segment: Segment,
    progress_version: u64,
    /// True after the end. It is not read from the page, because others may write to that of a
    /// named ring.
    is_finished: AtomicBool,
}

/// The side of all others. Its data may come from a hostile process, so all of it is checked.
#[derive(Clone)]
pub struct ControlView {
    segment: Segment,
}

/// The end of an execution, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalRecord {
    /// The terminal state, in the engine's code.
    pub verdict: NonZeroU8,
    /// The number of the last chunk.
    pub head_seq: u64,
    /// Number of all chunks and their bytes, per kind.
    pub totals: KindTotals,
}

/// The progress of an execution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgressRecord {
    /// The progress on the axis that the first report fixed.
    pub progress: f64,
    /// The end of the axis, if known.
    pub total: Option<f64>,
    /// Number of reports so far.
    pub reports: u64,
    /// The message of the tool with it.
    pub message: ShortText<PROGRESS_MESSAGE_BYTES_MAX>,
    /// Further data of the tool, in JSON.
    pub context: ShortText<PROGRESS_CONTEXT_BYTES_MAX>,
}

/// UTF-8 text of at most `BYTES_MAX` bytes, stored without an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortText<const BYTES_MAX: usize> {
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl<const BYTES_MAX: usize> ShortText<BYTES_MAX> {
    /// Takes as much of `text` as fits, cut between characters.
    pub fn new(text: &str) -> ShortText<BYTES_MAX> {
        const { assert!(BYTES_MAX.is_multiple_of(8)) }; // It is stored as whole words.
        let mut length = text.len().min(BYTES_MAX);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        let mut bytes = [0; BYTES_MAX];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        ShortText { bytes, length }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // A text of ours was cut between characters; a foreign one was cut to its valid prefix.
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }

    fn store(&self, segment: &Segment, word: usize, length_word: usize) {
        let padded_length = self.length.next_multiple_of(8);
        assert!(padded_length <= BYTES_MAX); // The next field begins there.
        copy::words_in(segment, word * 8, &self.bytes[..padded_length]);
        segment.word(length_word).store(self.length as u64, Ordering::Relaxed);
    }

    /// Loads length and bytes as they are found, and keeps the prefix that is valid UTF-8.
    fn load(segment: &Segment, word: usize, length_word: usize) -> ShortText<BYTES_MAX> {
        let length = segment.word(length_word).load(Ordering::Relaxed).min(BYTES_MAX as u64);
        let length = length as usize;
        let mut bytes = [0; BYTES_MAX];
        copy::words_out(segment, word * 8, &mut bytes[..length.next_multiple_of(8)]);
        let length = match std::str::from_utf8(&bytes[..length]) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        assert!(length <= BYTES_MAX); // It was cut, whatever the other side has stored.
        ShortText { bytes, length }
    }
}

impl Default for ControlPage {
    fn default() -> ControlPage {
        ControlPage::new()
    }
}

impl ControlPage {
    /// Creates a page within this process: gate at 0 (nothing may be overwritten), no verdict.
    pub fn new() -> ControlPage {
        ControlPage::of(Segment::heap(CONTROL_WORDS))
    }

    /// Creates a page at the start of `segment`, which is zero and has no other writer.
    pub(super) fn at(segment: &Segment, magic: u64) -> ControlPage {
        assert!(magic == CONTROL_MAGIC || magic == PRODUCER_MAGIC);
        assert!(segment.bytes() >= CONTROL_WORDS * 8);
        segment.word(VERSION).store(PAGE_VERSION, Ordering::Relaxed);
        segment.word(MAGIC).store(magic, Ordering::Release);
        ControlPage::of(segment.part(0, CONTROL_WORDS * 8))
    }

    fn of(segment: Segment) -> ControlPage {
        assert!(segment.bytes() == CONTROL_WORDS * 8);
        ControlPage { segment, progress_version: 0, is_finished: AtomicBool::new(false) }
    }

    /// Returns the side for all others.
    pub fn view(&self) -> ControlView {
        ControlView { segment: self.segment.clone() }
    }

    /// Sets the limits of the producer. Chunks from `gate_seq` on must not be overwritten. Chunks
    /// from `credit_seq` on must not be published. All payload bytes together must not exceed
    /// `credit_bytes`. `u64::MAX` means no limit. All chunks before `read_seq` were read. Each of
    /// the four numbers is valid by itself, so a torn look at them equals two looks.
    pub fn set_gate(&self, gate_seq: u64, credit_seq: u64, credit_bytes: u64, read_seq: u64) {
        assert!(gate_seq > 0); // A page begins with 0: then nothing was allowed yet.
        assert!(gate_seq <= read_seq); // What is not read is not overwritten.
        self.segment.word(CREDIT_SEQ).store(credit_seq, Ordering::Relaxed);
        self.segment.word(CREDIT_BYTES).store(credit_bytes, Ordering::Relaxed);
        self.segment.word(READ_SEQ).store(read_seq, Ordering::Relaxed);
        self.segment.word(GATE_SEQ).store(gate_seq, Ordering::Release); // control:gate
        let epoch = self.segment.word(GATE_EPOCH);
        let next = epoch.load(Ordering::Relaxed).wrapping_add(1);
        epoch.store(next, Ordering::Release); // control:gate
    }

    /// Wakes the producer that waits for the gate to move, or for the end of the execution.
    pub fn wake_producer(&self) {
        let epoch = self.segment.word(GATE_EPOCH);
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        futex::wake_all(epoch);
    }

    /// Announces that the server is about to block. A producer in another process then has to wake
    /// it for chunk `from_seq`, for all later ones, and for everything that is not a chunk. The
    /// server has to look once more at the ring and at the producer's page after this call.
    pub fn set_server_asleep(&self, from_seq: u64) {
        assert!(from_seq > 0);
        self.segment.word(SERVER_ASLEEP).store(from_seq, Ordering::Relaxed);
        full_fence(); // control:server-asleep
    }

    /// Announces that the server is awake.
    pub fn set_server_awake(&self) {
        self.segment.word(SERVER_ASLEEP).store(0, Ordering::Relaxed);
    }

    /// Stores the number of readers in other processes that read a producer's ring directly. The
    /// producer has to wake them.
    pub fn set_direct_readers(&self, reader_count: u32) {
        assert!(reader_count <= DOOR_READERS_PER_EXECUTION_MAX);
        self.segment.word(DIRECT_READERS).store(u64::from(reader_count), Ordering::Relaxed);
        full_fence(); // A new reader sees all earlier chunks, or is woken for them.
    }

    /// Tells a producer in another process to publish nothing more. [`ControlPage::wake_producer`]
    /// has to follow.
    pub fn close(&self) {
        self.segment.word(CLOSED).store(1, Ordering::Release);
    }

    /// Stores the exit of the process that the execution ran, as one number that is not 0. It has
    /// to precede [`ControlPage::finish`].
    pub fn set_exit(&self, packed: u64) {
        self.segment.word(EXIT).store(packed, Ordering::Relaxed);
    }

    /// Stores whether the shard wants to hear when a cursor moves. It then calls
    /// `ReaderSignals::knock` for the readers and looks at their cursors. A reader that moves after
    /// that look sees the new epoch at its next step, or before it sleeps. In the latter case it
    /// has passed a full fence.
    pub fn set_attention(&self, is_wanted: bool) {
        self.segment.word(ATTENTION).store(u64::from(is_wanted), Ordering::Relaxed);
        full_fence(); // control:attention
    }

    /// Stores the number of chunks that the tool announces.
    pub fn set_chunks_expected(&self, chunk_count: u64) {
        let raw = chunk_count.saturating_add(1);
        self.segment.word(CHUNKS_EXPECTED).store(raw, Ordering::Relaxed);
    }

    /// Stores the newest progress.
    pub fn set_progress(&mut self, record: &ProgressRecord) {
        assert!(self.progress_version.is_multiple_of(2)); // Even: the record is whole.
        self.progress_version += 2;
        let store = |word: usize, value: u64| {
            self.segment.word(word).store(value, Ordering::Relaxed);
        };
        store(PROGRESS_VERSION, self.progress_version - 1);
        fence(Ordering::Release); // control:progress
        store(PROGRESS_VALUE, record.progress.to_bits());
        store(PROGRESS_TOTAL, record.total.unwrap_or(f64::NAN).to_bits());
        store(PROGRESS_REPORTS, record.reports);
        record.message.store(&self.segment, PROGRESS_MESSAGE, PROGRESS_LENGTH);
        record.context.store(&self.segment, PROGRESS_CONTEXT, PROGRESS_CONTEXT_LENGTH);
        let version = self.segment.word(PROGRESS_VERSION);
        version.store(self.progress_version, Ordering::Release); // control:progress
    }

    /// Ends the execution, once.
    ///
    /// # Panics
    /// If it has ended before.
    pub fn finish(&self, record: &FinalRecord, error_text: &str) {
        let was_finished = self.is_finished.swap(true, Ordering::Relaxed);
        assert!(!was_finished); // Exactly one end.
        self.store_end(record, error_text);
    }

    /// Stores an end like [`ControlPage::finish`], without the check for an earlier end.
    pub(super) fn store_end(&self, record: &FinalRecord, error_text: &str) {
        let verdict = self.segment.word(VERDICT);
        self.segment.word(FINAL_HEAD_SEQ).store(record.head_seq, Ordering::Relaxed);
        for (kind, total) in record.totals.each().iter().enumerate() {
            let word = FINAL_TOTALS + 2 * kind;
            self.segment.word(word).store(total.chunks, Ordering::Relaxed);
            self.segment.word(word + 1).store(total.bytes, Ordering::Relaxed);
        }
        let text = ShortText::<ERROR_TEXT_BYTES_MAX>::new(error_text);
        text.store(&self.segment, ERROR_TEXT, ERROR_LENGTH);
        verdict.store(u64::from(record.verdict.get()), Ordering::Release); // control:verdict
    }
}

impl ControlView {
    /// Takes the page at the start of `segment`, which another process may write. Returns `None` if
    /// none is there.
    pub(super) fn at(segment: &Segment, magic: u64) -> Option<ControlView> {
        if segment.bytes() < CONTROL_WORDS * 8 {
            return None;
        }
        let is_ours = load_acquire(segment.word(MAGIC)) == magic
            && segment.word(VERSION).load(Ordering::Relaxed) == PAGE_VERSION;
        assert!(magic == CONTROL_MAGIC || magic == PRODUCER_MAGIC);
        is_ours.then(|| ControlView { segment: segment.part(0, CONTROL_WORDS * 8) })
    }

    /// The first chunk for which a sleeping server has to be woken; `None` if it is awake. For
    /// anything that is not a chunk it has to be woken in any case. Call it after the store that
    /// the server should see, and one full fence.
    #[inline]
    pub fn server_asleep(&self) -> Option<NonZeroU64> {
        let from_seq = self.segment.word(SERVER_ASLEEP).load(Ordering::Relaxed);
        NonZeroU64::new(from_seq) // control:server-asleep
    }

    /// True if the server sleeps and need not be woken for chunk `seq`. Call it after the store
    /// that the server should see, and one full fence.
    pub fn sleeps_through(&self, seq: u64) -> bool {
        self.server_asleep().is_some_and(|from_seq| from_seq.get() > seq)
    }

    /// True if readers read a producer's ring directly. Call it after a publish and one full fence.
    #[inline]
    pub fn has_direct_readers(&self) -> bool {
        self.segment.word(DIRECT_READERS).load(Ordering::Relaxed) != 0
    }

    /// True if a producer in another process may not publish any more.
    #[inline]
    pub fn is_closed(&self) -> bool {
        load_acquire(self.segment.word(CLOSED)) != 0
    }

    /// The exit of the process that the execution ran; 0 if it had none. It is valid once
    /// [`ControlView::final_record`] returns a record.
    pub fn exit(&self) -> u64 {
        self.segment.word(EXIT).load(Ordering::Relaxed)
    }

    /// The limits of the producer: (gate_seq, credit_seq, credit_bytes, read_seq).
    #[inline]
    pub fn gate(&self) -> (u64, u64, u64, u64) {
        let gate_seq = load_acquire(self.segment.word(GATE_SEQ)); // control:gate
        let credit_seq = self.segment.word(CREDIT_SEQ).load(Ordering::Relaxed);
        let credit_bytes = self.segment.word(CREDIT_BYTES).load(Ordering::Relaxed);
        let read_seq = self.segment.word(READ_SEQ).load(Ordering::Relaxed);
        (gate_seq, credit_seq, credit_bytes, read_seq)
    }

    /// The epoch of the gate, which changes whenever the gate is set. Read it before the gate, for
    /// [`ControlView::wait_gate`].
    #[inline]
    pub fn gate_epoch(&self) -> u64 {
        load_acquire(self.segment.word(GATE_EPOCH)) // control:gate
    }

    /// The word of [`ControlView::gate_epoch`], for a sleep on several words.
    pub fn gate_epoch_word(&self) -> &AtomicU64 {
        self.segment.word(GATE_EPOCH)
    }

    /// Sleeps until the gate is set again after `epoch` was read. It sleeps at most for
    /// [`READER_SLEEP_MAX`], as the page may be a hostile one.
    pub fn wait_gate(&self, epoch: u64) {
        self.wait_gate_for(epoch, READER_SLEEP_MAX);
    }

    /// Like [`ControlView::wait_gate`], for a page of this process: it sleeps at most for
    /// `timeout`.
    pub fn wait_gate_for(&self, epoch: u64, timeout: Duration) {
        let _ = futex::wait(self.segment.word(GATE_EPOCH), epoch as u32, timeout);
    }

    /// True if the shard wants to hear that a cursor has moved. Check it after its
    /// `ReaderSignals::knock`.
    #[inline]
    pub fn attention_hint(&self) -> bool {
        self.segment.word(ATTENTION).load(Ordering::Relaxed) != 0
    }

    /// The number of chunks that the tool announced, if it did.
    pub fn chunks_expected(&self) -> Option<u64> {
        self.segment.word(CHUNKS_EXPECTED).load(Ordering::Relaxed).checked_sub(1)
    }

    /// The end, if it has come. A code that no shard of ours stores reads as `None`.
    pub fn final_record(&self) -> Option<FinalRecord> {
        let raw = load_acquire(self.segment.word(VERDICT)); // control:verdict
        let verdict = u8::try_from(raw).ok().and_then(NonZeroU8::new)?;
        let head_seq = self.segment.word(FINAL_HEAD_SEQ).load(Ordering::Relaxed);
        let mut totals = KindTotals::default();
        for (kind, total) in totals.each_mut().iter_mut().enumerate() {
            let word = FINAL_TOTALS + 2 * kind;
            total.chunks = self.segment.word(word).load(Ordering::Relaxed);
            total.bytes = self.segment.word(word + 1).load(Ordering::Relaxed);
        }
        Some(FinalRecord { verdict, head_seq, totals })
    }

    /// The error text, once [`ControlView::final_record`] returns a record; empty after a success.
    pub fn error_text(&self) -> ShortText<ERROR_TEXT_BYTES_MAX> {
        let _ = load_acquire(self.segment.word(VERDICT)); // control:verdict
        ShortText::load(&self.segment, ERROR_TEXT, ERROR_LENGTH)
    }

    /// The newest progress. `None` if none was stored, or if its writer stays in the middle of a
    /// change. In the latter case the next call may succeed.
    pub fn progress(&self) -> Option<ProgressRecord> {
        for _ in 0..SEQLOCK_ATTEMPTS_MAX {
            let version = load_acquire(self.segment.word(PROGRESS_VERSION)); // control:progress
            let load = |word: usize| self.segment.word(word).load(Ordering::Relaxed);
            let progress = f64::from_bits(load(PROGRESS_VALUE));
            let total = f64::from_bits(load(PROGRESS_TOTAL));
            let reports = load(PROGRESS_REPORTS);
            let message = ShortText::load(&self.segment, PROGRESS_MESSAGE, PROGRESS_LENGTH);
            let context = ShortText::load(&self.segment, PROGRESS_CONTEXT, PROGRESS_CONTEXT_LENGTH);
            fence(Ordering::Acquire); // control:progress
            if load(PROGRESS_VERSION) == version && version.is_multiple_of(2) {
                let total = total.is_finite().then_some(total);
                let record = ProgressRecord { progress, total, reports, message, context };
                return (version > 0 && progress.is_finite()).then_some(record);
            }
            spin_hint();
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stream::Totals;

    #[test]
    fn an_end_is_seen_whole_or_not_at_all() {
        let page = ControlPage::new();
        let view = page.view();
        assert_eq!(view.final_record(), None);
        assert_eq!(view.chunks_expected(), None);
        page.set_chunks_expected(0);
        assert_eq!(view.chunks_expected(), Some(0));
        let mut totals = KindTotals::default();
        totals[15] = Totals { chunks: 3, bytes: 99 };
        let record = FinalRecord { verdict: NonZeroU8::new(2).unwrap(), head_seq: 3, totals };
        let long_text = "ä".repeat(200); // 400 bytes: cut at 256, between characters.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while view.final_record().is_none() {
                    spin_hint();
                }
                assert_eq!(view.final_record(), Some(record));
                assert_eq!(view.error_text().as_str(), "ä".repeat(128));
            });
            page.finish(&record, &long_text);
        });
    }

    #[test]
    #[should_panic(expected = "was_finished")]
    fn an_execution_ends_once() {
        let page = ControlPage::new();
        let verdict = NonZeroU8::MIN;
        let record = FinalRecord { verdict, head_seq: 0, totals: KindTotals::default() };
        page.finish(&record, "");
        page.finish(&record, "");
    }

    #[test]
    fn a_progress_record_is_never_torn() {
        let mut page = ControlPage::new();
        let view = page.view();
        assert_eq!(view.progress(), None);
        let last = if cfg!(miri) { 8 } else { 50_000u64 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut seen = 0;
                while seen < last {
                    let Some(record) = view.progress() else { continue };
                    assert!(record.reports >= seen);
                    seen = record.reports;
                    assert_eq!(record.progress, seen as f64 / 2.0);
                    assert_eq!(record.total, seen.is_multiple_of(2).then_some(seen as f64));
                    let text = format!("step {seen} {}", "x".repeat((seen % 100) as usize));
                    assert_eq!(record.message.as_str(), text);
                    assert_eq!(record.context.as_str(), &text[4..]);
                }
            });
            for reports in 1..=last {
                let text = format!("step {reports} {}", "x".repeat((reports % 100) as usize));
                page.set_progress(&ProgressRecord {
                    progress: reports as f64 / 2.0,
                    total: reports.is_multiple_of(2).then_some(reports as f64),
                    reports,
                    message: ShortText::new(&text),
                    context: ShortText::new(&text[4..]),
                });
            }
        });
    }

    #[test]
    fn what_a_hostile_shard_would_store_is_survived() {
        let page = ControlPage::new();
        let view = page.view();
        for word in 0..CONTROL_WORDS {
            page.segment.word(word).store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(view.final_record(), None);
        assert_eq!(view.error_text().as_str(), "");
        assert_eq!(view.progress(), None); // The version stays odd.
        page.segment.word(PROGRESS_VERSION).store(2, Ordering::Relaxed);
        assert_eq!(view.progress(), None); // The value is not a number.
    }
}
