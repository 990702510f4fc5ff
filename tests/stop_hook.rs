//! `Output::on_stop`: a hook that a tool registers with the shard, to be called when the tool is
//! stopped.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde_json::json;
use streamdoor::engine::SubscribeSpec;
use streamdoor::shard::{Delivery, ExecuteOptions, Shard, ShardConfig, ShardThread, outcome_of};
use streamdoor::stream::Outcome;
use streamdoor::tool::{Output, ToolError, ToolSpec};

/// The time that a test waits for what should take microseconds. It fails then, instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a shard with the tool `t`, and the receiver of what the tool sends.
fn shard_with<F>(tool: F) -> (ShardThread, Receiver<&'static str>)
where
    F: Fn(&mut Output, &Sender<&'static str>) + Send + Sync + 'static,
{
    let (sender, receiver) = channel();
    let sender = std::sync::Mutex::new(sender);
    let set_up = |shard: &mut Shard| {
        let tool = move |_: &serde_json::Value, out: &mut Output| {
            let sender = sender.lock().unwrap().clone();
            tool(out, &sender);
            Err(ToolError::Stopped)
        };
        shard.tools_mut().insert_closure(ToolSpec::new("t", "T."), tool).unwrap();
    };
    (Shard::spawn(ShardConfig::default(), set_up).unwrap().0, receiver)
}

/// Starts the tool, waits for its first message, cancels it, and checks its end.
fn start_and_cancel(shard: &ShardThread, receiver: &Receiver<&'static str>) {
    let id = shard.execute("t", json!({}), ExecuteOptions::default()).unwrap();
    let mut subscriber = shard.subscribe(id, SubscribeSpec::default()).unwrap();
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("ready"));
    shard.cancel(id).unwrap();
    let delivery = subscriber.next_within(PATIENCE).expect("it ends");
    let Delivery::End(ended) = delivery else { panic!("{delivery:?}") };
    assert_eq!(outcome_of(&ended.end), Some(Outcome::Cancelled));
}

/// Waits until the tool is stopped.
fn wait(out: &Output) {
    while !out.is_stopped() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_hook_is_called_once_while_the_tool_sits_in_something_that_blocks() {
    let (shard, receiver) = shard_with(|out, sender| {
        let (interrupt, interrupted) = channel();
        let _on_stop = out.on_stop(move || interrupt.send("hook").unwrap());
        sender.send("ready").unwrap();
        sender.send(interrupted.recv().unwrap()).unwrap(); // The tool only waits for its hook.
        assert!(out.is_stopped() && out.stop_signal().is_stopped());
        assert!(interrupted.try_recv().is_err());
    });
    start_and_cancel(&shard, &receiver);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("hook"));
}

#[test]
fn a_hook_that_comes_after_the_stop_is_called_at_once() {
    let (shard, receiver) = shard_with(|out, sender| {
        sender.send("ready").unwrap();
        wait(out);
        let hook_sender = sender.clone();
        let _on_stop = out.on_stop(move || hook_sender.send("late hook").unwrap());
        sender.send("after").unwrap();
    });
    start_and_cancel(&shard, &receiver);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("late hook"));
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("after"));
}

#[test]
fn a_hook_that_was_dropped_is_not_called() {
    let (shard, receiver) = shard_with(|out, sender| {
        let hook_sender = sender.clone();
        drop(out.on_stop(move || hook_sender.send("dropped hook").unwrap()));
        sender.send("ready").unwrap();
        wait(out);
        sender.send("after").unwrap();
    });
    start_and_cancel(&shard, &receiver);
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok("after"));
}

#[test]
fn a_hook_that_panics_takes_nobody_along() {
    let (shard, receiver) = shard_with(|out, sender| {
        let _on_stop = out.on_stop(|| panic!("a hook's own"));
        sender.send("ready").unwrap();
        wait(out);
    });
    start_and_cancel(&shard, &receiver);
    start_and_cancel(&shard, &receiver); // The shard lives.
}
