//! Deadlines and dropped exchanges. Only lower bounds are tested because machines are busy.

use super::*;
use crate::reactor::Clock;
use crate::server::outgoing;

const SOON: Duration = Duration::from_millis(60);

fn late(asker: &mut Asker, to: &Target, deadlines: Deadlines) -> Got {
    let before = Clock::now();
    let id = asker.ask(to, deadlines);
    let got = asker.wait(id);
    assert!(Clock::now().since(before) >= SOON, "it was given up early");
    got
}

#[test]
fn each_deadline_is_told_by_its_name() {
    with_both(|make| {
        let mut asker = make(OutgoingConfig::default());
        let mute = serve(|_, mut stream| wait_for_end(&mut stream));
        let got = late(&mut asker, &mute, Deadlines { first_byte: SOON, ..SLOW });
        assert_eq!(got.kind(), Some(NetFaultKind::FirstByte), "{got:?}");
        let got = late(&mut asker, &mute, Deadlines { total: SOON, ..SLOW });
        assert_eq!(got.kind(), Some(NetFaultKind::TooSlow), "{got:?}");
        let stuck = serve(|_, mut stream| {
            read_request(&mut stream);
            say(&mut stream, "HTTP/1.1 200 OK\r\n\r\nthen");
            wait_for_end(&mut stream);
        });
        let got = late(&mut asker, &stuck, Deadlines { between_bytes: SOON, ..SLOW });
        assert_eq!((got.kind(), &got.body[..]), (Some(NetFaultKind::Silent), &b"then"[..]));
        // Half a head is not an answer.
        let half = serve(|_, mut stream| {
            say(&mut stream, "HTTP/1.1 200 OK\r\n");
            wait_for_end(&mut stream);
        });
        let got = late(&mut asker, &half, Deadlines { first_byte: SOON, ..SLOW });
        assert_eq!(got.kind(), Some(NetFaultKind::FirstByte), "{got:?}");
    });
}

#[test]
fn a_stream_that_goes_on_is_not_given_up() {
    with_both(|make| {
        let to = serve(|_, mut stream| {
            read_request(&mut stream);
            say(&mut stream, "HTTP/1.1 200 OK\r\n\r\n");
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(20));
                say(&mut stream, "x");
            }
        });
        let mut asker = make(OutgoingConfig::default());
        // The whole takes longer than the deadline. On a busy machine a pause may be too long as
        // well.
        let between_bytes = Duration::from_millis(390);
        let id = asker.ask(&to, Deadlines { between_bytes, ..SLOW });
        let got = asker.wait(id);
        if got.kind() == Some(NetFaultKind::Silent) {
            return println!("not run: this machine is too busy");
        }
        assert_eq!(got.whole().1.len(), 20);
    });
}

#[test]
fn nobody_who_answers_is_given_up_after_the_deadline_for_connecting() {
    with_both(|make| {
        // The queue is full: a new connection is not even refused.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
            queue.push(stream);
        }
        let mut asker = make(OutgoingConfig::default());
        let got = late(&mut asker, &target(address), Deadlines { connect: SOON, ..SLOW });
        assert_eq!(got.kind(), Some(NetFaultKind::Connect), "{got:?}");
        let id = asker.ask(&target(address), SLOW);
        asker.turn();
        outgoing::drop_exchange(&mut asker.shard, id);
        asker.got.remove(&id);
        asker.turn();
        assert_eq!(asker.shard.reactor_mut_connections(), 0);
    });
}

#[test]
fn who_does_not_read_is_not_given_up_for_silence_and_holds_the_server_back() {
    const BYTES: u64 = 64 << 20;
    with_both(|make| {
        let said = Tally::default();
        let said_of = said.clone();
        let to = serve(move |_, mut stream| {
            read_request(&mut stream);
            say(&mut stream, format!("HTTP/1.1 200 OK\r\ncontent-length: {BYTES}\r\n\r\n"));
            for _ in 0..BYTES >> 16 {
                if !say(&mut stream, [b'x'; 1 << 16]) {
                    return;
                }
                said_of.add(1 << 16);
            }
        });
        let mut asker = make(OutgoingConfig::default());
        let id = asker.ask(&to, Deadlines { between_bytes: Duration::from_secs(20), ..SLOW });
        asker.until("it begins", |asker| !asker.got[&id].body.is_empty());
        outgoing::set_exchange_reading(&mut asker.shard, id, false);
        // Wait until nothing moves any more.
        let (mut before, mut quiet_count) = (0, 0);
        asker.until("it stands still", |asker| {
            let now = said.get() + asker.got[&id].body.len() as u64;
            quiet_count = if now == before { quiet_count + 1 } else { 0 };
            before = now;
            std::thread::sleep(Duration::from_millis(2));
            quiet_count > 50
        });
        assert!(said.get() < BYTES / 2, "{} bytes were taken", said.get());
        assert!(asker.got[&id].end.is_none());
        outgoing::set_exchange_reading(&mut asker.shard, id, true);
        assert_eq!(asker.wait(id).whole().1.len() as u64, BYTES);
    });
}

#[test]
fn who_is_given_up_is_not_heard_of_and_its_server_sees_the_end() {
    with_both(|make| {
        let ends = Tally::default();
        let ends_of = ends.clone();
        let to = serve(move |number, mut stream| {
            if number > 0 {
                read_request(&mut stream);
                say(&mut stream, "HTTP/1.1 200 OK\r\n\r\nsome");
            }
            wait_for_end(&mut stream);
            ends_of.add(1);
        });
        let mut asker = make(OutgoingConfig::default());
        let silent = asker.ask(&to, SLOW);
        asker.until("it is sent", |asker| asker.counters().model_bytes_sent > 0);
        let talking = asker.ask(&to, SLOW);
        asker.until("something is said", |asker| asker.got[&talking].body == b"some");
        let new = asker.ask(&to, SLOW);
        for id in [silent, talking, new] {
            outgoing::drop_exchange(&mut asker.shard, id);
            outgoing::drop_exchange(&mut asker.shard, id); // The second time does nothing.
            outgoing::set_exchange_reading(&mut asker.shard, id, false);
            outgoing::release_exchange(&mut asker.shard, id);
            asker.got.remove(&id);
        }
        assert_eq!(asker.shard.reactor_mut_connections(), 0);
        asker.until("their ends", |_| ends.get() >= 2);
        assert!(asker.shard.guests.outgoing.as_ref().unwrap().lines.iter().all(Option::is_none));
    });
}

impl ServerShard {
    fn reactor_mut_connections(&mut self) -> usize {
        crate::reactor::Reactor::connection_count(self.reactor_mut())
    }
}
