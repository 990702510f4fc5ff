//! streamdoor under the load of `fanout`: a shard driven by hand, and one execution fed by hand.
//!
//! Inline: every subscriber is a closure on the shard's thread, under `block`, because the other
//! implementations lose nothing either. Threads: every subscriber is a [`Subscriber`], and one
//! other thread polls all of them. Blocked: that thread sleeps in the first subscriber while none
//! has a delivery. Under `--touch none`, subscribers ask for headers only. The stamp is then the
//! time of the chunk.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use streamdoor::base::{ExecutionId, Instant};
use streamdoor::engine::SubscribeSpec;
use streamdoor::memory::RingPoolConfig;
use streamdoor::shard::{
    Audience, Delivery, ExecuteOptions, JournalConfig, PublishError, Shard, ShardConfig, Subscriber,
};
use streamdoor::stream::{Durability, Kind, Policy};
use streamdoor::tool::{Need, Prepared, Work};

use crate::common::BATCH_CHUNKS;
use crate::common::drive::{Gone, Inline, Produce, Setup, Stop, Subscribe, Threads};
use crate::common::receive::Receive;
use crate::common::source::{STAMP_BYTES, Source};

/// streamdoor, for `fanout --impl streamdoor`, and for `written` and `synced`.
pub struct Ours<P = NotKept>(PhantomData<P>);

/// The promise for the chunks of the execution.
pub trait Promise {
    const DURABILITY: Durability;
}

/// No journal.
pub struct NotKept;

/// A journal, without a sync.
pub struct Written;

/// A journal, with a sync as soon as the last one has ended.
pub struct Synced;

impl Promise for NotKept {
    const DURABILITY: Durability = Durability::None;
}

impl Promise for Written {
    const DURABILITY: Durability = Durability::Written;
}

impl Promise for Synced {
    const DURABILITY: Durability = Durability::Synced;
}

/// The directory of a journal. It is removed in the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

