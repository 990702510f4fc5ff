//! The command `bench journal`: the log on disk of a shard that is driven by hand, and the floor.
//!
//! Messages are chunks of one execution that is fed by hand. Between two turns the shard waits as
//! its default says: it polls for 50 µs after the last event, and then sleeps in the kernel. The
//! floor is in `floor/journal.rs`, and peers are in `bench/peers`.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use streamdoor::base::{ExecutionId, Instant, SubscriberId};
use streamdoor::engine::SubscribeSpec;
use streamdoor::journal::format::Lsn;
use streamdoor::journal::look::{self, Look, ReadFiles};
use streamdoor::memory::RingPoolConfig;
use streamdoor::shard::{Delivery, ExecuteOptions, JournalConfig, Shard, ShardConfig};
use streamdoor::stream::{Durability, Kind, Policy};
use streamdoor::tool::{Need, Prepared, Work};

use crate::common::journal::{
    Durable, Folder, Found, JOURNAL_HELP, Load, MODES, publish, report, sample_since,
};
use crate::common::machine::{now_ns, preemption_count};
use crate::common::{BATCH_CHUNKS, Failure, print};
use crate::floor;

const IMPLEMENTATIONS: [&str; 5] = ["streamdoor", "direct", "alone", "floor", "floor-buffered"];

const HELP: &str = "\
bench journal: measure the log on disk: durable messages, bulk, replay and recovery

Usage: bench journal [options]

  --impl NAME         the implementation to measure (streamdoor):
                      streamdoor      a shard driven by hand, one execution
                      direct          the same, whose writes go past the page cache
                      alone           live only: nobody replays anything
                      floor           publish: one write of whole pages past the page cache that
                                      returns when it is durable, into a file of zeros; sustained:
                                      writes in a row with a sync every 16 MiB; replay and verify:
                                      reads of 64 KiB with a checksum; not for the others
                      floor-buffered  publish only: the write through the page cache, and a sync
                      Other programs: bench/peers
  --mode sustained    publish without waiting for the disk, for the promise `written`, with few
                      bytes on their way; a chunk that was not kept does not count
  --mode replay       give one subscriber everything from the disk, as often as there is time; the
                      disk's bytes are in the page cache
  --mode live         10,000 messages a second of another execution to 16 subscribers, from the
                      planned time to the last of them, while 16 others replay the journal
  --mode many         one message of each of 1,000 executions in every millisecond, from the planned
                      time until all of them are durable
  --mode first        subscribe from the beginning, until the first message is there; the disk's
                      bytes are in the page cache
  --mode recovery     open a journal whose last segment is half full, as often as there is time
  --mode verify       check every checksum of a journal that nobody has open, as often as there is
                      time; the disk's bytes are in the page cache
  --mib N             replay, live, first, recovery, verify: MiB of messages in the journal (256;
                      recovery 1024)
";

/// Maximum number of bytes that are on their way to the kernel in the mode `sustained`.
const BYTES_UNDER_WAY_MAX: u64 = 1 << 20;
/// Number of bytes that are published at once, unless a message is longer.
const BATCH_BYTES: usize = 64 << 10;
/// Maximum time for which the shard sleeps, and the pause after a chunk that was not kept.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of messages in the segment that was being filled before a recovery.
const ACTIVE_BYTES: u64 = 32 << 20;
/// Time in which the disk must get on.
const STALL_NS_MAX: u64 = 30_000_000_000;

/// Runs `bench journal` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Some(load) = Load::parse(&IMPLEMENTATIONS, &MODES, arguments)? else {
        print(&format!("{HELP}{JOURNAL_HELP}"));
        return Ok(());
    };
    let folder = Folder::new(&load)?;
    let is_floor = load.plan.implementation.starts_with("floor");
    let found = match is_floor {
        true => floor::journal::measure(&load, folder.path())?,
        false => measure(&load, folder.path())?,
    };
    report("bench", &load, &found, &folder)
}

