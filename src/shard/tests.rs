//! Tests of the shard, driven by hand and across real threads. The simulator covers faults and
//! interleavings.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::base::ExecutionId;
use crate::engine::{Coalesce, Hold, OpenError, SubscribeError, SubscribeSpec};
use crate::memory::{ChunkHeader, RingPoolConfig};
use crate::stream::{DetachReason, EndState, Kind, Kinds, Outcome, Policy, Totals};
use crate::tool::{Context, Job, Need, Prepared, Step, Tool, ToolError, ToolSpec, Work};
use crate::trace::TraceContext;

fn config() -> ShardConfig {
    let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
    // Independent of the load on this machine.
    let memory = MemoryWatch::ByHand;
    ShardConfig { rings, seed: Some(1), memory, ..Default::default() }
}

fn shard() -> Shard {
    Shard::new(config()).unwrap().0
}

fn with(policy: Policy) -> SubscribeSpec {
    SubscribeSpec { policy, ..Default::default() }
}

fn feed(shard: &mut Shard) -> ExecutionId {
    let prepared = Prepared::new(Work::Feed);
    shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap()
}

/// Everything that one subscriber was given, as text.
type Diary = Rc<RefCell<Vec<String>>>;

fn write_down(diary: &Diary) -> impl FnMut(&Delivery<'_>) + 'static {
    let diary = Rc::clone(diary);
    move |delivery| diary.borrow_mut().push(words(delivery))
}

fn words(delivery: &Delivery<'_>) -> String {
    match delivery {
        Delivery::Chunk(chunk) => {
            format!("{} {}", chunk.seq, String::from_utf8_lossy(chunk.data))
        }
        Delivery::Gap(gap) => format!("gap {}..={} {}", gap.from_seq, gap.to_seq, gap.reason),
        Delivery::Progress(reported) => format!("progress {}", reported.progress.progress),
        Delivery::End(ended) => format!("end {} {}", ended.end.state, ended.error.unwrap_or("")),
    }
}

fn turn_until_idle(shard: &mut Shard) {
    while shard.turn() {}
    shard.audit();
}

#[test]
fn a_reader_on_another_thread_hears_that_it_was_unsubscribed() {
    let mut shard = shard();
    let id = feed(&mut shard);
    let mut subscriber = shard.subscribe_remote(id, with(Policy::Block)).unwrap();
    shard.publish(id, Kind::Output, b"one").unwrap();
    shard.unsubscribe(subscriber.id()).unwrap();
    turn_until_idle(&mut shard);
    let mut given = Vec::new();
    while let Some(delivery) = subscriber.poll() {
        given.push(words(&delivery));
    }
    assert_eq!(given.last().map(String::as_str), Some("end detached: removed "), "{given:?}");
    // It gates nothing any more.
    while shard.counters().chunks_published < 5_000 {
        shard.publish(id, Kind::Output, &[0; 100]).unwrap();
    }
}

#[test]
fn a_reader_that_has_everything_is_told_like_any_other_that_the_server_stops() {
    let mut shard = shard();
    let id = feed(&mut shard);
    let [mut quick, mut slow] =
        [(); 2].map(|()| shard.subscribe_remote(id, with(Policy::Block)).unwrap());
    let over = feed(&mut shard);
    let mut ended = shard.subscribe_remote(over, with(Policy::Block)).unwrap();
    shard.publish(id, Kind::Output, b"one").unwrap();
    shard.finish(over, Ok(())).unwrap();
    turn_until_idle(&mut shard);
    assert_eq!(words(&quick.poll().unwrap()), "1 one");
    shard.shut_down();
    for subscriber in [&mut quick, &mut slow] {
        let mut last = String::new();
        while let Some(delivery) = subscriber.poll() {
            last = words(&delivery);
        }
        assert_eq!(last, "end detached: shutdown ");
    }
    assert_eq!(words(&ended.poll().unwrap()), "end completed ");
}

#[test]
fn who_lags_who_has_missed_and_who_holds_the_producer_back_can_be_asked() {
    let mut shard = shard();
    let id = feed(&mut shard);
    let foreign = crate::base::Handle { index: 1 << 20, generation: 0 };
    let unknown = ExecutionId { slot: foreign, ..id };
    assert_eq!(shard.subscribers(unknown), Err(crate::engine::NotFound));
    let closure = shard.subscribe(id, with(Policy::Block), |_| {}).unwrap();
    let polled = shard.subscribe_polled(id, with(Policy::Drop)).unwrap();
    let mut remote = shard.subscribe_remote(id, with(Policy::Block)).unwrap();
    let mut published = 0;
    while shard.publish(id, Kind::Output, &[0; 100]).is_ok() {
        published += 1;
    }
    let of = |shard: &mut Shard, id: ExecutionId, subscriber| {
        let all = shard.subscribers(id).unwrap();
        assert_eq!(all.len(), 3);
        all.into_iter().find(|status| status.id == subscriber).unwrap()
    };
    let status = of(&mut shard, id, closure);
    assert_eq!((status.next_seq, status.lag, status.gates), (published + 1, Totals::ZERO, false));
    let status = of(&mut shard, id, polled.id());
    assert_eq!((status.next_seq, status.gates, status.lost), (1, false, false));
    let status = of(&mut shard, id, remote.id());
    let lag = Totals { chunks: published, bytes: published * 100 };
    assert_eq!((status.next_seq, status.lag, status.gates), (1, lag, true));
    for _ in 0..3 {
        remote.poll().unwrap();
    }
    remote.drain(0, |_| {}); // Shows its cursor.
    assert_eq!(of(&mut shard, id, remote.id()).next_seq, 4);
    shard.lose(closure);
    assert!(of(&mut shard, id, closure).lost);
}

#[test]
fn under_disconnect_a_reader_elsewhere_is_told_only_of_what_was_gone_before_it_came() {
    let mut shard = shard();
    let id = feed(&mut shard);
    let mut early = shard.subscribe_remote(id, with(Policy::Disconnect)).unwrap();
    for _ in 0..5_000 {
        shard.publish(id, Kind::Output, &[0; 100]).unwrap();
    }
    let mut late = shard.subscribe_remote(id, with(Policy::Disconnect)).unwrap();
    let first = |reader: &mut Subscriber| reader.poll().map(|delivery| words(&delivery));
    assert_eq!(first(&mut early).as_deref(), Some("end detached: lag "));
    let tail_seq = shard.inspect(id).unwrap().tail_seq;
    assert_eq!(first(&mut late), Some(format!("gap 1..={} late", tail_seq - 1)));
}

#[test]
fn draining_gives_what_polling_gives() {
    for policy in Policy::ALL {
        let mut shard = shard();
        let id = feed(&mut shard);
        let kinds = Kinds::NONE.with(Kind::Output).with(Kind::Log);
        let spec = SubscribeSpec { policy, limit_chunks: Some(7), kinds, ..Default::default() };
        let mut polled = shard.subscribe_remote(id, spec).unwrap();
        let mut drained = shard.subscribe_remote(id, spec).unwrap();
        let (mut by_poll, mut by_drain) = (Vec::new(), Vec::new());
        let mut random = crate::base::Random::new(policy as u64);
        for round in 0..200u64 {
            let burst = if round == 100 { 9_000 } else { random.below(12) };
            for _ in 0..burst {
                let payload = vec![round as u8; random.below(900) as usize];
                let kind = [Kind::Output, Kind::Log, Kind::Row][random.below(3) as usize];
                let _ = shard.publish(id, kind, &payload); // Sometimes blocked.
            }
            if round == 199 {
                shard.finish(id, Ok(())).unwrap();
            }
            turn_until_idle(&mut shard);
            let mut count_max = 1 + random.below(20) as usize;
            if round == 199 {
                count_max = usize::MAX; // Through the end.
            }
            let note = |given: &mut Vec<String>, delivery: &Delivery<'_>| {
                given.push(words(delivery));
            };
            for _ in 0..count_max {
                let Some(delivery) = polled.poll() else { break };
                note(&mut by_poll, &delivery);
            }
            let count = drained.drain(count_max, |delivery| note(&mut by_drain, &delivery));
            assert!(count <= count_max);
            assert_eq!(by_poll, by_drain, "{policy}");
        }
        assert!(by_drain.last().unwrap().starts_with("end "), "{policy}: {:?}", by_drain.last());
        assert_eq!(drained.drain(1, |_| panic!("nothing comes after the end")), 0);
    }
}

