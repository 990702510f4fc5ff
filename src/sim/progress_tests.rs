//! Progress, its tokens, timeouts and clean-up, as a caller sees them, in simulated time.
//!
//! The cases are those of the erlmcp progress seed: tokens, tracking, the four forms, time limits,
//! clean-up and whole lives. Completion from schemas is tested beside its code.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use streamdoor::base::{ExecutionId, Instant, ProgressToken};
use streamdoor::engine::{NotFound, ProgressSource, Status, SubscribeSpec, Timeouts};
use streamdoor::limits;
use streamdoor::memory::RingPoolConfig;
use streamdoor::shard::{Delivery, ExecuteOptions, Shard, ShardConfig};
use streamdoor::sim::reactor::SimReactor;
use streamdoor::sim::world::{SimFaults, SimWorld};
use streamdoor::stream::{ExecutionState, Kind, Outcome, Policy};
use streamdoor::tool::{Context, Prepared, Report, Step, Tool, ToolSpec, Work};

/// A shard in virtual time.
struct Stage {
    world: SimWorld,
    shard: Shard<SimReactor>,
}

impl Stage {
    fn new() -> Stage {
        let world = SimWorld::new(1, SimFaults::NONE);
        let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
        let config = ShardConfig { rings, ..Default::default() };
        let reactor = SimReactor::new(&world);
        let shard = Shard::with_reactor(reactor, config).unwrap();
        Stage { world, shard }
    }

    fn feed(&mut self) -> ExecutionId {
        self.feed_with(Timeouts::NONE, ProgressSource::Tool)
    }

    fn feed_with(&mut self, timeouts: Timeouts, progress: ProgressSource) -> ExecutionId {
        let prepared = Prepared { timeouts, progress, ..Prepared::new(Work::Feed) };
        self.shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap()
    }

    fn status(&mut self, id: ExecutionId) -> Status {
        self.shard.inspect(id).unwrap()
    }

    fn token(&mut self, id: ExecutionId) -> ProgressToken {
        self.status(id).token.unwrap()
    }

    fn listen(&mut self, id: ExecutionId) -> Diary {
        let diary = Diary::default();
        let own = Rc::clone(&diary);
        let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
        let note = move |delivery: &Delivery<'_>| own.borrow_mut().push(words(delivery));
        self.shard.subscribe(id, spec, note).unwrap();
        diary
    }

    /// Advances the clock, with turns of the shard at each deadline.
    fn pass(&mut self, duration: Duration) {
        let until = self.world.now() + duration;
        while let Some(due) = self.shard.next_deadline().filter(|&due| due <= until) {
            self.world.advance_to(due.max(self.world.now()));
            while self.shard.turn() {}
        }
        self.world.advance_to(until.max(self.world.now()));
        while self.shard.turn() {}
        self.shard.audit();
    }

    fn outcome(&mut self, id: ExecutionId) -> Option<Outcome> {
        match self.status(id).state {
            ExecutionState::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }
}

type Diary = Rc<RefCell<Vec<String>>>;

fn words(delivery: &Delivery<'_>) -> String {
    match delivery {
        Delivery::Chunk(chunk) => format!("chunk {}", chunk.seq),
        Delivery::Gap(gap) => format!("gap {}..={}", gap.from_seq, gap.to_seq),
        Delivery::Progress(reported) => {
            let progress = reported.progress;
            let total = progress.total.map_or(String::new(), |total| format!("/{total}"));
            let text = [reported.message, reported.context].map(|t| t.unwrap_or(""));
            format!("{:.2}{total} {} {}", progress.progress, text[0], text[1]).trim_end().to_owned()
        }
        Delivery::End(ended) => format!("end {}", ended.end.state),
    }
}

fn taken(diary: &Diary) -> Vec<String> {
    std::mem::take(&mut *diary.borrow_mut())
}

// --- Tokens -------------------------------------------------------------------------------------

#[test]
fn a_token_is_an_opaque_text_of_at_least_32_characters() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let text = stage.token(id).to_string();
    assert!(text.len() >= 32, "{text}");
    assert!(text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{text}");
    assert_eq!(text.parse::<ProgressToken>().unwrap(), stage.token(id));
}

#[test]
fn a_hundred_tokens_are_a_hundred_tokens() {
    let mut stage = Stage::new();
    let tokens: BTreeSet<String> = (0..100)
        .map(|_| {
            let id = stage.feed();
            stage.token(id).to_string()
        })
        .collect();
    assert_eq!(tokens.len(), 100);
}

#[test]
fn a_token_with_one_character_changed_finds_nothing() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let text = stage.token(id).to_string();
    for at in 0..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
        if let Ok(token) = String::from_utf8(changed).unwrap().parse() {
            assert_eq!(stage.shard.find_token(token), Err(NotFound));
        }
    }
    assert_eq!(stage.shard.find_token(text.parse().unwrap()), Ok(id));
}

