//! The control page of an execution: what its shard tells producers and readers elsewhere.
//!
//! Written by the shard only ([`ControlPage`]), read by any thread or process ([`ControlView`]).
//! Carries no payload and wakes nobody.
//!
//! - `control:verdict`: the verdict is stored last, with release, and loaded first, with acquire:
//!   who sees it sees the final numbers and the error text, which then never change again;
//! - `control:gate`: who sees a gate sees what the reader behind it did before it moved there;
//! - `control:attention`: see [`ControlPage::set_attention`];
//! - `control:progress`: a record under a version word, even when whole;
//! - `control:server-asleep`: a server that is about to block and a producer in another process
//!   that has something for it each store, pass a full fence, then look; so do the server and a
//!   reader in another process that sleeps on its descriptor.
//!
//! A page can stand at the start of a file that other processes map (`shared.rs`); a producer in
//! another process tells with the same layout how far it is and how it ended.
//!
//! Tests: below; the attention handshake in `loom_tests.rs`.

use std::num::{NonZeroU8, NonZeroU64};

use super::atomic::{AtomicBool, AtomicU64, Ordering, fence, full_fence, load_acquire, spin_hint};
use super::copy;
use super::futex;
use super::layout::KindTotals;
use super::segment::Segment;
use crate::limits::{
    ERROR_TEXT_BYTES_MAX, KINDS_MAX, PROGRESS_CONTEXT_BYTES_MAX, PROGRESS_MESSAGE_BYTES_MAX,
    READER_SLEEP_MAX, SEQLOCK_ATTEMPTS_MAX,
};

// Words. Groups that move at different rates are 128 bytes apart.
const GATE_SEQ: usize = 0;
const CREDIT_SEQ: usize = 1;
const CREDIT_BYTES: usize = 2;
const GATE_EPOCH: usize = 3;
const READ_SEQ: usize = 4;
/// On the line that a producer looks at anyway. 0: the server looks by itself; else it sleeps, and
/// is to be woken for this chunk and all behind it, and for everything that is no chunk.
const SERVER_ASLEEP: usize = 8;
const DIRECT_READERS: usize = 9;
const CLOSED: usize = 10;
const ATTENTION: usize = 16;
const CHUNKS_EXPECTED: usize = 17; // One more than expected; 0: nobody said.
const EXIT: usize = 18; // How its process ended, packed by who stores it; 0: it had none.
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
/// Words of one page; what follows in the same file begins on lines of its own.
pub(super) const CONTROL_WORDS: usize = 288;
/// Version of everything in this file, in `desk_slot.rs`, `reader_page.rs` and `owner.rs`.
pub(super) const PAGE_VERSION: u64 = 1;
/// "sdctrl": what a server tells.
pub(super) const CONTROL_MAGIC: u64 = 0x0102_6c72_7463_6473;
/// "sdprod": what a producer in another process tells.
pub(super) const PRODUCER_MAGIC: u64 = 0x0102_646f_7270_6473;

const _: () = {
    assert!(FINAL_TOTALS + 2 * KINDS_MAX <= ERROR_TEXT);
    assert!(ERROR_TEXT + ERROR_TEXT_BYTES_MAX / 8 <= PROGRESS_VERSION);
    assert!(PROGRESS_MESSAGE + PROGRESS_MESSAGE_BYTES_MAX / 8 <= PROGRESS_CONTEXT);
    assert!(PROGRESS_CONTEXT + PROGRESS_CONTEXT_BYTES_MAX / 8 <= MAGIC);
    assert!(CONTROL_WORDS.is_multiple_of(16)); // What follows is on lines of its own.
};

/// The shard's side: the one writer of the page.
pub struct ControlPage {
    segment: Segment,
    progress_version: u64,
    /// It was ended. Not looked up in the page: others may write to that of a named ring.
    is_finished: AtomicBool,
}

/// Everyone else's side. What it reads may come from a hostile process: all of it is checked.
#[derive(Clone)]
pub struct ControlView {
    segment: Segment,
}

/// How an execution ended, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalRecord {
    /// Which terminal state, in the engine's code.
    pub verdict: NonZeroU8,
    /// The last chunk.
    pub head_seq: u64,
    /// All chunks, per kind.
    pub totals: KindTotals,
}