fn measure(load: &Load, folder: &Path) -> Result<Found, Failure> {
    match load.mode {
        "publish" => {
            let mut log = Log::open(load, folder, Durability::Synced).map_err(Failure::Failed)?;
            let found = publish(load, &mut log)?;
            match log.missed() {
                0 => Ok(found),
                missed => Err(Failure::Failed(format!("{missed} messages were not kept"))),
            }
        }
        "sustained" => sustained(load, folder).map_err(Failure::Failed),
        "replay" => replay(load, folder).map_err(Failure::Failed),
        "live" => live(load, folder).map_err(Failure::Failed),
        "many" => many(load, folder).map_err(Failure::Failed),
        "first" => first(load, folder).map_err(Failure::Failed),
        "recovery" => recovery(load, folder).map_err(Failure::Failed),
        _ => verify(load, folder).map_err(Failure::Failed),
    }
}

fn config(load: &Load, folder: &Path) -> ShardConfig {
    let is_direct = load.plan.implementation == "direct";
    ShardConfig {
        rings: RingPoolConfig { prealloc_bytes: 0, ..Default::default() },
        journal: Some(JournalConfig { is_direct, ..JournalConfig::at(folder) }),
        ..Default::default()
    }
}

/// Begins an execution that is fed by hand.
fn execute(
    shard: &mut Shard,
    load: &Load,
    durability: Durability,
    ring_bytes: u32,
) -> Result<ExecutionId, String> {
    let chunk_bytes = load.plan.size_bytes as u32;
    let need = Need { ring_bytes, chunk_bytes, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
    let options = ExecuteOptions { durability: Some(durability), ..Default::default() };
    shard.execute_prepared(prepared, options).map_err(|error| error.to_string())
}

/// A shard with a journal and one execution.
struct Log {
    shard: Shard,
    id: ExecutionId,
    /// The last chunk that was published.
    published_seq: u64,
}

impl Log {
    fn open(load: &Load, folder: &Path, durability: Durability) -> Result<Log, String> {
        let (shard, _) = Shard::new(config(load, folder)).map_err(|error| error.to_string())?;
        Log::begin(shard, load, durability)
    }

    /// Begins an execution.
    fn begin(mut shard: Shard, load: &Load, durability: Durability) -> Result<Log, String> {
        let id = execute(&mut shard, load, durability, 1 << 20)?;
        Ok(Log { shard, id, published_seq: 0 })
    }

    /// Publishes, at most [`BATCH_CHUNKS`].
    fn send(&mut self, payload: &[u8], count: u32) -> Result<(), String> {
        let now = Instant::from_nanos(now_ns());
        let batch = [payload; BATCH_CHUNKS as usize];
        let sent = self.shard.publish_batch(self.id, Kind::Output, &batch[..count as usize], now);
        self.published_seq = sent.map_err(|(_, error)| error.to_string())?;
        self.shard.turn();
        Ok(())
    }

    /// Publishes, and backs off while chunks are not kept. The last one is kept, so that it can be
    /// waited for.
    fn send_until_kept(&mut self, payload: &[u8], count: u32) -> Result<(), String> {
        let mut missed = self.missed();
        self.send(payload, count)?;
        while self.missed() > missed {
            missed = self.missed();
            self.back_off();
            self.send(payload, 1)?;
        }
        Ok(())
    }

    fn turn(&mut self) {
        if !self.shard.turn() {
            let until_ns = now_ns() + PAUSE.as_nanos() as u64;
            self.shard.park(Some(Instant::from_nanos(until_ns)));
        }
    }

    /// Takes turns for a while.
    fn back_off(&mut self) {
        let until_ns = now_ns() + PAUSE.as_nanos() as u64;
        while now_ns() < until_ns {
            self.turn();
        }
    }

    fn durable_seq(&self) -> Result<u64, String> {
        self.shard.durable_seq(self.id).ok_or_else(|| "the execution is not kept".into())
    }

    /// Takes turns until chunk `seq` is durable.
    fn wait_until(&mut self, seq: u64) -> Result<(), String> {
        let deadline_ns = now_ns() + STALL_NS_MAX;
        while self.durable_seq()? < seq {
            self.turn();
            self.check(deadline_ns)?;
        }
        Ok(())
    }

    fn check(&self, deadline_ns: u64) -> Result<(), String> {
        if now_ns() < deadline_ns {
            return Ok(());
        }
        Err(format!("the disk does not get on: {:?}", self.shard.journal()))
    }

    /// Number of chunks that were not kept.
    fn missed(&self) -> u64 {
        self.shard.journal().expect("it was opened with one").counters.missed_chunks
    }

    /// Opens a journal, and adds an execution with this number of messages. Each batch is durable
    /// before the next one.
    fn fill(load: &Load, folder: &Path, messages: u64) -> Result<Log, String> {
        let mut log = Log::open(load, folder, Durability::Synced)?;
        let (payload, batch) = (load.payload(), batch_of(load));
        while log.published_seq < messages {
            let left = messages - log.published_seq;
            log.send_until_kept(&payload, left.min(batch.into()) as u32)?;
            log.wait_until(log.published_seq)?;
        }
        Ok(log)
    }
}

impl Durable for Log {
    fn publish(
        &mut self,
        payload: &[u8],
        count: u32,
        kept: &mut dyn FnMut(u32),
    ) -> Result<(), String> {
        let mut durable_seq = self.published_seq;
        self.send(payload, count)?;
        while durable_seq < self.published_seq {
            self.wait_until(durable_seq + 1)?;
            let until_seq = self.durable_seq()?;
            kept((until_seq - durable_seq) as u32);
            durable_seq = until_seq;
        }
        Ok(())
    }
}

fn batch_of(load: &Load) -> u32 {
    (BATCH_BYTES / load.plan.size_bytes).clamp(1, BATCH_CHUNKS as usize) as u32
}

fn sustained(load: &Load, folder: &Path) -> Result<Found, String> {
    let mut log = Log::open(load, folder, Durability::Written)?;
    let (payload, batch) = (load.payload(), batch_of(load));
    let ahead = (BYTES_UNDER_WAY_MAX / load.plan.size_bytes as u64).max(1);
    let run = |log: &mut Log, duration: Duration| {
        let until_ns = now_ns() + duration.as_nanos() as u64;
        while now_ns() < until_ns {
            log.send_until_kept(&payload, batch)?;
            log.wait_until(log.published_seq.saturating_sub(ahead))?;
        }
        log.wait_until(log.published_seq)
    };
    run(&mut log, load.plan.warmup)?;
    let (published, missed) = (log.published_seq, log.missed());
    let (before, start_ns) = (preemption_count(), now_ns());
    run(&mut log, load.plan.duration)?;
    let (published, missed) = (log.published_seq - published, log.missed() - missed);
    Ok(Found::rate(published, missed, start_ns, before))
}

fn replay(load: &Load, folder: &Path) -> Result<Found, String> {
    let mut log = Log::fill(load, folder, load.messages())?;
    let given = Rc::new(Cell::new((0, 0)));
    let spec = SubscribeSpec { policy: Policy::Replay, ..Default::default() };
    let (mut before, mut start_ns) = (preemption_count(), now_ns());
    let (mut wanted, mut is_warm) = (0, false);
    loop {
        let notes = Rc::clone(&given);
        let note = move |delivery: &Delivery<'_>| {
            let (chunks, missed) = notes.get();
            match delivery {
                Delivery::Chunk(_) => notes.set((chunks + 1, missed)),
                Delivery::Gap(gap) => notes.set((chunks, missed + gap.chunk_count)),
                _ => {}
            }
        };
        let subscribed = log.shard.subscribe(log.id, spec, note);
        let subscriber = subscribed.map_err(|error| error.to_string())?;
        wanted += log.published_seq;
        let deadline_ns = now_ns() + STALL_NS_MAX;
        while given.get().0 + given.get().1 < wanted {
            log.turn();
            log.check(deadline_ns)?;
        }
        log.shard.unsubscribe(subscriber).map_err(|error| error.to_string())?;
        if !std::mem::replace(&mut is_warm, true) {
            // The journal was written past the page cache, and the first pass has filled it.
            (before, start_ns, wanted) = (preemption_count(), now_ns(), 0);
            given.set((0, 0));
        } else if now_ns() - start_ns >= load.plan.duration.as_nanos() as u64 {
            return Ok(Found::rate(wanted, given.get().1, start_ns, before));
        }
    }
}

