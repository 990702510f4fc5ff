//! Tests of which connections are closed and when, to the tick of the wheel, in simulated time.
//! They cover slow heads and bodies, connections without requests, addresses with too many, and a
//! full server.

use std::net::IpAddr;
use std::time::Duration;

use super::test_server::{NOTHING, SHORT, TestServer, get};
use crate::limits;
use crate::server::GuestConfig;
use crate::shard::ShardConfig;
use crate::sim::network::SimClient;

/// The most that a turn is later than its deadline: the wheel rounds up to its tick.
const TICK: Duration = Duration::from_nanos(1 << limits::WHEEL_TICK_SHIFT);
const STEP: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

impl TestServer {
    /// A new connection that has sent nothing.
    fn knock(&mut self) -> SimClient {
        let client = self.world.connect(&self.address).unwrap();
        self.pass(STEP);
        client
    }

    fn knock_from(&mut self, address: &str) -> SimClient {
        let from: IpAddr = address.parse().unwrap();
        let client = self.world.connect_from(&self.address, from).unwrap();
        self.pass(STEP);
        client
    }

    /// Asserts that nothing comes until `left` has passed. Returns the text that comes a tick
    /// later.
    fn hear_at(&mut self, client: SimClient, left: Duration) -> String {
        self.pass(left - TICK);
        assert_eq!(self.hear(client), "", "too early");
        self.pass(TICK * 2);
        self.hear(client)
    }

    fn is_alive(&mut self, client: SimClient) -> bool {
        self.say(client, &get("/healthz"));
        self.hear(client).starts_with("HTTP/1.1 200 ")
    }
}

fn assert_too_slow(heard: &str) {
    assert!(heard.starts_with("HTTP/1.1 408 ") && heard.ends_with("<end>"), "{heard}");
}

/// The head of a request with a body of that length.
fn post(body_bytes: usize) -> String {
    format!(
        "POST /v1/executions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {body_bytes}\r\n\r\n"
    )
}

#[test]
fn a_head_that_trickles_in_is_given_up_at_its_deadline_and_not_before() {
    let mut test_server = TestServer::new();
    let client = test_server.knock();
    test_server.pass(SECOND * 4 - STEP);
    test_server.say(client, "GET /v1/tools HT"); // The time still counts from the connection.
    for _ in 0..5 {
        test_server.pass(SECOND - STEP);
        test_server.say(client, "x"); // Each byte is in time, and none of them helps.
    }
    let heard = test_server.hear_at(client, SECOND - STEP);
    assert_too_slow(&heard);
    assert_eq!(test_server.shards[0].counters().requests_timed_out, 1);
}

#[test]
fn the_time_of_a_later_head_counts_from_its_own_first_byte() {
    let mut test_server = TestServer::new();
    let client = test_server.knock();
    test_server.pass(SECOND * 9);
    // One whole request and the beginning of the next, which has ten seconds of its own.
    test_server.say(client, &format!("{}GET ", get("/healthz")));
    assert!(test_server.hear(client).starts_with("HTTP/1.1 200 "));
    let heard = test_server.hear_at(client, limits::REQUEST_DEADLINE - STEP);
    assert_too_slow(&heard);
}

#[test]
fn who_says_nothing_at_first_has_as_long_as_for_a_head_and_between_requests_longer() {
    let mut test_server = TestServer::new();
    let (silent, empty) = (test_server.knock(), test_server.knock());
    test_server.say(empty, "\r\n"); // An empty line is no request.
    let used = test_server.visit(&get("/healthz"));
    assert!(test_server.hear(used).starts_with("HTTP/1.1 200 "));
    assert_eq!(test_server.hear_at(silent, limits::REQUEST_DEADLINE - STEP * 4), "<end>");
    test_server.pass(STEP * 4);
    assert_eq!(test_server.hear(empty), "<end>");
    test_server.pass(limits::CONNECTION_IDLE - limits::REQUEST_DEADLINE - SECOND);
    assert!(test_server.is_alive(used)); // Its time begins anew.
    assert_eq!(test_server.hear_at(used, limits::CONNECTION_IDLE - STEP), "<end>");
    let counters = test_server.shards[0].counters();
    assert_eq!((counters.connections_idled_out, counters.requests_timed_out), (3, 0));
}

