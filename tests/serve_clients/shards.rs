//! Two shards: a connection can do the same on either of them.

mod apart;

use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};
use streamdoor::wire::http1::Method;

use crate::server::{Server, slow, slow_data};
use crate::{events, http};

const CONNECTIONS: u64 = 20;

/// A server with two shards. `None` on a machine with one core.
fn two() -> Option<Server> {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        println!("not run: there is only one core");
        return None;
    }
    Some(Server::start(&["--cpus", "0,1", "--log-level", "debug"]))
}

/// The body of an execution that starts at its 20th subscriber.
fn shared(chunks: u64) -> Value {
    let mut body = slow(chunks, 1, 80);
    body["start"] = json!({"after_subscribers": CONNECTIONS});
    body
}

/// Checks that both shards got connections. The kernel spreads them, so at least one of about 40
/// goes to each.
fn check_spread(server: &Server) {
    let has = |shard: u64| move |record: &Value| record["shard"] == shard;
    server.record("connection_opened", has(0));
    server.record("connection_opened", has(1));
}

#[test]
fn an_execution_is_followed_through_twenty_others() {
    let Some(server) = two() else { return };
    for format in ["sse", "ndjson"] {
        let this = server.execute(&shared(300));
        let path = format!("{this}/events?format={format}&policy=block");
        let request = http::request("GET", &path, None);
        std::thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let mut stream = TcpStream::connect(&server.address).unwrap();
                    stream.write_all(request.as_bytes()).unwrap();
                    let answer = http::answers(&mut stream, &[Method::Get]).remove(0);
                    let told = events::of(format, &answer.body);
                    let data = |seq| slow_data(seq, 300, 80);
                    let (given, _) = events::check_whole(&told, "completed", data);
                    assert_eq!(given.chunks, 300);
                });
            }
        });
    }
    check_spread(&server);
    server.stop();
}

#[test]
fn its_output_is_read_and_it_is_inspected_through_twenty_others() {
    let Some(server) = two() else { return };
    let this = server.execute(&shared(200));
    let whole: Vec<u8> = (1..=200).flat_map(|seq| slow_data(seq, 200, 80)).collect();
    let output = http::request("GET", &format!("{this}/output"), None);
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(&server.address).unwrap();
                stream.write_all(output.as_bytes()).unwrap();
                let answer = http::answers(&mut stream, &[Method::Get]).remove(0);
                assert!(answer.body == whole);
                // The same connection then inspects the execution. It may have moved for the first
                // request.
                for path in ["", "/result?wait_ms=30000"] {
                    let request = http::request("GET", &format!("{this}{path}"), None);
                    stream.write_all(request.as_bytes()).unwrap();
                    let document = http::answers(&mut stream, &[Method::Get]).remove(0).json();
                    assert_eq!(document["chunks"], 200, "{document}");
                }
            });
        }
    });
    for _ in 0..CONNECTIONS {
        let execution = server.get(&this);
        assert_eq!(
            (&execution["state"], &execution["bytes"]),
            (&json!("completed"), &json!(16_000))
        );
        let all = server.get("/v1/executions");
        let id = &execution["execution"];
        let count = all["executions"].as_array().unwrap().iter().filter(|e| e["execution"] == *id);
        assert_eq!(count.count(), 1, "{all}");
        let token = execution["token"].as_str().unwrap();
        let progress = server.get(&format!("/v1/progress/{token}"));
        assert_eq!(progress["execution"], *id, "{progress}");
    }
    check_spread(&server);
    server.stop();
}

#[test]
fn the_list_of_all_shards_has_one_order_and_comes_in_parts() {
    let Some(server) = two() else { return };
    let made: Vec<String> = (0..CONNECTIONS)
        .map(|_| {
            let body = json!({"tool": "slow_data_processor", "arguments": {"chunks": 1}});
            let this = server.execute(&body);
            let ended = server.get(&format!("{this}/result?wait_ms=30000"));
            assert_eq!(ended["state"], "completed");
            ended["execution"].as_str().unwrap().to_owned()
        })
        .collect();
    let (mut listed, mut dates, mut after) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/executions?limit=3{after}"));
        let all = page["executions"].as_array().unwrap();
        assert!(all.len() == 3 || page.get("next").is_none(), "{page}");
        for item in all {
            let text = |name: &str| item[name].as_str().unwrap().to_owned();
            assert!(text("created_at") < text("ended_at"), "{item}");
            dates.push(text("created_at"));
            listed.push(text("execution"));
        }
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert!(dates.is_sorted(), "{dates:?}");
    let sorted = |ids: &[String]| {
        let mut sorted = ids.to_vec();
        sorted.sort();
        sorted
    };
    assert_eq!(sorted(&listed), sorted(&made), "each comes once");
    let of = |query: &str| {
        let page = server.get(&format!("/v1/executions?{query}"));
        page["executions"].as_array().unwrap().len()
    };
    let names = ["slow_data_processor", "search_files"].map(|tool| of(&format!("tool={tool}")));
    assert_eq!(names, [made.len(), 0]);
    assert_eq!(
        ["completed", "running"].map(|state| of(&format!("state={state}"))),
        [made.len(), 0]
    );
    let at = listed.iter().position(|id| *id == made[0]).unwrap();
    let one = server.get(&format!("/v1/executions/{}", made[0]));
    assert_eq!(
        (&one["created_at"], &one["tool"]),
        (&json!(dates[at]), &json!("slow_data_processor"))
    );
    assert!(one["ended_at"].is_string(), "{one}");
    check_spread(&server);
    server.stop();
}

#[test]
fn it_is_cancelled_through_others_than_its_own() {
    let Some(server) = two() else { return };
    for _ in 0..CONNECTIONS {
        let this = server.execute(&slow(1_000_000, 1, 80));
        let (status, answer) = server.ask("DELETE", &this, None);
        assert!(matches!(status, 200 | 202), "{answer}");
        let result = server.get(&format!("{this}/result?wait_ms=30000"));
        assert_eq!(result["state"], "cancelled", "{result}");
        let (status, _) = server.ask("DELETE", &this, None);
        assert_eq!(status, 200);
    }
    check_spread(&server);
    server.stop();
}