/// How far an execution is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProgressRecord {
    /// How far, on the axis that the first report fixed.
    pub progress: f64,
    /// Where the axis ends, if known.
    pub total: Option<f64>,
    /// Reports so far.
    pub reports: u64,
    /// What the tool said to it.
    pub message: ShortText<PROGRESS_MESSAGE_BYTES_MAX>,
    /// What it added in JSON.
    pub context: ShortText<PROGRESS_CONTEXT_BYTES_MAX>,
}

/// UTF-8 text of at most `BYTES_MAX` bytes, without an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortText<const BYTES_MAX: usize> {
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl<const BYTES_MAX: usize> ShortText<BYTES_MAX> {
    /// As much of `text` as fits, cut between characters.
    pub fn new(text: &str) -> ShortText<BYTES_MAX> {
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
        // Ours was cut between characters; a foreign one was cut to its valid prefix.
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }

    fn store(&self, segment: &Segment, word: usize, length_word: usize) {
        let padded_length = self.length.next_multiple_of(8);
        copy::words_in(segment, word * 8, &self.bytes[..padded_length]);
        segment.word(length_word).store(self.length as u64, Ordering::Relaxed);
    }

    /// Takes length and bytes as they are found, and keeps the prefix that is text.
    fn load(segment: &Segment, word: usize, length_word: usize) -> ShortText<BYTES_MAX> {
        let length = segment.word(length_word).load(Ordering::Relaxed).min(BYTES_MAX as u64);
        let length = length as usize;
        let mut bytes = [0; BYTES_MAX];
        copy::words_out(segment, word * 8, &mut bytes[..length.next_multiple_of(8)]);
        let length = match std::str::from_utf8(&bytes[..length]) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        ShortText { bytes, length }
    }
}

impl Default for ControlPage {
    fn default() -> ControlPage {
        ControlPage::new()
    }
}

impl ControlPage {
    /// A page of this process: gate at 0 (nothing may be overwritten), no verdict.
    pub fn new() -> ControlPage {
        ControlPage::of(Segment::heap(CONTROL_WORDS))
    }

    /// A page at the start of `segment`, which is zero and which nobody else writes.
    pub(super) fn at(segment: &Segment, magic: u64) -> ControlPage {
        segment.word(VERSION).store(PAGE_VERSION, Ordering::Relaxed);
        segment.word(MAGIC).store(magic, Ordering::Release);
        ControlPage::of(segment.part(0, CONTROL_WORDS * 8))
    }

    fn of(segment: Segment) -> ControlPage {
        ControlPage { segment, progress_version: 0, is_finished: AtomicBool::new(false) }
    }

    /// The side for everyone else.
    pub fn view(&self) -> ControlView {
        ControlView { segment: self.segment.clone() }
    }

    /// Chunks from `gate_seq` on must not be overwritten, chunks from `credit_seq` on not be
    /// published, and all payload bytes together not pass `credit_bytes`; `u64::MAX`: no bound.
    /// Everything before `read_seq` was read. Each of the four holds for itself: a torn look at
    /// them is as good as two looks.
    pub fn set_gate(&self, gate_seq: u64, credit_seq: u64, credit_bytes: u64, read_seq: u64) {
        self.segment.word(CREDIT_SEQ).store(credit_seq, Ordering::Relaxed);
        self.segment.word(CREDIT_BYTES).store(credit_bytes, Ordering::Relaxed);
        self.segment.word(READ_SEQ).store(read_seq, Ordering::Relaxed);
        self.segment.word(GATE_SEQ).store(gate_seq, Ordering::Release); // control:gate
        let epoch = self.segment.word(GATE_EPOCH);
        let next = epoch.load(Ordering::Relaxed).wrapping_add(1);
        epoch.store(next, Ordering::Release); // control:gate
    }

    /// Wakes the producer that waits for the gate to move (or for its end: it looks).
    pub fn wake_producer(&self) {
        let epoch = self.segment.word(GATE_EPOCH);
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        futex::wake_all(epoch);
    }

    /// Says that the server is about to block, so that a producer in another process has to knock:
    /// for chunk `from_seq` and those behind it, and for everything that is no chunk. The server
    /// then has to look once more at the ring and at the producer's page.
    pub fn set_server_asleep(&self, from_seq: u64) {
        assert!(from_seq > 0);
        self.segment.word(SERVER_ASLEEP).store(from_seq, Ordering::Relaxed);
        full_fence(); // control:server-asleep
    }

