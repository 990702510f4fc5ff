//! The process that reads and measures. It starts the producer's process, creates the readers,
//! sends `go`, and checks the results.
//!
//! Invariant: a run has no result unless its deliveries and stamps add up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::carrier::{Carrier, Read, Run};
use super::child::Child;
use super::load::{Load, Wait};
use super::producer::{END, GO, PUBLISHED, Published, READY};
use crate::common::Failure;
use crate::common::drive::{Received, Recorder, Setup};
use crate::common::machine::{now_ns, pin_thread, preemption_count};
use crate::common::params::{Rate, Touch};
use crate::common::receive::{Counting, Latency};
use crate::common::report::{Measured, Outcome};

/// Time between `go` and the start of the plan. By then, every thread is waiting.
const LEAD: Duration = Duration::from_millis(20);
/// Time by which a run may exceed its plan before it fails.
const GRACE: Duration = Duration::from_secs(20);

/// Runs `C` once. `words` are the arguments that make this program the producer.
///
/// # Errors
/// [`Failure`]; [`Failure::Failed`] if a chunk was lost, duplicated or damaged.
pub fn measure<C: Carrier + 'static>(load: &Load, words: &[&str]) -> Result<Outcome, Failure> {
    match (load.plan.rate, load.plan.touch) {
        (Rate::PerSecond(_), Touch::Copy) => measure_with::<C, Latency<true>>(load, words),
        (Rate::PerSecond(_), Touch::None) => measure_with::<C, Latency<false>>(load, words),
        (Rate::Max, Touch::Copy) => measure_with::<C, Counting<true>>(load, words),
        (Rate::Max, Touch::None) => measure_with::<C, Counting<false>>(load, words),
    }
}

/// The messages of a thread: that it is ready, and later what it received.
enum Said {
    Ready,
    Done(Received),
}

type Report = Result<Said, Failure>;

fn measure_with<C, R>(load: &Load, words: &[&str]) -> Result<Outcome, Failure>
where
    C: Carrier + 'static,
    R: Recorder,
{
    let host = Arc::new(C::host(load)?);
    let mut all: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    all.extend(load.to_arguments());
    all.extend(C::words(&host).into_iter().flat_map(|word| ["--word".to_owned(), word]));
    let mut producer = Child::of_this_program("the producer", &all)?;
    let said: Arc<str> = producer.hear(READY)?.into();
    let origin_ns = Arc::new(AtomicU64::new(0));

    // Threads start on the readers' cpu, away from the producer.
    pin_thread(load.plan.subscribers_cpu)?;
    let before = preemption_count();
    let (report, reports) = channel();
    let (thread_count, _) = load.threads();
    for thread in 0..thread_count {
        let (host, said, origin_ns) = (Arc::clone(&host), Arc::clone(&said), origin_ns.clone());
        let (load, report) = (load.clone(), report.clone());
        std::thread::spawn(move || {
            let read = read::<C, R>(host, &load, thread, &said, &origin_ns, &report);
            let _ = report.send(read.map(Said::Done)); // Ignored after a timeout.
        });
    }
    drop(report);
    for _ in 0..thread_count {
        hear(&reports, GRACE)?;
    }
    let origin = now_ns() + LEAD.as_nanos() as u64;
    // release: pairs with acquire in `Stamps::next`.
    origin_ns.store(origin, Ordering::Release);
    producer.tell(&format!("{GO} {origin}"))?;

    let mut received = Vec::new();
    for _ in 0..thread_count {
        let limit = load.plan.warmup + load.plan.duration + GRACE;
        if let Some(found) = hear(&reports, limit)? {
            received.push(found);
        }
    }
    let preemptions = preemption_count() - before;
    let line = producer.hear(PUBLISHED)?;
    let published = Published::parse(&line)
        .ok_or_else(|| Failure::Failed(format!("the producer wrote \"{line}\"")))?;
    producer.tell(END)?;
    producer.wait()?; // Before its host is dropped.
    judge(load, &published, &received, preemptions + published.preemptions)
}

