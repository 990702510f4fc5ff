//! Any events at any times, from a shard that keeps its side of the contract and callers that need
//! not. An audit follows each event. Deliveries to a subscriber have no holes, and one end.

use std::time::Duration;

use streamdoor::base::{ExecutionId, Handle, Instant, ProgressToken, SubscriberId};
use streamdoor::engine::{
    Action, ChunkFacts, Coalesce, Engine, EngineLimits, Event, Fetched, From, Gate, Hold, OnStall,
    OpenSpec, ProducerEnd, ProgressSource, Reply, RingFacts, Secret, Start, SubscribeSpec,
    Subscribed, SubscriberPlace, Timeouts,
};
use streamdoor::stream::{
    Exit, GapReason, Kind, KindTotals, Kinds, Measure, Policy, ProgressReport, Totals,
};

use super::draw::Draw;

const RING: RingFacts =
    RingFacts { slot_count: 16, chunks_max: 14, chunk_bytes_max: 512, data_bytes: 2_048 };
const RINGS: usize = 2;
const STEPS_MAX: usize = 200;

/// The shard's knowledge of an execution.
struct Run {
    id: ExecutionId,
    producer: Producer,
    gate: Gate,
    head_seq: u64,
    /// The oldest chunk that is held. The engine may not know it yet.
    tail_seq: u64,
    /// The oldest chunk according to the last report to the engine.
    reported_tail_seq: u64,
    total_bytes: u64,
    /// The kind and the length of each chunk.
    chunks: Vec<(Kind, u32)>,
    /// The oldest chunk on disk, if the execution is kept there.
    kept_from_seq: u64,
    is_released: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Producer {
    Waiting,
    Active,
    Stopping,
    Gone,
}

/// The deliveries to a subscriber so far.
struct Sub {
    id: SubscriberId,
    place: SubscriberPlace,
    kinds: Kinds,
    is_all: bool,
    next_seq: u64,
    /// True while the disk was asked for chunks.
    is_fetching: bool,
    /// True if the ring keeps chunks that it may come back for.
    replays: bool,
    is_over: bool,
}

/// A question to the disk.
struct Question {
    subscriber: SubscriberId,
    execution: Handle,
    from_seq: u64,
    until_seq: u64,
    chunks_max: u32,
}

struct World {
    engine: Engine,
    now: Instant,
    free_rings: usize,
    runs: Vec<Run>,
    subs: Vec<Sub>,
    questions: Vec<Question>,
    /// Executions whose end the disk has not kept yet.
    ends: Vec<Handle>,
}

/// Checks a run of events.
pub fn check(data: &[u8]) {
    let mut draw = Draw::new(data);
    let now = Instant::from_nanos(draw.number() >> 1);
    let limits = EngineLimits {
        executions_max: 4,
        queued_max: 2,
        subscribers_max: 8,
        subscribers_per_execution_max: 5,
        ..Default::default()
    };
    let engine = Engine::new(limits, now);
    let (runs, subs, questions, ends) = (vec![], vec![], vec![], vec![]);
    let mut world = World { engine, now, free_rings: RINGS, runs, subs, questions, ends };
    for _ in 0..STEPS_MAX {
        if draw.is_empty() {
            break;
        }
        world.step(&mut draw);
        world.keep_end(&mut draw);
    }
    world.handle(Event::Shutdown, &mut draw);
    for sub in &world.subs {
        assert!(
            sub.is_over || sub.place == SubscriberPlace::Remote,
            "{:?} is not told the end",
            sub.id
        );
    }
}

impl World {
    fn handle(&mut self, event: Event<'_>, draw: &mut Draw<'_>) {
        self.engine.handle(event, self.now);
        self.settle(draw);
    }

    fn settle(&mut self, draw: &mut Draw<'_>) {
        for count in 0.. {
            assert!(count < 10_000, "it wishes for ever");
            let Some(action) = self.engine.next_action() else { break };
            self.carry_out(action, draw);
        }
        self.engine.audit();
    }