#[test]
fn what_is_fed_by_hand_reaches_a_closure_at_once() {
    let mut shard = shard();
    let id = feed(&mut shard);
    let diary = Diary::default();
    shard.subscribe(id, with(Policy::Drop), write_down(&diary)).unwrap();
    shard.publish(id, Kind::Output, b"one").unwrap();
    shard.publish(id, Kind::Output, b"two").unwrap();
    shard.finish(id, Ok(())).unwrap();
    assert_eq!(*diary.borrow(), ["1 one", "2 two", "end completed "]);
    assert_eq!(shard.publish(id, Kind::Output, b"late"), Err(PublishError::NotFound));
    shard.audit();
}

#[test]
fn a_polled_subscriber_is_given_what_it_asks_for() {
    let mut shard = shard();
    let id = feed(&mut shard);
    let mut polled = shard.subscribe_polled(id, with(Policy::Drop)).unwrap();
    assert!(shard.poll(&mut polled).is_none());
    for number in 0..30 {
        shard.publish(id, Kind::Output, format!("{number}").as_bytes()).unwrap();
    }
    shard.finish(id, Err("broken")).unwrap();
    let mut diary = Vec::new();
    while let Some(delivery) = shard.poll(&mut polled) {
        diary.push(words(&delivery));
    }
    assert_eq!(diary.len(), 12, "{diary:?}");
    assert_eq!(diary[9], "10 9");
    assert_eq!(diary[10], "gap 11..=30 lag");
    assert_eq!(diary[11], "end failed broken");
}

