//! A server on the same shard, and a thousand exchanges at once.

use super::*;
use crate::reactor::{ListenAddress, ListenOptions};

#[test]
fn a_shard_serves_and_asks_itself() {
    with_both(|make| {
        let mut asker = make(OutgoingConfig::default());
        let any = "127.0.0.1:0".parse().unwrap();
        let address = asker.shard.listen(&any, ListenOptions::default()).unwrap();
        let ListenAddress::Tcp(address) = address else { panic!("{address}") };
        let to = target(address);
        for round in 0..10 {
            let get = format!("GET /v1/tools HTTP/1.1\r\nhost: {to}\r\n\r\n").into_bytes();
            let id = asker.send(&to, get, SLOW);
            let got = asker.wait(id);
            assert!(got.whole().1.contains("\"tools\""), "{round}: {got:?}");
        }
        let counters = asker.counters();
        assert_eq!((counters.model_connections_opened, counters.model_connections_reused), (1, 9));
        assert_eq!(asker.shard.connection_count(), 1); // The server's.
    });
}

#[test]
fn a_thousand_exchanges_at_once_do_not_wait_for_each_other() {
    const COUNT: usize = 1_000;
    with_both(|make| {
        // No answer is sent before all requests have arrived. Then the last one is answered first.
        let (here, release) = (Tally::default(), Tally::default());
        let (here_of, release_of) = (here.clone(), release.clone());
        let to = serve(move |number, mut stream| {
            let Some(request) = read_request(&mut stream) else { return };
            here_of.add(1);
            while release_of.get() + (number as u64) < COUNT as u64 {
                std::thread::sleep(Duration::from_millis(5));
            }
            let text = String::from_utf8(request).unwrap();
            let (_, body) = text.split_once("\r\n\r\n").unwrap();
            say(&mut stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            for byte in body.chars() {
                say(&mut stream, format!("1\r\n{byte}\r\n"));
            }
            say(&mut stream, "0\r\n\r\n");
        });
        let mut asker = make(OutgoingConfig::default());
        let ids: Vec<_> = (0..COUNT)
            .map(|number| asker.send(&to, request(&to, number.to_string().as_bytes()), SLOW))
            .collect();
        asker.until("all are there", |_| here.get() == COUNT as u64);
        assert!(asker.got.values().all(|got| got.status.is_none()));
        release.add(COUNT as u64);
        for (number, id) in ids.into_iter().enumerate() {
            assert_eq!(asker.wait(id).whole(), (200, &*number.to_string()));
        }
        assert_eq!(asker.counters().model_exchanges, COUNT as u64);
        assert_eq!(asker.counters().model_exchanges_failed, 0);
    });
}

#[test]
fn nothing_of_a_request_is_shown() {
    with_both(|make| {
        let mut asker = make(OutgoingConfig::default());
        let mute = serve(|_, mut stream| wait_for_end(&mut stream));
        asker.ask(&mute, SLOW);
        asker.turn();
        let outgoing = asker.shard.guests.outgoing.as_ref().unwrap();
        let shown: Vec<String> =
            outgoing.exchanges.iter().map(|(_, exchange)| format!("{exchange:?}")).collect();
        assert!(shown.len() == 1 && shown[0].contains("request_bytes"), "{shown:?}");
        assert!(!shown[0].contains("Bearer") && !shown[0].contains(KEY), "{shown:?}");
    });
}

#[test]
fn a_shard_that_goes_closes_what_it_asked_for() {
    with_both(|make| {
        let ends = Tally::default();
        let ends_of = ends.clone();
        let to = serve(move |number, mut stream| {
            if number == 0 {
                read_request(&mut stream);
                say(&mut stream, answer("kept"));
            }
            wait_for_end(&mut stream);
            ends_of.add(1);
        });
        let mut asker = make(OutgoingConfig::default());
        let (one, _) = (asker.ask(&to, SLOW), asker.ask(&to, SLOW));
        asker.wait(one);
        drop(asker);
        while ends.get() < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
