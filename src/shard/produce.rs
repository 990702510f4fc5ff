//! Steps tools, starts producers, and tells the engine what was published.

use std::ops::RangeInclusive;
use std::sync::Arc;

use smallvec::SmallVec;

use super::handle::{Command, ToolDone};
use super::journal::Telling;
use super::outlet::{GuestRun, GuestWork, Outlet, Reader, ShardEvent};
use super::pages::{Pages, pages_of};
use super::run::{Producer, Remote, Ring, Run, ThreadClock, ThreadHost};
use super::{Shard, Threads, act, growth, journal};
use crate::base::planted::{Planted, planted};
use crate::base::{Guarded, Handle, SubscriberId, guarded};
use crate::engine::{ChunkFacts, Event, Gate, ProducerEnd};
use crate::limits;
use crate::memory::{Descriptor, Exchange, LeaveReason, Poll, RingWriter, WildCursor};
use crate::reactor::Reactor;
use crate::stream::{Kind, Totals};
use crate::tool::{Blocking, Context, Job, Output, Step, ToolError, ToolUpdate, Work, panic_error};
use crate::trace::{Code, Duty};

impl<X: GuestRun> Run<X> {
    /// The gate of the producer: the engine's, with the limit that no chunk may be overwritten
    /// before the engine was told of it (S2). While the ring grows for its history, none may be
    /// overwritten at all.
    #[inline]
    pub fn allowed(&self) -> Gate {
        let mut gate_seq = self.gate.gate_seq.min(self.ingested_seq + 1);
        if self.keeps_history
            && let Ring::Here(writer) = &self.ring
        {
            gate_seq = gate_seq.min(writer.tail_seq());
        }
        Gate { gate_seq, ..self.gate }
    }

    /// Publishes the gate of a producer on another thread or in another process, and wakes the
    /// producer if it waits. The next time that it finds no room counts again.
    pub fn publish_gate(&mut self) {
        match &self.producer {
            Producer::Thread(_) => self.publish_thread_gate(),
            Producer::Outside => self.guest.publish_gate(self.allowed()),
            _ => return,
        }
        self.blocked = false;
    }

    fn publish_thread_gate(&self) {
        let Gate { gate_seq, credit_seq, credit_bytes, read_seq } = self.allowed();
        let Pages { control, exchange, .. } = self.pages.as_deref().expect("a thread shares them");
        control.set_gate(gate_seq, credit_seq, credit_bytes, read_seq);
        if exchange.is_gated() {
            exchange.set_gated(false);
            control.wake_producer();
        }
    }

    /// True if the published gate is what the producer is allowed (S2). Producers on the shard's
    /// thread need no published gate.
    pub fn is_gate_told(&self) -> bool {
        let Gate { gate_seq, credit_seq, credit_bytes, read_seq } = self.allowed();
        let allowed = (gate_seq, credit_seq, credit_bytes, read_seq);
        match &self.producer {
            Producer::Thread(_) => {
                self.pages.as_ref().is_some_and(|pages| pages.control.view().gate() == allowed)
            }
            Producer::Outside => {
                self.guest.published_gate().is_none_or(|gate| gate == self.allowed())
            }
            _ => true,
        }
    }

    /// Returns the cursor of one of its readers elsewhere.
    pub(crate) fn sample_reader(&mut self, at: usize) -> Result<u64, WildCursor> {
        let Run { remotes, ring, guest, ingested_seq, .. } = self;
        let was_told = |seq| seq <= *ingested_seq; // Also without a ring.
        remotes[at].sample(|seq| was_told(seq) || guest.has_been(seq) || ring.has_been(seq))
    }

    /// Collects the facts of chunks that the engine was not told of yet.
    #[inline]
    fn chunk_facts(&self, seqs: RangeInclusive<u64>, facts: &mut impl Extend<ChunkFacts>) {
        match &self.ring {
            Ring::Here(writer) | Ring::Back(writer) => {
                let tail_seq = writer.tail_seq();
                facts.extend(seqs.map(|seq| facts_of_chunk(&writer.descriptor(seq), tail_seq)));
            }
            Ring::Away(reader) => facts.extend(seqs.map(|seq| match reader.poll(seq) {
                // S2: it is gated until the engine was told of it.
                Poll::Ready(descriptor) => facts_of_chunk(&descriptor, reader.tail_seq()),
                other => panic!("chunk {seq} of our own ring is {other:?}"),
            })),
            Ring::None => unreachable!("an execution with chunks has a ring"),
        }
    }
}

