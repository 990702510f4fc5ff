//! The roles of the killed processes: this test binary, run again for one of these jobs.

use streamdoor::client::ExecuteOptions;
use streamdoor::door::{Door, DoorWriter, ProduceOptions};
use streamdoor::engine::Hold;

use crate::role::{say, told, wait_for_word};
use crate::step::{mark, thread_id};
use crate::world::{FAR, LENGTH_MAX, block, pattern};

/// Size of the smallest ring: some 10 chunks, so that each new one soon replaces an old one.
pub const RING_BYTES: u32 = 4 << 10;

/// The other process's entry point. It is no test of its own.
#[test]
fn plays_its_role() {
    let Some((role, path, about)) = told() else { return };
    let door = Door::open(path).unwrap();
    match role.as_str() {
        "publishes" => publishes(&door, about.parse().unwrap()),
        "completes" => completes(&door),
        "begins to produce" => begins_to_produce(&door),
        "begins to read" => begins_to_read(&door, &about),
        "stops reading" => stops_reading(&door, &about),
        "streams" => streams(&door),
        "rests" => rests(&door),
        "reads" => reads(&door, &about),
        other => panic!("nobody plays {other:?}"),
    }
}

fn writer(door: &Door) -> DoorWriter {
    let hold = Some(Hold::UntilRead { deadline: FAR });
    let execution = ExecuteOptions { hold, ..ExecuteOptions::default() };
    let options = ProduceOptions { ring_bytes: Some(RING_BYTES), execution, ..Default::default() };
    let writer = door.produce("killed", &options).unwrap();
    say(&format!("execution {}", writer.execution()));
    writer
}

fn send(writer: &mut DoorWriter, seq: u64) {
    let mut buffer = [0; LENGTH_MAX];
    let length = pattern(seq, &mut buffer);
    assert_eq!(writer.send(&buffer[..length]).unwrap(), seq);
}

/// Prints the id of the thread to step, and waits for the stepper.
fn is_ready() {
    say(&format!("thread {}", thread_id()));
    wait_for_word();
}

/// Publishes `before` chunks, and then one step by step.
fn publishes(door: &Door, before: u64) {
    let mut writer = writer(door);
    for seq in 1..=before {
        send(&mut writer, seq);
    }
    let mut buffer = [0; LENGTH_MAX];
    let length = pattern(before + 1, &mut buffer);
    is_ready();
    mark();
    let sent = writer.send(&buffer[..length]);
    mark();
    sent.unwrap();
    wait_for_word();
}

/// Completes its execution step by step.
fn completes(door: &Door) {
    let mut writer = writer(door);
    (1..=3).for_each(|seq| send(&mut writer, seq));
    is_ready();
    mark();
    let completed = writer.complete();
    mark();
    completed.unwrap();
    wait_for_word();
}

/// Becomes a producer step by step.
fn begins_to_produce(door: &Door) {
    is_ready();
    mark();
    let writer = door.produce("killed", &ProduceOptions::default());
    mark();
    drop(writer);
    wait_for_word();
}

/// Becomes a reader step by step.
fn begins_to_read(door: &Door, execution: &str) {
    is_ready();
    mark();
    let reader = door.read(execution, &block());
    mark();
    drop(reader);
    wait_for_word();
}

/// Reads some chunks, and detaches step by step.
fn stops_reading(door: &Door, execution: &str) {
    let mut reader = door.read(execution, &block()).unwrap();
    for _ in 0..3 {
        assert!(reader.next().unwrap().is_some());
    }
    is_ready();
    mark();
    drop(reader);
    mark();
    wait_for_word();
}

/// Publishes some chunks and then nothing.
fn rests(door: &Door) {
    let mut writer = writer(door);
    wait_for_word();
    (1..=5).for_each(|seq| send(&mut writer, seq));
    say("rests");
    wait_for_word();
}

/// Publishes forever.
fn streams(door: &Door) {
    let mut writer = writer(door);
    for seq in 1.. {
        send(&mut writer, seq);
    }
}

/// Reads forever.
fn reads(door: &Door, execution: &str) {
    let mut reader = door.read(execution, &block()).unwrap();
    say("reads");
    while reader.next().unwrap().is_some() {}
}
