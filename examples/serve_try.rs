use std::sync::Arc;
use streamdoor::shard::{Server, ServerConfig, ShardConfig};
fn main() {
    let n: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1);
    let reactor = std::env::args().nth(2).and_then(|a| a.parse().ok()).unwrap_or_default();
    let config = ServerConfig {
        shards: (0..n).map(|_| ShardConfig { reactor, ..Default::default() }).collect(),
        listen: vec!["127.0.0.1:8808".parse().unwrap()],
        connections_max: 20_000,
    };
    let server = Server::start(config, Arc::new(|_| {})).unwrap();
    eprintln!("{:?} {}", server.addresses(), server.reports()[0]);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    eprintln!("drained: {}", server.drain(std::time::Duration::from_secs(5)));
}