    /// Handles an event that the engine answers at once, and returns the reply.
    fn ask(&mut self, event: Event<'_>) -> Reply {
        self.engine.handle(event, self.now);
        let Some(Action::Reply(reply)) = self.engine.next_action() else {
            panic!("{event:?} is not answered")
        };
        if let Reply::Opened(Ok(id)) = reply {
            self.runs.push(Run {
                id,
                producer: Producer::Waiting,
                gate: Gate::OPEN,
                head_seq: 0,
                tail_seq: 1,
                reported_tail_seq: 1,
                total_bytes: 0,
                chunks: Vec::new(),
                kept_from_seq: 1,
                is_released: false,
            });
        }
        reply
    }

    fn run(&mut self, execution: Handle) -> &mut Run {
        let mut runs = self.runs.iter_mut().rev();
        let run = runs.find(|run| run.id.slot == execution && !run.is_released);
        run.expect("it wishes for executions that live")
    }

    fn sub(&mut self, id: SubscriberId) -> &mut Sub {
        let sub = self.subs.iter_mut().rev().find(|sub| sub.id == id);
        sub.expect("it tells subscribers that were there")
    }

    /// The disk keeps an end now and then, or fails.
    fn keep_end(&mut self, draw: &mut Draw<'_>) {
        if self.ends.is_empty() || draw.flag() {
            return;
        }
        let execution = self.ends.swap_remove(0);
        let event = match draw.below(4) {
            0 => Event::NotKept(execution, "the disk has failed"),
            _ => Event::EndKept(execution),
        };
        self.handle(event, draw);
    }

    /// Executes an action as a shard does.
    fn carry_out(&mut self, action: Action, draw: &mut Draw<'_>) {
        match action {
            Action::Reply(reply) => panic!("{reply:?} to nobody"),
            Action::Lease(execution, _) => self.lease(execution, draw),
            Action::Release(execution) => {
                let run = self.run(execution);
                assert_ne!(run.producer, Producer::Active);
                run.is_released = true;
                self.free_rings = RINGS.min(self.free_rings + 1);
                self.engine.handle(Event::RingReturned, self.now);
            }
            Action::SetGate(execution, gate) => self.run(execution).gate = gate,
            Action::StartProducer(execution) => {
                let run = self.run(execution);
                assert_eq!(run.producer, Producer::Waiting);
                run.producer = Producer::Active;
            }
            Action::StopProducer(execution) => {
                let run = self.run(execution);
                assert_eq!(run.producer, Producer::Active);
                run.producer = Producer::Stopping;
                if draw.flag() {
                    self.end_producer(execution, ProducerEnd::Stopped);
                }
            }
            Action::Deliver { execution, from_seq, until_seq } => {
                self.deliver(execution, from_seq, until_seq, draw);
            }
            Action::Fetch { subscriber, execution, from_seq, until_seq, chunks_max } => {
                self.ask_disk(Question { subscriber, execution, from_seq, until_seq, chunks_max });
            }
            Action::KeepEnd(execution, verdict) => {
                let run = self.run(execution);
                assert_eq!(verdict.head_seq, run.head_seq);
                assert_eq!(run.producer, Producer::Gone);
                self.ends.push(execution);
            }
            Action::Gap(subscriber, execution, gap) => {
                let head_seq = self.run(execution).head_seq;
                let sub = self.sub(subscriber);
                assert!(!sub.is_over && gap.from_seq <= gap.to_seq && gap.to_seq <= head_seq);
                assert!(!sub.is_fetching);
                assert!(gap.chunk_count <= gap.to_seq - gap.from_seq + 1);
                assert!(gap.from_seq >= sub.next_seq);
                assert!(!sub.is_all || gap.from_seq == sub.next_seq, "a hole before {gap:?}");
                sub.next_seq = gap.to_seq + 1;
            }
            Action::Progress(subscriber, _, progress) => {
                assert!(!self.sub(subscriber).is_over);
                assert!(progress.progress.is_finite());
                assert!(progress.percentage().is_none_or(|part| (0.0..=100.0).contains(&part)));
            }
            Action::End(subscriber, ..) | Action::DetachReader(subscriber, ..) => {
                let sub = self.sub(subscriber);
                assert!(!sub.is_over, "two ends");
                sub.is_over = true;
            }
            Action::Forget(subscriber, _) => self.sub(subscriber).is_over = true,
            Action::WatchReaders(execution, _) | Action::WakeProducer(execution) => {
                self.run(execution);
            }
            Action::Report(execution, _) => _ = self.run(execution),
            Action::Verdict(execution, verdict) => {
                let run = self.run(execution);
                assert_eq!(verdict.head_seq, run.head_seq);
                assert_eq!(verdict.totals.of(Kinds::ALL).bytes, run.total_bytes);
            }
        }
    }

