//! 64 clients of both eras that all use the ids 0, 1, 2 …, over kept connections. Every reply has
//! the client's own nonce and nobody else's.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::json;
use streamdoor::base::Random;
use streamdoor::server::{Server, ServerConfig};
use streamdoor::shard::ShardConfig;

use crate::client::{Answer, Era, McpClient};
use crate::echo::{CHUNKS, set_up};

const CLIENTS: usize = 64;
const CALLS: usize = 100_000;
/// The prefix of all nonces. The number of the client follows it.
const MARK: &[u8] = b"nonce-";
const SHARDS: usize = 2;

/// Checks every byte of a reply and returns the id of its execution.
fn check(answer: &Answer, nonce: &str, token: u64) -> String {
    assert_eq!(answer.status, 200);
    let (response, notifications) = answer.messages.split_last().unwrap();
    let mut before = f64::NEG_INFINITY;
    for notification in notifications {
        assert_eq!(notification["method"], "notifications/progress", "{notification}");
        let params = &notification["params"];
        assert_eq!(params["progressToken"], token, "{notification}");
        let progress = params["progress"].as_f64().unwrap();
        assert!(progress > before, "{notification} behind {before}");
        before = progress;
    }
    let result = &response["result"];
    assert_ne!(result["isError"], true, "{response}");
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{response}"));
    assert_eq!(text, nonce.repeat(CHUNKS));
    assert!(!notifications.is_empty(), "its chunks are told of: {response}");
    let marks = answer.body.windows(MARK.len()).enumerate().filter(|(_, at)| *at == MARK);
    for (at, _) in marks {
        assert!(answer.body[at..].starts_with(nonce.as_bytes()), "somebody else's");
    }
    let server_token = result["_meta"]["progressToken"].as_str().unwrap();
    assert!(server_token.len() >= 32, "{response}");
    result["_meta"]["dev.streamdoor/execution"].as_str().unwrap().to_owned()
}

#[test]
fn nobody_is_given_a_byte_of_anybody_else() {
    let config = ServerConfig {
        shards: vec![ShardConfig::default(); SHARDS],
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        connections_max: 2 * CLIENTS as u32,
    };
    let server = Server::start(config, Arc::new(set_up)).unwrap();
    let address = server.addresses()[0].to_string();
    let address = address.trim_start_matches("http://");
    let executions: Vec<String> = std::thread::scope(|scope| {
        let client = |number: usize| {
            let era = if number.is_multiple_of(2) { Era::Handshake } else { Era::Stateless };
            let mut client = McpClient::connect(address, era);
            let mut random = Random::new(number as u64);
            let first = u64::from(era == Era::Handshake); // 0 was `initialize`.
            let calls = CALLS / CLIENTS + usize::from(number < CALLS % CLIENTS);
            let each = (0..calls as u64).map(|call| {
                let nonce = format!("nonce-{number:02}-{call:06}-{:016x}", random.next_u64());
                let answer = client.call("echo", json!({ "nonce": nonce }));
                check(&answer, &nonce, first + call)
            });
            each.collect::<Vec<_>>()
        };
        let spawn = |number| scope.spawn(move || client(number));
        let threads: Vec<_> = (0..CLIENTS).map(spawn).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it has said why")).collect()
    });
    let all: HashSet<&String> = executions.iter().collect();
    assert_eq!((executions.len(), all.len()), (CALLS, CALLS));
    println!("{CALLS} calls of {CLIENTS} clients of both eras");
}
