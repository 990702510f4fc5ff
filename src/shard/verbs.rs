//! The verbs of a shard for its guests: what the methods for owners are made of.

use std::sync::Arc;

use serde_json::Value;

use super::handle::Mailbox;
use super::journal::{AmendError, Described, EndedDetails, LogNews, OpenKept, ResumeError};
use super::outlet::{Outlet, Question};
use super::panics::Callback;
use super::replica::{self, Replica};
use super::run::Run;
use super::{
    ExecuteError, ExecuteOptions, JournalStatus, PublishError, Recall, Shard, act, feed, journal,
    memory, pages, panics, produce,
};
use crate::base::{ExecutionId, Handle, Panicked, SubscriberId};
use crate::engine::{ChunkFacts, Fetched, NotFound, RingFacts, SuspendError};
use crate::journal::Refused;
use crate::journal::format::{KeptChunk, Lsn};
use crate::memory::ControlPage;
use crate::reactor::Reactor;
use crate::stream::{Durability, Kind, KindTotals, Kinds, Totals};
use crate::tool::{StartError, ToolError, ToolUpdate};

impl<R: Reactor + 'static, O: Outlet<R>> Shard<R, O> {
    /// Carries out all pending actions of the engine.
    #[inline]
    pub(crate) fn pump(&mut self) {
        act::pump(self)
    }

    /// Returns the execution that an action names. The engine names none that it has released.
    pub(crate) fn run_mut(&mut self, execution: Handle) -> &mut Run<O::Run> {
        act::run_mut(self, execution)
    }

    /// The id in the engine of an execution. It is another one if the execution was brought back
    /// from the disk, or is one of another node.
    #[inline]
    pub(crate) fn place_of(&self, id: ExecutionId) -> ExecutionId {
        match self.places.is_empty() {
            true => id,
            false => self.places.get(&id).copied().unwrap_or(id),
        }
    }

    /// The run of an execution, if the shard has it.
    #[inline]
    pub(crate) fn run_of(&self, id: ExecutionId) -> Option<&Run<O::Run>> {
        let place = self.place_of(id).slot.index;
        self.runs.get(place as usize)?.as_ref().filter(|run| run.id == id)
    }

    /// Like [`Shard::run_of`], to change it.
    #[inline]
    pub(crate) fn run_of_mut(&mut self, id: ExecutionId) -> Option<&mut Run<O::Run>> {
        let place = self.place_of(id).slot.index;
        self.runs.get_mut(place as usize)?.as_mut().filter(|run| run.id == id)
    }

    /// The last chunk that is kept as the execution's [`Durability`] promises: 0 before the first.
    /// A chunk that was missed for want of room counts once the disk keeps a record of that. After
    /// [`JournalStatus::fault`] the number does not change any more. `None` if the execution is
    /// unknown, or nothing of it is kept.
    ///
    /// [`Durability`]: crate::stream::Durability
    /// [`JournalStatus::fault`]: super::JournalStatus::fault
    pub fn durable_seq(&self, id: ExecutionId) -> Option<u64> {
        let kept = self.run_of(id)?.kept?;
        self.keeping.as_ref()?.durable_seq(kept)
    }

    /// Brings back an execution that only the journal remembers, for example one from before a
    /// restart. That takes some turns: call it until it returns something else than
    /// [`Recall::Soon`].
    ///
    /// # Errors
    /// [`NotFound`] if nothing of it is kept.
    pub fn recall(&mut self, id: ExecutionId) -> Result<Recall, NotFound> {
        journal::recall(self, id)
    }

    /// Lists the executions that go on and have not ended, in the engine or not. Nothing is read.
    pub(crate) fn open_kept(&self) -> Vec<OpenKept> {
        self.keeping.as_deref().map_or_else(Vec::new, journal::open_kept)
    }

    /// Payload bytes of all chunks that the journal has taken of an execution.
    pub(crate) fn kept_bytes(&self, id: ExecutionId) -> Option<u64> {
        let kept = self.run_of(id)?.kept?;
        journal::published_bytes(self.keeping.as_deref()?, kept)
    }

    /// Brings an execution into the engine that goes on, behind its last kept chunk. Its owner
    /// feeds it by hand, under the same id. It does nothing if the execution is there already.
    ///
    /// `durability`, `deliver`, `on_full` and the ring are as they were at first. Without
    /// `timeouts` there are none.
    ///
    /// # Errors
    /// [`ResumeError`]; nothing has happened.
    pub(crate) fn resume(
        &mut self,
        id: ExecutionId,
        options: &ExecuteOptions,
    ) -> Result<(), ResumeError> {
        journal::resume(self, id, options)
    }

    /// Takes an execution out of the engine that goes on, without an end. It keeps its place in the
    /// journal, and [`Shard::resume`] brings it back.
    ///
    /// # Errors
    /// [`SuspendError`]; nothing has happened.
    #[allow(dead_code, reason = "only guests with streams of their own use it")]
    pub(crate) fn suspend(&mut self, id: ExecutionId) -> Result<(), SuspendError> {
        journal::suspend(self, id)
    }

    /// True if the journal has all chunks of an execution that were published, on the disk or not.
    #[allow(dead_code, reason = "only guests with streams of their own use it")]
    pub(crate) fn has_recorded(&self, id: ExecutionId) -> bool {
        self.run_of(id).is_none_or(journal::has_recorded)
    }

    /// Changes what the guests know of an open execution after a restart. The last change counts.
    /// Its record precedes the chunks that are published later. Returns its place, for
    /// [`Shard::is_amended`]. It is on its way to the disk at the end of the turn.
    ///
    /// # Errors
    /// [`AmendError`]; nothing has happened.
    pub(crate) fn amend(&mut self, id: ExecutionId, guest: Value) -> Result<Lsn, AmendError> {
        journal::amend(self, id, guest)
    }

    /// True if a change by [`Shard::amend`] is kept as the execution's durability promises.
    ///
    /// # Errors
    /// [`Refused::Broken`]: it never will be.
    #[allow(dead_code, reason = "only guests with streams of their own use it")]
    pub(crate) fn is_amended(&self, id: ExecutionId, lsn: Lsn) -> Result<bool, Refused> {
        let keeping = self.keeping.as_ref().expect("the place is one of it");
        journal::is_amended(keeping, id, lsn).map_err(|_| Refused::Broken)
    }

    /// True if an open execution is replicated.
    #[allow(dead_code, reason = "only guests with a log use it")]
    pub(crate) fn is_replicated(&self, id: ExecutionId) -> bool {
        let kept = self.run_of(id).and_then(|run| run.kept);
        let keeping = self.keeping.as_deref();
        kept.zip(keeping).is_some_and(|(kept, keeping)| keeping.logs.has(kept))
    }

    /// True if the log knows better than the disk how a replicated execution has ended: it was
    /// running when its process ended.
    #[allow(dead_code, reason = "only guests with a log use it")]
    pub(crate) fn is_left_to_log(&self, id: ExecutionId) -> bool {
        self.keeping.as_deref().is_some_and(|keeping| keeping.logs.is_left(id))
    }

    /// Takes news of the log of a replicated execution.
    #[allow(dead_code, reason = "only guests with a log use it")]
    pub(crate) fn on_logged(&mut self, id: ExecutionId, news: LogNews) {
        journal::on_logged(self, id, news);
    }

    /// The promise for the chunks of an execution with this option.
    pub(crate) fn durability_of(&self, option: Option<Durability>) -> Durability {
        let keeping = self.keeping.as_ref();
        keeping.map_or(Durability::None, |keeping| keeping.durability(option))
    }

    /// The wall-clock time at which an execution has ended, in microseconds since 1970, as its
    /// record says. `None` if its end is not recorded.
    pub(crate) fn kept_ended_us(&self, id: ExecutionId) -> Option<u64> {
        self.keeping.as_ref()?.ended_us(self.run_of(id)?.kept?)
    }

    /// Has what was recorded so far written at the end of the turn.
    pub(crate) fn write_kept_soon(&mut self) {
        if let Some(keeping) = self.keeping.as_deref_mut() {
            keeping.write_soon();
        }
    }

    /// A chunk on disk at or before this byte of an execution's payload, and the payload bytes of
    /// all chunks before it. `None` if it has to be looked for from the first chunk on.
    pub(crate) fn seek_kept(&self, id: ExecutionId, byte: u64) -> Option<(u64, u64)> {
        self.keeping.as_ref()?.seek(self.run_of(id)?.kept?, byte)
    }

    /// Deletes an ended execution from the journal. Returns the place to which the disk has to be
    /// synced; `None` if nothing of it is kept.
    ///
    /// # Errors
    /// The journal has no room for the record, or is broken.
    pub(crate) fn delete_kept(&mut self, id: ExecutionId) -> Result<Option<Lsn>, Refused> {
        let now = self.now;
        self.keeping.as_deref_mut().map_or(Ok(None), |keeping| keeping.delete(id, now))
    }

    /// True if the disk has everything before this place.
    ///
    /// # Errors
    /// [`Refused::Broken`]: it never will.
    pub(crate) fn is_synced_to(&self, lsn: Lsn) -> Result<bool, Refused> {
        let keeping = self.keeping.as_ref().expect("the place is one of it");
        keeping.is_synced_to(lsn).map_err(|_| Refused::Broken)
    }

    /// True if the disk has an execution through this chunk as promised: 0 for its beginning.
    ///
    /// # Errors
    /// [`Refused::Broken`]: it never will.
    pub(crate) fn is_durable_to(&self, id: ExecutionId, seq: u64) -> Result<bool, Refused> {
        let keeping = self.keeping.as_ref().ok_or(Refused::Broken)?;
        journal::is_durable_to(keeping, id, seq).map_err(|_| Refused::Broken)
    }

    /// Lets the disk hurry, because somebody waits for what an execution has appended.
    pub(crate) fn hurry_kept(&mut self, id: ExecutionId) {
        if let Some(keeping) = self.keeping.as_deref_mut() {
            journal::hurry(keeping, id);
        }
    }

    /// True if an execution promises that the disk has its chunks when they are acknowledged.
    pub(crate) fn promises_sync(&self, id: ExecutionId) -> bool {
        self.keeping.as_ref().is_some_and(|keeping| journal::promises_sync(keeping, id))
    }

    /// True if the shard has a journal whose disk has failed.
    pub(crate) fn has_failed_disk(&self) -> bool {
        self.keeping.as_ref().is_some_and(|keeping| journal::has_failed(keeping))
    }

    /// The number of things that the disk has done for the journal.
    pub(crate) fn disk_done_count(&self) -> u64 {
        self.keeping.as_ref().map_or(0, |keeping| keeping.done_count)
    }

    /// True if the shard has a journal.
    #[inline]
    pub(crate) fn has_journal(&self) -> bool {
        self.keeping.is_some()
    }

    /// Reads the descriptions of all ended executions in the journal. Nothing else runs meanwhile.
    pub(crate) fn describe_kept(&mut self) -> Vec<Described> {
        let Shard { keeping, reactor, .. } = self;
        keeping.as_deref_mut().map(|keeping| keeping.describe_all(reactor)).unwrap_or_default()
    }

    /// True if the journal keeps this execution.
    pub(crate) fn keeps(&self, id: ExecutionId) -> bool {
        self.keeping.as_ref().is_some_and(|keeping| keeping.keeps(id))
    }

    /// The state of the journal; `None` without one.
    pub fn journal(&self) -> Option<JournalStatus> {
        self.keeping.as_ref().map(|keeping| keeping.status())
    }

    /// The ids of all executions that the journal keeps, also of those from before a restart.
    pub fn kept_executions(&self) -> Vec<ExecutionId> {
        self.keeping.as_ref().map_or_else(Vec::new, |keeping| keeping.executions())
    }

    /// Tells a page that other processes begin to use what other pages of the execution know.
    pub(crate) fn tell_page(&self, index: u32, is_watched: bool, page: &mut ControlPage) {
        let run = self.runs[index as usize].as_ref().expect("the caller has it");
        pages::tell_all(run, &self.engine, is_watched, page);
    }

    /// Tells the engine the cursors of readers on other threads.
    pub(crate) fn sample_readers(&mut self, index: u32) {
        produce::sample_readers(self, index)
    }

    pub(crate) fn producer_ended(&mut self, handle: Handle, result: Result<(), ToolError>) {
        produce::producer_ended(self, handle, result)
    }

    /// Passes on the notes of a tool: its total, exit status and progress.
    pub(crate) fn pass_on(&mut self, handle: Handle, updates: &ToolUpdate) {
        produce::pass_on(self, handle, updates)
    }

    /// Tells the engine what was published, in bursts that are within every local subscriber's
    /// limit. Between two bursts the subscribers are given what they are owed. Publishes the gate
    /// of a producer on another thread, which may overwrite these chunks from now on (S2).
    pub(crate) fn ingest(&mut self, index: u32) {
        produce::ingest(self, index)
    }

    /// Like [`Shard::ingest`], for chunks that were just written here.
    #[inline]
    pub(crate) fn ingest_written(&mut self, index: u32, facts: &[ChunkFacts]) {
        produce::ingest_written(self, index, facts)
    }

    /// Tells the engine of chunks that it need not know one by one.
    pub(crate) fn ingest_passed(&mut self, index: u32, through: Totals) {
        produce::ingest_passed(self, index, through)
    }

    /// Wakes readers on other threads that sleep although there are chunks for them.
    #[inline]
    pub(crate) fn wake_readers(&mut self) {
        produce::wake_readers(self)
    }

    /// Handles readers on other threads that have left.
    pub(crate) fn dismiss_departed(&mut self) {
        produce::dismiss_departed(self)
    }

    /// Tells the engine that there is no room, once for each time that the gate is shut.
    pub(crate) fn say_that_it_is_gated(&mut self, index: u32) {
        feed::say_that_it_is_gated(self, index)
    }

    /// Publishes as much of a payload as there is room for, in pieces that the ring takes. All but
    /// the last piece are flagged `more`. Returns the number of bytes that were published. The
    /// kernel is not asked for moved readers: the caller will be told when there is room again.
    ///
    /// # Errors
    /// [`PublishError::NotFound`]; the execution may have ended after a part was published.
    pub(crate) fn publish_pieces(
        &mut self,
        id: ExecutionId,
        kind: Kind,
        payload: &[u8],
    ) -> Result<usize, PublishError> {
        feed::publish_pieces(self, id, kind, payload)
    }

    /// Gives the engine an execution of another node. A guest has its log, and answers the
    /// questions for chunks that its ring does not hold.
    ///
    /// # Errors
    /// [`ExecuteError`]; nothing has happened.
    pub(crate) fn adopt(&mut self, id: ExecutionId, replica: Replica) -> Result<(), ExecuteError> {
        replica::adopt(self, id, replica)
    }

    /// Publishes the next chunks of a replica, as far as there is room. Those that it has already
    /// are passed. Returns the number of the next chunk.
    ///
    /// # Errors
    /// [`PublishError::NotFound`].
    pub(crate) fn feed_replica<'a>(
        &mut self,
        id: ExecutionId,
        chunks: impl Iterator<Item = KeptChunk<'a>>,
    ) -> Result<u64, PublishError> {
        replica::feed(self, id, chunks)
    }

    /// Continues a replica behind chunks that its log does not have. Returns false if it has not
    /// begun yet.
    ///
    /// # Errors
    /// [`NotFound`].
    pub(crate) fn skip_replica(
        &mut self,
        id: ExecutionId,
        through: &KindTotals,
    ) -> Result<bool, NotFound> {
        replica::skip(self, id, through)
    }

    /// Ends a replica as its log says. Returns false if it has not begun yet.
    ///
    /// # Errors
    /// [`NotFound`].
    pub(crate) fn end_replica(
        &mut self,
        id: ExecutionId,
        details: &EndedDetails,
    ) -> Result<bool, NotFound> {
        replica::end(self, id, details)
    }

    /// Takes a replica out of the engine, if nobody follows it.
    ///
    /// # Errors
    /// [`SuspendError`]; nothing has happened.
    pub(crate) fn dismiss_replica(&mut self, id: ExecutionId) -> Result<(), SuspendError> {
        replica::dismiss(self, id)
    }

    /// Gives a subscriber old chunks, each with the payload bytes through it. `next` is told its
    /// kinds, and returns chunks of these only. Returns false if the subscriber has panicked.
    pub(crate) fn give_old<'a>(
        &mut self,
        question: &Question,
        next: impl FnMut(Kinds) -> Option<(KeptChunk<'a>, u64)>,
    ) -> bool {
        journal::give_all(self, (question.subscriber, question.execution), next)
    }

    /// Answers a question through the chunk before `until_seq`.
    pub(crate) fn answer_question(&mut self, question: &Question, until_seq: u64, result: Fetched) {
        let Question { subscriber, execution, from_seq, .. } = *question;
        journal::tell_fetched(self, (subscriber, execution), (from_seq, until_seq), result);
        self.pump();
    }

    /// True if a subscriber that has asked a question is still there.
    pub(crate) fn is_seated(&self, subscriber: SubscriberId) -> bool {
        let sink = self.sinks.get(subscriber.0.index as usize);
        sink.is_some_and(|sink| sink.subscriber == Some(subscriber))
    }

    /// The kinds of such a subscriber.
    pub(crate) fn kinds_of(&self, subscriber: SubscriberId) -> Kinds {
        self.sinks[subscriber.0.index as usize].kinds
    }

    /// Returns the ring that a tool gets if memory stays as it is.
    pub(crate) fn expected_ring(
        &self,
        ring_bytes: u32,
        chunk_bytes: u32,
    ) -> Result<RingFacts, ExecuteError> {
        memory::expected_ring(self, ring_bytes, chunk_bytes)
    }

    /// Counts and reports the panic of a callback.
    pub(crate) fn note_panic(&mut self, callback: Callback, panicked: &Panicked) {
        panics::note_panic(self, callback, panicked)
    }

    /// Counts and reports the panic of a tool while it was prepared to run.
    pub(crate) fn note_start<T>(
        &mut self,
        started: Result<T, StartError>,
    ) -> Result<T, StartError> {
        panics::note_start(self, started)
    }

    pub(crate) fn mailbox(&self) -> Mailbox<R, O> {
        Mailbox::new(self.mailbox_sender.clone(), Arc::clone(&self.signals))
    }
}
