//! Gives chunks to the subscribers of this thread.
//!
//! There are two ways. A *fan-out* reads chunks back from the ring ([`fan_out`]). Chunks that were
//! published by hand, and that nothing was pending before, are given from the bytes that were
//! handed over ([`give_at_once`]).

use std::panic::{AssertUnwindSafe, catch_unwind};

use smallvec::SmallVec;

use super::act::{end_panicked, let_see, pump_if_due, read_chunk};
use super::delivery::{Chunk, Delivery};
use super::outlet::{Giving, Outlet};
use super::run::Run;
use super::{AskedFor, Call, Fan, Item, Shard, Sink};
use crate::base::{Instant, SubscriberId};
use crate::engine::{Action, Engine, Event, FanOut, Log};
use crate::limits;
use crate::memory::{ClockAnchor, Descriptor};
use crate::reactor::Reactor;
use crate::trace::{Counters, Duty, probe};

/// The [`Giver`] of a shard. It is a macro because the caller borrows other fields meanwhile.
macro_rules! giver_of {
    ($shard:ident) => {
        Giver {
            sinks: &mut $shard.sinks,
            guests: &mut $shard.guests,
            reactor: &mut $shard.reactor,
            counters: &mut $shard.counters,
            engine: &$shard.engine,
            asked_for: &mut $shard.asked_for,
            asked_for_bytes: &mut $shard.asked_for_bytes,
            anchor: $shard.anchor,
            now: $shard.now,
        }
    };
}

/// Gives chunks that were just written here to all local subscribers, as the engine has made up.
/// They are of one kind: `first` and those behind it, with these payloads. Nearly every chunk that
/// is published by hand goes this way. Nothing is read back from the ring.
#[inline(always)] // One chunk or many is known at the call site.
pub(super) fn give_at_once<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    first: &Descriptor,
    payloads: &[&[u8]],
) {
    shard.engine.take_fan_out();
    let &FanOut { from_seq, until_seq, filters, .. } = shard.engine.fan_out();
    assert!(from_seq == first.seq); // Nothing was pending.
    assert!(!filters);
    shard.worked = true;
    shard.did.note(Duty::Deliveries);
    match payloads {
        [payload] => give_one(shard, index, first, payload),
        many => give_run(shard, index, first, &many[..(until_seq - from_seq) as usize]),
    }
    O::flush_if_due(shard);
    pump_if_due(shard);
}

/// Gives one chunk to each recipient.
#[inline(always)]
fn give_one<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    descriptor: &Descriptor,
    payload: &[u8],
) {
    let mut at = 0;
    let given = catch_unwind(AssertUnwindSafe(|| {
        let shard = &mut *shard; // Captured as a whole: one pointer is moved, and not ten.
        let run = shard.runs[index as usize].as_ref().expect("the run publishes");
        shard.guests.begin_fan_out(&shard.engine, run.handle);
        let mut giver = giver_of!(shard);
        let recipients = giver.engine.recipients();
        // Created in place, because it is large and should not be moved.
        let delivery = Delivery::Chunk(giver.chunk(run, descriptor, payload));
        giver.give::<true>(run, recipients, descriptor, &delivery, &mut at);
    }));
    if let Err(panic) = given {
        let execution = shard.engine.fan_out().execution;
        let (next_seq, until_seq) = (descriptor.seq, descriptor.seq + 1);
        shard.fan = Some(Fan { execution, next_seq, until_seq, at });
        end_panicked(shard, panic);
    }
}

/// The chunks of a run, which a stack has room for.
type Deliveries<'a> = SmallVec<[Delivery<'a>; limits::BURST_CHUNKS_MAX as usize]>;