#[inline]
fn facts_of_chunk(descriptor: &Descriptor, tail_seq: u64) -> ChunkFacts {
    ChunkFacts {
        length: descriptor.length,
        kind: Kind::new(descriptor.header.kind).expect("this process wrote it"),
        key: descriptor.header.key,
        tail_seq,
    }
}

/// Steps each runnable tool once.
pub(super) fn step_tools<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    for _ in 0..shard.runnable.len() {
        let Some(index) = shard.runnable.pop_front() else { return };
        let Some(run) = shard.runs[index as usize].as_mut() else { continue };
        run.runnable = false;
        step(shard, index);
    }
}

pub(super) fn step<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, index: u32) {
    let run = shard.runs[index as usize].as_mut().expect("the caller looked");
    let (handle, before) = (run.handle, run.allowed());
    let (Producer::Steps(tool), Ring::Here(writer)) = (&mut run.producer, &mut run.ring) else {
        return; // It was stopped meanwhile.
    };
    let published = Totals { chunks: writer.head_seq(), bytes: writer.total_bytes() };
    let mut updates = ToolUpdate::default();
    let mut context =
        Context::new(shard.now, writer, before, run.chunk_bytes_max, &mut updates, &run.trace);
    let mut has_panicked = false;
    let step = guarded(|| tool.step(&mut context)).unwrap_or_else(|panicked| {
        shard.counters.tools_panicked += 1;
        has_panicked = true;
        Step::Failed(panic_error(&panicked))
    });
    run.has_panicked = has_panicked;
    shard.worked = true;
    let chunk_bytes_wanted = context.chunk_bytes_wanted();
    let blocked_step = BlockedStep { handle, before, published, chunk_bytes_wanted };
    pass_on(shard, handle, &updates);
    ingest(shard, index);
    match step {
        Step::Again => act::make_runnable(shard, index),
        Step::Blocked => blocked(shard, &blocked_step),
        Step::Sleep(until) => shard.tell(Event::Sleeping(handle, until)),
        Step::Done => producer_ended(shard, handle, Ok(())),
        Step::Failed(error) => producer_ended(shard, handle, Err(error)),
    }
}

/// The beginning of a blocked step, and its wish.
struct BlockedStep {
    handle: Handle,
    /// The gate within which it found no room.
    before: Gate,
    /// The chunks before the step.
    published: Totals,
    /// The length of a chunk that is too long for now; 0 without one.
    chunk_bytes_wanted: usize,
}

/// Handles a tool that found no room.
fn blocked<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, step: &BlockedStep) {
    let index = step.handle.index;
    if may_go_on(shard, step) {
        act::make_runnable(shard, index);
        return;
    }
    let run = shard.runs[index as usize].as_mut().filter(|run| run.handle == step.handle);
    let Some(run) = run else { return }; // It has ended meanwhile.
    run.blocked = true;
    ask_for_room(shard, index);
    let run = shard.runs[index as usize].as_ref();
    if run.is_some_and(|run| run.blocked) && growth::grow(shard, index) {
        act::make_runnable(shard, index);
    }
}

/// True if a tool that found no room may look again at once: its ring has grown, or its own chunks
/// were in the way.
fn may_go_on<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    step: &BlockedStep,
) -> bool {
    let BlockedStep { handle, before, published, chunk_bytes_wanted } = *step;
    let index = handle.index;
    let run = shard.runs[index as usize].as_ref();
    let Some(run) = run.filter(|run| run.handle == handle) else { return false };
    if chunk_bytes_wanted > 0 {
        growth::grow_for_chunk(shard, index, chunk_bytes_wanted);
        return true; // Without a larger ring, the chunk is too long now.
    }
    let (is_filled, was_in_its_own_way) = (run.is_filled_since(published), run.allowed() != before);
    growth::grow_for_history(shard, index)
        || is_filled && growth::grow(shard, index) // It takes more chunks in one step.
        || was_in_its_own_way
}