    /// Takes a question to the disk, to be answered later.
    fn ask_disk(&mut self, question: Question) {
        let Question { subscriber, execution, from_seq, until_seq, chunks_max } = question;
        let head_seq = self.run(execution).head_seq;
        let sub = self.sub(subscriber);
        assert!(!sub.is_over && !sub.is_fetching, "two questions at once");
        assert!(from_seq >= sub.next_seq && from_seq < until_seq && chunks_max > 0);
        assert!(until_seq <= head_seq + 1);
        assert!(!sub.is_all || from_seq == sub.next_seq, "a hole before {from_seq}");
        (sub.is_fetching, sub.next_seq) = (true, from_seq);
        self.questions.push(question);
    }

    fn lease(&mut self, execution: Handle, draw: &mut Draw<'_>) {
        self.run(execution);
        let event = match draw.below(8) {
            0 => Event::LeaseRefused(execution, "no such ring"),
            1 => Event::LeaseFailed(execution),
            _ if self.free_rings == 0 => Event::LeaseFailed(execution),
            _ => {
                self.free_rings -= 1;
                Event::Leased(execution, RING)
            }
        };
        self.engine.handle(event, self.now);
    }

    fn end_producer(&mut self, execution: Handle, end: ProducerEnd<'_>) {
        self.run(execution).producer = Producer::Gone;
        self.engine.handle(Event::ProducerEnded(execution, end), self.now);
    }

    fn deliver(&mut self, execution: Handle, from_seq: u64, until_seq: u64, draw: &mut Draw<'_>) {
        let run = self.run(execution);
        assert!(run.reported_tail_seq <= from_seq && from_seq < until_seq);
        assert!(until_seq <= run.head_seq + 1);
        let (gate_seq, tail_seq) = (run.gate.gate_seq, run.tail_seq);
        let recipients = self.engine.recipients().to_vec();
        assert!(!recipients.is_empty());
        for &subscriber in &recipients {
            let sub = self.sub(subscriber);
            assert!(
                !sub.is_over && sub.place == SubscriberPlace::Local && from_seq >= sub.next_seq
            );
            assert!(!sub.is_all || from_seq == sub.next_seq, "a hole before {from_seq}");
            assert!(!sub.is_fetching);
            sub.next_seq = until_seq;
        }
        // A tool's thread has overwritten some of the chunks, or does so now, as far as the gate
        // permits.
        let is_gone = tail_seq > from_seq;
        let lost_from = if is_gone { from_seq } else { from_seq + draw.below(4) as u64 };
        let lost_to = if is_gone { tail_seq - 1 } else { lost_from + draw.below(4) as u64 };
        let lost_to = lost_to.min(until_seq - 1);
        let is_allowed = lost_from <= lost_to && lost_to < gate_seq && draw.below(8) == 7;
        if !is_gone && !is_allowed {
            return;
        }
        let run = self.run(execution);
        run.tail_seq = run.tail_seq.max(lost_to + 1);
        for subscriber in recipients {
            self.sub(subscriber).next_seq = lost_from;
            self.engine.handle(Event::Overtaken(subscriber, lost_from, lost_to), self.now);
        }
    }

