//! Carries out the actions of the engine.

use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::delivery::{Delivery, Ended, Reported, code_of_outcome};
use super::give::{begin_fan_out, fan_out};
use super::outlet::{GuestRun, Outlet, ShardEvent};
use super::pages::{self, Pages};
use super::panics::Callback;
use super::run::{Producer, Ring, Run};
use super::{Call, Item, Shard, Sink, journal, memory, panics, produce};
use crate::base::planted::{Planted, planted};
use crate::base::table::Table;
use crate::base::{Handle, Panicked, SubscriberId, guarded};
use crate::engine::{Action, Event, Gate, ProducerEnd, RingFacts, RingFit, Verdict};
use crate::memory::{
    ControlPage, Descriptor, Exchange, Geometry, Lease, ReadError, RingWriter, Start,
};
use crate::reactor::Reactor;
use crate::stream::{DetachReason, End};
use crate::tool::{Host, ToolError};
use crate::trace::{Code, Duty};

/// Carries out all pending actions of the engine.
#[inline]
pub(super) fn pump<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    while let Err(panic) = catch_unwind(AssertUnwindSafe(|| pump_until_done(shard))) {
        end_panicked(shard, panic);
    }
}

/// Like [`pump`], if there is anything to carry out.
#[inline(always)]
pub(super) fn pump_if_due<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    if !shard.engine.is_settled() || shard.fan.is_some() {
        pump(shard);
    }
}

/// Ends the subscription whose closure has panicked (S3). Any other panic is the shard's own.
#[cold]
pub(super) fn end_panicked<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    panic: Box<dyn Any + Send>,
) {
    let Some(subscriber) = called(shard) else {
        shard.is_broken = true;
        resume_unwind(panic)
    };
    shard.sinks[subscriber.0.index as usize] = Sink::NONE;
    panics::note_panic(shard, Callback::Subscriber(subscriber), &Panicked::of(panic));
    shard.tell(Event::Broken(subscriber));
}

#[inline]
pub(super) fn pump_until_done<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    loop {
        // A fan-out that a closure's panic has cut short comes first.
        if shard.fan.is_none() && shard.engine.next_fan_out() {
            begin_fan_out(shard);
        }
        if shard.fan.is_some() {
            fan_out(shard);
            O::flush_if_due(shard);
        } else if let Some(queued) = shard.engine.next_queued_action() {
            carry_out(shard, queued);
        } else {
            return;
        }
    }
}

/// Returns the subscriber whose closure is running, if one is, and forgets that it runs.
pub(super) fn called<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
) -> Option<SubscriberId> {
    let Some(fan) = &mut shard.fan else { return shard.calling.take() };
    let subscriber = shard.engine.recipients().get(fan.at).copied()?;
    let is_closure = matches!(shard.sinks[subscriber.0.index as usize].call, Call::Closure(_));
    fan.at += 1;
    is_closure.then_some(subscriber)
}

/// Carries out an action other than a delivery.
pub(super) fn carry_out<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    action: Action,
) {
    shard.worked = true;
    if shard.observer.is_some() {
        let_see(shard, &action);
    }
    act(shard, action);
}

/// Shows an action to the observer.
#[cold]
pub(super) fn let_see<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    action: &Action,
) {
    let recipients = match action {
        Action::Deliver { .. } => shard.engine.recipients(),
        _ => &[],
    };
    let Some(observer) = &mut shard.observer else { return };
    if let Err(panicked) = guarded(|| observer(action, recipients)) {
        shard.observer = None;
        panics::note_panic(shard, Callback::Observer, &panicked);
    }
}

