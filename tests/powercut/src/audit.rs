//! The comparison of executions with the record of them, after a crash.

use crate::calls::{Call, Calls, is_error, whole};
use crate::http::{Client, between, number};
use crate::subscriber::{Follow, Left};

/// Number of connections with which an execution is read.
const FOLLOWS_MAX: usize = 10;

/// Number of things that were checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Audited {
    pub executions: u64,
    /// Bytes that subscribers were given when the disk had them.
    pub promised: u64,
    pub bytes: u64,
    /// Executions of which a subscriber had been told the end.
    pub ends: u64,
    /// Executions that are not there, although their opening was answered; and those that lack a
    /// part whose worker was answered. Only `synced` promises more.
    pub unkept: u64,
    pub shorter: u64,
    pub restarted: u64,
    /// Executions with which their workers go on.
    pub going_on: u64,
    /// Subscribers that have gone on behind their last event.
    pub resumed: u64,
    /// Subscribers that had seen more than was kept.
    pub ahead: u64,
}

/// Compares the executions that are new since the last crash; all of them if `is_all`.
pub fn check_calls(address: &str, calls: &Calls, is_all: bool, audited: &mut Audited) {
    let mut client = Client::new(address);
    let mut all = calls.with(|calls| calls.clone());
    all.retain_mut(|call| {
        if !is_all && call.found.is_some() {
            return true;
        }
        let reply = client.ask("GET", &format!("/v1/executions/{}", call.id), "", b"").unwrap();
        if reply.status == 404 {
            // A worker and other subscribers may be told of an execution that is not kept yet.
            let is_promised = call.told.is_some() || (call.is_late && call.given > 0);
            assert!(!is_promised, "{call:?} is lost");
            assert!(!(calls.are_synced && call.is_opened), "{call:?} is lost");
            audited.unkept += u64::from(call.is_opened);
            return false;
        }
        assert_eq!(reply.status, 200, "{call:?}: {}", reply.text());
        let text = reply.text();
        let state = between(&text, "\"state\":\"", '"').expect("a state");
        if state == "running" && call.is_late {
            // Its worker goes on with it, in a server that lets it.
            let bytes = number(&text, "\"bytes\":").expect("a count");
            assert!(bytes >= call.given as u64, "{call:?} has {bytes} bytes");
            audited.going_on += 1;
            return true;
        }
        check_call(address, call, state, calls, audited);
        true
    });
    for call in &all {
        calls.with(|calls| {
            let kept = calls.iter_mut().find(|kept| kept.id == call.id).expect("it is there");
            kept.found = call.found.clone();
        });
    }
    calls.with(|calls| calls.retain(|call| all.iter().any(|kept| kept.id == call.id)));
    check_list(&mut client, &all);
}

fn check_call(address: &str, call: &mut Call, state: &str, calls: &Calls, audited: &mut Audited) {
    let id = call.id.clone();
    let mut follow = Follow::new(&id, false);
    let mut left = Left::Broken;
    for _ in 0..FOLLOWS_MAX {
        // The server may detach a reader of an execution that it forgets meanwhile.
        left = follow.follow(address, calls, u64::MAX);
        if left == Left::Ended {
            break;
        }
    }
    assert_eq!(left, Left::Ended, "{call:?}, {state}: it has no end");
    assert!(!follow.has_gap, "{call:?} has a gap");
    let (told, error) = follow.end.clone().expect("its end");
    // One that went on after the start may have ended since it was looked at.
    assert!(told == state || state == "running", "{call:?}: {told}, and before {state}");
    let promised = if call.is_late { call.given } else { 0 };
    assert!(follow.bytes >= promised, "{call:?} has {} bytes", follow.bytes);
    assert!(follow.bytes <= call.sent, "{call:?} has {} bytes", follow.bytes);
    let acked = if calls.are_synced { call.acked } else { 0 };
    assert!(follow.bytes >= acked, "{call:?} has {} bytes", follow.bytes);
    let planned = if is_error(&id) { ("failed", "as planned") } else { ("completed", "") };
    let is_planned = (told.as_str(), error.as_str()) == planned;
    let is_restarted = told == "failed" && error.contains("restarted");
    assert!(is_planned || is_restarted, "{call:?} has ended with {told}, {error}");
    if is_planned {
        assert_eq!(follow.bytes, whole(&id).len(), "{call:?}");
    }
    if let Some(before) = &call.told {
        assert_eq!(*before, told, "{call:?} has two ends");
    }
    if told == "completed" {
        // The output of another one breaks off, because it is not whole.
        let path = format!("/v1/executions/{id}/output");
        let output = Client::new(address).ask("GET", &path, "", b"").unwrap();
        let expected = whole(&id).into_bytes();
        assert!(output.status == 200 && output.body == expected, "{call:?}: its output");
    }
    let found = (told, follow.bytes);
    match &call.found {
        Some(before) => assert_eq!(*before, found, "{call:?} has changed"),
        None => {
            audited.executions += 1;
            audited.promised += promised as u64;
            audited.bytes += follow.bytes as u64;
            audited.ends += u64::from(call.told.is_some());
            audited.shorter += u64::from(follow.bytes < call.acked);
            audited.restarted += u64::from(is_restarted);
        }
    }
    call.found = Some(found);
}

/// The list of executions has the last one once.
fn check_list(client: &mut Client, calls: &[Call]) {
    if let Some(last) = calls.last() {
        let (mut count, mut after) = (0, String::new());
        loop {
            let path = format!("/v1/executions?tool=parts&limit=100{after}");
            let text = client.ask("GET", &path, "", b"").unwrap().text();
            count += text.matches(&format!("\"execution\":\"{}\"", last.id)).count();
            match between(&text, "\"next\":\"", '"') {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(count, 1, "{last:?} in the list");
    }
}

/// True for the error of an execution that has ended because the disk has failed. Nothing of this
/// end is kept.
pub fn is_of_disk(error: &str) -> bool {
    error.starts_with("the disk of the journal")
}

/// Lets the subscribers go on that a crash has cut off.
pub fn resume(address: &str, follows: Vec<Follow>, calls: &Calls, audited: &mut Audited) {
    for mut follow in follows {
        let has_failed = follow.end.as_ref().is_some_and(|(_, error)| is_of_disk(error));
        if follow.has_gap || follow.seq == 0 || has_failed {
            continue;
        }
        let call = calls.with(|calls| calls.iter().find(|call| call.id == follow.id).cloned());
        if call.as_ref().is_some_and(|call| call.found.is_none()) {
            continue; // It goes on.
        }
        let found = call.and_then(|call| call.found);
        let before = follow.bytes;
        let left = follow.follow(address, calls, u64::MAX);
        let Some((_, count)) = found else {
            assert_eq!(left, Left::Missing, "{follow:?}");
            continue;
        };
        assert_eq!(left, Left::Ended, "{follow:?} of {count}");
        assert!(follow.is_ended && !follow.has_gap, "{follow:?} of {count}");
        assert_eq!(follow.bytes, before.max(count), "{follow:?} of {count}");
        audited.resumed += 1;
        audited.ahead += u64::from(before > count);
    }
}