/// Gives a run of chunks to each recipient. One closure after the other gets the whole run. The
/// others follow chunk by chunk, because they share the text that a chunk is spelled as.
fn give_run<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    first: &Descriptor,
    payloads: &[&[u8]],
) {
    let run = shard.runs[index as usize].as_ref().expect("the run publishes");
    shard.guests.begin_fan_out(&shard.engine, run.handle);
    let giver = giver_of!(shard);
    let mut chunk = giver.chunk(run, first, payloads[0]);
    let (mut descriptor, mut run_bytes) = (*first, u64::from(first.length));
    let mut deliveries = Deliveries::new();
    deliveries.push(Delivery::Chunk(chunk));
    for payload in &payloads[1..] {
        descriptor = descriptor.followed_by(payload.len() as u32);
        chunk.become_next(&descriptor, payload);
        deliveries.push(Delivery::Chunk(chunk));
        run_bytes += u64::from(descriptor.length);
    }
    let (mut at, mut closure_count) = (0, 0);
    while let Err(panic) = catch_unwind(AssertUnwindSafe(|| {
        let shard = &mut *shard;
        let recipients = shard.engine.recipients();
        while let Some(&subscriber) = recipients.get(at) {
            at += 1; // If its closure panics, the next one follows.
            if let Call::Closure(call) = &mut shard.sinks[subscriber.0.index as usize].call {
                closure_count += 1;
                shard.calling = Some(subscriber);
                let call = &mut **call;
                deliveries.iter().for_each(call);
                shard.calling = None;
            }
        }
        if at as u64 > closure_count {
            give_run_to_others(shard, index, first, &deliveries);
        }
    })) {
        end_panicked(shard, panic);
    }
    if at as u64 == closure_count {
        shard.counters.count_given_run(closure_count, payloads.len() as u64, run_bytes);
    }
}

/// Gives a run of chunks to the recipients that are no closures, and counts it for all.
fn give_run_to_others<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    index: u32,
    first: &Descriptor,
    deliveries: &[Delivery<'_>],
) {
    let run = shard.runs[index as usize].as_ref().expect("the run publishes");
    let mut giver = giver_of!(shard);
    let recipients = giver.engine.recipients();
    let mut descriptor = *first;
    for (place, delivery) in deliveries.iter().enumerate() {
        let Delivery::Chunk(chunk) = delivery else { unreachable!("it is one") };
        if place > 0 {
            descriptor = descriptor.followed_by(chunk.data.len() as u32);
        }
        giver.give::<false>(run, recipients, &descriptor, delivery, &mut 0);
    }
}

#[inline]
pub(super) fn begin_fan_out<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    shard.worked = true;
    shard.did.note(Duty::Deliveries);
    let &FanOut { execution, from_seq, until_seq, .. } = shard.engine.fan_out();
    if shard.observer.is_some() {
        let_see(shard, &Action::Deliver { execution, from_seq, until_seq });
    }
    O::make_room(shard);
    shard.guests.begin_fan_out(&shard.engine, execution);
    shard.fan = Some(Fan { execution, next_seq: from_seq, until_seq, at: 0 });
}

/// Gives chunk after chunk to each recipient. Continues where it was cut short.
#[inline]
pub(super) fn fan_out<R: Reactor + 'static, O: Outlet<R>>(shard: &mut Shard<R, O>) {
    let Some(fan) = &mut shard.fan else { return };
    let run = shard.runs[fan.execution.index as usize].as_ref().expect("the run publishes");
    let recipients = shard.engine.recipients();
    // Unwanted chunks are not read. They may be gone, and no subscriber has to be told of that.
    let log = shard.engine.log(fan.execution).expect("the run publishes");
    let filters = shard.engine.fan_out().filters;
    let clocks = run.ring_clocks().unwrap_or(shard.anchor);
    while fan.next_seq < fan.until_seq {
        if filters {
            let kind = log.meta(fan.next_seq).kind;
            let wants = |id: &SubscriberId| shard.sinks[id.0.index as usize].kinds.contains(kind);
            if !recipients.iter().any(wants) {
                fan.next_seq += 1;
                continue;
            }
        }
        let (descriptor, data) = match read_chunk(run, fan.next_seq, &mut shard.scratch) {
            Ok(read) => read,
            Err(tail_seq) => {
                overtaken(shard, tail_seq);
                return;
            }
        };
        let mut giver = Giver { anchor: clocks, ..giver_of!(shard) };
        let delivery = Delivery::Chunk(giver.chunk(run, &descriptor, data));
        giver.give::<true>(run, recipients, &descriptor, &delivery, &mut fan.at);
        fan.next_seq += 1;
        fan.at = 0;
    }
    shard.fan = None;
}

