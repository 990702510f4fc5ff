//! `disruptor`: one ring for all, filled in place, single producer, busy waiting.
//!
//! Subscribers are `EventPoller`s, which one thread can poll round robin. The crate's own threads
//! (one per handler) would need as many cpus as subscribers. `take` limits a poll, as everywhere. A
//! batch is published with `try_batch_publish`. The crate's types differ for one and for many
//! consumers, hence [`One`] and [`Many`].

use std::marker::PhantomData;

use disruptor::{
    BusySpin, EventPoller, MultiConsumerBarrier, Producer as _, SingleConsumerBarrier,
    SingleProducer, SingleProducerBarrier, build_single_producer,
};

use crate::common::drive::{Gone, Poll, Polled, Produce, Setup, Stop, run};
use crate::common::params::Fanout;
use crate::common::receive::Receive;
use crate::common::report::Outcome;
use crate::common::{BATCH_CHUNKS, Failure};
use crate::payload::Value;

type Slot<P> = <P as InPlace>::Bytes;
type Poller<P> = EventPoller<Slot<P>, SingleProducerBarrier>;

/// A payload of a size that is known to the compiler.
pub trait InPlace: 'static {
    /// The content of a slot.
    type Bytes: AsMut<[u8]> + AsRef<[u8]> + Send + Sync + 'static;
    /// Returns the content before the first write.
    fn empty() -> Self::Bytes;
}

impl<const SIZE: usize> InPlace for Value<SIZE> {
    type Bytes = Lines<SIZE>;
    fn empty() -> Lines<SIZE> {
        Lines([0; SIZE])
    }
}

/// Starts on a cache line, so that neighbours never share one.
#[repr(align(64))]
pub struct Lines<const SIZE: usize>([u8; SIZE]);

impl<const SIZE: usize> AsRef<[u8]> for Lines<SIZE> {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<const SIZE: usize> AsMut<[u8]> for Lines<SIZE> {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Runs disruptor with slots for `P`.
///
/// # Errors
/// See [`run`].
pub fn measure<P: InPlace>(params: &Fanout) -> Result<Outcome, Failure> {
    if params.subscribers == 1 { run::<One<P>>(params) } else { run::<Many<P>>(params) }
}

/// One consumer.
pub struct One<P>(PhantomData<P>);

/// Two or more consumers.
pub struct Many<P>(PhantomData<P>);

impl<P: InPlace> Polled for One<P> {
    type Producer = Writer<P, SingleConsumerBarrier>;
    type Subscribers = Pollers<P>;
    fn open(setup: &Setup) -> Result<(Self::Producer, Self::Subscribers), String> {
        let builder = build_single_producer(setup.ring_chunks, P::empty, BusySpin);
        let (poller, builder) = builder.new_event_poller();
        Ok((Writer(builder.build()), Pollers(vec![poller])))
    }
}

impl<P: InPlace> Polled for Many<P> {
    type Producer = Writer<P, MultiConsumerBarrier>;
    type Subscribers = Pollers<P>;
    fn open(setup: &Setup) -> Result<(Self::Producer, Self::Subscribers), String> {
        let builder = build_single_producer(setup.ring_chunks, P::empty, BusySpin);
        let (first, builder) = builder.new_event_poller();
        let (second, mut builder) = builder.new_event_poller();
        let mut pollers = vec![first, second];
        for _ in 2..setup.subscribers {
            let (poller, next) = builder.new_event_poller();
            builder = next;
            pollers.push(poller);
        }
        Ok((Writer(builder.build()), Pollers(pollers)))
    }
}

/// The producer.
pub struct Writer<P: InPlace, C>(SingleProducer<Slot<P>, C>);

impl<P: InPlace, C> Produce for Writer<P, C>
where
    SingleProducer<Slot<P>, C>: disruptor::Producer<Slot<P>>,
{
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32, stop: &Stop) -> Result<(), Gone> {
        if count == 1 {
            while self.0.try_publish(|slot| slot.as_mut().copy_from_slice(payload)).is_err() {
                stop.full()?;
            }
            return Ok(());
        }
        loop {
            let published = self.0.try_batch_publish(count as usize, |slots| {
                for slot in slots {
                    slot.as_mut().copy_from_slice(payload);
                }
            });
            match published {
                Ok(_) => return Ok(()),
                Err(_) => stop.full()?,
            }
        }
    }
}

/// One poller per subscriber.
pub struct Pollers<P: InPlace>(Vec<Poller<P>>);

impl<P: InPlace> Poll for Pollers<P> {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> u32 {
        let mut delivered = 0;
        for poller in &mut self.0 {
            // The other results are "no events" and "the producer has gone".
            let Ok(mut events) = poller.take(u64::from(BATCH_CHUNKS)) else { continue };
            for slot in &mut events {
                receiver.deliver(slot.as_ref());
                delivered += 1;
            }
        }
        delivered
    }
}
