//! Both ends on one thread, in turns: sends the deltas that are due, and reads what has arrived.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use hdrhistogram::Histogram;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::model::Model;
use super::reader::{READ_BYTES, Reader, Way};
use crate::common::Failure;
use crate::common::machine::{now_ns, preemption_count};
use crate::common::report::{Measured, Outcome, histogram_of};
use crate::common::serve::load::Load;
use crate::common::serve::plan::Plan;

/// The maximum time of a run beyond the planned time.
const OVERDUE_NS: u64 = 60_000_000_000;
/// Without a rate, the number of deltas that are sent before the arrived bytes are read.
const BURST_DELTAS: u32 = 64;

/// The model and its readers.
pub struct Ends<'a> {
    load: &'a Load,
    way: Way,
    model: Model,
    readers: Vec<Reader>,
    /// Number of deltas sent in each run.
    said: Vec<u64>,
    /// The time at which the end of each run was sent.
    finished_ns: Vec<u64>,
    plan: Plan,
    /// The time at which the next delta is due, and its run.
    due_ns: Option<u64>,
    next_run: usize,
    samples_ns: Vec<u32>,
    /// The sum and the number of latencies of each run.
    sums: Vec<(u64, u64)>,
    end_samples_ns: Vec<u32>,
    buffer: Box<[u8]>,
}

/// The results of all runs.
pub struct Heard {
    /// The latencies of all deltas, or their number.
    pub outcome: Outcome,
    /// The latencies of the ends of runs.
    pub end: Histogram<u64>,
    /// Number of deltas sent.
    pub deltas: u64,
    /// The mean latency of the fastest run, and of the slowest.
    pub run_means_ns: (u64, u64),
}

