//! Carries out the actions of the engine.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::delivery::{Chunk, Delivery, Ended, Reported, code_of_exit, code_of_outcome};
use super::outlet::{Giving, GuestRun, Notice, Outlet};
use super::panics::Callback;
use super::run::{Producer, Ring, Run};
use super::{AskedFor, Call, Fan, Item, Shard, Sink};
use crate::base::planted::{Planted, planted};
use crate::base::{Handle, Panicked, SubscriberId, guarded};
use crate::engine::{Action, Event, FanOut, Gate, Log, ProducerEnd, RingFacts, RingFit, Verdict};
use crate::memory::{
    ControlPage, Descriptor, FinalRecord, Geometry, Lease, ProgressRecord, ReadError, RingWriter,
    ShortText,
};
use crate::reactor::Reactor;
use crate::stream::{DetachReason, End};
use crate::tool::Host;
use crate::trace::{Code, Duty, probe};

impl<R: Reactor + 'static, O: Outlet<R>> Shard<R, O> {
    /// Carries out all pending actions of the engine.
    #[inline]
    pub(crate) fn pump(&mut self) {
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.pump_until_done())) {
            // S3: a closure's panic ends its subscription. Any other panic is the shard's own.
            let Some(subscriber) = self.called() else {
                self.is_broken = true;
                resume_unwind(panic)
            };
            self.sinks[subscriber.0.index as usize] = Sink::NONE;
            self.note_panic(Callback::Subscriber(subscriber), &Panicked::of(panic));
            self.tell(Event::Broken(subscriber));
        }
    }

    #[inline]
    fn pump_until_done(&mut self) {
        loop {
            // A fan-out that a closure's panic has cut short comes first.
            if self.fan.is_none() && self.engine.next_fan_out() {
                self.begin_fan_out();
            }
            if self.fan.is_some() {
                self.fan_out();
                O::flush_if_due(self);
            } else if let Some(wish) = self.engine.next_wish() {
                self.carry_out(wish);
            } else {
                return;
            }
        }
    }

    #[inline]
    fn begin_fan_out(&mut self) {
        self.worked = true;
        self.did.note(Duty::Deliveries);
        let &FanOut { execution, from_seq, until_seq, .. } = self.engine.fan_out();
        if self.observer.is_some() {
            self.let_see(&Action::Deliver { execution, from_seq, until_seq });
        }
        O::make_room(self);
        self.guests.begin_fan_out(&self.engine, execution);
        self.fan = Some(Fan { execution, next_seq: from_seq, until_seq, at: 0 });
    }

    /// Returns the subscriber whose closure is running, if one is, and forgets that it runs.
    fn called(&mut self) -> Option<SubscriberId> {
        let Some(fan) = &mut self.fan else { return self.calling.take() };
        let subscriber = self.engine.recipients().get(fan.at).copied()?;
        let is_closure = matches!(self.sinks[subscriber.0.index as usize].call, Call::Closure(_));
        fan.at += 1;
        is_closure.then_some(subscriber)
    }

    /// Carries out an action other than a delivery.
    pub(super) fn carry_out(&mut self, action: Action) {
        self.worked = true;
        if self.observer.is_some() {
            self.let_see(&action);
        }
        self.act(action);
    }

    /// Shows an action to the observer.
    #[cold]
    pub(super) fn let_see(&mut self, action: &Action) {
        let recipients = match action {
            Action::Deliver { .. } => self.engine.recipients(),
            _ => &[],
        };
        let Some(observer) = &mut self.observer else { return };
        if let Err(panicked) = guarded(|| observer(action, recipients)) {
            self.observer = None;
            self.note_panic(Callback::Observer, &panicked);
        }
    }

    fn act(&mut self, action: Action) {
        self.deadline_stale = true;
        self.note_down(&action);
        match action {
            Action::Deliver { .. } => unreachable!("deliveries come from `Engine::next_fan_out`"),
            // The caller has taken its reply already. This one is for a closure that panicked.
            Action::Reply(_) => {}
            Action::Lease(execution, fit) => self.lease(execution, fit),
            Action::Release(execution) => self.release(execution),
            Action::SetGate(execution, gate) => self.set_gate(execution, gate),
            Action::WatchReaders(execution, watch) => self.watch_readers(execution, watch),
            Action::StartProducer(execution) => self.start_producer(execution),
            Action::WakeProducer(execution) => self.wake_producer(execution),
            Action::StopProducer(execution) => self.stop_producer(execution),
            Action::Gap(subscriber, execution, gap) => {
                let to = Addressee {
                    subscriber,
                    sink: &mut self.sinks[subscriber.0.index as usize],
                    calling: &mut self.calling,
                    run: self.runs[execution.index as usize].as_ref(),
                    guests: &mut self.guests,
                    reactor: PhantomData,
                };
                to.give(&Delivery::Gap(gap), || Item::Gap(gap));
            }
            Action::Progress(subscriber, execution, progress) => {
                self.counters.progress_delivered += 1;
                let (message, context) = self.engine.progress_texts(execution);
                let to = Addressee {
                    subscriber,
                    sink: &mut self.sinks[subscriber.0.index as usize],
                    calling: &mut self.calling,
                    run: self.runs[execution.index as usize].as_ref(),
                    guests: &mut self.guests,
                    reactor: PhantomData,
                };
                let texts = || [message, context].map(|text| text.map(Box::from));
                let delivery = Delivery::Progress(Reported { progress, message, context });
                to.give(&delivery, || Item::Progress(progress, texts()));
            }
            Action::End(subscriber, execution, end) => self.end(subscriber, execution, end),
            Action::Forget(subscriber) => self.forget(subscriber),
            Action::Report(execution, progress) => {
                let (message, context) = self.engine.progress_texts(execution);
                let record = ProgressRecord {
                    progress: progress.progress,
                    total: progress.total,
                    reports: progress.report_count,
                    message: ShortText::new(message.unwrap_or("")),
                    context: ShortText::new(context.unwrap_or("")),
                };
                let run = self.run_mut(execution);
                run.tell_pages(|page| page.set_progress(&record));
                run.knock();
            }
            Action::Verdict(execution, verdict) => self.write_verdict(execution, &verdict),
            Action::DetachReader(subscriber, execution, reason) => {
                self.detach_reader(subscriber, execution, reason);
            }
        }
    }

    /// Records an action in the flight recorder, except for chunks, which are too many.
    fn note_down(&mut self, action: &Action) {
        let (code, a, b) = match action {
            Action::Lease(execution, _) => (Code::RingLeased, execution.index, 0),
            Action::Release(execution) => (Code::RingReleased, execution.index, 0),
            Action::StopProducer(execution) => (Code::ProducerStopped, execution.index, 0),
            Action::Gap(subscriber, _, gap) => (Code::GapDelivered, subscriber.0.index, gap.to_seq),
            Action::End(subscriber, execution, _)
            | Action::DetachReader(subscriber, execution, _) => {
                (Code::SubscriberDetached, subscriber.0.index, u64::from(execution.index))
            }
            Action::Forget(subscriber) => (Code::SubscriberDetached, subscriber.0.index, 0),
            _ => return,
        };
        self.record(code, u64::from(a), b);
    }

    /// Returns the execution that an action names. The engine names none that it has released.
    pub(crate) fn run_mut(&mut self, execution: Handle) -> &mut Run<O::Run> {
        let run = self.runs[execution.index as usize].as_mut();
        let run = run.expect("the engine names living executions");
        assert!(run.handle == execution);
        run
    }

    /// Gives chunk after chunk to each recipient. Continues where it was cut short.
    #[inline]
    fn fan_out(&mut self) {
        let Some(fan) = &mut self.fan else { return };
        let run = self.runs[fan.execution.index as usize].as_ref().expect("the run publishes");
        let recipients = self.engine.recipients();
        // Unwanted chunks are not read. They may be gone, and no subscriber has to be told of that.
        let log = self.engine.log(fan.execution).expect("the run publishes");
        let filters = self.engine.fan_out().filters;
        while fan.next_seq < fan.until_seq {
            if filters {
                let kind = log.meta(fan.next_seq).kind;
                let wants =
                    |id: &SubscriberId| self.sinks[id.0.index as usize].kinds.contains(kind);
                if !recipients.iter().any(wants) {
                    fan.next_seq += 1;
                    continue;
                }
            }
            let (descriptor, data) = match read_chunk(run, fan.next_seq, &mut self.scratch) {
                Ok(read) => read,
                Err(tail_seq) => {
                    self.overtaken(tail_seq);
                    return;
                }
            };
            let chunk = Chunk::new(run.id, run.chunks_expected, &descriptor, data, self.anchor);
            // Created in place, because it is large and should not be moved.
            let delivery = Delivery::Chunk(chunk.expect("this process wrote it"));
            let Delivery::Chunk(chunk) = &delivery else { unreachable!("it is one") };
            let begun_at = fan.at;
            self.guests.begin_chunk();
            while let Some(subscriber) = recipients.get(fan.at) {
                let sink = &mut self.sinks[subscriber.0.index as usize];
                if sink.kinds.contains(chunk.kind) {
                    match &mut sink.call {
                        Call::Closure(call) => call(&delivery),
                        Call::Polled(inbox) => {
                            let bytes = &mut self.asked_for_bytes;
                            self.asked_for = Some(AskedFor::new(run, descriptor, data, bytes));
                            inbox.borrow_mut().push_back(Item::Chunk { seq: chunk.seq });
                        }
                        Call::Guest(key) => {
                            let giving = Giving {
                                reactor: &mut self.reactor,
                                counters: &mut self.counters,
                                engine: &self.engine,
                                execution: fan.execution,
                                names: &run.names,
                                now: self.now,
                            };
                            self.guests.deliver(*key, *subscriber, chunk, giving);
                        }
                        Call::Nobody => {}
                    }
                }
                fan.at += 1;
            }
            self.counters.count_given((fan.at - begun_at) as u64, descriptor.length);
            probe!(deliver, fan.execution.index, chunk.seq, fan.at);
            fan.next_seq += 1;
            fan.at = 0;
        }
        self.fan = None;
    }

    /// Handles chunks that a tool's thread overwrote before delivery: all recipients continue
    /// behind them.
    fn overtaken(&mut self, tail_seq: u64) {
        let fan = self.fan.take().expect("chunks are being given");
        let to_seq = tail_seq.min(fan.until_seq) - 1;
        for at in 0..self.engine.recipients().len() {
            let subscriber = self.engine.recipients()[at];
            self.tell(Event::Overtaken(subscriber, fan.next_seq, to_seq));
        }
    }

    fn end(&mut self, subscriber: SubscriberId, execution: Handle, end: End) {
        O::report(self, &Notice::Ended(subscriber, execution, &end));
        // Its place is free from here on, also for the closure that is called below.
        let sink = self.take_sink(subscriber);
        let run = self.runs[execution.index as usize].as_ref();
        let run = run.filter(|run| run.handle == execution);
        let error = run.and_then(|run| run.error.clone());
        match sink.call {
            Call::Closure(mut call) => {
                let last_word = Delivery::End(Ended { end, error: error.as_deref() });
                // The subscription is over, so its panic has nothing left to end.
                if let Err(panicked) = guarded(|| call(&last_word)) {
                    self.note_panic(Callback::Subscriber(subscriber), &panicked);
                }
            }
            Call::Polled(inbox) => inbox.borrow_mut().push_back(Item::End(end, error)),
            Call::Guest(key) => {
                let last_word = Delivery::End(Ended { end, error: error.as_deref() });
                self.guests.tell(key, subscriber, run, &last_word);
            }
            Call::Nobody => {}
        }
    }

    fn take_sink(&mut self, subscriber: SubscriberId) -> Sink<O::Key> {
        let sink = &mut self.sinks[subscriber.0.index as usize];
        match sink.subscriber == Some(subscriber) {
            true => std::mem::replace(sink, Sink::NONE),
            false => Sink::NONE,
        }
    }

    fn forget(&mut self, subscriber: SubscriberId) {
        let sink = self.take_sink(subscriber);
        if let Call::Polled(inbox) = sink.call {
            inbox.borrow_mut().clear(); // It has left: nothing comes any more.
        }
        // A reader on another thread does not know that yet, unless it has left by itself.
        for at in 0..self.runs.len() {
            let Some(run) = &mut self.runs[at] else { continue };
            if let Some(remote) = run.dismiss(subscriber, DetachReason::Removed) {
                O::on_reader_removed(self, at as u32, remote, DetachReason::Removed);
                return;
            }
        }
    }

    fn lease(&mut self, execution: Handle, fit: RingFit) {
        self.did.note(Duty::Rings);
        let run = self.run_mut(execution);
        let (ring_bytes, chunk_bytes) = (run.ring_bytes, run.chunk_bytes);
        let leased = match fit {
            RingFit::Whole => self.rings.lease_whole(ring_bytes, chunk_bytes),
            RingFit::Any => self.rings.lease(ring_bytes, chunk_bytes),
        };
        match leased {
            Ok(lease) => {
                let facts = facts_of(lease.geometry());
                let writer = RingWriter::new(lease, self.anchor);
                self.run_mut(execution).ring = Ring::Here(writer);
                O::on_leased(self, execution);
                self.tell(Event::Leased(execution, facts));
            }
            Err(error) => match self.never_leased(&error, fit) {
                Some(text) => self.tell(Event::LeaseRefused(execution, &text)),
                None => {
                    self.counters.executions_queued += u64::from(fit == RingFit::Any);
                    self.tell(Event::LeaseFailed(execution));
                }
            },
        }
    }

    fn release(&mut self, execution: Handle) {
        let Some(run) = self.runs[execution.index as usize].take_if(|r| r.handle == execution)
        else {
            return;
        };
        self.away.retain(|&index| index != execution.index);
        self.watched.retain(|&index| index != execution.index);
        self.published.retain(|&index| index != execution.index);
        self.guests.on_released(execution);
        self.runnable.retain(|&index| index != execution.index);
        if let Some(asked_for) = &mut self.asked_for
            && asked_for.execution == execution
            && let Ring::Here(writer) | Ring::Back(writer) = &run.ring
            && !asked_for.is_copied
        {
            let payload = writer.payload(asked_for.descriptor.seq);
            self.asked_for_bytes[..payload.len()].copy_from_slice(payload);
            asked_for.is_copied = true;
        }
        match run.ring {
            Ring::Here(writer) | Ring::Back(writer) => {
                self.give_back(writer.into_lease());
                self.tell(Event::RingReturned);
            }
            // A tool that never returned still has the ring. It is closed, and comes back with the
            // tool.
            Ring::Away(_) => assert!(run.exchange.is_closed()),
            Ring::None => {}
        }
    }

    pub(super) fn give_back(&mut self, lease: Lease) {
        self.rings.give_back(lease);
    }

    fn set_gate(&mut self, execution: Handle, gate: Gate) {
        let run = self.run_mut(execution);
        run.gate = gate;
        let blocked = std::mem::replace(&mut run.blocked, false);
        match &run.producer {
            Producer::Thread(_) => run.publish_gate(),
            Producer::Steps(_) if blocked => self.make_runnable(execution.index),
            Producer::Feed | Producer::Guest => O::on_room(self, execution, blocked),
            _ => {}
        }
    }

    /// Wakes a producer whose sleep is over.
    fn wake_producer(&mut self, execution: Handle) {
        match self.run_mut(execution).producer {
            Producer::Guest => O::on_due(self, execution),
            _ => self.make_runnable(execution.index),
        }
    }

    pub(super) fn make_runnable(&mut self, index: u32) {
        let Some(run) = self.runs[index as usize].as_mut() else { return };
        if matches!(run.producer, Producer::Steps(_)) && !run.runnable {
            run.runnable = true;
            self.runnable.push_back(index);
        }
    }

    fn watch_readers(&mut self, execution: Handle, watch: bool) {
        self.watched.retain(|&index| index != execution.index);
        if watch {
            self.watched.push(execution.index);
        }
        let Some(run) = self.runs[execution.index as usize].as_mut() else { return };
        run.tell_pages(|page| page.set_attention(watch));
        run.knock();
        if watch {
            self.sample_readers(execution.index); // Those that moved before they saw it.
        }
    }

    fn stop_producer(&mut self, execution: Handle) {
        let run = self.run_mut(execution);
        match std::mem::replace(&mut run.producer, Producer::Gone) {
            Producer::Thread(host) => {
                run.exchange.close();
                host.call_stop_hook(); // After the close, so that a hook set too late sees it.
                run.producer = Producer::Thread(host);
                run.control.wake_producer();
                run.stopping = true; // `take_over_threads` reports when it is quiet.
                self.worked = true;
            }
            Producer::Guest => {
                run.producer = Producer::Guest;
                match O::stop(self, execution) {
                    true => self.run_mut(execution).stopping = true,
                    false => {
                        self.run_mut(execution).producer = Producer::Gone;
                        self.producer_stopped(execution);
                    }
                }
            }
            _ => self.producer_stopped(execution),
        }
    }

    fn producer_stopped(&mut self, execution: Handle) {
        self.tell(Event::ProducerEnded(execution, ProducerEnd::Stopped));
        if planted(Planted::EndTwiceInCancelRace) {
            self.tell(Event::ProducerEnded(execution, ProducerEnd::Done));
        }
    }

    fn write_verdict(&mut self, execution: Handle, verdict: &Verdict) {
        let is_closing = self.closing;
        let run = self.run_mut(execution);
        if let Producer::Waiting(_) = run.producer {
            run.producer = Producer::Gone; // It never began: there is no end to wait for.
        }
        run.exchange.close();
        let code = code_of_outcome(verdict.outcome);
        let record = FinalRecord {
            verdict: code.try_into().expect("codes begin at 1"),
            head_seq: verdict.head_seq,
            totals: verdict.totals,
        };
        let exit = run.exit.get().copied();
        let error = verdict.error.as_deref().unwrap_or("");
        let finish = |page: &mut ControlPage| {
            page.set_exit(exit.map_or(0, code_of_exit));
            page.finish(&record, error);
        };
        match is_closing {
            // All readers were detached before, and that is their end, wherever their cursors are.
            // Those of a named ring cannot be told so.
            true => run.guest.write_hidden_page(&mut { finish }),
            false => run.tell_pages(finish),
        }
        run.error = verdict.error.clone();
        run.knock();
        O::on_ended(self, execution, verdict);
        self.record(Code::ExecutionEnded, u64::from(execution.index), u64::from(code));
    }

    fn detach_reader(&mut self, subscriber: SubscriberId, execution: Handle, reason: DetachReason) {
        let run = self.runs[execution.index as usize].as_mut();
        if let Some(remote) = run.and_then(|run| run.dismiss(subscriber, reason)) {
            O::on_reader_removed(self, execution.index, remote, reason);
        }
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
            Call::Nobody => {}
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
