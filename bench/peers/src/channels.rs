//! One bounded queue per subscriber: `crossbeam-channel` and `rtrb`.
//!
//! A publication is one send per subscriber. Batches go queue by queue, which suits the caches.
//! rtrb has an interface for several items at once on both sides, which is used. No side blocks:
//! the receiving thread polls, as for everything that is compared with it.

use std::marker::PhantomData;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::common::BATCH_CHUNKS;
use crate::common::drive::{Gone, Poll, Polled, Produce, Setup, Stop};
use crate::common::receive::Receive;
use crate::payload::Carry;

/// `crossbeam-channel`, bounded, `try_send` and `try_recv`.
pub struct Crossbeam<P>(PhantomData<P>);

impl<P: Carry> Polled for Crossbeam<P> {
    type Producer = Senders<P>;
    type Subscribers = Receivers<P>;
    fn open(setup: &Setup) -> Result<(Senders<P>, Receivers<P>), String> {
        let pairs = (0..setup.subscribers).map(|_| bounded(setup.ring_chunks));
        let (senders, receivers) = pairs.unzip();
        Ok((Senders(senders), Receivers(receivers)))
    }
}

/// The producer's ends.
pub struct Senders<P>(Vec<Sender<P>>);

impl<P: Carry> Produce for Senders<P> {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32, stop: &Stop) -> Result<(), Gone> {
        if count == 1 {
            let value = P::carry(payload);
            return self.0.iter().try_for_each(|sender| send(sender, value.clone(), stop));
        }
        let values: [P; BATCH_CHUNKS as usize] = std::array::from_fn(|_| P::carry(payload));
        for sender in &self.0 {
            for value in &values[..count as usize] {
                send(sender, value.clone(), stop)?;
            }
        }
        Ok(())
    }
}

#[inline(always)]
fn send<P>(sender: &Sender<P>, mut value: P, stop: &Stop) -> Result<(), Gone> {
    loop {
        match sender.try_send(value) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(back)) => value = back,
            Err(TrySendError::Disconnected(_)) => return Err(Gone),
        }
        stop.full()?;
    }
}

/// The subscribers' ends.
pub struct Receivers<P>(Vec<Receiver<P>>);

impl<P: Carry> Poll for Receivers<P> {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> u32 {
        let mut delivered = 0;
        for channel in &self.0 {
            for value in channel.try_iter().take(BATCH_CHUNKS as usize) {
                value.hand_over(receiver);
                delivered += 1;
            }
        }
        delivered
    }
}

/// `rtrb`, whose consumers read chunks in place.
pub struct Rtrb<P>(PhantomData<P>);

impl<P: Carry> Polled for Rtrb<P> {
    type Producer = Queues<P>;
    type Subscribers = Consumers<P>;
    fn open(setup: &Setup) -> Result<(Queues<P>, Consumers<P>), String> {
        let pairs = (0..setup.subscribers).map(|_| rtrb::RingBuffer::new(setup.ring_chunks));
        let (producers, consumers) = pairs.unzip();
        Ok((Queues(producers), Consumers(consumers)))
    }
}

/// The producer's ends.
pub struct Queues<P>(Vec<rtrb::Producer<P>>);

impl<P: Carry> Produce for Queues<P> {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32, stop: &Stop) -> Result<(), Gone> {
        let value = P::carry(payload);
        for queue in &mut self.0 {
            if count == 1 {
                while queue.is_full() {
                    stop.full()?;
                }
                let pushed = queue.push(value.clone());
                assert!(pushed.is_ok(), "only this thread fills the queue");
                continue;
            }
            loop {
                let Ok(chunk) = queue.write_chunk_uninit(count as usize) else {
                    stop.full()?;
                    continue;
                };
                chunk.fill_from_iter((0..count).map(|_| P::carry(payload)));
                break;
            }
        }
        Ok(())
    }
}

/// The subscribers' ends.
pub struct Consumers<P>(Vec<rtrb::Consumer<P>>);

impl<P: Carry> Poll for Consumers<P> {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> u32 {
        let mut delivered = 0;
        for queue in &mut self.0 {
            let ready = queue.slots().min(BATCH_CHUNKS as usize);
            if ready == 0 {
                continue;
            }
            let chunk = queue.read_chunk(ready).expect("they were ready a moment ago");
            let (front, back) = chunk.as_slices();
            for value in front.iter().chain(back) {
                receiver.deliver(value.bytes());
            }
            chunk.commit_all();
            delivered += ready as u32;
        }
        delivered
    }
}
