//! `tokio::sync::broadcast`, in two uses. [`Tried`] calls `try_recv` on every receiver from a plain
//! loop. [`Tasks`] gives every receiver a task that awaits `recv` on a current-thread runtime.
//!
//! `broadcast` overwrites chunks that a slow receiver has not read. All chunks must arrive, as in
//! the other implementations. The producer therefore reads the unread count from [`Sender::len`]
//! once it has used up the known space. That is at most once per lap of an idle channel.

use std::marker::PhantomData;
use std::rc::Rc;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{Receiver, Sender, channel};

use crate::common::BATCH_CHUNKS;
use crate::common::drive::{Gone, Inline, Poll, Polled, Produce, Setup, Stop, Subscribe, Threads};
use crate::common::receive::Receive;
use crate::common::source::Source;
use crate::payload::Carry;

/// A yield runs every task that is awake, so far fewer are enough.
const YIELDS_MAX: u32 = 1_000_000;

/// The producer.
pub struct Broadcaster<P> {
    sender: Sender<P>,
    capacity_chunks: usize,
    free_chunks: usize,
}

impl<P: Carry> Produce for Broadcaster<P> {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32, stop: &Stop) -> Result<(), Gone> {
        for _ in 0..count {
            while self.free_chunks == 0 {
                self.free_chunks = self.capacity_chunks - self.sender.len();
                if self.free_chunks == 0 {
                    stop.full()?;
                }
            }
            self.free_chunks -= 1;
            self.sender.send(P::carry(payload)).map_err(|_| Gone)?;
        }
        Ok(())
    }
}

fn open<P: Carry>(setup: &Setup) -> (Broadcaster<P>, Vec<Receiver<P>>) {
    let (sender, first) = channel(setup.ring_chunks);
    let mut receivers = vec![first];
    receivers.extend((1..setup.subscribers).map(|_| sender.subscribe()));
    let capacity_chunks = setup.ring_chunks;
    (Broadcaster { sender, capacity_chunks, free_chunks: capacity_chunks }, receivers)
}

/// `try_recv` round robin.
pub struct Tried<P>(PhantomData<P>);

impl<P: Carry> Polled for Tried<P> {
    type Producer = Broadcaster<P>;
    type Subscribers = Receivers<P>;
    fn open(setup: &Setup) -> Result<(Broadcaster<P>, Receivers<P>), String> {
        let (broadcaster, receivers) = open(setup);
        Ok((broadcaster, Receivers(receivers)))
    }
}

/// The subscribers.
pub struct Receivers<P>(Vec<Receiver<P>>);

impl<P: Carry> Poll for Receivers<P> {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> u32 {
        let mut delivered = 0;
        for channel in &mut self.0 {
            for _ in 0..BATCH_CHUNKS {
                match channel.try_recv() {
                    Ok(value) => {
                        value.hand_over(receiver);
                        delivered += 1;
                    }
                    Err(TryRecvError::Lagged(count)) => panic!("{count} chunks were overwritten"),
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
        }
        delivered
    }
}

/// A task per subscriber. Inline, the producer is the main future of the same runtime, and yields
/// until all have read. Blocked, the runtime is on the other thread, and sleeps while no task is
/// awake.
pub struct Tasks<P>(PhantomData<P>);

fn runtime() -> Result<Runtime, String> {
    let runtime = Builder::new_current_thread().build();
    runtime.map_err(|error| format!("cannot start a tokio runtime: {error}"))
}

/// Lets tasks of a current-thread runtime share the receiver. Otherwise they would have to be local
/// tasks of a `LocalSet`, a second scheduler that makes everything slower.
struct OneThread<R>(Rc<R>);

// SAFETY: created, used and dropped by tasks of a current-thread runtime that is built, run and
// dropped by one function on one thread; its tasks never run anywhere else.
unsafe impl<R> Send for OneThread<R> {}

impl<R> OneThread<R> {
    fn get(&self) -> &R {
        &self.0
    }
}

async fn receive_all<P: Carry, R: Receive>(mut channel: Receiver<P>, receiver: OneThread<R>) {
    loop {
        match channel.recv().await {
            Ok(value) => value.hand_over(receiver.get()),
            Err(RecvError::Lagged(count)) => panic!("{count} chunks were overwritten"),
            Err(RecvError::Closed) => return,
        }
    }
}

impl<P: Carry> Inline for Tasks<P> {
    fn run<S: Source, R: Receive>(
        setup: &Setup,
        source: &mut S,
        receiver: Rc<R>,
    ) -> Result<(), String> {
        let runtime = runtime()?;
        let (mut broadcaster, channels) = open::<P>(setup);
        let stop = Stop::one_thread();
        let mut expected = 0;
        runtime.block_on(async {
            for channel in channels {
                tokio::spawn(receive_all(channel, OneThread(Rc::clone(&receiver))));
            }
            tokio::task::yield_now().await; // All of them wait now.
            while let Some((payload, count)) = source.next() {
                let published = broadcaster.publish(payload, count, &stop);
                published.map_err(|Gone| "a channel is full although everything was read")?;
                expected += u64::from(count) * u64::from(setup.subscribers);
                let mut yields_left = YIELDS_MAX;
                while receiver.count() < expected {
                    yields_left -= 1;
                    if yields_left == 0 {
                        return Err("a task has stopped reading".into());
                    }
                    tokio::task::yield_now().await;
                }
            }
            Ok(())
        })
    }
}

impl<P: Carry> Threads for Tasks<P> {
    type Producer = Broadcaster<P>;
    type Subscribers = TaskThread<P>;
    fn open(setup: &Setup) -> Result<(Broadcaster<P>, TaskThread<P>), String> {
        let (broadcaster, receivers) = open(setup);
        Ok((broadcaster, TaskThread(receivers)))
    }
}

/// Subscribers that will be tasks.
pub struct TaskThread<P>(Vec<Receiver<P>>);

impl<P: Carry> Subscribe for TaskThread<P> {
    fn run<R: Receive>(self, _setup: &Setup, receiver: Rc<R>, _stop: &Stop) -> Result<(), String> {
        runtime()?.block_on(async {
            let spawn =
                |channel| tokio::spawn(receive_all(channel, OneThread(Rc::clone(&receiver))));
            let tasks: Vec<_> = self.0.into_iter().map(spawn).collect();
            for task in tasks {
                // Ends when the producer has dropped the sender.
                task.await.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
    }
}
