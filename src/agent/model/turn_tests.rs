//! Tests of turns: the retries, their times, and the failures that are not retried.

use std::time::Duration;

use crate::agent::model::{
    Endpoint, FinishReason, ModelEvent, Secret, Turn, TurnAction, TurnInput, TurnOptions, Wire,
};
use crate::base::Instant;
use crate::limits;

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
const FINISH: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";
const OVERLOADED: &str =
    "data: {\"error\":{\"type\":\"overloaded_error\",\"message\":\"Full.\"}}\n\n";
const OK: TurnInput<'_> = TurnInput::Head { status: 200, retry_after: None, retry_after_ms: None };
const RESET: TurnInput<'_> = TurnInput::Broken {
    code: "connection_reset",
    text: "the connection broke",
    is_retryable: true,
};

fn turn(retries_max: u32, seed: u64) -> Turn {
    let base_url = "http://localhost".parse().unwrap();
    let (wire, key) = (Wire::ChatCompletions, Some(Secret::new("sk-1").unwrap()));
    let endpoint = Endpoint { wire, base_url, model: "m".to_owned(), key };
    Turn::new(&endpoint, &[], b"request with sk-1".to_vec(), TurnOptions { retries_max, seed })
}

fn head(status: u16, retry_after: Option<&str>) -> TurnInput<'_> {
    TurnInput::Head { status, retry_after, retry_after_ms: None }
}

/// A turn and its current time.
struct Driven {
    turn: Turn,
    now: Instant,
}

impl Driven {
    fn new(retries_max: u32, seed: u64) -> Driven {
        let mut driven = Driven { turn: turn(retries_max, seed), now: Instant::ZERO };
        driven.expect_ask(0);
        driven
    }

    fn expect_ask(&mut self, expected: u32) {
        let action = self.turn.next_action();
        let Some(TurnAction::Ask { attempt, request }) = action else { panic!("{action:?}") };
        assert_eq!((attempt, request.as_slice()), (expected, &b"request with sk-1"[..]));
        assert_eq!(self.turn.next_action(), None);
    }