pub(super) fn act<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, action: Action) {
    shard.deadline_stale = true;
    note_down(shard, &action);
    match action {
        Action::Deliver { .. } => unreachable!("deliveries come from `Engine::next_fan_out`"),
        // The caller has taken its reply already. This one is for a closure that panicked.
        Action::Reply(_) => {}
        Action::Lease(execution, fit) => lease(shard, execution, fit),
        Action::Release(execution) => release(shard, execution),
        Action::SetGate(execution, gate) => set_gate(shard, execution, gate),
        Action::WatchReaders(execution, watch) => watch_readers(shard, execution, watch),
        Action::StartProducer(execution) => produce::start_producer(shard, execution),
        Action::WakeProducer(execution) => wake_producer(shard, execution),
        Action::StopProducer(execution) => stop_producer(shard, execution),
        Action::KeepEnd(execution, verdict) => journal::keep_end(shard, execution, &verdict),
        Action::Fetch { subscriber, execution, from_seq, until_seq, chunks_max } => {
            journal::fetch(shard, subscriber, execution, (from_seq, until_seq), chunks_max);
        }
        Action::Gap(subscriber, execution, gap) => {
            let to = Addressee {
                subscriber,
                sink: &mut shard.sinks[subscriber.0.index as usize],
                calling: &mut shard.calling,
                run: shard.runs[execution.index as usize].as_ref(),
                guests: &mut shard.guests,
                reactor: PhantomData,
            };
            to.give(&Delivery::Gap(gap), || Item::Gap(gap));
        }
        Action::Progress(subscriber, execution, progress) => {
            shard.counters.progress_delivered += 1;
            let (message, context) = shard.engine.progress_texts(execution);
            let to = Addressee {
                subscriber,
                sink: &mut shard.sinks[subscriber.0.index as usize],
                calling: &mut shard.calling,
                run: shard.runs[execution.index as usize].as_ref(),
                guests: &mut shard.guests,
                reactor: PhantomData,
            };
            let texts = || [message, context].map(|text| text.map(Box::from));
            let delivery = Delivery::Progress(Reported { progress, message, context });
            to.give(&delivery, || Item::Progress(progress, texts()));
        }
        Action::End(subscriber, execution, end) => {
            end_subscription(shard, subscriber, execution, end)
        }
        Action::Forget(subscriber, execution) => forget(shard, subscriber, execution),
        Action::Report(execution, progress) => {
            let run = run_in(&mut shard.runs, execution);
            let record = pages::record_of(&shard.engine, run, progress);
            run.tell_pages(|page| page.set_progress(&record));
            run.knock();
        }
        Action::Verdict(execution, verdict) => {
            journal::record_end(shard, execution, &verdict);
            write_verdict(shard, execution, &verdict);
        }
        Action::DetachReader(subscriber, execution, reason) => {
            detach_reader(shard, subscriber, execution, reason);
        }
    }
}

/// Records an action in the flight recorder, except for chunks, which are too many.
pub(super) fn note_down<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    action: &Action,
) {
    let (code, a, b) = match action {
        Action::Lease(execution, _) => (Code::RingLeased, execution.index, 0),
        Action::Release(execution) => (Code::RingReleased, execution.index, 0),
        Action::StopProducer(execution) => (Code::ProducerStopped, execution.index, 0),
        Action::Gap(subscriber, _, gap) => (Code::GapDelivered, subscriber.0.index, gap.to_seq),
        Action::End(subscriber, execution, _)
        | Action::DetachReader(subscriber, execution, _)
        | Action::Forget(subscriber, execution) => {
            (Code::SubscriberDetached, subscriber.0.index, u64::from(execution.index))
        }
        _ => return,
    };
    shard.record(code, u64::from(a), b);
}

/// Returns the execution that an action names. The engine names none that it has released.
pub(super) fn run_mut<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
) -> &mut Run<O::Run> {
    run_in(&mut shard.runs, execution)
}

/// Like [`run_mut`], for a caller that needs the shard's other fields beside it.
pub(super) fn run_in<X: GuestRun>(runs: &mut Table<Run<X>>, execution: Handle) -> &mut Run<X> {
    let run = runs[execution.index as usize].as_mut();
    let run = run.expect("the engine names living executions");
    assert!(run.handle == execution);
    run
}

