//! Several readers on one thread, which read each chunk once: [`DoorAudience`].

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use streamdoor::door::{DoorAudience, DoorError, JoinFault, ReadOptions};
use streamdoor::engine::Hold;
use streamdoor::stream::{Kind, Kinds, Outcome, Policy};

use crate::test_server::{FAR, Received, TestServer, slow_bytes};

type Log = Rc<RefCell<Received>>;

const WAIT: Duration = Duration::from_secs(60);

fn with(policy: Policy) -> ReadOptions {
    ReadOptions { policy: Some(policy), ..ReadOptions::default() }
}

/// Reads until every member has left. Returns the errors.
fn read_all(audience: &mut DoorAudience<Log>, count_max: usize) -> Vec<DoorError> {
    let mut errors = Vec::new();
    while !audience.is_empty() {
        assert!(audience.wait(WAIT), "nothing came");
        audience.drain(count_max, |log, delivery| match delivery {
            Ok(delivery) => log.borrow_mut().take(&delivery),
            Err(error) => errors.push(error),
        });
    }
    errors
}

#[test]
fn every_member_is_given_all_of_a_tool_that_a_server_runs() {
    let server = TestServer::new(&[]);
    let hold = Some(Hold::UntilRead { deadline: FAR });
    let options = streamdoor::client::ExecuteOptions { hold, ..Default::default() };
    let arguments = json!({"chunks": 2_000, "delay_ms": 0, "chunk_size": 40});
    let execution = server.execute("slow_data_processor", &arguments, &options);
    let (door, name) = (server.door(), execution.to_string());
    let (mut audience, logs) = (DoorAudience::new(), [(); 9].map(|()| Log::default()));
    for (number, log) in logs.iter().enumerate() {
        let kinds = if number == 8 { Kinds::NONE.with(Kind::Log) } else { Kinds::ALL };
        let policy = if number < 6 { Policy::Block } else { Policy::Drop };
        let options = ReadOptions { kinds, limit_chunks: Some(400), ..with(policy) };
        audience.join(door.read(&name, &options).unwrap(), Rc::clone(log)).unwrap();
    }
    assert_eq!((audience.len(), audience.execution()), (9, Some(execution)));
    assert!(read_all(&mut audience, 64).is_empty());
    for log in &logs[..6] {
        let log = log.borrow();
        assert_eq!(log.outcome(), Some(Outcome::Completed));
        assert_eq!(log.seqs, (1..=2_000).collect::<Vec<u64>>());
        assert_eq!(log.bytes, slow_bytes(2_000, 40));
        assert_eq!(log.counts, [2_000, 80_000, 0, 0]);
    }
    for log in &logs[6..8] {
        let log = log.borrow();
        assert_eq!(log.counts[0] + log.counts[2], 2_000, "given and missed");
        assert_eq!(log.seqs.len() as u64, log.counts[0]);
    }
    assert_eq!(logs[8].borrow().counts, [0; 4], "it wanted another kind");
}

#[test]
fn members_of_a_killed_server_are_given_the_rest_and_one_error() {
    let mut server = TestServer::new(&[]);
    let door = server.door();
    let mut writer = door.produce("lonely", &Default::default()).unwrap();
    let name = writer.execution().to_string();
    let (mut audience, logs) = (DoorAudience::new(), [(); 4].map(|()| Log::default()));
    for log in &logs {
        let reader = door.read(&name, &with(Policy::Block)).unwrap();
        audience.join(reader, Rc::clone(log)).unwrap();
    }
    writer.send(b"last words").unwrap();
    server
        .until("they are taken", || server.client.inspect(writer.execution()).unwrap().chunks == 1);
    server.kill();
    let errors = read_all(&mut audience, 1);
    assert_eq!(errors.len(), 4, "{errors:?}");
    assert!(errors.iter().all(|error| matches!(error, DoorError::ServerGone)), "{errors:?}");
    assert!(logs.iter().all(|log| log.borrow().bytes == b"last words"));
}

#[test]
fn a_reader_of_another_execution_is_refused_and_goes_on_alone() {
    let server = TestServer::new(&[]);
    let door = server.door();
    let mut writers: Vec<_> =
        ["one", "two"].map(|name| door.produce(name, &Default::default()).unwrap()).into();
    let mut audience = DoorAudience::new();
    let names: Vec<_> = writers.iter().map(|writer| writer.execution().to_string()).collect();
    let options = with(Policy::Block);
    let (first, second) = (Log::default(), Log::default());
    audience.join(door.read(&names[0], &options).unwrap(), Rc::clone(&first)).unwrap();
    let refused = audience.join(door.read(&names[1], &options).unwrap(), Rc::clone(&second));
    let refused = refused.expect_err("it reads another execution");
    assert_eq!(refused.fault, JoinFault::OtherExecution);
    assert!(refused.to_string().contains("another execution"), "{refused}");
    let mut alone = refused.reader;
    for writer in &mut writers {
        writer.send(b"to each its own").unwrap();
    }
    writers.into_iter().for_each(|writer| writer.complete().unwrap());
    assert_eq!(Received::of(&mut alone).bytes, b"to each its own");
    // A member can leave, too, and goes on where it stands.
    while first.borrow().seqs.is_empty() {
        assert!(audience.wait(WAIT));
        audience.drain(1, |log, delivery| log.borrow_mut().take(&delivery.unwrap()));
    }
    let id = audience.members().next().expect("it has not ended").0;
    let (mut left, log) = audience.leave(id).unwrap();
    assert!(audience.is_empty() && audience.leave(id).is_none());
    while let Some(delivery) = left.next().unwrap() {
        log.borrow_mut().take(&delivery);
    }
    assert_eq!(log.borrow().bytes, b"to each its own");
    assert_eq!(log.borrow().outcome(), Some(Outcome::Completed));
}