/// Subscribers of each kind in the mode `live`.
const SUBSCRIBERS: u64 = 16;
/// Time between two messages in the mode `live`.
const PERIOD_NS: u64 = 100_000;

/// A subscriber that replays an execution again and again.
struct Replayer {
    subscriber: SubscriberId,
    /// Number of chunks that it was given or that were missed.
    seen: Rc<Cell<u64>>,
}

impl Replayer {
    fn begin(log: &mut Log, id: ExecutionId) -> Result<Replayer, String> {
        let seen = Rc::new(Cell::new(0));
        let spec = SubscribeSpec { policy: Policy::Replay, ..Default::default() };
        let notes = Rc::clone(&seen);
        let note = move |delivery: &Delivery<'_>| match delivery {
            Delivery::Chunk(_) => notes.set(notes.get() + 1),
            Delivery::Gap(gap) => notes.set(notes.get() + gap.chunk_count),
            _ => {}
        };
        let subscribed = log.shard.subscribe(id, spec, note);
        Ok(Replayer { subscriber: subscribed.map_err(|error| error.to_string())?, seen })
    }
}

fn live(load: &Load, folder: &Path) -> Result<Found, String> {
    let Log { shard, id: old, published_seq: kept } = Log::fill(load, folder, load.messages())?;
    let mut log = Log::begin(shard, load, Durability::Written)?;
    let mut replayers = Vec::new();
    if load.plan.implementation != "alone" {
        for _ in 0..SUBSCRIBERS {
            replayers.push(Replayer::begin(&mut log, old)?);
        }
    }
    let given = Rc::new(Cell::new(0));
    for _ in 0..SUBSCRIBERS {
        let notes = Rc::clone(&given);
        let note = move |delivery: &Delivery<'_>| {
            if let Delivery::Chunk(_) = delivery {
                notes.set(notes.get() + 1);
            }
        };
        log.shard.subscribe(log.id, SubscribeSpec::default(), note).map_err(|e| e.to_string())?;
    }
    let payload = load.payload();
    let mut samples_ns = Vec::with_capacity(1 << 20);
    let (before, start_ns) = (preemption_count(), now_ns());
    let until_ns = start_ns + load.plan.duration.as_nanos() as u64;
    let mut planned_ns = start_ns;
    while planned_ns < until_ns {
        planned_ns += PERIOD_NS;
        while now_ns() < planned_ns {
            log.shard.turn();
        }
        log.send(&payload, 1)?;
        let deadline_ns = now_ns() + STALL_NS_MAX;
        while given.get() < log.published_seq * SUBSCRIBERS {
            log.shard.turn();
            log.check(deadline_ns)?;
        }
        samples_ns.push(sample_since(planned_ns));
        for replayer in &mut replayers {
            if replayer.seen.get() >= kept {
                let left = log.shard.unsubscribe(replayer.subscriber);
                left.map_err(|error| error.to_string())?;
                *replayer = Replayer::begin(&mut log, old)?;
            }
        }
    }
    Ok(Found::times(&samples_ns, start_ns, before))
}