    /// Draws one event, and lets it happen.
    fn step(&mut self, draw: &mut Draw<'_>) {
        if !self.questions.is_empty() && draw.flag() {
            return self.answer(draw);
        }
        match draw.below(20) {
            0 | 1 => _ = self.ask(Event::Open(open_spec(draw))),
            2 | 3 => self.subscribe(draw),
            4..=8 => self.publish(draw),
            9 => {
                let nanos = draw.number() >> draw.below(8);
                self.now += Duration::from_nanos(nanos);
                return self.handle(Event::Tick, draw);
            }
            10 => {
                if let Some(deadline) = self.engine.next_deadline() {
                    self.now = self.now.max(deadline);
                }
                return self.handle(Event::Tick, draw);
            }
            11 => self.leave(draw),
            12 | 13 => self.tell_of_subscriber(draw),
            14 => {
                let seq = draw.number() >> draw.below(64);
                let subscriber = self.some_subscriber(draw);
                self.ask(Event::Acknowledge(subscriber, seq));
            }
            15 => {
                let id = self.some_execution(draw);
                let event = if draw.flag() { Event::Cancel(id) } else { Event::Inspect(id) };
                self.ask(event);
            }
            16 => {
                let some = self.some_execution(draw);
                let (shard, slot) = (some.shard, some.slot);
                let token = ProgressToken { shard, slot, secret: u128::from(draw.byte()) };
                self.ask(Event::ForgetToken(token));
            }
            17 => self.end_some(draw),
            _ => return self.tell_of_producer(draw),
        }
        self.settle(draw);
    }

    /// Answers a question to the disk as a journal does: some of the chunks, or a gap.
    fn answer(&mut self, draw: &mut Draw<'_>) {
        let at = draw.below(self.questions.len());
        let Question { subscriber, execution, from_seq, until_seq, chunks_max } =
            self.questions.swap_remove(at);
        let is_it = |run: &&Run| run.id.slot == execution && !run.is_released;
        let Some(run) = self.runs.iter_mut().rev().find(|run| is_it(&&**run)) else { return };
        if draw.below(8) == 0 {
            let more = draw.below((run.head_seq + 2 - run.kept_from_seq) as usize);
            run.kept_from_seq += more as u64;
            let (seq, mut before) = (run.kept_from_seq, KindTotals::default());
            let gone = &run.chunks[..seq as usize - 1];
            gone.iter().for_each(|&(kind, length)| before.count(kind, length));
            self.engine.handle(Event::KeptFrom(execution, seq, &before), self.now);
            self.settle(draw);
        }
        let sub = self.subs.iter_mut().rev().find(|sub| sub.id == subscriber && !sub.is_over);
        let Some(sub) = sub else { return };
        sub.is_fetching = false;
        let until_seq = from_seq + 1 + draw.below((until_seq - from_seq) as usize) as u64;
        let run = self.runs.iter().rev().find(is_it).expect("as above");
        let (mut totals, mut last_seq, mut end_seq) = (Totals::ZERO, 0, from_seq);
        while end_seq < until_seq && totals.chunks < u64::from(chunks_max) {
            let (kind, length) = run.chunks[end_seq as usize - 1];
            if sub.kinds.contains(kind) {
                totals.count(length);
                last_seq = end_seq;
            }
            end_seq += 1;
        }
        let result = match draw.below(4) {
            0 => {
                let reasons = [GapReason::Corrupt, GapReason::Expired, GapReason::Unwritten];
                Fetched::Lost { reason: draw.one_of(&reasons), totals }
            }
            _ => {
                sub.next_seq = end_seq;
                Fetched::Given { totals, last_seq }
            }
        };
        let event = Event::Fetched { subscriber, from_seq, until_seq: end_seq, result };
        self.handle(event, draw);
    }

    fn some_execution(&self, draw: &mut Draw<'_>) -> ExecutionId {
        let at = draw.below(self.runs.len() + 1);
        let guessed =
            ExecutionId { shard: 0, slot: Handle { index: at as u32, generation: 1 }, nonce: 99 };
        self.runs.get(at).map_or(guessed, |run| run.id)
    }

    fn some_subscriber(&self, draw: &mut Draw<'_>) -> SubscriberId {
        let at = draw.below(self.subs.len() + 1);
        let guessed = SubscriberId(Handle { index: at as u32, generation: 99 });
        self.subs.get(at).map_or(guessed, |sub| sub.id)
    }

    fn subscribe(&mut self, draw: &mut Draw<'_>) {
        let id = self.some_execution(draw);
        let spec = subscribe_spec(draw);
        if let Reply::Subscribed(Ok(subscribed)) = self.ask(Event::Subscribe(id, spec)) {
            self.begin(subscribed, spec.place);
        }
    }