#[test]
fn a_tool_on_the_shards_thread_runs_sleeps_and_ends() {
    let mut shard = shard();
    let arguments = json!({"chunks": 3, "delay_ms": 1, "chunk_size": 11});
    let hold = Hold::UntilRead { deadline: Duration::from_secs(5) };
    let options = ExecuteOptions { hold, ..Default::default() };
    let id = shard.execute("slow_data_processor", &arguments, options).unwrap();
    let diary = Diary::default();
    shard.subscribe(id, with(Policy::Drop), write_down(&diary)).unwrap();
    while !diary.borrow().last().is_some_and(|line| line.starts_with("end")) {
        if !shard.turn() {
            shard.park(None);
        }
    }
    let chunks: Vec<String> =
        diary.borrow().iter().filter(|line| line.contains("chunk")).cloned().collect();
    assert_eq!(chunks, ["1 chunk 1 of\n", "2 chunk 2 of\n", "3 chunk 3 of\n"]);
}

#[test]
fn batches_are_given_in_order_and_a_panic_in_one_costs_one_subscription() {
    let mut random = crate::base::Random::new(7);
    let mut shard = shard();
    let id = feed(&mut shard);
    let followers = [u64::MAX, 40, u64::MAX].map(|panics_at| {
        let given = Rc::new(RefCell::new(Vec::new()));
        let notes = Rc::clone(&given);
        let note = move |delivery: &Delivery<'_>| {
            let Delivery::Chunk(chunk) = delivery else { return };
            assert!(chunk.seq != panics_at, "in the middle of a batch");
            notes.borrow_mut().push((chunk.seq, chunk.offset, chunk.data.to_vec()));
        };
        shard.subscribe(id, with(Policy::Block), note).unwrap();
        given
    });
    let (mut expected, mut offset) = (Vec::new(), 0);
    for _ in 0..50 {
        let payloads: Vec<Vec<u8>> = (0..random.between(1, 90))
            .map(|_| vec![random.below(256) as u8; random.below(60) as usize])
            .collect();
        let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        let now = shard.now();
        let published = shard.publish_batch(id, Kind::Output, &slices, now);
        for payload in payloads {
            offset += payload.len() as u64;
            let before = offset - payload.len() as u64;
            expected.push((expected.len() as u64 + 1, before, payload));
        }
        assert_eq!(published, Ok(expected.len() as u64));
        shard.audit();
    }
    assert_eq!(*followers[0].borrow(), expected);
    assert_eq!(*followers[1].borrow(), expected[..39]);
    assert_eq!(*followers[2].borrow(), expected);
    assert_eq!(shard.counters().callbacks_panicked, 1);
}

