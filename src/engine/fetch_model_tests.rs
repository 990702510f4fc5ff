//! An execution on disk, drawn from a seed: its chunks, its subscribers, the answers of the disk.
//!
//! The disk answers in any order and in any portions, and has lost chunks. The model knows every
//! chunk. Each subscriber is given or told of each chunk of its kinds once and in order. Gaps are
//! exact and have a true reason, and there is one end.

use std::time::Duration;

use super::*;
use crate::base::Random;
use crate::stream::{End, EndState, Gap, GapReason, Kind, Kinds, Policy};

const RING: RingFacts =
    RingFacts { slot_count: 16, chunks_max: 14, chunk_bytes_max: 512, data_bytes: 2_048 };
const KINDS: [Kind; 3] = [Kind::Stdout, Kind::Stderr, Kind::Row];

/// A question to the disk that was not answered.
#[derive(Clone, Copy, Debug)]
struct Question {
    reader: usize,
    until_seq: u64,
    chunks_max: u32,
}

#[derive(Debug)]
struct Reader {
    id: SubscriberId,
    spec: SubscribeSpec,
    began_seq: u64,
    next_seq: u64,
    demand: u32,
    asked_until_seq: u64,
    given: Totals,
    missed: Totals,
    last_seq: u64,
    limit: crate::stream::LagLimit,
    /// True if it was level at some moment: only then its policy may cut it.
    was_level: bool,
    end: Option<End>,
    has_left: bool,
}

impl Reader {
    fn is_there(&self) -> bool {
        self.end.is_none() && !self.has_left
    }

    fn wants_all(&self) -> bool {
        !matches!(self.spec.policy, Policy::DropOldest | Policy::Conflate)
    }
}