#[test]
fn tokens_of_two_shards_have_nothing_in_common() {
    let [mut one, mut other] = [Stage::new(), Stage::new()];
    let (one_id, other_id) = (one.feed(), other.feed());
    let (token, foreign) = (one.token(one_id), other.token(other_id));
    assert_ne!(token, foreign);
    assert_eq!(one.shard.find_token(foreign), Err(NotFound));
}

// --- Tracking -----------------------------------------------------------------------------------

#[test]
fn what_is_known_of_an_execution_is_found_by_its_token() {
    let mut stage = Stage::new();
    let spec = ToolSpec::new("wait", "Waits.");
    let never = |_: &serde_json::Value, _: &mut streamdoor::tool::Output| Ok(());
    stage.shard.tools_mut().insert_closure(spec, never).unwrap();
    stage.shard.run_jobs_by_hand();
    stage.pass(Duration::from_secs(3));
    let id = stage.shard.execute("wait", &json!({}), ExecuteOptions::default()).unwrap();
    let token = stage.token(id);
    assert_eq!(stage.shard.find_token(token), Ok(id));
    let status = stage.status(id);
    assert_eq!(status.state, ExecutionState::Running);
    assert!(status.opened_at >= Instant::ZERO + Duration::from_secs(3));
    assert_eq!(status.progress, None);
    assert_eq!(stage.shard.tool_of(id).unwrap().name, "wait");
}

#[test]
fn several_executions_are_tracked_apart() {
    let mut stage = Stage::new();
    let ids = [(); 3].map(|()| stage.feed());
    for (number, id) in ids.into_iter().enumerate() {
        stage.shard.report(id, Report::amount(number as f64, Some(10.0))).unwrap();
    }
    for (number, id) in ids.into_iter().enumerate() {
        assert_eq!(stage.status(id).progress.unwrap().progress, number as f64);
    }
}

#[test]
fn a_token_that_never_was_finds_nothing() {
    let stage = Stage::new();
    let slot = streamdoor::base::Handle { index: 0, generation: 0 };
    let token = ProgressToken { shard: 0, slot, secret: 0 };
    assert_eq!(stage.shard.find_token(token), Err(NotFound));
}

#[test]
fn what_runs_is_listed_with_how_far_it_is() {
    let mut stage = Stage::new();
    let [running, ended, forgotten] = [(); 3].map(|()| stage.feed());
    stage.shard.report(running, Report::percentage(40.0)).unwrap();
    stage.shard.finish(ended, Ok(())).unwrap();
    let token = stage.token(forgotten);
    stage.shard.forget_token(token).unwrap();
    let token = stage.token(running);
    let listed: Vec<_> = stage.shard.tokens().collect();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].0, listed[0].1), (token, running));
    assert_eq!(listed[0].2.unwrap().percentage(), Some(40.0));
}

// --- The four forms -----------------------------------------------------------------------------

#[test]
fn a_percentage_is_told() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let diary = stage.listen(id);
    stage.shard.report(id, Report::percentage(50.0)).unwrap();
    assert_eq!(taken(&diary), ["50.00/100"]);
}

#[test]
fn an_amount_is_told() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let diary = stage.listen(id);
    stage.shard.report(id, Report::amount(250.0, Some(1_000.0))).unwrap();
    assert_eq!(taken(&diary), ["250.00/1000"]);
    assert_eq!(stage.status(id).progress.unwrap().percentage(), Some(25.0));
}

#[test]
fn words_are_told_each_and_at_once() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let diary = stage.listen(id);
    for step in 1..=3 {
        stage.shard.report(id, Report::message(&format!("step {step} of 3"))).unwrap();
    }
    assert_eq!(taken(&diary), ["1.00 step 1 of 3", "2.00 step 2 of 3", "3.00 step 3 of 3"]);
}

