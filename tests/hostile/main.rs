//! Hostile requests (`requests.txt`), sent through the whole HTTP machine and then to the program.
//! Each request has its verdict, wherever its bytes are cut. A good request behind it is neither
//! lost nor invented.
#![cfg(feature = "server")]

#[path = "../fuzz/src/peer.rs"]
mod peer;
#[cfg(feature = "cli")]
mod program;
mod table;

use peer::{Exchange, Peer, exchange};
use streamdoor::endpoint::ApiCall;
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use table::{Fate, Hostile, requests};

/// The good request behind each hostile one.
pub const NEXT: &[u8] = b"GET /v1/tools HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The statuses of all responses in `out`. Bytes that are not a response are an error. Only the
/// first request can be a `HEAD`, whose response has no body.
pub fn statuses(request: &[u8], out: &[u8], is_closed: bool) -> Result<Vec<u16>, String> {
    let mut input = out;
    let mut statuses = Vec::new();
    let mut method = if request.starts_with(b"HEAD ") { Method::Head } else { Method::Get };
    while !input.is_empty() {
        let mut reader = ResponseReader::new();
        reader.expect(std::mem::replace(&mut method, Method::Get));
        loop {
            match reader.read(&mut input).map_err(|error| format!("{statuses:?}, {error}"))? {
                Some(ResponsePart::Head(head)) => statuses.push(head.status.code()),
                Some(ResponsePart::Body(_)) => {}
                Some(ResponsePart::End) => break,
                None => {
                    if is_closed && reader.finish().is_ok() {
                        break;
                    }
                    return Err(format!("{statuses:?} is cut off"));
                }
            }
        }
    }
    Ok(statuses)
}

impl Hostile {
    /// The bytes of this request, with the good request behind them.
    pub fn with_next(&self) -> Vec<u8> {
        [&self.bytes, NEXT].concat()
    }

    /// The statuses of all responses, with `good` for the good request if the connection stays
    /// open.
    pub fn all_statuses(&self, good: u16) -> Vec<u16> {
        let mut all = self.statuses.clone();
        all.extend((self.fate == Fate::Open).then_some(good));
        all
    }

    /// Checks an exchange against the verdict. `ended` says that the input has ended behind the
    /// bytes.
    fn check(&self, got: &Exchange, ended: bool) -> Result<(), String> {
        let statuses = statuses(&self.bytes, &got.out, got.is_closed)?;
        let is_over = ended || self.fate != Fate::Waits;
        let expected = if is_over { self.all_statuses(204) } else { Vec::new() };
        let is_closed = ended || self.fate == Fate::Closed;
        let calls = if self.fate == Fate::Open { vec![ApiCall::Tools] } else { Vec::new() };
        let is_right = statuses == expected && got.is_closed == is_closed && got.calls == calls;
        let said = || format!("{statuses:?}, closed: {}, {:?}", got.is_closed, got.calls);
        if is_right { Ok(()) } else { Err(said()) }
    }
}

#[test]
fn each_has_its_verdict() {
    let mut wrong = Vec::new();
    for request in requests() {
        let bytes = request.with_next();
        for ended in [false, true] {
            if let Err(said) = request.check(&exchange(&bytes, [], ended), ended) {
                let text = bytes[..bytes.len().min(200)].escape_ascii();
                wrong.push(format!("{}: {said}\n  {text}", request.name));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn no_verdict_depends_on_how_the_bytes_are_cut() {
    let mut cut_count = 0;
    for request in requests() {
        let bytes = request.with_next();
        let whole = exchange(&bytes, [], true);
        let by_byte = exchange(&bytes, 0..bytes.len(), true);
        assert_eq!(by_byte, whole, "{} byte by byte", request.name);
        for at in 0..=bytes.len() {
            let cut = exchange(&bytes, [at], true);
            assert_eq!(cut, whole, "{} cut at {at}", request.name);
        }
        cut_count += bytes.len() + 1;
    }
    println!("{} requests, {cut_count} cuts", requests().len());
}

/// A request that is cut off makes no call. Nothing is sent after the server has closed.
#[test]
fn what_ends_early_is_refused_and_asks_for_nothing() {
    for request in requests() {
        // A long request repeats the same letter, so a step skips most of its positions.
        let step = (request.bytes.len() / 200).max(1);
        for end in (0..request.bytes.len()).step_by(step) {
            let mut peer = Peer::new();
            peer.send(&request.bytes[..end]);
            let before = peer.got.out.len();
            let was_closed = peer.got.is_closed;
            peer.end();
            let got = &peer.got;
            assert!(got.is_closed && got.calls.is_empty(), "{} at {end}", request.name);
            assert!(!was_closed || got.out.len() == before, "{} at {end}", request.name);
            let all = statuses(&request.bytes[..end], &got.out, true);
            let all = all.unwrap_or_else(|said| panic!("{} at {end}: {said}", request.name));
            assert!(all.len() <= request.statuses.len().max(1) + 1, "{} at {end}", request.name);
        }
    }
}