/// Executions in the mode `many`.
const EXECUTIONS: usize = 1_000;
/// Time between two messages of one of them.
const ROUND_NS: u64 = 1_000_000;

fn many(load: &Load, folder: &Path) -> Result<Found, String> {
    let mut log = Log::open(load, folder, Durability::Synced)?;
    let mut ids = vec![log.id];
    for _ in 1..EXECUTIONS {
        ids.push(execute(&mut log.shard, load, Durability::Synced, 64 << 10)?);
    }
    let payload = load.payload();
    let mut samples_ns = Vec::with_capacity(1 << 20);
    let (before, start_ns) = (preemption_count(), now_ns());
    let rounds = load.plan.duration.as_nanos() as u64 / ROUND_NS;
    let planned_ns = |round: u64| start_ns + round * ROUND_NS;
    let mut round = 0;
    while (samples_ns.len() as u64) < rounds {
        if round < rounds && now_ns() >= planned_ns(round + 1) {
            round += 1;
            let now = Instant::from_nanos(now_ns());
            for id in &ids {
                let sent = log.shard.publish_at(*id, Kind::Output, 0, &payload, now);
                sent.map_err(|error| error.to_string())?;
            }
        }
        log.shard.turn();
        log.check(planned_ns(round) + STALL_NS_MAX)?;
        let durable_round = |id: &ExecutionId| log.shard.durable_seq(*id).unwrap_or(0);
        while (samples_ns.len() as u64) < durable_round(&ids[EXECUTIONS - 1])
            && ids.iter().all(|id| durable_round(id) > samples_ns.len() as u64)
        {
            samples_ns.push(sample_since(planned_ns(samples_ns.len() as u64 + 1)));
        }
    }
    match log.missed() {
        0 => Ok(Found::times(&samples_ns, start_ns, before)),
        missed => Err(format!("{missed} messages were not kept")),
    }
}

