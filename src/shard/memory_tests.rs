//! Tests of a shard when memory becomes short while executions run. All but the last use readings
//! by hand.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::base::ExecutionId;
use crate::engine::{OpenError, SubscribeSpec};
use crate::memory::{Pressure, Readings, RingPoolConfig};
use crate::reactor::{Clock, Watch};
use crate::stream::{EndState, ExecutionState, Kind, Outcome, Policy};
use crate::tool::{Need, Prepared, Step, ToolSpec, Work};

const KIB: u32 = 1 << 10;
const MIB: u64 = 1 << 20;

fn config(bytes_max: u64) -> ShardConfig {
    let rings =
        RingPoolConfig { prealloc_bytes: bytes_max / 4, bytes_max, ..RingPoolConfig::default() };
    ShardConfig { rings, seed: Some(1), memory: MemoryWatch::ByHand, ..Default::default() }
}

fn shard(bytes_max: u64) -> Shard {
    Shard::new(config(bytes_max)).unwrap().0
}

fn some(percent: f32) -> Readings {
    Readings { memory_some_avg10: Some(percent), ..Default::default() }
}

fn limited(cgroup_limit_bytes: u64) -> Readings {
    Readings { cgroup_limit_bytes: Some(cgroup_limit_bytes), ..Default::default() }
}

fn calm(shard: &mut Shard) {
    for _ in 0..limits::PRESSURE_CALM_SAMPLES {
        shard.set_readings(&Readings::default());
    }
}