#[test]
fn a_context_is_told() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let diary = stage.listen(id);
    let context = json!({"file": "a.rs", "line": 7});
    let report = Report::amount(1.0, Some(2.0)).with_message("reading").with_context(&context);
    stage.shard.report(id, report).unwrap();
    assert_eq!(taken(&diary), ["1.00/2 reading {\"file\":\"a.rs\",\"line\":7}"]);
}

#[test]
fn numbers_that_come_fast_are_told_once_an_interval_and_the_last_before_the_end() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let diary = stage.listen(id);
    for number in 1..=100 {
        stage.shard.report(id, Report::amount(f64::from(number), Some(200.0))).unwrap();
    }
    assert_eq!(taken(&diary), ["1.00/200"]);
    stage.pass(limits::PROGRESS_INTERVAL + Duration::from_millis(1));
    assert_eq!(taken(&diary), ["100.00/200"]);
    stage.shard.report(id, Report::amount(150.0, Some(200.0))).unwrap();
    stage.shard.report(id, Report::amount(200.0, Some(200.0))).unwrap();
    stage.shard.finish(id, Ok(())).unwrap();
    stage.pass(Duration::ZERO);
    assert_eq!(taken(&diary), ["200.00/200", "end completed"]);
}

#[test]
fn nothing_is_reported_of_what_is_not_there() {
    let mut stage = Stage::new();
    let id = stage.feed();
    stage.shard.finish(id, Ok(())).unwrap();
    assert_eq!(stage.shard.report(id, Report::percentage(1.0)), Err(NotFound));
    assert_eq!(stage.shard.expect_total(id, 1), Err(NotFound));
}

#[test]
fn where_a_tool_says_nothing_chunks_or_bytes_say_it() {
    for (source, unit) in [(ProgressSource::Chunks, 1.0), (ProgressSource::Bytes, 100.0)] {
        let mut stage = Stage::new();
        let need = streamdoor::tool::Need { estimated_bytes: Some(1_000), ..Default::default() };
        let prepared = Prepared { progress: source, need, ..Prepared::new(Work::Feed) };
        let id = stage.shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
        stage.shard.expect_total(id, 10).unwrap();
        let diary = stage.listen(id);
        let mut told = Vec::new();
        for _ in 0..10 {
            stage.shard.publish(id, Kind::Output, &[b'x'; 100]).unwrap();
            stage.pass(Duration::from_millis(20));
            told.extend(taken(&diary).into_iter().filter(|word| !word.starts_with("chunk")));
        }
        stage.shard.finish(id, Ok(())).unwrap();
        stage.pass(Duration::ZERO);
        told.extend(taken(&diary));
        let of = |count: f64| format!("{:.2}/{}", count * unit, 10.0 * unit);
        assert_eq!(told.first(), Some(&of(1.0)), "{told:?}");
        assert_eq!(told[told.len() - 2..], [of(10.0), "end completed".to_owned()]);
        // The run of 200 ms has one report every 50 ms, and one more at the end.
        assert!((4..=6).contains(&(told.len() - 1)), "{told:?}");
    }
}

// --- Time limits --------------------------------------------------------------------------------

const SECOND: Duration = Duration::from_secs(1);
/// The latest end of a time limit. A timer fires at most one tick of the wheel late, and a turn of
/// the simulator takes 100 ns.
const LATE_MAX: Duration = Duration::from_nanos((2 << limits::WHEEL_TICK_SHIFT) + 1_000);

fn error_of(stage: &mut Stage, id: ExecutionId) -> String {
    stage.status(id).error.map_or_else(String::new, String::from)
}

#[test]
fn a_tool_without_a_first_chunk_is_timed_out() {
    let mut stage = Stage::new();
    let timeouts = Timeouts { first_chunk: Some(5 * SECOND), ..Timeouts::NONE };
    let id = stage.feed_with(timeouts, ProgressSource::Tool);
    let diary = stage.listen(id);
    stage.pass(5 * SECOND - Duration::from_millis(1));
    assert_eq!(stage.outcome(id), None);
    stage.pass(Duration::from_millis(1) + LATE_MAX);
    assert_eq!(stage.outcome(id), Some(Outcome::TimedOut));
    assert_eq!(error_of(&mut stage, id), "timed out: no first chunk within 5s");
    assert_eq!(taken(&diary), ["end timed_out"]);
}

