//! Tickets: what they open, for how long, and that nothing else opens it.

use std::time::Duration;

use super::tickets::Tickets;
use crate::base::{ExecutionId, Instant, Principal, Random};
use crate::endpoint::call_tests::id;

const TTL: Duration = Duration::from_secs(3_600);
const ANN: Principal = Principal(1);

fn at(seconds: u64, nanos: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000 + nanos)
}

fn tickets() -> Tickets {
    Tickets::new(&[9; 32], TTL)
}

#[test]
fn a_ticket_is_good_for_its_time_its_principal_and_its_execution() {
    let (tickets, begin) = (tickets(), at(1_000, 1));
    let ticket = tickets.issue(ANN, id(1), begin);
    assert_eq!(ticket.len(), 56);
    assert!(ticket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    let owner_at = |execution: ExecutionId, now| tickets.check(&ticket, execution, now);
    for now in [begin, begin + TTL / 2, begin + TTL] {
        assert_eq!(owner_at(id(1), now), Some(ANN), "{now:?}");
        assert_eq!(owner_at(id(2), now), None);
    }
    let end = at(1_000 + 3_600 + 1, 0);
    assert_eq!(owner_at(id(1), end), None);
    assert_eq!(owner_at(id(1), end + TTL), None);
    let mut other = id(1);
    other.nonce ^= 1;
    assert_eq!(owner_at(other, begin), None);
    assert_eq!(Tickets::new(&[8; 32], TTL).check(&ticket, id(1), begin), None);
    let bob = tickets.issue(Principal(2), id(1), begin);
    assert_eq!(tickets.check(&bob, id(1), begin), Some(Principal(2)));
}

#[test]
fn no_other_text_is_a_ticket() {
    let (tickets, now) = (tickets(), at(5, 0));
    let good = tickets.issue(ANN, id(1), now);
    let mut random = Random::new(3);
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=. ";
    for at in 0..good.len() {
        for _ in 0..8 {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = digits[random.below(digits.len() as u64) as usize];
            let text = String::from_utf8(bytes).unwrap();
            let is_it = text == good;
            assert_eq!(tickets.check(&text, id(1), now).is_some(), is_it, "{text}");
        }
    }
    let longer = [good.clone() + "A", good.clone() + "====", good[1..].to_owned(), String::new()];
    for text in longer.iter().map(String::as_str).chain(["ä", &"ä".repeat(28), &"A".repeat(56)]) {
        assert_eq!(tickets.check(text, id(1), now), None, "{text}");
    }
}