#[test]
fn a_server_that_ends_answers_the_first_request_of_new_connections() {
    let mut test_server = TestServer::new();
    let used = test_server.visit(&get("/healthz"));
    assert!(test_server.hear(used).starts_with("HTTP/1.1 200 "));
    let (new, silent) = (test_server.knock(), test_server.knock());
    test_server.pass(SECOND);
    test_server.shards[0].drain();
    test_server.pass(STEP);
    assert_eq!(test_server.hear(used), "<end>");
    test_server.say(new, &get("/healthz"));
    test_server.pass(STEP);
    let heard = test_server.hear(new);
    assert!(heard.starts_with("HTTP/1.1 200 ") && heard.ends_with("<end>"), "{heard}");
    assert_eq!(test_server.hear_at(silent, limits::DRAIN_FIRST_REQUEST - STEP * 3), "<end>");
    assert_eq!(test_server.shards[0].connection_count(), 0);
}

#[test]
fn a_body_may_take_its_time_while_it_comes_fast_enough() {
    let mut test_server = TestServer::new();
    let client = test_server.visit(&post(40 << 10));
    let rate = limits::REQUEST_BODY_BYTES_PER_S as usize;
    // Longer than any deadline, at the slowest permitted rate.
    for _ in 0..35 {
        test_server.pass(SECOND - STEP);
        test_server.say(client, &" ".repeat(rate));
    }
    assert_eq!(test_server.hear(client), "");
    // Now it stops: only the ten seconds that it has not used are left.
    let heard = test_server.hear_at(client, limits::REQUEST_BODY_GRACE - STEP);
    assert_too_slow(&heard);
}

#[test]
fn a_body_that_dribbles_is_given_up_when_what_came_is_used_up() {
    let mut test_server = TestServer::new();
    let client = test_server.visit(&post(1_000));
    for _ in 0..8 {
        test_server.pass(SECOND - STEP);
        test_server.say(client, &" ".repeat(64));
    }
    // 512 bytes are worth half a second.
    let heard = test_server.hear_at(client, SECOND * 2 + SECOND / 2 - STEP);
    assert_too_slow(&heard);
    // Nothing at all: to the tick.
    let client = test_server.visit(&post(1_000));
    let heard = test_server.hear_at(client, limits::REQUEST_BODY_GRACE - STEP);
    assert_too_slow(&heard);
}

#[test]
fn streams_and_answers_have_no_deadline_of_these() {
    let mut test_server = TestServer::new();
    let id = test_server.run(SHORT, NOTHING);
    let stream = test_server.visit(&get(&format!("/v1/executions/{id}/events")));
    let waits = test_server.visit(&get(&format!("/v1/executions/{id}/result?wait_ms=60000")));
    test_server.pass(SECOND * 55);
    assert!(!test_server.hear(stream).contains("<end>"));
    assert_eq!(test_server.hear(waits), "");
}

#[test]
fn an_address_has_so_many_connections_and_this_machine_as_many_as_it_likes() {
    let config = ShardConfig {
        guests: GuestConfig { connections_per_address_max: 3, ..Default::default() },
        ..ShardConfig::default()
    };
    let mut test_server = TestServer::with(config);
    for (one, same, other) in [
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("::ffff:192.0.2.3", "192.0.2.3", "192.0.2.4"),
        ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"),
    ] {
        let three = [0; 3].map(|_| test_server.knock_from(one));
        let refused_before = test_server.shards[0].counters().connections_over_address;
        let fourth = test_server.knock_from(same);
        assert!(test_server.hear(fourth).starts_with('<'), "closed, and not a word");
        assert_eq!(test_server.shards[0].counters().connections_over_address, refused_before + 1);
        let other = test_server.knock_from(other);
        assert!(
            test_server.is_alive(other)
                && three.into_iter().all(|client| test_server.is_alive(client))
        );
        test_server.world.client_close(three[1]);
        test_server.pass(STEP);
        let again = test_server.knock_from(same);
        assert!(test_server.is_alive(again), "there is room again");
    }
    let own: Vec<SimClient> = (0..20).map(|_| test_server.knock()).collect();
    assert!(own.into_iter().all(|client| test_server.is_alive(client)));
}