impl<'a> Ends<'a> {
    /// Opens the model. No run has begun.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn open(load: &'a Load, way: Way) -> Result<Ends<'a>, Failure> {
        let runs = load.connections as usize;
        let (warmup, counted) = load.chunks();
        // Touched now, so that no page is touched for the first time during the run.
        let mut samples_ns = vec![u32::MAX; (warmup + counted) as usize];
        samples_ns.clear();
        Ok(Ends {
            load,
            way,
            model: Model::open(load)?,
            readers: Vec::with_capacity(runs),
            said: vec![0; runs],
            finished_ns: vec![0; runs],
            plan: Plan::new(load),
            due_ns: None,
            next_run: 0,
            samples_ns,
            sums: vec![(0, 0); runs],
            end_samples_ns: Vec::with_capacity(runs),
            buffer: vec![1; READ_BYTES].into_boxed_slice(),
        })
    }

    /// Returns the address of the model.
    pub fn model_address(&self) -> SocketAddr {
        self.model.address()
    }

    /// Starts all runs. Each one asks the model before the next one starts.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub fn ask_all(&mut self, between: SocketAddr) -> Result<(), Failure> {
        for index in 0..self.load.connections as usize {
            self.readers.push(Reader::ask(between, self.way, index)?);
            self.model.take_request()?;
        }
        Ok(())
    }

    /// Sends everything and reads everything.
    ///
    /// # Errors
    /// [`Failure::Failed`] if something is lost or does not arrive.
    pub fn run(mut self) -> Result<Heard, Failure> {
        let failed = |error: io::Error| Failure::Failed(format!("epoll: {error}"));
        let mut poll = Poll::new().map_err(failed)?;
        for (index, reader) in self.readers.iter().enumerate() {
            let fd = reader.socket.as_raw_fd();
            let registry = poll.registry();
            let registered =
                registry.register(&mut SourceFd(&fd), Token(index), Interest::READABLE);
            registered.map_err(failed)?;
        }
        let mut events = Events::with_capacity(self.readers.len());
        let preemptions_before = preemption_count();
        let begun_ns = now_ns();
        self.plan.begin(Plan::origin(begun_ns));
        self.due_ns = self.plan.next(begun_ns);
        let planned_ns = (self.load.warmup + self.load.duration).as_nanos() as u64;
        let deadline_ns = begun_ns + planned_ns + OVERDUE_NS;
        let (mut finished, mut ended) = (0, 0);
        while ended < self.readers.len() {
            let now = now_ns();
            match self.due_ns {
                Some(_) => self.say(now)?,
                None if finished < self.readers.len() => {
                    finished += usize::from(self.finish(finished)?);
                }
                None if now > deadline_ns => {
                    let left = self.readers.len() - ended;
                    return Err(Failure::Failed(format!("{left} runs have not ended")));
                }
                None => {}
            }
            match poll.poll(&mut events, Some(Duration::ZERO)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result.map_err(failed)?,
            }
            for event in &events {
                ended += usize::from(self.read(event.token().0)?);
            }
        }
        let preemptions = preemption_count() - preemptions_before;
        self.heard(begun_ns, preemptions)
    }

    /// Sends the end of a run. Returns false if it has to be tried again, because the socket is
    /// full.
    fn finish(&mut self, run: usize) -> Result<bool, Failure> {
        let is_said = self.model.finish(run)?;
        self.finished_ns[run] = now_ns();
        Ok(is_said)
    }

    /// Sends the deltas that are due.
    #[inline]
    fn say(&mut self, now: u64) -> Result<(), Failure> {
        let mut left = BURST_DELTAS;
        while let Some(due_ns) = self.due_ns.filter(|due_ns| *due_ns <= now) {
            let run = self.next_run;
            let is_said = self.model.say(run, due_ns)?;
            if !is_said && !self.plan.is_flat_out() {
                return Ok(()); // It stays due, with its planned time.
            }
            self.said[run] += u64::from(is_said);
            self.next_run = (run + 1) % self.readers.len();
            self.due_ns = self.plan.next(now);
            left -= 1;
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reads until the socket is empty, because epoll reports it again only when more arrives.
    /// Returns true if the run has ended with this.
    #[inline]
    fn read(&mut self, index: usize) -> Result<bool, Failure> {
        let reader = &mut self.readers[index];
        if reader.has_ended {
            return Ok(false);
        }
        let said = self.said[index];
        loop {
            let (samples_ns, mut seq) = (&mut self.samples_ns, reader.heard);
            let (sum_ns, count_of_run) = &mut self.sums[index];
            let mut received_ns = 0;
            let is_flat_out = self.plan.is_flat_out();
            let way = self.way;
            let count = reader.read(&mut self.buffer, |due_ns| {
                seq += 1;
                // The end repeats earlier text. A reader of steps gets all text only in this way.
                if way == Way::Iterate || seq > said || is_flat_out {
                    return;
                }
                if received_ns == 0 {
                    received_ns = now_ns();
                }
                let latency_ns = received_ns.saturating_sub(due_ns).min(u64::from(u32::MAX));
                samples_ns.push(latency_ns as u32);
                (*sum_ns, *count_of_run) = (*sum_ns + latency_ns, *count_of_run + 1);
            })?;
            if reader.has_ended {
                let took_ns = now_ns().saturating_sub(self.finished_ns[index]);
                self.end_samples_ns.push(took_ns.min(u64::from(u32::MAX)) as u32);
                let is_missing = self.way != Way::Iterate && reader.heard < said;
                if is_missing {
                    let (heard, way) = (reader.heard, self.way.name());
                    let text = format!("{way}: run {index}: {heard} of {said} deltas arrived");
                    return Err(Failure::Failed(text));
                }
                return Ok(true);
            }
            if count < self.buffer.len() {
                return Ok(false);
            }
        }
    }

    fn heard(self, begun_ns: u64, preemptions: u64) -> Result<Heard, Failure> {
        let deltas: u64 = self.said.iter().sum();
        let end = histogram_of(&self.end_samples_ns);
        let (warmup, counted) = self.load.chunks();
        let measured = match self.plan.is_flat_out() || self.way == Way::Iterate {
            true => {
                // The time from the first to the last, which have all arrived.
                let elapsed_ns = now_ns() - Plan::origin(begun_ns);
                Measured::Throughput { chunks: deltas, deliveries: deltas, elapsed_ns }
            }
            false => {
                let samples_ns = self.samples_ns[warmup as usize..].to_vec();
                let histogram = histogram_of(&samples_ns);
                Measured::Latency { chunks: counted, samples_ns, histogram }
            }
        };
        if deltas == 0 {
            return Err(Failure::Failed("no delta arrived in the counted time".into()));
        }
        let means =
            self.sums.iter().filter(|(_, count)| *count > 0).map(|(sum, count)| sum / count);
        let run_means_ns = (means.clone().min().unwrap_or(0), means.max().unwrap_or(0));
        Ok(Heard { outcome: Outcome { measured, preemptions }, end, deltas, run_means_ns })
    }
}