/// Runs the readers of one thread. It drops its reference to the host before it reports. The thread
/// that receives the reports then holds the last reference, and drops the host before the process
/// exits.
fn read<C: Carrier, R: Recorder>(
    host: Arc<C::Host>,
    load: &Load,
    thread: u32,
    said: &str,
    origin_ns: &Arc<AtomicU64>,
    report: &Sender<Report>,
) -> Result<Received, Failure> {
    let (thread_count, reader_count) = load.threads();
    let run = |index| Run { index, said, origin_ns: Arc::clone(origin_ns) };
    let readers: Result<Vec<C::Reader>, String> = (0..reader_count)
        .map(|index| C::reader(&host, load, &run(thread * reader_count + index)))
        .collect();
    drop(host);
    let mut readers = readers.map_err(Failure::Failed)?;
    let setup = Setup::new(reader_count, load.plan.size_bytes);
    let receiver = R::open(&setup, load.plan.samples() / thread_count as usize);
    let _ = report.send(Ok(Said::Ready));
    let read = match load.wait {
        Wait::Polled => {
            C::Reader::together(readers).and_then(|mut readers| poll_all(&mut readers, &receiver))
        }
        Wait::Blocked => wait_for_all(&mut readers[0], &receiver),
    };
    read.map_err(Failure::Failed)?;
    Ok(Received::of(&receiver))
}

fn poll_all<T: Read, R: Recorder>(readers: &mut [T], receiver: &R) -> Result<(), String> {
    loop {
        let mut is_over = true;
        for reader in readers.iter_mut() {
            is_over &= reader.poll(receiver)?.is_none();
        }
        if is_over {
            return Ok(());
        }
    }
}

fn wait_for_all<T: Read, R: Recorder>(reader: &mut T, receiver: &R) -> Result<(), String> {
    while reader.wait(receiver)?.is_some() {}
    Ok(())
}

/// Returns the next message of a thread: the results, or `None` if it is ready.
fn hear(reports: &Receiver<Report>, limit: Duration) -> Result<Option<Received>, Failure> {
    let failed = |text: &str| Err(Failure::Failed(text.into()));
    match reports.recv_timeout(limit) {
        Ok(Ok(Said::Done(received))) => Ok(Some(received)),
        Ok(Ok(Said::Ready)) => Ok(None),
        Ok(Err(failure)) => Err(failure),
        Err(RecvTimeoutError::Timeout) => failed("the readers have waited too long for chunks"),
        Err(RecvTimeoutError::Disconnected) => failed("a thread of the readers ended early"),
    }
}

/// Returns the outcome if every published chunk arrived everywhere, once and undamaged.
fn judge(
    load: &Load,
    published: &Published,
    received: &[Received],
    preemptions: u64,
) -> Result<Outcome, Failure> {
    let (tally, plan) = (published.tally, &load.plan);
    let (_, reader_count) = load.threads();
    let expected = tally.published_chunks * u64::from(reader_count);
    for found in received {
        if found.count != expected {
            return Err(Failure::Failed(format!(
                "{} deliveries instead of {expected} ({} chunks × {reader_count} readers)",
                found.count, tally.published_chunks
            )));
        }
        if found.stamp_sum != tally.stamp_sum.wrapping_mul(u64::from(reader_count)) {
            return Err(Failure::Failed("what was received is not what was published".into()));
        }
    }
    let chunks = tally.published_chunks - tally.warmup_chunks;
    let measured = if plan.rate == Rate::Max {
        let last_ns = received.iter().map(|found| found.end_ns).fold(tally.end_ns, u64::max);
        let (deliveries, elapsed_ns) =
            (chunks * u64::from(plan.subscribers), last_ns - tally.start_ns);
        Measured::Throughput { chunks, deliveries, elapsed_ns }
    } else {
        let warmup_samples = (tally.warmup_chunks * u64::from(reader_count)) as usize;
        let counted = received.iter().flat_map(|found| &found.samples_ns[warmup_samples..]);
        let samples_ns: Vec<u32> = counted.copied().collect();
        Measured::latency(chunks, &samples_ns, plan.subscribers)
    };
    Ok(Outcome { measured, preemptions })
}