/// Opens a shard with one execution. Its ring holds as many chunks as that of every other
/// implementation. A journal is in the directory for temporary files.
fn open<P: Promise>(setup: &Setup) -> Result<(Shard, ExecutionId, Option<Folder>), String> {
    let folder = (P::DURABILITY != Durability::None).then(|| {
        let name = format!("streamdoor-bench-{}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    });
    let mut config = ShardConfig {
        rings: RingPoolConfig { prealloc_bytes: 0, ..Default::default() },
        journal: folder.as_ref().map(|folder| JournalConfig::at(&folder.0)),
        ..Default::default()
    };
    config.engine.subscribers_max = config.engine.subscribers_max.max(setup.subscribers);
    let (mut shard, _) = Shard::new(config).map_err(|error| error.to_string())?;
    // A ring has one descriptor for every 256 bytes.
    let ring_bytes = (setup.ring_chunks * 256).min(1 << 20) as u32;
    let need = Need { ring_bytes, chunk_bytes: setup.size_bytes as u32, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
    let options = ExecuteOptions { durability: Some(P::DURABILITY), ..Default::default() };
    let id = shard.execute_prepared(prepared, options).map_err(|error| error.to_string())?;
    Ok((shard, id, folder))
}

fn spec() -> SubscribeSpec {
    SubscribeSpec { policy: Policy::Block, ..Default::default() }
}

/// Returns the stamp of a payload: its planned time, so that publishing needs no clock read.
#[inline(always)]
fn stamp_of(payload: &[u8]) -> Instant {
    let (stamp, _) = payload.split_first_chunk::<STAMP_BYTES>().expect("a payload has a stamp");
    Instant::from_nanos(u64::from_le_bytes(*stamp))
}

impl<P: Promise> Inline for Ours<P> {
    fn run<S: Source, R: Receive>(
        setup: &Setup,
        source: &mut S,
        receiver: Rc<R>,
    ) -> Result<(), String> {
        let (mut shard, id, _folder) = open::<P>(setup)?;
        for _ in 0..setup.subscribers {
            let receiver = Rc::clone(&receiver);
            let closure = move |delivery: &Delivery<'_>| {
                if let Delivery::Chunk(chunk) = delivery {
                    receiver.deliver(chunk.data);
                }
            };
            shard.subscribe(id, spec(), closure).map_err(|error| error.to_string())?;
        }
        while let Some((payload, count)) = source.next() {
            let now = stamp_of(payload);
            if count == 1 {
                let published = shard.publish_at(id, Kind::Output, 0, payload, now);
                published.map_err(|error| error.to_string())?;
            } else {
                let batch = [payload; BATCH_CHUNKS as usize];
                let batch = &batch[..count as usize];
                let published = shard.publish_batch(id, Kind::Output, batch, now);
                published.map_err(|(_, error)| error.to_string())?;
            }
            shard.turn();
        }
        drop(shard); // Before its files.
        Ok(())
    }
}

/// The shard, driven by the producer's thread.
pub struct Producer {
    shard: Shard,
    id: ExecutionId,
    _folder: Option<Folder>,
}

impl Produce for Producer {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32, stop: &Stop) -> Result<(), Gone> {
        let now = stamp_of(payload);
        if count == 1 {
            while let Err(error) = self.shard.publish_at(self.id, Kind::Output, 0, payload, now) {
                assert_eq!(error, PublishError::Blocked); // The ring was leased for such chunks.
                self.shard.turn();
                stop.full()?;
            }
            self.shard.turn();
            return Ok(());
        }
        let batch = [payload; BATCH_CHUNKS as usize];
        let mut rest = &batch[..count as usize];
        while let Err((published, error)) =
            self.shard.publish_batch(self.id, Kind::Output, rest, now)
        {
            assert_eq!(error, PublishError::Blocked); // The ring was leased for such chunks.
            rest = &rest[published..];
            self.shard.turn();
            stop.full()?;
        }
        self.shard.turn();
        Ok(())
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // The end wakes a sleeping reader. An execution without any chunk has no end. Its readers
        // then see the end of the shard.
        let _ = self.shard.finish(self.id, Ok(()));
    }
}

/// All subscribers, on one thread.
pub struct Readers(Vec<Subscriber>);

impl<P: Promise> Threads for Ours<P> {
    type Producer = Producer;
    type Subscribers = Readers;

    fn open(setup: &Setup) -> Result<(Producer, Readers), String> {
        let (mut shard, id, _folder) = open::<P>(setup)?;
        let readers: Result<Vec<Subscriber>, String> = (0..setup.subscribers)
            .map(|_| shard.subscribe_remote(id, spec()).map_err(|error| error.to_string()))
            .collect();
        Ok((Producer { shard, id, _folder }, Readers(readers?)))
    }
}

impl Subscribe for Readers {
    fn run<R: Receive>(self, setup: &Setup, receiver: Rc<R>, stop: &Stop) -> Result<(), String> {
        let mut audience = self.audience(&*receiver);
        stop.poll_until_done(setup, &*receiver, || drain(&mut audience, &*receiver));
        Ok(())
    }
}

impl Readers {
    /// Makes one audience of all subscribers.
    fn audience<R: Receive>(self, receiver: &R) -> Audience<()> {
        let mut audience = Audience::new();
        for mut subscriber in self.0 {
            subscriber.headers_only(!receiver.copies());
            audience.join(subscriber, ()).expect("all follow the one execution");
        }
        audience
    }
}

/// Takes the ready deliveries of each member, at most [`BATCH_CHUNKS`]. Returns their number.
#[inline(always)]
fn drain<R: Receive>(audience: &mut Audience<()>, receiver: &R) -> u32 {
    audience.drain(BATCH_CHUNKS as usize, |(), delivery| take(&delivery, receiver)) as u32
}

/// Takes one delivery.
#[inline(always)]
fn take<R: Receive>(delivery: &Delivery<'_>, receiver: &R) {
    match delivery {
        Delivery::Chunk(chunk) if receiver.copies() => receiver.deliver_owned(chunk.data),
        Delivery::Chunk(chunk) => receiver.deliver_stamp(chunk.published_at.nanos()),
        _ => {}
    }
}

/// streamdoor with a thread of subscribers that sleeps while no delivery is ready.
pub struct Asleep;

impl Threads for Asleep {
    type Producer = Producer;
    type Subscribers = Sleepers;

    fn open(setup: &Setup) -> Result<(Producer, Sleepers), String> {
        let (producer, readers) = <Ours as Threads>::open(setup)?;
        Ok((producer, Sleepers(readers)))
    }
}

/// All subscribers, on one thread that sleeps while nothing is due to any of them.
pub struct Sleepers(Readers);

impl Subscribe for Sleepers {
    fn run<R: Receive>(self, _: &Setup, receiver: Rc<R>, _: &Stop) -> Result<(), String> {
        let mut audience = self.0.audience(&*receiver);
        while !audience.is_empty() {
            if drain(&mut audience, &*receiver) == 0 {
                audience.wait(Duration::from_secs(1));
            }
        }
        Ok(())
    }
}
