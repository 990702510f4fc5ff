//! Answers of all kinds, and the events that they cause.

use std::io::Write;
use std::net::Shutdown;

use super::*;

/// A name, the server's answer, the expected result, and whether the connection is used again.
type Case = (&'static str, &'static str, Result<(u16, &'static str), NetFaultKind>, bool);

const CASES: &[Case] = &[
    ("a length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Ok((200, "hello")), true),
    (
        "chunks",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n\
         A: b\r\n\r\n",
        Ok((200, "hello")),
        true,
    ),
    ("until the end", "HTTP/1.1 200 OK\r\n\r\nhello", Ok((200, "hello")), false),
    ("HTTP/1.0", "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", Ok((200, "ok")), false),
    ("nothing", "HTTP/1.1 204 No Content\r\n\r\n", Ok((204, "")), true),
    (
        "a last one",
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        Ok((200, "ok")),
        false,
    ),
    (
        "interim answers first",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n\
         HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        Ok((200, "ok")),
        true,
    ),
    ("an error", "HTTP/1.1 529 \r\ncontent-length: 4\r\n\r\nbusy", Ok((529, "busy")), true),
    (
        "identity",
        "HTTP/1.1 200 OK\r\ncontent-encoding: identity\r\ncontent-length: 2\r\n\r\nok",
        Ok((200, "ok")),
        true,
    ),
    (
        "bytes behind the end",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok\
         HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nnot",
        Ok((200, "ok")),
        false,
    ),
    (
        "a redirect",
        "HTTP/1.1 307 T\r\nlocation: https://elsewhere/\r\ncontent-length: 0\r\n\r\n",
        Err(NetFaultKind::Redirected),
        false,
    ),
    (
        "compression",
        "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nok",
        Err(NetFaultKind::Compressed),
        false,
    ),
    ("no HTTP", "SSH-2.0-OpenSSH\r\n\r\n", Err(NetFaultKind::Malformed), false),
    ("HTTP/2", "HTTP/2 200\r\n\r\n", Err(NetFaultKind::Malformed), false),
    ("an upgrade", "HTTP/1.1 101 Switching\r\n\r\n", Err(NetFaultKind::Malformed), false),
    (
        "two lengths",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        Err(NetFaultKind::Malformed),
        false,
    ),
    (
        "a bad chunk",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        Err(NetFaultKind::Malformed),
        false,
    ),
    (
        "a length that is not kept",
        "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello",
        Err(NetFaultKind::Broken),
        false,
    ),
    (
        "chunks without an end",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n",
        Err(NetFaultKind::Broken),
        false,
    ),
    ("half a head", "HTTP/1.1 200 OK\r\nconte", Err(NetFaultKind::Broken), false),
    ("nothing at all", "", Err(NetFaultKind::Broken), false),
    (
        "a body that is too long",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
        Err(NetFaultKind::TooLong),
        false,
    ),
];

#[test]
fn every_answer_is_heard_as_what_it_is_however_it_is_cut() {
    with_both(|make| {
        let mut asker = make(OutgoingConfig::default());
        for (name, text, expected, is_kept) in CASES {
            for is_cut in [false, true] {
                let to = serve(move |_, mut stream| {
                    stream.set_nodelay(true).unwrap();
                    while read_request(&mut stream).is_some() {
                        if is_cut && text.len() < 200 {
                            text.as_bytes().chunks(3).for_each(|piece| {
                                _ = stream.write_all(piece);
                            });
                        } else {
                            _ = stream.write_all(text.as_bytes());
                        }
                        if !is_kept {
                            break;
                        }
                    }
                    _ = stream.shutdown(Shutdown::Write);
                    wait_for_end(&mut stream);
                });
                let before = asker.counters();
                for round in 0..2 {
                    let got = asker.fetch(&to);
                    match expected {
                        Ok(whole) => assert_eq!(got.whole(), *whole, "{name}, {round}"),
                        Err(kind) => assert_eq!(got.kind(), Some(*kind), "{name}: {got:?}"),
                    }
                }
                let since = asker.counters().since(&before);
                assert_eq!(since.model_connections_reused, u64::from(*is_kept), "{name}");
                assert_eq!(since.model_exchanges_failed, 2 * u64::from(expected.is_err()));
            }
        }
    });
}

#[test]
fn a_head_that_never_ends_is_too_long() {
    with_both(|make| {
        let to = serve(|_, mut stream| {
            read_request(&mut stream);
            say(&mut stream, "HTTP/1.1 200 OK\r\n");
            for number in 0..10_000 {
                if !say(&mut stream, format!("x-{number}: {}\r\n", "y".repeat(100))) {
                    break;
                }
            }
            wait_for_end(&mut stream);
        });
        let got = make(OutgoingConfig::default()).fetch(&to);
        assert_eq!(got.kind(), Some(NetFaultKind::TooLong), "{got:?}");
    });
}

#[test]
fn what_matters_of_a_head_is_told() {
    with_both(|make| {
        let to = serve(|_, mut stream| {
            read_request(&mut stream);
            let head = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Type: \
                        application/json; charset=utf-8\r\ncontent-length: 2\r\n\r\n{}";
            say(&mut stream, head);
        });
        let got = make(OutgoingConfig::default()).fetch(&to);
        assert_eq!(got.whole(), (429, "{}"));
        assert_eq!(got.retry_after.as_deref(), Some("7"));
        assert_eq!(got.content_type.as_deref(), Some("application/json; charset=utf-8"));
    });
}

#[test]
fn an_error_says_where_and_whether_anything_was_sent() {
    with_both(|make| {
        let to = serve(|_, mut stream| {
            read_request(&mut stream);
            say(&mut stream, "HTTP/1.1 302 F\r\nlocation: https://elsewhere/v1\r\n\r\n");
            wait_for_end(&mut stream);
        });
        let mut asker = make(OutgoingConfig::default());
        let fault = asker.fetch(&to).end.unwrap().unwrap_err();
        let port = to.port.to_string();
        for part in ["127.0.0.1", &port, "302", "https://elsewhere/v1", "not followed"] {
            assert!(fault.text.contains(part), "{fault}");
        }
        assert!(fault.was_sent && fault.was_received && !fault.kind.is_retryable());
        let nobody = Target { port: 1, ..to };
        let fault = asker.fetch(&nobody).end.unwrap().unwrap_err();
        assert_eq!(fault.kind, NetFaultKind::Connect);
        assert!(!fault.was_sent && !fault.was_received && fault.text.contains("127.0.0.1:1"));
    });
}

#[test]
fn a_long_request_and_a_long_answer_pass_each_other() {
    const BYTES: usize = 8 << 20;
    with_both(|make| {
        let to = serve(|_, mut stream| {
            let request = read_request(&mut stream).unwrap();
            assert!(request.ends_with(&[b'q'; 1_000]) && request.len() > BYTES);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BYTES}\r\n\r\n");
            say(&mut stream, head);
            say(&mut stream, vec![b'a'; BYTES]);
        });
        let mut asker = make(OutgoingConfig::default());
        let id = asker.send(&to, request(&to, &vec![b'q'; BYTES]), SLOW);
        let got = asker.wait(id);
        assert_eq!(got.whole().1.len(), BYTES);
        let counters = asker.counters();
        assert!(counters.model_bytes_sent > BYTES as u64);
        assert!(counters.model_bytes_received > BYTES as u64);
    });
}

#[test]
fn an_answer_before_the_request_was_sent_ends_the_connection_and_counts() {
    with_both(|make| {
        let to = serve(|_, mut stream| {
            use std::io::Read;
            stream.read_exact(&mut [0; 100]).unwrap();
            say(&mut stream, "HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig");
            wait_for_end(&mut stream);
        });
        let mut asker = make(OutgoingConfig::default());
        for _ in 0..2 {
            let id = asker.send(&to, request(&to, &vec![b'q'; 32 << 20]), SLOW);
            assert_eq!(asker.wait(id).whole(), (413, "big"));
        }
        let counters = asker.counters();
        assert_eq!((counters.model_connections_opened, counters.model_connections_reused), (2, 0));
    });
}