/// Lets the engine find out whether the producer can continue, and otherwise which reader holds
/// it back.
pub(super) fn ask_for_room<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
) {
    sample_readers(shard, index);
    let run = shard.runs[index as usize].as_mut().expect("the caller looked");
    if !run.is_gate_told() {
        run.publish_gate(); // Otherwise it would wait for ever.
        note_gate_told_late(shard, index);
        return;
    }
    let handle = run.handle;
    let event = match run.is_held_by_disk() {
        true => Event::HeldByDisk(handle),
        false => Event::Gated(handle),
    };
    shard.tell(event);
    act::pump(shard);
}

pub(super) fn note_gate_told_late<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
) {
    shard.counters.gates_told_late += 1;
    O::report(shard, &ShardEvent::GateToldLate(index));
}

/// Tells the engine the cursors of readers on other threads.
pub(super) fn sample_readers<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
) {
    let Some(run) = shard.runs[index as usize].as_mut() else { return };
    for at in 0..run.remotes.len() {
        let run = shard.runs[index as usize].as_mut().expect("it was just there");
        let Some(subscriber) = run.remotes.get(at).map(|remote| remote.subscriber) else {
            break;
        };
        match run.sample_reader(at) {
            Ok(cursor) => shard.tell(Event::ReaderAt(subscriber, cursor)),
            Err(wild) => evict_reader(shard, index, subscriber, wild),
        }
    }
}

/// Evicts a reader with an impossible cursor.
pub(super) fn evict_reader<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    subscriber: SubscriberId,
    wild: WildCursor,
) {
    shard.counters.door_readers_evicted += 1;
    shard.record(Code::OutsideRefused, u64::from(subscriber.0.index), wild.cursor);
    O::report(shard, &ShardEvent::Evicted(index, subscriber, &wild));
    shard.tell(Event::ReaderWild(subscriber));
}

pub(super) fn producer_ended<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    handle: Handle,
    result: Result<(), ToolError>,
) {
    if let Some(run) = shard.runs[handle.index as usize].as_mut()
        && run.handle == handle
    {
        run.producer = Producer::Gone;
        match run.late.is_some() {
            true => journal::end_late(shard, handle, result),
            false => tell_end(shard, handle, &result),
        }
    }
}

/// Tells the engine the end of a producer. It knows all chunks.
pub(super) fn tell_end<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    handle: Handle,
    result: &Result<(), ToolError>,
) {
    let end = match result {
        Ok(()) => ProducerEnd::Done,
        Err(ToolError::Stopped) => ProducerEnd::Stopped,
        Err(ToolError::Failed(text)) => ProducerEnd::Failed(text),
    };
    shard.tell(Event::ProducerEnded(handle, end));
}

/// Passes on the notes of a tool: its total, exit status and progress.
pub(super) fn pass_on<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    handle: Handle,
    updates: &ToolUpdate,
) {
    if let Some(chunk_count) = updates.chunks_expected {
        let run = act::run_mut(shard, handle);
        run.chunks_expected = Some(chunk_count);
        run.tell_pages(|page| page.set_chunks_expected(chunk_count));
        shard.tell(Event::TotalExpected(handle, chunk_count));
    }
    if let Some(exit) = updates.exit {
        shard.tell(Event::Exited(handle, exit));
    }
    if let Some(wish) = &updates.sync {
        journal::await_sync(shard, handle, wish.clone());
    }
    for report in &updates.reports {
        shard.counters.progress_reported += 1;
        shard.tell(Event::Progressed(handle, report.as_event()));
        act::pump(shard); // Texts are not conflated: each is delivered before the next.
    }
}

/// Tells the engine what was published, in bursts that are within every local subscriber's
/// limit. Between two bursts the subscribers are given what they are owed. Publishes the gate
/// of a producer on another thread, which may overwrite these chunks from now on (S2).
pub(super) fn ingest<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, index: u32) {
    match &shard.runs[index as usize] {
        Some(run) if run.late.is_some() => journal::ingest_late(shard, index),
        Some(_) => ingest_through(shard, index, Run::head_seq),
        None => {}
    }
}