pub(super) fn end_subscription<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    subscriber: SubscriberId,
    execution: Handle,
    end: End,
) {
    O::report(shard, &ShardEvent::Ended(subscriber, execution, &end));
    // Its place is free from here on, also for the closure that is called below.
    let sink = take_sink(shard, subscriber);
    let run = shard.runs[execution.index as usize].as_ref();
    let run = run.filter(|run| run.handle == execution);
    let error = run.and_then(|run| run.error.clone());
    match sink.call {
        Call::Closure(mut call) => {
            let last_word = Delivery::End(Ended { end, error: error.as_deref() });
            // The subscription is over, so its panic has nothing left to end.
            if let Err(panicked) = guarded(|| call(&last_word)) {
                panics::note_panic(shard, Callback::Subscriber(subscriber), &panicked);
            }
        }
        Call::Polled(inbox) => inbox.borrow_mut().push_back(Item::End(end, error)),
        Call::Guest(key) => {
            let last_word = Delivery::End(Ended { end, error: error.as_deref() });
            shard.guests.tell(key, subscriber, run, &last_word);
        }
        Call::Refill(_) | Call::Nobody => {} // It finds its end by itself.
    }
}

pub(super) fn take_sink<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    subscriber: SubscriberId,
) -> Sink<O::Key> {
    match shard.sinks.get_mut(subscriber.0.index as usize) {
        Some(sink) if sink.subscriber == Some(subscriber) => std::mem::replace(sink, Sink::NONE),
        _ => Sink::NONE, // It is on another thread.
    }
}

pub(super) fn forget<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    subscriber: SubscriberId,
    execution: Handle,
) {
    let sink = take_sink(shard, subscriber);
    if let Call::Polled(inbox) = sink.call {
        inbox.borrow_mut().clear(); // It has left: nothing comes any more.
    }
    // A reader on another thread does not know that yet, unless it has left by itself.
    let removed = run_mut(shard, execution).dismiss(subscriber, DetachReason::Removed);
    if let Some(remote) = removed {
        O::on_reader_removed(shard, execution.index, remote, DetachReason::Removed);
    }
}

pub(super) fn lease<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
    fit: RingFit,
) {
    shard.did.note(Duty::Rings);
    let run = run_mut(shard, execution);
    let (whole_bytes, chunk_bytes, grows) = (run.ring_bytes, run.chunk_bytes, run.grows);
    let ring_bytes = if grows { 0 } else { whole_bytes };
    let leased = match fit {
        RingFit::Whole => shard.rings.lease_whole(ring_bytes, chunk_bytes),
        RingFit::Any => shard.rings.lease(ring_bytes, chunk_bytes),
    };
    match leased {
        Ok(lease) => {
            let facts = facts_of(lease.geometry());
            let start =
                run_mut(shard, execution).start.take().map_or_else(Start::default, |at| *at);
            let writer = RingWriter::starting(lease, shard.anchor, &start);
            let whole = grows.then(|| memory::expected_ring(shard, whole_bytes, chunk_bytes).ok());
            let whole_max = whole.flatten().map_or(0, |ring| ring.chunk_bytes_max);
            let run = run_mut(shard, execution);
            run.ring = Ring::Here(writer);
            run.chunk_bytes_max = whole_max.max(facts.chunk_bytes_max);
            O::on_leased(shard, execution);
            shard.tell(Event::Leased(execution, facts));
        }
        Err(error) => match memory::never_leased(shard, &error, fit) {
            Some(text) => shard.tell(Event::LeaseRefused(execution, &text)),
            None => {
                shard.counters.executions_queued += u64::from(fit == RingFit::Any);
                shard.tell(Event::LeaseFailed(execution));
            }
        },
    }
}