    fn begin(&mut self, subscribed: Subscribed, place: SubscriberPlace) {
        let Subscribed { subscriber: id, terms, cursor, replay, .. } = subscribed;
        self.subs.retain(|sub| sub.id != id);
        let (kinds, is_all, next_seq) = (terms.kinds, terms.kinds.is_all(), cursor.next_seq);
        let is_fetching = self.questions.iter().any(|question| question.subscriber == id);
        let (replays, is_over) = (replay.is_some(), false);
        let sub = Sub { id, place, kinds, is_all, next_seq, is_fetching, replays, is_over };
        self.subs.push(sub);
    }

    fn leave(&mut self, draw: &mut Draw<'_>) {
        let subscriber = self.some_subscriber(draw);
        if draw.flag() {
            if let Reply::Reattached(Ok(again)) = self.ask(Event::Reattach(subscriber)) {
                let place = self.sub(subscriber).place;
                self.begin(again, place);
            }
        } else if let Reply::Unsubscribed(Ok(_)) = self.ask(Event::Unsubscribe(subscriber)) {
            self.sub(subscriber).is_over = true;
        }
    }

    fn publish(&mut self, draw: &mut Draw<'_>) {
        let at = draw.below(self.runs.len());
        let Some(run) = self.runs.get_mut(at) else { return };
        let execution = run.id.slot;
        if run.is_released || !matches!(run.producer, Producer::Active | Producer::Stopping) {
            return;
        }
        let mut chunks = Vec::new();
        let mut is_gated = false;
        for _ in 0..=draw.below(6) {
            let length = draw.number() as u32 % (RING.chunk_bytes_max + 1);
            let (kind, key) = (draw.one_of(&Kind::ALL), draw.byte() % 64);
            let seq = run.head_seq + 1;
            let needed = (seq + 1).saturating_sub(u64::from(RING.chunks_max));
            let tail_seq = run.tail_seq.max(needed + draw.below(3) as u64 / 2).min(seq);
            let fits = tail_seq == run.tail_seq || tail_seq <= run.gate.gate_seq;
            if !fits || !run.gate.admits(run.head_seq, run.total_bytes, length as usize) {
                is_gated = true;
                break;
            }
            chunks.push(ChunkFacts { length, kind, key, tail_seq });
            (run.head_seq, run.tail_seq, run.reported_tail_seq) = (seq, tail_seq, tail_seq);
            run.total_bytes += u64::from(length);
            run.chunks.push((kind, length));
        }
        if !chunks.is_empty() {
            self.engine.handle(Event::Published(execution, &chunks), self.now);
        }
        if is_gated {
            self.settle(draw);
            self.engine.handle(Event::Gated(execution), self.now);
        }
    }

    fn tell_of_subscriber(&mut self, draw: &mut Draw<'_>) {
        let subscriber = self.some_subscriber(draw);
        let event = match draw.below(6) {
            0 => Event::Demand(subscriber, draw.one_of(&[0, 1, 2, 7, 1_000, u32::MAX])),
            1 => Event::Lost(subscriber),
            2 => Event::ReaderAt(subscriber, draw.number() >> draw.below(64)),
            3 => Event::ReaderWild(subscriber),
            4 => {
                let known = self.subs.iter().find(|sub| sub.id == subscriber);
                let is_held = known.is_some_and(|sub| sub.replays);
                Event::ReaderLevel(subscriber, is_held || draw.flag())
            }
            _ => Event::ReaderGone(subscriber),
        };
        let is_remote = |sub: &Sub| sub.id == subscriber && sub.place == SubscriberPlace::Remote;
        if matches!(event, Event::ReaderGone(_)) && self.subs.iter().any(is_remote) {
            self.sub(subscriber).is_over = true;
        }
        self.engine.handle(event, self.now);
    }

    fn end_some(&mut self, draw: &mut Draw<'_>) {
        let id = self.some_execution(draw);
        let is_it = |run: &&Run| run.id == id && !run.is_released;
        let Some(run) = self.runs.iter().find(is_it) else { return };
        let end = match run.producer {
            Producer::Active if draw.flag() => ProducerEnd::Failed("it could not"),
            Producer::Active => ProducerEnd::Done,
            Producer::Stopping => ProducerEnd::Stopped,
            Producer::Waiting | Producer::Gone => return,
        };
        self.end_producer(id.slot, end);
    }