#[test]
fn a_tool_that_panics_fails_its_own_execution_and_nothing_else() {
    struct Panics;
    impl Tool for Panics {
        fn step(&mut self, _: &mut Context<'_>) -> Step {
            panic!("out of cheese");
        }
    }
    let mut shard = shard();
    let other = feed(&mut shard);
    let prepared = Prepared::new(Work::Steps(Box::new(Panics)));
    let id = shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
    let diary = Diary::default();
    shard.subscribe(id, with(Policy::Drop), write_down(&diary)).unwrap();
    turn_until_idle(&mut shard);
    assert_eq!(*diary.borrow(), ["end failed the tool panicked: out of cheese"]);
    shard.publish(other, Kind::Output, b"fine").unwrap();
    assert_eq!(shard.counters().tools_panicked, 1);
}

#[test]
fn a_closure_that_panics_loses_its_subscription_and_nothing_else() {
    let mut shard = shard();
    let id = feed(&mut shard);
    shard.subscribe(id, with(Policy::Drop), |_| panic!("no")).unwrap();
    let diary = Diary::default();
    shard.subscribe(id, with(Policy::Drop), write_down(&diary)).unwrap();
    shard.publish(id, Kind::Output, b"a").unwrap();
    shard.publish(id, Kind::Output, b"b").unwrap();
    assert_eq!(*diary.borrow(), ["1 a", "2 b"]);
    assert_eq!(shard.inspect(id).unwrap().subscriber_count, 1);
    shard.audit();
}

#[test]
fn a_block_subscriber_stops_who_feeds_by_hand() {
    let mut shard = shard();
    let id = feed(&mut shard);
    let mut polled = shard.subscribe_polled(id, with(Policy::Block)).unwrap();
    let mut count = 0u64;
    while shard.publish(id, Kind::Output, &[7; 64]).is_ok() {
        count += 1;
        assert!(count < 100);
    }
    assert!(shard.inspect(id).unwrap().gated);
    let Some(Delivery::Chunk(chunk)) = shard.poll(&mut polled) else { panic!("there are many") };
    assert_eq!((chunk.seq, chunk.data), (1, &[7u8; 64][..]));
    shard.publish(id, Kind::Output, &[7; 64]).unwrap();
    shard.audit();
}

