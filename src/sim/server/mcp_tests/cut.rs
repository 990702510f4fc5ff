//! Connections that break: who can come back goes on where it was.

use std::time::Duration;

use serde_json::json;

use super::client::{Heard, MOMENT, Mcp, alone, slow};

#[test]
fn a_session_that_is_cut_off_goes_on_where_it_was() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(10, 100), json!({"progressToken": 7}));
    mcp.house.pass(Duration::from_millis(450));
    let mut heard = Heard::read(&mcp.house.hear(client));
    let seen = heard.chunks().len();
    assert!((3..8).contains(&seen), "{heard:?}");
    mcp.house.world.client_reset(client);
    mcp.house.pass(Duration::from_millis(300));
    assert_eq!(mcp.states(), ["running"], "it goes on");
    let back = mcp.resume(heard.last_id());
    mcp.house.pass(Duration::from_secs(2));
    let again = Heard::read(&mcp.house.hear(back));
    assert_eq!(again.status, "200");
    assert!(again.is_over, "{again:?}");
    again.answer();
    heard.messages.extend(again.messages);
    assert_eq!(heard.chunks(), (1..=10).collect::<Vec<u64>>());
    heard.assert_rises();
    let ids: Vec<&String> = heard.messages.iter().map(|(id, _)| id).collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids.len(), "no id is there twice: {ids:?}");
}

#[test]
fn an_answer_that_got_lost_is_there_for_who_comes_back() {
    let mut mcp = Mcp::begun();
    let client = mcp.call(slow(3, 100), json!({"progressToken": 7}));
    let first = Heard::read(&mcp.house.hear(client));
    mcp.house.world.client_reset(client);
    mcp.house.pass(Duration::from_secs(3));
    assert_eq!(mcp.states(), ["completed"]);
    let back = mcp.resume(first.last_id());
    mcp.house.pass(MOMENT);
    let again = Heard::read(&mcp.house.hear(back));
    assert!(again.is_over);
    again.answer();
    let mut chunks = first.chunks();
    chunks.extend(again.chunks());
    assert_eq!(chunks, [1, 2, 3]);
    // It is told again as often as it gets lost, to this session alone.
    for behind in [first.last_id(), again.messages[0].0.as_str()] {
        let third = mcp.resume(behind);
        mcp.house.pass(MOMENT);
        let heard = Heard::read(&mcp.house.hear(third));
        assert!(heard.is_over, "{heard:?}");
        heard.answer();
    }
    mcp.begin();
    let stranger = mcp.resume(first.last_id());
    mcp.house.pass(MOMENT);
    assert_eq!(Heard::read(&mcp.house.hear(stranger)).status, "400");
}

#[test]
fn a_request_that_stands_for_itself_ends_with_its_connection() {
    let mut mcp = Mcp::new();
    let mut meta = alone();
    meta["progressToken"] = 1.into();
    for is_reset in [true, false] {
        let client = mcp.call(slow(100, 1_000), meta.clone());
        mcp.house.pass(Duration::from_secs(2));
        assert_eq!(mcp.states().last().unwrap(), "running");
        match is_reset {
            true => mcp.house.world.client_reset(client),
            false => mcp.house.world.client_close(client),
        }
        mcp.house.pass(Duration::from_secs(1));
        assert!(mcp.states().iter().all(|state| state == "cancelled"), "{:?}", mcp.states());
    }
}