    fn tell_of_producer(&mut self, draw: &mut Draw<'_>) {
        let execution = self.some_execution(draw).slot;
        let text = draw.text();
        let event = match draw.below(8) {
            0 => Event::TotalExpected(execution, draw.number()),
            1 => Event::Exited(execution, Exit::Code(3)),
            2 => Event::Sleeping(execution, Instant::from_nanos(draw.number())),
            3 => Event::RingReturned,
            4 => Event::HeldByDisk(execution),
            5 => Event::DiskMoved(execution),
            _ => Event::Progressed(execution, report(&text, draw)),
        };
        self.handle(event, draw);
    }
}

/// Draws a duration of any length, up to the maximum.
fn duration(draw: &mut Draw<'_>) -> Duration {
    match draw.below(4) {
        0 => Duration::from_secs(draw.number()),
        1 => Duration::MAX,
        _ => Duration::from_nanos(draw.number()),
    }
}

fn open_spec(draw: &mut Draw<'_>) -> OpenSpec {
    let flags = draw.byte();
    let is_set = |at: u32| flags >> at & 1 == 1;
    let mut spec = OpenSpec::new(RING);
    spec.secret = Secret { nonce: u64::from(draw.byte()), token: u128::from(draw.byte()) };
    if is_set(0) {
        spec.start =
            Start::AfterSubscribers { count: draw.byte().into(), deadline: duration(draw) };
    }
    if is_set(1) {
        spec.hold = Hold::UntilRead { deadline: duration(draw) };
    }
    if is_set(2) {
        spec.retention = duration(draw);
    }
    if is_set(3) {
        spec.block_deadline = duration(draw);
    }
    if is_set(4) {
        spec.on_stall = OnStall::Fail;
    }
    if is_set(5) {
        let (first_chunk, inactivity) = (Some(duration(draw)), Some(duration(draw)));
        spec.timeouts = Timeouts { first_chunk, inactivity, total: Some(duration(draw)) };
    }
    if is_set(6) {
        spec.progress = draw.one_of(&[ProgressSource::Chunks, ProgressSource::Bytes]);
        spec.bytes_expected = Some(draw.number());
    }
    spec.kept = is_set(7);
    spec
}

fn subscribe_spec(draw: &mut Draw<'_>) -> SubscribeSpec {
    let flags = draw.byte();
    let is_set = |at: u32| flags >> at & 1 == 1;
    let mut spec = SubscribeSpec { policy: draw.one_of(&Policy::ALL), ..Default::default() };
    if is_set(0) {
        spec.limit_chunks = Some(draw.byte().into());
    }
    if is_set(1) {
        spec.limit_bytes = Some(draw.number());
    }
    if is_set(2) {
        spec.kinds = Kinds::NONE.with(Kind::Output).with(draw.one_of(&Kind::ALL));
    }
    if is_set(3) {
        let seen = Totals { chunks: draw.number(), bytes: draw.number() };
        let seq = From::Seq { seq: draw.number(), seen: draw.flag().then_some(seen) };
        spec.from = if draw.flag() { seq } else { From::Live };
    }
    if is_set(4) {
        spec.ack_window = Some(draw.byte().into());
    }
    if is_set(5) {
        let (delay_max, bytes_max) = (duration(draw), draw.number());
        spec.coalesce = Some(Coalesce { delay_max, bytes_max });
    }
    if is_set(6) {
        spec.place = SubscriberPlace::Remote;
    }
    if is_set(7) {
        (spec.replays, spec.reads_disk) = (draw.flag(), draw.flag());
        spec.demand = draw.byte().into();
    }
    spec
}

fn report<'t>(text: &'t str, draw: &mut Draw<'_>) -> ProgressReport<'t> {
    let mut float = || f64::from_bits(draw.word());
    let (a, b) = (float(), float());
    let measure = match draw.below(4) {
        0 => Measure::None,
        1 => Measure::Percentage(a),
        2 => Measure::Absolute { current: a, total: None },
        _ => Measure::Absolute { current: a, total: Some(b) },
    };
    let flags = draw.byte();
    let said = |at: u32| (flags >> at & 1 == 1).then_some(text);
    ProgressReport { measure, message: said(0), context: said(1) }
}
