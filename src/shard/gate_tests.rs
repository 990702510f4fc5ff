//! Tests of a producer's gate. The shard publishes it whenever it takes chunks over. A producer
//! waits only while a reader or the hold keeps it waiting.

use std::time::Duration;

use super::*;
use crate::base::ExecutionId;
use crate::engine::{Hold, SubscribeSpec};
use crate::memory::{ChunkHeader, RingPoolConfig};
use crate::stream::{Outcome, Policy};
use crate::tool::{Context, Need, Output, Prepared, Step, Tool, Work};

/// Creates a shard whose tools' threads are driven by hand.
fn shard() -> Shard {
    let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
    let memory = MemoryWatch::ByHand; // Independent of the load on this machine.
    let config = ShardConfig { rings, seed: Some(1), memory, ..Default::default() };
    let mut shard = Shard::new(config).unwrap().0;
    shard.run_jobs_by_hand();
    shard
}

fn with(policy: Policy) -> SubscribeSpec {
    SubscribeSpec { policy, ..Default::default() }
}

/// Opens an execution in a small ring. Returns it with the output of its tool's thread.
fn thread(shard: &mut Shard, hold: Hold) -> (ExecutionId, Output) {
    let work = Work::Thread(Box::new(|_| Ok(())));
    let need = Need { ring_bytes: 4 << 10, chunk_bytes: 0, ..Default::default() };
    let options = ExecuteOptions { hold, ..Default::default() };
    let id = shard.execute_prepared(Prepared { need, ..Prepared::new(work) }, options).unwrap();
    turn_until_idle(shard);
    (id, shard.next_job().expect("it has started").output)
}

fn turn_until_idle(shard: &mut Shard) {
    while shard.turn() {}
    shard.audit();
}

/// Sends until there is no room. Returns the number of chunks.
fn fill(output: &mut Output) -> u32 {
    let sends =
        (0..1_000).take_while(|_| output.try_send(ChunkHeader::default(), &[7; 200]).is_ok());
    sends.count() as u32
}

#[test]
fn a_thread_whose_chunks_were_taken_over_for_an_answer_goes_on() {
    for policy in [Policy::Drop, Policy::DropOldest, Policy::Buffer, Policy::Conflate] {
        let mut shard = shard();
        let (id, mut output) = thread(&mut shard, Hold::Newest);
        let mut reader = shard.subscribe_remote(id, with(policy)).unwrap();
        for round in 0..50 {
            let count = fill(&mut output);
            assert!(count > 0, "{policy:?}, round {round}: it waits, and no reader holds it back");
            // A caller asks before the shard has looked.
            assert_eq!(shard.subscribers(id).unwrap().len(), 1);
            shard.audit();
            turn_until_idle(&mut shard);
            assert!(!shard.inspect(id).unwrap().gated, "{policy:?}, round {round}");
            reader.drain(usize::MAX, |_| {});
        }
        assert_eq!(shard.counters().gates_told_late, 0);
    }
}

#[test]
fn a_thread_is_held_back_by_the_hold_and_then_by_nobody() {
    let mut shard = shard();
    let (id, mut output) =
        thread(&mut shard, Hold::UntilRead { deadline: Duration::from_secs(60) });
    while fill(&mut output) > 0 {
        turn_until_idle(&mut shard);
    }
    turn_until_idle(&mut shard);
    let status = shard.inspect(id).unwrap();
    assert!(status.gated && status.holds);
    let _reader = shard.subscribe_remote(id, with(Policy::Drop)).unwrap();
    for _ in 0..10 {
        assert!(fill(&mut output) > 0);
        shard.subscribers(id).unwrap();
        turn_until_idle(&mut shard);
        let status = shard.inspect(id).unwrap();
        assert!(!status.gated && !status.holds);
    }
}

#[test]
fn a_thread_that_was_in_two_minds_when_its_gate_moved_counts_as_held_back_by_nobody() {
    let mut shard = shard();
    let (id, mut output) = thread(&mut shard, Hold::Newest);
    fill(&mut output);
    shard.subscribers(id).unwrap();
    shard.ingest(id.slot.index); // The gate moves; the thread has not yet said that it waits …
    shard.runs[id.slot.index as usize].as_ref().unwrap().exchange().unwrap().set_gated(true);
    turn_until_idle(&mut shard); // … and is told once more.
    let run = shard.runs[id.slot.index as usize].as_ref().unwrap();
    assert!(!run.exchange().unwrap().is_gated());
    assert!(!shard.inspect(id).unwrap().gated);
    let counters = shard.counters();
    assert_eq!((counters.producers_paused, counters.gates_told_late), (0, 0));
}

#[test]
fn a_gate_that_was_not_told_is_told_and_counted() {
    let mut shard = shard();
    let (id, mut output) = thread(&mut shard, Hold::Newest);
    fill(&mut output);
    turn_until_idle(&mut shard);
    let run = shard.runs[id.slot.index as usize].as_ref().unwrap();
    // Simulates a bug of the shard.
    run.pages.as_ref().unwrap().control.set_gate(1, u64::MAX, u64::MAX, u64::MAX);
    assert_eq!(fill(&mut output), 0);
    turn_until_idle(&mut shard);
    assert_eq!(shard.counters().gates_told_late, 1);
    assert!(fill(&mut output) > 0);
}

/// Reports that it has no room, without trying to write.
struct Pretends;

impl Tool for Pretends {
    fn step(&mut self, _: &mut Context<'_>) -> Step {
        Step::Blocked
    }
}

#[test]
fn who_waits_for_nobody_fails_at_the_block_deadline_and_says_why() {
    let mut shard = shard();
    let prepared = Prepared::new(Work::Steps(Box::new(Pretends)));
    let block_deadline = Some(Duration::from_millis(20));
    let options = ExecuteOptions { block_deadline, hold: Hold::Newest, ..Default::default() };
    let id = shard.execute_prepared(prepared, options).unwrap();
    let opened_at = shard.inspect(id).unwrap().opened_at;
    loop {
        turn_until_idle(&mut shard);
        let status = shard.inspect(id).unwrap();
        assert!(!status.gated);
        if let Some(outcome) = status.outcome {
            assert_eq!(outcome, Outcome::Failed);
            let text = "the producer waited for room, and nobody held it back";
            assert_eq!(status.error.as_deref(), Some(text));
            break;
        }
        shard.park(None);
    }
    assert!(shard.now().since(opened_at) >= Duration::from_millis(20));
    assert_eq!(shard.counters().producers_stuck, 1);
}
