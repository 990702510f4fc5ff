//! Any bytes as a query string, a list of cursors, an id and a media type. Parsed values equal what
//! would be written, and every error is a proper one.

use std::fmt::Display;
use std::str::FromStr;

use streamdoor::base::{ExecutionId, ProgressToken, SubscriberId};
use streamdoor::endpoint::ApiCall;
use streamdoor::limits;
use streamdoor::wire::http1::{Query, is_media_type, negotiate};
use streamdoor::wire::sse::{Cursors, parse_cursors};

use super::request_head::check_exchange;

/// Checks a text as each of these.
pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    check_query(&text);
    check_cursors(&text);
    check_id::<ExecutionId>(&text);
    check_id::<ProgressToken>(&text);
    check_id::<SubscriberId>(&text);
    let _ = is_media_type(&text, "application/json");
    let offers = ["text/event-stream", "application/x-ndjson"];
    let chosen = negotiate([&*text], &offers);
    assert!(chosen.is_none_or(|chosen| offers.contains(&chosen)));
    let line: Vec<u8> = data.iter().copied().filter(|byte| byte.is_ascii_graphic()).collect();
    check_follow(&line);
}

fn check_query(text: &str) {
    let Ok(query) = Query::parse(text) else { return };
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let count = pairs.clone().count();
    assert!(count <= limits::HTTP_QUERY_PAIRS_MAX);
    if text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        let _ = query.number("n", 1..=9);
        return;
    }
    for pair in pairs {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        assert!(query.all(name).any(|other| other == value));
        let is_once = query.all(name).count() == 1;
        assert_eq!(query.text(name).is_ok(), is_once);
        let number = query.number(name, 5..=u64::MAX - 1);
        if let Ok(Some(number)) = number {
            assert!((5..u64::MAX).contains(&number));
            assert_eq!(value.trim_start_matches('0'), number.to_string());
        }
        assert!(query.list(name).all(|part| !part.is_empty() && !part.contains(',')));
        assert!(query.refuse_others(&[name]).is_ok() || count > 1);
    }
}

fn check_cursors(text: &str) {
    match parse_cursors(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(Cursors::Unnamed(seq)) => assert_eq!(text, seq.to_string()),
        Ok(Cursors::Named(named)) => {
            assert!((1..=limits::STREAM_CURSORS_MAX).contains(&named.len()));
            let spelled: Vec<String> =
                named.iter().map(|(id, reached)| reached.encode(*id)).collect();
            let again = parse_cursors(&spelled.join(",")).expect("what we write we read");
            assert_eq!(again, Cursors::Named(named.clone()));
            let mut ids: Vec<ExecutionId> = named.iter().map(|(id, _)| *id).collect();
            let reached: Vec<_> = again.of(&ids).expect("these and no others").collect();
            assert!(reached.iter().eq(named.iter().map(|(_, reached)| reached)));
            ids.pop();
            assert!(again.of(&ids).is_err());
        }
    }
}

/// Asserts that an id is parsed only from its one spelling.
fn check_id<T: FromStr + Display>(text: &str) {
    if let Ok(id) = text.parse::<T>() {
        assert_eq!(id.to_string(), text);
    }
}

/// Checks a line as the query and as the cursor of streams, through the whole machine.
fn check_follow(line: &[u8]) {
    let id = "00000000000000000000000000";
    let events = format!("GET /v1/executions/{id}/events?");
    let head = |first: &[u8], cursor: &[u8]| {
        let rest = b" HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: ";
        [first, rest, cursor, b"\r\n\r\n"].concat()
    };
    for bytes in [
        head(&[events.as_bytes(), line].concat(), b"7"),
        head(events.as_bytes(), line),
        head(&[b"GET /v1/events?", line].concat(), line),
        head(&[b"GET ", line].concat(), b""),
    ] {
        for call in check_exchange(&bytes).calls {
            let ApiCall::Follow(follow) = call else { continue };
            let executions = follow.executions;
            assert!((1..=limits::STREAM_CURSORS_MAX).contains(&executions.len()));
            for (at, (id, _)) in executions.iter().enumerate() {
                assert!(executions[..at].iter().all(|(other, _)| other != id));
            }
            let coalesce = follow.delivery_options.coalesce;
            assert!(coalesce.is_none_or(|wish| wish.delay_max <= limits::COALESCE_DELAY_MAX));
        }
    }
}
