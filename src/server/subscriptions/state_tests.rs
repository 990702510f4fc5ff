//! Tests of the rules of a subscription.

use super::*;

const LEASE_MS: u64 = 1_000;

fn seen(execution: u128, origin: u64, tail: u64) -> Seen {
    Seen { execution: ExecutionId::from_bits(execution), origin, tail }
}

fn wanted(delivery: WakeBy) -> Wanted {
    let pattern = Some("events/*".into());
    Wanted { delivery, pattern, lease_ms: LEASE_MS, ..Wanted::default() }
}

fn pull() -> Subscription {
    Subscription::new(wanted(WakeBy::Stream("wake".into())), Vec::new(), Vec::new()).unwrap()
}

fn webhook() -> Subscription {
    let url = WakeBy::Webhook("https://worker.example/".into());
    Subscription::new(wanted(url), Vec::new(), Vec::new()).unwrap()
}

fn name(generation: u64) -> Box<str> {
    format!("w_{generation}").into()
}

/// The request of a worker about the present wake.
fn acks(subscription: &Subscription, acks: &[(&str, u64)], is_done: bool) -> Acks {
    let ack = |(path, offset): &(&str, u64)| (Box::from(*path), Offset(*offset).to_string().into());
    Acks {
        wake_id: subscription.wake.as_ref().unwrap().id.clone(),
        generation: subscription.generation,
        acks: acks.iter().map(ack).collect(),
        is_done,
    }
}

#[test]
fn a_subscription_begins_at_the_ends_of_the_streams_that_are_there() {
    let matching = vec![("events/a".into(), seen(1, 0, 7)), ("other".into(), seen(2, 0, 7))];
    let named = vec![("manual/a".into(), None), ("events/a".into(), Some(seen(1, 0, 7)))];
    let wanted = wanted(WakeBy::Stream("wake".into()));
    let mut subscription = Subscription::new(wanted, matching, named).unwrap();
    assert_eq!(
        subscription.links.keys().map(|path| &**path).collect::<Vec<_>>(),
        ["events/a", "manual/a"]
    );
    assert_eq!(subscription.advance(0, name), None);
    // One that was named before it was there is new from its beginning.
    assert_eq!(subscription.note_stream("manual/a", Some(seen(3, 0, 2))), Noted::Changed);
    assert_eq!(subscription.advance(0, name), Some(Act::Offer("manual/a".into())));
}

#[test]
fn a_new_stream_is_linked_before_its_first_append() {
    let mut subscription = pull();
    // Nothing was appended.
    assert_eq!(subscription.note_stream("events/a", Some(seen(1, 0, 0))), Noted::Same);
    assert_eq!(subscription.note_stream("other/a", Some(seen(2, 0, 9))), Noted::Same);
    assert!(subscription.links.is_empty());
    // A fork.
    assert_eq!(subscription.note_stream("events/a", Some(seen(1, 4, 9))), Noted::Changed);
    assert_eq!((subscription.links["events/a"].acked, subscription.links["events/a"].tail), (4, 9));
}

#[test]
fn a_stream_of_wakes_does_not_wake_its_own_subscription() {
    let mut wanted = wanted(WakeBy::Stream("events/wake".into()));
    wanted.pattern = Some("**".into());
    let there = vec![("events/wake".into(), seen(1, 0, 3))];
    let mut subscription = Subscription::new(wanted, there, Vec::new()).unwrap();
    assert_eq!(subscription.note_stream("events/wake", Some(seen(1, 0, 9))), Noted::Same);
    assert_eq!(subscription.advance(0, name), None);
}

#[test]
fn another_stream_at_the_same_path_begins_anew() {
    let mut subscription = pull();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    subscription.links.get_mut("events/a").unwrap().acked = 9;
    assert_eq!(subscription.note_stream("events/a", Some(seen(2, 0, 9))), Noted::Changed);
    assert!(subscription.links["events/a"].is_pending());
    assert_eq!(subscription.note_stream("events/a", None), Noted::Changed);
    assert!(subscription.links.is_empty());
    assert_eq!(subscription.note_stream("events/a", None), Noted::Same);
}