    /// Says that the server looks by itself.
    pub fn set_server_awake(&self) {
        self.segment.word(SERVER_ASLEEP).store(0, Ordering::Relaxed);
    }

    /// How many readers in other processes read a producer's ring itself, and are to be woken by
    /// it.
    pub fn set_direct_readers(&self, reader_count: u32) {
        self.segment.word(DIRECT_READERS).store(u64::from(reader_count), Ordering::Relaxed);
        full_fence(); // Whoever is admitted sees what was published before, or is woken for it.
    }

    /// Tells a producer in another process to publish nothing more. [`ControlPage::wake_producer`]
    /// has to follow.
    pub fn close(&self) {
        self.segment.word(CLOSED).store(1, Ordering::Release);
    }

    /// How the process ended that the execution has run, as one number that is not 0; before
    /// [`ControlPage::finish`].
    pub fn set_exit(&self, packed: u64) {
        self.segment.word(EXIT).store(packed, Ordering::Relaxed);
    }

    /// Says whether the shard wants to be told when a cursor moves. It then knocks for the readers
    /// (`Desk::knock`) and looks where they stand. A reader that moves after that look hears the
    /// knock at its next step, or before it sleeps: then it has passed a full fence.
    pub fn set_attention(&self, is_wanted: bool) {
        self.segment.word(ATTENTION).store(u64::from(is_wanted), Ordering::Relaxed);
        full_fence(); // control:attention
    }

    /// How many chunks the tool says there will be.
    pub fn set_chunks_expected(&self, chunk_count: u64) {
        let raw = chunk_count.saturating_add(1);
        self.segment.word(CHUNKS_EXPECTED).store(raw, Ordering::Relaxed);
    }

    /// The newest progress.
    pub fn set_progress(&mut self, record: &ProgressRecord) {
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

    /// Ends the execution. Once.
    ///
    /// # Panics
    /// If it has ended before.
    pub fn finish(&self, record: &FinalRecord, error_text: &str) {
        let was_finished = self.is_finished.swap(true, Ordering::Relaxed);
        assert!(!was_finished); // Exactly one end.
        self.store_end(record, error_text);
    }

    /// As [`ControlPage::finish`], of a page whose words are not looked at.
    pub(super) fn store_end(&self, record: &FinalRecord, error_text: &str) {
        let verdict = self.segment.word(VERDICT);
        self.segment.word(FINAL_HEAD_SEQ).store(record.head_seq, Ordering::Relaxed);
        for (kind, total) in record.totals.iter().enumerate() {
            let word = FINAL_TOTALS + 2 * kind;
            self.segment.word(word).store(total.count, Ordering::Relaxed);
            self.segment.word(word + 1).store(total.bytes, Ordering::Relaxed);
        }
        let text = ShortText::<ERROR_TEXT_BYTES_MAX>::new(error_text);
        text.store(&self.segment, ERROR_TEXT, ERROR_LENGTH);
        verdict.store(u64::from(record.verdict.get()), Ordering::Release); // control:verdict
    }
}

impl ControlView {
    /// Of a page at the start of `segment`, which another process may write. `None`: it is none.
    pub(super) fn at(segment: &Segment, magic: u64) -> Option<ControlView> {
        if segment.bytes() < CONTROL_WORDS * 8 {
            return None;
        }
        let is_ours = load_acquire(segment.word(MAGIC)) == magic
            && segment.word(VERSION).load(Ordering::Relaxed) == PAGE_VERSION;
        is_ours.then(|| ControlView { segment: segment.part(0, CONTROL_WORDS * 8) })
    }

    /// From which chunk on the server has to be knocked for, if it sleeps; for everything else it
    /// then has to be in any case. To be asked after what it is to see, and one full fence.
    #[inline]
    pub fn server_asleep(&self) -> Option<NonZeroU64> {
        let from_seq = self.segment.word(SERVER_ASLEEP).load(Ordering::Relaxed);
        NonZeroU64::new(from_seq) // control:server-asleep
    }

    /// Does the server sleep, and would not be knocked for chunk `seq`? To be asked after what it
    /// is to see, and one full fence.
    pub fn sleeps_through(&self, seq: u64) -> bool {
        self.server_asleep().is_some_and(|from_seq| from_seq.get() > seq)
    }

    /// Are there readers of a producer's ring itself? To be asked after a publish and one full
    /// fence.
    #[inline]
    pub fn has_direct_readers(&self) -> bool {
        self.segment.word(DIRECT_READERS).load(Ordering::Relaxed) != 0
    }