#[test]
fn a_silent_tool_is_timed_out_after_30_seconds_and_chunks_and_progress_are_no_silence() {
    let mut stage = Stage::new();
    let id = stage.feed_with(Timeouts::default(), ProgressSource::Tool);
    for round in 0..6 {
        stage.pass(29 * SECOND);
        match round % 2 {
            0 => _ = stage.shard.publish(id, Kind::Output, b"here").unwrap(),
            _ => stage.shard.report(id, Report::message("still here")).unwrap(),
        }
    }
    stage.pass(30 * SECOND - Duration::from_millis(1));
    assert_eq!(stage.outcome(id), None);
    stage.pass(Duration::from_millis(1) + LATE_MAX);
    assert_eq!(stage.outcome(id), Some(Outcome::TimedOut));
    assert_eq!(error_of(&mut stage, id), "timed out: nothing more within 30s");
}

#[test]
fn time_stands_still_while_a_reader_holds_the_tool_back() {
    let mut stage = Stage::new();
    let timeouts = Timeouts { inactivity: Some(10 * SECOND), ..Timeouts::NONE };
    let id = stage.feed_with(timeouts, ProgressSource::Tool);
    let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
    let mut reader = stage.shard.subscribe_remote(id, spec).unwrap();
    while stage.shard.publish(id, Kind::Output, &[0; 400]).is_ok() {}
    stage.pass(25 * SECOND); // Longer than the limit, shorter than the block deadline.
    assert_eq!(stage.outcome(id), None);
    while reader.poll().is_some() {}
    stage.pass(Duration::ZERO); // The shard handles the wake-up of the reader.
    stage.pass(10 * SECOND - Duration::from_millis(1));
    assert_eq!(stage.outcome(id), None);
    stage.pass(Duration::from_millis(1) + LATE_MAX);
    assert_eq!(stage.outcome(id), Some(Outcome::TimedOut));
}

#[test]
fn the_hard_cap_ends_what_is_never_silent() {
    let mut stage = Stage::new();
    let timeouts = Timeouts { total: Some(3 * SECOND), ..Timeouts::default() };
    let id = stage.feed_with(timeouts, ProgressSource::Tool);
    for _ in 0..29 {
        stage.pass(SECOND / 10);
        stage.shard.publish(id, Kind::Output, b"busy").unwrap();
    }
    stage.pass(SECOND / 10 + LATE_MAX);
    assert_eq!(stage.outcome(id), Some(Outcome::TimedOut));
    assert_eq!(error_of(&mut stage, id), "timed out: not done within 3s");
    assert!(stage.shard.publish(id, Kind::Output, b"late").is_err());
}

#[test]
fn a_tool_that_sleeps_too_long_is_timed_out_and_dropped() {
    struct Sleeper(Arc<AtomicBool>);
    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    impl Tool for Sleeper {
        fn step(&mut self, context: &mut Context<'_>) -> Step {
            Step::Sleep(context.now() + Duration::from_secs(3_600))
        }
    }
    let mut stage = Stage::new();
    let dropped = Arc::new(AtomicBool::new(false));
    let work = Work::Steps(Box::new(Sleeper(Arc::clone(&dropped))));
    let prepared = Prepared { timeouts: Timeouts::default(), ..Prepared::new(work) };
    let id = stage.shard.execute_prepared(prepared, ExecuteOptions::default()).unwrap();
    stage.pass(31 * SECOND);
    assert_eq!(stage.outcome(id), Some(Outcome::TimedOut));
    assert!(dropped.load(Ordering::Relaxed));
}

// --- Clean-up -----------------------------------------------------------------------------------

#[test]
fn a_token_that_was_forgotten_finds_nothing_and_its_execution_goes_on() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let token = stage.token(id);
    assert_eq!(stage.shard.forget_token(token), Ok(()));
    assert_eq!(stage.shard.find_token(token), Err(NotFound));
    assert_eq!(stage.shard.forget_token(token), Err(NotFound));
    assert_eq!(stage.status(id).token, None);
    stage.shard.publish(id, Kind::Output, b"on").unwrap();
    assert_eq!(stage.status(id).head_seq, 1);
}

#[test]
fn a_token_is_forgotten_by_itself_when_the_retention_is_over() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let token = stage.token(id);
    stage.shard.finish(id, Ok(())).unwrap();
    stage.pass(limits::RETENTION - Duration::from_millis(1));
    assert_eq!(stage.shard.find_token(token), Ok(id));
    assert_eq!(stage.shard.tokens().count(), 0);
    stage.pass(Duration::from_millis(1) + LATE_MAX);
    assert_eq!(stage.shard.find_token(token), Err(NotFound));
    assert_eq!(stage.shard.execution_count(), 0);
    // The next execution in its slot has another token.
    let next = stage.feed();
    assert_eq!(next.slot.index, id.slot.index);
    assert_ne!(stage.token(next), token);
    assert_eq!(stage.shard.find_token(token), Err(NotFound));
}