/// Tells the engine of everything through the chunk that `last` returns.
#[inline]
pub(super) fn ingest_through<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    last: impl Fn(&Run<O::Run>) -> u64,
) {
    let mut first = true;
    loop {
        O::make_room(shard);
        let Some(run) = shard.runs[index as usize].as_mut() else { return };
        let head_seq = last(run);
        if run.ingested_seq >= head_seq {
            if !first && !planted(Planted::GatePublishedInTurnsOnly) {
                run.publish_gate();
            }
            return;
        }
        shard.worked = true;
        shard.did.note(Duty::Chunks);
        if first && run.has_readers_elsewhere() && !shard.published.contains(&index) {
            shard.published.push(index);
        }
        first = false;
        let burst = u64::from(shard.engine.burst_chunks(run.handle));
        let until_seq = head_seq.min(run.ingested_seq + burst);
        let mut facts: SmallVec<[ChunkFacts; limits::BURST_CHUNKS_MAX as usize]> = SmallVec::new();
        run.chunk_facts(run.ingested_seq + 1..=until_seq, &mut facts);
        shard.guests.copy_out(run, until_seq, &mut shard.scratch);
        if run.kept.is_some() {
            let _ = journal::keep_chunks(shard, index, until_seq); // It comes here if it is late.
        }
        let run = shard.runs[index as usize].as_mut().expect("it was just there");
        shard.engine.publish(run.handle, &facts, shard.now);
        run.ingested_seq = until_seq;
        act::pump(shard);
        shard.deadline_stale |= shard.engine.take_has_armed();
    }
}

/// Like [`Shard::ingest`], for chunks that were just written here.
#[inline]
pub(super) fn ingest_written<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    facts: &[ChunkFacts],
) {
    tell_of_written(shard, index, facts);
    act::pump_if_due(shard);
    shard.deadline_stale |= shard.engine.take_has_armed();
}

/// Tells the engine and the guests of chunks that were just written here. Returns true if one
/// delivery to all local subscribers is all that follows. It has to be carried out at once.
#[inline(always)] // Their number is known where they were written.
pub(super) fn tell_of_written<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    facts: &[ChunkFacts],
) -> bool {
    O::make_room(shard);
    let run = shard.runs[index as usize].as_mut().expect("they were written to its ring");
    let until_seq = run.ingested_seq + facts.len() as u64;
    if run.kept.is_some() && journal::keep_chunks(shard, index, until_seq) == Telling::Late {
        journal::ingest_late(shard, index);
        return false;
    }
    let run = shard.runs[index as usize].as_mut().expect("they were written to its ring");
    shard.guests.copy_out(run, until_seq, &mut shard.scratch);
    let is_made_up = shard.engine.publish(run.handle, facts, shard.now);
    run.ingested_seq += facts.len() as u64;
    assert!(run.ingested_seq == run.head_seq());
    if run.has_readers_elsewhere() && !shard.published.contains(&index) {
        shard.published.push(index);
    }
    is_made_up
}

/// Tells the engine of chunks that another process has written, and that it need not know one by
/// one. `through` are the totals of all chunks.
pub(super) fn ingest_passed<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    through: Totals,
) {
    let run = shard.runs[index as usize].as_mut().expect("its producer has published");
    let handle = run.handle;
    assert!(through.chunks > run.ingested_seq);
    assert!(run.kept.is_none()); // W1: each of them would have to be kept.
    run.ingested_seq = through.chunks;
    if run.has_readers_elsewhere() && !shard.published.contains(&index) {
        shard.published.push(index);
    }
    shard.tell(Event::PassedOver(handle, through));
    act::pump(shard);
}

/// Wakes readers on other threads that sleep although there are chunks for them.
#[inline(always)]
pub(super) fn wake_readers<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    if !shard.published.is_empty() {
        wake_readers_of_published(shard);
    }
}