pub(super) fn release<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
) {
    let Some(run) = shard.runs[execution.index as usize].take_if(|r| r.handle == execution) else {
        return;
    };
    if let Ring::Away(_) = run.ring {
        shard.away.retain(|&index| index != execution.index);
    }
    shard.watched.retain(|&index| index != execution.index);
    shard.published.retain(|&index| index != execution.index);
    shard.guests.on_released(execution);
    shard.places.remove(&run.id);
    if run.runnable {
        shard.runnable.retain(|&index| index != execution.index);
    }
    if let Some(asked_for) = &mut shard.asked_for
        && asked_for.execution == execution
        && let Ring::Here(writer) | Ring::Back(writer) = &run.ring
        && !asked_for.is_copied
    {
        let payload = writer.payload(asked_for.descriptor.seq);
        shard.asked_for_bytes[..payload.len()].copy_from_slice(payload);
        asked_for.is_copied = true;
    }
    match run.ring {
        Ring::Here(writer) | Ring::Back(writer) => {
            give_back(shard, writer.into_lease());
            shard.tell(Event::RingReturned);
        }
        // A tool that never returned still has the ring. It is closed, and comes back with the
        // tool.
        Ring::Away(_) => assert!(run.exchange().is_some_and(Exchange::is_closed)),
        Ring::None => {}
    }
}

pub(super) fn give_back<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>, lease: Lease) {
    shard.rings.give_back(lease);
}

pub(super) fn set_gate<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
    gate: Gate,
) {
    let run = run_mut(shard, execution);
    run.gate = gate;
    let blocked = std::mem::replace(&mut run.blocked, false);
    match &run.producer {
        Producer::Thread(_) => run.publish_gate(),
        Producer::Steps(_) if blocked => make_runnable(shard, execution.index),
        Producer::Feed | Producer::Outside => O::on_room(shard, execution, blocked),
        _ => {}
    }
}

/// Wakes a producer whose sleep is over.
pub(super) fn wake_producer<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
) {
    match run_mut(shard, execution).producer {
        Producer::Outside => O::on_due(shard, execution),
        _ => make_runnable(shard, execution.index),
    }
}

pub(super) fn make_runnable<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
) {
    let Some(run) = shard.runs[index as usize].as_mut() else { return };
    if matches!(run.producer, Producer::Steps(_)) && !run.runnable {
        run.runnable = true;
        shard.runnable.push_back(index);
    }
}

pub(super) fn watch_readers<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
    watch: bool,
) {
    shard.watched.retain(|&index| index != execution.index);
    if watch {
        shard.watched.push(execution.index);
    }
    let Some(run) = shard.runs[execution.index as usize].as_mut() else { return };
    run.tell_pages(|page| page.set_attention(watch));
    run.knock();
    if watch {
        produce::sample_readers(shard, execution.index); // Those that moved before they saw it.
    }
}

pub(super) fn stop_producer<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
) {
    if let Some(keeping) = &mut shard.keeping {
        keeping.stop_waiting(execution);
    }
    let run = run_mut(shard, execution);
    match std::mem::replace(&mut run.producer, Producer::Gone) {
        Producer::Thread(host) => {
            let Pages { control, exchange, .. } =
                run.pages.as_deref().expect("a thread shares them");
            exchange.close();
            host.call_stop_hook(); // After the close, so that a hook set too late sees it.
            control.wake_producer();
            run.producer = Producer::Thread(host);
            run.stopping = true; // `take_over_threads` reports when it is quiet.
            shard.worked = true;
        }
        Producer::Outside => {
            run.producer = Producer::Outside;
            match O::stop(shard, execution) {
                true => run_mut(shard, execution).stopping = true,
                false => {
                    run_mut(shard, execution).producer = Producer::Gone;
                    producer_stopped(shard, execution);
                }
            }
        }
        _ => producer_stopped(shard, execution),
    }
}

pub(super) fn producer_stopped<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
) {
    produce::producer_ended(shard, execution, Err(ToolError::Stopped));
    if planted(Planted::EndTwiceInCancelRace) {
        shard.tell(Event::ProducerEnded(execution, ProducerEnd::Done));
    }
}