    /// Is nothing taken any more of what a producer in another process publishes?
    #[inline]
    pub fn is_closed(&self) -> bool {
        load_acquire(self.segment.word(CLOSED)) != 0
    }

    /// How the process ended that the execution has run, once there is a
    /// [`ControlView::final_record`]; 0 if it had none.
    pub fn exit(&self) -> u64 {
        self.segment.word(EXIT).load(Ordering::Relaxed)
    }

    /// What the producer is allowed: (gate_seq, credit_seq, credit_bytes, read_seq).
    #[inline]
    pub fn gate(&self) -> (u64, u64, u64, u64) {
        let gate_seq = load_acquire(self.segment.word(GATE_SEQ)); // control:gate
        let credit_seq = self.segment.word(CREDIT_SEQ).load(Ordering::Relaxed);
        let credit_bytes = self.segment.word(CREDIT_BYTES).load(Ordering::Relaxed);
        let read_seq = self.segment.word(READ_SEQ).load(Ordering::Relaxed);
        (gate_seq, credit_seq, credit_bytes, read_seq)
    }

    /// Changes whenever the gate was set: to be read before the gate, for
    /// [`ControlView::wait_gate`].
    #[inline]
    pub fn gate_epoch(&self) -> u64 {
        load_acquire(self.segment.word(GATE_EPOCH)) // control:gate
    }

    /// The word of [`ControlView::gate_epoch`], to sleep on with others.
    pub fn gate_epoch_word(&self) -> &AtomicU64 {
        self.segment.word(GATE_EPOCH)
    }

    /// Sleeps until the gate is set again after `epoch` was read, at most for
    /// [`READER_SLEEP_MAX`]: the page may be a hostile one.
    pub fn wait_gate(&self, epoch: u64) {
        let _ = futex::wait(self.segment.word(GATE_EPOCH), epoch as u32, READER_SLEEP_MAX);
    }

    /// Does the shard want to be told that a cursor has moved? Looked at after its knock.
    #[inline]
    pub fn attention_hint(&self) -> bool {
        self.segment.word(ATTENTION).load(Ordering::Relaxed) != 0
    }

    /// How many chunks there will be, if the tool said so.
    pub fn chunks_expected(&self) -> Option<u64> {
        self.segment.word(CHUNKS_EXPECTED).load(Ordering::Relaxed).checked_sub(1)
    }

    /// The end, if it has come. A code that no shard of ours stores reads as none.
    pub fn final_record(&self) -> Option<FinalRecord> {
        let raw = load_acquire(self.segment.word(VERDICT)); // control:verdict
        let verdict = u8::try_from(raw).ok().and_then(NonZeroU8::new)?;
        let head_seq = self.segment.word(FINAL_HEAD_SEQ).load(Ordering::Relaxed);
        let mut totals = KindTotals::default();
        for (kind, total) in totals.iter_mut().enumerate() {
            let word = FINAL_TOTALS + 2 * kind;
            total.count = self.segment.word(word).load(Ordering::Relaxed);
            total.bytes = self.segment.word(word + 1).load(Ordering::Relaxed);
        }
        Some(FinalRecord { verdict, head_seq, totals })
    }

    /// What went wrong, once there is a [`ControlView::final_record`]; empty if nothing did.
    pub fn error_text(&self) -> ShortText<ERROR_TEXT_BYTES_MAX> {
        let _ = load_acquire(self.segment.word(VERDICT)); // control:verdict
        ShortText::load(&self.segment, ERROR_TEXT, ERROR_LENGTH)
    }

    /// The newest progress; `None` if there is none, or if its writer stays in the middle of a
    /// change: then the next one will do.
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
    use crate::memory::layout::KindTotal;

    #[test]
    fn an_end_is_seen_whole_or_not_at_all() {
        let page = ControlPage::new();
        let view = page.view();
        assert_eq!(view.final_record(), None);
        assert_eq!(view.chunks_expected(), None);
        page.set_chunks_expected(0);
        assert_eq!(view.chunks_expected(), Some(0));
        let mut totals = KindTotals::default();
        totals[15] = KindTotal { count: 3, bytes: 99 };
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
        assert_eq!(view.progress(), None); // An odd version for ever.
        page.segment.word(PROGRESS_VERSION).store(2, Ordering::Relaxed);
        assert_eq!(view.progress(), None); // Not a number.
    }
}