fn assert_turned_away(test_server: &mut TestServer) {
    let client = test_server.visit(&get("/healthz"));
    let heard = test_server.hear(client);
    assert!(heard.starts_with("HTTP/1.1 503 ") && heard.contains("retry-after: 2\r\n"), "{heard}");
    assert!(heard.contains("\"too_many_connections\"") && heard.ends_with("<end>"), "{heard}");
    test_server.world.client_close(client);
    test_server.pass(STEP);
}

#[test]
fn who_has_been_without_a_request_longest_makes_room() {
    let mut test_server = TestServer::with_places(11);
    let id = test_server.run(SHORT, NOTHING);
    let stream = test_server.visit(&get(&format!("/v1/executions/{id}/events")));
    assert!(test_server.hear(stream).contains("event: started"));
    let waits = test_server.visit(&get(&format!("/v1/executions/{id}/result?wait_ms=60000")));
    let head = test_server.visit("GET /v1/to");
    let body = test_server.visit(&post(10));
    let idle = [0; 5].map(|_| test_server.visit(&get("/healthz")));
    idle.iter().for_each(|client| assert!(test_server.hear(*client).starts_with("HTTP/1.1 200 ")));
    // Nine of eleven slots are taken, and two are reserved. The first one sends another request:
    // now it is the last. A connection that was answered only just now stays.
    assert!(test_server.is_alive(idle[0]));
    test_server.pass(limits::CONNECTIONS_EVICT_IDLE_MIN - STEP * 20);
    assert_turned_away(&mut test_server);
    test_server.pass(STEP * 30);
    for gone in [1, 2, 3, 4, 0] {
        let new = test_server.visit("GET /"); // In a request: it stays, too.
        assert_eq!(test_server.hear(new), "");
        assert!(test_server.hear(idle[gone]).starts_with('<'), "{gone} had to go");
    }
    assert_eq!(test_server.shards[0].counters().connections_evicted, 5);
    // Every connection has a request: a new one is refused.
    assert_turned_away(&mut test_server);
    assert_eq!(test_server.shards[0].counters().connections_turned_away, 2);
    // The earlier connections are not affected.
    test_server.say(head, "ols HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(test_server.hear(head).starts_with("HTTP/1.1 200 "));
    test_server.say(body, "0123456789");
    assert!(test_server.hear(body).starts_with("HTTP/1.1 400 "));
    assert_eq!(test_server.hear(waits), "");
    assert!(!test_server.hear(stream).contains("<end>"));
    // A slot is free again.
    test_server.pass(limits::LINGER + SECOND);
    let new = test_server.knock();
    assert!(test_server.is_alive(new));
}

#[test]
fn many_who_come_to_a_full_house_are_all_told_so_and_then_others_come_in() {
    let mut test_server = TestServer::with_places(200);
    let inside: Vec<SimClient> = (0..195).map(|_| test_server.visit("GET /")).collect();
    for round in 0..100 {
        let client = test_server.visit(&get("/healthz"));
        let heard = test_server.hear(client);
        // The server waits for clients that do not close their side; from the fifth on no slot is
        // left for that.
        assert!(heard.starts_with("HTTP/1.1 503 ") || heard.starts_with('<'), "{round}: {heard}");
    }
    assert_eq!(test_server.shards[0].counters().connections_turned_away, 100);
    assert!(inside.iter().all(|client| test_server.hear(*client).is_empty()));
    inside.into_iter().for_each(|client| test_server.world.client_close(client));
    test_server.pass(limits::LINGER + SECOND);
    let client = test_server.knock();
    assert!(test_server.is_alive(client));
}

#[test]
fn bodies_that_have_begun_have_so_much_room_together() {
    let mut test_server = TestServer::new();
    let body_bytes = 900 << 10;
    let begin = |test_server: &mut TestServer| {
        let client = test_server.visit(&post(body_bytes));
        let piece = " ".repeat(16 << 10);
        let mut heard = String::new();
        for sent in (0..body_bytes - 1).step_by(piece.len()) {
            if heard.is_empty() {
                test_server.say(client, &piece[..piece.len().min(body_bytes - 1 - sent)]);
                heard = test_server.hear(client);
            }
        }
        (client, heard)
    };
    let mut inside = Vec::new();
    let refused = loop {
        assert!(inside.len() * body_bytes <= limits::HTTP_BODIES_BYTES_MAX, "there is no limit");
        match begin(&mut test_server) {
            (client, heard) if heard.is_empty() => inside.push(client),
            (_, heard) => break heard,
        }
    };
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.ends_with("<end>"), "{refused}");
    assert!(refused.contains("retry-after: "), "{refused}");
    // A vector that grows has at most twice the capacity that it needs.
    assert!(2 * (inside.len() + 1) * body_bytes > limits::HTTP_BODIES_BYTES_MAX);
    // A small request succeeds, an earlier one is answered, and room is free again.
    let small = test_server.knock();
    assert!(test_server.is_alive(small));
    let client = test_server.visit(&(post(2) + "{}"));
    assert!(test_server.hear(client).starts_with("HTTP/1.1 400 "));
    let first = inside.swap_remove(0);
    test_server.say(first, "x");
    assert!(test_server.hear(first).starts_with("HTTP/1.1 400 "));
    assert_eq!(begin(&mut test_server).1, "");
    inside.into_iter().for_each(|client| test_server.world.client_close(client));
    test_server.pass(SECOND);
    for _ in 0..20 {
        assert_eq!(begin(&mut test_server).1, "");
    }
}