#[inline(never)]
pub(super) fn wake_readers_of_published<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
) {
    while !shard.published.is_empty() {
        // exchange:sleep, exchange:reactor-sleep and page:asleep, once for all of this turn's
        // chunks.
        crate::memory::atomic::full_fence();
        while let Some(index) = shard.published.pop() {
            let reactor = &mut shard.reactor;
            if let Some(run) = &mut shard.runs[index as usize] {
                run.wake_readers(|waker| reactor.wake(waker));
            }
            O::on_readers_woken(shard, index);
        }
        O::after_wake(shard);
    }
}

pub(super) fn start_producer<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    handle: Handle,
) {
    let run = act::run_mut(shard, handle);
    let Producer::Waiting(work) = std::mem::replace(&mut run.producer, Producer::Gone) else {
        unreachable!("a producer is started once");
    };
    match work.into_inner() {
        Work::Feed => {
            run.producer = Producer::Feed;
            O::on_fed(shard, handle);
        }
        Work::Remote(call) => {
            run.producer = Producer::Feed;
            O::start(shard, handle, GuestWork::Remote(call));
        }
        Work::Steps(tool) => {
            run.producer = Producer::Steps(Guarded::new(tool));
            act::make_runnable(shard, handle.index);
        }
        Work::Thread(work) => start_thread(shard, handle, Guarded::new(work)),
        Work::Agent(call) => O::start(shard, handle, GuestWork::Agent(call)),
    }
}

pub(super) fn start_thread<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    handle: Handle,
    work: Guarded<Blocking>,
) {
    let clock = match shard.threads {
        Threads::Pool(_) => ThreadClock::Real,
        Threads::ByHand => ThreadClock::Fixed(shard.now),
    };
    let is_watched = shard.watched.contains(&handle.index);
    let run = act::run_in(&mut shard.runs, handle);
    let pages = pages_of(run, &shard.engine, is_watched);
    let (control, exchange) = (pages.control.view(), Arc::clone(&pages.exchange));
    let (signals, prompt) = (Arc::clone(&shard.signals), Arc::clone(&pages.prompt));
    let host = Arc::new(ThreadHost::new(signals, clock, prompt));
    let Ring::Here(writer) = std::mem::replace(&mut run.ring, Ring::None) else {
        unreachable!("it was leased a ring");
    };
    run.ring = Ring::Away(writer.reader());
    run.producer = Producer::Thread(Arc::clone(&host));
    run.publish_gate();
    let trace = std::mem::take(&mut run.trace);
    let output = Output::new(writer, control, exchange, host, trace);
    shard.away.push(handle.index);
    let (mailbox, signals) = (shard.mailbox_sender.clone(), Arc::clone(&shard.signals));
    let done = Box::new(move |writer: RingWriter, result, panicked| {
        // If the shard is gone, nobody needs to know.
        let tool_done = Box::new(ToolDone { handle, writer, result, panicked });
        if mailbox.send(Command::ToolDone(tool_done)).is_ok() {
            signals.waker.wake();
        }
    });
    let job = Box::new(Job { output, work: work.into_inner(), done });
    let refused = match &shard.threads {
        Threads::ByHand => {
            shard.jobs.push_back(Guarded::new(job));
            None
        }
        Threads::Pool(pool) => pool.submit(job).err(),
    };
    if let Some(job) = refused {
        let waiting_max = limits::TOOL_QUEUE_MAX;
        let text = format!(
            "all threads are busy, and {waiting_max} tools wait for one already; try again \
             later"
        );
        let Job { output, work, done: _ } = *job;
        drop(Guarded::new(work));
        let (writer, result) = (output.into_writer(), Err(ToolError::new(text)));
        tool_done(shard, ToolDone { handle, writer, result, panicked: false });
    }
}