struct World {
    seed: u64,
    random: Random,
    engine: Engine,
    now: Instant,
    execution: ExecutionId,
    chunks: Vec<(Kind, u32)>,
    /// The reason for which the disk lost each chunk, or none.
    faults: Vec<Option<GapReason>>,
    is_intact: bool,
    ring_chunks: u64,
    /// The oldest chunk in the ring, and the oldest that the engine knows to be there.
    tail_seq: u64,
    kept_from_seq: u64,
    gate: Gate,
    readers: Vec<Reader>,
    questions: Vec<Question>,
    fetch_count: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let mut engine = Engine::new(EngineLimits::default(), Instant::ZERO);
        let spec = OpenSpec { kept: true, ..OpenSpec::new(RING) };
        engine.handle(Event::Open(spec), Instant::ZERO);
        let Some(Action::Reply(Reply::Opened(Ok(execution)))) = engine.next_action() else {
            panic!("it is opened")
        };
        engine.handle(Event::Leased(execution.slot, RING), Instant::ZERO);
        let is_intact = random.chance(1, 2);
        let ring_chunks = random.between(1, 14);
        let mut world = World {
            seed,
            random,
            engine,
            now: Instant::ZERO,
            execution,
            chunks: Vec::new(),
            faults: Vec::new(),
            is_intact,
            ring_chunks,
            tail_seq: 1,
            kept_from_seq: 1,
            gate: Gate::OPEN,
            readers: Vec::new(),
            questions: Vec::new(),
            fetch_count: 0,
        };
        world.settle();
        world
    }

    fn head_seq(&self) -> u64 {
        self.chunks.len() as u64
    }

    fn totals(&self, kinds: Kinds, from_seq: u64, until_seq: u64) -> Totals {
        let mut totals = Totals::ZERO;
        for seq in from_seq..until_seq {
            let (kind, length) = self.chunks[seq as usize - 1];
            if kinds.contains(kind) {
                totals.count(length);
            }
        }
        totals
    }

    fn handle(&mut self, event: Event) {
        self.engine.handle(event, self.now);
        self.settle();
    }

    fn ask(&mut self, event: Event) -> Reply {
        self.engine.handle(event, self.now);
        let Some(Action::Reply(reply)) = self.engine.next_action() else { panic!("an answer") };
        reply
    }

    fn settle(&mut self) {
        while let Some(action) = self.engine.next_action() {
            self.carry_out(action);
        }
        self.engine.audit();
    }

    fn find(&self, subscriber: SubscriberId) -> usize {
        let found = self.readers.iter().rposition(|reader| reader.id == subscriber);
        found.expect("it tells subscribers that were there")
    }

    fn carry_out(&mut self, action: Action) {
        let seed = self.seed;
        match action {
            Action::SetGate(_, gate) => self.gate = gate,
            Action::Deliver { from_seq, until_seq, .. } => self.deliver(from_seq, until_seq),
            Action::Fetch { subscriber, from_seq, until_seq, chunks_max, .. } => {
                let reader = self.find(subscriber);
                self.fetch_count += 1;
                self.pass(reader, from_seq);
                let asked = &mut self.readers[reader];
                assert!(asked.is_there() && asked.demand > 0 && asked.wants_all(), "seed {seed}");
                assert!(asked.asked_until_seq == 0, "seed {seed}: two questions at once");
                assert!(from_seq < until_seq && chunks_max > 0, "seed {seed}");
                assert!(chunks_max <= asked.demand, "seed {seed}");
                assert!(until_seq <= self.tail_seq, "seed {seed}: the ring holds it");
                asked.asked_until_seq = until_seq;
                self.questions.push(Question { reader, until_seq, chunks_max });
            }
            Action::Gap(subscriber, _, gap) => self.gap(subscriber, gap),
            Action::End(subscriber, _, end) => self.end(subscriber, end),
            Action::Forget(subscriber, _) => {
                let reader = self.find(subscriber);
                assert!(self.readers[reader].is_there(), "seed {seed}");
                self.readers[reader].has_left = true;
            }
            Action::KeepEnd(execution, _) => {
                self.engine.handle(Event::EndKept(execution), self.now);
            }
            Action::StopProducer(execution) => {
                self.engine.handle(Event::ProducerEnded(execution, ProducerEnd::Stopped), self.now);
            }
            _ => {}
        }
    }

    /// Moves a reader to `seq`. Only chunks of other kinds may lie between.
    fn pass(&mut self, reader: usize, seq: u64) {
        let seed = self.seed;
        let Reader { next_seq, spec, .. } = self.readers[reader];
        assert!(seq >= next_seq, "seed {seed}: reader {reader} gets {seq} after {next_seq}");
        let between = self.totals(spec.kinds, next_seq, seq);
        assert!(between.chunks == 0, "seed {seed}: reader {reader}: a hole at {next_seq}..{seq}");
        self.readers[reader].next_seq = seq;
    }

    fn give(&mut self, at: usize, from_seq: u64, until_seq: u64) {
        self.pass(at, from_seq);
        let kinds = self.readers[at].spec.kinds;
        let totals = self.totals(kinds, from_seq, until_seq);
        let wanted = |&seq: &u64| kinds.contains(self.chunks[seq as usize - 1].0);
        let last_seq = (from_seq..until_seq).rev().find(wanted);
        let reader = &mut self.readers[at];
        reader.next_seq = until_seq;
        reader.last_seq = last_seq.unwrap_or(reader.last_seq);
        reader.given = reader.given + totals;
        if reader.demand != u32::MAX {
            reader.demand = reader.demand.saturating_sub(totals.chunks as u32);
        }
        self.note_level(at);
    }

    /// Notes that a reader is level, if it is. It may have passed chunks of other kinds in silence.
    fn note_level(&mut self, at: usize) {
        let Reader { next_seq, spec, limit, .. } = self.readers[at];
        let end_seq = self.head_seq() + 1;
        let is_wanted = |&seq: &u64| spec.kinds.contains(self.chunks[seq as usize - 1].0);
        let wanted_seq = (next_seq..end_seq).find(is_wanted).unwrap_or(end_seq);
        let lag = self.totals(spec.kinds, wanted_seq, end_seq);
        let tail_seq = self.engine.log(self.execution.slot).map_or(1, Log::tail_seq);
        self.readers[at].was_level |= wanted_seq >= tail_seq && limit.holds(lag);
    }

    /// Gives chunks of the ring. A tool's thread may overwrite the first of them meanwhile.
    fn deliver(&mut self, from_seq: u64, until_seq: u64) {
        let recipients = self.engine.recipients().to_vec();
        let is_gone = self.tail_seq > from_seq;
        let lost_to = if is_gone { self.tail_seq - 1 } else { from_seq + self.random.below(6) };
        let lost_to = lost_to.min(until_seq - 1);
        let may_be_lost = self.random.chance(1, 20) && lost_to < self.gate.gate_seq;
        let is_overtaken = is_gone || may_be_lost;
        if is_overtaken {
            self.tail_seq = self.tail_seq.max(lost_to + 1);
        }
        for &subscriber in &recipients {
            let reader = self.find(subscriber);
            let Reader { demand, asked_until_seq, .. } = self.readers[reader];
            assert!(self.readers[reader].is_there(), "seed {}", self.seed);
            assert!(asked_until_seq == 0, "seed {}: the disk is asked", self.seed);
            let chunks = self.totals(self.readers[reader].spec.kinds, from_seq, until_seq).chunks;
            assert!(chunks <= u64::from(demand), "seed {}", self.seed);
            if !is_overtaken {
                self.give(reader, from_seq, until_seq);
            }
        }
        if is_overtaken {
            for subscriber in recipients {
                let event = Event::Overtaken(subscriber, from_seq, lost_to);
                self.engine.handle(event, self.now);
            }
        }
    }

    fn gap(&mut self, subscriber: SubscriberId, gap: Gap) {
        let (seed, at) = (self.seed, self.find(subscriber));
        self.pass(at, gap.from_seq);
        let Gap { from_seq, to_seq, chunk_count, byte_count, reason } = gap;
        let missed = self.totals(self.readers[at].spec.kinds, from_seq, to_seq + 1);
        assert!(from_seq <= to_seq && to_seq <= self.head_seq(), "seed {seed}");
        assert_eq!(
            Totals { chunks: chunk_count, bytes: byte_count },
            missed,
            "seed {seed} {gap:?}"
        );
        assert!(missed.chunks > 0, "seed {seed}");
        let policy = self.readers[at].spec.policy;
        let is_true = match reason {
            GapReason::Corrupt | GapReason::Unwritten => {
                (from_seq..=to_seq).all(|seq| self.faults[seq as usize - 1] == Some(reason))
            }
            GapReason::Expired => to_seq < self.kept_from_seq,
            GapReason::Lag => {
                matches!(policy, Policy::Drop | Policy::Buffer | Policy::DropOldest)
                    && self.readers[at].was_level
            }
            GapReason::Conflated => policy == Policy::Conflate,
            GapReason::Late => !self.readers[at].wants_all(),
            // A reader that is level has its own policy.
            GapReason::Overtaken => {
                !matches!(policy, Policy::Block | Policy::Replay) && self.readers[at].was_level
            }
        };
        assert!(is_true, "seed {seed}: {gap:?} under {policy}");
        let reader = &mut self.readers[at];
        assert!(reader.is_there() && reader.asked_until_seq == 0, "seed {seed}");
        reader.next_seq = to_seq + 1;
        reader.last_seq = to_seq;
        reader.missed = reader.missed + missed;
        if reader.demand != u32::MAX {
            reader.demand = reader.demand.saturating_sub(1);
        }
        self.note_level(at);
    }

    fn end(&mut self, subscriber: SubscriberId, end: End) {
        let (seed, at) = (self.seed, self.find(subscriber));
        assert!(self.readers[at].is_there(), "seed {seed}: two ends");
        match end.state {
            EndState::Ended(_) => {
                assert!(self.readers[at].asked_until_seq == 0, "seed {seed}");
                self.pass(at, self.head_seq() + 1);
                let published = self.totals(self.readers[at].spec.kinds, 1, self.head_seq() + 1);
                assert_eq!(end.published, published, "seed {seed}");
            }
            EndState::Detached { reason, resume_from } => {
                let reader = &self.readers[at];
                assert!(reason != DetachReason::Lag || reader.was_level, "seed {seed}: {reader:?}");
                self.pass(at, resume_from);
            }
        }
        let reader = &mut self.readers[at];
        assert_eq!((end.given, end.missed), (reader.given, reader.missed), "seed {seed}");
        reader.end = Some(end);
    }

    /// Publishes a chunk, if the gate permits.
    fn publish(&mut self) {
        let head_seq = self.head_seq();
        let total_bytes = self.totals(Kinds::ALL, 1, head_seq + 1).bytes;
        let length = self.random.below(50) as u32;
        let tail_seq = self.tail_seq.max((head_seq + 2).saturating_sub(self.ring_chunks));
        let is_credited = self.gate.admits(head_seq, total_bytes, length as usize);
        if tail_seq > self.gate.gate_seq || !is_credited {
            return self.handle(Event::Gated(self.execution.slot));
        }
        (0..self.readers.len()).for_each(|at| self.note_level(at));
        let kind = KINDS[self.random.below(3) as usize];
        let key = self.random.below(3) as u8;
        let last = self.faults.last().copied().flatten();
        let fault = match self.random.below(if self.is_intact { 1 } else { 12 }) {
            1 => Some(GapReason::Corrupt),
            2 => Some(GapReason::Unwritten),
            3..=6 => last,
            _ => None,
        };
        self.chunks.push((kind, length));
        self.faults.push(fault);
        self.tail_seq = tail_seq;
        self.handle(Event::Published(
            self.execution.slot,
            &[ChunkFacts { length, kind, key, tail_seq }],
        ));
    }

    fn attach(&mut self) {
        let policy = Policy::ALL[self.random.below(Policy::ALL.len() as u64) as usize];
        let kinds = match self.random.below(3) {
            0 => Kinds::NONE.with(Kind::Stdout),
            1 => Kinds::NONE.with(Kind::Stdout).with(Kind::Row),
            _ => Kinds::ALL,
        };
        let seq = self.random.between(1, self.head_seq() + 1);
        let mut seen = self.totals(kinds, 1, seq);
        let reads_from_disk = !matches!(policy, Policy::DropOldest | Policy::Conflate);
        if reads_from_disk && seen.chunks > 0 && self.random.chance(1, 4) {
            seen.bytes = self.random.below(seen.bytes + 1); // It is wrong.
        }
        let from = match self.random.below(6) {
            0 => From::Live,
            1 => From::Seq { seq, seen: Some(seen) },
            2 if reads_from_disk => From::Seq { seq, seen: None },
            _ => From::Start,
        };
        let limit_chunks = self.random.chance(2, 3).then(|| self.random.between(1, 14) as u32);
        let demand = [0, 1, 3, 20, u32::MAX, u32::MAX][self.random.below(6) as usize];
        let spec = SubscribeSpec {
            policy,
            kinds,
            from,
            limit_chunks,
            limit_bytes: self.random.chance(1, 5).then(|| self.random.between(1, 400)),
            ack_window: self.random.chance(1, 5).then(|| self.random.between(1, 9) as u32),
            replays: self.random.chance(1, 3),
            demand,
            ..SubscribeSpec::default()
        };
        let Reply::Subscribed(result) = self.ask(Event::Subscribe(self.execution, spec)) else {
            panic!("it is answered")
        };
        let subscribed = match result {
            Ok(subscribed) => subscribed,
            // It was too far from the truth.
            Err(SubscribeError::Invalid { field: "from.seen" }) => return self.settle(),
            Err(error) => panic!("seed {}: {spec:?}: {error}", self.seed),
        };
        let next_seq = subscribed.cursor.next_seq;
        self.readers.push(Reader {
            id: subscribed.subscriber,
            spec,
            began_seq: next_seq,
            next_seq,
            demand,
            asked_until_seq: 0,
            given: Totals::ZERO,
            missed: Totals::ZERO,
            last_seq: next_seq - 1,
            limit: subscribed.terms.limit,
            was_level: !reads_from_disk || next_seq > self.head_seq(),
            end: None,
            has_left: false,
        });
        self.note_level(self.readers.len() - 1);
        self.settle();
    }

    /// Answers a question that was asked at any time, as far as the disk likes.
    fn answer(&mut self) {
        if self.questions.is_empty() {
            return;
        }
        let at = self.random.below(self.questions.len() as u64) as usize;
        let Question { reader, until_seq, chunks_max } = self.questions.swap_remove(at);
        let Reader { id, spec, next_seq: from_seq, .. } = self.readers[reader];
        if !self.readers[reader].is_there() {
            // The disk may not know that it has left.
            let (totals, reason) = (Totals::ZERO, GapReason::Corrupt);
            let result = Fetched::Lost { reason, totals };
            return self.handle(Event::Fetched { subscriber: id, from_seq, until_seq, result });
        }
        assert!(self.readers[reader].asked_until_seq == until_seq, "seed {}", self.seed);
        self.readers[reader].asked_until_seq = 0;
        let until_seq = match self.random.below(3) {
            0 => until_seq,
            _ => self.random.between(from_seq + 1, until_seq),
        };
        let state = |seq: u64| match seq < self.kept_from_seq {
            true => Some(GapReason::Expired),
            false => self.faults[seq as usize - 1],
        };
        let reason = state(from_seq);
        let is_other = |&seq: &u64| state(seq) != reason;
        let mut until_seq = (from_seq..until_seq).find(is_other).unwrap_or(until_seq);
        let result = match reason {
            Some(reason) => {
                let totals = self.totals(spec.kinds, from_seq, until_seq);
                Fetched::Lost { reason, totals }
            }
            None => {
                let fits = |until_seq: &u64| {
                    let totals = self.totals(spec.kinds, from_seq, *until_seq);
                    totals.chunks <= u64::from(chunks_max)
                };
                until_seq = (from_seq + 1..=until_seq).rev().find(fits).expect("one fits");
                let before = self.readers[reader].given;
                self.give(reader, from_seq, until_seq);
                let Reader { given, last_seq, .. } = self.readers[reader];
                Fetched::Given { totals: given - before, last_seq }
            }
        };
        self.handle(Event::Fetched { subscriber: id, from_seq, until_seq, result });
    }

    /// The disk removes old chunks: never any that the ring alone would have to give.
    fn expire(&mut self) {
        if self.is_intact || self.head_seq() == 0 {
            return;
        }
        let seq = self.random.between(self.kept_from_seq, self.head_seq() + 1);
        let mut before = KindTotals::default();
        self.chunks[..seq as usize - 1].iter().for_each(|&(kind, len)| before.count(kind, len));
        self.kept_from_seq = seq;
        self.handle(Event::KeptFrom(self.execution.slot, seq, &before));
    }

    fn reader(&mut self) -> Option<usize> {
        let there: Vec<usize> =
            (0..self.readers.len()).filter(|&at| self.readers[at].is_there()).collect();
        (!there.is_empty()).then(|| there[self.random.below(there.len() as u64) as usize])
    }

    fn demand(&mut self, at: usize, demand: u32) {
        self.readers[at].demand = demand;
        self.handle(Event::Demand(self.readers[at].id, demand));
    }

    fn acknowledge(&mut self, at: usize, seq: u64) {
        if self.readers[at].spec.ack_window.is_some() && seq >= self.readers[at].began_seq {
            let reply = self.ask(Event::Acknowledge(self.readers[at].id, seq));
            assert_eq!(reply, Reply::Acknowledged(Ok(())), "seed {}", self.seed);
            self.settle();
        }
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0 if self.readers.len() < 12 => self.attach(),
            1..=9 => self.publish(),
            10..=15 => self.answer(),
            16..=18 => {
                let Some(at) = self.reader() else { return };
                let demand = [0, 1, 2, 9, u32::MAX][self.random.below(5) as usize];
                self.demand(at, demand);
            }
            19 | 20 => {
                let Some(at) = self.reader() else { return };
                self.acknowledge(at, self.readers[at].last_seq);
            }
            21 if self.random.chance(1, 4) => self.expire(),
            22 if self.random.chance(1, 4) => {
                let Some(at) = self.reader() else { return };
                let id = self.readers[at].id;
                match self.random.below(2) {
                    0 => {
                        self.ask(Event::Unsubscribe(id));
                        self.settle();
                    }
                    _ => self.handle(Event::Lost(id)),
                }
            }
            23 => {
                self.now += Duration::from_millis(self.random.below(800));
                self.handle(Event::Tick);
            }
            _ => {}
        }
    }

    /// Ends the execution, and lets everybody read everything.
    fn finish(&mut self) {
        self.handle(Event::ProducerEnded(self.execution.slot, ProducerEnd::Done));
        for _ in 0..4_000 {
            for at in 0..self.readers.len() {
                if self.readers[at].is_there() {
                    self.demand(at, u32::MAX);
                }
                if self.readers[at].is_there() {
                    self.acknowledge(at, self.readers[at].last_seq);
                }
            }
            if !self.readers.iter().any(Reader::is_there) {
                break;
            }
            (0..4).for_each(|_| self.answer());
        }
        let seed = self.seed;
        for (at, reader) in self.readers.iter().enumerate() {
            assert!(!reader.is_there(), "seed {seed}: reader {at} has no end: {reader:?}");
            let Some(EndState::Ended(outcome)) = reader.end.map(|end| end.state) else { continue };
            assert_eq!(outcome, Outcome::Completed);
            let all = self.totals(reader.spec.kinds, reader.began_seq, self.head_seq() + 1);
            assert_eq!(reader.given + reader.missed, all, "seed {seed}: reader {at}");
            let loses_nothing = matches!(reader.spec.policy, Policy::Replay | Policy::Block);
            if self.is_intact && loses_nothing {
                assert_eq!(reader.given, all, "seed {seed}: reader {at} of a disk without faults");
            }
        }
    }
}

#[test]
fn every_chunk_is_given_from_the_ring_or_from_the_disk_or_is_missed_exactly_once() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let seeds: Vec<u64> = match number("SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SEEDS").unwrap_or(3_000)).collect(),
    };
    let (mut fetches, mut ends) = (0, [0; Policy::ALL.len()]);
    for &seed in &seeds {
        let mut world = World::new(seed);
        for _ in 0..world.random.between(1, 400) {
            world.step();
        }
        world.finish();
        fetches += world.fetch_count;
        for reader in &world.readers {
            let is_whole = matches!(reader.end, Some(End { state: EndState::Ended(_), .. }));
            ends[reader.spec.policy as usize] += u32::from(is_whole);
        }
    }
    println!("{} seeds, {fetches} stretches fetched, ends by policy: {ends:?}", seeds.len());
    assert!(seeds.len() == 1 || ends.iter().all(|&count| count > 0));
}
