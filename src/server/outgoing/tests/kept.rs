//! Kept connections, including those that the server has closed.

use std::io::Read;
use std::net::Shutdown;

use super::*;
use crate::server::outgoing;

/// Answers `counts[n]` requests on connection `n`, without a limit if that is missing, and then
/// calls `last`.
fn serve_some(
    counts: &'static [usize],
    last: impl Fn(&mut TcpStream) + Send + Sync + 'static,
) -> (Target, Tally, Tally) {
    let (connections, requests) = (Tally::default(), Tally::default());
    let (connections_of, requests_of) = (connections.clone(), requests.clone());
    let to = serve(move |number, mut stream| {
        connections_of.add(1);
        let mut left = counts.get(number).copied().unwrap_or(usize::MAX);
        while left > 0 {
            if read_request(&mut stream).is_none() {
                return;
            }
            requests_of.add(1);
            let text = format!("{} {}", connections_of.get(), requests_of.get());
            if !say(&mut stream, answer(&text)) {
                return;
            }
            left -= 1;
        }
        last(&mut stream);
    });
    (to, connections, requests)
}

#[test]
fn one_connection_carries_one_exchange_after_another() {
    with_both(|make| {
        let (to, connections, _) = serve_some(&[], |_| {});
        let mut asker = make(OutgoingConfig::default());
        for round in 1..=20 {
            assert_eq!(asker.fetch(&to).whole().1, format!("1 {round}"));
        }
        let counters = asker.counters();
        assert_eq!((counters.model_connections_opened, counters.model_connections_reused), (1, 19));
        // Two at once need two connections.
        let (one, two) = (asker.ask(&to, SLOW), asker.ask(&to, SLOW));
        assert_eq!((asker.wait(one).status, asker.wait(two).status), (Some(200), Some(200)));
        assert_eq!(connections.get(), 2);
        assert_eq!(asker.counters().model_exchanges_repeated, 0);
    });
}

#[test]
fn a_kept_connection_that_died_costs_nothing_and_is_replaced_once() {
    with_both(|make| {
        // The first connection reads a second request and closes without a byte.
        let (to, _, _) = serve_some(&[1], |stream| {
            read_request(stream);
        });
        let mut asker = make(OutgoingConfig::default());
        assert_eq!(asker.fetch(&to).whole().1, "1 1");
        assert_eq!(asker.fetch(&to).whole().1, "2 2");
        assert_eq!(asker.counters().model_exchanges_repeated, 1);
        assert_eq!(asker.counters().model_exchanges_failed, 0);
    });
}

#[test]
fn a_request_is_repeated_once_and_never_on_a_connection_that_was_new() {
    with_both(|make| {
        let requests = Tally::default();
        let requests_of = requests.clone();
        let to = serve(move |number, mut stream| {
            if read_request(&mut stream).is_some() {
                requests_of.add(1);
                if number == 0 {
                    say(&mut stream, answer("first"));
                    read_request(&mut stream); // Without an answer.
                    requests_of.add(1);
                }
            }
        });
        let mut asker = make(OutgoingConfig::default());
        assert_eq!(asker.fetch(&to).whole().1, "first");
        let fault = asker.fetch(&to).end.unwrap().unwrap_err();
        assert_eq!(fault.kind, NetFaultKind::Broken);
        assert!(fault.was_sent && !fault.was_received);
        assert_eq!(requests.get(), 3); // The first, the one on the kept connection, its repetition.
        assert_eq!(asker.fetch(&to).kind(), Some(NetFaultKind::Broken));
        assert_eq!(requests.get(), 4);
        assert_eq!(asker.counters().model_exchanges_repeated, 1);
    });
}

#[test]
fn nothing_is_repeated_once_a_byte_of_an_answer_has_come() {
    with_both(|make| {
        let (to, connections, _) = serve_some(&[1], |stream| {
            read_request(stream);
            say(stream, "H");
        });
        let mut asker = make(OutgoingConfig::default());
        assert_eq!(asker.fetch(&to).whole().1, "1 1");
        let fault = asker.fetch(&to).end.unwrap().unwrap_err();
        assert!(fault.kind == NetFaultKind::Broken && fault.was_received, "{fault}");
        assert_eq!((connections.get(), asker.counters().model_exchanges_repeated), (1, 0));
    });
}