#[test]
fn an_explicit_link_goes_and_the_pattern_stays() {
    let mut subscription = pull();
    subscription.link_explicit("events/a", Some(seen(1, 0, 5))).unwrap();
    subscription.link_explicit("manual/a", None).unwrap();
    subscription.link_explicit("manual/a", None).unwrap();
    subscription.unlink("manual/a");
    subscription.unlink("manual/a");
    subscription.unlink("events/a");
    assert!(!subscription.links.contains_key("manual/a"));
    let link = &subscription.links["events/a"];
    assert!(link.is_glob && !link.is_explicit && !link.is_pending());
    assert_eq!(subscription.take_changed().len(), 2);
}

#[test]
fn links_have_a_limit_that_removed_ones_give_back() {
    let mut subscription = pull();
    let path = |number: usize| format!("events/{number:0>1000}");
    let mut count = 0;
    while subscription.link_explicit(&path(count), None).is_ok() {
        count += 1;
    }
    assert_eq!(count, limits::SUBSCRIPTION_LINKS_BYTES_MAX / (1_007 + LINK_BYTES));
    subscription.links.get_mut(&*path(0)).unwrap().is_glob = false;
    subscription.unlink(&path(0));
    assert_eq!(subscription.link_explicit(&path(count), None), Ok(()));
}

#[test]
fn a_claim_gives_the_work_to_one_worker() {
    let mut subscription = pull();
    assert_eq!(subscription.claim("one", 0, name), Err(ClaimError::Nothing));
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    assert_eq!(subscription.advance(0, name), Some(Act::Offer("events/a".into())));
    assert_eq!(subscription.advance(0, name), None); // S1
    let nobody = acks(&subscription, &[], true);
    assert!(!subscription.is_present(1, &nobody)); // Nobody has claimed.
    subscription.claim("one", 0, name).unwrap();
    assert_eq!(subscription.claim("two", 0, name), Err(ClaimError::Held("one".into())));
    assert_eq!(subscription.generation, 1);
    let request = acks(&subscription, &[("events/a", 9)], true);
    assert!(subscription.is_present(1, &request));
    for (generation_of_token, generation, id) in [(0, 1, "w_1"), (1, 2, "w_1"), (1, 1, "w_2")] {
        let other = Acks { generation, wake_id: id.into(), ..request.clone() };
        assert!(!subscription.is_present(generation_of_token, &other));
    }
    subscription.acknowledge(&request, 0).unwrap();
    assert!(!subscription.is_present(1, &request)); // It is over.
    assert_eq!(subscription.advance(0, name), None);
}

#[test]
fn a_claim_behind_an_append_begins_a_wake_itself() {
    let mut subscription = pull();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    subscription.claim("one", 0, name).unwrap();
    assert_eq!((subscription.generation, subscription.deadline_us()), (1, Some(LEASE_MS * 1_000)));
}

#[test]
fn acknowledgements_are_all_applied_or_none() {
    let mut subscription = pull();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    subscription.note_stream("events/b", Some(seen(2, 0, 9)));
    subscription.claim("one", 0, name).unwrap();
    for (path, offset) in [("events/c", 1), ("events/b", 10), ("other", 0)] {
        let request = acks(&subscription, &[("events/a", 5), (path, offset)], true);
        assert_eq!(subscription.acknowledge(&request, 0), Err(InvalidOffset));
        assert_eq!(subscription.links["events/a"].acked, 0);
    }
    let mut request = acks(&subscription, &[("events/a", 5)], false);
    subscription.acknowledge(&request, 500_000).unwrap();
    assert_eq!(subscription.deadline_us(), Some(1_500_000)); // The lease begins again.
    let back = acks(&subscription, &[("events/a", 4)], false);
    assert_eq!(subscription.acknowledge(&back, 0), Err(InvalidOffset)); // S3
    request.acks = vec![("events/a".into(), "-1".into())];
    assert_eq!(subscription.acknowledge(&request, 0), Err(InvalidOffset));
}

#[test]
fn work_that_is_left_begins_another_wake() {
    let mut subscription = pull();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    subscription.claim("one", 0, name).unwrap();
    let request = acks(&subscription, &[("events/a", 5)], true);
    subscription.acknowledge(&request, 0).unwrap();
    assert_eq!(subscription.advance(0, name), Some(Act::Offer("events/a".into())));
    assert_eq!(subscription.generation, 2); // S2
    subscription.claim("one", 0, name).unwrap();
    subscription.release();
    assert_eq!(subscription.advance(0, name), Some(Act::Offer("events/a".into())));
}