/// Handles the return of the writer from a tool's thread.
pub(super) fn tool_done<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    tool_done: ToolDone,
) {
    let ToolDone { handle, writer, result, panicked } = tool_done;
    shard.counters.tools_panicked += u64::from(panicked);
    let run = shard.runs[handle.index as usize].as_mut().filter(|run| run.handle == handle);
    let Some(run) = run else {
        act::give_back(shard, writer.into_lease()); // Its execution was forgotten long ago.
        shard.tell(Event::RingReturned);
        return;
    };
    let updates = match &run.producer {
        Producer::Thread(host) => host.take_notes(),
        _ => None,
    };
    run.ring = Ring::Back(writer);
    run.has_panicked = panicked;
    run.stopping = false;
    let index = handle.index;
    shard.away.retain(|&away| away != index);
    if let Some(updates) = updates {
        pass_on(shard, handle, &updates);
    }
    if has_ended(shard, handle) {
        return; // It was stopped, and its end was reported before it returned.
    }
    ingest(shard, index);
    producer_ended(shard, handle, result);
}

pub(super) fn has_ended<R: Reactor + 'static, O: Outlet<R>>(
    shard: &Shard<R, O>,
    handle: Handle,
) -> bool {
    let run = shard.runs[handle.index as usize].as_ref();
    run.is_none_or(|run| matches!(run.producer, Producer::Gone))
}

/// Takes over what tools on other threads have published, and handles those that wait.
pub(super) fn take_over_threads<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    for at in (0..shard.away.len()).rev() {
        let Some(&index) = shard.away.get(at) else { continue };
        take_over(shard, index);
    }
}

pub(super) fn take_over<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, index: u32) {
    let Some(run) = shard.runs[index as usize].as_mut() else { return };
    let handle = run.handle;
    let Producer::Thread(host) = &run.producer else { return };
    // Read before the head, and only after the close. The notes below may stop the tool, and
    // then it may write until it sees that.
    let exchange = run.exchange().expect("a thread shares it");
    let quiet = run.stopping && exchange.is_quiet();
    let is_gated = exchange.is_gated();
    if let Some(updates) = host.take_notes() {
        pass_on(shard, handle, &updates);
    }
    let ingested_before = shard.runs[index as usize].as_ref().map_or(0, |r| r.ingested_seq);
    ingest(shard, index);
    let Some(run) = shard.runs[index as usize].as_mut() else { return };
    if run.stopping {
        if quiet {
            run.stopping = false;
            producer_ended(shard, handle, Err(ToolError::Stopped));
        } else {
            shard.signals.waker.wake(); // It is in the middle of a chunk: look again at once.
        }
        return;
    }
    // The flag was set before the head was read, so the engine knows all chunks of the thread.
    let has_moved = run.ingested_seq != ingested_before;
    if has_moved && planted(Planted::GatePublishedInTurnsOnly) {
        run.publish_gate();
    }
    if is_gated && !has_moved && !run.blocked && run.exchange().is_some_and(Exchange::is_gated) {
        run.blocked = true;
        shard.record(Code::ProducerPaused, u64::from(index), 0);
        ask_for_room(shard, index);
    }
}

/// Handles readers on other threads that have left.
pub(super) fn dismiss_departed<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    while let Some((mut remote, how, index)) = take_departed(shard) {
        let subscriber = remote.subscriber;
        act::take_sink(shard, subscriber);
        match how {
            LeaveReason::Done => shard.tell(Event::ReaderGone(subscriber)),
            LeaveReason::Lost => {
                // It is not sampled again, so this is its final cursor.
                ingest(shard, index);
                let run = shard.runs[index as usize].as_ref();
                let has_been =
                    |seq| run.is_none_or(|run| seq <= run.ingested_seq || run.ring.has_been(seq));
                let cursor = remote
                    .sample(has_been)
                    .expect("a reader of this process has a possible cursor");
                shard.tell(Event::ReaderAt(subscriber, cursor));
                shard.tell(Event::Lost(subscriber));
            }
        }
    }
}

// A reader of another thread that left, the reason, and the index of its execution.
type Departed<R, O> = (Remote<Reader<R, O>>, LeaveReason, u32);

fn take_departed<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
) -> Option<Departed<R, O>> {
    for run in shard.runs.iter_mut().flatten() {
        for (at, remote) in run.remotes.iter().enumerate() {
            if let Some(how) = remote.left() {
                return Some((run.remotes.swap_remove(at), how, run.handle.index));
            }
        }
    }
    None
}