pub(super) fn write_verdict<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    execution: Handle,
    verdict: &Verdict,
) {
    let is_closing = shard.closing;
    let run = run_mut(shard, execution);
    if let Producer::Waiting(_) = run.producer {
        run.producer = Producer::Gone; // It never began: there is no end to wait for.
    }
    if let Some(exchange) = run.exchange() {
        exchange.close();
    }
    let tell = |page: &mut ControlPage| pages::tell_end(page, verdict);
    match is_closing {
        // All readers were detached before, and that is their end, wherever their cursors are.
        // Those of a named ring cannot be told so.
        true => run.guest.write_hidden_page(&mut { tell }),
        false => {
            run.has_verdict = true;
            run.tell_pages(tell);
        }
    }
    run.error = verdict.error.clone();
    run.knock();
    O::on_ended(shard, execution, verdict);
    let code = code_of_outcome(verdict.outcome);
    shard.record(Code::ExecutionEnded, u64::from(execution.index), u64::from(code));
}

pub(super) fn detach_reader<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    subscriber: SubscriberId,
    execution: Handle,
    reason: DetachReason,
) {
    take_sink(shard, subscriber);
    let run = shard.runs[execution.index as usize].as_mut();
    if let Some(remote) = run.and_then(|run| run.dismiss(subscriber, reason)) {
        O::on_reader_removed(shard, execution.index, remote, reason);
    }
}

/// The recipient of a delivery other than a chunk.
struct Addressee<'a, R: Reactor + 'static, O: Outlet<R>> {
    subscriber: SubscriberId,
    sink: &'a mut Sink<O::Key>,
    /// Set to the subscriber while its closure runs.
    calling: &'a mut Option<SubscriberId>,
    /// The execution that it follows.
    run: Option<&'a Run<O::Run>>,
    guests: &'a mut O,
    reactor: PhantomData<R>,
}

impl<R: Reactor + 'static, O: Outlet<R>> Addressee<'_, R, O> {
    fn give(self, delivery: &Delivery<'_>, item: impl FnOnce() -> Item) {
        match &mut self.sink.call {
            Call::Closure(call) => {
                *self.calling = Some(self.subscriber);
                call(delivery);
                *self.calling = None;
            }
            Call::Polled(inbox) => inbox.borrow_mut().push_back(item()),
            Call::Guest(key) => self.guests.tell(*key, self.subscriber, self.run, delivery),
            Call::Refill(_) | Call::Nobody => {}
        }
    }
}

/// Reads a chunk of the ring: in place if only this thread writes there, otherwise as a checked
/// copy. Returns the oldest chunk that is still held if this one was overwritten without the
/// engine's knowledge.
#[inline(always)] // Descriptors are large, so none of them is moved.
pub(crate) fn read_chunk<'a, X: GuestRun>(
    run: &'a Run<X>,
    seq: u64,
    scratch: &'a mut [u8],
) -> Result<(Descriptor, &'a [u8]), u64> {
    match &run.ring {
        // Space lent to a tool has cost chunks, published or not. The engine is told of that later.
        Ring::Here(writer) | Ring::Back(writer) if !writer.is_held(seq) => Err(writer.tail_seq()),
        Ring::Here(writer) | Ring::Back(writer) => Ok(writer.chunk(seq)),
        Ring::Away(reader) => match reader.read(seq, scratch) {
            Ok(descriptor) => Ok((descriptor, &scratch[..descriptor.length as usize])),
            Err(ReadError::Overtaken { tail_seq }) => Err(tail_seq),
            Err(error) => panic!("chunk {seq} of our own ring: {error}"),
        },
        Ring::None => unreachable!("delivered chunks were published"),
    }
}

pub(super) fn facts_of(geometry: Geometry) -> RingFacts {
    RingFacts {
        slot_count: geometry.slot_count(),
        chunks_max: geometry.capacity_chunks(),
        chunk_bytes_max: geometry.length_max(),
        data_bytes: geometry.data_bytes(),
    }
}