#[test]
fn a_lease_that_expires_ends_the_wake() {
    let mut subscription = pull();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    subscription.claim("one", 0, name).unwrap();
    let request = acks(&subscription, &[("events/a", 9)], true);
    assert_eq!(subscription.advance(LEASE_MS * 1_000 - 1, name), None);
    let act = subscription.advance(LEASE_MS * 1_000, name);
    assert_eq!(act, Some(Act::Offer("events/a".into())));
    assert!(!subscription.is_present(1, &request));
}

#[test]
fn a_webhook_that_is_done_has_processed_what_it_was_told() {
    let mut subscription = webhook();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    assert_eq!(subscription.advance(0, name), Some(Act::Send));
    subscription.note_stream("events/a", Some(seen(1, 0, 12)));
    subscription.note_delivered("w_0", Delivered::Done, 0); // Of another wake.
    assert_eq!(subscription.links["events/a"].acked, 0);
    subscription.note_delivered("w_1", Delivered::Done, 0);
    assert_eq!(subscription.links["events/a"].acked, 9);
    assert_eq!(subscription.advance(0, name), Some(Act::Send)); // The rest.
    assert_eq!(subscription.generation, 2);
}

#[test]
fn a_webhook_that_fails_is_repeated_later_and_later() {
    let mut subscription = webhook();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    assert_eq!(subscription.advance(0, name), Some(Act::Send));
    let mut now_us = 0;
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60, 60] {
        subscription.note_delivered("w_1", Delivered::Failed(now_us * 31), now_us);
        assert!(subscription.has_failed());
        let due_us = subscription.deadline_us().unwrap();
        let delay_us = due_us - now_us;
        assert!((seconds * 800_000..=seconds * 1_200_000).contains(&delay_us), "{delay_us}");
        assert_eq!(subscription.advance(due_us - 1, name), None);
        assert_eq!(subscription.advance(due_us, name), Some(Act::Send));
        now_us = due_us;
    }
    assert_eq!(subscription.generation, 1); // The same wake.
    subscription.note_delivered("w_1", Delivered::Accepted, now_us);
    assert!(!subscription.has_failed());
    let request = acks(&subscription, &[("events/a", 9)], true);
    assert!(subscription.is_present(1, &request));
    subscription.acknowledge(&request, now_us).unwrap();
    assert_eq!(subscription.advance(now_us, name), None);
}

#[test]
fn a_callback_may_come_before_the_answer_of_the_webhook() {
    let mut subscription = webhook();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    subscription.advance(0, name);
    let request = acks(&subscription, &[("events/a", 9)], true);
    subscription.acknowledge(&request, 0).unwrap();
    let before = subscription.clone();
    subscription.note_delivered("w_1", Delivered::Failed(0), 0);
    assert_eq!(subscription, before);
}

#[test]
fn workers_that_were_not_reached_are_told_again() {
    let mut subscription = pull();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    subscription.advance(0, name);
    subscription.offer_later(0);
    let due_us = subscription.deadline_us().unwrap();
    let act = Some(Act::Offer("events/a".into()));
    assert_eq!(subscription.advance(due_us - 1, name), None);
    assert_eq!(subscription.advance(due_us, name), act);
    assert_eq!((subscription.generation, subscription.deadline_us()), (1, None));
    subscription.claim("one", 0, name).unwrap();
    subscription.offer_later(0); // A worker has it.
    assert_eq!(subscription.deadline_us(), Some(LEASE_MS * 1_000));
}

#[test]
fn workers_are_woken_again_after_a_restart() {
    let mut subscription = pull();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    subscription.advance(0, name);
    assert_eq!(subscription.wake_again(0), Some(Act::Offer("events/a".into())));
    subscription.claim("one", 0, name).unwrap();
    assert_eq!(subscription.wake_again(0), None); // The worker has its lease.
    let mut subscription = webhook();
    subscription.note_stream("events/a", Some(seen(1, 0, 9)));
    subscription.advance(0, name);
    assert_eq!(subscription.wake_again(5), Some(Act::Send));
    assert_eq!(subscription.generation, 1);
}