#[test]
fn requests_that_come_at_once_leave_others_their_turn() {
    let mut test_server = TestServer::new();
    let many = test_server.visit(&get("/healthz"));
    let one = test_server.visit(&get("/healthz"));
    for client in [many, one] {
        assert!(test_server.hear(client).starts_with("HTTP/1.1 200 "));
    }
    let count = 10 * limits::REQUESTS_PER_TURN as usize;
    for path in ["/nowhere", "/v1/tools"] {
        let requests = get(path).repeat(count);
        test_server.world.client_send(many, requests.as_bytes()).unwrap();
        test_server.world.client_send(one, get("/healthz").as_bytes()).unwrap();
        let (mut heard, mut answered_before) = (String::new(), None);
        let answers = |heard: &str| heard.matches("HTTP/1.1 ").count();
        while answers(&heard) < count {
            test_server.turn_once();
            let mut buffer = [0; 64 << 10];
            while let Ok(bytes) = test_server.world.client_receive(many, &mut buffer) {
                heard += str::from_utf8(&buffer[..bytes]).unwrap();
            }
            if answered_before.is_none()
                && test_server.world.client_receive(one, &mut buffer).is_ok()
            {
                answered_before = Some(answers(&heard));
            }
        }
        let answered_before = answered_before.expect("the other client has its reply");
        assert!(answered_before <= 2 * limits::REQUESTS_PER_TURN as usize, "{answered_before}");
    }
    // A client that sends no more gets all replies, too.
    test_server.world.client_send(many, get("/nowhere").repeat(count).as_bytes()).unwrap();
    test_server.world.client_finish(many);
    test_server.pass(SECOND);
    let heard = test_server.hear(many);
    assert_eq!(heard.matches("HTTP/1.1 404").count(), count);
    assert!(heard.ends_with("<end>"));
}