#[test]
fn a_reset_is_not_a_kept_connection_that_was_closed_meanwhile() {
    with_both(|make| {
        let (to, connections, _) = serve_some(&[1], |stream| {
            // Closed with an unread byte: the kernel answers with a reset.
            stream.read_exact(&mut [0; 10]).unwrap();
        });
        let mut asker = make(OutgoingConfig::default());
        assert_eq!(asker.fetch(&to).whole().1, "1 1");
        let fault = asker.fetch(&to).end.unwrap().unwrap_err();
        assert!(fault.kind == NetFaultKind::Broken && fault.kind.is_retryable(), "{fault}");
        assert_eq!((connections.get(), asker.counters().model_exchanges_repeated), (1, 0));
    });
}

#[test]
fn a_kept_connection_whose_end_or_noise_was_seen_is_not_used() {
    with_both(|make| {
        let ends: [fn(&mut TcpStream); 2] = [
            |stream| {
                _ = stream.shutdown(Shutdown::Both);
            },
            |stream| {
                say(stream, "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n");
                wait_for_end(stream);
            },
        ];
        for last in ends {
            let (to, _, _) = serve_some(&[1], last);
            let mut asker = make(OutgoingConfig::default());
            assert_eq!(asker.fetch(&to).whole().1, "1 1");
            asker.until("it is seen", |asker| {
                asker.shard.guests.outgoing.as_ref().unwrap().kept_count == 0
            });
            assert_eq!(asker.fetch(&to).whole().1, "2 2");
            let counters = asker.counters();
            assert_eq!(
                (counters.model_connections_reused, counters.model_exchanges_repeated),
                (0, 0)
            );
        }
    });
}

#[test]
fn so_many_are_kept_and_not_more() {
    with_both(|make| {
        let (to, connections, _) = serve_some(&[], |_| {});
        let mut asker = make(OutgoingConfig::default());
        let count = crate::limits::MODEL_KEPT_PER_SITE + 9;
        let ids: Vec<_> = (0..count).map(|_| asker.ask(&to, SLOW)).collect();
        for id in ids {
            asker.wait(id);
        }
        assert_eq!(connections.get(), count as u64);
        let outgoing = asker.shard.guests.outgoing.as_ref().unwrap();
        assert_eq!(outgoing.kept_count, crate::limits::MODEL_KEPT_PER_SITE);
    });
}

#[test]
fn an_answer_that_has_said_all_gives_its_connection_back() {
    with_both(|make| {
        // The end of the chunks comes late or never.
        for is_late in [true, false] {
            let (go_on, released) = std::sync::mpsc::channel::<()>();
            let released = std::sync::Mutex::new(released);
            let to = serve(move |number, mut stream| {
                while read_request(&mut stream).is_some() {
                    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                    say(&mut stream, format!("{head}6\r\n[DONE]\r\n"));
                    released.lock().unwrap().recv().expect("the asker lets it go");
                    if is_late || number > 0 {
                        say(&mut stream, "4\r\nmore\r\n0\r\n\r\n");
                    } else {
                        return wait_for_end(&mut stream);
                    }
                }
            });
            let mut asker = make(OutgoingConfig::default());
            for _ in 0..3 {
                let id = asker.ask(&to, SLOW);
                asker.until("it is said", |asker| asker.got[&id].body == b"[DONE]");
                asker.got.remove(&id);
                // From now on any event of it is a failure.
                outgoing::release_exchange(&mut asker.shard, id);
                go_on.send(()).unwrap();
                asker.until("it is drained", |asker| {
                    asker.shard.guests.outgoing.as_ref().unwrap().drained_count == 0
                });
            }
            let opened = asker.counters().model_connections_opened;
            assert_eq!(opened, if is_late { 1 } else { 2 });
        }
    });
}
