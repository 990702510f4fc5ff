//! A handle on the shard's own thread returns an error instead of waiting for itself. A closure
//! sleeps until its time is over or its execution is stopped.

use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::json;
use streamdoor::shard::{CallError, HandleError};
use streamdoor::{
    Delivery, EndState, ExecuteOptions, Outcome, Shard, ShardConfig, ShardHandle, ToolSpec,
};

#[test]
fn a_handle_on_the_shards_own_thread_does_not_wait_for_itself() {
    let (told, heard) = channel();
    let in_set_up = told.clone();
    let (shard, _report) = Shard::spawn(ShardConfig::default(), move |shard| {
        in_set_up.send(shard.handle().counters().map(|_| ())).unwrap();
    })
    .unwrap();
    assert_eq!(heard.recv().unwrap(), Err(CallError::OwnThread));
    let own = ShardHandle::clone(&shard);
    shard
        .call(move |_| {
            told.send(own.memory().map(|_| ())).unwrap();
            let refused = own.execute("slow_data_processor", json!({}), ExecuteOptions::default());
            assert_eq!(refused, Err(HandleError::Call(CallError::OwnThread)));
        })
        .unwrap();
    assert_eq!(heard.recv().unwrap(), Err(CallError::OwnThread));
    assert_eq!(shard.call(|shard| shard.execution_count()), Ok(0), "nothing was started");
}

#[test]
fn a_shard_that_is_dropped_on_its_own_thread_ends() {
    let (shard, _report) = Shard::spawn(ShardConfig::default(), |_| {}).unwrap();
    let handle = ShardHandle::clone(&shard);
    handle.call(move |_| drop(shard)).unwrap();
    while handle.counters() != Err(CallError::Gone) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_closure_sleeps_until_its_time_or_its_stop() {
    let (told, heard) = channel();
    let (shard, _report) = Shard::spawn(ShardConfig::default(), move |shard| {
        let spec = ToolSpec::new("sleep", "Sleeps.");
        let sleep = move |arguments: &serde_json::Value, out: &mut streamdoor::Output| {
            let begin = out.now();
            out.send(b"begun")?;
            let slept = out.sleep(Duration::from_millis(arguments["ms"].as_u64().unwrap()));
            told.send((slept, out.now().since(begin))).unwrap();
            Ok(slept?)
        };
        shard.tools_mut().insert_closure(spec, sleep).unwrap();
    })
    .unwrap();
    let state_of = |ms: u64, is_cancelled: bool| {
        let mut subscriber = shard.run("sleep", json!({"ms": ms})).unwrap();
        loop {
            match subscriber.next() {
                Delivery::Chunk(_) if is_cancelled => shard.cancel(subscriber.execution()).unwrap(),
                Delivery::End(ended) => return ended.end.state,
                _ => {}
            }
        }
    };
    assert_eq!(state_of(30, false), EndState::Ended(Outcome::Completed));
    let (slept, took) = heard.recv().unwrap();
    assert!(slept.is_ok() && took >= Duration::from_millis(30), "{took:?}");
    assert_eq!(state_of(1_000_000_000, true), EndState::Ended(Outcome::Cancelled));
    assert!(heard.recv().unwrap().0.is_err(), "it does not sleep for twelve days");
}