fn first(load: &Load, folder: &Path) -> Result<Found, String> {
    let mut log = Log::fill(load, folder, load.messages())?;
    let mut samples_ns = Vec::with_capacity(1 << 20);
    let (before, start_ns) = (preemption_count(), now_ns());
    while now_ns() - start_ns < load.plan.duration.as_nanos() as u64 {
        let asked_ns = now_ns();
        let id = log.id;
        let replayer = Replayer::begin(&mut log, id)?;
        while replayer.seen.get() == 0 {
            log.shard.turn();
            log.check(asked_ns + STALL_NS_MAX)?;
        }
        samples_ns.push(sample_since(asked_ns));
        log.shard.unsubscribe(replayer.subscriber).map_err(|error| error.to_string())?;
    }
    Ok(Found::times(&samples_ns, start_ns, before))
}

fn recovery(load: &Load, folder: &Path) -> Result<Found, String> {
    drop(Log::fill(load, folder, load.messages())?);
    let active = (ACTIVE_BYTES / load.plan.size_bytes as u64).min(load.messages());
    let mut samples_ns = Vec::new();
    let (before, start_ns) = (preemption_count(), now_ns());
    while samples_ns.is_empty() || now_ns() - start_ns < load.plan.duration.as_nanos() as u64 {
        drop(Log::fill(load, folder, active)?);
        let opened_ns = now_ns();
        let opened = Shard::new(config(load, folder));
        samples_ns.push(sample_since(opened_ns));
        let (shard, _) = opened.map_err(|error| error.to_string())?;
        match shard.kept_executions().len() {
            found if found == 1 + samples_ns.len() => {}
            other => return Err(format!("{other} executions were found")),
        }
    }
    Ok(Found::times(&samples_ns, start_ns, before))
}

/// The segments of a journal, for [`verify`].
struct Segments {
    directory: PathBuf,
    open: Option<(u64, File)>,
}

impl ReadFiles for Segments {
    fn segments(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let mut segments = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().into_string().unwrap_or_default();
            let number = name.strip_suffix(".seg").and_then(|digits| digits.parse().ok());
            segments.extend(number.zip(entry.metadata().ok().map(|metadata| metadata.len())));
        }
        Ok(segments)
    }

    fn read(&mut self, lsn: Lsn, buffer: &mut [u8]) -> io::Result<usize> {
        let number = lsn.segment_number();
        let file = match &mut self.open {
            Some((open, file)) if *open == number => file,
            other => {
                let path = self.directory.join(format!("{number:012}.seg"));
                &mut other.insert((number, File::open(path)?)).1
            }
        };
        file.read_at(buffer, lsn.offset_bytes().into())
    }
}

fn verify(load: &Load, folder: &Path) -> Result<Found, String> {
    drop(Log::fill(load, folder, load.messages())?);
    let directory = folder.join("shard-00");
    let check = || {
        let files = Segments { directory: directory.clone(), open: None };
        let mut look = Look::open(files).map_err(|error| error.to_string())?;
        let sums = look::verify(&mut look, &mut |_| {}).map_err(|error| error.to_string())?;
        match (sums.faults, sums.chunks) == (0, load.messages()) {
            true => Ok(sums.chunks),
            false => Err(format!("{} faults, and {} messages", sums.faults, sums.chunks)),
        }
    };
    check()?; // The journal was written past the page cache.
    let (before, start_ns) = (preemption_count(), now_ns());
    let mut checked = 0;
    while now_ns() - start_ns < load.plan.duration.as_nanos() as u64 {
        checked += check()?;
    }
    Ok(Found::rate(checked, 0, start_ns, before))
}
