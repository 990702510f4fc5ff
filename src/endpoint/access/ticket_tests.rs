//! Tickets: what they open, for how long, and that nothing else opens it.

use std::time::Duration;

use super::Tokens;
use super::tickets::Tickets;
use crate::base::{ExecutionId, Instant, Principal, Random};
use crate::endpoint::call_tests::id;
use crate::memory::ClockAnchor;

const TTL: Duration = Duration::from_secs(3_600);
const ANN: Principal = Principal(1);

fn at(seconds: u64, nanos: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000 + nanos)
}

/// The tokens of these principals.
fn tokens(names: &[&str]) -> Tokens {
    let line = |(at, name): (usize, &&str)| format!("{name} {}\n", format!("{at:04}").repeat(8));
    Tokens::read(&names.iter().enumerate().map(line).collect::<String>()).unwrap()
}

fn tickets() -> Tickets {
    Tickets::new(&[9; 32], TTL)
}

#[test]
fn a_ticket_is_good_for_its_time_its_principal_and_its_execution() {
    let (tickets, tokens, begin) = (tickets(), tokens(&["ann", "bob"]), at(1_000, 1));
    let ticket = tickets.issue("ann", id(1), begin);
    assert_eq!(ticket.len(), 60);
    assert!(ticket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    let owner_at = |execution: ExecutionId, now| tickets.check(&ticket, execution, now, &tokens);
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
    assert_eq!(Tickets::new(&[8; 32], TTL).check(&ticket, id(1), begin, &tokens), None);
    let bob = tickets.issue("bob", id(1), begin);
    assert_eq!(tickets.check(&bob, id(1), begin, &tokens), Some(Principal(2)));
}

#[test]
fn a_ticket_outlives_its_server() {
    let before = tickets().by_clock(ClockAnchor { wall_us: 5_000_000_000, mono_ns: 0 });
    let ticket = before.issue("bob", id(1), at(100, 0));
    // The machine has started again: another monotonic clock, and another order of the tokens.
    let after = tickets().by_clock(ClockAnchor { wall_us: 5_200_000_000, mono_ns: 7 });
    let holder = |tokens: &Tokens, now| after.check(&ticket, id(1), now, tokens);
    let others = tokens(&["bob", "ann"]);
    assert_eq!(holder(&others, at(0, 7)), Some(Principal(1)));
    assert_eq!(holder(&others, at(3_499, 0)), Some(Principal(1)));
    assert_eq!(holder(&others, at(3_502, 0)), None);
    // The principal that has the number of the holder now cannot use the ticket of the holder.
    assert_eq!(holder(&tokens(&["ann", "eve"]), at(0, 7)), None);
}

#[test]
fn no_other_text_is_a_ticket() {
    let (tickets, tokens, now) = (tickets(), tokens(&["ann"]), at(5, 0));
    let good = tickets.issue("ann", id(1), now);
    let mut random = Random::new(3);
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=. ";
    for at in 0..good.len() {
        for _ in 0..8 {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = digits[random.below(digits.len() as u64) as usize];
            let text = String::from_utf8(bytes).unwrap();
            let is_it = text == good;
            assert_eq!(tickets.check(&text, id(1), now, &tokens).is_some(), is_it, "{text}");
        }
    }
    let longer = [good.clone() + "A", good.clone() + "====", good[1..].to_owned(), String::new()];
    for text in longer.iter().map(String::as_str).chain(["ä", &"ä".repeat(30), &"A".repeat(60)]) {
        assert_eq!(tickets.check(text, id(1), now, &tokens), None, "{text}");
    }
}