#[test]
fn a_chunk_above_a_quarter_of_the_ring_is_refused_with_the_limit() {
    let mut shard = shard();
    let id = feed(&mut shard);
    let Err(PublishError::TooLarge { chunk_bytes_max }) =
        shard.publish(id, Kind::Output, &[0; 1 << 20])
    else {
        panic!("it cannot fit")
    };
    shard.publish(id, Kind::Output, &vec![0; chunk_bytes_max as usize]).unwrap();
    let too_many = SubscribeSpec { limit_chunks: Some(1_000), ..with(Policy::Drop) };
    let refused = shard.subscribe(id, too_many, |_| {}).unwrap_err();
    let limit_chunks_max = shard.inspect(id).unwrap().ring.unwrap().chunks_max;
    assert_eq!(refused, SubscribeError::Limit { limit_chunks: 1_000, limit_chunks_max });
    let need = Need { ring_bytes: 0, chunk_bytes: 1 << 30, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
    let refused = shard.execute_prepared(prepared, ExecuteOptions::default());
    assert!(matches!(refused, Err(ExecuteError::ChunkTooLarge { .. })));
}

#[test]
fn one_execution_more_than_allowed_is_refused_and_the_others_go_on() {
    let mut config = config();
    config.engine.executions_max = 10_000;
    let mut shard = Shard::new(config).unwrap().0;
    let small = || Prepared {
        need: Need { ring_bytes: 4 << 10, chunk_bytes: 0, ..Default::default() },
        ..Prepared::new(Work::Feed)
    };
    let options = ExecuteOptions::default();
    let ids: Vec<ExecutionId> =
        (0..10_000).map(|_| shard.execute_prepared(small(), options).unwrap()).collect();
    let refused = shard.execute_prepared(small(), options).unwrap_err();
    assert_eq!(refused, ExecuteError::Open(OpenError::TooMany { executions_max: 10_000 }));
    let diary = Diary::default();
    for &id in [&ids[0], &ids[9_999]] {
        shard.subscribe(id, with(Policy::Drop), write_down(&diary)).unwrap();
        shard.publish(id, Kind::Output, b"on").unwrap();
    }
    assert_eq!(*diary.borrow(), ["1 on", "1 on"]);
    shard.finish(ids[5], Ok(())).unwrap();
    shard.execute_prepared(small(), options).unwrap(); // One that has ended makes room.
    assert!(shard.inspect(ids[5]).is_err());
}

#[test]
fn closures_on_threads_stream_to_every_kind_of_subscriber() {
    let (shard, _) = Shard::spawn(config(), |shard| {
        shard
            .tools_mut()
            .insert_closure(ToolSpec::new("count", "Counts."), |arguments, out| {
                let count = arguments["count"].as_u64().unwrap_or(0);
                out.expect_total(count);
                for number in 0..count {
                    out.send(number.to_string().as_bytes())?;
                }
                Ok(())
            })
            .expect("it is described right");
    })
    .unwrap();
    let hold = Hold::UntilRead { deadline: Duration::from_secs(5) };
    let start =
        crate::engine::Start::AfterSubscribers { count: 3, deadline: Duration::from_secs(5) };
    let options = ExecuteOptions { hold, start, ..Default::default() };
    let id = shard.execute("count", json!({"count": 20_000}), options).unwrap();
    let readers: Vec<_> = [Policy::Block, Policy::Drop, Policy::DropOldest]
        .into_iter()
        .map(|policy| {
            let mut subscriber = shard.subscribe(id, with(policy)).unwrap();
            std::thread::spawn(move || read_to_end(&mut subscriber))
        })
        .collect();
    let ends: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    assert_eq!(ends[0].missed, Totals::ZERO);
    for end in &ends {
        assert_eq!(end.state, EndState::Ended(Outcome::Completed));
        assert_eq!(end.given.chunks + end.missed.chunks, 20_000);
        assert_eq!(end.given.bytes + end.missed.bytes, 88_890); // Digits of 0 to 19,999.
    }
}

/// Checks the numbers and bytes of a stream of decimal numbers. Returns the end.
fn read_to_end(subscriber: &mut Subscriber) -> crate::stream::End {
    let mut next_seq = 1;
    loop {
        match subscriber.next() {
            Delivery::Chunk(chunk) => {
                assert_eq!(chunk.seq, next_seq);
                assert_eq!(chunk.data, (next_seq - 1).to_string().as_bytes());
                next_seq += 1;
            }
            Delivery::Gap(gap) => {
                assert_eq!(gap.from_seq, next_seq);
                next_seq = gap.to_seq + 1;
            }
            Delivery::Progress(_) => {}
            Delivery::End(ended) => return ended.end,
        }
    }
}

#[test]
fn a_cancel_reaches_a_tool_that_waits_for_room_and_one_that_never_sends() {
    let (shard, _) = Shard::spawn(config(), |shard| {
        shard
            .tools_mut()
            .insert_closure(ToolSpec::new("flood", "For a test."), |_, out| {
                loop {
                    out.send(b"more and more and more")?;
                }
            })
            .expect("it is described right");
        shard
            .tools_mut()
            .insert_closure(ToolSpec::new("brood", "For a test."), |_, out| {
                while !out.is_stopped() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(ToolError::Stopped)
            })
            .expect("it is described right");
    })
    .unwrap();
    for tool in ["flood", "brood"] {
        let id = shard.execute(tool, json!({}), ExecuteOptions::default()).unwrap();
        let mut subscriber = shard.subscribe(id, with(Policy::Block)).unwrap();
        shard.cancel(id).unwrap();
        loop {
            if let Delivery::End(ended) = subscriber.next() {
                assert_eq!(ended.end.state, EndState::Ended(Outcome::Cancelled), "{tool}");
                break;
            }
        }
    }
}

#[test]
fn a_subscriber_that_is_dropped_holds_nobody_back() {
    let (shard, _) = Shard::spawn(config(), |shard| {
        shard
            .tools_mut()
            .insert_closure(ToolSpec::new("flood", "For a test."), |_, out| {
                for _ in 0..100_000 {
                    out.send(b"more and more and more")?;
                }
                Ok(())
            })
            .expect("it is described right");
    })
    .unwrap();
    let start =
        crate::engine::Start::AfterSubscribers { count: 2, deadline: Duration::from_secs(5) };
    let options = ExecuteOptions { start, ..Default::default() };
    let id = shard.execute("flood", json!({}), options).unwrap();
    let idle = shard.subscribe(id, with(Policy::Block)).unwrap();
    let mut busy = shard.subscribe(id, with(Policy::Block)).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    drop(idle);
    loop {
        if let Delivery::End(ended) = busy.next() {
            assert_eq!(ended.end.given.chunks, 100_000);
            break;
        }
    }
}

#[test]
fn the_end_of_a_shard_is_told() {
    let (shard, _) = Shard::spawn(config(), |_| {}).unwrap();
    let id = shard
        .execute("slow_data_processor", json!({"delay_ms": 60_000}), ExecuteOptions::default())
        .unwrap();
    let mut subscriber = shard.subscribe(id, with(Policy::Drop)).unwrap();
    let handle = (*shard).clone();
    drop(shard);
    loop {
        if let Delivery::End(ended) = subscriber.next() {
            let EndState::Detached { reason, .. } = ended.end.state else { panic!("{ended:?}") };
            assert_eq!(reason, DetachReason::Shutdown);
            break;
        }
    }
    assert_eq!(handle.counters(), Err(CallError::Gone));
}

#[test]
fn a_polled_block_subscriber_misses_nothing_when_a_tools_thread_is_quick() {
    let mut shard = shard();
    shard.run_jobs_by_hand();
    let work = Work::Thread(Box::new(|_| Ok(())));
    let prepared = Prepared {
        need: Need { ring_bytes: 4 << 10, chunk_bytes: 0, ..Default::default() },
        ..Prepared::new(work)
    };
    let id = shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
    let mut polled = shard.subscribe_polled(id, with(Policy::Block)).unwrap();
    let mut output = shard.next_job().unwrap().output;
    // The first one is longer, so its room is enough for another one and the next place.
    let mut length = 200;
    let mut fill = |shard: &mut Shard| {
        let mut count = 0;
        while output.try_send(ChunkHeader::default(), &vec![count; length]).is_ok() {
            (count, length) = (count + 1, 180);
        }
        shard.turn();
        count
    };
    assert!(fill(&mut shard) > 5);
    assert_eq!(fill(&mut shard), 0, "it waits for room now");
    // The two halves of a poll. Between them, a thread that only waited for the gate continues.
    shard.tell(Event::Demand(polled.id(), 1));
    shard.pump();
    assert!(fill(&mut shard) > 0, "chunk 1 is overwritten");
    let Some(Delivery::Chunk(chunk)) = shard.poll(&mut polled) else { panic!("it was owed one") };
    assert_eq!((chunk.seq, chunk.data), (1, &[0; 200][..]));
}

#[test]
fn a_chunk_that_waits_for_company_moves_the_shards_deadline() {
    let mut shard = shard();
    let id = feed(&mut shard);
    let delay_max = Duration::from_millis(1);
    let coalesce = Some(Coalesce { delay_max, bytes_max: 1_000 });
    let spec = SubscribeSpec { coalesce, ..with(Policy::Drop) };
    shard.subscribe(id, spec, |_| {}).unwrap();
    assert_eq!(shard.next_deadline(), None);
    shard.publish(id, Kind::Output, b"alone").unwrap();
    assert!(shard.next_deadline().is_some());
}

#[test]
fn what_was_lent_and_never_published_costs_old_chunks_and_nothing_else() {
    struct Lends(u32);
    impl Tool for Lends {
        fn step(&mut self, context: &mut Context<'_>) -> Step {
            self.0 += 1;
            match self.0 {
                1..=12 => assert!(context.emit(&[self.0 as u8; 150]).is_ok()),
                13 => assert!(context.lend(700).is_ok()),
                _ => return Step::Done,
            }
            Step::Again
        }
    }
    let mut shard = shard();
    let need = Need { ring_bytes: 4 << 10, chunk_bytes: 0, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(Work::Steps(Box::new(Lends(0)))) };
    let id = shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
    let spec = SubscribeSpec { limit_chunks: Some(14), ..with(Policy::Drop) };
    let mut polled = shard.subscribe_polled(id, spec).unwrap();
    turn_until_idle(&mut shard);
    let mut diary = Vec::new();
    while let Some(delivery) = shard.poll(&mut polled) {
        diary.push(words(&delivery));
    }
    assert!(diary[0].starts_with("gap 1..=") && diary[0].ends_with("overtaken"), "{diary:?}");
    assert_eq!(diary.last().unwrap(), "end completed ");
}

#[test]
fn a_tool_sees_what_its_run_is_a_part_of() {
    struct Tells;
    impl Tool for Tells {
        fn step(&mut self, context: &mut Context<'_>) -> Step {
            let text = format!("{:?}", context.trace());
            assert!(context.emit(text.as_bytes()).is_ok());
            Step::Done
        }
    }
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let told = TraceContext::parse(Some(parent), Some("a=1"), None);
    for trace in [told, TraceContext::default()] {
        let steps = Work::Steps(Box::new(Tells));
        let thread =
            Work::Thread(Box::new(|out| Ok(out.send(format!("{:?}", out.trace()).as_bytes())?)));
        for work in [steps, thread] {
            let mut shard = shard();
            shard.run_jobs_by_hand();
            let prepared = Prepared { trace: trace.clone(), ..Prepared::new(work) };
            let id = shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
            let mut polled = shard.subscribe_polled(id, with(Policy::Drop)).unwrap();
            turn_until_idle(&mut shard);
            if let Some(job) = shard.next_job() {
                let Job { mut output, work, done } = *job;
                let result = work(&mut output);
                done(output.into_writer(), result, false);
            }
            turn_until_idle(&mut shard);
            let delivery = shard.poll(&mut polled);
            let Some(Delivery::Chunk(chunk)) = delivery else { panic!("{delivery:?}") };
            assert_eq!(chunk.data, format!("{trace:?}").as_bytes());
        }
    }
}

#[test]
fn the_last_chunk_of_a_ring_that_somebody_waits_for_is_given_all_the_same() {
    let mut config = config();
    config.rings.bytes_max = 1 << 20;
    let mut shard = Shard::new(config).unwrap().0;
    let whole = || {
        let need = Need { ring_bytes: 1 << 20, chunk_bytes: 100 << 10, ..Default::default() };
        Prepared { need, ..Prepared::new(Work::Feed) }
    };
    let id = shard.execute_prepared(whole(), ExecuteOptions::default()).unwrap();
    let mut polled = shard.subscribe_polled(id, with(Policy::Block)).unwrap();
    shard.publish(id, Kind::Output, b"last").unwrap();
    shard.finish(id, Ok(())).unwrap();
    let next = shard.execute_prepared(whole(), ExecuteOptions::default()).unwrap();
    assert!(shard.inspect(next).unwrap().ring.is_none(), "it waits");
    let delivery = shard.poll(&mut polled);
    let Some(Delivery::Chunk(chunk)) = delivery else { panic!("{delivery:?}") };
    assert_eq!((chunk.execution, chunk.data), (id, &b"last"[..]));
    assert!(shard.inspect(next).unwrap().ring.is_some(), "it has the ring");
    let delivery = shard.poll(&mut polled);
    let Some(Delivery::End(ended)) = delivery else { panic!("{delivery:?}") };
    assert_eq!(ended.end.state, EndState::Ended(Outcome::Completed));
}

#[test]
fn who_publishes_before_the_start_blames_no_reader() {
    let mut shard = shard();
    let start =
        crate::engine::Start::AfterSubscribers { count: 2, deadline: Duration::from_secs(60) };
    let block_deadline = Some(Duration::from_nanos(1));
    let options = ExecuteOptions { start, block_deadline, ..Default::default() };
    let prepared = Prepared::new(Work::Feed);
    let id = shard.execute_prepared(prepared, options).unwrap();
    let diary = Diary::default();
    shard.subscribe(id, with(Policy::Block), write_down(&diary)).unwrap();
    let armed = shard.next_deadline();
    assert_eq!(shard.publish(id, Kind::Output, b"early"), Err(PublishError::Blocked));
    assert_eq!(shard.next_deadline(), armed);
    assert!(!shard.inspect(id).unwrap().gated);
}

/// A tool that takes too long once, on the shard's thread.
struct Lingers;

impl Tool for Lingers {
    fn step(&mut self, _: &mut Context<'_>) -> Step {
        let until = crate::reactor::Clock::now() + 3 * limits::STALL_THRESHOLD;
        while crate::reactor::Clock::now() < until {}
        Step::Done
    }
}

#[test]
fn a_turn_that_took_too_long_is_counted_with_what_it_did() {
    let (shard, _) = Shard::spawn(config(), |_| {}).unwrap();
    let stalled = shard.call(|shard| {
        let work = Work::Steps(Box::new(Lingers));
        shard.execute_prepared(Prepared::new(work), ExecuteOptions::default()).unwrap();
        shard.stalls().of(Duty::Tools)
    });
    assert_eq!(stalled, Ok(0));
    // The turn that answers the call is not the one that took too long.
    while shard.call(|shard| shard.stalls().of(Duty::Tools)) == Ok(0) {}
    let (stalls, counted) = shard.call(|shard| (*shard.stalls(), shard.counters().stalls)).unwrap();
    let durations = stalls.durations;
    assert!(durations.sum_ns >= 3 * limits::STALL_THRESHOLD.as_nanos() as u64, "{stalls:?}");
    assert_eq!(durations.counts.iter().sum::<u64>(), counted, "{stalls:?}");
}

#[test]
fn an_error_of_a_handle_has_its_cause_as_source() {
    use std::error::Error;
    let cause = SubscribeError::NotYet { next_seq: 1 };
    let refused = HandleError::Refused(cause);
    let run = RunError::Subscribe(cause);
    for error in [&refused as &dyn Error, &run] {
        assert_eq!(error.source().unwrap().downcast_ref(), Some(&cause), "{error}");
    }
}