fn feed(shard: &mut Shard, ring_bytes: u32, chunk_bytes: u32) -> Result<ExecutionId, ExecuteError> {
    let need = Need { ring_bytes, chunk_bytes, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
    shard.execute_prepared(prepared, ExecuteOptions::default())
}

fn class_of(shard: &mut Shard, id: ExecutionId) -> Option<u32> {
    shard.inspect(id).unwrap().ring.map(|ring| ring.slot_count * 256)
}

/// Returns the longest chunk of a ring.
fn takes(class_bytes: u32) -> u32 {
    crate::memory::Geometry::of_class(class_bytes).length_max()
}

fn turn_until_idle(shard: &mut Shard) {
    while shard.turn() {}
    shard.audit();
}

#[test]
fn each_state_allows_its_rings_and_what_is_leased_stays() {
    let mut shard = shard(16 * MIB);
    let before = feed(&mut shard, 1024 * KIB, 0).unwrap();
    for (percent, pressure, class_bytes) in [
        (10.0, Pressure::Elevated, 256 * KIB),
        (30.0, Pressure::Critical, 64 * KIB),
        (60.0, Pressure::Survival, 16 * KIB),
    ] {
        assert_eq!(shard.set_readings(&some(percent)), pressure);
        let id = feed(&mut shard, 1024 * KIB, 0).unwrap();
        assert_eq!(class_of(&mut shard, id), Some(class_bytes), "{pressure}");
        let memory = shard.memory();
        assert_eq!((memory.pressure, memory.largest_class_bytes), (pressure, class_bytes));
        shard.publish(id, Kind::Output, b"as ever").unwrap();
    }
    assert_eq!(class_of(&mut shard, before), Some(1024 * KIB));
    shard.publish(before, Kind::Output, &[1; 100_000]).unwrap();
    calm(&mut shard);
    let after = feed(&mut shard, 1024 * KIB, 0).unwrap();
    assert_eq!(class_of(&mut shard, after), Some(1024 * KIB));
    assert_eq!(shard.counters().memory_pressure_changes, 4);
    shard.audit();
}

#[test]
fn idle_memory_goes_back_step_by_step_and_what_ends_goes_back_too() {
    let mut shard = shard(64 * MIB);
    let id = feed(&mut shard, 64 * KIB, 0).unwrap();
    let idle_bytes = |shard: &Shard| {
        let usage = shard.memory().usage;
        usage.committed_bytes - usage.leased_bytes
    };
    assert!(idle_bytes(&shard) > 8 * MIB);
    shard.set_readings(&some(10.0));
    let mut turns = 0;
    let mut before_bytes = idle_bytes(&shard);
    let mut took = Vec::new();
    let mut begun_at = Clock::now();
    while shard.turn() {
        took.push(Clock::now().since(begun_at));
        let now_bytes = idle_bytes(&shard);
        let step_bytes = before_bytes - now_bytes;
        assert!(step_bytes <= limits::RING_RELEASE_STEP_BYTES.into(), "{step_bytes} in one turn");
        before_bytes = now_bytes;
        turns += 1;
        begun_at = Clock::now();
    }
    took.sort_unstable();
    let (median, slowest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{turns} turns that gave memory back: median {median:?}, slowest {slowest:?}");
    assert!(turns > 8);
    assert_eq!(idle_bytes(&shard), 0);
    let released_bytes = shard.counters().ring_bytes_released;
    assert!(released_bytes > 8 * MIB);
    // Nothing is left of it, so nothing is tried again.
    assert!(!shard.turn());
    shard.publish(id, Kind::Output, b"still here").unwrap();
    // It is not kept for another execution, once nobody can read it any more.
    shard.finish(id, Ok(())).unwrap();
    turn_until_idle(&mut shard);
    assert_eq!(shard.memory().usage.leased_count, 1); // It is retained, as without pressure.
    for _ in 0..limits::EXECUTIONS_MAX {
        let next = feed(&mut shard, 0, 0).unwrap();
        shard.finish(next, Ok(())).unwrap();
    }
    turn_until_idle(&mut shard);
    assert_eq!(shard.inspect(id).err(), Some(crate::engine::NotFound)); // It made room.
    assert_eq!(idle_bytes(&shard), 0);
    assert!(shard.counters().ring_bytes_released > released_bytes);
}

#[test]
fn what_has_ended_makes_room_for_a_whole_ring_and_what_runs_does_not() {
    let mut shard = shard(4 * MIB);
    let running = feed(&mut shard, 1024 * KIB, 0).unwrap();
    let ended: Vec<ExecutionId> = (0..200).map(|_| feed(&mut shard, 0, 0).unwrap()).collect();
    for id in &ended {
        shard.publish(*id, Kind::Output, b"a result").unwrap();
        shard.finish(*id, Ok(())).unwrap();
    }
    turn_until_idle(&mut shard);
    // 3 MiB are allowed, of which they hold 3.125 MiB less what has gone.
    for at in 0..3 {
        let id = feed(&mut shard, 1024 * KIB, 0).unwrap();
        turn_until_idle(&mut shard);
        assert_eq!(class_of(&mut shard, id), Some(1024 * KIB), "{at}");
    }
    assert!(ended.iter().all(|id| shard.inspect(*id).is_err()), "oldest first, all in the end");
    // No ended execution is left. Those that run keep their rings, and the next one gets none.
    let waits = feed(&mut shard, 0, 0).unwrap();
    turn_until_idle(&mut shard);
    assert_eq!(class_of(&mut shard, waits), None);
    assert_eq!(class_of(&mut shard, running), Some(1024 * KIB));
    assert_eq!(shard.counters().executions_evicted, 200);
}

#[test]
fn a_chunk_that_no_allowed_ring_takes_is_refused_with_reason_and_limit() {
    let mut shard = shard(16 * MIB);
    shard.set_readings(&some(40.0));
    let Err(error) = feed(&mut shard, 0, 32 * KIB) else { panic!("it was taken") };
    assert!(matches!(error, ExecuteError::MemoryShort(Shortage {
        pressure: Pressure::Critical, chunk_bytes, chunk_bytes_max, .. })
        if chunk_bytes == 32 * KIB && chunk_bytes_max == takes(64 * KIB)));
    let text = error.to_string();
    assert!(text.contains(&takes(64 * KIB).to_string()), "{text}");
    for word in ["memory pressure is critical", "65536", "declares 32768"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // A chunk that no ring ever takes is still the caller's fault.
    let too_large = feed(&mut shard, 0, 1024 * KIB).unwrap_err();
    assert!(matches!(too_large, ExecuteError::ChunkTooLarge { .. }));
    // A limit in bytes is named in the text.
    calm(&mut shard);
    shard.set_readings(&limited(MIB));
    let text = feed(&mut shard, 0, 16 * KIB).unwrap_err().to_string();
    for word in ["memory limit", "104856 bytes", "at most 65536 bytes", "declares 16384"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(shard.execution_count(), 0);
    calm(&mut shard);
    feed(&mut shard, 0, 32 * KIB).unwrap();
}

#[test]
fn who_waits_for_a_ring_that_is_no_longer_allowed_fails_and_those_behind_go_on() {
    let mut shard = shard(MIB);
    let holder = feed(&mut shard, 1024 * KIB, 0).unwrap();
    let waits = feed(&mut shard, 0, 32 * KIB).unwrap();
    let behind = feed(&mut shard, 0, 0).unwrap();
    assert_eq!(shard.inspect(waits).unwrap().state, ExecutionState::Queued);
    let ends = Rc::new(RefCell::new(Vec::new()));
    let told = Rc::clone(&ends);
    let spec = SubscribeSpec::default();
    shard
        .subscribe(waits, spec, move |delivery| {
            if let Delivery::End(ended) = delivery {
                told.borrow_mut().push((ended.end.state, ended.error.unwrap().to_owned()));
            }
        })
        .unwrap();
    shard.set_readings(&some(60.0));
    turn_until_idle(&mut shard);
    let told = ends.borrow();
    let [(state, text)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*state, EndState::Ended(Outcome::Failed));
    // Its owner need not wait for its start.
    assert_eq!(shard.publish(waits, Kind::Output, b"late"), Err(PublishError::NotFound));
    assert!(text.contains("memory pressure is survival"), "{text}");
    assert_eq!(shard.inspect(behind).unwrap().state, ExecutionState::Queued);
    shard.finish(holder, Ok(())).unwrap();
    turn_until_idle(&mut shard);
    assert_eq!(shard.inspect(behind).unwrap().state, ExecutionState::Running);
}

#[test]
fn who_waits_gets_its_ring_when_the_limit_rises_and_the_line_has_an_end() {
    let mut shard = shard(MIB);
    shard.set_readings(&limited(160 << 10)); // 16 KiB of rings.
    assert_eq!(shard.memory().rings_bytes_max, u64::from(16 * KIB));
    let first = feed(&mut shard, 0, 2 * KIB).unwrap();
    let second = feed(&mut shard, 0, 2 * KIB).unwrap();
    assert_eq!(shard.inspect(first).unwrap().state, ExecutionState::Running);
    assert_eq!(shard.inspect(second).unwrap().state, ExecutionState::Queued);
    for _ in 1..limits::EXECUTIONS_QUEUED_MAX {
        feed(&mut shard, 0, 2 * KIB).unwrap();
    }
    let busy = feed(&mut shard, 0, 0).unwrap_err();
    assert!(matches!(busy, ExecuteError::Open(OpenError::Busy { .. })));
    shard.set_readings(&limited(320 << 10));
    assert_eq!(shard.inspect(second).unwrap().state, ExecutionState::Running);
    shard.audit();
}

#[test]
fn a_lowered_limit_takes_nothing_that_is_leased_and_gives_nothing_above_it() {
    let mut shard = shard(8 * MIB);
    let large: Vec<ExecutionId> =
        (0..4).map(|_| feed(&mut shard, 1024 * KIB, 0).unwrap()).collect();
    shard.set_readings(&limited(20 * MIB)); // 2 MiB of rings, and 4 are leased.
    turn_until_idle(&mut shard);
    let usage = shard.memory().usage;
    assert_eq!((usage.leased_bytes, usage.committed_bytes), (4 * MIB, 4 * MIB));
    let waits = feed(&mut shard, 0, 0).unwrap();
    for id in large {
        assert_eq!(shard.inspect(waits).unwrap().state, ExecutionState::Queued);
        shard.publish(id, Kind::Output, b"it runs on").unwrap();
        shard.finish(id, Ok(())).unwrap();
        turn_until_idle(&mut shard);
        if shard.memory().usage.leased_bytes < 2 * MIB {
            break;
        }
    }
    // The ended ones were evicted for it, oldest first.
    assert_eq!(shard.inspect(waits).unwrap().state, ExecutionState::Running);
    turn_until_idle(&mut shard);
    assert!(shard.memory().usage.committed_bytes <= 2 * MIB);
}

/// Emits numbered chunks and waits for nothing.
struct Counts(u64);

impl crate::tool::Tool for Counts {
    fn step(&mut self, context: &mut crate::tool::Context<'_>) -> Step {
        if self.0 == 0 {
            return Step::Done;
        }
        match context.emit(&self.0.to_le_bytes()) {
            Ok(_) => {
                self.0 -= 1;
                Step::Again
            }
            Err(_) => Step::Blocked,
        }
    }
}

#[test]
fn executions_run_through_changes_of_pressure_and_nobody_misses_anything() {
    let mut shard = shard(4 * MIB);
    let mut random = crate::base::Random::new(7);
    let counts: Vec<Rc<RefCell<u64>>> = (0..40).map(|_| Rc::default()).collect();
    let mut ended = 0;
    for (number, count) in counts.iter().enumerate() {
        let need = Need { ring_bytes: (4 * KIB) << (2 * (number % 5)), ..Default::default() };
        let work = Work::Steps(Box::new(Counts(300)));
        let options = ExecuteOptions {
            start: crate::engine::Start::AfterSubscribers {
                count: 1,
                deadline: Duration::from_secs(60),
            },
            ..Default::default()
        };
        let prepared = Prepared { need, ..Prepared::new(work) };
        let id = shard.execute_prepared(prepared, options).unwrap();
        let count = Rc::clone(count);
        let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
        shard
            .subscribe(id, spec, move |delivery| match delivery {
                Delivery::Chunk(chunk) => {
                    *count.borrow_mut() += 1;
                    assert_eq!(chunk.seq, *count.borrow());
                }
                Delivery::Gap(gap) => panic!("{gap:?}"),
                Delivery::Progress(_) => {}
                // Also if it had to make room before its end was given.
                Delivery::End(end) => {
                    assert_eq!(end.end.state, EndState::Ended(Outcome::Completed));
                }
            })
            .unwrap();
    }
    for _ in 0..100_000 {
        ended = shard.counters().executions_completed;
        if ended == 40 {
            break;
        }
        if random.chance(1, 20) {
            let limit_bytes = random.chance(1, 2).then(|| random.between(MIB, 40 * MIB));
            let percent = random.below(100) as f32;
            let readings = Readings { cgroup_limit_bytes: limit_bytes, ..some(percent) };
            shard.set_readings(&readings);
        }
        shard.turn();
        shard.audit();
    }
    assert_eq!(ended, 40);
    assert!(counts.iter().all(|count| *count.borrow() == 300));
}

#[test]
fn a_spawned_shard_shrinks_to_its_cgroup_and_follows_when_the_limit_changes() {
    let tree = crate::reactor::readings::tests::Tree::new("spawned");
    let limit = |bytes: u64| tree.put("sys/fs/cgroup/memory.max", bytes.to_string());
    tree.put("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 8388608 kB\n");
    tree.put("proc/self/cgroup", "0::/\n");
    limit(64 * MIB);
    let watch = Watch::new(&tree.0, Duration::from_millis(1));
    let config = ShardConfig { memory: MemoryWatch::Of(watch), ..Default::default() };
    let (shard, _report) = Shard::spawn(config, |shard| {
        let need = Need { chunk_bytes: 32 << 10, ..Default::default() };
        let spec = ToolSpec { need, ..ToolSpec::new("long", "Sends long chunks.") };
        shard.tools_mut().insert_closure(spec, |_, _| Ok(())).unwrap();
    })
    .unwrap();
    let start = shard.memory().unwrap();
    assert!(start.rings_bytes_max <= 64 * MIB / 10);
    assert!(start.usage.committed_bytes <= start.rings_bytes_max);
    assert!(start.usage.committed_bytes > 0);
    limit(4 * MIB);
    let mut status = start;
    for _ in 0..30_000 {
        status = shard.memory().unwrap();
        if status.rings_bytes_max <= 4 * MIB / 10
            && status.usage.committed_bytes <= status.rings_bytes_max
        {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status.rings_bytes_max, (4 * MIB / 10) & !3);
    assert_eq!(status.largest_class_bytes, 256 * KIB);
    assert!(status.usage.committed_bytes <= status.rings_bytes_max, "{status:?}");
    shard.execute("long", json!({}), ExecuteOptions::default()).unwrap();
    tree.put("proc/pressure/memory", "some avg10=50.00\nfull avg10=0.00\n");
    let mut refused = None;
    for _ in 0..30_000 {
        refused = shard.execute("long", json!({}), ExecuteOptions::default()).err();
        if refused.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let text = refused.expect("it is refused under pressure").to_string();
    assert!(text.contains("memory pressure is critical"), "{text}");
}

/// The tool once sent chunks of 48,896 bytes without an error while memory was short.
#[test]
fn a_file_comes_in_chunks_of_the_size_that_was_asked_for_or_not_at_all() {
    let path = std::env::temp_dir().join(format!("streamdoor-chunks-{}", std::process::id()));
    std::fs::write(&path, vec![b'x'; 200_000]).unwrap();
    let mut shard = shard(8 * MIB);
    let lengths_of = |shard: &mut Shard, arguments: serde_json::Value| {
        let options = ExecuteOptions {
            hold: crate::engine::Hold::UntilRead { deadline: Duration::from_secs(60) },
            ..Default::default()
        };
        let id = shard.execute("process_file", &arguments, options)?;
        let (lengths, done) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(false)));
        let (seen, ended) = (Rc::clone(&lengths), Rc::clone(&done));
        let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
        let followed = shard.subscribe(id, spec, move |delivery| match delivery {
            Delivery::Chunk(chunk) => seen.borrow_mut().push(chunk.data.len()),
            Delivery::End(_) => *ended.borrow_mut() = true,
            _ => {}
        });
        followed.unwrap();
        while !*done.borrow() {
            if !shard.turn() {
                shard.park(None);
            }
        }
        Ok::<_, ExecuteError>(lengths.take())
    };
    let asked = json!({"file_path": path, "chunk_size": 65_536});
    let whole = [65_536, 65_536, 65_536, 3_392];
    assert_eq!(lengths_of(&mut shard, asked.clone()).unwrap(), whole);
    shard.set_readings(&some(10.0)); // Rings of at most 256 KiB.
    let refused = lengths_of(&mut shard, asked).unwrap_err().to_string();
    assert!(refused.contains("65536"), "{refused}");
    let free = lengths_of(&mut shard, json!({"file_path": path})).unwrap();
    assert_eq!(free.iter().sum::<usize>(), 200_000);
    std::fs::remove_file(path).unwrap();
}