/// The parts of a shard that give chunks to its subscribers.
struct Giver<'a, R: Reactor + 'static, O: Outlet<R>> {
    sinks: &'a mut [Sink<O::Key>],
    guests: &'a mut O,
    reactor: &'a mut R,
    counters: &'a mut Counters,
    engine: &'a Engine,
    asked_for: &'a mut Option<AskedFor>,
    asked_for_bytes: &'a mut [u8],
    anchor: ClockAnchor,
    now: Instant,
}

impl<R: Reactor + 'static, O: Outlet<R>> Giver<'_, R, O> {
    /// The chunk with this descriptor and these bytes.
    #[inline(always)]
    fn chunk<'b>(&self, run: &Run<O::Run>, descriptor: &Descriptor, data: &'b [u8]) -> Chunk<'b> {
        let chunk = Chunk::new(run.id, run.chunks_expected, descriptor, data, self.anchor);
        chunk.expect("this process wrote it")
    }

    /// Gives a chunk to the recipients, beginning with the one at `at`. After a panic, `at` is the
    /// one whose closure was running. Without `CLOSURES`, these have been given it already.
    #[inline(always)]
    fn give<const CLOSURES: bool>(
        &mut self,
        run: &Run<O::Run>,
        recipients: &[SubscriberId],
        descriptor: &Descriptor,
        delivery: &Delivery<'_>,
        at: &mut usize,
    ) {
        let Delivery::Chunk(chunk) = delivery else { unreachable!("it is one") };
        let begun_at = *at;
        self.guests.begin_chunk();
        while let Some(subscriber) = recipients.get(*at) {
            let sink = &mut self.sinks[subscriber.0.index as usize];
            if sink.kinds.contains(chunk.kind) {
                match &mut sink.call {
                    Call::Closure(call) if CLOSURES => call(delivery),
                    Call::Polled(inbox) => {
                        let kept = &mut *self.asked_for_bytes;
                        let asked_for = AskedFor::new(run, *descriptor, chunk.data, kept);
                        *self.asked_for = Some(asked_for);
                        inbox.borrow_mut().push_back(Item::Chunk { seq: chunk.seq });
                    }
                    Call::Guest(key) => {
                        let giving = Giving {
                            reactor: self.reactor,
                            counters: self.counters,
                            engine: self.engine,
                            execution: run.handle,
                            names: &run.names,
                            now: self.now,
                            is_recent: true,
                        };
                        self.guests.deliver(*key, *subscriber, chunk, giving);
                    }
                    Call::Closure(_) | Call::Refill(_) | Call::Nobody => {}
                }
            }
            *at += 1;
        }
        self.counters.count_given((*at - begun_at) as u64, descriptor.length);
        probe!(deliver, run.handle.index, chunk.seq, *at);
    }
}

/// Handles chunks that a tool's thread overwrote before delivery: all recipients continue
/// behind them.
pub(super) fn overtaken<R: Reactor + 'static, O: Outlet<R>>(
    shard: &mut Shard<R, O>,
    tail_seq: u64,
) {
    let fan = shard.fan.take().expect("chunks are being given");
    let to_seq = tail_seq.min(fan.until_seq) - 1;
    for at in 0..shard.engine.recipients().len() {
        let subscriber = shard.engine.recipients()[at];
        shard.tell(Event::Overtaken(subscriber, fan.next_seq, to_seq));
    }
}
