//! An upstream server over HTTP whose sessions end, whose streams break off, and whose responses
//! are invalid.

use std::time::Duration;

use serde_json::json;
use streamdoor::client::{ExecuteOptions, FollowOptions, StreamEvent};
use streamdoor::engine::Timeouts;

use crate::test_server::{Folder, TestServer};
use crate::web::{KEY, Web};

fn settings(port: u16) -> String {
    format!("[mcp.web]\nprefix = ''\nurl = 'http://127.0.0.1:{port}/mcp'\nkey_env = 'WEB_KEY'\n")
}

fn behind(web: &Web, name: &str) -> TestServer {
    let launcher = ["env".to_owned(), format!("WEB_KEY={KEY}")];
    TestServer::by(&launcher, name, &settings(web.port), &[])
}

#[test]
fn a_session_that_is_over_is_begun_anew_and_left_at_the_end() {
    let web = Web::start();
    let mut test_server = behind(&web, "session");
    assert_eq!(test_server.call("echo", json!({})).text, "here");
    for _ in 0..2 {
        assert_eq!(test_server.call("expire", json!({})).text, "the session is over");
        assert_eq!(test_server.call("echo", json!({})).text, "here");
    }
    assert_eq!((web.heard().sessions, test_server.metric("starts")), (3, 3));
    test_server.server.stop();
    web.wait(|heard| heard.left > 0); // The server does not wait long for this request.
    assert_eq!(web.heard().left, 1);
}

#[test]
fn a_stream_that_breaks_off_is_gone_on_with() {
    let web = Web::start();
    let test_server = behind(&web, "resume");
    let called = test_server.call("resume", json!({}));
    called.assert_ended("completed", "");
    assert_eq!(called.text, "one two");
}

#[test]
fn what_is_no_answer_fails_the_call_and_says_how() {
    let web = Web::start();
    let test_server = behind(&web, "no-answer");
    for (tool, words) in [
        ("cut", "closed the stream before its reply"),
        ("page", "replies with status 502"),
        ("nothing", "an invalid reply"),
    ] {
        let called = test_server.call(tool, json!({}));
        called.assert_ended("failed", words);
        assert_eq!(called.text, if tool == "cut" { "half of a resu" } else { "" });
        assert_eq!(test_server.call("echo", json!({})).text, "here");
    }
}

#[test]
fn a_call_that_is_stopped_ends_its_exchange_and_is_cancelled_there() {
    let web = Web::start();
    let test_server = behind(&web, "stopped");
    let options = ExecuteOptions::default();
    let created = test_server.client.execute("slow", &json!({}), &options).unwrap();
    let mut stream =
        test_server.client.follow(created.execution, FollowOptions::default()).unwrap();
    assert!(stream.any(|event| matches!(event.unwrap(), StreamEvent::Chunk(_))));
    test_server.client.cancel(created.execution).unwrap();
    let last = stream.last().unwrap().unwrap();
    assert!(
        matches!(&last, StreamEvent::End(end) if end.end.state.to_string() == "cancelled"),
        "{last:?}"
    );
    web.wait(|heard| heard.closed == 1 && heard.cancelled.len() == 1);
    // A timeout also ends the exchange. A flood is held back until then.
    let total = Some(Duration::from_millis(500));
    let before = test_server.server.memory_bytes("VmHWM");
    let flood = test_server.call_within("flood", Timeouts { total, ..Timeouts::NONE });
    flood.assert_ended("timed_out", "");
    web.wait(|heard| heard.closed == 2 && heard.cancelled.len() == 2);
    let grown = test_server.server.memory_bytes("VmHWM") - before;
    assert!(grown < 128 << 20, "{grown} bytes");
}

#[test]
fn tools_that_come_later_are_heard_of() {
    let web = Web::start();
    let test_server = behind(&web, "news");
    assert_eq!(test_server.call("change", json!({})).text, "there is one more");
    let has_added = || test_server.client.tools().unwrap().iter().any(|tool| tool.name == "added");
    while !has_added() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(test_server.call("added", json!({})).text, "here");
}

#[test]
fn without_its_key_nobody_gets_in() {
    let web = Web::start();
    let folder = Folder::new("key");
    let file = folder.settings(&settings(web.port));
    for (key, words) in [(None, "WEB_KEY has no key"), (Some("wrong"), "requires a key (401)")] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_streamdoor"));
        command
            .args(["serve", "--journal", "off", "--listen", "127.0.0.1:0", "--config", &file])
            .env_remove("WEB_KEY");
        command.envs(key.map(|key| ("WEB_KEY", key)));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains(words), "{words}: {said}");
    }
}
