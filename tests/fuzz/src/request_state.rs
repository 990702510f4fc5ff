//! Any bytes as a `requestState`. Only a sealed state opens, and only for its principal, its
//! purpose and its time. It opens unchanged.

use std::time::Duration;

use serde_json::{Map, Value, json};
use streamdoor::base::{Instant, Principal};
use streamdoor::limits;
use streamdoor::mcp::codes;
use streamdoor::mcp::request_state::{Bound, Seal};

use super::draw::Draw;

const KEY: [u8; 32] = [7; 32];
const METHODS: [&str; 4] = ["tools/call", "prompts/get", "resources/read", ""];

/// The principal and the purpose of a state. It owns the texts that [`Bound`] borrows.
#[derive(Clone, PartialEq)]
struct Asked {
    principal: Principal,
    method: String,
    name: String,
    arguments: Map<String, Value>,
}

impl Asked {
    fn draw(draw: &mut Draw<'_>) -> Asked {
        let principal = Principal(draw.byte().into());
        let (method, name) = (draw.one_of(&METHODS), draw.text());
        // A name may start with the end of a method.
        let cut = draw.below(method.len() + 1);
        let is_moved = draw.flag();
        let (method, moved) = if is_moved { method.split_at(cut) } else { (method, "") };
        let arguments = match draw.below(3) {
            0 => Map::new(),
            count => Map::from_iter([("n".to_owned(), count.into())]),
        };
        let (method, name) = (method.to_owned(), format!("{moved}{name}"));
        Asked { principal, method, name, arguments }
    }

    fn bound(&self) -> Bound<'_> {
        let Asked { principal, method, name, arguments } = self;
        Bound { principal: *principal, method, name, arguments }
    }
}

/// Draws a state that a tool may want to keep.
fn state(draw: &mut Draw<'_>) -> Value {
    let text = draw.text();
    match draw.below(5) {
        0 => json!({ "step": draw.number(), "text": text }),
        1 => serde_json::from_str(&text).unwrap_or(Value::Null),
        2 => json!([text, f64::from_bits(draw.word())]),
        3 => (0..draw.byte()).fold(text.into(), |inner: Value, _| json!([inner])),
        _ => text.into(),
    }
}

/// Checks a sealed state, and changed forms of it.
pub fn check(data: &[u8]) {
    let mut draw = Draw::new(data);
    let seal = Seal::new(&KEY);
    let asked = Asked::draw(&mut draw);
    let now = Instant::from_nanos(draw.number());
    let state = state(&mut draw);
    let Ok(sealed) = seal.seal(asked.bound(), &state, now) else {
        // None of these states is too long.
        return assert!(serde_json::from_str::<Value>(&state.to_string()).is_err(), "{state}");
    };
    assert!(sealed.is_ascii());
    let later = now + Duration::from_nanos(draw.number());
    let is_in_time = check_time(&seal, &asked, &sealed, &state, now, later);
    let other = if draw.flag() { Asked::draw(&mut draw) } else { asked.clone() };
    let opened = seal.open(other.bound(), &sealed, later);
    assert_eq!(opened.is_ok(), is_in_time && other == asked, "it is for one alone");
    let brought = changed(&sealed, &mut draw);
    if brought != sealed.as_bytes() {
        check_refused(&seal, &asked, &String::from_utf8_lossy(&brought), now);
        check_refused(&seal, &other, &String::from_utf8_lossy(&brought), now);
    }
    assert!(Seal::new(&[8; 32]).open(asked.bound(), &sealed, now).is_err(), "another key");
    check_refused(&seal, &asked, &String::from_utf8_lossy(data), now);
}

/// Returns true if the state is still valid at `later`.
fn check_time(
    seal: &Seal,
    asked: &Asked,
    sealed: &str,
    state: &Value,
    now: Instant,
    later: Instant,
) -> bool {
    let opened = |at: Instant| seal.open(asked.bound(), sealed, at);
    // Near the maximum time the expiry would overflow.
    let has_end = now.nanos() <= u64::MAX - 2 * limits::MCP_STATE_TTL.as_nanos() as u64;
    if has_end {
        assert_eq!(opened(now).as_ref(), Ok(state));
        let last = now + (limits::MCP_STATE_TTL - Duration::from_nanos(1));
        assert_eq!(opened(last).as_ref(), Ok(state));
        assert!(opened(now + limits::MCP_STATE_TTL + Duration::from_secs(1)).is_err());
    }
    let late = opened(later);
    if let Ok(late) = &late {
        assert_eq!(late, state);
        let age = later.nanos() - now.nanos();
        assert!(age <= (limits::MCP_STATE_TTL + Duration::from_secs(1)).as_nanos() as u64);
    }
    late.is_ok()
}

/// Returns the sealed state changed at a few places, cut or extended, or unchanged.
fn changed(sealed: &str, draw: &mut Draw<'_>) -> Vec<u8> {
    let mut bytes = sealed.as_bytes().to_vec();
    for _ in 0..draw.below(4) {
        let at = draw.number() as usize % (bytes.len() + 1);
        let end = (at + draw.below(5)).min(bytes.len());
        let count = draw.below(5);
        bytes.splice(at..end, draw.bytes(count).iter().copied());
    }
    bytes
}

fn check_refused(seal: &Seal, asked: &Asked, text: &str, now: Instant) {
    let fault = seal.open(asked.bound(), text, now).expect_err("nobody has sealed it");
    assert_eq!((fault.code, fault.status), (codes::INVALID_PARAMS, 200));
}