    fn feed(&mut self, attempt: u32, all: &[TurnInput<'_>]) {
        for input in all {
            self.turn.handle(attempt, *input, self.now, 0);
        }
    }

    fn events(&mut self) -> Vec<ModelEvent> {
        std::iter::from_fn(|| self.turn.next_event()).collect()
    }

    /// Waits until the next attempt is due, and returns the delay.
    fn wait(&mut self) -> Duration {
        let until = self.turn.next_deadline().expect("it waits");
        let waited = until.since(self.now);
        if let Some(early) = until.nanos().checked_sub(1) {
            self.turn.tick(Instant::from_nanos(early.max(self.now.nanos())));
        }
        self.now = until;
        self.turn.tick(until);
        assert_eq!(self.turn.next_deadline(), None);
        waited
    }
}

#[test]
fn an_answer_is_passed_on_and_its_connection_kept() {
    let mut driven = Driven::new(3, 1);
    driven.feed(0, &[OK, TurnInput::Body(TEXT.as_bytes())]);
    assert_eq!(driven.events(), [ModelEvent::Text("a".to_owned())]);
    assert!(!driven.turn.is_over());
    driven.feed(0, &[TurnInput::Body(FINISH.as_bytes()), TurnInput::Body(DONE.as_bytes())]);
    assert_eq!(driven.events(), [ModelEvent::Finished(FinishReason::Stop)]);
    assert!(driven.turn.is_over() && driven.turn.failure().is_none());
    assert_eq!(driven.turn.next_action(), Some(TurnAction::Release { attempt: 0 }));
    driven.feed(0, &[TurnInput::End, RESET]); // Events after the end.
    assert!(driven.turn.failure().is_none() && driven.turn.next_action().is_none());
}

#[test]
fn an_answer_without_its_last_frame_is_complete_where_the_body_ends() {
    for end in [TurnInput::End, RESET] {
        let mut driven = Driven::new(3, 1);
        driven.feed(0, &[OK, TurnInput::Body(FINISH.as_bytes()), end]);
        assert!(driven.turn.is_over() && driven.turn.failure().is_none());
        assert_eq!(driven.turn.next_action(), None); // No connection is left to keep.
    }
}

#[test]
fn what_failed_before_anything_was_said_is_tried_again() {
    let failures: [&[TurnInput<'_>]; 7] = [
        &[RESET],
        &[OK, RESET],
        &[OK, TurnInput::End],
        &[OK, TurnInput::Body(OVERLOADED.as_bytes())],
        &[
            OK,
            TurnInput::Body(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n"),
            RESET,
        ],
        &[head(503, None), TurnInput::End],
        &[head(429, None), TurnInput::Body(b"{\"error\":{\"mess"), RESET],
    ];
    for failure in failures {
        for seed in 0..50 {
            let mut driven = Driven::new(2, seed);
            for attempt in 0..2 {
                driven.feed(attempt, failure);
                assert!(!driven.turn.is_over(), "{failure:?}");
                if let Some(action) = driven.turn.next_action() {
                    assert_eq!(action, TurnAction::HangUp { attempt });
                }
                assert!(driven.wait() <= limits::MODEL_RETRY_DELAY * (1 << attempt));
                driven.expect_ask(attempt + 1);
                driven.feed(attempt, &[OK, TurnInput::Body(TEXT.as_bytes())]); // Ignored.
            }
            driven.events();
            driven.feed(2, failure);
            let is_retryable = driven.turn.failure().map(|failure| failure.is_retryable);
            assert_eq!(is_retryable, Some(true));
            assert_eq!(driven.turn.attempt_count(), 3);
            assert_eq!(
                driven
                    .events()
                    .iter()
                    .filter(|event| !matches!(event, ModelEvent::Usage(_)))
                    .count(),
                0
            );
        }
    }
}

#[test]
fn the_second_attempt_is_heard_as_the_first_would_have_been() {
    let mut driven = Driven::new(1, 7);
    let cut = &TEXT[..TEXT.len() - 9];
    driven.feed(0, &[OK, TurnInput::Body(cut.as_bytes()), RESET]);
    driven.wait();
    driven.expect_ask(1);
    let whole = [TEXT, FINISH, DONE].concat();
    driven.feed(1, &[OK, TurnInput::Body(whole.as_bytes()), TurnInput::End]);
    let expected = [ModelEvent::Text("a".to_owned()), ModelEvent::Finished(FinishReason::Stop)];
    assert_eq!(driven.events(), expected);
}

#[test]
fn what_was_said_is_not_asked_for_again() {
    let mut driven = Driven::new(3, 1);
    driven.feed(0, &[OK, TurnInput::Body(TEXT.as_bytes()), TurnInput::Body(OVERLOADED.as_bytes())]);
    assert_eq!(driven.events(), [ModelEvent::Text("a".to_owned())]);
    let failure = driven.turn.failure().expect("it is not tried again");
    assert_eq!((failure.code.as_str(), failure.is_retryable), ("overloaded_error", true));
    assert_eq!(failure.message, "the model's server failed: overloaded_error: Full.");
    assert_eq!(driven.turn.next_action(), Some(TurnAction::HangUp { attempt: 0 }));
    let mut driven = Driven::new(3, 1);
    driven.feed(0, &[OK, TurnInput::Body(TEXT.as_bytes()), RESET]);
    assert_eq!(
        driven.turn.failure().map(|failure| failure.code.as_str()),
        Some("connection_reset")
    );
    assert_eq!(driven.turn.next_action(), None);
}

#[test]
fn what_cannot_succeed_later_is_not_tried_again() {
    let bad = b"{\"error\":{\"code\":\"invalid_api_key\",\"message\":\"Not sk-1!\"}}";
    let mut driven = Driven::new(3, 1);
    driven.feed(0, &[head(401, Some("1")), TurnInput::Body(bad), TurnInput::End]);
    let failure = driven.turn.failure().expect("it is over");
    assert_eq!((failure.code.as_str(), failure.is_retryable), ("invalid_api_key", false));
    assert_eq!(failure.message, "the model's server refuses with 401: Not [key]!");
    let mut driven = Driven::new(3, 1);
    let unknown =
        TurnInput::Broken { code: "unknown_host", text: "there is none", is_retryable: false };
    driven.feed(0, &[unknown]);
    assert_eq!(driven.turn.failure().map(|failure| failure.code.as_str()), Some("unknown_host"));
}

#[test]
fn a_server_that_says_when_is_asked_then_and_not_before() {
    for seed in 0..20 {
        let mut driven = Driven::new(3, seed);
        driven.feed(0, &[head(429, Some("7")), TurnInput::End]);
        assert_eq!(driven.wait(), Duration::from_secs(7));
    }
    // A server that asks for a longer delay than the limit is not asked again.
    let long = (limits::MODEL_RETRY_AFTER_MAX.as_secs() + 1).to_string();
    let mut driven = Driven::new(3, 1);
    driven.feed(0, &[head(429, Some(&long)), TurnInput::End]);
    let after = driven.turn.failure().and_then(|failure| failure.retry_after);
    assert_eq!(after, Some(limits::MODEL_RETRY_AFTER_MAX + Duration::from_secs(1)));
}

#[test]
fn of_a_long_refusal_only_the_beginning_is_read() {
    let mut driven = Driven::new(0, 1);
    driven.feed(0, &[head(400, None)]);
    let piece = vec![b'x'; limits::MODEL_ERROR_BYTES_MAX - 1];
    driven.feed(0, &[TurnInput::Body(&piece)]);
    assert!(!driven.turn.is_over());
    driven.feed(0, &[TurnInput::Body(&piece)]);
    assert!(driven.turn.is_over());
    assert_eq!(driven.turn.next_action(), Some(TurnAction::HangUp { attempt: 0 }));
    let message = &driven.turn.failure().expect("it is over").message;
    assert!(message.len() < 2 * limits::MODEL_ERROR_QUOTE_BYTES_MAX);
}

#[test]
fn a_cancelled_turn_hangs_up_and_says_nothing_more() {
    let mut driven = Driven::new(3, 1);
    driven.feed(0, &[OK, TurnInput::Body(TEXT.as_bytes())]);
    driven.turn.cancel();
    assert!(driven.turn.is_over() && driven.turn.failure().is_none());
    assert_eq!(driven.turn.next_action(), Some(TurnAction::HangUp { attempt: 0 }));
    driven.feed(0, &[TurnInput::Body(TEXT.as_bytes()), TurnInput::End]);
    assert_eq!(driven.events(), []);
    // While it waits for the next attempt, no connection is open.
    let mut driven = Driven::new(3, 1);
    driven.feed(0, &[RESET]);
    driven.turn.cancel();
    assert!(driven.turn.is_over() && driven.turn.next_action().is_none());
    assert_eq!(driven.turn.next_deadline(), None);
    // A turn that is cancelled before its request was taken sends none.
    let mut unasked = turn(3, 1);
    unasked.cancel();
    assert_eq!(unasked.next_action(), None);
}

#[test]
fn nothing_that_prints_a_turn_prints_the_key() {
    let mut turn = turn(3, 1);
    assert!(!format!("{turn:?}").contains("sk-1"));
    assert!(!format!("{:?}", turn.next_action()).contains("sk-1"));
}
