//! Memory that an execution shares with other threads of this process: what its shard tells them,
//! and the words that replace a lock. It is made when the first of them comes. Most calls have
//! none: their tool and their subscribers are on the shard's own thread.

use std::sync::{Arc, OnceLock};

use super::delivery::{code_of_exit, code_of_outcome};
use super::outlet::GuestRun;
use super::run::Run;
use crate::engine::{Engine, Verdict};
use crate::memory::{ControlPage, Exchange, FinalRecord, ProgressRecord, ReaderSignals, ShortText};
use crate::reactor::Waker;
use crate::stream::Progress;

/// The memory that an execution shares with other threads, beside its ring.
#[derive(Default)]
pub struct Pages {
    pub control: ControlPage,
    pub exchange: Arc<Exchange>,
    pub prompt: Arc<PromptReader>,
}

/// A reader in a reactor that the thread of the tool wakes by itself, before the shard has looked.
/// There is one at most, so that a tool never wakes many.
#[derive(Default)]
pub struct PromptReader(OnceLock<(Waker, Arc<ReaderSignals>)>);

impl PromptReader {
    /// Sets the reader, unless there was one before.
    pub fn set(&self, waker: Waker, signals: Arc<ReaderSignals>) {
        let _ = self.0.set((waker, signals)); // The shard wakes all others.
    }

    /// Wakes the reader if it sleeps. Call it after a publish and one full fence.
    pub fn wake(&self, exchange: &Exchange) {
        if let Some((waker, signals)) = self.0.get()
            && exchange.end_reactor_sleep(signals.reactor_sleep())
        {
            waker.wake();
        }
    }
}

/// Returns the pages of an execution. New ones tell everything that older ones would tell.
/// `is_watched` is true if the shard wants to hear when a cursor moves.
pub(super) fn pages_of<'a, X: GuestRun>(
    run: &'a mut Run<X>,
    engine: &Engine,
    is_watched: bool,
) -> &'a mut Pages {
    if run.pages.is_none() {
        let mut pages = Box::<Pages>::default();
        tell_all(run, engine, is_watched, &mut pages.control);
        if run.has_verdict {
            pages.exchange.close();
        }
        run.pages = Some(pages);
    }
    run.pages.as_mut().expect("they are there now")
}

/// Tells a new page what the other pages of the execution have been told.
pub(super) fn tell_all<X: GuestRun>(
    run: &Run<X>,
    engine: &Engine,
    is_watched: bool,
    page: &mut ControlPage,
) {
    if let Some(chunk_count) = run.chunks_expected {
        page.set_chunks_expected(chunk_count);
    }
    if let Some(progress) = engine.reported_progress(run.handle) {
        page.set_progress(&record_of(engine, run, progress));
    }
    page.set_attention(is_watched);
    if run.has_verdict {
        let verdict = engine.verdict(run.handle).expect("it has ended");
        tell_end(page, &verdict);
    }
}

/// Returns the newest progress of an execution in the form of a page.
pub(super) fn record_of<X: GuestRun>(
    engine: &Engine,
    run: &Run<X>,
    progress: Progress,
) -> ProgressRecord {
    let (message, context) = engine.progress_texts(run.handle);
    ProgressRecord {
        progress: progress.progress,
        total: progress.total,
        reports: progress.report_count,
        message: ShortText::new(message.unwrap_or("")),
        context: ShortText::new(context.unwrap_or("")),
    }
}

/// Tells a page the end of the execution, once.
pub(super) fn tell_end(page: &mut ControlPage, verdict: &Verdict) {
    let code = code_of_outcome(verdict.outcome);
    let record = FinalRecord {
        verdict: code.try_into().expect("codes begin at 1"),
        head_seq: verdict.head_seq,
        totals: verdict.totals,
    };
    page.set_exit(verdict.exit.map_or(0, code_of_exit));
    page.finish(&record, verdict.error.as_deref().unwrap_or(""));
}