// --- Whole lives --------------------------------------------------------------------------------

#[test]
fn a_whole_life_is_told_in_order() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let diary = stage.listen(id);
    stage.shard.report(id, Report::message("starting")).unwrap();
    stage.shard.publish(id, Kind::Output, b"one").unwrap();
    stage.pass(SECOND);
    stage.shard.report(id, Report::message("half way")).unwrap();
    stage.shard.publish(id, Kind::Output, b"two").unwrap();
    stage.shard.finish(id, Ok(())).unwrap();
    stage.pass(Duration::ZERO);
    let told = taken(&diary);
    let expected = ["1.00 starting", "chunk 1", "2.00 half way", "chunk 2", "end completed"];
    assert_eq!(told, expected);
    assert_eq!(stage.outcome(id), Some(Outcome::Completed));
}

#[test]
fn ten_at_once_do_not_touch_each_other() {
    let mut stage = Stage::new();
    let ids = [(); 10].map(|()| stage.feed());
    let diaries = ids.map(|id| stage.listen(id));
    for step in 0..5 {
        for (number, id) in ids.into_iter().enumerate() {
            let report = Report::amount(f64::from(step), Some(number as f64 + 10.0));
            stage.shard.report(id, report).unwrap();
        }
        stage.pass(SECOND);
    }
    for (number, id) in ids.into_iter().enumerate() {
        match number % 3 {
            0 => stage.shard.finish(id, Ok(())).unwrap(),
            1 => stage.shard.finish(id, Err("it could not")).unwrap(),
            _ => stage.shard.cancel(id).unwrap(),
        }
    }
    stage.pass(SECOND);
    for (number, diary) in diaries.iter().enumerate() {
        let told = taken(diary);
        let of = number + 10;
        let mut expected: Vec<String> = (0..5).map(|step| format!("{step}.00/{of}")).collect();
        expected.push(format!("end {}", ["completed", "failed", "cancelled"][number % 3]));
        assert_eq!(told, expected);
    }
}

#[test]
fn a_client_that_goes_away_leaves_nothing_behind() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let spec = SubscribeSpec { policy: Policy::Block, ..Default::default() };
    let gone = stage.shard.subscribe_remote(id, spec).unwrap();
    let diary = stage.listen(id);
    while stage.shard.publish(id, Kind::Output, &[0; 400]).is_ok() {}
    let held = stage.status(id).head_seq;
    drop(gone);
    stage.pass(SECOND);
    stage.shard.report(id, Report::message("and on")).unwrap();
    stage.shard.publish(id, Kind::Output, &[0; 400]).unwrap();
    assert_eq!(stage.status(id).subscriber_count, 1);
    assert!(taken(&diary).contains(&format!("chunk {}", held + 1)));
    stage.shard.finish(id, Ok(())).unwrap();
    stage.pass(limits::RETENTION + SECOND);
    assert_eq!(stage.shard.execution_count(), 0);
    assert_eq!(stage.shard.ring_usage().leased_count, 0);
}

#[test]
fn a_flow_of_mixed_forms_never_goes_back_and_never_passes_its_total() {
    let mut stage = Stage::new();
    let id = stage.feed();
    let diary = stage.listen(id);
    let reports = [
        Report::amount(10.0, Some(100.0)),
        Report::percentage(30.0).with_message("a third"),
        Report::message("looking"),
        Report::amount(20.0, Some(100.0)).with_message("back?"),
        Report::percentage(400.0).with_message("too far"),
        Report::message("over"),
    ];
    let mut last = 0.0;
    for report in reports {
        stage.shard.report(id, report).unwrap();
        stage.pass(SECOND);
        let progress = stage.status(id).progress.unwrap();
        assert!(progress.progress >= last && progress.progress <= 100.0, "{progress:?}");
        last = progress.progress;
    }
    let told = taken(&diary);
    assert_eq!(told.len(), 6, "{told:?}");
    assert_eq!(told[1], "30.00/100 a third");
    assert_eq!(told[3], "30.00/100 back?");
    assert_eq!(told[4], "100.00/100 too far");
    assert_eq!(stage.shard.counters().progress_backward, 1);
}
