//! Tests of `state.rs`: the table of decisions about appends.

use crate::endpoint::{Appended, Creation, ProducerAt};
use crate::server::durable::state::{Config, Judged, StreamState};

fn state(media_type: &str) -> StreamState {
    let creation = Creation { media_type: Some(media_type.into()), ..Creation::default() };
    StreamState { config: Config::of(&creation, None), ..StreamState::default() }
}

fn text(body: &str) -> Appended {
    Appended { media_type: Some("text/plain".into()), body: body.into(), ..Appended::default() }
}

fn by(id: &str, epoch: u64, seq: u64, body: &str) -> Appended {
    Appended { producer: Some(ProducerAt { id: id.into(), epoch, seq }), ..text(body) }
}

/// The status of the answer. An append that is accepted is applied, and has the status 0.
fn status(state: &mut StreamState, appended: &Appended) -> u16 {
    match state.judge(appended) {
        Judged::Accepted(messages) => {
            let bytes = messages.iter().map(|message| message.len() as u64).sum();
            state.accept(appended, bytes);
            0
        }
        Judged::Repeated(answer) | Judged::Refused(answer) => answer.status().code(),
    }
}

#[test]
fn a_producer_is_heard_once_and_in_order() {
    let mut state = state("text/plain");
    for (epoch, seq, expected) in [
        (5, 1, 409), // Its first append is missing.
        (5, 0, 0),
        (5, 0, 204),
        (5, 2, 409),
        (5, 1, 0),
        (4, 2, 403),
        (6, 1, 400),
        (6, 0, 0),
        (5, 2, 403),
        (6, 0, 204),
    ] {
        assert_eq!(status(&mut state, &by("p", epoch, seq, "x")), expected, "{epoch} {seq}");
    }
    assert_eq!(status(&mut state, &by("q", 0, 0, "y")), 0);
    assert_eq!(state.tail, 4);
}

#[test]
fn nothing_follows_the_end_but_its_own_repetition() {
    let mut state = state("text/plain");
    let last = Appended { closes: true, ..by("p", 0, 0, "end") };
    assert_eq!(status(&mut state, &last), 0);
    let close = Appended { closes: true, ..Appended::default() };
    for (appended, expected) in [
        (last.clone(), 204),
        (Appended { body: b"other".to_vec(), ..last }, 204),
        (close, 204),
        (text("more"), 409),
        (Appended { closes: true, ..text("more") }, 409),
        (Appended { closes: true, ..by("p", 0, 1, "") }, 409),
        (by("q", 0, 0, "x"), 409),
    ] {
        assert_eq!(status(&mut state, &appended), expected, "{appended:?}");
    }
    assert_eq!(state.tail, 3);
}

#[test]
fn a_refused_append_changes_nothing() {
    let mut state = state("application/json; charset=utf-8");
    let json = |body: &str| Appended {
        media_type: Some("Application/JSON".into()),
        body: body.into(),
        ..Appended::default()
    };
    assert_eq!(status(&mut state, &Appended { seq: Some("09".into()), ..json("[1,[2]]") }), 0);
    assert_eq!(state.tail, 4);
    let before = state.clone();
    for (appended, expected) in [
        (text("1"), 409),
        (json("[]"), 400),
        (json("{ invalid }"), 400),
        (Appended { seq: Some("09".into()), ..json("1") }, 409),
        (Appended { seq: Some("08x".into()), ..json("1") }, 409),
        (Appended { producer: by("p", 0, 1, "").producer, ..json("1") }, 409),
        (Appended { producer: by("p", 0, 0, "").producer, ..json("[") }, 400),
    ] {
        assert_eq!(status(&mut state, &appended), expected, "{appended:?}");
        assert_eq!(state, before); // N1
    }
    assert_eq!(status(&mut state, &Appended { seq: Some("10".into()), ..json("[]x") }), 400);
    assert_eq!(status(&mut state, &Appended { seq: Some("10".into()), ..json("{}") }), 0);
}

#[test]
fn what_a_crash_has_cut_off_is_no_part_of_a_message() {
    let mut state = state("text/plain");
    assert_eq!(status(&mut state, &by("p", 0, 0, "whole")), 0);
    let kept = state.clone();
    assert_eq!(status(&mut state, &Appended { closes: true, ..by("p", 0, 1, "torn") }), 0);
    let mut torn = state.clone();
    torn.revert(7);
    assert_eq!((torn.tail, &torn.voids[..]), (7, &[(5, 7)][..]));
    assert!(torn.closed.is_none());
    assert_eq!(torn.producers, kept.producers);
    state.revert(5);
    assert_eq!((state.tail, state.voids.len()), (5, 0));
    assert_eq!(status(&mut state, &by("p", 0, 1, "again")), 0);
}

#[test]
fn the_same_stream_is_the_same_request() {
    let creation = |media_type: Option<&str>, ttl_s| Creation {
        media_type: media_type.map(Box::from),
        ttl_s,
        ..Creation::default()
    };
    let config = Config::of(&creation(Some("Text/Plain; a=b"), Some(60)), None);
    assert!(config.is_same(&creation(Some("text/plain"), Some(60))));
    assert!(!config.is_same(&creation(Some("text/plain"), Some(61))));
    assert!(!config.is_same(&creation(Some("text/plain"), None)));
    assert!(!config.is_same(&creation(None, Some(60))));
    let config = Config::of(&creation(None, None), None);
    assert_eq!(&*config.media_type, "application/octet-stream");
    assert!(config.is_same(&creation(Some("application/octet-stream"), None)));
}
